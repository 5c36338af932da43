"""Reading of the vectors in tests/data/golden/ (see the README.md there), and their cotangents."""

import gzip
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

FOLDER = Path(__file__).resolve().parents[1] / "data" / "golden"
# Largest difference allowed, relative to the largest value of a tensor; the vectors are stored in
# float32.
TOLERANCE = 1e-6


def load(name: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """(config, float64 tensors by key) of <name>.npz."""
    with np.load(FOLDER / f"{name}.npz") as file:
        config = json.loads(str(file["config"])) if "config" in file else {}
        return config, {k: _tensor(file[k]) for k in file.files if k != "config"}


def _tensor(array: np.ndarray) -> Tensor:
    tensor = torch.from_numpy(array)
    return tensor.double() if tensor.is_floating_point() else tensor


def entries(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors whose key starts with `prefix`, under the rest of their key."""
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}


@dataclass
class NetVector:
    """One whole-network vector: constructor arguments, weights, input, and sampled outputs and
    gradients.
    """

    config: dict[str, Any]
    weights: dict[str, Tensor]
    input: Tensor
    samples: dict[str, Tensor]

    def sampled(self, key: str, tensor: Tensor) -> Tensor:
        """`tensor` seen as the stored sample of `key` is."""
        return tensor.detach().reshape(-1)[:: self.config["sample_strides"][key]]


def load_net(name: str) -> NetVector:
    config, tensors = load(name)
    config["network"].pop("recal_all_flows", None)  # it never had an effect
    planes = tensors.pop("bf16_bytes").numpy()
    words = np.ascontiguousarray(planes.T).view(np.uint16).reshape(-1).astype(np.uint32) << 16
    values = torch.from_numpy(words.view(np.float32).astype(np.float64))
    stored, start = {}, 0
    for key, shape in config["bf16_layout"]:
        count = int(np.prod(shape))
        stored[key] = values[start : start + count].view(shape)
        start += count
    stored |= {k: tensors.pop(k) for k in list(tensors) if k.startswith("sd/")}
    weights = entries(stored, "sd/")
    if config["spynet"]:
        weights |= {f"spynet.{k}": v for k, v in spynet_weights().items()}
    return NetVector(config, weights, stored["input"], tensors)


def spynet_weights() -> dict[str, Tensor]:
    """Weights of the flow network that all vectors share; float64."""
    with np.load(FOLDER / "spynet_shared.npz") as file:
        keys = [k for k in file.files if not k.endswith(".scale")]
        return {
            k: _tensor(file[k].astype(np.float32) * file[f"{k}.scale"].astype(np.float32))
            for k in keys
        }


def manifests() -> dict[str, Any]:
    """Per released model: config, keys as [name, shape, dtype, kind] in order, drop_path_prob,
    n_params.
    """
    with gzip.open(FOLDER / "released_manifests.json.gz", "rt") as file:
        return json.load(file)


def cotangent(like: Tensor) -> Tensor:
    """cos(0.37 i + 0.5), i the flat index: the weights of the scalar whose gradients are stored."""
    return torch.cos(0.37 * torch.arange(like.numel(), dtype=torch.float64) + 0.5).view(like.shape)


def difference(got: Tensor, expected: Tensor) -> float:
    assert got.shape == expected.shape, f"{tuple(got.shape)} != {tuple(expected.shape)}"
    return float((got.detach() - expected).abs().max() / expected.abs().max().clamp_min(1e-30))

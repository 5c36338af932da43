"""The reference vectors in tests/data/golden/, which the published network made.

A vector is a file <name>.npz with options ("config"), weights ("sd/..."), inputs, outputs and
gradients ("grad/..."). They were computed in float64. README.md in that folder says how. A test
loads a vector, computes the same with our network, and compares both with `difference`.

What must stay: everything that gives meaning to the stored numbers, e.g. keys and `cotangent`. The
files cannot be written anew with this project, because the program that wrote them runs the
published network.
"""

import gzip
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tests.helpers.checked import not_none

FOLDER = Path(__file__).resolve().parents[1] / "data" / "golden"  # one vector a file

# The largest difference that is accepted, relative to the largest value of a tensor. The vectors
# are stored in float32, whose rounding alone makes differences of 6e-8.
TOLERANCE = 1e-6


def load(name: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return the config of <name>.npz, and its tensors by key, in float64."""
    with np.load(FOLDER / f"{name}.npz") as file:
        config = json.loads(str(file["config"])) if "config" in file else {}
        tensors = {}
        for key in file.files:
            if key != "config":
                tensors[key] = _tensor(file[key])
    return config, tensors


def entries(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Return the tensors whose key begins with `prefix`, under the rest of the key.

    E.g. with "sd/": `sd/fc1.weight` -> `fc1.weight`.
    """
    found = {}
    for key, tensor in tensors.items():
        if key.startswith(prefix):
            found[key.removeprefix(prefix)] = tensor
    return found


def cotangent(like: Tensor) -> Tensor:
    """Return the weights of the loss whose gradients are stored: cos(0.37 i + 0.5).

    The loss is the sum of the output times these weights, and i is the index in the flattened
    output. Each value of the output has another weight, so that a gradient is wrong if two values
    are exchanged. 0.37 and 0.5 are arbitrary numbers, but the stored gradients were made with them.
    (In automatic differentiation, the gradient of a loss with respect to an output is called the
    cotangent of the output.)
    """
    index = torch.arange(like.numel(), dtype=torch.float64)
    return torch.cos(0.37 * index + 0.5).view(like.shape)


def difference(got: Tensor, expected: Tensor) -> float:
    """Return the largest difference, divided by the largest absolute value of `expected`."""
    assert got.shape == expected.shape, f"{tuple(got.shape)} != {tuple(expected.shape)}"
    largest = expected.abs().max().clamp_min(1e-30)  # all values may be 0
    return float((got.detach() - expected).abs().max() / largest)


def names_of_vectors(prefix: str) -> list[str]:
    """Return the names of the reference vectors that begin with `prefix`, e.g. "mod_align"."""
    return sorted(path.stem for path in FOLDER.glob(f"{prefix}*.npz"))


def assert_near(found: dict[str, Tensor], vector: dict[str, Tensor]) -> None:
    """Check computed tensors against the stored tensors that have the same keys.

    vector: the tensors of a file, as `load` returns them, e.g. {"out/bilinear/zeros": ...}.
    """
    for key, value in found.items():
        assert difference(value, vector[key]) < TOLERANCE, key


def run_backward(*outputs: Tensor) -> None:
    """Run backward from the loss with which the stored gradients were made.

    c is the `cotangent` of an output, i.e. a fixed weight for each of its values:

        loss = 1 * sum(c * output 1) + 2 * sum(c * output 2) + 3 * sum(c * output 3) + ...

    Because of the factors 1, 2, 3, ..., the gradients are wrong if two outputs are exchanged.
    """
    loss = torch.zeros((), dtype=torch.float64)
    for number, output in enumerate(outputs, start=1):
        loss = loss + number * (output * cotangent(output)).sum()
    loss.backward()


def gradients(tensors: Iterable[tuple[str, Tensor]]) -> dict[str, Tensor]:
    """Return the gradients of tensors, under the keys that a vector has for them: "grad/<name>".

    tensors: pairs (name, tensor). Each tensor must have a gradient.
    """
    return {f"grad/{name}": not_none(tensor.grad) for name, tensor in tensors}


# ---- Vectors of a whole network ----


@dataclass
class NetVector:
    """The vector of a whole network: stored weights and input, and a part of the stored results."""

    # The entry "network" has the arguments of the constructor.
    config: dict[str, Any]
    # The weights, by their names in models/network_vrt.py.
    weights: dict[str, Tensor]
    # Frames (B, N, C, H, W).
    input: Tensor
    # A part of the values of some tensors, by key: "output", "grad/<name>" for the gradient of a
    # parameter or of the input, and "act/<name>" for an activation, e.g. "act/stage4".
    samples: dict[str, Tensor]

    def sample_of(self, key: str, tensor: Tensor) -> Tensor:
        """Return the values (k,) of a tensor that are stored as the sample of `key`.

        A sample has every n-th value of the flattened tensor, so that the file stays small. E.g.
        for the key "grad/input" of most vectors, n is 11: the values 0, 11, 22, ...
        """
        stride = self.config["sample_strides"][key]
        return tensor.detach().reshape(-1)[::stride]


def load_net(name: str) -> NetVector:
    """Return the vector of a whole network.

    The entries of the file:

        bf16_bytes           most weights and the input, one after another as bfloat16
        sd/<name>            a position bias. bfloat16 would round its sines, so it is stored as an
                             entry of its own
        output, grad/<name>, act/<name>
                             samples of the output, of gradients and of activations

    config["bf16_layout"] names what is in bf16_bytes, in order: ["input", [1, 2, 3, 72, 64]],
    ["sd/conv_first.weight", [16, 27, 1, 3, 3]], ...
    """
    config, tensors = load(name)
    # The published network has this option, which never had an effect. Our network has no such
    # argument.
    config["network"].pop("recal_all_flows", None)

    stored = _weights_in_bfloat16(tensors.pop("bf16_bytes").numpy(), config["bf16_layout"])
    not_in_bfloat16 = [key for key in tensors if key.startswith("sd/")]  # position biases
    for key in not_in_bfloat16:
        stored[key] = tensors.pop(key)
    # Without the prefix: "sd/conv_first.weight" -> "conv_first.weight".
    weights = entries(stored, "sd/")
    if config["spynet"]:
        for key, value in spynet_weights().items():
            weights[f"spynet.{key}"] = value
    return NetVector(config, weights, stored["input"], tensors)


def _weights_in_bfloat16(planes: np.ndarray, layout: list[Any]) -> dict[str, Tensor]:
    """Return tensors that are stored one after another as bfloat16.

    planes: (2, values) uint8, all low bytes and then all high bytes, which compresses better.
    layout: pairs (key, shape), in the order of the tensors.
    """
    # The two bytes of each value, side by side. "<u2" reads them as one number, low byte first.
    bytes_of_values = np.ascontiguousarray(planes.T)  # (values, 2)
    bfloat16 = bytes_of_values.view("<u2").reshape(-1)
    # A bfloat16 is the upper half of a float32. E.g. 1.0: 0x3F80 << 16 = 0x3F800000, read as
    # float32.
    float32 = (bfloat16.astype(np.uint32) << 16).view(np.float32)
    values = torch.from_numpy(float32.astype(np.float64))

    stored = {}
    start = 0
    for key, shape in layout:
        count = int(np.prod(shape))
        stored[key] = values[start : start + count].view(shape)
        start += count
    return stored


def spynet_weights() -> dict[str, Tensor]:
    """Return the weights of the flow network that all vectors share, in float64.

    The file stores each tensor as small integers, and a scale by which they are multiplied.
    """
    weights = {}
    with np.load(FOLDER / "spynet_shared.npz") as file:
        for key in file.files:
            if not key.endswith(".scale"):
                scale = file[f"{key}.scale"].astype(np.float32)
                weights[key] = _tensor(file[key].astype(np.float32) * scale)
    return weights


def manifests() -> dict[str, Any]:
    """Return what is known of each released model, by its name.

    The entry of a model has

        config            the arguments of the network
        keys              [name, shape, dtype, kind] of each tensor, in the order of the file. The
                          kind is "parameter" or "buffer": a buffer is a constant, e.g. the mean
                          colour in spynet.mean
        drop_path_prob    name of a DropPath -> its probability
        n_params          number of all parameters
    """
    with gzip.open(FOLDER / "released_manifests.json.gz", "rt") as file:
        return json.load(file)


def _tensor(array: np.ndarray) -> Tensor:
    """Return an array as a tensor; floating-point values become float64."""
    tensor = torch.from_numpy(array)
    return tensor.double() if tensor.is_floating_point() else tensor

"""The exact results of one training step, to which every form of the network on a GPU is compared.

    python -m tests.helpers.exact_step      writes tests/data/exact_step.npz anew (a minute)

A step of the published equations in float64 takes 36 s on a CPU. The tests on a GPU have only
minutes, so they read the results of the step from a file. A result is the output of the network, or
the gradient of a parameter. For each result, the file has its largest absolute value, its Euclidean
norm, and its values at up to `SAMPLES` positions.

The network of this step is small. With the numbers of channels of network 006, even a step in
float32 is off by 9e-3 in single gradients. The reason is a sampled position that float32 rounds to
the other side of a pixel, where the derivative has another value.

The parameters are not stored. torch draws them anew from a seed, and their sum is compared with the
stored sum. If the sums differ, this version of torch draws other numbers, and the file must be
written anew.

tests/parts/models/test_exact_step.py and test_cuda.py compare with these results. A change of the
seeds, of OPTIONS or of SIDE needs a new file.
"""

import contextlib
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lab.tools import NAMED
from models.network_vrt import VRT
from models.vrt.layers import tf32
from tests.helpers.naive_vrt import NaiveVRT

FILE = Path(__file__).resolve().parents[1] / "data" / "exact_step.npz"
# The most values of a tensor that are stored. Chosen by hand: more values make the file larger.
SAMPLES = 256
OPTIONS = NAMED["small"]
SIDE = 64  # pixels


@dataclass(frozen=True)
class Exact:
    """What the file stores of a tensor."""

    largest: float  # largest absolute value
    norm: float  # Euclidean norm
    values: Tensor  # (k,), the values at the positions of `take_samples`


# ---- The step ----


def make_network(options: dict[str, Any], **changes: Any) -> VRT:
    """Return a network in which every parameter has an effect.

    A parameter that is zero at the start gets small random values.

    changes: arguments of VRT in place of those in `options`.
    """
    torch.manual_seed(0)
    without_dropping: dict[str, Any] = {"drop_path_rate": 0.0}
    net = VRT(**(options | without_dropping | changes))
    for parameter in net.parameters():
        if not parameter.any():
            nn.init.normal_(parameter, std=0.02)
    return net


def make_clip(side: int = SIDE) -> Tensor:
    """Return a clip of noise: (1, 6, 3, side, side), from 0 to 1."""
    generator = torch.Generator().manual_seed(3)
    return torch.rand(1, 6, 3, side, side, generator=generator)


def results_of_step(
    net: nn.Module, clip: Tensor, dtype: torch.dtype | None = None
) -> dict[str, Tensor]:
    """Run forward and backward. Return the output and the gradient of every parameter by name.

    The results are in float64 on the CPU.

    dtype: precision of autocast. None computes in the precision of the parameters, and without
        TF32, in which a GPU rounds the factors of products to 10 bits. With float16 the loss is
        multiplied by 2^10, so that small gradients do not become zero, and then the gradients are
        divided by 2^10.
    """
    scale = 1.0
    if dtype is torch.float16:
        scale = 2.0**10
    is_exact = dtype is None
    precision = tf32(is_on=False) if is_exact else contextlib.nullcontext()
    with precision:
        with torch.autocast(clip.device.type, dtype, enabled=not is_exact):
            restored = net(clip)
        if not is_exact:
            restored = restored.float()
        # Charbonnier's loss, the mean of sqrt(difference^2 + 1e-9), against a grey frame.
        loss = (restored - 0.5).square().add(1e-9).sqrt().mean()
        (loss * scale).backward()
    results = {"output": restored}
    for name, parameter in net.named_parameters():
        if parameter.grad is not None:
            results[name] = parameter.grad / scale
    return {name: value.detach().double().cpu() for name, value in results.items()}


# ---- What is stored ----


def take_samples(tensor: Tensor) -> Tensor:
    """Return up to `SAMPLES` values (k,) of a tensor, evenly spread over its elements.

    The stored values are at these positions, so another choice needs a new file.
    """
    flat = tensor.reshape(-1)
    positions = torch.linspace(0, len(flat) - 1, min(len(flat), SAMPLES), dtype=torch.float64)
    return flat[positions.long()]


def stored_step() -> dict[str, Exact]:
    """Return the exact results. Fails if this torch draws other parameters."""
    with np.load(FILE) as file:
        names = [str(name) for name in file["names"]]
        # The values of all results are stored one after another. Cut them at the ends of the
        # results, e.g. lengths 256, 96 and 256 -> ends 256, 352 and 608. The last end is the end of
        # the array, where nothing is cut.
        ends = np.cumsum(file["lengths"])
        values = np.split(file["values"], ends[:-1])
        largest = file["largest"]
        norms = file["norms"]
        expected_sum = float(file["sum_of_parameters"])
    found_sum = _sum_of_parameters(make_network(OPTIONS))
    assert abs(found_sum - expected_sum) < 1e-6 * expected_sum, (
        f"torch {torch.__version__} draws other parameters than the torch that wrote {FILE.name}: "
        "run python -m tests.helpers.exact_step"
    )
    exact = {}
    for index, name in enumerate(names):
        exact[name] = Exact(
            largest=float(largest[index]),
            norm=float(norms[index]),
            values=torch.from_numpy(values[index]).double(),
        )
    return exact


def relative_errors(found: dict[str, Tensor], exact: dict[str, Exact]) -> dict[str, float]:
    """Return the error of each result, relative to its largest exact value.

    A result with NaN has an infinite error. Fails if a result is missing.
    """
    assert found.keys() == exact.keys()
    errors = {}
    for name, value in found.items():
        expected = exact[name]
        largest = max(expected.largest, 1e-12)  # no division by 0 if all exact values are 0
        of_samples = float((take_samples(value) - expected.values).abs().max()) / largest
        # If no element is off by more than e, the norm is off by at most e * sqrt(elements). So the
        # error of the norm, divided by sqrt(elements), can be compared with the error of elements.
        of_norm = abs(float(value.norm()) - expected.norm) / (largest * value.numel() ** 0.5)
        is_finite = bool(torch.isfinite(value).all())
        errors[name] = max(of_samples, of_norm) if is_finite else math.inf
    return errors


def _sum_of_parameters(net: nn.Module) -> float:
    """Return the sum of the absolute values of all parameters."""
    return sum(float(parameter.detach().double().abs().sum()) for parameter in net.parameters())


def write() -> None:
    """Compute the step by the published equations in float64, and write the file."""
    net = make_network(OPTIONS)
    naive = NaiveVRT(**OPTIONS)
    naive.load_state_dict(net.state_dict())
    results = results_of_step(naive.double(), make_clip().double())
    samples = [take_samples(value).numpy() for value in results.values()]
    content = {
        "names": np.array(list(results)),
        "lengths": np.array([len(values) for values in samples]),
        # float32 is exact enough: its rounding error is 6e-8, and the strictest limit of a test is
        # 1e-5.
        "values": np.concatenate(samples).astype(np.float32),
        "largest": np.array([float(value.abs().max()) for value in results.values()]),
        "norms": np.array([float(value.norm()) for value in results.values()]),
        "sum_of_parameters": np.array(_sum_of_parameters(net)),
    }
    np.savez_compressed(FILE, allow_pickle=False, **content)


if __name__ == "__main__":
    write()

"""Measures the relative errors of lab/triton_sampling.py against float64, as a program.

    TRITON_INTERPRET=1 python -m tests.helpers.sampling_errors

It prints one line of JSON: for each case, the error of each result, e.g.
{"one source, float32": {"out": 2e-7, "x": 3e-7, ...}, ...}. The results are the output of the
convolution ("out") and the gradients of its inputs ("x", ...).
tests/parts/house/test_triton_sampling.py starts this program and compares the errors with limits.

The offsets reach beyond the image on all sides. Each offset lies halfway between two multiples of
1/64 pixel. So no sample lies exactly on a pixel, where the derivative of a sample jumps.
torch.empty gives tensors of NaN here. So an output that a kernel leaves unwritten has an infinite
error.
"""

import json
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from lab import triton_sampling
from models.vrt import deform_conv
from models.vrt.deform_conv import TAPS


class Case(NamedTuple):
    """The sizes of a deformable convolution."""

    # Frames whose channels are sampled together. Each has its own group of weights.
    sources: int
    # Channels of a source, and channels of the output.
    channels: int
    # Groups of channels with offsets of their own.
    groups: int
    # Precision of the input and of the output.
    dtype: torch.dtype


CASES = {
    "one source, float32": Case(sources=1, channels=12, groups=2, dtype=torch.float32),
    "one source, float16": Case(sources=1, channels=12, groups=2, dtype=torch.float16),
    "two sources, float32": Case(sources=2, channels=10, groups=4, dtype=torch.float32),
}
# Number of images of an input.
IMAGES = 2
# Height and width are small, because Triton's interpreter is slow. A program of a kernel computes
# 128 output pixels, and 2 x 7 x 9 = 126 pixels do not fill it. So the masks of the kernels, which
# leave out missing pixels, have an effect.
HEIGHT = 7
WIDTH = 9
# Names of the results: the output, and the inputs, whose gradients are results. The inputs have the
# order of the arguments of deform_conv.
RESULTS = ("out", "x", "offset", "mask", "weight", "bias")


def main() -> None:
    """Print the errors of all cases as one line of JSON."""
    torch.use_deterministic_algorithms(True, warn_only=True)  # fills torch.empty with NaN
    errors_of_cases = {}
    for name, case in CASES.items():
        inputs = inputs_of(case)
        found = results(triton_sampling.deform_conv, inputs)
        exact = results(deform_conv.deform_conv, [tensor.double() for tensor in inputs])
        errors = {}
        for result, tensor, exact_tensor in zip(RESULTS, found, exact, strict=True):
            errors[result] = relative_error(tensor, exact_tensor)
        errors_of_cases[name] = errors
    print(json.dumps(errors_of_cases))


def inputs_of(case: Case) -> list[Tensor]:
    """Return the arguments of a deformable convolution: x, offset, mask, weight and bias.

    models/vrt/deform_conv.py says their shapes.
    """
    generator = torch.Generator().manual_seed(0)
    size = (HEIGHT, WIDTH)
    # Offsets of -6 to 6 pixels, in steps of 1/64.
    steps = torch.randint(
        -64 * 6, 64 * 6, (IMAGES, 2 * TAPS * case.groups, *size), generator=generator
    )
    offset = (steps + 0.5) / 64
    x = torch.rand((IMAGES, case.sources * case.channels, *size), generator=generator) - 0.5
    mask = torch.rand((IMAGES, TAPS * case.groups, *size), generator=generator)
    weight = torch.rand((case.channels, case.channels, 3, 3), generator=generator) - 0.5
    bias = torch.rand((case.channels,), generator=generator) - 0.5
    # x is rounded here to the precision of the case, so that the kernels and float64 get the same
    # numbers. The weights are divided by 8, so that the output, a sum of about 100 products, is not
    # much larger than 1.
    return [x.to(case.dtype), offset, mask, weight / 8, bias]


def results(deform_conv: Callable[..., Tensor], inputs: list[Tensor]) -> list[Tensor]:
    """Return the output, and the gradient of each input. The loss is the sum of squared outputs."""
    leaves = [tensor.detach().requires_grad_() for tensor in inputs]
    out = deform_conv(*leaves)
    # A sum in float16 would have large rounding errors of its own.
    precise = torch.promote_types(out.dtype, torch.float32)
    gradients = torch.autograd.grad(out.to(precise).square().sum(), leaves)
    return [out.detach(), *gradients]


def relative_error(found: Tensor, exact: Tensor) -> float:
    """Return the largest difference, divided by the largest exact number."""
    if not found.isfinite().all():
        return float("inf")
    difference = (found.double() - exact).abs().max()
    return float(difference / exact.abs().max())


if __name__ == "__main__":
    main()

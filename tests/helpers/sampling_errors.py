"""Relative errors of lab/triton_sampling.py against float64, as a program: one line of JSON.

usage: TRITON_INTERPRET=1 python -m tests.helpers.sampling_errors

The offsets reach beyond the image on all sides. They lie between the multiples of 1/64, half a step
away from the pixels, because the derivative of a sample jumps at a pixel. torch.empty gives NaN
here, so an output that a kernel leaves unwritten is found.
"""

import json
from collections.abc import Callable

import torch
from torch import Tensor

from lab import triton_sampling
from models.vrt import deform_align
from models.vrt.deform_align import TAPS

IMAGES = 2
HEIGHT = 7
WIDTH = 9
NAMES = ("out", "x", "offset", "mask", "weight", "bias")
# sources, channels of a source, groups of offsets, precision of the values
CASES = {
    "one source, float32": (1, 12, 2, torch.float32),
    "one source, float16": (1, 12, 2, torch.float16),
    "two sources, float32": (2, 10, 4, torch.float32),
}


def main() -> None:
    torch.use_deterministic_algorithms(True, warn_only=True)  # fills torch.empty with NaN
    found = {}
    for name, (sources, channels, groups, dtype) in CASES.items():
        inputs = inputs_of(sources, channels, groups)
        inputs[0] = inputs[0].to(dtype)  # rounded once, for both
        exact = results(deform_align.deform_conv, [tensor.double() for tensor in inputs])
        ours = results(triton_sampling.deform_conv, inputs)
        errors = {}
        for result, a, b in zip(NAMES, ours, exact, strict=True):
            error = float((a.double() - b).abs().max() / b.abs().max())
            errors[result] = error if a.isfinite().all() else float("inf")
        found[name] = errors
    print(json.dumps(found))


def inputs_of(sources: int, channels: int, groups: int) -> list[Tensor]:
    """Return x, offset, mask, weight and bias of a deformable convolution."""
    generator = torch.Generator().manual_seed(0)
    size = (HEIGHT, WIDTH)
    offsets = (IMAGES, 2 * TAPS * groups, *size)
    steps = torch.randint(-64 * 6, 64 * 6, offsets, generator=generator)
    x = torch.rand((IMAGES, sources * channels, *size), generator=generator) - 0.5
    mask = torch.rand((IMAGES, TAPS * groups, *size), generator=generator)
    weight = torch.rand((channels, channels, 3, 3), generator=generator) - 0.5
    bias = torch.rand((channels,), generator=generator) - 0.5
    return [x, (steps + 0.5) / 64, mask, weight / 8, bias]


def results(form: Callable[..., Tensor], inputs: list[Tensor]) -> list[Tensor]:
    """Return the output, and the gradient of each input, of the sum of squares."""
    leaves = [tensor.detach().requires_grad_() for tensor in inputs]
    out = form(*leaves)
    precise = torch.promote_types(out.dtype, torch.float32)
    gradients = torch.autograd.grad(out.to(precise).square().sum(), leaves)
    return [out.detach(), *gradients]


if __name__ == "__main__":
    main()

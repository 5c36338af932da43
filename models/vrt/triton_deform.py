"""Modulated deformable convolution for GPUs: sampling in Triton, matrix product by torch.

Samples have the dtype of x (torchvision's operator uses float32 under autocast); coordinates and sums of gradients are
float32. `DeformAlign` computes them anew in the backward pass.
Not yet run on a GPU: tests compare it with the plain form in Triton's interpreter, and compile it for GPUs.

What it wins on paper over torchvision's operator in bfloat16, for the network of 006, 8 clips of 6 x 192 x 192:
* the samples are 13.5 GB instead of 27 (float32), which are written and read about four times a step: 50 GB less.
* the matrix products, 5 TFLOP a step, run on tensor cores: about 10 ms instead of 90 in float32.
* no copies of x, mask and weight in float32.
Nothing in the sampling itself: both read single values at the same places, and both add gradients with atomics.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

TAPS = 9
BLOCK = 128


@triton.jit
def _locate(offset, mask, at, tap, pixel, pixels, H, W):
    """Sampling positions of one tap at a block of pixels, as floats.

    Returns index and validity of the four corners (upper left, upper right, lower left, lower right), the fractions
    in y and x, and the factor.
    """
    inside = pixel < pixels
    base = offset + ((at * 9 + tap) * 2).to(tl.int64) * pixels
    y = tl.load(base + pixel, mask=inside, other=0.0).to(tl.float32) + (pixel // W + tap // 3 - 1).to(tl.float32)
    x = tl.load(base + pixels + pixel, mask=inside, other=0.0).to(tl.float32) + (pixel % W + tap % 3 - 1).to(tl.float32)
    factor = tl.load(mask + (at * 9 + tap).to(tl.int64) * pixels + pixel, mask=inside, other=0.0).to(tl.float32)
    top, left = tl.floor(y), tl.floor(x)
    i00, v00 = _corner(top, left, inside, H, W)
    i01, v01 = _corner(top, left + 1, inside, H, W)
    i10, v10 = _corner(top + 1, left, inside, H, W)
    i11, v11 = _corner(top + 1, left + 1, inside, H, W)
    return i00, v00, i01, v01, i10, v10, i11, v11, y - top, x - left, factor


@triton.jit
def _corner(y, x, inside, H, W):
    """Index of a corner and whether it is in the image. Compared as floats, so that NaN is outside."""
    valid = inside & (y >= 0) & (y <= H - 1) & (x >= 0) & (x <= W - 1)
    return tl.where(valid, y * 1.0, 0.0).to(tl.int32) * W + tl.where(valid, x * 1.0, 0.0).to(tl.int32), valid


@triton.jit
def _sample(x, offset, mask, columns, H, W, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """Write columns[n, channel, tap, pixel]; grid: block of pixels, tap, sample * groups + group."""
    pixels = H * W
    pixel, tap, at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), tl.program_id(1), tl.program_id(2)
    inside = pixel < pixels
    i00, v00, i01, v01, i10, v10, i11, v11, fy, fx, factor = _locate(offset, mask, at, tap, pixel, pixels, H, W)
    for c in range(WIDTH):
        channel = (at * WIDTH + c).to(tl.int64)
        image = x + channel * pixels
        value = tl.load(image + i00, mask=v00, other=0.0).to(tl.float32) * ((1 - fy) * (1 - fx))
        value += tl.load(image + i01, mask=v01, other=0.0).to(tl.float32) * ((1 - fy) * fx)
        value += tl.load(image + i10, mask=v10, other=0.0).to(tl.float32) * (fy * (1 - fx))
        value += tl.load(image + i11, mask=v11, other=0.0).to(tl.float32) * (fy * fx)
        target = columns + (channel * 9 + tap) * pixels + pixel
        tl.store(target, (value * factor).to(columns.dtype.element_ty), mask=inside)


@triton.jit
def _sample_backward(
    x, offset, mask, grad_columns, grad_x, grad_offset, grad_mask, H, W, WIDTH: tl.constexpr, BLOCK: tl.constexpr
):
    """Gradients of _sample: adds to grad_x (float32), writes grad_offset and grad_mask."""
    pixels = H * W
    pixel, tap, at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), tl.program_id(1), tl.program_id(2)
    inside = pixel < pixels
    i00, v00, i01, v01, i10, v10, i11, v11, fy, fx, factor = _locate(offset, mask, at, tap, pixel, pixels, H, W)
    slope_y = tl.zeros((BLOCK,), dtype=tl.float32)
    slope_x = tl.zeros((BLOCK,), dtype=tl.float32)
    slope_m = tl.zeros((BLOCK,), dtype=tl.float32)
    for c in range(WIDTH):
        channel = (at * WIDTH + c).to(tl.int64)
        image, target = x + channel * pixels, grad_x + channel * pixels
        g = tl.load(grad_columns + (channel * 9 + tap) * pixels + pixel, mask=inside, other=0.0).to(tl.float32)
        p00 = tl.load(image + i00, mask=v00, other=0.0).to(tl.float32)
        p01 = tl.load(image + i01, mask=v01, other=0.0).to(tl.float32)
        p10 = tl.load(image + i10, mask=v10, other=0.0).to(tl.float32)
        p11 = tl.load(image + i11, mask=v11, other=0.0).to(tl.float32)
        upper, lower = p00 * (1 - fx) + p01 * fx, p10 * (1 - fx) + p11 * fx
        slope_m += g * (upper * (1 - fy) + lower * fy)
        g *= factor
        slope_y += g * (lower - upper)
        slope_x += g * ((p01 - p00) * (1 - fy) + (p11 - p10) * fy)
        tl.atomic_add(target + i00, g * ((1 - fy) * (1 - fx)), mask=v00)
        tl.atomic_add(target + i01, g * ((1 - fy) * fx), mask=v01)
        tl.atomic_add(target + i10, g * (fy * (1 - fx)), mask=v10)
        tl.atomic_add(target + i11, g * (fy * fx), mask=v11)
    base = grad_offset + ((at * 9 + tap) * 2).to(tl.int64) * pixels
    tl.store(base + pixel, slope_y.to(grad_offset.dtype.element_ty), mask=inside)
    tl.store(base + pixels + pixel, slope_x.to(grad_offset.dtype.element_ty), mask=inside)
    place = grad_mask + (at * 9 + tap).to(tl.int64) * pixels + pixel
    tl.store(place, slope_m.to(grad_mask.dtype.element_ty), mask=inside)


@torch.library.custom_op(
    "spikevrt::deform_samples", mutates_args=(), schema="(Tensor x, Tensor offset, Tensor mask) -> Tensor"
)
def deform_samples(x: Tensor, offset: Tensor, mask: Tensor) -> Tensor:
    """The samples of deform_conv times their factors: (n, c * 9, h * w) in the dtype of x. All arguments contiguous."""
    columns = _columns(x)
    h, w = x.shape[2:]
    _sample[_grid(x, mask)](x, offset, mask, columns, h, w, WIDTH=_width(x, mask), BLOCK=BLOCK)
    return columns


@deform_samples.register_fake
def _columns(x: Tensor, *_: Tensor) -> Tensor:
    n, c, h, w = x.shape
    return x.new_empty(n, c * TAPS, h * w)


@torch.library.custom_op(
    "spikevrt::deform_samples_backward", mutates_args=(),
    schema="(Tensor grad, Tensor x, Tensor offset, Tensor mask) -> (Tensor, Tensor, Tensor)",
)  # fmt: skip
def deform_samples_backward(grad: Tensor, x: Tensor, offset: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of x, in float32, of the offsets and of the mask."""
    found = _gradients(grad, x, offset, mask)
    h, w = x.shape[2:]
    found[0].zero_()
    _sample_backward[_grid(x, mask)](x, offset, mask, grad, *found, h, w, WIDTH=_width(x, mask), BLOCK=BLOCK)
    return found


@deform_samples_backward.register_fake
def _gradients(grad: Tensor, x: Tensor, offset: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(x, dtype=torch.float32), torch.empty_like(offset), torch.empty_like(mask)


def _backward(ctx, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    x, offset, mask = ctx.saved_tensors
    grad_x, grad_offset, grad_mask = deform_samples_backward(grad.contiguous(), x, offset, mask)
    return grad_x.to(x.dtype), grad_offset, grad_mask


deform_samples.register_autograd(_backward, setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs))


def triton_deform_conv(x: Tensor, offset: Tensor, mask: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """deform_conv of models/vrt/deform_conv.py with the same arguments; x, weight and bias have one dtype."""
    weight_groups = x.shape[1] // weight.shape[1]
    columns = deform_samples(x.contiguous(), offset.contiguous(), mask.contiguous())
    flat = weight.reshape(weight_groups, len(weight) // weight_groups, -1)
    out = flat @ columns.view(len(x), weight_groups, flat.shape[2], -1)
    return out.view(len(x), -1, *x.shape[2:]) + bias.view(-1, 1, 1)


def _grid(x: Tensor, mask: Tensor) -> tuple[int, int, int]:
    return triton.cdiv(x.shape[2] * x.shape[3], BLOCK), TAPS, len(x) * mask.shape[1] // TAPS


def _width(x: Tensor, mask: Tensor) -> int:
    """Channels of one offset group."""
    return x.shape[1] * TAPS // mask.shape[1]

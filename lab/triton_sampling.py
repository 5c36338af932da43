"""Deformable sampling on an NVIDIA GPU, in Triton: a prepared form that no GPU has run yet.

`deform_conv` here is what `models.vrt.deform_align.deform_conv` computes on a GPU by torchvision.
torchvision samples in float32, writes nine samples per pixel and channel in float32, and samples
three times in the backward pass: for the weights, for the positions and masks, and for the input.
Here the values are 16 bits wide, positions stay float32, and the backward pass samples once.

Expected on an H200 (network 006, 8 clips of 6 x 192 x 192): 0.2 s of a step in place of 0.46 s.
`lab/gpu_next.py` measures it. It belongs into models/vrt if it saves at least 3 % of a step;
otherwise it belongs nowhere. In Triton's interpreter it is compared with float64
(tests/parts/house/test_triton_sampling.py).

Letters: n images of h x w pixels; G groups of C channels; tap t = 0 ... 8 of the 3 x 3 kernel.
A column holds what one output pixel reads: G x 9 x C samples, each times its mask.
"""

import math
from typing import Any

import torch
import triton
import triton.language
from torch import Tensor
from torch.autograd.function import once_differentiable

# A kernel is read by Triton, in whose language no type of Python is true.
tl: Any = triton.language
jit: Any = triton.jit
TAPS = 9
PIXELS = 128  # of a program


# ---- Kernels: a program has PIXELS output pixels of one group ----


@jit
def _position(offset, plane, at, row, column, inside, HW, TAP: tl.constexpr):
    """Return where a tap samples: row and column of the pixel above to the left, as int32, and the
    distance from it, from 0 to 1.

    plane: number of the plane of dy in `offset`; the next plane is dx. at: output pixel.
    """
    dy = tl.load(offset + plane * HW + at, mask=inside, other=0.0)
    dx = tl.load(offset + (plane + 1) * HW + at, mask=inside, other=0.0)
    y = row + (TAP // 3 - 1) + dy
    x = column + (TAP % 3 - 1) + dx
    top = tl.floor(y)
    left = tl.floor(x)
    return top.to(tl.int32), left.to(tl.int32), y - top, x - left


@jit
def _in_image(y, x, inside, H, W):
    return inside & (y >= 0) & (y < H) & (x >= 0) & (x < W)


@jit
def _corner(values, image, y, x, is_there, channel, known, W, C: tl.constexpr):
    """Return the channels of one pixel of the input for each output pixel, zero outside the image.

    values: pointer to (h, w, C) of one group; image: offset of the image of each output pixel.
    """
    at = (image + (y * W + x).to(tl.int64) * C)[:, None] + channel[None, :]
    return tl.load(values + at, mask=is_there[:, None] & known[None, :], other=0.0).to(tl.float32)


@jit
def _corners(values, image, top, left, inside, channel, known, H, W, C: tl.constexpr):
    """Return the pixels around each sample: upper left, upper right, lower left, lower right."""
    is_00 = _in_image(top, left, inside, H, W)
    is_01 = _in_image(top, left + 1, inside, H, W)
    is_10 = _in_image(top + 1, left, inside, H, W)
    is_11 = _in_image(top + 1, left + 1, inside, H, W)
    v_00 = _corner(values, image, top, left, is_00, channel, known, W, C)
    v_01 = _corner(values, image, top, left + 1, is_01, channel, known, W, C)
    v_10 = _corner(values, image, top + 1, left, is_10, channel, known, W, C)
    v_11 = _corner(values, image, top + 1, left + 1, is_11, channel, known, W, C)
    return v_00, v_01, v_10, v_11


@jit
def _add_to_corner(grad, image, y, x, inside, channel, known, H, W, part, C: tl.constexpr):
    """Add a part of the gradient to one pixel of the input. part: (pixels, channels)."""
    at = (image + (y * W + x).to(tl.int64) * C)[:, None] + channel[None, :]
    is_there = _in_image(y, x, inside, H, W)
    tl.atomic_add(grad + at, part, mask=is_there[:, None] & known[None, :])


@jit(do_not_specialize=["pixels"])
def _sample(
    x, offset, mask, columns, pixels, H, W,
    G: tl.constexpr, C: tl.constexpr, PAD: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Write the columns of ROWS output pixels of one group. x: (n, G, h, w, C)."""
    group = tl.program_id(1)
    pixel = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    inside = pixel < pixels
    HW = H * W
    number = pixel // HW  # of the image
    at = pixel % HW
    row = at // W
    column = at % W
    channel = tl.arange(0, PAD)
    known = channel < C
    image = (number * G + group) * HW * C
    for TAP in tl.static_range(9):
        tap_plane = (number * G + group) * 9 + TAP
        top, left, fy, fx = _position(offset, 2 * tap_plane, at, row, column, inside, HW, TAP)
        factor = tl.load(mask + tap_plane * HW + at, mask=inside, other=0.0).to(tl.float32)
        v_00, v_01, v_10, v_11 = _corners(x, image, top, left, inside, channel, known, H, W, C)
        upper = v_00 + fx[:, None] * (v_01 - v_00)
        lower = v_10 + fx[:, None] * (v_11 - v_10)
        value = (upper + fy[:, None] * (lower - upper)) * factor[:, None]
        to = ((pixel * G + group) * 9 + TAP)[:, None] * C + channel[None, :]
        known_here = inside[:, None] & known[None, :]
        tl.store(columns + to, value.to(columns.dtype.element_ty), mask=known_here)


@jit(do_not_specialize=["pixels"])
def _sample_backward(
    x, offset, mask, columns, grad_x, grad_offset, grad_mask, pixels, H, W,
    G: tl.constexpr, C: tl.constexpr, PAD: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Read the gradient of the columns, and write the columns themselves in its place.

    With value s(y, x) of a sample, its mask m and the gradient g of s m: the gradients are sum(g s)
    of the mask, m sum(g ds/dy) and m sum(g ds/dx) of the position, sums over the channels of the
    group; and m g times the weight of each corner of the input. grad_x: (n, G, h, w, C), float32,
    zero at the start.
    """
    group = tl.program_id(1)
    pixel = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    inside = pixel < pixels
    HW = H * W
    number = pixel // HW
    at = pixel % HW
    row = at // W
    column = at % W
    channel = tl.arange(0, PAD)
    known = channel < C
    image = (number * G + group) * HW * C
    for TAP in tl.static_range(9):
        tap_plane = (number * G + group) * 9 + TAP
        top, left, fy, fx = _position(offset, 2 * tap_plane, at, row, column, inside, HW, TAP)
        factor = tl.load(mask + tap_plane * HW + at, mask=inside, other=0.0).to(tl.float32)
        v_00, v_01, v_10, v_11 = _corners(x, image, top, left, inside, channel, known, H, W, C)
        upper = v_00 + fx[:, None] * (v_01 - v_00)
        lower = v_10 + fx[:, None] * (v_11 - v_10)
        value = upper + fy[:, None] * (lower - upper)
        along_x = (v_01 - v_00) + fy[:, None] * ((v_11 - v_10) - (v_01 - v_00))

        to = ((pixel * G + group) * 9 + TAP)[:, None] * C + channel[None, :]
        known_here = inside[:, None] & known[None, :]
        g = tl.load(columns + to, mask=known_here, other=0.0).to(tl.float32)
        masked = value * factor[:, None]
        tl.store(columns + to, masked.to(columns.dtype.element_ty), mask=known_here)

        of_mask = tl.sum(g * value, 1)
        tl.store(grad_mask + tap_plane * HW + at, of_mask, mask=inside)
        of_y = factor * tl.sum(g * (lower - upper), 1)
        of_x = factor * tl.sum(g * along_x, 1)
        tl.store(grad_offset + 2 * tap_plane * HW + at, of_y, mask=inside)
        tl.store(grad_offset + (2 * tap_plane + 1) * HW + at, of_x, mask=inside)

        g *= factor[:, None]
        g_upper = g * (1 - fy)[:, None]
        g_lower = g * fy[:, None]
        right = fx[:, None]
        g_00 = g_upper * (1 - right)
        g_01 = g_upper * right
        g_10 = g_lower * (1 - right)
        g_11 = g_lower * right
        _add_to_corner(grad_x, image, top, left, inside, channel, known, H, W, g_00, C)
        _add_to_corner(grad_x, image, top, left + 1, inside, channel, known, H, W, g_01, C)
        _add_to_corner(grad_x, image, top + 1, left, inside, channel, known, H, W, g_10, C)
        _add_to_corner(grad_x, image, top + 1, left + 1, inside, channel, known, H, W, g_11, C)


# ---- The convolution ----


class _DeformConv(torch.autograd.Function):
    """Sampling and product. Its backward adds with atomics: as torchvision's, it sums in another
    order each time.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, offset: Tensor, mask: Tensor, weight: Tensor, bias: Tensor
    ) -> Tensor:
        n, _, h, w = x.shape
        groups = mask.shape[1] // TAPS
        grouped = _channels_innermost(x, groups)
        columns = _columns_like(grouped)
        _launch(_sample, grouped, offset, mask, columns)
        weights = _weights_of_columns(weight, grouped)  # (k, c'/k, K)
        by_group = columns.view(n * h * w, len(weights), -1).transpose(0, 1)  # (k, pixels, K)
        out = torch.bmm(by_group, weights.transpose(1, 2))  # (k, pixels, c'/k)
        out = out.transpose(0, 1).reshape(n, h, w, -1) + bias.to(x.dtype)
        ctx.save_for_backward(grouped, offset, mask, weight)
        return out.permute(0, 3, 1, 2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        grouped, offset, mask, weight = ctx.saved_tensors
        n, _, h, w, _ = grouped.shape
        weights = _weights_of_columns(weight, grouped)
        grad = grad.permute(0, 2, 3, 1).to(grouped.dtype)  # (n, h, w, c')
        by_group = grad.reshape(n * h * w, len(weights), -1).transpose(0, 1)  # (k, pixels, c'/k)

        # The gradient of the columns; the kernel writes the columns over it.
        columns = _columns_like(grouped)
        of_columns = columns.view(n * h * w, len(weights), -1)  # (pixels, k, K)
        of_columns.copy_(torch.bmm(by_group, weights).transpose(0, 1))
        grad_x = torch.zeros_like(grouped, dtype=torch.float32)
        grad_offset = torch.empty_like(offset)
        grad_mask = torch.empty_like(mask, dtype=torch.float32)
        _launch(_sample_backward, grouped, offset, mask, columns, grad_x, grad_offset, grad_mask)

        grad_weights = torch.bmm(by_group.transpose(1, 2), of_columns.transpose(0, 1))
        c = grad_x.shape[1] * grad_x.shape[4]
        return (
            grad_x.permute(0, 1, 4, 2, 3).reshape(n, c, h, w).to(grouped.dtype),
            grad_offset,
            grad_mask.to(mask.dtype),
            _as_weight(grad_weights, weight, grouped).to(weight.dtype),
            grad.float().sum((0, 1, 2)).to(weight.dtype),
        )


def deform_conv(x: Tensor, offset: Tensor, mask: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return what models.vrt.deform_align.deform_conv returns, in the dtype of x.

    x: (n, c, h, w), 16 bits or float32; offset: (n, 18 G, h, w), float32; mask: (n, 9 G, h, w);
    weight: (c', c / k, 3, 3) with k weight groups; bias: (c',).
    """
    return _DeformConv.apply(x, offset.contiguous(), mask.contiguous(), weight, bias)


def _launch(kernel: Any, grouped: Tensor, offset: Tensor, mask: Tensor, *others: Tensor) -> None:
    """Run a kernel over all pixels and groups. grouped: the input, (n, G, h, w, C)."""
    n, groups, h, w, channels = grouped.shape
    pixels = n * h * w
    padded = 1 << (channels - 1).bit_length()
    kernel[(math.ceil(pixels / PIXELS), groups)](
        grouped, offset, mask, *others, pixels, h, w, G=groups, C=channels, PAD=padded, ROWS=PIXELS
    )


def _channels_innermost(x: Tensor, groups: int) -> Tensor:
    """Return (n, G, h, w, C): the channels of a group side by side, as a sample reads them, and
    neighbouring pixels side by side, as neighbouring samples mostly are.
    """
    n, c, h, w = x.shape
    return x.reshape(n, groups, c // groups, h, w).permute(0, 1, 3, 4, 2).contiguous()


def _columns_like(grouped: Tensor) -> Tensor:
    """Return memory for the columns: (pixels, G, 9, C)."""
    n, groups, h, w, channels = grouped.shape
    return grouped.new_empty(n * h * w, groups, TAPS, channels)


def _weights_of_columns(weight: Tensor, grouped: Tensor) -> Tensor:
    """Return the weights in the order of the columns: (k, c'/k, G/k * 9 * C).

    Each of the k weight groups reads G / k whole groups of channels.
    """
    groups, channels = grouped.shape[1], grouped.shape[4]
    k = groups * channels // weight.shape[1]
    ordered = weight.view(k, -1, groups // k, channels, TAPS).permute(0, 1, 2, 4, 3)
    return ordered.reshape(k, len(weight) // k, -1).to(grouped.dtype)


def _as_weight(grads: Tensor, weight: Tensor, grouped: Tensor) -> Tensor:
    """Return gradients in the order of the columns in the shape of `weight`."""
    groups, channels = grouped.shape[1], grouped.shape[4]
    k, outputs, _ = grads.shape
    ordered = grads.view(k, outputs, groups // k, TAPS, channels).permute(0, 1, 2, 4, 3)
    return ordered.reshape(weight.shape)

"""Passes over rows of channels on an NVIDIA GPU, in Triton: LayerNorm and GEGLU, with gradients.

torch's LayerNorm gives one row to a block of threads, which is slow for 96 channels. Here a program
has a tile of several rows. Statistics and the gradients of weights and biases are float32. Each
program sums these gradients over its own rows, and the last sum over the programs has a fixed
order. So a step gives the same numbers each time. Another order of these sums would change the last
bits of a training.

Names in the kernels: n rows of C (or H) channels, padded to PAD, a power of two; ROWS rows of a
tile. `inside` is false for padding and for rows beyond n. A program is one instance of a kernel.
Forward has one program per tile. In backward, program p of P takes the tiles p, p + P, p + 2 P, ...

Tests: tests/parts/models/test_triton.py (on a CPU, by Triton's interpreter), test_cuda.py (a GPU)
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
import triton
import triton.language
from torch import Tensor
from torch.autograd.function import once_differentiable

# Triton translates a kernel from its own language, which only looks like Python. So Python's types
# are not true in it, and these two have none.
tl: Any = triton.language
jit: Any = triton.jit
# Number of programs of a backward pass: 4 for each of the 132 multiprocessors of an H100.
PROGRAMS = 528
# Numbers in a tile, which must fit into the registers of a program.
ELEMENTS = 4096
INVERSE_ROOT_2 = tl.constexpr(0.7071067811865476)
INVERSE_ROOT_2_PI = tl.constexpr(0.3989422804014327)


def tile(channels: int, elements: int = ELEMENTS) -> dict[str, int]:
    """Return the tile of a kernel: {"PAD": padded channels, "ROWS": rows of a tile}.

    elements: numbers of a tile. E.g. 96 channels -> PAD 128, ROWS 32.
    """
    padded = 1 << (channels - 1).bit_length()  # the next power of two
    return {"ROWS": max(1, elements // padded), "PAD": padded}


# ---- LayerNorm: y = (x - mean(x)) / sqrt(var(x) + eps) weight + bias ---------------------------


@jit
def _normalized(x, C: tl.constexpr, inside, eps):
    """Return (x - mean) / sqrt(var + eps) of each row, and the factor 1 / sqrt(var + eps)."""
    centred = tl.where(inside, x - tl.sum(x, 1)[:, None] / C, 0.0)
    factor = 1 / tl.sqrt(tl.sum(centred * centred, 1) / C + eps)
    return centred * factor[:, None], factor


@jit(do_not_specialize=["n"])
def _norm_forward(
    x, weight, bias, y, n, eps, C: tl.constexpr, ROWS: tl.constexpr, PAD: tl.constexpr
):
    """Compute y = u weight + bias of one tile, with the normalized rows u. x, y: (n, C)."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    channel = tl.arange(0, PAD)
    known = channel < C
    inside = (row < n)[:, None] & known[None, :]
    at = row[:, None].to(tl.int64) * C + channel[None, :]

    values = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    normal, _ = _normalized(values, C, inside, eps)
    w = tl.load(weight + channel, mask=known, other=0.0)
    b = tl.load(bias + channel, mask=known, other=0.0)
    result = normal * w[None, :] + b[None, :]
    tl.store(y + at, result.to(y.dtype.element_ty), mask=inside)


@jit(do_not_specialize=["n"])
def _norm_backward(
    x, weight, grad, grad_x, partial, n, eps, C: tl.constexpr, ROWS: tl.constexpr, PAD: tl.constexpr
):
    """Compute dx = (g - mean(g) - u mean(g u)) factor, with g = grad weight and normalized rows u.

    partial: (programs, 2, C), the sums of each program for the gradients of weight and bias. The
    statistics of a row are computed again, because the row is read anyway.
    """
    channel = tl.arange(0, PAD)
    known = channel < C
    w = tl.load(weight + channel, mask=known, other=0.0)[None, :]
    grad_w = tl.zeros((ROWS, PAD), tl.float32)
    grad_b = tl.zeros((ROWS, PAD), tl.float32)
    for start in range(tl.program_id(0) * ROWS, n, tl.num_programs(0) * ROWS):
        row = start + tl.arange(0, ROWS)
        inside = (row < n)[:, None] & known[None, :]
        at = row[:, None].to(tl.int64) * C + channel[None, :]
        values = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
        u, factor = _normalized(values, C, inside, eps)
        g = tl.load(grad + at, mask=inside, other=0.0).to(tl.float32)
        grad_w += g * u
        grad_b += g
        g *= w
        mean_g = tl.sum(g, 1) / C
        mean_gu = tl.sum(g * u, 1) / C
        result = (g - mean_g[:, None] - u * mean_gu[:, None]) * factor[:, None]
        tl.store(grad_x + at, result.to(grad_x.dtype.element_ty), mask=inside)
    own = partial + tl.program_id(0) * 2 * C + channel
    tl.store(own, tl.sum(grad_w, 0), mask=known)
    tl.store(own + C, tl.sum(grad_b, 0), mask=known)


class _LayerNorm(torch.autograd.Function):
    """Layer norm of x (..., C) over the last axis, see `layer_norm`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
        x = x.contiguous()
        y = torch.empty_like(x)
        channels = x.shape[-1]
        n = x.numel() // channels
        shape = tile(channels)
        # One program for each tile of rows.
        _norm_forward[(math.ceil(n / shape["ROWS"]),)](
            x, weight, bias, y, n, eps, C=channels, **shape
        )
        ctx.save_for_backward(x, weight)
        ctx.eps = eps
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        channels = x.shape[-1]
        n = x.numel() // channels
        shape = tile(channels)
        grad = grad.contiguous()
        grad_x = torch.empty_like(x)
        # No more programs than tiles. Each writes its sums to its own row of `partial`.
        programs = min(PROGRAMS, math.ceil(n / shape["ROWS"]))
        partial = x.new_empty(programs, 2, channels, dtype=torch.float32)
        _norm_backward[(programs,)](
            x, weight, grad, grad_x, partial, n, ctx.eps, C=channels, **shape
        )
        grad_weight, grad_bias = partial.sum(0).unbind(0)
        return grad_x, grad_weight, grad_bias, None


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Return the layer norm of x over its last axis. weight, bias: float32."""
    return _LayerNorm.apply(x, weight, bias, eps)


# ---- GEGLU: gelu(a) b, of a = x w11^T + b11 and b = x w12^T + b12 ------------------------------


@jit(do_not_specialize=["n"])
def _geglu_forward(z, y, n, H: tl.constexpr, ROWS: tl.constexpr, PAD: tl.constexpr):
    """Compute y = gelu(a) b of one tile, with the exact erf GELU.

    z: (n, 2 H). A row holds a (H numbers), then b (H numbers). y: (n, H).
    """
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    channel = tl.arange(0, PAD)
    inside = (row < n)[:, None] & (channel < H)[None, :]
    at = row[:, None].to(tl.int64) * (2 * H) + channel[None, :]
    a = tl.load(z + at, mask=inside, other=0.0).to(tl.float32)
    b = tl.load(z + at + H, mask=inside, other=0.0).to(tl.float32)
    result = 0.5 * a * (1 + tl.erf(a * INVERSE_ROOT_2)) * b
    at_y = row[:, None].to(tl.int64) * H + channel[None, :]
    tl.store(y + at_y, result.to(y.dtype.element_ty), mask=inside)


@jit(do_not_specialize=["n"])
def _geglu_backward(
    z, grad, grad_z, partial, n, H: tl.constexpr, ROWS: tl.constexpr, PAD: tl.constexpr
):
    """Compute da = grad b (Phi(a) + a phi(a)) and db = grad a Phi(a).

    gelu(a) = a Phi(a), where Phi and phi are distribution and density of the normal distribution.
    grad: of y, (n, H). grad_z: da, then db, (n, 2 H).
    partial: (programs, 2 H), the sums of each program over its rows of grad_z. Their total is the
    gradient of the two biases.
    """
    channel = tl.arange(0, PAD)
    known = channel < H
    sum_a = tl.zeros((ROWS, PAD), tl.float32)
    sum_b = tl.zeros((ROWS, PAD), tl.float32)
    for start in range(tl.program_id(0) * ROWS, n, tl.num_programs(0) * ROWS):
        row = start + tl.arange(0, ROWS)
        inside = (row < n)[:, None] & known[None, :]
        at = row[:, None].to(tl.int64) * (2 * H) + channel[None, :]
        at_grad = row[:, None].to(tl.int64) * H + channel[None, :]
        a = tl.load(z + at, mask=inside, other=0.0).to(tl.float32)
        b = tl.load(z + at + H, mask=inside, other=0.0).to(tl.float32)
        g = tl.load(grad + at_grad, mask=inside, other=0.0).to(tl.float32)
        Phi = 0.5 * (1 + tl.erf(a * INVERSE_ROOT_2))
        phi = INVERSE_ROOT_2_PI * tl.exp(-0.5 * a * a)
        of_a = g * b * (Phi + a * phi)
        of_b = g * a * Phi
        sum_a += of_a
        sum_b += of_b
        tl.store(grad_z + at, of_a.to(grad_z.dtype.element_ty), mask=inside)
        tl.store(grad_z + at + H, of_b.to(grad_z.dtype.element_ty), mask=inside)
    own = partial + tl.program_id(0) * (2 * H) + channel
    tl.store(own, tl.sum(sum_a, 0), mask=known)
    tl.store(own + H, tl.sum(sum_b, 0), mask=known)


class _GatedLinear(torch.autograd.Function):
    """Both linear layers and the product of the gated MLP, see `gated`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w11: Tensor, b11: Tensor, w12: Tensor, b12: Tensor) -> Tensor:
        weight = torch.cat((w11, w12))
        z = F.linear(x, weight, torch.cat((b11, b12)))  # (n, 2 H)
        hidden = len(w11)
        y = x.new_empty(len(x), hidden)
        shape = tile(hidden)
        _geglu_forward[(math.ceil(len(x) / shape["ROWS"]),)](z, y, len(x), H=hidden, **shape)
        ctx.save_for_backward(x, weight, z)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        x, weight, z = ctx.saved_tensors
        n, hidden = grad.shape
        grad = grad.contiguous()
        grad_z = torch.empty_like(z)
        # Half the tile of the forward pass. Backward holds more tensors at a time.
        shape = tile(hidden, ELEMENTS // 2)
        programs = min(PROGRAMS, math.ceil(n / shape["ROWS"]))
        partial = z.new_empty(programs, 2 * hidden, dtype=torch.float32)
        _geglu_backward[(programs,)](z, grad, grad_z, partial, n, H=hidden, **shape)
        grad_w11, grad_w12 = (grad_z.t() @ x).chunk(2)
        grad_b11, grad_b12 = partial.sum(0).to(weight.dtype).chunk(2)
        return grad_z @ weight, grad_w11, grad_b11, grad_w12, grad_b12


def gated(x: Tensor, w11: Tensor, b11: Tensor, w12: Tensor, b12: Tensor) -> Tensor:
    """Return gelu(x w11^T + b11) * (x w12^T + b12) of rows (n, C): (n, H).

    Both products are one matrix product, and the rest is one pass over its result.
    """
    return _GatedLinear.apply(x, w11, b11, w12, b12)

"""The row-wise parts of a block for GPUs in Triton: layer norms, residual sums and the order of windows, joined.

Not yet run on a GPU: tests compare it with torch in Triton's interpreter, and compile it for GPUs.

What it wins on paper over single operations, for the network of 006, 8 clips of 6 x 192 x 192 in bfloat16, where one
tensor of tokens in each block is 13.9 GB (S):
* layer norm and gather: 2 S moved instead of 4 S, forward and again in backward;
* gather, residual sum and the second layer norm: 4 S instead of 7 S; their gradients 5 S instead of 11 S;
* gather, the gradient of the first layer norm and the residual sum: 4 S instead of 8 S;
* together 17 S, 240 GB of 2,838 a step, 0.06 s at 4.3 TB/s, and 934 kernels less of 9,191.
The rounding differs: the gradients of the layer norms' weights are summed in float32.

`rows`, in all of these: int32, the token at each position of each window, -1 at padding; every token is there once.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

# Values that a program holds of each tensor at a time: whole rows.
TILE = 1024
# Rows over which one program sums the gradients of weights, at least; programs, at most.
SPAN, PROGRAMS = 128, 2048


@triton.jit
def _places(rows, first, N, C: tl.constexpr, ROWS: tl.constexpr, BC: tl.constexpr):
    """Of ROWS positions from `first` on: position, token, channel; which values exist, which of these have a token."""
    position, channel = first + tl.arange(0, ROWS), tl.arange(0, BC)
    token = tl.load(rows + position, mask=position < N, other=-1).to(tl.int64)
    exists = (position < N)[:, None] & (channel < C)[None, :]
    return position.to(tl.int64), token, channel, exists, exists & (token >= 0)[:, None]


@triton.jit
def _load(base, row, channel, inside, C: tl.constexpr):
    return tl.load(base + row[:, None] * C + channel[None, :], mask=inside, other=0.0).to(tl.float32)


@triton.jit
def _store(base, row, channel, value, inside, C: tl.constexpr):
    tl.store(base + row[:, None] * C + channel[None, :], value.to(base.dtype.element_ty), mask=inside)


@triton.jit
def _vector(base, channel, C: tl.constexpr):
    return tl.load(base + channel, mask=channel < C, other=0.0).to(tl.float32)[None, :]


@triton.jit
def _standard(value, inside, eps, C: tl.constexpr):
    """Rows with mean 0 and variance 1, and what they were multiplied by. Zero outside, where `value` is zero."""
    value = tl.where(inside, value - (tl.sum(value, 1) / C)[:, None], 0.0)
    scale = tl.rsqrt(tl.sum(value * value, 1) / C + eps)[:, None]
    return value * scale, scale


@triton.jit
def _norm_gradient(grad_u, normal, scale, weight, C: tl.constexpr):
    """Gradient of the rows from that of the layer norm; normal, scale: of `_standard`."""
    inner = grad_u * weight
    mean, slope = tl.sum(inner, 1) / C, tl.sum(inner * normal, 1) / C
    return scale * (inner - mean[:, None] - normal * slope[:, None])


@triton.jit
def _factor(factors, token, PIXELS):
    return tl.load(factors + token // PIXELS, mask=token >= 0, other=0.0)[:, None]


@triton.jit
def _norm_rows(x, weight, norm_bias, rows, u, N, eps, C: tl.constexpr, ROWS: tl.constexpr, BC: tl.constexpr):
    position, token, channel, exists, inside = _places(rows, tl.program_id(0) * ROWS, N, C, ROWS, BC)
    normal, _ = _standard(_load(x, token, channel, inside, C), inside, eps, C)
    result = normal * _vector(weight, channel, C) + _vector(norm_bias, channel, C)
    _store(u, position, channel, tl.where(inside, result, 0.0), exists, C)


@triton.jit
def _add_norm(
    x, branch, factors, weight, norm_bias, rows, y, u, N, PIXELS, eps,
    SCALED: tl.constexpr, C: tl.constexpr, ROWS: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    position, token, channel, _, inside = _places(rows, tl.program_id(0) * ROWS, N, C, ROWS, BC)
    value = _load(branch, position, channel, inside, C)
    if SCALED:
        value *= _factor(factors, token, PIXELS)
    value += _load(x, token, channel, inside, C)
    value = value.to(y.dtype.element_ty).to(tl.float32)  # as backward will read it
    _store(y, token, channel, value, inside, C)
    normal, _ = _standard(value, inside, eps, C)
    _store(u, token, channel, normal * _vector(weight, channel, C) + _vector(norm_bias, channel, C), inside, C)


@triton.jit
def _add_norm_backward(
    grad_u, y, grad, factors, weight, rows, grad_y, grad_branch, sums, N, PIXELS, SPAN, eps,
    SCALED: tl.constexpr, C: tl.constexpr, ROWS: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """Besides, of SPAN positions: the gradients of weight and bias, and the sum of grad_branch."""
    first = tl.program_id(0) * SPAN
    of_weight = tl.zeros((ROWS, BC), dtype=tl.float32)
    of_bias = tl.zeros((ROWS, BC), dtype=tl.float32)
    of_branch = tl.zeros((ROWS, BC), dtype=tl.float32)
    for start in range(first, tl.minimum(first + SPAN, N), ROWS):
        position, token, channel, exists, inside = _places(rows, start, N, C, ROWS, BC)
        normal, scale = _standard(_load(y, token, channel, inside, C), inside, eps, C)
        value = _load(grad_u, token, channel, inside, C)
        of_weight += value * normal
        of_bias += value
        value = _norm_gradient(value, normal, scale, _vector(weight, channel, C), C)
        value = tl.where(inside, value + _load(grad, token, channel, inside, C), 0.0)
        _store(grad_y, token, channel, value, inside, C)
        if SCALED:
            value *= _factor(factors, token, PIXELS)
        _store(grad_branch, position, channel, value, exists, C)
        of_branch += value
    _store_sum(sums, 0, 3, of_weight, C, BC)
    _store_sum(sums, 1, 3, of_bias, C, BC)
    _store_sum(sums, 2, 3, of_branch, C, BC)


@triton.jit
def _norm_rows_backward(
    grad_u, x, grad, weight, rows, grad_tokens, sums, N, SPAN, eps,
    C: tl.constexpr, ROWS: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """Besides, of SPAN positions: the gradients of weight and bias."""
    first = tl.program_id(0) * SPAN
    of_weight = tl.zeros((ROWS, BC), dtype=tl.float32)
    of_bias = tl.zeros((ROWS, BC), dtype=tl.float32)
    for start in range(first, tl.minimum(first + SPAN, N), ROWS):
        position, token, channel, _, inside = _places(rows, start, N, C, ROWS, BC)
        normal, scale = _standard(_load(x, token, channel, inside, C), inside, eps, C)
        value = _load(grad_u, position, channel, inside, C)
        of_weight += value * normal
        of_bias += value
        value = _norm_gradient(value, normal, scale, _vector(weight, channel, C), C)
        _store(grad_tokens, token, channel, value + _load(grad, token, channel, inside, C), inside, C)
    _store_sum(sums, 0, 2, of_weight, C, BC)
    _store_sum(sums, 1, 2, of_bias, C, BC)


@triton.jit
def _store_sum(sums, number, COUNT: tl.constexpr, value, C: tl.constexpr, BC: tl.constexpr):
    channel = tl.arange(0, BC)
    tl.store(sums + (tl.program_id(0) * COUNT + number) * C + channel, tl.sum(value, 0), mask=channel < C)


# No autograd: gpu_block.py calls both directions.
@torch.library.custom_op(
    "spikevrt::norm_rows", mutates_args=(),
    schema="(Tensor x, Tensor weight, Tensor bias, Tensor rows, float eps) -> Tensor",
)  # fmt: skip
def triton_norm_rows(x: Tensor, weight: Tensor, bias: Tensor, rows: Tensor, eps: float) -> Tensor:
    """Layer norm of the tokens x (.., C) in window order, (windows * T, C), zero at padding. All contiguous."""
    u, sizes = _in_windows(x, weight, bias, rows), _sizes(x)
    _norm_rows[(triton.cdiv(len(rows), sizes["ROWS"]),)](x, weight, bias, rows, u, len(rows), eps, **sizes)
    return u


@triton_norm_rows.register_fake
def _in_windows(x: Tensor, weight: Tensor, bias: Tensor, rows: Tensor, *_: object) -> Tensor:
    return x.new_empty(len(rows), x.shape[-1])


@torch.library.custom_op(
    "spikevrt::add_norm", mutates_args=(),
    schema="(Tensor x, Tensor branch, Tensor? factors, Tensor weight, Tensor bias, Tensor rows, float eps)"
    " -> (Tensor, Tensor)",
)  # fmt: skip
def triton_add_norm(
    x: Tensor, branch: Tensor, factors: Tensor | None, weight: Tensor, bias: Tensor, rows: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """y = x + factor * branch, and the layer norm of y, both (B, tokens, C) as x. All contiguous.

    branch: (windows * T, C), in window order; factors: of each sample, float32, (B,) or more, or None.
    """
    found, sizes = _as_x(x), _sizes(x)
    _add_norm[(triton.cdiv(len(rows), sizes["ROWS"]),)](
        x, branch, x if factors is None else factors, weight, bias, rows, *found, len(rows), x.shape[1], eps,
        SCALED=factors is not None, **sizes,
    )  # fmt: skip
    return found


@triton_add_norm.register_fake
def _as_x(x: Tensor, *_: object) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), torch.empty_like(x)


@torch.library.custom_op(
    "spikevrt::add_norm_backward", mutates_args=(),
    schema="(Tensor grad_u, Tensor y, Tensor grad, Tensor? factors, Tensor weight, Tensor rows, float eps)"
    " -> (Tensor, Tensor, Tensor)",
)  # fmt: skip
def triton_add_norm_backward(
    grad_u: Tensor, y: Tensor, grad: Tensor, factors: Tensor | None, weight: Tensor, rows: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """From the gradient of the layer norm, and that which y has besides: gradients of y and branch, and sums.

    sums: (programs, 3, C) in float32, parts of the gradients of weight and bias, and of the sum of branch's gradient.
    """
    found, sizes = _middle_gradients(grad_u, y, grad, factors, weight, rows), _sizes(y)
    _add_norm_backward[(len(found[2]),)](
        grad_u, y, grad, y if factors is None else factors, weight, rows, *found, len(rows), y.shape[1],
        _span(len(rows), sizes["ROWS"]), eps, SCALED=factors is not None, **sizes,
    )  # fmt: skip
    return found


@triton_add_norm_backward.register_fake
def _middle_gradients(
    grad_u: Tensor, y: Tensor, grad: Tensor, factors: Tensor | None, weight: Tensor, rows: Tensor, *_: object
) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(y), y.new_empty(len(rows), y.shape[-1]), _sums(y, rows, 3)


@torch.library.custom_op(
    "spikevrt::norm_rows_backward", mutates_args=(),
    schema="(Tensor grad_u, Tensor x, Tensor grad, Tensor weight, Tensor rows, float eps) -> (Tensor, Tensor)",
)  # fmt: skip
def triton_norm_rows_backward(
    grad_u: Tensor, x: Tensor, grad: Tensor, weight: Tensor, rows: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """From the gradient in window order, and that which x has besides: gradient of x, and sums.

    sums: (programs, 2, C) in float32, parts of the gradients of weight and bias.
    """
    found, sizes = _input_gradients(grad_u, x, grad, weight, rows), _sizes(x)
    _norm_rows_backward[(len(found[1]),)](
        grad_u, x, grad, weight, rows, *found, len(rows), _span(len(rows), sizes["ROWS"]), eps, **sizes
    )
    return found


@triton_norm_rows_backward.register_fake
def _input_gradients(
    grad_u: Tensor, x: Tensor, grad: Tensor, weight: Tensor, rows: Tensor, *_: object
) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), _sums(x, rows, 2)


def _sizes(x: Tensor) -> dict[str, int]:
    """C is a constant of the kernel, so that the compiler knows how far rows are aligned."""
    width = triton.next_power_of_2(x.shape[-1])
    return {"C": x.shape[-1], "ROWS": max(1, TILE // width), "BC": width}


def _span(n: int, rows: int) -> int:
    """Positions of one program, a multiple of `rows`."""
    return rows * triton.cdiv(max(SPAN, triton.cdiv(n, PROGRAMS)), rows)


def _sums(x: Tensor, rows: Tensor, count: int) -> Tensor:
    programs = triton.cdiv(len(rows), _span(len(rows), _sizes(x)["ROWS"]))
    return x.new_empty(programs, count, x.shape[-1], dtype=torch.float32)

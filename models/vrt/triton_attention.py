"""Window attention for GPUs in Triton: the kernels add bias and mask, and no T x T tensor is written to memory.

The forward pass saves the output and the log-sum-exp of each row; the backward pass recomputes the logits. The
gradient of the bias is summed over windows in registers (torch's kernels would write one gradient per window).
Not yet run on a GPU: tests compare it with the plain form in Triton's interpreter, and compile it for GPUs.

What it wins on paper, for the network of 006, 8 clips of 6 x 192 x 192, over torch's memory-efficient attention:
* that kernel writes a gradient of the bias for each window, 2 * 6 * T * T bytes in bfloat16, and sums it: for T = 384,
  8.2 GB written and read again per block; here it stays in registers. In all, about 330 GB less a step.
* heads of 20 channels need no padding to 24: 17 % less of q, k, v, output and their gradients in stage 8.
* windows with different masks are one launch, not four to eight, and q, k, v are not copied apart.
Against it: the backward pass has three kernels, each of which computes the logits anew, 1.4 times the products.
"""

from __future__ import annotations

import os

import torch
import triton
import triton.language as tl
from torch import Tensor

from models.vrt.precision import uses_tf32

# Bytes per value -> rows and columns of a tile: the largest that fit in registers.
BLOCK = {2: 64, 4: 32}
LAUNCH = {"num_warps": 8, "num_stages": 2}
# Windows over which one program sums the gradient of the bias before it adds the sum to memory.
CHUNK = 32
INTERPRETED = tl.constexpr(os.environ.get("TRITON_INTERPRET") == "1")


@triton.jit
def _dot(a, b, PRECISION: tl.constexpr):
    if INTERPRETED:  # Triton's interpreter has no products of bfloat16
        a, b = a.to(tl.float32), b.to(tl.float32)
    return tl.dot(a, b, input_precision=PRECISION)


@triton.jit
def _place(T, BM: tl.constexpr):
    """Tokens of this program, and window * heads + head. One grid axis: the others are limited to 65535."""
    tiles = tl.cdiv(T, BM)
    return (tl.program_id(0) % tiles) * BM + tl.arange(0, BM), tl.program_id(0) // tiles


@triton.jit
def _tile(base, rows, columns, stride, row_limit, column_limit):
    """A (rows, columns) tile of a matrix with unit column stride; zeros beyond the limits."""
    inside = (rows[:, None] < row_limit) & (columns[None, :] < column_limit)
    return tl.load(base + rows[:, None] * stride + columns[None, :], mask=inside, other=0.0)


@triton.jit
def _bias_mask(
    bias, masks, pattern, window, head, rows, columns, T, COUNT, PER, BIASED: tl.constexpr, MASKED: tl.constexpr
):
    """Added to a tile of logits: the bias of the head, the mask of the window's pattern, -inf beyond T.

    PER: frames of a window; with PER = 2 (mutual attention) the mask within a frame is the corner of the window's.
    """
    added = tl.zeros((rows.shape[0], columns.shape[0]), dtype=tl.float32)
    if BIASED:
        added += _tile(bias + head * T * T, rows, columns, T, T, T).to(tl.float32)
    if MASKED:
        number = tl.load(pattern + (window // PER) % COUNT)
        added += _tile(masks + number * (T * PER) * (T * PER), rows, columns, T * PER, T, T).to(tl.float32)
    return tl.where((columns < T)[None, :], added, float("-inf"))


@triton.jit
def _forward(
    qkv, bias, masks, pattern, out, lse, scale, T, D, COUNT, window_stride, token_stride, part_stride,
    HEADS: tl.constexpr, PER: tl.constexpr, BIASED: tl.constexpr, MASKED: tl.constexpr,
    BM: tl.constexpr, BD: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    rows, at = _place(T, BM)
    dims = tl.arange(0, BD)
    window, head = at // HEADS, at % HEADS
    # Mutual attention: the queries are those of the other frame.
    query_window = window if PER == 1 else window ^ 1
    q = _tile(qkv + query_window.to(tl.int64) * window_stride + head * D, rows, dims, token_stride, T, D)
    source = qkv + window.to(tl.int64) * window_stride + head * D
    row_max = tl.full((BM,), float("-inf"), dtype=tl.float32)
    total = tl.zeros((BM,), dtype=tl.float32)
    result = tl.zeros((BM, BD), dtype=tl.float32)
    for start in range(0, T, BM):
        columns = start + tl.arange(0, BM)
        k = _tile(source + part_stride, columns, dims, token_stride, T, D)
        v = _tile(source + 2 * part_stride, columns, dims, token_stride, T, D)
        logits = _dot(q, tl.trans(k), PRECISION) * scale
        logits += _bias_mask(bias, masks, pattern, window, head, rows, columns, T, COUNT, PER, BIASED, MASKED)
        new_max = tl.maximum(row_max, tl.max(logits, 1))
        weights = tl.exp(logits - new_max[:, None])
        rescale = tl.exp(row_max - new_max)
        total = total * rescale + tl.sum(weights, 1)
        result = result * rescale[:, None] + _dot(weights.to(v.dtype), v, PRECISION)
        row_max = new_max
    result = result / total[:, None]
    inside = (rows[:, None] < T) & (dims[None, :] < D)
    place = out + (window.to(tl.int64) * T + rows[:, None]) * (HEADS * D) + head * D + dims[None, :]
    tl.store(place, result.to(out.dtype.element_ty), mask=inside)
    tl.store(lse + at * T + rows, row_max + tl.log(total), mask=rows < T)


@triton.jit
def _softmax_gradient(a, b, c, d, lse, delta, scale, added, PRECISION: tl.constexpr):
    """Softmax weights of a tile of logits, and the gradient of the logits.

    a, b, c, d: queries, keys, gradients, values; or keys, queries, values, gradients for a transposed tile.
    lse, delta: of the queries, broadcast over the tile.
    """
    weights = tl.exp(_dot(a, tl.trans(b), PRECISION) * scale + added - lse)
    return weights, weights * (_dot(c, tl.trans(d), PRECISION) - delta)


@triton.jit
def _load_queries(
    qkv, grad, lse, at, rows, dims, T, D, window_stride, token_stride, HEADS: tl.constexpr, PER: tl.constexpr
):
    """For a block of rows: queries, gradients of the output, and, as a column, log-sum-exp."""
    window, head = at // HEADS, at % HEADS
    # Mutual attention: the queries are those of the other frame.
    query_window = window if PER == 1 else window ^ 1
    q = _tile(qkv + tl.cast(query_window, tl.int64) * window_stride + head * D, rows, dims, token_stride, T, D)
    g = _tile(grad + tl.cast(window, tl.int64) * T * HEADS * D + head * D, rows, dims, HEADS * D, T, D)
    return q, g, tl.load(lse + at * T + rows, mask=rows < T, other=float("inf"))[:, None]


@triton.jit
def _load_delta(delta, at, rows, T):
    return tl.load(delta + at * T + rows, mask=rows < T, other=0.0)[:, None]


@triton.jit
def _backward_queries(
    out, qkv, bias, masks, pattern, grad, lse, delta, grad_qkv, scale, T, D, COUNT,
    window_stride, token_stride, part_stride,
    HEADS: tl.constexpr, PER: tl.constexpr, BIASED: tl.constexpr, MASKED: tl.constexpr,
    BM: tl.constexpr, BD: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Gradients of q for one block of rows; delta, the sum of grad * out over each row, for the other kernels."""
    rows, at = _place(T, BM)
    dims = tl.arange(0, BD)
    window, head = at // HEADS, at % HEADS
    source = qkv + window.to(tl.int64) * window_stride + head * D
    q, g, row_lse = _load_queries(qkv, grad, lse, at, rows, dims, T, D, window_stride, token_stride, HEADS, PER)
    o = _tile(out + window.to(tl.int64) * T * HEADS * D + head * D, rows, dims, HEADS * D, T, D)
    row_delta = tl.sum(g.to(tl.float32) * o.to(tl.float32), 1)[:, None]
    tl.store(delta + at * T + rows[:, None], row_delta, mask=(rows < T)[:, None])
    result = tl.zeros((BM, BD), dtype=tl.float32)
    for start in range(0, T, BM):
        columns = start + tl.arange(0, BM)
        k = _tile(source + part_stride, columns, dims, token_stride, T, D)
        v = _tile(source + 2 * part_stride, columns, dims, token_stride, T, D)
        added = _bias_mask(bias, masks, pattern, window, head, rows, columns, T, COUNT, PER, BIASED, MASKED)
        _, grad_logits = _softmax_gradient(q, k, g, v, row_lse, row_delta, scale, added, PRECISION)
        result += _dot(grad_logits.to(k.dtype), k, PRECISION)
    inside = (rows[:, None] < T) & (dims[None, :] < D)
    query_window = window if PER == 1 else window ^ 1
    base = grad_qkv + query_window.to(tl.int64) * window_stride + head * D
    place = base + rows[:, None] * token_stride + dims[None, :]
    tl.store(place, (result * scale).to(grad_qkv.dtype.element_ty), mask=inside)


@triton.jit
def _backward_keys(
    qkv, bias, masks, pattern, grad, lse, delta, grad_qkv, scale, T, D, COUNT, window_stride, token_stride, part_stride,
    HEADS: tl.constexpr, PER: tl.constexpr, BIASED: tl.constexpr, MASKED: tl.constexpr,
    BM: tl.constexpr, BD: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Gradients of k and v for one block of columns."""
    columns, at = _place(T, BM)
    dims = tl.arange(0, BD)
    window, head = at // HEADS, at % HEADS
    keys = window.to(tl.int64) * window_stride + part_stride + head * D
    k = _tile(qkv + keys, columns, dims, token_stride, T, D)
    v = _tile(qkv + keys + part_stride, columns, dims, token_stride, T, D)
    grad_k = tl.zeros((BM, BD), dtype=tl.float32)
    grad_v = tl.zeros((BM, BD), dtype=tl.float32)
    for start in range(0, T, BM):
        rows = start + tl.arange(0, BM)
        q, g, row_lse = _load_queries(qkv, grad, lse, at, rows, dims, T, D, window_stride, token_stride, HEADS, PER)
        row_delta = _load_delta(delta, at, rows, T)
        added = tl.trans(_bias_mask(bias, masks, pattern, window, head, rows, columns, T, COUNT, PER, BIASED, MASKED))
        weights, grad_logits = _softmax_gradient(
            k, q, v, g, tl.trans(row_lse), tl.trans(row_delta), scale, added, PRECISION
        )
        grad_v += _dot(weights.to(g.dtype), g, PRECISION)
        grad_k += _dot(grad_logits.to(q.dtype), q, PRECISION)
    inside = (columns[:, None] < T) & (dims[None, :] < D)
    place = grad_qkv + keys + columns[:, None] * token_stride + dims[None, :]
    kind = grad_qkv.dtype.element_ty
    tl.store(place, (grad_k * scale).to(kind), mask=inside)
    tl.store(place + part_stride, grad_v.to(kind), mask=inside)


@triton.jit
def _bias_backward(
    qkv, bias, masks, pattern, grad, lse, delta, grad_bias, scale, WINDOWS, T, D, COUNT,
    window_stride, token_stride, part_stride, CHUNK: tl.constexpr,
    HEADS: tl.constexpr, MASKED: tl.constexpr, BM: tl.constexpr, BD: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Gradient of one tile of the bias of one head, summed over a chunk of windows."""
    tiles = tl.cdiv(T, BM)
    rows = (tl.program_id(0) // tiles) * BM + tl.arange(0, BM)
    columns = (tl.program_id(0) % tiles) * BM + tl.arange(0, BM)
    head, dims = tl.program_id(1), tl.arange(0, BD)
    result = tl.zeros((BM, BM), dtype=tl.float32)
    added = _bias_mask(bias, masks, pattern, 0, head, rows, columns, T, COUNT, 1, True, False)
    first = tl.program_id(2) * CHUNK
    for window in range(first, tl.minimum(first + CHUNK, WINDOWS)):
        source = qkv + tl.cast(window, tl.int64) * window_stride + head * D
        at = window * HEADS + head
        q, g, row_lse = _load_queries(qkv, grad, lse, at, rows, dims, T, D, window_stride, token_stride, HEADS, 1)
        row_delta = _load_delta(delta, at, rows, T)
        k = _tile(source + part_stride, columns, dims, token_stride, T, D)
        v = _tile(source + 2 * part_stride, columns, dims, token_stride, T, D)
        mask = _bias_mask(bias, masks, pattern, window, head, rows, columns, T, COUNT, 1, False, MASKED)
        _, grad_logits = _softmax_gradient(q, k, g, v, row_lse, row_delta, scale, added + mask, PRECISION)
        result += grad_logits
    inside = (rows[:, None] < T) & (columns[None, :] < T)
    tl.atomic_add(grad_bias + head * T * T + rows[:, None] * T + columns[None, :], result, mask=inside)


SIGNATURE = "Tensor qkv, Tensor? bias, Tensor? masks, Tensor? pattern, float scale, bool mutual"


# custom_op, not triton_op: the latter takes no kernel of Triton's interpreter, which tests it without a GPU.
@torch.library.custom_op("spikevrt::attention", mutates_args=(), schema=f"({SIGNATURE}) -> (Tensor, Tensor)")
def triton_attention(
    qkv: Tensor, bias: Tensor | None, masks: Tensor | None, pattern: Tensor | None, scale: float, mutual: bool
) -> tuple[Tensor, Tensor]:
    """softmax(q k^T scale + bias + mask) v in every window, and the log-sum-exp of each row of logits.

    qkv: (windows, T, 3, heads, hd); bias: (heads, T, T) or None; all contiguous. masks: (patterns, M, M) and pattern:
    (count,) int32, the mask of each window of a sample, or both None. mutual: two windows are the two frames of a
    pair; queries come from the other frame, and M = 2 T.
    Returns (windows, T, heads, hd), and (windows, heads, T) in float32.
    """
    out, sums = _outputs(qkv)
    t, heads, constants = qkv.shape[1], qkv.shape[3], _constants(qkv, bias, pattern, mutual)
    _forward[(triton.cdiv(t, constants["BM"]) * len(qkv) * heads,)](
        qkv, *_without_none(qkv, bias, masks, pattern), out, sums, scale, *_sizes(qkv, pattern),
        HEADS=heads, **constants, **LAUNCH,
    )  # fmt: skip
    return out, sums


@triton_attention.register_fake
def _outputs(qkv: Tensor, *_: object) -> tuple[Tensor, Tensor]:
    n, t, _, heads, d = qkv.shape
    return qkv.new_empty(n, t, heads, d), qkv.new_empty(n, heads, t, dtype=torch.float32)


@torch.library.custom_op(
    "spikevrt::attention_backward", mutates_args=(),
    schema=f"(Tensor grad, Tensor out, Tensor sums, {SIGNATURE}) -> (Tensor, Tensor)",
)  # fmt: skip
def triton_attention_backward(
    grad: Tensor, out: Tensor, sums: Tensor,
    qkv: Tensor, bias: Tensor | None, masks: Tensor | None, pattern: Tensor | None, scale: float, mutual: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Gradients of qkv and, in float32, of the bias (empty without one), from that of `out`, which is contiguous."""
    n, t, _, heads, _ = qkv.shape
    grad_qkv, grad_bias = _gradients(grad, out, sums, qkv, bias)
    tensors = (qkv, *_without_none(qkv, bias, masks, pattern), grad, sums, torch.empty_like(sums))
    constants = _constants(qkv, bias, pattern, mutual)
    blocks, sizes = triton.cdiv(t, constants["BM"]), _sizes(qkv, pattern)
    grid, arguments = (blocks * n * heads,), (*tensors, grad_qkv, scale, *sizes)
    _backward_queries[grid](out, *arguments, HEADS=heads, **constants, **LAUNCH)
    _backward_keys[grid](*arguments, HEADS=heads, **constants, **LAUNCH)
    if bias is not None:
        del constants["PER"], constants["BIASED"]
        _bias_backward[blocks * blocks, heads, triton.cdiv(n, CHUNK)](
            *tensors, grad_bias.zero_(), scale, n, *sizes, CHUNK=CHUNK, HEADS=heads, **constants, **LAUNCH
        )
    return grad_qkv, grad_bias


@triton_attention_backward.register_fake
def _gradients(
    grad: Tensor, out: Tensor, sums: Tensor, qkv: Tensor, bias: Tensor | None, *_: object
) -> tuple[Tensor, Tensor]:
    shape = (0,) if bias is None else bias.shape
    return torch.empty_like(qkv), qkv.new_empty(shape, dtype=torch.float32)


def _save(ctx, inputs: tuple, output: tuple[Tensor, Tensor]) -> None:
    *tensors, ctx.scale, ctx.mutual = inputs
    ctx.save_for_backward(*output, *tensors)
    ctx.mark_non_differentiable(output[1])


def _backward(ctx, grad: Tensor, _: Tensor | None):
    out, sums, qkv, bias, *others = ctx.saved_tensors
    grad_qkv, grad_bias = triton_attention_backward(
        grad.contiguous(), out, sums, qkv, bias, *others, ctx.scale, ctx.mutual
    )
    return grad_qkv, None if bias is None else grad_bias.to(bias.dtype), None, None, None, None


triton_attention.register_autograd(_backward, setup_context=_save)


def _without_none(unused: Tensor, *tensors: Tensor | None) -> list[Tensor]:
    """`tensors` with `unused` instead of None, which a kernel does not take; the kernel does not read it."""
    return [unused if t is None else t for t in tensors]


def _sizes(qkv: Tensor, pattern: Tensor | None) -> tuple[int, ...]:
    """T, D, COUNT, and the strides of a window, of a token, and from q to k to v."""
    return qkv.shape[1], qkv.shape[4], 1 if pattern is None else len(pattern), *qkv.stride()[:3]


def _constants(qkv: Tensor, bias: Tensor | None, pattern: Tensor | None, mutual: bool) -> dict[str, object]:
    return {
        "PER": 2 if mutual else 1,
        "BIASED": bias is not None,
        "MASKED": pattern is not None,
        "BM": BLOCK[qkv.element_size()],
        "BD": max(16, triton.next_power_of_2(qkv.shape[-1])),
        "PRECISION": "tf32" if qkv.dtype is torch.float32 and uses_tf32() else "ieee",
    }

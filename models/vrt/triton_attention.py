"""Window attention for GPUs as one Triton kernel per direction: bias and mask inside, no T x T tensor in memory.

Forward keeps the output and the log-sum-exp of each row; backward computes the logits anew. The gradient of the bias
is summed over windows in registers (an expanded bias would cost torch's kernels a gradient per window).
Unmeasured on a GPU so far: tests compare it with the plain form in Triton's interpreter.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 64
# Windows whose bias gradient one program sums before it is added to memory.
CHUNK = 32


@triton.jit
def _tile(base, rows, columns, stride, row_limit, column_limit):
    """A (rows, columns) tile of a matrix with unit column stride; zeros beyond the limits."""
    inside = (rows[:, None] < row_limit) & (columns[None, :] < column_limit)
    return tl.load(base + rows[:, None] * stride + columns[None, :], mask=inside, other=0.0)


@triton.jit
def _offsets(
    bias, masks, pattern, window, head, rows, columns, T, COUNT, PER, BIASED: tl.constexpr, MASKED: tl.constexpr
):
    """What is added to a tile of logits: the bias of the head, the mask of the window's pattern, -inf beyond T."""
    added = tl.zeros((rows.shape[0], columns.shape[0]), dtype=tl.float32)
    if BIASED:
        added += _tile(bias + head * T * T, rows, columns, T, T, T).to(tl.float32)
    if MASKED:
        number = tl.load(pattern + (window // PER) % COUNT)
        added += _tile(masks + number * MASK_STRIDE(T, PER), rows, columns, T * PER, T, T).to(tl.float32)
    return tl.where((columns < T)[None, :], added, float("-inf"))


@triton.jit
def MASK_STRIDE(T, PER):
    # Inside one frame of a two-frame window (PER = 2) the mask is the corner of the window's own.
    return (T * PER) * (T * PER)


@triton.jit
def _forward(
    qkv, bias, masks, pattern, out, lse, scale, T, D, COUNT, window_stride, token_stride, part_stride,
    HEADS: tl.constexpr, PER: tl.constexpr, BIASED: tl.constexpr, MASKED: tl.constexpr,
    BM: tl.constexpr, BD: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    first, at = tl.program_id(0) * BM, tl.program_id(1)
    window, head = at // HEADS, at % HEADS
    # Mutual attention: the queries are those of the other frame.
    asking = window if PER == 1 else window ^ 1
    rows, wide = first + tl.arange(0, BM), tl.arange(0, BD)
    q = _tile(qkv + asking.to(tl.int64) * window_stride + head * D, rows, wide, token_stride, T, D)
    source = qkv + window.to(tl.int64) * window_stride + head * D
    top = tl.full((BM,), float("-inf"), dtype=tl.float32)
    total = tl.zeros((BM,), dtype=tl.float32)
    result = tl.zeros((BM, BD), dtype=tl.float32)
    for start in range(0, T, BM):
        columns = start + tl.arange(0, BM)
        k = _tile(source + part_stride, columns, wide, token_stride, T, D)
        v = _tile(source + 2 * part_stride, columns, wide, token_stride, T, D)
        logits = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale
        logits += _offsets(bias, masks, pattern, window, head, rows, columns, T, COUNT, PER, BIASED, MASKED)
        higher = tl.maximum(top, tl.max(logits, 1))
        weights = tl.exp(logits - higher[:, None])
        shrink = tl.exp(top - higher)
        total = total * shrink + tl.sum(weights, 1)
        result = result * shrink[:, None] + tl.dot(weights.to(v.dtype), v, input_precision=PRECISION)
        top = higher
    result = result / total[:, None]
    inside = (rows[:, None] < T) & (wide[None, :] < D)
    place = out + (window.to(tl.int64) * T + rows[:, None]) * (HEADS * D) + head * D + wide[None, :]
    tl.store(place, result.to(out.dtype.element_ty), mask=inside)
    tl.store(lse + at * T + rows, top + tl.log(total), mask=rows < T)


@triton.jit
def _softmax_gradient(q, k, v, grad, row_lse, row_delta, scale, added, PRECISION: tl.constexpr):
    """Weights of a tile of logits, and the gradient of the logits."""
    logits = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale + added
    weights = tl.exp(logits - row_lse[:, None])
    inner = tl.dot(grad, tl.trans(v), input_precision=PRECISION)
    return weights, weights * (inner - row_delta[:, None])


@triton.jit
def _backward(
    qkv, bias, masks, pattern, grad, lse, delta, grad_qkv, scale, T, D, COUNT, window_stride, token_stride, part_stride,
    HEADS: tl.constexpr, PER: tl.constexpr, BIASED: tl.constexpr, MASKED: tl.constexpr,
    BM: tl.constexpr, BD: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Gradients of q for one block of rows, then of k and v for the same block of columns."""
    first, at = tl.program_id(0) * BM, tl.program_id(1)
    window, head = at // HEADS, at % HEADS
    asking = window if PER == 1 else window ^ 1
    mine, wide = first + tl.arange(0, BM), tl.arange(0, BD)
    queries = qkv + asking.to(tl.int64) * window_stride + head * D
    source = qkv + window.to(tl.int64) * window_stride + head * D
    grads = grad + window.to(tl.int64) * T * HEADS * D + head * D

    q = _tile(queries, mine, wide, token_stride, T, D)
    g = _tile(grads, mine, wide, HEADS * D, T, D)
    row_lse = tl.load(lse + at * T + mine, mask=mine < T, other=float("inf"))
    row_delta = tl.load(delta + at * T + mine, mask=mine < T, other=0.0)
    grad_q = tl.zeros((BM, BD), dtype=tl.float32)
    for start in range(0, T, BM):
        columns = start + tl.arange(0, BM)
        k = _tile(source + part_stride, columns, wide, token_stride, T, D)
        v = _tile(source + 2 * part_stride, columns, wide, token_stride, T, D)
        added = _offsets(bias, masks, pattern, window, head, mine, columns, T, COUNT, PER, BIASED, MASKED)
        _, slope = _softmax_gradient(q, k, v, g, row_lse, row_delta, scale, added, PRECISION)
        grad_q += tl.dot(slope.to(k.dtype), k, input_precision=PRECISION)

    k = _tile(source + part_stride, mine, wide, token_stride, T, D)
    v = _tile(source + 2 * part_stride, mine, wide, token_stride, T, D)
    grad_k = tl.zeros((BM, BD), dtype=tl.float32)
    grad_v = tl.zeros((BM, BD), dtype=tl.float32)
    for start in range(0, T, BM):
        rows = start + tl.arange(0, BM)
        q = _tile(queries, rows, wide, token_stride, T, D)
        g = _tile(grads, rows, wide, HEADS * D, T, D)
        row_lse = tl.load(lse + at * T + rows, mask=rows < T, other=float("inf"))
        row_delta = tl.load(delta + at * T + rows, mask=rows < T, other=0.0)
        added = _offsets(bias, masks, pattern, window, head, rows, mine, T, COUNT, PER, BIASED, MASKED)
        weights, slope = _softmax_gradient(q, k, v, g, row_lse, row_delta, scale, added, PRECISION)
        grad_v += tl.dot(tl.trans(weights).to(g.dtype), g, input_precision=PRECISION)
        grad_k += tl.dot(tl.trans(slope).to(q.dtype), q, input_precision=PRECISION)

    inside = (mine[:, None] < T) & (wide[None, :] < D)
    place = mine[:, None] * token_stride + head * D + wide[None, :]
    kind = grad_qkv.dtype.element_ty
    tl.store(grad_qkv + asking.to(tl.int64) * window_stride + place, (grad_q * scale).to(kind), mask=inside)
    target = grad_qkv + window.to(tl.int64) * window_stride + place
    tl.store(target + part_stride, (grad_k * scale).to(kind), mask=inside)
    tl.store(target + 2 * part_stride, grad_v.to(kind), mask=inside)


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
    head, wide = tl.program_id(1), tl.arange(0, BD)
    result = tl.zeros((BM, BM), dtype=tl.float32)
    first = tl.program_id(2) * CHUNK
    for window in range(first, tl.minimum(first + CHUNK, WINDOWS)):
        source = qkv + tl.cast(window, tl.int64) * window_stride + head * D
        q = _tile(source, rows, wide, token_stride, T, D)
        k = _tile(source + part_stride, columns, wide, token_stride, T, D)
        v = _tile(source + 2 * part_stride, columns, wide, token_stride, T, D)
        g = _tile(grad + tl.cast(window, tl.int64) * T * HEADS * D + head * D, rows, wide, HEADS * D, T, D)
        at = window * HEADS + head
        row_lse = tl.load(lse + at * T + rows, mask=rows < T, other=float("inf"))
        row_delta = tl.load(delta + at * T + rows, mask=rows < T, other=0.0)
        added = _offsets(bias, masks, pattern, window, head, rows, columns, T, COUNT, 1, True, MASKED)
        _, slope = _softmax_gradient(q, k, v, g, row_lse, row_delta, scale, added, PRECISION)
        result += slope
    inside = (rows[:, None] < T) & (columns[None, :] < T)
    tl.atomic_add(grad_bias + head * T * T + rows[:, None] * T + columns[None, :], result, mask=inside)


class TritonAttention(torch.autograd.Function):
    """softmax(q k^T scale + bias + mask) v in every window.

    qkv: (windows, T, 3, heads, hd), contiguous; bias: (heads, T, T) or None; masks: (patterns, M, M); pattern:
    (count,) int32, the mask of each window of a sample, or None for no mask. mutual: windows are pairs of frames;
    queries come from the other frame, and the mask is the corner of that of the pair. Returns (windows, T, heads, hd).
    """

    @staticmethod
    def forward(
        ctx, qkv: Tensor, bias: Tensor | None, masks: Tensor | None, pattern: Tensor | None, scale: float, mutual: bool
    ) -> Tensor:
        n, t, _, heads, d = qkv.shape
        out = qkv.new_empty(n, t, heads, d)
        lse = torch.empty(n, heads, t, dtype=torch.float32, device=qkv.device)
        ctx.scale, ctx.mutual = scale, mutual
        bias = None if bias is None else bias.contiguous()
        grid = (triton.cdiv(t, BLOCK), n * heads)
        _forward[grid](
            qkv, *_or(qkv, bias, masks, pattern), out, lse, scale, t, d, _count(pattern), *_strides(qkv),
            HEADS=heads, **_constants(ctx, qkv, bias, pattern),
        )  # fmt: skip
        ctx.save_for_backward(qkv, bias, masks, pattern, out, lse)
        return out

    @staticmethod
    def backward(ctx, grad: Tensor):
        qkv, bias, masks, pattern, out, lse = ctx.saved_tensors
        n, t, _, heads, d = qkv.shape
        grad = grad.contiguous()
        delta = (grad.float() * out.float()).sum(-1).transpose(1, 2).contiguous()
        grad_qkv = torch.empty_like(qkv)
        tensors = (qkv, *_or(qkv, bias, masks, pattern), grad, lse, delta)
        blocks, constants = triton.cdiv(t, BLOCK), _constants(ctx, qkv, bias, pattern)
        _backward[(blocks, n * heads)](
            *tensors, grad_qkv, ctx.scale, t, d, _count(pattern), *_strides(qkv), HEADS=heads, **constants
        )
        if bias is None:
            return grad_qkv, None, None, None, None, None
        grad_bias = torch.zeros(heads, t, t, dtype=torch.float32, device=qkv.device)
        del constants["PER"], constants["BIASED"]
        _bias_backward[(blocks * blocks, heads, triton.cdiv(n, CHUNK))](
            *tensors, grad_bias, ctx.scale, n, t, d, _count(pattern), *_strides(qkv), CHUNK=CHUNK, HEADS=heads,
            **constants,
        )  # fmt: skip
        return grad_qkv, grad_bias.to(bias.dtype), None, None, None, None


def _or(stand_in: Tensor, *tensors: Tensor | None) -> list[Tensor]:
    """A kernel argument may not be None: any tensor stands in where it will not be read."""
    return [stand_in if t is None else t for t in tensors]


def _count(pattern: Tensor | None) -> int:
    return 1 if pattern is None else len(pattern)


def _strides(qkv: Tensor) -> tuple[int, int, int]:
    """Of a window, a token, and from q to k to v."""
    return qkv.stride(0), qkv.stride(1), qkv.stride(2)


def _constants(ctx, qkv: Tensor, bias: Tensor | None, pattern: Tensor | None) -> dict[str, object]:
    tf32 = qkv.dtype is torch.float32 and torch.backends.cuda.matmul.allow_tf32
    return {
        "PER": 2 if ctx.mutual else 1,
        "BIASED": bias is not None,
        "MASKED": pattern is not None,
        "BM": BLOCK,
        "BD": max(16, triton.next_power_of_2(qkv.shape[-1])),
        "PRECISION": "tf32" if tf32 else "ieee",
    }

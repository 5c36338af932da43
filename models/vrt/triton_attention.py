"""Window attention on an NVIDIA GPU, in Triton: softmax(scale q k^T + bias + mask) v and gradients.

For bfloat16 and float16. torch's attention needs q, k and v apart, heads of a multiple of 8
channels, and writes one gradient of the bias per window. Here packed heads are read and written in
place, so nothing is transposed, split, padded or copied. A chunk of windows is one launch, whatever
their masks: a mask is a number per token (a region), equal for tokens that attend to each other.

Forward keeps the log-sum-exp of each row of logits, L = log2(sum(exp2(logits))). With P =
exp2(logits - L), the weights, and dO, the gradient of the output, backward computes

    dV = P^T dO,   dS = P (dO V^T - rowsum(dO O)),   dQ = scale dS K,   dK = scale dS^T Q,

and the gradient of the bias is dS summed over windows. It is kept in registers while a program
walks over many windows of one head, so no T x T matrix of a window reaches memory
(FlashAttention-2, Dao 2023, arXiv 2307.08691, has the recomputation of P). Logits are in units of
log2(e), for exp2.
"""

import math
from functools import lru_cache
from typing import Any, NamedTuple

import torch
import triton
import triton.language
from torch import Tensor
from torch.autograd.function import once_differentiable

from models.vrt.windows import Span

# A kernel is read by Triton, in whose language a call or a sum means something else than in
# Python's: no type of Python is true there.
tl: Any = triton.language
jit: Any = triton.jit
LOG2_E = tl.constexpr(1.4426950408889634)
# models.vrt.windows.MASKED, in units of log2(e).
MASKED = tl.constexpr(-100.0 * 1.4426950408889634)
# Programs of a launch that walks over windows: 4 for each of the 132 multiprocessors of an H100.
PROGRAMS = 528
# Up to this T one program gives all gradients of a window; its sums fit into the registers.
ONE_PASS = 128
LARGEST_HEAD = 32  # channels
LARGEST_T = 512


class Tile(NamedTuple):
    """How a kernel divides its work: queries and keys of a tile, warps, stages of loads."""

    queries: int
    keys: int
    warps: int
    stages: int


def knows(tokens: int, channels: int) -> bool:
    """Whether the kernels compute windows of `tokens` tokens with heads of `channels` channels."""
    return tokens % 64 == 0 and tokens <= LARGEST_T and channels <= LARGEST_HEAD


def forward_tile(tokens: int) -> Tile:
    """Return the fastest tile of the forward pass, of those that were measured on an H200."""
    if tokens == 128:
        return Tile(64, 128, 4, 2)
    if tokens % 128 == 0:
        return Tile(128, 64, 4, 2)
    return Tile(64, 64, 4, 2)


def backward_tile(tokens: int) -> Tile:
    """Return the tile of the backward kernels."""
    if tokens == 128:
        return Tile(64, 128, 8, 2)  # ONE_PASS needs all keys in a tile
    return Tile(64, 64, 4, 2)


@jit
def _rows(pointer, first, stride, head, BLOCK: tl.constexpr, HD: tl.constexpr, PAD: tl.constexpr):
    """Pointers to the rows first .. first + BLOCK - 1 of one head, (BLOCK, PAD)."""
    own = pointer + tl.cast(first, tl.int64) * stride + head * HD  # within the tile 32 bits do
    return own + tl.arange(0, BLOCK)[:, None] * stride + tl.arange(0, PAD)[None, :]


@jit
def _load(pointers, HD: tl.constexpr, PAD: tl.constexpr):
    if HD == PAD:
        return tl.load(pointers)
    return tl.load(pointers, mask=tl.arange(0, PAD)[None, :] < HD, other=0.0)


@jit
def _store(pointers, x, HD: tl.constexpr, PAD: tl.constexpr):
    if HD == PAD:
        tl.store(pointers, x.to(pointers.dtype.element_ty))
    else:
        tl.store(pointers, x.to(pointers.dtype.element_ty), mask=tl.arange(0, PAD)[None, :] < HD)


@jit
def _matrix(pointer, row, column, T: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Pointers to a tile of a (T, T) matrix."""
    return (
        pointer
        + row * T
        + column
        + tl.arange(0, ROWS)[:, None] * T
        + tl.arange(0, COLUMNS)[None, :]
    )


@jit
def _logits(
    x, y, bias, pattern, regions, window, row, column, scale,
    T: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_MASK: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """scale x y^T + bias + mask, a (ROWS, COLUMNS) tile; bias: the matrix of this head."""
    logits = tl.dot(x, tl.trans(y)) * scale
    if HAS_BIAS:
        logits += tl.load(_matrix(bias, row, column, T, ROWS, COLUMNS)).to(tl.float32)
    if HAS_MASK:
        own = regions + tl.load(pattern + window) * T
        of_row, of_column = (
            tl.load(own + row + tl.arange(0, ROWS)),
            tl.load(own + column + tl.arange(0, COLUMNS)),
        )
        logits = tl.where(of_row[:, None] == of_column[None, :], logits, logits + MASKED)
    return logits


@jit
def _place(n, walk, HEADS: tl.constexpr, TILES: tl.constexpr):
    """(head, tile, group of windows, its first window, its end).

    Heads are neighbours: they share sectors.
    """
    program = tl.program_id(0)
    group = program // (HEADS * TILES)
    return (
        program % HEADS,
        program // HEADS % TILES,
        group,
        group * walk,
        tl.minimum(group * walk + walk, n),
    )


@jit(do_not_specialize=["n", "walk"])
def _forward(
    qkv, bias, pattern, regions, out, sums, n, walk, scale,
    T: tl.constexpr, HEADS: tl.constexpr, HD: tl.constexpr, PAD: tl.constexpr,
    MUTUAL: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_MASK: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """out, and the log-sum-exp of each row of logits, of a tile of queries of one head."""
    head, tile, _, first, end = _place(n, walk, HEADS, T // BM)
    m, stride = tile * BM, 3 * HEADS * HD
    for g in range(first, end):
        # Mutual: a window is a frame; its queries are those of the other frame of the pair.
        q = _load(_rows(qkv, (g ^ 1 if MUTUAL else g) * T + m, stride, head, BM, HD, PAD), HD, PAD)
        top = tl.full((BM,), -float("inf"), tl.float32)
        total = tl.zeros((BM,), tl.float32)
        result = tl.zeros((BM, PAD), tl.float32)
        for c in range(0, T, BN):
            k = _load(_rows(qkv + HEADS * HD, g * T + c, stride, head, BN, HD, PAD), HD, PAD)
            v = _load(_rows(qkv + 2 * HEADS * HD, g * T + c, stride, head, BN, HD, PAD), HD, PAD)
            x = _logits(
                q, k, bias + head * T * T if HAS_BIAS else bias, pattern, regions, g, m, c, scale,
                T, HAS_BIAS, HAS_MASK, BM, BN,
            )  # fmt: skip
            new = tl.maximum(top, tl.max(x, 1))
            p, factor = tl.exp2(x - new[:, None]), tl.exp2(top - new)
            total = total * factor + tl.sum(p, 1)
            result = tl.dot(p.to(v.dtype), v, result * factor[:, None])
            top = new
        _store(
            _rows(out, g * T + m, HEADS * HD, head, BM, HD, PAD), result / total[:, None], HD, PAD
        )
        tl.store(sums + (g * HEADS + head) * T + m + tl.arange(0, BM), top + tl.log2(total))


# The backward kernels hold transposed matrices, (keys, queries), except _queries: so the products
# read the weights and their gradients from registers. `bias` is transposed then, and so is the
# gradient of the bias, (groups, heads, T, T).


@jit(do_not_specialize=["n", "walk"])
def _one_pass(
    qkv, bias, pattern, regions, out, grad, grad_stride: tl.constexpr, sums, delta, grad_qkv,
    grad_bias, n, walk, scale, true_scale,
    T: tl.constexpr, HEADS: tl.constexpr, HD: tl.constexpr, PAD: tl.constexpr,
    MUTUAL: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_MASK: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """All gradients of one head in a group of windows; BN = T. delta is not used."""
    tl.static_assert(BN == T and T // BM <= 2)
    head, _, group, first, end = _place(n, walk, HEADS, 1)
    stride = 3 * HEADS * HD
    # Of the bias, by tile of queries: Triton has no arrays of registers
    sum0 = tl.zeros((BN, BM), tl.float32)
    sum1 = tl.zeros((BN, BM), tl.float32)
    for g in range(first, end):
        k = _load(_rows(qkv + HEADS * HD, g * T, stride, head, BN, HD, PAD), HD, PAD)
        v = _load(_rows(qkv + 2 * HEADS * HD, g * T, stride, head, BN, HD, PAD), HD, PAD)
        grad_k = tl.zeros((BN, PAD), tl.float32)
        grad_v = tl.zeros((BN, PAD), tl.float32)
        for m in tl.static_range(0, T, BM):
            start = (g ^ 1 if MUTUAL else g) * T + m
            q = _load(_rows(qkv, start, stride, head, BM, HD, PAD), HD, PAD)
            gradient = _load(_rows(grad, g * T + m, grad_stride, head, BM, HD, PAD), HD, PAD)
            o = _load(_rows(out, g * T + m, HEADS * HD, head, BM, HD, PAD), HD, PAD)
            x = _logits(
                k, q, bias + head * T * T if HAS_BIAS else bias, pattern, regions, g, 0, m, scale,
                T, HAS_BIAS, HAS_MASK, BN, BM,
            )  # fmt: skip
            p = tl.exp2(x - tl.load(sums + (g * HEADS + head) * T + m + tl.arange(0, BM))[None, :])
            grad_v = tl.dot(p.to(v.dtype), gradient, grad_v)
            own_delta = tl.sum(gradient.to(tl.float32) * o.to(tl.float32), 1)
            s = p * (tl.dot(v, tl.trans(gradient)) - own_delta[None, :])
            if HAS_BIAS:
                if m == 0:
                    sum0 += s
                else:
                    sum1 += s
            s = s.to(k.dtype)
            grad_k = tl.dot(s, q, grad_k)
            grad_q = tl.dot(tl.trans(s), k) * true_scale
            _store(_rows(grad_qkv, start, stride, head, BM, HD, PAD), grad_q, HD, PAD)
        _store(
            _rows(grad_qkv + HEADS * HD, g * T, stride, head, BN, HD, PAD),
            grad_k * true_scale,
            HD,
            PAD,
        )
        _store(_rows(grad_qkv + 2 * HEADS * HD, g * T, stride, head, BN, HD, PAD), grad_v, HD, PAD)
    if HAS_BIAS:
        own = grad_bias + (group * HEADS + head).to(tl.int64) * T * T
        tl.store(_matrix(own, 0, 0, T, BN, BM), sum0)
        if T > BM:
            tl.store(_matrix(own, 0, BM, T, BN, BM), sum1)


@jit(do_not_specialize=["n", "walk"])
def _queries(
    qkv, bias, pattern, regions, out, grad, grad_stride: tl.constexpr, sums, delta, grad_qkv,
    grad_bias, n, walk, scale, true_scale,
    T: tl.constexpr, HEADS: tl.constexpr, HD: tl.constexpr, PAD: tl.constexpr,
    MUTUAL: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_MASK: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Store the gradient of a tile of queries, and delta = sum(grad * out) of each row."""
    head, tile, _, first, end = _place(n, walk, HEADS, T // BM)
    m, stride = tile * BM, 3 * HEADS * HD
    for g in range(first, end):
        start = (g ^ 1 if MUTUAL else g) * T + m
        q = _load(_rows(qkv, start, stride, head, BM, HD, PAD), HD, PAD)
        gradient = _load(_rows(grad, g * T + m, grad_stride, head, BM, HD, PAD), HD, PAD)
        o = _load(_rows(out, g * T + m, HEADS * HD, head, BM, HD, PAD), HD, PAD)
        at = (g * HEADS + head) * T + m + tl.arange(0, BM)
        row_sum, own_delta = (
            tl.load(sums + at),
            tl.sum(gradient.to(tl.float32) * o.to(tl.float32), 1),
        )
        tl.store(delta + at, own_delta)
        result = tl.zeros((BM, PAD), tl.float32)
        for c in range(0, T, BN):
            k = _load(_rows(qkv + HEADS * HD, g * T + c, stride, head, BN, HD, PAD), HD, PAD)
            v = _load(_rows(qkv + 2 * HEADS * HD, g * T + c, stride, head, BN, HD, PAD), HD, PAD)
            x = _logits(
                q, k, bias + head * T * T if HAS_BIAS else bias, pattern, regions, g, m, c, scale,
                T, HAS_BIAS, HAS_MASK, BM, BN,
            )  # fmt: skip
            s = tl.exp2(x - row_sum[:, None]) * (tl.dot(gradient, tl.trans(v)) - own_delta[:, None])
            result = tl.dot(s.to(k.dtype), k, result)
        _store(_rows(grad_qkv, start, stride, head, BM, HD, PAD), result * true_scale, HD, PAD)


@jit(do_not_specialize=["n", "walk"])
def _keys(
    qkv, bias, pattern, regions, out, grad, grad_stride: tl.constexpr, sums, delta, grad_qkv,
    grad_bias, n, walk, scale, true_scale,
    T: tl.constexpr, HEADS: tl.constexpr, HD: tl.constexpr, PAD: tl.constexpr,
    MUTUAL: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_MASK: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Gradients of a tile of keys and values."""
    head, tile, _, first, end = _place(n, walk, HEADS, T // BN)
    c, stride = tile * BN, 3 * HEADS * HD
    for g in range(first, end):
        k = _load(_rows(qkv + HEADS * HD, g * T + c, stride, head, BN, HD, PAD), HD, PAD)
        v = _load(_rows(qkv + 2 * HEADS * HD, g * T + c, stride, head, BN, HD, PAD), HD, PAD)
        grad_k = tl.zeros((BN, PAD), tl.float32)
        grad_v = tl.zeros((BN, PAD), tl.float32)
        for m in range(0, T, BM):
            q = _load(
                _rows(qkv, (g ^ 1 if MUTUAL else g) * T + m, stride, head, BM, HD, PAD), HD, PAD
            )
            gradient = _load(_rows(grad, g * T + m, grad_stride, head, BM, HD, PAD), HD, PAD)
            at = (g * HEADS + head) * T + m + tl.arange(0, BM)
            x = _logits(
                k, q, bias + head * T * T if HAS_BIAS else bias, pattern, regions, g, c, m, scale,
                T, HAS_BIAS, HAS_MASK, BN, BM,
            )  # fmt: skip
            p = tl.exp2(x - tl.load(sums + at)[None, :])
            grad_v = tl.dot(p.to(v.dtype), gradient, grad_v)
            s = p * (tl.dot(v, tl.trans(gradient)) - tl.load(delta + at)[None, :])
            grad_k = tl.dot(s.to(k.dtype), q, grad_k)
        at_key = g * T + c
        _store(
            _rows(grad_qkv + HEADS * HD, at_key, stride, head, BN, HD, PAD),
            grad_k * true_scale,
            HD,
            PAD,
        )
        _store(_rows(grad_qkv + 2 * HEADS * HD, at_key, stride, head, BN, HD, PAD), grad_v, HD, PAD)


@jit(do_not_specialize=["n", "walk"])
def _bias(
    qkv, bias, pattern, regions, out, grad, grad_stride: tl.constexpr, sums, delta, grad_qkv,
    grad_bias, n, walk, scale, true_scale,
    T: tl.constexpr, HEADS: tl.constexpr, HD: tl.constexpr, PAD: tl.constexpr,
    MUTUAL: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_MASK: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Gradient of a tile of the bias, summed over a group of windows in registers."""
    head, tile, group, first, end = _place(n, walk, HEADS, T // BM * (T // BN))
    c, m, stride = tile // (T // BM) * BN, tile % (T // BM) * BM, 3 * HEADS * HD
    total = tl.zeros((BN, BM), tl.float32)
    added = tl.load(_matrix(bias + head * T * T, c, m, T, BN, BM)).to(tl.float32)
    for g in range(first, end):
        k = _load(_rows(qkv + HEADS * HD, g * T + c, stride, head, BN, HD, PAD), HD, PAD)
        v = _load(_rows(qkv + 2 * HEADS * HD, g * T + c, stride, head, BN, HD, PAD), HD, PAD)
        q = _load(_rows(qkv, (g ^ 1 if MUTUAL else g) * T + m, stride, head, BM, HD, PAD), HD, PAD)
        gradient = _load(_rows(grad, g * T + m, grad_stride, head, BM, HD, PAD), HD, PAD)
        at = (g * HEADS + head) * T + m + tl.arange(0, BM)
        x = (
            _logits(k, q, bias, pattern, regions, g, c, m, scale, T, False, HAS_MASK, BN, BM)
            + added
        )
        p = tl.exp2(x - tl.load(sums + at)[None, :])
        total += p * (tl.dot(v, tl.trans(gradient)) - tl.load(delta + at)[None, :])
    own = grad_bias + (group * HEADS + head).to(tl.int64) * T * T
    tl.store(_matrix(own, c, m, T, BN, BM), total)


class WindowAttention(torch.autograd.Function):
    """See `window_attention`."""

    @staticmethod
    def forward(
        ctx: Any,
        qkv: Tensor,
        bias: Tensor | None,
        pattern: Tensor | None,
        regions: Tensor | None,
        scale: float,
        mutual: bool,
    ) -> Tensor:
        windows, all_tokens, _, heads, channels = qkv.shape
        # Mutual: each frame of a window of two counts as a window.
        n = 2 * windows if mutual else windows
        t = all_tokens // 2 if mutual else all_tokens
        out = qkv.new_empty(windows, all_tokens, heads * channels)
        sums = qkv.new_empty(n, heads, t, dtype=torch.float32)
        added = None if bias is None else (bias * LOG2_E.value).to(qkv.dtype)
        shape = {
            "T": t,
            "HEADS": heads,
            "HD": channels,
            "PAD": max(16, 1 << (channels - 1).bit_length()),
            "MUTUAL": mutual,
            "HAS_BIAS": bias is not None,
            "HAS_MASK": pattern is not None,
        }
        tile = forward_tile(t)
        _forward[(n * heads * (t // tile.queries),)](
            qkv, added, pattern, regions, out, sums, n, 1, scale * LOG2_E.value,
            **shape, BM=tile.queries, BN=tile.keys, num_warps=tile.warps, num_stages=tile.stages,
        )  # fmt: skip
        ctx.save_for_backward(qkv, added, pattern, regions, out, sums)
        ctx.scale = scale
        ctx.shape = shape
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        qkv, added, pattern, regions, out, sums = ctx.saved_tensors
        shape = ctx.shape
        n, heads, t = sums.shape
        rows_are_even = grad.stride(0) == grad.shape[1] * grad.stride(1)
        if grad.stride(2) != 1 or not rows_are_even:
            grad = grad.contiguous()
        grad_qkv = torch.empty_like(qkv)
        delta = None if t <= ONE_PASS else torch.empty_like(sums)
        turned = None if added is None else added.transpose(1, 2).contiguous()
        tile = backward_tile(t)

        def launch(
            kernel: Any, matrix: Tensor | None, tiles: int, walk: int = 1, partial: Any = None
        ) -> None:
            kernel[(heads * tiles * math.ceil(n / walk),)](
                qkv, matrix, pattern, regions, out, grad, grad.stride(1), sums, delta, grad_qkv,
                partial, n, walk, ctx.scale * LOG2_E.value, ctx.scale, **shape,
                BM=tile.queries, BN=tile.keys, num_warps=tile.warps, num_stages=tile.stages,
            )  # fmt: skip

        def walk_of(tiles: int) -> tuple[int, Tensor | None]:
            """Return the number of windows that a program walks over, and room for its sums."""
            if added is None:
                return 1, None
            programs = math.ceil(PROGRAMS / (tiles * heads))
            walk = math.ceil(n / programs)
            return walk, sums.new_empty(math.ceil(n / walk), heads, t, t)

        if t <= ONE_PASS:
            walk, partial = walk_of(1)
            launch(_one_pass, turned, 1, walk, partial)
        else:
            launch(_queries, added, t // tile.queries)
            launch(_keys, turned, t // tile.keys)
            tiles = (t // tile.queries) * (t // tile.keys)
            walk, partial = walk_of(tiles)
            if partial is not None:
                launch(_bias, turned, tiles, walk, partial)
        grad_bias = None if partial is None else partial.sum(0).transpose(1, 2)
        return grad_qkv, grad_bias, None, None, None, None


# As many as models.vrt.windows.window_chunks keeps, for both kinds of attention.
@lru_cache(maxsize=256)
@torch.inference_mode(False)  # saved for backward
def mask_table(
    spans: tuple[Span, ...], tokens: int, mutual: bool, device: torch.device
) -> tuple[Tensor | None, Tensor | None]:
    """Return what the kernels read in place of masks, or (None, None) if no window has a mask.

    tokens: T of the attention.

    Returns (pattern, regions), int32: pattern (windows,) is the row of `regions` of each window;
    regions (patterns, T) is the region of each token.
    """
    if all(span.mask is None for span in spans):
        return None, None
    regions = []
    for span in spans:
        if span.mask is None:
            regions.append(torch.zeros(tokens, dtype=torch.int32, device=device))
        else:
            # Tokens of one region have the same row of the mask. The first 0 in the row, which is
            # the first token of the region, names the region.
            attends = span.mask[:tokens, :tokens] == 0
            regions.append(attends.float().argmax(1).to(device, torch.int32))
    counts = torch.tensor([(s.stop - s.start) * (2 if mutual else 1) for s in spans])
    pattern = torch.arange(len(spans)).repeat_interleave(counts)
    return pattern.to(device, torch.int32), torch.stack(regions)


def window_attention(
    qkv: Tensor, bias: Tensor | None, spans: tuple[Span, ...], scale: float, mutual: bool
) -> Tensor:
    """Return the attention of each window, as models.vrt.attention.window_attention does."""
    tokens = qkv.shape[1] // (2 if mutual else 1)
    pattern, regions = mask_table(spans, tokens, mutual, qkv.device)
    return WindowAttention.apply(qkv.contiguous(), bias, pattern, regions, scale, mutual)

"""Window attention on an NVIDIA GPU, in Triton: softmax(scale q k^T + bias + mask) v and gradients.

For bfloat16 and float16. torch's attention needs q, k and v apart, heads of a multiple of 8
channels, and writes one gradient of the bias per window. These kernels read and write packed heads
in place, so nothing is transposed, split, padded or copied. A chunk of windows is one launch,
whatever their masks are: the mask is a number per token (its region), and tokens of the same region
attend to each other.

Forward keeps the log-sum-exp of each row of logits, L = log2(sum(exp2(logits))). Backward has the
gradient dO of the output O. With the weights P = exp2(logits - L) it computes

    dV = P^T dO
    dS = P (dO V^T - rowsum(dO O))      gradient of the logits
    dQ = scale dS K
    dK = scale dS^T Q

The gradient of the bias is dS, summed over windows. A program keeps the sum in registers while it
goes through many windows of one head, so no T x T matrix of a window reaches memory. Computing P
again comes from FlashAttention-2 (Dao 2023, arXiv 2307.08691). The kernels compute 2^x in place of
e^x, so logits are in units of log2(e).

Kernels, by the number of tokens T:

    _forward                  output and L
    _one_pass                 T up to 128: all gradients of a window in one program
    _queries, _keys, _bias    larger T: the gradient of q, of k and v, of the bias

Names in the kernels: n windows; T tokens of a window; HEADS heads of HD channels, padded to PAD, a
power of two; a tile of BM queries and BN keys. g is a window, m the first query of a tile, c its
first key. MUTUAL: a "window" is a frame of a pair of frames, and its queries are those of the other
frame, g ^ 1 (0 and 1, 2 and 3, ... are pairs). HAS_BIAS, HAS_MASK: whether there is one.

Layout: qkv is (n, T, 3, HEADS, HD). So a token is 3 * HEADS * HD numbers after the one before, and
its keys (values) begin HEADS * HD (2 * HEADS * HD) numbers after its queries.

To change a kernel: keep the order of its sums and of its assignments, because another order changes
the last bits of a training. Every sum has a fixed order (no atomic additions), so a step gives the
same numbers each time.

Tests: tests/parts/models/test_triton.py (on a CPU, by Triton's interpreter), test_cuda.py (a GPU)
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

# Triton translates a kernel from its own language, which only looks like Python. So Python's types
# are not true in it, and these two have none.
tl: Any = triton.language
jit: Any = triton.jit
LOG2_E = tl.constexpr(1.4426950408889634)
# models.vrt.windows.MASKED, in units of log2(e).
MASKED = tl.constexpr(-100.0 * 1.4426950408889634)
# Number of programs of a launch whose programs go through many windows: 4 for each of the 132
# multiprocessors of an H100.
PROGRAMS = 528
# Up to this T, `_one_pass` computes all gradients. Its sums then fit into the registers.
ONE_PASS = 128
# The largest windows and heads that the kernels take.
LARGEST_HEAD = 32  # channels
LARGEST_T = 512  # tokens


class Tile(NamedTuple):
    """How a kernel divides its work."""

    queries: int  # BM
    keys: int  # BN
    warps: int  # groups of 32 threads in a program
    stages: int  # how many rounds of a loop load ahead


def knows(tokens: int, channels: int) -> bool:
    """Whether the kernels compute windows of `tokens` tokens with heads of `channels` channels."""
    return tokens % 64 == 0 and tokens <= LARGEST_T and channels <= LARGEST_HEAD


def forward_tile(tokens: int) -> Tile:
    """Return the fastest tile of the forward pass, of the tiles that were measured on an H200."""
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


# ---- Parts of the kernels --------------------------------------------------------------------


@jit
def _rows(pointer, first, stride, head, BLOCK: tl.constexpr, HD: tl.constexpr, PAD: tl.constexpr):
    """Return pointers to the rows first ... first + BLOCK - 1 of one head, (BLOCK, PAD).

    stride: numbers from one row to the next.
    """
    # The position of the tile in a large tensor may exceed 32 bits. Within the tile 32 bits are
    # enough, and faster.
    begin = pointer + tl.cast(first, tl.int64) * stride + head * HD
    return begin + tl.arange(0, BLOCK)[:, None] * stride + tl.arange(0, PAD)[None, :]


@jit
def _load(pointers, HD: tl.constexpr, PAD: tl.constexpr):
    """Load rows of a head. Channels beyond HD are 0."""
    if HD == PAD:
        return tl.load(pointers)
    return tl.load(pointers, mask=tl.arange(0, PAD)[None, :] < HD, other=0.0)


@jit
def _store(pointers, x, HD: tl.constexpr, PAD: tl.constexpr):
    """Store rows of a head, in the dtype of the memory, without the channels beyond HD."""
    if HD == PAD:
        tl.store(pointers, x.to(pointers.dtype.element_ty))
    else:
        tl.store(pointers, x.to(pointers.dtype.element_ty), mask=tl.arange(0, PAD)[None, :] < HD)


@jit
def _matrix(pointer, row, column, T: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Return pointers to a tile (ROWS, COLUMNS) of a (T, T) matrix.

    row, column: the upper left element of the tile.
    """
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
    """Compute scale x y^T + bias + mask, a (ROWS, COLUMNS) tile.

    bias: the matrix of this head. pattern, regions: see `mask_table`.
    """
    logits = tl.dot(x, tl.trans(y)) * scale
    if HAS_BIAS:
        logits += tl.load(_matrix(bias, row, column, T, ROWS, COLUMNS)).to(tl.float32)
    if HAS_MASK:
        of_window = regions + tl.load(pattern + window) * T
        of_row = tl.load(of_window + row + tl.arange(0, ROWS))
        of_column = tl.load(of_window + column + tl.arange(0, COLUMNS))
        logits = tl.where(of_row[:, None] == of_column[None, :], logits, logits + MASKED)
    return logits


@jit
def _place(n, walk, HEADS: tl.constexpr, TILES: tl.constexpr):
    """Return what this program computes: head, tile, group of windows, first window, end.

    walk: number of windows in a group. The windows of the program are first ... end - 1.

    Programs with successive numbers have successive heads, because the heads of a token lie side by
    side in memory, so neighbouring programs read the same cache lines. E.g. 6 heads and 2 tiles:
    programs 0 to 5 are the heads of tile 0, programs 6 to 11 those of tile 1, and the next group of
    windows begins at program 12.
    """
    program = tl.program_id(0)
    group = program // (HEADS * TILES)
    head = program % HEADS
    tile = program // HEADS % TILES
    first = group * walk
    end = tl.minimum(first + walk, n)
    return head, tile, group, first, end


# ---- Forward ---------------------------------------------------------------------------------


@jit(do_not_specialize=["n", "walk"])
def _forward(
    qkv, bias, pattern, regions, out, sums, n, walk, scale,
    T: tl.constexpr, HEADS: tl.constexpr, HD: tl.constexpr, PAD: tl.constexpr,
    MUTUAL: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_MASK: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Compute output and log-sum-exp of the logits for a tile of queries of one head.

    The softmax is computed in one pass over the keys. `top` is the largest logit of each row so
    far, which is subtracted before exp2, so that nothing overflows. If `top` grows, the sums so far
    are multiplied by 2^(old top - new top), as if the new top had been subtracted from the start.
    """
    head, tile, _, first, end = _place(n, walk, HEADS, T // BM)
    m = tile * BM
    stride = 3 * HEADS * HD
    for g in range(first, end):
        q = _load(_rows(qkv, (g ^ 1 if MUTUAL else g) * T + m, stride, head, BM, HD, PAD), HD, PAD)
        top = tl.full((BM,), -float("inf"), tl.float32)
        total = tl.zeros((BM,), tl.float32)  # sum of the weights of each row
        result = tl.zeros((BM, PAD), tl.float32)  # sum of the weighted values
        for c in range(0, T, BN):
            k = _load(_rows(qkv + HEADS * HD, g * T + c, stride, head, BN, HD, PAD), HD, PAD)
            v = _load(_rows(qkv + 2 * HEADS * HD, g * T + c, stride, head, BN, HD, PAD), HD, PAD)
            x = _logits(
                q, k, bias + head * T * T if HAS_BIAS else bias, pattern, regions, g, m, c, scale,
                T, HAS_BIAS, HAS_MASK, BM, BN,
            )  # fmt: skip
            new = tl.maximum(top, tl.max(x, 1))
            p = tl.exp2(x - new[:, None])
            factor = tl.exp2(top - new)
            total = total * factor + tl.sum(p, 1)
            result = tl.dot(p.to(v.dtype), v, result * factor[:, None])
            top = new
        _store(
            _rows(out, g * T + m, HEADS * HD, head, BM, HD, PAD), result / total[:, None], HD, PAD
        )
        tl.store(sums + (g * HEADS + head) * T + m + tl.arange(0, BM), top + tl.log2(total))


# ---- Backward --------------------------------------------------------------------------------
#
# All backward kernels take the same arguments, so that one function can launch each of them:
#   bias      of all heads, (HEADS, T, T). All kernels but _queries hold transposed matrices, (keys,
#             queries), because the products then read P and dS from registers. They are given the
#             transposed bias.
#   out, sums O and L of the forward pass
#   grad      dO, whose rows are grad_stride numbers apart
#   delta     rowsum(dO O), written by _queries, read by _keys and _bias
#   grad_qkv  dQ, dK and dV, packed like qkv
#   grad_bias sums of dS, one for each group of windows, (groups, HEADS, T, T), transposed as well
#   scale     factor of the logits in units of log2(e); true_scale: the same without log2(e)


@jit(do_not_specialize=["n", "walk"])
def _one_pass(
    qkv, bias, pattern, regions, out, grad, grad_stride: tl.constexpr, sums, delta, grad_qkv,
    grad_bias, n, walk, scale, true_scale,
    T: tl.constexpr, HEADS: tl.constexpr, HD: tl.constexpr, PAD: tl.constexpr,
    MUTUAL: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_MASK: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Compute all gradients of one head in a group of windows. delta is not used.

    The keys of a window are one tile (BN = T), the queries at most two tiles.
    """
    tl.static_assert(BN == T and T // BM <= 2)
    head, _, group, first, end = _place(n, walk, HEADS, 1)
    stride = 3 * HEADS * HD
    # The gradient of the bias, one matrix for each tile of queries, because Triton has no arrays of
    # registers.
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
    """Compute dQ of a tile of queries, and delta of its rows."""
    head, tile, _, first, end = _place(n, walk, HEADS, T // BM)
    m = tile * BM
    stride = 3 * HEADS * HD
    for g in range(first, end):
        start = (g ^ 1 if MUTUAL else g) * T + m
        q = _load(_rows(qkv, start, stride, head, BM, HD, PAD), HD, PAD)
        gradient = _load(_rows(grad, g * T + m, grad_stride, head, BM, HD, PAD), HD, PAD)
        o = _load(_rows(out, g * T + m, HEADS * HD, head, BM, HD, PAD), HD, PAD)
        at = (g * HEADS + head) * T + m + tl.arange(0, BM)
        row_sum = tl.load(sums + at)
        own_delta = tl.sum(gradient.to(tl.float32) * o.to(tl.float32), 1)
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
    """Compute dK and dV of a tile of keys."""
    head, tile, _, first, end = _place(n, walk, HEADS, T // BN)
    c = tile * BN
    stride = 3 * HEADS * HD
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
    """Compute a tile of the bias's gradient, summed over a group of windows in registers."""
    # T // BM tiles of queries for each of T // BN tiles of keys.
    head, tile, group, first, end = _place(n, walk, HEADS, T // BM * (T // BN))
    c = tile // (T // BM) * BN
    m = tile % (T // BM) * BM
    stride = 3 * HEADS * HD
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


# ---- Launches --------------------------------------------------------------------------------


class WindowAttention(torch.autograd.Function):
    """Attention inside windows, see `window_attention`.

    pattern, regions: the masks, see `mask_table`.
    """

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
        # With `mutual`, each of the two frames counts as a window.
        n = 2 * windows if mutual else windows
        t = all_tokens // 2 if mutual else all_tokens
        out = qkv.new_empty(windows, all_tokens, heads * channels)
        sums = qkv.new_empty(n, heads, t, dtype=torch.float32)
        added = None if bias is None else (bias * LOG2_E.value).to(qkv.dtype)
        shape = {
            "T": t,
            "HEADS": heads,
            "HD": channels,
            # The next power of two. tl.dot needs at least 16.
            "PAD": max(16, 1 << (channels - 1).bit_length()),
            "MUTUAL": mutual,
            "HAS_BIAS": bias is not None,
            "HAS_MASK": pattern is not None,
        }
        tile = forward_tile(t)
        # One program for each window, head and tile of queries.
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
        # The kernels need the same distance from each row to the next one, also from the last row
        # of a window to the first row of the next window, and channels side by side.
        rows_are_even = grad.stride(0) == grad.shape[1] * grad.stride(1)
        if grad.stride(2) != 1 or not rows_are_even:
            grad = grad.contiguous()
        grad_qkv = torch.empty_like(qkv)
        delta = None if t <= ONE_PASS else torch.empty_like(sums)
        transposed = None if added is None else added.transpose(1, 2).contiguous()
        tile = backward_tile(t)

        def launch(
            kernel: Any, matrix: Tensor | None, tiles: int, walk: int = 1, partial: Any = None
        ) -> None:
            # matrix: the bias as this kernel takes it. tiles: number of tiles of a head. walk:
            # windows of a program. partial: room for its sums of the bias's gradient.
            kernel[(heads * tiles * math.ceil(n / walk),)](
                qkv, matrix, pattern, regions, out, grad, grad.stride(1), sums, delta, grad_qkv,
                partial, n, walk, ctx.scale * LOG2_E.value, ctx.scale, **shape,
                BM=tile.queries, BN=tile.keys, num_warps=tile.warps, num_stages=tile.stages,
            )  # fmt: skip

        def walk_of(tiles: int) -> tuple[int, Tensor | None]:
            """Return the number of windows of a program, and room for the programs' sums.

            tiles: number of tiles of a head. Without a bias there is nothing to sum. E.g. 6 heads,
            1 tile, 1000 windows: 88 programs for each head, so 12 windows for each program.
            """
            if added is None:
                return 1, None
            programs = math.ceil(PROGRAMS / (tiles * heads))
            walk = math.ceil(n / programs)
            return walk, sums.new_empty(math.ceil(n / walk), heads, t, t)

        if t <= ONE_PASS:
            walk, partial = walk_of(1)
            launch(_one_pass, transposed, 1, walk, partial)
        else:
            launch(_queries, added, t // tile.queries)
            launch(_keys, transposed, t // tile.keys)
            tiles = (t // tile.queries) * (t // tile.keys)
            walk, partial = walk_of(tiles)
            if partial is not None:
                launch(_bias, transposed, tiles, walk, partial)
        grad_bias = None if partial is None else partial.sum(0).transpose(1, 2)
        return grad_qkv, grad_bias, None, None, None, None


# window_chunks keeps 128 results. Each may need two tables, for self and for mutual attention.
@lru_cache(maxsize=256)
# The tables are saved for backward. Tensors made in inference mode could not be.
@torch.inference_mode(False)
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
    frames = 2 if mutual else 1  # with `mutual`, each of the two frames counts as a window
    counts = torch.tensor([(span.stop - span.start) * frames for span in spans])
    pattern = torch.arange(len(spans)).repeat_interleave(counts)
    return pattern.to(device, torch.int32), torch.stack(regions)


def window_attention(
    qkv: Tensor, bias: Tensor | None, spans: tuple[Span, ...], scale: float, mutual: bool
) -> Tensor:
    """Return the attention of each window, as models.vrt.attention.window_attention does."""
    tokens = qkv.shape[1] // (2 if mutual else 1)
    pattern, regions = mask_table(spans, tokens, mutual, qkv.device)
    return WindowAttention.apply(qkv.contiguous(), bias, pattern, regions, scale, mutual)

"""Window attention on an NVIDIA GPU, in Triton: softmax(scale q k^T + bias + mask) v and gradients.

For bfloat16 and float16. torch's attention needs q, k and v in three tensors and heads of a
multiple of 8 channels, and writes one gradient of the bias per window. These kernels read and write
packed heads in place, so nothing is transposed, split, padded or copied. All windows of a chunk are
one launch, although their masks differ: a mask is given as one number per token, the region of the
token, and tokens of the same region attend to each other.

Forward keeps the log-sum-exp of each row of logits, L = log2(sum(exp2(logits))). Backward has the
gradient dO of the output O. With the weights P = exp2(logits - L) it computes

    dV = P^T dO
    dS = P (dO V^T - rowsum(dO O))      gradient of the logits
    dQ = scale dS K
    dK = scale dS^T Q

The gradient of the bias is dS, summed over windows. A program (one instance of a kernel) keeps the
sum in registers while it goes through many windows of one head, so no T x T matrix of a window
reaches memory. Computing P again comes from FlashAttention-2 (Dao 2023, arXiv 2307.08691). The
kernels compute 2^x in place of e^x, because exp2 is faster, so logits are multiplied by log2(e).

Kernels, by the number of tokens T:

    _forward                  output and L
    _one_pass                 T up to 128: all gradients of a window in one program
    _queries, _keys, _bias    larger T: the gradient of q, of k and v, of the bias

Names in the kernels:

    n                    number of windows
    T                    tokens of a window
    HEADS, HD, PAD       heads; channels of a head; the same, padded to a power of two
    BM, BN               queries and keys in a tile
    MUTUAL               whether a "window" is a frame of a pair of frames. The queries of frame w
                         are then in the other frame of the pair, w ^ 1: 0 and 1, 2 and 3, ... are
                         pairs
    HAS_BIAS, HAS_MASK   whether there is a bias, whether there are masks

Layout: qkv is (n, T, 3, HEADS, HD). So the stride from a token to the next is 3 * HEADS * HD
numbers. The key of a token begins HEADS * HD numbers after its query, and the value HEADS * HD
numbers after the key.

To change a kernel: keep the order of its sums and of its assignments, because another order changes
the last bits of a training. Every sum has a fixed order (no atomic additions), so a step gives the
same numbers each time. Names, and how an address is computed, may change.

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

# The bodies of kernels are in Triton's own language, which only looks like Python. So the type
# checker must not check them: Any.
tl: Any = triton.language
jit: Any = triton.jit
LOG2_E = tl.constexpr(1.4426950408889634)
# What is added to the logits of pairs that must not attend: models.vrt.windows.MASKED * log2(e).
MASKED = tl.constexpr(-100.0 * 1.4426950408889634)
# Number of programs of a launch whose programs go through many windows: 4 for each of the 132
# multiprocessors of an H100.
PROGRAMS = 528
# Largest T for which `_one_pass` computes all gradients. Its sums then fit into the registers.
MOST_TOKENS_OF_ONE_PASS = 128
# The largest windows and heads that the kernels take.
MOST_TOKENS = 512
MOST_CHANNELS_OF_HEAD = 32


class Tile(NamedTuple):
    """How a kernel divides its work."""

    queries: int  # queries of a tile, BM
    keys: int  # keys of a tile, BN
    warps: int  # groups of 32 threads in a program
    stages: int  # number of rounds of a loop whose numbers are loaded ahead


def knows(tokens: int, channels: int) -> bool:
    """Say whether the kernels compute windows of this many tokens with heads of these channels."""
    fits_tiles = tokens % 64 == 0  # the smallest tile has 64 queries and 64 keys
    return fits_tiles and tokens <= MOST_TOKENS and channels <= MOST_CHANNELS_OF_HEAD


def forward_tile(tokens: int) -> Tile:
    """Return the fastest tile of the forward pass, of the tiles that were measured on an H200.

    Other tiles give other last bits.
    """
    if tokens == 128:
        return Tile(queries=64, keys=128, warps=4, stages=2)
    if tokens % 128 == 0:
        return Tile(queries=128, keys=64, warps=4, stages=2)
    return Tile(queries=64, keys=64, warps=4, stages=2)


def backward_tile(tokens: int) -> Tile:
    """Return the tile of the backward kernels. Other tiles give other last bits."""
    if tokens == 128:  # `_one_pass` needs all keys in a tile
        return Tile(queries=64, keys=128, warps=8, stages=2)
    return Tile(queries=64, keys=64, warps=4, stages=2)


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
def _load_rows(
    pointer, first, stride, head, BLOCK: tl.constexpr, HD: tl.constexpr, PAD: tl.constexpr
):
    """Load rows of a head, (BLOCK, PAD). Channels beyond HD are 0. See `_rows`."""
    pointers = _rows(pointer, first, stride, head, BLOCK, HD, PAD)
    if HD == PAD:
        return tl.load(pointers)
    return tl.load(pointers, mask=tl.arange(0, PAD)[None, :] < HD, other=0.0)


@jit
def _store_rows(
    x, pointer, first, stride, head, BLOCK: tl.constexpr, HD: tl.constexpr, PAD: tl.constexpr
):
    """Store x (BLOCK, PAD) to rows of a head, without the channels beyond HD. See `_rows`.

    The numbers are converted to the dtype of the memory.
    """
    pointers = _rows(pointer, first, stride, head, BLOCK, HD, PAD)
    if HD == PAD:
        tl.store(pointers, x.to(pointers.dtype.element_ty))
    else:
        tl.store(pointers, x.to(pointers.dtype.element_ty), mask=tl.arange(0, PAD)[None, :] < HD)


@jit
def _matrix_pointers(
    pointer, row, column, T: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):
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

    bias: the matrix (T, T) of this head.
    pattern: for each window, the number of its row in `regions`.
    regions: (rows, T), for each token the number of its region. Tokens of two regions must not
    attend to each other. See `mask_table`.
    window: number of the window, for its mask.
    row, column: the upper left element of the tile in the matrix.
    """
    logits = tl.dot(x, tl.trans(y)) * scale
    if HAS_BIAS:
        logits += tl.load(_matrix_pointers(bias, row, column, T, ROWS, COLUMNS)).to(tl.float32)
    if HAS_MASK:
        row_of_regions = tl.load(pattern + window)
        of_window = regions + row_of_regions * T
        of_row = tl.load(of_window + row + tl.arange(0, ROWS))
        of_column = tl.load(of_window + column + tl.arange(0, COLUMNS))
        logits = tl.where(of_row[:, None] == of_column[None, :], logits, logits + MASKED)
    return logits


@jit
def _place(n, walk, HEADS: tl.constexpr, TILES: tl.constexpr):
    """Return what this program computes: head, tile, group of windows, first window, end.

    walk: number of windows in a group. The windows of the program are first ... end - 1.

    Programs with successive numbers have successive heads. The heads of a token lie side by side in
    memory, so these programs read the same cache lines. E.g. 6 heads and 2 tiles: programs 0 to 5
    are the heads of tile 0, programs 6 to 11 are the heads of tile 1, and the next group of windows
    begins at program 12.
    """
    program = tl.program_id(0)
    group = program // (HEADS * TILES)
    head = program % HEADS
    tile = program // HEADS % TILES
    first = group * walk
    end = tl.minimum(first + walk, n)
    return head, tile, group, first, end


# ---- Forward ---------------------------------------------------------------------------------
#
# `do_not_specialize`: otherwise Triton compiles a kernel again if n or walk is 1, or is divisible
# by 16. The number of windows n changes with the size of the frames.


@jit(do_not_specialize=["n", "walk"])
def _forward(
    qkv, bias, pattern, regions, out, log_sums, n, walk, scale,
    T: tl.constexpr, HEADS: tl.constexpr, HD: tl.constexpr, PAD: tl.constexpr,
    MUTUAL: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_MASK: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Compute output and log-sum-exp of the logits for a tile of queries of one head.

    qkv: (n, T, 3, HEADS, HD), packed queries, keys and values.
    bias: (HEADS, T, T), times log2(e).
    pattern, regions: the masks, see `_logits`.
    out: the output, (n, T, HEADS, HD). log_sums: L of each row, (n, HEADS, T). Both are written.
    walk: number of windows that a program goes through, see `_place`.
    scale: factor of the logits, times log2(e).
    T ... BN: constants, see "Names in the kernels" at the top.

    The softmax is computed in one pass over the keys. `top` is the largest logit of each row so
    far, which is subtracted before exp2, so that nothing overflows. If `top` grows, the sums so far
    are multiplied by 2^(old top - new top), as if the new top had been subtracted from the start.
    """
    head, tile, _, first, end = _place(n, walk, HEADS, T // BM)
    first_query = tile * BM
    stride = 3 * HEADS * HD  # from a token to the next one, because q, k and v are packed in qkv
    keys = qkv + HEADS * HD
    values = qkv + 2 * HEADS * HD
    bias_of_head = bias + head * T * T if HAS_BIAS else bias
    for window in range(first, end):
        out_row = window * T + first_query
        query_window = window ^ 1 if MUTUAL else window  # ^ 1: the other frame of the pair
        query_row = query_window * T + first_query
        q = _load_rows(qkv, query_row, stride, head, BM, HD, PAD)
        top = tl.full((BM,), -float("inf"), tl.float32)
        total = tl.zeros((BM,), tl.float32)  # sum of the weights of each row
        result = tl.zeros((BM, PAD), tl.float32)  # sum of the weighted values
        for first_key in range(0, T, BN):
            key_row = window * T + first_key
            k = _load_rows(keys, key_row, stride, head, BN, HD, PAD)
            v = _load_rows(values, key_row, stride, head, BN, HD, PAD)
            logits = _logits(
                q, k, bias_of_head, pattern, regions, window, first_query, first_key, scale,
                T, HAS_BIAS, HAS_MASK, BM, BN,
            )  # fmt: skip
            new_top = tl.maximum(top, tl.max(logits, 1))
            p = tl.exp2(logits - new_top[:, None])
            factor = tl.exp2(top - new_top)
            total = total * factor + tl.sum(p, 1)
            result = tl.dot(p.to(v.dtype), v, result * factor[:, None])  # p v + result * factor
            top = new_top
        _store_rows(result / total[:, None], out, out_row, HEADS * HD, head, BM, HD, PAD)
        # L of each row. log_sums is (n, HEADS, T).
        sum_rows = (window * HEADS + head) * T + first_query + tl.arange(0, BM)
        tl.store(log_sums + sum_rows, top + tl.log2(total))


# ---- Backward --------------------------------------------------------------------------------
#
# All backward kernels take the same arguments, so that one function can launch each of them:
#   bias      of all heads, (HEADS, T, T). `_queries` takes it as (queries, keys). The other kernels
#             take it transposed, (keys, queries). They compute P and dS transposed too, because
#             their products then read P and dS from registers.
#   out       O of the forward pass
#   log_sums  L of the forward pass
#   grad      dO, whose rows are grad_stride numbers apart
#   delta     rowsum(dO O), written by _queries, read by _keys and _bias
#   grad_qkv  dQ, dK and dV, packed like qkv
#   grad_bias sums of dS, one for each group of windows, (groups, HEADS, T, T), transposed as well
#   scale     factor of the logits in units of log2(e); true_scale: the same without log2(e)
#
# Names within the kernels:
#   query_row   first row of a tile in q. A row is a token of a window
#   key_row     first row of a tile in k and in v
#   out_row     first row of a tile in out and in grad
#   sum_rows    numbers of the rows in log_sums and delta, both (n, HEADS, T)
#   p, ds       P and dS


@jit(do_not_specialize=["n", "walk"])
def _one_pass(
    qkv, bias, pattern, regions, out, grad, grad_stride: tl.constexpr, log_sums, delta,
    grad_qkv, grad_bias, n, walk, scale, true_scale,
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
    keys = qkv + HEADS * HD
    values = qkv + 2 * HEADS * HD
    grad_keys = grad_qkv + HEADS * HD
    grad_values = grad_qkv + 2 * HEADS * HD
    bias_of_head = bias + head * T * T if HAS_BIAS else bias
    # The gradient of the bias, one matrix for each tile of queries, because Triton has no arrays of
    # registers.
    sum0 = tl.zeros((BN, BM), tl.float32)
    sum1 = tl.zeros((BN, BM), tl.float32)
    for window in range(first, end):
        key_row = window * T
        k = _load_rows(keys, key_row, stride, head, BN, HD, PAD)
        v = _load_rows(values, key_row, stride, head, BN, HD, PAD)
        grad_k = tl.zeros((BN, PAD), tl.float32)
        grad_v = tl.zeros((BN, PAD), tl.float32)
        for first_query in tl.static_range(0, T, BM):
            query_window = window ^ 1 if MUTUAL else window  # ^ 1: the other frame of the pair
            query_row = query_window * T + first_query
            out_row = window * T + first_query
            sum_rows = (window * HEADS + head) * T + first_query + tl.arange(0, BM)
            q = _load_rows(qkv, query_row, stride, head, BM, HD, PAD)
            grad_out = _load_rows(grad, out_row, grad_stride, head, BM, HD, PAD)
            output = _load_rows(out, out_row, HEADS * HD, head, BM, HD, PAD)
            logits = _logits(
                k, q, bias_of_head, pattern, regions, window, 0, first_query, scale,
                T, HAS_BIAS, HAS_MASK, BN, BM,
            )  # fmt: skip
            p = tl.exp2(logits - tl.load(log_sums + sum_rows)[None, :])
            grad_v = tl.dot(p.to(v.dtype), grad_out, grad_v)  # adds to grad_v
            row_delta = tl.sum(grad_out.to(tl.float32) * output.to(tl.float32), 1)
            ds = p * (tl.dot(v, tl.trans(grad_out)) - row_delta[None, :])
            if HAS_BIAS:
                if first_query == 0:
                    sum0 += ds
                else:
                    sum1 += ds
            ds = ds.to(k.dtype)
            grad_k = tl.dot(ds, q, grad_k)
            grad_q = tl.dot(tl.trans(ds), k) * true_scale
            _store_rows(grad_q, grad_qkv, query_row, stride, head, BM, HD, PAD)
        _store_rows(grad_k * true_scale, grad_keys, key_row, stride, head, BN, HD, PAD)
        _store_rows(grad_v, grad_values, key_row, stride, head, BN, HD, PAD)
    if HAS_BIAS:
        sum_of_program = grad_bias + (group * HEADS + head).to(tl.int64) * T * T
        tl.store(_matrix_pointers(sum_of_program, 0, 0, T, BN, BM), sum0)
        if T > BM:
            tl.store(_matrix_pointers(sum_of_program, 0, BM, T, BN, BM), sum1)


@jit(do_not_specialize=["n", "walk"])
def _queries(
    qkv, bias, pattern, regions, out, grad, grad_stride: tl.constexpr, log_sums, delta,
    grad_qkv, grad_bias, n, walk, scale, true_scale,
    T: tl.constexpr, HEADS: tl.constexpr, HD: tl.constexpr, PAD: tl.constexpr,
    MUTUAL: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_MASK: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Compute dQ of a tile of queries, and delta of its rows."""
    head, tile, _, first, end = _place(n, walk, HEADS, T // BM)
    first_query = tile * BM
    stride = 3 * HEADS * HD
    keys = qkv + HEADS * HD
    values = qkv + 2 * HEADS * HD
    bias_of_head = bias + head * T * T if HAS_BIAS else bias
    for window in range(first, end):
        query_window = window ^ 1 if MUTUAL else window  # ^ 1: the other frame of the pair
        query_row = query_window * T + first_query
        out_row = window * T + first_query
        sum_rows = (window * HEADS + head) * T + first_query + tl.arange(0, BM)
        q = _load_rows(qkv, query_row, stride, head, BM, HD, PAD)
        grad_out = _load_rows(grad, out_row, grad_stride, head, BM, HD, PAD)
        output = _load_rows(out, out_row, HEADS * HD, head, BM, HD, PAD)
        log_sum = tl.load(log_sums + sum_rows)
        row_delta = tl.sum(grad_out.to(tl.float32) * output.to(tl.float32), 1)
        tl.store(delta + sum_rows, row_delta)
        grad_q = tl.zeros((BM, PAD), tl.float32)
        for first_key in range(0, T, BN):
            key_row = window * T + first_key
            k = _load_rows(keys, key_row, stride, head, BN, HD, PAD)
            v = _load_rows(values, key_row, stride, head, BN, HD, PAD)
            logits = _logits(
                q, k, bias_of_head, pattern, regions, window, first_query, first_key, scale,
                T, HAS_BIAS, HAS_MASK, BM, BN,
            )  # fmt: skip
            p = tl.exp2(logits - log_sum[:, None])
            ds = p * (tl.dot(grad_out, tl.trans(v)) - row_delta[:, None])
            grad_q = tl.dot(ds.to(k.dtype), k, grad_q)  # adds to grad_q
        _store_rows(grad_q * true_scale, grad_qkv, query_row, stride, head, BM, HD, PAD)


@jit(do_not_specialize=["n", "walk"])
def _keys(
    qkv, bias, pattern, regions, out, grad, grad_stride: tl.constexpr, log_sums, delta,
    grad_qkv, grad_bias, n, walk, scale, true_scale,
    T: tl.constexpr, HEADS: tl.constexpr, HD: tl.constexpr, PAD: tl.constexpr,
    MUTUAL: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_MASK: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Compute dK and dV of a tile of keys. `_queries` must have written delta before."""
    head, tile, _, first, end = _place(n, walk, HEADS, T // BN)
    first_key = tile * BN
    stride = 3 * HEADS * HD
    keys = qkv + HEADS * HD
    values = qkv + 2 * HEADS * HD
    grad_keys = grad_qkv + HEADS * HD
    grad_values = grad_qkv + 2 * HEADS * HD
    bias_of_head = bias + head * T * T if HAS_BIAS else bias
    for window in range(first, end):
        key_row = window * T + first_key
        k = _load_rows(keys, key_row, stride, head, BN, HD, PAD)
        v = _load_rows(values, key_row, stride, head, BN, HD, PAD)
        grad_k = tl.zeros((BN, PAD), tl.float32)
        grad_v = tl.zeros((BN, PAD), tl.float32)
        for first_query in range(0, T, BM):
            query_window = window ^ 1 if MUTUAL else window  # ^ 1: the other frame of the pair
            query_row = query_window * T + first_query
            out_row = window * T + first_query
            sum_rows = (window * HEADS + head) * T + first_query + tl.arange(0, BM)
            q = _load_rows(qkv, query_row, stride, head, BM, HD, PAD)
            grad_out = _load_rows(grad, out_row, grad_stride, head, BM, HD, PAD)
            logits = _logits(
                k, q, bias_of_head, pattern, regions, window, first_key, first_query, scale,
                T, HAS_BIAS, HAS_MASK, BN, BM,
            )  # fmt: skip
            p = tl.exp2(logits - tl.load(log_sums + sum_rows)[None, :])
            grad_v = tl.dot(p.to(v.dtype), grad_out, grad_v)  # adds to grad_v
            ds = p * (tl.dot(v, tl.trans(grad_out)) - tl.load(delta + sum_rows)[None, :])
            grad_k = tl.dot(ds.to(k.dtype), q, grad_k)
        _store_rows(grad_k * true_scale, grad_keys, key_row, stride, head, BN, HD, PAD)
        _store_rows(grad_v, grad_values, key_row, stride, head, BN, HD, PAD)


@jit(do_not_specialize=["n", "walk"])
def _bias(
    qkv, bias, pattern, regions, out, grad, grad_stride: tl.constexpr, log_sums, delta,
    grad_qkv, grad_bias, n, walk, scale, true_scale,
    T: tl.constexpr, HEADS: tl.constexpr, HD: tl.constexpr, PAD: tl.constexpr,
    MUTUAL: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_MASK: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Compute a tile of the bias's gradient, summed over a group of windows in registers.

    `_queries` must have written delta before.
    """
    # A matrix has T // BM tiles of queries for each of T // BN tiles of keys.
    head, tile, group, first, end = _place(n, walk, HEADS, T // BM * (T // BN))
    first_key = tile // (T // BM) * BN
    first_query = tile % (T // BM) * BM
    stride = 3 * HEADS * HD
    keys = qkv + HEADS * HD
    values = qkv + 2 * HEADS * HD
    total = tl.zeros((BN, BM), tl.float32)
    # The tile of the bias is the same for all windows, so load it once, and add it below.
    bias_tile = _matrix_pointers(bias + head * T * T, first_key, first_query, T, BN, BM)
    added = tl.load(bias_tile).to(tl.float32)
    for window in range(first, end):
        key_row = window * T + first_key
        query_window = window ^ 1 if MUTUAL else window  # ^ 1: the other frame of the pair
        query_row = query_window * T + first_query
        out_row = window * T + first_query
        sum_rows = (window * HEADS + head) * T + first_query + tl.arange(0, BM)
        k = _load_rows(keys, key_row, stride, head, BN, HD, PAD)
        v = _load_rows(values, key_row, stride, head, BN, HD, PAD)
        q = _load_rows(qkv, query_row, stride, head, BM, HD, PAD)
        grad_out = _load_rows(grad, out_row, grad_stride, head, BM, HD, PAD)
        without_bias = _logits(
            k, q, bias, pattern, regions, window, first_key, first_query, scale,
            T, False, HAS_MASK, BN, BM,
        )  # fmt: skip
        p = tl.exp2(without_bias + added - tl.load(log_sums + sum_rows)[None, :])
        total += p * (tl.dot(v, tl.trans(grad_out)) - tl.load(delta + sum_rows)[None, :])
    sum_of_program = grad_bias + (group * HEADS + head).to(tl.int64) * T * T
    tl.store(_matrix_pointers(sum_of_program, first_key, first_query, T, BN, BM), total)


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
        log_sums = qkv.new_empty(n, heads, t, dtype=torch.float32)
        scaled_bias = None if bias is None else (bias * LOG2_E.value).to(qkv.dtype)
        next_power_of_two = 1 << (channels - 1).bit_length()  # e.g. 20 channels -> 32
        # The constants of the kernels, see "Names in the kernels" at the top.
        constants = {
            "T": t,
            "HEADS": heads,
            "HD": channels,
            "PAD": max(16, next_power_of_two),  # tl.dot needs at least 16
            "MUTUAL": mutual,
            "HAS_BIAS": bias is not None,
            "HAS_MASK": pattern is not None,
        }
        tile = forward_tile(t)
        # One program for each window, head and tile of queries: groups of one window (walk 1).
        programs = n * heads * (t // tile.queries)
        walk = 1
        _forward[(programs,)](
            qkv, scaled_bias, pattern, regions, out, log_sums, n, walk, scale * LOG2_E.value,
            **constants, BM=tile.queries, BN=tile.keys,
            num_warps=tile.warps, num_stages=tile.stages,
        )  # fmt: skip
        ctx.save_for_backward(qkv, scaled_bias, pattern, regions, out, log_sums)
        ctx.scale = scale
        ctx.constants = constants
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        qkv, scaled_bias, pattern, regions, out, log_sums = ctx.saved_tensors
        n, heads, t = log_sums.shape
        # The kernels need channels side by side, and the same distance from each row to the next
        # row, also from the last row of a window to the first row of the next window.
        rows_are_even = grad.stride(0) == grad.shape[1] * grad.stride(1)
        if grad.stride(2) != 1 or not rows_are_even:
            grad = grad.contiguous()
        grad_qkv = torch.empty_like(qkv)
        is_one_pass = t <= MOST_TOKENS_OF_ONE_PASS
        delta = None if is_one_pass else torch.empty_like(log_sums)
        transposed_bias = None
        if scaled_bias is not None:
            transposed_bias = scaled_bias.transpose(1, 2).contiguous()
        tile = backward_tile(t)

        def launch(
            kernel: Any,
            kernel_bias: Tensor | None,
            tiles: int,
            walk: int = 1,
            grad_bias_of_groups: Tensor | None = None,
        ) -> None:
            # kernel_bias: the bias as this kernel takes it. tiles: number of tiles of a head.
            # walk: windows of a program. grad_bias_of_groups: see `groups_of`.
            programs = heads * tiles * math.ceil(n / walk)
            kernel[(programs,)](
                qkv, kernel_bias, pattern, regions, out, grad, grad.stride(1), log_sums, delta,
                grad_qkv, grad_bias_of_groups, n, walk, ctx.scale * LOG2_E.value, ctx.scale,
                **ctx.constants, BM=tile.queries, BN=tile.keys,
                num_warps=tile.warps, num_stages=tile.stages,
            )  # fmt: skip

        def groups_of(tiles: int) -> tuple[int, Tensor | None]:
            """Divide the windows into groups, one for each program.

            Returns the number of windows of a group, and memory for the gradient of the bias of
            each group, (groups, heads, T, T). Without a bias, a group is one window, and the memory
            is None.

            tiles: number of tiles of a head. E.g. 6 heads, 1 tile, 1000 windows: 88 programs for
            each head, so 12 windows for each program.
            """
            if scaled_bias is None:
                return 1, None
            programs = math.ceil(PROGRAMS / (tiles * heads))  # for each tile of a head
            walk = math.ceil(n / programs)
            groups = math.ceil(n / walk)
            return walk, log_sums.new_empty(groups, heads, t, t)

        if is_one_pass:
            walk, grad_bias_of_groups = groups_of(tiles=1)
            launch(_one_pass, transposed_bias, 1, walk, grad_bias_of_groups)
        else:
            # `_queries` first, because it writes delta, which the other kernels read.
            launch(_queries, scaled_bias, tiles=t // tile.queries)
            launch(_keys, transposed_bias, tiles=t // tile.keys)
            tiles = (t // tile.queries) * (t // tile.keys)
            walk, grad_bias_of_groups = groups_of(tiles)
            if grad_bias_of_groups is not None:
                launch(_bias, transposed_bias, tiles, walk, grad_bias_of_groups)
        grad_bias = None
        if grad_bias_of_groups is not None:
            grad_bias = grad_bias_of_groups.sum(0).transpose(1, 2)
        # One result for each argument of forward.
        return grad_qkv, grad_bias, None, None, None, None


# windows.window_chunks keeps 128 results. Each result may need two tables, one for self attention
# and one for mutual attention.
@lru_cache(maxsize=256)
# The tables are saved for backward. torch does not save tensors that are made in inference mode, so
# this mode is off here.
@torch.inference_mode(False)
def mask_table(
    spans: tuple[Span, ...], tokens: int, mutual: bool, device: torch.device
) -> tuple[Tensor | None, Tensor | None]:
    """Return what the kernels read in place of masks, or (None, None) if no window has a mask.

    tokens: T of the attention.

    Returns (pattern, regions), both int32. pattern (windows,) has the number of a row of `regions`
    for each window. regions (rows, T) has the number of the region of each token.
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
    windows_of_spans = torch.tensor([(span.stop - span.start) * frames for span in spans])
    # E.g. spans of 3 and 2 windows: 0 0 0 1 1.
    pattern = torch.arange(len(spans)).repeat_interleave(windows_of_spans)
    return pattern.to(device, torch.int32), torch.stack(regions)


def window_attention(
    qkv: Tensor, bias: Tensor | None, spans: tuple[Span, ...], scale: float, mutual: bool
) -> Tensor:
    """Return the attention of each window. See models.vrt.attention.window_attention."""
    frames_of_window = 2 if mutual else 1
    tokens = qkv.shape[1] // frames_of_window
    pattern, regions = mask_table(spans, tokens, mutual, qkv.device)
    return WindowAttention.apply(qkv.contiguous(), bias, pattern, regions, scale, mutual)

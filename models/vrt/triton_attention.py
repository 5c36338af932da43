"""Window attention on an NVIDIA GPU, in Triton: softmax(scale q k^T + bias + mask) v and gradients.

models.vrt.attention calls `window_attention` for bfloat16 and float16, if `knows` accepts the
sizes.

Why not torch's attention? It needs q, k and v in three tensors, and heads of a multiple of 8
channels. It writes one gradient of the bias per window. These kernels read q, k and v where the
linear layer has written them, in one tensor ("packed"). So nothing is transposed, split, padded or
copied. One launch computes all windows of a call, although the windows have different masks. A mask
is one number per token here, the region of the token: tokens of the same region attend to each
other.

The mathematics. Forward keeps the log-sum-exp of each row of logits, L = log2(sum(exp2(logits))).
Backward gets the gradient dO of the output O. With the weights P = exp2(logits - L) it computes

    dV = P^T dO
    dS = P (dO V^T - delta)             gradient of the logits
    delta = rowsum(dO O)                one number per query
    dQ = scale dS K
    dK = scale dS^T Q

The gradient of the bias is dS, summed over windows. Computing P again in backward comes from
FlashAttention-2 (Dao 2023, arXiv 2307.08691). The kernels compute 2^x in place of e^x, because exp2
is faster. e^x is 2^(x log2(e)), so the kernels get the factor of the logits and the bias already
multiplied by log2(e). In the kernels this factor is `exp2_scale`. `scale` is always the factor
without log2(e), as in the equations above.

Words of Triton:

    program    one instance of a kernel. A launch starts many of them, and each one asks for its
               number, tl.program_id(0), to know what it computes
    tile       the part of a matrix that a program computes at a time. It is in registers
    pointer    the address of a number in memory. `qkv + 5` is the address of the sixth number

A program goes through many windows of one head if it sums dS over them. The sum stays in registers,
so no T x T matrix of a window reaches memory.

Kernels, by the number of tokens T:

    _forward                 output and L
    _all_gradients           T up to 128: all gradients of a window in one program
    _gradient_of_queries     larger T: dQ
    _gradients_of_keys       larger T: dK and dV
    _gradient_of_bias        larger T: the gradient of the bias

Layout: qkv is (n, T, 3, HEADS, HD): windows, tokens, (q, k, v), heads, channels of a head. So the
distance from a token to the next one is 3 * HEADS * HD numbers. The key of a token begins HEADS *
HD numbers after its query, and the value HEADS * HD numbers after the key. E.g. 6 heads of 20
channels: the next token after 360 numbers, the key after 120, the value after 240.

To change a kernel:

    keep     the order of its sums, because another order changes the last bits of a training. Every
             sum has a fixed order (no atomic additions), so a step gives the same numbers each time
    free     names, comments, and how an address is computed
    also     a new argument needs a line in the launch. `WindowAttention.forward` launches
             `_forward`, and `_BackwardPass.launch` launches all other kernels
    test     tests/parts/models/test_triton.py compares all results with float64. It needs no GPU,
             because Triton's interpreter runs the kernels on a CPU. test_cuda.py does the same on a
             GPU
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
# A kernel can only read a global constant that is a tl.constexpr, a constant of Triton's compiler.
LOG2_E = tl.constexpr(1.4426950408889634)
# The number added to the logits of pairs that must not attend. models.vrt.windows.MASKED is the
# same number, -100, without the factor log2(e). Change both together.
MASKED = tl.constexpr(-100.0 * 1.4426950408889634)
# Number of programs of a launch that sums dS over windows: 4 for each of the 132 multiprocessors of
# an H100. With fewer programs, some multiprocessors would have nothing to do. With more programs,
# more sums would be written, one (T, T) matrix each. Another number changes the last bits of the
# gradient of the bias.
PROGRAMS = 528
# Largest T for which `_all_gradients` computes the backward pass. With more tokens its sums would
# not fit into the registers.
MOST_TOKENS_OF_ONE_PASS = 128
# The largest windows and heads that the kernels take. Larger windows and heads are left to torch's
# attention. If you raise a limit, add a case of this size to tests/helpers/triton_errors.py.
MOST_TOKENS = 512
MOST_CHANNELS_OF_HEAD = 32


class Tile(NamedTuple):
    """The part of a T x T matrix that a program of a kernel computes at a time.

    A larger tile reads memory less often, but must fit into the registers.
    """

    queries: int  # queries of a tile: rows of the part. QUERIES in the kernels
    keys: int  # keys of a tile: columns of the part. KEYS in the kernels
    warps: int  # groups of 32 threads in a program
    stages: int  # rounds of the loop over tiles that overlap, because later tiles are loaded ahead


def knows(tokens: int, channels: int) -> bool:
    """Say whether the kernels compute windows of this many tokens with heads of these channels.

    forms.attention_has_kernel asks this before each call of `window_attention`. If the answer is
    True for a size that the tiles do not divide, the kernels give wrong numbers without an error.
    """
    fits_tiles = tokens % 64 == 0  # the smallest tile has 64 queries and 64 keys
    return fits_tiles and tokens <= MOST_TOKENS and channels <= MOST_CHANNELS_OF_HEAD


def forward_tile(tokens: int) -> Tile:
    """Return the fastest tile of the forward pass, of the tiles that were measured on an H200.

    T must be a multiple of both sides. Other tiles give other last bits.
    """
    if tokens == 128:
        return Tile(queries=64, keys=128, warps=4, stages=2)
    if tokens % 128 == 0:
        return Tile(queries=128, keys=64, warps=4, stages=2)
    return Tile(queries=64, keys=64, warps=4, stages=2)


def backward_tile(tokens: int) -> Tile:
    """Return the tile of the backward kernels.

    T must be a multiple of both sides. Other tiles give other last bits.
    """
    if tokens == 128:  # `_all_gradients` needs all keys of a window in a tile
        return Tile(queries=64, keys=128, warps=8, stages=2)
    return Tile(queries=64, keys=64, warps=4, stages=2)


# ---- Names in all kernels --------------------------------------------------------------------
#
# Sizes, which Triton compiles into a kernel (`tl.constexpr`):
#   T                    tokens of a window
#   HEADS                heads
#   HD, PAD              channels of a head; the same, padded to a power of two with zeros, because
#                        Triton requires such sizes
#   QUERIES, KEYS        queries and keys in a tile
#   MUTUAL               whether a "window" is one frame of a pair of frames, and the queries come
#                        from the other frame of the pair. See `_window_of_queries`
#   HAS_BIAS, HAS_MASK   whether there is a bias, whether there are masks. Without them, the pointer
#                        is None and no kernel reads it
#
# Arguments:
#   qkv                  packed queries, keys and values, (n, T, 3, HEADS, HD)
#   bias                 (HEADS, T, T), times log2(e)
#   region_row, regions  the masks, made by `mask_table`: regions (rows, T) has the number of the
#                        region of each token, and region_row (n,) says which row of `regions` a
#                        window takes
#   n                    number of windows
#   group_size           number of successive windows that a program goes through
#   exp2_scale           factor of the logits, times log2(e)
#
# Values:
#   head, tile           numbers of what the program computes: a head, a tile of the window
#   first, end           the program goes through the windows first ... end - 1
#   window               number of the window, 0 ... n - 1
#   first_query          number of the first query of the tile within its window
#   first_key            number of the first key of the tile within its window
#   query_row            number of the first row of the tile in q, where a row is a token
#   key_row              number of the first row of the tile in k and in v
#   out_row              number of the first row of the tile in the output and in its gradient
#   query_index          (QUERIES,), positions of the tile's queries in log_sums and delta


# ---- Functions that the kernels call -----------------------------------------------------------


@jit
def _head_and_tile(HEADS: tl.constexpr, TILES: tl.constexpr):
    """Return the number of the head and the number of the tile that this program computes.

    TILES: number of tiles of a head in one window.

    Programs with successive numbers have successive heads. The heads of a token lie side by side in
    memory, so these programs read the same cache lines. Another order gives the same numbers, but
    is slower. E.g. 6 heads and 2 tiles:

        programs 0 ... 5      the heads of tile 0
        programs 6 ... 11     the heads of tile 1
        program 12            head 0 of tile 0, in the next group of windows
    """
    program = tl.program_id(0)
    return program % HEADS, program // HEADS % TILES


@jit
def _group_of_program(HEADS: tl.constexpr, TILES: tl.constexpr):
    """Return the number of the group of windows that this program goes through.

    E.g. 6 heads and 2 tiles: programs 0 to 11 have group 0, programs 12 to 23 have group 1.
    """
    return tl.program_id(0) // (HEADS * TILES)


@jit
def _windows_of_group(group, group_size, n):
    """Return the windows of a group, as the first window and the window after the last one."""
    first = group * group_size
    return first, tl.minimum(first + group_size, n)  # the last group may have fewer windows


@jit
def _bias_of_head(bias, head, T: tl.constexpr, HAS_BIAS: tl.constexpr):
    """Return a pointer to the bias of a head, a matrix (T, T). Without a bias, return None."""
    if HAS_BIAS:
        return bias + head * T * T
    return bias  # None, which `_logits` does not read


@jit
def _window_of_queries(window, MUTUAL: tl.constexpr):
    """Return the number of the window whose queries meet the keys of `window`.

    Without MUTUAL it is `window`. With MUTUAL it is the other frame of the pair. Frames 0 and 1 are
    a pair, frames 2 and 3, and so on, so the last bit of the number is inverted (^ 1):
    0 -> 1, 1 -> 0, 2 -> 3, 3 -> 2.

    With MUTUAL, each kernel reads and writes at two windows. E.g. for window 0:
        q and dQ                                            are in the rows of window 1
        k, v, dK, dV, output, dO, log_sums and delta        are in the rows of window 0
    """
    if MUTUAL:
        return window ^ 1
    return window


@jit
def _query_index(
    window, head, first_query, T: tl.constexpr, HEADS: tl.constexpr, QUERIES: tl.constexpr
):
    """Return the positions of a tile's queries in log_sums and delta, which are (n, HEADS, T).

    E.g. T = 128, 6 heads, window 1, head 2, first_query 64: (1 * 6 + 2) * 128 + 64 = 1088, so the
    positions 1088, 1089, and so on.
    """
    return (window * HEADS + head) * T + first_query + tl.arange(0, QUERIES)


@jit
def _row_pointers(
    tensor, first_row, stride, head, ROWS: tl.constexpr, HD: tl.constexpr, PAD: tl.constexpr
):
    """Return pointers to the channels of a head in successive rows, (ROWS, PAD).

    tensor: pointer to head 0 of row 0. A row is the channels of all heads of one token.
    first_row: number of the first row.
    stride: distance from one row to the next row, in numbers of the tensor.
    head: number of the head. Its channels begin head * HD numbers after the channels of head 0.

    Channels HD ... PAD - 1 lie beyond this head. So the caller must not read or write there.
    """
    # The position of the tile in a large tensor may exceed 32 bits. Within the tile 32 bits are
    # enough, and faster.
    begin = tensor + tl.cast(first_row, tl.int64) * stride + head * HD
    return begin + tl.arange(0, ROWS)[:, None] * stride + tl.arange(0, PAD)[None, :]


@jit
def _load_rows(
    tensor, first_row, stride, head, ROWS: tl.constexpr, HD: tl.constexpr, PAD: tl.constexpr
):
    """Load ROWS successive rows of a head, (ROWS, PAD). Channels beyond HD are 0.

    The arguments are those of `_row_pointers`.
    """
    pointers = _row_pointers(tensor, first_row, stride, head, ROWS, HD, PAD)
    if HD == PAD:
        return tl.load(pointers)
    return tl.load(pointers, mask=tl.arange(0, PAD)[None, :] < HD, other=0.0)


@jit
def _store_rows(
    tensor, first_row, stride, head, values,
    ROWS: tl.constexpr, HD: tl.constexpr, PAD: tl.constexpr,
):  # fmt: skip
    """Store values (ROWS, PAD) to ROWS successive rows of a head, without the channels beyond HD.

    The values are converted to the dtype of the tensor. The other arguments are those of
    `_row_pointers`.
    """
    pointers = _row_pointers(tensor, first_row, stride, head, ROWS, HD, PAD)
    values = values.to(pointers.dtype.element_ty)
    if HD == PAD:
        tl.store(pointers, values)
    else:
        tl.store(pointers, values, mask=tl.arange(0, PAD)[None, :] < HD)


@jit
def _matrix_pointers(
    matrix, row, column, T: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):
    """Return pointers to a tile (ROWS, COLUMNS) of a (T, T) matrix, whose rows lie T numbers apart.

    row, column: the upper left element of the tile.
    """
    upper_left = matrix + row * T + column
    return upper_left + tl.arange(0, ROWS)[:, None] * T + tl.arange(0, COLUMNS)[None, :]


@jit
def _logits(
    x, y, exp2_scale, bias, region_row, regions, window, row, column,
    T: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_MASK: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Compute exp2_scale x y^T + bias + mask, a tile (ROWS, COLUMNS) of a (T, T) matrix.

    x: (ROWS, PAD). y: (COLUMNS, PAD). They are q and k, or k and q if the matrix is transposed.
    bias: the matrix (T, T) of this head.
    region_row: (n,), for each window the number of its row in `regions`.
    regions: (rows, T), for each token the number of its region. Tokens of two regions must not
        attend to each other. `mask_table` makes both tensors.
    row, column: the upper left element of the tile in the matrix. x begins at token `row` of the
        window, and y begins at token `column`.

    All kernels compute their logits with this function. But `_gradient_of_bias` calls it without
    the bias, and adds the bias itself. So a change of the bias must be made there, too.
    """
    logits = tl.dot(x, tl.trans(y)) * exp2_scale
    if HAS_BIAS:
        logits += tl.load(_matrix_pointers(bias, row, column, T, ROWS, COLUMNS)).to(tl.float32)
    if HAS_MASK:
        regions_of_window = regions + tl.load(region_row + window) * T
        of_rows = tl.load(regions_of_window + row + tl.arange(0, ROWS))  # (ROWS,)
        of_columns = tl.load(regions_of_window + column + tl.arange(0, COLUMNS))  # (COLUMNS,)
        is_same_region = of_rows[:, None] == of_columns[None, :]
        logits = tl.where(is_same_region, logits, logits + MASKED)
    return logits


# ---- Forward ---------------------------------------------------------------------------------
#
# `do_not_specialize`: without it, Triton compiles a kernel once more if n or group_size is 1, or is
# divisible by 16. The number of windows n changes with the size of the frames.


@jit(do_not_specialize=["n", "group_size"])
def _forward(
    qkv,  # input (n, T, 3, HEADS, HD): query, key and value of each token
    bias,  # input (HEADS, queries, keys): added to the logits, times log2(e); or None
    region_row,  # input (n,): for each window, its row in `regions`; None without masks
    regions,  # input (rows, T): for each token, the number of its region; None without masks
    out,  # result (n, T, HEADS, HD): the output, O
    log_sums,  # result (n, HEADS, T): L of each query, log2(sum over the keys of 2^logit)
    n,  # number of windows
    group_size,  # number of windows of a program
    exp2_scale,  # factor of the logits, times log2(e)
    T: tl.constexpr,  # tokens of a window
    HEADS: tl.constexpr,  # heads
    HD: tl.constexpr,  # channels of a head
    PAD: tl.constexpr,  # channels of a head with padding, a power of two
    MUTUAL: tl.constexpr,  # whether the queries come from the other frame of the pair
    HAS_BIAS: tl.constexpr,  # whether there is a bias
    HAS_MASK: tl.constexpr,  # whether there are masks
    QUERIES: tl.constexpr,  # queries in a tile
    KEYS: tl.constexpr,  # keys in a tile
):
    """Write the output and the log-sum-exp of the logits, L = log2(sum(exp2(logits))).

    A program computes one tile of queries of one head, in the windows of its group. E.g. windows of
    T = 128 tokens, 6 heads, tiles of 64 queries, groups of one window: a window has 2 tiles, so
    12 programs.

        program 0     head 0, queries  0 ...  63, window 0
        program 6     head 0, queries 64 ... 127, window 0
        program 12    head 0, queries  0 ...  63, window 1

    The kernel goes through the keys once, tile by tile. After some tiles of keys it has, for each
    query,

        top    = the largest logit so far
        total  = sum of 2^(logit - top)
        result = sum of 2^(logit - top) v

    Subtracting top keeps 2^x from overflowing. If a tile of keys has a larger logit, this logit is
    the new top. Then total and result are multiplied by 2^(old top - new top). They are then as if
    the new top had been subtracted from the start. After the last tile, the output is
    result / total, and L is top + log2(total).
    """
    # This program computes one tile of queries of one head, in the windows first ... end - 1.
    group = _group_of_program(HEADS, TILES=T // QUERIES)
    head, tile = _head_and_tile(HEADS, TILES=T // QUERIES)
    first, end = _windows_of_group(group, group_size, n)
    first_query = tile * QUERIES

    # Pointers to the first query, key and value are qkv, keys and values. q, k and v are packed, so
    # all three have the same distance from a token to the next one: stride.
    keys = qkv + HEADS * HD
    values = qkv + 2 * HEADS * HD
    stride = 3 * HEADS * HD
    bias_of_head = _bias_of_head(bias, head, T, HAS_BIAS)

    for window in range(first, end):
        query_row = _window_of_queries(window, MUTUAL) * T + first_query
        q = _load_rows(qkv, query_row, stride, head, ROWS=QUERIES, HD=HD, PAD=PAD)  # (QUERIES, PAD)
        # Before the first tile of keys there is no logit: the largest is -infinity, the sums are 0.
        top = tl.full((QUERIES,), -float("inf"), tl.float32)
        total = tl.zeros((QUERIES,), tl.float32)
        result = tl.zeros((QUERIES, PAD), tl.float32)

        for first_key in range(0, T, KEYS):
            key_row = window * T + first_key
            k = _load_rows(keys, key_row, stride, head, ROWS=KEYS, HD=HD, PAD=PAD)  # (KEYS, PAD)
            v = _load_rows(values, key_row, stride, head, ROWS=KEYS, HD=HD, PAD=PAD)  # (KEYS, PAD)
            logits = _logits(
                q, k, exp2_scale, bias_of_head, region_row, regions, window,
                row=first_query, column=first_key,
                T=T, HAS_BIAS=HAS_BIAS, HAS_MASK=HAS_MASK, ROWS=QUERIES, COLUMNS=KEYS,
            )  # fmt: skip
            new_top = tl.maximum(top, tl.max(logits, 1))  # (QUERIES,)
            p = tl.exp2(logits - new_top[:, None])  # (QUERIES, KEYS)
            factor = tl.exp2(top - new_top)  # (QUERIES,)
            total = total * factor + tl.sum(p, 1)
            # tl.dot(a, b, c) is a b + c, so this is p v + result * factor.
            result = tl.dot(p.to(v.dtype), v, result * factor[:, None])
            top = new_top

        # With MUTUAL, too, the output belongs to `window`, the window of the keys.
        out_row = window * T + first_query
        _store_rows(
            out, out_row, HEADS * HD, head, values=result / total[:, None],
            ROWS=QUERIES, HD=HD, PAD=PAD,
        )  # fmt: skip
        query_index = _query_index(window, head, first_query, T, HEADS, QUERIES)
        tl.store(log_sums + query_index, top + tl.log2(total))


# ---- Backward --------------------------------------------------------------------------------
#
# All backward kernels have the same arguments, so that `_BackwardPass.launch` can launch each of
# them. A kernel ignores an argument that it does not need: "not used" below.
#
# The kernels compute P and dS tile by tile, in the same four steps:
#     logits                                 `_logits`
#     p      = exp2(logits - L)              P. L is read from log_sums
#     grad_p = dO V^T
#     ds     = p (grad_p - delta)            dS
#
# In `_gradient_of_queries` the matrices are (queries, keys), as in forward. In the other kernels
# they are transposed, (keys, queries), and these kernels take the bias transposed, too. The reason:
# dV = P^T dO and dK = scale dS^T Q need P^T and dS^T. If the kernel computes the transposed
# matrix, the product reads it in registers. If the kernel transposed the matrix afterwards, the
# matrix would go through shared memory, which is slower.
#
# Further arguments:
#   bias        (HEADS, keys, queries), but (HEADS, queries, keys) for `_gradient_of_queries`
#   out         O of the forward pass, (n, T, HEADS, HD)
#   grad        dO, (n, T, HEADS, HD)
#   grad_stride numbers from a row of dO to the next row, which may be more than HEADS * HD. Triton
#               compiles it into the kernel (`tl.constexpr`) like HEADS and HD: it does not change
#               with the number of windows
#   log_sums    L of the forward pass, (n, HEADS, T)
#   delta       rowsum(dO O), (n, HEADS, T): written by `_gradient_of_queries`, read by
#               `_gradients_of_keys` and `_gradient_of_bias`
#   grad_qkv    dQ, dK and dV, packed like qkv
#   grad_bias   sums of dS, one for each group of windows, (groups, HEADS, keys, queries)
#   scale       factor of the logits without log2(e), as in the equations of dQ and dK


@jit
def _bias_sum_of_group(grad_bias, group, head, T: tl.constexpr, HEADS: tl.constexpr):
    """Return a pointer to the sum of dS of a group of windows for a head, a matrix (T, T)."""
    # 64 bits, because grad_bias of many groups may have more than 2^31 numbers.
    return grad_bias + (group * HEADS + head).to(tl.int64) * T * T


@jit(do_not_specialize=["n", "group_size"])
def _all_gradients(
    qkv,  # input (n, T, 3, HEADS, HD): query, key and value of each token
    bias,  # input (HEADS, keys, queries): added to the logits, times log2(e); or None
    region_row,  # input (n,): for each window, its row in `regions`; None without masks
    regions,  # input (rows, T): for each token, the number of its region; None without masks
    out,  # input (n, T, HEADS, HD): the output of forward, O
    grad,  # input (n, T, HEADS, HD): the gradient of the output, dO
    grad_stride: tl.constexpr,  # numbers from a row of dO to the next row
    log_sums,  # input (n, HEADS, T): L of each query, log2(sum over the keys of 2^logit)
    delta,  # not used: this kernel computes the delta of a query right where it needs it
    grad_qkv,  # result (n, T, 3, HEADS, HD): dQ, dK and dV of each token
    grad_bias,  # result (groups, HEADS, keys, queries): the sum of dS of each group; or None
    n,  # number of windows
    group_size,  # number of windows of a program
    exp2_scale,  # factor of the logits, times log2(e)
    scale,  # factor of the logits
    T: tl.constexpr,  # tokens of a window
    HEADS: tl.constexpr,  # heads
    HD: tl.constexpr,  # channels of a head
    PAD: tl.constexpr,  # channels of a head with padding, a power of two
    MUTUAL: tl.constexpr,  # whether the queries come from the other frame of the pair
    HAS_BIAS: tl.constexpr,  # whether there is a bias
    HAS_MASK: tl.constexpr,  # whether there are masks
    QUERIES: tl.constexpr,  # queries in a tile
    KEYS: tl.constexpr,  # keys in a tile
):
    """Write dQ, dK, dV and the sum of dS of one head in a group of windows.

        P  = exp2(logits - L)
        dV = P^T dO
        dS = P (dO V^T - delta),  delta = rowsum(dO O)
        dQ = scale dS K
        dK = scale dS^T Q

    All keys of a window are one tile. The queries are one tile (T = 64) or two tiles (T = 128).

    A program computes one head, in the windows of its group. E.g. 1000 windows, 6 heads, groups of
    12 windows: 84 groups, so 504 programs. Program 7 computes head 1 in the windows 12 ... 23.
    """
    tl.static_assert(KEYS == T and T // QUERIES <= 2)
    # This program computes one head in the windows first ... end - 1, which are group `group`. It
    # computes all tiles of a window, so the work is not divided into tiles: TILES is 1.
    group = _group_of_program(HEADS, TILES=1)
    head, _ = _head_and_tile(HEADS, TILES=1)
    first, end = _windows_of_group(group, group_size, n)

    # Pointers to the first query, key and value, and to their gradients. q, k and v are packed, so
    # all have the same distance from a token to the next one: stride.
    keys = qkv + HEADS * HD
    values = qkv + 2 * HEADS * HD
    grad_keys = grad_qkv + HEADS * HD
    grad_values = grad_qkv + 2 * HEADS * HD
    stride = 3 * HEADS * HD
    bias_of_head = _bias_of_head(bias, head, T, HAS_BIAS)
    # The sums of dS over the windows, (keys, queries). A window has at most two tiles of queries.
    # So there are two sums, one for the first tile and one for the second. They cannot be one array
    # with an index, because Triton has no arrays of registers.
    first_sum = tl.zeros((KEYS, QUERIES), tl.float32)
    second_sum = tl.zeros((KEYS, QUERIES), tl.float32)

    for window in range(first, end):
        key_row = window * T
        k = _load_rows(keys, key_row, stride, head, ROWS=KEYS, HD=HD, PAD=PAD)  # (KEYS, PAD)
        v = _load_rows(values, key_row, stride, head, ROWS=KEYS, HD=HD, PAD=PAD)  # (KEYS, PAD)
        # dK and dV are sums over the queries.
        grad_k = tl.zeros((KEYS, PAD), tl.float32)
        grad_v = tl.zeros((KEYS, PAD), tl.float32)

        # One or two rounds. Triton writes the code of each round out (static_range).
        for first_query in tl.static_range(0, T, QUERIES):
            query_row = _window_of_queries(window, MUTUAL) * T + first_query
            out_row = window * T + first_query
            query_index = _query_index(window, head, first_query, T, HEADS, QUERIES)
            # All three: (QUERIES, PAD).
            q = _load_rows(qkv, query_row, stride, head, ROWS=QUERIES, HD=HD, PAD=PAD)
            grad_out = _load_rows(grad, out_row, grad_stride, head, ROWS=QUERIES, HD=HD, PAD=PAD)
            output = _load_rows(out, out_row, HEADS * HD, head, ROWS=QUERIES, HD=HD, PAD=PAD)

            # P = exp2(logits - L) (transposed), and dV = P^T dO.
            logits = _logits(
                k, q, exp2_scale, bias_of_head, region_row, regions, window,
                row=0, column=first_query,
                T=T, HAS_BIAS=HAS_BIAS, HAS_MASK=HAS_MASK, ROWS=KEYS, COLUMNS=QUERIES,
            )  # fmt: skip
            p = tl.exp2(logits - tl.load(log_sums + query_index)[None, :])  # (KEYS, QUERIES)
            grad_v = tl.dot(p.to(v.dtype), grad_out, grad_v)  # adds to grad_v

            # dS = P (dO V^T - delta) (transposed).
            row_delta = tl.sum(grad_out.to(tl.float32) * output.to(tl.float32), 1)  # (QUERIES,)
            grad_p = tl.dot(v, tl.trans(grad_out))  # (KEYS, QUERIES)
            ds = p * (grad_p - row_delta[None, :])
            if HAS_BIAS:
                if first_query == 0:
                    first_sum += ds
                else:
                    second_sum += ds

            # dK = scale dS^T Q, dQ = scale dS K. dK gets its factor after the last round.
            ds = ds.to(k.dtype)
            grad_k = tl.dot(ds, q, grad_k)  # adds to grad_k
            grad_q = tl.dot(tl.trans(ds), k) * scale
            _store_rows(
                grad_qkv, query_row, stride, head, values=grad_q, ROWS=QUERIES, HD=HD, PAD=PAD
            )

        grad_k = grad_k * scale
        _store_rows(grad_keys, key_row, stride, head, values=grad_k, ROWS=KEYS, HD=HD, PAD=PAD)
        _store_rows(grad_values, key_row, stride, head, values=grad_v, ROWS=KEYS, HD=HD, PAD=PAD)

    if HAS_BIAS:
        # The columns of the matrix are the queries, so the second tile begins at column QUERIES.
        matrix = _bias_sum_of_group(grad_bias, group, head, T, HEADS)
        tl.store(
            _matrix_pointers(matrix, row=0, column=0, T=T, ROWS=KEYS, COLUMNS=QUERIES), first_sum
        )
        has_second_tile: tl.constexpr = T > QUERIES
        if has_second_tile:
            tl.store(
                _matrix_pointers(matrix, row=0, column=QUERIES, T=T, ROWS=KEYS, COLUMNS=QUERIES),
                second_sum,
            )


@jit(do_not_specialize=["n", "group_size"])
def _gradient_of_queries(
    qkv,  # input (n, T, 3, HEADS, HD): query, key and value of each token
    bias,  # input (HEADS, queries, keys): added to the logits, times log2(e); or None
    region_row,  # input (n,): for each window, its row in `regions`; None without masks
    regions,  # input (rows, T): for each token, the number of its region; None without masks
    out,  # input (n, T, HEADS, HD): the output of forward, O
    grad,  # input (n, T, HEADS, HD): the gradient of the output, dO
    grad_stride: tl.constexpr,  # numbers from a row of dO to the next row
    log_sums,  # input (n, HEADS, T): L of each query, log2(sum over the keys of 2^logit)
    delta,  # result (n, HEADS, T): rowsum(dO O) of each query
    grad_qkv,  # result (n, T, 3, HEADS, HD): dQ. The places of dK and dV stay as they are
    grad_bias,  # not used: `_gradient_of_bias` writes it
    n,  # number of windows
    group_size,  # number of windows of a program
    exp2_scale,  # factor of the logits, times log2(e)
    scale,  # factor of the logits
    T: tl.constexpr,  # tokens of a window
    HEADS: tl.constexpr,  # heads
    HD: tl.constexpr,  # channels of a head
    PAD: tl.constexpr,  # channels of a head with padding, a power of two
    MUTUAL: tl.constexpr,  # whether the queries come from the other frame of the pair
    HAS_BIAS: tl.constexpr,  # whether there is a bias
    HAS_MASK: tl.constexpr,  # whether there are masks
    QUERIES: tl.constexpr,  # queries in a tile
    KEYS: tl.constexpr,  # keys in a tile
):
    """Write dQ of a tile of queries, and delta of these queries. dQ is a sum over the keys.

        P  = exp2(logits - L)
        dS = P (dO V^T - delta),  delta = rowsum(dO O)
        dQ = scale dS K

    A program computes one tile of queries of one head, in the windows of its group. E.g. windows of
    T = 384 tokens, 6 heads, tiles of 64 queries, groups of one window: a window has 6 tiles, so 36
    programs. Program 40 computes head 4, queries 0 ... 63, window 1.

    `_launch_several_passes` must launch this kernel before the two kernels that read delta.
    """
    # This program computes one tile of queries of one head, in the windows first ... end - 1.
    group = _group_of_program(HEADS, TILES=T // QUERIES)
    head, tile = _head_and_tile(HEADS, TILES=T // QUERIES)
    first, end = _windows_of_group(group, group_size, n)
    first_query = tile * QUERIES

    # Pointers to the first key and the first value, and the distance from a token to the next one.
    keys = qkv + HEADS * HD
    values = qkv + 2 * HEADS * HD
    stride = 3 * HEADS * HD
    bias_of_head = _bias_of_head(bias, head, T, HAS_BIAS)

    for window in range(first, end):
        query_row = _window_of_queries(window, MUTUAL) * T + first_query
        out_row = window * T + first_query
        query_index = _query_index(window, head, first_query, T, HEADS, QUERIES)
        # All three: (QUERIES, PAD).
        q = _load_rows(qkv, query_row, stride, head, ROWS=QUERIES, HD=HD, PAD=PAD)
        grad_out = _load_rows(grad, out_row, grad_stride, head, ROWS=QUERIES, HD=HD, PAD=PAD)
        output = _load_rows(out, out_row, HEADS * HD, head, ROWS=QUERIES, HD=HD, PAD=PAD)
        log_sum = tl.load(log_sums + query_index)  # (QUERIES,)
        # delta = rowsum(dO O), for this kernel and for the kernels that run later.
        row_delta = tl.sum(grad_out.to(tl.float32) * output.to(tl.float32), 1)  # (QUERIES,)
        tl.store(delta + query_index, row_delta)

        # dQ = scale dS K, without its factor until the last tile of keys is added.
        grad_q = tl.zeros((QUERIES, PAD), tl.float32)
        for first_key in range(0, T, KEYS):
            key_row = window * T + first_key
            k = _load_rows(keys, key_row, stride, head, ROWS=KEYS, HD=HD, PAD=PAD)  # (KEYS, PAD)
            v = _load_rows(values, key_row, stride, head, ROWS=KEYS, HD=HD, PAD=PAD)  # (KEYS, PAD)
            logits = _logits(
                q, k, exp2_scale, bias_of_head, region_row, regions, window,
                row=first_query, column=first_key,
                T=T, HAS_BIAS=HAS_BIAS, HAS_MASK=HAS_MASK, ROWS=QUERIES, COLUMNS=KEYS,
            )  # fmt: skip
            p = tl.exp2(logits - log_sum[:, None])  # (QUERIES, KEYS)
            grad_p = tl.dot(grad_out, tl.trans(v))  # (QUERIES, KEYS)
            ds = p * (grad_p - row_delta[:, None])
            grad_q = tl.dot(ds.to(k.dtype), k, grad_q)  # adds to grad_q

        grad_q = grad_q * scale
        _store_rows(grad_qkv, query_row, stride, head, values=grad_q, ROWS=QUERIES, HD=HD, PAD=PAD)


@jit(do_not_specialize=["n", "group_size"])
def _gradients_of_keys(
    qkv,  # input (n, T, 3, HEADS, HD): query, key and value of each token
    bias,  # input (HEADS, keys, queries): added to the logits, times log2(e); or None
    region_row,  # input (n,): for each window, its row in `regions`; None without masks
    regions,  # input (rows, T): for each token, the number of its region; None without masks
    out,  # not used: only delta needs it, and delta is an input here
    grad,  # input (n, T, HEADS, HD): the gradient of the output, dO
    grad_stride: tl.constexpr,  # numbers from a row of dO to the next row
    log_sums,  # input (n, HEADS, T): L of each query, log2(sum over the keys of 2^logit)
    delta,  # input (n, HEADS, T): rowsum(dO O), which `_gradient_of_queries` has written before
    grad_qkv,  # result (n, T, 3, HEADS, HD): dK and dV. The place of dQ stays as it is
    grad_bias,  # not used: `_gradient_of_bias` writes it
    n,  # number of windows
    group_size,  # number of windows of a program
    exp2_scale,  # factor of the logits, times log2(e)
    scale,  # factor of the logits
    T: tl.constexpr,  # tokens of a window
    HEADS: tl.constexpr,  # heads
    HD: tl.constexpr,  # channels of a head
    PAD: tl.constexpr,  # channels of a head with padding, a power of two
    MUTUAL: tl.constexpr,  # whether the queries come from the other frame of the pair
    HAS_BIAS: tl.constexpr,  # whether there is a bias
    HAS_MASK: tl.constexpr,  # whether there are masks
    QUERIES: tl.constexpr,  # queries in a tile
    KEYS: tl.constexpr,  # keys in a tile
):
    """Write dK and dV of a tile of keys. Both are sums over the queries.

        P  = exp2(logits - L)
        dV = P^T dO
        dS = P (dO V^T - delta)
        dK = scale dS^T Q

    A program computes one tile of keys of one head, in the windows of its group. E.g. windows of
    T = 384 tokens, 6 heads, tiles of 64 keys, groups of one window: a window has 6 tiles, so 36
    programs. Program 40 computes head 4, keys 0 ... 63, window 1.
    """
    # This program computes one tile of keys of one head, in the windows first ... end - 1.
    group = _group_of_program(HEADS, TILES=T // KEYS)
    head, tile = _head_and_tile(HEADS, TILES=T // KEYS)
    first, end = _windows_of_group(group, group_size, n)
    first_key = tile * KEYS

    # Pointers to the first key and the first value, and to their gradients. stride: the distance
    # from a token to the next one.
    keys = qkv + HEADS * HD
    values = qkv + 2 * HEADS * HD
    grad_keys = grad_qkv + HEADS * HD
    grad_values = grad_qkv + 2 * HEADS * HD
    stride = 3 * HEADS * HD
    bias_of_head = _bias_of_head(bias, head, T, HAS_BIAS)

    for window in range(first, end):
        key_row = window * T + first_key
        k = _load_rows(keys, key_row, stride, head, ROWS=KEYS, HD=HD, PAD=PAD)  # (KEYS, PAD)
        v = _load_rows(values, key_row, stride, head, ROWS=KEYS, HD=HD, PAD=PAD)  # (KEYS, PAD)
        grad_k = tl.zeros((KEYS, PAD), tl.float32)
        grad_v = tl.zeros((KEYS, PAD), tl.float32)

        for first_query in range(0, T, QUERIES):
            query_row = _window_of_queries(window, MUTUAL) * T + first_query
            out_row = window * T + first_query
            query_index = _query_index(window, head, first_query, T, HEADS, QUERIES)
            # Both: (QUERIES, PAD).
            q = _load_rows(qkv, query_row, stride, head, ROWS=QUERIES, HD=HD, PAD=PAD)
            grad_out = _load_rows(grad, out_row, grad_stride, head, ROWS=QUERIES, HD=HD, PAD=PAD)

            # P = exp2(logits - L) (transposed), and dV = P^T dO.
            logits = _logits(
                k, q, exp2_scale, bias_of_head, region_row, regions, window,
                row=first_key, column=first_query,
                T=T, HAS_BIAS=HAS_BIAS, HAS_MASK=HAS_MASK, ROWS=KEYS, COLUMNS=QUERIES,
            )  # fmt: skip
            p = tl.exp2(logits - tl.load(log_sums + query_index)[None, :])  # (KEYS, QUERIES)
            grad_v = tl.dot(p.to(v.dtype), grad_out, grad_v)  # adds to grad_v

            # dS = P (dO V^T - delta) (transposed), and dK = scale dS^T Q.
            grad_p = tl.dot(v, tl.trans(grad_out))  # (KEYS, QUERIES)
            ds = p * (grad_p - tl.load(delta + query_index)[None, :])
            grad_k = tl.dot(ds.to(k.dtype), q, grad_k)  # adds to grad_k, still without its factor

        grad_k = grad_k * scale
        _store_rows(grad_keys, key_row, stride, head, values=grad_k, ROWS=KEYS, HD=HD, PAD=PAD)
        _store_rows(grad_values, key_row, stride, head, values=grad_v, ROWS=KEYS, HD=HD, PAD=PAD)


@jit(do_not_specialize=["n", "group_size"])
def _gradient_of_bias(
    qkv,  # input (n, T, 3, HEADS, HD): query, key and value of each token
    bias,  # input (HEADS, keys, queries): added to the logits, times log2(e)
    region_row,  # input (n,): for each window, its row in `regions`; None without masks
    regions,  # input (rows, T): for each token, the number of its region; None without masks
    out,  # not used: only delta needs it, and delta is an input here
    grad,  # input (n, T, HEADS, HD): the gradient of the output, dO
    grad_stride: tl.constexpr,  # numbers from a row of dO to the next row
    log_sums,  # input (n, HEADS, T): L of each query, log2(sum over the keys of 2^logit)
    delta,  # input (n, HEADS, T): rowsum(dO O), which `_gradient_of_queries` has written before
    grad_qkv,  # not used: the two kernels above write it
    grad_bias,  # result (groups, HEADS, keys, queries): the sum of dS of each group
    n,  # number of windows
    group_size,  # number of windows of a program
    exp2_scale,  # factor of the logits, times log2(e)
    scale,  # not used
    T: tl.constexpr,  # tokens of a window
    HEADS: tl.constexpr,  # heads
    HD: tl.constexpr,  # channels of a head
    PAD: tl.constexpr,  # channels of a head with padding, a power of two
    MUTUAL: tl.constexpr,  # whether the queries come from the other frame of the pair
    HAS_BIAS: tl.constexpr,  # not used: without a bias, this kernel is not launched
    HAS_MASK: tl.constexpr,  # whether there are masks
    QUERIES: tl.constexpr,  # queries in a tile
    KEYS: tl.constexpr,  # keys in a tile
):
    """Write the sum of dS over a group of windows, a part of the gradient of the bias.

        P  = exp2(logits - L)
        dS = P (dO V^T - delta)             the gradient of the logits

    A program computes one tile of the matrix (keys, queries) of one head. E.g. T = 192 tokens,
    6 heads, tiles of 64 x 64: the matrix has 9 tiles, so there are 54 programs for each group of
    windows. Tile 5 is the part of keys 64 ... 127 and queries 128 ... 191:

                         queries    0 ... 63    64 ... 127    128 ... 191
        keys   0 ...  63            tile 0      tile 1        tile 2
        keys  64 ... 127            tile 3      tile 4        tile 5
        keys 128 ... 191            tile 6      tile 7        tile 8

    `WindowAttention.backward` adds the sums of all groups. Without a bias, this kernel is not
    launched.
    """
    # This program computes tile `tile` of head `head`, summed over the windows first ... end - 1.
    tiles_of_queries: tl.constexpr = T // QUERIES
    tiles_of_keys: tl.constexpr = T // KEYS
    tiles: tl.constexpr = tiles_of_queries * tiles_of_keys
    group = _group_of_program(HEADS, TILES=tiles)
    head, tile = _head_and_tile(HEADS, TILES=tiles)
    first, end = _windows_of_group(group, group_size, n)
    first_key = tile // tiles_of_queries * KEYS
    first_query = tile % tiles_of_queries * QUERIES

    # Pointers to the first key and the first value, and the distance from a token to the next one.
    keys = qkv + HEADS * HD
    values = qkv + 2 * HEADS * HD
    stride = 3 * HEADS * HD
    total = tl.zeros((KEYS, QUERIES), tl.float32)  # the sum of dS (transposed) so far
    # The tile of the bias is the same for all windows. So this kernel loads it once, before the
    # loop. `_logits` would load it again for each window.
    bias_pointers = _matrix_pointers(
        bias + head * T * T, row=first_key, column=first_query, T=T, ROWS=KEYS, COLUMNS=QUERIES
    )
    bias_tile = tl.load(bias_pointers).to(tl.float32)

    for window in range(first, end):
        key_row = window * T + first_key
        query_row = _window_of_queries(window, MUTUAL) * T + first_query
        out_row = window * T + first_query
        query_index = _query_index(window, head, first_query, T, HEADS, QUERIES)
        k = _load_rows(keys, key_row, stride, head, ROWS=KEYS, HD=HD, PAD=PAD)  # (KEYS, PAD)
        v = _load_rows(values, key_row, stride, head, ROWS=KEYS, HD=HD, PAD=PAD)  # (KEYS, PAD)
        q = _load_rows(qkv, query_row, stride, head, ROWS=QUERIES, HD=HD, PAD=PAD)  # (QUERIES, PAD)
        grad_out = _load_rows(grad, out_row, grad_stride, head, ROWS=QUERIES, HD=HD, PAD=PAD)

        # P = exp2(logits - L) (transposed).
        logits = _logits(
            k, q, exp2_scale, bias, region_row, regions, window,
            row=first_key, column=first_query,
            T=T, HAS_BIAS=False, HAS_MASK=HAS_MASK, ROWS=KEYS, COLUMNS=QUERIES,
        )  # fmt: skip
        logits += bias_tile
        p = tl.exp2(logits - tl.load(log_sums + query_index)[None, :])  # (KEYS, QUERIES)

        # dS = P (dO V^T - delta) (transposed).
        grad_p = tl.dot(v, tl.trans(grad_out))  # (KEYS, QUERIES)
        ds = p * (grad_p - tl.load(delta + query_index)[None, :])
        total += ds

    # Each program writes its own tile of the sum, so no two programs write to the same place.
    matrix = _bias_sum_of_group(grad_bias, group, head, T, HEADS)
    sum_pointers = _matrix_pointers(
        matrix, row=first_key, column=first_query, T=T, ROWS=KEYS, COLUMNS=QUERIES
    )
    tl.store(sum_pointers, total)


# ---- Launches --------------------------------------------------------------------------------


class _BackwardPass(NamedTuple):
    """The tensors of one backward pass, and `launch`, which starts a kernel on them.

    n: number of windows. T: tokens of a window. With mutual attention, a window of the caller has
    two frames, whose tokens attend to each other. Each of these frames counts as a window here.
    """

    qkv: Tensor  # packed queries, keys and values, n * T * 3 * heads * channels numbers
    region_row: Tensor | None  # (n,), the masks of `mask_table`, or None without masks
    regions: Tensor | None  # (rows, T), the masks of `mask_table`, or None without masks
    out: Tensor  # the output of the forward pass, O, n * T * heads * channels numbers
    grad: Tensor  # the gradient of the output, dO, in the layout that `_with_even_rows` makes
    log_sums: Tensor  # (n, heads, T), the log-sum-exp L of each row of logits
    delta: Tensor | None  # (n, heads, T), the row sums of dO O; None for `_all_gradients`
    grad_qkv: Tensor  # the result, packed like qkv: memory that the kernels fill
    scale: float  # factor of the logits, without log2(e)
    # The sizes that Triton compiles into a kernel, by name: T, HEADS, HD, PAD, MUTUAL, HAS_BIAS,
    # HAS_MASK. The same for forward and backward.
    constants: dict[str, Any]

    def launch(
        self,
        kernel: Any,
        bias: Tensor | None,
        tiles: int,
        group_size: int = 1,
        grad_bias: Tensor | None = None,
    ) -> None:
        """Start one backward kernel: a program for each head, tile and group of windows.

        The kernel writes its results into grad_qkv, delta and grad_bias.

        bias: the bias times log2(e), (heads, keys, queries). For `_gradient_of_queries` it is
            (heads, queries, keys). None if there is no bias.
        tiles: number of tiles of a head in one window.
        group_size: number of successive windows that a program goes through.
        grad_bias: memory for the sums of dS (the gradient of the logits), one sum for each group:
            (groups, heads, keys, queries). None for a kernel that does not sum dS.
        """
        n, heads, t = self.log_sums.shape
        groups = math.ceil(n / group_size)
        programs = heads * tiles * groups  # e.g. 6 heads * 6 tiles * 1000 groups = 36000
        tile = backward_tile(t)
        # `kernel[(programs,)](...)` is Triton's way to start this number of programs.
        kernel[(programs,)](
            qkv=self.qkv,
            bias=bias,
            region_row=self.region_row,
            regions=self.regions,
            out=self.out,
            grad=self.grad,
            grad_stride=self.grad.stride(1),
            log_sums=self.log_sums,
            delta=self.delta,
            grad_qkv=self.grad_qkv,
            grad_bias=grad_bias,
            n=n,
            group_size=group_size,
            exp2_scale=self.scale * LOG2_E.value,
            scale=self.scale,
            **self.constants,
            QUERIES=tile.queries,
            KEYS=tile.keys,
            num_warps=tile.warps,
            num_stages=tile.stages,
        )


class WindowAttention(torch.autograd.Function):
    """Launches the kernels: attention inside windows, with its gradients.

    Call `window_attention` below, which makes qkv contiguous. The kernels compute addresses in qkv.
    With another layout they would read wrong numbers without an error.

    test_triton.py compares all results with float64, on a CPU.
    """

    @staticmethod
    def forward(
        ctx: Any,
        qkv: Tensor,
        bias: Tensor | None,
        region_row: Tensor | None,
        regions: Tensor | None,
        scale: float,
        mutual: bool,
    ) -> Tensor:
        """Return the output, (windows, tokens, heads * channels), in the dtype of qkv.

        qkv: (windows, tokens, 3, heads, channels). bias: (heads, T, T) or None.
        region_row, regions: the masks as `mask_table` returns them.
        scale: factor of the logits.
        mutual: whether the queries of each frame of a window meet the keys of the other frame.
        """
        windows, all_tokens, _, heads, channels = qkv.shape
        # With `mutual`, each of the two frames counts as a window.
        n = 2 * windows if mutual else windows
        t = all_tokens // 2 if mutual else all_tokens
        out = qkv.new_empty(windows, all_tokens, heads * channels)
        log_sums = qkv.new_empty(n, heads, t, dtype=torch.float32)
        scaled_bias = None if bias is None else (bias * LOG2_E.value).to(qkv.dtype)
        next_power_of_two = 1 << (channels - 1).bit_length()  # e.g. 20 channels -> 32
        constants = {
            "T": t,
            "HEADS": heads,
            "HD": channels,
            "PAD": max(16, next_power_of_two),  # tl.dot needs at least 16
            "MUTUAL": mutual,
            "HAS_BIAS": bias is not None,
            "HAS_MASK": region_row is not None,
        }
        tile = forward_tile(t)
        # One program for each window, head and tile of queries. The programs share nothing, so a
        # group has one window.
        programs = n * heads * (t // tile.queries)
        group_size = 1
        _forward[(programs,)](
            qkv=qkv,
            bias=scaled_bias,
            region_row=region_row,
            regions=regions,
            out=out,
            log_sums=log_sums,
            n=n,
            group_size=group_size,
            exp2_scale=scale * LOG2_E.value,
            **constants,
            QUERIES=tile.queries,
            KEYS=tile.keys,
            num_warps=tile.warps,
            num_stages=tile.stages,
        )
        ctx.save_for_backward(qkv, scaled_bias, region_row, regions, out, log_sums)
        ctx.scale = scale
        ctx.constants = constants
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of qkv and of the bias. grad: the gradient of the output.

        The bias gets no gradient if it is None. For its gradient, each group of windows writes one
        sum of dS, and the sums are added at the end.
        """
        qkv, scaled_bias, region_row, regions, out, log_sums = ctx.saved_tensors
        t = log_sums.shape[2]  # tokens of a window
        is_one_pass = t <= MOST_TOKENS_OF_ONE_PASS
        grad_qkv = torch.empty_like(qkv)
        work = _BackwardPass(
            qkv=qkv,
            region_row=region_row,
            regions=regions,
            out=out,
            grad=_with_even_rows(grad),
            log_sums=log_sums,
            delta=None if is_one_pass else torch.empty_like(log_sums),
            grad_qkv=grad_qkv,
            scale=ctx.scale,
            constants=ctx.constants,
        )
        transposed_bias = None
        if scaled_bias is not None:
            transposed_bias = scaled_bias.transpose(1, 2).contiguous()

        # The launches fill grad_qkv. They return the sums of dS, one for each group of windows.
        if is_one_pass:
            sums = _launch_one_pass(work, transposed_bias)
        else:
            sums = _launch_several_passes(work, scaled_bias, transposed_bias)
        grad_bias = None
        if sums is not None:
            grad_bias = sums.sum(0).transpose(1, 2)  # (heads, queries, keys)
        # One result for each argument of forward.
        return grad_qkv, grad_bias, None, None, None, None


def _launch_one_pass(work: _BackwardPass, transposed_bias: Tensor | None) -> Tensor | None:
    """Compute all gradients of windows of up to 128 tokens, by one launch of `_all_gradients`.

    transposed_bias: the bias times log2(e), (heads, keys, queries), or None.

    Returns the sums of dS (the gradient of the logits), one for each group of windows,
    (groups, heads, keys, queries). Returns None without a bias.
    """
    # Without a bias a group has one window, so that as many programs as possible run.
    group_size = 1
    sums = None
    if transposed_bias is not None:
        group_size = _group_size(work.log_sums, tiles=1)
        sums = _memory_for_sums(work.log_sums, group_size)
    work.launch(_all_gradients, transposed_bias, tiles=1, group_size=group_size, grad_bias=sums)
    return sums


def _launch_several_passes(
    work: _BackwardPass, scaled_bias: Tensor | None, transposed_bias: Tensor | None
) -> Tensor | None:
    """Compute the gradients of windows of more than 128 tokens, by two or three launches.

    scaled_bias: the bias times log2(e), (heads, queries, keys), or None.
    transposed_bias: the same numbers, (heads, keys, queries), or None.

    Returns the sums of dS, (groups, heads, keys, queries), or None without a bias.
    """
    t = work.log_sums.shape[2]  # tokens of a window
    tile = backward_tile(t)
    # `_gradient_of_queries` first, because it writes delta, which the other kernels read. In these
    # two launches a group has one window, so that as many programs as possible run.
    work.launch(_gradient_of_queries, scaled_bias, tiles=t // tile.queries)
    work.launch(_gradients_of_keys, transposed_bias, tiles=t // tile.keys)
    if transposed_bias is None:
        return None

    tiles = (t // tile.queries) * (t // tile.keys)
    group_size = _group_size(work.log_sums, tiles)
    sums = _memory_for_sums(work.log_sums, group_size)
    work.launch(
        _gradient_of_bias, transposed_bias, tiles=tiles, group_size=group_size, grad_bias=sums
    )
    return sums


def _with_even_rows(grad: Tensor) -> Tensor:
    """Return the gradient (windows, tokens, channels) with its rows at equal distances in memory.

    A row is the channels of a token. The gradient is copied if the kernels cannot read it. They
    need the channels of a row side by side. They also need the same distance from each row to the
    next row. This includes the step from one window to the next window.
    """
    is_even = grad.stride(0) == grad.shape[1] * grad.stride(1)
    if grad.stride(2) == 1 and is_even:
        return grad
    return grad.contiguous()


def _group_size(log_sums: Tensor, tiles: int) -> int:
    """Return how many windows a program goes through, if it sums the gradient of the bias.

    All heads, tiles and groups together should be about PROGRAMS programs. E.g. 6 heads, 1 tile,
    1000 windows: 528 / 6 = 88 programs for each head, so 12 windows for each program. Another
    number of windows changes the order of the sum, and so the last bits of the gradient.

    log_sums: (n, heads, T). tiles: number of tiles of a head in one window.
    """
    n, heads, _ = log_sums.shape
    programs = math.ceil(PROGRAMS / (tiles * heads))  # for each tile of a head
    return math.ceil(n / programs)


def _memory_for_sums(log_sums: Tensor, group_size: int) -> Tensor:
    """Return memory for the gradient of the bias of each group: (groups, heads, T, T), float32."""
    n, heads, t = log_sums.shape
    groups = math.ceil(n / group_size)
    return log_sums.new_empty(groups, heads, t, t)  # in the dtype of log_sums, float32


# 256 results: windows.window_chunks caches 128 plans of chunks, and each plan may need two tables
# here, one for self attention and one for mutual attention. With fewer results, tables would be
# made again.
@lru_cache(maxsize=256)
# The tables are saved for backward. torch does not save tensors that are made in inference mode, so
# this mode is off here.
@torch.inference_mode(False)
def mask_table(
    spans: tuple[Span, ...], tokens: int, mutual: bool, device: torch.device
) -> tuple[Tensor | None, Tensor | None]:
    """Return what the kernels read in place of masks, or (None, None) if no window has a mask.

    spans: ranges of successive windows. All windows of a span have the same mask.
    tokens: number of tokens that attend to each other, T.

    Returns (region_row, regions), both int32. regions (rows, T) has a row for each span: the number
    of the region of each token. region_row (n,) has for each window the number of its row. E.g. two
    spans of 3 and 2 windows: region_row is 0 0 0 1 1. Tokens of one region attend to each other.

    The result is cached: do not change the tensors.
    """
    if all(span.mask is None for span in spans):
        return None, None
    regions = []
    for span in spans:
        if span.mask is None:  # one region for all tokens
            regions.append(torch.zeros(tokens, dtype=torch.int32, device=device))
        else:
            # Tokens of one region have the same row of the mask. The first 0 in the row is the
            # first token of the region. The number of this token becomes the number of the region.
            # E.g. tokens 0 to 3 and tokens 4 to 7 are two regions: 0 0 0 0 4 4 4 4. With `mutual`,
            # the mask of the first frame is enough, because both frames have the same mask.
            attends = span.mask[:tokens, :tokens] == 0
            regions.append(attends.float().argmax(1).to(device, torch.int32))
    frames = 2 if mutual else 1  # with `mutual`, each of the two frames counts as a window
    windows_of_spans = torch.tensor([(span.stop - span.start) * frames for span in spans])
    region_row = torch.arange(len(spans)).repeat_interleave(windows_of_spans)
    return region_row.to(device, torch.int32), torch.stack(regions)


def window_attention(
    qkv: Tensor, bias: Tensor | None, spans: tuple[Span, ...], scale: float, mutual: bool
) -> Tensor:
    """Return the attention of each window, (n, T, heads * channels).

    models.vrt.attention.window_attention calls this with its own arguments, and explains them.
    """
    frames_of_window = 2 if mutual else 1
    tokens = qkv.shape[1] // frames_of_window
    region_row, regions = mask_table(spans, tokens, mutual, qkv.device)
    return WindowAttention.apply(qkv.contiguous(), bias, region_row, regions, scale, mutual)

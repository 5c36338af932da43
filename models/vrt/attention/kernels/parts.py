"""Functions that several attention kernels call: which part a program computes, addresses, logits.

The kernels are written in Triton's language, which looks like Python. Words of Triton:

    program    one instance of a kernel. A launch starts many programs. The number of a program,
               tl.program_id(0), decides what it computes
    tile       the part of a matrix that a program computes at a time, in its registers
    pointer    the address of a number in memory. If `qkv` points to the first number of a tensor,
               `qkv + 5` points to the sixth number
    group      successive windows that one program goes through

Names in capitals are constants that Triton compiles into a kernel (`tl.constexpr`):

    TOKENS      tokens of a window, e.g. 6 x 8 x 8 = 384
    HEADS       heads, e.g. 6
    CHANNELS    channels of a head, e.g. 120 / 6 = 20
    PADDED      CHANNELS, rounded up to a power of two, which Triton needs, e.g. 32. A tile of q, k
                or v has PADDED columns. The columns CHANNELS ... PADDED - 1 are padding
    MUTUAL      whether the attention is mutual. In this case a window has the tokens of one frame,
                and the windows 2 i and 2 i + 1 show one place in the two frames of a pair. The keys
                of a window meet the queries of the other window of the pair

A row is what a tensor holds of one token: the channels of all heads. Rows are numbered through all
windows, so token 5 of window 2 is row 2 * TOKENS + 5. A tile has no rows beyond its window, because
TOKENS is a multiple of the sides of a tile (tiles.py). At the border of a clip, a window may have
positions without a token. The kernels treat these positions like all other rows. Their keys and
values count, as in the published network, and the block leaves out their outputs (block.py).

What must stay:

    The addresses, and the logits up to rounding. tests/parts/models/test_triton.py compares both
    with float64. The test needs no GPU, because Triton's interpreter runs the kernels on a CPU.
    test_cuda.py does the same on a GPU.

    The order of operations in `_logits`. Another order changes the last bits of a training, so
    existing runs would not resume exactly. No test notices.

Free to change: how an address is computed. The names begin with an underscore, because only the
kernels of this folder call these functions.
"""

from typing import Any

import triton
import triton.language

# Any keeps the type checker from checking kernels as if they were Python.
tl: Any = triton.language
jit: Any = triton.jit
# The kernels compute e^x as 2^(x log2(e)), because exp2 is faster than exp. So all logits here are
# already multiplied by log2(e). A kernel can read a global constant only if it is a tl.constexpr.
LOG2_E = tl.constexpr(1.4426950408889634)
# Added to the logit of two tokens that must not attend to each other: -100, times log2(e). So
# their weight gets the factor e^-100, about 4e-44.
# models.vrt.windows.MASKED is the same number without log2(e). Change both together.
MASKED = tl.constexpr(-100.0 * 1.4426950408889634)

# ---- Which part a program computes ------------------------------------------------------------


@jit
def _head_and_tile(HEADS: tl.constexpr, TILES: tl.constexpr):
    """Return the number of the head and the number of the tile that this program computes.

    TILES: number of tiles of a head in one window.

    Programs with successive numbers have successive heads. The heads of a token lie side by side in
    memory, so these programs read the same cache lines. Another order would give the same results,
    but more slowly. E.g. 6 heads and 2 tiles:

        programs 0 ... 5      the heads of tile 0
        programs 6 ... 11     the heads of tile 1
        program 12            head 0 of tile 0, in the next group of windows
    """
    program = tl.program_id(0)
    head = program % HEADS
    # Python computes from left to right: (program // HEADS) % TILES. E.g. program 12 has the tile
    # (12 // 6) % 2 = 0.
    tile = program // HEADS % TILES
    return head, tile


@jit
def _group_of_program(HEADS: tl.constexpr, TILES: tl.constexpr):
    """Return the number of the group of windows that this program goes through.

    E.g. 6 heads and 2 tiles: programs 0 to 11 have group 0, programs 12 to 23 have group 1.
    """
    return tl.program_id(0) // (HEADS * TILES)


@jit
def _windows_of_group(group, group_size, window_count):
    """Return the first window of a group, and the window after its last window.

    E.g. 10 windows in groups of 4: (0, 4) for group 0, and (8, 10) for group 2.

    group_size: number of successive windows in a group. The last group may have fewer windows.
    """
    first = group * group_size
    return first, tl.minimum(first + group_size, window_count)


@jit
def _window_of_queries(window, MUTUAL: tl.constexpr):
    """Return the number of the window whose queries meet the keys of `window`.

    Without MUTUAL, the queries of a window meet the keys of the same window. With MUTUAL, the
    windows 2 i and 2 i + 1 show the same place in the two frames of a pair. The queries of one of
    these windows meet the keys of the other. `window ^ 1` is the number of the other window,
    because `^ 1` inverts the last bit: 0 -> 1, 1 -> 0, 2 -> 3, 3 -> 2.

    With MUTUAL, a kernel reads and writes at two windows. E.g. for window 0:

        q and dQ                                        are in the rows of window 1
        k, v, dK, dV, output, dO, log_sums and delta    are in the rows of window 0

    The output is a sum of values, so it belongs to the window of the keys and values, as in the
    published network (attention/layer.py).
    """
    if MUTUAL:
        return window ^ 1
    return window


# ---- Rows of a head ----------------------------------------------------------------------------
#
# A kernel computes one head. A tensor has the channels of all heads side by side in a row, so the
# kernel first moves its pointers to the channels of its head in row 0. From there, `stride` numbers
# lead to the same channels of the next row.


@jit
def _parts_of_head(qkv, head, HEADS: tl.constexpr, CHANNELS: tl.constexpr):
    """Return pointers to the query, the key and the value of one head in row 0.

    qkv is (windows, TOKENS, 3, HEADS, CHANNELS), so a row holds the queries of all heads, then the
    keys, then the values. E.g. 6 heads of 20 channels, where a row has 3 * 6 * 20 = 360 numbers:

        number       0 ... 119    120 ... 239    240 ... 359    360 ... 479    ...
        row          0            0              0              1
        holds        queries      keys           values         queries
        of head 2    40 ... 59    160 ... 179    280 ... 299    400 ... 419

    Head 2 begins at the numbers 40, 160 and 280. grad_qkv has the same order, so this function also
    returns where the gradients of a head are.
    """
    queries = qkv + head * CHANNELS
    keys = queries + HEADS * CHANNELS
    values = keys + HEADS * CHANNELS
    return queries, keys, values


@jit
def _row_pointers(tensor_of_head, first_row, stride, ROWS: tl.constexpr, PADDED: tl.constexpr):
    """Return pointers to the channels of a head in successive rows, (ROWS, PADDED).

    E.g. head 2 of q in the rows 384 ... 447, for 6 heads of 20 channels: tensor_of_head is
    qkv + 40, first_row 384, stride 360 and ROWS 64. Entry (r, c) points to number
    40 + (384 + r) * 360 + c of qkv.

    tensor_of_head: pointer to the channels of the head in row 0.
    first_row: number of the first row.
    stride: distance from one row to the next row, in numbers of the tensor.
    PADDED: number of columns, at least CHANNELS.

    The columns CHANNELS ... PADDED - 1 point to the next head, or beyond the end of the tensor. So
    `_load_rows` and `_store_rows` leave them out.
    """
    # The tile of a large tensor may begin beyond 2^31 numbers, so this index needs 64 bits. Within
    # the tile 32 bits are enough, and faster.
    begin = tensor_of_head + tl.cast(first_row, tl.int64) * stride
    # Channel c of row r lies r * stride + c numbers after `begin`. The column (ROWS, 1) plus the
    # row (1, PADDED) is (ROWS, PADDED).
    return begin + tl.arange(0, ROWS)[:, None] * stride + tl.arange(0, PADDED)[None, :]


@jit
def _load_rows(
    tensor_of_head, first_row, stride,
    ROWS: tl.constexpr, CHANNELS: tl.constexpr, PADDED: tl.constexpr,
):  # fmt: skip
    """Load ROWS successive rows of a head, (ROWS, PADDED).

    The columns CHANNELS ... PADDED - 1, the padding, are 0. So they add nothing to a sum over the
    channels, e.g. to q k^T.

    The arguments are as in `_row_pointers`. The rows must exist, because no row is checked.
    """
    pointers = _row_pointers(tensor_of_head, first_row, stride, ROWS, PADDED)
    if CHANNELS == PADDED:
        return tl.load(pointers)
    return tl.load(pointers, mask=tl.arange(0, PADDED)[None, :] < CHANNELS, other=0.0)


@jit
def _store_rows(
    tensor_of_head, first_row, stride, values,
    ROWS: tl.constexpr, CHANNELS: tl.constexpr, PADDED: tl.constexpr,
):  # fmt: skip
    """Store values (ROWS, PADDED) to ROWS successive rows of a head.

    The columns CHANNELS ... PADDED - 1, the padding, are not stored, because the next head lies at
    their places. The values are converted to the dtype of the tensor.

    The other arguments are as in `_row_pointers`.
    """
    pointers = _row_pointers(tensor_of_head, first_row, stride, ROWS, PADDED)
    values = values.to(pointers.dtype.element_ty)
    if CHANNELS == PADDED:
        tl.store(pointers, values)
    else:
        tl.store(pointers, values, mask=tl.arange(0, PADDED)[None, :] < CHANNELS)


@jit
def _query_index(
    window, head, first_query, TOKENS: tl.constexpr, HEADS: tl.constexpr, QUERIES: tl.constexpr
):
    """Return the places of the queries of a tile in log_sums and delta, (QUERIES,).

    Both tensors are (windows, HEADS, TOKENS). E.g. 128 tokens, 6 heads, window 1, head 2,
    first_query 64: (1 * 6 + 2) * 128 + 64 = 1088, so the places are 1088, 1089, and so on.
    """
    return (window * HEADS + head) * TOKENS + first_query + tl.arange(0, QUERIES)


# ---- Matrices of all pairs of tokens -----------------------------------------------------------


@jit
def _tile_pointers(
    matrix, first_row, first_column,
    TOKENS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Return pointers to a tile (ROWS, COLUMNS) of a matrix (TOKENS, TOKENS).

    E.g. 384 tokens, first_row 64, first_column 128: entry (r, c) points to number
    (64 + r) * 384 + 128 + c of the matrix.

    matrix: pointer to the upper left element of the matrix, whose rows lie TOKENS numbers apart.
    first_row, first_column: where the upper left element of the tile is in the matrix.
    """
    upper_left = matrix + first_row * TOKENS + first_column
    return upper_left + tl.arange(0, ROWS)[:, None] * TOKENS + tl.arange(0, COLUMNS)[None, :]


@jit
def _bias_of_head(bias, head, TOKENS: tl.constexpr, HAS_BIAS: tl.constexpr):
    """Return a pointer to the bias of a head, a matrix (TOKENS, TOKENS), or None without a bias."""
    if HAS_BIAS:
        return bias + head * TOKENS * TOKENS
    return bias  # None


@jit
def _sum_of_group(grad_bias, group, head, TOKENS: tl.constexpr, HEADS: tl.constexpr):
    """Return a pointer to the sum of dS over a group of windows, for one head.

    dS is the gradient of the logits. The sum is a matrix (TOKENS, TOKENS) of
    grad_bias (groups, HEADS, TOKENS, TOKENS).
    """
    # 64 bits, because grad_bias of many groups may have more than 2^31 numbers.
    return grad_bias + (group * HEADS + head).to(tl.int64) * TOKENS * TOKENS


# ---- Logits ------------------------------------------------------------------------------------


@jit
def _regions_of_window(regions, region_row, window, TOKENS: tl.constexpr, HAS_MASK: tl.constexpr):
    """Return a pointer to the regions of a window, (TOKENS,), or None without masks.

    regions: (rows, TOKENS), for each token the number of its region. Only tokens of the same region
        attend to each other.
    region_row: (windows,), for each window its row in `regions`.

    regions.mask_table makes both tensors.
    """
    if HAS_MASK:
        return regions + tl.load(region_row + window) * TOKENS
    return regions  # None


@jit
def _logits(
    x, y, exp2_scale, bias, regions, first_row, first_column,
    TOKENS: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_MASK: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Compute a tile (ROWS, COLUMNS) of the logits of a window, a matrix (TOKENS, TOKENS):

        logits = exp2_scale x y^T + bias + mask

    A kernel calls this function in one of two ways:

        result                        x    y    bias              rows       columns
        logits (queries, keys)        q    k    (queries, keys)   queries    keys
        transposed (keys, queries)    k    q    (keys, queries)   keys       queries

    x: tile of q or k, (ROWS, PADDED).
    y: tile of k or q, (COLUMNS, PADDED).
    exp2_scale: scale * log2(e).
    bias: pointer to the bias of this head times log2(e), a matrix (TOKENS, TOKENS).
    regions: pointer to the regions of this window, (TOKENS,).
    first_row, first_column: where the upper left element of the tile is in the matrix. x begins at
        token `first_row` of the window, and y at token `first_column`.

    If you change how the bias is added, change `gradient_of_bias` (several_passes.py), too, because
    this kernel adds the bias itself.
    """
    logits = tl.dot(x, tl.trans(y)) * exp2_scale
    if HAS_BIAS:
        pointers = _tile_pointers(bias, first_row, first_column, TOKENS, ROWS, COLUMNS)
        logits += tl.load(pointers).to(tl.float32)
    if HAS_MASK:
        of_rows = tl.load(regions + first_row + tl.arange(0, ROWS))  # (ROWS,)
        of_columns = tl.load(regions + first_column + tl.arange(0, COLUMNS))  # (COLUMNS,)
        is_same_region = of_rows[:, None] == of_columns[None, :]
        logits = tl.where(is_same_region, logits, logits + MASKED)
    return logits

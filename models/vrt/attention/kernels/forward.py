"""The forward kernel of window attention, in Triton: O = softmax(scale q k^T + bias + mask) v.

For each query the kernel writes the output O, and one number for the backward pass: L, the
log-sum-exp of its logits,

    L = log2(sum over the keys of 2^logit),     logit = (scale q k^T + bias + mask) log2(e)

The base is 2 because exp2 is faster than exp. The factor log2(e) turns 2^logit into the e^x of the
softmax: 2^(x log2(e)) = e^x.

The kernel goes through the keys once, tile by tile, and never holds a whole row of logits (the
"online softmax"). After each tile it has, for each query,

    top    = the largest logit so far
    total  = sum of 2^(logit - top) over the keys so far
    result = sum of 2^(logit - top) v over the keys so far

Subtracting top keeps 2^x from overflowing. If a tile has a larger logit, this logit becomes the new
top, and total and result are multiplied by 2^(old top - new top), as if the new top had been
subtracted from the start. After the last tile O = result / total, and L = top + log2(total).

What must hold: TOKENS is a multiple of QUERIES and of KEYS, the two sides of a tile (tiles.py). The
kernel does not check where a window ends, so a tile beyond its end would take tokens of the next
window. The results would be wrong, without an error.

What must stay: the order of the keys and the size of the tiles, because another order changes the
last bits of a training. No test notices another order. tests/parts/models/test_triton.py compares
the results with float64, but it runs the kernels in Triton's interpreter, which sums in an order of
its own. So after a change, compare the bits before and after it on a GPU.

Free to change: names, and how an address is computed. A new argument needs a line in
`launch_forward` (launches.py).
"""

from models.vrt.attention.kernels.parts import (
    _bias_of_head,
    _group_of_program,
    _head_and_tile,
    _load_rows,
    _logits,
    _parts_of_head,
    _query_index,
    _regions_of_window,
    _store_rows,
    _window_of_queries,
    _windows_of_group,
    jit,
    tl,
)


# do_not_specialize: by default Triton compiles a kernel again for an argument that is 1 or
# divisible by 16. Both arguments change with the size of the frames.
@jit(do_not_specialize=["window_count", "group_size"])
def forward_kernel(
    # Inputs. Tensors arrive as pointers to their first number. All are contiguous.
    qkv,  # (windows, TOKENS, 3, HEADS, CHANNELS): query, key and value of each token
    bias,  # (HEADS, queries, keys): added to the logits, times log2(e); or None
    region_row,  # (windows,): for each window, its row in `regions`; None without masks
    regions,  # (rows, TOKENS): for each token, the number of its region (regions.py). Only tokens
    #           of the same region attend to each other. None without masks
    # Results.
    out,  # (windows, TOKENS, HEADS, CHANNELS): O
    log_sums,  # (windows, HEADS, TOKENS): L
    # Numbers.
    window_count,
    group_size,  # number of successive windows that a program goes through
    exp2_scale,  # scale * log2(e): the factor of q k^T in the logits, because 2^x replaces e^x
    # Constants, which Triton compiles into the kernel.
    TOKENS: tl.constexpr,  # tokens of a window
    HEADS: tl.constexpr,  # heads
    CHANNELS: tl.constexpr,  # channels of a head
    PADDED: tl.constexpr,  # CHANNELS, rounded up to a power of two, at least 16
    MUTUAL: tl.constexpr,  # whether the queries come from the other frame of the pair
    HAS_BIAS: tl.constexpr,  # whether there is a bias
    HAS_MASK: tl.constexpr,  # whether there are masks
    QUERIES: tl.constexpr,  # queries in a tile. It divides TOKENS
    KEYS: tl.constexpr,  # keys in a tile. It divides TOKENS
):
    """Write O and L of one tile of queries of one head, in each window of a group.

    E.g. windows of 6 x 8 x 8 = 384 tokens, 120 channels in 6 heads, tiles of 128 queries and 64
    keys, groups of one window: 6 heads x 3 tiles = 18 programs for each window.

        program    head    tile    queries        window
        0          0       0         0 ... 127    0
        1          1       0         0 ... 127    0
        6          0       1       128 ... 255    0
        18         0       0         0 ... 127    1

    A row is a token, counted through all windows, so window 1 begins at row 384. Program 18 reads q
    in the rows 384 ... 511, and k and v in the rows 384 ... 767, 64 rows at a time. It writes O
    in the rows 384 ... 511. Head 0 has the channels 0 ... 19 of the 120.

    A head has CHANNELS = 20 channels here, and PADDED = 32. The columns 20 ... 31 of q, k and v are
    loaded as 0, so they add nothing to q k^T. The columns 20 ... 31 of O are not stored.
    """
    # The head, the tile and the windows of this program: first_window ... end_window - 1. The next
    # two functions compute them from the number of the program (tl.program_id).
    group = _group_of_program(HEADS, TILES=TOKENS // QUERIES)
    head, tile = _head_and_tile(HEADS, TILES=TOKENS // QUERIES)
    first_window, end_window = _windows_of_group(group, group_size, window_count)
    first_query = tile * QUERIES  # number of a token within its window

    # Pointers to the channels of this head in row 0. A stride is the distance from a row to the
    # next row, in numbers.
    q_of_head, k_of_head, v_of_head = _parts_of_head(qkv, head, HEADS, CHANNELS)
    qkv_stride = 3 * HEADS * CHANNELS
    out_of_head = out + head * CHANNELS
    out_stride = HEADS * CHANNELS
    bias_of_head = _bias_of_head(bias, head, TOKENS, HAS_BIAS)

    for window in range(first_window, end_window):
        regions_of_window = _regions_of_window(regions, region_row, window, TOKENS, HAS_MASK)
        # With MUTUAL, the two frames of a pair are two windows, e.g. 0 and 1. The queries of one
        # frame meet the keys of the other frame. E.g. for window 0:
        #
        #     q                    in the rows of window 1
        #     k, v, out, L         in the rows of window 0
        query_row = _window_of_queries(window, MUTUAL) * TOKENS + first_query
        # q is (QUERIES, PADDED).
        q = _load_rows(q_of_head, query_row, qkv_stride, QUERIES, CHANNELS, PADDED)
        # No logit so far: the largest is -infinity, and the sums are 0. The sums are float32, also
        # for qkv in 16 bits.
        top = tl.full((QUERIES,), -float("inf"), tl.float32)
        total = tl.zeros((QUERIES,), tl.float32)
        result = tl.zeros((QUERIES, PADDED), tl.float32)

        for first_key in range(0, TOKENS, KEYS):
            key_row = window * TOKENS + first_key
            # k and v are (KEYS, PADDED).
            k = _load_rows(k_of_head, key_row, qkv_stride, KEYS, CHANNELS, PADDED)
            v = _load_rows(v_of_head, key_row, qkv_stride, KEYS, CHANNELS, PADDED)
            # exp2_scale q k^T + bias + mask, (QUERIES, KEYS).
            logits = _logits(
                q, k, exp2_scale, bias_of_head, regions_of_window,
                first_row=first_query, first_column=first_key,
                TOKENS=TOKENS, HAS_BIAS=HAS_BIAS, HAS_MASK=HAS_MASK, ROWS=QUERIES, COLUMNS=KEYS,
            )  # fmt: skip
            new_top = tl.maximum(top, tl.max(logits, 1))  # (QUERIES,)
            weights = tl.exp2(logits - new_top[:, None])  # (QUERIES, KEYS)
            # (QUERIES,): 0 for the first tile of keys, 1 if the top has not changed. The factor is
            # never NaN, because a mask adds a finite number, so `new_top` is not -infinity.
            factor = tl.exp2(top - new_top)
            total = total * factor + tl.sum(weights, 1)
            # tl.dot(a, b, c) is a b + c: here weights v + result * factor.
            result = tl.dot(weights.to(v.dtype), v, result * factor[:, None])
            top = new_top

        # The output belongs to the window of the keys, also with MUTUAL (`_window_of_queries`).
        out_row = window * TOKENS + first_query
        output = result / total[:, None]  # (QUERIES, PADDED)
        _store_rows(out_of_head, out_row, out_stride, output, QUERIES, CHANNELS, PADDED)
        # The places of these queries in log_sums, (QUERIES,).
        query_index = _query_index(window, head, first_query, TOKENS, HEADS, QUERIES)
        tl.store(log_sums + query_index, top + tl.log2(total))

"""The backward kernel of window attention for windows of up to 128 tokens, in Triton.

One program computes all gradients of one head, in the windows of a group, one after the other. The
equations, where dO is the gradient of the output O:

    P     = 2^(logit - L)       the weights of the attention
    dV    = P^T dO
    dP    = dO V^T              the gradient of the weights
    delta = rowsum(dO * O)      one number for each query
    dS    = P * (dP - delta)    the gradient of the logits
    dQ    = scale dS K
    dK    = scale dS^T Q
    dbias = the sum of dS over all windows

A * B is the product number by number, and A B the matrix product. In L and P, `logit` is
(scale q k^T + bias + mask) log2(e), because the kernels compute powers of 2. dS is the gradient of
scale q k^T + bias + mask.

The forward kernel has saved O and L = log2(sum over the keys of 2^logit). P was not saved, because
it has TOKENS x TOKENS numbers for each window and head. P is computed again, as in FlashAttention-2
(Dao 2023, arXiv 2307.08691). dS is not written for each window, either. A program sums dS in its
registers, and writes one sum for its group of windows.

P, dP and dS are computed transposed, (KEYS, QUERIES), because dV and dK need P^T and dS^T.
Transposing them afterwards would be slower, because it needs shared memory.

What must stay: the order of the sums, because another order changes the last bits of a training.
The sizes of the tiles are part of this order. No test notices another order:
tests/parts/models/test_triton.py compares the results with float64, but it runs the kernels in
Triton's interpreter, which sums in an order of its own. So after a change, compare the bits before
and after it on a GPU. Each sum is added up by one program, so a step always gives the same numbers.

Free to change: names, and how an address is computed. A new argument needs a line in each kernel of
several_passes.py, and in `BackwardPass.launch` (launches.py), because this function launches all
backward kernels with the same arguments.
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
    _sum_of_group,
    _tile_pointers,
    _window_of_queries,
    _windows_of_group,
    jit,
    tl,
)


# do_not_specialize: by default Triton compiles a kernel again for an argument that is 1 or
# divisible by 16. Both arguments change with the size of the frames.
@jit(do_not_specialize=["window_count", "group_size"])
def all_gradients(
    # Inputs. Tensors arrive as pointers to their first number. All but `grad` are contiguous.
    qkv,  # (windows, TOKENS, 3, HEADS, CHANNELS): query, key and value of each token
    bias,  # (HEADS, keys, queries): added to the logits, already times log2(e); or None
    region_row,  # (windows,): for each window, its row in `regions`; None without masks
    regions,  # (rows, TOKENS): for each token, the number of its region (regions.py). Only tokens
    #           of the same region attend to each other. None without masks
    out,  # (windows, TOKENS, HEADS, CHANNELS): O
    grad,  # (windows, TOKENS, HEADS, CHANNELS): dO
    grad_stride: tl.constexpr,  # numbers from the dO of a token to the dO of the next token:
    #                             HEADS * CHANNELS, or more if dO is a part of a wider tensor
    log_sums,  # (windows, HEADS, TOKENS): L of each query
    delta,  # None, because this kernel computes delta where it needs it
    # Results.
    grad_qkv,  # (windows, TOKENS, 3, HEADS, CHANNELS): dQ, dK and dV of each token
    grad_bias,  # (groups, HEADS, keys, queries): the sum of dS of each group; or None
    # Numbers.
    window_count,
    group_size,  # number of successive windows that a program goes through
    exp2_scale,  # scale * log2(e): the factor of q k^T in the logits of the code, because 2^x
    #              replaces e^x
    scale,  # the factor of q k^T in the logits of the network, and so of dQ and dK
    # Constants, which Triton compiles into the kernel.
    TOKENS: tl.constexpr,  # tokens of a window
    HEADS: tl.constexpr,  # heads
    CHANNELS: tl.constexpr,  # channels of a head
    PADDED: tl.constexpr,  # CHANNELS, rounded up to a power of two, at least 16
    MUTUAL: tl.constexpr,  # whether the queries come from the other frame of the pair
    HAS_BIAS: tl.constexpr,  # whether there is a bias
    HAS_MASK: tl.constexpr,  # whether there are masks
    QUERIES: tl.constexpr,  # queries in a tile: 64
    KEYS: tl.constexpr,  # keys in a tile: TOKENS
):
    """Write dQ, dK and dV of one head in a group of windows, and the sum of dS over the group.

        equation                    in the code    shape
        P     = 2^(logit - L)       weights        (KEYS, QUERIES): P^T, computed again
        dV    = P^T dO              grad_v         (KEYS, PADDED)
        dP    = dO V^T              grad_p         (KEYS, QUERIES): dP^T
        delta = rowsum(dO * O)      row_delta      (QUERIES,)
        dS    = P * (dP - delta)    grad_s         (KEYS, QUERIES): dS^T
        dQ    = scale dS K          grad_q         (QUERIES, PADDED)
        dK    = scale dS^T Q        grad_k         (KEYS, PADDED)

    dO is the gradient of the output O, L the log-sum-exp, and rowsum the sum over the channels.

    E.g. 1000 windows of 2 x 8 x 8 = 128 tokens, 120 channels in 6 heads, groups of 12 windows:
    84 groups x 6 heads = 504 programs.

        program    head    windows         rows (tokens, counted through all windows)
        0          0         0 ...  11        0 ...   1,535
        5          5         0 ...  11        0 ...   1,535
        7          1        12 ...  23    1,536 ...   3,071
        503        5       996 ... 999  127,488 ... 127,999

    In each window the program computes two tiles, one after the other: all 128 keys with the
    queries 0 ... 63, then all 128 keys with the queries 64 ... 127.

    A head has CHANNELS = 20 channels here, and PADDED = 32. The columns 20 ... 31 of q, k, v, dO
    and O are loaded as 0, so they add nothing to a product. These columns of dQ, dK and dV are not
    stored.
    """
    # A tile has all keys of a window, because this kernel has no loop over tiles of keys. A window
    # has at most two tiles of queries, because two variables hold the sums of dS.
    tl.static_assert(KEYS == TOKENS and TOKENS // QUERIES <= 2)
    # The head and the windows of this program: first_window ... end_window - 1. TILES is 1, because
    # one program computes all tiles of a window. So the number of the tile, the second result of
    # `_head_and_tile`, is always 0.
    group = _group_of_program(HEADS, TILES=1)
    head, _ = _head_and_tile(HEADS, TILES=1)
    first_window, end_window = _windows_of_group(group, group_size, window_count)

    # Pointers to the channels of this head in row 0. A stride is the distance from a row to the
    # next row, in numbers.
    q_of_head, k_of_head, v_of_head = _parts_of_head(qkv, head, HEADS, CHANNELS)
    grad_q_of_head, grad_k_of_head, grad_v_of_head = _parts_of_head(grad_qkv, head, HEADS, CHANNELS)
    qkv_stride = 3 * HEADS * CHANNELS
    out_of_head = out + head * CHANNELS
    grad_of_head = grad + head * CHANNELS
    out_stride = HEADS * CHANNELS
    bias_of_head = _bias_of_head(bias, head, TOKENS, HAS_BIAS)
    # The sums of dS^T over the windows, for the first and for the second tile of queries. Triton
    # has no arrays of registers, so they are two variables.
    first_sum = tl.zeros((KEYS, QUERIES), tl.float32)
    second_sum = tl.zeros((KEYS, QUERIES), tl.float32)

    for window in range(first_window, end_window):
        regions_of_window = _regions_of_window(regions, region_row, window, TOKENS, HAS_MASK)
        # k, v, grad_k and grad_v are (KEYS, PADDED). dK and dV are sums over the queries.
        key_row = window * TOKENS
        k = _load_rows(k_of_head, key_row, qkv_stride, KEYS, CHANNELS, PADDED)
        v = _load_rows(v_of_head, key_row, qkv_stride, KEYS, CHANNELS, PADDED)
        grad_k = tl.zeros((KEYS, PADDED), tl.float32)
        grad_v = tl.zeros((KEYS, PADDED), tl.float32)

        # One or two tiles of queries. static_range unrolls the loop, so Triton decides the `if`
        # below when it compiles the kernel.
        for first_query in tl.static_range(0, TOKENS, QUERIES):
            # With MUTUAL, the two frames of a pair are two windows, e.g. 0 and 1. The queries of
            # one frame meet the keys of the other frame. E.g. for window 0:
            #
            #     q and dQ                 in the rows of window 1
            #     output, dO, L, k, v      in the rows of window 0
            query_row = _window_of_queries(window, MUTUAL) * TOKENS + first_query
            out_row = window * TOKENS + first_query
            # q, grad_out and output are (QUERIES, PADDED).
            q = _load_rows(q_of_head, query_row, qkv_stride, QUERIES, CHANNELS, PADDED)
            grad_out = _load_rows(grad_of_head, out_row, grad_stride, QUERIES, CHANNELS, PADDED)
            output = _load_rows(out_of_head, out_row, out_stride, QUERIES, CHANNELS, PADDED)

            # P = 2^(logit - L) and dV = P^T dO. `weights` is already P^T.
            logits = _logits(
                k, q, exp2_scale, bias_of_head, regions_of_window,
                first_row=0, first_column=first_query,
                TOKENS=TOKENS, HAS_BIAS=HAS_BIAS, HAS_MASK=HAS_MASK, ROWS=KEYS, COLUMNS=QUERIES,
            )  # fmt: skip
            query_index = _query_index(window, head, first_query, TOKENS, HEADS, QUERIES)
            log_sum = tl.load(log_sums + query_index)  # L, (QUERIES,)
            weights = tl.exp2(logits - log_sum[None, :])  # (KEYS, QUERIES)
            grad_v = tl.dot(weights.to(v.dtype), grad_out, grad_v)  # adds to grad_v

            # delta = rowsum(dO * O), dP = dO V^T and dS = P * (dP - delta). grad_p and grad_s are
            # dP^T and dS^T.
            row_delta = tl.sum(grad_out.to(tl.float32) * output.to(tl.float32), 1)  # (QUERIES,)
            grad_p = tl.dot(v, tl.trans(grad_out))  # (KEYS, QUERIES)
            grad_s = weights * (grad_p - row_delta[None, :])
            if HAS_BIAS:
                if first_query == 0:
                    first_sum += grad_s
                else:
                    second_sum += grad_s

            # dK = scale dS^T Q and dQ = scale dS K. dK gets its factor after the last tile. With
            # MUTUAL, the rows of dQ belong to the other frame, but no other program writes them.
            grad_s = grad_s.to(k.dtype)
            grad_k = tl.dot(grad_s, q, grad_k)  # adds to grad_k
            grad_q = tl.dot(tl.trans(grad_s), k) * scale  # (QUERIES, PADDED)
            _store_rows(grad_q_of_head, query_row, qkv_stride, grad_q, QUERIES, CHANNELS, PADDED)

        grad_k = grad_k * scale
        _store_rows(grad_k_of_head, key_row, qkv_stride, grad_k, KEYS, CHANNELS, PADDED)
        _store_rows(grad_v_of_head, key_row, qkv_stride, grad_v, KEYS, CHANNELS, PADDED)

    if HAS_BIAS:
        # The columns of the matrix are the queries, so the second tile begins at column QUERIES.
        matrix = _sum_of_group(grad_bias, group, head, TOKENS, HEADS)
        tl.store(_tile_pointers(matrix, 0, 0, TOKENS, KEYS, QUERIES), first_sum)
        has_second_tile: tl.constexpr = TOKENS > QUERIES
        if has_second_tile:
            tl.store(_tile_pointers(matrix, 0, QUERIES, TOKENS, KEYS, QUERIES), second_sum)

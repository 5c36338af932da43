"""The backward kernels of window attention for windows of more than 128 tokens, in Triton.

The gradients are sums, which a program adds up in its registers. The registers cannot hold all sums
of a window, so each of three kernels computes some of them:

    kernel                 one program computes                 as a sum over
    gradient_of_queries    dQ of a tile of queries, and delta   all keys of the window
    gradients_of_keys      dK and dV of a tile of keys          all queries of the window
    gradient_of_bias       dS of a tile of keys x queries       the windows of a group

`gradient_of_queries` runs first, because it writes delta, which the other two kernels read.

The equations, where dO is the gradient of the output O:

    P     = 2^(logit - L)       the weights of the attention
    dP    = dO V^T              the gradient of the weights
    delta = rowsum(dO * O)      one number for each query
    dS    = P * (dP - delta)    the gradient of the logits
    dQ    = scale dS K
    dK    = scale dS^T Q
    dV    = P^T dO
    dbias = the sum of dS over all windows

A * B is the product number by number, and A B the matrix product. In L and P, `logit` is
(scale q k^T + bias + mask) log2(e), because the kernels compute powers of 2.

The forward kernel has saved O and L = log2(sum over the keys of 2^logit). The logits and P were not
saved, because they have TOKENS x TOKENS numbers for each window and head. So each kernel computes
them again, tile by tile.

What must hold: TOKENS is a multiple of QUERIES and of KEYS, the two sides of a tile (tiles.py).
The kernels do not check where a window ends, so a tile beyond its end would take tokens of the next
window. The results would be wrong, without an error.

What must stay: the order of the sums, because another order changes the last bits of a training.
The sizes of the tiles are part of this order. No test notices another order:
tests/parts/models/test_triton.py compares the results with float64, but it runs the kernels in
Triton's interpreter, which sums in an order of its own. So after a change, compare the bits before
and after it on a GPU. Each sum is added up by one program, so a step always gives the same numbers.

Free to change: names, and how an address is computed. All three kernels take the same arguments,
because one function launches them. So a new argument needs a line in each kernel, in all_gradients
(all_gradients.py), and in `BackwardPass.launch` (launches.py).
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
def gradient_of_queries(
    # Inputs. Tensors arrive as pointers to their first number. All but `grad` are contiguous.
    qkv,  # (windows, TOKENS, 3, HEADS, CHANNELS): query, key and value of each token
    bias,  # (HEADS, queries, keys): added to the logits, times log2(e); or None. The other two
    #        kernels get it transposed: (HEADS, keys, queries)
    region_row,  # (windows,): for each window, its row in `regions`; None without masks
    regions,  # (rows, TOKENS): for each token, the number of its region (regions.py). Only tokens
    #           of the same region attend to each other. None without masks
    out,  # (windows, TOKENS, HEADS, CHANNELS): O
    grad,  # (windows, TOKENS, HEADS, CHANNELS): dO
    grad_stride: tl.constexpr,  # numbers from the dO of a token to the dO of the next token:
    #                             HEADS * CHANNELS, or more if dO is a part of a wider tensor
    log_sums,  # (windows, HEADS, TOKENS): L of each query
    # Results.
    delta,  # (windows, HEADS, TOKENS): delta of each query. The other two kernels read it
    grad_qkv,  # (windows, TOKENS, 3, HEADS, CHANNELS): only dQ is written here, not dK and dV
    grad_bias,  # not used here: only `gradient_of_bias` writes it
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
    QUERIES: tl.constexpr,  # queries in a tile. It divides TOKENS
    KEYS: tl.constexpr,  # keys in a tile. It divides TOKENS
):
    """Write dQ and delta of one tile of queries of one head, in each window of a group.

        equation                    in the code    shape
        delta = rowsum(dO * O)      row_delta      (QUERIES,)
        P     = 2^(logit - L)       weights        (QUERIES, KEYS), computed again
        dP    = dO V^T              grad_p         (QUERIES, KEYS)
        dS    = P * (dP - delta)    grad_s         (QUERIES, KEYS)
        dQ    = scale dS K          grad_q         (QUERIES, PADDED), a sum over the tiles of keys

    dO is the gradient of the output O, L the log-sum-exp, and rowsum the sum over the channels.

    E.g. windows of 6 x 8 x 8 = 384 tokens, 120 channels in 6 heads, tiles of 64 queries and 64
    keys, groups of one window: 6 heads x 6 tiles = 36 programs for each window.

        program    head    tile    queries        window
        0          0       0         0 ...  63    0
        5          5       0         0 ...  63    0
        6          0       1        64 ... 127    0
        35         5       5       320 ... 383    0
        40         4       0         0 ...  63    1

    A row is a token, counted through all windows, so window 1 begins at row 384. Program 40 reads q
    in the rows 384 ... 447, and k and v in the rows 384 ... 767, 64 rows at a time. Head 4 has the
    channels 80 ... 99 of the 120.

    A head has CHANNELS = 20 channels here, and PADDED = 32. The columns 20 ... 31 of q, k, v, dO
    and O are loaded as 0, so they add nothing to a product. These columns of dQ are not stored.
    """
    # The head, the tile and the windows of this program: first_window ... end_window - 1.
    group = _group_of_program(HEADS, TILES=TOKENS // QUERIES)
    head, tile = _head_and_tile(HEADS, TILES=TOKENS // QUERIES)
    first_window, end_window = _windows_of_group(group, group_size, window_count)
    first_query = tile * QUERIES  # number of a token within its window

    # Pointers to the channels of this head in row 0. A stride is the distance from a row to the
    # next row, in numbers.
    q_of_head, k_of_head, v_of_head = _parts_of_head(qkv, head, HEADS, CHANNELS)
    grad_q_of_head, _, _ = _parts_of_head(grad_qkv, head, HEADS, CHANNELS)
    qkv_stride = 3 * HEADS * CHANNELS
    out_of_head = out + head * CHANNELS
    grad_of_head = grad + head * CHANNELS
    out_stride = HEADS * CHANNELS
    bias_of_head = _bias_of_head(bias, head, TOKENS, HAS_BIAS)

    for window in range(first_window, end_window):
        regions_of_window = _regions_of_window(regions, region_row, window, TOKENS, HAS_MASK)
        # With MUTUAL, the two frames of a pair are two windows, e.g. 0 and 1. The queries of one
        # frame meet the keys of the other frame. E.g. for window 0:
        #
        #     q and dQ             in the rows of window 1
        #     all other tensors    in the rows of window 0
        #
        # query_row and out_row are the first of QUERIES successive rows.
        query_row = _window_of_queries(window, MUTUAL) * TOKENS + first_query
        out_row = window * TOKENS + first_query
        # q, grad_out and output are (QUERIES, PADDED).
        q = _load_rows(q_of_head, query_row, qkv_stride, QUERIES, CHANNELS, PADDED)
        grad_out = _load_rows(grad_of_head, out_row, grad_stride, QUERIES, CHANNELS, PADDED)
        output = _load_rows(out_of_head, out_row, out_stride, QUERIES, CHANNELS, PADDED)
        # delta = rowsum(dO * O), in float32.
        row_delta = tl.sum(grad_out.to(tl.float32) * output.to(tl.float32), 1)  # (QUERIES,)
        # The places of these queries in log_sums and delta, (QUERIES,).
        query_index = _query_index(window, head, first_query, TOKENS, HEADS, QUERIES)
        log_sum = tl.load(log_sums + query_index)  # L, (QUERIES,)
        tl.store(delta + query_index, row_delta)

        # dQ = scale dS K, summed over the tiles of keys in float32. dQ gets its factor after the
        # last tile.
        grad_q = tl.zeros((QUERIES, PADDED), tl.float32)
        for first_key in range(0, TOKENS, KEYS):
            key_row = window * TOKENS + first_key
            # k and v are (KEYS, PADDED).
            k = _load_rows(k_of_head, key_row, qkv_stride, KEYS, CHANNELS, PADDED)
            v = _load_rows(v_of_head, key_row, qkv_stride, KEYS, CHANNELS, PADDED)
            # exp2_scale q k^T + bias + mask, and P = 2^(logit - L), both (QUERIES, KEYS).
            logits = _logits(
                q, k, exp2_scale, bias_of_head, regions_of_window,
                first_row=first_query, first_column=first_key,
                TOKENS=TOKENS, HAS_BIAS=HAS_BIAS, HAS_MASK=HAS_MASK, ROWS=QUERIES, COLUMNS=KEYS,
            )  # fmt: skip
            weights = tl.exp2(logits - log_sum[:, None])
            # dP = dO V^T, and dS = P * (dP - delta), both (QUERIES, KEYS).
            grad_p = tl.dot(grad_out, tl.trans(v))
            grad_s = weights * (grad_p - row_delta[:, None])
            grad_q = tl.dot(grad_s.to(k.dtype), k, grad_q)  # adds to grad_q

        grad_q = grad_q * scale
        _store_rows(grad_q_of_head, query_row, qkv_stride, grad_q, QUERIES, CHANNELS, PADDED)


# do_not_specialize: as for `gradient_of_queries`. Some arguments are not used, because one function
# launches all backward kernels, with the same arguments (`BackwardPass.launch` in launches.py).
@jit(do_not_specialize=["window_count", "group_size"])
def gradients_of_keys(
    # Inputs. Tensors arrive as pointers to their first number. All but `grad` are contiguous.
    qkv,  # (windows, TOKENS, 3, HEADS, CHANNELS): query, key and value of each token
    bias,  # (HEADS, keys, queries): added to the logits, times log2(e); or None
    region_row, regions,  # the masks, as in `gradient_of_queries`; None without masks
    out,  # not used
    grad,  # (windows, TOKENS, HEADS, CHANNELS): dO
    grad_stride: tl.constexpr,  # numbers from the dO of a token to the dO of the next token
    log_sums, delta,  # (windows, HEADS, TOKENS): L and delta of each query
    # Results.
    grad_qkv,  # (windows, TOKENS, 3, HEADS, CHANNELS): only dK and dV are written, not dQ
    grad_bias,  # not used
    # Numbers.
    window_count,
    group_size,  # number of successive windows that a program goes through
    exp2_scale,  # scale * log2(e): the factor of q k^T in the logits of the code
    scale,  # the factor of q k^T in the logits of the network, and so of dK
    # Constants, which Triton compiles into the kernel (gradient_of_queries has a line for each).
    TOKENS: tl.constexpr, HEADS: tl.constexpr, CHANNELS: tl.constexpr, PADDED: tl.constexpr,
    MUTUAL: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_MASK: tl.constexpr,
    QUERIES: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """Write dK and dV of one tile of keys of one head, in each window of a group.

        equation                    in the code    shape
        P     = 2^(logit - L)       weights        (KEYS, QUERIES): P^T, computed again
        dP    = dO V^T              grad_p         (KEYS, QUERIES): dP^T
        dS    = P * (dP - delta)    grad_s         (KEYS, QUERIES): dS^T
        dV    = P^T dO              grad_v         (KEYS, PADDED), a sum over the tiles of queries
        dK    = scale dS^T Q        grad_k         (KEYS, PADDED), a sum over the tiles of queries

    dO is the gradient of the output, L the log-sum-exp, and delta = rowsum(dO * O), which
    `gradient_of_queries` has written. P, dP and dS are computed transposed, because dV and dK need
    P^T and dS^T. Transposing them afterwards would be slower.

    E.g. windows of 384 tokens, 6 heads of CHANNELS = 20 channels, tiles of 64 keys, groups of one
    window: 6 heads x 6 tiles = 36 programs for each window.

        program    head    tile    keys           window
        0          0       0         0 ...  63    0
        6          0       1        64 ... 127    0
        40         4       0         0 ...  63    1

    PADDED is 32 here. The columns 20 ... 31 of q, k, v and dO are loaded as 0, so they add nothing
    to a product. These columns of dK and dV are not stored.
    """
    # The head, the tile and the windows of this program: first_window ... end_window - 1.
    group = _group_of_program(HEADS, TILES=TOKENS // KEYS)
    head, tile = _head_and_tile(HEADS, TILES=TOKENS // KEYS)
    first_window, end_window = _windows_of_group(group, group_size, window_count)
    first_key = tile * KEYS  # number of a token within its window

    # Pointers to the channels of this head in row 0. A row is a token, counted through all windows.
    # A stride is the distance from a row to the next row, in numbers.
    q_of_head, k_of_head, v_of_head = _parts_of_head(qkv, head, HEADS, CHANNELS)
    _, grad_k_of_head, grad_v_of_head = _parts_of_head(grad_qkv, head, HEADS, CHANNELS)
    qkv_stride = 3 * HEADS * CHANNELS
    grad_of_head = grad + head * CHANNELS
    bias_of_head = _bias_of_head(bias, head, TOKENS, HAS_BIAS)

    for window in range(first_window, end_window):
        regions_of_window = _regions_of_window(regions, region_row, window, TOKENS, HAS_MASK)
        key_row = window * TOKENS + first_key
        # k, v, grad_k and grad_v are (KEYS, PADDED). dK and dV are sums over the queries.
        k = _load_rows(k_of_head, key_row, qkv_stride, KEYS, CHANNELS, PADDED)
        v = _load_rows(v_of_head, key_row, qkv_stride, KEYS, CHANNELS, PADDED)
        grad_k = tl.zeros((KEYS, PADDED), tl.float32)
        grad_v = tl.zeros((KEYS, PADDED), tl.float32)

        for first_query in range(0, TOKENS, QUERIES):
            # With MUTUAL, the two frames of a pair are two windows, e.g. 0 and 1. The queries of
            # one frame meet the keys of the other frame. E.g. for window 0:
            #
            #     q                          in the rows of window 1
            #     k, v, dO, L and delta      in the rows of window 0
            query_row = _window_of_queries(window, MUTUAL) * TOKENS + first_query
            out_row = window * TOKENS + first_query
            # q and grad_out are (QUERIES, PADDED).
            q = _load_rows(q_of_head, query_row, qkv_stride, QUERIES, CHANNELS, PADDED)
            grad_out = _load_rows(grad_of_head, out_row, grad_stride, QUERIES, CHANNELS, PADDED)
            # The places of these queries in log_sums and delta, (QUERIES,). L and delta are loaded
            # only below, where they are needed, because an earlier load would take more registers.
            query_index = _query_index(window, head, first_query, TOKENS, HEADS, QUERIES)

            # P = 2^(logit - L), and dV = P^T dO. `weights` is already P^T, (KEYS, QUERIES).
            logits = _logits(
                k, q, exp2_scale, bias_of_head, regions_of_window,
                first_row=first_key, first_column=first_query,
                TOKENS=TOKENS, HAS_BIAS=HAS_BIAS, HAS_MASK=HAS_MASK, ROWS=KEYS, COLUMNS=QUERIES,
            )  # fmt: skip
            log_sum = tl.load(log_sums + query_index)  # L
            weights = tl.exp2(logits - log_sum[None, :])
            grad_v = tl.dot(weights.to(v.dtype), grad_out, grad_v)  # adds to grad_v

            # dP = dO V^T, dS = P * (dP - delta), and dK = scale dS^T Q. grad_p and grad_s are
            # already dP^T and dS^T, (KEYS, QUERIES).
            grad_p = tl.dot(v, tl.trans(grad_out))
            row_delta = tl.load(delta + query_index)
            grad_s = weights * (grad_p - row_delta[None, :])
            grad_k = tl.dot(grad_s.to(k.dtype), q, grad_k)  # adds to grad_k, still without scale

        grad_k = grad_k * scale
        _store_rows(grad_k_of_head, key_row, qkv_stride, grad_k, KEYS, CHANNELS, PADDED)
        _store_rows(grad_v_of_head, key_row, qkv_stride, grad_v, KEYS, CHANNELS, PADDED)


# do_not_specialize: without it, Triton would compile the kernel again for some sizes of the frames.
# The kernel also has arguments that it does not use, because one function launches all backward
# kernels, with the same arguments (`BackwardPass.launch` in launches.py).
@jit(do_not_specialize=["window_count", "group_size"])
def gradient_of_bias(
    # Inputs. Tensors arrive as pointers to their first number. All but `grad` are contiguous.
    qkv,  # (windows, TOKENS, 3, HEADS, CHANNELS): query, key and value of each token
    bias,  # (HEADS, keys, queries): added to the logits, times log2(e). Never None here
    region_row, regions,  # the masks, as in `gradient_of_queries`; None without masks
    out,  # not used
    grad,  # (windows, TOKENS, HEADS, CHANNELS): dO
    grad_stride: tl.constexpr,  # numbers from the dO of a token to the dO of the next token
    log_sums, delta,  # (windows, HEADS, TOKENS): L and delta of each query
    # Results.
    grad_qkv,  # not used
    grad_bias,  # (groups, HEADS, keys, queries): the sum of dS of each group
    # Numbers.
    window_count,
    group_size,  # number of successive windows that a program sums
    exp2_scale,  # scale * log2(e): the factor of q k^T in the logits of the code
    scale,  # not used
    # Constants, which Triton compiles into the kernel (gradient_of_queries has a line for each).
    TOKENS: tl.constexpr, HEADS: tl.constexpr, CHANNELS: tl.constexpr, PADDED: tl.constexpr,
    MUTUAL: tl.constexpr,
    HAS_BIAS: tl.constexpr,  # not used: this kernel runs only with a bias
    HAS_MASK: tl.constexpr,
    QUERIES: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """Write the sum of dS over a group of windows, for one tile of keys x queries of one head.

        equation                    in the code    shape
        P     = 2^(logit - L)       weights        (KEYS, QUERIES): P^T, computed again
        dP    = dO V^T              grad_p         (KEYS, QUERIES): dP^T
        dS    = P * (dP - delta)    grad_s         (KEYS, QUERIES): dS^T, the gradient of the logits
        sum of dS over the group    total          (KEYS, QUERIES)

    dO is the gradient of the output, L the log-sum-exp, and delta = rowsum(dO * O), which
    `gradient_of_queries` has written.

    `GpuAttention.backward` (attention/gpu.py) adds the sums of all groups, which gives the gradient
    of the bias. Without a bias, this kernel is not launched.

    E.g. 192 tokens, 6 heads, tiles of 64 x 64: the matrix has 9 tiles. Tile 5 has the keys 64 ...
    127 and the queries 128 ... 191:

                         queries    0 ... 63    64 ... 127    128 ... 191
        keys   0 ...  63            tile 0      tile 1        tile 2
        keys  64 ... 127            tile 3      tile 4        tile 5
        keys 128 ... 191            tile 6      tile 7        tile 8

    So a group of windows has 6 heads x 9 tiles = 54 programs:

        program    head    tile    group
        0          0       0       0
        6          0       1       0
        54         0       0       1

    The columns CHANNELS ... PADDED - 1 of q, k, v and dO are loaded as 0, so they add nothing to a
    product.
    """
    # The head, the tile and the windows of this program: first_window ... end_window - 1.
    tiles_of_queries: tl.constexpr = TOKENS // QUERIES
    tiles_of_keys: tl.constexpr = TOKENS // KEYS
    tiles: tl.constexpr = tiles_of_queries * tiles_of_keys
    group = _group_of_program(HEADS, TILES=tiles)
    head, tile = _head_and_tile(HEADS, TILES=tiles)
    first_window, end_window = _windows_of_group(group, group_size, window_count)
    # E.g. tile 5 with 3 tiles of queries: first_key is 5 // 3 * 64 = 64, and first_query is
    # 5 % 3 * 64 = 128.
    first_key = tile // tiles_of_queries * KEYS
    first_query = tile % tiles_of_queries * QUERIES

    # Pointers to the channels of this head in row 0. A row is a token, counted through all windows.
    # A stride is the distance from a row to the next row, in numbers.
    q_of_head, k_of_head, v_of_head = _parts_of_head(qkv, head, HEADS, CHANNELS)
    qkv_stride = 3 * HEADS * CHANNELS
    grad_of_head = grad + head * CHANNELS
    total = tl.zeros((KEYS, QUERIES), tl.float32)  # the sum of dS^T so far
    # All windows share the same tile of the bias, so load it once here. `_logits` would load it
    # again for each window.
    bias_of_head = bias + head * TOKENS * TOKENS
    bias_pointers = _tile_pointers(bias_of_head, first_key, first_query, TOKENS, KEYS, QUERIES)
    bias_tile = tl.load(bias_pointers).to(tl.float32)

    for window in range(first_window, end_window):
        key_row = window * TOKENS + first_key
        # With MUTUAL, the queries come from the other frame of the pair, as in `gradients_of_keys`.
        query_row = _window_of_queries(window, MUTUAL) * TOKENS + first_query
        out_row = window * TOKENS + first_query
        # k and v are (KEYS, PADDED), q and grad_out are (QUERIES, PADDED).
        k = _load_rows(k_of_head, key_row, qkv_stride, KEYS, CHANNELS, PADDED)
        v = _load_rows(v_of_head, key_row, qkv_stride, KEYS, CHANNELS, PADDED)
        q = _load_rows(q_of_head, query_row, qkv_stride, QUERIES, CHANNELS, PADDED)
        grad_out = _load_rows(grad_of_head, out_row, grad_stride, QUERIES, CHANNELS, PADDED)
        # The places of these queries in log_sums and delta, (QUERIES,). L and delta are loaded only
        # below, where they are needed, because an earlier load would take more registers.
        query_index = _query_index(window, head, first_query, TOKENS, HEADS, QUERIES)

        # P = 2^(logit - L). `weights` is P^T, (KEYS, QUERIES). With HAS_BIAS=False, `_logits` does
        # not read the bias. The bias is added below instead, from `bias_tile`.
        regions_of_window = _regions_of_window(regions, region_row, window, TOKENS, HAS_MASK)
        logits = _logits(
            k, q, exp2_scale, bias_of_head, regions_of_window,
            first_row=first_key, first_column=first_query,
            TOKENS=TOKENS, HAS_BIAS=False, HAS_MASK=HAS_MASK, ROWS=KEYS, COLUMNS=QUERIES,
        )  # fmt: skip
        logits += bias_tile
        log_sum = tl.load(log_sums + query_index)  # L
        weights = tl.exp2(logits - log_sum[None, :])

        # dP = dO V^T, and dS = P * (dP - delta), both transposed, (KEYS, QUERIES).
        grad_p = tl.dot(v, tl.trans(grad_out))
        row_delta = tl.load(delta + query_index)
        grad_s = weights * (grad_p - row_delta[None, :])
        total += grad_s

    # Each program writes its own tile of the sum, so no two programs write to the same place.
    matrix = _sum_of_group(grad_bias, group, head, TOKENS, HEADS)
    tl.store(_tile_pointers(matrix, first_key, first_query, TOKENS, KEYS, QUERIES), total)

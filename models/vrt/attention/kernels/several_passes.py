"""The backward kernels of window attention for windows of more than 128 tokens, in Triton.

The gradients are sums, which a program adds up in its registers. The registers cannot hold all sums
of a window, so each of three kernels computes some of them:

    kernel                 a program computes                as a sum over
    gradient_of_queries    dQ of a tile of queries           all keys of the window
    gradients_of_keys      dK and dV of a tile of keys       all queries of the window
    gradient_of_bias       a tile of the (keys, queries)     the windows of a group

The equations are the same for all three. dO is the gradient of the output O. The forward kernel has
written L = log2(sum over the keys of 2^logit).

    P     = 2^(logit - L)                the weights of the attention, computed again
    dP    = dO V^T                       the gradient of the weights
    delta = rowsum(dO * O)               gradient_of_queries, which runs first, writes it
    dS    = P * (dP - delta)             the gradient of the logits
    dQ    = scale dS K
    dV    = P^T dO
    dK    = scale dS^T Q
    dbias = the sum of dS over windows

A * B is the product number by number, and A B the matrix product. In the code dP is called grad_p,
and dS is called ds.

All three kernels take the same arguments, because one function launches them
(`BackwardPass.launch`). `gradient_of_queries` explains the arguments.

What must stay: the order of the sums, because another order changes the last bits of a training. No
test notices this. tests/parts/models/test_triton.py compares the results with float64, but it runs
the kernels in Triton's interpreter, which sums in an order of its own. So after a change, compare
the bits before and after it on a GPU. No sum is atomic, so a step always gives the same numbers.
Free to change: names, and how an address is computed. A new argument needs a line in
`BackwardPass.launch` (launches.py).
"""

from models.vrt.attention.kernels.parts import (
    _bias_of_head,
    _bias_sum_of_group,
    _group_of_program,
    _head_and_tile,
    _load_rows,
    _logits,
    _matrix_pointers,
    _query_index,
    _store_rows,
    _window_of_queries,
    _windows_of_group,
    jit,
    tl,
)


# do_not_specialize: by default Triton compiles a kernel again for an argument that is 1 or
# divisible by 16. Both arguments change with the size of the frames.
@jit(do_not_specialize=["n", "group_size"])
def gradient_of_queries(
    qkv,  # input (n, T, 3, HEADS, HD): query, key and value of each token
    bias,  # input (HEADS, queries, keys): added to the logits, times log2(e); or None. The other
    #        two kernels get it transposed: (HEADS, keys, queries)
    region_row,  # input (n,): for each window, its row in `regions`; None without masks
    regions,  # input (rows, T): for each token, the number of its region; None without masks
    out,  # input (n, T, HEADS, HD): O
    grad,  # input (n, T, HEADS, HD): dO
    grad_stride: tl.constexpr,  # numbers from a row of dO to the next row, HEADS * HD or more
    log_sums,  # input (n, HEADS, T): L of each query
    delta,  # (n, HEADS, T): delta of each query. This kernel writes it, the other two read it
    grad_qkv,  # result (n, T, 3, HEADS, HD): dQ, dK and dV of each token
    grad_bias,  # result (groups, HEADS, keys, queries): the sum of dS of each group
    n,  # number of windows
    group_size,  # number of windows that a program goes through
    exp2_scale,  # scale * log2(e): the factor of q k^T
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
    """Write dQ = scale dS K and delta, for one tile of queries of one head, in a group of windows.

    The kernel writes delta, and the elements of grad_qkv that belong to the queries. It does not
    use grad_bias.

    E.g. windows of T = 384 tokens, 6 heads, tiles of 64 queries, groups of one window: a window has
    6 tiles, so 36 programs. Successive programs have successive heads, then comes the next tile,
    then the next group (`_head_and_tile`). So program 40 = 1 * 36 + 0 * 6 + 4 computes group 1
    (window 1), tile 0 (queries 0 ... 63) and head 4.
    """
    # What this program computes: the tile, the head, and the windows first ... end - 1.
    group = _group_of_program(HEADS, TILES=T // QUERIES)
    head, tile = _head_and_tile(HEADS, TILES=T // QUERIES)
    first, end = _windows_of_group(group, group_size, n)
    first_query = tile * QUERIES

    # Pointers to the first key and the first value, and the distance to the next token. In qkv a
    # token has HEADS * HD numbers for its query, then as many for its key and for its value.
    keys = qkv + HEADS * HD
    values = qkv + 2 * HEADS * HD
    stride = 3 * HEADS * HD
    bias_of_head = _bias_of_head(bias, head, T, HAS_BIAS)

    for window in range(first, end):
        # With MUTUAL, the queries of the other frame of the pair meet the keys of this window. E.g.
        # for window 0: q and dQ are in window 1, and all other tensors are in window 0.
        query_row = _window_of_queries(window, MUTUAL) * T + first_query
        out_row = window * T + first_query
        # Where L and delta of the queries are, (QUERIES,).
        query_index = _query_index(window, head, first_query, T, HEADS, QUERIES)
        # All three: (QUERIES, PAD).
        q = _load_rows(qkv, query_row, stride, head, ROWS=QUERIES, HD=HD, PAD=PAD)
        grad_out = _load_rows(grad, out_row, grad_stride, head, ROWS=QUERIES, HD=HD, PAD=PAD)
        output = _load_rows(out, out_row, HEADS * HD, head, ROWS=QUERIES, HD=HD, PAD=PAD)
        log_sum = tl.load(log_sums + query_index)  # (QUERIES,)
        # delta = rowsum(dO * O), in float32, for this kernel and for the kernels that run later.
        row_delta = tl.sum(grad_out.to(tl.float32) * output.to(tl.float32), 1)  # (QUERIES,)
        tl.store(delta + query_index, row_delta)

        # dQ = scale dS K, summed over the tiles of keys. P and dS are (QUERIES, KEYS) here. dQ gets
        # its factor after the last tile.
        grad_q = tl.zeros((QUERIES, PAD), tl.float32)
        for first_key in range(0, T, KEYS):
            key_row = window * T + first_key
            k = _load_rows(keys, key_row, stride, head, ROWS=KEYS, HD=HD, PAD=PAD)  # (KEYS, PAD)
            v = _load_rows(values, key_row, stride, head, ROWS=KEYS, HD=HD, PAD=PAD)  # (KEYS, PAD)
            # exp2_scale q k^T + bias + mask. `regions` has the masks, and `region_row` says which
            # mask each window has.
            logits = _logits(
                q, k, exp2_scale, bias_of_head, region_row, regions, window,
                row=first_query, column=first_key,
                T=T, HAS_BIAS=HAS_BIAS, HAS_MASK=HAS_MASK, ROWS=QUERIES, COLUMNS=KEYS,
            )  # fmt: skip
            p = tl.exp2(logits - log_sum[:, None])  # (QUERIES, KEYS)
            grad_p = tl.dot(grad_out, tl.trans(v))  # dP = dO V^T, (QUERIES, KEYS)
            ds = p * (grad_p - row_delta[:, None])
            grad_q = tl.dot(ds.to(k.dtype), k, grad_q)  # adds to grad_q

        grad_q = grad_q * scale
        _store_rows(grad_qkv, query_row, stride, head, values=grad_q, ROWS=QUERIES, HD=HD, PAD=PAD)


@jit(do_not_specialize=["n", "group_size"])
def gradients_of_keys(
    qkv, bias, region_row, regions,
    out,  # not used
    grad, grad_stride: tl.constexpr, log_sums, delta, grad_qkv,
    grad_bias,  # not used
    n, group_size, exp2_scale, scale,
    T: tl.constexpr, HEADS: tl.constexpr, HD: tl.constexpr, PAD: tl.constexpr,
    MUTUAL: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_MASK: tl.constexpr,
    QUERIES: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """Write dV = P^T dO and dK = scale dS^T Q, for one tile of keys of one head, in a group.

    The arguments are as in `gradient_of_queries`. The kernel writes the elements of grad_qkv that
    belong to the keys and values.

    E.g. windows of T = 384 tokens, 6 heads, tiles of 64 keys, groups of one window: a window has 6
    tiles, so 36 programs. Successive programs have successive heads, then comes the next tile, then
    the next group (`_head_and_tile`). So program 40 = 1 * 36 + 0 * 6 + 4 computes group 1
    (window 1), tile 0 (keys 0 ... 63) and head 4.
    """
    # What this program computes: the tile, the head, and the windows first ... end - 1.
    group = _group_of_program(HEADS, TILES=T // KEYS)
    head, tile = _head_and_tile(HEADS, TILES=T // KEYS)
    first, end = _windows_of_group(group, group_size, n)
    first_key = tile * KEYS

    # Pointers to the first key and the first value, and to their gradients. In qkv a token has
    # HEADS * HD numbers for its query, then as many for its key and for its value. `stride` leads
    # to the next token.
    keys = qkv + HEADS * HD
    values = qkv + 2 * HEADS * HD
    grad_keys = grad_qkv + HEADS * HD
    grad_values = grad_qkv + 2 * HEADS * HD
    stride = 3 * HEADS * HD
    bias_of_head = _bias_of_head(bias, head, T, HAS_BIAS)

    for window in range(first, end):
        key_row = window * T + first_key
        # Triton needs a power of two, so the tiles have PAD channels. The channels beyond HD are 0.
        k = _load_rows(keys, key_row, stride, head, ROWS=KEYS, HD=HD, PAD=PAD)  # (KEYS, PAD)
        v = _load_rows(values, key_row, stride, head, ROWS=KEYS, HD=HD, PAD=PAD)  # (KEYS, PAD)
        grad_k = tl.zeros((KEYS, PAD), tl.float32)
        grad_v = tl.zeros((KEYS, PAD), tl.float32)

        for first_query in range(0, T, QUERIES):
            # With MUTUAL, the queries of the other frame of the pair meet the keys of this window.
            # E.g. for window 0: q is in window 1. k, v, dO, L and delta are in window 0.
            query_row = _window_of_queries(window, MUTUAL) * T + first_query
            out_row = window * T + first_query
            # Where L and delta of the queries are, (QUERIES,).
            query_index = _query_index(window, head, first_query, T, HEADS, QUERIES)
            # Both: (QUERIES, PAD).
            q = _load_rows(qkv, query_row, stride, head, ROWS=QUERIES, HD=HD, PAD=PAD)
            grad_out = _load_rows(grad, out_row, grad_stride, head, ROWS=QUERIES, HD=HD, PAD=PAD)

            # P = 2^(logit - L), and dV = P^T dO. P and dS are transposed here, (KEYS, QUERIES),
            # because dV and dK need P^T and dS^T. Transposing them afterwards would be slower.
            logits = _logits(
                k, q, exp2_scale, bias_of_head, region_row, regions, window,
                row=first_key, column=first_query,
                T=T, HAS_BIAS=HAS_BIAS, HAS_MASK=HAS_MASK, ROWS=KEYS, COLUMNS=QUERIES,
            )  # fmt: skip
            p = tl.exp2(logits - tl.load(log_sums + query_index)[None, :])  # (KEYS, QUERIES)
            grad_v = tl.dot(p.to(v.dtype), grad_out, grad_v)  # adds to grad_v

            # dP = dO V^T, dS = P * (dP - delta), and dK = scale dS^T Q. dP is transposed, too.
            grad_p = tl.dot(v, tl.trans(grad_out))  # (KEYS, QUERIES)
            ds = p * (grad_p - tl.load(delta + query_index)[None, :])
            grad_k = tl.dot(ds.to(k.dtype), q, grad_k)  # adds to grad_k, still without its factor

        grad_k = grad_k * scale
        _store_rows(grad_keys, key_row, stride, head, values=grad_k, ROWS=KEYS, HD=HD, PAD=PAD)
        _store_rows(grad_values, key_row, stride, head, values=grad_v, ROWS=KEYS, HD=HD, PAD=PAD)


@jit(do_not_specialize=["n", "group_size"])
def gradient_of_bias(
    qkv, bias, region_row, regions,
    out,  # not used
    grad, grad_stride: tl.constexpr, log_sums, delta,
    grad_qkv,  # not used
    grad_bias, n, group_size, exp2_scale,
    scale,  # not used
    T: tl.constexpr, HEADS: tl.constexpr, HD: tl.constexpr, PAD: tl.constexpr,
    MUTUAL: tl.constexpr,
    HAS_BIAS: tl.constexpr,  # not used: this kernel runs only with a bias
    HAS_MASK: tl.constexpr,
    QUERIES: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """Write the sum of dS over a group of windows, for one tile of the (keys, queries) of one head.

    `GpuAttention.backward` (attention/gpu.py) adds the sums of all groups, which gives the gradient
    of the bias. Without a bias, this kernel is not launched. The arguments are as in
    `gradient_of_queries`. The kernel writes grad_bias.

    E.g. T = 192 tokens, 6 heads, tiles of 64 x 64: the matrix has 9 tiles, so there are 54 programs
    for each group of windows. Tile 5 is the part of keys 64 ... 127 and queries 128 ... 191:

                         queries    0 ... 63    64 ... 127    128 ... 191
        keys   0 ...  63            tile 0      tile 1        tile 2
        keys  64 ... 127            tile 3      tile 4        tile 5
        keys 128 ... 191            tile 6      tile 7        tile 8
    """
    # What this program computes: the tile, the head, and the windows first ... end - 1.
    tiles_of_queries: tl.constexpr = T // QUERIES
    tiles_of_keys: tl.constexpr = T // KEYS
    tiles: tl.constexpr = tiles_of_queries * tiles_of_keys
    group = _group_of_program(HEADS, TILES=tiles)
    head, tile = _head_and_tile(HEADS, TILES=tiles)
    first, end = _windows_of_group(group, group_size, n)
    first_key = tile // tiles_of_queries * KEYS
    first_query = tile % tiles_of_queries * QUERIES

    # Pointers to the first key and the first value, and the distance to the next token.
    keys = qkv + HEADS * HD
    values = qkv + 2 * HEADS * HD
    stride = 3 * HEADS * HD
    total = tl.zeros((KEYS, QUERIES), tl.float32)  # the sum of dS, transposed, so far
    # All windows share the same tile of the bias, so load it once here. `_logits` would load it
    # again for each window.
    bias_pointers = _matrix_pointers(
        bias + head * T * T, row=first_key, column=first_query, T=T, ROWS=KEYS, COLUMNS=QUERIES
    )
    bias_tile = tl.load(bias_pointers).to(tl.float32)

    for window in range(first, end):
        key_row = window * T + first_key
        # With MUTUAL, the queries come from the other frame of the pair, as in `gradients_of_keys`.
        query_row = _window_of_queries(window, MUTUAL) * T + first_query
        out_row = window * T + first_query
        # Where L and delta of the queries are, (QUERIES,).
        query_index = _query_index(window, head, first_query, T, HEADS, QUERIES)
        k = _load_rows(keys, key_row, stride, head, ROWS=KEYS, HD=HD, PAD=PAD)  # (KEYS, PAD)
        v = _load_rows(values, key_row, stride, head, ROWS=KEYS, HD=HD, PAD=PAD)  # (KEYS, PAD)
        q = _load_rows(qkv, query_row, stride, head, ROWS=QUERIES, HD=HD, PAD=PAD)  # (QUERIES, PAD)
        grad_out = _load_rows(grad, out_row, grad_stride, head, ROWS=QUERIES, HD=HD, PAD=PAD)

        # P = 2^(logit - L), transposed.
        logits = _logits(
            k, q, exp2_scale, bias, region_row, regions, window,
            row=first_key, column=first_query,
            T=T, HAS_BIAS=False, HAS_MASK=HAS_MASK, ROWS=KEYS, COLUMNS=QUERIES,
        )  # fmt: skip
        logits += bias_tile
        p = tl.exp2(logits - tl.load(log_sums + query_index)[None, :])  # (KEYS, QUERIES)

        # dP = dO V^T and dS = P * (dP - delta), both transposed.
        grad_p = tl.dot(v, tl.trans(grad_out))  # (KEYS, QUERIES)
        ds = p * (grad_p - tl.load(delta + query_index)[None, :])
        total += ds

    # Each program writes its own tile of the sum, so no two programs write to the same place.
    matrix = _bias_sum_of_group(grad_bias, group, head, T, HEADS)
    sum_pointers = _matrix_pointers(
        matrix, row=first_key, column=first_query, T=T, ROWS=KEYS, COLUMNS=QUERIES
    )
    tl.store(sum_pointers, total)

"""The backward kernel of window attention for windows of up to 128 tokens, in Triton.

One program computes all gradients of one head in a window. They follow from dO, the gradient of the
output O, and from L = log2(sum over the keys of 2^logit), which the forward kernel has written:

    P     = 2^(logit - L)                the weights of the attention, computed again
    dV    = P^T dO
    dS    = P * (dO V^T - delta)         the gradient of the logits
    delta = rowsum(dO * O)               one number for each query
    dQ    = scale dS K
    dK    = scale dS^T Q
    dbias = the sum of dS over windows

A * B is the product number by number, and A B the matrix product. In L and P, `logit` is the logit
times log2(e), because the kernels compute powers of 2. "The gradient of the logits" is for the
logits themselves, scale q k^T + bias.

As in FlashAttention-2 (Dao 2023, arXiv 2307.08691), P is computed again instead of saved. A program
goes through many windows and sums dS in its registers, so no T x T matrix of a single window is
ever written to memory.

P and dS are computed transposed, (KEYS, QUERIES), because dV and dK need P^T and dS^T. Transposing
them afterwards would be slower, because it needs shared memory.

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
def all_gradients(
    qkv,  # input (n, T, 3, HEADS, HD): query, key and value of each token
    bias,  # input (HEADS, keys, queries): added to the logits, times log2(e); or None
    region_row,  # input (n,): for each window, its row in `regions`; None without masks
    regions,  # input (rows, T): for each token, the number of its region; None without masks
    out,  # input (n, T, HEADS, HD): O
    grad,  # input (n, T, HEADS, HD): dO
    grad_stride: tl.constexpr,  # numbers from a row of dO to the next row, HEADS * HD or more
    log_sums,  # input (n, HEADS, T): L of each query
    delta,  # None: computed below. It is here, because all backward kernels have these arguments
    grad_qkv,  # result (n, T, 3, HEADS, HD): dQ, dK and dV of each token
    grad_bias,  # result (groups, HEADS, keys, queries): the sum of dS of each group; or None
    n,  # number of windows
    group_size,  # number of windows that a program goes through
    exp2_scale,  # scale * log2(e): factor of q k^T in `_logits`, for the powers of 2
    scale,  # factor of q k^T in the logits themselves, and so of dQ and dK
    T: tl.constexpr,  # tokens of a window
    HEADS: tl.constexpr,  # heads
    HD: tl.constexpr,  # channels of a head
    PAD: tl.constexpr,  # channels of a head with padding, a power of two
    MUTUAL: tl.constexpr,  # whether queries come from the other frame (`_window_of_queries`)
    HAS_BIAS: tl.constexpr,  # whether there is a bias
    HAS_MASK: tl.constexpr,  # whether there are masks
    QUERIES: tl.constexpr,  # queries in a tile
    KEYS: tl.constexpr,  # keys in a tile
):
    """Write dQ, dK, dV and the sum of dS of one head, for a group of windows.

    E.g. 1000 windows, 6 heads, groups of 12 windows: 84 groups x 6 heads = 504 programs. Program 7
    computes head 1 in the second group, the windows 12 ... 23.
    """
    # The keys of a window are one tile. The queries are one tile (T = 64) or two tiles (T = 128).
    tl.static_assert(KEYS == T and T // QUERIES <= 2)
    # What this program computes: the head, and the windows first ... end - 1. TILES is 1, because
    # the work on a window is not split by tiles: one program computes all of them.
    group = _group_of_program(HEADS, TILES=1)
    head, _ = _head_and_tile(HEADS, TILES=1)
    first, end = _windows_of_group(group, group_size, n)

    # Pointers to the first key and the first value, and to their gradients. In qkv and in grad_qkv
    # a token has 3 * HEADS * HD numbers, so `stride` leads to the next token:
    #
    #     number     0           HEADS * HD    2 * HEADS * HD    3 * HEADS * HD
    #     content    its query   its key       its value         query of the next token
    keys = qkv + HEADS * HD
    values = qkv + 2 * HEADS * HD
    grad_keys = grad_qkv + HEADS * HD
    grad_values = grad_qkv + 2 * HEADS * HD
    stride = 3 * HEADS * HD
    bias_of_head = _bias_of_head(bias, head, T, HAS_BIAS)
    # The sums of dS over the windows, for the first and for the second tile of queries. Triton has
    # no arrays of registers, so they are two variables.
    first_sum = tl.zeros((KEYS, QUERIES), tl.float32)
    second_sum = tl.zeros((KEYS, QUERIES), tl.float32)

    for window in range(first, end):
        key_row = window * T
        k = _load_rows(keys, key_row, stride, head, ROWS=KEYS, HD=HD, PAD=PAD)  # (KEYS, PAD)
        v = _load_rows(values, key_row, stride, head, ROWS=KEYS, HD=HD, PAD=PAD)  # (KEYS, PAD)
        # dK and dV are sums over the queries.
        grad_k = tl.zeros((KEYS, PAD), tl.float32)
        grad_v = tl.zeros((KEYS, PAD), tl.float32)

        # One or two rounds, which Triton unrolls (static_range).
        for first_query in tl.static_range(0, T, QUERIES):
            # With MUTUAL, the queries are in the rows of another window than output and dO.
            query_row = _window_of_queries(window, MUTUAL) * T + first_query
            out_row = window * T + first_query
            query_index = _query_index(window, head, first_query, T, HEADS, QUERIES)
            # All three: (QUERIES, PAD).
            q = _load_rows(qkv, query_row, stride, head, ROWS=QUERIES, HD=HD, PAD=PAD)
            grad_out = _load_rows(grad, out_row, grad_stride, head, ROWS=QUERIES, HD=HD, PAD=PAD)
            output = _load_rows(out, out_row, HEADS * HD, head, ROWS=QUERIES, HD=HD, PAD=PAD)

            # P = 2^(logit - L), transposed, and dV = P^T dO.
            logits = _logits(
                k, q, exp2_scale, bias_of_head, region_row, regions, window,
                row=0, column=first_query,
                T=T, HAS_BIAS=HAS_BIAS, HAS_MASK=HAS_MASK, ROWS=KEYS, COLUMNS=QUERIES,
            )  # fmt: skip
            p = tl.exp2(logits - tl.load(log_sums + query_index)[None, :])  # (KEYS, QUERIES)
            grad_v = tl.dot(p.to(v.dtype), grad_out, grad_v)  # adds to grad_v

            # dS = P (dO V^T - delta), transposed.
            row_delta = tl.sum(grad_out.to(tl.float32) * output.to(tl.float32), 1)  # (QUERIES,)
            grad_p = tl.dot(v, tl.trans(grad_out))  # (KEYS, QUERIES)
            ds = p * (grad_p - row_delta[None, :])
            if HAS_BIAS:
                if first_query == 0:
                    first_sum += ds
                else:
                    second_sum += ds

            # dK = scale dS^T Q and dQ = scale dS K. dK gets its factor after the last round. With
            # MUTUAL, the rows of dQ belong to another window, but no other program writes them.
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

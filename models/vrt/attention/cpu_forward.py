"""The forward pass of our own attention for CPUs: softmax(scale q k^T + bias + mask) v.

This pass computes a few windows at a time (a round), so that their T x T matrices stay in the cache
of a core. It computes e^x as 2^(x log2(e)), because exp2 is faster than exp. So the logits here are
multiplied by log2(e). For each query it also returns the log-sum-exp, log2(sum over the keys of
2^logit). With the log-sum-exp the backward pass (cpu_gradients.py) computes the weights of the
attention again.

Letters: n windows, T tokens in a window, hd channels of a head. A round is the group of windows
that is computed at one time (`windows_at_once`).

What must stay:

    The results are right for logits of any size. tests/parts/models/test_attention.py notices.

    The number of windows of a round. The gradient of the bias is summed round by round, so another
    number changes its last bits, and existing runs would not resume exactly. No test notices.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

LOG2_E = math.log2(math.e)  # the kernels for GPUs have their own constant (kernels/parts.py)


def cpu_attention(
    q: Tensor, k: Tensor, v: Tensor, offset: Tensor | None, scale: float
) -> tuple[Tensor, Tensor]:
    """Compute softmax(scale q k^T + bias + mask) v, without a gradient.

    The softmax needs e^x, which is computed as 2^(log2(e) x). So all logits here are log2(e) times
    the logits of the softmax. `offset` already has this factor.

    q, k, v: (n, heads, T, hd).
    offset: (bias + mask) * LOG2_E, or None. All n windows have the same bias and mask, and `offset`
        has one copy of them for each window of a round, (windows * heads, T, T), so that one
        addition serves the whole round.

    Returns the output (n, heads, T, hd), and the log-sum-exp of each row of logits in base 2,
    (n, heads, T, 1), float32 at least.
    """
    # A softmax usually subtracts the largest logit of each row, so that no exponential overflows.
    # Subtracting takes one more pass over the T x T matrices. So compute without subtracting first.
    # If a sum is near overflow or underflow (`_are_exact`), compute again and subtract.
    sums = _weighted_sums(q, k, v, offset, scale, subtracts=False)
    if not _are_exact(sums.of_rows):
        sums = _weighted_sums(q, k, v, offset, scale, subtracts=True)
    out = (sums.of_values / sums.of_rows).transpose(2, 3)  # (n, heads, T, hd)
    precise_dtype = torch.promote_types(q.dtype, torch.float32)
    log_sums = sums.of_rows.to(precise_dtype).log2().transpose(2, 3)  # (n, heads, T, 1)
    # log-sum-exp = log2(sum of 2^(logit - largest)) + largest, where `largest` is what was
    # subtracted from the logits, or 0.
    return out, log_sums.add_(sums.largest)


class _Sums(NamedTuple):
    """Sums over the keys, for each query. Each row of P = 2^(logits - largest) is for one query."""

    of_values: Tensor  # P v, transposed, (n, heads, hd, T)
    of_rows: Tensor  # the sums of the rows of P, (n, heads, 1, T)
    largest: Tensor  # what was subtracted from each row of logits, (n, heads, T, 1), 0 for nothing


def _weighted_sums(
    q: Tensor, k: Tensor, v: Tensor, offset: Tensor | None, scale: float, subtracts: bool
) -> _Sums:
    """Compute P v and the sums of the rows of P, a few windows at a time.

    P v has only hd columns, and a product with few columns is slow. So P v is computed transposed,
    as v^T P^T. A row of ones below v^T gives the sums of the rows of P in the same product. E.g.
    tokens a, b, c (T = 3) of hd = 2 channels, where a1 and a2 are the channels of the value of
    token a:

                                         columns: query a, query b, query c
        a1 b1 c1                         first channel of P v
        a2 b2 c2   x   P^T (3 x 3)   =   second channel of P v
        1  1  1                          sums of the rows of P, by which P v is divided later

    In a round, the axis of windows and the axis of heads become one axis. E.g. 7 windows of 6
    heads: entry 6 * 2 + 5 = 17 of 42 is head 5 of window 2 of this round.

    subtracts: whether the largest logit of each row is subtracted before exp2, so that no sum
        overflows. The other arguments are as in `cpu_attention`.
    """
    n, heads, t, hd = q.shape
    round_size = windows_at_once(q)
    v_and_ones = q.new_ones(n, heads, hd + 1, t)  # v^T, and a row of ones below it
    v_and_ones[:, :, :hd] = v.transpose(2, 3)
    matrix_memory = q.new_empty(min(round_size, n) * heads, t, t)  # used again in each round
    out_and_sums = torch.empty_like(v_and_ones)  # (n, heads, hd + 1, T), filled round by round
    largest = q.new_zeros(n, heads, t, 1)

    for first in range(0, n, round_size):
        in_round = slice(first, first + round_size)
        q_of_round = q[in_round].reshape(-1, t, hd)  # (windows * heads, T, hd)
        k_of_round = k[in_round].reshape(-1, t, hd)
        memory = matrix_memory[: len(q_of_round)]
        # (windows * heads, T, T)
        logits_of_round = logits(q_of_round, k_of_round, offset, scale * LOG2_E, out=memory)
        if subtracts:
            largest_of_rows = logits_of_round.amax(2, keepdim=True)  # (windows * heads, T, 1)
            # (windows * heads, T, 1) -> (windows, heads, T, 1)
            largest[in_round] = largest_of_rows.view_as(largest[in_round])
            logits_of_round.sub_(largest_of_rows)
        p = logits_of_round.exp2_()  # in place, because nobody needs the logits any more
        # v_of_round and results are (windows * heads, hd + 1, T).
        v_of_round = v_and_ones[in_round].view(-1, hd + 1, t)
        results = out_and_sums[in_round].view(-1, hd + 1, t)
        torch.bmm(v_of_round, p.transpose(1, 2), out=results)  # fills a part of out_and_sums

    of_values, of_rows = out_and_sums.split((hd, 1), dim=2)
    return _Sums(of_values, of_rows, largest)


def _are_exact(row_sums: Tensor) -> bool:
    """Say whether all sums of rows of P are far from underflow and overflow.

    Near underflow a sum loses bits, and beyond the range of its dtype it is 0, Inf or NaN. E.g. in
    float32, whose largest number is 3e38:

        sum         below 5e-20    5e-20 ... 2e19    above 2e19
        counts as   not exact      exact             not exact

    The limit 2e19 is the square root of 3e38, and 5e-20 is 1 / limit. The square root was chosen by
    hand: it leaves a wide margin on both sides. With a limit near 3e38, sums that have lost bits
    would count as exact.
    """
    limit = torch.finfo(row_sums.dtype).max ** 0.5
    least, most = row_sums.aminmax()
    # A comparison with NaN is false, so NaN does not count as exact.
    return bool(1 / limit < least and most < limit)


def logits(q: Tensor, k: Tensor, offset: Tensor | None, scale: float, out: Tensor) -> Tensor:
    """Return scale q k^T + offset for q, k (n, T, hd). The result is written to `out` (n, T, T).

    offset: (n or more, T, T), or None for 0. `offset` is made for a full round, and has the same
        numbers for each window. The last round may have fewer windows, so only the first n entries
        are used.
    """
    # baddbmm computes beta * added + alpha * q k^T.
    if offset is None:
        added = out  # any tensor of this shape, because baddbmm ignores its content if beta is 0
        beta = 0
    else:
        added = offset[: len(q)]  # len(q) is n
        beta = 1
    return torch.baddbmm(added, q, k.transpose(1, 2), beta=beta, alpha=scale, out=out)


# Most bytes of the T x T matrices of a round, 3 MB. More would not fit the cache of a CPU core, and
# fewer would need more calls.
CORE_BYTES = 3_000_000


def windows_at_once(q: Tensor) -> int:
    """Return the number of windows of a round, whose T x T matrices take at most CORE_BYTES.

    q: (n, heads, T, hd). E.g. 128 tokens, 6 heads, float32: 393 kB per window, so 7 windows.
    """
    heads, t = q.shape[1:3]
    bytes_of_window = heads * t * t * q.element_size()
    return max(1, CORE_BYTES // bytes_of_window)  # at least one window, even if it is larger

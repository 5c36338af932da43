"""Our own attention for CPUs, with gradients: softmax(scale q k^T + bias + mask) v.

Forward saves the output and one number per query, the log-sum-exp of its logits, but no T x T
matrix. Backward computes these matrices again for a few windows at a time (a round), so that they
stay in the cache:

    cpu_forward.py      the output and the log-sum-exp
    cpu_gradients.py    the gradients of one round

Letters: n windows, T tokens in a window, hd channels of a head.

What must stay: the order of the calls (see `CpuAttention`), and the order of the rounds, because
the gradient of the bias is summed round by round. tests/parts/models/test_block.py notices a wrong
gradient, but not a change of its last bits.
"""

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from models.vrt.attention.cpu_forward import LOG2_E, cpu_attention, windows_at_once
from models.vrt.attention.cpu_gradients import append_two_channels, gradients_of_round
from models.vrt.attention.heads import heads_of, logit_offset, put_gradients_of_swapped_queries
from models.vrt.tape import Tape


class CpuAttention(torch.autograd.Function):
    """Attention of packed heads (n, T, 3, heads, hd): q, k and v in one tensor.

    A layer that runs chunk by chunk (chunks.py) keeps only its input, and its backward pass
    computes each chunk again. So `CpuAttention.forward` runs twice for each chunk of windows, and
    `CpuAttention.backward` runs once:

        forward pass of the layer     CpuAttention.forward, the first call
        backward pass of the layer    CpuAttention.forward, the second call, with a graph. Then
                                      CpuAttention.backward

    A `Tape` (tape.py) carries the results to the second call, so that they are not computed twice:

        recorded   the results of the first calls, in the order of the calls
        playback   the same results, read by the second calls
        offsets    sums of bias and mask, for later calls with the same mask

    The results have no names, so the second calls must have the order of the first calls.
    """

    @staticmethod
    def forward(
        ctx,
        qkv: Tensor,
        bias: Tensor | None,
        mask: Tensor | None,
        scale: float,
        mutual: bool,
        tape: Tape,
    ) -> Tensor:
        """Return the output, (n, heads, T, hd).

        qkv: packed heads, (n, T, 3, heads, hd).
        bias: (heads, T, T), added to the logits, or None.
        mask: (T, T), the mask of all n windows, or None.
        scale: factor of q k^T in the logits.
        mutual: whether the two frames of a window attend to each other. If so, each frame counts as
            a window from here on: the output is (2 n, heads, T / 2, hd), and the mask is
            (T / 2, T / 2).
        tape: carries the results from the first call to the second.
        """
        # With `mutual`, the queries of a frame are the queries of the other frame of its window.
        q, k, v = heads_of(qkv, mutual)  # (n, heads, T, hd) each
        # What is added to the logits of each round, (windows * heads, T, T), or None.
        offset = _offset_of_round(q, bias, mask, tape)
        if tape.playback is not None:
            # The second call: read the results in the order in which the first calls recorded them.
            out = next(tape.playback)  # (n, heads, T, hd)
            log_sums = next(tape.playback)  # (n, heads, T, 1)
        else:
            out, log_sums = cpu_attention(q, k, v, offset, scale)
            # The first call records its results. Without recording nothing is kept, e.g. in an
            # evaluation in bfloat16.
            if tape.is_recording:
                tape.recorded += [out, log_sums]
        ctx.save_for_backward(qkv, bias, out, log_sums, offset)
        ctx.scale = scale
        ctx.mutual = mutual
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor):
        """Compute the gradients of qkv and of the bias, round by round.

        The gradient of the bias is the gradient of the logits, summed over all windows. Within a
        round the sum has the dtype of q, e.g. bfloat16. Over the rounds it is summed in float32 or
        float64, because in bfloat16 a long sum would lose its small terms.

        grad: the gradient of the output, (n, heads, T, hd).
        """
        scale = ctx.scale
        qkv, bias, out, log_sums, offset = ctx.saved_tensors
        q, k, v = heads_of(qkv, ctx.mutual)  # as in forward
        n, heads, t, hd = q.shape
        round_size = windows_at_once(q)
        precise_dtype = log_sums.dtype  # float32 or float64

        # grad_q, grad_k and grad_v are views of grad_qkv, so writing to them fills grad_qkv. With
        # `mutual`, grad_q is a copy, which is put into grad_qkv at the end.
        grad_qkv = torch.empty_like(qkv)
        grad_q, grad_k, grad_v = heads_of(grad_qkv, ctx.mutual)
        grad_bias = None if bias is None else q.new_zeros(heads, t, t, dtype=precise_dtype)
        # Memory for the two T x T matrices of a round: P, the weights of the attention, and dS, the
        # gradient of the logits (cpu_gradients.py). Each round overwrites it. The unpacking gives
        # two tensors (windows * heads, T, T).
        p_memory, ds_memory = q.new_empty(2, min(round_size, n) * heads, t, t)

        # q, k, v and grad with two more channels each, (n, heads, T, hd + 2). These channels make
        # the matrix products subtract what a softmax and its gradient subtract (`WideTensors`).
        wide = append_two_channels(q, k, v, grad=grad, out=out, log_sums=log_sums, scale=scale)
        for first in range(0, n, round_size):
            in_round = slice(first, first + round_size)
            windows_in_round = min(round_size, n - first)  # the last round may have fewer windows
            matrix_count = windows_in_round * heads
            # E.g. n = 10 windows of 6 heads in rounds of 7 windows:
            #
            #     round 0    7 windows, 42 matrices, all 42 of `offset`
            #     round 1    3 windows, 18 matrices, the first 18 of `offset`
            gradients = gradients_of_round(
                wide.windows(in_round),
                offset,
                scale,
                p_memory=p_memory[:matrix_count],
                ds_memory=ds_memory[:matrix_count],
            )
            # (windows * heads, T, hd) -> (windows, heads, T, hd)
            grad_q[in_round] = gradients.q.reshape(-1, heads, t, hd)
            grad_k[in_round] = gradients.k.reshape(-1, heads, t, hd)
            grad_v[in_round] = gradients.v.reshape(-1, heads, t, hd)
            if grad_bias is not None:
                if windows_in_round == 1:  # there is nothing to sum
                    grad_bias += gradients.logits
                else:
                    grad_bias += gradients.logits.view(-1, heads, t, t).sum(0)

        if ctx.mutual:
            put_gradients_of_swapped_queries(grad_q, grad_qkv)
        # Return one result for each argument of forward: qkv, bias, mask, scale, mutual, tape.
        return grad_qkv, grad_bias, None, None, None, None


def _offset_of_round(
    q: Tensor, bias: Tensor | None, mask: Tensor | None, tape: Tape
) -> Tensor | None:
    """Return the sum of bias and mask, times log2(e), repeated for each window of a round.

    The sum is repeated, because one call (baddbmm in `logits`) adds it to the products of all
    windows of a round. E.g. 128 tokens, 6 heads, float32: a round has 7 windows, so the result is
    (42, 128, 128).

    The sum is computed once for all chunks with this mask, and kept in `tape.offsets`. The key has
    the address of the mask in memory. No other mask gets this address during the step, because the
    list of chunks keeps the mask alive.

    q: (n, heads, T, hd).
    bias: (heads, T, T) or None.
    mask: (T, T) or None.

    Returns (windows * heads, T, T), or None if bias and mask are both None.
    """
    address_of_mask = None if mask is None else mask.data_ptr()
    # Self attention has a bias, mutual attention has none. There is one tape for both.
    key = (bias is None, address_of_mask)
    if key not in tape.offsets:
        offset = logit_offset(bias, mask, q.dtype, factor=LOG2_E)  # (1, heads or 1, T, T)
        if offset is not None:
            round_size = windows_at_once(q)
            heads = q.shape[1]
            offset = offset.expand(round_size, heads, *offset.shape[2:])  # (windows, heads, T, T)
            offset = offset.flatten(0, 1)  # (windows * heads, T, T)
        tape.offsets[key] = offset
    return tape.offsets[key]

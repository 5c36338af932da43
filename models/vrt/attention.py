"""Attention inside windows: softmax(scale q k^T + bias + mask) v.

`window_attention` is what a block calls. It chooses among three forms of the same computation:

    triton_attention.py   our kernels, for GPUs and windows that `attention_has_kernel` accepts
    attend                torch's scaled_dot_product_attention, on every device
    CpuAttention          our own form for CPUs, if the caller gives a tape. Between forward and
                          backward it keeps the output, but no T x T matrices

Names:

    n, T, hd    windows, tokens in a window, channels of a head
    logits      scale q k^T + bias + mask, a T x T matrix for each window and head
    packed      "packed heads" are q, k and v in one tensor (n, T, 3, heads, hd), as the linear
                layer writes them
    mutual      attention between the two frames of a window: the queries of each frame meet the
                keys and values of the other frame

The form for CPUs computes 2^x in place of e^x, because exp2 is faster. So its logits are multiplied
by log2(e), and its log-sum-exp has base 2: log2(sum over the keys of 2^logit), for each query.

What must stay, and which test notices (in tests/parts/models):

    the forms agree within rounding, gradients too      test_block.py, test_triton.py
    the order of the sums in the form for CPUs          none: with another order, the last bits of a
                                                        training change, so existing runs would not
                                                        resume exactly

Free to change: which form runs, as long as the forms agree.
"""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from models.vrt.chunks import Tape
from models.vrt.forms import attention_has_kernel, fused_attention, head_multiple
from models.vrt.windows import Span

# Most bytes of the T x T matrices that are computed at once, 3 MB. (One window may take more.) They
# should fit the cache of a CPU core. With a larger number they would leave the cache, with a
# smaller number there would be more calls. The number decides how many windows are a round
# (`windows_at_once`), and the bias gradient is summed round by round. So another number changes the
# last bits of this gradient.
CORE_BYTES = 3_000_000
# Most windows times heads in one call of torch's attention. torch spreads them along an axis of the
# GPU's grid of thread blocks, and such an axis has at most 65,535 blocks.
MOST_HEADS = 65_535
LOG2_E = math.log2(math.e)


def window_attention(
    qkv: Tensor,
    bias: Tensor | None,
    spans: tuple[Span, ...],
    scale: float,
    mutual: bool,
    tape: Tape | None,
    is_plain: bool = False,
) -> Tensor:
    """Compute the attention among the tokens of each window, or between its two frames.

    qkv: packed heads, (n, T, 3, heads, hd).
    bias: (heads, T, T), added to the logits, or None.
    spans: ranges of the n windows. The windows of a span have the same mask.
    mutual: whether the attention is between the two frames of a window. Then `bias` is None.
    tape: where `CpuAttention` keeps its results. None: `CpuAttention` is not used.
    is_plain: whether our kernels for GPUs are left out, so that torch's attention is used.

    Returns (n, T, heads * hd).
    """
    all_tokens = qkv.shape[1]  # of both frames, if the attention is mutual
    channels = qkv.shape[4]
    t = all_tokens // 2 if mutual else all_tokens  # tokens that attend to each other
    if not is_plain and tape is None and attention_has_kernel(qkv, t, channels):
        # Imported here, because Triton is not installed everywhere.
        from models.vrt import triton_attention

        return triton_attention.window_attention(qkv, bias, spans, scale, mutual)

    # Compute span by span. Use `split` and no slices, because autograd would give the gradient of
    # each slice the size of the whole qkv.
    results = []
    lengths = [span.stop - span.start for span in spans]
    for qkv_of_span, span in zip(qkv.split(lengths), spans, strict=True):
        # Both frames of a window have the same mask, so mutual attention takes the mask of the
        # first frame: the upper left corner.
        mask = None if span.mask is None else span.mask[:t, :t]
        if tape is not None:
            out = CpuAttention.apply(qkv_of_span, bias, mask, scale, mutual, tape)
        else:
            q, k, v = heads_of(qkv_of_span, mutual)
            out = attend(q, k, v, scale, bias, mask)
        out = out.transpose(1, 2)  # (n, heads, T, hd) -> (n, T, heads, hd)
        # With `mutual`, out is (2 n, T / 2, heads, hd), a row for each frame. The two frames of a
        # window follow each other, so this joins them to (n, T, heads * hd).
        results.append(out.reshape(len(qkv_of_span), all_tokens, -1))
    if len(results) == 1:  # saves a copy
        return results[0]
    return torch.cat(results)


def heads_of(qkv: Tensor, mutual: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Unpack q, k, v from packed heads (n, T, 3, heads, hd). Each is (n, heads, T, hd).

    The results are views of qkv, so writing to q, k or v writes to qkv. CpuAttention.backward
    relies on this: it calls this function with empty memory, and writes the gradients to the
    results.

    With `mutual`, each of the two frames becomes a window, (2 n, heads, T / 2, hd). Then q is a
    copy, because it holds the queries of the other frame.
    """
    if not mutual:
        heads_first = qkv.transpose(1, 3)  # (n, heads, 3, T, hd)
        q, k, v = heads_first.unbind(2)
        return q, k, v
    by_frame = qkv.unflatten(1, (2, -1))  # (n, 2, T / 2, 3, heads, hd)
    q, k, v = by_frame.transpose(2, 4).unbind(3)  # (n, 2, heads, T / 2, hd) each
    q_of_other_frame = q.flip(1)  # swaps the two frames (axis 1)
    return q_of_other_frame.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1)


# ---- torch's attention -----------------------------------------------------------------------


def attend(
    q: Tensor, k: Tensor, v: Tensor, scale: float, bias: Tensor | None, mask: Tensor | None
) -> Tensor:
    """Compute the attention by torch's operator: q, k, v (n, heads, T, hd) -> the same shape.

    bias: (heads, T, T) or None. mask: (T, T) or None. Both are the same for all n windows.
    """
    added = logit_offset(bias, mask, q.dtype)  # (1, heads or 1, T, T), or None
    n, heads, _, channels = q.shape
    # torch's fused kernels take heads of certain widths alone, so fill up with channels of zeros.
    # Zeros change no logit, and `scale` is given for the width without padding.
    padding = -channels % head_multiple(q)  # e.g. 20 channels, multiples of 8: 4
    if padding:
        q = F.pad(q, (0, padding))
        k = F.pad(k, (0, padding))
        v = F.pad(v, (0, padding))

    results = []
    windows_at_a_time = max(1, MOST_HEADS // heads)  # one window, even if it has more heads
    with fused_attention(q):
        for first in range(0, n, windows_at_a_time):
            in_round = slice(first, first + windows_at_a_time)  # the windows of this call
            result = F.scaled_dot_product_attention(
                q[in_round], k[in_round], v[in_round], attn_mask=added, scale=scale
            )
            results.append(result)
    out = results[0] if len(results) == 1 else torch.cat(results)
    return out[..., :channels]


def logit_offset(
    bias: Tensor | None, mask: Tensor | None, dtype: torch.dtype, factor: float = 1.0
) -> Tensor | None:
    """Return factor * (bias + mask), which is added to the logits: (1, heads or 1, T, T).

    bias: (heads, T, T) or None. mask: (T, T) or None. dtype: of the result, the dtype of q.
    factor: LOG2_E for the form for CPUs, which computes 2^x. Returns None if both are None.
    """
    if mask is None:
        total = bias  # (heads, T, T), or None
    elif bias is None:
        total = mask[None]  # (1, T, T)
    else:
        total = bias + mask  # (heads, T, T)
    if total is None:
        return None
    return (total[None] * factor).to(dtype)


# ---- Our own attention for CPUs --------------------------------------------------------------


class CpuAttention(torch.autograd.Function):
    """The same as `attend`, but it takes q, k and v in one tensor (n, T, 3, heads, hd).

    Forward saves the output and one number for each query, the log-sum-exp of its logits. It saves
    no T x T matrices. Backward computes these again, a few windows at a time (a round).

    A block computes its windows in chunks, and it calls forward twice for each chunk: in its
    forward pass, and in its backward pass to build a graph. A `Tape` (chunks.py) carries the
    results from the first call to the second:

        recorded   the results of each call, in the order of the calls
        playback   in the second pass, the recorded results, read in the same order
        offsets    sums of bias and mask, for later calls with the same mask

    So the second calls must have the order of the first calls.
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

        mask: (T, T), the mask of all n windows, or None. The other arguments are those of
        `window_attention`.
        """
        q, k, v = heads_of(qkv, mutual)
        # Bias and mask for as many windows as are computed at once, (windows * heads, T, T). None
        # without both.
        offset = _offset_of_round(q, bias, mask, tape)
        if tape.playback is not None:
            # The second call: the results are on the tape, in the order of `recorded` below.
            out = next(tape.playback)  # (n, heads, T, hd)
            log_sums = next(tape.playback)  # (n, heads, T, 1)
        else:
            out, log_sums = cpu_attention(q, k, v, offset, scale)
            if tape.is_recording:
                tape.recorded += [out, log_sums]
        ctx.save_for_backward(qkv, bias, out, log_sums, offset)
        ctx.scale = scale
        ctx.mutual = mutual
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor):
        """Compute the gradients of qkv and of the bias. grad: (n, heads, T, hd).

        With the weights P = softmax(logits), the output O = P v, and the gradient G of the output:

            gradient of v       P^T G
            gradient of logits  X = P * (G v^T - sum(G * O))    the sum is over the channels
            gradient of q       scale X k
            gradient of k       scale X^T q
            gradient of bias    the sum of X over all windows

        P is computed again for a few windows at a time (a round), so that it stays in the cache:
        P = 2^(scale log2(e) q k^T + offset - log-sum-exp). `_gradients_of_round` has the equations
        line by line. The gradient of the bias is float32 at least, because it is a long sum.

        What must stay: the number of windows of a round, and the order of the rounds. Both decide
        the last bits of the bias gradient, which is summed round by round. test_block.py notices a
        wrong gradient, but no other last bits.
        """
        scale = ctx.scale
        qkv, bias, out, log_sums, offset = ctx.saved_tensors
        q, k, v = heads_of(qkv, ctx.mutual)
        n, heads, t, hd = q.shape
        windows = windows_at_once(q)
        precise_dtype = log_sums.dtype  # float32 or float64

        # Memory for the results. Without `mutual`, grad_q, grad_k and grad_v are views of grad_qkv:
        # writing to them fills grad_qkv.
        grad_qkv = torch.empty_like(qkv)
        grad_q, grad_k, grad_v = heads_of(grad_qkv, ctx.mutual)
        grad_bias = None if bias is None else q.new_zeros(heads, t, t, dtype=precise_dtype)
        # Memory for the T x T matrices of a round. Each round overwrites it.
        p_memory, x_memory = q.new_empty(2, min(windows, n) * heads, t, t)

        wide = _widen(q, k, v, grad=grad, out=out, log_sums=log_sums, scale=scale)
        for first in range(0, n, windows):
            in_round = slice(first, first + windows)
            wide_of_round = wide.windows(in_round)
            # Windows of the round * heads. The last round may have fewer windows.
            batch = len(wide_of_round.q)
            gradients = _gradients_of_round(
                wide_of_round, offset, scale, p_memory=p_memory[:batch], x_memory=x_memory[:batch]
            )
            grad_q[in_round] = gradients.q.reshape(-1, heads, t, hd)
            grad_k[in_round] = gradients.k.reshape(-1, heads, t, hd)
            grad_v[in_round] = gradients.v.reshape(-1, heads, t, hd)
            if grad_bias is not None:
                if batch == heads:  # one window, so there is nothing to sum
                    grad_bias += gradients.logits
                else:
                    grad_bias += gradients.logits.view(-1, heads, t, t).sum(0)

        if ctx.mutual:
            _put_queries_of_other_frames(grad_q, grad_qkv)
        # One result for each argument of forward: qkv, bias, mask, scale, mutual, tape.
        return grad_qkv, grad_bias, None, None, None, None


def _offset_of_round(
    q: Tensor, bias: Tensor | None, mask: Tensor | None, tape: Tape
) -> Tensor | None:
    """Return the sum of bias and mask for the windows that are computed at once, times log2(e).

    q: (n, heads, T, hd). bias: (heads, T, T) or None. mask: (T, T) or None.
    Returns (windows * heads, T, T), or None if both are None. E.g. 128 tokens, 6 heads, float32: 7
    windows are computed at once, so (42, 128, 128).

    The sum is computed once for all chunks with this mask. The tape finds it by the address of the
    mask in memory, because a dictionary cannot find a tensor by its numbers. No other mask gets
    this address during the step, because the list of chunks keeps the mask.
    """
    address_of_mask = None if mask is None else mask.data_ptr()
    # Self attention has a bias, mutual attention has none. There is one tape for both.
    key = (bias is None, address_of_mask)
    if key not in tape.offsets:
        added = logit_offset(bias, mask, q.dtype, factor=LOG2_E)  # (1, heads or 1, T, T)
        if added is not None:
            windows = windows_at_once(q)
            heads = q.shape[1]
            # Repeat it for each window and head of a round.
            added = added.expand(windows, heads, *added.shape[2:])  # (windows, heads, T, T)
            added = added.flatten(0, 1)  # (windows * heads, T, T)
        tape.offsets[key] = added
    return tape.offsets[key]


class _WideTensors(NamedTuple):
    """q, k, v and G with two further channels each, (n, heads, T, hd + 2).

    G is the gradient of the output, O. Backward subtracts a number from each row of two T x T
    matrices. With the further channels, the matrix products do this by themselves. A subtraction
    afterwards would be one more pass over each matrix.

        q k^T is then    q k^T - log-sum-exp / (scale log2(e))
        G v^T is then    G v^T - sum(G * O)

    E.g. a row of q, and a row of k, whose product is q_1 k_1 + ... + q_hd k_hd + a + b:

        q    q_1 ... q_hd  a  b      a + b is minus the number of this row; `_with_column` says why
        k    k_1 ... k_hd  1  1      the number needs two channels
    """

    q: Tensor
    k: Tensor
    v: Tensor
    g: Tensor

    def windows(self, some: slice) -> "_WideTensors":
        """Return some of the windows. Their axis and the axis of heads become one.

        Each tensor is then (windows * heads, T, hd + 2), as torch.bmm takes it.
        """
        parts = [part[some].reshape(-1, *part.shape[2:]) for part in self]
        return _WideTensors(*parts)


def _widen(
    q: Tensor, k: Tensor, v: Tensor, grad: Tensor, out: Tensor, log_sums: Tensor, scale: float
) -> _WideTensors:
    """Append the two channels of `_WideTensors`: the numbers to q and G, and ones to k and v.

    q, k, v: (n, heads, T, hd). grad: G, and out: O, of the same shape.
    log_sums: the log-sum-exp of each row, (n, heads, T, 1).
    scale: factor of the logits.
    """
    n, heads, t, _ = q.shape
    # The caller multiplies the product by scale * LOG2_E, so divide by this factor before.
    minus_sums = log_sums / (-scale * LOG2_E)  # (n, heads, T, 1)
    minus_dots = -(grad.to(log_sums.dtype) * out).sum(3, keepdim=True)  # (n, heads, T, 1)
    ones = q.new_ones(()).expand(n, heads, t, 2)
    return _WideTensors(
        q=_with_column(q, minus_sums),
        k=torch.cat((k, ones), dim=3),
        v=torch.cat((v, ones), dim=3),
        g=_with_column(grad, minus_dots),
    )


class _RoundGradients(NamedTuple):
    """Gradients for the windows of one round of `CpuAttention.backward`."""

    q: Tensor  # (windows * heads, T, hd)
    k: Tensor  # (windows * heads, T, hd)
    v: Tensor  # (windows * heads, T, hd)
    # X, (windows * heads, T, T). Use it at once, because the next round overwrites this memory.
    logits: Tensor


def _gradients_of_round(
    wide: _WideTensors, offset: Tensor | None, scale: float, p_memory: Tensor, x_memory: Tensor
) -> _RoundGradients:
    """Compute the gradients for the windows of one round, by the equations of the caller.

    wide: what `_WideTensors.windows` returns, each tensor (windows * heads, T, hd + 2).
    offset: bias and mask, (windows * heads or more, T, T), times log2(e), or None.
    p_memory, x_memory: memory for P and X, (windows * heads, T, T). It is overwritten.
    """
    hd = wide.q.shape[2] - 2  # channels of a head, without the two further channels

    # P = 2^(scale log2(e) q k^T + offset - log-sum-exp), (windows * heads, T, T). The two further
    # channels subtract the log-sum-exp.
    p = logits(wide.q, wide.k, offset, scale * LOG2_E, out=p_memory).exp2_()

    # Gradient of v: P^T G = (G^T P)^T. This transposes the thin matrix G, which costs less than
    # transposing P. The product is still transposed: (windows * heads, hd, T).
    g_transposed = wide.g[..., :hd].transpose(1, 2).contiguous()
    grad_v_transposed = torch.bmm(g_transposed, p)

    # Gradient of the logits: X = P * (G v^T - sum(G * O)), (windows * heads, T, T). The two further
    # channels subtract the sum. The product with P is in place.
    x = torch.bmm(wide.g, wide.v.transpose(1, 2), out=x_memory).mul_(p)

    # Gradient of k: scale X^T q = scale (q^T X)^T. Again the thin matrix is transposed.
    q_transposed = wide.q[..., :hd].transpose(1, 2).contiguous()
    grad_k_transposed = torch.bmm(q_transposed, x).mul_(scale)

    # Gradient of q: scale X k.
    grad_q = torch.bmm(x, wide.k[..., :hd]).mul_(scale)
    return _RoundGradients(
        q=grad_q,
        k=grad_k_transposed.transpose(1, 2),
        v=grad_v_transposed.transpose(1, 2),
        logits=x,
    )


def _put_queries_of_other_frames(grad_q: Tensor, grad_qkv: Tensor) -> None:
    """Write the gradients of the queries of mutual attention into grad_qkv, in place.

    grad_q: (2 n, heads, T / 2, hd). Each window of grad_q is a frame, and holds the gradients of
    the queries of the other frame, because `heads_of` has swapped them. So swap the two frames of
    each pair back.
    """
    by_frame = grad_q.unflatten(0, (-1, 2)).flip(1)  # (n, 2, heads, T / 2, hd)
    queries = grad_qkv[:, :, 0]  # (n, T, heads, hd): the place of q
    queries = queries.unflatten(1, (2, -1))  # (n, 2, T / 2, heads, hd)
    queries[:] = by_frame.transpose(2, 3)


def _with_column(x: Tensor, column: Tensor) -> Tensor:
    """Append a number to each row of x (n, heads, T, hd), as two channels that add up to it.

    The first channel is the number, rounded to the dtype of x. The second channel is what the
    rounding has lost. E.g. bfloat16 has 8 significant bits, so 5.03 becomes 5.03125 and -0.00125.
    With the first channel alone the weights P would be wrong by up to 2 %, because P is 2 to the
    power of this number.

    column: the numbers, (n, heads, T, 1), float32 or float64.
    """
    rounded = column.to(x.dtype)
    lost = (column - rounded).to(x.dtype)
    return torch.cat((x, rounded, lost), dim=3)


def windows_at_once(q: Tensor) -> int:
    """Return how many windows are computed at once, so that their T x T matrices take CORE_BYTES.

    q: (n, heads, T, hd). E.g. 128 tokens, 6 heads, float32: 393 kB per window, so 7 windows.
    """
    heads, t = q.shape[1:3]
    bytes_of_window = heads * t * t * q.element_size()
    return max(1, CORE_BYTES // bytes_of_window)  # one window, even if it is larger


def logits(q: Tensor, k: Tensor, offset: Tensor | None, scale: float, out: Tensor) -> Tensor:
    """Return scale q k^T + offset for q, k (n, T, hd). The result is written to `out` (n, T, T).

    offset: (n or more, T, T), or None for 0.
    """
    # baddbmm computes beta * added + alpha * q k^T.
    if offset is None:
        added = out  # baddbmm needs a tensor; with beta 0 it ignores the content
        beta = 0
    else:
        added = offset[: len(q)]
        beta = 1
    return torch.baddbmm(added, q, k.transpose(1, 2), beta=beta, alpha=scale, out=out)


def cpu_attention(
    q: Tensor, k: Tensor, v: Tensor, offset: Tensor | None, scale: float, subtracts: bool = False
) -> tuple[Tensor, Tensor]:
    """Compute softmax(scale q k^T + offset / LOG2_E) v, without a gradient.

    q, k, v: (n, heads, T, hd).
    offset: bias and mask times LOG2_E, (windows at once * heads, T, T), or None.
    subtracts: whether the largest logit of each row is subtracted before exp2, so that no sum
        overflows. This takes one more pass over the T x T matrices. So callers leave it at False.
        If a sum then is too large or too small, this function calls itself with True.

    Returns the output (n, heads, T, hd), and the log-sum-exp of each row of logits in base 2,
    (n, heads, T, 1), float32 at least. `CpuAttention.forward` needs both.

    What must stay: the results are right for logits of any size, which test_block.py tries.
    """
    n, heads, t, hd = q.shape
    windows = windows_at_once(q)
    # With P = exp2(logits), the output is P v, divided by the sums of the rows of P. P v is
    # computed transposed, as v^T P^T, because transposing v costs less than a product with a thin
    # result. A row of ones below v^T gives the sums of the rows of P in the same product.
    v_and_ones = q.new_ones(n, heads, hd + 1, t)
    v_and_ones[:, :, :hd] = v.transpose(2, 3)
    p_memory = q.new_empty(min(windows, n) * heads, t, t)  # used again in each round
    out_and_sums = torch.empty_like(v_and_ones)
    largest = q.new_zeros(n, heads, t, 1)  # what was subtracted from each row of logits

    for first in range(0, n, windows):
        in_round = slice(first, first + windows)
        q_of_round = q[in_round].reshape(-1, t, hd)  # (windows * heads, T, hd)
        k_of_round = k[in_round].reshape(-1, t, hd)
        p = logits(q_of_round, k_of_round, offset, scale * LOG2_E, out=p_memory[: len(q_of_round)])
        if subtracts:
            largest[in_round] = p.amax(2, keepdim=True).view_as(largest[in_round])
            p.sub_(largest[in_round].view(-1, t, 1))
        p.exp2_()  # in place: from here p is P
        v_of_round = v_and_ones[in_round].view(-1, hd + 1, t)
        torch.bmm(v_of_round, p.transpose(1, 2), out=out_and_sums[in_round].view(-1, hd + 1, t))

    # P v, (n, heads, hd, T), and the sums of the rows of P, (n, heads, 1, T).
    out, row_sums = out_and_sums.split((hd, 1), dim=2)
    if not subtracts and not _are_exact(row_sums):
        return cpu_attention(q, k, v, offset, scale, subtracts=True)
    precise_dtype = torch.promote_types(q.dtype, torch.float32)
    log_sums = row_sums.to(precise_dtype).log2().transpose(2, 3)  # (n, heads, T, 1)
    # The logarithms lack the number that was subtracted from the logits. So add it again. (It is 0
    # if nothing was subtracted.)
    return (out / row_sums).transpose(2, 3), log_sums.add_(largest)


def _are_exact(row_sums: Tensor) -> bool:
    """Say whether all sums of rows of P are far from both ends of the range of their dtype.

    Near an end a sum loses bits, and beyond it the sum is 0, Inf or NaN. The limit is the root of
    the largest number, about 2e19 for float32. Such a sum is far from both ends, and so is its
    inverse. With a much larger limit, sums that have lost bits would count as exact.
    """
    limit = torch.finfo(row_sums.dtype).max ** 0.5
    least, most = row_sums.aminmax()
    # NaN fails each comparison, so it does not count as exact.
    return bool(1 / limit < least and most < limit)

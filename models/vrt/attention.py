"""Attention inside windows: softmax(scale q k^T + bias + mask) v.

`window_attention` is what a block calls. It chooses among three forms of the same computation:

    triton_attention.py   our kernel, on GPUs that it knows
    attend                torch's scaled_dot_product_attention, on every device
    CpuAttention          our own form for CPUs, with a backward pass that keeps no T x T matrices

Names: n windows, T tokens in a window, hd channels of a head. "Packed" heads are q, k and v in one
tensor (n, T, 3, heads, hd), as the linear layer writes them. "Mutual" attention is attention
between the two frames of a window: the queries of each frame meet keys and values of the other
frame.

Our form computes 2^x in place of e^x, because exp2 is the faster function. So its logits are
multiplied by log2(e), and its log-sum-exp has base 2.

All three forms must agree within rounding, in their gradients too.

Tests: tests/parts/models/test_block.py, test_gradients.py, test_triton.py
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from models.vrt.chunks import Tape
from models.vrt.forms import attention_has_kernel, fused_attention, head_multiple
from models.vrt.windows import Span

# Bytes of the T x T matrices that are computed at once. They should fit the cache of a CPU.
CORE_BYTES = 3_000_000
# Windows times heads of one call of torch's attention. An axis of a GPU's grid of thread blocks has
# this limit.
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

    qkv: packed heads, (n, T, 3, heads, hd). bias: (heads, T, T) or None.
    spans: ranges of the n windows. The windows of a span have the same mask.
    mutual: attention between the two frames, without bias.
    tape: where `CpuAttention` keeps its results. None: `CpuAttention` is not used.
    is_plain: use torch's attention on every device.

    Returns (n, T, heads * hd).
    """
    all_tokens = qkv.shape[1]
    t = all_tokens // 2 if mutual else all_tokens  # tokens that attend to each other
    if not is_plain and tape is None and attention_has_kernel(qkv, t, qkv.shape[4]):
        # Imported here, because Triton is not installed everywhere.
        from models.vrt import triton_attention

        return triton_attention.window_attention(qkv, bias, spans, scale, mutual)

    # Compute span by span. `split` and not slices, because the gradient of each slice would be as
    # large as qkv.
    parts = []
    lengths = [span.stop - span.start for span in spans]
    for part, span in zip(qkv.split(lengths), spans, strict=True):
        # The mask of one frame holds for both frames, so mutual attention takes its corner.
        mask = None if span.mask is None else span.mask[:t, :t]
        if tape is not None:
            out = CpuAttention.apply(part, bias, mask, scale, mutual, tape)
        else:
            q, k, v = heads_of(part, mutual)
            out = attend(q, k, v, scale, bias, mask)
        out = out.transpose(1, 2)  # (n, heads, T, hd) -> (n, T, heads, hd)
        parts.append(out.reshape(len(part), all_tokens, -1))
    if len(parts) == 1:
        return parts[0]
    return torch.cat(parts)


def heads_of(qkv: Tensor, mutual: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Unpack q, k, v from packed heads (n, T, 3, heads, hd). Each is (n, heads, T, hd).

    They are views of qkv, so writing to them writes to qkv. With `mutual`, each of the two frames
    becomes a window of its own, (2 n, heads, T / 2, hd), and q is a copy, because it holds the
    queries of the other frame.
    """
    if not mutual:
        q, k, v = qkv.transpose(1, 3).unbind(2)
        return q, k, v
    by_frame = qkv.unflatten(1, (2, -1))  # (n, 2, T / 2, 3, heads, hd)
    q, k, v = by_frame.transpose(2, 4).unbind(3)  # (n, 2, heads, T / 2, hd) each
    return q.flip(1).flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1)


# ---- torch's attention -----------------------------------------------------------------------


def attend(
    q: Tensor, k: Tensor, v: Tensor, scale: float, bias: Tensor | None, mask: Tensor | None
) -> Tensor:
    """Compute the attention by torch's operator: q, k, v (n, heads, T, hd) -> the same shape.

    bias (heads, T, T) and mask (T, T) hold for all n windows, or are None.
    """
    added = logit_offset(bias, mask, q.dtype)
    n, heads, _, channels = q.shape
    # torch's fused kernels take heads of certain widths alone, so fill up with channels of zeros.
    # Zeros change no logit, and `scale` is still that of the width without padding.
    padding = -channels % head_multiple(q)
    if padding:
        q = F.pad(q, (0, padding))
        k = F.pad(k, (0, padding))
        v = F.pad(v, (0, padding))

    parts = []
    windows = max(1, MOST_HEADS // heads)  # number of windows in one call
    with fused_attention(q):
        for first in range(0, n, windows):
            some = slice(first, first + windows)
            part = F.scaled_dot_product_attention(
                q[some], k[some], v[some], attn_mask=added, scale=scale
            )
            parts.append(part)
    out = parts[0] if len(parts) == 1 else torch.cat(parts)
    return out[..., :channels]


def logit_offset(
    bias: Tensor | None, mask: Tensor | None, dtype: torch.dtype, factor: float = 1.0
) -> Tensor | None:
    """Return factor * (bias + mask), which is added to the logits: (1, heads or 1, T, T).

    Returns None if there is neither bias nor mask.
    """
    if mask is None:
        total = bias
    elif bias is None:
        total = mask[None]
    else:
        total = bias + mask
    if total is None:
        return None
    return (total[None] * factor).to(dtype)


# ---- Our own attention for CPUs --------------------------------------------------------------


class CpuAttention(torch.autograd.Function):
    """The same as `attend`, on packed heads of windows with one mask.

    Forward saves the output and the log-sum-exp of each row of logits, and no T x T matrices.
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
        q, k, v = heads_of(qkv, mutual)

        # The sum of bias and mask, computed once for all chunks with this mask. The sum is repeated
        # for the windows that are computed at once: (windows * heads, T, T), or None. A mask is
        # known by its address, which stays, because the plan of the chunks keeps the mask.
        key = (bias is None, None if mask is None else mask.data_ptr())
        if key not in tape.offsets:
            added = logit_offset(bias, mask, q.dtype, LOG2_E)
            if added is not None:
                heads = q.shape[1]
                added = added.expand(windows_at_once(q), heads, *added.shape[2:]).flatten(0, 1)
            tape.offsets[key] = added
        offset = tape.offsets[key]

        if tape.playback is not None:  # this is the backward pass, and forward has kept the results
            out = next(tape.playback)
            sums = next(tape.playback)
        else:
            out, sums = cpu_attention(q, k, v, offset, scale)
            if tape.is_recording:
                tape.recorded += [out, sums]
        ctx.save_for_backward(qkv, bias, out, sums, offset)
        ctx.scale = scale
        ctx.mutual = mutual
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor):
        """Compute the gradients of qkv and of the bias. grad: (n, heads, T, hd).

        With the weights P = softmax(logits) and the output O = P v, whose gradient is G:

            gradient of v       P^T G
            gradient of logits  X = P * (G v^T - sum(G * O))    the sum is over the channels
            gradient of q       scale X k
            gradient of k       scale X^T q
            gradient of bias    the sum of X over all windows

        P is computed again for a few windows at a time, so that it stays in the cache:
        P = 2^(scale log2(e) q k^T + offset - log-sum-exp). The gradient of the bias is float32 at
        least.
        """
        scale = ctx.scale
        qkv, bias, out, sums, offset = ctx.saved_tensors
        q, k, v = heads_of(qkv, ctx.mutual)
        n, heads, t, d = q.shape
        windows = windows_at_once(q)
        precise = sums.dtype  # float32 or float64

        # Where the results go. Without `mutual`, grad_q, grad_k and grad_v are views of grad_qkv:
        # writing to them fills grad_qkv.
        grad_qkv = torch.empty_like(qkv)
        grad_q, grad_k, grad_v = heads_of(grad_qkv, ctx.mutual)
        grad_bias = None if bias is None else q.new_zeros(heads, t, t, dtype=precise)
        # Two T x T matrices for each head of the windows at a time, used again in each round.
        weights, products = q.new_empty(2, min(windows, n) * heads, t, t)

        # Two numbers per row are subtracted from whole matrices: the log-sum-exp from the logits,
        # and sum(G * O) from G v^T. The matrix products do this themselves: the numbers are further
        # channels of q and G, and the same channels of k and v are 1.
        sums_of_rows = sums / (-scale * LOG2_E)  # the product multiplies by scale * LOG2_E
        dots_of_rows = -(grad.to(precise) * out).sum(3, keepdim=True)
        wide_q = _with_column(q, sums_of_rows)
        wide_grad = _with_column(grad, dots_of_rows)
        ones = q.new_ones(()).expand(n, heads, t, 2)
        wide_k = torch.cat((k, ones), dim=3)
        wide_v = torch.cat((v, ones), dim=3)

        for first in range(0, n, windows):
            now = slice(first, first + windows)
            # (windows * heads, T, hd + 2)
            qb = wide_q[now].reshape(-1, t, d + 2)
            gb = wide_grad[now].reshape(-1, t, d + 2)
            kb = wide_k[now].reshape(-1, t, d + 2)
            vb = wide_v[now].reshape(-1, t, d + 2)
            count = len(qb)

            p = logits(qb, kb, offset, scale * LOG2_E, weights[:count]).exp2_()
            # P^T G and X^T q are computed as (G^T P)^T and (q^T X)^T. This transposes the thin
            # matrices G and q, which costs less than transposing P or X. The results of_v and of_k
            # are still transposed: (windows * heads, hd, T).
            thin_g = gb[..., :d].transpose(1, 2).contiguous()
            of_v = torch.bmm(thin_g, p)
            x = torch.bmm(gb, vb.transpose(1, 2), out=products[:count]).mul_(p)
            thin_q = qb[..., :d].transpose(1, 2).contiguous()
            of_k = torch.bmm(thin_q, x).mul_(scale)
            of_q = torch.bmm(x, kb[..., :d]).mul_(scale)

            grad_q[now] = of_q.reshape(-1, heads, t, d)
            grad_k[now] = of_k.transpose(1, 2).reshape(-1, heads, t, d)
            grad_v[now] = of_v.transpose(1, 2).reshape(-1, heads, t, d)
            if grad_bias is not None:
                if count == heads:  # one window, so there is nothing to sum
                    grad_bias += x
                else:
                    grad_bias += x.view(-1, heads, t, t).sum(0)

        if ctx.mutual:
            # grad_q is a copy, and its frames are swapped. Swap them back into grad_qkv.
            by_frame = grad_q.unflatten(0, (-1, 2)).flip(1)  # (n, 2, heads, T / 2, hd)
            target = grad_qkv.unflatten(1, (2, -1))[:, :, :, 0]  # (n, 2, T / 2, heads, hd)
            target[:] = by_frame.transpose(2, 3)
        # One result for each argument of forward: qkv, bias, mask, scale, mutual, tape.
        return grad_qkv, grad_bias, None, None, None, None


def _with_column(x: Tensor, column: Tensor) -> Tensor:
    """Append the numbers of `column` (n, heads, T, 1) to x, each as two channels with this sum.

    The first channel is the number, rounded to the dtype of x. The second channel is what the
    rounding has lost. In bfloat16, one channel alone would be off by 2 %.
    """
    rounded = column.to(x.dtype)
    lost = (column - rounded).to(x.dtype)
    return torch.cat((x, rounded, lost), dim=3)


def windows_at_once(q: Tensor) -> int:
    """Return how many windows are computed at once: their T x T matrices take CORE_BYTES.

    q: (n, heads, T, hd). E.g. 128 tokens, 6 heads, float32: 393 kB per window, so 7 windows.
    """
    heads, t = q.shape[1:3]
    bytes_of_window = heads * t * t * q.element_size()
    return max(1, CORE_BYTES // bytes_of_window)


def logits(q: Tensor, k: Tensor, offset: Tensor | None, scale: float, out: Tensor) -> Tensor:
    """Return scale q k^T + offset for q, k (n, T, hd). The result is written to `out` (n, T, T).

    offset: (n or more, T, T), or None for 0.
    """
    if offset is None:
        added = out  # baddbmm needs a tensor here, and with beta 0 it ignores the content
        beta = 0
    else:
        added = offset[: len(q)]
        beta = 1
    return torch.baddbmm(added, q, k.transpose(1, 2), beta=beta, alpha=scale, out=out)


def cpu_attention(
    q: Tensor, k: Tensor, v: Tensor, offset: Tensor | None, scale: float, subtracts: bool = False
) -> tuple[Tensor, Tensor]:
    """Compute softmax(scale q k^T + offset / LOG2_E) v. It has no gradient.

    q, k, v: (n, heads, T, hd). offset: (windows at once * heads, T, T) or None.
    subtracts: whether the largest logit of each row is subtracted before exp2, so that no sum
        overflows. This takes one more pass over the T x T matrices. So the function first tries
        without subtracting, and calls itself again if the sums are too large or too small.

    Returns the output (n, heads, T, hd), and the log-sum-exp of each row of logits in base 2,
    (n, heads, T, 1), float32 at least.
    """
    n, heads, t, d = q.shape
    windows = windows_at_once(q)
    # P v is computed transposed, as v^T P^T, because transposing v costs less than a product with a
    # thin result. A row of ones below v^T gives the sum of the weights of each row of P.
    v_ones = q.new_ones(n, heads, d + 1, t)
    v_ones[:, :, :d] = v.transpose(2, 3)
    weights = q.new_empty(min(windows, n) * heads, t, t)  # used again in each round
    out = torch.empty_like(v_ones)
    largest = q.new_zeros(n, heads, t, 1)  # what was subtracted from each row of logits

    for first in range(0, n, windows):
        now = slice(first, first + windows)
        qb = q[now].reshape(-1, t, d)  # (windows * heads, T, hd)
        kb = k[now].reshape(-1, t, d)
        p = logits(qb, kb, offset, scale * LOG2_E, weights[: len(qb)])
        if subtracts:
            largest[now] = p.amax(2, keepdim=True).view_as(largest[now])
            p.sub_(largest[now].view(-1, t, 1))
        p.exp2_()
        vb = v_ones[now].view(-1, d + 1, t)
        torch.bmm(vb, p.transpose(1, 2), out=out[now].view(-1, d + 1, t))

    out, total = out.split((d, 1), dim=2)  # (n, heads, hd, T), (n, heads, 1, T)
    # Sums near the ends of the range of the dtype are not exact, and Inf or NaN is wrong. NaN fails
    # each comparison, so it counts as not safe.
    limit = torch.finfo(q.dtype).max ** 0.5
    least, most = total.aminmax()
    is_safe = 1 / limit < least and most < limit
    if not subtracts and not is_safe:
        return cpu_attention(q, k, v, offset, scale, subtracts=True)
    precise = torch.promote_types(q.dtype, torch.float32)
    sums = total.to(precise).log2().transpose(2, 3)
    return (out / total).transpose(2, 3), sums.add_(largest)

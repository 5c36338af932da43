"""softmax(scale q k^T + bias + mask) v inside windows: torch's public attention, and on a CPU one
of our own.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from models.vrt.chunks import Tape
from models.vrt.forms import attention_has_kernel, fused_attention, head_multiple
from models.vrt.windows import Span

# Bytes of the T x T matrices that are computed at once: they should fit the cache.
CORE_BYTES = 3_000_000
# Windows times heads of one call: an axis of a GPU's grid of thread blocks has this limit.
MOST_HEADS = 65_535
LOG2_E = math.log2(math.e)


def heads_of(qkv: Tensor, mutual: bool) -> tuple[Tensor, Tensor, Tensor]:
    """q, k, v of packed heads (n, T, 3, heads, hd): (n, heads, T, hd), of which k and v are views.

    mutual: each frame of a window of two counts as a window, (2 n, heads, T / 2, hd), with the
    queries of the other.
    """
    if not mutual:
        q, k, v = qkv.transpose(1, 3).unbind(2)
        return q, k, v
    q, k, v = qkv.unflatten(1, (2, -1)).transpose(2, 4).unbind(3)
    return q.flip(1).flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1)


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

    qkv: (n, T, 3, heads, hd). bias: (heads, T, T) or None. spans: the spans of all n windows.
    mutual: attention between the two frames, without bias. tape: what `CpuAttention` records on or
        reads from; None: not our attention for a CPU. is_plain: torch's attention in any case.

    Returns (n, T, heads * hd).
    """
    t = qkv.shape[1] // (2 if mutual else 1)
    if not is_plain and tape is None and attention_has_kernel(qkv, t, qkv.shape[4]):
        from models.vrt import triton_attention  # Triton is not everywhere

        return triton_attention.window_attention(qkv, bias, spans, scale, mutual)
    parts = []
    # The gradient of a slice would be as large as the whole.
    for part, span in zip(
        qkv.split([span.stop - span.start for span in spans]), spans, strict=True
    ):
        # Within a frame, it is that of both
        mask = None if span.mask is None else span.mask[:t, :t]
        if tape is not None:
            out = CpuAttention.apply(part, bias, mask, scale, mutual, tape)
        else:
            out = attend(*heads_of(part, mutual), scale, bias, mask)
        parts.append(out.transpose(1, 2).reshape(len(part), qkv.shape[1], -1))
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def attend(
    q: Tensor, k: Tensor, v: Tensor, scale: float, bias: Tensor | None, mask: Tensor | None
) -> Tensor:
    """q, k, v: (n, heads, T, hd) -> (n, heads, T, hd); bias (heads, T, T) and mask (T, T) for all
    n, or None.
    """
    added = logit_offset(bias, mask, q.dtype)
    n, heads, _, d = q.shape
    # Channels of zeros change no logit; `scale` stays that of the true head.
    padding = -d % head_multiple(q)
    q, k, v = (F.pad(x, (0, padding)) if padding else x for x in (q, k, v))
    parts, step = [], max(1, MOST_HEADS // heads)
    with fused_attention(q):
        for first in range(0, n, step):
            part = (x[first : first + step] for x in (q, k, v))
            parts.append(F.scaled_dot_product_attention(*part, attn_mask=added, scale=scale))
    out = parts[0] if len(parts) == 1 else torch.cat(parts)
    return out[..., :d]


def logit_offset(
    bias: Tensor | None, mask: Tensor | None, dtype: torch.dtype, factor: float = 1.0
) -> Tensor | None:
    """Sum of bias and mask, which is added to the logits, times `factor`: (1, heads or 1, T, T), or
    None.
    """
    if mask is not None:
        bias = mask[None] if bias is None else bias + mask
    return None if bias is None else (bias[None] * factor).to(dtype)


class CpuAttention(torch.autograd.Function):
    """`attend` on packed heads of windows with one mask, with a gradient that keeps no T x T
    matrices.
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
        key = bias is None, None if mask is None else mask.data_ptr()
        # For all windows that are computed at once, (windows * heads, T, T), or None
        if key not in tape.offsets:
            added = logit_offset(bias, mask, q.dtype, LOG2_E)
            if added is not None:
                added = added.expand(windows_at_once(q), q.shape[1], *added.shape[2:]).flatten(0, 1)
            tape.offsets[key] = added
        if tape.recorded is not None:
            out, sums = next(tape.recorded), next(tape.recorded)
        else:
            out, sums = cpu_attention(q, k, v, tape.offsets[key], scale)
            if tape.keeps:
                tape.results += [out, sums]
        ctx.save_for_backward(qkv, bias, out, sums, tape.offsets[key])
        ctx.args = scale, mutual
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor):
        """The logits are recomputed for a few windows at a time, so that they stay in the cache and
        the forward pass saves no T x T matrices. The gradient of the bias is float32 at least.
        """
        scale, mutual = ctx.args
        qkv, bias, out, sums, offset = ctx.saved_tensors
        grad_qkv = torch.empty_like(qkv)
        targets, (q, k, v) = heads_of(grad_qkv, mutual), heads_of(qkv, mutual)
        n, heads, t, d = q.shape
        step, precise = windows_at_once(q), sums.dtype
        grad_bias = None if bias is None else q.new_zeros(heads, t, t, dtype=precise)
        weights, grads = q.new_empty(2, min(step, n) * heads, t, t)
        # The products subtract the log-sum-exp from the logits and, as sum(weights * grads) of a
        # row is sum(grad * out), this from the gradient of the weights, as channels: two each, as
        # bfloat16 alone would be off by 2 %.
        of_rows = sums / (-scale * LOG2_E), -(grad.to(precise) * out).sum(3, keepdim=True)
        of_rows = [
            torch.cat((x, column.to(q.dtype), (column - column.to(q.dtype)).to(q.dtype)), dim=3)
            for x, column in zip((q, grad), of_rows, strict=True)
        ]
        ones = q.new_ones(()).expand(n, heads, t, 2)
        of_columns = [torch.cat((x, ones), dim=3) for x in (k, v)]
        for first in range(0, n, step):
            now = slice(first, first + step)
            qb, gb, kb, vb = (x[now].reshape(-1, t, d + 2) for x in (*of_rows, *of_columns))
            p = logits(qb, kb, offset, scale * LOG2_E, weights[: len(qb)]).exp2_()
            # Transposing a thin matrix costs less than transposing a T x T matrix.
            grad_v = torch.bmm(gb[..., :d].transpose(1, 2).contiguous(), p)
            x = torch.bmm(gb, vb.transpose(1, 2), out=grads[: len(qb)]).mul_(p)
            grad_k = torch.bmm(qb[..., :d].transpose(1, 2).contiguous(), x).mul_(scale)
            grad_q = torch.bmm(x, kb[..., :d]).mul_(scale)
            for target, value in zip(
                targets, (grad_q, grad_k.transpose(1, 2), grad_v.transpose(1, 2)), strict=True
            ):
                target[now] = value.reshape(-1, heads, t, d)
            if grad_bias is not None:
                grad_bias += x if len(x) == heads else x.view(-1, heads, t, t).sum(0)
        if mutual:  # the queries are a copy, in the order of the other frame
            frames = grad_qkv.unflatten(1, (2, -1))[:, :, :, 0]
            frames[:] = targets[0].unflatten(0, (-1, 2)).flip(1).transpose(2, 3)
        return grad_qkv, grad_bias, None, None, None, None


def windows_at_once(q: Tensor) -> int:
    heads, t = q.shape[1:3]
    return max(1, CORE_BYTES // (heads * t * t * q.element_size()))


def logits(q: Tensor, k: Tensor, offset: Tensor | None, scale: float, out: Tensor) -> Tensor:
    """scale q k^T + offset, of (n, T, hd), written to `out`."""
    added = out if offset is None else offset[: len(q)]
    return torch.baddbmm(
        added, q, k.transpose(1, 2), beta=0 if offset is None else 1, alpha=scale, out=out
    )


def cpu_attention(
    q: Tensor, k: Tensor, v: Tensor, offset: Tensor | None, scale: float, subtracts: bool = False
) -> tuple[Tensor, Tensor]:
    """softmax(scale q k^T + offset / LOG2_E) v, and LOG2_E times the log-sum-exp of each row of
    logits.

    q, k, v: (n, heads, T, hd); offset: (windows at once * heads, T, T) or None -> (n, heads, T,
    hd), (n, heads, T, 1), the latter float32 at least. subtracts: the largest logit of each row
    from all of them, before exp2. No autograd.
    """
    n, heads, t, d = q.shape
    step = windows_at_once(q)
    # Transposing thin matrices costs less than a product with a thin result. The row of ones gives
    # the sum of each row.
    v_ones = q.new_ones(n, heads, d + 1, t)
    v_ones[:, :, :d] = v.transpose(2, 3)
    weights, out, top = (
        q.new_empty(min(step, n) * heads, t, t),
        torch.empty_like(v_ones),
        q.new_zeros(n, heads, t, 1),
    )
    for first in range(0, n, step):
        now = slice(first, first + step)
        qb, kb = (x[now].reshape(-1, t, d) for x in (q, k))
        p = logits(qb, kb, offset, scale * LOG2_E, weights[: len(qb)])
        if subtracts:
            top[now] = p.amax(2, keepdim=True).view_as(top[now])
            p.sub_(top[now].view(-1, t, 1))
        torch.bmm(
            v_ones[now].view(-1, d + 1, t),
            p.exp2_().transpose(1, 2),
            out=out[now].view(-1, d + 1, t),
        )
    out, total = out.split((d, 1), dim=2)
    least, most = total.aminmax()
    limit = torch.finfo(q.dtype).max ** 0.5
    if not subtracts and not 1 / limit < least <= most < limit:
        return cpu_attention(q, k, v, offset, scale, subtracts=True)
    sums = total.to(torch.promote_types(q.dtype, torch.float32)).log2()
    return (out / total).transpose(2, 3), sums.transpose(2, 3).add_(top)

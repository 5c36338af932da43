"""softmax(scale q k^T + bias + mask) v inside windows: torch's public attention, and on a CPU our own gradient."""

import logging
import math
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.attention import SDPBackend, sdpa_kernel

from models.vrt.chunks import Tape
from models.vrt.windows import Span

logger = logging.getLogger(__name__)

# Bytes of the T x T matrices that are computed at once: they should fit the last-level cache of a CPU, or a core's own.
BLOCK_BYTES, CORE_BYTES = 4_000_000, 1_500_000
# Windows times heads of one call: an axis of a GPU's grid of thread blocks has this limit.
MOST_HEADS = 65_535
LOG2_E = math.log2(math.e)
# Bytes of which a head must be a multiple for torch's fused attention on a GPU. It computes others, such as 20 channels
# in bfloat16, with T x T matrices in float32.
HEAD_BYTES = {"cuda": 16}
# Without that of cuDNN: its gradients are reported to be NaN for windows of 64 tokens with a mask.
BACKENDS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


def public_attention(q: Tensor, k: Tensor, v: Tensor, added: Tensor | None, scale: float) -> tuple[Tensor, Tensor]:
    """softmax(scale q k^T + added) v, and the log-sum-exp of each row of logits.

    q, k, v: (n, heads, T, hd); added: (1, heads or 1, T, T) or None -> (n, heads, T, hd), (n, heads, T), the latter
    float32 at least. No autograd. In bfloat16 it takes half the time of torch's fused kernel on a CPU.
    """
    n, heads, t, d = q.shape
    q = q * (scale * LOG2_E)
    v = torch.cat((v, v.new_ones(()).expand(n, heads, t, 1)), dim=3)  # of ones: the sum of each row
    step = min(n, max(1, CORE_BYTES // (heads * t * t * q.element_size())))
    tiled = None if added is None else (added * LOG2_E).expand(step, heads, t, t).reshape(-1, t, t)
    # No row can hold a larger logit: where 2 to this power is finite, none has to be subtracted before exp2.
    bound = math.prod(float(torch.linalg.vector_norm(x, dim=3).max()) for x in (q, k))
    bound += 0.0 if added is None else float(tiled.max())
    overflows = bound > 0.9 * math.log2(torch.finfo(q.dtype).max)
    weights, out = q.new_empty(step * heads, t, t), q.new_empty(n, heads, t, d + 1)
    top = q.new_zeros(n, heads, t, 1)
    for first in range(0, n, step):
        now = slice(first, min(first + step, n))
        qb, kb, vb = (x[now].reshape(-1, t, x.shape[3]) for x in (q, k, v))
        p = weights[: len(qb)]
        if tiled is None:
            torch.bmm(qb, kb.transpose(1, 2), out=p)
        else:
            torch.baddbmm(tiled[: len(qb)], qb, kb.transpose(1, 2), out=p)
        if overflows:
            top[now] = p.amax(2, keepdim=True).view_as(top[now])
            p.sub_(top[now].view(-1, t, 1))
        torch.bmm(p.exp2_(), vb, out=out[now].view(-1, t, d + 1))
    out, total = out.split((d, 1), dim=3)
    sums = total.to(torch.promote_types(q.dtype, torch.float32)).log2().add_(top).div_(LOG2_E)
    return out / total, sums.squeeze(3)


def public_softmax_backward(grad: Tensor, weights: Tensor) -> Tensor:
    """In place: from the gradient of `weights`, a softmax over the last dimension, to that of its logits."""
    grad.mul_(weights)
    return grad.addcmul_(weights, grad.sum(-1, keepdim=True), value=-1)


def _private_attention(q: Tensor, k: Tensor, v: Tensor, added: Tensor | None, scale: float) -> tuple[Tensor, Tensor]:
    # The function behind scaled_dot_product_attention on a CPU. Only this private form returns the log-sum-exp.
    fused = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    return fused(q, k, v, 0.0, False, attn_mask=added, scale=scale)


def _private_softmax_backward(grad: Tensor, weights: Tensor) -> Tensor:
    return torch.ops.aten._softmax_backward_data.out(grad, weights, -1, grad.dtype, grad_input=grad)


def choose(private: Callable[..., Any], public: Callable[..., Any], *inputs: Any) -> Callable[..., Any]:
    """`private` if it gives the numbers of `public` on a copy of `inputs`; else `public`, with a warning."""

    def trial(function: Callable[..., Any]) -> Tensor:
        results = function(*(x.clone() if isinstance(x, Tensor) else x for x in inputs))
        return torch.cat([x.flatten() for x in results])

    try:
        found, expected = trial(private), trial(public)
        if found.shape == expected.shape and torch.allclose(found, expected, atol=1e-5):
            return private
        reason = "its numbers differ"
    except (AttributeError, NotImplementedError, RuntimeError, TypeError, ValueError) as e:
        reason = str(e).splitlines()[0] if str(e) else type(e).__name__
    names = public.__name__, private.__name__
    logger.warning("torch %s: %s is used for %s (%s); slower", torch.__version__, *names, reason)
    return public


_QKV = torch.linspace(-1, 1, 72, device="cpu").view(3, 1, 2, 3, 4)
fused_attention = choose(_private_attention, public_attention, *_QKV, _QKV.new_ones(1, 2, 3, 3).tril(), 0.5)
softmax_backward = choose(_private_softmax_backward, public_softmax_backward, _QKV[0], torch.full_like(_QKV[0], 0.25))


def heads_of(qkv: Tensor, mutual: bool) -> tuple[Tensor, Tensor, Tensor]:
    """q, k, v of packed heads (n, T, 3, heads, hd): (n, T, heads, hd), of which k and v are views.

    mutual: each frame of a window of two counts as a window, (2 n, T / 2, heads, hd), with the queries of the other.
    """
    if not mutual:
        return qkv.unbind(2)
    q, k, v = qkv.unflatten(1, (2, -1)).unbind(3)
    return q.flip(1).flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1)


def window_attention(
    qkv: Tensor, bias: Tensor | None, spans: tuple[Span, ...], scale: float, mutual: bool, tape: Tape | None
) -> Tensor:
    """Attention among the tokens of each window, or between its two frames (mutual, without bias).

    qkv: (n, T, 3, heads, hd); bias: (heads, T, T) or None; spans: of all n windows. tape: for `CpuAttention`, which
    records on it or reads from it; None: torch's attention. Returns (n, T, heads * hd).
    """
    parts, t = [], qkv.shape[1] // (2 if mutual else 1)
    # The gradient of a slice would be as large as the whole.
    for part, span in zip(qkv.split([span.stop - span.start for span in spans]), spans, strict=True):
        mask = None if span.mask is None else span.mask[:t, :t]  # within a frame, it is that of both
        if tape is not None:
            out = CpuAttention.apply(part, bias, mask, scale, mutual, tape)
        else:
            out = attend(*heads_of(part, mutual), scale, bias, mask)
        parts.append(out.reshape(len(part), qkv.shape[1], -1))
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def attend(q: Tensor, k: Tensor, v: Tensor, scale: float, bias: Tensor | None, mask: Tensor | None) -> Tensor:
    """q, k, v: (n, T, heads, hd) -> (n, T, heads, hd); bias (heads, T, T) and mask (T, T) for all n, or None."""
    added = logit_offset(bias, mask, q.dtype)
    n, _, heads, d = q.shape
    # Channels of zeros change no logit; `scale` stays that of the true head.
    padding = -d % max(1, HEAD_BYTES.get(q.device.type, 0) // q.element_size())
    q, k, v = (F.pad(x, (0, padding)) if padding else x for x in (q, k, v))
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    parts, step = [], max(1, MOST_HEADS // heads)
    with sdpa_kernel(BACKENDS) if q.device.type == "cuda" else nullcontext():
        for first in range(0, n, step):
            part = (x[first : first + step] for x in (q, k, v))
            parts.append(F.scaled_dot_product_attention(*part, attn_mask=added, scale=scale))
    out = parts[0] if len(parts) == 1 else torch.cat(parts)
    return out[..., :d].transpose(1, 2)


def logit_offset(bias: Tensor | None, mask: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """Sum of bias and mask, which is added to the logits: (1, heads, T, T), (1, 1, T, T) or None."""
    if mask is not None:
        bias = mask[None] if bias is None else bias + mask
    return None if bias is None else bias[None].to(dtype)


class CpuAttention(torch.autograd.Function):
    """`attend` on packed heads of windows with one mask, with a gradient that keeps no T x T matrices."""

    @staticmethod
    def forward(
        ctx, qkv: Tensor, bias: Tensor | None, mask: Tensor | None, scale: float, mutual: bool, tape: Tape
    ) -> Tensor:
        if tape.recorded is not None:
            out, sums = next(tape.recorded), next(tape.recorded)
        else:
            q, k, v = (x.transpose(1, 2) for x in heads_of(qkv, mutual))
            # torch has no fused attention with a bias that requires a gradient, not even in here.
            attention = public_attention if qkv.dtype == torch.bfloat16 else fused_attention
            out, sums = attention(q, k, v, logit_offset(bias, mask, qkv.dtype), scale)
            if tape.keeps:
                tape.results += [out, sums]
        ctx.save_for_backward(qkv, bias, mask, sums)
        ctx.args = scale, mutual
        return out.transpose(1, 2)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor):
        scale, mutual = ctx.args
        qkv, bias, mask, sums = ctx.saved_tensors
        grad_qkv = torch.empty_like(qkv)
        targets = list(heads_of(grad_qkv, mutual))
        added = logit_offset(bias, mask, qkv.dtype)
        grad_bias = attend_backward(grad, *heads_of(qkv, mutual), scale, added, sums.transpose(1, 2), targets)
        if mutual:  # the queries are a copy, in the order of the other frame
            grad_qkv.unflatten(1, (2, -1))[:, :, :, 0] = targets[0].unflatten(0, (-1, 2)).flip(1)
        return grad_qkv, grad_bias if bias is not None else None, None, None, None, None


def attend_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, scale: float, added: Tensor | None, sums: Tensor, out: list[Tensor]
) -> Tensor | None:  # fmt: skip
    """Gradients of `attend`: writes those of q, k, v to the views `out`, returns that of `added`.

    The logits are recomputed for a few windows at a time, so that they stay in the cache and the forward pass saves no
    T x T matrices. q, k, v, grad: (n, T, heads, hd); added: (1, heads or 1, T, T) or None; sums: log-sum-exp of the
    logits, (n, T, heads). The gradient is (heads, T, T), float32 at least, or None.
    """
    n, t, heads, d = q.shape
    step = min(n, max(1, BLOCK_BYTES // (heads * t * t * q.element_size())))
    precise = torch.promote_types(q.dtype, torch.float32)
    grad_added = None if added is None else q.new_zeros(heads, t, t, dtype=precise)
    weights, grads = q.new_empty(2, step * heads, t, t)
    # exp2 is twice as fast as exp. The log-sum-exp is subtracted by the matrix product, as one more channel.
    tiled = None if added is None else (added * LOG2_E).expand(step, heads, t, t).reshape(-1, t, t)
    q, k, v, grad, sums = (x.transpose(1, 2) for x in (q, k, v, grad, sums))
    sums = (sums * -LOG2_E).unsqueeze(3)
    rounded = [sums.to(q.dtype)]
    if q.dtype != sums.dtype:  # bfloat16 would be off by 2 %: what its rounding leaves is one more channel
        rounded.append((sums - rounded[0]).to(q.dtype))
    q_sums = torch.cat((q * (scale * LOG2_E), *rounded), dim=3)
    k_ones = torch.cat((k, q.new_ones(()).expand(n, heads, t, len(rounded))), dim=3)
    for first in range(0, n, step):
        now = slice(first, min(first + step, n))
        qb, kb, vb, gb = (x[now].reshape(-1, t, x.shape[3]) for x in (q_sums, k_ones, v, grad))
        p, x = weights[: len(qb)], grads[: len(qb)]
        if tiled is None:
            torch.bmm(qb, kb.transpose(1, 2), out=p)
        else:
            torch.baddbmm(tiled[: len(qb)], qb, kb.transpose(1, 2), out=p)
        p.exp2_()
        # Transposing a thin matrix costs less than transposing a T x T matrix.
        grad_v = torch.bmm(gb.transpose(1, 2).contiguous(), p)
        torch.bmm(gb, vb.transpose(1, 2), out=x)
        softmax_backward(x, p)
        grad_k = torch.bmm(qb[..., :d].transpose(1, 2).contiguous(), x).div_(LOG2_E)
        grad_q = torch.bmm(x, kb[..., :d]).mul_(scale)
        for target, value in zip(out, (grad_q, grad_k.transpose(1, 2), grad_v.transpose(1, 2)), strict=True):
            target[now] = value.reshape(-1, heads, t, d).transpose(1, 2)
        if grad_added is not None:
            grad_added += x if len(x) == heads else x.view(-1, heads, t, t).sum(0)
    return grad_added

"""softmax(scale q k^T + bias + mask) v inside windows: torch's public attention, and on a CPU our own gradient."""

from __future__ import annotations

import math
from contextlib import nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.attention import SDPBackend, sdpa_kernel

from models.vrt.chunks import Tape
from models.vrt.torch_private import BLOCK_BYTES, fused_attention, softmax_backward
from models.vrt.windows import Span

# Windows times heads of one call: an axis of a GPU's grid of thread blocks has this limit.
MOST_HEADS = 65_535
LOG2_E = math.log2(math.e)
# Bytes of which a head must be a multiple for torch's fused attention on a GPU. It computes others, such as 20 channels
# in bfloat16, with T x T matrices in float32.
HEAD_BYTES = {"cuda": 16}
# Without that of cuDNN: its gradients are reported to be NaN for windows of 64 tokens with a mask.
BACKENDS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


def heads_of(qkv: Tensor, mutual: bool) -> tuple[Tensor, Tensor, Tensor]:
    """q, k, v of packed heads (n, T, 3, heads, hd): (n, T, heads, hd), of which k and v are views.

    mutual: each frame of a window of two counts as a window, (2 n, T / 2, heads, hd), with the queries of the other.
    """
    if not mutual:
        return qkv.unbind(2)
    q, k, v = qkv.unflatten(1, (2, -1)).unbind(3)
    return q.flip(1).flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1)


def mask_of(mask: Tensor | None, mutual: bool) -> Tensor | None:
    """The mask within a frame, which is that of both, or the whole mask."""
    half = None if mask is None or not mutual else len(mask) // 2
    return mask if half is None else mask[:half, :half]


def window_attention(
    qkv: Tensor, bias: Tensor | None, spans: tuple[Span, ...], scale: float, mutual: bool, own: bool, tape: Tape | None
) -> Tensor:  # fmt: skip
    """Attention among the tokens of each window, or between its two frames (mutual, without bias).

    qkv: (n, T, 3, heads, hd); bias: (heads, T, T) or None; spans: of all n windows. own: with
    `CpuAttention`, which records on the tape or reads from it. Returns (n, T, heads * hd).
    """
    parts = []
    # The gradient of a slice would be as large as the whole.
    for part, span in zip(qkv.split([span.stop - span.start for span in spans]), spans, strict=True):
        mask = mask_of(span.mask, mutual)
        if own:
            out = CpuAttention.apply(part, bias, mask, scale, mutual, tape)
        else:
            out = attend(*heads_of(part, mutual), scale, bias, mask)
        parts.append(out.reshape(len(part), qkv.shape[1], -1))
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def attend(q: Tensor, k: Tensor, v: Tensor, scale: float, bias: Tensor | None, mask: Tensor | None) -> Tensor:
    """q, k, v: (n, T, heads, hd) -> (n, T, heads, hd); bias (heads, T, T) and mask (T, T) for all n, or None."""
    added = logit_offset(bias, mask, q.dtype)
    n, _, heads, d = q.shape
    # Zeros change no logit; `scale` stays that of the true head.
    padding = head_padding(d, q)
    q, k, v = (F.pad(x, (0, padding)) if padding else x for x in (q, k, v))
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    parts, step = [], max(1, MOST_HEADS // heads)
    with sdpa_kernel(BACKENDS) if q.device.type == "cuda" else nullcontext():
        for first in range(0, n, step):
            part = (x[first : first + step] for x in (q, k, v))
            parts.append(F.scaled_dot_product_attention(*part, attn_mask=added, scale=scale))
    out = parts[0] if len(parts) == 1 else torch.cat(parts)
    return out[..., :d].transpose(1, 2)


def head_padding(channels: int, like: Tensor) -> int:
    """Channels to add to a head so that the fused attention on the device of `like` takes it."""
    return -channels % max(1, HEAD_BYTES.get(like.device.type, 0) // like.element_size())


def logit_offset(bias: Tensor | None, mask: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """Sum of bias and mask, which is added to the logits: (1, heads, T, T), (1, 1, T, T) or None."""
    if mask is not None:
        bias = mask[None] if bias is None else bias + mask
    return None if bias is None else bias[None].to(dtype)


class CpuAttention(torch.autograd.Function):
    """`attend` on packed heads of windows with one mask, with a gradient that keeps no T x T matrices."""

    @staticmethod
    def forward(
        ctx, qkv: Tensor, bias: Tensor | None, mask: Tensor | None, scale: float, mutual: bool, tape: Tape | None
    ) -> Tensor:
        if tape is not None and tape.recorded is not None:
            out, sums = next(tape.recorded)
        else:
            q, k, v = (x.transpose(1, 2) for x in heads_of(qkv, mutual))
            # torch has no fused attention with a bias that requires a gradient, not even in here.
            out, sums = fused_attention(q, k, v, logit_offset(bias, mask, qkv.dtype), scale)
            if tape is not None:
                tape.results.append((out, sums))
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

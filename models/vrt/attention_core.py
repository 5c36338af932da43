"""softmax(scale q k^T + bias + mask) v inside windows, for torch's autograd and for the CPU without it."""

from __future__ import annotations

import math
from contextlib import nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from models.vrt.gpu_attention import MOST_HEADS, attend_backward_on_gpu, attend_saving_on_gpu
from models.vrt.torch_private import BLOCK_BYTES, fused_attention, softmax_backward
from models.vrt.windows import Span

LOG2_E = math.log2(math.e)
# Bytes of which a head must be a multiple for torch's fused attention on a GPU. It computes others, such as 20 channels
# in bfloat16, with T x T matrices in float32.
HEAD_BYTES = {"cuda": 16}
# Without that of cuDNN: its gradients are reported to be NaN for windows of 64 tokens with a mask.
BACKENDS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


def window_attention(
    q: Tensor, k: Tensor, v: Tensor, scale: float, bias: Tensor | None, spans: tuple[Span, ...]
) -> Tensor:
    """Attention among the tokens of each window, for autograd and torch.compile.

    q, k, v: (B, windows, T, heads, hd), any strides; bias: (heads, T, T) or None; spans: of all windows.
    Returns (B, windows, T, heads, hd).
    """
    parts = []
    for span in spans:
        out = attend(*(x[:, span.start : span.stop].flatten(0, 1) for x in (q, k, v)), scale, bias, span.mask)
        parts.append(out.unflatten(0, (len(q), -1)))
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)


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


def attend_saving(
    q: Tensor, k: Tensor, v: Tensor, scale: float, bias: Tensor | None, mask: Tensor | None
) -> tuple[Tensor, Tensor]:
    """`attend` without autograd, and its log-sum-exp for `attend_backward`, on a CPU (n, T, heads).

    On a GPU the heads have the size that `head_padding` asks for.
    """
    added = logit_offset(bias, mask, q.dtype)
    if q.device.type != "cpu":
        return attend_saving_on_gpu(q, k, v, scale, added)
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    out, sums = fused_attention(q, k, v, added, scale)
    return out.transpose(1, 2), sums.transpose(1, 2)


def attend_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, scale: float, added: Tensor | None, sums: Tensor, out: list[Tensor],
    result: Tensor | None = None,
) -> Tensor | None:  # fmt: skip
    """Gradients of `attend`: writes those of q, k, v to the views `out`, returns that of `added`.

    On a CPU the logits are recomputed for a few windows at a time, so that they stay in the cache and the forward pass
    saves no T x T matrices. added: (1, heads or 1, T, T) or None; sums, result: of `attend_saving`; a CPU
    needs no result.
    The gradient is (heads, T, T) or None.
    """
    if q.device.type != "cpu":
        return attend_backward_on_gpu(grad, q, k, v, scale, added, sums, out, result)
    n, t, heads, d = q.shape
    step = min(n, max(1, BLOCK_BYTES // (heads * t * t * q.element_size())))
    grad_added = None if added is None else q.new_zeros(heads, t, t)
    weights, grads = q.new_empty(2, step * heads, t, t)
    # exp2 is twice as fast as exp. The log-sum-exp is subtracted by the matrix product, as one more channel.
    tiled = None if added is None else (added * LOG2_E).expand(step, heads, t, t).reshape(-1, t, t)
    q, k, v, grad, sums = (x.transpose(1, 2) for x in (q, k, v, grad, sums))
    q_sums = torch.cat((q * (scale * LOG2_E), (sums * -LOG2_E).unsqueeze(3)), dim=3)
    k_ones = torch.cat((k, q.new_ones(()).expand(n, heads, t, 1)), dim=3)
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

"""softmax(q k^T + bias + mask) v inside windows: the one place where attention itself is computed."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from models.vrt.windows import Span

# Bytes of logits at once in the backward pass: two such buffers stay in the last cache of a CPU.
BLOCK_BYTES = 4_000_000


def window_attention(
    q: Tensor, k: Tensor, v: Tensor, scale: float, bias: Tensor | None, spans: tuple[Span, ...]
) -> Tensor:
    """Attention among the tokens of each window, in the form that autograd and torch.compile understand.

    q, k, v: (B, windows, T, heads, hd), any strides; bias: (heads, T, T) or None; spans: cover the windows.
    Returns (B, windows, T, heads, hd).
    """
    parts = []
    for span in spans:
        out = attend(*(x[:, span.start : span.stop].flatten(0, 1) for x in (q, k, v)), scale, bias, span.mask)
        parts.append(out.unflatten(0, (len(q), -1)))
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)


def attend(q: Tensor, k: Tensor, v: Tensor, scale: float, bias: Tensor | None, mask: Tensor | None) -> Tensor:
    """(n, T, heads, hd) x 3 -> (n, T, heads, hd); one (T, T) mask for all windows, or None."""
    added = logit_offset(bias, mask, q.dtype)
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=added, scale=scale).transpose(1, 2)


def logit_offset(bias: Tensor | None, mask: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """What is added to the logits of every window: (1, heads, T, T), (1, 1, T, T) or None."""
    if mask is not None:
        bias = mask[None] if bias is None else bias + mask
    return None if bias is None else bias[None].to(dtype)


def attend_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, scale: float, added: Tensor | None, out: list[Tensor]
) -> Tensor | None:
    """Gradients of `attend`: of q, k, v into the views `out`, that of the logits' offset as the result.

    The logits are computed anew, few windows at a time, so that they never leave the cache: nothing of size
    T x T per window is kept from the forward pass. added: (1, heads or 1, T, T) or None. CPU, no autograd.
    """
    n, t, heads, _ = q.shape
    step = max(1, BLOCK_BYTES // (heads * t * t * q.element_size()))
    grad_added = None if added is None else q.new_zeros(heads, t, t)
    logits, weights = q.new_empty(2, min(step, n) * heads, t, t)
    tiled = None if added is None else added.expand(min(step, n), heads, t, t).reshape(-1, t, t)
    for first in range(0, n, step):
        now = slice(first, min(first + step, n))
        rows = (now.stop - now.start) * heads
        qb, kb, vb, gb = (x[now].transpose(1, 2).reshape(rows, t, -1) for x in (q, k, v, grad))
        x, p = logits[:rows], weights[:rows]
        if tiled is None:
            torch.bmm(qb, kb.transpose(1, 2), out=x).mul_(scale)
        else:
            torch.baddbmm(tiled[:rows], qb, kb.transpose(1, 2), alpha=scale, out=x)
        torch.softmax(x, -1, out=p)
        grads = [torch.bmm(p.transpose(1, 2), gb)]
        torch.bmm(gb, vb.transpose(1, 2), out=x)
        torch.ops.aten._softmax_backward_data.out(x, p, -1, x.dtype, grad_input=x)
        grads += [torch.bmm(x.transpose(1, 2), qb).mul_(scale), torch.bmm(x, kb).mul_(scale)]
        for target, value in zip(reversed(out), grads, strict=True):
            target[now] = value.view(-1, heads, t, value.shape[-1]).transpose(1, 2)
        if grad_added is not None:
            grad_added += x if rows == heads else x.view(-1, heads, t, t).sum(0)
    return grad_added

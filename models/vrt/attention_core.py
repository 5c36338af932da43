"""softmax(q k^T + bias + mask) v inside windows: the one place where attention itself is computed."""

from __future__ import annotations

import torch
from torch import Tensor

from models.vrt.windows import Span


def window_attention(
    q: Tensor, k: Tensor, v: Tensor, scale: float, bias: Tensor | None, spans: tuple[Span, ...]
) -> Tensor:
    """Attention among the tokens of each window.

    q, k, v: (windows, T, heads, hd), any strides; bias: (heads, T, T) or None; spans: cover all windows.
    Returns (windows, T, heads, hd), contiguous. The softmax is taken in float32 at least.
    """
    parts = []
    for span in spans:
        part = slice(span.start, span.stop)
        logits = (q[part].transpose(1, 2) * scale) @ k[part].permute(0, 2, 3, 1)
        if bias is not None:
            logits = logits + bias
        if span.mask is not None:
            logits = logits + span.mask.to(logits.dtype)
        weights = logits.softmax(-1, dtype=torch.promote_types(logits.dtype, torch.float32)).to(v.dtype)
        parts.append((weights @ v[part].transpose(1, 2)).transpose(1, 2))
    return torch.cat(parts)

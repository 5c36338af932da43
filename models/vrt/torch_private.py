"""Private functions of torch for the CPU: each is tested once at import, and replaced by a public one if it fails.

Other modules call `fused_attention` and `softmax_backward`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

# Bytes of the T x T matrices that are computed at once: they should fit the last-level cache of a CPU.
BLOCK_BYTES = 4_000_000

logger = logging.getLogger(__name__)


def public_attention(q: Tensor, k: Tensor, v: Tensor, added: Tensor | None, scale: float) -> tuple[Tensor, Tensor]:
    """softmax(scale q k^T + added) v, and the log-sum-exp of each row of logits.

    q, k, v: (n, heads, T, hd); added: (1, heads or 1, T, T) or None -> (n, heads, T, hd), (n, heads, T). No autograd.
    """
    out, sums = torch.empty_like(q), q.new_empty(q.shape[:3])
    step = max(1, BLOCK_BYTES // (q.shape[1] * q.shape[2] ** 2 * q.element_size()))
    for parts in zip(*(x.split(step) for x in (q, k, v, out, sums)), strict=True):
        qb, kb, vb, out_b, sums_b = parts
        logits = (qb * scale) @ kb.transpose(2, 3)
        if added is not None:
            logits += added
        sums_b.copy_(logits.logsumexp(3))
        out_b.copy_(logits.sub_(sums_b.unsqueeze(3)).exp_() @ vb)
    return out, sums


def public_softmax_backward(grad: Tensor, weights: Tensor) -> None:
    """In place: from the gradient of `weights`, a softmax over the last dimension, to that of its logits."""
    grad.mul_(weights)
    grad.addcmul_(weights, grad.sum(-1, keepdim=True), value=-1)


def _private_attention(q: Tensor, k: Tensor, v: Tensor, added: Tensor | None, scale: float) -> tuple[Tensor, Tensor]:
    # The function behind scaled_dot_product_attention on a CPU. Only this private form returns the log-sum-exp.
    fused = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    return fused(q, k, v, 0.0, False, attn_mask=added, scale=scale)


def _private_softmax_backward(grad: Tensor, weights: Tensor) -> None:
    torch.ops.aten._softmax_backward_data.out(grad, weights, -1, grad.dtype, grad_input=grad)


def _try_attention(attention: Callable[..., Any]) -> Tensor:
    q, k, v = torch.linspace(-1, 1, 3 * 2 * 3 * 4, device="cpu").view(3, 1, 2, 3, 4)
    out, sums = attention(q, k, v, q.new_ones(1, 2, 3, 3).tril(), 0.5)
    return torch.cat((out, sums.unsqueeze(3)), dim=3)


def _try_softmax_backward(backward: Callable[..., Any]) -> Tensor:
    grad, weights = torch.linspace(-1, 1, 12, device="cpu").view(3, 4), torch.full((3, 4), 0.25, device="cpu")
    backward(grad, weights)
    return grad


def choose(private: Callable[..., Any], public: Callable[..., Any], trial: Callable[..., Tensor]) -> Callable[..., Any]:
    """`private` if `trial` succeeds with it and gives the numbers of `public`; else `public`, with a warning."""
    try:
        found, expected = trial(private), trial(public)
        if found.shape == expected.shape and torch.allclose(found, expected, atol=1e-5):
            return private
        reason = "its numbers differ"
    except (AttributeError, NotImplementedError, RuntimeError, TypeError, ValueError) as e:
        reason = str(e).splitlines()[0] if str(e) else type(e).__name__
    logger.warning(
        "torch %s: %s is used for %s (%s); slower", torch.__version__, public.__name__, private.__name__, reason
    )
    return public


fused_attention = choose(_private_attention, public_attention, _try_attention)
softmax_backward = choose(_private_softmax_backward, public_softmax_backward, _try_softmax_backward)

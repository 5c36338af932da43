"""Attention on a GPU by torch's memory-efficient kernel, forward and backward in two calls without autograd.

`F.scaled_dot_product_attention` keeps q, k and v for its backward pass. Called apart, they can be computed anew.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

# Windows times heads of one call: an axis of a GPU's grid of thread blocks has this limit.
MOST_HEADS = 65_535
# The kernel writes a gradient of the bias for each window: so many bytes of them at a time.
BIAS_BYTES = 500_000_000
EFFICIENT = torch.ops.aten._scaled_dot_product_efficient_attention


def attend_saving_on_gpu(q: Tensor, k: Tensor, v: Tensor, scale: float, added: Tensor | None) -> tuple[Tensor, Tensor]:
    """softmax(scale q k^T + added) v, (n, T, heads, hd) as q, k, v, and log-sum-exps for the backward pass.

    added: (1, heads or 1, T, T) or None. The log-sum-exps are (n, heads, T, or more: a multiple of 32), float32.
    """
    results, step = [], max(1, MOST_HEADS // q.shape[2])
    for first in range(0, len(q), step):
        part = [x[first : first + step].transpose(1, 2) for x in (q, k, v)]
        out, sums, *_ = EFFICIENT(*part, _expanded(added, part[0]), True, 0.0, False, scale=scale)
        results.append((out.transpose(1, 2), sums))
    return results[0] if len(results) == 1 else tuple(torch.cat(tensors) for tensors in zip(*results, strict=True))


def attend_backward_on_gpu(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, scale: float, added: Tensor | None, sums: Tensor, out: list[Tensor],
    result: Tensor,
) -> Tensor | None:  # fmt: skip
    """Writes the gradients of q, k, v to the views `out`; returns that of a bias in `added`, (heads, T, T), float32."""
    n, t, heads, _ = q.shape
    has_bias = added is not None and added.shape[1] == heads
    step = max(1, MOST_HEADS // heads)
    if has_bias:
        step = max(1, min(step, BIAS_BYTES // (heads * t * t * q.element_size())))
    unused = torch.empty((), dtype=torch.long, device=q.device)  # the state of the random numbers of dropout
    grad_bias = None
    for first in range(0, n, step):
        now = slice(first, first + step)
        g, qb, kb, vb, found = (x[now].transpose(1, 2) for x in (grad, q, k, v, result))
        *grads, bias = torch.ops.aten._scaled_dot_product_efficient_attention_backward(
            g, qb, kb, vb, _expanded(added, qb), found, sums[now], unused, unused, 0.0, [True, True, True, has_bias],
            False, scale=scale,
        )  # fmt: skip
        for target, value in zip(out, grads, strict=True):
            target[now] = value.transpose(1, 2)
        if has_bias:
            bias = bias.sum(0, dtype=torch.float32)
            grad_bias = bias if grad_bias is None else grad_bias.add_(bias)
    return grad_bias


def _expanded(added: Tensor | None, q: Tensor) -> Tensor | None:
    """`added` for each window and head of q (n, heads, T, hd), with rows that begin at multiples of 16 bytes."""
    if added is None:
        return None
    t = q.shape[2]
    if t % 8:
        added = F.pad(added, (0, -t % 8))[..., :t]
    return added.expand(*q.shape[:2], t, t)

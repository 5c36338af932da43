"""The two branches of a block for the CPU: a few windows or rows at a time, from the input to the residual sum.

Everything between lives in cache and is computed anew in the backward pass. What a block keeps for it is its
input and the attention's output; the plain form keeps sixteen to twenty-one tensors of that size. The numbers
are those of the plain form in window_attention.py up to rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from models.vrt.attention_core import attend_backward, attend_saving, logit_offset
from models.vrt.mlp import GatedMlp
from models.vrt.windows import WindowPlan

# Tokens worked on at once: their widest intermediate should stay in the last cache.
TOKENS = 2048


@dataclass(frozen=True)
class AttentionShape:
    """What the attention branch needs to know beside its tensors."""

    heads: int
    scale: float
    mutual: bool
    eps: float
    keep_output: bool


class AttentionBranch(torch.autograd.Function):
    """x + keep * proj(attention(partition(norm1(x)))), sample by sample and a few windows at a time.

    x: (B, D * H * W, C); keep: per sample, 0.0 where stochastic depth drops the branch; bias: (heads, T, T);
    the weights in the order of `_Weights`.
    """

    @staticmethod
    def forward(ctx, x: Tensor, keep: list[float], plan: WindowPlan, shape: AttentionShape, *weights: Tensor) -> Tensor:
        w = _detached(weights)
        out = torch.empty_like(x)
        kept = []
        for sample, factor in enumerate(keep):
            if factor == 0.0:
                out[sample] = x[sample]
                continue
            inner = sums = None
            if shape.keep_output and ctx.needs_input_grad[0]:
                inner = x.new_empty(len(plan.rows), w.inner)
                sums = x.new_empty(len(plan.rows), w.inner // x.shape[2], shape.heads)
            for piece in _pieces(plan):
                rows = plan.rows[piece.tokens]
                tokens = x[sample].index_select(0, rows)
                attended, logsumexp = _attended(_normed(tokens, w, plan, piece, shape)[0], w, piece, shape)
                if inner is not None:
                    inner[piece.tokens], sums[piece.tokens] = attended, logsumexp
                tokens.add_(F.linear(attended, w.proj, w.proj_bias), alpha=factor)
                _put(out[sample], tokens, plan, piece)
            kept += [inner, sums]
        ctx.save_for_backward(x, *weights, *(k for k in kept if k is not None))
        ctx.args = keep, plan, shape, len(weights)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor):
        keep, plan, shape, count = ctx.args
        x, *saved = ctx.saved_tensors
        w = _detached(saved[:count])
        kept = iter(saved[count:])
        g = _Weights(*(None if t is None else torch.zeros_like(t) for t in saved[:count]))
        grad_x = torch.empty_like(x)
        for sample, factor in enumerate(keep):
            if factor == 0.0:
                grad_x[sample] = grad[sample]
                continue
            inner, sums = (next(kept), next(kept)) if shape.keep_output else (None, None)
            for piece in _pieces(plan):
                rows = plan.rows[piece.tokens]
                tokens, incoming = x[sample].index_select(0, rows), grad[sample].index_select(0, rows)
                outgoing = incoming if factor == 1.0 and plan.real is None else incoming * factor
                _blank(outgoing, plan, piece)
                u, mean, rstd = _normed(tokens, w, plan, piece, shape)
                saved = _attended(u, w, piece, shape) if inner is None else (inner[piece.tokens], sums[piece.tokens])
                grad_u = _attended_backward(outgoing, *saved, u, w, g, piece, shape)
                _blank(grad_u, plan, piece)
                grad_tokens, dw, db = torch.ops.aten.native_layer_norm_backward(
                    grad_u, tokens, [tokens.shape[-1]], mean, rstd, w.norm, w.norm_bias, [True, True, True]
                )
                g.norm.add_(dw)
                g.norm_bias.add_(db)
                _put(grad_x[sample], grad_tokens.add_(incoming), plan, piece)
        return grad_x, None, None, None, *g.as_tuple()


@dataclass
class _Weights:
    """Tensors of the attention branch, or their gradients; the last three only where attention is mutual."""

    norm: Tensor
    norm_bias: Tensor
    bias: Tensor
    qkv: Tensor
    qkv_bias: Tensor | None
    proj: Tensor
    proj_bias: Tensor
    qkv_mut: Tensor | None = None
    qkv_mut_bias: Tensor | None = None
    positions: Tensor | None = None

    @property
    def inner(self) -> int:
        return self.proj.shape[1]

    def as_tuple(self) -> tuple[Tensor | None, ...]:
        every = tuple(vars(self).values())
        # Positions are a constant of the network.
        return every[:7] if self.qkv_mut is None else (*every[:9], None)


def _detached(weights: Sequence[Tensor | None]) -> _Weights:
    # A bias that still asks for a gradient, even here, keeps the fused attention of torch away.
    return _Weights(*(None if t is None else t.detach() for t in weights))


@dataclass(frozen=True)
class _Piece:
    """Windows `first` .. `last` - 1 of a plan, all of one mask pattern, and their rows."""

    mask: Tensor | None
    windows: int
    tokens: slice


def _pieces(plan: WindowPlan) -> list[_Piece]:
    step, t = max(1, TOKENS // plan.tokens), plan.tokens
    pieces = []
    for span in plan.spans:
        for first in range(span.start, span.stop, step):
            last = min(first + step, span.stop)
            pieces.append(_Piece(span.mask, last - first, slice(first * t, last * t)))
    return pieces


def _blank(tokens: Tensor, plan: WindowPlan, piece: _Piece) -> None:
    if plan.real is not None:
        tokens.masked_fill_(~plan.real[piece.tokens, None], 0.0)


def _put(out: Tensor, tokens: Tensor, plan: WindowPlan, piece: _Piece) -> None:
    rows = plan.rows[piece.tokens]
    if plan.real is not None:
        real = plan.real[piece.tokens]
        rows, tokens = rows[real], tokens[real]
    out.index_copy_(0, rows, tokens)


def _normed(tokens: Tensor, w: _Weights, plan: WindowPlan, piece: _Piece, shape: AttentionShape):
    """Layer norm of tokens, zero where they are padding; with its mean and reciprocal deviation."""
    u, mean, rstd = torch.native_layer_norm(tokens, [tokens.shape[-1]], w.norm, w.norm_bias, shape.eps)
    _blank(u, plan, piece)
    return u, mean, rstd


def _split(qkv: Tensor, windows: int, heads: int) -> Tensor:
    """(windows * T, 3C) -> (windows, T, 3, heads, hd)."""
    return qkv.view(windows, len(qkv) // windows, 3, heads, -1)


def _halves(qkv: Tensor, mask: Tensor | None):
    """Queries of one frame, keys and values of the other, as (place, q, k, v); and the mask inside one frame."""
    half = qkv.shape[1] // 2
    frames = (slice(0, half), slice(half, None))
    for place, other in (frames, frames[::-1]):
        yield place, other, qkv[:, other, 0], qkv[:, place, 1], qkv[:, place, 2], _corner(mask, half)


def _corner(mask: Tensor | None, half: int) -> Tensor | None:
    return None if mask is None else mask[:half, :half]


def _placed(u: Tensor, w: _Weights, windows: int) -> Tensor:
    half = w.positions.shape[1]
    return (u.view(windows, 2, half, -1) + w.positions).view_as(u)


def _attended(u: Tensor, w: _Weights, piece: _Piece, shape: AttentionShape) -> tuple[Tensor, Tensor]:
    """What enters the projection, (tokens, C), or (tokens, 2C) with the mutual half first; and the sums of
    `attend_saving`, (tokens, 1 or 2, heads), in the same order."""
    c, n = u.shape[1], piece.windows
    out = u.new_empty(len(u), w.inner)
    sums = u.new_empty(len(u), w.inner // c, shape.heads)
    by_head, by_window = _by_window(out, sums, n)
    q, k, v = _split(F.linear(u, w.qkv, w.qkv_bias), n, shape.heads).unbind(2)
    by_head[:, :, -1], by_window[:, :, -1] = attend_saving(q, k, v, shape.scale, w.bias, piece.mask)
    if shape.mutual:
        qkv = _split(F.linear(_placed(u, w, n), w.qkv_mut, w.qkv_mut_bias), n, shape.heads)
        for place, _, q, k, v, mask in _halves(qkv, piece.mask):
            by_head[:, place, 0], by_window[:, place, 0] = attend_saving(q, k, v, shape.scale, None, mask)
    return out, sums


def _by_window(attended: Tensor, sums: Tensor, windows: int) -> tuple[Tensor, Tensor]:
    """(tokens, parts * C), (tokens, parts, heads) -> (windows, T, parts, heads, hd), (windows, T, parts, heads)."""
    sums = sums.view(windows, -1, *sums.shape[1:])
    return attended.view(*sums.shape, -1), sums


def _attended_backward(
    grad: Tensor,
    attended: Tensor,
    sums: Tensor,
    u: Tensor,
    w: _Weights,
    g: _Weights,
    piece: _Piece,
    shape: AttentionShape,
) -> Tensor:
    """Gradient of u from that of the projection's output; those of the weights are added to `g`."""
    n = piece.windows
    _add_linear(g.proj, g.proj_bias, grad, attended)
    by_head, sums = _by_window(grad @ w.proj, sums, n)

    qkv = _split(F.linear(u, w.qkv, w.qkv_bias), n, shape.heads)
    grad_qkv = torch.empty_like(qkv)
    targets = list(grad_qkv.unbind(2))
    added = logit_offset(w.bias, piece.mask, u.dtype)
    g.bias.add_(attend_backward(by_head[:, :, -1], *qkv.unbind(2), shape.scale, added, sums[:, :, -1], targets))
    flat = grad_qkv.view(len(u), -1)
    _add_linear(g.qkv, g.qkv_bias, flat, u)
    grad_u = flat @ w.qkv
    if not shape.mutual:
        return grad_u

    placed = _placed(u, w, n)
    qkv = _split(F.linear(placed, w.qkv_mut, w.qkv_mut_bias), n, shape.heads)
    for place, other, q, k, v, mask in _halves(qkv, piece.mask):
        targets = [grad_qkv[:, other, 0], grad_qkv[:, place, 1], grad_qkv[:, place, 2]]
        added = logit_offset(None, mask, u.dtype)
        attend_backward(by_head[:, place, 0], q, k, v, shape.scale, added, sums[:, place, 0], targets)
    _add_linear(g.qkv_mut, g.qkv_mut_bias, flat, placed)
    return grad_u.addmm_(flat, w.qkv_mut)


def _add_linear(weight: Tensor, bias: Tensor | None, grad: Tensor, x: Tensor) -> None:
    """Adds the gradients of a linear layer with input x to `weight` and `bias`."""
    weight.addmm_(grad.t(), x)
    if bias is not None:
        bias.add_(grad.sum(0))


class FeedBranch(torch.autograd.Function):
    """x + keep * fc2(gelu(fc11(n)) * fc12(n)), n = norm2(x), a few rows at a time; keep as in AttentionBranch.

    x: (B, tokens, C). norm and norm_bias may be None: then n = x and there is no residual sum (pa_fuse).
    """

    @staticmethod
    def forward(ctx, x: Tensor, keep: list[float], eps: float, *weights: Tensor | None) -> Tensor:
        norm, norm_bias, w11, b11, w12, b12, w2, b2 = weights
        out = x.new_empty(*x.shape[:-1], len(w2))
        for rows, result, factor in _runs(x, keep, out):
            if factor == 0.0:
                result.copy_(rows)
                continue
            u = rows if norm is None else F.layer_norm(rows, [rows.shape[-1]], norm, norm_bias, eps)
            h = F.gelu(F.linear(u, w11, b11)).mul_(F.linear(u, w12, b12))
            if norm is None:
                torch.addmm(b2, h, w2.t(), out=result)
            else:
                torch.add(rows, F.linear(h, w2, b2), alpha=factor, out=result)
        ctx.save_for_backward(x, *weights)
        ctx.args = keep, eps
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor):
        keep, eps = ctx.args
        x, *weights = ctx.saved_tensors
        norm, norm_bias, w11, b11, w12, b12, w2, _ = weights
        g = [None if t is None else torch.zeros_like(t) for t in weights]
        grad_x = torch.empty_like(x)
        for rows, result, factor, incoming in _runs(x, keep, grad_x, grad):
            if factor == 0.0:
                result.copy_(incoming)
                continue
            if norm is None:
                u, outgoing = rows, incoming
            else:
                u, mean, rstd = torch.native_layer_norm(rows, [rows.shape[-1]], norm, norm_bias, eps)
                outgoing = incoming if factor == 1.0 else incoming * factor
            a, b = F.linear(u, w11, b11), F.linear(u, w12, b12)
            gelu = F.gelu(a)
            _add_linear(g[6], g[7], outgoing, gelu * b)
            grad_h = outgoing @ w2
            grad_a = torch.ops.aten.gelu_backward(grad_h * b, a)
            grad_b = grad_h.mul_(gelu)
            _add_linear(g[2], g[3], grad_a, u)
            _add_linear(g[4], g[5], grad_b, u)
            grad_u = (grad_a @ w11).addmm_(grad_b, w12)
            if norm is None:
                result.copy_(grad_u)
                continue
            grad_rows, dw, db = torch.ops.aten.native_layer_norm_backward(
                grad_u, rows, [rows.shape[-1]], mean, rstd, norm, norm_bias, [True, True, True]
            )
            g[0].add_(dw)
            g[1].add_(db)
            torch.add(grad_rows, incoming, out=result)
        return grad_x, None, None, *g


def feed_in_cache(mlp: GatedMlp, x: Tensor) -> Tensor:
    """`mlp` alone, without norm or residual sum, over the last axis of x (B, ..)."""
    y = FeedBranch.apply(x.flatten(1, -2), [1.0] * len(x), 0.0, None, None, *mlp.weights())
    return y.view(*x.shape[:-1], -1)


def _runs(x: Tensor, keep: list[float], *others: Tensor):
    """Runs of rows of one sample: (rows of x, of the first of `others`, its factor, rows of the rest)."""
    for sample, factor in enumerate(keep):
        for first in range(0, x.shape[1], TOKENS):
            run = slice(first, first + TOKENS)
            mine = [t[sample, run] for t in others]
            yield (x[sample, run], mine[0], factor, *mine[1:])

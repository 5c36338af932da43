"""The two branches of a block for the CPU, a few windows or rows at a time from the input to the residual sum.

The intermediates stay in the cache and are recomputed in backward. A block saves its input and the output of the
attention; the plain form in window_attention.py saves 16 to 21 tensors of that size. Both give the same numbers up to
rounding.
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

# Tokens that are processed at once: their widest intermediate should fit the last-level cache.
TOKENS = 2048


@dataclass(frozen=True)
class AttentionConfig:
    """Arguments of the attention branch that are not tensors. eps: of norm1. save_output: for backward."""

    heads: int
    scale: float
    mutual: bool
    eps: float
    save_output: bool


class AttentionBranch(torch.autograd.Function):
    """x + factor * proj(attention(partition(norm1(x)))), sample by sample and a few windows at a time.

    x: (B, D * H * W, C); factors: one per sample, 0.0 if stochastic depth drops the branch; weights: in the order of
    `_Weights`.
    """

    @staticmethod
    def forward(
        ctx, x: Tensor, factors: list[float], plan: WindowPlan, config: AttentionConfig, *weights: Tensor
    ) -> Tensor:
        w = _detached(weights)
        out = torch.empty_like(x)
        outputs = []
        for sample, factor in enumerate(factors):
            if factor == 0.0:
                out[sample] = x[sample]
                continue
            inner = sums = None
            if config.save_output and ctx.needs_input_grad[0]:
                inner = x.new_empty(len(plan.rows), w.inner)
                sums = x.new_empty(len(plan.rows), w.inner // x.shape[2], config.heads)
            for chunk in _chunks(plan):
                rows = plan.rows[chunk.tokens]
                tokens = x[sample].index_select(0, rows)
                attended, logsumexp = _attention(_layer_norm(tokens, w, plan, chunk, config)[0], w, chunk, config)
                if inner is not None:
                    inner[chunk.tokens], sums[chunk.tokens] = attended, logsumexp
                tokens.add_(F.linear(attended, w.proj, w.proj_bias), alpha=factor)
                _scatter(out[sample], tokens, plan, chunk)
            outputs += [inner, sums]
        ctx.save_for_backward(x, *weights, *(t for t in outputs if t is not None))
        ctx.args = factors, plan, config, len(weights)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor):
        factors, plan, config, count = ctx.args
        x, *tensors = ctx.saved_tensors
        w, outputs = _detached(tensors[:count]), iter(tensors[count:])
        g = _Weights(*(None if t is None else torch.zeros_like(t) for t in tensors[:count]))
        grad_x = torch.empty_like(x)
        for sample, factor in enumerate(factors):
            if factor == 0.0:
                grad_x[sample] = grad[sample]
                continue
            inner, sums = (next(outputs), next(outputs)) if config.save_output else (None, None)
            for chunk in _chunks(plan):
                rows = plan.rows[chunk.tokens]
                tokens, incoming = x[sample].index_select(0, rows), grad[sample].index_select(0, rows)
                outgoing = incoming if factor == 1.0 and plan.real is None else incoming * factor
                _zero_padding(outgoing, plan, chunk)
                u, mean, rstd = _layer_norm(tokens, w, plan, chunk, config)
                saved = _attention(u, w, chunk, config) if inner is None else (inner[chunk.tokens], sums[chunk.tokens])
                grad_u = _attention_backward(outgoing, *saved, u, w, g, chunk, config)
                _zero_padding(grad_u, plan, chunk)
                grad_tokens, dw, db = torch.ops.aten.native_layer_norm_backward(
                    grad_u, tokens, [tokens.shape[-1]], mean, rstd, w.norm, w.norm_bias, [True, True, True]
                )
                g.norm.add_(dw)
                g.norm_bias.add_(db)
                _scatter(grad_x[sample], grad_tokens.add_(incoming), plan, chunk)
        return grad_x, None, None, None, *g.as_tuple()


@dataclass
class _Weights:
    """Tensors of the attention branch, or their gradients. bias: (heads, T, T); the last three: mutual attention."""

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
        # The positions are constant and have no gradient.
        return every[:7] if self.qkv_mut is None else (*every[:9], None)


def _detached(weights: Sequence[Tensor | None]) -> _Weights:
    # torch does not use its fused attention with a bias that requires a gradient, not even in here.
    return _Weights(*(None if t is None else t.detach() for t in weights))


@dataclass(frozen=True)
class _Chunk:
    """Consecutive windows with the same mask: their number, and the slice of their tokens in window order."""

    mask: Tensor | None
    windows: int
    tokens: slice


def _chunks(plan: WindowPlan) -> list[_Chunk]:
    step, t = max(1, TOKENS // plan.tokens), plan.tokens
    chunks = []
    for span in plan.spans:
        for first in range(span.start, span.stop, step):
            last = min(first + step, span.stop)
            chunks.append(_Chunk(span.mask, last - first, slice(first * t, last * t)))
    return chunks


def _zero_padding(tokens: Tensor, plan: WindowPlan, chunk: _Chunk) -> None:
    if plan.real is not None:
        tokens.masked_fill_(~plan.real[chunk.tokens, None], 0.0)


def _scatter(out: Tensor, tokens: Tensor, plan: WindowPlan, chunk: _Chunk) -> None:
    rows = plan.rows[chunk.tokens]
    if plan.real is not None:
        real = plan.real[chunk.tokens]
        rows, tokens = rows[real], tokens[real]
    out.index_copy_(0, rows, tokens)


def _layer_norm(tokens: Tensor, w: _Weights, plan: WindowPlan, chunk: _Chunk, config: AttentionConfig):
    """Layer norm of tokens, zero at padding; its mean and reciprocal standard deviation."""
    u, mean, rstd = torch.native_layer_norm(tokens, [tokens.shape[-1]], w.norm, w.norm_bias, config.eps)
    _zero_padding(u, plan, chunk)
    return u, mean, rstd


def _split(qkv: Tensor, windows: int, heads: int) -> Tensor:
    """(windows * T, 3C) -> (windows, T, 3, heads, hd)."""
    return qkv.view(windows, len(qkv) // windows, 3, heads, -1)


def _mutual_parts(qkv: Tensor, mask: Tensor | None):
    """For both frames: slices of it and of the other frame, q of the other, its own k and v, mask within a frame."""
    half = qkv.shape[1] // 2
    frames = (slice(0, half), slice(half, None))
    mask = None if mask is None else mask[:half, :half]
    for frame, other in (frames, frames[::-1]):
        yield frame, other, qkv[:, other, 0], qkv[:, frame, 1], qkv[:, frame, 2], mask


def _add_positions(u: Tensor, w: _Weights, windows: int) -> Tensor:
    half = w.positions.shape[1]
    return (u.view(windows, 2, half, -1) + w.positions).view_as(u)


def _attention(u: Tensor, w: _Weights, chunk: _Chunk, config: AttentionConfig) -> tuple[Tensor, Tensor]:
    """Input of the projection, (tokens, C), or (tokens, 2C) with the mutual half first, and its log-sum-exp.

    The latter is (tokens, 1 or 2, heads), in the same order.
    """
    c, n = u.shape[1], chunk.windows
    out = u.new_empty(len(u), w.inner)
    sums = u.new_empty(len(u), w.inner // c, config.heads)
    by_head, by_window = _by_window(out, sums, n)
    q, k, v = _split(F.linear(u, w.qkv, w.qkv_bias), n, config.heads).unbind(2)
    by_head[:, :, -1], by_window[:, :, -1] = attend_saving(q, k, v, config.scale, w.bias, chunk.mask)
    if config.mutual:
        qkv = _split(F.linear(_add_positions(u, w, n), w.qkv_mut, w.qkv_mut_bias), n, config.heads)
        for frame, _, q, k, v, mask in _mutual_parts(qkv, chunk.mask):
            by_head[:, frame, 0], by_window[:, frame, 0] = attend_saving(q, k, v, config.scale, None, mask)
    return out, sums


def _by_window(attended: Tensor, sums: Tensor, windows: int) -> tuple[Tensor, Tensor]:
    """(tokens, parts * C), (tokens, parts, heads) -> (windows, T, parts, heads, hd), (windows, T, parts, heads)."""
    sums = sums.view(windows, -1, *sums.shape[1:])
    return attended.view(*sums.shape, -1), sums


def _attention_backward(
    grad: Tensor, attended: Tensor, sums: Tensor, u: Tensor,
    w: _Weights, g: _Weights, chunk: _Chunk, config: AttentionConfig,
) -> Tensor:  # fmt: skip
    """Gradient of u from that of the projection's output; adds the gradients of the weights to `g`."""
    n = chunk.windows
    _add_linear(g.proj, g.proj_bias, grad, attended)
    by_head, sums = _by_window(grad @ w.proj, sums, n)

    qkv = _split(F.linear(u, w.qkv, w.qkv_bias), n, config.heads)
    grad_qkv = torch.empty_like(qkv)
    targets = list(grad_qkv.unbind(2))
    added = logit_offset(w.bias, chunk.mask, u.dtype)
    g.bias.add_(attend_backward(by_head[:, :, -1], *qkv.unbind(2), config.scale, added, sums[:, :, -1], targets))
    flat = grad_qkv.view(len(u), -1)
    _add_linear(g.qkv, g.qkv_bias, flat, u)
    grad_u = flat @ w.qkv
    if not config.mutual:
        return grad_u

    positioned = _add_positions(u, w, n)
    qkv = _split(F.linear(positioned, w.qkv_mut, w.qkv_mut_bias), n, config.heads)
    for frame, other, q, k, v, mask in _mutual_parts(qkv, chunk.mask):
        targets = [grad_qkv[:, other, 0], grad_qkv[:, frame, 1], grad_qkv[:, frame, 2]]
        added = logit_offset(None, mask, u.dtype)
        attend_backward(by_head[:, frame, 0], q, k, v, config.scale, added, sums[:, frame, 0], targets)
    _add_linear(g.qkv_mut, g.qkv_mut_bias, flat, positioned)
    return grad_u.addmm_(flat, w.qkv_mut)


def _add_linear(weight: Tensor, bias: Tensor | None, grad: Tensor, x: Tensor) -> None:
    """Add the gradients of a linear layer with input x to `weight` and `bias`."""
    weight.addmm_(grad.t(), x)
    if bias is not None:
        bias.add_(grad.sum(0))


class MlpBranch(torch.autograd.Function):
    """x + factor * fc2(gelu(fc11(n)) * fc12(n)), n = norm2(x), a few rows at a time; factors: see AttentionBranch.

    x: (B, tokens, C). With norm and norm_bias None, n = x and there is no residual sum (pa_fuse).
    """

    @staticmethod
    def forward(ctx, x: Tensor, factors: list[float], eps: float, *weights: Tensor | None) -> Tensor:
        norm, norm_bias, w11, b11, w12, b12, w2, b2 = weights
        out = x.new_empty(*x.shape[:-1], len(w2))
        for rows, result, factor in _row_chunks(x, factors, out):
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
        ctx.args = factors, eps
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor):
        factors, eps = ctx.args
        x, *weights = ctx.saved_tensors
        norm, norm_bias, w11, b11, w12, b12, w2, _ = weights
        g = [None if t is None else torch.zeros_like(t) for t in weights]
        grad_x = torch.empty_like(x)
        for rows, result, factor, incoming in _row_chunks(x, factors, grad_x, grad):
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


def mlp_in_cache(mlp: GatedMlp, x: Tensor) -> Tensor:
    """`mlp` over the last axis of x (B, ..), without norm and residual sum."""
    y = MlpBranch.apply(x.flatten(1, -2), [1.0] * len(x), 0.0, None, None, *mlp.weights())
    return y.view(*x.shape[:-1], -1)


def _row_chunks(x: Tensor, factors: list[float], *others: Tensor):
    """Consecutive rows of one sample: (rows of x, rows of the first of `others`, factor, rows of the rest)."""
    for sample, factor in enumerate(factors):
        for first in range(0, x.shape[1], TOKENS):
            run = slice(first, first + TOKENS)
            mine = [t[sample, run] for t in others]
            yield (x[sample, run], mine[0], factor, *mine[1:])

"""A block for GPUs: all windows at once, one dtype throughout, and most intermediates computed anew in backward.

A block saves its input, the output of the attention with its log-sums, and the input of the MLP. The plain form in
window_attention.py saves 16 to 21 tensors of that size, and under autocast casts each several times. cpu_block.py does
the same for a CPU, a few windows at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from models.vrt.attention_core import attend_backward, attend_saving, head_padding, logit_offset
from models.vrt.block_rows import (
    Norm,
    Statistics,
    add_norm,
    add_norm_backward,
    add_scaled,
    norm,
    norm_windows,
    norm_windows_backward,
    scaled,
)
from models.vrt.gpu_attention import BIAS_BYTES
from models.vrt.kernels import use_triton
from models.vrt.mlp import GatedMlp
from models.vrt.precision import compute_dtype
from models.vrt.windows import WindowPlan


@dataclass(frozen=True)
class BlockConfig:
    """Arguments of a block that are not tensors.

    eps: of the layer norms. saves_attention, saves_middle: keep the output of the attention, the input of the MLP for
    backward; else they are computed anew. triton, triton_mlp, triton_rows: by the kernels of triton_attention.py,
    triton_mlp.py, triton_rows.py.
    """

    heads: int
    scale: float
    mutual: bool
    eps: float
    saves_attention: bool
    saves_middle: bool
    triton: bool
    triton_mlp: bool
    triton_rows: bool


class BlockWeights(NamedTuple):
    """Tensors of a block, or their gradients. bias: (heads, T, T); the three of mutual attention may be None."""

    norm1: Tensor
    norm1_bias: Tensor
    bias: Tensor
    qkv: Tensor
    qkv_bias: Tensor | None
    proj: Tensor
    proj_bias: Tensor
    qkv_mut: Tensor | None
    qkv_mut_bias: Tensor | None
    positions: Tensor | None
    norm2: Tensor
    norm2_bias: Tensor
    fc11: Tensor
    fc11_bias: Tensor
    fc12: Tensor
    fc12_bias: Tensor
    fc2: Tensor
    fc2_bias: Tensor


class GpuBlock(torch.autograd.Function):
    """y = x + f1 * proj(attention(partition(norm1(x)))), then y + f2 * mlp(norm2(y)).

    x: (B, D * H * W, C) in the dtype of all that is computed; factors: f1 and f2 of stochastic depth, float32
    (2, B, 1, 1), or None; plan: of the whole batch. Call it without autocast.
    """

    @staticmethod
    def forward(
        ctx, x: Tensor, factors: Tensor | None, plan: WindowPlan, config: BlockConfig, *weights: Tensor | None
    ) -> Tensor:
        w = _prepared(BlockWeights(*weights), x, config)
        norm1 = Norm(w.norm1, w.norm1_bias, config.eps)
        attended, sums = _attention(norm_windows(x, norm1, plan, config.triton_rows)[0], w, plan, config)
        y, u, _ = _middle(x, attended, factors, w, plan, config)
        out = add_scaled(y, gated_mlp(u, w[12:], config.triton_mlp), factors, 1)
        kept = (_cut_heads(attended, w, config), *sums) if config.saves_attention else ()
        ctx.save_for_backward(x, y if config.saves_middle else None, factors, *w, *kept)
        ctx.args = plan, config, [None if t is None else t.dtype for t in weights]
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor):
        plan, config, dtypes = ctx.args
        x, y, factors, *others = ctx.saved_tensors
        w, kept = BlockWeights(*others[:18]), others[18:]
        norm1 = Norm(w.norm1, w.norm1_bias, config.eps)
        u, statistics = norm_windows(x, norm1, plan, config.triton_rows)
        attended, sums = (_pad_heads(kept[0], w, config), kept[1:]) if kept else _attention(u, w, plan, config)
        middle = _middle(x, attended, factors, w, plan, config) if y is None else (y, *norm(y, _norm2(w, config)))
        grad_y, grad_branch, proj_bias, after = _mlp_backward(grad, *middle, factors, w, plan, config)
        del y, middle
        grad_u, attention = _attention_backward(grad_branch, attended, sums, u, w, plan, config)
        grad_x, of_norm1 = norm_windows_backward(grad_u, x, statistics, grad_y, norm1, plan, config.triton_rows)
        found = _without_padding([*of_norm1, *attention, None, *after], w, config)._replace(proj_bias=proj_bias)
        found = (None if g is None else g.to(dtype) for g, dtype in zip(found, dtypes, strict=True))
        return grad_x, None, None, None, *found


def _prepared(w: BlockWeights, x: Tensor, config: BlockConfig) -> BlockWeights:
    """The weights in the dtype of x, with heads of a size that the attention takes; the added channels are zero."""
    w = BlockWeights(*(None if t is None else t.detach().to(x.dtype) for t in w))
    padding = _padding(w, config)
    if not padding:
        return w
    rows = {name: _pad_rows(getattr(w, name), 3 * config.heads, padding) for name in w._fields if "qkv" in name}
    proj = _pad_rows(w.proj.t(), w.proj.shape[1] // (len(w.proj) // config.heads), padding).t().contiguous()
    return w._replace(**rows, proj=proj)


def _padding(w: BlockWeights, config: BlockConfig) -> int:
    return 0 if config.triton else head_padding(len(w.proj) // config.heads, w.proj)


def _pad_rows(weight: Tensor | None, heads: int, padding: int) -> Tensor | None:
    """(heads * hd, ..) -> (heads * (hd + padding), ..)."""
    if weight is None:
        return None
    split = weight.unflatten(0, (heads, -1))
    return F.pad(split, (0, 0) * (split.dim() - 2) + (0, padding)).flatten(0, 1)


def _cut_heads(attended: Tensor, w: BlockWeights, config: BlockConfig) -> Tensor:
    """(tokens, heads * hd), or twice the heads, without the channels that `_prepared` added."""
    padding, size = _padding(w, config), w.qkv.shape[0] // (3 * config.heads)
    return attended.unflatten(1, (-1, size))[..., : size - padding].flatten(1) if padding else attended


def _pad_heads(attended: Tensor, w: BlockWeights, config: BlockConfig) -> Tensor:
    padding, size = _padding(w, config), w.qkv.shape[0] // (3 * config.heads)
    return F.pad(attended.unflatten(1, (-1, size - padding)), (0, padding)).flatten(1) if padding else attended


def block_transient(heads: int, windows: int, tokens: int, x: Tensor) -> int:
    """Bytes that the backward pass of a block holds at most besides what was saved: x (B, D, H, W, C) is its input.

    Counted on fake tensors (tests/fake_gpu.py): ten tensors of the size of x in the MLP, as many in the attention, and
    the gradients of the bias, one for each window.
    """
    size = torch.finfo(compute_dtype(x)).bits // 8
    return 12 * x.numel() * size + min(BIAS_BYTES, windows * heads * tokens * tokens * size)


def _without_padding(grads: list[Tensor | None], w: BlockWeights, config: BlockConfig) -> BlockWeights:
    """The gradients of the weights as they were before `_prepared`."""
    g = BlockWeights(*grads)
    padding = _padding(w, config)
    if not padding:
        return g
    size = w.qkv.shape[0] // (3 * config.heads)

    def cut(t: Tensor | None) -> Tensor | None:
        return None if t is None else t.unflatten(0, (-1, size))[:, : size - padding].flatten(0, 1)

    return g._replace(**{name: cut(getattr(g, name)) for name in g._fields if "qkv" in name}, proj=cut(g.proj.t()).t())


def _norm2(w: BlockWeights, config: BlockConfig) -> Norm:
    return Norm(w.norm2, w.norm2_bias, config.eps)


def _middle(
    x: Tensor, attended: Tensor, factors: Tensor | None, w: BlockWeights, plan: WindowPlan, config: BlockConfig
) -> tuple[Tensor, Tensor, Statistics]:
    """y, and norm2 of it."""
    branch = F.linear(attended, w.proj, w.proj_bias)
    return add_norm(x, branch, factors, _norm2(w, config), plan, config.triton_rows)


def _qkv(u: Tensor, w: BlockWeights, plan: WindowPlan, config: BlockConfig, mutual: bool) -> tuple[Tensor, Tensor]:
    """Input of the linear layer for self or mutual attention, (windows * T, C), and its output by head.

    The latter is (windows, T, 3, heads, hd).
    """
    if mutual:
        u = (u.view(-1, *w.positions.shape[1:]) + w.positions).view_as(u)
    weight, bias = (w.qkv_mut, w.qkv_mut_bias) if mutual else (w.qkv, w.qkv_bias)
    return u, F.linear(u, weight, bias).view(-1, plan.tokens, 3, config.heads, len(weight) // (3 * config.heads))


def _attention(u: Tensor, w: BlockWeights, plan: WindowPlan, config: BlockConfig) -> tuple[Tensor, list[Tensor]]:
    """Input of the projection, (windows * T, inner), the mutual half first; log-sum-exps."""
    parts, sums = [], []
    for mutual in (True, False) if config.mutual else (False,):
        qkv = _qkv(u, w, plan, config, mutual)[1]
        bias = None if mutual else w.bias
        if config.triton:
            from models.vrt.triton_attention import triton_attention  # Triton is optional

            frames = qkv.view(-1, plan.tokens // 2, *qkv.shape[2:]) if mutual else qkv
            out, found = triton_attention(frames, bias, *plan.patterns, config.scale, mutual)
            sums.append(found)
        else:
            calls = list(_calls(qkv, plan, mutual))
            out = None if len(calls) == 1 else qkv.new_empty(*qkv.shape[:2], *qkv.shape[3:])
            for place, (q, k, v), mask, _ in calls:
                result, found = attend_saving(q, k, v, config.scale, bias, mask)
                sums.append(found)
                if out is None:
                    out = result
                else:
                    out[place] = result
        parts.append(out.reshape(len(u), -1))
    return (parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)), sums


def _calls(qkv: Tensor, plan: WindowPlan, mutual: bool) -> Iterator[tuple]:
    """For each call of the attention: its place in the output, q, k, v, the mask, and the places of q, k and v in qkv.

    Mutual attention: the queries are those of the other frame.
    """
    half = plan.tokens // 2
    frames = (slice(0, half), slice(half, None)) if mutual else (slice(None),)
    for span in plan.spans:
        mask = span.mask[:half, :half] if mutual and span.mask is not None else span.mask
        windows = slice(span.start, span.stop)
        for frame, other in zip(frames, reversed(frames), strict=True):
            places = [(windows, other, 0), (windows, frame, 1), (windows, frame, 2)]
            yield (windows, frame), [qkv[place] for place in places], mask, places


def _attention_backward(
    outgoing: Tensor, attended: Tensor, sums: list[Tensor], u: Tensor,
    w: BlockWeights, plan: WindowPlan, config: BlockConfig,
) -> tuple[Tensor, list[Tensor | None]]:  # fmt: skip
    """Gradients of u, and of bias to qkv_mut_bias without proj_bias, from that of the projection's output."""
    proj = [outgoing.t() @ attended, None]
    grad = outgoing @ w.proj
    sums, linears, grad_u, grad_bias = list(sums), {False: [], True: [None, None]}, None, None
    for mutual in (True, False) if config.mutual else (False,):
        positioned, qkv = _qkv(u, w, plan, config, mutual)
        inner = qkv.shape[3] * qkv.shape[4]
        at = slice(0, inner) if mutual or not config.mutual else slice(inner, None)
        shape = (*qkv.shape[:2], *qkv.shape[3:])
        tensors = grad[:, at].unflatten(0, shape[:2]).unflatten(2, shape[2:]), attended[:, at].view(len(u), -1)
        bias = None if mutual else w.bias
        grad_qkv, found = _core_backward(tensors[0], tensors[1].view(shape), sums, qkv, bias, plan, config, mutual)
        grad_bias = found if grad_bias is None else grad_bias
        flat = grad_qkv.view(len(u), -1)
        weight, has_bias = (w.qkv_mut, w.qkv_mut_bias) if mutual else (w.qkv, w.qkv_bias)
        linears[mutual] = [flat.t() @ positioned, None if has_bias is None else flat.sum(0)]
        grad_u = flat @ weight if grad_u is None else grad_u.addmm_(flat, weight)
    return grad_u, [grad_bias, *linears[False], *proj, *linears[True]]


def _core_backward(
    grad: Tensor, out: Tensor, sums: list[Tensor], qkv: Tensor, bias: Tensor | None,
    plan: WindowPlan, config: BlockConfig, mutual: bool,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """Gradients of qkv and of the bias; takes its log-sums from the front of `sums`."""
    if config.triton:
        from models.vrt.triton_attention import triton_attention_backward

        frames = (-1, plan.tokens // 2) if mutual else (-1, plan.tokens)
        grad, out, qkv_ = (t.reshape(*frames, *t.shape[2:]) for t in (grad, out, qkv))
        grad_qkv, grad_bias = triton_attention_backward(
            grad.contiguous(), out.contiguous(), sums.pop(0), qkv_, bias, *plan.patterns, config.scale, mutual
        )
        return grad_qkv.view_as(qkv), None if mutual else grad_bias
    grad_qkv, grad_bias = torch.empty_like(qkv), None
    for place, (q, k, v), mask, places in _calls(qkv, plan, mutual):
        added, targets = logit_offset(bias, mask, q.dtype), [grad_qkv[target] for target in places]
        found = attend_backward(grad[place], q, k, v, config.scale, added, sums.pop(0), targets, out[place])
        if bias is not None:
            grad_bias = found if grad_bias is None else grad_bias.add_(found)
    return grad_qkv, grad_bias


def _joined(w11: Tensor, b11: Tensor, w12: Tensor, b12: Tensor) -> tuple[Tensor, Tensor]:
    """fc11 and fc12 as one linear layer, which reads its input once."""
    return torch.cat((w11, w12)), torch.cat((b11, b12))


def gated_mlp(u: Tensor, weights: Sequence[Tensor], triton: bool) -> Tensor:
    """GatedMlp without autograd; weights: of its `weights()`; triton: by the kernels of triton_mlp.py."""
    ab = F.linear(u, *_joined(*weights[:4]))
    if triton:
        from models.vrt.triton_mlp import triton_gate  # Triton is optional

        return F.linear(triton_gate(ab), *weights[4:])
    a, b = ab.chunk(2, dim=-1)
    return F.linear(F.gelu(a).mul_(b), *weights[4:])


def gated_mlp_backward(grad: Tensor, u: Tensor, weights: Sequence[Tensor], triton: bool) -> tuple[Tensor, list[Tensor]]:
    """Gradients of u (tokens, inputs) and of the weights, from that of the output; a and b are computed anew."""
    w1, b1 = _joined(*weights[:4])
    ab, grad_h = F.linear(u, w1, b1), grad @ weights[4]
    grad_ab, h = _gate_backward(ab, grad_h, triton)
    second = [grad.t() @ h, grad.sum(0)]
    del ab, grad_h, h
    first = zip((grad_ab.t() @ u).chunk(2), grad_ab.sum(0).chunk(2), strict=True)
    return grad_ab @ w1, [*(t for pair in first for t in pair), *second]


def _gate_backward(ab: Tensor, grad: Tensor, triton: bool) -> tuple[Tensor, Tensor]:
    """Gradient of ab = (a, b) from that of h = gelu(a) * b, and h. May overwrite grad."""
    if triton:
        from models.vrt.triton_mlp import triton_gate_backward

        return triton_gate_backward(ab, grad)
    grad_ab = torch.empty_like(ab)
    (a, b), (grad_a, grad_b) = ab.chunk(2, dim=-1), grad_ab.chunk(2, dim=-1)
    gelu = F.gelu(a)
    torch.mul(gelu, grad, out=grad_b)
    torch.ops.aten.gelu_backward.grad_input(grad.mul_(b), a, grad_input=grad_a)
    return grad_ab, gelu.mul_(b)


def _mlp_backward(
    grad: Tensor, y: Tensor, u: Tensor, statistics: Statistics, factors: Tensor | None,
    w: BlockWeights, plan: WindowPlan, config: BlockConfig,
) -> tuple[Tensor, Tensor, Tensor, list[Tensor]]:  # fmt: skip
    """From the gradient of the block: those of y, of the projection's output and bias, and of norm2 and the MLP."""
    flat = (-1, y.shape[-1])
    grad_u, mlp = gated_mlp_backward(scaled(grad, factors, 1).reshape(flat), u.view(flat), w[12:], config.triton_mlp)
    grad_y, grad_branch, (*norm2, proj_bias) = add_norm_backward(
        grad_u, y, statistics, grad, factors, _norm2(w, config), plan, config.triton_rows
    )
    return grad_y, grad_branch, proj_bias, [*norm2, *mlp]


class _GpuMlp(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, triton: bool, *weights: Tensor) -> Tensor:
        w = [t.detach().to(x.dtype) for t in weights]
        ctx.save_for_backward(x, *w)
        ctx.triton, ctx.dtypes = triton, [t.dtype for t in weights]
        return gated_mlp(x, w, triton)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor):
        x, *w = ctx.saved_tensors
        grad, flat = grad.reshape(-1, grad.shape[-1]), x.reshape(-1, x.shape[-1])
        grad_x, grads = gated_mlp_backward(grad, flat, w, ctx.triton)
        return grad_x.view_as(x), None, *(g.to(dtype) for g, dtype in zip(grads, ctx.dtypes, strict=True))


def mlp_at_once(mlp: GatedMlp, x: Tensor, kernels: str) -> Tensor:
    """`mlp` over the last axis of x, saving only x for backward."""
    x = x.to(compute_dtype(x))
    with torch.autocast(x.device.type, enabled=False):
        return _GpuMlp.apply(x, use_triton("mlp", kernels, x), *mlp.weights())

"""A part of the network computed a chunk of tokens at a time, and recomputed so in backward.

Autograd would keep every intermediate of a block, 16 to 21 tensors of the size of its input. Here a block keeps its
input and, where that pays, the output of its attention. On a CPU the intermediates of a chunk stay in the cache.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

# "triton" is read, and refused with a reason (limits.py).
Kernels = Literal["auto", "plain", "triton"]

# Devices whose attention is torch's public one, under autograd.
PUBLIC_ATTENTION = ("cuda",)
# Tokens of a chunk on a CPU, whose widest intermediate should fit the last-level cache, and on a GPU.
CPU_TOKENS, GPU_TOKENS = 2048, 1 << 17


def runs_in_chunks(kernels: str, x: Tensor) -> bool:
    """Whether x goes through in chunks, and not as a whole under autograd."""
    known = x.device.type in ("cpu", *PUBLIC_ATTENTION)
    return kernels != "plain" and known and not torch.compiler.is_compiling()


def has_public_attention(x: Tensor) -> bool:
    return x.device.type in PUBLIC_ATTENTION


@dataclass
class Tape:
    """Results of the attention of a chunk: recorded in the forward pass, read in the same order in backward."""

    results: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    recorded: Iterator[tuple[Tensor, Tensor]] | None = None


@dataclass(frozen=True)
class Piece:
    """A chunk of x (tokens, C).

    rows: its tokens. results: the tokens of its results, the same without padding. kept: their positions within
    the chunk; None: all. factors: of the residual branches; details: for the work.
    """

    rows: slice | Tensor
    results: slice | Tensor
    kept: Tensor | None = None
    factors: tuple[Any, Any] = (1.0, 1.0)
    details: Any = None


class Work(Protocol):
    """What is computed of each chunk: y + factor * (h fc2^T + fc2_bias), with y, h = hidden(..).

    y None: no sum; h None: no product. The last linear layer is apart, as backward need not recompute it.
    """

    def pieces(self) -> Iterator[Piece]: ...

    def named(self, weights: Sequence[Tensor | None], x: Tensor) -> Any:
        """The record of the weights in the dtype of x; it has fc2 and fc2_bias."""

    def hidden(self, tokens: Tensor, piece: Piece, weights: Any, tape: Tape | None) -> tuple[Tensor | None, Tensor]: ...

    @property
    def records(self) -> bool:
        """Whether the forward pass keeps the results of the attention."""


class InChunks(torch.autograd.Function):
    """`work` on x (tokens, C); call it without autocast. weights: the last two are fc2 and its bias."""

    @staticmethod
    def forward(ctx, x: Tensor, work: Work, *weights: Tensor | None) -> Tensor:
        w = work.named([None if t is None else t.detach() for t in weights], x)
        out = x.new_empty(len(x), len(w.fc2))
        records, tapes = work.records and ctx.needs_input_grad[0], []
        for piece in work.pieces():
            tapes.append(Tape() if records else None)
            y, h = work.hidden(_take(x, piece.rows), piece, w, tapes[-1])
            if h is not None:
                branch = F.linear(h, w.fc2, w.fc2_bias)
                y = branch if y is None else add_scaled(y, branch, piece.factors[1])
            _put(out, piece.results, y)
        kept = [pair for tape in tapes if tape for pair in tape.results]
        ctx.save_for_backward(x, *weights, *(t for pair in kept for t in pair))
        ctx.work, ctx.count, ctx.recorded = work, len(weights), [len(tape.results) if tape else 0 for tape in tapes]
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor):
        x, *saved = ctx.saved_tensors
        weights, results, needed = saved[: ctx.count], iter(saved[ctx.count :]), ctx.needs_input_grad[2:]
        with torch.autocast(x.device.type, enabled=False):
            found = _gradients(ctx.work, x, weights, needed, _tapes(results, ctx.recorded), grad)
        return (found[0], None, *found[1:])


def _tapes(results: Iterator[Tensor], counts: Sequence[int]) -> Iterator[Tape | None]:
    for count in counts:
        yield Tape(recorded=iter([(next(results), next(results)) for _ in range(count)])) if count else None


def _gradients(
    work: Work, x: Tensor, weights: Sequence[Tensor | None], needed: Sequence[bool], tapes: Iterator[Tape | None],
    grad: Tensor,
) -> list[Tensor | None]:  # fmt: skip
    """Gradients of x and of the weights. Those of the weights are summed in their own dtype."""
    # fc2 and its bias, the last two, need no graph.
    leaves = [None if t is None else t.detach() for t in work.named(weights, x)]
    wanted = [i for i, is_needed in enumerate(needed[:-2]) if is_needed]
    for i in wanted:
        leaves[i].requires_grad_()
    w, sums = work.named(leaves, x), [torch.zeros_like(t) if n else None for t, n in zip(weights, needed, strict=True)]
    grad_x = torch.empty_like(x)
    for piece, tape in zip(work.pieces(), tapes, strict=True):
        tokens, g = _take(x, piece.rows).detach().requires_grad_(), _take(grad, piece.results)
        with torch.enable_grad():
            y, h = work.hidden(tokens, piece, w, tape)
        outputs, gradients = ([], []) if y is None else ([y], [g])
        if h is not None:
            g = scaled(g, piece.factors[1])
            if sums[-2] is not None:
                _add_product(sums[-2], g.t(), h.detach())
            if sums[-1] is not None:
                sums[-1] += g.sum(0)
            outputs, gradients = [*outputs, h], [*gradients, g @ w.fc2]
        grad_tokens, *found = torch.autograd.grad(
            outputs, [tokens, *(leaves[i] for i in wanted)], gradients, allow_unused=True
        )
        for i, value in zip(wanted, found, strict=True):
            if value is not None:  # a branch that stochastic depth drops
                sums[i] += value
        _put(grad_x, piece.results, grad_tokens if piece.kept is None else grad_tokens.index_select(0, piece.kept))
    return [grad_x, *sums]


def rows_in_chunks(count: int, x: Tensor) -> Iterator[Piece]:
    """Consecutive rows of x."""
    step = GPU_TOKENS if has_public_attention(x) else CPU_TOKENS
    for first in range(0, count, step):
        yield Piece(*[slice(first, first + step)] * 2)


def scaled(x: Tensor, factor: float | Tensor) -> Tensor:
    """x times a number, or a column of float32, in the dtype of x."""
    return x if isinstance(factor, float) and factor == 1.0 else (x * factor).to(x.dtype)


def add_scaled(x: Tensor, branch: Tensor, factor: float | Tensor) -> Tensor:
    """x + factor * branch."""
    if isinstance(factor, Tensor):
        return x + scaled(branch, factor)
    return torch.add(x, branch, alpha=factor)


def _add_product(out: Tensor, a: Tensor, b: Tensor) -> None:
    if out.dtype == a.dtype:
        out.addmm_(a, b)
    else:
        out += a @ b


def _take(x: Tensor, rows: slice | Tensor) -> Tensor:
    return x[rows] if isinstance(rows, slice) else x.index_select(0, rows)


def _put(out: Tensor, rows: slice | Tensor, values: Tensor) -> None:
    if isinstance(rows, slice):
        out[rows] = values
    else:
        out.index_copy_(0, rows, values)

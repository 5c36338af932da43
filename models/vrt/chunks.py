"""A part of the network computed a chunk of tokens at a time, and recomputed so in backward; the
gated MLP.

Autograd would keep every intermediate of a block, 16 to 21 tensors of the size of its input. Here a
block keeps its input and, where that pays, the output of its attention. On a CPU the intermediates
of a chunk stay in the cache.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from models.vrt.forms import has_kernels, in_cpu_form
from models.vrt.layers import Seed, compute_dtype, recomputed
from models.vrt.windows import Chunk, take

Kernels = Literal["auto", "plain"]
Weights = dict[str, Any]  # name -> Tensor, or None for a bias that the layer lacks

# Tokens of a chunk on a CPU, whose widest intermediate should fit the last-level cache, and on a
# GPU.
CPU_TOKENS, GPU_TOKENS = 2048, 1 << 17
# Weights that are added to float32, or cast where they are used.
FLOAT32 = ("norm1", "norm1_bias", "bias", "norm2", "norm2_bias")


def runs_in_chunks(kernels: str) -> bool:
    """Whether clips go through in chunks, and not as a whole under autograd."""
    return kernels != "plain" and not torch.compiler.is_compiling()


def gpu_tokens(x: Tensor) -> int:
    """Return the number of tokens of a chunk on a GPU.

    Our kernels need no memory for each window, and a larger chunk saves launches: of a step of
    eight clips on an H200, 3.4 s with the smaller chunks and 2.4 s with the larger ones.
    """
    return 4 * GPU_TOKENS if has_kernels(x) else GPU_TOKENS


def cast(weights: Weights, dtype: torch.dtype) -> Weights:
    """The weights of linear layers in `dtype`."""
    return {key: t if t is None or key in FLOAT32 else t.to(dtype) for key, t in weights.items()}


@dataclass
class Tape:
    """Results of our own attention: the forward pass may keep them, and backward reads them in the
    same order.

    offsets: what is added to the logits, by mask: a pass over a block computes it once.
    """

    keeps: bool
    results: list[Tensor] = field(default_factory=list)
    offsets: dict[Any, Tensor | None] = field(default_factory=dict)
    recorded: Iterator[Tensor] | None = None


class Work(NamedTuple):
    """What is computed of each chunk: y + factor * (h fc2^T + fc2_bias), with y, h = hidden(..).

    hidden: a function of (tokens, chunk, factors, weights, tape). y None: no sum; h None: no
    product. The last linear layer is apart, as backward need not recompute it.
    names: of the weights. factors: of the two residual branches, a pair of numbers for each sample
    or a column for all tokens, (2, tokens, 1); None: 1. records: whether the forward pass keeps the
    results of our own attention; None: there is none.
    """

    hidden: Callable[..., tuple[Tensor | None, Tensor | None]]
    chunks: Sequence[Chunk]
    names: tuple[str, ...]
    factors: Tensor | Sequence[tuple[float, float]] | None = None
    records: bool | None = None

    def pieces(self, samples: int) -> Iterator[tuple[int, Chunk, tuple[Any, Any]]]:
        """(sample, chunk, factors of its two branches or None)."""
        for sample in range(samples):
            for chunk in self.chunks:
                if isinstance(self.factors, Tensor):
                    yield sample, chunk, tuple(self.factors.index_select(1, chunk.results))
                else:
                    yield sample, chunk, self.factors[sample] if self.factors else (None, None)


class InChunks(torch.autograd.Function):
    """`work` on x (samples, tokens, C); call it without autocast. weights: those of work.names."""

    @staticmethod
    def forward(ctx, x: Tensor, work: Work, *weights: Tensor | None) -> Tensor:
        w = {
            name: None if t is None else t.detach()
            for name, t in zip(work.names, weights, strict=True)
        }
        w = cast(w, x.dtype)
        out = x.new_empty(*x.shape[:2], len(w["fc2"]))
        # Without a backward pass to come, torch's attention is as fast, except in bfloat16.
        has_tape = work.records is not None and (
            ctx.needs_input_grad[0] or x.dtype is torch.bfloat16
        )
        tape = Tape(work.records and ctx.needs_input_grad[0]) if has_tape else None
        for sample, chunk, factors in work.pieces(len(x)):
            y, h = work.hidden(take(x[sample], chunk.rows), chunk, factors, w, tape)
            if h is not None:
                branch = scaled(F.linear(h, w["fc2"], w["fc2_bias"]), factors[1])
                y = branch if y is None else branch.add_(y)
            _put(out[sample], chunk.results, y)
        ctx.save_for_backward(x, *weights, *(tape.results if tape else ()))
        ctx.work = work
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor):
        x, *saved = ctx.saved_tensors
        work, needed = ctx.work, ctx.needs_input_grad[2:]
        weights, recorded = dict(zip(work.names, saved, strict=False)), saved[len(needed) :]
        tape = (
            None
            if work.records is None
            else Tape(False, recorded=iter(recorded) if recorded else None)
        )
        # Gradients are summed in the dtype of the weights. fc2 and its bias need no graph.
        sums = {
            key: torch.zeros_like(t)
            for (key, t), needs in zip(weights.items(), needed, strict=True)
            if needs
        }
        wanted = [key for key in sums if key not in ("fc2", "fc2_bias")]
        w: Weights = {}
        for key, weight in cast(weights, x.dtype).items():
            w[key] = None if weight is None else weight.detach()
        for key in wanted:
            w[key].requires_grad_()
        grad_x = torch.empty_like(x)
        for sample, chunk, factors in work.pieces(len(x)):
            tokens = take(x[sample], chunk.rows).detach().requires_grad_()
            g = take(grad[sample], chunk.results)
            with torch.enable_grad(), torch.autocast(x.device.type, enabled=False):
                y, h = work.hidden(tokens, chunk, factors, w, tape)
            outputs: list[Tensor] = []
            gradients: list[Tensor] = []
            if y is not None:
                outputs.append(y)
                gradients.append(g)
            if h is not None:
                g = scaled(g, factors[1])
                if "fc2" in sums:
                    sums["fc2"] += g.t() @ h.detach()
                if "fc2_bias" in sums:
                    sums["fc2_bias"] += g.sum(0)
                outputs.append(h)
                gradients.append(g @ w["fc2"])
            inputs = [tokens, *(w[key] for key in wanted)]
            with torch.enable_grad():
                seed: Any = Seed.apply(*outputs, *gradients)
            grad_tokens, *found = torch.autograd.grad(seed, inputs, allow_unused=True)
            for key, value in zip(wanted, found, strict=True):
                if value is not None:  # a branch that stochastic depth drops
                    sums[key] += value
            _put(grad_x[sample], chunk.results, take(grad_tokens, chunk.kept))
        return (grad_x, None, *(sums.get(key) for key in work.names))


def scaled(x: Tensor, factor: float | Tensor | None) -> Tensor:
    """x times a number, or a column of float32, in the dtype of x; None: x."""
    return x if factor is None else (x * factor).to(x.dtype)


def _put(out: Tensor, rows: slice | Tensor, values: Any) -> None:
    if isinstance(rows, slice):
        out[rows] = values
    else:
        out.index_copy_(0, rows, values)


def gated(u: Tensor, w: Weights, is_plain: bool = True) -> Tensor:
    """Return gelu(fc11(u)) * fc12(u). is_plain: torch's operators in any case."""
    if not is_plain and has_kernels(u):
        from models.vrt import triton_rows  # Triton is not everywhere

        return triton_rows.gated(u, w["fc11"], w["fc11_bias"], w["fc12"], w["fc12_bias"])
    h, b = F.gelu(F.linear(u, w["fc11"], w["fc11_bias"])), F.linear(u, w["fc12"], w["fc12_bias"])
    return h * b if h.requires_grad else h.mul_(b)


class GatedMlp(nn.Module):
    """fc2(gelu(fc11(x)) * fc12(x)) over the last axis (GEGLU, Shazeer 2020), with the exact erf
    GELU.

    checkpoint: save only the input for backward, and recompute the rest there; in chunks that is
    always so.
    """

    FLAGS = ("checkpoint",)

    def __init__(
        self,
        inputs: int,
        hidden: int,
        outputs: int,
        checkpoint: bool = False,
        kernels: str = "auto",
    ) -> None:
        super().__init__()
        self.checkpoint, self.kernels = checkpoint, kernels
        self.fc11 = nn.Linear(inputs, hidden)
        self.fc12 = nn.Linear(inputs, hidden)
        self.fc2 = nn.Linear(hidden, outputs)

    def forward(self, x: Tensor) -> Tensor:
        w = self.weights()
        if not runs_in_chunks(self.kernels):
            return recomputed(
                lambda u: self.fc2(gated(u, w)), x, weights=w.values(), when=self.checkpoint
            )
        rows = x.to(compute_dtype(x)).flatten(0, -2)
        step = CPU_TOKENS if in_cpu_form(x) else gpu_tokens(rows)
        spans = [slice(first, first + step) for first in range(0, len(rows), step)]
        chunks = [Chunk(rows=span, results=span) for span in spans]
        work = Work(
            lambda tokens, chunk, factors, w, tape: (None, gated(tokens, w, False)),
            chunks,
            tuple(w),
        )
        with torch.autocast(x.device.type, enabled=False):
            return InChunks.apply(rows[None], work, *w.values()).view(*x.shape[:-1], -1)

    def weights(self) -> Weights:
        layers = {"fc11": self.fc11, "fc12": self.fc12, "fc2": self.fc2}
        return {
            name: t
            for key, m in layers.items()
            for name, t in ((key, m.weight), (f"{key}_bias", m.bias))
        }

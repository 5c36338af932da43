"""Token-wise parts of a block: the gated MLP and stochastic depth (DropPath); activation checkpointing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from models.vrt.chunks import InChunks, Piece, Tape, rows_in_chunks, runs_in_chunks
from models.vrt.precision import compute_dtype


def recomputed(function: Callable[..., Tensor], *args: Any) -> Tensor:
    """function(*args); in backward it is recomputed, under the same autocast. It draws no random numbers."""
    kind = args[0].device.type
    if not torch.is_autocast_enabled(kind) or torch.compiler.is_compiling():
        return checkpoint(function, *args, use_reentrant=False, preserve_rng_state=False)
    dtype = torch.get_autocast_dtype(kind)

    def contexts() -> tuple[AbstractContextManager, AbstractContextManager]:
        # Without autocast's cache of weights, whose entries would outlive the recomputation (pytorch#193338).
        return nullcontext(), torch.autocast(kind, dtype, cache_enabled=False)

    return checkpoint(function, *args, use_reentrant=False, preserve_rng_state=False, context_fn=contexts)


class MlpWeights(NamedTuple):
    """Tensors of a gated MLP, or their gradients."""

    fc11: Tensor
    fc11_bias: Tensor
    fc12: Tensor
    fc12_bias: Tensor
    fc2: Tensor
    fc2_bias: Tensor


def gated(u: Tensor, w: Any) -> Tensor:
    """gelu(fc11(u)) * fc12(u); w has the fields of MlpWeights."""
    h, b = F.gelu(F.linear(u, w.fc11, w.fc11_bias)), F.linear(u, w.fc12, w.fc12_bias)
    return h * b if h.requires_grad else h.mul_(b)


def mlp(u: Tensor, w: Any, checkpoint: bool) -> Tensor:
    """fc2(gated(u)) as a whole under autograd. checkpoint: save only u, else the outputs of fc11 and fc12."""

    def product(a: Tensor, b: Tensor) -> Tensor:
        return F.linear(F.gelu(a) * b, w.fc2, w.fc2_bias)

    if checkpoint and torch.is_grad_enabled():
        return recomputed(lambda u: F.linear(gated(u, w), w.fc2, w.fc2_bias), u)
    a, b = F.linear(u, w.fc11, w.fc11_bias), F.linear(u, w.fc12, w.fc12_bias)
    if not torch.is_grad_enabled() or torch.compiler.is_compiling():
        return product(a, b)
    return recomputed(product, a, b)


class _MlpWork(NamedTuple):
    """An MLP alone, see chunks.Work."""

    rows: int
    device: Tensor
    records = False

    def pieces(self) -> Iterator[Piece]:
        return rows_in_chunks(self.rows, self.device)

    def named(self, weights: Sequence[Tensor], x: Tensor) -> MlpWeights:
        return MlpWeights(*(t.to(x.dtype) for t in weights))

    def hidden(self, tokens: Tensor, piece: Piece, weights: MlpWeights, tape: Tape | None) -> tuple[None, Tensor]:
        return None, gated(tokens, weights)


class GatedMlp(nn.Module):
    """fc2(gelu(fc11(x)) * fc12(x)) over the last axis (GEGLU, Shazeer 2020), with the exact erf GELU.

    checkpoint: save only the input for backward, and recompute the rest there; in chunks that is always so.
    """

    FLAGS = ("checkpoint",)

    def __init__(self, inputs: int, hidden: int, outputs: int, checkpoint: bool = False, kernels: str = "auto") -> None:
        super().__init__()
        self.checkpoint, self.kernels = checkpoint, kernels
        self.fc11 = nn.Linear(inputs, hidden)
        self.fc12 = nn.Linear(inputs, hidden)
        self.fc2 = nn.Linear(hidden, outputs)

    def forward(self, x: Tensor) -> Tensor:
        if runs_in_chunks(self.kernels, x):
            x = x.to(compute_dtype(x))
            with torch.autocast(x.device.type, enabled=False):
                rows = x.flatten(0, -2)
                return InChunks.apply(rows, _MlpWork(len(rows), x), *self.weights()).view(*x.shape[:-1], -1)
        return mlp(x, self.weights(), self.checkpoint)

    def weights(self) -> MlpWeights:
        return MlpWeights(*(t for layer in (self.fc11, self.fc12, self.fc2) for t in (layer.weight, layer.bias)))


class DropPath(nn.Module):
    """Stochastic depth: in training, drops a residual branch per sample (first axis) with probability `drop_prob`.

    The draws come from torch's default generator, not from an explicit one: torch.utils.checkpoint restores only the
    default generator before it recomputes a branch, and torch's own layers, such as nn.Dropout in an added network,
    take no other. ModelVRT seeds it from (manual_seed, step, rank) before each step, so that runs are reproducible.
    """

    def __init__(self, drop_prob: float) -> None:
        super().__init__()
        self.drop_prob = drop_prob

    def factors(self, x: Tensor) -> Tensor:
        """The factor of each sample's branch, (B, 1, ..): 0 or 1 / (1 - drop_prob) in training, else 1."""
        keep = 1.0 - self.drop_prob
        factors = x.new_ones((len(x),) + (1,) * (x.dim() - 1))
        return factors.bernoulli_(keep) / keep if self.training else factors

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factors(x) if self.training else x

"""checkpoint = "auto": which blocks have to be computed anew in backward so that a training step fits a budget."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from models.vrt.cost import block_flops
from models.vrt.mlp import GatedMlp
from models.vrt.stage import Stage
from models.vrt.window_attention import Block

logger = logging.getLogger(__name__)

GB = 1e9
# Weights, gradients and the two moments of Adam, all float32.
BYTES_PER_PARAMETER = 16
# Workspaces and fragments that no count of tensors shows.
MARGIN = 1.1


@dataclass(frozen=True)
class Branch:
    """One branch of a block, or the fusion of a stage: what keeping its intermediates costs and saves."""

    owner: nn.Module
    flag: str
    bytes: int
    flops: float

    @property
    def is_recomputed(self) -> bool:
        return getattr(self.owner, self.flag)


@dataclass(frozen=True)
class StepMemory:
    """Bytes of a training step: `fixed` whatever the clips, the others in proportion to their pixels and frames.

    activations: as the blocks are set now; checkpointed: with every branch of every block computed anew in backward.
    """

    fixed: int
    activations: int
    checkpointed: int

    def gb(self, scale: float = 1.0, checkpointed: bool = False) -> float:
        """Gigabytes of a step on `scale` times the pixels, as set now or all checkpointed."""
        return MARGIN * (self.fixed + scale * (self.checkpointed if checkpointed else self.activations)) / GB


def count_step(net: nn.Module, run: Callable[[], Any]) -> StepMemory:
    """Memory of a training step on the clips of `run`, a forward pass of net; its flags stay as they are.

    Counted from the tensors that autograd keeps, without a backward pass: no gradient is touched, every rank finds the
    same, and the random numbers of training stay. Within 3 % of what a step allocates, where blocks of the plain form
    are computed anew 8 % below it (docs/benchmarks/net.md): MARGIN covers both.
    """
    with _aside(net):
        now = kept_bytes(net, run)
    before = [(owner, flag, getattr(owner, flag)) for owner in _owners(net) for flag in owner.FLAGS]
    least, branches = _checkpoint_all(net, run)
    checkpointed = least + _largest(branches)
    for owner, flag, value in before:
        setattr(owner, flag, value)
    return StepMemory(_fixed(net), now + _largest(branches), checkpointed)


def fit_memory(net: nn.Module, run: Callable[[], Any], budget_gb: float) -> float:
    """Set the checkpoint flags of every block so that a training step needs at most `budget_gb`; returns the estimate.

    run: one forward pass of net at the size of training; what a step needs is counted as in `count_step`. Branches
    whose recomputation costs most per byte are kept first.
    """
    least, branches = _checkpoint_all(net, run)
    fixed = _fixed(net)

    def needed(kept: int) -> float:
        return MARGIN * (fixed + least + kept + _largest(branches))

    kept = 0
    for branch in sorted(branches, key=lambda b: b.flops / max(b.bytes, 1), reverse=True):
        setattr(branch.owner, branch.flag, False)
        if needed(kept + branch.bytes) <= budget_gb * GB:
            kept += branch.bytes
        else:
            setattr(branch.owner, branch.flag, True)
    need, anew = needed(kept), sum(branch.is_recomputed for branch in branches)
    message = "checkpoint auto: %d of %d branches are computed anew in backward; about %.2f GB of %.2f GB"
    logger.info(message, anew, len(branches), need / GB, budget_gb)
    if need > budget_gb * GB:
        logger.warning(
            "netG.memory_budget_gb is %.2f; a step at this size needs about %.2f GB even with every block "
            "checkpointed: make gt_size %.0f %% of what it is, or num_frame or the batch smaller", budget_gb, need / GB,
            100 * max(0.0, (budget_gb * GB / MARGIN - fixed) / (need / MARGIN - fixed)) ** 0.5,
        )  # fmt: skip
    return need / GB


def _owners(net: nn.Module) -> list[Block | GatedMlp]:
    """What can be computed anew in backward: both branches of each block, and the fusion of each stage."""
    fusions = [m.pa_fuse for m in net.modules() if isinstance(m, Stage) and m.aligns]
    return [m for m in net.modules() if isinstance(m, Block)] + fusions


def _fixed(net: nn.Module) -> int:
    return BYTES_PER_PARAMETER * sum(p.numel() for p in net.parameters())


def _largest(branches: list[Branch]) -> int:
    """In backward, what one owner computes anew lives in full at a time."""
    sizes: dict[nn.Module, int] = {}
    for branch in branches:
        sizes[branch.owner] = sizes.get(branch.owner, 0) + branch.bytes * branch.is_recomputed
    return max(sizes.values(), default=0)


@contextmanager
def _aside(net: nn.Module) -> Iterator[None]:
    """Forward passes in here build a graph, and leave the random numbers of training as they were."""
    devices = [next(net.parameters()).device] if next(net.parameters()).is_cuda else []
    with torch.random.fork_rng(devices), torch.enable_grad():
        yield


def _checkpoint_all(net: nn.Module, run: Callable[[], Any]) -> tuple[int, list[Branch]]:
    """Sets every flag; returns the bytes then kept, and what each branch would add."""
    inputs: dict[Block | GatedMlp, Tensor] = {}
    hooks = []
    for owner in _owners(net):
        for flag in owner.FLAGS:
            setattr(owner, flag, True)
        hooks.append(owner.register_forward_pre_hook(lambda m, args: inputs.__setitem__(m, args[0].detach())))
    with _aside(net):
        least = kept_bytes(net, run)
        for hook in hooks:
            hook.remove()
        return least, _measured(net, inputs)


def kept_bytes(net: nn.Module, run: Callable[[], Any]) -> int:
    """Bytes that autograd keeps for the backward pass of `run`, each storage once, parameters and buffers left out."""
    own = {t.untyped_storage().data_ptr() for t in (*net.parameters(), *net.buffers())}
    sizes: dict[int, int] = {}
    alive: list[Tensor] = []  # an address counts once only while its tensor lives

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own and storage.data_ptr() not in sizes:
            sizes[storage.data_ptr()] = storage.nbytes()
            alive.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        run()
    return sum(sizes.values())


def _measured(net: nn.Module, inputs: dict[Block | GatedMlp, Tensor]) -> list[Branch]:
    known: dict[tuple, dict[str, int]] = {}
    branches = []
    for owner, x in inputs.items():
        key = (type(owner), tuple(x.shape), x.dtype)
        if isinstance(owner, Block):
            key += (owner.window, owner.shift if any(owner.shift) else None, owner.attn.mutual, owner.attn.heads)
            work = block_flops(owner, tuple(x.shape[:4]))
        else:
            work = (2.0 * x.numel() / x.shape[-1] * sum(w.numel() for w in owner.weights()),)
        if key not in known:
            known[key] = _costs(net, owner, x)
        branches += [Branch(owner, flag, known[key][flag], w) for flag, w in zip(owner.FLAGS, work, strict=True)]
    return branches


def _costs(net: nn.Module, owner: Block | GatedMlp, x: Tensor) -> dict[str, int]:
    """Bytes that each branch of the owner adds to those kept, one after the other; what they share counts once."""
    x = x.requires_grad_()
    kept, costs = kept_bytes(net, lambda: owner(x)), {}
    for flag in owner.FLAGS:
        setattr(owner, flag, False)
        now = kept_bytes(net, lambda: owner(x))
        kept, costs[flag] = now, max(0, now - kept)
    for flag in owner.FLAGS:
        setattr(owner, flag, True)
    return costs

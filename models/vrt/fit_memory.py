"""checkpoint = "auto": choose the branches to recompute in backward, so that a training step fits a memory budget."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from models.vrt.block import Block, block_transient
from models.vrt.cost import block_flops
from models.vrt.deform_align import DeformAlign
from models.vrt.layers import GatedMlp
from models.vrt.stage import Stage

logger = logging.getLogger(__name__)

GB = 1e9
# Weights, gradients and the two moments of Adam, all float32.
BYTES_PER_PARAMETER = 16
# For workspaces and fragmentation, which the count of tensors does not include.
MARGIN = 1.1


@dataclass(frozen=True)
class Branch:
    """One branch of a block, or the fusion of a stage: bytes of its intermediates, and FLOPs to recompute them.

    transient: bytes that the backward pass of the owner allocates besides, on a GPU.
    """

    owner: nn.Module
    flag: str
    bytes: int
    flops: float
    transient: int

    @property
    def is_recomputed(self) -> bool:
        return getattr(self.owner, self.flag)


@dataclass(frozen=True)
class StepMemory:
    """Bytes of a training step: `fixed` for all clips; the others are proportional to pixels and frames.

    activations: with the present checkpoint flags; checkpointed: with every branch recomputed in backward.
    """

    fixed: int
    activations: int
    checkpointed: int

    def gb(self, scale: float = 1.0, checkpointed: bool = False) -> float:
        """Gigabytes of a step on `scale` times the pixels, with the present flags or all checkpointed."""
        return MARGIN * (self.fixed + scale * (self.checkpointed if checkpointed else self.activations)) / GB


def count_step(net: nn.Module, run: Callable[[], Any]) -> StepMemory:
    """Memory of a training step on the clips of `run`, a forward pass of net. The checkpoint flags stay as they are.

    Counted from the tensors that autograd saves, without a backward pass: gradients and random numbers are not
    changed, and every rank gets the same result. The count is within 3 % of what a step allocates, and 8 % below it
    for recomputed blocks of the plain form (docs/benchmarks/net.md); MARGIN covers both.
    """
    with _isolated(net):
        now = saved_bytes(net, run)
    before = [(owner, flag, getattr(owner, flag)) for owner in _owners(net) for flag in owner.FLAGS]
    try:
        least, branches, align = _checkpoint_all(net, run)
        checkpointed = least + _largest(branches, align)
    finally:
        for owner, flag, value in before:
            setattr(owner, flag, value)
    return StepMemory(_fixed(net), now + _largest(branches, align), checkpointed)


def fit_memory(net: nn.Module, run: Callable[[], Any], budget_gb: float) -> float:
    """Set the checkpoint flags of every block so that a training step needs at most `budget_gb`; returns the estimate.

    run: one forward pass of net at the training size; memory is counted as in `count_step`. The branches with the
    most FLOPs per byte are the first to be saved instead of recomputed.
    """
    least, branches, align = _checkpoint_all(net, run)
    fixed = _fixed(net)

    def needed(saved: int) -> float:
        return MARGIN * (fixed + least + saved + _largest(branches, align))

    saved = 0
    for branch in sorted(branches, key=lambda b: b.flops / max(b.bytes, 1), reverse=True):
        setattr(branch.owner, branch.flag, False)
        if needed(saved + branch.bytes) <= budget_gb * GB:
            saved += branch.bytes
        else:
            setattr(branch.owner, branch.flag, True)
    need, recomputed = needed(saved), sum(branch.is_recomputed for branch in branches)
    message = (
        "checkpoint auto: %d of %d branches are recomputed in backward; about %.2f GB of %.2f GB "
        "(kept %.2f GB, at most %.2f GB more in backward, weights and moments %.2f GB, and a margin)"
    )
    parts = ((least + saved) / GB, _largest(branches, align) / GB, fixed / GB)
    logger.info(message, recomputed, len(branches), need / GB, budget_gb, *parts)
    if need > budget_gb * GB:
        logger.warning(
            "netG.memory_budget_gb is %.2f, but a step needs about %.2f GB even with every block checkpointed: "
            "reduce gt_size to %.0f %%, or reduce num_frame or the batch", budget_gb, need / GB,
            100 * max(0.0, (budget_gb * GB / MARGIN - fixed) / (need / MARGIN - fixed)) ** 0.5,
        )  # fmt: skip
    return need / GB


def _owners(net: nn.Module) -> list[Block | GatedMlp]:
    """The modules with checkpoint flags: each block, and the fusion of each stage."""
    fusions = [m.pa_fuse for m in net.modules() if isinstance(m, Stage) and m.aligns]
    return [m for m in net.modules() if isinstance(m, Block)] + fusions


def _fixed(net: nn.Module) -> int:
    return BYTES_PER_PARAMETER * sum(p.numel() for p in net.parameters())


def _largest(branches: list[Branch], align: int) -> int:
    """Bytes of the largest backward pass of an owner, beyond what was saved: those of one owner exist at a time.

    align: of the largest alignment, likewise.
    """
    sizes: dict[nn.Module, int] = {}
    for branch in branches:
        sizes[branch.owner] = sizes.get(branch.owner, branch.transient) + branch.bytes * branch.is_recomputed
    return max([align, *sizes.values()])


@contextmanager
def _isolated(net: nn.Module) -> Iterator[None]:
    """Forward passes inside build a graph and do not change the random numbers of the training."""
    devices = [next(net.parameters()).device] if next(net.parameters()).is_cuda else []
    with torch.random.fork_rng(devices), torch.enable_grad():
        yield


def _checkpoint_all(net: nn.Module, run: Callable[[], Any]) -> tuple[int, list[Branch], int]:
    """Set every checkpoint flag. Returns the bytes that autograd then saves, the branches, and the bytes that the
    backward pass of an alignment holds beyond these: what later modules saved is free by then."""
    inputs: dict[Block | GatedMlp, Tensor] = {}
    aligns = [0]
    with _isolated(net):
        with ExitStack() as hooks, Saved(net) as saved:
            for owner in _owners(net):
                for flag in owner.FLAGS:
                    setattr(owner, flag, True)
                hook = owner.register_forward_pre_hook(lambda m, args: inputs.__setitem__(m, args[0].detach()))
                hooks.callback(hook.remove)
            for module in (m for m in net.modules() if isinstance(m, DeformAlign)):
                hook = module.register_forward_pre_hook(
                    lambda m, args: aligns.append(saved.bytes + m.transient(args[1]))
                )
                hooks.callback(hook.remove)
            run()
        return saved.bytes, _measure_branches(net, inputs), max(0, max(aligns) - saved.bytes)


class Saved:
    """Inside, `bytes` is what autograd saves for the backward pass: each storage once, without those of `net`."""

    def __init__(self, net: nn.Module) -> None:
        self.own = {t.untyped_storage().data_ptr() for t in (*net.parameters(), *net.buffers())}
        self.sizes: dict[int, int] = {}
        self.alive: list[Tensor] = []  # keeps the tensors, so that no address is used twice
        self.hooks = torch.autograd.graph.saved_tensors_hooks(self._pack, lambda t: t)

    @property
    def bytes(self) -> int:
        return sum(self.sizes.values())

    def _pack(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self.own and storage.data_ptr() not in self.sizes:
            self.sizes[storage.data_ptr()] = storage.nbytes()
            self.alive.append(tensor)
        return tensor

    def __enter__(self) -> Saved:
        self.hooks.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self.hooks.__exit__(*error)


def saved_bytes(net: nn.Module, run: Callable[[], Any]) -> int:
    """Bytes that autograd saves for the backward pass of `run`: each storage once, without parameters and buffers."""
    with Saved(net) as saved:
        run()
    return saved.bytes


def _measure_branches(net: nn.Module, inputs: dict[Block | GatedMlp, Tensor]) -> list[Branch]:
    """The branches of each owner, given its input; owners of the same kind and size are measured once."""
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
            known[key] = _bytes_per_flag(net, owner, x)
        besides = _transient(owner, x)
        branches += [
            Branch(owner, flag, known[key][flag], w, besides) for flag, w in zip(owner.FLAGS, work, strict=True)
        ]
    return branches


def _transient(owner: Block | GatedMlp, x: Tensor) -> int:
    return block_transient(owner, x) if isinstance(owner, Block) else 0


def _bytes_per_flag(net: nn.Module, owner: Block | GatedMlp, x: Tensor) -> dict[str, int]:
    """Bytes that autograd saves in addition when the flags of the owner are cleared one after the other."""
    x = x.requires_grad_()
    before, added = saved_bytes(net, lambda: owner(x)), {}
    for flag in owner.FLAGS:
        setattr(owner, flag, False)
        now = saved_bytes(net, lambda: owner(x))
        before, added[flag] = now, max(0, now - before)
    for flag in owner.FLAGS:
        setattr(owner, flag, True)
    return added

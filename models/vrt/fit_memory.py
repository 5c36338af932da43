"""checkpoint = "auto": which blocks have to be computed anew in backward so that a training step fits a budget."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from models.vrt.cost import block_flops
from models.vrt.window_attention import Block

logger = logging.getLogger(__name__)

GB = 1e9
# Weights, gradients and the two moments of Adam, all float32.
BYTES_PER_PARAMETER = 16
# Workspaces and fragments that no count of tensors shows.
MARGIN = 1.1


@dataclass(frozen=True)
class Branch:
    """One branch of a block: what keeping its intermediates costs and saves."""

    block: Block
    flag: str
    bytes: int
    flops: float


def fit_memory(net: nn.Module, run: Callable[[], Any], budget_gb: float) -> float:
    """Set the checkpoint flags of every block so that a training step needs at most `budget_gb`; returns the estimate.

    run: one forward pass of net at the size of training. What a step needs is counted from the tensors that autograd
    keeps, so no backward pass is run, no gradient is touched, and every rank decides alike. Branches whose
    recomputation costs most per byte are kept first.
    """
    blocks = [m for m in net.modules() if isinstance(m, Block)]
    for block in blocks:
        block.checkpoint_attn = block.checkpoint_ffn = True
    inputs: dict[Block, Tensor] = {}
    hooks = [
        b.register_forward_pre_hook(lambda block, args: inputs.__setitem__(block, args[0].detach())) for b in blocks
    ]
    devices = [next(net.parameters()).device] if next(net.parameters()).is_cuda else []
    with torch.random.fork_rng(devices), torch.enable_grad():
        least = kept_bytes(net, run)
        for hook in hooks:
            hook.remove()
        branches = _measured(net, inputs)
    fixed = BYTES_PER_PARAMETER * sum(p.numel() for p in net.parameters())
    # In backward one branch at a time lives in full, even where all are checkpointed.
    need = MARGIN * (fixed + least + max((b.bytes for b in branches), default=0))
    freed = 0
    for branch in sorted(branches, key=lambda b: b.flops / max(b.bytes, 1), reverse=True):
        if need + MARGIN * branch.bytes <= budget_gb * GB:
            setattr(branch.block, branch.flag, False)
            need += MARGIN * branch.bytes
            freed += 1
    message = "checkpoint auto: %d of %d branches are computed anew in backward; about %.2f GB of %.2f GB"
    logger.info(message, len(branches) - freed, len(branches), need / GB, budget_gb)
    if need > budget_gb * GB:
        logger.warning(
            "netG.memory_budget_gb is %.2f; a step at this size needs about %.2f GB even with every block "
            "checkpointed: make gt_size %.0f %% of what it is, or num_frame or the batch smaller", budget_gb, need / GB,
            100 * max(0.0, (budget_gb * GB / MARGIN - fixed) / (need / MARGIN - fixed)) ** 0.5,
        )  # fmt: skip
    return need / GB


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


def _measured(net: nn.Module, inputs: dict[Block, Tensor]) -> list[Branch]:
    known: dict[tuple, dict[str, int]] = {}
    branches = []
    for block, x in inputs.items():
        a = block.attn
        shifted = block.shift if any(block.shift) else None
        key = (tuple(x.shape), x.dtype, block.window, shifted, a.mutual, a.heads)
        if key not in known:
            known[key] = _costs(net, block, x)
        attention, mlp = block_flops(block, tuple(x.shape[:4]))
        for flag, work in (("checkpoint_attn", attention), ("checkpoint_ffn", mlp)):
            branches.append(Branch(block, flag, known[key][flag], work))
    return branches


def _costs(net: nn.Module, block: Block, x: Tensor) -> dict[str, int]:
    """Bytes that each branch of the block keeps beyond what it keeps when checkpointed."""
    x = x.requires_grad_()
    least = kept_bytes(net, lambda: block(x))
    costs = {}
    for flag in ("checkpoint_attn", "checkpoint_ffn"):
        setattr(block, flag, False)
        costs[flag] = max(0, kept_bytes(net, lambda: block(x)) - least)
        setattr(block, flag, True)
    return costs

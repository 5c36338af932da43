"""Fit a training step to a memory budget: netG.checkpoint "auto".

Autograd keeps tensors for backward. A block can instead recompute a branch (attention or MLP) in
backward, which is called checkpointing. Checkpointing needs less memory and more time. `fit_memory`
chooses which branches are recomputed:

    1. Let backward recompute all branches, and count what a step then needs (count.py).
    2. Go through the branches, beginning with the most work per byte. Keep the tensors of a branch,
       instead of recomputing it, if the estimate of the peak stays within the budget.

What must stay: the choice does not depend on the rank or on chance, because all ranks must
recompute the same branches. Free to change: which branches are chosen. Recomputing changes no
number, so another choice changes only memory and time.

Tests: tests/parts/models/test_fit_memory.py, test_fake_gpu.py
"""

import logging
from collections.abc import Callable
from typing import Any, NamedTuple

from torch import nn

from models.vrt.memory.branches import Branch
from models.vrt.memory.count import MemoryUse, count_memory_use

logger = logging.getLogger(__name__)

GB = 1e9
# Weight, gradient and the two moments of Adam: four numbers of 4 bytes, float32.
BYTES_PER_PARAMETER = 16
# The estimate is the count of tensors times this factor, because the count may be up to 10 % too
# small: it leaves out workspaces and fragmentation (docs/benchmarks/net_details.md). A larger
# factor would recompute more than needed. With a smaller factor a step may not fit.
MARGIN = 1.1


def fit_memory(net: nn.Module, run: Callable[[], Any], budget_gb: float) -> float:
    """Set the checkpoint flags of every block so that a training step needs at most `budget_gb`.

    VRT.fit calls this before the first step, on every rank. Only the flags of the modules change.

    run: function that runs one forward pass of net at the training size.

    Returns the estimate of what a step needs, in GB (1e9 bytes). If it is larger than the budget,
    all branches are recomputed, and a warning says so.
    """
    uses = count_memory_use(net, run)
    branches = []
    for use in uses:
        branches += use.branches
    parameter_count = sum(parameter.numel() for parameter in net.parameters())
    parameter_bytes = BYTES_PER_PARAMETER * parameter_count

    def bytes_with_present_flags() -> float:
        """Return the estimate with the present flags. Call it again after a flag has changed."""
        return MARGIN * (parameter_bytes + _activations(uses).peak)

    _keep_branches(branches, bytes_with_present_flags, budget=budget_gb * GB)
    kept, peak = _activations(uses)
    need = bytes_with_present_flags()
    recomputed_count = sum(_is_recomputed(branch) for branch in branches)
    logger.info(
        "checkpoint auto: %d of %d branches are recomputed in backward; about %.2f GB of %.2f GB "
        "(kept %.2f GB, at most %.2f GB more in backward, weights and moments %.2f GB, and a "
        "margin)",
        recomputed_count, len(branches), need / GB, budget_gb, kept / GB, (peak - kept) / GB,
        parameter_bytes / GB,
    )  # fmt: skip
    if need > budget_gb * GB:
        _warn_of_small_budget(budget_gb, need, parameter_bytes)
    return need / GB


def _keep_branches(
    branches: list[Branch], bytes_with_present_flags: Callable[[], float], budget: float
) -> None:
    """Stop recomputing branches, one after the other, as long as a step fits the budget.

    Begin with the branch that takes the most work per byte. If the step no longer fits the budget
    when the tensors of this branch are kept, recompute the branch after all. Then try the next
    branch, which may be smaller.

    bytes_with_present_flags: function that estimates how many bytes a step needs. The estimate
        depends on the flags, so the function is called again after each change of a flag.
    budget: in bytes.
    """

    def work_per_byte(branch: Branch) -> float:
        """Return the work of recomputing a branch, divided by the bytes of keeping it."""
        return branch.flops / max(branch.bytes, 1)  # a branch may have 0 bytes

    for branch in sorted(branches, key=work_per_byte, reverse=True):
        setattr(branch.owner, branch.flag, False)  # keep the tensors of this branch
        if bytes_with_present_flags() > budget:
            setattr(branch.owner, branch.flag, True)  # recompute it


def _warn_of_small_budget(budget_gb: float, need: float, parameter_bytes: int) -> None:
    """Warn that a step does not fit the budget, and say how small a crop would fit.

    need: the estimate for a step with every branch recomputed, in bytes.
    parameter_bytes: bytes of the weights, gradients and moments.
    """
    # `fit_memory` computes need = MARGIN * (parameter_bytes + activations). Solved for activations:
    activations = need / MARGIN - parameter_bytes
    room_for_activations = budget_gb * GB / MARGIN - parameter_bytes
    # The fraction of the activations that would fit, or 0 if the parameters alone exceed the
    # budget. Activations grow with the area of a crop, so the side of the crop must shrink by the
    # square root of the fraction, e.g. to 50 % of the side if 25 % of the activations fit.
    share = max(0.0, room_for_activations / activations)
    logger.warning(
        "netG.memory_budget_gb is %.2f, but a step needs about %.2f GB even with every "
        "block checkpointed: "
        "reduce gt_size to %.0f %%, or reduce num_frame or the batch", budget_gb, need / GB,
        100 * share**0.5,
    )  # fmt: skip


class Activations(NamedTuple):
    """Bytes of activations in a training step."""

    kept: int  # bytes in memory between forward and backward
    peak: int  # the largest number of bytes at a time


def _activations(uses: list[MemoryUse]) -> Activations:
    """Estimate the activations with the present flags, in bytes.

    In the backward pass of a module, three things are in memory: what all modules up to this module
    have saved, what recomputing its branches adds, and what the pass itself allocates (transient).
    E.g. two blocks with a branch of 10 MB each. Only the branch of block 2 is recomputed. In MB:

        module           saved   branches kept so far   recomputed   in all
        block 1              5                     10            0       15
        block 2             10                     10           10       30   the peak
        end of forward      10                     10            0       20   kept

    uses: the memory use of each module, in the order of the forward pass.
    """
    kept_in_branches = 0  # bytes of the branches so far that are not recomputed
    peak = 0
    for use in uses:
        recomputed = 0  # bytes of the branches that the backward pass of this module recomputes
        for branch in use.branches:
            if _is_recomputed(branch):
                recomputed += branch.bytes
            else:
                kept_in_branches += branch.bytes
        # `use.saved` counts the bytes of all modules up to this one (count.py).
        during_backward = use.saved + kept_in_branches + recomputed + use.transient
        peak = max(peak, during_backward)
    end_of_forward = uses[-1]
    kept = end_of_forward.saved + kept_in_branches
    return Activations(kept, peak)


def _is_recomputed(branch: Branch) -> bool:
    """Say whether backward recomputes the branch: the value of the flag of its owner."""
    return getattr(branch.owner, branch.flag)

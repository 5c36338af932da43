"""Count what a training step has in memory for backward, module by module.

`count_memory_use` runs the forward pass once with every branch recomputed, and notes what autograd
has saved by the end of each module (`MemoryUse`). A branch is the attention or the MLP of a block,
or the MLP at the end of a stage. Afterwards branches.py measures how many more bytes autograd saves
for a branch that is not recomputed. transient.py estimates the memory that a backward pass takes
for a moment.

What must stay, and which test notices (in tests/parts/models/test_fit_memory.py):

    counting changes neither gradients nor       test_measuring_changes_neither_the_gradients_nor_
    random numbers                               the_random_numbers
    the count is what a step allocates           test_the_count_is_what_a_step_allocates

The count must not depend on the rank or on chance, because all ranks must recompute the same
branches. No test notices this.
"""

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from models.vrt.block import Block
from models.vrt.deform_align import DeformAlign
from models.vrt.memory.branches import Branch, MeasuredBranches, owners_of_branches
from models.vrt.memory.saved_bytes import saved_bytes
from models.vrt.memory.transient import alignment_transient, block_transient
from utils import device as devices


class MemoryUse(NamedTuple):
    """The memory in use during the backward pass of one module."""

    # The branches of this module.
    branches: list[Branch]
    # Bytes that this module and all modules before it have saved for backward, if all branches are
    # recomputed. E.g. module 2 of 0 ... 5: the bytes of the modules 0, 1 and 2. These bytes are
    # still in use during the module's backward pass. The tensors of the modules 3, 4 and 5 are free
    # by then, because backward goes from the last module to the first.
    saved: int
    # Additional bytes that the module's backward pass allocates on a GPU.
    transient: int = 0


def count_memory_use(net: nn.Module, run: Callable[[], Any]) -> list[MemoryUse]:
    """Set every checkpoint flag of the network, in place, and count what a step then saves.

    run: function that runs one forward pass of net at the training size.

    Returns the memory in use during the backward pass of each module, in the order of the forward
    pass. The last entry is the end of the forward pass, and has no branches.
    """
    # `forked_generators` restores torch's random generators at the end, so that the training draws
    # the same numbers as without this run.
    first_parameter = next(net.parameters())
    with devices.forked_generators(first_parameter.device), torch.enable_grad():
        passes, saved_at_end = _run_with_all_recomputed(net, run)
        measured = MeasuredBranches(net)
        uses = []
        for module, x, saved in passes:
            if isinstance(module, DeformAlign):
                # An alignment has no branches, but its backward pass allocates much memory.
                transient = alignment_transient(module, x)
                branches = []
            elif isinstance(module, Block):
                transient = block_transient(module, x)
                branches = measured.branches_of(module, x)
            else:  # the MLP at the end of a stage
                transient = 0
                branches = measured.branches_of(module, x)
            uses.append(MemoryUse(branches, saved, transient))
    end_of_forward = MemoryUse([], saved_at_end)
    return [*uses, end_of_forward]


class _ForwardPass(NamedTuple):
    """A module that has run its forward pass."""

    module: Any
    x: Tensor  # input of the module
    saved: int  # bytes that autograd had saved by the end of this pass


def _run_with_all_recomputed(
    net: nn.Module, run: Callable[[], Any]
) -> tuple[list[_ForwardPass], int]:
    """Run the network once with all checkpoint flags set.

    Returns the passes of the modules that have branches or align frames, in the order of the
    forward pass, and the bytes that autograd has saved at the end.
    """
    owners = owners_of_branches(net)
    alignments = [module for module in net.modules() if isinstance(module, DeformAlign)]
    passes: list[_ForwardPass] = []
    with ExitStack() as stack:
        # Fills up during the run: address of a saved storage -> its bytes.
        sizes = stack.enter_context(saved_bytes(net))

        def note(module: nn.Module, args: tuple[Any, ...], _: Any) -> None:
            """Note the input of a module, and what is saved. torch calls it after the module."""
            # DeformAlign takes (sources, target, flows). All other modules take only x.
            x = args[1] if isinstance(module, DeformAlign) else args[0]
            passes.append(_ForwardPass(module, x.detach(), saved=sum(sizes.values())))

        for owner in owners:
            for flag in owner.FLAGS:
                setattr(owner, flag, True)  # backward recomputes this branch
        for module in (*owners, *alignments):
            hook = module.register_forward_hook(note)
            stack.callback(hook.remove)
        run()
    return passes, sum(sizes.values())

"""Memory of a training step: with checkpoint = "auto", a step keeps to its budget.

A block that is "checkpointed" keeps no activations, and computes them again in the backward pass.
With checkpoint "auto", the network decides which blocks are checkpointed, so that a step fits into
a budget of memory. For this decision, the code in models/vrt/memory/ counts bytes. The tests
compare the count with the bytes that torch allocates.
"""

import logging
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from models.network_vrt import VRT
from models.vrt.block import Block
from models.vrt.memory.fit_memory import MARGIN, fit_memory
from models.vrt.memory.saved_bytes import saved_bytes
from tests.helpers.small_vrt import SMALL
from utils.errors import OptionError

# Arguments of a network with few blocks. Its training steps drop branches at random.
TINY: dict[str, Any] = {
    **SMALL,
    "depths": [2, 1, 1, 1, 1, 1, 2, 1, 1],
    "drop_path_rate": 0.5,
    "kernels": "plain",
}


def tiny_vrt(**changes: Any) -> VRT:
    """Return a network TINY. changes: arguments to replace."""
    return VRT(**(TINY | changes))


def blocks_of(net: VRT) -> list[Block]:
    """Return the blocks of a network. Each has two branches: attention and MLP."""
    return [module for module in net.modules() if isinstance(module, Block)]


def number_of_checkpointed_branches(net: VRT) -> int:
    """Return how many branches compute their activations again in the backward pass."""
    count = 0
    for block in blocks_of(net):
        count += block.checkpoint_attn + block.checkpoint_ffn  # two bools: True counts as 1
    return count


# ---- The budget ----


@pytest.fixture
def net_and_clip() -> tuple[VRT, Tensor]:
    """Give a network TINY and a clip (1, 2, 3, 32, 32)."""
    return tiny_vrt(), torch.rand(1, 2, 3, 32, 32)


def kept_bytes(net: VRT, clip: Tensor) -> int:
    """Return how many bytes autograd keeps in a forward pass."""
    with saved_bytes(net) as sizes:
        net(clip)
    return sum(sizes.values())


def test_a_smaller_budget_recomputes_more_and_keeps_less(net_and_clip):
    net, clip = net_and_clip
    # A budget of 0.001 GB is too small for any step. So fit_memory checkpoints all branches, and
    # returns how many GB a step with all these checkpoints needs.
    least_gb = fit_memory(net, lambda: net(clip), budget_gb=0.001)
    counts = []
    kept = []

    # The first budget is too small, the second is a little larger than the least budget, and the
    # third is more than enough.
    for budget_gb in (0.001, least_gb + 0.002, 10.0):
        fit_memory(net, lambda: net(clip), budget_gb)
        counts.append(number_of_checkpointed_branches(net))
        kept.append(kept_bytes(net, clip))

    all_branches = 2 * len(blocks_of(net))  # attention and MLP of each block
    most, some, none = counts
    assert most == all_branches
    assert 0 < some < all_branches
    assert none == 0
    assert kept[0] < kept[1] < kept[2]


def step_with_budget(budget_gb: float | None) -> list[Any]:
    """Run a training step. Return the gradients of all parameters.

    budget_gb: budget of checkpoint "auto". None: no checkpoint.
    """
    torch.manual_seed(0)
    auto: dict[str, Any] = {}
    if budget_gb is not None:
        auto = {"checkpoint": "auto", "memory_budget_gb": budget_gb}
    net = tiny_vrt(**auto)
    clip = torch.rand(1, 2, 3, 32, 32)
    torch.manual_seed(1)
    # conv_last begins with zeros, so no gradient would reach the blocks before it.
    net.conv_last.weight.data.normal_()
    net.fit(clip)
    net(clip).square().mean().backward()
    return [parameter.grad for parameter in net.parameters()]


def test_measuring_changes_neither_the_gradients_nor_the_random_numbers():
    plain = step_with_budget(None)
    measured = step_with_budget(10.0)

    for a, b in zip(plain, measured, strict=True):
        assert torch.equal(a, b)


def test_a_budget_that_cannot_be_met_is_said_with_a_way_out(caplog):
    with caplog.at_level(logging.WARNING):
        step_with_budget(0.001)

    assert "even with every block checkpointed" in caplog.text
    assert "gt_size" in caplog.text


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU knows its own memory")
def test_auto_without_a_gpu_needs_a_budget():
    with pytest.raises(OptionError, match="memory_budget_gb"):
        tiny_vrt(checkpoint="auto")


# ---- The count of bytes ----


def allocated_bytes(run) -> int:
    """Return how many more bytes torch holds during `run` than before, at most.

    The profiler records each allocation (a positive number of bytes) and each release (a negative
    number) with its time. So the sum of all numbers up to a time is the number of bytes that torch
    holds at this time.
    """
    kinds = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=kinds, profile_memory=True) as profiled:
        run()
    # kineto is the part of torch's profiler that records events. "[memory]" is its name for an
    # allocation or a release.
    events = []
    for event in profiled.profiler.kineto_results.events():
        if event.name() == "[memory]":
            events.append(event)
    events.sort(key=lambda event: event.start_ns())
    sizes = torch.tensor([event.nbytes() for event in events])
    return int(sizes.cumsum(0).max())


def train_step(net: VRT, optimizer: torch.optim.Optimizer, clip: Tensor) -> None:
    """Run a training step."""
    net(clip).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


CHECKPOINTED = {"use_checkpoint_attn": True, "use_checkpoint_ffn": True}


# Each case takes three seconds of a core, so three of the four are in `make slow`.
@pytest.mark.parametrize(
    ("kernels", "flags"),
    [
        pytest.param("auto", {}, id="auto, kept"),
        pytest.param("plain", CHECKPOINTED, id="plain, checkpointed", marks=pytest.mark.slow),
        pytest.param("plain", {}, id="plain, kept", marks=pytest.mark.slow),
        pytest.param("auto", CHECKPOINTED, id="auto, checkpointed", marks=pytest.mark.slow),
    ],
)
def test_the_count_is_what_a_step_allocates(kernels, flags):
    net = tiny_vrt(kernels=kernels, drop_path_rate=0.0, **flags)
    clip = torch.rand(1, 4, 3, 32, 64)
    optimizer = torch.optim.Adam(net.parameters())
    # In the first step, Adam makes two moments of each weight. They stay in memory. So each weight
    # takes three numbers of 4 bytes.
    train_step(net, optimizer, clip[..., :32, :32])
    bytes_of_weight_and_moments = 3 * 4
    parameters = sum(parameter.numel() for parameter in net.parameters())
    count_before = number_of_checkpointed_branches(net)

    allocated = allocated_bytes(lambda: train_step(net, optimizer, clip))
    # `fit_memory` must leave the blocks as they are. Without flags the budget has no limit, so no
    # block is checkpointed. With flags the budget is 0, so all blocks stay checkpointed.
    budget_gb = 0.0 if flags else math.inf
    counted_gb = fit_memory(net, lambda: net(clip), budget_gb)

    measured_gb = (bytes_of_weight_and_moments * parameters + allocated) / 1e9
    # The result of `fit_memory` is the count times MARGIN, because the count may have an error. So
    # the count without the margin is compared with the measured bytes.
    assert counted_gb / MARGIN == pytest.approx(measured_gb, rel=0.05)
    assert number_of_checkpointed_branches(net) == count_before


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_the_count_is_what_a_step_allocates_on_a_gpu():
    net = tiny_vrt(drop_path_rate=0.0).cuda()
    clip = torch.rand(1, 4, 3, 64, 64, device="cuda")
    optimizer = torch.optim.Adam(net.parameters(), fused=True)

    # The first step makes the moments of Adam. The second step is measured.
    for _ in range(2):
        torch.cuda.reset_peak_memory_stats()
        train_step(net, optimizer, clip)
    measured_gb = torch.cuda.max_memory_allocated() / 1e9

    assert fit_memory(net, lambda: net(clip), math.inf) == pytest.approx(measured_gb, rel=0.15)

"""checkpoint = "auto": the budget decides, and the numbers stay."""

import logging
import math

import pytest
import torch

from models.network_vrt import VRT
from models.vrt.block import Block
from models.vrt.fit_memory import MARGIN, fit_memory, saved_bytes
from tests.test_vrt_modules import SMALL
from utils.errors import OptionError

TINY = {**SMALL, "depths": [2, 1, 1, 1, 1, 1, 2, 1, 1], "drop_path_rate": 0.5, "kernels": "plain"}


def step(budget_gb: float | None):
    """(network after one training step, its gradients) with this budget, or without "auto"."""
    torch.manual_seed(0)
    auto = {} if budget_gb is None else {"checkpoint": "auto", "memory_budget_gb": budget_gb}
    net, x = VRT(**TINY, **auto), torch.rand(1, 2, 3, 32, 32)
    torch.manual_seed(1)
    net.conv_last.weight.data.normal_()
    net.fit(x)
    net(x).square().mean().backward()
    return net, [p.grad for p in net.parameters()]


def recomputed(net: VRT) -> int:
    return sum(b.checkpoint_attn + b.checkpoint_ffn for b in net.modules() if isinstance(b, Block))


def test_a_smaller_budget_recomputes_more_and_keeps_less():
    net, x = VRT(**TINY), torch.rand(1, 2, 3, 32, 32)
    least = fit_memory(net, lambda: net(x), 0.001)
    counts, kept = [], []
    for budget in (0.001, least + 0.002, 10.0):
        fit_memory(net, lambda: net(x), budget)
        counts.append(recomputed(net))
        kept.append(saved_bytes(net, lambda: net(x)))
    assert counts[0] == 2 * sum(isinstance(m, Block) for m in net.modules())
    assert counts[0] > counts[1] > counts[2] == 0
    assert kept[0] < kept[1] < kept[2]


def allocated_bytes(run):
    """The most that torch holds at once during `run`, beyond what it held before: every single allocation, summed."""
    kinds = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=kinds, profile_memory=True) as profiled:
        run()
    events = [e for e in profiled.profiler.kineto_results.events() if e.name() == "[memory]"]
    sizes = torch.tensor([e.nbytes() for e in sorted(events, key=lambda e: e.start_ns())])
    return int(sizes.cumsum(0).max())


@pytest.mark.parametrize("kernels", ["plain", "auto"])
@pytest.mark.parametrize("flags", [{}, {"use_checkpoint_attn": True, "use_checkpoint_ffn": True}])
def test_the_count_is_what_a_step_allocates(kernels, flags):
    net, x = VRT(**{**TINY, "kernels": kernels, "drop_path_rate": 0.0}, **flags), torch.rand(1, 4, 3, 64, 64)
    optimizer = torch.optim.Adam(net.parameters())

    def step(clip):
        net(clip).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    step(x[..., :32, :32])  # makes the moments
    weights_and_moments = 12 * sum(p.numel() for p in net.parameters())
    measured = weights_and_moments + allocated_bytes(lambda: step(x))
    before = recomputed(net)
    counted = fit_memory(net, lambda: net(x), 0.0 if flags else math.inf)

    assert counted / MARGIN == pytest.approx(measured / 1e9, rel=0.05)
    assert recomputed(net) == before


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_the_count_is_what_a_step_allocates_on_a_gpu():
    net, x = VRT(**{**TINY, "drop_path_rate": 0.0}).cuda(), torch.rand(1, 4, 3, 64, 64, device="cuda")
    optimizer = torch.optim.Adam(net.parameters(), fused=True)
    for _ in range(2):
        torch.cuda.reset_peak_memory_stats()
        net(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    measured = torch.cuda.max_memory_allocated()

    assert fit_memory(net, lambda: net(x), math.inf) == pytest.approx(measured / 1e9, rel=0.15)


def test_measuring_changes_neither_the_gradients_nor_the_random_numbers():
    plain, measured = step(None)[1], step(10.0)[1]
    for a, b in zip(plain, measured, strict=True):
        assert torch.equal(a, b)


def test_a_budget_that_cannot_be_met_is_said_with_a_way_out(caplog):
    with caplog.at_level(logging.WARNING):
        step(0.001)
    assert "even with every block checkpointed" in caplog.text and "gt_size" in caplog.text


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU knows its own memory")
def test_auto_without_a_gpu_needs_a_budget():
    with pytest.raises(OptionError, match="memory_budget_gb"):
        VRT(**TINY, checkpoint="auto")

"""Memory of a training step: checkpoint = "auto" keeps to its budget, and what an error advises.

With checkpoint "auto", the network decides which blocks compute their activations again in the
backward pass (they are "checkpointed"), so that a step fits into a budget. The decision counts
bytes (models/vrt/fit_memory.py), and the tests compare the count with what torch allocates. The
last part is about a step that does not fit: the error names options that make it smaller.
"""

import logging
import math
from typing import Any

import pytest
import torch
from pydantic import ConfigDict

from main_train_vrt import read_options
from models.model_vrt import ModelVRT
from models.network_vrt import VRT
from models.select_network import NETWORKS
from models.vrt.block import Block
from models.vrt.fit_memory import MARGIN, fit_memory, saved_bytes, suggest_changes
from tests.helpers.small_vrt import SMALL
from tests.helpers.train_files import network, write_options
from utils import device as devices
from utils.contract import InputSpec
from utils.errors import OptionError, SpikeVRTError
from utils.options.models import AmpOptions, LoaderOptions, TrainOptions
from utils.options.section import Section

TINY: dict[str, Any] = SMALL | {
    "depths": [2, 1, 1, 1, 1, 1, 2, 1, 1], "drop_path_rate": 0.5, "kernels": "plain",
}  # fmt: skip


def tiny_vrt(**changes: Any) -> VRT:
    """Return a network TINY. changes: arguments to replace."""
    return VRT(**(TINY | changes))


def step(budget_gb: float | None):
    """(network after one training step, its gradients) with this budget, or without "auto"."""
    torch.manual_seed(0)
    auto: dict[str, Any] = (
        {} if budget_gb is None else {"checkpoint": "auto", "memory_budget_gb": budget_gb}
    )
    net = tiny_vrt(**auto)
    x = torch.rand(1, 2, 3, 32, 32)
    torch.manual_seed(1)
    net.conv_last.weight.data.normal_()
    net.fit(x)
    net(x).square().mean().backward()
    return net, [p.grad for p in net.parameters()]


def recomputed(net: VRT) -> int:
    """Return how many branches (attention, MLP) of blocks are computed again in backward."""
    return sum(b.checkpoint_attn + b.checkpoint_ffn for b in net.modules() if isinstance(b, Block))


def test_a_smaller_budget_recomputes_more_and_keeps_less():
    net = tiny_vrt()
    x = torch.rand(1, 2, 3, 32, 32)
    least = fit_memory(net, lambda: net(x), 0.001)
    counts = []
    kept = []
    for budget in (0.001, least + 0.002, 10.0):
        fit_memory(net, lambda: net(x), budget)
        counts.append(recomputed(net))
        with saved_bytes(net) as sizes:
            net(x)
        kept.append(sum(sizes.values()))

    assert counts[0] == 2 * sum(isinstance(m, Block) for m in net.modules())
    assert counts[0] > counts[1] > counts[2] == 0
    assert kept[0] < kept[1] < kept[2]


def allocated_bytes(run):
    """Return the most that torch holds at once during `run`, beyond what it held before.

    The profiler tells each allocation (bytes above 0) and each release (below 0) with its time. So
    the sum up to a time is what is held then.
    """
    kinds = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=kinds, profile_memory=True) as profiled:
        run()
    events = [e for e in profiled.profiler.kineto_results.events() if e.name() == "[memory]"]
    sizes = torch.tensor([e.nbytes() for e in sorted(events, key=lambda e: e.start_ns())])
    return int(sizes.cumsum(0).max())


@pytest.mark.parametrize("kernels", ["plain", "auto"])
@pytest.mark.parametrize("flags", [{}, {"use_checkpoint_attn": True, "use_checkpoint_ffn": True}])
def test_the_count_is_what_a_step_allocates(kernels, flags):
    net = tiny_vrt(kernels=kernels, drop_path_rate=0.0, **flags)
    x = torch.rand(1, 4, 3, 64, 64)
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
    net = tiny_vrt(drop_path_rate=0.0).cuda()
    x = torch.rand(1, 4, 3, 64, 64, device="cuda")
    optimizer = torch.optim.Adam(net.parameters(), fused=True)
    for _ in range(2):
        torch.cuda.reset_peak_memory_stats()
        net(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    measured = torch.cuda.max_memory_allocated()

    assert fit_memory(net, lambda: net(x), math.inf) == pytest.approx(measured / 1e9, rel=0.15)


def test_measuring_changes_neither_the_gradients_nor_the_random_numbers():
    plain = step(None)[1]
    measured = step(10.0)[1]
    for a, b in zip(plain, measured, strict=True):
        assert torch.equal(a, b)


def test_a_budget_that_cannot_be_met_is_said_with_a_way_out(caplog):
    with caplog.at_level(logging.WARNING):
        step(0.001)
    assert "even with every block checkpointed" in caplog.text
    assert "gt_size" in caplog.text


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU knows its own memory")
def test_auto_without_a_gpu_needs_a_budget():
    with pytest.raises(OptionError, match="memory_budget_gb"):
        tiny_vrt(checkpoint="auto")


PIXELS = 2 * 2 * 3 * 64 * 64


@NETWORKS.register("cramped_vrt", given=("spike_channels",))
class CrampedVRT(VRT):
    """A VRT on a device that is too small for larger clips."""

    def forward(self, lq, spike=None):
        if lq.numel() > PIXELS:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return super().forward(lq, spike)


class Data(LoaderOptions):
    """The keys of datasets.train that the advice reads."""

    gt_size: int
    num_frame: int


class AnyNetwork(Section):
    """The keys of a network, whatever they are."""

    model_config = ConfigDict(extra="allow")


def ways(
    batch=4, accumulation=1, gt_size=192, frames=6, amp=False, least_frames=2, scale=1, **netG
):
    """Return the option lines that would make a step with these options smaller."""
    data = Data(dataloader_batch_size=batch, gt_size=gt_size, num_frame=frames)
    train = TrainOptions(accumulation_steps=accumulation, amp=AmpOptions(enable=amp))
    spec = InputSpec(stride=8, least_size=(64, 64), least_frames=least_frames, scale=scale)
    return suggest_changes(train, data, AnyNetwork(**netG), spec)


def test_every_way_out_is_an_option_line():
    assert ways(accumulation=3, use_checkpoint_attn=False, use_checkpoint_ffn=True) == [
        "datasets.train.dataloader_batch_size=2 train.accumulation_steps=6",
        "netG.use_checkpoint_attn=true", "train.amp.enable=true", "datasets.train.gt_size=144",
        "datasets.train.num_frame=5",
    ]  # fmt: skip
    # What is in use, or too small for the network, is not offered.
    found = ways(
        batch=1,
        gt_size=256,
        frames=4,
        amp=True,
        least_frames=3,
        scale=4,
        no_checkpoint_attn_blocks=[9],
    )

    assert found == ["netG.no_checkpoint_attn_blocks=[]"]


def model(tmp_path, *overrides, **netG):
    """Return a model for clips of 128 x 128 in batches of two. netG: section of the network."""
    argv = [
        "--opt",
        str(write_options(tmp_path, netG=netG)),
        "datasets.train.gt_size=128",
        *overrides,
    ]
    made = ModelVRT(read_options([*argv, "datasets.train.dataloader_batch_size=2"]))
    made.init_train()
    return made


def batch_for(model):
    """Return a batch of two clips of two frames."""
    spikes = model.opt.datasets.train.spike_channels
    lq = torch.rand(2, 2, 3, 128, 128)
    return {"lq": lq, "gt": lq, "spike": torch.rand(2, 2, spikes, 128, 128), "key": ["a", "b"]}


@pytest.mark.parametrize("amp", [False, True])
def test_a_step_without_room_names_option_lines(tmp_path, amp):
    cramped = model(
        tmp_path, f"train.amp.enable={str(amp).lower()}", **network(net_type="cramped_vrt")
    )
    with pytest.raises(SpikeVRTError, match="out of memory on rank 0") as caught:
        cramped.optimize_parameters(1, [batch_for(cramped)])
    error = caught.value

    assert "iteration 1" in error.where
    assert "(2, 2, 3, 128, 128)" in error.where
    assert "GB of the device" in error.expected
    assert "datasets.train.dataloader_batch_size=1 train.accumulation_steps=2" in error.do
    assert "netG.use_checkpoint_attn=true" in error.do
    assert "datasets.train.gt_size=96" in error.do
    assert ("train.amp.enable=true" in error.do) is not amp
    assert isinstance(error.__cause__, torch.OutOfMemoryError)


def test_an_optimizer_without_room_names_option_lines(tmp_path):
    def fail(*_):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    full = model(tmp_path, **network())
    full.optimizer.register_step_pre_hook(fail)  # there Adam allocates its moments
    batch = {
        key: value[..., :16, :16] if key != "key" else value
        for key, value in batch_for(full).items()
    }
    with pytest.raises(SpikeVRTError, match="out of memory on rank 0"):
        full.optimize_parameters(1, [batch])


def test_out_of_memory_is_told_from_other_errors():
    with pytest.raises(RuntimeError) as host:
        torch.empty(2**60, dtype=torch.uint8)

    assert devices.is_out_of_memory(host.value)
    assert devices.is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory"))
    assert not devices.is_out_of_memory(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))

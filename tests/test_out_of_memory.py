"""A training step that does not fit says what to change, and by how much."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from main_train_vrt import read_options
from models.model_vrt import ModelVRT
from models.network_vrt import VRT
from models.out_of_memory import StepOptions, estimate_step, is_out_of_memory, suggest_changes
from models.select_network import NETWORKS
from models.vrt.fit_memory import MARGIN, StepMemory, count_step
from tests.train_files import network, write_options
from utils.contract import InputSpec
from utils.errors import SpikeVRTError
from utils.options.models import AmpOptions, TrainOptions

PIXELS = 2 * 2 * 3 * 64 * 64


@NETWORKS.register("cramped_vrt", given=("spike_channels",))
class CrampedVRT(VRT):
    """On a device too small for clips of more than PIXELS values."""

    def forward(self, lq, spike=None):
        if lq.numel() > PIXELS:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return super().forward(lq, spike)


@NETWORKS.register("no_room")
class NoRoom(torch.nn.Module):
    """Never fits."""

    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 3, 1)

    def forward(self, lq, spike=None):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")


def options(batch=4, accumulation=1, gt_size=192, frames=6, amp=False, **netG):
    data = SimpleNamespace(dataloader_batch_size=batch, gt_size=gt_size, num_frame=frames)
    train = TrainOptions(accumulation_steps=accumulation, amp=AmpOptions(enable=amp))
    return StepOptions(train, data, SimpleNamespace(**netG))


def needs(least_frames, scale=1):
    return InputSpec(stride=8, least_size=(64, 64), least_frames=least_frames, scale=scale)


def gigabytes(fixed, activations, checkpointed):
    return StepMemory(*(int(1e9 * x / MARGIN) for x in (fixed, activations, checkpointed)))


def test_each_way_out_is_the_mildest_that_fits():
    ways = dict(suggest_changes(gigabytes(1, 20, 5), options(accumulation=3), 12.0, needs(2)))

    assert ways == {
        "datasets.train.dataloader_batch_size=2 train.accumulation_steps=6": "about 11.0 GB",
        "netG.checkpoint=auto netG.memory_budget_gb=12.0": "at most 12.0 GB",
        "netG.use_checkpoint_attn=true netG.use_checkpoint_ffn=true": "about 6.0 GB",
        "datasets.train.gt_size=136": f"about {1 + 20 * (136 / 192) ** 2:.1f} GB",
        "datasets.train.num_frame=3": "about 11.0 GB",
        "train.amp.enable=true": "halves the activations (not estimated here)",
    }


def test_what_does_not_suffice_is_said_and_what_is_in_use_is_not_offered():
    opt = options(batch=1, gt_size=256, frames=4, amp=True, no_checkpoint_attn_blocks=[9])

    ways = dict(suggest_changes(gigabytes(1, 40, 30), opt, 4.0, needs(3, scale=4)))

    attn = "netG.use_checkpoint_attn=true netG.use_checkpoint_ffn=true netG.no_checkpoint_attn_blocks=[]"
    assert ways == {attn: "about 31.0 GB, still too much"}


def model(tmp_path, *overrides, **netG):
    argv = ["--opt", str(write_options(tmp_path, netG=netG)), "datasets.train.gt_size=128", *overrides]
    made = ModelVRT(read_options([*argv, "datasets.train.dataloader_batch_size=2"]))
    made.init_train()
    return made


def batch_for(model):
    spikes = model.opt.datasets.train.spike_channels
    lq = torch.rand(2, 2, 3, 128, 128)
    return {"lq": lq, "gt": lq, "spike": torch.rand(2, 2, spikes, 128, 128), "key": ["a", "b"]}


@pytest.mark.parametrize("amp", [False, True])
def test_a_step_without_room_names_option_lines_with_their_gigabytes(tmp_path, amp):
    cramped = model(tmp_path, f"train.amp.enable={str(amp).lower()}", **network(net_type="cramped_vrt"))

    with pytest.raises(SpikeVRTError, match="out of memory on rank 0") as caught:
        cramped.optimize_parameters(1, [batch_for(cramped)])

    error = caught.value
    assert "iteration 1" in error.where and "(2, 2, 3, 128, 128)" in error.where
    assert "GB of the device; this one needs about" in error.expected
    assert "datasets.train.dataloader_batch_size=1 train.accumulation_steps=2" in error.do
    size = 104 if amp else 112
    assert "netG.use_checkpoint_attn=true" in error.do and f"datasets.train.gt_size={size}" in error.do
    assert error.do.count(" GB") >= 3
    assert all(p.grad is None for p in cramped.netG.parameters())


def test_what_is_counted_on_a_corner_is_what_the_whole_clip_needs(tmp_path):
    vrt = model(tmp_path, **network(drop_path_rate=0.0))
    batch = batch_for(vrt)
    lq, spike = batch["lq"], batch["spike"]

    counted = count_step(vrt.netG, lambda: vrt.netG(lq, spike))

    assert estimate_step(vrt.netG, lq, spike, vrt.autocast).gb() == pytest.approx(counted.gb(), rel=0.05)


def test_where_nothing_can_be_counted_the_general_advice_stands(tmp_path):
    stuck = model(tmp_path, net_type="no_room")

    with pytest.raises(SpikeVRTError, match="out of memory") as caught:
        stuck.optimize_parameters(1, [batch_for(stuck)])

    assert "gt_size" in caught.value.do and isinstance(caught.value.__cause__, torch.OutOfMemoryError)


def test_out_of_memory_is_told_from_other_errors():
    with pytest.raises(RuntimeError) as host:
        torch.empty(2**60, dtype=torch.uint8)
    assert is_out_of_memory(host.value)
    assert is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory"))
    assert not is_out_of_memory(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))

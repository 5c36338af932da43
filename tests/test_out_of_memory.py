"""A training step that does not fit says what to change."""

from types import SimpleNamespace

import pytest
import torch

from main_train_vrt import read_options
from models.model_vrt import ModelVRT
from models.network_vrt import VRT
from models.select_network import NETWORKS
from models.vrt.fit_memory import is_out_of_memory, suggest_changes
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


def ways(batch=4, accumulation=1, gt_size=192, frames=6, amp=False, least_frames=2, scale=1, **netG):
    data = SimpleNamespace(dataloader_batch_size=batch, gt_size=gt_size, num_frame=frames)
    train = TrainOptions(accumulation_steps=accumulation, amp=AmpOptions(enable=amp))
    spec = InputSpec(stride=8, least_size=(64, 64), least_frames=least_frames, scale=scale)
    return suggest_changes(train, data, SimpleNamespace(**netG), spec)


def test_every_way_out_is_an_option_line():
    assert ways(accumulation=3, use_checkpoint_attn=False, use_checkpoint_ffn=True) == [
        "datasets.train.dataloader_batch_size=2 train.accumulation_steps=6",
        "netG.use_checkpoint_attn=true",
        "train.amp.enable=true",
        "datasets.train.gt_size=144",
        "datasets.train.num_frame=5",
    ]


def test_what_is_in_use_or_too_small_for_the_network_is_not_offered():
    found = ways(batch=1, gt_size=256, frames=4, amp=True, least_frames=3, scale=4, no_checkpoint_attn_blocks=[9])
    assert found == ["netG.no_checkpoint_attn_blocks=[]"]


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
def test_a_step_without_room_names_option_lines(tmp_path, amp):
    cramped = model(tmp_path, f"train.amp.enable={str(amp).lower()}", **network(net_type="cramped_vrt"))

    with pytest.raises(SpikeVRTError, match="out of memory on rank 0") as caught:
        cramped.optimize_parameters(1, [batch_for(cramped)])

    error = caught.value
    assert "iteration 1" in error.where and "(2, 2, 3, 128, 128)" in error.where
    assert "GB of the device" in error.expected
    assert "datasets.train.dataloader_batch_size=1 train.accumulation_steps=2" in error.do
    assert "netG.use_checkpoint_attn=true" in error.do and "datasets.train.gt_size=96" in error.do
    assert ("train.amp.enable=true" in error.do) is not amp
    assert isinstance(error.__cause__, torch.OutOfMemoryError)


def test_out_of_memory_is_told_from_other_errors():
    with pytest.raises(RuntimeError) as host:
        torch.empty(2**60, dtype=torch.uint8)
    assert is_out_of_memory(host.value)
    assert is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory"))
    assert not is_out_of_memory(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))

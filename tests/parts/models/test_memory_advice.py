"""models/vrt/memory/advice.py: a step that does not fit names the options that make it smaller."""

import pytest
import torch
from pydantic import ConfigDict

from main_train_vrt import read_options
from models.model_vrt import ModelVRT
from models.network_vrt import VRT
from models.select_network import NETWORKS
from models.vrt.memory.advice import suggest_changes
from tests.helpers.train_files import network_section, write_options
from utils import device as devices
from utils.contract import InputSpec
from utils.errors import SpikeVRTError
from utils.options.loader_options import LoaderOptions
from utils.options.section import Section
from utils.options.train_options import AmpOptions, TrainOptions

# ---- The option lines ----


class Data(LoaderOptions):
    """The keys of datasets.train that the advice reads."""

    gt_size: int
    num_frame: int


class AnyNetwork(Section):
    """The keys of a network, whatever they are."""

    model_config = ConfigDict(extra="allow")


def advice(
    batch=4,
    accumulation=1,
    global_batch_size=None,
    gt_size=192,
    frames=6,
    amp=False,
    least_frames=2,
    scale=1,
    **netG,
):
    """Return the option lines that would make a step with these options smaller.

    batch: clips that a rank computes at once. accumulation: number of such batches in a step.
    global_batch_size: clips of a step on all ranks, or None if the option is not given.
    gt_size, frames: side of a crop in pixels, and number of its frames. amp: whether the training
    is in mixed precision. least_frames: fewest frames that the network takes.
    scale: factor by which the network enlarges the frames. netG: keys of the network.
    """
    data = Data(dataloader_batch_size=batch, gt_size=gt_size, num_frame=frames)
    train = TrainOptions(
        accumulation_steps=accumulation,
        global_batch_size=global_batch_size,
        amp=AmpOptions(enable=amp),
    )
    spec = InputSpec(stride=8, least_size=(64, 64), least_frames=least_frames, scale=scale)
    return suggest_changes(train, data, AnyNetwork(**netG), spec)


def test_every_way_out_is_an_option_line():
    assert advice(accumulation=3, use_checkpoint_attn=False, use_checkpoint_ffn=True) == [
        # The batch is halved, and the number of batches doubled: 2 x 6 clips in place of 4 x 3.
        "datasets.train.dataloader_batch_size=2 train.accumulation_steps=6",
        # The MLP is checkpointed already.
        "netG.use_checkpoint_attn=true",
        "train.amp.enable=true",
        "datasets.train.gt_size=144",  # 3/4 of 192
        "datasets.train.num_frame=5",
    ]


def test_with_global_batch_size_a_smaller_batch_is_enough():
    fewer_clips, *_ = advice(batch=4, global_batch_size=8)

    assert fewer_clips == "datasets.train.dataloader_batch_size=2"


def test_what_is_in_use_or_too_small_for_the_network_is_not_offered():
    found = advice(
        # A smaller batch is not possible, and amp is in use.
        batch=1,
        amp=True,
        # The network enlarges by 4. So the side of its input is 256 / 4 = 64 pixels. This is the
        # smallest side that it takes.
        gt_size=256,
        scale=4,
        # The network takes 3 frames or more. The advice always leaves one frame more, here 4. So
        # with 4 frames, the advice does not propose fewer frames.
        frames=4,
        least_frames=3,
        no_checkpoint_attn_blocks=[9],
    )

    assert found == ["netG.no_checkpoint_attn_blocks=[]"]


# ---- A step that does not fit ----

# The largest number of values of a batch that fits on the device of CrampedVRT: 2 clips of 2 frames
# of 3 x 64 x 64.
MOST_VALUES = 2 * 2 * 3 * 64 * 64
# The error of torch on a full GPU.
OUT_OF_MEMORY = "CUDA out of memory. Tried to allocate 2.00 GiB"


@NETWORKS.register("cramped_vrt", given=("spike_channels",))
class CrampedVRT(VRT):
    """A VRT on a device that is too small for larger clips."""

    def forward(self, lq, spike=None):
        if lq.numel() > MOST_VALUES:
            raise torch.OutOfMemoryError(OUT_OF_MEMORY)
        return super().forward(lq, spike)


def model_of(tmp_path, *overrides, **netG):
    """Return a model for clips of 128 x 128 in batches of two. netG: section of the network."""
    options = write_options(tmp_path, netG=netG)
    size = ("datasets.train.gt_size=128", "datasets.train.dataloader_batch_size=2")
    model = ModelVRT(read_options(["--opt", str(options), *size, *overrides]))
    model.init_train()
    return model


def batch_for(model, side=128):
    """Return a batch of two clips of two frames."""
    channels = model.opt.datasets.train.spike_channels
    lq = torch.rand(2, 2, 3, side, side)
    spike = torch.rand(2, 2, channels, side, side)
    return {"lq": lq, "gt": lq, "spike": spike, "key": ["a", "b"]}


@pytest.mark.parametrize("amp", [False, True])
def test_a_step_without_room_names_option_lines(tmp_path, amp):
    enable = f"train.amp.enable={str(amp).lower()}"
    cramped = model_of(tmp_path, enable, **network_section(net_type="cramped_vrt"))

    with pytest.raises(SpikeVRTError, match="out of memory on rank 0") as caught:
        cramped.optimize_parameters(step=1, micro_batches=[batch_for(cramped)])

    error = caught.value
    assert "iteration 1" in error.where
    assert "(2, 2, 3, 128, 128)" in error.where
    assert "GB of the device" in error.expected
    assert "datasets.train.dataloader_batch_size=1 train.accumulation_steps=2" in error.do
    assert "netG.use_checkpoint_attn=true" in error.do
    assert "datasets.train.gt_size=96" in error.do  # 3/4 of 128
    # The advice offers amp (mixed precision) only if it is not in use.
    assert ("train.amp.enable=true" in error.do) is not amp
    assert isinstance(error.__cause__, torch.OutOfMemoryError)


def test_an_optimizer_without_room_names_option_lines(tmp_path):
    def fail(*_):
        raise torch.OutOfMemoryError(OUT_OF_MEMORY)

    model = model_of(tmp_path, **network_section())
    # Adam allocates its moments in its first step, so the memory may be too small in this step.
    # `fail` is called at its start.
    model.optimizer.register_step_pre_hook(fail)

    with pytest.raises(SpikeVRTError, match="out of memory on rank 0"):
        model.optimize_parameters(step=1, micro_batches=[batch_for(model, side=16)])


def test_out_of_memory_is_told_from_other_errors():
    # No machine has 2^60 bytes.
    with pytest.raises(RuntimeError) as of_host:
        torch.empty(2**60, dtype=torch.uint8)

    assert devices.is_out_of_memory(of_host.value)
    assert devices.is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory"))
    assert not devices.is_out_of_memory(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))

"""Memory of a training step on a CPU: the estimate is near a count, and its messages are right.

Before the first step, `check_memory` estimates the memory of a step from the size of the network
and of the clips. It refuses a step that cannot fit, because the system would end the process later
without a message. No test fills the memory: clips of the needed size are tensors that repeat one
number.

Functions of the program that the tests use:

    saved_per_pixel(net)   returns the estimated bytes that autograd saves for a pixel of a frame
    saved_bytes(net)       counts the bytes that autograd saves within a `with` block
    host_memory()          returns the used and the whole memory of this machine in GB
"""

import logging
import math
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from models.cpu_memory import check_memory, saved_per_pixel
from models.network_vrt import VRT
from models.vrt.memory.saved_bytes import saved_bytes
from tests.helpers.checked import not_none
from tests.helpers.train_files import network_section, train, write_options
from utils.errors import OptionError
from utils.host_memory import host_memory

# Frames of a clip.
FRAMES = 4
# Arguments of a small network. It has 7 stages and one group of blocks after them.
SMALL: dict[str, Any] = {
    "upscale": 1,
    "img_size": [FRAMES, 64, 64],
    "window_size": [FRAMES, 4, 4],
    "depths": [4] * 7 + [2],
    "indep_reconsts": [],
    "embed_dims": [24] * 7 + [32],
    "num_heads": [4] * 8,
    "pa_frames": 2,
    "deformable_groups": 4,
    # The estimate is for a step that drops no branch. If branches are dropped at random, a step
    # saves up to 20 % less.
    "drop_path_rate": 0.0,
    "spynet_path": None,
}
# Exit code of a training that the user must start in another way.
CHANGE_START = 2
# Arguments of a network with so many channels that few small clips need much memory.
WIDE: dict[str, Any] = {"embed_dims": [320] * 8, "num_heads": [2] * 8}


def counted_bytes(net: VRT, width: int) -> int:
    """Return the bytes that autograd saves for a clip of frames of 32 x `width`."""
    with saved_bytes(net) as found:  # address of a storage -> its bytes
        net(torch.rand(1, FRAMES, 3, 32, width))
    return sum(found.values())


# Name of a network -> its arguments that differ from SMALL.
CHANGES: dict[str, dict[str, Any]] = {
    "small": {},
    "computed again": {"use_checkpoint_attn": True, "use_checkpoint_ffn": True},
    "deeper": {"depths": [8] * 7 + [2]},
    "wider": {"embed_dims": [64] * 7 + [72]},
    "groups of 4": {"pa_frames": 4, "deformable_groups": 8},
    "without alignment": {"pa_frames": 0},
    "enlarging": {"upscale": 4},
}


# Networks that only `make slow` tests. The tests of the other networks also notice if a block saves
# more or less.
COUNTED_SLOWLY = ("deeper", "wider", "groups of 4", "enlarging")


def changed_networks() -> list[Any]:
    """Return the entries of CHANGES. The names in COUNTED_SLOWLY are marked `slow`."""
    found = []
    for name, changes in CHANGES.items():
        marks = pytest.mark.slow if name in COUNTED_SLOWLY else ()
        found.append(pytest.param(changes, id=name, marks=marks))
    return found


@pytest.mark.parametrize("changes", changed_networks())
def test_the_estimate_is_near_what_autograd_saves(changes):
    net = VRT(**(SMALL | changes)).train()

    # The estimate is per pixel. Some tensors do not depend on the number of pixels, so they must
    # not count. They cancel in the difference between frames of 32 x 64 and frames of 32 x 32.
    more_bytes = counted_bytes(net, width=64) - counted_bytes(net, width=32)
    per_pixel = more_bytes / (FRAMES * 32 * 32)

    # The estimate may be wrong by a quarter, because `check_memory` refuses only a step that is far
    # too large. For a step near the limit, `check_memory` only warns.
    assert saved_per_pixel(net) == pytest.approx(per_pixel, rel=0.25)


def clips_of(gigabytes: float, net: VRT) -> Tensor:
    """Return clips (N, FRAMES, 3, 64, 64) for which autograd would save this many gigabytes.

    The clips take no memory, because `expand` repeats one number.
    """
    pixels = gigabytes * 1e9 / saved_per_pixel(net)
    clips = math.ceil(pixels / (FRAMES * 64 * 64))
    return torch.zeros(()).expand(clips, FRAMES, 3, 64, 64)


def check(net: VRT, lq: Tensor) -> None:
    """Check the memory for a step on clips `lq`. The advice is "gt_size=48" or "x=1"."""
    check_memory(net, lq, is_half=False, has_average=True, changes=lambda: ["gt_size=48", "x=1"])


class Memory(NamedTuple):
    """The memory of this machine, in GB."""

    used: float
    whole: float

    @property
    def free(self) -> float:
        return self.whole - self.used


def memory_now() -> Memory:
    return Memory(*not_none(host_memory()))


def test_a_step_that_fits_gets_no_message(caplog):
    net = VRT(**SMALL)
    caplog.set_level(logging.INFO)

    check(net, clips_of(0.1 * memory_now().free, net))

    assert not caplog.records


def test_a_step_that_may_not_fit_gets_one_line(caplog):
    net = VRT(**SMALL)
    memory = memory_now()
    caplog.set_level(logging.INFO)

    # The step needs a little more memory than is free, but less than the whole memory. It may fit
    # if other programs end, so the message is only a warning.
    check(net, clips_of(1.05 * memory.free, net))

    (record,) = caplog.records
    message = record.getMessage()
    assert record.levelno == logging.WARNING
    assert "\n" not in message
    assert f"of {memory.whole:.1f} GB are free" in message
    assert f"clips of {FRAMES} x 64 x 64 needs about" in message
    assert message.endswith("These need less: gt_size=48, or x=1")


def test_a_step_that_cannot_fit_is_refused_with_the_figures():
    net = VRT(**SMALL)
    whole_gb = memory_now().whole

    with pytest.raises(OptionError) as error:
        check(net, clips_of(20 * whole_gb, net))

    assert f"at most the {whole_gb:.1f} GB" in error.value.expected
    assert "gt_size=48" in error.value.do
    assert "GB of activations" in error.value.what


def test_a_step_that_cannot_fit_without_any_smaller_options_asks_for_a_smaller_network():
    net = VRT(**SMALL)
    lq = clips_of(20 * memory_now().whole, net)

    with pytest.raises(OptionError) as error:
        check_memory(net, lq, is_half=False, has_average=False, changes=list)

    assert error.value.do.startswith("use a smaller network")


def test_a_training_that_cannot_fit_ends_before_its_first_step(tmp_path):
    options = write_options(tmp_path, netG=network_section(**WIDE))
    options_of_net: dict[str, Any] = {**SMALL, "depths": [2] + [1] * 7, **WIDE}
    bytes_of_clip = saved_per_pixel(VRT(**options_of_net)) * 4 * 32 * 32  # 4 frames of 32 x 32
    # A batch of `clips` clips needs three times the whole memory. `clips` is even, because the
    # error advises `clips // 2`.
    needed_bytes = 3 * memory_now().whole * 1e9
    clips = 2 * math.ceil(needed_bytes / bytes_of_clip / 2)
    changes = (
        "datasets.test={}",
        "datasets.train.num_frame=4",
        f"datasets.train.dataloader_batch_size={clips}",
        # An epoch must have at least one batch. So each sample is repeated this many times.
        f"datasets.train.dataloader_epoch_repeat={clips}",
    )

    result = train(options, *changes)

    assert result.exit_codes == [CHANGE_START], result.text
    assert f"a step on {clips} clips of 4 x 32 x 32 needs about" in result.text
    assert f"datasets.train.dataloader_batch_size={clips // 2}" in result.text
    assert "Iter: 1" not in result.text

"""Memory of a training step on a CPU: the estimate beside a count, and what is said of it.

Before the first step, `check_memory` estimates the memory of a step from the size of the network
and of the clips. A step that cannot fit is refused, because the system would end the process later
without a word. No test fills the memory: clips of the needed size are tensors without content.
"""

import logging
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from models.cpu_memory import check_memory, saved_per_pixel
from models.network_vrt import VRT
from models.vrt.fit_memory import saved_bytes
from tests.helpers.train_files import network, train, write_options
from utils.errors import OptionError
from utils.run.measure import host_memory

SMALL: dict[str, Any] = {
    "upscale": 1, "img_size": [6, 64, 64], "window_size": [6, 4, 4], "depths": [4] * 7 + [2],
    "indep_reconsts": [], "embed_dims": [24] * 7 + [32], "num_heads": [4] * 8, "pa_frames": 2,
    "deformable_groups": 4, "spynet_path": None,
}  # fmt: skip
# Numbers of channels with which few small clips need much memory.
WIDE: dict[str, Any] = {"embed_dims": [320] * 8, "num_heads": [2] * 8}


@pytest.mark.parametrize("changes", [
    {},
    {"use_checkpoint_attn": True, "use_checkpoint_ffn": True},
    {"depths": [8] * 7 + [2]},
    {"embed_dims": [64] * 7 + [72]},
    {"pa_frames": 4, "deformable_groups": 8},
    {"pa_frames": 0},
    {"upscale": 4},
])  # fmt: skip
def test_the_estimate_is_near_what_autograd_saves(changes):
    net = VRT(**(SMALL | changes)).train()
    counted = []
    for width in (32, 64):
        with saved_bytes(net) as found:
            net(torch.rand(1, 6, 3, 32, width))
        counted.append(sum(found.values()))

    per_pixel = (counted[1] - counted[0]) / (6 * 32 * 32)

    assert saved_per_pixel(net) == pytest.approx(per_pixel, rel=0.25)


def clips_of(gigabytes: float, net: VRT) -> Tensor:
    """Return clips for which autograd would save so many gigabytes. They have no content."""
    pixels = gigabytes * 1e9 / saved_per_pixel(net)
    return torch.zeros(()).expand(math.ceil(pixels / (6 * 64 * 64)), 6, 3, 64, 64)


def check(net: VRT, lq: Tensor) -> None:
    """Check the memory for a step on clips `lq`, with two pieces of advice."""
    check_memory(net, lq, is_half=False, has_average=True, changes=lambda: ["gt_size=48", "x=1"])


def test_a_step_that_fits_is_not_spoken_of_and_one_that_may_not_gets_one_line(caplog):
    net = VRT(**SMALL)
    memory = host_memory()
    assert memory is not None
    used, size = memory
    caplog.set_level(logging.INFO)

    check(net, clips_of(0.1 * (size - used), net))
    assert not caplog.records

    check(net, clips_of(1.05 * (size - used), net))
    (record,) = caplog.records
    said = record.getMessage()
    assert record.levelno == logging.WARNING
    assert "\n" not in said
    assert f"of {size:.1f} GB are free" in said
    assert "clips of 6 x 64 x 64 needs about" in said
    assert said.endswith("These need less: gt_size=48, or x=1")


def test_a_step_that_cannot_fit_is_refused_with_the_figures():
    net = VRT(**SMALL)
    memory = host_memory()
    assert memory is not None

    with pytest.raises(OptionError) as error:
        check(net, clips_of(20 * memory[1], net))

    assert f"at most the {memory[1]:.1f} GB" in error.value.expected
    assert "gt_size=48" in error.value.do
    assert "GB of activations" in error.value.what


def test_a_training_that_cannot_fit_ends_before_its_first_step(tmp_path):
    options = write_options(tmp_path, netG=network(**WIDE))
    memory = host_memory()
    assert memory is not None
    options_of_net: dict[str, Any] = {**SMALL, "depths": [2] + [1] * 7, **WIDE}
    net = VRT(**options_of_net)
    clips = math.ceil(3 * memory[1] * 1e9 / (saved_per_pixel(net) * 4 * 32 * 32))
    changes = [
        f"datasets.train.{key}={clips}"
        for key in ("dataloader_batch_size", "dataloader_epoch_repeat")
    ]

    result = train(options, "datasets.test={}", "datasets.train.num_frame=4", *changes)

    assert result.exit_codes == [2], result.text
    assert f"a step on {clips} clips of 4 x 32 x 32 needs about" in result.text
    assert f"datasets.train.dataloader_batch_size={clips // 2}" in result.text or clips % 2
    assert "Iter: 1" not in result.text

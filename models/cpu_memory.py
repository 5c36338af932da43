"""Check before the first step whether a training step on a CPU fits into memory.

If the memory of a GPU is full, torch raises an error. If the memory of the host is full, the system
swaps for minutes, and then ends the process without a message. So `check_memory` estimates the
memory of a step. If the step may not fit, it warns. If the step certainly does not fit, it refuses
the step.

What must stay: a step that fits is never refused (test_a_step_that_fits_gets_no_message).
ModelVRT.fit_memory calls `check_memory` before the first step, on every rank, because the ranks
count how many of them share a host.
Free to change: all texts, and the numbers SAVED_OF_..., as long as
test_the_estimate_is_near_what_autograd_saves finds the estimate within 25 %.

Tests: tests/parts/models/test_cpu_memory.py
"""

import logging
import platform
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, NoReturn

from torch import Tensor, nn

from models.network_vrt import VRT
from models.vrt.block import Block
from models.vrt.design import STAGE_SCALES
from models.vrt.memory.fit_memory import GB, MARGIN
from models.vrt.stages import Stage
from utils import utils_dist
from utils.errors import OptionError
from utils.host_memory import host_memory
from utils.words import counted

logger = logging.getLogger(__name__)

# Only a step that certainly does not fit is refused, so a refusal counts only this fraction of the
# estimated activations. The estimate may be 25 % too high, so the true value is at least 0.8 of the
# estimate, and 0.75 is a little lower.
CERTAIN_SHARE = 0.75


class Need(NamedTuple):
    """The memory that the processes of this host need for a training step."""

    fixed: int  # bytes of weights, gradients and moments in each process
    saved: int  # bytes that autograd saves for the backward pass in each process
    ranks: int  # number of processes on this host, which share the memory

    @property
    def total(self) -> float:
        """Estimate the peak of a step, in GB.

        MARGIN (1.1) adds 10 % for workspaces and fragmentation, because `saved` counts neither.
        """
        return MARGIN * self.ranks * (self.fixed + self.saved) / GB

    @property
    def certain(self) -> float:
        """Estimate the least memory that a step can need, in GB.

        Only CERTAIN_SHARE of the activations counts, because their estimate may be too high.
        """
        return self.ranks * (self.fixed + CERTAIN_SHARE * self.saved) / GB


def check_memory(
    net: nn.Module,
    lq: Tensor,
    is_half: bool,
    has_average: bool,
    changes: Callable[[], list[str]],
) -> None:
    """Warn if a step on clips like `lq` does not fit into the free memory of this host.

    Only VRT is checked, because the numbers SAVED_OF_... are for its layers. Every rank must call
    `check_memory`, because the ranks wait for each other in it.

    lq: (B, T, C, H, W).
    is_half: whether autocast computes in 16 bits.
    has_average: whether the run keeps averaged weights.
    changes: function that returns the option lines that make a step smaller.

    Raises OptionError if the step does not even fit into the whole memory and swap of the host.
    """
    # The number of ranks on this host. `gather_objects` waits for all ranks, so the call comes
    # before the early returns.
    hosts = utils_dist.gather_objects(platform.node())
    ranks = hosts.count(platform.node())
    used_and_size = host_memory()  # in GB, or None if they are unknown
    if used_and_size is None or not isinstance(net, VRT):
        return
    used, size = used_and_size
    need = need_of_step(net, lq, is_half, has_average, ranks)
    free = size - used
    if need.total < free:
        return

    # The condition above compares with the free memory. More memory becomes free if other programs
    # end. So only a step that is too large for the whole memory and the swap is refused.
    if need.certain > size + swap_gb():
        _refuse_step(need, lq, size, changes())
    smaller = ", or ".join(changes())
    if not smaller:  # no option makes the step smaller
        smaller = "a smaller network"
    logger.warning(
        "%s; %.1f of %.1f GB are free. It may swap, and the system may end the run. "
        "These need less: %s",
        _in_words(need, lq), free, size, smaller,
    )  # fmt: skip


def _refuse_step(need: Need, lq: Tensor, size: float, changes: list[str]) -> NoReturn:
    """Raise OptionError for a step that does not fit into the memory of this host.

    size: memory of the host in GB.
    changes: option lines that make a step smaller.
    """
    if changes:
        # The error shows each change in a line of its own. The text of `do` begins after 12
        # characters, "  do        " (`SpikeVRTError.__str__`), so indent the lines by 12. The 12 is
        # repeated from INDENT_OF_DO in utils/errors.py, so change both.
        indent = " " * 12
        lines = [f"{indent}{change}" for change in changes]
        do = "\n".join(["choose one of these, or several:", *lines])
    else:
        do = "use a smaller network, or a machine with more memory"
    raise OptionError(
        what=_in_words(need, lq),
        where="datasets.train, netG",
        expected=f"at most the {size:.1f} GB of this machine, or of its limit",
        do=do,
    )


def _in_words(need: Need, lq: Tensor) -> str:
    """Return what a step needs, for the warning and the error. lq: (B, T, C, H, W)."""
    clips, frames, _, height, width = lq.shape
    processes = f"; {need.ranks} processes" if need.ranks > 1 else ""
    # The two parts in brackets add up to less than the total, because MARGIN raises only the total.
    return (
        f"a step on {counted(clips, 'clip')} of {frames} x {height} x {width} needs about "
        f"{need.total:.1f} GB on the CPU ({need.ranks * need.saved / GB:.1f} GB of activations, "
        f"{need.ranks * need.fixed / GB:.1f} GB of weights, gradients and moments{processes})"
    )


# Weights, gradients and the two moments of Adam, all float32.
BYTES_PER_PARAMETER = 16
# Averaged weights (train.E_decay), float32.
BYTES_PER_AVERAGED = 4


def need_of_step(net: VRT, lq: Tensor, is_half: bool, has_average: bool, ranks: int) -> Need:
    """Estimate the memory of a step.

    lq: the input clips, (B, T, C, H, W).
    is_half: whether autocast computes in 16 bits.
    has_average: whether the run keeps averaged weights.
    ranks: number of processes on this host.
    """
    parameter_count = sum(parameter.numel() for parameter in net.parameters())
    bytes_per_parameter = BYTES_PER_PARAMETER
    if has_average:
        bytes_per_parameter += BYTES_PER_AVERAGED
    clips, frames, _, height, width = lq.shape
    pixels = clips * frames * height * width
    saved = pixels * saved_per_pixel(net)
    if is_half:
        saved //= 2  # 2 bytes per value instead of 4
    return Need(parameter_count * bytes_per_parameter, int(saved), ranks)


# How many float32 values autograd saves on a CPU. For each pixel of an input frame,
# `saved_per_pixel` adds up
#
#     once                          SAVED_OF_FLOW, or without flow SAVED_OF_ALL_FRAMES
#     for each block                (SAVED_OF_BLOCK + SAVED_OF_ATTENTION) * channels / scale^2
#     for each stage that aligns    (SAVED_OF_ALIGNMENT + SAVED_OF_SOURCE * sources)
#                                       * channels / scale^2
#     once, for super-resolution    SAVED_OF_UPSAMPLING * upscale^2
#
# A stage at 1 / scale of the resolution has one token (pixel of its features) for scale^2 pixels of
# the frame. So its numbers are divided by scale^2.
#
# The numbers were fitted to what `saved_bytes` (models/vrt/memory/saved_bytes.py) counts in small
# networks. Fit the numbers again if test_cpu_memory.py finds an estimate that is wrong by more than
# 25 %.
SAVED_OF_FLOW = 870.0  # for the optical flow
SAVED_OF_ALL_FRAMES = 500.0  # for the convolution over all frames, in a network without flow
SAVED_OF_BLOCK = 1.05  # for the input of a block
SAVED_OF_ATTENTION = 1.35  # for attention, unless the backward pass recomputes it
SAVED_OF_ALIGNMENT = 8.0  # for a stage that aligns frames, in addition to its sources
SAVED_OF_SOURCE = 10.5  # for each source, i.e. each frame that is aligned to another frame
SAVED_OF_UPSAMPLING = 200.0  # for the layers of super-resolution, per pixel of the output
BYTES_PER_VALUE = 4


def saved_per_pixel(net: VRT) -> float:
    """Estimate the bytes that autograd saves in float32 for each pixel of each input frame."""
    # pa_frames is the number of neighbouring frames that are aligned along the optical flow. If it
    # is 0, there is no flow, and the network has a convolution over all frames instead.
    has_flow = net.pa_frames > 0
    # Saved values per pixel of an input frame. The lines below add the values of the layers.
    values = SAVED_OF_FLOW if has_flow else SAVED_OF_ALL_FRAMES
    scales = (*STAGE_SCALES, 1)  # stage 8 works at full resolution
    for number, scale in enumerate(scales, start=1):
        stage = getattr(net, f"stage{number}")
        pixels_per_token = scale**2
        for block in stage.modules():
            if isinstance(block, Block):
                saved_of_attention = 0.0 if block.checkpoint_attn else SAVED_OF_ATTENTION
                channels = block.attn.proj.out_features  # channels of a token, e.g. 120
                values += (SAVED_OF_BLOCK + saved_of_attention) * channels / pixels_per_token
        # Stage 8 aligns nothing. It is a list of layers and not a `Stage`.
        if isinstance(stage, Stage) and stage.aligns:
            saved_of_alignment = SAVED_OF_ALIGNMENT + SAVED_OF_SOURCE * stage.pa_deform.source_count
            channels = stage.linear1.out_features
            values += saved_of_alignment * channels / pixels_per_token
    if net.upscale > 1:
        values += SAVED_OF_UPSAMPLING * net.upscale**2
    return BYTES_PER_VALUE * values


def swap_gb() -> float:
    """Return the size of the swap space in GB, 0 if it is unknown.

    On Linux /proc/meminfo has a line such as "SwapTotal:       2097148 kB".
    """
    with suppress(OSError, ValueError):  # another system, or another form of the file
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("SwapTotal"):
                kilobytes = int(line.split()[1])
                return kilobytes / 1e6
    return 0.0

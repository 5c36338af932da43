"""Checks before the first step whether a training step on a CPU fits into memory.

A full GPU raises an error. A full CPU swaps for minutes, and then the system ends the process
without a message. So `check_memory` estimates the need of a step, warns if it may be too large, and
refuses if it certainly is.

Tests: tests/parts/models/test_cpu_memory.py
"""

import logging
import platform
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from torch import Tensor, nn

from models.network_vrt import STAGE_SCALES, VRT
from models.vrt.block import Block, Stage
from models.vrt.fit_memory import GB, MARGIN
from utils import utils_dist
from utils.errors import OptionError
from utils.run.measure import host_memory

logger = logging.getLogger(__name__)

# Weights, gradients and the two moments of Adam, all float32.
BYTES_PER_PARAMETER = 16
# Averaged weights (train.E_decay), float32.
BYTES_PER_AVERAGED = 4
# How many float32 values autograd saves on a CPU. These figures were fitted to the counts of
# fit_memory.saved_bytes for small networks (tests/parts/models/test_cpu_memory.py: within 25 %).
# If a layer comes to save more or less, fit them again.
# Saved values per channel of a token (a token is one pixel of the features of a stage):
OF_BLOCK = 1.05  # the input of a block
OF_KEPT_ATTENTION = 1.35  # what attention saves, unless the backward pass recomputes it
OF_ALIGNED = 8.0  # the alignment of a stage that aligns frames
OF_SOURCE = 10.5  # each source of an alignment, i.e. a frame that is aligned to another frame
# Saved values per pixel of an input frame:
OF_FLOW = 870.0  # the optical flow
OF_ALL_FRAMES = 500.0  # the convolution over all frames, in a network without flow
# Saved values per pixel of an output frame:
OF_UPSAMPLED = 200.0  # the layers of super-resolution
BYTES_PER_NUMBER = 4
# A refusal must be certain, so it counts only this share of the estimated activations. The estimate
# is within 25 %.
CERTAIN = 0.75


class Need(NamedTuple):
    """What the processes of this host need for a training step."""

    fixed: int  # bytes of weights, gradients and moments in each process
    saved: int  # bytes that autograd saves for the backward pass in each process
    ranks: int  # number of processes on this host

    @property
    def total(self) -> float:
        """Estimate the peak of a step, in GB.

        MARGIN is 1.1: workspaces and fragmentation are not counted in `saved`.
        """
        return MARGIN * self.ranks * (self.fixed + self.saved) / GB

    @property
    def certain(self) -> float:
        """Estimate what a step needs in any case, in GB."""
        return self.ranks * (self.fixed + CERTAIN * self.saved) / GB


def check_memory(
    net: nn.Module,
    lq: Tensor,
    is_half: bool,
    has_average: bool,
    changes: Callable[[], list[str]],
) -> None:
    """Warn if a step on clips like `lq` does not fit into the free memory of this host. Collective.

    Networks of other kinds than VRT are not judged.

    lq: (B, T, C, H, W). is_half: whether autocast computes in 16 bits.
    has_average: whether the run keeps averaged weights.
    changes: function that returns the option lines that make a step smaller.

    Raises OptionError if the memory of the host, swap included, is too small in any case.
    """
    # Every rank must take part in this collective, so it comes before the early returns.
    hosts = utils_dist.gather_objects(platform.node())
    ranks = hosts.count(platform.node())  # number of ranks on this host, which share its memory
    use = host_memory()  # (used, size) in GB, or None if it is unknown
    if use is None or not isinstance(net, VRT):
        return
    used, size = use
    clips, frames, _, height, width = lq.shape

    parameters = sum(parameter.numel() for parameter in net.parameters())
    bytes_per_parameter = BYTES_PER_PARAMETER
    if has_average:
        bytes_per_parameter += BYTES_PER_AVERAGED
    fixed = parameters * bytes_per_parameter
    saved = clips * frames * height * width * saved_per_pixel(net)
    if is_half:
        saved //= 2  # 2 bytes per number instead of 4
    need = Need(fixed, int(saved), ranks)
    if need.total < size - used:
        return

    processes = f"; {ranks} processes" if ranks > 1 else ""
    figures = (
        f"a step on {clips} clips of {frames} x {height} x {width} needs about "
        f"{need.total:.1f} GB on the CPU ({ranks * need.saved / GB:.1f} GB of activations, "
        f"{ranks * fixed / GB:.1f} GB of weights, gradients and moments{processes})"
    )
    # The text behind "do" begins in column 12 of an error. Further lines of it begin there too, so
    # that they look like one text. Nothing reads this indentation.
    indent = " " * 12
    if need.certain > size + swap_gb():
        raise OptionError(
            what=figures,
            where="datasets.train, netG",
            expected=f"at most the {size:.1f} GB of this machine, or of its limit",
            do="\n".join(["one of these, or several:", *(f"{indent}{line}" for line in changes())]),
        )
    logger.warning(
        "%s; %.1f of %.1f GB are free. It may swap, and the system may end the run. "
        "These need less: %s",
        figures, size - used, size, ", or ".join(changes()) or "a smaller network",
    )  # fmt: skip


def saved_per_pixel(net: VRT) -> float:
    """Estimate the bytes that autograd saves in float32 for each pixel of each input frame."""
    # pa_frames is the number of neighbouring frames that are aligned along the optical flow. If it
    # is 0, there is no flow, and the network has a convolution over all frames instead.
    has_flow = net.pa_frames > 0
    numbers = OF_FLOW if has_flow else OF_ALL_FRAMES  # saved values per pixel, so far
    scales = (*STAGE_SCALES, 1)  # stage 8 works at full resolution
    for number, scale in enumerate(scales, start=1):
        stage = getattr(net, f"stage{number}")
        blocks = [block for block in stage.modules() if isinstance(block, Block)]
        # A stage at 1 / scale of the resolution has one token for scale^2 pixels.
        for block in blocks:
            kept = 0.0 if block.checkpoint_attn else OF_KEPT_ATTENTION
            channels = block.attn.proj.out_features
            numbers += (OF_BLOCK + kept) * channels / scale**2
        if isinstance(stage, Stage) and stage.aligns:
            of_stage = OF_ALIGNED + OF_SOURCE * stage.pa_deform.sources
            channels = stage.linear1.out_features
            numbers += of_stage * channels / scale**2
    if net.upscale > 1:
        numbers += OF_UPSAMPLED * net.upscale**2
    return BYTES_PER_NUMBER * numbers


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

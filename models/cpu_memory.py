"""Whether a training step on a CPU fits into memory, told before the first step.

A full GPU raises an error. A full CPU swaps for minutes, and then the system ends the process
without a word.
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

# Weights, gradients and the two moments of Adam, all float32; and the averaged weights.
BYTES_PER_PARAMETER, BYTES_PER_AVERAGED = 16, 4
# What autograd saves on a CPU in float32, in numbers of a channel, fitted to the counts of
# `saved_bytes` for small networks (tests/parts/models/test_cpu_memory.py: within 25 %).
# Of a block: its input. If the attention is kept: its result and the sums of its rows.
OF_BLOCK, OF_KEPT_ATTENTION = 1.05, 1.35
# Of a stage that aligns frames, and of each frame that it aligns to another.
OF_ALIGNED, OF_SOURCE = 8.0, 10.5
# Of a pixel: the optical flow, or without it the convolution over all frames; the upsampling.
OF_FLOW, OF_ALL_FRAMES, OF_UPSAMPLED = 870.0, 500.0, 200.0
BYTES_PER_NUMBER = 4
# A refusal must be certain, so it takes this share of the estimate.
CERTAIN = 0.75


class Need(NamedTuple):
    """Bytes that the processes of this host need for a training step.

    fixed: of weights, gradients and moments. saved: what autograd saves for the backward pass.
    """

    fixed: int
    saved: int
    ranks: int

    @property
    def total(self) -> float:
        """About the peak of a step, in GB."""
        return MARGIN * self.ranks * (self.fixed + self.saved) / GB

    @property
    def certain(self) -> float:
        """What a step needs in any case, in GB."""
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

    lq: (B, T, C, H, W). is_half: whether autocast computes in 16 bits. has_average: whether the run
        keeps averaged weights. changes: function that returns the options that make a step smaller.

    Raises OptionError if the memory of the host, swap included, is too small in any case.
    """
    ranks = utils_dist.gather_objects(platform.node()).count(platform.node())
    use = host_memory()
    if use is None or not isinstance(net, VRT):
        return
    used, size = use
    parameters = sum(parameter.numel() for parameter in net.parameters())
    fixed = parameters * (BYTES_PER_PARAMETER + BYTES_PER_AVERAGED * has_average)
    saved = lq.numel() // lq.shape[2] * saved_per_pixel(net) // (1 + is_half)
    need = Need(fixed, int(saved), ranks)
    if need.total < size - used:
        return

    figures = (
        f"a step on {len(lq)} clips of {lq.shape[1]} x {lq.shape[3]} x {lq.shape[4]} needs about "
        f"{need.total:.1f} GB on the CPU ({ranks * need.saved / GB:.1f} GB of activations, "
        f"{ranks * fixed / GB:.1f} GB of weights, gradients and moments"
        f"{f'; {ranks} processes' if ranks > 1 else ''})"
    )
    if need.certain > size + swap_gb():
        raise OptionError(
            what=figures,
            where="datasets.train, netG",
            expected=f"at most the {size:.1f} GB of this machine, or of its limit",
            do="\n".join(["one of these, or several:", *(f"{'':<12}{c}" for c in changes())]),
        )
    logger.warning(
        "%s; %.1f of %.1f GB are free. It may swap, and the system may end the run. Less takes: %s",
        figures, size - used, size, ", or ".join(changes()) or "a smaller network",
    )  # fmt: skip


def saved_per_pixel(net: VRT) -> float:
    """Estimate the bytes that autograd saves in float32 for each pixel of each input frame."""
    numbers = OF_FLOW if net.pa_frames else OF_ALL_FRAMES
    for number, scale in enumerate((*STAGE_SCALES, 1), start=1):
        stage = getattr(net, f"stage{number}")
        blocks = [block for block in stage.modules() if isinstance(block, Block)]
        for block in blocks:
            keeps = 0.0 if block.checkpoint_attn else OF_KEPT_ATTENTION
            numbers += (OF_BLOCK + keeps) * block.attn.proj.out_features / scale**2
        if isinstance(stage, Stage) and stage.aligns:
            of_stage = OF_ALIGNED + OF_SOURCE * stage.pa_deform.sources
            numbers += of_stage * stage.linear1.out_features / scale**2
    if net.upscale > 1:
        numbers += OF_UPSAMPLED * net.upscale**2
    return BYTES_PER_NUMBER * numbers


def swap_gb() -> float:
    """Return the size of the swap space, 0 if it is unknown."""
    with suppress(OSError, StopIteration, ValueError):
        lines = Path("/proc/meminfo").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("SwapTotal")).split()[1]) / 1e6
    return 0.0

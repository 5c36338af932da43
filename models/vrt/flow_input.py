"""What the flow network sees: the RGB frames, or sharp pictures from the spikes of their exposures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from torch import Tensor

FlowInput = Literal["rgb", "spike", "both"]
# Spike representations that are firing rates in the order of time.
RATES = ("voxel", "tfp", "tfi")

# Of images: display value = light ** (1 / 2.2).
DISPLAY_GAMMA = 2.2
# Light that is added to both rates of the ratio, 1 at full scale: without spikes the ratio is 1, the blurry frame.
PRIOR = 0.05


def middle_channels(count: int) -> list[int]:
    """The channel, or the two, in the middle of `count`: around the sharp frame in "voxel", "tfp" and "tfi"."""
    return list(range((count - 1) // 2, count // 2 + 1))


def flow_frames(kind: FlowInput, rgb: Tensor, spike: Tensor | None, channels: Sequence[int]) -> Tensor:
    """Frames for the flow network, display values in [0, 1]: (B, N, 1 or 3, H, W).

    rgb: (B, N, 1 or 3, H, W), blurry, display values. spike: (B, N, S, H, W), firing rates of linear light, full light
    1 (netG.flow_input "rgb" needs none). channels: those of a short window around the sharp frame.

    "spike": these rates as display values, one channel for all three of the flow network. "both": the exposure
    estimate (see data/spike/represent_exposure.py), blurry light x rate of the short window / rate of all channels.
    """
    if kind == "rgb":
        return rgb
    spike = spike.clamp(min=0)
    short = spike[:, :, list(channels)].mean(2, keepdim=True)
    if kind == "spike":
        return short.clamp(max=1) ** (1 / DISPLAY_GAMMA)
    ratio = (short + PRIOR) / (spike.mean(2, keepdim=True) + PRIOR)
    return (rgb * ratio ** (1 / DISPLAY_GAMMA)).clamp(max=1)

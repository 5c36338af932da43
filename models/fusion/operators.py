"""How the spike representation meets the RGB frames before the trunk. One class per operator; add yours here."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from utils.utils_errors import DataError, OptionError
from utils.utils_registry import Registry

FUSIONS = Registry("fusion operator")
_GIVEN = ("rgb_channels", "spike_channels", "in_chans")


@FUSIONS.register("none", given=_GIVEN)
class NoFusion(nn.Module):
    """The trunk sees the RGB frames alone; spikes are ignored."""

    def __init__(self, rgb_channels: int = 3, spike_channels: int = 0, in_chans: int = 3) -> None:
        super().__init__()

    def forward(self, rgb: Tensor, spike: Tensor | None) -> Tensor:
        """rgb: (B, T, C, H, W), returned as it is."""
        return rgb


@FUSIONS.register("concat", given=_GIVEN)
class ConcatFusion(nn.Module):
    """The trunk sees RGB and spike channels side by side: in_chans = rgb_channels + spike_channels."""

    def __init__(self, rgb_channels: int = 3, spike_channels: int = 0, in_chans: int = 3) -> None:
        super().__init__()
        _need_spikes("concat", spike_channels)
        if in_chans != rgb_channels + spike_channels:
            total = rgb_channels + spike_channels
            raise OptionError(
                f"in_chans {in_chans} != {rgb_channels} RGB + {spike_channels} spike = {total}",
                "netG.in_chans", f'{total}, for fusion "concat" hands the trunk every channel of the data',
                f"set netG.in_chans to {total}, or change the number of spike channels in the dataset section",
            )  # fmt: skip
        self.spike_channels = spike_channels

    def forward(self, rgb: Tensor, spike: Tensor | None) -> Tensor:
        """rgb: (B, T, 3, H, W), spike: (B, T, S, H, W) -> (B, T, 3 + S, H, W)."""
        return torch.cat((rgb, checked_spike(rgb, spike, self.spike_channels)), dim=2)


@FUSIONS.register("gated", given=_GIVEN)
class GatedFusion(nn.Module):
    """Adds to each RGB frame what a small conv net makes of RGB and spikes, through a gate in (0, 1).

    features: width of the conv net; layers: its residual convolutions, each frame on its own.
    gate_bias: -4 leaves the gate almost closed, so that training begins from a published RGB network; from
    scratch 0 is better: the spikes speak at once.
    """

    def __init__(
        self,
        features: int = 32,
        layers: int = 4,
        gate_bias: float = -4.0,
        rgb_channels: int = 3,
        spike_channels: int = 0,
        in_chans: int = 3,
    ) -> None:
        super().__init__()
        _need_spikes("gated", spike_channels)
        if in_chans != rgb_channels:
            raise OptionError(
                f'in_chans {in_chans} != {rgb_channels} RGB, with fusion "gated"',
                "netG.in_chans", f"{rgb_channels}: the spikes are added to the RGB channels, not put beside them",
                f'set netG.in_chans to {rgb_channels}, or netG.fusion to "concat"',
            )  # fmt: skip
        for key, value in (("features", features), ("layers", layers)):
            if value < 1:
                raise OptionError(f"{key} is {value}", f"netG.fusion.{key}", "an integer >= 1", f"correct {key}")
        self.spike_channels = spike_channels
        self.head = nn.Conv2d(rgb_channels + spike_channels, features, 3, 1, 1)
        self.body = nn.ModuleList(nn.Conv2d(features, features, 3, 1, 1) for _ in range(layers))
        self.value = nn.Conv2d(features, rgb_channels, 3, 1, 1)
        self.gate = nn.Conv2d(features, rgb_channels, 3, 1, 1)
        nn.init.zeros_(self.gate.weight)
        nn.init.constant_(self.gate.bias, gate_bias)

    def forward(self, rgb: Tensor, spike: Tensor | None) -> Tensor:
        """rgb: (B, T, 3, H, W), spike: (B, T, S, H, W) -> (B, T, 3, H, W)."""
        spike = checked_spike(rgb, spike, self.spike_channels)
        x = F.leaky_relu(self.head(torch.cat((rgb, spike), dim=2).flatten(0, 1)), 0.1)
        for conv in self.body:
            x = x + F.leaky_relu(conv(x), 0.1)
        return rgb + (torch.sigmoid(self.gate(x)) * self.value(x)).view_as(rgb)


def _need_spikes(name: str, spike_channels: int) -> None:
    if spike_channels < 1:
        raise OptionError(
            f'fusion "{name}" with data that has no spike channels', "netG.fusion",
            'a dataset with spikes, or fusion "none"', "choose an RGB+spike dataset, or set netG.fusion to none",
        )  # fmt: skip


def checked_spike(rgb: Tensor, spike: Tensor | None, channels: int) -> Tensor:
    """`spike`, once it is there and fits `rgb`; DataError otherwise."""
    b, t, _, h, w = rgb.shape
    expected = (b, t, channels, h, w)
    if spike is None or tuple(spike.shape) != expected:
        got = "no spike tensor" if spike is None else f"a spike tensor of shape {tuple(spike.shape)}"
        raise DataError(
            f"the network was given {got}", "forward(lq, spike)",
            f"shape (B, T, S, H, W) = {expected}, as the network was built for S = {channels}",
            "give the batch's spike to the network, with the representation it was trained with",
        )  # fmt: skip
    return spike

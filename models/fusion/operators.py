"""Fusion operators: how the spike representation is combined with the RGB frames.

One class per operator.
"""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.vrt.forms import in_cpu_form
from utils.errors import DataError, OptionError
from utils.options.models import Positive
from utils.options.section import Registry, import_parts

FUSIONS = Registry("fusion operator")
Base = Literal["blurry", "fused"]


class Fusion(nn.Module):
    """Base class of all operators.

    Each method returns its input unchanged unless an operator overrides it.

    A constructor may take `spike_channels` (S of the data) and `feature_channels` (width of the
    first features, then of stages 1 to 7); both are named in `register(..., given=...)`.
    representation: the only spike representation whose channels the operator understands; None:
    any.
    """

    needs_spikes = True
    representation: str | None = None

    @classmethod
    def trunk_channels(cls, spike_channels: int) -> int:
        """Channels per frame that `on_input` returns for 3 RGB channels."""
        return 3

    @classmethod
    def channels(cls, in_chans: int | None, spike_channels: int) -> tuple[int, int]:
        """(image channels, channels that `on_input` returns), both per frame; in_chans:
        netG.in_chans or None.

        Raises OptionError if in_chans or the data's spike channels do not fit the operator.
        """
        if spike_channels < 1:
            what = "the fusion operator needs spikes, but the data has no spike channels"
            raise OptionError(
                what, "netG.fusion", 'a dataset with spikes, or fusion "none"', "change one of them"
            )
        trunk = cls.trunk_channels(spike_channels)
        if in_chans not in (None, trunk):
            expected = (
                f"{trunk}, which the fusion operator gives for 3 RGB and {spike_channels} spike "
                "channels"
            )
            raise OptionError(
                f"netG.in_chans is {in_chans}",
                "netG.in_chans",
                expected,
                "remove it, or correct it",
            )
        return 3, trunk

    def on_input(self, image: Tensor, spike: Tensor | None) -> Tensor:
        """image (B, T, C, H, W), spike (B, T, S, H, W) -> input of the trunk, (B, T, K, H, W)."""
        return image

    def on_features(self, features: Tensor, spike: Tensor | None) -> Tensor:
        """Features after conv_first, (B, T, H, W, E) -> the same shape."""
        return features

    def on_stage(self, stage: int, features: Tensor, spike: Tensor | None) -> Tensor:
        """Output of stage 1 to 7, (B, T, h, w, E) at the stage's scale -> the same shape."""
        return features

    def on_base(self, rgb: Tensor, fused: Tensor, spike: Tensor | None) -> Tensor:
        """The frames (B, T, 3, H, W) to which the network adds its output. fused: the result of
        `on_input`.
        """
        return rgb


class ImageFusion(Fusion):
    """Base class of operators whose `on_input` returns a better frame.

    base: the frame to which the network adds its output.
    inputs: channels that a small residual conv net takes, which has `layers` convolutions of
    `features` channels.
    """

    def __init__(self, base: Base, inputs: int, features: int, layers: int) -> None:
        super().__init__()
        self.base = base
        self.head = nn.Conv2d(inputs, features, 3, 1, 1)
        self.body = nn.ModuleList(nn.Conv2d(features, features, 3, 1, 1) for _ in range(layers))

    def features_of(self, x: Tensor) -> Tensor:
        """The conv net: (n, inputs, H, W) -> (n, features, H, W)."""
        x = F.leaky_relu(self.head(x), 0.1)
        for conv in self.body:
            x = x + F.leaky_relu(conv(x), 0.1)
        return x

    def on_base(self, rgb: Tensor, fused: Tensor, spike: Tensor | None) -> Tensor:
        return fused if self.base == "fused" else rgb


@FUSIONS.register("none")
class NoFusion(Fusion):
    """The network uses the RGB frames only and ignores the spikes."""

    needs_spikes = False

    @classmethod
    def channels(cls, in_chans: int | None, spike_channels: int) -> tuple[int, int]:
        return in_chans or 3, in_chans or 3


@FUSIONS.register("concat", given=("spike_channels",))
class ConcatFusion(Fusion):
    """Concatenates RGB and spike channels: in_chans = 3 + S."""

    def __init__(self, spike_channels: int = 0) -> None:
        super().__init__()
        self.spike_channels = spike_channels

    @classmethod
    def trunk_channels(cls, spike_channels: int) -> int:
        return 3 + spike_channels

    def on_input(self, image: Tensor, spike: Tensor | None) -> Tensor:
        return torch.cat((image, checked_spike(image, spike, self.spike_channels)), dim=2)


@FUSIONS.register("gated", given=("spike_channels",))
class GatedFusion(ImageFusion):
    """Adds to each RGB frame the output of a small conv net on RGB and spikes, times a learned gate
    in (0, 1).

    features: width of the conv net; layers: number of its residual convolutions, applied per frame.
    gate_bias: -4 starts with an almost closed gate, for training from published RGB weights; for
    training from scratch 0 is better: the spikes then contribute from the first step.
    base: the frame to which the network adds its output: "blurry", as published, or "fused".
    """

    def __init__(
        self,
        features: Positive = 32,
        layers: Positive = 4,
        gate_bias: float = -4.0,
        base: Base = "blurry",
        spike_channels: int = 0,
    ) -> None:
        super().__init__(base, 3 + spike_channels, features, layers)
        self.spike_channels = spike_channels
        self.value = nn.Conv2d(features, 3, 3, 1, 1)
        self.gate = nn.Conv2d(features, 3, 3, 1, 1)
        nn.init.zeros_(self.gate.weight)
        assert self.gate.bias is not None  # a Conv2d has a bias if it is not told otherwise
        nn.init.constant_(self.gate.bias, gate_bias)

    def on_input(self, image: Tensor, spike: Tensor | None) -> Tensor:
        spike = checked_spike(image, spike, self.spike_channels)
        x = self.features_of(torch.cat((image, spike), dim=2).flatten(0, 1))
        return image + (torch.sigmoid(self.gate(x)) * self.value(x)).view_as(image)


def checked_spike(rgb: Tensor, spike: Tensor | None, channels: int) -> Tensor:
    """`spike` if its shape is (B, T, channels, H, W) of `rgb`; raises DataError otherwise."""
    b, t, _, h, w = rgb.shape
    expected = (b, t, channels, h, w)
    if spike is None or tuple(spike.shape) != expected:
        got = (
            "no spike tensor" if spike is None else f"a spike tensor of shape {tuple(spike.shape)}"
        )
        expected = (
            f"shape (B, T, S, H, W) = {expected}, as the network was built for S = {channels}"
        )
        raise DataError(
            f"the network was given {got}",
            "forward(lq, spike)",
            expected,
            "pass batch['spike'] to it",
        )
    return spike


LUMA = (0.299, 0.587, 0.114)  # Rec. 601, what a grey sensor sees of the three colours
# Added to the variance of luma in a window, in squared display values: where luma hardly varies, as
# in noise, colour follows the mean colour of the window.
FLAT = 3e-4
DARK = 1e-3  # least luma by which a colour is divided
# Pixels at a time on a CPU: 4 frames of 256 x 256 at once take three times as long as one by one
CACHED = 2**16


@FUSIONS.register("exposure", given=("spike_channels",))
class ExposureFusion(ImageFusion):
    """Mixes the blurry frame and its estimates of the sharp one, pixel by pixel, and adds a
    correction.

    Luma x ratio is the luma of the scene around the sharp instant, up to noise (short windows) and
    motion (long ones). The spikes are those of "relative" in the domain of the frames: S - 1 ratios
    and a confidence. They do not see
    colour: where objects of two colours are blurred together, the mixtures lie on a line between
    them, whose slope over luma is fitted to the frame in windows of 2 colour_radius + 1 pixels on a
    side. A small conv net gives the weights of the mixture, which sum to 1, and the correction,
    which starts at 0.

    estimates: so many of the ratios, from the first, are around the sharp instant (null: all).
    features: width of the conv net; layers: number of its residual convolutions. colour_radius:
    radius of the windows in which colours are fitted. base: the frame to which the network adds its
    output: "blurry", as published, or "fused".

    Source: this project; short and long rates also in S-SDM, lines of colour in Omer and Werman
    (CVPR 2004), their fit in the guided filter (He et al., ECCV 2010).
    """

    representation = "relative"

    def __init__(
        self,
        features: Positive = 32,
        layers: Positive = 4,
        estimates: int | None = None,
        colour_radius: Positive = 4,
        base: Base = "fused",
        spike_channels: int = 0,
    ) -> None:
        count = spike_channels - 1 if estimates is None else estimates
        if not 1 <= count < spike_channels:
            what, key = (
                f"{count} estimates from {spike_channels} spike channels",
                "netG.fusion.estimates",
            )
            expected = "a ratio for each and a confidence, as the representation relative gives"
            raise OptionError(
                what, key, expected, f"set spike.representation to relative, or correct {key}"
            )
        super().__init__(base, 3 * (1 + count) + spike_channels, features, layers)
        self.spike_channels, self.estimates, self.colour_radius = (
            spike_channels,
            count,
            colour_radius,
        )
        self.weight = nn.Conv2d(features, 1 + count, 3, 1, 1)
        self.value = nn.Conv2d(features, 3, 3, 1, 1)
        nn.init.zeros_(self.value.weight)
        assert self.value.bias is not None
        nn.init.zeros_(self.value.bias)

    def on_input(self, image: Tensor, spike: Tensor | None) -> Tensor:
        frames = image.flatten(0, 1), checked_spike(image, spike, self.spike_channels).flatten(0, 1)
        count = max(1, CACHED // image[0, 0, 0].numel()) if in_cpu_form(image) else len(frames[0])
        chunks = zip(*(each.split(count) for each in frames), strict=True)
        return torch.cat([self.mixture(*chunk) for chunk in chunks]).view_as(image)

    def mixture(self, image: Tensor, spike: Tensor) -> Tensor:
        """image (N, 3, H, W), spike (N, S, H, W) -> sharp estimates (N, 3, H, W)."""
        frame, changes = image.unsqueeze(1), self.colour_changes(image).unsqueeze(1)
        ratios = spike[:, : self.estimates].unsqueeze(2)
        pictures = torch.cat((frame, (frame + changes * (ratios - 1)).clamp(0, 1)), dim=1)
        x = self.features_of(torch.cat((pictures.flatten(1, 2), spike), dim=1))
        weights = torch.softmax(self.weight(x), dim=1).unsqueeze(2)
        return (weights * pictures).sum(dim=1) + self.value(x)

    def colour_changes(self, image: Tensor) -> Tensor:
        """How much each colour changes where luma doubles: luma x slope of the line of colour.

        (N, 3, H, W) both.
        """
        luma = sum(
            weight * channel for weight, channel in zip(LUMA, image.split(1, dim=1), strict=True)
        )
        means, radius = (
            torch.cat((image, image * luma, luma, luma * luma), dim=1),
            self.colour_radius,
        )
        for kernel, pad in (((2 * radius + 1, 1), (radius, 0)), ((1, 2 * radius + 1), (0, radius))):
            # Without what lies outside of it
            means = F.avg_pool2d(means, kernel, 1, pad, count_include_pad=False)
        colour, product, grey, square = means.split((3, 3, 1, 1), dim=1)
        proportional = colour / grey.clamp(min=DARK)
        slope = (product - colour * grey + FLAT * proportional) / (square - grey * grey + FLAT)
        return luma * slope


import_parts("models.fusion", "fusion_*")

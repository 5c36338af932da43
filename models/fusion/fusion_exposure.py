"""Exposure fusion: the blurry frame with the relative brightness of the sharp instant, at several window lengths."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.fusion.operators import FUSIONS, Base, ImageFusion, checked_spike
from utils.errors import OptionError

LUMA = (0.299, 0.587, 0.114)  # Rec. 601, what a grey sensor sees of the three colours
# Added to the variance of luma in a window, in squared display values: where luma hardly varies, as in noise, colour
# follows the mean colour of the window.
FLAT = 3e-4
DARK = 1e-3  # least luma by which a colour is divided


@FUSIONS.register("exposure", given=("spike_channels",))
class ExposureFusion(ImageFusion):
    """Mixes the blurry frame and its estimates of the sharp one, pixel by pixel, and adds a correction.

    The blurry frame is the mean of the scene over the exposure, and the spikes give the scene's brightness over time.
    Hence its luma x ratio is the luma of the scene around the sharp instant, up to noise (short windows) and motion
    (long ones). The spikes are those of the representation "relative" in the domain of the frames: S - 1 ratios and a
    confidence. They do not see colour: where objects of two colours are blurred together, the colour of the mixture
    lies on a line between theirs, and colour changes along this line with luma. Its slope is fitted to the frame in
    windows of 2 colour_radius + 1 pixels on a side.
    estimates: so many of the ratios, from the first, are around the sharp instant (null: all); the conv net sees the
    other ones, too.
    A small conv net on the frame, its estimates and the spikes gives the weights of the mixture, which sum to 1, and
    the correction, which starts at 0. features: width of the conv net; layers: number of its residual convolutions.
    base: the frame to which the network adds its output: "blurry", as published, or "fused".
    Source: this project; the ratio of short and long rates also in S-SDM (SpikeReveal, NeurIPS 2024), lines of colour
    in Omer and Werman (CVPR 2004), their fit in windows in the guided filter (He et al., ECCV 2010).
    """

    representation = "relative"

    def __init__(
        self,
        features: int = 32,
        layers: int = 4,
        estimates: int | None = None,
        colour_radius: int = 4,
        base: Base = "fused",
        spike_channels: int = 0,
    ) -> None:
        super().__init__(base, features=features, layers=layers, colour_radius=colour_radius)
        count = spike_channels - 1 if estimates is None else estimates
        if not 1 <= count < spike_channels:
            raise OptionError(
                f"{count} estimates from {spike_channels} spike channels", "netG.fusion.estimates",
                "at least one ratio for each and a confidence, as the representation relative gives",
                "set spike.representation to relative, or correct netG.fusion.estimates",
            )  # fmt: skip
        self.spike_channels, self.estimates, self.colour_radius = spike_channels, count, colour_radius
        pictures = 1 + count
        self.head = nn.Conv2d(3 * pictures + spike_channels, features, 3, 1, 1)
        self.body = nn.ModuleList(nn.Conv2d(features, features, 3, 1, 1) for _ in range(layers))
        self.weight = nn.Conv2d(features, pictures, 3, 1, 1)
        self.value = nn.Conv2d(features, 3, 3, 1, 1)
        nn.init.zeros_(self.value.weight)
        nn.init.zeros_(self.value.bias)

    def on_input(self, image: Tensor, spike: Tensor | None) -> Tensor:
        spike = checked_spike(image, spike, self.spike_channels)
        changes = self.colour_changes(image.flatten(0, 1)).view_as(image).unsqueeze(2)
        ratios = spike[:, :, : self.estimates].unsqueeze(3)
        frame = image.unsqueeze(2)
        pictures = torch.cat((frame, (frame + changes * (ratios - 1)).clamp(0, 1)), dim=2).flatten(0, 1)
        x = F.leaky_relu(self.head(torch.cat((pictures.flatten(1, 2), spike.flatten(0, 1)), dim=1)), 0.1)
        for conv in self.body:
            x = x + F.leaky_relu(conv(x), 0.1)
        weights = torch.softmax(self.weight(x), dim=1).unsqueeze(2)
        return ((weights * pictures).sum(dim=1) + self.value(x)).view_as(image)

    def colour_changes(self, image: Tensor) -> Tensor:
        """How much each colour changes where luma doubles: luma x slope of the line of colour. (N, 3, H, W) both."""
        luma = sum(weight * channel for weight, channel in zip(LUMA, image.split(1, dim=1), strict=True))
        means = box_mean(torch.cat((image, image * luma, luma, luma * luma), dim=1), self.colour_radius)
        colour, product, grey, square = means.split((3, 3, 1, 1), dim=1)
        proportional = colour / grey.clamp(min=DARK)
        slope = (product - colour * grey + FLAT * proportional) / (square - grey * grey + FLAT)
        return luma * slope


def box_mean(x: Tensor, radius: int) -> Tensor:
    """Mean of x (N, C, H, W) in windows of 2 radius + 1 pixels, without what lies outside of it."""
    for kernel, pad in (((2 * radius + 1, 1), (radius, 0)), ((1, 2 * radius + 1), (0, radius))):
        x = F.avg_pool2d(x, kernel, 1, pad, count_include_pad=False)
    return x

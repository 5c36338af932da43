"""Losses of the restored clip, by `train.G_lossfn_type`: against the sharp clip, or against what was captured."""

from typing import Annotated, ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from utils.errors import OptionError
from utils.options.models import LoaderOptions, TrainOptions
from utils.options.section import Registry, Section, import_parts

LOSSES = Registry("loss", "G_lossfn_type", base=TrainOptions)
LEARNS_WITHOUT = 'train without sharp frames: train.G_lossfn_type "reblur"'


def taken_by(loss: type[nn.Module]) -> tuple[str, ...]:
    """The tensors of the batch that a loss compares the restored clip with: `loss.takes`; without it, gt."""
    return getattr(loss, "takes", ("gt",))


def check_loss(train: TrainOptions, data: LoaderOptions | None, netG: Section, scale: int) -> None:
    """Raise OptionError if the training data lack what the loss takes, for as many instants as the network restores."""
    if data is None:
        return
    instants, windows = getattr(netG, "out_instants", 1), getattr(data, "rate_windows", 0)
    takes, loss = taken_by(train.constructor), f'train.G_lossfn_type "{train.G_lossfn_type}"'
    if "gt" in takes and hasattr(data, "dataroot_gt") and data.dataroot_gt is None:
        what, key = f"{loss} needs sharp frames, and datasets.train.dataroot_gt is null", "datasets.train.dataroot_gt"
        raise OptionError(what, key, "the folder of the sharp frames", f"set it, or {LEARNS_WITHOUT}")
    if "gt" in takes and instants > 1 and getattr(data, "dataroot_gt_instants", None) is None:
        what = f"netG.out_instants is {instants}, and the training data have no sharp frames of these instants"
        raise OptionError(
            what, "datasets.train.dataroot_gt_instants", f"a folder with {instants} sharp frames for each blurry one",
            f"set it, or netG.out_instants to 1, or {LEARNS_WITHOUT}",
        )  # fmt: skip
    if "rates" in takes and (instants < 3 or windows != instants or scale != 1):
        raise OptionError(
            f"{loss} with netG.out_instants {instants}, datasets.train.rate_windows {windows} and scale {scale}",
            "netG.out_instants, datasets.train.rate_windows, scale",
            "the same odd number of instants and firing rates, at least 3, and scale 1", "for instance 9 for both",
        )  # fmt: skip


@LOSSES.register("charbonnier")
class CharbonnierLoss(nn.Module):
    """mean(sqrt((x - y)^2 + eps)), a smooth L1.

    Source: Charbonnier et al., ICIP 1994; eps as in the VRT recipe.

    G_charbonnier_eps: added inside the root; the smallest value of the loss is sqrt(eps).
    """

    def __init__(self, G_charbonnier_eps: float = 1e-9) -> None:
        super().__init__()
        self.eps = G_charbonnier_eps

    def forward(self, restored: Tensor, gt: Tensor) -> Tensor:
        return torch.sqrt((restored - gt).square() + self.eps).mean()


@LOSSES.register("l1")
class L1Loss(nn.Module):
    """mean(|x - y|)."""

    def forward(self, restored: Tensor, gt: Tensor) -> Tensor:
        return (restored - gt).abs().mean()


@LOSSES.register("l2")
class L2Loss(nn.Module):
    """mean((x - y)^2)."""

    def forward(self, restored: Tensor, gt: Tensor) -> Tensor:
        return (restored - gt).square().mean()


DISPLAY_GAMMA = 2.2
LUMA = (0.299, 0.587, 0.114)  # Rec. 601, what a grey sensor sees of the three colours
# Display values below it count as it: the power functions need a slope at 0. A step of 8 bits is 0.004.
DARK = 0.01

Weight = Annotated[float, Field(ge=0)]


@LOSSES.register("reblur")
class ReblurLoss(nn.Module):
    """Three terms of the K = netG.out_instants restored frames of each exposure, in linear light; no gt.

    reblur: their mean is the blurry frame. spikes: their luma relative to its mean over the K instants is the firing
    rate in each of K parts of the exposure relative to the rate in all of it, so that threshold and gain need not be
    known; compared are means of K // 3 neighbours, because short parts are noisy. colour: that of the blurry frame at
    each instant's own luma.
    Each is a mean of |difference| in display values. The data need datasets.train.rate_windows K.

    G_reblur_weight, G_reblur_spike_weight, G_reblur_colour_weight: of the three terms; 0 leaves a term out.
    G_reblur_light: the blurry frame is the mean of linear light (cameras, blur_gamma of GoPro) or of display values
    (GoPro's blur).
    G_reblur_spike_pixel: side of a spike pixel in RGB pixels.

    Source: ours. Chen et al., "SpikeReveal: Unlocking Temporal Sequences from Real Blurry Inputs with Spike Streams"
    (S-SDM), NeurIPS 2024, use the same relation of blurry frame and firing rates in closed form, for a teacher.
    """

    takes: ClassVar[tuple[str, ...]] = ("lq", "rates")

    def __init__(
        self,
        G_reblur_weight: Weight = 1.0,
        G_reblur_spike_weight: Weight = 1.0,
        G_reblur_colour_weight: Weight = 0.2,
        G_reblur_light: Literal["linear", "display"] = "linear",
        G_reblur_spike_pixel: Annotated[int, Field(ge=1)] = 2,
    ) -> None:
        super().__init__()
        self.weights = {
            "reblur": G_reblur_weight, "spikes": G_reblur_spike_weight, "colour": G_reblur_colour_weight,
        }  # fmt: skip
        self.light, self.pixel, self.distance = G_reblur_light, G_reblur_spike_pixel, CharbonnierLoss()
        self.register_buffer("luma", torch.tensor(LUMA)[:, None, None], persistent=False)

    def forward(self, restored: Tensor, lq: Tensor, rates: Tensor) -> dict[str, Tensor]:
        """restored (B, T, 3 K, H, W), lq (B, T, 3, H, W): display values; rates (B, T, K, H, W): linear light of any
        scale. Returns the weighted terms.
        """
        instants = restored.unflatten(2, (rates.shape[2], 3))
        light, blurry = to_light(instants), to_light(lq)
        luma, blurry_luma = ((x * self.luma).sum(-3) for x in (light, blurry))
        terms = {
            "reblur": lambda: self.distance(
                instants.mean(2) if self.light == "display" else to_display(light.mean(2)), lq.clamp(min=DARK)
            ),
            "spikes": lambda: self.of_spikes(luma, rates, to_display(blurry_luma)),
            "colour": lambda: self.distance(
                instants, to_display(luma.detach()[:, :, :, None] * (blurry / blurry_luma[:, :, None])[:, :, None])
            ),
        }
        return {name: self.weights[name] * term() for name, term in terms.items() if self.weights[name]}

    def of_spikes(self, luma: Tensor, rates: Tensor, brightness: Tensor) -> Tensor:
        """luma, rates (B, T, K, H, W); brightness (B, T, H, W): display values of the blurry frame.

        A relative difference d of light is one of d x brightness / 2.2 in display values.
        """
        # As the spike pixels see it, enlarged to the RGB grid as the data enlarge the rates.
        small = F.avg_pool2d(luma.flatten(0, 1), self.pixel)
        seen = F.interpolate(small, luma.shape[-2:], mode="bilinear", align_corners=False).view_as(luma)
        # Over its mean over K, 0 where that is 0; then the means of K // 3 neighbours in K.
        relative = (x / x.mean(2, keepdim=True).clamp(min=1e-6) for x in (seen, rates))
        seen, fired = (x.unfold(2, max(1, x.shape[2] // 3), 1).mean(-1) for x in relative)
        scale = (brightness / DISPLAY_GAMMA)[:, :, None] * (rates.sum(2, keepdim=True) > 0)
        # Beyond the crop, the neighbours that the rates were interpolated from are unknown here.
        inner = (..., slice(self.pixel, -self.pixel), slice(self.pixel, -self.pixel))
        return self.distance((scale * seen)[inner], (scale * fired)[inner])


def to_light(display: Tensor) -> Tensor:
    return display.clamp(min=DARK).pow(DISPLAY_GAMMA)


def to_display(light: Tensor) -> Tensor:
    return light.pow(1.0 / DISPLAY_GAMMA)


import_parts("models", "loss_*")

"""Losses of the restored clip, chosen by `train.G_lossfn_type`; those of this file compare it with the sharp one."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from utils.errors import OptionError
from utils.options.models import Options, TrainOptions
from utils.options.registry import Registry, import_parts

LOSSES = Registry("loss", "G_lossfn_type", base=TrainOptions)


def taken_by(loss: type[nn.Module]) -> tuple[str, ...]:
    """The tensors of the batch that a loss compares the restored clip with: `loss.takes`; without it, gt."""
    return getattr(loss, "takes", ("gt",))


def check_loss(opt: Options) -> None:
    """Raise OptionError if the training data lack what the loss takes, for as many instants as the network restores."""
    train, instants = opt.datasets.train, getattr(opt.netG, "out_instants", 1)
    if train is None:
        return
    takes, loss = taken_by(opt.train.constructor), f'train.G_lossfn_type "{opt.train.G_lossfn_type}"'
    if "gt" in takes and hasattr(train, "dataroot_gt") and train.dataroot_gt is None:
        raise OptionError(
            f"{loss} needs sharp frames, and datasets.train.dataroot_gt is null", "datasets.train.dataroot_gt",
            "the folder of the sharp frames", 'set it, or train without them: train.G_lossfn_type "reblur"',
        )  # fmt: skip
    if "gt" in takes and instants > 1 and getattr(train, "dataroot_gt_instants", None) is None:
        raise OptionError(
            f"netG.out_instants is {instants}, and the training data have no sharp frames of these instants",
            "datasets.train.dataroot_gt_instants", f"a folder with {instants} sharp frames for each blurry one",
            'set it, or netG.out_instants to 1, or train without sharp frames: train.G_lossfn_type "reblur"',
        )  # fmt: skip
    windows = getattr(train, "rate_windows", 0)
    if "rates" in takes and (instants < 3 or windows != instants or opt.scale != 1):
        raise OptionError(
            f"{loss} with netG.out_instants {instants}, datasets.train.rate_windows {windows} and scale {opt.scale}",
            "netG.out_instants, datasets.train.rate_windows, scale",
            "the same odd number, at least 3, of instants and of firing rates in an exposure, and scale 1",
            "for instance 9 for both",
        )  # fmt: skip


@LOSSES.register("charbonnier")
class CharbonnierLoss(nn.Module):
    """mean(sqrt((x - y)^2 + eps)), a smooth L1 (Charbonnier et al., ICIP 1994; eps as in the VRT recipe).

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


import_parts("models", "loss_*")

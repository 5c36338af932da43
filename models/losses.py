"""Pixel losses between the restored and the sharp clip, chosen by `train.G_lossfn_type`."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from utils.options.models import TrainOptions
from utils.options.registry import Registry, import_parts

LOSSES = Registry("loss", "G_lossfn_type", base=TrainOptions)


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

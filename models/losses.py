"""Losses of the restored clip, by `train.G_lossfn_type`."""

from torch import Tensor, nn

from utils.errors import OptionError
from utils.options.models import LoaderOptions, TrainOptions
from utils.options.section import Registry, Section, import_parts

LOSSES = Registry("loss", "G_lossfn_type", base=TrainOptions)


def taken_by(loss: type[nn.Module]) -> tuple[str, ...]:
    """The tensors of the batch that a loss compares the restored clip with: `loss.takes`; without it, gt."""
    return getattr(loss, "takes", ("gt",))


def check_loss(train: TrainOptions, data: LoaderOptions | None, netG: Section) -> None:
    """Raise OptionError if the training data lack the sharp frames of the instants that the loss compares."""
    if data is None or "gt" not in taken_by(train.constructor):
        return
    instants = getattr(netG, "out_instants", 1)
    if hasattr(data, "dataroot_gt") and data.dataroot_gt is None:
        key = "datasets.train.dataroot_gt"
        what = f'train.G_lossfn_type "{train.G_lossfn_type}" needs sharp frames, and {key} is null'
        raise OptionError(what, key, "the folder of the sharp frames", "set it")
    if instants > 1 and getattr(data, "dataroot_gt_instants", None) is None:
        what = f"netG.out_instants is {instants}, and the training data have no sharp frames of these instants"
        raise OptionError(
            what, "datasets.train.dataroot_gt_instants", f"a folder with {instants} sharp frames for each blurry one",
            "set it, or netG.out_instants to 1",
        )  # fmt: skip


@LOSSES.register("charbonnier")
class CharbonnierLoss(nn.Module):
    """mean(sqrt((x - y)^2 + eps)), a smooth L1.

    G_charbonnier_eps: added inside the root; the smallest value of the loss is sqrt(eps).

    Source: Charbonnier et al., ICIP 1994; eps as in the VRT recipe.
    """

    def __init__(self, G_charbonnier_eps: float = 1e-9) -> None:
        super().__init__()
        self.eps = G_charbonnier_eps

    def forward(self, restored: Tensor, gt: Tensor) -> Tensor:
        return ((restored - gt).square() + self.eps).sqrt().mean()


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

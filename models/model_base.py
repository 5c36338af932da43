"""The networks of a model and their files: netG, its average netE, the device they stand on."""

from __future__ import annotations

import copy
import logging
from pathlib import Path

import torch
from torch import nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

from models.ddp import bare
from models.portable import portable_options
from models.select_network import define_G
from utils import utils_dist
from utils.options.models import Options
from utils.run import checkpoint

logger = logging.getLogger(__name__)


class ModelBase:
    """netG (possibly wrapped), netE (its exponential moving average, or None) and their weights."""

    def __init__(self, opt: Options, spike_channels: int | None = None) -> None:
        """spike_channels: S of the batches; None: that of the options' datasets."""
        channels = opt.spike_channels if spike_channels is None else spike_channels
        self.opt, self.portable = opt, {**portable_options(opt), "spike_channels": channels}
        self.device = utils_dist.get_device()
        torch.manual_seed(opt.train.manual_seed)  # the same first weights on every rank and in every run
        self.netG: nn.Module = define_G(opt, channels).to(self.device)
        self.netE: nn.Module | None = None

    @property
    def net_for_test(self) -> nn.Module:
        """netE where there is one, as KAIR does; else the bare netG."""
        return self.netE if self.netE is not None else bare(self.netG)

    def init_ema(self, decay: float) -> None:
        """netE starts as a copy of netG; 0 means none."""
        if decay == 0:
            if self.opt.path.pretrained_netE:
                logger.warning("path.pretrained_netE has no effect in training while train.E_decay is 0")
            return
        self.netE = copy.deepcopy(bare(self.netG)).eval().requires_grad_(False)
        self.ema_update = get_ema_multi_avg_fn(decay)

    @torch.no_grad()
    def update_ema(self) -> None:
        if self.netE is not None:
            averaged = list(self.netE.parameters())
            current = [p.detach() for p in bare(self.netG).parameters()]
            self.ema_update(averaged, current, None)

    def describe(self) -> str:
        """One line on the size of netG, for the log."""
        parameters = list(bare(self.netG).parameters())
        total = sum(p.numel() for p in parameters)
        return f"netG {self.opt.netG.net_type}: {total / 1e6:.2f} M parameters in {len(parameters)} tensors"

    def save_weights(self, folder: Path, step: int) -> None:
        """<step>_G.pth and <step>_E.pth: {"params", "options" (what the network was built with), "iter"}."""
        for letter, net in (("G", self.netG), ("E", self.netE)):
            if net is not None:
                content = {"params": cpu_state(net), "options": self.portable, "iter": step}
                checkpoint.save_bare(content, folder / f"{step}_{letter}.pth")


def cpu_state(net: nn.Module) -> dict[str, torch.Tensor]:
    """The bare network's state dict as plain tensors on the CPU."""
    return {key: value.detach().cpu().contiguous() for key, value in bare(net).state_dict().items()}

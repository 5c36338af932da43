"""The networks of a model, netG and its moving average netE, and the files of their weights."""

from __future__ import annotations

import copy
import logging
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

from models.ddp import unwrap_ddp
from models.portable import portable_options
from models.select_network import define_G
from utils import utils_dist
from utils.options.models import Options
from utils.run import checkpoint

logger = logging.getLogger(__name__)


class ModelBase:
    """netG (in DDP during training), netE (its exponential moving average, or None) and their weights."""

    def __init__(self, opt: Options, spike_channels: int | None = None) -> None:
        """spike_channels: S of the batches; None: S of the options' datasets."""
        channels = opt.spike_channels if spike_channels is None else spike_channels
        self.opt, self.portable = opt, {**portable_options(opt), "spike_channels": channels}
        self.device = utils_dist.get_device()
        # torch's layers draw their first weights from the default generator. Seeded: the same on every rank.
        torch.manual_seed(opt.train.manual_seed)
        self.netG: nn.Module = define_G(opt, channels).to(self.device)
        self.netE: nn.Module | None = None

    @property
    def net_for_test(self) -> nn.Module:
        """netE if there is one, as in KAIR; else netG without DDP."""
        return self.netE if self.netE is not None else unwrap_ddp(self.netG)

    def init_ema(self, decay: float) -> None:
        """Create netE as a copy of netG; decay 0: no netE."""
        if decay == 0:
            if self.opt.path.pretrained_netE and utils_dist.is_main_process():
                logger.warning("path.pretrained_netE has no effect in training while train.E_decay is 0")
            return
        self.netE = copy.deepcopy(unwrap_ddp(self.netG)).eval().requires_grad_(False)
        self.ema_update = get_ema_multi_avg_fn(decay)

    @torch.no_grad()
    def update_ema(self) -> None:
        if self.netE is not None:
            averaged = list(self.netE.parameters())
            current = [p.detach() for p in unwrap_ddp(self.netG).parameters()]
            self.ema_update(averaged, current, None)

    def describe(self) -> str:
        """Kind and size of netG in one line, for the log. Activations depend on the clips: the log gives the peak."""
        count = sum(p.numel() for p in unwrap_ddp(self.netG).parameters())
        options = self.opt.netG.plain()
        fusion = options.get("fusion")
        fusion = fusion.get("type") if isinstance(fusion, dict) else fusion
        kind = f"{self.opt.netG.net_type}, fusion {fusion}" if fusion else self.opt.netG.net_type
        # Weights, gradients and two moments of Adam; the averaged weights of netE.
        size = count * 4 * (4 + (self.netE is not None)) / 1e9
        fitted = "; checkpoint auto: fitted to the memory at the first step" if options.get("checkpoint") else ""
        return f"{kind}, {count / 1e6:.2f} M parameters; {size:.2f} GB without activations{fitted}"

    def save_weights(self, folder: Path, step: int) -> None:
        """Write <step>_G.pth and <step>_E.pth: {"params", "options" (see models/portable.py), "iter"}."""
        for letter, net in (("G", self.netG), ("E", self.netE)):
            if net is not None:
                content = {"params": to_cpu(unwrap_ddp(net).state_dict()), "options": self.portable, "iter": step}
                checkpoint.save_bare(content, folder / f"{step}_{letter}.pth")


def to_cpu(value: Any) -> Any:
    """`value` with all tensors in its dicts, lists and tuples on the CPU, detached and contiguous."""
    return utils_dist.map_tensors(value, lambda tensor: tensor.detach().cpu().contiguous())

"""The networks of a model, netG and its moving average netE: DDP, mixed precision, and the files of their weights."""

from __future__ import annotations

import copy
import hashlib
import logging
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import get_ema_multi_avg_fn

from utils import utils_dist
from utils.options.models import AmpOptions
from utils.run import checkpoint

logger = logging.getLogger(__name__)


def wrap_ddp(net: nn.Module, find_unused_parameters: bool = False, use_static_graph: bool = False) -> nn.Module:
    """`net` in DistributedDataParallel; `net` itself in a single process. Collective.

    DDP reduces only the parameters that require a gradient when it is built. After freezing or unfreezing, wrap the
    network again, or its weights diverge between ranks without any error.
    """
    if utils_dist.get_world_size() == 1:
        return net
    # DDP needs these equal on all ranks; it raises an error on one rank only, and the others would wait for it.
    parts = [(n, tuple(p.shape), str(p.dtype), p.requires_grad) for n, p in net.named_parameters()]
    parts += [(n, tuple(b.shape), str(b.dtype)) for n, b in net.named_buffers()]
    utils_dist.check_same_on_all_ranks("the networks", hashlib.sha256(repr(parts).encode()).hexdigest()[:12])
    device = utils_dist.get_device()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # broadcast_buffers is renamed in torch 2.15
        return DistributedDataParallel(
            net,
            device_ids=[device.index] if device.type == "cuda" else None,
            output_device=device.index if device.type == "cuda" else None,
            broadcast_buffers=False,
            gradient_as_bucket_view=True,
            find_unused_parameters=find_unused_parameters,
            static_graph=use_static_graph,
        )


def weights_hash(net: nn.Module) -> str:
    """12 hex digits of all weights and buffers, bit for bit; `net` may be in DDP."""
    digest = hashlib.sha256()
    for key, value in unwrap_ddp(net).state_dict().items():
        digest.update(key.encode())
        digest.update(value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy())
    return digest.hexdigest()[:12]


def unwrap_ddp(net: nn.Module) -> nn.Module:
    """The network without its DDP wrapper."""
    return net.module if isinstance(net, DistributedDataParallel) else net


AMP_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}


def choose_dtype(wanted: str, has_bfloat16: list[bool]) -> str:
    """`wanted`, or for "auto" bfloat16 if every rank's device supports it natively, else float16.

    All ranks use one dtype: gradients are scaled in float16 only, and the reduction must not mix them.
    """
    return wanted if wanted != "auto" else "bfloat16" if all(has_bfloat16) else "float16"


def amp_dtype(amp: AmpOptions, device: torch.device) -> torch.dtype | None:
    """The autocast dtype for `train.amp`, written to the log; None without mixed precision. Collective."""
    if not amp.enable:
        return None
    # GPUs before Ampere (V100, T4, MX450) emulate bfloat16, several times slower than float16.
    native = device.type != "cuda" or torch.cuda.is_bf16_supported(including_emulation=False)
    native = utils_dist.gather_objects(native)
    name = choose_dtype(amp.dtype, native)
    logger.info("mixed precision in %s%s", name, ", with gradient scaling" if name == "float16" else "")
    if name == "bfloat16" and not all(native) and utils_dist.is_main_process():
        ranks = ", ".join(str(rank) for rank, found in enumerate(native) if not found)
        logger.warning('the GPU of rank %s emulates bfloat16, which is slow; set train.amp.dtype to "auto"', ranks)
    return AMP_DTYPES[name]


class ModelBase:
    """netG (in DDP during training), netE (its exponential moving average, or None) and their weights."""

    def __init__(self, netG: nn.Module, portable: dict[str, Any]) -> None:
        """portable: what a weights file says of netG, see Options.portable."""
        self.device, self.portable = utils_dist.get_device(), portable
        self.netG = netG.to(self.device)
        self.netE: nn.Module | None = None

    @property
    def net_for_test(self) -> nn.Module:
        """netE if there is one, as in KAIR; else netG without DDP."""
        return self.netE if self.netE is not None else unwrap_ddp(self.netG)

    def init_ema(self, decay: float) -> None:
        """Create netE as a copy of netG; decay 0: no netE."""
        if decay:
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
        options = self.portable["netG"]
        fusion = f", fusion {options['fusion']['type']}" if options.get("fusion") else ""
        # Weights, gradients and two moments of Adam; the averaged weights of netE.
        size = count * 4 * (4 + (self.netE is not None)) / 1e9
        fitted = "; checkpoint auto: fitted to the memory at the first step" if options.get("checkpoint") else ""
        return (
            f"{options['net_type']}{fusion}, {count / 1e6:.2f} M parameters; {size:.2f} GB without activations{fitted}"
        )

    def save_weights(self, folder: Path, step: int) -> None:
        """Write <step>_G.pth and <step>_E.pth: {"params", "options" (see Options.portable), "iter"}."""
        for letter, net in (("G", self.netG), ("E", self.netE)):
            if net is not None:
                content = {"params": to_cpu(unwrap_ddp(net).state_dict()), "options": self.portable, "iter": step}
                checkpoint.save(content, folder / f"{step}_{letter}.pth", keep=None)


def to_cpu(value: Any) -> Any:
    """`value` with all tensors in its dicts, lists and tuples on the CPU, detached and contiguous."""
    return utils_dist.map_tensors(value, lambda tensor: tensor.detach().cpu().contiguous())

"""Wrapping a network in DistributedDataParallel, and taking it off again."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from utils import utils_dist


def wrap_ddp(net: nn.Module, opt: dict[str, Any]) -> nn.Module:
    """`net` in DDP with the options' `find_unused_parameters` and `use_static_graph`; itself in a single process.

    Collective. DDP only reduces the parameters that require a gradient when it is built: after freezing or
    unfreezing call it again on the bare network, or the ranks drift apart without any error.
    """
    if utils_dist.get_world_size() == 1:
        return net
    device = utils_dist.get_device()
    ids = [device.index] if device.type == "cuda" else None
    return DistributedDataParallel(
        net,
        device_ids=ids,
        output_device=ids[0] if ids else None,
        broadcast_buffers=False,
        gradient_as_bucket_view=True,
        find_unused_parameters=opt["find_unused_parameters"],
        static_graph=opt["use_static_graph"],
    )


def bare(net: nn.Module) -> nn.Module:
    """The network itself, without DDP and without the wrapper of torch.compile."""
    net = net.module if isinstance(net, DistributedDataParallel) else net
    return getattr(net, "_orig_mod", net)

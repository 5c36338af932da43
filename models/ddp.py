"""Wrap a network in DistributedDataParallel (DDP), unwrap it, and compare networks between ranks."""

from __future__ import annotations

import hashlib
import warnings

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from utils import utils_dist


def wrap_ddp(net: nn.Module, find_unused_parameters: bool = False, use_static_graph: bool = False) -> nn.Module:
    """`net` in DistributedDataParallel; `net` itself in a single process. Collective.

    DDP reduces only the parameters that require a gradient when it is built. After freezing or unfreezing, wrap the
    network again, or its weights diverge between ranks without any error.
    """
    if utils_dist.get_world_size() == 1:
        return net
    # DDP raises an error on one rank only, and the others would wait for it.
    utils_dist.check_same_on_all_ranks("the networks", fingerprint(net))
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


def fingerprint(net: nn.Module) -> str:
    """12 hex digits of what DDP needs equal on all ranks: names, shapes, dtypes and requires_grad."""
    parts = [(n, tuple(p.shape), str(p.dtype), p.requires_grad) for n, p in net.named_parameters()]
    parts += [(n, tuple(b.shape), str(b.dtype)) for n, b in net.named_buffers()]
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:12]


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

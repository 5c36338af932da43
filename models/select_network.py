"""define_G: the network an option file asks for. A new network is a new file models/network_<net_type>.py."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from utils.contract import input_spec
from utils.errors import OptionError
from utils.options.models import Options
from utils.options.registry import Registry, import_parts

logger = logging.getLogger(__name__)

NETWORKS = Registry("network", "net_type")


def define_G(opt: Options | Mapping[str, Any], spike_channels: int | None = None) -> nn.Module:
    """The network of opt.netG with fresh weights; for notebooks opt may be a mapping in KAIR's form, {"netG": {...}}.

    spike_channels: S; None: that of the options' datasets (0 for a mapping).
    Raises OptionError where options do not fit.
    """
    if spike_channels is None:
        spike_channels = opt.spike_channels if isinstance(opt, Options) else 0
    section = opt.netG if isinstance(opt, Options) else opt["netG"]
    net = NETWORKS.build(section, "netG", spike_channels=spike_channels)
    for note in getattr(net, "notes", ()):
        logger.info("%s", note)
    return net


def check_options(opt: Options) -> None:
    """OptionError where no network can be built from these options, or not fed with their clips; costs no memory.

    Building on the meta device runs every check of the constructors without a single weight.
    """
    with torch.device("meta"):
        spec = input_spec(NETWORKS.build(opt.netG, "netG", spike_channels=opt.spike_channels))
    train, test = opt.datasets.train, opt.datasets.test
    if spec.spike_channels and train and test and train.spike_channels != test.spike_channels:
        raise OptionError(
            f"datasets.test gives {test.spike_channels} spike channels, datasets.train {train.spike_channels}",
            "datasets.test.spike", "the same number: one network reads both",
            "give datasets.test.spike the representation of datasets.train",
        )  # fmt: skip
    size = getattr(train, "gt_size", None)
    if size is None:
        return
    crop, least = size // opt.scale, max(spec.least_size)
    if size % opt.scale or crop % spec.multiple or crop < least:
        near = max(least, round(crop / spec.multiple) * spec.multiple) * opt.scale
        raise OptionError(
            f"datasets.train.gt_size is {size}", "datasets.train.gt_size",
            f"input crops (gt_size / scale) that are multiples of {spec.multiple} and at least {least}, "
            "as the network's strides and windows need them", f"set it to {near}",
        )  # fmt: skip


import_parts("models", "network_*")

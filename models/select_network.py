"""define_G builds the network of an option file; a new network is a new file models/network_<net_type>.py."""

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
    """The network of opt.netG with initial weights; for notebooks opt may be a mapping in KAIR's form, {"netG": {...}}.

    spike_channels: S of the batches; None: S of the options' datasets (0 for a mapping: its datasets are not read).
    Raises OptionError if the options do not fit together.
    """
    section = opt.netG if isinstance(opt, Options) else opt.get("netG")
    if spike_channels is None:
        spike_channels = opt.spike_channels if isinstance(opt, Options) else 0
    net = NETWORKS.build(section, "netG", spike_channels=spike_channels)
    for note in getattr(net, "notes", ()):
        logger.info("%s", note)
    return net


def check_options(opt: Options) -> None:
    """Raise OptionError if the network cannot be built, or cannot take the clips of the datasets.

    Building on the meta device runs every check of the constructors without allocating weights.
    """
    with torch.device("meta"):
        spec = input_spec(NETWORKS.build(opt.netG, "netG", spike_channels=opt.spike_channels))
    train, test = opt.datasets.train, opt.datasets.test
    if spec.interpolates and train:
        raise OptionError(
            "netG.pa_frames is 0: the network makes new frames between those of a clip", "netG.pa_frames",
            "2, 4 or 6, to train on clips with a sharp frame for each blurry one", "set it to one of these",
        )  # fmt: skip
    if spec.spike_channels and train and test and train.spike_channels != test.spike_channels:
        raise OptionError(
            f"datasets.test gives {test.spike_channels} spike channels, datasets.train {train.spike_channels}",
            "datasets.test.spike", "the same number, because one network takes both",
            "copy the representation of datasets.train.spike to datasets.test.spike",
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
            "because of the network's strides and windows", f"set it to {near}",
        )  # fmt: skip


import_parts("models", "network_*")

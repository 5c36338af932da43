"""define_G: the network an option file asks for. A new network is a new file models/network_<net_type>.py."""

from __future__ import annotations

import importlib
import logging
from pathlib import Path
from typing import Any

import torch
from torch import nn

from utils.utils_errors import OptionError
from utils.utils_registry import Registry

logger = logging.getLogger(__name__)

NETWORKS = Registry("network", "net_type")


def spike_channels(opt: dict[str, Any]) -> int:
    """S, the spike channels of the data: those of the training section, else of the test section; 0 for RGB data."""
    datasets = opt.get("datasets", {})
    section = datasets.get("train") or datasets.get("test") or {}
    return section.get("spike_channels") or 0


def define_G(opt: dict[str, Any]) -> nn.Module:
    """The network that opt["netG"] describes, with fresh weights. Raises OptionError where options do not fit."""
    net = NETWORKS.build(opt["netG"], "netG", spike_channels=spike_channels(opt))
    for note in getattr(net, "notes", ()):
        logger.info("%s", note)
    return net


def check_options(opt: dict[str, Any]) -> None:
    """OptionError where no network can be built from these options; costs no memory.

    Building on the meta device runs every check of the constructors without a single weight.
    """
    with torch.device("meta"):
        net = NETWORKS.build(opt["netG"], "netG", spike_channels=spike_channels(opt))
    _check_same_spikes(opt)
    size = opt.get("datasets", {}).get("train", {}).get("gt_size")
    if size is None or not hasattr(net, "required_multiple"):
        return
    crop, multiple, least = size // opt.get("scale", 1), net.required_multiple, max(net.minimum_size)
    if crop % multiple or crop < least:
        near = max(least, round(crop / multiple) * multiple) * opt.get("scale", 1)
        raise OptionError(
            f"datasets.train.gt_size is {size}", "datasets.train.gt_size",
            f"input crops (gt_size / scale) that are multiples of {multiple} and at least {least}, "
            "for the U-net halves them three times and cuts them into windows", f"set it to {near}",
        )  # fmt: skip


def _check_same_spikes(opt: dict[str, Any]) -> None:
    """Training and validation feed one network: S must be the same, unless it takes no spikes."""
    sections = [opt.get("datasets", {}).get(split) for split in ("train", "test")]
    fusion = opt["netG"].get("fusion")
    if not all(sections) or (fusion["type"] if isinstance(fusion, dict) else fusion) == "none":
        return
    train, test = (section.get("spike_channels") or 0 for section in sections)
    if train != test:
        raise OptionError(
            f"datasets.test gives {test} spike channels, datasets.train {train}", "datasets.test.spike",
            "the same number: one network reads both", "give datasets.test.spike the representation of datasets.train",
        )  # fmt: skip


def _import_networks() -> None:
    for path in sorted(Path(__file__).parent.glob("network_*.py")):
        importlib.import_module(f"models.{path.stem}")


_import_networks()

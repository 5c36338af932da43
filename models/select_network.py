"""define_G builds the network of an option file; a new network is a new file models/network_<net_type>.py."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from models.vrt.flow import RATES
from utils.contract import InputSpec, input_spec
from utils.errors import OptionError
from utils.options.models import DatasetsOptions, LoaderOptions, Options, ValOptions
from utils.options.section import Registry, Section, import_parts

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


def check_options(netG: Section, datasets: DatasetsOptions, val: ValOptions, scale: int) -> None:
    """Raise OptionError if the network cannot be built, or cannot take the clips of the datasets.

    Building on the meta device runs every check of the constructors without allocating weights.
    """
    train, test = datasets.train, datasets.test
    channels = next((section.spike_channels for section in (train, test) if section), 0)
    with torch.device("meta"):
        spec = input_spec(NETWORKS.build(netG, "netG", spike_channels=channels))
    _check_task(netG, train, test, val, spec)
    if spec.spike_channels and train and test and train.spike_channels != test.spike_channels:
        raise OptionError(
            f"datasets.test gives {test.spike_channels} spike channels, datasets.train {train.spike_channels}",
            "datasets.test.spike", "the same number, because one network takes both",
            "copy the representation of datasets.train.spike to datasets.test.spike",
        )  # fmt: skip
    _check_spikes(netG, {"train": getattr(train, "spike", None), "test": getattr(test, "spike", None)}, spec)
    size = getattr(train, "gt_size", None)
    if size is None:
        return
    crop, least = size // scale, max(spec.least_size)
    if size % scale or crop % spec.multiple or crop < least:
        near = max(least, round(crop / spec.multiple) * spec.multiple) * scale
        raise OptionError(
            f"datasets.train.gt_size is {size}", "datasets.train.gt_size",
            f"input crops (gt_size / scale) that are multiples of {spec.multiple} and at least {least}, "
            "because of the network's strides and windows", f"set it to {near}",
        )  # fmt: skip


def _check_spikes(netG: Section, spikes: dict[str, Any], spec: InputSpec) -> None:
    """Raise OptionError if the spike sections "train" and "test" (None: without) do not fit together or the network."""
    known = {}
    operator, flow_input = getattr(netG, "fusion", None), getattr(netG, "flow_input", "rgb")
    if operator and operator.constructor.representation:
        known["netG.fusion", operator.type] = (operator.constructor.representation,)
    if flow_input != "rgb":
        known["netG.flow_input", flow_input] = RATES
    for name, spike in spikes.items():
        for (key, value), wanted in known.items():
            if spike and spike.representation.type not in wanted:
                raise OptionError(
                    f"{key} {value} cannot use {spike.representation.type} channels",
                    f"datasets.{name}.spike.representation", " or ".join(wanted), f"set it, or choose another {key}",
                )  # fmt: skip
        if spike and flow_input != "rgb" and spike.gamma != 1:
            key = f"datasets.{name}.spike.gamma"
            raise OptionError(
                f"netG.flow_input {flow_input} with {key} {spike.gamma:g}", key,
                "1: the flow network needs rates of linear light", "set it to 1, or netG.flow_input to rgb",
            )  # fmt: skip
    if spec.spike_channels and all(spikes.values()):
        kinds = [{"representation": s.representation.type, "gamma": s.gamma} for s in spikes.values()]
        for key, learned in kinds[0].items():
            if kinds[1][key] != learned:  # as many channels of another kind would pass unseen
                raise OptionError(
                    f"datasets.test.spike has the {key} {kinds[1][key]}, datasets.train.spike {learned}",
                    f"datasets.test.spike.{key}", f"{learned}, because one network takes both", "set it to that",
                )  # fmt: skip


def _check_task(
    netG: Section, train: LoaderOptions | None, test: LoaderOptions | None, val: ValOptions, spec: InputSpec
) -> None:
    """Raise OptionError if the network interpolates or denoises, and the datasets are not made for that, or vice versa.

    The keys of a dataset tell: temporal_scale 2 leaves every second frame out; sigma_max (training) and sigma (testing)
    add noise.
    """
    for name, section in (("train", train), ("test", test)):
        scale = getattr(section, "temporal_scale", None)
        # In testing, every second frame of any clip can be left out.
        fits = scale == 2 or (scale is None and name == "test") if spec.interpolates else scale in (None, 1)
        if section is not None and not fits:
            does = "makes new frames between those of a clip" if spec.interpolates else "restores every frame of a clip"
            raise OptionError(
                f"datasets.{name} is {section.dataset_type}, and the network {does}", f"datasets.{name}.dataset_type",
                f"a dataset with{'' if spec.interpolates else 'out'} temporal_scale 2",
                f"choose another dataset, or set netG.pa_frames to {'2, 4 or 6' if spec.interpolates else '0'}",
            )  # fmt: skip
    frames = 2 * spec.least_frames - 1
    if spec.interpolates and train and getattr(train, "num_frame", frames) != frames:
        raise OptionError(
            f"datasets.train.num_frame is {train.num_frame}", "datasets.train.num_frame",
            f"{frames}: every second one is given, and netG.img_size[0] is {spec.least_frames}", f"set it to {frames}",
        )  # fmt: skip
    if spec.interpolates and train and getattr(netG, "out_chans", 3) != 3:
        raise OptionError(
            f"netG.out_chans is {netG.out_chans}", "netG.out_chans", "3: one new frame is trained", "set it to 3"
        )
    if spec.interpolates and (val.flip_seq or val.pad_seq or getattr(test, "pad_sequence", False)):
        raise OptionError(
            "val.flip_seq, val.pad_seq or pad_sequence with a network that interpolates", "val",
            "false: each new frame is made from its neighbours alone", "set them to false",
        )  # fmt: skip
    if hasattr(train, "sigma_max") and not spec.noise_map:
        raise OptionError(
            f"{train.dataset_type} gives a noise map, which the network does not take", "netG.nonblind_denoising",
            "true", "set it to true, or choose another dataset",
        )  # fmt: skip
    if spec.noise_map and getattr(test, "sigma", 0) is None:
        raise OptionError(
            "netG.nonblind_denoising is true, and the test clips have no noise", "datasets.test.sigma", "0 to 255",
            "set it, e.g. to 30",
        )  # fmt: skip


import_parts("models", "network_*")

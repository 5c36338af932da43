"""define_G builds the network of an option file; a new network is a new file
models/network_<net_type>.py.
"""

import logging
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from utils.contract import InputSpec, input_spec
from utils.errors import OptionError
from utils.options.models import DatasetsOptions, LoaderOptions, Options, ValOptions
from utils.options.section import Registry, Section, import_parts

logger = logging.getLogger(__name__)

NETWORKS = Registry("network", "net_type")


def define_G(
    opt: Options | Mapping[str, Any], spike_channels: int | None = None
) -> torch.nn.Module:
    """The network of opt.netG with initial weights; for notebooks opt may be a mapping in KAIR's
    form, {"netG": {...}}.

    spike_channels: S of the batches; None: S of the options' datasets (0 for a mapping: its
    datasets are not read).
    Raises OptionError if the options do not fit together.
    """
    section: Any = opt.netG if isinstance(opt, Options) else opt.get("netG")
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
        what = (
            f"datasets.test gives {test.spike_channels} spike channels, datasets.train "
            f"{train.spike_channels}"
        )
        do = "copy the representation of datasets.train.spike to datasets.test.spike"
        raise OptionError(
            what, "datasets.test.spike", "the same number, because one network takes both", do
        )
    spikes: dict[str, Any] = {
        "train": getattr(train, "spike", None),
        "test": getattr(test, "spike", None),
    }
    operator: Any = getattr(netG, "fusion", None)
    wanted = operator.constructor.representation if operator else None
    for name, spike in spikes.items():
        if spike and wanted not in (None, spike.representation.type):
            what = f"netG.fusion {operator.type} cannot use {spike.representation.type} channels"
            where, do = (
                f"datasets.{name}.spike.representation",
                "set it, or choose another netG.fusion",
            )
            raise OptionError(what, where, wanted, do)
    if spec.spike_channels and all(spikes.values()):
        for key, learned, given in other_kinds(*(spike.plain() for spike in spikes.values())):
            what = f"datasets.test.spike has the {key} {given}, datasets.train.spike {learned}"
            expected = f"{learned}, because one network takes both"
            raise OptionError(what, f"datasets.test.spike.{key}", expected, "set it to that")
    size, least = getattr(train, "gt_size", None), max(spec.least_size)
    if size is not None and (
        size % scale or size // scale % spec.multiple or size // scale < least
    ):
        near = max(least, round(size // scale / spec.multiple) * spec.multiple) * scale
        expected = (
            f"crops (gt_size / scale) that are multiples of {spec.multiple} and at least {least}"
        )
        key = "datasets.train.gt_size"
        raise OptionError(
            f"{key} is {size}", key, f"{expected}, for the strides and windows", f"set it to {near}"
        )


def other_kinds(learned: dict[str, Any], given: dict[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """(key, learned, given) where two spike sections differ in what a network can take of one value
    alone.

    As many channels of another kind would pass unseen. The sections may lack defaults.
    """
    for key, default in (("representation", "voxel"), ("gamma", 1.0)):
        both = [section.get(key, default) for section in (learned, given)]
        both = [value["type"] if isinstance(value, dict) else value for value in both]
        if both[0] != both[1]:
            yield key, *both


def _check_task(
    netG: Section,
    train: LoaderOptions | None,
    test: LoaderOptions | None,
    val: ValOptions,
    spec: InputSpec,
) -> None:
    """Raise OptionError if the network interpolates or denoises, and the datasets are not made for
    that, or vice versa.

    The keys of a dataset tell: temporal_scale 2 leaves every second frame out; sigma_max (training)
    and sigma (testing) add noise.
    """
    for name, section in (("train", train), ("test", test)):
        scale = getattr(section, "temporal_scale", None)
        # In testing, every second frame of any clip can be left out.
        fits = (
            scale == 2 or (scale is None and name == "test")
            if spec.interpolates
            else scale in (None, 1)
        )
        if section is not None and not fits:
            does = (
                "makes new frames between those of a clip"
                if spec.interpolates
                else "restores every frame of a clip"
            )
            kind = section.plain()["dataset_type"]
            what = f"datasets.{name} is {kind}, and the network {does}"
            expected = f"a dataset with{'' if spec.interpolates else 'out'} temporal_scale 2"
            do = f"choose another, or netG.pa_frames {'2, 4 or 6' if spec.interpolates else '0'}"
            raise OptionError(what, f"datasets.{name}.dataset_type", expected, do)
    if spec.interpolates:
        frames, given = 2 * spec.least_frames - 1, getattr(train, "num_frame", None)
        key, expected = (
            "datasets.train.num_frame",
            f"{frames}: netG.img_size[0] is {spec.least_frames}",
        )
        if given not in (None, frames):
            raise OptionError(
                f"{key} is {given}",
                key,
                f"{expected}, every second one is given",
                f"set it to {frames}",
            )
        out_chans = getattr(netG, "out_chans", 3)
        if train and out_chans != 3:
            raise OptionError(
                what=f"netG.out_chans is {out_chans}",
                where="netG.out_chans",
                expected="3: one new frame is trained",
                do="set it to 3",
            )
        if val.flip_seq or val.pad_seq or getattr(test, "pad_sequence", False):
            what = "val.flip_seq, val.pad_seq or pad_sequence with a network that interpolates"
            raise OptionError(
                what, "val", "each new frame is made from its neighbours alone", "set them to false"
            )
    if train is not None and hasattr(train, "sigma_max") and not spec.noise_map:
        kind = train.plain()["dataset_type"]
        what = f"{kind} gives a noise map, which the network does not take"
        raise OptionError(
            what, "netG.nonblind_denoising", "true", "set it to true, or choose another dataset"
        )
    if spec.noise_map and getattr(test, "sigma", 0) is None:
        what = "netG.nonblind_denoising is true, and the test clips have no noise"
        raise OptionError(what, "datasets.test.sigma", "0 to 255", "set it, e.g. to 30")


import_parts("models", "network_*")

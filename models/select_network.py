"""Builds the network of an option file, and checks that it fits the datasets.

`NETWORKS` lists the networks by their name in the option netG.net_type. A new network is a new file
models/network_<net_type>.py, which this module imports by itself. `define_G` builds a network;
`check_options` is called when an option file is read, before any data are opened.

Tests: tests/parts/models/test_select_network.py, tests/stories/test_bad_input.py
"""

import logging
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

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
    """Build the network of opt.netG with initial weights.

    opt: the options, or in notebooks a mapping in the form of KAIR's files, {"netG": {...}}.
    spike_channels: number of spike channels per frame of the batches. None takes the number from
    the datasets in `opt`, or 0 if `opt` is a mapping, because its datasets are not read.

    Raises OptionError if the options do not fit together.
    """
    if isinstance(opt, Options):
        section: Any = opt.netG
        default_channels = opt.spike_channels
    else:
        netG: Any = opt.get("netG")
        section = netG
        default_channels = 0
    if spike_channels is None:
        spike_channels = default_channels
    net = NETWORKS.build(section, "netG", spike_channels=spike_channels)
    # A network may have messages for the log, such as which of its weights start at zero.
    for note in getattr(net, "notes", ()):
        logger.info("%s", note)
    return net


def check_options(netG: Section, datasets: DatasetsOptions, val: ValOptions, scale: int) -> None:
    """Raise OptionError if the network cannot be built, or cannot take the clips of the datasets.

    scale: size of the sharp frames / size of the input.
    """
    train = datasets.train
    test = datasets.test
    if train:
        channels = train.spike_channels
    elif test:
        channels = test.spike_channels
    else:
        channels = 0
    # On the device "meta" tensors have no content. So building there runs every check of the
    # constructors without allocating weights.
    with torch.device("meta"):
        spec = input_spec(NETWORKS.build(netG, "netG", spike_channels=channels))
    _check_task(netG, train, test, val, spec)
    _check_spikes(netG, train, test, spec)
    crop = getattr(train, "gt_size", None)
    if crop is not None:
        _check_crop(crop, spec, scale)


class KindDifference(NamedTuple):
    """One way in which the spike channels of two sections are of different kinds."""

    key: str  # of the spike section, e.g. "representation"
    learned: Any  # its value in the first section, e.g. "voxel"
    given: Any  # its value in the second section, e.g. "tfp"


def other_kinds(learned: dict[str, Any], given: dict[str, Any]) -> Iterator[KindDifference]:
    """Yield each difference of two spike sections that makes their channels mean something else.

    A network that was trained with one kind gives wrong frames with the other. If both kinds have
    the same number of channels, nothing else would show the difference. E.g. "voxel" and "tfp", or
    gamma 1.0 and 2.2. The sections may lack keys that have their default value.
    """
    for key, default in (("representation", "voxel"), ("gamma", 1.0)):
        first = learned.get(key, default)
        second = given.get(key, default)
        # A representation is a name, or a table {"type": name, ...}.
        if isinstance(first, dict):
            first = first["type"]
        if isinstance(second, dict):
            second = second["type"]
        if first != second:
            yield KindDifference(key, first, second)


# ---- Checks: spikes and crops ----------------------------------------------------------------


def _check_spikes(
    netG: Section, train: LoaderOptions | None, test: LoaderOptions | None, spec: InputSpec
) -> None:
    """Raise OptionError if a dataset gives spike channels that the network cannot use."""
    if spec.spike_channels and train and test and train.spike_channels != test.spike_channels:
        raise OptionError(
            what=f"datasets.test gives {test.spike_channels} spike channels, datasets.train "
            f"{train.spike_channels}",
            where="datasets.test.spike",
            expected="the same number, because one network takes both",
            do="copy the representation of datasets.train.spike to datasets.test.spike",
        )

    # Some fusion operators understand one representation alone. They name it in their class.
    train_spike: Any = getattr(train, "spike", None)
    test_spike: Any = getattr(test, "spike", None)
    operator: Any = getattr(netG, "fusion", None)
    wanted = operator.constructor.representation if operator else None
    for name, spike in (("train", train_spike), ("test", test_spike)):
        if not spike or wanted is None:
            continue
        if spike.representation.type != wanted:
            raise OptionError(
                what=f"netG.fusion {operator.type} cannot use {spike.representation.type} channels",
                where=f"datasets.{name}.spike.representation",
                expected=wanted,
                do="set it, or choose another netG.fusion",
            )

    if spec.spike_channels and train_spike and test_spike:
        for difference in other_kinds(train_spike.plain(), test_spike.plain()):
            key, learned, given = difference
            raise OptionError(
                what=f"datasets.test.spike has the {key} {given}, datasets.train.spike {learned}",
                where=f"datasets.test.spike.{key}",
                expected=f"{learned}, because one network takes both",
                do="set it to that",
            )


def _check_crop(gt_size: int, spec: InputSpec, scale: int) -> None:
    """Raise OptionError if the network cannot take the crops of training.

    gt_size: side of a crop of the sharp frame. The crop of the input is `scale` times smaller.
    """
    least = max(spec.least_size)
    step = spec.multiple  # the sides of the input are multiples of it
    side = gt_size // scale  # of the crop of the input
    if gt_size % scale == 0 and side % step == 0 and side >= least:
        return
    # The valid size that is nearest to the size asked for, to propose it.
    near = max(least, round(side / step) * step) * scale
    key = "datasets.train.gt_size"
    raise OptionError(
        what=f"{key} is {gt_size}",
        where=key,
        expected=f"crops (gt_size / scale) that are multiples of {step} and at least {least}, "
        "for the strides and windows",
        do=f"set it to {near}",
    )


# ---- Checks: the task ------------------------------------------------------------------------


def _check_task(
    netG: Section,
    train: LoaderOptions | None,
    test: LoaderOptions | None,
    val: ValOptions,
    spec: InputSpec,
) -> None:
    """Raise OptionError if network and datasets are made for different tasks.

    The tasks are restoration, interpolation (new frames between the given frames) and denoising
    with a known noise level. Keys of a dataset tell its task: with temporal_scale 2 it leaves every
    second frame out for interpolation; sigma_max (training) and sigma (testing) add noise.
    """
    for name, section in (("train", train), ("test", test)):
        if section is not None:
            _check_time(name, section, spec)
    if spec.interpolates:
        _check_interpolation(netG, train, test, val, spec)
    if train is not None and hasattr(train, "sigma_max") and not spec.noise_map:
        kind = train.plain()["dataset_type"]
        raise OptionError(
            what=f"{kind} gives a noise map, which the network does not take",
            where="netG.nonblind_denoising",
            expected="true",
            do="set it to true, or choose another dataset",
        )
    if spec.noise_map and getattr(test, "sigma", 0) is None:
        raise OptionError(
            what="netG.nonblind_denoising is true, and the test clips have no noise",
            where="datasets.test.sigma",
            expected="0 to 255",
            do="set it, e.g. to 30",
        )


def _check_time(name: str, section: LoaderOptions, spec: InputSpec) -> None:
    """Raise OptionError if datasets.<name> is for interpolation and the network is not, or vice
    versa.
    """
    scale = getattr(section, "temporal_scale", None)  # None: the dataset has no such key
    if spec.interpolates:
        # The test program can leave out every second frame of any clip, so a test dataset needs no
        # key.
        fits = scale == 2 or (scale is None and name == "test")
    else:
        fits = scale in (None, 1)
    if fits:
        return
    kind = section.plain()["dataset_type"]
    if spec.interpolates:
        does = "makes new frames between those of a clip"
        expected = "a dataset with temporal_scale 2"
        do = "choose another, or netG.pa_frames 2, 4 or 6"
    else:
        does = "restores every frame of a clip"
        expected = "a dataset without temporal_scale 2"
        do = "choose another, or netG.pa_frames 0"
    raise OptionError(
        what=f"datasets.{name} is {kind}, and the network {does}",
        where=f"datasets.{name}.dataset_type",
        expected=expected,
        do=do,
    )


def _check_interpolation(
    netG: Section,
    train: LoaderOptions | None,
    test: LoaderOptions | None,
    val: ValOptions,
    spec: InputSpec,
) -> None:
    """Raise OptionError if the options do not fit a network that interpolates."""
    # A training clip has the given frames and one frame in each gap between them, e.g. 4 + 3 = 7.
    frames = 2 * spec.least_frames - 1
    num_frame = getattr(train, "num_frame", None)
    if num_frame is not None and num_frame != frames:
        key = "datasets.train.num_frame"
        raise OptionError(
            what=f"{key} is {num_frame}",
            where=key,
            expected=f"{frames}: netG.img_size[0] is {spec.least_frames}, every second one is "
            "given",
            do=f"set it to {frames}",
        )
    # A network may make several new frames, but the datasets have one sharp frame to train on.
    out_chans = getattr(netG, "out_chans", 3)
    if train and out_chans != 3:
        raise OptionError(
            what=f"netG.out_chans is {out_chans}",
            where="netG.out_chans",
            expected="3: one new frame is trained",
            do="set it to 3",
        )
    if val.flip_seq or val.pad_seq or getattr(test, "pad_sequence", False):
        raise OptionError(
            what="val.flip_seq, val.pad_seq or pad_sequence with a network that interpolates",
            where="val",
            expected="each new frame is made from its neighbours alone",
            do="set them to false",
        )


import_parts("models", "network_*")

"""Build the network of an option file, and check that it fits the datasets.

`NETWORKS` lists the networks by their name in the option netG.net_type. A new network is a new file
models/network_<net_type>.py, which this module imports by itself. `define_G` builds a network.
`check_options` is called when an option file is read, so a wrong option ends a run within seconds,
before the data are prepared.

To add a check, add a function that raises an OptionError with its four parts by name, and call it
in `check_options`. If several options are wrong, the user sees only the error of the first check.

Terms: netG is the section of the network. `spec` is an InputSpec, which says what the network
requires of its input (utils/contract.py). train and test are datasets.train and datasets.test, or
None if the option file lacks the section.

What must stay: each check. Without a check, a run starts and fails later, or gives wrong frames
without an error (`kind_differences`). test_select_network.py tries wrong options. Free to change:
the order of the checks, and their texts.

Tests: tests/parts/models/test_select_network.py, tests/stories/test_bad_input.py
"""

import logging
import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch

from utils.contract import InputSpec, input_spec
from utils.errors import OptionError
from utils.options.loader_options import DatasetsOptions, LoaderOptions
from utils.options.models import Options
from utils.options.registry import Registry, import_parts
from utils.options.section import Section
from utils.options.val_options import ValOptions

logger = logging.getLogger(__name__)

NETWORKS = Registry("network", "net_type")


def define_G(
    opt: Options | Mapping[str, Any], spike_channels: int | None = None
) -> torch.nn.Module:
    """Build the network of opt.netG with initial weights.

    opt: the options. A notebook may pass a dict {"netG": {...}}, and only its key "netG" is read.
        (KAIR, the project in which VRT was published, has its options in such a dict.)
    spike_channels: number of spike channels per frame of the batches. With None the number comes
        from the datasets in `opt`, and is 0 if `opt` is a dict.

    Raises OptionError if the options do not fit together.
    """
    if isinstance(opt, Options):
        section: Any = opt.netG
        default_channels = opt.spike_channels
    else:
        netG: Any = opt.get("netG")  # Any, because for the type checker `get` may return None
        section = netG
        default_channels = 0
    if spike_channels is None:
        spike_channels = default_channels
    net = NETWORKS.build(section, "netG", spike_channels=spike_channels)
    # A network may have messages for the log, e.g. that its optical flow starts at zero.
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
        spike_channels = train.spike_channels
    elif test:
        spike_channels = test.spike_channels
    else:
        spike_channels = 0
    # On the device "meta" tensors have no content. So building on "meta" runs every check of the
    # constructors without allocating weights.
    with torch.device("meta"):
        net = NETWORKS.build(netG, "netG", spike_channels=spike_channels)
    spec = input_spec(net)
    _check_task(netG, train, test, val, spec)
    _check_spikes(netG, train, test, spec)
    # None if there is no training dataset, or if it has no crops, and so no key gt_size.
    gt_size = getattr(train, "gt_size", None)
    if gt_size is not None:
        _check_crop(gt_size, spec, scale)


class KindDifference(NamedTuple):
    """A key of two spike sections whose values make spike channels of different kinds."""

    key: str  # e.g. "representation"
    training_value: Any  # the value with which the network is trained, e.g. "voxel"
    other_value: Any  # the value with which the network is to be used, e.g. "tfp"


def kind_differences(training: dict[str, Any], other: dict[str, Any]) -> Iterator[KindDifference]:
    """Yield each difference of two spike sections that makes their channels mean something else.

    The kind of channels is their representation and their gamma, e.g. "voxel" with gamma 1.0. A
    network that was trained with one kind gives wrong frames with another kind. If both kinds have
    the same number of channels, no other check finds the difference. models/portable.py and
    models/restore/own_spikes.py compare the spikes of a weights file in this way, too.

    training: the section of the training.
    other: the section with which the network is to be used.

    A key that is missing in a section has its default value. The defaults "voxel" and 1.0 are
    repeated from the section `spike` (`DatSpikes` in data/cameras/spike_source.py), so change
    them in both files.
    """
    for key, default in (("representation", "voxel"), ("gamma", 1.0)):
        training_value = training.get(key, default)
        other_value = other.get(key, default)
        # A representation is a name, or a table {"type": name, ...}.
        if isinstance(training_value, dict):
            training_value = training_value["type"]
        if isinstance(other_value, dict):
            other_value = other_value["type"]
        if training_value != other_value:
            yield KindDifference(key, training_value, other_value)


# ---- Checks: spikes and crops ----------------------------------------------------------------
#
# test_crops_and_channels_that_do_not_fit_the_network_are_refused and
# test_a_network_is_not_tested_on_other_channels_than_it_learns_from notice a check that is missing.


def _check_spikes(
    netG: Section, train: LoaderOptions | None, test: LoaderOptions | None, spec: InputSpec
) -> None:
    """Raise OptionError if a dataset gives spike channels that the network cannot use.

    netG, train, test: sections of the options. train and test may be None.
    spec: what the network takes.

    The checks below have these arguments, too.
    """
    takes_spikes = spec.spike_channels > 0
    if takes_spikes and train and test:
        _check_equal_channels(train, test)
    # Datasets may have no spikes.
    train_spike: Any = getattr(train, "spike", None)
    test_spike: Any = getattr(test, "spike", None)
    # This check does not ask `spec`, because the spec of a user's network may not mention spikes.
    _check_representation(netG, train_spike, "train")
    _check_representation(netG, test_spike, "test")
    if takes_spikes and train_spike and test_spike:
        _check_equal_kinds(train_spike, test_spike)


def _check_equal_channels(train: LoaderOptions, test: LoaderOptions) -> None:
    """Raise OptionError if the two datasets give different numbers of spike channels."""
    if train.spike_channels == test.spike_channels:
        return
    raise OptionError(
        what=f"datasets.test gives {test.spike_channels} spike channels, datasets.train "
        f"{train.spike_channels}",
        where="datasets.test.spike",
        expected="the same number, because one network takes both",
        do="copy the representation of datasets.train.spike to datasets.test.spike; in a data set "
        "of your own, correct what its spike_channels returns",
    )


def _check_representation(netG: Section, spike: Any, dataset: str) -> None:
    """Raise OptionError if the fusion operator cannot use the spike representation of a dataset.

    spike: the section `spike` of the dataset, or None.
    dataset: "train" or "test".
    """
    # A network that a user adds may have no key `fusion`.
    operator: Any = getattr(netG, "fusion", None)
    if not operator or not spike:
        return
    # `operator` is the section netG.fusion, and `operator.constructor` is the class of the operator
    # (models/fusion/). Its attribute `representation` is the only representation that the operator
    # understands, e.g. "relative", or None if the operator takes any representation.
    only_representation = operator.constructor.representation
    if only_representation is None or spike.representation.type == only_representation:
        return
    raise OptionError(
        what=f"netG.fusion {operator.type} cannot use {spike.representation.type} channels",
        where=f"datasets.{dataset}.spike.representation",
        expected=only_representation,
        do=f"set it to {only_representation}, or choose another netG.fusion",
    )


def _check_equal_kinds(train_spike: Section, test_spike: Section) -> None:
    """Raise OptionError if the spike channels of training and test mean different things."""
    # The first difference is enough for the error. Without a difference, `next` returns None.
    first_difference = next(kind_differences(train_spike.plain(), test_spike.plain()), None)
    if first_difference is None:
        return
    key, training_value, test_value = first_difference
    raise OptionError(
        what=f"datasets.test.spike has the {key} {test_value}, datasets.train.spike "
        f"{training_value}",
        where=f"datasets.test.spike.{key}",
        expected=f"{training_value}, because one network takes the clips of both",
        do=f"set datasets.test.spike.{key} to {training_value}",
    )


def _check_crop(gt_size: int, spec: InputSpec, scale: int) -> None:
    """Raise OptionError if the network cannot take the crops of training.

    gt_size: side of a crop of the sharp frame. The crop of the input is `scale` times smaller.
    """
    # The side of an input must be a multiple of the window height, the window width and the stride,
    # e.g. 24 for 6, 8 and 8.
    multiple = spec.multiple
    # A crop is square, so its side must be enough for both height and width. E.g. VRT with windows
    # of 6 x 8 needs inputs of at least 48 x 64, and the first multiple of 24 above 64 is 72.
    least_side = math.ceil(max(spec.least_size) / multiple) * multiple
    side = gt_size // scale  # side of the crop of the input
    is_whole = gt_size % scale == 0
    if is_whole and side % multiple == 0 and side >= least_side:
        return
    # Propose the valid size that is nearest to `gt_size`. E.g. with scale 4 and multiple 8 a valid
    # size is a multiple of 32. So for 210 the nearest side of the input is 7 * 8 = 56, and the
    # proposed size is 56 * 4 = 224 (test_the_crop_that_a_refusal_proposes_is_taken).
    gt_multiple = scale * multiple
    nearest_side = max(least_side, round(gt_size / gt_multiple) * multiple)
    key = "datasets.train.gt_size"
    raise OptionError(
        what=f"{key} is {gt_size}",
        where=key,
        expected=f"crops (gt_size / scale) that are multiples of {multiple} and at least "
        f"{least_side}, for the strides and windows",
        do=f"set it to {nearest_side * scale}",
    )


# ---- Checks: the task ------------------------------------------------------------------------
#
# test_a_network_and_datasets_for_different_tasks_are_refused (tests/stories/test_kair_files.py) has
# an option file for each check.


def _check_task(
    netG: Section,
    train: LoaderOptions | None,
    test: LoaderOptions | None,
    val: ValOptions,
    spec: InputSpec,
) -> None:
    """Raise OptionError if network and datasets are made for different tasks.

    The tasks are restoration, interpolation (new frames between the given frames) and denoising
    with a known noise level. Keys of a dataset tell its task: temporal_scale 2 leaves every second
    frame out, for interpolation, and sigma_max (training) or sigma (testing) adds noise.

    netG, train, test, val: sections of the options. train and test may be None.
    spec: what the network takes.
    """
    for name, section in (("train", train), ("test", test)):
        if section is not None:
            _check_time(name, section, spec)
    if spec.interpolates:
        _check_interpolation(netG, train, test, val, spec)
    # A training dataset with sigma_max adds a noise map as a fourth channel of its frames. Only a
    # network with netG.nonblind_denoising takes this channel.
    if train is not None and hasattr(train, "sigma_max") and not spec.noise_map:
        kind = train.plain()["dataset_type"]
        raise OptionError(
            what=f"{kind} gives a noise map, which the network does not take",
            where="netG.nonblind_denoising",
            expected="true",
            do="set it to true, or choose another dataset",
        )
    # The test clips get their noise map only if datasets.test.sigma is a number. So null is
    # refused. Without a test dataset, or for a dataset without the key, there is nothing to refuse.
    sigma = getattr(test, "sigma", 0)  # without the key: 0, so not null
    if spec.noise_map and sigma is None:
        raise OptionError(
            what="netG.nonblind_denoising is true, but the test clips have no noise",
            where="datasets.test.sigma",
            expected="0 to 255",
            do="set it, e.g. to 30",
        )


def _check_time(name: str, section: LoaderOptions, spec: InputSpec) -> None:
    """Raise OptionError if only one of datasets.<name> and the network is for interpolation.

    temporal_scale of the dataset    a network that interpolates    another network
    2                                fits                           is refused
    1                                is refused                     fits
    no such key                      fits only as datasets.test     fits

    datasets.test need not have the key, because the test program can leave out every second frame
    of any clip.
    """
    temporal_scale = getattr(section, "temporal_scale", None)  # None: the dataset has no such key
    if spec.interpolates:
        fits = temporal_scale == 2 or (temporal_scale is None and name == "test")
    else:
        fits = temporal_scale in (None, 1)
    if fits:
        return
    kind = section.plain()["dataset_type"]
    if spec.interpolates:
        does = "makes new frames between the frames of a clip"
        expected = "a dataset with temporal_scale 2"
        do = "choose another dataset, or set netG.pa_frames to 2, 4 or 6"
    else:
        does = "restores every frame of a clip"
        expected = "a dataset without temporal_scale 2"
        do = "choose another dataset, or set netG.pa_frames to 0"
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
    """Raise OptionError if the options do not fit a network that interpolates.

    netG, train, test, val: sections of the options. train and test may be None.
    spec: what the network takes.
    """
    # Every second frame of a training clip is given to the network. One sharp frame lies between
    # two given frames. E.g. 4 given frames and 3 sharp frames are 7 frames. In VRT the number of
    # given frames is netG.img_size[0], as the message says.
    given_frames = spec.least_frames
    all_frames = 2 * given_frames - 1
    num_frame = getattr(train, "num_frame", None)
    if num_frame is not None and num_frame != all_frames:
        key = "datasets.train.num_frame"
        raise OptionError(
            what=f"{key} is {num_frame}",
            where=key,
            expected=f"{all_frames}: netG.img_size[0] is {given_frames}, every second one is given",
            do=f"set it to {all_frames}",
        )
    # With more output channels, e.g. 6, the network would make several new frames, but the datasets
    # have only one sharp frame to train on.
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
            what="val.flip_seq, val.pad_seq or pad_sequence is true, but the network interpolates",
            where="val",
            expected="each new frame is made only from its neighbours",
            do="set val.flip_seq, val.pad_seq and pad_sequence to false",
        )


# Import all files models/network_*.py, each of which registers its network in `NETWORKS`. The
# import comes last in this file, because these files import `NETWORKS`.
import_parts("models", "network_*")

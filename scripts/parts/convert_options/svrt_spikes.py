"""Convert the spike options of S-VRT: size of a plane, brightness, order of rows, scale.

svrt_representation.py converts how planes become channels. For a channel that is a firing rate f,
the network gets

    in S-VRT   (f - mean) / std
    here       (f / rate) ** (G / gamma),   G = 2.2 if the sensor integrated display values, else 1

With `spike.rate` = std and `spike.gamma` = G, the power is 1, and the network gets f / std. This is
the channel of S-VRT if its mean is 0. `spike.gamma` is 1 by default, so it is set only for G = 2.2.

Each function changes a `Conversion` (svrt_conversion.py): its `values` are the options by their
dotted keys, and its tables `renamed`, `dropped` and `differences` are the report for the user.
`take` removes a key of S-VRT, and `set_ours` sets and reports one of ours.

What must stay: the network gets the same channels as in S-VRT, except for the reported differences
(test_the_converted_channels_differ_from_s_vrt_only_by_its_rounding).
Free to change: the texts of the report, except where
tests/parts/scripts/test_convert_options.py quotes them.
"""

import re
from typing import Any

from scripts.parts.convert_options.svrt_conversion import Conversion
from scripts.parts.convert_options.svrt_representation import convert_representation


def convert_spikes(conversion: Conversion, split: str, spike_size: list[int] | None) -> None:
    """Convert the spike options of a split, if it has any, to our section `spike`.

    Raises DataError if the dataset.json beside the spikes is wrong.

    split: "datasets.train" or "datasets.test".
    spike_size: [height, width] of --spike-size.
    """
    # Matches e.g. `datasets.train.spike_h`, `.dataroot_spike` and `.middle_tfp_center`.
    pattern = re.compile(rf"{split}\.((dataroot_)?spike|middle_tfp)")
    if not any(pattern.match(key) for key in conversion.values):
        return
    # Imported here, so that --help does not wait for this slow import.
    from data.cameras.dataset_info import DatasetInfo, load_info

    # `info` is what the dataset.json in the folder of the spikes says. It is empty if the option
    # file names no folder.
    root = conversion.values.get(f"{split}.dataroot_spike")
    info = load_info(root) if isinstance(root, str) else DatasetInfo()

    convert_spike_size(conversion, split, spike_size, info)
    convert_spike_brightness(conversion, split, info)
    conversion.differences[f"{split}, missing spike files"] = (
        "S-VRT replaces them by zeros; here they are an error"
    )
    key = f"{split}.spike_flipud"
    flip = conversion.take(key)
    if flip is not None:
        conversion.set_ours(f"{split}.spike.flip", flip, old=key)
    convert_representation(conversion, split)
    convert_spike_scale(conversion, split)


def convert_spike_size(
    conversion: Conversion, split: str, spike_size: list[int] | None, info: Any
) -> None:
    """Set `spike.h` and `spike.w`: from --spike-size, else dataset.json, else the file of S-VRT.

    The report always says what the file of S-VRT says, so that the user can compare.

    spike_size: [height, width] of --spike-size, or None.
    info: DatasetInfo, what the dataset.json of the spikes says.
    """
    spike = f"{split}.spike"  # S-VRT's keys are e.g. `spike_h`, and ours are e.g. `spike.h`
    height = conversion.take(f"{spike}_h")
    width = conversion.take(f"{spike}_w")
    said_by_file = f"the file says {height} x {width}"  # the option file of S-VRT
    report_key = f"{spike}_h, spike_w"  # one line of the report for both keys

    conversion.values[f"{spike}.type"] = "dat"
    if not spike_size and info.h:
        # Our options h and w stay unset. Then our reader takes the size of dataset.json.
        conversion.renamed[report_key] = (
            f"{spike}.h, w = the size in dataset.json, {info.h} x {info.w}; {said_by_file}"
        )
        return

    if spike_size:
        size = spike_size
    else:
        size = [height, width]
        conversion.differences[report_key] = (
            f"{said_by_file}; S-VRT's published 250 x 400 contradicts its data, 360 x 640: give "
            "--spike-size H W"
        )
    conversion.values[f"{spike}.h"] = size[0]
    conversion.values[f"{spike}.w"] = size[1]
    conversion.renamed[report_key] = f"{spike}.h, w = {size}; {said_by_file}"


def convert_spike_brightness(conversion: Conversion, split: str, info: Any) -> None:
    """Keep the firing rates as S-VRT reads them, or report by how much they differ.

    info: DatasetInfo, what the dataset.json of the spikes says. Its `rate` is the number of spikes
        per plane at full light.
    """
    if info.light == "display":
        # These spikes were simulated from display values, not from light. For such spikes, our
        # reader raises the rates to the power 2.2 / gamma. With gamma 2.2 the power is 1, and the
        # rates stay as S-VRT has them.
        conversion.values[f"{split}.spike.gamma"] = 2.2
    if info.rate not in (None, 1.0):
        # Our reader divides the channels by the rate. S-VRT does not divide.
        factor = 1 / info.rate
        conversion.differences[f"{split}, firing rates"] = (
            f"channels are divided by {info.rate:g}, the rate of dataset.json: {factor:.3g} "
            "times the channels of S-VRT"
        )


def convert_spike_scale(conversion: Conversion, split: str) -> None:
    """Convert `spike_normalize`, which subtracts a mean and divides by a std, to `spike.rate`.

        spike_normalize of S-VRT                 here
        mean 0, one std for all channels         `spike.rate` is the std
        null, or mean 0 and std 1                left out, because it changes nothing
        a mean that is not 0, or several stds    left out, and reported as a difference

    `spike.rate` is one divisor for all channels, and no option of ours subtracts a mean.
    """
    key = f"{split}.spike_normalize"
    if not conversion.has(key):
        return
    # The value is null or {"mean": ..., "std": ...}. Mean and std are each one number, or a list
    # with a number for each channel.
    given = conversion.take(key)
    mean = None
    std = None
    if isinstance(given, dict):
        mean = given.get("mean")
        std = given.get("std")
    means = mean if isinstance(mean, list) else [mean]
    stds = std if isinstance(std, list) else [std]

    has_offset = any(means)  # True if a mean is a number above or below 0
    has_one_scale = len(set(stds)) == 1
    if has_offset or not has_one_scale:
        note = "a scale and offset that the first convolution learns; not applied"
        conversion.differences[key] = f"mean {means}, std {stds}: {note}"
    elif stds[0] not in (None, 1):
        conversion.set_ours(f"{split}.spike.rate", float(stds[0]), old=key)
    else:
        conversion.dropped[key] = "null, or mean 0 and std 1, change nothing"

"""Convert the representation of S-VRT: how spike planes become channels of the network.

    convert_representation   sets `spike.representation` and `spike.center`
    Reconstruction           a representation of S-VRT
    Counterpart              our representation in its place

What must stay: the channels equal the channels of S-VRT, except for the reported differences
(test_the_converted_channels_differ_from_s_vrt_only_by_its_rounding,
test_each_other_representation_of_s_vrt_becomes_one_of_ours).
Free to change: a new name of S-VRT needs only an entry in `_counterparts`.
"""

import json
from typing import Any, NamedTuple

from scripts.parts.convert_options.svrt_conversion import Conversion, Problem


def convert_representation(conversion: Conversion, split: str) -> None:
    """Set `spike.representation`, and `spike.center` if it has an effect.

    A representation says how spike planes become channels. E.g. "tfp" is the mean of the planes
    around a time, and `center` is the plane of this time. `_counterparts` describes them all.

    The versions of S-VRT name the representation in two different keys. A third key may hold the
    center of the representation "middle_tfp". For example, the file

        spike.reconstruction   {"type": "middle_tfp", "half_win_length": 20}
        middle_tfp_center      44

    becomes

        spike.representation   {"type": "tfp", "half_window": 20}
        spike.center           44

    A file may have several of the three keys (`_joined_reconstruction`).

    split: "datasets.train" or "datasets.test".
    """
    key = f"{split}.spike.reconstruction"  # problems name this key
    other_key = f"{split}.spike_reconstruction"
    center_key = f"{split}.middle_tfp_center"
    channels_key = f"{split}.spike_channels"
    given_keys = [given for given in (key, other_key, center_key) if conversion.has(given)]
    # What the given keys say together, as one section of S-VRT. In the example it is
    # {"type": "middle_tfp", "half_win_length": 20, "middle_tfp_center": 44}.
    section = _joined_reconstruction(
        conversion, given_keys, center_key=center_key, key_of_problems=key
    )
    channels = conversion.take(channels_key)
    reconstruction = _with_defaults(section, channels)

    counterpart = _counterpart_of(reconstruction)
    if counterpart is None:
        # The advice is to drop all keys of the representation. Without these keys, `_with_defaults`
        # takes the default of S-VRT, which is tfp. So the new file has tfp.
        conversion.problems[key] = Problem(
            what=f"{reconstruction.kind!r} has no counterpart; only tfp, middle_tfp, tfi, "
            "raw_window and encoding25 have one",
            do=f"give --drop {' '.join(given_keys)}, to write tfp with {reconstruction.bins} bins "
            "instead",
        )
        return

    # Each unknown parameter is a problem, so that the user decides whether it may be left out.
    for name in reconstruction.unknown:
        conversion.problems[f"{key}.{name}"] = Problem(
            what="unknown to this script",
            do=f"give --drop {key}.{name}, if it may be left out",
        )
    _compare_channels(conversion, channels_key, channels, counterpart)
    _set_representation(conversion, split, counterpart)
    _set_center(conversion, split, reconstruction)


# ---- The representation of S-VRT --------------------------------------------------------------


class Reconstruction(NamedTuple):
    """A representation of S-VRT. The values come from the user's file, and are not checked here.

    `refuse_problems` (option_problems.py) checks the whole new file.
    """

    kind: Any  # its name in S-VRT, e.g. "middle_tfp"
    center: Any  # the number of the plane in the middle. None if the file does not say it
    half_window: Any  # number of planes on each side, for tfp, middle_tfp and tfi
    bins: Any  # number of channels of tfp, or number of windows of encoding25
    window: Any  # number of planes, for raw
    unknown: list[str]  # names of parameters that this program does not know


def _with_defaults(section: dict[str, Any], channels: Any) -> Reconstruction:
    """Return a section of S-VRT with the values that S-VRT takes if a key is missing.

    The defaults of S-VRT are the type "spikecv_tfp", 20 planes on each side, 4 bins, and for raw a
    window of 21 planes.

    section: the result of `_joined_reconstruction`
    channels: the value of `spike_channels`, or None
    """
    unknown = dict(section)  # `pop` takes each known parameter out, so the unknown ones are left
    kind = unknown.pop("type", "spikecv_tfp")
    center = unknown.pop("middle_tfp_center", None)
    # S-VRT has two names for the planes on each side. If a file has both, `half_win_length` counts.
    # E.g. half_window 10 and half_win_length 20 give 20. Without both, the default is 20.
    by_shorter_name = unknown.pop("half_window", 20)
    half_window = unknown.pop("half_win_length", by_shorter_name)
    # Without num_bins, S-VRT makes as many bins as spike_channels says.
    bins_without_num_bins = channels if channels else 4
    bins = unknown.pop("num_bins", bins_without_num_bins)
    window = unknown.pop("window", 21)
    return Reconstruction(kind, center, half_window, bins, window, list(unknown))


def _joined_reconstruction(
    conversion: Conversion, given_keys: list[str], center_key: str, key_of_problems: str
) -> dict[str, Any]:
    """Take `given_keys` out of the user's options. Return their values as one section of S-VRT.

    E.g. the keys `spike_reconstruction` "middle_tfp" and `middle_tfp_center` 44 give {"type":
    "middle_tfp", "middle_tfp_center": 44}. If two keys give one parameter different values, e.g.
    the types "tfp" and "tfi", the first value stays, and `conversion.problems` gets a problem.

    center_key: the key that holds the center, the number of the plane in the middle. Each other key
        holds a section, or only the type.
    key_of_problems: the key that a problem names, e.g. `datasets.train.spike.reconstruction`
    """
    joined: dict[str, Any] = {}
    for given_key in given_keys:
        given = conversion.take(given_key)
        if isinstance(given, dict):
            section = given
        elif given_key == center_key:
            section = {"middle_tfp_center": given}
        else:
            section = {"type": given}

        for name, value in section.items():
            if value is None:  # null: as if the parameter were missing
                continue
            if name not in joined:
                joined[name] = value
            first = joined[name]  # the value of the first key that has this name
            if first != value:
                both_keys = f"{given_key}, {key_of_problems}.{name}"
                conversion.problems[both_keys] = Problem(
                    what=f"{value!r} and {first!r} are given", do=f"give --drop {given_key}"
                )
    return joined


# ---- Our counterpart --------------------------------------------------------------------------

# How the channels of S-VRT differ from ours, for the report.
# test_the_rounding_of_s_vrt_lowers_a_channel_by_0_002_on_average measures these numbers.
ROUNDED = (
    "S-VRT rounds a channel down to a multiple of 1/255: our channel, in [0, 1], is 0.002 "
    "higher on average, at most 0.004"
)
# Here h is `half_window`, the number of planes on each side.
STRETCHED = (
    "S-VRT averages 2 h planes and stretches each frame to [0, 1] by its minimum and maximum, "
    "which loses the brightness; our channel is the mean of 2 h + 1 planes, not stretched"
)


class Counterpart(NamedTuple):
    """Our representation that replaces a representation of S-VRT."""

    representation: dict[str, Any]  # the section spike.representation
    # Number of its channels. None: the number is not compared with `spike_channels` of the file.
    channels: int | None
    difference: str  # how its channels differ from the channels of S-VRT, or ""


def _counterpart_of(reconstruction: Reconstruction) -> Counterpart | None:
    """Return our representation in place of a representation of S-VRT. Returns None without one."""
    # A file may hold anything in place of the name. E.g. a list cannot be looked up in a dict.
    if not isinstance(reconstruction.kind, str):
        return None
    return _counterparts(reconstruction).get(reconstruction.kind)


def _counterparts(reconstruction: Reconstruction) -> dict[str, Counterpart]:
    """Return the counterpart of each representation of S-VRT: {its name in S-VRT: counterpart}.

    Each name is a way to turn spike planes into channels (data/spike/represent.py):

        tfp, middle_tfp     the mean of the planes around a time
        tfi                 one over the number of planes from one spike to the next
        raw                 the planes themselves
        encoding25          windows of 25 planes

    A new name of S-VRT needs only an entry here, and a case of
    test_each_other_representation_of_s_vrt_becomes_one_of_ours.
    """
    half_window = reconstruction.half_window
    bins = reconstruction.bins
    window = reconstruction.window
    tfp = {"type": "tfp", "half_window": half_window}
    tfp_of_bins = Counterpart({**tfp, "num_bins": bins}, channels=bins, difference=ROUNDED)
    middle_tfp = Counterpart(tfp, channels=1, difference=f"{STRETCHED}, h = {half_window}")
    tfi = Counterpart({"type": "tfi", "half_window": half_window}, channels=1, difference=ROUNDED)
    raw = Counterpart({"type": "raw", "window": window}, channels=window, difference="")
    encoding25 = Counterpart(
        {"type": "encoding25", "num_windows": bins}, channels=None, difference=""
    )
    return {
        "spikecv_tfp": tfp_of_bins,
        "tfp": tfp_of_bins,
        "spikecv_tfi": tfi,
        "tfi": tfi,
        "middle_tfi": tfi,
        "raw_window": raw,
        "raw": raw,
        "middle_tfp": middle_tfp,
        "encoding25": encoding25,
    }


def _set_representation(conversion: Conversion, split: str, counterpart: Counterpart) -> None:
    """Set `spike.representation`, and report how its channels differ from the channels of S-VRT.

    The report always names the key `spike.reconstruction` of S-VRT, even if the file has
    `spike_reconstruction` in its place, or neither of the two.
    """
    reported_key = f"{split}.spike.reconstruction"
    new_key = f"{split}.spike.representation"
    conversion.set_ours(new_key, counterpart.representation, old=reported_key)
    if counterpart.difference:
        conversion.differences[reported_key] = counterpart.difference


def _set_center(conversion: Conversion, split: str, reconstruction: Reconstruction) -> None:
    """Set `spike.center` for "middle_tfp". For other names, report that the center is left out."""
    if reconstruction.center is None:
        return
    center_key = f"{split}.middle_tfp_center"
    if reconstruction.kind == "middle_tfp":
        conversion.set_ours(f"{split}.spike.center", reconstruction.center, old=center_key)
    else:
        conversion.dropped[center_key] = f"only middle_tfp uses it, not {reconstruction.kind}"


def _compare_channels(
    conversion: Conversion, channels_key: str, channels: Any, counterpart: Counterpart
) -> None:
    """Report `spike_channels` as dropped, or as a problem if the representation has other channels.

    The new file has no such key, because our number of channels follows from the representation.

    channels_key: the key of `spike_channels`, e.g. `datasets.train.spike_channels`
    channels: the value of this key in the file of S-VRT, or None if the file does not have it
    """
    if channels is None:
        return
    our_channels = counterpart.channels
    if our_channels and channels != our_channels:
        section = json.dumps(counterpart.representation)
        conversion.problems[channels_key] = Problem(
            what=f"{channels}, but {section} has {our_channels} channels",
            do=f"give --drop {channels_key}, or correct the reconstruction",
        )
    else:
        conversion.dropped[channels_key] = "it follows from the representation"

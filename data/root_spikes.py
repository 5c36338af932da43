"""Say how the spikes of a data root are read, from the options and its dataset.json.

    spikes_of           how the spikes of each clip of a root are read
    properties_of       the properties of the training spikes that are stored with the weights
    common_properties   these properties for several roots together

A plane is one read-out of the spike camera, with one bit for each pixel. dataset.json lies beside
the spike files and describes them (docs/data_reference.md). What happens if both the options and
dataset.json give a value:

    h, w, flip, light   an error if the two values differ (agreed_values.py)
    rate                an error if the two numbers differ. The option "match" is no number: it
                        measures the rate of each clip, so nothing is compared
    center              a number or "file" in the options replaces `gt_plane` of dataset.json
    calibration         the options decide: "recorded" takes the calibration of dataset.json,
                        and without the key, spikes and frames are taken as aligned

What must stay: keys and values of the properties, because they are stored with the weights, and a
test compares them with its own spikes. A new key needs a default for weights that lack it.
`ClipSources.spike_data` (data/clip_sources.py) explains each key.

Tests: tests/parts/data/test_manifest.py (the properties of several roots),
tests/parts/data/test_timing.py
"""

from pathlib import Path
from typing import Any

from data.cameras import spike_source
from data.cameras.calibration import Calibration, load_calibration
from data.cameras.dataset_info import DatasetInfo, load_info
from data.clips.manifest import Source
from utils.errors import DataError


def spikes_of(
    section: Any, folder: str
) -> tuple[spike_source.DatSpikes, dict[str, spike_source.DatSpikes]]:
    """Return the spike settings of most clips in `folder`, and {clip: its own settings}.

    The settings (`DatSpikes` in data/cameras/spike_source.py) say how spikes are read. dataset.json
    says which clips need settings of their own, e.g. because of another firing rate.

    section: the section `spike` of the options.
    folder: dataroot_spike.
    """
    # Without h in the options, the size of a plane usually comes from dataset.json in this folder.
    # An error about a missing size would mislead if the folder itself is missing.
    if section.h is None and not Path(folder).is_dir():
        raise DataError(
            what="no such folder of spikes",
            where=folder,
            expected="a folder with one folder per clip",
            do="correct dataroot_spike, or make the data (docs/data_format.md)",
        )
    info = load_info(folder)
    # Makes the `DatSpikes` of most clips from the options and dataset.json.
    usual_spikes = spike_source.SPIKE_SOURCES.build(section, "spike", info=info)
    own_spikes = {}
    for name in info.clips:
        info_of_clip = info.of_clip(name)
        # `of_clip` returns `info` itself if the clip does not differ.
        if info_of_clip is not info:
            own_spikes[name] = spike_source.SPIKE_SOURCES.build(section, "spike", info=info_of_clip)
    return usual_spikes, own_spikes


def properties_of(section: Any, info: DatasetInfo) -> dict[str, Any]:
    """Return the properties of the training spikes of a single root.

    `ClipSources.spike_data` (data/clip_sources.py) explains the keys of the result.

    section: the section `spike` of the options. If it has a rate, the rate of dataset.json is not
    used.
    info: what dataset.json of the root says. `trained_rate` is the rate for a training on all its
    clips: a number, "match" if the clips differ, or None if it is not known.
    """
    rate = section.rate
    if rate is None:  # the options give no rate, so take the rate of dataset.json
        rate = info.trained_rate
    # If the options and dataset.json both lack the light, the spikes integrate linear light, as in
    # a real camera.
    light = section.light or info.light or "linear"
    properties = {
        "rate": rate,
        "light": light,
        "center": section.center,
        "planes": info.planes,
        "gt_plane": info.gt_plane,
    }
    calibration = _calibration_of_all_clips(section.calibration, info)
    if calibration is not None:
        properties["calibration"] = calibration.plain()
    return properties


def _calibration_of_all_clips(option: str | None, info: DatasetInfo) -> Calibration | None:
    """Return the calibration that all clips of a root have, or None.

    option: the option spike.calibration.
    info: what dataset.json of the root says.
    """
    if option is None:  # both cameras see the same picture, so there is no calibration
        return None
    if option == "auto":  # each clip is calibrated from its own frames
        return None
    # The calibration in dataset.json, if there is one. `info.calibration` is its content, and
    # `info.path` is only for messages.
    if option == "recorded":
        return load_calibration(info.path, info.calibration) if info.calibration else None
    return load_calibration(option)  # the path of a file


def common_properties(properties_of_roots: list[dict[str, Any]]) -> dict[str, Any]:
    """Join the properties of several roots, with one value for each property.

    `ClipSources.spike_data` (data/clip_sources.py) explains the keys. E.g. the planes 40 and 56
    become None, because the roots differ. The rates 0.5 and 0.7 become "match": each clip has its
    own rate.

    A root without a calibration has no key "calibration". The keys of the result are the keys of
    the first root. So if the calibrations differ, the first root decides. If the first root has a
    calibration, the result has the calibration None. If the first root has no calibration, the
    result has no key "calibration".
    """
    # If the roots have different values of a property, the result has the value of this dict. If
    # the dict lacks the property, the result has None. Different light becomes "linear". This is
    # the default of spike.light, because real cameras integrate linear light.
    if_different = {"rate": None, "light": "linear"}
    if all(properties["rate"] is not None for properties in properties_of_roots):
        if_different["rate"] = "match"
    common_values = {}
    for key, value in properties_of_roots[0].items():
        is_same = all(properties.get(key) == value for properties in properties_of_roots)
        common_values[key] = value if is_same else if_different.get(key)
    return common_values


def is_auto(source: Source) -> bool:
    """Return whether a clip of a source may be calibrated from its own frames and spikes."""
    settings_of_clips = [source.spikes, *source.own_spikes.values()]
    return any(spikes is not None and spikes.is_auto for spikes in settings_of_clips)


def is_rate_assumed(source: Source) -> bool:
    """Return whether the firing rate at full light is unknown, so that 1 is assumed."""
    # `is_rate_known`: the option spike.rate gives a rate, or the representation uses no rate.
    # `trained_rate`: the rate in dataset.json.
    spikes = source.spikes
    if not spikes:
        return False
    return not spikes.is_rate_known and spikes.info.trained_rate is None

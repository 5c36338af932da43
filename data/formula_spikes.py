"""Change the options of spikes so that the spikes are read for a formula (data/reconstruct.py).

A plane is one read-out of the spike camera, with one bit for each pixel. A formula decides some
keys of the section `spike` itself (`SET_BY_METHOD`). All other keys stay as they are, e.g. h, w and
exposure. The firing rate at full light is taken from the options, or else from dataset.json. If
both lack the rate, `spike_section` sets the rate to "match", so that it is measured from the
frames. For a user's clip, data/cameras/user_spikes.py reads the section next. Then the rate is
known or measured, so no rate need be assumed.

    spike_section      the section `spike`, of a user's clip or of a test set
    section_for        the whole section `datasets.test`
    refuse_channels    refuses a test set that has no spike files

What must stay: the keys that a formula decides, and their values, because published scores belong
to them.

Tests: tests/stories/test_reconstruct.py
"""

import logging
from typing import Any

from data.cameras.spike_source import SPIKE_SOURCES
from data.reconstruct import Reconstruction
from utils.errors import OptionError
from utils.options.loader_options import LoaderOptions

# Keys of the spike section that a formula sets itself. (The code calls a formula `method`, because
# --method names the formula.) A user cannot set them: main_test_vrt.py refuses them. The dict
# `set_by_method` in `spike_section` has a value for each of these keys. So change the tuple and the
# dict together.
SET_BY_METHOD = ("representation", "gamma", "resize", "context")

logger = logging.getLogger(__name__)


def spike_section(section: Any, method: Reconstruction, recorded: float | None) -> Any:
    """Return a spike section for a method. The method decides the keys of `SET_BY_METHOD`.

    section: the section `spike` of the options.
    recorded: the firing rate at full light in dataset.json. None: dataset.json has no rate. If the
    section has no rate either, the rate is measured from the brightness of the frames (spike.rate
    "match"), and a warning says so.
    """
    set_by_method = {
        "representation": method.options,
        "gamma": method.formula.gamma,
        "resize": "bilinear",  # for smooth pictures. "nearest" is for raw planes of 0 and 1
        "context": 0,  # no method uses planes outside of the exposure
    }
    # A key of the method replaces the key of the section.
    values = {**section.plain(), **set_by_method}
    spike: Any = SPIKE_SOURCES.resolve(values, "spike")
    if spike.rate is not None or recorded is not None:
        return spike
    logger.warning(
        "the firing rate at full light is not known and measured from the brightness of the frames "
        "(spike.rate=match); give spike.rate if you know it"
    )
    return spike.model_copy(update={"rate": "match"})


def section_for(method: Reconstruction, section: Any, path: str, scale: int) -> LoaderOptions:
    """Return the section `datasets.test` so that its spikes are read for a method.

    section: the section of the option file `path`.
    scale: `scale` of the file.
    Raises OptionError if the method cannot be applied.
    """
    if not section.spike_channels:
        raise OptionError(
            what="datasets.test has no spikes",
            where=path,
            expected="an RGB + spike test set",
            do="choose another option file",
        )
    if scale != 1:
        raise OptionError(
            what=f"scale is {scale}",
            where=path,
            expected="1: a formula gives frames of the size of the input",
            do="choose another option file",
        )
    refuse_channels(section, path)
    # `constructor` is the class of the dataset. Its method `spike_data` returns the properties of
    # the spikes.
    recorded_rate = section.constructor.spike_data(section)["rate"]
    changed_spike = spike_section(section.spike, method, recorded_rate)
    return section.model_copy(update={"spike": changed_spike})


def refuse_channels(section: Any, path: str) -> None:
    """Raise OptionError if a test set gives only channels, and no spike files.

    A method reads the planes of an exposure itself. But a user may have registered a test set that
    computes the channels for a network in Python, without spike files (docs/extending.md).

    section: the section `datasets.test` of the option file `path`.
    """
    if hasattr(section.constructor, "spike_data"):
        return
    raise OptionError(
        what="this method reads spike files, and datasets.test "
        f"({section.dataset_type}) gives channels",
        where=path,
        expected="a test set of spike files, e.g. TestDatasetRGBSpike",
        do="choose another option file, or restore with a network",
    )

"""Decide how a user's own spikes are read for a network that was trained on other spikes.

A network expects channels of a known rate (spikes per plane at full light; a plane is one read-out
of the spike camera) and light ("linear" light or "display" values). If the rate or the light of a
user's spikes is not known, `user_spikes` assumes:

    light   the light of the training
    rate    measured from the brightness of the frames ("match"), if the training had a rate. If the
            training had no rate, or is not known, the rate is 1: the firing rates are not divided.
            A warning says which rate is assumed

`user_spikes` also reads the spikes for a formula (--method). For a formula, the rate is never
unknown, because data/formula_spikes.py has already set an unknown rate to "match", with a warning
of its own.

What must stay: the assumed values, because results of users depend on them. The words of the
warnings may change.

Tests: tests/parts/data/test_spike_source.py, tests/parts/data/test_user_folders.py
"""

import logging
from typing import Any

from data.cameras.dataset_info import DatasetInfo
from data.cameras.spike_source import SPIKE_SOURCES, DatSpikes

logger = logging.getLogger(__name__)


def user_spikes(
    section: Any, trained: dict[str, Any] | None, info: DatasetInfo, clip: str
) -> DatSpikes:
    """Return how a user's spikes are read for a trained network. Warns if a rate is assumed.

    section: the section spike of the network.
    trained: properties of the training spikes (`ClipSources.spike_data`), such as {"rate": 0.5,
    "light": "linear"}. None if they are not known.
    info: what is known about the user's spikes. clip: name of the clip, for the warnings.
    """
    source = SPIKE_SOURCES.build(section, "spike", info=info)
    _warn_if_taken_as_aligned(source, trained, clip)
    # A representation that ignores the light, such as "raw", also ignores the rate. In this case,
    # no value is assumed.
    if "light" in source.without_effect:
        return source

    light = section.light or info.light
    if light is None and trained:  # test_light_that_nobody_gives_is_taken_from_the_training
        light = trained.get("light")
    changes = {"light": light}
    if not source.is_rate_known:  # always known with a formula, see the head of this file
        # If the training had no rate, spike.rate stays unset, which means the rate 1.
        had_rate = trained is not None and trained["rate"] is not None
        if had_rate:  # without "match", test_a_rate_that_nobody_gives_is_as_in_training fails
            changes["rate"] = "match"
        _warn_of_unknown_rate(clip, had_rate, light)
    return SPIKE_SOURCES.build(section.model_copy(update=changes), "spike", info=info)


def _warn_of_unknown_rate(clip: str, is_measured: bool, light: str | None) -> None:
    """Warn that the rate of a user's spikes is not known, and say what is assumed.

    is_measured: True if the rate is measured, False if the rate is taken as 1.
    light: the light of the training, "linear" or "display", for the message.
    """
    if is_measured:
        rate_in_words = (
            f"measured from the brightness of the frames, which show {light} light as in "
            "training (spike.rate=match)"
        )
    else:
        rate_in_words = (
            "taken as 1, as for a network that learned from undivided firing rates of the same "
            "camera"
        )
    logger.warning(
        "spikes of %s: the firing rate at full light is not known and %s; give spike.rate if "
        "you know it",
        clip,
        rate_in_words,
    )


def _warn_if_taken_as_aligned(source: DatSpikes, trained: dict[str, Any] | None, clip: str) -> None:
    """Warn if the user's spikes have no calibration, but the spikes of the training had one.

    source: settings that say how the spikes are read. clip: name of the clip, for the warning.
    trained: properties of the training spikes. None: they are not known.
    """
    is_calibrated = source.calibration or source.is_auto
    if trained is None or is_calibrated:
        return
    if trained.get("calibration"):
        logger.warning(
            "spikes of %s: taken as aligned with the frames; the network was trained on those of a "
            "second camera: give spike.calibration if these are, too",
            clip,
        )

"""What a spike section says of spikes: fixed once built, and the picture that its channels show."""

import dataclasses

import numpy as np
import pytest

from data.cameras.spike_info import DatasetInfo
from data.cameras.spike_source import DatSpikes
from data.clips.clip_reader import user_clips
from tests.helpers.clip_files import write_dat, write_png
from utils.errors import DataError

PLANES = 201
COUNTS = np.array([[20, 40], [80, 160]])  # spikes of each of 2 x 2 pixels


def source(**options):
    return DatSpikes(DatasetInfo(), h=2, w=2, center="file", **options)


def even_spikes():
    """(201, 2, 2): each pixel fires at one rate, from the first plane to the last."""
    planes = np.arange(PLANES)[:, None, None]
    fired = np.floor(planes * COUNTS / PLANES)
    return (np.diff(fired, axis=0, append=COUNTS[None]) > 0).astype(np.uint8)


@pytest.mark.parametrize("field", [each.name for each in dataclasses.fields(DatSpikes)])
def test_a_source_cannot_be_changed_in_place(field):
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(source(), field, 1)


def test_a_changed_source_leaves_the_first_one_as_it_was():
    first = source(rate=0.5)

    other = first.changed(context=7, center=3)

    assert (first.context, first.center, first.rate) == (0, "file", 0.5)
    assert (other.context, other.center, other.rate) == (7, 3, 0.5)


def test_a_field_that_a_source_does_not_have_cannot_be_changed():
    with pytest.raises(TypeError, match="DatSpikes has no centre"):
        source().changed(centre=3)


@pytest.mark.parametrize("light, power", [("linear", 1 / 2.2), ("display", 1.0)])
@pytest.mark.parametrize("gamma", [1.0, 2.2])
def test_ratios_are_shown_as_the_light_of_the_scene(light, power, gamma):
    spikes = source(
        light=light, gamma=gamma, representation={"type": "relative", "half_windows": [20, 90]}
    )
    (exposure,) = spikes.exposures("clip", [("file", PLANES)], 1)
    channels = spikes.represent(even_spikes(), exposure.center, rate=1.0)

    found = spikes.sharp_image(channels, exposure)

    assert found == pytest.approx((COUNTS / 160) ** power, rel=0.08)


@pytest.mark.parametrize(
    "representation",
    [{"type": "tfp", "half_window": 100}, {"type": "voxel", "num_bins": 1}],
    ids=lambda each: each["type"],
)
@pytest.mark.parametrize("light, power", [("linear", 1 / 2.2), ("display", 1.0)])
@pytest.mark.parametrize("gamma", [1.0, 2.2])
def test_firing_rates_are_shown_as_display_values(representation, light, power, gamma):
    spikes = source(light=light, gamma=gamma, representation=representation)
    (exposure,) = spikes.exposures("clip", [("file", PLANES)], 1)
    channels = spikes.represent(even_spikes(), exposure.center, rate=1.0)

    found = spikes.sharp_image(channels, exposure)

    assert found == pytest.approx((COUNTS / PLANES) ** power, rel=0.01)


def test_a_file_with_fewer_planes_than_frames_is_refused(tmp_path):
    for frame in range(12):
        write_png(tmp_path / f"frames/{frame:02d}.png", np.full((4, 4), 50))
    write_dat(tmp_path / "few.dat", np.zeros((5, 4, 4), np.uint8))
    options = {"type": "dat", "h": 4, "w": 4, "center": "file", "rate": 1.0}

    with pytest.raises(DataError, match="frame 0 of clip frames needs planes 0 to -1 "):
        user_clips(tmp_path / "frames", tmp_path / "few.dat", spike_options=options)

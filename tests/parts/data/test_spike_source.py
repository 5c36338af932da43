"""What a spike section says of spikes: fixed once built, and the picture that its channels show."""

import dataclasses

import numpy as np
import pytest

from data.cameras.spike_info import DatasetInfo, nearest_info
from data.cameras.spike_source import SPIKE_SOURCES, DatSpikes, user_spikes
from data.clips.clip_reader import user_clips
from tests.helpers.clip_files import write_dat, write_png
from utils.errors import DataError, OptionError

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


RATE_OF_TRAINING = {"rate": 0.5, "light": "linear", "center": "gt", "planes": 24, "gt_plane": 12}


def user_source(trained, **options):
    section = SPIKE_SOURCES.resolve({"type": "dat", "h": 2, "w": 2, **options}, "spike")
    return user_spikes(section, trained, DatasetInfo(), "holiday")


@pytest.mark.parametrize(
    "trained, rate, words",
    [
        (None, 1.0, "taken as 1"),
        (
            RATE_OF_TRAINING,
            "match",
            "measured from the brightness of the frames, which show linear",
        ),
        (RATE_OF_TRAINING | {"rate": None}, 1.0, "taken as 1"),
        (RATE_OF_TRAINING | {"rate": "match"}, "match", "measured"),
    ],
    ids=["unknown training", "divided", "undivided", "measured"],
)
def test_a_rate_that_nobody_gives_is_as_in_training(caplog, trained, rate, words):
    found = user_source(trained)

    assert found.rate == rate and caplog.text.count("spikes of holiday: the firing rate") == 1
    assert words in caplog.text


@pytest.mark.parametrize("trained", [None, RATE_OF_TRAINING])
def test_a_rate_that_the_user_gives_is_used_without_a_word(caplog, trained):
    assert user_source(trained, rate=0.7).rate == 0.7 and not caplog.text


def test_light_that_nobody_gives_is_that_of_the_training(caplog):
    assert user_source(RATE_OF_TRAINING | {"light": "display"}, rate=1.0).light == "display"
    assert user_source(RATE_OF_TRAINING | {"light": "display"}, rate=1.0, light="linear").light == (
        "linear"
    )
    assert user_source(None, rate=1.0).light == "linear"


@pytest.mark.parametrize(
    "options, is_warned",
    [({}, True), ({"calibration": "auto"}, False)],
    ids=["aligned", "auto"],
)
def test_spikes_for_a_network_of_two_cameras_are_said_to_be_taken_as_aligned(
    caplog, options, is_warned
):
    user_source(RATE_OF_TRAINING | {"calibration": {"format": 1}}, rate=1.0, **options)

    assert ("taken as aligned with the frames" in caplog.text) == is_warned


def test_only_a_representation_with_a_centre_needs_the_plane_of_the_sharp_frame():
    files = [("file", 25)]
    for representation in (
        {"type": "encoding25"},
        {"type": "encoding25", "num_windows": 2, "spacing": 10},
        {"type": "tfp", "half_window": 2},
    ):
        needs = DatSpikes(DatasetInfo(), h=2, w=2, representation=representation)
        with pytest.raises(OptionError, match="the plane of the sharp frame is not known"):
            needs.exposures("clip", files, 1)
    whole = DatSpikes(DatasetInfo(), h=2, w=2, representation={"type": "tfp", "num_bins": 3})

    (exposure,) = whole.exposures("clip", files, 1)

    assert exposure.center == 12


def test_exposures_beside_a_window_are_refused():
    exposure = {"start": 0.0, "length": 2.0, "period": 2.0}
    for window in ({"first": 1}, {"count": 1}, {"first": "central"}):
        with pytest.raises(OptionError, match="exclude one another"):
            source(exposure=exposure, **window)
    source(exposure=exposure)


@pytest.mark.parametrize(
    "planes, center", [(48, None), (49, 24), (56, 24), (57, None)], ids=lambda each: str(each)
)
def test_a_name_of_spk_gopro_tells_the_sharp_plane_of_files_of_its_length(planes, center):
    assert DatasetInfo().gt_plane_of("GOPR0372_07_00", planes) == center


@pytest.mark.parametrize("name", ["GOPR0372_00_00", "GOPR0372_7_00", "clip"])
def test_other_names_tell_no_sharp_plane(name):
    assert DatasetInfo().gt_plane_of(name, 56) is None


@pytest.mark.parametrize("place", [".", "root", "root/train/c"])
def test_the_dataset_json_above_a_spike_file_is_found(tmp_path, place):
    write_dat(tmp_path / "root/train/c/spike/0.dat", np.zeros((1, 2, 4), np.uint8))
    (tmp_path / place / "dataset.json").write_text('{"format": 1, "h": 2, "w": 4}')

    file = nearest_info(tmp_path / "root/train/c/spike/0.dat")
    folder = nearest_info(tmp_path / "root/train/c/spike")

    assert (file.h, folder.h) == (2, 2)


def test_a_dataset_json_far_above_belongs_to_other_files(tmp_path):
    write_dat(tmp_path / "far/other/root/train/c/spike/0.dat", np.zeros((1, 2, 4), np.uint8))
    (tmp_path / "far/dataset.json").write_text('{"format": 1, "h": 2, "w": 4}')

    for path in ("far/other/root/train/c/spike/0.dat", "far/other/root/train/c/spike"):
        assert nearest_info(tmp_path / path) == DatasetInfo()

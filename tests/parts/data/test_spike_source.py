"""data/cameras/spike_source.py: what the options say about the spikes of a clip.

The section `spike` of the options becomes a `DatSpikes`, called a source here. A source cannot be
changed. A source holds the rate, the light and the timing of the spikes, and makes their channels.
Many tests use planes of 2 x 2 pixels, which fire 20, 40, 80 and 160 times in 201 planes.

Words of this file:

    plane           what the spike camera records at one instant: one bit for each pixel
    exposure        the planes that belong to a frame
    sharp plane     the plane at the moment of the sharp frame; the option `center` says which one
    channels        what the network gets: the planes of a frame, turned into a few pictures
    representation  how planes become channels, e.g. "tfp": the mean of the planes in a window
    rate            spikes per plane of a pixel in full light
    light           what the spike camera integrates: "linear" light, or "display" values
"""

import dataclasses

import numpy as np
import pytest

from data.augment import Augment
from data.cameras.channels_of_frame import rate_of
from data.cameras.dataset_info import DatasetInfo, nearest_info
from data.cameras.frame_planes import exposures_of
from data.cameras.sharp_image import sharp_image
from data.cameras.spike_source import SPIKE_SOURCES, DatSpikes
from data.cameras.user_spikes import user_spikes
from data.clips.clip_reader import user_clips
from tests.helpers.clip_files import write_dat, write_png
from utils.errors import DataError, OptionError

# Number of planes.
PLANES = 201
# Spikes of each of 2 x 2 pixels in these planes.
COUNTS = np.array([[20, 40], [80, 160]])
# Exponent from light to display values.
TO_DISPLAY = 1 / 2.2


def source(**options):
    """Return a source of planes of 2 x 2 pixels.

    Its sharp plane is the middle plane of each file. options: keys of the section `spike`.
    """
    return DatSpikes(DatasetInfo(), h=2, w=2, center="file", **options)


def even_spikes():
    """Return planes (201, 2, 2), in which each pixel fires at nearly equal intervals.

    The pixel with 20 spikes collects 20 / 201 of a spike in each plane. It fires in the planes in
    which its sum reaches the next whole number. E.g. the sum of 11 planes is 11 x 20 / 201 = 1.09,
    so the pixel fires in plane 10, the eleventh plane.
    """
    plane = np.arange(PLANES)[:, None, None]
    count_before = np.floor(plane * COUNTS / PLANES)
    spikes_in_plane = np.diff(count_before, axis=0, append=COUNTS[None])
    return (spikes_in_plane > 0).astype(np.uint8)


# ---- A source is fixed ----


@pytest.mark.parametrize("field", [each.name for each in dataclasses.fields(DatSpikes)])
def test_a_source_cannot_be_changed_in_place(field):
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(source(), field, 1)


def test_a_changed_source_has_the_changed_fields():
    other = source(rate=0.5).changed(context=7, center=3)

    assert other.context == 7
    assert other.center == 3
    assert other.rate == 0.5


def test_a_changed_source_leaves_the_first_one_as_it_was():
    first = source(rate=0.5)

    first.changed(context=7, center=3)

    assert first.context == 0
    assert first.center == "file"
    assert first.rate == 0.5


def test_a_field_that_a_source_does_not_have_cannot_be_changed():
    with pytest.raises(TypeError, match="DatSpikes has no centre"):
        source().changed(centre=3)


# ---- The planes of each frame ----


def test_a_file_that_is_too_short_is_found_behind_files_that_are_not():
    spikes = source(representation={"type": "raw", "window": 15})  # needs 15 planes of each file

    # There is one file for each of three frames: (name, number of planes).
    with pytest.raises(DataError, match="5 planes are too few") as error:
        exposures_of(spikes, "clip", [("0.dat", 56), ("1.dat", 56), ("2.dat", 5)], frames=3)

    assert error.value.where == "2.dat"


# ---- The rate that is measured ----


@pytest.mark.parametrize(
    ("color", "luma"),
    [
        pytest.param((0, 0, 255), 0.299, id="red"),
        pytest.param((0, 255, 0), 0.587, id="green"),
        pytest.param((255, 0, 0), 0.114, id="blue"),
    ],
)
def test_the_measured_rate_knows_how_bright_each_color_is(color, luma):
    spikes = source(rate="match")
    picture = np.full((2, 2, 3), color, np.uint8)  # B, G, R, all pixels alike
    window = spikes.grid((2, 2)).window(Augment(0, 0, 2, 2))  # the whole picture

    rate = rate_of(spikes, even_spikes(), picture, window)

    # These pixels fire COUNTS.mean() / PLANES times per plane on average. The picture is as bright
    # as `luma` times full light. The rate is the number of spikes per plane at full light, so the
    # measured number is divided by `luma`.
    assert rate == pytest.approx(COUNTS.mean() / PLANES / luma)


# ---- The picture that channels show ----
#
# The pictures are for people, so they have display values, light ** (1 / 2.2). The channels are
# light ** (1 / gamma), where gamma is the option spike.gamma. The picture undoes gamma, so it must
# be the same for each gamma.

# (light, power): what the spike camera integrates, and the exponent from the spikes of a pixel to
# its display value. A camera of display values needs no exponent, so its power is 1.
LIGHTS = [
    pytest.param("linear", TO_DISPLAY, id="camera of light"),
    pytest.param("display", 1.0, id="camera of display values"),
]


def picture_of_even_spikes(spikes):
    """Return the picture (2, 2) that the channels of the even spikes show."""
    # The clip has one frame. Its spikes are all 201 planes of one file. The sharp plane,
    # exposure.center, is the middle one: plane 100.
    (exposure,) = exposures_of(spikes, "clip", [("file", PLANES)], frames=1)
    channels = spikes.represent(even_spikes(), exposure.center, rate=1.0)
    return sharp_image(spikes, channels, exposure)


@pytest.mark.parametrize(("light", "power"), LIGHTS)
@pytest.mark.parametrize("gamma", [1.0, 2.2])
def test_ratios_are_shown_as_the_light_of_the_scene(light, power, gamma):
    relative = {"type": "relative", "half_windows": [20, 90]}

    found = picture_of_even_spikes(source(light=light, gamma=gamma, representation=relative))

    # Ratios have no scale, so the picture makes its brightest pixel white: the pixel with 160
    # spikes. The channels are ratios to the light of the exposure, and a confidence. The picture
    # estimates the number of spikes in the exposure from the confidence. The largest error that was
    # measured here is 0.2 %, so 1 % is allowed.
    assert found == pytest.approx((COUNTS / 160) ** power, rel=0.01)


@pytest.mark.parametrize(
    "representation",
    [
        pytest.param({"type": "tfp", "half_window": 100}, id="tfp"),
        pytest.param({"type": "voxel", "num_bins": 1}, id="voxel"),
    ],
)
@pytest.mark.parametrize(("light", "power"), LIGHTS)
@pytest.mark.parametrize("gamma", [1.0, 2.2])
def test_firing_rates_are_shown_as_display_values(representation, light, power, gamma):
    found = picture_of_even_spikes(source(light=light, gamma=gamma, representation=representation))

    # Both representations have one channel, the mean of all planes: the spikes per plane. Only the
    # rounding of float32 may differ, about 1e-7.
    assert found == pytest.approx((COUNTS / PLANES) ** power, rel=1e-5)


# ---- A user's spikes, if the user gives few options ----

# What a file of weights stores about the spikes of its training. "rate" says how the spikes were
# divided, so that the channels show light:
#
#     0.5        the spikes were divided by 0.5
#     "match"    the spikes were divided by a rate that was measured from the frames
#     None       the spikes were not divided
TRAINED = {"rate": 0.5, "light": "linear", "center": "gt", "planes": 24, "gt_plane": 12}


def user_source(trained, **options):
    """Return the source of a user's clip. options: keys of the section `spike`.

    trained: what the weights store about the spikes in training, or None without weights.
    """
    section = SPIKE_SOURCES.resolve({"type": "dat", "h": 2, "w": 2, **options}, "spike")
    return user_spikes(section, trained, DatasetInfo(), "holiday")


@pytest.mark.parametrize(
    ("trained", "rate", "message"),
    [
        pytest.param(None, 1.0, "taken as 1", id="unknown training"),
        pytest.param(
            TRAINED,
            "match",
            "measured from the brightness of the frames, which show linear",
            id="divided",
        ),
        pytest.param(TRAINED | {"rate": None}, 1.0, "taken as 1", id="undivided"),
        pytest.param(TRAINED | {"rate": "match"}, "match", "measured", id="measured"),
    ],
)
def test_a_rate_that_nobody_gives_is_as_in_training(caplog, trained, rate, message):
    # If the spikes of the training were divided by a rate, the user's spikes must be divided, too.
    # The rate of the training, 0.5, belongs to another camera. So the rate of the user's spikes is
    # measured from the frames ("match"). If the spikes of the training were not divided, the rate
    # is 1.
    found = user_source(trained)

    assert found.rate == rate
    assert caplog.text.count("spikes of holiday: the firing rate") == 1
    assert message in caplog.text


@pytest.mark.parametrize(
    "trained", [pytest.param(None, id="unknown training"), pytest.param(TRAINED, id="divided")]
)
def test_a_rate_that_the_user_gives_is_used_without_a_word(caplog, trained):
    found = user_source(trained, rate=0.7)

    assert found.rate == 0.7
    assert not caplog.text


def test_light_that_nobody_gives_is_taken_from_the_training():
    assert user_source(TRAINED | {"light": "display"}, rate=1.0).light == "display"


def test_light_that_the_user_gives_is_used():
    trained = TRAINED | {"light": "display"}

    assert user_source(trained, rate=1.0, light="linear").light == "linear"


def test_light_is_linear_if_the_training_is_unknown():
    assert user_source(None, rate=1.0).light == "linear"


# The weights of a network of two cameras store a calibration: in training, the spike camera had
# another view than the RGB camera.
TRAINED_ON_TWO_CAMERAS = TRAINED | {"calibration": {"format": 1}}


def test_a_network_of_two_cameras_warns_of_spikes_without_a_calibration(caplog):
    user_source(TRAINED_ON_TWO_CAMERAS, rate=1.0)

    # Without a calibration, the spikes are read as if both cameras had the same view.
    assert "taken as aligned with the frames" in caplog.text


def test_a_network_of_two_cameras_does_not_warn_if_the_calibration_is_found_from_the_clip(caplog):
    user_source(TRAINED_ON_TWO_CAMERAS, rate=1.0, calibration="auto")

    assert "taken as aligned with the frames" not in caplog.text


# ---- The sharp plane ----


def test_a_file_with_fewer_planes_than_frames_is_refused(tmp_path):
    for frame in range(12):
        write_png(tmp_path / f"frames/{frame:02d}.png", np.full((4, 4), 50))
    write_dat(tmp_path / "few.dat", np.zeros((5, 4, 4), np.uint8))
    options = {"type": "dat", "h": 4, "w": 4, "center": "file", "rate": 1.0}

    # 12 frames share 5 planes. Frame 0 gets the planes up to 5 / 12, rounded down: no plane.
    with pytest.raises(DataError, match="frame 0 of clip frames gets no plane "):
        user_clips(tmp_path / "frames", tmp_path / "few.dat", spike_options=options)


@pytest.mark.parametrize(
    "representation",
    [
        pytest.param({"type": "encoding25"}, id="one window of 25 planes"),
        pytest.param(
            {"type": "encoding25", "num_windows": 2, "spacing": 10}, id="windows at a distance"
        ),
        pytest.param({"type": "tfp", "half_window": 2}, id="mean of a window"),
    ],
)
def test_a_representation_with_a_centre_needs_the_plane_of_the_sharp_frame(representation):
    # These channels are made of the planes around the sharp plane. By default, the number of this
    # plane comes from dataset.json or from the name of the clip. Here dataset.json is empty, and
    # the name "clip" has no number.
    spikes = DatSpikes(DatasetInfo(), h=2, w=2, representation=representation)

    with pytest.raises(OptionError, match="the plane of the sharp frame is not known"):
        exposures_of(spikes, "clip", [("file", 25)], frames=1)


def test_a_representation_of_the_whole_file_needs_no_sharp_plane():
    spikes = DatSpikes(DatasetInfo(), h=2, w=2, representation={"type": "tfp", "num_bins": 3})

    (exposure,) = exposures_of(spikes, "clip", [("file", 25)], frames=1)

    assert exposure.center == 12  # the middle of the planes 0 to 24


# The option `exposure`: one file has the planes of all frames, and frame i has the planes 2 i and
# 2 i + 1. The options `first` and `count` give a window: the planes of the file that all frames
# share evenly. Only one of the two ways can be used.
EXPOSURE = {"start": 0.0, "length": 2.0, "period": 2.0}


@pytest.mark.parametrize("window", [{"first": 1}, {"count": 1}, {"first": "central"}], ids=str)
def test_exposures_beside_a_window_are_refused(window):
    with pytest.raises(OptionError, match="exclude one another"):
        source(exposure=EXPOSURE, **window)


def test_exposures_without_a_window_are_accepted():
    source(exposure=EXPOSURE)


@pytest.mark.parametrize(
    ("planes", "center"),
    [
        pytest.param(48, None, id="48 planes: too few"),
        pytest.param(49, 24, id="49 planes: without interpolated ones at the end"),
        pytest.param(56, 24, id="56 planes"),
        pytest.param(57, None, id="57 planes: too many"),
    ],
)
def test_a_clip_name_of_spk_gopro_tells_the_sharp_plane_if_the_files_have_its_length(
    planes, center
):
    # The 07 in the name says that 7 frames were averaged to the blurry frame. Each of the 7 frames
    # gave one plane and 7 interpolated planes after it, so there are 7 x 8 = 56 planes. The last 7
    # may be missing, which leaves 49 planes. The sharp frame is the middle one of the 7 frames:
    # frame 3, counted from 0. So the sharp plane is plane 3 x 8 = 24.
    assert DatasetInfo().gt_plane_of("GOPR0372_07_00", planes) == center


@pytest.mark.parametrize("name", ["GOPR0372_00_00", "GOPR0372_7_00", "clip"])
def test_other_names_tell_no_sharp_plane(name):
    assert DatasetInfo().gt_plane_of(name, planes=56) is None


# ---- dataset.json above a spike file ----

INFO = '{"format": 1, "h": 2, "w": 4}'


# In a data set, a spike file is <root>/<split>/<clip>/spike/<file>, and dataset.json is in the
# root. The program looks for dataset.json in the folder of the spike file, and in the folders above
# it up to the folder that contains the root. `place` is the folder in which this test puts
# dataset.json.
@pytest.mark.parametrize("place", [".", "root", "root/train/c"])
@pytest.mark.parametrize("named", ["spike/0.dat", "spike"], ids=["file", "folder"])
def test_the_dataset_json_above_a_spike_file_is_found(tmp_path, place, named):
    write_dat(tmp_path / "root/train/c/spike/0.dat", np.zeros((1, 2, 4), np.uint8))
    (tmp_path / place / "dataset.json").write_text(INFO)

    assert nearest_info(tmp_path / "root/train/c" / named).h == 2


@pytest.mark.parametrize("named", ["spike/0.dat", "spike"], ids=["file", "folder"])
def test_a_dataset_json_far_above_belongs_to_other_files(tmp_path, named):
    # Here the root is far/other/data. So the search ends in far/other, and does not look in far.
    write_dat(tmp_path / "far/other/data/train/c/spike/0.dat", np.zeros((1, 2, 4), np.uint8))
    (tmp_path / "far/dataset.json").write_text(INFO)

    # The result is the default DatasetInfo, because no dataset.json was found.
    assert nearest_info(tmp_path / "far/other/data/train/c" / named) == DatasetInfo()

"""data/motion/recording.py: what is read of a clip, where its pixels lie, and their gain.

view.py, exposure.py, light.py and gain.py do the parts of it.

The clips are rendered scenes (tests/helpers/moving_scene.py). A spike pixel covers 2 x 2 RGB
pixels. A clip has three exposures of 60 planes, which follow one another.
"""

import json

import numpy as np
import pytest

from data.clips.clip_reader import user_clips
from data.motion.gain import ExposureLight
from data.motion.recording import RecordedClip
from tests.helpers.moving_scene import Scene, change_spikes, reader_of, with_clipped_sky
from utils.errors import DataError

# The frame of the tests: the middle one of three, so planes before and after it were recorded.
FRAME = 1


# Both matrices map the spike pixel (x, y) to the RGB pixel (2 x + 0.5, 2 y + 0.5): a homography
# divides by its third row, so a factor of the whole matrix has no effect.
@pytest.mark.parametrize(
    "matrix",
    [
        pytest.param([[2, 0, 0.5], [0, 2, 0.5], [0, 0, 1]], id="third row 0 0 1"),
        pytest.param([[6, 0, 1.5], [0, 6, 1.5], [0, 0, 3]], id="times 3"),
    ],
)
def test_a_factor_of_the_matrix_does_not_change_the_size_of_a_spike_pixel(tmp_path, matrix):
    folder = Scene().write(tmp_path / "clip")
    calibration = tmp_path / "cameras.json"
    cameras = {"format": 1, "matrix": matrix, "spike_size": [48, 48], "rgb_size": [96, 96]}
    calibration.write_text(json.dumps(cameras))

    view = RecordedClip(reader_of(folder, calibration=str(calibration)), context=None).view

    assert view.points_in_pixel == (2, 2)
    assert view.pixel_area == pytest.approx(4)


def test_half_an_exposure_is_read_on_each_side_if_planes_were_recorded_there(tmp_path):
    reader = reader_of(Scene().write(tmp_path / "clip"))
    clip = RecordedClip(reader, context=None)

    planes = [len(clip.read(frame).stream) for frame in range(3)]

    # 60 planes of the exposure and 30 planes on each side. No planes were recorded before the first
    # frame, and none after the last frame.
    assert planes == [60 + 30, 30 + 60 + 30, 30 + 60]


def test_without_context_an_exposure_is_read_alone(tmp_path):
    reader = reader_of(Scene().write(tmp_path / "clip"))

    alone = RecordedClip(reader, context=0).read(FRAME)

    assert alone.begin == 0
    assert alone.end == 60
    assert alone.sharp == 30.5  # the middle of plane 30


def test_the_gain_is_the_rate_of_the_camera(tmp_path):
    scene = Scene(velocity=(6.0, 0.0))
    reader = reader_of(scene.write(tmp_path / "clip"))

    gain, _ = RecordedClip(reader, context=None).gain()

    assert np.median(gain) == pytest.approx(scene.rate, rel=0.02)


def test_dead_and_hot_pixels_are_not_trusted(tmp_path):
    folder = Scene(velocity=(6.0, 0.0)).write(tmp_path / "clip")

    def with_odd_pixels(spikes: np.ndarray) -> np.ndarray:
        spikes[:, 20, 30] = 0  # dead: never fires
        spikes[:, 5, 7] = 1  # hot: fires in each plane
        return spikes

    change_spikes(folder, with_odd_pixels)

    _, is_good = RecordedClip(reader_of(folder), context=None).gain()

    assert not is_good[20, 30]
    assert not is_good[5, 7]
    assert is_good.mean() > 0.99  # the other pixels are trusted, except a few by chance


def test_a_sky_that_the_rgb_camera_clips_is_not_taken_for_hot_pixels(tmp_path):
    scene = Scene(velocity=(6.0, 0.0), rate=0.2)
    folder = scene.write(tmp_path / "clip")
    with_clipped_sky(folder, rate=scene.rate)

    gain, is_good = RecordedClip(reader_of(folder), context=None).gain()

    # The sky has most of the light, but its gain is not the usual gain.
    ground = gain[24:]
    assert np.median(ground) == pytest.approx(scene.rate, rel=0.05)
    assert is_good.mean() > 0.99


def test_hot_pixels_do_not_look_like_another_exposure(tmp_path):
    folder = Scene(velocity=(6.0, 0.0)).write(tmp_path / "clip")

    def with_hot_rows(spikes: np.ndarray) -> np.ndarray:
        spikes[:, :5] = 1
        return spikes

    change_spikes(folder, with_hot_rows)
    clip = RecordedClip(reader_of(folder), context=None)
    gain, is_good = clip.gain()

    assert np.array_equal(clip.gain_in(clip.read(FRAME), gain, is_good), gain)


def test_a_pixel_that_is_not_trusted_repeats_its_nearest_neighbour(tmp_path):
    recording = RecordedClip(reader_of(Scene().write(tmp_path / "clip")), context=None).read(FRAME)
    is_good = np.ones((48, 48), bool)
    is_good[:, 1:] = False  # only column 0 is good

    replaced = recording.with_repaired_pixels(is_good)

    assert np.array_equal(replaced.stream[..., 0], recording.stream[..., 0])
    assert np.array_equal(replaced.stream[..., 1], recording.stream[..., 0])
    assert np.array_equal(replaced.stream[..., 47], recording.stream[..., 0])


def test_pixels_are_trusted_although_most_of_them_have_no_spike(tmp_path):
    # At full light a pixel has 0.005 x 180 = 0.9 spikes in the three exposures.
    scene = Scene(velocity=(6.0, 0.0), rate=0.005)
    reader = reader_of(scene.write(tmp_path / "clip"))

    gain, is_good = RecordedClip(reader, context=None).gain()

    assert is_good.mean() > 0.99  # all pixels, but for chance
    # So few spikes tell the rate within some 30 %. Above, many spikes told it within 2 %.
    assert np.median(gain) == pytest.approx(scene.rate, rel=0.3)


def test_a_clip_without_spikes_is_refused(tmp_path):
    folder = Scene().write(tmp_path / "clip")
    [reader] = user_clips(folder / "blur")

    with pytest.raises(DataError, match="no spikes"):
        RecordedClip(reader, context=None)


def test_pixels_at_full_light_say_nothing_of_the_level_of_a_frame():
    # Two rows of pixels see a lamp of the light 3. The RGB camera clips it at 1, the spike camera
    # does not.
    without = np.full((8, 8), 0.5)
    with_rows_of_lamp = without.copy()
    with_rows_of_lamp[:2] = 3.0
    clipped = np.minimum(with_rows_of_lamp, 1.0)
    rate = 0.2  # spikes per plane at full light

    without_lamp = ExposureLight(rate * without, frame_light=without, planes=60)
    with_lamp = ExposureLight(rate * with_rows_of_lamp, frame_light=clipped, planes=60)

    assert with_lamp.level() == pytest.approx(without_lamp.level())

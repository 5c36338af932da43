"""data/motion/flow.py and data/motion/recording.py: motion that is measured from spikes.

The clips are rendered scenes whose motion is known (tests/helpers/moving_scene.py). A spike pixel
covers 2 x 2 RGB pixels. A clip has three exposures of 60 planes, which follow one another.
"""

import json
from pathlib import Path

import numpy as np
import pytest

from data.clips.clip_reader import user_clips
from data.motion.flow import Motion, motion_of, moved
from data.motion.recording import ExposureLight, RecordedClip
from data.spike.formats import SpikeGeometry, read_spikes, write_spikes
from tests.helpers.moving_scene import Scene, reader_of
from utils.errors import DataError

# The frame of the tests: the middle one of three, so planes before and after it were recorded.
FRAME = 1
# Pixels at each edge that are not compared, because the scene moves in and out of view there.
EDGE = 12
INSIDE = (slice(EDGE, -EDGE), slice(EDGE, -EDGE))
# A spike plane of a frame of 96 x 96 pixels.
PLANE = SpikeGeometry(48, 48)


def motion_in(clip: RecordedClip) -> Motion:
    """Measure the motion within the exposure of FRAME."""
    gain, _ = clip.gain()
    return motion_of(clip.read(FRAME), clip.view, gain)


def motion_of_scene(scene: Scene, folder: Path) -> Motion:
    """Write a clip of a scene, and measure the motion within the exposure of FRAME."""
    reader = reader_of(scene.write(folder / "clip"))
    return motion_in(RecordedClip(reader, context=None))


def lengths_of_errors(scene: Scene, found: Motion) -> np.ndarray:
    """Return the lengths of the errors of the shifts (K, H, W) in pixels, without the edges.

    The sharp instant is left out, because its shifts are 0 by definition.
    """
    lengths = []
    for time, shifts in zip(found.times, found.shifts, strict=True):
        if time != 0:
            error = shifts - scene.shifts(FRAME, time)  # (H, W, 2)
            lengths.append(np.linalg.norm(error, axis=-1)[INSIDE])
    return np.stack(lengths)


def change_spikes(folder: Path, change) -> None:
    """Apply a function to the spikes (T, 48, 48) of each spike file of a clip."""
    for file in (folder / "spike").glob("*.dat"):
        spikes = read_spikes(file, PLANE)
        write_spikes(file, change(spikes), PLANE)


# ---- The motion ----


# The mean errors were measured as 0.09, 0.11, 0.33, 0.24 and 0.67 pixels. The 99 % quantiles were
# 0.3, 0.5, 1.4, 0.9 and 2.6 pixels.
@pytest.mark.parametrize(
    ("scene", "most_mean_px", "most_quantile_px"),
    [
        pytest.param(Scene(), 0.1, 0.5, id="still"),
        pytest.param(Scene(velocity=(10.0, -4.0)), 0.3, 1.5, id="translation"),
        pytest.param(
            Scene(velocity=(-3.0, 8.0), planes=28, sharp_plane=12),
            0.5,
            2.0,
            id="28 planes, sharp at 12",
        ),
        pytest.param(Scene(turn_deg=9.0), 0.3, 1.5, id="rotation"),
        pytest.param(
            Scene(velocity=(10.0, -4.0), rate=0.15, size=(192, 192)),
            1.0,
            3.0,
            id="a quarter of the light",
        ),
    ],
)
def test_the_motion_of_a_scene_is_found_up_to_parts_of_a_pixel(
    tmp_path, scene, most_mean_px, most_quantile_px
):
    found = motion_of_scene(scene, tmp_path)

    errors = lengths_of_errors(scene, found)
    assert errors.mean() < most_mean_px
    assert np.quantile(errors, 0.99) < most_quantile_px


def test_a_mirrored_spike_camera_gives_the_motion_on_the_grid_of_the_frames(tmp_path):
    scene = Scene(velocity=(10.0, -4.0))
    folder = scene.write(tmp_path / "clip")
    # The columns of the planes are reversed, and the calibration says so.
    change_spikes(folder, lambda spikes: spikes[..., ::-1])
    calibration = tmp_path / "cameras.json"
    cameras = {
        "format": 1,
        "matrix": [[2, 0, 0.5], [0, 2, 0.5]],  # 2 x 2 RGB pixels in a spike pixel
        "mirror": "columns",
        "spike_size": [48, 48],
        "rgb_size": [96, 96],
    }
    calibration.write_text(json.dumps(cameras))

    reader = reader_of(folder, calibration=str(calibration))
    found = motion_in(RecordedClip(reader, context=None))

    assert lengths_of_errors(scene, found).mean() < 0.3  # as for the translation above


@pytest.mark.parametrize(
    "rate", [pytest.param(0.6, id="many spikes"), pytest.param(0.1, id="few spikes")]
)
def test_frames_smaller_than_the_squares_that_are_compared_have_a_motion(tmp_path, rate):
    # With few spikes, optical flow compares squares of 16 x 16 pixels.
    found = motion_of_scene(Scene(size=(8, 16), rate=rate), tmp_path)

    assert found.shifts.shape == (9, 8, 16, 2)  # 4 times before the sharp instant, it, and 4 after
    assert np.abs(found.shifts).max() < 16  # the scene stands still: no shift leaves the frame


def test_the_way_back_is_the_inverse_of_the_way_there(tmp_path):
    found = motion_of_scene(Scene(turn_deg=9.0), tmp_path)

    for time in (-25.0, -8.0, 0.0, 13.0, 29.0):  # planes, between and beside the measured times
        there, _ = found.at(time)
        back, _ = found.back(time)
        # Go back to the sharp instant, and from this point there: the way ends where it began.
        left_over = np.linalg.norm(back + moved(there, back), axis=-1)
        assert left_over[INSIDE].mean() < 0.05  # pixels


# ---- The expected error of the motion ----


class FastSpot:
    """The motion of a scene in which a small square moves so fast that the search misses it."""

    # Rows and columns around the square, which is 14 pixels wide, in the middle of the frame.
    AROUND_SPOT = (slice(34, 62), slice(34, 62))
    # Rows above the square.
    ABOVE = (slice(EDGE, 24), slice(EDGE, -EDGE))

    def __init__(self, folder: Path) -> None:
        scene = Scene(velocity=(3.0, 1.0), spot=14, spot_velocity=(-36.0, 10.0))
        found = motion_of_scene(scene, folder)
        # At the last time, the end of the exposure.
        expected = found.errors[-1]  # (H, W)
        self.expected_around_spot = expected[self.AROUND_SPOT].mean()
        self.expected_above = expected[self.ABOVE].mean()
        true_error = np.linalg.norm(
            found.shifts[-1] - scene.shifts(FRAME, found.times[-1]), axis=-1
        )
        self.true_above = true_error[self.ABOVE].mean()


@pytest.fixture(scope="module")
def fast_spot(tmp_path_factory) -> FastSpot:
    """Give the motion of a scene with a small fast square."""
    return FastSpot(tmp_path_factory.mktemp("spot"))


def test_the_expected_error_is_larger_where_the_motion_is_wrong(fast_spot):
    # Measured: 4.9 and 0.7 pixels.
    assert fast_spot.expected_around_spot > 2 * fast_spot.expected_above


def test_the_expected_error_is_of_the_size_of_the_true_error(fast_spot):
    # Measured: 0.7 expected, 0.3 true. An expected error may be too large, but not far too small.
    assert fast_spot.expected_above > fast_spot.true_above / 2
    assert fast_spot.expected_above < 10 * fast_spot.true_above


# ---- What was recorded ----


# Both matrices map the spike pixel (x, y) to the RGB pixel (2 x + 0.5, 2 y + 0.5): a homography
# divides by its third row, so a factor of the whole matrix has no effect.
@pytest.mark.parametrize(
    "matrix",
    [
        pytest.param([[2, 0, 0.5], [0, 2, 0.5], [0, 0, 1]], id="third row 0 0 1"),
        pytest.param([[6, 0, 1.5], [0, 6, 1.5], [0, 0, 3]], id="times 3"),
    ],
)
def test_the_size_of_a_spike_pixel_does_not_depend_on_a_factor_of_the_matrix(tmp_path, matrix):
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

    # 60 planes of the exposure and 30 on each side. The first frame has none before it, and the
    # last frame none after it.
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
    assert is_good.mean() > 0.99


def test_pixels_are_trusted_although_most_of_them_have_no_spike(tmp_path):
    scene = Scene(velocity=(6.0, 0.0), rate=0.005)
    reader = reader_of(scene.write(tmp_path / "clip"))

    gain, is_good = RecordedClip(reader, context=None).gain()

    assert is_good.mean() > 0.99
    assert np.median(gain) == pytest.approx(scene.rate, rel=0.3)


def test_a_clip_without_spikes_is_refused(tmp_path):
    folder = Scene().write(tmp_path / "clip")
    [reader] = user_clips(folder / "blur")

    with pytest.raises(DataError, match="no spikes"):
        RecordedClip(reader, context=None)


def test_pixels_at_full_light_say_nothing_of_the_level_of_a_frame():
    # The RGB camera clips a lamp at 1, while the spike camera sees 3 times as much light.
    light = np.full((8, 8), 0.5)
    lamp = light.copy()
    lamp[:2] = 3.0
    rate = 0.2  # spikes per plane at full light

    without_lamp = ExposureLight(fired=rate * light, seen=light, planes=60)
    with_lamp = ExposureLight(fired=rate * lamp, seen=np.minimum(lamp, 1.0), planes=60)

    assert with_lamp.level() == pytest.approx(without_lamp.level())

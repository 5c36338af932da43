"""Motion within an exposure, measured from spikes, against the motion with which a scene was
rendered.
"""

import json

import numpy as np
import pytest

from data.clips.clip_reader import user_clips
from data.motion.flow import Motion, motion_of, moved
from data.motion.recording import RecordedClip
from data.spike.formats import SpikeGeometry, read_spikes, write_spikes
from tests.helpers.moving_scene import Scene, reader_of
from utils.errors import DataError

# The frame of the tests. It has recorded planes before and after it.
FRAME = 1
# Pixels at each edge that are left out, because the scene comes and goes there.
EDGE = 12


def motion(clip: RecordedClip, frame: int = FRAME) -> Motion:
    """Estimate the motion within the exposure of a frame, by optical flow."""
    gain, _ = clip.gain()
    return motion_of(clip.read(frame), clip.view, gain)


def errors(scene: Scene, found: Motion, frame: int = FRAME) -> np.ndarray:
    """Return the lengths of the errors of the shifts (K, H, W), in pixels, without the edges.

    The sharp instant is left out, because nothing has moved there.
    """
    moments = [k for k, time in enumerate(found.times) if time]
    lengths = [
        np.linalg.norm(found.shifts[k] - scene.shifts(frame, found.times[k]), axis=-1)
        for k in moments
    ]
    return np.stack(lengths)[:, EDGE:-EDGE, EDGE:-EDGE]


@pytest.mark.parametrize(
    ("scene", "mean_px", "largest_px"),
    [
        (Scene(), 0.1, 0.5),
        (Scene(velocity=(10.0, -4.0)), 0.3, 1.5),
        (Scene(velocity=(-3.0, 8.0), planes=28, sharp_plane=12), 0.5, 2.0),
        (Scene(turn_deg=9.0), 0.3, 1.5),
        (Scene(velocity=(10.0, -4.0), rate=0.15, size=(192, 192)), 1.0, 3.0),
    ],
    ids=["still", "translation", "28 planes, sharp at 12", "rotation", "a quarter of the light"],
)
def test_the_motion_of_a_scene_is_found_up_to_parts_of_a_pixel(
    tmp_path, scene, mean_px, largest_px
):
    found = motion(RecordedClip(reader_of(scene.write(tmp_path / "clip")), None))
    wrong = errors(scene, found)
    assert wrong.mean() < mean_px
    assert np.quantile(wrong, 0.99) < largest_px


def test_a_second_camera_gives_the_motion_on_the_grid_of_the_frames(tmp_path):
    scene = Scene(velocity=(10.0, -4.0))
    folder = scene.write(tmp_path / "clip")
    # The columns of the spike camera run the other way.
    about = {
        "format": 1, "matrix": [[2, 0, 0.5], [0, 2, 0.5]], "mirror": "columns", "spike_size": [48,
        48], "rgb_size": [96, 96],
    }  # fmt: skip
    (tmp_path / "cameras.json").write_text(json.dumps(about))
    for file in (folder / "spike").glob("*.dat"):
        geometry = SpikeGeometry(48, 48)
        write_spikes(file, read_spikes(file, geometry)[..., ::-1], geometry)
    calibration = str(tmp_path / "cameras.json")
    found = motion(RecordedClip(reader_of(folder, calibration=calibration), None))

    assert errors(scene, found).mean() < 0.3


def test_the_expected_error_is_of_the_size_of_the_error_and_larger_where_the_motion_is_wrong(
    tmp_path,
):
    # A small square crosses the scene so fast that the search misses it.
    scene = Scene(velocity=(3.0, 1.0), spot=14, spot_velocity=(-36.0, 10.0))
    found = motion(RecordedClip(reader_of(scene.write(tmp_path / "clip")), None))
    last = found.errors[-1]
    around_spot = last[34:62, 34:62].mean()
    elsewhere = last[EDGE:24, EDGE:-EDGE].mean()
    wrong = errors(scene, found)[-1][:12].mean()

    assert around_spot > 2 * elsewhere
    assert wrong / 2 < elsewhere < 10 * wrong


def test_the_way_back_is_the_inverse_of_the_way_there(tmp_path):
    scene = Scene(turn_deg=9.0)
    found = motion(RecordedClip(reader_of(scene.write(tmp_path / "clip")), None))
    for time in (-25.0, -8.0, 0.0, 13.0, 29.0):
        there, _ = found.at(time)
        back, _ = found.back(time)
        inside = np.linalg.norm(back + moved(there, back), axis=-1)[EDGE:-EDGE, EDGE:-EDGE]
        assert inside.mean() < 0.05


def test_planes_around_the_exposure_are_read_where_files_follow_one_another(tmp_path):
    reader = reader_of(Scene().write(tmp_path / "clip"))
    assert [RecordedClip(reader, None).read(k).stream.shape[0] for k in range(3)] == [90, 120, 90]
    alone = RecordedClip(reader, 0).read(1)
    assert (alone.begin, alone.end, alone.sharp) == (0, 60, 30.5)


def test_the_gain_shows_the_rate_and_which_pixels_are_dead(tmp_path):
    folder = Scene(velocity=(6.0, 0.0)).write(tmp_path / "clip")
    geometry = SpikeGeometry(48, 48)
    for file in (folder / "spike").glob("*.dat"):
        spikes = read_spikes(file, geometry)
        spikes[:, 20, 30] = 0
        spikes[:, 5, 7] = 1
        write_spikes(file, spikes, geometry)
    clip = RecordedClip(reader_of(folder), None)
    gain, is_good = clip.gain()

    assert not is_good[20, 30]
    assert not is_good[5, 7]
    assert is_good.mean() > 0.99
    assert np.median(gain) == pytest.approx(0.6, rel=0.02)


def test_a_clip_without_spikes_is_refused(tmp_path):
    folder = Scene().write(tmp_path / "clip")
    [reader] = user_clips(folder / "blur")
    with pytest.raises(DataError, match="no spikes"):
        RecordedClip(reader, None)


@pytest.mark.parametrize("rate", [0.6, 0.1])
def test_frames_smaller_than_the_squares_that_are_compared_have_a_motion(tmp_path, rate):
    scene = Scene(size=(8, 16), rate=rate)
    found = motion(RecordedClip(reader_of(scene.write(tmp_path / "clip")), None))
    assert found.shifts.shape == (9, 8, 16, 2)
    assert np.abs(found.shifts).max() < 16

import json
from typing import Any

import numpy as np
import pytest

from data.augment import Augment
from data.cameras.spike_grid import (
    CalibratedGrid,
    Calibration,
    ScaledGrid,
    load_calibration,
    save_calibration,
)
from data.spike.formats import SpikeGeometry
from tests.helpers.two_cameras import similarity
from utils.errors import DataError

PLANE, FRAME = (24, 32), (36, 60)
TURNED = similarity(3.0, 1.37, PLANE, FRAME, (4.3, -2.6))


def grid(matrix=TURNED, plane=PLANE, frame=FRAME, nearest=False, **keys):
    calibration = Calibration(
        matrix=matrix.tolist(), spike_size=list(plane), rgb_size=list(frame), **keys
    )
    return CalibratedGrid(calibration, SpikeGeometry(*plane), "calibration.json", nearest)


def channels(plane=PLANE, count=2):
    return np.random.default_rng(0).random((count, *plane), np.float32)


def on_frame(some_grid, values, aug=None):
    """The channels on the crop, of the spike pixels that the crop reads."""
    window = some_grid.window(aug or Augment.whole(FRAME))
    crop = window.crop
    return window.to_rgb(
        values[:, crop.top : crop.top + crop.height, crop.left : crop.left + crop.width]
    )


PERSPECTIVE = np.array([[1, 0, 0], [0, 1, 0], [4e-4, -3e-4, 1]]) @ TURNED


@pytest.mark.parametrize("matrix", [TURNED, PERSPECTIVE, TURNED @ np.diag([0.4, 0.4, 1.0])])
@pytest.mark.parametrize("nearest", [False, True])
def test_a_crop_is_bit_for_bit_the_crop_of_the_whole_and_reads_only_what_it_needs(matrix, nearest):
    some_grid, values = grid(matrix, nearest=nearest), channels()
    whole = on_frame(some_grid, values)
    for top, left, height, width in (
        (0, 0, 7, 9),
        (13, 31, 16, 20),
        (35, 59, 1, 1),
        (20, 30, 8, 8),
    ):
        aug = Augment(top, left, height, width)
        assert np.array_equal(
            on_frame(some_grid, values, aug), whole[:, top : top + height, left : left + width]
        )
    crop = some_grid.window(Augment(20, 36, 8, 8)).crop
    scale = np.sqrt(np.linalg.det(matrix[:2, :2]))
    assert max(crop.height, crop.width) <= 9 / scale + 4 < max(PLANE) or scale < 1


def test_a_calibration_that_only_enlarges_gives_what_a_whole_ratio_gives():
    size = (2 * PLANE[0], 2 * PLANE[1])
    same = grid(similarity(0, 2, PLANE, size, (0, 0)), frame=size)
    scaled = ScaledGrid(SpikeGeometry(*PLANE), size, 1)
    assert same.coverage == 1.0 and same.region == scaled.region == (0, 0, *size)
    aug = Augment(6, 10, 16, 24)
    assert np.abs(on_frame(same, channels(), aug) - on_frame(scaled, channels(), aug)).max() < 1e-6
    # Spikes finer than the frame are averaged over its pixels.
    plane, frame = (60, 90), (20, 30)
    some_grid, noise = (
        grid(similarity(0, 1 / 3, plane, frame, (0, 0)), plane, frame),
        channels(plane, 1),
    )
    found = some_grid.window(Augment.whole(frame)).to_rgb(noise)[0]
    assert found == pytest.approx(noise[0].reshape(20, 3, 30, 3).mean(axis=(1, 3)), abs=1e-6)


def test_each_rgb_pixel_takes_the_light_at_its_own_place():
    # A ramp is interpolated without error: its value tells the place.
    y, x = np.mgrid[: PLANE[0], : PLANE[1]].astype(np.float32)
    for mirror in ("none", "columns", "rows", "both"):
        some_grid = grid(PERSPECTIVE, mirror=mirror)
        top, left, height, width = some_grid.region
        found = on_frame(some_grid, np.stack((x, y)))
        for row, col in ((top + 2, left + 2), (top + height - 3, left + width // 2)):
            u, v = found[:, row, col]
            u = PLANE[1] - 1 - u if mirror in ("columns", "both") else u
            v = PLANE[0] - 1 - v if mirror in ("rows", "both") else v
            back = PERSPECTIVE @ [u, v, 1]
            assert back[:2] / back[2] == pytest.approx([col, row], abs=1e-4)


def test_crops_are_drawn_where_the_spike_camera_sees_and_edges_are_repeated_elsewhere():
    some_grid = grid()
    top, left, height, width = some_grid.region
    window = some_grid.window(Augment(top, left, height, width))
    assert window.covered.all() and height * width > 0.75 * some_grid.coverage * FRAME[0] * FRAME[1]
    whole = on_frame(some_grid, channels(count=1))[0]
    uncovered = ~some_grid.window(Augment.whole(FRAME)).covered
    assert 0.5 < some_grid.coverage < 0.9 and whole[uncovered].min() > 0
    # Brightness is compared where both look: light beside the view of the spike camera does not
    # count.
    picture = np.where(uncovered, 255, 100).astype(np.uint8)[..., None].repeat(3, axis=2)
    rate, colour = some_grid.window(Augment.whole(FRAME)).brightness(
        np.ones((2, *PLANE), np.uint8), picture
    )
    assert colour.tolist() == [100, 100, 100] and rate == pytest.approx(1)


def test_a_calibration_for_other_cameras_is_refused():
    fits_plane = Calibration(matrix=TURNED.tolist(), spike_size=list(PLANE), rgb_size=list(FRAME))
    with pytest.raises(DataError, match="24 x 32, these are 25 x 32"):
        CalibratedGrid(fits_plane, SpikeGeometry(25, 32), "")
    with pytest.raises(DataError, match="outside of the frame"):
        grid(similarity(0, 1, PLANE, FRAME, (500, 0)))
    with pytest.raises(DataError, match="region"):
        grid(region=[0, 0, 36, 60])


GOOD: dict[str, Any] = {
    "format": 1,
    "matrix": [[1.5, 0, 3], [0, 1.5, -2]],
    "spike_size": [8, 12],
    "rgb_size": [12, 20],
}


def test_a_calibration_file_holds_what_was_saved_and_says_what_is_wrong(tmp_path):
    path = tmp_path / "calibration.json"
    saved = Calibration(
        **GOOD, mirror="columns", time_offset_planes=2.5, tick_hz=20000, made={"by": "hand"}
    )
    save_calibration(path, saved)
    assert load_calibration(path) == saved and load_calibration(path).digest() == saved.digest()
    unknown = saved.model_copy(update={"tick_hz": None, "made": {}})  # neither has an effect
    assert (
        unknown.digest() == saved.digest() != saved.model_copy(update={"mirror": "rows"}).digest()
    )
    # Column 0 of the upright picture is column 11 of the mirrored one.
    assert (saved.to_rgb() @ [0, 0, 1]).tolist() == [1.5 * 11 + 3, -2, 1]
    singular = [[1, 2, 0], [2, 4, 0]]
    for changes, words in (
        ({"tick_rate": 1}, ["tick_rate", "tick_hz"]), ({"matrix": singular}, ["singular"]),
        ({"matrix": [[1, 0, 0], [0, 1, 0], [-0.2, 0, 1]]}, ["infinity"]),
        ({"matrix": [[1, 0]] * 2}, ["matrix"]), ({"mirror": "left"}, ["mirror", "columns"]),
        ({"tick_hz": 0}, ["tick_hz"]),
    ):  # fmt: skip
        path.write_text(json.dumps(GOOD | changes))
        with pytest.raises(DataError) as error:
            load_calibration(path)
        assert all(word in str(error.value) for word in [*words, str(path)]), str(error.value)
        assert error.value.expected and error.value.do
    path.write_text("[1]")
    with pytest.raises(DataError, match="cannot read the calibration: it is no JSON object"):
        load_calibration(path)
    path.write_text("{")
    for place in (path, tmp_path / "none.json"):
        with pytest.raises(DataError, match="cannot read the calibration"):
            load_calibration(place)

"""data/cameras/spike_grid.py: where a pixel of the spike camera lies in the RGB frame.

The modules calibration.py, scaled_grid.py, calibrated_grid.py and calibrated_window.py beside it
are tested here, too.

A calibration has the matrix from spike pixels to RGB pixels. `CalibratedGrid` interpolates the
channels of a spike plane (here 24 x 32 random values) at the pixels of the frame (36 x 60), or of a
crop of the frame.
"""

import json
from typing import Any

import cv2
import numpy as np
import pytest

from data.augment import Augment
from data.cameras.calibrated_grid import CalibratedGrid
from data.cameras.calibration import Calibration, load_calibration, save_calibration
from data.cameras.scaled_grid import ScaledGrid
from data.spike.geometry import Crop, SpikeGeometry
from tests.helpers.two_cameras import similarity
from utils.errors import DataError

# Height and width of the spike planes and of the frames.
PLANE = (24, 32)
FRAME = (36, 60)

# The matrices from spike pixels to RGB pixels.
TURNED = similarity(angle_deg=3.0, scale=1.37, spike=PLANE, rgb=FRAME, shift=(4.3, -2.6))
# The matrix of a camera that looks from the side, so that parallel lines meet.
PERSPECTIVE = np.array([[1, 0, 0], [0, 1, 0], [4e-4, -3e-4, 1]]) @ TURNED
# The matrix of a camera whose spike pixels are smaller than RGB pixels.
FINE = TURNED @ np.diag([0.4, 0.4, 1.0])


def grid(matrix=TURNED, plane=PLANE, frame=FRAME, nearest=False, **keys):
    """Return the grid of a calibration.

    matrix: (3, 3), from spike pixels to RGB pixels. plane, frame: height and width.
    nearest: whether a pixel takes the nearest spike pixel, without interpolation.
    keys: more keys of the calibration.
    """
    calibration = Calibration(
        matrix=matrix.tolist(), spike_size=list(plane), rgb_size=list(frame), **keys
    )
    return CalibratedGrid(calibration, SpikeGeometry(*plane), "calibration.json", nearest)


def random_channels(plane=PLANE, count=2):
    """Return random channels (count, h, w) of a spike plane."""
    return np.random.default_rng(0).random((count, *plane), np.float32)


# A crop of the frame is Augment(top, left, height, width), in RGB pixels. An Augment can also flip
# a crop, but does not do so here.
WHOLE = Augment.whole(FRAME)


def on_frame(some_grid, values, crop_of_frame=WHOLE):
    """Return channels (C, h, w) on a crop of the frame.

    Only the spike pixels that the grid asks for are used.
    """
    window = some_grid.window(crop_of_frame)
    crop = window.crop
    rows = slice(crop.top, crop.top + crop.height)
    columns = slice(crop.left, crop.left + crop.width)
    return window.to_rgb(values[:, rows, columns])


# ---- Crops ----

MATRICES = [
    pytest.param(TURNED, id="turned"),
    pytest.param(PERSPECTIVE, id="perspective"),
    pytest.param(FINE, id="fine"),
]


@pytest.mark.parametrize("matrix", MATRICES)
@pytest.mark.parametrize("nearest", [False, True])
@pytest.mark.parametrize(
    ("top", "left", "height", "width"),
    [
        pytest.param(0, 0, 7, 9, id="corner"),
        pytest.param(13, 31, 16, 20, id="middle"),
        pytest.param(35, 59, 1, 1, id="last pixel"),
        pytest.param(20, 30, 8, 8, id="small"),
    ],
)
def test_a_crop_is_bit_for_bit_the_crop_of_the_whole(matrix, nearest, top, left, height, width):
    some_grid = grid(matrix, nearest=nearest)
    values = random_channels()

    found = on_frame(some_grid, values, Augment(top, left, height, width))

    whole = on_frame(some_grid, values)
    assert np.array_equal(found, whole[:, top : top + height, left : left + width])


# MATRICES[1] is PERSPECTIVE.
@pytest.mark.parametrize("matrix", [pytest.param(TURNED, id="turned"), MATRICES[1]])
@pytest.mark.parametrize("nearest", [False, True])
def test_a_crop_reads_only_what_it_needs(matrix, nearest):
    some_grid = grid(matrix, nearest=nearest)

    crop = some_grid.window(Augment(20, 36, 8, 8)).crop

    # A crop of 8 x 8 RGB pixels needs about 8 / scale spike pixels per side. But the crop is
    # turned, and the values are interpolated. So the test allows one more RGB pixel (9 in place of
    # 8) and 4 more spike pixels. The last line checks that `needed` is less than the longer side of
    # the plane. If `needed` was larger, a crop that reads the whole plane would pass, too.
    scale = np.sqrt(np.linalg.det(matrix[:2, :2]))  # RGB pixels per spike pixel
    needed = 9 / scale + 4
    assert max(crop.height, crop.width) <= needed
    assert needed < max(PLANE)


# ---- Values ----


# If a frame has exactly twice the size of the plane, no calibration is needed: `ScaledGrid`
# enlarges the plane by the whole ratio 2. A calibration that says the same must give the same
# values.
def test_a_calibration_that_only_enlarges_gives_what_a_whole_ratio_gives():
    size = (2 * PLANE[0], 2 * PLANE[1])
    twice = similarity(angle_deg=0, scale=2, spike=PLANE, rgb=size, shift=(0, 0))
    calibrated = grid(twice, frame=size)
    scaled = ScaledGrid(SpikeGeometry(*PLANE), size, interpolation=cv2.INTER_LINEAR)
    crop = Augment(top=6, left=10, height=16, width=24)

    found = on_frame(calibrated, random_channels(), crop)

    expected = on_frame(scaled, random_channels(), crop)
    # For values up to 1, the rounding error of float32 is about 1e-7.
    assert np.abs(found - expected).max() < 1e-6


def test_a_calibration_that_only_enlarges_covers_the_frame():
    size = (2 * PLANE[0], 2 * PLANE[1])
    twice = similarity(angle_deg=0, scale=2, spike=PLANE, rgb=size, shift=(0, 0))
    calibrated = grid(twice, frame=size)
    scaled = ScaledGrid(SpikeGeometry(*PLANE), size, interpolation=cv2.INTER_LINEAR)

    assert calibrated.coverage == 1.0
    whole_frame = Crop(0, 0, *size)
    assert calibrated.region == whole_frame
    assert scaled.region == whole_frame


def test_a_factor_of_a_homography_does_not_change_the_size_of_a_spike_pixel():
    # The factor cancels, because x and y are divided by the third coordinate.
    assert grid(matrix=3 * TURNED).rgb_per_spike_pixel == grid(matrix=TURNED).rgb_per_spike_pixel


def test_spikes_finer_than_the_frame_are_averaged_over_its_pixels():
    plane = (60, 90)
    frame = (20, 30)
    matrix = similarity(angle_deg=0, scale=1 / 3, spike=plane, rgb=frame, shift=(0, 0))
    some_grid = grid(matrix, plane, frame)
    noise = random_channels(plane, count=1)

    found = some_grid.window(Augment.whole(frame)).to_rgb(noise)[0]

    # Each pixel of the frame is the mean of 3 x 3 spike pixels.
    expected = noise[0].reshape(20, 3, 30, 3).mean(axis=(1, 3))
    assert found == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("mirror", ["none", "columns", "rows", "both"])
def test_each_rgb_pixel_takes_the_light_at_its_own_place(mirror):
    # Channel 0 of a spike pixel has its x, and channel 1 has its y. Such values grow evenly, so
    # they are interpolated without error. So the values on the frame tell from which place on the
    # plane they were taken.
    y, x = np.mgrid[: PLANE[0], : PLANE[1]].astype(np.float32)
    some_grid = grid(PERSPECTIVE, mirror=mirror)

    found = on_frame(some_grid, np.stack((x, y)))

    # Look at two places that are far apart.
    region = some_grid.region
    near_upper_left = (region.top + 2, region.left + 2)
    near_middle_of_bottom = (region.bottom - 3, region.left + region.width // 2)
    for row, column in (near_upper_left, near_middle_of_bottom):
        u, v = found[:, row, column]
        if mirror in ("columns", "both"):
            u = PLANE[1] - 1 - u
        if mirror in ("rows", "both"):
            v = PLANE[0] - 1 - v
        rgb_pixel = PERSPECTIVE @ [u, v, 1]
        assert rgb_pixel[:2] / rgb_pixel[2] == pytest.approx([column, row], abs=1e-4)


# ---- What the spike camera does not see ----


def test_crops_are_drawn_where_the_spike_camera_sees():
    some_grid = grid()

    region = some_grid.region

    assert some_grid.window(region).covered.all()
    # The region is the largest upright rectangle in the view of the spike camera. The view is
    # turned by 3 degrees, so the rectangle leaves out some edges, here 7 % of the view. A region
    # that leaves out more than 25 % would be too small.
    area_in_view = some_grid.coverage * FRAME[0] * FRAME[1]
    assert region.height * region.width > 0.75 * area_in_view


def test_the_coverage_is_the_share_of_the_frame_in_view():
    # The view has 24 x 32 spike pixels of 1.37 x 1.37 RGB pixels, i.e. about 33 x 44 = 1441
    # RGB pixels. The frame has 36 x 60 = 2160 RGB pixels. The middle of the view is 2.6 RGB pixels
    # above the middle of the frame. So about 33 / 2 + 2.6 - 36 / 2 = 1 row of the view lies above
    # the frame, and is not counted.
    view = 1441 - 1 * 44
    assert grid().coverage == pytest.approx(view / 2160, abs=0.01)


def test_edges_are_repeated_outside_of_the_view():
    some_grid = grid()
    is_outside = ~some_grid.window(WHOLE).covered

    whole = on_frame(some_grid, random_channels(count=1))[0]

    # The random channels have no value 0. So a 0 would mean that a pixel got no value.
    assert whole[is_outside].min() > 0


def test_brightness_is_compared_where_both_cameras_look():
    window = grid().window(WHOLE)
    # Light outside of the view of the spike camera must not be used.
    grey = np.where(window.covered, 100, 255).astype(np.uint8)
    picture = grey[..., None].repeat(3, axis=2)
    spikes = np.ones((2, *PLANE), np.uint8)

    rate, colour = window.brightness(spikes, picture)

    assert rate == pytest.approx(1)
    assert colour.tolist() == [100, 100, 100]


# ---- What is refused ----


def test_a_calibration_for_another_spike_camera_is_refused():
    calibration = Calibration(matrix=TURNED.tolist(), spike_size=list(PLANE), rgb_size=list(FRAME))

    with pytest.raises(DataError, match="24 x 32, these are 25 x 32"):
        CalibratedGrid(calibration, SpikeGeometry(25, 32), "")


def test_a_calibration_that_looks_beside_the_frame_is_refused():
    # The frame has 60 columns, so a view that is shifted by 500 columns shows nothing of it.
    with pytest.raises(DataError, match="outside of the frame"):
        grid(similarity(angle_deg=0, scale=1, spike=PLANE, rgb=FRAME, shift=(500, 0)))


def test_a_region_that_the_spike_camera_does_not_see_is_refused():
    # The region (top, left, height, width) is the whole frame, and the view covers only a part.
    with pytest.raises(DataError, match="region"):
        grid(region=[0, 0, 36, 60])


# ---- The file of a calibration ----

# The keys of a correct calibration. All other keys are optional.
GOOD: dict[str, Any] = {
    "format": 1,
    "matrix": [[1.5, 0, 3], [0, 1.5, -2]],
    "spike_size": [8, 12],
    "rgb_size": [12, 20],
}


def saved_calibration():
    """Return a calibration with all keys."""
    return Calibration(
        **GOOD, mirror="columns", time_offset_planes=2.5, tick_hz=20000, made={"by": "hand"}
    )


def test_a_calibration_file_holds_what_was_saved(tmp_path):
    path = tmp_path / "calibration.json"
    saved = saved_calibration()

    save_calibration(path, saved)

    assert load_calibration(path) == saved
    assert load_calibration(path).digest() == saved.digest()


def test_keys_without_an_effect_do_not_change_the_digest():
    saved = saved_calibration()

    changed = saved.model_copy(update={"tick_hz": None, "made": {}})

    assert changed.digest() == saved.digest()


def test_another_mirror_changes_the_digest():
    saved = saved_calibration()

    changed = saved.model_copy(update={"mirror": "rows"})

    assert changed.digest() != saved.digest()


# The digest contains the share of the planes that are read: 1.12 times the exposure share, but at
# most 1. For the exposure share 0.95, the share that is read is 1, as for a calibration without a
# share. So the digest must contain the exposure share 0.95 in another way.
@pytest.mark.parametrize("share", [0.8, 0.95])
def test_another_exposure_share_changes_the_digest(share):
    saved = saved_calibration()

    changed = saved.model_copy(update={"exposure_share": share})

    assert changed.digest() != saved.digest()


def test_a_run_of_an_older_version_finds_the_digest_of_its_calibration():
    # Version 0.9.0 stored the share of the planes that it read, 0.896, and computed this digest.
    share_of_exposure = 0.8

    found = Calibration(**GOOD, exposure_share=share_of_exposure)

    assert found.share_to_read == 0.896
    assert found.digest() == "26beb8e810ffdca9"


def test_the_matrix_of_a_mirrored_calibration_begins_at_the_other_side():
    # Column 0 of the upright picture is column 11 of the mirrored picture, which has 12 columns.
    rgb_pixel = saved_calibration().to_rgb() @ [0, 0, 1]

    assert rgb_pixel.tolist() == [1.5 * 11 + 3, -2, 1]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        pytest.param({"tick_rate": 1}, ["tick_rate", "tick_hz"], id="unknown key"),
        pytest.param({"matrix": [[1, 2, 0], [2, 4, 0]]}, ["singular"], id="singular matrix"),
        pytest.param(
            {"matrix": [[1, 0, 0], [0, 1, 0], [-0.2, 0, 1]]},
            ["infinity"],
            id="matrix that leads to infinity",
        ),
        pytest.param({"matrix": [[1, 0], [1, 0]]}, ["matrix"], id="matrix of 2 x 2"),
        pytest.param({"mirror": "left"}, ["mirror", "columns"], id="unknown mirror"),
        pytest.param({"tick_hz": 0}, ["tick_hz"], id="clock that stands still"),
    ],
)
def test_a_wrong_calibration_file_says_what_is_wrong(tmp_path, changes, words):
    path = tmp_path / "calibration.json"
    path.write_text(json.dumps(GOOD | changes))

    with pytest.raises(DataError) as error:
        load_calibration(path)

    for word in [*words, str(path)]:
        assert word in str(error.value)
    assert error.value.expected
    assert error.value.do


def test_a_calibration_file_that_holds_no_object_is_refused(tmp_path):
    path = tmp_path / "calibration.json"
    path.write_text("[1]")

    with pytest.raises(DataError, match="cannot read the calibration: it is no JSON object"):
        load_calibration(path)


def test_a_calibration_file_that_is_no_json_is_refused(tmp_path):
    path = tmp_path / "calibration.json"
    path.write_text("{")

    with pytest.raises(DataError, match="cannot read the calibration"):
        load_calibration(path)


def test_a_calibration_file_that_does_not_exist_is_refused(tmp_path):
    with pytest.raises(DataError, match="cannot read the calibration"):
        load_calibration(tmp_path / "none.json")

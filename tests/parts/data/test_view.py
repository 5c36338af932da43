"""data/motion/view.py: where spike pixels lie on the frame, and what they see of the frame.

A view has the matrix from spike pixels to RGB pixels. A spike pixel covers 2 x 2 RGB pixels, except
in test_a_point_that_is_mapped_there_and_back_is_where_it_was.
"""

import json
from dataclasses import replace

import numpy as np
import pytest

from data.motion.recording import RecordedClip
from data.motion.view import View, mapped
from tests.helpers.moving_scene import Scene, reader_of


# Both matrices map the spike pixel (x, y) to the RGB pixel (2 x + 0.5, 2 y + 0.5). The second
# matrix is 3 times the first. A factor has no effect, because a homography divides by its third
# row.
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

    reader = reader_of(folder, calibration=str(calibration))
    view = RecordedClip(reader, context=None).view  # None: the usual planes around an exposure

    assert view.points_in_pixel == (2, 2)
    assert view.pixel_area == pytest.approx(4)


def view_of_twos() -> View:
    """Return a view of 2 x 3 spike pixels. Each spike pixel covers 2 x 2 RGB pixels."""
    # Spike pixel 0 covers the RGB pixels 0 and 1 of an axis, so its middle is at 0.5.
    to_rgb = np.array([[2, 0, 0.5], [0, 2, 0.5], [0, 0, 1]])
    return View(size=(4, 6), plane=(2, 3), to_rgb=to_rgb, is_display=False)


def test_the_points_of_a_spike_pixel_lie_on_the_pixels_that_it_covers():
    points = view_of_twos().points_on_frame()

    # There are 2 x 2 points in a spike pixel, so one point on each of the 4 x 6 RGB pixels.
    x = points[..., 0]
    y = points[..., 1]
    assert x == pytest.approx(np.broadcast_to(np.arange(6), (4, 6)))
    assert y == pytest.approx(np.broadcast_to(np.arange(4)[:, None], (4, 6)))


def test_a_spike_pixel_sees_the_mean_of_the_pixels_that_it_covers():
    picture = np.arange(24, dtype=np.float32).reshape(4, 6)

    means = view_of_twos().means(picture)

    # Each spike pixel covers 2 x 2 pixels. The four axes of `blocks`:
    #
    #     2    row of the spike pixel
    #     2    row of the pixel within the spike pixel
    #     3    column of the spike pixel
    #     2    column of the pixel within the spike pixel
    blocks = picture.reshape(2, 2, 3, 2)
    assert means == pytest.approx(blocks.mean(axis=(1, 3)))


def test_the_middle_of_a_spike_pixel_is_the_corner_between_the_pixels_that_it_covers():
    on_plane = view_of_twos().pixels_on_plane()

    # In units of spike pixels, an RGB pixel has the size 1/2. So RGB pixels 0 and 1 lie at -1/4 and
    # 1/4 around the middle of spike pixel 0.
    assert on_plane[0, :, 0] == pytest.approx([-0.25, 0.25, 0.75, 1.25, 1.75, 2.25])
    assert on_plane[:, 0, 1] == pytest.approx([-0.25, 0.25, 0.75, 1.25])


def test_a_point_that_is_mapped_there_and_back_is_where_it_was():
    matrix = np.array([[2, 0.1, 0.5], [-0.1, 2, 3], [1e-3, 2e-3, 1]])  # turned and tilted
    points = np.random.default_rng(0).uniform(0, 50, (4, 5, 2)).astype(np.float32)

    back = mapped(np.linalg.inv(matrix), mapped(matrix, points))

    assert back == pytest.approx(points, abs=1e-3)


def test_the_last_row_of_a_rolling_shutter_is_exposed_later_than_the_first():
    # With rolling=0.4, the last row is exposed 0.4 exposures later than the first row. Delays count
    # from the middle of the frame. So the delays of the four rows go from -0.2 to 0.2 in equal
    # steps.
    delays = replace(view_of_twos(), rolling=0.4).delays()

    assert delays == pytest.approx([-0.2, -0.2 / 3, 0.2 / 3, 0.2])

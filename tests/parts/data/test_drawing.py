"""data/motion/drawing.py: pictures of a motion, and where it is not trusted."""

import numpy as np
import pytest

from data.motion.drawing import displacement_picture, motion_picture, untrusted_pixels
from data.motion.shifts import Motion


@pytest.fixture(scope="module")
def motion_of_three_kinds() -> Motion:
    """Give a motion of 20 x 30 pixels.

    columns 0 to 9      move right
    columns 10 to 19    move down
    columns 20 to 29    stand still
    rows 0 to 4         have an expected error of 6 pixels, the other rows of 0.2 pixels
    """
    shifts = np.zeros((3, 20, 30, 2), np.float32)  # (instants, H, W, xy)
    # The shifts are -4 pixels at the first instant, 0 at the sharp instant, and 4 at the last
    # instant: a displacement of 8 pixels.
    first, _, last = shifts  # views: writing changes `shifts`
    for at_instant, shift in ((first, -4), (last, 4)):
        at_instant[:, :10, 0] = shift  # x
        at_instant[:, 10:20, 1] = shift  # y
    errors = np.full((3, 20, 30), 0.2, np.float32)
    errors[:, :5] = 6.0
    times = np.array([-10.0, 0, 10])  # any times around the sharp instant, 0
    return Motion(times, shifts, errors)


def test_pixels_of_a_large_expected_error_are_not_trusted(motion_of_three_kinds):
    is_untrusted = untrusted_pixels(motion_of_three_kinds)

    assert is_untrusted[:5].all()
    assert not is_untrusted[5:].any()


def test_a_motion_is_not_trusted_if_its_error_is_above_half_a_pixel_and_half_of_its_length():
    # One row of four pixels: two are 5 pixels away from their places, and two stand still.
    shifts = np.zeros((2, 1, 4, 2), np.float32)
    shifts[:, :, :2, 0] = 5
    errors = np.broadcast_to(np.array([2.6, 2.4, 0.6, 0.4], np.float32), (2, 1, 4))

    is_untrusted = untrusted_pixels(Motion(np.array([-10.0, 10.0]), shifts, errors))

    # The limit is the larger of 0.5 pixels and half of the length: 2.5 for the pixels that move by
    # 5, and 0.5 for the pixels that stand still.
    assert is_untrusted.tolist() == [[True, False, True, False]]


def test_a_picture_of_a_motion_shows_the_direction(motion_of_three_kinds):
    picture = motion_picture(motion_of_three_kinds)

    assert picture.dtype == np.uint8
    assert picture.shape == (20, 30, 3)
    assert picture[10, 2].tolist() == [255, 0, 0]  # right: red
    _, green, blue = picture[10, 15].tolist()  # down: yellow to green
    assert green > blue
    assert picture[10, 25].tolist() == [255, 255, 255]  # still: white


def test_a_picture_of_a_motion_is_grey_where_the_motion_is_not_trusted(motion_of_three_kinds):
    # A pixel that moves down (column 12) and is not trusted (row 2).
    red, green, blue = motion_picture(motion_of_three_kinds)[2, 12].tolist()

    assert red == green == blue


def test_a_picture_of_no_motion_is_white():
    assert displacement_picture(np.zeros((4, 4, 2), np.float32)).min() == 255

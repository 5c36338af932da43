"""data/motion/stillness.py: which pixels of a frame move within the exposure.

Motions are made by hand at nine times of an exposure of 60 planes, on frames of 64 x 64 pixels.
"""

import numpy as np
import pytest

from data.motion.flow import Motion
from data.motion.stillness import moving_share

TIMES = np.linspace(-30, 30, 9)  # planes after the sharp instant
SIDE = 64


def motion_along(positions: np.ndarray) -> Motion:
    """Return a motion of all pixels to the right. positions: (9,) in pixels, one for each time."""
    shifts = np.zeros((len(TIMES), SIDE, SIDE, 2), np.float32)
    shifts[..., 0] = positions[:, None, None]
    return Motion(TIMES, shifts, np.zeros(shifts.shape[:3], np.float32))


def steady(pixels: float) -> Motion:
    """Return a steady motion by this number of pixels within the exposure."""
    return motion_along(pixels * TIMES / 60)


def there_and_back(pixels: float) -> Motion:
    """Return a motion that ends where it began, and reaches this number of pixels."""
    return motion_along(pixels * (1 - np.abs(TIMES) / 30))


# With 12 spikes, a reach of 1.2 + 4.5 / 12^0.7 = 2.0 pixels counts by half. With 1 spike, 5.7.
@pytest.mark.parametrize(("pixels", "spikes"), [(1.0, 12.0), (3.0, 1.0)])
def test_a_pixel_that_hardly_moves_keeps_its_first_estimate(pixels, spikes):
    assert moving_share(steady(pixels), spikes).max() == 0


@pytest.mark.parametrize(("pixels", "spikes"), [(4.0, 12.0), (10.0, 1.0)])
def test_a_pixel_that_moves_far_takes_the_improved_frame(pixels, spikes):
    assert moving_share(steady(pixels), spikes).min() == 1


def test_a_shake_that_ends_where_it_began_counts_as_motion():
    assert moving_share(there_and_back(8.0), spikes=12.0).min() == 1


def test_jumps_from_time_to_time_count_little_in_dim_light():
    jumps = motion_along(2.0 * (-1.0) ** np.arange(len(TIMES)))  # 2 pixels there and back

    assert moving_share(jumps, spikes=3.0).max() == 0
    assert moving_share(jumps, spikes=12.0).min() == 1


def test_only_the_part_that_moves_takes_the_improved_frame():
    motion = steady(8.0)
    motion.shifts[:, :, : SIDE // 2] = 0  # the left half stands still

    share = moving_share(motion, spikes=12.0)

    assert share[:, : SIDE // 4].max() == 0
    assert share[:, -SIDE // 4 :].min() == 1

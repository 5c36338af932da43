"""data/motion/stillness.py: which pixels of a frame move within the exposure.

By the reach: motions are made by hand at nine times of an exposure of 60 planes, on frames of
64 x 64 pixels.

By the change of the spikes: a stream of 120 planes, with the exposure in the middle. Each pixel of
each plane has a spike with a probability of its own, so the noise is larger than of a real camera.
The light has stripes, because stripes that move show everywhere.
"""

import numpy as np
import pytest

from data.motion.flow import Motion
from data.motion.recording import Recording, View
from data.motion.stillness import share_by_change, share_by_reach

TIMES = np.linspace(-30, 30, 9)  # planes after the sharp instant
SIDE = 64


def motion_along(positions: np.ndarray) -> Motion:
    """Return a motion of all pixels to the right. positions: (9,) in pixels, one for each time."""
    shifts = np.zeros((len(TIMES), SIDE, SIDE, 2), np.float32)
    shifts[..., 0] = positions[:, None, None]
    return Motion(TIMES, shifts, np.zeros(shifts.shape[:3], np.float32))


# ---- By the reach ------------------------------------------------------------------------------


def steady(pixels: float) -> Motion:
    """Return a steady motion by this number of pixels within the exposure."""
    return motion_along(pixels * TIMES / 60)


def there_and_back(pixels: float) -> Motion:
    """Return a motion that ends where it began, and reaches this number of pixels."""
    return motion_along(pixels * (1 - np.abs(TIMES) / 30))


# With 12 spikes, a reach of 1.2 + 4.5 / 12^0.7 = 2.0 pixels counts by half. With 1 spike, 5.7.
@pytest.mark.parametrize(("pixels", "spikes"), [(1.0, 12.0), (3.0, 1.0)])
def test_a_pixel_that_hardly_moves_keeps_its_first_estimate(pixels, spikes):
    assert share_by_reach(steady(pixels), spikes).max() == 0


@pytest.mark.parametrize(("pixels", "spikes"), [(4.0, 12.0), (10.0, 1.0)])
def test_a_pixel_that_moves_far_takes_the_improved_frame(pixels, spikes):
    assert share_by_reach(steady(pixels), spikes).min() == 1


def test_a_shake_that_ends_where_it_began_counts_as_motion():
    assert share_by_reach(there_and_back(8.0), spikes=12.0).min() == 1


def test_jumps_from_time_to_time_count_little_in_dim_light():
    jumps = motion_along(2.0 * (-1.0) ** np.arange(len(TIMES)))  # 2 pixels to each side

    assert share_by_reach(jumps, spikes=3.0).max() == 0
    assert share_by_reach(jumps, spikes=12.0).min() == 1


def test_only_the_part_that_moves_takes_the_improved_frame():
    motion = steady(8.0)
    motion.shifts[:, :, : SIDE // 2] = 0  # the left half stands still

    share = share_by_reach(motion, spikes=12.0)

    assert share[:, : SIDE // 4].max() == 0
    assert share[:, -SIDE // 4 :].min() == 1


# ---- By the change of the spikes ---------------------------------------------------------------

PLANES = 120
# Spikes per plane at full light. The stripes have about half of full light, so a pixel has 1.5
# spikes in the 60 planes of the exposure: dim light.
DIM = 0.05
STILL = np.zeros(PLANES)  # the stripes stand still
STEADY = np.linspace(0, 16, PLANES)  # they move by 8 spike pixels in the exposure
# They move by 8 spike pixels and return.
RETURN = 16 * np.minimum(np.linspace(0, 1, PLANES), np.linspace(1, 0, PLANES))


def recording_of(
    positions: np.ndarray, brightness: np.ndarray | float = 1.0, moving_columns: int = SIDE
) -> Recording:
    """Return a recording of vertical stripes.

    positions: (PLANES,) place of the stripes in each plane, in spike pixels. brightness: of the
    light in each plane. moving_columns: the stripes move in this number of columns, from the left.
    """
    columns = np.arange(SIDE)
    shifts = np.where(columns < moving_columns, positions[:, None], 0)  # (PLANES, SIDE)
    light = 0.5 + 0.45 * np.sin(2 * np.pi * (columns - shifts) / 12)  # 12 pixels wide
    rate = DIM * light * np.broadcast_to(brightness, PLANES)[:, None]
    chance = np.random.default_rng(0).random((PLANES, SIDE, SIDE))
    stream = (chance < rate[:, None, :]).astype(np.uint8)
    blurry = np.zeros((SIDE, SIDE, 3), np.float32)  # not read here
    quarter = PLANES // 4
    return Recording(blurry, stream, begin=quarter, end=PLANES - quarter, sharp=PLANES / 2)


def change_of(recording: Recording) -> np.ndarray:
    """Return the share (SIDE, SIDE) by change, with a spike pixel for each pixel of the frame."""
    view = View((SIDE, SIDE), (SIDE, SIDE), to_rgb=np.eye(3), is_display=False)
    return share_by_change(recording, view, is_good=np.ones((SIDE, SIDE), bool))


def test_noise_of_dim_light_is_no_motion():
    assert change_of(recording_of(STILL)).max() == 0


# On a narrow plane most pixels are at an edge. On a large plane, a mean near 0 adds up.
@pytest.mark.parametrize("plane", [(3, 200), (20, 400), (360, 640)])
def test_noise_is_no_motion_on_a_plane_of_any_size(plane):
    chance = np.random.default_rng(0).random((60, *plane))
    stream = (chance < 0.1).astype(np.uint8)
    recording = Recording(np.zeros((*plane, 3), np.float32), stream, begin=0, end=60, sharp=30)
    view = View(plane, plane, to_rgb=np.eye(3), is_display=False)

    assert share_by_change(recording, view, is_good=np.ones(plane, bool)).max() < 0.1


@pytest.mark.parametrize("positions", [STEADY, RETURN])
def test_a_motion_shows_in_dim_light(positions):
    assert change_of(recording_of(positions)).min() == 1


def test_a_lamp_that_flickers_is_no_motion():
    flicker = 1 + 0.5 * np.sin(np.linspace(0, 5, PLANES))

    assert change_of(recording_of(STILL, flicker)).max() == 0


def test_the_still_part_beside_a_motion_keeps_its_first_estimate():
    share = change_of(recording_of(STEADY, moving_columns=SIDE // 3))

    assert share[:, : SIDE // 4].min() == 1
    # Noise alone passes the limit in a few places, so the mean counts.
    assert share[:, -SIDE // 4 :].mean() < 0.1


@pytest.mark.parametrize("planes", [3, 4])
def test_a_stream_of_few_planes_has_a_share(planes):
    recording = recording_of(STILL)
    short = Recording(recording.blurry, recording.stream[:planes], begin=0, end=planes, sharp=1.5)

    # Three planes cannot be cut into four pieces of time, so they say nothing against a motion.
    expected = 1 if planes == 3 else 0
    assert np.all(change_of(short) == expected)


def test_no_spike_at_all_is_no_motion():
    recording = recording_of(STILL, brightness=0.0)

    assert change_of(recording).max() == 0

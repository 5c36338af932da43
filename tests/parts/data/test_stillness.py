"""data/motion/stillness/: which pixels of a frame move within the exposure.

A "share" is a number in [0, 1] for each pixel: 0 keeps the first estimate of the frame, and 1 takes
the improved frame. Two functions give a share, and the tests have a part for each function:

    share_by_reach     from the motion that was found. The tests make motions by hand, at nine times
                       of an exposure of 60 planes, on frames of 64 x 64 pixels.
    share_by_change    only from the spikes. The tests draw a stream of 120 planes, with the
                       exposure in the middle. Each pixel of each plane has a spike at random,
                       so the noise is larger than the noise of a real camera. The light has
                       stripes, because the motion of stripes is visible in the whole frame.
"""

import cv2
import numpy as np
import pytest

from data.motion.exposure import Recording
from data.motion.shifts import Motion
from data.motion.stillness import common_change, evidence
from data.motion.stillness.other_pictures import without_other_pictures
from data.motion.stillness.shares import share_by_change, share_by_reach
from data.motion.view import View
from data.spike.pictures import to_display
from data.spike.simulate import IntegrateAndFire

# Nine times of an exposure of 60 planes, from -30 to 30, in planes after the sharp instant.
TIMES = np.linspace(-30, 30, 9)
SIDE = 64  # height and width of a frame, in pixels


def motion_along(positions: np.ndarray) -> Motion:
    """Return a motion of all pixels to the right. positions: (9,) in pixels, one for each time."""
    shifts = np.zeros((len(TIMES), SIDE, SIDE, 2), np.float32)
    shifts[..., 0] = positions[:, None, None]
    no_errors = np.zeros(shifts.shape[:3], np.float32)  # (9, SIDE, SIDE)
    return Motion(TIMES, shifts, errors=no_errors)


# ---- By the reach ------------------------------------------------------------------------------


def steady(pixels: float) -> Motion:
    """Return a steady motion by this number of pixels within the exposure.

    TIMES / 60 goes from -1/2 to 1/2, so 8 pixels give the positions -4 ... 4.
    """
    return motion_along(pixels * TIMES / 60)


def there_and_back(pixels: float) -> Motion:
    """Return a motion that ends where it began, and reaches this number of pixels.

    1 - abs(TIMES) / 30 goes from 0 to 1 and back, so 8 pixels give the positions 0 ... 8 ... 0.
    """
    return motion_along(pixels * (1 - np.abs(TIMES) / 30))


# The reach of a pixel is the distance over which it moves. In dim light, noise makes motions that
# are not there, so a larger reach is needed: with n spikes, the share is about 1/2 at the reach
# LEAST_REACH + REACH_BY_LIGHT / n^REACH_POWER = 1.2 + 4.5 / n^0.7 pixels. The share is 0 below 0.6
# times this reach (STILL_BELOW), and 1 above 1.3 times this reach (MOVING_ABOVE). All these
# constants are in stillness/shares.py. The reaches in pixels are:
#
#     spikes    share 0 below    share 1/2 at    share 1 above
#     12        1.2              2.0             2.6
#     1         3.4              5.7             7.4
@pytest.mark.parametrize(("pixels", "spikes"), [(1.0, 12.0), (3.0, 1.0)])
def test_a_pixel_that_hardly_moves_keeps_its_first_estimate(pixels, spikes):
    assert share_by_reach(steady(pixels), spikes).max() == 0


@pytest.mark.parametrize(("pixels", "spikes"), [(4.0, 12.0), (10.0, 1.0)])
def test_a_pixel_that_moves_far_takes_the_improved_frame(pixels, spikes):
    assert share_by_reach(steady(pixels), spikes).min() == 1


def test_a_motion_that_ends_where_it_began_counts_as_motion():
    assert share_by_reach(there_and_back(8.0), spikes=12.0).min() == 1


def test_jumps_from_time_to_time_count_little_in_dim_light():
    # The positions 2, -2, 2, ... have a reach of 4 pixels. Such jumps are noise. In dim light
    # (fewer than 9 spikes), a curve is fitted to the positions. The curve hardly follows the jumps.
    jumps = motion_along(2.0 * (-1.0) ** np.arange(len(TIMES)))

    assert share_by_reach(jumps, spikes=3.0).max() == 0
    assert share_by_reach(jumps, spikes=12.0).min() == 1


def test_only_the_part_that_moves_takes_the_improved_frame():
    motion = steady(8.0)
    motion.shifts[:, :, : SIDE // 2] = 0  # the left half stands still

    share = share_by_reach(motion, spikes=12.0)

    # Look at the outer quarters only. Near the border, at SIDE // 2, the shifts are smoothed.
    assert share[:, : SIDE // 4].max() == 0
    assert share[:, -SIDE // 4 :].min() == 1


# ---- By the change of the spikes ---------------------------------------------------------------

PLANES = 120  # number of planes of a stream; the exposure is the middle half, 60 planes
# Spikes per plane at full light. The mean light of the stripes is half of full light. So a pixel
# has 60 * 0.05 / 2 = 1.5 spikes in the exposure, which is dim light.
DIM = 0.05
# Positions of the stripes in each plane, in spike pixels:
STILL = np.zeros(PLANES)  # the stripes stand still
STEADY = np.linspace(0, 16, PLANES)  # they move from 0 to 16, and from 4 to 12 in the exposure
# The stripes move from 0 to 8 and return to 0. In the exposure they move from 4 to 8 and to 4.
RETURN = 8 - np.abs(STEADY - 8)


def recording_of(
    positions: np.ndarray, brightness: np.ndarray | float = 1.0, moving_columns: int = SIDE
) -> Recording:
    """Return a recording of vertical stripes.

    positions: (PLANES,) how far the stripes have moved in each plane, in spike pixels.
    brightness: a factor of the light, (PLANES,) or one number for all planes.
    moving_columns: the stripes move in this number of columns, from the left.
    """
    columns = np.arange(SIDE)
    shifts = np.where(columns < moving_columns, positions[:, None], 0)  # (PLANES, SIDE)
    # Stripes that repeat after 12 pixels, with light 0.05 to 0.95.
    light = 0.5 + 0.45 * np.sin(2 * np.pi * (columns - shifts) / 12)  # (PLANES, SIDE)
    rate = DIM * light * np.broadcast_to(brightness, PLANES)[:, None]  # spikes per plane
    # A pixel has a spike if its random number is below its rate. All rows have the same rate.
    chance = np.random.default_rng(0).random((PLANES, SIDE, SIDE))
    stream = (chance < rate[:, None, :]).astype(np.uint8)
    blurry = np.zeros((SIDE, SIDE, 3), np.float32)  # not read here
    quarter = PLANES // 4
    return Recording(blurry, stream, begin=quarter, end=PLANES - quarter, sharp=PLANES / 2)


def change_of(recording: Recording) -> np.ndarray:
    """Return the share by change, (SIDE, SIDE).

    The view has a spike pixel for each pixel of the frame, at the same place: to_rgb is the matrix
    from spike pixels to RGB pixels.
    """
    view = View((SIDE, SIDE), (SIDE, SIDE), to_rgb=np.eye(3), is_display=False)
    return share_by_change(recording, view, is_good=np.ones((SIDE, SIDE), bool))


def test_noise_of_dim_light_is_no_motion():
    assert change_of(recording_of(STILL)).max() == 0


# The evidence of a motion is a sum over pixels. Each term is the change of a pixel times the change
# of its neighbours. The mean of these products is 0 if nothing moves. Two kinds of planes are hard.
# On a narrow plane, most pixels are at an edge, where neighbours are missing. On a large plane, a
# mean that is not quite 0 would add up to a large sum.
@pytest.mark.parametrize("plane", [(3, 200), (20, 400), (360, 640)])
def test_noise_is_no_motion_on_a_plane_of_any_size(plane):
    # Each pixel has a spike at random, in a tenth of the planes.
    chance = np.random.default_rng(0).random((60, *plane))
    stream = (chance < 0.1).astype(np.uint8)
    recording = Recording(np.zeros((*plane, 3), np.float32), stream, begin=0, end=60, sharp=30)
    view = View(plane, plane, to_rgb=np.eye(3), is_display=False)

    # The largest share may be a little more than 0. Among so many pixels, noise may raise the
    # evidence of a few pixels slightly above the limit of a motion.
    assert share_by_change(recording, view, is_good=np.ones(plane, bool)).max() < 0.1


def test_the_evidence_of_noise_is_0_in_the_mean():
    # Noise makes the mean of the products (see the test above) a little less than 0. On a large
    # plane this adds up. The function `product_of_noise` corrects it. Without this function, the
    # mean of the evidence would be -2.8.
    #
    # The code cuts a stream into pieces of time. A pattern has a weight for each piece, e.g.
    # (3, 1, -1, -3). The change of a pixel is the sum of its pieces, each times its weight.
    plane = (360, 640)
    seen = np.zeros(plane, np.float32)  # light of a black blurry frame
    of_frames = []
    for seed in range(3):
        chance = np.random.default_rng(seed).random((60, *plane))
        stream = (chance < 0.1).astype(np.uint8)
        pieces = evidence._pieces(stream, is_good=np.ones(plane, bool))  # (4, h, w)
        light = pieces.mean(axis=0)
        by_light = common_change.order_by_light(seen, light)
        for pattern in evidence.PATTERNS:
            change = np.tensordot(np.array(pattern, np.float32), pieces, 1)
            of_frame, _ = evidence.evidence(change, light, by_light)
            of_frames.append(of_frame)

    # Three streams and three patterns give nine numbers with a standard deviation of about 1. So
    # their mean has a standard deviation of 1 / sqrt(9) = 1/3, and the limit is three times as
    # large.
    assert abs(np.mean(of_frames)) < 1
    assert 0.5 < np.std(of_frames) < 2


def test_pixels_that_begin_with_equal_charges_are_no_motion():
    rng = np.random.default_rng(0)
    # The scene is soft clouds. Neighbours of nearly equal light fire in nearly the same planes, so
    # their spikes change together although nothing moves.
    light = cv2.GaussianBlur(rng.random((SIDE, SIDE)), (0, 0), 4)
    light = (light - light.min()) / (light.max() - light.min())
    camera = IntegrateAndFire(SIDE, SIDE, rate=0.1, rng=rng, initial_charge=0.0)
    stream = camera.run(light for _ in range(PLANES))
    blurry = np.repeat(to_display(light)[..., None], 3, axis=2).astype(np.float32)
    recording = Recording(blurry, stream, begin=30, end=PLANES - 30, sharp=PLANES / 2)

    assert change_of(recording).max() == 0


@pytest.mark.parametrize("positions", [STEADY, RETURN])
def test_a_motion_shows_in_dim_light(positions):
    assert change_of(recording_of(positions)).min() == 1


def test_a_lamp_that_flickers_is_no_motion():
    flicker = 1 + 0.5 * np.sin(np.linspace(0, 5, PLANES))  # brighter, then darker, once

    assert change_of(recording_of(STILL, flicker)).max() == 0


def test_a_lamp_that_lights_a_part_of_the_frame_is_no_motion():
    # The lamp lights the middle of the frame more than its edges. So two pixels of equal light
    # change in different ways if they are far apart. Neighbouring pixels change in the same way.
    # Without the function `without_change_of_lamps`, the evidence of the frame would be 21.
    columns = np.arange(3 * SIDE)
    lamp = np.exp(-(((columns - columns.mean()) / 50) ** 2))  # 1 in the middle, 0 at the edges
    flicker = 0.5 * np.sin(np.linspace(0, 5, PLANES))  # brighter, then darker, once
    light = 0.5 + 0.45 * np.sin(2 * np.pi * columns / 12)  # stripes
    rate = 0.2 * light * (1 + lamp * flicker[:, None])  # (PLANES, columns), spikes per plane
    chance = np.random.default_rng(0).random((PLANES, SIDE, 3 * SIDE))
    stream = (chance < rate[:, None, :]).astype(np.uint8)
    still = to_display(np.broadcast_to(light[:, None], (SIDE, 3 * SIDE, 3))).astype(np.float32)
    recording = Recording(still, stream, begin=30, end=PLANES - 30, sharp=PLANES / 2)
    plane = (SIDE, 3 * SIDE)
    view = View(plane, plane, to_rgb=np.eye(3), is_display=False)

    assert share_by_change(recording, view, is_good=np.ones(plane, bool)).max() == 0


def test_the_still_part_beside_a_motion_keeps_its_first_estimate():
    share = change_of(recording_of(STEADY, moving_columns=SIDE // 3))

    # The border of the motion is at SIDE // 3. Near the border, the share lies between 0 and 1,
    # because the evidence of a pixel is a sum over the pixels around it. So compare the outer
    # quarters.
    assert share[:, : SIDE // 4].min() == 1
    # Noise passes the limit in a few places, so look at the mean.
    assert share[:, -SIDE // 4 :].mean() < 0.1


def test_a_part_without_trusted_pixels_keeps_its_first_estimate():
    is_good = np.ones((SIDE, SIDE), bool)
    is_good[:, SIDE // 2 :] = False  # the right half is covered
    is_good[::8, : SIDE // 2] = False  # single rows are dead in the left half
    view = View((SIDE, SIDE), (SIDE, SIDE), to_rgb=np.eye(3), is_display=False)
    recording = recording_of(STEADY).with_repaired_pixels(is_good)

    share = share_by_change(recording, view, is_good)

    # The motion is still seen in the left half, because the dead rows repeat their neighbours.
    # Within 4 pixels of the border at SIDE // 2, the share lies between 0 and 1.
    assert share[:, : SIDE // 2 - 4].min() > 0.9
    assert share[:, SIDE // 2 + 4 :].max() == 0


def only_the_planes_of_one_picture(positions: np.ndarray) -> Recording:
    """Return a recording in good light, without planes that show another picture."""
    # The light is 10 times the light of `DIM`, so a pixel has 15 spikes in the exposure.
    recording = recording_of(positions, brightness=10.0)
    view = View((SIDE, SIDE), (SIDE, SIDE), to_rgb=np.eye(3), is_display=False)
    return without_other_pictures(recording, view, is_good=np.ones((SIDE, SIDE), bool))


def test_planes_that_show_another_picture_are_left_out():
    # The stripes move before and after the exposure, which has the planes 30 to 89.
    positions = np.zeros(PLANES)
    positions[30:90] = 4
    positions[90:] = 8

    recording = only_the_planes_of_one_picture(positions)

    assert len(recording.stream) == 60
    assert (recording.begin, recording.end, recording.sharp) == (0, 60, 30)


@pytest.mark.parametrize("positions", [STILL, STEADY, RETURN])
def test_planes_of_the_same_motion_stay(positions):
    assert len(only_the_planes_of_one_picture(positions).stream) == PLANES


@pytest.mark.parametrize("planes", [3, 4])
def test_a_stream_of_few_planes_has_a_share(planes):
    recording = recording_of(STILL)
    # Take only the first planes. All of these planes are in the exposure, and the sharp frame is in
    # plane 1.
    short = Recording(recording.blurry, recording.stream[:planes], begin=0, end=planes, sharp=1.5)

    # The stream is cut into four pieces of time. Three planes are too few for four pieces. In this
    # case there is no evidence against a motion, so the share is 1.
    if planes == 3:
        expected = 1
    else:
        expected = 0
    assert np.all(change_of(short) == expected)


def test_no_spike_at_all_is_no_motion():
    recording = recording_of(STILL, brightness=0.0)

    assert change_of(recording).max() == 0

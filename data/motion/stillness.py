"""Say which pixels of a frame move, so that still pixels keep their first estimate.

Where nothing moves, the blurry frame is sharp already, and the first estimate is nearly perfect. A
motion that is found there is noise, and would only do harm: on clips of a camera on a tripod, the
learned steps lost 5 dB in good light and 12 dB in dim light. So data/motion/method.py blends the
improved frame with the first estimate, by the weights of `moving_share`.

The weight of a pixel follows from its reach: the distance over which the pixel moves within the
exposure. Noise adds to the reach, and adds more if there are fewer spikes. But neighbours move
alike, and their noise differs. So the shifts are smoothed first.

A shift is the way of a pixel from the sharp instant to another time (data.motion.flow.Motion), x
and y in RGB pixels.

Tests: tests/stories/test_motion_weights.py, tests/parts/data/test_stillness.py
"""

import cv2
import numpy as np

from data.motion.flow import Motion

# Sigma in RGB pixels by which shifts are smoothed. A larger value would hide small things that move
# by themselves.
SMOOTH = 6.0
# A pixel has the weight 1/2 at about the reach LEAST_REACH + REACH_BY_LIGHT / n^POWER, where n is
# the number of spikes of a pixel of median light in the exposure: 2.0 pixels for 12 spikes, 2.9 for
# 4, and 5.7 for 1. At this reach the learned steps neither gained nor lost on three photographs,
# which moved by 0 to 7 pixels and had 0.7 to 14 spikes.
LEAST_REACH = 1.2
REACH_BY_LIGHT = 4.5
POWER = 0.7
# The weight is 0 below the first multiple of this reach, and 1 above the second multiple.
STILL = 0.6
MOVING = 1.3
# If a pixel of median light has fewer spikes than this in an exposure, the shifts of a still pixel
# differ much from one measured time to the next, because of noise. Then a curve is fitted to them.
CURVE_BELOW = 9.0
# Fewer spikes count as this number. Stars on black have a median near 0, although their motion is
# seen well: without this least number they would have to move by 20 pixels.
FEWEST_COUNTED = 0.6


def moving_share(motion: Motion, spikes: float) -> np.ndarray:
    """Return the weight (H, W) float32 in [0, 1] of the improved frame: 0 where nothing moves.

    spikes: number of spikes of a pixel of median light in the exposure.
    """
    half = LEAST_REACH + REACH_BY_LIGHT / max(spikes, FEWEST_COUNTED) ** POWER
    share = np.clip((_reach(motion, spikes) / half - STILL) / (MOVING - STILL), 0, 1)
    # A smooth step, so that no edge of the weight shows in the frame.
    return (share * share * (3 - 2 * share)).astype(np.float32)


def _reach(motion: Motion, spikes: float) -> np.ndarray:
    """Return the reach of each pixel within the exposure, (H, W) in RGB pixels.

    It is the diagonal of the smallest box that holds all positions of the pixel. E.g. a pixel that
    moves by 4 to the right and returns has the reach 4.
    """
    shifts = motion.shifts
    if spikes < CURVE_BELOW:
        shifts = _parabolas(motion)
    least = np.full(shifts.shape[1:], np.inf, np.float32)  # (H, W, 2), x and y
    largest = -least
    for shift in shifts:
        smooth = cv2.GaussianBlur(np.ascontiguousarray(shift), (0, 0), SMOOTH)
        least = np.minimum(least, smooth)
        largest = np.maximum(largest, smooth)
    return np.linalg.norm(largest - least, axis=-1)


def _parabolas(motion: Motion) -> np.ndarray:
    """Return shifts (K, H, W, 2) along the parabola that fits the shifts of each pixel best.

    The parabola is a t + b t^2, so it is 0 at the sharp instant. It hardly follows the noise of the
    single times, but it follows a motion that turns back.
    """
    t = motion.times / np.abs(motion.times).max()  # -1 to 1
    basis = np.stack((t, t**2), axis=1)  # (K, 2)
    # The matrix (K, K) that turns the values at all times into the values of the parabola that fits
    # them best, by least squares.
    to_parabola = (basis @ np.linalg.pinv(basis)).astype(np.float32)
    return np.tensordot(to_parabola, motion.shifts, 1)

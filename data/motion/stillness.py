"""Say which pixels of a frame move, so that the rest keeps its first estimate.

Where nothing moves, the blurry frame is sharp already, and the first estimate is nearly perfect.
There a motion that noise pretends would only do harm: on clips of a camera on a tripod, the learned
steps lost 5 dB in good light and 12 dB in dim light. So data/motion/method.py blends the improved
frame with the first estimate, by the weights of `moving_share`.

The weight follows from the reach of a pixel: how far it gets within the exposure. Noise also moves
a pixel, and the more so the fewer spikes there are. But noise moves neighbours differently, so the
shifts are smoothed first.

Tests: tests/stories/test_motion_weights.py, tests/parts/data/test_stillness.py
"""

import cv2
import numpy as np

from data.motion.flow import Motion

# Sigma in RGB pixels by which shifts are smoothed. A larger value would hide small things that move
# by themselves.
SMOOTH = 6.0
# A pixel counts by half if its reach is LEAST_REACH + REACH_BY_LIGHT / n^0.7 pixels, for n spikes
# of a pixel of median light in the exposure: 2.0 pixels at 12 spikes, 2.9 at 4, and 5.7 at 1. At
# about this reach, three photographs that moved by 0 to 7 pixels gained and lost alike by the
# learned steps, at 0.7 to 14 spikes.
LEAST_REACH = 1.2
REACH_BY_LIGHT = 4.5
POWER = 0.7
# Below and above these multiples of that reach, the weight is 0 and 1.
STILL = 0.6
MOVING = 1.3
# If a pixel of median light has fewer spikes than this in an exposure, the shifts of a still pixel
# jump from time to time, because noise moves them.
FEW_SPIKES = 9.0
# Least number of spikes that counts, because an exposure without any would divide by 0.
LEAST_SPIKES = 0.1


def moving_share(motion: Motion, spikes: float) -> np.ndarray:
    """Return the weight (H, W) float32 in [0, 1] of the improved frame: 0 where nothing moves.

    spikes: number of spikes of a pixel of median light in the exposure.
    """
    half = LEAST_REACH + REACH_BY_LIGHT / max(spikes, LEAST_SPIKES) ** POWER
    share = np.clip((_reach(motion, spikes) / half - STILL) / (MOVING - STILL), 0, 1)
    # A smooth step, so that no edge of the weight shows in the frame.
    return (share * share * (3 - 2 * share)).astype(np.float32)


def _reach(motion: Motion, spikes: float) -> np.ndarray:
    """Return how far each pixel gets within the exposure, (H, W) in RGB pixels.

    It is the diagonal of the smallest box that holds all positions of the pixel.
    """
    shifts = motion.shifts
    if spikes < FEW_SPIKES:
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

    A parabola follows little of the jumps of a still pixel. It passes through 0 at the sharp
    instant: a t + b t^2.
    """
    t = motion.times / np.abs(motion.times).max()  # -1 to 1
    basis = np.stack((t, t**2), axis=1)  # (K, 2)
    # The matrix (K, K) that turns values at the times into values of their best parabola.
    to_parabola = (basis @ np.linalg.pinv(basis)).astype(np.float32)
    return np.tensordot(to_parabola, motion.shifts, 1)

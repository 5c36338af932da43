"""Say which pixels of a frame move, so that still pixels keep their first estimate.

A frame is restored in two steps (restorer.py): a first estimate without any motion, and then an
improvement along the motion that was found in the spikes. If nothing moves, this motion is noise,
and the improvement makes the frame worse. E.g. the fusion operator "motion"
(models/fusion/fusion_motion.py) makes the improvement by learned steps along the motion. On clips
of a camera on a tripod, its weights lost 5 dB in good light and 12 dB in dim light.

So the improved frame is blended with the first estimate. The weight of the improved frame at a
pixel is the product of two shares. Each share answers a question, from 0 (no) to 1 (yes):

    share_by_reach     Is the motion that was found longer than noise alone makes it?
    share_by_change    Do the spikes themselves change in time, by more than noise does?

In dim light, noise alone may look like a motion of many pixels. The second question is answered
from the spikes alone, without the motion that was found. So it can be answered in dim light, too
(evidence.py).

A frame has H x W RGB pixels, and a plane (binary picture of the spike camera) has h x w spike
pixels. A shift is the displacement of a pixel from the sharp instant to another time (shifts.py), x
and y in RGB pixels. n is the number of spikes of a pixel of median light in the exposure: half of
the spike pixels have less light than this pixel.

No trained weights depend on this file, so its constants may change. The tests notice if a still
pixel counts as moving, or a moving pixel as still.

Tests: tests/parts/data/test_stillness.py (each function), tests/stories/test_motion_weights.py
(whole clips that stand still, move, or are slides)
"""

import cv2
import numpy as np

from data.motion.exposure import Recording
from data.motion.light import integrated
from data.motion.shifts import Motion, lengths_of
from data.motion.stillness.common_change import blurred
from data.motion.stillness.evidence import NO_EVIDENCE, PIECES, SURE_EVIDENCE, most_evidence
from data.motion.view import View

# ---- By the reach ------------------------------------------------------------------------------

# The reach of a pixel is the distance over which it moves within the exposure. A pixel has about
# the share 1/2 if it has the middle reach
#
#     LEAST_REACH + REACH_BY_LIGHT / n^REACH_POWER     2.0 RGB pixels for n = 12, 5.7 for n = 1
#
# With this reach, the improved frames were as good as the first estimates, on three photographs
# that moved by 0 to 7 pixels and had 0.7 to 14 spikes. With smaller values, noise in still frames
# would count as motion. With larger values, slow motions would not be improved.
LEAST_REACH = 1.2
REACH_BY_LIGHT = 4.5
REACH_POWER = 0.7
# If n is below FEWEST_COUNTED, it is replaced by FEWEST_COUNTED. In a picture of stars on black, n
# is near 0, although the motion of the stars is seen well. Without this least number, the stars
# would have to move by 20 pixels to count as moving.
FEWEST_COUNTED = 0.6
# The share rises from 0 at STILL_BELOW times the middle reach to 1 at MOVING_ABOVE times it. With
# closer limits, pixels with nearly the same shift would get different frames.
STILL_BELOW = 0.6
MOVING_ABOVE = 1.3


def share_by_reach(motion: Motion, spikes: float) -> np.ndarray:
    """Return a share (H, W) float32 in [0, 1]: 0 where the motion may be noise.

    Noise makes the reach of a pixel longer. If there are fewer spikes, there is more noise, so a
    longer reach is needed.

    spikes: n, number of spikes of a pixel of median light in the exposure.
    """
    middle_reach = LEAST_REACH + REACH_BY_LIGHT / max(spikes, FEWEST_COUNTED) ** REACH_POWER
    return _smooth_step(_reach(motion, spikes) / middle_reach, STILL_BELOW, MOVING_ABOVE)


# Sigma in RGB pixels by which shifts are smoothed, because neighbours move alike, and their noise
# differs. A smaller value would leave more noise in the reach. A larger value would hide small
# things that move on their own (test_only_the_part_that_moves_takes_the_improved_frame). No
# measurement of other values is recorded.
SHIFT_SIGMA = 6.0
# If n is below CURVE_BELOW, noise makes the shifts of a still pixel jump from one measured time to
# the next. So the reach is measured on a parabola through the shifts (`_parabolas`,
# test_jumps_from_time_to_time_count_little_in_dim_light).
CURVE_BELOW = 9.0


def _reach(motion: Motion, spikes: float) -> np.ndarray:
    """Return the reach of each pixel within the exposure, (H, W) in RGB pixels.

    The reach is the diagonal of the smallest box that holds all positions of the pixel. E.g. a
    pixel that moves by 4 to the right and returns has the reach 4.
    """
    shifts = motion.shifts
    if spikes < CURVE_BELOW:
        shifts = _parabolas(motion)
    least = np.full(shifts.shape[1:], np.inf, np.float32)  # (H, W, 2), x and y
    largest = np.full(shifts.shape[1:], -np.inf, np.float32)
    for shift in shifts:
        smooth = cv2.GaussianBlur(np.ascontiguousarray(shift), (0, 0), SHIFT_SIGMA)
        least = np.minimum(least, smooth)
        largest = np.maximum(largest, smooth)
    return lengths_of(largest - least)


def _parabolas(motion: Motion) -> np.ndarray:
    """Return shifts (K, H, W, 2) along the parabola that fits the shifts of each pixel best.

    The parabola is a t + b t^2, so it is 0 at the sharp instant (t = 0). A parabola hardly follows
    the noise of single times, but it follows a motion that turns back.
    """
    t = motion.times / np.abs(motion.times).max()  # (K,), -1 to 1
    to_values = np.stack((t, t**2), axis=1)  # (K, 2): a and b -> values of the parabola at t
    to_coefficients = np.linalg.pinv(to_values)  # (2, K): values at t -> a and b, least squares
    to_parabola = (to_values @ to_coefficients).astype(np.float32)  # (K, K)
    # (K, K) and (K, H, W, 2) give (K, H, W, 2): each time is a weighted sum over all times.
    return np.tensordot(to_parabola, motion.shifts, 1)


# ---- By the change of the spikes ---------------------------------------------------------------


def share_by_change(recording: Recording, view: View, is_good: np.ndarray) -> np.ndarray:
    """Return a share (H, W) float32 in [0, 1]: 0 where the spikes change no more than noise does.

    The evidence of a motion (evidence.py) is 0 on average with a standard deviation of 1 if nothing
    moves, and larger if something moves. The planes before and after the exposure are used, too,
    because more planes have less noise. A thing that moves in these planes probably also moves in
    the exposure.

    is_good: (h, w) bool, whether each spike pixel can be trusted.
    """
    if len(recording.stream) < PIECES:
        # The stream is too short to tell, so `share_by_reach` decides alone
        # (test_a_stream_of_few_planes_has_a_share).
        return np.ones(view.size, np.float32)
    frame_light = view.means(integrated(recording.blurry, view.is_display))
    evidence_in_frame, evidence_around = most_evidence(recording.stream, frame_light, is_good)
    # A pixel counts as moving if both its surroundings and the whole frame say so:
    #
    #     share around    share of the frame    product
    #     1               1                     1    something moves here
    #     1               0                     0    a still scene: noise looks like a motion here
    #     0               1                     0    something moves elsewhere
    #
    # The share of the frame is needed, because the evidence of the whole frame has less noise.
    share_around = _smooth_step(evidence_around, NO_EVIDENCE, SURE_EVIDENCE)  # (h, w)
    share = share_around * _smooth_step(evidence_in_frame, NO_EVIDENCE, SURE_EVIDENCE)
    share *= _trust_around(is_good)
    # Interpolate the share of spike pixels to RGB pixels.
    places = view.pixels_on_plane()
    x = places[..., 0]
    y = places[..., 1]
    return cv2.remap(share, x, y, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)


# Sigma in spike pixels of the surroundings in which pixels must be trusted. Chosen by hand: with a
# larger sigma, more pixels beside a part without trust would keep their first estimate.
TRUST_SIGMA = 2.0
# The trust is 0 if less than NO_TRUST of the pixels around can be trusted, and 1 if more than
# FULL_TRUST can be trusted. With lower limits, frames with a title lose PSNR beneath the title.
# With higher limits, frames lose PSNR if every third row of the sensor is dead
# (docs/benchmarks/quality_details.md, "What the cameras change").
NO_TRUST = 0.4
FULL_TRUST = 0.65


def _trust_around(is_good: np.ndarray) -> np.ndarray:
    """Return a share (h, w) in [0, 1]: 0 where hardly any spike pixel around can be trusted.

    No motion is known at such pixels, e.g. beneath a title in the frames, or outside the picture of
    a lens that is too small for the spike sensor.

    Without this function, test_a_part_without_trusted_pixels_keeps_its_first_estimate fails.
    """
    trusted_around = blurred(is_good.astype(np.float32), TRUST_SIGMA)
    return _smooth_step(trusted_around, NO_TRUST, FULL_TRUST)


# ---- Used by both ------------------------------------------------------------------------------


def _smooth_step(value: np.ndarray | float, begin: float, end: float) -> np.ndarray:
    """Return 0 below `begin`, 1 above `end`, and a smooth rise between them, float32.

    The rise has no corners, which would be visible in the frame as edges. E.g. a quarter of the way
    from `begin` to `end` the result is 0.16, half way 0.5, and at three quarters 0.84.
    """
    x = np.clip((value - begin) / (end - begin), 0, 1)
    return np.asarray(x * x * (3 - 2 * x), np.float32)

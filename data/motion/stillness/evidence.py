"""Measure from the spikes alone whether something moves, before any motion is found.

The number of spikes of a pixel changes in time. If nothing moves, only noise changes it. The change
is measured between pieces of time, and then multiplied with the changes of the neighbours:

    pieces       the stream (T, h, w), cut into PIECES pieces of time, as spikes per plane
    change       the sum of the pieces, each times its weight in one of the PATTERNS
    c_i          change of pixel i, without what many pixels have in common (common_change.py)
    p_i          product of c_i with the changes of the neighbours (neighbours.py). If nothing
                 moves, p_i is 0 on average, because the noise of neighbours is independent
    evidence     (sum of p_i) / (standard deviation of this sum)
                 = sum of p_i / sqrt(2 sum of p_i^2)

So if nothing moves, the evidence is 0 on average and its standard deviation is about 1, for any
light, any noise of the camera and any number of pixels.

The factor 2 is needed, because neighbours share their products. If the p_i were independent, the
variance of their sum would be the sum of p_i^2. But each pair of neighbours adds the same c_i c_j
to p_i and to p_j. E.g. with two pixels, p_1 = p_2 = c_1 c_2. The square of the sum is (2 c_1 c_2)^2
= 4 (c_1 c_2)^2, twice the sum of the squares, 2 (c_1 c_2)^2.

No trained weights depend on this file, so its constants may change. test_stillness.py notices if
noise counts as motion, or a motion as noise, and test_the_evidence_of_noise_is_0_in_the_mean
notices another mean or deviation.

Tests: tests/parts/data/test_stillness.py
"""

import itertools

import numpy as np

from data.motion.stillness.common_change import (
    blurred,
    light_around_of,
    order_by_light,
    without_change_of_equal_light,
    without_change_of_lamps,
)
from data.motion.stillness.neighbours import products_with_neighbours

# If the evidence is below NO_EVIDENCE, nothing moves. If the evidence is above SURE_EVIDENCE,
# something moves for certain. Between both limits the answer is a mixture, in which the share of
# "it moves" rises from 0 to 1 (`_smooth_step` in shares.py). E.g. the evidence 2.6 gives the share
# 0.35. other_pictures.py also uses the limits. The evidence was measured
# (docs/benchmarks/quality_details.md, "What stands still"):
#
#     still frames                                         at most 2.6
#     dim frames in which something moves, whole frame     at least 4
#     dim frames in which something moves, flat parts      less than 3
NO_EVIDENCE = 2.0
SURE_EVIDENCE = 3.5
PIECES = 4  # number of pieces of time
# A pattern of change has a weight for each piece. The weights sum up to 0, so a constant light
# gives no change. Without the second pattern, test_a_motion_shows_in_dim_light fails.
PATTERNS = (
    (3, 1, -1, -3),  # shows a steady motion
    (1, -1, -1, 1),  # shows a motion that goes there and back
    (1, -3, 3, -1),  # shows a faster shake
)


def most_evidence(
    stream: np.ndarray, frame_light: np.ndarray, is_good: np.ndarray
) -> tuple[float, np.ndarray]:
    """Return the largest evidence of all PATTERNS, for a stream of at least PIECES planes.

    Returns the evidence of the whole frame, and around each spike pixel (h, w). Different pixels
    may have their largest evidence by different patterns.

    stream: (T, h, w) in {0, 1}.
    frame_light: (h, w), the light of each spike pixel in the blurry frame.
    is_good: (h, w) bool, whether each spike pixel can be trusted.
    """
    pieces = _pieces(stream, is_good)  # (PIECES, h, w), spikes per plane
    light = pieces.mean(axis=0)  # (h, w), by the spikes
    # The pixels in the order of their light in the blurry frame. `light` decides between pixels
    # that are equal in the blurry frame.
    by_light = order_by_light(frame_light, light)
    evidence_in_frame = -np.inf
    evidence_around = np.full(frame_light.shape, -np.inf, np.float32)
    for pattern in PATTERNS:
        # E.g. by the first pattern: 3 pieces[0] + pieces[1] - pieces[2] - 3 pieces[3].
        change = np.tensordot(np.array(pattern, np.float32), pieces, 1)  # (h, w)
        in_frame, around = evidence(change, light, by_light)  # by this pattern
        evidence_in_frame = max(evidence_in_frame, in_frame)
        evidence_around = np.maximum(evidence_around, around)
    return evidence_in_frame, evidence_around


def _pieces(stream: np.ndarray, is_good: np.ndarray) -> np.ndarray:
    """Return the spikes per plane in each piece of a stream (T, h, w): (PIECES, h, w) float32.

    Pixels that cannot be trusted get 0 in each piece, so they never change.
    """
    edges = np.linspace(0, len(stream), PIECES + 1).round().astype(int)
    rates = []
    for begin, end in itertools.pairwise(edges):
        rates.append(stream[begin:end].mean(axis=0, dtype=np.float32) * is_good)
    return np.stack(rates)


# Sigma in spike pixels of the surroundings over which the evidence of a pixel is summed up. With a
# smaller sigma, a motion does not stand out of the noise of dim light
# (test_a_motion_shows_in_dim_light). With a larger sigma, the still background of a small thing
# that moves would count as moving
# (test_the_still_part_beside_a_motion_keeps_its_first_estimate).
EVIDENCE_SIGMA = 8.0
# Divisors are at least this number. Changes are numbers of spikes per plane, at least about 1e-3,
# and their products are about 1e-6 or more. Without any change, 0 is divided by this number.
SMALLEST = 1e-12


def evidence(
    change: np.ndarray, light: np.ndarray, by_light: np.ndarray
) -> tuple[float, np.ndarray]:
    """Return the evidence of motion in the whole frame, and around each spike pixel (h, w) float32.

    change: (h, w): by one of the `PATTERNS` (`most_evidence`), or the rates in the half exposure
    after a time, minus the rates in the half exposure before this time (other_pictures.py).
    light: (h, w), spikes per plane.
    by_light: (h w,), numbers of the pixels in the order of their light in the blurry frame.
    """
    light_around = light_around_of(light)
    # Take out what pixels of equal light have in common, e.g. if the whole frame becomes brighter.
    change = without_change_of_equal_light(change, by_light)
    # Take out what pixels near one another have in common, e.g. if a lamp lights a part
    # (test_a_lamp_that_lights_a_part_of_the_frame_is_no_motion).
    change = without_change_of_lamps(change, light, light_around)  # c_i
    product = products_with_neighbours(change, light, light_around)  # p_i
    square = product**2
    deviation = max(float(np.sqrt(2 * square.sum())), SMALLEST)
    evidence_in_frame = float(product.sum()) / deviation

    # Around a pixel, the sums have Gaussian weights g of the sigma s = EVIDENCE_SIGMA:
    #
    #     sum of g p_i / sqrt(2 sum of g^2 p_i^2)
    #
    # Both sums are blurs, because g^2 is a narrower Gaussian, times a factor. At the distance d:
    #
    #     g                                exp(-d^2 / (2 s^2)) / (2 pi s^2)
    #     Gaussian of sigma s / sqrt(2)    exp(-d^2 / s^2) / (pi s^2)
    #     g^2                              exp(-d^2 / s^2) / (4 pi^2 s^4)
    #                                      = (Gaussian of sigma s / sqrt(2)) / (4 pi s^2)
    factor = 1 / (4 * np.pi * EVIDENCE_SIGMA**2)
    sum_around = blurred(product, EVIDENCE_SIGMA)
    squares_around = factor * blurred(square, EVIDENCE_SIGMA / np.sqrt(2))
    evidence_around = sum_around / np.maximum(np.sqrt(2 * squares_around), SMALLEST)
    return evidence_in_frame, evidence_around

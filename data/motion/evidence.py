"""Measure the evidence of a motion: how much the spikes change together in neighbouring pixels.

Tests: tests/parts/data/test_stillness.py
"""

import itertools
from typing import NamedTuple

import cv2
import numpy as np

# The stream of a recording is cut into PIECES pieces of time. A pattern of change has a weight for
# each piece. The weights sum up to 0, so a constant light gives no change. Without the second
# pattern, test_a_motion_shows_in_dim_light fails.
PIECES = 4
PATTERNS = (
    (3, 1, -1, -3),  # shows a steady motion
    (1, -1, -1, 1),  # shows a motion that goes there and back
    (1, -3, 3, -1),  # shows a faster shake
)
# With less evidence than NO_EVIDENCE the share is 0, and with more than SURE_EVIDENCE it is 1. The
# evidence is in standard deviations of the noise, so both hold for any light and any size of a
# frame. The evidence of whole frames, measured on clips of three photographs:
#
#     still clips, in all lights                        at most 2.6
#     clips in dim light that gain by the improvement   4 to 34, but below 3 in their flat parts
#
# With 1.5 and 3 around a pixel, slow clips lost up to 0.25 dB, and no clip gained above 0.04 dB.
NO_EVIDENCE = 2.0
SURE_EVIDENCE = 3.5


def most_evidence(
    stream: np.ndarray, frame_light: np.ndarray, is_good: np.ndarray
) -> tuple[float, np.ndarray]:
    """Return the largest evidence of all PATTERNS, for a stream of at least PIECES planes.

    Returns the evidence of the whole frame, and around each spike pixel (h, w). The pattern with
    the largest evidence may be another one at each pixel.

    frame_light: (h, w), the light of each spike pixel in the blurry frame.
    is_good: (h, w) bool, whether each spike pixel can be trusted.
    """
    pieces = _pieces(stream, is_good)  # (PIECES, h, w), spikes per plane
    light = pieces.mean(axis=0)  # (h, w)
    by_light = order_by_light(frame_light, light)
    of_frame = -np.inf
    around = np.full(frame_light.shape, -np.inf, np.float32)
    for pattern in PATTERNS:
        # The sum of the pieces, each times its weight. E.g. 3 p_0 + p_1 - p_2 - 3 p_3.
        change = np.tensordot(np.array(pattern, np.float32), pieces, 1)  # (h, w)
        whole, of_pixels = evidence(change, light, by_light)
        of_frame = max(of_frame, whole)
        around = np.maximum(around, of_pixels)
    return of_frame, around


def _pieces(stream: np.ndarray, is_good: np.ndarray) -> np.ndarray:
    """Return the spikes per plane in each piece of a stream (T, h, w): (PIECES, h, w) float32.

    Pixels that cannot be trusted get 0 in each piece, so they never change.
    """
    edges = np.linspace(0, len(stream), PIECES + 1).round().astype(int)
    rates = []
    for begin, end in itertools.pairwise(edges):
        rates.append(stream[begin:end].mean(axis=0, dtype=np.float32) * is_good)
    return np.stack(rates)


def order_by_light(frame_light: np.ndarray, light: np.ndarray) -> np.ndarray:
    """Return the numbers of all spike pixels, the darkest first: (h w,) int.

    frame_light: (h, w), the light of each spike pixel in the blurry frame. It has no noise of the
    spikes.
    light: (h, w), spikes per plane of each pixel. They decide between pixels that are equal in
    `frame_light`, e.g. where the blurry frame is clipped.
    """
    # Pixels that are equal in both come in a random order. In the order of their places, neighbours
    # would follow one another. Then `_without_change_of_equal_light` would take out what neighbours
    # have in common: their motion.
    mixed = np.random.default_rng(0).permutation(frame_light.size)
    # np.lexsort sorts by the last key first.
    return np.lexsort((mixed, light.ravel(), frame_light.ravel()))


# Sigma in spike pixels of the weights of the neighbours of a pixel. It is about as wide as an edge
# in the picture of the spikes. With 0.8 or 1.8 the evidence is nearly the same.
NEIGHBOUR_SIGMA = 1.2
# Sigma in spike pixels of the surroundings over which the evidence of a pixel is summed up. In
# smaller surroundings, a motion does not stand out of the noise of dim light
# (test_a_motion_shows_in_dim_light). With larger ones, the still background of a small thing that
# moves would count as moving (test_the_still_part_beside_a_motion_keeps_its_first_estimate).
EVIDENCE_SIGMA = 8.0
# Sigma in spike pixels of the surroundings in which a common change of the light is taken out, e.g.
# the flicker of a lamp. With 40, a lamp that lights a part of the frame would count as motion
# (test_a_lamp_that_lights_a_part_of_the_frame_is_no_motion). With 4, `_product_of_noise` would be
# wrong, because it assumes that neighbours have nearly the same surroundings
# (test_the_evidence_of_noise_is_0_in_the_mean).
LIGHT_SIGMA = 12.0
# Number of pixels of about equal light whose common change is taken out. The sensor may have begun
# with the same charge in all pixels, as simulators do. Then pixels of equal light fire in step, and
# noise seems to move. With 257 pixels, such a still scene had an evidence of up to 5.2, and with 65
# pixels at most 2.4 (test_pixels_that_begin_with_equal_charges_are_no_motion). Fewer pixels would
# take out more of a motion.
EQUAL_LIGHT_PIXELS = 65
# Divisors are at least this number. Changes are numbers of spikes per plane, at least about 1e-3,
# and their products are about 1e-6 or more. Without any change, 0 is divided by this number.
SMALLEST = 1e-12


def evidence(
    change: np.ndarray, light: np.ndarray, by_light: np.ndarray
) -> tuple[float, np.ndarray]:
    """Return the evidence of motion in the whole frame, and around each spike pixel (h, w) float32.

        c_i = the change of pixel i, without what pixels of equal light have in common, and
              without what all pixels around have in common
        n_i = the weighted sum of c_j over the neighbours j of pixel i, without i itself
        p_i = c_i n_i - (the mean of c_i n_i if nothing moves, from `_product_of_noise`)

        evidence = sum of p_i / sqrt(2 sum of p_i^2)

    If nothing moves, its mean is 0 and its standard deviation about 1, for any size of a frame. The
    reason for the 2: each pair of neighbours i and j adds c_i c_j twice, in c_i n_i and in c_j n_j.
    Both are equal, so the variance of the sum is twice the sum of p_i^2.
    test_the_evidence_of_noise_is_0_in_the_mean notices another mean or deviation.

    change: (h, w), one of `PATTERNS` applied to the pieces of each pixel, or the difference of two
    windows of time. light: (h, w), spikes per plane.
    by_light: (h w,), numbers of the pixels in the order of their light in the blurry frame.
    """
    light_around = _light_around(light)
    change = _without_change_of_equal_light(change, by_light)
    change = _without_change_of_lamps(change, light, light_around)
    product = change * _sum_of_neighbours(change)  # c_i n_i, (h, w)
    product -= _product_of_noise(change, light, light_around)  # p_i
    square = product**2
    whole = float(product.sum()) / max(float(np.sqrt(2 * square.sum())), SMALLEST)

    # Around a pixel, the same sums are taken with Gaussian weights g, which sum up to 1. In the sum
    # of squares the weights are g^2 = factor x (a Gaussian of sigma EVIDENCE_SIGMA / sqrt(2)).
    factor = 1 / (4 * np.pi * EVIDENCE_SIGMA**2)
    sum_around = blurred(product, EVIDENCE_SIGMA)
    squares_around = factor * blurred(square, EVIDENCE_SIGMA / np.sqrt(2))
    around = sum_around / np.maximum(np.sqrt(2 * squares_around), SMALLEST)
    return whole, around


def _without_change_of_equal_light(change: np.ndarray, by_light: np.ndarray) -> np.ndarray:
    """Return the change (h, w) without what pixels of about equal light have in common.

    by_light: (h w,), numbers of the pixels in the order of their light.
    """
    in_order = change.ravel()[by_light]  # (h w,), the change of the darkest pixel first
    # In this order, pixels of about equal light are neighbours. So their common change is the mean
    # over a window.
    window = (EQUAL_LIGHT_PIXELS, 1)  # width and height
    common = cv2.blur(in_order[None], window, borderType=cv2.BORDER_REFLECT)[0]
    # Back to the places of the pixels.
    without = np.empty_like(in_order)
    without[by_light] = in_order - common
    return without.reshape(change.shape)


def _without_change_of_lamps(
    change: np.ndarray, light: np.ndarray, light_around: np.ndarray
) -> np.ndarray:
    """Return the change (h, w) without what the pixels around have in common, as under a lamp.

    If a lamp becomes brighter that lights the whole frame, pixels of equal light change alike, and
    their common change is taken out already. But a lamp may light only a part of the frame. Then
    all pixels around a pixel change in proportion to their light: change = brighter_by * light. So
    `brighter_by` is measured around each pixel, and brighter_by * light is taken out.
    test_a_lamp_that_lights_a_part_of_the_frame_is_no_motion needs this function.

    change, light, light_around: (h, w) each.
    """
    brighter_by = blurred(change, LIGHT_SIGMA) / light_around
    return change - brighter_by * light


def _light_around(light: np.ndarray) -> np.ndarray:
    """Return the mean light around each pixel, (h, w), above 0."""
    light_around = blurred(light, LIGHT_SIGMA)
    # The result is a divisor. Where no pixel around has a spike, the dividend is 0 as well, so 1
    # gives 0.
    return np.where(light_around > 0, light_around, 1)


def _sum_of_neighbours(values: np.ndarray) -> np.ndarray:
    """Return the weighted sum of the neighbours of each pixel (h, w), without the pixel itself.

    Beyond the edge of the picture there are no neighbours. A reflected picture would make a pixel
    at the edge a neighbour of itself, so noise would pass for motion there.
    """
    radius = round(3 * NEIGHBOUR_SIGMA)
    kernel = cv2.getGaussianKernel(2 * radius + 1, NEIGHBOUR_SIGMA, cv2.CV_32F)
    own_weight = float(kernel.max()) ** 2
    whole_sum = cv2.sepFilter2D(values, -1, kernel, kernel, borderType=cv2.BORDER_CONSTANT)
    return whole_sum - own_weight * values


def _product_of_noise(
    change: np.ndarray, light: np.ndarray, light_around: np.ndarray
) -> np.ndarray:
    """Return the mean of c_i n_i if nothing moves (`evidence` explains the letters), (h, w).

    The change e_i of a pixel by noise has nothing in common with the change of its neighbours. But
    `_without_change_of_lamps` mixes them a little:

        c_i = e_i - (L_i / M_i) sum over k of g_ik e_k

    L is the light, M the mean light around, and g are the weights of a mean over the pixels around.
    The mean of e_i e_j is 0, and the mean of e_i^2 is the variance v_i. So the mean of c_i c_j, for
    neighbours i and j, is

        - g_ij (L_i v_j / M_i + L_j v_i / M_j) + L_i L_j / (M_i M_j) sum over k of g_ik g_jk v_k

    Two things make this simpler:

        neighbours are near     g_ij is about g_ii, M_j is about M_i, and so on
        v_i = V L_i / M_i       because the variance is about proportional to the light. V is the
                                mean variance around, and so the mean of the squares of the changes

    With N_i the weighted sum of L over the neighbours of i, the mean of c_i n_i is

        (sum over k of g_ik^2 - 2 g_ii) V L_i N_i / M_i^2

    The change by equal light mixes pixels, too, but those are seldom neighbours.

    change, light, light_around: (h, w) each.
    """
    rows = _weights_along(light.shape[0])
    columns = _weights_along(light.shape[1])
    g_own = np.outer(rows.of_itself, columns.of_itself)  # g_ii, (h, w)
    g_squares = np.outer(rows.squares, columns.squares)  # sum over k of g_ik^2, (h, w)
    V = blurred(change**2, LIGHT_SIGMA)
    N = _sum_of_neighbours(light)
    return (g_squares - 2 * g_own) * V * light * N / light_around**2


class Weights(NamedTuple):
    """The weights of the mean around a pixel (`blurred` by LIGHT_SIGMA), along one axis."""

    of_itself: np.ndarray  # (n,): for each pixel, the weight of the pixel itself
    squares: np.ndarray  # (n,): for each pixel, the sum of the squares of all weights


def _weights_along(length: int) -> Weights:
    """Return the weights for each pixel of an axis. They are larger near the ends.

    length: number of pixels along the axis.
    """
    # A picture of a single 1 shows where the weight of this pixel goes to: each column here.
    singles = np.eye(length, dtype=np.float32)
    radius = round(4 * LIGHT_SIGMA)  # as `blurred` has it
    down = (1, 2 * radius + 1)  # size of the kernel, x and y
    weights = cv2.GaussianBlur(singles, down, LIGHT_SIGMA, borderType=cv2.BORDER_REFLECT)
    return Weights(of_itself=np.diag(weights), squares=(weights**2).sum(axis=1))


def blurred(values: np.ndarray, sigma: float) -> np.ndarray:
    """Return the mean of the values (h, w) around each pixel, with Gaussian weights."""
    return cv2.GaussianBlur(values, (0, 0), sigma, borderType=cv2.BORDER_REFLECT)

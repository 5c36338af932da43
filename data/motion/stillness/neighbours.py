"""Multiply the change of each spike pixel with the changes of its neighbours.

If an edge moves, the pixels along the edge change together, so the product of their changes is
above 0. If nothing moves, the changes are noise. Noise is independent in neighbours, so the product
is 0 on average. With

    c_i    change of pixel i, without what many pixels have in common (common_change.py)
    n_i    weighted sum of c_j over the neighbours j of pixel i, without i itself

the product of pixel i is

    p_i = c_i n_i - (mean of c_i n_i if nothing moves)

The subtracted mean is a little below 0, because `without_change_of_lamps` (common_change.py) has
subtracted the mean change of the pixels around pixel i from the change of pixel i. So c_i has a
little of the noise of the neighbours. In the sum over a large plane, even a small mean would look
like a motion. `product_of_noise` computes the mean.

No trained weights depend on this file, so its constants may change.
test_the_evidence_of_noise_is_0_in_the_mean notices a mean that is not 0: without
`product_of_noise`, the evidence of noise would be -2.8 on average.

Tests: tests/parts/data/test_stillness.py
"""

from typing import NamedTuple

import cv2
import numpy as np

from data.motion.stillness.common_change import LIGHT_SIGMA, blurred, blurred_columns


def products_with_neighbours(
    change: np.ndarray, light: np.ndarray, light_around: np.ndarray
) -> np.ndarray:
    """Return the product p_i of each pixel, (h, w): c_i n_i, minus its mean if nothing moves.

    n_i is the weighted sum of the changes of the neighbours.

    change: (h, w), c_i. light: (h, w), spikes per plane.
    light_around: (h, w), mean of the light around each pixel.
    """
    product = change * _sum_of_neighbours(change)  # c_i n_i
    product -= product_of_noise(change, light, light_around)
    return product


# Sigma in spike pixels of the weights of the neighbours of a pixel. The sigma is about the width of
# an edge in the picture of the spikes. With 0.8 or 1.8 the evidence is nearly the same.
NEIGHBOUR_SIGMA = 1.2


def _sum_of_neighbours(values: np.ndarray) -> np.ndarray:
    """Return the weighted sum of the neighbours of each pixel (h, w), without the pixel itself.

    The weights are a Gaussian on 9 x 9 pixels, e.g. 0.08 for the pixel on the right. The weight of
    the pixel itself would be 0.11. The pixel itself is left out, because the square of its noise is
    not 0 on average.

    Values beyond the edge of the picture count as 0. If the picture were reflected, a pixel at the
    edge would be a neighbour of itself, and noise would count as motion at the edge.
    """
    radius = round(3 * NEIGHBOUR_SIGMA)
    kernel = cv2.getGaussianKernel(2 * radius + 1, NEIGHBOUR_SIGMA, cv2.CV_32F)  # along x or y
    whole_sum = cv2.sepFilter2D(values, -1, kernel, kernel, borderType=cv2.BORDER_CONSTANT)
    own_weight = float(kernel.max()) ** 2  # of the pixel itself: the largest along x, and along y
    return whole_sum - own_weight * values


def product_of_noise(change: np.ndarray, light: np.ndarray, light_around: np.ndarray) -> np.ndarray:
    """Return the mean of c_i n_i if nothing moves, (h, w).

    c_i is the change of pixel i, and n_i the weighted sum of the changes of its neighbours. The
    mean is

        (sum over k of g_ik^2 - 2 g_ii) V L_i N_i / M_i^2

        L       light, spikes per plane                          `light`
        M       mean light around the pixel                      `light_around`
        N       weighted sum of the light of the neighbours      `_sum_of_neighbours`
        V       mean square of the changes around the pixel
        g_ik    weight of pixel k in the mean around pixel i     `_weights_along`

    The formula follows from what `without_change_of_lamps` does to noise. The noise e_i of pixel i
    has the variance v_i, and is independent of the noise of other pixels. What is left of the noise
    is

        c_i = e_i - (L_i / M_i) sum over k of g_ik e_k

    So the noise of a pixel is in its own c, and a little of it in the c of each neighbour. In the
    product c_i c_j of neighbours, only a noise times itself is not 0 on average. This gives three
    terms:

        e_i in c_i, and in the sum of c_j    - (L_j / M_j) g_ji v_i
        e_j in the sum of c_i, and in c_j    - (L_i / M_i) g_ij v_j
        each e_k in both sums                + L_i L_j / (M_i M_j) sum over k of g_ik g_jk v_k

    The three terms become simple, because neighbours have nearly the same surroundings, and because
    the variance is about proportional to the light:

        g_ij and g_ji become g_ii        g_jk becomes g_ik        M_j becomes M_i
        v_i becomes V L_i / M_i          v_j becomes V L_j / M_i
        v_k becomes V, its mean over the surroundings

    With these values, the mean of c_i c_j is (sum over k of g_ik^2 - 2 g_ii) V L_i L_j / M_i^2.
    E.g. far from the edges, the Gaussian of the sigma 12 has g_ii = 1 / (2 pi 12^2) = 0.0011, and
    the sum of g_ik^2 is half of it. So the factor in brackets is -0.0017: the mean is negative.
    n_i is a weighted sum of c_j over the neighbours j. So the mean of c_i n_i has N_i, the same
    weighted sum of L_j, in place of L_j.

    `without_change_of_equal_light` mixes the noise of pixels, too, but these pixels are seldom
    neighbours. So the formula has no term for this function.

    change, light, light_around: (h, w) each.
    """
    rows = _weights_along(light.shape[0])
    columns = _weights_along(light.shape[1])
    # g is the product of a weight along y and a weight along x.
    g_own = np.outer(rows.of_itself, columns.of_itself)  # g_ii, (h, w)
    g_squares = np.outer(rows.squares, columns.squares)  # sum over k of g_ik^2, (h, w)
    V = blurred(change**2, LIGHT_SIGMA)
    N = _sum_of_neighbours(light)
    return (g_squares - 2 * g_own) * V * light * N / light_around**2


class _Weights(NamedTuple):
    """The weights g of the mean around a pixel (`blurred` by LIGHT_SIGMA), along one axis."""

    of_itself: np.ndarray  # (length,): for each pixel, the weight of the pixel itself
    squares: np.ndarray  # (length,): for each pixel, the sum of the squares of all weights


def _weights_along(length: int) -> _Weights:
    """Return the weights for each pixel of an axis.

    Near the ends of the axis the weights are larger, because the picture is reflected at its edges
    (`blurred_columns`). So the mean takes some pixels twice.

    length: number of pixels along the axis.
    """
    # Column k of the unit matrix is 1 at pixel k, and 0 at the other pixels. So entry i of the
    # blurred column is g_ik, the weight of pixel k in the mean around pixel i.
    unit = np.eye(length, dtype=np.float32)
    weights = blurred_columns(unit, LIGHT_SIGMA)  # g_ik in row i, column k
    return _Weights(of_itself=np.diag(weights), squares=(weights**2).sum(axis=1))

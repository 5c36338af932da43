"""Sum the normal equations of a round over all pixels of all views: H = J' W J and g = J' W r.

A round improves the matrix and the times once (rounds.py). Without priors and limits, its step is
-H^-1 g, a step of Gauss-Newton. A view with n compared pixels has the residuals r (n,) and their
weights w (n,), the diagonal of W (explanation.py). J (n, k) has a column for each of the k
unknowns, the derivative of r by this unknown (J' is the transpose of J):

    columns   unknowns
    4         changes of the matrix: shift right, shift down, scale, turn
    3         the times: middle and length of the exposure, in planes, and the roll (how much later
              lower rows are exposed). If the times are not fitted (Estimate.fits_times), these
              columns are left out
    5         a, the coefficients of the features of the frame

Two effects would make the times wrong:

    misfit   The frame cannot explain some parts of a scene, e.g. because of parallax. The residuals
             of such parts grow with the length of the exposure. So the fit would make the exposure
             too short. `_bias_by_misfit` computes what these parts add to g, and
             `normal_equations` subtracts the result
    noise    The noise of the spikes makes the diagonal of H larger, as motion does.
             `_noise_of_times` computes how much noise adds. times.py needs this number for its
             decisions. H itself is not corrected

What must stay: H and g, and the order of their sums, because they decide the bits of each result
(fit.py says how to check them).

Tests: tests/parts/data/test_registration_fit.py fails if the bias is not subtracted
(test_a_camera_is_found_from_a_start_that_is_off), and if the noise is 0
(test_a_pan_leaves_aligned_cameras_as_they_are).
"""

from dataclasses import dataclass

import numpy as np

from data.cameras.registration.derivatives import (
    LENGTH_COLUMN,
    MATRIX_AND_TIMES,
    MATRIX_CHANGES,
    derivatives,
    tiles,
)
from data.cameras.registration.details import Details
from data.cameras.registration.estimate import Estimate
from data.cameras.registration.explanation import Explanation
from data.cameras.registration.view import FEATURES


@dataclass(frozen=True)
class NormalEquations:
    """The sums over all views of a round. k is the number of unknowns."""

    H: np.ndarray  # (k, k)
    g: np.ndarray  # (k,), after the bias by misfit was subtracted
    # What each tile of each view adds to g, (k,) each. A tile is one of TILES x TILES rectangles of
    # the spike plane.
    g_of_tiles: list[np.ndarray]
    # What noise adds to the diagonal of H for middle, length and roll, (3,). H contains this noise.
    time_noise: np.ndarray
    removed_bias: float  # what was subtracted from the element of g for the length


def normal_equations(
    estimate: Estimate, views: list[Details], explanation: Explanation
) -> NormalEquations:
    """Sum H and g over the views."""
    k = MATRIX_CHANGES + FEATURES  # 4 + 5 = 9
    if estimate.fits_times:
        k = MATRIX_AND_TIMES + FEATURES  # 7 + 5 = 12
    H = np.zeros((k, k))
    g = np.zeros(k)
    g_of_tiles = []
    time_noise = np.zeros(3)
    removed_bias = 0.0
    of_views = zip(views, explanation.weights, explanation.residuals, strict=True)
    for details, w, r in of_views:
        J = _jacobian(estimate, details, explanation.a)  # (n, k)
        WJ = J * w[:, None]  # W J
        H = H + WJ.T @ J
        g_of_pixels = WJ * r[:, None]  # (n, k): what each pixel adds to g
        g = g + g_of_pixels.sum(axis=0)
        g_of_tiles += _sums_of_tiles(estimate, details, g_of_pixels)
        if estimate.fits_times:
            bias = _bias_by_misfit(details, w, r, estimate.length)
            g[LENGTH_COLUMN] -= bias
            removed_bias += bias
            time_noise += _noise_of_times(details, w)
    return NormalEquations(
        H=H, g=g, g_of_tiles=g_of_tiles, time_noise=time_noise, removed_bias=removed_bias
    )


def _jacobian(estimate: Estimate, details: Details, a: np.ndarray) -> np.ndarray:
    """Return J (n, k) of one view: the derivatives of its residuals r = s - F a.

    s are the details of the summed spikes, and F the details of the five features of the frame
    (details.py).

    a: the coefficients of the features, (5,).
    """
    predicted = details.features @ a.astype(np.float32)  # F a, (h, w)
    images = derivatives(estimate, details, predicted)  # by matrix and times, (h, w) each
    if not estimate.fits_times:
        images = images[:MATRIX_CHANGES]  # the first 4 of 7: without the three times
    columns = [image[details.is_compared] for image in images]  # (n,) each
    by_matrix_and_times = np.stack(columns, axis=1).astype(float)  # (n, 7) or (n, 4)
    # The derivative of r = s - F a by a is -F.
    by_coefficients = -details.features[details.is_compared]  # (n, 5)
    return np.concatenate((by_matrix_and_times, by_coefficients), axis=1)


# The plane is cut into TILES x TILES tiles. times.py computes the errors of the times from what the
# tiles add to g, and takes the tiles as independent. Pixels near one another have similar errors,
# e.g. all pixels of one moving object, so they should lie in one tile. With smaller tiles, the
# computed errors would be too small.
TILES = 4


def _sums_of_tiles(
    estimate: Estimate, details: Details, g_of_pixels: np.ndarray
) -> list[np.ndarray]:
    """Return what the pixels of each tile add to g, (k,) for each tile that has a pixel.

    g_of_pixels: what each compared pixel adds to g, (n, k).
    """
    sums = []
    tile_of_pixel = tiles(estimate.coordinates, details, TILES)  # (n,)
    for tile in np.unique(tile_of_pixel):
        is_in_tile = tile_of_pixel == tile
        sums.append(g_of_pixels[is_in_tile].sum(axis=0))
    return sums


def _bias_by_misfit(details: Details, w: np.ndarray, r: np.ndarray, length: float) -> float:
    """Return what misfit adds to the element of g for the length L in one view: the bias.

        bias = square / L        square: sum of w misfit^2 over the pixels

    The residuals consist of noise and misfit. Misfit is what the frame cannot explain at any L,
    e.g. an object at another depth. The spikes are summed over the exposure, so the misfit grows in
    proportion to L. Least squares would choose a smaller L to reduce the misfit, although L is
    right.

    The formula in steps. E.g. with c = 0.08 and L = 50, the square is 200 and the bias 4.

        square = c L^2                                  the misfit is proportional to L
        bias   = half of the derivative of the square   because g is half of the derivative of the
               = c L = square / L                       sum of w r^2

    w, r: weights and residuals of the compared pixels, (n,) each. length: L, in planes.

    If the bias is not subtracted, test_a_camera_is_found_from_a_start_that_is_off finds the share
    0.52, but the true share is 1.
    """
    # The square of the misfit is what remains of the squared residuals without the noise.
    mean_weight = float(w.mean())
    square_of_noise = mean_weight * details.noise.of_sums
    square_of_residuals = (w * r**2).sum()
    square_of_misfit = max(0.0, square_of_residuals - square_of_noise)
    return square_of_misfit / length


def _noise_of_times(details: Details, w: np.ndarray) -> np.ndarray:
    """Return what noise adds to the diagonal of H for middle, length and roll, (3,), in one view.

    The columns of J for the times are computed from two rates of spikes, at the start and at the
    end of the exposure (`derivatives`):

        column        made of the two rates    its variance
        middle        their difference         2 variances of a rate
        length        half of their sum        1/2 variance of a rate

    The variances of two independent rates add up: 1 + 1 = 2, and for halves 1/4 + 1/4 = 1/2. E.g. a
    mean weight of 0.9, `of_ends` 40 and reach 8: the variance of a rate is 0.9 * 40 / 16^2 = 0.14,
    so middle and length get 0.28 and 0.07.

    w: weights of the residuals of the compared pixels, (n,).
    """
    mean_weight = float(w.mean())
    # A rate is a number of spikes divided by 2 reach planes, so its variance is the variance of the
    # number divided by (2 reach)^2.
    rate_noise = mean_weight * details.noise.of_ends / (4 * details.reach**2)
    of_middle = 2
    of_length = 0.5
    of_roll = 1  # any number, because no result depends on the noise of the roll
    return rate_noise * np.array((of_middle, of_length, of_roll))


def with_larger_diagonal(H: np.ndarray, P: np.ndarray) -> np.ndarray:
    """Return H + P, with a little more on the diagonal, (k, k). P: the weights of priors, (k,).

    In a clip without texture, H is nearly 0, and without the addition the equations could not be
    solved.
    """
    # 1e-7 of the diagonal changes a step by far less than SMALL_SHIFT, the size of a step at which
    # the rounds end (rounds.py). If a diagonal element is 0, only 1e-12 is added to it.
    added_to_diagonal = P + 1e-7 * np.diag(H) + 1e-12
    return H + np.diag(added_to_diagonal)

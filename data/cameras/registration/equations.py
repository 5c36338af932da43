"""Sum the normal equations of a round over all pixels of all views: H = J' W J and g = J' W r.

A round improves the matrix and the times once (rounds.py). A view with n compared pixels has the
residuals r (n,) and their weights w (n,), which are the diagonal of W (explanation.py). J (n, k)
has a column for each of the k unknowns, the derivative of r by this unknown:

    columns   unknowns
    4         changes of the matrix: shift right, shift down, scale, turn
    3         the times: middle and length of the exposure, in planes, and the roll (how much later
              lower rows are exposed). If the times are not fitted (Estimate.fits_times), these
              columns are left out
    5         a, the coefficients of the features of the frame

J' is the transpose of J. Without priors and limits, the step of the round is -H^-1 g.

Besides H and g, a round needs two corrections, because J and r are noisy:

    pull    The frame cannot explain some parts of a scene at any length of the exposure. In g,
            these parts ask for a shorter exposure although the length is right. Their contribution
            to g is subtracted (`_pull_of_misfit`)
    noise   The noise of the spikes makes the diagonal of H larger, as motion does. H stays as it
            is. The size of this addition is returned for times.py (`_noise_of_times`)

What must stay: H and g, and the order of their sums, because they decide the bits of each result.
test_a_camera_is_found_from_a_start_that_is_off notices if the pull is missing, and
test_a_pan_leaves_aligned_cameras_as_they_are notices if the noise is 0.

Tests: tests/parts/data/test_registration_fit.py
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
    g: np.ndarray  # (k,), after the pull was subtracted
    of_tiles: list[np.ndarray]  # sum of what the pixels of a tile add to g, (k,) for each tile
    # What noise adds to the diagonal of H for middle, length and roll, (3,). H contains it.
    time_noise: np.ndarray
    removed_pull: float  # what was subtracted from g for the length


def normal_equations(
    estimate: Estimate, views: list[Details], explanation: Explanation
) -> NormalEquations:
    """Sum H and g over the views. Pixel i adds row i of W J, times r_i, to g."""
    # Number of columns before the five columns of a: 7 with the times, 4 without them.
    number_of_changes = MATRIX_AND_TIMES if estimate.fits_times else MATRIX_CHANGES
    k = number_of_changes + FEATURES  # 12 or 9
    H = np.zeros((k, k))
    g = np.zeros(k)
    of_tiles = []
    time_noise = np.zeros(3)
    removed_pull = 0.0
    of_views = zip(views, explanation.weights, explanation.residuals, strict=True)
    for details, w, r in of_views:
        J = _jacobian(estimate, details, explanation.a, number_of_changes)  # (n, k)
        WJ = J * w[:, None]  # W J
        H = H + WJ.T @ J
        of_pixels = WJ * r[:, None]  # (n, k): what each pixel adds to g
        g = g + of_pixels.sum(axis=0)
        of_tiles += _sums_of_tiles(estimate, details, of_pixels)
        if estimate.fits_times:
            pull = _pull_of_misfit(details, w, r, estimate.length)
            g[LENGTH_COLUMN] -= pull
            removed_pull += pull
            time_noise += _noise_of_times(details, w)
    return NormalEquations(
        H=H, g=g, of_tiles=of_tiles, time_noise=time_noise, removed_pull=removed_pull
    )


def _jacobian(
    estimate: Estimate, details: Details, a: np.ndarray, number_of_changes: int
) -> np.ndarray:
    """Return J (n, k) of one view: the derivatives of its residuals r = s - F a.

    s are the details of the summed spikes, and F of the five features of the frame. Details are
    the structures of an image between two sizes (details.py).

    a: the coefficients of the features, (5,).
    number_of_changes: number of columns before the coefficients: 4 if only the matrix is fitted, 7
    for matrix and times.
    """
    predicted = details.features @ a.astype(np.float32)  # F a, (h, w)
    columns = derivatives(estimate, details, predicted)[:number_of_changes]
    compared = [column[details.is_compared] for column in columns]  # (n,) each
    of_changes = np.stack(compared, axis=1).astype(float)  # (n, number_of_changes)
    # The derivative of r = s - F a by a is -F.
    of_coefficients = -details.features[details.is_compared]  # (n, 5)
    return np.concatenate((of_changes, of_coefficients), axis=1)


# The plane is cut into TILES x TILES tiles. times.py computes the errors of the times from the
# contributions of the tiles to g. It takes two tiles as independent. Pixels near one another have
# similar errors, e.g. all pixels of one moving object. So these pixels should lie in one tile. With
# smaller tiles, the computed errors would be too small.
TILES = 4


def _sums_of_tiles(estimate: Estimate, details: Details, of_pixels: np.ndarray) -> list[np.ndarray]:
    """Return what the pixels of each tile add to g, (k,) for each tile that has a pixel.

    of_pixels: what each compared pixel adds to g, (n, k).
    """
    sums = []
    tile_of_pixel = tiles(estimate.coordinates, details, TILES)  # (n,)
    for tile in np.unique(tile_of_pixel):
        is_in_tile = tile_of_pixel == tile
        sums.append(of_pixels[is_in_tile].sum(axis=0))
    return sums


def _pull_of_misfit(details: Details, w: np.ndarray, r: np.ndarray, length: float) -> float:
    """Return what misfit adds to the element of g for the length, in one view.

        pull = square / L        square: the sum of w misfit^2; L: length of the exposure

    The residuals have two parts: noise and misfit. Misfit is what the frame cannot explain at any
    length, e.g. an object of another depth. The spikes are summed over the exposure, so with twice
    the planes, the misfit is twice as large. To make the misfit small, least squares would shorten
    the exposure although its length is right.

    g is half of the derivative of the sum of w r^2. The misfit is proportional to L, so the square
    is c L^2 with a constant c. Half of the derivative by L is c L, i.e. square / L.

    E.g. L is 50 and the square is 200. With 1 % more planes (0.5), the misfit grows by 1 %, and the
    square by about 2 %, which is 4. So the square grows by 8 per plane. The half is the pull:
    4 = 200 / 50.

    If the pull is not subtracted, test_a_camera_is_found_from_a_start_that_is_off finds the share
    0.52, but the true share is 1.
    """
    mean_weight = float(w.mean())
    square_of_noise = mean_weight * details.noise.of_sums
    square_of_residuals = (w * r**2).sum()
    square_of_misfit = max(0.0, square_of_residuals - square_of_noise)
    return square_of_misfit / length


def _noise_of_times(details: Details, w: np.ndarray) -> np.ndarray:
    """Return what noise adds to the diagonal of H for middle, length and roll, (3,), in one view.

    The columns of J for the times are computed from two rates, the rate at the start and the rate
    at the end of the exposure. The column of the middle is their difference, and the column of the
    length is half of their sum (`derivatives`). A rate is the number of spikes in 2 reach planes,
    divided by 2 reach. So its variance is the variance of the number, divided by (2 reach)^2.
    """
    mean_weight = float(w.mean())
    rate_noise = mean_weight * details.noise.of_ends / (4 * details.reach**2)
    of_middle = 2  # a difference of two rates has twice the variance of one rate
    of_length = 0.5  # half of a sum of two rates has half the variance
    of_roll = 1  # any number, because no result depends on the noise of the roll
    return rate_noise * np.array((of_middle, of_length, of_roll))


def with_larger_diagonal(H: np.ndarray, P: np.ndarray) -> np.ndarray:
    """Return H + P, with a little more on the diagonal, (k, k). P: (k,), a diagonal.

    In a clip without texture, H is nearly 0. Without the addition, the equations could not be
    solved. 1e-7 of the diagonal changes a step by far less than SMALL_SHIFT, at which the rounds
    end (rounds.py). 1e-12 is added in case that the diagonal is 0.
    """
    added_to_diagonal = P + 1e-7 * np.diag(H) + 1e-12
    return H + np.diag(added_to_diagonal)

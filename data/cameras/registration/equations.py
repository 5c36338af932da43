"""Sum the normal equations of a round over all pixels of all views."""

from dataclasses import dataclass

import numpy as np

from data.cameras.registration.derivatives import (
    FEATURES,
    LENGTH_COLUMN,
    MATRIX_AND_TIMES,
    MATRIX_CHANGES,
    derivatives,
    tiles,
)
from data.cameras.registration.details import Details
from data.cameras.registration.estimate import Estimate
from data.cameras.registration.explanation import Explanation

# For the errors of the times, the plane is cut into TILES x TILES tiles. Pixels near one another
# have similar errors, e.g. all pixels of one moving object. A tile should hold these pixels
# together: with smaller tiles, the errors of the times would come out too small.
TILES = 4


@dataclass(frozen=True)
class NormalEquations:
    """The sums over all views of a round: H = J' W J and g = J' W r.

    k is the number of unknowns: changes of the matrix, times, coefficients. A step needs H and g.
    The choices and the errors of the times need the other fields, too.
    """

    H: np.ndarray  # (k, k)
    g: np.ndarray  # (k,)
    of_tiles: list[np.ndarray]  # for each tile of each view: what its pixels add to g, (k,)
    # Noise of the spikes makes the diagonal of H larger. This is what it adds for middle, length
    # and roll, (3,) (`_noise_of_times`).
    time_noise: np.ndarray
    removed_pull: float  # what was subtracted from g for the length (`_pull_of_misfit`)


def normal_equations(
    estimate: Estimate, views: list[Details], explanation: Explanation
) -> NormalEquations:
    """Sum H = J' W J and g = J' W r over the views.

    A view with n compared pixels has the residuals r (n,), their weights w (n,), which are the
    diagonal of W, and their derivatives J (n, k) by the k unknowns. What pixel i adds to g is
    row i of W J, times r_i.
    """
    number_of_changes = MATRIX_AND_TIMES if estimate.has_room else MATRIX_CHANGES
    k = number_of_changes + FEATURES
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
        if estimate.has_room:  # the times are fitted, too
            pull = _pull_of_misfit(estimate, details, w, r)
            g[LENGTH_COLUMN] -= pull
            removed_pull += pull
            time_noise += _noise_of_times(estimate, details, w)
    return NormalEquations(H, g, of_tiles, time_noise, removed_pull)


def _sums_of_tiles(estimate: Estimate, details: Details, of_pixels: np.ndarray) -> list[np.ndarray]:
    """Return what the pixels of each tile add to g, (k,) for each tile that has a pixel.

    of_pixels: what each compared pixel adds to g, (n, k).
    """
    sums = []
    tile_of_pixel = tiles(estimate, details, TILES)  # (n,)
    for tile in np.unique(tile_of_pixel):
        is_in_tile = tile_of_pixel == tile
        sums.append(of_pixels[is_in_tile].sum(axis=0))
    return sums


def _pull_of_misfit(estimate: Estimate, details: Details, w: np.ndarray, r: np.ndarray) -> float:
    """Return the part of g = J' W r, of one view, that would only shorten the exposure.

    The residuals have two parts: noise, and misfit. Misfit is what the frame cannot explain at
    any length, e.g. an object of another depth. A sum over more planes has more misfit. So
    least squares would shorten the exposure although its length is right, and
    `normal_equations` subtracts this part of g.

    The misfit grows in proportion to the length L. So its square is c L^2, with a constant c.
    g is half of the derivative of the square by L:

        g = (1 / 2) d(c L^2) / dL = c L = (c L^2) / L = (square of the misfit) / L

    Without this part, test_a_camera_is_found_from_a_start_that_is_off finds the share 0.52
    where 1 is true.
    """
    mean_weight = float(w.mean())
    square_of_noise = mean_weight * details.noise.of_sums
    square_of_residuals = (w * r**2).sum()
    square_of_misfit = max(0.0, square_of_residuals - square_of_noise)
    return square_of_misfit / estimate.length


def _noise_of_times(estimate: Estimate, details: Details, w: np.ndarray) -> np.ndarray:
    """Return the part of the diagonal of J' W J that is noise: of middle, length, roll (3,).

    The columns of J for the times are made of two rates, at the start and at the end: the
    middle has their difference, and the length half of their sum (`derivatives`). Rates have the
    noise of the spikes. A rate is a sum of spikes over 2 reach planes, divided by 2 reach. So
    the variance of a rate is the variance of the sum, divided by (2 reach)^2.
    """
    mean_weight = float(w.mean())
    rate_noise = mean_weight * details.noise.of_ends / (4 * details.reach**2)
    of_middle = 2  # a difference of two rates has twice the variance of one rate
    of_length = 0.5  # half of a sum of two rates has half the variance
    of_roll = 1  # no result depends on the noise of the roll, so any number will do
    return rate_noise * np.array((of_middle, of_length, of_roll))


def _jacobian(
    estimate: Estimate, details: Details, a: np.ndarray, number_of_changes: int
) -> np.ndarray:
    """Return J (n, k) of one view: the derivatives of the residuals of its n compared pixels.

    The first columns are for matrix and times, and the last five for the coefficients.

    a: the coefficients of the features, (5,).
    number_of_changes: how many columns of `derivatives` are used. 4 are for the matrix alone, 7
    are for matrix and times.
    """
    predicted = details.features @ a.astype(np.float32)  # F a, (h, w)
    columns = derivatives(estimate, details, predicted)[:number_of_changes]
    compared = [column[details.is_compared] for column in columns]  # (n,) each
    of_changes = np.stack(compared, axis=1).astype(float)  # (n, number_of_changes)
    # r = s - F a, so its derivative by a is -F.
    of_coefficients = -details.features[details.is_compared]  # (n, 5)
    return np.concatenate((of_changes, of_coefficients), axis=1)


def with_larger_diagonal(H: np.ndarray, P: np.ndarray) -> np.ndarray:
    """Return H + P, with a little more on the diagonal, (k, k). P: (k,), a diagonal.

    Without texture, H is nearly 0, and the equations could not be solved. 1e-7 of the diagonal
    moves a step by far less than SMALL_SHIFT. 1e-12 serves a diagonal of 0.
    """
    added_to_diagonal = P + 1e-7 * np.diag(H) + 1e-12
    return H + np.diag(added_to_diagonal)

"""Decide what a clip tells of the times, and how exact they are."""

from typing import NamedTuple

import numpy as np

from data.cameras.calibration import scale_of
from data.cameras.registration.derivatives import (
    LENGTH_COLUMN,
    MATRIX_AND_TIMES,
    MATRIX_CHANGES,
    MIDDLE_COLUMN,
)
from data.cameras.registration.equations import NormalEquations, with_larger_diagonal
from data.cameras.registration.estimate import Estimate

# ---- Limits: what a clip tells, and what counts as found ----
#
# Two measures decide whether a fitted time is used:
#
#     own(time) = |c - nearest sum of the other columns|^2 / |c|^2
#
#         c is the column of the time in J, and the other columns are those of the matrix and of
#         the coefficients. own is 0 if another value has the same effect on the residuals as the
#         time, so that the clip cannot tell them apart. It is 1 if no other value has a similar
#         effect. The noise of the spikes is subtracted from both squares. If nothing remains of
#         |c|^2, the time is not used (`times.middle_of`).
#
#     ratio(A, B) = unexplained(A) / unexplained(B)         unexplained = 1 - `explained`
#
#         A and B are two estimates for the same clip. Above 1, B explains the spikes better.
#
# Each limit lies between wrong results and right results that were measured:
#
#     measure                                    limit    wrong results    right results
#     own(middle)                                0.04     up to 0.002      from 0.044
#     own(length)                                0.15     up to 0.08       from 0.33
#     ratio(nominal offset, offset of the fit)   1.1      up to 1.094      from 1.116 (7 of 8)


# speed), a later middle looks like a shift of the camera. The wrong results are four pans. With a
# limit of 0, aligned cameras that pan were moved by up to 3.6 RGB pixels, with a small error.
LEAST_OWN_MIDDLE = 0.04
# own(middle) up to which the offset is doubtful, because it may be right or wrong. Then the ratio
# decides: the offset is used only if the spikes are explained worse with the nominal offset, by the
# factor CLEARLY_BETTER. The wrong results are six clips with aligned clocks. Of the eight clips
# that needed their offset, one loses it, but its matrix makes up for it within 0.3 RGB pixels. In
# none of the 50 pairs of cameras of lab/calibration_trials.py is the offset doubtful: own(middle)
# is 0.84 or more.
DOUBTFUL_OWN_MIDDLE = 0.3
# own(length) above which the share counts as found. In a pan, a shorter exposure looks like a
# sharper lens. The wrong results are pans whose share was wrong by 0.03 or more.
LEAST_OWN_LENGTH = 0.15


class Middle(NamedTuple):
    """What a round can say of the middle of the exposure."""

    is_fitted: bool  # False: the middle keeps its nominal value
    # Whether it is fitted, but looks nearly like a moved camera (DOUBTFUL_OWN_MIDDLE).
    is_doubtful: bool
    # How far the camera seems to be moved if the middle is wrong by a plane, in RGB pixels. In a
    # pan it is the speed of the pan.
    shift_per_plane: float


# For streams without room to fit the times.
NO_MIDDLE = Middle(is_fitted=False, is_doubtful=False, shift_per_plane=0.0)


def middle_of(estimate: Estimate, equations: NormalEquations) -> Middle:
    """Return whether the clip tells the middle of the exposure from a moved camera.

    In a pan (everything moves at one speed), a later middle changes the residuals as a shift of
    the camera does. Then the column of the middle in J is a sum of other columns. So we look
    for the best such sum, and for what it leaves. With m for the column of the middle, and o
    for the columns of matrix and coefficients, H = J' W J has the products of two columns:

        b = H_oo^-1 H_om        amounts of the other columns in the best sum
        left = H_mm - H_mo b    square of the column of the middle, minus this sum

    Without the noise of the spikes in both, left / H_mm is own(middle), see LEAST_OWN_MIDDLE.
    If the matrix is fixed, no camera can move, so the middle is always fitted.

    test_a_pan_leaves_aligned_cameras_as_they_are notices.
    """
    b, left = _nearest_sum_of_others(estimate, equations, MIDDLE_COLUMN)
    H_mm = equations.H[MIDDLE_COLUMN, MIDDLE_COLUMN]
    noise = equations.time_noise[0]
    # own(middle) = left_without_noise / whole. Do not divide: if nearly all of the column is
    # noise, `whole` may be 0 or less. `left` is H_mm or less, so both comparisons are false
    # then, as they should be.
    left_without_noise = float(left - noise)
    whole = float(H_mm - noise)
    is_matrix_fixed = len(estimate.changes) == 0
    is_told_apart = is_matrix_fixed or left_without_noise > LEAST_OWN_MIDDLE * whole
    is_clear = is_matrix_fixed or left_without_noise > DOUBTFUL_OWN_MIDDLE * whole
    is_fitted = estimate.fits_middle and is_told_apart
    # A middle that is wrong by a plane looks like a shift by b[0] right and b[1] down, in half
    # sides of the plane.
    rgb_per_half_side = estimate.coordinates.half_side * scale_of(estimate.matrix)
    return Middle(
        is_fitted=is_fitted,
        is_doubtful=is_fitted and not is_clear,
        shift_per_plane=rgb_per_half_side * float(np.hypot(b[0], b[1])),
    )


def tells_length(estimate: Estimate, equations: NormalEquations) -> bool:
    """Return whether the clip tells the length of the exposure from a sharper lens.

    In a pan, the motion blur has one direction and one length everywhere. A shorter exposure
    then looks nearly like a sharper lens, which is one of the features. So own(length) must be
    above LEAST_OWN_LENGTH.

    test_a_share_that_looks_like_a_sharper_lens_is_not_used notices if this function is always
    true. It does not notice a limit of 0.
    """
    _, left = _nearest_sum_of_others(estimate, equations, LENGTH_COLUMN)
    H_ll = equations.H[LENGTH_COLUMN, LENGTH_COLUMN]
    noise = equations.time_noise[1]
    # own(length) = left_without_noise / whole. Not divided, as in `middle_of`.
    left_without_noise = left - noise
    whole = H_ll - noise
    return bool(left_without_noise > LEAST_OWN_LENGTH * whole)


def _nearest_sum_of_others(
    estimate: Estimate, equations: NormalEquations, column: int
) -> tuple[np.ndarray, np.ndarray]:
    """Find the sum of the other columns of J that is nearest to the column of a time.

    The other columns are those of matrix and coefficients. Returns their amounts in the sum,
    and the square of what the sum leaves of the column (b and `left` in `middle_of`).

    column: MIDDLE_COLUMN or LENGTH_COLUMN.
    """
    H = equations.H
    others = [*range(MATRIX_CHANGES), *range(MATRIX_AND_TIMES, len(H))]
    H_oo = with_larger_diagonal(H[np.ix_(others, others)], np.zeros(len(others)))
    H_ot = H[others, column]
    b = np.linalg.solve(H_oo, H_ot)
    return b, H[column, column] - H_ot @ b


def time_errors(
    estimate: Estimate, equations: NormalEquations, A: np.ndarray
) -> tuple[float, float]:
    """Return the standard errors of the offset in planes, and of the share.

    equations: the sums H and g of the round. A: H with the priors.
    """
    middle_and_length = slice(MIDDLE_COLUMN, LENGTH_COLUMN + 1)
    # Noise in the columns of J makes H larger, as if the clip showed more motion. Then the
    # errors would be too small. So they are divided by the fraction of H that is motion.
    with_noise = np.diag(equations.H)[middle_and_length]
    without_noise = with_noise - equations.time_noise[:2]
    # Without motion the fraction may be 0 or below. Then the limit of 1e-3 makes the errors a
    # thousand times larger, so that the times count as unsure.
    motion = np.maximum(without_noise / with_noise, 1e-3)
    errors = _standard_errors(equations.of_tiles, A)  # (k,)
    middle_error, length_error = errors[middle_and_length] / motion

    # `normal_equations` subtracted `removed_pull` from g, because it would have changed the
    # length by removed_pull / H. But some of it may come from a wrong length after all. How
    # much is not known, so half of this change is added to the error. 1e-9: no division by 0.
    length_error += 0.5 * equations.removed_pull / max(float(without_noise[1]), 1e-9)
    return float(middle_error), float(length_error) / estimate.nominal_planes


def _standard_errors(of_tiles: list[np.ndarray], A: np.ndarray) -> np.ndarray:
    """Return the standard errors (k,) of a step -A^-1 g: the roots of the diagonal of C.

        C = A^-1 G A^-1                     covariance of the step, (k, k)
        G = sum over the tiles of g g'      g = J' W r (k,), summed over the pixels of one tile

    A is H + P: the sums over all pixels, with the priors.

    G takes the errors within a tile as correlated, and the errors of two tiles as independent.
    """
    g = np.array(of_tiles)  # (tiles of all views, k)
    inverse = np.linalg.inv(A)
    # G is g' g. The product runs from left to right, so G itself is not computed.
    covariance = inverse @ g.T @ g @ inverse
    return np.sqrt(np.diag(covariance))

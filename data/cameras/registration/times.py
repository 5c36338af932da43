"""Decide what a clip tells about the times of the exposure, and how exact they are.

A fit also finds when each frame was exposed: the middle of the exposure gives the offset, and its
length gives the exposure share. Not every clip determines middle and length. In a pan, everything
moves at one speed:

    a later exposure      shifts the picture, as a moved camera does
    a shorter exposure    shows less blur, as a sharper lens does

If another unknown has the same effect as a time, this time must not be fitted.

The matrix of derivatives J (equations.py) shows which unknowns have the same effect. J has a column
for each unknown: for the changes of the matrix M, for the times, and for the coefficients of the
features. If the column c of a time is nearly a linear combination of other columns, the other
unknowns have the same effect as the time. So the part of c that no other unknown can explain is
measured:

    own(time) = |c - nearest linear combination of other columns|^2 / |c|^2

    0    other unknowns together have the same effect on the residuals as the time, so the clip does
         not determine the time
    1    the other unknowns together have no similar effect

E.g. the time has the column c = (1, 1) of two residuals, and the only other column is (2, 0). The
nearest linear combination is half of the other column, (1, 0). The rest is (0, 1), so own(time) is
1 / 2.

own(time) is like the tolerance 1 - R^2 of statistics. The other columns are the columns of M and of
the coefficients. The noise of the spikes makes both squares in own(time) larger, so `_own_part`
subtracts the noise from each of the two squares.

What must stay: the limits of own(time). These limits lie between wrong results and right results
that were measured (docs/benchmarks/calibration.md, section "What a clip tells of the times"). Free
to change: how the functions are split.

Tests: tests/parts/data/test_registration_fit.py fails if the middle is always used
(test_a_pan_leaves_aligned_cameras_as_they_are), and if the length is always used
(test_a_share_that_looks_like_a_sharper_lens_is_not_used). No test of this file notices a changed
LEAST_OWN_LENGTH.
"""

from typing import NamedTuple

import numpy as np

from data.cameras.registration.derivatives import (
    LENGTH_COLUMN,
    MATRIX_AND_TIMES,
    MATRIX_CHANGES,
    MIDDLE_COLUMN,
)
from data.cameras.registration.equations import NormalEquations, with_larger_diagonal
from data.cameras.registration.estimate import Estimate


class Middle(NamedTuple):
    """What one round of the fit (rounds.py) tells about the middle of the exposure."""

    # Whether the middle is fitted. If not, the middle keeps its nominal value, the value in the
    # files.
    is_fitted: bool
    # Whether the fitted middle may be wrong, because a moved camera explains the clip nearly as
    # well.
    is_doubtful: bool
    # Number of RGB pixels by which the fit moves the camera if the middle is wrong by one plane. In
    # a pan it is the speed of the pan, in RGB pixels per plane.
    shift_per_plane: float


# For streams with too few planes around the exposure to fit the times.
NO_MIDDLE = Middle(is_fitted=False, is_doubtful=False, shift_per_plane=0.0)

# own(middle) is 0 if a moved camera has the same effect as a later middle, and 1 if nothing has a
# similar effect. The middle is fitted if own(middle) is above this limit. With 0, aligned cameras
# that pan were moved by up to 3.6 RGB pixels, although the computed error was small.
LEAST_OWN_MIDDLE = 0.04
# Up to this value of own(middle), the middle is doubtful: it may be right or wrong. If the middle
# is doubtful, rounds.py compares the fit with the offset and the fit without it.
DOUBTFUL_OWN_MIDDLE = 0.3


def middle_of(estimate: Estimate, equations: NormalEquations) -> Middle:
    """Return whether the clip shows the difference between a later middle and a moved camera.

    If the matrix is fixed, the fit cannot move a camera in place of the middle. So the middle is
    never doubtful.
    """
    amounts, own = _own_part(equations, MIDDLE_COLUMN)
    is_told_apart = estimate.is_matrix_fixed or own.is_above(LEAST_OWN_MIDDLE)
    is_clear = estimate.is_matrix_fixed or own.is_above(DOUBTFUL_OWN_MIDDLE)
    is_fitted = estimate.fits_middle and is_told_apart
    # The shifts of the camera that look most like a middle that is later by one plane, in half
    # sides of the spike plane. The two shifts are the amounts of the first two columns, right and
    # down.
    shift_right, shift_down = amounts[:2]
    shift = float(np.hypot(shift_right, shift_down))
    return Middle(
        is_fitted=is_fitted,
        is_doubtful=is_fitted and not is_clear,
        shift_per_plane=estimate.rgb_per_half_side * shift,
    )


# own(length) is 0 if a sharper lens has the same effect as a shorter exposure. The share counts as
# found if own(length) is above this limit. Pans with a smaller own(length) had a share that was
# wrong by 0.03 or more. No test notices a changed limit:
# test_a_share_that_looks_like_a_sharper_lens_is_not_used passes with a limit of 0, too.
LEAST_OWN_LENGTH = 0.15


def tells_length(equations: NormalEquations) -> bool:
    """Return whether a shorter exposure and a sharper lens look different in the clip.

    In a pan, the motion blur has one direction and one length everywhere. So a shorter exposure
    looks nearly like a sharper lens, and the blur of the lens is one of the features (fit.py).
    """
    _, own = _own_part(equations, LENGTH_COLUMN)
    return own.is_above(LEAST_OWN_LENGTH)


class OwnPart(NamedTuple):
    """The two squares of own(time) = left / whole, without the noise of the spikes."""

    left: float  # |c - nearest linear combination of the other columns|^2
    whole: float  # |c|^2

    def is_above(self, limit: float) -> bool:
        """Return whether own = left / whole is above a limit between 0 and 1.

        If the column is nearly only noise, `whole` may be 0 or negative, and the result must be
        False. A division would not give False: e.g. left = -3 and whole = -2 give 1.5. The test
        left > limit * whole gives False, because `left` is at most `whole`: e.g. -3 > 0.3 * -2 is
        false.
        """
        return self.left > limit * self.whole


def _own_part(equations: NormalEquations, column: int) -> tuple[np.ndarray, OwnPart]:
    """Return the linear combination of other columns that is nearest to the column of a time.

    H = J' W J has the products of all pairs of columns, with the weights W of the residuals. So no
    column itself is needed. With the index t for the time, and o for the changes of the matrix and
    the coefficients:

        b = H_oo^-1 H_ot             amounts of the columns o in the nearest linear combination
        left = H_tt - H_ot' b        |column t - this linear combination|^2

    column: MIDDLE_COLUMN or LENGTH_COLUMN. Returns b, and own(time).
    """
    H = equations.H
    # The columns 0 ... 3 of the matrix, and from 7 on the coefficients. The times, 4 ... 6, are not
    # among the other columns.
    others = [*range(MATRIX_CHANGES), *range(MATRIX_AND_TIMES, len(H))]
    # H[np.ix_(a, b)] is the matrix of the rows a and the columns b of H. `with_larger_diagonal` is
    # called without priors (zeros), only so that the equations can be solved.
    H_oo = with_larger_diagonal(H[np.ix_(others, others)], np.zeros(len(others)))
    H_ot = H[others, column]
    H_tt = H[column, column]
    b = np.linalg.solve(H_oo, H_ot)
    left = H_tt - H_ot @ b
    # The elements of time_noise are middle, length and roll. So the index is 0 for MIDDLE_COLUMN,
    # and 1 for LENGTH_COLUMN.
    noise = equations.time_noise[column - MIDDLE_COLUMN]
    return b, OwnPart(left=float(left - noise), whole=float(H_tt - noise))


# ---- The errors of the times -------------------------------------------------------------------


def time_errors(
    estimate: Estimate, equations: NormalEquations, A: np.ndarray
) -> tuple[float, float]:
    """Return the standard errors of the offset (in planes) and of the share (a fraction of planes).

    equations: the sums H and g of the round. A: H with the priors, (k, k).
    """
    middle_and_length = slice(MIDDLE_COLUMN, LENGTH_COLUMN + 1)
    # Noise in the columns of J makes H larger, as if the clip showed more motion. So the errors
    # that follow from H are too small. Divide the errors by the fraction of H that is motion.
    with_noise = np.diag(equations.H)[middle_and_length]
    without_noise = with_noise - equations.time_noise[:2]  # the elements of middle and length
    # Without motion, the fraction is about 0, or even negative. At least 1e-3 is taken, which makes
    # the errors a thousand times larger, so that the times do not count as sure.
    motion = np.maximum(without_noise / with_noise, 1e-3)
    errors = _standard_errors(equations.g_of_tiles, A)  # (k,)
    middle_error, length_error = errors[middle_and_length] / motion

    # `removed_bias` was subtracted from g (equations.py). Without the subtraction, the length would
    # have changed by removed_bias / H. An unknown part of this change may have been right, so half
    # of the change is added to the error of the length. 1e-9 prevents a division by 0.
    _, H_of_length = without_noise.tolist()  # the elements are middle and length
    length_error += 0.5 * equations.removed_bias / max(H_of_length, 1e-9)
    return float(middle_error), float(length_error) / estimate.nominal_planes


def _standard_errors(g_of_tiles: list[np.ndarray], A: np.ndarray) -> np.ndarray:
    """Return the standard errors (k,) of a step -A^-1 g: the roots of the diagonal of C.

        C = A^-1 G A^-1                       covariance of the step, (k, k)
        G = sum over the tiles of g_t g_t'    g_t (k,): what tile t adds to g

    In G, the errors of the pixels of a tile are taken as correlated, and the errors of two tiles as
    independent.

    g_of_tiles: g_t of the tiles of all views. A: H with the priors, (k, k).
    """
    T = np.array(g_of_tiles)  # (tiles, k), row t is g_t. So G = T' T
    inverse = np.linalg.inv(A)
    # The products run from left to right, so G itself is not computed. Another order would change
    # the last bits.
    covariance = inverse @ T.T @ T @ inverse
    return np.sqrt(np.diag(covariance))

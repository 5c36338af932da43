"""Change matrix and times by one round of Gauss-Newton on all pixels.

A round changes the present estimate once. rounds.py repeats rounds until the estimate hardly
changes. The residuals of all pixels decide the step of each unknown. The times have priors, too. A
prior says that a time is probably near its nominal value, i.e. the value in the files. The step of
a round is

    step = -(H + P)^-1 (g + P p)                                  (k,)

    H (k, k)    weighted sums over the pixels: (derivative of the residual by one unknown) *
                (derivative by another unknown), see equations.py
    g (k,)      weighted sums over the pixels: residual * (its derivative by an unknown)
    P (k, k)    the weights of the priors, a diagonal matrix. The code keeps only its diagonal, (k,)
    p (k,)      present value minus nominal value of an unknown, 0 if it has no prior

E.g. one unknown with H = 4 and g = -8: without a prior, the step is 8 / 4 = 2. With the prior P = 4
and p = 1, it is -(-8 + 4 * 1) / (4 + 4) = 0.5.

The k = 12 unknowns are

    0 ... 3     changes of the matrix: right and down (in half sides of the plane), larger (0.01 is
                1 %), turned (in radians)
    4 ... 6     times in planes: middle, length, and roll (how much later lower rows are exposed)
    7 ... 11    coefficients of the five features of the frame (listed in fit.py)

If the stream has too few planes before or after the exposure, the times are left out. Then k is 9,
and the coefficients are the unknowns 4 ... 8.

The step of the coefficients is computed, but not used: each round finds the coefficients anew
(`explain`). The coefficients are unknowns here, because the other steps depend on their change.

What must stay: the order of the unknowns (derivatives.py), and the values of the priors.

Tests (in tests/parts/data), and what they notice:

    test_registration_all_pixels.py    the first solution is kept although a time is at its limit
    test_registration_fit.py           the prior of the offset is narrower

No test notices a wider prior, but lab/calibration_trials.py then prints other bits.
"""

import numpy as np

from data.cameras.registration.derivatives import (
    LENGTH_COLUMN,
    MATRIX_CHANGES,
    MIDDLE_COLUMN,
    ROLL_COLUMN,
    TIME_COLUMNS,
)
from data.cameras.registration.details import Details
from data.cameras.registration.equations import (
    NormalEquations,
    normal_equations,
    with_larger_diagonal,
)
from data.cameras.registration.estimate import Estimate
from data.cameras.registration.explanation import explain, shared_noise
from data.cameras.registration.times import NO_MIDDLE, Middle, middle_of, tells_length, time_errors


def round_on_all_pixels(estimate: Estimate, views: list[Details], sigma: float) -> np.ndarray:
    """Change the estimate by one round, and set the errors of its times.

    Returns the changes (7,): four of the matrix, in half sides of the plane, and then middle,
    length and roll, in planes. The last three are 0 if the times are not fitted.

    views: the details of each view, at least one. sigma: size of the details in spike pixels.
    """
    # Explain the details of each frame for the present matrix and times.
    explanation = explain(views)
    estimate.explained = explanation.explained
    equations = normal_equations(estimate, views, explanation)
    noise = shared_noise(explanation, sigma, views[0].stride)
    # A `Middle` (times.py) says whether this round fits the middle of the exposure, and by how many
    # pixels the camera moves if the middle is wrong by one plane.
    middle = NO_MIDDLE
    if estimate.fits_times:
        middle = middle_of(estimate, equations)
    # Both (k,). P: the weight of the prior of each unknown. p: the distance of the unknown from its
    # nominal value. The prior pulls the unknown back by this distance.
    P, p = _priors(estimate, equations.H, noise, middle.is_fitted)
    # The data alone give the step -H^-1 g. The priors add P to H, and their gradient P p to g.
    A = with_larger_diagonal(equations.H, P)  # H + P, (k, k), with P as a diagonal matrix
    gradient = equations.g + P * p  # (k,)
    step = step_within_limits(A, gradient, estimate.limits_of_time_steps())

    # `change_matrix` and `change_times` change the estimate in place. If the step of the matrix is
    # too large, `change_matrix` scales it down, so the change may be smaller than the step. The
    # times in the step are within their limits already (`step_within_limits`).
    change = estimate.change_matrix(step[:MATRIX_CHANGES])
    if not estimate.fits_times:
        return np.concatenate((change, np.zeros(3)))
    estimate.change_times(step[TIME_COLUMNS])
    _set_time_errors(estimate, middle, equations, A)
    return np.concatenate((change, step[TIME_COLUMNS]))


# Two unknowns have two names each, because their units and zero points differ:
#
#     unknown    kept in the estimate as
#     middle     offset: the middle minus its nominal value, in planes
#     length     share: the length divided by its nominal value, a fraction
#
# Standard deviations of the priors of the times, chosen by hand. With larger values, a clip with
# little motion would give times that are mostly noise. With smaller values, a clip with motion
# could not change the times enough.
SPREAD_OFFSET = 15.0  # in planes
SPREAD_SHARE = 0.3  # a fraction of the planes of the exposure
SPREAD_ROLL = 0.1  # a fraction of the planes of the exposure, from the middle row to the bottom row
# Keeps a value at its nominal value (the value in the files). The weight of the value's prior is
# this many times the weight that the data give the value (the diagonal element of H). So the value
# moves only by about 1e-9 of the step that it would make without the prior. Chosen by hand.
KEEPING_WEIGHT = 1e9


def _set_time_errors(
    estimate: Estimate, middle: Middle, equations: NormalEquations, A: np.ndarray
) -> None:
    """Set the errors of the times, and `error_by_offset`.

    `error_by_offset` says how wrong the matrix is, in pixels, if the offset is wrong by its error.

    middle: result of `middle_of` (times.py). A: H + P, (k, k).
    """
    offset_error, share_error = time_errors(estimate, equations, A)
    if middle.is_fitted:
        estimate.error_by_offset = middle.shift_per_plane * offset_error
    else:
        # The middle was kept, so the error of the offset is the standard deviation of its prior.
        # This error adds nothing to the error of the matrix. The matrix was found with this offset,
        # so matrix and offset together match the clip even if the offset is wrong.
        offset_error = SPREAD_OFFSET
        estimate.error_by_offset = 0.0
    if not tells_length(equations):
        # The clip does not determine the share, so its error is the deviation of its prior.
        share_error = SPREAD_SHARE
    estimate.time_errors = (offset_error, share_error)
    estimate.is_middle_doubtful = middle.is_doubtful


def _priors(
    estimate: Estimate, H: np.ndarray, noise: float, fits_middle: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Return the priors: the weight P of each unknown (k,), and its distance p (k,).

    p is the distance of an unknown from its nominal value: p = present value - nominal value. An
    unknown without a prior has 0 in both arrays. A prior has the weight P = noise / spread^2, so it
    counts more in a clip with more noise. The spreads in planes, for an exposure of 56 planes, and
    the weights for a noise of 9:

        middle    SPREAD_OFFSET              15      9 / 15^2   = 0.040
        length    SPREAD_SHARE * 56 planes   16.8    9 / 16.8^2 = 0.032
        roll      SPREAD_ROLL * 56 planes    5.6     9 / 5.6^2  = 0.287

    H: the sums of the round, (k, k). Its diagonal has the weights that the data give the unknowns.
    noise: the variance of a residual, increased because neighbours share their noise
    (`shared_noise` in explanation.py).
    fits_middle: whether the middle is fitted. If not, it goes back to its nominal value.
    """
    P = np.zeros(len(H))
    p = np.zeros(len(H))
    # The step of a value alone is -(g + P p) / (H + P). If P is far larger than H, the step is
    # about -p, so it leads to the nominal value.
    keeping_weights = KEEPING_WEIGHT * np.diag(H)
    if estimate.fits_times:
        spread_of_length = SPREAD_SHARE * estimate.nominal_planes
        spread_of_roll = SPREAD_ROLL * estimate.nominal_planes
        spread = np.array((SPREAD_OFFSET, spread_of_length, spread_of_roll))
        P[TIME_COLUMNS] = noise / spread**2
        # Distances from the nominal times, in planes. The nominal times are: offset 0 (the middle
        # is the middle of the planes), the length of all planes, and roll 0.
        p[MIDDLE_COLUMN] = estimate.offset
        p[LENGTH_COLUMN] = estimate.length - estimate.nominal_planes
        p[ROLL_COLUMN] = estimate.roll
        if not fits_middle:
            # The step is -p, so the middle goes back to its nominal value.
            P[MIDDLE_COLUMN] = keeping_weights[MIDDLE_COLUMN]
    if estimate.is_matrix_fixed:
        # p is 0 here, so the matrix stays.
        P[:MATRIX_CHANGES] = keeping_weights[:MATRIX_CHANGES]
    return P, p


def step_within_limits(
    A: np.ndarray, gradient: np.ndarray, limits: tuple[np.ndarray, np.ndarray]
) -> np.ndarray:
    """Return the step -A^-1 gradient (k,), with the times within their limits.

    If the step of a time is beyond a limit, the step is set to the limit. Then the equations are
    solved again for the other values, because their first solution belongs to the large step of the
    time. With the index l for the times at a limit, and f for the other values (free):

        step_f = -A_ff^-1 (gradient_f + A_fl step_l)

    E.g. one time with the limit 1, and one other value: A = [[2, 1], [1, 2]] with the other value
    first, and gradient = (-4, -5).

        first solution     other value 1       time 2, beyond its limit
        second solution    other value 1.5     time 1            1.5 = -(-4 + 1 * 1) / 2

    In a slow pan, a longer exposure looks like a sharper lens, and the first step of the length was
    200 planes. Without the second solution, the matrix moved by 10 pixels back and forth, round by
    round.

    A: H + P, (k, k). gradient: g + P p, (k,).
    limits: smallest and largest step of each time, (3,) each. If no times are fitted: two empty
    arrays, so that no time is at a limit.

    Without the second solution, test_the_other_values_follow_a_time_that_stops_at_its_limit fails.
    """
    step = -np.linalg.solve(A, gradient)
    least, most = limits
    times = np.arange(len(least)) + MIDDLE_COLUMN  # columns of the times: 4, 5, 6, or none
    is_at_limit = np.zeros(len(step), bool)
    # A time that was put at a limit stays there, because only `others` are solved again. So each
    # repetition puts at least one more time at a limit, and the loop ends after at most three.
    while True:
        is_beyond = (step[times] < least) | (step[times] > most)
        if not is_beyond.any():
            return step
        is_at_limit[times[is_beyond]] = True
        step[times] = np.clip(step[times], least, most)

        # Indices of the step. E.g. only the length at its limit: l is 5, f is 0 ... 4 and 6 ... 11.
        # np.ix_(a, b) selects the rows a and the columns b.
        at_limit = np.flatnonzero(is_at_limit)  # l
        others = np.flatnonzero(~is_at_limit)  # f
        A_ff = A[np.ix_(others, others)]
        A_fl = A[np.ix_(others, at_limit)]
        step[others] = -np.linalg.solve(A_ff, gradient[others] + A_fl @ step[at_limit])

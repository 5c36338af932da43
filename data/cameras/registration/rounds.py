"""Run the rounds of a fit, and take the best of three estimates."""

import math
from collections.abc import Sequence

import numpy as np

from data.cameras.registration.all_pixels import round_on_all_pixels
from data.cameras.registration.derivatives import MATRIX_CHANGES
from data.cameras.registration.details import blur_of_frame, comparable_views
from data.cameras.registration.estimate import Estimate
from data.cameras.registration.explanation import explain
from data.cameras.registration.parts import round_on_parts
from data.cameras.registration.result import SURE_WITHIN_PLANES
from data.cameras.registration.view import Pair

# Size of the finest details in (binned) spike pixels, for the times and for the matrix. A time
# changes the sum of the spikes only by planes at the two ends of the exposure. This change is small
# and noisy, so it is measured on larger details.
TIME_SIGMA = 2.0
FINE_SIGMA = 1.2


# B is clearly better than A if ratio(A, B) > CLEARLY_BETTER (`_fits_clearly_better`). If the start
# is clearly better than the result of the rounds, the rounds have gone astray: in three pans,
# ratio(rounds, start) was 50 or more. With 1, a right result could fail by a little noise.
CLEARLY_BETTER = 1.1


def best_estimate(
    pairs: Sequence[Pair], start: np.ndarray, model: str | None, most_offset: float
) -> Estimate:
    """Run all rounds, and return their estimate, or another one if they went astray.

    In a pan (everything moves at one speed), a wrong offset with a moved camera fits the clip about
    as well as the truth, and the rounds may follow it. So there are three estimates:

        found                the result of all rounds
        at_nominal_offset    the result of all rounds that keep the offset at its nominal value
        at_start             the start, without any round. Its errors are infinite, so nothing is
                             applied

    Two questions decide. "Better" stands for `_fits_clearly_better`.

        1. Is the offset of `found` right? Three signs of a wrong offset:

               at_start is better than `found`
               offset_error > SURE_WITHIN_PLANES
               the offset is doubtful: own(middle) <= DOUBTFUL_OWN_MIDDLE

           Without any sign, keep `found`. With a sign, compute at_nominal_offset, and take it if

               it is better than `found`
               or the clip does not show the matrix of `found` (its error is infinite)
               or the offset is doubtful, and `found` is not better than at_nominal_offset

        2. Is at_start better than the estimate of question 1? Then take at_start.

    Without both other estimates, test_rounds_that_go_astray_are_undone fails. Without one of them:

        at_nominal_offset    test_a_moved_camera_is_found_although_the_length_steps_to_its_limit
        at_start             test_a_repeated_pattern_does_not_move_aligned_cameras_by_half_a_period

    Arguments: as in `Estimate`.
    """
    found = after_all_rounds(Estimate(pairs, start, model, most_offset))
    if not model:
        return found  # a fixed matrix cannot move in place of the offset
    at_start = Estimate(pairs, start, model, most_offset)
    at_start.explained = explained_share(at_start, TIME_SIGMA)

    # 1. Is the offset right?
    best = found
    offset_error, _ = found.time_errors
    is_unsure = (
        _fits_clearly_better(at_start, than=found)
        or offset_error > SURE_WITHIN_PLANES
        or found.is_middle_doubtful
    )
    if is_unsure:
        at_nominal_offset = after_all_rounds(
            Estimate(pairs, start, model, most_offset, fits_middle=False)
        )
        is_worse = _fits_clearly_better(at_nominal_offset, than=found)
        shows_no_matrix = not math.isfinite(found.matrix_error)
        # A doubtful offset is used only if it is needed: if the spikes are explained worse without.
        is_needed = _fits_clearly_better(found, than=at_nominal_offset)
        is_doubtful_and_not_needed = found.is_middle_doubtful and not is_needed
        if is_worse or shows_no_matrix or is_doubtful_and_not_needed:
            best = at_nominal_offset

    # 2. Was the start better?
    if _fits_clearly_better(at_start, than=best):
        best = at_start
    return best


def after_all_rounds(state: Estimate) -> Estimate:
    """Run all rounds on a new state, and return it.

    Other sizes of details, or other numbers of rounds, give other results.
    docs/benchmarks/calibration.md says how exact the results of these rounds are.
    """
    # From coarse to fine: if the start is off by many pixels, fine details match at wrong places.
    # The first details are a tenth of the shorter side, so that a start which is off by about this
    # length is corrected. A plane with a side below 60 pixels begins with details of 6 pixels. The
    # numbers of rounds are limits: `run_rounds` ends earlier if a round changes nearly nothing.
    shorter_side = min(state.pairs[0].sums.shape[1:])
    coarse_sigma = max(6.0, shorter_side / 10)
    run_rounds(state, sigma=coarse_sigma, rounds=8)
    run_rounds(state, sigma=3.0, rounds=6)
    run_rounds(state, sigma=TIME_SIGMA, rounds=8)
    # The last rounds change the matrix only, so a fixed matrix needs none of them.
    run_rounds(state, sigma=FINE_SIGMA, rounds=4 if len(state.changes) else 0)
    # Compute `explained` anew: a round computes it before its step, and the last rounds on finer
    # details. It must be of the final estimate, and on details of one size for all estimates.
    state.explained = explained_share(state, TIME_SIGMA)
    return state


def _fits_clearly_better(estimate: Estimate, than: Estimate) -> bool:
    """Return whether an estimate explains the spikes clearly better than another one.

    E.g. if the frames explain 99 % and 98.8 % of the spikes' details, 1 % and 1.2 % are
    unexplained. 1.2 is more than CLEARLY_BETTER = 1.1 times 1, so the first estimate is clearly
    better.
    """
    unexplained = 1 - estimate.explained
    unexplained_by_other = 1 - than.explained
    return unexplained_by_other > CLEARLY_BETTER * unexplained


# `run_rounds` stops early if a round changes the four values of shift, scale and turn by less
# than SMALL_SHIFT pixels at the edge of the plane, and all other values by less than SMALL_CHANGE.
# The other values are times in planes or, on the finest details, more changes of the matrix. Both
# limits are far below the errors that count as sure (SURE_WITHIN_PX, SURE_WITHIN_PLANES). Larger
# limits would stop before the values are exact. Smaller limits would cost rounds that change
# nothing.
SMALL_SHIFT = 0.003
SMALL_CHANGE = 0.03


def run_rounds(estimate: Estimate, sigma: float, rounds: int) -> None:
    """Run up to `rounds` rounds on details of size `sigma` (spike pixels).

    Stops early if a round changes nearly nothing, or if no view can be compared. Details finer
    than TIME_SIGMA say little of the times. So there only the matrix is changed, from parts of
    the plane.
    """
    # The features do not depend on the estimate, so they are computed once for all rounds.
    blur = blur_of_frame(estimate, sigma)
    features = [pair.features(blur) for pair in estimate.pairs]
    for _ in range(rounds):
        views = comparable_views(estimate, features, sigma)
        if not views:
            return
        if sigma < TIME_SIGMA:
            step = round_on_parts(estimate, views, sigma)
        else:
            step = round_on_all_pixels(estimate, views, sigma)

        # The first four values (right, down, larger, turned) are in half sides of the plane.
        # The others are times or more changes of the matrix, if there are any (`initial`).
        edge_moved = (
            np.abs(step[:MATRIX_CHANGES]).max() * estimate.coordinates.half_side
        )  # in pixels
        largest_other = np.abs(step[MATRIX_CHANGES:]).max(initial=0)
        if edge_moved < SMALL_SHIFT and largest_other < SMALL_CHANGE:
            return


def explained_share(estimate: Estimate, sigma: float) -> float:
    """Return the share of the spikes' details that the frames explain at the present estimate.

    Returns 0 if no view can be compared. sigma: size of the details in spike pixels.
    """
    blur = blur_of_frame(estimate, sigma)
    views = comparable_views(estimate, [pair.features(blur) for pair in estimate.pairs], sigma)
    return explain(views).explained if views else 0.0

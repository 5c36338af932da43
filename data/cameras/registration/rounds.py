"""Run the rounds of a fit, and take the best of three estimates.

A round improves the estimate (the matrix and the times) once, with details of one size. Details are
what a band-pass filter keeps of an image (details.py). The rounds go from coarse to fine details,
because fine details match at wrong positions if the start is off by many pixels:

    size of the details             what a round finds
    coarse, 3, TIME_SIGMA pixels    matrix and times, from all pixels together (all_pixels.py)
    FINE_SIGMA pixels               only the matrix, and its error, from parts (parts.py)

The offset is the number of planes by which the exposure is later than the files say. Its nominal
value is 0: the files are right. `Estimate` stores the middle of the exposure, and computes the
offset from the middle. So `fits_middle` and `is_middle_doubtful` are properties of the offset, too.

The rounds may end at a wrong offset. E.g. in a pan, everything moves at one speed, so a wrong
offset together with a moved camera fits the clip about as well as the truth. Therefore
`best_estimate` compares three estimates: `found`, `at_nominal_offset` and `at_start`. Of two
estimates, the better estimate leaves less unexplained:

    unexplained = 1 - explained

`explained` is the fraction of the variance of the spikes' details that the frames explain. E.g. two
estimates leave 0.012 and 0.01 unexplained. The quotient 0.012 / 0.01 = 1.2 is above CLEARLY_BETTER,
so the second estimate explains the spikes clearly better.

What must stay: the sizes, the numbers of rounds and the limits, because other values give other
results. docs/benchmarks/calibration.md says how exact the results are with these values.

Tests (in tests/parts/data), and what they notice:

    test_registration_rounds.py    a changed rule by which an estimate is taken
    test_registration_fit.py       `at_nominal_offset` is never compared (the tests of pans), or
                                   `at_start` is never compared (the test of a repeated pattern)
"""

import math
from collections.abc import Sequence

import numpy as np

from data.cameras.registration.all_pixels import round_on_all_pixels
from data.cameras.registration.derivatives import MATRIX_CHANGES
from data.cameras.registration.details import comparable_views, frame_features
from data.cameras.registration.estimate import Estimate
from data.cameras.registration.explanation import explain
from data.cameras.registration.parts import round_on_parts
from data.cameras.registration.result import SURE_WITHIN_PLANES
from data.cameras.registration.view import Pair

# ---- Which estimate is taken -------------------------------------------------------------------


def best_estimate(
    pairs: Sequence[Pair], start: np.ndarray, model: str | None, most_offset: float
) -> Estimate:
    """Run all rounds, and return the best of three estimates.

        found                the estimate after all rounds
        at_nominal_offset    the estimate after rounds that keep the offset at 0, its nominal value.
                             So the exposure stays at the time that the files say
        at_start             the start, without any round. Its errors are infinite, so none of its
                             values is applied to the clip

    pairs: the frames and their spikes. start: the matrix M (3, 3) at which the rounds begin.
    model: the changes of the matrix that are fitted, a key of MODELS (matrix.py), e.g. "affine".
    None: the matrix is fixed.
    most_offset: largest offset of the times that is searched, in planes.
    """
    found = after_all_rounds(Estimate(pairs, start, model, most_offset))
    if not model:
        # A wrong offset explains a clip well only together with a moved camera. The matrix is
        # fixed, so no camera was moved, and no other estimate is needed.
        return found
    at_start = _without_rounds(Estimate(pairs, start, model, most_offset))

    best = found
    if has_sign_of_wrong_offset(found, at_start):
        at_nominal_offset = after_all_rounds(
            Estimate(pairs, start, model, most_offset, fits_middle=False)
        )
        if is_nominal_offset_preferred(found, at_nominal_offset):
            best = at_nominal_offset
    # Both results of the rounds may be worse than the start, e.g. on a repeated pattern.
    if _fits_clearly_better(at_start, than=best):
        best = at_start
    return best


def has_sign_of_wrong_offset(found: Estimate, at_start: Estimate) -> bool:
    """Return whether the found offset should be compared with the nominal offset.

    Each of three signs of a wrong offset is enough. In their order below:

        1. The start explains the clip clearly better than `found`.
        2. The offset has a large error.
        3. A moved camera may explain the clip nearly as well as the offset.

    test_an_offset_is_compared_if_there_is_a_sign_that_it_is_wrong tries each sign.
    """
    if _fits_clearly_better(at_start, than=found):
        return True
    offset_error, _ = found.time_errors  # in planes
    if offset_error > SURE_WITHIN_PLANES:
        return True
    return found.is_middle_doubtful


def is_nominal_offset_preferred(found: Estimate, at_nominal_offset: Estimate) -> bool:
    """Return whether the estimate with the nominal offset is kept, and not `found`.

    One of three reasons is enough. In their order below:

        1. The estimate with the nominal offset explains clearly more than `found`.
        2. The matrix of `found` has no finite error, so the clip does not determine this matrix.
        3. The offset of `found` is doubtful, and `found` does not explain clearly more. So the
           offset is not needed to explain the clip.

    test_the_nominal_offset_is_kept_if_it_explains_more_or_the_found_one_is_not_needed tries each
    reason.
    """
    if _fits_clearly_better(at_nominal_offset, than=found):
        return True
    if not math.isfinite(found.matrix_error):
        return True
    return found.is_middle_doubtful and not _fits_clearly_better(found, than=at_nominal_offset)


# An estimate is clearly better than another estimate if the other estimate leaves more than this
# many times as much unexplained. With 1, a little noise could decide against a right result.
# Measured quotients: docs/benchmarks/calibration.md, section "What a clip tells of the times".
CLEARLY_BETTER = 1.1


def _fits_clearly_better(estimate: Estimate, than: Estimate) -> bool:
    """Return whether `estimate` explains the spikes clearly better than the estimate `than`.

    E.g. `estimate` explains 99 % of the spikes' details, and `than` 98.8 %. So 1 % and 1.2 % are
    unexplained. 1.2 is more than CLEARLY_BETTER times 1, so `estimate` is clearly better.
    """
    unexplained = 1 - estimate.explained
    unexplained_by_other = 1 - than.explained
    return unexplained_by_other > CLEARLY_BETTER * unexplained


# ---- The rounds --------------------------------------------------------------------------------

# Size of the finest details, for the times and for the matrix. The unit is a spike pixel. (In a
# large plane it is a binned pixel, because fit.py joins e.g. 2 x 2 pixels to one.) If the
# exposure begins or ends a little later, only a few planes enter or leave the sum of the spikes. So
# the effect of a time is small and noisy, and the times need larger details than the matrix.
TIME_SIGMA = 2.0  # for the times
FINE_SIGMA = 1.2  # for the matrix


def after_all_rounds(estimate: Estimate) -> Estimate:
    """Run all rounds on a new estimate, and return it."""
    # The size of the first details is a tenth of the shorter side, e.g. 25 pixels for a plane of
    # 250 x 400. So a start that is off by about this length is corrected. If the shorter side is
    # below 60 pixels, the first size is 6 pixels.
    shorter_side = min(estimate.pairs[0].sums.shape[1:])  # sums: (T + 1, height, width)
    coarse_sigma = max(6.0, shorter_side / 10)
    # The sizes and the numbers of rounds were chosen by hand. The numbers are limits: `run_rounds`
    # ends earlier if a round changes nearly nothing.
    run_rounds(estimate, sigma=coarse_sigma, rounds=8)
    run_rounds(estimate, sigma=3.0, rounds=6)
    run_rounds(estimate, sigma=TIME_SIGMA, rounds=8)
    # The last rounds change the matrix only.
    if not estimate.is_matrix_fixed:
        run_rounds(estimate, sigma=FINE_SIGMA, rounds=4)
    # So far, `explained` belongs to the estimate before the last step on all pixels. Compute it for
    # the final estimate. `best_estimate` compares this number of several estimates. So all of them
    # need the same size of the details, TIME_SIGMA, here and in `_without_rounds`. Without the next
    # line, test_the_explained_part_belongs_to_the_last_estimate fails.
    estimate.explained = explained_share(estimate, TIME_SIGMA)
    return estimate


def _without_rounds(estimate: Estimate) -> Estimate:
    """Set `explained` of a new estimate, so that it can be compared. Returns the estimate."""
    estimate.explained = explained_share(estimate, TIME_SIGMA)
    return estimate


# `run_rounds` stops early if a round changes less than these two limits. The limits are far below
# the errors that count as sure (SURE_WITHIN_... in result.py). With larger limits, the rounds would
# stop before the values are exact. With smaller limits, more rounds would run and change nothing.
# Both limits were chosen by hand.

# Limit of the first four changes of the matrix (right, down, larger, turned). Each moves the edge
# of the plane by some pixels. E.g. by 0.002, 0, 0.001 and 0: the largest, 0.002, is below the
# limit.
SMALL_SHIFT = 0.003
# Limit of the largest of the other changes:
#
#     after a round on all pixels    the times, in planes
#     after a round on parts         the fifth and later amounts ("wider", ...)
SMALL_CHANGE = 0.03


def run_rounds(estimate: Estimate, sigma: float, rounds: int) -> None:
    """Run up to `rounds` rounds on details of size `sigma` (spike pixels).

    Stops early if a round changes nearly nothing, or if no view can be compared.

        size of the details    a round               changes
        TIME_SIGMA or more     round_on_all_pixels   the times, and the matrix if it is not fixed
        less                   round_on_parts        the matrix, because fine details tell little
                                                     about the times
    """
    # The features of the frames (details.py) do not depend on the times, and hardly on the matrix.
    # So they are computed once for all rounds.
    features = frame_features(estimate, sigma)
    for _ in range(rounds):
        views = comparable_views(estimate, features, sigma)
        if not views:
            return
        if sigma < TIME_SIGMA:
            step = round_on_parts(estimate, views, sigma)
        else:
            step = round_on_all_pixels(estimate, views, sigma)

        if _is_small(step, estimate.coordinates.half_side):
            return


def _is_small(step: np.ndarray, half_side: float) -> bool:
    """Return whether a round has changed nearly nothing (SMALL_SHIFT, SMALL_CHANGE).

    step: the result of the round. First come four changes of the matrix (right, down, larger,
    turned) in half sides of the plane. After a round on all pixels, three times follow. After a
    round on parts, the further changes of the model follow, and there may be none.
    half_side: half of the longer side of the plane, in pixels.
    """
    # MATRIX_CHANGES is 4. E.g. half_side 200 and a step of 0.00001 to the right: 0.002 pixels, less
    # than SMALL_SHIFT.
    largest_shift = np.abs(step[:MATRIX_CHANGES]).max() * half_side  # in pixels
    largest_other = np.abs(step[MATRIX_CHANGES:]).max(initial=0)  # 0 if there are none
    return largest_shift < SMALL_SHIFT and largest_other < SMALL_CHANGE


def explained_share(estimate: Estimate, sigma: float) -> float:
    """Return the fraction of the spikes' details that the frames explain at the present estimate.

    Returns 0 if no view can be compared. sigma: size of the details in spike pixels.
    """
    views = comparable_views(estimate, frame_features(estimate, sigma), sigma)
    if not views:
        return 0.0
    return explain(views).explained

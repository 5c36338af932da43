"""Each step of a round on all pixels (data/cameras/registration/all_pixels.py), tested alone.

Letters of this file:

    s    details of the summed spikes of an exposure
    F    details of the features of the frame
    a    coefficients of the features
    r    residuals, s - F a
"""

from dataclasses import replace

import numpy as np
import pytest

from data.cameras.registration.all_pixels import step_within_limits
from data.cameras.registration.derivatives import (
    LENGTH_COLUMN,
    MATRIX_AND_TIMES,
    MIDDLE_COLUMN,
    ROLL_COLUMN,
    TIME_COLUMNS,
    derivatives,
)
from data.cameras.registration.details import details_of, variance_of_counts
from data.cameras.registration.estimate import Estimate
from data.cameras.registration.explanation import explain, huber_weights
from data.cameras.registration.matrix import nominal_matrix
from data.cameras.registration.view import FEATURES, MOST_REACH, Pair, View
from tests.helpers import registration_views
from tests.helpers.checked import not_none
from tests.helpers.registration_views import RGB, SPIKE

# Planes on each side of the start and of the end of an exposure, in which the code measures rates.
REACH = MOST_REACH
SIGMA = 2.0  # size of the details in spike pixels
BLUR = 4.0  # blur of the frame, in RGB pixels


@pytest.fixture(scope="module")
def moving_view() -> View:
    """Give a view of a picture that swings by 16 pixels."""
    return registration_views.moving_view()


def residuals_after(
    pair: Pair, change: dict[str, float], step: list[float], a: np.ndarray
) -> np.ndarray:
    """Return r (h, w) of a view after a change of the times and the matrix. a stays the same.

    change: field of `Estimate` -> the number to add to it, e.g. {"middle": 2.0} in planes.
    step: amounts of the first four CHANGES of the matrix: right, down, larger, turned.
    """
    estimate = Estimate([pair], nominal_matrix(SPIKE, RGB), model="similarity", most_offset=20.0)
    for field, amount in change.items():
        setattr(estimate, field, getattr(estimate, field) + amount)
    estimate.change_matrix(np.array(step))
    details = not_none(details_of(estimate, pair, pair.features(BLUR), SIGMA))
    return details.spikes - details.features @ a


# The code measures the rates around start and end of the exposure over REACH planes on each side.
# So the test changes the times by the same amount. The change "later" by REACH moves both ends by
# REACH. The change "longer" by 2 REACH moves each end by REACH.
#
# Two columns are only approximate, so their limit is 0.4. The column "larger" neglects that the
# filter of the details does not grow with the image. The column of the roll neglects that rows near
# the middle move by less than REACH.
@pytest.mark.parametrize(
    ("column", "change", "step", "limit"),
    [
        pytest.param(0, {}, [0.01, 0, 0, 0], 0.1, id="right"),
        pytest.param(1, {}, [0, 0.01, 0, 0], 0.1, id="down"),
        pytest.param(2, {}, [0, 0, 0.01, 0], 0.4, id="larger"),
        pytest.param(3, {}, [0, 0, 0, 0.01], 0.1, id="turned"),
        pytest.param(MIDDLE_COLUMN, {"middle": REACH}, [0] * 4, 0.01, id="later"),
        pytest.param(LENGTH_COLUMN, {"length": 2 * REACH}, [0] * 4, 0.01, id="longer"),
        pytest.param(ROLL_COLUMN, {"roll": REACH}, [0] * 4, 0.4, id="rolled"),
    ],
)
def test_each_column_is_the_derivative_of_the_residuals(moving_view, column, change, step, limit):
    pair = Pair(moving_view, factor=1, light="linear")
    estimate = Estimate([pair], nominal_matrix(SPIKE, RGB), model="similarity", most_offset=20.0)
    details = not_none(details_of(estimate, pair, pair.features(BLUR), SIGMA))
    a = explain([details]).a
    predicted = details.features @ a.astype(np.float32)
    computed = derivatives(estimate, details, predicted)[column]

    # Measure the derivative of the residuals r by one value v, with a small change of v, `amount`:
    #
    #     (r(v + amount) - r(v - amount)) / (2 amount)
    opposite_change = {field: -amount for field, amount in change.items()}
    opposite_step = [-amount for amount in step]
    more = residuals_after(pair, change, step, a)
    less = residuals_after(pair, opposite_change, opposite_step, a)
    amount = max([*change.values(), *step])  # all other amounts are 0
    measured = (more - less) / (2 * amount)
    if column == LENGTH_COLUMN:
        # This column does not include the part of the gain that larger coefficients explain.
        measured = measured - predicted / estimate.length

    # Compare without the edges, where the filter repeats pixels.
    inside = (slice(12, -12), slice(12, -12))
    error = computed[inside] - measured[inside]
    assert np.linalg.norm(error) < limit * np.linalg.norm(measured[inside])


def test_the_other_values_follow_a_time_that_stops_at_its_limit():
    rng = np.random.default_rng(0)
    # The derivatives J of 30 residuals, by the numbers of the matrix, the three times, and the
    # coefficients of the features. The step without limits solves A step = -gradient.
    J = rng.standard_normal((30, MATRIX_AND_TIMES + FEATURES))
    A = J.T @ J
    gradient = rng.standard_normal(len(A))
    least = np.array([-100.0, -100, -100])
    free = step_within_limits(A, gradient, (least, -least))
    # `free` is the step without limits. Now the middle and the length may change by at most a tenth
    # of their free steps. The roll has a wide limit.
    most = np.abs(free[TIME_COLUMNS]) * (0.1, 0.1, 100)

    step = step_within_limits(A, gradient, (-most, most))

    assert np.allclose(A @ free, -gradient)
    # Values 4 and 5, the middle and the length, stop at their limits. All other values are at the
    # minimum that is possible with these two values.
    assert np.allclose(np.abs(step[4:6]), most[:2])
    other_values = np.delete(np.arange(len(A)), (4, 5))
    assert np.allclose((A @ step + gradient)[other_values], 0)


def test_pixels_with_large_residuals_count_less():
    weights = huber_weights(np.array([1.0, -2, 4, -8]), limit=2)

    # A residual r above the limit has the weight 2 / |r|.
    assert weights.tolist() == [1, 1, 0.5, 0.25]


def test_a_count_varies_by_its_part_behind_the_point():
    # With 0.43 spikes per plane, 10 planes have 4.3 spikes on average. A count is 5 with the
    # probability 0.3, and 4 otherwise. So its variance is 0.3 (1 - 0.3).
    variance = variance_of_counts(np.full((2, 2), 0.43), planes=10)

    assert variance == pytest.approx(0.3 * 0.7)


def test_broken_pixels_repeat_their_neighbours(moving_view):
    whole = moving_view.stream // 4  # up to 50 spikes per plane
    broken = whole.copy()
    broken[:, 20, 20] = 255  # fires far more often than its neighbours
    broken[:, 40, 40] = 0  # never fires

    mended = Pair(replace(moving_view, stream=broken), factor=1, light="linear").sums

    for y, x in ((20, 20), (40, 40)):
        spikes = float(mended[-1, y, x])
        assert spikes == pytest.approx(float(whole[:, y, x].sum()), rel=0.3)

"""Which estimate of a fit is taken, by what the estimates explain, and the limits of a step.

A fit finds how two cameras are mounted (data/cameras/registration/rounds.py). Words of this file:

    explained        fraction of the details of the spikes that the frames explain, e.g. 0.99
    offset           planes by which the exposure is later than the files say
    nominal offset   the offset that the files say
    doubtful middle  the offset was fitted, but it looks nearly like a moved camera
    middle, length   middle and length of the exposure, in planes. An offset moves the middle
    roll             planes by which the last row of a frame is exposed later than the first row
"""

import math

import numpy as np
import pytest

from data.cameras.registration.estimate import Estimate
from data.cameras.registration.matrix import nominal_matrix
from data.cameras.registration.rounds import (
    has_sign_of_wrong_offset,
    is_nominal_offset_preferred,
)
from data.cameras.registration.view import Pair
from tests.helpers.registration_views import PLANES, RGB, SPIKE, moving_view


@pytest.fixture(scope="module")
def pair() -> Pair:
    """Give a frame and its spikes. Their contents do not matter here."""
    return Pair(moving_view(), factor=1, light="linear")


def estimate(
    pair: Pair,
    explained: float,
    doubtful: bool = False,
    offset_error: float = 0.1,
    matrix_error: float = 0.1,
) -> Estimate:
    """Return an estimate as rounds would leave it. By default it gives no reason to doubt it.

    explained: fraction from 0 to 1. doubtful: whether the middle is doubtful.
    offset_error: standard error in planes. matrix_error: standard error in RGB pixels.
    """
    made = Estimate([pair], nominal_matrix(SPIKE, RGB), "similarity", most_offset=5.0)
    made.explained = explained
    made.is_middle_doubtful = doubtful
    made.time_errors = (offset_error, 0.01)
    made.matrix_error = matrix_error
    return made


# An estimate is clearly better if the other estimate leaves more than 1.1 times as much unexplained
# (CLEARLY_BETTER). If an estimate explains 0.99, then 0.01 is unexplained, and the limit is 0.011:
#
#     explained    unexplained    the estimate with 0.99 is
#     0.9891       0.0109         hardly better
#     0.9889       0.0111         clearly better
#
# expected: whether the found offset is compared with the nominal offset, because there is a sign
# that it is wrong.
@pytest.mark.parametrize(
    ("found", "explained_at_start", "expected"),
    [
        pytest.param({"explained": 0.99}, 0.5, False, id="no sign"),
        pytest.param({"explained": 0.9891}, 0.99, False, id="the start is hardly better"),
        pytest.param({"explained": 0.9889}, 0.99, True, id="the start is better"),
        # An error of the offset above 0.7 planes is large (SURE_WITHIN_PLANES).
        pytest.param({"explained": 0.99, "offset_error": 0.8}, 0.5, True, id="a large error"),
        pytest.param({"explained": 0.99, "doubtful": True}, 0.5, True, id="a doubtful middle"),
    ],
)
def test_an_offset_is_compared_if_there_is_a_sign_that_it_is_wrong(
    pair, found, explained_at_start, expected
):
    at_start = estimate(pair, explained_at_start)

    assert has_sign_of_wrong_offset(estimate(pair, **found), at_start) == expected


# expected: whether the nominal offset is kept. If the middle of a found offset is doubtful, the
# found offset is taken only if the nominal offset explains clearly less.
@pytest.mark.parametrize(
    ("found", "explained_at_nominal", "expected"),
    [
        pytest.param({"explained": 0.99}, 0.99, False, id="equally good"),
        pytest.param({"explained": 0.9891}, 0.99, False, id="nominal is hardly better"),
        pytest.param({"explained": 0.9889}, 0.99, True, id="nominal is better"),
        pytest.param(
            {"explained": 0.99, "matrix_error": math.inf}, 0.5, True, id="no matrix is found"
        ),
        pytest.param(
            {"explained": 0.99, "doubtful": True}, 0.9891, True, id="doubtful, hardly needed"
        ),
        pytest.param({"explained": 0.99, "doubtful": True}, 0.9889, False, id="doubtful, needed"),
    ],
)
def test_the_nominal_offset_is_kept_if_it_explains_more_or_the_found_one_is_not_needed(
    pair, found, explained_at_nominal, expected
):
    at_nominal_offset = estimate(pair, explained_at_nominal)

    assert is_nominal_offset_preferred(estimate(pair, **found), at_nominal_offset) == expected


# A step changes three numbers of planes: the middle, the length and the roll of the exposure. The
# frames of this file have 40 planes (PLANES), and the offset is at most 5 planes.


def test_the_first_step_of_times_is_within_its_limits(pair):
    start = estimate(pair, explained=0.5)

    least, most = start.limits_of_time_steps()

    # The shortest exposure has 0.4 x 40 planes, 24 planes less, but a step is 8 planes at most. The
    # longest exposure has 1.05 x 40 planes, 2 planes more. The largest roll is 0.2 x 40 = 8 planes.
    assert PLANES == 40
    assert least.tolist() == pytest.approx([-5, -8, -8])
    assert most.tolist() == pytest.approx([5, 2, 8])


def test_a_step_of_times_that_are_at_their_limits_can_only_lead_back(pair):
    changed = estimate(pair, explained=0.5)
    changed.change_times(np.array([5.0, -8.0, 8.0]))  # the largest offset, and the largest roll
    changed.change_times(np.array([0.0, -14.0, 0.0]))  # a length of 40 - 8 - 14 = 18 planes

    # The middle can only go back from 5, and the roll from 8. The shortest exposure has 16 planes,
    # so the length can shrink by 2. It can grow by 8, the largest step.
    least, most = changed.limits_of_time_steps()

    assert least.tolist() == pytest.approx([-8, -2, -8])
    assert most.tolist() == pytest.approx([0, 8, 0])

"""Are the stored results of the tests on a GPU the results of today's network?"""

import pytest
from torch import Tensor

from tests.helpers.exact_step import (
    OPTIONS,
    make_clip,
    make_network,
    relative_errors,
    results_of_step,
    stored_step,
)

# float32, relative to the largest value of a tensor. A position that is rounded to the other side
# of a pixel has another derivative, so single gradients are off by 3e-3.
OF_OUTPUT = 1e-5
OF_GRADIENT = 5e-3


@pytest.fixture(scope="module")
def step() -> dict[str, Tensor]:
    """Return the results of a step in float32 on the CPU."""
    return results_of_step(make_network(OPTIONS), make_clip())


def test_a_step_in_float32_on_a_cpu_gives_the_stored_results(step):
    errors = relative_errors(step, stored_step())

    assert errors.pop("output") < OF_OUTPUT
    assert max(errors.values()) < OF_GRADIENT


def test_a_gradient_that_is_two_per_cent_too_large_is_an_error(step):
    name = "conv_last.weight"

    errors = relative_errors(step | {name: step[name] * 1.02}, stored_step())

    assert errors[name] > OF_GRADIENT


def test_a_nan_between_the_stored_positions_is_an_error(step):
    name = max(step, key=lambda tensor: step[tensor].numel())
    broken = step[name].clone()
    broken.view(-1)[1] = float("nan")  # the first stored positions are 0 and far beyond 1

    errors = relative_errors(step | {name: broken}, stored_step())

    assert errors[name] == float("inf")

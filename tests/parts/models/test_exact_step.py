"""The stored results of one training step are still the results of the network.

The tests on a GPU (test_cuda.py) compare with the stored results. Here a CPU computes the step.
"""

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

# The tests are slow. In `make test`, test_network_vrt.py compares the gradients of other networks
# with the gradients of the published network.
pytestmark = pytest.mark.slow

# The largest accepted error in float32, relative to the largest value of a tensor. Some gradients
# have errors of 3e-3. The reason is that float32 may round a sampled position to the other side of
# a pixel, where the interpolation has another derivative.
LIMIT_OF_OUTPUT = 1e-5
LIMIT_OF_GRADIENT = 5e-3


@pytest.fixture(scope="module")
def step() -> dict[str, Tensor]:
    """Give the results of a step in float32 on the CPU."""
    return results_of_step(make_network(OPTIONS), make_clip())


def test_a_step_in_float32_on_a_cpu_gives_the_stored_results(step):
    errors = relative_errors(step, stored_step())

    assert errors.pop("output") < LIMIT_OF_OUTPUT
    assert max(errors.values()) < LIMIT_OF_GRADIENT


def test_a_gradient_that_is_two_per_cent_too_large_is_an_error(step):
    name = "conv_last.weight"

    errors = relative_errors(step | {name: step[name] * 1.02}, stored_step())

    assert errors[name] > LIMIT_OF_GRADIENT


def test_a_nan_between_the_stored_positions_is_an_error(step):
    name = max(step, key=lambda tensor: step[tensor].numel())
    broken = step[name].clone()
    # The stored elements of this tensor are at equal distances from the first to the last one. The
    # distances are far larger than 1, so element 1 is not stored.
    broken.view(-1)[1] = float("nan")

    errors = relative_errors(step | {name: broken}, stored_step())

    assert errors[name] == float("inf")

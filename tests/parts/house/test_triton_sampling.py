"""lab/triton_sampling.py: deformable sampling by our Triton kernels gives the numbers of float64.

The network does not use these kernels yet. Triton's interpreter runs them on the CPU. Triton
decides at its import whether it interprets, so the kernels run in another process
(tests/helpers/interpreted.py). This process runs tests/helpers/sampling_errors.py. It computes
three small convolutions, by our kernels and by models.vrt.deform_conv in float64.
"""

import pytest

from tests.dist.launching import run_ranks

pytest.importorskip("triton", reason="Triton is not installed (CPU wheels of torch)")

# The largest relative error of a case. A rounding error is 6e-8 in float32, and 5e-4 in float16.
# A result is a sum of rounded numbers, so its error may be several times as large.
MOST_ERROR = {
    "one source, float32": 2e-6,
    "one source, float16": 2e-3,
    "two sources, float32": 2e-6,
}


# This test is slow: it takes 3 seconds, for a kernel that is not part of the product yet.
@pytest.mark.slow
def test_sampling_and_its_gradients_are_near_float64():
    done = run_ranks(
        1, "tests/helpers/interpreted.py", "tests.helpers.sampling_errors", limit_s=120
    )

    assert done.exit_codes == [0], done.text
    # e.g. {"one source, float32": {"out": 2e-7, "x": 3e-7, "offset": ...}, ...}
    errors_of_cases = done.json
    assert errors_of_cases.keys() == MOST_ERROR.keys()
    for case, errors in errors_of_cases.items():
        wrong = {result: error for result, error in errors.items() if not error < MOST_ERROR[case]}
        assert not wrong, case

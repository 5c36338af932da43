"""Our Triton kernels: attention, layer norm, and the gated unit of an MLP.

Most tests run the kernels in Triton's interpreter. It needs only a CPU. One test needs a GPU.
"""

import json
import subprocess
import sys

import pytest
import torch

from models.vrt import forms
from tests.dist.launching import ROOT, run_ranks

pytest.importorskip("triton", reason="Triton is not installed (CPU wheels of torch)")

# A program, and the module that this program runs in the interpreter. The module measures the
# errors of the kernels. Its argument says which cases it runs, "cpu" or "long".
INTERPRETED = ("tests/helpers/interpreted.py", "tests.helpers.triton_errors")


@pytest.mark.parametrize(
    ("cases", "count"),
    [
        # These are 7 cases: three shapes of attention, and two lengths of rows each for layer norm
        # and for the gated unit.
        pytest.param("cpu", 7, id="windows of 64 tokens"),
        # These are three shapes of attention. They are slow, because the interpreter takes many
        # seconds for windows of these sizes.
        pytest.param("long", 3, id="windows of 128 and 384 tokens", marks=pytest.mark.slow),
    ],
)
def test_each_kernel_gives_the_numbers_of_float64(cases, count):
    done = run_ranks(1, *INTERPRETED, cases, limit_s=120)

    assert done.exit_codes == [0], done.text
    found = done.json  # name of each case -> the relative errors of its results
    assert len(found) == count
    # All cases compute in float16. Its numbers have 11 significant bits. So a rounding error is at
    # most 2 ** -11 = 5e-4 of the value. A result has several rounding errors, so the limit is four
    # rounding errors, 2e-3. `not error < limit` is also True for NaN.
    wrong = {name: errors for name, errors in found.items() if not max(errors) < 2e-3}
    assert not wrong


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
def test_each_kernel_gives_the_numbers_of_float64_on_a_gpu():
    command = [sys.executable, "-m", "tests.helpers.triton_errors", "cuda"]

    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    for name, errors in found.items():
        # A rounding error is at most 4e-3 in bfloat16, and at most 5e-4 in float16. The limits are
        # two and three rounding errors.
        limit = 8e-3 if "bfloat16" in name else 1.5e-3
        assert max(errors) < limit, name


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_cpu_uses_no_kernel(dtype):
    on_a_cpu = torch.zeros(2, dtype=dtype)

    assert not forms.has_kernels(on_a_cpu)
    # The kernels could compute these sizes: 128 tokens, and heads of 16 channels.
    assert not forms.attention_has_kernel(on_a_cpu, 128, 16)

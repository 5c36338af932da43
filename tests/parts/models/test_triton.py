"""Our Triton kernels in Triton's interpreter, which runs them on a CPU."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from models.vrt import forms

pytest.importorskip("triton", reason="Triton is not installed (CPU wheels of torch)")

ROOT = Path(__file__).resolve().parents[3]


def errors_of_cases(cases: str, **environment: str) -> dict[str, list[float]]:
    """Run tests/helpers/triton_errors.py, in a process of its own.

    cases: which of its cases it runs, "cpu", "long" or "cuda".
    environment: variables that are set for the process. Triton reads TRITON_INTERPRET when it is
        imported, so this process cannot switch between a GPU and the interpreter.

    Returns the name of each case -> the relative errors of its results.
    """
    command = [sys.executable, "-m", "tests.helpers.triton_errors", cases]
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize(
    ("cases", "count"),
    [
        # 9: five shapes of attention, and layer norm and gated unit with two sizes of rows each.
        pytest.param("cpu", 9, id="windows up to 128 tokens"),
        # The same kernel of attention takes many seconds for one shape of this size.
        pytest.param("long", 1, id="windows of 384 tokens", marks=pytest.mark.slow),
    ],
)
def test_each_kernel_gives_the_numbers_of_float64(cases, count):
    found = errors_of_cases(cases, TRITON_INTERPRET="1")

    assert len(found) == count
    # All cases compute in float16. It has 11 bits, so a rounding error is at most 5e-4. A result
    # has several rounding errors: the limit is four of them.
    wrong = {name: errors for name, errors in found.items() if not max(errors) < 2e-3}
    assert not wrong


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
def test_each_kernel_gives_the_numbers_of_float64_on_a_gpu():
    found = errors_of_cases("cuda")

    for name, errors in found.items():
        # bfloat16 has 8 bits: a rounding error is at most 4e-3. In float16 it is at most 5e-4.
        limit = 8e-3 if "bfloat16" in name else 1.5e-3
        assert max(errors) < limit, name


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_cpu_uses_no_kernel(dtype):
    on_a_cpu = torch.zeros(2, dtype=dtype)

    assert not forms.has_kernels(on_a_cpu)
    # 128 tokens and heads of 16 channels are sizes that the kernels could compute.
    assert not forms.attention_has_kernel(on_a_cpu, 128, 16)

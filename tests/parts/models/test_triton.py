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


def errors_of(*arguments: str, **env: str) -> dict[str, list[float]]:
    """Run tests/helpers/triton_errors.py. Return the differences that it measures."""
    command = [sys.executable, "-m", "tests.helpers.triton_errors", *arguments]
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize(
    ("cases", "count"),
    [
        # Five shapes of attention; layer norm and gated unit with two numbers of channels each.
        pytest.param("cpu", 9, id="windows up to 128 tokens"),
        # The same kernel of attention takes many seconds for one shape of this size.
        pytest.param("long", 1, id="windows of 384 tokens", marks=pytest.mark.slow),
    ],
)
def test_each_kernel_gives_the_numbers_of_float64(cases, count):
    found = errors_of(cases, TRITON_INTERPRET="1")

    assert len(found) == count
    # float16 has 11 bits: a rounding error is at most 5e-4.
    wrong = {name: errors for name, errors in found.items() if not max(errors) < 2e-3}
    assert not wrong


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
def test_each_kernel_gives_the_numbers_of_float64_on_a_gpu():
    found = errors_of("cuda")

    # bfloat16 has 8 bits: a rounding error is at most 4e-3.
    limits = {name: 8e-3 if "bfloat16" in name else 1.5e-3 for name in found}
    wrong = {name: errors for name, errors in found.items() if not max(errors) < limits[name]}
    assert not wrong


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_cpu_and_float32_use_no_kernel(dtype):
    assert not forms.has_kernels(torch.zeros(2, dtype=dtype))
    assert not forms.attention_has_kernel(torch.zeros(2, dtype=dtype), 128, 16)

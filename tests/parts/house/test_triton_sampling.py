"""Does the prepared deformable sampling (lab/triton_sampling.py) give the numbers of float64?

Triton's interpreter runs its kernels on the CPU, in a process of its own, because Triton decides
at its import whether it interprets.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="Triton is not installed (CPU wheels of torch)")

ROOT = Path(__file__).resolve().parents[3]


def test_sampling_and_its_gradients_are_those_of_float64():
    command = [sys.executable, "-m", "tests.helpers.sampling_errors"]
    env = os.environ | {"TRITON_INTERPRET": "1"}

    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert len(found) == 3
    # A rounding error is 6e-8 in float32, and 5e-4 in float16.
    wrong = {
        name: errors
        for name, errors in found.items()
        if not max(errors.values()) < (2e-3 if "float16" in name else 2e-6)
    }
    assert not wrong

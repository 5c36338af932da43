"""The Triton kernels against their references: compiled on a GPU, interpreted elsewhere."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def differences() -> dict[str, float]:
    if importlib.util.find_spec("triton") is None:
        pytest.skip("Triton is not installed")
    interpreted = {} if torch.cuda.is_available() else {"TRITON_INTERPRET": "1"}
    # A process of its own: the interpreter has to be chosen before Triton is imported.
    done = subprocess.run(
        [sys.executable, "-m", "tests.triton_worker"], cwd=ROOT, env={**os.environ, **interpreted}, capture_output=True,
        text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_deformable_convolution_and_its_gradients_are_those_of_the_plain_form(differences):
    found = {k: v for k, v in differences.items() if k.startswith("deformable")}
    assert found and all(v < 1e-5 for v in found.values()), found


def test_attention_and_its_gradients_are_those_of_the_plain_form(differences):
    found = {k: v for k, v in differences.items() if k.startswith("attention")}
    assert found and all(v < 1e-4 for v in found.values()), found

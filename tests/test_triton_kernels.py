"""The Triton kernels against their references: compiled on a GPU, interpreted elsewhere; and compiled everywhere."""

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


pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")


def printed_by(module: str, *arguments: str, **env: str) -> dict:
    # A process of its own: the interpreter has to be chosen before Triton is imported.
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments], cwd=ROOT, env={**os.environ, **env}, capture_output=True,
        text=True, timeout=300, check=False,
    )  # fmt: skip
    if done.returncode == 77:
        pytest.skip(done.stderr.strip().splitlines()[-1])
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def differences() -> dict[str, float]:
    return printed_by("tests.triton_worker", **({} if torch.cuda.is_available() else {"TRITON_INTERPRET": "1"}))


def test_deformable_convolution_and_its_gradients_are_those_of_the_plain_form(differences):
    found = {k: v for k, v in differences.items() if k.startswith("deformable")}
    assert found and all(v < 1e-5 for v in found.values()), found


def test_attention_and_its_gradients_are_those_of_the_plain_form(differences):
    found = {k: v for k, v in differences.items() if k.startswith("attention")}
    assert found and all(v < 1e-4 for v in found.values()), found


def test_attention_in_half_precision_at_the_sizes_of_the_network_writes_every_value(differences):
    found = {k: v for k, v in differences.items() if k.startswith("half")}
    # Three and eleven bits of mantissa: 0.4 % and 0.05 % in each of the products that are summed.
    assert len(found) == 5 and all(v < (0.02 if "bfloat16" in k else 0.003) for k, v in found.items()), found


def test_the_gate_of_the_mlp_and_its_gradient_are_those_of_torch(differences):
    assert differences["gate, bfloat16"] < 0.01 and differences["gate, float32"] < 1e-6, differences


def test_the_row_wise_parts_of_a_block_are_those_of_torch_in_every_dtype(differences):
    found = {k: v for k, v in differences.items() if k.startswith("rows")}
    most = {"bfloat16": 0.01, "float16": 0.002, "float32": 1e-5}
    assert len(found) == 3 and all(v < most[k.split()[1]] for k, v in found.items()), found


def test_a_block_with_every_kernel_and_its_gradients_are_those_of_the_form_without_triton(differences):
    found = {k: v for k, v in differences.items() if k.startswith("block")}
    assert len(found) == 2 and all(v < 1e-4 for v in found.values()), found


def test_the_kernels_are_operators_that_torch_compile_keeps(differences):
    assert differences["registered"] == 0.0


def test_kernels_compile_for_gpus_that_are_not_here_and_keep_their_tiles_in_registers(tmp_path):
    # The H100 has matrix instructions of its own: of the kernels that multiply tiles, those that hold most.
    largest = ("forward", "backward, keys", "backward, bias")
    occupied = printed_by("tests.triton_compile", *largest, TRITON_CACHE_DIR=str(tmp_path))

    assert len(occupied) == (14 + len(largest)) * 2  # two dtypes
    # 99 KiB: what a block may have on GPUs for desktops.
    assert all(use["shared"] <= 99 * 1024 and use["stack"] <= 64 for use in occupied.values()), occupied

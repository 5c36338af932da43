"""The form of the network for GPUs, as far as a machine without one can tell."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

CASES = (
    "naive, float32", "plain, bfloat16", "plain, bfloat16, checkpointed",
    "triton, bfloat16", "triton, bfloat16, checkpointed",
)  # fmt: skip


def test_the_form_for_gpus_mixes_no_devices_and_keeps_a_third_of_the_naive_one():
    # A process of its own: the stand-ins must not meet other tests.
    done = subprocess.run(
        [sys.executable, "-m", "tests.fake_gpu", *CASES], cwd=Path(__file__).parent.parent, capture_output=True,
        text=True, timeout=300, check=False,
    )  # fmt: skip
    if done.returncode == 77:
        pytest.skip(done.stderr.strip().splitlines()[-1])
    assert done.returncode == 0, done.stderr
    kept = json.loads(done.stdout)

    assert kept["plain, bfloat16"] < kept["naive, float32"] / 3
    assert kept["triton, bfloat16"] < kept["plain, bfloat16"]
    assert max(kept["plain, bfloat16, checkpointed"], kept["triton, bfloat16, checkpointed"]) < 6.5

"""scripts/benchmark.py through its front door."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize("command", ["net", "train"])
def test_the_benchmark_compares_with_the_oracle_and_writes_its_numbers(tmp_path, command):
    size = ["--config", "small", "--crop", "32", "--frames", "2", "--repeats", "1", "--warmup", "0", "--threads", "1"]
    done = subprocess.run(
        [sys.executable, "scripts/benchmark.py", command, *size, "--against", "naive", "--device", "cpu",
         "--json", str(tmp_path / "numbers.json")],
        cwd=ROOT, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr

    numbers = json.loads((tmp_path / "numbers.json").read_text())
    assert numbers["largest_difference"] < 1e-4
    assert set(numbers["runs"]) == {"ours", "naive"}
    assert numbers["runs"]["ours"]["median_s"] > 0 and numbers["model_flops"] > 0
    assert sum(numbers["shares"].values()) == pytest.approx(1.0)
    assert "ours / naive" in done.stdout

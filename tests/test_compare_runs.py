"""scripts/compare_runs.py from its command line."""

from __future__ import annotations

import json

import numpy as np
import pytest

from scripts.compare_runs import main


@pytest.fixture
def write_run(tmp_path):
    """A run of 20 log entries whose loss is `factor` times that of the first one; its folder."""

    def write(name, factor):
        folder = tmp_path / name
        folder.mkdir()
        steps = np.arange(10, 210, 10)
        entries = [[int(step), float(factor / step)] for step in steps]
        (folder / "training_history.json").write_text(json.dumps({"train/loss": entries}))
        return str(folder)

    return write


@pytest.mark.parametrize(("factor", "code"), [(1.01, 0), (1.1, 1)])
def test_a_difference_is_judged_by_that_of_another_seed(tmp_path, write_run, capsys, factor, code):
    runs = [write_run("fp32", 1.0), write_run("bf16", factor), "--noise", write_run("seed1", 0.96)]

    assert main([*runs, "--out", str(tmp_path / "docs" / "amp")]) == code

    found = json.loads((tmp_path / "docs" / "amp.json").read_text())
    assert found["difference"]["rms"] == pytest.approx(factor - 1)
    assert found["noise"] == pytest.approx({"rms": 0.04, "largest": 0.04, "last": 0.04})
    assert found["is_within_noise"] == (code == 0)
    assert (tmp_path / "docs" / "amp.png").stat().st_size > 5000
    assert "bf16 - fp32" in capsys.readouterr().out


def test_a_run_that_is_not_there_is_named(tmp_path, write_run, capsys):
    here = write_run("fp32", 1.0)

    assert main([here, str(tmp_path / "none"), "--noise", here, "--out", str(tmp_path / "x")]) == 3

    assert "none/training_history.json" in capsys.readouterr().err

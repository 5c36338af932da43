"""scripts/check_gain.py from its command line."""

from __future__ import annotations

import json

import pytest

from scripts.check_gain import main


@pytest.mark.parametrize(
    ("restored", "code", "said"),
    [(27.6, 0, "+3.00 dB, as expected"), (27.5, 1, "NOT as expected"), (float("nan"), 1, "NOT"), (None, 3, "")],
)
def test_a_run_must_gain_three_decibels_in_its_last_validation(tmp_path, capsys, restored, code, said):
    history = {"train/loss": [[1, 0.5]]}
    if restored is not None:
        history |= {"val/psnr": [[250, 30.0], [500, restored]], "val/psnr_input": [[250, 24.6], [500, 24.6 - 1e-9]]}
    (tmp_path / "training_history.json").write_text(json.dumps(history))

    assert main([str(tmp_path)]) == code

    printed = capsys.readouterr()
    assert said in printed.out
    assert code != 3 or "no validation" in printed.err

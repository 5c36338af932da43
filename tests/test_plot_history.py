"""scripts/plot_history.py from its command line."""

from __future__ import annotations

import json

import cv2
import pytest

from scripts.plot_history import main
from utils.run.logger import HistoryWriter


def write_run(folder, scalars, factor=1.0):
    folder.mkdir()
    writer = HistoryWriter(folder, 0)
    for step in (1, 2, 3):
        writer.scalars(dict.fromkeys(scalars, factor * step), step)
    writer.close()
    return folder


def size(path):
    return cv2.imread(str(path)).shape


def test_the_figure_of_one_run_is_the_one_that_the_run_itself_drew(tmp_path):
    run = write_run(tmp_path / "run", ["train/loss", "train/lr", "val/psnr", "val/ssim"])

    assert main([str(run), "--out", str(tmp_path / "new" / "again.png")]) == 0

    assert (tmp_path / "new" / "again.png").read_bytes() == (run / "curves.png").read_bytes()


def test_two_runs_share_their_panels(tmp_path, capsys):
    one = write_run(tmp_path / "one", ["train/loss", "val/psnr"])
    two = write_run(tmp_path / "two", ["train/loss", "val/ssim"], factor=2.0)
    out = tmp_path / "both.png"

    assert main([str(one), str(two / "training_history.json"), "--out", str(out)]) == 0

    assert "3 scalars of 2 runs" in capsys.readouterr().out
    assert size(out)[1] == 3 * 450 and size(one / "curves.png")[1] == 2 * 450
    assert main([str(one), str(two), "--tags", "train/", "--out", str(out)]) == 2  # no file is overwritten
    assert "exists already" in capsys.readouterr().err and size(out)[1] == 3 * 450
    assert main([str(one), str(two), "--tags", "train/", "--out", str(tmp_path / "train.png")]) == 0
    assert size(tmp_path / "train.png")[1] == 450


@pytest.mark.parametrize(
    ("runs", "tags", "message"),
    [
        (["one", "none"], [], "none/training_history.json"),
        (["one", "one"], [], "runs of the same name"),
        (["one"], ["--tags", "loss"], "train/loss"),
        (["broken"], [], "no JSON"),
    ],
)
def test_what_cannot_be_drawn_is_refused_with_the_reason(tmp_path, capsys, runs, tags, message):
    write_run(tmp_path / "one", ["train/loss"])
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "training_history.json").write_text("{")

    assert main([*(str(tmp_path / run) for run in runs), *tags, "--out", str(tmp_path / "x.png")]) == 3

    assert message in capsys.readouterr().err and not (tmp_path / "x.png").exists()
    assert main([str(tmp_path / "one"), "--out", str(tmp_path / "x.xyz")]) == 2 and not (tmp_path / "x.xyz").exists()
    assert json.loads((tmp_path / "one" / "training_history.json").read_text())

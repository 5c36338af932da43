"""scripts/plot_history.py from its command line, and the figures of a run."""

import json

import cv2
import numpy as np
import pytest

from scripts.plot_history import main
from utils.run.history import HISTORY_NAME, LINES_NAME, smoothed
from utils.run.writers import HistoryWriter, ReportWriter


def write_run(folder, scalars, factor=1.0):
    folder.mkdir(parents=True)
    history, report = HistoryWriter(folder, 0), ReportWriter(folder)
    for step in (1, 2, 3):
        history.scalars(dict.fromkeys(scalars, factor * step), step)
    report.scalars({"train/loss": 0.0}, 3)  # without a validation: the files are written at the end
    report.close()
    return folder


def picture(path):
    return cv2.imread(str(path)).astype(int)


def test_the_figure_of_one_run_is_the_one_that_the_run_itself_drew_and_scalars_that_are_named_get_a_panel_each(
    tmp_path,
):
    run = write_run(tmp_path / "run", ["train/loss", "train/lr", "val/psnr", "val/ssim"])
    again, some, one = (tmp_path / "new" / name for name in ("again.png", "val.png", "ssim.png"))
    for out, tags in ((again, []), (some, ["--tags", "val/"]), (one, ["--tags", "val/ssim"])):
        assert main([str(run), *tags, "--out", str(out)]) == 0

    assert (picture(again) == picture(run / "curves.png")).all()  # their titles differ
    assert picture(some).shape[1] == 2 * 450 and picture(one).shape[1] == 450
    assert json.loads((run / HISTORY_NAME).read_text())["val/psnr"] == [[1, 1.0], [2, 2.0], [3, 3.0]]


def test_runs_of_one_folder_name_are_told_apart_and_drawn_in_the_same_panels(tmp_path, capsys):
    tags = ["train/loss", "val/psnr", "val/psnr_input", "train/it_per_s", "train/data_share"]
    one, two = write_run(tmp_path / "a" / "run", tags), write_run(tmp_path / "b" / "run", tags, factor=2.0)
    (two / LINES_NAME).unlink()  # as an older version left it
    out = tmp_path / "both.png"

    assert main([str(one / LINES_NAME), str(two), "--out", str(out)]) == 0

    assert "a/run, b/run" in capsys.readouterr().out
    both, single = picture(out), picture(one / "curves.png")
    assert both.shape == single.shape and (both != single).any()
    assert main([str(one), str(two), "--out", str(out)]) == 2  # no file is overwritten
    assert "exists already" in capsys.readouterr().err


def test_what_cannot_be_drawn_is_refused_with_the_reason(tmp_path, capsys):
    write_run(tmp_path / "one", ["train/loss"])
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / HISTORY_NAME).write_text("{")
    for runs, more, code, message in (
        (["one", "none"], [], 3, "none/training_history.jsonl"),
        (["one", "one"], [], 3, "a run is given twice"),
        (["one"], ["--tags", "loss"], 3, "train/loss"),
        (["broken"], [], 3, "no history"),
        (["one"], ["--out", str(tmp_path / "x.xyz")], 2, "x.xyz"),
    ):
        assert main([*(str(tmp_path / run) for run in runs), "--out", str(tmp_path / "x.png"), *more]) == code
        assert message in capsys.readouterr().err and not list(tmp_path.glob("x.*"))


def test_the_smoothed_curve_is_a_running_mean_that_leaves_nan_out():
    values = np.arange(100.0)
    values[50] = np.nan
    mean, window = smoothed(values)

    assert window == 5 and len(mean) == 100
    assert mean[10] == 10 and mean[0] == 1 and mean[99] == 98  # shorter at the ends
    assert mean[50] == 50 and mean[51] == pytest.approx((49 + 51 + 52 + 53) / 4)
    assert np.isnan(smoothed([np.nan] * 8)[0]).all()

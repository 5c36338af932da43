"""The curves of a run: their files after a resume, a kill and a full disk, and their comparison.

A run writes a line for each step into training_history.jsonl (LINES_NAME), and at times all curves
into training_history.json (HISTORY_NAME) and into a picture. scripts/compare_runs.py draws and
compares the curves of several runs, and lab/compare_curves.py measures how far two curves differ.
"""

import json
import math
import sys

import numpy as np
import pytest

from lab import compare_curves
from scripts.compare_runs import main
from tests.helpers.checked import read_picture
from tests.helpers.clip_files import small_files
from utils.errors import DataError
from utils.run.history import HISTORY_NAME, LINES_NAME, HistoryWriter, read_history, smoothed


def write(folder, steps, start=0, tag="train/loss", factor=1.0):
    """Write the value factor * step for each step, as a start of a run does.

    start: the step of the checkpoint from which the run resumes. tag: name of the curve.
    """
    writer = HistoryWriter(folder, start)
    for step in steps:
        writer.scalars({tag: factor * step}, step)
    writer.close()


def strict(text):
    """JSON as its standard has it: without NaN and Infinity."""
    return json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))


def steps_of(folder, tag="train/loss"):
    """Return the steps of a curve."""
    return [step for step, _ in read_history(folder)[tag]]


def test_values_that_are_not_finite_are_null_in_the_files_and_nan_for_readers(tmp_path):
    HistoryWriter(tmp_path, 0).scalars({"a": math.nan, "b": math.inf, "c": 0.1}, 5)

    assert strict((tmp_path / LINES_NAME).read_text()) == {
        "step": 5,
        "a": None,
        "b": None,
        "c": 0.1,
    }
    history = read_history(tmp_path)
    assert math.isnan(history["a"][0][1])
    assert math.isnan(history["b"][0][1])
    assert history["c"] == [[5, 0.1]]
    HistoryWriter(tmp_path, 5).scalars({"val/psnr": math.nan}, 6)
    whole = {"a": [[5, None]], "b": [[5, None]], "c": [[5, 0.1]], "val/psnr": [[6, None]]}
    assert strict((tmp_path / HISTORY_NAME).read_text()) == whole


def test_a_resume_drops_later_entries_once_and_doubles_no_step(tmp_path):
    write(tmp_path, range(1, 9))
    write(tmp_path, range(6, 11), start=5, factor=2.0)

    assert steps_of(tmp_path) == list(range(1, 11))
    assert read_history(tmp_path)["train/loss"][5] == [6, 12.0]
    write(tmp_path, [1])  # a fresh run in the folder begins an empty history
    assert steps_of(tmp_path) == [1]


def test_a_validation_that_is_repeated_at_the_step_of_the_resume_replaces_the_former_one(tmp_path):
    write(tmp_path, [2, 4])
    for psnr in (30.0, 31.0):
        HistoryWriter(tmp_path, 4).scalars({"val/psnr": psnr}, 4)

    assert read_history(tmp_path) == {"train/loss": [[2, 2.0], [4, 4.0]], "val/psnr": [[4, 31.0]]}


@pytest.mark.parametrize("cut", [1, 10, 21])
def test_a_last_line_that_is_cut_off_is_left_to_the_next_start(tmp_path, cut):
    write(tmp_path, [1, 2])
    file = tmp_path / LINES_NAME
    file.write_bytes(file.read_bytes()[:-cut])
    before = file.read_bytes()

    assert steps_of(tmp_path) == [1] and file.read_bytes() == before  # a reader changes nothing
    write(tmp_path, [2, 3], start=2)

    assert steps_of(tmp_path) == [1, 2, 3]


def test_a_broken_line_in_the_middle_is_an_error_to_readers_and_costs_a_run_only_itself(
    tmp_path, caplog
):
    write(tmp_path, [1, 2, 3])
    file = tmp_path / LINES_NAME
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(lines[0] + b"\0" * 20 + b"\n" + lines[2])

    with pytest.raises(DataError, match="line 2 is no entry"):
        read_history(tmp_path)
    write(tmp_path, [4], start=3)

    assert steps_of(tmp_path) == [1, 3, 4]
    assert "1 lines are no entries" in caplog.text


def test_a_run_of_an_older_version_is_read_and_continued(tmp_path):
    old = {"train/loss": [[1, 0.5], [2, float("nan")], [3, 0.1]], "val/psnr": [[2, 30.0]]}
    (tmp_path / HISTORY_NAME).write_text(json.dumps(old))  # with the word NaN, as these wrote it

    assert steps_of(tmp_path) == [1, 2, 3]
    write(tmp_path, [3], start=2, factor=7.0)

    assert read_history(tmp_path)["val/psnr"] == [[2, 30.0]]
    assert [strict(line)["step"] for line in (tmp_path / LINES_NAME).read_text().splitlines()] == [
        1,
        2,
        3,
    ]
    assert read_history(tmp_path)["train/loss"][2] == [3, 21.0]


def test_a_full_disk_cuts_no_line_and_later_entries_are_written_again(tmp_path, caplog):
    writer = HistoryWriter(tmp_path, 0)
    writer.scalars({"a": 1.0}, 1)
    with small_files(30):
        for step in (2, 3):
            writer.scalars({"a": 1.0}, step)
    writer.scalars({"a": 1.0}, 4)

    assert caplog.text.count("the run goes on without it") == 1
    assert [strict(line)["step"] for line in (tmp_path / LINES_NAME).read_text().splitlines()] == [
        1,
        4,
    ]


def test_curves_that_cannot_be_drawn_cost_no_entry_of_the_history(tmp_path, monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)  # not installed
    write(tmp_path, [1, 2], tag="val/psnr")

    assert steps_of(tmp_path, "val/psnr") == [1, 2]
    assert caplog.text.count("cannot write the report of the run") == 1


def write_run(folder, scalars, factor=1.0):
    """Write a run of three steps with these curves. Return its folder."""
    folder.mkdir(parents=True)
    history = HistoryWriter(folder, 0)
    for step in (1, 2, 3):
        history.scalars(dict.fromkeys(scalars, factor * step), step)
    history.close()  # without a validation: the files are written at the end
    return folder


def picture(path):
    """Return a picture as numbers, (H, W, 3)."""
    return read_picture(path).astype(int)


def test_the_figure_of_one_run_is_its_own_and_scalars_that_are_named_get_a_panel_each(
    tmp_path,
):
    run = write_run(tmp_path / "run", ["train/loss", "train/lr", "val/psnr", "val/ssim"])
    again, some, one = (tmp_path / "new" / name for name in ("again.png", "val.png", "ssim.png"))
    for out, tags in ((again, []), (some, ["--tags", "val/"]), (one, ["--tags", "val/ssim"])):
        assert main([str(run), *tags, "--out", str(out)]) == 0

    assert (picture(again) == picture(run / "curves.png")).all()  # their titles differ
    assert picture(some).shape[1] == 2 * 450
    assert picture(one).shape[1] == 450
    assert json.loads((run / HISTORY_NAME).read_text())["val/psnr"] == [
        [1, 1.0],
        [2, 2.0],
        [3, 3.0],
    ]


def test_runs_of_one_folder_name_are_told_apart_and_drawn_in_the_same_panels(tmp_path, capsys):
    tags = ["train/loss", "val/psnr", "val/psnr_input", "train/it_per_s", "train/data_share"]
    one = write_run(tmp_path / "a" / "run", tags)
    two = write_run(tmp_path / "b" / "run", tags, factor=2.0)
    (two / LINES_NAME).unlink()  # as an older version left it
    out = tmp_path / "both.png"

    assert main([str(one / LINES_NAME), str(two), "--out", str(out)]) == 0

    assert "a/run, b/run" in capsys.readouterr().out
    both = picture(out)
    single = picture(one / "curves.png")
    assert both.shape == single.shape
    assert (both != single).any()
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
        assert (
            main([*(str(tmp_path / run) for run in runs), "--out", str(tmp_path / "x.png"), *more])
            == code
        )
        assert message in capsys.readouterr().err
        assert not list(tmp_path.glob("x.*"))


def test_the_smoothed_curve_is_a_running_mean_that_leaves_nan_out():
    values = np.arange(100.0)
    values[50] = np.nan
    mean, window = smoothed(values.tolist())

    assert window == 5
    assert len(mean) == 100
    assert mean[10] == 10 and mean[0] == 1 and mean[99] == 98  # shorter at the ends
    assert mean[50] == 50
    assert mean[51] == pytest.approx((49 + 51 + 52 + 53) / 4)
    assert np.isnan(smoothed([np.nan] * 8)[0]).all()


def write_curves(folder, **history):
    """A run with this history, the first _ of each name for /; its folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "training_history.json").write_text(
        json.dumps({k.replace("_", "/", 1): v for k, v in history.items()})
    )
    return str(folder)


@pytest.mark.parametrize(("factor", "code"), [(1.01, 0), (1.1, 1)])
def test_a_difference_is_judged_by_that_of_another_seed(tmp_path, factor, code):
    losses = {"fp32": 1.0, "bf16": factor, "seed1": 0.96}
    runs = [
        write_curves(tmp_path / k, train_loss=[[i, f / i] for i in range(10, 210, 10)])
        for k, f in losses.items()
    ]
    runs.insert(2, "--noise")

    assert compare_curves.main([*runs, "--out", str(tmp_path / "docs" / "amp")]) == code

    found = json.loads((tmp_path / "docs" / "amp.json").read_text())
    assert found["difference"]["rms"] == pytest.approx(factor - 1)
    assert found["noise"] == pytest.approx({"rms": 0.04, "largest": 0.04, "last": 0.04})
    assert found["is_within_noise"] == (code == 0)
    assert (tmp_path / "docs" / "amp.png").stat().st_size > 5000


@pytest.mark.parametrize("is_md", [False, True])
def test_training_runs_give_a_table_of_scores_speed_size_and_the_options_that_differ(
    tmp_path, capsys, is_md
):
    folders = []
    for name, lr, psnr in (("a_run_with_a_long_name", 2e-3, 30.5), ("b", 1e-3, 31.25)):
        folder = tmp_path / "experiments" / name
        (folder / "options").mkdir(parents=True)
        curves = {"train_loss": [[10, 0.5], [20, 0.25]], "val_psnr": [[10, psnr], [20, psnr - 1]]}
        folders.append(write_curves(folder, train_it_per_s=[[20, 1.5]], **curves))
        options = {
            "task": name,
            "train": {"G_optimizer_lr": lr, "total_iter": 20},
            "netG": {"depths": [2] * 40 + [lr]},
        }
        (folder / "options" / "x.json").write_text(json.dumps(options))
        (folder / "environment.json").write_text('{"parameters": "1.23 M"}')

    assert main([*folders, *(["--md"] if is_md else [])]) == 0

    lines = capsys.readouterr().out.splitlines()
    rows = [line.strip("| ").replace(" | ", "  ").split() for line in lines]
    assert ["b", "31.25", "10", "0.25", "1.5", "1.23", "M"] in rows
    assert ["train.G_optimizer_lr", "0.002", "0.001"] in rows
    assert not any("total_iter" in row[:1] for row in rows)
    assert is_md or max(map(len, lines)) <= 100


def test_tests_give_a_table_of_at_most_100_columns(tmp_path, capsys):
    folders = [tmp_path / ("long_" * 8) / name for name in ("test", "test_other")]
    for folder in folders:
        folder.mkdir(parents=True)
        scores = {
            kind: {"psnr": 30.0, "ssim": 0.9, "psnr_y": 31.0, "ssim_y": 0.91}
            for kind in ("restored", "input")
        }
        best = f"{folder.parent}/checkpoints/checkpoint_best.pth"
        weights = {"weights": f"{best} (sha256 0123), network from the file"}
        content = {"protocol": weights, "clips": {}, "averages": scores}
        (folder / "metrics.json").write_text(json.dumps(content))

    assert main(list(map(str, folders))) == 0

    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4, lines
    assert all(len(line) <= 100 for line in lines), lines
    assert lines[2].startswith("test  ")
    assert "30.00" in lines[2]


@pytest.mark.parametrize(
    ("restored", "code", "said"),
    [
        (27.6, 0, "+3.00 dB, as expected"),
        (27.5, 1, "NOT as expected"),
        (float("nan"), 1, "NOT"),
        (None, 3, ""),
    ],
)
def test_a_run_must_gain_three_decibels_in_its_last_validation(
    tmp_path, capsys, restored, code, said
):
    scores = {
        "val_psnr": [[250, 30.0], [500, restored]],
        "val_psnr_input": [[250, 24.6], [500, 24.6 - 1e-9]],
    }
    run = write_curves(tmp_path, train_loss=[[1, 0.5]], **(scores if restored is not None else {}))

    assert main([run, "--at-least", "3"]) == code

    printed = capsys.readouterr()
    assert said in printed.out
    assert code != 3 or "no validation" in printed.err


def test_every_run_that_is_named_must_gain_as_much(tmp_path):
    runs = []
    for name, restored in (("good", 28.0), ("poor", 25.0)):
        scores = {"val_psnr": [[500, restored]], "val_psnr_input": [[500, 24.0]]}
        runs.append(write_curves(tmp_path / name, train_loss=[[1, 0.5]], **scores))

    assert main([runs[0], "--at-least", "3"]) == 0
    assert main([*runs, "--at-least", "3"]) == 1


def test_absent_files_files_of_another_form_and_a_run_given_twice_are_refused(tmp_path, capsys):
    for number, (name, content, said) in enumerate((
        ("metrics.json", "{", "cannot read results"),
        ("metrics.json", "[1, 2]", "no results of a test"),
        ("training_history.json", '{"train/loss": [[10, "low"]]}',
         "train/loss is 'low' at step 10"),
        ("training_history.jsonl", '{"step": 10, "train/loss": [1]}\n',
         "train/loss is [1] at step 10"),
        ("training_history.json", '{"train/loss": [[10, 0.5]]}', "a run is given twice"),
        ("log.txt", "", "the folder of a run, or its training_history.jsonl"),
    )):  # fmt: skip
        folders = [tmp_path / f"{number} {copy}" for copy in range(2)]
        for folder in folders:
            folder.mkdir()
            (folder / name).write_text(content)
        given = [folders[0], folders["twice" not in said]]
        assert main(list(map(str, given))) == 3
        text = capsys.readouterr().err
        assert said in text
        assert text.count("Error: ") == 1
        assert "Traceback" not in text

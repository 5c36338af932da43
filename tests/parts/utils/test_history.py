"""The curves of a run: their files after a resume, a kill or a full disk, and their comparison.

A run writes a line for each step into training_history.jsonl (LINES_NAME). At each validation, and
at its end, it writes all curves into training_history.json (HISTORY_NAME) and into a picture.
scripts/compare_runs.py draws and compares the curves of several runs. lab/compare_curves.py
measures how much two curves differ. The exit codes of these two programs are

    0    done
    1    the runs gain too little or differ too much
    2    wrong arguments
    3    files that cannot be used
"""

import json
import math
import sys

import numpy as np
import pytest

from lab import compare_curves
from scripts import compare_runs
from tests.helpers.checked import read_picture
from tests.helpers.clip_files import small_files
from utils.errors import DataError
from utils.run.figures import running_mean
from utils.run.history import HISTORY_NAME, LINES_NAME, read_history
from utils.run.history_writer import HistoryWriter

# ---- The files of a run ----


def write(folder, steps, start=0, tag="train/loss", factor=1.0, draws_report=False):
    """Write a curve with the value factor * step at each step, as a start of a run does.

    start: the step of the checkpoint from which the run resumes, or 0 for a fresh start.
    tag: name of the curve. draws_report: whether the report is also drawn, which takes longer.
    """
    writer = HistoryWriter(folder, start, draws_report)
    for step in steps:
        writer.scalars({tag: factor * step}, step)
    writer.close()


def read_strictly(text):
    """Read JSON by its standard. It forbids the words NaN and Infinity, but Python allows them."""
    return json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))


def entries_of(folder):
    """Return the entries of a run, one for each line of its file."""
    lines = (folder / LINES_NAME).read_text().splitlines()
    return [read_strictly(line) for line in lines]


def steps_of(folder, tag="train/loss"):
    """Return the steps of a curve."""
    return [step for step, _ in read_history(folder)[tag]]


def test_values_that_are_not_finite_are_null_in_the_file_of_lines(tmp_path):
    HistoryWriter(tmp_path, start=0).scalars({"a": math.nan, "b": math.inf, "c": 0.1}, step=5)

    assert entries_of(tmp_path) == [{"step": 5, "a": None, "b": None, "c": 0.1}]


def test_values_that_are_not_finite_are_nan_for_readers(tmp_path):
    HistoryWriter(tmp_path, start=0).scalars({"a": math.nan, "b": math.inf, "c": 0.1}, step=5)

    history = read_history(tmp_path)

    [_, a] = history["a"][0]
    [_, b] = history["b"][0]
    assert math.isnan(a)
    assert math.isnan(b)
    assert history["c"] == [[5, 0.1]]


def test_values_that_are_not_finite_are_null_in_the_file_of_curves(tmp_path):
    HistoryWriter(tmp_path, start=0).scalars({"a": math.nan, "b": math.inf, "c": 0.1}, step=5)
    # A validation writes this file.
    HistoryWriter(tmp_path, start=5).scalars({"val/psnr": math.nan}, step=6)

    assert read_strictly((tmp_path / HISTORY_NAME).read_text()) == {
        "a": [[5, None]],
        "b": [[5, None]],
        "c": [[5, 0.1]],
        "val/psnr": [[6, None]],
    }


def test_a_resume_drops_later_entries_once_and_doubles_no_step(tmp_path):
    # The run was killed after step 8. Its last checkpoint is of step 5.
    write(tmp_path, range(1, 9))
    write(tmp_path, range(6, 11), start=5, factor=2.0)

    assert steps_of(tmp_path) == list(range(1, 11))
    # The value of step 6 comes from the second start: factor 2 x step 6.
    assert read_history(tmp_path)["train/loss"][5] == [6, 12.0]


def test_a_fresh_run_in_the_folder_begins_an_empty_history(tmp_path):
    write(tmp_path, range(1, 9))
    write(tmp_path, [1])

    assert steps_of(tmp_path) == [1]


def test_a_validation_that_is_repeated_at_the_step_of_the_resume_replaces_the_former_one(tmp_path):
    write(tmp_path, [2, 4])
    for psnr in (30.0, 31.0):
        HistoryWriter(tmp_path, start=4).scalars({"val/psnr": psnr}, step=4)

    assert read_history(tmp_path) == {"train/loss": [[2, 2.0], [4, 4.0]], "val/psnr": [[4, 31.0]]}


# The last line has 31 bytes: {"step": 2, "train/loss": 2.0} and the end of the line. The cuts
# remove only the end of the line, a third of the line, and two thirds of it.
@pytest.mark.parametrize("cut", [1, 10, 21])
def test_a_last_line_that_is_cut_off_is_only_repaired_by_the_next_start(tmp_path, cut):
    write(tmp_path, [1, 2])
    file = tmp_path / LINES_NAME
    # Cut the file, as if the run was killed while it wrote the line.
    file.write_bytes(file.read_bytes()[:-cut])
    content = file.read_bytes()

    # A reader leaves the last line out. It does not change the file, because the run may still be
    # writing the line.
    assert steps_of(tmp_path) == [1]
    assert file.read_bytes() == content
    write(tmp_path, [2, 3], start=2)
    assert steps_of(tmp_path) == [1, 2, 3]


@pytest.fixture
def broken_in_the_middle(tmp_path):
    """Give a folder whose file of lines has zeros in place of its second line of three."""
    write(tmp_path, [1, 2, 3])
    file = tmp_path / LINES_NAME
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(lines[0] + b"\0" * 20 + b"\n" + lines[2])
    return tmp_path


def test_a_broken_line_in_the_middle_is_an_error_to_readers(broken_in_the_middle):
    with pytest.raises(DataError, match="line 2 is no entry"):
        read_history(broken_in_the_middle)


def test_a_broken_line_in_the_middle_costs_a_run_only_this_line(broken_in_the_middle, caplog):
    write(broken_in_the_middle, [4], start=3)

    assert steps_of(broken_in_the_middle) == [1, 3, 4]
    assert "1 line is no entry" in caplog.text


@pytest.fixture
def old_run(tmp_path):
    """Give the folder of a run of an older version. It wrote only the file of curves.

    Older versions wrote the word NaN. It is no JSON.
    """
    old = {"train/loss": [[1, 0.5], [2, float("nan")], [3, 0.1]], "val/psnr": [[2, 30.0]]}
    (tmp_path / HISTORY_NAME).write_text(json.dumps(old))
    return tmp_path


def test_a_run_of_an_older_version_is_read(old_run):
    assert steps_of(old_run) == [1, 2, 3]


def test_a_run_of_an_older_version_is_continued(old_run):
    write(old_run, [3], start=2, factor=7.0)

    assert read_history(old_run)["val/psnr"] == [[2, 30.0]]
    assert [entry["step"] for entry in entries_of(old_run)] == [1, 2, 3]
    assert read_history(old_run)["train/loss"][2] == [3, 21.0]


def test_a_full_disk_cuts_no_line_and_later_entries_are_written_again(tmp_path, caplog):
    writer = HistoryWriter(tmp_path, start=0)
    writer.scalars({"a": 1.0}, step=1)
    # A line has 20 bytes, so a file of 30 bytes has no room for a second line.
    with small_files(limit=30):
        for step in (2, 3):
            writer.scalars({"a": 1.0}, step)
    writer.scalars({"a": 1.0}, step=4)

    assert caplog.text.count("the run goes on without it") == 1
    assert [entry["step"] for entry in entries_of(tmp_path)] == [1, 4]


def test_curves_that_cannot_be_drawn_cost_no_entry_of_the_history(tmp_path, monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)  # as if it were not installed

    write(tmp_path, [1, 2], tag="val/psnr", draws_report=True)

    assert steps_of(tmp_path, "val/psnr") == [1, 2]
    assert caplog.text.count("cannot write the report of the run") == 1


def test_the_smoothed_curve_is_a_running_mean_that_leaves_nan_out():
    values = np.arange(100.0)
    values[50] = np.nan

    mean, window = running_mean(values.tolist())

    # The window is a twentieth of the 100 values. So entry 10 is the mean of the values 8 to 12.
    assert window == 5
    assert len(mean) == 100
    assert mean[10] == 10
    # At both ends the window is shorter. The mean of 0, 1, 2 is 1, and the mean of 97, 98, 99 is
    # 98.
    assert mean[0] == 1
    assert mean[99] == 98
    # Value 50 is NaN. The window around it has 48, 49, 51 and 52. The window around value 51 has
    # 49, 51, 52 and 53.
    assert mean[50] == 50
    assert mean[51] == pytest.approx((49 + 51 + 52 + 53) / 4)


def test_the_smoothed_curve_of_only_nan_is_nan():
    mean, _ = running_mean([np.nan] * 8)

    assert np.isnan(mean).all()


# ---- compare_runs: pictures of curves ----

# Width of a panel in a picture of curves, in pixels. A panel shows one curve.
PANEL_WIDTH = 450


def write_run(folder, tags, factor=1.0):
    """Write a run of three steps with these curves. Return its folder.

    The picture and the file of curves are written at the end, because there is no validation.
    """
    folder.mkdir(parents=True)
    writer = HistoryWriter(folder, start=0)
    for step in (1, 2, 3):
        writer.scalars(dict.fromkeys(tags, factor * step), step)
    writer.close()
    return folder


def picture(path):
    """Return a picture as numbers, (H, W, 3)."""
    return read_picture(path).astype(int)


@pytest.fixture(scope="module")
def run_with_four_curves(tmp_path_factory):
    """Give the folder of a run with two curves of training and two of validation.

    No test changes it.
    """
    folder = tmp_path_factory.mktemp("four") / "run"
    return write_run(folder, ["train/loss", "train/lr", "val/psnr", "val/ssim"])


def test_the_picture_of_one_run_equals_the_picture_that_the_run_wrote(
    run_with_four_curves, tmp_path
):
    out = tmp_path / "new" / "again.png"

    assert compare_runs.main([str(run_with_four_curves), "--out", str(out)]) == 0

    # The pictures must be equal in each pixel, because they have no title in which they could
    # differ.
    assert (picture(out) == picture(run_with_four_curves / "curves.png")).all()


@pytest.mark.parametrize(("tags", "panels"), [("val/", 2), ("val/ssim", 1)])
def test_scalars_that_are_named_get_a_panel_each(run_with_four_curves, tmp_path, tags, panels):
    out = tmp_path / "new.png"

    command = [str(run_with_four_curves), "--tags", tags, "--out", str(out)]
    assert compare_runs.main(command) == 0

    assert picture(out).shape[1] == panels * PANEL_WIDTH


def test_the_end_of_a_run_writes_its_curves(run_with_four_curves):
    curves = json.loads((run_with_four_curves / HISTORY_NAME).read_text())

    assert curves["val/psnr"] == [[1, 1.0], [2, 2.0], [3, 3.0]]


@pytest.fixture(scope="module")
def two_runs(tmp_path_factory):
    """Give the folders of two runs with the same folder name, a/run and b/run.

    No test changes them.
    """
    folder = tmp_path_factory.mktemp("two")
    tags = ["train/loss", "val/psnr", "val/psnr_input", "train/it_per_s", "train/data_share"]
    one = write_run(folder / "a" / "run", tags)
    two = write_run(folder / "b" / "run", tags, factor=2.0)
    # Without its file of lines, the second run looks like a run of an older version.
    (two / LINES_NAME).unlink()
    return one, two


def test_runs_of_one_folder_name_are_told_apart_and_drawn_in_the_same_panels(
    two_runs, tmp_path, capsys
):
    one, two = two_runs
    out = tmp_path / "both.png"

    # A run may be named by its folder, or by a file of curves in it.
    assert compare_runs.main([str(one / LINES_NAME), str(two), "--out", str(out)]) == 0

    assert "a/run, b/run" in capsys.readouterr().out
    both = picture(out)
    single = picture(one / "curves.png")
    assert both.shape == single.shape
    assert (both != single).any()


def test_a_picture_that_exists_is_not_overwritten(two_runs, tmp_path, capsys):
    one, two = two_runs
    out = tmp_path / "both.png"
    out.write_bytes(b"a picture")

    assert compare_runs.main([str(one), str(two), "--out", str(out)]) == 2

    assert "exists already" in capsys.readouterr().err


@pytest.fixture(scope="module")
def runs_to_refuse(tmp_path_factory):
    """Give a folder with a run, "one", and a damaged run, "broken". No test changes it."""
    folder = tmp_path_factory.mktemp("refused")
    write_run(folder / "one", ["train/loss"])
    (folder / "broken").mkdir()
    (folder / "broken" / HISTORY_NAME).write_text("{")
    return folder


def test_training_runs_and_tests_are_not_compared_in_one_table(tmp_path, capsys):
    # A folder counts as the folder of a test if it has the file of scores, metrics.json.
    (tmp_path / "test").mkdir()
    (tmp_path / "test/metrics.json").write_text("{}")
    (tmp_path / "run").mkdir()

    assert compare_runs.main([str(tmp_path / "test"), str(tmp_path / "run")]) == 3

    message = capsys.readouterr().err
    assert str(tmp_path / "run") in message
    # The user may have meant the test or the training run, so the advice names both.
    assert "give only tests, or only training runs" in message


@pytest.mark.parametrize(
    ("runs", "flags", "code", "message"),
    [
        (["one", "none"], [], 3, "none/training_history.jsonl"),
        (["one", "one"], [], 3, "a run is given twice"),
        (["one"], ["--tags", "loss"], 3, "train/loss"),
        (["broken"], [], 3, "no history"),
        (["one"], ["--out", "{folder}/x.xyz"], 2, "x.xyz"),
    ],
    ids=["no run", "a run twice", "no such curve", "a broken file", "no kind of picture"],
)
def test_what_cannot_be_drawn_is_refused_with_the_reason(
    runs_to_refuse, tmp_path, capsys, runs, flags, code, message
):
    folders = [str(runs_to_refuse / run) for run in runs]
    more_flags = [flag.format(folder=tmp_path) for flag in flags]

    # `more_flags` may give --out a second time. Then the last --out counts.
    command = [*folders, "--out", str(tmp_path / "x.png"), *more_flags]
    assert compare_runs.main(command) == code

    assert message in capsys.readouterr().err
    assert not list(tmp_path.glob("x.*"))


# ---- compare_curves: how far two curves differ ----


def write_curves(folder, **curves):
    """Write the file of curves of a run. Return its folder as a text.

    curves: name -> list of [step, value]. The first _ of a name stands for the slash, e.g.
    train_it_per_s for "train/it_per_s".
    """
    folder.mkdir(parents=True, exist_ok=True)
    history = {name.replace("_", "/", 1): values for name, values in curves.items()}
    (folder / HISTORY_NAME).write_text(json.dumps(history))
    return str(folder)


@pytest.mark.parametrize(("factor", "code"), [(1.01, 0), (1.1, 1)], ids=["small", "large"])
def test_a_difference_is_compared_with_the_difference_between_two_seeds(tmp_path, factor, code):
    # The losses of three runs are multiples of 1 / step. Two seeds differ by 4 %.
    runs = {}
    for name, multiple in {"fp32": 1.0, "bf16": factor, "seed1": 0.96}.items():
        loss = [[step, multiple / step] for step in range(10, 210, 10)]
        runs[name] = write_curves(tmp_path / name, train_loss=loss)
    out = tmp_path / "docs" / "amp"

    command = [runs["fp32"], runs["bf16"], "--noise", runs["seed1"], "--out", str(out)]
    assert compare_curves.main(command) == code

    found = json.loads(out.with_suffix(".json").read_text())
    assert found["difference"]["rms"] == pytest.approx(factor - 1)
    assert found["noise"] == pytest.approx({"rms": 0.04, "largest": 0.04, "last": 0.04})
    assert found["is_within_noise"] == (code == 0)
    # A picture with curves has more bytes than an empty picture, so this limit shows that the
    # curves were drawn.
    assert out.with_suffix(".png").stat().st_size > 5000


def test_curves_of_fewer_steps_than_the_running_mean_are_refused(tmp_path):
    runs = []
    for name in ("fp32", "bf16", "seed1"):
        loss = [[step, 1 / step] for step in (10, 20, 30)]
        runs.append(write_curves(tmp_path / name, train_loss=loss))
    out = tmp_path / "amp"

    with pytest.raises(DataError, match="3 common steps, fewer than the 5 entries"):
        compare_curves.main([*runs[:2], "--noise", runs[2], "--out", str(out)])

    assert not list(tmp_path.glob("amp.*"))


# ---- compare_runs: tables ----


def write_trained(folder, lr, psnr):
    """Write the files of a run with curves, options and an environment. Return its folder.

    lr: the learning rate. psnr: the best score. It is the score of step 10.
    """
    write_curves(
        folder,
        train_loss=[[10, 0.5], [20, 0.25]],
        val_psnr=[[10, psnr], [20, psnr - 1]],
        train_it_per_s=[[20, 1.5]],
    )
    options = {
        "task": folder.name,
        "train": {"G_optimizer_lr": lr, "total_iter": 20},
        # This long list must not make the table wider.
        "netG": {"depths": [2] * 40 + [lr]},
    }
    (folder / "options").mkdir()
    (folder / "options" / "x.json").write_text(json.dumps(options))
    (folder / "environment.json").write_text('{"parameters": "1.23 M"}')
    return str(folder)


def cells(line):
    """Return the words of a row of a table, in the form of a terminal or of Markdown."""
    return line.strip("| ").replace(" | ", "  ").split()


@pytest.mark.parametrize("flags", [[], ["--md"]], ids=["terminal", "Markdown"])
def test_training_runs_give_a_table_of_scores_speed_size_and_the_options_that_differ(
    tmp_path, capsys, flags
):
    experiments = tmp_path / "experiments"
    first = write_trained(experiments / "a_run_with_a_long_name", lr=2e-3, psnr=30.5)
    second = write_trained(experiments / "b", lr=1e-3, psnr=31.25)

    assert compare_runs.main([first, second, *flags]) == 0

    lines = capsys.readouterr().out.splitlines()
    rows = [cells(line) for line in lines]
    # A row has the name, the best score, its step, the last loss, steps per second and parameters.
    assert ["b", "31.25", "10", "0.25", "1.5", "1.23", "M"] in rows
    # Only options that differ have a row, with the value of each run.
    assert ["train.G_optimizer_lr", "0.002", "0.001"] in rows
    for row in rows:
        assert "total_iter" not in row[:1]
    if not flags:
        for line in lines:
            assert len(line) <= 100, line


def write_test(folder):
    """Write the results of a test with the same scores in each folder. Return the folder."""
    folder.mkdir(parents=True)
    scores = {"psnr": 30.0, "ssim": 0.9, "psnr_y": 31.0, "ssim_y": 0.91}
    checkpoint = f"{folder.parent}/checkpoints/checkpoint_best.pth"
    content = {
        "protocol": {"weights": f"{checkpoint} (sha256 0123), network from the file"},
        "clips": {},
        "averages": {"restored": scores, "input": scores},
    }
    (folder / "metrics.json").write_text(json.dumps(content))
    return str(folder)


def test_tests_give_a_table_of_at_most_100_columns(tmp_path, capsys):
    long_name = "long_" * 8
    first = write_test(tmp_path / long_name / "test")
    second = write_test(tmp_path / long_name / "test_other")

    assert compare_runs.main([first, second]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4, lines
    for line in lines:
        assert len(line) <= 100, line
    assert lines[2].startswith("test  ")
    assert "30.00" in lines[2]


# ---- compare_runs: the least gain ----


def write_scores(folder, restored, given):
    """Write a run with two validations. Return its folder.

    restored: PSNR of the restored frames in the last validation. given: PSNR of the input frames.
    """
    return write_curves(
        folder,
        train_loss=[[1, 0.5]],
        val_psnr=[[250, 30.0], [500, restored]],
        val_psnr_input=[[250, given], [500, given]],
    )


# The PSNR of the restored frames, the exit code (1: the run has gained too little), and a part of
# the message. The input has 24.6 dB, so 27.5 dB are a gain of only 2.9 dB.
@pytest.mark.parametrize(
    ("restored", "code", "message"),
    [
        (27.6, 0, "+3.00 dB, as expected"),
        (27.5, 1, "NOT as expected"),
        (float("nan"), 1, "NOT"),
    ],
)
def test_a_run_must_gain_three_decibels_in_its_last_validation(
    tmp_path, capsys, restored, code, message
):
    # In float64, 27.6 - 24.6 is a little less than 3. So take a little less than 24.6 dB. Otherwise
    # the gain of the first case would be too small.
    run = write_scores(tmp_path, restored, given=24.6 - 1e-9)

    assert compare_runs.main([run, "--at-least", "3"]) == code

    assert message in capsys.readouterr().out


def test_a_run_without_a_validation_has_no_gain(tmp_path, capsys):
    run = write_curves(tmp_path, train_loss=[[1, 0.5]])

    assert compare_runs.main([run, "--at-least", "3"]) == 3

    assert "no validation" in capsys.readouterr().err


def test_every_run_that_is_named_must_gain_as_much(tmp_path):
    good = write_scores(tmp_path / "good", restored=28.0, given=24.0)
    poor = write_scores(tmp_path / "poor", restored=25.0, given=24.0)

    assert compare_runs.main([good, "--at-least", "3"]) == 0
    assert compare_runs.main([good, poor, "--at-least", "3"]) == 1


# ---- compare_runs: what is refused ----


def check_refusal(capsys, folders, message):
    """Check that compare_runs refuses these folders with one message."""
    assert compare_runs.main([str(folder) for folder in folders]) == 3
    printed = capsys.readouterr().err
    assert message in printed
    assert printed.count("Error: ") == 1
    assert "Traceback" not in printed


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("metrics.json", "{", "cannot read results"),
        ("metrics.json", "[1, 2]", "no results of a test"),
        (HISTORY_NAME, '{"train/loss": [[10, "low"]]}', "train/loss is 'low' at step 10"),
        (LINES_NAME, '{"step": 10, "train/loss": [1]}\n', "train/loss is [1] at step 10"),
        ("log.txt", "", "the folder of a run, or its training_history.jsonl"),
    ],
)
def test_absent_files_and_files_of_another_form_are_refused(
    tmp_path, capsys, name, content, message
):
    folders = [tmp_path / "one", tmp_path / "two"]
    for folder in folders:
        folder.mkdir()
        (folder / name).write_text(content)

    check_refusal(capsys, folders, message)


def test_a_run_given_twice_is_refused(tmp_path, capsys):
    run = write_curves(tmp_path / "run", train_loss=[[10, 0.5]])

    check_refusal(capsys, [run, run], "a run is given twice")

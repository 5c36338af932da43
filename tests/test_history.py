"""training_history.jsonl and .json: what stands in them after a resume, a kill and a full disk."""

import json
import math
import subprocess
import sys

import pytest

from utils.errors import DataError
from utils.run.history import HISTORY_NAME, LINES_NAME, read_history
from utils.run.writers import HistoryWriter, ReportWriter


def write(folder, steps, start=0, tag="train/loss", factor=1.0):
    writer = HistoryWriter(folder, start)
    for step in steps:
        writer.scalars({tag: factor * step}, step)
    writer.close()


def strict(text):
    """JSON as its standard has it: without NaN and Infinity."""
    return json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))


def steps_of(folder, tag="train/loss"):
    return [step for step, _ in read_history(folder)[tag]]


def test_values_that_are_not_finite_are_null_in_the_files_and_nan_for_readers(tmp_path):
    HistoryWriter(tmp_path, 0).scalars({"a": math.nan, "b": math.inf, "c": 0.1}, 5)

    assert strict((tmp_path / LINES_NAME).read_text()) == {"step": 5, "a": None, "b": None, "c": 0.1}
    history = read_history(tmp_path)
    assert math.isnan(history["a"][0][1]) and math.isnan(history["b"][0][1]) and history["c"] == [[5, 0.1]]
    ReportWriter(tmp_path).scalars({"val/psnr": math.nan}, 5)
    assert strict((tmp_path / HISTORY_NAME).read_text()) == {"a": [[5, None]], "b": [[5, None]], "c": [[5, 0.1]]}


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


def test_a_broken_line_in_the_middle_is_an_error_to_readers_and_costs_a_run_only_itself(tmp_path, caplog):
    write(tmp_path, [1, 2, 3])
    file = tmp_path / LINES_NAME
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(lines[0] + b"\0" * 20 + b"\n" + lines[2])

    with pytest.raises(DataError, match="line 2 is no entry"):
        read_history(tmp_path)
    write(tmp_path, [4], start=3)

    assert steps_of(tmp_path) == [1, 3, 4] and "1 lines are no entries" in caplog.text


def test_a_run_of_an_older_version_is_read_and_continued(tmp_path):
    old = {"train/loss": [[1, 0.5], [2, float("nan")], [3, 0.1]], "val/psnr": [[2, 30.0]]}
    (tmp_path / HISTORY_NAME).write_text(json.dumps(old))  # with the word NaN, as these wrote it

    assert steps_of(tmp_path) == [1, 2, 3]
    write(tmp_path, [3], start=2, factor=7.0)

    assert read_history(tmp_path)["val/psnr"] == [[2, 30.0]]
    assert [strict(line)["step"] for line in (tmp_path / LINES_NAME).read_text().splitlines()] == [1, 2, 3]
    assert read_history(tmp_path)["train/loss"][2] == [3, 21.0]


def test_a_full_disk_cuts_no_line_and_later_entries_are_written_again(tmp_path):
    script = (
        "import resource, signal, sys; from pathlib import Path; from utils.run.writers import HistoryWriter\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN); writer = HistoryWriter(Path(sys.argv[1]), 0)\n"
        "limits = resource.getrlimit(resource.RLIMIT_FSIZE); writer.scalars({'a': 1.0}, 1)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (30, limits[1]))\n"
        "for step in (2, 3): writer.scalars({'a': 1.0}, step)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, limits); writer.scalars({'a': 1.0}, 4)\n"
    )

    result = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, timeout=60)

    assert result.returncode == 0, result.stderr
    assert result.stderr.count("the run goes on without it") == 1
    assert [strict(line)["step"] for line in (tmp_path / LINES_NAME).read_text().splitlines()] == [1, 4]

"""Progress of an action or a run: how it is shown, its pace, and the remaining time.

On a terminal, a bar shows the progress. Without a terminal, e.g. in a log file, a line comes at
each tenth of the work. The kind "none" shows nothing. Several tests read the screen of a whole run
in a pseudo-terminal. The tests of pace and remaining time set the clock themselves, so that no test
waits.

The pace is the time that a step takes. The remaining time is the number of remaining steps times
the pace, plus the time of the remaining validations and saves.
"""

import io
import logging
import re
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.helpers.terminal import run_in_terminal, screen
from tests.helpers.train_files import history, odd_command, write_odd_options
from utils.run.progress import duration, open_progress
from utils.run.run_progress import RunProgress
from utils.run.timing import StepTimer

# The next names are regular expressions for the output of a run. DATE is the date before a line of
# the log.
DATE = r"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\] "
# The bar at the end of an epoch, in one row, e.g. "epoch 2: 100%|########| 5.1 it/s, 00:00:00 left,
# loss 0.1234, lr 9.8e-04".
BAR = r"epoch 2: 100%\|.{8,}\| [\d.e+]+ it/s, \d\d:\d\d:\d\d left, loss 0\.\d{4}, lr 9\.[78]e-04"
# The line of a step in the log. In the line of the first step, the speed and the remaining time are
# missing.
STEP = r"Epoch: \d, Iter: \d+, Loss: 0\.\d{4}, lr: [\de.-]+(, it/s: [\d.e+]+, eta: \d\d:\d\d:\d\d)?"
# Width of the terminal.
COLUMNS = 80


class Terminal(io.StringIO):
    """A text in memory that programs take for a terminal."""

    def isatty(self) -> bool:
        return True


def stderr_of_action(monkeypatch: pytest.MonkeyPatch, kind: str, stream: io.StringIO) -> str:
    """Run an action of 30 files. Return what is written to stderr.

    kind: "bar", "line" or "none". stream: takes the place of stderr.
    """
    monkeypatch.setattr(sys, "stderr", stream)
    with open_progress(
        kind, total=30, name="checking", unit="files", quiet_s=0, is_kept=True
    ) as progress:
        for _ in range(30):
            progress.update()
    # A bar may replace sys.stderr for a while. At the end, sys.stderr must be as it was before.
    assert sys.stderr is stream
    return stream.getvalue()


@pytest.mark.parametrize("disabled", ["", "0"])
def test_a_bar_is_drawn_on_a_terminal(monkeypatch, caplog, disabled):
    monkeypatch.setenv("TQDM_DISABLE", disabled)
    caplog.set_level(logging.INFO)

    text = stderr_of_action(monkeypatch, "bar", Terminal())

    assert "checking" in text
    assert "30/30" in text
    assert caplog.text == ""


@pytest.mark.parametrize(
    ("kind", "disabled"),
    [
        pytest.param("bar", "1", id="TQDM_DISABLE forbids a bar"),
        pytest.param("line", "1", id="TQDM_DISABLE forbids lines"),
        pytest.param("none", "0", id="the option asks for nothing"),
    ],
)
def test_nothing_is_shown_if_that_is_asked_for(monkeypatch, caplog, kind, disabled):
    # The library of the bar, tqdm, reads this variable.
    monkeypatch.setenv("TQDM_DISABLE", disabled)
    caplog.set_level(logging.INFO)

    assert stderr_of_action(monkeypatch, kind, Terminal()) == ""
    assert caplog.text == ""


@pytest.mark.parametrize(
    ("kind", "stream"),
    [
        pytest.param("line", Terminal(), id="lines on a terminal"),
        pytest.param("bar", io.StringIO(), id="a bar without a terminal"),
    ],
)
def test_lines_come_at_each_tenth(monkeypatch, caplog, kind, stream):
    caplog.set_level(logging.INFO)

    assert stderr_of_action(monkeypatch, kind, stream) == ""

    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 10
    line = r"checking: {} %, {} of 30 files, [\d.]+ a second, 00:00:00 left"
    assert re.fullmatch(line.format(10, 3), lines[0])
    assert re.fullmatch(line.format(100, 30), lines[-1])


# ---- The pace in a line ----


def lines_of_action(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    units: int,
    action: str,
    name: str,
    parts_of_unit: int,
    seconds_of_part: float,
) -> list[str]:
    """Run an action by a clock of the test. Return the lines that it writes.

    units: how many units the action does. name: what a unit is, e.g. "frames".
    parts_of_unit: number of updates for each unit. seconds_of_part: time of one update.
    """
    caplog.set_level(logging.INFO)
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    with open_progress("line", units, action, name) as progress:
        for _ in range(units * parts_of_unit):
            now += seconds_of_part
            progress.update(1 / parts_of_unit)
    return caplog.messages


def test_a_line_of_slow_units_says_the_seconds_of_each(monkeypatch, caplog):
    lines = lines_of_action(
        monkeypatch,
        caplog,
        units=2,
        action="restoring",
        name="frames",
        parts_of_unit=3,
        seconds_of_part=30.0,
    )

    shares = [line.split(",")[0] for line in lines]
    # The action has 2 x 3 parts. So each part is a sixth of it, and the percentage is rounded down.
    assert shares == [f"restoring: {share} %" for share in (16, 33, 50, 66, 83, 100)]
    # After 30 s, a third of a frame is done. 5 of 6 parts are left. They take 150 s.
    assert lines[0].endswith("0.3 of 2 frames, 90.0 s each, 00:02:30 left")
    assert lines[-1] == "restoring: 100 %, 2 of 2 frames, 90.0 s each, 00:00:00 left"


def test_a_line_of_quick_units_says_how_many_come_in_a_second(monkeypatch, caplog):
    lines = lines_of_action(
        monkeypatch,
        caplog,
        units=10,
        action="checking",
        name="files",
        parts_of_unit=1,
        seconds_of_part=1.0,
    )

    # A short action needs no line. So no line comes in the first seconds. Here they are the first
    # four tenths.
    shares = [line.split(",")[0] for line in lines]
    assert shares == [f"checking: {share} %" for share in (50, 60, 70, 80, 90, 100)]
    assert lines[0].endswith("a second, 00:00:05 left")
    assert lines[-1] == "checking: 100 %, 10 of 10 files, 1.0 a second, 00:00:00 left"


# ---- The screen of a run ----


@dataclass
class Screen:
    """A terminal after a run of 10 steps, with a validation of tiles after step 5 and step 10."""

    code: int  # exit code of the run
    options: Path  # the option file
    written: bytes  # all that the run wrote, with the characters that move the cursor
    rows: list[str]  # what the screen shows at the end

    @property
    def text(self) -> str:
        return "\n".join(self.rows)

    @property
    def log(self) -> list[str]:
        """The rows that are lines of the log, without the date."""
        return [re.sub(DATE, "", row) for row in self.rows if re.match(DATE, row)]

    @property
    def steps(self) -> list[re.Match[str]]:
        """The lines of the log that are only about a step, as matches of STEP."""
        found = [re.fullmatch(STEP, row) for row in self.log]
        return [line for line in found if line]


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Screen:
    """Run a training in a pseudo-terminal. At each step, libraries print and warn.

    This is the case "noisy" of tests/dist/odd_worker.py, a training in which something odd happens.
    """
    folder = tmp_path_factory.mktemp("run")
    options = write_odd_options(folder)
    changes = (
        "train.total_iter=10",
        "train.checkpoint_test=5",
        "datasets.train.dataloader_num_workers=0",
        "watchdog.stall_s=60",
    )
    tiles = ("val.size_patch_testing=16", "val.size_patch_overlapping=4")
    command = odd_command(options, *changes, *tiles, case="noisy")
    # In a new folder, matplotlib builds its list of fonts, and logs this.
    variables = {"MPLCONFIGDIR": str(folder / "fonts")}
    code, written = run_in_terminal(*command, env=variables, size=(50, COLUMNS))
    return Screen(code, options, written, screen(written))


def test_one_bar_shows_the_run(run):
    assert run.code == 0, run.text
    bars = [row for row in run.rows if "%|" in row]
    assert len(bars) == 1, run.text
    assert re.fullmatch(BAR, bars[0]), run.text
    assert len(bars[0]) <= COLUMNS, run.text
    # The bar was already drawn at the beginning of the run.
    assert b"epoch 1:   0%" in run.written


def test_a_validation_has_a_bar_that_moves_with_its_tiles(run):
    shares = [int(share) for share in re.findall(rb"validation: +(\d+)%", run.written)]

    # The first of three clips has 2 of the 9 frames: 22 %. If the bar moved only after a clip, it
    # would go from 0 % to 22 % at once. A share between 0 % and 22 % shows that the bar moves with
    # tiles.
    assert any(0 < share < 22 for share in shares)


def test_the_bar_tears_no_line_of_the_log(run):
    # A torn line would be followed by the bar in the same row, and so have more than 110
    # characters.
    assert all(len(row) <= 110 for row in run.rows if "Iter: " in row)
    assert len(run.steps) == 10, run.text


def test_each_step_but_the_first_has_a_speed(run):
    # Group 1 of STEP is the part with speed and remaining time.
    has_speed = [step[1] is not None for step in run.steps]
    assert has_speed == [False] + 9 * [True]
    assert len(history(run.options)["train/data_share"]) == 9


def test_an_epoch_ends_with_a_line(run):
    # An epoch has 8 samples, and a step takes one sample. So an epoch has 8 steps.
    ends = [row for row in run.log if row.startswith("Epoch 1 ended: 8 steps, mean loss 0.")]
    assert len(ends) == 1


def test_what_libraries_print_stays_in_rows_of_its_own(run):
    # The libraries print once in each of the 10 steps.
    assert run.rows.count("a library prints to stderr") == 10
    assert run.rows.count("a library prints to stdout") == 10


def test_warnings_of_libraries_are_lines_of_the_log(run):
    assert any("UserWarning: a library warns" in row for row in run.log)


def test_what_matplotlib_says_of_its_fonts_is_no_line_of_the_log(run):
    assert not any("fontManager" in row for row in run.log)


def test_the_log_begins_with_what_is_trained(run):
    starts = [row.startswith("fresh start: starting at iter 0 of 10, epoch 1") for row in run.log]
    start = starts.index(True)

    # Six lines come before the line of the start.
    first_words = [row.split()[0] for row in run.log[start - 6 : start]]
    assert first_words == ["Task:", "Ranks:", "Data:", "Batch:", "Network:", "Schedule:"]
    # At most three other lines come before these six, e.g. about the data and the rank.
    assert start < 10


# ---- The clock ----


class Clock:
    """The clock of a run, and the timer that reads it. Time passes only where a test says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(time, "perf_counter", lambda: self.now)
        self.timer = StepTimer()

    def step(self, seconds: float = 1.0) -> None:
        """Take a step of training."""
        with self.timer.part("compute"):
            self.now += seconds
        self.timer.step_done()

    def pause(self, kind: str, seconds: float) -> None:
        """Do something between two steps. kind: "validation" or "save"."""
        with self.timer.part(kind):
            self.now += seconds


@pytest.fixture
def clock(monkeypatch):
    """Give a clock in place of the clock of the system."""
    return Clock(monkeypatch)


def test_validations_do_not_count_in_the_pace(clock):
    clock.step(30.0)  # the first step of a process does not count
    for _ in range(2):
        clock.timer.begin_epoch()
        for _ in range(4):
            clock.step()
            clock.pause("validation", seconds=60.0)

        # Each epoch is measured anew: 4 steps of 1 s, and 4 validations of 60 s.
        assert clock.timer.epoch.speed_and_shares()["it_per_s"] == 1.0
        assert clock.timer.epoch.paused_s == 240.0

    # `read` gives the values for the log. They are about the steps of both epochs.
    values = clock.timer.read()
    assert values["it_per_s"] == 1.0
    assert values["compute_share"] == 1.0


def test_the_first_step_of_a_process_does_not_count(clock):
    # The first step takes long, because it compiles code and starts the loader processes. A
    # remaining time that follows from its speed would be weeks.
    clock.step(900.0)
    run = RunProgress("none", total_iter=1000, timer=clock.timer, every={})
    assert clock.timer.read().keys() == {"memory_gb"}  # no speed
    assert run.eta(step=500) == ""

    clock.step(2.0)

    assert clock.timer.read()["it_per_s"] == 0.5
    # 498 steps of 2 s are left: 996 s.
    assert run.eta(step=502) == "00:16:36"


def test_the_remaining_time_holds_the_validations_and_saves_to_come(clock):
    # A validation each 100 steps, and no saves.
    run = RunProgress(
        "none", total_iter=1000, timer=clock.timer, every={"validation": 100, "save": 0}
    )
    for _ in range(51):
        clock.step()
    clock.timer.read()
    # 100 steps of 1 s are left. No validation counts, because none has shown how long it takes.
    assert run.eta(step=900) == "00:01:40"

    clock.pause("validation", seconds=60.0)

    # A step takes 1 s, and a validation takes 60 s. After step 900, two validations are to come: at
    # step 900 and at step 1000.
    assert run.eta(step=900) == duration(100 + 2 * 60)
    # After step 901, 99 steps and one validation are to come.
    assert run.eta(step=901) == duration(99 + 60)
    assert run.eta(step=1000) == duration(60)


def test_the_remaining_time_follows_a_change_of_speed(clock):
    run = RunProgress("none", total_iter=10_000, timer=clock.timer, every={})
    for seconds in (1.0, 4.0):
        for _ in range(1000):
            clock.step(seconds)
        clock.timer.read()

    # The last 1000 steps took 4 s each, and the 1000 steps before took 1 s each. The last 1000
    # steps took 4000 s together. In this time, the weight of the older steps becomes almost 0
    # (FADE_S of utils/run/timing.py is 300 s).
    assert clock.timer.pace() == pytest.approx(4.0, rel=0.01)
    # 1000 steps are left. They take 4000 s.
    assert run.eta(step=9000) == "01:06:40"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        pytest.param(0.4, "00:00:00", id="less than a second"),
        pytest.param(3599.6, "01:00:00", id="rounded up to an hour"),
        pytest.param(97_920, "1 d 03:12:00", id="a day and hours"),
        pytest.param(864_000, "10 d 00:00:00", id="ten days"),
    ],
)
def test_a_duration_is_written_with_days(seconds, text):
    assert duration(seconds) == text

"""Progress of an action or a run: how it is shown, its pace, and the remaining time.

On a terminal a bar is shown. Elsewhere, e.g. in a log file, lines come at each tenth. The kind
"none" shows nothing. One test reads the screen of a whole run in a real pseudo-terminal. The tests
of pace and remaining time set the clock themselves, so no test waits.
"""

import io
import logging
import re
import sys
import time

import pytest

from tests.helpers.terminal import in_terminal, screen
from tests.helpers.train_files import history, odd_command, write_odd
from utils.run.measure import StepTimer
from utils.run.progress import RunProgress, duration, open_progress

# What a run writes, as regular expressions. The date before a line of the log:
DATE = r"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\] "
# The bar at its end, e.g. "epoch 2: 100%|########| 5.1 it/s, 00:00:00 left, loss 0.1234, lr
# 9.8e-04" in one row.
BAR = r"epoch 2: 100%\|.{8,}\| [\d.e+]+ it/s, \d\d:\d\d:\d\d left, loss 0\.\d{4}, lr 9\.[78]e-04"
# The line of a step. The first one has neither a speed nor a remaining time.
STEP = r"Epoch: \d, Iter: \d+, Loss: 0\.\d{4}, lr: [\de.-]+(, it/s: [\d.e+]+, eta: \d\d:\d\d:\d\d)?"
# Width of the terminal.
COLUMNS = 80


class Terminal(io.StringIO):
    """A text in memory that programs take for a terminal."""

    def isatty(self) -> bool:
        return True


def shown(monkeypatch, kind, stream=Terminal):
    """Run an action of 30 files. Return what is written to stderr.

    kind: "bar", "line" or "none". stream: class of the stream that stands in for stderr.
    """
    terminal = stream()
    monkeypatch.setattr(sys, "stderr", terminal)
    with open_progress(kind, 30, "checking", "files", quiet_s=0, is_kept=True) as progress:
        for _ in range(30):
            progress.update()
    assert sys.stderr is terminal
    return terminal.getvalue()


@pytest.mark.parametrize(
    ("kind", "disabled"), [("bar", ""), ("bar", "0"), ("bar", "1"), ("line", "1"), ("none", "0")]
)
def test_a_bar_is_drawn_on_a_terminal_unless_tqdm_disable_or_none_forbids_it(
    monkeypatch, caplog, kind, disabled
):
    monkeypatch.setenv("TQDM_DISABLE", disabled)
    caplog.set_level(logging.INFO)
    text = shown(monkeypatch, kind)
    is_drawn = kind == "bar" and disabled != "1"

    assert ("checking" in text and "30/30" in text) == is_drawn
    assert bool(text) == is_drawn
    assert caplog.text == ""


@pytest.mark.parametrize(("kind", "stream"), [("line", Terminal), ("bar", io.StringIO)])
def test_lines_come_at_each_tenth_also_where_there_is_no_terminal_for_a_bar(
    monkeypatch, caplog, kind, stream
):
    caplog.set_level(logging.INFO)
    assert shown(monkeypatch, kind, stream) == ""
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 10
    line = r"checking: {} %, {} of 30 files, [\d.]+ a second, 00:00:00 left"

    assert re.fullmatch(line.format(10, 3), lines[0])
    assert re.fullmatch(line.format(100, 30), lines[-1])


# A case: (number of units, name of the action, name of the units), parts of a unit, seconds of a
# part, the shares of the lines, and the end of the last line. In the first case a unit is done in
# three parts, and takes more than a second, so its time is told in seconds. In the second case no
# line comes in the first seconds, because a short action needs no line.
@pytest.mark.parametrize(("work", "parts", "step_s", "shares", "last"), [
    ((2, "restoring", "frames"), 3, 30.0, (16, 33, 50, 66, 83, 100), "2 of 2 frames, 90.0 s each"),
    ((10, "checking", "files"), 1, 1.0, (50, 60, 70, 80, 90, 100), "10 of 10 files, 1.0 a second"),
])  # fmt: skip
def test_a_line_has_the_share_and_the_pace(monkeypatch, caplog, work, parts, step_s, shares, last):
    caplog.set_level(logging.INFO)
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    with open_progress("line", *work) as progress:
        for _ in range(work[0] * parts):
            now += step_s
            progress.update(1 / parts)

    assert [line.split(",")[0] for line in caplog.messages] == [
        f"{work[1]}: {share} %" for share in shares
    ]
    assert caplog.messages[-1] == f"{work[1]}: 100 %, {last}, 00:00:00 left"
    assert caplog.messages[0].endswith(
        ("0.3 of 2 frames, 90.0 s each, 00:02:30 left", "a second, 00:00:05 left")
    )


def test_one_bar_shows_the_run_and_tears_no_line(tmp_path):
    options = write_odd(tmp_path)
    changes = (
        "train.total_iter=10",
        "train.checkpoint_test=5",
        "datasets.train.dataloader_num_workers=0",
    )
    tiles = ("val.size_patch_testing=16", "val.size_patch_overlapping=4")
    command = odd_command(options, *changes, *tiles, "watchdog.stall_s=60", case="noisy")
    code, written = in_terminal(
        *command, env={"MPLCONFIGDIR": str(tmp_path / "fonts")}, size=(50, COLUMNS)
    )
    rows = screen(written)
    assert code == 0, "\n".join(rows)
    bars = [row for row in rows if "%|" in row]
    assert len(bars) == 1, "\n".join(rows)
    assert re.fullmatch(BAR, bars[0]), "\n".join(rows)
    assert len(bars[0]) <= COLUMNS, "\n".join(rows)
    assert b"epoch 1:   0%" in written
    # The first of three clips has 2 of the 9 frames: the bar moves from its first tiles on.
    assert any(0 < int(share) < 22 for share in re.findall(rb"validation: +(\d+)%", written))
    assert all(len(row) <= 110 for row in rows if re.search("Iter: ", row))
    log = [re.sub(DATE, "", row) for row in rows if re.match(DATE, row)]
    steps = [found for row in log if (found := re.fullmatch(STEP, row))]
    assert len(steps) == 10
    assert steps[0][1] is None
    assert all(step[1] for step in steps[1:])
    assert len(history(options)["train/data_share"]) == 9
    assert not any("fontManager" in row for row in log)
    assert len([row for row in log if row.startswith("Epoch 1 ended: 8 steps, mean loss 0.")]) == 1
    assert rows.count("a library prints to stderr") == 10
    assert rows.count("a library prints to stdout") == 10
    assert any("UserWarning: a library warns" in row for row in log)
    start = next(
        i
        for i, row in enumerate(log)
        if row.startswith("fresh start: starting at iter 0 of 10, epoch 1")
    )
    words = ["Task:", "Ranks:", "Data:", "Batch:", "Network:", "Schedule:"]

    assert [row.split()[0] for row in log[start - 6 : start]] == words
    assert start < 10  # the first screen has ten lines, with those on the data and the rank


class Clock:
    """The clock of a run, and the timer that reads it. Time passes only where a test says so."""

    def __init__(self, monkeypatch):
        self.now = 100.0
        monkeypatch.setattr(time, "perf_counter", lambda: self.now)
        self.timer = StepTimer()

    def step(self, seconds=1.0):
        """Take a step of so many seconds."""
        with self.timer.part("compute"):
            self.now += seconds
        self.timer.step_done()

    def pause(self, kind, seconds):
        """Do something between two steps. kind: "validation" or "save"."""
        with self.timer.part(kind):
            self.now += seconds


@pytest.fixture
def clock(monkeypatch):
    """Give a clock in place of that of the system."""
    return Clock(monkeypatch)


def test_validation_and_saving_do_not_count_across_epochs(clock):
    clock.step(30.0)
    for epoch in range(2):
        clock.timer.begin_epoch()
        for _ in range(4):
            clock.step()
            clock.pause("validation", 60.0)
        whole = clock.timer.epoch.values()
        assert (whole["it_per_s"], clock.timer.epoch.paused_s) == (1.0, 240.0), epoch
    values = clock.timer.read()

    assert (values["it_per_s"], values["compute_share"]) == (1.0, 1.0)


def test_the_first_step_of_a_process_does_not_count(clock):
    # The first step compiles, and starts the loader processes. A remaining time from its speed
    # would promise weeks.
    clock.step(900.0)
    assert clock.timer.read().keys() == {"memory_gb"}
    assert RunProgress("none", 1000, clock.timer, {}).eta(500) == ""
    clock.step(2.0)

    assert clock.timer.read()["it_per_s"] == 0.5
    assert RunProgress("none", 1000, clock.timer, {}).eta(502) == "00:16:36"


def test_the_remaining_time_holds_the_validations_and_saves_to_come(clock):
    run = RunProgress("none", 1000, clock.timer, {"validation": 100, "save": 0})
    for _ in range(51):
        clock.step()
    clock.timer.read()
    assert run.eta(900) == "00:01:40"
    clock.pause("validation", 60.0)

    # One step takes 1 s, one validation 60 s. After step 900 its own validation and that of step
    # 1000 are to come. No further one is due in between.
    assert run.eta(900) == duration(100 + 2 * 60)
    assert run.eta(901) == duration(99 + 60)
    assert run.eta(1000) == duration(60)


def test_the_remaining_time_follows_a_change_of_speed(clock):
    run = RunProgress("none", 10_000, clock.timer, {})
    for seconds in (1.0, 4.0):
        for _ in range(1000):
            clock.step(seconds)
        clock.timer.read()

    assert clock.timer.pace() == pytest.approx(4.0, rel=0.01)
    assert run.eta(9000) == "01:06:40"


def test_a_duration_is_written_with_days():
    written = {
        0.4: "00:00:00",
        3599.6: "01:00:00",
        97_920: "1 d 03:12:00",
        864_000: "10 d 00:00:00",
    }

    assert {seconds: duration(seconds) for seconds in written} == written

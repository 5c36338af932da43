"""Iterations per second are those of training; the time that remains counts what is still to come."""

import time

import pytest

from utils.run.measure import StepTimer
from utils.run.progress import RunProgress, duration


class Clock:
    """Seconds that pass only where a test says so."""

    def __init__(self, monkeypatch):
        self.now = 100.0
        monkeypatch.setattr(time, "perf_counter", lambda: self.now)
        self.timer = StepTimer()

    def step(self, seconds=1.0):
        with self.timer.part("compute"):
            self.now += seconds
        self.timer.step_done()

    def pause(self, kind, seconds):
        with self.timer.part(kind):
            self.now += seconds


@pytest.fixture
def clock(monkeypatch):
    return Clock(monkeypatch)


def test_validation_and_saving_do_not_count_across_epochs(clock):
    clock.step(30.0)
    for epoch in range(2):
        clock.timer.begin_epoch()
        for _ in range(4):
            clock.step()
            clock.pause("validation", 60.0)
        whole = clock.timer.epoch.values()
        assert (whole["it_per_s"], clock.timer.epoch.paused) == (1.0, 240.0), epoch

    values = clock.timer.read()

    assert (values["it_per_s"], values["compute_share"]) == (1.0, 1.0)


def test_the_first_step_of_a_process_does_not_count(clock):
    # It compiles, and starts the workers: a speed from it would promise weeks.
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

    # Of step 900 itself and after the last step; none is due in between.
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


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "00:00:00"), (3599.6, "01:00:00"), (97_920, "1 d 03:12:00"), (864_000, "10 d 00:00:00")]
)
def test_a_duration_is_written_with_days(seconds, text):
    assert duration(seconds) == text

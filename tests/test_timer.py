"""Iterations per second are those of training."""

from __future__ import annotations

import time

from utils.run.timer import StepTimer


def test_validation_and_saving_do_not_count(monkeypatch):
    now = 100.0
    monkeypatch.setattr(time, "perf_counter", lambda: now)
    timer = StepTimer()
    for _ in range(4):
        with timer.part("compute"):
            now += 1.0
        timer.steps += 1
        with timer.paused():
            now += 60.0

    values = timer.read()

    assert (values["it_per_s"], values["compute_share"]) == (1.0, 1.0)

"""The writers of a run: its end waits for each of them.

A run hands its numbers to writers, e.g. TensorBoard. At the end it closes them all at the same time
and waits for them, but not longer than a limit. tests/dist/test_life.py has a writer that is never
closed.
"""

import time
from types import SimpleNamespace
from typing import Any

from utils.run.experiment import Experiment
from utils.run.position import DataOrder


class Slow:
    """A writer that takes a while to close."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.is_closed = False

    def close(self) -> None:
        time.sleep(self.seconds)
        self.is_closed = True


def test_two_writers_of_one_class_are_both_waited_for(tmp_path):
    no_health: Any = SimpleNamespace()  # judges numbers, and there are none here
    order = DataOrder(samples=8, sample_list="", seed=0, steps=8)
    run = Experiment(tmp_path, {}, order, no_health)
    slower = Slow(seconds=0.5)
    faster = Slow(seconds=0.0)
    run.writers = [slower, faster]

    run.close(limit_s=30)

    assert slower.is_closed
    assert faster.is_closed

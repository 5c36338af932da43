"""The writers of a run: the run waits for each writer at its end, and gives each writer copies.

A run hands its numbers to writers, e.g. the writer for TensorBoard. At its end, a run closes all
writers at the same time and waits for them, but not longer than a limit. tests/dist/test_life.py
has a writer that never finishes.
"""

import time
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

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


@pytest.fixture
def run(tmp_path) -> Experiment:
    """Give a run without writers. A test gives writers to it."""
    # A run has a `Health`. It judges the lines of the run's log. This run has no log, so an empty
    # object is enough.
    no_health: Any = SimpleNamespace()
    order = DataOrder(samples=8, sample_list="", seed=0, steps=8)
    return Experiment(tmp_path, {}, order, no_health)


def test_two_writers_of_one_class_are_both_waited_for(run):
    slower = Slow(seconds=0.5)
    faster = Slow(seconds=0.0)
    run.writers = [slower, faster]

    run.close(limit_s=30)

    assert slower.is_closed
    assert faster.is_closed


class Careless:
    """A writer that changes what it gets."""

    def scalars(self, values: dict[str, float], step: int) -> None:
        values["step"] = step

    def image(self, tag: str, rgb: np.ndarray, step: int) -> None:
        rgb[:] = 0


def test_a_writer_that_changes_its_values_changes_them_for_nobody_else(run):
    run.writers = [Careless()]
    values = {"val/psnr": 30.0}
    picture = np.ones((2, 2, 3), np.uint8)

    run.to_writers("scalars", values, 5)
    run.to_writers("image", "val/clip", picture, 5)

    assert values == {"val/psnr": 30.0}
    assert picture.all()

"""The progress of a training run on a terminal, and the time that remains of it."""

from __future__ import annotations

import logging
import sys
from contextlib import ExitStack

from utils.run.measure import StepTimer
from utils.run.progress import LINES, Bar, duration, shown_kind

logger = logging.getLogger(__name__)


class RunProgress:
    """The progress of a whole training run: one bar over all epochs, a line at each tenth, or nothing.

    kind: see `logging.progress`; "bar" shows nothing without a terminal, for there the log lines tell the same.
    every: "validation" and "save" -> steps between two of them; one more of each follows the last step.
    """

    def __init__(self, kind: str, total_iter: int, timer: StepTimer, every: dict[str, int]) -> None:
        self.kind, self.total_iter, self.timer, self.every = shown_kind(kind), total_iter, timer, every
        self._open = ExitStack()
        self._shown: Bar | None = None
        self._name = ""

    def __enter__(self) -> RunProgress:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()
        self._shown = None

    def begin_epoch(self, epoch: int, step: int) -> None:
        """epoch: from 0; `step` is done. The first call opens the bar: by then no rank waits for this one."""
        self._name = f"epoch {epoch + 1}"
        if self.kind == "bar" and self._shown is None and sys.stderr.isatty():
            self._shown = self._open.enter_context(Bar(self.total_iter, self._name, "it", initial=step))

    def update(self, step: int, values: str) -> None:
        """`step` is done. values: of the newest log line."""
        if self._shown:
            pace, left = self.timer.pace(), self.eta(step)
            parts = [f"{1 / pace:.3g} it/s" if pace else "", f"{left} left" if left else "", values]
            self._shown.update(1, self._name, ", ".join(filter(None, parts)))
        elif self.kind == "line" and step * LINES // self.total_iter > (step - 1) * LINES // self.total_iter:
            left = f", {eta} left" if (eta := self.eta(step)) else ""
            share = 100 * step // self.total_iter
            logger.info("%s: %d %%, %d of %d it%s", self._name, share, step, self.total_iter, left)

    def eta(self, step: int) -> str:
        """The time that the steps after `step` and their validations and saves take, e.g. "1 d 03:12:00".

        Empty before the speed is known. A validation or save counts from the first one that was measured.
        """
        # Those of `step` itself are still to come.
        last = self.total_iter - 1
        pauses = {kind: last // every - (step - 1) // every + 1 for kind, every in self.every.items() if every}
        seconds = self.timer.remaining(self.total_iter - step, pauses)
        return "" if seconds is None else duration(seconds)

"""Show how far a training run is, over all its epochs, and the time that is left.

`utils.run.run.Run` has a `RunProgress`. On a terminal it draws a bar with the remaining time. If
the option logging.progress is "line", it logs a line at each tenth of the run.

What must stay: showing progress never ends or blocks a run. So `begin_epoch` may only be called
where no other rank waits for rank 0 (see its docstring). Free to change: the shown texts.

Tests: tests/parts/utils/test_progress.py.
"""

import logging
import statistics
import sys
from contextlib import ExitStack
from typing import Any

from utils.run.progress import LINE_COUNT, duration, kind_to_show
from utils.run.progress_bar import Bar

logger = logging.getLogger(__name__)


class RunProgress(ExitStack):
    """Shows the progress of a training run: one bar over all epochs, or a line at each tenth.

    main_train_vrt.py uses it as a context manager. The end of the block closes the bar.
    """

    def __init__(self, kind: str, total_iter: int, timer: Any, every: dict[str, int]) -> None:
        """Prepare to show the progress. Nothing is shown before `begin_epoch`.

        kind: the option logging.progress, e.g. "bar". If stderr is not a terminal, a "bar" shows
            nothing, because the log lines of the run have the same numbers.
        total_iter: number of steps of the run.
        timer: the run's StepTimer (utils.run.timing), which measures the speed and the pauses.
        every: number of steps between two validations and between two saves, e.g.
            {"validation": 1000, "save": 5000}. A validation and a save also follow the last step.
            With the number 0, the run makes none at all, not even after the last step.
        """
        super().__init__()
        self.kind = kind_to_show(kind)
        self.total_iter = total_iter
        self.timer = timer
        self.every = every
        self._bar: Bar | None = None
        self._name = ""

    def begin_epoch(self, epoch: int, step: int) -> None:
        """Show a new epoch. The first call opens the bar.

        Call it only where no other rank waits for this one, because a paused terminal may block the
        call.

        epoch: number of the epoch, from 0.
        step: number of steps done so far.
        """
        self._name = f"epoch {epoch + 1}"
        if self.kind == "bar" and self._bar is None and sys.stderr.isatty():
            self._bar = self.enter_context(Bar(self.total_iter, self._name, "it", initial=step))

    def update(self, step: int, values: str) -> None:
        """Show that one more step is done.

        step: number of steps done so far.
        values: numbers of the newest log line, for the bar, e.g. "loss 0.0234". May be "".
        """
        if self._bar:
            self._bar.update(1, self._name, self._beside_bar(step, values))
        elif self.kind == "line" and self._completes_tenth(step):
            eta = self.eta(step)
            left = f", {eta} left" if eta else ""
            percent = 100 * step // self.total_iter  # e.g. 33 at step 1 of 3
            logger.info(
                "%s: %d %%, %d of %d it%s", self._name, percent, step, self.total_iter, left
            )

    def _beside_bar(self, step: int, values: str) -> str:
        """Return what stands beside the bar, e.g. "0.8 it/s, 01:40:00 left, loss 0.0234".

        The speed and the time that is left are known from the second step on.
        """
        texts = []
        seconds_per_step = self.timer.pace()
        if seconds_per_step:
            texts.append(f"{1 / seconds_per_step:.3g} it/s")
        eta = self.eta(step)
        if eta:
            texts.append(f"{eta} left")
        if values:
            texts.append(values)
        return ", ".join(texts)

    def _completes_tenth(self, step: int) -> bool:
        """Return whether step number `step` completes a tenth of the run."""
        tenths = step * LINE_COUNT // self.total_iter  # complete tenths, e.g. 3 at 35 of 100
        tenths_before = (step - 1) * LINE_COUNT // self.total_iter
        return tenths > tenths_before

    def eta(self, step: int) -> str:
        """Return the time that the rest of the run takes, e.g. "1 d 03:12:00".

        The rest is the steps after `step`, with their validations and saves. Validations count only
        after the first validation of this start, because their time is not known before. For the
        same reason, saves count only after the first save. Returns "" if the speed is not known
        yet. Test: test_the_remaining_time_holds_the_validations_and_saves_to_come.
        """
        seconds_per_step = self.timer.pace()
        if seconds_per_step is None:
            return ""
        seconds = (self.total_iter - step) * seconds_per_step
        for kind, every in self.every.items():  # "validation", "save"
            measured_s = self.timer.pauses.get(kind)  # seconds of each validation (save) so far
            if every and measured_s:
                mean_s = statistics.fmean(measured_s)
                seconds += self._pauses_to_come(step, every) * mean_s
        return duration(seconds)

    def _pauses_to_come(self, step: int, every: int) -> int:
        """Return how many validations (or saves) are still to come after `step` steps.

        Validations come at each multiple of `every`, and after the last step. A validation at
        `step` itself is still to come, because the remaining time is shown before it begins. E.g.
        if 10 of 25 steps are done and every = 10, the result is 3, for the validations at 10, 20
        and 25.
        """
        # The number of multiples of `every` in 1 ... n is n // every.
        multiples_before_end = (self.total_iter - 1) // every  # in the example 24 // 10 = 2
        multiples_before_step = (step - 1) // every  # in the example 9 // 10 = 0
        return multiples_before_end - multiples_before_step + 1  # 1: after the last step

"""Show the progress of a long action: a bar on a terminal, lines elsewhere, or nothing.

`open_progress` shows one action with a known end, e.g. the check of 500 clips, on rank 0 only. It
gives a `Bar` (progress_bar.py) or `Lines`, and the caller calls `update` after each thing that is
done. run_progress.py shows a whole training run. E.g.

    a bar     epoch 3:  12%|####      | 0.8 it/s, 01:40:00 left
    a line    check: 30 %, 150 of 500 clips, 12.0 a second, 00:00:29 left

The lines here are for actions such as a check or a test. The log line of a training step is in
utils/run/experiment.py (`Experiment.log_training`), and scripts read it.

What must stay: showing progress never ends or blocks a run. Free to change: the shown texts, which
only people read, and how often a line comes.

Tests: tests/parts/utils/test_progress.py.
"""

import logging
import os
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager

from utils.dist.state import RUN
from utils.run.progress_bar import Bar

# If an action has no bar, a line is logged after each tenth of the action.
LINE_COUNT = 10
# The three times below are chosen by hand.
#
# Longest time between two lines, in seconds. After this time a line is logged even if no tenth was
# completed. So a user who looks at the log sees that a slow action does not hang.
LONGEST_WITHOUT_LINE_S = 60.0
# Seconds at the start in which no line comes, even if a tenth was completed, because a short action
# needs no line in the log. This is the default of `quiet_s`.
QUIET_S = 5.0
# Seconds after which the first line comes, even if no tenth was completed. If a caller sets
# `quiet_s` to more seconds, the first line comes after `quiet_s`.
FIRST_LINE_S = 5.0

logger = logging.getLogger(__name__)


@contextmanager
def open_progress(
    kind: str,
    total: int,
    name: str,
    unit: str = "it",
    *,
    say: Callable[[str], object] = logger.info,
    quiet_s: float = QUIET_S,
    is_kept: bool = False,
) -> Generator["Bar | Lines"]:
    """Show the progress of an action within the block. Yields an object with a method `update`.

    kind: "bar", "line" or "none". A bar becomes lines if stderr is not a terminal. The environment
        variable TQDM_DISABLE=1 has the effect of "none".
    total: number of things to do, e.g. 500.
    name: what is done, e.g. "check".
    unit: what is counted, e.g. "clips".
    say: function that is called with each line. By default it writes the line to the log.
    quiet_s: seconds at the start in which no line comes.
    is_kept: whether the finished bar stays on the screen.
    """
    kind = kind_to_show(kind)
    if kind == "bar" and sys.stderr.isatty():
        with Bar(total, name, unit, is_kept=is_kept) as bar:
            yield bar
        return
    if kind == "none":
        say = _drop
    yield Lines(total, name, unit, say, quiet_s)


def _drop(line: str) -> None:
    """Do nothing with a line. This is the `say` of kind "none"."""


def kind_to_show(kind: str) -> str:
    """Return `kind`, or "none" if this process shows no progress.

    Only rank 0 shows progress. The environment variable TQDM_DISABLE switches it off, as in tqdm
    itself: with the value "" or "0" progress is shown, and with any other value it is not.
    """
    if RUN.launch.rank != 0:
        return "none"
    if os.environ.get("TQDM_DISABLE", "0") not in ("", "0"):
        return "none"
    return kind


class Lines:
    """Writes lines that tell how much is done, and how long the rest takes.

    A line comes after the first seconds, at each tenth, and after a minute without a line. E.g. for
    an action that completes a tenth after 100 s and after 130 s:

        0 to 5 s    no line (quiet_s)
        5 s         the first line (FIRST_LINE_S)
        65 s        a line, because the last line is 60 s old (LONGEST_WITHOUT_LINE_S)
        100 s       a line for the first tenth
        130 s       a line for the second tenth
    """

    def __init__(
        self, total: int, name: str, unit: str, say: Callable[[str], object], quiet_s: float = 0.0
    ) -> None:
        """Begin to count, and to measure the time.

        total: number of things to do, e.g. 500.
        name: what is done, e.g. "check".
        unit: what is counted, e.g. "clips".
        say: function that is called with each line.
        quiet_s: seconds at the start in which no line comes.
        """
        self.total = max(total, 1)  # 0 things to do would divide by zero below
        self.name = name
        self.unit = unit
        self.done = 0
        self._say = say
        self._begin = time.monotonic()
        self._quiet_until = self._begin + quiet_s  # no line comes before this time
        # Time at which a line comes even if no tenth is completed. The first line comes after a few
        # seconds, so that the user sees early how long the action takes.
        self._due = self._begin + FIRST_LINE_S

    def update(self, count: float = 1) -> None:
        """Count what was done since the last call, and write a line if one is due.

        count: may be a part of one thing, e.g. 1/3 of a clip.
        """
        now = time.monotonic()
        former_share = self._share()
        self.done += count
        share = self._share()
        # E.g. from 0.19 to 0.21, 1 -> 2 complete tenths.
        completes_tenth = int(LINE_COUNT * share) > int(LINE_COUNT * former_share)

        if now < self._quiet_until:
            return
        # E.g. no line comes at 40 s if no tenth is completed, and the next line is due at 65 s.
        if not completes_tenth and now < self._due:
            return
        self._due = now + LONGEST_WITHOUT_LINE_S

        # Done and seconds may be 0 in the first moment. The lower limits avoid a division by zero.
        seconds = max(now - self._begin, 1e-6)
        rate = max(self.done, 1e-6) / seconds  # things a second
        rate_text = f"{rate:.1f} a second" if rate >= 1 else f"{1 / rate:.1f} s each"
        done_text = f"{self.done:.1f}".removesuffix(".0")  # "3", but "3.5"
        seconds_left = max(self.total - self.done, 0) / rate
        percent = int(100 * share)
        self._say(
            f"{self.name}: {percent} %, {done_text} of {self.total} {self.unit}, {rate_text}, "
            f"{duration(seconds_left)} left"
        )

    def _share(self) -> float:
        """Return the share of the things that are done, 0 to 1."""
        # Rounding may make a sum of fractions such as 1/3 slightly too small, and a completed tenth
        # would be missed. So add 1e-6.
        return (self.done + 1e-6) / self.total


def duration(seconds: float) -> str:
    """Return seconds as hours, minutes and seconds: "03:12:00" or "1 d 03:12:00"."""
    # divmod gives quotient and remainder: 3725 s -> 62 min 5 s -> 1 h 2 min 5 s.
    all_minutes, left_seconds = divmod(round(seconds), 60)
    all_hours, left_minutes = divmod(all_minutes, 60)
    days, left_hours = divmod(all_hours, 24)
    clock = f"{left_hours:02}:{left_minutes:02}:{left_seconds:02}"
    return f"{days} d {clock}" if days else clock

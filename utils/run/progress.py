"""How far a run or a long action is: a bar on a terminal, lines elsewhere, or nothing.

On rank 0 only.
"""

import logging
import os
import statistics
import sys
import threading
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout, suppress
from typing import Any

from tqdm import tqdm

from utils.dist.state import RUN

LINES = 10
FORM = "{desc}: {percentage:3.0f}%|{bar}| {n:.0f}/{total_fmt} [{elapsed}<{remaining}, {rate_fmt}]"
LINE_S = 60.0
QUIET_S = 5.0  # an action that is over by then needs no line in the log of a run

# No thread of tqdm's own, no lock between processes: a loader worker that is killed or forked while
# one holds the lock must not block anything.
tqdm.monitor_interval = 0
tqdm.set_lock(threading.RLock())
os.register_at_fork(after_in_child=lambda: tqdm.set_lock(threading.RLock()))

logger = logging.getLogger(__name__)


@contextmanager
def open_progress(
    kind: str, total: int, name: str, unit: str = "it", *,
    say: Callable[[str], object] = logger.info, quiet_s: float = QUIET_S, is_kept: bool = False,
) -> Generator["Bar | Lines"]:  # fmt: skip
    """kind: "bar" (lines where stderr is no terminal), "line", "none". TQDM_DISABLE=1 means none.

    say: takes a line. quiet_s: seconds before the first line. is_kept: the finished bar stays on
    the screen.
    """
    kind = shown_kind(kind)
    if kind == "bar" and sys.stderr.isatty():
        with Bar(total, name, unit, is_kept=is_kept) as bar:
            yield bar
    else:
        yield Lines(total, name, unit, say if kind != "none" else lambda _: None, quiet_s)


def shown_kind(kind: str) -> str:
    """`kind`, or "none" where nothing is to be shown."""
    is_hidden = RUN.launch.rank != 0 or os.environ.get("TQDM_DISABLE", "0") not in ("", "0")
    return "none" if is_hidden else kind


class Bar(ExitStack):
    """A bar of tqdm.

    Whatever is written meanwhile appears above it. A lost terminal does not end the run.
    """

    def __init__(
        self, total: int, name: str, unit: str, is_kept: bool = True, **options: Any
    ) -> None:
        super().__init__()
        terminal = sys.stderr.stream if isinstance(sys.stderr, AboveBars) else sys.stderr
        if terminal is sys.stderr:  # else another bar is open already
            for redirect, stream in ((redirect_stderr, terminal), (redirect_stdout, sys.stdout)):
                above: Any = AboveBars(stream, terminal)  # has what a stream needs to be written to
                self.callback(above.finish)
                self.enter_context(redirect(above))
        self._bar: Any = tqdm(
            total=total, desc=name, unit=f" {unit}", file=terminal, leave=is_kept,
            dynamic_ncols=True, miniters=0,
            bar_format=FORM, **options,
        )  # fmt: skip

    def __exit__(self, *error: Any) -> None:
        with suppress(OSError):
            self._bar.close()
        super().__exit__(*error)

    def update(self, count: float = 1, name: str = "", values: str = "") -> None:
        """`count` more are done. name: in place of the former one. values: what to show beside the
        bar, without braces; at most 55 characters leave a bar on a terminal of 80 columns.
        """
        with suppress(OSError):
            if name:
                self._bar.set_description_str(name, refresh=False)
            if values:
                self._bar.bar_format = "{desc}: {percentage:3.0f}%|{bar}| " + values
            self._bar.update(count)


class AboveBars:
    """A text stream whose complete lines appear above the open bars, not through them. terminal: of
    the bars.
    """

    def __init__(self, stream: Any, terminal: Any) -> None:
        self.stream, self.terminal, self._begun = stream, terminal, ""

    def write(self, text: str) -> int:
        *lines, self._begun = (self._begun + text).split("\n")
        if lines:
            # Clears the bars there, and draws them again
            with tqdm.external_write_mode(file=self.terminal):
                self.stream.write("".join(f"{line}\n" for line in lines))
                self.stream.flush()
        return len(text)

    def finish(self) -> None:
        """Write what has no end of line, after the bars are gone."""
        with suppress(OSError):
            self.stream.write(self._begun)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


class Lines:
    """A line after the first seconds, at each tenth, and after a minute without one, with the time
    that remains.
    """

    def __init__(
        self, total: int, name: str, unit: str, say: Callable[[str], object], quiet_s: float = 0.0
    ) -> None:
        self.total, self.name, self.unit, self.done, self._say = max(total, 1), name, unit, 0, say
        self._begin = time.monotonic()
        self._quiet_until, self._due = self._begin + quiet_s, self._begin + QUIET_S

    def update(self, count: float = 1) -> None:
        now = time.monotonic()
        # Slightly more, because three thirds add up to slightly less than 1.
        former = (self.done + 1e-6) / self.total
        self.done += count
        share = (self.done + 1e-6) / self.total
        is_tenth = int(LINES * share) > int(LINES * former)
        if now < self._quiet_until or not (is_tenth or now >= self._due):
            return
        self._due = now + LINE_S
        rate = max(self.done, 1e-6) / max(now - self._begin, 1e-6)
        pace = f"{rate:.1f} a second" if rate >= 1 else f"{1 / rate:.1f} s each"
        done, left = (
            f"{self.done:.1f}".removesuffix(".0"),
            duration(max(self.total - self.done, 0) / rate),
        )
        self._say(
            f"{self.name}: {int(100 * share)} %, {done} of {self.total} {self.unit}, {pace}, "
            f"{left} left"
        )


class RunProgress(ExitStack):
    """The progress of a whole training run: one bar over all epochs, a line at each tenth, or
    nothing.

    kind: see `logging.progress`; "bar" shows nothing without a terminal, for there the log lines
    tell the same.
    every: "validation" and "save" -> steps between two of them; one more of each follows the last
    step.
    """

    def __init__(self, kind: str, total_iter: int, timer: Any, every: dict[str, int]) -> None:
        super().__init__()
        self.kind, self.total_iter, self.timer, self.every = (
            shown_kind(kind),
            total_iter,
            timer,
            every,
        )
        self._shown: Bar | None = None
        self._name = ""

    def begin_epoch(self, epoch: int, step: int) -> None:
        """epoch: from 0; `step` is done.

        The first call opens the bar: by then no rank waits for this one.
        """
        self._name = f"epoch {epoch + 1}"
        if self.kind == "bar" and self._shown is None and sys.stderr.isatty():
            self._shown = self.enter_context(Bar(self.total_iter, self._name, "it", initial=step))

    def update(self, step: int, values: str) -> None:
        """`step` is done. values: of the newest log line."""
        if self._shown:
            pace, left = self.timer.pace(), self.eta(step)
            parts = [f"{1 / pace:.3g} it/s" if pace else "", f"{left} left" if left else "", values]
            self._shown.update(1, self._name, ", ".join(filter(None, parts)))
        elif (
            self.kind == "line"
            and step * LINES // self.total_iter > (step - 1) * LINES // self.total_iter
        ):
            left = f", {eta} left" if (eta := self.eta(step)) else ""
            share = 100 * step // self.total_iter
            logger.info("%s: %d %%, %d of %d it%s", self._name, share, step, self.total_iter, left)

    def eta(self, step: int) -> str:
        """The time that the steps after `step` and their validations and saves take, e.g. "1 d
        03:12:00".

        Empty before the speed is known. A validation or save counts from the first one that was
        measured.
        """
        pace, last = self.timer.pace(), self.total_iter - 1
        if pace is None:
            return ""
        seconds = (self.total_iter - step) * pace
        for kind, every in self.every.items():
            # Those of `step` itself are still to come
            if every and (known := self.timer.pauses.get(kind)):
                seconds += (last // every - (step - 1) // every + 1) * statistics.fmean(known)
        return duration(seconds)


def duration(seconds: float) -> str:
    """E.g. "03:12:00" or "1 d 03:12:00"."""
    minutes, s = divmod(round(seconds), 60)
    hours, m = divmod(minutes, 60)
    days, h = divmod(hours, 24)
    return f"{days} d {h:02}:{m:02}:{s:02}" if days else f"{h:02}:{m:02}:{s:02}"

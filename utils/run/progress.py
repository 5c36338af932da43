"""Show how far a run or a long action is: a bar on a terminal, lines elsewhere, or nothing.

Two things can be shown, both on rank 0 only:

* `open_progress` shows one action with a known end, e.g. the check of 500 clips. It gives a `Bar`
  or `Lines`; the caller calls `update` on it each time that something is done.
* `RunProgress` shows a whole training run, over all its epochs. `utils.run.run.Run` calls it.

The package tqdm draws the bar: `epoch 3:  12%|####      | 0.8 it/s, 01:40:00 left`. A line in place
of a bar reads: `check: 30 %, 150 of 500 clips, 12.0 a second, 00:00:29 left`.

What must stay: showing progress never ends or blocks a run, also if the terminal is closed
(test_a_training_run_whose_output_nobody_reads_goes_on_and_keeps_its_log). Free to change: the shown
texts, which are for people, and how often a line comes.

Tests: tests/parts/utils/test_progress.py.
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

# Number of lines that are logged for an action without a bar: one at each tenth of the whole.
LINE_COUNT = 10
# The bar, in the placeholders of tqdm.
BAR_FORMAT = (
    "{desc}: {percentage:3.0f}%|{bar}| {n:.0f}/{total_fmt} [{elapsed}<{remaining}, {rate_fmt}]"
)
# Seconds after a line until the next line is logged, even if no tenth was completed. A user who
# looks at the log should not take a slow action for one that hangs.
LONGEST_WITHOUT_LINE_S = 60.0
# Seconds at the start of an action in which no line comes. A shorter action needs no line in the
# log of a run. A caller may ask for another number.
QUIET_S = 5.0
# Seconds at the start after which a line comes even if no tenth was completed.
FIRST_LINE_S = 5.0

# By default, tqdm has a thread, and a lock that all processes share. If a process were killed or
# forked while the lock is held, all others would wait for ever. So tqdm gets no thread and a lock
# for threads only, and each forked process gets a new lock, which nobody holds.
tqdm.monitor_interval = 0
tqdm.set_lock(threading.RLock())
os.register_at_fork(after_in_child=lambda: tqdm.set_lock(threading.RLock()))

logger = logging.getLogger(__name__)


# ---- One action with a known end -------------------------------------------------------------


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

    kind: "bar", "line" or "none". A bar becomes lines if stderr is no terminal. The environment
        variable TQDM_DISABLE=1 has the effect of "none".
    total: number of things to do, e.g. 500.
    name: what is done, e.g. "check".
    unit: what is counted, e.g. "clips".
    say: function that is called with each line. By default it writes the line to the log.
    quiet_s: seconds before the first line.
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

    Ranks other than 0 show none, and TQDM_DISABLE switches all progress off. As in tqdm itself, an
    empty value and "0" leave it on.
    """
    if RUN.launch.rank != 0:
        return "none"
    if os.environ.get("TQDM_DISABLE", "0") not in ("", "0"):
        return "none"
    return kind


# ---- A bar on a terminal ---------------------------------------------------------------------


class Bar(ExitStack):
    """Draws a bar of tqdm, from the creation of the object to the end of its `with` block.

    While a bar is open, other texts that the program writes to stdout and stderr appear above the
    bar. If the terminal is lost (OSError), the run goes on without the bar.
    """

    def __init__(
        self, total: int, name: str, unit: str, is_kept: bool = True, **options: Any
    ) -> None:
        """total: number of things to do. name: what is done, e.g. "check".
        unit: what is counted, e.g. "clips". is_kept: whether the finished bar stays on the screen.
        options: further options of tqdm.
        """
        super().__init__()
        terminal = sys.stderr
        if isinstance(terminal, AboveBars):
            # Another bar is open, and has already replaced stderr and stdout. Draw this bar below
            # it, on the real stderr.
            terminal = terminal.stream
        else:
            self._write_above(redirect_stderr, terminal, terminal)
            self._write_above(redirect_stdout, sys.stdout, terminal)
        self._bar: Any = tqdm(
            total=total,
            desc=name,
            unit=f" {unit}",
            file=terminal,
            leave=is_kept,
            dynamic_ncols=True,  # follow the width of the window
            miniters=0,  # tqdm decides by the time alone when it draws again
            bar_format=BAR_FORMAT,
            **options,
        )

    def _write_above(self, redirect: Callable[[Any], Any], stream: Any, terminal: Any) -> None:
        """Replace `stream` by one that writes above the bars, until this bar is closed.

        redirect: redirect_stderr or redirect_stdout of contextlib.
        terminal: the stream that shows the bars.
        """
        above = AboveBars(stream, terminal)
        # An ExitStack calls its callbacks in reverse order. So first the original stream is put
        # back, and then `finish` writes the rest of the text to it.
        self.callback(above.finish)
        self.enter_context(redirect(above))

    def __exit__(self, *error: Any) -> None:
        # A terminal that was closed must not end the run, here and below: suppress its OSError.
        # Close the bar first; `super().__exit__` then puts the original streams back.
        with suppress(OSError):
            self._bar.close()
        super().__exit__(*error)

    def update(self, count: float = 1, name: str = "", values: str = "") -> None:
        """Move the bar forward by `count`, and draw it again if tqdm finds that it is time.

        count: number of things that were done since the last call. It may be a fraction.
        name: the new name in front of the bar. Empty to keep the name.
        values: text that replaces count and speed beside the bar, e.g. "0.8 it/s, loss 0.02". It
            must have no braces, which tqdm would take for placeholders. With at most 55 characters
            there is room for a bar in 80 columns.
        """
        with suppress(OSError):
            if name:
                self._bar.set_description_str(name, refresh=False)
            if values:
                self._bar.bar_format = "{desc}: {percentage:3.0f}%|{bar}| " + values
            # Fractions may add up to slightly more than the total, because they are rounded. tqdm
            # would print a warning into the bar, so never go beyond the total. `n` is the number
            # of things done so far.
            left = self._bar.total - self._bar.n
            self._bar.update(min(count, left))


class AboveBars:
    """Stands in for stdout or stderr while a bar is open: writes lines above the bars.

    Text is held back until its line is complete, because the bar would overwrite a half line. Test:
    test_the_bar_tears_no_line_of_the_log.
    """

    def __init__(self, stream: Any, terminal: Any) -> None:
        """stream: the stream that is replaced. terminal: the stream that shows the bars."""
        self.stream = stream
        self.terminal = terminal
        self._unfinished = ""  # the text after the last end of line

    def write(self, text: str) -> int:
        """Write the lines that `text` completes. Returns the length of `text`, as each stream does.

        E.g. after write("a") and write("b\\nc"), the line "ab" is written and "c" is held back.
        """
        # The last item of the split is the text after the last end of line.
        all_text = self._unfinished + text
        *lines, self._unfinished = all_text.split("\n")
        if lines:
            # This block of tqdm clears the bars, and draws them again below the lines.
            with tqdm.external_write_mode(file=self.terminal):
                self.stream.write("".join(f"{line}\n" for line in lines))
                self.stream.flush()
        return len(text)

    def finish(self) -> None:
        """Write the text that is held back. Call this after the bars are closed."""
        with suppress(OSError):
            self.stream.write(self._unfinished)

    def __getattr__(self, name: str) -> Any:
        # Python calls this for every other attribute of a stream (flush, isatty, encoding, ...).
        return getattr(self.stream, name)


# ---- Lines elsewhere -------------------------------------------------------------------------


class Lines:
    """Writes lines that tell how much is done, and how long the rest takes.

    A line comes after the first seconds, at each tenth, and after a minute without a line.
    """

    def __init__(
        self, total: int, name: str, unit: str, say: Callable[[str], object], quiet_s: float = 0.0
    ) -> None:
        """total: number of things to do, e.g. 500.
        name: what is done, e.g. "check". unit: what is counted, e.g. "clips".
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
        # Time of the next line if no tenth is completed before. The first line comes after a few
        # seconds, so that the user sees early how long the action takes.
        self._due = self._begin + FIRST_LINE_S

    def update(self, count: float = 1) -> None:
        """Count what was done since the last call, and write a line if one is due.

        count: may be a part of one thing, e.g. 1/3 of a clip.
        """
        now = time.monotonic()
        # 1e-6 is added because of fractions: 1/3 + 1/3 + 1/3 may be slightly less than 1.
        former_share = (self.done + 1e-6) / self.total
        self.done += count
        share = (self.done + 1e-6) / self.total
        completes_tenth = int(LINE_COUNT * share) > int(LINE_COUNT * former_share)

        if now < self._quiet_until:
            return
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


# ---- A whole training run --------------------------------------------------------------------


class RunProgress(ExitStack):
    """Shows the progress of a training run: one bar over all epochs, or a line at each tenth.

    main_train_vrt.py uses it as a context manager. The end of the block closes the bar.
    """

    def __init__(self, kind: str, total_iter: int, timer: Any, every: dict[str, int]) -> None:
        """kind: the option logging.progress. A "bar" shows nothing if stderr is no terminal,
            because the log lines of the run tell the same.
        total_iter: number of steps of the run.
        timer: the run's StepTimer (utils.run.timing), which knows the speed.
        every: "validation" and "save" -> number of steps between two of them, e.g. 1000. 0:
            no validation, or no save. One more of each follows the last step.
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

        step: number of steps done so far. values: numbers of the newest log line, for the bar.
        """
        if self._bar:
            self._bar.update(1, self._name, self._beside_bar(step, values))
        elif self.kind == "line" and self._completes_tenth(step):
            eta = self.eta(step)
            left = f", {eta} left" if eta else ""
            share = 100 * step // self.total_iter
            logger.info("%s: %d %%, %d of %d it%s", self._name, share, step, self.total_iter, left)

    def _beside_bar(self, step: int, values: str) -> str:
        """Return what stands beside the bar, e.g. "0.8 it/s, 01:40:00 left, loss 0.0234".

        Before the second step neither the speed nor the time that is left is known.
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
        after the first one was measured, and so do saves. Returns "" if the speed is not known yet.
        Test: test_the_remaining_time_holds_the_validations_and_saves_to_come.
        """
        seconds_per_step = self.timer.pace()
        if seconds_per_step is None:
            return ""
        seconds = (self.total_iter - step) * seconds_per_step
        # kind: "validation" or "save". `pauses` has the seconds of each one so far.
        for kind, every in self.every.items():
            measured_s = self.timer.pauses.get(kind)
            if every and measured_s:
                mean_s = statistics.fmean(measured_s)
                seconds += self._pauses_to_come(step, every) * mean_s
        return duration(seconds)

    def _pauses_to_come(self, step: int, every: int) -> int:
        """Return how many validations (or saves) are still to come after `step` steps.

        They come at each multiple of `every`, and one follows the last step. E.g. 3 if 10 of 25
        steps are done and every = 10: at 10, at 20 and at 25. The pause of `step` itself counts,
        because this is asked before it.
        """
        # The number of multiples of `every` in 1 ... n is n // every. In the example these are
        # 24 // 10 = 2 before the last step, and 9 // 10 = 0 before `step`.
        multiples_before_end = (self.total_iter - 1) // every
        multiples_before_step = (step - 1) // every
        return multiples_before_end - multiples_before_step + 1  # 1: after the last step


def duration(seconds: float) -> str:
    """Return seconds as hours, minutes and seconds: "03:12:00" or "1 d 03:12:00"."""
    # divmod gives quotient and remainder: 3725 s -> 62 min 5 s -> 1 h 2 min 5 s.
    all_minutes, s = divmod(round(seconds), 60)
    all_hours, m = divmod(all_minutes, 60)
    days, h = divmod(all_hours, 24)
    clock = f"{h:02}:{m:02}:{s:02}"
    return f"{days} d {clock}" if days else clock

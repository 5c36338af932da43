"""Draw a progress bar on a terminal, with the package tqdm, and keep other text above the bar.

`Bar` is the bar. While it is open, `AboveBars` replaces stdout and stderr, and writes all other
text above the bar, in whole lines. progress.py opens a bar for one action, run_progress.py for a
whole run.

What must stay: a bar never ends or blocks a run, even if the terminal is closed
(test_a_training_run_whose_output_nobody_reads_goes_on_and_keeps_its_log), and it never cuts a line
of other text (test_the_bar_tears_no_line_of_the_log). Free to change: how the bar looks.

Tests: tests/parts/utils/test_progress.py, tests/parts/utils/test_process.py.
"""

import os
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack, redirect_stderr, redirect_stdout, suppress
from typing import Any

from tqdm import tqdm

# The form of the bar, with placeholders that tqdm fills in: name, percentage, bar, things done and
# total, time passed and time left, speed.
BAR_FORMAT = (
    "{desc}: {percentage:3.0f}%|{bar}| {n:.0f}/{total_fmt} [{elapsed}<{remaining}, {rate_fmt}]"
)

# By default, tqdm has a thread that watches the bars, and a lock that all processes share. If a
# process were killed or forked while the lock is held, all others would wait forever.
tqdm.monitor_interval = 0  # no thread


def _set_own_lock() -> None:
    """Give tqdm a new lock, only for the threads of this process."""
    tqdm.set_lock(threading.RLock())


_set_own_lock()
# A forked process gets a new lock, which nobody holds.
os.register_at_fork(after_in_child=_set_own_lock)


class Bar(ExitStack):
    """Draws a bar of tqdm, from the creation of the object to the end of its `with` block.

    While a bar is open, all other text that the program writes to stdout and stderr appears above
    the bar. If the terminal is lost (OSError), the run goes on without the bar.
    """

    def __init__(
        self, total: int, name: str, unit: str, is_kept: bool = True, **options: Any
    ) -> None:
        """Draw the bar, and let other text appear above it.

        total: number of things to do.
        name: what is done, e.g. "check".
        unit: what is counted, e.g. "clips".
        is_kept: whether the finished bar stays on the screen.
        options: additional options of tqdm, e.g. initial=100 if 100 things are already done.
        """
        super().__init__()
        terminal = sys.stderr
        if isinstance(terminal, AboveBars):
            # Another bar is open, and has already replaced stderr and stdout. Draw this bar below
            # the other bar, on the real stderr.
            terminal = terminal.stream
        else:
            # Text to stderr and to stdout now goes above the bar, which is on stderr (`terminal`).
            self._write_above(redirect_stderr, terminal, terminal)
            self._write_above(redirect_stdout, sys.stdout, terminal)
        self._bar: Any = tqdm(
            total=total,
            desc=name,
            unit=f" {unit}",
            file=terminal,
            leave=is_kept,
            dynamic_ncols=True,  # follow the width of the window
            miniters=0,  # tqdm draws again when some time has passed, after any number of updates
            bar_format=BAR_FORMAT,
            **options,
        )

    def _write_above(self, redirect: Callable[[Any], Any], stream: Any, terminal: Any) -> None:
        """Replace `stream` by a stream that writes above the bars, until this bar is closed.

        redirect: redirect_stderr or redirect_stdout of contextlib.
        stream: the present stderr or stdout.
        terminal: the stream that shows the bars.
        """
        above = AboveBars(stream, terminal)
        # An ExitStack undoes its entries in reverse order. So at the end, `redirect` first puts the
        # original stream back, and then `finish` writes the rest of the text into this stream.
        self.callback(above.finish)
        self.enter_context(redirect(above))

    def __exit__(self, *error: Any) -> None:
        # Close the bar first, and then put the original streams back (`super().__exit__`).
        with suppress(OSError):  # if the terminal was closed, the run goes on
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
        with suppress(OSError):  # if the terminal was closed, the run goes on
            if name:
                self._bar.set_description_str(name, refresh=False)
            if values:
                # The beginning of BAR_FORMAT, and then `values` in place of count and speed.
                self._bar.bar_format = "{desc}: {percentage:3.0f}%|{bar}| " + values
            # Fractions may add up to slightly more than the total, because they are rounded. tqdm
            # would print a warning into the bar, so never go beyond the total. `n` is the number
            # of things done so far.
            left = self._bar.total - self._bar.n
            self._bar.update(min(count, left))


class AboveBars:
    """Replaces stdout or stderr while a bar is open, and writes lines above the bars.

    Text is held back until its line is complete, because the bar would overwrite an incomplete
    line. Test: test_the_bar_tears_no_line_of_the_log.
    """

    def __init__(self, stream: Any, terminal: Any) -> None:
        """Begin without held-back text.

        stream: the stream that is replaced, e.g. stdout.
        terminal: the stream that shows the bars, stderr.
        """
        self.stream = stream
        self.terminal = terminal
        self._unfinished = ""  # the text after the last end of line

    def write(self, text: str) -> int:
        """Write the lines that `text` completes. Returns the length of `text`, as each stream does.

        E.g. after write("a") and write("b\\nc"), the line "ab" is written and "c" is held back.
        """
        # "ab\nc" is split into "ab" and "c". The last part has no end of line yet, so it is held
        # back.
        parts = (self._unfinished + text).split("\n")
        self._unfinished = parts.pop()
        if parts:
            # This block of tqdm clears the bars, and draws them again below the lines.
            with tqdm.external_write_mode(file=self.terminal):
                self.stream.write("".join(f"{line}\n" for line in parts))
                self.stream.flush()
        return len(text)

    def finish(self) -> None:
        """Write the text that is held back. Call this after the bars are closed."""
        with suppress(OSError):
            self.stream.write(self._unfinished)

    def __getattr__(self, name: str) -> Any:
        # Python calls this for every other attribute of a stream (flush, isatty, encoding, ...).
        return getattr(self.stream, name)

"""Set up the text log of a run.

A rank is a process of the run. Rank 0 writes all lines, e.g. "[2025-11-06 10:00:00] epoch 1". The
other ranks write only warnings, e.g. "[rank 2] the disk is slow". `setup_logging` adds these
handlers to the root logger of Python:

    rank 0        _StdoutHandler     all lines, to stdout
                  _FileHandler       all lines, to log/train.log
                  _WarningsHandler   warnings, to log/warnings.jsonl, which the report shows
    other ranks   StreamHandler      warnings, to stderr

If something cannot be written, for example on a full disk, this is reported once and the run goes
on. Only a checkpoint that cannot be saved ends the run.

What must stay: the names of the two files, the form of a line, and the keys of warnings.jsonl,
because the report and users' scripts read the files (test_the_log_has_a_line_for_a_step,
test_the_page_of_a_run_shows_a_repeated_warning_once). Free to change: when a failure is reported.

Tests: tests/parts/utils/test_process.py, tests/parts/utils/test_results.py,
tests/stories/test_main_train.py
"""

import json
import logging
import os
import sys
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from utils.errors import DataError, printable
from utils.files import OTHER_ROOT, open_kept, writing
from utils.secrets import without_secrets

logger = logging.getLogger(__name__)

# Names of the two files, below the folder of a run. The report and the documents name them, too.
LOG_NAME = "log/train.log"
WARNINGS_NAME = "log/warnings.jsonl"
TIME = "%Y-%m-%d %H:%M:%S"  # e.g. 2025-11-06 10:00:00

# The argument `what` of each block of `best_effort` that failed when it last ran, e.g. "the report
# of the run". The log has one warning of each of these failures.
_unwritten: set[str] = set()


@contextmanager
def best_effort(what: str, *errors: type[Exception]) -> Generator[None]:
    """Run a block that writes something the run does not need, such as a picture of the curves.

    If writing fails, this warns once, and the run goes on after the block. When writing works
    again, this says so.

    what: what is written, for the warnings, e.g. "the report of the run". Blocks with the same text
        share their warning.
    errors: types of errors that do not end the run, in addition to OSError and DataError.
    """
    try:
        yield
    except (OSError, DataError, *errors) as e:
        if what not in _unwritten:
            _unwritten.add(what)
            # The text of a DataError has several parts. `what` is the part that says what is wrong.
            text = str(e.what if isinstance(e, DataError) else e)
            logger.warning("cannot write %s (%s); the run goes on without it", what, text)
    else:
        if what in _unwritten:
            _unwritten.discard(what)
            logger.warning("%s: can be written again", what)


class _ReportsOnceHandler(logging.Handler):
    """A log handler that reports once, on stderr, that it cannot write.

    The handlers of `logging` would print a traceback for each line of the log.
    """

    has_failed = False

    def handleError(self, record: logging.LogRecord) -> None:
        """Report an error of writing. `logging` calls this in the `except` block that caught it."""
        error = sys.exc_info()[1]
        # A full disk is an OSError, and a closed stream is a ValueError. Any other error is a
        # mistake in our code, and the handler of `logging` prints its traceback.
        if not isinstance(error, (OSError, ValueError)):
            super().handleError(record)
        elif not self.has_failed:
            self.has_failed = True
            # Write straight to stderr (file 2), because sys.stderr itself may have failed. If this
            # write fails, too, there is nowhere left to report the error.
            text = f"cannot write the log ({self.name}: {error}); the run goes on without it\n"
            with suppress(OSError):
                os.write(2, text.encode())


class _FileHandler(_ReportsOnceHandler, logging.FileHandler):
    """Appends lines to a file. Refuses a symbolic link, whose target may be a file of a user."""

    def _open(self) -> Any:
        """Open the file. FileHandler calls this function.

        `open_kept` refuses a symbolic link, and writes each line at once.
        """
        return open_kept(Path(self.baseFilename), self.mode, encoding="utf-8")

    def reopen_if_removed(self) -> None:
        """Make the file again if somebody has removed it, because new lines would be lost."""
        if self.stream is None:  # the handler was closed
            return
        # Number of names (hard links) of the open file: 0 if the file was removed, 1 if it is still
        # there or was moved.
        name_count = os.fstat(self.stream.fileno()).st_nlink
        if name_count > 0:
            return
        self.close()
        Path(self.baseFilename).parent.mkdir(parents=True, exist_ok=True)
        self.stream = self._open()


class _WarningsHandler(_FileHandler):
    """Appends warnings and errors as JSON lines {"time", "text"}, for the report of a run."""

    def format(self, record: logging.LogRecord) -> str:
        """Return a warning as one line of JSON. The two keys are part of the file format."""
        time = logging.Formatter().formatTime(record, TIME)
        text = without_secrets(record.getMessage().rstrip())
        return json.dumps({"time": time, "text": text})


class _StdoutHandler(_ReportsOnceHandler, logging.StreamHandler):
    """Writes each line to the present sys.stdout, and not to the sys.stdout of its creation.

    A progress bar replaces sys.stdout while it is shown, so that lines appear above the bar. A
    handler that kept the first sys.stdout would write across the bar.
    """

    @property
    def stream(self) -> Any:
        """Return the present sys.stdout. The methods of StreamHandler write to this stream."""
        return sys.stdout

    @stream.setter
    def stream(self, value: Any) -> None:
        """Ignore the stream that the constructor of StreamHandler assigns."""


class _LineFormatter(logging.Formatter):
    """Formats a line of the log: "WARNING: " before a warning, nothing before other lines."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, and the traceback if there is one, without secrets."""
        return without_secrets(super().format(record))

    def formatMessage(self, record: logging.LogRecord) -> str:
        """Return the line without control characters, and without a newline at its end."""
        # The format of a line (`setup_logging`) has %(mark)s. `logging` replaces %(mark)s by the
        # attribute `mark` of the record.
        record.mark = f"{record.levelname}: " if record.levelno >= logging.WARNING else ""
        line = super().formatMessage(record)
        return printable(line.rstrip())  # a warning of Python ends with a newline


def setup_logging(rank: int, log_file: Path | None = None) -> None:
    """Set where this process logs. Replaces what an earlier call has set.

    Rank 0 writes all lines to stdout and to `log_file`, as ``[2025-11-06 10:00:00] text``. Other
    ranks write warnings to stderr, as ``[rank 2] text``. Warnings that Python modules such as torch
    give by `warnings.warn` go the same way.

    rank: number of this process in the run, from 0.
    log_file: the file to which lines are appended, or None for no file.
    """
    logging.captureWarnings(True)
    # At the level INFO, matplotlib would log lines about its font cache.
    logging.getLogger("matplotlib").setLevel(logging.WARNING)
    console = _StdoutHandler() if rank == 0 else logging.StreamHandler(sys.stderr)
    # If rank 0 cannot write, the report of `_ReportsOnceHandler` contains this name. The plain
    # StreamHandler of the other ranks makes no such report, so its name has no effect.
    console.set_name("stdout")
    handlers: list[logging.Handler] = [console]
    if log_file is not None:
        handlers += _file_handlers(log_file)

    # All loggers of this process pass their lines to the root logger.
    root = logging.getLogger()
    root.handlers.clear()
    if rank == 0:
        root.setLevel(logging.INFO)
        form = "[%(asctime)s] %(mark)s%(message)s"  # `_LineFormatter` sets the mark
    else:
        root.setLevel(logging.WARNING)
        form = f"[rank {rank}] %(message)s"
    for handler in handlers:
        handler.setFormatter(_LineFormatter(form, TIME))
        root.addHandler(handler)


def _file_handlers(log_file: Path) -> list[logging.Handler]:
    """Open log_file and, beside it, warnings.jsonl. Returns a handler for each of the two files.

    Raises DataError if a file cannot be opened. The error names log_file, and advises another disk.
    """
    with writing(log_file, OTHER_ROOT):
        log_file.parent.mkdir(parents=True, exist_ok=True)
        lines = _FileHandler(log_file)
        warnings = _WarningsHandler(log_file.with_name(Path(WARNINGS_NAME).name))
    lines.set_name(str(log_file))
    warnings.setLevel(logging.WARNING)
    return [lines, warnings]


def reopen_removed_logs() -> None:
    """Make the files of the log again if somebody has removed them."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, _FileHandler):
            handler.reopen_if_removed()

"""The text log of a run.

The other ranks log warnings only. What cannot be written, on a full disk for example, is reported
once and does not end the run: only a checkpoint that cannot be saved does.
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

logger = logging.getLogger(__name__)

LOG_NAME, WARNINGS_NAME = "log/train.log", "log/warnings.jsonl"
TIME = "%Y-%m-%d %H:%M:%S"

_unwritten: set[str] = set()  # what could not be written at the last attempt


@contextmanager
def best_effort(what: str, *errors: type[Exception]) -> Generator[None]:
    """The body writes what the run does not need: on an error of writing, or one of `errors`, warn
    once and go on.
    """
    try:
        yield
    except (OSError, DataError, *errors) as e:
        if what not in _unwritten:
            _unwritten.add(what)
            text = str(e.what if isinstance(e, DataError) else e)
            logger.warning("cannot write %s (%s); the run goes on without it", what, text)
    else:
        if what in _unwritten:
            _unwritten.discard(what)
            logger.warning("%s: can be written again", what)


class _SaysOnce(logging.Handler):
    """A handler that reports once, on stderr, that it cannot write; logging would print a traceback
    for each line.
    """

    has_failed = False

    def handleError(self, record: logging.LogRecord) -> None:
        error = sys.exc_info()[1]
        if not isinstance(error, (OSError, ValueError)):  # ValueError: a closed stream
            super().handleError(record)
        elif not self.has_failed:
            self.has_failed = True
            with suppress(OSError):
                os.write(
                    2,
                    f"cannot write the log ({self.name}: {error}); the run goes on without "
                    "it\n".encode(),
                )


class _LogFile(_SaysOnce, logging.FileHandler):
    def _open(self) -> Any:
        return open_kept(Path(self.baseFilename), self.mode, encoding="utf-8")


class _Warnings(_LogFile):
    """Appends warnings and errors as JSON lines {"time", "text"}, for the report of a run."""

    def format(self, record: logging.LogRecord) -> str:
        return json.dumps(
            {
                "time": logging.Formatter().formatTime(record, TIME),
                "text": record.getMessage().rstrip(),
            }
        )


class _Stdout(_SaysOnce, logging.StreamHandler):
    """Writes to what is sys.stdout now.

    An open progress bar replaces sys.stdout, to stay below the lines.
    """

    stream = property(lambda _: sys.stdout, lambda *_: None)


class _Line(logging.Formatter):
    """`mark` is the level of a warning or an error.

    Python's own warnings lose the newline at their end.
    """

    def formatMessage(self, record: logging.LogRecord) -> str:
        record.mark = f"{record.levelname}: " if record.levelno >= logging.WARNING else ""
        return printable(super().formatMessage(record).rstrip())


def setup_logging(rank: int, log_file: Path | None = None) -> None:
    """Rank 0: INFO to stdout and, when given, to `log_file` (appended), as ``[2025-11-06 10:00:00]
    text``.

    Others: warnings to stderr as ``[rank 2] text``. The warnings of Python, such as those of torch,
    take the same way.
    """
    logging.captureWarnings(True)
    logging.getLogger("matplotlib").setLevel(logging.WARNING)  # it tells of its font cache
    handlers: list[logging.Handler] = [
        _Stdout() if rank == 0 else logging.StreamHandler(sys.stderr)
    ]
    handlers[0].set_name("stdout")
    if log_file is not None:
        with writing(log_file, OTHER_ROOT):
            log_file.parent.mkdir(parents=True, exist_ok=True)
            handlers += [
                _LogFile(log_file),
                _Warnings(log_file.with_name(Path(WARNINGS_NAME).name)),
            ]
        handlers[1].set_name(str(log_file))
        handlers[2].setLevel(logging.WARNING)
    root = logging.getLogger()
    root.handlers.clear()
    root.setLevel(logging.WARNING if rank else logging.INFO)
    for handler in handlers:
        handler.setFormatter(
            _Line(
                f"[rank {rank}] %(message)s" if rank else "[%(asctime)s] %(mark)s%(message)s", TIME
            )
        )
        root.addHandler(handler)

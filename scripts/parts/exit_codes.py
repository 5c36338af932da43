"""End scripts with a message and an exit code, and show their progress.

A script ends with a message and an exit code after an error, after Ctrl-C, and if nobody reads its
output any more.

Tests: tests/parts/utils/test_process.py, tests/stories/test_bad_input.py
"""

import errno
import functools
import os
import select
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any, TypeVar

from utils.dist.process import open_closed_streams
from utils.errors import DataError, SpikeVRTError
from utils.run.progress import QUIET_S, open_progress

T = TypeVar("T")

# Exit codes. If a signal ends a program, the shell reports the code 128 + number of the signal. The
# scripts end with the same codes.
INTERRUPTED = 128 + signal.SIGINT  # 130
# 141. Python ignores SIGPIPE and raises BrokenPipeError, so the script must give the code itself.
READER_GONE = 128 + signal.SIGPIPE
# Numbers of the errors of writing: a full disk (ENOSPC), a file that is too large for the limit on
# its size (EFBIG), a full quota (EDQUOT). Such an OSError does not name its file (`filename` is
# None), so `_code_of` compares its `errno` with these numbers.
DISK_FULL = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)


def with_exit_code(main: Callable[..., int]) -> Callable[..., int]:
    """Decorate the `main` of a script, so that an error becomes a message and an exit code.

        what happens                            exit code
        an error of this project                its `exit_code`, e.g. 2 for wrong options
        an error of a file, or a full disk      the code of DataError
        Ctrl-C                                  130 (INTERRUPTED), after one line
        the reader of stdout ends (`| head`)    141 (READER_GONE), without a message
        any other error                         Python's, with its traceback

    docs and shell scripts of users depend on the codes, so they must stay.
    """

    # `arguments` is what `main` gets: nothing, or the list of the words of the command line.
    @functools.wraps(main)
    def run(*arguments: list[str] | None) -> int:
        # If the shell has closed stdout or stderr (`>&-`), print would raise an error. This call
        # opens the null device in place of closed streams, so their output is dropped.
        open_closed_streams()
        try:
            return _code_of(main, arguments)
        except BrokenPipeError:
            if not _is_reader_gone():
                raise  # it was another pipe, to a process that the script has started
            # The buffer of stdout may still hold text. Python would write this text when it ends,
            # and the write would fail again. So connect stdout to the null device.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return READER_GONE

    return run


def _code_of(main: Callable[..., int], arguments: tuple[Any, ...]) -> int:
    """Call the `main` of a script with its arguments. Returns the exit code, and prints an error.

    Raises BrokenPipeError if nobody reads stdout any more. An error that is not in the table of
    `with_exit_code` is raised again.
    """
    try:
        return main(*arguments)
    except SpikeVRTError as e:
        print(e, file=sys.stderr)
        return e.exit_code
    except OSError as e:
        # Two kinds of errors are handled below: an error that names its file, e.g. a file without
        # permission, and an error of a full disk. Other errors are raised again, e.g. an error of a
        # connection.
        if e.filename is None and e.errno not in DISK_FULL:
            raise
        error = _file_error(e)
        print(error, file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("Interrupted (Ctrl-C). The same command starts again.", file=sys.stderr)
        return INTERRUPTED
    finally:
        # Write what is still in the buffer. If nobody reads the pipe any more, flush raises
        # BrokenPipeError. The BrokenPipeError replaces the exit code, or the error that was raised
        # above. `run` catches it. Without flush, Python would write the buffer only after `run` has
        # ended.
        sys.stdout.flush()


def _file_error(error: OSError) -> DataError:
    """Return the error of a file or a full disk as an error of this project."""
    return DataError(
        what=f"cannot read or write: {error.strerror or error}",
        where=str(error.filename or "a file"),
        expected="permission, and room on the disk",
        do="mend this, then start the command again",
    )


def _is_reader_gone() -> bool:
    """Return whether stdout is a pipe that nobody reads any more."""
    poll = select.poll()
    # The first 0: ask for no event. The system reports POLLERR even if nobody has asked for it.
    poll.register(sys.stdout.fileno(), 0)
    # The second 0: wait 0 ms. The result is a list of pairs (file descriptor, event).
    events = poll.poll(0)
    return any(event & select.POLLERR for _, event in events)


def show_progress(
    total: int, name: str, unit: str, quiet_s: float = QUIET_S
) -> AbstractContextManager[Any]:
    """Return the progress of `total` units: a bar on a terminal, else lines.

    Use it in a `with` block, and call its `update` with the number of units that are done.

    name, unit: e.g. "making" and "frames".
    quiet_s: seconds before the first line. A script that ends earlier prints no line.
    """
    say = functools.partial(print, flush=True)  # at once, also into a pipe or a file
    # is_kept: the finished bar stays on the screen.
    return open_progress("bar", total, name, unit, say=say, quiet_s=quiet_s, is_kept=True)


def with_progress(
    items: Iterable[T],
    total: int,
    name: str,
    unit: str,
    size: Callable[[T], int] = lambda _: 1,
) -> Iterator[T]:
    """Yield the items, and show the progress.

    total: number of units of all items.
    name, unit: what the progress shows, e.g. "converting" and "planes".
    size: function that returns the number of units of an item. By default an item is one unit.
    """
    with show_progress(total, name, unit) as progress:
        for item in items:
            yield item
            progress.update(size(item))

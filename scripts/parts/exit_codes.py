"""How scripts end, after an error and where nobody reads their output any more; and how far they
are.
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

INTERRUPTED = 128 + signal.SIGINT
DISK_FULL = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)
READER_GONE = 128 + signal.SIGPIPE  # as of programs that this signal ends; Python ignores it


def with_exit_code(main: Callable[..., int]) -> Callable[..., int]:
    """Decorator of a script's `main`: an error of the project or of a file is printed, and its exit
    code is returned.

    Ctrl-C ends the script with INTERRUPTED and one line, a closed pipe of its output (`| head -1`)
    with READER_GONE.
    """

    @functools.wraps(main)
    def run(*arguments: list[str] | None) -> int:
        open_closed_streams()
        try:
            try:
                return main(*arguments)
            except SpikeVRTError as e:
                print(e, file=sys.stderr)
                return e.exit_code
            except OSError as e:
                if e.filename is None and e.errno not in DISK_FULL:
                    raise  # of a pipe or a connection
                what, needed = (
                    f"cannot read or write: {e.strerror or e}",
                    "permission, and room on the disk",
                )
                error = DataError(
                    what,
                    str(e.filename or "a file"),
                    needed,
                    "mend this, then start the command again",
                )
                print(error, file=sys.stderr)
                return error.exit_code
            except KeyboardInterrupt:
                print("Interrupted (Ctrl-C). The same command starts again.", file=sys.stderr)
                return INTERRUPTED
            finally:
                sys.stdout.flush()  # while the error can be answered; Python itself flushes later
        except BrokenPipeError:
            poll = select.poll()
            # POLLERR, that nobody reads stdout, is reported in any case
            poll.register(sys.stdout.fileno(), 0)
            if not any(event & select.POLLERR for _, event in poll.poll(0)):
                raise  # the pipe is another one, to a process of the script
            # For what is still in the buffer
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return READER_GONE

    return run


def shown(
    total: int, name: str, unit: str, quiet_s: float = QUIET_S
) -> AbstractContextManager[Any]:
    """The progress of `total` units: a bar on a terminal, else lines. quiet_s: seconds before the
    first line.
    """
    say = functools.partial(print, flush=True)  # whoever reads a pipe or a file is to see it now
    return open_progress("bar", total, name, unit, say=say, quiet_s=quiet_s, is_kept=True)


def tracked(
    items: Iterable[T], total: int, name: str, unit: str, size: Callable[[T], int] = lambda _: 1
) -> Iterator[T]:  # fmt: skip
    """The items, while their progress is shown. size: of an item, in units."""
    with shown(total, name, unit) as progress:
        for item in items:
            yield item
            progress.update(size(item))

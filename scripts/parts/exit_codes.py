"""How scripts end after an error of the project, and where nobody reads their output any more."""

from __future__ import annotations

import functools
import os
import select
import signal
import sys
from collections.abc import Callable

from utils.dist.process import open_closed_streams
from utils.errors import SpikeVRTError

INTERRUPTED = 128 + signal.SIGINT
READER_GONE = 128 + signal.SIGPIPE  # as of programs that this signal ends; Python ignores it


def with_exit_code(main: Callable[..., int]) -> Callable[..., int]:
    """Decorator of a script's `main`: an error of the project is printed, and its exit code is returned.

    Ctrl-C ends the script with INTERRUPTED and one line.
    A script whose output goes to a pipe that was closed, as by `| head -1`, ends with READER_GONE and no message.
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
            except KeyboardInterrupt:
                print("Interrupted (Ctrl-C). The same command starts again.", file=sys.stderr)
                return INTERRUPTED
            finally:
                sys.stdout.flush()  # while the error can be answered; Python itself flushes later
        except BrokenPipeError:
            if not _is_reader_gone():  # the pipe is another one, to a process of the script
                raise
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what is still in the buffer
            return READER_GONE

    return run


def _is_reader_gone() -> bool:
    """Whether stdout is a pipe that nobody reads."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)  # POLLERR is reported in any case
    return any(event & select.POLLERR for _, event in poll.poll(0))

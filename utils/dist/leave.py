"""End this process after a failure, and write its last words, without waiting for a terminal.

A paused terminal (Ctrl-S, a selection, `less`) takes no output, and a write to it never returns. So
a text goes to the log file first and to the terminal last, and no wait is longer than
TERMINAL_WAIT_S.

What must stay: the order of the steps in `leave`: first the exit code, then the others are told and
waited for, then the process ends. If a rank ended earlier, the store would end with it, or the
other ranks would never learn the cause
(test_a_rank_that_stops_or_dies_is_named_and_all_ranks_end,
test_a_rank_signs_off_once_though_two_of_its_threads_end_it).

Tests: tests/faults/test_stalls.py, tests/dist/test_dist.py, tests/dist/test_life.py.
"""

import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn

from torch.distributed import Store

from utils.dist import process
from utils.dist.beats import is_gone, read_states
from utils.dist.claims import first_to_claim, outlast_siblings
from utils.dist.rendezvous import JOINED, MET
from utils.dist.stacks import run_mark
from utils.dist.state import RUN
from utils.dist.store_values import ForeignValueError

# Store key: the failure has been reported, so all ranks may end.
REPORTED = "reported"

# Seconds that a rank waits in `Watchdog._follow` for the report of another rank, which may still
# need the stacks or the store of the waiting rank.
REPORT_WAIT_S = 5.0
# Seconds that a rank waits in `_sign_off` for the other ranks, if the store ends with it.
SIGN_OFF_WAIT_S = 3.0
# So a rank ends within these seconds, 8 s, after it knows of a failure.
EXIT_S = REPORT_WAIT_S + SIGN_OFF_WAIT_S


def is_first_to_report_foreign_value() -> bool:
    """Return whether this rank is the first of its host to report a foreign value in the store.

    A foreign value is a value that no rank of this run wrote (`ForeignValueError`).
    """
    return first_to_claim(f"foreign value {RUN.launch.master_port}")


def write_to_log_and_stderr(text: str) -> None:
    """Write a text to the log file, then to stderr, and go on after TERMINAL_WAIT_S at the latest.

    The log file comes first, because a paused terminal takes no output.
    """
    # A byte that is no UTF-8, e.g. in an argument of the command line, is a "surrogate" in a text
    # of Python, and cannot be written. So write it as an escape, e.g. "\udce4".
    text = text.encode(errors="backslashreplace").decode()
    write_to_log_file(text)

    def to_terminal() -> None:
        with suppress(Exception):
            sys.stdout.flush()
        with suppress(OSError):
            # Not sys.stderr: the main thread may hold its lock, while it waits for the terminal.
            os.write(2, f"{text}\n".encode())

    call_with_time_limit(to_terminal)


# Longest wait for a terminal, in seconds. A terminal that is not paused takes the text at once.
TERMINAL_WAIT_S = 1.0


def call_with_time_limit(write: Callable[[], None]) -> None:
    """Call `write`, and go on after TERMINAL_WAIT_S even if a paused terminal holds it."""
    thread = threading.Thread(target=write, daemon=True, name="last words")
    thread.start()
    thread.join(TERMINAL_WAIT_S)


def write_to_log_file(text: str) -> None:
    """Write an error to the log file, if this rank has one. Nothing goes to the terminal."""
    record = logging.LogRecord(
        name=__name__,
        level=logging.ERROR,
        pathname=__file__,
        lineno=0,  # the log file shows no line number
        msg=text,
        args=None,
        exc_info=None,
    )
    for handler in logging.getLogger().handlers:
        if isinstance(handler, logging.FileHandler):
            handler.handle(record)


def log_file() -> str | None:
    """Return the path of the log file of this rank, or None if it has none."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, logging.FileHandler) and handler.baseFilename.endswith(".log"):
            return handler.baseFilename
    return None


def leave(code: int, store: Store | None) -> NoReturn:
    """End this process with an exit code. The order of the steps below must stay.

    If the store ends with this process, the process first waits until the other ranks have read the
    failure from the store.

    store: the store of the run, or None if the store does not answer.
    """
    # 1. Let only one thread pass. The main thread and the watchdog thread may both call this
    # function. If a rank signed off twice, the host of the store would count one rank too many and
    # end too early. So the first thread never releases the lock, and the other thread waits until
    # the process ends (test_a_rank_signs_off_once_though_two_of_its_threads_end_it).
    if not RUN.leaving.acquire(timeout=EXIT_S):
        os._exit(code)  # the thread that has the lock hangs
    # 2. Note the exit code, sign off, and wait for the ranks that need this process.
    with suppress(Exception):
        process.write_exit_file(code)
        if store is not None:
            _sign_off(store)
        if RUN.watchdog is not None and RUN.watchdog.guard is not None:
            RUN.watchdog.guard.kill()  # the guard would take the wait below for a stall
        # The mark is in the names of the memory files. Ranks have such files only if they have a
        # watchdog.
        outlast_siblings(None if RUN.watchdog is None else run_mark())

    def flush() -> None:
        with suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()

    # 3. Write what is still in the buffers of Python, unless a paused terminal holds it.
    call_with_time_limit(flush)
    # 4. End the loader processes last. The end of a loader process raises an error in the main
    # thread, which must not have the time to print it.
    process.kill_trees(process.descendants_of(os.getpid()))
    os._exit(code)


def _sign_off(store: Store) -> None:
    """Note in the store that this rank leaves. If the store ends with it, wait for the others.

    The store ends with rank 0, or, if an agent of torchrun has opened the store, perhaps with any
    rank. In these cases this rank waits until every rank has signed off or its process is gone, but
    SIGN_OFF_WAIT_S at most.

    The keys: left/<rank> of each rank that has signed off, and `left`, the number of these ranks.
    """
    store.set(f"left/{RUN.launch.rank}", "1")
    signed_off = store.add("left", 1)  # number of ranks that have signed off
    deadline = time.monotonic() + SIGN_OFF_WAIT_S
    ends_store = RUN.launch.rank == 0 or RUN.launch.by_agent
    if not ends_store:
        return
    # The beats of all ranks, which have their process ids. Before the ranks have met, some ranks
    # have no beat, and reading would hang.
    states = {}
    with suppress(ForeignValueError):
        if store.check([MET]):
            states = read_states(store, RUN.launch.world_size)
    # Wait until each process that has joined has signed off, or is gone without signing off.
    known_as_gone: set[int] = set()  # ranks whose process is gone
    gone_without_sign = 0  # number of these ranks that have not signed off
    while time.monotonic() < deadline:
        joined = store.add(JOINED, 0)  # adding 0 reads the number
        if signed_off + gone_without_sign >= joined:
            return
        time.sleep(0.02)
        for rank, state in states.items():
            if rank in known_as_gone or not is_gone(state):
                continue
            known_as_gone.add(rank)
            # A rank that signed off before it ended is counted in `signed_off` already.
            if not store.check([f"left/{rank}"]):
                gone_without_sign += 1
        signed_off = store.add("left", 0)

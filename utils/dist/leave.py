"""End this process after a failure, and write its last words, without waiting for a terminal.

`leave` ends a rank by os._exit. Python's own shutdown could wait forever, e.g. for a process group
whose other ranks are gone. These functions call `leave`, in the situations on the right:

    _end_after_error in utils_dist.py    main thread: this rank or another rank has reported
    closed_after_report in failure.py    timer: the error is reported, but closing a resource hangs
    Watchdog._report                     watchdog thread: it has reported a rank that stands still
    Watchdog._follow                     watchdog thread: another rank has failed, and reports
    Watchdog._end_by_foreign_value       watchdog thread: another program wrote into the store
    Watchdog._end_without_store          watchdog thread: the store does not answer

`write_to_log_and_stderr` writes a report. A paused terminal (Ctrl-S, a selection, `less`) takes no
output, and a write to it never returns. So a text goes to the log file first and to the terminal
last, and no wait is longer than TERMINAL_WAIT_S.

What must stay: the order of the steps in `leave`, whose docstring says what each step prevents.
Free to change: the seconds, within the limits that their comments name.

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
from utils.secrets import without_secrets

# Store key: the failure has been reported, so all ranks may end.
REPORTED = "reported"

# Seconds that a rank waits for the key REPORTED (`Watchdog._follow`). Until then, the rank that
# reports a stall may read the stacks of this rank, or need the store, which this rank may host.
# With a shorter wait, a report could lack these stacks. A longer wait delays the end of the run.
REPORT_WAIT_S = 5.0
# The store ends with rank 0, or with the first rank that ends (`_sign_off`). Such a rank waits for
# the other ranks, for at most these seconds (`_wait_for_others`). With a shorter wait, the store
# could end before a slow rank has read in it why the run ends. Both waits are chosen by hand.
SIGN_OFF_WAIT_S = 3.0
# Both waits together, 8 s: the longest time between the moment at which a rank learns of a failure
# and the end of this rank. CLOSE_S and WAIT_FOR_WATCHDOG_S (failure.py) must fit this time.
EXIT_S = REPORT_WAIT_S + SIGN_OFF_WAIT_S


def is_first_to_report_foreign_value() -> bool:
    """Return whether this rank is the first of its host to report a foreign value in the store.

    A foreign value is a value that no rank of this run wrote (`ForeignValueError`). All ranks of a
    host may find it. Each claims the same name, and only the first rank gets it (claims.py).
    """
    # The port is in the name, because another run on this host makes its own report.
    return first_to_claim(f"foreign value {RUN.launch.master_port}")


def write_to_log_and_stderr(text: str) -> None:
    """Write a text to the log file, then to stderr, and go on after TERMINAL_WAIT_S at the latest.

    The log file comes first, because a paused terminal takes no output.
    """
    # The text may quote an argument of the command line that has a byte that is not UTF-8. Python
    # makes of this byte a character that cannot be written to a file. So write the number of the
    # character, e.g. the six letters \udce4.
    text = text.encode(errors="backslashreplace").decode()
    # A traceback may quote an option that is a secret. The log file hides secrets itself, and the
    # terminal does not.
    text = without_secrets(text)
    write_to_log_file(text)

    def to_terminal() -> None:
        with suppress(Exception):
            sys.stdout.flush()  # first, so that earlier lines of the program come before the text
        with suppress(OSError):
            # Do not use sys.stderr here, because the main thread may hold the lock of sys.stderr
            # while it waits for the terminal.
            os.write(2, f"{text}\n".encode())

    call_with_time_limit(to_terminal)


# Longest wait for a terminal, in seconds. A terminal that is not paused takes the text at once, so
# after 1 s (chosen by hand) it counts as paused.
TERMINAL_WAIT_S = 1.0


def call_with_time_limit(write: Callable[[], None]) -> None:
    """Call `write`, and go on after TERMINAL_WAIT_S even if a paused terminal holds it."""
    thread = threading.Thread(target=write, daemon=True, name="last words")
    thread.start()
    thread.join(TERMINAL_WAIT_S)


def write_to_log_file(text: str) -> None:
    """Write an error to the log file, if this rank has one. Nothing goes to the terminal.

    The log has two files (utils/logger.py): lines, and the warnings as JSON for the page of the
    run. The error goes into both.
    """
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
    """Return the path of the log file of this rank, or None if this rank has no log file.

    The guard appends lines of plain text to this file. So the result is train.log, and not
    warnings.jsonl, which is JSON.
    """
    for handler in logging.getLogger().handlers:
        # The ending of LOG_NAME (utils/logger.py), log/train.log.
        if isinstance(handler, logging.FileHandler) and handler.baseFilename.endswith(".log"):
            return handler.baseFilename
    return None


def leave(code: int, store: Store | None) -> NoReturn:
    """End this process with an exit code.

    The steps, in an order that must stay, and what would happen if one were left out:

        take the lock       if two threads signed off, the host of the store would count one rank
                            too many, and end too early
                            (test_a_rank_signs_off_once_though_two_of_its_threads_end_it)
        write_exit_file     torchrun would turn the code into 1
        _sign_off           the store could end with this process, before the other ranks have read
                            in it why the run ends
                            (test_a_rank_that_stops_or_dies_is_named_and_all_ranks_end)
        guard.kill          the guard could take the next wait for a stall, and report it
        outlast_siblings    another rank of this host would report the same error again
        flush               the last printed lines would be lost, because os._exit drops them
        kill_trees          loader processes would run on, because os._exit calls no exit handlers

    code: the exit code.
    store: the store of the run, or None if the store does not answer.
    """
    # The main thread and the watchdog thread may both call `leave`. The first thread takes the lock
    # and never releases it. The first thread ends the process while the second thread still waits
    # for the lock.
    # If the first thread hangs, e.g. in a request to the store, the second one ends the process.
    if not RUN.leaving.acquire(timeout=EXIT_S):
        os._exit(code)
    with suppress(Exception):  # nothing that fails here may keep the process alive
        process.write_exit_file(code)
        if store is not None:
            _sign_off(store)
        # The guard ends a rank that sends no heartbeat. The watchdog thread sends the heartbeats,
        # but not while it runs this function. So end the guard here.
        if RUN.watchdog is not None and RUN.watchdog.guard is not None:
            RUN.watchdog.guard.kill()
        # If this rank has reported for all ranks of its host, it waits until they have ended. It
        # finds these ranks by the names of their memory files (stacks.py). Only ranks with a
        # watchdog have such a file.
        mark = None if RUN.watchdog is None else run_mark()
        outlast_siblings(mark)

    def flush() -> None:
        with suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()

    call_with_time_limit(flush)  # with a paused terminal, `flush` would never return
    # When a loader process ends, torch raises an error in the main thread. So kill the loader
    # processes last, so that the main thread has no time to print this error.
    process.kill_trees(process.descendants_of(os.getpid()))
    os._exit(code)


def _sign_off(store: Store) -> None:
    """Note in the store that this rank leaves. If the store may end with it, wait for the others.

    The keys: left/<rank> of each rank that has signed off, and `left`, the number of these ranks.
    """
    store.set(f"left/{RUN.launch.rank}", "1")
    signed_off_count = store.add("left", 1)  # adds 1, and returns the new number
    # If rank 0 has opened the store, the store ends with rank 0. If an agent of torchrun has opened
    # it, the agent ends when a rank fails, so the store may end with any rank.
    may_end_store = RUN.launch.rank == 0 or RUN.launch.is_store_of_agent
    if may_end_store:
        _wait_for_others(store, signed_off_count)


def _wait_for_others(store: Store, signed_off_count: int) -> None:
    """Wait until each other rank has signed off or is gone, but at most SIGN_OFF_WAIT_S.

    A rank that was killed never signs off, but its process id shows that it is gone. E.g. if rank 2
    of 4 was killed, the wait ends as soon as the other 3 ranks have signed off and rank 2 is known
    to be gone.

    signed_off_count: number of ranks that have signed off so far.
    """
    deadline = time.monotonic() + SIGN_OFF_WAIT_S
    # The last beat of each rank has its process id. Before the ranks have met, some ranks have no
    # beat, and reading it would hang. Then `states` stays empty. So this rank does not know whose
    # process is gone, and waits until all ranks have signed off.
    states = {}
    with suppress(ForeignValueError):
        if store.check([MET]):
            states = read_states(store, RUN.launch.world_size)
    known_as_gone: set[int] = set()  # ranks whose process is gone
    gone_without_sign = 0  # number of these ranks that have not signed off
    while time.monotonic() < deadline:
        joined_count = store.add(JOINED, 0)  # adding 0 reads the number of ranks that have joined
        if signed_off_count + gone_without_sign >= joined_count:
            return
        time.sleep(0.02)
        for rank, state in states.items():
            if rank in known_as_gone or not is_gone(state):
                continue
            known_as_gone.add(rank)
            # A rank that signed off before it ended is counted in `signed_off_count` already.
            if not store.check([f"left/{rank}"]):
                gone_without_sign += 1
        signed_off_count = store.add("left", 0)

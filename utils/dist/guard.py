"""Run the guard of a rank: a small process beside the rank, which ends the rank if it hangs.

If C code holds Python's lock (the GIL), no thread of the rank runs, so its own watchdog cannot end
the rank. So the rank sends heartbeats to another process, the guard. If no heartbeat comes for some
time, the guard ends the rank. Other ranks that still run report the hang. If no other rank runs,
e.g. because all ranks hang in the same C code, the guard reports the hang.

The timer of faulthandler could also end a rank. But the timer goes on while the process is
suspended, and its report is only "Timeout (0:00:10)!".

    start_guard    starts the process `python -S -m utils.dist.guard`, called by the rank
    guard          its main function

What must stay: the guard starts with `python -S`, which knows no installed packages. So this module
imports only the standard library, and modules of this project that do the same
(test_a_rank_that_stops_or_dies_is_named_and_all_ranks_end, kind "gil").

Tests: tests/faults/test_stalls.py, tests/dist/test_life.py.
"""

import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from utils import system
from utils.dist.awake_clock import AwakeClock
from utils.dist.claims import first_to_claim, has_ranks
from utils.dist.process import (
    die_with_parent,
    process_parent,
    process_state,
    signals_held,
    write_exit_file,
)
from utils.dist.stacks import dump_stacks
from utils.errors import StallError


class GuardedRank(NamedTuple):
    """What a guard must know of its rank. The command line of the guard has it as a JSON list."""

    number: int  # number of the rank, for the report
    pid: int  # process id of the rank
    limit_s: float  # seconds without a heartbeat after which the guard ends the rank
    stack_file: str  # path of the memory file (memfd) into which the rank writes its stacks
    # How the guard finds the other ranks of this host: each rank keeps a memory file open whose
    # name ends with this text, e.g. "-of-5f0c2a9be81d4477" (`stacks.run_mark`). None if there is no
    # other rank.
    mark: str | None
    log_file: str | None  # path of the log of the run, or None if the rank has none


def start_guard(rank: GuardedRank) -> subprocess.Popen[bytes] | None:
    """Start the guard of this process: another process, which runs `guard`. Returns the guard.

    The caller must write a byte to the stdin of the guard more often than every limit_s seconds, as
    a heartbeat.

    Returns None if the system starts no more processes, or has no /proc. Without /proc a guard
    could not tell a rank that hangs from a rank that is stopped on purpose.

    rank: this process.
    """
    if not system.has_proc():
        return None
    # -S starts Python without installed packages, which the guard does not need. `json.dumps`
    # writes a NamedTuple as a list of its fields, in their order.
    command = [sys.executable, "-S", "-m", "utils.dist.guard", json.dumps(rank)]
    root = Path(__file__).resolve().parents[2]
    # A signal to all processes of the rank, e.g. SIGTERM, must not end the guard before the rank.
    # `signals_held` blocks these signals (GROUP_SIGNALS of process.py) in this process. A new
    # process takes over the blocked signals of its parent, so the guard never gets them.
    # If Popen raises OSError, `suppress` catches the error, and the last line returns None.
    with suppress(OSError), signals_held():
        guard_process = subprocess.Popen(command, cwd=root, stdin=subprocess.PIPE, bufsize=0)
        if guard_process.stdin is not None:
            # A write to a full pipe then raises an error, instead of waiting for the guard.
            os.set_blocking(guard_process.stdin.fileno(), False)
        return guard_process
    return None


# Longest time, in seconds, that a guard takes to write its report. If the terminal is paused, the
# write never returns, and the guard ends after this time. Chosen by hand.
LAST_WORDS_S = 5
# How long, in seconds, the guard waits for the other ranks of this host to end, after it has ended
# its own rank. If all ranks hang in the same C code, their guards end them at nearly the same time.
# Chosen by hand.
OTHERS_END_S = 2.0


def guard(rank: GuardedRank) -> None:
    """Watch a rank until it ends, and end it if it sends no heartbeat for rank.limit_s seconds.

    This is the main function of the guard process, whose parent is the rank. If a user stops the
    rank by a signal (Ctrl-Z), the rank sends no heartbeat. The guard does not end such a rank,
    because the user will let the rank go on, or the other ranks end it.

    The order of the steps must stay:

        1  wait until the rank is silent                    if the rank ends before: return
        2  read the stacks of the rank, while it lives
        3  end the rank                                     the guard lives LAST_WORDS_S longer
        4  ask whether another rank or its guard reports    if so: return
        5  report                                           comes last, because a paused terminal
                                                            may hold the write forever
    """
    silent_s = _wait_for_silence(rank.pid, rank.limit_s)
    if silent_s is None:
        return
    launcher = process_parent(rank.pid)  # read it now, because an ended process has no parent
    stacks = ""
    with suppress(OSError), open(rank.stack_file, "a+b", buffering=0) as file:
        stacks = dump_stacks(file, rank.pid)
    _end_rank(rank.pid)
    # Without a mark there is no other rank, so this guard reports.
    if rank.mark is not None and _others_report(launcher, rank.pid, rank.mark):
        return
    _report(rank, silent_s, stacks)
    if rank.mark is not None:  # there are other ranks
        # `_others_report` has opened a socket, which tells the other guards that this guard reports
        # (`first_to_claim`). The socket closes when this process ends. Leave the other guards time
        # to find the socket, because they end their ranks at nearly the same time. The 1 s is
        # chosen by hand.
        time.sleep(1.0)


def _end_rank(pid: int) -> None:
    """End the rank of this guard. From now on, the guard itself ends within LAST_WORDS_S."""
    # `die_with_parent` has asked for a signal when the rank ends. 0 asks for no signal, so that the
    # guard outlives the rank.
    system.ask_for_signal_at_end_of_parent(number=0)
    signal.alarm(LAST_WORDS_S)  # after this time, the system ends the guard
    # scripts/torchrun_quiet.py reads the exit code from this file. A killed rank cannot write it.
    write_exit_file(StallError.exit_code)
    os.kill(pid, signal.SIGKILL)


def _report(rank: GuardedRank, silent_s: float, stacks: str) -> None:
    """Report that the rank of this guard was silent.

    silent_s: seconds for which the rank has sent no heartbeat.
    stacks: the stacks of the rank, or "" if they could not be read.
    """
    error = StallError(
        what=f"rank {rank.number} is SILENT: its threads did not run for {silent_s:.1f} s: C code "
        "holds Python's lock",
        where=f"host {socket.gethostname()}, pid {rank.pid}",
        expected="a beat each half second, and no silence longer than watchdog.stall_s",
        do="see its stack below",
    )
    words = f"{error}\n\nStacks of rank {rank.number}:\n{stacks}\n"
    _write_last_words(words.encode(), rank.log_file)


def _others_report(launcher: int, pid: int, mark: str) -> bool:
    """Return whether another rank of this host, or its guard, reports the stall.

    A rank that still runs reports the stall, or has reported it. If no rank is left, all of them
    hung, and their guards ended them. Then the guard that claims the report first reports
    (test_ranks_that_all_hang_in_c_code_are_reported_once).

    launcher: process id of the parent of the ranks.
    pid: process id of the rank of this guard.
    mark: text at the end of the names of the shared-memory files of this run. Only the ranks of
    this run have opened such files.
    """
    deadline = time.monotonic() + OTHERS_END_S
    while has_ranks(launcher, pid, mark):
        if time.monotonic() > deadline:
            return True  # a rank has not ended, so it runs, and reports the stall itself
        time.sleep(0.05)  # between two looks at the processes; chosen by hand
    return not first_to_claim(f"silent {mark}")


def _wait_for_silence(pid: int, limit_s: float) -> float | None:
    """Wait until the rank has sent no heartbeat for limit_s seconds. Returns these seconds.

    Returns None if the rank ends before. Each byte on stdin is a heartbeat.

    pid: process id of the rank, which is the parent of this process.
    limit_s: seconds without a heartbeat that end the wait.
    """
    # On this clock, a pause of this process (a suspension, or a busy machine) counts as at most
    # slice_s, which is at most a third of the limit. E.g. with limit_s = 64, a suspension of an
    # hour counts as 1 s. So one pause does not end a rank.
    clock = AwakeClock(slice_s=min(1.0, limit_s / 3))
    heard_at = 0.0  # time of the last heartbeat, on `clock`
    while True:
        if os.getppid() != pid:  # the rank has ended, so the system gave the guard another parent
            return None
        # Wait for a byte on stdin (file 0), but at most half a slice, so that the clock is asked
        # often enough.
        readable, _, _ = select.select([0], [], [], clock.slice_s / 2)
        is_heard = bool(readable)
        if is_heard and not os.read(0, 4096):  # end of the file: the rank has closed the pipe
            return None
        now = clock.now()
        if is_heard:
            heard_at = now
        elif process_state(pid) in ("T", "t"):  # stopped, by a signal or a debugger
            heard_at = now
        elif now - heard_at > limit_s:
            return now - heard_at


def _write_last_words(words: bytes, log_file: str | None) -> None:
    """Write the report of the guard into the log, and then to the terminal.

    A log or terminal that cannot be written is left out.

    log_file: path of the log of the run, or None if the rank has none.
    """
    if log_file is not None:
        with suppress(OSError):
            # O_NOFOLLOW: if somebody has put a link in place of the log, do not write to its
            # target.
            descriptor = os.open(log_file, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW)
            os.write(descriptor, words)
    with suppress(OSError):
        os.write(2, words)  # 2 is stderr


if __name__ == "__main__":
    die_with_parent()
    # The argument is the list that `start_guard` wrote: the fields of GuardedRank, in their order.
    guard(GuardedRank(*json.loads(sys.argv[1])))

"""Read the stacks of a process of this host, or end the process, if it is a rank of this run.

The process id of a rank comes over the network and may be false. So each rank opens a memory file
whose name tells the run and the rank (`stack_file_name`). If `stack_file_of` finds this file among
the open files of a process, the process is a rank of this run. A process without this file gets no
signal (test_a_forged_beat_harms_no_file_or_process_that_it_names).

The stacks go into this memory file, so nothing is left on the disk. faulthandler writes them, even
if no thread of the rank can run Python code.

What must stay: the guard (utils/dist/guard.py) uses this module without installed packages. So this
module imports only the standard library, and modules of this project that do the same. Free to
change: the time that a process gets to write its stacks.

Tests: tests/faults/test_stalls.py, tests/dist/test_trust.py.
"""

import faulthandler
import fcntl
import hashlib
import os
import re
import signal
import time
from contextlib import suppress
from io import FileIO
from pathlib import Path
from typing import Any

from utils.dist.process import descendants_of, kill_trees
from utils.dist.state import RUN


def stack_file_name(rank: int) -> str:
    """Return the name of the memory file into which a rank of this run writes its stacks.

    E.g. "spikevrt-rank-3-of-5f0c2a9be81d4477". A memory file exists in memory only, not on a disk.
    """
    return f"spikevrt-rank-{rank}{run_mark()}"


def run_mark() -> str:
    """Return the end of the names of the memory files of this run, e.g. "-of-5f0c2a9be81d4477".

    The text is the same on all ranks of the run, and different in other runs. It depends on the job
    key, so only a process with the key can compute the text.
    """
    launch = RUN.launch
    run = f"{launch.master_addr}:{launch.master_port} {launch.world_size} {launch.mode}"
    digest = hashlib.sha256(run.encode() + RUN.job_key).hexdigest()
    return f"-of-{digest[:16]}"


def stack_file_of(pid: int, name: str) -> FileIO | None:
    """Open the memory file `name` of the process `pid`, or return None if there is no such file.

    Only the rank itself and its loader processes have a memory file of this name. So this function
    returns None if the process id is false:

        a process of another user            it belongs to another user (st_uid)
        another program of this user         it has no file of this name
        a program with a file of this name   the file is on a disk, and not in memory (F_GET_SEALS)

    pid: a process id that came from the network and may be false. This function only reads, so
        nothing happens to a wrong process.
    name: name of the memory file. It must not come from the network.
    """
    link_target = f"/memfd:{name} (deleted)"
    folder = f"/proc/{pid}/fd"
    try:
        if os.stat(f"/proc/{pid}").st_uid != os.getuid():
            return None
        entries = os.listdir(folder)
    except OSError:  # there is no such process, or another user has it
        return None
    for entry in entries:
        # An OSError means that the process has closed the file meanwhile, or that the file is not
        # in memory (see below).
        with suppress(OSError):
            if os.readlink(f"{folder}/{entry}") == link_target:
                # The caller closes the file. "a+b": each write goes to the end of the file, because
                # the rank and its loader processes write into the same file.
                file = open(f"{folder}/{entry}", "a+b", buffering=0)  # noqa: SIM115
                # A file on a disk can have this name, too. For such a file, the request of its
                # seals raises OSError, because only a file in memory has seals.
                fcntl.fcntl(file, fcntl.F_GET_SEALS)
                return file
    return None


def stacks_of(pid: int, name: str) -> str:
    """Return the stacks of the process `pid`, or "" if the process has no memory file `name`."""
    file = stack_file_of(pid, name)
    if file is None:
        return ""
    with suppress(OSError), file:
        return dump_stacks(file, pid)
    return ""


def kill_rank(pid: int, name: str) -> None:
    """End the process `pid` and its descendants, if the process has the memory file `name`."""
    file = stack_file_of(pid, name)
    if file is not None:
        file.close()
        kill_trees([pid])


def dump_stacks(file: Any, pid: int | None = None) -> str:
    """Write the Python stacks of a process and of its loader processes into `file`.

    Returns the text of the file. faulthandler writes the stacks, even if no thread can run Python
    code. A process can write only its own stacks. So this function sends SIGUSR2 to another
    process, which then writes its stacks. Ranks and their loader processes have a handler for this
    signal, which `Watchdog` (watchdog_thread.py) installs.

    file: the memory file of the rank, opened without a buffer. The rank and its loader processes
        have the same file open.
    pid: process id of the rank, or None for this process.
    """
    file.truncate(0)
    if pid is None:
        faulthandler.dump_traceback(file, all_threads=True)
        _ask_for_stacks(file, descendants_of(os.getpid()), has_titles=True)
    else:
        # Find the loader processes first, because they have no known parent if the rank ends.
        descendants = descendants_of(pid)
        _ask_for_stacks(file, [pid], has_titles=False)
        _ask_for_stacks(file, descendants, has_titles=True)
    file.seek(0)
    return file.read().decode(errors="replace")


def _ask_for_stacks(file: Any, pids: list[int], has_titles: bool) -> None:
    """Let processes write their stacks into `file`, one after the other.

    has_titles: whether a line "child process <pid>:" goes before the stacks of each process.
    """
    for pid in pids:
        title = f"\nchild process {pid}:\n" if has_titles else ""
        with suppress(OSError):  # the process has ended
            _ask_process_for_stacks(file, pid, title)


def _ask_process_for_stacks(file: Any, pid: int, title: str) -> None:
    """Let one process write its stacks into `file`, below a title.

    title: written before the stacks, with the ends of its lines. "" for no title.

    Raises OSError if the process has ended.
    """
    status = Path(f"/proc/{pid}/status").read_text()
    if "State:\tT" in status:
        reason = (
            "(the process is stopped by a signal, so it has no stack; kill -CONT lets it go on)"
        )
        file.write(f"{title}{reason}\n".encode())
    # SIGUSR2 ends a process that has no handler for it, so such a process gets no signal.
    elif _handles(status, signal.SIGUSR2):
        file.write(title.encode())
        size_before = os.fstat(file.fileno()).st_size
        os.kill(pid, signal.SIGUSR2)
        _wait_for_growth(file, size_before)


def _wait_for_growth(file: Any, size_before: int) -> None:
    """Wait until another process has written into `file`, half a second at most.

    A process writes its stacks at once, unless it waits in the system, e.g. for a disk. The seconds
    are chosen by hand.

    size_before: size of the file, in bytes, before the process was asked.
    """
    deadline = time.monotonic() + 0.5
    while time.monotonic() < deadline:
        size = os.fstat(file.fileno()).st_size
        if size != size_before:
            break
        time.sleep(0.02)
    # The process has written its first line. Leave time for the other lines.
    time.sleep(0.05)


def _handles(status: str, number: signal.Signals) -> bool:
    """Return whether a process handles a signal.

    status: the text of /proc/<pid>/status of the process.
    """
    # E.g. "SigCgt: 0000000000000a00". The number is hexadecimal, and has one bit for each handled
    # signal. The lowest bit is signal 1.
    line = re.search(r"SigCgt:\s*(\w+)", status)
    if line is None:
        return False
    handled_signals = int(line[1], 16)
    # Shift the bit of this signal to the lowest place. "& 1" keeps only this bit. E.g. 0xa00 is
    # binary 1010 0000 0000. Its bits 9 and 11, counted from 0, are set, for the signals 10 and 12.
    bit = (handled_signals >> (number - 1)) & 1
    return bit == 1

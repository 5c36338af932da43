"""A small process beside each rank, which ends it where no Python code of its own can; and the stacks of processes.

While C code holds Python's lock (the GIL), no thread of the rank runs. faulthandler's timer needs no lock, but it counts
the time in which the process is suspended, and says "Timeout (0:00:10)!".
"""

from __future__ import annotations

import faulthandler
import os
import select
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from utils.dist.process import AwakeClock, children_of, die_with_parent, process_state, signals_held, write_exit_file
from utils.errors import StallError


def start_guard(rank: int, limit_s: float, stack_file: str, is_alone: bool) -> subprocess.Popen | None:
    """The guard of this process; write to its stdin at each beat. is_alone: no other rank reports the stall.

    None where the system starts no more processes. It keeps the signals of GROUP_SIGNALS blocked, as it starts.
    """
    arguments = map(str, (rank, os.getpid(), limit_s, stack_file, int(is_alone)))
    root = Path(__file__).resolve().parents[2]
    with suppress(OSError), signals_held():
        process = subprocess.Popen(
            [sys.executable, "-S", "-m", "utils.dist.guard", *arguments], cwd=root, stdin=subprocess.PIPE, bufsize=0
        )
        os.set_blocking(process.stdin.fileno(), False)  # no beat waits for the guard
        return process
    return None


def guard(rank: int, pid: int, limit_s: float, stack_file: str, is_alone: bool) -> None:
    """Until the rank ends. A rank that is stopped by a signal is left to the other ranks, or to who stopped it."""
    clock, heard = AwakeClock(slice_s=min(1.0, limit_s / 3)), 0.0
    while os.getppid() == pid:
        is_ready = bool(select.select([0], [], [], clock.slice_s / 2)[0])
        if is_ready and not os.read(0, 4096):
            return
        now = clock.now()
        if is_ready or process_state(pid) in ("T", "t"):
            heard = now
        elif now - heard > limit_s:
            break
    else:
        return
    if is_alone:
        error = StallError(
            f"rank {rank} is SILENT: its threads did not run for {now - heard:.1f} s: C code holds Python's lock",
            f"host {socket.gethostname()}, pid {pid}", "a beat each half second (option watchdog.stall_s)",
            "see its stack below",
        )  # fmt: skip
        with suppress(OSError), open(stack_file, "a+b", buffering=0) as file:
            os.write(2, f"{error}\n\nStacks of rank {rank}:\n{dump_stacks(file, pid)}\n".encode())
    write_exit_file(StallError.exit_code)
    os.kill(pid, signal.SIGKILL)


def open_stack_file() -> Any:
    """In memory, so that nothing is left on the disk; open it by its name."""
    return open(f"/proc/{os.getpid()}/fd/{os.memfd_create('spikevrt-stack')}", "a+b", buffering=0)


def dump_stacks(file: Any, pid: int | None = None) -> str:
    """Python stacks of this process (pid None) or of one that handles SIGUSR2 into `file`, and of its loader processes.

    They are faulthandler's, so they come whatever the main threads do.
    """
    file.truncate(0)
    if pid is None:
        faulthandler.dump_traceback(file, all_threads=True)
    else:
        _signal_dump(pid, file)
    for child in children_of(pid or os.getpid()):
        _signal_dump(child, file, f"\nchild process {child}:\n")
    file.seek(0)
    return file.read().decode(errors="replace")


def _signal_dump(pid: int, file: Any, title: str = "") -> None:
    """Ask `pid` for its stacks if it handles SIGUSR2, which would kill it otherwise."""
    state = process_state(pid)
    with suppress(OSError, StopIteration):
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        caught = int(next(line for line in lines if line.startswith("SigCgt")).split()[1], 16)
        if state == "T":
            file.write(title.encode() + b"(the process is stopped by a signal, so it has no stack; kill -CONT lets it go on)\n")
        elif caught >> (signal.SIGUSR2 - 1) & 1:
            file.write(title.encode())
            before = os.fstat(file.fileno()).st_size
            os.kill(pid, signal.SIGUSR2)
            deadline = time.monotonic() + 0.5
            while os.fstat(file.fileno()).st_size == before and time.monotonic() < deadline:
                time.sleep(0.02)
            time.sleep(0.05)


if __name__ == "__main__":
    die_with_parent()
    guard(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), sys.argv[4], sys.argv[5] == "1")

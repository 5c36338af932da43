"""Python stacks of processes on this host, whatever their main threads do: faulthandler's, asked for by SIGUSR2."""

from __future__ import annotations

import faulthandler
import os
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from utils.dist.process import children_of, process_state


def dump_stacks(file: Any, pid: int | None = None) -> str:
    """Stacks of this process (pid None) or of one that handles SIGUSR2 into `file`, and of its loader processes."""
    file.truncate(0)
    if pid is None:
        faulthandler.dump_traceback(file, all_threads=True)
    else:
        _signal_dump(pid, file)
    for child in children_of(pid or os.getpid()):
        _signal_dump(child, file, f"\nchild process {child}:\n")
    file.seek(0)
    return file.read().decode(errors="replace")


def open_stack_file() -> Any:
    """In memory, so that nothing is left on the disk; open it by its name."""
    return open(f"/proc/{os.getpid()}/fd/{os.memfd_create('spikevrt-stack')}", "a+b", buffering=0)


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

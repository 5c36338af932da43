"""What Linux alone has, and what takes its place where it is missing: on macOS, or without /proc.

One process needs none of it. Several ranks do: they look at one another through /proc, so that a
rank that has died or stands still is found and named.
"""

import ctypes
import errno
import fcntl
import os
import resource
import sys
import tempfile
from contextlib import suppress
from io import FileIO
from pathlib import Path

from utils.errors import DistError

PROC = Path("/proc")
PR_SET_PDEATHSIG = 1  # linux/prctl.h


def has_proc() -> bool:
    """Whether the system shows its processes in /proc."""
    return (PROC / "self/stat").exists()


def refuse_ranks_without_proc() -> None:
    """Raise DistError where ranks could not look at one another."""
    if has_proc():
        return
    raise DistError(
        what="several ranks on a system that does not show its processes in /proc",
        where=f"the launch, on {sys.platform}",
        expected="Linux (on Windows: WSL), or one process",
        do="train in one process: ./launch_train.sh 1 FILE",
    )


def cores() -> tuple[int, ...]:
    """Return the numbers of the cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


def peak_process_gb() -> float:
    """Return the most memory that this process had so far, in GB (1e9 bytes)."""
    # Not ru_maxrss, where there is a choice: it counts the process that started this one as well.
    with suppress(OSError), open(PROC / "self/status", encoding="ascii") as status:
        for line in status:
            if line.startswith("VmHWM"):
                return int(line.split()[1]) * 1024 / 1e9
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e9


def ask_for_signal_at_end_of_parent(number: int) -> None:
    """Let the system send this signal to this process as soon as its parent is gone; 0: none."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number)


def is_alive(pid: int) -> bool:
    """Whether there is such a process, without /proc."""
    try:
        os.kill(pid, 0)
    except OSError as e:
        return e.errno == errno.EPERM
    return True


def file_in_memory(name: str) -> tuple[FileIO, str]:
    """Open a file for appending that leaves nothing on the disk; also return a path to it.

    The system shows `name` to other processes of the same user. Where it has no such files, the
    file lies in the folder for temporary files, without a name, and its path is "".
    """
    if not hasattr(os, "memfd_create"):
        file = tempfile.TemporaryFile("a+b", buffering=0)  # noqa: SIM115
        return file, ""
    descriptor = os.memfd_create(name)
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | os.O_APPEND)
    return FileIO(descriptor, "a+"), f"/proc/{os.getpid()}/fd/{descriptor}"


def path_of(descriptor: int) -> Path | None:
    """Return under which path an open file is now; None if the system does not say."""
    with suppress(OSError):
        return Path(os.readlink(PROC / f"self/fd/{descriptor}"))
    return None

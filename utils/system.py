"""Functions of the system that only Linux has, with substitutes for macOS and hosts without /proc.

A run of one process works with the substitutes. Several ranks (processes of one run) need Linux.
They read the state of one another in /proc, so that an error can name a rank that has died or
hangs.

Free to change: how a system is asked. A branch for another system may be added.

Tests: tests/parts/utils/test_system.py, and tests/parts/utils/test_kept_memory.py for
`keep_freed_memory`
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
PR_SET_PDEATHSIG = 1  # number of the request for a signal at the end of the parent (linux/prctl.h)
# The numbers of two settings in malloc.h of glibc, the C library of most Linux systems.
M_TRIM_THRESHOLD = -1
M_MMAP_THRESHOLD = -3


def has_proc() -> bool:
    """Return whether the system shows its processes in /proc."""
    return (PROC / "self/stat").exists()


def refuse_ranks_without_proc() -> None:
    """Raise DistError on a system without /proc, in which ranks read the state of one another."""
    if has_proc():
        return
    raise DistError(
        what="several ranks on a system that does not show its processes in /proc",
        where=f"the launch, on {sys.platform}",
        expected="Linux (on Windows: WSL), or one process",
        do="train in one process: ./launch_train.sh 1 FILE",
    )


def cores() -> tuple[int, ...]:
    """Return the numbers of the processor cores that this process may use, e.g. (0, 1, 6, 7)."""
    # On Linux, a container or a scheduler may give only some cores to a process.
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


def peak_process_gb() -> float:
    """Return the most memory that this process had so far, in GB (1e9 bytes)."""
    # On Linux, read the line "VmHWM:  123456 kB". ru_maxrss below is used only if there is no such
    # line. On Linux, ru_maxrss of a new process begins with the peak of its parent.
    with suppress(OSError), open(PROC / "self/status", encoding="ascii") as status:
        for line in status:
            if line.startswith("VmHWM"):
                return int(line.split()[1]) * 1024 / 1e9
    # ru_maxrss is in bytes on macOS, and in units of 1024 bytes on other systems.
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e9


def ask_for_signal_at_end_of_parent(number: int) -> None:
    """Ask the system to send a signal to this process when its parent process ends.

    So this process does not outlive a parent that was killed. Only Linux knows this request. On
    other systems this function does nothing.

    number: number of the signal, e.g. signal.SIGKILL. 0 takes an earlier request back.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number)


# Size of the largest array whose memory is kept, in bytes. `keep_freed_memory` sets one size after
# the other, and glibc uses the last size that it accepts:
#
#     2**25 (32 MiB)   set first: the result with an old glibc, which ignores the second size
#     2**26 (64 MiB)   set second: the result with a new glibc
LARGEST_KEPT_ARRAYS = (2**25, 2**26)
# Largest amount of freed memory that is kept, in bytes: 1 GiB. Chosen by hand.
MOST_KEPT_MEMORY = 2**30
# Freed memory above this number of bytes, 268 MB, is given back by `give_back_much_freed_memory`.
# With the network weights/motion.pth, a frame of 192 x 192 pixels leaves 75 MB at most, and a frame
# of 1280 x 720 leaves 0.8 GB or more.
MUCH_FREED_MEMORY = 2**28


def keep_freed_memory() -> None:
    """Let this process keep the memory of deleted arrays, and use it again for new arrays.

    By default, glibc gives the memory of each large array back to the system when the array is
    deleted. For the next array, the system has to find and clear each page again, which takes time.
    Without glibc this function does nothing.
    """
    if sys.platform != "linux":
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt:
        # Up to this amount, freed memory stays with the process.
        mallopt(M_TRIM_THRESHOLD, MOST_KEPT_MEMORY)
        # An array above this size gets memory of its own (mmap). This memory is given back when the
        # array is deleted.
        for size in LARGEST_KEPT_ARRAYS:
            mallopt(M_MMAP_THRESHOLD, size)


class _FreedMemory(ctypes.Structure):
    """What `mallinfo2` of glibc returns: ten sizes in bytes. `fordblks` is the freed memory.

    All ten must stay in this order, because it is the order of the C struct (malloc.h).
    """

    _fields_ = (
        ("arena", ctypes.c_size_t),
        ("ordblks", ctypes.c_size_t),
        ("smblks", ctypes.c_size_t),
        ("hblks", ctypes.c_size_t),
        ("hblkhd", ctypes.c_size_t),
        ("usmblks", ctypes.c_size_t),
        ("fsmblks", ctypes.c_size_t),
        ("uordblks", ctypes.c_size_t),
        ("fordblks", ctypes.c_size_t),
        ("keepcost", ctypes.c_size_t),
    )


def give_back_much_freed_memory() -> None:
    """Give the kept memory of deleted arrays back, if it is more than MUCH_FREED_MEMORY.

    The kept memory lies in pieces between the arrays that are in use. An array that is larger than
    every piece needs new memory. E.g. 20 kept pieces of 40 MB cannot hold an array of 50 MB. So a
    process with large frames would take up to a gigabyte more than it needs. With small frames the
    kept memory is small. Then it stays, because it saves time.

    Only glibc has the functions `mallinfo2` (since 2.33) and `malloc_trim`. Without them, this
    function does nothing.
    """
    if sys.platform != "linux":
        return
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "mallinfo2") or not hasattr(libc, "malloc_trim"):
        return
    libc.mallinfo2.restype = _FreedMemory
    if libc.mallinfo2().fordblks > MUCH_FREED_MEMORY:
        libc.malloc_trim(0)


def is_alive(pid: int) -> bool:
    """Return whether there is a process with this number. This needs no /proc."""
    # Signal 0 sends nothing, but the system checks whether it could be sent. The error EPERM says
    # that the process is there, and belongs to another user.
    try:
        os.kill(pid, 0)
    except OSError as e:
        return e.errno == errno.EPERM
    return True


def file_in_memory(name: str) -> tuple[FileIO, str]:
    """Open a file for appending. The file disappears when this process ends.

    Returns the open file and a path to the file. On Linux the file is in memory. Other processes of
    the same user can open the path while this process lives. The path is a link to
    "/memfd:<name> (deleted)". On other systems the file is a temporary file without a name, and the
    path is "".

    name: what the file is for. `stacks.stack_file_of` finds the file of a rank by this name.
    """
    if not hasattr(os, "memfd_create"):
        file = tempfile.TemporaryFile("a+b", buffering=0)  # noqa: SIM115
        return file, ""
    # With O_APPEND, several processes may write, and each write goes to the end of the file.
    descriptor = os.memfd_create(name)
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | os.O_APPEND)
    return FileIO(descriptor, "a+"), f"/proc/{os.getpid()}/fd/{descriptor}"


def path_of(descriptor: int) -> Path | None:
    """Return the path that an open file has now, also if the file was moved.

    Returns None if the system does not say.
    """
    with suppress(OSError):
        return Path(os.readlink(PROC / f"self/fd/{descriptor}"))
    return None

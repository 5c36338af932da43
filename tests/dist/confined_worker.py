"""Runs a worker of the tests in a process that has less than other processes of this machine.

    confined_worker.py LIMIT SCRIPT ARGUMENTS

    LIMIT                  what is different in the process
    no_reserved_ports      it lacks the right of root to open a port that Linux reserves
    small_shared_memory    /dev/shm has only 48 kB
    own_process_ids        process ids begin at 1, as in a container
    no_proc                /proc has only the file cpuinfo (tests/helpers/no_proc.py)
    no_fork                loader processes are started by "spawn" instead of "fork", as on macOS

SCRIPT may be this script again, with a second limit.

Commands like setpriv and unshare could set the same limits. But with them the worker would be a new
Python that imports torch, and not a fork of tests/dist/fork_server.py.
"""

import ctypes
import multiprocessing
import os
import runpy
import struct
import sys
from collections.abc import Callable
from pathlib import Path

LIBC = ctypes.CDLL(None, use_errno=True)

# Numbers of Linux, from linux/sched.h, linux/mount.h and linux/capability.h.
CLONE_NEWNS = 0x20000  # new mounts
CLONE_NEWPID = 0x20000000  # new process ids
MS_REC = 0x4000
MS_PRIVATE = 0x40000
CAPABILITY_VERSION = 0x20080522
CAP_NET_BIND_SERVICE = 10
# A process has three sets of rights ("capabilities"): effective, permitted and inheritable ones. A
# set has 64 bits. capget and capset exchange the sets as six words of 32 bits:
#
#     word    0          1          2            3          4          5
#     set     effective  permitted  inheritable  effective  permitted  inheritable
#     bits    0 to 31    0 to 31    0 to 31      32 to 63   32 to 63   32 to 63
CAPABILITIES = "=6I"


def call(function: Callable[..., int], *arguments: object) -> None:
    """Call a function of C, which returns -1 if it fails. Raises OSError."""
    if function(*arguments) == -1:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def no_reserved_ports() -> None:
    """Give up the right to open a reserved port. Only root has this right."""
    header = struct.pack("=Ii", CAPABILITY_VERSION, 0)  # 0: this process
    data = ctypes.create_string_buffer(struct.calcsize(CAPABILITIES))
    call(LIBC.capget, header, data)  # fills data with the six words
    words = list(struct.unpack(CAPABILITIES, data.raw))
    # Clear the bit of this right in each of the three sets. The right has bit 10, so its words are
    # 0, 1 and 2.
    for lower_word in range(3):
        words[lower_word] &= ~(1 << CAP_NET_BIND_SERVICE)
    call(LIBC.capset, header, struct.pack(CAPABILITIES, *words))


def own_mounts(flags: int = 0) -> None:
    """Separate this process from the mounts of the machine.

    flags: other namespaces that this process also gets anew, e.g. CLONE_NEWPID.
    """
    call(LIBC.unshare, CLONE_NEWNS | flags)
    # Without this call, a later mount would be seen outside of this process, too.
    call(LIBC.mount, b"none", b"/", None, MS_REC | MS_PRIVATE, None)


def small_shared_memory() -> None:
    """Mount a /dev/shm of 48 kB, less than a sample of the tests needs."""
    own_mounts()
    call(LIBC.mount, b"tmpfs", b"/dev/shm", b"tmpfs", 0, b"size=48k")


def own_process_ids() -> None:
    """Continue in a new namespace, in which process ids begin at 1.

    The worker of rank 0 gets an id above 40, because 40 other processes come before it. The worker
    of another rank gets a small id. So if rank 1 asks its own namespace for the id of rank 0, e.g.
    42, it finds no process. The tests check that rank 1 does not take rank 0 for dead then.
    """
    own_mounts(CLONE_NEWPID)
    # unshare does not move this process itself: its first child gets the id 1 of the namespace.
    continue_in_child()
    # From here on, the process with the id 1 runs. It needs a /proc that shows the new ids.
    call(LIBC.mount, b"proc", b"/proc", b"proc", 0, None)
    if os.environ["RANK"] == "0":
        for _ in range(40):
            other = os.fork()
            if other == 0:
                os._exit(0)
            os.waitpid(other, 0)
    # The namespace ends with the process of the id 1. So this process waits, and the worker runs in
    # a child.
    continue_in_child()


def no_proc() -> None:
    """Cover /proc by an empty file system, and put back only the file cpuinfo."""
    info = Path("/proc/cpuinfo").read_bytes()
    own_mounts()
    call(LIBC.mount, b"none", b"/proc", b"tmpfs", 0, None)
    Path("/proc/cpuinfo").write_bytes(info)


def no_fork() -> None:
    """Let multiprocessing start each process as a new Python."""
    multiprocessing.set_start_method("spawn")


def continue_in_child() -> None:
    """Fork. Only the child returns. The parent waits, and ends with the exit code of the child."""
    child = os.fork()
    if child != 0:
        _, status = os.waitpid(child, 0)
        os._exit(os.waitstatus_to_exitcode(status))


LIMITS = {
    "no_reserved_ports": no_reserved_ports,
    "small_shared_memory": small_shared_memory,
    "own_process_ids": own_process_ids,
    "no_proc": no_proc,
    "no_fork": no_fork,
}


if __name__ == "__main__":
    _, limit, *sys.argv = sys.argv
    LIMITS[limit]()
    runpy.run_path(sys.argv[0], run_name="__main__")

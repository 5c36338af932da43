"""Choose the rank that reports an error, if several ranks of a host fail with the same error.

Each of these ranks claims a name, e.g. the text of the error. Only the first rank gets the name,
and reports (`first_to_claim`). The claim ends with its process. So the first rank waits until the
others have asked and ended (`outlast_siblings`). If the first rank ended earlier, a later rank
would get the name, and report again.

To wait for the other ranks, a rank must find them among all processes of the host. A rank is
recognised by its *memory file*: each rank keeps a file open that exists in memory only, e.g.
"spikevrt-rank-3-of-5f0c2a9be81d4477". The end of this name, the *mark*, is the same on all ranks of
a run (stacks.py).

What must stay: if another user claims the name, we still report. This module imports no installed
packages, because the guard (utils/dist/guard.py) uses it. Free to change: CLAIM_S.

Tests: tests/dist/test_trust.py, tests/faults/test_startup.py
(test_ranks_of_one_launch_report_the_same_error_once).
"""

import errno
import hashlib
import os
import signal
import socket
import struct
import time
from contextlib import suppress

from utils.dist.process import descendants_of, machine

# The claims of this process. A claim is a socket, and lasts as long as the socket is open. So this
# list keeps the sockets.
CLAIMS: list[socket.socket] = []


def first_to_claim(name: str) -> bool:
    """Claim a name on this host. Returns whether this process is the first that claims the name.

    The name is free again when the process ends. So the caller calls `outlast_siblings` before it
    ends.

    A claim is a Unix socket with an abstract address, i.e. an address that is not a file. So a
    claim leaves nothing on the disk.
    """
    claim = socket.socket(socket.AF_UNIX)
    # `machine` goes into the name, because containers of one host may share their addresses.
    text = f"{os.getuid()} {machine()} {name}".encode(errors="replace")
    address = f"\0spikevrt-{hashlib.sha256(text).hexdigest()}"  # \0 makes the address abstract
    try:
        claim.bind(address)
        claim.listen()  # `_is_ours` of the other ranks connects to it
    except OSError as e:
        if e.errno == errno.EADDRINUSE:
            # Another process has this name. If the process belongs to another user, report anyway.
            return not _is_ours(address)
        # If this system allows no claims, every rank reports: too many reports are better than
        # none.
        return True
    CLAIMS.append(claim)
    return True


def _is_ours(address: str) -> bool:
    """Return whether a process of our own user has claimed the address.

    Any user of the host could claim it, and so silence our reports. The system tells which user
    listens at an address (SO_PEERCRED of unix(7)). Test:
    test_a_socket_that_another_user_has_bound_silences_no_report.
    """
    # A process that has just bound the address may not listen yet. So try 20 times, 10 ms apart
    # (chosen by hand). With fewer tries, both ranks could report.
    for _ in range(20):
        with suppress(OSError), socket.socket(socket.AF_UNIX) as other:
            other.settimeout(1.0)
            other.connect(address)
            # Three integers of 4 bytes: process (signed), user and group (unsigned).
            credentials = other.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
            _, user, _ = struct.unpack("iII", credentials)
            return user == os.getuid()
        time.sleep(0.01)
    return False  # nobody answers, so the caller reports


# Longest time, in seconds, that a rank with a claim waits before it ends. Ranks of one start that
# fail with the same error fail within this time, so all of them find the claim. Chosen by hand.
CLAIM_S = 10.0


def outlast_siblings(mark: str | None = None) -> None:
    """If this process has a claim, wait until the other ranks of this host have ended.

    If this process ended first, its claim would be free, and another rank would report the same
    error again. Waits at most CLAIM_S.

    mark: the mark of this run, e.g. "-of-5f0c2a9be81d4477" (`stacks.run_mark`). With it, this waits
        only for ranks of this run, and not for other programs of the same parent. None if the ranks
        have no memory files yet. Then this waits for every process of the same parent that runs
        this Python.
    """
    if not CLAIMS:
        return
    deadline = time.monotonic() + CLAIM_S
    with suppress(ValueError):  # only the main thread may set a signal handler
        # torchrun sends SIGTERM to all ranks as soon as one of them has ended.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while time.monotonic() < deadline:
        if not has_ranks(parent=os.getppid(), without=os.getpid(), mark=mark):
            return
        time.sleep(0.02)


def has_ranks(parent: int, without: int, mark: str | None) -> bool:
    """Return whether a rank that the process `parent` has started is alive.

    The process that calls this function does not count.

    parent: process id of the launcher.
    without: process id of a rank. This rank and its descendants do not count.
    mark: the mark of this run. With None, any process that runs this Python counts as a rank.
    """
    uncounted = {os.getpid(), without, *descendants_of(without)}
    counted = set(descendants_of(parent)) - uncounted
    for pid in counted:
        with suppress(OSError):  # the process has ended meanwhile
            # /proc/<pid>/exe is the program file of a process. Ranks run the same Python as this
            # process.
            is_python = os.path.samefile(f"/proc/{pid}/exe", "/proc/self/exe")
            if is_python and (mark is None or _has_mark(pid, mark)):
                return True
    return False


def _has_mark(pid: int, mark: str) -> bool:
    """Return whether a process has a memory file whose name ends with `mark`."""
    folder = f"/proc/{pid}/fd"
    for entry in os.listdir(folder):
        with suppress(OSError):  # the file was closed meanwhile
            # The system calls a file in memory "/memfd:<name> (deleted)".
            if os.readlink(f"{folder}/{entry}").endswith(f"{mark} (deleted)"):
                return True
    return False

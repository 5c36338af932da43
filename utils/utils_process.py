"""Processes of this host, as /proc shows them (Linux)."""

from __future__ import annotations

import ctypes
import os
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PR_SET_PDEATHSIG = 1  # linux/prctl.h


def process_state(pid: int) -> str | None:
    """The letter of /proc/<pid>/stat (R, S, D, T stopped, Z zombie, ...); None where there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return None


def children_of(pid: int) -> list[int]:
    """All descendants, nearest first."""
    found: list[int] = []
    for tasks in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            for child in map(int, tasks.read_text().split()):
                found += [child, *children_of(child)]
    return found


def kill_tree(pid: int) -> None:
    for process in [*children_of(pid), pid]:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(process, signal.SIGKILL)


# What a launcher, a cluster or a terminal sends to all processes of a rank at once.
GROUP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)


@contextmanager
def signals_held() -> Iterator[None]:
    """These signals wait until the end of the block, and in a child that is forked meanwhile until `leave_group`."""
    signal.pthread_sigmask(signal.SIG_BLOCK, GROUP_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, GROUP_SIGNALS)


def leave_group() -> None:
    """In a child: signals to the parent's process group are for the parent alone, also those that wait already.

    torchrun asks a rank to stop by a signal to its whole group; a loader process that obeys takes the rank down before
    it can save.
    """
    os.setpgid(0, 0)
    for number in GROUP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)  # drops what waits
    signal.pthread_sigmask(signal.SIG_UNBLOCK, GROUP_SIGNALS)
    for number in GROUP_SIGNALS:
        signal.signal(number, signal.SIG_DFL)


def first_to_claim(name: str, window_s: float) -> bool:
    """Whether this process is the first on its host, within window_s, to claim the name: one of many speaks."""
    claim = Path(tempfile.gettempdir()) / f"spikevrt-{name}"
    with suppress(OSError):
        if time.time() - claim.stat().st_mtime > window_s:
            claim.unlink()  # of an earlier run
    try:
        os.close(os.open(claim, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def die_with_parent() -> None:
    """SIGKILL for this process as soon as its parent is gone, so that nobody is left behind after a kill -9."""
    with suppress(OSError, AttributeError):  # not Linux
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)

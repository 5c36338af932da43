"""Processes of this host, as /proc shows them (Linux)."""

from __future__ import annotations

import ctypes
import os
import signal
import tempfile
import time
from contextlib import suppress
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

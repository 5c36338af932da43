"""One run at a time in a folder: a second one would delete the first one's temporary files and mix their logs."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from utils import utils_dist
from utils.errors import OptionError
from utils.files import OTHER_ROOT, writing
from utils.run.experiment import claim

logger = logging.getLogger(__name__)

# A rank that was killed a moment ago may still be ending. The lock of a host that crashed lasts until the file server
# releases it: 90 s by default for NFS.
PATIENCE_S, PATIENCE_WITH_HOSTS_S = 3.0, 180.0


@contextmanager
def only_run_in(folder: Path) -> Iterator[None]:
    """Rank 0 holds <folder>/.lock inside the block; the kernel releases it when rank 0 dies. Collective.

    A record lock: forked loader processes do not inherit it, and NFS passes it to its server, so that it holds between
    hosts as well, unless mounted with `nolock` or `local_lock`. A file system without locks gives a warning.
    Raises OptionError where another process holds it, or where files that no run made are in the way.
    """
    with utils_dist.all_ranks_or_none():
        if utils_dist.is_main_process():
            claim(folder)
        file = _take(folder) if utils_dist.is_main_process() else None
    try:
        yield
    finally:
        if file is not None:
            file.close()


def _take(folder: Path) -> BinaryIO:
    path = folder / ".lock"
    with writing(path, OTHER_ROOT):
        folder.mkdir(parents=True, exist_ok=True)
        file = open(path, "a+b", buffering=0)  # noqa: SIM115 - open until the end of the run
    start, is_told = time.monotonic(), False
    while True:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except OSError as e:
            if e.errno not in (errno.EACCES, errno.EAGAIN):
                logger.warning("%s cannot be locked (%s): start no second run in this folder", path, e.strerror)
                return file
        file.seek(0)
        holder = file.read().decode(errors="replace").strip()
        is_elsewhere = holder.startswith("process ") and f" on {socket.gethostname()}," not in holder
        if is_elsewhere and not is_told:
            is_told = True
            logger.warning("%s is held by %s: waiting up to %.0f s", path, holder, PATIENCE_WITH_HOSTS_S)
        if time.monotonic() - start > (PATIENCE_WITH_HOSTS_S if is_elsewhere else PATIENCE_S):
            raise OptionError(
                "another run is at work in this folder", f"{path}: {holder}",
                "one run in a folder", "wait for it or end it; for a second run set another task name",
            )  # fmt: skip
        time.sleep(0.1)
    with suppress(OSError):  # a full disk is for the first save to report
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}, since {time.ctime()}\n".encode())
    return file

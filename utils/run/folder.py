"""The folder of a run: one run at a time holds it, and notices if somebody moves or removes it."""

import fcntl
import logging
import os
import socket
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from utils import system, utils_dist
from utils.dist.process import process_state
from utils.errors import OptionError
from utils.files import MARK, OTHER_ROOT, claim_run_folder, open_kept, refuse_link, writing
from utils.logger import LOG_NAME, WARNINGS_NAME

logger = logging.getLogger(__name__)

LOCK_NAME = ".lock"
HOLDER = b"process "  # what a lock of ours begins with
# A rank that was killed a moment ago may still be ending.
PATIENCE_S = 3.0
# The lock of a host that crashed lasts until the file server releases it: 90 s by default for NFS.
PATIENCE_WITH_HOSTS_S = 180.0


class FolderMovedError(OptionError):
    """The folder of the run is no longer where the run found it.

    now: where the folder is, or None if it is nowhere.
    """

    def __init__(self, folder: Path, now: Path | None, saved: Path | None = None) -> None:
        """saved: the checkpoint that the run saved there before it ends."""
        self.now = now
        if now is None:
            what = "the folder of the run was removed, and made anew by somebody else"
            do = "set another task name"
        else:
            what = f"the folder of the run was moved to {now} while the run was at work"
            do = f"move {now} back, then start the same command again"
        if saved is not None:
            do += f"; it resumes from {saved.name}"
        super().__init__(what, str(folder), "the folder stays in its place until the run ends", do)


class RunFolder:
    """The folder of a run, held by a lock on <folder>/.lock. Rank 0 only.

    The kernel releases the lock when rank 0 dies. It is a record lock: forked loader processes do
    not inherit it, and NFS passes it to its server, so that it holds between hosts as well, unless
    mounted with `nolock` or `local_lock`. A file system without locks gives a warning.
    """

    def __init__(self, path: Path) -> None:
        """Take the lock. Raises OptionError if another run holds it, DataError if it is a link."""
        self.path = path
        self.lock = _take_lock(path / LOCK_NAME)

    def check(self) -> None:
        """Check that `path` is still the folder that this run holds.

        A removed lock is taken again. Raises FolderMovedError if the folder is elsewhere or another
        one has its name, OptionError if another run holds the lock meanwhile.
        """
        own = os.fstat(self.lock.fileno())
        lock = self.path / LOCK_NAME
        if _is_same(lock, own):
            return
        # The kernel knows under which name an open file is now.
        path = system.path_of(self.lock.fileno())
        now = None if path is None else path.parent
        if now is not None and _is_same(now / LOCK_NAME, own) and now != self.path.resolve():
            raise FolderMovedError(self.path, now)
        if lock.exists():
            raise FolderMovedError(self.path, None)
        with writing(self.path, OTHER_ROOT):
            self.path.mkdir(parents=True, exist_ok=True)
            (self.path / MARK).touch()
        self.lock.close()
        self.lock = _take_lock(lock)
        logger.warning("%s was removed while the run was at work: the run has made it again", lock)


@contextmanager
def only_run_in(
    folder: Path, names: Sequence[str], appended: Sequence[str]
) -> Generator[RunFolder | None]:
    """Mark the folder of the run, and hold it inside the block. Collective.

    A second run there would delete the first one's temporary files and mix their logs.
    names: patterns of what a run writes there. appended: names of files that grow.
    Yields the held folder on rank 0, None elsewhere. Raises OptionError if another process holds
    it, or if files that no run made have the names of ours; DataError if one of ours is a link.
    """
    held = None
    with utils_dist.all_ranks_or_none():
        if utils_dist.is_main_process():
            # Runs of former versions left no mark, but sidecars. Those of other programs have
            # options/*.json, models/*.pth and checkpoints, too.
            has_sidecar = any(folder.glob("checkpoints/checkpoint_*.pth.sha256"))
            claim_run_folder(folder, names, is_ours=has_sidecar)
            for name in (LOCK_NAME, LOG_NAME, WARNINGS_NAME, *appended):
                refuse_link(folder / name)
            held = RunFolder(folder)
    try:
        yield held
    finally:
        if held is not None:
            held.lock.close()


def log_links(folder: Path) -> None:
    """Log which folders of the run are links: a habit on clusters, and a surprise elsewhere."""
    for path in sorted(folder.iterdir()):
        if path.is_symlink() and path.is_dir():
            logger.info("%s is a link to %s", path.relative_to(folder), path.resolve())


def _is_same(path: Path, found: os.stat_result) -> bool:
    try:
        return os.path.samestat(os.stat(path), found)
    except OSError:
        return False


def _take_lock(path: Path) -> BinaryIO:
    with writing(path, OTHER_ROOT):
        # For its owner alone: whoever can read a file can hold a lock on it.
        file = open_kept(path, "a+b", 0o600)
    start = time.monotonic()
    is_told = False
    while True:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except (BlockingIOError, PermissionError):
            file.seek(0)
        except OSError as e:
            logger.warning(
                "%s cannot be locked (%s): start no second run in this folder", path, e.strerror
            )
            return file
        holder = file.read(1000).decode(errors="replace").strip()
        is_elsewhere = (
            holder.startswith("process ") and f" on {socket.gethostname()}," not in holder
        )
        if is_elsewhere and not is_told:
            is_told = True
            logger.warning(
                "%s is held by %s: waiting up to %.0f s", path, holder, PATIENCE_WITH_HOSTS_S
            )
        patience_s = PATIENCE_WITH_HOSTS_S if is_elsewhere else PATIENCE_S
        if time.monotonic() - start > patience_s:
            file.close()
            raise OptionError(
                "another run is at work in this folder",
                f"{path}: {holder}{'' if is_elsewhere else _note_if_gone(holder)}",
                "one run in a folder",
                "wait for it or end it, or set another task name",
            )
        time.sleep(0.1)
    _sign(file, path)
    return file


def _sign(file: BinaryIO, path: Path) -> None:
    """Write into a lock who holds it. Raises OptionError if it holds what no run wrote."""
    file.seek(0)
    before = file.read(len(HOLDER))
    if before.strip(b"\n") and before != HOLDER:
        file.close()
        raise OptionError(
            "the lock of the run holds what no run wrote",
            str(path),
            "an empty file, or one line that names a process",
            "move it away, or set another task name",
        )
    with suppress(PermissionError):  # a lock that another user made
        os.fchmod(file.fileno(), 0o600)
    with suppress(OSError):  # a full disk is for the first save to report
        file.truncate(0)
        text = f"process {os.getpid()} on {socket.gethostname()}, since {time.ctime()}\n"
        file.write(text.encode())


def _note_if_gone(holder: str) -> str:
    """Return a note if the process that a lock names has ended: somebody else holds the lock."""
    words = holder.split()
    if len(words) > 1 and words[1].isdigit() and process_state(int(words[1])) is None:
        return " (that process has ended: `lslocks` names the one that holds the lock)"
    return ""

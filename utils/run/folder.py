"""Lock the folder of a run against a second run, and notice if somebody moves or removes it.

A second run in the same folder would delete temporary files of the first run, and both would write
to the same log. So rank 0 locks the file `.lock` in the folder for as long as the run lasts:

* `only_run_in` takes the lock; main_train_vrt.py runs within it.
* `RunFolder.check` is called before each log line and each checkpoint.

The text of the file names the process: "process 4711 on host7, since Fri Nov 27 15:20:46 2026".

What must stay: the text of the file, and the lock, because other versions of this program read the
text and take the same lock (test_a_second_run_in_a_folder_is_refused). A run whose folder is moved
saves and ends (test_a_run_whose_folder_is_moved_saves_its_checkpoint_there). Free to change: how
long a run waits for a lock (test_the_lock_of_another_host_is_waited_for_longer).

Tests: tests/parts/utils/test_output_folder.py, tests/stories/test_foreign_files.py,
tests/dist/test_changed_resume.py, tests/dist/test_life.py, tests/stories/test_checkpoint.py.
"""

import errno
import fcntl
import logging
import os
import socket
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from enum import Enum, auto
from pathlib import Path
from typing import BinaryIO

from utils import system, utils_dist
from utils.dist.process import process_state
from utils.errors import DataError, OptionError
from utils.files import MARK, OTHER_ROOT, claim_run_folder, open_kept, refuse_link, writing
from utils.logger import LOG_NAME, WARNINGS_NAME, best_effort, reopen_removed_logs

logger = logging.getLogger(__name__)

LOCK_NAME = ".lock"
HOLDER = b"process "  # the text of a lock begins with this; bytes, because it is read from a file
# Seconds to wait for a lock of this host. A rank that was killed a moment ago may still be ending.
WAIT_ON_THIS_HOST_S = 3.0
# Seconds to wait for a lock of another host. The lock of a host that crashed lasts until the file
# server releases it: 90 s by default for NFS. A run waits twice as long.
WAIT_ON_ANOTHER_HOST_S = 180.0


class FolderMovedError(OptionError):
    """The folder of the run is no longer where the run found it."""

    def __init__(self, folder: Path, new_path: Path | None, saved: Path | None = None) -> None:
        """Say in the error where the folder is now, and what the user can do.

        folder: path at which the run found its folder.
        new_path: path to which somebody has moved the folder, or None if the folder was removed.
        saved: the checkpoint that the run has written at the new path, or None.
        """
        self.new_path = new_path
        if new_path is None:
            what = "the folder of the run was removed, and somebody else has made a new one"
            do = "set another task name"
        else:
            what = f"the folder of the run was moved to {new_path} while the run was at work"
            do = f"move {new_path} back, then start the same command again"
        if saved is not None:
            do += f"; it resumes from {saved.name}"
        super().__init__(
            what,
            where=str(folder),
            expected="the folder stays in its place until the run ends",
            do=do,
        )


class RunFolder:
    """The folder of a run, locked by the file <folder>/.lock. Only rank 0 has a RunFolder.

    The lock is a record lock (fcntl). The kernel releases it when rank 0 ends, also after a kill.
    Loader processes are forked from rank 0 and do not inherit the lock, so the lock ends with rank
    0. On NFS the server keeps the lock, so the lock also works between hosts, unless the folder is
    mounted with `nolock` or `local_lock`. If the file system has no locks, a warning is logged.
    """

    def __init__(self, path: Path) -> None:
        """Take the lock of the folder `path`.

        Raises OptionError if another run holds the lock, and DataError if the file is a link.
        """
        self.path = path
        self.lock = _take_lock(path / LOCK_NAME)

    def check(self) -> None:
        """Check that `path` is still the folder that this run has locked.

            path/.lock is the locked file        all is well
            1  another folder has the file       the folder was moved: FolderMovedError
            2  path/.lock is another file        another run uses the path: FolderMovedError
            3  there is no path/.lock            makes the file and locks it, with a warning

        In case 3, raises OptionError if another run is faster and locks the new file.
        """
        # Disk and inode number, which identify the file that this run has locked.
        locked_file = _stat_of(self.lock)
        lock = self.path / LOCK_NAME
        if _is_same(lock, locked_file):
            return
        # The locked file is not at its path any more. The kernel knows the present path of an open
        # file. If the file was removed, the kernel gives a path at which there is no file.
        present_path = system.path_of(self.lock.fileno())
        # Case 1: the folder was moved, and the locked file is still in it.
        if present_path is not None:
            present_folder = present_path.parent
            holds_locked_file = _is_same(present_folder / LOCK_NAME, locked_file)
            if holds_locked_file and present_folder != self.path.resolve():
                raise FolderMovedError(self.path, new_path=present_folder)
        # Case 2: somebody removed the folder, and another run made a new one with its own lock.
        if lock.exists():
            raise FolderMovedError(self.path, new_path=None)
        # Case 3: somebody removed the lock, or the whole folder.
        self._make_again(lock)

    def _make_again(self, lock: Path) -> None:
        """Make the folder, its mark and the file of the lock again, and lock this file.

        lock: the file `.lock` in the folder. It does not exist.
        """
        # Each run makes the file MARK at its start. If MARK is missing, the whole folder was
        # removed. It is not enough to look for the folder itself, because the run may have made the
        # folder again when it wrote a file (`write_whole`).
        was_folder_removed = not (self.path / MARK).exists()
        with writing(self.path, OTHER_ROOT):
            self.path.mkdir(parents=True, exist_ok=True)
            (self.path / MARK).touch()
        self.lock.close()
        self.lock = _take_lock(lock)
        # If the log cannot be written, `best_effort` logs a warning, and the run goes on.
        with best_effort("the log"):
            reopen_removed_logs()  # makes the files of the log again if they were removed
        logger.warning("%s was removed while the run was at work: the run has made it again", lock)
        if was_folder_removed:
            logger.warning(
                "what was in %s is lost: earlier checkpoints, weights and lines of the log; the "
                "next save makes new ones",
                self.path,
            )


@contextmanager
def only_run_in(
    folder: Path, patterns: Sequence[str], appended: Sequence[str]
) -> Generator[RunFolder | None]:
    """Mark the folder of the run, and keep it locked inside the block.

    All ranks must call it. Yields the locked folder on rank 0, and None on the other ranks.

    folder: the folder of the run. It is made if it does not exist.
    patterns: patterns of the names of files and folders that a run writes there, e.g. "checkpoints"
        and "log".
    appended: names of the files to which a run appends. They must not be links, because a run would
        then write into a file elsewhere.

    Raises OptionError in two cases: another process has the lock, or the folder has a file that
    fits a pattern of `patterns`, but no run of this program made the folder. Raises DataError if a
    file of `appended` is a link.
    """
    locked_folder = None
    # Only rank 0 does the work. If it raises an error, all ranks end.
    with utils_dist.all_ranks_or_none():
        if utils_dist.is_main_process():
            # `claim_run_folder` refuses a folder with files of another program. A folder is from an
            # earlier run of this program in two cases:
            #
            #     it has the file utils.files.MARK              `claim_run_folder` looks for it
            #     it has a sidecar checkpoint_*.pth.sha256      `is_ours` is True
            #
            # The second case is for runs of old versions, which made no MARK. Only this program
            # writes such sidecars (utils/run/checkpoint.py).
            has_sidecar = any(folder.glob("checkpoints/checkpoint_*.pth.sha256"))
            claim_run_folder(folder, patterns, is_ours=has_sidecar)
            for name in (LOCK_NAME, LOG_NAME, WARNINGS_NAME, *appended):
                refuse_link(folder / name)
            locked_folder = RunFolder(folder)
    try:
        yield locked_folder
    finally:
        if locked_folder is not None:
            locked_folder.lock.close()  # frees the lock; the file .lock stays


def refuse_unwritable_folders(folder: Path) -> None:
    """Raise DataError if a run will not be able to save checkpoints or weights in its folder.

    E.g. `checkpoints` is a link to a disk that is not mounted, or that is mounted read-only.
    """
    for path in (folder / "checkpoints", folder / "models"):
        if not os.path.lexists(path):
            continue  # the first save makes it
        if path.is_dir() and os.access(path, os.W_OK):
            continue
        fault = "cannot be written to" if path.is_dir() else "is no folder"
        if path.is_symlink():
            fault += f": it is a link to {os.readlink(path)}"
        raise DataError(
            what=f"the folder {path.name} of the run {fault}",
            where=str(path),
            expected="a folder in which the run can write, or a link to one",
            do="make or mount what the link names, or move it away",
        )


def log_links(folder: Path) -> None:
    """Log which folders of the run are links, and where they lead.

    On clusters, people often link folders to another disk on purpose. The log shows the links, so
    that nobody overlooks a link that was made by mistake.
    """
    for path in sorted(folder.iterdir()):
        if path.is_symlink() and path.is_dir():
            logger.info("%s is a link to %s", path.relative_to(folder), path.resolve())


def _stat_of(file: BinaryIO) -> os.stat_result | None:
    """Return the status of an open file. It has the inode, the file's number on its disk.

    Returns None if another host has removed the file. NFS then gives ESTALE (stale file handle).
    """
    try:
        return os.fstat(file.fileno())
    except OSError as e:
        if e.errno == errno.ESTALE:
            return None
        raise


def _is_same(path: Path, stat: os.stat_result | None) -> bool:
    """Return whether `path` names the file that `stat` describes.

    stat: the result of `_stat_of`. With None, another host has removed the file.
    """
    if stat is None:
        return False
    try:
        return os.path.samestat(os.stat(path), stat)
    except OSError:  # there is no such file
        return False


# ---- The lock --------------------------------------------------------------------------------


def _take_lock(path: Path) -> BinaryIO:
    """Open the file `path` and lock it. If another process has the lock, wait for some time.

    Tries to lock the file every 0.1 s. What happens after a try:

        the file system has no locks    logs a warning, returns the file without a lock
        LOCKED                          writes this process into the file, returns it
        TAKEN, by another process       waits
        REMOVED, by somebody            opens the file that is at `path` now, waits

    The limit of all waits together is WAIT_ON_THIS_HOST_S (3 s), or WAIT_ON_ANOTHER_HOST_S (180 s)
    if the process that has the lock is on another host. Raises OptionError after the limit.

    The lock lasts until the returned file is closed, so the file must stay open as long as the run
    lasts.
    """
    file = _open_lock(path)
    begin = time.monotonic()
    has_warned = False
    # The process that has the lock, e.g. "process 4711 on host7, since ...", or "" without a text.
    holder = ""
    while True:
        try:
            attempt = _try_lock(file, path)
        except OSError as e:  # the file system has no locks
            logger.warning(
                "%s cannot be locked (%s): start no second run in this folder", path, e.strerror
            )
            return file
        if attempt == Try.LOCKED:
            break
        if attempt == Try.REMOVED:
            # The run that had locked the file may have made a new file (`_make_again`). Only the
            # lock of the new file has an effect. `holder` stays, because the limit depends on it.
            file.close()
            file = _open_lock(path)
        else:
            holder = _holder_of(file)

        # Wait longer for a process of another host, because the file server releases the lock of a
        # crashed host late.
        is_elsewhere = _is_of_another_host(holder)
        longest_wait_s = WAIT_ON_ANOTHER_HOST_S if is_elsewhere else WAIT_ON_THIS_HOST_S
        if is_elsewhere and not has_warned:
            has_warned = True
            logger.warning("%s is held by %s: waiting up to %.0f s", path, holder, longest_wait_s)
        if time.monotonic() - begin > longest_wait_s:
            file.close()
            if attempt == Try.REMOVED:
                raise _second_run(
                    path,
                    "after the last try this path named another file: somebody removes the file, "
                    "or its inode number changes",
                )
            # Only on this host can the run find out whether the process has ended.
            note = "" if is_elsewhere else _note_if_gone(holder)
            raise _second_run(path, f"{holder}{note}")
        time.sleep(0.1)
    _write_holder(file, path)
    return file


def _open_lock(path: Path) -> BinaryIO:
    """Open the file of a lock, to read and to append. It is made if it is missing.

    Raises DataError if it cannot be opened, with the advice OTHER_ROOT ("free some space, ..."), or
    if it is a link.
    """
    with writing(path, OTHER_ROOT):
        # With 0o600 only the owner may open the file. Another user who could open the file could
        # lock it, too.
        return open_kept(path, "a+b", permissions=0o600)


def _second_run(path: Path, holder: str) -> OptionError:
    """Return the error of a run that finds another run in its folder.

    path: the file `.lock`.
    holder: the process that has the lock, in words.
    """
    return OptionError(
        what="another run is at work in this folder",
        where=f"{path}: {holder}",
        expected="one run in a folder",
        do="wait for it or end it, or set another task name",
    )


class Try(Enum):
    """What a try to lock the file `.lock` has given."""

    LOCKED = auto()
    TAKEN = auto()  # another process has the lock
    REMOVED = auto()  # the open file is not the file at the path any more


def _try_lock(file: BinaryIO, path: Path) -> Try:
    """Lock an open file, without waiting.

    path: the path at which the file was opened.

    Raises OSError if the file system has no locks.
    """
    try:
        # With LOCK_EX only one process can have the lock. With LOCK_NB `lockf` does not wait, but
        # raises an error if another process has the lock.
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):  # POSIX allows both errors for a taken lock
        return Try.TAKEN
    except OSError as e:
        if e.errno == errno.ESTALE:
            return Try.REMOVED
        raise
    return Try.LOCKED if _is_same(path, _stat_of(file)) else Try.REMOVED


def _holder_of(file: BinaryIO) -> str:
    """Return the text of a lock, e.g. "process 4711 on host7, since Fri Nov 27 15:20:46 2026".

    Returns "" if another host has removed the file.
    """
    try:
        file.seek(0)
        # 1000 bytes are enough for the text. A file that no run wrote may be of any size.
        text = file.read(1000)
    except OSError as e:
        if e.errno == errno.ESTALE:
            return ""
        raise
    return text.decode(errors="replace").strip()


def _is_of_another_host(holder: str) -> bool:
    """Return whether the text of a lock names a process of another host.

    If the text names no process, its host is not known. Then it counts as this host.
    """
    names_process = holder.startswith(HOLDER.decode())  # HOLDER is b"process ", `holder` is a str
    is_on_this_host = f" on {socket.gethostname()}," in holder
    return names_process and not is_on_this_host


def _write_holder(file: BinaryIO, path: Path) -> None:
    """Write into the file of a lock which process holds the lock.

    Raises OptionError, and changes nothing, if the file holds something that no run wrote.
    """
    file.seek(0)
    beginning = file.read(len(HOLDER))
    # A file of empty lines counts as empty, because it holds nothing that could be lost.
    is_empty = not beginning.strip(b"\n")
    is_of_a_run = beginning == HOLDER
    if not is_empty and not is_of_a_run:
        file.close()
        raise OptionError(
            what="the file .lock of the run holds something that no run wrote",
            where=str(path),
            expected="an empty file, or one line that names a process",
            do="move it away, or set another task name",
        )
    with suppress(PermissionError):  # another user has made the file
        os.fchmod(file.fileno(), 0o600)
    # Writing fails if the disk is full, and the first save will report the full disk. Then the file
    # has the old text, no text, or a part of the new text. The process has the lock in any case.
    with suppress(OSError):
        file.truncate(0)
        # The text begins with HOLDER, and `_is_of_another_host` looks for " on <host>," in it.
        text = f"process {os.getpid()} on {socket.gethostname()}, since {time.ctime()}\n"
        file.write(text.encode())


def _note_if_gone(holder: str) -> str:
    """Return a note for the error if the process that a lock names has ended, else "".

    If this process has ended, the lock belongs to another process, which has not written its own
    text into the file.

    holder: the text of the lock, of a process of this host.
    """
    words = holder.split()  # e.g. ["process", "4711", "on", ...]
    if len(words) < 2 or not words[1].isdecimal():
        return ""
    if process_state(int(words[1])) is None:
        return " (that process has ended: `lslocks` names the one that holds the lock)"
    return ""

"""Read files safely, write files completely or not at all, and protect the files of users.

    Reading    open_plain, plain_descriptor, read_plain, rest_of, sha256_of
    Writing    write_whole, temporary_beside, writing, free_bytes
    Of a run   refuse_link, open_kept, claim_run_folder

No program of the project changes or removes a file that it did not make. A folder of a run is new,
or holds a file that marks it as ours (MARK, RESULTS). Any other folder is refused as a whole,
before any work is done. "Ours" means: made by a program of this project. utils/output_folder.py
has the same checks for folders of results.

What must stay: the checks before a file is written. If a check is loosened, a user may lose files.
Free to change: READ_AT_ONCE, and how files are read.

Tests: tests/parts/utils/test_output_folder.py, tests/parts/data/test_files.py, and for
`claim_run_folder` tests/stories/test_foreign_files.py
(test_training_refuses_a_folder_with_foreign_files_of_its_names).
"""

import errno
import hashlib
import math
import os
import stat
import sys
import uuid
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from utils.errors import DataError, OptionError

# Name of an empty file that marks a folder as made by this project.
MARK = ".spikevrt"
# The file that marks a folder of results as ours. It also holds the settings of main_test_vrt.py,
# which has written the results.
RESULTS = "run.json"

# What `writing` advises if the folder of a run cannot be written.
OTHER_ROOT = "free some space, or set path.root to another disk"


# ---- Reading -----------------------------------------------------------------------------------


def open_plain(path: str | Path) -> BinaryIO:
    """Open a file to read its bytes. Raises OSError, also for a pipe or a device.

    A pipe or a device is refused, because reading from it may never end, e.g. from /dev/zero.
    """
    descriptor, _ = plain_descriptor(path)
    return os.fdopen(descriptor, "rb")


def plain_descriptor(path: str | Path) -> tuple[int, os.stat_result]:
    """Open a file to read. Returns its descriptor, and its state (size, time of change, ...).

    The caller closes the descriptor. With the returned state the caller need not call os.stat. On a
    network file system, os.stat is slow. Raises OSError, also for a device or a pipe.
    """
    # Without O_NONBLOCK, opening a pipe would wait until somebody writes into it.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    state = os.fstat(descriptor)
    if stat.S_ISREG(state.st_mode):  # a regular file
        return descriptor, state
    os.close(descriptor)
    if stat.S_ISDIR(state.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    # No error of the system has the number 0, so a message shows only this text.
    raise OSError(0, "it is a device or a pipe, not a file", str(path))


def read_plain(path: str | Path, count: int = -1) -> bytes:
    """Return the first `count` bytes of a file, or all bytes if `count` is -1.

    Raises OSError, also for a device or a pipe.
    """
    descriptor, _ = plain_descriptor(path)
    try:
        return rest_of(descriptor, count)
    finally:
        os.close(descriptor)


# Largest number of bytes in one read: 16 MiB, chosen by hand. os.read takes memory for all bytes
# that it is asked for. The number may come from a file that states a wrong size. Without this
# limit, one call could then take all memory.
READ_AT_ONCE = 2**24


def rest_of(descriptor: int, count: int = -1) -> bytes:
    """Return the bytes of an open file that follow the bytes that were read already.

    count: largest number of bytes to return, or -1 for all bytes.
    """
    parts = []
    bytes_left = sys.maxsize if count < 0 else count  # no file has sys.maxsize bytes
    while bytes_left > 0:
        # os.read may return fewer bytes than asked for, and none at the end of the file.
        part = os.read(descriptor, min(bytes_left, READ_AT_ONCE))
        if not part:
            break
        parts.append(part)
        bytes_left -= len(part)
    return b"".join(parts)


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file in hex."""
    # Read a megabyte at a time, because a checkpoint may be larger than the free memory.
    # (hashlib.file_digest would do this, but Python 3.10 does not have it.)
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while True:
            block = file.read(2**20)
            if not block:  # the end of the file
                break
            digest.update(block)
    return digest.hexdigest()


# ---- Writing -----------------------------------------------------------------------------------


def write_whole(path: str | Path, content: bytes) -> None:
    """Write a file completely or not at all, even on a full disk or if the process is killed.

    The content is written to a temporary file. Then the temporary file is renamed to `path`. An
    existing file is replaced. The folder is made if it is missing. Raises DataError if the file
    cannot be written.
    """
    path = Path(path)
    with writing(path):
        temporary = temporary_beside(path)
        try:
            temporary.write_bytes(content)
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)


def temporary_beside(path: Path) -> Path:
    """Return the temporary name of a file that gets the name `path` when it is complete.

    E.g. out/.clip.1a2b3c4d.png for out/clip.png. The folder is made if it is missing. The module
    tempfile is not used, because its files ignore the umask: other users could not read them.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    return path.with_name(f".{path.stem}.{uuid.uuid4().hex[:8]}{path.suffix}")


@contextmanager
def writing(
    path: Path,
    do: str = "free some space or choose another folder, then start the same command again",
    errors: tuple[type[Exception], ...] = (OSError,),
) -> Generator[None]:
    """Turn an OSError of the block into a DataError: the file or folder `path` cannot be written.

    do: the advice of the DataError.
    errors: types of the errors that become a DataError. All other errors stay as they are.
    """
    try:
        yield
    except errors as e:
        cause = getattr(e, "strerror", None) or e
        raise DataError(
            what=f"cannot write: {cause}",
            where=str(path),
            expected="room on the disk, and permission to write",
            do=do,
        ) from e


def free_bytes(folder: Path) -> float:
    """Return the number of free bytes on the disk of `folder`, which need not exist yet.

    Returns infinity if the file system does not tell the number.
    """
    while not folder.exists():
        folder = folder.parent
    file_system = os.statvfs(folder)
    if not file_system.f_blocks:  # a file system without a size
        return math.inf
    # Number of free blocks that a user without special rights may take, times bytes of a block.
    return file_system.f_bavail * file_system.f_frsize


# ---- Files of a run ----------------------------------------------------------------------------


def refuse_link(path: Path) -> None:
    """Raise DataError if `path` is a link. Call this for each file that a run writes.

    The target of a link may be a file of a user. Such a file must not be changed.
    """
    if path.is_symlink():
        raise DataError(
            what="a link has the name of a file of the run",
            where=f"{path} -> {os.readlink(path)}",
            expected="a file of its own (a whole folder, such as checkpoints/, may be a link)",
            do="move the link away",
        )


def open_kept(path: Path, mode: str, permissions: int = 0o666, encoding: str | None = None) -> Any:
    """Open a file that a run keeps open and writes, such as its log.

    Bytes are written at once, and text line by line. So a killed run loses at most a line. If
    `path` itself is a link, the link is not followed, because its target may be a file of a user.

    mode: as for `open`, e.g. "a" or "wb".
    permissions: permissions of a new file. The umask of the user removes some of them.

    Raises DataError if `path` is a link, and the same OSError as `open` for other causes.
    """

    # `open` calls this function in place of os.open. O_NOFOLLOW: fail if the file is a link.
    # O_CLOEXEC: do not hand the open file to programs that this process starts.
    def opener(name: str, flags: int) -> int:
        return os.open(name, flags | os.O_NOFOLLOW | os.O_CLOEXEC, permissions)

    buffering = 0 if "b" in mode else 1  # 0: none, 1: by line
    try:
        return open(path, mode, buffering, encoding, opener=opener)
    except OSError as e:
        # With O_NOFOLLOW, the system reports a link by this number.
        if e.errno == errno.ELOOP:
            refuse_link(path)
        raise


def claim_run_folder(folder: Path, patterns: Iterable[str], is_ours: bool) -> None:
    """Make the folder of a run, and mark it as ours by the file MARK.

    patterns: patterns of the names of files that a run writes there, such as "*.log".
    is_ours: whether the caller knows that an earlier run made the folder. Then nothing is checked.

    Raises OptionError for a folder with results of main_test_vrt.py (RESULTS), and for a folder
    without MARK that has a file whose name fits a pattern.
    """
    # Names of files in the folder that the run would write over.
    existing_names = []
    for pattern in patterns:
        for path in sorted(folder.glob(pattern)):
            existing_names.append(path.name)
    # What the folder holds that no run may write over, in words for the error.
    content_of_others = ""
    if not is_ours:
        if (folder / RESULTS).is_file():
            content_of_others = "the results of a test"
        elif existing_names and not (folder / MARK).is_file():
            names = ", ".join(existing_names)
            content_of_others = f"files that no run of this program made: {names}"
    if content_of_others:
        raise OptionError(
            what=f"the folder of the run holds {content_of_others}",
            where=str(folder),
            expected="an empty folder, or one of an earlier run",
            do="choose another task name, or move these files away",
        )
    with writing(folder, OTHER_ROOT):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / MARK).touch()

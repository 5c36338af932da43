"""List and read the values of an LMDB, one database file for a whole data root.

The layout is that of BasicSR and KAIR, because many users already have data of these two projects:

    train.lmdb/data.mdb        a value with the content of a PNG under each key "<clip>/<frame>"
    train.lmdb/meta_info.txt   a line for each key: "<clip>/<frame>.png (720,1280,3) 1"

The package lmdb calls an open database an environment. A process opens each database once, and
keeps it open until it ends or forks.

What must stay: a file that is cut short is refused before a value is read. An LMDB is mapped into
memory, so a read behind the end of its file ends the process without an error of Python
(test_an_lmdb_cut_short_is_refused_before_its_missing_pages_are_read). No LMDB may be open during a
fork (`_close_environments` has the reason). Names and order of clips and frames stay, because
samples are numbered in this order.

Tests: tests/parts/data/test_io_backend.py, tests/parts/data/test_any_bytes.py
"""

import os
import re
import threading
from collections.abc import Collection, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from data.clips import lmdb_sizes
from data.clips.listed_files import (
    ADVICE_FOR_MISSING_ROOT,
    FileEntry,
    Folder,
    Listing,
    os_errors_as_data_errors,
    state_of,
)
from utils.errors import DataError, OptionError
from utils.files import open_plain

# The files of an LMDB. If their state stays the same, a stored list of the clips is still right.
LMDB_FILES = ("data.mdb", "meta_info.txt")


def list_lmdb(root: str, names: Collection[str] | None) -> Listing:
    """List the clips of an LMDB. Raises the errors of `list_root`.

    names: the clips that are wanted. None: all clips.
    """
    listing = Listing()
    expected = "meta_info.txt as UTF-8 text beside data.mdb"
    do = ADVICE_FOR_MISSING_ROOT
    if os.path.isdir(root):
        do = "make the LMDB again, or correct the dataroot"
    with os_errors_as_data_errors(root, expected=expected, do=do):
        # Read the states before the list. If a file changes in between, its stored state is too
        # old, so the next start notices the change.
        for name in LMDB_FILES:
            path = os.path.join(root, name)
            listing.states[path] = state_of(path)
        lines = _lines_of_meta_info(root)
    changed_ns = listing.states[os.path.join(root, "data.mdb")].mtime_ns
    keys = _keys_in(lines, names)

    root = root.rstrip("/")
    for clip, entries in _entries_of_keys(root, keys, changed_ns).items():
        prefix = f"{root}::{clip}/" if clip else f"{root}::"
        # Keys without a clip form one clip, which is named after the LMDB.
        name = clip or Path(root).stem
        listing[name] = Folder.of_names(prefix, entries.keys(), tuple(entries.values()))
    if not listing:
        raise DataError(
            what="the LMDB holds no clip",
            where=root,
            expected="a key <clip>/<frame> for each frame",
            do="correct the dataroot",
        )
    return listing


def _lines_of_meta_info(root: str) -> list[str]:
    """Return the lines of meta_info.txt. Raises OSError, also if it is not UTF-8 text."""
    try:
        with open_plain(Path(root, "meta_info.txt")) as file:
            return file.read().decode("utf-8").splitlines()
    except UnicodeDecodeError as e:
        raise OSError(f"meta_info.txt: {e}") from e


def _keys_in(lines: Sequence[str], clips: Collection[str] | None) -> list[str]:
    """Return the keys in the lines of meta_info.txt. clips: only keys of these clips. None: all."""
    keys = []
    for line in lines:
        if not line.strip():
            continue
        key = _lmdb_key(line.strip())
        clip, _, _ = key.rpartition("/")
        if clips is None or clip in clips:
            keys.append(key)
    return keys


# What follows the name of a file in a line of meta_info.txt: " (720,1280,3) 1" or " (720,1280,3)".
_LMDB_SHAPE = re.compile(r" \(\d+(?:, ?\d+)+\)(?: \d+)?$")


def _lmdb_key(line: str) -> str:
    """Return the key in a line of meta_info.txt.

    "clip_a/000000.png (720,1280,3) 1" -> "clip_a/000000". A name may hold blanks and brackets, so
    only a shape at the end of the line is cut off: "clip (a)/0 (old)" stays as it is.
    """
    path = _LMDB_SHAPE.sub("", line)
    key, _ = os.path.splitext(path)
    return key


def _entries_of_keys(
    root: str, keys: Sequence[str], changed_ns: int
) -> dict[str, dict[str, FileEntry]]:
    """Return {clip: {stem: file}} of the keys of an LMDB, in the order of the keys.

    E.g. the key "clip_a/000000" is the file "000000" of "clip_a". The clip of a key without a slash
    is "". changed_ns: time of change of the LMDB.
    """
    # Opening the database here finds damage of the file as a whole, and says what is wrong. Damage
    # within the file can kill the process that reads it. So `lmdb_sizes` reads in another process.
    _environment(root)
    try:
        sizes = lmdb_sizes.sizes(root, keys)
    except lmdb_sizes.DamagedLmdbError as e:
        raise _damaged_lmdb(root, e) from e
    clips: dict[str, dict[str, FileEntry]] = {}
    for key, size in zip(keys, sizes, strict=True):
        clip, _, stem = key.rpartition("/")
        entries = clips.setdefault(clip, {})
        # The size of a listed key without a value is negative. The key becomes an empty file, which
        # every check refuses.
        entries[stem] = FileEntry(f"{root}::{key}", max(0, size), changed_ns)
    return clips


def read_value(root: str, key: str, count: int = -1) -> bytes:
    """Return the value under a key of an LMDB.

    root: folder of the LMDB, e.g. "/data/train.lmdb". key: e.g. "clip_a/000000".
    count: number of bytes to read from the beginning; -1: all.
    Raises OSError if there is no such key, DataError if the LMDB is damaged.
    """
    with _transaction(root) as transaction:
        value = transaction.get(key.encode())
        if value is None:
            raise OSError("the LMDB has no such key")
        if count >= 0:
            value = value[:count]
        # Copy the value, because the view is not valid after the transaction.
        return bytes(value)


@contextmanager
def _transaction(root: str) -> Generator[Any]:
    """Open a transaction that reads an LMDB, for a `with` block.

    Values are views of the mapped file. They are not valid after the block, so copy them.
    Raises DataError, also if the `with` block finds the LMDB damaged.
    """
    environment = _environment(root)
    import lmdb

    try:
        # buffers=True makes each value a view of the mapped file, and no copy.
        with environment.begin(buffers=True) as transaction:
            yield transaction
    except lmdb.Error as e:
        raise _damaged_lmdb(root, e) from e


def _damaged_lmdb(root: str, error: Exception) -> DataError:
    """Return the error for an LMDB that cannot be read. error: what the reader found."""
    return DataError(
        what=f"the LMDB is damaged: {error}",
        where=root,
        expected="an LMDB with the keys that its meta_info.txt lists",
        do="copy the LMDB again (mdb_copy -c compacts it), or make it again",
    )


# {root: open database} of the LMDBs that this process has open. The package lmdb calls an open
# database an environment.
_environments: dict[str, Any] = {}
# Held while an LMDB is opened: the data check reads in several threads, and LMDB allows a process
# to open a database only once (test_threads_that_begin_together_open_an_lmdb_once).
_opening_lock = threading.Lock()


def _environment(root: str) -> Any:
    """Return the open LMDB. The first call in a process opens the LMDB.

    Callers must not close it, because other threads may read it at the same time.
    Raises OptionError if the package lmdb is not installed, DataError for a damaged file.
    """
    with _opening_lock:
        if root not in _environments:
            environment = _open_lmdb(root)
            _refuse_short_lmdb(root, environment)
            _environments[root] = environment
        return _environments[root]


def _open_lmdb(root: str) -> Any:
    """Open an LMDB to read. Only `_environment` may call this, because it holds the lock."""
    try:
        import lmdb  # an optional package
    except ImportError as e:
        raise OptionError(
            what='io_backend.type "lmdb" needs the package lmdb',
            where="io_backend.type",
            expected="an installed lmdb",
            do="pip install lmdb",
        ) from e
    try:
        # Without a lock, nothing is written into the folder, which may be read-only. Without
        # readahead, the system reads only the pages of a sample. `meminit` matters only for
        # writing. data/clips/lmdb_sizes.py opens an LMDB with the same settings.
        return lmdb.open(root, readonly=True, lock=False, readahead=False, meminit=False)
    except lmdb.Error as e:
        raise DataError(
            what=f"cannot open the LMDB: {e}",
            where=root,
            expected="a folder with data.mdb",
            do="make the LMDB again, or correct the dataroot",
        ) from e


def _refuse_short_lmdb(root: str, environment: Any) -> None:
    """Close and refuse an LMDB if its file has fewer bytes than its first pages say.

    LMDB maps the file into memory. A read behind the end of the file would kill the process
    (SIGBUS). Opening an LMDB reads only its first two pages, so it does not notice a short file.
    """
    size = os.path.getsize(os.path.join(root, "data.mdb"))
    number_of_last_page = environment.info()["last_pgno"]  # the last page in use
    bytes_per_page = environment.stat()["psize"]
    least_size = (number_of_last_page + 1) * bytes_per_page  # page numbers begin at 0
    if size < least_size:
        environment.close()
        raise DataError(
            what=f"the LMDB is cut short: data.mdb has {size} bytes",
            where=root,
            expected=f"{least_size} bytes, as its first pages say",
            do="copy the LMDB again (mdb_copy -c compacts it)",
        )


def _close_environments() -> None:
    """Close all LMDBs before a fork. The parent opens them again when it needs them.

    Leaves `_opening_lock` locked, so that no thread opens an LMDB during the fork. After the fork,
    the parent and the child each release their copy of the lock.
    """
    _opening_lock.acquire()
    for environment in _environments.values():
        environment.close()
    _environments.clear()


# This registration acts on every fork of the process, e.g. when a loader worker is started. LMDB
# forbids two things to a child process: to use an environment of its parent, and to open the same
# LMDB while the parent's environment is open in the child. So no LMDB is open during a fork.
# Windows has no fork, and no `register_at_fork`.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_close_environments,
        after_in_parent=_opening_lock.release,
        after_in_child=_opening_lock.release,
    )

"""Open an LMDB once in a process, and read its values.

An LMDB is a database file that is mapped into memory. The package lmdb calls an open database an
environment. This file keeps two rules. Without them, a read could end the process or give wrong
data:

* A file that is cut short is refused before a value is read. If it were not refused, a read beyond
  the end of the file would end the process without an error of Python
  (test_an_lmdb_cut_short_is_refused_before_its_missing_pages_are_read).
* There is one environment for each root, because a process may open a database only once
  (test_threads_that_begin_together_open_an_lmdb_once). No environment is open during a fork,
  because LMDB forbids a child process to use an environment of its parent.

What must stay: both rules. Free to change: the texts of the errors, and the settings of `lmdb.open`
that only concern speed.

Tests: tests/parts/data/test_io_backend.py, tests/parts/data/test_any_bytes.py
"""

import os
import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from utils.errors import DataError, OptionError


def read_value(root: str, key: str, count: int = -1) -> bytes:
    """Return the value under a key of an LMDB.

    root: folder of the LMDB, e.g. "/data/train.lmdb".
    key: e.g. "clip_a/000000".
    count: number of bytes to read from the beginning. -1: all bytes.
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

    Values are views of the mapped file, and are not valid after the block. So copy the values.
    Raises DataError if the LMDB is damaged, even if the damage shows only within the `with` block.
    """
    environment = open_environment(root)  # OptionError if the package lmdb is missing
    import lmdb  # `open_environment` comes first, because its error says how to install lmdb

    try:
        # buffers=True makes each value a view of the mapped file, and no copy.
        with environment.begin(buffers=True) as transaction:
            yield transaction
    except lmdb.Error as e:
        raise damaged_lmdb(root, e) from e


def damaged_lmdb(root: str, error: Exception) -> DataError:
    """Return the error for an LMDB that cannot be read.

    error: what the reader found.
    """
    return DataError(
        what=f"the LMDB is damaged: {error}",
        where=root,
        expected="an LMDB with the keys that its meta_info.txt lists",
        do="copy the LMDB again (mdb_copy -c compacts it), or make it again",
    )


# {root: its environment} of the LMDBs that this process has open.
_environments: dict[str, Any] = {}
# The lock is held while an LMDB is opened, because the data check reads in several threads.
_opening_lock = threading.Lock()


def open_environment(root: str) -> Any:
    """Return the open LMDB. The first call in a process opens the LMDB.

    Callers must not close the LMDB, because other threads may read it at the same time.
    Raises OptionError if the package lmdb is not installed, DataError for a damaged file.
    """
    with _opening_lock:
        if root not in _environments:
            environment = _open_lmdb(root)
            _refuse_short_lmdb(root, environment)
            _environments[root] = environment
        return _environments[root]


def _open_lmdb(root: str) -> Any:
    """Open an LMDB to read.

    Only `open_environment` may call `_open_lmdb`, because `open_environment` holds the lock.
    """
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
        # The folder may be read-only, so no lock is used: without a lock, nothing is written.
        # Without readahead, the system reads only the pages (blocks of the file, usually of 4096
        # bytes) that a sample needs. `meminit` is a setting for writing, so its value has no effect
        # here. data/clips/lmdb_sizes.py opens an LMDB with the same settings.
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

    LMDB maps the file into memory. A read beyond the end of the file would kill the process
    (SIGBUS). Opening an LMDB reads only its first two pages (blocks of the file), so it does not
    notice a short file.

    environment: the opened LMDB, an object of the package lmdb.
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

    `_opening_lock` stays locked, so that no thread opens an LMDB during the fork. After the fork,
    the parent and the child each release their copy of the lock.

    Test: test_an_lmdb_opened_before_a_fork_is_not_used_after_it
    """
    _opening_lock.acquire()
    for environment in _environments.values():
        environment.close()
    _environments.clear()


# Python calls these functions at every fork of the process, e.g. when a loader worker is started. A
# child that inherits an open environment may neither use it nor open the same LMDB again, so no
# LMDB is open during a fork. Windows has no fork, and no `register_at_fork`.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_close_environments,
        after_in_parent=_opening_lock.release,
        after_in_child=_opening_lock.release,
    )

"""Name the files of clips: their paths, sizes and times of change.

    Listing     {clip: its files}, the files of all clips below a data root
    Folder      {stem: file}, the files of one clip and kind
    FileEntry   one file

The stem of a frame is the name of its file without the suffix: "000000" for "000000.png". A data
root is a folder that has a folder for each clip, or an LMDB: one database for a whole data root.
A file has one of two forms of path:

    /data/train/clip_a/blur/000000.png   a file on disk
    /data/train.lmdb::clip_a/000000      a value in an LMDB: the root, "::" and the key

data/clips/data_root.py and data/clips/lmdb_root.py make the listings.

What must stay:

* the form of the paths, because records of checked data sets and clip caches store them,
* the stems, because results have these names,
* the fields of `State` and `FileEntry`, because digests and records are made of them
  (test_io_backend.py and test_kept.py fail for other values).

Free to change: how a `Folder` keeps its names.

Tests: tests/parts/data/test_manifest.py, tests/parts/data/test_kept.py,
tests/parts/data/test_io_backend.py
"""

import os
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

from utils.errors import DataError, address_of

# A path with this text names a file in an LMDB, e.g. "/data/train.lmdb::clip_a/000000".
LMDB_MARK = ".lmdb::"


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One file, as it was listed.

    What must stay: the meaning of size and mtime_ns. The digests in clip caches are made from size
    and mtime_ns (data/clips/manifest.py). With a different meaning, every existing cache would look
    outdated.
    """

    path: str  # path for `read_bytes`
    size: int  # in bytes
    # Time of change in ns. For a file in an LMDB, it is the time of change of the whole LMDB.
    mtime_ns: int


@dataclass(frozen=True, slots=True)
class Folder(Mapping[str, FileEntry]):
    """The files of one clip and kind, as {stem: file}.

    The object holds only names. The size and the time of change of a file are looked up when
    `entries` is called. All names are joined to one text, because an object for each of the 904,568
    files of Vimeo-90K would take too much memory.

    prefix: text before a name in its path, e.g. "/data/train/clip_a/blur/".
    joined_names: the names with "/" after each name, e.g. "000000.png/000001.png/". No name can
    contain a "/". All lists of this class are in the order of `joined_names`.
    lmdb_entries: the files of a clip in an LMDB, whose sizes are read together with the list. None
    for files on disk.
    """

    prefix: str
    joined_names: str
    lmdb_entries: tuple[FileEntry, ...] | None = None

    @classmethod
    def of_names(
        cls, prefix: str, names: Iterable[str], lmdb_entries: tuple[FileEntry, ...] | None = None
    ) -> "Folder":
        """Make a folder of names. E.g. "a.png", "b.png" -> joined_names "a.png/b.png/".

        lmdb_entries: the files in the order of the names, for a clip in an LMDB.
        """
        joined_names = "".join(f"{name}/" for name in names)
        return cls(prefix, joined_names, lmdb_entries)

    @property
    def names(self) -> list[str]:
        return self.joined_names.split("/")[:-1]  # there is nothing after the last "/"

    @property
    def stems(self) -> list[str]:
        return [stem_of(path) for path in self.paths]

    @property
    def paths(self) -> list[str]:
        return [self.prefix + name for name in self.names]

    def entries(self) -> dict[str, FileEntry]:
        """Return {stem: file}. Raises DataError for a broken link.

        If several files have one stem, e.g. "0.jpg" and "0.jpeg", the last of them is returned.
        Files on disk are looked up at each call, which is slow on a network file system.
        """
        files: Iterable[FileEntry]
        if self.lmdb_entries is not None:
            files = self.lmdb_entries
        else:
            files = map(entry_of, self.paths)
        return dict(zip(self.stems, files, strict=True))

    def __getitem__(self, stem: str) -> FileEntry:
        """Return one file. Looks up all files of the clip, so call `entries` for several files."""
        return self.entries()[stem]

    def __iter__(self) -> Iterator[str]:
        # "0.jpg" and "0.jpeg" have the same stem. A mapping must yield each key once.
        return iter(dict.fromkeys(self.stems))

    def __len__(self) -> int:
        """Return the number of files, i.e. the length of `paths`.

        "0.jpg" and "0.jpeg" have one stem, but count as two, because the data check
        (data/clips/root_check.py) looks at every file.
        """
        return self.joined_names.count("/")


class State(NamedTuple):
    """State of a folder, or of a file of an LMDB: two times of change in ns.

    data/clips/kept.py stores states as rows of two numbers, so the fields and their order must
    stay.
    """

    # This time changes when an entry is added, removed or renamed. A program can set it to an older
    # time. E.g. `cp -a` gives a copy the time of the original.
    mtime_ns: int
    # Only the system sets this time, so the files of a copy get the time of the copying. So if a
    # stored state is copied together with the data, it never equals the state of the copy.
    ctime_ns: int


class Listing(dict[str, Folder]):
    """{clip: its files}.

    states: {path: state} of every folder that was listed, and of the files of an LMDB. While no
    state changes, a new listing would find the same names. So data/clips/kept.py stores the states.
    If all states are the same at a later start, the folders are not listed again.
    """

    def __init__(self) -> None:
        super().__init__()
        self.states: dict[str, State] = {}


def is_lmdb(root: str) -> bool:
    """Return whether a data root is an LMDB. The name decides, e.g. "/data/train.lmdb"."""
    return root.rstrip("/").endswith(".lmdb")


def stem_of(path: str) -> str:
    """Return the stem of a file, the name of its frame without a suffix.

    "/data/clip_a/000000.png" and "/data/train.lmdb::clip_a/000000" -> "000000".
    """
    _, mark, key = path.partition(LMDB_MARK)
    if mark:
        # A key has no suffix, so a dot in a key belongs to the stem.
        _, _, stem = key.rpartition("/")
        return stem
    _, _, name = path.rpartition("/")
    stem, _ = os.path.splitext(name)
    return stem


def entry_of(path: str) -> FileEntry:
    """Look up size and time of change of a file on disk.

    Raises DataError if there is no such file, or if it is a broken link.
    """
    with os_errors_as_data_errors(path):
        about = os.stat(path)
    return FileEntry(path, about.st_size, about.st_mtime_ns)


def state_of(path: str) -> State:
    """Return the two times of change of a folder or file. Raises OSError."""
    about = os.stat(path)
    return State(about.st_mtime_ns, about.st_ctime_ns)


def stamp(file: str) -> tuple[int, int]:
    """Return (size, time of change in ns) of a file.

    A file in an LMDB has the size and time of data.mdb. If the file is not on this machine, the
    result is (0, 0) and no error is raised, because callers only compare stamps.

    The result must stay a plain tuple, because names of stored calibrations are made from its repr
    (data/cameras/self_calibration.py).
    """
    # "/data/train.lmdb::clip_a/000000" -> "/data/train.lmdb/data.mdb".
    root, mark, _ = file.partition(LMDB_MARK)
    path = f"{root}.lmdb/data.mdb" if mark else file
    try:
        about = os.stat(path)
    # Python raises ValueError for a path with a zero byte.
    except (OSError, ValueError):
        return 0, 0
    return about.st_size, about.st_mtime_ns


# What an error tells the user to do if a data root is missing.
ADVICE_FOR_MISSING_ROOT = (
    "correct the dataroot in the options, or make or copy the data (docs/data_format.md)"
)


@contextmanager
def os_errors_as_data_errors(
    path: str, expected: str = "a readable file", do: str = "restore the file, or remove its clip"
) -> Generator[None]:
    """Turn an OSError in the `with` block into a DataError with the system's reason.

    path: the file that the DataError names if the system's error names none.
    expected, do: texts of the DataError. The defaults fit a file of a clip.
    """
    try:
        yield
    except OSError as e:
        if isinstance(e, FileNotFoundError):
            # If the path belongs to a file that can be downloaded, `address_of` returns its
            # address. For any other path, `address_of` returns "".
            do += address_of(path)
        raise DataError(
            what=f"cannot read: {e.strerror or e}",
            where=str(e.filename or path),
            expected=expected,
            do=do,
        ) from e

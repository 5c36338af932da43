"""List the files of every clip in an LMDB, one database file for a whole data root.

The layout is the layout of BasicSR and KAIR, because many users already have such data:

    train.lmdb/data.mdb        a value with the content of a PNG under each key "<clip>/<frame>"
    train.lmdb/meta_info.txt   a line for each key: "<clip>/<frame>.png (720,1280,3) 1"

What must stay:

* names and order of clips and frames, because samples are numbered in this order
  (test_an_lmdb_of_frames_gives_the_samples_of_the_files),
* the sizes of the values are read in a separate process, because a damaged file can end the process
  that reads it.

Free to change: how the lines of meta_info.txt are read, as long as they give the same keys.

Tests: tests/parts/data/test_io_backend.py, tests/parts/data/test_any_bytes.py
"""

import os
import re
from collections.abc import Collection, Sequence
from pathlib import Path

from data.clips import lmdb_sizes
from data.clips.listed_files import (
    ADVICE_FOR_MISSING_ROOT,
    FileEntry,
    Folder,
    Listing,
    os_errors_as_data_errors,
    state_of,
)
from data.clips.lmdb_database import damaged_lmdb, open_environment
from utils.errors import DataError
from utils.files import open_plain

# The files of an LMDB. If their state stays the same, a stored list of the clips is still right.
LMDB_FILES = ("data.mdb", "meta_info.txt")


def list_lmdb(root: str, names: Collection[str] | None) -> Listing:
    """List the clips of an LMDB. Raises the errors of `list_root` (data_root.py).

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
        # Text before a stem in a path, e.g. "/data/train.lmdb::clip_a/".
        prefix = f"{root}::{clip}/" if clip else f"{root}::"
        # Keys without a clip form one clip, which is named after the LMDB.
        name = clip or Path(root).stem
        # Arguments: the prefix, the stems, and the `FileEntry` of each stem.
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
    """Return the lines of meta_info.txt. Raises OSError if it cannot be read or is not UTF-8."""
    try:
        with open_plain(Path(root, "meta_info.txt")) as file:  # refuses pipes and devices
            return file.read().decode("utf-8").splitlines()
    except UnicodeDecodeError as e:
        # The caller turns an OSError into a DataError, so make this error an OSError, too.
        raise OSError(f"meta_info.txt: {e}") from e


def _keys_in(lines: Sequence[str], clips: Collection[str] | None) -> list[str]:
    """Return the keys in the lines of meta_info.txt.

    clips: names of the clips whose keys are returned. None: all clips.
    """
    keys = []
    for line in lines:
        if not line.strip():
            continue
        key = _lmdb_key(line.strip())
        clip, _, _ = key.rpartition("/")
        if clips is None or clip in clips:
            keys.append(key)
    return keys


# Matches the end of a line of meta_info.txt, after the name of a file. The end is the shape, and
# maybe a number (the compression): " (720,1280,3) 1" or " (720,1280,3)".
_LMDB_SHAPE = re.compile(r" \(\d+(?:, ?\d+)+\)(?: \d+)?$")


def _lmdb_key(line: str) -> str:
    """Return the key in a line of meta_info.txt.

    "clip_a/000000.png (720,1280,3) 1" -> "clip_a/000000". A name may hold blanks and brackets. So
    only a shape at the end of the line is cut off, and "clip (a)/0 (old)" stays as it is.

    Test: test_keys_may_have_spaces
    """
    path = _LMDB_SHAPE.sub("", line)
    key, _ = os.path.splitext(path)
    return key


def _entries_of_keys(
    root: str, keys: Sequence[str], changed_ns: int
) -> dict[str, dict[str, FileEntry]]:
    """Return {clip: {stem: file}} of the keys of an LMDB, in the order of the keys.

    E.g. the key "clip_a/000000" is the file "000000" of "clip_a". The clip of a key without a slash
    is "".

    changed_ns: time of change of the LMDB. It becomes `mtime_ns` of each file.

    Test: test_keys_without_the_name_of_a_clip_are_one_clip
    """
    # `open_environment` raises an error if the file as a whole is damaged, e.g. cut short. The
    # values within the file may be damaged, too. Reading a damaged value can kill the process, so
    # `lmdb_sizes` reads the values in a separate process.
    open_environment(root)
    try:
        sizes = lmdb_sizes.sizes(root, keys)
    except lmdb_sizes.DamagedLmdbError as e:
        raise damaged_lmdb(root, e) from e
    clips: dict[str, dict[str, FileEntry]] = {}
    for key, size in zip(keys, sizes, strict=True):
        clip, _, stem = key.rpartition("/")
        entries = clips.setdefault(clip, {})
        # If a listed key has no value, its size is negative. The key becomes an empty file, and
        # every check refuses an empty file.
        entries[stem] = FileEntry(f"{root}::{key}", max(0, size), changed_ns)
    return clips

"""List and read the files of a data root: a folder of clips, or an LMDB in the layout of BasicSR and KAIR.

An LMDB holds one value per file under the key "<clip>/<frame>", and beside data.mdb a meta_info.txt with one line
"<clip>/<frame>.<ext> (<shape>) <compression>" per key. Files in it are named "<root>.lmdb::<clip>/<frame>" here.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data.names import checked_name
from data.spike.formats import open_spikes, packed_planes
from data.spike.stream import SpikeFile, SpikeGeometry
from utils.errors import DataError, OptionError
from utils.files import natural_key

LMDB_MARK = ".lmdb::"
FROM_START = (
    "every frame reads the file of its clip from the start, which is slow for long clips: convert it to .dat "
    "(scripts/spike_tool.py convert), or build a clip cache (scripts/build_clip_cache.py)"
)
# Folders within a clip, never clips of their own.
PARTS = frozenset({"blur", "blur_gamma", "sharp", "instants", "spike"})
_LMDB_LINE = re.compile(r"(.+?)(?: \(.*\)(?: \d+)?)?$")  # "<key>.<ext> (<shape>) <compression>"; keys may hold blanks

_FIND = "correct the dataroot in the options, or make or copy the data (docs/data_format.md)"

_environments: dict[str, Any] = {}  # LMDBs that this process has open
_opening = threading.Lock()  # a process may open an LMDB only once, and the data check reads in several threads


def _close_environments() -> None:
    while _environments:
        _environments.popitem()[1].close()


def _renew_lock() -> None:
    global _opening
    _opening = threading.Lock()  # the child lacks the thread that may have held the lock at the fork


# A child must not use the environment of its parent, nor open a second one of the same LMDB.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_close_environments, after_in_child=_renew_lock)


@dataclass(frozen=True, slots=True)  # Vimeo-90K has 904,568 of them
class FileEntry:
    """One file: its name for `read_bytes`, its size in bytes, and its time of change (of the whole LMDB if in one)."""

    path: str
    size: int
    mtime_ns: int


Listing = dict[str, dict[str, FileEntry]]  # clip -> frame stem -> file


def is_lmdb(root: str) -> bool:
    return root.rstrip("/").endswith(".lmdb")


def list_root(
    root: str,
    folder: str,
    ext: str | tuple[str, ...],
    single_files: bool = False,
    names: Collection[str] | None = None,
) -> Listing:
    """The files of every clip: those in <root>/<clip>/<folder>, or in <root>/<clip> where there is no such folder.

    ext: ending of the files' names; of several, the first that a folder has files of.
    single_files: also <root>/<clip>.<ext>, for a clip without other files.
    A folder that holds folders and no files is no clip: the folders in it are the clips "<folder>/<clip>".
    names: list these clips only, wherever they are below the root; None: every clip.
    Raises DataError for a root that cannot be read or holds no clip, and for names unfit for output files.
    """
    suffixes = _suffixes(ext)
    listing = _list_lmdb(root, names) if is_lmdb(root) else _list_folder(root, folder, suffixes, single_files, names)
    if not listing:
        raise _no_clip(root, folder, suffixes)
    for clip, files in listing.items():
        checked_name(clip, root)
        for stem in files:
            checked_name(stem, os.path.join(root, clip))
    return listing


def read_bytes(path: str, count: int = -1) -> bytes:
    """A file on disk or in an LMDB. Raises DataError with the system's reason.

    count: how many bytes are needed, -1 for all.
    """
    if LMDB_MARK in path:
        return _read_lmdb(path, count)
    try:
        with open(path, "rb") as file:
            return file.read(count)
    except OSError as e:
        raise unreadable(path, e.strerror or str(e)) from e


def open_spike_file(path: str, geometry: SpikeGeometry, remainder: str) -> SpikeFile:
    """A spike file on disk, or the packed planes in an LMDB. Raises SpikeFileError, DataError."""
    if LMDB_MARK in path:
        return packed_planes(_read_lmdb(path), path, geometry, remainder)
    return open_spikes(path, geometry, remainder)


def is_read_from_start(path: str) -> bool:
    """Whether planes within a spike file are reached only through all bytes before them: in an .npz or an LMDB."""
    return LMDB_MARK in path or path.lower().endswith(".npz")


def unreadable(path: str, reason: str) -> DataError:
    return DataError(f"cannot read: {reason}", path, "a readable file", "restore the file, or remove its clip")


def _no_clip(root: str, folder: str, suffixes: tuple[str, ...]) -> DataError:
    """The error for a root without clips, which may hold files where folders are expected."""
    with os.scandir(root) as entries:
        files = sorted(e.name for e in entries if e.name.lower().endswith(suffixes) and e.is_file())
    if is_lmdb(root) or not files:
        return DataError("the data folder holds no clip", root, "one folder per clip", "correct the dataroot")
    what = f"the data folder holds no clip, but {len(files)} files ({', '.join(files[:3])}{', ...' * (len(files) > 3)})"
    do = "put the files of each clip into a folder of its own, or correct the dataroot"
    if folder == "spike":
        do = f"if each file holds all planes of a clip, give spike.exposure (docs/data_format.md); otherwise {do}"
    return DataError(what, root, "one folder per clip", do)


def _suffixes(ext: str | tuple[str, ...]) -> tuple[str, ...]:
    return tuple(f".{e.lstrip('.')}".lower() for e in ((ext,) if isinstance(ext, str) else ext))


def _list_folder(
    root: str, folder: str, suffixes: tuple[str, ...], single_files: bool, names: Collection[str] | None
) -> Listing:
    try:
        with os.scandir(root) as entries:
            visible = [e for e in entries if not e.name.startswith(".")]
            found = [(e.name, e.path) for e in visible if e.is_dir()]
    except OSError as e:
        raise DataError(
            f"cannot list the data folder: {e.strerror or e}", root, "a folder with one folder per clip", _FIND
        ) from e  # fmt: skip
    if names is not None:
        paths = {name: os.path.join(root, name) for name in names}
        return {name: _list_clip(path, folder, suffixes)[0] for name, path in paths.items() if os.path.isdir(path)}
    listing: Listing = {}
    for name, path in sorted(found, key=lambda e: natural_key(e[0])):
        files, folders = _list_clip(path, folder, suffixes)
        if not folders:
            listing[name] = files
        for inner in sorted(folders, key=natural_key):
            listing[f"{name}/{inner}"] = _list_clip(os.path.join(path, inner), folder, suffixes)[0]
    for suffix in suffixes if single_files else ():
        for entry in visible:
            stem = entry.name[: -len(suffix)]
            if entry.name.lower().endswith(suffix) and not listing.get(stem) and entry.is_file():
                listing[stem] = {stem: _entry(entry)}
    return listing


def _list_clip(clip: str, folder: str, suffixes: tuple[str, ...]) -> tuple[dict[str, FileEntry], list[str]]:
    """The frames of the clip by stem; where it holds folders of clips and no files instead, the names of these."""
    inner = os.path.join(clip, folder)
    has_inner = os.path.isdir(inner)
    found: dict[str, dict[str, FileEntry]] = {suffix: {} for suffix in suffixes}
    folders, others = [], has_inner
    try:
        with os.scandir(inner if has_inner else clip) as entries:
            for entry in entries:
                if entry.name.startswith("."):
                    continue
                name = entry.name.lower()
                suffix = next((suffix for suffix in suffixes if name.endswith(suffix)), None)
                if suffix is not None:
                    found[suffix][os.path.splitext(entry.name)[0]] = _entry(entry)
                elif not has_inner and entry.is_dir():
                    folders.append(entry.name)
                else:
                    others = True
    except OSError as e:
        raise DataError(f"cannot list the clip: {e.strerror or e}", inner, "a readable folder", "restore it") from e
    files = next((files for files in found.values() if files), {})
    return files, [] if files or others or PARTS & set(folders) else folders


def _entry(entry: os.DirEntry[str]) -> FileEntry:
    try:
        about = entry.stat()
    except OSError as e:  # for instance a link whose target is gone
        raise unreadable(entry.path, e.strerror or str(e)) from e
    return FileEntry(entry.path, about.st_size, about.st_mtime_ns)


def _list_lmdb(root: str, names: Collection[str] | None) -> Listing:
    meta = Path(root) / "meta_info.txt"
    try:
        lines = meta.read_text(encoding="utf-8").splitlines()
        changed_ns = (Path(root) / "data.mdb").stat().st_mtime_ns
    except (OSError, UnicodeDecodeError) as e:
        raise DataError(
            f"cannot read the list of an LMDB: {getattr(e, 'strerror', None) or e}", root,
            "meta_info.txt as UTF-8 text beside data.mdb",
            "make the LMDB again, or correct the dataroot" if os.path.isdir(root) else _FIND,
        ) from e  # fmt: skip
    keys = [os.path.splitext(_LMDB_LINE.match(line.strip())[1])[0] for line in lines if line.strip()]
    root, listing = root.rstrip("/"), {}
    environment = _environments.pop(root, None) or _open_lmdb(root)
    try:
        with environment.begin(buffers=True) as transaction:
            for key in keys:
                clip, _, stem = key.rpartition("/")
                if names is not None and clip not in names:
                    continue
                value = transaction.get(key.encode())
                # A listed key without a value appears as an empty file, which every check refuses.
                entry = FileEntry(f"{root}::{key}", 0 if value is None else len(value), changed_ns)
                listing.setdefault(clip or Path(root).stem, {})[stem] = entry
    finally:
        environment.close()
    return listing


def _read_lmdb(path: str, count: int = -1) -> bytes:
    root, key = path.split("::", 1)
    with _opening:
        if root not in _environments:
            _environments[root] = _open_lmdb(root)
    with _environments[root].begin(buffers=True) as transaction:
        value = transaction.get(key.encode())
        if value is None:
            raise unreadable(path, "the LMDB has no such key")
        return bytes(value if count < 0 else value[:count])


def _open_lmdb(root: str) -> Any:
    try:
        import lmdb  # an optional package
    except ImportError as e:
        raise OptionError(
            'io_backend.type "lmdb" needs the package lmdb', "io_backend.type", "an installed lmdb", "pip install lmdb"
        ) from e
    try:
        environment = lmdb.open(root, readonly=True, lock=False, readahead=False, meminit=False)
    except lmdb.Error as e:
        raise DataError(
            f"cannot open the LMDB: {e}", root, "a folder with data.mdb", "make it again, or correct the dataroot"
        ) from e
    # LMDB maps the file: reading a page after its end would kill the process (SIGBUS). Opening reads the first two.
    size = os.path.getsize(os.path.join(root, "data.mdb"))
    need = (environment.info()["last_pgno"] + 1) * environment.stat()["psize"]
    if size < need:
        environment.close()
        raise DataError(
            f"the LMDB is cut short: data.mdb has {size} bytes", root, f"{need} bytes, as its first pages say",
            "copy it again (or, where keys were deleted from it, make a compact copy with mdb_copy -c)",
        )  # fmt: skip
    return environment

"""List, read and decode the files of clips.

The files of a clip are in a folder, in an LMDB, or (frames only) in a video. Parts of this module:

* `list_root` lists the files of every clip below a data root, as {clip: `Folder`}.
* `read_bytes` and `read_bgr` read a file, wherever it is, and refuse damaged pictures.
* `FrameSource` reads a user's frames: a folder of images, a single image, or a video.

An LMDB is one database file for a whole data root. We read the layout of BasicSR and KAIR, because
many users already have data of these two projects:

    train.lmdb/data.mdb        a value with the content of a PNG under each key "<clip>/<frame>"
    train.lmdb/meta_info.txt   a line for each key: "<clip>/<frame>.png (720,1280,3) 1"

Files in an LMDB have paths as well, for example "/data/train.lmdb::clip_a/000000". The text before
"::" is the root, the text after "::" is the key.

The stem of a frame is the name of its file without the ending: "000000" for "000000.png". A data
root is a folder that has a folder for each clip. A plane is one binary picture of the spike camera.

What must stay:

* The form of the paths, because they are stored in records of checked data sets and in clip caches.
* Names and order of clips and frames. Samples are numbered in this order, and results have these
  names.
* Every refusal. A damaged file must give an error and never a wrong picture
  (test_a_damaged_picture_is_read_or_refused tries damaged files).

What may change: how the files are found and read.

Tests: tests/parts/data/test_files.py, tests/parts/data/test_pictures.py,
tests/parts/data/test_any_bytes.py
"""

import logging
import os
import re
import threading
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import cv2
import numpy as np

from data.clip import checked_name
from data.clips import lmdb_sizes
from data.clips.threads import map_in_threads
from data.spike.formats import FORMATS, SpikeFile, SpikeGeometry, open_spikes, packed_planes
from utils.errors import DataError, OptionError, address_of
from utils.files import natural_key, open_plain, order_of, read_plain
from utils.image import IMAGE_SUFFIXES
from utils.picture import MOST_PIXELS, Header, has_whole_chunks, read_header, upright
from utils.video import READABLE_SUFFIXES, SQUARE, VideoReader

logger = logging.getLogger(__name__)

# A path with this text names a file in an LMDB.
LMDB_MARK = ".lmdb::"
# The files of an LMDB. If their state stays the same, a stored list of the clips is still right.
LMDB_FILES = ("data.mdb", "meta_info.txt")
# Endings of files that often lie beside frames and films. No warning names them. A file with any
# other ending that is not read is named in a warning, because it may be a picture or a film.
ENDINGS_BESIDE_FRAMES = (
    *FORMATS, ".json", ".txt", ".md", ".csv", ".tsv", ".xml", ".yaml", ".yml", ".html", ".log",
    ".srt", ".vtt", ".ass", ".wav", ".mp3", ".m4a", ".aac", ".flac", ".mdb", ".sha256", ".md5",
)  # fmt: skip
PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
JPEG_START = b"\xff\xd8"  # the first two bytes of every JPEG
# Number of bytes of a picture that are read first, to find its header: its size, and how it is
# turned. A PNG states its size in the first 33 bytes, but its orientation (eXIf) may come later,
# before the pixels. If it is not within these bytes, the whole file is read. One page of a file
# system has 4096 bytes, so fewer bytes would save nothing.
HEAD_BYTES = 4096
# How OpenCV decodes a picture: in colour, and not turned upright. Versions of OpenCV differ in the
# formats that they turn, so `decode_bgr` turns the picture itself.
AS_STORED = cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION
# Kinds of files that may have the ending of a picture but cannot be read: a pattern for the first
# bytes of the content, and the name of the kind for the error message. "...." is the length of a
# box, which may be any. A new kind is one line here.
OTHER_KINDS = {
    rb"GIF8": "GIF",
    rb"....ftyp(hei[cx]|hev[cx]|mif1|msf1)": "HEIC",
    rb"....ftypavi[fs]": "AVIF",
    rb"\xff\x0a|\0\0\0\x0cJXL ": "JPEG XL",
    rb"\0\0\0\x0cjP  |\xff\x4f\xff\x51": "JPEG 2000",
    rb"\x76\x2f\x31\x01": "OpenEXR",
    rb"#\?(RADIANCE|RGBE)": "Radiance HDR",
    rb"version https://git-lfs": "a pointer of Git LFS",
    rb"(?i)\s*<(!doctype|html)": "a web page",
}
# Warning about spike files in which a plane is reached only through all planes before it.
SLOW_FROM_START = (
    "every frame reads the file of its clip from the start, which is slow for long clips: "
    "convert it to .dat (scripts/spike_tool.py convert), "
    "or build a clip cache (scripts/build_clip_cache.py)"
)
# Names of folders within a clip. A folder with such a name is never a clip of its own.
CLIP_FOLDERS = frozenset({"blur", "blur_gamma", "sharp", "instants", "spike"})
# What follows the name of a file in a line of meta_info.txt: " (720,1280,3) 1" or " (720,1280,3)".
_LMDB_SHAPE = re.compile(r" \(\d+(?:, ?\d+)+\)(?: \d+)?$")
# What an error tells the user to do if a data root is missing.
_ADVICE_FOR_MISSING_ROOT = (
    "correct the dataroot in the options, or make or copy the data (docs/data_format.md)"
)
# Largest relative difference between the ratio height / width of a frame and of a spike plane. The
# sides of a small plane are rounded to whole pixels: a plane of 50 rows may be one row too high,
# which is 2 %. A larger value would accept planes that were read with a wrong size.
_RATIO_TOLERANCE = 0.02

# {root: open database} of the LMDBs that this process has open. The package lmdb calls an open
# database an environment.
_environments: dict[str, Any] = {}
# Held while an LMDB is opened: the data check reads in several threads, and LMDB allows a process
# to open a database only once (test_threads_that_begin_together_open_an_lmdb_once).
_opening_lock = threading.Lock()


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


# ---- Files and folders of a data root --------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One file, as it was listed.

    What must stay: the meaning of size and mtime_ns. The digests in clip caches are made from them
    (data/clips/manifest.py), so another meaning would make every existing cache look outdated.
    """

    path: str  # path for `read_bytes`
    size: int  # in bytes
    mtime_ns: int  # time of change in ns; for a file in an LMDB, of the whole LMDB


@dataclass(frozen=True, slots=True)
class Folder(Mapping[str, FileEntry]):
    """The files of one clip and kind, as {stem: file}.

    The object holds only names. The size and the time of change of a file are read when the file is
    asked for. The names are one text, because objects for the 904,568 files of Vimeo-90K would take
    too much memory.

    prefix: text before a name in its path, e.g. "/data/train/clip_a/blur/".
    joined_names: the names with "/" after each, e.g. "000000.png/000001.png/". No name can hold a
    "/". The order of the names is the order of all other lists of this class.
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
        """Make a folder of names. E.g. "a.png", "b.png" -> joined_names "a.png/b.png/"."""
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
        # "0.jpg" and "0.jpeg" have one stem, which a mapping must yield once.
        return iter(dict.fromkeys(self.stems))

    def __len__(self) -> int:
        """Return the number of files. "0.jpg" and "0.jpeg" have one stem, but are two files."""
        return self.joined_names.count("/")


def stem_of(path: str) -> str:
    """Return the stem of a file, the name of its frame without an ending.

    "/data/clip_a/000000.png" and "/data/train.lmdb::clip_a/000000" -> "000000".
    """
    _, mark, key = path.partition(LMDB_MARK)
    if mark:
        # A key has no ending, so a dot in a key belongs to the stem.
        _, _, stem = key.rpartition("/")
        return stem
    _, _, name = path.rpartition("/")
    stem, _ = os.path.splitext(name)
    return stem


def list_clip(root: str, folder: str, suffixes: tuple[str, ...], name: str) -> Folder | None:
    """Return the files of the clip `name`, or None if it has no folder.

    folder: name of the folder within a clip, e.g. "blur".
    suffixes: endings of the files' names, e.g. (".png", ".jpg").
    """
    clips, _ = _list_clip(root, folder, suffixes, name)
    return clips.get(name)


class State(NamedTuple):
    """State of a folder, or of a file of an LMDB: two times of change in ns.

    data/clips/kept.py stores states as rows of two numbers, so the fields and their order must
    stay.
    """

    # Changes when an entry is added, removed or renamed. A program can set it back: `cp -a` does.
    mtime_ns: int
    # Set by the system alone: the files of a copy get the time of the copying. So a stored state
    # that was copied together with the data never equals the state of the copy.
    ctime_ns: int


class Listing(dict[str, Folder]):
    """{clip: its files}.

    states: {path: state} of every folder that was listed, and of the files of an LMDB. While no
    state changes, a new listing would find the same names. data/clips/kept.py relies on this: it
    stores the states, and skips the listing at a later start if they are the same.
    """

    def __init__(self) -> None:
        super().__init__()
        self.states: dict[str, State] = {}


def state_of(path: str) -> State:
    """Return the two times of change of a folder or file. Raises OSError."""
    about = os.stat(path)
    return State(about.st_mtime_ns, about.st_ctime_ns)


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
            # Where to download a file of the project, if the path belongs to one. Else "".
            do += address_of(path)
        raise DataError(
            what=f"cannot read: {e.strerror or e}",
            where=str(e.filename or path),
            expected=expected,
            do=do,
        ) from e


def entry_of(path: str) -> FileEntry:
    """Look up size and time of change of a file on disk.

    Raises DataError if there is no such file, or if it is a broken link.
    """
    with os_errors_as_data_errors(path):
        about = os.stat(path)
    return FileEntry(path, about.st_size, about.st_mtime_ns)


def stamp(file: str) -> tuple[int, int]:
    """Return (size, time of change in ns) of a file.

    A file in an LMDB has the size and time of data.mdb. Returns (0, 0) if the file is not on this
    machine: callers only compare stamps, so a missing file is no error for them.

    The result must stay a plain tuple: names of stored calibrations are made from its repr
    (data/cameras/self_calibration.py).
    """
    root, mark, _ = file.partition(LMDB_MARK)
    path = f"{root}.lmdb/data.mdb" if mark else file
    try:
        about = os.stat(path)
    # Python raises ValueError for a path with a zero byte.
    except (OSError, ValueError):
        return 0, 0
    return about.st_size, about.st_mtime_ns


def is_lmdb(root: str) -> bool:
    """Return whether a data root is an LMDB. The name decides, e.g. "/data/train.lmdb"."""
    return root.rstrip("/").endswith(".lmdb")


def list_root(
    root: str,
    folder: str,
    suffixes: tuple[str, ...],
    single_files: bool = False,
    names: Collection[str] | None = None,
) -> Listing:
    """List the files of every clip below a data root.

    The files of a clip are in <root>/<clip>/<folder>, or in <root>/<clip> if there is no such
    folder. A folder that holds folders and no files is no clip. The folders in it are then the
    clips "<folder>/<clip>".

    folder: name of the folder within a clip, e.g. "blur".
    suffixes: endings of the files' names, e.g. (".png", ".jpg"). If a clip has files with several
    of these endings, only the files with the earliest ending are listed.
    single_files: whether a file directly in the root is a clip, too, e.g. <root>/clip_a.dat. If a
    folder <root>/clip_a has files, the folder is the clip.
    names: list only these clips. A name such as "a/b" is looked up in the folder "a" of the root.
    None: every clip.
    Raises DataError if the root cannot be read or holds no clip, and for names that cannot be used
    as names of output files.

    Clips and files come in an order that is the same on every machine. Callers rely on it.
    """
    if is_lmdb(root):
        listing = _list_lmdb(root, names)
    else:
        listing = _list_folders(root, folder, suffixes, single_files, names)
    # Results are written to files with these names, so every name must pass `checked_name`.
    for clip, files in listing.items():
        checked_name(clip, root)
        # A data set may have a million stems, and a test of each takes long. On disk, a stem can
        # only fail by an unprintable character, because the name of a file has no slash. One look
        # at the joined names finds such a character. Only keys of an LMDB can fail in other ways.
        is_in_lmdb = files.lmdb_entries is not None
        if is_in_lmdb or not files.joined_names.isprintable():
            for stem in files.stems:
                checked_name(stem, os.path.join(root, clip))
    return listing


def _list_folders(
    root: str,
    folder: str,
    suffixes: tuple[str, ...],
    single_files: bool,
    names: Collection[str] | None,
) -> Listing:
    """List a root on disk, with the arguments and errors of `list_root`."""
    listing = Listing()
    expected = "a folder with one folder per clip"
    with os_errors_as_data_errors(root, expected=expected, do=_ADVICE_FOR_MISSING_ROOT):
        # Read the state before the list. If the folder changes in between, the stored state is too
        # old. So the next start notices the change and lists the folder again.
        listing.states[root] = state_of(root)
        with os.scandir(root) as entries:
            visible = [entry for entry in entries if not entry.name.startswith(".")]
        visible.sort(key=lambda entry: natural_key(entry.name))
        if names is None:
            names = [entry.name for entry in visible if entry.is_dir()]
    # The folders are listed in threads, because a file system on a network answers slowly. The
    # results come in the order of the names.
    list_clip_named = partial(_list_clip, root, folder, suffixes)
    for clips, states in map_in_threads(list_clip_named, names):
        listing.update(clips)
        listing.states.update(states)

    # Files that lie directly in the root.
    names_in_root = []
    for entry in visible:
        if entry.name.lower().endswith(suffixes) and entry.is_file():
            names_in_root.append(entry.name)
    if single_files:
        _add_single_files(listing, root, suffixes, names_in_root)
    if not listing:
        raise _no_clip(root, folder, names_in_root)
    return listing


def _add_single_files(
    listing: Listing, root: str, suffixes: tuple[str, ...], names: Sequence[str]
) -> None:
    """Add a clip for each file of the root, if the listing has no files of this clip yet.

    E.g. "a.dat" becomes the clip "a", unless the folder "a" has files. If the root has both "a.dat"
    and "a.npy", the file with the earlier suffix is used.

    names: names of the files that lie directly in the root.
    """
    prefix = os.path.join(root, "")  # the root with a slash at its end
    for suffix in suffixes:
        for name in names:
            if not name.lower().endswith(suffix):
                continue
            stem = name[: -len(suffix)]
            # A clip with files stays. The entry of a folder without files is replaced.
            has_files = bool(listing.get(stem))
            if not has_files:
                listing[stem] = Folder.of_names(prefix, [name])


def _no_clip(root: str, folder: str, names_in_root: Sequence[str]) -> DataError:
    """Return the error for a root without clips.

    folder: name of the folder within a clip, e.g. "blur".
    names_in_root: names of the files that lie directly in the root.
    """
    what = "the data folder holds no clip"
    do = "correct the dataroot"
    if names_in_root:
        # Three names show what kind of files these are.
        shown = ", ".join(names_in_root[:3])
        if len(names_in_root) > 3:
            shown += ", ..."
        what += f", but {len(names_in_root)} files ({shown})"
        do = "put the files of each clip into a folder of its own, or correct the dataroot"
        # Spike files directly in the root may hold a whole clip each. They are only read if
        # spike.exposure says which planes belong to which frame.
        if folder == "spike":
            advice = (
                "if each file holds all planes of a clip, give spike.exposure (docs/data_format.md)"
            )
            do = f"{advice}; otherwise {do}"
    return DataError(what=what, where=root, expected="one folder per clip", do=do)


def _list_clip(
    root: str, folder: str, suffixes: tuple[str, ...], name: str
) -> tuple[dict[str, Folder], dict[str, State]]:
    """List the clip `name` of a root, or the clips in it.

    Returns {clip: its files}, and {path: state} of the folders that were listed. Without a folder
    <root>/<name>, the first dict is empty. If the folder "a" holds folders "b" and "c" and no
    files, the clips are "a/b" and "a/c". Several threads call this at once.

    folder: name of the folder within a clip, e.g. "blur".
    suffixes: endings of the files' names, e.g. (".png", ".jpg").
    name: name of a folder in the root, e.g. "clip_a".
    """
    path = os.path.join(root, name)
    listed_folder = _list_files(path, folder, suffixes)
    if listed_folder is None:
        return {}, {}
    states = {listed_folder.path: listed_folder.state}
    if not listed_folder.inner_clips:
        return {name: listed_folder.files}, states
    clips = {}
    for inner in sorted(listed_folder.inner_clips, key=natural_key):
        inner_path = os.path.join(path, inner)
        inner_listed = _list_files(inner_path, folder, suffixes)
        # None means that the folder was removed a moment ago. `inner_clips` of an inner clip are
        # ignored: only one level of folders is searched.
        if inner_listed is not None:
            clips[f"{name}/{inner}"] = inner_listed.files
            states[inner_listed.path] = inner_listed.state
    return clips, states


class _ListedFolder(NamedTuple):
    """What a folder of a data root holds."""

    path: str  # the folder that was listed: the clip, or its folder "blur" or the like
    state: State  # of this folder
    files: Folder  # the files directly in it, or in its folder "blur" or the like
    inner_clips: list[str]  # names of the folders in it, if these may be the clips; else []


def _list_files(clip: str, folder: str, suffixes: tuple[str, ...]) -> _ListedFolder | None:
    """List a folder that is a clip, or a folder of clips. Returns None if `clip` is no folder.

    It is a folder of clips if nothing shows that it is a clip itself.

    clip: path of the folder, which may be a clip.
    folder: name of the folder within a clip, e.g. "blur".
    suffixes: endings of the files' names, e.g. (".png", ".jpg").
    """
    with os_errors_as_data_errors(clip, expected="a readable folder"):
        # The files are in <clip>/<folder> if this folder exists, else in <clip>.
        path = os.path.join(clip, folder)
        content = _content_of_folder(path)
        has_inner_folder = content is not None
        if content is None:
            path = clip
            content = _content_of_folder(clip)
        if content is None:
            return None
        entries, state = content
        sorted_out = _sort_out(entries, suffixes, find_folders=not has_inner_folder)

    names = _names_with_first_suffix(sorted_out.names_by_suffix)
    prefix = os.path.join(path, "")  # the path with a slash at its end
    files = Folder.of_names(prefix, names)
    # Four things show that `clip` is a clip, and not a folder of clips: its folder `folder`, its
    # files, a file of another kind, e.g. a text, and a folder with a name such as "blur" or
    # "sharp", because this folder holds one kind of the files of a clip.
    has_files = bool(names)
    has_kinds_of_files = any(name in CLIP_FOLDERS for name in sorted_out.folders)
    is_clip = has_inner_folder or has_files or sorted_out.has_other_files or has_kinds_of_files
    inner_clips = [] if is_clip else sorted_out.folders
    return _ListedFolder(path, state, files, inner_clips)


class _SortedOut(NamedTuple):
    """The entries of a folder, without hidden ones."""

    names_by_suffix: dict[str, list[str]]  # {suffix: names of the files that end with it}
    folders: list[str]  # names of the folders
    has_other_files: bool  # whether there is a file with another suffix


def _sort_out(
    entries: Iterable[os.DirEntry[str]], suffixes: tuple[str, ...], find_folders: bool
) -> _SortedOut:
    """Sort the entries of a folder into files with a suffix, folders, and other files.

    find_folders: whether to tell folders from other files. This is slow on some file systems. If
    False, the result has no folders, and a folder sets `has_other_files` like a file with another
    suffix.
    """
    names_by_suffix: dict[str, list[str]] = {suffix: [] for suffix in suffixes}
    folders = []
    has_other_files = False
    for entry in entries:
        if entry.name.startswith("."):
            continue
        suffix = _suffix_of(entry.name, suffixes)
        if suffix is not None:
            names_by_suffix[suffix].append(entry.name)
        elif find_folders and entry.is_dir():
            folders.append(entry.name)
        else:
            has_other_files = True
    return _SortedOut(names_by_suffix, folders, has_other_files)


def _names_with_first_suffix(names_by_suffix: dict[str, list[str]]) -> list[str]:
    """Return the sorted names with the first suffix that any file has, e.g. .png before .jpg.

    The names with all suffixes would give two files for a frame, if a folder has both "0.png" and
    "0.jpg". names_by_suffix: {suffix: names}, in the order of preference.
    """
    for names in names_by_suffix.values():
        if names:
            return sorted(names)
    return []


def _suffix_of(name: str, suffixes: tuple[str, ...]) -> str | None:
    """Return the first suffix with which a name ends, or None. "A.PNG" has the suffix ".png"."""
    lower = name.lower()
    for suffix in suffixes:
        if lower.endswith(suffix):
            return suffix
    return None


def _content_of_folder(folder: str) -> tuple[list[os.DirEntry[str]], State] | None:
    """Return the entries and the state of a folder, or None if `folder` is no folder."""
    try:
        # Read the state before the list. If the folder changes in between, the stored state is too
        # old, so the next start notices the change.
        state = state_of(folder)
        with os.scandir(folder) as entries:
            return list(entries), state
    except (FileNotFoundError, NotADirectoryError):
        return None


# ---- LMDB ------------------------------------------------------------------------------------
#
# An LMDB is mapped into memory. A read behind the end of its file ends the process without an error
# of Python. So a file that is cut short must be refused before a value is read
# (test_an_lmdb_cut_short_is_refused_before_its_missing_pages_are_read).


def _list_lmdb(root: str, names: Collection[str] | None) -> Listing:
    """List the clips of an LMDB. Raises the errors of `list_root`.

    names: the clips that are wanted. None: all clips.
    """
    listing = Listing()
    expected = "meta_info.txt as UTF-8 text beside data.mdb"
    do = _ADVICE_FOR_MISSING_ROOT
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


def _lmdb_key(line: str) -> str:
    """Return the key in a line of meta_info.txt.

    "clip_a/000000.png (720,1280,3) 1" -> "clip_a/000000". A name may hold blanks and brackets, so
    only a shape at the end of the line is cut off: "clip (a)/0 (old)" stays as it is.
    """
    path = _LMDB_SHAPE.sub("", line)
    key, _ = os.path.splitext(path)
    return key


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


# ---- Reading a file --------------------------------------------------------------------------
#
# What must stay: a picture is returned whole and upright, or it is refused. OpenCV alone is not
# enough: it reads half a picture without an error (test_a_jpeg_without_its_end_is_refused), and its
# versions turn different formats (test_a_picture_is_turned_as_its_orientation_says).


def read_bytes(path: str, count: int = -1) -> bytes:
    """Return the content of a file on disk or in an LMDB.

    count: number of bytes to read from the beginning; -1: all.
    Raises DataError with the system's reason. Devices and pipes are refused (`read_plain`), because
    reading them could wait without an end.
    """
    with os_errors_as_data_errors(path):
        if LMDB_MARK not in path:
            return read_plain(path, count)
        root, key = path.split("::", 1)
        with _transaction(root) as transaction:
            value = transaction.get(key.encode())
            if value is None:
                raise OSError("the LMDB has no such key")
            if count >= 0:
                value = value[:count]
            # Copy the value, because the view is not valid after the transaction.
            return bytes(value)


def open_spike_file(path: str, geometry: SpikeGeometry, remainder: str) -> SpikeFile:
    """Open a spike file on disk, or the packed planes in an LMDB.

    geometry: shape and layout of a plane.
    remainder: what to do with a last incomplete plane, a value of the option spike.remainder.
    Raises SpikeFileError, DataError.
    """
    if LMDB_MARK in path:
        return packed_planes(read_bytes(path), path, geometry, remainder)
    return open_spikes(path, geometry, remainder)


def is_read_from_start(path: str) -> bool:
    """Return whether a plane of a spike file is reached only by reading all bytes before it.

    True for an .npz, because this format is compressed, and for a file in an LMDB, because a value
    is read as a whole.
    """
    return LMDB_MARK in path or path.lower().endswith(".npz")


def read_bgr(path: str, size: tuple[int, int] | None = None) -> np.ndarray:
    """Return the upright image in a file as (H, W, 3) uint8 in the order B, G, R.

    size: the expected (H, W), which is the size of the first frame of the clip. None: any size.
    Raises DataError naming the file. An image that is too large or has another size is refused by
    its header, before it is decoded.

    Without a clip cache, every frame of a training is read by this function, so it must stay fast.
    A damaged file must give an error: tests/parts/data/test_any_bytes.py tries files of any bytes.
    """
    return decode_bgr(read_bytes(path), path, size)


def decode_bgr(encoded: bytes, path: str, size: tuple[int, int] | None = None) -> np.ndarray:
    """Return the upright image in the content of a file as (H, W, 3) uint8 in the order B, G, R.

    Raises DataError naming the file, if the image is damaged, too large, or of another size.

    encoded: the content. path: its file, for messages. size: the expected (H, W). None: any size.
    """
    header = read_header(encoded)
    if header is not None:
        refuse_header(header, path)
        _refuse_other_size(header.size, size, path)

    # OpenCV decodes what is there of a picture that is cut short, without an error. So OpenCV gets
    # only pictures in which nothing is known to be wrong.
    image = None
    reason = _why_not_whole(encoded, header)  # "" if nothing is known to be wrong
    if header is not None and not reason:
        try:
            image = cv2.imdecode(np.frombuffer(encoded, np.uint8), AS_STORED)
        except cv2.error as e:
            reason = str(e).splitlines()[0]  # the other lines name functions of OpenCV
    if header is None or image is None:
        if not reason:  # no kind that is known, or OpenCV gave no image and no error
            reason = f"{len(encoded)} bytes that are no whole image"
        raise DataError(
            what=f"cannot read image: {reason}",
            where=path,
            expected="a whole PNG or JPEG file",
            do="restore the file, or remove its clip",
        )
    if header.kind != "TIFF":  # OpenCV turns a TIFF upright itself
        image = np.ascontiguousarray(upright(image, header.orientation))
    _refuse_other_size(image.shape[:2], size, path)
    return image


def _why_not_whole(encoded: bytes, header: Header | None) -> str:
    """Return why a picture cannot be decoded, as far as this is known without decoding; else "".

    encoded: the content of the file. header: its header; None for a file of an unknown kind.
    """
    is_jpeg = encoded.startswith(JPEG_START)
    if is_jpeg and not _has_end(encoded):
        # OpenCV fills the missing part of a truncated JPEG with grey and reports it on stderr only.
        return f"JPEG of {len(encoded)} bytes is cut short"
    if header is None:
        return _other_kind(encoded)
    if header.kind == "PNG" and not has_whole_chunks(encoded):
        return f"PNG of {len(encoded)} bytes is damaged or cut short"
    return ""


def refuse_header(header: Header, path: str) -> None:
    """Refuse a picture that is too large, or has values other than whole numbers of 8 or 16 bits.

    Raises DataError. path: file of the picture. Every reader of pictures must call this before it
    decodes, because a header of a few bytes can state a picture that fills the memory.
    """
    if header.is_too_large:
        megapixels = header.height * header.width / 1e6
        raise DataError(
            what=f"cannot read image: {header.height} x {header.width}, "
            f"{megapixels:.0f} million pixels",
            where=path,
            expected=f"at most {MOST_PIXELS / 1e6:.0f} million pixels (8K frames have 33)",
            do="restore the file, or make the picture smaller",
        )
    if _has_other_numbers(header):
        kind = "floating-point numbers" if header.is_float else "whole numbers"
        raise DataError(
            what=f"cannot read image: the {header.kind} holds {kind} of {header.bits} bits",
            where=path,
            expected="8 or 16 bits for each colour, in whole numbers",
            do="save it with 16 bits, scaled so that white is 65535",
        )


def _has_other_numbers(header: Header) -> bool:
    """Return whether the values of a picture are not whole numbers of at most 16 bits."""
    return header.is_float or header.bits > 16


def _refuse_other_size(found: tuple[int, int], size: tuple[int, int] | None, path: str) -> None:
    """Refuse a frame of another size than the first frame of its clip.

    found: (H, W) of the frame. size: (H, W) of the first frame. None: accept any size.
    """
    if size is None or found == size:
        return
    height, width = size
    found_height, found_width = found
    raise DataError(
        what=f"frame of {found_height} x {found_width}",
        where=path,
        expected=f"{height} x {width}, as the first of its clip",
        do="remove the frame, or make it again",
    )


def _other_kind(content: bytes) -> str:
    """Return a clause that names the kind of a file, for the error message. "" if it is unknown.

    content: the bytes of the file. b"GIF89a..." -> "its content is GIF, which is not read: ...".
    """
    for pattern, kind in OTHER_KINDS.items():
        if re.match(pattern, content, re.DOTALL):
            return f"its content is {kind}, which is not read: save it as PNG"
    return ""


def _has_end(jpeg: bytes) -> bool:
    """Return whether the first scan of a JPEG, which holds its pixels, has an end mark.

    The mark is searched after the header. A search from the beginning could find the end mark of a
    thumbnail in the header. The last bytes of the file prove nothing, because phones append data of
    any kind to a whole picture.
    """
    # A JPEG is JPEG_START and then segments. A segment begins with the byte 0xff, a byte for its
    # kind, and two bytes for its length. The length includes its own two bytes. E.g. the segment
    # ff e0 00 10 has the kind e0 and the length 16, so the next one begins 2 + 16 bytes later. The
    # header ends at the segment of kind 0xda, where the scan begins.
    position = len(JPEG_START)
    while jpeg[position : position + 1] == b"\xff":
        kind = jpeg[position + 1 : position + 2]
        if kind == b"\xda":
            break
        length = int.from_bytes(jpeg[position + 2 : position + 4], "big")
        position += 2 + length
    end_of_image = b"\xff\xd9"
    return jpeg.find(end_of_image, position) >= 0


def image_size(path: str) -> tuple[int, int]:
    """Return (height, width) of an upright image.

    A PNG says its size in its header. Images of other formats are decoded, so that the size is
    certain.
    """
    header = _png_header(path)
    if header is None:
        height, width = read_bgr(path).shape[:2]
        return height, width
    refuse_header(header, path)
    return header.size


def _png_header(path: str) -> Header | None:
    """Return the header of a PNG, or None for other files."""
    head = read_bytes(path, HEAD_BYTES)
    if not head.startswith(PNG_SIGNATURE):
        return None
    header = read_header(head)
    if header is None and len(head) == HEAD_BYTES:
        # Much metadata stands before the pixels, so the beginning was not enough.
        header = read_header(read_bytes(path))
    return header


def what_is_lost(path: str) -> str:
    """Return in words what is lost when a picture is read as 8-bit RGB; "" if nothing is lost.

    The caller writes the words behind the name of the file, e.g. "has 16 bits: they are cut to 8".
    """
    # Only the beginning of a PNG is read here. A file of another format is read as a whole.
    content = b""
    header = _png_header(path)
    if header is None:
        content = read_bytes(path)
        header = read_header(content)
    # `decode_bgr` refuses these pictures, so nothing needs to be said here.
    if header is None or header.is_too_large or _has_other_numbers(header):
        return ""
    if header.bits > 8:
        return _loss_of_16_bits(content or read_bytes(path))
    if header.is_grey:
        return "is a grey image: its value is used for R, G and B"
    return ""


def _loss_of_16_bits(content: bytes) -> str:
    """Return in words what is lost of a 16-bit picture. content: the content of its file.

    Cameras often use only 10, 12 or 14 of 16 bits. The header does not tell how many, so all pixels
    are read.
    """
    bits = _bits_in_use(content)
    if bits is None or bits == 16:
        return "has 16 bits: they are cut to 8"
    # E.g. 12 bits: the largest value is 4095, and 16 times as much fills 16 bits.
    largest = 2**bits - 1
    factor = 2 ** (16 - bits)
    return (
        f"has 16 bits, but no value is above {largest}: {bits} bits? They are cut to "
        f"the upper 8 of 16, which makes it dark; multiply the values by {factor}"
    )


def _bits_in_use(content: bytes) -> int | None:
    """Return how many bits the values of a 16-bit picture use: 8, 10, 12, 14 or 16.

    None if the values do not tell: the picture is black, or it cannot be decoded. In the second
    case the reader refuses the picture, so no error is raised here.
    """
    # OpenCV decodes a part of a PNG that is cut short, and this part may lack the largest values.
    if content.startswith(PNG_SIGNATURE) and not has_whole_chunks(content):
        return None
    try:
        image = cv2.imdecode(np.frombuffer(content, np.uint8), cv2.IMREAD_UNCHANGED)
    except cv2.error:
        return None
    if image is None or image.dtype != np.uint16:
        return None
    if image.ndim == 3:
        image = image[..., :3]  # a fourth channel is opacity
    largest = int(image.max())
    if largest == 0:
        return None
    for bits in (8, 10, 12, 14):
        if largest < 2**bits:
            return bits
    return 16


# ---- Frames of a user ------------------------------------------------------------------------
#
# What must stay: the order of frames (test_images_are_sorted_by_the_numbers_in_their_names), and
# which folder of a clip is read (`clip_path`). Free to change: the texts of warnings.


class UserFrames(Protocol):
    """The frames of one clip of a user, whatever they are made of.

    Two classes have these attributes: `FrameSource` below, and `LongExposures` in
    data/reconstruct.py, whose frames are made of spikes.
    """

    path: Path  # of the folder, image or video, as the user gave it
    # The file of each frame. The images of a folder are in the order of `files_in` ("2" before
    # "10"). The frames of a video all have the path of the video.
    files: list[Path]
    stems: list[str]  # the name of each frame, without an ending
    size: tuple[int, int]  # (H, W) of the first frame
    fps: float | None  # frames a second of a video; None for images
    # Time of each frame of a video in seconds. None for images.
    times: list[Fraction] | None
    pixel_aspect: Fraction  # width / height of a pixel, 1 for images
    is_video: bool

    def __len__(self) -> int: ...

    def read(self, index: int) -> np.ndarray:
        """Return frame `index` as (H, W, 3) uint8 RGB."""
        ...


class FrameSource(UserFrames):
    """The frames of a user: a folder of images, a single image, or a video.

    What must stay: the stems, because the results of a user have these names.
    """

    def __init__(self, path: Path, go_on: Callable[[], object] = lambda: None) -> None:
        """Open the frames. Decodes the first one, so that damage shows at once.

        go_on: called while a video is read, so that the watchdog sees progress.
        """
        if not path.exists():
            raise DataError(
                what="no such file or folder",
                where=str(path),
                expected="a video, or images",
                do="check the path",
            )
        self.path = path
        self.fps = None
        self.times = None
        self.pixel_aspect = SQUARE
        # A file without the ending of an image is tried as a video. `VideoReader` raises an error
        # if the file is no video.
        self.is_video = not path.is_dir() and path.suffix.lower() not in IMAGE_SUFFIXES
        if self.is_video:
            self._open_video(go_on)
        else:
            self._list_images()
        self.size = self._size_of_first()
        # Warn only now. A damaged first image has raised an error above, and an error without
        # warnings before it is easier to see.
        if not self.is_video:
            self._warn()

    def _open_video(self, go_on: Callable[[], object]) -> None:
        """Open the video, and name its frames by their numbers."""
        self._video = VideoReader(self.path, go_on)
        self.fps = self._video.fps
        self.times = self._video.times
        self.pixel_aspect = self._video.pixel_aspect
        count = self._video.num_frames
        self.files = [self.path] * count
        # "000000", "000001", ...: the frames of the published datasets have such names. A video of
        # more than a million frames has longer names, so that all names have one length.
        digits = max(6, len(str(count)))
        self.stems = [f"{number:0{digits}d}" for number in range(count)]

    def _list_images(self) -> None:
        """List the images of the folder, or take the one image. Raises DataError for no image."""
        self.files = files_in(self.path) if self.path.is_dir() else [self.path]
        self.stems = [file.stem for file in self.files]
        if not self.files:
            raise DataError(
                what="the folder holds no images",
                where=str(self.path),
                expected=f"frames as {', '.join(IMAGE_SUFFIXES)}",
                do="check the path",
            )

    def _size_of_first(self) -> tuple[int, int]:
        """Return (H, W) of the first frame. The frame is decoded, so that damage shows at once."""
        first = self._video.read(0) if self.is_video else read_bgr(str(self.files[0]))
        height, width = first.shape[:2]
        return height, width

    def _warn(self) -> None:
        """Warn of files of the folder that are left out, and of what the first image loses."""
        if self.path.is_dir():
            left_out = []
            for path in set(self.path.iterdir()) - set(self.files):
                if path.is_file() and _may_be_frames(path):
                    left_out.append(path.name)
            _warn_left_out(self.path, sorted(left_out, key=natural_key))
        lost = what_is_lost(str(self.files[0]))  # e.g. "has 16 bits: they are cut to 8"
        if lost:
            logger.warning("%s %s", self.files[0], lost)

    def __len__(self) -> int:
        return len(self.stems)

    def read(self, index: int) -> np.ndarray:
        """Return frame `index` as (H, W, 3) uint8 RGB.

        Raises DataError for a frame that cannot be read, or that has another size than the first.
        """
        if self.is_video:
            return self._video.read(index)
        bgr = read_bgr(str(self.files[index]), self.size)
        return np.ascontiguousarray(bgr[..., ::-1])


def files_in(folder: Path, suffixes: Sequence[str] = IMAGE_SUFFIXES) -> list[Path]:
    """Return the files of a folder with these endings, by default its images.

    The files are in the order of their stems: by value if all stems are numbers of different forms
    ("432.033333" before "432.1"), else in natural order ("a2" before "a10"). Hidden files are left
    out.
    """
    paths = []
    for path in folder.iterdir():
        if path.suffix.lower() in suffixes and not path.name.startswith("."):
            paths.append(path)
    # `order_of` returns a function: stem -> sort key. It needs all stems, because a single stem
    # that is no number makes the order of all stems the natural order.
    key_of_stem = order_of(path.stem for path in paths)

    def key_of(path: Path) -> tuple[Any, Any]:
        # The second key decides between files of one stem, "0.jpg" and "0.png".
        return key_of_stem(path.stem), natural_key(path.name)

    return sorted(paths, key=key_of)


def clips_in(root: Path, inner: str = "") -> list[tuple[str, Path]]:
    """Return (name, path) of the clips in a folder, in natural order.

    A clip is a film, or a folder of images.
    inner: name of a folder within the folder of a clip, e.g. "blur", in which the images may be.
    Warns of files and folders that may be clips but cannot be read.
    """
    clips = []
    left_out = []
    for path in sorted(root.iterdir(), key=lambda path: natural_key(path.name)):
        if path.name.startswith("."):
            continue
        is_film = path.is_file() and path.suffix.lower() in READABLE_SUFFIXES
        images = clip_path(path, inner)  # <path>/<inner> if it exists, else `path`
        if is_film:
            clips.append((path.stem, path))
        elif images.is_dir() and files_in(images):
            clips.append((path.name, images))
        elif _may_be_frames(images):
            left_out.append(path.name)
    _warn_left_out(root, left_out)
    return clips


def _may_be_frames(path: Path) -> bool:
    """Return whether a file may be a picture or a film that we cannot read.

    Files without an ending, and files with one of `ENDINGS_BESIDE_FRAMES`, are not. For a folder,
    the result is True if any file directly in it may be a picture or a film.
    """
    if path.is_dir():
        return any(_may_be_frames(inner) for inner in path.iterdir() if not inner.is_dir())
    if path.name.startswith("."):
        return False
    ending = path.suffix.lower()
    return ending != "" and ending not in ENDINGS_BESIDE_FRAMES


def _warn_left_out(folder: Path, names: Sequence[str]) -> None:
    """Warn of files that are left out. names: their names; the first five are shown."""
    if not names:
        return
    # Five names show what kind of files these are, and fit into one line of a terminal.
    shown = ", ".join(names[:5])
    if len(names) > 5:
        shown += f", ... ({len(names)} in all)"
    logger.warning("%s: left out, as no film or picture that is read: %s", folder, shown)


def clip_path(path: Path, inner: str, suffixes: Sequence[str] = ()) -> Path:
    """Return the path of the files of a clip.

    It is a file with one of the suffixes, e.g. "<path>.dat", if there is such a file; else the
    folder "<path>/<inner>" if it exists; else `path` itself.
    """
    for suffix in suffixes:
        # Cameras and Windows write endings in capital letters, too.
        for ending in (suffix, suffix.upper()):
            file = path.with_name(path.name + ending)
            if file.is_file():
                return file
    if (path / inner).is_dir():
        return path / inner
    return path


def check_same_view(frame: tuple[int, int], spikes: tuple[int, int], where: str) -> None:
    """Refuse a spike plane if its ratio of height to width differs from the ratio of the frame.

    frame: (H, W) of a frame. spikes: (h, w) of a plane. where: file of the spikes, for the message.
    Raises DataError if the ratios differ by more than `_RATIO_TOLERANCE`.
    """
    H, W = frame
    h, w = spikes
    # The ratios are equal if H / W = h / w, or W h = H w without a division.
    difference = abs(W * h - H * w)
    if difference > _RATIO_TOLERANCE * W * h:
        raise DataError(
            what=f"spikes of {h} x {w} for frames of {H} x {W}",
            where=where,
            expected="the same ratio of height to width",
            do="correct the size of the spike planes; "
            "for a camera with another view, give spike.calibration",
        )

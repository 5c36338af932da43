"""List, read and decode the files of clips.

The files of a clip are in a folder, in an LMDB, or (frames only) in a video. Parts of this module:

* `list_root` lists the files of every clip below a data root, as {clip: `Folder`}.
* `read_bytes` and `read_bgr` read a file, wherever it is, and refuse damaged pictures.
* `FrameSource` reads a user's frames: a folder of images, a single image, or a video.

An LMDB is one database file for a whole data root. We read the layout of BasicSR and KAIR:

    train.lmdb/data.mdb        a value with the content of a PNG under each key "<clip>/<frame>"
    train.lmdb/meta_info.txt   a line for each key: "<clip>/<frame>.png (720,1280,3) 1"

Files in an LMDB have paths as well, for example "/data/train.lmdb::clip_a/000000". The text before
"::" is the root, the text after it is the key.

The stem of a frame is the name of its file without the ending: "000000" for "000000.png".

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
from typing import Any

import cv2
import numpy as np

from data.clip import checked_name
from data.clips import lmdb_sizes
from data.clips.threads import mapped
from data.spike.formats import FORMATS, SpikeFile, SpikeGeometry, open_spikes, packed_planes
from utils.errors import DataError, OptionError, address_of
from utils.files import natural_key, open_plain, order_of, read_plain
from utils.image import IMAGE_SUFFIXES
from utils.picture import MOST_PIXELS, Header, has_whole_chunks, read_header, upright
from utils.video import FILM_SUFFIXES, SQUARE, VideoReader

logger = logging.getLogger(__name__)

# A path with this text names a file in an LMDB.
LMDB_MARK = ".lmdb::"
LMDB_FILES = ("data.mdb", "meta_info.txt")
# Endings of files that often lie beside frames and films. A warning names every other file that is
# left out.
BESIDE_FRAMES = (
    *FORMATS, ".json", ".txt", ".md", ".csv", ".tsv", ".xml", ".yaml", ".yml", ".html", ".log",
    ".srt", ".vtt", ".ass", ".wav", ".mp3", ".m4a", ".aac", ".flac", ".mdb", ".sha256", ".md5",
)  # fmt: skip
PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
# The header of a PNG lies within so many bytes, unless much metadata stands before the pixels.
HEAD_BYTES = 4096
# OpenCV's versions differ in which formats they turn upright, so none is turned by it.
AS_STORED = cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION
# Kinds of files that may have the ending of a picture but cannot be read: a pattern for the first
# bytes of the content, and the name of the kind for the error message.
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
FROM_START = (
    "every frame reads the file of its clip from the start, which is slow for long clips: "
    "convert it to .dat "
    "(scripts/spike_tool.py convert), or build a clip cache (scripts/build_clip_cache.py)"
)
# Names of folders within a clip. A folder with such a name is never a clip of its own.
CLIP_FOLDERS = frozenset({"blur", "blur_gamma", "sharp", "instants", "spike"})
# The end of a line of meta_info.txt after the ending of the file: "720,1280,3) 1" or "720,1280,3)".
_LMDB_END = re.compile(r"\)(?: \d+)?$")
# Advice for a missing root.
_FIND = "correct the dataroot in the options, or make or copy the data (docs/data_format.md)"
# Largest relative difference between the ratio height / width of a frame and of a spike plane. A
# plane that differs by more was probably read with a wrong size.
_RATIO_TOLERANCE = 0.02

# {root: open database} of the LMDBs that this process has open. lmdb calls them environments.
_environments: dict[str, Any] = {}
# A process may open an LMDB only once, and the data check reads in several threads.
_opening = threading.Lock()


def _close_environments() -> None:
    """Close all LMDBs before a fork. The parent opens them again when it needs them."""
    # The lock is released after the fork, so that no thread opens an LMDB during the fork.
    _opening.acquire()
    for environment in _environments.values():
        environment.close()
    _environments.clear()


# A child must not use the environment of its parent, nor open a second one of the same LMDB.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_close_environments,
        after_in_parent=_opening.release,
        after_in_child=_opening.release,
    )


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One file.

    path: path for `read_bytes`. size: size in bytes.
    mtime_ns: time of change in ns. For a file in an LMDB: time of change of the whole LMDB.
    """

    path: str
    size: int
    mtime_ns: int


@dataclass(frozen=True, slots=True)
class Folder(Mapping[str, FileEntry]):
    """The files of one clip and kind, as {stem: file}.

    The object holds only names. The size and the time of change of a file are read when the file is
    asked for. The names are one text, because objects for the 904,568 files of Vimeo-90K would take
    too much memory.

    prefix: text before a name in its path, e.g. "/data/train/clip_a/blur/".
    text: the names with "/" after each, e.g. "000000.png/000001.png/". No name can hold a "/".
    known: the files of a clip in an LMDB, whose sizes are read with the list. None for files on
    disk.
    """

    prefix: str
    text: str
    known: tuple[FileEntry, ...] | None = None

    @property
    def names(self) -> list[str]:
        return self.text.split("/")[:-1]  # there is nothing after the last "/"

    @property
    def stems(self) -> list[str]:
        return [stem_of(path) for path in self.paths]

    @property
    def paths(self) -> list[str]:
        return [self.prefix + name for name in self.names]

    def entries(self) -> dict[str, FileEntry]:
        """Return {stem: file}. Raises DataError for a link whose target is gone.

        Files on disk are looked up at each call, which is slow on a network file system.
        """
        if self.known is not None:
            found: Iterable[FileEntry] = self.known
        else:
            found = map(entry_of, self.paths)
        return dict(zip(self.stems, found, strict=True))

    def __getitem__(self, stem: str) -> FileEntry:
        return self.entries()[stem]

    def __iter__(self) -> Iterator[str]:
        # "0.jpg" and "0.jpeg" have one stem, which a mapping must yield once.
        return iter(dict.fromkeys(self.stems))

    def __len__(self) -> int:
        return self.text.count("/")


def stem_of(path: str) -> str:
    """Return the stem of a file.

    "/data/clip_a/000000.png" and "/data/train.lmdb::clip_a/000000" -> "000000".
    """
    _, mark, key = path.partition(LMDB_MARK)
    if mark:
        # A key has no ending, so a dot in it belongs to the stem.
        return key.rpartition("/")[2]
    name = path.rpartition("/")[2]
    return os.path.splitext(name)[0]


def list_clip(root: str, folder: str, suffixes: tuple[str, ...], name: str) -> Folder | None:
    """Return the files of one clip, or None if it has no folder. Arguments: see `list_root`."""
    clips, _ = _list_clip(root, folder, suffixes, name)
    return clips.get(name)


# State of a folder, or of a file of an LMDB: (mtime, ctime) in ns. mtime changes when an entry is
# added, removed or renamed, but a program can set it back. The system sets ctime, and no program
# can choose it. So a stored state that came together with copied data never fits.
State = tuple[int, int]


class Listing(dict[str, Folder]):
    """{clip: its files}.

    states: {path: state} of every folder that was listed, and of the files of an LMDB. While no
    state changes, a new listing would find the same names.
    """

    def __init__(self) -> None:
        super().__init__()
        self.states: dict[str, State] = {}


def state_of(path: str) -> State:
    """Return the state of a folder or file. Raises OSError."""
    about = os.stat(path)
    return about.st_mtime_ns, about.st_ctime_ns


@contextmanager
def reading(
    path: str, expected: str = "a readable file", do: str = "restore the file, or remove its clip"
) -> Generator[None]:
    """Turn an OSError in the `with` block into a DataError with the system's reason.

    path: the file, if the system's error does not name it. expected, do: texts of the DataError.
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

    Raises DataError if there is no such file, or if it is a link whose target is gone.
    """
    with reading(path):
        about = os.stat(path)
    return FileEntry(path, about.st_size, about.st_mtime_ns)


def stamp(file: str) -> tuple[int, int]:
    """Return size and time of change in ns of a file.

    For a file in an LMDB: size and time of the LMDB. Returns (0, 0) if it is not on this machine.
    """
    root, mark, _ = file.partition(LMDB_MARK)
    path = f"{root}.lmdb/data.mdb" if mark else file
    try:
        found = os.stat(path)
    except (OSError, ValueError):  # ValueError: a zero byte in the path
        return 0, 0
    return found.st_size, found.st_mtime_ns


def is_lmdb(root: str) -> bool:
    """Whether a data root is an LMDB, by its name."""
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
    suffixes: endings of the files' names, e.g. (".png", ".jpg"). A clip has files with the first
    ending that fits any of them.
    single_files: whether the file <root>/<clip><suffix> is a clip, too, if it has no folder.
    names: list only these clips. A name such as "a/b" is looked up in the folder "a" of the root.
    None: every clip.
    Raises DataError if the root cannot be read or holds no clip, and for names that cannot be used
    as names of output files.
    """
    if is_lmdb(root):
        listing = _list_lmdb(root, names)
    else:
        listing = _list_folders(root, folder, suffixes, single_files, names)
    for clip, files in listing.items():
        checked_name(clip, root)
        # A name in a folder has no slash, so only unprintable characters could be refused. One test
        # of the whole text saves the tests of each stem. Keys of an LMDB can hold anything.
        if files.known is not None or not files.text.isprintable():
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
    """List a root on disk. Arguments and errors: see `list_root`."""
    listing = Listing()
    with reading(root, "a folder with one folder per clip", _FIND):
        # The state is read before the list. If the folder changes in between, the stored state is
        # too old, and the folder is listed again at the next start.
        listing.states[root] = state_of(root)
        with os.scandir(root) as entries:
            visible = [entry for entry in entries if not entry.name.startswith(".")]
        visible.sort(key=lambda entry: natural_key(entry.name))
        if names is None:
            names = [entry.name for entry in visible if entry.is_dir()]
    # In threads, because a file system on a network answers slowly.
    for found, states in mapped(partial(_list_clip, root, folder, suffixes), names):
        listing.update(found)
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
    """Add a clip for each file of the root, if no clip of its name has files.

    names: names of the files. If "a.dat" and "a.npy" are there, the earlier suffix wins.
    """
    for suffix in suffixes:
        for name in names:
            stem = name[: -len(suffix)]
            if name.lower().endswith(suffix) and not listing.get(stem):
                listing[stem] = Folder(os.path.join(root, ""), f"{name}/")


def _no_clip(root: str, folder: str, names_in_root: Sequence[str]) -> DataError:
    """Return the error for a root without clips.

    folder: see `list_root`. names_in_root: names of the files that lie directly in the root.
    """
    what = "the data folder holds no clip"
    do = "correct the dataroot"
    if names_in_root:
        shown = ", ".join(names_in_root[:3])
        if len(names_in_root) > 3:
            shown += ", ..."
        what += f", but {len(names_in_root)} files ({shown})"
        do = "put the files of each clip into a folder of its own, or correct the dataroot"
        # One spike file for a whole clip is read only if spike.exposure divides it.
        if folder == "spike":
            advice = (
                "if each file holds all planes of a clip, give spike.exposure (docs/data_format.md)"
            )
            do = f"{advice}; otherwise {do}"
    return DataError(what, root, "one folder per clip", do)


def _list_clip(
    root: str, folder: str, suffixes: tuple[str, ...], name: str
) -> tuple[dict[str, Folder], dict[str, State]]:
    """List the folder `name` in a root.

    Returns {clip: its files}, and {path: state} of the folders that were listed. The first dict is
    empty if there is no such folder. If the folder "a" holds folders "b" and "c" and no files, the
    clips are "a/b" and "a/c". Arguments: see `list_root`.
    """
    states: dict[str, State] = {}
    path = os.path.join(root, name)
    listed = _list_files(path, folder, suffixes, states)
    if listed is None:
        return {}, states
    files, folders = listed
    if not folders:
        return {name: files}, states
    clips = {}
    for inner in sorted(folders, key=natural_key):
        listed = _list_files(os.path.join(path, inner), folder, suffixes, states)
        if listed is not None:
            files, _ = listed  # folders deeper than this are never clips
            clips[f"{name}/{inner}"] = files
    return clips, states


def _list_files(
    clip: str, folder: str, suffixes: tuple[str, ...], states: dict[str, State]
) -> tuple[Folder, list[str]] | None:
    """Return the files of a clip, and the names of the folders in it that are clips themselves.

    There are such folders only if `clip` holds no file. Returns None if `clip` is no folder.
    clip: path of the folder. folder, suffixes: see `list_root`.
    states: gets the state of the listed folder.
    """
    with reading(clip, "a readable folder"):
        # <clip>/<folder> if it exists, else <clip>.
        place = os.path.join(clip, folder)
        entries = _entries_in(place, states)
        has_inner = entries is not None
        if entries is None:
            place = clip
            entries = _entries_in(clip, states)
        if entries is None:
            return None

        names_with: dict[str, list[str]] = {suffix: [] for suffix in suffixes}
        folders = []
        # Whether anything shows that `clip` is a clip, and not a folder of clips.
        is_clip = has_inner
        for entry in entries:
            if entry.name.startswith("."):
                continue
            suffix = _suffix_of(entry.name, suffixes)
            if suffix is not None:
                names_with[suffix].append(entry.name)
            elif not has_inner and entry.is_dir():
                folders.append(entry.name)
            else:
                is_clip = True

    # Take the files with the first ending that any file has: .png before .jpg. A folder with both
    # endings would have two files for a frame.
    names: list[str] = []
    for suffix in suffixes:
        if names_with[suffix]:
            names = sorted(names_with[suffix])
            break
    text = "".join(f"{name}/" for name in names)
    files = Folder(os.path.join(place, ""), text)
    # A folder with a name such as "blur" or "sharp" shows that `clip` is a clip, too: its folders
    # hold kinds of files, and are no clips.
    if names or is_clip or not CLIP_FOLDERS.isdisjoint(folders):
        return files, []
    return files, folders


def _suffix_of(name: str, suffixes: tuple[str, ...]) -> str | None:
    """Return the first suffix with which a name ends, in small or capital letters, or None."""
    lower = name.lower()
    for suffix in suffixes:
        if lower.endswith(suffix):
            return suffix
    return None


def _entries_in(folder: str, states: dict[str, State]) -> list[os.DirEntry[str]] | None:
    """Return the entries of a folder, or None if `folder` is no folder.

    states: gets the state of the folder.
    """
    try:
        # The state is read before the list, for the reason in `_list_folders`.
        state = state_of(folder)
        with os.scandir(folder) as entries:
            found = list(entries)
    except (FileNotFoundError, NotADirectoryError):
        return None
    states[folder] = state
    return found


def _list_lmdb(root: str, names: Collection[str] | None) -> Listing:
    """List the clips of an LMDB. names, errors: see `list_root`."""
    listing = Listing()
    expected = "meta_info.txt as UTF-8 text beside data.mdb"
    do = _FIND
    if os.path.isdir(root):
        do = "make the LMDB again, or correct the dataroot"
    with reading(root, expected, do):
        for name in LMDB_FILES:
            path = os.path.join(root, name)
            listing.states[path] = state_of(path)
        lines = _lines_of_meta_info(root)
    changed_ns, _ = listing.states[os.path.join(root, "data.mdb")]
    keys = [_lmdb_key(line.strip()) for line in lines if line.strip()]
    if names is not None:
        keys = [key for key in keys if key.rpartition("/")[0] in names]

    root = root.rstrip("/")
    # Opens the database, which says what is wrong with the file as a whole.
    _environment(root)
    try:
        sizes = lmdb_sizes.sizes(root, keys)
    except lmdb_sizes.DamagedLmdbError as e:
        raise _damaged_lmdb(root, e) from e
    clips: dict[str, dict[str, FileEntry]] = {}
    for key, size in zip(keys, sizes, strict=True):
        clip, _, stem = key.rpartition("/")
        entries = clips.setdefault(clip, {})
        # The size of a listed key without a value is negative. It becomes an empty file, which
        # every check refuses.
        entries[stem] = FileEntry(f"{root}::{key}", max(0, size), changed_ns)

    for clip, entries in clips.items():
        prefix = f"{root}::{clip}/" if clip else f"{root}::"
        # Keys without a clip form one clip, which is named after the LMDB.
        name = clip or Path(root).stem
        text = "".join(f"{stem}/" for stem in entries)
        listing[name] = Folder(prefix, text, tuple(entries.values()))
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


def _lmdb_key(line: str) -> str:
    """Return the key in a line of meta_info.txt.

    "clip_a/000000.png (720,1280,3) 1" -> "clip_a/000000". A name may hold blanks and brackets, so
    a shape is cut off only if the line ends like one.
    """
    path, blank, _ = line.partition(" (")
    if not path or not blank or not _LMDB_END.search(line):
        path = line
    return os.path.splitext(path)[0]


@contextmanager
def _transaction(root: str) -> Generator[Any]:
    """Open a transaction that reads an LMDB.

    Raises DataError, also if the `with` block finds the LMDB damaged.
    """
    environment = _environment(root)
    import lmdb

    try:
        # With buffers, a value is a view of the mapped file, and not a copy.
        with environment.begin(buffers=True) as transaction:
            yield transaction
    except lmdb.Error as e:
        raise _damaged_lmdb(root, e) from e


def _damaged_lmdb(root: str, error: Exception) -> DataError:
    """Return the error for an LMDB that cannot be read. error: what the reader found."""
    return DataError(
        what=f"the LMDB is damaged: {error}",
        where=root,
        expected="an LMDB whose keys are those of its meta_info.txt",
        do="copy it again (mdb_copy -c compacts it), or make it again",
    )


def _environment(root: str) -> Any:
    """Return the open LMDB. The first call in a process opens the LMDB.

    Raises OptionError if the package lmdb is not installed, DataError for a damaged file.
    """
    with _opening:
        if root in _environments:
            return _environments[root]
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
            # readahead, the system reads no pages beside those of a sample.
            environment = lmdb.open(root, readonly=True, lock=False, readahead=False, meminit=False)
        except lmdb.Error as e:
            raise DataError(
                what=f"cannot open the LMDB: {e}",
                where=root,
                expected="a folder with data.mdb",
                do="make it again, or correct the dataroot",
            ) from e
        # LMDB maps the file: reading a page after its end would kill the process (SIGBUS). Opening
        # reads only the first two pages, so we compare the size with the last page in use.
        size = os.path.getsize(os.path.join(root, "data.mdb"))
        pages = environment.info()["last_pgno"] + 1
        need = pages * environment.stat()["psize"]
        if size < need:
            environment.close()
            raise DataError(
                what=f"the LMDB is cut short: data.mdb has {size} bytes",
                where=root,
                expected=f"{need} bytes, as its first pages say",
                do="copy it again (mdb_copy -c compacts it)",
            )
        _environments[root] = environment
        return environment


def read_bytes(path: str, count: int = -1) -> bytes:
    """Return the content of a file on disk or in an LMDB.

    count: number of bytes to read from the beginning; -1: all.
    Raises DataError with the system's reason.
    """
    with reading(path):
        if LMDB_MARK not in path:
            return read_plain(path, count)
        root, key = path.split("::", 1)
        with _transaction(root) as transaction:
            value = transaction.get(key.encode())
            if value is None:
                raise OSError("the LMDB has no such key")
            if count >= 0:
                value = value[:count]
            return bytes(value)


def open_spike_file(path: str, geometry: SpikeGeometry, remainder: str) -> SpikeFile:
    """Open a spike file on disk, or the packed planes in an LMDB.

    geometry: shape and layout of a plane. remainder: what to do with a last incomplete plane, see
    `spike.remainder`.
    Raises SpikeFileError, DataError.
    """
    if LMDB_MARK in path:
        return packed_planes(read_bytes(path), path, geometry, remainder)
    return open_spikes(path, geometry, remainder)


def is_read_from_start(path: str) -> bool:
    """Whether a plane of a spike file is reached only by reading all bytes before it.

    This is so in an .npz, which is compressed, and in an LMDB, whose values are read as a whole.
    """
    return LMDB_MARK in path or path.lower().endswith(".npz")


def read_bgr(path: str, size: tuple[int, int] | None = None) -> np.ndarray:
    """Return the upright image in a file as (H, W, 3) uint8 in the order B, G, R.

    size: the expected (H, W), which is the size of the first frame of the clip. None: any size.
    Raises DataError naming the file. An image that is too large or has another size is refused by
    its header, before it is decoded.
    """
    return decode_bgr(read_bytes(path), path, size)


def decode_bgr(encoded: bytes, path: str, size: tuple[int, int] | None = None) -> np.ndarray:
    """Return the image in the content of a file, see `read_bgr`. path: for messages."""
    header = read_header(encoded)
    if header is not None:
        refuse_header(header, path)
        _refuse_other_size(header.size, size, path)

    image = None
    reason = ""
    if encoded[:2] == b"\xff\xd8" and not _has_end(encoded):
        # OpenCV fills the missing part of a truncated JPEG with grey and reports it on stderr only.
        reason = f"JPEG of {len(encoded)} bytes is cut short"
    elif header is None:
        reason = _other_kind(encoded)
    elif header.kind == "PNG" and not has_whole_chunks(encoded):
        reason = f"PNG of {len(encoded)} bytes is damaged or cut short"
    else:
        try:
            image = cv2.imdecode(np.frombuffer(encoded, np.uint8), AS_STORED)
        except cv2.error as e:
            reason = str(e).splitlines()[0]
    if header is None or image is None:
        if not reason:
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


def refuse_header(header: Header, path: str) -> None:
    """Refuse a picture that is too large, or whose values are no whole numbers of 8 or 16 bits."""
    if header.is_too_large:
        million = header.height * header.width / 1e6
        raise DataError(
            what=f"cannot read image: {header.height} x {header.width}, "
            f"{million:.0f} million pixels",
            where=path,
            expected=f"at most {MOST_PIXELS / 1e6:.0f} million pixels (8K frames have 33)",
            do="restore the file, or make the picture smaller",
        )
    if header.is_float or header.bits > 16:
        kind = "floating-point numbers" if header.is_float else "whole numbers"
        raise DataError(
            what=f"cannot read image: the {header.kind} holds {kind} of {header.bits} bits",
            where=path,
            expected="8 or 16 bits for each colour, in whole numbers",
            do="save it with 16 bits, scaled so that white is 65535",
        )


def _refuse_other_size(found: tuple[int, int], size: tuple[int, int] | None, path: str) -> None:
    """Refuse a frame of another size than the first frame of its clip.

    found: (H, W) of the frame. size: (H, W) of the first frame. None: accept any size.
    """
    if size is None or found == size:
        return
    raise DataError(
        what="frame of {} x {}".format(*found),
        where=path,
        expected="{} x {}, as the first of its clip".format(*size),
        do="remove the frame, or make it again",
    )


def _other_kind(content: bytes) -> str:
    """Return what kind of file this is, as a clause for a message; "" if it is unknown."""
    for pattern, kind in OTHER_KINDS.items():
        if re.match(pattern, content, re.DOTALL):
            return f"its content is {kind}, which is not read: save it as PNG"
    return ""


def _has_end(jpeg: bytes) -> bool:
    """Whether the first scan of a JPEG, which holds its pixels, has an end.

    The end of the file says nothing: phones append data of any kind. Nor does the first end mark,
    because a thumbnail in the header has one of its own. So we walk over the header.
    """
    # A JPEG is b"\xff\xd8" and then segments: 0xff, a byte for the kind of the segment, two bytes
    # for its length. The length counts its own two bytes. The kind 0xda starts the scan.
    at = 2
    while jpeg[at : at + 1] == b"\xff" and jpeg[at + 1 : at + 2] != b"\xda":
        length = int.from_bytes(jpeg[at + 2 : at + 4], "big")
        at += 2 + length
    end_of_image = b"\xff\xd9"
    return jpeg.find(end_of_image, at) >= 0


def image_size(path: str) -> tuple[int, int]:
    """Return (height, width) of an upright image. Of a PNG, only the header is read."""
    header = _png_header(path)
    if header is None:
        return read_bgr(path).shape[:2]
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

    The words follow the name of the file, e.g. "has 16 bits: they are cut to 8".

    Cameras often use only 10, 12 or 14 of 16 bits. The header does not tell how many, so all pixels
    of a 16-bit picture are read.
    """
    header = _png_header(path)
    content = b""
    if header is None:
        content = read_bytes(path)
        header = read_header(content)
    # Other checks refuse these pictures.
    if header is None or header.is_too_large or header.is_float:
        return ""
    if header.bits > 8:
        bits = _bits_in_use(content or read_bytes(path))
        if 0 < bits < 16:
            return (
                f"has 16 bits, but no value is above {2**bits - 1}: {bits} bits? They are cut to "
                f"the upper 8 of 16, which makes it dark; multiply the values by {2 ** (16 - bits)}"
            )
        return "has 16 bits: they are cut to 8"
    if header.is_grey:
        return "is a grey image: its value is used for R, G and B"
    return ""


def _bits_in_use(content: bytes) -> int:
    """Return how many bits the values of a 16-bit picture use: 8, 10, 12, 14 or 16.

    Returns 0 for a black picture, and 16 if the picture cannot be decoded.
    """
    # OpenCV decodes a part of a PNG that is cut short, and this part may lack the largest values.
    if content.startswith(PNG_SIGNATURE) and not has_whole_chunks(content):
        return 16
    try:
        image = cv2.imdecode(np.frombuffer(content, np.uint8), cv2.IMREAD_UNCHANGED)
    except cv2.error:
        return 16
    if image is None or image.dtype != np.uint16:
        return 16
    if image.ndim == 3:
        image = image[..., :3]  # a fourth channel is opacity
    largest = int(image.max())
    if largest == 0:
        return 0
    for bits in (8, 10, 12, 14):
        if largest < 2**bits:
            return bits
    return 16


class FrameSource:
    """The frames of a user: a folder of images, a single image, or a video.

    files, stems: file and name of each frame. The images of a folder are in the order of
    `files_in` ("2" before "10"). All frames of a video have its one file.
    size: (H, W) of the first frame.
    fps, times, pixel_aspect: see `VideoReader`. For images: None, None and 1.
    go_on: called while a video is read, so that the watchdog sees progress.
    """

    def __init__(self, path: Path, go_on: Callable[[], object] = lambda: None) -> None:
        if not path.exists():
            raise DataError(
                what="no such file or folder",
                where=str(path),
                expected="a video, or images",
                do="check the path",
            )
        self.path = path
        self.fps: float | None = None
        self.times: list[Fraction] | None = None
        self.pixel_aspect = SQUARE
        self.is_video = not path.is_dir() and path.suffix.lower() not in IMAGE_SUFFIXES
        if self.is_video:
            self._open_video(go_on)
        else:
            self._list_images()
        self.size: tuple[int, int] = self._size_of_first()
        # After the first frame was decoded, so that a damaged image gives an error and no warning.
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
        # "000000", "000001", ...: as the frames of the published datasets are named.
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
        """Return (H, W) of the first frame, which is decoded, so that damage shows at once."""
        first = self._video.read(0) if self.is_video else read_bgr(str(self.files[0]))
        height, width = first.shape[:2]
        return height, width

    def _warn(self) -> None:
        """Warn of files of the folder that are left out, and of what the first image loses."""
        if self.path.is_dir():
            others = set(self.path.iterdir()) - set(self.files)
            names = [path.name for path in others if path.is_file() and _may_be_frames(path)]
            _warn_left_out(self.path, sorted(names, key=natural_key))
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
    found = []
    for path in folder.iterdir():
        if path.suffix.lower() in suffixes and not path.name.startswith("."):
            found.append(path)
    # The sort key of a stem. It is made from all stems, because one stem that is no number changes
    # the order of all.
    order = order_of(path.stem for path in found)
    # The second key decides between files of one stem, "0.jpg" and "0.png".
    return sorted(found, key=lambda path: (order(path.stem), natural_key(path.name)))


def clips_in(root: Path, inner: str = "") -> list[tuple[str, Path]]:
    """Return (name, path) of the clips in a folder, in natural order.

    A clip is a film, or a folder of images.
    inner: the images may also lie in a folder of this name within the folder of the clip, "blur".
    Warns of files and folders that look like clips but cannot be read.
    """
    found = []
    left_out = []
    for path in sorted(root.iterdir(), key=lambda path: natural_key(path.name)):
        if path.name.startswith("."):
            continue
        place = clip_place(path, inner)
        if path.is_file() and path.suffix.lower() in FILM_SUFFIXES:
            found.append((path.stem, path))
        elif place.is_dir() and files_in(place):
            found.append((path.name, place))
        elif _may_be_frames(place):
            left_out.append(path.name)
    _warn_left_out(root, left_out)
    return found


def _may_be_frames(path: Path) -> bool:
    """Whether a file may be a picture or a film that we cannot read.

    A folder is true if it holds such a file. BESIDE_FRAMES has the endings of files that lie beside
    frames. A file with any other ending may be a picture.
    """
    if path.is_dir():
        return any(_may_be_frames(inner) for inner in path.iterdir() if not inner.is_dir())
    if path.name.startswith("."):
        return False
    ending = path.suffix.lower()
    return ending != "" and ending not in BESIDE_FRAMES


def _warn_left_out(folder: Path, names: Sequence[str]) -> None:
    """Warn of files that are left out. names: their names; the first five are shown."""
    if not names:
        return
    shown = ", ".join(names[:5])
    if len(names) > 5:
        shown += f", ... ({len(names)} in all)"
    logger.warning("%s: left out, as no film or picture that is read: %s", folder, shown)


def clip_place(path: Path, inner: str, suffixes: Sequence[str] = ()) -> Path:
    """Return where the files of a clip are.

    The first of these that exists: a file with one of the suffixes, e.g. "<path>.dat"; the folder
    "<path>/<inner>"; else `path` itself.
    """
    for suffix in suffixes:
        for ending in (suffix, suffix.upper()):
            file = path.with_name(path.name + ending)
            if file.is_file():
                return file
    if (path / inner).is_dir():
        return path / inner
    return path


def check_same_view(frame: tuple[int, int], spikes: tuple[int, int], where: str) -> None:
    """Refuse a spike plane whose ratio of height to width differs from the ratio of the frame.

    frame: (H, W) of a frame. spikes: (h, w) of a plane. where: the spikes, for the message.
    Raises DataError if the ratios differ by more than `_RATIO_TOLERANCE`.
    """
    height, width = frame
    h, w = spikes
    # H / W = h / w without a division: W h = H w.
    difference = abs(width * h - height * w)
    if difference > _RATIO_TOLERANCE * width * h:
        raise DataError(
            what=f"spikes of {h} x {w} for frames of {height} x {width}",
            where=where,
            expected="the same ratio of height to width",
            do="correct the size of the spike planes; "
            "for a camera with another view, give spike.calibration",
        )

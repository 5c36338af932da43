"""List, read and decode the files of clips: in folders, in an LMDB in the layout of BasicSR and
KAIR, or in a video.

An LMDB holds one value per file under the key "<clip>/<frame>", and beside data.mdb a meta_info.txt
with one line "<clip>/<frame>.<ext> (<shape>) <compression>" per key. Files in it are named
"<root>.lmdb::<clip>/<frame>" here.
"""

import logging
import os
import re
import threading
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
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

LMDB_MARK = ".lmdb::"
LMDB_FILES = ("data.mdb", "meta_info.txt")
# Files that lie beside frames and films, and are no frames.
BESIDE_FRAMES = (
    *FORMATS, ".json", ".txt", ".md", ".csv", ".tsv", ".xml", ".yaml", ".yml", ".html", ".log",
    ".srt", ".vtt", ".ass", ".wav", ".mp3", ".m4a", ".aac", ".flac", ".mdb", ".sha256", ".md5",
)  # fmt: skip
PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
HEAD_BYTES = 4096  # before the pixels of most PNGs stands less
# OpenCV's versions differ in which formats they turn upright, so none is turned by it.
AS_STORED = cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION
# How a file begins that has the ending of a picture and is another one.
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
FROM_START = (
    "every frame reads the file of its clip from the start, which is slow for long clips: "
    "convert it to .dat "
    "(scripts/spike_tool.py convert), or build a clip cache (scripts/build_clip_cache.py)"
)
# Folders within a clip, never clips of their own.
PARTS = frozenset({"blur", "blur_gamma", "sharp", "instants", "spike"})
_LMDB_END = re.compile(r"\)(?: \d+)?$")  # of "<key>.<ext> (<shape>) <compression>"
_FIND = "correct the dataroot in the options, or make or copy the data (docs/data_format.md)"

_environments: dict[str, Any] = {}  # LMDBs that this process has open
# A process may open an LMDB only once, and the data check reads in several threads
_opening = threading.Lock()


def _close_environments() -> None:
    _opening.acquire()  # until after the fork: no thread opens an LMDB during it
    while _environments:
        _environments.popitem()[1].close()


# A child must not use the environment of its parent, nor open a second one of the same LMDB.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_close_environments,
        after_in_parent=_opening.release,
        after_in_child=_opening.release,
    )


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One file: its name for `read_bytes`, its size in bytes, and its time of change (of the whole
    LMDB if in one).
    """

    path: str
    size: int
    mtime_ns: int


@dataclass(frozen=True, slots=True)
class Folder(Mapping[str, FileEntry]):
    """The files of one clip and kind, {frame stem: file}. A file is looked at when it is asked for.

    Vimeo-90K has 904,568 files, so a folder holds their names in one text.

    prefix: what stands before a name in its path. text: the names, each with "/" behind it.
    known: entries of the files in an LMDB; None: they are files on disk.
    """

    prefix: str
    text: str
    known: tuple[FileEntry, ...] | None = None

    @property
    def names(self) -> list[str]:
        return self.text.split("/")[:-1]

    @property
    def stems(self) -> list[str]:
        return [stem_of(path) for path in self.paths]

    @property
    def paths(self) -> list[str]:
        return [self.prefix + name for name in self.names]

    def entries(self) -> dict[str, FileEntry]:
        """Return {stem: file}. Raises DataError for a link whose target is gone."""
        found = self.known if self.known is not None else map(entry_of, self.paths)
        return dict(zip(self.stems, found, strict=True))

    def __getitem__(self, stem: str) -> FileEntry:
        return self.entries()[stem]

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys(self.stems))

    def __len__(self) -> int:
        return self.text.count("/")


def stem_of(path: str) -> str:
    """Return the name of a frame. A key in an LMDB has no ending."""
    _, mark, key = path.partition(LMDB_MARK)
    if mark:
        return key.rpartition("/")[2]
    return os.path.splitext(path.rpartition("/")[2])[0]


def list_clip(root: str, folder: str, suffixes: tuple[str, ...], name: str) -> Folder | None:
    """Return the files of one clip, None if it has no folder. Arguments: see `list_root`."""
    return _list_clip(root, folder, suffixes, name)[0].get(name)


# Of a folder, or of a file of an LMDB: when its entries changed, and when it changed itself, in ns.
# The second time is set by the system, so a record that came with the data cannot hold it.
State = tuple[int, int]


class Listing(dict[str, Folder]):
    """{clip: its files}.

    states: {path: state} of every folder that was listed, and of the files of an LMDB. While none
    of them changes, a new listing finds the same names.
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
    """Raise an OSError in the block as a DataError with the system's reason."""
    try:
        yield
    except OSError as e:
        do += address_of(path) if isinstance(e, FileNotFoundError) else ""
        raise DataError(
            f"cannot read: {e.strerror or e}", str(e.filename or path), expected, do
        ) from e


def entry_of(path: str) -> FileEntry:
    """Raises DataError where there is no such file, or a link whose target is gone."""
    with reading(path):
        about = os.stat(path)
    return FileEntry(path, about.st_size, about.st_mtime_ns)


def stamp(file: str) -> tuple[int, int]:
    """Size and time of change in ns of a file, or of the LMDB that holds it; zeros where this
    machine has neither.
    """
    root, mark, _ = file.partition(LMDB_MARK)
    try:
        found = os.stat(f"{root}.lmdb/data.mdb" if mark else file)
    except (OSError, ValueError):  # as os.path.exists takes them
        return 0, 0
    return found.st_size, found.st_mtime_ns


def is_lmdb(root: str) -> bool:
    return root.rstrip("/").endswith(".lmdb")


def list_root(
    root: str,
    folder: str,
    suffixes: tuple[str, ...],
    single_files: bool = False,
    names: Collection[str] | None = None,
) -> Listing:
    """The files of every clip: those in <root>/<clip>/<folder>, or in <root>/<clip> where there is
    no such folder.

    suffixes: endings of the files' names, ".png"; of several, the first that a folder has files of.
    single_files: also <root>/<clip><suffix>, for a clip without other files. A folder that holds
    folders and no files is no clip: the folders in it are the clips "<folder>/<clip>".
    names: list these clips only, wherever they are below the root; None: every clip.
    Raises DataError for a root that cannot be read or holds no clip, and for names unfit for output
    files.
    """
    if is_lmdb(root):
        listing = _list_lmdb(root, names)
    else:
        listing = _list_folders(root, folder, suffixes, single_files, names)
    for clip, files in listing.items():
        checked_name(clip, root)
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
        listing.states[root] = state_of(root)
        with os.scandir(root) as entries:
            visible = [entry for entry in entries if not entry.name.startswith(".")]
        visible.sort(key=lambda entry: natural_key(entry.name))
        if names is None:
            names = [entry.name for entry in visible if entry.is_dir()]
    for found, states in mapped(partial(_list_clip, root, folder, suffixes), names):
        listing.update(found)
        listing.states.update(states)

    single = [
        entry for entry in visible if entry.name.lower().endswith(suffixes) and entry.is_file()
    ]
    for suffix in suffixes if single_files else ():
        for entry in single:
            stem = entry.name[: -len(suffix)]
            if entry.name.lower().endswith(suffix) and not listing.get(stem):
                listing[stem] = Folder(os.path.join(root, ""), f"{entry.name}/")
    if not listing:
        raise _no_clip(root, folder, [entry.name for entry in single])
    return listing


def _no_clip(root: str, folder: str, single: Sequence[str]) -> DataError:
    """Return the refusal of a root without clips. single: files in it, maybe those of clips."""
    what, do = "the data folder holds no clip", "correct the dataroot"
    if single:
        some = ", ".join(single[:3]) + ", ..." * (len(single) > 3)
        what += f", but {len(single)} files ({some})"
        do = "put the files of each clip into a folder of its own, or correct the dataroot"
        if folder == "spike":
            each = (
                "if each file holds all planes of a clip, give spike.exposure (docs/data_format.md)"
            )
            do = f"{each}; otherwise {do}"
    return DataError(what, root, "one folder per clip", do)


def _list_clip(
    root: str, folder: str, suffixes: tuple[str, ...], name: str
) -> tuple[dict[str, Folder], dict[str, State]]:
    """Return {clip: its files} of the folder `name` in a root, and the states of what was listed.

    There is no clip if there is no such folder. A folder that holds folders and no files is no
    clip: the folders in it are the clips.
    """
    states: dict[str, State] = {}
    path = os.path.join(root, name)
    files = _list_files(path, folder, suffixes, states)
    if files is None:
        return {}, states
    found, folders = files
    if not folders:
        return {name: found}, states
    clips = {}
    for inner in sorted(folders, key=natural_key):
        of_inner = _list_files(os.path.join(path, inner), folder, suffixes, states)
        if of_inner is not None:
            clips[f"{name}/{inner}"] = of_inner[0]
    return clips, states


def _list_files(
    clip: str, folder: str, suffixes: tuple[str, ...], states: dict[str, State]
) -> tuple[Folder, list[str]] | None:
    """Return the files of the clip, and the names of the folders of clips in it.

    There are such folders only if it holds no file. Returns None if `clip` is no folder.
    states: is given the state of the folder that was listed, from before it was.
    """
    with reading(clip, "a readable folder"):
        place = os.path.join(clip, folder)
        entries = _entries_in(place, states)
        has_inner = entries is not None
        if entries is None:
            place = clip
            entries = _entries_in(clip, states)
        if entries is None:
            return None

        found: dict[str, list[str]] = {suffix: [] for suffix in suffixes}
        folders, others = [], has_inner
        for entry in entries:
            name = entry.name
            if name.startswith("."):
                continue
            ending = name.lower()
            suffix = next((suffix for suffix in suffixes if ending.endswith(suffix)), None)
            if suffix is not None:
                found[suffix].append(name)
            elif not has_inner and entry.is_dir():
                folders.append(name)
            else:
                others = True
    names = sorted(next(filter(None, found.values()), []))
    files = Folder(os.path.join(place, ""), "".join(f"{name}/" for name in names))
    return files, [] if files or others or PARTS & set(folders) else folders


def _entries_in(folder: str, states: dict[str, State]) -> list[os.DirEntry[str]] | None:
    """Return what a folder holds, None if it is no folder. states: see `_list_files`."""
    try:
        state = state_of(folder)
        with os.scandir(folder) as entries:
            found = list(entries)
    except (FileNotFoundError, NotADirectoryError):
        return None
    states[folder] = state
    return found


def _list_lmdb(root: str, names: Collection[str] | None) -> Listing:
    about, do = (
        "meta_info.txt as UTF-8 text beside data.mdb",
        "make the LMDB again, or correct the dataroot",
    )
    listing = Listing()
    with reading(root, about, do if os.path.isdir(root) else _FIND):
        for name in LMDB_FILES:
            path = os.path.join(root, name)
            listing.states[path] = state_of(path)
        changed_ns = listing.states[os.path.join(root, LMDB_FILES[0])][0]
        try:
            with open_plain(Path(root, "meta_info.txt")) as file:
                lines = file.read().decode("utf-8").splitlines()
        except UnicodeDecodeError as e:
            raise OSError(f"meta_info.txt: {e}") from e
    keys = [_lmdb_key(line.strip()) for line in lines if line.strip()]
    root = root.rstrip("/")
    found: dict[str, dict[str, FileEntry]] = {}
    if names is not None:
        keys = [key for key in keys if key.rpartition("/")[0] in names]
    _environment(root)  # says what is wrong with the file as a whole
    try:
        sizes = lmdb_sizes.sizes(root, keys)
    except lmdb_sizes.DamagedLmdbError as e:
        raise _damaged_lmdb(root, e) from e
    for key, size in zip(keys, sizes, strict=True):
        clip, _, stem = key.rpartition("/")
        # A listed key without a value appears as an empty file, which every check refuses.
        found.setdefault(clip, {})[stem] = FileEntry(f"{root}::{key}", max(0, size), changed_ns)
    for clip, entries in found.items():
        prefix = f"{root}::{clip}/" if clip else f"{root}::"
        text = "".join(f"{stem}/" for stem in entries)
        listing[clip or Path(root).stem] = Folder(prefix, text, tuple(entries.values()))
    if not listing:
        raise DataError(
            "the LMDB holds no clip",
            root,
            "a key <clip>/<frame> for each frame",
            "correct the dataroot",
        )
    return listing


def _lmdb_key(line: str) -> str:
    """Return the key in a line of meta_info.txt; it may hold blanks and brackets."""
    key, blank, _ = line.partition(" (")
    if not key or not blank or not _LMDB_END.search(line):
        key = line
    return os.path.splitext(key)[0]


@contextmanager
def _transaction(root: str) -> Generator[Any]:
    """Open an LMDB to read. Raises DataError, also for what the block finds damaged in it."""
    environment = _environment(root)
    import lmdb

    try:
        with environment.begin(buffers=True) as transaction:
            yield transaction
    except lmdb.Error as e:
        raise _damaged_lmdb(root, e) from e


def _damaged_lmdb(root: str, error: Exception) -> DataError:
    return DataError(
        what=f"the LMDB is damaged: {error}",
        where=root,
        expected="an LMDB whose keys are those of its meta_info.txt",
        do="copy it again (mdb_copy -c compacts it), or make it again",
    )


def _environment(root: str) -> Any:
    """The LMDB, opened at the first use in this process."""
    with _opening:
        if root in _environments:
            return _environments[root]
        try:
            import lmdb  # an optional package
        except ImportError as e:
            what, do = 'io_backend.type "lmdb" needs the package lmdb', "pip install lmdb"
            raise OptionError(what, "io_backend.type", "an installed lmdb", do) from e
        try:
            environment = lmdb.open(root, readonly=True, lock=False, readahead=False, meminit=False)
        except lmdb.Error as e:
            do = "make it again, or correct the dataroot"
            raise DataError(f"cannot open the LMDB: {e}", root, "a folder with data.mdb", do) from e
        # LMDB maps the file: reading a page after its end would kill the process (SIGBUS). Opening
        # reads the first two.
        size = os.path.getsize(os.path.join(root, "data.mdb"))
        need = (environment.info()["last_pgno"] + 1) * environment.stat()["psize"]
        if size < need:
            environment.close()
            what, do = (
                f"the LMDB is cut short: data.mdb has {size} bytes",
                "copy it again (mdb_copy -c compacts it)",
            )
            raise DataError(what, root, f"{need} bytes, as its first pages say", do)
        _environments[root] = environment
        return environment


def read_bytes(path: str, count: int = -1) -> bytes:
    """The first `count` bytes, -1: all, of a file on disk or in an LMDB.

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
            return bytes(value if count < 0 else value[:count])


def open_spike_file(path: str, geometry: SpikeGeometry, remainder: str) -> SpikeFile:
    """A spike file on disk, or the packed planes in an LMDB. Raises SpikeFileError, DataError."""
    if LMDB_MARK in path:
        return packed_planes(read_bytes(path), path, geometry, remainder)
    return open_spikes(path, geometry, remainder)


def is_read_from_start(path: str) -> bool:
    """Whether planes within a spike file are reached only through all bytes before them: in an .npz
    or an LMDB.
    """
    return LMDB_MARK in path or path.lower().endswith(".npz")


def read_bgr(path: str, size: tuple[int, int] | None = None) -> np.ndarray:
    """The upright image in a file as (H, W, 3) uint8 in the order B, G, R.

    size: the expected (H, W), that of the first frame of the clip; None: any.
    Raises DataError naming the file. What is too large or of another size is not decoded before.
    """
    return decode_bgr(read_bytes(path), path, size)


def decode_bgr(encoded: bytes, path: str, size: tuple[int, int] | None = None) -> np.ndarray:
    """Return the image in the content of a file, see `read_bgr`. path: for messages."""
    header = read_header(encoded)
    if header is not None:
        refuse_header(header, path)
        _refuse_other_size(header.size, size, path)
    image, reason = None, ""
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
        what = f"cannot read image: {reason or f'{len(encoded)} bytes that are no whole image'}"
        raise DataError(
            what, path, "a whole PNG or JPEG file", "restore the file, or remove its clip"
        )
    if header.kind != "TIFF":  # OpenCV turns a TIFF itself
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
    """Refuse a frame of another size (H, W) than the first one of its clip; None: any size."""
    if size is not None and found != size:
        raise DataError(
            what="frame of {} x {}".format(*found),
            where=path,
            expected="{} x {}, as the first of its clip".format(*size),
            do="remove the frame, or make it again",
        )


def _other_kind(content: bytes) -> str:
    """Return what a file holds in place of a picture that is read, as a clause; "" if unknown."""
    for mark, kind in OTHER_KINDS.items():
        if re.match(mark, content, re.DOTALL):
            return f"its content is {kind}, which is not read: save it as PNG"
    return ""


def _has_end(jpeg: bytes) -> bool:
    """Whether the first scan of a JPEG ends.

    Thumbnails come before it, and data of phones, of any kind, behind it.
    """
    at = 2
    while jpeg[at : at + 1] == b"\xff" and jpeg[at + 1 : at + 2] != b"\xda":
        at += 2 + int.from_bytes(jpeg[at + 2 : at + 4], "big")
    return jpeg.find(b"\xff\xd9", at) >= 0


def image_size(path: str) -> tuple[int, int]:
    """(height, width) of an upright image; a PNG is not decoded, only its header is read."""
    header = _png_header(path)
    if header is None:
        return read_bgr(path).shape[:2]
    refuse_header(header, path)
    return header.size


def _png_header(path: str) -> Header | None:
    """Return the header of a PNG; None for other files."""
    head = read_bytes(path, HEAD_BYTES)
    if not head.startswith(PNG_SIGNATURE):
        return None
    header = read_header(head)
    if header is None and len(head) == HEAD_BYTES:
        header = read_header(read_bytes(path))  # much stands before the pixels
    return header


def reduction(path: str) -> str:
    """What reading a picture as 8-bit RGB changes, in words; "" for nothing.

    Of 16 bits, cameras often use 10, 12 or 14, so their values must be read to tell.
    """
    header = _png_header(path)
    content = b""
    if header is None:
        content = read_bytes(path)
        header = read_header(content)
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
    """Return how many bits the values of a picture take: 8, 10, 12, 14 or 16; 0 for a black one."""
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
    return next(bits for bits in (8, 10, 12, 14, 16) if largest < 2**bits)


class FrameSource:
    """The frames of a folder of images (in the natural order of their names), of a single image, or
    of a video.

    files, stems: file and name of each frame. size: (H, W) of the first frame.
    fps, times, go_on: see `VideoReader`; None for images.
    pixel_aspect: see `VideoReader`; 1 for images.
    """

    def __init__(self, path: Path, go_on: Callable[[], object] = lambda: None) -> None:
        if not path.exists():
            raise DataError(
                "no such file or folder", str(path), "a video, or images", "check the path"
            )
        self.path = path
        self.fps: float | None = None
        self.times: list[Fraction] | None = None
        self.pixel_aspect = SQUARE
        self.is_video = not path.is_dir() and path.suffix.lower() not in IMAGE_SUFFIXES
        if self.is_video:
            self._video = VideoReader(path, go_on)
            self.fps, self.times, count = self._video.fps, self._video.times, self._video.num_frames
            self.pixel_aspect = self._video.pixel_aspect
            self.files = [path] * count
            self.stems = [f"{i:0{max(6, len(str(count)))}d}" for i in range(count)]
        else:
            self.files = files_in(path) if path.is_dir() else [path]
            self.stems = [file.stem for file in self.files]
            if not self.files:
                expected = f"frames as {', '.join(IMAGE_SUFFIXES)}"
                raise DataError("the folder holds no images", str(path), expected, "check the path")
        self.size: tuple[int, int] = self._size_of_first()
        if not self.is_video:
            self._warn()

    def _size_of_first(self) -> tuple[int, int]:
        first = self._video.read(0) if self.is_video else read_bgr(str(self.files[0]))
        height, width = first.shape[:2]
        return height, width

    def _warn(self) -> None:
        """Warn of files of the folder that are left out, and of what the first one loses."""
        if self.path.is_dir():
            others = set(self.path.iterdir()) - set(self.files)
            names = [path.name for path in others if path.is_file() and _may_be_frames(path)]
            _warn_left_out(self.path, sorted(names, key=natural_key))
        lost = reduction(str(self.files[0]))
        if lost:
            logger.warning("%s %s", self.files[0], lost)

    def __len__(self) -> int:
        return len(self.stems)

    def read(self, index: int) -> np.ndarray:
        """(H, W, 3) uint8 RGB. Raises DataError for an unreadable frame or one of another size."""
        if self.is_video:
            return self._video.read(index)
        return np.ascontiguousarray(read_bgr(str(self.files[index]), self.size)[..., ::-1])


def files_in(folder: Path, suffixes: Sequence[str] = IMAGE_SUFFIXES) -> list[Path]:
    """Return the files of a folder with these endings, by default its images, by their names."""
    found = [
        path for path in folder.iterdir() if path.suffix.lower() in suffixes and path.name[0] != "."
    ]
    order = order_of(path.stem for path in found)
    return sorted(found, key=lambda path: (order(path.stem), natural_key(path.name)))


def clips_in(root: Path, inner: str = "") -> list[tuple[str, Path]]:
    """Return (name, path) of the clips in a folder, in natural order: films, folders of images.

    inner: the images may also lie in a folder of this name within the folder of the clip.
    Warns of what may be a clip and is left out.
    """
    found = []
    left_out = []
    for path in sorted(root.iterdir(), key=lambda path: natural_key(path.name)):
        place = clip_place(path, inner)
        if path.name.startswith("."):
            continue
        if path.is_file() and path.suffix.lower() in FILM_SUFFIXES:
            found.append((path.stem, path))
        elif place.is_dir() and files_in(place):
            found.append((path.name, place))
        elif _may_be_frames(place):
            left_out.append(path.name)
    _warn_left_out(root, left_out)
    return found


def _may_be_frames(path: Path) -> bool:
    """Whether a file, or one in a folder, may be a picture or a film of a kind that is not read."""
    if path.is_dir():
        return any(_may_be_frames(inner) for inner in path.iterdir() if not inner.is_dir())
    return path.name[0] != "." and path.suffix.lower() not in ("", *BESIDE_FRAMES)


def _warn_left_out(folder: Path, names: Sequence[str]) -> None:
    if names:
        some = ", ".join(names[:5]) + (f", ... ({len(names)} in all)" if len(names) > 5 else "")
        logger.warning("%s: left out, as no film or picture that is read: %s", folder, some)


def clip_place(path: Path, inner: str, suffixes: Sequence[str] = ()) -> Path:
    """Where the files of the clip at `path` are: in one file `path` + suffix, in the folder
    `inner`, or in `path`.
    """
    for suffix in suffixes:
        for ending in (suffix, suffix.upper()):
            file = path.with_name(path.name + ending)
            if file.is_file():
                return file
    return path / inner if (path / inner).is_dir() else path


def check_same_view(frame: tuple[int, int], spikes: tuple[int, int], where: str) -> None:
    """Raise DataError where the aspect ratios of frame (H, W) and spike plane (h, w) differ by more
    than 2 %.
    """
    (height, width), (h, w) = frame, spikes
    if abs(width * h - height * w) > 0.02 * width * h:
        what, expected = (
            f"spikes of {h} x {w} for frames of {height} x {width}",
            "the same ratio of height to width",
        )
        do = (
            "correct the size of the spike planes; "
            "for a camera with another view, give spike.calibration"
        )
        raise DataError(what, where, expected, do)

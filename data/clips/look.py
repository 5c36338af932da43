"""One look at a file: it is opened once, for its state, its form and what is wrong with it."""

import os
from collections.abc import Callable
from typing import NamedTuple

from data.clips import files
from data.clips.files import FileEntry
from data.spike import formats
from data.spike.formats import SpikeGeometry
from utils.errors import DataError
from utils.files import plain_descriptor, rest_of
from utils.picture import read_header

PNG_END = b"IEND\xaeB`\x82"
SPIKE_HEAD = 64  # bytes in which a header of another format shows


class Look(NamedTuple):
    """What was seen of one file.

    place: (device, inode) of a file on disk, which two names of one file have in common.
    shape: (H, W) of a picture. flaw: why it cannot be read. cut: how a PNG is cut short.
    is_reduced: whether reading the picture as 8-bit RGB changes it, see `files.reduction`.
    """

    entry: FileEntry
    place: tuple[int, int] = (0, 0)
    shape: tuple[int, int] | None = None
    flaw: str = ""
    cut: str = ""
    is_reduced: bool = False


def look_at_picture(path: str, decode: bool = False, known: FileEntry | None = None) -> Look:
    """Look at a picture: at header and end of a PNG, at all of another picture.

    decode: whether to decode a PNG, too. known: the entry of a file in an LMDB.
    Raises DataError for a link whose target is gone.
    """
    if known is None:
        return _opened(path, lambda descriptor, look: _look_at_picture(descriptor, look, decode))
    look = Look(known)
    try:
        content = files.read_bytes(path)
        return _with_form(look, content[: files.HEAD_BYTES], lambda: content, decode)
    except DataError as e:
        return look._replace(flaw=e.what)


def look_at_spikes(
    path: str, geometry: SpikeGeometry, remainder: str, known: FileEntry | None = None
) -> Look:
    """Look at a spike file: at the beginning of packed planes.

    The check of the clip reads the headers of arrays, and the lines of an SPS100.
    known: the entry of a file in an LMDB, whose spikes are not read.
    Raises DataError for a link whose target is gone.
    """
    if known is not None:
        return Look(known)
    if formats.is_array(path) or geometry.layout != "raster":
        return Look(files.entry_of(path))
    if formats.SPS100_SIDE in (geometry.height, geometry.width):
        look = Look(files.entry_of(path))
        try:
            formats.open_spikes(path, geometry, remainder)
        except formats.SpikeFileError as e:
            return look._replace(flaw=e.what)
        return look
    return _opened(path, _look_at_planes, "cannot read spike file")


def _opened(path: str, see: Callable[[int, Look], Look], cannot: str = "cannot read") -> Look:
    """Open a file and ask for its state. see: called with its descriptor and the look so far."""
    try:
        descriptor, about = plain_descriptor(path)
    except OSError as e:
        return Look(files.entry_of(path), flaw=f"{cannot}: {e.strerror or e}")
    entry = FileEntry(path, about.st_size, about.st_mtime_ns)
    look = Look(entry, (about.st_dev, about.st_ino))
    try:
        return see(descriptor, look)
    except OSError as e:
        return look._replace(flaw=f"{cannot}: {e.strerror or e}")
    except (DataError, formats.SpikeFileError) as e:
        return look._replace(flaw=e.what)
    finally:
        os.close(descriptor)


def _look_at_picture(descriptor: int, look: Look, decode: bool) -> Look:
    head = os.read(descriptor, files.HEAD_BYTES)
    look = _with_form(look, head, lambda: head + rest_of(descriptor), decode)
    if decode or not head.startswith(files.PNG_SIGNATURE):
        return look
    size = look.entry.size
    if os.pread(descriptor, len(PNG_END), max(0, size - len(PNG_END))) != PNG_END:
        return look._replace(cut=f"PNG of {size} bytes is cut short")
    return look


def _with_form(look: Look, head: bytes, read: Callable[[], bytes], decode: bool) -> Look:
    """Add shape and `is_reduced`. Raises DataError for what cannot be read.

    head: how the file begins. read: returns all of it.
    """
    is_png = head.startswith(files.PNG_SIGNATURE)
    header = read_header(head) if is_png else None
    content = b""
    if header is None or decode:
        # Much may stand before the pixels of a PNG; of other pictures, damage shows nowhere else.
        content = read()
        header = read_header(content)
    flaw = ""
    if header is None or not is_png:
        shape = files.decode_bgr(content, look.entry.path).shape[:2]
    else:
        files.refuse_header(header, look.entry.path)
        shape = header.size
        if decode:
            # A picture whose header is sound has its size, whatever is wrong with its pixels.
            try:
                shape = files.decode_bgr(content, look.entry.path).shape[:2]
            except DataError as e:
                flaw = e.what
    is_reduced = header is not None and (header.bits > 8 or header.is_grey)
    return look._replace(shape=shape, flaw=flaw, is_reduced=is_reduced)


def _look_at_planes(descriptor: int, look: Look) -> Look:
    formats.refuse_header(os.read(descriptor, SPIKE_HEAD), look.entry.path)
    return look

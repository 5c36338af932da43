"""Look at a file for the data check: open it once, and return what was seen as a `Look`.

A look tells the size and time of change of the file, the size of the picture in it, and what is
wrong with it. It is the costly part of a first check, so it reads as little as possible: header and
end of a PNG, the whole of another picture, the beginning of a spike file.
data/clips/preflight.py calls `look_at_picture` and `look_at_spikes` in threads.
"""

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

# The last bytes of every complete PNG: its chunk IEND and the checksum of this chunk.
PNG_END = b"IEND\xaeB`\x82"
# Number of bytes at the beginning of a file in which the header of another format shows, such as
# the header of a .npy that is named .dat.
SPIKE_HEAD = 64


class Look(NamedTuple):
    """What was seen of one file.

    entry: path, size and time of change.
    place: (device, inode) of a file on disk. Two names of one file have the same place.
    shape: (H, W) of a picture. None for a spike file, and for a picture that cannot be read.
    flaw: why the file cannot be read; "" if it can.
    cut: how a PNG is cut short; "" if it is whole.
    is_reduced: whether reading the picture as 8-bit RGB loses something, see `files.reduction`.
    """

    entry: FileEntry
    place: tuple[int, int] = (0, 0)
    shape: tuple[int, int] | None = None
    flaw: str = ""
    cut: str = ""
    is_reduced: bool = False


def look_at_picture(path: str, decode: bool = False, known: FileEntry | None = None) -> Look:
    """Look at a picture: at header and end of a PNG, at all of another picture.

    decode: whether to decode a PNG, too, which finds flipped bits.
    known: size and time of a file in an LMDB; None for a file on disk.
    Raises DataError for a link whose target is gone.
    """
    if known is None:
        return _opened(path, lambda descriptor, look: _look_at_picture(descriptor, look, decode))
    look = Look(known)
    try:
        # A value of an LMDB is read as a whole anyway.
        content = files.read_bytes(path)
        return _with_form(look, content[: files.HEAD_BYTES], lambda: content, decode)
    except DataError as e:
        return look._replace(flaw=e.what)


def look_at_spikes(
    path: str, geometry: SpikeGeometry, remainder: str, known: FileEntry | None = None
) -> Look:
    """Look at a spike file: at the beginning of packed planes.

    Other formats are only asked for size and time, because `ClipCheck` reads their headers.
    geometry, remainder: how the planes lie in the file.
    known: size and time of a file in an LMDB, whose spikes are not read.
    Raises DataError for a link whose target is gone.
    """
    if known is not None:
        return Look(known)
    if formats.is_array(path) or geometry.layout != "raster":
        return Look(files.entry_of(path))
    if formats.SPS100_SIDE in (geometry.height, geometry.width):
        # Files of an SPS100 sensor number the lines of each plane. Opening the file checks them.
        look = Look(files.entry_of(path))
        try:
            formats.open_spikes(path, geometry, remainder)
        except formats.SpikeFileError as e:
            return look._replace(flaw=e.what)
        return look
    return _opened(path, _look_at_planes, "cannot read spike file")


def _opened(path: str, inspect: Callable[[int, Look], Look], cannot: str = "cannot read") -> Look:
    """Open a file, look up its state, and inspect it. Returns what was seen.

    inspect: called with the descriptor of the open file and the look so far; returns the full look.
    cannot: how the flaw begins if the system refuses to read.
    """
    try:
        descriptor, about = plain_descriptor(path)
    except OSError as e:
        return Look(files.entry_of(path), flaw=f"{cannot}: {e.strerror or e}")
    entry = FileEntry(path, about.st_size, about.st_mtime_ns)
    look = Look(entry, place=(about.st_dev, about.st_ino))
    try:
        return inspect(descriptor, look)
    except OSError as e:
        return look._replace(flaw=f"{cannot}: {e.strerror or e}")
    except (DataError, formats.SpikeFileError) as e:
        return look._replace(flaw=e.what)
    finally:
        os.close(descriptor)


def _look_at_picture(descriptor: int, look: Look, decode: bool) -> Look:
    """Inspect an open picture. Arguments: see `_opened` and `look_at_picture`."""
    head = os.read(descriptor, files.HEAD_BYTES)
    look = _with_form(look, head, lambda: head + rest_of(descriptor), decode)
    # Decoding finds a cut by itself, and other pictures than PNG have been decoded.
    if decode or not head.startswith(files.PNG_SIGNATURE):
        return look
    size = look.entry.size
    offset = max(0, size - len(PNG_END))
    if os.pread(descriptor, len(PNG_END), offset) != PNG_END:
        return look._replace(cut=f"PNG of {size} bytes is cut short")
    return look


def _with_form(look: Look, head: bytes, read: Callable[[], bytes], decode: bool) -> Look:
    """Return the look with shape and `is_reduced`. Raises DataError for what cannot be read.

    head: the beginning of the file. read: returns all of the file.
    """
    is_png = head.startswith(files.PNG_SIGNATURE)
    header = read_header(head) if is_png else None
    content = b""
    if header is None or decode:
        # Much may stand before the pixels of a PNG. Damage of other pictures shows only in the
        # whole content.
        content = read()
        header = read_header(content)
    flaw = ""
    if header is None or not is_png:
        shape = files.decode_bgr(content, look.entry.path).shape[:2]
    else:
        files.refuse_header(header, look.entry.path)
        shape = header.size
        if decode:
            # If the header is sound, the picture has this size, whatever is wrong with its pixels.
            # So the shape is kept, and the error becomes the flaw.
            try:
                shape = files.decode_bgr(content, look.entry.path).shape[:2]
            except DataError as e:
                flaw = e.what
    is_reduced = header is not None and (header.bits > 8 or header.is_grey)
    return look._replace(shape=shape, flaw=flaw, is_reduced=is_reduced)


def _look_at_planes(descriptor: int, look: Look) -> Look:
    """Inspect an open file of packed planes: refuse the header of another format."""
    formats.refuse_header(os.read(descriptor, SPIKE_HEAD), look.entry.path)
    return look

"""What the header of a picture says: its size, its depth, and how it is turned upright.

A header is read before anything is decoded, because a few bytes may state a picture that fills the
memory.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

# Pixels of the largest picture or frame of a film that is decoded. 8K frames have 33 million.
MOST_PIXELS = 2**26


class Orientation(NamedTuple):
    """What makes a stored picture upright: first rows and columns are exchanged, then reversed."""

    is_transposed: bool = False
    has_reversed_columns: bool = False
    has_reversed_rows: bool = False


UPRIGHT = Orientation()
# Values of the tag 274 (Exif 2.32, 4.6.4; TIFF 6.0, page 36).
EXIF_ORIENTATIONS = {
    2: Orientation(False, True, False),
    3: Orientation(False, True, True),
    4: Orientation(False, False, True),
    5: Orientation(True, False, False),
    6: Orientation(True, True, False),
    7: Orientation(True, True, True),
    8: Orientation(True, False, True),
}


def upright(image: np.ndarray, orientation: Orientation) -> np.ndarray:
    """Return an image (H, W, ...) as it is shown, (H, W, ...) or (W, H, ...), without a copy."""
    if orientation.is_transposed:
        image = image.swapaxes(0, 1)
    if orientation.has_reversed_columns:
        image = image[:, ::-1]
    if orientation.has_reversed_rows:
        image = image[::-1]
    return image


@dataclass(frozen=True)
class Header:
    """What a picture file says of itself.

    kind: "PNG", "JPEG", "TIFF", "WebP", "BMP" or "PNM". height, width: as stored.
    bits: of a colour. is_float: whether values are floating-point numbers.
    is_grey: whether there is one colour. orientation: how the stored picture becomes upright.
    buffer: number of pixels that a decoder holds at once, if they may be more than the picture.
    """

    kind: str
    height: int
    width: int
    bits: int = 8
    is_float: bool = False
    is_grey: bool = False
    orientation: Orientation = UPRIGHT
    buffer: int = 0

    @property
    def size(self) -> tuple[int, int]:
        """(height, width) of the upright picture."""
        if self.orientation.is_transposed:
            return self.width, self.height
        return self.height, self.width

    @property
    def is_too_large(self) -> bool:
        """Whether it would take too much memory to decode it."""
        return max(self.height * self.width, self.buffer) > MOST_PIXELS


def read_header(content: bytes) -> Header | None:
    """Return the header of a picture.

    content: the file, or its beginning. Returns None if it is no such picture, if its size is 0,
    or if the content ends before the header does.
    """
    for mark, read in READERS.items():
        if re.match(mark, content, re.DOTALL):
            header = read(content)
            return header if header and header.height > 0 and header.width > 0 else None
    return None


def has_whole_chunks(png: bytes) -> bool:
    """Whether each chunk of a PNG lies within it, and each frame of an animation in its picture.

    OpenCV takes memory for what a chunk states before it looks whether that much is there.
    """
    size = png[16:24]
    at = 8
    while at + 12 <= len(png):
        length = int.from_bytes(png[at : at + 4], "big")
        kind = png[at + 4 : at + 8]
        if at + 12 + length > len(png):
            return False
        if kind == b"IEND":
            return True
        if kind == b"fcTL" and not _lies_within(png[at + 8 : at + 8 + length], size):
            return False
        at += 12 + length
    return False


def _lies_within(frame: bytes, size: bytes) -> bool:
    """Whether a frame of an animated PNG lies in the picture. frame: an fcTL. size: of an IHDR."""
    width, height, left, top = (int.from_bytes(frame[at : at + 4], "big") for at in range(4, 20, 4))
    whole_width, whole_height = (int.from_bytes(size[at : at + 4], "big") for at in (0, 4))
    return 0 < width <= whole_width - left and 0 < height <= whole_height - top


# ---- Formats ---------------------------------------------------------------------------------


def _read_png(content: bytes) -> Header | None:
    """Read a PNG. An orientation counts if it stands before the pixels, as libpng writes it."""
    if len(content) < 26 or content[12:16] != b"IHDR":
        return None
    width = int.from_bytes(content[16:20], "big")
    height = int.from_bytes(content[20:24], "big")
    bits, color = content[24:26]
    orientation = UPRIGHT
    at = 8
    while content[at + 4 : at + 8] != b"IDAT":
        if len(content) < at + 8:
            return None
        length = int.from_bytes(content[at : at + 4], "big")
        if content[at + 4 : at + 8] == b"eXIf":
            orientation = _exif_orientation(content[at + 8 : at + 8 + length])
        at += 12 + length
    is_grey = color in (0, 4)
    return Header("PNG", height, width, bits, is_grey=is_grey, orientation=orientation)


def _read_jpeg(content: bytes) -> Header | None:
    """Read a JPEG: segments, each with a marker and a length, up to the frame header."""
    orientation = UPRIGHT
    at = 2
    while at + 10 <= len(content):
        marker = content[at + 1]
        if content[at] != 0xFF:
            at = content.find(b"\xff", at)
            if at < 0:
                return None
        elif marker == 0xFF:
            at += 1
        elif marker in (0x00, 0x01) or 0xD0 <= marker <= 0xD8:  # without a length
            at += 2
        elif 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):  # a frame header
            bits = content[at + 4]
            height = int.from_bytes(content[at + 5 : at + 7], "big")
            width = int.from_bytes(content[at + 7 : at + 9], "big")
            is_grey = content[at + 9] == 1
            return Header("JPEG", height, width, bits, is_grey=is_grey, orientation=orientation)
        elif marker in (0xD9, 0xDA):  # the end, or the pixels
            return None
        else:
            length = int.from_bytes(content[at + 2 : at + 4], "big")
            segment = content[at + 4 : at + 2 + length]
            if marker == 0xE1 and segment.startswith(b"Exif\0\0"):
                orientation = _exif_orientation(segment[6:])
            at += 2 + max(length, 2)
    return None


def _read_tiff(content: bytes) -> Header | None:
    """Read the first picture of a TIFF. OpenCV turns it upright itself."""
    tags = _tiff_tags(content)
    if not {256, 257} <= tags.keys():
        return None
    return Header(
        kind="TIFF",
        height=tags[257],
        width=tags[256],
        bits=tags.get(258, 1),
        is_float=tags.get(339, 1) == 3,
        is_grey=tags.get(277, 1) < 3 and tags.get(262) in (0, 1),
        buffer=tags.get(322, 0) * tags.get(323, 0),  # of a tile
    )


def _read_webp(content: bytes) -> Header | None:
    """Read a WebP: chunks of which the first has the size and one may have the orientation."""
    if len(content) < 30:
        return None
    first = content[12:16]
    if first == b"VP8X":
        width = 1 + int.from_bytes(content[24:27], "little")
        height = 1 + int.from_bytes(content[27:30], "little")
    elif first == b"VP8L":
        packed = int.from_bytes(content[21:25], "little")
        width = 1 + (packed & 0x3FFF)
        height = 1 + (packed >> 14 & 0x3FFF)
    elif first == b"VP8 ":
        width = int.from_bytes(content[26:28], "little") & 0x3FFF
        height = int.from_bytes(content[28:30], "little") & 0x3FFF
    else:
        return None
    orientation = UPRIGHT
    at = 12
    while at + 8 <= len(content):
        length = int.from_bytes(content[at + 4 : at + 8], "little")
        if content[at : at + 4] == b"EXIF":
            exif = content[at + 8 : at + 8 + length].removeprefix(b"Exif\0\0")
            orientation = _exif_orientation(exif)
        at += 8 + length + length % 2
    return Header("WebP", height, width, orientation=orientation)


def _read_bmp(content: bytes) -> Header | None:
    """Read a BMP. A negative height tells that the first row is the upper one."""
    if len(content) < 30:
        return None
    if int.from_bytes(content[14:18], "little") == 12:
        width = int.from_bytes(content[18:20], "little")
        height = int.from_bytes(content[20:22], "little")
    else:
        width = int.from_bytes(content[18:22], "little", signed=True)
        height = abs(int.from_bytes(content[22:26], "little", signed=True))
    return Header("BMP", height, width)


def _read_pnm(content: bytes) -> Header | None:
    """Read a PBM, PGM or PPM."""
    space = rb"(?:\s|#[^\n]{0,1000}\n)+"
    found = re.match(rb"P([1-6])" + space + rb"(\d{1,9})" + space + rb"(\d{1,9})", content)
    if found is None:
        return None
    largest = re.match(space + rb"(\d{1,5})", content[found.end() :])
    is_wide = found[1] not in b"14" and largest is not None and int(largest[1]) > 255
    return Header("PNM", int(found[3]), int(found[2]), 16 if is_wide else 8)


READERS: dict[bytes, Callable[[bytes], Header | None]] = {
    rb"\x89PNG\r\n\x1a\n": _read_png,
    rb"\xff\xd8\xff": _read_jpeg,
    rb"II[\x2a\x2b]\x00|MM\x00[\x2a\x2b]": _read_tiff,
    rb"RIFF....WEBP": _read_webp,
    rb"BM": _read_bmp,
    rb"P[1-6]\s": _read_pnm,
}


# ---- Tags ------------------------------------------------------------------------------------


def _exif_orientation(exif: bytes) -> Orientation:
    """Return the orientation in Exif data, which have the form of a TIFF."""
    return EXIF_ORIENTATIONS.get(_tiff_tags(exif).get(274, 1), UPRIGHT)


def _tiff_tags(content: bytes) -> dict[int, int]:
    """Return {tag: first value} of the first directory of a TIFF, of whole numbers alone."""
    order: Any = "big" if content[:2] == b"MM" else "little"

    def number(at: int, length: int) -> int:
        return int.from_bytes(content[at : at + length], order)

    is_big = number(2, 2) == 43  # BigTIFF: numbers of 8 bytes
    if is_big:
        place, first, entry_length, count_length = number(8, 8), 8, 20, 8
    else:
        place, first, entry_length, count_length = number(4, 4), 2, 12, 4
    lengths = {1: 1, 3: 2, 4: 4, 16: 8}  # of the types BYTE, SHORT, LONG and LONG8
    tags: dict[int, int] = {}
    for index in range(number(place, first)):
        at = place + first + index * entry_length
        if at + entry_length > len(content):
            break
        tag, length = number(at, 2), lengths.get(number(at + 2, 2), 0)
        count = number(at + 4, count_length)
        value = at + 4 + count_length
        if length * count > count_length:  # the values stand elsewhere
            value = number(value, count_length)
        if length and count and value + length <= len(content):
            tags[tag] = number(value, length)
    return tags

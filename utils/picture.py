"""Read the header of a picture file: its size, its depth, and how it is turned upright.

    header = read_header(content)     # content: the bytes of a PNG, JPEG, TIFF, WebP, BMP or PNM
    header.size                       # (height, width) of the upright picture
    header.is_too_large               # whether to refuse it before it is decoded

The header is all that stands before the pixels. It is read before a decoder sees the file, because
a file of a few bytes may state a picture that fills the memory. So every reader here must bear any
bytes: it returns None for a header that is cut short or contradicts itself, and never loops without
an end.

Each format has one reader below, `_read_png` and so on. Its docstring shows the layout of the file.
A layout such as "8 length, 12 kind" gives the number of the byte at which a value begins: the
length begins at byte 8, and the kind at byte 12. A number of several bytes is big endian (the
highest byte first) or little endian (the lowest byte first). In the code, `..._at` or `at` is the
number of a byte of the file.

What must stay: no reader trusts a number in the file without a limit, and each turn of a loop moves
on (tests/stories/test_foreign_files.py and tests/parts/data/test_any_bytes.py read damaged files).
`data/` calls `read_header` for each frame, so a reader must not copy the pixels.

Free to change: a new format is a new reader and a new row of READERS.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

# Pixels of the largest picture or frame of a film that is decoded. 8K frames have 33 million.
MOST_PIXELS = 2**26


class Orientation(NamedTuple):
    """What makes a stored picture upright: first rows and columns are exchanged, then reversed.

    `upright` does these steps. The order of the three fields is the order of the steps.
    """

    is_transposed: bool = False  # whether rows and columns are exchanged
    has_reversed_columns: bool = False  # whether left and right are exchanged
    has_reversed_rows: bool = False  # whether top and bottom are exchanged


UPRIGHT = Orientation()
# Value of the tag "orientation" -> what makes the picture upright (Exif 2.32, 4.6.4; TIFF 6.0, page
# 36). The value 1 is upright already. E.g. a telephone that was held upright writes 6. Test:
# test_a_picture_is_turned_as_its_orientation_says.
EXIF_ORIENTATIONS = {
    2: Orientation(is_transposed=False, has_reversed_columns=True, has_reversed_rows=False),
    3: Orientation(is_transposed=False, has_reversed_columns=True, has_reversed_rows=True),
    4: Orientation(is_transposed=False, has_reversed_columns=False, has_reversed_rows=True),
    5: Orientation(is_transposed=True, has_reversed_columns=False, has_reversed_rows=False),
    6: Orientation(is_transposed=True, has_reversed_columns=True, has_reversed_rows=False),
    7: Orientation(is_transposed=True, has_reversed_columns=True, has_reversed_rows=True),
    8: Orientation(is_transposed=True, has_reversed_columns=False, has_reversed_rows=True),
}


def upright(image: np.ndarray, orientation: Orientation) -> np.ndarray:
    """Turn an image upright, without a copy.

    image: (H, W, ...) as it is stored. Returns (H, W, ...), or (W, H, ...) if the orientation is
    transposed. The result shares memory with `image`, so a caller that changes it changes both.
    """
    if orientation.is_transposed:
        image = image.swapaxes(0, 1)  # (W, H, ...)
    if orientation.has_reversed_columns:
        image = image[:, ::-1]
    if orientation.has_reversed_rows:
        image = image[::-1]
    return image


@dataclass(frozen=True)
class Header:
    """What a picture file says of itself."""

    kind: str  # "PNG", "JPEG", "TIFF", "WebP", "BMP" or "PNM"
    height: int  # of the picture as it is stored, not yet upright
    width: int
    bits: int = 8  # number of bits of one colour value
    is_float: bool = False  # whether values are floating-point numbers
    is_grey: bool = False  # whether a pixel has one value instead of three colours
    orientation: Orientation = UPRIGHT  # how the stored picture becomes upright
    # Pixels of the largest block that a decoder holds at once (a tile of a TIFF), 0 if there are no
    # blocks. A block may be larger than the picture.
    block_pixels: int = 0

    @property
    def size(self) -> tuple[int, int]:
        """(height, width) of the upright picture."""
        if self.orientation.is_transposed:
            return self.width, self.height
        return self.height, self.width

    @property
    def is_too_large(self) -> bool:
        """Whether it would take too much memory to decode it."""
        return max(self.height * self.width, self.block_pixels) > MOST_PIXELS


def read_header(content: bytes) -> Header | None:
    """Return the header of a picture.

    content: the bytes of the file, or of its beginning.

    Returns None if the file has none of the six formats, if its height or width is 0, if the header
    contradicts itself, or if the content ends before the header does.
    """
    for mark, read in READERS.items():
        if re.match(mark, content, re.DOTALL):
            header = read(content)
            if header is None or header.height <= 0 or header.width <= 0:
                return None
            return header
    return None


def has_whole_chunks(png: bytes) -> bool:
    """Return whether a PNG is complete, and no frame of an animation is larger than the picture.

    Each chunk must end within the file. OpenCV takes memory for the length that a chunk states,
    before it looks whether the file has this number of bytes. A chunk is: 0 length of the data, 4
    kind, 8 data, then a checksum of 4 bytes.
    """
    size_of_picture = png[16:24]  # width and height in the first chunk, 4 bytes each
    at = PNG_FIRST_CHUNK
    while at + PNG_CHUNK_OVERHEAD <= len(png):
        chunk = _png_chunk(png, at)
        if chunk.next_at > len(png):
            return False  # the chunk ends behind the end of the file
        if chunk.kind == b"IEND":  # the last chunk
            return True
        if chunk.kind == b"fcTL":  # a frame of an animation
            if not _lies_within(png[chunk.data], size_of_picture):
                return False
        at = chunk.next_at
    return False  # the file ends before the last chunk


def _lies_within(frame: bytes, size_of_picture: bytes) -> bool:
    """Return whether a frame of an animated PNG lies in the picture.

    frame: data of a chunk fcTL: 0 number, 4 width, 8 height, 12 left, 16 top.
    size_of_picture: the first bytes of the chunk IHDR: 0 width, 4 height.
    """
    width = _big_endian(frame, at=4, length=4)
    height = _big_endian(frame, at=8, length=4)
    left = _big_endian(frame, at=12, length=4)
    top = _big_endian(frame, at=16, length=4)
    whole_width = _big_endian(size_of_picture, at=0, length=4)
    whole_height = _big_endian(size_of_picture, at=4, length=4)
    fits_width = 0 < width <= whole_width - left
    fits_height = 0 < height <= whole_height - top
    return fits_width and fits_height


# ---- Numbers in bytes --------------------------------------------------------------------------


def _big_endian(content: bytes, at: int, length: int) -> int:
    """Return the number in `length` bytes from byte `at` on, the highest byte first.

    E.g. the bytes 1, 2 are the number 1 * 256 + 2. If the content ends before, the number has fewer
    bytes; it is 0 without any byte.
    """
    return int.from_bytes(content[at : at + length], "big")


def _little_endian(content: bytes, at: int, length: int) -> int:
    """Return the number in `length` bytes from byte `at` on, the lowest byte first.

    E.g. the bytes 1, 2 are the number 1 + 2 * 256. A cut content is treated as in `_big_endian`.
    """
    return int.from_bytes(content[at : at + length], "little")


# ---- PNG, JPEG and TIFF ------------------------------------------------------------------------

# The chunks of a PNG begin after 8 bytes that every PNG has.
PNG_FIRST_CHUNK = 8
# Bytes of a chunk beside its data: length, kind and checksum, 4 bytes each.
PNG_CHUNK_OVERHEAD = 12
# Colour types of a PNG that are grey: without and with opacity.
PNG_GREY = (0, 4)


class _PngChunk(NamedTuple):
    """A chunk of a PNG."""

    kind: bytes  # e.g. b"IDAT"
    data: slice  # the bytes of the file that are the data of the chunk
    next_at: int  # the byte at which the next chunk begins


def _png_chunk(content: bytes, at: int) -> _PngChunk:
    """Return the chunk that begins at byte `at`. Its data may end behind the end of the content."""
    length = _big_endian(content, at, length=4)
    return _PngChunk(
        kind=content[at + 4 : at + 8],
        data=slice(at + 8, at + 8 + length),  # no copy: the data may be all pixels
        next_at=at + PNG_CHUNK_OVERHEAD + length,
    )


def _read_png(content: bytes) -> Header | None:
    """Read a PNG.

    Layout: 8 bytes, then chunks: 0 length of the data, 4 kind, 8 data, then a checksum of 4 bytes.
    The first chunk is IHDR: in the file, 16 width, 20 height, 24 bits, 25 colour type.
    A chunk eXIf with the orientation counts only if it comes before the pixels (IDAT), as libpng
    writes it.
    """
    # 26 bytes go up to the colour type, which is the last one.
    if len(content) < 26 or content[12:16] != b"IHDR":
        return None
    width = _big_endian(content, at=16, length=4)
    height = _big_endian(content, at=20, length=4)
    bits = content[24]
    is_grey = content[25] in PNG_GREY

    # Look for the orientation in the chunks before the pixels.
    orientation = UPRIGHT
    at = PNG_FIRST_CHUNK
    while True:
        if len(content) < at + 8:  # the content ends before the pixels
            return None
        chunk = _png_chunk(content, at)
        if chunk.kind == b"IDAT":
            break
        if chunk.kind == b"eXIf":
            orientation = _exif_orientation(content[chunk.data])
        at = chunk.next_at
    return Header("PNG", height, width, bits, is_grey=is_grey, orientation=orientation)


# The bytes before Exif data in a JPEG, and in some WebP.
EXIF_BEGIN = b"Exif\0\0"
# Markers of a JPEG: the second byte of a segment, after 0xFF.
JPEG_END = 0xD9  # end of the picture
JPEG_PIXELS = 0xDA  # the pixels follow
JPEG_EXIF = 0xE1  # Exif data, with the orientation
# Frame headers, which have the size, are 0xC0 to 0xCF without these three: tables, an extension and
# arithmetic coding.
JPEG_NO_FRAME_HEADER = (0xC4, 0xC8, 0xCC)


def _read_jpeg(content: bytes) -> Header | None:
    """Read a JPEG up to its frame header.

    Layout: 2 bytes, then segments: 0 the byte 0xFF, 1 marker, 2 length (its own 2 bytes and the
    data), 4 data. A frame header has 4 bits, 5 height, 7 width, 9 number of colours.
    """
    orientation = UPRIGHT
    at = 2  # the byte at which the segment begins
    while at + 10 <= len(content):  # a frame header has 10 bytes up to the number of colours
        marker = content[at + 1]
        if content[at] != 0xFF:
            # Bytes between two segments are skipped.
            at = content.find(b"\xff", at)
            if at < 0:
                return None
        elif marker == 0xFF:
            # Any number of bytes 0xFF may fill the space before a marker.
            at += 1
        elif marker in (0x00, 0x01) or 0xD0 <= marker <= 0xD8:
            # These markers have no length and no data.
            at += 2
        elif 0xC0 <= marker <= 0xCF and marker not in JPEG_NO_FRAME_HEADER:
            bits = content[at + 4]
            height = _big_endian(content, at + 5, length=2)
            width = _big_endian(content, at + 7, length=2)
            is_grey = content[at + 9] == 1
            return Header("JPEG", height, width, bits, is_grey=is_grey, orientation=orientation)
        elif marker in (JPEG_END, JPEG_PIXELS):
            return None  # the frame header must come before
        else:
            length = _big_endian(content, at + 2, length=2)  # of its own 2 bytes and the data
            data = content[at + 4 : at + 2 + length]
            if marker == JPEG_EXIF and data.startswith(EXIF_BEGIN):
                orientation = _exif_orientation(data.removeprefix(EXIF_BEGIN))
            # The length counts its own 2 bytes. A smaller length is wrong, so take 2 for it.
            at += 2 + max(length, 2)
    return None


# Tags of a TIFF and of Exif data.
TAG_WIDTH = 256
TAG_HEIGHT = 257
TAG_BITS = 258
TAG_COLOUR_SPACE = 262
TAG_ORIENTATION = 274
TAG_VALUES_PER_PIXEL = 277
TAG_TILE_WIDTH = 322
TAG_TILE_HEIGHT = 323
TAG_NUMBER_FORMAT = 339
# Values of TAG_COLOUR_SPACE for grey (0: white is 0, 1: black is 0), of TAG_NUMBER_FORMAT for
# floating-point numbers.
TIFF_GREY = (0, 1)
TIFF_FLOAT = 3


def _read_tiff(content: bytes) -> Header | None:
    """Read the first picture of a TIFF. `_tiff_tags` describes the layout.

    The orientation is left out, because OpenCV turns a TIFF upright itself. A missing tag has the
    default of TIFF 6.0, such as 1 bit.
    """
    tags = _tiff_tags(content)
    if TAG_WIDTH not in tags or TAG_HEIGHT not in tags:
        return None
    # A grey pixel has 1 value, or 2: grey and opacity.
    has_few_values = tags.get(TAG_VALUES_PER_PIXEL, 1) < 3
    is_grey = has_few_values and tags.get(TAG_COLOUR_SPACE) in TIFF_GREY
    return Header(
        kind="TIFF",
        height=tags[TAG_HEIGHT],
        width=tags[TAG_WIDTH],
        bits=tags.get(TAG_BITS, 1),
        is_float=tags.get(TAG_NUMBER_FORMAT, 1) == TIFF_FLOAT,
        is_grey=is_grey,
        block_pixels=tags.get(TAG_TILE_WIDTH, 0) * tags.get(TAG_TILE_HEIGHT, 0),
    )


# ---- WebP, BMP and PNM -------------------------------------------------------------------------

LOW_14_BITS = 0x3FFF


def _read_webp(content: bytes) -> Header | None:
    """Read a WebP.

    Layout: 12 bytes, then chunks: 0 kind, 4 length of the data, 8 data, and a byte more if the
    length is odd. The kind of the first chunk tells how the size is stored in it. One of the chunks
    may be EXIF, with the orientation.
    """
    if len(content) < 30:
        return None
    first_kind = content[12:16]
    if first_kind == b"VP8X":
        # Extended: 24 width - 1 and 27 height - 1, of 3 bytes.
        width = 1 + _little_endian(content, at=24, length=3)
        height = 1 + _little_endian(content, at=27, length=3)
    elif first_kind == b"VP8L":
        # Lossless: from 21 on, 14 bits of width - 1 and 14 bits of height - 1. "& LOW_14_BITS"
        # keeps the lowest 14 bits of a number; ">> 14" moves the next bits down to them.
        packed = _little_endian(content, at=21, length=4)
        width = 1 + (packed & LOW_14_BITS)
        height = 1 + ((packed >> 14) & LOW_14_BITS)
    elif first_kind == b"VP8 ":
        # Lossy: 26 width and 28 height, of 14 bits. The two high bits ask for scaling.
        width = _little_endian(content, at=26, length=2) & LOW_14_BITS
        height = _little_endian(content, at=28, length=2) & LOW_14_BITS
    else:
        return None

    # Look for the orientation in all chunks. The first chunk begins at byte 12.
    orientation = UPRIGHT
    at = 12
    while at + 8 <= len(content):
        kind = content[at : at + 4]
        length = _little_endian(content, at + 4, length=4)
        if kind == b"EXIF":
            data = content[at + 8 : at + 8 + length]
            orientation = _exif_orientation(data.removeprefix(EXIF_BEGIN))
        at += 8 + length + length % 2  # a byte more if the length is odd
    return Header("WebP", height, width, orientation=orientation)


def _read_bmp(content: bytes) -> Header | None:
    """Read a BMP.

    Layout: 14 size of the header. In the old header of 12 bytes: 18 width, 20 height. In all
    others: 18 width, 22 height. A negative height says that the first row is the upper one.
    """
    if len(content) < 30:
        return None
    header_size = _little_endian(content, at=14, length=4)
    if header_size == 12:
        width = _little_endian(content, at=18, length=2)
        height = _little_endian(content, at=20, length=2)
    else:
        # These two numbers have a sign.
        width = int.from_bytes(content[18:22], "little", signed=True)
        height = abs(int.from_bytes(content[22:26], "little", signed=True))
    return Header("BMP", height, width)


def _read_pnm(content: bytes) -> Header | None:
    """Read a PBM, PGM or PPM.

    Layout, as text: P and a digit, width, height, and the largest value, e.g. "P6 640 480 255".
    Between them there are spaces, line ends, and comments from # to the end of a line. P1 and P4
    are black and white, and have no largest value.
    """
    # One or more of: a blank or line end, or a comment. {0,1000} bounds the time for a long line.
    space = rb"(?:\s|#[^\n]{0,1000}\n)+"
    head = re.match(rb"P([1-6])" + space + rb"(\d{1,9})" + space + rb"(\d{1,9})", content)
    if head is None:
        return None
    digit = head[1]
    width = int(head[2])
    height = int(head[3])
    bits = 8
    if digit not in (b"1", b"4"):
        # The largest value follows the height. Above 255, a value has two bytes.
        rest = content[head.end() :]
        largest_value = re.match(space + rb"(\d{1,5})", rest)
        if largest_value is not None and int(largest_value[1]) > 255:
            bits = 16
    return Header("PNM", height, width, bits)


# How a file of each format begins (a regular expression) -> its reader.
READERS: dict[bytes, Callable[[bytes], Header | None]] = {
    rb"\x89PNG\r\n\x1a\n": _read_png,
    rb"\xff\xd8\xff": _read_jpeg,
    rb"II[\x2a\x2b]\x00|MM\x00[\x2a\x2b]": _read_tiff,
    rb"RIFF....WEBP": _read_webp,
    rb"BM": _read_bmp,
    rb"P[1-6]\s": _read_pnm,
}


# ---- Tags --------------------------------------------------------------------------------------

# Bytes of a value of the types BYTE, SHORT, LONG and LONG8. Other types, such as text and
# fractions, are left out.
TIFF_TYPE_BYTES = {1: 1, 3: 2, 4: 4, 16: 8}


class TiffForm(NamedTuple):
    """How many bytes the numbers of a TIFF have. There are two forms, TIFF and BIG_TIFF."""

    # Bytes of a place, which is the number of a byte of the file. An entry has as many bytes for
    # its number of values, and as many for the values.
    place_bytes: int
    directory_place_at: int  # the byte of the file at which the place of the first directory begins
    entry_count_bytes: int  # bytes of the number of entries, with which a directory begins
    entry_bytes: int  # bytes of an entry


TIFF = TiffForm(place_bytes=4, directory_place_at=4, entry_count_bytes=2, entry_bytes=12)
BIG_TIFF = TiffForm(place_bytes=8, directory_place_at=8, entry_count_bytes=8, entry_bytes=20)
# The number behind the letters of the byte order that marks a BigTIFF. A TIFF has 42.
MARK_OF_BIG_TIFF = 43


def _exif_orientation(exif: bytes) -> Orientation:
    """Return the orientation in Exif data, which have the form of a TIFF."""
    value = _tiff_tags(exif).get(TAG_ORIENTATION, 1)
    return EXIF_ORIENTATIONS.get(value, UPRIGHT)


def _tiff_tags(content: bytes) -> dict[int, int]:
    """Return {tag: first value} of the first directory of a TIFF. Only whole numbers are read.

    Layout of a TIFF (in parentheses: of a BigTIFF, in which numbers have 8 bytes):
        0 "II" for little endian or "MM" for big endian, 2 the number 42 (43),
        4 (8) at which byte the first directory begins.
    A directory has its number of entries, 2 (8) bytes, then entries of 12 (20) bytes:
        0 tag, 2 type, 4 number of values, 8 (12) the values.
    Values that need more than 4 (8) bytes are elsewhere. Then the entry has their place.

    Any number in the file may be wrong. So nothing is read behind the end of the content: a wrong
    place gives no value, and a wrong number of entries ends the loop.
    """
    order: Any = "big" if content[:2] == b"MM" else "little"

    def number(at: int, length: int) -> int:
        """Return the number in the `length` bytes from byte `at` on."""
        return int.from_bytes(content[at : at + length], order)

    def first_value(entry_at: int) -> int | None:
        """Return the first value of the entry that begins at a byte, None if it cannot be read."""
        value_type = number(entry_at + 2, length=2)
        value_bytes = TIFF_TYPE_BYTES.get(value_type, 0)
        value_count = number(entry_at + 4, form.place_bytes)
        if value_bytes == 0 or value_count == 0:
            return None
        value_at = entry_at + 4 + form.place_bytes
        is_elsewhere = value_bytes * value_count > form.place_bytes
        if is_elsewhere:
            value_at = number(value_at, form.place_bytes)
        if value_at + value_bytes > len(content):
            return None
        return number(value_at, value_bytes)

    is_big = number(at=2, length=2) == MARK_OF_BIG_TIFF
    form = BIG_TIFF if is_big else TIFF
    directory_at = number(form.directory_place_at, form.place_bytes)
    entry_count = number(directory_at, form.entry_count_bytes)
    first_entry_at = directory_at + form.entry_count_bytes
    tags: dict[int, int] = {}
    for index in range(entry_count):
        entry_at = first_entry_at + index * form.entry_bytes
        if entry_at + form.entry_bytes > len(content):
            break
        value = first_value(entry_at)
        if value is not None:
            tag = number(entry_at, length=2)
            tags[tag] = value
    return tags

"""Read the headers of JPEG, WebP, BMP and PNM pictures.

Each format has one reader. Its docstring shows the layout of the file: the byte of the file, or of
a part of the file, at which a value begins. A number of several bytes is big endian (the highest
byte first) in a JPEG, and little endian (the lowest byte first) in a WebP and a BMP. In the code,
`at` is a position in the file, counted in bytes from 0.

What must stay: a reader accepts any bytes, because the files come from other people. It returns
None for a header that is cut short or contradicts itself. A number in the file may be wrong, so no
reader takes memory or time in proportion to it. Each turn of a loop moves forward in the file, so
that no loop is endless.

Tests: tests/stories/test_foreign_files.py, tests/parts/data/test_any_bytes.py
"""

import re

from utils.picture.header import Header, big_endian, little_endian
from utils.picture.orientation import UPRIGHT
from utils.picture.tiff import exif_orientation

# The bytes before Exif data in a JPEG, and in some WebP.
EXIF_BEGIN = b"Exif\0\0"
# Markers of a JPEG. A marker is the second byte of a segment, after 0xFF, and tells its kind.
JPEG_END = 0xD9  # end of the picture
JPEG_PIXELS = 0xDA  # the pixels follow
JPEG_EXIF = 0xE1  # Exif data, with the orientation
# The markers 0xC0 to 0xCF are frame headers. A frame header has the size of the picture. These
# three markers are exceptions: tables (0xC4), an extension (0xC8) and arithmetic coding (0xCC).
JPEG_NO_FRAME_HEADER = (0xC4, 0xC8, 0xCC)


def read_jpeg(content: bytes) -> Header | None:
    """Read a JPEG up to its frame header, the segment that has the size of the picture.

    Returns None if there is no frame header before the pixels.

    Layout: 2 bytes that every JPEG has, then segments.

        byte of the segment    content
        0                      0xFF
        1                      marker, the kind of the segment
        2                      length: number of bytes of the data, plus 2 for the length itself
        4                      data

    The data of a frame header:

        byte of the segment    content
        4                      bits of a value
        5                      height
        7                      width
        9                      number of colours
    """
    orientation = UPRIGHT
    at = 2  # the byte at which the segment begins
    while at + 10 <= len(content):  # a frame header has 10 bytes up to the number of colours
        marker = content[at + 1]
        if content[at] != 0xFF:
            # Bytes between two segments: skip them.
            at = content.find(b"\xff", at)
            if at < 0:
                return None
        elif marker == 0xFF:
            # A JPEG may have more than one 0xFF before a marker. Skip the first of them.
            at += 1
        elif marker in (0x00, 0x01) or 0xD0 <= marker <= 0xD8:
            # A marker without length and data: 0x01 (temporary), 0xD0 to 0xD7 (restart) or 0xD8
            # (begin of the picture). 0x00 is no marker. It says that the 0xFF before it is data.
            at += 2
        elif 0xC0 <= marker <= 0xCF and marker not in JPEG_NO_FRAME_HEADER:
            # The frame header.
            bits = content[at + 4]
            height = big_endian(content, at + 5, length=2)
            width = big_endian(content, at + 7, length=2)
            is_grey = content[at + 9] == 1
            return Header("JPEG", height, width, bits, is_grey=is_grey, orientation=orientation)
        elif marker in (JPEG_END, JPEG_PIXELS):
            return None  # the frame header must come earlier, so this file is broken
        else:
            # This is another segment. Skip it, but look for the orientation in it.
            length = big_endian(content, at + 2, length=2)
            # E.g. if the length is 6, 4 bytes of data follow, because the length itself has 2.
            data = content[at + 4 : at + 2 + length]
            if marker == JPEG_EXIF and data.startswith(EXIF_BEGIN):
                orientation = exif_orientation(data.removeprefix(EXIF_BEGIN))
            # The length counts its own 2 bytes. A smaller length is wrong, and counts as 2, so that
            # the loop moves forward.
            at += 2 + max(length, 2)
    return None


LOW_14_BITS = 0x3FFF  # number & LOW_14_BITS keeps the lowest 14 bits of a number


def read_webp(content: bytes) -> Header | None:
    """Read a WebP. Returns None if it is shorter than 30 bytes, or its first chunk has no size.

    Layout: 12 bytes ("RIFF", 4 bytes, "WEBP"), then chunks.

        byte of the chunk    content
        0                    kind, e.g. "VP8X"
        4                    length of the data
        8                    data, and one byte more if the length is odd

    The kind of the first chunk tells how the size is stored in it. One of the chunks may be EXIF,
    with the orientation.
    """
    # The last byte of the size is byte 29 at the latest. E.g. in VP8X, the height has 3 bytes from
    # byte 27 on.
    if len(content) < 30:
        return None
    first_kind = content[12:16]
    if first_kind == b"VP8X":
        # Extended form: width - 1 begins at byte 24 of the file, and height - 1 at byte 27.
        width = 1 + little_endian(content, at=24, length=3)
        height = 1 + little_endian(content, at=27, length=3)
    elif first_kind == b"VP8L":
        # Lossless form: a number begins at byte 21. Its lowest 14 bits are width - 1, and the next
        # 14 bits are height - 1.
        packed = little_endian(content, at=21, length=4)
        width = 1 + (packed & LOW_14_BITS)
        height = 1 + ((packed >> 14) & LOW_14_BITS)
    elif first_kind == b"VP8 ":
        # Lossy form: the width begins at byte 26, and the height at byte 28. Each has 14 bits. The
        # two bits above these 14 say how a player should enlarge the picture, and are no part of
        # the size.
        width = little_endian(content, at=26, length=2) & LOW_14_BITS
        height = little_endian(content, at=28, length=2) & LOW_14_BITS
    else:
        return None

    # Look for the orientation in all chunks. The first chunk begins at byte 12.
    orientation = UPRIGHT
    at = 12
    while at + 8 <= len(content):
        kind = content[at : at + 4]
        length = little_endian(content, at + 4, length=4)
        if kind == b"EXIF":
            data = content[at + 8 : at + 8 + length]
            orientation = exif_orientation(data.removeprefix(EXIF_BEGIN))
        at += 8 + length + length % 2  # a byte more if the length is odd
    return Header("WebP", height, width, orientation=orientation)


def read_bmp(content: bytes) -> Header | None:
    """Read a BMP. Returns None if it is shorter than 30 bytes.

    Layout:

        byte of the file    content
        14                  size of the header
        18                  width
        20                  height, if the header has 12 bytes (an old form)
        22                  height, if the header is larger

    A BMP stores its lowest row first. A negative height says that the highest row comes first.
    """
    # The smallest BMP has 30 bytes: two headers of 14 and 12 bytes, and one row of 4 bytes.
    if len(content) < 30:
        return None
    header_size = little_endian(content, at=14, length=4)
    if header_size == 12:
        width = little_endian(content, at=18, length=2)
        height = little_endian(content, at=20, length=2)
    else:
        # These two numbers have a sign.
        width = int.from_bytes(content[18:22], "little", signed=True)
        height = abs(int.from_bytes(content[22:26], "little", signed=True))
    return Header("BMP", height, width)


def read_pnm(content: bytes) -> Header | None:
    """Read a PBM, PGM or PPM. Returns None if it does not begin with a kind, a width and a height.

    The layout is text: "P" and a digit, width, height, and the largest value, e.g.
    "P6 640 480 255". Between two of these parts there are spaces, line ends, and comments from "#"
    to the end of a line. Pictures of the kinds P1 and P4 are black and white, and have no largest
    value.
    """
    # Spaces, line ends and comments between two parts. {0,1000} limits the time for a long line.
    space = rb"(?:\s|#[^\n]{0,1000}\n)+"
    number = rb"(\d{1,9})"
    head = re.match(rb"P([1-6])" + space + number + space + number, content)
    if head is None:
        return None
    digit = head[1]
    width = int(head[2])
    height = int(head[3])
    bits = 8
    if digit not in (b"1", b"4"):
        # The largest value follows the height. Above 255, a value has two bytes.
        after_height = content[head.end() :]
        largest_value = re.match(space + rb"(\d{1,5})", after_height)
        if largest_value is not None and int(largest_value[1]) > 255:
            bits = 16
    return Header("PNM", height, width, bits)

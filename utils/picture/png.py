"""Read the header of a PNG, and check that its chunks end within the file.

Layout: 8 bytes that every PNG has, then chunks. Numbers are big endian (the highest byte first).

    byte of the chunk    content
    0                    length of the data
    4                    kind, e.g. "IHDR"
    8                    data
    8 + length           checksum, 4 bytes

What must stay: any length in the file may be wrong, so each length is compared with the size of the
file. Each turn of a loop moves forward in the file, so that no loop is endless. A reader must not
copy the pixels, because `data/` reads the headers of thousands of frames.

Tests: tests/stories/test_foreign_files.py, tests/parts/data/test_any_bytes.py
"""

from typing import NamedTuple

from utils.picture.header import Header, big_endian
from utils.picture.orientation import UPRIGHT
from utils.picture.tiff import exif_orientation

# The chunks of a PNG begin after 8 bytes that every PNG has.
PNG_FIRST_CHUNK = 8
# Bytes of a chunk without its data: length, kind and checksum, 4 bytes each.
PNG_CHUNK_OVERHEAD = 12
# Colour types of a PNG that are grey: without and with opacity.
PNG_GREY = (0, 4)


class _PngChunk(NamedTuple):
    """A chunk of a PNG."""

    kind: bytes  # e.g. b"IDAT"
    data: slice  # the bytes of the file that are the data of the chunk
    next_at: int  # the byte at which the next chunk begins


def _png_chunk(content: bytes, at: int) -> _PngChunk:
    """Return the chunk that begins at byte `at`.

    The length may be wrong, so `data` and `next_at` may lie beyond the end of the content.
    """
    length = big_endian(content, at, length=4)
    return _PngChunk(
        kind=content[at + 4 : at + 8],
        data=slice(at + 8, at + 8 + length),  # no copy: the data may be all pixels
        next_at=at + PNG_CHUNK_OVERHEAD + length,
    )


def read_png(content: bytes) -> Header | None:
    """Read a PNG. Returns None if the content ends before the pixels.

    The first chunk is IHDR. It begins at byte 8 of the file, so its data begin at byte 8 + 8 = 16:

        byte of the file    content
        16                  width
        20                  height
        24                  bits of a value
        25                  colour type

    A chunk eXIf with the orientation counts only if it comes before the pixels (IDAT), as libpng
    writes it.
    """
    # The last byte of the table above is byte 25.
    if len(content) < 26 or content[12:16] != b"IHDR":
        return None
    width = big_endian(content, at=16, length=4)
    height = big_endian(content, at=20, length=4)
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
            orientation = exif_orientation(content[chunk.data])
        at = chunk.next_at
    return Header("PNG", height, width, bits, is_grey=is_grey, orientation=orientation)


def has_whole_chunks(png: bytes) -> bool:
    """Return whether a PNG is complete, and each frame of an animation lies in the picture.

    Each chunk must end within the file. If a chunk states a larger length, OpenCV takes memory for
    this length, before it finds out that the file is shorter.

    png: all bytes of the file. The first chunk of a PNG, IHDR, begins at byte 8. So width and
        height are read from the bytes 16 to 23.
    """
    width_and_height = png[16:24]  # of the picture, 4 bytes each
    at = PNG_FIRST_CHUNK
    while at + PNG_CHUNK_OVERHEAD <= len(png):
        chunk = _png_chunk(png, at)
        if chunk.next_at > len(png):
            return False  # the chunk ends beyond the end of the file
        if chunk.kind == b"IEND":  # the last chunk
            return True
        if chunk.kind == b"fcTL":  # a frame of an animation
            if not _lies_within(png[chunk.data], width_and_height):
                return False
        at = chunk.next_at
    return False  # the file ends before the last chunk


def _lies_within(frame: bytes, width_and_height: bytes) -> bool:
    """Return whether a frame of an animated PNG lies in the picture.

    In a damaged file, the data of the frame may end early. Then the missing numbers are 0, and a
    frame of width or height 0 is refused.

    frame: data of a chunk fcTL. They begin with five numbers of 4 bytes each:

        from byte   0                     4       8        12     16
                    number of the frame   width   height   left   top

    width_and_height: width and height of the picture, 4 bytes each.
    """
    width = big_endian(frame, at=4, length=4)
    height = big_endian(frame, at=8, length=4)
    left = big_endian(frame, at=12, length=4)
    top = big_endian(frame, at=16, length=4)
    whole_width = big_endian(width_and_height, at=0, length=4)
    whole_height = big_endian(width_and_height, at=4, length=4)
    fits_width = 0 < width <= whole_width - left
    fits_height = 0 < height <= whole_height - top
    return fits_width and fits_height

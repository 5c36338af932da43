"""Read the tags of a TIFF: the header of a TIFF picture, and the orientation in Exif data.

Cameras add Exif data to a JPEG, PNG or WebP. Exif data have the form of a TIFF. So `_tiff_tags`
reads the tags of a TIFF and of Exif data.

What must stay: nothing is read beyond the end of the content, and the loop over the entries ends
there, because any number in the file may be wrong (tests/stories/test_foreign_files.py,
tests/parts/data/test_any_bytes.py).
"""

from typing import Literal, NamedTuple

from utils.picture.header import Header
from utils.picture.orientation import UPRIGHT, Orientation

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
# Values of TAG_COLOUR_SPACE for grey. If the value is 0, a pixel with the number 0 is white. If the
# value is 1, such a pixel is black.
TIFF_GREY = (0, 1)
# Value of TAG_NUMBER_FORMAT for floating-point numbers.
TIFF_FLOAT = 3


def read_tiff(content: bytes) -> Header | None:
    """Read the first picture of a TIFF. `_tiff_tags` describes the layout.

    Returns None if the width or the height is missing. If another tag is missing, the default of
    TIFF 6.0 is used, e.g. 1 bit. The orientation is left out, because OpenCV turns a TIFF upright
    itself.
    """
    tags = _tiff_tags(content)
    if TAG_WIDTH not in tags or TAG_HEIGHT not in tags:
        return None
    # A grey pixel has one value, or two: grey and opacity.
    has_one_or_two_values = tags.get(TAG_VALUES_PER_PIXEL, 1) < 3
    is_grey = has_one_or_two_values and tags.get(TAG_COLOUR_SPACE) in TIFF_GREY
    return Header(
        kind="TIFF",
        height=tags[TAG_HEIGHT],
        width=tags[TAG_WIDTH],
        bits=tags.get(TAG_BITS, 1),
        is_float=tags.get(TAG_NUMBER_FORMAT, 1) == TIFF_FLOAT,
        is_grey=is_grey,
        # 0 if the picture has no tiles. A tile may be larger than the picture, and is decoded as a
        # whole, so `Header.is_too_large` also looks at it.
        block_pixels=tags.get(TAG_TILE_WIDTH, 0) * tags.get(TAG_TILE_HEIGHT, 0),
    )


# Value of the tag "orientation" -> what makes the picture upright (Exif 2.32, 4.6.4; TIFF 6.0, page
# 36). `upright` (orientation.py) first exchanges rows and columns, and then reverses columns and
# rows. A picture of value 1 is upright already. E.g. a telephone that was held upright writes 6.
# Test: test_a_picture_is_turned_as_its_orientation_says.
EXIF_ORIENTATIONS = {
    2: Orientation(is_transposed=False, has_reversed_columns=True, has_reversed_rows=False),
    3: Orientation(is_transposed=False, has_reversed_columns=True, has_reversed_rows=True),
    4: Orientation(is_transposed=False, has_reversed_columns=False, has_reversed_rows=True),
    5: Orientation(is_transposed=True, has_reversed_columns=False, has_reversed_rows=False),
    6: Orientation(is_transposed=True, has_reversed_columns=True, has_reversed_rows=False),
    7: Orientation(is_transposed=True, has_reversed_columns=True, has_reversed_rows=True),
    8: Orientation(is_transposed=True, has_reversed_columns=False, has_reversed_rows=True),
}


def exif_orientation(exif: bytes) -> Orientation:
    """Return the orientation in Exif data, which have the form of a TIFF."""
    value = _tiff_tags(exif).get(TAG_ORIENTATION, 1)
    return EXIF_ORIENTATIONS.get(value, UPRIGHT)


# Type of a value -> its number of bytes, for BYTE, SHORT, LONG and LONG8. Other types, such as text
# and fractions, are left out.
TIFF_TYPE_BYTES = {1: 1, 3: 2, 4: 4, 16: 8}


class TiffForm(NamedTuple):
    """How many bytes the numbers of a TIFF have. There are two forms, TIFF and BIG_TIFF.

    An offset is a position in the file, counted in bytes from its start. A directory is a list of
    entries, and an entry is a tag with its values (`_tiff_tags` shows an example).
    """

    # Number of bytes of an offset. Two parts of an entry have this number of bytes, too: the number
    # of values, and the values or their offset.
    offset_bytes: int
    directory_offset_at: int  # where the file has the offset of the first directory
    entry_count_bytes: int  # bytes of the number of entries, with which a directory begins
    entry_bytes: int  # bytes of an entry


TIFF = TiffForm(offset_bytes=4, directory_offset_at=4, entry_count_bytes=2, entry_bytes=12)
BIG_TIFF = TiffForm(offset_bytes=8, directory_offset_at=8, entry_count_bytes=8, entry_bytes=20)
# The number after the two letters of the byte order: 43 for a BigTIFF, 42 for a TIFF.
MARK_OF_BIG_TIFF = 43


def _tiff_tags(content: bytes) -> dict[int, int]:
    """Return {tag: first value} of the first directory of a TIFF. Only whole numbers are read.

    E.g. these bytes, in hexadecimal, are a TIFF whose directory has one entry. The result is
    {256: 1920}.

        49 49          "II": little endian, so a number begins with its lowest byte ("MM": highest)
        2A 00          the number 42
        08 00 00 00    the directory begins at byte 8, which is the next one here
        01 00          it has 1 entry
        00 01          the entry: tag 256, TAG_WIDTH
        03 00          type 3, a key of TIFF_TYPE_BYTES: values of 2 bytes
        01 00 00 00    number of values: 1
        80 07 00 00    the values: 1920. If they had more than 4 bytes: their offset

    A BigTIFF has the number 43 in place of 42, and longer numbers (`TiffForm`):

                                     TIFF          BigTIFF
        offset of the directory      4 bytes       8 bytes
          which begins at            byte 4        byte 8
        number of entries            2 bytes       8 bytes
        number of values             4 bytes       8 bytes
        the values or their offset   4 bytes       8 bytes
        an entry as a whole          12 bytes      20 bytes

    Any number in the file may be wrong. An entry whose values lie beyond the end of the content is
    left out. The loop ends at the first entry whose own bytes do not all lie within the content.
    """
    tiff = _TiffBytes(content, "big" if content[:2] == b"MM" else "little")
    is_big = tiff.number(at=2, length=2) == MARK_OF_BIG_TIFF
    form = BIG_TIFF if is_big else TIFF
    directory_at = tiff.number(form.directory_offset_at, form.offset_bytes)
    entry_count = tiff.number(directory_at, form.entry_count_bytes)
    first_entry_at = directory_at + form.entry_count_bytes
    tags: dict[int, int] = {}
    for index in range(entry_count):
        entry_at = first_entry_at + index * form.entry_bytes
        if entry_at + form.entry_bytes > len(content):
            break
        value = _first_value(tiff, form, entry_at)
        if value is not None:
            tag = tiff.number(entry_at, length=2)
            tags[tag] = value
    return tags


class _TiffBytes(NamedTuple):
    """The bytes of a TIFF, and the order of the bytes in its numbers."""

    content: bytes
    order: Literal["big", "little"]

    def number(self, at: int, length: int) -> int:
        """Return the number in the `length` bytes from byte `at` on.

        If the content ends earlier, the number is made of the bytes that are there. Without any
        byte it is 0.
        """
        return int.from_bytes(self.content[at : at + length], self.order)


def _first_value(tiff: _TiffBytes, form: TiffForm, entry_at: int) -> int | None:
    """Return the first value of an entry, or None if it cannot be read.

    The parts of an entry begin at these bytes of the entry:

                                     TIFF    BigTIFF
        tag                          0       0
        type                         2       2
        number of values             4       4
        the values or their offset   8       12

    entry_at: the byte of the file at which the entry begins.
    """
    value_type = tiff.number(entry_at + 2, length=2)
    value_bytes = TIFF_TYPE_BYTES.get(value_type, 0)
    value_count = tiff.number(entry_at + 4, form.offset_bytes)
    if value_bytes == 0 or value_count == 0:
        return None
    value_at = entry_at + 4 + form.offset_bytes
    fits_in_entry = value_bytes * value_count <= form.offset_bytes
    if not fits_in_entry:  # then the entry has the offset of its values
        value_at = tiff.number(value_at, form.offset_bytes)
    if value_at + value_bytes > len(tiff.content):
        return None
    return tiff.number(value_at, value_bytes)

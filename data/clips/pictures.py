"""Read a picture as upright 8-bit B, G, R, or refuse it.

    image_size   height and width of a picture, by the header of a PNG, or by decoding other files
    read_bgr     the picture in a file
    decode_bgr   the picture in the content of a file, if the content was read already

OpenCV decodes the pictures. For two reasons, OpenCV alone is not enough:

* It returns a picture that is cut short without an error. So `_damage_in` looks for damage first,
  with the project's own readers of headers (utils/picture).
* Different versions of OpenCV turn different formats upright. So OpenCV turns nothing, and
  `decode_bgr` turns the picture itself.

What must stay:

* A picture is returned whole and upright, or it is refused
  (test_a_png_without_its_end_is_refused, test_a_jpeg_without_its_end_is_refused,
  test_a_picture_is_turned_as_its_orientation_says).
* A damaged file raises DataError and no other error (test_a_damaged_picture_is_read_or_refused).
* The size is checked before the picture is decoded, because a header of a few bytes can state a
  picture that fills the memory.

Free to add: a kind in `OTHER_KINDS`.

Tests: tests/parts/data/test_pictures.py, tests/parts/data/test_files.py,
tests/parts/data/test_any_bytes.py, tests/parts/data/test_small_hostile_files.py
"""

import re

import cv2
import numpy as np

from data.clips.file_content import read_bytes
from utils.errors import DataError
from utils.picture.header import MOST_PIXELS, Header
from utils.picture.orientation import upright
from utils.picture.png import has_whole_chunks
from utils.picture.read import read_header


def read_bgr(path: str, size: tuple[int, int] | None = None) -> np.ndarray:
    """Return the upright image in a file as (H, W, 3) uint8 in the order B, G, R.

    size: the expected (H, W), i.e. the size of the first frame of the clip. None: any size.
    Raises DataError, which names the file. An image of a wrong size, or a too large image, is
    refused by its header before it is decoded.

    Without a clip cache, every frame of a training is read by this function, so it must stay fast.
    A damaged file must give an error: tests/parts/data/test_any_bytes.py tries files of any bytes.
    """
    return decode_bgr(read_bytes(path), path, size)


# How OpenCV decodes a picture: in colour, and not turned upright. Different versions of OpenCV turn
# different formats, so `decode_bgr` turns the picture itself.
AS_STORED = cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION


def decode_bgr(encoded: bytes, path: str, size: tuple[int, int] | None = None) -> np.ndarray:
    """Return the upright image in the content of a file as (H, W, 3) uint8 in the order B, G, R.

    encoded: the content.
    path: its file, for messages.
    size: the expected (H, W). None: any size.
    Raises DataError, which names the file, if the image is damaged, too large, or of a wrong size.

    Test: test_a_picture_is_turned_as_its_orientation_says
    """
    header = read_header(encoded)
    if header is not None:
        refuse_header(header, path)
        _refuse_other_size(header.size, size, path)

    # `_damage_in` returns a text for every file without a header. So `if damage` would be enough.
    # `header is None` is only needed for the type checker.
    damage = _damage_in(encoded, header)
    if header is None or damage:
        raise _unreadable(damage, path)
    image, reason = _decoded(encoded)
    if image is None:
        raise _unreadable(reason, path)
    # OpenCV has turned a TIFF upright already, although AS_STORED says that it should not.
    if header.kind != "TIFF":
        image = np.ascontiguousarray(upright(image, header.orientation))
    _refuse_other_size(image.shape[:2], size, path)
    return image


def _decoded(encoded: bytes) -> tuple[np.ndarray | None, str]:
    """Return (picture, ""), or (None, reason) for a picture that OpenCV cannot decode.

    The picture is (H, W, 3) uint8, not turned upright.
    """
    try:
        image = cv2.imdecode(np.frombuffer(encoded, np.uint8), AS_STORED)
    except cv2.error as e:
        return None, str(e).splitlines()[0]  # the other lines name functions of OpenCV
    if image is None:  # OpenCV gives no reason
        return None, _unknown_damage(encoded)
    return image, ""


def _unreadable(reason: str, path: str) -> DataError:
    """Return the error for a picture that cannot be read."""
    return DataError(
        what=f"cannot read image: {reason}",
        where=path,
        expected="a whole PNG or JPEG file",
        do="restore the file, or remove its clip",
    )


def _unknown_damage(encoded: bytes) -> str:
    """Return the reason if nothing more is known of a damaged file."""
    return f"{len(encoded)} bytes that are no whole image"


JPEG_START = b"\xff\xd8"  # the first two bytes of every JPEG


def _damage_in(encoded: bytes, header: Header | None) -> str:
    """Describe the damage that can be seen in a file without decoding its picture.

    Returns "" if no damage can be seen.

    encoded: the content of the file.
    header: header of the file. None: the file is of an unknown kind, and is taken as damaged.
    """
    is_jpeg = encoded.startswith(JPEG_START)
    if is_jpeg and not _has_end(encoded):
        # OpenCV fills the missing part of a truncated JPEG with grey and reports it on stderr only.
        return f"JPEG of {len(encoded)} bytes is cut short"
    if header is None:
        return _other_kind(encoded) or _unknown_damage(encoded)
    # `has_whole_chunks`: each part of the PNG ends within the file.
    if header.kind == "PNG" and not has_whole_chunks(encoded):
        return f"PNG of {len(encoded)} bytes is damaged or cut short"
    return ""


def _has_end(jpeg: bytes) -> bool:
    """Return whether a JPEG has the mark for the end of the image, ff d9, after its header.

    The header is skipped, because it may have a thumbnail with an end mark of its own. The mark
    need not be at the end of the file, because phones append other data to a complete picture
    (test_a_jpeg_is_read_with_the_data_that_a_phone_adds).
    """
    # A JPEG is JPEG_START and then segments. A segment begins with the byte 0xff, a byte for its
    # kind, and two bytes for its length. The length includes its own two bytes. E.g. the segment
    # ff e0 00 10 ... has the kind e0 and the length 16, so the next segment begins 2 + 16 bytes
    # later. The header ends at the segment of kind da, where the scan begins.
    # At the end of the file, the slices of the loop are b"", so the loop ends.
    position = len(JPEG_START)
    while jpeg[position : position + 1] == b"\xff":
        kind = jpeg[position + 1 : position + 2]
        if kind == b"\xda":
            break
        length = int.from_bytes(jpeg[position + 2 : position + 4], "big")
        position += 2 + length
    end_of_image = b"\xff\xd9"
    return jpeg.find(end_of_image, position) >= 0


# Kinds of files that may have the suffix of a picture but cannot be read. {pattern for the first
# bytes of the content: name of the kind for the error message}. "...." stands for four bytes of any
# value. In HEIC and AVIF, these bytes are a length. To add a kind, add one line.
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


def _other_kind(content: bytes) -> str:
    """Return a clause for the error message that names the kind of a file. Unknown kind: "".

    content: the bytes of the file. E.g. b"GIF89a..." gives "its content is GIF, which is not read:
    ...".

    Test: test_a_file_of_another_kind_with_the_ending_of_a_picture_is_named
    """
    for pattern, kind in OTHER_KINDS.items():
        if re.match(pattern, content, re.DOTALL):
            return f"its content is {kind}, which is not read: save it as PNG"
    return ""


def refuse_header(header: Header, path: str) -> None:
    """Refuse a picture that is too large, or has values other than whole numbers of 8 or 16 bits.

    Every reader of pictures must call `refuse_header` before it decodes a picture. E.g. a file of
    100 bytes may state a size of 100,000 x 100,000 pixels, and decoding it would fill the memory.

    path: file of the picture.
    Raises DataError.
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
    if has_other_numbers(header):
        kind = "floating-point numbers" if header.is_float else "whole numbers"
        raise DataError(
            what=f"cannot read image: the {header.kind} holds {kind} of {header.bits} bits",
            where=path,
            expected="8 or 16 bits for each colour, in whole numbers",
            do="save it with 16 bits, scaled so that white is 65535",
        )


def has_other_numbers(header: Header) -> bool:
    """Return whether the values of a picture are not whole numbers of at most 16 bits.

    E.g. True for floating-point numbers, and for whole numbers of 32 bits.
    `refuse_header` refuses such a picture.
    """
    return header.is_float or header.bits > 16


def _refuse_other_size(found: tuple[int, int], size: tuple[int, int] | None, path: str) -> None:
    """Refuse a frame whose size is not the size of the first frame of its clip.

    found: (H, W) of the frame.
    size: (H, W) of the first frame. None: accept any size.
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


def image_size(path: str) -> tuple[int, int]:
    """Return (height, width) of an upright image.

    A PNG says its size in its header. Images of other formats are decoded. The size of the decoded
    picture is returned, and the decoded picture is upright.
    """
    header = png_header(path)
    if header is None:
        height, width = read_bgr(path).shape[:2]
        return height, width
    refuse_header(header, path)
    return header.size


PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
# Number of bytes at the beginning of a picture that are read first, to find its size and how it is
# turned. A PNG states its size in the first 33 bytes, but its orientation (eXIf) may come anywhere
# before the pixels. If the pixels do not begin within these bytes, the whole file is read. Fewer
# bytes would save nothing, because a file system reads whole pages of 4096 bytes.
HEAD_BYTES = 4096


def png_header(path: str) -> Header | None:
    """Return the header of a PNG, or None for other files."""
    head = read_bytes(path, HEAD_BYTES)
    if not head.startswith(PNG_SIGNATURE):
        return None
    header = read_header(head)
    if header is None and len(head) == HEAD_BYTES:
        # Metadata before the pixels may be longer than HEAD_BYTES.
        header = read_header(read_bytes(path))
    return header

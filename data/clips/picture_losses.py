"""Say in words what is lost when a picture is read as 8-bit RGB.

A picture of 16 bits is cut to its upper 8 bits. Cameras often use only the lower 10, 12 or 14 of
the 16 bits. Such a picture becomes dark. The value of a grey picture is used for R, G and B.

Free to change: the words, together with the tests that compare them, because the words only become
a warning.

Tests: tests/parts/data/test_pictures.py
"""

import cv2
import numpy as np

from data.clips.file_content import read_bytes
from data.clips.pictures import PNG_SIGNATURE, has_other_numbers, png_header
from utils.picture.png import has_whole_chunks
from utils.picture.read import read_header


def what_is_lost(path: str) -> str:
    """Return in words what is lost when a picture is read as 8-bit RGB; "" if nothing is lost.

    The caller writes the words behind the name of the file, e.g. "has 16 bits: they are cut to 8".
    """
    # Only the beginning of a PNG is read here. A file of another format is read as a whole.
    content = b""
    header = png_header(path)
    if header is None:
        content = read_bytes(path)
        header = read_header(content)
    # `decode_bgr` (pictures.py) refuses a picture without a header, a picture that is too large,
    # and values of more than 16 bits. So no words are needed.
    if header is None or header.is_too_large or has_other_numbers(header):
        return ""
    if header.bits > 8:
        if not content:  # only the header of a PNG was read
            content = read_bytes(path)
        return _loss_of_16_bits(content)
    if header.is_grey:
        return "is a grey image: its value is used for R, G and B"
    return ""


def _loss_of_16_bits(content: bytes) -> str:
    """Return in words what is lost of a 16-bit picture. content: the content of its file.

    Cameras often use only 10, 12 or 14 of 16 bits. The header does not tell how many, so all pixels
    are read.

    Test: test_16_bit_frames_of_a_user_that_use_fewer_bits_are_named
    """
    bits = _bits_in_use(content)
    if bits is None or bits == 16:
        return "has 16 bits: they are cut to 8"
    # E.g. 12 bits: the largest value is 2^12 - 1 = 4095. Values times 2^(16 - 12) = 16 use all 16
    # bits.
    largest = 2**bits - 1
    factor = 2 ** (16 - bits)
    return (
        f"has 16 bits, but no value is above {largest}: {bits} bits? They are cut to "
        f"the upper 8 of 16, which makes it dark; multiply the values by {factor}"
    )


def _bits_in_use(content: bytes) -> int | None:
    """Return how many bits the values of a 16-bit picture use: 8, 10, 12, 14 or 16.

    Returns None for a black picture, because its values say nothing about the bits. Also returns
    None for a picture that cannot be decoded, because `decode_bgr` (pictures.py) raises the error
    for such a picture.
    """
    # OpenCV decodes a part of a PNG that is cut short, and this part may lack the largest values.
    if content.startswith(PNG_SIGNATURE) and not has_whole_chunks(content):
        return None
    try:
        image = cv2.imdecode(np.frombuffer(content, np.uint8), cv2.IMREAD_UNCHANGED)
    except cv2.error:
        return None
    if image is None or image.dtype != np.uint16:
        return None
    if image.ndim == 3:
        image = image[..., :3]  # a fourth channel is opacity
    largest = int(image.max())
    if largest == 0:
        return None
    for bits in (8, 10, 12, 14):
        if largest < 2**bits:
            return bits
    return 16

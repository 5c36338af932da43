"""Define `Header`: what a picture file tells before its pixels, e.g. height and width.

The readers of the formats (formats.py, png.py and tiff.py) make a `Header`. Programs look at the
header before they decode a picture. E.g. a file of 100 bytes may say that its picture has 100000 x
100000 pixels. Decoding it would fill the memory.

Free to change: a field may be added. Give it a default, so that only readers that know its value
need to set it.

Tests: tests/parts/data/test_pictures.py, tests/stories/test_foreign_files.py
"""

from dataclasses import dataclass

from utils.picture.orientation import UPRIGHT, Orientation

# Largest number of pixels of a picture, or of a frame of a film, that is decoded: 67 million. 8K
# frames have 33 million. With a larger limit, a hostile file could take more memory. Chosen by
# hand.
MOST_PIXELS = 2**26


@dataclass(frozen=True)
class Header:
    """What a picture file tells before its pixels. Any number may be wrong in a damaged file."""

    kind: str  # "PNG", "JPEG", "TIFF", "WebP", "BMP" or "PNM"
    height: int  # of the picture as it is stored, not yet upright
    width: int
    bits: int = 8  # number of bits of one colour value
    is_float: bool = False  # whether values are floating-point numbers
    is_grey: bool = False  # whether a pixel has one value instead of three colours
    orientation: Orientation = UPRIGHT  # how the stored picture becomes upright
    # Number of pixels of a block that a decoder holds as a whole, e.g. a tile of a TIFF. It may be
    # larger than the picture. 0 if there are no blocks.
    block_pixels: int = 0

    @property
    def size(self) -> tuple[int, int]:
        """Return (height, width) of the upright picture."""
        if self.orientation.is_transposed:
            return self.width, self.height
        return self.height, self.width

    @property
    def is_too_large(self) -> bool:
        """Return whether decoding the picture would take too much memory."""
        return max(self.height * self.width, self.block_pixels) > MOST_PIXELS


def big_endian(content: bytes, at: int, length: int) -> int:
    """Return the number in `length` bytes from byte `at` on, the highest byte first.

    E.g. the bytes 1, 2 are the number 1 * 256 + 2. If the content ends earlier, the number is made
    of the bytes that are there. Without any byte it is 0.
    """
    return int.from_bytes(content[at : at + length], "big")


def little_endian(content: bytes, at: int, length: int) -> int:
    """Return the number in `length` bytes from byte `at` on, the lowest byte first.

    E.g. the bytes 1, 2 are the number 1 + 2 * 256. A cut content is treated as in `big_endian`.
    """
    return int.from_bytes(content[at : at + length], "little")

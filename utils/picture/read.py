"""Read the header of a picture file: its size, its depth, and how it is turned upright.

    header = read_header(content)     # content: the bytes of a PNG, JPEG, TIFF, WebP, BMP or PNM
    header.size                       # (height, width) of the upright picture
    header.is_too_large               # whether to refuse it before it is decoded

The header is all that stands before the pixels. It is read before a decoder gets the file. A file
of a few bytes may state a huge size, and decoding such a picture would fill the memory.

What must stay: every reader accepts any bytes, because a file may hold anything. A reader
returns None for a header that is cut short or contradicts itself, and has no endless loop
(tests/stories/test_foreign_files.py and tests/parts/data/test_any_bytes.py read damaged files).

Free to change: a format may be added, as a reader and a row in READERS.
"""

import re
from collections.abc import Callable

from utils.picture.formats import read_bmp, read_jpeg, read_pnm, read_webp
from utils.picture.header import Header
from utils.picture.png import read_png
from utils.picture.tiff import read_tiff

# How a file of each format begins (a regular expression) -> its reader.
READERS: dict[bytes, Callable[[bytes], Header | None]] = {
    rb"\x89PNG\r\n\x1a\n": read_png,
    rb"\xff\xd8\xff": read_jpeg,
    rb"II[\x2a\x2b]\x00|MM\x00[\x2a\x2b]": read_tiff,  # 2a is 42, a TIFF. 2b is 43, a BigTIFF
    rb"RIFF....WEBP": read_webp,
    rb"BM": read_bmp,
    rb"P[1-6]\s": read_pnm,
}


def read_header(content: bytes) -> Header | None:
    """Return the header of a picture.

    content: the bytes of the file, or of its beginning.

    Returns None if the file has none of the six formats, or if its header cannot be used: the
    header contradicts itself, is cut short, or states the height or width 0.
    """
    for mark, read in READERS.items():
        if re.match(mark, content, re.DOTALL):
            header = read(content)
            if header is None or header.height <= 0 or header.width <= 0:
                return None
            return header
    return None

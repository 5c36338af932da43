"""The sizes of a spike plane that the length of a packed file allows, ranked by their images."""

from pathlib import Path
from typing import Literal

import numpy as np

# What is tried, in pixels. A row has whole bytes, so its width is a multiple of 8.
LEAST = 32
MOST = 2048
STEP = 8
# The shapes of cameras, height / width: from upright to wide.
UPRIGHT = 4 / 3
WIDE = 2 / 5
TRIED = (
    f"heights and widths from {LEAST} to {MOST}, the width a multiple of {STEP}, "
    "not higher than 4:3 and not wider than 2:5"
)
# `smoothest_first` judges each size by at most so many planes and bits in the middle of the file,
# because hundreds of sizes can fit.
JUDGED_PLANES = 16
JUDGED_BITS = 4_000_000
# Relative difference of two shapes that count as equal, as data.clips.files.check_same_view allows.
SAME_SHAPE = 0.02


def correlation(a: np.ndarray, b: np.ndarray) -> float:
    """Return the correlation of two pictures, in [-1, 1].

    Returns 0 if a picture has one value only, or too few pixels: a correlation needs differences.
    """
    has_no_differences = min(a.shape) < 2 or a.std() == 0 or b.std() == 0
    if has_no_differences:
        return 0.0
    return float(np.corrcoef(a.ravel(), b.ravel())[0, 1])


def smoothness(rates: np.ndarray) -> dict[str, float]:
    """Return the correlations of neighbouring columns and rows of a mean image (h, w).

    If the image was read with a wrong size, they are lower than with the right one.
    """
    return {
        "columns": correlation(rates[:, 1:], rates[:, :-1]),
        "rows": correlation(rates[1:], rates[:-1]),
    }


def sizes_that_fit(length: int, picture: tuple[int, int] | None = None) -> list[tuple[int, int]]:
    """Return the sizes (h, w) of TRIED of which a file of `length` bytes holds whole planes.

    picture: height and width of a frame of the same view. Only sizes of its shape are returned.
    """
    found = []
    for width in range(LEAST, MOST + 1, STEP):
        for height in range(LEAST, MOST + 1):
            plane_bytes = height * width // 8
            if length % plane_bytes:
                continue
            if picture is None:
                is_right = WIDE <= height / width <= UPRIGHT
            else:
                is_right = has_shape((height, width), picture)
            if is_right:
                found.append((height, width))
    return found


def has_shape(size: tuple[int, int], picture: tuple[int, int]) -> bool:
    """Return whether a spike plane of this size can show what a picture of that size shows."""
    h, w = size
    height, width = picture
    # h / w = height / width, without a division and up to SAME_SHAPE.
    return abs(width * h - height * w) <= SAME_SHAPE * width * h


def smoothest_first(
    path: Path, sizes: list[tuple[int, int]], bit_order: Literal["little", "big"]
) -> list[tuple[int, int]]:
    """Return the sizes, ordered by the smoothness of the mean image of a few planes."""
    data = np.memmap(path, np.uint8, "r")

    def score(size: tuple[int, int]) -> float:
        """Return the smoothness of the mean image of this size, in its worse direction."""
        height, width = size
        plane_bytes = height * width // 8
        planes = len(data) // plane_bytes
        judged = max(1, min(planes, JUDGED_PLANES, JUDGED_BITS // (height * width)))
        first = (planes - judged) // 2 * plane_bytes  # the first byte of the planes in the middle
        packed = data[first : first + judged * plane_bytes]
        bits = np.unpackbits(packed, bitorder=bit_order)
        rates = bits.reshape(judged, height, width).mean(axis=0, dtype=np.float32)
        return min(smoothness(rates).values())

    return sorted(sizes, key=score, reverse=True)

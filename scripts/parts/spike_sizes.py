"""The sizes of a spike plane that the length of a packed file allows, ranked by their images."""

from pathlib import Path
from typing import Literal

import numpy as np

# What is tried: rows of whole bytes, in the shapes of cameras from upright to wide.
LEAST, MOST, STEP = 32, 2048, 8
UPRIGHT, WIDE = 4 / 3, 2 / 5
TRIED = (
    f"heights and widths from {LEAST} to {MOST}, the width a multiple of {STEP}, "
    "not higher than 4:3 and not wider than 2:5"
)
# Spikes that each size is judged by first: the middle of the file.
JUDGED_PLANES, JUDGED_BITS = 16, 4_000_000
SAME_SHAPE = 0.02  # relative difference of the shapes, as data.clips.files.check_same_view allows


def correlation(a: np.ndarray, b: np.ndarray) -> float:
    """Return the correlation of two pictures; 0 if one is even, or has too few pixels to tell."""
    is_even = min(a.shape) < 2 or a.std() == 0 or b.std() == 0
    return 0.0 if is_even else float(np.corrcoef(a.ravel(), b.ravel())[0, 1])


def smoothness(rates: np.ndarray) -> dict[str, float]:
    """Return the correlations of neighbouring columns and rows of a mean image (h, w).

    Of a wrong size they are lower.
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
            if length % (height * width // 8):
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
    (h, w), (height, width) = size, picture
    return abs(width * h - height * w) <= SAME_SHAPE * width * h


def smoothest_first(
    path: Path, sizes: list[tuple[int, int]], bit_order: Literal["little", "big"]
) -> list[tuple[int, int]]:
    """Return the sizes, ordered by the smoothness of the mean image of a few planes."""
    data = np.memmap(path, np.uint8, "r")

    def score(size: tuple[int, int]) -> float:
        height, width = size
        plane = height * width // 8
        planes = len(data) // plane
        judged = max(1, min(planes, JUDGED_PLANES, JUDGED_BITS // (8 * plane)))
        first = (planes - judged) // 2 * plane
        bits = np.unpackbits(data[first : first + judged * plane], bitorder=bit_order)
        rates = bits.reshape(judged, height, width).mean(axis=0, dtype=np.float32)
        return min(smoothness(rates).values())

    return sorted(sizes, key=score, reverse=True)

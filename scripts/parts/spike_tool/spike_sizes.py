"""Find the sizes of a spike plane that the length of a packed file allows, and rank them.

A packed file has no header. It consists of planes of height x width bits, one after the other. So
its length allows many sizes. The right size gives an image whose neighbouring pixels resemble one
another (`smoothness`). spike_ranking.py makes an image of the best sizes, and compares these
candidates.

A plane is one readout of the spike camera: a bit for each pixel.

Free to change: the limits and the measure, which only decide which sizes are proposed to a user.
But a wrong size must never look clear, because app.py takes a clear size without asking. A size is
clear if its image is smoother than the images of all other sizes by more than CLEAR_LEAD, and
nothing else speaks against the size (`Ranking.is_clear` in spike_ranking.py).

Tests: tests/parts/scripts/test_spike_tool.py
"""

from pathlib import Path
from typing import Literal

import numpy as np

# The sizes that are tried. Wider limits would give more wrong sizes that fit by chance. The limits
# were chosen by hand.
LEAST_SIDE = 32  # pixels
MOST_SIDE = 2048  # pixels
WIDTH_STEP = 8  # a row has whole bytes, so its width is a multiple of 8 pixels
# The shapes of cameras, height / width.
HIGHEST_SHAPE = 4 / 3  # an upright plane
WIDEST_SHAPE = 2 / 5  # a wide plane
# The limits in words. If the caller gives a frame of the same view, the shape of this frame takes
# the place of the two limits of the shape.
SIDES_TRIED = (
    f"heights and widths from {LEAST_SIDE} to {MOST_SIDE}, the width a multiple of {WIDTH_STEP}"
)
SHAPES_TRIED = "not higher than 4:3 and not wider than 2:5"
# `smoothest_first` judges each size by a few planes in the middle of the file, because hundreds of
# sizes can fit. Larger numbers take more time. Smaller numbers make the judgement less sure.
JUDGED_PLANES = 16  # largest number of planes that are judged for a size
JUDGED_BITS = 4_000_000  # largest number of bits of these planes together
# Two shapes count as equal up to this relative difference, as in `check_same_view` of
# data/clips/user_spike_files.py.
SHAPE_TOLERANCE = 0.02


def correlation(a: np.ndarray, b: np.ndarray) -> float:
    """Return the correlation of two pictures, in [-1, 1].

    Returns 0 if a picture has one value only, or too few pixels: a correlation needs differences.
    """
    # min(a.shape) < 2: the picture has only one row or column, or none.
    has_no_differences = min(a.shape) < 2 or a.std() == 0 or b.std() == 0
    if has_no_differences:
        return 0.0
    matrix = np.corrcoef(a.ravel(), b.ravel())  # (2, 2): row 0 has a with a, and a with b
    return float(matrix[0, 1])


def smoothness(rates: np.ndarray) -> dict[str, float]:
    """Return the correlations of neighbouring columns and rows of a mean image.

    The correlations are lower if the image was read with a wrong size.

    rates: the mean image (h, w), spikes per plane of each pixel.
    """
    return {
        # Columns 1, 2, 3, ... with columns 0, 1, 2, ..., and the same for rows.
        "columns": correlation(rates[:, 1:], rates[:, :-1]),
        "rows": correlation(rates[1:], rates[:-1]),
    }


def sizes_that_fit(length: int, picture: tuple[int, int] | None = None) -> list[tuple[int, int]]:
    """Return the sizes (h, w) that divide a file of `length` bytes into whole planes.

    Only sizes within the limits LEAST_SIDE ... WIDEST_SHAPE of this file are returned.

    picture: height and width of a frame of the same view. If it is given, only sizes of its shape
        are returned.
    """
    sizes = []
    for width in range(LEAST_SIDE, MOST_SIDE + 1, WIDTH_STEP):
        for height in range(LEAST_SIDE, MOST_SIDE + 1):
            plane_bytes = height * width // 8  # a byte holds 8 pixels
            if length % plane_bytes:  # bytes are left over
                continue
            if picture is None:
                is_right_shape = WIDEST_SHAPE <= height / width <= HIGHEST_SHAPE
            else:
                is_right_shape = has_shape((height, width), picture)
            if is_right_shape:
                sizes.append((height, width))
    return sizes


def has_shape(size: tuple[int, int], picture: tuple[int, int]) -> bool:
    """Return whether a spike plane has the shape of a picture, up to SHAPE_TOLERANCE.

    size: height and width of the plane. picture: height and width of the picture.
    """
    plane_height, plane_width = size
    picture_height, picture_width = picture
    # The shapes are equal if
    #     plane_height / plane_width = picture_height / picture_width.
    # Multiplied by both widths, this is of_plane = of_picture. E.g. a plane of 250 x 400 and a
    # picture of 720 x 1152: 1152 * 250 = 720 * 400 = 288000.
    of_plane = picture_width * plane_height
    of_picture = picture_height * plane_width
    return abs(of_plane - of_picture) <= SHAPE_TOLERANCE * of_plane


def smoothest_first(
    path: Path, sizes: list[tuple[int, int]], bit_order: Literal["little", "big"]
) -> list[tuple[int, int]]:
    """Return the sizes, ordered by the smoothness of the mean image of a few planes."""
    data = np.memmap(path, np.uint8, "r")

    def score(size: tuple[int, int]) -> float:
        """Return the smoothness of the mean image of this size, in its worse direction."""
        height, width = size
        plane_bytes = height * width // 8
        planes_in_file = len(data) // plane_bytes
        # Number of planes that have JUDGED_BITS bits together. E.g. 250 x 400: 4,000,000 / 100,000
        # = 40 planes, of which at most JUDGED_PLANES (16) are judged. Judge at least one plane,
        # even if a plane has more bits than JUDGED_BITS.
        planes_of_judged_bits = JUDGED_BITS // (height * width)
        planes = max(1, min(planes_in_file, JUDGED_PLANES, planes_of_judged_bits))

        # These planes lie in the middle of the file.
        first_plane = (planes_in_file - planes) // 2
        first_byte = first_plane * plane_bytes
        end_byte = first_byte + planes * plane_bytes
        bits = np.unpackbits(data[first_byte:end_byte], bitorder=bit_order)
        rates = bits.reshape(planes, height, width).mean(axis=0, dtype=np.float32)
        return min(smoothness(rates).values())

    return sorted(sizes, key=score, reverse=True)

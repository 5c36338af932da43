"""Make a frame look as in a player: turned, mirrored, with the film's colours and pixel shape.

A file stores frames as a camera wrote them, e.g. turned by 90 degrees, and says how a player must
turn them. A "frame of PyAV" is an `av.VideoFrame`.

Tests (tests/parts/utils/test_video.py): test_a_turned_or_mirrored_film_is_read_as_players_show_it
(`orientation`), test_a_film_that_does_not_describe_its_colours_gets_them_by_its_size (`pixels`).
"""

from fractions import Fraction
from typing import Any

import numpy as np

from utils.picture.orientation import UPRIGHT, Orientation

# FFmpeg's number for a film that does not say how its colours are coded (AVCOL_SPC_UNSPECIFIED).
UNSPECIFIED = 2


def pixels(frame: Any) -> np.ndarray:
    """Return a frame of PyAV as (H, W, 3) uint8 RGB, not yet upright.

    BT.601 and BT.709 are two standards of how colours are coded as YUV. If a film does not say
    which standard it has, players take BT.601 for small frames and BT.709 for large frames. FFmpeg
    would always take BT.601, so for large frames this function asks for BT.709. Source of the
    limits 1280 and 576: mpv, mp_csp_guess_colorspace.
    """
    is_yuv = not frame.format.is_rgb and not frame.format.has_palette
    is_large = frame.width >= 1280 or frame.height > 576
    if is_yuv and is_large and frame.colorspace == UNSPECIFIED:
        return frame.to_ndarray(format="rgb24", src_colorspace="ITU709")
    return frame.to_ndarray(format="rgb24")


# TURNS[n] turns a frame by n quarter turns counter-clockwise. An `Orientation` first exchanges rows
# and columns, and then reverses them. E.g. TURNS[1]:
#
#     stored    exchanged    rows reversed
#     1 2 3     1 4          3 6
#     4 5 6     2 5          2 5
#               3 6          1 4
TURNS = (
    UPRIGHT,
    Orientation(is_transposed=True, has_reversed_columns=False, has_reversed_rows=True),
    Orientation(is_transposed=False, has_reversed_columns=True, has_reversed_rows=True),
    Orientation(is_transposed=True, has_reversed_columns=True, has_reversed_rows=False),
)


def orientation(frame: Any) -> Orientation:
    """Return how a frame of PyAV becomes upright, to the nearest quarter turn.

    A film may have a display matrix with the numbers a, b, c and d. Then the stored pixel in column
    x and row y is shown in

        column a x + c y
        row    b x + d y

    Three examples, in which 1 stands for 65536, the number in the file:

         a   b   c   d    column    row
         1   0   0   1       x       y     upright
         0   1  -1   0      -y       x     a quarter turn clockwise
        -1   0   0  -1      -x      -y     upside down

    For the nearest quarter turn, the smaller pair of numbers counts as 0: b and c, or a and d. If a
    and d remain, the column is a x and the row is d y. If b and c remain, the column is c y and the
    row is b x, so rows and columns are exchanged. If the number of the column is negative, the
    columns are reversed. If the number of the row is negative, the rows are reversed. Source:
    FFmpeg, libavutil/display.h.
    """
    try:
        matrix = frame.side_data.get("DISPLAYMATRIX")
    except ValueError:
        # PyAV fails if the frame has side data unknown to PyAV, such as Exif. The angle in degrees
        # can still be read. The angle counts counter-clockwise, as TURNS does, and may be negative:
        #
        #     -90 degrees = -1 quarter turn, -1 % 4 = 3, and 3 quarter turns are the same turn
        quarter_turns = round(frame.rotation / 90)
        return TURNS[quarter_turns % 4]
    if matrix is None:
        return UPRIGHT
    # The matrix is stored as nine integers: a b u, c d v, x y w. Here x and y are a shift, and not
    # the column and row above. A turn needs only a, b, c and d, the numbers 0, 1, 3 and 4.
    numbers = np.frombuffer(bytes(matrix), np.int32).tolist()
    a, b = numbers[0:2]
    c, d = numbers[3:5]
    if abs(b) + abs(c) > abs(a) + abs(d):
        # Nearly: column = c y, row = b x.
        return Orientation(is_transposed=True, has_reversed_columns=c < 0, has_reversed_rows=b < 0)
    # Nearly: column = a x, row = d y.
    return Orientation(is_transposed=False, has_reversed_columns=a < 0, has_reversed_rows=d < 0)


def upright_size(frame: Any) -> tuple[int, int]:
    """Return (height, width) of a frame of PyAV as it is shown."""
    if orientation(frame).is_transposed:
        return frame.width, frame.height
    return frame.height, frame.width


# Aspect of a square pixel: width divided by height.
SQUARE = Fraction(1)


def upright_aspect(stream: Any, frame: Any) -> Fraction:
    """Return width over height of a pixel as it is shown, or 1 if the film does not say it.

    If the frame is turned by a quarter turn, width and height of a pixel are exchanged, too.

    stream: the film, an object of PyAV.
    frame: a frame of the film, an object of PyAV.
    """
    aspect = stream.sample_aspect_ratio or SQUARE
    if aspect <= 0:
        return SQUARE
    if orientation(frame).is_transposed:
        return Fraction(aspect.denominator, aspect.numerator)
    return aspect

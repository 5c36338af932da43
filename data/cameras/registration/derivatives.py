"""Compute how the residuals change with each unknown, and the tile of each pixel.

A step of the fit needs to know: if the matrix or a time changes a little, how does the residual of
each pixel change? The residuals are r = s - F a. "Details" are what a band-pass filter keeps of an
image (details.py).

    s (h, w)       details of the sum of the spikes of the exposure
    F (h, w, 5)    details of five features of the frame, e.g. of its red channel (view.py)
    a (5,)         coefficients of the features

`derivatives` returns the derivatives of r by the changes of the matrix (which move F) and by the
times of the exposure (which change s). The derivative by a is -F. A round on all pixels
(all_pixels.py) has the derivatives as the columns of J = dr / d(unknowns). A round on parts
(parts.py) uses only the first two, the shifts.

What must stay: the order of the columns, because a step has the same order.

Tests: tests/parts/data/test_registration_all_pixels.py notices a wrong column
(test_each_column_is_the_derivative_of_the_residuals).
"""

import numpy as np

from data.cameras.registration.details import Details
from data.cameras.registration.estimate import Estimate
from data.cameras.registration.matrix import Coordinates

# Columns of J and of a step. equations.py, times.py, all_pixels.py and rounds.py rely on them:
#
#     0 ... 3          changes of the matrix: right, down, larger, turned
#     4 ... 6          the times: middle, length, roll; left out if no times are fitted
#     the last five    the coefficients a
# Number of columns for the matrix: the first four CHANGES (matrix.py), the model "similarity".
# Rounds on all pixels fit only these, also for the models "affine" and "homography".
MATRIX_CHANGES = 4
MIDDLE_COLUMN = 4
LENGTH_COLUMN = 5
ROLL_COLUMN = 6
MATRIX_AND_TIMES = 7  # number of columns before the coefficients, if the times are fitted
# Columns of the times in J and in a step, for slices.
TIME_COLUMNS = slice(MIDDLE_COLUMN, MATRIX_AND_TIMES)


def derivatives(estimate: Estimate, details: Details, predicted: np.ndarray) -> list[np.ndarray]:
    """Return the derivatives of r by the matrix and the times, seven images (h, w).

    The seven images are, in this order, the derivatives by

        shift right, shift down    in half sides: half of the longer side of the plane is 1
        scale                      without a unit: 0.01 makes the plane 1 % larger
        turn                       in radians
        middle, length, roll       in planes of the stream

    predicted: F a (h, w), the details of the spikes as the frame predicts them.
    """
    # The slopes of F a to the right and down. np.gradient returns the change from one pixel of
    # `predicted` to the next, which are `stride` spike pixels apart. Convert it to the change per
    # half side of the plane. E.g. half_side 200 and stride 2: times 200 / 2 = 100.
    slope_down, slope_right = np.gradient(predicted)
    slope_down = slope_down * estimate.coordinates.half_side / details.stride
    slope_right = slope_right * estimate.coordinates.half_side / details.stride

    # The derivatives by the changes of the matrix. A move by (dx, dy) changes F a by
    # slope_right * dx + slope_down * dy, and r = s - F a by the negative:
    #
    #     change    dx, dy    changes r by
    #     right     1, 0      -slope_right
    #     down      0, 1      -slope_down
    #     larger    x, y      -(slope_right * x + slope_down * y)
    #     turned    -y, x     slope_right * y - slope_down * x
    x, y = _thinned_coordinates(estimate.coordinates, details)
    larger = -(slope_right * x + slope_down * y)
    turned = slope_right * y - slope_down * x

    # The derivatives by the times. F a does not depend on the times, so they are the derivatives of
    # the summed spikes s. If the exposure begins and ends one plane later, the sum gains the plane
    # at the end and loses the plane at the start. `rate_at_end` has the details of the spikes in
    # one plane at the end of the exposure, (h, w).
    later = details.rate_at_end - details.rate_at_start
    # If the exposure is one plane longer, the sum gains half a plane at each end. An average plane
    # would add F a / length, as larger coefficients a would do. So this part is subtracted. The
    # rest is what only a longer exposure can explain: how the planes at both ends differ from an
    # average plane.
    gained = (details.rate_at_start + details.rate_at_end) / 2
    longer = gained - predicted / np.float32(estimate.length)
    # A row at y is exposed y * roll planes later than the middle row. So a roll of one plane more
    # has the effect of a middle that is later by y planes.
    rolled = later * y
    return [-slope_right, -slope_down, larger, turned, later, longer, rolled]


def tiles(coordinates: Coordinates, details: Details, count: int) -> np.ndarray:
    """Return the number of the tile (n,) of each compared pixel, in a grid of count x count.

    Tiles are numbered row by row. With count = 4, the tiles of the second row are 4 ... 7.
    """
    x, y = compared_coordinates(coordinates, details)
    # Scale the coordinates from -1 ... 1 to 0 ... count. E.g. with count = 4, x = 0.3 becomes 2.6,
    # which is in column 2. The upper limit, a little below `count`, keeps the last pixel in the
    # last tile.
    columns = np.clip((x + 1) * count / 2, 0, count - 0.01).astype(int)
    rows = np.clip((y + 1) * count / 2, 0, count - 0.01).astype(int)
    return count * rows + columns


def compared_coordinates(
    coordinates: Coordinates, details: Details
) -> tuple[np.ndarray, np.ndarray]:
    """Return the coordinates x and y of the compared pixels, (n,) each."""
    x, y = _thinned_coordinates(coordinates, details)
    return x[details.is_compared], y[details.is_compared]


def _thinned_coordinates(
    coordinates: Coordinates, details: Details
) -> tuple[np.ndarray, np.ndarray]:
    """Return the coordinates x and y of each `stride`-th pixel, (h, w) each.

    `Details` are computed only at these pixels (details.py).
    """
    stride = details.stride
    return coordinates.x[::stride, ::stride], coordinates.y[::stride, ::stride]

"""Describe the matrix M (3, 3) from spike pixels to the RGB frame, and its small changes.

A spike pixel at (x, y) lies at (u / d, v / d) in the frame, with

    (u, v, d) = M (x, y, 1)

A fit improves M step by step. Each step moves the points of the spike plane a little, before M maps
them to the frame: e.g. all points to the right, or all points away from the middle. The CHANGES
below are the eight kinds of such moves, and a step has an amount for each of them. The moves act on
`Coordinates` that go from -1 to 1, so an amount means the same for planes of all sizes. With C for
the matrix from pixels to these coordinates:

    new M = M C^-1 (I + sum of amount * change) C

What must stay: the order of CHANGES, because it is the order of the first columns of the matrix of
derivatives J (derivatives.py).

Tests (in tests/parts/data), which notice a changed order:

    test_registration_parts.py         test_a_change_of_the_matrix_moves_places_as_computed
    test_registration_all_pixels.py    test_each_column_is_the_derivative_of_the_residuals
"""

from collections.abc import Sequence
from typing import NamedTuple

import cv2
import numpy as np

# Small changes of the spike plane, as matrices on homogeneous coordinates (x, y, 1). For example,
# 0.01 of "right" and 0.02 of "larger" give I + sum = [[1.02, 0, 0.01], [0, 1.02, 0], [0, 0, 1]],
# which moves the point (1, 0) to (1.03, 0).
CHANGES = np.array([
    [[0, 0, 1], [0, 0, 0], [0, 0, 0]],  # right
    [[0, 0, 0], [0, 0, 1], [0, 0, 0]],  # down
    [[1, 0, 0], [0, 1, 0], [0, 0, 0]],  # larger
    [[0, -1, 0], [1, 0, 0], [0, 0, 0]],  # turned
    [[1, 0, 0], [0, -1, 0], [0, 0, 0]],  # wider
    [[0, 1, 0], [1, 0, 0], [0, 0, 0]],  # sheared
    [[0, 0, 0], [0, 0, 0], [-1, 0, 0]],  # nearer at the right
    [[0, 0, 0], [0, 0, 0], [0, -1, 0]],  # nearer at the bottom
], float)  # fmt: skip
# Number of CHANGES that each model of the matrix uses: "affine" uses the first six.
MODELS = {"similarity": 4, "affine": 6, "homography": 8}


class Coordinates(NamedTuple):
    """Coordinates x and y of the spike plane: 0 in its middle, -1 to 1 along its longer side.

    In these coordinates, equal amounts of two CHANGES move the edge of the plane about equally far.
    So one limit is enough for all CHANGES (LARGEST_STEP in estimate.py).
    """

    x: np.ndarray  # (h, w) float32, for each pixel
    y: np.ndarray  # (h, w) float32
    half_side: float  # half of the longer side of the plane, in pixels
    from_pixels: np.ndarray  # C (3, 3), from pixels to these coordinates


def coordinates_of(height: int, width: int) -> Coordinates:
    """Return the coordinates of a plane of height x width pixels."""
    # E.g. 5 columns have the numbers 0 ... 4, so their middle is 2, and half their side 2.5 pixels.
    middle_x = (width - 1) / 2
    middle_y = (height - 1) / 2
    half_side = max(height, width) / 2
    # The row and the column of each pixel.
    row, column = np.mgrid[:height, :width].astype(np.float32)
    x = (column - middle_x) / half_side
    y = (row - middle_y) / half_side
    # The same two formulas as the rows of a matrix.
    row_of_x = (1 / half_side, 0, -middle_x / half_side)
    row_of_y = (0, 1 / half_side, -middle_y / half_side)
    from_pixels = np.array((row_of_x, row_of_y, (0, 0, 1)))
    return Coordinates(x, y, half_side, from_pixels)


def changed_matrix(matrix: np.ndarray, amounts: np.ndarray, from_pixels: np.ndarray) -> np.ndarray:
    """Return a matrix M after small changes of the spike plane.

    amounts: amounts of the first k CHANGES, (k,).
    from_pixels: the matrix C of the `Coordinates` of the plane.
    """
    sum_of_changes = np.zeros((3, 3))
    for amount, change in zip(amounts, CHANGES[: len(amounts)], strict=True):
        sum_of_changes = sum_of_changes + amount * change
    move = np.eye(3) + sum_of_changes
    to_pixels = np.linalg.inv(from_pixels)
    # A product of matrices acts from right to left: from pixels to `Coordinates`, the move, back to
    # pixels, and from spike pixels to the frame.
    new_matrix = matrix @ to_pixels @ move @ from_pixels
    # A homogeneous matrix times any factor is the same map. Keep its last element at 1.
    return new_matrix / new_matrix[2, 2]


def nominal_matrix(spike: Sequence[int], rgb: Sequence[int]) -> np.ndarray:
    """Return the matrix of two cameras with the same view: the matrix without calibration.

    spike, rgb: sizes (height, width).
    """
    spike_height, spike_width = spike
    rgb_height, rgb_width = rgb
    x_scale = rgb_width / spike_width  # RGB pixels per spike pixel
    y_scale = rgb_height / spike_height
    # The middles of pixels are whole numbers, so pixel 0 begins at -1/2 in both images. Spike pixel
    # 0 covers the RGB pixels 0 ... scale - 1, so its middle is at (scale - 1) / 2. For a scale of 2
    # this is 1/2, between the RGB pixels 0 and 1.
    left = (x_scale - 1) / 2
    top = (y_scale - 1) / 2
    return np.array([[x_scale, 0, left], [0, y_scale, top], [0, 0, 1.0]])


def mean_distance(before: np.ndarray, after: np.ndarray, width: int, height: int) -> float:
    """Return the mean distance between the points to which two matrices map a spike pixel.

    The distance is in RGB pixels. The mean is over 9 x 9 spike pixels, spread evenly over the plane
    of width x height pixels. 9 x 9 are enough, because a matrix maps the plane smoothly.
    """
    columns = np.linspace(0, width - 1, 9)
    rows = np.linspace(0, height - 1, 9)
    grid = np.stack(np.meshgrid(columns, rows), axis=-1)  # (9, 9, 2)
    points = grid.reshape(1, -1, 2)  # (1, 81, 2), as OpenCV needs them
    places_after = cv2.perspectiveTransform(points, after)
    places_before = cv2.perspectiveTransform(points, before)
    shifts = places_after - places_before
    x, y = shifts[0].T  # (81,) each
    return float(np.hypot(x, y).mean())

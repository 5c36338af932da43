"""Describe the matrix from spike pixels to the frame, and its small changes."""

from collections.abc import Sequence
from typing import NamedTuple

import cv2
import numpy as np

# Small changes of the spike plane, as matrices on homogeneous coordinates (x, y, 1). x and y go
# from -1 to 1 along the longer side. The sum of the changes, each times its amount, is added to the
# identity matrix. For example, 0.01 of "right" and 0.02 of "larger" give [[1.02, 0, 0.01],
# [0, 1.02, 0], [0, 0, 1]]. The order is the order of the first columns of J.
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
# How many of CHANGES each model of the matrix uses: "affine" uses the first six.
MODELS = {"similarity": 4, "affine": 6, "homography": 8}


def nominal(spike: Sequence[int], rgb: Sequence[int]) -> np.ndarray:
    """Return the matrix (3, 3), spike pixel -> RGB pixel, of two cameras with the same view.

    spike, rgb: sizes (height, width). Other modules call this for the matrix without calibration.
    """
    spike_height, spike_width = spike
    rgb_height, rgb_width = rgb
    x_scale = rgb_width / spike_width  # RGB pixels per spike pixel
    y_scale = rgb_height / spike_height
    # Pixel centres are whole numbers, so pixel 0 begins at -1/2 in both images. The spike pixel 0
    # covers the RGB pixels 0 ... scale - 1, and its centre lies in the middle of them. For a scale
    # of 2, the centre is at 1/2, between the RGB pixels 0 and 1.
    left = (x_scale - 1) / 2
    top = (y_scale - 1) / 2
    return np.array([[x_scale, 0, left], [0, y_scale, top], [0, 0, 1.0]])


class Coordinates(NamedTuple):
    """Coordinates x and y of the spike plane: 0 in its middle, -1 to 1 along its longer side.

    In these coordinates, the same amount of each of the CHANGES moves the edge of the plane about
    equally far. So one limit serves all of them (LARGEST_STEP).
    """

    x: np.ndarray  # (h, w) float32, for each pixel
    y: np.ndarray  # (h, w) float32
    half_side: float  # half of the longer side of the plane, in pixels
    from_pixels: np.ndarray  # the matrix (3, 3) from pixels to these coordinates


def coordinates_of(height: int, width: int) -> Coordinates:
    """Return the coordinates of a plane of height x width pixels."""
    center_x = (width - 1) / 2
    center_y = (height - 1) / 2
    half_side = max(height, width) / 2
    y, x = np.mgrid[:height, :width].astype(np.float32)
    # The same two lines as below, as a matrix. Its last row becomes 0 0 1.
    from_pixels = np.array([[1, 0, -center_x], [0, 1, -center_y], [0, 0, half_side]]) / half_side
    x = (x - center_x) / half_side
    y = (y - center_y) / half_side
    return Coordinates(x, y, half_side, from_pixels)


def motions_of_places(changes: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Return J (t, 2, k): how far each of k changes moves each of t places right and down.

    test_a_change_of_the_matrix_moves_places_as_computed compares J with moved places.

    changes: (k, 3, 3). places: (t, 3), homogeneous coordinates x, y, z with z = 1.
    """
    # A change moves x, y and z of a place by its product with (x, y, z). So, with coordinates i, j,
    # moved[t, k, i] = sum over j of changes[k, i, j] places[t, j].
    moved = np.einsum("kij,tj->tki", changes, places)  # (t, k, 3)
    dx_dy = moved[..., :2]  # (t, k, 2)
    dz = moved[..., 2:]  # (t, k, 1)
    # The point in the image is (x / z, y / z). At z = 1, x / z changes by dx - x dz, and y / z by
    # dy - y dz.
    x_y = places[:, None, :2]  # (t, 1, 2)
    J = dx_dy - x_y * dz  # (t, k, 2)
    return J.swapaxes(1, 2)


def mean_distance(before: np.ndarray, after: np.ndarray, width: int, height: int) -> float:
    """Return the mean distance in RGB pixels between the results of two matrices.

    before, after: matrices (3, 3). The mean is over 9 x 9 spike pixels, spread evenly over the
    plane of width x height pixels, because a map of the plane is smooth.
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

"""Interpolate spike channels onto the RGB pixels of a crop, for a spike camera with its own view.

An RGB pixel shows a point of the spike plane (the image of the spike camera). The value of the RGB
pixel is interpolated bilinearly between the four spike pixels around the point. E.g. the point
x = 2.25, y = 1 lies a quarter of the way from column 2 to column 3, on row 1:

    value = 0.75 * pixel (row 1, column 2) + 0.25 * pixel (row 1, column 3)

If spike pixels are smaller than RGB pixels, the value of an RGB pixel is the mean over n x n
points. data/cameras/calibrated_grid.py decides where the points lie, and what n is.

What must stay: a pixel has the same channels in every crop, to the bit, because networks are
trained on crops and restore whole frames. So the weights of a pixel must not depend on other
pixels, and sums must have a fixed order.

Tests: tests/parts/data/test_spike_grid.py (test_a_crop_is_bit_for_bit_the_crop_of_the_whole tries
some crops)
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from data.spike.geometry import Crop

# ---- From points to spike pixels ----------------------------------------------------------------


class Neighbours(NamedTuple):
    """The spike pixels around one point of each RGB pixel, and their weights.

    Each field is (k, H W): k is 4 for bilinear interpolation and 1 for the nearest pixel. H W is
    the number of RGB pixels of the crop.
    """

    rows: np.ndarray  # row of each spike pixel in the plane
    columns: np.ndarray  # column of each spike pixel in the plane
    weights: np.ndarray  # the k weights of an RGB pixel add up to 1


def neighbours_of(
    x: np.ndarray, y: np.ndarray, plane: tuple[int, int], nearest: bool
) -> Neighbours:
    """Return the spike pixels around points of the spike plane.

    x, y: column and row of each point, (H W,), with one point for each RGB pixel of a crop.
    plane: size (h, w) of the spike plane. nearest: whether to take only the nearest spike pixel.
    """
    height, width = plane
    # Move points outside of the plane to its edge, so that they get the value of the pixel at the
    # edge.
    x = np.clip(x, 0, width - 1)
    y = np.clip(y, 0, height - 1)
    return _nearest_pixels(x, y) if nearest else _four_pixels(x, y)


def _nearest_pixels(x: np.ndarray, y: np.ndarray) -> Neighbours:
    """Return the spike pixel nearest to each point. x, y: (H W,), within the plane."""
    # Round to the nearest pixel. A half is rounded up: 2.5 -> 3.
    row = np.floor(y + 0.5).astype(np.int64)
    column = np.floor(x + 0.5).astype(np.int64)
    return Neighbours(row[None], column[None], np.ones((1, len(x)), np.float32))


def _four_pixels(x: np.ndarray, y: np.ndarray) -> Neighbours:
    """Return the four spike pixels around each point, with the weights of bilinear interpolation.

    The order is upper left, upper right, lower left, lower right. The weights of a point do not
    depend on other points. So an RGB pixel has the same weights, bit for bit, in every crop.

    x, y: (H W,), within the plane.
    """
    row = y.astype(np.int64)  # cuts off the fraction
    column = x.astype(np.int64)
    right = x - column  # how far the point lies to the right of the upper left pixel, 0 to 1
    below = y - row  # how far the point lies below the upper left pixel, 0 to 1
    # There is no row after the last row. A point on the last row has `below` 0, because
    # `neighbours_of` has moved all points into the plane. So where `below` is 0, the row itself is
    # taken in place of the next row. This changes no value, because the weight of the next row is
    # 0. The columns are treated in the same way.
    next_row = row + (below > 0)
    next_column = column + (right > 0)
    weights = (
        (1 - below) * (1 - right),
        (1 - below) * right,
        below * (1 - right),
        below * right,
    )
    return Neighbours(
        rows=np.stack((row, row, next_row, next_row)),
        columns=np.stack((column, next_column, column, next_column)),
        weights=np.stack(weights).astype(np.float32),
    )


# ---- From spike pixels to RGB pixels ------------------------------------------------------------


class FlatNeighbours(NamedTuple):
    """`Neighbours`, with a flat index of each spike pixel in place of its row and column."""

    # (k, H W), indices row * width + column within the crop of the spike plane. E.g. in a crop of
    # 10 columns, row 2 and column 3 have the index 23.
    indices: np.ndarray
    weights: np.ndarray  # (k, H W), as in `Neighbours`


@dataclass(frozen=True)
class CalibratedWindow:
    """One crop of the frame on a `CalibratedGrid`: which spike pixels to read, and how to mix them.

    An RGB pixel is the mean of its n x n points. Each point is interpolated between the spike
    pixels around it.
    """

    crop: Crop  # the spike pixels to read
    # n x n elements. E.g. the first element has the spike pixels around the first point of every
    # RGB pixel.
    points: tuple[FlatNeighbours, ...]
    covered: np.ndarray  # (H, W) bool, the RGB pixels that the spike camera sees

    def to_rgb(self, channels: np.ndarray) -> np.ndarray:
        """Turn channels (S, h, w) float32 of `crop` into (S, H, W) float32 on the RGB grid.

        What must stay: the products of spike pixel and weight are added one by one, in this order.
        A matrix product may add in an order that depends on the size of the crop. With a matrix
        product, the last bits of an RGB pixel would depend on the crop, and
        test_a_crop_is_bit_for_bit_the_crop_of_the_whole would fail.
        """
        count = len(channels)
        pixels = channels.reshape(count, self.crop.height * self.crop.width)  # (S, h w)
        out = np.zeros((count, self.covered.size), np.float32)  # (S, H W)
        for point in self.points:
            # Each RGB pixel has k spike pixels around this point, e.g. 4. The first turn of the
            # loop adds the first spike pixel of all RGB pixels at once. `indices` (H W,) are the
            # first spike pixels, and `weights` (H W,) are the weights of these spike pixels.
            for indices, weights in zip(point.indices, point.weights, strict=True):
                for channel, out_channel in zip(pixels, out, strict=True):
                    # `out_channel` is a view, so this changes `out`.
                    out_channel += channel[indices] * weights
        # Divide by the number of points of an RGB pixel, to get their mean.
        if len(self.points) > 1:
            out /= np.float32(len(self.points))
        return out.reshape(count, *self.covered.shape)  # (S, H, W)

    def brightness(self, stream: np.ndarray, image: np.ndarray) -> tuple[float, np.ndarray]:
        """Return the mean firing rate and the mean colour (3,) of the pixels that both cameras see.

        If the spike camera sees no pixel of the crop, the means are over the whole crop.

        stream: spikes (T, h, w) of `crop`. image: (H, W, 3), the crop of the frame.

        If the means are over all pixels, test_brightness_is_compared_where_both_cameras_look fails.
        """
        is_seen = self.covered  # (H, W)
        if not is_seen.any():
            is_seen = np.ones_like(is_seen)
        rate_of_spike_pixels = stream.mean(axis=0, dtype=np.float32)  # (h, w)
        # `to_rgb` takes channels, so pass the rate as one channel, (1, h, w).
        rate = self.to_rgb(rate_of_spike_pixels[None])[0]  # (H, W)
        mean_rate = float(rate[is_seen].mean(dtype=np.float64))
        mean_colour = image[is_seen].mean(axis=0)
        return mean_rate, mean_colour


def window_of(points: list[Neighbours], covered: np.ndarray) -> CalibratedWindow:
    """Return the window of a crop.

    points: the spike pixels around each of the n x n points of an RGB pixel.
    covered: (H, W) bool, the RGB pixels that the spike camera sees.
    """
    spike_crop = _rectangle_of(points)
    flat_points = []
    for point in points:
        row_in_crop = point.rows - spike_crop.top
        column_in_crop = point.columns - spike_crop.left
        indices = row_in_crop * spike_crop.width + column_in_crop  # (k, H W)
        flat_points.append(FlatNeighbours(indices, point.weights))
    return CalibratedWindow(spike_crop, tuple(flat_points), covered)


def _rectangle_of(points: list[Neighbours]) -> Crop:
    """Return the smallest rectangle of the spike plane with all spike pixels of the points."""
    top = min(int(point.rows.min()) for point in points)
    left = min(int(point.columns.min()) for point in points)
    last_row = max(int(point.rows.max()) for point in points)
    last_column = max(int(point.columns.max()) for point in points)
    return Crop(top, left, height=last_row - top + 1, width=last_column - left + 1)

"""Put spike channels onto the frame if the spike camera has a view of its own.

A calibration has the matrix from spike pixels to RGB pixels. Here its inverse M is used: for each
RGB pixel (x, y), it tells the place in the spike plane whose value the pixel takes:

    (u, v, d) = M (x, y, 1),    place = (u / d, v / d)

A place lies between four spike pixels, and the value is interpolated (`CalibratedGrid`).
data/cameras/spike_grid.py explains grids and windows.

What must stay: the channels of a crop are, bit for bit, the crop of the channels of the whole
frame, because networks are trained on crops. So no value may depend on where the crop begins, and
sums have a fixed order. test_a_crop_is_bit_for_bit_the_crop_of_the_whole tries some crops.

Tests: tests/parts/data/test_spike_grid.py, tests/parts/data/test_two_cameras.py
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from data.cameras.calibration import Calibration, scale_of
from data.spike.geometry import Crop, SpikeGeometry
from utils.errors import DataError


class Neighbours(NamedTuple):
    """The spike pixels around one point of each RGB pixel, and their weights.

    Each field is (n, H W): n is 4 for bilinear interpolation and 1 for the nearest pixel, and H W
    is the number of RGB pixels of the crop.
    """

    rows: np.ndarray  # row of each spike pixel in the plane
    columns: np.ndarray  # column of each spike pixel in the plane
    weights: np.ndarray  # the n weights of an RGB pixel add up to 1


class Sample(NamedTuple):
    """`Neighbours`, with one number for each spike pixel instead of its row and column."""

    # (n, H W), numbers of the spike pixels in the crop of the spike plane: row * width + column.
    places: np.ndarray
    weights: np.ndarray  # (n, H W), as in `Neighbours`


@dataclass(frozen=True)
class CalibratedWindow:
    """One crop of the frame on a `CalibratedGrid`. RGB pixels are means of spike pixels."""

    crop: Crop  # the spike pixels to read
    # One or more points in each RGB pixel, with the spike pixels around each point.
    samples: tuple[Sample, ...]
    covered: np.ndarray  # (H, W) bool, the RGB pixels that the spike camera sees

    def to_rgb(self, channels: np.ndarray) -> np.ndarray:
        """Turn channels (S, h, w) float32 of `crop` into (S, H, W) float32 on the RGB grid.

        What must stay: the order of the sums. The products of spike pixel and weight are added one
        by one, because a matrix product may add in another order for another crop, and the same RGB
        pixel would get other last bits. test_a_crop_is_bit_for_bit_the_crop_of_the_whole compares.
        """
        count = len(channels)
        pixels = channels.reshape(count, self.crop.height * self.crop.width)  # (S, h w)
        out = np.zeros((count, self.covered.size), np.float32)  # (S, H W)
        for sample in self.samples:
            # A sample has four spike pixels, or one, for each RGB pixel. Take the first of every
            # RGB pixel with its weight, then the second, ...: (H W,) each.
            for place, weight in zip(sample.places, sample.weights, strict=True):
                for channel, out_channel in zip(pixels, out, strict=True):
                    # `out_channel` is a view, so this changes `out`.
                    out_channel += channel[place] * weight
        # The mean over the points of an RGB pixel.
        if len(self.samples) > 1:
            out /= np.float32(len(self.samples))
        return out.reshape(count, *self.covered.shape)  # (S, H, W)

    def brightness(self, stream: np.ndarray, image: np.ndarray) -> tuple[float, np.ndarray]:
        """Return the mean firing rate and the mean colour (3,) of what both cameras see.

        stream: spikes (T, h, w) of `crop`. image: (H, W, 3), the crop of the frame.
        If the spike camera sees nothing of the crop, the means are over the whole crop.
        """
        is_seen = self.covered  # (H, W)
        if not is_seen.any():
            is_seen = np.ones_like(is_seen)
        rate_of_spike_pixels = stream.mean(axis=0, dtype=np.float32)  # (h, w)
        rate = self.to_rgb(rate_of_spike_pixels[None])[0]  # (H, W)
        mean_rate = float(rate[is_seen].mean(dtype=np.float64))
        mean_colour = image[is_seen].mean(axis=0)
        return mean_rate, mean_colour


class CalibratedGrid:
    """The grid of a spike camera with a view of its own.

    An RGB pixel takes the value of the spikes at its centre: either interpolated between the four
    spike pixels around the centre, or the value of the nearest spike pixel. If spike pixels are
    smaller than RGB pixels, one point would miss some of them. Then an RGB pixel takes the mean of
    n x n points, spread evenly over it, where n is the number of spike pixels across an RGB pixel,
    rounded up. Outside of the spike camera's view, the edge of the spike plane is repeated.
    """

    step = 1  # crops of the frame may start at every pixel

    def __init__(
        self, calibration: Calibration, geometry: SpikeGeometry, path: str, nearest: bool = False
    ) -> None:
        """Check the calibration against the spike planes.

        path: file of the calibration, for messages. nearest: whether to take the nearest spike
        pixel instead of interpolating.
        Raises DataError for planes of another size, for cameras without a common view, and for a
        region that the spike camera does not see.
        """
        plane_size = (geometry.height, geometry.width)
        if tuple(calibration.spike_size) != plane_size:
            _refuse_planes_of_other_size(calibration, plane_size, path)
        height, width = calibration.rgb_size
        self.size = (height, width)  # of a frame
        matrix_to_rgb = calibration.to_rgb()  # (3, 3), from spike pixels to RGB pixels
        rgb_per_spike_pixel = scale_of(matrix_to_rgb)  # along a side, e.g. 3.96
        self.pixel = max(1, round(rgb_per_spike_pixel))
        self._plane = plane_size
        self._nearest = nearest
        self._path = path
        self._matrix_to_spike = np.linalg.inv(matrix_to_rgb)
        self._points_across = 1 if nearest else self._points_across_a_pixel()
        # The crop of the last window, and the window. All frames of a sample have the same crop.
        self._last: tuple[Crop, CalibratedWindow] | None = None

        covered = self._covered(Crop(0, 0, *self.size))
        self.coverage = float(covered.mean())
        self.region = _usable_region(calibration, covered, path)

    def _points_across_a_pixel(self) -> int:
        """Return n: each RGB pixel takes the mean of n x n points of the spike plane.

        n is the number of spike pixels across the RGB pixel in the middle of the frame, rounded up.
        E.g. 1.7 spike pixels give n = 2, and 0.25 spike pixels give n = 1. An excess of up to 0.05
        is ignored, so that two cameras of equal resolution get n = 1 although their scale was
        measured as 1.02. Without this margin they would get n = 2: smoother channels, from four
        times as many points.
        """
        height, width = self.size
        middle = Crop(top=(height - 1) // 2, left=(width - 1) // 2, height=1, width=1)
        # The place (x, y) of this pixel in the spike plane, and of its neighbours in the frame.
        here = np.ravel(self._centres(middle))  # (2,)
        right = np.ravel(self._centres(middle, dx=1))
        below = np.ravel(self._centres(middle, dy=1))
        # How long one step to the right, and one step down, is in the spike plane.
        across = np.hypot(*(right - here))
        down = np.hypot(*(below - here))
        return max(1, int(np.ceil(max(across, down) - 0.05)))

    def check_size(self, size: tuple[int, int]) -> None:
        """Raise DataError for frames of another size (H, W) than the calibration's."""
        if size == self.size:
            return
        height, width = size
        calibrated_height, calibrated_width = self.size
        raise DataError(
            what=f"lq is {height} x {width}, spike.calibration was made for frames of "
            f"{calibrated_height} x {calibrated_width}",
            where=self._path,
            expected="frames as they were in the calibration, not resized or cropped",
            do="calibrate with these frames, or correct spike.calibration",
        )

    def window(self, crop: Crop) -> CalibratedWindow:
        """Return the window of a crop of the frame.

        The last window is kept, because all frames of a sample have the same crop, and making a
        window takes longer than using it.
        """
        # `crop` may be an Augment. Two of these are equal only if their flips are equal, too. A
        # plain Crop leaves the flips out, because a window does not depend on them.
        place = Crop(crop.top, crop.left, crop.height, crop.width)
        if self._last is not None:
            last_place, last_window = self._last
            if last_place == place:
                return last_window
        window = self._new_window(crop)
        self._last = (place, window)
        return window

    def _new_window(self, crop: Crop) -> CalibratedWindow:
        """Make the window of a crop of the frame."""
        # The points of each RGB pixel, as distances from its centre: 0 for n = 1, and -0.25 and
        # 0.25 for n = 2.
        n = self._points_across
        shifts = (np.arange(n) + 0.5) / n - 0.5
        # The spike pixels around each of the n x n points.
        points: list[Neighbours] = []
        for dy in shifts:
            for dx in shifts:
                x, y = self._centres(crop, dx, dy)  # in the spike plane, (H, W) each
                points.append(self._neighbours(x.ravel(), y.ravel()))

        spike_crop = _rectangle_of(points)
        samples = []
        for point in points:
            # Spike pixels are numbered row by row within their crop. In a crop of 10 columns, row 2
            # and column 3 have the number 23.
            row_in_crop = point.rows - spike_crop.top
            column_in_crop = point.columns - spike_crop.left
            places = row_in_crop * spike_crop.width + column_in_crop  # (4, H W)
            samples.append(Sample(places, point.weights))
        return CalibratedWindow(spike_crop, tuple(samples), self._covered(crop))

    def _neighbours(self, x: np.ndarray, y: np.ndarray) -> Neighbours:
        """Return the spike pixels around points of the spike plane.

        x, y: column and row of each point, (H W,), with one point for each RGB pixel of a crop.
        """
        height, width = self._plane
        # Outside of the plane, the pixel at its edge is repeated.
        x = np.clip(x, 0, width - 1)
        y = np.clip(y, 0, height - 1)
        if self._nearest:
            # Rounded, and half a pixel is rounded up.
            row = np.floor(y + 0.5).astype(np.int64)
            column = np.floor(x + 0.5).astype(np.int64)
            return Neighbours(row[None], column[None], np.ones((1, len(x)), np.float32))

        # Bilinear interpolation between four pixels: (row, column), its right neighbour, the pixel
        # below, and the right neighbour of the pixel below. `right` and `below` are the distances
        # of the point from (row, column), 0 to 1. Each point is computed alone, so that a pixel has
        # the same weights, bit for bit, in every crop.
        row = y.astype(np.int64)  # cuts off the fraction
        column = x.astype(np.int64)
        right = x - column
        below = y - row
        # A point on the last row has `below` = 0, because of the clip above, and no next row. So at
        # distance 0 the row itself stands for the next row, with the weight 0. Columns alike.
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

    def _centres(
        self, crop: Crop, dx: float = 0.0, dy: float = 0.0
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the places x and y, each (H, W), of the crop's RGB pixels in the spike plane.

        dx, dy: distance of the points from the centres of the RGB pixels, in RGB pixels.
        The places are computed in float64 from coordinates of the whole frame, so that a pixel gets
        the same numbers in every crop that contains it.
        """
        x = crop.left + np.arange(crop.width, dtype=np.float64)[None] + dx  # (1, W)
        y = crop.top + np.arange(crop.height, dtype=np.float64)[:, None] + dy  # (H, 1)
        M = self._matrix_to_spike  # (3, 3), from RGB pixels to spike pixels
        # (u, v, depth) = M (x, y, 1). A homography divides by the depth; it is 1 if M is affine.
        # Written out, because a matrix product may add in another order for another crop.
        u = M[0, 0] * x + M[0, 1] * y + M[0, 2]  # (H, W)
        v = M[1, 0] * x + M[1, 1] * y + M[1, 2]
        depth = M[2, 0] * x + M[2, 1] * y + M[2, 2]
        return u / depth, v / depth

    def _covered(self, crop: Crop) -> np.ndarray:
        """Return (H, W) bool: where the planes cover the centre of a pixel of a crop."""
        height, width = self._plane
        x, y = self._centres(crop)
        is_inside_x = (x >= -0.5) & (x <= width - 0.5)
        is_inside_y = (y >= -0.5) & (y <= height - 0.5)
        return is_inside_x & is_inside_y


def _rectangle_of(points: list[Neighbours]) -> Crop:
    """Return the smallest rectangle of the spike plane that contains all these spike pixels."""
    top = min(int(point.rows.min()) for point in points)
    left = min(int(point.columns.min()) for point in points)
    last_row = max(int(point.rows.max()) for point in points)
    last_column = max(int(point.columns.max()) for point in points)
    return Crop(top, left, height=last_row - top + 1, width=last_column - left + 1)


def _usable_region(calibration: Calibration, covered: np.ndarray, path: str) -> Crop:
    """Return the region of the calibration. If the file has none, return the largest region.

    covered: (H, W) bool, the pixels of the whole frame that the spike camera sees.
    path: file of the calibration, for messages.
    Raises DataError if the spike camera sees nothing of the frame, or not all of the region.
    """
    largest = largest_rectangle(covered)
    if largest is None:
        raise DataError(
            what="the calibration maps all spike pixels outside of the frame",
            where=f"{path}, matrix",
            expected="cameras with a common view",
            do="calibrate again",
        )
    region = largest
    if calibration.region:
        top, left, height, width = calibration.region
        region = Crop(top, left, height, width)
    if not _is_covered(region, covered):
        raise DataError(
            what=f"the spike camera does not see all of the region {calibration.region}",
            where=f"{path}, region",
            expected=f"within {largest.as_list()}",
            do="correct it, or set it to null",
        )
    return region


def _is_covered(region: Crop, covered: np.ndarray) -> bool:
    """Return whether a region lies in the frame and the spike camera sees all of it.

    covered: (H, W) bool of the whole frame.
    """
    if region.top < 0 or region.left < 0 or region.height < 1 or region.width < 1:
        return False
    height, width = covered.shape
    if region.bottom > height or region.right > width:
        return False
    return bool(covered[region.slices].all())


def largest_rectangle(covered: np.ndarray) -> Crop | None:
    """Return the largest rectangle of true pixels in a convex area. None if no pixel is true.

    covered: (H, W) bool. The true pixels are a convex area, as the view of a camera is: a column
    that is true in two rows is true in all rows between them.

    All pairs of rows (i, j) are tried. Because of the convex area, the widest rectangle from row i
    to row j has exactly the columns that are true in both rows.
    """
    rows = np.flatnonzero(covered.any(axis=1))  # (n,), the rows with true pixels
    if not len(rows):
        return None
    # The true pixels of row i are first[i] ... after[i] - 1. argmax finds the first true pixel. In
    # the mirrored row, the first true pixel is the last one of the row.
    first = covered[rows].argmax(axis=1)  # (n,)
    mirrored = covered[rows, ::-1]
    after = covered.shape[1] - mirrored.argmax(axis=1)  # (n,)

    # The rectangles of all pairs. Each array is (n, n): element (i, j) is for the rows i to j.
    left = np.maximum(first[:, None], first[None])
    right = np.minimum(after[:, None], after[None])
    widths = np.maximum(right - left, 0)
    heights = rows[None] - rows[:, None] + 1  # below 1 if row j lies above row i
    areas = np.where(heights > 0, widths * heights, 0)

    # argmax counts the elements row by row. unravel_index turns the number into (i, j).
    i, j = np.unravel_index(areas.argmax(), areas.shape)
    if not areas[i, j]:
        return None
    return Crop(
        top=int(rows[i]),
        left=int(left[i, j]),
        height=int(heights[i, j]),
        width=int(widths[i, j]),
    )


def _refuse_planes_of_other_size(
    calibration: Calibration, size: tuple[int, int], path: str
) -> None:
    """Raise DataError for spike planes of another size (h, w) than the calibration's."""
    calibrated_height, calibrated_width = calibration.spike_size
    height, width = size
    raise DataError(
        what=f"the calibration was made for spike planes of {calibrated_height} x "
        f"{calibrated_width}, these are {height} x {width}",
        where=path,
        expected="the same spike camera",
        do="correct spike.h and spike.w, or calibrate again",
    )

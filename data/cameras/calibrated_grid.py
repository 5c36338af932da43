"""Put spike channels onto the frame if the spike camera has a view of its own.

A calibration has the matrix from spike pixels to RGB pixels. In this module, M is the inverse of
this matrix. An RGB pixel at (x, y) takes the value at column u / d and row v / d of the spike plane
(the image of the spike camera):

    (u, v, d) = M (x, y, 1)

This position usually lies between four spike pixels. The value is interpolated between the four
pixels (calibrated_window.py), or the value of the nearest spike pixel is taken. Outside of the
spike camera's view, the edge of the spike plane is repeated. data/cameras/spike_grid.py explains
grids and windows.

What must stay: a pixel has the same channels in every crop, to the bit, because networks are
trained on crops and restore whole frames. So the position of an RGB pixel in the spike plane must
not depend on where the crop begins.

Tests: tests/parts/data/test_spike_grid.py (test_a_crop_is_bit_for_bit_the_crop_of_the_whole tries
some crops), tests/parts/data/test_two_cameras.py
"""

import numpy as np

from data.cameras.calibrated_window import CalibratedWindow, neighbours_of, window_of
from data.cameras.calibration import Calibration, scale_of
from data.cameras.covered_region import usable_region
from data.spike.geometry import Crop, SpikeGeometry
from utils.errors import DataError


class CalibratedGrid:
    """The grid of a spike camera with a view of its own.

    Each RGB pixel takes the mean of n x n points of the spike plane. The points are spread evenly
    over the RGB pixel. Usually n is 1: the only point is the centre of the RGB pixel. If an RGB
    pixel covers several spike pixels, one point would miss some of them. So n is the number of
    spike pixels across an RGB pixel, rounded up.

        spike pixels across an RGB pixel    n
        0.25                                1
        1.7                                 2
    """

    step = 1  # RGB pixels: a crop of the frame may start at every pixel

    def __init__(
        self, calibration: Calibration, geometry: SpikeGeometry, path: str, nearest: bool = False
    ) -> None:
        """Check the calibration against the spike planes.

        path: file of the calibration, for messages.
        nearest: whether to take the nearest spike pixel instead of interpolating.
        Raises DataError for planes of a wrong size, for cameras without a common view, and for a
        region that the spike camera does not see.
        """
        plane_size = (geometry.height, geometry.width)
        if tuple(calibration.spike_size) != plane_size:
            _refuse_planes_of_other_size(calibration, plane_size, path)
        height, width = calibration.rgb_size
        self.size = (height, width)  # size of a frame
        matrix_to_rgb = calibration.to_rgb()  # (3, 3), from spike pixels to RGB pixels
        # Number of RGB pixels across a spike pixel, e.g. 3.96. The number is below 1 if a spike
        # pixel is smaller than an RGB pixel. In this case, round() may give 0.
        scale = scale_of(matrix_to_rgb)
        self.rgb_per_spike_pixel = max(1, round(scale))
        self._plane = plane_size
        self._nearest = nearest
        self._path = path
        self._matrix_to_spike = np.linalg.inv(matrix_to_rgb)
        # With "nearest", an RGB pixel must have the value of a single spike pixel, e.g. 0 or 1. The
        # mean of two points may be 0.5. So an RGB pixel has only one point.
        self._points_across = 1 if nearest else self._points_across_a_pixel()
        # The last crop and its window. The next frame of the same sample uses them again
        # (`window`).
        self._last: tuple[Crop, CalibratedWindow] | None = None

        # `covered` (H, W) is a mask of the pixels that the spike camera sees, and `coverage` is the
        # fraction of these pixels. Crops for training lie in `region`. If the calibration file
        # gives a region, `region` is this region. If not, `region` is the largest rectangle of
        # covered pixels.
        covered = self._covered(Crop(0, 0, *self.size))
        self.coverage = float(covered.mean())
        self.region = usable_region(calibration, covered, path)

    def _points_across_a_pixel(self) -> int:
        """Return n, the number of points along a side of an RGB pixel (see the class).

        The number of spike pixels across an RGB pixel is measured in the middle of the frame. E.g.
        for two cameras of equal resolution, the measured number may be 1.02. Rounded up, n would be
        2. This would make the channels smoother, and need four times as many points. So 0.05
        (chosen by hand) is subtracted first.

        `scale_of` (calibration.py) cannot be used here, because it gives the mean of both
        directions, at spike pixel (0, 0). n must suit the direction with more spike pixels.

        If n is always 1, test_spikes_finer_than_the_frame_are_averaged_over_its_pixels fails.
        """
        height, width = self.size
        middle = Crop(top=(height - 1) // 2, left=(width - 1) // 2, height=1, width=1)
        # Find the position (u, v) in the spike plane of the middle RGB pixel, of its neighbour on
        # the right (dx=1), and of its neighbour below (dy=1). E.g. `_centres` returns u [[80.0]]
        # and v [[45.0]], and np.ravel makes [80.0, 45.0] of them.
        here = np.ravel(self._centres(middle))
        right = np.ravel(self._centres(middle, dx=1))
        below = np.ravel(self._centres(middle, dy=1))
        # The step of one RGB pixel to the right, and of one RGB pixel down, in spike pixels.
        step_right = right - here
        step_down = below - here
        longest_step = max(np.hypot(*step_right), np.hypot(*step_down))
        return max(1, int(np.ceil(longest_step - 0.05)))  # at least 1, because a step may be 0.03

    def check_size(self, size: tuple[int, int]) -> None:
        """Raise DataError for frames whose size (H, W) is not the size in the calibration."""
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
        # `crop` may be an `Augment` (data/augment.py), a subclass of `Crop` that also has flips.
        # Leave the flips out, because a window does not depend on them.
        unflipped_crop = Crop(crop.top, crop.left, crop.height, crop.width)
        if self._last is not None:
            last_crop, last_window = self._last
            if last_crop == unflipped_crop:
                return last_window
        window = self._new_window(unflipped_crop)
        self._last = (unflipped_crop, window)
        return window

    def _new_window(self, crop: Crop) -> CalibratedWindow:
        """Make the window of a crop of the frame."""
        # The distances of the points from the centre of an RGB pixel, along x or y. A pixel reaches
        # from -0.5 to 0.5. The pixel is divided into n equal parts, and a point is in the middle of
        # each part: 0 for n = 1, and -0.25 and 0.25 for n = 2.
        n = self._points_across
        shifts = (np.arange(n) + 0.5) / n - 0.5
        points = []
        for dy in shifts:
            for dx in shifts:
                # One point of every RGB pixel of the crop: `x` (H, W) has the columns of these
                # points in the spike plane, and `y` (H, W) the rows.
                x, y = self._centres(crop, dx, dy)
                points.append(neighbours_of(x.ravel(), y.ravel(), self._plane, self._nearest))
        return window_of(points, self._covered(crop))

    def _centres(
        self, crop: Crop, dx: float = 0.0, dy: float = 0.0
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the column u and the row v in the spike plane for each RGB pixel of a crop.

        u and v are arrays (H, W), float64. Both are computed from coordinates of the whole frame,
        so that an RGB pixel has the same u and v in every crop that contains it.

        dx, dy: distance of the points from the centres of the RGB pixels, in RGB pixels.
        """
        x = crop.left + np.arange(crop.width, dtype=np.float64)[None] + dx  # (1, W)
        y = crop.top + np.arange(crop.height, dtype=np.float64)[:, None] + dy  # (H, 1)
        M = self._matrix_to_spike  # (3, 3), from RGB pixels to spike pixels
        # (u, v, depth) = M (x, y, 1). The depth is 1 if M is affine. Do not use a matrix product
        # here, because its order of additions may depend on the size of the crop.
        u = M[0, 0] * x + M[0, 1] * y + M[0, 2]  # (H, W)
        v = M[1, 0] * x + M[1, 1] * y + M[1, 2]
        depth = M[2, 0] * x + M[2, 1] * y + M[2, 2]
        return u / depth, v / depth

    def _covered(self, crop: Crop) -> np.ndarray:
        """Return (H, W) bool: whether the spike plane covers the centre of each RGB pixel."""
        height, width = self._plane
        # Positions in the spike plane: `x` (H, W) has the columns, `y` (H, W) the rows.
        x, y = self._centres(crop)
        # The centres of spike pixels are whole numbers, so the plane reaches from -0.5 to
        # width - 0.5, and from -0.5 to height - 0.5.
        is_inside_x = (x >= -0.5) & (x <= width - 0.5)
        is_inside_y = (y >= -0.5) & (y <= height - 0.5)
        return is_inside_x & is_inside_y


def _refuse_planes_of_other_size(
    calibration: Calibration, size: tuple[int, int], path: str
) -> None:
    """Raise DataError for spike planes whose size (h, w) is not the size in the calibration."""
    calibrated_height, calibrated_width = calibration.spike_size
    height, width = size
    raise DataError(
        what=f"the calibration was made for spike planes of {calibrated_height} x "
        f"{calibrated_width}, these are {height} x {width}",
        where=path,
        expected="the same spike camera",
        do="correct spike.h and spike.w, or calibrate again",
    )

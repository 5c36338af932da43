"""Say which part of the frame each spike pixel sees.

A frame of the RGB camera has H x W pixels, and a plane (one binary picture of the spike camera) has
h x w spike pixels. The matrix `View.to_rgb` maps the spike pixel (x, y) to the place (X, Y) on the
frame:

    (X d, Y d, d) = to_rgb (x, y, 1)        d is 1 unless a camera is tilted

x and y count spike pixels, and X and Y count RGB pixels. The middle of the first pixel is (0, 0).
`view_of` makes the view of a clip, from its calibration if it has one.

Most of data/motion/ does not use the matrix itself, but three results that follow from it:

    means             picture of the frame -> what the spike pixels see of it
    points_on_frame   points of the spike pixels -> their places on the frame
    pixels_on_plane   pixels of the frame -> their places on the plane

What must stay: the number of points in a spike pixel and their places. The fusion operator "motion"
(models/fusion/fusion_motion.py) improves frames by learned steps along the motion. Its shipped
weights were trained on equations with these points. test_view.py notices other places.
test_bands.py notices a wrong field of the view of a band.

Tests: tests/parts/data/test_view.py, tests/parts/data/test_bands.py
"""

from dataclasses import dataclass
from functools import cached_property

import cv2
import numpy as np

from data.clip import Clip


@dataclass(frozen=True)
class View:
    """Where the spike pixels lie on the frame, and what they integrate.

    All frames of a clip have the same view. If you add a field, decide in data/motion/bands.py what
    its value is for a band (some rows of the frame).
    """

    size: tuple[int, int]  # (H, W) of the frames
    plane: tuple[int, int]  # (h, w) of the spike planes
    # (3, 3), a homography: spike pixel -> RGB pixel. Its last value need not be 1, because a factor
    # of the whole matrix has no effect.
    to_rgb: np.ndarray
    is_display: bool  # True: the sensor integrates display values. False: it integrates light.
    lens_blur: float = 0.0  # by the lens of the spike camera: sigma in spike pixels
    # Rolling shutter: the last row is exposed later than the first row by this share of the
    # exposure.
    rolling: float = 0.0
    # Only for a band, some rows of a larger frame: the first of these rows, and the number of rows
    # of the larger frame. A view of whole frames has 0 and None.
    first_row: int = 0
    all_rows: int | None = None

    def means(self, picture: np.ndarray) -> np.ndarray:
        """Return the means of a picture (H, W) float32 over the spike pixels, (h, w)."""
        # Sample the picture at all points of all spike pixels, (h m, w n).
        points = self.points_on_frame()
        x = points[..., 0]
        y = points[..., 1]
        samples = cv2.remap(picture, x, y, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)
        # INTER_AREA takes the mean over the m x n samples of each spike pixel.
        height, width = self.plane
        return cv2.resize(samples, (width, height), interpolation=cv2.INTER_AREA)

    def points_on_frame(self) -> np.ndarray:
        """Return where the points of the spike pixels lie on the frame.

        A spike pixel has m x n points, where (m, n) is `points_in_pixel`. Before the points are
        mapped to the frame, they lie on the plane. E.g. for n = 2 they lie at x = -0.25, 0.25, 0.75
        and 1.25. The spike pixels 0 and 1 have their middles at 0 and 1, and their edges at -0.5,
        0.5 and 1.5:

            spike pixel    |      0      |      1      |
            x            -0.5     0     0.5     1     1.5
            points           -0.25 0.25    0.75  1.25

        Returns (h m, w n, 2) float32, X and Y in RGB pixels. The points of the spike pixel in row r
        and column c of the plane are at [r m : (r + 1) m, c n : (c + 1) n].

        The array is computed once and returned by each call, so it must not be changed.

        With other places, test_the_points_of_a_spike_pixel_lie_on_the_pixels_that_it_covers fails.
        """
        return self._points_on_frame

    @cached_property
    def _points_on_frame(self) -> np.ndarray:
        """Compute what `points_on_frame` returns."""
        height, width = self.plane  # h, w
        down, across = self.points_in_pixel  # m, n
        y = (np.arange(height * down) + 0.5) / down - 0.5  # on the plane, (h m,)
        x = (np.arange(width * across) + 0.5) / across - 0.5  # (w n,)
        return mapped(self.to_rgb, _grid(x, y))

    def pixels_on_plane(self) -> np.ndarray:
        """Return where the RGB pixels lie on the plane: (H, W, 2) float32, x and y.

        The array is computed once and returned by each call, so it must not be changed.
        """
        return self._pixels_on_plane

    @cached_property
    def _pixels_on_plane(self) -> np.ndarray:
        """Compute what `pixels_on_plane` returns."""
        height, width = self.size
        pixels_on_frame = _grid(np.arange(width), np.arange(height))  # (H, W, 2)
        to_plane = np.linalg.inv(self.to_rgb)
        return mapped(to_plane, pixels_on_frame)

    @property
    def points_in_pixel(self) -> tuple[int, int]:
        """Return the number of points in a spike pixel, (down, across): about one per RGB pixel.

        E.g. a spike pixel that is 2.9 RGB pixels high and 3.1 wide has (3, 3) points.
        """
        # The steps to the right neighbour and to the neighbour below, X and Y in RGB pixels. Their
        # lengths are the sides of a spike pixel.
        right_x, right_y = self._steps[:, 0]
        below_x, below_y = self._steps[:, 1]
        width = float(np.hypot(right_x, right_y))
        height = float(np.hypot(below_x, below_y))
        # At least one point, because a spike pixel may be smaller than half an RGB pixel.
        return max(1, round(height)), max(1, round(width))

    @property
    def pixel_area(self) -> float:
        """Return the area of a spike pixel in RGB pixels.

        The steps to the right neighbour and to the neighbour below span a parallelogram of this
        area. E.g. the steps (3, 0) and (0, 2) give the area 6.
        """
        # The determinant is negative if the matrix mirrors.
        return abs(float(np.linalg.det(self._steps)))

    @property
    def _steps(self) -> np.ndarray:
        """Return the steps on the frame between neighbouring spike pixels, (2, 2).

        Column 0 is the step (X, Y) in RGB pixels from a spike pixel to its right neighbour. Column
        1 is the step to the neighbour below. If one camera is tilted, the steps differ a little
        over the frame. This function leaves out the perspective, and returns one step for all spike
        pixels.
        """
        # The first two values of the last row of the matrix are the perspective. They are not used
        # here. A matrix may have any factor, and the division by its last value removes the factor.
        return self.to_rgb[:2, :2] / self.to_rgb[2, 2]

    def delays(self) -> np.ndarray:
        """Return by how much each row is exposed later than the middle of the whole frame.

        Returns (H,), in exposures: from -rolling / 2 (top) to rolling / 2 (bottom). E.g. with
        rolling 0.4 the top row is exposed 0.2 exposures earlier than the middle row.

        Without `first_row`, test_a_row_of_a_band_is_exposed_when_it_is_in_the_frame fails.
        """
        height, _ = self.size
        row = self.first_row + np.arange(height)  # row of the whole frame, (H,)
        rows_of_frame = height if self.all_rows is None else self.all_rows
        last_row = max(rows_of_frame - 1, 1)  # 1 or more, because it is a divisor
        return (row / last_row - 0.5) * self.rolling


def view_of(clip: Clip) -> View:
    """Return the view of a clip, with or without a calibration. The clip has spikes."""
    geometry = clip.spikes.geometry
    calibration = clip.spikes.calibration
    plane = (geometry.height, geometry.width)
    is_display = clip.spikes.light == "display"
    if calibration:
        return View(
            size=clip.size,
            plane=plane,
            to_rgb=calibration.to_rgb(),
            is_display=is_display,
            lens_blur=calibration.lens_blur,
            rolling=calibration.rolling,
        )
    # Without a calibration, the plane fills the whole frame. A spike pixel then has `down` x
    # `across` RGB pixels. E.g. with 3 RGB pixels across, spike pixel 0 has the RGB pixels 0, 1 and
    # 2. Its middle is at X = 1, which is (3 - 1) / 2. Spike pixel x has its middle at X = 3 x + 1.
    height, width = clip.size
    down = height / geometry.height
    across = width / geometry.width
    matrix = np.array([[across, 0, (across - 1) / 2], [0, down, (down - 1) / 2], [0, 0, 1]])
    return View(clip.size, plane, to_rgb=matrix, is_display=is_display)


def mapped(matrix: np.ndarray, points: np.ndarray) -> np.ndarray:
    """Map points by a matrix, e.g. from the plane to the frame. Returns (h, w, 2) float32.

    matrix: (3, 3), a homography. points: (h, w, 2), x and y in pixels.
    """
    x = points[..., 0]
    y = points[..., 1]
    homogeneous = np.stack(np.broadcast_arrays(x, y, 1.0))  # (3, h, w)
    # The matrix times each point, (3, 3) and (3, h, w) -> (3, h, w). The depth d differs between
    # points if one camera is tilted.
    x_times_depth, y_times_depth, depth = np.tensordot(matrix, homogeneous, axes=1)  # (h, w) each
    mapped_x = x_times_depth / depth
    mapped_y = y_times_depth / depth
    return np.stack((mapped_x, mapped_y), axis=-1).astype(np.float32)


def _grid(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the points (h, w, 2), x and y, of a grid. x: (w,). y: (h,)."""
    # x belongs to columns and is repeated over the rows. y is repeated over the columns.
    return np.stack(np.broadcast_arrays(x[None], y[:, None]), axis=-1)

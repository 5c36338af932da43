"""Divide a large frame into bands of rows, so that its equations fit into memory.

The equations of a frame (data/motion/joint/) take about 3 kB of memory per pixel. So a frame of
more than `MOST_PIXELS` pixels is solved band by band, and the solutions are joined:

    bands_of        the view of a clip -> its bands
    Band.of_...     cuts what belongs to the band out of a frame, a recording, a motion
    join_pictures   the solutions of all bands -> the solution of the frame

    row 0      +--------------+
               |    band 0    |
               |              +--------------+   OVERLAP rows belong to both bands. In the FADE
               |              |              |   rows in their middle, the frame changes from
               +--------------+              |   solution of band 0 to solution of band 1.
                              |    band 1    |
    row H                     +--------------+

The equations treat a band as a small frame: its rows, and the spike pixels that see these rows.
A band lacks the light that moves into it from the rows beyond its border. So the solution of the
band is wrong near this border, and the rows near the border are taken only from the neighbouring
band.

data/motion/restorer.py calls these functions. The motion is found on the whole frame, before the
frame is divided. The spike camera has planes of h x w pixels, and the frame has H x W RGB pixels.

What must stay: a frame of at most `MOST_PIXELS` pixels is one band, so its results do not depend on
this file.

Tests: tests/parts/data/test_bands.py
"""

import itertools
import math
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from data.motion.exposure import Recording
from data.motion.shifts import Motion
from data.motion.view import View

# A frame of more than MOST_PIXELS pixels is divided into bands of at most MOST_PIXELS pixels,
# because the equations of 2^20 pixels take 3 GB. A frame of 1280 x 720 and a frame of 1000 x 1000
# stay whole. With a larger value, the equations take more memory. With a smaller value, more rows
# are computed twice.
MOST_PIXELS = 2**20
# OVERLAP is the number of rows that two neighbouring bands share. FADE is the number of rows in the
# middle of the overlap, in which the frame changes from one band to the other. So the frame has
#
#     the first 32 rows     only from the upper band, because the lower band begins here
#     the 64 rows FADE      from both bands
#     the last 32 rows      only from the lower band, because the upper band ends here
#
# So the 32 rows next to the border of a band, (OVERLAP - FADE) / 2, are not used
# (test_rows_beside_the_border_of_a_band_are_not_used). E.g. light may move by 40 rows between the
# sharp instant and the end of the exposure. 40 rows are more than 32, so light from beyond the
# border reaches rows that are used, and may leave a trace in them. Other values were not compared:
#
#               larger                             smaller
#     OVERLAP   more rows are computed twice       a slower motion may leave a trace
#     FADE      a slower motion may leave a trace  a difference between the bands is easier to see
OVERLAP = 128
FADE = 64
# A band may have 384 rows, even if it then has more than MOST_PIXELS pixels. E.g. in a frame of
# 4096 columns, MOST_PIXELS would allow 2^20 / 4096 = 256 rows. All 256 rows would belong to
# overlaps: 128 rows to the overlap with the band above, and 128 rows to the overlap with the band
# below. 384 rows leave 128 rows in between.
LEAST_ROWS = 3 * OVERLAP


@dataclass(frozen=True)
class Band:
    """Rows of a frame, and the spike pixels that see them.

    The equations treat a band as a small frame. The methods `of_...` take something of the whole
    frame, e.g. a picture, and return the part that belongs to the band.
    """

    # Rows of the frame, e.g. slice(320, 640).
    rows: slice
    # Rows and columns of the spike plane, e.g. slice(160, 320) and slice(0, 480). Both are empty if
    # no spike pixel sees the band.
    plane_window: tuple[slice, slice]
    # The sizes of the band and of its spike plane, the matrix from spike pixels to RGB pixels, and
    # the rolling shutter (data/motion/view.py). Rows and spike pixels are counted from the first
    # row and the first spike pixel of the band.
    view: View

    @property
    def has_spikes(self) -> bool:
        """Return whether a spike pixel sees the band."""
        height, width = self.view.plane
        return height > 0 and width > 0

    def of_frame(self, picture: Tensor) -> Tensor:
        """Return the rows of the band of a picture (C, H, W)."""
        return picture[:, self.rows]

    def of_plane(self, values: np.ndarray) -> np.ndarray:
        """Return the values of the spike pixels of the band. values: (..., h, w)."""
        rows, columns = self.plane_window
        return values[..., rows, columns]

    def of_recording(self, recording: Recording) -> Recording:
        """Return what was recorded of the band."""
        blurry = recording.blurry[self.rows]
        return replace(recording, blurry=blurry, stream=self.of_plane(recording.stream))

    def of_motion(self, motion: Motion) -> Motion:
        """Return the motion of the band."""
        return Motion(motion.times, motion.shifts[:, self.rows], motion.errors[:, self.rows])


def bands_of(view: View, most_pixels: int = MOST_PIXELS) -> list[Band]:
    """Divide the frames of a view. A frame of at most `most_pixels` pixels is one band."""
    height, width = view.size
    if height * width <= most_pixels:
        plane_height, plane_width = view.plane
        whole_frame = slice(0, height)
        whole_plane = (slice(0, plane_height), slice(0, plane_width))
        return [Band(whole_frame, whole_plane, view)]

    # A spike pixel belongs to a band if one of its points lies on the rows of the band. So a spike
    # pixel may belong to two bands.
    first_y, last_y = _rows_of_spike_pixels(view)  # (h, w) each
    bands = []
    for begin, end in _rows_of_bands(height, most_rows=max(most_pixels // width, LEAST_ROWS)):
        # Row r reaches from r - 0.5 to r + 0.5.
        sees_band = (last_y > begin - 0.5) & (first_y < end - 0.5)
        bands.append(_make_band(view, begin, end, sees_band))
    return bands


def _rows_of_bands(height: int, most_rows: int) -> list[tuple[int, int]]:
    """Return (first row, row after the last) of bands of nearly equal height.

    A band begins OVERLAP rows before the band above ends. So each band adds at most
    most_rows - OVERLAP rows to the bands above it. E.g. 1080 rows in bands of at most 546 rows:

        count     ceil((1080 - 128) / (546 - 128)) = ceil(2.3) = 3 bands
        begins    0, 317, 635 and, for a fourth band, 952
        ends      317 + 128 = 445, 635 + 128 = 763, and 952 + 128 = 1080
        result    (0, 445), (317, 763), (635, 1080)

    height: number of rows of the frame. most_rows: largest number of rows of a band.
    """
    count = math.ceil((height - OVERLAP) / (most_rows - OVERLAP))
    count = max(count, 1)  # a very wide frame may have fewer rows than an overlap
    # The first row of each band, and the row at which one more band would begin. E.g. a frame of
    # 100 rows has fewer rows than an overlap. The frame has one band, and the numbers are 0 and
    # 100 - 128 = -28. The band still ends at the right row, -28 + 128 = 100.
    begins = np.linspace(0, height - OVERLAP, count + 1).round().astype(int).tolist()
    bands = []
    for begin, next_begin in itertools.pairwise(begins):
        bands.append((begin, next_begin + OVERLAP))
    return bands


def _rows_of_spike_pixels(view: View) -> tuple[np.ndarray, np.ndarray]:
    """Return the smallest and the largest y on the frame of the points of each spike pixel.

    A spike pixel is the mean of m x n points of the frame (`View.points_on_frame`). Returns two
    arrays (h, w), in RGB pixels.
    """
    height, width = view.plane
    down, across = view.points_in_pixel  # m, n
    y = view.points_on_frame()[..., 1]  # (h m, w n)
    # The axes 1 and 3 are the points of a spike pixel. `View.points_on_frame` promises this order.
    y = y.reshape(height, down, width, across)
    return y.min(axis=(1, 3)), y.max(axis=(1, 3))


def _make_band(view: View, begin: int, end: int, sees_band: np.ndarray) -> Band:
    """Make the band of the rows begin to end - 1 of the frames of a view (where spike pixels lie).

    sees_band: (h, w) bool, whether each spike pixel sees a point of these rows.
    """
    # The smallest rectangle of the spike plane that holds all spike pixels of the band.
    row_numbers, column_numbers = np.nonzero(sees_band)
    rows = _range_of(row_numbers)
    columns = _range_of(column_numbers)

    # The map from a spike pixel of the band to a pixel of the band, in three steps. A product of
    # matrices acts from right to left, so the first step is the last factor below.
    #
    #     band_to_plane    spike pixel of the band -> spike pixel of the whole plane: a shift
    #     view.to_rgb      spike pixel of the whole plane -> pixel of the whole frame
    #     frame_to_band    pixel of the whole frame -> pixel of the band: a shift
    #
    # With another shift, test_a_spike_pixel_of_a_band_lies_where_it_lies_on_the_frame fails.
    band_to_plane = np.eye(3)
    band_to_plane[0, 2] = columns.start  # added to x
    band_to_plane[1, 2] = rows.start  # added to y
    frame_to_band = np.eye(3)
    frame_to_band[1, 2] = -begin  # added to y
    # `View.all_rows` is None if the view shows the whole frame. If the view is a band itself,
    # `View.all_rows` is the number of rows of the whole frame, and the new band gets the same
    # number.
    height, width = view.size
    rows_of_frame = height if view.all_rows is None else view.all_rows
    view_of_band = replace(
        view,
        size=(end - begin, width),
        plane=(rows.stop - rows.start, columns.stop - columns.start),
        to_rgb=frame_to_band @ view.to_rgb @ band_to_plane,
        first_row=view.first_row + begin,
        all_rows=rows_of_frame,
    )
    return Band(slice(begin, end), (rows, columns), view_of_band)


def _range_of(numbers: np.ndarray) -> slice:
    """Return the range from the least to the largest number, slice(0, 0) if there is none."""
    if len(numbers) == 0:
        return slice(0, 0)
    return slice(int(numbers.min()), int(numbers.max()) + 1)


def join_pictures(pictures: list[Tensor], bands: list[Band]) -> Tensor:
    """Join the pictures (C, rows, W) of all bands to one picture (C, H, W).

    pictures: one of each band, in the order of `bands`.
    bands: in the order of `bands_of`, from the top of the frame to its bottom.
    """
    upper = pictures[0]  # the bands so far, (C, rows so far, W)
    for lower, band in zip(pictures[1:], bands[1:], strict=True):
        begin = band.rows.start
        overlap = upper.shape[1] - begin  # number of rows: OVERLAP, or less
        # The weight of the lower band in each row of the overlap. E.g. for 128 rows:
        #
        #     rows 0 to 31      0: near the border of the lower band
        #     rows 32 to 95     rises from 0 to 1: the `fade_rows`
        #     rows 96 to 127    1: near the border of the upper band
        fade_rows = min(FADE, overlap)
        rows_above_fade = (overlap - fade_rows) / 2
        middle_of_row = torch.arange(overlap, device=upper.device) + 0.5
        weight_of_lower = ((middle_of_row - rows_above_fade) / fade_rows).clamp(0, 1)
        weight_of_lower = weight_of_lower[:, None]  # (overlap, 1)
        upper_in_overlap = (1 - weight_of_lower) * upper[:, begin:]
        lower_in_overlap = weight_of_lower * lower[:, :overlap]
        blend = upper_in_overlap + lower_in_overlap  # (C, overlap, W)
        upper = torch.cat((upper[:, :begin], blend, lower[:, overlap:]), dim=1)
    return upper

"""Put spike channels onto the frame if both cameras have the same view.

A spike pixel covers n x n RGB pixels, where n is a whole number (`ScaledGrid.step`). E.g. spike
planes (read-outs of the spike camera) of 180 x 320 and frames of 360 x 640 have n = 2. Channels are
what a network sees of the planes. The channels of a crop are enlarged n times.
data/cameras/spike_grid.py explains grids and windows.

What must stay: a pixel has the same channels in every crop, to the bit, because networks are
trained on crops and restore whole frames.

Tests: tests/parts/data/test_spike_grid.py (test_a_crop_is_bit_for_bit_the_crop_of_the_whole tries
some crops)
"""

from dataclasses import dataclass

import cv2
import numpy as np

from data.spike.geometry import Crop, SpikeGeometry
from utils.errors import DataError


@dataclass(frozen=True)
class ScaledWindow:
    """One crop of the frame on a `ScaledGrid`.

    E.g. RGB rows 10 ... 19 of a frame that has 2 RGB pixels per spike pixel:

        crop     spike rows 4 ... 10 are read: the rows 5 ... 9 and a border of one row
        size     the channels of the 7 spike rows are enlarged to 14 RGB rows
        inner    rows 2 ... 11 of the enlarged channels are kept: the border is cut off

    If the plane is stretched, the window reads the whole plane.
    """

    crop: Crop  # the crop of the spike plane, i.e. the spike pixels to read
    size: tuple[int, int]  # (H, W) to which the channels of `crop` are enlarged, in RGB pixels
    # The rows and columns of the enlarged channels that are the crop of the frame.
    inner: tuple[slice, slice]
    interpolation: int  # a constant of OpenCV, such as cv2.INTER_LINEAR

    def to_rgb(self, channels: np.ndarray) -> np.ndarray:
        """Turn channels (S, h, w) float32 of `crop` into (S, H, W) float32 on the RGB grid."""
        if channels.shape[1:] != self.size:
            height, width = self.size
            enlarged = []
            for channel in channels:
                # OpenCV takes (width, height).
                size = (width, height)
                enlarged.append(cv2.resize(channel, size, interpolation=self.interpolation))
            channels = np.stack(enlarged)
        rows, columns = self.inner
        return channels[:, rows, columns]

    def brightness(self, stream: np.ndarray, image: np.ndarray) -> tuple[float, np.ndarray]:
        """Return the mean firing rate and the mean colour (3,) of the pixels that both cameras see.

        Both cameras have the same view, so the means are over all pixels of `stream` and of
        `image`. The border of one spike pixel is in the mean of the spikes only.

        stream: spikes (T, h, w) of `crop`, i.e. also of its border.
        image: (H, W, 3), the crop of the frame, which has no border.
        """
        return float(stream.mean()), image.mean(axis=(0, 1))


class ScaledGrid:
    """The grid of two cameras with the same view: a frame is a whole multiple of a spike plane."""

    coverage = 1.0  # the spike camera sees the whole frame

    def __init__(
        self,
        geometry: SpikeGeometry,
        size: tuple[int, int],
        interpolation: int,
        may_be_stretched: bool = False,
    ) -> None:
        """Check the sizes. Raises DataError if they do not fit.

        geometry: size of the spike planes. size: (H, W) of a frame.
        interpolation: a constant of OpenCV.
        may_be_stretched: whether a frame may have a size that is no whole multiple of the plane,
        e.g. a frame of 360 x 640 and a plane of 250 x 400:

            True     the plane is stretched to the frame, and each window reads the whole plane.
                     A user's own clips have True
            False    DataError
        """
        height, width = size
        # `step` is n, the number of RGB pixels along a side of a spike pixel. The sides of a crop
        # are at multiples of n. n is computed from the heights. E.g. 360 / 180 = 2. `is_multiple`
        # says whether the widths fit, too.
        self.step = max(1, round(height / geometry.height))
        is_multiple = size == (self.step * geometry.height, self.step * geometry.width)
        if not is_multiple and not may_be_stretched:
            _refuse_frame_of_no_multiple(geometry, size)
        # Every grid has the attributes `step` and `rgb_per_spike_pixel` (spike_grid.py). In a
        # `ScaledGrid`, the two numbers are equal.
        self.rgb_per_spike_pixel = self.step
        self.region = Crop(0, 0, height, width)  # both cameras see the whole frame
        self._is_stretched = not is_multiple
        self._geometry = geometry
        self._interpolation = interpolation

    def window(self, crop: Crop) -> ScaledWindow:
        """Return the window of a crop of the frame.

        The window reads the spike pixels of the crop, and a border of one spike pixel. If the size
        of the frame is not a whole multiple of the size of the plane, the window reads the whole
        plane and stretches it.
        """
        if self._is_stretched:
            # The whole plane is enlarged to the whole frame. So the place of the crop in the
            # enlarged channels is its place in the frame, `crop.slices`.
            whole_plane = Crop(0, 0, self._geometry.height, self._geometry.width)
            size_of_frame = (self.region.height, self.region.width)
            return ScaledWindow(whole_plane, size_of_frame, crop.slices, self._interpolation)

        n = self.step  # RGB pixels along a side of a spike pixel
        spike_crop = self._with_border(crop)
        # Here the enlarged channels begin at the upper left corner of `spike_crop`. `inner` is the
        # crop of the frame, counted from this corner, in RGB pixels.
        # E.g. with 2 RGB pixels per spike pixel, the crop begins at RGB row 10, and `spike_crop` at
        # spike row 4, which is RGB row 8. So the crop begins at row 2 of the enlarged channels.
        inner = Crop(
            top=crop.top - spike_crop.top * n,
            left=crop.left - spike_crop.left * n,
            height=crop.height,
            width=crop.width,
        )
        enlarged_size = (spike_crop.height * n, spike_crop.width * n)
        return ScaledWindow(spike_crop, enlarged_size, inner.slices, self._interpolation)

    def _with_border(self, crop: Crop) -> Crop:
        """Return the spike pixels of a crop of the frame, with a border of one spike pixel.

        The border is needed because an interpolated value at the edge of the crop depends on the
        next spike pixel. At the edge of the plane, there is no border. E.g. with 2 RGB pixels per
        spike pixel, the RGB rows 10 ... 19 are the spike rows 5 ... 9. With the border, the spike
        rows 4 ... 10 are read. Without the border,
        test_a_calibration_that_only_enlarges_gives_what_a_whole_ratio_gives fails.
        """
        n = self.step
        # The divisions are exact, because the sides of a crop are at multiples of n. E.g. top 10 //
        # 2 = 5.
        top = max(crop.top // n - 1, 0)
        left = max(crop.left // n - 1, 0)
        bottom = min(crop.bottom // n + 1, self._geometry.height)
        right = min(crop.right // n + 1, self._geometry.width)
        return Crop(top, left, height=bottom - top, width=right - left)


def _refuse_frame_of_no_multiple(geometry: SpikeGeometry, size: tuple[int, int]) -> None:
    """Raise DataError for a frame that is not a whole multiple of the spike plane."""
    height, width = size
    sizes = f"lq is {height} x {width}, spikes {geometry.height} x {geometry.width}"
    raise DataError(
        what=f"{sizes}: no whole multiple (spike.h, spike.w)",
        where="spike.h, spike.w",
        expected="a whole number of RGB pixels per spike pixel",
        do="correct spike.h and spike.w, or give spike.calibration",
    )

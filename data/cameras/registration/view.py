"""Prepare a blurry frame and its spikes for the fit.

A plane is one read-out of the spike camera. A `View` has the frame and the planes as the files have
them. A fit first makes a `Pair` from each view. Then the fit improves the matrix (from spike pixels
to RGB pixels) and the times of the exposure in rounds (rounds.py). The rounds call two methods of
the pair:

    features(sigma)       five features of the frame: three colours, and two features for what may
                          differ between the cameras (response curve, blur of the lens)
    spikes_until(times)   number of spikes of each pixel up to a time, also between two planes

When a pair is made, broken spike pixels are mended, and large planes are binned: e.g. 2 x 2 pixels
become one.

What must stay: all values, because the results of all fits depend on them (fit.py says how to check
them). To add a feature of the frame, add a channel in `Pair.features`, and raise FEATURES. The
order of the channels is free.

Tests: tests/parts/data/test_registration_all_pixels.py (broken pixels), and the whole fits of
tests/parts/data/test_registration_fit.py, e.g. with binned pixels
"""

from dataclasses import dataclass
from typing import NamedTuple

import cv2
import numpy as np

from data.spike.pictures import to_linear


@dataclass(frozen=True)
class View:
    """A blurry frame and the spikes around its exposure.

    E.g. with before = 20 and count = 40, the planes 20 ... 59 of the stream are the exposure.

    A stream of one plane (before = 0, count = 1) may be a count image: the number of spikes of each
    pixel in a whole exposure. There are no planes around the exposure, so the fit finds only the
    matrix, and not the times (`Pair.has_room`).
    """

    frame: np.ndarray  # (H, W, 3) uint8, R, G, B
    stream: np.ndarray  # spikes (T, h, w); it begins before the exposure and ends after it
    before: int  # number of planes of the stream before the exposure
    count: int  # number of planes of the exposure


class Features(NamedTuple):
    """The features of a frame, on the pixels of the frame.

    The fit finds the weighted sum of the features that is most like the spikes.
    """

    # (H, W, 5). The channels, and what each of them can explain:
    #     0, 1, 2  the three colours       how sensitive the spike camera is to each colour
    #     3        the square of grey      a response curve, which is about b grey + c grey^2
    #     4        the Laplacian of grey   a lens that blurs a little: the blurred grey is about
    #                                      grey + c Laplacian
    values: np.ndarray
    overexposed: np.ndarray  # (H, W), the fraction of overexposed pixels around a pixel, 0 ... 1


# Number of channels of `Features.values`.
FEATURES = 5

# A round of the fit measures the firing rates around the start of the exposure, and around its end.
# E.g. with the reach 8, the 8 planes before the start and the 8 planes after it are measured. The
# reach is MOST_REACH, or less if the stream has fewer planes before the start, or after the end.
# With a reach of 20 planes, fast motion would blur the rates, and
# test_a_camera_is_found_from_a_start_that_is_off would fail. With 3 planes, the rates are noisier.
# Callers of a fit read this many planes more than they search: AROUND in self_calibration.py has
# room for them, and scripts/parts/calibrate/camera_pairs.py adds MOST_REACH.
MOST_REACH = 8
# The fit of the times needs at least this reach. The rates of fewer planes would be mostly noise.
LEAST_REACH = 3


class Pair:
    """A frame and its spikes, prepared for the fit. A pair does not change after it was made."""

    # (H, W, 3) float32, the frame as the spike camera integrates it: light, or display values.
    integrated: np.ndarray
    # (H, W) float32. 1 if the pixel is overexposed, and 0 if not. If several pixels were binned to
    # this pixel, the fraction of overexposed pixels among them.
    overexposed: np.ndarray
    sums: np.ndarray  # (T + 1, h, w). sums[p]: number of spikes in the planes 0 ... p - 1
    before: int  # number of planes of the stream before the exposure
    count: int  # number of planes of the exposure

    def __init__(self, view: View, factor: int, light: str) -> None:
        """Prepare a view.

        factor: number of pixels, in each direction, that become one pixel. 1 changes nothing.
        light: what the spikes integrate, "linear" light or "display" values.
        """
        values = view.frame.astype(np.float32) / 255
        self.integrated = to_linear(values) if light == "linear" else values
        # A pixel is overexposed if one of its colours has a display value of 252 or more (of 255;
        # chosen by hand). Such a value is nearly saturated, so it does not show the light.
        self.overexposed = (view.frame.max(axis=2) >= 252).astype(np.float32)
        self.before = view.before
        self.count = view.count

        stream = view.stream
        if factor > 1:
            self.integrated = _binned(self.integrated, factor)
            self.overexposed = _binned(self.overexposed, factor)
            stream = _binned_stream(stream, factor)
        self.sums = _cumulative_sums(stream)
        _mend_pixels(self.sums)

    def has_room(self) -> bool:
        """Return whether the stream has enough planes around the exposure to fit its times."""
        planes_of_stream = len(self.sums) - 1  # T planes have T + 1 sums
        after = planes_of_stream - self.before - self.count
        return min(self.before, after) >= LEAST_REACH

    def reach(self, start: np.ndarray, end: np.ndarray) -> float:
        """Return how many planes the stream has on each side of start and end, up to MOST_REACH.

        start, end: start and end of the exposure of each row, (h,), in planes from the nominal
        start, at which the exposure begins by the files. The rows are the rows of the (binned)
        spike plane. The times differ, because a rolling shutter exposes each row at a different
        time.
        """
        # The nominal start is `before` planes after the start of the stream. So the time t is
        # before + t planes after the start of the stream. The row that starts first has the fewest
        # planes before it, and the row that ends last has the fewest planes after it. E.g. a stream
        # of 80 planes, before 20, start 0, end 40: 20 planes before, and 80 - 20 - 40 = 20 after.
        planes_of_stream = len(self.sums) - 1
        planes_before = start.min() + self.before
        planes_after = planes_of_stream - self.before - end.max()
        return min(MOST_REACH, planes_before, planes_after)

    def features(self, sigma: float) -> Features:
        """Return the features of the frame, blurred by `sigma` RGB pixels."""
        grey = self.integrated.mean(axis=2)  # (H, W)
        colours = blur(self.integrated, sigma)  # (H, W, 3)
        curve = blur(grey**2, sigma)
        # The factor 2 has no meaning: the fit multiplies this feature by a coefficient that it
        # finds itself, and without the factor the coefficient would be twice as large. The factor
        # stays because without it the last bits of results may change.
        lens = 2 * cv2.Laplacian(blur(grey, sigma), cv2.CV_32F)
        curve_and_lens = np.stack((curve, lens), axis=2)  # (H, W, 2)
        values = np.concatenate((colours, curve_and_lens), axis=2)  # (H, W, 5)
        return Features(values, overexposed=blur(self.overexposed, sigma))

    def spikes_until(self, times: np.ndarray) -> np.ndarray:
        """Return the number of spikes of each pixel up to the time of its row, (h, w) float32.

        The number at a time between two planes is interpolated. E.g. with before = 0, the time 2.25
        gives 0.75 * sums[2] + 0.25 * sums[3].

        times: a time for each row, (h,), in planes from the nominal start of the exposure. The
        times differ because of the rolling shutter.
        """
        last = len(self.sums) - 1
        # The times in planes from the start of the stream.
        stream_times = np.clip(times + self.before, 0, last)
        # The whole part of each time, (h,). At most last - 1, because plane + 1 must exist.
        plane = np.minimum(stream_times.astype(int), last - 1)
        fraction = (stream_times - plane).astype(np.float32)  # (h,)

        # numpy takes the two arrays of indices in pairs: row y of the result is sums[plane[y], y],
        # (w,). E.g. plane = (2, 3) and rows = (0, 1) give sums[2, 0] and sums[3, 1].
        rows = np.arange(self.sums.shape[1])
        at_plane = self.sums[plane, rows].astype(np.float32)  # (h, w)
        at_next = self.sums[plane + 1, rows].astype(np.float32)
        return at_plane + fraction[:, None] * (at_next - at_plane)


def _cumulative_sums(stream: np.ndarray) -> np.ndarray:
    """Return how many spikes of a stream (T, h, w) come before each plane, (T + 1, h, w).

    With these sums, the number of spikes in any range of planes is one difference. E.g. a pixel
    fires in the planes 1 and 2 of four planes, so its sums are 0, 0, 1, 2, 2. The planes 0 ... 1
    have sums[2] - sums[0] = 1 spike.
    """
    planes, height, width = stream.shape
    # The sums are the largest array of a fit. So use uint16, half the memory of uint32, if the
    # largest sum is below 65536.
    largest_sum = planes * int(stream.max())
    sum_type = np.uint16 if largest_sum < 2**16 else np.uint32
    sums = np.zeros((planes + 1, height, width), sum_type)
    np.cumsum(stream, axis=0, dtype=sum_type, out=sums[1:])
    return sums


def _mend_pixels(sums: np.ndarray) -> None:
    """Replace pixels that fire far more or far less often than their neighbours, in place.

    E.g. a broken pixel fires always, or never. A broken pixel gets the median of the 3 x 3 pixels
    around it. A pixel counts as broken if it fires more than three times as often as its
    neighbours, or less than a third as often. The limits were chosen by hand.

    sums: (T + 1, h, w), from `_cumulative_sums`.

    Without this function, test_broken_pixels_repeat_their_neighbours fails.
    """
    total = sums[-1].astype(np.float32)  # (h, w), number of spikes of each pixel
    median_around = cv2.medianBlur(total, ksize=5)  # over 5 x 5 pixels around each pixel
    # The margin of 8 spikes is for dark pixels, whose counts differ by chance.
    is_broken = (total > 3 * median_around + 8) | (total < median_around / 3 - 8)
    for y, x in np.argwhere(is_broken):
        # The 3 x 3 pixels around (y, x), fewer at an edge of the plane. Broken neighbours that come
        # before (y, x) are already replaced.
        top = max(y - 1, 0)
        left = max(x - 1, 0)
        around = sums[:, top : y + 2, left : x + 2]  # (T + 1, 3, 3)
        sums[:, y, x] = np.median(around, axis=(1, 2))


def _binned(image: np.ndarray, factor: int) -> np.ndarray:
    """Replace factor x factor pixels of an image (H, W, ...) by their mean."""
    height = image.shape[0] // factor
    width = image.shape[1] // factor
    whole = image[: height * factor, : width * factor]  # without an incomplete last block
    return cv2.resize(whole, (width, height), interpolation=cv2.INTER_AREA)


def _binned_stream(stream: np.ndarray, factor: int) -> np.ndarray:
    """Replace factor x factor pixels of each plane of a stream (T, H, W) by their sum."""
    planes, height, width = stream.shape
    height = height // factor
    width = width // factor
    whole = stream[:, : height * factor, : width * factor]  # without incomplete last blocks
    # A sum of factor^2 spikes may not fit into 8 bits.
    sum_type = np.promote_types(np.uint16, stream.dtype)
    # E.g. a row of 6 pixels with the factor 2 becomes 3 blocks of 2 pixels. The axes 2 and 4 are
    # the rows and the columns within a block.
    blocks = whole.reshape(planes, height, factor, width, factor)
    return blocks.sum(axis=(2, 4), dtype=sum_type)  # (T, h, w)


def blur(image: np.ndarray, sigma: float) -> np.ndarray:
    """Return an image after a Gaussian blur. OpenCV chooses the size of the kernel, by (0, 0)."""
    return cv2.GaussianBlur(image, (0, 0), float(sigma))

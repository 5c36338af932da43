"""Between the spike plane and the RGB grid: which spike pixels a crop of the frame needs, and how it is made of them.

`ScaledGrid`: both cameras have the same view, and every spike pixel is a block of RGB pixels.
`CalibratedGrid`: a second camera with another view, see data/calibration.py.
A grid gives a window for each crop of the frame. The crop of a whole window's channels is, bit for bit, what the window
of the crop gives.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Protocol

import cv2
import numpy as np

from data.augment import Augment
from data.calibration import Calibration
from data.spike.stream import Crop, SpikeGeometry
from utils import utils_dist
from utils.errors import DataError

LEAST_COVERAGE = 0.5

logger = logging.getLogger(__name__)


class Window(Protocol):
    """One crop of the RGB frame. crop: the spike pixels to read for it."""

    crop: Crop

    def to_rgb(self, channels: np.ndarray) -> np.ndarray:
        """Channels (S, h, w) float32 of `crop` -> (S, H, W) float32 on the RGB grid."""
        ...

    def brightness(self, stream: np.ndarray, picture: np.ndarray) -> tuple[float, np.ndarray]:
        """Means of the stream (T, h, w) and of the picture (H, W, 3), as (3,), over what both cameras see."""
        ...


class Grid(Protocol):
    """The RGB frames of one size. step: crops start at multiples of it, and their sides are multiples.

    region: (top, left, height, width), the RGB pixels from which crops for training are drawn.
    coverage: the share of the frame that the spike camera sees.
    """

    step: int
    region: tuple[int, int, int, int]
    coverage: float

    def window(self, aug: Augment) -> Window: ...


@dataclass(frozen=True)
class ScaledWindow:
    """The spike pixels of `crop`, enlarged to `size` (H, W), of which `inner` is the crop of the frame."""

    crop: Crop
    size: tuple[int, int]
    inner: tuple[slice, slice]
    interpolation: int

    def to_rgb(self, channels: np.ndarray) -> np.ndarray:
        if channels.shape[1:] != self.size:
            size = self.size[::-1]
            channels = np.stack([cv2.resize(channel, size, interpolation=self.interpolation) for channel in channels])
        return channels[:, self.inner[0], self.inner[1]]

    def brightness(self, stream: np.ndarray, picture: np.ndarray) -> tuple[float, np.ndarray]:
        return float(stream.mean()), picture.mean(axis=(0, 1))


class ScaledGrid:
    """Frames of `size` (H, W), a whole multiple of the spike plane. Raises DataError for any other size."""

    coverage = 1.0

    def __init__(self, geometry: SpikeGeometry, size: tuple[int, int], interpolation: int) -> None:
        self.step, rest = divmod(size[1], geometry.width)
        if not self.step or rest or size[0] != self.step * geometry.height:
            raise DataError(
                f"lq is {size[0]} x {size[1]}, spikes {geometry.height} x {geometry.width}: no whole multiple "
                "(spike.h, spike.w)", "spike.h, spike.w", "a whole number of RGB pixels per spike pixel",
                "correct the sizes, or calibrate the two cameras: scripts/calibrate.py, spike.calibration",
            )  # fmt: skip
        self.region = (0, 0, *size)
        self._geometry, self._interpolation = geometry, interpolation

    def window(self, aug: Augment) -> ScaledWindow:
        """Only the crop is read, with a border of one spike pixel, which interpolation needs."""
        ratio, spans, inner = self.step, [], []
        for start, length, limit in (
            (aug.top // ratio, aug.height // ratio, self._geometry.height),
            (aug.left // ratio, aug.width // ratio, self._geometry.width),
        ):
            lo, hi = max(start - 1, 0), min(start + length + 1, limit)
            spans.append((lo, hi - lo))
            inner.append(slice((start - lo) * ratio, (start - lo + length) * ratio))
        (top, height), (left, width) = spans
        crop, size = Crop(top, left, height, width), (height * ratio, width * ratio)
        return ScaledWindow(crop, size, (inner[0], inner[1]), self._interpolation)


class StretchedGrid:
    """Whole frames of `size` (H, W) of any ratio to the spike plane, as a user's own clips may have."""

    coverage = 1.0

    def __init__(self, geometry: SpikeGeometry, size: tuple[int, int], interpolation: int) -> None:
        self.step, self.region = max(1, round(size[0] / geometry.height)), (0, 0, *size)
        self._geometry, self._interpolation = geometry, interpolation

    def window(self, aug: Augment) -> ScaledWindow:
        whole = Crop(0, 0, self._geometry.height, self._geometry.width)
        inner = (slice(aug.top, aug.top + aug.height), slice(aug.left, aug.left + aug.width))
        return ScaledWindow(whole, self.region[2:], inner, self._interpolation)


@dataclass(frozen=True)
class CalibratedWindow:
    """The RGB pixels as weighted means of spike pixels.

    samples: for each sample of an RGB pixel, the places of its neighbours in the flattened `crop` and their weights,
    each (neighbours, H W). covered: (H, W) the RGB pixels that the spike camera sees.
    """

    crop: Crop
    samples: tuple[tuple[np.ndarray, np.ndarray], ...]
    covered: np.ndarray

    def to_rgb(self, channels: np.ndarray) -> np.ndarray:
        planes = channels.reshape(len(channels), self.crop.height * self.crop.width)
        out = np.zeros((len(channels), self.covered.size), np.float32)
        # Sums of single products in a fixed order, which a library's fused or blocked sum would not be.
        for places, weights in self.samples:
            for place, weight in zip(places, weights, strict=True):
                for plane, values in zip(planes, out, strict=True):
                    values += plane[place] * weight
        if len(self.samples) > 1:
            out /= np.float32(len(self.samples))
        return out.reshape(len(channels), *self.covered.shape)

    def brightness(self, stream: np.ndarray, picture: np.ndarray) -> tuple[float, np.ndarray]:
        seen = self.covered if self.covered.any() else np.ones_like(self.covered)
        rates = self.to_rgb(stream.mean(axis=0, dtype=np.float32)[None])[0]
        return float(rates[seen].mean(dtype=np.float64)), picture[seen].mean(axis=0)


class CalibratedGrid:
    """The frames of a calibration.

    An RGB pixel takes the value at its centre, interpolated bilinearly between the spike pixels (or the nearest one's).
    Where the spike pixels are finer, it is the mean of n x n such samples spread evenly over the RGB pixel, n being the
    number of spike pixels across it, rounded up. Outside of the spike camera's view it repeats the nearest pixel of the
    plane's edge. Raises DataError for sizes that are not those of the calibration, and for cameras without common view.
    """

    step = 1

    def __init__(self, calibration: Calibration, geometry: SpikeGeometry, path: str, nearest: bool = False) -> None:
        self._plane, self._nearest, self._path = (geometry.height, geometry.width), nearest, path
        if tuple(calibration.spike_size) != self._plane:
            h, w = calibration.spike_size
            raise DataError(
                f"the calibration was made for spike planes of {h} x {w}, these are {geometry.height} x "
                f"{geometry.width}", path, "the same spike camera, read in the same way (spike.h, spike.w)",
                "correct spike.h and spike.w, or calibrate again: scripts/calibrate.py",
            )  # fmt: skip
        self.size = (calibration.rgb_size[0], calibration.rgb_size[1])
        self._to_spike = np.linalg.inv(calibration.to_rgb())
        self._samples = 1 if nearest else self._spike_pixels_across()
        self._last: tuple[tuple[int, ...], CalibratedWindow] | None = None
        covered = self._covered(*self._centres(Augment.whole(self.size)))
        self.coverage = float(covered.mean())
        self.region = self._checked_region(calibration.region, covered)

    def check_size(self, size: tuple[int, int]) -> None:
        """Raises DataError for frames of another size than the calibration's."""
        if size != self.size:
            raise DataError(
                f"lq is {size[0]} x {size[1]}, spike.calibration was made for frames of {self.size[0]} x "
                f"{self.size[1]}", self._path, "frames as they were in the calibration, not resized or cropped",
                "calibrate with these frames: scripts/calibrate.py",
            )  # fmt: skip

    def window(self, aug: Augment) -> CalibratedWindow:
        place = (aug.top, aug.left, aug.height, aug.width)
        if self._last is None or self._last[0] != place:  # all frames of a sample have the same crop
            self._last = (place, self._window(aug))
        return self._last[1]

    def _window(self, aug: Augment) -> CalibratedWindow:
        shifts = (np.arange(self._samples) + 0.5) / self._samples - 0.5
        corners = [self._neighbours(*self._centres(aug, dx, dy)) for dy in shifts for dx in shifts]
        top, left = (min(int(c[axis].min()) for c in corners) for axis in (0, 1))
        bottom, right = (max(int(c[axis].max()) for c in corners) for axis in (0, 1))
        crop = Crop(top, left, bottom - top + 1, right - left + 1)
        samples = tuple(((rows - top) * crop.width + cols - left, weights) for rows, cols, weights in corners)
        return CalibratedWindow(crop, samples, self._covered(*self._centres(aug)))

    def _centres(self, aug: Augment, dx: float = 0.0, dy: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
        """Spike coordinates x and y, each (H, W), of the crop's RGB pixels moved by (dx, dy).

        float64 of coordinates in the whole frame: the same numbers in every crop that contains the pixel.
        """
        x = aug.left + np.arange(aug.width, dtype=np.float64)[None] + dx
        y = aug.top + np.arange(aug.height, dtype=np.float64)[:, None] + dy
        u, v, depth = (row[0] * x + row[1] * y + row[2] for row in self._to_spike)
        return u / depth, v / depth

    def _neighbours(self, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Rows, columns and weights of the spike pixels around these places, each (neighbours, H W)."""
        height, width = self._plane
        x, y = np.clip(x.ravel(), 0, width - 1), np.clip(y.ravel(), 0, height - 1)
        if self._nearest:
            rows, cols = (np.floor(place + 0.5).astype(np.int64)[None] for place in (y, x))
            return rows, cols, np.ones(rows.shape, np.float32)
        row, col = np.floor(y).astype(np.int64), np.floor(x).astype(np.int64)
        down, right = y - row, x - col
        # A neighbour beyond the edge has weight 0.
        below, beside = np.minimum(row + 1, height - 1), np.minimum(col + 1, width - 1)
        weights = ((1 - down) * (1 - right), (1 - down) * right, down * (1 - right), down * right)
        return (
            np.stack((row, row, below, below)),
            np.stack((col, beside, col, beside)),
            np.stack(weights).astype(np.float32),
        )

    def _covered(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        height, width = self._plane
        return (x >= -0.5) & (x <= width - 0.5) & (y >= -0.5) & (y <= height - 0.5)

    def _spike_pixels_across(self) -> int:
        """Spike pixels across an RGB pixel in the middle of the frame, rounded up: 1 where they are larger."""
        middle = Augment((self.size[0] - 1) // 2, (self.size[1] - 1) // 2, 1, 1)
        moved = [[np.ravel(c)[0] for c in self._centres(middle, *step)] for step in ((0, 0), (1, 0), (0, 1))]
        across = max(np.hypot(*np.subtract(place, moved[0])) for place in moved[1:])
        return max(1, int(np.ceil(across - 0.05)))

    def _checked_region(self, region: list[int] | None, covered: np.ndarray) -> tuple[int, int, int, int]:
        if region is None:
            largest = largest_rectangle(covered)
            if largest is None:
                raise DataError(
                    "the calibration maps all spike pixels outside of the frame", f"{self._path}, matrix",
                    "cameras with a common view", "calibrate again: scripts/calibrate.py",
                )  # fmt: skip
            return largest
        top, left, height, width = region
        inside = top >= 0 and left >= 0 and top + height <= self.size[0] and left + width <= self.size[1]
        if height < 1 or width < 1 or not inside or not covered[top : top + height, left : left + width].all():
            raise DataError(
                f"the region {region} of the calibration is not within what the spike camera sees",
                f"{self._path}, region", f"[top, left, height, width] such as {list(largest_rectangle(covered) or ())}",
                "correct it, or set it to null",
            )  # fmt: skip
        return top, left, height, width


def warn_uncovered(grid: Grid, what: str, where: str) -> None:
    """Warn that a part of whole frames has no spikes. Raises DataError where it is more than half.

    what: whose frames, for the message.
    """
    if grid.coverage == 1.0:
        return
    top, left, height, width = grid.region
    if grid.coverage < LEAST_COVERAGE:
        raise DataError(
            f"the spike camera sees only {grid.coverage:.0%} of the frames of {what}", where,
            f"at least {LEAST_COVERAGE:.0%}: elsewhere there is nothing but the edge of the spike plane, repeated",
            f"crop the frames to rows {top} to {top + height - 1}, columns {left} to {left + width - 1}, and calibrate "
            "with such frames",
        )  # fmt: skip
    if not utils_dist.is_main_process():
        return
    logger.warning(
        "%s: the spike camera sees %.1f %% of the frame; elsewhere the edge of the spike plane is repeated. Results "
        "hold in rows %d to %d, columns %d to %d", what, 100 * grid.coverage, top, top + height - 1, left,
        left + width - 1,
    )  # fmt: skip


def largest_rectangle(covered: np.ndarray) -> tuple[int, int, int, int] | None:
    """(top, left, height, width) of the largest rectangle of true pixels in a convex area (H, W); None without one."""
    rows = np.flatnonzero(covered.any(axis=1))
    if not len(rows):
        return None
    first = covered[rows].argmax(axis=1)
    after = covered.shape[1] - covered[rows, ::-1].argmax(axis=1)
    # In a convex area, what two rows have in common is also in all rows between them.
    left, right = np.maximum(first[:, None], first[None]), np.minimum(after[:, None], after[None])
    heights = rows[None] - rows[:, None] + 1
    areas = np.where(heights > 0, np.maximum(right - left, 0) * heights, 0)
    top, bottom = np.unravel_index(areas.argmax(), areas.shape)
    if not areas[top, bottom]:
        return None
    start = int(left[top, bottom])
    return int(rows[top]), start, int(heights[top, bottom]), int(right[top, bottom]) - start

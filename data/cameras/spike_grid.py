"""Between the spike plane and the RGB grid: which spike pixels a crop of the frame needs, and how
it is made of them.

`ScaledGrid`: both cameras have the same view. `CalibratedGrid`: a second camera with another view,
see `Calibration`. Both have: step, crops start at multiples of it, and their sides are multiples;
pixel, RGB pixels per spike pixel, at least 1; region, (top, left, height, width), the RGB pixels
from which crops for training are drawn; coverage, the share of the frame that the spike camera
sees. A grid gives a window for each crop of the frame, whose `crop` is the spike pixels to read for
it. The crop of a whole window's channels is, bit for bit, what the window of the crop gives.
"""

import hashlib
import json
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import cv2
import numpy as np
from pydantic import Field

from data.spike.formats import Crop, SpikeGeometry
from utils.dist.state import RUN
from utils.errors import DataError, OptionError
from utils.files import write_whole
from utils.json_file import read_json
from utils.options.section import Section, read_section
from utils.user_path import expanded

KEYS = 'docs/data_format.md, section "Two cameras", explains the keys'
LEAST_COVERAGE = 0.5

logger = logging.getLogger(__name__)

Size = Annotated[list[Annotated[int, Field(ge=1)]], Field(min_length=2, max_length=2)]
Row = Annotated[list[float], Field(min_length=3, max_length=3)]


class Calibration(Section):
    """The contents of a calibration file.

    matrix: mirrored spike pixel (x, y, 1) -> RGB pixel: 2 rows of 3 (affine) or 3 rows of 3
    (homography). mirror: what is mirrored in the upright spike image before `matrix` applies.
    spike_size, rgb_size: height and width.
    region: (top, left, height, width) in RGB pixels: the part of the frame with usable spikes;
    None: the largest rectangle that the planes cover. time_offset_planes: added to the number of
    the plane at which an exposure should
    start: > 0 where the spike camera started first. exposure_share: part of the planes of a frame,
    in their middle, during which it was exposed. tick_hz: planes per second; None: unknown. made:
    how the file was made; no effect. For `--method joint` alone: rolling, the share of the exposure
    by which the last row of a frame is exposed later than the first; lens_blur, sigma in spike
    pixels of the blur of the spike camera's lens.
    """

    format: Literal[1] = 1
    matrix: Annotated[list[Row], Field(min_length=2, max_length=3)]
    spike_size: Size
    rgb_size: Size
    mirror: Literal["none", "columns", "rows", "both"] = "none"
    region: Annotated[list[int], Field(min_length=4, max_length=4)] | None = None
    time_offset_planes: float = 0.0
    exposure_share: Annotated[float, Field(gt=0, le=1)] = 1.0
    tick_hz: Annotated[float, Field(gt=0)] | None = None
    rolling: Annotated[float, Field(ge=-1, le=1)] = 0.0
    lens_blur: Annotated[float, Field(ge=0)] = 0.0
    made: dict[str, Any] = Field(default_factory=dict)

    def to_rgb(self) -> np.ndarray:
        """(3, 3) float64: spike pixel (x, y, 1) of the upright image, not mirrored -> RGB pixel."""
        matrix = np.eye(3)
        matrix[: len(self.matrix)] = self.matrix
        return matrix @ mirroring(self.mirror, (self.spike_size[0], self.spike_size[1]))

    def digest(self) -> str:
        """16 hex digits that change with every value that has an effect."""
        values = {
            key: value for key, value in self.plain().items() if key not in ("made", "tick_hz")
        }
        # Files that are older than these keys do not change.
        for key, default in (("exposure_share", 1.0), ("rolling", 0.0), ("lens_blur", 0.0)):
            if values[key] == default:
                del values[key]
        return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]


def mirroring(mirror: str, size: tuple[int, int]) -> np.ndarray:
    """(3, 3) float64: pixel of an image of `size` (H, W) -> its place in the mirrored image."""
    matrix = np.eye(3)
    if mirror in ("columns", "both"):
        matrix[0] = (-1, 0, size[1] - 1)
    if mirror in ("rows", "both"):
        matrix[1] = (0, -1, size[0] - 1)
    return matrix


def scale_of(matrix: np.ndarray) -> float:
    """RGB pixels per spike pixel of a matrix that maps spike pixels to RGB pixels."""
    return float(np.sqrt(abs(np.linalg.det(matrix[:2, :2]))))


def load_calibration(path: str | Path, table: dict[str, Any] | None = None) -> Calibration:
    """The calibration in the JSON file `path`, or `table`, a part of it.

    Raises DataError for one of no use.
    """
    path = expanded(str(path))
    try:
        if table is None:
            table = read_json(path)
        if not isinstance(table, dict):
            raise ValueError("it is no JSON object")
    except (OSError, ValueError) as e:
        what, expected = (
            f"cannot read the calibration: {e}",
            "a JSON file made by scripts/calibrate.py",
        )
        raise DataError(
            what, str(path), expected, "correct spike.calibration, or make the file"
        ) from e
    try:
        calibration = read_section(Calibration, table, "", "a calibration file")
    except OptionError as e:
        raise DataError(
            e.what, f"{path}, {e.where}", e.expected, f"correct the file; {KEYS}"
        ) from e
    matrix, where, again = (
        calibration.to_rgb(),
        f"{path}, matrix",
        "calibrate again: scripts/calibrate.py",
    )
    if not np.linalg.cond(matrix) < 1e12:
        expected = "a matrix that maps spike pixels to RGB pixels one to one"
        raise DataError("the matrix of the calibration is singular", where, expected, again)
    sides = (
        ("spike", calibration.spike_size, matrix),
        ("RGB", calibration.rgb_size, np.linalg.inv(matrix)),
    )
    for kind, (height, width), mapping in sides:
        right, bottom = width - 0.5, height - 0.5
        depth = mapping[2] @ [
            [-0.5, right, -0.5, right],
            [-0.5, -0.5, bottom, bottom],
            [1, 1, 1, 1],
        ]
        if depth.min() <= 0 <= depth.max():
            what = f"the matrix of the calibration maps pixels of the {kind} image to infinity"
            raise DataError(what, where, "a third row close to 0 0 1", again)
    return calibration


def save_calibration(path: str | Path, calibration: Calibration) -> None:
    """Write a calibration file, complete or not at all."""
    rows = {key: json.dumps(value) for key, value in calibration.plain().items()}
    rows["matrix"] = (
        "[\n    " + ",\n    ".join(json.dumps(row) for row in calibration.matrix) + "\n  ]"
    )
    text = "{\n" + ",\n".join(f"  {json.dumps(key)}: {row}" for key, row in rows.items()) + "\n}\n"
    write_whole(path, text.encode())


@dataclass(frozen=True)
class ScaledWindow:
    """The spike pixels of `crop`, enlarged to `size` (H, W), of which `inner` is the crop of the
    frame.
    """

    crop: Crop
    size: tuple[int, int]
    inner: tuple[slice, slice]
    interpolation: int

    def to_rgb(self, channels: np.ndarray) -> np.ndarray:
        """Channels (S, h, w) float32 of `crop` -> (S, H, W) float32 on the RGB grid."""
        if channels.shape[1:] != self.size:
            size = self.size[::-1]
            channels = np.stack(
                [
                    cv2.resize(channel, size, interpolation=self.interpolation)
                    for channel in channels
                ]
            )
        return channels[:, self.inner[0], self.inner[1]]

    def brightness(self, stream: np.ndarray, image: np.ndarray) -> tuple[float, np.ndarray]:
        """Means of the stream (T, h, w) and of the image (H, W, 3), as (3,), over what both cameras
        see.
        """
        return float(stream.mean()), image.mean(axis=(0, 1))


class ScaledGrid:
    """Frames of `size` (H, W), a whole multiple of the spike plane.

    Raises DataError for any other size.

    is_stretched: of any ratio to it, for whole frames, as a user's own clips may have.
    """

    coverage = 1.0

    def __init__(
        self,
        geometry: SpikeGeometry,
        size: tuple[int, int],
        interpolation: int,
        is_stretched: bool = False,
    ) -> None:
        self.step = max(1, round(size[0] / geometry.height))
        self._is_stretched = size != (self.step * geometry.height, self.step * geometry.width)
        if self._is_stretched and not is_stretched:
            sizes = f"lq is {size[0]} x {size[1]}, spikes {geometry.height} x {geometry.width}"
            what, where = f"{sizes}: no whole multiple (spike.h, spike.w)", "spike.h, spike.w"
            expected, do = (
                "a whole number of RGB pixels per spike pixel",
                "correct them, or give spike.calibration",
            )
            raise DataError(what, where, expected, do)
        self.pixel, self.region = self.step, (0, 0, *size)
        self._geometry, self._interpolation = geometry, interpolation

    def window(self, aug: Crop) -> ScaledWindow:
        """Only the crop is read, with a border of one spike pixel, which interpolation needs."""
        (height, width), ratio = (self._geometry.height, self._geometry.width), self.step
        if self._is_stretched:
            return ScaledWindow(
                Crop(0, 0, height, width), self.region[2:], aug.slices, self._interpolation
            )
        top, left = max(aug.top // ratio - 1, 0), max(aug.left // ratio - 1, 0)
        bottom, right = (aug.top + aug.height) // ratio + 1, (aug.left + aug.width) // ratio + 1
        crop = Crop(top, left, min(bottom, height) - top, min(right, width) - left)
        inner = Crop(aug.top - top * ratio, aug.left - left * ratio, aug.height, aug.width)
        return ScaledWindow(
            crop, (crop.height * ratio, crop.width * ratio), inner.slices, self._interpolation
        )


@dataclass(frozen=True)
class CalibratedWindow:
    """The RGB pixels as weighted means of spike pixels.

    samples: for each sample of an RGB pixel, the places of its neighbours in the flattened `crop`
    and their weights, each (neighbours, H W). covered: (H, W) the RGB pixels that the spike camera
    sees.
    """

    crop: Crop
    samples: tuple[tuple[np.ndarray, np.ndarray], ...]
    covered: np.ndarray

    def to_rgb(self, channels: np.ndarray) -> np.ndarray:
        planes = channels.reshape(len(channels), self.crop.height * self.crop.width)
        out = np.zeros((len(channels), self.covered.size), np.float32)
        # Sums of single products in a fixed order, which a library's fused or blocked sum would not
        # be.
        for places, weights in self.samples:
            for place, weight in zip(places, weights, strict=True):
                for plane, values in zip(planes, out, strict=True):
                    values += plane[place] * weight
        if len(self.samples) > 1:
            out /= np.float32(len(self.samples))
        return out.reshape(len(channels), *self.covered.shape)

    def brightness(self, stream: np.ndarray, image: np.ndarray) -> tuple[float, np.ndarray]:
        seen = self.covered if self.covered.any() else np.ones_like(self.covered)
        rates = self.to_rgb(stream.mean(axis=0, dtype=np.float32)[None])[0]
        return float(rates[seen].mean(dtype=np.float64)), image[seen].mean(axis=0)


class CalibratedGrid:
    """The frames of a calibration.

    An RGB pixel takes the value at its centre, interpolated bilinearly between the spike pixels (or
    the nearest one's). Where the spike pixels are finer, it is the mean of n x n such samples
    spread evenly over the RGB pixel, n being the number of spike pixels across it, rounded up.
    Outside of the spike camera's view it repeats the nearest pixel of the plane's edge. Raises
    DataError for sizes that are not those of the calibration, and for cameras without common view.
    """

    step = 1

    def __init__(
        self, calibration: Calibration, geometry: SpikeGeometry, path: str, nearest: bool = False
    ) -> None:
        self._plane, self._nearest, self._path = (geometry.height, geometry.width), nearest, path
        if tuple(calibration.spike_size) != self._plane:
            sizes = "{} x {}, these are {} x {}".format(*calibration.spike_size, *self._plane)
            what, expected = (
                f"the calibration was made for spike planes of {sizes}",
                "the same spike camera",
            )
            raise DataError(what, path, expected, "correct spike.h and spike.w, or calibrate again")
        self.size = (calibration.rgb_size[0], calibration.rgb_size[1])
        self.pixel = max(1, round(scale_of(calibration.to_rgb())))
        self._to_spike = np.linalg.inv(calibration.to_rgb())
        # Spike pixels across an RGB pixel in the middle of the frame, rounded up: 1 where they are
        # larger.
        middle = Crop((self.size[0] - 1) // 2, (self.size[1] - 1) // 2, 1, 1)
        here, right, below = (
            np.ravel(self._centres(middle, *step)) for step in ((0, 0), (1, 0), (0, 1))
        )
        across = max(np.hypot(*(right - here)), np.hypot(*(below - here)))
        self._samples = 1 if nearest else max(1, int(np.ceil(across - 0.05)))
        self._last: tuple[tuple[int, ...], CalibratedWindow] | None = None
        covered = self._covered(Crop(0, 0, *self.size))
        self.coverage, largest = float(covered.mean()), largest_rectangle(covered)
        if largest is None:
            what = "the calibration maps all spike pixels outside of the frame"
            raise DataError(
                what, f"{path}, matrix", "cameras with a common view", "calibrate again"
            )
        self.region = top, left, height, width = tuple(calibration.region or largest)
        inside = (
            top >= 0 and left >= 0 and top + height <= self.size[0] and left + width <= self.size[1]
        )
        if (
            height < 1
            or width < 1
            or not inside
            or not covered[top : top + height, left : left + width].all()
        ):
            what, expected = (
                f"the spike camera does not see all of the region {calibration.region}",
                list(largest),
            )
            raise DataError(
                what, f"{path}, region", f"within {expected}", "correct it, or set it to null"
            )

    def check_size(self, size: tuple[int, int]) -> None:
        """Raises DataError for frames of another size than the calibration's."""
        if size != self.size:
            what = "lq is {} x {}, spike.calibration was made for frames of {} x {}".format(
                *size, *self.size
            )
            expected, do = (
                "frames as they were in the calibration, not resized or cropped",
                "calibrate with these",
            )
            raise DataError(what, self._path, expected, do)

    def window(self, aug: Crop) -> CalibratedWindow:
        place = (aug.top, aug.left, aug.height, aug.width)
        # All frames of a sample have the same crop
        if self._last is None or self._last[0] != place:
            shifts, (height, width) = (
                (np.arange(self._samples) + 0.5) / self._samples - 0.5,
                self._plane,
            )
            # of each sample, rows, columns and weights of the spike pixels around it, (neighbours,
            # H W)
            corners = []
            for x, y in (self._centres(aug, dx, dy) for dy in shifts for dx in shifts):
                x, y = np.clip(x.ravel(), 0, width - 1), np.clip(y.ravel(), 0, height - 1)
                if self._nearest:
                    x, y = np.floor(x + 0.5), np.floor(y + 0.5)
                row, col = y.astype(np.int64), x.astype(np.int64)
                down, right = y - row, x - col
                # Only a neighbour with a weight is another pixel: none is beyond the edge.
                below, beside = row + (down > 0), col + (right > 0)
                weights = (
                    (1 - down) * (1 - right),
                    (1 - down) * right,
                    down * (1 - right),
                    down * right,
                )
                stacks = [(row, row, below, below), (col, beside, col, beside), weights]
                rows, cols, weights = (
                    np.stack(stack[: 1 if self._nearest else 4]) for stack in stacks
                )
                corners.append((rows, cols, weights.astype(np.float32)))
            top, left = (min(int(c[axis].min()) for c in corners) for axis in (0, 1))
            bottom, right = (max(int(c[axis].max()) for c in corners) for axis in (0, 1))
            crop = Crop(top, left, bottom - top + 1, right - left + 1)
            samples = tuple(
                ((rows - top) * crop.width + cols - left, weights)
                for rows, cols, weights in corners
            )
            self._last = (place, CalibratedWindow(crop, samples, self._covered(aug)))
        return self._last[1]

    def _centres(
        self, aug: Crop, dx: float = 0.0, dy: float = 0.0
    ) -> tuple[np.ndarray, np.ndarray]:
        """Spike coordinates x and y, each (H, W), of the crop's RGB pixels moved by (dx, dy).

        float64 of coordinates in the whole frame: the same numbers in every crop that contains the
        pixel.
        """
        x = aug.left + np.arange(aug.width, dtype=np.float64)[None] + dx
        y = aug.top + np.arange(aug.height, dtype=np.float64)[:, None] + dy
        u, v, depth = (row[0] * x + row[1] * y + row[2] for row in self._to_spike)
        return u / depth, v / depth

    def _covered(self, aug: Crop) -> np.ndarray:
        (height, width), (x, y) = self._plane, self._centres(aug)
        return (x >= -0.5) & (x <= width - 0.5) & (y >= -0.5) & (y <= height - 0.5)


Window = ScaledWindow | CalibratedWindow
Grid = ScaledGrid | CalibratedGrid


def warn_uncovered(grid: Grid, what: str, where: str) -> None:
    """Warn that a part of whole frames, of `what`, has no spikes.

    Raises DataError where it is more than half.
    """
    if grid.coverage == 1.0:
        return
    top, left, height, width = grid.region
    seen = f"rows {top} to {top + height - 1}, columns {left} to {left + width - 1}"
    if grid.coverage < LEAST_COVERAGE:
        raise DataError(
            f"the spike camera sees only {grid.coverage:.0%} of the frames of {what}", where,
            f"at least {LEAST_COVERAGE:.0%}: elsewhere the edge of the spike plane is repeated",
            f"crop the frames to {seen}, and calibrate with such frames",
        )  # fmt: skip
    if RUN.launch.rank == 0:
        text = (
            "%s: the spike camera sees %.1f %% of the frame; elsewhere the edge of the spike "
            "plane is repeated"
        )
        logger.warning(f"{text}. Results hold in %s", what, 100 * grid.coverage, seen)


def largest_rectangle(covered: np.ndarray) -> tuple[int, int, int, int] | None:
    """(top, left, height, width) of the largest rectangle of true pixels in a convex area (H, W);
    None without one.
    """
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

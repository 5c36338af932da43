"""Put the channels of spikes onto the pixel grid of the RGB frames.

A spike plane and an RGB frame have different sizes, and with two cameras also different views. This
module knows which RGB pixel belongs to which spike pixel.

    Calibration     the contents of a calibration file, such as the matrix from spike to RGB pixels
    ScaledGrid      both cameras have the same view; a spike pixel covers n x n RGB pixels
    CalibratedGrid  the spike camera has a view of its own, given by a Calibration
    ScaledWindow, CalibratedWindow    one crop of the frame on such a grid

A sample uses them in three steps (`data/cameras/spike_source.py`):

    window = grid.window(crop_of_the_frame)
    stream = <read only the spike pixels of window.crop>
    channels = window.to_rgb(representation_of(stream))     # (S, H, W) of the crop

Both grids have the same attributes:

    step      crops of the frame start at multiples of the step, and have such heights and widths
    pixel     RGB pixels per spike pixel along a side, at least 1
    region    a `Crop`: the RGB pixels from which crops for training are drawn
    coverage  the fraction of the frame's pixels that the spike camera sees

What must stay:

    * The channels of a crop are, bit for bit, the crop of the channels of the whole frame. Training
      relies on this. So no value may depend on where the crop begins, and sums have a fixed order.
      test_a_crop_is_bit_for_bit_the_crop_of_the_whole tries some crops.
    * The keys of a calibration are part of files. The digest of a calibration is part of runs, so a
      file has the same digest in each version of this program.
      test_a_run_of_an_older_version_finds_the_digest_of_its_calibration notices.

Tests: tests/parts/data/test_spike_grid.py, tests/parts/data/test_two_cameras.py
"""

import hashlib
import json
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import cv2
import numpy as np
from pydantic import Field

from data.spike.formats import Crop, SpikeGeometry
from utils.dist.state import RUN
from utils.errors import DataError, OptionError
from utils.files import write_whole
from utils.json_file import read_json
from utils.options.section import Section, read_section
from utils.user_path import expand_path

# The end of several error texts: where the user finds the keys of a calibration file.
HELP_ON_KEYS = 'docs/data_format.md, section "Two cameras", explains the keys'
# If the spike camera sees less than this fraction of a frame, the clip is refused: the rest of the
# frame has only repeated edge pixels.
LEAST_COVERAGE = 0.5
# Largest condition number of a matrix that is inverted. A number of 1e12 costs 12 of the 16 digits
# of float64, so the inverse of a worse matrix has too few correct digits.
LARGEST_CONDITION = 1e12
# The channels of a frame are made of more planes than were exposed, by this factor. The reason: the
# network multiplies the blurry frame by a ratio, the light of the sharp instant divided by the mean
# light of the exposure. Windows of planes, pixels and the lens blur the spikes, which moves this
# ratio nearer to 1. A mean over more planes is smoother, which moves the ratio away from 1 again.
# 1.12 was chosen by trials with factors from 1 to 1.25 (docs/benchmarks/calibration.md):
#
#     cameras with many flaws          a larger factor gains 0.06 dB
#     cameras without other flaws      a larger factor loses 0.3 dB
PLANES_FACTOR = 1.12

logger = logging.getLogger(__name__)

# Types of the values of a calibration, with the lengths that pydantic checks: (height, width), and
# a row of the matrix.
Size = Annotated[list[Annotated[int, Field(ge=1)]], Field(min_length=2, max_length=2)]
Row = Annotated[list[float], Field(min_length=3, max_length=3)]


# ---- The calibration of two cameras ------------------------------------------------------------


class Calibration(Section):
    """The contents of a calibration file.

    Where the spike camera looks:
    matrix: maps the spike pixel (x, y, 1), after `mirror`, to an RGB pixel. 2 rows of 3 values
    (affine) or 3 rows of 3 (homography).
    mirror: what is mirrored in the upright spike image before `matrix` applies.
    spike_size, rgb_size: (height, width) of a spike plane and of a frame.
    region: (top, left, height, width) in RGB pixels, the part of the frame in which the spikes can
    be used. None: the largest rectangle that the spike planes cover.

    When an exposure happens:
    time_offset_planes: number that is added to the plane at which an exposure should start. The
    number is positive if the spike camera started first.
    exposure_share: fraction of the planes of a frame during which the frame was exposed. These
    planes lie in the middle of the planes of the frame: share 0.5 of 56 planes is planes 14 ... 41.
    The motion within an exposure is computed from exactly these planes. Channels are made of
    1.12 times as many planes (`share_to_read`).
    tick_hz: planes per second. None if it is unknown.

    made: how the file was made, for the person who opens it. It has no effect.

    Only the motion within an exposure (data/motion/joint.py) uses these two:
    rolling: the last row of a frame is exposed later than the first row by this fraction of the
    exposure.
    lens_blur: blur of the spike camera's lens, the sigma of a Gaussian in spike pixels.

    The keys are part of the file format. A new key needs a default that means what was done before,
    and an entry in `digest`.
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
        """Return the matrix (3, 3) float64 from spike pixels to RGB pixels.

        The result maps a pixel of the upright spike image, before mirroring. So it contains
        `mirror` and `matrix`.
        """
        matrix = np.eye(3)
        # An affine matrix has 2 rows. Its third row is 0 0 1, as in the identity.
        number_of_rows = len(self.matrix)
        matrix[:number_of_rows] = self.matrix
        height, width = self.spike_size
        # A product of matrices acts from right to left: first mirror, then map to the frame.
        return matrix @ mirroring(self.mirror, (height, width))

    @property
    def share_to_read(self) -> float:
        """The fraction of a frame's planes that its channels are made of, to 3 digits."""
        return round(share_to_read(self.exposure_share), 3)

    def digest(self) -> str:
        """Return 16 hex digits that change with every value that has an effect.

        Digests are stored with runs and caches. So the digest of an old file must not change when a
        new key is added: a new key counts only if it is not at its default.
        """
        values = self.plain()
        # `made` has no effect. `tick_hz` only serves a check of clocks.
        del values["made"]
        del values["tick_hz"]
        # In a digest, "exposure_share" is the share that is read, 1.12 times the exposed share. The
        # reason: an older version stored the share that is read under this name, and its runs must
        # find their digests again. Exposed shares of 0.9 and of 1 both read all planes, so the
        # digest of 0.9 has one more entry, "exposed".
        if self.share_to_read == 1 and self.exposure_share != 1:
            values["exposed"] = self.exposure_share
        values["exposure_share"] = self.share_to_read
        newer_keys = {"exposure_share": 1.0, "rolling": 0.0, "lens_blur": 0.0}
        for key, default in newer_keys.items():
            if values[key] == default:
                del values[key]
        text = json.dumps(values, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def share_to_read(exposure_share: float) -> float:
    """Return the fraction of a frame's planes that its channels are made of.

    It is 1.12 times the exposed share, because channels made of more planes are better
    (PLANES_FACTOR). E.g. an exposure share of 0.8 -> 0.896, and 0.95 -> 1, all planes.
    """
    return min(PLANES_FACTOR * exposure_share, 1.0)


def mirroring(mirror: str, size: tuple[int, int]) -> np.ndarray:
    """Return the matrix (3, 3) float64 from a pixel of an image to its place in the mirrored image.

    mirror: "none", "columns", "rows" or "both". size: (height, width) of the image.
    For example, "columns" moves x to width - 1 - x.
    """
    height, width = size
    matrix = np.eye(3)
    if mirror in ("columns", "both"):
        matrix[0] = (-1, 0, width - 1)  # x -> -x + width - 1
    if mirror in ("rows", "both"):
        matrix[1] = (0, -1, height - 1)  # y -> -y + height - 1
    return matrix


def scale_of(matrix: np.ndarray) -> float:
    """Return the RGB pixels per spike pixel along a side, of a matrix from spike to RGB pixels.

    The determinant is the area of a spike pixel in the frame, in RGB pixels. The square root of the
    area is the side: a determinant of 4 means 2 RGB pixels. If one camera is tilted, pixels differ
    a little in size, and this is the size of spike pixel (0, 0).
    """
    # A homography maps alike if all of its values are multiplied by a factor. Divided by its last
    # value, it has no factor any more.
    without_shift = matrix[:2, :2] / matrix[2, 2]
    area = abs(np.linalg.det(without_shift))  # negative if the matrix mirrors
    return float(np.sqrt(area))


def load_calibration(path: str | Path, table: dict[str, Any] | None = None) -> Calibration:
    """Read a calibration and check that its matrix can be used.

    path: a JSON file. table: the contents of the calibration, if the caller has read the file
    already (a dataset.json holds calibrations). None: read the file.
    Raises DataError if there is no usable calibration.
    """
    path = expand_path(str(path))
    try:
        if table is None:
            table = read_json(path)
        if not isinstance(table, dict):
            raise ValueError("it is no JSON object")
    except (OSError, ValueError) as e:
        raise DataError(
            what=f"cannot read the calibration: {e}",
            where=str(path),
            expected="a JSON file made by scripts/calibrate.py",
            do="correct spike.calibration, or make the file",
        ) from e
    try:
        calibration = read_section(Calibration, table, "", "a calibration file")
    except OptionError as e:
        raise DataError(
            what=e.what,
            where=f"{path}, {e.where}",
            expected=e.expected,
            do=f"correct the file; {HELP_ON_KEYS}",
        ) from e
    _refuse_unusable_matrix(calibration, path)
    return calibration


def save_calibration(path: str | Path, calibration: Calibration) -> None:
    """Write a calibration file, complete or not at all.

    In the JSON, each key and each row of the matrix has a line, so that a person can read it. The
    lines may change: `load_calibration` reads any JSON with these keys.
    """
    rows = []
    for row in calibration.matrix:
        rows.append("    " + json.dumps(row))
    matrix_text = "[\n" + ",\n".join(rows) + "\n  ]"

    lines = []
    for key, value in calibration.plain().items():
        text = matrix_text if key == "matrix" else json.dumps(value)
        lines.append(f"  {json.dumps(key)}: {text}")
    text = "{\n" + ",\n".join(lines) + "\n}\n"
    write_whole(path, text.encode())


def _refuse_unusable_matrix(calibration: Calibration, path: str) -> None:
    """Raise DataError if the matrix has no inverse, or maps a pixel to infinity."""
    to_rgb = calibration.to_rgb()
    # "not <" also refuses NaN, because every comparison with NaN is false. ">=" would accept it.
    if not np.linalg.cond(to_rgb) < LARGEST_CONDITION:
        raise DataError(
            what="the matrix of the calibration is singular",
            where=f"{path}, matrix",
            expected="a matrix that maps spike pixels to RGB pixels one to one",
            do="calibrate again: scripts/calibrate.py",
        )
    to_spike = np.linalg.inv(to_rgb)
    _refuse_pixels_at_infinity("spike", calibration.spike_size, to_rgb, path)
    _refuse_pixels_at_infinity("RGB", calibration.rgb_size, to_spike, path)


def _refuse_pixels_at_infinity(kind: str, size: Size, matrix: np.ndarray, path: str) -> None:
    """Raise DataError if a matrix maps a point of an image to infinity.

    kind: name of the image for the message. size: (height, width) of the image.
    """
    height, width = size
    # Pixel centres are whole numbers, so the image reaches from -0.5 to side - 0.5.
    right = width - 0.5
    bottom = height - 0.5
    corners = [
        [-0.5, right, -0.5, right],  # x
        [-0.5, -0.5, bottom, bottom],  # y
        [1, 1, 1, 1],
    ]
    # A homography divides by the depth, the third row of the product. The depth is linear in x and
    # y, so its extremes are at corners. If the extremes have different signs, the depth is 0
    # somewhere in the image.
    depth = matrix[2] @ corners
    if depth.min() <= 0 <= depth.max():
        raise DataError(
            what=f"the matrix of the calibration maps pixels of the {kind} image to infinity",
            where=f"{path}, matrix",
            expected="a third row close to 0 0 1",
            do="calibrate again: scripts/calibrate.py",
        )


# ---- Both cameras have the same view -----------------------------------------------------------


@dataclass(frozen=True)
class ScaledWindow:
    """One crop of the frame on a `ScaledGrid`.

    There are two crops: of the frame, in RGB pixels, and of the spike plane, in spike pixels. The
    crop of the spike plane is larger: it has a border around the crop of the frame.
    """

    crop: Crop  # the crop of the spike plane, which is read
    size: tuple[int, int]  # (H, W) to which the channels of `crop` are enlarged, in RGB pixels
    # The rows and columns of the enlarged channels that cover the crop of the frame.
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
        """Return the mean firing rate and the mean colour (3,) of what both cameras see.

        stream: spikes (T, h, w) of `crop`. image: (H, W, 3), the crop of the frame.
        """
        return float(stream.mean()), image.mean(axis=(0, 1))


class ScaledGrid:
    """The grid of two cameras with the same view: a frame is a whole multiple of a spike plane."""

    coverage = 1.0

    def __init__(
        self,
        geometry: SpikeGeometry,
        size: tuple[int, int],
        interpolation: int,
        any_size: bool = False,
    ) -> None:
        """Check the sizes. Raises DataError if they do not fit.

        geometry: size of the spike planes. size: (H, W) of a frame.
        interpolation: a constant of OpenCV.
        any_size: whether a frame may have any size, as the clips of a user may. A frame that is no
        multiple of the plane is restored as a whole, so its window reads the whole plane.
        """
        height, width = size
        self.step = max(1, round(height / geometry.height))
        is_multiple = size == (self.step * geometry.height, self.step * geometry.width)
        if not is_multiple and not any_size:
            _refuse_frame_of_no_multiple(geometry, size)
        self.pixel = self.step
        self.region = Crop(0, 0, height, width)  # both cameras see the whole frame
        self._is_stretched = not is_multiple
        self._geometry = geometry
        self._interpolation = interpolation

    def window(self, crop: Crop) -> ScaledWindow:
        """Return the window of a crop of the frame. It reads the crop and a border of one pixel.

        Interpolation at the edge of the crop needs one spike pixel beyond it. Without the border,
        test_a_calibration_that_only_enlarges_gives_what_a_whole_ratio_gives fails.
        """
        height = self._geometry.height
        width = self._geometry.width
        if self._is_stretched:
            whole_plane = Crop(0, 0, height, width)
            size_of_frame = (self.region.height, self.region.width)
            return ScaledWindow(whole_plane, size_of_frame, crop.slices, self._interpolation)

        # The spike pixels top ... bottom - 1 and left ... right - 1: the crop with a border of one
        # pixel, but not outside of the plane. E.g. with 2 RGB pixels per spike pixel, the RGB rows
        # 10 ... 19 are the spike rows 5 ... 9, so the spike rows 4 ... 10 are read.
        ratio = self.step
        top = max(crop.top // ratio - 1, 0)
        left = max(crop.left // ratio - 1, 0)
        bottom = min((crop.top + crop.height) // ratio + 1, height)
        right = min((crop.left + crop.width) // ratio + 1, width)
        spike_crop = Crop(top, left, height=bottom - top, width=right - left)

        # The crop of the frame, counted from the corner of `spike_crop` in RGB pixels. In the
        # example, spike row 4 is RGB row 8, so the RGB row 10 is row 2.
        inner = Crop(
            top=crop.top - top * ratio,
            left=crop.left - left * ratio,
            height=crop.height,
            width=crop.width,
        )
        enlarged_size = (spike_crop.height * ratio, spike_crop.width * ratio)
        return ScaledWindow(spike_crop, enlarged_size, inner.slices, self._interpolation)


def _refuse_frame_of_no_multiple(geometry: SpikeGeometry, size: tuple[int, int]) -> None:
    """Raise DataError for a frame that is no whole multiple of the spike plane."""
    height, width = size
    sizes = f"lq is {height} x {width}, spikes {geometry.height} x {geometry.width}"
    raise DataError(
        what=f"{sizes}: no whole multiple (spike.h, spike.w)",
        where="spike.h, spike.w",
        expected="a whole number of RGB pixels per spike pixel",
        do="correct spike.h and spike.w, or give spike.calibration",
    )


# ---- The spike camera has a view of its own ----------------------------------------------------


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


# ---- Both grids --------------------------------------------------------------------------------

Window = ScaledWindow | CalibratedWindow
Grid = ScaledGrid | CalibratedGrid


def warn_uncovered(grid: Grid, what: str, where: str) -> None:
    """Warn if the spike camera sees only a part of the frame.

    what: the clips, for the message. where: a file of these clips, for the message.
    Raises DataError if the spike camera sees less than half of the frame. Every rank may call this
    function; only rank 0 writes the warning.
    """
    if grid.coverage == 1.0:
        return
    region = grid.region.in_words()
    if grid.coverage < LEAST_COVERAGE:
        raise DataError(
            what=f"the spike camera sees only {grid.coverage:.0%} of the frames of {what}",
            where=where,
            expected=f"at least {LEAST_COVERAGE:.0%}: elsewhere the edge of the spike plane is "
            "repeated",
            do=f"crop the frames to {region}, and calibrate with such frames",
        )
    if RUN.launch.rank == 0:
        logger.warning(
            "%s: the spike camera sees %.1f %% of the frame; elsewhere the edge of the spike "
            "plane is repeated. Results hold in %s",
            what,
            100 * grid.coverage,
            region,
        )


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

"""Bit-packed spike planes: their geometry, and how they become arrays and back.

The format, common to the public readers of SpikeCV, S-SDM and Spike-Zoo: planes in order of time; within a plane, pixel
p (in raster order, rows without padding) is bit p % 8, least significant first, of byte p // 8; rows are stored bottom
first. There is no header: the geometry is not in the files, see `SpikeGeometry`. data/spike/formats.py opens the files.
"""

from __future__ import annotations

import dataclasses
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

PART = 64  # planes in memory at once, where a file is read in parts

PathLike = str | os.PathLike[str]

# Geometries of published data, most common first (height, width, head columns).
KNOWN_GEOMETRIES = (
    (250, 400, 0),
    (360, 640, 0),
    (250, 400, 16),
    (180, 320, 0),
    (384, 384, 0),
    (256, 256, 0),
    (1000, 1000, 0),
    (1000, 1024, 0),
    (64, 64, 0),
)

# A line of the SPS100 sensor: two halves of 512 bits, 500 pixels and a 12-bit word each.
SPS100_SIDE = 1000
SPS100_HALF, SPS100_PIXELS = 512, 500
SPS100_LINES = 500  # the words number the lines 1 ... 500, in four channels


class SpikeFileError(ValueError):
    """A spike file does not have the expected form: what is wrong, where, what was expected, what to do."""

    def __init__(self, what: str, where: str = "", expected: str = "", do: str = "") -> None:
        self.what, self.where, self.expected, self.do = what, where, expected, do
        super().__init__(what, where, expected, do)

    def __str__(self) -> str:
        parts = (("in", self.where), ("expected", self.expected), ("do", self.do))
        return "\n".join([self.what, *(f"  {name:<9} {text}" for name, text in parts if text)])


@dataclass(frozen=True, repr=False)
class SpikeGeometry:
    """The size and storage of packed planes, which the file does not contain.

    head_columns: columns without image at the end of each sensor line (16 on 416-wide lines); dropped when reading,
    written as zeros. flipud: rows are stored bottom first, as in all known files but those of the SPS100.
    bit_order: the first pixel of a byte is its least ("little", as in all known files) or most significant bit ("big",
    the default of numpy.packbits). layout: "raster", or "sps100" for 1000 x 1000 pixels in lines of 1024 bits, of which
    each half ends with a 12-bit word (source: SpikeCV, load_dat.py and sps_parser.py).
    """

    height: int
    width: int
    flipud: bool = True
    head_columns: int = 0
    bit_order: Literal["little", "big"] = "little"
    layout: Literal["raster", "sps100"] = "raster"

    def __post_init__(self) -> None:
        if self.height < 1 or self.width < 1 or self.head_columns < 0:
            raise SpikeFileError(
                f"a spike plane of {self.height} x {self.width} pixels with {self.head_columns} head columns",
                expected="sizes of at least 1 and head columns of at least 0",
                do="correct the height and width of the spike camera",
            )
        asked = (self.height, self.width, self.head_columns, self.bit_order)
        if self.layout == "sps100" and asked != (SPS100_SIDE, SPS100_SIDE, 0, "little"):
            raise SpikeFileError(
                f"an SPS100 plane of {self.height} x {self.width} pixels, {self.head_columns} head columns, "
                f"bit order {self.bit_order}",
                expected=f"{SPS100_SIDE} x {SPS100_SIDE}, no head columns, bit order little",
                do='correct them, or use the layout "raster"',
            )

    def __repr__(self) -> str:
        """The first four fields, and the others where they are not the default: digests of runs hold this text."""
        fields = dataclasses.fields(self)
        shown = [f for i, f in enumerate(fields) if i < 4 or getattr(self, f.name) != f.default]
        return f"SpikeGeometry({', '.join(f'{f.name}={getattr(self, f.name)!r}' for f in shown)})"

    @property
    def line_width(self) -> int:
        """Bits of a stored line."""
        return 2 * SPS100_HALF if self.layout == "sps100" else self.width + self.head_columns

    @property
    def plane_bytes(self) -> int:
        """Bytes of a packed plane. Raises SpikeFileError where its bits do not fill whole bytes."""
        if self.height * self.line_width % 8:
            raise SpikeFileError(
                f"a spike plane of {self.height} x {self.line_width} pixels cannot be packed",
                expected="height x line width divisible by 8; .npy and .npz hold planes of any size",
                do="correct the height and width of the spike camera",
            )
        return self.height * self.line_width // 8

    @property
    def stored_as_raster(self) -> SpikeGeometry:
        """How a clip cache stores these planes."""
        return dataclasses.replace(self, layout="raster")


@dataclass(frozen=True)
class Crop:
    """A rectangle in spike pixels of the upright image (row 0 at the top)."""

    top: int
    left: int
    height: int
    width: int

    @property
    def slices(self) -> tuple[slice, slice]:
        """Its rows and columns in an array."""
        return slice(self.top, self.top + self.height), slice(self.left, self.left + self.width)


class SpikeFile(ABC):
    """The planes of one file."""

    def __init__(self, path: PathLike, size: tuple[int, int], planes: int) -> None:
        self.path, self.size, self.planes = str(path), size, planes

    def read(self, first: int = 0, count: int | None = None, crop: Crop | None = None) -> np.ndarray:
        """Spikes (T, h, w) uint8 in {0, 1} of planes first ... first + count - 1 (default: to the end), upright.

        Raises SpikeFileError for planes or a crop outside of the file, and for content that is no spike.
        """
        count = self.planes - first if count is None else count
        crop = crop or Crop(0, 0, *self.size)
        self._check_range(first, count, crop)
        return self._planes(first, count, crop)

    def parts(self, first: int, count: int) -> Iterator[np.ndarray]:
        """Whole planes first ... first + count - 1 in parts of at most PART planes; errors as in `read`."""
        self._check_range(first, count, Crop(0, 0, *self.size))
        for start in range(first, first + count, PART):
            yield self.read(start, min(PART, first + count - start))

    @abstractmethod
    def _planes(self, first: int, count: int, crop: Crop) -> np.ndarray: ...

    def _check_range(self, first: int, count: int, crop: Crop) -> None:
        if first < 0 or count < 1 or first + count > self.planes:
            raise SpikeFileError(
                f"planes {first} to {first + count - 1} were requested", self.path,
                f"planes within 0 to {self.planes - 1}", "request fewer planes, or make the file again",
            )  # fmt: skip
        height, width = self.size
        inside = crop.top >= 0 and crop.left >= 0 and crop.height >= 1 and crop.width >= 1
        if not inside or crop.top + crop.height > height or crop.left + crop.width > width:
            raise SpikeFileError(
                f"{crop} reaches outside the plane", self.path, f"a rectangle within {height} x {width}"
            )


def unpack(packed: np.ndarray, geometry: SpikeGeometry, crop: Crop | None = None) -> np.ndarray:
    """Packed planes (T, plane_bytes) uint8 -> spikes (T, h, w) uint8 of the crop (default: the whole plane)."""
    crop = crop or Crop(0, 0, geometry.height, geometry.width)
    if geometry.layout == "sps100":
        return _unpack_halves(packed, geometry, crop)
    planes, line, order = packed.shape[0], geometry.line_width, geometry.bit_order
    # Stored rows start at the bottom of the image.
    row = geometry.height - crop.top - crop.height if geometry.flipud else crop.top
    if line % 8 == 0:
        lo, hi = crop.left // 8, -(-(crop.left + crop.width) // 8)
        window = packed.reshape(planes, geometry.height, line // 8)[:, row : row + crop.height, lo:hi]
        if geometry.flipud:
            window = window[:, ::-1]
        bits = np.unpackbits(np.ascontiguousarray(window), axis=-1, bitorder=order)
        skip = crop.left - 8 * lo
        return bits[:, :, skip : skip + crop.width]
    # Rows that do not end on a byte: unpack whole rows, then crop.
    start, stop = row * line, (row + crop.height) * line
    lo, hi = start // 8, -(-stop // 8)
    bits = np.unpackbits(np.ascontiguousarray(packed[:, lo:hi]), axis=-1, bitorder=order)
    rows = bits[:, start - 8 * lo : stop - 8 * lo].reshape(planes, crop.height, line)
    if geometry.flipud:
        rows = rows[:, ::-1]
    return rows[:, :, crop.left : crop.left + crop.width]


def _unpack_halves(packed: np.ndarray, geometry: SpikeGeometry, crop: Crop) -> np.ndarray:
    lines = SpikeGeometry(geometry.height, geometry.line_width, geometry.flipud)
    parts = []
    for half in (0, 1):
        lo = max(crop.left, half * SPS100_PIXELS)
        hi = min(crop.left + crop.width, (half + 1) * SPS100_PIXELS)
        if lo < hi:
            stored = Crop(crop.top, lo + half * (SPS100_HALF - SPS100_PIXELS), crop.height, hi - lo)
            parts.append(unpack(packed, lines, stored))
    return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=2)


def pack(spikes: np.ndarray, geometry: SpikeGeometry) -> np.ndarray:
    """Spikes (T, H, W) in {0, 1} -> packed planes (T, plane_bytes) uint8, as stored in a `.dat`."""
    check_spikes(spikes, geometry)
    rows = spikes[:, ::-1] if geometry.flipud else spikes
    if geometry.layout == "sps100":
        rows = _with_words(rows)
    elif geometry.head_columns:
        rows = np.pad(rows, ((0, 0), (0, 0), (0, geometry.head_columns)))
    bits = rows.reshape(len(rows), 8 * geometry.plane_bytes) != 0
    return np.packbits(bits, axis=-1, bitorder=geometry.bit_order)


def check_spikes(spikes: np.ndarray, geometry: SpikeGeometry) -> None:
    """Raise SpikeFileError for an array that is not (T >= 1, H, W)."""
    if spikes.ndim != 3 or spikes.shape[1:] != (geometry.height, geometry.width) or spikes.shape[0] == 0:
        raise SpikeFileError(
            f"spikes of shape {spikes.shape}", expected=f"(planes >= 1, {geometry.height}, {geometry.width})"
        )


def sps100_words() -> np.ndarray:
    """(1000, 2) the words at the ends of the half-lines of an SPS100 plane: line << 4 | channel << 14, uint16.

    Published readers require line 500, channel 0 for the first and line 500, channel 3 for the last half-line of a
    plane; that the lines between count down to the middle and up again is an assumption, which no reader relies on.
    """
    line = np.concatenate((np.arange(SPS100_LINES, 0, -1), np.arange(1, SPS100_LINES + 1)))
    channel = np.array([[0, 1]] * SPS100_LINES + [[2, 3]] * SPS100_LINES)
    return (line[:, None] << 4 | channel << 14).astype("<u2")


def _with_words(rows: np.ndarray) -> np.ndarray:
    """(T, 1000, 1000) pixels -> (T, 1000, 1024) bits with the words of the SPS100."""
    words = np.unpackbits(sps100_words()[..., None].view(np.uint8), axis=-1, bitorder="little")[..., 4:]
    halves = rows.reshape(*rows.shape[:2], 2, SPS100_PIXELS)
    return np.concatenate((halves, np.broadcast_to(words, (*halves.shape[:3], words.shape[-1]))), axis=3)

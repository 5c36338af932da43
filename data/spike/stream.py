"""Read and write the bit-packed `.dat` files of spike cameras.

The format, common to the public readers of SpikeCV, S-SDM and Spike-Zoo: no header; planes in order of time; within
a plane, pixel p (in raster order, rows without padding) is bit p % 8, least significant first, of byte p // 8; rows
are stored bottom first. The geometry is not in the file, see `SpikeGeometry`.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

# Geometries of published data, most common first (height, width, head columns).
KNOWN_GEOMETRIES = (
    (250, 400, 0),
    (360, 640, 0),
    (250, 400, 16),
    (180, 320, 0),
    (384, 384, 0),
    (256, 256, 0),
    (1000, 1024, 0),
    (64, 64, 0),
)


class SpikeFileError(ValueError):
    """A spike file does not have the expected form: what is wrong, where, what was expected, what to do."""

    def __init__(self, what: str, where: str = "", expected: str = "", do: str = "") -> None:
        self.what, self.where, self.expected, self.do = what, where, expected, do
        super().__init__(what, where, expected, do)

    def __str__(self) -> str:
        parts = (("in", self.where), ("expected", self.expected), ("do", self.do))
        return "\n".join([self.what, *(f"  {name:<9} {text}" for name, text in parts if text)])


@dataclass(frozen=True)
class SpikeGeometry:
    """The size and row order of a `.dat`, which the file does not contain.

    head_columns: columns without image at the end of each sensor line (16 on 416-wide lines); dropped when reading,
    written as zeros. flipud: rows are stored bottom first, as in all known files.
    """

    height: int
    width: int
    flipud: bool = True
    head_columns: int = 0

    def __post_init__(self) -> None:
        if self.height < 1 or self.width < 1 or self.head_columns < 0 or self.height * self.line_width % 8:
            raise SpikeFileError(
                f"a spike plane of {self.height} x {self.line_width} pixels cannot be packed",
                expected="positive sizes with height x line width divisible by 8",
                do="correct the height and width of the spike camera",
            )

    @property
    def line_width(self) -> int:
        return self.width + self.head_columns

    @property
    def plane_bytes(self) -> int:
        return self.height * self.line_width // 8


@dataclass(frozen=True)
class Crop:
    """A rectangle in spike pixels of the upright image (row 0 at the top)."""

    top: int
    left: int
    height: int
    width: int


def candidate_geometries(size: int) -> list[tuple[int, int, int, int]]:
    """(height, width, head columns, planes) of the known geometries whose planes fill `size` bytes exactly."""
    sizes = {known: known[0] * (known[1] + known[2]) // 8 for known in KNOWN_GEOMETRIES}
    return [(*known, size // plane_bytes) for known, plane_bytes in sizes.items() if size and size % plane_bytes == 0]


def count_planes(path: str | os.PathLike[str], geometry: SpikeGeometry, remainder: str = "error") -> int:
    """The number of planes in the file, from its size alone.

    remainder: "error" refuses bytes after the last whole plane, "truncate" ignores them.
    Raises SpikeFileError with the bytes found and needed, and the known geometries that fit.
    """
    try:
        size = os.stat(path).st_size
    except OSError as e:
        raise unreadable(path, e) from e
    return planes_in(size, path, geometry, remainder)


def planes_in(size: int, path: str | os.PathLike[str], geometry: SpikeGeometry, remainder: str = "error") -> int:
    """`count_planes` for a file of known size in bytes."""
    if remainder not in ("error", "truncate"):
        raise ValueError(f'remainder is "error" or "truncate", not {remainder!r}')
    planes, left = divmod(size, geometry.plane_bytes)
    if planes and (not left or remainder == "truncate"):
        return planes
    shape = f"{geometry.height} x {geometry.line_width}"
    fits = ", ".join(
        f"{h} x {w}{f' + {head} head columns' if head else ''} ({t} planes)"
        for h, w, head, t in candidate_geometries(size)
    )
    what = (
        f"spike file of {size} bytes holds {planes} planes of {shape} and {left} bytes more"
        if planes
        else f"spike file of {size} bytes holds no plane of {shape}"
    )
    raise SpikeFileError(
        what,
        str(path),
        f"a multiple of {geometry.plane_bytes} bytes; known geometries that fit this size: {fits or 'none'}",
        "copy or make the file again, or correct the spike height and width in the options",
    )


def unreadable(path: str | os.PathLike[str], error: OSError) -> SpikeFileError:
    """The SpikeFileError for a file that cannot be opened."""
    return SpikeFileError(
        f"cannot read spike file: {error.strerror or error}",
        str(path),
        "a readable .dat file",
        "restore the file or its permissions",
    )


def read_dat(
    path: str | os.PathLike[str],
    geometry: SpikeGeometry,
    first: int = 0,
    count: int | None = None,
    crop: Crop | None = None,
    remainder: str = "error",
) -> np.ndarray:
    """Spikes (T, h, w) uint8 in {0, 1} of planes first ... first + count - 1 (default: to the end), upright.

    The file is mapped, and only the bytes of these planes and of the crop are read.
    Raises SpikeFileError for a missing file, a wrong size, and planes or a crop outside of the file.
    """
    total = count_planes(path, geometry, remainder)
    count = total - first if count is None else count
    crop = crop or Crop(0, 0, geometry.height, geometry.width)
    _check_range(path, geometry, total, first, count, crop)
    try:
        packed = np.memmap(path, dtype=np.uint8, mode="r", shape=(total, geometry.plane_bytes))
    except OSError as e:
        raise unreadable(path, e) from e
    except ValueError as e:  # the file shrank since its size was read
        raise SpikeFileError(f"cannot map spike file: {e}", str(path), "an unchanging file", "make it again") from e
    return unpack(packed[first : first + count], geometry, crop)


def unpack(packed: np.ndarray, geometry: SpikeGeometry, crop: Crop | None = None) -> np.ndarray:
    """Packed planes (T, plane_bytes) uint8 -> spikes (T, h, w) uint8 of the crop (default: the whole plane)."""
    crop = crop or Crop(0, 0, geometry.height, geometry.width)
    planes, line = packed.shape[0], geometry.line_width
    # Stored rows start at the bottom of the image.
    row = geometry.height - crop.top - crop.height if geometry.flipud else crop.top
    if line % 8 == 0:
        lo, hi = crop.left // 8, -(-(crop.left + crop.width) // 8)
        window = packed.reshape(planes, geometry.height, line // 8)[:, row : row + crop.height, lo:hi]
        if geometry.flipud:
            window = window[:, ::-1]
        bits = np.unpackbits(np.ascontiguousarray(window), axis=-1, bitorder="little")
        skip = crop.left - 8 * lo
        return bits[:, :, skip : skip + crop.width]
    # Rows that do not end on a byte: unpack whole rows, then crop.
    start, stop = row * line, (row + crop.height) * line
    lo, hi = start // 8, -(-stop // 8)
    bits = np.unpackbits(np.ascontiguousarray(packed[:, lo:hi]), axis=-1, bitorder="little")
    rows = bits[:, start - 8 * lo : stop - 8 * lo].reshape(planes, crop.height, line)
    if geometry.flipud:
        rows = rows[:, ::-1]
    return rows[:, :, crop.left : crop.left + crop.width]


def pack(spikes: np.ndarray, geometry: SpikeGeometry) -> np.ndarray:
    """Spikes (T, H, W) in {0, 1} -> packed planes (T, plane_bytes) uint8, as stored in a `.dat`."""
    if spikes.ndim != 3 or spikes.shape[1:] != (geometry.height, geometry.width) or spikes.shape[0] == 0:
        raise SpikeFileError(
            f"spikes of shape {spikes.shape}", expected=f"(planes >= 1, {geometry.height}, {geometry.width})"
        )
    rows = spikes[:, ::-1] if geometry.flipud else spikes
    if geometry.head_columns:
        rows = np.pad(rows, ((0, 0), (0, 0), (0, geometry.head_columns)))
    return np.packbits(rows.reshape(len(rows), -1) != 0, axis=-1, bitorder="little")


def write_dat(path: str | os.PathLike[str], spikes: np.ndarray, geometry: SpikeGeometry) -> None:
    """Write spikes (T, H, W) in {0, 1}; the file appears complete or not at all."""
    write_parts(path, [spikes], geometry)


def write_parts(path: str | os.PathLike[str], parts: Iterable[np.ndarray], geometry: SpikeGeometry) -> None:
    """`write_dat` for a stream in parts (t, H, W), of which one at a time is in memory."""
    path = Path(path)
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            for part in parts:
                file.write(pack(part, geometry).tobytes())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _check_range(
    path: str | os.PathLike[str], geometry: SpikeGeometry, total: int, first: int, count: int, crop: Crop
) -> None:
    if first < 0 or count < 1 or first + count > total:
        raise SpikeFileError(
            f"planes {first} to {first + count - 1} were requested", str(path), f"planes within 0 to {total - 1}",
            "request fewer planes, or make the file again",
        )  # fmt: skip
    inside = crop.top >= 0 and crop.left >= 0 and crop.height >= 1 and crop.width >= 1
    if not inside or crop.top + crop.height > geometry.height or crop.left + crop.width > geometry.width:
        raise SpikeFileError(
            f"{crop} reaches outside the plane", str(path), f"a rectangle within {geometry.height} x {geometry.width}"
        )

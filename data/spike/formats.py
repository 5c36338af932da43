"""Read and write spike files: one reader per format, chosen by the suffix of the file's name.

.dat, .bin   packed planes without a header, see data/spike/stream.py; any other suffix is read in the same way
.npy         an array (T, h, w) of uint8 or bool in {0, 1}, row 0 at the top of the image
.npz         the same array in a zip file: the one named "spk", else the only one of three axes

A reader reads only the bytes that it needs; of a compressed .npz, all planes up to the last one needed. When a file is
opened, its content is checked: text, pictures, archives and the lines of an SPS100 are not taken for packed planes.
"""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np

from data.spike.arrays import npy_shape, npz_shape, open_npy, open_npz, write_npy, write_npz
from data.spike.stream import (
    KNOWN_GEOMETRIES,
    SPS100_HALF,
    SPS100_LINES,
    SPS100_SIDE,
    Crop,
    PathLike,
    SpikeFile,
    SpikeFileError,
    SpikeGeometry,
    pack,
    unpack,
)

# Random bits of any firing rate match with a probability below 1e-9: the first three bytes of a JPEG alone would refuse
# two of 100,000 files of a bright scene.
MARKS = {
    rb"\x93NUMPY": "the header of a NumPy array (.npy)",
    rb"PK\x03\x04[\x0a-\x3f]\x00": "the header of a zip file (.npz)",
    rb"\x89PNG\r\n\x1a\n": "a PNG picture",
    rb"\xff\xd8\xff(\xe0..JFIF|\xe1..(Exif|http)|\xee..Adobe|\xdb\x00[\x43\x84])": "a JPEG picture",
    rb"\x89HDF\r\n\x1a\n": "an HDF5 file",
    rb"\x1f\x8b\x08[\x00-\x1f].{4}[\x00\x02\x04][\x00-\x0d\xff]": "a file compressed with gzip",
    rb"\xfd7zXZ\x00": "a file compressed with xz",
    rb"7z\xbc\xaf\x27\x1c": "a 7z archive",
    rb"Rar!\x1a\x07": "a RAR archive",
    rb"version https://git-lfs": "a pointer of Git LFS, whose file was not fetched",
}


class PackedPlanes(SpikeFile):
    """Packed planes (T, plane_bytes) uint8, in memory or mapped."""

    def __init__(self, path: PathLike, geometry: SpikeGeometry, packed: np.ndarray) -> None:
        super().__init__(path, (geometry.height, geometry.width), len(packed))
        self.geometry, self.packed = geometry, packed

    def _planes(self, first: int, count: int, crop: Crop) -> np.ndarray:
        return unpack(self.packed[first : first + count], self.geometry, crop)


@dataclass(frozen=True)
class Format:
    """How files of one suffix are opened and written.

    open(path, geometry, remainder), write(file, parts, geometry). shape(path) is (T, h, w) where the file says so.
    """

    open: Callable[[PathLike, SpikeGeometry, str], SpikeFile]
    write: Callable[[IO[bytes], Iterable[np.ndarray], SpikeGeometry], None]
    shape: Callable[[PathLike], tuple[int, ...]] | None = None

    @property
    def is_packed(self) -> bool:
        return self.shape is None


def format_of(path: PathLike) -> Format:
    """The format of a file, from its suffix alone; packed planes for an unknown one."""
    return FORMATS.get(Path(path).suffix.lower(), FORMATS[".dat"])


def array_shape(path: PathLike) -> tuple[int, ...] | None:
    """(T, h, w) of a file that holds an array; None for packed planes. Raises SpikeFileError as `open_spikes`."""
    shape = format_of(path).shape
    try:
        return shape(path) if shape else None
    except OSError as e:
        raise unreadable(path, e) from e


def open_spikes(path: PathLike, geometry: SpikeGeometry, remainder: str = "error") -> SpikeFile:
    """The planes of a file. Raises SpikeFileError for a missing file, a wrong size and content of another kind.

    remainder: "error" refuses bytes after the last whole packed plane, "truncate" ignores them.
    """
    try:
        return format_of(path).open(path, geometry, remainder)
    except OSError as e:
        raise unreadable(path, e) from e


def read_spikes(
    path: PathLike,
    geometry: SpikeGeometry,
    first: int = 0,
    count: int | None = None,
    crop: Crop | None = None,
    remainder: str = "error",
) -> np.ndarray:
    """`open_spikes` and `SpikeFile.read` in one call: (T, h, w) uint8 in {0, 1}."""
    return open_spikes(path, geometry, remainder).read(first, count, crop)


def count_planes(path: PathLike, geometry: SpikeGeometry, remainder: str = "error", size: int | None = None) -> int:
    """The number of planes in a file: of raster planes from its size alone, of others from their headers or words.

    size: in bytes, where it is known. Raises SpikeFileError as `open_spikes`.
    """
    if not format_of(path).is_packed or geometry.layout != "raster":
        return open_spikes(path, geometry, remainder).planes
    try:
        size = os.stat(path).st_size if size is None else size
    except OSError as e:
        raise unreadable(path, e) from e
    return _planes_in(size, path, geometry, remainder)


def write_spikes(path: PathLike, spikes: np.ndarray | Iterable[np.ndarray], geometry: SpikeGeometry) -> None:
    """Write spikes (T, H, W) in {0, 1}, or parts (t, H, W) of which one at a time is in memory.

    The file appears complete or not at all.
    """
    path = Path(path)
    parts = [spikes] if isinstance(spikes, np.ndarray) else spikes
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}")  # one of tempfile ignores the umask
    try:
        with open(temporary, "x+b") as file:
            format_of(path).write(file, parts, geometry)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def packed_planes(
    content: bytes | np.ndarray, path: PathLike, geometry: SpikeGeometry, remainder: str = "error"
) -> PackedPlanes:
    """The planes in the content of a packed file, such as a value of an LMDB."""
    data = np.frombuffer(content, np.uint8) if isinstance(content, bytes) else content
    refuse_header(data[:64].tobytes(), path)
    found = _sps100_start(data) if SPS100_SIDE in (geometry.height, geometry.width) else None
    if geometry.layout == "sps100":
        if found is None:
            raise SpikeFileError(
                f"no plane of an SPS100 in {len(data)} bytes: no 64 bytes end with the word of line 500, channel 0, "
                "with words of lines 1 to 500 after it", str(path),
                f"lines of 1024 bits with the words of the sensor, {geometry.plane_bytes} bytes per plane",
                'check the file; "raster" is the layout of 1000 x 1000 planes without these words',
            )  # fmt: skip
        planes, data = (len(data) - found) // geometry.plane_bytes, data[found:]
    elif found is not None:
        raise SpikeFileError(
            f"the lines of the file end with words of an SPS100 sensor (the first plane starts at byte {found})",
            str(path), "raster planes, without words among the pixels",
            "use the layout sps100 with planes of 1000 x 1000 (spike.layout, --layout), no head columns",
        )  # fmt: skip
    else:
        planes = _planes_in(len(data), path, geometry, remainder)
    return PackedPlanes(path, geometry, data[: planes * geometry.plane_bytes].reshape(planes, geometry.plane_bytes))


def candidate_geometries(size: int) -> list[tuple[int, int, int, int]]:
    """(height, width, head columns, planes) of the known geometries whose planes fill `size` bytes exactly."""
    sizes = {known: known[0] * (known[1] + known[2]) // 8 for known in KNOWN_GEOMETRIES}
    return [(*known, size // plane_bytes) for known, plane_bytes in sizes.items() if size and size % plane_bytes == 0]


def refuse_header(head: bytes, path: PathLike) -> None:
    """Raise SpikeFileError where a file begins (`head`, 64 bytes) as no packed planes do: with a header, or as text."""
    seen = next((what for mark, what in MARKS.items() if re.match(mark, head, re.DOTALL)), None)
    if seen is None and len(set(head)) > 6 and all(32 <= byte < 127 or byte in b"\t\r\n" for byte in head):
        seen = "text"
    if seen:
        raise SpikeFileError(
            f"the file begins with {seen}: {head[:24]!r}", str(path), "packed planes, which have no header",
            "give it its own suffix (.npy, .npz), restore the file, or cut off its header",
        )  # fmt: skip


def unreadable(path: PathLike, error: OSError) -> SpikeFileError:
    """The SpikeFileError for a file that cannot be opened."""
    return SpikeFileError(
        f"cannot read spike file: {error.strerror or error}", str(path), "a readable spike file",
        "restore the file or its permissions",
    )  # fmt: skip


def _planes_in(size: int, path: PathLike, geometry: SpikeGeometry, remainder: str) -> int:
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


def _sps100_start(data: np.ndarray) -> int | None:
    """The first byte of the first whole SPS100 plane in packed bytes; None where they are none.

    Every half-line ends with a word of a line 1 ... 500, the first one of a plane with line 500, channel 0. A capture
    may start within a plane, at a multiple of 16 bytes. The last whole plane must start as the first one.
    """
    half, halves = SPS100_HALF // 8, 2 * SPS100_SIDE
    plane = half * halves
    for shift in range(0, half, 16):
        lines = data[shift : shift + plane]
        if len(lines) < plane:
            return None
        words = lines.reshape(halves, half)[:, -2:].copy().view("<u2")[:, 0]
        line, channel = words >> 4 & 0x3FF, words >> 14
        starts = np.flatnonzero((line == SPS100_LINES) & (channel == 0))
        if ((line < 1) | (line > SPS100_LINES)).any() or len(starts) != 1:
            continue
        first = shift + half * int(starts[0])
        planes = (len(data) - first) // plane
        last = first + (planes - 1) * plane
        if planes and np.array_equal(data[last + half - 2 : last + half] & [0xF0, 0xFF], [0x40, 0x1F]):
            return first
    return None


def _open_packed(path: PathLike, geometry: SpikeGeometry, remainder: str) -> SpikeFile:
    size = os.stat(path).st_size
    if size == 0:
        _planes_in(size, path, geometry, remainder)
    try:
        data = np.memmap(path, dtype=np.uint8, mode="r")
    except ValueError as e:  # the file shrank since its size was read
        raise SpikeFileError(f"cannot map spike file: {e}", str(path), "an unchanging file", "make it again") from e
    return packed_planes(data, path, geometry, remainder)


def _write_packed(file: IO[bytes], parts: Iterable[np.ndarray], geometry: SpikeGeometry) -> None:
    for part in parts:
        file.write(pack(part, geometry).tobytes())


FORMATS = {
    ".dat": Format(_open_packed, _write_packed),
    ".bin": Format(_open_packed, _write_packed),
    ".npy": Format(open_npy, write_npy, npy_shape),
    ".npz": Format(open_npz, write_npz, npz_shape),
}

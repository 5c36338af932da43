"""Read and write spike files: one reader per format, chosen by the suffix of the file's name.

.dat, .bin   packed planes, see below; any other suffix is read in the same way
.npy         an array (T, h, w) of uint8 or bool in {0, 1}, row 0 at the top of the image
.npz         the same array in a zip file: the one named "spk", else the only one of three axes

Packed planes, common to the public readers of SpikeCV, S-SDM and Spike-Zoo, have no header: planes
in order of time; within a plane, pixel p (in raster order, rows without padding) is bit p % 8,
least significant first, of byte p // 8; rows are stored bottom first. The size of a plane is not in
the file, see `SpikeGeometry`.

A reader reads only the bytes that it needs; of a .npz, all bytes up to them. When a file is opened,
its content is checked: text, images, archives and the lines of an SPS100 are not taken for packed
planes.
"""

import dataclasses
import errno
import mmap
import os
import re
import tempfile
import uuid
import zipfile
import zlib
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from .arrays import PART, ArrayFile, find_array

FORMATS = (".dat", ".bin", ".npy", ".npz")
NPZ_KEY = "spk"

PathLike = str | os.PathLike[str]

# Geometries of published data, most common first (height, width, head columns).
KNOWN_GEOMETRIES = (
    (250, 400, 0), (360, 640, 0), (250, 400, 16), (180, 320, 0), (384, 384, 0), (256, 256, 0),
    (1000, 1000, 0),
    (1000, 1024, 0), (64, 64, 0),
)  # fmt: skip

# A line of the SPS100 sensor: two halves of 512 bits, 500 pixels and a 12-bit word each.
SPS100_SIDE = 1000
SPS100_HALF, SPS100_PIXELS = 512, 500
SPS100_LINES = 500  # the words number the lines 1 ... 500, in four channels

# Random bits of any firing rate match with a probability below 1e-9: the first three bytes of a
# JPEG alone would refuse two of 100,000 files of a bright scene.
MARKS = {
    rb"\x93NUMPY": "the header of a NumPy array (.npy)",
    rb"PK\x03\x04[\x0a-\x3f]\x00": "the header of a zip file (.npz)",
    rb"\x89PNG\r\n\x1a\n": "a PNG image",
    rb"\xff\xd8\xff(\xe0..JFIF|\xe1..(Exif|http)|\xee..Adobe|\xdb\x00[\x43\x84])": "a JPEG image",
    rb"\x1f\x8b\x08[\x00-\x1f].{4}[\x00\x02\x04][\x00-\x0d\xff]": "a file compressed with gzip",
    rb"(\xfd7zXZ\x00|7z\xbc\xaf\x27\x1c|Rar!\x1a\x07)": "an archive (xz, 7z or RAR)",
    rb"MATLAB 5\.0 MAT-file": "the header of a MATLAB file",
    rb"MATLAB 7\.3 MAT-file|\x89HDF\r\n\x1a\n": "the header of an HDF5 or MATLAB 7.3 file",
    rb"version https://git-lfs": "a pointer of Git LFS, whose file was not fetched",
}


class SpikeFileError(ValueError):
    """A spike file does not have the expected form: what is wrong, where, what was expected, what
    to do.
    """

    def __init__(self, what: str, where: str = "", expected: str = "", do: str = "") -> None:
        self.what, self.where, self.expected, self.do = what, where, expected, do
        super().__init__(what, where, expected, do)

    def __str__(self) -> str:
        parts = (("in", self.where), ("expected", self.expected), ("do", self.do))
        return "\n".join([self.what, *(f"  {name:<9} {text}" for name, text in parts if text)])


@dataclass(frozen=True, repr=False)
class SpikeGeometry:
    """The size and storage of packed planes, which the file does not contain.

    head_columns: columns without image at the end of each sensor line (16 on 416-wide lines);
    dropped when reading, written as zeros. flipud: rows are stored bottom first, as in all known
    files but those of the SPS100.
    bit_order: the first pixel of a byte is its least ("little", as in all known files) or most
    significant bit ("big", the default of numpy.packbits). layout: "raster", or "sps100" for 1000 x
    1000 pixels in lines of 1024 bits, of which each half ends with a 12-bit word (source: SpikeCV,
    load_dat.py and sps_parser.py); such files are only read.
    """

    height: int
    width: int
    flipud: bool = True
    head_columns: int = 0
    bit_order: Literal["little", "big"] = "little"
    layout: Literal["raster", "sps100"] = "raster"

    def __post_init__(self) -> None:
        expected = ""
        if self.height < 1 or self.width < 1 or self.head_columns < 0:
            expected = "sizes of at least 1 and head columns of at least 0"
        asked = (self.height, self.width, self.head_columns, self.bit_order)
        if self.layout == "sps100" and asked != (SPS100_SIDE, SPS100_SIDE, 0, "little"):
            expected = (
                f"{SPS100_SIDE} x {SPS100_SIDE}, no head columns, bit order little for "
                "the layout sps100"
            )
        if expected:
            raise SpikeFileError(
                f"{self} is no plane of spikes",
                "",
                expected,
                "correct the size of the spike camera",
            )

    def __repr__(self) -> str:
        """The first four fields, and the others where they are not the default: digests of runs
        hold this text.
        """
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
            what = f"a spike plane of {self.height} x {self.line_width} pixels cannot be packed"
            expected = "height x line width divisible by 8; .npy and .npz hold planes of any size"
            raise SpikeFileError(what, "", expected, "correct the size of the spike camera")
        return self.height * self.line_width // 8

    @property
    def stored_as_raster(self) -> "SpikeGeometry":
        """How a clip cache stores these planes."""
        return dataclasses.replace(self, layout="raster")


@dataclass(frozen=True)
class Crop:
    """A rectangle in the pixels of an upright image (row 0 at the top)."""

    top: int
    left: int
    height: int
    width: int

    @property
    def slices(self) -> tuple[slice, slice]:
        """Its rows and columns in an array."""
        return slice(self.top, self.top + self.height), slice(self.left, self.left + self.width)


@dataclass
class SpikeFile:
    """The planes of one file.

    packed: (T, plane_bytes) uint8, in memory or mapped; None for an array (T, h, w) of NumPy,
    `array`.
    """

    path: str
    geometry: SpikeGeometry
    planes: int
    packed: np.ndarray | None
    array: ArrayFile | None = None

    @property
    def size(self) -> tuple[int, int]:
        return self.geometry.height, self.geometry.width

    def read(
        self, first: int = 0, count: int | None = None, crop: Crop | None = None
    ) -> np.ndarray:
        """Spikes (T, h, w) uint8 in {0, 1} of planes first ... first + count - 1 (default: to the
        end), upright.

        Raises SpikeFileError for planes or a crop outside of the file, and for content that is no
        spike.
        """
        count = self.planes - first if count is None else count
        crop = crop or Crop(0, 0, *self.size)
        self._check_planes(first, count)
        height, width = self.size
        inside = crop.top >= 0 and crop.left >= 0 and crop.height >= 1 and crop.width >= 1
        if not inside or crop.top + crop.height > height or crop.left + crop.width > width:
            expected = f"a rectangle within {height} x {width}"
            raise SpikeFileError(f"{crop} reaches outside the plane", self.path, expected)
        if self.packed is not None:
            return _unpack(self.packed[first : first + count], self.geometry, crop)
        assert self.array is not None  # a file is packed, or an array
        with _file_errors(self.path):
            spikes = self.array.read(first, count, *crop.slices)
        return self._checked(spikes)

    def _checked(self, array: np.ndarray) -> np.ndarray:
        """An array of uint8 or bool as spikes. Raises SpikeFileError for values above 1."""
        spikes = array.view(np.uint8)
        if spikes.max() > 1:
            what = f"the array holds the value {spikes.max()}"
            raise SpikeFileError(what, self.path, "values 0 and 1", "save (array > 0) instead")
        return spikes

    def parts(self, first: int, count: int) -> Iterator[np.ndarray]:
        """Whole planes first ... first + count - 1 in parts of at most PART planes; errors as in
        `read`.
        """
        self._check_planes(first, count)
        if self.array is not None:
            return self._array_parts(first, count)
        return (
            self.read(start, min(PART, first + count - start))
            for start in range(first, first + count, PART)
        )

    def _array_parts(self, first: int, count: int) -> Iterator[np.ndarray]:
        assert self.array is not None
        with _file_errors(self.path):
            for part in self.array.parts(first, count):
                yield self._checked(np.array(part[:, :, : self.size[1]]))

    def _check_planes(self, first: int, count: int) -> None:
        if first < 0 or count < 1 or first + count > self.planes:
            what, do = (
                f"planes {first} to {first + count - 1} were requested",
                "request fewer, or make the file again",
            )
            raise SpikeFileError(what, self.path, f"planes within 0 to {self.planes - 1}", do)


def open_spikes(path: PathLike, geometry: SpikeGeometry, remainder: str = "error") -> SpikeFile:
    """The planes of a file.

    Raises SpikeFileError for a missing file, a wrong size and content of another kind.

    remainder: "error" refuses bytes after the last whole packed plane, "truncate" ignores them.
    """
    with _file_errors(path):
        if not is_array(path):
            return packed_planes(_map_bytes(path), path, geometry, remainder)
        array = find_array(Path(path), NPZ_KEY)
    shape, dtype = array.shape, array.dtype
    is_type, widths = dtype in (np.uint8, np.bool_), (geometry.width, geometry.line_width)
    if (
        is_type
        and len(shape) == 3
        and shape[0]
        and shape[1] == geometry.height
        and shape[2] in widths
    ):
        return SpikeFile(str(path), geometry, shape[0], None, array)
    what, do = (
        f"an array of shape {shape}, {dtype}",
        "correct the spike height and width, or save it in this form",
    )
    expected = f"(planes >= 1, {geometry.height}, {geometry.width}), uint8 or bool, values 0 and 1"
    raise SpikeFileError(
        what, str(path), expected, do if is_type else "save it as (array > 0).astype(numpy.uint8)"
    )


def _map_bytes(path: PathLike) -> np.ndarray:
    # np.memmap asks for the state of the file three times, which takes time over a network.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # else a pipe would be waited for
    try:
        return np.frombuffer(mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ), np.uint8)
    except ValueError:  # an empty file cannot be mapped
        return np.empty(0, np.uint8)
    except OSError:
        if os.path.isdir(path):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path)) from None
        if not os.path.isfile(path):
            return np.empty(0, np.uint8)  # a pipe or a device
        raise
    finally:
        os.close(descriptor)


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


def count_planes(
    path: PathLike, geometry: SpikeGeometry, remainder: str = "error", size: int | None = None
) -> int:
    """Planes in a file, of raster planes from its size alone, which may be given.

    Raises SpikeFileError.
    """
    if is_array(path) or geometry.layout != "raster":
        return open_spikes(path, geometry, remainder).planes
    with _file_errors(path):
        return _planes_in(
            os.stat(path).st_size if size is None else size, path, geometry, remainder
        )


def write_spikes(
    path: PathLike, spikes: np.ndarray | Iterable[np.ndarray], geometry: SpikeGeometry
) -> None:
    """Write spikes (T, H, W) in {0, 1}, or parts (t, H, W) of which one at a time is in memory.

    The file appears complete or not at all. Raises SpikeFileError for spikes of another size.
    """
    path, size = Path(path), (geometry.height, geometry.width)
    is_zipped, header = (
        path.suffix.lower() == ".npz",
        {"descr": "|u1", "fortran_order": False, "shape": (0, *size)},
    )
    # One of tempfile ignores the umask
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}")
    try:
        with (
            open(temporary, "x+b") as file,
            tempfile.TemporaryFile(dir=path.parent) if is_zipped else file as array,
        ):
            if is_array(path):
                np.lib.format.write_array_header_1_0(array, header)
            start, planes = array.tell(), 0
            for part in [spikes] if isinstance(spikes, np.ndarray) else spikes:
                _check_shape(part, geometry)
                stored = (
                    np.ascontiguousarray(part != 0).view(np.uint8)
                    if is_array(path)
                    else pack(part, geometry)
                )
                array.write(stored.tobytes())
                planes += len(part)
            if is_array(path):  # the header again, as long as before: it is padded
                array.seek(0)
                np.lib.format.write_array_header_1_0(array, header | {"shape": (planes, *size)})
            if is_zipped:
                array.flush()
                mapped = np.memmap(array, np.uint8, "r", start, (planes, *size))
                arrays: dict[str, Any] = {NPZ_KEY: mapped}
                np.savez_compressed(file, **arrays)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def is_array(path: PathLike) -> bool:
    """Whether a file holds an array, not packed planes."""
    return Path(path).suffix.lower() in (".npy", ".npz")


def array_shape(path: PathLike) -> tuple[int, ...] | None:
    """(T, h, w) of a file that holds an array; None for packed planes.

    Raises SpikeFileError as `open_spikes`.
    """
    with _file_errors(path):
        return find_array(Path(path), NPZ_KEY).shape if is_array(path) else None


@contextmanager
def _file_errors(path: PathLike) -> Generator[None]:
    """What a missing, unreadable or damaged file raises becomes a SpikeFileError."""
    try:
        yield
    except SpikeFileError:
        raise
    except (
        OSError,
        zipfile.BadZipFile,
        zlib.error,
        EOFError,
        ValueError,
        NotImplementedError,
    ) as e:
        reason = e.strerror if isinstance(e, OSError) else None
        expected = (
            f'packed planes, or an array (planes, h, w); in a .npz named "{NPZ_KEY}", or '
            "the only one of 3 axes"
        )
        what, do = (
            f"cannot read spike file: {reason or e}",
            "restore the file, or save the array again",
        )
        raise SpikeFileError(what, str(path), expected, do) from e


def packed_planes(
    content: bytes | np.ndarray, path: PathLike, geometry: SpikeGeometry, remainder: str = "error"
) -> SpikeFile:
    """The planes in the content of a packed file, such as a value of an LMDB."""
    data = np.frombuffer(content, np.uint8) if isinstance(content, bytes) else content
    refuse_header(data[:64].tobytes(), path)
    found = _sps100_start(data) if SPS100_SIDE in (geometry.height, geometry.width) else None
    if geometry.layout == "sps100":
        if found is None:
            what = (
                f"no plane of an SPS100 in {len(data)} bytes: no word of line 500, channel "
                "0, with others after it"
            )
            expected = (
                f"lines of 1024 bits with the sensor's words, {geometry.plane_bytes} "
                "bytes per plane"
            )
            raise SpikeFileError(
                what, str(path), expected, 'check it; "raster" is the layout without these words'
            )
        planes, data = (len(data) - found) // geometry.plane_bytes, data[found:]
    elif found is not None:
        what = (
            "the lines of the file end with words of an SPS100 sensor (the first plane "
            f"starts at byte {found})"
        )
        do = (
            "use the layout sps100 with planes of 1000 x 1000 (spike.layout, --layout), no "
            "head columns"
        )
        raise SpikeFileError(what, str(path), "raster planes, without words among the pixels", do)
    else:
        planes = _planes_in(len(data), path, geometry, remainder)
    packed = data[: planes * geometry.plane_bytes].reshape(planes, geometry.plane_bytes)
    return SpikeFile(str(path), geometry, planes, packed)


def refuse_header(head: bytes, path: PathLike) -> None:
    """Raise SpikeFileError where a file begins (`head`, 64 bytes) as no packed planes do: with a
    header, or as text.
    """
    seen = next((what for mark, what in MARKS.items() if re.match(mark, head, re.DOTALL)), None)
    if (
        seen is None
        and len(set(head)) > 6
        and all(32 <= byte < 127 or byte in b"\t\r\n" for byte in head)
    ):
        seen = "text"
    if seen:
        what, expected = (
            f"the file begins with {seen}: {head[:24]!r}",
            "packed planes, which have no header",
        )
        do = "give it its own suffix (.npy, .npz), restore the file, or cut off its header"
        if "MATLAB" in seen:
            do = "save its planes as an array (planes, h, w) of uint8 in a .npy file"
        raise SpikeFileError(what, str(path), expected, do)


def _planes_in(size: int, path: PathLike, geometry: SpikeGeometry, remainder: str) -> int:
    planes, left = divmod(size, geometry.plane_bytes)
    if planes and (not left or remainder == "truncate"):
        return planes
    shape = f"{geometry.height} x {geometry.line_width}"
    held = f"{planes} planes of {shape} and {left} bytes more" if planes else f"no plane of {shape}"
    known = []
    for h, w, head in KNOWN_GEOMETRIES:
        bits = h * (w + head)
        if size and 8 * size % bits == 0:
            columns = f" + {head} head columns" if head else ""
            known.append(f"{h} x {w}{columns} ({8 * size // bits} planes)")
    fits = ", ".join(known)
    what, do = (
        f"spike file of {size} bytes holds {held}",
        "copy the file again, or correct the spike height and width",
    )
    expected = (
        f"a multiple of {geometry.plane_bytes} bytes; known geometries that fit this "
        f"size: {fits or 'none'}"
    )
    raise SpikeFileError(what, str(path), expected, do)


def _sps100_start(data: np.ndarray) -> int | None:
    """The first byte of the first whole SPS100 plane in packed bytes; None where they are none.

    Every half-line ends with a word of a line 1 ... 500, the first one of a plane with line 500,
    channel 0. A capture may start within a plane, at a multiple of 16 bytes. The last whole plane
    must start as the first one.
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
        if planes and np.array_equal(
            data[last + half - 2 : last + half] & [0xF0, 0xFF], [0x40, 0x1F]
        ):
            return first
    return None


def _unpack(packed: np.ndarray, geometry: SpikeGeometry, crop: Crop) -> np.ndarray:
    """Packed planes (T, plane_bytes) uint8 -> spikes (T, h, w) uint8 of the crop."""
    if geometry.layout == "sps100":
        lines, parts = SpikeGeometry(geometry.height, geometry.line_width, geometry.flipud), []
        for start, word_bits in ((0, 0), (SPS100_PIXELS, SPS100_HALF - SPS100_PIXELS)):
            lo, hi = max(crop.left, start), min(crop.left + crop.width, start + SPS100_PIXELS)
            if lo < hi:
                parts.append(
                    _unpack(packed, lines, Crop(crop.top, lo + word_bits, crop.height, hi - lo))
                )
        return np.concatenate(parts, axis=2)
    planes, line, order = packed.shape[0], geometry.line_width, geometry.bit_order
    # Stored rows start at the bottom of the image.
    row = geometry.height - crop.top - crop.height if geometry.flipud else crop.top
    if line % 8 == 0:
        lo, hi, left = crop.left // 8, -(-(crop.left + crop.width) // 8), crop.left % 8
        window = packed.reshape(planes, geometry.height, line // 8)[
            :, row : row + crop.height, lo:hi
        ]
        rows = np.unpackbits(np.ascontiguousarray(window), axis=-1, bitorder=order)
    else:  # rows that do not end on a byte: unpack whole rows, then crop
        start, stop, left = row * line, (row + crop.height) * line, crop.left
        bits = np.unpackbits(
            np.ascontiguousarray(packed[:, start // 8 : -(-stop // 8)]), axis=-1, bitorder=order
        )
        rows = bits[:, start % 8 :][:, : stop - start].reshape(planes, crop.height, line)
    rows = rows[:, ::-1] if geometry.flipud else rows
    return rows[:, :, left : left + crop.width]


def pack(spikes: np.ndarray, geometry: SpikeGeometry) -> np.ndarray:
    """Spikes (T, H, W) in {0, 1} -> packed planes (T, plane_bytes) uint8, as stored in a `.dat`."""
    _check_shape(spikes, geometry)
    rows = spikes[:, ::-1] if geometry.flipud else spikes
    if geometry.head_columns:
        rows = np.pad(rows, ((0, 0), (0, 0), (0, geometry.head_columns)))
    bits = rows.reshape(len(rows), 8 * geometry.plane_bytes) != 0
    return np.packbits(bits, axis=-1, bitorder=geometry.bit_order)


def _check_shape(spikes: np.ndarray, geometry: SpikeGeometry) -> None:
    """Raise SpikeFileError for an array that is not (T >= 1, H, W)."""
    if spikes.ndim != 3 or spikes.shape[1:] != (geometry.height, geometry.width) or not len(spikes):
        expected = f"(planes >= 1, {geometry.height}, {geometry.width})"
        raise SpikeFileError(f"spikes of shape {spikes.shape}", "", expected)

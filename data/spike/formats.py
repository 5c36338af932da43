"""Read and write spike files: one reader per format, chosen by the suffix of the file's name.

    .dat, .bin   packed planes: 8 pixels in a byte; any other suffix is read in the same way
    .npy         an array (T, h, w) of uint8 or bool in {0, 1}, row 0 at the top of the image
    .npz         the same array in a zip file: the one named "spk", else the only one of three axes

A plane is one read-out of the spike camera: a bit for each pixel. T is the number of planes.

Packed planes have no header. The public readers of SpikeCV, S-SDM and Spike-Zoo share this form:

    * Planes follow one another in order of time.
    * Within a plane, the pixels follow in raster order, rows without padding, rows bottom first.
    * Pixel p is bit p % 8 (least significant first) of byte p // 8.

The size of a plane is not in the file, so whoever reads one gives a `SpikeGeometry`. A plane of
250 x 400 pixels has 12,500 bytes.

    file = open_spikes("000001.dat", SpikeGeometry(250, 400))
    file.planes                                  # T
    spikes = file.read(first=10, count=21)       # (21, 250, 400) uint8

Only the bytes of the wanted planes are read. A .npz is compressed, so all bytes before them are
read too. When a file is opened, its content is checked: text, images, archives and the lines of
an SPS100 sensor are refused, because as packed planes they would be noise.

What must stay, and which test notices (in tests/parts/data):

    the bytes of each format, and the meaning of
    every field of `SpikeGeometry`                  test_spike_formats.py
    published files are readable                    test_published_streams.py
    random bytes raise SpikeFileError, nothing else test_any_bytes.py

How the bytes of a crop are found and unpacked may change.
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
from typing import IO, Any, Literal, NoReturn

import numpy as np

from .arrays import PART, ArrayFile, find_array

FORMATS = (".dat", ".bin", ".npy", ".npz")
# Name of the array in a .npz.
NPZ_KEY = "spk"

PathLike = str | os.PathLike[str]

# Geometries of published data, most common first: (height, width, head columns). If a file does not
# fit the geometry of the user, the error names the geometries of this list that fit. A new one may
# be added. Nothing is read differently by it.
KNOWN_GEOMETRIES = (
    (250, 400, 0),  # Spike-Zoo, SpikeCV, Vidar
    (360, 640, 0),  # Spk-GoPro
    (250, 400, 16),  # as the first, with columns without image
    (180, 320, 0),  # S-SDM
    (384, 384, 0),  # Spk-X4K
    (256, 256, 0),
    (1000, 1000, 0),
    (1000, 1024, 0),
    (64, 64, 0),
)

# The SPS100 sensor has 1000 x 1000 pixels. A row is stored as two half-lines of 512 bits: 500
# pixels, then a word of 12 bits. A word has a line number, 1 ... 500, and a channel, 0 ... 3.
SPS100_SIDE = 1000  # rows of a plane, and pixels of a row
SPS100_HALF = 512  # bits of a half-line
SPS100_PIXELS = 500  # pixels of a half-line
SPS100_WORD = SPS100_HALF - SPS100_PIXELS  # bits of a word
SPS100_LINES = 500  # largest number in a word

# Beginnings of files that are no packed planes, as regular expressions -> name of the kind of file.
# Spikes are random bits, so a mark must be long: random bits of any firing rate match a mark with a
# probability below 1e-9. The first three bytes of a JPEG alone would be too short, because they
# would refuse two of 100,000 files of a bright scene. A new mark needs about as many fixed bits as
# the marks here.
MARKS = {
    rb"\x93NUMPY": "the header of a NumPy array (.npy)",
    # The fifth byte is ten times the version of the zip format, 1.0 to 6.3.
    rb"PK\x03\x04[\x0a-\x3f]\x00": "the header of a zip file (.npz)",
    rb"\x89PNG\r\n\x1a\n": "a PNG image",
    # The start of an image, then a segment of JFIF, Exif or Adobe, or a table of 67 or 132 bytes.
    rb"\xff\xd8\xff(\xe0..JFIF|\xe1..(Exif|http)|\xee..Adobe|\xdb\x00[\x43\x84])": "a JPEG image",
    # The method deflate, flags, four bytes of time, the level of compression, and the system.
    rb"\x1f\x8b\x08[\x00-\x1f].{4}[\x00\x02\x04][\x00-\x0d\xff]": "a file compressed with gzip",
    rb"(\xfd7zXZ\x00|7z\xbc\xaf\x27\x1c|Rar!\x1a\x07)": "an archive (xz, 7z or RAR)",
    rb"MATLAB 5\.0 MAT-file": "the header of a MATLAB file",
    rb"MATLAB 7\.3 MAT-file|\x89HDF\r\n\x1a\n": "the header of an HDF5 or MATLAB 7.3 file",
    rb"version https://git-lfs": "a pointer of Git LFS, whose file was not fetched",
}
# Number of bytes at the beginning of a file that are compared with the marks, which are shorter.
# The same bytes are tested for text: with fewer bytes, spikes would look like text more often.
HEAD_BYTES = 64


class SpikeFileError(ValueError):
    """A spike file does not have the expected form.

    The error has four parts: what is wrong, where, what was expected, and what to do. They are the
    parts of the errors in utils/errors.py, which this folder does not import: it needs numpy alone.
    """

    def __init__(self, what: str, where: str = "", expected: str = "", do: str = "") -> None:
        self.what = what
        self.where = where
        self.expected = expected
        self.do = do
        super().__init__(what, where, expected, do)

    def __str__(self) -> str:
        """Return the parts that are given, one a line."""
        lines = [self.what]
        parts = {"in": self.where, "expected": self.expected, "do": self.do}
        for name, text in parts.items():
            if text:
                # The texts begin in one column, because each name is filled up to 9 characters.
                lines.append(f"  {name:<9} {text}")
        return "\n".join(lines)


# ---- The form of a plane -----------------------------------------------------------------------


@dataclass(frozen=True, repr=False)
class SpikeGeometry:
    """The size and storage of packed planes, which the file does not contain.

    What must stay: names, order, defaults and meanings of the fields. Option files and dataset.json
    use them, and digests of runs hold the text of `__repr__`.
    """

    height: int  # pixels of a plane
    width: int
    # Whether rows are stored bottom first, as in all known files except files of an SPS100.
    flipud: bool = True
    # Columns without image at the end of each sensor line. A line of 416 columns has 400 columns of
    # image and 16 head columns. They are dropped when reading and written as zeros.
    head_columns: int = 0
    # The first pixel of a byte is its least significant bit ("little", as in all known files) or
    # its most significant bit ("big", the default of numpy.packbits).
    bit_order: Literal["little", "big"] = "little"
    # An SPS100 has 1000 x 1000 pixels in lines of 1024 bits. Each half of a line ends with a 12-bit
    # word (source: SpikeCV, load_dat.py and sps_parser.py). Files of an SPS100 are only read, not
    # written.
    layout: Literal["raster", "sps100"] = "raster"

    def __post_init__(self) -> None:
        """Raise SpikeFileError for sizes that no camera has."""
        expected = ""
        if self.height < 1 or self.width < 1 or self.head_columns < 0:
            expected = "sizes of at least 1 and head columns of at least 0"
        # There is one kind of SPS100, so its layout allows one value for each field.
        is_sps100_size = self.height == SPS100_SIDE and self.width == SPS100_SIDE
        is_sps100_line = self.head_columns == 0 and self.bit_order == "little"
        if self.layout == "sps100" and not (is_sps100_size and is_sps100_line):
            expected = (
                f"{SPS100_SIDE} x {SPS100_SIDE}, no head columns, bit order little for "
                "the layout sps100"
            )
        if expected:
            raise SpikeFileError(
                what=f"{self} is no plane of spikes",
                expected=expected,
                do="correct the size of the spike camera",
            )

    def __repr__(self) -> str:
        """Return the first four fields, and every other field that is not at its default.

        For example "SpikeGeometry(height=250, width=400, flipud=True, head_columns=0)".

        What must stay: this text, because digests of runs hold it. A new field comes at the end,
        with a default that means what was done before. Then the text of existing runs stays the
        same.
        """
        shown = []
        for index, field in enumerate(dataclasses.fields(self)):
            value = getattr(self, field.name)
            # The first four fields are always in the text.
            if index < 4 or value != field.default:
                shown.append(f"{field.name}={value!r}")
        return f"SpikeGeometry({', '.join(shown)})"

    @property
    def line_width(self) -> int:
        """Bits of a stored line."""
        if self.layout == "sps100":
            return 2 * SPS100_HALF
        return self.width + self.head_columns

    @property
    def plane_bytes(self) -> int:
        """Bytes of a packed plane.

        Raises SpikeFileError if its bits do not fill whole bytes.
        """
        bits = self.height * self.line_width
        if bits % 8:
            raise SpikeFileError(
                what=f"a spike plane of {self.height} x {self.line_width} pixels cannot be packed",
                expected="height x line width divisible by 8; .npy and .npz hold planes of any "
                "size",
                do="correct the size of the spike camera",
            )
        return bits // 8

    def as_raster(self) -> "SpikeGeometry":
        """Return the geometry of the same planes in a clip cache, packed row by row ("raster").

        For an SPS100 this drops the words that the camera writes into each line.
        """
        return dataclasses.replace(self, layout="raster")


@dataclass(frozen=True)
class Crop:
    """A rectangle in the pixels of an upright image (row 0 at the top).

    It may reach outside of an image. `SpikeFile.read` refuses such a crop.
    """

    top: int
    left: int
    height: int
    width: int

    @property
    def bottom(self) -> int:
        """The first row below the rectangle."""
        return self.top + self.height

    @property
    def right(self) -> int:
        """The first column to the right of the rectangle."""
        return self.left + self.width

    @property
    def slices(self) -> tuple[slice, slice]:
        """The rows and the columns of the rectangle, to index an array with."""
        return slice(self.top, self.bottom), slice(self.left, self.right)

    def as_list(self) -> list[int]:
        """Return [top, left, height, width], as the file of a calibration has a region."""
        return [self.top, self.left, self.height, self.width]

    def in_words(self) -> str:
        """Return the place for a message: "rows 0 to 9, columns 4 to 11", both included."""
        return f"rows {self.top} to {self.bottom - 1}, columns {self.left} to {self.right - 1}"


# ---- Reading -----------------------------------------------------------------------------------


@dataclass
class SpikeFile:
    """The planes of one file. Either `packed` or `array` is set."""

    path: str  # of the file, for error messages
    geometry: SpikeGeometry  # size and storage of the planes
    planes: int  # number of planes in the file
    packed: np.ndarray | None  # (T, plane_bytes) uint8, in memory or mapped. None for an array
    array: ArrayFile | None = None  # an array (T, h, w) of NumPy. None for packed planes

    @property
    def size(self) -> tuple[int, int]:
        """(height, width) of a plane."""
        return self.geometry.height, self.geometry.width

    def read(
        self, first: int = 0, count: int | None = None, crop: Crop | None = None
    ) -> np.ndarray:
        """Return the spikes (count, h, w) uint8 in {0, 1} of some planes, upright.

        first: number of the first plane. count: number of planes; None: to the end of the file.
        crop: the pixels to read; None: all.
        Raises SpikeFileError for planes or a crop outside of the file, and for values above 1.

        All spikes of training and testing come from here. What must stay: the planes of a crop are
        equal to the crop of the planes, whatever the format. test_spike_formats.py notices.
        """
        if count is None:
            count = self.planes - first
        if crop is None:
            height, width = self.size
            crop = Crop(top=0, left=0, height=height, width=width)
        self._check_planes(first, count)
        self._check_crop(crop)
        if self.packed is not None:
            return _unpack(self.packed[first : first + count], self.geometry, crop)
        assert self.array is not None  # a file is packed, or an array
        with _file_errors(self.path):
            spikes = self.array.read(first, count, *crop.slices)
        return self._as_spikes(spikes)

    def parts(self, first: int, count: int) -> Iterator[np.ndarray]:
        """Return an iterator over whole planes (t, h, w), at most PART planes at a time.

        So a long file never has to fit into memory.
        first: number of the first plane. count: number of planes.
        Raises SpikeFileError: for a wrong range of planes at once, for wrong content during the
        iteration.
        """
        self._check_planes(first, count)
        if self.array is not None:
            return self._parts_of_array(self.array, first, count)
        return self._parts_of_packed(first, count)

    def _parts_of_packed(self, first: int, count: int) -> Iterator[np.ndarray]:
        """Do the work of `parts` for packed planes."""
        end = first + count
        for start in range(first, end, PART):
            yield self.read(start, min(PART, end - start))

    def _parts_of_array(self, array: ArrayFile, first: int, count: int) -> Iterator[np.ndarray]:
        """Do the work of `parts` for an array."""
        with _file_errors(self.path):
            for part in array.parts(first, count):
                # Drop the head columns. Copy the planes, because the caller may change them.
                image = part[:, :, : self.geometry.width]
                yield self._as_spikes(np.array(image))

    def _as_spikes(self, array: np.ndarray) -> np.ndarray:
        """Return an array of uint8 or bool as spikes. Raises SpikeFileError for values above 1."""
        spikes = array.view(np.uint8)  # a bool is a byte of 0 or 1
        if spikes.max() > 1:
            raise SpikeFileError(
                what=f"the array holds the value {spikes.max()}",
                where=self.path,
                expected="values 0 and 1",
                do="save (array > 0) instead",
            )
        return spikes

    def _check_planes(self, first: int, count: int) -> None:
        """Raise SpikeFileError if planes first ... first + count - 1 are not all in the file."""
        if first < 0 or count < 1 or first + count > self.planes:
            raise SpikeFileError(
                what=f"planes {first} to {first + count - 1} were requested",
                where=self.path,
                expected=f"planes within 0 to {self.planes - 1}",
                do="request fewer, or make the file again",
            )

    def _check_crop(self, crop: Crop) -> None:
        """Raise SpikeFileError if a crop is empty or reaches outside of the plane."""
        height, width = self.size
        begins_inside = crop.top >= 0 and crop.left >= 0
        ends_inside = crop.bottom <= height and crop.right <= width
        is_empty = crop.height < 1 or crop.width < 1
        if is_empty or not begins_inside or not ends_inside:
            raise SpikeFileError(
                what=f"{crop} reaches outside the plane",
                where=self.path,
                expected=f"a rectangle within {height} x {width}",
            )


def open_spikes(path: PathLike, geometry: SpikeGeometry, remainder: str = "error") -> SpikeFile:
    """Open a file and check its content. No plane is unpacked yet.

    remainder: what happens to bytes after the last whole packed plane: "error" refuses them,
    "truncate" ignores them.
    Raises SpikeFileError for a missing file, a wrong size and content of another kind.
    """
    with _file_errors(path):
        if not is_array(path):
            return packed_planes(_map_bytes(path), path, geometry, remainder)
        # Only the header of the array is read here.
        array = find_array(Path(path), NPZ_KEY)
    _check_array(array, path, geometry)
    return SpikeFile(str(path), geometry, planes=array.shape[0], packed=None, array=array)


def _check_array(array: ArrayFile, path: PathLike, geometry: SpikeGeometry) -> None:
    """Raise SpikeFileError for an array of another type or shape than spikes have."""
    has_type_of_spikes = array.dtype in (np.uint8, np.bool_)
    if has_type_of_spikes and _has_shape(array.shape, geometry):
        return
    do = "correct the spike height and width, or save it in this form"
    if not has_type_of_spikes:
        do = "save it as (array > 0).astype(numpy.uint8)"
    raise SpikeFileError(
        what=f"an array of shape {array.shape}, {array.dtype}",
        where=str(path),
        expected=f"(planes >= 1, {geometry.height}, {geometry.width}), uint8 or bool, "
        "values 0 and 1",
        do=do,
    )


def _has_shape(shape: tuple[int, ...], geometry: SpikeGeometry) -> bool:
    """Return whether an array has the shape (T >= 1, h, w) of planes, or of whole sensor lines.

    A sensor line may be longer than a row of the plane: after the row it has columns without image.
    """
    if len(shape) != 3:
        return False
    planes, height, width = shape
    fits_width = width in (geometry.width, geometry.line_width)
    return planes > 0 and height == geometry.height and fits_width


def _map_bytes(path: PathLike) -> np.ndarray:
    """Map a file into memory. Returns its bytes as uint8.

    np.memmap is not used, because it would ask for the state of the file three times, which takes
    time over a network.
    """
    # Without O_NONBLOCK, opening a pipe would wait until somebody writes into it.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        # The length 0 maps the whole file.
        mapped = mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
        return np.frombuffer(mapped, np.uint8)
    except ValueError:
        # An empty file cannot be mapped.
        return np.empty(0, np.uint8)
    except OSError:
        # Mapping a folder fails with a text that does not name the cause. Say that it is a folder.
        if os.path.isdir(path):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path)) from None
        # A pipe or a device has no planes. The caller refuses 0 bytes, and names the size that it
        # expected.
        if not os.path.isfile(path):
            return np.empty(0, np.uint8)
        raise
    finally:
        # The mapping stays valid after this.
        os.close(descriptor)


def read_spikes(
    path: PathLike,
    geometry: SpikeGeometry,
    first: int = 0,
    count: int | None = None,
    crop: Crop | None = None,
    remainder: str = "error",
) -> np.ndarray:
    """Call `open_spikes` and `SpikeFile.read`. Returns spikes (T, h, w) uint8 in {0, 1}."""
    return open_spikes(path, geometry, remainder).read(first, count, crop)


def count_planes(
    path: PathLike, geometry: SpikeGeometry, remainder: str = "error", size: int | None = None
) -> int:
    """Return the number of planes in a file.

    For packed planes in the layout "raster", the number follows from the size of the file, so the
    file is not opened. An array says its number of planes in its header. In the layout "sps100",
    the planes begin at a byte that must be found in the content.

    size: size of the file in bytes, if the caller knows it already.
    Raises SpikeFileError.
    """
    if is_array(path) or geometry.layout != "raster":
        return open_spikes(path, geometry, remainder).planes
    with _file_errors(path):
        if size is None:
            size = os.stat(path).st_size
        return _planes_in(size, path, geometry, remainder)


def is_array(path: PathLike) -> bool:
    """Return whether a file holds an array, not packed planes."""
    return Path(path).suffix.lower() in (".npy", ".npz")


def array_shape(path: PathLike) -> tuple[int, ...] | None:
    """Return (T, h, w) of a file that holds an array, or None for packed planes.

    The shape says the size of a plane before the caller knows a geometry.
    Raises SpikeFileError as `open_spikes`.
    """
    if not is_array(path):
        return None
    with _file_errors(path):
        return find_array(Path(path), NPZ_KEY).shape


@contextmanager
def _file_errors(path: PathLike) -> Generator[None]:
    """Turn errors of a missing, unreadable or damaged file in the block into a SpikeFileError.

    The listed classes are what numpy, zipfile and zlib raise for damaged files. Whoever reads the
    bytes in another way checks the list with tests/parts/data/test_any_bytes.py.
    """
    try:
        yield
    except SpikeFileError:
        # A SpikeFileError is a ValueError, which would be wrapped again below.
        raise
    except (
        OSError,
        zipfile.BadZipFile,
        zlib.error,
        EOFError,
        ValueError,
        NotImplementedError,
    ) as e:
        # str() of an OSError also names the file, which is in `where` already. So take its
        # `strerror`, which may be None.
        reason = str(e)
        if isinstance(e, OSError) and e.strerror:
            reason = e.strerror
        raise SpikeFileError(
            what=f"cannot read spike file: {reason}",
            where=str(path),
            expected=f'packed planes, or an array (planes, h, w); in a .npz named "{NPZ_KEY}", or '
            "the only one of 3 axes",
            do="restore the file, or save the array again",
        ) from e


# ---- Writing -----------------------------------------------------------------------------------


def write_spikes(
    path: PathLike, spikes: np.ndarray | Iterable[np.ndarray], geometry: SpikeGeometry
) -> None:
    """Write spikes in the format of the path's suffix.

    spikes: (T, H, W) in {0, 1}, or an iterable of parts (t, H, W). Of the parts, only one at a time
    is in memory.
    The file appears complete or not at all, because it is written under another name and renamed at
    the end. Raises SpikeFileError for spikes of another size.
    """
    path = Path(path)
    parts = [spikes] if isinstance(spikes, np.ndarray) else spikes
    # A hidden file in the same folder: ".000001.dat.3f2a9c01". The module tempfile would ignore the
    # umask of the user, so other users could not read the result.
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}")
    try:
        # "x": refuse a file of this name. "+": the header of a .npy is written a second time.
        with open(temporary, "x+b") as file:
            suffix = path.suffix.lower()
            if suffix == ".npz":
                _write_zip(file, parts, geometry, folder=path.parent)
            elif suffix == ".npy":
                _write_array(file, parts, geometry)
            else:
                for part in parts:
                    file.write(pack(part, geometry).tobytes())
        os.replace(temporary, path)
    except BaseException:
        # Also after Ctrl-C: leave no half-written file.
        temporary.unlink(missing_ok=True)
        raise


def _write_zip(
    file: IO[bytes], parts: Iterable[np.ndarray], geometry: SpikeGeometry, folder: Path
) -> None:
    """Write parts (t, H, W) as the one array of a .npz.

    folder: where a temporary file may be written, as large as the array.

    np.savez_compressed needs a whole array, which may not fit into memory. So the parts are first
    written to a file without a name. This file is then mapped, which looks like a whole array.
    """
    with tempfile.TemporaryFile(dir=folder) as array_file:
        start, shape = _write_array(array_file, parts, geometry)
        array_file.flush()
        array = np.memmap(array_file, np.uint8, mode="r", offset=start, shape=shape)
        arrays: dict[str, Any] = {NPZ_KEY: array}
        np.savez_compressed(file, **arrays)


def _write_array(
    file: IO[bytes], parts: Iterable[np.ndarray], geometry: SpikeGeometry
) -> tuple[int, tuple[int, int, int]]:
    """Write parts (t, H, W) as one array of a .npy.

    Returns the byte at which the values begin, and the shape (T, H, W) of the array.
    """
    # T is not known yet, so write a header with T = 0 first. "|u1" means uint8.
    unknown_shape = (0, geometry.height, geometry.width)
    header = {"descr": "|u1", "fortran_order": False, "shape": unknown_shape}
    np.lib.format.write_array_header_1_0(file, header)
    start = file.tell()
    planes = 0
    for part in parts:
        _check_shape(part, geometry)
        spikes = np.ascontiguousarray(part != 0).view(np.uint8)
        file.write(spikes.tobytes())
        planes += len(part)
    # Now T is known: write the header again. Its length stays the same, because NumPy pads it.
    shape = (planes, geometry.height, geometry.width)
    file.seek(0)
    np.lib.format.write_array_header_1_0(file, header | {"shape": shape})
    return start, shape


# ---- Packed planes -----------------------------------------------------------------------------


def packed_planes(
    content: bytes | np.ndarray, path: PathLike, geometry: SpikeGeometry, remainder: str = "error"
) -> SpikeFile:
    """Return the planes in the content of a packed file, such as a value of an LMDB.

    content: bytes, or an array (n,) uint8. path: for messages.
    remainder: what happens to bytes after the last whole plane: "error" refuses them, "truncate"
    ignores them.
    Raises SpikeFileError for a wrong size and for content of another kind.
    """
    data = np.frombuffer(content, np.uint8) if isinstance(content, bytes) else content
    refuse_header(data[:HEAD_BYTES].tobytes(), path)
    # The byte at which the first plane of an SPS100 starts, or None. Look for it also if the layout
    # is raster, because a raster reader would take the words of the sensor for pixels.
    sps100_start = None
    if SPS100_SIDE in (geometry.height, geometry.width):
        sps100_start = _sps100_start(data)
    if geometry.layout == "sps100":
        if sps100_start is None:
            _refuse_file_without_words(len(data), path, geometry)
        data = data[sps100_start:]
        planes = len(data) // geometry.plane_bytes
    else:
        if sps100_start is not None:
            _refuse_words_in_raster(sps100_start, path)
        planes = _planes_in(len(data), path, geometry, remainder)
    # Bytes after the last whole plane are left out.
    whole = data[: planes * geometry.plane_bytes]
    packed = whole.reshape(planes, geometry.plane_bytes)
    return SpikeFile(str(path), geometry, planes=planes, packed=packed)


def refuse_header(head: bytes, path: PathLike) -> None:
    """Raise SpikeFileError if a file begins with a header or with text.

    head: the first HEAD_BYTES bytes of the file. Packed planes have no header.
    """
    seen = _content_of(head)
    if not seen:
        return
    do = "give it its own suffix (.npy, .npz), restore the file, or cut off its header"
    if "MATLAB" in seen:
        do = "save its planes as an array (planes, h, w) of uint8 in a .npy file"
    raise SpikeFileError(
        what=f"the file begins with {seen}: {head[:24]!r}",
        where=str(path),
        expected="packed planes, which have no header",
        do=do,
    )


def _content_of(head: bytes) -> str:
    """Return what the first bytes of a file show, e.g. "a PNG image"; "" for packed planes."""
    for mark, kind in MARKS.items():
        if re.match(mark, head, re.DOTALL):
            return kind
    return "text" if _is_text(head) else ""


def _is_text(head: bytes) -> bool:
    """Return whether bytes are printable text with more than 6 different characters.

    With at most 6 different characters, the bytes may be spikes: planes of an even scene repeat a
    few bytes, and these bytes may be codes of characters
    (test_planes_of_an_even_scene_may_consist_of_codes_of_letters). With a larger limit, short texts
    such as a table of numbers would be read as spikes.
    """
    if len(set(head)) <= 6:
        return False
    # The printable characters of ASCII have the codes 32 ... 126.
    return all(32 <= byte < 127 or byte in b"\t\r\n" for byte in head)


def _planes_in(size: int, path: PathLike, geometry: SpikeGeometry, remainder: str) -> int:
    """Return the number of raster planes in a file of `size` bytes.

    Raises SpikeFileError if there is no whole plane, and for bytes after the last whole plane
    unless `remainder` is "truncate", which leaves these bytes out.
    """
    planes, bytes_left = divmod(size, geometry.plane_bytes)
    fits = bytes_left == 0 or remainder == "truncate"
    if planes and fits:
        return planes

    shape = f"{geometry.height} x {geometry.line_width}"
    content = f"no plane of {shape}"
    if planes:
        content = f"{planes} planes of {shape} and {bytes_left} bytes more"
    raise SpikeFileError(
        what=f"spike file of {size} bytes holds {content}",
        where=str(path),
        expected=f"a multiple of {geometry.plane_bytes} bytes; known geometries that fit this "
        f"size: {_known_geometries_of(size)}",
        do="copy the file again, or correct the spike height and width",
    )


def _known_geometries_of(size: int) -> str:
    """Return the published cameras with planes that fill a file of `size` bytes, for a message.

    E.g. "250 x 400 (8 planes), 250 x 400 + 16 head columns (...)", or "none". Head columns are
    columns without image at the end of each line (`SpikeGeometry.head_columns`).
    """
    if size == 0:
        return "none"
    fitting = []
    for height, width, head_columns in KNOWN_GEOMETRIES:
        bits_of_plane = height * (width + head_columns)
        planes_of_camera, bits_left = divmod(8 * size, bits_of_plane)
        if bits_left == 0:
            columns = f" + {head_columns} head columns" if head_columns else ""
            fitting.append(f"{height} x {width}{columns} ({planes_of_camera} planes)")
    return ", ".join(fitting) or "none"


def _refuse_file_without_words(size: int, path: PathLike, geometry: SpikeGeometry) -> NoReturn:
    """Raise SpikeFileError for a file of layout "sps100" in which no line starts a plane.

    Each half of a line of an SPS100 sensor ends with a word, which has the number of the line.
    `_sps100_start` finds the start of a plane by these words.

    size: number of bytes of the file.
    """
    raise SpikeFileError(
        what=f"no plane of an SPS100 in {size} bytes: no word of line 500, channel "
        "0, with others after it",
        where=str(path),
        expected=f"lines of 1024 bits with the sensor's words, {geometry.plane_bytes} "
        "bytes per plane",
        do='check it; "raster" is the layout without these words',
    )


def _refuse_words_in_raster(start: int, path: PathLike) -> NoReturn:
    """Raise SpikeFileError for the file of an SPS100 that is read as raster planes.

    The words at the ends of its half-lines would be taken for pixels.
    start: the byte at which the first whole plane starts.
    """
    raise SpikeFileError(
        what="the lines of the file end with words of an SPS100 sensor (the first plane "
        f"starts at byte {start})",
        where=str(path),
        expected="raster planes, without words among the pixels",
        do="use the layout sps100 with planes of 1000 x 1000 (spike.layout, --layout), no "
        "head columns",
    )


def _sps100_start(data: np.ndarray) -> int | None:
    """Return the first byte of the first whole SPS100 plane in packed bytes.

    Returns None if the bytes are no planes of an SPS100.

    A plane has 1000 rows of 1000 pixels. A row is stored as two half-lines of 500 pixels, so a
    plane has 2000 half-lines. The last 12 bits of a half-line are its word. The word has one of 500
    line numbers and one of 4 channels: 500 * 4 = 2000 different words, one for each half-line. (So
    the line of a word is not the row of the plane.)

    The last two bytes of each half-line are a little-endian number of 16 bits:

        bits 0 ... 3     pixels
        bits 4 ... 13    number of the line, 1 ... 500
        bits 14 and 15   channel, 0 ... 3

    The first half-line of a plane has line 500 and channel 0. The last whole plane must start with
    the same word as the first plane, so that one plane of random bits is not enough.
    test_a_capture_of_the_sps100_may_start_within_a_plane notices a wrong start.
    """
    half_bytes = SPS100_HALF // 8  # bytes of a half-line, 64
    halves_of_plane = 2 * SPS100_SIDE  # half-lines of a plane, 2000
    plane_bytes = half_bytes * halves_of_plane  # 128,000
    # A capture may start within a half-line, at a multiple of 16 bytes. So try the four places of a
    # half-line of 64 bytes at which the file may start.
    for shift in range(0, half_bytes, 16):
        one_plane = data[shift : shift + plane_bytes]
        if len(one_plane) < plane_bytes:
            return None
        half_lines = one_plane.reshape(halves_of_plane, half_bytes)
        half_line = _start_among_half_lines(half_lines)  # number of the half-line, or None
        if half_line is None:
            continue
        first = shift + half_bytes * half_line  # first byte of the first whole plane
        planes = (len(data) - first) // plane_bytes
        if not planes:
            continue
        start_of_last = first + (planes - 1) * plane_bytes
        if _is_start_of_plane(data[start_of_last : start_of_last + half_bytes]):
            return first
    return None


def _start_among_half_lines(half_lines: np.ndarray) -> int | None:
    """Return which of 2000 half-lines starts a plane of an SPS100, or None if they have no words.

    half_lines: (2000, 64) uint8. `_sps100_start` explains their words. Every half-line needs a line
    number in 1 ... 500, and 2000 half-lines contain exactly one start of a plane.
    """
    # A copy has no other bytes between its rows. NumPy before 1.23 needs this for `view`, which
    # takes each two bytes as one number.
    last_two_bytes = half_lines[:, -2:].copy()  # (2000, 2)
    words = last_two_bytes.view("<u2")[:, 0]  # (2000,), 16 bits each
    line = (words >> 4) & 0x3FF  # 10 bits
    channel = words >> 14
    is_line = (line >= 1) & (line <= SPS100_LINES)
    is_first_of_plane = (line == SPS100_LINES) & (channel == 0)
    starts = np.flatnonzero(is_first_of_plane)
    if not is_line.all() or len(starts) != 1:
        return None
    return int(starts[0])


def _is_start_of_plane(half_line: np.ndarray) -> bool:
    """Return whether a half-line (64,) uint8 of an SPS100 has line 500 and channel 0.

    The 16 bits of line 500 and channel 0 are 500 << 4 = 0x1F40, stored as the bytes 0x40, 0x1F. The
    mask sets the lowest 4 bits to 0, because they are pixels.
    """
    word = half_line[-2:] & [0xF0, 0xFF]
    return np.array_equal(word, [0x40, 0x1F])


def _unpack(packed: np.ndarray, geometry: SpikeGeometry, crop: Crop) -> np.ndarray:
    """Turn packed planes (T, plane_bytes) uint8 into the spikes (T, h, w) uint8 of a crop.

    Only the bytes of the crop are unpacked, which saves time and memory: the unpacked spikes take
    eight times as many bytes, one for each bit of the file.

    What must stay: the spikes. test_spike_formats.py compares all forms of files with the
    definition at the top of the module.
    """
    if geometry.layout == "sps100":
        return _unpack_sps100(packed, geometry, crop)
    planes = packed.shape[0]
    line_bits = geometry.line_width
    # The stored rows of the crop: row ... end_row - 1. Rows stored bottom first begin at the bottom
    # of the image. E.g. the rows 0 and 1 of 250 rows are the stored rows 248 and 249.
    row = crop.top
    if geometry.flipud:
        row = geometry.height - crop.top - crop.height
    end_row = row + crop.height

    if line_bits % 8 == 0:
        # Each line is a whole number of bytes: take the bytes that hold the columns of the crop.
        # E.g. the columns 10 ... 29 are in the bytes 1 ... 3. Byte 1 begins with column 8, so the
        # crop begins 2 bits later.
        first_byte = crop.left // 8
        end_byte = _bytes_of(crop.left + crop.width)
        lines = packed.reshape(planes, geometry.height, line_bits // 8)  # (T, H, bytes)
        window = np.ascontiguousarray(lines[:, row:end_row, first_byte:end_byte])
        rows = np.unpackbits(window, axis=-1, bitorder=geometry.bit_order)  # (T, h, bits)
        left = crop.left % 8
    else:
        rows = _unpack_lines(packed, geometry, row, end_row)  # (T, h, line_bits)
        left = crop.left
    if geometry.flipud:
        rows = rows[:, ::-1]
    return rows[:, :, left : left + crop.width]


def _unpack_lines(
    packed: np.ndarray, geometry: SpikeGeometry, row: int, end_row: int
) -> np.ndarray:
    """Unpack the stored lines row ... end_row - 1 of planes if lines do not end on a byte.

    packed: (T, plane_bytes) uint8. Returns (T, lines, bits of a line) uint8.

    E.g. lines of 12 bits: line 1 has the bits 12 ... 23 of a plane, which are in the bytes 1 and 2.
    The first 4 bits of byte 1 belong to line 0, so they are dropped.
    """
    line_bits = geometry.line_width
    first_bit = row * line_bits
    end_bit = end_row * line_bits
    first_byte = first_bit // 8
    end_byte = _bytes_of(end_bit)
    window = np.ascontiguousarray(packed[:, first_byte:end_byte])
    bits = np.unpackbits(window, axis=-1, bitorder=geometry.bit_order)  # (T, bits)
    # Drop the bits of other lines in the first and in the last byte.
    bits = bits[:, first_bit % 8 :]
    bits = bits[:, : end_bit - first_bit]
    return bits.reshape(len(packed), end_row - row, line_bits)


def _bytes_of(bits: int) -> int:
    """Return the number of bytes that hold a number of bits: 16 -> 2, 17 -> 3."""
    return (bits + 7) // 8


def _unpack_sps100(packed: np.ndarray, geometry: SpikeGeometry, crop: Crop) -> np.ndarray:
    """Unpack the crop of planes of an SPS100.

    A line is stored as 500 pixels, a word of 12 bits, 500 pixels, a word. So the line is unpacked
    as a raster line of 1024 bits, in which a column of the second half is 12 bits further right:
    column 600 is bit 612. The columns of the crop in both halves are put side by side.
    """
    # The same planes as raster planes of 1024 columns, words included.
    as_raster = SpikeGeometry(geometry.height, geometry.line_width, geometry.flipud)
    crop_end = crop.left + crop.width
    halves = []
    # The first column of each half-line, and the bits of words before this column.
    for first_column, bits_before in ((0, 0), (SPS100_PIXELS, SPS100_WORD)):
        # The columns left ... right - 1 of the crop are in this half.
        left = max(crop.left, first_column)
        right = min(crop_end, first_column + SPS100_PIXELS)
        if left < right:
            columns = Crop(
                top=crop.top, left=left + bits_before, height=crop.height, width=right - left
            )
            halves.append(_unpack(packed, as_raster, columns))
    return np.concatenate(halves, axis=2)


def pack(spikes: np.ndarray, geometry: SpikeGeometry) -> np.ndarray:
    """Turn spikes (T, H, W) in {0, 1} into packed planes (T, plane_bytes) uint8, as in a `.dat`.

    This is the inverse of `_unpack` for raster planes.
    """
    _check_shape(spikes, geometry)
    rows = spikes[:, ::-1] if geometry.flipud else spikes
    if geometry.head_columns:
        # Zeros at the right end of each line.
        zeros_at_right = (0, geometry.head_columns)
        rows = np.pad(rows, ((0, 0), (0, 0), zeros_at_right))  # (T, H, line width)
    bits = rows.reshape(len(rows), 8 * geometry.plane_bytes) != 0
    return np.packbits(bits, axis=-1, bitorder=geometry.bit_order)


def _check_shape(spikes: np.ndarray, geometry: SpikeGeometry) -> None:
    """Raise SpikeFileError for an array that is not (T >= 1, H, W)."""
    size = (geometry.height, geometry.width)
    if spikes.ndim != 3 or spikes.shape[1:] != size or not len(spikes):
        raise SpikeFileError(
            what=f"spikes of shape {spikes.shape}",
            expected=f"(planes >= 1, {geometry.height}, {geometry.width})",
        )

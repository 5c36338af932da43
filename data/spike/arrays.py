"""Read arrays of spikes from files of NumPy, for formats.py and spike_file.py.

    array = find_array(Path("clip.npz"), "spk")       # reads only the header
    array.shape                                       # (planes, h, w)
    array.read(10, 21, slice(0, 64), slice(0, 64))    # (21, 64, 64)

A .npy is mapped into memory, so only the bytes that are used are read from the disk. A .npz is a
zip file. A small array in it is unpacked once and kept in memory. A large array is unpacked again
for each read, up to the last plane that is wanted.

The header of an array states its shape, and so its number of bytes. Before the values are read,
this number is compared with the size of the file.

What must stay: the comparison of the two sizes, because a header may state an array of any size,
and a few compressed bytes may unpack to gigabytes. Without the comparison, a small file could fill
the memory (test_an_npz_of_many_arrays_is_refused and the tests near it in
test_small_hostile_files.py).
Free to change: how much is kept in memory, and how many planes are read at once.

Tests: tests/parts/data/test_spike_formats.py, tests/parts/data/test_small_hostile_files.py (small
files of huge arrays)
"""

import io
import math
import zipfile
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

# The header is looked for in this many bytes at the beginning of a file. The number is large
# enough, because a file has up to 12 bytes before the header, and NumPy refuses headers of more
# than 10,000 bytes. (headers.py has another constant HEAD_BYTES, for packed files.)
HEAD_BYTES = 2**14
# Arrays of a .npz up to this size (64 MiB, chosen by hand) are kept in memory. Larger arrays are
# unpacked again for each read. If they were kept, a loader process that reads many files would fill
# the memory.
MOST_BYTES_KEPT = 2**26
# A .npz with more arrays than this is refused if it has no array of the expected name. The reason:
# the header of each array must be unpacked, which would take long. The number is chosen by hand.
MOST_ARRAYS = 100
# Largest number of planes that are in memory at once if a file is read in parts. More planes need
# more memory, and fewer planes need more steps in Python. The number is chosen by hand.
PART = 64


@dataclass
class ArrayFile:
    """An array (planes, h, w) of a file."""

    path: Path  # path of the .npy or .npz
    shape: tuple[int, ...]
    dtype: np.dtype
    start: int  # number of the byte at which the values begin, in the .npy or in the member
    # Whether the values are in the order of Fortran, i.e. the first axis varies fastest. If so, the
    # bytes of a plane are spread over the whole file.
    is_fortran: bool
    member: str | None = None  # name of the array within a .npz, such as "spk"; None for a .npy
    # The whole array. `_whole_array` sets it when it has mapped or unpacked the array.
    _whole: np.ndarray | None = field(default=None, repr=False)

    def read(self, first: int, count: int, rows: slice, columns: slice) -> np.ndarray:
        """Return a copy of the rows and columns of planes first ... first + count - 1.

        Returns (count, h, w), in C order.
        Raises OSError, ValueError, and the errors of zipfile and zlib for a damaged file.
        """
        whole = self._whole_array()
        if whole is not None:
            return np.array(whole[first : first + count, rows, columns], order="C")
        _, plane_height, plane_width = self.shape
        crop_size = (_length_of(rows, plane_height), _length_of(columns, plane_width))
        planes = np.empty((count, *crop_size), self.dtype)
        done = 0  # number of planes that are read already
        for part in self.parts(first, count):
            planes[done : done + len(part)] = part[:, rows, columns]
            done += len(part)
        return planes

    def parts(self, first: int, count: int) -> Iterator[np.ndarray]:
        """Yield planes first ... first + count - 1, at most PART at a time: (n, h, w).

        Raises OSError, ValueError, and the errors of zipfile and zlib for a damaged file.

        Test: test_a_large_npz_gives_the_planes_of_its_array
        """
        whole = self._whole_array()
        if whole is not None:
            end = first + count
            for begin in range(first, end, PART):
                yield whole[begin : min(begin + PART, end)]
            return
        _, height, width = self.shape
        plane_bytes = height * width  # values are bytes: uint8 or bool
        with self._opened() as file:
            file.seek(self.start + first * plane_bytes)
            for begin in range(0, count, PART):
                planes = min(PART, count - begin)
                data = file.read(planes * plane_bytes)
                if len(data) < planes * plane_bytes:
                    raise ValueError("the array is cut short")
                yield np.frombuffer(data, self.dtype).reshape(planes, height, width)

    def _whole_array(self) -> np.ndarray | None:
        """Return the whole array, or None if it is too large to keep in memory.

        There are three cases:

            a .npy                 mapped into memory
            a small array (.npz)   unpacked into memory. It has at most MOST_BYTES_KEPT bytes
            a large array (.npz)   None. Its planes are unpacked again for each read

        Raises ValueError for a large array in the order of Fortran, because its planes cannot be
        unpacked one after the other.
        """
        if self._whole is not None:
            return self._whole
        order: Any = "F" if self.is_fortran else "C"
        if self.member is None:
            # The system reads the mapped bytes when they are used.
            self._whole = np.memmap(
                self.path,
                self.dtype,
                mode="r",
                offset=self.start,
                shape=self.shape,
                order=order,
            )
        elif math.prod(self.shape) <= MOST_BYTES_KEPT:  # one value is one byte (uint8 or bool)
            with self._opened() as file:
                file.seek(self.start)
                data = np.frombuffer(file.read(), self.dtype)
            self._whole = data.reshape(self.shape, order=order)
        elif self.is_fortran:
            raise ValueError(
                "its first axis varies fastest; save it again with numpy.ascontiguousarray(array)"
            )
        return self._whole

    @contextmanager
    def _opened(self) -> Generator[IO[bytes]]:
        """Open the member of a .npz, e.g. spk.npy in clip.npz."""
        with zipfile.ZipFile(self.path) as archive, archive.open(f"{self.member}.npy") as file:
            yield file


def find_array(path: Path, name: str) -> ArrayFile:
    """Return the array of a .npy or of a .npz, without reading its values.

    A .npz may have several arrays. The array called `name` is returned. If no array has this name,
    the only array with three axes is returned.

    Only the headers are read: the beginning of a .npy, or of arrays in a .npz.
    Raises OSError, ValueError, and the errors of zipfile and zlib for a damaged file.
    """
    if path.exists() and not path.is_file():
        raise ValueError("it is a folder, a device or a pipe")
    if path.suffix.lower() == ".npy":
        with open(path, "rb") as file:
            return _array_in(path, file.read(HEAD_BYTES), path.stat().st_size)

    arrays = _arrays_of_zip(path, name)
    if name in arrays:  # The array may have any shape, because the caller checks the shape.
        return arrays[name]
    with_three_axes = [array for array in arrays.values() if len(array.shape) == 3]
    if len(with_three_axes) != 1:
        seen = ", ".join(f"{key} {array.shape} {array.dtype}" for key, array in arrays.items())
        raise ValueError(f"it holds {seen or 'no array'}")
    return with_three_axes[0]


def _arrays_of_zip(path: Path, name: str) -> dict[str, ArrayFile]:
    """Return {name: array} of a .npz. If it has the array `name`, return only this array.

    Raises ValueError if there are too many arrays, or if an array is compressed in a way that NumPy
    does not use.
    """
    arrays = {}
    with zipfile.ZipFile(path) as archive:
        infos = {info.filename: info for info in archive.infolist()}
        # Each array is a file of the archive, such as "spk.npy". If the archive has the expected
        # array, the other arrays are not opened.
        if f"{name}.npy" in infos:
            file_names = [f"{name}.npy"]
        else:
            file_names = [file_name for file_name in infos if file_name.endswith(".npy")]
        if len(file_names) > MOST_ARRAYS:
            raise ValueError(f"it holds {len(file_names)} arrays")
        for file_name in file_names:
            info = infos[file_name]
            _check_compression(info)
            with archive.open(file_name) as file:
                head = file.read(HEAD_BYTES)
            array_name = file_name.removesuffix(".npy")
            arrays[array_name] = _array_in(path, head, info.file_size, array_name)
    return arrays


def _array_in(path: Path, head: bytes, size: int, member: str | None = None) -> ArrayFile:
    """Return the array that a header describes.

    head: the first HEAD_BYTES of the .npy, or of the unpacked array of a .npz.
    size: number of bytes of the .npy, or of the unpacked array of a .npz.
    member: name of the array within a .npz; None for a .npy.
    Raises ValueError if the header is damaged or states more bytes than there are.

    Test: test_the_header_of_an_array_with_nonsense_is_refused
    """
    try:
        header = _read_header(head)
        bytes_of_values = math.prod(header.shape) * header.dtype.itemsize
    except Exception as e:
        # NumPy evaluates the header as Python, so a damaged header may raise any error. Some texts
        # of errors are pages long, so only the beginning is shown.
        first_line = str(e).partition("\n")[0]
        reason = first_line[:200] or type(e).__name__
        raise ValueError(f"the header of the array is damaged: {reason}") from e
    if header.dtype.hasobject:
        raise ValueError("the array holds Python objects")
    if header.start + bytes_of_values > size:
        raise ValueError(
            f"an array of shape {header.shape}, {header.dtype}, in {size} bytes: it is cut short"
        )
    return ArrayFile(
        path,
        shape=header.shape,
        dtype=header.dtype,
        start=header.start,
        is_fortran=header.is_fortran,
        member=member,
    )


def _length_of(part: slice, length: int) -> int:
    """Return how many of `length` rows a slice selects. E.g. 0:64 selects 40 of 40 rows."""
    return len(range(length)[part])


class _Header(NamedTuple):
    """The values in the header of an array."""

    shape: tuple[int, ...]
    is_fortran: bool  # whether the first axis varies fastest (the order of Fortran)
    dtype: np.dtype
    start: int  # number of the byte after the header, at which the values begin


def _read_header(head: bytes) -> _Header:
    """Read the header of a .npy. Raises whatever NumPy raises for a damaged header.

    head: the beginning of the file.
    """
    file = io.BytesIO(head)
    # Version 1 states the length of the header in 2 bytes, and versions 2 and 3 in 4 bytes.
    version, _ = np.lib.format.read_magic(file)
    if version == 1:
        shape, is_fortran, dtype = np.lib.format.read_array_header_1_0(file)
    else:
        shape, is_fortran, dtype = np.lib.format.read_array_header_2_0(file)
    # NumPy accepts any tuple as a shape. `type` is compared, because isinstance(True, int) is true.
    if not all(type(length) is int and length >= 0 for length in shape):
        raise ValueError("a negative length")
    return _Header(shape, is_fortran, dtype, start=file.tell())


def _check_compression(info: zipfile.ZipInfo) -> None:
    """Raise ValueError if an array of a .npz is compressed in a way that NumPy does not use.

    bzip2 and LZMA could unpack a few bytes to gigabytes.

    Test: test_an_npz_of_another_compression_is_refused
    """
    is_encrypted = info.flag_bits & 1  # bit 0 of the flags, by the definition of zip files
    if is_encrypted:
        raise ValueError("it is encrypted")
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ValueError("it is compressed in a way that NumPy does not read")

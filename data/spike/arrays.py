"""Arrays of spikes in files of NumPy: a .npy is mapped, a .npz unpacked up to what is asked for.

The header of an array tells its size. It is compared with the size of the file before anything is
read, because a small file may state, or unpack to, more than the memory holds.
"""

import io
import math
import zipfile
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np

# NumPy's own limit for headers is 10,000 bytes; before them stand up to 12.
HEAD_BYTES = 2**14
# Larger arrays of a .npz are not kept in memory, but decompressed again up to the planes asked for.
KEPT_BYTES = 2**26
# Of a .npz that has no array named as it should be.
MOST_ARRAYS = 100
PART = 64  # planes in memory at once, where a file is read in parts


@dataclass
class ArrayFile:
    """An array (planes, h, w) of a file.

    start: number of the byte, in the file or the member, at which the array begins.
    is_fortran: whether the first axis varies fastest.
    member: name of the array within a .npz; None for a .npy.
    """

    path: Path
    shape: tuple[int, ...]
    dtype: np.dtype
    start: int
    is_fortran: bool
    member: str | None = None
    _whole: np.ndarray | None = field(default=None, repr=False)

    def read(self, first: int, count: int, rows: slice, columns: slice) -> np.ndarray:
        """Return a copy of the rows and columns of some planes, (count, h, w).

        Raises OSError, ValueError, and what zipfile and zlib raise for a damaged file.
        """
        whole = self._kept()
        if whole is not None:
            return np.array(whole[first : first + count, rows, columns], order="C")
        _, height, width = self.shape
        plane = np.broadcast_to(np.empty((), self.dtype), (height, width))[rows, columns]
        found = np.empty((count, *plane.shape), self.dtype)
        at = 0
        for part in self.parts(first, count):
            found[at : at + len(part)] = part[:, rows, columns]
            at += len(part)
        return found

    def parts(self, first: int, count: int) -> Iterator[np.ndarray]:
        """Yield whole planes in parts of at most PART planes. Raises as `read`."""
        whole = self._kept()
        if whole is not None:
            for begin in range(first, first + count, PART):
                yield whole[begin : min(begin + PART, first + count)]
            return
        plane_bytes = math.prod(self.shape[1:])
        with self._opened() as file:
            file.seek(self.start + first * plane_bytes)
            for begin in range(0, count, PART):
                planes = min(PART, count - begin)
                data = file.read(planes * plane_bytes)
                if len(data) < planes * plane_bytes:
                    raise ValueError("the array is cut short")
                yield np.frombuffer(data, self.dtype).reshape(planes, *self.shape[1:])

    def _kept(self) -> np.ndarray | None:
        """Return the whole array, mapped or in memory; None if it is too large for the memory."""
        if self._whole is None and self.member is None:
            order: Any = "F" if self.is_fortran else "C"
            self._whole = np.memmap(self.path, self.dtype, "r", self.start, self.shape, order)
        elif self._whole is None and math.prod(self.shape) <= KEPT_BYTES:
            with self._opened() as file:
                file.seek(self.start)
                data = np.frombuffer(file.read(), self.dtype)
            self._whole = data.reshape(self.shape, order="F" if self.is_fortran else "C")
        elif self._whole is None and self.is_fortran:
            raise ValueError(
                "its first axis varies fastest; save numpy.ascontiguousarray(array) in its place"
            )
        return self._whole

    @contextmanager
    def _opened(self) -> Generator[IO[bytes]]:
        """Open the member of a .npz."""
        with zipfile.ZipFile(self.path) as archive, archive.open(f"{self.member}.npy") as file:
            yield file


def find_array(path: Path, name: str) -> ArrayFile:
    """Return the array of a .npy, or of a .npz: the one called `name`, else the only one of 3 axes.

    Raises OSError, ValueError, and what zipfile and zlib raise for a damaged file.
    """
    if path.exists() and not path.is_file():
        raise ValueError("it is a folder, a device or a pipe")
    if path.suffix.lower() == ".npy":
        with open(path, "rb") as file:
            return _array_in(path, file.read(HEAD_BYTES), path.stat().st_size)
    found = {}
    with zipfile.ZipFile(path) as archive:
        members = {info.filename: info for info in archive.infolist()}
        arrays = [member for member in members if member.endswith(".npy")]
        if f"{name}.npy" in members:
            arrays = [f"{name}.npy"]
        if len(arrays) > MOST_ARRAYS:
            raise ValueError(f"it holds {len(arrays)} arrays")
        for member in arrays:
            _refuse_packing(members[member])
            with archive.open(member) as file:
                head = file.read(HEAD_BYTES)
            key = member.removesuffix(".npy")
            found[key] = _array_in(path, head, members[member].file_size, key)
    fitting = [key for key, array in found.items() if key == name or len(array.shape) == 3]
    if len(fitting) != 1:
        seen = ", ".join(f"{key} {array.shape} {array.dtype}" for key, array in found.items())
        raise ValueError(f"it holds {seen or 'no array'}")
    return found[fitting[0]]


def _array_in(path: Path, head: bytes, size: int, member: str | None = None) -> ArrayFile:
    """Return the array whose file, or member of a .npz, begins with `head` and has `size` bytes."""
    try:
        shape, is_fortran, dtype, start = _read_header(head)
        nbytes = math.prod(shape) * dtype.itemsize
    except Exception as e:
        # NumPy evaluates the header as Python, so a damaged one may raise anything.
        reason = f"{e}".partition("\n")[0][:200] or type(e).__name__
        raise ValueError(f"the header of the array is damaged: {reason}") from e
    if dtype.hasobject:
        raise ValueError("the array holds Python objects")
    if start + nbytes > size:
        raise ValueError(f"an array of shape {shape}, {dtype}, in {size} bytes: it is cut short")
    return ArrayFile(path, shape, dtype, start, is_fortran, member)


def _read_header(head: bytes) -> tuple[tuple[int, ...], bool, np.dtype, int]:
    """Return shape, whether the first axis varies fastest, type, and the byte after the header."""
    file = io.BytesIO(head)
    is_first = np.lib.format.read_magic(file)[0] == 1
    if is_first:
        shape, is_fortran, dtype = np.lib.format.read_array_header_1_0(file)
    else:
        shape, is_fortran, dtype = np.lib.format.read_array_header_2_0(file)
    if not all(type(length) is int and length >= 0 for length in shape):
        raise ValueError("a negative length")
    return shape, is_fortran, dtype, file.tell()


def _refuse_packing(member: zipfile.ZipInfo) -> None:
    """Refuse a member that NumPy does not write; bzip2 and LZMA unpack a few bytes to gigabytes."""
    if member.flag_bits & 1:
        raise ValueError("it is encrypted")
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ValueError("it is compressed in a way that NumPy does not read")

"""Spike files that hold an array (T, h, w) of uint8 or bool in {0, 1}, row 0 at the top of the image: .npy and .npz."""

from __future__ import annotations

import os
import tempfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO

import numpy as np

from data.spike.stream import PART, Crop, PathLike, SpikeFile, SpikeFileError, SpikeGeometry, check_spikes

NPZ_KEY = "spk"


class ArrayPlanes(SpikeFile):
    """An array (T, h, w), mapped."""

    def __init__(self, path: PathLike, geometry: SpikeGeometry, array: np.ndarray) -> None:
        super().__init__(path, (geometry.height, geometry.width), len(array))
        self.array = array

    def _planes(self, first: int, count: int, crop: Crop) -> np.ndarray:
        rows, columns = crop.slices
        return _checked_values(np.array(self.array[first : first + count, rows, columns], order="C"), self.path)


class ZippedPlanes(SpikeFile):
    """An array (T, h, w) in a zip file, decompressed part by part."""

    def __init__(self, path: PathLike, geometry: SpikeGeometry, member: Member) -> None:
        super().__init__(path, (geometry.height, geometry.width), member.shape[0])
        self.member = member

    def parts(self, first: int, count: int) -> Iterator[np.ndarray]:
        whole = Crop(0, 0, *self.size)
        self._check_range(first, count, whole)
        return self._decompressed(first, count, whole)  # from the start once, not again for every part

    def _planes(self, first: int, count: int, crop: Crop) -> np.ndarray:
        return np.concatenate(list(self._decompressed(first, count, crop)))

    def _decompressed(self, first: int, count: int, crop: Crop) -> Iterator[np.ndarray]:
        rows, columns = crop.slices
        _, height, width = self.member.shape
        left = count
        with _zip_errors(self.path), zipfile.ZipFile(self.path) as archive, archive.open(self.member.name) as file:
            file.seek(self.member.offset + first * height * width)
            while left:
                size = min(left, PART)
                content = file.read(size * height * width)
                if len(content) < size * height * width:
                    raise EOFError(f"array {self.member.name} ends early")
                array = np.frombuffer(content, np.uint8).reshape(size, height, width)
                yield _checked_values(array[:, rows, columns].copy(), self.path)
                left -= size


@dataclass(frozen=True)
class Member:
    """An array in a zip file. offset: bytes of its header."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype
    is_fortran: bool
    offset: int


def open_npy(path: PathLike, geometry: SpikeGeometry, remainder: str) -> SpikeFile:
    array = _mapped_npy(path)
    _check_array(array.shape, array.dtype, path, geometry)
    return ArrayPlanes(path, geometry, array)


def _mapped_npy(path: PathLike) -> np.memmap:
    try:
        return np.lib.format.open_memmap(path, mode="r")
    except (ValueError, EOFError) as e:
        with open(path, "rb") as file:
            begin = file.read(8)
        raise _no_array(path, f"{e} (the file begins with {begin!r}, {os.stat(path).st_size} bytes)") from e


def write_npy(file: IO[bytes], parts: Iterable[np.ndarray], geometry: SpikeGeometry) -> None:
    size, planes = 128, 0  # of the header, which is written last: it holds the number of planes
    file.seek(size)
    for part in parts:
        check_spikes(part, geometry)
        file.write(np.ascontiguousarray(part != 0).view(np.uint8).tobytes())
        planes += len(part)
    shape = (planes, geometry.height, geometry.width)
    text = f"{{'descr': '|u1', 'fortran_order': False, 'shape': {shape}, }}".encode()
    file.seek(0)
    file.write(b"\x93NUMPY\x01\x00" + (size - 10).to_bytes(2, "little") + text.ljust(size - 11) + b"\n")


def open_npz(path: PathLike, geometry: SpikeGeometry, remainder: str) -> SpikeFile:
    member = _npz_member(path)
    _check_array(member.shape, member.dtype, path, geometry)
    if member.is_fortran:
        raise _no_array(path, f"array {member.name} is stored in Fortran order")
    return ZippedPlanes(path, geometry, member)


def _npz_member(path: PathLike) -> Member:
    """The array of spikes in a .npz. Raises SpikeFileError, with the arrays seen, where it is not clear which."""
    found = {}
    with _zip_errors(path), zipfile.ZipFile(path) as archive:
        for name in archive.namelist():
            if not name.endswith(".npy"):
                continue
            with archive.open(name) as file:
                is_first = np.lib.format.read_magic(file)[0] == 1
                header = (np.lib.format.read_array_header_1_0 if is_first else np.lib.format.read_array_header_2_0)(
                    file
                )
                found[name.removesuffix(".npy")] = Member(name, header[0], header[2], header[1], file.tell())
    arrays = [NPZ_KEY] if NPZ_KEY in found else [name for name, member in found.items() if len(member.shape) == 3]
    if len(arrays) != 1:
        seen = ", ".join(f"{name} {member.shape} {member.dtype}" for name, member in found.items())
        raise _no_array(path, f"it holds {seen or 'no array'}")
    return found[arrays[0]]


def write_npz(file: IO[bytes], parts: Iterable[np.ndarray], geometry: SpikeGeometry) -> None:
    with tempfile.TemporaryFile(dir=os.path.dirname(file.name)) as array:
        write_npy(array, parts, geometry)
        array.seek(0)
        with (
            zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive,
            archive.open(f"{NPZ_KEY}.npy", "w", force_zip64=True) as member,
        ):
            while block := array.read(2**20):
                member.write(block)


def _check_array(shape: tuple[int, ...], dtype: np.dtype, path: PathLike, geometry: SpikeGeometry) -> None:
    widths = (geometry.width, geometry.line_width)
    is_shape = len(shape) == 3 and shape[0] and shape[1] == geometry.height and shape[2] in widths
    if not is_shape or dtype not in (np.uint8, np.bool_):
        raise SpikeFileError(
            f"an array of shape {shape}, {dtype}", str(path),
            f"(planes >= 1, {geometry.height}, {geometry.width}), uint8 or bool, values 0 and 1",
            "correct the spike height and width in the options, or save the array in this form",
        )  # fmt: skip


def _checked_values(spikes: np.ndarray, path: PathLike) -> np.ndarray:
    spikes = spikes.view(np.uint8)
    if spikes.size and spikes.max() > 1:
        raise SpikeFileError(
            f"the array holds the value {spikes.max()}", str(path), "values 0 and 1", "save (array > 0) instead"
        )
    return spikes


def _no_array(path: PathLike, seen: str) -> SpikeFileError:
    return SpikeFileError(
        f"cannot read spike file: {seen}", str(path),
        f'an array (planes, h, w) of uint8 or bool; in a .npz named "{NPZ_KEY}", or the only one of three axes',
        "save the array again, or restore the file",
    )  # fmt: skip


@contextmanager
def _zip_errors(path: PathLike) -> Iterator[None]:
    """What a damaged zip file raises becomes a SpikeFileError."""
    try:
        yield
    except SpikeFileError:
        raise
    except (zipfile.BadZipFile, zlib.error, EOFError, ValueError, NotImplementedError) as e:
        raise _no_array(path, str(e)) from e


def npy_shape(path: PathLike) -> tuple[int, ...]:
    return _mapped_npy(path).shape


def npz_shape(path: PathLike) -> tuple[int, ...]:
    return _npz_member(path).shape

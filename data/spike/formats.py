"""Read and write spike files: one format for each suffix of a file's name.

    .dat, .bin   packed planes: 8 pixels in a byte. A file with any other suffix is also read as
                 packed planes
    .npy         an array (T, h, w) of uint8 or bool in {0, 1}, row 0 at the top of the image
    .npz         a zip file of arrays. The spikes are the array named "spk", or, if no array has
                 this name, the only array with three axes

A plane is one read-out of the spike camera. T is the number of planes. Packed planes have no
header, so the caller gives their size:

    file = open_spikes("000001.dat", SpikeGeometry(250, 400))
    file.planes                                  # T
    spikes = file.read(first=10, count=21)       # (21, 250, 400) uint8

The parts are in other modules:

    geometry.py      SpikeGeometry, Crop           packing.py   which bit is which pixel
    spike_file.py    SpikeFile, which reads        sps100.py    planes with words among the pixels
    packed_file.py   checks of packed content      headers.py   refuses files of other formats
    arrays.py        .npy and .npz                 errors.py    SpikeFileError

What must stay: the bytes of each format, because users and published data have such files.
Free to add: a format. Add its suffix to FORMATS, and a branch to `open_spikes`, `count_planes` and
`_write_parts`.

Tests: tests/parts/data/test_spike_formats.py, tests/parts/data/test_published_streams.py (published
files are readable)
"""

import errno
import mmap
import os
import tempfile
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any

import numpy as np

from .arrays import ArrayFile, find_array
from .errors import NPZ_KEY, PathLike, SpikeFileError, file_errors
from .geometry import Crop, SpikeGeometry
from .packed_file import packed_planes, planes_in
from .packing import check_shape, pack
from .spike_file import SpikeFile

# The suffixes of spike files. A file with any other suffix is also read as packed planes.
FORMATS = (".dat", ".bin", ".npy", ".npz")

# ---- Reading -----------------------------------------------------------------------------------


def open_spikes(path: PathLike, geometry: SpikeGeometry, remainder: str = "error") -> SpikeFile:
    """Open a file and check its content. No plane is unpacked yet.

    remainder: what happens to bytes after the last whole packed plane: "error" refuses them,
    "truncate" ignores them.
    Raises SpikeFileError for a missing file, a wrong size, and content that is not spikes.
    """
    with file_errors(path):
        if not is_array(path):
            return packed_planes(_map_bytes(path), path, geometry, remainder)
        # Only the header of the array is read here.
        array = find_array(Path(path), NPZ_KEY)
    _check_array(array, path, geometry)
    return SpikeFile(str(path), geometry, planes=array.shape[0], packed=None, array=array)


def _check_array(array: ArrayFile, path: PathLike, geometry: SpikeGeometry) -> None:
    """Raise SpikeFileError if an array does not have the type or the shape of spikes."""
    has_type_of_spikes = array.dtype in (np.uint8, np.bool_)
    if has_type_of_spikes and _has_shape(array.shape, geometry):
        return
    if has_type_of_spikes:
        do = "correct the spike height and width, or save it in this form"
    else:
        do = "save it as (array > 0).astype(numpy.uint8)"
    raise SpikeFileError(
        what=f"an array of shape {array.shape}, {array.dtype}",
        where=str(path),
        expected=f"(planes >= 1, {geometry.height}, {geometry.width}), uint8 or bool, "
        "values 0 and 1",
        do=do,
    )


def _has_shape(shape: tuple[int, ...], geometry: SpikeGeometry) -> bool:
    """Return whether a shape is (T >= 1, h, w), where w is the width of a plane or of sensor lines.

    A sensor line may be wider than a plane, because it may have head columns (columns without
    image) after the pixels of a row.
    """
    if len(shape) != 3:
        return False
    planes, height, width = shape
    fits_width = width in (geometry.width, geometry.line_width)
    return planes > 0 and height == geometry.height and fits_width


def read_spikes(
    path: PathLike,
    geometry: SpikeGeometry,
    first: int = 0,
    count: int | None = None,
    crop: Crop | None = None,
    remainder: str = "error",
) -> np.ndarray:
    """Open a file and read some planes. Returns spikes (T, h, w) uint8 in {0, 1}, upright.

    geometry: size and layout of a plane.
    first: number of the first plane.
    count: number of planes. None: to the end of the file.
    crop: the pixels to read. None: all pixels.
    remainder: "truncate" ignores bytes after the last whole plane, "error" refuses them.
    Raises SpikeFileError.
    """
    return open_spikes(path, geometry, remainder).read(first, count, crop)


def count_planes(
    path: PathLike, geometry: SpikeGeometry, remainder: str = "error", size: int | None = None
) -> int:
    """Return the number of planes in a file.

    For packed planes in the layout "raster", the number follows from the size of the file, so the
    file is not opened. For an array, the number is in the header. In the layout "sps100", the first
    byte of the planes must be found in the content.

    geometry: size and layout of a plane.
    remainder: "truncate" ignores bytes after the last whole plane, "error" refuses them.
    size: size of the file in bytes. None: the size is looked up.
    Raises SpikeFileError.
    """
    if is_array(path) or geometry.layout != "raster":
        return open_spikes(path, geometry, remainder).planes
    with file_errors(path):
        if size is None:
            size = os.stat(path).st_size
        return planes_in(size, path, geometry, remainder)


def is_array(path: PathLike) -> bool:
    """Return whether a file holds an array, not packed planes.

    A new suffix of arrays in FORMATS must be added here, too. `_write_parts` and `find_array`
    (arrays.py) also tell the formats apart by their suffixes.
    """
    return Path(path).suffix.lower() in (".npy", ".npz")


def array_shape(path: PathLike) -> tuple[int, ...] | None:
    """Return (T, h, w) of a file that holds an array, or None for packed planes.

    A caller that does not know the geometry can take the size of a plane from the result.
    Raises SpikeFileError for a file that cannot be read, or that holds no such array.
    """
    if not is_array(path):
        return None
    with file_errors(path):
        return find_array(Path(path), NPZ_KEY).shape


def _map_bytes(path: PathLike) -> np.ndarray:
    """Map a file into memory. Returns its bytes as uint8.

    np.memmap is not used, because it asks for the state of the file three times, which is slow over
    a network.
    """
    # Without O_NONBLOCK, opening a pipe would wait until a program writes into the pipe.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        # The length 0 maps the whole file.
        mapped = mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
        return np.frombuffer(mapped, np.uint8)
    except ValueError:
        # An empty file cannot be mapped.
        return np.empty(0, np.uint8)
    except OSError:
        # The error of mmap does not say that the path is a folder, so raise IsADirectoryError.
        if os.path.isdir(path):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path)) from None
        # A pipe or a device counts as an empty file. The caller refuses it with an error that names
        # the expected size.
        if not os.path.isfile(path):
            return np.empty(0, np.uint8)
        raise
    finally:
        # The mapping stays valid after the file is closed.
        os.close(descriptor)


# ---- Writing -----------------------------------------------------------------------------------


def write_spikes(
    path: PathLike, spikes: np.ndarray | Iterable[np.ndarray], geometry: SpikeGeometry
) -> None:
    """Write spikes in the format of the path's suffix.

    spikes: (T, H, W) in {0, 1}, or an iterable of parts (t, H, W). Only one part at a time is in
    memory.
    The file appears complete or not at all, because it is written under a temporary name and
    renamed at the end. Raises SpikeFileError for spikes of a wrong size.
    """
    path = Path(path)
    parts = [spikes] if isinstance(spikes, np.ndarray) else spikes
    # The temporary name is a hidden file in the same folder, e.g. ".000001.dat.3f2a9c01". The
    # module tempfile is not used, because other users could not read its files, whatever the umask
    # of the user is.
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}")
    try:
        # "x": refuse a file of this name. "+": the header of a .npy is written a second time.
        with open(temporary, "x+b") as file:
            _write_parts(file, parts, geometry, path)
        os.replace(temporary, path)
    except BaseException as e:
        # After any error, and also after Ctrl-C, remove the half-written file.
        temporary.unlink(missing_ok=True)
        # The error of a full disk names no file, so add the file.
        if isinstance(e, OSError) and e.filename in (None, str(temporary)):
            e.filename = str(path)
        raise


def _write_parts(
    file: IO[bytes], parts: Iterable[np.ndarray], geometry: SpikeGeometry, path: Path
) -> None:
    """Write parts (t, H, W) into an open file, in the format of the suffix of `path`.

    path: the path that the file gets in the end.
    """
    suffix = path.suffix.lower()
    if suffix == ".npz":
        _write_zip(file, parts, geometry, folder=path.parent)
    elif suffix == ".npy":
        _write_array(file, parts, geometry)
    else:
        for part in parts:
            file.write(pack(part, geometry).tobytes())


def _write_zip(
    file: IO[bytes], parts: Iterable[np.ndarray], geometry: SpikeGeometry, folder: Path
) -> None:
    """Write parts (t, H, W) as the one array of a .npz.

    np.savez_compressed needs a whole array, which may not fit into memory. So the parts are first
    written to a temporary file, and the file is then mapped. NumPy uses the mapped file as a whole
    array, and the system reads it piece by piece.

    folder: folder of the temporary file, which is as large as the array.
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

    Test: test_each_format_reads_back_parts_of_what_was_written
    """
    # T is not known before the last part, so write a header with T = 0 first. "|u1" means uint8.
    unknown_shape = (0, geometry.height, geometry.width)
    header = {"descr": "|u1", "fortran_order": False, "shape": unknown_shape}
    np.lib.format.write_array_header_1_0(file, header)
    start = file.tell()
    planes = 0
    for part in parts:
        check_shape(part, geometry)
        spikes = np.ascontiguousarray(part != 0).view(np.uint8)
        file.write(spikes.tobytes())
        planes += len(part)
    # Now T is known, so write the header again. The header keeps its length, because NumPy pads it.
    shape = (planes, geometry.height, geometry.width)
    file.seek(0)
    np.lib.format.write_array_header_1_0(file, header | {"shape": shape})
    return start, shape

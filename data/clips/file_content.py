"""Read the content of a file on disk, or of a value in an LMDB (a database file).

The form of the path tells where the content is:

    /data/train/clip_a/blur/0.png    a file on disk
    /data/train.lmdb::clip_a/0       a value in an LMDB

A failed read is not tried again. `read_bytes` raises a DataError. In a training, `_Batches`
(data/loader.py) passes the error on to the main process, and the run ends.

What must stay: `read_bytes` returns the bytes of the file or raises DataError, for any path
(tests/parts/data/test_any_bytes.py tries damaged files). Free to change: how the bytes are read.

Tests: tests/parts/data/test_io_backend.py, tests/parts/data/test_any_bytes.py
"""

from data.clips.listed_files import LMDB_MARK, os_errors_as_data_errors
from data.clips.lmdb_database import read_value
from data.spike.formats import open_spikes
from data.spike.geometry import SpikeGeometry
from data.spike.packed_file import packed_planes
from data.spike.spike_file import SpikeFile
from utils.files import read_plain


def read_bytes(path: str, count: int = -1) -> bytes:
    """Return the content of a file on disk or in an LMDB.

    count: number of bytes to read from the beginning. -1: all bytes.
    Raises DataError with the system's reason. Devices and pipes are refused (`read_plain`), because
    a read of a device or a pipe could wait without an end.
    """
    with os_errors_as_data_errors(path):
        if LMDB_MARK not in path:
            return read_plain(path, count)
        root, key = path.split("::", 1)
        return read_value(root, key, count)


def open_spike_file(path: str, geometry: SpikeGeometry, remainder: str) -> SpikeFile:
    """Open a spike file on disk, or the packed planes that are a value in an LMDB.

    geometry: shape and layout of a plane.
    remainder: value of the option spike.remainder. "error" refuses an incomplete last plane,
    "truncate" ignores it.
    Raises SpikeFileError, DataError.
    """
    if LMDB_MARK in path:
        return packed_planes(read_bytes(path), path, geometry, remainder)
    return open_spikes(path, geometry, remainder)


# Warning about spike files for which `is_read_from_start` is true.
SLOW_FROM_START = (
    "every frame reads the file of its clip from the start, which is slow for long clips: "
    "convert it to .dat (scripts/spike_tool.py convert), "
    "or build a clip cache (scripts/build_clip_cache.py)"
)


def is_read_from_start(path: str) -> bool:
    """Return whether a plane of a spike file is reached only by reading all bytes before it.

    The result is True for an .npz, because this format is compressed. It is also True for a file in
    an LMDB, because a value is read as a whole.
    """
    return LMDB_MARK in path or path.lower().endswith(".npz")

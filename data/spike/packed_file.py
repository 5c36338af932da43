"""Check the content of a packed file, and find the planes in it.

A plane is one read-out of the spike camera, and a packed plane has 8 pixels in a byte (packing.py).
Packed planes have no header, so a file does not say what it contains. Three checks find wrong files
and wrong options:

    1. The first bytes must not be a header of another format, or text (headers.py).
    2. An SPS100 sensor writes words (numbers of 12 bits) between the pixels of each plane. If the
       geometry has the layout "sps100", the file must have these words. If the layout is "raster",
       the file must not have such words (sps100.py).
    3. The size of the file must be a whole number of planes (`planes_in`).

What must stay: published files pass the checks. All three checks are needed, because without one of
them, some wrong files or options would give noise and no error.

Tests: tests/parts/data/test_spike_formats.py, tests/parts/data/test_any_bytes.py,
tests/parts/data/test_published_streams.py (published files pass)
"""

import numpy as np

from .errors import PathLike, SpikeFileError
from .geometry import SPS100_SIDE, SpikeGeometry
from .headers import HEAD_BYTES, refuse_other_format
from .known_geometries import known_geometries_of
from .spike_file import SpikeFile
from .sps100 import file_without_words, start_of_sps100, words_in_raster


def packed_planes(
    content: bytes | np.ndarray, path: PathLike, geometry: SpikeGeometry, remainder: str = "error"
) -> SpikeFile:
    """Return the planes in the content of a packed file. The content may be a value of an LMDB.

    content: bytes, or an array (n,) uint8.
    path: path of the file, for messages.
    remainder: what happens to bytes after the last whole raster plane: "error" refuses them,
    "truncate" ignores them. A capture of an SPS100 may end within a plane, so bytes after its last
    whole plane are always ignored.
    Raises SpikeFileError for a wrong size and for content that is not spikes.
    """
    data = np.frombuffer(content, np.uint8) if isinstance(content, bytes) else content
    refuse_other_format(data[:HEAD_BYTES].tobytes(), path)
    # The byte at which the first whole plane of an SPS100 starts. None if the file has no words of
    # this sensor. The words are searched only if a side of the plane has 1000 pixels, because all
    # planes of an SPS100 have 1000 x 1000 pixels.
    start = None
    if SPS100_SIDE in (geometry.height, geometry.width):
        start = start_of_sps100(data)
    if geometry.layout == "sps100":
        if start is None:
            raise file_without_words(len(data), path, geometry)
        data = data[start:]
        planes = len(data) // geometry.plane_bytes
    else:
        # A reader of raster planes would take the words for pixels.
        if start is not None:
            raise words_in_raster(start, path)
        planes = planes_in(len(data), path, geometry, remainder)
    whole = data[: planes * geometry.plane_bytes]
    packed = whole.reshape(planes, geometry.plane_bytes)
    return SpikeFile(str(path), geometry, planes=planes, packed=packed)


def planes_in(size: int, path: PathLike, geometry: SpikeGeometry, remainder: str) -> int:
    """Return the number of raster planes in a file of `size` bytes.

    remainder: what happens to bytes after the last whole plane: "error" refuses them, "truncate"
    ignores them.
    Raises SpikeFileError for refused bytes, and if there is no whole plane.

    Test: test_a_ragged_end_is_not_read_if_truncation_is_asked_for
    """
    planes, bytes_left = divmod(size, geometry.plane_bytes)
    fits = bytes_left == 0 or remainder == "truncate"
    if planes and fits:
        return planes

    shape = f"{geometry.height} x {geometry.line_width}"
    content = f"no plane of {shape}"
    if planes:
        plane_noun = "plane" if planes == 1 else "planes"
        byte_noun = "byte" if bytes_left == 1 else "bytes"
        content = f"{planes} {plane_noun} of {shape} and {bytes_left} {byte_noun} more"
    raise SpikeFileError(
        what=f"spike file of {size} bytes holds {content}",
        where=str(path),
        expected=f"a multiple of {geometry.plane_bytes} bytes; known geometries that fit this "
        f"size: {known_geometries_of(size)}",
        do="copy the file again, or correct the spike height and width",
    )

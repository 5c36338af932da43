"""Read the planes of an SPS100, a sensor that writes words between the pixels.

A plane is one read-out of the sensor, which has 1000 x 1000 pixels. A word is a number of 12 bits
that says where in the plane it stands. The sensor stores a row as two half-lines of 512 bits, each
with a word at its end:

    500 pixels, word of 12 bits, 500 pixels, word of 12 bits

A word has a line number, 1 ... 500 (10 bits), and a channel, 0 ... 3 (2 bits). The line number is
not the number of a row: a plane has 500 x 4 = 2000 different words, one for each half-line. The
first half-line of a plane has line number 500 and channel 0. A capture may begin within a plane,
and this word tells where the first whole plane begins (`start_of_sps100`).

Source: SpikeCV, load_dat.py and sps_parser.py. Files of an SPS100 are only read, not written.

What must stay: which bit is which pixel, and which files count as files of this sensor.

Tests: tests/parts/data/test_spike_formats.py, e.g.
test_a_capture_of_the_sps100_may_start_within_a_plane and
test_a_capture_of_the_sps100_is_no_file_of_another_camera
"""

import numpy as np

from .errors import PathLike, SpikeFileError
from .geometry import SPS100_HALF, SPS100_SIDE, Crop, SpikeGeometry
from .packing import unpack_raster

SPS100_PIXELS = 500  # pixels of a half-line
SPS100_WORD = SPS100_HALF - SPS100_PIXELS  # bits of a word, 12
SPS100_LINES = 500  # largest line number
HALF_BYTES = SPS100_HALF // 8  # bytes of a half-line, 64
HALVES_OF_PLANE = 2 * SPS100_SIDE  # half-lines of a plane, 2000
PLANE_BYTES = HALF_BYTES * HALVES_OF_PLANE  # 128,000

# ---- Where planes begin -------------------------------------------------------------------------


def start_of_sps100(data: np.ndarray) -> int | None:
    """Return the first byte of the first whole plane in packed bytes, or None if there is none.

    A plane is 2000 half-lines of 64 bytes. A half-line is 500 pixels and a word of 12 bits, which
    says where in the plane the half-line stands.

    data: the bytes of a file, (n,) uint8. The file need not be a file of an SPS100.

    Test: test_a_capture_of_the_sps100_may_start_within_a_plane
    """
    # A capture may start within a half-line, at a multiple of 16 bytes: try 0, 16, 32 and 48.
    for shift in range(0, HALF_BYTES, 16):
        first = _start_with_shift(data, shift)
        if first is not None:
            return first
    return None


def _start_with_shift(data: np.ndarray, shift: int) -> int | None:
    """Return the first byte of the first whole plane, if a half-line begins at byte `shift`.

    Returns None if no half-line begins there, or if there is no whole plane. The start of the last
    whole plane is checked, too, so that the result does not depend on one plane alone.
    """
    # In a file of an SPS100, any 2000 half-lines that follow one another contain exactly one start
    # of a plane.
    half_lines_from_shift = data[shift : shift + PLANE_BYTES]
    if len(half_lines_from_shift) < PLANE_BYTES:
        return None
    half_lines = half_lines_from_shift.reshape(HALVES_OF_PLANE, HALF_BYTES)
    start_number = _start_among_half_lines(half_lines)  # number of a half-line, or None
    if start_number is None:
        return None
    first = shift + HALF_BYTES * start_number  # e.g. 16 + 64 * 3 = 208
    whole_planes = (len(data) - first) // PLANE_BYTES
    if not whole_planes:
        return None
    start_of_last = first + (whole_planes - 1) * PLANE_BYTES
    if not _is_start_of_plane(data[start_of_last : start_of_last + HALF_BYTES]):
        return None
    return first


def _start_among_half_lines(half_lines: np.ndarray) -> int | None:
    """Return which of 2000 half-lines starts a plane of an SPS100, or None if they have no words.

    The half-lines have words if each half-line has a line number in 1 ... 500, and exactly one
    half-line has the word of the start of a plane: line number 500 and channel 0.

    half_lines: (2000, 64) uint8. The last two bytes of a half-line are a little-endian number of 16
    bits:

        bits 0 ... 3     pixels
        bits 4 ... 13    line number
        bits 14 and 15   channel
    """
    # `view` takes each two bytes as one number. NumPy before 1.23 needs contiguous bytes for this,
    # so copy them.
    last_two_bytes = half_lines[:, -2:].copy()  # (2000, 2)
    words = last_two_bytes.view("<u2")[:, 0]  # (2000,), 16 bits each
    line_numbers = (words >> 4) & 0x3FF  # 0x3FF keeps 10 bits
    channels = words >> 14
    are_valid = (line_numbers >= 1) & (line_numbers <= SPS100_LINES)
    is_start_of_plane = (line_numbers == SPS100_LINES) & (channels == 0)
    starts = np.flatnonzero(is_start_of_plane)  # the numbers of such half-lines
    if not are_valid.all() or len(starts) != 1:
        return None
    return int(starts[0])


def _is_start_of_plane(half_line: np.ndarray) -> bool:
    """Return whether a half-line (64,) uint8 of an SPS100 has line number 500 and channel 0.

    Line number 500 and channel 0 are the number 500 << 4 = 0x1F40, stored as the bytes 0x40, 0x1F.
    The mask sets the lowest 4 bits to 0, because these bits are pixels.
    """
    word = half_line[-2:] & [0xF0, 0xFF]
    return np.array_equal(word, [0x40, 0x1F])


# ---- Spikes of planes ---------------------------------------------------------------------------


def unpack_sps100(packed: np.ndarray, geometry: SpikeGeometry, crop: Crop) -> np.ndarray:
    """Turn packed planes (T, plane_bytes) uint8 into the spikes (T, h, w) uint8 of a crop.

    A row is stored as 500 pixels, a word of 12 bits, 500 pixels, and a word. The row is unpacked as
    if it were a row of 1024 pixels, in which column 600 of the image is column 612. The part of the
    crop in the left half and the part in the right half are unpacked one by one, and put side by
    side.

    Test: test_a_crop_of_the_sps100_may_lie_in_both_half_lines
    """
    # The same planes, as if the bits of the words were pixels: 1000 rows of 1024 pixels.
    as_raster = SpikeGeometry(geometry.height, geometry.line_width, geometry.flipud)
    halves = []
    for half in range(2):
        # The columns of this half are first_column ... end_column - 1 of the image.
        first_column = half * SPS100_PIXELS
        end_column = first_column + SPS100_PIXELS
        left = max(crop.left, first_column)
        right = min(crop.right, end_column)
        if left < right:
            bits_of_words = half * SPS100_WORD  # the word before the right half
            columns = Crop(
                top=crop.top, left=left + bits_of_words, height=crop.height, width=right - left
            )
            halves.append(unpack_raster(packed, as_raster, columns))
    return np.concatenate(halves, axis=2)


# ---- Errors -------------------------------------------------------------------------------------


def file_without_words(size: int, path: PathLike, geometry: SpikeGeometry) -> SpikeFileError:
    """Return the error for a file of layout "sps100" in which no plane begins.

    size: number of bytes of the file.
    """
    return SpikeFileError(
        what=f"no plane of an SPS100 in {size} bytes: no word of line 500, channel "
        "0, with others after it",
        where=str(path),
        expected=f"lines of 1024 bits with the sensor's words, {geometry.plane_bytes} "
        "bytes per plane",
        do='check the file; "raster" is the layout without these words',
    )


def words_in_raster(start: int, path: PathLike) -> SpikeFileError:
    """Return the error for a file of an SPS100 that is read as raster planes.

    start: the byte at which the first whole plane starts.
    """
    return SpikeFileError(
        what="the lines of the file end with words of an SPS100 sensor (the first plane "
        f"starts at byte {start})",
        where=str(path),
        expected="raster planes, without words among the pixels",
        do="use the layout sps100 with planes of 1000 x 1000 (spike.layout, --layout), no "
        "head columns",
    )

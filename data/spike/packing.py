"""Pack spikes into bits, and unpack the bits of a crop.

A plane is one read-out of the spike camera, a bit for each pixel. The public readers of SpikeCV,
S-SDM and Spike-Zoo store packed planes in the same form:

    * Planes follow one another in order of time, without a header.
    * Within a plane, the lowest row of the image comes first, and the pixels of a row from left to
      right. Rows have no padding.
    * Pixel p of a plane is bit p % 8 (least significant first) of byte p // 8.

`SpikeGeometry` has fields for the exceptions: rows top first, lines that are longer than a row of
the image, and bits in the other order.

What must stay: which bit is which pixel, because published files and users' files have this form.
Free to change: how the bytes of a crop are found and unpacked.

Tests: tests/parts/data/test_spike_formats.py (compares with this definition, in plain loops)
"""

import numpy as np

from .errors import SpikeFileError
from .geometry import Crop, SpikeGeometry


def unpack_raster(packed: np.ndarray, geometry: SpikeGeometry, crop: Crop) -> np.ndarray:
    """Turn packed planes (T, plane_bytes) uint8 into the spikes (T, h, w) uint8 of a crop.

    Unpacked spikes take eight times as much memory, because each bit becomes a byte. So only the
    bytes of the crop are unpacked.

    Tests: test_each_format_reads_back_parts_of_what_was_written,
    test_head_columns_are_the_last_of_a_row
    """
    planes = packed.shape[0]
    line_bits = geometry.line_width
    # The crop has the stored rows `row` ... `end_row` - 1. If the lowest row of the image is stored
    # first, stored row 0 is the lowest row: the rows 0 and 1 of 250 rows are stored as 249 and 248.
    # So a crop of the rows 0 and 1 (bottom = 2) begins at stored row 250 - 2 = 248.
    row = crop.top
    if geometry.flipud:
        row = geometry.height - crop.bottom
    end_row = row + crop.height

    if line_bits % 8 == 0:
        # Each line is a whole number of bytes: take the bytes that hold the columns of the crop.
        # E.g. the columns 10 ... 29 are in the bytes 1 ... 3. Byte 1 begins with column 8, so the
        # crop begins 2 bits later.
        first_byte = crop.left // 8
        end_byte = _bytes_of(crop.right)
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

    Test: test_each_format_reads_back_parts_of_what_was_written
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


def pack(spikes: np.ndarray, geometry: SpikeGeometry) -> np.ndarray:
    """Turn spikes (T, H, W) in {0, 1} into packed planes (T, plane_bytes) uint8, as in a `.dat`.

    `unpack_raster` with a crop of the whole plane is the inverse. The caller must give a geometry
    with the layout "raster", because this function does not check the layout. (Files of the other
    layout, "sps100", are only read, not written.)

    Test: test_packed_bytes_follow_the_definition
    """
    check_shape(spikes, geometry)
    rows = spikes[:, ::-1] if geometry.flipud else spikes
    if geometry.head_columns:
        # Head columns are bits of a line that belong to no pixel. In spite of their name, they are
        # at the right end of the line. Zeros are written there.
        zeros_at_right = (0, geometry.head_columns)
        rows = np.pad(rows, ((0, 0), (0, 0), zeros_at_right))  # (T, H, line width)
    # `plane_bytes` raises an error if the bits of a plane do not fill whole bytes.
    bits = rows.reshape(len(rows), 8 * geometry.plane_bytes) != 0
    return np.packbits(bits, axis=-1, bitorder=geometry.bit_order)


def check_shape(spikes: np.ndarray, geometry: SpikeGeometry) -> None:
    """Raise SpikeFileError for an array that is not (T >= 1, H, W)."""
    size = (geometry.height, geometry.width)
    if spikes.ndim != 3 or spikes.shape[1:] != size or not len(spikes):
        raise SpikeFileError(
            what=f"spikes of shape {spikes.shape}",
            expected=f"(planes >= 1, {geometry.height}, {geometry.width})",
        )

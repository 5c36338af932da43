"""Describe a plane of the spike camera: its size, how a file stores it, and a part of it.

    SpikeGeometry   size of a plane, and how a file stores it. Packed planes have no header, so the
                    reader of a file must know both
    Crop            a rectangle of an image, in rows and columns

    SpikeGeometry(250, 400).plane_bytes                      # 12500: 250 x 400 bits
    SpikeGeometry(250, 400, head_columns=16).line_width      # 416 bits

A plane is one read-out of the camera, with one bit for each pixel.

What must stay: the fields of `SpikeGeometry` and its `repr`, because option files, dataset.json and
digests of runs contain them.
Free to add: a field at the end, with a default that changes nothing.

Tests: tests/parts/data/test_spike_formats.py
"""

import dataclasses
from dataclasses import dataclass
from typing import Literal

from .errors import SpikeFileError

# A plane of the SPS100 sensor has 1000 x 1000 pixels. A row is stored as two half-lines of 512 bits
# (sps100.py).
SPS100_SIDE = 1000  # rows of a plane, and pixels of a row
SPS100_HALF = 512  # bits of a half-line


@dataclass(frozen=True, repr=False)
class SpikeGeometry:
    """The size and storage of packed planes, which the file does not contain."""

    height: int  # pixels of a plane
    width: int
    # Whether the lowest row of the image is stored first. True for all known files except files of
    # an SPS100.
    flipud: bool = True
    # Number of columns without image. In spite of their name, they are at the END of each sensor
    # line: a line of 416 columns has 400 columns of image and then 16 head columns. Head columns
    # are dropped when a file is read, and written as zeros. The name stays, because option files
    # have it.
    head_columns: int = 0
    # The first pixel of a byte is its least significant bit ("little", as in all known files) or
    # its most significant bit ("big", the default of numpy.packbits).
    bit_order: Literal["little", "big"] = "little"
    # "raster": a line has the pixels of a row, and then the head columns. "sps100": the layout of
    # the sensor SPS100, which has 1000 x 1000 pixels. A line has 1024 bits: 500 pixels and a word
    # of 12 bits, twice (source: SpikeCV, load_dat.py and sps_parser.py). Files of an SPS100 are
    # only read, not written.
    layout: Literal["raster", "sps100"] = "raster"

    def __post_init__(self) -> None:
        """Raise SpikeFileError for sizes that no camera has."""
        expected = ""
        if self.height < 1 or self.width < 1 or self.head_columns < 0:
            expected = "sizes of at least 1 and head columns of at least 0"
        # There is one kind of SPS100, so its layout allows only one height, width, number of head
        # columns and bit order. Only `flipud` may have either value.
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
        """Return the first four fields, and each later field whose value is not its default.

        For example "SpikeGeometry(height=250, width=400, flipud=True, head_columns=0)". Digests of
        runs contain this text, so a new field at its default must not appear in the text.

        Test: test_the_name_of_a_geometry_shows_new_fields_only_if_they_are_unusual
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

    The rectangle may reach outside of an image. `SpikeFile.read` refuses such a crop.
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
        """Return [top, left, height, width], the form of `region` in a calibration file."""
        return [self.top, self.left, self.height, self.width]

    def in_words(self) -> str:
        """Return the rectangle in words: "rows 0 to 9, columns 4 to 11", the last ones included."""
        return f"rows {self.top} to {self.bottom - 1}, columns {self.left} to {self.right - 1}"

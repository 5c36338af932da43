"""Read planes of an open spike file, in any of the formats.

A plane is one read-out of the spike camera. `open_spikes` (formats.py) returns a `SpikeFile`. A
`SpikeFile` has either packed planes (8 pixels in a byte) or an array of NumPy. Only the bytes of
the wanted planes and pixels are read.

What must stay: the spikes of a crop are equal to the crop of the spikes of the whole plane, in each
format.
Free to change: how many planes `parts` reads at a time (PART, 64).

Tests: tests/parts/data/test_spike_formats.py
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from .arrays import PART, ArrayFile
from .errors import SpikeFileError, file_errors
from .geometry import Crop, SpikeGeometry
from .packing import unpack_raster
from .sps100 import unpack_sps100


@dataclass
class SpikeFile:
    """The planes of one file. Either `packed` or `array` is set."""

    path: str  # path of the file, for error messages
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

        All spikes of training and testing are read by this method.

        first: number of the first plane.
        count: number of planes; None: to the end of the file.
        crop: the pixels to read; None: all.
        Raises SpikeFileError for planes or a crop outside of the file, and for values above 1.
        """
        if count is None:
            count = self.planes - first
        if crop is None:
            height, width = self.size
            crop = Crop(top=0, left=0, height=height, width=width)
        self._check_planes(first, count)
        self._check_crop(crop)
        if self.packed is not None:
            return _unpacked(self.packed[first : first + count], self.geometry, crop)
        assert self.array is not None  # a file is packed, or an array
        with file_errors(self.path):
            # `crop.slices` are the rows and the columns.
            spikes = self.array.read(first, count, *crop.slices)
        return self._as_spikes(spikes)

    def parts(self, first: int, count: int) -> Iterator[np.ndarray]:
        """Return an iterator over parts (t, h, w) of whole planes: at most PART (64) planes each.

        Only one part at a time is in memory, so a large file can be read.

        first: number of the first plane.
        count: number of planes.
        Raises SpikeFileError at once if the planes are not in the file. Wrong content is noticed
        only during the iteration, which then raises SpikeFileError.
        """
        # This method is not a generator itself, because a generator would check only when the
        # iteration begins.
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
        with file_errors(self.path):
            for part in array.parts(first, count):
                # Drop the head columns, which some cameras store after the columns of the image
                # (geometry.py). In `read`, the crop leaves the head columns out. Copy the planes,
                # because the caller may change them.
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


def _unpacked(packed: np.ndarray, geometry: SpikeGeometry, crop: Crop) -> np.ndarray:
    """Turn packed planes (T, plane_bytes) uint8 into the spikes (T, h, w) uint8 of a crop."""
    if geometry.layout == "sps100":
        return unpack_sps100(packed, geometry, crop)
    return unpack_raster(packed, geometry, crop)

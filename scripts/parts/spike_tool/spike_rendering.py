"""Turn the planes of a spike file into grey images: for view, recon and play of spike_tool.py.

    method_of     the method of the reconstruction, with its options
    Rendering     a file, a method, and the brightness of its images
    PlaneImage    a plane, and the image that the method makes at this plane
    PlaneReader   reads the planes around an image, and drops earlier planes from memory

A plane is one readout of the spike camera: a bit for each pixel, 1 if the pixel fired.

What must stay: an image shows what data/spike/represent.py makes of its planes
(test_recon_is_the_registered_representation), and only some planes are in memory at a time
(test_a_long_stream_is_never_whole_in_memory).
Free to change: HISTORY, and the guess for the rate at full light.

Tests: tests/parts/scripts/test_spike_tool.py
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from data.cameras.dataset_info import nearest_info
from data.spike.pictures import DISPLAY_GAMMA, to_uint8
from data.spike.represent import REPRESENTATIONS, represent
from data.spike.spike_file import SpikeFile
from scripts.parts.spike_tool.spike_geometry import GeometryOptions, possible_geometries
from scripts.parts.spike_tool.spike_ranking import smoothest_candidate
from utils.errors import DataError
from utils.options.override import apply_override
from utils.options.sources import Sources

# Methods of data/reconstruct.py that need only spikes, and make a grey image of them.
GREY_METHODS = ("tfp", "tfi", "tfstp")
# Number of planes before the center that tfstp gets. tfstp has no option `half_window`, because it
# uses all planes before the center. More planes take more time, and change the image less and
# less. The same number of planes after the center is read, too, but tfstp does not use them.
HISTORY = 128


def method_of(section: dict[str, Any], overrides: Sequence[str] = ()) -> dict[str, Any]:
    """Return a method as {"type": its name, ...}, with its options checked and completed.

    section: the method before the overrides, e.g. {"type": "tfp"}.
    overrides: words such as "method.half_window=5".
    """
    # Imported here, because --help and info do not need torch.
    from data.reconstruct import method_options

    # `apply_override` writes the value of each word into `sections`. If a value is wrong, the error
    # says that it comes from the command line.
    sections = {"method": section}
    for word in overrides:
        apply_override(sections, word, Sources("the command line"))
    return method_options(sections["method"])


class PlaneImage(NamedTuple):
    """A plane of a file, and the image that a method makes at this plane."""

    number: int  # number of the plane in the file
    fired: np.ndarray  # the plane (h, w): 1 if the pixel fired, else 0
    image: np.ndarray  # (h, w) uint8, grey


class Rendering:
    """Makes grey images of the spikes of a file.

    The brightness of an image depends on two facts: the rate of a pixel at full light, and whether
    the sensor integrates linear light or display values. If the rate is not known, the brightest
    half percent of the pixels is white.

    name: name of the method, e.g. "tfp".
    options: the options of the method, e.g. {"half_window": 20}.
    label: the name with its options, e.g. "tfp, half_window 20".
    file: the open spike file.
    size: size of a plane in words, e.g. "250 x 400".
    last: number of the last plane that has an image.
    brightness: the arguments rate, light and gamma of `represent`.
    """

    def __init__(
        self,
        path: Path,
        method: dict[str, Any],
        geometry: GeometryOptions,
        rate: float | None,
        light: Literal["linear", "display"] | None,
    ) -> None:
        """Open the file with its geometry.

        If several geometries fit the file, the geometry with the smoothest image is taken.

        method: the method and its options, from `method_of`.
        geometry: what the user says about the geometry.
        rate: spikes per plane at full light. None: from dataset.json, else a guess.
        light: what the sensor integrates. None: from dataset.json, else "linear".
        """
        self.options = dict(method)
        self.name = self.options.pop("type")
        best = smoothest_candidate(path, possible_geometries(path, geometry))
        self.file = best.file
        height, width = best.file.size
        self.size = f"{height} x {width}"
        self.brightness = _brightness(path, rate, light, best.rates)

        self.last = self.file.planes - 1
        # With some methods, an image shows a later time than its plane, and needs the next plane,
        # too. Then the last plane has no image. E.g. the image of tfi at plane 5 shows the time
        # between the planes 5 and 6, a lag of one half plane.
        lag = REPRESENTATIONS[self.name].lag_in_half_planes(**self.options)
        if lag > 0:
            self.last -= 1

        options = [f"{key} {value:g}" for key, value in self.options.items()]
        self.label = ", ".join([self.name, *options])

    def images(self, centers: Sequence[int]) -> Iterator[PlaneImage]:
        """Yield the plane at each center, and its image.

        The file is read once, from the first to the last plane needed. Only the planes around the
        current center are in memory, because a long file does not fit.

        centers: numbers of planes, at least one, in rising order.
        """
        first_needed, _ = self._window(centers[0])
        _, end_needed = self._window(centers[-1])
        reader = PlaneReader(self.file, first_needed, end_needed)
        for center in centers:
            begin, end = self._window(center)
            window = reader.planes(begin, end)  # (planes, h, w)
            center_in_window = center - begin
            yield PlaneImage(
                number=center,
                fired=window[center_in_window],
                image=self._image(window, center_in_window),
            )

    def _window(self, center: int) -> tuple[int, int]:
        """Return begin and end of the planes begin ... end - 1 that the image at a center needs.

        E.g. 20 planes on either side of the center 100 are the planes 80 ... 120, so (80, 121). At
        the ends of the file there are fewer planes.
        """
        half = self.options.get("half_window", HISTORY)  # planes on either side
        begin = max(center - half, 0)
        end = min(center + half + 1, self.file.planes)
        return begin, end

    def _image(self, window: np.ndarray, center: int) -> np.ndarray:
        """Return the image (h, w) uint8 at a plane of a window.

        window: planes (n, h, w). center: number of the plane in the window.
        """
        try:
            values = represent(self.name, window, center, **self.brightness, **self.options)
        except ValueError as e:
            raise DataError(
                what=f"no {self.name} of these planes: {e}",
                where=self.file.path,
                expected="planes on both sides",
                do="choose others",
            ) from e
        return to_uint8(values[0])  # grey methods return one channel


def _brightness(
    path: Path, rate: float | None, light: str | None, rates: np.ndarray
) -> dict[str, Any]:
    """Return what `represent` needs to know of the brightness: its arguments rate, light, gamma.

    Rate and light come from the user, else from dataset.json, else from a guess.

    rates: (h, w), spikes per plane of each pixel.
    """
    info = nearest_info(path)
    # The guess for the rate at full light: 99.5 % of the pixels have at most this rate. The
    # brightest 0.5 % are left out, because a few hot pixels would make the whole image dark. The
    # guess must be above 0 also for a file without spikes, because the rates are divided by it.
    brightest_rate = float(np.percentile(rates, 99.5))
    white = max(brightest_rate, 1e-6)
    # A rate of None or 0 counts as not given.
    if not rate:
        rate = info.rate or white
    if not light:
        light = info.light or "linear"
    return {"rate": rate, "light": light, "gamma": DISPLAY_GAMMA}


class PlaneReader:
    """Reads a spike file once from front to back, and returns windows of its planes.

    Only `Rendering.images` uses this class. The memory holds the latest window and the block of
    planes that was read last.

    in_memory: planes (n, h, w).
    first_in_memory: number of the first plane in memory, counted from the start of the file.
    """

    def __init__(self, file: SpikeFile, first: int, end: int) -> None:
        """Prepare to read windows within the planes first ... end - 1 of the file."""
        self.blocks = file.parts(first, end - first)  # yields some planes at a time
        self.in_memory = np.empty((0, *file.size), np.uint8)
        self.first_in_memory = first

    def planes(self, begin: int, end: int) -> np.ndarray:
        """Return the planes begin ... end - 1 of the file, (end - begin, h, w).

        The windows of successive calls must move forwards, because planes before a window may be
        forgotten. E.g. the planes 0 ... 31 are in memory, and the window 20 ... 40 is asked for.
        Then the planes 0 ... 19 are forgotten, and the next block is read, which begins with plane
        32.
        """
        while self.first_in_memory + len(self.in_memory) < end:
            # A window may begin after all planes in memory. E.g. the planes 0 ... 31 are in memory,
            # and the window begins at 40: all 32 planes are forgotten, min(40, 32).
            before_window = max(begin - self.first_in_memory, 0)
            forgotten = min(before_window, len(self.in_memory))
            kept = self.in_memory[forgotten:]
            self.in_memory = np.concatenate((kept, next(self.blocks)))
            self.first_in_memory += forgotten
        # Turn numbers of planes in the file into positions in memory.
        first = begin - self.first_in_memory
        stop = end - self.first_in_memory
        return self.in_memory[first:stop]

"""What both cameras recorded around one exposure, as the planes themselves and not as channels.

A plane is one binary picture (h, w) of the spike camera. The planes of an exposure and some around
it are a stream (T, h, w). Times are counted in planes from the first plane of the stream. Plane p
collects light from p to p + 1, and its spikes end an interval at p + 1.

    RecordedClip    a clip: `read` reads the recording of a frame, `gain` measures the spike pixels
    Recording       one exposure: the blurry frame and its stream
    View            where the spike pixels lie on the frame

The joint solution and the motion are made from these (data/motion/joint.py, data/motion/flow.py).

Tests: tests/parts/data/test_joint.py, tests/parts/data/test_motion.py
"""

import itertools
from dataclasses import dataclass

import cv2
import numpy as np

from data.augment import Augment
from data.cameras.spike_info import spike_errors_as_data_errors
from data.clip import Clip, Exposure
from data.clips.readers import DatasetClip
from data.spike.formats import Crop
from data.spike.simulate import DISPLAY_GAMMA, LUMA, to_linear, window_light
from utils.errors import DataError

# Most frames of a clip from which the gain of each spike pixel is measured.
MOST_FRAMES = 16
# Number of windows that divide an exposure where the course of its light is needed.
PARTS = 8
# A gain is spikes / light. Light below this counts as this, so that a black pixel has a finite
# gain.
DARK = 1e-3
# The median gain is at least this, so that a clip without any spike has a gain that is not 0.
LEAST_GAIN = 1e-6
# A pixel whose gain differs from the median by more than this factor is not trusted: it is dead,
# hot, or was too dark in all frames.
ODD_GAIN = 2.5


@dataclass(frozen=True)
class View:
    """Where the spike pixels lie on the frame, and what they integrate."""

    size: tuple[int, int]  # (H, W) of the frames
    plane: tuple[int, int]  # (h, w) of the spike planes
    to_rgb: np.ndarray  # (3, 3), spike pixel (x, y, 1) -> RGB pixel, up to a factor
    is_display: bool  # whether the sensor integrates display values, and not light
    lens_blur: float = 0.0  # sigma of the lens in spike pixels, see `Calibration`
    rolling: float = 0.0  # how much later the last row is exposed, see `Calibration`
    # If the rows are a band of a larger frame (data/motion/bands.py): the row of the larger frame
    # at which the band begins, and the number of its rows. None: the frame is whole.
    first_row: int = 0
    all_rows: int | None = None

    @property
    def fine(self) -> tuple[int, int]:
        """Return the number of points in a spike pixel, (down, across).

        There is about one point for each RGB pixel: a spike pixel that is 2.9 RGB pixels high and
        3.1 wide has (3, 3) points. The mean over its points is what a spike pixel sees.
        """
        # The columns of the matrix are the steps on the frame to the next spike pixel: axis 1 down,
        # axis 0 across. Their lengths are the sides of a spike pixel.
        below, right = (np.hypot(*self.to_rgb[:2, axis]) for axis in (1, 0))
        return max(1, round(float(below))), max(1, round(float(right)))

    def delays(self) -> np.ndarray:
        """Return by how much each row is exposed later than the middle of the whole frame.

        Returns (H,), as shares of the exposure: from -rolling / 2 (top) to rolling / 2 (bottom).
        """
        height, _ = self.size
        row = self.first_row + np.arange(height)
        last_row = max((self.all_rows or height) - 1, 1)  # a frame of one row has no last row
        return (row / last_row - 0.5) * self.rolling

    def places(self) -> np.ndarray:
        """Return where the points of the spike pixels lie on the frame.

        Returns (h m, w n, 2) float32, x and y in RGB pixels; (m, n) is `fine`.
        """
        # A pixel reaches from -0.5 to 0.5 around its place. With 2 points they are at -0.25 and
        # 0.25.
        down, across = self.fine
        y = (np.arange(self.plane[0] * down) + 0.5) / down - 0.5
        x = (np.arange(self.plane[1] * across) + 0.5) / across - 0.5
        return mapped(self.to_rgb, _grid(x, y))

    def means(self, picture: np.ndarray) -> np.ndarray:
        """Return the means of a picture (H, W) float32 over the spike pixels, (h, w)."""
        # Sample the picture at all points, then take the mean over each spike pixel.
        x, y = np.moveaxis(self.places(), -1, 0)
        points = cv2.remap(picture, x, y, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)
        return cv2.resize(points, self.plane[::-1], interpolation=cv2.INTER_AREA)

    def spike_places(self) -> np.ndarray:
        """Return where the RGB pixels lie on the spike plane: (H, W, 2) float32, x and y."""
        height, width = self.size
        return mapped(np.linalg.inv(self.to_rgb), _grid(np.arange(width), np.arange(height)))


def _grid(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the points (h, w, 2) of a grid. x: (w,). y: (h,)."""
    return np.stack(np.broadcast_arrays(x[None], y[:, None]), axis=-1)


def mapped(matrix: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Map places by a matrix, e.g. from the spike plane to the frame. Returns (h, w, 2) float32.

    matrix: (3, 3), a homography. places: (h, w, 2), x and y in pixels.
    """
    x, y = places[..., 0], places[..., 1]
    points = np.stack(np.broadcast_arrays(x, y, 1.0))  # (3, h, w)
    # A homography gives a point up to a factor, its third coordinate.
    right, below, depth = np.tensordot(matrix, points, 1)
    return np.stack((right / depth, below / depth), axis=-1).astype(np.float32)


@dataclass(frozen=True)
class Recording:
    """What both cameras recorded during one exposure, and the spikes around it."""

    blurry: np.ndarray  # (H, W, 3) float32, display values in [0, 1], R, G, B
    stream: np.ndarray  # (T, h, w) uint8 in {0, 1}, the planes of the exposure and around it
    begin: int  # time at which the exposure begins: the index of its first plane
    end: int  # time at which it ends: the index of the plane after its last
    sharp: float  # time of the sharp frame, e.g. 44.5, the middle of plane 44

    @property
    def length(self) -> int:
        """Return the number of planes in the exposure."""
        return self.end - self.begin

    def window(self, time: float, planes: float) -> tuple[int, int]:
        """Return (first plane, plane after the last) of a window around a time.

        Planes that were not recorded are left out. At least one plane is left: the nearest one.

        time: the middle of the window. planes: its length.
        """
        last = len(self.stream)
        begin = min(max(round(time - planes / 2), 0), last - 1)
        end = min(max(round(time + planes / 2), begin + 1), last)
        return begin, end

    def parts(self, count: int) -> list[tuple[int, int]]:
        """Return windows that divide the exposure, as evenly as planes allow.

        E.g. 3 windows of planes 0..7 are (0, 3), (3, 5), (5, 8). count: number of windows. There
        are fewer if the exposure has fewer planes.
        """
        count = min(count, self.length)
        edges = np.linspace(self.begin, self.end, count + 1).round().astype(int).tolist()
        return list(itertools.pairwise(edges))

    def light(self, windows: list[tuple[int, int]]) -> np.ndarray:
        """Return the spikes per plane in each window, (windows, h, w) float32.

        `window_light` counts the part of an interval that lies in a window, so that a short window
        without a spike is not black.

        windows: (first plane, plane after the last) of each.
        """
        sums = window_light(self.stream, windows)
        return np.stack(
            [part / (b - a) for part, (a, b) in zip(sums, windows, strict=True)]
        ).astype(np.float32)


class RecordedClip:
    """The recordings of a clip, one for each frame.

    reader: the clip. context: number of planes that are read on each side of an exposure. None:
    half as many as the longest exposure has.

    Raises DataError if the clip has no spikes.
    """

    def __init__(self, reader: DatasetClip, context: int | None) -> None:
        clip = reader.clip
        if not clip.spikes:
            raise DataError(
                what=f"clip {clip.name} has no spikes",
                where="spike",
                expected="the spikes of each exposure",
                do="add them, or choose a method that needs none",
            )
        self.reader = reader
        self.frames = len(reader.stems)
        # Which planes of which files belong to each exposure, with the context around it. They are
        # the planes that were exposed: `clip.exposures` has a few more, of which channels are made.
        if context is None:
            exposed = _exposures(clip, context=0)
            context = max(exposure.own.count for exposure in exposed) // 2
        self._exposures = _exposures(clip, context)
        geometry = clip.spikes.geometry
        self._plane = Crop(0, 0, geometry.height, geometry.width)
        self.view = _view(clip)

    def read(self, frame: int) -> Recording:
        """Return the recording of a frame. Reads its files. frame: number of the frame, from 0."""
        # A drawn sample of one frame says what was simulated for it, e.g. another spike camera.
        reader = self.reader
        draw = reader.dataset.draw(reader.clip_index, frame, 1)
        clip, exposure = draw.clip, self._exposures[frame]
        files = reader.dataset.files
        with spike_errors_as_data_errors():
            # An exposure may reach over several spike files. Read all planes whole.
            pieces = [files.stream(clip, piece, self._plane) for piece in exposure.pieces]
        stream = np.concatenate(pieces)
        if draw.camera:
            stream = draw.camera.apply(stream, frame)
        # OpenCV has the colours in the order B, G, R. They are turned below.
        [blurry] = files.images(clip, "lq", [frame], Augment.whole(clip.size))  # B, G, R
        begin = exposure.before
        return Recording(
            blurry=np.ascontiguousarray(blurry[..., ::-1]) / np.float32(255),
            stream=stream,
            begin=begin,
            end=begin + exposure.own.count,
            sharp=begin + exposure.center + 0.5,  # the middle of its plane
        )

    def gain(self) -> tuple[np.ndarray, np.ndarray]:
        """Measure the gain of each spike pixel: its spikes per plane at full light.

        It is spikes over light. The light comes from the blurry frames, because both cameras
        collect the same light in an exposure. So neither the threshold of the sensor nor its fixed
        pattern need be known. Up to 16 frames of the clip, spread evenly, count together.

        Returns the gain (h, w) float32, and whether each pixel can be trusted (h, w) bool. A pixel
        that cannot be trusted has the median gain.
        """
        # Sums over the frames, (h, w): spikes per plane, and light in [0, 1].
        fired = np.zeros(self.view.plane)
        light = np.zeros(self.view.plane)
        chosen = np.linspace(0, self.frames - 1, min(self.frames, MOST_FRAMES)).round().astype(int)
        for frame in chosen.tolist():
            recording = self.read(frame)
            rates = recording.light(recording.parts(PARTS))
            fired += rates.mean(axis=0)
            # What the frame says the spike pixels have integrated. A sensor of display values needs
            # a correction, see `_of_mean_light`.
            seen = self.view.means(integrated(recording.blurry, self.view.is_display))
            if self.view.is_display:
                seen *= _of_mean_light(rates)
            light += seen
        gain = fired / np.maximum(light, DARK * len(chosen))
        usual = max(float(np.median(gain)), LEAST_GAIN)
        is_good = (gain > usual / ODD_GAIN) & (gain < usual * ODD_GAIN)
        return np.where(is_good, gain, usual).astype(np.float32), is_good


def _exposures(clip: Clip, context: int) -> tuple[Exposure, ...]:
    """Return the planes during which each frame was exposed, and `context` planes on each side."""
    files = list(clip.spike_files.items())  # (path, number of its planes)
    spikes = clip.spikes.of_exposure(context)
    return spikes.exposures(clip.name, files, len(clip), clip.times)


def _of_mean_light(rates: np.ndarray) -> np.ndarray:
    """Return (mean display value) / (display value of the mean light), (h, w), at most 1.

    The blurry frame shows the mean light of an exposure, as a display value. A sensor of display
    values counts their mean, which is less if the light changes: for half the time 0 and half the
    time 1, the mean is 0.5, and the display value of the mean light is 0.73.

    rates: (parts, h, w), proportional to the display values in parts of an exposure.
    """
    mean_light = np.mean(rates**DISPLAY_GAMMA, axis=0)
    shown = np.maximum(mean_light, 1e-12) ** (1 / DISPLAY_GAMMA)
    # A pixel without any spike has no course of light: nothing is corrected.
    return np.where(mean_light > 0, rates.mean(axis=0) / shown, 1.0)


def integrated(frame: np.ndarray, is_display: bool) -> np.ndarray:
    """Return what a spike camera integrates of a frame: its luma (H, W).

    frame: (H, W, 3), display values in [0, 1]. is_display: whether the camera integrates the luma
    of the display values, and not the luma of their light.
    """
    return (frame if is_display else to_linear(frame)) @ LUMA


def spikes_at_full_light(recording: Recording, view: View) -> float:
    """Return how many spikes a spike pixel at full light would have in an exposure.

    It is the number of all spikes over all light, so that a dark scene counts as a bright one. A
    black frame counts as light of 1 / 1000.
    """
    exposure = recording.stream[recording.begin : recording.end]
    spikes = float(exposure.mean()) * recording.length
    light = float(view.means(integrated(recording.blurry, view.is_display)).mean())
    return spikes / max(light, DARK)


def _view(clip: Clip) -> View:
    """Return where the spike pixels of a clip lie on its frames, with or without a calibration."""
    geometry, calibration = clip.spikes.geometry, clip.spikes.calibration
    plane = (geometry.height, geometry.width)
    is_display = clip.spikes.light == "display"
    if calibration:
        matrix, lens_blur, rolling = (
            calibration.to_rgb(),
            calibration.lens_blur,
            calibration.rolling,
        )
        return View(clip.size, plane, matrix, is_display, lens_blur, rolling)
    # Both cameras have the same view, which the frame and the plane fill. With 3 RGB pixels across
    # a spike pixel, the middle of spike pixel 0 is at RGB pixel 1 = (3 - 1) / 2.
    down, across = clip.size[0] / plane[0], clip.size[1] / plane[1]
    matrix = np.array([[across, 0, (across - 1) / 2], [0, down, (down - 1) / 2], [0, 0, 1]])
    return View(clip.size, plane, matrix, is_display)

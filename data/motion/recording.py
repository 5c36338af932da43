"""What both cameras recorded around one exposure, as the planes themselves and not as channels.

Times are counted in planes from the first plane of the stream. Plane p collects light from
p to p + 1, and its spikes end an interval at p + 1.
"""

import itertools
from dataclasses import dataclass

import cv2
import numpy as np

from data.augment import Augment
from data.cameras.spike_info import spike_errors_as_data_errors
from data.clip import Clip
from data.clips.readers import DatasetClip
from data.spike.formats import Crop
from data.spike.simulate import DISPLAY_GAMMA, LUMA, to_linear, window_light
from utils.errors import DataError

# Frames of a clip from which the gain of each spike pixel is measured.
MOST_FRAMES = 16
# Parts of an exposure in which light is compared with its mean.
PARTS = 8
# Least light that a gain is divided by. It keeps black pixels finite.
DARK = 1e-3
# Least gain, of a clip without spikes.
LEAST_GAIN = 1e-6
# A pixel whose gain differs from the median by more than this factor is dead, hot or too dark.
ODD_GAIN = 2.5


@dataclass(frozen=True)
class View:
    """Where the spike pixels lie on the frame, and what they integrate.

    size: (H, W) of the frames. plane: (h, w) of the spike planes. to_rgb: (3, 3), spike pixel
    (x, y, 1) -> RGB pixel. is_display: whether the sensor integrates display values, not light.
    lens_blur, rolling: see `Calibration`.
    """

    size: tuple[int, int]
    plane: tuple[int, int]
    to_rgb: np.ndarray
    is_display: bool
    lens_blur: float = 0.0
    rolling: float = 0.0

    @property
    def fine(self) -> tuple[int, int]:
        """Points of the frame in a spike pixel, down and across: about one for each RGB pixel."""
        below, right = (np.hypot(*self.to_rgb[:2, axis]) for axis in (1, 0))
        return max(1, round(float(below))), max(1, round(float(right)))

    def places(self) -> np.ndarray:
        """Return where the points of the spike pixels lie on the frame.

        Returns (h m, w n, 2) float32, x and y in RGB pixels; (m, n) is `fine`.
        """
        down, across = self.fine
        y = (np.arange(self.plane[0] * down) + 0.5) / down - 0.5
        x = (np.arange(self.plane[1] * across) + 0.5) / across - 0.5
        return mapped(self.to_rgb, _grid(x, y))

    def means(self, picture: np.ndarray) -> np.ndarray:
        """Return the means of a picture (H, W) float32 over the spike pixels, (h, w)."""
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
    """Map places (h, w, 2), x and y, by a matrix (3, 3). Returns (h, w, 2) float32."""
    x, y = places[..., 0], places[..., 1]
    points = np.stack(np.broadcast_arrays(x, y, 1.0))  # (3, h, w)
    right, below, depth = np.tensordot(matrix, points, 1)
    return np.stack((right / depth, below / depth), axis=-1).astype(np.float32)


@dataclass(frozen=True)
class Recording:
    """What both cameras recorded during one exposure, and the spikes around it.

    blurry: (H, W, 3) float32, display values in [0, 1], R, G, B. stream: (T, h, w) uint8 in
    {0, 1}, the planes of the exposure and around it. begin, end: times of the exposure. sharp:
    time of the sharp frame.
    """

    blurry: np.ndarray
    stream: np.ndarray
    begin: int
    end: int
    sharp: float

    @property
    def length(self) -> int:
        return self.end - self.begin

    def window(self, time: float, planes: float) -> tuple[int, int]:
        """Return (first plane, plane after the last) of a window around a time.

        Planes that were not recorded are left out; at least one is there.
        """
        last = len(self.stream)
        begin = min(max(round(time - planes / 2), 0), last - 1)
        end = min(max(round(time + planes / 2), begin + 1), last)
        return begin, end

    def parts(self, count: int) -> list[tuple[int, int]]:
        """Return windows that divide the exposure, as evenly as planes allow."""
        count = min(count, self.length)
        edges = np.linspace(self.begin, self.end, count + 1).round().astype(int).tolist()
        return list(itertools.pairwise(edges))

    def light(self, windows: list[tuple[int, int]]) -> np.ndarray:
        """Return the spikes per plane (windows, h, w) float32, by
        `data.spike.simulate.window_light`.
        """
        sums = window_light(self.stream, windows)
        return np.stack(
            [part / (b - a) for part, (a, b) in zip(sums, windows, strict=True)]
        ).astype(np.float32)


class RecordedClip:
    """The recordings of a clip of a test set.

    reader: the clip. context: planes that are read on each side of an exposure; None: half as
    many as it has.
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
        if context is None:
            context = max(exposure.own.count for exposure in clip.exposures) // 2
        files = list(clip.spike_files.items())
        wide = clip.spikes.changed(context=context)
        self._exposures = wide.exposures(clip.name, files, len(clip), clip.times)
        geometry = clip.spikes.geometry
        self._plane = Crop(0, 0, geometry.height, geometry.width)
        self.view = _view(clip)

    def read(self, frame: int) -> Recording:
        """Return the recording of one frame."""
        reader = self.reader
        draw = reader.dataset.draw(reader.index, frame, 1)
        clip, exposure = draw.clip, self._exposures[frame]
        files = reader.dataset.files
        with spike_errors_as_data_errors():
            pieces = [files.stream(clip, piece, self._plane) for piece in exposure.pieces]
        stream = np.concatenate(pieces)
        if draw.camera:
            stream = draw.camera.apply(stream, frame)
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
        """Measure the spikes per plane of each spike pixel at full light.

        The exposures of both cameras collect the same light, so threshold and fixed pattern may be
        unknown. Up to 16 frames of the clip, spread evenly, count together.
        Returns the gain (h, w) float32, and whether each pixel can be trusted (h, w). A pixel that
        cannot has the median gain.
        """
        fired = np.zeros(self.view.plane)
        light = np.zeros(self.view.plane)
        chosen = np.linspace(0, self.frames - 1, min(self.frames, MOST_FRAMES)).round().astype(int)
        for frame in chosen.tolist():
            recording = self.read(frame)
            rates = recording.light(recording.parts(PARTS))
            fired += rates.mean(axis=0)
            seen = self.view.means(integrated(recording.blurry, self.view.is_display))
            if self.view.is_display:
                seen *= _of_mean_light(rates)
            light += seen
        gain = fired / np.maximum(light, DARK * len(chosen))
        usual = max(float(np.median(gain)), LEAST_GAIN)
        is_good = (gain > usual / ODD_GAIN) & (gain < usual * ODD_GAIN)
        return np.where(is_good, gain, usual).astype(np.float32), is_good


def _of_mean_light(rates: np.ndarray) -> np.ndarray:
    """Return the mean of display values over the display value of their mean light, at most 1.

    rates: (parts, h, w), proportional to the display values in parts of an exposure. The blurry
    frame shows the mean light, and the spike camera counts the mean display value.
    """
    mean_light = np.mean(rates**DISPLAY_GAMMA, axis=0)
    shown = np.maximum(mean_light, 1e-12) ** (1 / DISPLAY_GAMMA)
    return np.where(mean_light > 0, rates.mean(axis=0) / shown, 1.0)


def integrated(frame: np.ndarray, is_display: bool) -> np.ndarray:
    """Return what a spike camera sees of a frame (H, W, 3): the luma (H, W).

    frame: display values. is_display: whether the luma is that of the display values, and not of
    their light.
    """
    return (frame if is_display else to_linear(frame)) @ LUMA


def _view(clip: Clip) -> View:
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
    # Both cameras have the same view, which the frame and the plane fill.
    down, across = clip.size[0] / plane[0], clip.size[1] / plane[1]
    matrix = np.array([[across, 0, (across - 1) / 2], [0, down, (down - 1) / 2], [0, 0, 1]])
    return View(clip.size, plane, matrix, is_display)

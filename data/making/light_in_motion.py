"""The light of any instant, of a video by optical flow, or of a photograph seen in motion."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import cv2
import numpy as np

from data.clips.files import FrameSource
from data.spike.simulate import to_grey, to_linear

MOST_STEP = 8.0  # pixels between two frames that are interpolated, 95th percentile
CUT = 40.0  # mean difference in grey levels of two frames with another scene
MOST_AVERAGE = 4  # frames of an ordinary video in one exposure
LIGHT = to_linear(np.arange(256, dtype=np.float32) / 255.0)
FINE = 2  # pixels of a photograph per RGB pixel, each way


def smooth_walk(
    rng: np.random.Generator, planes: int, amplitude: float, periods: tuple[float, float]
) -> np.ndarray:
    """Return (planes,), a sum of four sines with random periods. Its peak is near `amplitude`.

    periods: the shortest and the longest period, in planes.
    """
    t = np.arange(planes)
    walk = np.zeros(planes)
    for weight in (0.4, 0.3, 0.2, 0.1):
        period = np.exp(rng.uniform(*np.log(periods)))
        walk += weight * np.sin(2 * np.pi * (t / period + rng.uniform()))
    return amplitude * walk


class LightPath:
    """The light at any time between the frames of a clip.

    Both neighbours A and B are moved along the optical flow and mixed. At the share p of the time
    from A to B, with the flows f: A -> B and g: B -> A,

        light(x) = (1 - p) A(x - p f(x)) + p B(x - (1 - p) g(x)).

    light: function number of a frame -> its light (h, w) or (h, w, 3) float32.
    count: number of frames.
    method: "flow", or "linear", which only mixes them.
    """

    def __init__(
        self, light: Callable[[int], np.ndarray], count: int, method: str = "flow"
    ) -> None:
        self.light = lru_cache(2)(light)
        self.count = count
        self.method = method
        self._flows: tuple[int, np.ndarray, np.ndarray] | None = None  # A's number, f, g
        self._dis: Any = cv2.DISOpticalFlow.create(cv2.DISOPTICAL_FLOW_PRESET_FAST)

    def at(self, time: float) -> np.ndarray:
        """Return the light at `time` in frames, in the form of a frame.

        It is constant before the first and after the last frame.
        """
        time = min(max(time, 0.0), self.count - 1.0)
        index = min(int(time), max(self.count - 2, 0))
        share = time - index
        if min(share, 1 - share) < 1e-9:
            return self.light(round(time))
        before = self.light(index)
        after = self.light(index + 1)
        if self.method == "linear":
            return (1 - share) * before + share * after
        forward, backward = self._flows_from(index)
        p = np.float32(share)
        moved_before = _moved(before, -p * forward)
        moved_after = _moved(after, (p - 1) * backward)
        return (1 - p) * moved_before + p * moved_after

    def _flows_from(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the flows between frame `index` and the next one, there and back."""
        if self._flows is None or self._flows[0] != index:
            a = _for_flow(self.light(index))
            b = _for_flow(self.light(index + 1))
            self._flows = (index, self._dis.calc(a, b, None), self._dis.calc(b, a, None))
        _, forward, backward = self._flows
        return forward, backward


def _for_flow(light: np.ndarray) -> np.ndarray:
    """Return (h, w) uint8 of a frame's light, as display values of gamma 2.

    The flow compares grey levels. In linear light it would hardly see the dark parts.
    """
    grey = light if light.ndim == 2 else light.mean(axis=2)
    return (np.sqrt(np.clip(grey, 0, 1)) * 255).astype(np.uint8)


def _moved(light: np.ndarray, shift: np.ndarray) -> np.ndarray:
    """Return the light at x + shift(x). shift: (h, w, 2) in pixels, x first."""
    height, width = light.shape[:2]
    columns = np.arange(width, dtype=np.float32)
    rows = np.arange(height, dtype=np.float32)
    x, y = np.meshgrid(columns, rows)
    x = x + shift[..., 0]
    y = y + shift[..., 1]
    return cv2.remap(light, x, y, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)


def grey_light(
    frames: FrameSource, size: tuple[int, int], gamma: float
) -> Callable[[int], np.ndarray]:
    """Return the function number of a frame -> its grey light (h, w) of `size`.

    gamma: exponent from display values to light.
    """
    curve = to_linear(np.arange(256, dtype=np.float32) / 255.0, gamma)
    height, width = size

    def light(number: int) -> np.ndarray:
        grey = to_grey(cv2.LUT(frames.read(number), curve))
        return cv2.resize(grey, (width, height), interpolation=cv2.INTER_AREA)

    return light


# ---- Videos ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cut:
    """A part of a video.

    first: its first frame.
    average: number of frames in one interval.
    side: shorter side to which its frames are scaled.
    """

    first: int
    average: int
    side: int


def scaled(picture: np.ndarray, side: int) -> np.ndarray:
    """Return the picture with a shorter side of `side` pixels. A smaller one stays as it is."""
    height, width = picture.shape[:2]
    share = min(1.0, side / min(height, width))
    if share == 1:
        return picture
    size = (round(width * share), round(height * share))
    return cv2.resize(picture, size, interpolation=cv2.INTER_AREA)


def find_cuts(
    frames: FrameSource,
    count: int,
    sides: tuple[int, int],
    average: int | None,
    rng: np.random.Generator,
) -> list[Cut]:
    """Return the parts of a video that can be interpolated, without a change of the scene.

    count: number of frame intervals of a part.
    sides: the shortest and the longest shorter side of the scaled frames. The shorter it is, the
    smaller is the motion in pixels.
    average: number of frames of an interval, or None for 1 to MOST_AVERAGE, drawn for each part.
    """
    least_side, most_side = sides
    side = min(most_side, *frames.size)
    steps = _steps(frames, side)
    cuts = []
    first = 0
    while True:
        most = (len(frames) - first - 2) // count
        if most < (average or 1):
            return cuts
        each = average or int(rng.integers(1, min(most, MOST_AVERAGE) + 1))
        part = np.array(steps[first : first + each * count + 1])
        # Steps that are too long even if the frames are scaled to the least side.
        wrong = np.flatnonzero(part > MOST_STEP * side / least_side).tolist()
        if wrong:
            first += wrong[-1] + 1
            continue
        slow_enough = side * MOST_STEP / max(float(part.max()), MOST_STEP)
        cuts.append(Cut(first, each, max(least_side, int(slow_enough))))
        first += each * count


def _steps(frames: FrameSource, side: int) -> list[float]:
    """Return the motion in pixels from each frame to the next, inf at a change of the scene.

    side: shorter side to which the frames are scaled.
    """
    dis: Any = cv2.DISOpticalFlow.create(cv2.DISOPTICAL_FLOW_PRESET_ULTRAFAST)
    steps = []
    before = None
    for number in range(len(frames)):
        grey = cv2.cvtColor(scaled(frames.read(number), side), cv2.COLOR_RGB2GRAY)
        if before is not None:
            flow = dis.calc(before, grey, None)
            if cv2.absdiff(grey, before).mean() > CUT:
                steps.append(np.inf)
            else:
                lengths = np.hypot(flow[..., 0], flow[..., 1])
                steps.append(float(np.percentile(lengths, 95)))
        before = grey
    return steps


def video_scene(
    frames: FrameSource, cut: Cut, count: int, planes: int, crop: int, rng: np.random.Generator
) -> Iterator[np.ndarray]:
    """Yield the light (crop, crop, 3) float32 of each plane of a cut.

    The crop moves as a hand would move it. At the sharp instants, plane planes // 2 of each
    interval, the light is a part of a scaled frame of the video, without interpolation: the crop
    lies on whole pixels.

    count: number of frame intervals. planes: number of planes in an interval.
    """

    def light_of(number: int) -> np.ndarray:
        return cv2.LUT(scaled(frames.read(cut.first + number), cut.side), LIGHT)

    # Half an interval before the first sharp instant and after the last one, rounded up.
    path = LightPath(light_of, cut.average * count + 2)
    height, width = path.at(0.0).shape[:2]
    free = np.array((width, height)) - crop  # pixels by which the crop can move
    total = count * planes
    sharp = range(planes // 2, total, planes)
    corners = np.empty((total, 2))
    for axis, most in enumerate(free):
        amplitude = rng.uniform(0.1, 1.0) * min(free) / 2
        walk = smooth_walk(rng, total, amplitude, (2.0 * planes, 8.0 * planes))
        walk += rng.uniform(amplitude, most - amplitude)
        # Shift the walk so that it lies on whole pixels at the sharp instants, smoothly between.
        to_whole_pixel = np.round(walk) - walk
        walk += np.interp(range(total), sharp, to_whole_pixel[sharp])
        corners[:, axis] = np.clip(walk, 0, most)
    for plane, corner in enumerate(corners):
        time = (cut.average + 1) // 2 + cut.average * (plane - planes // 2) / planes
        x, y = (corner + (crop - 1) / 2).tolist()  # middle of the crop
        yield cv2.getRectSubPix(path.at(time), (crop, crop), (x, y))


# ---- Photographs -----------------------------------------------------------------------------


@dataclass(frozen=True)
class _Layer:
    """A piece of a photograph that moves on its own.

    sheet: (H, W, 4) light and opacity, the light multiplied by the opacity.
    places: (planes, 2) x and y of the sheet that lie in the middle of the view.
    border: how the sheet goes on beyond its edges.
    """

    sheet: np.ndarray
    places: np.ndarray
    border: int


def photo_scene(
    picture: np.ndarray, side: int, count: int, planes: int, crop: int, rng: np.random.Generator
) -> Iterator[np.ndarray]:
    """Yield the light (crop, crop, 3) float32 of each plane of a photograph in motion.

    The camera pans, zooms, turns and tilts. Two pieces of the photograph, nearer than the rest,
    move more and on their own.

    picture: (H, W, 3) uint8, scaled down to a shorter side of FINE x side.
    count, planes: see `video_scene`.
    """
    light = cv2.LUT(scaled(picture, FINE * side), LIGHT)
    total = count * planes
    fine = FINE * crop
    walk = partial(smooth_walk, rng, total, periods=(2.0 * planes, 8.0 * planes))

    # The camera: shake in pixels, angle in radians, zoom, and the third row of a homography.
    pans = [walk(rng.uniform(2, crop / 6)) for _ in range(2)]
    shake = FINE * np.stack(pans, axis=1)
    angles = walk(0.1)
    zooms = rng.uniform(1.0, 1.3) * np.exp(walk(0.08))
    tilts = np.stack([walk(0.1), walk(0.1)], axis=1) / fine
    time = (np.arange(total) / total - 0.5)[:, None] * count  # in intervals
    layers = [_layer(light, depth, shake, time, fine, rng) for depth in range(3)]

    middle_to_origin = _translation(-fine / 2, -fine / 2)
    flags = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
    for plane in range(total):
        view = _view(angles[plane], zooms[plane], tilts[plane])
        canvas = np.zeros((fine, fine, 3), np.float32)
        for layer in layers:
            x, y = layer.places[plane]
            to_sheet = _translation(x, y) @ view @ middle_to_origin
            seen = cv2.warpPerspective(
                layer.sheet, to_sheet, (fine, fine), flags=flags, borderMode=layer.border
            )
            opacity = seen[..., 3:]
            canvas = canvas * (1 - opacity) + seen[..., :3]
        yield cv2.resize(canvas, (crop, crop), interpolation=cv2.INTER_AREA)


def _layer(
    light: np.ndarray,
    depth: int,
    shake: np.ndarray,
    time: np.ndarray,
    fine: int,
    rng: np.random.Generator,
) -> _Layer:
    """Draw a layer. depth: 0 for the whole photograph, 1 and 2 for the nearer pieces.

    shake: (planes, 2) motion of the camera. time: (planes, 1) in intervals. fine: side of the view.
    """
    height, width = light.shape[:2]
    size = np.array((width, height))
    opacity = np.ones((height, width, 1), np.float32)
    if depth == 0:
        places = size / 2 + shake
        sheet = np.concatenate((light * opacity, opacity), axis=2)
        return _Layer(sheet, places, cv2.BORDER_REFLECT_101)
    middle = rng.uniform(0.3, 0.7, 2) * size
    speed = fine * rng.uniform(-0.05, 0.05, 2)  # pixels in an interval
    place = middle + fine * rng.uniform(-0.3, 0.3, 2)
    corners = middle + fine * rng.uniform(-0.2, 0.2, (8, 2))
    hull = cv2.convexHull(corners.astype(np.int32))
    piece = cv2.fillPoly(0 * opacity, [hull], 1.0, cv2.LINE_AA)
    opacity = cv2.GaussianBlur(piece, (0, 0), 0.8)[..., None]
    sheet = np.concatenate((light * opacity, opacity), axis=2)
    # The nearer the layer, the more it moves with the camera.
    places = place + (1 + 0.35 * depth) * shake + speed * time
    return _Layer(sheet, places, cv2.BORDER_CONSTANT)


def _view(angle: float, zoom: float, tilt: np.ndarray) -> np.ndarray:
    """Return the homography (3, 3) of a camera that is turned, zoomed and tilted."""
    cos = np.cos(angle)
    sin = np.sin(angle)
    view = np.array([[cos, -sin, 0], [sin, cos, 0], [0, 0, 1]])
    view[:2] /= zoom
    view[2, :2] = tilt
    return view


def _translation(x: float, y: float) -> np.ndarray:
    return np.array([[1, 0, x], [0, 1, y], [0, 0, 1]])

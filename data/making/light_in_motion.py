"""Give the light at any instant: of a video by optical flow, or of a photograph in motion.

A spike camera reads out thousands of planes a second, a video has tens or hundreds of frames. So
the light between two frames must be made up. `data/making/prepare.py` and `scripts/spike_tool.py`
use

    LightPath      the light at any time between the frames of a video, by interpolation
    find_cuts      the parts of a video in which this works: slow motion, no change of the scene
    video_scene    the light of each plane of such a part, seen through a crop that moves
    photo_scene    the light of each plane of a photograph that the camera moves over

Light is linear, float32, 1 at full scale. A "frame interval" is the time from one frame of the clip
to be made to the next; it has a number of planes, and may have several frames of the video.

The same source and seed must give the same light, because made data sets are continued and
published. So the order of random draws is fixed; VERSION in data/making/prepare.py tells a change.

Tests: tests/parts/scripts/test_prepare_gopro_spike.py
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import cv2
import numpy as np

from data.clips.files import FrameSource
from data.spike.simulate import to_grey, to_linear

# Largest motion, in pixels, between two frames that are interpolated. The motion is the distance
# below which 95 % of the pixels move.
MOST_STEP = 8.0
# Not the maximum, so that a few pixels with a wrong flow do not count.
STEP_PERCENTILE = 95
# If two frames differ by more than this on average, in grey levels of 255, the scene has changed.
SCENE_CHANGE = 40.0
# Largest number of frames of an ordinary video in one frame interval, if the number is drawn.
MOST_FRAMES_PER_INTERVAL = 4
# Display value 0 ... 255 -> linear light.
LIGHT = to_linear(np.arange(256, dtype=np.float32) / 255.0)
# Pixels of a photograph per RGB pixel along a side, so that its motion shows no pixels.
FINE = 2


def smooth_walk(
    rng: np.random.Generator, planes: int, amplitude: float, periods: tuple[float, float]
) -> np.ndarray:
    """Return (planes,), a sum of four sines with random periods. Its peak is near `amplitude`.

    periods: the shortest and the longest period, in planes.
    """
    shortest, longest = np.log(periods)
    t = np.arange(planes)
    walk = np.zeros(planes)
    for weight in (0.4, 0.3, 0.2, 0.1):  # they add up to 1
        period = np.exp(rng.uniform(shortest, longest))
        phase = rng.uniform()
        walk += weight * np.sin(2 * np.pi * (t / period + phase))
    return amplitude * walk


class LightPath:
    """The light at any time between the frames of a clip.

    Both neighbours A and B are moved along the optical flow and mixed. At the fraction p of the
    time from A to B, with the flows f: A -> B and g: B -> A,

        light(x) = (1 - p) A(x - p f(x)) + p B(x - (1 - p) g(x)).
    """

    def __init__(
        self, light: Callable[[int], np.ndarray], count: int, method: str = "flow"
    ) -> None:
        """Prepare a path through `count` frames.

        light: function that returns the light of a frame, (h, w) or (h, w, 3) float32, by number.
        method: "flow", or "linear", which only mixes the neighbours.
        """
        self.light = lru_cache(2)(light)  # A and B are asked for many times
        self.count = count
        self.method = method
        # The number of A, f and g of the last pair of neighbours.
        self._flows: tuple[int, np.ndarray, np.ndarray] | None = None
        self._dis: Any = cv2.DISOpticalFlow.create(cv2.DISOPTICAL_FLOW_PRESET_FAST)

    def at(self, time: float) -> np.ndarray:
        """Return the light at `time`, in the form of a frame.

        time: in frames, e.g. 2.25 is a quarter of the way from frame 2 to frame 3. The light is
        constant before the first and after the last frame.
        """
        time = min(max(time, 0.0), self.count - 1.0)
        # A is frame `index`. At the time of the last frame, B is the last frame.
        index = min(int(time), max(self.count - 2, 0))
        fraction = time - index
        is_frame = min(fraction, 1 - fraction) < 1e-9  # but for rounding errors
        if is_frame:
            return self.light(round(time))
        A = self.light(index)
        B = self.light(index + 1)
        if self.method == "linear":
            return (1 - fraction) * A + fraction * B
        f, g = self._flows_from(index)
        p = np.float32(fraction)
        moved_A = _moved(A, -p * f)
        moved_B = _moved(B, (p - 1) * g)
        return (1 - p) * moved_A + p * moved_B

    def _flows_from(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the flows f and g, (h, w, 2), between frame `index` and the next one."""
        if self._flows is None or self._flows[0] != index:
            a = _for_flow(self.light(index))
            b = _for_flow(self.light(index + 1))
            f = self._dis.calc(a, b, None)
            g = self._dis.calc(b, a, None)
            self._flows = (index, f, g)
        _, f, g = self._flows
        return f, g


def _for_flow(light: np.ndarray) -> np.ndarray:
    """Return (h, w) uint8 of a frame's light, as display values of gamma 2.

    The flow compares grey levels. In linear light it would hardly see the dark parts.
    """
    grey = light if light.ndim == 2 else light.mean(axis=2)
    display = np.sqrt(np.clip(grey, 0, 1))
    return (display * 255).astype(np.uint8)


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
    """Return a function that returns the grey light (h, w) of a frame, by number.

    size: (h, w), to which frames are scaled. gamma: exponent from display values to light.
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
    """A part of a video without a change of the scene. A made clip shows one such part.

    The names of the fields are keys of a file beside the made clips, so they stay.
    """

    first: int  # number of its first frame in the video
    average: int  # number of frames of the video in one frame interval
    side: int  # shorter side in pixels to which the frames are scaled


def scaled(picture: np.ndarray, side: int) -> np.ndarray:
    """Scale a picture to a shorter side of `side` pixels. A smaller picture stays as it is."""
    height, width = picture.shape[:2]
    factor = min(1.0, side / min(height, width))
    if factor == 1:
        return picture
    size = (round(width * factor), round(height * factor))
    return cv2.resize(picture, size, interpolation=cv2.INTER_AREA)


def find_cuts(
    frames: FrameSource,
    intervals: int,
    sides: tuple[int, int],
    frames_per_interval: int | None,
    rng: np.random.Generator,
) -> list[Cut]:
    """Return the parts of a video that can be interpolated, without a change of the scene.

    Each interval lies around its sharp frame, so the light of a part reaches half an interval
    beyond its first and its last sharp frame, and is interpolated there. A part therefore has two
    frames more than its intervals. With 3 intervals of 1 frame, a part that begins at frame 10 has

        frame    10       11       12       13       14
                      |  sharp |  sharp |  sharp |

    The light goes from the time 10.5 to 13.5. The part has 5 frames and 4 steps from frame to
    frame, and the next part begins at frame 13.

    intervals: number of frame intervals of a part.
    sides: smallest and largest allowed value of `Cut.side`, the shorter side of the scaled frames.
    In smaller frames, the motion is fewer pixels, so more parts can be interpolated.
    frames_per_interval: None draws 1 to MOST_FRAMES_PER_INTERVAL for each part.
    rng: the order of its draws belongs to the made data sets, one draw for each part that is tried.
    """
    least_side, most_side = sides
    side = min(most_side, *frames.size)
    steps = _steps(frames, side)  # motion in pixels from frame to frame, at this side
    cuts = []
    first = 0
    while True:
        # The next part begins at frame `first`. How many frames can each interval have?
        frames_left = len(frames) - first - 2  # without the frames before and after
        most = frames_left // intervals
        least = 1 if frames_per_interval is None else frames_per_interval
        if most < least:
            return cuts
        if frames_per_interval is None:
            average = int(rng.integers(1, min(most, MOST_FRAMES_PER_INTERVAL) + 1))
        else:
            average = frames_per_interval
        frames_of_part = average * intervals + 2
        steps_of_part = np.array(steps[first : first + frames_of_part - 1])

        # Motion in pixels is proportional to the side. `steps` are measured at `side`, so a motion
        # of MOST_STEP in frames of `least_side` is a longer motion there. If a step is longer than
        # this or is a change of the scene (inf), begin again after the last such step.
        most_step = MOST_STEP * side / least_side
        too_long = np.flatnonzero(steps_of_part > most_step).tolist()
        if too_long:
            first += too_long[-1] + 1
            continue

        # The largest side at which the longest step has at most MOST_STEP pixels. Frames are never
        # enlarged: if the longest step is shorter, the side stays.
        longest = max(float(steps_of_part.max()), MOST_STEP)
        side_of_part = max(least_side, int(side * MOST_STEP / longest))
        cuts.append(Cut(first, average, side_of_part))
        first += average * intervals


def _steps(frames: FrameSource, side: int) -> list[float]:
    """Return the motion in pixels from each frame to the next, inf at a change of the scene.

    side: shorter side to which the frames are scaled.
    """
    dis: Any = cv2.DISOpticalFlow.create(cv2.DISOPTICAL_FLOW_PRESET_ULTRAFAST)
    steps = []
    before = None
    for number in range(len(frames)):
        picture = scaled(frames.read(number), side)
        grey = cv2.cvtColor(picture, cv2.COLOR_RGB2GRAY)
        if before is not None:
            flow = dis.calc(before, grey, None)  # (h, w, 2)
            difference = cv2.absdiff(grey, before).mean()
            if difference > SCENE_CHANGE:
                steps.append(np.inf)
            else:
                lengths = np.hypot(flow[..., 0], flow[..., 1])
                steps.append(float(np.percentile(lengths, STEP_PERCENTILE)))
        before = grey
    return steps


def video_scene(
    frames: FrameSource, cut: Cut, count: int, planes: int, crop: int, rng: np.random.Generator
) -> Iterator[np.ndarray]:
    """Yield the light (crop, crop, 3) float32 of each plane of a cut.

    The crop moves as a hand would move it. The sharp instant of each interval is its middle plane,
    number planes // 2. There the light is a part of one scaled frame of the video, and nothing is
    interpolated. This needs two things: the time of the sharp instant is the time of a frame, and
    the corner of the crop lies on a whole pixel.

    count: number of frame intervals. planes: number of planes in an interval. crop: side in pixels.
    rng: generator of the motion. The order of its draws belongs to the made data sets.
    """

    def light_of(number: int) -> np.ndarray:
        return cv2.LUT(scaled(frames.read(cut.first + number), cut.side), LIGHT)

    # The path begins half an interval before the first sharp instant, and ends half an interval
    # after the last one, rounded up to whole frames. So it has two frames more than the intervals.
    path = LightPath(light_of, cut.average * count + 2)
    height, width = path.at(0.0).shape[:2]
    free = np.array((width, height)) - crop  # pixels by which the crop can move, in x and y
    total = count * planes
    middle_plane = planes // 2
    sharp = range(middle_plane, total, planes)  # planes of the sharp instants

    # The upper left corner of the crop in each plane, (total, 2).
    corners = np.empty((total, 2))
    for axis, most in enumerate(free):
        # The amplitude is at most half of the shorter free way, so the walk has room on both sides.
        amplitude = rng.uniform(0.1, 1.0) * min(free) / 2
        walk = smooth_walk(rng, total, amplitude, (2.0 * planes, 8.0 * planes))
        walk += rng.uniform(amplitude, most - amplitude)
        # Shift the walk so that it lies on whole pixels at the sharp instants, smoothly between.
        to_whole_pixel = np.round(walk) - walk
        walk += np.interp(range(total), sharp, to_whole_pixel[sharp])
        corners[:, axis] = np.clip(walk, 0, most)

    # Times are in frames of the cut.
    first_sharp_time = (cut.average + 1) // 2
    for plane, corner in enumerate(corners):
        since_sharp = plane - middle_plane
        time = first_sharp_time + cut.average * since_sharp / planes
        x, y = (corner + (crop - 1) / 2).tolist()  # middle of the crop
        yield cv2.getRectSubPix(path.at(time), (crop, crop), (x, y))


# ---- Photographs -----------------------------------------------------------------------------


@dataclass(frozen=True)
class _Layer:
    """A piece of a photograph that moves on its own, like a sheet of paper before other sheets.

    sheet: (H, W, 4) light and opacity (0 to 1). The light is multiplied by the opacity already.
    places: (planes, 2), in each plane the point x, y of the sheet in the middle of the view.
    border: how the sheet goes on beyond its edges, a constant of OpenCV.
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
    side, count, planes, crop, rng: see `video_scene`. The order of the draws from `rng` decides
    which scene a seed gives: do not change it.
    """
    light = cv2.LUT(scaled(picture, FINE * side), LIGHT)
    total = count * planes
    fine = FINE * crop  # side of the view, in pixels of the photograph
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
        # From the farthest layer to the nearest layer: each layer covers the layers behind it, by
        # its opacity.
        view = _view(angles[plane], zooms[plane], tilts[plane])
        canvas = np.zeros((fine, fine, 3), np.float32)
        for layer in layers:
            # From a pixel of the view to a point of the sheet: turn, zoom and tilt about the middle
            # of the view, then go to the layer's place.
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

    light: (H, W, 3) of the photograph. shake: (planes, 2) motion of the camera. time: (planes, 1)
    in frame intervals. fine: side of the view.
    """
    height, width = light.shape[:2]
    size = np.array((width, height))
    opacity = np.ones((height, width, 1), np.float32)
    if depth == 0:
        # The whole photograph fills the view: beyond its edges it is mirrored.
        places = size / 2 + shake
        sheet = np.concatenate((light * opacity, opacity), axis=2)
        return _Layer(sheet, places, cv2.BORDER_REFLECT_101)

    # A piece near `middle`: the convex hull of eight random points, with a soft edge. It begins at
    # another place of the view than in the photograph, and moves on its own.
    middle = rng.uniform(0.3, 0.7, 2) * size
    speed = fine * rng.uniform(-0.05, 0.05, 2)  # pixels in a frame interval
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
    """Return the homography (3, 3) of a camera that is turned, zoomed and tilted.

    angle: in radians. zoom: above 1, things look larger. tilt: (2,), the first two values of the
    third row.
    """
    cos = np.cos(angle)
    sin = np.sin(angle)
    view = np.array([[cos, -sin, 0], [sin, cos, 0], [0, 0, 1]])
    view[:2] /= zoom
    view[2, :2] = tilt
    return view


def _translation(x: float, y: float) -> np.ndarray:
    """Return the matrix (3, 3) that moves a point by x, y."""
    return np.array([[1, 0, x], [0, 1, y], [0, 0, 1]])

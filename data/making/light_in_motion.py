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
    """(planes,) sum of four sines with random periods in the range `periods` (in planes); peak near
    `amplitude`.
    """
    t = np.arange(planes)
    walk = np.zeros(planes)
    for weight in (0.4, 0.3, 0.2, 0.1):
        period = np.exp(rng.uniform(*np.log(periods)))
        walk += weight * np.sin(2 * np.pi * (t / period + rng.uniform()))
    return amplitude * walk


class LightPath:
    """The light at any time between the frames of a clip: both neighbours, moved along the optical
    flow, and mixed.

    light: number of a frame, of `count`, -> its light (h, w) or (h, w, 3) float32. method: "linear"
    only mixes them.
    """

    def __init__(
        self, light: Callable[[int], np.ndarray], count: int, method: str = "flow"
    ) -> None:
        self.light, self.count, self.method = lru_cache(2)(light), count, method
        self._flows: tuple[int, np.ndarray, np.ndarray] | None = None
        self._dis: Any = cv2.DISOpticalFlow.create(cv2.DISOPTICAL_FLOW_PRESET_FAST)

    def at(self, time: float) -> np.ndarray:
        """Light at `time` in frames, as a frame's; constant before the first and after the last
        frame.
        """
        time = min(max(time, 0.0), self.count - 1.0)
        index = min(int(time), max(self.count - 2, 0))
        part = time - index
        if min(part, 1 - part) < 1e-9:
            return self.light(round(time))
        before, after = self.light(index), self.light(index + 1)
        if self.method == "linear":
            return (1 - part) * before + part * after
        if self._flows is None or self._flows[0] != index:
            a, b = (
                (
                    np.sqrt(np.clip(light if light.ndim == 2 else light.mean(axis=2), 0, 1)) * 255
                ).astype(np.uint8)
                for light in (before, after)
            )
            self._flows = (index, self._dis.calc(a, b, None), self._dis.calc(b, a, None))
        part, (_, forward, backward) = np.float32(part), self._flows
        x, y = np.meshgrid(*(np.arange(side, dtype=np.float32) for side in before.shape[1::-1]))
        before, after = (
            cv2.remap(
                light,
                x + shift[..., 0],
                y + shift[..., 1],
                cv2.INTER_LINEAR,
                borderMode=cv2.BORDER_REPLICATE,
            )
            for light, shift in ((before, -part * forward), (after, (part - 1) * backward))
        )
        return (1 - part) * before + part * after


def grey_light(
    frames: FrameSource, size: tuple[int, int], gamma: float
) -> Callable[[int], np.ndarray]:
    """Number of a frame -> its grey light (h, w) of `size`; gamma: exponent from display values to
    light.
    """
    curve = to_linear(np.arange(256, dtype=np.float32) / 255.0, gamma)
    height, width = size

    def light(number: int) -> np.ndarray:
        grey = to_grey(cv2.LUT(frames.read(number), curve))
        return cv2.resize(grey, (width, height), interpolation=cv2.INTER_AREA)

    return light


@dataclass(frozen=True)
class Cut:
    """A part of a video, from frame `first`: `average` of its frames are one interval; side: it is
    scaled to.
    """

    first: int
    average: int
    side: int


def scaled(picture: np.ndarray, side: int) -> np.ndarray:
    """The picture with a shorter side of `side` pixels; a smaller one stays as it is."""
    height, width = picture.shape[:2]
    share = min(1.0, side / min(height, width))
    size = (round(width * share), round(height * share))
    return cv2.resize(picture, size, interpolation=cv2.INTER_AREA) if share < 1 else picture


def find_cuts(
    frames: FrameSource,
    count: int,
    sides: tuple[int, int],
    average: int | None,
    rng: np.random.Generator,
) -> list[Cut]:
    """The parts of a video that can be interpolated, without a change of the scene.

    count: frame intervals of a part. sides: the shortest and the longest shorter side of its scaled
    frames: the shorter, the smaller the motion. average: frames of an interval; None: 1 to
    MOST_AVERAGE, drawn for each part.
    """
    steps, before = [], None
    dis: Any = cv2.DISOpticalFlow.create(cv2.DISOPTICAL_FLOW_PRESET_ULTRAFAST)
    side = min(sides[1], *frames.size)
    for number in range(len(frames)):
        grey = cv2.cvtColor(scaled(frames.read(number), side), cv2.COLOR_RGB2GRAY)
        if before is not None:
            is_cut = cv2.absdiff(grey, before).mean() > CUT
            flow = dis.calc(before, grey, None)
            steps.append(
                np.inf if is_cut else float(np.percentile(np.hypot(*flow.transpose(2, 0, 1)), 95))
            )
        before = grey
    cuts, first = [], 0
    while (most := (len(frames) - first - 2) // count) >= (average or 1):
        each = average or int(rng.integers(1, min(most, MOST_AVERAGE) + 1))
        part = np.array(steps[first : first + each * count + 1])
        if wrong := np.flatnonzero(part > MOST_STEP * side / sides[0]).tolist():
            first += wrong[-1] + 1
            continue
        slow = side * MOST_STEP / max(float(part.max()), MOST_STEP)
        cuts.append(Cut(first, each, max(sides[0], int(slow))))
        first += each * count
    return cuts


def video_scene(
    frames: FrameSource, cut: Cut, count: int, planes: int, crop: int, rng: np.random.Generator
) -> Iterator[np.ndarray]:
    """The light (crop, crop, 3) float32 of each plane of a cut: `count` frame intervals of `planes`
    planes.

    The crop moves as a hand would move it. At the sharp instants, plane planes // 2 of each
    interval, it is a part of a frame of the video, scaled, without interpolation: it lies on whole
    pixels.
    """
    total, length = count * planes, cut.average * count + 2
    path = LightPath(
        lambda number: cv2.LUT(scaled(frames.read(cut.first + number), cut.side), LIGHT), length
    )
    free, corners = np.array(path.at(0.0).shape[1::-1]) - crop, np.empty((total, 2))
    sharp = range(planes // 2, total, planes)
    for axis, most in enumerate(free):
        amplitude = rng.uniform(0.1, 1.0) * min(free) / 2
        walk = smooth_walk(rng, total, amplitude, (2.0 * planes, 8.0 * planes))
        walk += rng.uniform(amplitude, most - amplitude)
        walk += np.interp(range(total), sharp, (np.round(walk) - walk)[sharp])
        corners[:, axis] = np.clip(walk, 0, most)
    for plane, corner in enumerate(corners):
        light = path.at((cut.average + 1) // 2 + cut.average * (plane - planes // 2) / planes)
        yield cv2.getRectSubPix(light, (crop, crop), tuple((corner + (crop - 1) / 2).tolist()))


def photo_scene(
    picture: np.ndarray, side: int, count: int, planes: int, crop: int, rng: np.random.Generator
) -> Iterator[np.ndarray]:
    """The light (crop, crop, 3) float32 of each plane of a photograph that a moving camera sees.

    The camera pans, zooms, turns and tilts. Two pieces of the photograph, nearer than the rest,
    move more and on their own. picture: (H, W, 3) uint8, scaled down to a shorter side of FINE x
    side. count, planes: see `video_scene`.
    """
    light = cv2.LUT(scaled(picture, FINE * side), LIGHT)
    total, fine, size = count * planes, FINE * crop, np.array(light.shape[1::-1])
    walk = partial(smooth_walk, rng, total, periods=(2.0 * planes, 8.0 * planes))
    time = (np.arange(total) / total - 0.5)[:, None] * count  # in intervals
    shake = FINE * np.stack([walk(rng.uniform(2, crop / 6)) for _ in range(2)], axis=1)
    angles, zooms = walk(0.1), rng.uniform(1.0, 1.3) * np.exp(walk(0.08))
    tilts = np.stack([walk(0.1), walk(0.1)], axis=1) / fine
    layers = []
    for depth in range(3):
        place, own, opacity = size / 2, 0.0, np.ones((*light.shape[:2], 1), np.float32)
        if depth:
            middle, own = rng.uniform(0.3, 0.7, 2) * size, fine * rng.uniform(-0.05, 0.05, 2)
            place = middle + fine * rng.uniform(-0.3, 0.3, 2)
            corners = middle + fine * rng.uniform(-0.2, 0.2, (8, 2))
            hull = cv2.convexHull(corners.astype(np.int32))
            opacity = cv2.GaussianBlur(
                cv2.fillPoly(0 * opacity, [hull], 1.0, cv2.LINE_AA), (0, 0), 0.8
            )[..., None]
        border = cv2.BORDER_CONSTANT if depth else cv2.BORDER_REFLECT_101
        sheet = np.concatenate((light * opacity, opacity), axis=2)
        layers.append((sheet, place + (1 + 0.35 * depth) * shake + own * time, border))
    to_middle = np.array([[1, 0, -fine / 2], [0, 1, -fine / 2], [0, 0, 1]])
    for plane, (angle, zoom, tilt) in enumerate(zip(angles, zooms, tilts, strict=True)):
        turn = np.array(
            [[np.cos(angle), -np.sin(angle), 0], [np.sin(angle), np.cos(angle), 0], [0, 0, 1]]
        )
        turn[:2] /= zoom
        turn[2, :2] = tilt
        canvas = np.zeros((fine, fine, 3), np.float32)
        for sheet, places, border in layers:
            to_sheet = (
                np.array([[1, 0, places[plane, 0]], [0, 1, places[plane, 1]], [0, 0, 1]])
                @ turn
                @ to_middle
            )
            flags = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
            seen = cv2.warpPerspective(
                sheet, to_sheet, (fine, fine), flags=flags, borderMode=border
            )
            canvas = canvas * (1 - seen[..., 3:]) + seen[..., :3]
        yield cv2.resize(canvas, (crop, crop), interpolation=cv2.INTER_AREA)

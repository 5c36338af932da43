"""High-frame-rate video as the source of RGB + spike clips: finding it, and the light between its frames."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np

from data.pictures import Frames, clips_in
from data.spike.simulate import to_grey
from utils.errors import DataError
from utils.image import list_images

SPLITS = ("train", "test")


@dataclass(frozen=True)
class RawClip:
    """A clip of raw video: a folder of images or a video file. split: "" without split folders."""

    name: str
    path: Path
    split: str

    def files(self) -> list[Path]:
        return [self.path] if self.path.is_file() else list_images(self.path)


def find_raw_clips(source: Path) -> list[RawClip]:
    """The clips in `source` or, where there are such folders, in its `train` and `test`. Raises DataError for none."""
    if source.is_file():
        return [RawClip(source.stem, source, "")]
    roots = [(source / split, split) for split in SPLITS if (source / split).is_dir()] or [(source, "")]
    clips = [RawClip(*clip, split) for root, split in roots if root.is_dir() for clip in clips_in(root)]
    if not clips:
        raise DataError(
            "no raw clip found", str(source), "folders of images or video files, with or without train/ and test/",
            "correct --source",
        )  # fmt: skip
    twice = [name for name, count in Counter(clip.name for clip in clips).items() if count > 1]
    if twice:
        raise DataError(
            f"two raw clips of the same name: {', '.join(twice[:5])}", str(source), "one clip per name", "rename one"
        )
    return clips


class LightPath:
    """The grey light at any time between the frames of a clip, at the resolution of the spike camera.

    size: (h, w) of the spike camera; the frame size is a multiple of it.
    gamma: exponent from display values to light (1: the sensor integrates display values, as most simulators do).
    method: "flow" warps along the optical flow (DIS) between neighbouring frames, "linear" blends them.
    """

    def __init__(self, frames: Frames, size: tuple[int, int], gamma: float, method: str) -> None:
        self.frames, self.size, self.method = frames, size, method
        self.curve = (np.arange(256, dtype=np.float32) / 255.0) ** np.float32(gamma)
        self._lights: dict[int, np.ndarray] = {}
        self._flows: tuple[int, np.ndarray, np.ndarray] | None = None
        self._dis = cv2.DISOpticalFlow_create(cv2.DISOPTICAL_FLOW_PRESET_FAST)

    def at(self, time: float) -> np.ndarray:
        """Light (h, w) float32 at `time` in frames; constant before the first and after the last frame."""
        time = min(max(time, 0.0), len(self.frames) - 1.0)
        index = min(int(time), max(len(self.frames) - 2, 0))
        part = time - index
        if part < 1e-9:
            return self._light(index)
        if part > 1 - 1e-9:
            return self._light(index + 1)
        if self.method == "linear":
            return (1 - part) * self._light(index) + part * self._light(index + 1)
        return self._along_flow(index, np.float32(part))

    def _light(self, index: int) -> np.ndarray:
        if index not in self._lights:
            grey = to_grey(cv2.LUT(self.frames.read(index), self.curve))
            self._lights[index] = cv2.resize(grey, self.size[::-1], interpolation=cv2.INTER_AREA)
            for old in [i for i in self._lights if abs(i - index) > 1]:
                del self._lights[old]
        return self._lights[index]

    def _along_flow(self, index: int, part: np.float32) -> np.ndarray:
        before, after = self._light(index), self._light(index + 1)
        if self._flows is None or self._flows[0] != index:
            a, b = ((np.sqrt(np.clip(light, 0, 1)) * 255).astype(np.uint8) for light in (before, after))
            self._flows = (index, self._dis.calc(a, b, None), self._dis.calc(b, a, None))
        _, forward, backward = self._flows
        return (1 - part) * _warp(before, -part * forward) + part * _warp(after, (part - 1) * backward)


def _warp(light: np.ndarray, shift: np.ndarray) -> np.ndarray:
    """Light (h, w) sampled at (x, y) + shift(x, y), with shift (h, w, 2)."""
    height, width = light.shape
    x, y = np.meshgrid(np.arange(width, dtype=np.float32), np.arange(height, dtype=np.float32))
    return cv2.remap(light, x + shift[..., 0], y + shift[..., 1], cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)


def exposures(frames: Frames, average: int, gamma: float, instants: int) -> Iterator[dict[str, np.ndarray]]:
    """The pictures that `average` raw frames each make: uint8 (H, W, 3), in order.

    blur: mean of the display values, as in GoPro; blur_gamma: mean of linear light; sharp: the middle raw frame; 0, 1,
    ...: the raw frames nearest to the middles of `instants` equal parts of the exposure.
    """
    # round() takes halves to the even number on both sides of 0, so that reversed time has the same instants.
    offsets = [average // 2 + round((k - instants // 2) * average / instants) for k in range(instants)]
    curve = (np.arange(256, dtype=np.float32) / 255.0) ** np.float32(gamma)
    for first in range(0, len(frames) - average + 1, average):
        plain = linear = np.float32(0.0)
        kept = {}
        for index in range(first, first + average):
            picture = frames.read(index)
            if index - first in (average // 2, *offsets):
                kept[index - first] = np.ascontiguousarray(picture)
            plain = plain + picture.astype(np.float32)
            linear = linear + cv2.LUT(picture, curve)
        blur_gamma = 255.0 * np.power(linear / average, np.float32(1.0 / gamma))
        yield {
            "blur": np.rint(plain / average).astype(np.uint8),
            "blur_gamma": np.rint(blur_gamma).astype(np.uint8),
            "sharp": kept[average // 2],
            **{str(k): kept[offset] for k, offset in enumerate(offsets)},
        }

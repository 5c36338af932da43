"""A coloured scene, for tests, that moves as a whole along a known path before an RGB and a spike
camera.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from data.clips.clip_reader import user_clips
from data.clips.readers import DatasetClip
from data.spike.formats import SpikeGeometry, write_spikes
from data.spike.simulate import (
    IntegrateAndFire,
    bin_pixels,
    to_display,
    to_grey,
    to_linear,
    to_uint8,
)
from tests.helpers.two_cameras import texture

MARGIN = 40  # pixels of the scene around the frame


@dataclass(frozen=True)
class Scene:
    """An affine motion at constant speed.

    velocity: x and y in pixels per exposure. turn_deg: x towards y per exposure, about the middle.
    light: what the spike camera integrates. exposure: share of the planes of a frame, in their
    middle, during which it is exposed. rolling: share of the exposure by which the last row is
    exposed later than the first. averaged: what the blurry frame is the mean of, "light" or, as no
    camera does it, "display" values. spot: side of a square in the middle that moves by
    `spot_velocity` in front of the rest.
    """

    velocity: tuple[float, float] = (0.0, 0.0)
    turn_deg: float = 0.0
    size: tuple[int, int] = (96, 96)
    planes: int = 60
    frames: int = 3
    rate: float = 0.6
    sharp_plane: int = 30
    seed: int = 3
    light: str = "linear"
    exposure: float = 1.0
    rolling: float = 0.0
    averaged: str = "light"
    spot: int = 0
    spot_velocity: tuple[float, float] = (0.0, 0.0)

    def matrix(self, exposures: float) -> np.ndarray:
        """(3, 3): pixel of the middle of the clip -> where it is so many exposures later."""
        middle = ((self.size[1] - 1) / 2, (self.size[0] - 1) / 2)
        turned = cv2.getRotationMatrix2D(middle, -self.turn_deg * exposures, 1.0)
        turned[:, 2] += np.array(self.velocity) * exposures
        return np.vstack((turned, (0, 0, 1)))

    def sharp_time(self, frame: int) -> float:
        """The time of a sharp frame, in exposures after the middle of the clip."""
        return (frame * self.planes + self.sharp_plane + 0.5) / self.planes - self.frames / 2

    def shifts(self, frame: int, planes: float) -> np.ndarray:
        """(H, W, 2): the true shifts from the sharp instant of a frame to so many planes later."""
        now = self.sharp_time(frame)
        way = self.matrix(now + planes / self.planes) @ np.linalg.inv(self.matrix(now))
        y, x = np.mgrid[: self.size[0], : self.size[1]].astype(np.float64)
        moved = np.tensordot(way[:2], np.stack((x, y, np.ones_like(x))), 1)
        return np.moveaxis(moved, 0, -1) - np.stack((x, y), axis=-1)

    def lights(self) -> Iterator[np.ndarray]:
        """The light (H, W, 3) of each plane."""
        rng = np.random.default_rng(self.seed)
        height, width = self.size
        wide = (height + 2 * MARGIN, width + 2 * MARGIN)
        scene = np.stack([texture(rng, wide) for _ in range(3)], axis=-1)
        scene = to_linear(np.clip(1.6 * scene - 0.3, 0.02, 1))
        front = to_linear(np.stack([texture(rng, (height, width)) for _ in range(3)], axis=-1))
        place = np.array([[1, 0, -MARGIN], [0, 1, -MARGIN], [0, 0, 1.0]])
        for plane in range(self.frames * self.planes):
            time = (plane + 0.5) / self.planes - self.frames / 2
            view = _seen(scene, self.matrix(time) @ place, self.size)
            if self.spot:
                top, left = (side // 2 - self.spot // 2 for side in self.size)
                patch = front[: self.spot, : self.spot]
                shift = np.array(self.spot_velocity) * time
                moved = np.array([[1, 0, left + shift[0]], [0, 1, top + shift[1]], [0, 0, 1.0]])
                cover = _seen(np.ones_like(patch), moved, self.size, cv2.BORDER_CONSTANT)
                view = view * (1 - cover)
                view = view + _seen(patch, moved, self.size, cv2.BORDER_CONSTANT)
            yield view

    def _shares(self) -> np.ndarray:
        """The part (planes, H) of each plane in the blurry frame."""
        length = self.exposure * self.planes
        late = (np.arange(self.size[0]) / (self.size[0] - 1) - 0.5) * self.rolling * length
        begin = (self.planes - length) / 2 + late
        plane = np.arange(self.planes)[:, None]
        overlap = np.minimum(plane + 1, begin + length) - np.maximum(plane, begin)
        return np.clip(overlap, 0, 1) / length

    def write(self, folder: Path) -> Path:
        """Write blur/, sharp/ and spike/ with a dataset.json; the spike pixels are twice as large
        as those of RGB.
        """
        half = (self.size[0] // 2, self.size[1] // 2)
        sensor = IntegrateAndFire(*half, rate=self.rate, rng=np.random.default_rng(self.seed))
        for kind in ("blur", "sharp", "spike"):
            (folder / kind).mkdir(parents=True)
        lights = self.lights()
        for frame in range(self.frames):
            exposure = [next(lights) for _ in range(self.planes)]
            summed = np.stack(exposure)
            if self.averaged == "display":
                summed = to_display(summed)
            blurry = np.einsum("ty,tyxc->yxc", self._shares(), summed)
            if self.averaged == "display":
                blurry = to_linear(blurry)
            pictures = {"blur": blurry, "sharp": exposure[self.sharp_plane]}
            for kind, light in pictures.items():
                picture = to_uint8(to_display(light))[..., ::-1]
                assert cv2.imwrite(str(folder / kind / f"{frame:03d}.png"), picture)
            seen = [to_display(light) if self.light == "display" else light for light in exposure]
            spikes = sensor.run(bin_pixels(to_grey(view), 2) for view in seen)
            write_spikes(folder / f"spike/{frame:03d}.dat", spikes, SpikeGeometry(*half))
        about = {
            "format": 1, "h": half[0], "w": half[1], "flip": True, "planes": self.planes, "rate":
            self.rate, "light": self.light, "gt_plane": self.sharp_plane,
        }  # fmt: skip
        (folder / "spike/dataset.json").write_text(json.dumps(about))
        return folder


def _seen(
    scene: np.ndarray, matrix: np.ndarray, size: tuple[int, int], border: int = cv2.BORDER_REPLICATE
) -> np.ndarray:
    """Return a scene moved by `matrix`; four points in each pixel, since warping rounds places to
    1/32 of one.
    """
    fine = 4
    larger = np.diag((fine, fine, 1.0))
    larger[:2, 2] = (fine - 1) / 2
    view = cv2.warpPerspective(
        scene.astype(np.float32),
        larger @ matrix,
        (size[1] * fine, size[0] * fine),
        borderMode=border,
    )
    return cv2.resize(view, size[::-1], interpolation=cv2.INTER_AREA)


def reader_of(folder: Path, **spike: Any) -> DatasetClip:
    """The clip in a folder of `Scene.write`, as main_test_vrt.py reads a user's clip."""
    options = {"type": "dat", "representation": "exposure", **spike}
    [reader] = user_clips(folder / "blur", folder / "spike", folder / "sharp", options)
    return reader

"""What an RGB camera and a spike camera record of a scene: the files of one clip in the GoPro layout."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from data.spike import simulate
from data.spike.formats import write_spikes
from data.spike.stream import SpikeGeometry
from scripts.parts.sample_scenes import PLANES, SIZE
from utils.image import imwrite_rgb

GT_PLANE = PLANES // 2  # the plane of the sharp frame
RGB, SPIKES = "GOPRO_Large", "GOPRO_Large_spike_seq"


@dataclass(frozen=True)
class Cameras:
    """Both cameras and the light.

    rate: spikes per plane at full light. shot_noise, dark_rate, threshold_mismatch: see IntegrateAndFire.
    light: factor of the light of the scene, for both cameras.
    rgb_shot, rgb_read: standard deviations of the blurry frame's noise in linear light, at full light and in darkness.
    """

    rate: float = 0.9
    shot_noise: float = 0.03
    dark_rate: float = 0.001
    threshold_mismatch: float = 0.01
    light: float = 1.0
    rgb_shot: float = 0.0
    rgb_read: float = 0.0


def instant_planes(count: int) -> list[int]:
    """Planes of `count` sharp instants, evenly spread over the exposure; that of the sharp frame is the middle one."""
    return [round(GT_PLANE + (k - count // 2) * PLANES / count) for k in range(count)]


class Recording:
    """One clip below `root` of both cameras: {blur,sharp}/NNNNNN.png and spike/NNNNNN.dat, one of each per frame.

    rng: draws the noise; the caller's generator stays as it is. instants: number of sharp pictures per exposure that
    are written to instants/NNNNNN_K.png as well.
    """

    def __init__(
        self, root: Path, split: str, name: str, cameras: Cameras, rng: np.random.Generator, instants: int = 0
    ) -> None:
        half = SIZE // 2
        self.cameras, self.instants = cameras, instant_planes(instants)
        self.rng = copy.deepcopy(rng)
        self.sensor = simulate.IntegrateAndFire(
            half, half, rate=cameras.rate, rng=self.rng, shot_noise=cameras.shot_noise, dark_rate=cameras.dark_rate,
            threshold_mismatch=cameras.threshold_mismatch,
        )  # fmt: skip
        self.geometry = SpikeGeometry(half, half)
        self.clip, self.spikes = root / RGB / split / name, root / SPIKES / split / name / "spike"
        self.spikes.mkdir(parents=True)

    def add(self, frame: int, planes: Sequence[np.ndarray]) -> None:
        """Write frame `frame`. planes: PLANES pictures (SIZE, SIZE, 3) of linear light; above 1 is saturated."""
        light, stem = self.cameras.light, f"{frame:06d}"
        if light != 1.0:
            planes = [light * plane for plane in planes]
        pictures = {f"instants/{stem}_{k}": planes[plane] for k, plane in enumerate(self.instants)}
        pictures |= {f"sharp/{stem}": planes[GT_PLANE], f"blur/{stem}": self._exposed(np.mean(planes, axis=0))}
        for name, picture in pictures.items():
            imwrite_rgb(self.clip / f"{name}.png", simulate.to_uint8(simulate.to_display(picture)))
        grey = (simulate.bin_pixels(simulate.to_grey(plane), 2) for plane in planes)
        write_spikes(self.spikes / f"{stem}.dat", self.sensor.run(grey), self.geometry)

    def _exposed(self, light: np.ndarray) -> np.ndarray:
        """The mean light with the noise of the RGB sensor: variance shot^2 light + read^2."""
        cameras = self.cameras
        if not cameras.rgb_shot and not cameras.rgb_read:
            return light
        deviation = np.sqrt(cameras.rgb_shot**2 * np.maximum(light, 0.0) + cameras.rgb_read**2)
        return light + deviation * self.rng.standard_normal(light.shape, dtype=np.float32)

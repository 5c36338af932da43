"""The RGB camera of a simulated pair (data/rig.py): shutter, response and noise."""

from dataclasses import dataclass

import cv2
import numpy as np

from data.spike.simulate import DISPLAY_GAMMA, to_uint8


@dataclass(frozen=True)
class RgbCamera:
    """Light is linear, 1 at full scale.

    exposure: share of the frame interval, in its middle. rolling: share of the exposure by which the last row is
    exposed later than the first; all rows end within the interval, so exposure (1 + rolling) is at most 1.
    gamma, contrast: display value v = light ** (1 / gamma), then v + contrast (v^2 (3 - 2 v) - v).
    shot, read: standard deviations of the noise in linear light, at full light and in darkness. jpeg: quality; 0: none.
    """

    exposure: float = 1.0
    rolling: float = 0.0
    gamma: float = DISPLAY_GAMMA
    contrast: float = 0.0
    shot: float = 0.0
    read: float = 0.0
    jpeg: int = 0

    def __post_init__(self) -> None:
        if self.exposure <= 0 or self.exposure * (1 + self.rolling) > 1 + 1e-9:
            raise ValueError(f"exposure {self.exposure} with rolling {self.rolling} does not fit into the interval")

    def shares(self, planes: int, height: int) -> np.ndarray:
        """(planes, height) float32: the share of each plane in the blurry frame, row by row; 1 in all."""
        length = self.exposure * planes
        late = (np.arange(height) / max(1, height - 1) - 0.5) * self.rolling * length
        start = (planes - length) / 2 + late[None]
        plane = np.arange(planes)[:, None]
        overlap = np.minimum(plane + 1, start + length) - np.maximum(plane, start)
        return (np.clip(overlap, 0, 1) / length).astype(np.float32)

    def develop(self, light: np.ndarray) -> np.ndarray:
        """Linear light -> uint8 display values of this camera, without noise: the sharp frames are shown with it."""
        value = np.power(np.clip(light, 0, 1), np.float32(1 / self.gamma))
        return to_uint8(value + np.float32(self.contrast) * (value * value * (3 - 2 * value) - value))

    def frame(self, light: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """The light (H, W, 3) of an exposure -> the blurry frame, uint8 RGB."""
        if self.shot or self.read:
            deviation = np.sqrt(self.shot**2 * np.maximum(light, 0) + self.read**2)
            light = light + deviation * rng.standard_normal(light.shape, dtype=np.float32)
        picture = self.develop(light)
        if self.jpeg:
            coded = cv2.imencode(".jpg", picture[..., ::-1], [cv2.IMWRITE_JPEG_QUALITY, self.jpeg])[1]
            picture = np.ascontiguousarray(cv2.imdecode(coded, cv2.IMREAD_COLOR)[..., ::-1])
        return picture

"""Simulate the RGB camera of a rig (a pair of simulated cameras): from light to a blurry frame.

    light of each plane -> `values_to_average` -> mean with `weights` over the exposure
        -> `light_of_average` -> `frame`: noise, display curve (`develop`), JPEG -> blurry frame

A plane is one read-out of the spike camera. The frame interval is the time from one RGB frame to
the next. A frame is exposed in the middle of its interval, during the fraction `exposure`.

What must stay:

    * The numbers, bit for bit, because a data set is made again from its seed
      (tests/parts/scripts/test_prepare_gopro_spike.py).
    * The names of the fields, because they are part of dataset.json and of the flag --rig. A new
      field needs a default without effect.

Tests: tests/parts/data/test_rig.py (each flaw)
"""

from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np

from data.spike.pictures import DISPLAY_GAMMA, to_uint8


@dataclass(frozen=True)
class RgbCamera:
    """The RGB camera of a rig. By default it has no flaw."""

    # Fraction of the frame interval during which a frame is exposed, in the middle of the interval.
    exposure: float = 1.0
    # Rolling shutter: the last row is exposed later than the first row by this fraction of the
    # exposure. All rows must be exposed within the interval, so exposure * (1 + rolling) is at most
    # 1.
    rolling: float = 0.0
    # The curve from light to display values has two steps. First v = light ** (1 / gamma). Then an
    # S-shaped curve turns v into the display value:
    #     v + contrast * (v^2 * (3 - 2 * v) - v)
    # E.g. with contrast 0.1, 0.25 becomes 0.241, 0.5 stays 0.5, and 0.75 becomes 0.759.
    gamma: float = DISPLAY_GAMMA
    contrast: float = 0.0
    # Standard deviations in linear light: of the shot noise at full light, and of the read noise.
    # The shot noise grows with the light, and the read noise is the same at any light.
    shot: float = 0.0
    read: float = 0.0
    jpeg: int = 0  # quality of JPEG. 0: the frame is not compressed
    # A blurry frame is the mean of light ** (1 / sum_gamma) over the exposure. A real camera has
    # sum_gamma 1, i.e. the mean of light. Use 2.2 for data sets whose blurry frames are means of
    # display values.
    sum_gamma: float = 1.0

    def __post_init__(self) -> None:
        """Raise ValueError if a row is exposed outside of the frame interval."""
        # Time from the start of the first row to the end of the last row, in frame intervals. This
        # time is at most 1. An excess of 1e-9 is allowed, because of rounding errors.
        length_of_all_rows = self.exposure * (1 + self.rolling)
        if self.exposure <= 0 or length_of_all_rows > 1 + 1e-9:
            raise ValueError(
                f"exposure {self.exposure} with rolling {self.rolling} does not fit into the "
                "interval"
            )

    def develop(self, light: np.ndarray) -> np.ndarray:
        """Return linear light as uint8 display values of this camera, without noise.

        Sharp frames are made in this way. Blurry frames get noise first.
        """
        v = np.power(np.clip(light, 0, 1), np.float32(1 / self.gamma))
        # v + contrast * (v^2 * (3 - 2 * v) - v)
        s_curve = v * v * (3 - 2 * v)
        return to_uint8(v + np.float32(self.contrast) * (s_curve - v))

    def values_to_average(self, light: np.ndarray) -> np.ndarray:
        """Return the values that the camera averages over an exposure: light ** (1 / sum_gamma)."""
        if self.sum_gamma == 1:
            return light
        return np.power(np.clip(light, 0, 1), np.float32(1 / self.sum_gamma))

    def light_of_average(self, mean: np.ndarray) -> np.ndarray:
        """Turn a mean over an exposure back into linear light. Inverse of `values_to_average`."""
        if self.sum_gamma == 1:
            return mean
        return np.power(mean, np.float32(self.sum_gamma))

    def frame(self, light: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Return the blurry frame, uint8 RGB, of the mean light (H, W, 3) of an exposure.

        rng: generator of the noise.
        """
        if self.shot or self.read:
            # The variances of the two kinds of noise add up. The variance of the shot noise grows
            # with the light.
            deviation = np.sqrt(self.shot**2 * np.maximum(light, 0) + self.read**2)
            light = light + deviation * rng.standard_normal(light.shape, dtype=np.float32)
        picture = self.develop(light)
        if self.jpeg:
            # OpenCV takes and returns B, G, R.
            quality = [cv2.IMWRITE_JPEG_QUALITY, self.jpeg]
            _, coded = cv2.imencode(".jpg", picture[..., ::-1], quality)
            decoded: Any = cv2.imdecode(coded, cv2.IMREAD_COLOR)
            picture = np.ascontiguousarray(decoded[..., ::-1])
        return picture

    def weights(self, rows: int, planes: int) -> np.ndarray:
        """Return the weight of each plane in each row of the blurry frame, (planes, rows, 1, 1).

        The weight is the fraction of the plane's time during which the row is exposed, divided by
        the length of the exposure in planes. So the weights of a row add up to 1. With a rolling
        shutter, lower rows are exposed later.

        E.g. 8 planes and the exposure 0.5: each row is exposed for 4 planes. Without rolling, the
        planes 2 ... 5 have the weight 1/4 in each row. With rolling 0.5, the last row is exposed 2
        planes later than the first row: the first row during the planes 1 ... 4, and the last row
        during the planes 3 ... 6.

        Without the delay of the rows, test_the_exposure_rolls_down_the_rows fails.
        """
        length = self.exposure * planes  # length of the exposure, in planes
        # The position of each row: -0.5 at the top, 0.5 at the bottom. `max` prevents a division by
        # 0 for a frame of one row.
        position = np.arange(rows) / max(1, rows - 1) - 0.5
        # `rolling` is the delay of the last row after the first row, as a fraction of the exposure.
        delay_of_last_row = self.rolling * length  # in planes
        later = position * delay_of_last_row  # delay of each row after the middle row, in planes
        # A row is exposed from `start` to `end`, and plane p lasts from time p to p + 1.
        # E.g. 8 planes of which 4 are exposed: the middle row from time 2 to time 6.
        start = (planes - length) / 2 + later[None]  # (1, rows)
        end = start + length
        plane = np.arange(planes)[:, None]  # (planes, 1)
        # `overlap` says how long each plane and the exposure of each row overlap. E.g. plane 2 and
        # an exposure from 2.25 to 6.25 overlap for 0.75. The number is negative if plane and
        # exposure do not overlap.
        overlap = np.minimum(plane + 1, end) - np.maximum(plane, start)  # (planes, rows)
        weights = np.clip(overlap, 0, 1) / length  # (planes, rows)
        return weights.astype(np.float32)[..., None, None]

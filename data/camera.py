"""The `camera` section of a dataset: train (or test) as if the spikes came from a different or a worse camera."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from data.spike import perturb
from utils.errors import OptionError
from utils.options.registry import Registry

CAMERAS = Registry("camera", "type")

Range = list[float] | tuple[float, ...]


@dataclass(frozen=True)
class CameraDraw:
    """One camera, the same for all frames of a sample.

    threshold: factor of the recorded camera's threshold. drop, hot, dead: fractions of planes and of pixels.
    known_rate_factor: the rate to divide by, as a multiple of the data's; 1 where the user does not know of the change.
    """

    seed: tuple[int, ...]
    threshold: float
    drop: float
    hot: float
    dead: float
    known_rate_factor: float

    def apply(self, stream: np.ndarray, frame: int) -> np.ndarray:
        """The stream (T, h, w) of one frame as this camera records it; depends on (seed, frame) only."""
        rng = np.random.default_rng([*self.seed, 1, frame])
        stream = perturb.change_threshold(stream, self.threshold, rng)
        if self.drop:
            stream = perturb.drop_planes(stream, self.drop, rng)
        if self.hot or self.dead:
            # Stuck pixels stay where they are from frame to frame.
            stream = perturb.stick_pixels(stream, self.hot, self.dead, np.random.default_rng([*self.seed, 2]))
        return stream


@CAMERAS.register("perturb")
class CameraPerturb:
    """Draws a camera per sample.

    threshold_prob: how often the threshold differs, by a factor drawn log-uniformly from threshold_range (the firing
    rate is divided by it). known_rate: the representation divides by the changed rate, as a user would who measured
    it; false: by the data's rate, so that the network learns to bear an unknown threshold.
    drop_prob, hot_prob, dead_prob: how often planes are lost, pixels always fire or never fire; then a fraction drawn
    evenly up to drop_max of the planes, hot_max or dead_max of the pixels.
    """

    def __init__(
        self,
        threshold_prob: float = 0.0,
        threshold_range: Range = (0.5, 4.0),
        known_rate: bool = False,
        drop_prob: float = 0.0,
        drop_max: float = 0.1,
        hot_prob: float = 0.0,
        hot_max: float = 0.002,
        dead_prob: float = 0.0,
        dead_max: float = 0.002,
    ) -> None:
        shares = {
            "threshold_prob": threshold_prob, "drop_prob": drop_prob, "drop_max": drop_max, "hot_prob": hot_prob,
            "hot_max": hot_max, "dead_prob": dead_prob, "dead_max": dead_max,
        }  # fmt: skip
        for key, value in shares.items():
            if not 0.0 <= value <= 1.0:
                raise OptionError(f"camera.{key} is {value}", f"camera.{key}", "a number from 0 to 1", "correct it")
        low_high = tuple(threshold_range)
        if len(low_high) != 2 or not 0 < low_high[0] <= low_high[1]:
            raise OptionError(
                f"camera.threshold_range is {list(low_high)}", "camera.threshold_range",
                "[lowest, highest] factor, both > 0", "for instance [0.5, 4.0]",
            )  # fmt: skip
        self.threshold_prob, self.range, self.known_rate = threshold_prob, low_high, known_rate
        self.drop, self.hot, self.dead = (drop_prob, drop_max), (hot_prob, hot_max), (dead_prob, dead_max)

    def draw(self, seed: Sequence[int]) -> CameraDraw:
        """The camera of one sample, from its seed alone."""
        rng = np.random.default_rng([*seed, 0])
        chance, place = rng.random(4), rng.random(4)
        low, high = np.log(self.range)
        threshold = float(np.exp(low + place[0] * (high - low))) if chance[0] < self.threshold_prob else 1.0
        drop, hot, dead = (
            float(most * place[i]) if chance[i] < prob else 0.0
            for i, (prob, most) in enumerate((self.drop, self.hot, self.dead), 1)
        )
        factor = 1.0 / threshold if self.known_rate else 1.0
        return CameraDraw(tuple(seed), threshold, drop, hot, dead, factor)

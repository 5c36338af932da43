"""The `camera` section of a dataset: augmentation of the spikes as if another or a worse camera had recorded them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from pydantic import Field

from data.spike import perturb
from utils.errors import OptionError
from utils.options.registry import Registry, import_parts
from utils.random_streams import random_stream

CAMERAS = Registry("camera", "type")

Range = list[float] | tuple[float, ...]
Share = Annotated[float, Field(ge=0, le=1)]


@dataclass(frozen=True)
class CameraDraw:
    """One camera, the same for all frames of a sample.

    threshold: as a factor of the recording camera's. drop: fraction of lost planes; hot, dead: fractions of pixels.
    known_rate_factor: rate to divide by, as a multiple of the data's; 1 where the change is unknown to the user.
    """

    seed: tuple[int, ...]
    threshold: float
    drop: float
    hot: float
    dead: float
    known_rate_factor: float

    def apply(self, stream: np.ndarray, frame: int) -> np.ndarray:
        """The stream (T, h, w) of one frame as this camera records it; depends on (seed, frame) only."""
        rng = random_stream("frame of a camera", *self.seed, frame)
        stream = perturb.change_threshold(stream, self.threshold, rng)
        if self.drop:
            stream = perturb.drop_planes(stream, self.drop, rng)
        if self.hot or self.dead:
            # Stuck pixels stay where they are from frame to frame.
            stream = perturb.stick_pixels(stream, self.hot, self.dead, random_stream("stuck pixels", *self.seed))
        return stream


@CAMERAS.register("perturb")
class CameraPerturb:
    """A random camera for each sample.

    threshold_prob: probability of another threshold, by a factor drawn log-uniformly from threshold_range (the firing
    rate is divided by it). known_rate: the representation divides by the changed rate, as after a new measurement;
    false: by the data's rate, so that the network learns to handle an unknown threshold.
    drop_prob, hot_prob, dead_prob: probability that planes are lost, that pixels always fire and that pixels never
    fire; the fraction is then uniform between 0 and drop_max of the planes, hot_max or dead_max of the pixels.
    """

    def __init__(
        self,
        threshold_prob: Share = 0.0,
        threshold_range: Range = (0.5, 4.0),
        known_rate: bool = False,
        drop_prob: Share = 0.0,
        drop_max: Share = 0.1,
        hot_prob: Share = 0.0,
        hot_max: Share = 0.002,
        dead_prob: Share = 0.0,
        dead_max: Share = 0.002,
    ) -> None:
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
        rng = random_stream("camera", *seed)
        chance, place = rng.random(4), rng.random(4)
        low, high = np.log(self.range)
        threshold = float(np.exp(low + place[0] * (high - low))) if chance[0] < self.threshold_prob else 1.0
        drop, hot, dead = (
            float(most * place[i]) if chance[i] < prob else 0.0
            for i, (prob, most) in enumerate((self.drop, self.hot, self.dead), 1)
        )
        factor = 1.0 / threshold if self.known_rate else 1.0
        return CameraDraw(tuple(seed), threshold, drop, hot, dead, factor)


import_parts("data", "camera_*")

"""Augmentation of a training sample: crop, flips and time reversal of lq, gt and spikes; the
simulated spike camera.
"""

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from pydantic import Field

from data.cameras.rig import RgbCamera
from data.spike.formats import Crop
from data.spike.simulate import change_threshold, to_linear
from utils.errors import OptionError
from utils.options.section import Registry, import_parts
from utils.random_streams import random_stream

CAMERAS = Registry("camera", "type")
Range = list[float] | tuple[float, ...]
Share = Annotated[float, Field(ge=0, le=1)]


@dataclass(frozen=True)
class Augment(Crop):
    """The crop, in pixels of the lq frame, and the flips; the same for every frame of a sample.

    Order: crop, hflip (left-right), vflip (up-down), transpose (swaps the two axes; with the flips
    this gives all rotations by 90 degrees). reverse plays the clip backwards, spikes included.
    """

    hflip: bool = False
    vflip: bool = False
    transpose: bool = False
    reverse: bool = False

    @classmethod
    def draw(
        cls,
        rng: np.random.Generator,
        size: tuple[int, int],
        patch: int,
        step: int = 1,
        *,
        origin: tuple[int, int] = (0, 0),
        hflip: bool = False,
        rot: bool = False,
        reverse: bool = False,
    ) -> "Augment":
        """A random square of side `patch` within a frame of size (H, W), and random flips among the
        allowed ones.

        origin: upper left pixel, where only a part of the frame, of that size, is allowed.
        step: RGB pixels per spike pixel; the crop starts at multiples of it, so that no sub-pixel
        shift arises. All random numbers are drawn in any case, so that switching one flip off does
        not change the others.
        """
        top, left = (
            start + int(rng.integers(0, (side - patch) // step + 1)) * step
            for start, side in zip(origin, size, strict=True)
        )
        flips = zip((hflip, rot, rot, reverse), (rng.random(4) < 0.5).tolist(), strict=True)
        return cls(top, left, patch, patch, *(is_allowed and drawn for is_allowed, drawn in flips))

    @classmethod
    def whole(cls, size: tuple[int, int]) -> "Augment":
        """No crop and no flip."""
        return cls(0, 0, *size)

    def crop(self, frame: np.ndarray, scale: int = 1) -> np.ndarray:
        """The crop of a frame (scale H, scale W, ...), as a view; scale: size of the frame over
        that of lq.
        """
        top, left = self.top * scale, self.left * scale
        return frame[top : top + self.height * scale, left : left + self.width * scale]

    def flip(self, frames: np.ndarray) -> np.ndarray:
        """Flip and transpose the last two axes of frames (..., h, w)."""
        if self.hflip:
            frames = frames[..., ::-1]
        if self.vflip:
            frames = frames[..., ::-1, :]
        if self.transpose:
            frames = frames.swapaxes(-1, -2)
        return np.ascontiguousarray(frames)


@dataclass(frozen=True)
class CameraDraw:
    """One camera, the same for all frames of a sample.

    threshold: as a factor of the recording camera's. drop: fraction of lost planes; hot, dead:
    fractions of pixels.
    known_rate_factor: rate to divide by, as a multiple of the data's; 1 where the change is unknown
    to the user.
    dark: spikes per plane without light. rgb: noise and JPEG of the blurry frames; None: as
    recorded.
    """

    seed: tuple[int, ...]
    threshold: float
    drop: float
    hot: float
    dead: float
    known_rate_factor: float
    dark: float = 0.0
    rgb: RgbCamera | None = None

    def apply(self, stream: np.ndarray, frame: int) -> np.ndarray:
        """The stream (T, h, w) of one frame as this camera records it; depends on (seed, frame)
        only.
        """
        rng = random_stream("frame of a camera", *self.seed, frame)
        stream = change_threshold(stream, self.threshold, rng, self.dark)
        if self.drop:  # lost planes are kept, without spikes
            stream = stream * (rng.random(len(stream)) >= self.drop)[:, None, None].astype(np.uint8)
        if self.hot or self.dead:  # stuck pixels stay where they are from frame to frame
            place = random_stream("stuck pixels", *self.seed).random(stream.shape[1:])
            is_dead = place >= 1.0 - self.dead
            stream = np.where(place < self.hot, np.uint8(1), np.where(is_dead, np.uint8(0), stream))
        return stream

    def photograph(self, picture: np.ndarray, frame: int) -> np.ndarray:
        """The blurry frame (H, W, 3) uint8, B, G, R, as this camera records it; depends on (seed,
        frame) only.
        """
        assert self.rgb is not None  # it is asked only of a camera that records frames
        light = to_linear(picture[..., ::-1] / np.float32(255))
        rng = random_stream("noise of a frame", *self.seed, frame)
        return self.rgb.frame(light, rng)[..., ::-1]


@CAMERAS.register("perturb")
@dataclass
class CameraPerturb:
    """A random camera for each sample.

    threshold_prob: probability of another threshold, by a factor drawn log-uniformly from
    threshold_range (the firing rate is divided by it). known_rate: the representation divides by
    the changed rate, as after a new measurement;
    false: by the data's rate, so that the network learns to handle an unknown threshold.
    drop_prob, hot_prob, dead_prob: probability that planes are lost, that pixels always fire and
    that pixels never fire; the fraction is then uniform between 0 and drop_max of the planes,
    hot_max or dead_max of the pixels.
    dark_prob: of a dark current, up to dark_max spikes per plane. rgb_prob: of noise in the blurry
    frames, in linear light with standard deviations up to rgb_shot_max at full light and
    rgb_read_max in darkness. jpeg_prob: of JPEG, of a quality between jpeg_min and 100.
    """

    threshold_prob: Share = 0.0
    threshold_range: Range = (0.5, 4.0)
    known_rate: bool = False
    drop_prob: Share = 0.0
    drop_max: Share = 0.1
    hot_prob: Share = 0.0
    hot_max: Share = 0.002
    dead_prob: Share = 0.0
    dead_max: Share = 0.002
    dark_prob: Share = 0.0
    dark_max: Share = 0.005
    rgb_prob: Share = 0.0
    rgb_shot_max: Share = 0.02
    rgb_read_max: Share = 0.005
    jpeg_prob: Share = 0.0
    jpeg_min: Annotated[int, Field(ge=1, le=100)] = 85

    def __post_init__(self) -> None:
        found = list(self.threshold_range)
        if len(found) != 2 or not 0 < found[0] <= found[1]:
            what, expected = (
                f"camera.threshold_range is {found}",
                "[lowest, highest] factor, both > 0",
            )
            raise OptionError(what, "camera.threshold_range", expected, "for instance [0.5, 4.0]")

    def draw(self, seed: list[int]) -> CameraDraw:
        """The camera of one sample, from its seed alone."""
        rng = random_stream("camera", *seed)
        chance, place = rng.random(4), rng.random(4)
        low, high = np.log(self.threshold_range)
        threshold = (
            float(np.exp(low + place[0] * (high - low))) if chance[0] < self.threshold_prob else 1.0
        )
        probs, most = (
            (self.drop_prob, self.hot_prob, self.dead_prob),
            (self.drop_max, self.hot_max, self.dead_max),
        )
        drop, hot, dead = np.where(chance[1:] < probs, place[1:] * most, 0.0).tolist()
        factor = 1.0 / threshold if self.known_rate else 1.0
        rng = random_stream("dark current and frames of a camera", *seed)
        chance, place = rng.random(3), rng.random(4)
        probs, most = (
            (self.dark_prob, self.rgb_prob),
            (self.dark_max, self.rgb_shot_max, self.rgb_read_max),
        )
        is_dark, is_noisy = chance[:2] < probs
        dark, shot, read = np.where([is_dark, is_noisy, is_noisy], place[:3] * most, 0.0).tolist()
        jpeg = (
            round(self.jpeg_min + place[3] * (100 - self.jpeg_min))
            if chance[2] < self.jpeg_prob
            else 0
        )
        rgb = RgbCamera(shot=shot, read=read, jpeg=jpeg) if shot or read or jpeg else None
        return CameraDraw(tuple(seed), threshold, drop, hot, dead, factor, dark, rgb)


import_parts("data", "camera_*")

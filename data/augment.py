"""Random augmentation that lq, gt and spikes share: crop, flips, transposition and time reversal."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Augment:
    """The crop, in pixels of the lq frame, and the flips; the same for every frame of a sample.

    Order: crop, hflip (left-right), vflip (up-down), transpose (swaps the two axes; with the flips this gives all
    rotations by 90 degrees). reverse plays the clip backwards, spikes included.
    """

    top: int
    left: int
    height: int
    width: int
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
    ) -> Augment:
        """A random square of side `patch` within a frame of size (H, W), and random flips among the allowed ones.

        origin: upper left pixel, where only a part of the frame, of that size, is allowed.
        step: RGB pixels per spike pixel; the crop starts at multiples of it, so that no sub-pixel shift arises.
        All random numbers are drawn in any case, so that switching one flip off does not change the others.
        """
        top, left = (
            start + int(rng.integers(0, (side - patch) // step + 1)) * step
            for start, side in zip(origin, size, strict=True)
        )
        flips = rng.random(4) < 0.5
        return cls(
            top, left, patch, patch,
            hflip=bool(hflip and flips[0]),
            vflip=bool(rot and flips[1]),
            transpose=bool(rot and flips[2]),
            reverse=bool(reverse and flips[3]),
        )  # fmt: skip

    @classmethod
    def whole(cls, size: tuple[int, int]) -> Augment:
        """No crop and no flip."""
        return cls(0, 0, *size)

    def crop(self, frame: np.ndarray, scale: int = 1) -> np.ndarray:
        """The crop of a frame (scale H, scale W, ...), as a view; scale: size of the frame over that of lq."""
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

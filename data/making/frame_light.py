"""Turn display values of pictures into linear light, and scale pictures down.

Light is linear, float32, 1 at full scale. Display values are the values 0 ... 255 of a picture.

What must stay: every bit of the light, because made data sets (of scripts/prepare_gopro_spike.py)
are published, and an interrupted data set is continued later. If the light must change, raise
VERSION in data/making/recipe.py. No test notices a change of the last bits.

Tests: tests/parts/scripts/test_prepare_gopro_spike.py
"""

from collections.abc import Callable

import cv2
import numpy as np

from data.clips.user_frames import FrameSource
from data.spike.pictures import to_grey, to_linear

# Linear light of each display value 0 ... 255, at gamma 2.2. cv2.LUT looks pixels up in this table.
LIGHT_OF_DISPLAY_VALUE = to_linear(np.arange(256, dtype=np.float32) / 255.0)


def grey_light(
    frames: FrameSource, size: tuple[int, int], gamma: float
) -> Callable[[int], np.ndarray]:
    """Return a function that gives the grey light of a frame.

    size: (h, w) to which frames are scaled. gamma: exponent from display values to light.
    """
    # A table like LIGHT_OF_DISPLAY_VALUE, but with the given gamma.
    curve = to_linear(np.arange(256, dtype=np.float32) / 255.0, gamma)
    height, width = size

    def light(number: int) -> np.ndarray:
        """Return the grey light (h, w) of a frame. number: number of the frame."""
        grey = to_grey(cv2.LUT(frames.read(number), curve))
        return cv2.resize(grey, (width, height), interpolation=cv2.INTER_AREA)

    return light


def scale_down(picture: np.ndarray, side: int) -> np.ndarray:
    """Scale a picture to a shorter side of `side` pixels. A smaller picture stays as it is."""
    height, width = picture.shape[:2]
    factor = min(1.0, side / min(height, width))
    if factor == 1:
        return picture
    size = (round(width * factor), round(height * factor))
    return cv2.resize(picture, size, interpolation=cv2.INTER_AREA)

"""Exposures without a picture, whose spikes a test chooses (data/motion/joint/).

A frame has H x W RGB pixels. A plane, which is one binary picture of the spike camera, has h x w
spike pixels.
"""

import numpy as np

from data.motion.exposure import Recording

# Both cameras are aligned, and a spike pixel covers 2 x 2 RGB pixels. The matrix maps a spike pixel
# (x, y, 1) to an RGB pixel: spike pixel 0 covers the RGB pixels 0 and 1, so its middle lies at 0.5.
ALIGNED = np.array([[2, 0, 0.5], [0, 2, 0.5], [0, 0, 1.0]])
# Planes of the exposures that are made here.
PLANES = 40


def dark_exposure(size: tuple[int, int], plane: tuple[int, int]) -> Recording:
    """Return an exposure of 40 planes without light.

    size: height and width of the frame, (H, W).
    plane: height and width of a spike plane, (h, w).
    """
    return Recording(
        blurry=np.zeros((*size, 3), np.float32),
        stream=np.zeros((PLANES, *plane), np.uint8),
        begin=0,
        end=PLANES,
        sharp=20.5,  # the middle of plane 20
    )


def exposure_with(spikes: int) -> Recording:
    """Return an exposure of 40 planes in which each pixel has this number of spikes, 0 to 40."""
    recording = dark_exposure(size=(16, 16), plane=(8, 8))
    recording.stream[:spikes] = 1  # every pixel fires in each of the first planes
    return recording

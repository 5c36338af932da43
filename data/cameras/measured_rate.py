"""Measure the firing rate at full light from a frame and its spikes (`spike.rate` "match").

Both cameras recorded the same light during the exposure. So the mean firing rate, divided by the
mean brightness of the blurry frame, is the rate at full light (brightness 1):

    rate = mean spikes per plane / mean brightness        e.g. 0.2 / 0.4 = 0.5

A plane is one read-out of the spike camera, with 0 or 1 for each pixel. The threshold and the gain
of the spike camera need not be known, because the rate contains both. The means are over the pixels
that both cameras see.

What must stay: the measured rate, because channels are divided by it, and trained networks expect
these channels.

Tests (in tests/parts/data): test_spike_source.py and test_dataset_video_rgbspike.py notice a wrong
rate
"""

from typing import Literal

import cv2
import numpy as np

from data.cameras.spike_grid import Window
from data.spike.pictures import LUMA, to_linear

# Display value 0 ... 255 -> linear light 0 ... 1, (256,) float32.
DISPLAY_TO_LIGHT = to_linear(np.arange(256, dtype=np.float32) / 255.0)
# If a firing rate or a brightness is below its limit, the limit is used in its place. Without the
# limits, planes without a spike would give the rate 0, and a black frame would divide by 0. Both
# limits were chosen by hand, far below the firing rate and the brightness of any clip that shows
# something. Larger limits would change the channels of dim clips.
LEAST_FIRING_RATE = 1e-4  # spikes per plane
LEAST_BRIGHTNESS = 1e-3  # white is 1


def measured_rate(
    stream: np.ndarray, image: np.ndarray, window: Window, light: Literal["linear", "display"]
) -> float:
    """Return the spikes per plane at full light.

    stream: the planes of a frame (T, h, w).
    image: the blurry frame at the same place, (H, W, 3) uint8 display values, B, G, R.
    window: the window of the crop, which says which spike pixel lies at which RGB pixel.
    light: what the sensor integrated. The brightness of the frame is measured in the same unit,
    because both means must be proportional to each other.
    """
    if light == "display":
        values = image
        full_light = 255.0
    else:
        values = cv2.LUT(image, DISPLAY_TO_LIGHT)
        full_light = 1.0
    firing_rate, mean_bgr = window.brightness(stream, values)
    # LUMA is for R, G, B, and the image has B, G, R. In the other order,
    # test_the_measured_rate_knows_how_bright_each_color_is fails.
    luma_bgr = LUMA[::-1]
    brightness = float(mean_bgr @ luma_bgr) / full_light
    return max(firing_rate, LEAST_FIRING_RATE) / max(brightness, LEAST_BRIGHTNESS)

"""Paint the edges of the spikes over a frame. They show whether spikes and frame agree.

Free to change: all of it, because only people look at the image.

Tests: tests/parts/scripts/test_show_sample.py
"""

import cv2
import numpy as np

from scripts.parts.show_sample.sample_page import enlarge

# Colour (R, G, B) of the edges.
GREEN = (0, 255, 60)


def edges_over(
    image: np.ndarray, grey_of_spikes: np.ndarray, rgb_per_spike_pixel: int
) -> np.ndarray:
    """Return an image with the strongest edges of the spikes painted in green.

    image: a blurry or a sharp frame, (rows, columns, 3) uint8. Sharp frames may be larger than the
        blurry frames (the option `scale`).
    grey_of_spikes: a grey image, made from the spikes and brought to the size of the blurry frames.
    rgb_per_spike_pixel: number of pixels of `grey_of_spikes` along a side of a spike pixel.

    E.g. with sharp frames of four times the size of the blurry frames:

        plane of the spike camera     180 x 320
        grey_of_spikes                360 x 640      rgb_per_spike_pixel = 2
        image, a sharp frame          1440 x 2560
    """
    shown = enlarge(image)  # a copy, into which the edges are painted
    height, width = shown.shape[:2]
    grey = grey_of_spikes.astype(np.float32)
    large = cv2.resize(grey, (width, height), interpolation=cv2.INTER_CUBIC)
    # Smooth over one spike pixel. Without smoothing, the noise of single spikes would have the
    # strongest edges. In the example a spike pixel is 2 * 4 = 8 pixels of `large` wide.
    enlargement = width / grey_of_spikes.shape[1]
    spike_pixel = rgb_per_spike_pixel * enlargement  # its side, in pixels of `large`
    smooth = cv2.GaussianBlur(large, (0, 0), max(1.0, spike_pixel))
    shown[strongest_edges(smooth)] = GREEN
    return shown


def strongest_edges(image: np.ndarray) -> np.ndarray:
    """Return which pixels of a grey image (H, W) float32 are on a strong edge, (H, W) bool."""
    gradient_x = cv2.Sobel(image, cv2.CV_32F, dx=1, dy=0)
    gradient_y = cv2.Sobel(image, cv2.CV_32F, dx=0, dy=1)
    # Canny takes gradients as int16, up to 32767, and compares the strength |x| + |y| with `low`
    # and `high`. So scale the largest gradient to 10000: then the strength is at most 20000.
    largest_x = float(np.abs(gradient_x).max())
    largest_y = float(np.abs(gradient_y).max())
    largest = max(largest_x, largest_y, 1e-6)  # 1e-6: not 0 for an image without edges
    scale = 10000 / largest
    # An edge begins at one of the strongest 8 % of gradients, and continues along gradients of the
    # strongest 20 %. With larger shares, weak texture would be painted as well.
    strength = scale * (abs(gradient_x) + abs(gradient_y))
    high = float(np.percentile(strength, 92))
    low = float(np.percentile(strength, 80))
    lines = cv2.Canny(
        (scale * gradient_x).astype(np.int16), (scale * gradient_y).astype(np.int16), low, high
    )
    return lines > 0

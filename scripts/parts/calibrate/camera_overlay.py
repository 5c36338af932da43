"""Draw the image on which a person sees whether a calibration is right.

What must stay: the image shows both cameras one above the other
(test_a_picture_shows_both_cameras_one_above_the_other).
Free to change: how it looks.
"""

import cv2
import numpy as np

from data.cameras.calibrated_grid import CalibratedGrid
from data.cameras.registration.view import View
from data.spike.geometry import Crop
from scripts.parts.calibrate.camera_pairs import images_of

# Side of a square of the overlay, in RGB pixels, chosen by hand. Smaller squares are too small to
# compare by eye. Larger squares leave long stretches without a border between frame and spikes.
TILE = 64


def overlay(view: View, light: str, grid: CalibratedGrid) -> np.ndarray:
    """Return an image (2 H, W, 3) uint8 that shows whether frame and spikes agree.

    The upper half has the frame in magenta and the spikes in green. Where frame and spikes agree,
    the image is grey. The lower half shows squares of the frame and of the spikes in turn.

    light: what the spike camera integrates, "linear" light or "display" values.
    grid: where each spike pixel lies in the frame, by the calibration that is judged.
    """
    rates, frame = images_of(view, light)  # (h, w) of the spike camera, (H, W) of the frame
    height, width = frame.shape
    spikes = _on_frame(rates, frame, grid)

    upper = np.stack((frame, spikes, frame), axis=2)  # red and blue make magenta
    # Make squares as on a chessboard. Each pixel lies in a row and in a column of squares, (H, W).
    square_row, square_column = np.mgrid[:height, :width] // TILE
    is_frame = (square_row + square_column) % 2 == 0
    squares = np.where(is_frame, frame, spikes)  # (H, W)
    lower = np.repeat(squares[..., None], 3, axis=2)  # (H, W, 3), grey
    image = np.concatenate((upper, lower))  # (2 H, W, 3) in [0, 1]
    image = np.ascontiguousarray((255 * image + 0.5).astype(np.uint8))
    # Draw a yellow line of one pixel around the region that the spike camera sees. OpenCV takes the
    # corners as (column, row).
    region = grid.region
    upper_left = (region.left, region.top)
    lower_right = (region.right - 1, region.bottom - 1)
    cv2.rectangle(image, upper_left, lower_right, color=(255, 255, 0), thickness=1)
    return image


def _on_frame(rates: np.ndarray, frame: np.ndarray, grid: CalibratedGrid) -> np.ndarray:
    """Return the spikes at the pixels of the frame, (H, W), as bright as the frame.

    Pixels that the spike camera does not see are 0.

    rates: (h, w) of the spike camera, in [0, 1]. frame: (H, W), in [0, 1].
    grid: where each spike pixel lies in the frame.
    """
    # Bring the spikes to the pixels of the frame. `grid` says which spike pixel sees which point of
    # the frame, and the window is the whole frame.
    height, width = frame.shape
    window = grid.window(Crop(top=0, left=0, height=height, width=width))
    is_seen = window.covered  # (H, W): the pixels that the spike camera sees
    needed_rates = rates[window.crop.slices]  # the spike pixels that show a part of the frame
    # `to_rgb` takes and returns channels first, (1, h, w) -> (1, H, W).
    spikes = window.to_rgb(needed_rates[None])[0]  # (H, W)

    # Give the spikes the mean and the contrast of the frame, both measured at the pixels that both
    # cameras see. An image of one value has the deviation 0, so divide by at least 1e-6.
    spikes_seen = spikes[is_seen]
    frame_seen = frame[is_seen]
    normal = (spikes - spikes_seen.mean()) / max(spikes_seen.std(), 1e-6)  # mean 0, deviation 1
    spikes = normal * frame_seen.std() + frame_seen.mean()
    return np.where(is_seen, np.clip(spikes, 0, 1), 0)

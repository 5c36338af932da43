"""Measure whether two pictures show the same scene, and how far one is shifted from the other.

    1. Both pictures are reduced to their gradients (edges), on the grid of the spike pixels.
    2. If the pictures show the same scene at the same place, their edges correlate.
    3. A phase correlation (cv2.phaseCorrelate) finds the shift between the two pictures. It also
       returns a number, the response, that says how sure the shift is.

What must stay: how two pictures are compared, because the limits below were measured with this
comparison. No test notices another value of BORDER.

Tests: tests/parts/scripts/test_show_sample.py

    test_spikes_that_are_shifted_are_named           notices a stronger blur of the pictures, and a
                                                     shift with a wrong sign
    test_a_small_shift_beside_a_large_one_is_named   notices a shift that is not in RGB pixels
"""

from collections.abc import Sequence
from typing import NamedTuple

import cv2
import numpy as np

# LEAST_CORRELATION and LEAST_RESPONSE are limits between right and wrong data, for the correlation
# of gradients (at most 1) and for the response (at most about 1). The limits were measured on 8
# clips of the sample set, 5 frames each, with the representations voxel and tfi:
#
#                                                  correlation       response
#     right place, sharp frames                    0.86 and more     0.80 and more
#     right place, blurry frames                   0.65 and more     0.44 and more
#     right picture, but shifted                                     0.53 and more
#     flipped, mirrored, transposed, other scene   0.28 and less     0.39 and less
#
# The shifted pictures have no entry for the correlation, because the correlation depends on the
# shift. A lower limit would miss wrong data, and a higher limit would warn of right data. A limit
# may change if it is measured anew.
LEAST_CORRELATION = 0.4  # between 0.28 of wrong data and 0.65 of right data
LEAST_RESPONSE = 0.42  # between 0.39 and 0.44


class Pair(NamedTuple):
    """The two pictures that are compared: display values (H, W) float32."""

    spikes: np.ndarray
    frame: np.ndarray


class Measures(NamedTuple):
    """How well spikes and frames fit, in one frame or in several."""

    correlation: float  # correlation of the gradients, the mean of several frames
    # (right, down) shift of the spikes from the frame in RGB pixels, the median of several frames.
    shift: tuple[float, float]
    # Height of the peak of the phase correlation, the mean of several frames. A high peak means
    # that spikes and frames show the same, maybe at another place.
    response: float


def measure(pairs: Sequence[Pair], pixel_side: int) -> Measures:
    """Measure how well spikes and frames fit. The order of `pairs` does not matter.

    pairs: the pictures of each measured frame.
    pixel_side: number of RGB pixels along a spike pixel.
    """
    measures_of_frames = [_measure_frame(pair, pixel_side) for pair in pairs]
    fits = [(each.correlation, each.response) for each in measures_of_frames]
    # The mean over the frames: the mean correlation, and the mean response.
    correlation, response = np.mean(fits, axis=0).tolist()
    # The median of the shifts is taken, because one frame may give a wrong peak far away.
    shifts = [each.shift for each in measures_of_frames]  # (right, down) of each frame
    right, down = np.median(shifts, axis=0).tolist()
    return Measures(correlation, (right, down), response)


# A picture counts as without texture if the standard deviation of its gradients is below this
# number, for values from 0 to 1. The limit only excludes uniform pictures, for which a correlation
# would be 0 / 0.
NO_TEXTURE = 1e-6


def _measure_frame(pair: Pair, pixel_side: int) -> Measures:
    """Measure how well the spikes fit one frame. pixel_side: RGB pixels along a spike pixel."""
    edges_of_spikes = _gradients(pair.spikes, pixel_side)
    edges_of_frame = _gradients(pair.frame, pixel_side)
    # Two cases have no result, so all measures are 0. A single row or column of spike pixels cannot
    # show a shift across it, and OpenCV refuses such a picture. A picture without texture has no
    # edges to compare.
    has_one_line = min(edges_of_spikes.shape) < 2
    lacks_texture = edges_of_spikes.std() < NO_TEXTURE or edges_of_frame.std() < NO_TEXTURE
    if has_one_line or lacks_texture:
        return Measures(correlation=0.0, shift=(0.0, 0.0), response=0.0)
    # corrcoef returns a matrix (2, 2) with 1 on its diagonal.
    correlation = np.corrcoef(edges_of_spikes.ravel(), edges_of_frame.ravel())[0, 1]
    # The window fades out the borders, because a phase correlation takes the picture as periodic.
    # `phaseCorrelate` multiplies both pictures of edges by the window, in place, so the correlation
    # above must be computed first.
    height, width = edges_of_spikes.shape
    window = cv2.createHanningWindow((width, height), cv2.CV_32F)
    shift_of_frame, response = cv2.phaseCorrelate(edges_of_spikes, edges_of_frame, window)
    # OpenCV gives the shift of the frame from the spikes, in spike pixels. `Measures` has the shift
    # of the spikes from the frame, in RGB pixels. So change the sign and the unit.
    right, down = shift_of_frame
    shift_of_spikes = (-pixel_side * right, -pixel_side * down)
    return Measures(float(correlation), shift_of_spikes, response)


def _gradients(image: np.ndarray, pixel_side: int) -> np.ndarray:
    """Return the magnitude of the gradient of a picture, on the grid of the spike pixels.

    image: the picture, (H, W).
    pixel_side: number of RGB pixels along a spike pixel.

    Returns a new array of about (H / pixel_side, W / pixel_side) float32, without the border.
    `_measure_frame` overwrites this array.
    """
    rgb_height, rgb_width = image.shape
    # At least one pixel, because a tiny region may be smaller than a spike pixel.
    height = max(1, rgb_height // pixel_side)
    width = max(1, rgb_width // pixel_side)
    small = image
    if pixel_side > 1:
        small = cv2.resize(image, (width, height), interpolation=cv2.INTER_AREA)
    small = np.ascontiguousarray(small, np.float32)
    # A Gaussian of one spike pixel reduces the noise of the spikes. With (0, 0), OpenCV takes the
    # size of the kernel from sigmaX.
    smooth = cv2.GaussianBlur(small, (0, 0), sigmaX=1.0)
    across = cv2.Sobel(smooth, cv2.CV_32F, dx=1, dy=0)
    down = cv2.Sobel(smooth, cv2.CV_32F, dx=0, dy=1)
    magnitude = cv2.magnitude(across, down)
    return np.ascontiguousarray(magnitude[_without_border(height), _without_border(width)])


# Pixels to cut off at each border of a picture of gradients, chosen by hand. The gradient is 0 at
# the border of every picture, so the borders of any two pictures would correlate.
BORDER = 2
# Shortest side, in pixels, to which a picture of gradients is cut. Fewer pixels prove nothing.
# Chosen by hand.
LEAST_SIDE = 8


def _without_border(side: int) -> slice:
    """Return the middle part of a side, without the border, as a slice.

    The result is the longest part whose length is even, and is not padded by cv2.phaseCorrelate.
    OpenCV pads to a length that is fast to transform, e.g. 100. A padded length may be odd. With an
    odd length, the shift would be half a pixel off
    (test_a_small_shift_beside_a_large_one_is_named).

    E.g. the border leaves 101 of 105 pixels, and the part has 100 of them: slice(2, 102). If no
    such length fits, the side is kept whole.
    """
    longest = side - 2 * BORDER
    shortest = min(side, LEAST_SIDE)
    for length in range(longest, shortest - 1, -1):
        needs_no_padding = cv2.getOptimalDFTSize(length) == length
        if length % 2 == 0 and needs_no_padding:
            begin = (side - length) // 2
            return slice(begin, begin + length)
    return slice(0, side)

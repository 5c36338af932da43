"""Remove from the change of the spikes what many pixels have in common, because it is no motion.

The change of a spike pixel is a number: its spikes per plane in some parts of the exposure, minus
its spikes per plane in other parts (the PATTERNS of evidence.py). Two things, equal light and
lamps, change the spikes although nothing moves. They change many pixels alike, and a motion does
not:

    equal light    pixels of equal light change alike if the light of the whole frame changes, or if
                   a sensor begins with the same charge in all pixels, as simulators do
    lamps          pixels near one another change alike, in proportion to their light, if a lamp
                   lights a part of the frame

A plane is one binary picture (h, w) of the spike camera. The evidence of a motion is computed from
the changes that are left. If nothing moves, the evidence is 0 on average, with a standard deviation
of about 1 (evidence.py).

No trained weights depend on this file, so its constants may change. The comments name the tests
that notice another value.

Tests: tests/parts/data/test_stillness.py
"""

import cv2
import numpy as np

# ---- Equal light -------------------------------------------------------------------------------


def order_by_light(frame_light: np.ndarray, light: np.ndarray) -> np.ndarray:
    """Return the argsort of the spike pixels by their light, the darkest first: (h w,) int.

    frame_light: (h, w), the light of each spike pixel in the blurry frame. It has no noise of the
    spikes.
    light: (h, w), spikes per plane of each pixel. This light decides between pixels that are equal
    in `frame_light`, e.g. where the blurry frame is clipped.
    """
    # Pixels that are equal in both values come in a random order. In the order of their positions,
    # neighbours in the picture would also be neighbours in the result, and
    # `without_change_of_equal_light` would remove the motion that they have in common.
    random_order = np.random.default_rng(0).permutation(frame_light.size)
    # np.lexsort sorts by the last key first.
    return np.lexsort((random_order, light.ravel(), frame_light.ravel()))


# Number of pixels of about equal light whose common change is removed. Fewer pixels would remove
# more of a true motion. More pixels leave evidence of a motion in a still scene whose sensor begins
# with the same charge in all pixels (test_pixels_that_begin_with_equal_charges_are_no_motion). With
# 257 pixels this evidence was up to 5.2, above SURE_EVIDENCE = 3.5 (evidence.py). With 65 pixels it
# was at most 2.4.
EQUAL_LIGHT_PIXELS = 65


def without_change_of_equal_light(change: np.ndarray, by_light: np.ndarray) -> np.ndarray:
    """Return the change (h, w) without what pixels of about equal light have in common.

    by_light: (h w,), numbers of the pixels in the order of their light.
    """
    in_order = change.ravel()[by_light]  # (h w,), the change of the darkest pixel first
    # In this order, pixels of about equal light are neighbours. So their common change is the mean
    # over a window.
    one_row = in_order[None]  # (1, h w): OpenCV takes it as an image of one row
    window = (EQUAL_LIGHT_PIXELS, 1)  # width and height
    # [ ] takes the only row of the result.
    [common_change] = cv2.blur(one_row, window, borderType=cv2.BORDER_REFLECT)  # (h w,)
    # Put the remaining change of each pixel back to the position of the pixel.
    remaining_change = np.empty_like(in_order)
    remaining_change[by_light] = in_order - common_change
    return remaining_change.reshape(change.shape)


# ---- Lamps -------------------------------------------------------------------------------------

# Sigma in spike pixels of the surroundings in which a lamp changes all pixels alike. With 40, a
# lamp that lights a part of the frame would count as motion
# (test_a_lamp_that_lights_a_part_of_the_frame_is_no_motion). With 4, `product_of_noise`
# (neighbours.py) would be wrong, because it assumes that neighbours have nearly the same
# surroundings (test_the_evidence_of_noise_is_0_in_the_mean).
LIGHT_SIGMA = 12.0


def without_change_of_lamps(
    change: np.ndarray, light: np.ndarray, light_around: np.ndarray
) -> np.ndarray:
    """Return the change (h, w) without the change that a lamp makes in all pixels around.

    If a lamp becomes brighter, all pixels around a pixel change in proportion to their light:

        change = brighter_by * light        brighter_by = (change around) / (light around)

    E.g. two pixels have the light 0.2 and 0.4 and the change 0.02 and 0.04. The means around them
    are 0.03 and 0.3, so brighter_by is 0.1, and both changes become 0.

    change: (h, w). light: (h, w), spikes per plane. light_around: (h, w), from `light_around_of`.
    """
    brighter_by = blurred(change, LIGHT_SIGMA) / light_around
    return change - brighter_by * light


def light_around_of(light: np.ndarray) -> np.ndarray:
    """Return the mean light around each pixel, (h, w), above 0."""
    light_around = blurred(light, LIGHT_SIGMA)
    # The result is a divisor. Where no pixel around has a spike, the result is set to 1. At these
    # pixels the dividend is 0, so the quotient is 0.
    return np.where(light_around > 0, light_around, 1)


def blurred(values: np.ndarray, sigma: float) -> np.ndarray:
    """Return the mean of the values (h, w) around each pixel, with Gaussian weights."""
    return cv2.GaussianBlur(values, (0, 0), sigma, borderType=cv2.BORDER_REFLECT)


def blurred_columns(values: np.ndarray, sigma: float) -> np.ndarray:
    """Return the mean of the values around each value within its column, weighted as by `blurred`.

    values: (n, columns).
    """
    radius = round(4 * sigma)  # as OpenCV chooses it in `blurred`, for float values
    kernel_size = (1, 2 * radius + 1)  # along x and y
    return cv2.GaussianBlur(values, kernel_size, sigma, borderType=cv2.BORDER_REFLECT)

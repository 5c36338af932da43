"""Pictures of a motion: which one was used, and where it was not trusted.

`scripts/show_motion.py`, `scripts/show_sample.py` and the report of a test show them. The hue of a
pixel is the direction of its motion, with the colours of Baker et al., "A database and evaluation
methodology for optical flow" (IJCV 2011). But the saturation is the length of the motion, divided
by the longest length of the picture. Still pixels are white.

What must stay: PICTURE_NAMES, because they name the pictures in the folder of a test. LEGEND says
the colours and the limits in words, so both change together. All else is free, because no frame
depends on a picture.

Tests: tests/stories/test_motion_pictures.py notices another hue,
tests/parts/data/test_learned_motion.py another limit of `not_trusted`. No test looks at the grey
levels of `error_picture`.
"""

import cv2
import numpy as np

from data.motion.flow import Motion
from utils.contract import FramePicture

# In this file, a way is the motion of a pixel from the begin of the exposure to its end, as x and y
# in RGB pixels.

# The full colour stands for the longest way of the picture, but for at least this length in pixels.
# So if nothing moves more than a fraction of a pixel, the picture is pale.
FULL_COLOUR_AT_LEAST = 1.0
# This share of the pixels, those with the longest ways, does not decide the full colour. Otherwise
# one wrong way could make all others pale. These pixels have the full colour, too.
SHARE_ABOVE_FULL_COLOUR = 0.05
# A motion is drawn as not trusted if its expected error is at least this share of its length.
NOT_TRUSTED = 0.5
# A smaller error, in pixels, is never drawn as not trusted, because nobody would see its effect in
# the frame. For a short motion, it may be a large share of the length.
HARMLESS_ERROR = 0.5
# Grey level of the cover where the motion is not trusted.
GREY = 160
# Grey level of the slanted lines on the cover, and the pixels from one line to the next.
DARK_GREY = 90
LINE_EACH = 6
# An expected error of at least this number of pixels is drawn white.
WHITE_ERROR = 8.0
# The meaning of the colours, for a page that shows the pictures.
LEGEND = (
    "Right is red, down yellow-green, left cyan, up violet; paler is slower. Grey lines cover "
    "motion that is not trusted: its expected error is above half a pixel and half of its length."
)
# Names of the pictures of `pictures_of`, in their order.
PICTURE_NAMES = ("motion", "motion_error")


def pictures_of(motion: Motion, with_legend: bool = False) -> list[FramePicture]:
    """Return the motion and its expected error as pictures with captions.

    with_legend: whether the caption of the motion says the meaning of its colours, too.
    """
    motion_name, error_name = PICTURE_NAMES
    share = not_trusted(motion).mean()
    mean_error = motion.errors.mean()
    caption = f"way of each pixel, up to {longest_way(motion):.1f} px; {share:.0%} not trusted"
    if with_legend:
        caption += f". {LEGEND}"
    return [
        FramePicture(motion_name, motion_picture(motion), caption),
        FramePicture(
            error_name,
            error_picture(motion),
            f"expected error, {mean_error:.2f} px in the mean; white: {WHITE_ERROR:g} px or more",
        ),
    ]


def error_picture(motion: Motion) -> np.ndarray:
    """Draw the expected error of each pixel, the mean over the exposure. Returns (H, W, 3) uint8.

    Black is no error, white is WHITE_ERROR pixels or more.
    """
    error = motion.errors.mean(axis=0)  # (H, W)
    grey = np.rint(255 * np.clip(error / WHITE_ERROR, 0, 1)).astype(np.uint8)
    return np.repeat(grey[..., None], 3, axis=-1)


def motion_picture(motion: Motion) -> np.ndarray:
    """Draw the way of each pixel within the exposure. Returns (H, W, 3) uint8, R, G, B.

    The way goes from where the pixel is at the begin of the exposure to where it is at its end. It
    is drawn at the place of the pixel in the sharp frame. Grey lines cover the pixels whose motion
    was not trusted, see `not_trusted`.
    """
    # The cover is grey, and every sixth diagonal is darker. No motion is drawn in grey, because
    # still pixels are white and moving pixels have a colour.
    picture = way_picture(_way(motion))
    covered = not_trusted(motion)
    y, x = np.indices(covered.shape)
    is_line = (x + y) % LINE_EACH == 0
    picture[covered] = GREY
    picture[covered & is_line] = DARK_GREY
    return picture


def longest_way(motion: Motion) -> float:
    """Return the length in pixels of the way that is drawn in the full colour."""
    return _longest(np.linalg.norm(_way(motion), axis=-1))


def _way(motion: Motion) -> np.ndarray:
    """Return the way of each pixel within the exposure, (H, W, 2), x and y in pixels."""
    return motion.shifts[-1] - motion.shifts[0]


def _longest(lengths: np.ndarray) -> float:
    """Return the length that is drawn in the full colour. lengths: (H, W), in pixels."""
    longest = float(np.quantile(lengths, 1 - SHARE_ABOVE_FULL_COLOUR))
    return max(longest, FULL_COLOUR_AT_LEAST)


def way_picture(way: np.ndarray) -> np.ndarray:
    """Draw ways (H, W, 2), x and y in pixels. Returns (H, W, 3) uint8, R, G, B.

    Right is red, down is yellow-green, left is cyan, up is violet.
    """
    length = np.linalg.norm(way, axis=-1)
    longest = _longest(length)
    angle = np.arctan2(way[..., 1], way[..., 0])  # right is 0, down is pi / 2
    # Hue in degrees, saturation and value in [0, 1], as OpenCV takes float32.
    hsv = np.empty((*length.shape, 3), np.float32)
    hsv[..., 0] = np.rad2deg(angle) % 360
    hsv[..., 1] = np.minimum(length / longest, 1)
    hsv[..., 2] = 1
    return np.rint(255 * cv2.cvtColor(hsv, cv2.COLOR_HSV2RGB)).astype(np.uint8)


def not_trusted(motion: Motion) -> np.ndarray:
    """Return where the motion was not trusted, (H, W) bool.

    A motion is not trusted if its expected error is more than half of its length. E.g. an error of
    3 pixels is not trusted in a motion of 5 pixels, and is trusted in a motion of 10 pixels. An
    error below half a pixel is trusted in any motion, because nobody would see its effect. Error
    and length are means over the exposure.
    """
    error = motion.errors.mean(axis=0)
    length = np.linalg.norm(motion.shifts, axis=-1).mean(axis=0)
    return (error > HARMLESS_ERROR) & (error > NOT_TRUSTED * length)

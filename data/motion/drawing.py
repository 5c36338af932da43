"""Pictures of a motion: which one was used, and where it was not trusted.

`scripts/show_motion.py` shows them. The colours are those of Baker et al., "A database and
evaluation methodology for optical flow" (IJCV 2011), but for their saturation: the hue is the
direction, and the saturation is the length over the longest one. Still pixels are white.
"""

import cv2
import numpy as np

from data.motion.flow import Motion

# Pixels of motion that are drawn in the full colour, at least. Less motion is drawn paler.
LEAST_LONGEST = 1.0
# Share of the pixels that may be longer than what is drawn in the full colour.
LONGER = 0.05
# A motion whose expected error is as large as this share of its length is drawn as not trusted.
NOT_TRUSTED = 0.5
# An error below this, in pixels, moves no light that one could see, however short the motion is.
NO_MATTER = 0.5
# Of the grey that covers what is not trusted, and of its lines, which are so many pixels apart.
GREY, DARK_GREY = 160, 90
LINE_EACH = 6


def motion_picture(motion: Motion) -> np.ndarray:
    """Draw the way of each pixel within the exposure. Returns (H, W, 3) uint8, R, G, B.

    The way goes from where the pixel is at the begin of the exposure to where it is at its end. It
    is drawn at the place of the pixel in the sharp frame. Grey lines cover the pixels whose motion
    was not trusted, see `not_trusted`.
    """
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
    return motion.shifts[-1] - motion.shifts[0]


def _longest(lengths: np.ndarray) -> float:
    return max(float(np.quantile(lengths, 1 - LONGER)), LEAST_LONGEST)


def way_picture(way: np.ndarray) -> np.ndarray:
    """Draw ways (H, W, 2), x and y in pixels. Returns (H, W, 3) uint8, R, G, B.

    Right is red, down is yellow-green, left is cyan, up is violet.
    """
    length = np.linalg.norm(way, axis=-1)
    longest = _longest(length)
    angle = np.arctan2(way[..., 1], way[..., 0])  # right is 0, down is pi / 2
    hsv = np.empty((*length.shape, 3), np.float32)
    hsv[..., 0] = np.rad2deg(angle) % 360
    hsv[..., 1] = np.minimum(length / longest, 1)
    hsv[..., 2] = 1
    return np.rint(255 * cv2.cvtColor(hsv, cv2.COLOR_HSV2RGB)).astype(np.uint8)


def not_trusted(motion: Motion) -> np.ndarray:
    """Return where the motion was not trusted, (H, W) bool.

    There its expected error, in the mean over the exposure, is large beside its length. Where the
    error is shorter than half a pixel it does not matter.
    """
    error = motion.errors.mean(axis=0)
    length = np.linalg.norm(motion.shifts, axis=-1).mean(axis=0)
    return (error > NO_MATTER) & (error > NOT_TRUSTED * length)

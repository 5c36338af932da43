"""Draw the motion within an exposure, and where the program did not trust it.

`scripts/show_motion.py`, `scripts/show_sample.py` and the report of a test show the pictures. The
picture of a motion draws the displacement of each pixel: its position at the end of the exposure,
minus its position at the start, x and y in RGB pixels. The colours are the usual colours of optical
flow (Baker et al., "A database and evaluation methodology for optical flow", IJCV 2011):

    hue           direction of the displacement
    saturation    length of the displacement, divided by the length that has the full colour in this
                  picture. So still pixels are white

What must stay: PICTURE_NAMES, because they name the pictures in the folder of a test. If you change
a colour or a limit, also change LEGEND, which describes colours and limits in words. All else is
free, because no restored frame depends on a picture.

Tests: tests/stories/test_motion_pictures.py notices another hue, and
tests/parts/data/test_drawing.py notices another limit of `untrusted_pixels`. No test looks at the
grey levels of `error_picture`.
"""

import cv2
import numpy as np

from data.motion.shifts import Motion
from utils.contract import FramePicture

# Share of the displacements of a picture that have the full colour. They are the longest ones. If
# only the longest displacement had the full colour, one wrong displacement could make all others
# pale. Chosen by hand.
SHARE_ABOVE_FULL_COLOUR = 0.05
# A displacement shorter than this number of pixels never has the full colour. So a picture of short
# displacements is pale.
FULL_COLOUR_AT_LEAST = 1.0
# A motion is drawn as not trusted if both conditions are true (`untrusted_pixels`):
#
#     error > MOST_ERROR_SHARE * length
#     error > HARMLESS_ERROR           in pixels; nobody sees the effect of a smaller error
#
# Here `length` is the pixel's mean distance from its position at the sharp instant.
MOST_ERROR_SHARE = 0.5
HARMLESS_ERROR = 0.5
# The cover where the motion is not trusted, chosen by hand.
GREY = 160  # grey level of the cover
DARK_GREY = 90  # grey level of the slanted lines on the cover
LINE_EACH = 6  # pixels from one line to the next
# An expected error of at least this number of pixels is drawn white. Chosen by hand.
WHITE_ERROR = 8.0
# The meaning of the colours, for a page that shows the pictures.
LEGEND = (
    "Right is red, down yellow-green, left cyan, up violet; paler is slower. Grey lines cover "
    "motion that is not trusted: its expected error is above half a pixel, and above half of the "
    "pixel's mean distance from its place in the sharp frame."
)
# Names of the pictures of `pictures_of`, in their order.
PICTURE_NAMES = ("motion", "motion_error")


def pictures_of(motion: Motion, with_legend: bool = False) -> list[FramePicture]:
    """Return the motion and its expected error as pictures with captions.

    with_legend: whether the caption of the motion says the meaning of its colours, too.
    """
    motion_name, error_name = PICTURE_NAMES
    share = untrusted_pixels(motion).mean()  # 0 to 1
    mean_error = motion.errors.mean()
    lengths = np.linalg.norm(_displacements_of(motion), axis=-1)  # (H, W)
    full_colour = full_colour_length(lengths)
    caption = (
        f"way of each pixel, full colour: {full_colour:.1f} px or more; {share:.0%} not trusted"
    )
    if with_legend:
        caption += f". {LEGEND}"
    caption_of_error = (
        f"expected error, {mean_error:.2f} px in the mean; white: {WHITE_ERROR:g} px or more"
    )
    return [
        FramePicture(motion_name, motion_picture(motion), caption),
        FramePicture(error_name, error_picture(motion), caption_of_error),
    ]


def error_picture(motion: Motion) -> np.ndarray:
    """Draw the expected error of each pixel, the mean over the exposure. Returns (H, W, 3) uint8.

    Black is no error, white is WHITE_ERROR pixels or more.
    """
    error = motion.errors.mean(axis=0)  # (H, W)
    grey = np.rint(255 * np.clip(error / WHITE_ERROR, 0, 1)).astype(np.uint8)
    return np.repeat(grey[..., None], 3, axis=-1)


def motion_picture(motion: Motion) -> np.ndarray:
    """Draw the displacement of each pixel within the exposure. Returns (H, W, 3) uint8, R, G, B.

    The colour is drawn at the position of the pixel in the sharp frame. Pixels whose motion was not
    trusted (`untrusted_pixels`) are covered by grey with darker diagonal lines. No motion is drawn
    in grey, because still pixels are white and moving pixels have a colour.
    """
    picture = displacement_picture(_displacements_of(motion))
    covered = untrusted_pixels(motion)
    y, x = np.indices(covered.shape)
    is_line = (x + y) % LINE_EACH == 0
    picture[covered] = GREY
    picture[covered & is_line] = DARK_GREY
    return picture


def _displacements_of(motion: Motion) -> np.ndarray:
    """Return the displacement of each pixel within the exposure, (H, W, 2), x and y in pixels."""
    # Shifts count from the sharp instant. The first time of the shifts is the start of the
    # exposure, and the last time is its end. E.g. the shifts -4, 0 and 4 give the displacement 8.
    return motion.shifts[-1] - motion.shifts[0]


def full_colour_length(lengths: np.ndarray) -> float:
    """Return the least length of a displacement that is drawn in the full colour, in pixels.

    lengths: (H, W), the lengths of all displacements of the picture.
    """
    length = float(np.quantile(lengths, 1 - SHARE_ABOVE_FULL_COLOUR))
    return max(length, FULL_COLOUR_AT_LEAST)


def displacement_picture(displacements: np.ndarray) -> np.ndarray:
    """Draw displacements (H, W, 2), x and y in pixels. Returns (H, W, 3) uint8, R, G, B.

    Right is red, down is yellow-green, left is cyan, up is violet.
    """
    x = displacements[..., 0]
    y = displacements[..., 1]
    angle = np.arctan2(y, x)  # right is 0, down is pi / 2
    length = np.linalg.norm(displacements, axis=-1)
    # In an HSV image of float32, OpenCV takes the hue in degrees, and saturation and value from 0
    # to 1.
    hsv = np.empty((*length.shape, 3), np.float32)
    hsv[..., 0] = np.rad2deg(angle) % 360
    hsv[..., 1] = np.minimum(length / full_colour_length(length), 1)
    hsv[..., 2] = 1
    rgb = cv2.cvtColor(hsv, cv2.COLOR_HSV2RGB)  # 0 to 1
    return np.rint(255 * rgb).astype(np.uint8)


def untrusted_pixels(motion: Motion) -> np.ndarray:
    """Return where the motion was not trusted, (H, W) bool.

    A motion is not trusted if its expected error is more than half of its length. E.g. an error of
    3 pixels is not trusted in a motion of length 5, and is trusted in a motion of length 10. An
    error of half a pixel or less is trusted in any motion.

    The error is the mean over the exposure. The length is not the displacement: it is the mean
    distance of the pixel from its position at the sharp instant. At a constant speed, it is about a
    quarter of the displacement.
    """
    error = motion.errors.mean(axis=0)
    length = np.linalg.norm(motion.shifts, axis=-1).mean(axis=0)
    return (error > HARMLESS_ERROR) & (error > MOST_ERROR_SHARE * length)

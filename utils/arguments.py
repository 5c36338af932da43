"""Numbers of a command line, for `type=` of argparse.

argparse turns a ValueError into a message such as "invalid seed value: '-1'". It puts the name of
the function into the message, so each kind of number has a function of its own. A function that
needs other words raises argparse.ArgumentTypeError.

Free to change: a new kind of number is a new function. Its name should say what the number is.

Test: test_bad_input_ends_with_one_message (tests/stories/test_main_test.py)
"""

import argparse
import math


def frame_rate(text: str) -> float:
    """Return the frames per second of a video. It must be above 0 and finite."""
    rate = float(text)
    if not 0 < rate < math.inf:
        raise ValueError(text)
    return rate


def plane_rate(text: str) -> float:
    """Return the planes (binary pictures) per second of a spike camera: above 0 and finite.

    The rule is the rule of `frame_rate`, but the message says "invalid plane_rate value".
    """
    return frame_rate(text)


def full_rate(text: str) -> float:
    """Return the spikes per plane at full light: at most 1, because a pixel fires once or never."""
    rate = float(text)
    if not 0 < rate <= 1:
        raise ValueError(text)
    return rate


def plane_side(text: str) -> int:
    """Return the height or width of a spike plane in pixels. It must be at least 1."""
    if not text.isdecimal() or int(text) < 1:
        # argparse shows the text of this error, and for a ValueError only the name of the function.
        raise argparse.ArgumentTypeError(
            f"invalid side of a plane: '{text}' is not a whole number of pixels, 1 or more"
        )
    return int(text)


def seed(text: str) -> int:
    """Return a seed of numpy's generators. It must be at least 0."""
    number = int(text)
    if number < 0:
        raise ValueError(text)
    return number

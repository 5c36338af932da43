"""Numbers of a command line, as `type` of argparse; a ValueError becomes its message."""

import math


def frame_rate(text: str) -> float:
    """Frames per second of a video: above 0, and finite."""
    rate = float(text)
    if not 0 < rate < math.inf:
        raise ValueError(text)
    return rate


def seed(text: str) -> int:
    """A seed of numpy's generators: at least 0."""
    number = int(text)
    if number < 0:
        raise ValueError(text)
    return number

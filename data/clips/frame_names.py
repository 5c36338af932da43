"""Tell from the name of a file to which frame it belongs.

A stem is the name of a file without its suffix: "000047" of "000047.png". Files of different kinds,
e.g. 47.png and 000047.dat, belong to one frame if their stems have the same key.

What must stay: the keys, because they decide which files belong together.

Tests: tests/parts/data/test_manifest.py
"""

import re
from typing import NamedTuple

# A stem with a number: the text before the last number, the last number, and the text after the
# last number. E.g. "a1_b2c" -> "a1_b", "2", "c". DOTALL, because a name may have any character,
# also a line break.
NUMBERED = re.compile(r"(?P<before>.*?)(?P<number>\d+)(?P<after>\D*)", re.DOTALL)

NO_NUMBER = -1  # stands for the number of a stem without digits


class FrameKey(NamedTuple):
    """The parts of a file's name that tell its frame. Files with equal keys belong to one frame.

    E.g. "frame_0047" -> ("frame_", 47, ""). Leading zeros do not count, so 47.png and 000047.dat
    belong to one frame.

    If names are compared as a whole, `before` is the whole name, and `number` is NO_NUMBER.
    """

    before: str  # the text before the number, e.g. "frame_"
    number: int  # NO_NUMBER if the name has no number
    after: str  # the text after the number, e.g. ""


def frame_key(stem: str) -> FrameKey:
    """Return the key of a stem.

    "47", "000047" -> ("", 47, ""); "frame_1" -> ("frame_", 1, ""); "x" -> ("x", NO_NUMBER, "").
    "a1_b2" -> ("a1_b", 2, ""), because the last number counts.
    """
    numbered = NUMBERED.fullmatch(stem)
    if numbered is None:
        return FrameKey(before=stem, number=NO_NUMBER, after="")
    return FrameKey(numbered["before"], int(numbered["number"]), numbered["after"])

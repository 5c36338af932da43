"""Names of clips and frames: which are safe as output names, and which files belong to the same frame."""

from __future__ import annotations

import re

from utils.errors import DataError

FrameKey = tuple[str, int, str]  # text before the number, the number, text after it

_NUMBERED = re.compile(r"(.*?)(\d+)(\D*)", re.DOTALL)
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")


def checked_name(name: str, where: str) -> str:
    """`name`, read from `where`, if it can name a clip or frame: results are written under it.

    Raises DataError for names that lead out of their folder, control characters, and bytes that are not UTF-8.
    """
    parts = name.split("/")
    if {"", ".", ".."} & set(parts) or _UNPRINTABLE.search(name):
        raise DataError(
            f"{name!r} cannot be the name of a clip or frame", where,
            'a name without "..", without an empty part and without control characters', "rename it",
        )  # fmt: skip
    return name


def frame_key(stem: str) -> FrameKey:
    """The key by which files are matched to frames.

    "47", "000047" -> ("", 47, ""); "frame_1" -> ("frame_", 1, ""); "x" -> ("x", -1, "").
    """
    found = _NUMBERED.fullmatch(stem)
    return (found[1], int(found[2]), found[3]) if found else (stem, -1, "")


def frame_name(key: FrameKey, digits: int) -> str:
    """The stem of a frame whose number is padded to `digits` digits."""
    before, number, after = key
    return f"{before}{number:0{digits}d}{after}" if number >= 0 else before


def digits_of(stem: str) -> int:
    """To how many digits a stem pads its number; 1 where it does not pad."""
    found = _NUMBERED.fullmatch(stem)
    return len(found[2]) if found and found[2].startswith("0") else 1

"""File names: the one order in which the project reads frames and clips."""

from __future__ import annotations

import re
from pathlib import PurePath

_NUMBER = re.compile(r"(\d+)")


def natural_key(path: str | PurePath) -> tuple[tuple[int, int, str], ...]:
    """Sort key under which 2 comes before 10: runs of digits count as numbers, all other text letter by letter.

    Equal numbers written differently ("1", "01") keep a fixed order: the shorter first.
    """
    parts = _NUMBER.split(str(path))
    digits = ((0, int(p), f"{len(p):04d}") if i % 2 else (1, 0, p) for i, p in enumerate(parts))
    return tuple(digits)

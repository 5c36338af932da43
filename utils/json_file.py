"""Read JSON files of data: dataset.json, exposures, calibrations, the index of a clip cache.

A file may come from anybody, so size and depth are limited before Python reads the file. A limit
may be raised if a file of a user needs more, but no limit may be left out.

Tests: tests/parts/data/test_data_json.py, tests/parts/data/test_small_hostile_files.py
"""

import json
import reprlib
from pathlib import Path
from typing import Any

from pydantic import ValidationError

# Largest number of bytes of a file: 64 MiB. A file with the exposures of 1000 clips, each of 1000
# frames, has a quarter of this size.
LARGEST = 2**26
# Largest number of brackets within one another, e.g. 2 in {"a": [1]}. Our files need 5. Python and
# pydantic fail at some hundreds.
DEEPEST = 32


def read_json(path: str | Path, largest: int = LARGEST) -> Any:
    """Return the contents of a JSON file in UTF-8, with or without a byte order mark.

    largest: largest number of bytes. A longer file is refused before it is parsed.

    Raises OSError, or ValueError with the cause if the file is too long, too deep, or no JSON.
    """
    with open(path, "rb") as file:
        data = file.read(largest + 1)
    if len(data) > largest:
        raise ValueError(f"it has more than {largest} bytes")
    text = data.decode("utf-8-sig")
    if _depth(text) > DEEPEST:
        raise ValueError(f"it has more than {DEEPEST} brackets within one another")
    return json.loads(text, parse_constant=_refuse_constant)


def cause_in_words(e: Exception) -> str:
    """Return the cause of an error of reading a file, in one line.

    E.g. "clips.a.h is 0: Input should be ...".
    """
    if isinstance(e, ValidationError):
        first = e.errors()[0]
        # `reprlib` shortens the value, because it may be the table of a whole data set.
        value = reprlib.repr(first["input"])
        key = ".".join(str(name) for name in first["loc"])  # ("clips", "a", "h") -> "clips.a.h"
        return f"{key} is {value}: {first['msg']}".strip()
    # Return only the reason of the system, because the whole text of an OSError repeats the path.
    if isinstance(e, OSError) and e.strerror:
        return e.strerror
    return str(e)


def _depth(text: str) -> int:
    """Return the largest number of brackets within one another. Brackets in texts do not count.

    The depth must be known before json.loads is called, because json.loads calls itself for each
    bracket, and too many such calls end in an error.
    """
    deepest = 0
    depth = 0
    # Remove escaped backslashes and quotes. The quotes that are left begin and end the texts. So if
    # the text is split at these quotes, the pieces 0, 2, 4, ... stand outside of texts. E.g.
    # {"a": [1]} has the pieces `{`, `a` and `: [1]}`. The backslashes must go first. E.g. in
    # "a\\" the last quote follows an escaped backslash, so the quote ends the text.
    plain = text.replace("\\\\", "").replace('\\"', "")
    pieces = plain.split('"')
    for piece in pieces[::2]:
        # Most pieces open no bracket. Then it is faster to count the closing brackets than to loop
        # over the characters.
        has_opening = "[" in piece or "{" in piece
        if has_opening:
            for character in piece:
                if character in "[{":
                    depth += 1
                    deepest = max(deepest, depth)
                elif character in "]}":
                    depth -= 1
        else:
            depth -= piece.count("]") + piece.count("}")
    return deepest


def _refuse_constant(name: str) -> None:
    """Raise ValueError for NaN and Infinity, which Python would accept. json.loads calls this."""
    raise ValueError(f"{name} is no JSON number")

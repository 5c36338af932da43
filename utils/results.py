"""Tables of text, and JSON files that may hold infinite numbers.

The PSNR of a perfect frame is infinite, so the files of scores need infinite numbers.

What must stay: the format of the JSON files, e.g. metrics.json, because later commands read files
that earlier versions wrote. Free to change: how the tables look, together with the tests.

Tests: tests/parts/utils/test_results.py
"""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from utils.errors import DataError

# Least number of characters of a column of `plain_table` that is cut to fit into a line. If names
# were cut shorter, different names could look the same. Chosen by hand.
LEAST_WIDTH = 8

# "inf" or "-inf" as a whole value that `json_bytes` wrote. The pattern matches no key, because a
# colon follows a key. It matches no part of a longer text, because a quote within a text has a
# backslash before it.
_INFINITE = re.compile(r'(?<!\\)"(-?)inf"(?!\s*:)')


def json_bytes(value: Any) -> bytes:
    """Return a value as valid JSON, with a line end after it.

    JSON has no infinite numbers. Python would write `Infinity`, but other programs refuse this
    word. So an infinite number becomes the text "inf" or "-inf", and NaN becomes null. `read_json`
    turns the texts back into numbers.
    """
    # json.dumps writes the words Infinity, -Infinity and NaN, which are not JSON. json.loads reads
    # the text again. It calls parse_constant with each of these words, and puts the result in place
    # of the word.
    replacements = {"Infinity": "inf", "-Infinity": "-inf", "NaN": None}
    plain = json.loads(json.dumps(value), parse_constant=replacements.get)
    text = json.dumps(plain, indent=1, allow_nan=False)
    return f"{text}\n".encode()


def read_json(path: Path) -> Any:
    """Return the value in a file that `json_bytes` made. Raises DataError for a damaged file.

    The texts "inf" and "-inf" become infinite numbers again. null becomes None, so NaN is lost.
    """
    try:
        text = path.read_text(encoding="utf-8")
        # Python reads Infinity and -Infinity as numbers. \1 is the sign.
        text = _INFINITE.sub(r"\1Infinity", text)
        return json.loads(text)
    except (OSError, ValueError) as e:
        raise DataError(
            what=f"cannot read results: {e}",
            where=str(path),
            expected="JSON",
            do="remove the file, then start again",
        ) from e


def plain_table(
    rows: Sequence[Sequence[str]], header: Sequence[str], line_width: int | None = None
) -> str:
    """Return a table as text. The first column is aligned left, and the other columns right.

    E.g. with the header ["clip", "frames"]:

        clip    frames
        clip_a       6
        clip_b      12

    rows: the cells of each line below the header.
    header: the names of the columns.
    line_width: largest number of characters in a line, or None for no limit. Long cells are cut in
        their middle, in the widest column first. No column becomes narrower than LEAST_WIDTH, so a
        line may stay too long.
    """
    # Take one character at a time from the widest column, until a line is short enough. Two blanks
    # stand between two columns, e.g. 4 blanks in a line of 3 columns.
    widths = _widths(rows, header)
    blank_count = 2 * (len(widths) - 1)
    if line_width is not None:
        while sum(widths) + blank_count > line_width and max(widths) > LEAST_WIDTH:
            widest = widths.index(max(widths))
            widths[widest] -= 1
    lines = []
    for row in (header, *rows):
        cells = []
        for cell, width in zip(row, widths, strict=True):
            text = _cut(cell, width)
            is_first = not cells
            cells.append(text.ljust(width) if is_first else text.rjust(width))
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def _cut(cell: str, width: int) -> str:
    """Return a cell with at most `width` characters, e.g. "experiments", 8 -> "exp..nts"."""
    if len(cell) <= width:
        return cell
    # Two dots stand in the middle. With width 8, 3 characters stand before and 3 after the dots.
    # With width 9, 4 characters stand before and 3 after the dots.
    letters = width - 2
    tail = letters // 2
    head = letters - tail
    return f"{cell[:head]}..{cell[-tail:]}"


def markdown_table(rows: Sequence[Sequence[Any]], header: Sequence[str]) -> str:
    """Return rows as a Markdown table. A float has three significant digits, e.g. 31.2."""
    cells = []
    for row in rows:
        cells.append([_cell_text(value) for value in row])
    # In Markdown, a line of dashes below the header makes the lines a table.
    widths = _widths(cells, header)
    lines = []
    dashes = ["-" * width for width in widths]
    for row in (header, dashes, *cells):
        padded_cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        lines.append(f"| {' | '.join(padded_cells)} |")
    return "\n".join(lines)


def _cell_text(value: Any) -> str:
    """Return a value as `markdown_table` shows it, e.g. 31.2345 -> "31.2"."""
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _widths(rows: Sequence[Sequence[str]], header: Sequence[str]) -> list[int]:
    """Return the length of the longest cell of each column."""
    widths = []
    # zip(*lines) turns lines of cells into columns of cells.
    for column in zip(header, *rows, strict=True):
        widths.append(max(len(cell) for cell in column))
    return widths

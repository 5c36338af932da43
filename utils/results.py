"""Tables of text, and JSON files that may hold infinite numbers."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from utils.errors import DataError

LEAST_WIDTH = 8  # of a column of a table that is cut

# A whole value of `json_bytes`, no key and no part of a text.
_INFINITE = re.compile(r'(?<!\\)"(-?)inf"(?!\s*:)')


def json_bytes(value: Any) -> bytes:
    """Return valid JSON: an infinite number becomes "inf", NaN becomes null."""
    valid = {"Infinity": "inf", "-Infinity": "-inf", "NaN": None}
    plain = json.loads(json.dumps(value), parse_constant=valid.get)
    return (json.dumps(plain, indent=1, allow_nan=False) + "\n").encode()


def read_json(path: Path) -> Any:
    """Read a file that was written from `json_bytes`. Raises DataError for a damaged file."""
    try:
        return json.loads(_INFINITE.sub(r"\1Infinity", path.read_text(encoding="utf-8")))
    except (OSError, ValueError) as e:
        raise DataError(
            what=f"cannot read results: {e}",
            where=str(path),
            expected="JSON",
            do="remove the file, then start again",
        ) from e


def plain_table(
    rows: Sequence[Sequence[str]], header: Sequence[str], most: int | None = None
) -> str:
    """Return a table of aligned columns, the first one to the left.

    most: number of characters in a line. The middle of long cells is left out, in the widest
    columns first.
    """
    widths = _widths(rows, header)
    while most and sum(widths) + 2 * (len(widths) - 1) > most and max(widths) > LEAST_WIDTH:
        widths[widths.index(max(widths))] -= 1
    lines = []
    for row in (header, *rows):
        first, *others = map(_cut, row, widths)
        cells = [first.ljust(widths[0])]
        for cell, width in zip(others, widths[1:], strict=True):
            cells.append(cell.rjust(width))
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def _cut(cell: str, width: int) -> str:
    """Return a cell with at most `width` characters, its middle replaced by two dots."""
    if len(cell) <= width:
        return cell
    tail = (width - 2) // 2
    return f"{cell[: width - 2 - tail]}..{cell[-tail:]}"


def markdown_table(rows: Sequence[Sequence[Any]], header: Sequence[str]) -> str:
    """Return rows as a Markdown table. A float has three digits."""
    cells = []
    for row in rows:
        cells.append([f"{cell:.3g}" if isinstance(cell, float) else str(cell) for cell in row])
    widths = _widths(cells, header)
    lines = []
    for row in (header, ["-" * width for width in widths], *cells):
        padded = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        lines.append(f"| {' | '.join(padded)} |")
    return "\n".join(lines)


def _widths(rows: Sequence[Sequence[str]], header: Sequence[str]) -> list[int]:
    """Return the length of the longest cell of each column."""
    return [max(map(len, column)) for column in zip(header, *rows, strict=True)]

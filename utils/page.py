"""Tables of text, and pages: one HTML file with its images and styles, which a browser opens without a network."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from utils.image import data_uri

LEAST_WIDTH = 8  # of a column that is cut


def render(template: str, **values: Any) -> str:
    """The text of a page: utils/templates/<template>.html filled with `values`; text in them is escaped."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    loader = FileSystemLoader(Path(__file__).with_name("templates"))
    pages = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    pages.filters["data_uri"] = data_uri
    return pages.get_template(f"{template}.html").render(**values)


def plain_table(rows: Sequence[Sequence[str]], header: Sequence[str], most: int | None = None) -> str:
    """A table of aligned columns, the first one to the left.

    most: characters in a line; the middle of long cells is left out, in the widest columns first.
    """
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    while most and sum(widths) + 2 * (len(widths) - 1) > most and max(widths) > LEAST_WIDTH:
        widths[widths.index(max(widths))] -= 1
    lines = []
    for row in (header, *rows):
        cells: list[str] = []
        for cell, width in zip(row, widths, strict=True):
            if len(cell) > width:
                tail = (width - 2) // 2
                cell = f"{cell[: width - 2 - tail]}..{cell[-tail:]}"
            cells.append(cell.rjust(width) if cells else cell.ljust(width))
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def markdown_table(rows: Sequence[Sequence[Any]], header: Sequence[str]) -> str:
    """Rows as a Markdown table; a float with three digits."""
    cells = [[f"{cell:.3g}" if isinstance(cell, float) else str(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(header, *cells, strict=True)]
    lines = [header, ["-" * width for width in widths], *cells]
    return "\n".join("| " + " | ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)) + " |" for line in lines)

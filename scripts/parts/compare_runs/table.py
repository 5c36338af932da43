"""The form in which compare_runs.py makes its tables, before they are printed."""

from typing import NamedTuple


class Table(NamedTuple):
    """A table to print. Each row has a cell for each word of the header."""

    rows: list[list[str]]
    header: list[str]

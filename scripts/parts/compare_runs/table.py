"""A table to print, which each table of compare_runs.py is."""

from typing import NamedTuple


class Table(NamedTuple):
    """A table to print. Each row has a cell for each word of the header."""

    rows: list[list[str]]
    header: list[str]

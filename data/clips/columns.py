"""Store texts, numbers and exposures of many clips in a few numpy arrays, called columns.

As Python objects, 32,000 clips take hundreds of megabytes in each rank. As arrays they take 20 MB,
and forked loader workers share them. For example, two clips of 2 and 3 blurry frames ("lq"),
without sharp frames and spikes, have these columns:

    clips       "clip_a", "clip_b"               name of each clip
    frames      2, 3                             number of frames of each clip
    sizes       180, 320, 180, 320, 180, ...     height and width of lq and gt of each clip
    stems       "00", "01", "00", "01", "02"     name of each frame, clip after clip
    lq_places   "/clip_a/blur/", "/clip_b/blur/" folder of the files of each clip
    lq_counts   2, 3                             number of lq files of each clip
    lq_names    "00.png", "01.png", ...          name of each lq file
    lq_bytes    81234, 80992, ...                size of each lq file
    lq_times    1700000000000000000, ...         time of change of each lq file in ns

A kind of file is "lq", "gt", "gt_instants" or "spike", and a root is the folder of all files of one
kind. The path of a file is root + folder + name: "<root>" + "/clip_a/blur/" + "00.png". A column of
texts is an array of bytes: the texts in UTF-8, with a zero byte after each text.

What must stay: names, types and order of the columns and of the fields of `Row`. A record, the file
of a checked data set, has this format (data/clips/kept.py). If you change the format, raise FORMAT
in data/clips/kept.py.

Tests: tests/parts/data/test_kept.py
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from data.clips.source import Kind, Source

Columns = dict[str, np.ndarray]  # {name of a column: its values}
# The byte after each text of a column. No path and no name can contain a zero byte.
END = b"\0"
# Columns and the types of their values. Columns of texts have the type uint8.
CLIP_COLUMNS = {"clips": np.uint8, "frames": np.int32, "sizes": np.int32, "stems": np.uint8}
# Columns for each kind of file, e.g. "lq_places". A kind is "lq", "gt", "gt_instants" or "spike".
FILE_COLUMNS = {
    "places": np.uint8,  # folder of each clip: the path between the root and the file names
    "counts": np.int32,  # number of files of each clip
    "names": np.uint8,  # name of each file
    "bytes": np.int64,  # size of each file
    "times": np.int64,  # time of change of each file in ns
}
# Columns of clips with spikes.
SPIKE_COLUMNS = {
    "planes": np.int64,  # number of planes of each spike file
    "rows": np.int64,  # each different exposure once, as the 11 numbers of a `Row`
    "centers": np.float64,  # `Exposure.center` of each row
    "exposures": np.int32,  # for each frame of each clip: the number of its row
}


def types_of(kinds: Iterable[str]) -> dict[str, Any]:
    """Return {column: dtype} of a table with these kinds of files, e.g. {"lq_bytes": np.int64}.

    A table is all columns of the clips of one data root. uint8 means a column of texts. The builder
    of a table (table_builder.py) and the check of a stored table (column_check.py) both use this
    function, so they always agree.
    """
    types: dict[str, Any] = dict(CLIP_COLUMNS)
    for kind in kinds:
        for name, dtype in FILE_COLUMNS.items():
            types[f"{kind}_{name}"] = dtype
    if "spike" in kinds:
        types.update(SPIKE_COLUMNS)
    return types


def kinds_of(source: Source) -> dict[str, Kind]:
    """Return {name: kind} of the files that the table of a source has, e.g. {"lq": Kind(...)}.

    Spike files are left out if the options do not say how to read them. The order of the kinds is
    the order of `Source.kinds`.
    """
    kinds = source.kinds()
    if source.spikes is None:
        kinds.pop("spike", None)
    return kinds


def roots_of(source: Source) -> dict[str, str]:
    """Return {name of the kind: root without a slash at its end}, e.g. {"lq": "/data/blur"}.

    The result may have a root of the spikes although `kinds_of` leaves the spikes out. In this
    case, the root of the spikes is not used.
    """
    roots = {}
    for name, kind in source.kinds().items():  # e.g. "lq", Kind(root="/data/blur", ...)
        roots[name] = kind.root.rstrip("/")
    return roots


class Texts:
    """The texts of a column. A text is decoded when it is read.

    column: bytes of the texts in UTF-8, with `END` after each text, e.g. b"ab\\0c\\0".
    """

    def __init__(self, column: np.ndarray) -> None:
        """Find where each text ends. No text is decoded yet."""
        self.column = column
        # The index of the zero byte of each text, e.g. 2 and 4 in b"ab\0c\0". int32 is enough,
        # because a record has less than 2^31 bytes (LARGEST_RECORD_BYTES in
        # data/clips/stored_arrays.py).
        self.ends = np.flatnonzero(column == 0).astype(np.int32)

    def __len__(self) -> int:
        return len(self.ends)

    def read(self, first: int, end: int) -> list[str]:
        """Return the texts first ... end - 1."""
        if end <= first:
            return []
        # A text begins after the zero byte of the text before it. E.g. in b"ab\0c\0", text 1 is
        # "c". Byte 2 is the zero byte of text 0, so text 1 begins at byte 3. Text 1 ends before
        # byte 4, its zero byte.
        begin = 0
        if first > 0:
            begin = int(self.ends[first - 1]) + 1
        after_last_text = int(self.ends[end - 1])
        joined_texts = self.column[begin:after_last_text].tobytes().decode()
        return joined_texts.split("\0")

    def read_all(self) -> list[str]:
        """Return every text of the column."""
        return self.read(0, len(self))


class Row(NamedTuple):
    """An `Exposure` as it is stored: 11 whole numbers, without names of files.

    Most frames have equal rows, and equal rows are stored once. With names of files, no two rows
    would be equal. So a row only says which planes are read of three files: the own file of the
    frame (the file with its exposure), the file before the own file, and the file after the own
    file.

    The center of the exposure may lie between two planes, so it is a float, in the column
    "centers". For many rows at once, each field may be an array with a number for each row
    (`rows_in`). The order of the fields is part of the format of a stored record.

    The comments show an example. Each file has 40 planes, and the frame needs 8 planes of context
    before its exposure. So the frame reads the last 8 planes of the file before its own file, all
    planes of its own file, and no plane of the file after.
    """

    first_plane: int  # first plane of the frame in its own file: 0
    plane_count: int  # number of planes of the frame: 40
    before: int  # `Exposure.before`, number of planes that are read before the frame's planes: 8
    origin: int  # `Exposure.origin`, the number that spike.center gives to `first_plane`: 0
    # Whether `Exposure.center` is an int: 1, or 0 for a float. Messages show the difference, "plane
    # 20" or "plane 20.0".
    has_whole_center: int
    # The planes that are read of the file before the own file. If there are none, both are 0.
    previous_first: int  # first plane: 32
    previous_count: int  # number of planes: 8
    # The planes that are read of the own file.
    own_first: int  # first plane: 0
    own_count: int  # number of planes: 40
    # The planes that are read of the file after the own file. If there are none, both are 0.
    next_first: int  # first plane: 0
    next_count: int  # number of planes: 0

    def pieces(self) -> tuple[tuple[int, int, int], ...]:
        """Return (step, first plane, number of planes) for each of the three files.

        step: -1 is the file before the own file, 0 the own file, and 1 the file after.
        """
        return (
            (-1, self.previous_first, self.previous_count),
            (0, self.own_first, self.own_count),
            (1, self.next_first, self.next_count),
        )


def rows_in(numbers: np.ndarray) -> Any:
    """Return many rows as one `Row`, with an array (rows,) in each field.

    The type is Any, because the fields of a `Row` are declared as single numbers.

    numbers: (rows, 11), a stored row in each line.
    """
    return Row(*numbers.T)


def by_row(column: np.ndarray) -> np.ndarray:
    """Return the column "rows" with a row in each line: (11 * rows,) -> (rows, 11).

    11 is the number of fields of `Row`.
    """
    return column.reshape(-1, len(Row._fields))

"""Turn the clips of a data root into a table of arrays, one clip after the other.

The data check (data/clips/root_check.py) calls `TableBuilder.add` for each clip that it has
checked, and then `table`. data/clips/columns.py shows the arrays.

What must stay: a clip that is added comes out of the table as an equal clip
(test_a_record_gives_the_same_clips_as_the_files). Free to change: how the arrays grow.

Tests: tests/parts/data/test_kept.py, tests/parts/data/test_preflight.py
"""

from array import array
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from data.clip import Clip, Exposure
from data.clips.columns import Columns, Row, kinds_of, roots_of, types_of
from data.clips.look import Look
from data.clips.source import Source
from data.clips.table import ClipTable

# {dtype: letter of the same type in Python's `array`}. `TableBuilder` collects numbers in an
# `array`, because an `array` can grow and a numpy array cannot.
ARRAY_CODES = {np.int32: "i", np.int64: "q", np.float64: "d"}
# A row is an exposure (`Row` in columns.py). A new row is compared with the first 65,536 different
# rows, and an equal row is not stored again. The limit bounds the memory for a data set in which
# all rows differ. Later rows may be stored twice, which does no harm. The limit is chosen by hand.
MOST_ROWS_COMPARED = 65_536


class TableBuilder:
    """Collects the clips of one root one after the other, and makes their table.

    Call `add` for each clip, in the order of the table. Then call `table`. E.g. a clip of two
    blurry frames /data/train/clip_a/blur/00.png and 01.png below the root /data/train adds

        clips        clip_a                  lq_places    /clip_a/blur/
        stems        00, 01                  lq_names     00.png, 01.png
        frames       2                       lq_counts    2
        sizes        180, 320, 180, 320      lq_bytes     81234, 80992
                                             lq_times     a number for each file
    """

    def __init__(self, source: Source) -> None:
        """Prepare an empty table. source: the data root of the clips."""
        self.source = source
        self.kinds = kinds_of(source)
        self.roots = roots_of(source)
        self.number_of_clips = 0  # clips that were added
        # The columns as they grow, {name: values}: columns of texts, and columns of numbers.
        self.texts: dict[str, bytearray] = {}
        self.numbers: dict[str, array[Any]] = {}
        for name, dtype in types_of(self.kinds).items():
            if dtype is np.uint8:  # a column of texts (`types_of`)
                self.texts[name] = bytearray()
            else:
                self.numbers[name] = array(ARRAY_CODES[dtype])
        # {the 11 numbers of a row and its center, as a tuple: index of the row}. With this dict,
        # equal rows are found, and stored once.
        self.index_of_row: dict[tuple[Any, ...], int] = {}

    def __len__(self) -> int:
        return self.number_of_clips

    def add(self, clip: Clip, looks: Mapping[str, Look]) -> None:
        """Add a clip.

        looks: {path: what the check saw of this file}, for all files of the clip.
        """
        self.number_of_clips += 1
        self._add_texts("clips", [clip.name])
        self._add_texts("stems", clip.stems)
        self.numbers["frames"].append(len(clip))
        self.numbers["sizes"].extend(clip.size)  # height, width
        self.numbers["sizes"].extend(clip.gt_size)
        for kind in self.kinds:
            self._add_files(kind, clip, looks)
        if "spike" in self.kinds:
            self._add_exposures(clip)

    def _add_files(self, kind: str, clip: Clip, looks: Mapping[str, Look]) -> None:
        """Add the files of one kind.

        looks: {path: what the check saw of this file}.
        """
        if kind == "spike":
            # `Clip.spike` has an entry for each frame, so it may list one file several times.
            # `planes_of_spike_files` has each file once.
            paths = list(clip.planes_of_spike_files)
        else:
            paths = list(getattr(clip, kind))
        root = self.roots[kind]
        folder = _folder_of(paths[0], root)
        # All files of one kind of a clip lie in one folder, so all paths have the same prefix, e.g.
        # "/data/train" + "/clip_a/blur/". Cut it off each path, so that "00.png" is left.
        prefix_length = len(root) + len(folder)
        self._add_texts(f"{kind}_places", [folder])
        self._add_texts(f"{kind}_names", [path[prefix_length:] for path in paths])
        self.numbers[f"{kind}_counts"].append(len(paths))
        entries = [looks[path].entry for path in paths]
        self.numbers[f"{kind}_bytes"].extend(entry.size for entry in entries)
        self.numbers[f"{kind}_times"].extend(entry.mtime_ns for entry in entries)

    def table(self) -> tuple[ClipTable, Columns]:
        """Return the table of all added clips, and its columns.

        Readers take clips from the table. A record stores the columns (kept.py).
        """
        columns = {}
        for name, dtype in types_of(self.kinds).items():
            values = self.texts[name] if dtype is np.uint8 else self.numbers[name]
            columns[name] = np.array(values, dtype)
        return ClipTable(self.source, columns), columns

    def _add_texts(self, column: str, texts: Sequence[str]) -> None:
        """Add texts to a column, with a zero byte after each text."""
        joined_texts = "".join(f"{text}\0" for text in texts)
        self.texts[column].extend(joined_texts.encode())

    def _add_exposures(self, clip: Clip) -> None:
        """Add planes and exposures of a clip.

        An exposure (the planes of a frame) is stored as a row of 11 whole numbers, `Row` in
        columns.py, and a center. Equal rows are stored once.

        Test: test_a_record_gives_the_same_clips_as_the_files
        """
        # `planes_of_spike_files` is {spike file: its number of planes}.
        self.numbers["planes"].extend(clip.planes_of_spike_files.values())
        index_of_file = {file: index for index, file in enumerate(clip.planes_of_spike_files)}
        for exposure in clip.exposures:
            row = _row_of(exposure, index_of_file)
            index = self._index_of(row, float(exposure.center))
            self.numbers["exposures"].append(index)

    def _index_of(self, row: Row, center: float) -> int:
        """Return the index of a stored row equal to this row. If there is none, store this row.

        center: plane of the sharp frame. Only rows with the same center count as equal.
        """
        key = (*row, center)
        index = self.index_of_row.get(key)
        if index is not None:
            return index
        index = len(self.numbers["centers"])  # the number of rows so far
        self.numbers["rows"].extend(row)
        self.numbers["centers"].append(center)
        if len(self.index_of_row) < MOST_ROWS_COMPARED:
            self.index_of_row[key] = index
        return index


def _row_of(exposure: Exposure, index_of_file: Mapping[str, int]) -> Row:
    """Return an exposure as a row of numbers. `_exposure_of` (table.py) turns the row back.

    index_of_file: {spike file: its index among the spike files of the clip}.
    """
    own_file = index_of_file[exposure.own.file]
    # {step: (first plane, number of planes)} says which planes are read of a file. Step 0 is the
    # frame's own file, -1 the file before the own file, and 1 the file after it. The files before
    # and after have planes of context around the exposure. E.g. files of 40 planes and 8 planes of
    # context before: {-1: (32, 8), 0: (0, 40), 1: (0, 0)}. (0, 0) means that no plane is read.
    planes_of_step = {-1: (0, 0), 0: (0, 0), 1: (0, 0)}
    for piece in exposure.pieces:
        step = index_of_file[piece.file] - own_file
        planes_of_step[step] = (piece.first, piece.count)
    previous_first, previous_count = planes_of_step[-1]
    own_first, own_count = planes_of_step[0]
    next_first, next_count = planes_of_step[1]
    # A stored center is a float. If it was an int, it must become an int again, because messages
    # say "plane 20" and not "plane 20.0".
    is_whole = isinstance(exposure.center, int)
    return Row(
        first_plane=exposure.own.first,
        plane_count=exposure.own.count,
        before=exposure.before,
        origin=exposure.origin,
        has_whole_center=int(is_whole),
        previous_first=previous_first,
        previous_count=previous_count,
        own_first=own_first,
        own_count=own_count,
        next_first=next_first,
        next_count=next_count,
    )


def _folder_of(path: str, root: str) -> str:
    """Return the part of a path between the root and the name of the file.

    E.g. "/data/train/a/blur/0.png" below the root "/data/train" gives "/a/blur/", and
    "/data/train.lmdb::a/0" in the LMDB "/data/train.lmdb" gives "::a/".
    """
    path_below_root = path[len(root) :]
    last_slash = path_below_root.rfind("/")  # -1 if there is none
    folder = path_below_root[: last_slash + 1]
    # A key without a clip, "<root>.lmdb::0", has no slash.
    return folder or "::"

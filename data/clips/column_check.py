"""Refuse columns from a file if they are not a correct table of a data root.

A column is an array with one property of all clips, frames or files, e.g. the names of all files.
data/clips/columns.py shows the columns. data/clips/kept.py reads them from a record, the file of a
checked data set. Anybody may have written a record, so nothing in it is trusted. The exposure of a
frame is the planes that were recorded during the frame.

    function                           what it demands
    _refuse_types                      the columns have the right types
    _refuse_names                      the name of a frame or file is a plain name, without folders
    _refuse_clips                      the clips are the clips of the meta file
    _refuse_files                      the files are below the root, in the right number
    _refuse_exposures                  the numbers of an exposure do not contradict one another
    _refuse_planes_outside_of_files    the planes of a frame are in its files

If the columns pass, their table names only files below the roots, and only planes that these files
have. Every refusal is a ValueError. After a refusal, the data are checked anew.

What must stay: every demand, and the order of the demands. The order matters, because a later
demand indexes arrays with values that an earlier demand has accepted.
test_wrong_columns_are_refused_without_a_look_at_the_files forges one column after the other. The
test does not notice a missing demand if another demand refuses the same columns.
Free to add: a demand.

Tests: tests/parts/data/test_kept.py
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from data.clip import checked_name
from data.clips.columns import END, Columns, Row, Texts, by_row, kinds_of, rows_in, types_of
from data.clips.listed_files import is_lmdb
from data.clips.meta_file import MOST_FRAMES
from data.clips.ranges import begins_of
from data.clips.source import Source
from utils.errors import DataError

# Largest height or width that a stored record may claim, far above any camera.
LARGEST_SIDE = 2**20
# Plane numbers and numbers of planes in a stored record must be smaller than this. Sums of a few
# such numbers fit into int64, and no disk holds a file of so many planes.
LARGEST_PLANE = 2**40


def refuse_columns(columns: Columns, source: Source) -> None:
    """Refuse columns that are not a correct table of this source. Raises ValueError.

    A column is an array with one property of all clips, frames or files. E.g. "frames" has the
    number of frames of each clip, and "stems" the name of each frame of all clips.

    The order of the demands must stay, because later demands index arrays with values that earlier
    demands have accepted.
    """
    kinds = kinds_of(source)
    types = types_of(kinds)
    _demand(columns.keys() == types.keys(), "other columns")
    _refuse_types(columns, types)

    # There must be at least one clip, and each column of clips must have an entry for each clip.
    # The numbers of frames become int64, because a sum of int32 could overflow.
    frame_counts = columns["frames"].astype(np.int64)
    number_of_clips = len(frame_counts)
    _demand(number_of_clips > 0, "clips")
    _demand(number_of_clips == len(Texts(columns["clips"])), "clips")
    _demand_all((frame_counts >= 1) & (frame_counts <= MOST_FRAMES), "frames")
    # `sizes` has four numbers for each clip: height and width of lq, height and width of gt.
    sizes = columns["sizes"]
    _demand(len(sizes) == 4 * number_of_clips, "sizes")
    _demand_all((sizes >= 1) & (sizes <= LARGEST_SIDE), "sizes")

    number_of_frames = int(frame_counts.sum())
    _refuse_names(columns["stems"], number_of_frames)
    _refuse_clips(columns, source)
    for name, kind in kinds.items():  # e.g. "lq", Kind(root="/data/blur", ...)
        _refuse_files(columns, name, frame_counts, in_lmdb=is_lmdb(kind.root))
    if "spike" in kinds:
        _refuse_exposures(columns)
        _refuse_planes_outside_of_files(columns, frame_counts)


def _demand(is_met: bool, what: str) -> None:
    """Raise ValueError if a demand is not met, i.e. if `is_met` is False.

    what: name of the wrong column, or what is wrong.
    """
    if not is_met:
        raise ValueError(f"the kept record is wrong: {what}")


def _demand_all(are_met: np.ndarray, what: str) -> None:
    """Raise ValueError if any entry of a column does not meet a demand.

    are_met: a bool for each entry.
    what: name of the wrong column, or what is wrong.
    """
    _demand(bool(are_met.all()), what)


def _refuse_types(columns: Columns, types: Mapping[str, Any]) -> None:
    """Refuse columns whose values have a wrong type, and columns of texts that are not texts.

    types: {column: dtype} from `types_of`, where uint8 means a column of texts.
    """
    for name, dtype in types.items():
        column = columns[name]
        _demand(column.dtype == dtype and column.ndim == 1, name)
        if dtype is np.uint8:
            last_byte = bytes(column[-1:])  # b"" if the column is empty
            _demand(last_byte == END, name)
            # Raises UnicodeDecodeError, which is a ValueError, if the texts are not UTF-8.
            column.tobytes().decode()


def _refuse_names(column: np.ndarray, count: int) -> None:
    """Refuse a column if it has more or fewer than `count` names, or a name that is a path.

    A name that is empty, "." or "..", or has a slash, could lead out of its folder.
    """
    # The whole column is searched at once, so the names need not be split. A column has a zero byte
    # after each name: the names "a" and ".." are b"a\0..\0". One more zero byte in front,
    # b"\0a\0..\0", puts each name between two zero bytes. So if the column contains b"\0..\0", a
    # name is "..".
    content = END + column.tobytes()
    _demand(content.count(END) == count + 1, "the number of names")
    # The loop refuses a slash, an empty name, ".", and "..", in this order.
    for forbidden in (b"/", b"\0\0", b"\0.\0", b"\0..\0"):
        _demand(forbidden not in content, "names")


def _refuse_clips(columns: Columns, source: Source) -> None:
    """Refuse clips that are not the clips of the meta file, or have names that cannot be used.

    Several demands name the same column "clips". Their messages need not differ, because after each
    refusal the data are checked anew.
    """
    number_of_clips = len(columns["frames"])
    names = Texts(columns["clips"]).read(0, number_of_clips)
    set_of_names = set(names)
    has_each_name_once = len(set_of_names) == len(names)
    _demand(has_each_name_once, "clips")
    _demand(set_of_names.isdisjoint(source.excluded_clips), "clips")
    # {clip: [number of frames, number of the first frame]}, or None without a meta file.
    meta_entries = source.meta_entries
    if meta_entries:
        expected_names = meta_entries.keys() - source.excluded_clips
        _demand(set_of_names == expected_names, "clips")
        for name, frame_count in zip(names, columns["frames"].tolist(), strict=True):
            listed_count = meta_entries[name][0]
            _demand(frame_count == listed_count, "frames")
    # The names become names of output files, so `checked_name` must accept each of them.
    try:
        for name in names:
            checked_name(name, where="")  # only the text `what` of its error is used below
    except DataError as e:
        raise ValueError(e.what) from e


def _refuse_files(columns: Columns, kind: str, frame_counts: np.ndarray, in_lmdb: bool) -> None:
    """Refuse the files of a kind if a file is not below the root, or if their number is wrong.

    kind: "lq", "gt", "gt_instants" or "spike".
    frame_counts: number of frames of each clip.
    in_lmdb: whether the root is an LMDB.
    """
    file_counts = columns[f"{kind}_counts"].astype(np.int64)  # wide enough for their sum
    _demand(len(file_counts) == len(frame_counts), kind)
    _demand_all(file_counts >= 1, kind)
    if kind == "spike":
        # A clip has a spike file for each frame, or one file for all frames.
        _demand_all((file_counts == frame_counts) | (file_counts == 1), kind)
    elif kind == "gt_instants":
        # Every frame of a clip has the same number of instants.
        _demand_all(file_counts % frame_counts == 0, kind)
    else:
        _demand_all(file_counts == frame_counts, kind)

    # Each file has a name, a size and a time.
    number_of_files = int(file_counts.sum())
    _refuse_names(columns[f"{kind}_names"], number_of_files)
    for name in ("bytes", "times"):
        _demand(len(columns[f"{kind}_{name}"]) == number_of_files, kind)

    # Each clip has one folder. The column "<kind>_places" has the folders.
    folders = Texts(columns[f"{kind}_places"])
    _demand(len(folders) == len(frame_counts), kind)
    for folder in folders.read_all():
        _demand(_is_folder_below_root(folder, in_lmdb), kind)


def _is_folder_below_root(folder: str, in_lmdb: bool) -> bool:
    """Return whether the files of a folder are below the root.

    The path of a file is root + folder + name. E.g. "/data" + "/a/blur/" + "0.png" for a file on
    disk, and "/data.lmdb" + "::a/" + "0" for a key in an LMDB. So the folder must meet three
    demands:

        demand                        refused     because its file would be
        it begins with "/" or "::"    "b/"        "/datab/0.png", outside of the root
        it ends with "/" or "::"      "/a"        "/data/a0.png", not in a folder "a"
        it has no part ".."           "/../b/"    "/data/../b/0.png", outside of the root

    in_lmdb: whether the root is an LMDB. Its folders begin with "::", other folders with "/".

    Test: test_wrong_columns_are_refused_without_a_look_at_the_files
    """
    start = "::" if in_lmdb else "/"
    begins_right = folder.startswith(start)
    ends_right = folder == start or folder.endswith("/")
    stays_below = ".." not in folder.split("/")
    return begins_right and ends_right and stays_below


# ---- Planes --------------------------------------------------------------------------------------
#
# The planes of a frame are its exposure. Equal exposures are stored once, as a `Row` of 11 whole
# numbers (columns.py) and a center. The checks look at all rows at once: `rows_in` gives a `Row` in
# which each field is an array.


def _refuse_exposures(columns: Columns) -> None:
    """Refuse rows of exposures if their numbers contradict one another.

    `_refuse_planes_outside_of_files` then compares the rows with the files.
    """
    centers = columns["centers"]  # one for each row
    numbers = columns["rows"]  # 11 for each row
    _demand(len(numbers) == len(Row._fields) * len(centers), "exposures")
    _demand_all((numbers >= 0) & (numbers < LARGEST_PLANE), "exposures")
    rows = rows_in(by_row(numbers))  # each field is (rows,)
    _demand_all(rows.plane_count >= 1, "exposures")

    # The center must be one of the planes 0 ... plane_count - 1 of the frame, or between two of
    # them. If `has_whole_center` is 1, the center must be a whole number.
    _demand_all(np.isfinite(centers), "centers")
    _demand_all((centers >= 0) & (centers <= rows.plane_count - 1), "centers")
    _demand_all(rows.has_whole_center <= 1, "centers")
    has_no_fraction = centers == np.floor(centers)
    _demand_all(has_no_fraction[rows.has_whole_center == 1], "centers")

    # `before` counts the planes that are read before the planes of the exposure. So it is at most
    # the number of all planes that are read.
    number_of_read_planes = rows.previous_count + rows.own_count + rows.next_count
    _demand_all(rows.before <= number_of_read_planes, "exposures")


def _refuse_planes_outside_of_files(columns: Columns, frame_counts: np.ndarray) -> None:
    """Refuse exposures with planes that their files do not have.

    frame_counts: number of frames of each clip. `_refuse_exposures` has accepted the rows.
    """
    file_counts = columns["spike_counts"].astype(np.int64)  # number of spike files of each clip
    planes = columns["planes"]  # number of planes of each file
    _demand(len(planes) == file_counts.sum(), "planes")
    _demand_all(planes >= 1, "planes")
    _demand_all(planes < LARGEST_PLANE, "planes")
    row_of_frame = columns["exposures"]  # index of the row, for each frame of all clips
    _demand(len(row_of_frame) == frame_counts.sum(), "exposures")
    has_row = (row_of_frame >= 0) & (row_of_frame < len(columns["centers"]))
    _demand_all(has_row, "exposures")

    # Give each frame its row. Then each field of `rows` has a value for each frame of all clips.
    different_rows = by_row(columns["rows"])  # (different rows, 11)
    rows = rows_in(different_rows[row_of_frame])  # each field is (frames,)
    own = _own_files(frame_counts, file_counts)
    # The own file of a frame must have all planes of the frame's exposure.
    _demand_all(rows.first_plane + rows.plane_count <= planes[own.file], "exposures")
    # A frame may also read planes of the file before its own file (step -1) and of the file after
    # its own file (step 1). If `count` is above 0, the planes first ... first + count - 1 must be
    # in the file of this step.
    for step, first, count in rows.pieces():
        planes_of_file = _planes_of_file_beside(own, step, planes)
        reads_nothing = count == 0
        is_within = first + count <= planes_of_file
        _demand_all(reads_nothing | is_within, "exposures")


class _OwnFiles(NamedTuple):
    """The own spike file of each frame. Each array is (frames of all clips,).

    The own file of a frame has the planes of its exposure. For example two clips of 2 and 3 frames.
    Clip 0 has a spike file for each frame, and clip 1 has one file for all frames:

        clip            0  0  1  1  1
        file_in_clip    0  1  0  0  0
        file            0  1  2  2  2
        files_of_clip   2  2  1  1  1
    """

    file_in_clip: np.ndarray  # index among the files of the clip
    file: np.ndarray  # index among the files of all clips
    files_of_clip: np.ndarray  # number of files of the clip


def _own_files(frame_counts: np.ndarray, file_counts: np.ndarray) -> _OwnFiles:
    """Return the own spike file of each frame.

    frame_counts: number of frames of each clip.
    file_counts: number of spike files of each clip.
    """
    # The comments show the example of `_OwnFiles`: frame_counts are 2 3, and file_counts are 2 1.
    # The number of the clip of each frame: 0 0 1 1 1.
    clip = np.repeat(np.arange(len(frame_counts)), frame_counts)
    # `begins_of` gives the first frame of each clip, and then the end: 0 2 5.
    first_frame_of_clip = begins_of(frame_counts)[clip]  # 0 0 2 2 2
    number_in_clip = np.arange(len(clip)) - first_frame_of_clip  # 0 1 0 1 2
    # A clip with fewer files than frames has one file for all frames: file 0 of the clip.
    is_one_file = file_counts[clip] < frame_counts[clip]
    file_in_clip = np.where(is_one_file, 0, number_in_clip)  # 0 1 0 0 0
    first_file_of_clip = begins_of(file_counts)[clip]  # 0 0 2 2 2
    return _OwnFiles(file_in_clip, first_file_of_clip + file_in_clip, file_counts[clip])


def _planes_of_file_beside(own: _OwnFiles, step: int, planes: np.ndarray) -> np.ndarray:
    """Return how many planes the file before or after each frame's own file has, (frames,).

    The result is 0 if there is no such file. E.g. the first frame of a clip has no file before its
    own file, and the last frame has no file after its own file.

    step: -1 is the file before the own file, 0 the own file, and 1 the file after.
    planes: number of planes of each file of all clips.

    Test: test_wrong_columns_are_refused_without_a_look_at_the_files
    """
    file_in_clip = own.file_in_clip + step
    exists = (file_in_clip >= 0) & (file_in_clip < own.files_of_clip)
    # A missing file may have an index outside of `planes`, so np.clip moves the index into the
    # array. The number of planes that is found there is not used: np.where puts 0 in its place.
    file = np.clip(own.file + step, 0, len(planes) - 1)
    return np.where(exists, planes[file], 0)

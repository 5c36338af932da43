"""The clips of a dataset as a few numpy arrays, for datasets of many clips.

As Python objects, 32,000 clips take hundreds of megabytes in each rank. As arrays they take
20 MB, and forked loader workers share them. A `Clip` object is made only when somebody asks for it.

Parts of this module:

* `ClipTable` and `JoinedClips` look like lists of `Clip` objects. A dataset holds one of them.
* `TableBuilder` turns clips into arrays. The data check (data/clips/preflight.py) calls it.
* `refuse_columns` checks arrays that were read from a file. data/clips/kept.py stores the arrays of
  a checked data set in such a file, which is called a record.

The arrays are called columns. Two clips of 2 and 3 blurry frames ("lq"), without sharp frames and
spikes, have these columns:

    clips       "clip_a", "clip_b"               name of each clip
    frames      2, 3                             number of frames of each clip
    sizes       180, 320, 180, 320, 180, ...     height and width of lq and gt of each clip
    stems       "00", "01", "00", "01", "02"     name of each frame, clip after clip
    lq_places   "/clip_a/blur/", "/clip_b/blur/" folder of the files of each clip
    lq_counts   2, 3                             number of lq files of each clip
    lq_names    "00.png", "01.png", ...          name of each lq file
    lq_bytes    81234, 80992, ...                size of each lq file
    lq_times    1700000000000000000, ...         time of change of each lq file in ns

The path of a file is root + place + name: "<root>" + "/clip_a/blur/" + "00.png".
A column of texts is an array of bytes: the texts in UTF-8, with a zero byte after each.

"Kind" means a kind of file here: "lq", "gt", "gt_instants" or "spike". A "root" is the folder of
all files of one kind, e.g. "/data/train".

What must stay: a clip that goes into a table comes out as an equal clip, and the clips keep their
order, because training samples are numbered through all clips
(test_a_record_gives_the_same_clips_as_the_files). Names and types of the columns are the format
of the record. Whoever changes them must raise FORMAT in data/clips/kept.py. What may
change: how the arrays are filled and read.

Tests: tests/parts/data/test_kept.py, tests/parts/data/test_preflight.py
"""

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, overload

import numpy as np

from data.cameras.name_times import times_of_names
from data.clip import Clip, Exposure, Piece, checked_name
from data.clips.listed_files import is_lmdb
from data.clips.look import Look
from data.clips.ranges import begins_of, first_and_end, range_of
from data.clips.source import MOST_FRAMES, Kind, Source
from utils.errors import DataError

Columns = dict[str, np.ndarray]  # {name of a column: its values}

# The byte after each text of a column. No path and no name can hold it.
END = b"\0"

# Columns and the types of their values. They are the format of a stored record, so a change needs
# another FORMAT in data/clips/kept.py.
CLIP_COLUMNS = {"clips": np.uint8, "frames": np.int32, "sizes": np.int32, "stems": np.uint8}
# Columns for each kind of file, e.g. "lq_places". A kind is "lq", "gt", "gt_instants" or "spike".
FILE_COLUMNS = {
    "places": np.uint8,  # one text for each clip: the path between the root and the file names
    "counts": np.int32,  # number of files of each clip
    "names": np.uint8,  # name of each file
    "bytes": np.int64,  # size of each file
    "times": np.int64,  # time of change of each file in ns
}
# Columns of clips with spikes.
SPIKE_COLUMNS = {
    "planes": np.int64,  # number of planes of each spike file
    "rows": np.int64,  # different exposures, each as the numbers of a `Row`
    "centers": np.float64,  # `Exposure.center` of each row
    "exposures": np.int32,  # for each frame of each clip: the number of its row
}

# {dtype: letter of the same type in Python's `array`}. `TableBuilder` collects numbers in an
# `array`, because an `array` can grow and a numpy array cannot.
ARRAY_CODES = {np.int32: "i", np.int64: "q", np.float64: "d"}

# `TableBuilder` looks for an equal row only among this many first rows, which bounds the memory for
# a dataset in which every row differs. A later row may be stored twice, which is correct, too.
MOST_ROWS_COMPARED = 65_536
# Largest height or width that a stored record may claim, far above any camera.
LARGEST_SIDE = 2**20
# Plane numbers and numbers of planes in a stored record must be smaller than this. Sums of a few
# such numbers fit into int64, and no disk holds a file of so many planes.
LARGEST_PLANE = 2**40


class Row(NamedTuple):
    """An `Exposure` as it is stored: whole numbers, without names of files.

    Most frames have equal rows, so each different row is stored once. If rows named files, all rows
    would differ. So a row has numbers of planes instead, for three files: the own file of the
    frame, which has its exposure, and the files of the frame before and the frame after. A frame
    reads planes of no further file.

    The center of the exposure may lie between two planes, so it has a column of its own, of floats.
    For many rows at once, each field may be an array with a number for each row (`rows_in`).

    The order of the fields is part of the format of a stored record.

    The numbers in brackets are an example: each file has 40 planes, and the frame reads all planes
    of its own file and the last 8 planes of the file before. It reads nothing of the file after.
    """

    first_plane: int  # first plane of the frame in its own file (0)
    plane_count: int  # number of planes of the frame (40)
    # `Exposure.before`: number of planes that are read before the frame's own planes (8)
    before: int
    origin: int  # `Exposure.origin`: number of the first own plane, as options count planes (0)
    # 1 if `Exposure.center` is an int, 0 if it is a float (1). Messages show the difference.
    has_whole_center: int
    # What is read of the file before: 0 and 0 if no plane is read.
    previous_first: int  # first plane (32)
    previous_count: int  # number of planes (8)
    # What is read of the own file.
    own_first: int  # first plane (0)
    own_count: int  # number of planes (40)
    # What is read of the file after: 0 and 0 if no plane is read.
    next_first: int  # first plane (0)
    next_count: int  # number of planes (0)

    def pieces(self) -> tuple[tuple[int, int, int], ...]:
        """Return (step, first plane, number of planes) of each of the three files.

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


class Texts:
    """The texts of a column, decoded when they are asked for.

    column: bytes of the texts in UTF-8, with `END` after each, e.g. b"ab\\0c\\0".
    """

    def __init__(self, column: np.ndarray) -> None:
        self.column = column
        # Where each text ends. int32 is enough, because a record has less than 2^31 bytes
        # (LARGEST_RECORD_BYTES in data/clips/kept.py).
        self.ends = np.flatnonzero(column == 0).astype(np.int32)

    def __len__(self) -> int:
        return len(self.ends)

    def read(self, first: int, end: int) -> list[str]:
        """Return the texts first ... end - 1."""
        if end <= first:
            return []
        # A text begins after the zero byte of the text before it. E.g. in b"ab\0c\0", text 1 is
        # "c": byte 2 is the zero byte before it, so it begins at byte 3 and ends before byte 4.
        begin = 0
        if first > 0:
            begin = int(self.ends[first - 1]) + 1
        after_last_text = int(self.ends[end - 1])
        joined_texts = self.column[begin:after_last_text].tobytes().decode()
        return joined_texts.split("\0")

    def read_all(self) -> list[str]:
        """Return every text of the column."""
        return self.read(0, len(self))


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

    The result may have a root of the spikes although `kinds_of` leaves the spikes out. This root is
    then not used.
    """
    roots = {}
    for name, kind in source.kinds().items():  # e.g. "lq", Kind(root="/data/blur", ...)
        roots[name] = kind.root.rstrip("/")
    return roots


# ---- Sequences of clips ------------------------------------------------------------------------


class _Clips(Sequence[Clip]):
    """The base of sequences that make a clip when somebody asks for it. A subclass has `_clip`.

    The sequences behave like lists: negative numbers count from the end, and slices are lists.
    """

    @overload
    def __getitem__(self, number: int) -> Clip: ...
    @overload
    def __getitem__(self, number: slice) -> list[Clip]: ...
    def __getitem__(self, number: int | slice) -> Clip | list[Clip]:
        if isinstance(number, slice):
            start, stop, step = number.indices(len(self))
            return [self[each] for each in range(start, stop, step)]
        # Python's int, because the type of a NumPy integer may be too small for the sum below.
        index = int(number)
        if index < 0:
            index += len(self)  # -1 is the last clip
        if index < 0 or index >= len(self):
            raise IndexError(number)
        return self._clip(index)

    def _clip(self, number: int) -> Clip:
        """Return clip `number`, which is in 0 ... len - 1."""
        raise NotImplementedError


class _SpikesOfClip(NamedTuple):
    """The fields of a `Clip` that describe its spikes. One entry for each frame."""

    files: tuple[str, ...]
    planes: tuple[int, ...]  # number of planes of the file of each frame
    exposures: tuple[Exposure, ...]


class ClipTable(_Clips):
    """The clips of one data root.

    A clip that was added to `TableBuilder` must come out of the table as an equal clip. So a new
    field of `Clip` needs either a column, or a value that follows from `source`. The tests compare
    the clips.
    """

    def __init__(
        self, source: Source, columns: Mapping[str, np.ndarray], name_prefix: str = ""
    ) -> None:
        """Make the sequence. No clip is made yet.

        source: where the clips are, and how their spikes are read.
        columns: the arrays, as the top of this file shows. They are not copied and must not change.
        name_prefix: text before the name of each clip. A run gets the table with
        `source.name_prefix`, e.g. "0/". The check of a data root makes its tables without a prefix.
        """
        self.source = source
        self.name_prefix = name_prefix
        self.kinds = kinds_of(source)
        self.roots = roots_of(source)

        # Columns with an entry for each clip or frame.
        self.clip_names = Texts(columns["clips"])
        self.frame_counts = columns["frames"]  # number of frames of each clip
        # Index of the first frame of each clip among the frames of all clips, and then the end.
        self.first_frames = begins_of(self.frame_counts)
        self.sizes = columns["sizes"].reshape(-1, 4)  # (clips, 4): height and width of lq and gt
        self.stems = Texts(columns["stems"])  # name of each frame of all clips

        # The files, as {kind: column}.
        self.folders: dict[str, Texts] = {}  # path of each clip's files below the root
        self.file_counts: dict[str, np.ndarray] = {}  # number of files of each clip
        # For each kind of files: index of the first file of each clip, and then the end.
        self.first_files: dict[str, np.ndarray] = {}
        self.file_names: dict[str, Texts] = {}  # name of each file of all clips
        for kind in self.kinds:
            counts = columns[f"{kind}_counts"]
            self.folders[kind] = Texts(columns[f"{kind}_places"])
            self.file_counts[kind] = counts
            self.first_files[kind] = begins_of(counts)
            self.file_names[kind] = Texts(columns[f"{kind}_names"])

        # The columns `SPIKE_COLUMNS`. Empty if the clips have no spikes.
        self.spike_columns: Columns = {}
        if "spike" in self.kinds:
            self.spike_columns = {name: columns[name] for name in SPIKE_COLUMNS}

    def __len__(self) -> int:
        return len(self.frame_counts)

    def _clip(self, number: int) -> Clip:
        [name] = self.clip_names.read(number, number + 1)
        first, end = first_and_end(self.first_frames, number)
        stems = tuple(self.stems.read(first, end))
        paths = {kind: self.paths(kind, number) for kind in self.kinds}
        height, width, gt_height, gt_width = self.sizes[number].tolist()

        spikes = _SpikesOfClip((), (), ())
        times = None
        if "spike" in self.kinds:
            spikes = self._spikes(number, paths["spike"], range(first, end))
            # If one file holds the planes of all frames, the times divide the file among them.
            if self.source.has_one_spike_file:
                times = times_of_names(stems)
        return Clip(
            name=self.name_prefix + name,
            stems=stems,
            lq=paths["lq"],
            gt=paths.get("gt", ()),
            spike=spikes.files,
            planes=spikes.planes,
            size=(height, width),
            gt_size=(gt_height, gt_width),
            gt_instants=paths.get("gt_instants", ()),
            exposures=spikes.exposures,
            # `own_spikes` has an entry for each clip for which dataset.json has other values than
            # for most clips.
            spikes=self.source.own_spikes.get(name, self.source.spikes),
            times=times,
        )

    def paths(self, kind: str, number: int) -> tuple[str, ...]:
        """Return the paths of the files of clip `number`, each once."""
        [folder] = self.folders[kind].read(number, number + 1)  # e.g. "/clip_a/blur/"
        prefix = self.roots[kind] + folder
        first, end = first_and_end(self.first_files[kind], number)
        names = self.file_names[kind].read(first, end)
        return tuple([prefix + name for name in names])

    def _spikes(self, number: int, files: Sequence[str], frames: range) -> _SpikesOfClip:
        """Return the spike files, their planes and the exposures of the frames of a clip.

        number: number of the clip. files: its spike files, each once.
        frames: numbers of its frames among the frames of all clips.
        """
        first, end = first_and_end(self.first_files["spike"], number)
        planes = self.spike_columns["planes"][first:end].tolist()
        # A clip has a file for each frame, or one file for all frames.
        is_one_file = len(files) < len(frames)

        # The row of each frame, and its center. Frames with equal exposures have the same row.
        row_of_frame = self.spike_columns["exposures"][frames.start : frames.stop]  # (frames,)
        all_rows = _by_row(self.spike_columns["rows"])  # (different rows, 11)
        rows = all_rows[row_of_frame].tolist()  # 11 numbers for each frame
        centers = self.spike_columns["centers"][row_of_frame].tolist()
        exposures = []
        for frame, (numbers, center) in enumerate(zip(rows, centers, strict=True)):
            own_file = 0 if is_one_file else frame
            exposures.append(_exposure_of(Row(*numbers), center, files, own_file))

        if is_one_file:
            # The one file is listed for each frame.
            files = list(files) * len(frames)
            planes = planes * len(frames)
        return _SpikesOfClip(tuple(files), tuple(planes), tuple(exposures))

    def first_of_each_form(self) -> list[int]:
        """Return the number of the first clip of each form, in the order of the clips.

        Clips have one form if their sizes, their numbers of sharp instants and their spike settings
        are equal. Whoever checks another property with `one_of_each_form` must add
        the property here. Otherwise a clip that differs only in it would not be checked.
        """
        # Each property is an array with a number for each clip. `sizes` has four of them: height
        # and width of lq, height and width of gt.
        properties = list(self.sizes.T)
        if "gt_instants" in self.kinds:
            instants_per_frame = self.file_counts["gt_instants"] // self.frame_counts
            properties.append(instants_per_frame)
        if self.source.own_spikes:
            properties.append(self._numbers_of_spike_settings())
        # `np.unique` returns the first clip of each distinct row of properties.
        rows = np.stack(properties, axis=1)  # (clips, properties)
        _, first_clips = np.unique(rows, axis=0, return_index=True)
        return sorted(first_clips.tolist())

    def _numbers_of_spike_settings(self) -> np.ndarray:
        """Return the number of the spike settings of each clip, (clips,).

        0 stands for the settings that most clips have. The clips in `own_spikes` have the numbers
        1, 2, 3, ..., because any two of them may differ.
        """
        numbers = {name: number for number, name in enumerate(self.source.own_spikes, 1)}
        return np.array([numbers.get(name, 0) for name in self.clip_names.read_all()])


def _by_row(column: np.ndarray) -> np.ndarray:
    """Return the column "rows" with a row in each line: (11 * rows,) -> (rows, 11).

    11 is the number of fields of `Row`.
    """
    return column.reshape(-1, len(Row._fields))


def _exposure_of(row: Row, center: float, files: Sequence[str], own_file: int) -> Exposure:
    """Return the exposure that a row describes. `TableBuilder._add_exposures` makes the row.

    center: plane of the sharp frame, as a float, because the column "centers" has floats.
    files: spike files of the clip. own_file: index of the frame's own file in `files`.
    """
    pieces = []
    # step: -1 is the file before the own file, 0 the own file, and 1 the file after.
    for step, first, count in row.pieces():
        # With count 0, no plane is read from this file. The file need not exist then: the first
        # frame of a clip has no previous file.
        if count:
            pieces.append(Piece(files[own_file + step], first, count))
    exact_center: int | float = center
    if row.has_whole_center:
        # The center was an int when the clip was added. It becomes an int again, because messages
        # say "plane 20" and not "plane 20.0".
        exact_center = int(center)
    return Exposure(
        own=Piece(files[own_file], row.first_plane, row.plane_count),
        pieces=tuple(pieces),
        before=row.before,  # number of planes that are read before the own planes
        center=exact_center,
        origin=row.origin,  # number of the first own plane, as options count planes
    )


class JoinedClips(_Clips):
    """The clips of several roots, one root after the other."""

    def __init__(self, clips_of_roots: Sequence[Sequence[Clip]]) -> None:
        self.clips_of_roots = clips_of_roots
        # Number of the first clip of each root, then the number of all clips.
        self.begins = begins_of([len(clips) for clips in clips_of_roots])

    def __len__(self) -> int:
        return int(self.begins[-1])

    def _clip(self, number: int) -> Clip:
        root = range_of(number, self.begins)
        number_in_root = number - int(self.begins[root])
        return self.clips_of_roots[root][number_in_root]


def join_clips(clips_of_roots: Sequence[Sequence[Clip]]) -> Sequence[Clip]:
    """Return the clips of several roots as one sequence: a plain list if no root has a table.

    A single root keeps its own sequence. The order of the roots must stay: the numbers of training
    samples count through all clips.
    """
    if len(clips_of_roots) == 1:
        return clips_of_roots[0]
    # A plain list of the clips of a table would make all `Clip` objects.
    if any(isinstance(clips, _Clips) for clips in clips_of_roots):
        return JoinedClips(clips_of_roots)
    together: list[Clip] = []
    for clips in clips_of_roots:
        together.extend(clips)
    return together


# The four functions below take a table, joined tables or a list of clips. They read the arrays of a
# table and do not make its clips, because this would take minutes for large data sets. Only
# `one_of_each_form` makes some clips. A further such function needs the same three branches.
# tests/parts/data/test_kept.py compares their results for the three kinds of sequences.


def frame_counts(clips: Sequence[Clip]) -> list[int]:
    """Return the number of frames of each clip."""
    if isinstance(clips, ClipTable):
        return clips.frame_counts.tolist()
    if isinstance(clips, JoinedClips):
        counts: list[int] = []
        for clips_of_root in clips.clips_of_roots:
            counts.extend(frame_counts(clips_of_root))
        return counts
    return [len(clip) for clip in clips]


def scales_of(clips: Sequence[Clip]) -> list[int]:
    """Return the scale of each clip: height of a sharp frame over height of a blurry frame."""
    if isinstance(clips, ClipTable):
        height, _, gt_height, _ = clips.sizes.T  # each (clips,)
        return (gt_height // height).tolist()
    if isinstance(clips, JoinedClips):
        scales: list[int] = []
        for clips_of_root in clips.clips_of_roots:
            scales.extend(scales_of(clips_of_root))
        return scales
    return [clip.scale for clip in clips]


def planes_of(clips: Sequence[Clip]) -> set[int]:
    """Return the different numbers of planes that the spike files of the clips have."""
    if isinstance(clips, ClipTable):
        if not clips.spike_columns:
            return set()
        return set(np.unique(clips.spike_columns["planes"]).tolist())
    found: set[int] = set()
    if isinstance(clips, JoinedClips):
        for clips_of_root in clips.clips_of_roots:
            found.update(planes_of(clips_of_root))
        return found
    for clip in clips:
        found.update(clip.planes)
    return found


def one_of_each_form(clips: Sequence[Any]) -> Iterator[Any]:
    """Yield enough clips to check properties that most clips share, such as their scale.

    E.g. three clips of a table have the heights 720, 720 and 480: the first and the third clip are
    yielded. A clip is left out if a yielded clip before it has the same sizes, the same number of
    sharp instants and the same spike settings. Clips that are in no table are all yielded.
    """
    if isinstance(clips, ClipTable):
        for number in clips.first_of_each_form():
            yield clips[number]
    elif isinstance(clips, JoinedClips):
        for clips_of_root in clips.clips_of_roots:
            yield from one_of_each_form(clips_of_root)
    else:
        yield from clips


# ---- From clips to arrays --------------------------------------------------------------------


class TableBuilder:
    """Takes the clips of one root one after the other, and makes their table.

    Call `add` for each clip, in the order that the table shall have. Then call `table`.
    """

    def __init__(self, source: Source) -> None:
        self.source = source
        self.kinds = kinds_of(source)
        self.roots = roots_of(source)
        self.number_of_clips = 0  # clips that were added
        # The columns as they grow, {name: values}: columns of texts, and columns of numbers.
        self.texts: dict[str, bytearray] = {}
        self.numbers: dict[str, array[Any]] = {}
        for name, dtype in types_of(self.kinds).items():
            if dtype is np.uint8:
                self.texts[name] = bytearray()
            else:
                self.numbers[name] = array(ARRAY_CODES[dtype])
        # {(numbers of a row ..., center): index of the row}, to store equal rows once.
        self.index_of_row: dict[tuple[Any, ...], int] = {}

    def __len__(self) -> int:
        return self.number_of_clips

    def add(self, clip: Clip, looks: Mapping[str, Look]) -> None:
        """Add a clip. looks: {path: what the check saw of this file}, for all files of the clip."""
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
        """Add the files of one kind. looks: {path: what the check saw of this file}."""
        if kind == "spike":
            # `Clip.spike` lists one file for every frame. `planes_of_spike_files` has each file
            # once.
            paths = list(clip.planes_of_spike_files)
        else:
            paths = list(getattr(clip, kind))
        root = self.roots[kind]
        folder = _folder_of(paths[0], root)
        prefix_length = len(root) + len(folder)  # all files of the clip have this prefix
        self._add_texts(f"{kind}_places", [folder])
        self._add_texts(f"{kind}_names", [path[prefix_length:] for path in paths])
        self.numbers[f"{kind}_counts"].append(len(paths))
        entries = [looks[path].entry for path in paths]
        self.numbers[f"{kind}_bytes"].extend(entry.size for entry in entries)
        self.numbers[f"{kind}_times"].extend(entry.mtime_ns for entry in entries)

    def table(self) -> tuple[ClipTable, Columns]:
        """Return the table of all added clips, and its columns."""
        columns = {}
        for name, dtype in types_of(self.kinds).items():
            values = self.texts[name] if dtype is np.uint8 else self.numbers[name]
            columns[name] = np.array(values, dtype)
        return ClipTable(self.source, columns), columns

    def _add_texts(self, column: str, texts: Sequence[str]) -> None:
        """Add texts to a column, with a zero byte after each."""
        joined_texts = "".join(f"{text}\0" for text in texts)
        self.texts[column].extend(joined_texts.encode())

    def _add_exposures(self, clip: Clip) -> None:
        """Add planes and exposures of a clip. `_exposure_of` turns a row back into an exposure."""
        # `planes_of_spike_files` is {spike file: its number of planes}.
        self.numbers["planes"].extend(clip.planes_of_spike_files.values())
        index_of_file = {file: index for index, file in enumerate(clip.planes_of_spike_files)}
        for exposure in clip.exposures:
            own_file = index_of_file[exposure.own.file]
            # The planes that are read of each file, (first plane, number of planes), by the step
            # from the own file: -1, 0 or 1.
            planes_of_step = {-1: (0, 0), 0: (0, 0), 1: (0, 0)}
            for piece in exposure.pieces:
                step = index_of_file[piece.file] - own_file
                planes_of_step[step] = (piece.first, piece.count)
            # A stored center is a float. If it was an int, it must become an int again, because
            # messages say "plane 20" and not "plane 20.0".
            is_whole = isinstance(exposure.center, int)
            previous_first, previous_count = planes_of_step[-1]
            own_first, own_count = planes_of_step[0]
            next_first, next_count = planes_of_step[1]
            row = Row(
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
            index = self._index_of(row, float(exposure.center))
            self.numbers["exposures"].append(index)

    def _index_of(self, row: Row, center: float) -> int:
        """Return the index of a stored row that is equal to this row. Store this row if none is."""
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


def _folder_of(path: str, root: str) -> str:
    """Return the part of a path between the root and the name of the file.

    "/data/train/a/blur/0.png" below the root "/data/train" -> "/a/blur/".
    "/data/train.lmdb::a/0" in the LMDB "/data/train.lmdb" -> "::a/".
    """
    path_below_root = path[len(root) :]
    last_slash = path_below_root.rfind("/")  # -1 if there is none
    folder = path_below_root[: last_slash + 1]
    # A key without a clip, "<root>.lmdb::0", has no slash.
    return folder or "::"


def types_of(kinds: Iterable[str]) -> dict[str, Any]:
    """Return {column: dtype} of a table with these kinds of files, e.g. {"lq_bytes": np.int64}.

    uint8 means a column of texts.
    """
    types: dict[str, Any] = dict(CLIP_COLUMNS)
    for kind in kinds:
        for name, dtype in FILE_COLUMNS.items():
            types[f"{kind}_{name}"] = dtype
    if "spike" in kinds:
        types.update(SPIKE_COLUMNS)
    return types


# ---- Check of columns from a file ------------------------------------------------------------


def refuse_columns(columns: Columns, source: Source) -> None:
    """Refuse columns that are no correct table of this source. Raises ValueError.

    Anybody may have written the file of the columns, so we trust nothing in it. If the columns
    pass, their table names only files below the roots, and only planes that these files have.

    The order of the tests matters: a later test indexes arrays with values that an earlier test
    has accepted. You may add a test, but leave out none.
    test_wrong_columns_are_refused_without_a_look_at_the_files (tests/parts/data/test_kept.py)
    forges the columns, one after the other. A few tests repeat what another test finds, too, so it
    does not notice if one of these is missing.
    """
    kinds = kinds_of(source)
    types = types_of(kinds)
    _demand(columns.keys() == types.keys(), "other columns")
    _refuse_types(columns, types)

    # int64, because sums of int32 columns could overflow.
    frame_counts = columns["frames"].astype(np.int64)
    number_of_clips = len(frame_counts)
    _demand(number_of_clips > 0, "clips")
    _demand(number_of_clips == len(Texts(columns["clips"])), "clips")
    _demand_all((frame_counts >= 1) & (frame_counts <= MOST_FRAMES), "frames")
    sizes = columns["sizes"]
    _demand(len(sizes) == 4 * number_of_clips, "sizes")  # height and width of lq, of gt
    _demand_all((sizes >= 1) & (sizes <= LARGEST_SIDE), "sizes")
    number_of_frames = int(frame_counts.sum())
    _refuse_names(columns["stems"], number_of_frames)
    _refuse_clips(columns, source)
    for kind in kinds:
        root = kinds[kind].root
        _refuse_files(columns, kind, frame_counts, in_lmdb=is_lmdb(root))
    if "spike" in kinds:
        _refuse_exposures(columns)
        _refuse_planes_outside_of_files(columns, frame_counts)


def _refuse_types(columns: Columns, types: Mapping[str, Any]) -> None:
    """Refuse columns with other types of values, and columns of texts that are no texts.

    types: result of `types_of`.
    """
    for name, dtype in types.items():
        column = columns[name]
        _demand(column.dtype == dtype and column.ndim == 1, name)
        if dtype is np.uint8:
            last_byte = bytes(column[-1:])
            _demand(last_byte == END, name)
            # Raises UnicodeDecodeError, which is a ValueError, if the texts are not UTF-8.
            column.tobytes().decode()


def _demand(is_met: bool, what: str) -> None:
    """Raise ValueError if a demand is not met. what: name of the wrong column, or what is wrong."""
    if not is_met:
        raise ValueError(f"the kept record is wrong: {what}")


def _demand_all(are_met: np.ndarray, what: str) -> None:
    """Raise ValueError unless all values of a boolean array are true.

    what: name of the wrong column, or what is wrong.
    """
    _demand(bool(are_met.all()), what)


def _refuse_names(column: np.ndarray, count: int) -> None:
    """Refuse a column of names unless it holds `count` plain names of files.

    With a slash, an empty name, "." or "..", the path of a file could leave its folder.
    """
    # A zero byte is put before the first name. So every name is between two zero bytes, and the
    # names "a" and "b" are b"\0a\0b\0".
    content = END + column.tobytes()
    _demand(content.count(END) == count + 1, "the number of names")
    for forbidden in (b"/", b"\0\0", b"\0.\0", b"\0..\0"):
        _demand(forbidden not in content, "names")


def _refuse_clips(columns: Columns, source: Source) -> None:
    """Refuse clips that are not the clips of the meta file, or have names that cannot be used."""
    names = Texts(columns["clips"]).read(0, len(columns["frames"]))
    set_of_names = set(names)
    has_each_name_once = len(set_of_names) == len(names)
    _demand(has_each_name_once, "clips")
    _demand(set_of_names.isdisjoint(source.excluded_clips), "clips")
    # {clip: [number of frames, number of the first frame]}, or None without a meta file.
    meta_entries = (
        source.meta_entries
    )  # {clip: [number of frames, number of the first frame]}, or None
    if meta_entries:
        _demand(set_of_names == meta_entries.keys() - source.excluded_clips, "clips")
        for name, frame_count in zip(names, columns["frames"].tolist(), strict=True):
            listed_count = meta_entries[name][0]
            _demand(frame_count == listed_count, "frames")
    # The names become names of output files, so they must pass the test that every name passes.
    try:
        for name in names:
            checked_name(name, "")
    except DataError as e:
        raise ValueError(e.what) from e


def _refuse_files(columns: Columns, kind: str, frame_counts: np.ndarray, in_lmdb: bool) -> None:
    """Refuse files that are not below the root, and a wrong number of files.

    frame_counts: number of frames of each clip. in_lmdb: whether the root is an LMDB.
    """
    file_counts = columns[f"{kind}_counts"].astype(np.int64)
    _demand(len(file_counts) == len(frame_counts), kind)
    _demand_all(file_counts >= 1, kind)
    if kind == "spike":
        # A file for each frame, or one file for the whole clip.
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

    # The folders must be below the root: "/", "/a/blur/", or "::" and "::a/" in an LMDB.
    folders = Texts(columns[f"{kind}_places"])
    _demand(len(folders) == len(frame_counts), kind)
    start = "::" if in_lmdb else "/"
    for folder in folders.read_all():
        is_below_root = folder.startswith(start) and ".." not in folder.split("/")
        is_folder = folder == start or folder.endswith("/")
        _demand(is_below_root and is_folder, kind)


def _refuse_exposures(columns: Columns) -> None:
    """Refuse rows of exposures if their numbers contradict one another.

    `_refuse_planes_outside_of_files` then compares the rows with the files.
    """
    centers = columns["centers"]
    numbers = columns["rows"]
    _demand(len(numbers) == len(Row._fields) * len(centers), "exposures")
    _demand_all((numbers >= 0) & (numbers < LARGEST_PLANE), "exposures")
    rows = rows_in(_by_row(numbers))  # each field is (rows,)
    _demand_all(rows.plane_count >= 1, "exposures")

    # The center must be between the first and the last plane of the frame. If it was an int, it
    # must have no fraction.
    _demand_all(np.isfinite(centers), "centers")
    _demand_all((centers >= 0) & (centers <= rows.plane_count - 1), "centers")
    _demand_all(rows.has_whole_center <= 1, "centers")
    has_no_fraction = centers == np.floor(centers)
    _demand_all(has_no_fraction[rows.has_whole_center == 1], "centers")

    # The planes before the frame are among the planes that are read.
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

    # Below, each array has one value for each frame of all clips.
    rows = rows_in(_by_row(columns["rows"])[row_of_frame])
    own = _own_files(frame_counts, file_counts)
    _demand_all(rows.first_plane + rows.plane_count <= planes[own.file], "exposures")
    # step: -1 is the file before the own file, 0 the own file, and 1 the file after.
    for step, first, count in rows.pieces():
        # The first frame of a clip has no previous file, and the last frame has no next file. A
        # missing file counts as a file without planes. E.g. with step -1, the frames of a clip of
        # three files have the files -1, 0, 1, of which -1 does not exist.
        file_in_clip = own.file_in_clip + step
        exists = (file_in_clip >= 0) & (file_in_clip < own.files_of_clip)
        # np.clip keeps the index of a missing file within the array, because NumPy would raise. The
        # planes of this wrong file are replaced by 0 in the next line.
        file = np.clip(own.file + step, 0, len(planes) - 1)
        planes_of_file = np.where(exists, planes[file], 0)
        reads_nothing = count == 0
        is_within = first + count <= planes_of_file
        _demand_all(reads_nothing | is_within, "exposures")


class _OwnFiles(NamedTuple):
    """The own spike file of each frame. Each array is (frames of all clips,).

    The examples are for two clips of 2 and 3 frames with a spike file for each frame.
    """

    file_in_clip: np.ndarray  # index among the files of the clip: 0 1 0 1 2
    file: np.ndarray  # index among the files of all clips: 0 1 2 3 4
    files_of_clip: np.ndarray  # number of files of the clip: 2 2 3 3 3


def _own_files(frame_counts: np.ndarray, file_counts: np.ndarray) -> _OwnFiles:
    """Return the own spike file of each frame.

    frame_counts: number of frames of each clip, e.g. 2 3. file_counts: number of its spike files.
    """
    # The numbers behind the lines are for the example in `_OwnFiles`.
    clip = np.repeat(np.arange(len(frame_counts)), frame_counts)  # of each frame: 0 0 1 1 1
    first_frame_of_clip = begins_of(frame_counts)[clip]  # 0 0 2 2 2
    number_in_clip = np.arange(len(clip)) - first_frame_of_clip  # 0 1 0 1 2
    # If a clip has one file for all frames, this is file 0 of the clip.
    is_one_file = file_counts[clip] < frame_counts[clip]
    file_in_clip = np.where(is_one_file, 0, number_in_clip)
    first_file_of_clip = begins_of(file_counts)[clip]  # 0 0 2 2 2
    return _OwnFiles(file_in_clip, first_file_of_clip + file_in_clip, file_counts[clip])

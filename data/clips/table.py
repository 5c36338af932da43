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

"Kind" means a kind of file here: "lq", "gt", "gt_instants" or "spike".

Tests: tests/parts/data/test_kept.py, tests/parts/data/test_preflight.py
"""

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, overload

import numpy as np

from data.cameras.frame_times import times_of_names
from data.clip import Clip, Exposure, Piece, checked_name
from data.clips.files import is_lmdb
from data.clips.look import Look
from data.clips.source import MOST_FRAMES, Kind, Source
from utils.errors import DataError

Columns = dict[str, np.ndarray]  # {name of a column: its values}

# The byte after each text of a column. No path and no name can hold it.
END = b"\0"

# Columns and the types of their values. The names and types are the format of a stored record.
# Whoever changes them must raise FORMAT in data/clips/kept.py.
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
    "rows": np.int64,  # rows of `ROW` numbers, see below
    "centers": np.float64,  # `Exposure.center` of each row
    "exposures": np.int32,  # for each frame of each clip: the number of its row
}

# An exposure is stored as a row of integers. Most frames have equal rows, so each different row is
# stored once. Rows would differ if they named files. So a row has three places for the previous
# file, the own file and the next file of a frame.
ROW = 11  # numbers in a row
FIRST = 0  # first plane of the frame in its own file
COUNT = 1  # number of planes of the frame
BEFORE = 2  # `Exposure.before`: number of planes that are read before the frame's own planes
ORIGIN = 3  # `Exposure.origin`
IS_WHOLE = 4  # 1 if `Exposure.center` is an int, 0 if it is a float
PIECES = 5  # from here on: (first plane, number of planes) read from previous, own and next file

# `TableBuilder` looks for an equal row only among this many first rows, which bounds the memory for
# a dataset in which every row differs. A later row may be stored twice, which is correct, too.
MOST_ROWS_COMPARED = 65_536
# Largest height or width that a stored record may claim, far above any camera.
LARGEST_SIDE = 2**20
# Largest plane number that a stored record may claim. Sums of a few such numbers fit into int64.
LARGEST_PLANE = 2**40


class Texts:
    """The texts of a column, decoded when they are asked for.

    column: bytes of the texts in UTF-8, with `END` after each, e.g. b"ab\\0c\\0".
    """

    def __init__(self, column: np.ndarray) -> None:
        self.column = column
        # Where each text ends. int32 is enough: a record has less than 2^31 bytes, see LARGEST in
        # data/clips/kept.py.
        self.ends = np.flatnonzero(column == 0).astype(np.int32)

    def __len__(self) -> int:
        return len(self.ends)

    def between(self, first: int, last: int) -> list[str]:
        """Return the texts first ... last - 1."""
        if last <= first:
            return []
        # A text begins after the end of the text before it.
        begin = 0
        if first > 0:
            begin = int(self.ends[first - 1]) + 1
        end = int(self.ends[last - 1])
        return self.column[begin:end].tobytes().decode().split("\0")

    def all(self) -> list[str]:
        """Return every text of the column."""
        return self.between(0, len(self))


def kinds_of(source: Source) -> dict[str, Kind]:
    """Return the kinds of files that the table of a source has, see `Source.kinds`.

    Spike files are left out if nothing says how to read them.
    """
    kinds = source.kinds()
    if source.spikes is None:
        kinds.pop("spike", None)
    return kinds


def roots_of(source: Source) -> dict[str, str]:
    """Return {name of the kind: root without a slash at its end}, e.g. {"lq": "/data/blur"}.

    Spikes have a root here even if `kinds_of` leaves them out. Nothing asks for it then.
    """
    roots = {}
    for name, kind in source.kinds().items():  # e.g. "lq", Kind(root="/data/blur", ...)
        roots[name] = kind.root.rstrip("/")
    return roots


def begins_of(counts: np.ndarray) -> np.ndarray:
    """Return where the entries of each clip begin, and then the end of the last clip.

    counts: number of entries of each clip. [2, 3] -> [0, 2, 5]: clip 1 has the entries 2 ... 4.
    """
    return np.concatenate(([0], np.cumsum(counts, dtype=np.int64)))


# ---- Sequences of clips ------------------------------------------------------------------------


class _Clips(Sequence[Clip]):
    """The base of sequences whose clips are made when they are asked for, by `_clip`."""

    @overload
    def __getitem__(self, number: int) -> Clip: ...
    @overload
    def __getitem__(self, number: slice) -> list[Clip]: ...
    def __getitem__(self, number: int | slice) -> Clip | list[Clip]:
        if isinstance(number, slice):
            numbers = range(*number.indices(len(self)))
            return [self[each] for each in numbers]
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

    columns: the arrays, see the top of this file.
    name_prefix: text before the name of each clip. A run gets the table with `source.name_prefix`,
    e.g. "0/". The check of a data root makes its tables without a prefix.
    """

    def __init__(
        self, source: Source, columns: Mapping[str, np.ndarray], name_prefix: str = ""
    ) -> None:
        self.source = source
        self.name_prefix = name_prefix
        self.kinds = kinds_of(source)
        self.roots = roots_of(source)

        # Columns with an entry for each clip or frame.
        self.names = Texts(columns["clips"])
        self.frames = columns["frames"]
        self.first_frames = begins_of(self.frames)
        self.sizes = columns["sizes"].reshape(-1, 4)
        self.stems = Texts(columns["stems"])

        # The files, as {kind: column}.
        self.places: dict[str, Texts] = {}  # folder of the files of each clip
        self.counts: dict[str, np.ndarray] = {}  # number of files of each clip
        self.begins: dict[str, np.ndarray] = {}  # number of the first file of each clip
        self.files: dict[str, Texts] = {}  # name of each file
        for kind in self.kinds:
            counts = columns[f"{kind}_counts"]
            self.places[kind] = Texts(columns[f"{kind}_places"])
            self.counts[kind] = counts
            self.begins[kind] = begins_of(counts)
            self.files[kind] = Texts(columns[f"{kind}_names"])

        # The columns `SPIKE_COLUMNS`. Empty if the clips have no spikes.
        self.of_spikes: Columns = {}
        if "spike" in self.kinds:
            self.of_spikes = {name: columns[name] for name in SPIKE_COLUMNS}

    def __len__(self) -> int:
        return len(self.frames)

    def _clip(self, number: int) -> Clip:
        name = self.names.between(number, number + 1)[0]
        # `first_frames` has one entry more than there are clips, so number + 1 is an entry, too.
        first, last = self.first_frames[number : number + 2].tolist()
        stems = tuple(self.stems.between(first, last))
        paths = {kind: self.paths(kind, number) for kind in self.kinds}
        height, width, gt_height, gt_width = self.sizes[number].tolist()

        spikes = _SpikesOfClip((), (), ())
        times = None
        if "spike" in self.kinds:
            spikes = self._spikes(number, paths["spike"], range(first, last))
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
            # `own_spikes` has an entry for each clip whose spikes are read in another way.
            spikes=self.source.own_spikes.get(name, self.source.spikes),
            times=times,
        )

    def paths(self, kind: str, number: int) -> tuple[str, ...]:
        """Return the paths of the files of clip `number`, each once."""
        first, last = self.begins[kind][number : number + 2].tolist()
        folder = self.roots[kind] + self.places[kind].between(number, number + 1)[0]
        return tuple([folder + name for name in self.files[kind].between(first, last)])

    def _spikes(self, number: int, files: Sequence[str], frames: range) -> _SpikesOfClip:
        """Return the spike files, their planes and the exposures of the frames of a clip.

        number: number of the clip. files: its spike files.
        frames: numbers of its frames among the frames of all clips.
        """
        first, last = self.begins["spike"][number : number + 2].tolist()
        planes = self.of_spikes["planes"][first:last].tolist()
        is_one_file = len(files) < len(frames)

        numbers_of_rows = self.of_spikes["exposures"][frames.start : frames.stop]
        rows = self.of_spikes["rows"].reshape(-1, ROW)[numbers_of_rows].tolist()
        centers = self.of_spikes["centers"][numbers_of_rows].tolist()
        exposures = []
        for frame, (row, center) in enumerate(zip(rows, centers, strict=True)):
            own_file = 0 if is_one_file else frame
            exposures.append(_exposure_of(row, center, files, own_file))

        if is_one_file:
            # The one file is listed for each frame.
            files = list(files) * len(frames)
            planes = planes * len(frames)
        return _SpikesOfClip(tuple(files), tuple(planes), tuple(exposures))

    def first_of_each_form(self) -> list[int]:
        """Return the number of the first clip of each form, in the order of the clips.

        Clips have one form if their sizes, their numbers of sharp instants and their ways of
        reading spikes are equal.
        """
        # Each property is an array with a number for each clip.
        properties = [*self.sizes.T]
        if "gt_instants" in self.kinds:
            properties.append(self.counts["gt_instants"] // self.frames)
        if self.source.own_spikes:
            properties.append(self._ways_of_reading())
        # `np.unique` returns the first clip of each distinct row of properties.
        _, firsts = np.unique(np.stack(properties, axis=1), axis=0, return_index=True)
        return sorted(firsts.tolist())

    def _ways_of_reading(self) -> np.ndarray:
        """Return a number for the way in which the spikes of each clip are read.

        0 is the usual way. Each clip in `own_spikes` has a number of its own, from 1 on.
        """
        numbers = {name: number for number, name in enumerate(self.source.own_spikes, 1)}
        return np.array([numbers.get(name, 0) for name in self.names.all()])


def _exposure_of(row: list[int], center: float, files: Sequence[str], own_file: int) -> Exposure:
    """Return the exposure that a row describes.

    files: spike files of the clip. own_file: number of the frame's file among them.
    """
    pieces = []
    # The pieces from the previous, the own and the next file.
    for index, file in enumerate((own_file - 1, own_file, own_file + 1)):
        first = row[PIECES + 2 * index]
        count = row[PIECES + 2 * index + 1]
        # Count 0: nothing is read from this file. The clip may not even have it.
        if count:
            pieces.append(Piece(files[file], first, count))
    return Exposure(
        own=Piece(files[own_file], row[FIRST], row[COUNT]),
        pieces=tuple(pieces),
        before=row[BEFORE],
        center=int(center) if row[IS_WHOLE] else center,
        origin=row[ORIGIN],
    )


class JoinedClips(_Clips):
    """The clips of several roots, one root after the other."""

    def __init__(self, clips_of_roots: Sequence[Sequence[Clip]]) -> None:
        self.clips_of_roots = clips_of_roots
        # Number of the first clip of each root, then the number of all clips.
        self.begins = begins_of(np.array([len(clips) for clips in clips_of_roots]))

    def __len__(self) -> int:
        return int(self.begins[-1])

    def _clip(self, number: int) -> Clip:
        # The number of roots that end at or before this clip.
        root = int(np.searchsorted(self.begins[1:], number, side="right"))
        return self.clips_of_roots[root][number - int(self.begins[root])]


def joined(clips_of_roots: Sequence[Sequence[Clip]]) -> Sequence[Clip]:
    """Return the clips of several roots as one sequence, a plain list if none has a table."""
    if len(clips_of_roots) == 1:
        return clips_of_roots[0]
    if any(isinstance(clips, ClipTable) for clips in clips_of_roots):
        return JoinedClips(clips_of_roots)
    together: list[Clip] = []
    for clips in clips_of_roots:
        together.extend(clips)
    return together


# The functions below answer from the arrays of a table, without making a Clip of each clip.


def frame_counts(clips: Sequence[Clip]) -> list[int]:
    """Return the number of frames of each clip."""
    if isinstance(clips, ClipTable):
        return clips.frames.tolist()
    if isinstance(clips, JoinedClips):
        counts: list[int] = []
        for of_root in clips.clips_of_roots:
            counts.extend(frame_counts(of_root))
        return counts
    return [len(clip) for clip in clips]


def planes_of(clips: Sequence[Clip]) -> set[int]:
    """Return the different numbers of planes that the spike files of the clips have."""
    if isinstance(clips, ClipTable):
        if not clips.of_spikes:
            return set()
        return set(np.unique(clips.of_spikes["planes"]).tolist())
    found: set[int] = set()
    for clip in clips:
        found.update(clip.planes)
    return found


def one_of_each_form(clips: Sequence[Any]) -> Iterator[Any]:
    """Yield enough clips to check properties that most clips share, such as their scale.

    Every clip that is left out has the sizes, the number of sharp instants and the way of reading
    spikes of a yielded clip before it. Clips that are in no table are all yielded.
    """
    if isinstance(clips, ClipTable):
        for number in clips.first_of_each_form():
            yield clips[number]
    elif isinstance(clips, JoinedClips):
        for of_root in clips.clips_of_roots:
            yield from one_of_each_form(of_root)
    else:
        yield from clips


# ---- From clips to arrays --------------------------------------------------------------------


class TableBuilder:
    """Takes the clips of one root one after the other, and makes their table."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.kinds = kinds_of(source)
        self.roots = roots_of(source)
        self.clips = 0  # number of clips that were added
        # The columns so far: columns of texts, and columns of numbers.
        self.texts: dict[str, bytearray] = {}
        self.numbers: dict[str, array[Any]] = {}
        for name, dtype in types_of(self.kinds).items():
            if dtype is np.uint8:
                self.texts[name] = bytearray()
            else:
                self.numbers[name] = array(_CODES[dtype])
        # {(*row of an exposure, its center): number of the row}, to store equal rows once.
        self.numbers_of_rows: dict[tuple[Any, ...], int] = {}

    def __len__(self) -> int:
        return self.clips

    def add(self, clip: Clip, looks: Mapping[str, Look]) -> None:
        """Add a clip. looks: {path: what was seen of this file}, for all files of the clip."""
        self.clips += 1
        self._add_texts("clips", [clip.name])
        self._add_texts("stems", clip.stems)
        self.numbers["frames"].append(len(clip))
        self.numbers["sizes"].extend((*clip.size, *clip.gt_size))
        for kind in self.kinds:
            self._add_files(kind, clip, looks)
        if "spike" in self.kinds:
            self._add_exposures(clip)

    def _add_files(self, kind: str, clip: Clip, looks: Mapping[str, Look]) -> None:
        """Add the files of one kind. looks: see `add`."""
        # One spike file may be listed for every frame. `spike_files` has it once.
        paths = list(clip.spike_files if kind == "spike" else getattr(clip, kind))
        root = self.roots[kind]
        place = _place_of(paths[0], root)
        folder_length = len(root) + len(place)
        self._add_texts(f"{kind}_places", [place])
        self._add_texts(f"{kind}_names", [path[folder_length:] for path in paths])
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
        text = "".join(f"{text}\0" for text in texts)
        self.texts[column].extend(text.encode())

    def _add_exposures(self, clip: Clip) -> None:
        """Add planes and exposures of a clip. `_exposure_of` is the inverse."""
        # `spike_files` is {spike file: its number of planes}.
        self.numbers["planes"].extend(clip.spike_files.values())
        numbers_of_files = {file: number for number, file in enumerate(clip.spike_files)}
        for exposure in clip.exposures:
            own_file = numbers_of_files[exposure.own.file]
            # (first plane, number of planes) of previous, own and next file, one after the other.
            # A file of which nothing is read has 0, 0.
            pieces = [0, 0] * 3
            for piece in exposure.pieces:
                # 0 for the previous file, 1 for the frame's own file, 2 for the next file.
                index = numbers_of_files[piece.file] - own_file + 1
                pieces[2 * index] = piece.first
                pieces[2 * index + 1] = piece.count
            # A stored center is a float. If it was an int, it must become an int again, because
            # messages say "plane 20" and not "plane 20.0".
            is_whole = isinstance(exposure.center, int)
            # The order of FIRST, COUNT, BEFORE, ORIGIN, IS_WHOLE and PIECES.
            row = (
                exposure.own.first,
                exposure.own.count,
                exposure.before,
                exposure.origin,
                int(is_whole),
                *pieces,
            )
            number = self._number_of_row(row, float(exposure.center))
            self.numbers["exposures"].append(number)

    def _number_of_row(self, row: tuple[int, ...], center: float) -> int:
        """Return the number of an equal row that is stored already, or store this one."""
        key = (*row, center)
        number = self.numbers_of_rows.get(key)
        if number is not None:
            return number
        number = len(self.numbers["centers"])
        self.numbers["rows"].extend(row)
        self.numbers["centers"].append(center)
        if len(self.numbers_of_rows) < MOST_ROWS_COMPARED:
            self.numbers_of_rows[key] = number
        return number


def _place_of(path: str, root: str) -> str:
    """Return the part of a path between the root and the name of the file.

    "/data/train/a/blur/0.png" below the root "/data/train" -> "/a/blur/".
    "/data/train.lmdb::a/0" in the LMDB "/data/train.lmdb" -> "::a/".
    """
    within = path[len(root) :]
    last_slash = within.rfind("/")
    place = within[: last_slash + 1]
    # A key without a clip, "<root>.lmdb::0", has no slash.
    return place or "::"


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


# {dtype: letter of the same type in Python's `array`}. An `array` can grow, a numpy array cannot.
_CODES = {np.int32: "i", np.int64: "q", np.float64: "d"}


# ---- Check of columns from a file ------------------------------------------------------------


def refuse_columns(columns: Columns, source: Source) -> None:
    """Refuse columns that are no correct table of this source. Raises ValueError.

    Anybody may have written the file of the columns, so we trust nothing in it. A table of columns
    that pass names only files below the roots, and only planes that these files have.
    """
    kinds = kinds_of(source)
    types = types_of(kinds)
    _demand(columns.keys() == types.keys(), "other columns")
    for name, dtype in types.items():
        column = columns[name]
        _demand(column.dtype == dtype and column.ndim == 1, name)
        if dtype is np.uint8:
            _demand(bytes(column[-1:]) == END, name)
            # Raises UnicodeDecodeError, which is a ValueError, if it is not UTF-8.
            column.tobytes().decode()

    # int64, because sums of int32 columns could overflow.
    frames = columns["frames"].astype(np.int64)
    _demand(0 < len(frames) == len(Texts(columns["clips"])), "clips")
    _demand_all((frames >= 1) & (frames <= MOST_FRAMES), "frames")
    sizes = columns["sizes"]
    _demand(len(sizes) == 4 * len(frames), "sizes")
    _demand_all((sizes >= 1) & (sizes <= LARGEST_SIDE), "sizes")
    _refuse_names(columns["stems"], int(frames.sum()))
    _refuse_clips(columns, source)
    for kind in kinds:
        root = kinds[kind].root
        _refuse_files(columns, kind, frames, in_lmdb=is_lmdb(root))
    if "spike" in kinds:
        _refuse_exposures(columns)
        _refuse_planes_outside_of_files(columns, frames)


def _demand(is_so: bool, what: str) -> None:
    """Raise ValueError if a demand is not met. what: name of what is wrong."""
    if not is_so:
        raise ValueError(f"the kept record is wrong: {what}")


def _demand_all(are_so: np.ndarray, what: str) -> None:
    """Raise ValueError unless all values of a boolean array are true."""
    _demand(bool(are_so.all()), what)


def _refuse_names(column: np.ndarray, count: int) -> None:
    """Refuse a column of names that does not hold `count` plain names of files."""
    # With END before the first name, every name has one before and one after it.
    content = END + column.tobytes()
    _demand(content.count(END) == count + 1, "the number of names")
    # A slash, an empty name, "." and "..": with them, a path could leave its folder.
    for odd in (b"/", b"\0\0", b"\0.\0", b"\0..\0"):
        _demand(odd not in content, "names")


def _refuse_clips(columns: Columns, source: Source) -> None:
    """Refuse clips that are not the clips of the meta file, or whose names cannot be used."""
    names = Texts(columns["clips"]).between(0, len(columns["frames"]))
    different = set(names)
    _demand(len(different) == len(names), "clips")
    _demand(different.isdisjoint(source.left_out), "clips")
    listed = source.listed
    if listed:
        _demand(different == listed.keys() - source.left_out, "clips")
        for name, frames in zip(names, columns["frames"].tolist(), strict=True):
            frames_in_list = listed[name][0]
            _demand(frames == frames_in_list, "frames")
    try:
        for name in names:
            checked_name(name, "")
    except DataError as e:
        raise ValueError(e.what) from e


def _refuse_files(columns: Columns, kind: str, frames: np.ndarray, in_lmdb: bool) -> None:
    """Refuse files that are not below the root, or not as many as the frames need.

    frames: number of frames of each clip. in_lmdb: whether the root is an LMDB.
    """
    counts = columns[f"{kind}_counts"].astype(np.int64)
    _demand(len(counts) == len(frames), kind)
    _demand_all(counts >= 1, kind)
    if kind == "spike":
        _demand_all((counts == frames) | (counts == 1), kind)
    elif kind == "gt_instants":
        _demand_all(counts % frames == 0, kind)
    else:
        _demand_all(counts == frames, kind)

    # Each file has a name, a size and a time.
    count = int(counts.sum())
    _refuse_names(columns[f"{kind}_names"], count)
    for name in ("bytes", "times"):
        _demand(len(columns[f"{kind}_{name}"]) == count, kind)

    # Places lead to a folder below the root: "/", "/a/blur/", or "::" and "::a/" in an LMDB.
    places = Texts(columns[f"{kind}_places"])
    _demand(len(places) == len(frames), kind)
    mark = "::" if in_lmdb else "/"
    for place in places.all():
        is_below = place.startswith(mark) and ".." not in place.split("/")
        is_folder = place == mark or place.endswith("/")
        _demand(is_below and is_folder, kind)


def _refuse_exposures(columns: Columns) -> None:
    """Refuse rows of exposures whose numbers contradict one another."""
    centers = columns["centers"]
    _demand(len(columns["rows"]) == ROW * len(centers), "exposures")
    rows = columns["rows"].reshape(-1, ROW)
    _demand_all((rows >= 0) & (rows < LARGEST_PLANE), "exposures")
    counts = rows[:, COUNT]
    _demand_all(counts >= 1, "exposures")

    # The center lies between the first and the last plane of the frame.
    _demand_all(np.isfinite(centers) & (centers >= 0) & (centers <= counts - 1), "centers")
    is_whole = rows[:, IS_WHOLE]
    _demand_all(is_whole <= 1, "centers")
    has_no_fraction = centers == np.floor(centers)
    _demand_all(has_no_fraction[is_whole == 1], "centers")

    # The planes before the frame are among the planes that are read.
    planes_of_pieces = rows[:, PIECES + 1 :: 2]  # the counts of previous, own and next file
    _demand_all(rows[:, BEFORE] <= planes_of_pieces.sum(axis=1), "exposures")


def _refuse_planes_outside_of_files(columns: Columns, frames: np.ndarray) -> None:
    """Refuse exposures with planes that their files do not have.

    frames: number of frames of each clip. `_refuse_exposures` has accepted the rows.
    """
    counts = columns["spike_counts"].astype(np.int64)  # spike files of each clip
    planes = columns["planes"]  # planes of each file
    _demand(len(planes) == counts.sum(), "planes")
    _demand_all(planes >= 1, "planes")
    _demand_all(planes < LARGEST_PLANE, "planes")
    numbers_of_rows = columns["exposures"]  # for each frame of all clips
    _demand(len(numbers_of_rows) == frames.sum(), "exposures")
    is_row = (numbers_of_rows >= 0) & (numbers_of_rows < len(columns["centers"]))
    _demand_all(is_row, "exposures")
    rows = columns["rows"].reshape(-1, ROW)[numbers_of_rows]

    # For each frame of all clips: the number of its clip, and of its file within the clip. For
    # clips of 2 and 3 frames these are 0 0 1 1 1 and 0 1 0 1 2. A single file of a clip is file 0.
    clip = np.repeat(np.arange(len(frames)), frames)
    own_file = np.arange(len(numbers_of_rows)) - begins_of(frames)[clip]
    is_one_file = counts[clip] < frames[clip]
    own_file[is_one_file] = 0
    # The number of the file among the files of all clips.
    file = begins_of(counts)[clip] + own_file

    _demand_all(rows[:, FIRST] + rows[:, COUNT] <= planes[file], "exposures")
    for index, step in enumerate((-1, 0, 1)):  # previous, own and next file
        first = rows[:, PIECES + 2 * index]
        count = rows[:, PIECES + 2 * index + 1]
        # A first frame has no previous file, a last frame no next one: such a file has no planes.
        is_there = (own_file + step >= 0) & (own_file + step < counts[clip])
        neighbour = np.clip(file + step, 0, len(planes) - 1)
        length = np.where(is_there, planes[neighbour], 0)
        _demand_all((count == 0) | (first + count <= length), "exposures")

"""The clips of a root as a few arrays, for data sets of many clips.

Objects of 32,000 clips take hundreds of megabytes, in each rank. Arrays take twenty, forked loader
workers share them, and a `Clip` is made when it is asked for.
"""

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, overload

import numpy as np

from data.cameras.frame_times import times_of_names
from data.clip import Clip, Exposure, Piece, checked_name
from data.clips.files import is_lmdb
from data.clips.look import Look
from data.clips.source import MOST_FRAMES, Kind, Source
from utils.errors import DataError

Columns = dict[str, np.ndarray]

END = b"\0"  # behind each text of a column; no path holds it
# Columns of each table, and of each kind of file in it, with the types of their values.
OF_TABLE = {"clips": np.uint8, "frames": np.int32, "sizes": np.int32, "stems": np.uint8}
OF_KIND = {
    "places": np.uint8,  # what stands between root and name in the paths of a clip
    "counts": np.int32,  # of the files of a clip
    "names": np.uint8,
    "bytes": np.int64,
    "times": np.int64,  # of change, in ns
}
OF_SPIKES = {"planes": np.int64, "rows": np.int64, "centers": np.float64, "exposures": np.int32}
# Fields of a row, which most exposures have in common: an `Exposure` without its center, which is
# in `centers`. Of the file before, the own file and the next one: first plane, number of planes.
ROW = 11
FIRST, COUNT, BEFORE, ORIGIN, IS_WHOLE, PIECES = 0, 1, 2, 3, 4, 5
# Rows that are looked up when another is added.
MOST_KNOWN = 65_536
LARGEST_SIDE = 2**20


class Texts:
    """Texts of a column. column: their bytes in UTF-8, with `END` behind each."""

    def __init__(self, column: np.ndarray) -> None:
        self.column = column
        # A column has fewer than 2^31 bytes, see LARGEST in data/clips/kept.py.
        self.ends = np.flatnonzero(column == 0).astype(np.int32)

    def __len__(self) -> int:
        return len(self.ends)

    def part(self, first: int, last: int) -> list[str]:
        """Return the texts first ... last - 1."""
        if last <= first:
            return []
        begin = int(self.ends[first - 1]) + 1 if first else 0
        end = int(self.ends[last - 1])
        return self.column[begin:end].tobytes().decode().split("\0")


def kinds_of(source: Source) -> dict[str, Kind]:
    """Return the kinds of files that a table has, see `Source.kinds`.

    Spike files are no part of a clip if nothing says how to read them.
    """
    kinds = source.kinds()
    if source.spikes is None:
        kinds.pop("spike", None)
    return kinds


def begins_of(counts: np.ndarray) -> np.ndarray:
    """Return where the part of each clip begins, and then the end. counts: length of each part."""
    return np.concatenate(([0], np.cumsum(counts, dtype=np.int64)))


class _Clips(Sequence[Clip]):
    """Clips that are made when they are asked for, by `_clip`."""

    @overload
    def __getitem__(self, number: int) -> Clip: ...
    @overload
    def __getitem__(self, number: slice) -> list[Clip]: ...
    def __getitem__(self, number: int | slice) -> Clip | list[Clip]:
        if isinstance(number, slice):
            return [self[each] for each in range(*number.indices(len(self)))]
        if not -len(self) <= number < len(self):
            raise IndexError(number)
        return self._clip(int(number) % len(self))

    def _clip(self, number: int) -> Clip:
        raise NotImplementedError


class ClipTable(_Clips):
    """The clips of one root. columns: see `OF_TABLE`, `OF_KIND` and `OF_SPIKES`.

    part: stands before the name of each clip, see `Source.part`.
    """

    def __init__(self, source: Source, columns: Mapping[str, np.ndarray], part: str = "") -> None:
        self.source, self.part = source, part
        self.kinds = kinds_of(source)
        self.frames = columns["frames"]
        self.sizes = columns["sizes"].reshape(-1, 4)
        self.first_frames = begins_of(self.frames)
        self.names, self.stems = Texts(columns["clips"]), Texts(columns["stems"])
        self.counts = {kind: columns[f"{kind}_counts"] for kind in self.kinds}
        self.begins = {kind: begins_of(counts) for kind, counts in self.counts.items()}
        self.places = {kind: Texts(columns[f"{kind}_places"]) for kind in self.kinds}
        self.files = {kind: Texts(columns[f"{kind}_names"]) for kind in self.kinds}
        self.exposed = {name: columns[name] for name in OF_SPIKES if "spike" in self.kinds}
        self.roots = {kind: place.root.rstrip("/") for kind, place in source.kinds().items()}

    def __len__(self) -> int:
        return len(self.frames)

    def _clip(self, number: int) -> Clip:
        name = self.names.part(number, number + 1)[0]
        first, last = self.first_frames[number : number + 2].tolist()
        stems = tuple(self.stems.part(first, last))
        paths = {kind: self.paths(kind, number) for kind in self.kinds}
        height, width, gt_height, gt_width = self.sizes[number].tolist()
        spike: tuple[str, ...] = ()
        planes: tuple[int, ...] = ()
        exposures: tuple[Exposure, ...] = ()
        times = None
        if "spike" in self.kinds:
            spike, planes, exposures = self._spikes(number, paths["spike"], range(first, last))
            times = times_of_names(stems) if self.source.has_one_spike_file else None
        return Clip(
            name=self.part + name,
            stems=stems,
            lq=paths["lq"],
            gt=paths.get("gt", ()),
            spike=spike,
            planes=planes,
            size=(height, width),
            gt_size=(gt_height, gt_width),
            gt_instants=paths.get("gt_instants", ()),
            exposures=exposures,
            spikes=self.source.own_spikes.get(name, self.source.spikes),
            times=times,
        )

    def paths(self, kind: str, number: int) -> tuple[str, ...]:
        """Return the paths of the files of clip `number`, each once."""
        first, last = self.begins[kind][number : number + 2].tolist()
        place = self.roots[kind] + self.places[kind].part(number, number + 1)[0]
        return tuple([place + name for name in self.files[kind].part(first, last)])

    def _spikes(
        self, number: int, files: Sequence[str], frames: range
    ) -> tuple[tuple[str, ...], tuple[int, ...], tuple[Exposure, ...]]:
        """Return file and number of planes of each frame, and its exposure.

        number: of the clip. files: its spike files. frames: the places of its frames.
        """
        first, last = self.begins["spike"][number : number + 2].tolist()
        planes = self.exposed["planes"][first:last].tolist()
        is_one_file = len(files) < len(frames)
        exposures = []
        chosen = self.exposed["exposures"][frames.start : frames.stop]
        rows = self.exposed["rows"].reshape(-1, ROW)[chosen].tolist()
        centers = self.exposed["centers"][chosen].tolist()
        for frame, (row, center) in enumerate(zip(rows, centers, strict=True)):
            own = 0 if is_one_file else frame
            pieces = []
            for at, file in enumerate(range(own - 1, own + 2)):
                begin, count = row[PIECES + 2 * at : PIECES + 2 * at + 2]
                if count:
                    pieces.append(Piece(files[file], begin, count))
            exposures.append(
                Exposure(
                    own=Piece(files[own], row[FIRST], row[COUNT]),
                    pieces=tuple(pieces),
                    before=row[BEFORE],
                    center=int(center) if row[IS_WHOLE] else center,
                    origin=row[ORIGIN],
                )
            )
        if is_one_file:
            return tuple(files) * len(frames), tuple(planes) * len(frames), tuple(exposures)
        return tuple(files), tuple(planes), tuple(exposures)

    def unlike(self) -> list[int]:
        """Return the numbers of the first clips of each size and way of reading, in their order."""
        kinds = [*self.sizes.T]
        if "gt_instants" in self.kinds:
            kinds.append(self.counts["gt_instants"] // self.frames)
        if self.source.own_spikes:
            own = {name: place for place, name in enumerate(self.source.own_spikes, 1)}
            names = self.names.part(0, len(self))
            kinds.append(np.array([own.get(name, 0) for name in names]))
        _, firsts = np.unique(np.stack(kinds, axis=1), axis=0, return_index=True)
        return sorted(firsts.tolist())


class JoinedClips(_Clips):
    """The clips of several roots, one root after the other."""

    def __init__(self, parts: Sequence[Sequence[Clip]]) -> None:
        self.parts = parts
        self.begins = begins_of(np.array([len(part) for part in parts]))

    def __len__(self) -> int:
        return int(self.begins[-1])

    def _clip(self, number: int) -> Clip:
        part = int(np.searchsorted(self.begins[1:], number, side="right"))
        return self.parts[part][number - int(self.begins[part])]


def joined(parts: Sequence[Sequence[Clip]]) -> Sequence[Clip]:
    """Return the clips of all parts as one sequence."""
    if len(parts) == 1:
        return parts[0]
    if any(isinstance(part, ClipTable) for part in parts):
        return JoinedClips(parts)
    return [clip for part in parts for clip in part]


def frames_of(clips: Sequence[Clip]) -> list[int]:
    """Return the number of frames of each clip."""
    if isinstance(clips, ClipTable):
        return clips.frames.tolist()
    if isinstance(clips, JoinedClips):
        return [count for part in clips.parts for count in frames_of(part)]
    return [len(clip) for clip in clips]


def planes_of(clips: Sequence[Clip]) -> set[int]:
    """Return the numbers of planes that spike files have."""
    if isinstance(clips, ClipTable):
        return set(np.unique(clips.exposed["planes"]).tolist()) if clips.exposed else set()
    return {count for clip in clips for count in clip.planes}


def unlike(clips: Sequence[Any]) -> Iterator[Any]:
    """Yield clips such that every other clip has the sizes, the number of instants and the way of
    reading spikes of one that came before it.
    """
    if isinstance(clips, ClipTable):
        yield from (clips[number] for number in clips.unlike())
    elif isinstance(clips, JoinedClips):
        for part in clips.parts:
            yield from unlike(part)
    else:
        yield from clips


# ---- From clips to arrays --------------------------------------------------------------------


class TableBuilder:
    """Takes the clips of a root one after the other."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.kinds = kinds_of(source)
        self.roots = {kind: place.root.rstrip("/") for kind, place in source.kinds().items()}
        self.texts: dict[str, bytearray] = {}
        self.numbers: dict[str, array[Any]] = {}
        self.rows: dict[tuple[Any, ...], int] = {}
        self.clips = 0
        for name, kind in types_of(self.kinds).items():
            if kind is np.uint8:
                self.texts[name] = bytearray()
            else:
                self.numbers[name] = array(_CODES[kind])

    def __len__(self) -> int:
        return self.clips

    def add(self, clip: Clip, looks: Mapping[str, Look]) -> None:
        """Take a clip. looks: {path: the look at it}."""
        self.clips += 1
        self._texts("clips", [clip.name])
        self._texts("stems", clip.stems)
        self.numbers["frames"].append(len(clip))
        self.numbers["sizes"].extend((*clip.size, *clip.gt_size))
        for kind in self.kinds:
            paths = list(clip.spike_files) if kind == "spike" else list(getattr(clip, kind))
            place = _place_of(paths[0], self.roots[kind])
            names = [path[len(self.roots[kind]) + len(place) :] for path in paths]
            self._texts(f"{kind}_places", [place])
            self._texts(f"{kind}_names", names)
            self.numbers[f"{kind}_counts"].append(len(paths))
            entries = [looks[path].entry for path in paths]
            self.numbers[f"{kind}_bytes"].extend(entry.size for entry in entries)
            self.numbers[f"{kind}_times"].extend(entry.mtime_ns for entry in entries)
        if "spike" in self.kinds:
            self._exposures(clip)

    def table(self) -> tuple[ClipTable, Columns]:
        """Return the table, and its columns."""
        columns = {}
        for name, kind in types_of(self.kinds).items():
            values = self.texts[name] if kind is np.uint8 else self.numbers[name]
            columns[name] = np.array(values, kind)
        return ClipTable(self.source, columns), columns

    def _texts(self, name: str, texts: Sequence[str]) -> None:
        self.texts[name].extend("".join(f"{text}\0" for text in texts).encode())

    def _exposures(self, clip: Clip) -> None:
        self.numbers["planes"].extend(clip.spike_files.values())
        place = {file: number for number, file in enumerate(clip.spike_files)}
        for exposure in clip.exposures:
            own = place[exposure.own.file]
            pieces = [0] * 6
            for piece in exposure.pieces:
                at = 2 * (place[piece.file] - own + 1)
                pieces[at : at + 2] = [piece.first, piece.count]
            is_whole = isinstance(exposure.center, int)
            row = (
                exposure.own.first, exposure.own.count, exposure.before, exposure.origin,
                int(is_whole), *pieces, float(exposure.center),
            )  # fmt: skip
            number = self.rows.get(row)
            if number is None:
                number = len(self.numbers["centers"])
                self.numbers["rows"].extend(row[:ROW])
                self.numbers["centers"].append(row[ROW])
                if len(self.rows) < MOST_KNOWN:
                    self.rows[row] = number
            self.numbers["exposures"].append(number)


def _place_of(path: str, root: str) -> str:
    """Return what stands between root and name in a path. In an LMDB it begins with "::"."""
    within = path[len(root) :]
    place = within[: within.rfind("/") + 1]
    return place or "::"


def types_of(kinds: Iterable[str]) -> dict[str, Any]:
    """Return {column: the type of its values} of a table with these kinds of files."""
    types: dict[str, Any] = dict(OF_TABLE)
    for kind in kinds:
        types |= {f"{kind}_{name}": value for name, value in OF_KIND.items()}
    if "spike" in kinds:
        types |= OF_SPIKES
    return types


_CODES = {np.int32: "i", np.int64: "q", np.float64: "d"}


# ---- Columns of a stranger -------------------------------------------------------------------


def refuse_columns(columns: Columns, source: Source) -> None:
    """Refuse columns that are no table of this source. Raises ValueError.

    Whatever they hold, a table of columns that pass names files below the roots alone, and planes
    that are in their files.
    """
    kinds = kinds_of(source)
    types = types_of(kinds)
    _demand(columns.keys() == types.keys(), "other columns")
    for name, kind in types.items():
        _demand(columns[name].dtype == kind and columns[name].ndim == 1, name)
        if kind is np.uint8:
            _demand(bytes(columns[name][-1:]) == END, name)
            columns[name].tobytes().decode()  # its error is a ValueError

    frames = columns["frames"].astype(np.int64)
    _demand(0 < len(frames) == len(Texts(columns["clips"])), "clips")
    _demand(bool(((frames >= 1) & (frames <= MOST_FRAMES)).all()), "frames")
    sizes = columns["sizes"]
    _demand(len(sizes) == 4 * len(frames), "sizes")
    _demand(bool(((sizes >= 1) & (sizes <= LARGEST_SIDE)).all()), "sizes")
    _refuse_names(columns["stems"], int(frames.sum()))
    _refuse_clips(columns, source)
    for kind, place in kinds.items():
        _refuse_files(columns, kind, frames, is_lmdb(place.root))
    if "spike" in kinds:
        _refuse_planes(columns, frames)


def _demand(is_so: bool, what: str) -> None:
    if not is_so:
        raise ValueError(f"the kept record is wrong: {what}")


def _refuse_names(column: np.ndarray, count: int) -> None:
    """Refuse names of files that are not `count` plain names."""
    content = END + column.tobytes()
    _demand(content.count(END) == count + 1, "the number of names")
    is_plain = not any(odd in content for odd in (b"/", b"\0\0", b"\0.\0", b"\0..\0"))
    _demand(is_plain, "names")


def _refuse_clips(columns: Columns, source: Source) -> None:
    """Refuse clips that are not those of the meta file, or whose names cannot be used."""
    names = Texts(columns["clips"]).part(0, len(columns["frames"]))
    _demand(len(set(names)) == len(names) and not source.left_out & set(names), "clips")
    listed = source.listed
    if listed:
        _demand(listed.keys() - source.left_out == set(names), "clips")
        frames = columns["frames"].tolist()
        _demand(all(listed[name][0] == n for name, n in zip(names, frames, strict=True)), "frames")
    try:
        for name in names:
            checked_name(name, "")
    except DataError as e:
        raise ValueError(e.what) from e


def _refuse_files(columns: Columns, kind: str, frames: np.ndarray, in_lmdb: bool) -> None:
    """Refuse files that are not below the root, or not as many as the frames need."""
    counts = columns[f"{kind}_counts"].astype(np.int64)
    _demand(len(counts) == len(frames) and bool((counts >= 1).all()), kind)
    if kind == "spike":
        fits = (counts == frames) | (counts == 1)
    elif kind == "gt_instants":
        fits = counts % frames == 0
    else:
        fits = counts == frames
    _demand(bool(fits.all()), kind)
    count = int(counts.sum())
    _refuse_names(columns[f"{kind}_names"], count)
    for name in ("bytes", "times"):
        _demand(len(columns[f"{kind}_{name}"]) == count, kind)

    places = Texts(columns[f"{kind}_places"])
    _demand(len(places) == len(frames), kind)
    mark = "::" if in_lmdb else "/"
    for place in places.part(0, len(places)):
        is_below = place.startswith(mark) and ".." not in place.split("/")
        _demand(is_below and (place == mark or place.endswith("/")), kind)


def _refuse_planes(columns: Columns, frames: np.ndarray) -> None:
    """Refuse exposures that lie outside of their files."""
    counts = columns["spike_counts"].astype(np.int64)
    planes = columns["planes"]
    _demand(len(planes) == counts.sum() and bool((planes >= 1).all()), "planes")
    _demand(bool((planes < 2**40).all()), "planes")
    rows, centers, chosen = columns["rows"], columns["centers"], columns["exposures"]
    _demand(len(rows) == ROW * len(centers) and len(chosen) == frames.sum(), "exposures")
    _demand(bool(((chosen >= 0) & (chosen < len(centers))).all()), "exposures")
    rows = rows.reshape(-1, ROW)
    _demand(bool(((rows >= 0) & (rows < 2**40)).all() and (rows[:, COUNT] >= 1).all()), "exposures")
    inside = np.isfinite(centers) & (centers >= 0) & (centers <= rows[:, COUNT] - 1)
    is_whole = rows[:, IS_WHOLE]
    _demand(bool(inside.all() and (is_whole <= 1).all()), "centers")
    _demand(bool((centers == np.floor(centers))[is_whole == 1].all()), "centers")
    _demand(bool((rows[:, BEFORE] <= rows[:, PIECES + 1 :: 2].sum(axis=1)).all()), "exposures")

    # The number of each frame's own file, in its clip and in all clips.
    clip_of = np.repeat(np.arange(len(frames)), frames)
    own = np.arange(len(chosen)) - begins_of(frames)[clip_of]
    own[counts[clip_of] < frames[clip_of]] = 0
    file = begins_of(counts)[clip_of] + own
    of_frames = rows[chosen]
    _demand(bool((of_frames[:, FIRST] + of_frames[:, COUNT] <= planes[file]).all()), "exposures")
    for at, step in enumerate((-1, 0, 1)):
        first, count = of_frames[:, PIECES + 2 * at], of_frames[:, PIECES + 2 * at + 1]
        is_there = (own + step >= 0) & (own + step < counts[clip_of])
        length = np.where(is_there, planes[np.clip(file + step, 0, len(planes) - 1)], 0)
        _demand(bool(((count == 0) | (first + count <= length)).all()), "exposures")

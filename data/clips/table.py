"""Store the clips of a data root as arrays. A clip is made when it is accessed.

A `ClipTable` looks like a list of `Clip` objects, but it holds arrays (data/clips/columns.py). The
arrays are small, and loader workers share them. A million `Clip` objects would fill the memory. A
dataset holds one table for each root.

What must stay: a clip that goes into a table (data/clips/table_builder.py) comes out as an equal
clip, and the clips keep their order, because training samples are numbered through all clips
(test_a_record_gives_the_same_clips_as_the_files). Free to change: how the arrays are read.

Tests: tests/parts/data/test_kept.py, tests/parts/data/test_preflight.py
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, overload

import numpy as np

from data.cameras.name_times import times_of_names
from data.clip import Clip, Exposure, Piece
from data.clips.columns import SPIKE_COLUMNS, Columns, Row, Texts, by_row, kinds_of, roots_of
from data.clips.ranges import begins_of, first_and_end
from data.clips.source import Source


class Clips(Sequence[Clip]):
    """The base of sequences that make a clip when it is accessed.

    A subclass defines `_clip` and `__len__`. The sequence behaves like a list: negative numbers
    count from the end, and a slice is a plain list.
    """

    @overload
    def __getitem__(self, number: int) -> Clip: ...
    @overload
    def __getitem__(self, number: slice) -> list[Clip]: ...
    def __getitem__(self, number: int | slice) -> Clip | list[Clip]:
        """Return a clip, or the list of the clips of a slice."""
        if isinstance(number, slice):
            start, stop, step = number.indices(len(self))
            return [self[each] for each in range(start, stop, step)]
        index = int(number)
        if index < 0:
            # -1 is the last clip. `index` is Python's int. The type of a NumPy integer may be too
            # small: an int8 cannot hold -1 + 300.
            index += len(self)
        if index < 0 or index >= len(self):
            raise IndexError(number)
        return self._clip(index)

    def _clip(self, number: int) -> Clip:
        """Return clip `number`. The number is in 0 ... len - 1."""
        raise NotImplementedError


class _SpikesOfClip(NamedTuple):
    """The fields of a `Clip` that describe its spikes. Each field has an entry for each frame."""

    files: tuple[str, ...]
    planes: tuple[int, ...]  # number of planes of the file of each frame
    exposures: tuple[Exposure, ...]


class ClipTable(Clips):
    """The clips of one data root.

    A new field of `Clip` needs a value in `_clip` below. If the value does not follow from
    `source`, it needs a column in data/clips/columns.py. Fill the column in `TableBuilder.add`
    (data/clips/table_builder.py). A forgotten field would have its default in every clip of a
    table. test_a_record_gives_the_same_clips_as_the_files notices a forgotten field.
    """

    def __init__(
        self, source: Source, columns: Mapping[str, np.ndarray], name_prefix: str = ""
    ) -> None:
        """Make the sequence. No clip is made yet.

        source: where the clips are, and how their spikes are read.
        columns: the arrays (data/clips/columns.py). They are not copied and must not change.
        name_prefix: text before the name of each clip. A run with several data roots gets the
        tables with "0/", "1/", ... (`source.name_prefix`). The check of a data root makes its table
        without a prefix, because one check serves all runs, and the prefix differs between runs.
        """
        self.source = source
        self.name_prefix = name_prefix
        self.kinds = kinds_of(source)  # {"lq", "gt", "spike", ...: where the files of the kind are}
        self.roots = roots_of(source)  # {name: root of its files}

        # Columns with an entry for each clip or frame. `Texts` stores a list of texts in one array.
        # `read(first, end)` returns the texts first ... end - 1.
        self.clip_names = Texts(columns["clips"])
        self.frame_counts = columns["frames"]  # number of frames of each clip
        # Index of the first frame of each clip among the frames of all clips, and then the end.
        # E.g. clips of 2, 3 and 1 frames give 0 2 5 6. So clip 1 has the frames 2, 3 and 4.
        self.first_frames = begins_of(self.frame_counts)
        # (clips, 4): height and width of lq, height and width of gt.
        self.sizes = columns["sizes"].reshape(-1, 4)
        self.stems = Texts(columns["stems"])  # name of each frame of all clips

        # The files, as {kind: column}.
        #
        # Folder of each clip below the root, e.g. "/clip_a/blur/" (the column "places").
        self.folders: dict[str, Texts] = {}
        self.file_counts: dict[str, np.ndarray] = {}  # number of files of each clip
        # Index of the first file of each clip among the files of all clips, and then the end.
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
        """Make clip `number` from the columns.

        The clip must equal the clip that `TableBuilder.add` got, except for the prefix of its name.
        """
        # The name as dataset.json has it, without the prefix. `read` returns a list of one text.
        [name] = self.clip_names.read(number, number + 1)
        # The clip has the frames first ... end - 1 of the frames of all clips.
        first, end = first_and_end(self.first_frames, number)
        stems = tuple(self.stems.read(first, end))
        paths = {kind: self.paths(kind, number) for kind in self.kinds}
        height, width, gt_height, gt_width = self.sizes[number].tolist()

        read_spikes = _SpikesOfClip((), (), ())
        times = None
        if "spike" in self.kinds:
            read_spikes = self._spikes(number, paths["spike"], range(first, end))
            # If one file holds the planes of all frames, the times of the frames say which planes
            # belong to which frame. The times follow from the names of the frames. E.g. if frame
            # "0003" is missing between "0002" and "0004", its planes belong to no frame.
            if self.source.has_one_spike_file:
                times = times_of_names(stems)
        return Clip(
            name=self.name_prefix + name,
            stems=stems,
            lq=paths["lq"],
            gt=paths.get("gt", ()),
            spike=read_spikes.files,
            planes=read_spikes.planes,
            size=(height, width),
            gt_size=(gt_height, gt_width),
            gt_instants=paths.get("gt_instants", ()),
            exposures=read_spikes.exposures,
            # How the spikes are read. `own_spikes` has an entry for each clip that has values of
            # its own in dataset.json. The key is the name without the prefix.
            spikes=self.source.own_spikes.get(name, self.source.spikes),
            times=times,
        )

    def paths(self, kind: str, number: int) -> tuple[str, ...]:
        """Return the path of each file of clip `number` once."""
        [folder] = self.folders[kind].read(number, number + 1)  # e.g. "/clip_a/blur/"
        prefix = self.roots[kind] + folder
        first, end = first_and_end(self.first_files[kind], number)
        names = self.file_names[kind].read(first, end)
        return tuple([prefix + name for name in names])

    def _spikes(self, number: int, files: Sequence[str], frames: range) -> _SpikesOfClip:
        """Return the spike files, their planes and the exposures of the frames of a clip.

        number: number of the clip.
        files: spike files of the clip. No file is listed twice.
        frames: numbers of the frames of the clip among the frames of all clips.

        Test: test_a_record_gives_the_same_clips_as_the_files
        """
        first, end = first_and_end(self.first_files["spike"], number)
        planes = self.spike_columns["planes"][first:end].tolist()
        # A clip has a file for each frame, or one file for all frames.
        is_one_file = len(files) < len(frames)

        # Frames with equal exposures share one row: 11 numbers in the column "rows", the fields of
        # `Row`, and a number in the column "centers". `row_of_frame` is the index of each frame's
        # row.
        row_of_frame = self.spike_columns["exposures"][frames.start : frames.stop]  # (frames,)
        all_rows = by_row(self.spike_columns["rows"])  # (different rows, 11)
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

        Clips have the same form if their sizes, their numbers of sharp instants and their spike
        settings are equal. If you check a new property with `one_of_each_form` (clip_lists.py), add
        the property here. If it were missing, a clip that differs only in this property would not
        be checked.
        """
        # A property is an array with a number for each clip, (clips,). `sizes` has four properties:
        # height and width of lq, height and width of gt.
        properties = list(self.sizes.T)
        if "gt_instants" in self.kinds:
            instants_per_frame = self.file_counts["gt_instants"] // self.frame_counts
            properties.append(instants_per_frame)
        if self.source.own_spikes:
            properties.append(self._numbers_of_spike_settings())
        # A row is e.g. 720 1280 720 1280 7 0: four sizes, 7 instants, spike settings 0. `np.unique`
        # returns the first clip of each distinct row.
        rows = np.stack(properties, axis=1)  # (clips, properties)
        _, first_clips = np.unique(rows, axis=0, return_index=True)
        return sorted(first_clips.tolist())

    def _numbers_of_spike_settings(self) -> np.ndarray:
        """Return the number of the spike settings of each clip, (clips,).

        0 stands for the settings that most clips have. The clips in `own_spikes` have the numbers
        1, 2, 3, ..., because any two of them may differ.
        """
        # {clip: number of its settings}, only for the clips with settings of their own. E.g. {"b":
        # 1}, so the clips "a", "b", "c" get the numbers 0, 1, 0.
        own_numbers = {name: number for number, name in enumerate(self.source.own_spikes, 1)}
        return np.array([own_numbers.get(name, 0) for name in self.clip_names.read_all()])


def _exposure_of(row: Row, center: float, files: Sequence[str], own_file: int) -> Exposure:
    """Return the exposure that a row describes. `_row_of` (table_builder.py) makes the row.

    center: plane of the sharp frame, as a float, because the column "centers" has floats.
    files: spike files of the clip.
    own_file: index of the frame's own file in `files`.
    """
    pieces = []
    # step: -1 is the file before the own file, 0 the own file, and 1 the file after.
    for step, first, count in row.pieces():
        # With count 0, no plane is read from this file, so the file need not exist. E.g. the first
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

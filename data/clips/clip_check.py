"""The check of one clip: which files belong to which frame, and what is wrong with them.

`ClipCheck.run` gets the listed files of a clip and makes a `Clip`. It does so in these steps:

1. Is there a folder with files for each kind: blurry frames ("lq"), sharp frames ("gt"), several
   sharp frames of an exposure ("gt_instants"), spikes ("spike")?
2. Which file of each kind belongs to which frame? Files are matched by the number in their names.
   Missing frames, gaps in the numbers and wrong names are reported.
3. Which planes of the spike files belong to each frame?
4. Do the sizes of blurry frame, sharp frame and spike plane fit?

Everything that is wrong becomes a `Problem` in `problems`, so that one run can show all of it.
The check reads names, file sizes, and the header of the first image, but no whole file.

Words. A stem is a file name without its ending: "000047" of "000047.png". A plane is one binary
picture of the spike camera. A meta file is a list of the clips of a data set, with the number of
frames of each clip.

Callers are data/clips/manifest.py and data/clips/preflight.py (data sets), data/clips/kept.py
(stored results) and data/clips/user_clip.py (a user's own files).

What must stay: if `problems` is empty, the clip is complete. Every tuple of the `Clip` then has an
entry for each frame, and callers rely on this (test_a_fault_of_the_data_is_named_before_training
has one fault after the other). If you add a rule, raise FORMAT in data/clips/kept.py, because
results that are already stored were not checked for it. Free to change: how files are matched
inside, as long as the same files belong to the same frames.

Tests: tests/parts/data/test_manifest.py, tests/parts/data/test_preflight.py,
tests/parts/data/test_user_folders.py
"""

import itertools
import logging
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from data.cameras.frame_times import FrameTimes
from data.cameras.name_times import times_of_names
from data.cameras.spike_source import DatSpikes
from data.cameras.unknown_planes import UnknownPlanes
from data.clip import Clip, Exposure
from data.clips.listed_files import FileEntry, is_lmdb
from data.clips.pictures import image_size
from data.clips.source import Kind, Problem, Source
from data.spike.errors import SpikeFileError
from data.spike.formats import count_planes
from utils.errors import DataError, OptionError
from utils.files import are_values, natural_key, order_of

logger = logging.getLogger(__name__)

# A stem with a number: the text before the last number, the number, and the text after it. E.g.
# "a1_b2c" -> "a1_b", "2", "c". DOTALL: a name may have any character, also a line break.
_NUMBERED = re.compile(r"(?P<before>.*?)(?P<number>\d+)(?P<after>\D*)", re.DOTALL)
NO_NUMBER = -1  # stands for the number of a stem without digits

Size = tuple[int, int]  # height, width
Exposures = tuple[Exposure, ...]  # the planes of each frame
# Largest number of names in a message. More names would make the message unreadable.
MOST_NAMES = 5


class FrameKey(NamedTuple):
    """What a name says of its frame. Files with equal keys belong to one frame.

    E.g. "frame_0047" -> ("frame_", 47, ""). Leading zeros do not count, so 47.png and 000047.dat
    belong to one frame.

    If names are compared as a whole, `before` is the whole name, and `number` is NO_NUMBER.
    """

    before: str  # the text before the number, e.g. "frame_"
    number: int  # NO_NUMBER if the name has no number
    after: str  # the text after the number, e.g. ""


class _SpikesOfFrames(NamedTuple):
    """The spikes of the frames of a clip."""

    # The spike file of each frame. [] if there are no spikes, or if it is not clear which file
    # belongs to which frame.
    files: list[FileEntry]
    planes: tuple[int, ...]  # number of planes in each of these files
    exposures: Exposures  # the planes of each frame
    times: FrameTimes | None  # when the frames were taken; None if this is unknown or not needed


@dataclass
class ClipCheck:
    """The check of one clip. Call `run` once, then read `problems`.

    name: name of the clip. source: where its data set is, and how its spikes are read.
    files: {kind: {stem: file}}. The value of a kind is None if its folder is missing, and {} if the
    folder has no such file.
    sizes: sizes of lq and gt, if they are known. None: the sizes of the first frames are looked up.
    size_of: a function: path -> size of the picture in this file.

    The methods fill three fields as they go on:
    problems: what is wrong with the clip. Every step may add to it, and none removes from it.
    files_by_kind: `files` without the missing folders. `_find_files` fills it.
    stems: {kind: {frame: stem}}. `_find_stems` fills it. Two kinds of files are not matched by
    their names and have no entry: gt_instants, and one spike file for all frames.
    """

    name: str
    source: Source
    files: Mapping[str, dict[str, FileEntry] | None]
    sizes: tuple[Size, Size] | None
    size_of: Callable[[str], Size] = image_size
    problems: list[Problem] = field(default_factory=list)
    stems: dict[str, dict[FrameKey, str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.kinds: dict[str, Kind] = self.source.kinds()
        # Whether one spike file holds the planes of all frames.
        self.has_one_spike_file: bool = self.source.has_one_spike_file
        # How the spikes of this clip are read. `own_spikes` has the clips that dataset.json
        # describes one by one. `source.spikes` is for all other clips. None: there are no spikes.
        self.spikes: DatSpikes | None = self.source.own_spikes.get(self.name, self.source.spikes)
        self.files_by_kind: dict[str, dict[str, FileEntry]] = {}

    def run(self, meta_entry: Sequence[Any] | None) -> Clip | None:
        """Check the clip. Returns the clip, or None if no frame is complete.

        meta_entry: [number of frames, number of the first frame] of the meta file, e.g. [100, "0"].
        None: there is no meta file, so all frames of the folder belong to the clip.

        A returned clip is usable only if `problems` is empty, because it may lack frames otherwise.
        Each step adds its problems to the report. So the order of the steps is the order of the
        problems, and tests compare the order.
        """
        # Which file belongs to which frame?
        self._find_files()
        if self.problems:
            return None
        self._find_stems()
        # Go on with the complete frames, also if the clip lacks files, so that one run shows all
        # problems.
        keys = []
        for key in self._find_frames(meta_entry):
            if self._is_complete(key):
                keys.append(key)
        if not keys:
            return None
        paths = {kind: self._paths(kind, keys) for kind in self.stems}
        stems = tuple(self.stems["lq"][key] for key in keys)

        # The planes of each frame, the sharp instants of each frame, and the sizes.
        spikes = self._find_spikes(keys, stems)
        instants: tuple[str, ...] = ()
        if "gt_instants" in self.kinds:
            instants = self._find_instants(keys)
        if self.sizes:
            size, gt_size = self.sizes
        else:
            size, gt_size = self._find_sizes(paths)

        # `_find_spikes` may have replaced `self.spikes` by spikes with an assumed center. So read
        # `self.spikes` only here.
        return Clip(
            name=self.name,
            stems=stems,
            lq=paths["lq"],
            gt=paths.get("gt", ()),
            spike=tuple(file.path for file in spikes.files),
            planes=spikes.planes,
            size=size,
            gt_size=gt_size,
            gt_instants=instants,
            exposures=spikes.exposures,
            spikes=self.spikes,
            times=spikes.times,
        )

    def _is_complete(self, key: FrameKey) -> bool:
        """Return whether a frame has a file of each kind whose files are matched by names."""
        return all(key in stems for stems in self.stems.values())

    def _report(self, what: str, where: str, do: str = "") -> None:
        """Add a problem.

        where: a path, or a kind such as "lq". For a kind, the problem names the folder of the clip
        with the files of this kind, e.g. "/data/train/clip_a".
        do: advice, what the user should do. "" if `what` already makes this clear.
        """
        if where in self.kinds:
            root = self.kinds[where].root.rstrip("/")
            if self.source.is_user_clip:
                where = root  # a user's single clip has no folder within a root
            elif is_lmdb(root):
                where = f"{root}::{self.name}"
            else:
                where = os.path.join(root, self.name)
        self.problems.append(Problem(self.name, what, where, do))

    # ---- Files and frames -------------------------------------------------------------------
    #
    # What must stay: the order of the frames, because training samples are numbered in this order
    # (test_frames_are_in_the_order_of_their_numbers).

    def _find_files(self) -> None:
        """Fill `files_by_kind`. Report kinds without a folder or without a file."""
        for name, kind in self.kinds.items():  # e.g. "lq", Kind(root="/data/blur", ...)
            files = self.files[name]
            if files:
                self.files_by_kind[name] = files
            elif files is None:
                missing = f"folder {self.name}"
                if is_lmdb(kind.root):
                    missing = f"key {self.name}/<frame>"
                self._report(f"{name} has no {missing}", name)
            else:
                self._report(f"{name} holds no {' or '.join(kind.endings)} file", name)
        if not self.problems and not self.has_one_spike_file and "spike" in self.files_by_kind:
            self._report_unexpected_single_spike_file()

    def _report_unexpected_single_spike_file(self) -> None:
        """Report one spike file for many frames, if the options expect a file for each frame.

        The file probably holds the planes of the whole clip, and the user forgot the option
        spike.exposure. This message helps more than a message about missing spike files would.
        """
        frames = len(self.files_by_kind["lq"])
        spike_files = list(self.files_by_kind["spike"].values())
        if len(spike_files) != 1 or frames == 1:
            return
        what = (
            f"one spike file for {frames} frames: spike.exposure would say which planes are whose"
        )
        do = "restore the other spike files, or give spike.exposure (docs/data_format.md)"
        if self.source.is_user_clip:
            path = spike_files[0].path
            do += f"; --spike {path} takes it as one file that begins and ends with the clip"
        self._report(what, "spike", do)

    def _find_stems(self) -> None:
        """Fill `stems`. Report two files of one kind for a frame."""
        # In a data set, the files of a frame need only have the same number, e.g. 47.png and
        # 000047.dat. In two cases the whole names must be equal: in a user's own files, and in
        # names that are times, e.g. 432.033333, because the last digits are no frame number.
        compares_whole_names = self.source.is_user_clip or are_values(self.files_by_kind["lq"])
        for kind, files in self.files_by_kind.items():
            # Not matched: the instants of a frame have names <frame>_0, <frame>_1, ..., and one
            # spike file holds all frames.
            if kind == "gt_instants" or (kind == "spike" and self.has_one_spike_file):
                continue
            stems: dict[FrameKey, str] = {}
            for stem in files:
                if compares_whole_names:
                    key = FrameKey(before=stem, number=NO_NUMBER, after="")
                else:
                    key = frame_key(stem)
                # `setdefault` stores the stem. If another file has this key already, it stores
                # nothing and returns the stem of the other file.
                first_stem = stems.setdefault(key, stem)
                if first_stem != stem:
                    names = names_in_short([first_stem, stem])
                    self._report(f"{kind} has two files of one number: {names}", kind)
            self.stems[kind] = stems

    def _paths(self, kind: str, keys: Sequence[FrameKey]) -> tuple[str, ...]:
        """Return the path of one kind of file for each frame. keys: the frames."""
        files = self.files_by_kind[kind]
        stems = self.stems[kind]
        return tuple(files[stems[key]].path for key in keys)

    def _find_frames(self, meta_entry: Sequence[Any] | None) -> list[FrameKey]:
        """Return the frames of the clip in order. Report missing files, gaps and wrong names.

        meta_entry: [number of frames, number of the first frame], or None without a meta file.
        """
        # The name of each frame that has any file. Names may differ between kinds, e.g. 47.png in
        # "lq" and 000047.dat in "spike". Then the name of the first kind is taken: the name in lq,
        # unless lq lacks the file.
        name_of: dict[FrameKey, str] = {}
        for stems in self.stems.values():
            for key, stem in stems.items():
                name_of.setdefault(key, stem)  # changes nothing if the frame has a name
        # All frames that the clip should have. Without a meta file, these are all frames that have
        # any file.
        wanted_frames = set(name_of)
        if meta_entry is not None:
            wanted_frames = self._listed_frames(meta_entry)
        names = self._names_of_frames(wanted_frames, name_of)

        # All files of a kind may have other numbers or other names than lq. Then files seem to be
        # missing, but a report of missing files would mislead. So only the names are reported.
        if not all(self._is_complete(key) for key in wanted_frames):
            has_reported_other_numbers = self._report_other_numbers()
            if has_reported_other_numbers:
                # The clip has a problem now, so it is not used. These frames only serve the checks
                # that follow.
                return [key for key in self.stems["lq"] if self._is_complete(key)]
        self._report_missing(wanted_frames, names)
        # Sort the frames by time: "2" before "10", and names that are times by their value.
        # `order` is a function: name -> sort key.
        order = order_of(names.values())
        keys = sorted(wanted_frames, key=lambda key: order(names[key]))
        self._report_gaps(keys, names)
        self._report_names_unlike_template(keys)
        return keys

    def _listed_frames(self, meta_entry: Sequence[Any]) -> set[FrameKey]:
        """Return the frames that the meta file lists.

        meta_entry: [number of frames, number of the first frame], e.g. [100, "0"].
        """
        count, first_in_words = meta_entry
        first = int(first_in_words)
        # The frames of a septuplet (a clip of Vimeo-90K) are im1 ... im7. The list of Vimeo-90K
        # gives no first number, so 0 was taken.
        if first == 0 and self.source.septuplets:
            first = 1
        # The meta file has numbers only. If all names have the same text around the number, such as
        # "im", the keys of the listed frames get this text.
        texts_around_number = {(key.before, key.after) for key in self.stems["lq"]}
        before = after = ""
        if len(texts_around_number) == 1:
            [(before, after)] = texts_around_number
        return {FrameKey(before, number, after) for number in range(first, first + count)}

    def _names_of_frames(
        self, wanted_frames: set[FrameKey], name_of: Mapping[FrameKey, str]
    ) -> dict[FrameKey, str]:
        """Return the name of each wanted frame. name_of: names of the frames that have a file.

        A frame without a file gets a name. Its number has as many digits as the longest number with
        leading zeros. E.g. between "000046" and "000048", the missing frame is "000047".
        """
        digits = 1
        for stem in name_of.values():
            numbered = _NUMBERED.fullmatch(stem)
            if numbered and numbered["number"].startswith("0"):  # e.g. "000046"
                digits = max(digits, len(numbered["number"]))
        names = {}
        for key in wanted_frames:
            if key in name_of:
                names[key] = name_of[key]
            else:
                padded_number = f"{key.number:0{digits}d}"  # 47 with 6 digits: "000047"
                names[key] = f"{key.before}{padded_number}{key.after}"
        return names

    def _report_missing(self, wanted_frames: set[FrameKey], names: Mapping[FrameKey, str]) -> None:
        """Report frames of which a file is missing.

        wanted_frames: all frames of the clip. names: the name of each frame.
        """
        for kind, stems in self.stems.items():  # e.g. "lq", {key of a frame: stem}
            missing_keys = wanted_frames - stems.keys()
            missing = [names[key] for key in missing_keys]
            if not missing:
                continue
            missing.sort(key=natural_key)
            ending = self._shown_ending(kind)
            files = names_in_short(f"{name}{ending}" for name in missing)
            self._report(
                f"{kind} lacks {len(missing)} of {len(wanted_frames)} frames: {files}", kind
            )

    def _shown_ending(self, kind: str) -> str:
        """Return the ending with which a message shows missing files of a kind, e.g. ".png".

        The result is the ending of a file that exists. An LMDB has keys such as "clip_a/000046",
        without an ending. Then the result is the first ending that files of this kind may have.
        """
        a_file = next(iter(self.files_by_kind[kind].values()))
        _, ending = os.path.splitext(a_file.path)
        return ending or self.kinds[kind].endings[0]

    def _report_gaps(self, keys: Sequence[FrameKey], names: Mapping[FrameKey, str]) -> None:
        """Report jumps in the numbers of the frames, e.g. "000012-000014".

        keys: frames in the order of time. names: the name of each frame.
        """
        # If the texts around the numbers differ, the numbers need not follow one another.
        texts_around_number = {(key.before, key.after) for key in keys}
        if len(texts_around_number) != 1:
            return
        gaps = []
        for key, following in itertools.pairwise(keys):
            if following.number != key.number + 1:
                gaps.append(f"{names[key]}-{names[following]}")
        if gaps:
            self._report(f"frame numbers jump at {names_in_short(gaps)}", "lq")

    def _report_names_unlike_template(self, keys: Sequence[FrameKey]) -> None:
        """Report names that do not follow the option filename_tmpl, a format such as "08d".

        keys: the frames of the clip.
        """
        template = self.source.filename_tmpl
        if not template:
            return
        for kind, stems in self.stems.items():
            other_names = []
            for key in keys:
                if key not in stems:
                    continue  # `_report_missing` has reported this file
                stem = stems[key]
                # With the template "08d", the name "47" is wrong, because it should be "00000047".
                # Names that are more than a number do not follow a template, and are accepted.
                if stem.isdecimal() and format(int(stem), template) != stem:
                    other_names.append(stem)
            if other_names:
                shown = names_in_short(other_names)
                what = (
                    f"{len(other_names)} names of {kind} do not follow filename_tmpl {template!r}"
                )
                self._report(f"{what}: {shown}", kind)

    def _report_other_numbers(self) -> bool:
        """Report kinds of files that have other numbers, or other text around them, than lq.

        For example, lq has the files 0, 1, 2 and gt has 1, 2, 3, or lq has im1, im2 and gt has
        frame1, frame2. Then the user must rename files, and a message about missing files would
        mislead. Returns whether there are such kinds.
        """
        # If only the first number differs, all distances from the first number are equal. E.g. the
        # numbers 0, 1, 2 and the numbers 1, 2, 3 both have the distances [0, 1, 2].
        first_keys = {}  # {kind: key of its first frame}
        distances = {}  # {kind: distance of each number from the first number}
        for kind, stems in self.stems.items():
            # The keys of `stems` may be whole names, without a number (`_find_stems`). So make keys
            # with numbers from the names.
            keys = sorted(frame_key(stem) for stem in stems.values())
            first = keys[0]
            texts_around_number = {(key.before, key.after) for key in keys}
            # Names without a number, or with several texts, cannot be compared by distances.
            if len(texts_around_number) > 1 or first.number == NO_NUMBER:
                return False
            first_keys[kind] = first
            distances[kind] = [key.number - first.number for key in keys]
        other_kinds = []  # with the distances of lq, but another first number or another text
        for kind in self.stems:
            # If the distances differ, single files are missing. `_report_missing` reports them.
            if distances[kind] != distances["lq"]:
                return False
            if first_keys[kind] != first_keys["lq"]:
                other_kinds.append(kind)
        for kind in other_kinds:
            is_other_number = first_keys[kind].number != first_keys["lq"].number
            self._report_other_first_name(kind, is_other_number)
        return bool(other_kinds)

    def _report_other_first_name(self, kind: str, is_other_number: bool) -> None:
        """Report that the first file of a kind has another name than the first file of lq.

        is_other_number: True if the numbers in the names differ, False if the text around the
        numbers differs.
        """
        name = min(self.stems[kind].values(), key=natural_key)
        lq_name = min(self.stems["lq"].values(), key=natural_key)
        if is_other_number:
            what = f"{kind} counts from {name}, lq from {lq_name}"
        else:
            what = f"{kind} has the name {name} where lq has {lq_name}"
        # Whether both names mean the same frame, only the user knows.
        do = "give the files of one frame the same name, if both begin with the same frame"
        self._report(what, kind, do)

    # ---- Spikes -----------------------------------------------------------------------------
    #
    # What must stay: a frame never gets planes of another frame. If it is not certain which planes
    # belong to which frame, a problem is reported, e.g. for a file with fewer planes than the
    # other files (test_another_number_of_planes_within_a_clip_is_refused).

    def _find_spikes(self, keys: Sequence[FrameKey], stems: Sequence[str]) -> _SpikesOfFrames:
        """Return the spike files and the planes of the frames.

        If one file holds the planes of all frames, the times of the frames say which planes belong
        to which frame. The source knows the times of a user's clip, e.g. from a film. Otherwise the
        names of the frames are used, if the names are times such as "432.033333".

        keys: the frames in the order of time. stems: the name of each frame.
        """
        times = None
        if self.has_one_spike_file:
            times = self.source.times or times_of_names(stems)
        files = self._find_spike_files(keys)
        if not files or self.spikes is None:
            return _SpikesOfFrames(files, planes=(), exposures=(), times=times)
        planes, exposures = self._find_planes(files, self.spikes, times)
        return _SpikesOfFrames(files, planes, exposures, times)

    def _find_spike_files(self, keys: Sequence[FrameKey]) -> list[FileEntry]:
        """Return the spike file of each frame.

        A file with the planes of all frames is listed for each frame. Returns [] if there are no
        spikes, or if it is not clear which planes belong to which frame. keys: the frames.
        """
        # A file for each frame: the files were matched by their names.
        if "spike" in self.stems:
            stems = self.stems["spike"]
            return [self.files_by_kind["spike"][stems[key]] for key in keys]
        if not self.has_one_spike_file:
            return []

        # One file for all frames. Its first plane belongs to the first frame of the folder. If a
        # meta file lists only later frames, the planes would go to wrong frames, so this is
        # reported. `order` is a function: name -> sort key.
        files = list(self.files_by_kind["spike"].values())
        lq_stems = self.stems["lq"]
        order = order_of(lq_stems.values())
        first_of_folder = min(lq_stems, key=lambda key: order(lq_stems[key]))
        if len(files) > 1:
            shown = names_in_short(self.files_by_kind["spike"])
            what = f"{len(files)} spike files: {shown}; with spike.exposure a clip has one"
            self._report(what, "spike")
        elif keys[0] != first_of_folder:
            what = (
                "the first listed frame is not the first of the folder, from which spike.exposure "
                "counts"
            )
            self._report(what, "lq")
        # Any problem, e.g. a missing frame, may shift the planes of all later frames. So no planes
        # are assigned then. Problems of earlier steps count as well.
        if self.problems:
            return []
        return files * len(keys)

    def _find_planes(
        self, files: list[FileEntry], spikes: DatSpikes, times: FrameTimes | None
    ) -> tuple[tuple[int, ...], Exposures]:
        """Return the number of planes in the file of each frame, and the planes of each frame.

        files: the spike file of each frame. spikes: how these files are read.
        times: times of the frames, if one file holds the planes of all frames.
        """
        planes = self._count_planes(files, spikes)
        if planes and not self.has_one_spike_file and not self.source.is_user_clip:
            self._report_other_lengths(planes, last=files[-1], spikes=spikes)

        exposures: Exposures = ()
        if not self.problems:
            planes_of_paths = [(file.path, count) for file, count in planes.items()]
            # DataError and OptionError are reported as a problem of the clip.
            try:
                exposures = self._exposures(planes_of_paths, len(files), spikes, times)
            except (DataError, OptionError) as e:
                do = e.do
                # `UnknownPlanes` proposes the exposures of every frame of the clip. The proposals
                # for many clips would be too long for a table of problems.
                if isinstance(e, UnknownPlanes):
                    if self.source.is_user_clip:
                        raise
                    do = "give spike.exposure a row [start, length] for each frame"
                self._report(f"{e.what}; expected {e.expected}", files[0].path, do)
        # A file of a wrong size has no entry in `planes`. It gets 0, and a problem was reported.
        return tuple(planes.get(file, 0) for file in files), exposures

    def _count_planes(self, files: Sequence[FileEntry], spikes: DatSpikes) -> dict[FileEntry, int]:
        """Return {spike file: its number of planes}, in the order of the frames.

        A file of a wrong size is reported and left out. files: the spike file of each frame.
        """
        planes: dict[FileEntry, int] = {}
        for file in dict.fromkeys(files):  # a file may hold several frames; count it once
            try:
                count = count_planes(file.path, spikes.geometry, spikes.remainder, file.size)
                planes[file] = count
            except SpikeFileError as e:
                # The problems of a data set are shown together in a table. A user's single clip
                # needs no table, so its error is raised at once.
                if self.source.is_user_clip:
                    raise
                self._report(f"{e.what}; {e.expected}", file.path, e.do)
        return planes

    def _report_other_lengths(
        self, planes: Mapping[FileEntry, int], last: FileEntry, spikes: DatSpikes
    ) -> None:
        """Report files that do not have as many planes as the other files.

        planes: {file: its number of planes}. spikes: how these files are read.
        last: the file of the last frame. In a clip that was made from a video, this file may have
        fewer planes, because no planes can be interpolated after the last frame of the video.
        """
        usual_count = most_frequent(planes.values())
        # dataset.json may say how many planes a file has, and how many the last file has at least.
        # Otherwise `usual_count` is expected of every file.
        expected, fewest_in_last = spikes.info.planes_of(self.name, usual_count)
        for file, count in planes.items():
            is_accepted_last = file is last and fewest_in_last <= count <= expected
            if count != expected and not is_accepted_last:
                need = expected * spikes.geometry.plane_bytes
                found = f"spike file has {count} planes ({file.size} bytes)"
                self._report(f"{found}, expected {expected} ({need} bytes)", file.path)

    def _exposures(
        self,
        planes_of_paths: list[tuple[str, int]],
        frames: int,
        spikes: DatSpikes,
        times: FrameTimes | None,
    ) -> Exposures:
        """Return the planes of each frame.

        planes_of_paths: (path, number of planes) of each spike file.
        frames: number of frames.
        spikes: how these files are read.
        times: times of the frames, if one file holds the planes of all frames.

        A user's spikes may come without the plane of the sharp frame (`center`). Then a center is
        assumed, and a warning says which. In this case `self.spikes` is replaced, and `run` puts
        the new value into the clip. A center that the user gives is never replaced: if it does not
        fit, the error says so. Raises OptionError, DataError.
        """
        try:
            return spikes.exposures(self.name, planes_of_paths, frames, times)
        except OptionError:  # e.g. the center is unknown
            if not self.source.is_user_clip:
                raise
            length = self._planes_of_first_exposure(planes_of_paths, spikes, times)
            if self._is_center_given(spikes, length):
                raise
        center, used = self._assumed_center(length)
        logger.warning("spikes of %s: the plane of the sharp frame is unknown, %s", self.name, used)
        self.spikes = spikes.changed(center=center)
        return self.spikes.exposures(self.name, planes_of_paths, frames, times)

    def _planes_of_first_exposure(
        self,
        planes_of_paths: list[tuple[str, int]],
        spikes: DatSpikes,
        times: FrameTimes | None,
    ) -> int:
        """Return the number of planes of the first exposure. The others have about as many.

        planes_of_paths: (path, number of planes) of each spike file.
        spikes: how these files are read.
        times: times of the frames, if one file holds the planes of all frames.
        """
        _, planes = planes_of_paths[0]  # number of planes of the first file
        ranges = None
        if times:
            # In one file, the times give (first plane, plane after the last) of each frame.
            ranges = spikes.plane_ranges(self.name, planes, times)
        # The planes of frame 0 in this file.
        return spikes.timing.span(self.name, 0, planes, ranges).length

    def _is_center_given(self, spikes: DatSpikes, length: int) -> bool:
        """Return whether the user says the plane of the sharp frame, by an option or dataset.json.

        length: number of planes of an exposure.
        """
        # "gt" means: dataset.json names the plane. But dataset.json may lack it.
        if spikes.center == "gt":
            return spikes.info.gt_plane_of(self.name, length) is not None
        # If the user gives no center, `spikes` has the center of the training, which the weights
        # file holds. It belongs to other clips and says nothing of the user's spikes. So a center
        # that equals the center of the training counts as not given.
        trained = self.source.trained
        return trained is None or spikes.center != trained.get("center")

    def _assumed_center(self, length: int) -> tuple[int | float | str, str]:
        """Return the option `center` for a user's spikes without one, and words for the warning.

        If the exposures have as many planes as in training, this is the center of the training
        spikes. Otherwise it is "file", which means the middle plane. The words say which is used,
        e.g. "plane 20 is used, as in training".

        length: number of planes of an exposure.
        """
        # "gt_plane" is the plane of the sharp frame in the training, e.g. 20 of 40 planes. A plane
        # number means the same instant only in an exposure of equal length.
        trained = self.source.trained
        if trained and trained["planes"] == length and trained["gt_plane"] is not None:
            center = trained["gt_plane"]
            return center, f"plane {center} is used, as in training"
        return "file", "the middle one is used"

    # ---- Sharp frames and sizes -------------------------------------------------------------
    #
    # What must stay: each refusal. Without it, lq, gt and spikes of a sample would show different
    # pixels or different instants (test_an_even_number_of_instants_is_a_problem, and the case "no
    # multiple" of test_a_fault_of_the_data_is_named_before_training).

    def _find_instants(self, keys: Sequence[FrameKey]) -> tuple[str, ...]:
        """Return the paths of the sharp frames <frame>_0, <frame>_1, ... of each frame in turn.

        Each frame must have the same odd number K of sharp frames, because the middle one is gt.
        """
        # {frame: {number of the instant: path}}
        found: dict[FrameKey, dict[int, str]] = {key: {} for key in keys}
        for stem, file in self.files_by_kind["gt_instants"].items():
            frame, _, number = stem.rpartition("_")  # "000012_2" -> "000012", "_", "2"
            key = frame_key(frame)
            if number.isdecimal() and key in found:
                found[key][int(number)] = file.path
        self._report_numbers_of_instants(found)
        in_order = []
        for paths in found.values():
            in_order += [paths[number] for number in sorted(paths)]
        return tuple(in_order)

    def _report_numbers_of_instants(self, found: Mapping[FrameKey, Mapping[int, str]]) -> None:
        """Report an even K, or frames with other instants than 0 ... K - 1.

        found: {frame: {number of the instant: path}}.
        """
        # K is the number that most frames have. Every frame must have the instants 0 ... K - 1.
        K = most_frequent(len(paths) for paths in found.values())
        incomplete_frames = []  # their names
        for key, paths in found.items():
            if sorted(paths) != list(range(K)):
                incomplete_frames.append(self.stems["lq"][key])
        if K % 2 == 0:
            what = f"gt_instants has {K} files <frame>_0, ... for a frame of lq: the number "
            self._report(what + "must be odd", "gt_instants")
        elif incomplete_frames:
            count = len(incomplete_frames)
            what = f"gt_instants has other files than _0 ... _{K - 1} for {count} frames"
            shown = names_in_short(incomplete_frames, limit=3)
            self._report(f"{what}, such as {shown}", "gt_instants")

    def _find_sizes(self, paths: Mapping[str, tuple[str, ...]]) -> tuple[Size, Size]:
        """Return (height, width) of the first lq frame and of the first gt frame.

        Without gt, both are the size of lq. Reports a gt whose sides are not the sides of lq times
        a whole number, and an lq that does not fit the spikes.
        """
        # (height, width) each. They stay (0, 0) if a picture cannot be read, which is reported.
        lq = gt = (0, 0)
        try:
            lq = gt = self.size_of(paths["lq"][0])
            if "gt" in paths:
                gt = self.size_of(paths["gt"][0])
        except DataError as e:
            self._report(e.what, e.where, e.do)
            return lq, gt
        # gt must be larger than lq by a whole number, which is the same in height and width.
        gt_height, gt_width = gt
        height, width = lq
        scale_of_height, rest_of_height = divmod(gt_height, height)
        scale_of_width, rest_of_width = divmod(gt_width, width)
        if rest_of_height or rest_of_width or scale_of_height != scale_of_width:
            sizes = f"gt is {gt_height} x {gt_width}, lq {height} x {width}"
            self._report(f"{sizes}: no whole multiple", paths["gt"][0])
        try:
            if self.spikes:
                # Called only for its error: `grid` raises DataError if planes do not fit on frames
                # of this size.
                self.spikes.grid(lq)
        except DataError as e:
            self._report(e.what, paths["lq"][0], e.do)
        return lq, gt


def frame_key(stem: str) -> FrameKey:
    """Return the key of a stem.

    "47", "000047" -> ("", 47, ""); "frame_1" -> ("frame_", 1, ""); "x" -> ("x", NO_NUMBER, "").
    "a1_b2" -> ("a1_b", 2, ""), because the last number counts.
    """
    numbered = _NUMBERED.fullmatch(stem)
    if numbered is None:
        return FrameKey(before=stem, number=NO_NUMBER, after="")
    return FrameKey(numbered["before"], int(numbered["number"]), numbered["after"])


def most_frequent(values: Iterable[int]) -> int:
    """Return the value that comes most often. Of several such values, the first one."""
    [(value, _)] = Counter(values).most_common(1)
    return value


def names_in_short(names: Iterable[str], limit: int = MOST_NAMES) -> str:
    """Return the first `limit` names, separated by commas. If there are more, also their number.

    ["a", "b", "c"] with limit 2 -> "a, b, ... (3 in all)".
    """
    names = list(names)
    shown = ", ".join(names[:limit])
    if len(names) > limit:
        shown += f", ... ({len(names)} in all)"
    return shown

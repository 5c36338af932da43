"""The check of one clip: which files belong to which frame, and what is wrong with them."""

import itertools
import logging
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from data.cameras.frame_times import FrameTimes, times_of_names
from data.cameras.spike_info import UnknownPlanes
from data.cameras.spike_source import DatSpikes
from data.clip import Clip, Exposure
from data.clips.files import FileEntry, image_size, is_lmdb
from data.clips.source import Kind, Problem, Source
from data.spike.formats import SpikeFileError, count_planes
from utils.errors import DataError, OptionError
from utils.files import are_values, natural_key, order_of

logger = logging.getLogger(__name__)

_NUMBERED = re.compile(r"(.*?)(\d+)(\D*)", re.DOTALL)

Size = tuple[int, int]  # height, width
Exposures = tuple[Exposure, ...]


class FrameKey(NamedTuple):
    """What names a frame: its number, or -1, and the text before and after it.

    47.png and 000047.dat are one frame.
    """

    before: str
    number: int
    after: str


@dataclass
class ClipCheck:
    """The check of one clip. It fills `problems`.

    files: {kind: {stem: file}}; None in place of the files if the folder is missing.
    sizes: sizes of lq and gt, if they are known. None: the sizes of the first frame are read.
    size_of: returns the size of the picture in a file, see `image_size`.
    stems: {kind: {frame: stem}}, filled by `run`.
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
        self.one_file: bool = self.source.has_one_spike_file
        self.spikes: DatSpikes | None = self.source.own_spikes.get(self.name, self.source.spikes)
        # Without the missing folders, which are reported.
        self.found: dict[str, dict[str, FileEntry]] = {}

    def run(self, listed: Sequence[Any] | None) -> Clip | None:
        """Return the clip, or None if no frame is complete.

        listed: number of frames and number of the first one, of the meta file.
        """
        self._find_files()
        if self.problems:
            return None
        self._find_stems()
        # The remaining frames of an incomplete clip are checked as well, so that one run shows all
        # problems.
        keys = []
        for key in self._frames(listed):
            if all(key in stems for stems in self.stems.values()):
                keys.append(key)
        if not keys:
            return None

        paths = {kind: self._paths(kind, keys) for kind in self.stems}
        stems = tuple(self.stems["lq"][key] for key in keys)
        times = None
        if self.one_file:
            times = self.source.times or times_of_names(stems)
        spike_files = self._spike_files(keys)
        planes: tuple[int, ...] = ()
        exposures: Exposures = ()
        if spike_files and self.spikes:
            planes, exposures = self._planes(spike_files, self.spikes, times)
        instants: tuple[str, ...] = ()
        if "gt_instants" in self.kinds:
            instants = self._instants(keys)
        size, gt_size = self.sizes or self._sizes(paths)
        return Clip(
            name=self.name,
            stems=stems,
            lq=paths["lq"],
            gt=paths.get("gt", ()),
            spike=tuple(file.path for file in spike_files),
            planes=planes,
            size=size,
            gt_size=gt_size,
            gt_instants=instants,
            exposures=exposures,
            spikes=self.spikes,
            times=times,
        )

    def _report(self, what: str, where: str, do: str = "") -> None:
        """Add a problem.

        where: a path, or a kind of file for the folder of its files. do: see `Problem`.
        """
        if where in self.kinds:
            root = self.kinds[where].root.rstrip("/")
            if self.source.is_own:
                where = root
            elif is_lmdb(root):
                where = f"{root}::{self.name}"
            else:
                where = os.path.join(root, self.name)
        self.problems.append(Problem(self.name, what, where, do))

    # ---- Files and frames -------------------------------------------------------------------

    def _find_files(self) -> None:
        """Fill `found`. Report kinds without a folder or without a file."""
        for kind, place in self.kinds.items():
            files = self.files[kind]
            if files:
                self.found[kind] = files
            elif files is None:
                where = f"key {self.name}/<frame>" if is_lmdb(place.root) else f"folder {self.name}"
                self._report(f"{kind} has no {where}", kind)
            else:
                self._report(f"{kind} holds no {' or '.join(place.endings)} file", kind)
        if self.problems or self.one_file or "spike" not in self.found:
            return
        frames = len(self.found["lq"])
        if len(self.found["spike"]) == 1 < frames:
            what = f"one spike file for {frames} frames: spike.exposure would say which planes are "
            do = "restore the other spike files, or give spike.exposure (docs/data_format.md)"
            if self.source.is_own:
                path = next(iter(self.found["spike"].values())).path
                do += f"; --spike {path} takes it as one file that begins and ends with the clip"
            self._report(what + "whose", "spike", do)

    def _find_stems(self) -> None:
        """Fill `stems`. Report two files of one kind for a frame."""
        # The names of a user's files must be equal; those of a data set have equal numbers, unless
        # they are times.
        has_whole_names = self.source.is_own or are_values(self.found["lq"])
        for kind, files in self.found.items():
            # The instants of a frame have names of their own, and one spike file has all frames.
            if kind == "gt_instants" or (kind == "spike" and self.one_file):
                continue
            stems: dict[FrameKey, str] = {}
            for stem in files:
                key = FrameKey(stem, -1, "") if has_whole_names else frame_key(stem)
                other = stems.setdefault(key, stem)
                if other != stem:
                    what = f"{kind} has two files of one number: {some([other, stem])}"
                    self._report(what, kind)
            self.stems[kind] = stems

    def _paths(self, kind: str, keys: Sequence[FrameKey]) -> tuple[str, ...]:
        files = self.found[kind]
        stems = self.stems[kind]
        return tuple(files[stems[key]].path for key in keys)

    def _frames(self, listed: Sequence[Any] | None) -> list[FrameKey]:
        """Return the frames of the clip in order. Report missing files, gaps and wrong names.

        listed: see `run`.
        """
        # The name of each frame, by preference in lq, the first kind.
        known: dict[FrameKey, str] = {}
        for stems in reversed(self.stems.values()):
            known.update(stems)
        every = set(known)
        if listed is not None:
            every = self._listed_frames(listed)
        names = self._names(every, known)

        is_complete = all(every <= stems.keys() for stems in self.stems.values())
        if not is_complete and self._report_other_numbers():
            return [key for key in self.stems["lq"] if all(key in s for s in self.stems.values())]
        self._report_missing(every, names)
        order = order_of(names.values())
        keys = sorted(every, key=lambda key: order(names[key]))
        self._report_gaps(keys, names)
        self._report_odd_names(keys)
        return keys

    def _listed_frames(self, listed: Sequence[Any]) -> set[FrameKey]:
        """Return the frames that the meta file lists. listed: see `run`."""
        count = listed[0]
        # The frames of a septuplet are im1 ... im7, and the list does not say it.
        first = int(listed[1]) or int(self.source.septuplets)
        texts = {(key.before, key.after) for key in self.stems["lq"]}
        before, after = texts.pop() if len(texts) == 1 else ("", "")
        return {FrameKey(before, number, after) for number in range(first, first + count)}

    def _names(self, every: set[FrameKey], known: Mapping[FrameKey, str]) -> dict[FrameKey, str]:
        """Return the name of each frame. known: names of the frames that are there.

        The name of a missing frame has as many digits as the longest name with leading zeros.
        """
        digits = 1
        for stem in known.values():
            found = _NUMBERED.fullmatch(stem)
            if found and found[2].startswith("0"):
                digits = max(digits, len(found[2]))
        names = {}
        for key in every:
            names[key] = known.get(key) or f"{key.before}{key.number:0{digits}d}{key.after}"
        return names

    def _report_missing(self, every: set[FrameKey], names: Mapping[FrameKey, str]) -> None:
        """Report frames of which a file is missing. every: all frames of the clip."""
        for kind, stems in self.stems.items():
            missing = [names[key] for key in every - stems.keys()]
            if missing:
                first = next(iter(self.found[kind].values()))
                ending = os.path.splitext(first.path)[1] or self.kinds[kind].endings[0]
                files = some(f"{stem}{ending}" for stem in sorted(missing, key=natural_key))
                self._report(f"{kind} lacks {len(missing)} of {len(every)} frames: {files}", kind)

    def _report_gaps(self, keys: Sequence[FrameKey], names: Mapping[FrameKey, str]) -> None:
        """Report jumps in the numbers of frames that are named in one way."""
        if len({(key.before, key.after) for key in keys}) != 1:
            return
        gaps = []
        for key, following in itertools.pairwise(keys):
            if following.number != key.number + 1:
                gaps.append(f"{names[key]}-{names[following]}")
        if gaps:
            self._report(f"frame numbers jump at {some(gaps)}", "lq")

    def _report_odd_names(self, keys: Sequence[FrameKey]) -> None:
        """Report names that do not follow filename_tmpl."""
        template = self.source.filename_tmpl
        if not template:
            return
        for kind, stems in self.stems.items():
            odd = []
            for key in keys:
                stem = stems.get(key, "")
                if stem.isdecimal() and format(int(stem), template) != stem:
                    odd.append(stem)
            if odd:
                what = f"{len(odd)} names of {kind} do not follow filename_tmpl {template!r}: "
                self._report(what + some(odd), kind)

    def _report_other_numbers(self) -> bool:
        """Report kinds of file that number or name the same frames in another way than lq.

        Returns whether there are any. Then no single file is missing.
        """
        first_keys = {}
        distances = {}  # of the numbers from the first one
        for kind, stems in self.stems.items():
            keys = sorted(frame_key(stem) for stem in stems.values())
            first = keys[0]
            texts = {(key.before, key.after) for key in keys}
            if len(texts) > 1 or first.number < 0:
                return False
            first_keys[kind] = first
            distances[kind] = [key.number - first.number for key in keys]
        others = []
        for kind in self.stems:
            if distances[kind] != distances["lq"]:
                return False
            if first_keys[kind] != first_keys["lq"]:
                others.append(kind)
        for kind in others:
            name, lq_name = (min(self.stems[one].values(), key=natural_key) for one in (kind, "lq"))
            if first_keys[kind].number != first_keys["lq"].number:
                what = f"{kind} counts from {name}, lq from {lq_name}"
            else:
                what = f"{kind} has the name {name} where lq has {lq_name}"
            do = "give the files of one frame the same name, if both begin with the same frame"
            self._report(what, kind, do)
        return bool(others)

    # ---- Spikes -----------------------------------------------------------------------------

    def _spike_files(self, keys: Sequence[FrameKey]) -> list[FileEntry]:
        """Return the spike file of each frame; one file for all is listed for each of them.

        Returns none if it is not clear which planes of one file belong to which frame.
        """
        if "spike" in self.stems:
            stems = self.stems["spike"]
            return [self.found["spike"][stems[key]] for key in keys]
        if not self.one_file:
            return []
        files = list(self.found["spike"].values())
        lq = self.stems["lq"]
        order = order_of(lq.values())
        first = min(lq, key=lambda key: order(lq[key]))
        if len(files) > 1:
            shown = some(self.found["spike"])
            what = f"{len(files)} spike files: {shown}; with spike.exposure a clip has one"
            self._report(what, "spike")
        elif keys[0] != first:
            what = (
                "the first listed frame is not the first of the folder, from which spike.exposure "
                "counts"
            )
            self._report(what, "lq")
        if self.problems:
            return []
        return files * len(keys)

    def _planes(
        self, files: list[FileEntry], spikes: DatSpikes, times: FrameTimes | None
    ) -> tuple[tuple[int, ...], Exposures]:
        """Return the number of planes in the file of each frame, and the planes of each frame.

        times: of the frames, if one file holds the planes of all.
        """
        planes: dict[FileEntry, int] = {}
        for file in dict.fromkeys(files):
            try:
                count = count_planes(file.path, spikes.geometry, spikes.remainder, file.size)
                planes[file] = count
            except SpikeFileError as e:
                if self.source.is_own:
                    raise
                self._report(f"{e.what}; {e.expected}", file.path)
        if planes and not self.one_file and not self.source.is_own:
            self._report_other_lengths(planes, last=files[-1], spikes=spikes)

        exposures: Exposures = ()
        if not self.problems:
            known = [(file.path, count) for file, count in planes.items()]
            try:
                exposures = self._exposures(known, len(files), spikes, times)
            except (DataError, OptionError) as e:
                if self.source.is_own and isinstance(e, UnknownPlanes):
                    raise  # with the exposures that it proposes
                self._report(f"{e.what}; expected {e.expected}", files[0].path)
        return tuple(planes.get(file, 0) for file in files), exposures

    def _report_other_lengths(
        self, planes: Mapping[FileEntry, int], last: FileEntry, spikes: DatSpikes
    ) -> None:
        """Report files that do not have as many planes as the others.

        The last file may lack the last interpolated planes.
        """
        usual = Counter(planes.values()).most_common(1)[0][0]
        expected, fewest = spikes.info.planes_of(self.name, usual)
        for file, count in planes.items():
            is_short_last = file is last and fewest <= count <= expected
            if count != expected and not is_short_last:
                need = expected * spikes.geometry.plane_bytes
                found = f"spike file has {count} planes ({file.size} bytes)"
                self._report(f"{found}, expected {expected} ({need} bytes)", file.path)

    def _exposures(
        self,
        known: list[tuple[str, int]],
        frames: int,
        spikes: DatSpikes,
        times: FrameTimes | None,
    ) -> Exposures:
        """Return the planes of each frame. known: path and planes of each file.

        If nobody gives the plane of the sharp frame in a user's spikes, the plane of the training
        is used, or the middle one. Raises OptionError, DataError.
        """
        try:
            return spikes.exposures(self.name, known, frames, times)
        except OptionError:
            if not self.source.is_own:
                raise
        _, planes = known[0]
        shares = spikes.shares(self.name, planes, times) if times else None
        length = spikes.timing.span(self.name, 0, planes, shares).length
        trained = self.source.trained
        if trained and trained["planes"] == length and trained["gt_plane"] is not None:
            center = trained["gt_plane"]
            used = f"plane {center} is used, as in training"
        else:
            center = "file"
            used = "the middle one is used"
        logger.warning("spikes of %s: the plane of the sharp frame is unknown, %s", self.name, used)
        self.spikes = spikes.changed(center=center)
        return self.spikes.exposures(self.name, known, frames, times)

    # ---- Sharp frames and sizes -------------------------------------------------------------

    def _instants(self, keys: Sequence[FrameKey]) -> tuple[str, ...]:
        """Return the sharp frames <frame>_0, <frame>_1, ... of each frame, one after the other.

        There are as many for each frame, an odd number K. The middle one is gt.
        """
        found: dict[FrameKey, dict[int, str]] = {key: {} for key in keys}
        for stem, file in self.found["gt_instants"].items():
            frame, _, number = stem.rpartition("_")
            if number.isdecimal() and frame_key(frame) in found:
                found[frame_key(frame)][int(number)] = file.path

        count = Counter(map(len, found.values())).most_common(1)[0][0]  # K
        odd = []
        for key, paths in found.items():
            if sorted(paths) != list(range(count)):
                odd.append(self.stems["lq"][key])
        if count % 2 == 0:
            what = f"gt_instants has {count} files <frame>_0, ... for a frame of lq: the number "
            self._report(what + "must be odd", "gt_instants")
        elif odd:
            what = f"gt_instants has other files than _0 ... _{count - 1} for {len(odd)} frames"
            self._report(f"{what}, such as {some(odd, 3)}", "gt_instants")
        in_order = []
        for paths in found.values():
            in_order += [path for _, path in sorted(paths.items())]
        return tuple(in_order)

    def _sizes(self, paths: Mapping[str, tuple[str, ...]]) -> tuple[Size, Size]:
        """Return the sizes of the first lq and gt frame.

        Reports a gt that is no whole multiple of lq, and an lq that does not fit the spikes.
        """
        lq = gt = (0, 0)
        try:
            lq = gt = self.size_of(paths["lq"][0])
            if "gt" in paths:
                gt = self.size_of(paths["gt"][0])
        except DataError as e:
            self._report(e.what, e.where)
            return lq, gt
        is_multiple = gt[0] % lq[0] == 0 and gt[1] % lq[1] == 0
        if not is_multiple or gt[0] // lq[0] != gt[1] // lq[1]:
            sizes = f"gt is {gt[0]} x {gt[1]}, lq {lq[0]} x {lq[1]}"
            self._report(f"{sizes}: no whole multiple", paths["gt"][0])
        try:
            if self.spikes:
                self.spikes.grid(lq)
        except DataError as e:
            self._report(e.what, paths["lq"][0])
        return lq, gt


def frame_key(stem: str) -> FrameKey:
    """Return the key of a file name.

    "47", "000047" -> ("", 47, ""); "frame_1" -> ("frame_", 1, ""); "x" -> ("x", -1, "").
    """
    found = _NUMBERED.fullmatch(stem)
    if found is None:
        return FrameKey(stem, -1, "")
    return FrameKey(found[1], int(found[2]), found[3])


def some(names: Iterable[str], limit: int = 5) -> str:
    """Return the first names, and how many there are if there are more."""
    names = list(names)
    shown = ", ".join(names[:limit])
    if len(names) > limit:
        shown += f", ... ({len(names)} in all)"
    return shown

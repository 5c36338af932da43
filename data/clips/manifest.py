"""From the roots of a dataset to the records of its clips, with every check that names and sizes alone allow.

Layouts: <root>/<clip>/{blur,sharp,spike}/<frame>, as GoPro is published, or <root>/<clip>/<frame> with one root
per kind of file, as in KAIR. Each root may have either layout.
"""

import hashlib
import itertools
import logging
import os
import re
import reprlib
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from data.cameras.frame_times import FrameTimes, times_of_names
from data.cameras.spike_info import UnknownPlanes
from data.cameras.spike_source import DatSpikes
from data.clip import Clip, Exposure, checked_name
from data.clips.files import (
    PARTS,
    FileEntry,
    Listing,
    image_size,
    is_lmdb,
    list_root,
    read_bytes,
)
from data.spike.formats import FORMATS, SpikeFileError, count_planes
from utils.errors import DataError, OptionError, address_of
from utils.files import natural_key
from utils.image import IMAGE_SUFFIXES
from utils.user_path import advice_on

logger = logging.getLogger(__name__)

# KAIR brings these lists of whole training sets along; path in its option files -> number of clips.
KAIR_LISTS = {
    f"data/meta_info/meta_info_{name}_GT.txt": clips
    for name, clips in (("REDS", 270), ("DVD_train", 61), ("GoPro_train", 22), ("DAVIS_train", 90))
}
# REDS training clips that a val_partition keeps for validation.
HELD_OUT = {
    "REDS4": frozenset(("000", "011", "015", "020")),
    "official": frozenset(map(str, range(240, 270))),
}
# A line of a meta file. The shape may contain blanks, "(720,1280,3)" or "(720, 1280, 3)"; S-VRT writes 0 instead.
_LINE = re.compile(r"(\S+)\s+(\d{1,7})\s+(?:\(.*\)|\d+(?=\s))(?:\s+(\d{1,18}))?", re.ASCII)
# A clip of more frames is an error of the list: 9 hours at 30 frames a second.
MOST_FRAMES = 1_000_000
_FORM = "<clip> <frames> <shape or 0> <first frame>; after a shape the first frame may be left out"
_NUMBERED = re.compile(r"(.*?)(\d+)(\D*)", re.DOTALL)

SAME_FILES = (
    "gt and lq are the same files, so a network would learn to change nothing: the sharp frames of "
    "the clip are also its blurry ones"
)
SAME_CONTENT = "the sharp frames of all clips are copies of the blurry ones"

FrameKey = tuple[
    str, int, str
]  # text before the number of a frame, the number, text after it; -1: no number


class Problem(NamedTuple):
    """One thing wrong with the data. do: the advice; "": restore the files, or remove the clip."""

    clip: str
    what: str
    where: str
    do: str = ""

    def __str__(self) -> str:
        return f"{self.clip}: {self.what}  [{self.where}]"


@dataclass(frozen=True)
class Source:
    """Where the clips are: the roots and names of a dataset section."""

    dataroot_lq: str
    dataroot_gt: str | None = None
    dataroot_gt_instants: str | None = None
    dataroot_spike: str | None = None
    lq_folder: str = "blur"
    meta_info_file: str | None = None
    filename_tmpl: str | None = None
    filename_ext: str = "png"
    other_images: bool = False  # where a clip has none with this ending, those with another
    spikes: DatSpikes | None = None
    # Of the clips that differ, see `DatasetInfo.of_clip`.
    own_spikes: dict[str, DatSpikes] = field(default_factory=dict)
    left_out: frozenset[str] = frozenset()  # clips in the folders that are not part of the data set
    # Whether lq and gt may be the same files: noise is added to lq, or they are other frames.
    may_share_frames: bool = False
    septuplets: bool = False  # Vimeo-90K: clips <a>/<b> of im1 ... im7, all of one size; only those listed are read
    part: str = (
        ""  # of one of several roots: its number and "/", which come before the names of its clips
    )
    is_own: bool = False  # the files of one clip of a user's, see data.clips.clip_reader.user_clip
    trained: dict[str, Any] | None = (
        None  # of a user's clip: the spikes in training, see `ClipDataset.spike_data`
    )
    # Of a user's clip: when its frames were taken. None: as the numbers in their names say.
    times: FrameTimes | None = None

    def kinds(self) -> dict[str, tuple[str, str, tuple[str, ...]]]:
        """Kind of file -> (root, folder within a clip, endings of the names in order of preference)."""
        others = IMAGE_SUFFIXES if self.other_images else ()
        images = tuple(dict.fromkeys((f".{self.filename_ext.lstrip('.')}".lower(), *others)))
        kinds = {
            "lq": (self.dataroot_lq, self.lq_folder, images),
            "gt": (self.dataroot_gt, "sharp", images),
            "gt_instants": (self.dataroot_gt_instants, "instants", images),
            "spike": (self.dataroot_spike, "spike", tuple(FORMATS)),
        }
        return {kind: place for kind, place in kinds.items() if place[0]}

    def roots(self) -> dict[str, str]:
        """Option key -> data root."""
        return {f"dataroot_{kind}": root for kind, (root, _, _) in self.kinds().items()}

    @property
    def has_one_spike_file(self) -> bool:
        """Whether the planes of all frames of a clip are in one file; a user's may be without spike.exposure."""
        is_own_file = (
            self.is_own and self.spikes is not None and not os.path.isdir(self.dataroot_spike)
        )
        return is_own_file or (self.spikes is not None and self.spikes.timing.is_one_file)

    @property
    def meta(self) -> str | None:
        """The list of clips; None without one, and where one of KAIR's is missing: the folders then replace it."""
        is_missing = self.meta_info_file in KAIR_LISTS and not os.path.exists(self.meta_info_file)
        return None if is_missing else self.meta_info_file

    def notes(self, clips: int) -> list[Problem]:
        """Warnings of clips that are left out or not listed. clips: how many are read."""
        found, gone = [], self.left_out
        if self.meta_info_file and not self.meta:
            what = f"the list of the clips is missing: all {clips} in the folders are used, KAIR's list has "
            found.append(
                Problem(
                    "meta_info_file",
                    f"{what}{KAIR_LISTS[self.meta_info_file]}",
                    self.meta_info_file,
                )
            )
        if gone and (
            gone := sorted(gone & (self.listed or list_source(self, ("lq",))["lq"]).keys())
        ):
            what = f"{len(gone)} of {clips + len(gone)} clips are left out, {', '.join(gone)}"
            found.append(
                Problem(
                    "val_partition",
                    f"{what}: KAIR trains on them, as null does here",
                    self.dataroot_lq,
                )
            )
        return found

    @cached_property
    def listed(self) -> dict[str, list[Any]] | None:
        """Clip -> [number of frames, number of the first one as written, else "0"], of the meta file; None without one.

        Raises DataError, naming the line.
        """
        if (path := self.meta) is None:
            return None
        try:
            lines = Path(path).read_text(encoding="utf-8-sig").splitlines()
        except (OSError, UnicodeDecodeError) as e:
            what = f"cannot read the meta file: {getattr(e, 'strerror', None) or 'it is not UTF-8 text'}"
            do = "correct meta_info_file" if isinstance(e, OSError) else "save it as UTF-8"
            do += (
                "" if self.septuplets else ", or set meta_info_file to null to use all folders"
            ) + address_of(path)
            raise DataError(what, path, "a text file with one line per clip", do) from e
        clips: dict[str, list[Any]] = {}
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            found = _LINE.fullmatch(line.strip())
            if not found or not 1 <= int(found[2]) <= MOST_FRAMES:
                shown = reprlib.repr(line)
                raise DataError(f"line {number} is {shown}", path, _FORM, "correct the line")
            name = checked_name(found[1], f"{path}, line {number}")
            if name in clips:
                raise DataError(
                    f"line {number} lists clip {name} again",
                    path,
                    "one line per clip",
                    "join the lines",
                )
            clips[name] = [int(found[2]), found[3] or "0"]
        if not clips:
            raise DataError(
                "the meta file lists no clip", path, "one line per clip", "correct meta_info_file"
            )
        return clips

    def wanted(self) -> str:
        """The files that every clip must have, in words."""
        *others, last = self.kinds()
        files = f"{', '.join(others)} and {last} file" if others else f"{last} file"
        if self.septuplets:
            return f"im1 ... im7 of every listed clip, each with its {files}{self.layout()}"
        return f"every frame with its {files}; docs/data_format.md shows the folders"

    def layout(self) -> str:
        """The files of this data set, one line for each kind of path, with an example of a name."""
        number = format(0, self.filename_tmpl) if self.filename_tmpl else "<frame>"
        clip, frame, more = (
            ("00001/0001", "im1", "... im7") if self.septuplets else ("<clip>", number, "")
        )
        lines = {}
        for kind, (root, folder, (ext, *_)) in self.kinds().items():
            name = f"{frame}_<instant>" if kind == "gt_instants" else frame
            key, inner = f"{clip}/{name}", f"{clip}/[{folder}/]{name}"
            if is_lmdb(root):
                lines[f"{root}/data.mdb"] = f"a file under each key {key} {more}"
                lines[f"{root}/meta_info.txt"] = (
                    f"a line for each key: {key}{ext} (<height>,<width>,3) 1"
                )
            else:
                lines[f"{root}/{inner if self.dataroot_spike else key}{ext}"] = more
        if self.meta:
            lines[self.meta] = f"a line for each clip: {clip} <frames> (<height>,<width>,3)"
        return "".join(f"\n    {path}  {what}".rstrip() for path, what in lines.items())


def raise_problems(
    found: Iterable[tuple[Source, Sequence[Problem]]],
    shown: int = 30,
    unreadable: Sequence[DataError] = (),
) -> None:
    """Raise one DataError with a table of the problems of all sources, or of the first `shown`, if there are any.

    unreadable: what is wrong with whole sources; it belongs to the same error.
    """
    found, errors = [(source, problems) for source, problems in found if problems], [*unreadable]
    sources, problems = (
        [source for source, _ in found],
        [problem for _, each in found for problem in each],
    )
    if problems:
        table = problems[:shown]
        width = max(len(problem.clip) for problem in table)
        rows = [
            f"\n    {row.clip:{width}} | {row.what}\n    {'':{width}} |   {row.where}"
            for row in table
        ]
        more = len(problems) - len(rows)
        lists = dict.fromkeys(
            f"the meta list {source.meta}" if source.meta else "the folders" for source in sources
        )
        advice = [problem.do for problem in problems if problem.do]
        if len(advice) < len(problems):
            advice.append(f"restore these files, or remove the clips from {' and '.join(lists)}")
        errors.append(DataError(
            f"{len(problems)} problem{'s' if len(problems) > 1 else ''} in the data:{''.join(rows)}"
            + (f"\n    ... and {more} more; scripts/doctor.py --data --opt FILE lists all" if more else ""),
            ", ".join(dict.fromkeys(root for source in sources for root in source.roots().values())),
            _joined(source.wanted() for source in sources),
            _joined(advice),
        ))  # fmt: skip
    if errors:
        raise joined_errors(errors) if len(errors) > 1 else errors[0]


def scan(source: Source) -> tuple[list[Clip], list[Problem]]:
    """The clips without problems, and the problems of the others. Reads names, sizes and the first image's header.

    Raises DataError where a whole root or the meta file is missing.
    """
    found, listed = list_source(source), source.listed
    names = sorted(set(listed or set().union(*found.values())) - source.left_out, key=natural_key)
    clips, problems = [], []
    for name in names:
        # With 64,612 clips, as in Vimeo-90K, reading a header of each at every start would take minutes.
        sizes = (clips[0].size, clips[0].gt_size) if source.septuplets and clips else None
        check = ClipCheck(
            name, source, {kind: listing.get(name) for kind, listing in found.items()}, sizes
        )
        clip = check.run(listed and listed[name])
        problems += check.problems
        if clip and not check.problems:
            clips.append(clip)
    # A network has one scale, so all clips must have the same number of gt pixels per lq pixel.
    usual = Counter(clip.scale for clip in clips).most_common(1)
    what = "gt is {} times as large as lq, that of most clips is {} times"
    odd = [clip for clip in clips if clip.scale != usual[0][0]]
    return clips, problems + [
        Problem(clip.name, what.format(clip.scale, usual[0][0]), clip.gt[0]) for clip in odd
    ]


def _refuse_parts_as_clips(kind: str, root: str, listing: Listing) -> None:
    """Refuse a root whose folders are blur, sharp or spike, which are never clips.

    Raises DataError, which names the folder that was probably meant.
    """
    folders = {name.split("/")[0] for name in listing}
    parts = sorted(folders & PARTS)
    if not parts:
        return
    is_clip = all(name in PARTS for name in listing)
    if is_clip:  # <clip>/blur/<frame>: the root is one clip
        meant = f"the folder above it, {os.path.dirname(os.path.abspath(root))}"
        found = "the folders of a single clip"
    else:  # blur/<clip>/<frame>: the root holds a root of each kind
        own = {"lq": "blur", "gt": "sharp", "gt_instants": "instants", "spike": "spike"}[kind]
        meant = f"the folder of its own kind, such as {os.path.join(root, own)}"
        found = "a folder for each kind of file"
    raise DataError(
        what=f"dataroot_{kind} holds {found}, {', '.join(parts)}, in place of clips",
        where=root,
        expected="a folder with one folder per clip",
        do=f"set dataroot_{kind} to {meant}",
    )


def same_files(source: Source, clips: Sequence[Clip]) -> list[Problem]:
    """Find clips whose blurry and sharp frames are the same files.

    Paths are compared after links are followed.
    """
    if source.may_share_frames or not source.dataroot_gt:
        return []
    problems = []
    for clip in clips:
        if os.path.realpath(clip.lq[0]) == os.path.realpath(clip.gt[0]):
            do = f"correct dataroot_gt, dataroot_lq or lq_folder ({source.lq_folder})"
            problems.append(Problem(clip.name, SAME_FILES, clip.lq[0], do))
    return problems


def have_same_content(source: Source, clips: Sequence[Clip]) -> bool:
    """Whether the first and last sharp frame of each clip is a copy of its blurry frame."""
    if source.may_share_frames or not source.dataroot_gt or not clips:
        return False
    for clip in clips:
        for frame in {0, len(clip) - 1}:
            if read_bytes(clip.lq[frame]) != read_bytes(clip.gt[frame]):
                return False
    return True


def list_source(source: Source, kinds: Collection[str] | None = None) -> dict[str, Listing]:
    """Kind of file, see `Source.kinds` -> the files below its root, of these kinds; None: of all.

    Raises one DataError for all roots, and the meta file, that cannot be read; it shows the layout of the data set.
    """
    found, names, errors = {}, None, []
    try:
        listed = source.listed
        names = listed if source.septuplets else None
    except DataError as e:
        errors.append(e)
    for kind, place in source.kinds().items():
        if kinds is None or kind in kinds:
            try:
                found[kind] = list_root(
                    *place, kind == "spike" and source.has_one_spike_file, names
                )
                _refuse_parts_as_clips(kind, place[0], found[kind])
            except DataError as e:
                e.do += advice_on(place[0])
                errors.append(e)
    if errors:
        raise joined_errors(errors, source.layout()) from errors[0]
    return found


def joined_errors(errors: Sequence[DataError], layout: str = "") -> DataError:
    """One error for several, which says nothing twice. layout: lines to add to what is expected."""
    what, where, expected, do = (
        _joined(getattr(e, part) for e in errors) for part in ("what", "where", "expected", "do")
    )
    return DataError(what, where, expected + layout, do)


def _joined(texts: Iterable[str]) -> str:
    """Their first lines as one, then the other lines: those of a layout."""
    parts = [text.partition("\n")[::2] for text in texts]
    pieces = dict.fromkeys(piece for first, _ in parts for piece in first.split("; "))
    return "; ".join(pieces) + "".join(dict.fromkeys(f"\n{rest}" for _, rest in parts if rest))


def digest(listings: dict[str, Listing]) -> str:
    """16 hex digits that change with the name, size or time of change of any file."""
    table = hashlib.sha256()
    for kind, listing in sorted(listings.items()):
        for clip, files in sorted(listing.items()):
            for stem, file in sorted(files.items()):
                table.update(f"{kind}/{clip}/{stem} {file.size} {file.mtime_ns}\n".encode())
    return table.hexdigest()[:16]


@dataclass
class ClipCheck:
    """The check of one clip. files: kind -> stem -> file, None where the folder is missing. Fills `problems`.

    sizes: of lq and gt, where they are known; None: those of the first frame are read.
    """

    name: str
    source: Source
    files: dict[str, dict[str, FileEntry] | None]
    sizes: tuple[tuple[int, int], tuple[int, int]] | None
    problems: list[Problem] = field(default_factory=list)
    # kind -> frame -> stem: 47.png and 000047.dat are one frame
    stems: dict[str, dict[FrameKey, str]] = field(default_factory=dict)

    def run(self, listed: Sequence[Any] | None) -> Clip | None:
        """The clip, None where no frame is complete. listed: number of frames and first frame, of the meta file."""
        self.kinds, one_file = self.source.kinds(), self.source.has_one_spike_file
        self.spikes = self.source.own_spikes.get(self.name, self.source.spikes)
        for kind, (root, _, suffixes) in self.kinds.items():
            if self.files[kind] is None:
                missing = f"key {self.name}/<frame>" if is_lmdb(root) else f"folder {self.name}"
                self._report(f"{kind} has no {missing}", kind)
            elif not self.files[kind]:
                self._report(f"{kind} holds no {' or '.join(suffixes)} file", kind)
        if (
            not self.problems
            and not one_file
            and len(self.files.get("spike", ())) == 1 < len(self.files["lq"])
        ):
            what = f"one spike file for {len(self.files['lq'])} frames: spike.exposure would say which planes are whose"
            do = "restore the other spike files, or give spike.exposure (docs/data_format.md)"
            if self.source.is_own:
                path = next(iter(self.files["spike"].values())).path
                do += f"; --spike {path} takes it as one file that begins and ends with the clip"
            self._report(what, "spike", do)
        if self.problems:
            return None
        for kind in self.kinds:
            if kind == "gt_instants" or (kind == "spike" and one_file):
                continue
            self.stems[kind] = {}
            for stem in self.files[kind]:
                other = self.stems[kind].setdefault(
                    (stem, -1, "") if self.source.is_own else _frame_key(stem), stem
                )
                if other != stem:
                    self._report(
                        f"{kind} has two files of one number: {_some([other, stem])}", kind
                    )
        # The remaining frames of an incomplete clip are checked as well, so that one run shows all problems.
        keys = [
            key
            for key in self._frames(listed)
            if all(key in stems for stems in self.stems.values())
        ]
        if not keys:
            return None
        entries = {
            kind: [self.files[kind][stems[key]] for key in keys]
            for kind, stems in self.stems.items()
        }
        if one_file:  # once for every frame; of none where it is not clear which planes are whose
            files = list(self.files["spike"].values())
            if len(files) > 1:
                what = f"{len(files)} spike files: {_some(self.files['spike'])}; with spike.exposure a clip has one"
                self._report(what, "spike")
            elif keys[0] != min(
                self.stems["lq"], key=lambda key: natural_key(self.stems["lq"][key])
            ):
                what = "the first listed frame is not the first of the folder, from which spike.exposure counts"
                self._report(what, "lq")
            entries["spike"] = [] if self.problems else files * len(keys)
        stems = tuple(self.stems["lq"][key] for key in keys)
        times = None
        if one_file and self.source.times is None:
            times = times_of_names(stems)
        elif one_file:
            times = self.source.times
        planes, exposures = (), ()
        if entries.get("spike"):
            planes, exposures = self._spikes(entries["spike"], times)
        paths = {kind: tuple(entry.path for entry in found) for kind, found in entries.items()}
        paths["gt_instants"] = self._instants(keys) if "gt_instants" in self.kinds else ()
        lq, gt, spike, instants = (
            paths.get(kind, ()) for kind in ("lq", "gt", "spike", "gt_instants")
        )
        sizes = self.sizes or self._sizes(paths)
        return Clip(
            self.name, stems, lq, gt, spike, planes, *sizes, instants, exposures, self.spikes,
            times=times,
        )  # fmt: skip

    def _report(self, what: str, where: str, do: str = "") -> None:
        """where: a kind of file, for the folder of its files; or a path. do: see `Problem`."""
        if where in self.kinds:
            root = self.kinds[where][0].rstrip("/")
            where = f"{root}::{self.name}" if is_lmdb(root) else os.path.join(root, self.name)
            where = root if self.source.is_own else where
        self.problems.append(Problem(self.name, what, where, do))

    def _frames(self, listed: Sequence[Any] | None) -> list[FrameKey]:
        """The frames of the clip in order. Reports missing files, gaps and wrong names."""
        known = {
            key: stem for stems in reversed(self.stems.values()) for key, stem in stems.items()
        }
        every = set(known)
        if listed is not None:
            count, first = (
                listed[0],
                int(listed[1]) or int(self.source.septuplets),
            )  # im1 is the first of a septuplet
            affixes = {(before, after) for before, _, after in self.stems["lq"]}
            before, after = affixes.pop() if len(affixes) == 1 else ("", "")
            every = {(before, first + i, after) for i in range(count)}
        numbers = [found[2] for stem in known.values() if (found := _NUMBERED.fullmatch(stem))]
        digits = max((len(number) for number in numbers if number.startswith("0")), default=1)
        names = {key: known.get(key) or f"{key[0]}{key[1]:0{digits}d}{key[2]}" for key in every}
        if self._report_other_numbers():
            return [key for key in self.stems["lq"] if all(key in s for s in self.stems.values())]
        for kind, stems in self.stems.items():
            missing = sorted((names[key] for key in every - stems.keys()), key=natural_key)
            if missing:
                suffix = (
                    os.path.splitext(next(iter(self.files[kind].values())).path)[1]
                    or self.kinds[kind][2][0]
                )
                files = _some(f"{stem}{suffix}" for stem in missing)
                self._report(f"{kind} lacks {len(missing)} of {len(every)} frames: {files}", kind)
        keys = sorted(every, key=lambda key: natural_key(names[key]))
        if len({(before, after) for before, _, after in keys}) == 1:
            gaps = [
                f"{names[a]}-{names[b]}" for a, b in itertools.pairwise(keys) if b[1] != a[1] + 1
            ]
            if gaps:
                self._report(f"frame numbers jump at {_some(gaps)}", "lq")
        template = self.source.filename_tmpl
        for kind, stems in self.stems.items() if template else ():
            found = [stems[key] for key in keys if key in stems]
            odd = [
                stem for stem in found if stem.isdecimal() and format(int(stem), template) != stem
            ]
            if odd:
                self._report(
                    f"{len(odd)} names of {kind} do not follow filename_tmpl {template!r}: {_some(odd)}",
                    kind,
                )
        return keys

    def _report_other_numbers(self) -> bool:
        """Report kinds of file that number or name the same frames in another way.

        Returns whether there are any. Then no single file is missing.
        """
        ways = {}
        for kind, stems in self.stems.items():
            keys = sorted(_frame_key(stem) for stem in stems.values())
            first = keys[0][1]
            ways[kind] = [key[1] - first for key in keys], (keys[0][0], first, keys[0][2])
            if len({(before, after) for before, _, after in keys}) > 1 or first < 0:
                return False
        distances, firsts = ways["lq"]
        others = []
        for kind, (numbers, first) in ways.items():
            if numbers != distances:
                return False
            if first != firsts:
                others.append(kind)
        for kind in others:
            shown = {one: min(self.stems[one].values(), key=natural_key) for one in ("lq", kind)}
            if ways[kind][1][1] != firsts[1]:
                what = f"{kind} counts from {shown[kind]}, lq from {shown['lq']}"
            else:
                what = f"{kind} has the name {shown[kind]} where lq has {shown['lq']}"
            do = "give the files of one frame the same name, if both begin with the same frame"
            self._report(what, kind, do)
        return bool(others)

    def _spikes(
        self, files: list[FileEntry], times: FrameTimes | None
    ) -> tuple[tuple[int, ...], tuple[Exposure, ...]]:
        """The number of planes in the file of each frame, and the planes of each frame.

        All files must have as many planes, but the last one may lack the last interpolated planes.
        times: of the frames, where one file holds the planes of all.
        """
        source, spikes = self.source, self.spikes
        planes: dict[FileEntry, int] = {}
        for file in dict.fromkeys(files):
            try:
                planes[file] = count_planes(file.path, spikes.geometry, spikes.remainder, file.size)
            except SpikeFileError as e:
                if source.is_own:
                    raise
                self._report(f"{e.what}; {e.expected}", file.path)
        if planes and not source.has_one_spike_file and not source.is_own:
            usual = Counter(planes.values()).most_common(1)[0][0]
            expected, fewest = spikes.info.planes_of(self.name, usual)
            for file, count in planes.items():
                if count != expected and not (file is files[-1] and fewest <= count <= expected):
                    need = expected * spikes.geometry.plane_bytes
                    what = f"spike file has {count} planes ({file.size} bytes), expected {expected} ({need} bytes)"
                    self._report(what, file.path)
        exposures = ()
        if not self.problems:
            try:
                known = [(file.path, count) for file, count in planes.items()]
                exposures = self._exposures(known, len(files), times)
            except (DataError, OptionError) as e:
                if source.is_own and isinstance(e, UnknownPlanes):
                    raise  # with the exposures that it proposes
                self._report(f"{e.what}; expected {e.expected}", files[0].path)
        return tuple(planes.get(file, 0) for file in files), exposures

    def _exposures(
        self, known: list[tuple[str, int]], frames: int, times: FrameTimes | None
    ) -> tuple[Exposure, ...]:
        """The planes of each frame. known: path and planes of each file. Raises OptionError, DataError."""
        source, spikes = self.source, self.spikes
        try:
            return spikes.exposures(self.name, known, frames, times)
        except OptionError:
            if not source.is_own:
                raise
        # Nobody gives the plane of the sharp frame: it is that of the training, else the middle one.
        shares = spikes.shares(self.name, known[0][1], times) if times else None
        length = spikes.timing.span(self.name, 0, known[0][1], shares).length
        plane = (
            source.trained["gt_plane"]
            if source.trained and source.trained["planes"] == length
            else None
        )
        spikes = spikes.changed(center="file" if plane is None else plane)
        self.spikes = spikes
        used = (
            "the middle one is used" if plane is None else f"plane {plane} is used, as in training"
        )
        logger.warning("spikes of %s: the plane of the sharp frame is unknown, %s", self.name, used)
        return spikes.exposures(self.name, known, frames, times)

    def _instants(self, keys: list[FrameKey]) -> tuple[str, ...]:
        """The sharp frames <frame>_0, <frame>_1, ... of each frame: an odd number K of them, the middle one is gt."""
        found: dict[FrameKey, dict[int, str]] = {key: {} for key in keys}
        for stem, file in self.files["gt_instants"].items():
            frame, _, number = stem.rpartition("_")
            if number.isdecimal() and _frame_key(frame) in found:
                found[_frame_key(frame)][int(number)] = file.path
        count = Counter(map(len, found.values())).most_common(1)[0][0]
        odd = [
            self.stems["lq"][key]
            for key, paths in found.items()
            if sorted(paths) != list(range(count))
        ]
        if count % 2 == 0:
            what = f"gt_instants has {count} files <frame>_0, ... for a frame of lq: the number must be odd"
            self._report(what, "gt_instants")
        elif odd:
            what = f"gt_instants has other files than _0 ... _{count - 1} for {len(odd)} frames"
            self._report(f"{what}, such as {_some(odd, 3)}", "gt_instants")
        return tuple(path for paths in found.values() for _, path in sorted(paths.items()))

    def _sizes(self, paths: dict[str, tuple[str, ...]]) -> tuple[tuple[int, int], tuple[int, int]]:
        """(lq size, gt size) of the first frame; gt must be a whole multiple of lq, and lq must fit the spikes."""
        lq = gt = (0, 0)
        try:
            lq = gt = image_size(paths["lq"][0])
            if "gt" in paths:
                gt = image_size(paths["gt"][0])
        except DataError as e:
            self._report(e.what, e.where)
            return lq, gt
        if gt[0] % lq[0] or gt[1] % lq[1] or gt[0] // lq[0] != gt[1] // lq[1]:
            self._report(
                f"gt is {gt[0]} x {gt[1]}, lq {lq[0]} x {lq[1]}: no whole multiple", paths["gt"][0]
            )
        try:
            if self.spikes:
                self.spikes.grid(lq)
        except DataError as e:
            self._report(e.what, paths["lq"][0])
        return lq, gt


def _frame_key(stem: str) -> FrameKey:
    """The key of a file name: "47", "000047" -> ("", 47, ""); "frame_1" -> ("frame_", 1, ""); "x" -> ("x", -1, "")."""
    found = _NUMBERED.fullmatch(stem)
    return (found[1], int(found[2]), found[3]) if found else (stem, -1, "")


def _some(names: Iterable[str], limit: int = 5) -> str:
    names = list(names)
    return ", ".join(names[:limit]) + (f", ... ({len(names)} in all)" if len(names) > limit else "")

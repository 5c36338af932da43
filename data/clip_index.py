"""Find the clips of a data set and check, from names and sizes alone, that every frame has all its files.

Layouts: <root>/<clip>/{blur,sharp,spike}/<frame>, as GoPro is published, or <root>/<clip>/<frame> with one root
per kind of file, as in KAIR. Each root may have either layout.
"""

from __future__ import annotations

import hashlib
import itertools
import os
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from data.clip import Clip, Exposure
from data.frame_io import picture_size
from data.instants import find_instants
from data.meta_file import KAIR_LISTS, read_meta
from data.names import FrameKey, digits_of, frame_key, frame_name
from data.roots import FileEntry, Listing, is_lmdb, list_root
from data.spike.formats import FORMATS, count_planes
from data.spike.stream import SpikeFileError
from data.spike_source import DatSpikes
from utils.errors import DataError, OptionError
from utils.files import natural_key

SHOWN_PROBLEMS = 30


@dataclass(frozen=True)
class Problem:
    """One thing wrong with the data."""

    clip: str
    what: str
    where: str

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
    spikes: DatSpikes | None = None
    left_out: frozenset[str] = frozenset()  # clips in the folders that are not part of the data set
    septuplets: bool = False  # Vimeo-90K: clips <a>/<b> of im1 ... im7, all of one size; only those listed are read

    def kinds(self) -> dict[str, tuple[str, str, tuple[str, ...]]]:
        """Kind of file -> (root, folder within a clip, file name extensions in order of preference)."""
        kinds = {"lq": (self.dataroot_lq, self.lq_folder, (self.filename_ext,))}
        if self.dataroot_gt:
            kinds["gt"] = (self.dataroot_gt, "sharp", (self.filename_ext,))
        if self.dataroot_gt_instants:
            kinds["gt_instants"] = (self.dataroot_gt_instants, "instants", (self.filename_ext,))
        if self.dataroot_spike:
            kinds["spike"] = (self.dataroot_spike, "spike", tuple(suffix.lstrip(".") for suffix in FORMATS))
        return kinds

    @property
    def has_one_spike_file(self) -> bool:
        """Whether the planes of all frames of a clip are in one file."""
        return self.spikes is not None and self.spikes.timing.is_one_file

    def listing(self, kind: str, names: Collection[str] | None = None) -> Listing:
        """The files of one kind; names: of these clips only."""
        single_files = kind == "spike" and self.has_one_spike_file
        return list_root(*self.kinds()[kind], single_files=single_files, names=names)

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
            found.append(Problem("meta_info_file", f"{what}{KAIR_LISTS[self.meta_info_file]}", self.meta_info_file))
        if gone and (gone := sorted(gone & (self.listed() or self.listing("lq")).keys())):
            what = f"{len(gone)} of {clips + len(gone)} clips are left out, {', '.join(gone)}"
            found.append(Problem("val_partition", f"{what}: KAIR trains on them, as null does here", self.dataroot_lq))
        return found

    def listed(self) -> dict[str, tuple[int, str]] | None:
        """Clip -> (number of frames, first frame) of the meta file; None without one. Raises DataError."""
        first = "1" if self.septuplets else "0"
        return read_meta(self.meta, first, is_required=self.septuplets) if self.meta else None

    def wanted(self) -> str:
        """The files that every clip must have, in words."""
        *others, last = self.kinds()
        files = f"{', '.join(others)} and {last} file" if others else f"{last} file"
        if self.septuplets:
            return f"im1 ... im7 of every listed clip, each with its {files}{self.layout()}"
        return f"every frame with its {files}; docs/data_format.md shows the folders"

    def choice(self) -> str:
        """What says which clips are part of the data set."""
        return f"the meta list {self.meta}" if self.meta else "the folders"

    def layout(self) -> str:
        """The files of this data set, one line for each kind of path, with an example of a name."""
        number = format(0, self.filename_tmpl) if self.filename_tmpl else "<frame>"
        clip, frame, more = ("00001/0001", "im1", "... im7") if self.septuplets else ("<clip>", number, "")
        lines = {}
        for kind, (root, folder, (ext, *_)) in self.kinds().items():
            name = f"{frame}_<instant>" if kind == "gt_instants" else frame
            key, inner = f"{clip}/{name}", f"{clip}/[{folder}/]{name}"
            if is_lmdb(root):
                lines[f"{root}/data.mdb"] = f"a file under each key {key} {more}"
                lines[f"{root}/meta_info.txt"] = f"a line for each key: {key}.{ext} (<height>,<width>,3) 1"
            else:
                lines[f"{root}/{inner if self.dataroot_spike else key}.{ext}"] = more
        if self.meta:
            lines[self.meta] = f"a line for each clip: {clip} <frames> (<height>,<width>,3)"
        return "".join(f"\n    {path}  {what}".rstrip() for path, what in lines.items())


def held_out(val_partition: str | None) -> frozenset[str]:
    """The REDS training clips that a partition keeps for validation: the four of REDS4, or the official 30."""
    official = tuple(f"{i:03d}" for i in range(240, 270))
    return frozenset({"REDS4": ("000", "011", "015", "020"), "official": official}.get(val_partition, ()))


def find_clips(source: Source) -> list[Clip]:
    """All clips of the source, ordered by name. Raises one DataError with every problem."""
    clips, problems = scan(source)
    if problems:
        raise problems_error(problems, [source])
    return clips


def problems_error(problems: Sequence[Problem], sources: Sequence[Source], shown: int | None = None) -> DataError:
    """One DataError with a table of all problems of these sources, or of the first `shown`."""
    table = problems[: SHOWN_PROBLEMS if shown is None else shown]
    width = max(len(problem.clip) for problem in table)
    rows = [f"\n    {found.clip:{width}} | {found.what}\n    {'':{width}} |   {found.where}" for found in table]
    more = len(problems) - len(rows)
    return DataError(
        f"{len(problems)} problem{'s' if len(problems) > 1 else ''} in the data:{''.join(rows)}"
        + (f"\n    ... and {more} more; scripts/doctor.py --data --opt FILE lists all" if more else ""),
        ", ".join(dict.fromkeys(root for source in sources for root, _, _ in source.kinds().values())),
        _joined_expected([source.wanted() for source in sources]),
        f"restore these files, or remove the clips from {' and '.join(dict.fromkeys(s.choice() for s in sources))}",
    )


def scan(source: Source) -> tuple[list[Clip], list[Problem]]:
    """The clips without problems, and the problems of the others. Reads names, sizes and the first image's header.

    Raises DataError where a whole root or the meta file is missing.
    """
    found = list_source(source)
    listed = source.listed()
    names = sorted(set(listed or set().union(*found.values())) - source.left_out, key=natural_key)
    clips, problems = [], []
    for name in names:
        # With 64,612 clips, as in Vimeo-90K, reading a header of each at every start would take minutes.
        sizes = (clips[0].size, clips[0].gt_size) if source.septuplets and clips else None
        check = _ClipCheck(name, source, {kind: listing.get(name) for kind, listing in found.items()}, sizes)
        clip = check.run(listed[name] if listed is not None else None)
        problems += check.problems
        if clip and not check.problems:
            clips.append(clip)
    return clips, problems + _check_scales(clips)


def list_source(source: Source, kinds: Collection[str] | None = None) -> dict[str, Listing]:
    """Kind of file, see `Source.kinds` -> the files below its root, of these kinds; None: of all.

    Raises one DataError for all roots, and the meta file, that cannot be read; it shows the layout of the data set.
    """
    found, names, errors = {}, None, []
    try:
        listed = source.listed()
        names = listed if source.septuplets else None
    except DataError as e:
        errors.append(e)
    for kind in source.kinds():
        if kinds is None or kind in kinds:
            try:
                found[kind] = source.listing(kind, names)
            except DataError as e:
                errors.append(e)
    if errors:
        raise joined_errors(errors, source.layout()) from errors[0]
    return found


def joined_errors(errors: Sequence[DataError], layout: str = "") -> DataError:
    """One error for several, which says nothing twice. layout: lines to add to what is expected."""
    what, where, do = (_joined([getattr(e, part) for e in errors]) for part in ("what", "where", "do"))
    return DataError(what, where, _joined_expected([e.expected for e in errors]) + layout, do)


def _joined(texts: Sequence[str]) -> str:
    return "; ".join(dict.fromkeys(piece for text in texts for piece in text.split("; ")))


def _joined_expected(texts: Sequence[str]) -> str:
    """The first lines as one, then the other lines: those of a layout."""
    parts = [text.partition("\n")[::2] for text in texts]
    return _joined([first for first, _ in parts]) + "".join(dict.fromkeys(f"\n{rest}" for _, rest in parts if rest))


def digest(listings: dict[str, Listing]) -> str:
    """16 hex digits that change with the name, size or time of change of any file."""
    table = hashlib.sha256()
    for kind, listing in sorted(listings.items()):
        for clip, files in sorted(listing.items()):
            for stem, file in sorted(files.items()):
                table.update(f"{kind}/{clip}/{stem} {file.size} {file.mtime_ns}\n".encode())
    return table.hexdigest()[:16]


class _ClipCheck:
    """The check of one clip. files: kind -> stem -> file, None where the folder is missing. Fills `problems`.

    sizes: of lq and gt, where they are known; None: those of the first frame are read.
    """

    def __init__(
        self,
        name: str,
        source: Source,
        files: dict[str, dict[str, FileEntry] | None],
        sizes: tuple[tuple[int, int], tuple[int, int]] | None = None,
    ) -> None:
        self.name, self.source, self.files, self.sizes = name, source, files, sizes
        self.kinds, self.problems = source.kinds(), []
        self.stems: dict[str, dict[FrameKey, str]] = {}  # kind -> frame -> stem

    def run(self, listed: tuple[int, str] | None) -> Clip | None:
        """The clip, None where no frame is complete. listed: number of frames and first frame, of the meta file."""
        for kind, (root, folder, exts) in self.kinds.items():
            if self.files[kind] is None:
                missing = f"key {self.name}/<frame>" if is_lmdb(root) else f"folder {self.name}"
                self._report(kind, f"{kind} has no {missing}")
            elif not self.files[kind]:
                what = f"{kind} holds no {' or '.join(f'.{ext}' for ext in exts)} file"
                self._report(kind, what, "" if self.source.septuplets else folder)
        one_file = self.source.has_one_spike_file
        if not self.problems and not one_file and len(self.files.get("spike", ())) == 1 < len(self.files["lq"]):
            what = f"one spike file for {len(self.files['lq'])} frames: spike.exposure would say which planes are whose"
            self._report("spike", what)
        if self.problems:
            return None
        by_frame = self.kinds.keys() - {"gt_instants", "spike" if one_file else ""}
        self.stems = {kind: self._frame_stems(kind) for kind in self.kinds if kind in by_frame}
        # The remaining frames of an incomplete clip are checked as well, so that one run shows all problems.
        keys = [key for key in self._frames(listed) if all(key in stems for stems in self.stems.values())]
        if not keys:
            return None
        entries = {kind: [self.files[kind][stems[key]] for key in keys] for kind, stems in self.stems.items()}
        paths = {kind: tuple(entry.path for entry in entries[kind]) for kind in self.stems}
        if one_file:
            entries["spike"] = self._check_one_file(keys)
            paths["spike"] = tuple(entry.path for entry in entries["spike"])
        if "gt_instants" in self.kinds:
            paths["gt_instants"], wrong = find_instants(self.files["gt_instants"], self.stems["lq"], keys)
            for what in wrong:
                self._report("gt_instants", what)
        planes = self._check_planes(entries["spike"]) if entries.get("spike") else ()
        exposures = self._exposures(entries["spike"], planes) if planes and not self.problems else ()
        size, gt_size = self.sizes or self._check_sizes(paths)
        stems = tuple(self.stems["lq"][key] for key in keys)
        gt, instants, spike = (paths.get(kind, ()) for kind in ("gt", "gt_instants", "spike"))
        return Clip(self.name, stems, paths["lq"], gt, spike, planes, size, gt_size, instants, exposures)

    def _report(self, kind: str, what: str, folder: str = "") -> None:
        root, inner = self.kinds[kind][0].rstrip("/"), [folder] if folder else []
        where = f"{root}::{self.name}" if is_lmdb(root) else os.path.join(root, self.name, *inner)
        self.problems.append(Problem(self.name, what, where))

    def _report_file(self, what: str, path: str) -> None:
        self.problems.append(Problem(self.name, what, path))

    def _frame_stems(self, kind: str) -> dict[FrameKey, str]:
        """Frame -> its stem in this kind of file: 47.png and 000047.dat are the same frame."""
        stems: dict[FrameKey, str] = {}
        for stem in self.files[kind]:
            other = stems.setdefault(frame_key(stem), stem)
            if other != stem:
                self._report(kind, f"{kind} has two files of one number: {_some([other, stem])}")
        return stems

    def _frames(self, listed: tuple[int, str] | None) -> list[FrameKey]:
        """The frames of the clip in order. Reports missing files, gaps and wrong names."""
        known = {key: stem for kind in reversed(self.stems) for key, stem in self.stems[kind].items()}
        digits = max(digits_of(stem) for stem in known.values())
        every = set(known)
        if listed is not None:
            count, first = listed
            affixes = {(before, after) for before, _, after in self.stems["lq"]}
            before, after = affixes.pop() if len(affixes) == 1 else ("", "")
            every = {(before, int(first) + i, after) for i in range(count)}
        names = {key: known.get(key) or frame_name(key, digits) for key in every}
        for kind, stems in self.stems.items():
            missing = sorted((names[key] for key in every - stems.keys()), key=natural_key)
            if missing:
                suffix = os.path.splitext(next(iter(self.files[kind].values())).path)[1] or f".{self.kinds[kind][2][0]}"
                files = _some(f"{stem}{suffix}" for stem in missing)
                self._report(kind, f"{kind} lacks {len(missing)} of {len(every)} frames: {files}")
        keys = sorted(every, key=lambda key: natural_key(names[key]))
        if len({(before, after) for before, _, after in keys}) == 1:
            gaps = [f"{names[a]}-{names[b]}" for a, b in itertools.pairwise(keys) if b[1] != a[1] + 1]
            if gaps:
                self._report("lq", f"frame numbers jump at {_some(gaps)}")
        if self.source.filename_tmpl:
            self._check_template(keys, self.source.filename_tmpl)
        return keys

    def _check_template(self, keys: list[FrameKey], template: str) -> None:
        """Names that are plain numbers must be formatted with filename_tmpl."""
        for kind, stems in self.stems.items():
            found = [stems[key] for key in keys if key in stems]
            odd = [stem for stem in found if stem.isdecimal() and format(int(stem), template) != stem]
            if odd:
                self._report(kind, f"{len(odd)} names of {kind} do not follow filename_tmpl {template!r}: {_some(odd)}")

    def _check_one_file(self, keys: list[FrameKey]) -> list[FileEntry]:
        """The spike file of the clip, once for every frame; [] where it is not clear which planes are whose."""
        files = list(self.files["spike"].values())
        first = min(self.stems["lq"], key=lambda key: natural_key(self.stems["lq"][key]))
        if len(files) > 1:
            what = f"{len(files)} spike files: {_some(self.files['spike'])}; with spike.exposure a clip has one"
            self._report("spike", what)
        elif keys[0] != first:
            what = "the first listed frame is not the first of the folder, from which spike.exposure counts"
            self._report("lq", what)
        return [] if self.problems else files * len(keys)

    def _check_planes(self, files: list[FileEntry]) -> tuple[int, ...]:
        """Planes per file. All files must have as many, but the last one may lack the last interpolated planes."""
        spikes = self.source.spikes
        planes: dict[FileEntry, int] = {}
        for file in dict.fromkeys(files):
            try:
                planes[file] = count_planes(file.path, spikes.geometry, spikes.remainder, file.size)
            except SpikeFileError as e:
                self._report_file(f"{e.what}; {e.expected}", file.path)
        if planes and not self.source.has_one_spike_file:
            expected = spikes.info.planes_of(self.name) or Counter(planes.values()).most_common(1)[0][0]
            fewest = spikes.info.fewest_planes(self.name, expected)
            for file, count in planes.items():
                if count != expected and not (file is files[-1] and fewest <= count <= expected):
                    need = expected * spikes.geometry.plane_bytes
                    what = f"spike file has {count} planes ({file.size} bytes), expected {expected} ({need} bytes)"
                    self._report_file(what, file.path)
        return tuple(planes.get(file, 0) for file in files)

    def _exposures(self, files: list[FileEntry], planes: tuple[int, ...]) -> tuple[Exposure, ...]:
        """The planes of each frame; reports where they lie outside of a file, or are too few."""
        counts = dict(zip((file.path for file in files), planes, strict=True))
        try:
            return self.source.spikes.exposures(self.name, list(counts.items()), len(files))
        except (DataError, OptionError) as e:
            self._report_file(f"{e.what}; expected {e.expected}", files[0].path)
            return ()

    def _check_sizes(self, paths: dict[str, tuple[str, ...]]) -> tuple[tuple[int, int], tuple[int, int]]:
        """(lq size, gt size) of the first frame; gt must be a whole multiple of lq, and lq must fit the spikes."""
        lq = gt = (0, 0)
        try:
            lq = gt = picture_size(paths["lq"][0])
            if "gt" in paths:
                gt = picture_size(paths["gt"][0])
        except DataError as e:
            self._report_file(e.what, e.where)
            return lq, gt
        if gt[0] % lq[0] or gt[1] % lq[1] or gt[0] // lq[0] != gt[1] // lq[1]:
            what = f"gt is {gt[0]} x {gt[1]}, lq {lq[0]} x {lq[1]}: no whole multiple"
            self._report_file(what, paths["gt"][0])
        try:
            if self.source.spikes:
                self.source.spikes.grid(lq)
        except DataError as e:
            self._report_file(e.what, paths["lq"][0])
        return lq, gt


def _check_scales(clips: list[Clip]) -> list[Problem]:
    """All clips must have the same number of gt pixels per lq pixel, as a network has one scale."""
    scales = Counter(clip.scale for clip in clips)
    if len(scales) < 2:
        return []
    usual = scales.most_common(1)[0][0]
    what = "gt is {0} times as large as lq, that of most clips is {1} times"
    return [Problem(c.name, what.format(c.scale, usual), c.gt[0]) for c in clips if c.scale != usual]


def _some(names: object, limit: int = 5) -> str:
    names = list(names)
    return ", ".join(names[:limit]) + (f", ... ({len(names)} in all)" if len(names) > limit else "")

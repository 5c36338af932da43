"""Find the clips of a data set and check, from names and sizes alone, that every frame has all its files.

Layouts: <root>/<clip>/{blur,sharp,spike}/<frame>, as GoPro is published, or <root>/<clip>/<frame> with one root
per kind, as KAIR regroups it. Both may be mixed: each root is looked at by itself.
"""

from __future__ import annotations

import hashlib
import itertools
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from data.clip import Clip
from data.frame_io import picture_size
from data.meta_file import read_meta
from data.names import FrameKey, digits_of, frame_key, frame_name
from data.roots import FileEntry, Listing, list_root
from data.spike.stream import SpikeFileError, planes_in
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
    dataroot_spike: str | None = None
    lq_folder: str = "blur"
    meta_info_file: str | None = None
    filename_tmpl: str | None = None
    filename_ext: str = "png"
    spikes: DatSpikes | None = None
    left_out: frozenset[str] = frozenset()  # clips that are not part of the data set, whatever the folders hold

    def kinds(self) -> dict[str, tuple[str, str, str]]:
        """Kind of file -> (root, folder within a clip, file name extension)."""
        kinds = {"lq": (self.dataroot_lq, self.lq_folder, self.filename_ext)}
        if self.dataroot_gt:
            kinds["gt"] = (self.dataroot_gt, "sharp", self.filename_ext)
        if self.dataroot_spike:
            kinds["spike"] = (self.dataroot_spike, "spike", "dat")
        return kinds


def held_out(val_partition: str | None) -> frozenset[str]:
    """The clips of REDS' training folders that a partition keeps for validation: REDS4's four, or the official 30."""
    partitions = {"REDS4": ("000", "011", "015", "020"), "official": tuple(f"{i:03d}" for i in range(240, 270))}
    return frozenset(partitions.get(val_partition, ()))


def find_clips(source: Source) -> list[Clip]:
    """All clips of the source, by name. Raises DataError that lists every problem, not the first only."""
    clips, problems = scan(source)
    if problems:
        raise problems_error(problems, [root for root, _, _ in source.kinds().values()])
    return clips


def problems_error(problems: Sequence[Problem], roots: Sequence[str], shown: int | None = None) -> DataError:
    """One DataError with a table of all problems, or of the first `shown`."""
    table = problems[: SHOWN_PROBLEMS if shown is None else shown]
    width = max(len(problem.clip) for problem in table)
    rows = [f"\n    {problem.clip:{width}} | {problem.what}\n    {'':{width}} |   {problem.where}" for problem in table]
    more = len(problems) - len(rows)
    return DataError(
        f"{len(problems)} problem{'s' if len(problems) > 1 else ''} in the data:{''.join(rows)}"
        + (f"\n    ... and {more} more; scripts/check_data.py --opt FILE lists all" if more else ""),
        ", ".join(dict.fromkeys(roots)),
        "every frame with its lq, gt and spike file; docs/data_format.md shows the folders",
        "restore these files, or take the clips out of the folders",
    )


def scan(source: Source) -> tuple[list[Clip], list[Problem]]:
    """The clips without problems, and the problems of the others. Reads names, sizes and the first picture's header.

    Raises DataError at once where a whole root or the meta file is missing.
    """
    kinds, found = source.kinds(), list_source(source)
    listed = read_meta(source.meta_info_file) if source.meta_info_file else None
    names = sorted(set(listed or set().union(*found.values())) - source.left_out, key=natural_key)
    clips, problems = [], []
    for name in names:
        clip, wrong = _check_clip(name, {kind: found[kind].get(name) for kind in kinds}, kinds, source, listed)
        problems += wrong
        if clip and not wrong:
            clips.append(clip)
    return clips, problems + _check_scales(clips)


def list_source(source: Source) -> dict[str, Listing]:
    """Kind of file ("lq", "gt", "spike") -> what lies below its root."""
    return {kind: list_root(*place) for kind, place in source.kinds().items()}


def digest(listings: dict[str, Listing]) -> str:
    """16 hex digits that change with the name, size or time of change of any file."""
    table = hashlib.sha256()
    for kind, listing in sorted(listings.items()):
        for clip, files in sorted(listing.items()):
            for stem, file in sorted(files.items()):
                table.update(f"{kind}/{clip}/{stem} {file.size} {file.mtime_ns}\n".encode())
    return table.hexdigest()[:16]


def _check_clip(
    name: str,
    files: dict[str, dict[str, FileEntry] | None],
    kinds: dict[str, tuple[str, str, str]],
    source: Source,
    listed: dict[str, tuple[int, str]] | None,
) -> tuple[Clip | None, list[Problem]]:
    problems = []
    for kind, (root, folder, ext) in kinds.items():
        if not files[kind]:
            what = "has no folder" if files[kind] is None else f"holds no .{ext} file"
            problems.append(Problem(name, f"{kind} {what}", os.path.join(root, name, folder)))
    if problems:
        return None, problems
    by_number = {kind: _by_number(name, kind, files[kind], root, problems) for kind, (root, _, _) in kinds.items()}
    keys = _frames(name, by_number, kinds, source, listed, problems)
    # What is left of an incomplete clip is looked at as well: one check should tell all.
    keys = [key for key in keys if all(key in by_number[kind] for kind in kinds)]
    if not keys:
        return None, problems
    entries = {kind: [files[kind][by_number[kind][key]] for key in keys] for kind in kinds}
    paths = {kind: tuple(entry.path for entry in entries[kind]) for kind in kinds}
    planes = _check_planes(name, entries["spike"], source, problems) if "spike" in kinds else ()
    size, gt_size = _check_sizes(name, paths, source, problems)
    stems = tuple(by_number["lq"][key] for key in keys)
    clip = Clip(name, stems, paths["lq"], paths.get("gt", ()), paths.get("spike", ()), planes, size, gt_size)
    return clip, problems


def _by_number(
    name: str, kind: str, files: dict[str, FileEntry], root: str, problems: list[Problem]
) -> dict[FrameKey, str]:
    """Frame -> its stem in this kind of file: 47.png and 000047.dat belong together."""
    stems: dict[FrameKey, str] = {}
    for stem in files:
        other = stems.setdefault(frame_key(stem), stem)
        if other != stem:
            what = f"{kind} has two files of one number: {_some([other, stem])}"
            problems.append(Problem(name, what, os.path.join(root, name)))
    return stems


def _frames(
    name: str,
    stems: dict[str, dict[FrameKey, str]],
    kinds: dict[str, tuple[str, str, str]],
    source: Source,
    listed: dict[str, tuple[int, str]] | None,
    problems: list[Problem],
) -> list[FrameKey]:
    """The frames of the clip, in order; mismatches between the kinds, gaps and wrong names go to `problems`."""
    known = {key: stem for kind in reversed(kinds) for key, stem in stems[kind].items()}
    digits = max(digits_of(stem) for stem in known.values())
    every = set(known)
    if listed is not None:
        count, first = listed[name]
        affixes = {(before, after) for before, _, after in stems["lq"]}
        before, after = affixes.pop() if len(affixes) == 1 else ("", "")
        every = {(before, int(first) + i, after) for i in range(count)}
    for kind, (root, _, ext) in kinds.items():
        missing = sorted(
            (known.get(key) or frame_name(key, digits) for key in every - stems[kind].keys()), key=natural_key
        )
        if missing:
            what = f"{kind} lacks {len(missing)} of {len(every)} frames: {_some(f'{s}.{ext}' for s in missing)}"
            problems.append(Problem(name, what, os.path.join(root, name)))
    keys = sorted(every, key=lambda key: natural_key(known.get(key) or frame_name(key, digits)))
    if len({(before, after) for before, _, after in keys}) == 1:
        shown = [known.get(key) or frame_name(key, digits) for key in keys]
        gaps = [f"{shown[i]}-{shown[i + 1]}" for i, (a, b) in enumerate(itertools.pairwise(keys)) if b[1] != a[1] + 1]
        if gaps:
            problems.append(Problem(name, f"frame numbers jump at {_some(gaps)}", os.path.join(kinds["lq"][0], name)))
    if source.filename_tmpl:
        _check_template(name, stems, keys, kinds, source.filename_tmpl, problems)
    return keys


def _check_template(
    name: str,
    stems: dict[str, dict[FrameKey, str]],
    keys: list[FrameKey],
    kinds: dict[str, tuple[str, str, str]],
    template: str,
    problems: list[Problem],
) -> None:
    """Names that are plain numbers are written as filename_tmpl says."""
    for kind, (root, _, _) in kinds.items():
        found = [stems[kind][key] for key in keys if key in stems[kind]]
        odd = [stem for stem in found if stem.isdecimal() and format(int(stem), template) != stem]
        if odd:
            what = f"{len(odd)} names of {kind} do not follow filename_tmpl {template!r}: {_some(odd)}"
            problems.append(Problem(name, what, os.path.join(root, name)))


def _check_planes(name: str, files: list[FileEntry], source: Source, problems: list[Problem]) -> tuple[int, ...]:
    """Planes per file. All files of a clip have as many, except that the last may lack the last interpolated ones."""
    spikes = source.spikes
    planes: dict[FileEntry, int] = {}
    for file in files:
        try:
            planes[file] = planes_in(file.size, file.path, spikes.geometry, spikes.remainder)
        except SpikeFileError as e:
            problems.append(Problem(name, f"{e.what}; {e.expected}", file.path))
    if not planes:
        return ()
    expected = spikes.info.planes_of(name) or Counter(planes.values()).most_common(1)[0][0]
    fewest = spikes.info.fewest_planes(name, expected)
    right: dict[int, FileEntry] = {}
    for file, count in planes.items():
        is_short_last = file is files[-1] and fewest <= count <= expected
        if count == expected or is_short_last:
            right.setdefault(count, file)
            continue
        need = expected * spikes.geometry.plane_bytes
        what = f"spike file has {count} planes ({file.size} bytes), expected {expected} ({need} bytes)"
        problems.append(Problem(name, what, file.path))
    for count, file in right.items():
        try:
            spikes.check_planes(name, count)
        except (DataError, OptionError) as e:
            problems.append(Problem(name, f"{e.what}; expected {e.expected}", file.path))
    return tuple(planes.values())


def _check_sizes(
    name: str, paths: dict[str, tuple[str, ...]], source: Source, problems: list[Problem]
) -> tuple[tuple[int, int], tuple[int, int]]:
    """(lq size, gt size) of the first frame; gt must be a whole multiple of lq, and lq of the spikes."""
    sizes = {"lq": (0, 0), "gt": (0, 0)}
    for kind in ("lq", "gt"):
        if kind not in paths:
            continue
        try:
            sizes[kind] = picture_size(paths[kind][0])
        except DataError as e:
            problems.append(Problem(name, e.what, e.where))
            return sizes["lq"], sizes["gt"]
    lq, gt = sizes["lq"], sizes["gt"] if "gt" in paths else sizes["lq"]
    if gt[0] % lq[0] or gt[1] % lq[1] or gt[0] // lq[0] != gt[1] // lq[1]:
        what = f"gt is {gt[0]} x {gt[1]}, lq {lq[0]} x {lq[1]}: no whole multiple"
        problems.append(Problem(name, what, paths["gt"][0]))
    if source.spikes and source.spikes.ratio(lq) is None:
        plane = source.spikes.geometry
        what = f"lq is {lq[0]} x {lq[1]}, spikes {plane.height} x {plane.width}: no whole multiple (spike.h, spike.w)"
        problems.append(Problem(name, what, paths["lq"][0]))
    return lq, gt


def _check_scales(clips: list[Clip]) -> list[Problem]:
    """A network enlarges by one factor: all clips must have the same number of gt pixels per lq pixel."""
    scales = Counter(clip.scale for clip in clips)
    if len(scales) < 2:
        return []
    usual = scales.most_common(1)[0][0]
    what = "gt is {0} times as large as lq, that of most clips is {1} times"
    return [Problem(c.name, what.format(c.scale, usual), c.gt[0]) for c in clips if c.scale != usual]


def _some(names: object, limit: int = 5) -> str:
    names = list(names)
    return ", ".join(names[:limit]) + (f", ... ({len(names)} in all)" if len(names) > limit else "")

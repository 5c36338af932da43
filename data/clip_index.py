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
from pathlib import Path

from data.clip import Clip
from data.frame_io import picture_size
from data.roots import FileEntry, Listing, list_root
from data.spike.stream import SpikeFileError, planes_in
from data.spike_source import DatSpikes
from utils.utils_errors import DataError, OptionError

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
    names = sorted(set(listed or set().union(*found.values())) - source.left_out)
    clips, problems = [], []
    for name in names:
        clip, wrong = _check_clip(name, {kind: found[kind].get(name) for kind in kinds}, kinds, source, listed)
        problems += wrong
        if clip and not wrong:
            clips.append(clip)
    return clips, problems


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


def read_meta(path: str) -> dict[str, tuple[int, str]]:
    """Clip name -> (number of frames, first frame) from lines "<clip> <frames> <shape or 0> <first frame>"."""
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except OSError as e:
        raise DataError(
            f"cannot read the meta file: {e.strerror or e}", path, "a text file with one line per clip",
            "correct meta_info_file, or remove it: the folders are scanned then",
        ) from e  # fmt: skip
    clips = {}
    for number, line in enumerate(lines, 1):
        words = line.split()
        if not words:
            continue
        # KAIR writes the shape with or without blanks: "(720, 1280, 3)".
        if len(words) < 4 or not words[1].isdigit() or not words[-1].isdigit():
            raise DataError(
                f"line {number} is {line!r}", path, "<clip> <frames> <shape or 0> <first frame>", "correct the line"
            )
        clips[words[0]] = (int(words[1]), words[-1])
    if not clips:
        raise DataError("the meta file lists no clip", path, "one line per clip", "correct meta_info_file")
    return clips


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
    stems = _stems(name, files, kinds, source, listed, problems)
    # What is left of an incomplete clip is looked at as well: one check should tell all.
    stems = [stem for stem in stems if all(stem in files[kind] for kind in kinds)]
    if not stems:
        return None, problems
    paths = {kind: tuple(files[kind][stem].path for stem in stems) for kind in kinds}
    planes = _check_planes(name, [files["spike"][s] for s in stems], source, problems) if "spike" in kinds else ()
    size, gt_size = _check_sizes(name, paths, source, problems)
    clip = Clip(name, tuple(stems), paths["lq"], paths.get("gt", ()), paths.get("spike", ()), planes, size, gt_size)
    return clip, problems


def _stems(
    name: str,
    files: dict[str, dict[str, FileEntry]],
    kinds: dict[str, tuple[str, str, str]],
    source: Source,
    listed: dict[str, tuple[int, str]] | None,
    problems: list[Problem],
) -> list[str]:
    """The frames of the clip, in order; mismatches between the kinds, gaps and wrong names go to `problems`."""
    every = set().union(*files.values())
    if listed is not None:
        count, first = listed[name]
        wanted = [str(int(first) + i).zfill(len(first)) for i in range(count)]
        every = set(wanted)
    for kind, (root, _, ext) in kinds.items():
        missing = sorted(every - files[kind].keys())
        if missing:
            what = f"{kind} lacks {len(missing)} of {len(every)} frames: {_some(f'{s}.{ext}' for s in missing)}"
            problems.append(Problem(name, what, os.path.join(root, name)))
    stems = sorted(every)
    if all(stem.isdigit() for stem in stems):
        stems.sort(key=int)
        gaps = [f"{a}-{b}" for a, b in itertools.pairwise(stems) if int(b) != int(a) + 1]
        if gaps:
            problems.append(Problem(name, f"frame numbers jump at {_some(gaps)}", os.path.join(kinds["lq"][0], name)))
        if source.filename_tmpl:
            odd = [stem for stem in stems if format(int(stem), source.filename_tmpl) != stem]
            if odd:
                what = f"{len(odd)} names do not follow filename_tmpl {source.filename_tmpl!r}: {_some(odd)}"
                problems.append(Problem(name, what, os.path.join(kinds["lq"][0], name)))
    return stems


def _check_planes(name: str, files: list[FileEntry], source: Source, problems: list[Problem]) -> tuple[int, ...]:
    """Planes per file. All files of a clip have as many, except that the last may lack the 7 interpolated ones."""
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
    right: dict[int, FileEntry] = {}
    for file, count in planes.items():
        is_short_last = file is files[-1] and expected - 7 <= count <= expected
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


def _some(names: object, limit: int = 5) -> str:
    names = list(names)
    return ", ".join(names[:limit]) + (f", ... ({len(names)} in all)" if len(names) > limit else "")

"""Check all data before a run, and report all problems in one table.

A first start opens each file once, in threads. What it found is kept under <path.root>/.preflight
(data/clips/kept.py). While no folder changes, a repeated start looks at some of the files alone.
"""

import itertools
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from data.clip import IMAGE_KINDS, Clip
from data.clips import files, manifest
from data.clips.clip_check import ClipCheck, Size
from data.clips.files import FileEntry, Folder, Listing, State
from data.clips.kept import SHARE, Kept, Mark, Result
from data.clips.look import Look, look_at_picture, look_at_spikes
from data.clips.source import Problem, Source
from data.clips.spike_check import check_spikes
from data.clips.table import ClipTable, Columns, TableBuilder, frames_of, planes_of, unlike
from data.clips.threads import mapped
from utils.dist import watchdog
from utils.errors import DataError
from utils.options.models import DatasetsOptions
from utils.run.progress import open_progress

logger = logging.getLogger(__name__)

# (total, name, unit) -> a progress, for a `with`.
Show = Callable[[int, str, str], Any]
HIDDEN: Show = partial(open_progress, "none")

# The looks at so many files are in memory at once.
FILES_AT_ONCE = 4096


@dataclass
class Report:
    """The result for one root of a split: its clips without problems, problems, and warnings.

    note: what the log says in place of the counts, if no file was read.
    question, mark: of the record that is kept of it, see data/clips/kept.py; None: there is none.
    """

    name: str
    source: Source
    clips: Sequence[Clip]
    problems: list[Problem] = field(default_factory=list)
    warnings: list[Problem] = field(default_factory=list)
    note: str = ""
    question: str = ""
    mark: Mark | None = None

    def counts(self) -> str:
        """Return clips, frames, sizes and planes in one line."""
        frames = sum(frames_of(self.clips))
        sizes = sorted({"{} x {}".format(*clip.size) for clip in unlike(self.clips)})
        planes = sorted(planes_of(self.clips))
        text = f"{len(self.clips)} clips, {frames} frames of {', '.join(sizes) or '-'}"
        if planes:
            text += f", spike files of {', '.join(map(str, planes))} planes"
        return text


def preflight(
    datasets: DatasetsOptions, stored: Path, show: Show = HIDDEN, scale: int = 1
) -> dict[str, Mark]:
    """Check the data of all splits, each by its dataset class. One process calls it.

    stored: folder of earlier results. show, scale: see `check_source`.
    Returns the marks of the records that now hold, for the other ranks (`Run.checked`).
    Raises DataError (exit code 3) with every problem of every split.
    """
    reports: list[Report] = []
    unreadable = []
    for split, section in datasets:
        # A dataset without `check` reads no clips.
        if section is None or not hasattr(section.constructor, "check"):
            continue
        start = time.monotonic()
        try:
            found = section.constructor.check(section, split, stored=stored, show=show, scale=scale)
        except DataError as e:  # a whole root is missing; the other split may lack one too
            unreadable.append(e)
            continue
        reports += found
        for report in found:
            _log(report, split, time.monotonic() - start)
    problems = [(report.source, report.problems) for report in reports]
    manifest.raise_problems(problems, unreadable=unreadable)
    return {report.question: report.mark for report in reports if report.mark}


def _log(report: Report, split: str, seconds: float) -> None:
    for warning in report.warnings:
        logger.warning("data %s: %s", split, warning)
    if not report.problems:
        note = report.note or f"{report.counts()}, checked in {seconds:.1f} s"
        logger.info("data %s: %s", report.name, note)


def check_source(
    source: Source,
    name: str,
    stored: Path | None = None,
    decode: bool = False,
    show: Show = HIDDEN,
    scale: int = 1,
    share: float = SHARE,
) -> Report:
    """Check clips in folders or LMDBs. Returns the report.

    name: name of the split and the root.
    stored: folder of earlier results. A data set that has not changed since is not read again.
    decode: whether to decode every image, which also finds flipped bits. Otherwise only header and
    end of an image are read.
    show: called with the number of files, opens their progress.
    scale: scale of the network, the side of gt over the side of lq.
    share: share of the files that are looked at if no folder has changed.
    """
    kept = None
    if stored:
        # Without the meta file there is no record. The listing says what else is missing.
        with suppress(DataError):
            kept = Kept(stored, source, scale)
    if kept:
        known = kept.read(share)
        if known:
            note = f"{known.counts}, as checked before"
            report = Report(name, source, known.clips, warnings=known.warnings, note=note)
            report.question, report.mark = kept.question, kept.mark
            return report

    check = _Check(source, decode)
    report = check.run(name, show, scale)
    if kept and not report.problems:
        found = Result(report.counts(), report.warnings, report.clips)
        kept.write(found, check.columns, check.states)
        report.question, report.mark = kept.question, kept.mark
    return report


# ---- Files and clips -------------------------------------------------------------------------


class _Job(NamedTuple):
    """A file to look at. clip: its name. known: its entry, if it lies in an LMDB."""

    clip: str
    kind: str
    path: str
    known: FileEntry | None


class _Check:
    """The check of the clips of one source.

    decode: see `check_source`.
    columns, states: what is kept of it, after `run`, see data/clips/kept.py.
    """

    def __init__(self, source: Source, decode: bool) -> None:
        self.source, self.decode = source, decode
        self.columns: Columns = {}
        self.states: dict[str, State] = {}
        self.listing: dict[str, Listing] = {}
        self.first: Clip | None = None  # without problems
        # Problems of clips, of their pictures and of their spike files.
        self.of_clips: list[Problem] = []
        self.same_files: list[Problem] = []
        self.of_pictures: list[Problem] = []
        self.of_spikes: list[Problem] = []
        # Warnings of pictures, by what is lost, and of spikes.
        self.lossy: dict[str, Problem] = {}
        self.odd_spikes: list[Problem] = []

    def run(self, name: str, show: Show, scale: int) -> Report:
        """Check all clips. Arguments: see `check_source`."""
        source = self.source
        self.listing = manifest.list_source(source)
        for of_kind in self.listing.values():
            self.states |= of_kind.states
        names = manifest.names_of(source, self.listing)
        files_of = {clip: sum(len(files) for _, files in self._folders(clip)) for clip in names}

        builder = TableBuilder(source)
        with show(sum(files_of.values()), f"checking {name}", "files") as progress:
            for some in _groups(files_of):
                looks = self._look(some, progress)
                good = self._check_clips(some, looks)
                for clip in good:
                    builder.add(clip, looks)
                self._warn(good, looks)
        clips, self.columns = builder.table()
        return self._report(name, clips, scale)

    def _report(self, name: str, clips: ClipTable, scale: int) -> Report:
        """Return all problems and warnings, in the order in which they are told."""
        source = self.source
        report = Report(name, source, clips, self.of_clips, source.notes(len(clips)))
        report.problems += manifest.other_scales(clips)
        # With another scale the sizes differ from the network's, which says more of the cause.
        if scale == 1:
            report.problems += self.same_files
            if not report.problems and manifest.have_same_content(source, clips):
                report.warnings.append(
                    Problem(clips[0].name, manifest.SAME_CONTENT, source.dataroot_lq)
                )
        report.problems += self.of_pictures + self.of_spikes
        report.warnings += [*self.lossy.values(), *self.odd_spikes]
        if source.spikes:
            report.warnings += _slow_files(source, clips)
        return report

    def _folders(self, clip: str) -> Iterator[tuple[str, Folder]]:
        """Yield kind and files of a clip, for the kinds that it has."""
        for kind, listing in self.listing.items():
            files = listing.get(clip)
            if files is not None:
                yield kind, files

    # ---- Looks ------------------------------------------------------------------------------

    def _look(self, clips: Sequence[str], progress: Any) -> dict[str, Look]:
        """Look at all files of some clips, in threads. Returns {path: look}."""
        jobs = []
        for clip in clips:
            for kind, folder in self._folders(clip):
                known = folder.known or itertools.repeat(None)
                for path, entry in zip(folder.paths, known, strict=False):
                    jobs.append(_Job(clip, kind, path, entry))
        looks = {}
        try:
            for job, look in zip(
                jobs, mapped(self._look_at, jobs, go_on=watchdog.go_on), strict=True
            ):
                looks[job.path] = look
                progress.update()
        except DataError as e:
            raise manifest.gone_error(self.source, self.listing) from e
        return looks

    def _look_at(self, job: _Job) -> Look:
        if job.kind != "spike":
            return look_at_picture(job.path, self.decode, job.known)
        spikes = self.source.own_spikes.get(job.clip, self.source.spikes)
        if spikes is None:  # nothing reads them
            return Look(job.known or files.entry_of(job.path))
        return look_at_spikes(job.path, spikes.geometry, spikes.remainder, job.known)

    # ---- Clips ------------------------------------------------------------------------------

    def _check_clips(self, names: Sequence[str], looks: Mapping[str, Look]) -> list[Clip]:
        """Check names and sizes of some clips, and their files. Returns those with sound names."""
        listed = self.source.listed
        good = []
        for name in names:
            files: dict[str, dict[str, FileEntry] | None] = dict.fromkeys(self.listing)
            for kind, folder in self._folders(name):
                entries = [looks[path].entry for path in folder.paths]
                files[kind] = dict(zip(folder.stems, entries, strict=True))
            sizes = manifest.usual_sizes(self.source, [self.first] if self.first else [])
            check = ClipCheck(name, self.source, files, sizes, partial(_seen_size, looks))
            clip = check.run(listed[name] if listed else None)
            self.of_clips += check.problems
            if clip and not check.problems:
                self.first = self.first or clip
                self._check_files(clip, looks)
                good.append(clip)
        return good

    def _check_files(self, clip: Clip, looks: Mapping[str, Look]) -> None:
        """Report the files of a clip that cannot be read, or have another size than the others."""
        for kind in IMAGE_KINDS:
            size = clip.size_of(kind)
            for path in getattr(clip, kind):
                what = _flaw(looks[path], kind, size)
                if what:
                    self.of_pictures.append(Problem(clip.name, what, path))
        for path in clip.spike_files:
            if looks[path].flaw:
                self.of_spikes.append(Problem(clip.name, looks[path].flaw, path))
        # Two names of one file need not be links: following them takes a call for each folder.
        if clip.gt and looks[clip.lq[0]].place == looks[clip.gt[0]].place:
            self.same_files += manifest.same_files(self.source, [clip])

    def _warn(self, clips: Sequence[Clip], looks: Mapping[str, Look]) -> None:
        """Warn of what reading loses, and of spikes that do not fit their frames, in threads."""

        def see(clip: Clip) -> tuple[list[Problem], list[Problem]]:
            lossy = []
            for kind in clip.image_kinds:
                path = getattr(clip, kind)[0]
                what = files.reduction(path) if looks[path].is_reduced else ""
                if what:
                    lossy.append(Problem(clip.name, f"{kind} {what}", path))
            odd = check_spikes(clip, is_first=clip is self.first) if clip.spikes else []
            return lossy, odd

        for lossy, odd in mapped(see, clips, at_once=2, go_on=watchdog.go_on):
            for warning in lossy:
                self.lossy.setdefault(warning.what.partition(" ")[2], warning)
            self.odd_spikes += odd


def _groups(files_of: Mapping[str, int]) -> Iterator[list[str]]:
    """Yield the clips in groups of about FILES_AT_ONCE files. files_of: {clip: its files}."""
    group: list[str] = []
    count = 0
    for clip, files_of_clip in files_of.items():
        group.append(clip)
        count += files_of_clip
        if count >= FILES_AT_ONCE:
            yield group
            group, count = [], 0
    if group:
        yield group


def _seen_size(looks: Mapping[str, Look], path: str) -> Size:
    """Return the size of a picture that was looked at. Raises DataError, as `image_size` does."""
    look = looks[path]
    if look.shape is None:
        raise DataError(look.flaw, path, "a picture that can be read", "restore the file")
    return look.shape


def _flaw(look: Look, kind: str, size: Size) -> str:
    """Return what is wrong with a picture, "" if nothing is. size: of the first of its clip."""
    if look.flaw:
        return look.flaw
    if look.shape is not None and look.shape != size:
        what = "{} frame of {} x {}".format(kind, *look.shape)
        return what + ", the first of the clip has {} x {}".format(*size)
    return look.cut


def _slow_files(source: Source, clips: Sequence[Clip]) -> list[Problem]:
    """Warn once of files in which a plane is reached only through all planes before it."""
    if not source.has_one_spike_file:
        return []
    for clip in clips:
        if files.is_read_from_start(clip.spike[0]):
            return [Problem(clip.name, files.FROM_START, clip.spike[0])]
    return []

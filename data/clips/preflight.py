"""Check all data before a run, and report all problems in one table.

The flow of a first start:

    preflight             each split (train, test) of the option file
      check_source        each data root of a split
        _Check.run        list all files, then look at them in groups of some thousand:
          _look             open each file once, in threads
          _check_clips      do the names, sizes and numbers of files fit (ClipCheck)?
          _warn             what is lost in reading, do spikes and frames fit (spike_check)?

A look at a file is what was seen when it was opened: its size, its time of change, the size of the
picture, and what is wrong with it (data/clips/look.py).

The result is stored under <path.root>/.preflight (data/clips/kept.py). While no folder changes, a
repeated start reads the stored result and looks at only some of the files.

The order of problems and warnings is part of the output, which tests compare.

Tests: tests/parts/data/test_preflight.py, tests/parts/data/test_kept.py,
tests/stories/test_bad_input.py
"""

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
from data.clips.kept import SHARE, Mark, Record, Result
from data.clips.look import Look, look_at_picture, look_at_spikes
from data.clips.source import Problem, Source
from data.clips.spike_check import check_spikes
from data.clips.table import (
    ClipTable,
    Columns,
    TableBuilder,
    frame_counts,
    one_of_each_form,
    planes_of,
)
from data.clips.threads import mapped
from utils.dist import watchdog
from utils.errors import DataError
from utils.options.models import DatasetsOptions
from utils.run.progress import open_progress

logger = logging.getLogger(__name__)

# A function (total, name, unit) that opens a progress bar, for a `with` block.
Show = Callable[[int, str, str], Any]
# Shows no progress.
HIDDEN: Show = partial(open_progress, "none")

# About so many files are looked at before their clips are checked. It bounds the memory, because
# what was seen of a file is forgotten after its group.
FILES_AT_ONCE = 4096


@dataclass
class Report:
    """The result of the check of one data root.

    name: name of the split, and of the root if there are several.
    source: the checked root.
    clips: its clips without problems.
    problems: what forbids a run. warnings: what the log should say.
    note: what the log says in place of the counts, if no file was read.
    question: name of the stored result, a digest of the options that were checked with it; "" if
    nothing is stored.
    mark: (name, checksum) of the stored result, by which other ranks find it; None if nothing is
    stored. See data/clips/kept.py for both.
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
        """Return clips, frames, sizes and planes in one line.

        For example "22 clips, 2103 frames of 720 x 1280, spike files of 56 planes".
        """
        frames = sum(frame_counts(self.clips))
        sizes = {"{} x {}".format(*clip.size) for clip in one_of_each_form(self.clips)}
        shown_sizes = ", ".join(sorted(sizes)) or "-"
        text = f"{len(self.clips)} clips, {frames} frames of {shown_sizes}"
        planes = sorted(planes_of(self.clips))
        if planes:
            text += f", spike files of {', '.join(map(str, planes))} planes"
        return text


def preflight(
    datasets: DatasetsOptions, stored: Path, show: Show = HIDDEN, scale: int = 1
) -> dict[str, Mark]:
    """Check the data of all splits, each by its dataset class. Only one process calls it.

    stored: folder of stored results. show, scale: see `check_source`.
    Returns {question: mark} of the stored results that hold now, for the other ranks
    (`Run.checked`).
    Raises DataError (exit code 3) with every problem of every split.
    """
    reports: list[Report] = []
    unreadable = []
    for split, section in datasets:
        # A split may be left out. A dataset without the method `check` reads no clips.
        if section is None or not hasattr(section.constructor, "check"):
            continue
        start = time.monotonic()
        try:
            found = section.constructor.check(section, split, stored=stored, show=show, scale=scale)
        except DataError as e:
            # A whole root is missing. Go on, because the other split may lack one, too.
            unreadable.append(e)
            continue
        reports += found
        for report in found:
            _log(report, split, time.monotonic() - start)
    problems = [(report.source, report.problems) for report in reports]
    manifest.raise_problems(problems, unreadable=unreadable)
    return {report.question: report.mark for report in reports if report.mark}


def _log(report: Report, split: str, seconds: float) -> None:
    """Log the warnings of a report, and its counts if there are no problems."""
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

    source: the data root. name: name of the split and the root.
    stored: folder of stored results. A data set that has not changed since is not read again. None:
    read everything, and store nothing.
    decode: whether to decode every image, which also finds flipped bits. Otherwise only header and
    end of an image are read.
    show: opens a progress bar over the number of files.
    scale: scale of the network, the side of gt over the side of lq.
    share: share of the files that are looked at if no folder has changed.
    """
    record = None
    if stored:
        # The name of a stored result depends on the meta file. If this cannot be read, nothing is
        # stored, and the listing of the files below raises the error.
        with suppress(DataError):
            record = Record(stored, source, scale)
    if record:
        known = record.read(share)
        if known:
            # The other ranks get `question` and `mark`, and read the same stored result.
            note = f"{known.counts}, as checked before"
            report = Report(name, source, known.clips, warnings=known.warnings, note=note)
            report.question = record.question
            report.mark = record.mark
            return report

    check = _Check(source, decode)
    report = check.run(name, show, scale)
    if record and not report.problems:
        found = Result(report.counts(), report.warnings, report.clips)
        record.write(found, check.columns, check.states)
        report.question = record.question
        report.mark = record.mark
    return report


# ---- Files and clips -------------------------------------------------------------------------


class _Job(NamedTuple):
    """A file to look at.

    clip: name of its clip. kind: "lq", "gt", "gt_instants" or "spike".
    path: its path. known: its size and time, if it lies in an LMDB; None: look them up.
    """

    clip: str
    kind: str
    path: str
    known: FileEntry | None


class _Check:
    """The check of the clips of one data root. Call `run` once.

    decode: see `check_source`.
    columns, states: what is stored of the result, filled by `run`, see data/clips/kept.py.
    """

    def __init__(self, source: Source, decode: bool) -> None:
        self.source = source
        self.decode = decode
        self.columns: Columns = {}  # the clips as arrays
        self.states: dict[str, State] = {}  # {folder: its state}
        self.listing: dict[str, Listing] = {}  # {kind: {clip: its files}}
        self.first: Clip | None = None  # the first clip without problems
        # Problems, in the order in which they are told.
        self.of_clips: list[Problem] = []  # of names, sizes and numbers of files
        self.same_files: list[Problem] = []  # of clips whose lq and gt are the same files
        self.of_pictures: list[Problem] = []
        self.of_spikes: list[Problem] = []
        # Warnings: {what is lost: the first picture that loses it}, and spikes that do not fit.
        self.lossy: dict[str, Problem] = {}
        self.odd_spikes: list[Problem] = []

    def run(self, name: str, show: Show, scale: int) -> Report:
        """Check all clips. Arguments: see `check_source`."""
        source = self.source
        self.listing = manifest.list_source(source)
        # `states` of the listing of a kind: {folder: its state} of all folders that were listed.
        for of_kind in self.listing.values():
            self.states |= of_kind.states
        # {clip: number of its files}, for the progress bar and for groups of one size.
        files_of_clips = {}
        for clip in manifest.names_of(source, self.listing):
            files_of_clips[clip] = sum(len(folder) for _, folder in self._folders(clip))

        builder = TableBuilder(source)
        total = sum(files_of_clips.values())
        with show(total, f"checking {name}", "files") as progress:
            for names in _groups(files_of_clips):
                looks = self._look(names, progress)
                # Clips with problems are reported, and are not in the table.
                good = self._check_clips(names, looks)
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
        # For a scale of 4, gt that is the same files as lq fails the check of the size already, and
        # that message says more about the cause.
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
        """Yield (kind, files) of a clip, for the kinds that it has."""
        for kind, listing in self.listing.items():
            files = listing.get(clip)
            if files is not None:
                yield kind, files

    # ---- Look at the files ------------------------------------------------------------------

    def _look(self, clips: Sequence[str], progress: Any) -> dict[str, Look]:
        """Look at all files of some clips, in threads. Returns {path: look}."""
        jobs = []
        for clip in clips:
            for kind, folder in self._folders(clip):
                entries: Sequence[FileEntry | None] | None = folder.lmdb_entries
                if entries is None:
                    entries = [None] * len(folder)
                for path, entry in zip(folder.paths, entries, strict=True):
                    jobs.append(_Job(clip, kind, path, entry))
        looks = {}
        try:
            # `go_on` tells the watchdog that this process still works. Without it, a long check on
            # a slow file system would be ended as a hang.
            found = mapped(self._look_at, jobs, go_on=watchdog.go_on)
            for job, look in zip(jobs, found, strict=True):
                looks[job.path] = look
                progress.update()
        except DataError as e:
            # A link whose target is gone. The new error names the first one of each kind.
            raise manifest.gone_error(self.source, self.listing) from e
        return looks

    def _look_at(self, job: _Job) -> Look:
        """Look at one file. Runs in a thread."""
        if job.kind != "spike":
            return look_at_picture(job.path, self.decode, job.known)
        spikes = self.source.own_spikes.get(job.clip, self.source.spikes)
        if spikes is None:
            # An RGB dataset reads no spikes, so size and time are enough.
            return Look(job.known or files.entry_of(job.path))
        return look_at_spikes(job.path, spikes.geometry, spikes.remainder, job.known)

    # ---- Check the clips --------------------------------------------------------------------

    def _check_clips(self, names: Sequence[str], looks: Mapping[str, Look]) -> list[Clip]:
        """Check some clips and report their problems.

        Returns the clips whose names, sizes and numbers of files are right. A file of them may
        still be damaged, which is reported too.
        """
        listed = self.source.listed
        good = []
        for name in names:
            # {kind: {stem: file}}, or {kind: None} if the clip has no folder of this kind.
            files: dict[str, dict[str, FileEntry] | None] = dict.fromkeys(self.listing)
            for kind, folder in self._folders(name):
                entries = [looks[path].entry for path in folder.paths]
                files[kind] = dict(zip(folder.stems, entries, strict=True))
            known_clips = [self.first] if self.first else []
            sizes = manifest.usual_sizes(self.source, known_clips)
            check = ClipCheck(name, self.source, files, sizes, partial(_seen_size, looks))
            clip = check.run(listed[name] if listed else None)
            self.of_clips += check.problems
            if clip and not check.problems:
                if self.first is None:
                    self.first = clip
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
        # Compare device and inode first, which were seen already. Following links, as `same_files`
        # does, takes a call for each folder of the path.
        if clip.gt and looks[clip.lq[0]].place == looks[clip.gt[0]].place:
            self.same_files += manifest.same_files(self.source, [clip])

    def _warn(self, clips: Sequence[Clip], looks: Mapping[str, Look]) -> None:
        """Warn of what reading loses, and of spikes that do not fit their frames, in threads."""

        def look_closer(clip: Clip) -> tuple[list[Problem], list[Problem]]:
            lossy = []
            # The first picture of each kind is enough: a clip comes from one program.
            for kind in clip.image_kinds:
                path = getattr(clip, kind)[0]
                lost = files.what_is_lost(path) if looks[path].is_reduced else ""
                if lost:
                    lossy.append(Problem(clip.name, f"{kind} {lost}", path))
            odd = []
            if clip.spikes:
                odd = check_spikes(clip, is_first=clip is self.first)
            return lossy, odd

        for lossy, odd in mapped(look_closer, clips, at_once=2, go_on=watchdog.go_on):
            for warning in lossy:
                # "lq has 16 bits, ..." and "gt has 16 bits, ..." are one warning.
                _, _, lost = warning.what.partition(" ")
                self.lossy.setdefault(lost, warning)
            self.odd_spikes += odd


def _groups(files_of_clips: Mapping[str, int]) -> Iterator[list[str]]:
    """Yield the names of the clips in groups of about FILES_AT_ONCE files.

    files_of_clips: {clip: number of its files}.
    """
    group: list[str] = []
    count = 0
    for clip, files_of_clip in files_of_clips.items():
        group.append(clip)
        count += files_of_clip
        if count >= FILES_AT_ONCE:
            yield group
            group = []
            count = 0
    if group:
        yield group


def _seen_size(looks: Mapping[str, Look], path: str) -> Size:
    """Return the size of a picture that was looked at. Raises DataError, as `image_size` does."""
    look = looks[path]
    if look.shape is None:
        raise DataError(look.flaw, path, "a picture that can be read", "restore the file")
    return look.shape


def _flaw(look: Look, kind: str, size: Size) -> str:
    """Return what is wrong with a picture, or "" if nothing is.

    kind: "lq", ..., for the text. size: (height, width) of the first picture of its clip.
    """
    if look.flaw:
        return look.flaw
    if look.shape is not None and look.shape != size:
        what = "{} frame of {} x {}".format(kind, *look.shape)
        return what + ", the first of the clip has {} x {}".format(*size)
    return look.cut


def _slow_files(source: Source, clips: Sequence[Clip]) -> list[Problem]:
    """Warn once of files in which a plane is reached only through all planes before it.

    This matters only if one file holds the planes of all frames of a clip.
    """
    if not source.has_one_spike_file:
        return []
    for clip in clips:
        if files.is_read_from_start(clip.spike[0]):
            return [Problem(clip.name, files.SLOW_FROM_START, clip.spike[0])]
    return []

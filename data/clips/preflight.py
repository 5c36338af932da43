"""Check all data before a run, and report all problems in one table.

The result for a data set is stored under <path.root>/.preflight, by a digest of the names, sizes
and times of change of its files. So the next start of a run only lists the folders.
"""

import hashlib
import itertools
import json
import logging
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from data.clip import IMAGE_KINDS, Clip
from data.clips import files, manifest
from data.clips.source import Problem, Source
from data.clips.spike_check import check_spikes
from data.spike import formats
from utils.dist import watchdog
from utils.errors import DataError
from utils.files import write_whole
from utils.json_file import read_json
from utils.options.models import DatasetsOptions
from utils.run.progress import open_progress

logger = logging.getLogger(__name__)

# (total, name, unit) -> a progress, for a `with`.
Show = Callable[[int, str, str], Any]
HIDDEN: Show = partial(open_progress, "none")

# Raise it if the check finds more than before: then stored results of older checks are ignored.
FORMAT = 6
THREADS = 8
# The pool keeps a record of each job, and a million of them would take gigabytes.
JOBS_AT_ONCE = 4096
PNG_END = b"IEND\xaeB`\x82"


@dataclass
class Report:
    """The result for one root of a split: its clips without problems, problems, and warnings.

    note: what the log says in place of the counts, if no file was read.
    """

    name: str
    source: Source
    clips: list[Clip]
    problems: list[Problem] = field(default_factory=list)
    warnings: list[Problem] = field(default_factory=list)
    note: str = ""

    def counts(self) -> str:
        """Return clips, frames, sizes and planes in one line."""
        frames = sum(len(clip) for clip in self.clips)
        sizes = sorted({"{} x {}".format(*clip.size) for clip in self.clips})
        planes = sorted({count for clip in self.clips for count in clip.planes})
        text = f"{len(self.clips)} clips, {frames} frames of {', '.join(sizes) or '-'}"
        if planes:
            text += f", spike files of {', '.join(map(str, planes))} planes"
        return text


def preflight(datasets: DatasetsOptions, stored: Path, show: Show = HIDDEN, scale: int = 1) -> None:
    """Check the data of all splits, each by its dataset class. One process calls it.

    stored: folder of earlier results. show, scale: see `check_source`.
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
) -> Report:
    """Check clips in folders or LMDBs. Returns the report.

    name: name of the split and the root.
    stored: folder of earlier results. A data set that has not changed since is not read again.
    decode: whether to decode every image, which also finds flipped bits. Otherwise only header and
    end of an image are read.
    show: called with the number of files, opens their progress.
    scale: scale of the network, the side of gt over the side of lq.
    """
    file = None
    if stored:
        file = stored / f"{_question(source, scale)}.json"
        known = _stored_report(file, source, name)
        if known:
            return known

    clips, problems = manifest.scan(source)
    report = Report(name, source, clips, problems, source.notes(len(clips)))
    # With another scale the sizes differ from the network's, which says more of the cause.
    if scale == 1:
        report.problems += manifest.same_files(source, clips)
        if not report.problems and manifest.have_same_content(source, clips):
            report.warnings.append(
                Problem(clips[0].name, manifest.SAME_CONTENT, source.dataroot_lq)
            )
    report.problems += _check_files(clips, name, decode, show)
    report.warnings += _reductions(clips)
    if source.spikes:
        for clip in clips:
            report.warnings += check_spikes(clip, is_first=clip is clips[0])
        report.warnings += _slow_files(source, clips)
    if file and not report.problems:
        _store(file, report)
    return report


# ---- Stored results --------------------------------------------------------------------------


def _question(source: Source, scale: int) -> str:
    """Return 16 hex digits that change with the files and with every option of the check."""
    spikes = source.spikes
    asked: list[Any] = [
        FORMAT,
        scale,
        manifest.digest(manifest.list_source(source)),
        source.kinds(),
        source.filename_tmpl,
        sorted(source.left_out),
        source.listed,
    ]
    if spikes:
        asked.append([
            repr(spikes.geometry), repr(spikes.info), spikes.center, spikes.remainder, spikes.name,
            repr(spikes.options), spikes.rate, spikes.light, spikes.timing.describe(),
        ])  # fmt: skip
        for one in (spikes, *source.own_spikes.values()):
            if one.calibration:
                asked.append(one.calibration.digest())
    else:
        asked.append(None)
    return hashlib.sha256(json.dumps(asked).encode()).hexdigest()[:16]


def _stored_report(file: Path, source: Source, name: str) -> Report | None:
    """Return the report of an earlier check. Returns None if there is none that can be read."""
    try:
        before = read_json(file)
        warnings = [Problem(*warning) for warning in before["warnings"]]
        note = f"{before['counts']}, as checked before"
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return Report(name, source, [], warnings=warnings, note=note)


def _store(file: Path, report: Report) -> None:
    result = {"counts": report.counts(), "warnings": report.warnings}
    try:
        write_whole(file, json.dumps(result).encode())
    except DataError as e:
        logger.info("the result of the data check cannot be stored: %s", e)


# ---- Files -----------------------------------------------------------------------------------


def _check_files(clips: list[Clip], name: str, decode: bool, show: Show) -> list[Problem]:
    """Check every file of the clips, in threads. name, decode, show: see `check_source`."""
    problems = []
    jobs = _jobs(clips)
    total = sum(1 for _ in _jobs(clips))
    with ThreadPoolExecutor(THREADS) as pool, show(total, f"checking {name}", "files") as progress:
        while some := list(itertools.islice(jobs, JOBS_AT_ONCE)):
            for problem in pool.map(lambda job: _check_file(*job, decode), some):
                progress.update()
                watchdog.go_on()
                if problem:
                    problems.append(problem)
    return problems


def _jobs(clips: list[Clip]) -> Iterator[tuple[Clip, str, str]]:
    """Yield (clip, kind, path) of every file: first the images of all clips, then the spikes."""
    for kinds in (IMAGE_KINDS, ("spike_files",)):
        for clip in clips:
            for kind in kinds:
                for path in getattr(clip, kind):
                    yield clip, kind, path


def _check_file(clip: Clip, kind: str, path: str, decode: bool) -> Problem | None:
    """Check one file. Returns None if nothing is wrong with it.

    kind: one of data.clip.IMAGE_KINDS, or "spike_files". Spikes in an LMDB are not read.
    """
    try:
        if kind == "spike_files":
            # A file that does not open has a header, or the lines of another sensor.
            if files.LMDB_MARK not in path:
                formats.open_spikes(path, clip.spikes.geometry, clip.spikes.remainder)
            return None
        size = clip.size_of(kind)
        found = files.read_bgr(path).shape[:2] if decode else files.image_size(path)
        if found != size:
            what = "{} frame of {} x {}".format(kind, *found)
            usual = "the first of the clip has {} x {}".format(*size)
            return Problem(clip.name, f"{what}, {usual}", path)
        if not decode and files.LMDB_MARK not in path:
            return _check_png_end(clip, path)
    except (DataError, formats.SpikeFileError) as e:
        return Problem(clip.name, e.what, path)
    return None


def _check_png_end(clip: Clip, path: str) -> Problem | None:
    """Check that a PNG is not cut short. Returns None for sound ones and for other files."""
    with files.reading(path), open(path, "rb") as file:
        if file.read(8) != files.PNG_SIGNATURE:
            return None
        length = Path(path).stat().st_size
        file.seek(max(0, length - len(PNG_END)))
        if file.read() == PNG_END:
            return None
    return Problem(clip.name, f"PNG of {length} bytes is cut short", path)


def _reductions(clips: list[Clip]) -> list[Problem]:
    """Warn of what reading images as 8-bit RGB loses, once for each kind of loss."""
    found: dict[str, Problem] = {}
    for clip in clips:
        for kind in clip.image_kinds:
            path = getattr(clip, kind)[0]
            what = files.reduction(path)
            if what and what not in found:
                found[what] = Problem(clip.name, f"{kind} {what}", path)
    return list(found.values())


def _slow_files(source: Source, clips: list[Clip]) -> list[Problem]:
    """Warn once of files in which a plane is reached only through all planes before it."""
    if not source.has_one_spike_file:
        return []
    for clip in clips:
        if files.is_read_from_start(clip.spike[0]):
            return [Problem(clip.name, files.FROM_START, clip.spike[0])]
    return []

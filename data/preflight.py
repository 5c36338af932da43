"""Check all data before a run: everything that can be known without training, all problems in one table.

The check of a data set is remembered under <path.root>/.preflight by a digest of the names, sizes and times of its
files, so that the next start of a run only lists the folders.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import cv2
import numpy as np

from data.clip import Clip
from data.clip_index import Problem, Source, digest, list_source, problems_error, scan
from data.frame_io import PNG_SIGNATURE, picture_size, read_bgr
from data.meta_file import read_meta
from data.roots import LMDB_MARK
from data.spike.light import fit_light
from data.spike.stream import SpikeFileError, read_dat
from data.spike_source import DatSpikes
from utils.errors import DataError
from utils.options.models import DatasetsOptions

logger = logging.getLogger(__name__)

FORMAT = 2  # raised where the check finds more than before: verdicts of older checks no longer count
THREADS = 8
PNG_END = b"IEND\xaeB`\x82"


@dataclass
class Report:
    """What is known of one split: its sound clips, everything wrong, and what only looks odd.

    places: kind of file -> (root, how files are named below it). note: how it is known, where nothing was looked at.
    """

    split: str
    places: dict[str, tuple[str, str]]
    clips: list[Clip]
    problems: list[Problem] = field(default_factory=list)
    warnings: list[Problem] = field(default_factory=list)
    note: str = ""

    def counts(self) -> str:
        """One line: clips, frames, sizes, planes."""
        sizes = sorted({f"{clip.size[0]} x {clip.size[1]}" for clip in self.clips})
        planes = sorted({count for clip in self.clips for count in clip.planes})
        text = f"{len(self.clips)} clips, {sum(len(clip) for clip in self.clips)} frames of {', '.join(sizes) or '-'}"
        return text + (f", spike files of {', '.join(map(str, planes))} planes" if planes else "")


def preflight(datasets: DatasetsOptions, remembered: Path) -> None:
    """Check the data of all splits; for one process only, before the others go on. Each dataset class checks its own.

    remembered: folder of earlier verdicts. Raises DataError (exit code 3) with every problem of every split; odd things
    are logged as warnings.
    """
    reports = []
    for split, section in datasets:
        if section is None:
            continue
        start = time.monotonic()
        report = section.constructor.check(section, split, remembered=remembered)
        reports.append(report)
        for warning in report.warnings:
            logger.warning("data %s: %s", split, warning)
        if not report.problems:
            note = report.note or f"{report.counts()}, checked in {time.monotonic() - start:.1f} s"
            logger.info("data %s: %s", split, note)
    raise_problems(reports)


def raise_problems(reports: list[Report], shown: int | None = None) -> None:
    """DataError for the problems of all reports, where there are any. shown: list so many, null for the usual."""
    problems = [problem for report in reports for problem in report.problems]
    if problems:
        roots = dict.fromkeys(root for r in reports if r.problems for root, _ in r.places.values())
        raise problems_error(problems, list(roots), shown)


def check_source(
    source: Source,
    split: str,
    remembered: Path | None = None,
    decode: bool = False,
    progress: Callable[[], None] = lambda: None,
) -> Report:
    """Everything that can be checked of clips in folders or LMDBs.

    remembered: folder of verdicts; what was checked there before, and has not changed, is not looked at again.
    decode: decode every picture, which also finds flipped bits; otherwise its header and its end are read.
    progress: called after each picture.
    """
    places = {kind: (root, f"<clip>/[{folder}/]<frame>.{ext}") for kind, (root, folder, ext) in source.kinds().items()}
    verdict = remembered / f"{_source_digest(source)}.json" if remembered else None
    counts = _remembered(verdict) if verdict else None
    if counts:
        return Report(split, places, [], note=f"{counts}, as checked before")
    clips, problems = scan(source)
    report = Report(split, places, clips, problems)
    jobs = [(clip, kind, path) for clip in clips for kind in ("lq", "gt") for path in getattr(clip, kind)]
    with ThreadPoolExecutor(THREADS) as pool:
        for problem in pool.map(lambda job: _check_picture(*job, decode=decode), jobs):
            progress()
            if problem:
                report.problems.append(problem)
    if source.spikes:
        for clip in clips:
            report.warnings += _look_at_spikes(clip, source.spikes)
        report.warnings += _look_at_light(clips[0], source.spikes) if clips else []
    if verdict and not report.problems:
        _remember(verdict, report)
    return report


def _check_picture(clip: Clip, kind: str, path: str, decode: bool) -> Problem | None:
    size = clip.size if kind == "lq" else clip.gt_size
    try:
        found = read_bgr(path).shape[:2] if decode else picture_size(path)
        if found != size:
            what = f"{kind} frame of {found[0]} x {found[1]}, the first of the clip has {size[0]} x {size[1]}"
            return Problem(clip.name, what, path)
        if not decode and LMDB_MARK not in path:
            _check_end(path)
    except DataError as e:
        return Problem(clip.name, e.what, path)
    return None


def _check_end(path: str) -> None:
    try:
        with open(path, "rb") as file:
            is_png = file.read(8) == PNG_SIGNATURE
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - len(PNG_END)))
            tail = file.read()
    except OSError as e:
        raise DataError(f"cannot read: {e.strerror or e}", path) from e
    if is_png and tail != PNG_END:
        raise DataError(f"PNG of {size} bytes is cut short", path)


def _look_at_spikes(clip: Clip, spikes: DatSpikes) -> list[Problem]:
    """A warning where the first file of a clip resembles its frame far more upside down than as it is read.

    A size check cannot tell whether rows are flipped: only the picture can.
    """
    path = clip.spike[0]
    if LMDB_MARK in path:
        return []
    try:
        stream = read_dat(path, spikes.geometry, remainder=spikes.remainder)
        frame = cv2.cvtColor(read_bgr(clip.lq[0]), cv2.COLOR_BGR2GRAY)
    except (SpikeFileError, DataError) as e:
        return [Problem(clip.name, f"not compared with its frame: {e.what}", path)]
    light = stream.mean(axis=0, dtype=np.float32)
    grey = cv2.resize(frame, light.shape[::-1], interpolation=cv2.INTER_AREA).astype(np.float32)
    if light.std() == 0:
        return [Problem(clip.name, f"all pixels of the spike file fire alike ({light.mean():.3f} per plane)", path)]
    as_read, flipped = (_correlation(grey, picture) for picture in (light, light[::-1]))
    if flipped > 0.5 and flipped > as_read + 0.3:
        what = f"spikes look upside down: correlation with the frame {as_read:.2f}, flipped {flipped:.2f} (spike.flip)"
        return [Problem(clip.name, what, path)]
    return []


def _look_at_light(clip: Clip, spikes: DatSpikes) -> list[Problem]:
    """A warning where nobody says which light the spikes integrate, and they do not look like linear light."""
    path = clip.spike[0]
    if spikes.is_light_known or LMDB_MARK in path:
        return []
    try:
        rates = read_dat(path, spikes.geometry, remainder=spikes.remainder).mean(axis=0, dtype=np.float32)
        grey = cv2.cvtColor(read_bgr(clip.lq[0]), cv2.COLOR_BGR2GRAY)
    except (SpikeFileError, DataError):
        return []  # the comparison of the whole clip has told
    fit = fit_light(rates, cv2.resize(grey, rates.shape[::-1], interpolation=cv2.INTER_AREA) / 255.0)
    if fit.light == spikes.light or not fit.is_clear:
        return []
    what = f"spikes look like {fit.light} light of rate {fit.rate:.2f}, {spikes.light} is assumed (spike.light)"
    return [Problem(clip.name, what, path)]


def _correlation(a: np.ndarray, b: np.ndarray) -> float:
    a, b = a - a.mean(), b - b.mean()
    norm = float(np.sqrt((a * a).sum() * (b * b).sum()))
    return float((a * b).sum()) / norm if norm else 0.0


def _source_digest(source: Source) -> str:
    """Changes with the files and with everything in the options that decides whether they are right."""
    spikes = source.spikes
    asked = [
        FORMAT, digest(list_source(source)), source.kinds(), source.filename_tmpl, sorted(source.left_out),
        read_meta(source.meta_info_file) if source.meta_info_file else None,
        [repr(spikes.geometry), repr(spikes.info), spikes.center, spikes.remainder, spikes.name, repr(spikes.options)]
        if spikes else None,
    ]  # fmt: skip
    return hashlib.sha256(json.dumps(asked).encode()).hexdigest()[:16]


def _remembered(verdict: Path) -> str | None:
    """What an earlier check of the same files and options counted; None where there was none, or it cannot be read."""
    try:
        return json.loads(verdict.read_text(encoding="utf-8"))["counts"]
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _remember(verdict: Path, report: Report) -> None:
    try:
        verdict.parent.mkdir(parents=True, exist_ok=True)
        temporary = verdict.with_suffix(".tmp")
        temporary.write_text(json.dumps({"counts": report.counts(), "split": report.split}), encoding="utf-8")
        os.replace(temporary, verdict)
    except OSError as e:
        logger.info("the data check cannot be remembered: %s", e)

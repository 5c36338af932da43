"""Check all data before a run and report all problems in one table.

The result for a data set is stored under <path.root>/.preflight by a digest of the names, sizes and times of change
of its files, so that the next start of a run only lists the folders.
"""

import hashlib
import itertools
import json
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from data.augment import Augment
from data.clip import IMAGE_KINDS, Clip
from data.clips import files, manifest
from data.clips.manifest import Problem, Source
from data.spike import formats, represent, simulate
from utils.dist import watchdog
from utils.errors import DataError
from utils.files import write_whole
from utils.json_file import read_json
from utils.options.models import DatasetsOptions
from utils.run.progress import open_progress

logger = logging.getLogger(__name__)

Show = Callable[[int, str, str], Any]  # (total, name, unit) -> a progress, for a `with`
HIDDEN: Show = partial(open_progress, "none")

FORMAT = 5  # to be raised when the check finds more than before: stored results of older checks are then ignored
THREADS = 8
# The folder of the mean of such values, as GoPro and scripts/prepare_gopro_spike.py name them.
FITTING = {"display": "blur", "linear": "blur_gamma"}
PNG_END = b"IEND\xaeB`\x82"


@dataclass
class Report:
    """The result for one root of a split: its clips without problems, the problems, and the warnings.

    note: replaces the counts in the log where no file was read.
    """

    name: str
    source: Source
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


def preflight(datasets: DatasetsOptions, stored: Path, show: Show = HIDDEN, scale: int = 1) -> None:
    """Check the data of all splits, each by its dataset class. One process calls it while the others wait.

    stored: folder of earlier results. show, scale: see `check_source`. Raises DataError (exit code 3) with every problem of
    every split.
    """
    reports, unreadable = [], []
    for split, section in datasets:
        if section is None or not hasattr(section.constructor, "check"):  # a plain torch Dataset
            continue
        start = time.monotonic()
        try:
            found = section.constructor.check(section, split, stored=stored, show=show, scale=scale)
        except DataError as e:  # a whole root is missing; the other split may lack one too
            unreadable.append(e)
            continue
        reports += found
        for report in found:
            for warning in report.warnings:
                logger.warning("data %s: %s", split, warning)
            if not report.problems:
                note = (
                    report.note or f"{report.counts()}, checked in {time.monotonic() - start:.1f} s"
                )
                logger.info("data %s: %s", report.name, note)
    manifest.raise_problems(
        ((report.source, report.problems) for report in reports), unreadable=unreadable
    )


def check_source(
    source: Source,
    name: str,
    stored: Path | None = None,
    decode: bool = False,
    show: Show = HIDDEN,
    scale: int = 1,
) -> Report:
    """Check clips in folders or LMDBs. name: of the split and the root.

    stored: folder of earlier results; a data set that has not changed since is not read again.
    decode: decode every image, which also finds flipped bits; otherwise only its header and its end are read.
    show: called with the number of files, opens their progress.
    scale: of the network, the side of gt over the side of lq.
    """
    file, spikes = None, source.spikes
    if stored:
        # Changes with the files and with every option that the check depends on.
        asked = [
            FORMAT, scale, manifest.digest(manifest.list_source(source)), source.kinds(), source.filename_tmpl,
            sorted(source.left_out), source.listed,
            [repr(spikes.geometry), repr(spikes.info), spikes.center, spikes.remainder, spikes.name,
             repr(spikes.options), spikes.rate, spikes.light, spikes.timing.describe()] if spikes else None,
        ]  # fmt: skip
        every = [spikes, *source.own_spikes.values()] if spikes else []
        asked += [one.calibration.digest() for one in every if one.calibration]
        file = stored / f"{hashlib.sha256(json.dumps(asked).encode()).hexdigest()[:16]}.json"
        try:
            before = read_json(file)
            warnings = [Problem(*warning) for warning in before["warnings"]]
            return Report(
                name, source, [], warnings=warnings, note=f"{before['counts']}, as checked before"
            )
        except (OSError, ValueError, KeyError, TypeError):
            pass  # never checked, or a result that cannot be read
    clips, problems = manifest.scan(source)
    report = Report(name, source, clips, problems, source.notes(len(clips)))
    # With another scale the sizes differ from the network's, which says more of the cause.
    if scale == 1:
        report.problems += manifest.same_files(source, clips)
        if not report.problems and manifest.have_same_content(source, clips):
            report.warnings.append(
                Problem(clips[0].name, manifest.SAME_CONTENT, source.dataroot_lq)
            )
    places = [
        (clip, kind)
        for kinds in (IMAGE_KINDS, ("spike_files",))
        for clip in clips
        for kind in kinds
    ]
    jobs = ((clip, kind, path) for clip, kind in places for path in getattr(clip, kind))
    total = sum(len(getattr(clip, kind)) for clip, kind in places)
    with ThreadPoolExecutor(THREADS) as pool, show(total, f"checking {name}", "files") as progress:
        while some := list(
            itertools.islice(jobs, 4096)
        ):  # the pool's record of a million jobs would take gigabytes
            for problem in pool.map(lambda job: _check_file(*job, decode), some):
                progress.update()
                watchdog.go_on()
                if problem:
                    report.problems.append(problem)
    lossy = {}
    for clip in clips:
        for kind in clip.image_kinds:
            path = getattr(clip, kind)[0]
            if what := files.reduction(path):
                lossy.setdefault(what, Problem(clip.name, f"{kind} {what}", path))
    report.warnings += lossy.values()
    if spikes:
        for clip in clips:
            report.warnings += _check_spikes(clip, is_first=clip is clips[0])
        slow = [
            clip
            for clip in clips
            if source.has_one_spike_file and files.is_read_from_start(clip.spike[0])
        ]
        report.warnings += [
            Problem(clip.name, files.FROM_START, clip.spike[0]) for clip in slow[:1]
        ]
    if file and not report.problems:
        try:
            write_whole(
                file, json.dumps({"counts": report.counts(), "warnings": report.warnings}).encode()
            )
        except DataError as e:
            logger.info("the result of the data check cannot be stored: %s", e)
    return report


def _check_file(clip: Clip, kind: str, path: str, decode: bool) -> Problem | None:
    """kind: of data.clip.IMAGE_KINDS, or "spike_files". Spikes in an LMDB are not read."""
    try:
        if kind == "spike_files":
            if files.LMDB_MARK not in path:  # a header, or the lines of another sensor
                formats.open_spikes(path, clip.spikes.geometry, clip.spikes.remainder)
            return None
        size, found = (
            clip.size_of(kind),
            files.read_bgr(path).shape[:2] if decode else files.image_size(path),
        )
        if found != size:
            what = f"{kind} frame of {found[0]} x {found[1]}, the first of the clip has {size[0]} x {size[1]}"
            return Problem(clip.name, what, path)
        if not decode and files.LMDB_MARK not in path:
            with files.reading(path), open(path, "rb") as file:
                is_png, length = file.read(8) == files.PNG_SIGNATURE, Path(path).stat().st_size
                file.seek(max(0, length - len(PNG_END)))
                if is_png and file.read() != PNG_END:
                    return Problem(clip.name, f"PNG of {length} bytes is cut short", path)
    except (DataError, formats.SpikeFileError) as e:
        return Problem(clip.name, e.what, path)
    return None


def _check_spikes(clip: Clip, is_first: bool) -> list[Problem]:
    """Warnings from comparing the first spike file of a clip with its frame; sizes alone cannot show these errors.

    Rows may be stored in the other order than spike.flip says. In the first clip, where neither the options nor
    dataset.json give the light, the spikes may fit the other kind of light better.
    """
    own, grid, spikes = clip.exposures[0].own, clip.grid, clip.spikes
    path = own.file
    if files.LMDB_MARK in path:
        return []
    try:
        stream = formats.read_spikes(
            path, spikes.geometry, own.first, own.count, remainder=spikes.remainder
        )
        rates = stream.mean(axis=0, dtype=np.float32)
        grey = cv2.cvtColor(files.read_bgr(clip.lq[0]), cv2.COLOR_BGR2GRAY)
    except (formats.SpikeFileError, DataError) as e:
        return [Problem(clip.name, f"not compared with its frame: {e.what}", path)]
    if rates.std() == 0:
        return [
            Problem(
                clip.name,
                f"all pixels of the spike file have the same firing rate {rates.mean():.3f}",
                path,
            )
        ]
    found, both = [], (rates, rates[::-1])
    if spikes.calibration:
        window = grid.window(Augment.whole(clip.size))
        top, left, height, width = grid.region
        seen, read = (slice(top, top + height), slice(left, left + width)), window.crop.slices
        grey, both = grey[seen], tuple(window.to_rgb(image[read][None])[0][seen] for image in both)
        rates = both[0]
    else:
        grey = cv2.resize(grey, rates.shape[::-1], interpolation=cv2.INTER_AREA)
    with np.errstate(invalid="ignore"):  # of a frame of one colour
        as_read, flipped = np.nan_to_num(np.corrcoef([image.ravel() for image in (grey, *both)]))[
            0, 1:
        ]
    if flipped > 0.5 and flipped > as_read + 0.3:
        seen = f"correlation with the frame {as_read:.2f}, flipped {flipped:.2f}"
        found.append(f"spikes look upside down: {seen} (spike.flip)")
    elif spikes.calibration and as_read < 0.5:
        found.append(
            f"spikes do not resemble the frame: correlation {as_read:.2f} (spike.calibration)"
        )
    fit = simulate.fit_light(rates, grey / 255.0)
    if is_first and not spikes.is_light_known and fit.is_clear and fit.light != spikes.light:
        seen = f"{fit.light} light of rate {fit.rate:.2f}"
        found.append(f"spikes look like {seen}, {spikes.light} is assumed (spike.light)")
    # Ratios are of light to that of the exposure, which is the blurry frame.
    if is_first and represent.REPRESENTATIONS[spikes.name].is_ratio:
        folder, fitting, rate = Path(clip.lq[0]).parent, FITTING[spikes.light], float(rates.mean())
        if (
            folder.name in FITTING.values()
            and folder.name != fitting
            and folder.with_name(fitting).is_dir()
        ):
            what = f"{folder.name} is not the mean of the {spikes.light} values that the spikes integrate"
            found.append(
                f"{what}, so frame x ratio is not the sharp frame (about 1 dB): set lq_folder to {fitting}"
            )
        windows = spikes.options.get("half_windows", ())
        planes = [half * own.count / 2 if half < 1 else half for half in windows]
        if len(windows) > 1 and (2 * max(planes) + 1) * rate < 1:
            found.append(
                f"{rate:.3f} spikes per plane: the windows of half_windows {list(windows)} mostly lie between the same "
                "two spikes (spike.representation.half_windows): take wider ones"
            )
    return [Problem(clip.name, what, path) for what in found]

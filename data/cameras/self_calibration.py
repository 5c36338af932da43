"""Calibrate two cameras from the frames and spikes of a clip (`spike.calibration` "auto").

`calibrate_clips` is called once, when the clips of a data set are listed. For each clip it compares
FRAMES blurry frames with the spikes around their exposures (`fit` in
data/cameras/registration/fit.py). The clip gets the calibration that the fit finds. A plane is one
read-out of the spike camera.

A fit takes seconds for each clip. Two things save time:

    * The ranks of a run share the work: each rank fits some of the clips, and then all ranks get
      all results.
    * Rank 0 writes each result to <path.root>/.preflight/calibration_<key>.json, and later starts
      read the file. If the user changes files or options, the key changes, so an old result is not
      read. If you change the fit itself, raise FORMAT, because the key does not contain the code.

A function marked "Collective" exchanges data between ranks: every rank must call it, in the same
order. If a rank leaves out such a call, all other ranks hang.

What must stay: the fields of a kept result and their meanings, unless FORMAT gets a new number. The
choice of the compared frames and the rounding in `_calibration_of` must stay, too, because they
decide the calibration, and so the samples of a run.

Tests: tests/parts/data/test_self_calibration.py
"""

import dataclasses
import hashlib
import json
import logging
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from data.augment import Augment
from data.cameras.calibration import Calibration
from data.cameras.frame_planes import exposures_of
from data.cameras.registration.fit import MOST_OFFSET, fit
from data.cameras.registration.matrix import nominal_matrix
from data.cameras.registration.result import FitResult
from data.cameras.registration.view import View
from data.cameras.spike_errors import spike_errors_as_data_errors
from data.cameras.spike_source import DatSpikes
from data.clip import Clip, Exposure
from data.clips.listed_files import stamp
from data.disagreement import INVERT_ADVICE
from data.spike.geometry import Crop
from utils import utils_dist
from utils.dist import watchdog
from utils.dist.state import RUN
from utils.errors import DataError
from utils.files import write_whole
from utils.words import counted

# Raise this number if the fit finds other values than before, or if the fields of a result change.
# With a new number, the kept results of older versions are ignored.
FORMAT = 3
# Number of frames of a clip that are compared, spread evenly over the clip. With more frames, a fit
# takes longer. The figures of docs/benchmarks/calibration.md were measured with 8 frames.
FRAMES = 8
# Number of additional planes that are read before the exposure, and after it. At the ends of the
# files there may be fewer planes. The fit needs the planes for three reasons. If you raise one of
# the constants in brackets, raise this number, too:
#
#     20          the exposure may be earlier or later than the options say, because the clocks of
#                 the two cameras may differ (MOST_OFFSET in registration/fit.py)
#     8           planes around start and end are compared (MOST_REACH in registration/view.py)
#     the rest    the exposure may be longer, and the shutter may roll (MOST_LENGTH and MOST_ROLL in
#                 registration/estimate.py), e.g. up to 13 planes for an exposure of 56 planes
AROUND = 40
# An offset that is nearer than this number of planes to the end of the search counts as its end.
# Chosen by hand: the search stops at the end itself.
END_OF_SEARCH = 0.5

logger = logging.getLogger(__name__)


def calibrate_clips(clips: Sequence[Clip], files: Any) -> list[Clip]:
    """Return the clips with the calibrations that were fitted. Logs the result of each fit.

    A clip is fitted if its `spike.calibration` is "auto", and dataset.json gives no calibration for
    the clip. All other clips stay as they are. Collective (every rank must call it) if there is a
    clip to fit.

    files: object that reads frames and spikes: a `DiskFiles` (data/clips/disk_files.py), or with a
        clip cache a `CacheReader` (data/clips/clip_cache.py). The functions below have the same
        argument `files`.
    """
    clips = list(clips)
    to_calibrate = []  # indices of the clips to calibrate
    for clip_index, clip in enumerate(clips):
        if clip.spikes and clip.spikes.is_auto and not clip.spikes.calibration:
            to_calibrate.append(clip_index)
    if not to_calibrate:
        return clips
    results = _results_of([clips[clip_index] for clip_index in to_calibrate], files)
    for clip_index, result in zip(to_calibrate, results, strict=True):
        clip = clips[clip_index]
        if utils_dist.is_main_process():
            logger.info("spikes of %s, calibration: %s", clip.name, result.sentence())
            _warn_of_unlikely_values(clip.name, result)
        clips[clip_index] = _calibrated_clip(clip, result)
    return clips


def _warn_of_unlikely_values(clip_name: str, result: FitResult) -> None:
    """Log a warning if the fit found values that no right spikes have. The values stay in use."""
    # Spikes that are inverted fit as exactly as others, with a negative gain.
    if result.is_matrix_found and result.gain < 0:
        logger.warning(
            "spikes of %s do not show the same as the frames: they are fewer where the frames are "
            "brighter, so their bits seem inverted: %s",
            clip_name,
            INVERT_ADVICE,
        )
    # The fit searches offsets of at most MOST_OFFSET. If the best offset is the last one searched,
    # the true offset lies further away, or another number of the exposure is wrong.
    if result.is_matrix_found and abs(result.offset) > MOST_OFFSET - END_OF_SEARCH:
        logger.warning(
            "spikes of %s: the best time offset, %+.1f planes, is the last one searched, so it is "
            "not sure: check start, length and period of spike.exposure; if the clocks differ by "
            "more than %g planes, find the time by scripts/calibrate.py --search-planes",
            clip_name,
            result.offset,
            MOST_OFFSET,
        )


# ---- Fitting all clips -------------------------------------------------------------------------


def _results_of(clips: Sequence[Clip], files: Any) -> list[FitResult]:
    """Return the result of each clip: read from a file of an earlier run, or fitted now.

    Collective: every rank must call it, in the same order as other collective functions.
    """
    is_main = utils_dist.is_main_process()
    begin = time.monotonic()

    # The file for the result of each clip. Only rank 0 reads and writes these files. So on the
    # other ranks, each element is None.
    kept_files: list[Path | None] = [None] * len(clips)
    if is_main:
        kept_files = [_file_for_result(clip, files) for clip in clips]
    # A result for each clip. The entry is None if the clip is not fitted yet.
    results: list[Any] = _kept_results(kept_files)

    # In each round, every rank fits one of the clips without a result, and gets the results of all
    # clips of the round. E.g. with 4 ranks and 6 such clips: a round of 4 clips, and a round of 2.
    without_result = [index for index, result in enumerate(results) if result is None]
    world = utils_dist.get_world_size()  # number of ranks
    for first in range(0, len(without_result), world):
        watchdog.go_on()  # this rank makes progress, so the watchdog must not end the run
        in_round = without_result[first : first + world]  # indices of at most `world` clips
        new_results = _fit_on_ranks([clips[index] for index in in_round], files)
        for index, result in zip(in_round, new_results, strict=True):
            results[index] = result
            # Write each result at once, so that it is kept if the run ends during a later round.
            # Without a file, e.g. on every rank except rank 0, `_write_result` does nothing.
            _write_result(result, kept_files[index])

    # RUN.checks_folder is the folder in which results are kept. It is None if there is no option
    # file.
    if is_main and RUN.checks_folder:
        text = "spike.calibration auto: %s fitted in %.1f s, %d known from an earlier run"
        seconds = time.monotonic() - begin
        fitted = counted(len(without_result), "clip")
        logger.info(text, fitted, seconds, len(clips) - len(without_result))
    return results


def _kept_results(kept_files: Sequence[Path | None]) -> list[FitResult | None]:
    """Return the kept result of each clip, or None for a clip without a kept result.

    Collective: every rank must call it. Rank 0 reads the results and sends them to all ranks.

    kept_files: the file for the result of each clip. None: there is no file, or this rank is not
    rank 0.
    """
    tables = []  # the fields of each result as a dict, because ranks send each other plain values
    for path in kept_files:
        result = _read_result(path)
        tables.append(vars(result) if result else None)
    tables_of_rank_0 = utils_dist.from_rank(0, tables)
    return [FitResult(**table) if table else None for table in tables_of_rank_0]


def _fit_on_ranks(clips: Sequence[Clip], files: Any) -> list[FitResult]:
    """Fit some clips, at most one on each rank. Every rank gets the results of all clips.

    Collective: every rank must call it, even a rank that has no clip to fit.

    clips: clips to fit, at most one for each rank. Rank 0 fits the first clip, rank 1 the second.
    """
    rank = utils_dist.get_rank()
    tables = []  # the fields of the result of this rank as a dict; empty if the rank has no clip
    if rank < len(clips):
        tables.append(vars(_fit_clip(clips[rank], files)))
    # `gather_objects` is collective, so a rank without a clip must call it, too.
    tables_of_ranks = utils_dist.gather_objects(tables)
    results = []
    for tables_of_rank in tables_of_ranks[: len(clips)]:  # the ranks that had a clip
        [table] = tables_of_rank  # a list with one element
        results.append(FitResult(**table))
    return results


def _fit_clip(clip: Clip, files: Any) -> FitResult:
    """Fit the calibration of a clip to FRAMES of its blurry frames and their spikes.

    files: object that reads frames (`images`) and spikes (`stream`), see `calibrate_clips`.
    """
    height = clip.spikes.geometry.height  # height of a spike plane
    width = clip.spikes.geometry.width
    size = (height, width)
    whole_plane = Crop(top=0, left=0, height=height, width=width)
    views = []
    for index, exposure in _compared_frames(clip):
        # "lq" is the blurry frame. OpenCV has the colours in the order B, G, R, a `View` in the
        # order R, G, B.
        [bgr] = files.images(clip, "lq", [index], Augment.whole(clip.size))
        rgb = bgr[..., ::-1]
        # An exposure may reach over several spike files, with a piece of planes in each.
        pieces = []
        with spike_errors_as_data_errors():
            for piece in exposure.pieces:
                pieces.append(files.stream(clip, piece, whole_plane))
        stream = np.concatenate(pieces)  # (T, h, w)
        # `stream` has exposure.before planes of context, then the planes of the exposure itself
        # (`own`), then context again.
        views.append(View(rgb, stream, before=exposure.before, count=exposure.own.count))
    # `fit` needs exposures of one length. E.g. the last exposure of a clip has 50 planes, and the
    # others have 56. Leave out every exposure whose length differs from the length of the first.
    views = [view for view in views if view.count == views[0].count]
    return fit(views, nominal_matrix(size, clip.size), clip.spikes.light)


def _compared_frames(clip: Clip) -> list[tuple[int, Exposure]]:
    """Return (number, exposure) of each frame that is compared.

    An exposure includes AROUND planes of context before it and after it, as far as they exist.
    """
    # A copy of the settings, in which spike.context is AROUND.
    with_context = clip.spikes.changed(context=AROUND)
    around = _exposures_read_by(with_context, clip)
    # E.g. the frames 0, 14, 28, 42, 57, 71, 85 and 99 of 100 frames. In a clip with fewer than
    # FRAMES frames, some numbers come twice. A set has each number once.
    numbers = {round(i) for i in np.linspace(0, len(clip) - 1, FRAMES)}
    return [(number, around[number]) for number in sorted(numbers)]


def _exposures_read_by(spikes: DatSpikes, clip: Clip) -> tuple[Exposure, ...]:
    """Return which planes `spikes` reads for each frame of a clip.

    Raises DataError if the spike files do not have all planes that these exposures need.
    """
    return exposures_of(
        spikes,
        clip.name,
        files=list(clip.planes_of_spike_files.items()),
        frames=len(clip),
        times=clip.times,
    )


def _calibrated_clip(clip: Clip, result: FitResult) -> Clip:
    """Return the clip with a calibration of the values that the fit has found.

    A value that is not applied (`FitResult.is_applied`), e.g. because its error is too large, keeps
    its nominal value. If no value is applied, the clip stays as it is.
    """
    if not any(result.is_applied):
        return clip
    calibration = _calibration_of(clip, result)
    try:
        return _clip_with(calibration, clip)
    except DataError as e:
        # With the found offset and share, frames need planes that the files lack.
        logger.warning(
            "spikes of %s, calibration: the times stay as they were: %s", clip.name, e.what
        )
    # The found times cannot be used, so use only the found matrix. For the times, take the nominal
    # values, as in `_calibration_of`.
    without_times = {"time_offset_planes": 0.0, "exposure_share": 1.0}
    return _clip_with(calibration.model_copy(update=without_times), clip)


def _clip_with(calibration: Calibration, clip: Clip) -> Clip:
    """Return a clip with a calibration, and with the exposures that follow from it.

    Raises DataError if the spike files do not have all planes that these exposures need.
    """
    spikes = clip.spikes.changed(calibration)  # a copy with this calibration
    exposures = _exposures_read_by(spikes, clip)
    return dataclasses.replace(clip, spikes=spikes, exposures=exposures)


def _calibration_of(clip: Clip, result: FitResult) -> Calibration:
    """Return the found values as a calibration. A value that is not applied gets its nominal value.

    The values are rounded, so that messages and digests do not depend on the last bits of a fit.
    """
    is_applied = result.is_applied
    size = (clip.spikes.geometry.height, clip.spikes.geometry.width)
    # The nominal values.
    matrix = nominal_matrix(size, clip.size)
    time_offset = 0.0
    exposure_share = 1.0
    # The found values that are applied.
    if is_applied.matrix:
        matrix = result.matrix
    if is_applied.offset:
        time_offset = round(result.offset, 1)
    # Keep nine digits of the exposure share. `Calibration.share_to_read` is 1.12 times this value,
    # rounded to 3 digits, and it is a part of the digest of a run. A coarser value could change the
    # third digit, and then an existing run would not be recognised. `Calibration` refuses a share
    # above 1, because a frame cannot be exposed longer than all its planes last.
    if is_applied.share:
        exposure_share = round(min(result.share, 1.0), 9)
    # Two rows are enough, because the fit finds only a shift, a scale and a turn (`fit` in
    # registration/fit.py). So the third row stays 0 0 1.
    return Calibration(
        matrix=matrix[:2].round(5).tolist(),
        spike_size=list(size),
        rgb_size=list(clip.size),
        time_offset_planes=time_offset,
        exposure_share=exposure_share,
        made={"by": "spike.calibration auto"},
    )


# ---- What is kept for later starts -------------------------------------------------------------


def _file_for_result(clip: Clip, files: Any) -> Path | None:
    """Return the file for the result of a clip, calibration_<key>.json.

    The key is a digest of everything that decides the result: files, options, compared frames.
    Returns None if this run keeps no results. Also returns None if no file of the clip is on this
    machine, because then a change of the files could not be noticed.
    """
    if not RUN.checks_folder:
        return None
    compared = _compared_frames(clip)
    names = _names_of_read_files(clip, compared, files)
    stamps = [stamp(name) for name in dict.fromkeys(names)]  # each name once, in this order
    # A stamp is (size, time of change), or (0, 0) for a file that is not on this machine.
    has_file = any(file_stamp != (0, 0) for file_stamp in stamps)
    if not has_file:
        return None

    # `properties` are the values that decide the result besides the files. The key is made from
    # their repr. So if the repr of one of the types changes, the results of earlier runs are not
    # found again.
    spikes = clip.spikes
    properties = (spikes.geometry, spikes.remainder, spikes.light, clip.size, compared)
    text = repr((FORMAT, names, stamps, properties))
    key = hashlib.sha256(text.encode()).hexdigest()[:16]
    return RUN.checks_folder / f"calibration_{key}.json"


def _names_of_read_files(clip: Clip, compared: list[tuple[int, Exposure]], files: Any) -> list[str]:
    """Return the names of the blurry frames and spike files that are compared.

    With a clip cache, the result also has the names of the files of the cache, because the original
    files need not be on this machine. A name may come several times.

    compared: the result of `_compared_frames`.
    """
    names = [clip.lq[index] for index, _ in compared]
    for _, exposure in compared:
        for piece in exposure.pieces:
            names.append(piece.file)
    cache = getattr(files, "path", None)  # folder of the cache. A `DiskFiles` has none
    if cache:
        for kind in ("lq", "spike"):
            names.append(str(Path(cache, clip.name, f"{kind}.u8")))
    return names


def _read_result(path: Path | None) -> FitResult | None:
    """Return the result that an earlier run wrote to a file, or None if there is none."""
    if path is None:
        return None
    try:
        # The fields of `FitResult`, with the matrix as a list of rows.
        fields = json.loads(path.read_text(encoding="utf-8"))
        fields["matrix"] = np.array(fields["matrix"], float)
        return FitResult(**fields)
    except (OSError, ValueError, KeyError, TypeError):
        # The clip was never fitted, or a different program wrote the file.
        return None


def _write_result(result: FitResult, path: Path | None) -> None:
    """Write a result to its file. Does nothing if `path` is None.

    An existing file is never overwritten. This function is called only if `_read_result` found no
    result. So if the file exists, it could not be read, and a different program may have written
    it.

    If an existing file is overwritten,
    test_a_clip_is_fitted_again_if_its_kept_calibration_cannot_be_used fails.
    """
    if path is None or path.exists():
        return
    text = json.dumps(dataclasses.asdict(result), default=np.ndarray.tolist)
    try:
        write_whole(path, text.encode())
    except DataError as e:
        # Without the file, a later run must fit the clip again. This run needs no file.
        logger.info("the calibration cannot be kept: %s", e)

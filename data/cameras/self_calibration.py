"""Calibrate two cameras from a clip itself: `spike.calibration` "auto".

Each clip is calibrated once: every rank fits a part of the clips, all get what each found, and rank
0 keeps it beside the run (<path.root>/.preflight) for later starts.
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
from data.cameras.registration import Found, View, fit, nominal
from data.cameras.spike_grid import Calibration
from data.cameras.spike_info import spike_errors_as_data_errors
from data.cameras.spike_source import DatSpikes
from data.clip import Clip, Exposure
from data.clips.files import stamp
from data.spike.formats import Crop
from utils import utils_dist
from utils.dist import watchdog
from utils.dist.state import RUN
from utils.errors import DataError
from utils.files import write_whole

FORMAT = (
    1  # to be raised when the fit finds something else than before: what was kept is then ignored
)
FRAMES = 8  # of a clip that are compared, spread over it
AROUND = 40  # planes before and after an exposure that are read, as far as there are any

logger = logging.getLogger(__name__)


def calibrated(clips: Sequence[Clip], files: Any) -> list[Clip]:
    """The clips, with the calibrations that their frames show where `spike.calibration` is "auto";
    says what was found.

    files: an io backend. A clip whose calibration dataset.json gives stays as it is. Collective
    where there are any.
    """
    clips = list(clips)
    wanted = [
        i
        for i, clip in enumerate(clips)
        if clip.spikes and clip.spikes.is_auto and not clip.spikes.calibration
    ]
    if wanted:
        for i, found in zip(wanted, _found_in([clips[i] for i in wanted], files), strict=True):
            if utils_dist.is_main_process():
                logger.info("spikes of %s, calibration: %s", clips[i].name, found.sentence())
            clips[i] = _with(clips[i], found)
    return clips


def _found_in(clips: Sequence[Clip], files: Any) -> list[Found]:
    """What each clip shows: kept by an earlier run, or fitted now, by each rank in turn one clip.

    Collective.
    """
    is_main, world = utils_dist.is_main_process(), utils_dist.get_world_size()
    begin, kept = time.monotonic(), [_kept(clip, files) for clip in clips] if is_main else []
    found = [
        known and Found(**known)
        for known in utils_dist.from_rank(0, [known and vars(known) for known, _ in kept])
    ]
    missing = [i for i, known in enumerate(found) if known is None]
    for first in range(0, len(missing), world):
        together = missing[first : first + world]
        mine = together[utils_dist.get_rank() :][:1]
        watchdog.go_on()
        for i, one in zip(
            together,
            utils_dist.gather_objects([vars(_fitted(clips[i], files)) for i in mine]),
            strict=False,
        ):
            found[i] = Found(**one[0])
            place = kept[i][1] if is_main else None
            if place and not place.exists():  # what is there cannot be read, and may not be ours
                try:
                    write_whole(
                        place,
                        json.dumps(
                            dataclasses.asdict(found[i]), default=np.ndarray.tolist
                        ).encode(),
                    )
                except DataError as e:
                    logger.info("the calibration cannot be kept: %s", e)
    if is_main and RUN.kept:
        text = "spike.calibration auto: %d clips fitted in %.1f s, %d known from an earlier run"
        logger.info(text, len(missing), time.monotonic() - begin, len(clips) - len(missing))
    return found


def _compared(clip: Clip) -> list[tuple[int, Exposure]]:
    """The frames of a clip that are compared, each with the planes around its exposure."""
    around = _exposures(clip, clip.spikes.changed(context=AROUND))
    return [
        (index, around[index])
        for index in sorted({round(i) for i in np.linspace(0, len(clip) - 1, FRAMES)})
    ]


def _exposures(clip: Clip, spikes: DatSpikes) -> tuple[Exposure, ...]:
    """The planes of each frame, as `spikes` reads them."""
    return spikes.exposures(clip.name, list(clip.spike_files.items()), len(clip), clip.times)


def _fitted(clip: Clip, files: Any) -> Found:
    size, views = (clip.spikes.geometry.height, clip.spikes.geometry.width), []
    for index, exposure in _compared(clip):
        frame = files.images(clip, "lq", [index], Augment.whole(clip.size))[0]
        with spike_errors_as_data_errors():
            stream = np.concatenate(
                [files.stream(clip, piece, Crop(0, 0, *size)) for piece in exposure.pieces]
            )
        views.append(View(frame[..., ::-1], stream, exposure.before, exposure.own.count))
    views = [view for view in views if view.count == views[0].count]
    return fit(views, nominal(size, clip.size), clip.spikes.light)


def _with(clip: Clip, found: Found) -> Clip:
    """The clip with those parts of what was found that change it."""
    if not any(changed := found.is_changed):
        return clip
    spikes = clip.spikes
    size = (spikes.geometry.height, spikes.geometry.width)
    matrix = found.matrix if changed[0] else nominal(size, clip.size)
    calibration = Calibration(
        matrix=matrix[:2].round(5).tolist(),
        spike_size=list(size),
        rgb_size=list(clip.size),
        time_offset_planes=round(found.offset, 1) if changed[1] else 0.0,
        exposure_share=round(found.share_to_read, 3) if changed[2] else 1.0,
        made={"by": "spike.calibration auto"},
    )
    try:
        own = spikes.changed(calibration)
        exposures = _exposures(clip, own)
    except DataError as e:  # planes that the files lack
        logger.warning(
            "spikes of %s, calibration: the times stay as they were: %s", clip.name, e.what
        )
        own = spikes.changed(
            calibration.model_copy(update={"time_offset_planes": 0.0, "exposure_share": 1.0})
        )
        exposures = _exposures(clip, own)
    return dataclasses.replace(clip, spikes=own, exposures=exposures)


def _kept(clip: Clip, files: Any) -> tuple[Found | None, Path | None]:
    """What an earlier run found in a clip, and its file, named by all that decides it; None where
    nothing is kept.
    """
    if not RUN.kept:
        return None, None
    spikes, compared = clip.spikes, _compared(clip)
    names = [clip.lq[index] for index, _ in compared] + [
        p.file for _, exposure in compared for p in exposure.pieces
    ]
    if cache := getattr(files, "path", None):  # the source need not be on this machine
        names += [str(Path(cache, clip.name, f"{kind}.u8")) for kind in ("lq", "spike")]
    stamps = [stamp(name) for name in dict.fromkeys(names)]
    how = spikes.geometry, spikes.remainder, spikes.light, clip.size, compared
    key = hashlib.sha256(repr((FORMAT, names, stamps, how)).encode()).hexdigest()[:16]
    if not any(any(each) for each in stamps):
        return None, None
    place = RUN.kept / f"calibration_{key}.json"
    try:
        table = json.loads(place.read_text(encoding="utf-8"))
        return Found(**table | {"matrix": np.array(table["matrix"], float)}), place
    except (OSError, ValueError, KeyError, TypeError):
        return None, place  # never fitted, or no file of ours

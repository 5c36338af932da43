"""Compare the spikes of a clip with its frames, for errors that sizes alone cannot show.

Rows may be stored in the other order than spike.flip says, the spikes may have integrated another
kind of light than is assumed, or they may belong to other frames.
"""

from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np

from data.augment import Augment
from data.cameras.spike_source import DatSpikes
from data.clip import Clip
from data.clips import files
from data.clips.source import Problem
from data.spike import formats, represent, simulate
from utils.errors import DataError

# Kind of light -> the folder of frames that are means of such values, as GoPro and
# scripts/prepare_gopro_spike.py name it.
FITTING = {"display": "blur", "linear": "blur_gamma"}
# Correlation of firing rates with the frame from which on both show the same.
LEAST_CORRELATION = 0.5
# Flipped spikes must fit by so much better: texture may look alike both ways.
CLEARLY_BETTER = 0.3


class Views(NamedTuple):
    """The same part of a scene as both cameras see it: (h, w) each.

    grey: the blurry frame, values 0 ... 255. rates: spikes per plane. flipped: the rates if rows
    were stored in the other order.
    """

    grey: np.ndarray
    rates: np.ndarray
    flipped: np.ndarray


def check_spikes(clip: Clip, is_first: bool) -> list[Problem]:
    """Return warnings from comparing the spikes of the first frame of a clip with the frame.

    is_first: whether it is the first clip of a data set. Light and windows are the same for all
    clips, so they are checked there only.
    """
    spikes = clip.spikes
    own = clip.exposures[0].own
    if files.LMDB_MARK in own.file:
        return []
    try:
        stream = formats.read_spikes(
            own.file, spikes.geometry, own.first, own.count, remainder=spikes.remainder
        )
        grey = cv2.cvtColor(files.read_bgr(clip.lq[0]), cv2.COLOR_BGR2GRAY)
    except (formats.SpikeFileError, DataError) as e:
        return [Problem(clip.name, f"not compared with its frame: {e.what}", own.file)]
    rates = stream.mean(axis=0, dtype=np.float32)
    if rates.std() == 0:
        what = f"all pixels of the spike file have the same firing rate {rates.mean():.3f}"
        return [Problem(clip.name, what, own.file)]

    views = _same_part(clip, grey, rates)
    found = _wrong_place(views, is_calibrated=spikes.calibration is not None)
    if is_first:
        found += _wrong_light(views, spikes)
        # Ratios are ratios to the light of the exposure, which is the blurry frame.
        if represent.REPRESENTATIONS[spikes.name].is_ratio:
            found += _wrong_frames(clip)
            found += _narrow_windows(spikes, own.count, float(views.rates.mean()))
    return [Problem(clip.name, what, own.file) for what in found]


def _same_part(clip: Clip, grey: np.ndarray, rates: np.ndarray) -> Views:
    """Bring frame (H, W) and firing rates (h, w) to one grid, within the view of both cameras."""
    if not clip.spikes.calibration:
        grey = cv2.resize(grey, rates.shape[::-1], interpolation=cv2.INTER_AREA)
        return Views(grey, rates, rates[::-1])
    window = clip.grid.window(Augment.whole(clip.size))
    top, left, height, width = clip.grid.region
    seen = (slice(top, top + height), slice(left, left + width))
    read = window.crop.slices
    in_frame = [window.to_rgb(image[read][None])[0][seen] for image in (rates, rates[::-1])]
    return Views(grey[seen], in_frame[0], in_frame[1])


def _wrong_place(views: Views, is_calibrated: bool) -> list[str]:
    images = [image.ravel() for image in views]
    with np.errstate(invalid="ignore"):  # a frame of one colour correlates with nothing
        correlations = np.nan_to_num(np.corrcoef(images))[0]
    _, as_read, flipped = correlations
    if flipped > LEAST_CORRELATION and flipped > as_read + CLEARLY_BETTER:
        seen = f"correlation with the frame {as_read:.2f}, flipped {flipped:.2f}"
        return [f"spikes look upside down: {seen} (spike.flip)"]
    # Without a calibration, strong blur may leave little of the picture.
    if is_calibrated and as_read < LEAST_CORRELATION:
        what = f"spikes do not resemble the frame: correlation {as_read:.2f}"
        return [f"{what} (spike.calibration)"]
    return []


def _wrong_light(views: Views, spikes: DatSpikes) -> list[str]:
    """Compare with the kind of light that is assumed, if nobody gives it."""
    if spikes.is_light_known:
        return []
    fit = simulate.fit_light(views.rates, views.grey / 255.0)
    if not fit.is_clear or fit.light == spikes.light:
        return []
    seen = f"{fit.light} light of rate {fit.rate:.2f}"
    return [f"spikes look like {seen}, {spikes.light} is assumed (spike.light)"]


def _wrong_frames(clip: Clip) -> list[str]:
    """Find frames that are means of other values than the spikes integrate."""
    light = clip.spikes.light
    folder = Path(clip.lq[0]).parent
    fitting = FITTING[light]
    is_other = folder.name in FITTING.values() and folder.name != fitting
    if not is_other or not folder.with_name(fitting).is_dir():
        return []
    return [
        f"{folder.name} is not the mean of the {light} values that the spikes integrate, so frame "
        f"x ratio is not the sharp frame (about 1 dB): set lq_folder to {fitting}"
    ]


def _narrow_windows(spikes: DatSpikes, count: int, rate: float) -> list[str]:
    """Find windows that are shorter than the time between two spikes.

    count: planes of an exposure. rate: mean number of spikes per plane.
    """
    windows = spikes.options.get("half_windows", ())
    # Below 1, a window is a share of half the exposure.
    planes = [half * count / 2 if half < 1 else half for half in windows]
    if len(windows) < 2 or (2 * max(planes) + 1) * rate >= 1:
        return []
    return [
        f"{rate:.3f} spikes per plane: the windows of half_windows {list(windows)} mostly lie "
        "between the same two spikes (spike.representation.half_windows): take wider ones"
    ]

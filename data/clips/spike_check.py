"""Compare the spikes of a clip with its frames, for errors that sizes alone cannot show.

For example, rows may be stored in the other order than spike.flip says, the spikes may have
integrated another kind of light than is assumed, or they may belong to other frames.
The data check calls `check_spikes` for each clip. All findings are warnings.

The picture of the spikes is their firing rate, the spikes per plane of each pixel. The blurry frame
shows the same scene during the same exposure, so the two must correlate.

Tests: tests/parts/data/test_preflight.py, tests/parts/data/test_two_cameras.py
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

# Spikes integrate linear light, or display values (the values of a picture file). A blurry frame is
# the mean of values of one of these kinds. {kind: folder of the frames that are such means}, with
# the names of GoPro and scripts/prepare_gopro_spike.py.
FITTING = {"display": "blur", "linear": "blur_gamma"}
# Least correlation of firing rates and frame at which the two show the same scene.
LEAST_CORRELATION = 0.5
# The correlation of flipped spikes must be larger by this to count. Texture such as a wall may look
# alike both ways.
CLEARLY_BETTER = 0.3


class Views(NamedTuple):
    """The same part of a scene as both cameras see it, as three pictures of one size.

    grey: the blurry frame, values 0 ... 255.
    rates: firing rates, spikes per plane.
    flipped: firing rates if the rows were stored in the other order.
    """

    grey: np.ndarray
    rates: np.ndarray
    flipped: np.ndarray


def check_spikes(clip: Clip, is_first: bool) -> list[Problem]:
    """Return warnings from comparing the spikes of the first frame of a clip with the frame.

    is_first: whether this is the first clip of a data set. The kind of light and the windows of the
    representation are the same for all clips, so only the first clip is checked for them.
    """
    spikes = clip.spikes
    own = clip.exposures[0].own
    # `read_spikes` reads files on disk, and not values of an LMDB.
    if files.LMDB_MARK in own.file:
        return []
    try:
        stream = formats.read_spikes(
            own.file, spikes.geometry, own.first, own.count, remainder=spikes.remainder
        )
        grey = cv2.cvtColor(files.read_bgr(clip.lq[0]), cv2.COLOR_BGR2GRAY)
    except (formats.SpikeFileError, DataError) as e:
        return [Problem(clip.name, f"not compared with its frame: {e.what}", own.file)]
    rates = stream.mean(axis=0, dtype=np.float32)  # (T, h, w) -> (h, w)
    if rates.std() == 0:
        what = f"all pixels of the spike file have the same firing rate {rates.mean():.3f}"
        return [Problem(clip.name, what, own.file)]

    views = _same_part(clip, grey, rates)
    found = _wrong_place(views, is_calibrated=spikes.calibration is not None)
    if is_first:
        found += _wrong_light(views, spikes)
        # Channels of such a representation are ratios to the light of the exposure, which is the
        # blurry frame. So the frame must be the mean of the same light.
        if represent.REPRESENTATIONS[spikes.name].is_ratio:
            found += _wrong_frames(clip)
            found += _narrow_windows(spikes, own.count, float(views.rates.mean()))
    return [Problem(clip.name, what, own.file) for what in found]


def _same_part(clip: Clip, grey: np.ndarray, rates: np.ndarray) -> Views:
    """Bring frame (H, W) and firing rates (h, w) to one grid, within the view of both cameras."""
    flipped = rates[::-1]
    if not clip.spikes.calibration:
        # Both cameras see the same, so the frame is brought to the size of a plane.
        height, width = rates.shape
        grey = cv2.resize(grey, (width, height), interpolation=cv2.INTER_AREA)
        return Views(grey, rates, flipped)
    # The calibration brings the planes onto the frame.
    window = clip.grid.window(Augment.whole(clip.size))
    top, left, height, width = clip.grid.region
    seen = (slice(top, top + height), slice(left, left + width))
    on_frame = []
    for plane in (rates, flipped):
        read = plane[window.crop.slices]
        warped = window.to_rgb(read[None])[0]  # one channel
        on_frame.append(warped[seen])
    return Views(grey[seen], on_frame[0], on_frame[1])


def _wrong_place(views: Views, is_calibrated: bool) -> list[str]:
    """Find spikes that are upside down, or that show something else than the frame.

    is_calibrated: whether a calibration says where the spikes lie.
    """
    images = [image.ravel() for image in views]
    # A frame of one colour correlates with nothing: NaN, which becomes 0.
    with np.errstate(invalid="ignore"):
        matrix = np.nan_to_num(np.corrcoef(images))
    # The row of the frame: its correlation with itself, with the rates, with the flipped rates.
    _, as_read, flipped = matrix[0]
    if flipped > LEAST_CORRELATION and flipped > as_read + CLEARLY_BETTER:
        seen = f"correlation with the frame {as_read:.2f}, flipped {flipped:.2f}"
        return [f"spikes look upside down: {seen} (spike.flip)"]
    # Without a calibration, strong blur may leave little of the picture.
    if is_calibrated and as_read < LEAST_CORRELATION:
        what = f"spikes do not resemble the frame: correlation {as_read:.2f}"
        return [f"{what} (spike.calibration)"]
    return []


def _wrong_light(views: Views, spikes: DatSpikes) -> list[str]:
    """Find spikes of another kind of light than is assumed, if nobody gives the kind."""
    if spikes.is_light_known:
        return []
    fit = simulate.fit_light(views.rates, views.grey / 255.0)
    if not fit.is_clear or fit.light == spikes.light:
        return []
    seen = f"{fit.light} light of rate {fit.rate:.2f}"
    return [f"spikes look like {seen}, {spikes.light} is assumed (spike.light)"]


def _wrong_frames(clip: Clip) -> list[str]:
    """Find frames that are means of other values than the spikes integrate, see `FITTING`."""
    light = clip.spikes.light
    folder = Path(clip.lq[0]).parent
    fitting = FITTING[light]
    is_other = folder.name in FITTING.values() and folder.name != fitting
    # A warning helps only if the fitting frames are there.
    if not is_other or not folder.with_name(fitting).is_dir():
        return []
    return [
        f"{folder.name} is not the mean of the {light} values that the spikes integrate, so frame "
        f"x ratio is not the sharp frame (about 1 dB): set lq_folder to {fitting}"
    ]


def _narrow_windows(spikes: DatSpikes, count: int, rate: float) -> list[str]:
    """Find windows that are shorter than the time between two spikes.

    The representation counts spikes in several windows around the sharp instant. Windows between
    the same two spikes all count the same.
    count: planes of an exposure. rate: mean number of spikes per plane.
    """
    half_windows = spikes.options.get("half_windows", ())
    # A value below 1 is a share of half the exposure, other values are planes.
    planes = [half * count / 2 if half < 1 else half for half in half_windows]
    if len(half_windows) < 2:
        return []
    longest = 2 * max(planes) + 1  # a half window on both sides of the middle plane
    if longest * rate >= 1:
        return []
    return [
        f"{rate:.3f} spikes per plane: the windows of half_windows {list(half_windows)} mostly lie "
        "between the same two spikes (spike.representation.half_windows): take wider ones"
    ]

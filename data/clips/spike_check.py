"""Compare the spikes of a clip with its frames, to find errors that the sizes do not show.

The spikes are compared as a picture: their firing rate, the spikes per plane of each pixel. The
blurry frame shows the same scene during the same exposure, so picture and frame must correlate.

    _wrong_position   the rows have the opposite order (spike.flip), or the spikes belong to
                      another frame
    _wrong_light      the spikes have not integrated the assumed kind of light (linear light or
                      display values). The light is only checked if `_wrong_position` finds
                      nothing, because any light may seem to fit at a wrong position
    _wrong_frames     the blurry frames are means of one kind of light, and the spikes integrate the
                      other kind
    _narrow_windows   the windows of the representation are too short for this firing rate

The data check (data/clips/root_check.py) calls `check_spikes` for each clip.

What must stay: every finding is a warning and stops no run, because right data can look like these
errors. E.g. a wall with a regular texture looks as if it were upside down. These tests notice a
finding that is lost:

    test_spikes_that_look_upside_down_are_a_warning
    test_spikes_at_another_place_than_the_frame_bring_no_hint_on_light
    test_ratios_to_frames_that_are_means_of_display_values_are_a_warning
    test_windows_that_are_too_narrow_for_the_spikes_are_a_warning

Free to add: a comparison. If you add a comparison, raise FORMAT in data/clips/kept.py, because the
stored results lack the new comparison. Free to change: a threshold, if it is measured anew.

Tests: tests/parts/data/test_preflight.py, tests/parts/data/test_two_cameras.py
"""

from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np

from data.augment import Augment
from data.cameras.spike_source import DatSpikes
from data.clip import Clip
from data.clips.listed_files import LMDB_MARK
from data.clips.pictures import read_bgr
from data.clips.source import Problem
from data.disagreement import INVERT_ADVICE, INVERTED_CORRELATION
from data.spike import formats
from data.spike.errors import SpikeFileError
from data.spike.light_fit import fit_light
from data.spike.represent import REPRESENTATIONS
from utils.errors import DataError

# {kind of light: folder of the blurry frames that are means of this light}. There are two kinds:
# linear light, and display values (the values of a picture file). GoPro and
# scripts/prepare_gopro_spike.py use these names of folders. CLIP_FOLDERS (clip_folder.py) has the
# same names, so that such a folder never counts as a clip.
FOLDER_OF_LIGHT = {"display": "blur", "linear": "blur_gamma"}
# If the correlation of firing rates and frame is at least this value, the two are taken as the same
# scene. A larger value would warn of strongly blurred frames, and a smaller value would accept
# other scenes. (LEAST_CORRELATION of data/edge_shift.py is a limit for gradients.)
LEAST_CORRELATION = 0.5
# If the correlation with the flipped spikes is larger than with the spikes by this value, the
# spikes are reported as upside down. A smaller value would warn of right data. E.g. a wall with a
# regular texture correlates with its mirror image, too. A larger value would miss flipped spikes.
LEAST_GAIN_OF_FLIP = 0.3


class Views(NamedTuple):
    """The same part of a scene as both cameras see it, as three pictures of one size.

    `_correlations` relies on the order of the fields: it correlates `grey` with the other two
    fields.
    """

    grey: np.ndarray  # the blurry frame, values 0 ... 255
    rates: np.ndarray  # firing rates, spikes per plane
    flipped_rates: np.ndarray  # firing rates if the rows were stored in the opposite order


def check_spikes(clip: Clip, is_first: bool) -> list[Problem]:
    """Compare the spikes of the first frame of a clip with this frame. Returns warnings.

    is_first: whether this is the first clip of a data set. The kind of light and the windows of the
    representation are the same for all clips, so only the first clip is checked for them.

    Several threads call this function at once, so it changes no shared value.
    """
    spikes = clip.spikes  # how the spikes are read
    # The planes of the first exposure, without context (the planes before and after the exposure).
    piece = clip.exposures[0].own
    # `read_spikes` can read files on disk only, and no values of an LMDB.
    if LMDB_MARK in piece.file:
        return []
    try:
        stream = formats.read_spikes(
            piece.file,
            spikes.geometry,
            first=piece.first,
            count=piece.count,
            remainder=spikes.remainder,  # whether bytes after the last whole plane are allowed
        )
        grey = cv2.cvtColor(read_bgr(clip.lq[0]), cv2.COLOR_BGR2GRAY)
    except (SpikeFileError, DataError) as e:
        return [Problem(clip.name, f"not compared with its frame: {e.what}", piece.file)]
    rates = stream.mean(axis=0, dtype=np.float32)  # (T, h, w) -> (h, w)
    if rates.std() == 0:
        what = f"all pixels of the spike file have the same firing rate {rates.mean():.3f}"
        return [Problem(clip.name, what, piece.file)]

    views = _common_view(clip, grey, rates)
    correlations = _correlations(views)
    warnings = _wrong_position(correlations, is_calibrated=spikes.calibration is not None)
    # The light can only be compared if both pictures show the same scene at the same place.
    is_at_its_place = not warnings and correlations.as_read >= LEAST_CORRELATION
    if is_first:
        if is_at_its_place:
            warnings += _wrong_light(views, spikes)
        # The channels of some representations are ratios: light at the sharp instant divided by
        # the mean light of the exposure. Ratios need frames of the right kind of light, and windows
        # that are wide enough.
        if REPRESENTATIONS[spikes.name].is_ratio:
            warnings += _wrong_frames(clip)
            mean_rate = float(views.rates.mean())
            warnings += _narrow_windows(spikes, piece.count, mean_rate)
    return [Problem(clip.name, what, piece.file) for what in warnings]


def _common_view(clip: Clip, grey: np.ndarray, rates: np.ndarray) -> Views:
    """Resize or warp frame and firing rates to one size, within the view of both cameras.

    grey: the blurry frame (H, W).
    rates: firing rates (h, w).
    """
    flipped_rates = rates[::-1]
    if not clip.spikes.calibration:
        # Without a calibration, both cameras see the same view. So the frame only needs the size of
        # a plane.
        height, width = rates.shape
        small_grey = cv2.resize(grey, (width, height), interpolation=cv2.INTER_AREA)
        return Views(small_grey, rates, flipped_rates)
    # With a calibration, the planes are warped onto the frame (calibrated_grid.py). `window.crop`
    # are the spike pixels that the frame needs, `window.to_rgb` warps them, and `region` is the
    # part of the frame that both cameras see.
    whole_frame = Augment.whole(clip.size)  # neither crop nor flip
    window = clip.grid.window(whole_frame)
    region = clip.grid.region.slices
    warped_rates = []
    for plane in (rates, flipped_rates):
        needed_pixels = plane[window.crop.slices]  # (h', w')
        one_channel = needed_pixels[None]  # (1, h', w'), because `to_rgb` warps channels
        warped = window.to_rgb(one_channel)  # (1, H, W)
        warped_rates.append(warped[0][region])
    return Views(grey[region], warped_rates[0], warped_rates[1])


class Correlations(NamedTuple):
    """The correlations of the frame with the firing rates, -1 to 1."""

    as_read: float  # with the rates as the options say
    flipped: float  # with the rates if the rows were stored in the opposite order


def _correlations(views: Views) -> Correlations:
    """Return the correlations of the frame with the firing rates."""
    images = [image.ravel() for image in views]  # grey, rates, flipped_rates
    # The correlation of a frame of one colour is 0 / 0, and NumPy returns NaN. Replace NaN by 0.
    with np.errstate(invalid="ignore"):
        matrix = np.nan_to_num(np.corrcoef(images))  # (3, 3)
    # Row 0 has the correlation of the frame with itself, with the rates, with the flipped rates.
    _, as_read, flipped = matrix[0].tolist()
    return Correlations(as_read, flipped)


def _wrong_position(correlations: Correlations, is_calibrated: bool) -> list[str]:
    """Return a warning if the spikes are inverted, upside down or do not resemble the frame.

    is_calibrated: whether a calibration says where the spikes lie on the frame.
    Returns a list of at most one text.

    Tests: test_spikes_that_look_upside_down_are_a_warning,
    test_spikes_of_inverted_bits_are_a_warning
    """
    as_read, flipped = correlations
    # Inverted bits make the spikes dark where the frame is bright.
    if as_read <= INVERTED_CORRELATION and flipped < -as_read:
        return [f"spikes look inverted: correlation with the frame {as_read:.2f}: {INVERT_ADVICE}"]
    if flipped > LEAST_CORRELATION and flipped > as_read + LEAST_GAIN_OF_FLIP:
        numbers = f"correlation with the frame {as_read:.2f}, flipped {flipped:.2f}"
        return [f"spikes look upside down: {numbers} (spike.flip)"]
    # Strong blur also lowers the correlation, so a low correlation need not be an error. A low
    # correlation is reported only with a calibration, because a wrong calibration is a likely
    # cause.
    if is_calibrated and as_read < LEAST_CORRELATION:
        what = f"spikes do not resemble the frame: correlation {as_read:.2f}"
        return [f"{what} (spike.calibration)"]
    return []


def _wrong_light(views: Views, spikes: DatSpikes) -> list[str]:
    """Return a warning if the spikes have not integrated the assumed kind of light.

    If the options or dataset.json give the kind of light, nothing is assumed, so nothing is
    compared. Returns a list of at most one text.
    """
    if spikes.is_light_known:
        return []
    # `fit_light` finds the kind of light with which the frame explains the rates best.
    fit = fit_light(views.rates, views.grey / 255.0)
    if not fit.is_clear or fit.light == spikes.light:
        return []
    found = f"{fit.light} light of rate {fit.rate:.2f}"
    return [f"spikes look like {found}, {spikes.light} is assumed (spike.light)"]


def _wrong_frames(clip: Clip) -> list[str]:
    """Return a warning if frames are means of one kind of light, and spikes integrate the other.

    The channels are ratios: (light at the sharp instant) / (mean light of the exposure), from the
    spikes. The ratios help a network, because the blurry frame times the ratio is the sharp frame.
    This formula holds only if the blurry frame is the mean of the light that the spikes integrate.

    The warning does not say how much is lost, because the product may even be better with frames of
    the wrong kind. On moved photographs (lab/still_clips.py), `exposure_estimate` was 0.3 to 1.9 dB
    worse for spikes of display values, and 0.4 to 1.3 dB better for spikes of linear light.

    The name of the folder of the frames tells the kind: "blur" has means of display values, and
    "blur_gamma" means of linear light. Returns a list of at most one text.

    Test: test_ratios_to_frames_that_are_means_of_display_values_are_a_warning
    """
    light = clip.spikes.light
    folder = Path(clip.lq[0]).parent
    right_name = FOLDER_OF_LIGHT[light]
    is_wrong = folder.name in FOLDER_OF_LIGHT.values() and folder.name != right_name
    # The warning advises the folder of the right kind, so the warning helps only if this folder
    # exists.
    has_right_folder = folder.with_name(right_name).is_dir()
    if not is_wrong or not has_right_folder:
        return []
    return [
        f"{folder.name} is not the mean of the {light} values that the spikes integrate, so frame "
        f"x ratio is not the sharp frame: set lq_folder to {right_name}"
    ]


def _narrow_windows(spikes: DatSpikes, count: int, rate: float) -> list[str]:
    """Return a warning if all windows are shorter than the usual time between two spikes.

    The representation measures the light of several windows around the sharp instant. If all
    windows lie between the same two spikes, all windows have the same light. So several windows
    tell no more than one window. E.g. at 0.02 spikes per plane, 50 planes lie between two spikes,
    and windows of 9 and 21 planes usually have no spike.

    count: number of planes of an exposure.
    rate: mean number of spikes per plane.
    Returns a list of at most one text.

    Test: test_windows_that_are_too_narrow_for_the_spikes_are_a_warning
    """
    half_windows = spikes.options.get("half_windows", ())
    if len(half_windows) < 2:
        return []
    half_windows_in_planes = []
    for half_window in half_windows:
        # A value of 1 or more is a number of planes. A value below 1 is a fraction of half the
        # exposure. E.g. 0.5 in an exposure of 40 planes is 0.5 * 20 = 10 planes.
        if half_window < 1:
            half_windows_in_planes.append(half_window * count / 2)
        else:
            half_windows_in_planes.append(half_window)
    # A window is the middle plane, with a half window on each side.
    longest_window = 2 * max(half_windows_in_planes) + 1
    spikes_in_longest_window = longest_window * rate  # on average
    if spikes_in_longest_window >= 1:
        return []
    return [
        f"{rate:.3f} spikes per plane: the windows of half_windows {list(half_windows)} mostly lie "
        "between the same two spikes: make the windows wider (spike.representation.half_windows)"
    ]

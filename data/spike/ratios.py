"""Represent spikes by the light of short windows, relative to the light of the exposure.

The blurry frame is the mean of the light over the exposure. The sharp frame is the light in a short
window around its instant. The spikes give both means, so the sharp frame is, per pixel,

    sharp light = blurry light x ratio
    ratio       = mean light of the short window / mean light of the exposure

E.g. a bright object reaches a pixel during the exposure. The pixel has 0.1 spikes per plane on
average over the exposure, and 0.15 in the 5 planes around the sharp instant. The ratio is 1.5, so
the pixel is 1.5 times as bright in the sharp frame as in the blurry frame. The ratio does not
depend on the threshold or the gain of the sensor. A change of either one multiplies the two means
by the same factor.

    exposure            a representation: the two means, each in one channel
    relative            a representation: the ratio for each of several windows, and a confidence
    exposure_estimate   computes the sharp frame by the formula above, without a network

A window of 5 planes may have no spike at all. Still, it has light: the light of a plane is
1 / interval, where the interval is the number of planes between the two spikes around the plane
(light.py).

What must stay: every number, because trained networks expect these channels. To compute other
numbers, write a new function with a new name (docs/extending.md, representation).

Tests: tests/parts/data/test_spike_represent.py
"""

import math
from typing import Any

import numpy as np

from .light import window_light
from .pictures import to_display, to_linear
from .registry import representation

# The type of the option half_windows, e.g. (2, 6, 12) or [0.1, 0.28].
HalfWindows = tuple[int | float, ...] | list[int | float]


def _lag_of_light(**_: Any) -> int:
    """Return the lag, -1 half plane: around plane m, the channels show the time m - 1/2.

    The light of plane m was collected between the planes m - 1 and m, so its middle is m - 1/2.
    `represent` (represent.py) needs the lag when it reverses time.
    """
    return -1


# `Representation` (registry.py) explains the arguments of the decorator. proportional: the channels
# are firing rates.
@representation("exposure", proportional=True, lag_in_half_planes=_lag_of_light)
def exposure_rates(
    stream: np.ndarray, center: int, half_window: int = 6, half_exposure: int | None = None
) -> np.ndarray:
    """Two channels: the light around the sharp frame (short) and over the exposure (long), in
    spikes per plane.

    The light is 1 / interval in all planes between two spikes (data/spike/light.py). A pixel with
    few spikes may have one interval around both windows. Then both channels are equal, and
    `exposure_estimate` returns the blurry frame. Returns (2, h, w) float32.

    half_window: planes of the short window on each side of center.

    half_exposure: planes of the exposure on each side of center; null: as many as there are,
    without plane 0.
    """
    planes = len(stream)
    # The windows lie within the planes 1 ... last. Plane 0 is not used, because a part of its light
    # was collected before the stream began.
    last = planes - 1
    if half_exposure is None:
        half_exposure = min(center - 1, last - center)
    if not 0 <= half_window < half_exposure:
        raise ValueError(
            f"half_window is {half_window}, expected 0 or more, and less than half_exposure, "
            f"{half_exposure}"
        )
    # Two windows of planes start ... stop - 1: the short one, and the exposure. Near the ends of
    # the stream, a window has only the planes that exist.
    windows = []
    for half in (half_window, half_exposure):
        start = max(center - half, 1)
        stop = min(center + half, last) + 1
        if start >= stop:
            raise ValueError(f"plane {center} has no planes around it within 1 to {last}")
        windows.append((start, stop))

    lights = window_light(stream, windows)  # the sum over each window, (h, w), in spikes
    rates = []
    for light, (start, stop) in zip(lights, windows, strict=True):
        rates.append(light / (stop - start))  # spikes per plane
    return np.stack(rates).astype(np.float32)


def exposure_estimate(blurry: np.ndarray, rates: np.ndarray) -> np.ndarray:
    """Return the sharp frame: blurry light x short rate / long rate, in linear light.

    The short rate is the mean of the light around the sharp instant. The long rate is the mean over
    the exposure.

    The spike camera is grey, so the three colours have the same ratio. Where the long rate is 0,
    the result is the blurry frame.

    blurry: (H, W, 3) display values in [0, 1].
    rates: (2, H, W), the short rate and the long rate, as linear light of any scale.
    Returns display values (H, W, 3) float32 in [0, 1].

    Test: test_the_exposure_estimate_undoes_the_blur_of_a_moving_edge_in_colour
    """
    short, long = rates
    ratio = _ratio(short, long)  # (H, W)
    sharp = to_linear(blurry) * ratio[..., None]  # (H, W, 3)
    return to_display(sharp)


def _ratio(light: np.ndarray, reference: np.ndarray) -> np.ndarray:
    """Return light / reference for each pixel, and 1 where the reference is 0."""
    # np.divide writes into `ratio`, but only where the reference is above 0.
    ratio = np.ones_like(reference)
    return np.divide(light, reference, out=ratio, where=reference > 0)


# The confidence of `relative` is n / (n + 4) with n spikes in the exposure: 0 without spikes, 1/2
# with 4 spikes, and near 1 with many. The reason: the error of the light of an exposure is about
# one spike. With 4 spikes, this is an error of a quarter. Other values were not compared. The value
# must stay, because trained networks expect it.
SPIKES_OF_HALF_CONFIDENCE = 4.0


# `Representation` (registry.py) explains the arguments. An interval is the time between two spikes
# of a pixel. The first interval of an exposure often begins before the exposure, and the last one
# often ends after it. So the function also takes context: planes before and after the exposure.
@representation(
    "relative",
    proportional=False,
    is_ratio=True,
    takes_context=True,
    lag_in_half_planes=_lag_of_light,
)
def relative(
    stream: np.ndarray,
    center: int,
    half_windows: HalfWindows = (2, 6, 12),
    half_exposure: int | None = None,
    num_bins: int = 0,
) -> np.ndarray:
    """The mean light of each window divided by the mean light of the exposure, and a confidence.

    The blurry frame times a ratio estimates the sharp frame: in linear light with gamma 1, in
    display values with gamma 2.2. The last channel is the confidence n / (n + 4), where n is the
    number of spikes in the exposure. Returns (windows + 1, h, w) float32.

    With spike.context, planes around the exposure are read, too. So the intervals at the ends of
    the exposure are seen as a whole.

    half_windows: one window around the sharp frame for each number. A number of 1 or more is how
    many planes the window has on each side of center. A number below 1 is a share of half_exposure.

    half_exposure: planes of the exposure on each side of center; null: as many as there are,
    without plane 0.

    num_bins: number of further windows, which are equal parts of the exposure. Each window is a
    channel. The channel is 1 for a pixel without spikes, and for a pixel if one interval covers the
    whole exposure.
    """
    # The exposure has as many planes before the center as after it. Plane 0 is not used, because a
    # part of its light was collected before the stream began.
    most_planes = min(center - 1, len(stream) - 1 - center)
    if half_exposure is None:
        half_exposure = most_planes
    _check_windows(half_windows, half_exposure, most_planes, num_bins)

    # Each window is (start, stop), with the planes start ... stop - 1. First come the windows
    # around the sharp frame, then the equal parts of the exposure. E.g. center 28, half_exposure 27
    # and half_windows (2, 6, 12): the exposure is the planes 1 ... 55, and the windows are
    # 26 ... 30, 22 ... 34 and 16 ... 40.
    windows = []
    for half in _half_windows_in_planes(half_windows, half_exposure):
        windows.append((center - half, center + half + 1))
    first = center - half_exposure
    planes = 2 * half_exposure + 1
    exposure = (first, first + planes)
    windows += _equal_parts(first, planes, num_bins)

    # `window_light` returns the sum of the light over the exposure, and then the sum over each
    # window, (h, w). The light of an interval is 1, as much as makes a spike. So the sum over the
    # exposure is about its number of spikes. The sum need not be whole: if a part of an interval
    # lies in the exposure, only this part is counted, e.g. 1/4.
    spikes, *lights_of_windows = window_light(stream, [exposure, *windows])
    mean_of_exposure = spikes / planes
    # In two cases all ratios of a pixel are 1, so each estimate is the blurry frame. A pixel
    # without spikes tells nothing about changes. If one interval covers the whole exposure, each
    # plane has the same light.
    ratios = []
    for light, (start, stop) in zip(lights_of_windows, windows, strict=True):
        mean_of_window = light / (stop - start)
        ratios.append(_ratio(mean_of_window, mean_of_exposure))  # (h, w)
    confidence = spikes / (spikes + SPIKES_OF_HALF_CONFIDENCE)
    return np.stack((*ratios, confidence)).astype(np.float32)


def _check_windows(
    half_windows: HalfWindows, half_exposure: int, most_planes: int, num_bins: int
) -> None:
    """Raise ValueError for windows that `relative` cannot take.

    Each window must be shorter than the exposure, and the exposure must lie in the stream.

    half_windows, half_exposure, num_bins: the options of `relative`.
    most_planes: largest half_exposure that the stream allows.
    """
    # A value of 1 or more is a number of planes, so it must be whole.
    are_whole = all(half < 1 or half % 1 == 0 for half in half_windows)
    halves = _half_windows_in_planes(half_windows, half_exposure)
    are_inside = all(0 <= half < half_exposure for half in halves)
    has_window = len(halves) > 0
    fits_stream = half_exposure <= most_planes
    is_valid = are_whole and are_inside and has_window and fits_stream and num_bins >= 0
    if not is_valid:
        raise ValueError(
            f"half_windows are {list(half_windows)}, half_exposure is {half_exposure}, num_bins is "
            f"{num_bins}, expected half_windows of 0 or more (whole or below 1) and less than "
            f"half_exposure, half_exposure of at most {most_planes}, num_bins of 0 or more"
        )


def _half_windows_in_planes(half_windows: HalfWindows, half_exposure: int) -> list[int]:
    """Return the option half_windows of `relative` in planes.

    A value below 1 is a fraction of half_exposure: 0.28 of 50 planes is 14 planes. A value of 1 or
    more is a number of planes.

    Test: test_windows_may_be_shares_of_the_exposure
    """
    halves = []
    for half in half_windows:
        if half < 1:
            halves.append(round(half * half_exposure))
        else:
            halves.append(int(half))
    return halves


def _equal_parts(first: int, planes: int, parts: int) -> list[tuple[int, int]]:
    """Divide the planes first ... first + planes - 1 into equal parts. Returns (start, stop) each.

    E.g. 2 parts of the planes 10 ... 14 have 2.5 planes each, so plane 12 lies in both parts. Each
    of the two parts then gets the whole plane 12: the parts are the planes 10 ... 12 and 12 ... 14,
    and the result is (10, 13) and (12, 15).

    Test: test_parts_of_relative_light_show_when_the_light_changed
    """
    windows = []
    for i in range(parts):
        start = i * planes // parts
        stop = math.ceil((i + 1) * planes / parts)
        windows.append((first + start, first + stop))
    return windows

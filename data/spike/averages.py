"""Represent spikes by firing rates: means of the spikes in windows of planes.

    tfp     windows of fixed length, around the sharp frame or spread over the file
    voxel   bins of equal length that divide the exposure

The firing rate is the number of spikes per plane (one read-out of the spike camera). Spikes are
counted in whole numbers, and each count is divided once. So a window and the reversed window give
the same bits.

What must stay: every number, because trained networks expect these channels. To compute other
numbers, write a new function with a new name (docs/extending.md, representation).

Tests: tests/parts/data/test_spike_represent.py (compares with the formulas in the docstrings)
"""

import math
from typing import Any

import numpy as np

from .registry import Numbers, representation

# ---- Windows of fixed length --------------------------------------------------------------------
#
# With the option num_bins, the windows of TFP (texture from playback) are spread over the stream.
# Without num_bins, they lie around the center. Each of the next two functions gets the options of
# `tfp`, and answers one question about the windows. The two functions become fields of
# `Representation` (registry.py), which `represent` (represent.py) needs to reverse time.


def _tfp_is_centered(num_bins: int | None = None, **_: Any) -> bool:
    """Return whether the windows lie around the center."""
    return num_bins is None


def _tfp_is_spread(num_bins: int | None = None, **_: Any) -> bool:
    """Return whether the windows are spread over the stream."""
    return num_bins is not None


# proportional: the channels are firing rates, so `spike.rate`, `light` and `gamma` apply to them.
@representation(
    "tfp", proportional=True, is_centered=_tfp_is_centered, reverses_channels=_tfp_is_spread
)
def tfp(
    stream: np.ndarray,
    center: int,
    half_window: int = 10,
    offsets: Numbers = (0,),
    num_bins: int | None = None,
) -> np.ndarray:
    """Texture from playback: channel i = mean of s[m - half_window : m + half_window + 1],
    m = center + offsets[i].

    s is the stream. Values are in [0, 1]. At the ends of the stream, a window has only the planes
    that exist.

    With num_bins = B, the T planes are divided into B equal bins. m is the middle of bin i,
    (i + 1 / 2) T / B rounded down, and is moved into [half_window, T - half_window]. At
    m = T - half_window, the window lacks its last plane, T.

    Source: SpikeCV, TFP, without its rounding to 8 bits. The spread windows are as in S-VRT.

    num_bins: number of windows that are spread over the file instead of lying at offsets, as in
    S-VRT.
    """
    planes = len(stream)
    if num_bins is None:
        middles = [center + offset for offset in offsets]
    else:
        if num_bins < 1:
            raise ValueError(f"num_bins is {num_bins}, expected at least 1")
        if tuple(offsets) != (0,):
            raise ValueError(
                f"offsets {list(offsets)} have no effect with num_bins {num_bins}: leave one of "
                "the two out"
            )
        middles = _middles_of_bins(num_bins, planes, half_window)

    channels = []
    for m in middles:
        # The window has the planes start ... stop - 1, as far as they exist. A negative number in a
        # slice would count from the end of the stream, so it becomes 0.
        start = m - half_window
        stop = m + half_window + 1
        window = stream[max(start, 0) : max(stop, 0)]
        if not len(window):
            raise ValueError(f"planes {start} to {stop - 1} all lie outside 0 to {planes - 1}")
        counts = _counts(window).astype(np.float32)
        channels.append(counts / np.float32(len(window)))
    return np.stack(channels)


def _middles_of_bins(num_bins: int, planes: int, half_window: int) -> list[int]:
    """Return the middle m of each window of `tfp` with num_bins.

    m is the middle of bin i, (i + 1 / 2) T / B, moved into [half_window, T - half_window]. At the
    upper limit T - half_window, the window would end with plane T. The last plane of the stream is
    T - 1, so the window has one plane less. S-VRT has the same limits, and networks were trained
    with them (test_tfp_spread_over_the_file_is_the_formula_of_s_vrt).
    Raises ValueError if the stream has fewer than 2 half_window planes.
    """
    if planes < 2 * half_window:
        raise ValueError(f"{planes} planes cannot hold a window of {2 * half_window} planes")
    middles = []
    for i in range(num_bins):
        # The middle is computed in whole numbers and rounded down. E.g. T = 56 and B = 4 give 7,
        # 21, 35, 49.
        middle_of_bin = (2 * i + 1) * planes // (2 * num_bins)
        at_least_half_window = max(middle_of_bin, half_window)
        middles.append(min(at_least_half_window, planes - half_window))
    return middles


def _counts(window: np.ndarray) -> np.ndarray:
    """Return the number of spikes of each pixel (h, w) in a window (t, h, w)."""
    # NumPy sums fastest into bytes. A byte can hold a count of up to 255.
    if len(window) < 256:
        return window.sum(axis=0, dtype=np.uint8)
    return window.sum(axis=0, dtype=np.uint32)


# ---- Bins of the exposure -----------------------------------------------------------------------


@representation("voxel", proportional=True, accepts_half_planes=True)
def voxel(stream: np.ndarray, center: float, num_bins: int = 4) -> np.ndarray:
    """Disjoint bins of equal length, symmetric about c, the center.

    s is the stream, B = num_bins. The bins divide the largest range of planes that is symmetric
    about c. It has n = 2 min(c, T - 1 - c) + 1 planes, of which p is the first. Then

        channel b = mean of s over the time from p + b n / B to p + (b + 1) n / B

    A plane that lies in two bins counts in both in proportion. Values are in [0, 1]. If c is the
    middle of the stream, (T - 1) / 2, all planes are used.
    """
    last = len(stream) - 1
    # E.g. 20 planes and center 6: n = 2 * 6 + 1 = 13, p = 0, the planes 0 ... 12. The center is a
    # multiple of 0.5, so n and p are whole numbers.
    n = int(2 * min(center, last - center)) + 1
    if n < num_bins:
        raise ValueError(f"{n} planes evenly around {center:g} cannot fill {num_bins} bins")
    p = int(center - (n - 1) / 2)

    # A bin may end within a plane, so times are counted in B-th parts of a plane. In this unit, all
    # times are whole numbers: plane t begins at the time t B, and bin b lasts from p B + b n to
    # p B + (b + 1) n. E.g. 2 bins of the planes 0 ... 12 last from 0 to 13 and from 13 to 26 half
    # planes.
    channels = []
    for b in range(num_bins):
        start = p * num_bins + b * n
        counts = _counts_in_parts(stream, start, stop=start + n, parts=num_bins)
        # A bin has n parts. `counts` counts a spike once for each part of its plane that lies in
        # the bin. So counts / n is the mean of s.
        channels.append(counts.astype(np.float32) / np.float32(n))
    return np.stack(channels)


def _counts_in_parts(stream: np.ndarray, start: int, stop: int, parts: int) -> np.ndarray:
    """Return `parts` times the number of spikes of each pixel from `start` to `stop`, (h, w).

    start, stop: times, counted in parts of a plane. A plane has `parts` parts, so plane t begins at
    the time t * parts. A spike counts once for each part of its plane that lies between the times.
    E.g. a plane has 2 parts, and the times are 0 and 13: a spike in one of the planes 0 ... 5
    counts 2, and a spike in plane 6 counts 1, because the second half of plane 6 lies after 13.

    The times must be at least one plane apart, because two times within one plane would give a
    wrong count. `voxel` passes only such times, because it refuses fewer planes than bins.

    All numbers are whole numbers, so the reversed stream gives the same bits.

    Test: test_a_voxel_bin_that_ends_within_a_plane_has_a_part_of_it
    """
    # The planes that lie completely between the times: first ... end - 1.
    first = math.ceil(start / parts)
    end = stop // parts
    counts = _counts(stream[first:end]).astype(np.uint32) * np.uint32(parts)
    # If `start` lies within a plane, add the parts of this plane after `start`. E.g. with 2 parts
    # and start 3, `first` is 2, so one part is left: of plane 1, which lasts from 2 to 4.
    parts_before_first = first * parts - start
    if parts_before_first:
        counts += np.uint32(parts_before_first) * stream[first - 1]
    # If `stop` lies within a plane, add the parts of this plane before `stop`. E.g. with 2 parts
    # and stop 13, `end` is 6, so one part is left: of plane 6, which lasts from 12 to 14.
    parts_from_end = stop - end * parts
    if parts_from_end:
        counts += np.uint32(parts_from_end) * stream[end]
    return counts

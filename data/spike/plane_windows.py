"""Represent spikes by the planes themselves, without any mean.

    raw          one window of planes around the sharp frame
    encoding25   windows of 25 planes, as a network for optical flow (SCFlow) takes them

A plane is one read-out of the spike camera. A channel is a plane, so its values are 0 and 1. The
options rate, light and gamma have no effect.

What must stay: which plane is which channel, because trained networks expect it.

Tests: tests/parts/data/test_spike_represent.py
"""

from typing import Any, Literal

import numpy as np

from .registry import representation


# proportional=False: the channels are planes and not firing rates, so `spike.rate`, `light` and
# `gamma` have no effect.
@representation("raw", proportional=False)
def raw(stream: np.ndarray, center: int, window: int = 21) -> np.ndarray:
    """The planes around center. If s is the stream, the channels are
    s[center - window // 2 : center + window // 2 + 1]. Values are 0 and 1.

    window: number of planes, odd.
    """
    if window < 1 or window % 2 == 0:
        raise ValueError(f"window is {window}, expected an odd number of planes")
    first = center - window // 2
    end = first + window
    if first < 0 or end > len(stream):
        planes = f"planes {first} to {end - 1} around {center}"
        raise ValueError(f"{planes} reach outside 0 to {len(stream) - 1}")
    return stream[first:end].astype(np.float32)


# ---- Windows of 25 planes -----------------------------------------------------------------------
#
# The windows of `encoding25` lie around the center, or they are spread over the file. Each of the
# next three functions gets the options of `encoding25`, and answers one question about the windows.
# The three functions become fields of `Representation` (registry.py):
#
#     lag_in_half_planes    the shown time minus the center, in half planes. The center in the
#                           reversed stream depends on this lag
#     is_centered           whether the option spike.center has an effect
#     reverses_channels     whether time is reversed by the order of the channels, and not by
#                           reversing the stream
#
# `represent` (represent.py) needs lag_in_half_planes and reverses_channels to reverse time.


def _lag_of_windows(num_windows: int = 1, spacing: int | None = None, **_: Any) -> int:
    """Return 0 or -1: the mean of the middles of all windows, minus `center`, in half planes.

    E.g. two windows with a spacing of 5 around plane 50 have the middles 47.5 and 52.5. These are
    rounded down to 47 and 52, and the mean of 47 and 52 is 49.5: half a plane before 50. So the
    result is -1. The middles are rounded if the number of windows is even and the spacing is odd.
    """
    if num_windows % 2 == 1 or spacing is None:
        return 0
    is_odd = spacing % 2 == 1
    return -1 if is_odd else 0


def _windows_are_centered(num_windows: int = 1, spacing: int | None = None, **_: Any) -> bool:
    """Return whether the windows lie around the center."""
    return num_windows == 1 or spacing is not None


def _windows_are_spread(num_windows: int = 1, spacing: int | None = None, **_: Any) -> bool:
    """Return whether the windows are spread over the file."""
    return num_windows > 1 and spacing is None


@representation(
    "encoding25",
    proportional=False,
    lag_in_half_planes=_lag_of_windows,
    is_centered=_windows_are_centered,
    # In the reversed stream, the middles of spread windows would be rounded to other planes. So the
    # order of the channels is reversed in place of the stream (`_channels_in_reverse`).
    reverses_channels=_windows_are_spread,
)
def encoding25(
    stream: np.ndarray,
    center: int,
    num_windows: int = 1,
    spacing: int | None = None,
    pad: Literal["strict", "edge", "zero"] = "strict",
) -> np.ndarray:
    """Windows of 25 planes, as spike optical flow (SCFlow) takes them. The channels
    25 i ... 25 i + 24 are the planes m - 12 ... m + 12 around the middle m of window i. Values are
    0 and 1.

    The middles follow from the options:

        one window      m = center
        with spacing    m = center + (i - (num_windows - 1) / 2) * spacing, rounded down. So the
                        windows are at the same distance in every clip, as in the training of the
                        flow weights.
        otherwise       linspace(12, T - 13, num_windows), where T is the number of planes of the
                        file. The middles are rounded to planes symmetrically about the middle of
                        the file.

    spacing: number of planes from one middle to the next. The middles lie evenly around center.
    null: the windows are spread over the file, as in S-VRT. pad: planes outside of the stream.
    "strict" is an error, "edge" repeats the outermost plane, "zero" is empty.
    """
    if num_windows < 1:
        raise ValueError(f"num_windows is {num_windows}, expected at least 1")
    if spacing is not None and spacing < 1:
        raise ValueError(f"spacing is {spacing}, expected at least 1")
    planes = len(stream)
    if num_windows == 1:
        middles = [center]
    elif spacing is not None:
        middles = _spaced_middles(num_windows, center, spacing)
    else:
        middles = _spread_middles(num_windows, planes)

    # The plane of each channel, (S,): 12 planes before m, m itself, and 12 planes after m.
    windows = [np.arange(m - 12, m + 13) for m in middles]
    plane_numbers = np.concatenate(windows)
    is_outside = (plane_numbers < 0) | (plane_numbers >= planes)
    if pad == "strict" and is_outside.any():
        raise ValueError(f"windows of 25 planes around {middles} reach outside 0 to {planes - 1}")
    # Outside of the stream, np.clip takes the outermost plane ("edge").
    channels = stream[np.clip(plane_numbers, 0, planes - 1)].astype(np.float32)
    if pad == "zero":
        channels[is_outside] = 0.0
    return channels


def _spaced_middles(num_windows: int, center: int, spacing: int) -> list[int]:
    """Return center + (i - (num_windows - 1) / 2) * spacing, rounded down, for each window i.

    E.g. two windows with a spacing of 5 around plane 50 have the middles 47 and 52.

    Test: test_encoding25_keeps_the_spacing_of_its_windows_if_it_is_given
    """
    middles = []
    for i in range(num_windows):
        # The distances from the center may be halves, so they are doubled to stay whole numbers. In
        # the example, -2.5 and 2.5 become -5 and 5, and half of these, rounded down, is -3 and 2.
        twice_distance = (2 * i - (num_windows - 1)) * spacing
        middles.append(center + twice_distance // 2)
    return middles


def _spread_middles(num_windows: int, planes: int) -> list[int]:
    """Return the middles of windows of 25 planes that are spread over a file.

    If m is a middle, the mirror image planes - 1 - m must be a middle, too. So only the first half
    of the middles is rounded, and the second half is its mirror image. An odd number of windows has
    one more window, around planes // 2. E.g. 3 windows in 56 planes have the middles 12, 28 and 43.

    Test: test_encoding25_spreads_its_windows_over_the_file
    """
    # The first window has the planes 0 ... 24, and the last window has the last 25 planes.
    spread = np.linspace(12, planes - 13, num_windows)
    exact_first_half = spread[: num_windows // 2]
    first_half = np.round(exact_first_half).astype(int).tolist()
    second_half = [planes - 1 - m for m in reversed(first_half)]
    if num_windows % 2 == 1:
        return [*first_half, planes // 2, *second_half]
    return [*first_half, *second_half]

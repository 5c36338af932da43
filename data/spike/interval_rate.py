"""Represent spikes by the time between two spikes (TFI, texture from intervals).

A plane is one read-out of the spike camera. The firing rate of a pixel is 1 / (planes from one
spike to the next). This rate follows motion faster than a mean over a window, but it has the noise
of a single interval.

What must stay: every number, because trained networks expect these channels. To compute other
numbers, write a new function with a new name (docs/extending.md, representation).

Tests: tests/parts/data/test_spike_represent.py (compares with the formula in the docstring)
"""

from typing import Any

import numpy as np

from .registry import Numbers, representation


def _lag_of_tfi(**_: Any) -> int:
    """Return how much later than its center TFI shows the light, in half planes: 1.

    E.g. with the center 5, TFI searches half_window planes up to plane 5, and half_window planes
    from plane 6 on. The middle of all these planes is 5.5, half a plane later than the center.
    `represent` (represent.py) needs this lag to reverse time exactly.
    """
    return 1


# proportional: the channels are firing rates, i.e. proportional to the light.
# lag_in_half_planes: a function that gets the options of a call and returns the lag.
@representation("tfi", proportional=True, lag_in_half_planes=_lag_of_tfi)
def tfi(
    stream: np.ndarray, center: int, half_window: int = 20, offsets: Numbers = (0,)
) -> np.ndarray:
    """Texture from intervals: channel i = 1 / (tn - tp) around the time after plane
    m = center + offsets[i].

    tp is the plane of the last spike in [m - half_window + 1, m], and tn is the plane of the first
    spike in [m + 1, m + half_window]. A pixel that has no spike on one of the two sides gets the
    value 1 / (2 half_window). Values are in (0, 1]. Planes outside of the stream count as empty.
    Source: SpikeCV, TFI (which gives uint8, ignores a spike in plane 0 and fails at the last
    planes).
    """
    channels = []
    for offset in offsets:
        m = center + offset
        before = _existing(stream, first=m - half_window + 1, last=m)
        after = _existing(stream, first=m + 1, last=m + half_window)
        if len(before) == 0 or len(after) == 0:
            raise ValueError(f"plane {m} has no planes on both sides within 0 to {len(stream) - 1}")
        has_both = before.any(axis=0) & after.any(axis=0)
        # The interval is tn - tp = (m - tp) + (tn - (m + 1)) + 1. argmax finds the first 1 along
        # time: `before` is searched from plane m backward, and `after` from plane m + 1 forward.
        # E.g. m = 5, tp = 3 and tn = 7 give 2 + 1 + 1 = 4.
        m_minus_tp = before[::-1].argmax(axis=0)
        tn_minus_next = after.argmax(axis=0)
        interval = m_minus_tp + tn_minus_next + 1
        rates = np.where(has_both, 1.0 / interval, 1.0 / (2 * half_window))
        channels.append(rates.astype(np.float32))
    return np.stack(channels)


def _existing(stream: np.ndarray, first: int, last: int) -> np.ndarray:
    """Return the planes first ... last, as far as they exist. The result may have no plane."""
    # max(..., 0), because a negative number in a slice would count from the end of the stream.
    return stream[max(first, 0) : max(last + 1, 0)]

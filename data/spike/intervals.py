"""Light from the intervals between spikes: one threshold in each interval, evenly over its planes.

Light is integrated before its spike: a spike in plane p ends an interval at time p + 1, where the next one begins.
Before the first and after the last spike, the light is that of the nearest interval, limited to what a spike just
outside of the file would allow. A pixel with a single spike has the light 1 / T, one without spikes has none.
"""

import itertools
from collections.abc import Sequence

import numpy as np

# Fractions of an interval are rounded to 1 / STEPS. So all sums are exact, and equal in both directions of time.
STEPS = 2.0**32


def plane_light(stream: np.ndarray) -> np.ndarray:
    """The light of each plane of stream (T, h, w), in thresholds per plane: (T, h, w) float32.

    Times are counted from both sides, from -T on and back from 2 T + 1, where all of them are positive. So the time of
    a spike, 0 where there is none, takes effect by a maximum, which is many times as fast as np.where.
    """
    planes, (ends, begin, end) = len(stream), _outer_times(stream)
    whole = 3 * planes + 1
    kind = np.int16 if whole <= np.iinfo(np.int16).max else np.int32
    numbers = np.arange(planes, dtype=kind)[:, None, None]
    left, lefts = (2 * planes + 1 - end).astype(kind), stream * (kind(2 * planes) - numbers)
    for plane in reversed(lefts):
        left = np.maximum(left, plane, out=plane)
    # The interval of a plane begins after the spikes of the planes before it.
    gones = np.concatenate(((begin + planes).astype(kind)[None], stream[:-1] * (numbers[:-1] + kind(planes + 1))))
    for before, plane in itertools.pairwise(gones):
        np.maximum(before, plane, out=plane)
    return ends.any(axis=0).astype(np.float32) / (kind(whole) - gones - lefts).astype(np.float32)


def window_light(stream: np.ndarray, windows: Sequence[tuple[int, int]]) -> list[np.ndarray]:
    """The sum (h, w) float64 of the light of planes a ... b - 1 for each window (a, b), in thresholds.

    It is the number of the intervals in the window: those inside, and fractions of those at its two ends. So only
    the ends of the windows cost arithmetic in float64.
    """
    ends, begin, end = _outer_times(stream)
    times = sorted({0, len(ends), *(time for window in windows for time in window)})
    following = {times[-1]: end}
    parts = list(itertools.pairwise(times))
    for a, b in reversed(parts):
        first = _first(ends[a:b])
        following[a] = np.where(first, first, following[b])
    light = {0: _fraction(0, begin, following[0])}
    count = np.zeros(begin.shape, ends.dtype)
    for a, b in parts:
        last = ends[a:b].max(axis=0)
        begin = np.where(last, last, begin)
        count += stream[a:b].sum(axis=0, dtype=count.dtype)
        light[b] = count + _fraction(b, begin, following[b])
    is_lit = count > 0
    return [(light[b] - light[a]) * is_lit for a, b in windows]


def _first(ends: np.ndarray) -> np.ndarray:
    """(h, w): the first of the ends, 0 where there is none."""
    one = ends.dtype.type(1)
    return (ends - one).min(axis=0) + one  # 0 - 1 is the largest number


def _outer_times(stream: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """For each spike the time at which its interval ends, else 0: (T, h, w) of a narrow type, for speed; and two times.

    Both are (h, w) int32 and lie outside of the file: when the interval of the first spike begins, at most 0, and when
    the one after the last spike ends, at least T + 1.
    """
    planes = len(stream)
    ends = stream * np.arange(1, planes + 1, dtype=np.min_scalar_type(planes))[:, None, None]
    one = ends.dtype.type(1)
    first, last = _first(ends), ends.max(axis=0)
    # The second spike from each side is the nearest one: the spike itself has the distance 0 - 1, the largest number.
    after = (ends - (first + one)).min(axis=0).astype(np.int32) + 1
    before = ((last - one) - ends).min(axis=0).astype(np.int32) + 1
    is_single = first == last
    first, last = first.astype(np.int32), last.astype(np.int32)
    begin = first - np.maximum(np.where(is_single, planes, after), first)
    end = last + np.maximum(np.where(is_single, planes, before), planes + 1 - last)
    return ends, begin.astype(np.int32), end.astype(np.int32)


def _fraction(time: int, begin: np.ndarray, end: np.ndarray) -> np.ndarray:
    """(h, w) float64 in [0, 1]: which part of the interval from begin to end has passed at `time`."""
    return np.rint(np.divide(time - begin, end - begin, dtype=np.float64) * STEPS) / STEPS

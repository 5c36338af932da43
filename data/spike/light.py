"""Compute light from spikes.

    plane_light     returns the light of each plane
    window_light    returns the sum of the light over windows of planes
    intervals_of    returns the intervals, from which the other two compute the light

The unit is "thresholds per plane": a pixel that fires in every second plane has the light 1/2.

An interval is the time from one spike of a pixel to the next. The pixel collects the charge of a
spike, one threshold, before the spike. So the light of an interval is one threshold, spread evenly
over its planes. Plane p lasts from time p to time p + 1, and a spike in plane p ends an interval at
time p + 1. For example, a pixel with spikes in the planes 3 and 5 of 10 planes:

    plane    0    1    2    3    4    5    6    7    8    9
    spike                   x         x
    light   1/4  1/4  1/4  1/4  1/2  1/2  1/5  1/5  1/5  1/5

Only the interval of the planes 4 and 5 lies completely in the file. The other planes belong to the
two outer intervals: the first begins before the file, and the last ends after the file. By default,
an outer interval is taken to be as long as the interval beside it, here 2 planes. But then the
planes 1 and 7 would have spikes, and they have none. So each outer interval is made just so long
that its missing spike lies outside of the file: in plane -1 and in plane 10.

A pixel with a single spike has the light 1 / T, where T is the number of planes. A pixel without
spikes has no light.

What must stay: all numbers, bit for bit, because the channels of training samples consist of them.
Free to change: how they are computed, if it is as fast.

Tests: tests/parts/data/test_spike_simulate.py (compares every pixel with a plain loop)
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

# ---- Intervals ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Intervals:
    """Where the intervals of each pixel begin and end."""

    # (T, h, w): the end of the interval (plane + 1) if the plane has a spike, else 0. The type is
    # the smallest unsigned type that holds T, for speed.
    ends: np.ndarray
    begin: np.ndarray  # (h, w) int32, when the interval of the first spike begins: at most 0
    end: np.ndarray  # (h, w) int32, when the interval after the last spike ends: at least T + 1


def intervals_of(stream: np.ndarray) -> Intervals:
    """Find the intervals of each pixel. The head of this file says how long the outer two are.

    The numbers in the comments below are for the pixel in the head: T = 10, and spikes in the
    planes 3 and 5. Its intervals go from 0 to 4, from 4 to 6, and from 6 to 11.

    A pixel with a single spike has only the two outer intervals. Both are T planes long.
    """
    planes = len(stream)
    # Time at which each plane ends, 1 ... T.
    plane_ends = np.arange(1, planes + 1, dtype=np.min_scalar_type(planes))
    # (T, h, w) unsigned, 0 without a spike. E.g. 0 0 0 4 0 6 0 0 0 0.
    ends = stream * plane_ends[:, None, None]
    first = _smallest_above_0(ends.copy())  # (h, w), the end at the first spike: 4
    last = ends.max(axis=0)  # (h, w), the end at the last spike: 6

    # The lengths of the intervals beside the two outer intervals, `after_first` and `before_last`.
    # They are the smallest numbers above 0 in two arrays:
    #
    #     ends - first    252 252 252   0 252   2 252 252 252 252    smallest above 0: 2
    #     last - ends       6   6   6   2   6   0   6   6   6   6    smallest above 0: 2
    #
    # A plane without a spike has the end 0. It has 0 - 4 in the first array, which is 252 in uint8,
    # and 6 - 0 in the second array. Both are larger than the interval, so such a plane is never the
    # smallest.
    after_first = _smallest_above_0(ends - first)  # from the first spike to the second
    before_last = _smallest_above_0(last - ends)  # from the last spike but one to the last

    # From here on, the numbers are signed, because `begin` may be negative.
    first = first.astype(np.int32)
    last = last.astype(np.int32)
    # True for pixels with a single spike, and also for pixels without a spike (first = last = 0).
    # The intervals of pixels without a spike do not matter, because the callers set the light of
    # these pixels to 0.
    is_single = first == last
    after_first = np.where(is_single, planes, after_first.astype(np.int32))
    before_last = np.where(is_single, planes, before_last.astype(np.int32))
    # The spike before the first one is not in the file, so the first interval begins at 0 or
    # earlier, and has at least `first` planes. E.g. max(2, 4) = 4.
    first_length = np.maximum(after_first, first)
    # The spike after the last one is not in the planes 0 ... T - 1, so it ends its interval at
    # T + 1 or later. E.g. max(2, 11 - 6) = 5.
    last_length = np.maximum(before_last, planes + 1 - last)
    begin = (first - first_length).astype(np.int32)  # e.g. 4 - 4 = 0
    end = (last + last_length).astype(np.int32)  # e.g. 6 + 5 = 11
    return Intervals(ends, begin, end)


def _smallest_above_0(numbers: np.ndarray) -> np.ndarray:
    """Return for each pixel the smallest of its numbers that is above 0, (h, w).

    numbers: (t, h, w) unsigned. They are overwritten, which saves time. If all numbers of a pixel
    are 0, the result is 0.

    1 is subtracted before the minimum, and added after it. For an unsigned number, 0 - 1 is the
    largest number of its type, so a 0 is never the minimum. E.g. in uint8, 0, 8, 12 become
    255, 7, 11. The minimum is 7, and the result is 8.
    """
    one = numbers.dtype.type(1)
    numbers -= one
    return numbers.min(axis=0) + one


# ---- Light of planes and windows ----------------------------------------------------------------


def plane_light(stream: np.ndarray) -> np.ndarray:
    """Return the light of each plane of a stream, in thresholds per plane.

    stream: spikes (T, h, w). Returns (T, h, w) float32.

    The light of a plane is 1 / n, where n = b - a is the length of its interval from time a to time
    b. A running maximum finds a and b of all planes. It is many times as fast as np.where. A
    running maximum needs numbers above 0, because 0 means "not known yet". But a may be as small as
    1 - T. And b is the smallest of several times, not the largest. So two other numbers are
    computed in place of a and b:

        since_a = a + T            at least 1, because a is at least 1 - T
        until_b = 2 T + 1 - b      at least 1, because b is at most 2 T. The smallest b has the
                                   largest until_b

        n = b - a = (2 T + 1 - until_b) - (since_a - T) = 3 T + 1 - since_a - until_b

    For example, T = 10 and spikes in the planes 3 and 7. The interval of the planes 4 ... 7 goes
    from a = 4 to b = 8. So since_a = 14, until_b = 13, and n = 31 - 14 - 13 = 4.
    """
    planes = len(stream)
    intervals = intervals_of(stream)
    # The smallest type that holds 3 T + 1, for speed.
    largest = 3 * planes + 1
    number_type = np.int16 if largest <= np.iinfo(np.int16).max else np.int32

    since_a = _since_begin(stream, intervals.begin, number_type)  # (T, h, w)
    until_b = _until_end(stream, intervals.end, number_type)
    lengths = number_type(largest) - since_a - until_b  # n
    # A pixel without spikes has the light 0.
    has_spikes = intervals.ends.any(axis=0)
    return has_spikes.astype(np.float32) / lengths.astype(np.float32)


def _until_end(stream: np.ndarray, end: np.ndarray, number_type: type[np.integer]) -> np.ndarray:
    """Return until_b = 2 T + 1 - b of each plane (T, h, w). b is when its interval ends.

    E.g. T = 10 and spikes in the planes 3 and 7. The intervals end at 4, 8 and 12. So the planes
    0 ... 9 get 17 17 17 17 13 13 13 13 9 9. No interval ends after 2 T, so each number is at least
    1.

    end: (h, w), when the interval after the last spike ends.
    number_type: a type that holds 3 T + 1.
    """
    planes = len(stream)
    plane_numbers = np.arange(planes, dtype=number_type)[:, None, None]  # (T, 1, 1)
    # First set the planes with a spike. A spike in plane p ends its interval at b = p + 1, so
    # until_b = 2 T + 1 - (p + 1) = 2 T - p. E.g. 0 0 0 17 0 0 0 13 0 0.
    until_b = stream * (number_type(2 * planes) - plane_numbers)  # (T, h, w), 0 without a spike
    # Then set the other planes, from the last to the first. Each plane takes the maximum of its own
    # number and the number of the plane after it. E.g. the last interval ends at 12, so after the
    # last plane the number is 21 - 12 = 9:
    #
    #     before     0  0  0 17  0  0  0 13  0  0 |  9    <- read in this direction
    #     after     17 17 17 17 13 13 13 13  9  9 |  9
    #
    # Of all later spikes, the next one has the largest number, because its b is the smallest.
    plane_after = (2 * planes + 1 - end).astype(number_type)  # (h, w), after the last plane
    for plane in reversed(until_b):  # `plane` is a view, so until_b itself is changed
        np.maximum(plane_after, plane, out=plane)
        plane_after = plane
    return until_b


def _since_begin(
    stream: np.ndarray, begin: np.ndarray, number_type: type[np.integer]
) -> np.ndarray:
    """Return since_a = a + T of each plane (T, h, w). a is when its interval begins.

    E.g. T = 10 and spikes in the planes 3 and 7. The intervals begin at 0, 4 and 8. So the planes
    0 ... 9 get 10 10 10 10 14 14 14 14 18 18. No interval begins before -T + 1, so each number is
    at least 1.

    begin: (h, w), when the interval of the first spike begins.
    number_type: a type that holds 3 T + 1.
    """
    planes = len(stream)
    # First set plane 0 and the planes after a spike. After a spike in plane p - 1, the interval of
    # plane p begins at a = p, so since_a = p + T. Plane 0 is in the first interval, which begins at
    # `begin`. E.g. 10 0 0 0 14 0 0 0 18 0.
    plane_0 = (begin + planes).astype(number_type)[None]  # (1, h, w)
    numbers_from_1 = np.arange(1, planes, dtype=number_type)[:, None, None]  # p = 1 ... T - 1
    other_planes = stream[:-1] * (numbers_from_1 + number_type(planes))
    since_a = np.concatenate((plane_0, other_planes))  # (T, h, w), 0 without a spike
    # Then set the other planes, from the first to the last. Each plane takes the maximum of its own
    # number and the number of the plane before it: 10 10 10 10 14 14 14 14 18 18. The pairs are
    # views of `since_a`. So `since_a` itself is changed, and the next pair has the new number.
    for plane_before, plane in itertools.pairwise(since_a):
        np.maximum(plane_before, plane, out=plane)
    return since_a


# Fractions of an interval are rounded to multiples of 1 / STEPS. A float64 has 53 bits. 32 of them
# hold the fraction, and 21 are left for the whole part, so sums up to 2^20 are exact. Then the sums
# of a stream and of the reversed stream are equal to the bit, which test_spike_represent.py checks.
# With more steps, long sums would be rounded. With fewer steps, fractions would be less exact.
STEPS = 2.0**32


def window_light(
    stream: np.ndarray, windows: Sequence[tuple[int, int]], intervals: Intervals | None = None
) -> list[np.ndarray]:
    """Return the sum of the light over planes a ... b - 1, for each window (a, b).

    Each sum is (h, w) float64, in thresholds. The light of an interval is one threshold. So the sum
    is the number of intervals in the window, e.g. 2.25 for two whole intervals and a quarter of a
    third one. The sum is computed as

        light from a to b = light until b - light until a

    intervals: the result of `intervals_of(stream)`, if the caller has computed it already. None:
    the intervals are computed here.
    """
    if intervals is None:
        intervals = intervals_of(stream)
    # The starts and ends of all windows divide the stream into pieces from a to b. E.g. the windows
    # (2, 6) and (4, 9) of 10 planes give the times 0, 2, 4, 6, 9, 10, and the pieces (0, 2),
    # (2, 4), (4, 6), (6, 9), (9, 10).
    times = {0, len(stream)}
    for window in windows:
        times.update(window)
    pieces = list(itertools.pairwise(sorted(times)))
    light_until = _light_until(stream, intervals, pieces)
    # A pixel without a spike has no light, although fractions of its interval were counted. The
    # factor is 0 there, and 1 elsewhere.
    has_spikes = stream.any(axis=0)
    return [(light_until[b] - light_until[a]) * has_spikes for a, b in windows]


def _light_until(
    stream: np.ndarray, intervals: Intervals, pieces: Sequence[tuple[int, int]]
) -> dict[int, np.ndarray]:
    """Return the sum of the light from 0 to each end of a piece: {time: (h, w) float64}.

        light until t = number of spikes before t + passed fraction of the interval around t

    At t = 0, a part of the first interval may have passed already. This part is in all sums, so it
    cancels in the difference of two sums.

    The spikes are counted in integers. Only the fractions are computed in float64, for one plane at
    each end of a piece, so the function is fast.

    pieces: (a, b) in the order of time. Together they are the whole stream.
    """
    interval_end = _interval_ends(intervals, pieces)
    # Two arrays (h, w) belong to the present time: `begin`, the start of the interval around this
    # time, and `spike_count`, the number of spikes before this time.
    light_until = {}
    begin = intervals.begin
    spike_count = np.zeros(begin.shape, intervals.ends.dtype)
    light_until[0] = spike_count + _fraction(0, begin, interval_end[0])
    for a, b in pieces:
        # The interval around time b begins at the last spike before b.
        last_end = intervals.ends[a:b].max(axis=0)  # 0 for a pixel without a spike in the piece
        begin = np.where(last_end, last_end, begin)
        spike_count += stream[a:b].sum(axis=0, dtype=spike_count.dtype)
        light_until[b] = spike_count + _fraction(b, begin, interval_end[b])
    return light_until


def _interval_ends(
    intervals: Intervals, pieces: Sequence[tuple[int, int]]
) -> dict[int, np.ndarray]:
    """Return {time: end of the interval around this time, (h, w)} for the ends of all pieces.

    pieces: (a, b) in the order of time. Together they are the whole stream.

    The interval around time t ends at the first spike after t. If a pixel has no spike in the piece
    that begins at t, its interval is the interval around the end of this piece. So the pieces are
    visited from the last to the first.
    """
    _, end_of_stream = pieces[-1]
    interval_end = {end_of_stream: intervals.end}
    for a, b in reversed(pieces):
        # The end at the first spike of the piece. 0 for a pixel without a spike in the piece.
        first_end = _smallest_above_0(intervals.ends[a:b].copy())
        interval_end[a] = np.where(first_end, first_end, interval_end[b])
    return interval_end


def _fraction(time: int, begin: np.ndarray, end: np.ndarray) -> np.ndarray:
    """Return the fraction of each pixel's interval that has passed at a time, (h, w) in 0 ... 1.

    begin, end: start and end of the interval of each pixel, (h, w). The fraction is rounded to a
    multiple of 1 / STEPS, because float64 holds sums of such multiples exactly.
    """
    passed = time - begin
    length = end - begin
    fraction = np.divide(passed, length, dtype=np.float64)
    return np.rint(fraction * STEPS) / STEPS

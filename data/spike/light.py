"""Compute light from spikes.

    plane_light     returns the light of each plane
    window_light    returns the sum of the light over windows of planes
    intervals_of    returns the intervals. `plane_light` and `window_light` compute the light from
                    them

A plane is one read-out of the spike camera. A pixel fires (has a spike) when it has collected a
fixed charge, its threshold. The unit of light is "thresholds per plane": a pixel that fires in
every second plane has the light 1/2.

An interval is the time from one spike of a pixel to the next. The pixel collects the charge of a
spike, one threshold, before the spike, so the light of an interval is one threshold, spread evenly
over its planes. Plane p lasts from time p to time p + 1, and a spike in plane p ends an interval at
time p + 1. For example, a pixel with spikes in the planes 3 and 5 of 10 planes:

    plane    0    1    2    3    4    5    6    7    8    9
    spike                   x         x
    light   1/4  1/4  1/4  1/4  1/2  1/2  1/5  1/5  1/5  1/5

Only the interval of the planes 4 and 5 lies completely in the file. All other planes belong to the
two outer intervals. An outer interval lacks one of its two spikes, because this spike lies outside
of the file. By default, an outer interval is as long as the interval beside it, here 2 planes. This
would put spikes into the planes 1 and 7, which have none. So the outer intervals are extended until
the missing spikes lie outside of the file, in plane -1 and in plane 10.

A pixel with a single spike has the light 1 / T, where T is the number of planes. A pixel without
spikes has no light.

What must stay: all numbers, bit for bit, because the channels of training samples consist of them.
Free to change: how the numbers are computed, if the speed stays the same.

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
    begin: np.ndarray  # (h, w) int32, start of the first interval: at most 0
    end: np.ndarray  # (h, w) int32, end of the last interval: at least T + 1


def intervals_of(stream: np.ndarray) -> Intervals:
    """Find the intervals of each pixel.

    The outer intervals are before the first spike and after the last spike. Each of the two lacks
    one of its spikes, because this spike is not in the file. An outer interval is as long as the
    interval beside it. If this would put the missing spike into the file, the outer interval is
    longer. In a pixel with a single spike, both outer intervals are T planes long.

    The comments below show the numbers of a pixel with spikes in the planes 3 and 5 of 10 planes,
    as in the head of this file. Its intervals last from 0 to 4, from 4 to 6, and from 6 to 11.
    """
    planes = len(stream)
    # Time at which each plane ends, 1 ... T.
    plane_ends = np.arange(1, planes + 1, dtype=np.min_scalar_type(planes))
    # (T, h, w) unsigned, 0 without a spike. E.g. 0 0 0 4 0 6 0 0 0 0.
    ends = stream * plane_ends[:, None, None]
    first_end = _smallest_above_0(ends.copy())  # (h, w), the end at the first spike: 4
    last_end = ends.max(axis=0)  # (h, w), the end at the last spike: 6

    # An outer interval is as long as the interval beside it: from the first spike to the second,
    # or from the last but one to the last. The two lengths are the smallest numbers above 0 in two
    # arrays:
    #
    #     plane                 0   1   2   3   4   5   6   7   8   9
    #     ends                  0   0   0   4   0   6   0   0   0   0
    #     ends - first_end    252 252 252   0 252   2 252 252 252 252    smallest above 0: 2
    #     last_end - ends       6   6   6   2   6   0   6   6   6   6    smallest above 0: 2
    #
    # A plane without a spike has the end 0. Its numbers are too large to be the smallest: 0 - 4 is
    # 252 in the first array, because uint8 has no negative numbers, and 6 - 0 is 6 in the second.
    length_after_first = _smallest_above_0(ends - first_end)  # from the first spike to the second
    length_before_last = _smallest_above_0(last_end - ends)  # from the last but one to the last

    # From here on, the numbers are signed, because `begin` may be negative.
    first_end = first_end.astype(np.int32)
    last_end = last_end.astype(np.int32)
    # A pixel with a single spike has only the two outer intervals. (A pixel without a spike also
    # has equal ends, 0. The callers set its light to 0.)
    is_single = first_end == last_end
    length_after_first = np.where(is_single, planes, length_after_first.astype(np.int32))
    length_before_last = np.where(is_single, planes, length_before_last.astype(np.int32))
    # The spike before the first one is not in the file. So the first interval begins at time 0 or
    # earlier, and has at least `first_end` planes: max(2, 4) = 4 in the example.
    first_length = np.maximum(length_after_first, first_end)
    # The spike after the last one is not in the file. So it is in plane T or later, and ends the
    # last interval at time T + 1 or later: max(2, 11 - 6) = 5 planes in the example.
    last_length = np.maximum(length_before_last, planes + 1 - last_end)
    begin = (first_end - first_length).astype(np.int32)  # e.g. 4 - 4 = 0
    end = (last_end + last_length).astype(np.int32)  # e.g. 6 + 5 = 11
    return Intervals(ends, begin, end)


def _smallest_above_0(numbers: np.ndarray) -> np.ndarray:
    """Return for each pixel the smallest of its numbers that is above 0, (h, w).

    If all numbers of a pixel are 0, the result is 0.

    The function subtracts 1, takes the minimum, and adds 1. This leaves out every 0, because 0 - 1
    is the largest number of an unsigned type. E.g. in uint8, 0, 8, 12 become 255, 7, 11. The
    minimum is 7, and the result is 8.

    numbers: (t, h, w) unsigned. They are overwritten, to save time.
    """
    one = numbers.dtype.type(1)
    numbers -= one
    return numbers.min(axis=0) + one


# ---- Light of planes and windows ----------------------------------------------------------------


def plane_light(stream: np.ndarray) -> np.ndarray:
    """Return the light of each plane of a stream, in thresholds per plane.

    stream: spikes (T, h, w). Returns (T, h, w) float32.

    The interval of a plane lasts from time a to time b, so its light is 1 / (b - a). A spike in
    plane p sets two numbers to p + 1: b of plane p, and a of plane p + 1. The other planes are then
    filled: they copy a from the plane before, and b from the plane after. For example, T = 10 and
    spikes in the planes 3 and 7:

        plane          0   1   2   3   4   5   6   7   8   9
        spike                      x               x
        a              0   0   0   0   4   4   4   4   8   8
        b              4   4   4   4   8   8   8   8  12  12
        shifted_a     10  10  10  10  14  14  14  14  18  18      shifted_a = a + T
        mirrored_b    17  17  17  17  13  13  13  13   9   9      mirrored_b = 2 T + 1 - b

    Each fill is a running maximum, which is many times as fast as np.where. E.g. the numbers 10 0 0
    0 14 0 become 10 10 10 10 14 14. A plane that must be filled is 0 at first. So the running
    maximum needs numbers above 0 that never decrease in the direction of the fill:

        a    may be 0 or negative, at least 1 - T     shifted_a = a + T is at least 1
        b    decreases backward in time, at most 2 T  mirrored_b = 2 T + 1 - b is at least 1

    (The two limits hold for a pixel with spikes.) So shifted_a is filled in place of a, and
    mirrored_b in place of b. The length of the interval is then

        b - a = 3 T + 1 - shifted_a - mirrored_b

    Test: test_the_light_of_a_plane_is_one_threshold_per_interval
    """
    planes = len(stream)
    intervals = intervals_of(stream)
    # For speed, take the smallest type that holds 3 T + 1.
    largest = 3 * planes + 1
    number_type = np.int16 if largest <= np.iinfo(np.int16).max else np.int32

    shifted_a = _shifted_begins(stream, intervals.begin, number_type)  # (T, h, w)
    mirrored_b = _mirrored_ends(stream, intervals.end, number_type)
    lengths = number_type(largest) - shifted_a - mirrored_b  # b - a
    # A pixel without spikes has the light 0.
    has_spikes = intervals.ends.any(axis=0)
    return has_spikes.astype(np.float32) / lengths.astype(np.float32)


def _shifted_begins(
    stream: np.ndarray, begin: np.ndarray, number_type: type[np.integer]
) -> np.ndarray:
    """Return shifted_a = a + T of each plane (T, h, w), where a is the start of its interval.

    The comments below show the numbers of the example in `plane_light`, where a pixel has spikes in
    the planes 3 and 7.

    begin: (h, w), start of the interval that the first spike ends.
    number_type: a type that holds 3 T + 1.
    """
    planes = len(stream)
    # First set plane 0, which is in the first interval, and the planes after a spike. After a spike
    # in plane p - 1, the interval of plane p begins at a = p. The example: 10 0 0 0 14 0 0 0 18 0.
    plane_0 = (begin + planes).astype(number_type)[None]  # (1, h, w)
    numbers_from_1 = np.arange(1, planes, dtype=number_type)[:, None, None]  # p = 1 ... T - 1
    other_planes = stream[:-1] * (numbers_from_1 + number_type(planes))
    shifted_a = np.concatenate((plane_0, other_planes))  # (T, h, w), 0 without a spike
    # Then fill forward: each plane takes the maximum of its own number and the number of the plane
    # before it. The example: 10 10 10 10 14 14 14 14 18 18. `pairwise` gives views, so the loop
    # changes `shifted_a` itself, and the next pair has the new number.
    for plane_before, plane in itertools.pairwise(shifted_a):
        np.maximum(plane_before, plane, out=plane)
    return shifted_a


def _mirrored_ends(
    stream: np.ndarray, end: np.ndarray, number_type: type[np.integer]
) -> np.ndarray:
    """Return mirrored_b = 2 T + 1 - b of each plane (T, h, w), where b is the end of its interval.

    The comments below show the numbers of the example in `plane_light`, where a pixel has spikes in
    the planes 3 and 7.

    end: (h, w), end of the interval after the last spike.
    number_type: a type that holds 3 T + 1.
    """
    planes = len(stream)
    plane_numbers = np.arange(planes, dtype=number_type)[:, None, None]  # (T, 1, 1)
    # First set the planes with a spike. A spike in plane p ends its interval at b = p + 1, so
    # mirrored_b = 2 T + 1 - (p + 1) = 2 T - p. The example: 0 0 0 17 0 0 0 13 0 0.
    mirrored_b = stream * (number_type(2 * planes) - plane_numbers)  # (T, h, w), 0 without a spike
    # Then fill backward: each plane takes the maximum of its own number and the number of the plane
    # after it. The last interval of the example ends at b = 12, so the number after the last plane
    # is 21 - 12 = 9:
    #
    #     before     0  0  0 17  0  0  0 13  0  0 |  9    <- read in this direction
    #     after     17 17 17 17 13 13 13 13  9  9 |  9
    plane_after = (2 * planes + 1 - end).astype(number_type)  # (h, w), after the last plane
    for plane in reversed(mirrored_b):  # `plane` is a view, so the loop changes `mirrored_b`
        np.maximum(plane_after, plane, out=plane)
        plane_after = plane
    return mirrored_b


# Fractions of an interval are rounded to multiples of 1 / STEPS. The significand of a float64 has
# 53 bits: 32 for the fraction leave 21 for the whole part. Sums up to 2^21 intervals are exact, so
# the reversed stream gives equal sums (tested in test_spike_represent.py). With more steps, long
# sums would be rounded. With fewer steps, fractions would be less exact.
STEPS = 2.0**32


def window_light(
    stream: np.ndarray, windows: Sequence[tuple[int, int]], intervals: Intervals | None = None
) -> list[np.ndarray]:
    """Return the sum of the light over planes a ... b - 1, for each window (a, b).

    Each sum is (h, w) float64, in thresholds. The light of an interval is one threshold, so the sum
    is the number of intervals in the window, e.g. 2.25 for two intervals and a quarter of a third.
    The sum is computed as

        light from a to b = light until b - light until a

    intervals: the result of `intervals_of(stream)`, if the caller has computed it already. None:
    the intervals are computed here.

    Test: test_the_light_of_a_window_is_the_sum_of_its_planes
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
    # A pixel without spikes has no intervals, so `_light_until` gives it a meaningless fraction.
    # The factor `has_spikes` sets its light to 0.
    has_spikes = stream.any(axis=0)
    return [(light_until[b] - light_until[a]) * has_spikes for a, b in windows]


def _light_until(
    stream: np.ndarray, intervals: Intervals, pieces: Sequence[tuple[int, int]]
) -> dict[int, np.ndarray]:
    """Return the sum of the light from 0 to each end of a piece: {time: (h, w) float64}.

        light until t = number of spikes before t + passed fraction of the interval around t

    E.g. t = 5 in an interval from 4 to 6, after 1 spike: 1 + 1/2 = 1.5. At t = 0, a fraction of the
    first interval may have passed already. All sums contain this fraction, so it cancels in the
    difference of two sums.

    For speed, the spikes are counted in integers. Only the fractions are float64, and they are
    computed once for each end of a piece.

    pieces: (a, b) in the order of time. Together they are the whole stream.
    """
    interval_end = _interval_ends(intervals, pieces)
    # Two arrays (h, w) for the present time: `begin` is the start of the interval around the
    # present time, and `spike_count` is the number of spikes before the present time.
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

    The interval around time t ends at the first spike after t. If the piece after t has no spike,
    the interval also contains the end of this piece, and has the same end as the interval there. So
    the pieces are visited from the last to the first.

    pieces: (a, b) in the order of time. Together they are the whole stream.
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

    The fraction is rounded to a multiple of 1 / STEPS, because float64 holds sums of such multiples
    exactly.

    begin, end: start and end of each interval, (h, w).
    """
    passed = time - begin
    length = end - begin
    fraction = np.divide(passed, length, dtype=np.float64)
    return np.rint(fraction * STEPS) / STEPS

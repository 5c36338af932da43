"""data/motion/joint/intervals.py: the intervals between two spikes of a pixel.

A pixel fires when it has collected a fixed amount of light, its threshold. So from spike 2 to spike
5 it has collected 3 thresholds. The caller gives edges: instants at which intervals should begin
and end. An interval begins and ends at the spikes that are nearest to two edges.

Times are counted in planes. A spike in plane p has the time p + 1, the end of its plane.
"""

import itertools
from typing import NamedTuple

import numpy as np
import pytest

from data.motion.joint.intervals import spike_intervals
from tests.helpers.made_exposures import PLANES

# The edges, in planes. Between five edges, a pixel has four intervals at most.
EDGES = np.array([8, 14, 20, 26, 32])


class Interval(NamedTuple):
    """An interval between two spikes of a pixel."""

    begin: float  # time of the first spike
    end: float  # time of the last spike
    count: float  # number of spikes after `begin` and up to `end`


@pytest.fixture
def random_stream():
    """Give 40 planes of 5 x 6 pixels, which have different rates of 0 to 0.5 spikes per plane."""
    rng = np.random.default_rng(1)
    numbers = rng.random((PLANES, 5, 6))
    rates = 0.5 * rng.random((5, 6))
    return (numbers < rates).astype(np.uint8)


def spike_times(stream: np.ndarray, y: int, x: int) -> np.ndarray:
    """Return the times of the spikes of the pixel in row y and column x."""
    return np.flatnonzero(stream[:, y, x]) + 1  # a spike of plane p has the time p + 1


def used_intervals(stream: np.ndarray, edges: np.ndarray, y: int, x: int) -> list[Interval]:
    """Return the intervals of the pixel in row y and column x, in the order of time.

    `spike_intervals` has a place for each pair of edges. If two edges have the same nearest spike,
    there is no interval between the two edges, and the count at the place of this pair is 0.
    """
    begins, ends, counts = spike_intervals(stream, edges)
    intervals = []
    for begin, end, count in zip(begins[:, y, x], ends[:, y, x], counts[:, y, x], strict=True):
        if count > 0:
            intervals.append(Interval(begin, end, count))
    return intervals


def test_spike_intervals_have_one_value_for_each_pair_of_edges(random_stream):
    begins, ends, counts = spike_intervals(random_stream, EDGES)

    # There are four pairs of edges, and planes have 5 x 6 pixels.
    assert begins.shape == ends.shape == counts.shape == (4, 5, 6)


def test_an_interval_goes_from_one_spike_to_a_later_one(random_stream):
    checked = 0
    for y, x in np.ndindex(5, 6):
        times = spike_times(random_stream, y, x)
        for interval in used_intervals(random_stream, EDGES, y, x):
            assert interval.begin in times
            assert interval.end in times
            assert EDGES[0] <= interval.begin < interval.end <= EDGES[-1]
            checked += 1
    # Of 4 x 30 possible intervals, 80 exist. If there were none, the loop would have checked
    # nothing.
    assert checked > 60


def test_an_interval_counts_the_spikes_that_lie_between(random_stream):
    for y, x in np.ndindex(5, 6):
        times = spike_times(random_stream, y, x)
        for interval in used_intervals(random_stream, EDGES, y, x):
            lies_between = (times > interval.begin) & (times <= interval.end)
            assert interval.count == lies_between.sum()


def test_an_interval_goes_from_the_spike_nearest_to_one_edge_to_that_nearest_to_a_later_edge():
    stream = np.zeros((20, 1, 1), np.uint8)
    for time in (3, 9, 16):
        stream[time - 1] = 1  # a spike ends its plane

    found = used_intervals(stream, np.array([2, 8, 14, 17]), y=0, x=0)

    # The spikes at 3, 9, 16 and 16 are nearest to the edges 2, 8, 14 and 17.
    assert found == [Interval(begin=3, end=9, count=1), Interval(begin=9, end=16, count=1)]


def test_of_two_spikes_that_are_equally_near_to_an_edge_the_earlier_one_counts():
    stream = np.zeros((12, 1, 1), np.uint8)
    for time in (3, 7, 11):
        stream[time - 1] = 1  # a spike ends its plane

    found = used_intervals(stream, np.array([3, 9, 11]), y=0, x=0)

    # Both 7 and 11 are 2 planes from the edge 9.
    assert found == [Interval(begin=3, end=7, count=1), Interval(begin=7, end=11, count=1)]


def test_no_light_is_counted_twice(random_stream):
    for y, x in np.ndindex(5, 6):
        intervals = used_intervals(random_stream, EDGES, y, x)
        for former, following in itertools.pairwise(intervals):
            assert following.begin >= former.end


def test_nearly_each_pixel_that_fires_twice_within_the_edges_has_an_interval(random_stream):
    _, _, counts = spike_intervals(random_stream, EDGES)

    has_interval = counts.sum(0) > 0
    fires_twice = random_stream[7:32].sum(0) > 1  # the spikes of these planes have times 8 to 32
    # One spike may be the nearest to all edges. So a few pixels may have no interval. The measured
    # share of equal pixels is 1.0.
    assert (has_interval == fires_twice).mean() > 0.9

"""Find the intervals between two spikes of a pixel, as numpy arrays.

A pixel of the spike camera fires a spike each time when it has integrated a fixed amount of light,
its threshold. So the light between two of its spikes is known. E.g. from a spike to the third spike
after it, the pixel has collected three thresholds. spike_equations.py makes an equation of each
interval.

    plane    one binary picture (h, w) of the spike camera; 1 where a pixel fired
    time     counted in planes; a spike in plane p has the time p + 1, the end of its plane
    edge     a time that the caller chooses; intervals begin and end at the spikes nearest to edges

All pixels are computed together, as arrays (edges, h, w), because a loop over pixels would take
minutes:

    _spikes_before_edges    cuts the stream at the edges; first and last spike of each piece
    _nearest_spikes         the spike that is nearest to each edge
    spike_intervals         joins the nearest spikes of neighbouring edges to intervals

What must stay: an interval begins and ends at a spike of the stream, its count is the number of
spikes between both, and no two intervals of a pixel overlap.

Tests: tests/parts/data/joint/test_intervals.py has a test of each of these three rules.
"""

from typing import NamedTuple

import numpy as np

# A spike ends its plane, so the first possible time of a spike is 1, and 0 can mean "no spike".
NO_SPIKE = 0


class SpikeIntervals(NamedTuple):
    """Intervals between spikes, each field (M, h, w) float32."""

    begins: np.ndarray  # time of the spike that begins the interval, in planes
    ends: np.ndarray  # time of the spike that ends the interval
    # Number of spikes after `begins` and up to `ends`. Each spike stands for one threshold of
    # light. 0: the pixel has no interval here, and `begins` and `ends` mean nothing.
    thresholds: np.ndarray


def spike_intervals(stream: np.ndarray, edges: np.ndarray) -> SpikeIntervals:
    """Find an interval of each pixel for every two neighbouring edges: from a spike to a later one.

    An interval begins at the spike that is nearest to one edge, and ends at the spike that is
    nearest to the next edge. Only spikes from edges[0] to edges[-1] count. E.g. a pixel with spikes
    at the times 3, 9 and 16:

        edges              2    8    14    17
        nearest spikes     3    9    16    16
        intervals            3-9  9-16  none

    The intervals of a pixel never overlap, so no light is counted twice.

    stream: (T, h, w) uint8 in {0, 1}. edges: (M + 1,) times, ascending whole planes.

    With another count, test_an_interval_counts_the_spikes_that_lie_between fails. If intervals
    overlap, test_no_light_is_counted_twice fails.
    """
    nearest = _nearest_spikes(stream, edges)
    # Interval m goes from the spike of edge m to the spike of edge m + 1. For the example above:
    #
    #     nearest.times      3   9  16  16        begins 3 9 16, ends 9 16 16
    #     nearest.counts     1   2   3   3        thresholds 1 1 0
    #
    # Two neighbouring edges may have the same nearest spike, as 16 here, or a pixel may have no
    # spike at all. In both cases the counts are equal, so `thresholds` is 0: the pixel has no
    # interval here.
    return SpikeIntervals(
        begins=nearest.times[:-1].astype(np.float32),
        ends=nearest.times[1:].astype(np.float32),
        thresholds=np.diff(nearest.counts, axis=0).astype(np.float32),
    )


class NearestSpikes(NamedTuple):
    """The spike of each pixel that is nearest to each edge, each field (edges, h, w)."""

    # In planes. NO_SPIKE where the pixel has no spike from the first edge to the last one.
    times: np.ndarray
    counts: np.ndarray  # number of spikes of the pixel up to and including this spike


def _nearest_spikes(stream: np.ndarray, edges: np.ndarray) -> NearestSpikes:
    """Return the nearest spikes to each edge. Of two equally near spikes, the earlier is taken.

    Two spikes are compared for an edge: the last spike up to the edge, and the next spike after the
    edge. The result is the nearer spike. If one of the two spikes is missing, the result is the
    spike that exists. E.g. for a pixel with spikes at 3, 9 and 16:

        edge    last    next    result
        2       -       3       3         no last spike
        8       3       9       9         the distances are 5 and 1
        14      9       16      16        the distances are 5 and 2
        17      16      -       16        no next spike

    A pixel without any spike has NO_SPIKE.

    stream, edges: see `spike_intervals`.

    If the later one of two equally near spikes is taken,
    test_of_two_spikes_that_are_equally_near_to_an_edge_the_earlier_one_counts fails.
    """
    after_stream = len(stream) + 1  # a time later than each spike
    pieces = _spikes_before_edges(stream, edges.tolist(), no_first=after_stream)

    # The last spike up to an edge is the latest spike of all pieces up to the edge. The next spike
    # after an edge is the earliest spike of all pieces after the edge. E.g. for spikes at 3 and 16
    # (- is no spike):
    #
    #     edge                            2     8    14    17
    #     last spike of its piece         -     3     -    16
    #     last spike up to the edge       -     3     3    16
    #     first spike of its piece        -     3     -    16
    #     next spike after the edge       3    16    16     -
    last_spikes = np.maximum.accumulate(pieces.last_spikes)
    next_spikes = _next_spikes(pieces.first_spikes, after_stream)
    counts = np.cumsum(pieces.counts, axis=0, dtype=np.int32)  # number of spikes up to each edge

    # Masks (edges, h, w): `takes_last` and `takes_next` say which of the two spikes is the result.
    #
    #     has_last    has_next    takes_last, takes_next
    #     yes         yes         the nearer spike, and the last one if both are equally near
    #     yes         no          True, False
    #     no          yes         False, True
    #     no          no          False, False: the result is NO_SPIKE
    has_last = last_spikes > NO_SPIKE
    has_next = next_spikes < after_stream
    edge_times = edges.astype(np.int32)[:, None, None]
    is_last_nearer = edge_times - last_spikes <= next_spikes - edge_times
    takes_last = has_last & (~has_next | is_last_nearer)
    takes_next = has_next & ~takes_last
    next_or_none = np.where(takes_next, next_spikes, NO_SPIKE)
    times = np.where(takes_last, last_spikes, next_or_none)
    # Up to and including the last spike there are `counts` spikes, and the next spike is one more.
    return NearestSpikes(times, counts + takes_next)


def _next_spikes(first_spikes: np.ndarray, after_stream: int) -> np.ndarray:
    """Return the next spike after each edge, (edges, h, w), `after_stream` if there is none.

    The next spike is the earliest of the first spikes of all later pieces. Spikes after the last
    edge are ignored, so the last edge has no next spike.

    first_spikes: first spike of the piece of each edge, (edges, h, w).
    """
    # Take the minimum from the last piece to the second. `accumulate` only goes forwards, so the
    # pieces are reversed before the call, and reversed again after the call. E.g.
    # (- is no spike, a number larger than all others)
    #
    #     first_spikes            -     3     -    16
    #     from_last_to_second    16     -     3
    #     minimum so far         16    16     3
    #     earliest                3    16    16
    #     next_spikes             3    16    16     -
    from_last_to_second = first_spikes[1:][::-1]
    earliest = np.minimum.accumulate(from_last_to_second)[::-1]
    next_spikes = np.full_like(first_spikes, after_stream)
    next_spikes[:-1] = earliest
    return next_spikes


class SpikesBeforeEdges(NamedTuple):
    """The spikes of each pixel between an edge and the edge before it, each (edges, h, w)."""

    first_spikes: np.ndarray  # time of the first spike; a time after the stream if there is none
    last_spikes: np.ndarray  # time of the last spike; NO_SPIKE if there is none
    counts: np.ndarray  # number of spikes


def _spikes_before_edges(stream: np.ndarray, edges: list[int], no_first: int) -> SpikesBeforeEdges:
    """Divide the stream at the edges into pieces, and find the spikes of each piece.

    A piece ends at its edge. E.g. a pixel with spikes at the times 3, 9 and 16:

        edge    planes of the piece    times of their spikes    first spike, last spike, count
        2       1                      2                        no_first, NO_SPIKE, 0
        8       2 to 7                 3 to 8                   3, 3, 1
        14      8 to 13                9 to 14                  9, 9, 1

    Planes are counted from 0, and a spike of plane p has the time p + 1. The first piece has one
    plane, whose spikes have the time edges[0]. Earlier spikes are ignored.

    stream: see `spike_intervals`.
    no_first: the value of `first_spikes` for a pixel without a spike in the piece.
    """
    first_spikes = []
    last_spikes = []
    counts = []
    # The piece begins at 0 or later. If the first edge is at time 0, its piece is empty, because no
    # plane ends at time 0.
    piece_begin = max(edges[0] - 1, 0)
    for edge in edges:
        planes = stream[piece_begin:edge]
        # A spike has the time at which its plane ends. `min` gives the first spike, and `max` the
        # last one. A plane without a spike must change neither, so it gets the time `no_first`
        # before `min`, and 0 before `max`. `initial` is the result for an empty piece.
        plane_ends = np.arange(piece_begin + 1, edge + 1, dtype=np.int32)[:, None, None]
        times_or_later = np.where(planes, plane_ends, no_first)  # (planes, h, w)
        times_or_0 = planes * plane_ends
        first_spikes.append(times_or_later.min(axis=0, initial=no_first))
        last_spikes.append(times_or_0.max(axis=0, initial=NO_SPIKE))
        counts.append(planes.sum(axis=0, dtype=np.int32))
        piece_begin = edge
    return SpikesBeforeEdges(np.stack(first_spikes), np.stack(last_spikes), np.stack(counts))

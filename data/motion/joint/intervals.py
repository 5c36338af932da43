"""Find the intervals between two spikes of a pixel, as numpy arrays.

A pixel of the spike camera fires a spike each time when it has integrated a fixed amount of light,
its threshold. So between two of its spikes it has collected a known amount: one threshold for each
spike after the first one, up to the second one. spike_equations.py makes an equation of it.

    plane    one binary picture (h, w) of the spike camera; 1 where a pixel fired
    time     counted in planes; a spike in plane p has the time p + 1, the end of its plane
    edge     a time, which the caller chooses; intervals begin and end at spikes near the edges

    spike_intervals        stream and edges -> the intervals of all pixels
    _nearest_spikes        the spike that is nearest to each edge
    _next_spikes           the first spike after each edge
    _spikes_before_edges   first spike, last spike and number of spikes between two edges

All pixels are computed together, edge by edge, because a loop over pixels would take minutes.

What must stay: each interval begins and ends at a spike of the stream, has the number of spikes
between both, and no two intervals of a pixel overlap. Each of these has a test in
tests/parts/data/joint/test_intervals.py.
"""

from typing import NamedTuple

import numpy as np


class SpikeIntervals(NamedTuple):
    """Intervals between spikes, each field (M, h, w) float32."""

    begins: np.ndarray  # time of the spike that begins the interval, in planes
    ends: np.ndarray  # time of the spike that ends the interval
    # n: number of spikes after `begins` and up to `ends`. Each spike stands for one threshold of
    # light. 0: the pixel has no interval here, and `begins` and `ends` mean nothing.
    thresholds: np.ndarray


# A spike ends its plane, so the first possible time of a spike is 1, and 0 can mean "no spike".
NO_SPIKE = 0


def spike_intervals(stream: np.ndarray, edges: np.ndarray) -> SpikeIntervals:
    """Find one interval of each pixel between every two edges: from one spike to a later spike.

    An interval begins at the spike that is nearest to one edge, and ends at the spike that is
    nearest to a later edge. Only spikes from edges[0] to edges[-1] count. For example, a pixel with
    spikes at the times 3, 9 and 16:

        edges              2    8    14    17
        nearest spikes     3    9    16    16
        intervals            3-9  9-16  none

    The intervals of a pixel never overlap, so no light is counted twice.

    stream: (T, h, w) uint8 in {0, 1}. edges: (M + 1,) times, ascending whole planes.
    """
    nearest = _nearest_spikes(stream, edges.tolist())
    # Join the nearest spikes of neighbouring edges to intervals.
    begins = []
    ends = []
    thresholds = []
    begin_spike = nearest[0]  # where the next interval of each pixel begins
    for end_spike in nearest[1:]:
        has_begin = begin_spike.time > NO_SPIKE
        is_interval = has_begin & (end_spike.time > begin_spike.time)
        begins.append(begin_spike.time)
        ends.append(end_spike.time)
        thresholds.append(np.where(is_interval, end_spike.count - begin_spike.count, 0))

        # Where the next interval of each pixel begins:
        #
        #     this interval exists          at its end
        #     the pixel had no spike yet    at the nearest spike of this edge, if there is one
        #     else                          the begin stays, and the interval ends at a later edge
        #
        # "Else" means that both edges have the same nearest spike, or that no spike follows.
        begins_here = is_interval | ~has_begin
        begin_spike = NearestSpikes(
            time=np.where(begins_here, end_spike.time, begin_spike.time),
            count=np.where(begins_here, end_spike.count, begin_spike.count),
        )
    return SpikeIntervals(
        np.stack(begins).astype(np.float32),
        np.stack(ends).astype(np.float32),
        np.stack(thresholds).astype(np.float32),
    )


class NearestSpikes(NamedTuple):
    """The spike of each pixel that is nearest to an edge, each field (h, w)."""

    time: np.ndarray  # in planes; NO_SPIKE where no spike counts
    count: np.ndarray  # number of spikes up to this spike, this spike too


def _nearest_spikes(stream: np.ndarray, edges: list[int]) -> list[NearestSpikes]:
    """Return the nearest spikes to each edge. Of two equally near spikes, the earlier one counts.

    stream, edges: see `spike_intervals`.
    """
    after_stream = len(stream) + 1  # a time later than each spike
    pieces = _spikes_before_edges(stream, edges, no_first=after_stream)
    next_spikes = _next_spikes(pieces, after_stream)

    # The nearest spike to an edge is the last spike up to the edge, or the next spike after it.
    # E.g. the edge 8 and spikes at 3, 9 and 16: the last spike is 3, the next spike 9 is nearer.
    nearest = []
    last_spike = np.full(stream.shape[1:], NO_SPIKE, np.int32)
    count = np.zeros(stream.shape[1:], np.int32)  # number of spikes up to the edge
    for edge, piece, next_spike in zip(edges, pieces, next_spikes, strict=True):
        last_spike = np.maximum(last_spike, piece.last_spike)
        count = count + piece.count
        has_last = last_spike > NO_SPIKE
        has_next = next_spike < after_stream
        is_last_nearer = edge - last_spike <= next_spike - edge
        takes_last = has_last & (~has_next | is_last_nearer)
        takes_next = ~takes_last & has_next
        next_or_none = np.where(has_next, next_spike, NO_SPIKE)
        time = np.where(takes_last, last_spike, next_or_none)
        # `count` is the number of spikes up to the edge, and the next spike is one more.
        nearest.append(NearestSpikes(time, count + takes_next))
    return nearest


def _next_spikes(pieces: list["SpikesBeforeEdge"], after_stream: int) -> list[np.ndarray]:
    """Return the time of the first spike after each edge, (h, w) for each edge.

    It is `after_stream` where no spike follows. Spikes after the last edge do not count.
    pieces: the spikes before each edge, from `_spikes_before_edges`.
    """
    next_spike = np.full(pieces[0].first_spike.shape, after_stream, np.int32)
    next_spikes = [next_spike]  # of the last edge: no spike counts
    # From the last edge back: the first spike after an edge is in the piece between this edge and
    # the following edge. If it has none, it is the first spike after the following edge.
    for piece in reversed(pieces[1:]):
        next_spike = np.minimum(piece.first_spike, next_spike)
        next_spikes.insert(0, next_spike)
    return next_spikes


class SpikesBeforeEdge(NamedTuple):
    """The spikes of each pixel between an edge and the edge before it, each field (h, w)."""

    first_spike: np.ndarray  # time of the first spike; a time after the stream if there is none
    last_spike: np.ndarray  # time of the last spike; NO_SPIKE if there is none
    count: np.ndarray  # number of spikes


def _spikes_before_edges(
    stream: np.ndarray, edges: list[int], no_first: int
) -> list[SpikesBeforeEdge]:
    """Divide the stream at the edges into pieces, and find the spikes of each piece.

    A piece ends at its edge. E.g. a pixel with spikes at the times 3, 9 and 16:

        edge    planes of the piece    first_spike, last_spike, count
        2       1                      no_first, NO_SPIKE, 0
        8       2 to 7                 3, 3, 1
        14      8 to 13                9, 9, 1

    The first piece has one plane, whose spikes have the time edges[0]. They are the earliest spikes
    that count.
    no_first: `first_spike` where a pixel has no spike. stream, edges: see `spike_intervals`.
    """
    # At least 0: the first edge may be at time 0. No plane ends there, so its piece is empty.
    begin_of_first_piece = max(edges[0] - 1, 0)
    piece_begins = [begin_of_first_piece, *edges[:-1]]
    pieces = []
    for piece_begin, edge in zip(piece_begins, edges, strict=True):
        planes = stream[piece_begin:edge]
        # A spike has the time at which its plane ends.
        plane_ends = np.arange(piece_begin + 1, edge + 1, dtype=np.int32)[:, None, None]
        spike_times = np.where(planes, plane_ends, no_first)  # (planes, h, w)
        # `initial` is the result for an empty piece.
        first_spike = spike_times.min(axis=0, initial=no_first)
        last_spike = (planes * plane_ends).max(axis=0, initial=NO_SPIKE)
        count = planes.sum(axis=0, dtype=np.int32)
        pieces.append(SpikesBeforeEdge(first_spike, last_spike, count))
    return pieces

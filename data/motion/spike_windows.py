"""Count the spikes and the light of an exposure in windows of time, for the network of motion.

A plane is one binary picture (h, w) of the spike camera, and a window is some planes in a row. A
pixel fires when it has collected a fixed amount of light. So between two spikes, the pixel has
collected the light of one spike, and we take this light as spread evenly over the interval:

    count   number of spikes of a pixel in a window
    light   number of intervals of a pixel in a window. An interval that lies partly in the window
            counts by this part, e.g. as 0.5 if half of it lies in the window

The network sees count and light. In dim light an interval reaches over several windows. The light
is the same in all these windows, so only the count shows when light came.

Count and light are computed as a difference: the value up to the end of a window, minus the value
up to its beginning. The count up to an edge is the number of spikes before the edge. The light up
to an edge is

    (number of spikes before the edge) + (share of the present interval that has passed)

E.g. with spikes at the times 4 and 14, the light up to the edge 10 is 1 + (10 - 4) / (14 - 4), 1.6.
Edge p lies between the planes p - 1 and p, and a spike in plane p has the time p + 1.

What must stay: count and light. The network was trained on them (network_inputs.py), and the tests
compare them with numbers that were worked out by hand.

Tests: tests/parts/data/test_network_inputs.py
"""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Windows:
    """The spikes of an exposure in K windows of time."""

    counts: np.ndarray  # (K, h, w): number of spikes
    light: np.ndarray  # (K, h, w): light, counted in spikes. E.g. 0.5 for half of an interval
    lengths: np.ndarray  # (K,): number of planes of each window
    are_recorded: np.ndarray  # (K,) bool: whether all planes of a window were recorded


def spike_windows(stream: np.ndarray, edges: np.ndarray) -> Windows:
    """Count the spikes and the light of K windows. Each window begins where the last one ends.

    E.g. the edges -2, 0, 4, 6 give three windows. The first has the planes -2 and -1, which were
    not recorded. The second has the planes 0 to 3, and the third has the planes 4 and 5.

    stream: (T, h, w) in {0, 1}. edges: (K + 1,) planes, ascending. Edges may lie outside of the
    stream: planes that were not recorded have no spikes.
    """
    planes = len(stream)
    recorded_edges = np.clip(edges, 0, planes)
    spikes_before = []  # before each edge, (h, w) each
    # The light before each edge, (h, w) each. E.g. 3.6 after three spikes and 60 % of the interval
    # up to the fourth spike.
    light_before = []
    for edge in recorded_edges.tolist():
        spikes = stream[:edge].sum(axis=0, dtype=np.int32)
        spikes_before.append(spikes)
        light_before.append(spikes + _passed_share(stream, edge))
    # A window has the difference between the values at its two edges.
    counts = np.diff(np.stack(spikes_before), axis=0).astype(np.float32)  # (K, h, w)
    light = np.diff(np.stack(light_before), axis=0).astype(np.float32)  # (K, h, w)
    lengths = np.diff(edges)
    # In an exposure of few planes a window may have no plane. Such a window shows nothing, so it
    # counts as not recorded.
    are_recorded = (edges[:-1] >= 0) & (edges[1:] <= planes) & (lengths > 0)
    return Windows(counts, light, lengths.astype(np.float32), are_recorded)


def _passed_share(stream: np.ndarray, edge: int) -> np.ndarray:
    """Return the share (h, w) of the present interval that has passed at an edge, in [0, 1).

    The present interval goes from the last spike before the edge to the first spike after it. E.g.
    between spikes at the times 4 and 14, a share of 0.6 has passed at the edge 10. A spike at the
    time of the edge counts as a spike before the edge.

    stream: (T, h, w) in {0, 1}. edge: 0 to T.

    Without this share, test_the_light_of_a_window_follows_from_the_intervals_in_it fails.
    """
    last = _time_of_last_spike(stream, edge)  # at most `edge`
    following = _time_of_next_spike(stream, edge)  # at least `edge` + 1, so never equal to `last`
    return (edge - last) / (following - last)


def _time_of_last_spike(stream: np.ndarray, edge: int) -> np.ndarray:
    """Return the time (h, w) of the last spike before an edge, 0 if there is no spike before it.

    E.g. with spikes in the planes 3 and 13, the result at the edge 10 is 4, the time of the spike
    in plane 3.
    """
    if edge == 0:  # no plane lies before the edge, and `argmax` refuses an empty array
        return np.zeros(stream.shape[1:], np.int32)
    has_spike = stream[:edge] > 0  # (edge, h, w)
    # Walk backwards from the edge. `argmax` finds the first plane with a spike, and so counts the
    # planes without a spike. E.g. at the edge 10, the 6 planes 9, 8, 7, 6, 5 and 4 have no spike.
    empty_planes = has_spike[::-1].argmax(axis=0)
    return np.where(has_spike.any(axis=0), edge - empty_planes, 0)


def _time_of_next_spike(stream: np.ndarray, edge: int) -> np.ndarray:
    """Return the time (h, w) of the first spike after an edge.

    E.g. with spikes in the planes 3 and 13, the result at the edge 10 is 14. If no spike follows,
    the result is one plane after the end of the stream, because the next spike comes at this time
    at the earliest.
    """
    planes = len(stream)
    if edge == planes:  # no plane lies after the edge, and `argmax` refuses an empty array
        return np.full(stream.shape[1:], planes + 1)
    has_spike = stream[edge:] > 0  # (planes - edge, h, w)
    # Walk forwards from the edge. E.g. at the edge 10, the 3 planes 10, 11 and 12 have no spike.
    # The spike is in plane edge + empty_planes, and its time is 1 more.
    empty_planes = has_spike.argmax(axis=0)
    return np.where(has_spike.any(axis=0), edge + empty_planes + 1, planes + 1)

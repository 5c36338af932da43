"""Divide the planes of an exposure into groups, and find how the scene has moved in each of them.

The scene moves while a frame is exposed, and both cameras add up what they see. To have few terms
in their sums, the planes of the exposure (binary pictures of the spike camera) are divided into G
groups of equal length. Each group is taken as one moment, its middle:

    u_g(p)    the motion: what group g sees at pixel p is at p + u_g(p) in the sharp frame
    s_g       share of group g in the exposure of a row: the time that both have in common, over
              the length of the exposure. The shares of a row add up to 1.
    q(p)      expected error of the motion, the mean over the groups

E.g. 60 planes and 6 groups: the groups end at the times 10, 20, ... 60, have the motion at the
times 5, 15, ... 55, and s_g = 1/6 if all rows are exposed at once. With a rolling shutter s_g
differs from row to row.

More groups describe a fast motion better, and take more time and memory. `group_count` chooses
their number, `plane_groups` makes them.

What must stay: s, u and q. The fusion operator "motion" (models/fusion/fusion_motion.py) improves
frames by learned steps along the motion. Its network was trained on s, u and q.

Tests: tests/parts/data/joint/test_groups.py notices another number of groups, and other shares with
a rolling shutter. No test notices whether frames become better or worse by another constant, so
measure it (docs/benchmarks/quality_details.md, "Its constants").
"""

import itertools
import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from data.motion.exposure import Recording
from data.motion.joint.values import tensor_of
from data.motion.light import DIM_SPIKES, median_spikes
from data.motion.shifts import Motion, lengths_of
from data.motion.view import View

# ---- How many groups there are ----

# Largest distance in RGB pixels that a pixel should move from one group to the next. All planes of
# a group are taken to see the pixel at one point. So if the points of two groups were farther
# apart, no group would see the pixel between them: with 2 pixels, frames in good light lose 0.2 dB.
# A smaller value needs more groups, and so more time.
PIXELS_BETWEEN_GROUPS = 1.25
# The largest distance in dim light, i.e. if a pixel of median light has fewer than `DIM_SPIKES`
# spikes in the exposure. In dim light the motion is known less exactly, so a larger distance loses
# nothing.
PIXELS_BETWEEN_GROUPS_IF_DIM = 2.5
# Share of the pixels that move by at most the largest distance from one group to the next. The
# other pixels, the fastest fifth, may move farther. A larger value would need more groups, and so
# more time.
DECIDING_SHARE = 0.8
# Least number of groups. (If `Solver.groups` is smaller, `Solver.groups` is the number.) If four
# fifths of the pixels stand still, a single group would be enough for them, but the other fifth may
# move. The value is a judgement.
LEAST_GROUPS = 6


def group_count(recording: Recording, motion: Motion, most_groups: int) -> int:
    """Return G, the number of groups that a motion needs, at most `most_groups`.

    E.g. if 80 % of the pixels move by up to 20 pixels in good light, 16 groups are needed: from one
    group to the next these pixels move by at most 20 / 16 = 1.25 pixels.

    test_a_faster_motion_gets_more_groups notices a larger distance between groups.
    """
    deciding_distance = float(np.quantile(_distances(motion), DECIDING_SHARE))
    if median_spikes(recording) < DIM_SPIKES:
        between_groups = PIXELS_BETWEEN_GROUPS_IF_DIM
    else:
        between_groups = PIXELS_BETWEEN_GROUPS
    needed_groups = math.ceil(deciding_distance / between_groups)
    return min(max(needed_groups, LEAST_GROUPS), most_groups)


def _distances(motion: Motion) -> np.ndarray:
    """Return how far each pixel moves within the exposure, in RGB pixels, (H, W) float32.

    The distance is the sum of the lengths of the moves from each time of the motion to the next.
    """
    distances = np.zeros(motion.shifts.shape[1:3], np.float32)
    # Add one move after the other, because an array of all moves of a large frame would take
    # longer.
    for shifts, next_shifts in itertools.pairwise(motion.shifts):
        distances += lengths_of(next_shifts - shifts)
    return distances


# ---- The groups ----


class PlaneGroups(NamedTuple):
    """The groups of planes of an exposure, and the motion of each group."""

    edges: np.ndarray  # (G + 1,) times between the groups, in planes
    shifts: Tensor  # u, (G, H, W, 2) in RGB pixels
    shares: Tensor  # s, (G, H): which part of the exposure of each row lies in each group
    # Length and expected error q of the motion, in pixels: means over the groups, (H, W).
    motion_length: Tensor
    motion_error: Tensor


def plane_groups(
    recording: Recording, view: View, motion: Motion, count: int, device: torch.device
) -> PlaneGroups:
    """Divide the exposure of all rows into groups of planes, and find the shifts of each group.

    recording: the planes around the exposure. view: where the spike camera sees the frame.
    motion: the shifts of the pixels of the frame within the exposure.
    count: G, number of groups. E.g. 60 planes from 0 to 60 and 6 groups: the edges are 0, 10, ...
    60, and a group has the shifts at its middle, 5, 15, ... 55.
    device: where the tensors of the result are.
    """
    # With a rolling shutter some rows are exposed earlier than the middle row, and some later. So
    # the groups reach from the start of the earliest row to the end of the latest row. E.g. the
    # planes 30 to 90 and delays from -0.1 to 0.1 of 60 planes: the groups reach from 24 to 96.
    delays = view.delays()  # (H,), by how much each row is later than the middle row, in exposures
    begin_of_rows = recording.begin + delays.min() * recording.length
    end_of_rows = recording.end + delays.max() * recording.length
    edges = np.linspace(begin_of_rows, end_of_rows, count + 1)
    middles = (edges[:-1] + edges[1:]) / 2

    # All planes of a group get the shifts at its middle.
    shifts, errors = _shifts_at(motion, middles - recording.sharp)
    shares = exposure_shares(recording, edges, delays)
    shifts_of_groups = tensor_of(np.stack(shifts), device)
    # The lengths sqrt(x^2 + y^2) of the shifts. `torch.hypot` takes three times as long.
    x = shifts_of_groups[..., 0]
    y = shifts_of_groups[..., 1]
    lengths = (x * x).addcmul_(y, y).sqrt_()  # (G, H, W)
    return PlaneGroups(
        edges,
        shifts_of_groups,
        tensor_of(shares, device),
        motion_length=lengths.mean(0),
        motion_error=tensor_of(np.mean(errors, axis=0), device),
    )


def _shifts_at(motion: Motion, times: np.ndarray) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Return the shifts (H, W, 2) to the sharp frame at each time, and their errors (H, W).

    times: in planes after the sharp instant, negative before it. The times must rise in equal
    steps, because the search at each time begins at the shifts of the last two times, continued.
    """
    shifts: list[np.ndarray] = []
    errors: list[np.ndarray] = []
    for time in times.tolist():
        # Begin the search at the last two shifts, continued at the same speed. E.g. after the
        # shifts 4 and 6, it begins at 8. The first two times have no such beginning.
        start = None
        if len(shifts) >= 2:
            start = 2 * shifts[-1] - shifts[-2]
        # `back`: from where a pixel is at this time, back to where it is in the sharp frame.
        shifts_to_sharp, errors_of_shifts = motion.back(time, start)
        shifts.append(shifts_to_sharp)
        errors.append(errors_of_shifts)
    return shifts, errors


def exposure_shares(recording: Recording, edges: np.ndarray, delays: np.ndarray) -> np.ndarray:
    """Return s, the share (G, rows) float32 of each group of planes in the exposure of each row.

    The shares of a row add up to 1. E.g. groups of the times 0 to 10 and 10 to 20, and a row that
    is exposed from 4 to 14: they have 6 and 4 planes in common, so the shares are 0.6 and 0.4.

    edges: (G + 1,) times between the groups.
    delays: (rows,), by how much each row is exposed later than the middle row, in exposures. A row
    without delay is exposed from `recording.begin` to `recording.end`.

    Without the delays, test_a_rolling_shutter_exposes_each_row_later fails.
    """
    delay = delays * recording.length  # in planes, (rows,)
    row_begins = recording.begin + delay
    row_ends = recording.end + delay
    group_begins = edges[:-1, None]  # (G, 1)
    group_ends = edges[1:, None]

    # The time that a group and the exposure of a row have in common, (G, rows). It is at least 0,
    # because a group may end before the exposure of a row begins.
    overlap_begins = np.maximum(group_begins, row_begins)
    overlap_ends = np.minimum(group_ends, row_ends)
    overlap = np.clip(overlap_ends - overlap_begins, 0, None)
    return (overlap / overlap.sum(0)).astype(np.float32)

"""Make the spike equations of an exposure: the mean grey value between two spikes is known.

A pixel of the spike camera fires each time when it has integrated a fixed amount of light, its
threshold. So the time between two of its spikes gives its mean grey value in this time. There is an
equation per interval between two spikes:

    S l = sum over groups g of c_g m(v + u_g(v)) = y        weight w_s = 1 / (error of y)

    l             what the spike camera integrates of the sharp frame: its luma
    m             means of l over the area of a spike pixel (area_means.py); v is its middle
    begin, end    times of the two spikes, in planes (binary pictures of the spike camera)
    c_g           share of group g, a part of the planes (groups.py), in the time from begin to end
    y             n / (gain (end - begin)), the measured grey value
    n             number of thresholds of light between both spikes: 1 for neighbouring spikes
    gain          spikes per plane of the spike pixel at full light (l = 1)

E.g. a pixel with the gain 0.6 fires at the times 10 and 15: y = 1 / (0.6 * 5) = 0.33. If group 3
has the planes 12 to 14, it has 3 of the 5 planes between both spikes: c_3 = 0.6.

cameras.py computes the left side S l. This module makes c, y and w_s; spike_errors.py has the error
of y.

What must stay: the numbers. The fusion operator "motion" (models/fusion/fusion_motion.py) improves
frames by learned steps along the motion. Its network was trained on these equations.

Tests: tests/parts/data/joint/test_spike_equations.py notices an equation of a pixel that may have
none, and tests/parts/data/joint/test_equations.py a wrong y. Both tests also pass with INTERVALS =
2, so measure the effect of another value (docs/benchmarks/quality_details.md, "Its constants").
"""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from data.motion.exposure import Recording
from data.motion.joint.intervals import spike_intervals
from data.motion.joint.spike_errors import grey_errors
from data.motion.joint.spike_pixels import SpikePixels
from data.motion.joint.values import tensor_of

# Largest number of spike equations of a pixel in an exposure. Fewer equations, of longer intervals,
# would say less about what changes within the exposure. More equations, of shorter intervals, would
# add little, because neighbouring intervals share the rounding of the spike between them. Chosen by
# hand.
INTERVALS = 8


class SpikeEquations(NamedTuple):
    """The spike equations S l = y of an exposure, M for each spike pixel: M = INTERVALS."""

    coverage: Tensor  # c, (M, G, h, w): share of each of G groups of planes in each interval
    y: Tensor  # (M, h, w): measured grey value
    weights: Tensor  # w_s, (M, h, w): 1 / (error of y), 0 for an equation that is not used
    median_rate: float  # spikes per plane in a median interval, at least LEAST_RATE


def spike_equations(
    recording: Recording,
    pixels: SpikePixels,
    group_edges: np.ndarray,
    gain: np.ndarray,
    is_good: np.ndarray,
    device: torch.device,
) -> SpikeEquations:
    """Make the spike equations of an exposure: one for each interval between two spikes of a pixel.

    pixels: what the spike pixels see of the frame. Here `pixels` says which spike pixels lie on the
    frame.
    group_edges: (G + 1,), times between the groups of planes.
    gain: (h, w), spikes per plane of each spike pixel at full light.
    is_good: (h, w), whether each spike pixel can be trusted.
    """
    # Cut the exposure into M = INTERVALS windows of equal length. Each pixel has about one interval
    # for each window, from the spike nearest to the beginning of the window to the spike nearest to
    # its end. The edges are whole numbers, because spikes have whole times.
    window_edges = np.linspace(recording.begin, recording.end, INTERVALS + 1).round().astype(int)
    intervals = spike_intervals(recording.stream, window_edges)
    begins = tensor_of(intervals.begins, device)  # (M, h, w)
    ends = tensor_of(intervals.ends, device)  # (M, h, w)
    n = tensor_of(intervals.thresholds, device)  # (M, h, w), 0 where a pixel has no interval
    has_interval = n > 0
    lengths = (ends - begins).clamp(min=1)  # a length is 0 where n is 0, so take 1
    coverage = _coverage(begins, ends, lengths, tensor_of(group_edges, device))

    r = n / lengths  # spikes per plane, (M, h, w)
    y = r / tensor_of(gain, device)  # y = n / (gain (end - begin))

    # The weight w_s = 1 / error. The weight is 0 if the pixel has no interval, lies beside the
    # frame, or cannot be trusted (e.g. a dead pixel).
    is_used = has_interval & pixels.are_on_frame & torch.from_numpy(is_good).to(device)
    errors = grey_errors(y, r, n, pixels.view.is_display)
    weights = is_used / errors  # True counts as 1, False as 0

    return SpikeEquations(coverage, y, weights, _median_rate(r[has_interval]))


def _coverage(begins: Tensor, ends: Tensor, lengths: Tensor, group_edges: Tensor) -> Tensor:
    """Return c, (M, G, h, w): the share of each group of planes in each interval between spikes.

        c = (time that the group and the interval have in common) / (length of the interval)

    E.g. the interval from 10 to 15 and the group from 12 to 20: c = 3 / 5.

    begins, ends, lengths: begin, end and length of each interval in planes, (M, h, w).
    group_edges: (G + 1,), times between the groups, in planes.
    """
    group_begins = group_edges[:-1, None, None]  # (G, 1, 1)
    group_ends = group_edges[1:, None, None]
    overlap_begins = torch.maximum(begins[:, None], group_begins)  # (M, G, h, w)
    overlap_ends = torch.minimum(ends[:, None], group_ends)
    # Compute in place, because each of these tensors has a hundred megabytes for a large frame. The
    # overlap is at least 0, because a group may end before the interval begins.
    overlap = overlap_ends.sub_(overlap_begins).clamp_(min=0)
    return overlap.div_(lengths[:, None])


# Least median rate, in spikes per plane. A network sees its logarithm, and log(0) is infinite. The
# trained weights fit this value.
LEAST_RATE = 1e-3


def _median_rate(rates: Tensor) -> float:
    """Return the median of the rates of all intervals, (intervals,). It is at least LEAST_RATE.

    A dark exposure may have no interval at all.
    """
    if len(rates) == 0:
        return LEAST_RATE
    return max(float(np.median(rates.cpu().numpy())), LEAST_RATE)

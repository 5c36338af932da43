"""The optical flows between the frames of a clip, and the input that is aligned along them.

    estimate_flows    the flows between frames that are 1, 2, ... frames apart
    aligned_input     joins each frame and its two warped neighbours, as channels

Letters: B clips, N frames, h x w pixels at one resolution. A flow (B, n, 2, h, w) is a shift in
pixels of its resolution: channel 0 along x, channel 1 along y. A flow is read at a pixel of one
frame, and leads to the same point of the scene in another frame. E.g. a point is at x = 10 in frame
0, and at x = 13 in frame 1:

    flow    read at             value    warps
    0>1     x = 10 of frame 0   +3       frame 1 to frame 0: a backward flow
    1>0     x = 13 of frame 1   -3       frame 0 to frame 1: a forward flow

A flow is called "backward" or "forward" by the direction in time in which it warps a frame. The
flow itself leads in the opposite direction.

What must stay:

    The arithmetic, which the weights rely on. tests/parts/models/test_network_vrt.py notices.

    The order of the sums in `estimate_flows`. Another order changes the last bits of gradients, so
    existing runs would not resume exactly. No test notices.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from models.vrt.flow_warp import flow_warp, nearest4
from models.vrt.spynet import SpyNet


class FlowsOfLevel(NamedTuple):
    """The flows of a clip at one resolution, h x w pixels.

    Each field is a list. Entry d, (B, N - 1 - d, 2, h, w), is for pairs of frames that are d + 1
    frames apart.
    """

    backward: list[Tensor]  # backward[d][:, i] warps frame i + d + 1 to frame i
    forward: list[Tensor]  # forward[d][:, i] warps frame i to frame i + d + 1


# The flows of a clip: flows[level] is at 1 / 2^level of the resolution.
Flows = list[FlowsOfLevel]


def estimate_flows(spynet: SpyNet, frames: Tensor, distance: int) -> Flows:
    """Estimate the flows of a clip (B, N, 1 or 3, H, W) in [0, 1].

    distance: distance of the farthest neighbour, in frames. Flows of all distances from 1 to this
        distance are returned.

    SpyNet estimates only the flows between adjacent frames, in both directions as one batch.
    `_extended` computes the flows between frames that are further apart.
    """
    b, n, _, height, width = frames.shape
    # The frames at six scales, coarsest first. Each frame is scaled once, although it is in several
    # pairs.
    levels = []
    for level in spynet.pyramid(frames.flatten(0, 1)):
        levels.append(level.view(b, n, *level.shape[1:]))  # (B, N, 3, h, w)
    references, neighbours = _adjacent_pairs(levels)
    flows: Flows = []
    # `estimate` returns the four finest scales, finest first.
    for both_directions in spynet.estimate(references, neighbours, (height, width)):
        by_direction = both_directions.view(2, b, n - 1, *both_directions.shape[1:])
        # `_adjacent_pairs` puts the pairs of the backward flows first.
        backward, forward = by_direction  # (B, N - 1, 2, h, w) each
        flows.append(_extended(backward, forward, distance))
    return flows


def _adjacent_pairs(levels: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    """Return the references and the neighbours of all pairs of adjacent frames, level by level.

    A flow is read at the reference, and leads to the neighbour. The batch has first the pairs for
    the backward flows, and then the pairs for the forward flows:

                        reference       neighbour
        backward flow   first frame     second frame of the pair
        forward flow    second frame    first frame

    levels: the pyramid, (B, N, 3, h, w) each. Returns tensors (2 B (N - 1), 3, h, w).
    """
    # Autograd sums the gradients of a frame in the order of these slices, and another order changes
    # the last bits. So do not join the two loops, and do not reuse a slice.
    references = []
    for level in levels:
        first = level[:, :-1]  # the first frame of each pair, (B, N - 1, 3, h, w)
        second = level[:, 1:]
        both = torch.stack((first, second))  # (2, B, N - 1, 3, h, w)
        references.append(both.flatten(0, 2))
    neighbours = []
    for level in levels:
        second = level[:, 1:]
        first = level[:, :-1]
        both = torch.stack((second, first))
        neighbours.append(both.flatten(0, 2))
    return references, neighbours


def _extended(backward: Tensor, forward: Tensor, distance: int) -> FlowsOfLevel:
    """Return the flows of the distances 1 to `distance`, from the flows of adjacent frames.

    backward, forward: (B, N - 1, 2, h, w).

    Each round of the loop extends the flows by one frame. E.g. 0>2 is 0>1 plus 1>2, where 1>2 is
    read at the pixel to which 0>1 leads. For 4 frames:

        distance    backward         forward
        1           0>1  1>2  2>3    1>0  2>1  3>2
        2           0>2  1>3         2>0  3>1
        3           0>3              3>0
    """
    far_backward = [backward]
    far_forward = [forward]
    for reach in range(1, distance):
        # Extend the flows from distance `reach` to reach + 1. The comments show the example for
        # reach 1.
        extendable = far_backward[-1][:, :-1]  # 0>1 1>2, not 2>3: frame 3 is the last one
        next_flow = backward[:, reach:]  # 1>2 2>3
        far_backward.append(_chain(extendable, next_flow))  # 0>2 1>3
        extendable = far_forward[-1][:, 1:]  # 2>1 3>2, not 1>0: frame 0 is the first one
        next_flow = forward[:, :-reach]  # 1>0 2>1
        far_forward.append(_chain(extendable, next_flow))  # 2>0 3>1
    return FlowsOfLevel(far_backward, far_forward)


def _chain(first: Tensor, second: Tensor) -> Tensor:
    """Return the flow that goes along `first`, then along `second`. All are (B, n, 2, h, w)."""
    warped = flow_warp(second.flatten(0, 1), first.flatten(0, 1))
    return first + warped.view(second.shape)


def aligned_input(frames: Tensor, backward: Tensor, forward: Tensor) -> Tensor:
    """Warp the two neighbours of each frame to it by `nearest4`, and join the three as channels.

    frames: (B, N, C, H, W).
    backward, forward: flows between adjacent frames, (B, N - 1, 2, H, W).

    Returns (B, N, 9C, H, W): the frame (C channels), the next frame (4C) and the frame before (4C).
    The released weights rely on this order. A neighbour outside the clip is zero.
    """
    b, n, c, height, width = frames.shape
    # Both directions are one batch: the next frames first, then the frames before. A backward flow
    # warps the next frame.
    later = frames[:, 1:]  # the next frames of the frames 0 ... N - 2
    earlier = frames[:, :-1]  # the frames before the frames 1 ... N - 1
    neighbours = torch.stack((later, earlier)).flatten(0, 2)  # (2 B (N - 1), C, H, W)
    flows = torch.stack((backward, forward)).flatten(0, 2)  # (2 B (N - 1), 2, H, W)
    warped = nearest4(neighbours, flows).view(2, b, n - 1, 4 * c, height, width)
    zeros = warped.new_zeros(b, 1, 4 * c, height, width)
    next_frames = torch.cat((warped[0], zeros), dim=1)  # the last frame has no next frame
    frames_before = torch.cat((zeros, warped[1]), dim=1)  # the first frame has no frame before
    return torch.cat((frames, next_frames, frames_before), dim=2)

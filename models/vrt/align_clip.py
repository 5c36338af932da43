"""Align the neighbours of each frame of a clip to this frame, on both sides.

`align_clip` selects the later and the earlier neighbours of each frame, and their flows. A
`DeformAlign` (deform_align.py) then aligns the neighbours, for some frames at a time.

Letters: B clips, N frames, C channels, H x W pixels.

What must stay:

    The results and their gradients. tests/parts/models/test_vrt_modules.py compares them with the
    published network.

    The number of frames that a CPU takes at a time. The gradients of weights are summed batch by
    batch, so another number changes their last bits. No test notices.
"""

import torch
from torch import Tensor

from models.vrt.deform_align import DeformAlign
from models.vrt.forms import in_cpu_form


def align_clip(
    module: DeformAlign, x: Tensor, backward: list[Tensor], forward: list[Tensor]
) -> tuple[Tensor, Tensor]:
    """Align the later and the earlier neighbours of each frame to the frame.

    x: (B, N, C, H, W).
    backward, forward: flows between frames at the distances 1, 2, ..., one tensor
        (B, N - distance, 2, H, W) for each distance. A backward flow warps a later frame to an
        earlier frame. A forward flow warps an earlier frame to a later frame.

    Returns two clips of the shape of x: the aligned later neighbours, and the aligned earlier
    neighbours. A neighbour outside the clip counts as a frame of zeros with a flow of zero. The
    last frame has no later neighbour, so its result is zero in the first clip. The first frame has
    no earlier neighbour, so its result is zero in the second clip.
    """
    # The frames come first, so that some frames of all clips can be one batch (`_align_targets`).
    frames = x.transpose(0, 1)  # (N, B, C, H, W)
    backward = [flow.transpose(0, 1) for flow in backward]
    forward = [flow.transpose(0, 1) for flow in forward]
    # Later neighbours are warped back in time, so they need the backward flows.
    later = _align_side(module, frames, backward, is_later=True)
    earlier = _align_side(module, frames, forward, is_later=False)
    return later.transpose(0, 1), earlier.transpose(0, 1)


def _align_side(module: DeformAlign, frames: Tensor, flows: list[Tensor], is_later: bool) -> Tensor:
    """Align the neighbours on one side to each frame: (N, B, C, H, W) -> the same shape.

    flows: for the distances 1, 2, ..., each (N - distance, B, 2, H, W).
    is_later: whether the neighbours are later than the frame, or earlier.
    """
    # The targets are the frames with a neighbour on this side. The last frame has no later
    # neighbour, and the first frame has no earlier neighbour.
    targets = frames[:-1] if is_later else frames[1:]
    sources, source_flows = _neighbours(frames, flows, is_later)
    aligned = _align_targets(module, targets, sources, source_flows)
    # The frame without a neighbour on this side gets zeros. With later neighbours, this is the last
    # frame. With earlier neighbours, this is the first frame.
    return _with_zeros(aligned, count=1, is_behind=is_later)


def _neighbours(
    frames: Tensor, flows: list[Tensor], is_later: bool
) -> tuple[list[Tensor], list[Tensor]]:
    """Return the neighbours of all targets, and the flows to them, for each distance 1, 2, ...

    A neighbour outside the clip is a frame of zeros with a flow of zero. E.g. in a clip of 4
    frames:

        later neighbours                       earlier neighbours

        targets                  0  1  2       targets                  1      2  3
        sources at distance 1    1  2  3       sources at distance 1    0      1  2
        sources at distance 2    2  3  zeros   sources at distance 2    zeros  0  1

    frames: (N, B, C, H, W).
    flows: for the distances 1, 2, ..., each (N - distance, B, 2, H, W).
    is_later: whether the neighbours are later than the frame, or earlier.

    Returns tensors (N - 1, B, C, H, W), and flows (N - 1, B, 2, H, W).
    """
    n = len(frames)
    sources = []
    source_flows = []
    for distance, flow in enumerate(flows, start=1):
        # E.g. 4 frames at distance 2: the later neighbours 2 3, or the earlier neighbours 0 1.
        source = frames[distance:] if is_later else frames[: n - distance]
        # Number of targets whose neighbour lies outside the clip, e.g. 1 at distance 2.
        missing = distance - 1
        sources.append(_with_zeros(source, missing, is_behind=is_later))
        source_flows.append(_with_zeros(flow, missing, is_behind=is_later))
    return sources, source_flows


# Largest number of pixels in one batch of a deformable convolution on a CPU. (A GPU takes all
# frames at once.) Larger batches would not fit the cache, and smaller batches would need more
# calls. The gradients of weights are summed batch by batch, so another number also changes their
# last bits.
MOST_PIXELS_ON_CPU = 1024


def _align_targets(
    module: DeformAlign, targets: Tensor, sources: list[Tensor], flows: list[Tensor]
) -> Tensor:
    """Align the sources to the targets, some targets at a time.

    targets: (targets, B, C, H, W).
    sources: the same shape, one tensor for each distance.
    flows: (targets, B, 2, H, W), one tensor for each distance.

    Returns the shape of `targets`.
    """
    count, b, _, h, w = targets.shape
    targets_at_a_time = count
    if in_cpu_form(targets):  # whether the tensor is on a CPU
        pixels_of_target = b * h * w
        # E.g. 2 clips of 16 x 16 pixels have 512 pixels per target: 2 targets at a time.
        targets_at_a_time = max(1, MOST_PIXELS_ON_CPU // pixels_of_target)
    results = []
    for first in range(0, count, targets_at_a_time):
        in_batch = slice(first, first + targets_at_a_time)
        # The targets of all clips are one batch: (targets, B, ...) -> (targets B, ...).
        batch_sources = [source[in_batch].flatten(0, 1) for source in sources]
        batch_flows = [flow[in_batch].flatten(0, 1) for flow in flows]
        batch_targets = targets[in_batch].flatten(0, 1)
        results.append(module(batch_sources, batch_targets, batch_flows))
    return torch.cat(results).view(targets.shape)


def _with_zeros(x: Tensor, count: int, is_behind: bool) -> Tensor:
    """Add `count` frames of zeros to x (N, ...).

    is_behind: whether the zeros come after the frames of x, or before. E.g. for 2 zeros:

        True     x0 x1 0 0
        False    0 0 x0 x1
    """
    if count == 0:
        return x
    zeros = x.new_zeros(count, *x.shape[1:])
    if is_behind:
        return torch.cat((x, zeros))
    return torch.cat((zeros, x))

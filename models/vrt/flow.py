"""Optical flow between frames, and sampling of images along it.

    SpyNet            a network that estimates the flow of a pair of frames
    estimate_flows    the flows between all neighbours of a clip
    flow_warp         samples an image at each pixel plus its flow
    nearest4          the same, but gives the four pixels around the position
    aligned_input     puts the warped neighbours of each frame beside the frame

A flow has the shape (n, 2, h, w), in pixels at its resolution. Channel 0 is the horizontal shift x
(columns), channel 1 the vertical shift y (rows). The flow that warps frame b to frame a gives for
each pixel of a the position of the same point of the scene in b. E.g. the flow (3, 0) at a pixel of
a: in b the point lies 3 pixels further right.

What must stay, and which test notices (in tests/parts/models):

    the arithmetic, which the weights rely on    test_vrt_modules.py, test_network_vrt.py
    the names of modules, which are names in
    the weights files                            test_the_shipped_weights_find_a_known_translation
    the order of the sums in `estimate_flows`    none: another order changes the last bits of
                                                 gradients, so existing runs would not resume
                                                 exactly
"""

import math
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.vrt.forms import in_cpu_form, lacks_border_padding

# ---- Sampling along a flow -------------------------------------------------------------------


# 32 results: training and validation together have a few sizes of frames, each at several scales.
@lru_cache(maxsize=32)
# The tensors are saved for backward. torch does not save tensors that are made in inference mode,
# so this mode is off here.
@torch.inference_mode(False)
def pixel_grid(height: int, width: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return the coordinates of each pixel, (1, 2, height, width). Channel 0 is x, channel 1 y.

    The tensor is cached: do not modify it.
    """
    y, x = torch.meshgrid(
        torch.arange(height, dtype=dtype, device=device),
        torch.arange(width, dtype=dtype, device=device),
        indexing="ij",
    )
    return torch.stack((x, y)).unsqueeze(0)


def _positions(flow: Tensor) -> Tensor:
    """Return each pixel plus its flow, (n, 2, h, w), in float32 or float64.

    bfloat16 is not exact enough: it cannot represent each pixel number of a row, e.g. 257.
    """
    if flow.dtype != torch.float64:
        flow = flow.float()
    height, width = flow.shape[-2:]
    return pixel_grid(height, width, flow.dtype, flow.device) + flow


def flow_warp(x: Tensor, flow: Tensor, mode: str = "bilinear", padding: str = "zeros") -> Tensor:
    """Sample x at each pixel plus `flow`: (n, c, h, w) -> the same shape.

    flow: (n, 2, h, w), in pixels.
    mode: "bilinear", or "nearest" for the value of the nearest pixel.
    padding: with "zeros" pixels outside the image are 0, with "border" they have the value of the
        nearest border pixel.

    x gets gradients. The flow gets gradients too, but not in mode "nearest".
    """
    height, width = x.shape[-2:]
    columns, rows = _positions(flow).unbind(1)

    # grid_sample counts from -1 (first pixel) to 1 (last pixel). So multiply pixels by
    # 2 / (pixels - 1), and subtract 1. An axis of one pixel has no length, so divide by at least 1.
    # The factors are Python numbers, because a tensor would have to be copied to the GPU.
    columns = columns * (2.0 / max(width - 1, 1)) - 1.0
    rows = rows * (2.0 / max(height - 1, 1)) - 1.0
    grid = torch.stack((columns, rows), dim=3)  # (n, h, w, 2)

    if padding == "border" and in_cpu_form(grid):
        # If a coordinate is NaN, torch's backward writes to a random address, which ends the
        # process (pytorch issue 24823). So sample such a pixel elsewhere. The flow itself stays
        # NaN. So the loss is NaN as well, and the step is skipped.
        grid = torch.where(grid.isnan(), 0.0, grid)
    if padding == "border" and lacks_border_padding(grid):
        # Move positions outside the image onto its border. Then no position meets the zeros.
        grid = grid.clamp(-1.0, 1.0)
        padding = "zeros"
    sampled = F.grid_sample(
        x.to(grid.dtype), grid, mode=mode, padding_mode=padding, align_corners=True
    )
    return sampled.to(x.dtype)


def nearest4(x: Tensor, flow: Tensor) -> Tensor:
    """Return the four pixels around each pixel plus `flow`: (n, c, h, w) -> (n, 4c, h, w).

    E.g. a pixel at x = 5 with the flow (0.3, 0): columns 5 and 6. The pixels are not interpolated:
    the first convolution of the network takes all four.

    The order is part of the released weights: (floor x, floor y), (floor x, ceil y),
    (ceil x, floor y), (ceil x, ceil y). Pixels outside the image are 0. Only x gets a gradient.
    """
    n, c, height, width = x.shape
    positions = _positions(flow.detach())
    # Clamp the positions, so that their integers cannot overflow. One pixel beyond the border
    # already counts as outside.
    positions_x = positions[:, 0].clamp(-1, width)
    positions_y = positions[:, 1].clamp(-1, height)
    pixels = x.flatten(2)  # (n, c, h w)
    corners = []
    for column in (positions_x.floor().long(), positions_x.ceil().long()):
        for row in (positions_y.floor().long(), positions_y.ceil().long()):
            is_inside = (column >= 0) & (column < width) & (row >= 0) & (row < height)
            # `gather` needs valid indices. So take a border pixel for a pixel outside, and set it
            # to 0 afterwards.
            index = row.clamp(0, height - 1) * width + column.clamp(0, width - 1)  # (n, h, w)
            index = index.view(n, 1, -1).expand(-1, c, -1)  # (n, c, h w)
            corner = pixels.gather(2, index).view(n, c, height, width)
            corners.append(corner * is_inside.unsqueeze(1))
    return torch.cat(corners, dim=1)


# ---- The flow network ------------------------------------------------------------------------

# Number of scales: 1/32 to 1 of the resolution. Part of the published network.
LEVELS = 6
# Channels before and after each convolution of a level. The 8 inputs are the reference (3), the
# warped neighbour (3) and the upsampled flow (2). Part of the published network.
WIDTHS = (8, 32, 64, 32, 16, 2)


class SpyNet(nn.Module):
    """SpyNet: coarse-to-fine optical flow, 1.44 M parameters (Ranjan and Black, CVPR 2017).

    At each of six scales, coarsest first, a small conv net takes the reference frame, the neighbour
    warped by the flow so far, and the flow so far. It returns a correction of the flow. The flows
    of the four finest scales are used: full resolution, 1/2, 1/4 and 1/8, because the stages of VRT
    (stages.py) have these resolutions.
    """

    mean: Tensor
    std: Tensor

    def __init__(self) -> None:
        super().__init__()
        # Mean and standard deviation of RGB in ImageNet: the frames are normalised by them.
        self.register_buffer("mean", torch.tensor([0.485, 0.456, 0.406]).view(1, 3, 1, 1))
        self.register_buffer("std", torch.tensor([0.229, 0.224, 0.225]).view(1, 3, 1, 1))
        self.basic_module = nn.ModuleList()
        for _ in range(LEVELS):
            layers: list[nn.Module] = []
            for inputs, outputs in pairwise(WIDTHS):  # (8, 32), (32, 64), ...
                layers.append(nn.Conv2d(inputs, outputs, kernel_size=7, stride=1, padding=3))
                layers.append(nn.ReLU())
            del layers[-1]  # no ReLU after the last convolution, because a flow has both signs
            # The weights files name each tensor basic_module.<level>.basic_module.<layer>.
            level = nn.ModuleDict({"basic_module": nn.Sequential(*layers)})
            self.basic_module.append(level)

    def pyramid(self, frames: Tensor) -> list[Tensor]:
        """Return the normalised frames at six scales, coarsest first, (n, 3, h / s, w / s) each.

        frames: (n, 3 or 1, h, w) in [0, 1]. A gray frame counts for all three colours.
        """
        # The sides are halved five times and must stay whole numbers. So enlarge the frames to
        # multiples of 32, e.g. 180 -> 192.
        height, width = frames.shape[-2:]
        full_height = math.ceil(height / 32) * 32
        full_width = math.ceil(width / 32) * 32
        if (full_height, full_width) != (height, width):
            frames = F.interpolate(
                frames, (full_height, full_width), mode="bilinear", align_corners=False
            )
        levels = [(frames - self.mean) / self.std]
        for _ in range(LEVELS - 1):
            levels.append(F.avg_pool2d(levels[-1], kernel_size=2, stride=2))
        levels.reverse()
        return levels

    def estimate(
        self, references: list[Tensor], neighbours: list[Tensor], size: tuple[int, int]
    ) -> list[Tensor]:
        """Estimate the flows that warp n neighbours to n reference frames.

        references, neighbours: the pyramids of these frames. size: height and width of the original
        frames.

        Returns one flow (n, 2, h / s, w / s) for each of the four finest scales s, finest first.
        """
        # At the coarsest scale the flow starts at zero. `flow_so_far` is at the present scale.
        flow_so_far = torch.zeros_like(references[0][:, :2])
        flow = flow_so_far
        flows = []
        modules: Any = self.basic_module
        for level, module in enumerate(modules):
            if level > 0:
                # This scale has twice as many pixels along an axis as the scale before. So the same
                # shift is twice as many pixels. align_corners is True here and False elsewhere, as
                # in the published network.
                flow_so_far = 2.0 * F.interpolate(
                    flow, scale_factor=2, mode="bilinear", align_corners=True
                )
            warped = flow_warp(neighbours[level], flow_so_far, padding="border")
            inputs = torch.cat((references[level], warped, flow_so_far), dim=1)
            flow = module["basic_module"](inputs) + flow_so_far
            if level >= LEVELS - 4:  # one of the four finest scales
                scale = 2 ** (LEVELS - 1 - level)  # 8, 4, 2, 1
                height, width = size
                flows.append(_resize(flow, height // scale, width // scale))
        flows.reverse()
        return flows

    def forward(self, ref: Tensor, supp: Tensor) -> list[Tensor]:
        """Estimate the flows that warp the neighbours `supp` to the reference frames `ref`.

        Both are (n, 3, h, w) in [0, 1]. Returns the flows as `estimate` does.
        """
        height, width = ref.shape[-2:]
        return self.estimate(self.pyramid(ref), self.pyramid(supp), (height, width))


def _resize(flow: Tensor, height: int, width: int) -> Tensor:
    """Return a flow at another size, with its shifts in pixels of the new size."""
    full_height, full_width = flow.shape[-2:]
    if (height, width) == (full_height, full_width):
        return flow
    flow = F.interpolate(flow, (height, width), mode="bilinear", align_corners=False)
    x = flow[:, 0] * (width / full_width)
    y = flow[:, 1] * (height / full_height)
    return torch.stack((x, y), dim=1)


# ---- The flows of a clip ---------------------------------------------------------------------


class FlowsOfLevel(NamedTuple):
    """The flows of a clip at one resolution, h x w pixels.

    Both are lists over the distance between two frames. Entry d is for frames that are d + 1 apart,
    (B, N - 1 - d, 2, h, w).
    """

    backward: list[Tensor]  # backward[d][:, i] warps frame i + d + 1 to frame i
    forward: list[Tensor]  # forward[d][:, i] warps frame i to frame i + d + 1


# The flows of a clip: flows[level] is at 1 / 2^level of the resolution.
Flows = list[FlowsOfLevel]


def estimate_flows(spynet: SpyNet, frames: Tensor, distance: int) -> Flows:
    """Estimate the flows of a clip (B, N, 1 or 3, H, W) in [0, 1].

    distance: distance of the farthest neighbour, in frames.

    SpyNet runs once, on a batch of all pairs of adjacent frames in both directions. It builds the
    pyramid of each frame once.

    test_network_vrt.py notices a flow that leads to a wrong place. No test notices another order of
    the sums, because it changes last bits alone.
    """
    b, n, _, height, width = frames.shape
    levels = []
    for level in spynet.pyramid(frames.flatten(0, 1)):
        levels.append(level.view(b, n, *level.shape[1:]))  # (B, N, 3, h, w)
    # A backward flow warps the second frame of a pair to the first frame, and a forward flow warps
    # the first frame to the second. Both kinds are one batch, (2 B (N - 1), 3, h, w). Do not share
    # slices between the two loops, and do not join the loops, because autograd sums the gradients
    # of a frame in this order. Another order changes the last bits.
    references = []
    for level in levels:
        first_then_second = torch.stack((level[:, :-1], level[:, 1:]))  # (2, B, N - 1, 3, h, w)
        references.append(first_then_second.flatten(0, 2))
    neighbours = []
    for level in levels:
        second_then_first = torch.stack((level[:, 1:], level[:, :-1]))
        neighbours.append(second_then_first.flatten(0, 2))

    flows: Flows = []
    for both in spynet.estimate(references, neighbours, (height, width)):
        # (B, N - 1, 2, h, w) each, for adjacent frames.
        backward, forward = both.view(2, b, n - 1, *both.shape[1:])
        far_backward = [backward]
        far_forward = [forward]
        # Extend the flows by one frame at a time. Write 0>1 for the flow that is read at frame 0
        # and leads to frame 1. To find 0>2, follow 0>1, and add 1>2 at the position that is
        # reached. E.g. 4 frames and reach 1 (a forward flow leads to an earlier frame):
        #
        #                 far_...[-1]    last       extended by   result
        #     backward    0>1 1>2 2>3    0>1 1>2    1>2 2>3       0>2 1>3
        #     forward     1>0 2>1 3>2    2>1 3>2    1>0 2>1       2>0 3>1
        for reach in range(1, distance):
            last = far_backward[-1][:, :-1]  # the last flow cannot be extended: it ends at frame 3
            far_backward.append(_chain(last, backward[:, reach:]))
            last = far_forward[-1][:, 1:]  # the first flow cannot be extended: it ends at frame 0
            far_forward.append(_chain(last, forward[:, :-reach]))
        flows.append(FlowsOfLevel(far_backward, far_forward))
    return flows


def _chain(first: Tensor, second: Tensor) -> Tensor:
    """Return the flow that goes along `first`, then along `second`. All are (B, n, 2, h, w)."""
    warped = flow_warp(second.flatten(0, 1), first.flatten(0, 1))
    return first + warped.view(second.shape)


def aligned_input(frames: Tensor, backward: Tensor, forward: Tensor) -> Tensor:
    """Join each frame with its two neighbours, which are warped to it by `nearest4`.

    frames: (B, N, C, H, W). backward, forward: flows between adjacent frames, (B, N - 1, 2, H, W).

    Returns (B, N, 9C, H, W): the frame (C channels), the next frame (4C), the frame before (4C). A
    missing neighbour, before the first or behind the last frame, is zero.
    """
    b, n, c, height, width = frames.shape
    # Both directions are one batch: the next frames first, then the frames before.
    neighbours = torch.stack((frames[:, 1:], frames[:, :-1])).flatten(0, 2)
    flows = torch.stack((backward, forward)).flatten(0, 2)
    warped = nearest4(neighbours, flows).view(2, b, n - 1, 4 * c, height, width)
    zeros = warped.new_zeros(b, 1, 4 * c, height, width)
    next_frames = torch.cat((warped[0], zeros), dim=1)  # the last frame has no next frame
    frames_before = torch.cat((zeros, warped[1]), dim=1)  # the first frame has no frame before
    return torch.cat((frames, next_frames, frames_before), dim=2)

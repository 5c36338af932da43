"""Sample images at each pixel plus its flow.

    flow_warp    the interpolated value at the position
    nearest4     the four pixels around the position

A flow has the shape (n, 2, h, w), in pixels at its resolution. Channel 0 is the horizontal shift x
(columns), channel 1 the vertical shift y (rows). A flow at a pixel of frame a leads to the same
point of the scene in frame b, e.g. the flow (3, 0) to a point 3 pixels to the right. So the flow
warps frame b to frame a.

What must stay: the arithmetic, and the order of the four pixels, because the released weights rely
on them. tests/parts/models/test_spynet.py notices both. Free to change: how a position is
computed.
"""

from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from models.vrt.forms import in_cpu_form, lacks_border_padding


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
        # process (pytorch issue 24823). So replace NaN by 0, the middle of the image. The flow
        # itself stays NaN. So the loss is NaN, and the step is skipped.
        grid = torch.where(grid.isnan(), 0.0, grid)
    if padding == "border" and lacks_border_padding(grid):
        # Move positions outside the image onto its border. Then padding by zeros gives the same as
        # padding by the border.
        grid = grid.clamp(-1.0, 1.0)
        padding = "zeros"
    sampled = F.grid_sample(
        x.to(grid.dtype), grid, mode=mode, padding_mode=padding, align_corners=True
    )
    return sampled.to(x.dtype)


def nearest4(x: Tensor, flow: Tensor) -> Tensor:
    """Return the four pixels around each pixel plus `flow`: (n, c, h, w) -> (n, 4c, h, w).

    E.g. a pixel at x = 5 with the flow (0.3, 0): columns 5 and 6. The four pixels are not
    interpolated, because the first convolution of the network takes all of them.

    The order is part of the released weights: (floor x, floor y), (floor x, ceil y),
    (ceil x, floor y), (ceil x, ceil y). Pixels outside the image are 0. Only x gets a gradient.
    """
    n, c, height, width = x.shape
    positions = _positions(flow.detach())
    # Clamp the positions, so that their integers cannot overflow. -1 and `width` are outside.
    positions_x = positions[:, 0].clamp(-1, width)
    positions_y = positions[:, 1].clamp(-1, height)
    pixels = x.flatten(2)  # (n, c, h w)
    corners = []
    for column in (positions_x.floor().long(), positions_x.ceil().long()):
        for row in (positions_y.floor().long(), positions_y.ceil().long()):
            is_inside = (column >= 0) & (column < width) & (row >= 0) & (row < height)
            # `gather` takes indices of pixels, counted row by row. For a pixel outside, take the
            # index of a border pixel, and set the value to 0 afterwards.
            index = row.clamp(0, height - 1) * width + column.clamp(0, width - 1)  # (n, h, w)
            index = index.view(n, 1, -1).expand(-1, c, -1)  # (n, c, h w)
            corner = pixels.gather(2, index).view(n, c, height, width)
            corners.append(corner * is_inside.unsqueeze(1))
    return torch.cat(corners, dim=1)


def _positions(flow: Tensor) -> Tensor:
    """Return each pixel plus its flow, (n, 2, h, w), in float32 or float64.

    bfloat16 is not exact enough: it cannot represent each pixel number of a row, e.g. 257.
    """
    if flow.dtype != torch.float64:
        flow = flow.float()
    height, width = flow.shape[-2:]
    return pixel_grid(height, width, flow.dtype, flow.device) + flow


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

"""Sample images at each pixel plus its flow.

    flow_warp    the interpolated value at the position
    nearest4     the four pixels around the position

A flow has the shape (n, 2, h, w), in pixels at its resolution. Channel 0 is the horizontal shift x
(columns), channel 1 the vertical shift y (rows). A flow at a pixel of frame a leads to the same
point of the scene in frame b, e.g. the flow (3, 0) to a point 3 pixels to the right. So the flow
warps frame b to frame a.

What must stay: the arithmetic, and the order of the four pixels, because the released weights rely
on them. tests/parts/models/test_spynet.py notices both. Free to change: how a position is computed.
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
    # 2 / (pixels - 1), and subtract 1. E.g. 5 columns: 0 -> -1, 2 -> 0, 4 -> 1. An axis of one
    # pixel has no length, so divide by at least 1.
    # The factors are Python numbers, because a tensor would have to be copied to the GPU.
    columns = columns * (2.0 / max(width - 1, 1)) - 1.0
    rows = rows * (2.0 / max(height - 1, 1)) - 1.0
    grid = torch.stack((columns, rows), dim=3)  # (n, h, w, 2)

    if padding == "border" and in_cpu_form(grid):  # whether the tensor is on a CPU
        # If a coordinate is NaN, torch's backward pass writes to a random address, and the process
        # ends (pytorch issue 24823). So replace NaN by 0, the middle of the image. The flow itself
        # stays NaN, so the loss is NaN and the training skips the step.
        grid = torch.where(grid.isnan(), 0.0, grid)
    if padding == "border" and lacks_border_padding(grid):  # on GPUs of Apple (mps)
        # Move positions outside the image onto its border. Afterwards padding by zeros gives the
        # same values as padding by the border.
        grid = grid.clamp(-1.0, 1.0)
        padding = "zeros"
    sampled = F.grid_sample(
        x.to(grid.dtype), grid, mode=mode, padding_mode=padding, align_corners=True
    )
    return sampled.to(x.dtype)


def nearest4(x: Tensor, flow: Tensor) -> Tensor:
    """Return the four pixels around each pixel plus `flow`: (n, c, h, w) -> (n, 4c, h, w).

    E.g. the pixel in column 5 and row 2, with the flow (0.3, 0.6), leads to (5.3, 2.6): columns 5
    and 6, rows 2 and 3. The values are not interpolated, because the first convolution of the
    network takes all four.

    The order is upper left, lower left, upper right, lower right. The released weights rely on this
    order. Pixels outside the image are 0. Only x gets a gradient.
    """
    height, width = x.shape[-2:]
    positions = _positions(flow.detach())
    # Without this clamp a huge flow would overflow the integers below. The columns -1 and `width`,
    # and the rows -1 and `height`, still count as outside.
    positions_x = positions[:, 0].clamp(-1, width)
    positions_y = positions[:, 1].clamp(-1, height)
    # Columns and rows of the four pixels, (n, h, w) each.
    left = positions_x.floor().long()
    right = positions_x.ceil().long()
    upper = positions_y.floor().long()
    lower = positions_y.ceil().long()

    pixels = x.flatten(2)  # (n, c, h w)
    corners = (
        _pixels_at(pixels, left, upper),
        _pixels_at(pixels, left, lower),
        _pixels_at(pixels, right, upper),
        _pixels_at(pixels, right, lower),
    )
    return torch.cat(corners, dim=1)


def _pixels_at(pixels: Tensor, column: Tensor, row: Tensor) -> Tensor:
    """Return the pixels at whole positions, (n, c, h, w). A pixel outside the image is 0.

    pixels: the images, (n, c, h w), row by row.
    column, row: the position that each output pixel reads, (n, h, w), int64.
    """
    n, c, _ = pixels.shape
    height, width = column.shape[-2:]
    is_inside = (column >= 0) & (column < width) & (row >= 0) & (row < height)
    # For a position outside the image, read a pixel of the border, and set it to 0 afterwards.
    index = row.clamp(0, height - 1) * width + column.clamp(0, width - 1)  # (n, h, w)
    index = index.view(n, 1, -1).expand(-1, c, -1)  # (n, c, h w): the same pixel in each channel
    read = pixels.gather(2, index).view(n, c, height, width)
    return read * is_inside.unsqueeze(1)


def _positions(flow: Tensor) -> Tensor:
    """Return each pixel plus its flow, (n, 2, h, w), in float32 or float64.

    bfloat16 is not exact enough: it cannot represent each pixel number of a row, e.g. 257.
    """
    if flow.dtype != torch.float64:
        flow = flow.float()
    height, width = flow.shape[-2:]
    return pixel_grid(height, width, flow.dtype, flow.device) + flow


# maxsize: 32 results, because training and validation together have a few sizes of frames, each at
# several scales.
# inference_mode(False): if a tensor was made in inference mode, autograd cannot save it for
# backward. If the first call came from inference mode, a training would later get such a tensor
# from the cache (test_a_network_first_used_in_inference_mode_still_trains).
@lru_cache(maxsize=32)
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

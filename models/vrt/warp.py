"""Backward warping by optical flow: bilinear for features, the four nearest pixels for the aligned input."""

from __future__ import annotations

from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor


# Tensors made in inference_mode cannot be saved for backward, and a cache outlives the mode.
@lru_cache(maxsize=32)
@torch.inference_mode(False)
def pixel_grid(height: int, width: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Pixel coordinates, (1, 2, height, width); channel 0 = x (column), 1 = y (row)."""
    y, x = torch.meshgrid(
        torch.arange(height, dtype=dtype, device=device), torch.arange(width, dtype=dtype, device=device), indexing="ij"
    )
    return torch.stack((x, y)).unsqueeze(0)


@lru_cache(maxsize=32)
@torch.inference_mode(False)
def unit_scale(height: int, width: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Factors (x, y) from pixel coordinates to grid_sample's, 0 .. 2, as (2,).

    Filled on the device: a tensor made from Python numbers is copied there, and the copy waits for the GPU.
    """
    sizes = (width, height)
    return torch.cat([torch.full((1,), 2.0 / max(size - 1, 1), dtype=dtype, device=device) for size in sizes])


def flow_warp(x: Tensor, flow: Tensor, mode: str = "bilinear", padding: str = "zeros") -> Tensor:
    """x sampled at each pixel plus `flow`; differentiable in both (no flow gradient for "nearest").

    x: (n, c, h, w); flow: (n, 2, h, w) in pixels, channel 0 horizontal, 1 vertical.
    Coordinates are float32 or float64: bfloat16 cannot represent the pixel numbers of a row.
    """
    height, width = x.shape[-2:]
    flow = flow if flow.dtype == torch.float64 else flow.float()
    grid = (pixel_grid(height, width, flow.dtype, flow.device) + flow).permute(0, 2, 3, 1)
    grid = grid * unit_scale(height, width, flow.dtype, flow.device) - 1.0
    return F.grid_sample(x.to(grid.dtype), grid, mode=mode, padding_mode=padding, align_corners=True).to(x.dtype)


def nearest4(x: Tensor, flow: Tensor) -> Tensor:
    """The four pixels around each displaced position, unweighted; zeros outside the image.

    x: (n, c, h, w); flow: (n, 2, h, w) in pixels -> (n, 4c, h, w), corner order (floor x, floor y),
    (floor x, ceil y), (ceil x, floor y), (ceil x, ceil y). Gradient reaches x only.
    """
    n, c, height, width = x.shape
    flow = flow.detach()
    flow = flow if flow.dtype == torch.float64 else flow.float()
    position = pixel_grid(height, width, flow.dtype, flow.device) + flow
    # Clamped so that the integers cannot overflow; one pixel beyond the border already counts as outside.
    px = position[:, 0].clamp(-1, width)
    py = position[:, 1].clamp(-1, height)
    flat = x.flatten(2)
    corners = []
    for ix in (px.floor().long(), px.ceil().long()):
        for iy in (py.floor().long(), py.ceil().long()):
            inside = (ix >= 0) & (ix < width) & (iy >= 0) & (iy < height)
            index = iy.clamp(0, height - 1) * width + ix.clamp(0, width - 1)
            picked = flat.gather(2, index.view(n, 1, -1).expand(-1, c, -1)).view(n, c, height, width)
            corners.append(picked * inside.unsqueeze(1))
    return torch.cat(corners, dim=1)

"""Modulated deformable convolution (DCNv2, Zhu et al., CVPR 2019), 3x3, stride 1, padding 1."""

from __future__ import annotations

from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

TAPS = 9


def deform_conv(x: Tensor, offset: Tensor, mask: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """3x3 convolution whose nine samples per output pixel and offset group have their own offset and factor.

    x: (n, c, h, w); offset: (n, 18 g, h, w), float32 or float64 whatever x is, channel 2 * (group * 9 + tap) = dy, the
    next dx, in pixels; mask: (n, 9 g, h, w); weight: (c', c / k, 3, 3), k weight groups; bias: (c',). Zeros outside the
    image.
    Returns (n, c', h, w), under autocast in the autocast dtype. Differentiable in all tensors.
    """
    kind = x.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype
    if kind == "cpu":
        return sampled_conv(x, offset, mask.to(x.dtype), weight, bias).to(dtype)
    from torchvision.ops import deform_conv2d  # takes seconds to import, so only when it is needed

    # It needs one dtype, and computes in float32 under autocast. An offset of 20 pixels in bfloat16 is off by 1/16.
    precise = torch.promote_types(x.dtype, torch.float32)
    x, offset, mask, weight, bias = (t.to(precise) for t in (x, offset, mask, weight, bias))
    with torch.autocast(kind, enabled=False):
        return deform_conv2d(x, offset, weight, bias, padding=1, mask=mask).to(dtype)


def sampled_conv(x: Tensor, offset: Tensor, mask: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """deform_conv as one grid_sample and one matrix product.

    On a CPU 3 times faster than torchvision's scalar loops, 7 times with gradients.
    """
    n, c, h, w = x.shape
    groups = mask.shape[1] // TAPS
    dy, dx = offset.view(n * groups, TAPS, 2, h, w).unbind(2)
    base_y, base_x = _tap_positions(h, w, offset.dtype, x.device)
    scale_y, scale_x = 2.0 / max(h - 1, 1), 2.0 / max(w - 1, 1)
    grid = torch.stack(((dx + base_x) * scale_x - 1.0, (dy + base_y) * scale_y - 1.0), dim=-1)
    samples = F.grid_sample(
        x.reshape(n * groups, c // groups, h, w).to(grid.dtype), grid.view(n * groups, TAPS * h, w, 2),
        align_corners=True,
    )  # fmt: skip
    columns = samples.view(n, groups, c // groups, TAPS, h * w) * mask.view(n, groups, 1, TAPS, h * w)
    weight_groups = c // weight.shape[1]
    columns = columns.view(n, weight_groups, -1, h * w)
    out = weight.view(weight_groups, len(weight) // weight_groups, -1) @ columns
    return out.view(n, -1, h, w) + bias.view(-1, 1, 1)


@lru_cache(maxsize=32)
@torch.inference_mode(False)
def _tap_positions(h: int, w: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """Row and column of each tap of each output pixel: (9, h, 1) and (9, 1, w)."""
    tap = torch.arange(3, dtype=dtype, device=device) - 1
    rows = tap.repeat_interleave(3).view(TAPS, 1, 1) + torch.arange(h, dtype=dtype, device=device).view(1, h, 1)
    columns = tap.repeat(3).view(TAPS, 1, 1) + torch.arange(w, dtype=dtype, device=device).view(1, 1, w)
    return rows, columns

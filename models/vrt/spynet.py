"""SpyNet: coarse-to-fine optical flow, 1.44 M parameters (Ranjan and Black, CVPR 2017)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.vrt.warp import flow_warp

LEVELS = 6


class FlowModule(nn.Module):
    """One pyramid level: (n, 8, h, w) = reference, warped neighbour, upsampled flow -> flow residual (n, 2, h, w)."""

    def __init__(self) -> None:
        super().__init__()
        widths = (8, 32, 64, 32, 16, 2)
        layers: list[nn.Module] = []
        for inputs, outputs in pairwise(widths):
            layers += [nn.Conv2d(inputs, outputs, 7, 1, 3), nn.ReLU()]
        self.basic_module = nn.Sequential(*layers[:-1])

    def forward(self, x: Tensor) -> Tensor:
        return self.basic_module(x)


class SpyNet(nn.Module):
    """Optical flow between frames in [0, 1] at several scales.

    return_levels: pyramid levels to return, 5 = full resolution, 2 = 1/8. Results are finest first, each in pixels of
    its own level.
    """

    def __init__(self, return_levels: Sequence[int] = (5,)) -> None:
        super().__init__()
        self.return_levels = tuple(return_levels)
        self.register_buffer("mean", torch.tensor([0.485, 0.456, 0.406]).view(1, 3, 1, 1))
        self.register_buffer("std", torch.tensor([0.229, 0.224, 0.225]).view(1, 3, 1, 1))
        self.basic_module = nn.ModuleList(FlowModule() for _ in range(LEVELS))

    def start_at_zero(self) -> None:
        """Make every flow zero: in training from scratch, a random flow would misalign the features."""
        for module in self.basic_module:
            nn.init.zeros_(module.basic_module[-1].weight)
            nn.init.zeros_(module.basic_module[-1].bias)

    def pyramid(self, frames: Tensor) -> list[Tensor]:
        """Normalised frames at six scales, coarsest first. frames: (n, 3 or 1, h, w) -> (n, 3, ...)."""
        height, width = (-(-size // 32) * 32 for size in frames.shape[-2:])
        if (height, width) != tuple(frames.shape[-2:]):
            frames = F.interpolate(frames, (height, width), mode="bilinear", align_corners=False)
        levels = [(frames - self.mean) / self.std]
        for _ in range(LEVELS - 1):
            levels.append(F.avg_pool2d(levels[-1], 2, 2))
        return levels[::-1]

    def estimate(self, ref: list[Tensor], supp: list[Tensor], size: tuple[int, int]) -> list[Tensor]:
        """Flows that warp `supp` to `ref`, from their pyramids; size: (h, w) of the original frames.

        Returns one (n, 2, h / s, w / s) per return level, finest first.
        """
        # The flow at the coarsest level starts at zero. It has the size of that level, which may be one pixel.
        up = flow = torch.zeros_like(ref[0][:, :2])
        flows = []
        for level, module in enumerate(self.basic_module):
            if level > 0:
                up = 2.0 * F.interpolate(flow, scale_factor=2, mode="bilinear", align_corners=True)
            warped = flow_warp(supp[level], up, padding="border")
            flow = module(torch.cat((ref[level], warped, up), dim=1)) + up
            if level in self.return_levels:
                flows.insert(0, self._resize(flow, size, 2 ** (LEVELS - 1 - level)))
        return flows

    @staticmethod
    def _resize(flow: Tensor, size: tuple[int, int], scale: int) -> Tensor:
        height, width = size[0] // scale, size[1] // scale
        full_height, full_width = flow.shape[-2:]
        if (height, width) == (full_height, full_width):
            return flow
        flow = F.interpolate(flow, (height, width), mode="bilinear", align_corners=False)
        # Python numbers go to the kernel as arguments; a tensor of them would be copied to the GPU.
        return torch.stack((flow[:, 0] * (width / full_width), flow[:, 1] * (height / full_height)), dim=1)

    def forward(self, ref: Tensor, supp: Tensor) -> list[Tensor]:
        """ref, supp: (n, 3, h, w) in [0, 1] -> list of flows, finest first."""
        return self.estimate(self.pyramid(ref), self.pyramid(supp), tuple(ref.shape[-2:]))

"""SpyNet, the network that estimates the optical flow between two frames.

A flow has the shape (n, 2, h, w), in pixels at its resolution: channel 0 is the shift x, channel 1
the shift y. A flow at a pixel of frame a leads to the same point of the scene in frame b. So it
warps frame b to frame a.

What must stay, and which test notices (in tests/parts/models/test_spynet.py):

    the arithmetic, which the weights rely on     test_the_shipped_weights_find_a_known_translation
    the names of modules, which are names in
    the weights files                             the same test, which loads such a file
"""

import math
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.vrt.flow_warp import flow_warp

# Number of scales: 1/32 to 1 of the resolution. The number is part of the published network.
LEVELS = 6
# Channels before and after each convolution of a level. The 8 inputs are the reference (3), the
# warped neighbour (3) and the upsampled flow (2). The numbers are part of the published network.
WIDTHS = (8, 32, 64, 32, 16, 2)


class SpyNet(nn.Module):
    """SpyNet: coarse-to-fine optical flow, 1.44 M parameters (Ranjan and Black, CVPR 2017).

    At each of six scales, coarsest first, a small conv net takes three inputs: the reference frame,
    the flow so far, and the neighbour warped by the flow so far. The net returns a correction of
    the flow. Only the flows of the four finest scales are used, because the stages of VRT have the
    resolutions 1, 1/2, 1/4 and 1/8.
    """

    mean: Tensor
    std: Tensor

    def __init__(self) -> None:
        super().__init__()
        # Mean and standard deviation of RGB in ImageNet. `pyramid` normalises the frames by both.
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

        s is 32, 16, 8, 4, 2, 1, and h, w are the sides of the frames, rounded up to multiples of
        32.

        frames: (n, 3 or 1, h, w) in [0, 1]. The one channel of a gray frame is used for all three
            colours.
        """
        # The sides are halved five times and must stay whole numbers, so enlarge the frames to
        # multiples of 32, e.g. from 180 to 192 rows.
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

        references, neighbours: the pyramids of these frames.
        size: height and width of the original frames.

        Returns one flow (n, 2, h / s, w / s) for each of the four finest scales s, finest first.
        """
        # At the coarsest scale the flow starts at zero. `flow_so_far` is the flow of the previous
        # scales, in pixels of the present scale. `flow` is flow_so_far + the present correction.
        # `[:, :2]` only gives the shape, (n, 2, h / 32, w / 32).
        flow_so_far = torch.zeros_like(references[0][:, :2])
        flow = flow_so_far
        flows = []
        modules: Any = self.basic_module
        for level, module in enumerate(modules):
            if level > 0:
                # A shift of 1 pixel at the previous scale is a shift of 2 pixels at this scale.
                # align_corners is True for this enlargement and False elsewhere, as in the
                # published network.
                flow_so_far = 2.0 * F.interpolate(
                    flow, scale_factor=2, mode="bilinear", align_corners=True
                )
            warped = flow_warp(neighbours[level], flow_so_far, padding="border")
            inputs = torch.cat((references[level], warped, flow_so_far), dim=1)
            flow = module["basic_module"](inputs) + flow_so_far
            # `level` counts from the coarsest scale: 0 1 2 3 4 5. The four finest are 2 3 4 5. (The
            # flows in flow.py are counted from the finest scale.)
            if level >= LEVELS - 4:
                scale = 2 ** (LEVELS - 1 - level)  # 8, 4, 2, 1
                height, width = size
                flows.append(_resize(flow, height // scale, width // scale))
        flows.reverse()
        return flows

    def forward(self, ref: Tensor, supp: Tensor) -> list[Tensor]:
        """Estimate the flows that warp the neighbours `supp` to the reference frames `ref`.

        Both arguments are (n, 3, h, w) in [0, 1]. Returns the flows as `estimate` does. VRT calls
        `pyramid` and `estimate` itself (flow.py), because a frame is in several pairs.
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

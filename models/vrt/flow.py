"""SpyNet: coarse-to-fine optical flow, 1.44 M parameters (Ranjan and Black, CVPR 2017)."""

from functools import lru_cache
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.vrt.forms import in_cpu_form, lacks_border_padding


# Tensors made in inference_mode cannot be saved for backward, and a cache outlives the mode.
@lru_cache(maxsize=32)
@torch.inference_mode(False)
def pixel_grid(height: int, width: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Pixel coordinates, (1, 2, height, width); channel 0 = x (column), 1 = y (row)."""
    y, x = torch.meshgrid(
        torch.arange(height, dtype=dtype, device=device),
        torch.arange(width, dtype=dtype, device=device),
        indexing="ij",
    )
    return torch.stack((x, y)).unsqueeze(0)


def flow_warp(x: Tensor, flow: Tensor, mode: str = "bilinear", padding: str = "zeros") -> Tensor:
    """x sampled at each pixel plus `flow`; differentiable in both (no flow gradient for "nearest").

    x: (n, c, h, w); flow: (n, 2, h, w) in pixels, channel 0 horizontal, 1 vertical.
    Coordinates are float32 or float64: bfloat16 cannot represent the pixel numbers of a row.
    """
    height, width = x.shape[-2:]
    flow = flow if flow.dtype == torch.float64 else flow.float()
    columns, rows = (pixel_grid(height, width, flow.dtype, flow.device) + flow).unbind(1)
    # Python numbers go to the kernel as arguments; a tensor of them would be copied to the GPU.
    grid = torch.stack(
        (columns * (2.0 / max(width - 1, 1)) - 1.0, rows * (2.0 / max(height - 1, 1)) - 1.0), dim=3
    )
    if padding == "border" and in_cpu_form(grid):
        # Backward writes to a wild address where a coordinate is NaN (pytorch issue 24823), and the
        # process is gone. The flow itself stays NaN, so the loss does, and the step is skipped.
        grid = torch.where(grid.isnan(), 0.0, grid)
    if padding == "border" and lacks_border_padding(grid):
        # What lies outside is moved onto the border, and zeros are added to it.
        grid, padding = grid.clamp(-1.0, 1.0), "zeros"
    return F.grid_sample(
        x.to(grid.dtype), grid, mode=mode, padding_mode=padding, align_corners=True
    ).to(x.dtype)


def nearest4(x: Tensor, flow: Tensor) -> Tensor:
    """The four pixels around each displaced position, unweighted; zeros outside the image.

    x: (n, c, h, w); flow: (n, 2, h, w) in pixels -> (n, 4c, h, w), corner order (floor x, floor y),
    (floor x, ceil y), (ceil x, floor y), (ceil x, ceil y). Gradient reaches x only.
    """
    n, c, height, width = x.shape
    flow = flow.detach()
    flow = flow if flow.dtype == torch.float64 else flow.float()
    position = pixel_grid(height, width, flow.dtype, flow.device) + flow
    # Clamped so that the integers cannot overflow; one pixel beyond the border already counts as
    # outside.
    px = position[:, 0].clamp(-1, width)
    py = position[:, 1].clamp(-1, height)
    flat = x.flatten(2)
    corners = []
    for ix in (px.floor().long(), px.ceil().long()):
        for iy in (py.floor().long(), py.ceil().long()):
            inside = (ix >= 0) & (ix < width) & (iy >= 0) & (iy < height)
            index = iy.clamp(0, height - 1) * width + ix.clamp(0, width - 1)
            picked = flat.gather(2, index.view(n, 1, -1).expand(-1, c, -1)).view(
                n, c, height, width
            )
            corners.append(picked * inside.unsqueeze(1))
    return torch.cat(corners, dim=1)


LEVELS = 6
WIDTHS = (8, 32, 64, 32, 16, 2)


class SpyNet(nn.Module):
    """Optical flow between frames in [0, 1] at full resolution, 1/2, 1/4 and 1/8, each in its own
    pixels.
    """

    mean: Tensor
    std: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor([0.485, 0.456, 0.406]).view(1, 3, 1, 1))
        self.register_buffer("std", torch.tensor([0.229, 0.224, 0.225]).view(1, 3, 1, 1))
        self.basic_module = nn.ModuleList()
        # (n, 8, h, w): reference, warped neighbour, upsampled flow -> residual (n, 2, h, w)
        for _ in range(LEVELS):
            layers = [
                (nn.Conv2d(inputs, outputs, 7, 1, 3), nn.ReLU())
                for inputs, outputs in pairwise(WIDTHS)
            ]
            level = nn.Sequential(*[layer for pair in layers for layer in pair][:-1])
            # As the checkpoints name it
            self.basic_module.append(nn.ModuleDict({"basic_module": level}))

    def pyramid(self, frames: Tensor) -> list[Tensor]:
        """Normalised frames at six scales, coarsest first. frames: (n, 3 or 1, h, w) -> (n, 3,
        ...).
        """
        height, width = (-(-size // 32) * 32 for size in frames.shape[-2:])
        if (height, width) != tuple(frames.shape[-2:]):
            frames = F.interpolate(frames, (height, width), mode="bilinear", align_corners=False)
        levels = [(frames - self.mean) / self.std]
        for _ in range(LEVELS - 1):
            levels.append(F.avg_pool2d(levels[-1], 2, 2))
        return levels[::-1]

    def estimate(
        self, ref: list[Tensor], supp: list[Tensor], size: tuple[int, int]
    ) -> list[Tensor]:
        """Flows that warp `supp` to `ref`, from their pyramids; size: (h, w) of the original
        frames.

        Returns one (n, 2, h / s, w / s) for each of the four finest levels, finest first.
        """
        # The flow at the coarsest level starts at zero. It has the size of that level, which may be
        # one pixel.
        up = flow = torch.zeros_like(ref[0][:, :2])
        flows = []
        modules: Any = self.basic_module
        for level, module in enumerate(modules):
            if level > 0:
                up = 2.0 * F.interpolate(flow, scale_factor=2, mode="bilinear", align_corners=True)
            warped = flow_warp(supp[level], up, padding="border")
            flow = module["basic_module"](torch.cat((ref[level], warped, up), dim=1)) + up
            if level >= LEVELS - 4:
                (full_h, full_w), (h, w) = (
                    flow.shape[-2:],
                    (side >> (LEVELS - 1 - level) for side in size),
                )
                found = flow
                if (h, w) != (full_h, full_w):
                    found = F.interpolate(flow, (h, w), mode="bilinear", align_corners=False)
                    found = torch.stack(
                        (found[:, 0] * (w / full_w), found[:, 1] * (h / full_h)), dim=1
                    )
                flows.insert(0, found)
        return flows

    def forward(self, ref: Tensor, supp: Tensor) -> list[Tensor]:
        """ref, supp: (n, 3, h, w) in [0, 1] -> list of flows, finest first."""
        height, width = ref.shape[-2:]
        return self.estimate(self.pyramid(ref), self.pyramid(supp), (height, width))


# Of each level, finest first: (backward, forward), nearest neighbour first. backward[d][:, i] warps
# frame i + d + 1 to frame i, forward[d][:, i] warps i to i + d + 1; each is (B, N - 1 - d, 2, H /
# 2^level, W / 2^level), in its pixels.
Flows = list[tuple[list[Tensor], list[Tensor]]]


def estimate_flows(spynet: SpyNet, frames: Tensor, distance: int) -> Flows:
    """Flows of a clip (B, N, 1 or 3, H, W) in [0, 1], for neighbours up to `distance` frames away.

    SpyNet runs once on a batch of all pairs in both directions; the pyramid of each frame is built
    once.
    """
    b, n, _, height, width = frames.shape
    levels = [p.view(b, n, *p.shape[1:]) for p in spynet.pyramid(frames.flatten(0, 1))]
    ref = [torch.stack((p[:, :-1], p[:, 1:])).flatten(0, 2) for p in levels]
    supp = [torch.stack((p[:, 1:], p[:, :-1])).flatten(0, 2) for p in levels]
    flows: Flows = []
    for found in spynet.estimate(ref, supp, (height, width)):
        backward, forward = found.view(2, b, n - 1, *found.shape[1:])
        far_b, far_f = [backward], [forward]
        # The flow to the last neighbour, then from there to the next one
        for reach in range(1, distance):
            for far, last, near in (
                (far_b, far_b[-1][:, :-1], backward[:, reach:]),
                (far_f, far_f[-1][:, 1:], forward[:, :-reach]),
            ):  # fmt: skip
                far.append(
                    last + flow_warp(near.flatten(0, 1), last.flatten(0, 1)).view(near.shape)
                )
        flows.append((far_b, far_f))
    return flows


def aligned_input(frames: Tensor, backward: Tensor, forward: Tensor) -> Tensor:
    """Each frame, then its two neighbours warped to it by nearest4: (B, N, 9C, H, W).

    frames: (B, N, C, H, W); backward, forward: (B, N - 1, 2, H, W). A missing neighbour is zero.
    """
    b, n, c, height, width = frames.shape
    source = torch.stack((frames[:, 1:], frames[:, :-1])).flatten(0, 2)
    warped = nearest4(source, torch.stack((backward, forward)).flatten(0, 2))
    warped = warped.view(2, b, n - 1, 4 * c, height, width)
    missing = warped.new_zeros(b, 1, 4 * c, height, width)
    return torch.cat(
        (frames, torch.cat((warped[0], missing), 1), torch.cat((missing, warped[1]), 1)), dim=2
    )

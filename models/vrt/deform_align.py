"""Parallel warping: neighbours' features brought onto each frame by flow-guided deformable convolution."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from models.vrt.deform_conv import deform_conv
from models.vrt.warp import flow_warp

# Pixels per deformable call on a CPU: larger batches fall out of cache. A GPU takes all frames at once.
CPU_PIXELS = 1024


class DeformAlign(nn.Module):
    """Flow-guided deformable convolution: the flow is the base offset, a small conv net adds a residue.

    reach: number of source frames (one weight group each); magnitude: largest residue, in pixels.
    """

    def __init__(self, dim: int, deformable_groups: int, reach: int, magnitude: float, kernels: str = "auto") -> None:
        super().__init__()
        self.groups, self.reach, self.magnitude, self.kernels = deformable_groups, reach, magnitude, kernels
        self.weight = nn.Parameter(torch.empty(dim, dim, 3, 3))
        self.bias = nn.Parameter(torch.zeros(dim))
        nn.init.uniform_(self.weight, -1.0 / math.sqrt(9 * dim), 1.0 / math.sqrt(9 * dim))
        self.conv_offset = nn.Sequential(
            nn.Conv2d((1 + reach) * dim + 2 * reach, dim, 3, 1, 1),
            nn.LeakyReLU(0.1, inplace=True),
            nn.Conv2d(dim, dim, 3, 1, 1),
            nn.LeakyReLU(0.1, inplace=True),
            nn.Conv2d(dim, dim, 3, 1, 1),
            nn.LeakyReLU(0.1, inplace=True),
            nn.Conv2d(dim, 27 * deformable_groups, 3, 1, 1),
        )
        # Offsets start as the flow itself, masks at one half.
        nn.init.zeros_(self.conv_offset[-1].weight)
        nn.init.zeros_(self.conv_offset[-1].bias)

    def forward(self, sources: list[Tensor], target: Tensor, flows: list[Tensor]) -> Tensor:
        """sources: nearest first, each (n, d, h, w); target: (n, d, h, w); flows: one (n, 2, h, w) per source."""
        warped = [flow_warp(s, f) for s, f in zip(sources, flows, strict=True)]
        seen = torch.cat((*warped, target, *(f.to(target.dtype) for f in flows)), dim=1)
        # The layout that convolutions like best, on a CPU and on tensor cores; sampling wants planes again.
        z = self.conv_offset(seen.contiguous(memory_format=torch.channels_last)).contiguous()
        x = sources[0] if self.reach == 1 else torch.cat(sources, dim=1)
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            # Offsets are three times the input, samples nine times, and both quick to compute again.
            return checkpoint(self._sampled, x, z, *flows, use_reentrant=False, preserve_rng_state=False)
        return self._sampled(x, z, *flows)

    def _sampled(self, x: Tensor, z: Tensor, *flows: Tensor) -> Tensor:
        """The deformable convolution of x (n, reach * d, h, w); z: (n, 27 g, h, w), its unbounded parameters."""
        # Offset channel 2 * (group * 9 + tap) is dy, the next one dx; each source owns an equal run of them.
        n, _, h, w = z.shape
        # Positions are float32 at least, whatever autocast says.
        precise = torch.promote_types(z.dtype, torch.float32)
        residue = self.magnitude * torch.tanh(z[:, : 18 * self.groups].to(precise))
        base = torch.stack(flows, dim=1).flip(2).unsqueeze(2)
        offset = (residue.view(n, self.reach, -1, 2, h, w) + base).view(n, -1, h, w)
        mask = torch.sigmoid(z[:, 18 * self.groups :])
        return deform_conv(x, offset, mask, self.weight, self.bias, self.kernels)


def align_clip(module: DeformAlign, x: Tensor, backward: list[Tensor], forward: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Every frame's later, then earlier neighbours brought onto it: two clips of x's shape (B, N, C, H, W).

    backward, forward: flows of distance 1, 2, ..; a neighbour outside the clip is zero with zero flow;
    the last (first) frame, which has no neighbour at all, receives zeros.
    """
    frames = x.transpose(0, 1)  # (N, B, C, H, W): a run of frames is a batch without a copy
    later = _aligned(module, frames, [f.transpose(0, 1) for f in backward], ahead=True)
    earlier = _aligned(module, frames, [f.transpose(0, 1) for f in forward], ahead=False)
    return later.transpose(0, 1), earlier.transpose(0, 1)


def _aligned(module: DeformAlign, frames: Tensor, flows: list[Tensor], ahead: bool) -> Tensor:
    n = len(frames)
    targets = frames[:-1] if ahead else frames[1:]
    sources, bases = [], []
    for distance, flow in enumerate(flows, start=1):
        missing = (distance - 1, *frames.shape[1:])
        near = frames[distance:] if ahead else frames[: n - distance]
        if distance > 1:
            blank, still = frames.new_zeros(missing), flow.new_zeros((distance - 1, *flow.shape[1:]))
            near = torch.cat((near, blank) if ahead else (blank, near))
            flow = torch.cat((flow, still) if ahead else (still, flow))
        sources.append(near)
        bases.append(flow)
    step = max(1, CPU_PIXELS // (frames.shape[1] * frames[0, 0, 0].numel())) if frames.device.type == "cpu" else n
    parts = []
    for first in range(0, n - 1, step):
        part = slice(first, first + step)
        parts.append(
            module(
                [s[part].flatten(0, 1) for s in sources],
                targets[part].flatten(0, 1),
                [f[part].flatten(0, 1) for f in bases],
            )
        )
    done = torch.cat(parts).view(n - 1, *frames.shape[1:])
    blank = done.new_zeros(1, *frames.shape[1:])
    return torch.cat((done, blank) if ahead else (blank, done))

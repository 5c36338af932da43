"""Parallel warping: aligns features of neighbouring frames by deformable convolution along flow."""

import math
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from models.vrt.flow import flow_warp
from models.vrt.forms import has_deform_conv, in_cpu_form
from models.vrt.layers import compute_dtype, recomputed

TAPS = 9


def deform_conv(x: Tensor, offset: Tensor, mask: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """3x3 convolution whose nine samples per output pixel and offset group have their own offset
    and factor.

    x: (n, c, h, w); offset: (n, 18 g, h, w), float32 or float64 whatever x is, channel 2 * (group *
    9 + tap) = dy, the next dx, in pixels; mask: (n, 9 g, h, w); weight: (c', c / k, 3, 3), k weight
    groups; bias: (c',). Zeros outside the image.
    Returns (n, c', h, w), under autocast in the autocast dtype. Differentiable in all tensors.
    """
    dtype = compute_dtype(x)
    if has_deform_conv(x):
        from torchvision.ops import (
            deform_conv2d,  # takes seconds to import, so only when it is needed
        )

        # It needs one dtype, and computes in float32 under autocast. An offset of 20 pixels in
        # bfloat16 is off by 1/16.
        precise = torch.promote_types(x.dtype, torch.float32)
        x, offset, mask, weight, bias = (t.to(precise) for t in (x, offset, mask, weight, bias))
        with torch.autocast(x.device.type, enabled=False):
            return deform_conv2d(x, offset, weight, bias, padding=(1, 1), mask=mask).to(dtype)
    # One grid_sample and one matrix product: 3 times faster than torchvision's scalar loops, 7
    # times with gradients.
    n, c, h, w = x.shape
    # A product of two dtypes is five times as slow
    groups, mask = (
        mask.shape[1] // TAPS,
        mask.to(offset.dtype),
    )
    dy, dx = offset.view(n * groups, TAPS, 2, h, w).unbind(2)
    base_y, base_x = _tap_positions(h, w, offset.dtype, x.device)
    scale_y, scale_x = 2.0 / max(h - 1, 1), 2.0 / max(w - 1, 1)
    # Two planes of coordinates, not pairs: grid_sample reads both, and planes are faster to write.
    grid = torch.stack(((dx + base_x) * scale_x - 1.0, (dy + base_y) * scale_y - 1.0), dim=1)
    grid = grid.view(n * groups, 2, TAPS * h, w).permute(0, 2, 3, 1)
    samples = nn.functional.grid_sample(
        x.reshape(n * groups, -1, h, w).to(grid.dtype), grid, align_corners=True
    )
    samples, factors = (
        samples.view(n, groups, -1, TAPS, h * w),
        mask.view(n, groups, 1, TAPS, h * w),
    )
    columns = samples * factors if torch.is_grad_enabled() else samples.mul_(factors)
    weight_groups = c // weight.shape[1]
    columns = columns.view(n, weight_groups, -1, h * w)
    out = weight.view(weight_groups, len(weight) // weight_groups, -1) @ columns
    return (out.view(n, -1, h, w) + bias.view(-1, 1, 1)).to(dtype)


@lru_cache(maxsize=32)
@torch.inference_mode(False)
def _tap_positions(
    h: int, w: int, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Row and column of each tap of each output pixel: (9, h, 1) and (9, 1, w)."""
    tap = torch.arange(3, dtype=dtype, device=device) - 1
    rows = tap.repeat_interleave(3).view(TAPS, 1, 1) + torch.arange(
        h, dtype=dtype, device=device
    ).view(1, h, 1)
    columns = tap.repeat(3).view(TAPS, 1, 1) + torch.arange(w, dtype=dtype, device=device).view(
        1, 1, w
    )
    return rows, columns


# Pixels per deformable convolution on a CPU: larger batches do not fit the cache. A GPU takes all
# frames at once.
CPU_PIXELS = 1024
# Frames that torchvision's kernel for GPUs samples at a time, at most (kMaxParallelImgs): a divisor
# of their number.
TORCHVISION_FRAMES = 32


class DeformAlign(nn.Module):
    """Flow-guided deformable convolution: offsets are the flow plus a residual from a small conv
    net.

    sources: number of source frames, each with its own weight group; max_residual: in pixels.
    """

    def __init__(self, dim: int, deformable_groups: int, sources: int, max_residual: float) -> None:
        super().__init__()
        self.groups, self.sources, self.max_residual = deformable_groups, sources, max_residual
        self.weight = nn.Parameter(torch.empty(dim, dim, 3, 3))
        self.bias = nn.Parameter(torch.zeros(dim))
        nn.init.uniform_(self.weight, -1.0 / math.sqrt(9 * dim), 1.0 / math.sqrt(9 * dim))
        self.conv_offset = nn.Sequential(
            nn.Conv2d((1 + sources) * dim + 2 * sources, dim, 3, 1, 1),
            nn.LeakyReLU(0.1, inplace=True),
            nn.Conv2d(dim, dim, 3, 1, 1),
            nn.LeakyReLU(0.1, inplace=True),
            nn.Conv2d(dim, dim, 3, 1, 1),
            nn.LeakyReLU(0.1, inplace=True),
            nn.Conv2d(dim, 27 * deformable_groups, 3, 1, 1),
        )
        # At first the offsets are the flow, and the masks are 0.5.
        last: Any = self.conv_offset[-1]
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)

    def forward(self, sources: list[Tensor], target: Tensor, flows: list[Tensor]) -> Tensor:
        """sources: nearest first, each (n, d, h, w); target: (n, d, h, w); flows: one (n, 2, h, w)
        per source.
        """
        others, is_compiling = (*sources, *flows), torch.compiler.is_compiling()
        if not in_cpu_form(target) and not is_compiling:
            # A GPU has time for the convolutions, and no memory for their inputs.
            return recomputed(
                lambda x, *rest: self._sampled(self._unbounded(x, *rest), *rest), target, *others,
                weights=self.parameters(),
            )  # fmt: skip
        # Offsets are three times as large as the input, samples nine times, and both are cheap to
        # recompute.
        unbounded = self._unbounded(target, *others)
        weights = self.weight, self.bias
        return recomputed(self._sampled, unbounded, *others, weights=weights, when=not is_compiling)

    def _unbounded(self, target: Tensor, *others: Tensor) -> Tensor:
        """Offsets before tanh, and masks before the sigmoid, (n, 27 g, h, w); others: sources, then
        flows.
        """
        sources, flows = others[: self.sources], others[self.sources :]
        warped = [flow_warp(s, f) for s, f in zip(sources, flows, strict=True)]
        guide = torch.cat((*warped, target, *(f.to(target.dtype) for f in flows)), dim=1)
        # channels_last is the fastest layout for convolutions, on a CPU and on tensor cores;
        # sampling needs planes.
        return self.conv_offset(guide.contiguous(memory_format=torch.channels_last)).contiguous()

    def _sampled(self, z: Tensor, *others: Tensor) -> Tensor:
        """Deformable convolution of the sources; z (n, 27 g, h, w): of _unbounded; others: sources,
        then flows.
        """
        sources, flows = others[: self.sources], others[self.sources :]
        x = sources[0] if self.sources == 1 else torch.cat(sources, dim=1)
        # Offset channel 2 * (group * 9 + tap) is dy, the next one dx; each source has an equal
        # share of the groups.
        n, _, h, w = z.shape
        # Positions are float32 or float64, also under autocast.
        precise = torch.promote_types(z.dtype, torch.float32)
        unbounded, factors = z.split((18 * self.groups, 9 * self.groups), dim=1)
        residual = torch.tanh(unbounded.to(precise)).view(n, self.sources, -1, 2, h, w)
        base = torch.stack(flows, dim=1).flip(2).unsqueeze(2)
        offset = torch.add(base, residual, alpha=self.max_residual).view(n, -1, h, w)
        mask = torch.sigmoid(factors)
        return deform_conv(x, offset, mask, self.weight, self.bias)

    def transient(self, target: Tensor) -> int:
        """Bytes that the backward pass on a GPU holds at most besides what was saved; target: (n,
        d, h, w).

        Counted on fake tensors (tests/helpers/fake_gpu.py): 2 to 10 % above the count. Offsets and
        masks, their gradients and forms in float32; the input of the convolutions, in as many
        copies; the gradient of the result; the samples, of torchvision's kernel in float32 for up
        to 32 frames at a time.
        """
        if in_cpu_form(target):
            return 0  # a few frames at a time
        n, d, h, w = target.shape
        offsets, inputs, samples = 27 * self.groups, (1 + self.sources) * d, TAPS * self.sources * d
        if has_deform_conv(target):
            at_once = max(k for k in range(1, TORCHVISION_FRAMES + 1) if n % k == 0)
        else:
            at_once = 4 * n  # samples, their products with the masks, and the gradients of both
        return h * w * (n * (12 * offsets + 16 * inputs + 4 * d) + 4 * at_once * samples)


def align_clip(
    module: DeformAlign, x: Tensor, backward: list[Tensor], forward: list[Tensor]
) -> tuple[Tensor, Tensor]:
    """The later, and the earlier neighbours of every frame, aligned to it: two clips of x's shape
    (B, N, C, H, W).

    backward, forward: flows of distance 1, 2, ... A neighbour outside the clip is zero with zero
    flow. The last (first) frame has no later (earlier) neighbour, and its result is zero.
    """
    frames = x.transpose(0, 1)  # (N, B, C, H, W): consecutive frames form a batch without a copy
    later = _aligned(module, frames, [f.transpose(0, 1) for f in backward], ahead=True)
    earlier = _aligned(module, frames, [f.transpose(0, 1) for f in forward], ahead=False)
    return later.transpose(0, 1), earlier.transpose(0, 1)


def _aligned(module: DeformAlign, frames: Tensor, flows: list[Tensor], ahead: bool) -> Tensor:
    n = len(frames)
    targets = frames[:-1] if ahead else frames[1:]
    sources, bases = [], []
    for distance, flow in enumerate(flows, start=1):
        near = frames[distance:] if ahead else frames[: n - distance]
        if distance > 1:
            blank, no_flow = (x.new_zeros((distance - 1, *x.shape[1:])) for x in (frames, flow))
            near = torch.cat((near, blank) if ahead else (blank, near))
            flow = torch.cat((flow, no_flow) if ahead else (no_flow, flow))
        sources.append(near)
        bases.append(flow)
    step = (
        max(1, CPU_PIXELS // (frames.shape[1] * frames[0, 0, 0].numel()))
        if in_cpu_form(frames)
        else n
    )
    parts = []
    for first in range(0, n - 1, step):
        part = slice(first, first + step)
        some, their_flows = ([x[part].flatten(0, 1) for x in clips] for clips in (sources, bases))
        parts.append(module(some, targets[part].flatten(0, 1), their_flows))
    done = torch.cat(parts).view(n - 1, *frames.shape[1:])
    blank = done.new_zeros(1, *frames.shape[1:])
    return torch.cat((done, blank) if ahead else (blank, done))

"""Parallel warping: aligns the features of neighbouring frames to each frame of a clip.

A deformable convolution samples the neighbour at shifted places. A place is the optical flow plus a
small correction, which a conv net estimates. `align_clip` does this for all frames of a clip,
`DeformAlign` for a batch of frames, and `deform_conv` is the convolution itself.

Layout of the offsets of a deformable convolution: the input channels are divided into g offset
groups. Each group has nine taps (places of a 3x3 kernel, row by row), and each tap an offset
(dy, dx). Channel 2 * (group * 9 + tap) is dy, the next channel is dx, in pixels. E.g. channels 0
and 1 shift the upper left tap of group 0. The released weights rely on this layout.

Tests: tests/parts/models/test_vrt_modules.py, test_gradients.py, test_fake_gpu.py (memory)
"""

import math
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from models.vrt.flow import flow_warp
from models.vrt.forms import has_deform_conv, in_cpu_form
from models.vrt.layers import compute_dtype, recomputed

TAPS = 9  # places of a 3x3 kernel

# ---- Deformable convolution ------------------------------------------------------------------


def deform_conv(x: Tensor, offset: Tensor, mask: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Compute a 3x3 convolution that samples x at shifted places.

    x: (n, c, h, w). Outside the image it is zero.
    offset: shift of each sample, (n, 18 g, h, w), float32 or float64 whatever x is. For its layout
        see the top of this file.
    mask: factor of each sample, (n, 9 g, h, w).
    weight: (c', c / k, 3, 3), with k weight groups. bias: (c',).

    Returns (n, c', h, w), under autocast in the dtype of autocast. Differentiable in all tensors.
    """
    dtype = compute_dtype(x)
    if not has_deform_conv(x):
        return _deform_conv_by_sampling(x, offset, mask, weight, bias).to(dtype)

    from torchvision.ops import deform_conv2d  # takes seconds to import, so only when it is needed

    # torchvision needs one dtype for all tensors, and computes in float32 under autocast. In
    # bfloat16 an offset of 20 pixels would be off by 1/16.
    precise = torch.promote_types(x.dtype, torch.float32)
    x = x.to(precise)
    offset = offset.to(precise)
    mask = mask.to(precise)
    weight = weight.to(precise)
    bias = bias.to(precise)
    with torch.autocast(x.device.type, enabled=False):
        return deform_conv2d(x, offset, weight, bias, padding=(1, 1), mask=mask).to(dtype)


def _deform_conv_by_sampling(
    x: Tensor, offset: Tensor, mask: Tensor, weight: Tensor, bias: Tensor
) -> Tensor:
    """Compute `deform_conv` by one grid_sample and one matrix product.

    On a CPU this is 3 times faster than torchvision's scalar loops, 7 times with gradients.
    """
    n, c, h, w = x.shape
    groups = mask.shape[1] // TAPS
    mask = mask.to(offset.dtype)  # a product of two dtypes is five times as slow

    # The places of the samples. grid_sample counts from -1 (first pixel) to 1 (last pixel). An axis
    # of one pixel has no length, so divide by at least 1.
    dy, dx = offset.view(n * groups, TAPS, 2, h, w).unbind(2)
    base_y, base_x = _tap_positions(h, w, offset.dtype, x.device)
    scale_y = 2.0 / max(h - 1, 1)
    scale_x = 2.0 / max(w - 1, 1)
    # Write all x, then all y, and permute to the pairs (x, y) that grid_sample takes. Writing the
    # pairs directly is slower, and grid_sample reads any layout.
    grid = torch.stack(((dx + base_x) * scale_x - 1.0, (dy + base_y) * scale_y - 1.0), dim=1)
    grid = grid.view(n * groups, 2, TAPS * h, w).permute(0, 2, 3, 1)

    # Each offset group is an image of its own. Its nine taps are sampled below one another.
    images = x.reshape(n * groups, -1, h, w).to(grid.dtype)
    samples = nn.functional.grid_sample(images, grid, align_corners=True)
    samples = samples.view(n, groups, -1, TAPS, h * w)
    factors = mask.view(n, groups, 1, TAPS, h * w)
    if torch.is_grad_enabled():
        columns = samples * factors
    else:
        columns = samples.mul_(factors)

    # (k, c'/k, 9 c/k) @ (n, k, 9 c/k, h w)
    weight_groups = c // weight.shape[1]
    columns = columns.view(n, weight_groups, -1, h * w)
    outputs_of_group = len(weight) // weight_groups
    out = weight.view(weight_groups, outputs_of_group, -1) @ columns
    return out.view(n, -1, h, w) + bias.view(-1, 1, 1)


@lru_cache(maxsize=32)
# Tensors made in inference mode cannot be saved for backward, and the cache outlives that mode.
@torch.inference_mode(False)
def _tap_positions(
    h: int, w: int, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Return row and column of each tap of each output pixel: (9, h, 1) and (9, 1, w).

    The tensors are cached: do not modify them.
    """
    tap = torch.arange(3, dtype=dtype, device=device) - 1  # -1, 0, 1
    rows_of_taps = tap.repeat_interleave(3).view(TAPS, 1, 1)  # -1, -1, -1, 0, 0, 0, 1, 1, 1
    columns_of_taps = tap.repeat(3).view(TAPS, 1, 1)  # -1, 0, 1, -1, 0, 1, -1, 0, 1
    rows_of_pixels = torch.arange(h, dtype=dtype, device=device).view(1, h, 1)
    columns_of_pixels = torch.arange(w, dtype=dtype, device=device).view(1, 1, w)
    return rows_of_taps + rows_of_pixels, columns_of_taps + columns_of_pixels


# ---- Alignment of frames ---------------------------------------------------------------------

# Frames that torchvision's kernel for GPUs samples at a time, at most (kMaxParallelImgs). It takes
# the largest divisor of the number of frames up to this limit.
TORCHVISION_FRAMES = 32


class DeformAlign(nn.Module):
    """Flow-guided deformable convolution: offsets are the flow plus a correction.

    sources: number of source frames that are aligned to a target. Each has its own weight group and
        an equal share of the offset groups.
    max_residual: largest correction, in pixels.
    """

    def __init__(self, dim: int, deformable_groups: int, sources: int, max_residual: float) -> None:
        super().__init__()
        self.groups = deformable_groups
        self.sources = sources
        self.max_residual = max_residual
        self.weight = nn.Parameter(torch.empty(dim, dim, 3, 3))
        self.bias = nn.Parameter(torch.zeros(dim))
        limit = 1.0 / math.sqrt(9 * dim)  # 9 dim inputs for each output
        nn.init.uniform_(self.weight, -limit, limit)

        # The conv net takes the warped sources, the target, and the flows. For each group and tap
        # it returns an offset (2 numbers) and a factor.
        inputs = (1 + sources) * dim + 2 * sources
        outputs = 3 * TAPS * deformable_groups
        self.conv_offset = nn.Sequential(
            nn.Conv2d(inputs, dim, 3, 1, 1),
            nn.LeakyReLU(0.1, inplace=True),
            nn.Conv2d(dim, dim, 3, 1, 1),
            nn.LeakyReLU(0.1, inplace=True),
            nn.Conv2d(dim, dim, 3, 1, 1),
            nn.LeakyReLU(0.1, inplace=True),
            nn.Conv2d(dim, outputs, 3, 1, 1),
        )
        # With a last layer of zeros, the offsets are the flow at first, and the factors are 0.5.
        last: Any = self.conv_offset[-1]
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)

    def forward(self, sources: list[Tensor], target: Tensor, flows: list[Tensor]) -> Tensor:
        """Align the sources to the target, and combine them: (n, d, h, w).

        sources: nearest first, each (n, d, h, w). target: (n, d, h, w). flows: for each source the
        flow that warps it to the target, (n, 2, h, w).
        """
        # Autograd sees tensors only if they are arguments of their own, so no lists from here.
        others = (*sources, *flows)
        is_compiling = torch.compiler.is_compiling()
        if not in_cpu_form(target) and not is_compiling:
            # On a GPU recompute both halves, because a GPU has time for the convolutions, but no
            # memory for their inputs.
            return recomputed(
                lambda x, *rest: self._sampled(self._estimated(x, *rest), *rest), target, *others,
                weights=self.parameters(),
            )  # fmt: skip
        # On a CPU recompute the second half alone. Offsets are three times as large as the input,
        # samples nine times, and both cost little to recompute.
        estimated = self._estimated(target, *others)
        weights = (self.weight, self.bias)
        return recomputed(self._sampled, estimated, *others, weights=weights, when=not is_compiling)

    def _estimated(self, target: Tensor, *others: Tensor) -> Tensor:
        """Estimate corrections before tanh, and factors before the sigmoid: (n, 27 g, h, w).

        others: the sources, then the flows.
        """
        sources = others[: self.sources]
        flows = others[self.sources :]
        guide = []
        for source, flow in zip(sources, flows, strict=True):
            guide.append(flow_warp(source, flow))
        guide.append(target)
        for flow in flows:
            guide.append(flow.to(target.dtype))
        x = torch.cat(guide, dim=1)
        del guide
        # channels_last is the fastest layout for convolutions, on a CPU and on tensor cores. The
        # sampling needs planes again.
        x = x.contiguous(memory_format=torch.channels_last)
        return self.conv_offset(x).contiguous()

    def _sampled(self, estimated: Tensor, *others: Tensor) -> Tensor:
        """Compute the deformable convolution of the sources.

        estimated: result of `_estimated`. others: the sources, then the flows.
        """
        sources = others[: self.sources]
        flows = others[self.sources :]
        x = sources[0] if self.sources == 1 else torch.cat(sources, dim=1)
        n, _, h, w = estimated.shape
        corrections, factors = estimated.split((18 * self.groups, 9 * self.groups), dim=1)

        # Offset = flow + max_residual * tanh(correction). It is float32 or float64, also under
        # autocast. The taps and groups of a source share its flow.
        precise = torch.promote_types(estimated.dtype, torch.float32)
        residual = torch.tanh(corrections.to(precise))
        residual = residual.view(n, self.sources, -1, 2, h, w)  # (n, source, group and tap, dy dx)
        flow = torch.stack(flows, dim=1)  # (n, source, x y, h, w)
        flow = flow.flip(2).unsqueeze(2)  # (n, source, 1, y x, h, w)
        offset = torch.add(flow, residual, alpha=self.max_residual).view(n, -1, h, w)
        mask = torch.sigmoid(factors)
        return deform_conv(x, offset, mask, self.weight, self.bias)

    def transient(self, target: Tensor) -> int:
        """Estimate the memory of the backward pass on a GPU, in bytes.

        This is the peak without the tensors saved in forward. target: (n, d, h, w).

        The result was compared with counts on fake tensors (tests/helpers/fake_gpu.py). It is 2 to
        10 % above the counts.
        """
        if in_cpu_form(target):
            return 0  # a CPU takes a few frames at a time, so the tensors are small
        n, d, h, w = target.shape
        # Numbers per pixel of a frame.
        offsets = 27 * self.groups  # offsets and factors
        inputs = (1 + self.sources) * d  # of the conv net
        samples = TAPS * self.sources * d
        if has_deform_conv(target):
            # The largest divisor of n up to the limit.
            frames_at_once = 1
            for count in range(1, TORCHVISION_FRAMES + 1):
                if n % count == 0:
                    frames_at_once = count
        else:
            # Samples, their products with the factors, and the gradients of both.
            frames_at_once = 4 * n
        # Bytes per pixel, in float32. Offsets and factors, their gradients, and a float32 form of
        # them: 3 x 4. The input of the conv net in several copies: 4 x 4. The gradient of the
        # result: 4.
        of_frames = n * (12 * offsets + 16 * inputs + 4 * d)
        of_samples = 4 * frames_at_once * samples  # in float32
        return h * w * (of_frames + of_samples)


# ---- Alignment of a clip ---------------------------------------------------------------------

# Largest number of pixels in one batch of a deformable convolution on a CPU, because larger batches
# do not fit the cache. A batch has at least one frame. A GPU takes all frames at once.
CPU_PIXELS = 1024


def align_clip(
    module: DeformAlign, x: Tensor, backward: list[Tensor], forward: list[Tensor]
) -> tuple[Tensor, Tensor]:
    """Align to every frame its later neighbours, and its earlier neighbours.

    x: (B, N, C, H, W). backward, forward: flows of the distances 1, 2, ..., see flow.Flows.

    Returns two clips of the shape of x. A neighbour outside the clip counts as zero with zero flow.
    The last frame has no later neighbour and the first no earlier one: there the result is zero.
    """
    frames = x.transpose(0, 1)  # (N, B, C, H, W): consecutive frames form a batch without a copy
    backward = [flow.transpose(0, 1) for flow in backward]
    forward = [flow.transpose(0, 1) for flow in forward]
    later = _aligned(module, frames, backward, is_later=True)
    earlier = _aligned(module, frames, forward, is_later=False)
    return later.transpose(0, 1), earlier.transpose(0, 1)


def _aligned(module: DeformAlign, frames: Tensor, flows: list[Tensor], is_later: bool) -> Tensor:
    """Align the neighbours on one side to each frame: (N, B, C, H, W) -> the same shape.

    flows: those of the distances 1, 2, ..., each (N - distance, B, 2, H, W).
    is_later: whether the neighbours are later, or earlier than the frame.
    """
    n, b, _, h, w = frames.shape

    # Targets are all frames with a neighbour on this side. For each distance, find the neighbour of
    # each target, and the flow to it. Near the end of the clip, where a far neighbour is missing,
    # the source and its flow are zeros.
    targets = frames[:-1] if is_later else frames[1:]
    sources = []
    source_flows = []
    for distance, flow in enumerate(flows, start=1):
        if is_later:
            source = frames[distance:]
            sources.append(_with_zeros_behind(source, distance - 1))
            source_flows.append(_with_zeros_behind(flow, distance - 1))
        else:
            source = frames[: n - distance]
            sources.append(_with_zeros_before(source, distance - 1))
            source_flows.append(_with_zeros_before(flow, distance - 1))

    # Align some targets at a time.
    step = n
    if in_cpu_form(frames):
        step = max(1, CPU_PIXELS // (b * h * w))
    parts = []
    for first in range(0, n - 1, step):
        some = slice(first, first + step)
        some_sources = [source[some].flatten(0, 1) for source in sources]
        some_flows = [flow[some].flatten(0, 1) for flow in source_flows]
        parts.append(module(some_sources, targets[some].flatten(0, 1), some_flows))
    aligned = torch.cat(parts).view(n - 1, *frames.shape[1:])
    if is_later:
        return _with_zeros_behind(aligned, 1)
    return _with_zeros_before(aligned, 1)


def _with_zeros_behind(x: Tensor, count: int) -> Tensor:
    """Append `count` frames of zeros to x (N, ...)."""
    if count == 0:
        return x
    return torch.cat((x, x.new_zeros(count, *x.shape[1:])))


def _with_zeros_before(x: Tensor, count: int) -> Tensor:
    """Put `count` frames of zeros before x (N, ...)."""
    if count == 0:
        return x
    return torch.cat((x.new_zeros(count, *x.shape[1:]), x))

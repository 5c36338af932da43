"""Parallel warping: aligns the features of neighbouring frames to each frame of a clip.

A deformable convolution samples the neighbour at shifted positions. The shift (offset) is the
optical flow plus a small correction, which a conv net estimates. `align_clip` does this for all
frames of a clip, `DeformAlign` for a batch of frames, and `deform_conv` is the convolution itself.

Layout of the offsets of a deformable convolution: the input channels are divided into g offset
groups. Each group has nine taps (positions of a 3x3 kernel, row by row), and each tap has an offset
(dy, dx). Channel 2 * (group * 9 + tap) is dy, the next channel is dx, in pixels. E.g. channels 0
and 1 shift the upper left tap of group 0.

What must stay: this layout and the names of modules, because the released weights rely on them.

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

TAPS = 9  # positions of a 3x3 kernel

# ---- Deformable convolution ------------------------------------------------------------------


def deform_conv(x: Tensor, offset: Tensor, mask: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Compute a 3x3 convolution that samples x at shifted positions.

    x: (n, c, h, w). Outside the image it is zero.
    offset: shift of each sample, (n, 18 g, h, w), float32 or float64, whatever the dtype of x is.
        For the layout see the top of this file.
    mask: factor of each sample, (n, 9 g, h, w).
    weight: (c', c / k, 3, 3), with k weight groups. bias: (c',).

    Returns (n, c', h, w), under autocast in the dtype of autocast. All tensors get gradients.
    """
    dtype = compute_dtype(x)
    if not has_deform_conv(x):
        return _deform_conv_by_sampling(x, offset, mask, weight, bias).to(dtype)

    from torchvision.ops import deform_conv2d  # here, because the import takes seconds

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

    # Positions of the samples. grid_sample counts from -1 (first pixel) to 1 (last pixel). So
    # multiply pixels by 2 / (pixels - 1), and subtract 1. An axis of one pixel has no length, so
    # divide by at least 1.
    dy, dx = offset.view(n * groups, TAPS, 2, h, w).unbind(2)  # (n groups, TAPS, h, w) each
    base_y, base_x = _tap_positions(h, w, offset.dtype, x.device)
    scale_y = 2.0 / max(h - 1, 1)
    scale_x = 2.0 / max(w - 1, 1)
    sample_x = (dx + base_x) * scale_x - 1.0
    sample_y = (dy + base_y) * scale_y - 1.0
    # grid_sample takes pairs (x, y), in any layout in memory. Writing the pairs side by side is
    # slower, so write all x, then all y, and permute.
    grid = torch.stack((sample_x, sample_y), dim=1)
    del sample_x, sample_y  # they are as large as the offsets
    grid = grid.view(n * groups, 2, TAPS * h, w).permute(0, 2, 3, 1)  # (n groups, TAPS h, w, 2)

    # Each offset group is one image for grid_sample. Its nine taps are sampled below one another.
    images = x.reshape(n * groups, -1, h, w).to(grid.dtype)
    samples = nn.functional.grid_sample(images, grid, align_corners=True)
    samples = samples.view(n, groups, -1, TAPS, h * w)  # (n, groups, c / groups, TAPS, h w)
    factors = mask.view(n, groups, 1, TAPS, h * w)
    if torch.is_grad_enabled():
        columns = samples * factors
    else:
        columns = samples.mul_(factors)  # in place: without a graph nobody needs the samples

    # The convolution is a matrix product: (k, c'/k, 9 c/k) @ (n, k, 9 c/k, h w).
    weight_groups = c // weight.shape[1]
    columns = columns.view(n, weight_groups, -1, h * w)
    outputs_of_group = len(weight) // weight_groups
    matrices = weight.view(weight_groups, outputs_of_group, -1)
    out = matrices @ columns  # (n, k, c'/k, h w)
    return out.view(n, -1, h, w) + bias.view(-1, 1, 1)


# 32 results: training and validation together have a few sizes of frames, each at four scales.
@lru_cache(maxsize=32)
# The tensors are saved for backward. torch does not save tensors that are made in inference mode,
# so this mode is off here.
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

# torchvision's kernel for GPUs samples at most this many frames at a time (kMaxParallelImgs). It
# takes the largest divisor of the number of frames up to this limit, e.g. 20 of 40 frames.
MOST_FRAMES_OF_TORCHVISION = 32


class DeformAlign(nn.Module):
    """Flow-guided deformable convolution: offsets are the flow plus a correction.

    dim: channels of a frame. deformable_groups: number of offset groups, see the top of this file.
    sources: number of source frames that are aligned to a target. Each source has one weight group
        and an equal number of the offset groups.
    max_residual: largest correction, in pixels.
    """

    def __init__(self, dim: int, deformable_groups: int, sources: int, max_residual: float) -> None:
        super().__init__()
        self.groups = deformable_groups
        self.sources = sources  # a number
        self.max_residual = max_residual
        self.weight = nn.Parameter(torch.empty(dim, dim, 3, 3))
        self.bias = nn.Parameter(torch.zeros(dim))
        # The published initial weights, as torch's convolutions have them: 9 dim inputs for each
        # output.
        limit = 1.0 / math.sqrt(9 * dim)
        nn.init.uniform_(self.weight, -limit, limit)

        # The conv net takes the warped sources, the target, and the flows. For each group and tap
        # it returns an offset (2 numbers) and a factor.
        inputs = (1 + sources) * dim + 2 * sources
        outputs = 3 * TAPS * deformable_groups
        self.conv_offset = nn.Sequential(
            nn.Conv2d(inputs, dim, kernel_size=3, padding=1),
            nn.LeakyReLU(0.1, inplace=True),
            nn.Conv2d(dim, dim, kernel_size=3, padding=1),
            nn.LeakyReLU(0.1, inplace=True),
            nn.Conv2d(dim, dim, kernel_size=3, padding=1),
            nn.LeakyReLU(0.1, inplace=True),
            nn.Conv2d(dim, outputs, kernel_size=3, padding=1),
        )
        # With a last layer of zeros, the offsets are the flow at first, and the factors are
        # sigmoid(0) = 0.5.
        last_layer: Any = self.conv_offset[-1]
        nn.init.zeros_(last_layer.weight)
        nn.init.zeros_(last_layer.bias)

    def forward(self, sources: list[Tensor], target: Tensor, flows: list[Tensor]) -> Tensor:
        """Align the sources to the target, and combine them: (n, d, h, w).

        sources: nearest first, each (n, d, h, w). target: (n, d, h, w). flows: for each source the
        flow that warps it to the target, (n, 2, h, w).
        """
        # From here each tensor is one argument, because autograd finds no tensors within lists.
        others = (*sources, *flows)
        is_compiling = torch.compiler.is_compiling()
        if not in_cpu_form(target) and not is_compiling:
            # On a GPU recompute both steps, because a GPU has time for the convolutions, but no
            # memory for their inputs.
            def both_steps(x: Tensor, *rest: Tensor) -> Tensor:
                return self._sampled(self._estimated(x, *rest), *rest)

            return recomputed(both_steps, target, *others, weights=self.parameters())
        # On a CPU recompute the second step alone. Its offsets are three times as large as the
        # input, and its samples nine times, and both cost little to recompute.
        estimated = self._estimated(target, *others)
        weights = (self.weight, self.bias)
        return recomputed(self._sampled, estimated, *others, weights=weights, when=not is_compiling)

    def _estimated(self, target: Tensor, *others: Tensor) -> Tensor:
        """Estimate corrections before tanh, and factors before the sigmoid: (n, 27 g, h, w).

        others: the sources, then the flows. They are single arguments and not two lists, because
        `recomputed` must find the tensors, see `forward`.
        """
        sources, flows = self._sources_and_flows(others)
        # The input of the conv net: warped sources, target, flows. The order is part of the
        # released weights.
        inputs = []
        for source, flow in zip(sources, flows, strict=True):
            inputs.append(flow_warp(source, flow))
        inputs.append(target)
        for flow in flows:
            inputs.append(flow.to(target.dtype))
        x = torch.cat(inputs, dim=1)
        del inputs  # frees the tensors before the convolutions
        # channels_last is the fastest layout for convolutions, on a CPU and on tensor cores. The
        # sampling needs the usual layout again.
        x = x.contiguous(memory_format=torch.channels_last)
        return self.conv_offset(x).contiguous()

    def _sources_and_flows(
        self, others: tuple[Tensor, ...]
    ) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """Divide the arguments `others` of a step into the sources and their flows."""
        return others[: self.sources], others[self.sources :]

    def _sampled(self, estimated: Tensor, *others: Tensor) -> Tensor:
        """Compute the deformable convolution of the sources.

        estimated: result of `_estimated`. others: the sources, then the flows.
        """
        sources, flows = self._sources_and_flows(others)
        x = sources[0] if self.sources == 1 else torch.cat(sources, dim=1)
        n, _, h, w = estimated.shape
        corrections, factors = estimated.split((18 * self.groups, 9 * self.groups), dim=1)

        # offset = flow + max_residual * tanh(correction), in float32 or float64, also under
        # autocast. The taps and groups of a source share its flow.
        precise = torch.promote_types(estimated.dtype, torch.float32)
        residual = torch.tanh(corrections.to(precise))
        # (n, source, group and tap, dy dx, h, w). With 8 groups for each source: 8 x 9 offsets.
        residual = residual.view(n, self.sources, -1, 2, h, w)
        flow = torch.stack(flows, dim=1)  # (n, source, x y, h, w)
        flow = flow.flip(2)  # (n, source, y x, h, w): the order of dy and dx
        flow = flow.unsqueeze(2)  # (n, source, 1, y x, h, w): one flow for all groups and taps
        offset = torch.add(flow, residual, alpha=self.max_residual)
        offset = offset.view(n, -1, h, w)  # (n, 18 g, h, w)
        mask = torch.sigmoid(factors)
        return deform_conv(x, offset, mask, self.weight, self.bias)

    def transient(self, target: Tensor) -> int:
        """Estimate the memory that the backward pass takes on a GPU, in bytes.

        The tensors that forward saves are not counted: the caller, fit_memory.py, counts them. The
        result was compared with counts on fake tensors (tests/helpers/fake_gpu.py). It is 2 to 10 %
        above the counts.

        target: see `forward`, (n, d, h, w).
        """
        if in_cpu_form(target):
            # A CPU takes a few frames at a time (MOST_PIXELS_ON_CPU), so the tensors are small.
            return 0
        n, d, h, w = target.shape
        # Numbers per pixel of a frame.
        offsets = 27 * self.groups  # 18 offsets and 9 factors of each group
        inputs = (1 + self.sources) * d  # of the conv net
        samples = TAPS * self.sources * d
        # Frames whose samples are in memory at a time, and how many copies of the samples.
        if has_deform_conv(target):
            # torchvision takes equal batches of frames, so their size divides n. It takes the
            # largest such size up to its limit.
            copies = 1
            frames_at_once = 1
            for count in range(1, MOST_FRAMES_OF_TORCHVISION + 1):
                if n % count == 0:
                    frames_at_once = count
        else:
            # All frames, and four copies: the samples, their products with the factors, and the
            # gradients of both.
            copies = 4
            frames_at_once = n
        # Numbers per pixel of all frames. Three copies of the offsets: themselves, their gradients,
        # and a float32 form. The input of the conv net is there in four copies. `d` is the gradient
        # of the result.
        numbers_of_frames = n * (3 * offsets + 4 * inputs + d)
        numbers_of_samples = copies * frames_at_once * samples
        bytes_per_number = 4  # float32
        return h * w * bytes_per_number * (numbers_of_frames + numbers_of_samples)


# ---- Alignment of a clip ---------------------------------------------------------------------

# Most pixels in one batch of a deformable convolution on a CPU, because larger batches do not fit
# the cache. A batch has at least one frame. A GPU takes all frames at once.
MOST_PIXELS_ON_CPU = 1024


def align_clip(
    module: DeformAlign, x: Tensor, backward: list[Tensor], forward: list[Tensor]
) -> tuple[Tensor, Tensor]:
    """Align to every frame its later neighbours, and its earlier neighbours.

    x: (B, N, C, H, W). backward, forward: flows of the distances 1, 2, ..., see flow.Flows.
    A backward flow warps a later frame back to an earlier one, a forward flow the other way round.

    Returns two clips of the shape of x: the aligned later neighbours, the aligned earlier
    neighbours. A neighbour outside the clip counts as zero with zero flow. If all neighbours on a
    side are outside, the result is zero: later neighbours of the last frame, earlier neighbours of
    the first frame.
    """
    frames = x.transpose(0, 1)  # (N, B, C, H, W): consecutive frames form a batch without a copy
    backward = [flow.transpose(0, 1) for flow in backward]
    forward = [flow.transpose(0, 1) for flow in forward]
    # Later neighbours are warped back in time, so they need the backward flows.
    later = _aligned(module, frames, backward, is_later=True)
    earlier = _aligned(module, frames, forward, is_later=False)
    return later.transpose(0, 1), earlier.transpose(0, 1)


def _aligned(module: DeformAlign, frames: Tensor, flows: list[Tensor], is_later: bool) -> Tensor:
    """Align the neighbours on one side to each frame: (N, B, C, H, W) -> the same shape.

    flows: for the distances 1, 2, ..., each (N - distance, B, 2, H, W).
    is_later: whether the neighbours are later than the frame, or earlier.
    """
    n, b, _, h, w = frames.shape

    # Targets are all frames with a neighbour on this side. For each distance, find the neighbour of
    # each target, and the flow to it. If a far neighbour is missing near the end of the clip, the
    # source and its flow are zeros. E.g. 4 frames, later neighbours at distance 2: the targets
    # 0 1 2 have the sources 2 3 and zero.
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

    # Align some targets at a time: (targets, B, C, H, W) -> one batch (targets B, C, H, W).
    targets_at_a_time = n
    if in_cpu_form(frames):
        targets_at_a_time = max(1, MOST_PIXELS_ON_CPU // (b * h * w))
    results = []
    for first in range(0, n - 1, targets_at_a_time):
        now = slice(first, first + targets_at_a_time)
        sources_now = [source[now].flatten(0, 1) for source in sources]
        flows_now = [flow[now].flatten(0, 1) for flow in source_flows]
        targets_now = targets[now].flatten(0, 1)
        results.append(module(sources_now, targets_now, flows_now))
    aligned = torch.cat(results).view(n - 1, *frames.shape[1:])
    # Add zeros for the frame without a neighbour on this side.
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

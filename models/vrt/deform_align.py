"""Parallel warping: aligns the features of neighbouring frames to each frame of a clip.

A deformable convolution samples the neighbour at shifted positions. The shift (offset) is the
optical flow plus a small correction, which a conv net estimates. The functions of this file, from
the inside to the outside:

    deform_conv   the convolution itself
    DeformAlign   aligns the neighbours of a batch of frames: offsets, then the convolution
    align_clip    aligns the neighbours of all frames of a clip. block.Stage calls it

Letters of a deformable convolution:

    n, h, w     images, and the pixels of an image
    c, c'       input channels, output channels
    g           offset groups: the channels of a group have the same offsets
    k           weight groups (`groups` of torch's convolutions)

Both kinds of groups divide the c input channels. E.g. two neighbours of 120 channels: c = 240,
g = 16, k = 2. A space in a shape is a product: (n g, h, w) has n times g images.

Layout of the offsets: each offset group has nine taps (positions of a 3x3 kernel, row by row). Each
tap has an offset (dy, dx) in pixels. Channel 2 * (group * 9 + tap) is dy, the next channel is dx.
E.g. channels 0 and 1 shift the upper left tap of group 0.

What must stay, and which test notices (in tests/parts/models):

    the layout of the offsets, the names of modules,
    and the order of the conv net's inputs, because
    the released weights rely on them                   test_vrt_modules.py
    the results, up to rounding                         test_vrt_modules.py, test_block.py
    what is in memory on a GPU                          test_fake_gpu.py

Free to change: what backward recomputes, if the estimate `DeformAlign.transient` changes with it.
"""

import math
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from models.vrt.flow import flow_warp
from models.vrt.forms import has_deform_conv, in_cpu_form
from models.vrt.layers import compute_dtype, recompute_in_backward

TAPS = 9  # positions of a 3x3 kernel

# ---- Deformable convolution ------------------------------------------------------------------


def deform_conv(x: Tensor, offset: Tensor, mask: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Compute a 3x3 convolution that samples x at shifted positions.

        out(p) = bias + sum over the taps t of   weight_t (mask_t(p) x(p + tap_t + offset_t(p)))

    p is an output pixel. tap_t is the position of tap t relative to p, e.g. (-1, -1) for t = 0.
    weight_t is the (c' x c) matrix of tap t. If k > 1, each of the k weight groups has a matrix.

    x: (n, c, h, w). Outside the image it is zero.
    offset: shift of each sample, (n, 18 g, h, w), float32 or float64, whatever the dtype of x is.
        Channel 2 * (group * 9 + tap) is dy, the next channel is dx.
    mask: factor of each sample, (n, 9 g, h, w).
    weight: (c', c / k, 3, 3). bias: (c',).

    Returns (n, c', h, w), under autocast in the dtype of autocast. All tensors get gradients.
    """
    dtype = compute_dtype(x)  # dtype of the result
    if not has_deform_conv(x):  # e.g. on a CPU, or on a GPU of Apple (forms.DEFORM_CONV)
        return _deform_conv_by_sampling(x, offset, mask, weight, bias).to(dtype)

    from torchvision.ops import deform_conv2d  # here, because the import takes seconds

    # torchvision needs one dtype for all tensors, and computes in float32 under autocast. bfloat16
    # would be too coarse: its numbers from 16 to 32 are 1/8 apart, so an offset of 20.06 pixels
    # would become 20.
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

    The arguments are those of `deform_conv`. On a CPU this is 3 times as fast as torchvision, which
    computes pixel by pixel there, and 7 times as fast with gradients. On a GPU of Apple,
    torchvision has no gradients of this convolution.
    """
    n, c, h, w = x.shape
    columns = _columns(x, offset, mask)  # (n, c, 9, h w)

    # The convolution is a matrix product for each weight group. A weight group reads c/k channels
    # with nine taps each, and makes c'/k channels: (k, c'/k, 9 c/k) @ (n, k, 9 c/k, h w). Weights
    # and columns are float32 (both float64 in a float64 network). Under autocast, @ converts both.
    weight_groups = c // weight.shape[1]  # k
    outputs_of_group = len(weight) // weight_groups  # c'/k
    matrices = weight.view(weight_groups, outputs_of_group, -1)
    columns = columns.view(n, weight_groups, -1, h * w)
    out = matrices @ columns  # (n, k, c'/k, h w)
    return out.view(n, -1, h, w) + bias.view(-1, 1, 1)


def _columns(x: Tensor, offset: Tensor, mask: Tensor) -> Tensor:
    """Return what each output pixel reads: nine samples of each channel, times their masks.

    The arguments are as in `deform_conv`. Returns (n, c, 9, h w) in the dtype of the offsets.
    """
    n, _, h, w = x.shape
    groups = mask.shape[1] // TAPS  # g
    # A product of tensors of two dtypes takes five times as long, so convert the mask first.
    mask = mask.to(offset.dtype)

    # Each offset group is one image for grid_sample, which makes one output image of it. So the
    # nine taps, each of h rows, are stacked into one output image of 9 h rows.
    images = x.reshape(n * groups, -1, h, w).to(offset.dtype)  # (n g, c/g, h, w)
    grid = _sampling_grid(offset, groups)  # (n g, 9 h, w, 2)
    samples = nn.functional.grid_sample(images, grid, align_corners=True)  # (n g, c/g, 9 h, w)
    samples = samples.view(n, groups, -1, TAPS, h * w)  # (n, g, c/g, 9, h w)
    # One factor for all channels of a group, so the axis of channels has length 1.
    factors = mask.view(n, groups, 1, TAPS, h * w)
    if torch.is_grad_enabled():
        columns = samples * factors
    else:
        columns = samples.mul_(factors)  # in place: without a graph nobody needs the samples
    return columns.flatten(1, 2)  # the offset groups, one after the other, are the c channels


def _sampling_grid(offset: Tensor, groups: int) -> Tensor:
    """Return where grid_sample samples each tap of each offset group, (n g, 9 h, w, 2).

    offset: (n, 18 g, h, w). groups: number of offset groups, g.

    The last axis is (x, y). grid_sample counts from -1 (first pixel) to 1 (last pixel).
    """
    n, _, h, w = offset.shape
    dy, dx = offset.view(n * groups, TAPS, 2, h, w).unbind(2)  # (n g, 9, h, w) each
    base_y, base_x = _tap_positions(h, w, offset.dtype, offset.device)
    # From pixels to grid_sample's units: multiply by 2 / (pixels - 1), and subtract 1. E.g. 5
    # pixels: 0 -> -1, 2 -> 0, 4 -> 1. An axis of one pixel has no length, so divide by at least 1.
    scale_y = 2.0 / max(h - 1, 1)
    scale_x = 2.0 / max(w - 1, 1)
    sample_x = (dx + base_x) * scale_x - 1.0
    sample_y = (dy + base_y) * scale_y - 1.0
    # grid_sample takes pairs (x, y), in any layout in memory. Writing the pairs next to each other
    # is slower, so write all x, then all y, and permute.
    grid = torch.stack((sample_x, sample_y), dim=1)  # (n g, 2, 9, h, w)
    return grid.view(n * groups, 2, TAPS * h, w).permute(0, 2, 3, 1)


# 32 results: training and validation together have a few sizes of frames, each at four scales. With
# fewer, results would be computed again. With more, memory would hold results that nobody needs.
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

# torchvision's kernel for GPUs samples at most this many frames at a time (kMaxParallelImgs in its
# source). This number is only used to estimate memory.
MOST_FRAMES_OF_TORCHVISION = 32


class DeformAlign(nn.Module):
    """Flow-guided deformable convolution: offsets are the flow plus a correction.

    A conv net sees the target frame, the source frames warped to it, and the flows. For each sample
    it estimates a correction of the flow, and a factor (mask). Then the sources are sampled.

    dim: channels of a frame. deformable_groups: number of offset groups, whose channels have the
        same offsets.
    sources: number of source frames that are aligned to a target. Each source has one weight group
        and an equal number of the offset groups.
    max_residual: largest correction, in pixels.

    What must stay: `weight`, `bias`, `conv_offset` and the positions of its layers, because they
    are names in the released weights. The order in which the parameters are drawn must stay, too,
    because it decides the initial weights of a seed.
    """

    def __init__(self, dim: int, deformable_groups: int, sources: int, max_residual: float) -> None:
        super().__init__()
        self.offset_groups = deformable_groups
        self.source_count = sources
        self.max_residual = max_residual
        self.weight = nn.Parameter(torch.empty(dim, dim, 3, 3))
        self.bias = nn.Parameter(torch.zeros(dim))
        # The range of the initial weights, as published. torch's convolutions begin with the same
        # range, 1 / sqrt(inputs of an output). Here an output has 9 dim inputs.
        limit = 1.0 / math.sqrt(9 * dim)
        nn.init.uniform_(self.weight, -limit, limit)

        # The conv net takes the warped sources, the target, and the flows (2 numbers each). For
        # each group and tap it returns a correction (2 numbers) and a factor: 3 numbers.
        inputs = (1 + sources) * dim + 2 * sources
        outputs = 3 * TAPS * deformable_groups
        # The layers and the slope 0.1 for negative values are those of the published network.
        self.conv_offset = nn.Sequential(
            nn.Conv2d(inputs, dim, kernel_size=3, padding=1),
            nn.LeakyReLU(0.1, inplace=True),
            nn.Conv2d(dim, dim, kernel_size=3, padding=1),
            nn.LeakyReLU(0.1, inplace=True),
            nn.Conv2d(dim, dim, kernel_size=3, padding=1),
            nn.LeakyReLU(0.1, inplace=True),
            nn.Conv2d(dim, outputs, kernel_size=3, padding=1),
        )
        # The last layer begins with zeros. So at first the corrections are tanh(0) = 0, which makes
        # the offsets the flow, and the factors are sigmoid(0) = 0.5.
        last_layer: Any = self.conv_offset[-1]
        nn.init.zeros_(last_layer.weight)
        nn.init.zeros_(last_layer.bias)

    def forward(self, sources: list[Tensor], target: Tensor, flows: list[Tensor]) -> Tensor:
        """Align the sources to the target, and combine them: (n, d, h, w).

        sources: nearest first, each (n, d, h, w), where d is `dim`. target: (n, d, h, w).
        flows: for each source the flow that warps it to the target, (n, 2, h, w).
        """
        # There are two steps: `_run_conv_net`, and `_sample_sources`, the deformable convolution.
        # In both, each source and flow is an argument of its own, because `recompute_in_backward`
        # finds no tensors within lists.
        neighbours = (*sources, *flows)
        is_compiling = torch.compiler.is_compiling()
        if not in_cpu_form(target) and not is_compiling:
            # On a GPU recompute both steps in backward, because a GPU has time for the
            # convolutions, but no memory for their inputs.
            def both_steps(target: Tensor, *neighbours: Tensor) -> Tensor:
                return self._sample_sources(self._run_conv_net(target, *neighbours), *neighbours)

            return recompute_in_backward(both_steps, target, *neighbours, weights=self.parameters())
        # On a CPU recompute the second step alone, whose samples are nine times as large as the
        # input, but cost little time. The convolutions of the first step cost much time, so their
        # results are kept. Under torch.compile nothing is recomputed.
        conv_output = self._run_conv_net(target, *neighbours)
        weights = (self.weight, self.bias)
        return recompute_in_backward(
            self._sample_sources, conv_output, *neighbours, weights=weights, when=not is_compiling
        )

    def _run_conv_net(self, target: Tensor, *neighbours: Tensor) -> Tensor:
        """Run the conv net: corrections before tanh, and factors before the sigmoid.

        neighbours: the sources, then their flows.

        Returns (n, 27 g, h, w): 18 g corrections, then 9 g factors.
        """
        sources, flows = self._sources_and_flows(neighbours)
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
        # sampling needs the usual layout, so the result is converted back.
        x = x.contiguous(memory_format=torch.channels_last)
        return self.conv_offset(x).contiguous()

    def _sample_sources(self, conv_output: Tensor, *neighbours: Tensor) -> Tensor:
        """Compute the deformable convolution of the sources, (n, d, h, w).

        conv_output: result of `_run_conv_net`. neighbours: the sources, then their flows.
        """
        sources, flows = self._sources_and_flows(neighbours)
        x = sources[0] if self.source_count == 1 else torch.cat(sources, dim=1)
        corrections, factors = conv_output.split(
            (2 * TAPS * self.offset_groups, TAPS * self.offset_groups), dim=1
        )
        offset = self._offsets(corrections, flows)
        mask = torch.sigmoid(factors)
        return deform_conv(x, offset, mask, self.weight, self.bias)

    def _offsets(self, corrections: Tensor, flows: tuple[Tensor, ...]) -> Tensor:
        """Return offset = flow + max_residual * tanh(correction), (n, 18 g, h, w).

        The result is float32 or float64, also under autocast. corrections: (n, 18 g, h, w). flows:
        one for each source, (n, 2, h, w), in the order x, y.
        """
        n, _, h, w = corrections.shape
        precise = torch.promote_types(corrections.dtype, torch.float32)
        residual = torch.tanh(corrections.to(precise))
        # (n, source, group and tap, dy dx, h, w). E.g. 16 groups, 2 sources: a source has 8 groups
        # of 9 taps, so the third axis has 72 entries.
        residual = residual.view(n, self.source_count, -1, 2, h, w)
        flow = torch.stack(flows, dim=1)  # (n, source, x y, h, w)
        flow = flow.flip(2)  # (n, source, y x, h, w): the order of dy and dx
        flow = flow.unsqueeze(2)  # (n, source, 1, y x, h, w): one flow for all groups and taps
        offset = torch.add(flow, residual, alpha=self.max_residual)
        return offset.view(n, -1, h, w)

    def _sources_and_flows(
        self, neighbours: tuple[Tensor, ...]
    ) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """Divide the arguments of a step into the sources and their flows."""
        return neighbours[: self.source_count], neighbours[self.source_count :]

    def transient(self, target: Tensor) -> int:
        """Estimate the memory that the backward pass takes on a GPU, in bytes.

        The tensors that forward saves are not counted, because the caller, fit_memory.py, counts
        them. The result is 2 to 10 % above counts of all tensors, and test_fake_gpu.py compares
        them again. If you change what is recomputed, change this estimate, too.

        target: the target frames, (n, d, h, w).
        """
        if in_cpu_form(target):
            # A CPU takes a few frames at a time (MOST_PIXELS_ON_CPU), so the tensors are small.
            return 0
        n, d, h, w = target.shape
        # Numbers per pixel of a frame.
        offsets_and_masks = 3 * TAPS * self.offset_groups
        inputs_of_conv_net = (1 + self.source_count) * d
        samples = TAPS * self.source_count * d

        # What is in memory for all frames:
        #     three copies of offsets and masks: themselves, their gradients, and a float32 form
        #     four copies of the conv net's input
        #     the gradient of the result, d numbers
        for_all_frames = n * (3 * offsets_and_masks + 4 * inputs_of_conv_net + d)
        # What is in memory for the frames that are sampled at a time.
        if has_deform_conv(target):
            for_sampled_frames = _frames_at_once_in_torchvision(n) * samples
        else:
            # `_columns` samples all frames at once, and there are four copies of the samples: the
            # samples, their products with the masks, and the gradients of both.
            for_sampled_frames = n * 4 * samples
        bytes_per_number = 4  # float32
        return h * w * bytes_per_number * (for_all_frames + for_sampled_frames)


def _frames_at_once_in_torchvision(n: int) -> int:
    """Return how many of n frames torchvision's kernel for GPUs samples at a time.

    It divides the frames into batches of equal size. So the size is the largest divisor of n up to
    its limit, e.g. 20 of 40 frames.
    """
    largest = 1
    for count in range(1, MOST_FRAMES_OF_TORCHVISION + 1):
        if n % count == 0:
            largest = count
    return largest


# ---- Alignment of a clip ---------------------------------------------------------------------

# Most pixels in one batch of a deformable convolution on a CPU. Larger batches would not fit the
# cache, smaller batches would need more calls. A batch has at least one frame, even if the frame is
# larger. A GPU takes all frames at once. Another number also changes the last bits of the gradients
# of the weights, because they are summed batch by batch.
MOST_PIXELS_ON_CPU = 1024


def align_clip(
    module: DeformAlign, x: Tensor, backward: list[Tensor], forward: list[Tensor]
) -> tuple[Tensor, Tensor]:
    """Align to every frame its later neighbours, and its earlier neighbours.

    x: (B, N, C, H, W). backward, forward: flows of the distances 1, 2, ... (flow.FlowsOfLevel).
    A backward flow warps a later frame to an earlier frame. A forward flow warps an earlier frame
    to a later frame.

    Returns two clips of the shape of x: the aligned later neighbours, and the aligned earlier
    neighbours. A neighbour outside the clip counts as a frame of zeros with a flow of zero. The
    last frame has no later neighbour, so its result is zero in the first clip. The first frame has
    no earlier neighbour, so its result is zero in the second clip.
    """
    frames = x.transpose(0, 1)  # (N, B, C, H, W): consecutive frames form a batch without a copy
    backward = [flow.transpose(0, 1) for flow in backward]
    forward = [flow.transpose(0, 1) for flow in forward]
    # Later neighbours are warped back in time, so they need the backward flows.
    later = _align_side(module, frames, backward, is_later=True)
    earlier = _align_side(module, frames, forward, is_later=False)
    return later.transpose(0, 1), earlier.transpose(0, 1)


def _align_side(module: DeformAlign, frames: Tensor, flows: list[Tensor], is_later: bool) -> Tensor:
    """Align the neighbours on one side to each frame: (N, B, C, H, W) -> the same shape.

    flows: for the distances 1, 2, ..., each (N - distance, B, 2, H, W).
    is_later: whether the neighbours are later than the frame, or earlier.

    test_vrt_modules.py compares the result and its gradients with the published network.
    """
    n = len(frames)
    targets = frames[:-1] if is_later else frames[1:]  # all frames with a neighbour on this side

    # For each distance, find the neighbour of each target, and the flow to it. Near an end of the
    # clip a far neighbour is missing. So put zeros in its place, and a flow of zeros. E.g. 4
    # frames, later neighbours: the targets are 0 1 2. The sources at distance 1 are 1 2 3, at
    # distance 2 they are 2 3 and zeros.
    sources = []
    source_flows = []
    for distance, flow in enumerate(flows, start=1):
        missing = distance - 1
        if is_later:
            source = frames[distance:]
            sources.append(_with_zeros_behind(source, missing))
            source_flows.append(_with_zeros_behind(flow, missing))
        else:
            source = frames[: n - distance]
            sources.append(_with_zeros_before(source, missing))
            source_flows.append(_with_zeros_before(flow, missing))

    aligned = _align_targets(module, targets, sources, source_flows)
    # Add zeros for the frame without a neighbour on this side.
    if is_later:
        return _with_zeros_behind(aligned, count=1)
    return _with_zeros_before(aligned, count=1)


def _align_targets(
    module: DeformAlign, targets: Tensor, sources: list[Tensor], flows: list[Tensor]
) -> Tensor:
    """Align the sources to the targets, some targets at a time.

    targets: (targets, B, C, H, W). sources: the same shape, one tensor for each distance. flows:
    (targets, B, 2, H, W), one tensor for each distance.

    Returns the shape of `targets`.
    """
    count, b, _, h, w = targets.shape
    targets_at_a_time = count
    if in_cpu_form(targets):
        # One target, even if it has more pixels.
        targets_at_a_time = max(1, MOST_PIXELS_ON_CPU // (b * h * w))
    results = []
    for first in range(0, count, targets_at_a_time):
        batch = slice(first, first + targets_at_a_time)
        # Join the targets and the clips to one batch: (targets, B, ...) -> (targets B, ...).
        some_sources = [source[batch].flatten(0, 1) for source in sources]
        some_flows = [flow[batch].flatten(0, 1) for flow in flows]
        some_targets = targets[batch].flatten(0, 1)
        results.append(module(some_sources, some_targets, some_flows))
    return torch.cat(results).view(targets.shape)


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

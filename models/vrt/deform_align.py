"""Align the features of neighbouring frames to a frame, by a deformable convolution.

The convolution samples a neighbour at shifted positions. The shift (offset) is the optical flow
plus a small correction, which a conv net estimates:

    offset = flow + max_residual * tanh(correction)

Letters: n images of h x w pixels, d channels of a frame, g offset groups (the channels of a group
have the same offsets). Each offset group has nine taps, the positions of a 3x3 kernel.

What must stay, and which test notices (in tests/parts/models):

    the names of modules, and the order of the conv
    net's inputs, because the released weights rely
    on them                                             test_vrt_modules.py
    the order in which parameters are drawn, which
    decides the initial weights of a seed               test_exact_step.py
    what is in memory on a GPU                          test_fake_gpu.py

Free to change: what backward recomputes, if the estimate in memory/transient.py changes with it.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn

from models.vrt.deform_conv import TAPS, deform_conv
from models.vrt.flow_warp import flow_warp
from models.vrt.forms import in_cpu_form
from models.vrt.recompute import recompute_in_backward


class DeformAlign(nn.Module):
    """Flow-guided deformable convolution: offsets are the flow plus a correction.

    A conv net sees the target frame, the source frames warped to the target, and the flows. For
    each sample it estimates a correction of the flow, and a factor (mask). Then the sources are
    sampled at the corrected positions.

    dim: channels of a frame.
    deformable_groups: number of offset groups. The channels of a group have the same offsets.
    sources: number of source frames that are aligned to a target. An output channel sees all
        channels of one source, and no channel of another source. E.g. dim 120, 2 sources, 16 offset
        groups:

                            source 0    source 1
            input channels    0...119   120...239
            offset groups     0...7       8...15    15 channels each
            output channels   0...59     60...119

        So `weight` is (dim, dim, 3, 3), although the input has sources x dim channels.
    max_residual: largest correction, in pixels.

    `weight`, `bias`, `conv_offset` and the positions of its layers are names in the released
    weights.
    """

    def __init__(self, dim: int, deformable_groups: int, sources: int, max_residual: float) -> None:
        super().__init__()
        self.offset_groups = deformable_groups
        self.source_count = sources
        self.max_residual = max_residual
        self.weight = nn.Parameter(torch.empty(dim, dim, 3, 3))
        self.bias = nn.Parameter(torch.zeros(dim))
        # The range of the initial weights, as published. torch's convolutions have the same range,
        # 1 / sqrt(numbers that an output reads). Here an output reads 9 dim numbers. E.g. dim = 96:
        # 1 / sqrt(864) = 0.034.
        limit = 1.0 / math.sqrt(9 * dim)
        nn.init.uniform_(self.weight, -limit, limit)

        # The conv net takes the warped sources, the target, and the flows (2 numbers each). For
        # each group and tap (a position of the 3x3 kernel) it returns a correction (2 numbers) and
        # a factor: 3 numbers.
        inputs = (1 + sources) * dim + 2 * sources
        outputs = 3 * TAPS * deformable_groups
        # The layers, and the slope 0.1 for negative values, are as in the published network.
        self.conv_offset = nn.Sequential(
            nn.Conv2d(inputs, dim, kernel_size=3, padding=1),
            nn.LeakyReLU(0.1, inplace=True),
            nn.Conv2d(dim, dim, kernel_size=3, padding=1),
            nn.LeakyReLU(0.1, inplace=True),
            nn.Conv2d(dim, dim, kernel_size=3, padding=1),
            nn.LeakyReLU(0.1, inplace=True),
            nn.Conv2d(dim, outputs, kernel_size=3, padding=1),
        )
        # The last layer begins with zeros. So at first the corrections are tanh(0) = 0, which means
        # that the offsets are the flow, and the factors are sigmoid(0) = 0.5.
        last_layer: Any = self.conv_offset[-1]
        nn.init.zeros_(last_layer.weight)
        nn.init.zeros_(last_layer.bias)

    def forward(self, sources: list[Tensor], target: Tensor, flows: list[Tensor]) -> Tensor:
        """Align the sources to the target, and combine them: (n, d, h, w).

        sources: nearest first, each (n, d, h, w), where d is `dim`.
        target: (n, d, h, w).
        flows: for each source the flow that warps it to the target, (n, 2, h, w).
        """
        # There are two steps: `_run_conv_net`, and `_sample_sources`, the deformable convolution.
        # Each source and each flow is an argument of its own, because `recompute_in_backward` finds
        # no tensors within lists. Backward recomputes:
        #
        #     under torch.compile   nothing
        #     on a CPU              the second step. Its samples are nine times as large as the
        #                           input, but cost little time. The convolutions of the first step
        #                           cost much time, so their results are kept
        #     on a GPU              both steps. A GPU computes the convolutions fast, but their
        #                           inputs would take too much memory
        neighbours = (*sources, *flows)  # `_sources_and_flows` takes them apart
        if torch.compiler.is_compiling():
            return self._both_steps(target, *neighbours)
        if in_cpu_form(target):
            conv_output = self._run_conv_net(target, *neighbours)
            weights = (self.weight, self.bias)
            return recompute_in_backward(
                self._sample_sources, conv_output, *neighbours, weights=weights
            )
        return recompute_in_backward(
            self._both_steps, target, *neighbours, weights=self.parameters()
        )

    def _both_steps(self, target: Tensor, *neighbours: Tensor) -> Tensor:
        """Run the conv net, then sample the sources. Returns (n, d, h, w).

        neighbours: the sources, then their flows.
        """
        return self._sample_sources(self._run_conv_net(target, *neighbours), *neighbours)

    def _run_conv_net(self, target: Tensor, *neighbours: Tensor) -> Tensor:
        """Run the conv net: corrections before tanh, and factors before the sigmoid.

        neighbours: the sources, then their flows.

        Returns (n, 27 g, h, w): 18 g corrections, then 9 g factors. g is the number of offset
        groups. Each group has 9 taps, and each tap has two corrections and a factor.
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

        conv_output: result of `_run_conv_net`.
        neighbours: the sources, then their flows.
        """
        sources, flows = self._sources_and_flows(neighbours)
        x = sources[0] if self.source_count == 1 else torch.cat(sources, dim=1)
        # E.g. 16 offset groups: 288 channels of corrections, and 144 channels of factors.
        corrections, factors = conv_output.split(
            (2 * TAPS * self.offset_groups, TAPS * self.offset_groups), dim=1
        )
        offset = self._offsets(corrections, flows)
        mask = torch.sigmoid(factors)
        return deform_conv(x, offset, mask, self.weight, self.bias)

    def _offsets(self, corrections: Tensor, flows: tuple[Tensor, ...]) -> Tensor:
        """Return offset = flow + max_residual * tanh(correction), (n, 18 g, h, w).

        The result is float32 or float64, also under autocast.

        corrections: (n, 18 g, h, w).
        flows: one for each source, (n, 2, h, w), in the order x, y.
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
        """Divide the arguments of a step into the sources and their flows.

        E.g. 2 sources: (source 0, source 1, flow 0, flow 1). `forward` joins them in this order.
        """
        return neighbours[: self.source_count], neighbours[self.source_count :]

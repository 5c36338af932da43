"""Convolutions applied per frame, and the upsampling for super-resolution."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn


class FrameConv(nn.Conv3d):
    """3x3 convolution of frames (n, C, H, W); its weight has the shape of the checkpoints, (C', C, 1, 3, 3)."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs, (1, 3, 3), padding=(0, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(x, self.weight[:, :, 0], self.bias, padding=1)


class Upsample(nn.Module):
    """Upscaling of frames (n, channels, H, W) by 2^k or 3 with pixel shuffles, then a convolution.

    Children are named 0, 5, 10, ... as in the released checkpoints.
    """

    def __init__(self, scale: int, channels: int) -> None:
        super().__init__()
        self.factors = [3] if scale == 3 else [2] * (scale.bit_length() - 1)
        for step, factor in enumerate(self.factors):
            self.add_module(str(5 * step), FrameConv(channels, factor * factor * channels))
        self.add_module(str(5 * len(self.factors)), FrameConv(channels, channels))

    def forward(self, x: Tensor) -> Tensor:
        convs = list(self.children())
        for conv, factor in zip(convs, self.factors, strict=False):
            x = F.leaky_relu(F.pixel_shuffle(conv(x), factor), 0.1)
        return convs[-1](x)

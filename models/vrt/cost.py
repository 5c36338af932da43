"""FLOPs of a VRT, counted from its shapes; benchmarks divide them by the measured time."""

from __future__ import annotations

import math

from torch import nn

from models.vrt.block import Block
from models.vrt.deform_align import DeformAlign
from models.vrt.frame_conv import FrameConv
from models.vrt.spynet import SpyNet
from models.vrt.stage import RefineLayer, Stage


def flops(net: nn.Module, size: tuple[int, int, int, int]) -> dict[str, float]:
    """FLOPs (two per multiply-add) of one forward pass on (batch, frames, height, width), per part of the network.

    "mutual attention": all attention in the blocks that have mutual attention.
    """
    batch, frames, height, width = size
    pixels, pairs = batch * frames * height * width, 2 * batch * (frames - 1) * height * width
    parts = ("flow", "alignment", "mutual attention", "self attention", "MLP", "convolutions", "linears")
    work = dict.fromkeys(parts, 0.0)
    scales = dict(zip((f"stage{i}" for i in range(1, 8)), (1, 2, 4, 8, 4, 2, 1), strict=True))
    for name, part in net.named_children():
        scale = scales.get(name, 1)
        area = scale**2
        if isinstance(part, SpyNet):
            work["flow"] += pairs * sum(2 * _weight_count(part.basic_module[i]) / 4 ** (5 - i) for i in range(6))
        elif isinstance(part, Stage) or name == "stage8":
            for block in (m for m in part.modules() if isinstance(m, Block)):
                attention, mlp = block_flops(block, (batch, frames, height // scale, width // scale))
                work["mutual attention" if block.attn.mutual else "self attention"] += attention
                work["MLP"] += mlp
            owners = (m for m in part.modules() if isinstance(m, Stage | RefineLayer | nn.Sequential))
            linears = [m for owner in owners for m in owner.children()]
            work["linears"] += pixels / area * 2 * sum(m.weight.numel() for m in linears if isinstance(m, nn.Linear))
            if isinstance(part, Stage) and part.aligns:
                align: DeformAlign = part.pa_deform
                work["alignment"] += pairs / area * 2 * (_weight_count(align.conv_offset) + align.weight.numel())
                work["MLP"] += pixels / area * 2 * _weight_count(part.pa_fuse)
        elif name in ("norm", "conv_after_body"):
            work["linears"] += pixels * 2 * _weight_count(part)
        else:
            kernels = sum(m.weight.numel() for m in part.modules() if isinstance(m, FrameConv | nn.Linear | nn.Conv2d))
            work["convolutions"] += pixels * 2 * kernels
    return work


def _weight_count(module: nn.Module) -> int:
    """Parameters without the biases."""
    return sum(p.numel() for p in module.parameters() if p.dim() > 1)


def block_flops(block: Block, size: tuple[int, int, int, int]) -> tuple[float, float]:
    """FLOPs of the attention and of the MLP of a block, on tokens (batch, frames, height, width)."""
    batch, *volume = size
    window = [min(s, w) for s, w in zip(volume, block.window, strict=True)]
    padded = batch * math.prod(-(-s // w) * w for s, w in zip(volume, window, strict=True))
    length, channels = math.prod(window), block.attn.proj.out_features
    linears = sum(m.weight.numel() for m in block.attn.children())
    # Mutual attention adds the products within half a window.
    pairs = (3 if block.attn.mutual else 2) * length * channels
    return padded * 2.0 * (linears + pairs), batch * math.prod(volume) * 2.0 * _weight_count(block.mlp)

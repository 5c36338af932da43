"""The stages of VRT on tokens (B, N, H, W, C): resampling, attention, alignment of neighbouring frames."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from models.vrt.block import BlockGroup
from models.vrt.chunks import GatedMlp
from models.vrt.deform_align import DeformAlign, align_clip
from models.vrt.layers import LayerNorm


class FoldPatches(nn.Module):
    """2x2 patches to channels, (B, N, H, W, C) -> (B, N, H/2, W/2, 4C); channel order: column (slowest), row, C."""

    def forward(self, x: Tensor) -> Tensor:
        b, n, h, w, c = x.shape
        return x.view(b, n, h // 2, 2, w // 2, 2, c).permute(0, 1, 2, 4, 5, 3, 6).reshape(b, n, h // 2, w // 2, 4 * c)


class UnfoldPatches(nn.Module):
    """The inverse of FoldPatches, (B, N, H, W, 4C) -> (B, N, 2H, 2W, C)."""

    def forward(self, x: Tensor) -> Tensor:
        b, n, h, w, c = x.shape
        return x.view(b, n, h, w, 2, 2, c // 4).permute(0, 1, 2, 5, 3, 4, 6).reshape(b, n, 2 * h, 2 * w, c // 4)


def reshape_layer(kind: str, inputs: int, dim: int) -> nn.Sequential:
    """Entry of a stage: "none" (LayerNorm), "down" (scale 1/2) or "up" (scale 2)."""
    if kind == "none":
        return nn.Sequential(nn.Identity(), LayerNorm(dim))
    if kind == "down":
        return nn.Sequential(FoldPatches(), LayerNorm(4 * inputs), nn.Linear(4 * inputs, dim))
    return nn.Sequential(UnfoldPatches(), LayerNorm(inputs // 4), nn.Linear(inputs // 4, dim))


class Stage(nn.Module):
    """Stages 1 to 7: blocks with mutual attention, blocks with self attention, then fusion with aligned neighbours.

    kind, inputs: see reshape_layer. mutual_depth: number of blocks with mutual attention. pa_frames: 0 = no alignment,
    else 2, 4 or 6 neighbours. scale: size of the network's input over that of this stage. kernels, block: see Block.
    """

    def __init__(
        self,
        kind: str,
        inputs: int,
        dim: int,
        depth: int,
        heads: int,
        window: tuple[int, int, int],
        mutual_depth: int,
        drop_path: list[float],
        pa_frames: int,
        deformable_groups: int,
        scale: int,
        kernels: str = "auto",
        **block: Any,
    ) -> None:
        super().__init__()
        self.reshape = reshape_layer(kind, inputs, dim)
        pair = (2, *window[1:])
        self.residual_group1 = BlockGroup(dim, mutual_depth, heads, pair, True, drop_path, kernels=kernels, **block)
        self.linear1 = nn.Linear(dim, dim)
        self.residual_group2 = BlockGroup(
            dim, depth - mutual_depth, heads, window, False, drop_path, kernels=kernels, **block
        )
        self.linear2 = nn.Linear(dim, dim)
        self.aligns = pa_frames > 0
        if self.aligns:
            self.pa_deform = DeformAlign(dim, deformable_groups, pa_frames // 2, 10.0 / scale)
            self.pa_fuse = GatedMlp(3 * dim, 3 * dim, dim, block.get("checkpoint_ffn", False), kernels)

    def forward(self, x: Tensor, backward: list[Tensor], forward: list[Tensor]) -> Tensor:
        """x: (B, N, H, W, C) at the previous scale; backward, forward: flows at this stage's scale, nearest first."""
        x = self.reshape(x)
        x = x + self.linear1(self.residual_group1(x))
        x = x + self.linear2(self.residual_group2(x))
        if not self.aligns:
            return x
        later, earlier = align_clip(self.pa_deform, x.permute(0, 1, 4, 2, 3), backward, forward)
        return self.pa_fuse(torch.cat((x, later.permute(0, 1, 3, 4, 2), earlier.permute(0, 1, 3, 4, 2)), dim=-1))


class RefineLayer(nn.Module):
    """One layer of stage 8: self attention at full resolution, then a linear layer, with a residual connection."""

    def __init__(
        self, dim: int, depth: int, heads: int, window: tuple[int, int, int], drop_path: list[float], **block: Any
    ) -> None:
        super().__init__()
        self.residual_group = BlockGroup(dim, depth, heads, window, False, drop_path, **block)
        self.linear = nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.linear(self.residual_group(x))

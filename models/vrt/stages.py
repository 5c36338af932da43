"""The stages of VRT on tokens (B, N, H, W, C): groups of blocks, the resolution, and the alignment.

    Stage           one of the stages 1 to 7: change of resolution, mutual attention, self
                    attention, aligned neighbours
    RefineLayer     one layer of stage 8: only self attention
    BlockGroup      a sequence of blocks. Every second block has shifted windows
    FoldPatches     halves height and width
    UnfoldPatches   doubles height and width

Letters: B clips, N frames (D in block.py), H x W pixels, one token each, C channels.

What must stay, and which test notices (in tests/parts/models):

    module attributes, which name the released weights  test_vrt_modules.py loads such names
    the order in which layers are built, which decides
    their random initial weights                        test_exact_step.py has stored results
    the order of channels in a folded patch             test_network_vrt.py

Free to change: how blocks are called, e.g. with other options.
"""

from typing import Any

import torch
from torch import Tensor, nn

from models.vrt.align_clip import align_clip
from models.vrt.block import Block
from models.vrt.deform_align import DeformAlign
from models.vrt.forms import Kernels
from models.vrt.gated_mlp import GatedMlp
from models.vrt.layers import LayerNorm


class Stage(nn.Module):
    """One of the stages 1 to 7: mutual attention, self attention, then the aligned neighbours.

    kind: how the first layers of the stage, the entry, change the resolution: "none", "down" (half
        the height and width) or "up" (twice the height and width).
    inputs: channels before the entry. With kind "none", `inputs` is equal to `dim`.
    dim: channels after the entry, in all blocks of the stage.
    depth: number of blocks. The first `mutual_depth` blocks have mutual attention.
    heads, window: arguments of `Block`. block: other arguments of `Block`, by name.
    checkpoint_ffn, kernels: arguments of `Block`, also for the MLP after the alignment.
    drop_path: for each block, the probability of dropping a branch.
    pa_frames: number of neighbours that are aligned to each frame, 2, 4 or 6. 0: no alignment.
    deformable_groups: groups of channels that are sampled at the same shifted positions.
    scale: height of the network's input, divided by the height in this stage (1, 2, 4 or 8).

    What must stay: the attributes, which are names in the released weights, and the order in which
    the layers are built, which decides their random initial weights.
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
        checkpoint_ffn: bool = False,
        kernels: Kernels = "auto",
        **block: Any,
    ) -> None:
        super().__init__()
        block_options = {**block, "checkpoint_ffn": checkpoint_ffn, "kernels": kernels}
        self.reshape = _entry(kind, inputs, dim)

        # Mutual attention is between the two frames of a window, so this window has two frames.
        pair = (2, *window[1:])  # e.g. (2, 8, 8)
        self.residual_group1 = BlockGroup(
            dim, mutual_depth, heads, pair, mutual=True, drop_path=drop_path, **block_options
        )
        self.linear1 = nn.Linear(dim, dim)

        # As in the published network, both groups take their probabilities from the beginning of
        # `drop_path`. E.g. with 6 blocks of mutual attention and 2 blocks of self attention, the
        # first group uses the entries 0 ... 5, the second group the entries 0 and 1, and the
        # entries 6 and 7 are not used.
        self_depth = depth - mutual_depth
        self.residual_group2 = BlockGroup(
            dim, self_depth, heads, window, mutual=False, drop_path=drop_path, **block_options
        )
        self.linear2 = nn.Linear(dim, dim)

        self.aligns = pa_frames > 0
        if self.aligns:
            # An offset differs from the flow by at most 10 pixels of the network's input, i.e. by
            # 10 / scale pixels of this stage. The published weights were trained with this limit.
            most_pixels = 10.0 / scale
            # The neighbours on one side of a frame are aligned together.
            neighbours_on_a_side = pa_frames // 2
            self.pa_deform = DeformAlign(
                dim, deformable_groups, sources=neighbours_on_a_side, max_residual=most_pixels
            )
            self.pa_fuse = GatedMlp(
                inputs=3 * dim,
                hidden=3 * dim,
                outputs=dim,
                checkpoint=checkpoint_ffn,
                kernels=kernels,
            )

    def forward(
        self, x: Tensor, flows_backward: list[Tensor], flows_forward: list[Tensor]
    ) -> Tensor:
        """Run the stage on x (B, N, H, W, C), which has the resolution of the previous stage.

        flows_backward, flows_forward: flows at the resolution of this stage, one for each distance
            1, 2, ... in frames. A backward flow warps a later frame to an earlier frame. A forward
            flow warps an earlier frame to a later frame. Without alignment the flows are not used.
        """
        x = self.reshape(x)
        x = x + self.linear1(self.residual_group1(x))  # mutual attention
        x = x + self.linear2(self.residual_group2(x))  # self attention
        if not self.aligns:
            return x
        # Align the later and the earlier neighbours to each frame. An aligned neighbour shows the
        # same point of the scene at the same pixel as the frame.
        frames = x.permute(0, 1, 4, 2, 3)  # (B, N, C, H, W)
        later, earlier = align_clip(self.pa_deform, frames, flows_backward, flows_forward)
        later = later.permute(0, 1, 3, 4, 2)  # (B, N, H, W, C)
        earlier = earlier.permute(0, 1, 3, 4, 2)
        both = torch.cat((x, later, earlier), dim=-1)  # (B, N, H, W, 3 C)
        return self.pa_fuse(both)


def _entry(kind: str, inputs: int, dim: int) -> nn.Sequential:
    """Build the layers that bring x to the resolution and the channels of a stage.

    The positions of the layers in the sequence are names in the published weights.

    kind, inputs, dim: as in `Stage`.
    """
    if kind == "none":
        # The channels do not change. The Identity takes position 0, so that the norm has the
        # published position 1.
        return nn.Sequential(nn.Identity(), LayerNorm(dim))
    if kind == "down":
        patches = FoldPatches()
        folded_channels = 4 * inputs  # a patch of 2x2 pixels becomes one pixel
    else:
        patches = UnfoldPatches()
        folded_channels = inputs // 4  # a pixel becomes a patch of 2x2 pixels
    return nn.Sequential(patches, LayerNorm(folded_channels), nn.Linear(folded_channels, dim))


class RefineLayer(nn.Module):
    """One layer of stage 8: x + linear(blocks(x)), at full resolution, with only self attention.

    dim: number of channels.
    depth: number of blocks.
    drop_path: for each block, the probability of dropping a branch.
    heads, window, block: arguments of `Block`.
    """

    def __init__(
        self,
        dim: int,
        depth: int,
        heads: int,
        window: tuple[int, int, int],
        drop_path: list[float],
        **block: Any,
    ) -> None:
        super().__init__()
        self.residual_group = BlockGroup(
            dim, depth, heads, window, mutual=False, drop_path=drop_path, **block
        )
        self.linear = nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        """Run the layer: x (B, N, H, W, C) -> the same shape."""
        return x + self.linear(self.residual_group(x))


class BlockGroup(nn.Sequential):
    """A sequence of `depth` blocks on tokens (B, N, H, W, C).

    The windows of every second block are shifted by half a window. E.g. windows of 6 x 8 x 8 tokens
    are shifted by (3, 4, 4).

    mutual: whether the blocks also have attention between the two frames of a window.
    drop_path: for each block, the probability of dropping a branch. Entries beyond `depth` are
        ignored.
    block: other arguments of `Block`, by name.
    """

    def __init__(
        self,
        dim: int,
        depth: int,
        heads: int,
        window: tuple[int, int, int],
        mutual: bool,
        drop_path: list[float],
        **block: Any,
    ) -> None:
        super().__init__()
        # A shifted window covers parts of several windows of the block before, so that information
        # passes from window to window.
        frames, height, width = window
        half_window = (frames // 2, height // 2, width // 2)
        self.blocks = nn.Sequential()
        for block_index in range(depth):
            is_shifted = block_index % 2 == 1
            shift = half_window if is_shifted else (0, 0, 0)
            drop_probability = drop_path[block_index]
            self.blocks.append(
                Block(dim, heads, window, shift, mutual, drop_path=drop_probability, **block)
            )


class FoldPatches(nn.Module):
    """Moves 2x2 patches of pixels to channels: (B, N, H, W, C) -> (B, N, H/2, W/2, 4C).

    What must stay: the order of the channels, because the published weights rely on it. The first C
    channels are the pixel (row 0, column 0) of the patch. The next channels are the pixels (1, 0),
    (0, 1) and (1, 1).
    """

    def forward(self, x: Tensor) -> Tensor:
        """Return the patches as channels. H and W must be even."""
        b, n, h, w, c = x.shape
        x = x.view(b, n, h // 2, 2, w // 2, 2, c)  # (b, n, h/2, row, w/2, column, c)
        x = x.permute(0, 1, 2, 4, 5, 3, 6)  # (b, n, h/2, w/2, column, row, c)
        return x.reshape(b, n, h // 2, w // 2, 4 * c)


class UnfoldPatches(nn.Module):
    """The inverse of FoldPatches: (B, N, H, W, 4C) -> (B, N, 2H, 2W, C)."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the channels as patches. The number of channels must be a multiple of 4."""
        b, n, h, w, c = x.shape  # here c is 4C
        x = x.view(b, n, h, w, 2, 2, c // 4)  # (b, n, h, w, column, row, c/4)
        x = x.permute(0, 1, 2, 5, 3, 4, 6)  # (b, n, h, row, w, column, c/4)
        return x.reshape(b, n, 2 * h, 2 * w, c // 4)

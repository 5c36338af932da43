"""Restore a few frames tile by tile in space, and blend the tiles.

`restore_space` cuts the frames into rectangles, runs the network on each rectangle, and adds the
results, times their weights, to one sum. At the end it divides this sum by the sum of the weights.

stream.py passes the frames of one tile in time, and gets these frames restored. Notebooks call
`restore_space` on tensors directly (docs/python.md). `run_padded` (padding.py) reads some fields of
a `Tiling`, and this file reads five:

    spec                      only its field `scale`, the scale of the network
    size_patch_testing        side of a tile in pixels, 0 for the whole frame
    size_patch_overlapping    pixels by which neighbouring tiles overlap
    batch_tiles               number of tiles in a pass of the network
    blend                     how tiles are blended

Shapes: B clips, n frames, C channels of a blurry frame, S spike channels, H x W pixels. A result
has C' channels (the colours of all its instants) and sH x sW pixels, where s is the scale of the
network.

What must stay: the order in which tiles are added, because another order changes the last bits. No
test notices the order.

Tests: tests/parts/models/test_tiling.py
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from models.restore.tiles.blending import blend_weights
from models.restore.tiles.padding import run_padded
from models.restore.tiles.plan import WHOLE, Tiling, tile_starts
from utils.contract import Tick


class _Patch(NamedTuple):
    """A tile in space, in pixels of the input, called a patch in the code and in option keys.

    E.g. frames of 400 x 256 pixels, in tiles of 256 x 256 that overlap by 20: the lower tile has
    row 1, top 144, column 0, left 0.
    """

    row: int  # number of the tile along the height, from 0
    top: int  # its first row of pixels
    column: int  # number of the tile along the width, from 0
    left: int  # its first column of pixels
    height: int
    width: int

    def area(self, scale: int = 1) -> tuple[slice, slice]:
        """Return the rows and the columns of pixels that the tile covers.

        scale: 1 for pixels of the input, the scale of the network for pixels of its output.
        """
        rows = slice(self.top * scale, (self.top + self.height) * scale)
        columns = slice(self.left * scale, (self.left + self.width) * scale)
        return rows, columns


def restore_space(
    net: Callable[..., Tensor],
    inputs: tuple[Tensor, ...],
    tiling: Tiling,
    tick: Tick = lambda part: None,
) -> Tensor:
    """Restore one tile in time, tile by tile in space: (B, n, C', sH, sW) on the CPU.

    net: function that takes the tensors `inputs` of a tile, and returns (B, n, C', s * tile height,
        s * tile width).
    inputs: the n frames lq (B, n, C, H, W), and if there are spikes, the spike channels (B, n, S,
        H, W).
    tick: function that is called after each batch of tiles. It gets the fraction of all tiles that
        are in the batch, e.g. 0.25 for 2 of 8 tiles. The default does nothing.
    """
    height, width = inputs[0].shape[-2:]
    scale = tiling.spec.scale
    tile_height, tile_width = _size_of_tile(height, width, tiling)
    tops = tile_starts(height, tile_height, tiling.size_patch_overlapping)
    lefts = tile_starts(width, tile_width, tiling.size_patch_overlapping)
    if len(tops) == 1 and len(lefts) == 1:
        whole = run_padded(net, inputs, tiling)
        tick(1)  # all work is done
        return whole

    # List all tiles, row by row from the top, and from left to right in a row.
    patches = []
    for row, top in enumerate(tops):
        for column, left in enumerate(lefts):
            patches.append(_Patch(row, top, column, left, tile_height, tile_width))

    # The weighted sum of the tiles, and the sum of their weights. `total` is made after the first
    # pass of the network, because only the result tells the number of its channels C'.
    total = torch.empty(0)
    total_weight = torch.zeros(height * scale, width * scale)
    for first in range(0, len(patches), tiling.batch_tiles):
        batch = patches[first : first + tiling.batch_tiles]
        results = _restore_patches(net, inputs, batch, tiling)
        if first == 0:
            leading_axes = results[0].shape[:-2]  # (B, n, C')
            total = results[0].new_zeros(*leading_axes, height * scale, width * scale)
        # Add each result, times its weight, to the pixels of its tile, in place.
        for patch, result in zip(batch, results, strict=True):
            weight = _patch_weight(patch, tops, lefts, tiling)  # float32. `result` may be float64
            rows, columns = patch.area(scale)
            total[..., rows, columns] += result * weight.to(result.dtype)
            total_weight[rows, columns] += weight
        share_of_batch = len(batch) / len(patches)
        tick(share_of_batch)
    return total.div_(total_weight.to(total.dtype))


def _size_of_tile(height: int, width: int, tiling: Tiling) -> tuple[int, int]:
    """Return height and width of a tile, in pixels of the input. A small frame is a single tile."""
    side = tiling.size_patch_testing
    if side == WHOLE:
        return height, width
    return min(side, height), min(side, width)


def _patch_weight(patch: _Patch, tops: list[int], lefts: list[int], tiling: Tiling) -> Tensor:
    """Return the weight of each output pixel of a tile, (s * tile height, s * tile width).

    s is the scale of the network.

    tops, lefts: first rows and first columns of all tiles, in pixels of the input.
    """
    scale = tiling.spec.scale
    # `blend_weights` counts in pixels of the output, so "smooth" needs the overlap times the scale.
    # "kair" takes the overlap as it is, as the published code does: with an overlap of 20, it trims
    # 10 output pixels at the border of a tile, at any scale.
    overlap = tiling.size_patch_overlapping
    if tiling.blend == "smooth":
        overlap *= scale
    along_height = blend_weights(tops, patch.row, patch.height * scale, overlap, tiling.blend)
    along_width = blend_weights(lefts, patch.column, patch.width * scale, overlap, tiling.blend)
    return along_height[:, None] * along_width


def _restore_patches(
    net: Callable[..., Tensor],
    inputs: tuple[Tensor, ...],
    batch: Sequence[_Patch],
    tiling: Tiling,
) -> tuple[Tensor, ...]:
    """Restore several tiles in one pass of the network, in which each tile is a clip of its own.

    inputs: lq and perhaps the spike channels of the whole frames, (B, n, channels, H, W) each.

    Returns a tensor for each tile, (B, n, C', s * tile height, s * tile width).
    """
    stacked = []
    for x in inputs:
        cut_tiles = []  # (B, n, channels, tile height, tile width) each
        for patch in batch:
            rows, columns = patch.area()
            cut_tiles.append(x[..., rows, columns])
        stacked.append(torch.cat(cut_tiles))  # (tiles * B, n, channels, tile height, tile width)
    restored = run_padded(net, tuple(stacked), tiling)
    clip_count = len(inputs[0])  # B
    return restored.split(clip_count)

"""Weigh the pixels of overlapping tiles, so that the tiles join without a seam.

A pixel of the result is a weighted mean over the tiles that contain this pixel:

    result = sum of (weight of a tile * its result) / sum of the weights

So the weights need not sum to 1, but each pixel needs a tile with a weight above 0.

`blend_weights` takes the starts of all tiles along one axis, and the index of one tile. It returns
the weights of this tile along this axis. space.py multiplies the weights along height and width.
stream.py uses the weights along the time.

What must stay: the blend "kair", because it is the blend of the published code (the project KAIR).
test_published_tiling_is_reproduced compares this blend with the published code. Free to change: the
blend "smooth", if no weight is 0.

Tests: tests/parts/models/test_tiling.py
"""

import math

import torch
from torch import Tensor


def blend_weights(
    starts: list[int], tile_index: int, size: int, overlap: int, blend: str
) -> Tensor:
    """Return the weights (size,) of one tile along one axis, in time or in space.

    The weights are 1, except where the tile overlaps a neighbour.

    starts: starts of all tiles along the axis.
    tile_index: which of these tiles, from 0.
    size, overlap: size of the tile and overlap of neighbours, in pixels or frames of the result.
    blend: "kair" or "smooth".
    """
    if blend == "smooth":
        # The ramps must fit into the tile, and the tile may be shorter than the overlap.
        begin, end = _smooth_ramps(min(overlap, size))
    else:
        begin, end = _kair_ramps(overlap)
    weights = torch.ones(size)
    has_tile_before = tile_index > 0
    has_tile_after = tile_index < len(starts) - 1
    if has_tile_before:
        weights[: len(begin)] *= begin
    if has_tile_after:
        weights[size - len(end) :] *= end
    return weights


def _smooth_ramps(overlap: int) -> tuple[Tensor, Tensor]:
    """Return the weights at the start and at the end of a tile, (overlap,) each.

    The weights at the start rise from nearly 0 to nearly 1, along half a period of a cosine. The
    weights at the end fall in the same way. No weight is 0, because the sum of the weights is a
    divisor.
    """
    # The middles of `overlap` equal steps from 0 to pi. E.g. overlap 2: pi / 4, 3 pi / 4, so the
    # weights at the start are 0.15, 0.85, and at the end 0.85, 0.15. At each pixel, the weights of
    # both tiles sum to 1.
    divisor = max(overlap, 1)  # overlap 0 has no steps, but would be a division by 0
    phase = torch.pi * (torch.arange(overlap) + 0.5) / divisor
    begin = 0.5 - 0.5 * torch.cos(phase)
    return begin, begin.flip(0)


def _kair_ramps(overlap: int) -> tuple[Tensor, Tensor]:
    """Return the weights at the start and at the end of a tile: 0 over half of the overlap.

    At each pixel of an overlap, one tile has the weight 1, and the other tile has the weight 0.
    Half of an odd overlap is rounded down at the start of a tile, and up at the end. E.g. an
    overlap of 5 pixels:

                                  |overlap|
        end of a tile        ... 1 1 1 0 0 0
        start of the next          0 0 1 1 1 1 ...
    """
    return torch.zeros(overlap // 2), torch.zeros(math.ceil(overlap / 2))

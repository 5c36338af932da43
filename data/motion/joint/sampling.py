"""Say from which pixels a sample of a picture is made, and with which weights.

A sample is the value of a picture at a position between its pixels, interpolated bilinearly from
four pixels. Pixels are numbered row by row, and W is the width of the picture:

    c            c + 1
          *                     *  the position of the sample
                                c  the corner of the sample: the pixel above and to its left
    c + W        c + W + 1

Beyond the picture its edge is repeated. E.g. a position 3 pixels to the left of the picture has the
value at its left edge. `grid_sample` with padding_mode "border" and align_corners samples in this
way.

What must stay: the weights are as in `grid_sample`, because chunk.py samples with `grid_sample` and
maps back with these weights.

Tests: tests/parts/data/joint/test_sampling.py. With other weights,
test_the_four_weighted_pixels_are_the_sample fails.
"""

from typing import NamedTuple

import torch
from torch import Tensor


def grid_positions(positions: Tensor, size: tuple[int, int]) -> Tensor:
    """Return positions on a picture in the unit of `grid_sample`: -1 (first pixel) to 1 (last).

    E.g. on a picture of 5 x 5 pixels, x = 0, 2 and 4 become -1, 0 and 1.

    positions: (h, w, 2) or (N, h, w, 2), x and y in pixels. size: (H, W) of the picture.
    Returns (1, h, w, 2) or (N, h, w, 2).
    """
    height, width = size
    # The numbers of the last column and the last row. They are at least 1, because a picture of one
    # row would divide by 0.
    last_pixel = torch.tensor([max(width - 1, 1), max(height - 1, 1)], device=positions.device)
    scaled = (positions * (2 / last_pixel)).sub_(1)
    if scaled.ndim == 3:
        return scaled[None]  # grid_sample takes batches of pictures only
    return scaled


class Corners(NamedTuple):
    """The four pixels of each of N samples.

    E.g. a picture of 4 x 4 pixels and a sample at x = 1.5, y = 1: the corner is c = 1 * 4 + 1 = 5,
    `right` is 0.5 and `below` is 0. The pixels 5, 6, 9 and 10 have the weights 0.5, 0.5, 0 and 0.
    """

    corner: Tensor  # (N,) int32: c, the number of the corner of each sample
    # (N,) each, in [0, 1]: how far the sample lies to the right of its corner, and below it.
    right: Tensor
    below: Tensor
    offsets: tuple[int, int, int, int]  # 0, 1, W, W + 1: from c to the four pixels
    pixel_count: int  # P = H * W, number of pixels of the picture


def corners_of(positions: Tensor, size: tuple[int, int]) -> Corners:
    """Return the corners of samples.

    positions: (..., 2), x and y in pixels. 0 is the middle of the first pixel. Positions may lie
    beyond the picture. The tensor `positions` is not changed. Samples are numbered in the order of
    the flattened positions, on which chunk.py relies.
    size: (H, W) of the picture.
    """
    height, width = size
    # A position beyond the picture has the value at the edge.
    x = positions[..., 0].flatten().clamp(0, width - 1)
    y = positions[..., 1].flatten().clamp(0, height - 1)
    # A corner is never in the last row or column, so there are pixels below it and to its right.
    # E.g. a sample in the last column has its corner in the column before, and `right` is 1. A
    # picture of one row has no pixels below. In this case `below` is 0, so the weights of the
    # pixels below are 0. `AdjointOfSums` (adjoint_of_samples.py) relies on these corners and
    # weights.
    column = x.floor().clamp_(max=max(width - 2, 0))
    row = y.floor().clamp_(max=max(height - 2, 0))
    corner = row.int().mul_(width).add_(column.int())
    right = x.sub_(column)  # in place, because these tensors are large
    below = y.sub_(row)
    return Corners(corner, right, below, (0, 1, width, width + 1), height * width)


def weights_of(right: Tensor, below: Tensor) -> Tensor:
    """Return the weights (4, N) of the pixels c, c + 1, c + W and c + W + 1 of N samples.

    right, below: (N,) each, as in `Corners`.
    """
    # All four weights are products. Only [3] is computed as a product. The other weights are
    # computed as differences:
    #     [3]  below * right
    #     [2]  below * (1 - right)          = below - [3]
    #     [1]  (1 - below) * right          = right - [3]
    #     [0]  (1 - below) * (1 - right)    = (1 - below) - [1]
    # The weights are written in place, because this function takes a notable part of the time of a
    # frame.
    weights = right.new_empty(4, len(right))
    torch.mul(below, right, out=weights[3])
    torch.sub(below, weights[3], out=weights[2])
    torch.sub(right, weights[3], out=weights[1])
    torch.sub(1 - below, weights[1], out=weights[0])
    return weights

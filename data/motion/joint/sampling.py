"""Compute the adjoint of sampling a picture at many positions, quickly on a CPU.

data/motion/joint.py calls this module. There, what both cameras see of the sharp frame is written
as sums of samples of the frame. A sample is the value of a picture at a position between its
pixels, interpolated bilinearly from four pixels. Pixels are numbered row by row, and W is the width
of the picture:

    c            c + 1
          *                     *  the position of the sample
                                c  the corner of the sample: the pixel above and to its left
    c + W        c + W + 1

Beyond the picture its edge is repeated. For example, a position 3 pixels to the left of the picture
has the value at its left edge. `grid_sample` with padding_mode "border" and align_corners samples
in this way. The weights here must stay the same as the weights of `grid_sample`, because joint.py
samples with `grid_sample` and goes back with this module.

The adjoint A^T of a linear map A is the map with <A x, y> = <x, A^T y> for all x and y, where < , >
is the sum of the products. Its matrix is the transposed matrix of A. torch has the adjoint of
`grid_sample`: its gradient. But on a CPU this gradient takes five times as long as `grid_sample`
itself, and the joint solution needs it about 20 times for the same positions. So this module sorts
the samples once. Then the adjoint is a product with sparse matrices:

    corners_of       positions -> corner and weights of each sample
    sort_samples     the samples in the order of their corners
    AdjointOfSums    the adjoint of "sample a picture, then add up some of the samples"

N: number of samples. P = H W: number of pixels.

Tests: tests/parts/data/test_sampling.py. test_the_four_weighted_pixels_are_the_sample notices other
weights, and test_the_adjoint_is_the_gradient_of_the_sums a wrong adjoint.
"""

import warnings
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor


def grid_positions(positions: Tensor, size: tuple[int, int]) -> Tensor:
    """Return positions on a picture in the form of `grid_sample`: -1 (first pixel) to 1 (last).

    E.g. on a picture of 5 x 5 pixels, x = 0, 2 and 4 become -1, 0 and 1.
    positions: (h, w, 2) or (N, h, w, 2), x and y in pixels. size: (H, W) of the picture.
    Returns (1, h, w, 2) or (N, h, w, 2).
    """
    height, width = size
    # The last column and the last row. At least 1, because a picture of one row would divide by 0.
    last_pixel = torch.tensor([max(width - 1, 1), max(height - 1, 1)], device=positions.device)
    scaled = (positions * (2 / last_pixel)).sub_(1)
    if scaled.ndim == 3:
        return scaled[None]  # grid_sample takes batches of pictures only
    return scaled


class Corners(NamedTuple):
    """The four pixels of each of N samples, and their weights.

    E.g. a picture of 4 x 4 pixels and a sample at x = 1.5, y = 1: the corner is c = 1 * 4 + 1 = 5,
    and the pixels 5, 6, 9 and 10 have the weights 0.5, 0.5, 0 and 0.
    """

    corner: Tensor  # (N,) int32: c, the number of the corner of each sample
    weights: Tensor  # (4, N): weights of the pixels c, c + 1, c + W and c + W + 1
    offsets: tuple[int, int, int, int]  # 0, 1, W, W + 1: from c to the four pixels
    pixel_count: int  # P


def corners_of(positions: Tensor, size: tuple[int, int]) -> Corners:
    """Return the corners and weights of samples.

    positions: (..., 2), x and y in pixels. 0 is the middle of the first pixel. size: (H, W).
    """
    height, width = size
    # A position beyond the picture has the value at the edge.
    x = positions[..., 0].flatten().clamp(0, width - 1)
    y = positions[..., 1].flatten().clamp(0, height - 1)
    # A corner is never in the last row or column, so there are pixels below it and to its right.
    # For example, a sample in the last column has its corner in the column before, and `right` is
    # 1. A picture of one row has no pixels below: `below` is 0, so their weights are 0.
    column = x.floor().clamp(max=max(width - 2, 0))
    row = y.floor().clamp(max=max(height - 2, 0))
    right = x - column  # distance from the corner, in [0, 1]
    below = y - row

    # The weights are products, which become one product and differences:
    #     [3]  below * right
    #     [2]  below * (1 - right)          = below - [3]
    #     [1]  (1 - below) * right          = right - [3]
    #     [0]  (1 - below) * (1 - right)    = (1 - below) - [1]
    # They are written in place, because this function takes a notable part of the time of a frame.
    weights = right.new_empty(4, len(right))
    torch.mul(below, right, out=weights[3])
    torch.sub(below, weights[3], out=weights[2])
    torch.sub(right, weights[3], out=weights[1])
    torch.sub(1 - below, weights[1], out=weights[0])

    corner = row.int() * width + column.int()
    return Corners(corner, weights, (0, 1, width, width + 1), height * width)


class SortedSamples(NamedTuple):
    """Samples in the order of their corners.

    E.g. samples 0, 1 and 2 with the corners 7, 2 and 7: the numbers 1, 0, 2.
    """

    numbers: Tensor  # (N,) int64: number of each sample before it was sorted
    begins: Tensor  # (P + 1,) int32: the samples of corner c are at begins[c] to begins[c + 1] - 1
    weights: Tensor  # (4, N): weights of the four pixels, see `Corners`
    offsets: tuple[int, int, int, int]  # 0, 1, W, W + 1


def sort_samples(positions: Tensor, size: tuple[int, int]) -> SortedSamples:
    """Sort samples in the order of their corners. Arguments: as in `corners_of`."""
    corners = corners_of(positions, size)
    numbers = _order_of(corners.corner)
    samples_per_corner = torch.bincount(corners.corner, minlength=corners.pixel_count)  # (P,)
    begins = torch.zeros(corners.pixel_count + 1, dtype=torch.int32, device=positions.device)
    begins[1:] = samples_per_corner.cumsum(0)  # begins[0] is 0
    weights = corners.weights.index_select(1, numbers)
    return SortedSamples(numbers, begins, weights, corners.offsets)


def _order_of(values: Tensor) -> Tensor:
    """Return the numbers of values (N,) int32 in ascending order of the values, (N,) int64."""
    if values.device.type != "cpu":
        return torch.argsort(values, stable=True)
    # On a CPU, numpy takes less than half of the time of torch: the corners of a smooth motion are
    # nearly sorted.
    return torch.from_numpy(np.argsort(values.numpy(), kind="stable"))


class AdjointOfSums:
    """The adjoint of a map that samples a picture, then adds up some of the samples.

    The map has the outputs

        y_i = sum over the samples n of output i of f_n x(position of n)

    In joint.py, an output is e.g. a pixel of the blurry frame, which adds up a sample of each group
    of planes, and f is the share of the group.

    samples: the samples of all outputs, sorted.
    output_count: number of outputs.
    output_of: (N,) int32, the number of the output of each sample, in the order of `samples`.
    factors: (N,), f in the order of `samples`. None: all are 1.
    """

    def __init__(
        self,
        samples: SortedSamples,
        output_count: int,
        output_of: Tensor,
        factors: Tensor | None = None,
    ) -> None:
        self._pixel_count = len(samples.begins) - 1
        weights = samples.weights  # (4, N)
        if factors is not None:
            weights = weights * factors
        # A sample has four pixels, so there are four matrices. The matrix with the offset k adds a
        # sample with the corner c to the pixel c + k. Its row c has an entry for each sample of the
        # corner c, in the column of the sample's output. So all four matrices have their entries at
        # the same places, and only the values differ.
        self._matrices = []
        for offset, weights_of_pixel in zip(samples.offsets, weights, strict=True):
            # The last `offset` corners have no pixel c + offset: their weights are 0, and they have
            # no row. A picture of one row has fewer pixels than the offset W + 1, so it has no
            # corner with a pixel: at least 0.
            row_count = max(self._pixel_count - offset, 0)
            begins = samples.begins[: row_count + 1]
            entry_count = int(begins[-1])  # number of samples whose corner has a row
            matrix = csr_matrix(
                begins,
                columns=output_of[:entry_count],
                values=weights_of_pixel[:entry_count],
                shape=(row_count, output_count),
            )
            self._matrices.append((offset, matrix))

    def __call__(self, y: Tensor) -> Tensor:
        """Return the adjoint (P,) or (P, C) of y, which is (outputs,) or (outputs, C)."""
        if y.ndim == 1:
            return self(y[:, None])[:, 0]
        x = y.new_zeros(self._pixel_count, *y.shape[1:])
        self.add_to(x, y)
        return x

    def add_to(self, x: Tensor, y: Tensor) -> None:
        """Add the adjoint of y (outputs, C) to x (P, C), in place.

        So several maps, e.g. one for each chunk of groups in joint.py, can add their adjoints one
        after the other to one x.
        """
        # A column alone is faster as a vector. But without MKL (e.g. on ARM) the product of a
        # sparse matrix and a vector is missing in torch on a CPU, or is wrong (pytorch issues 96972
        # and 127491). The product with a matrix of one column is right.
        is_vector = y.shape[1] == 1 and y.device.type == "cpu" and torch.backends.mkl.is_available()
        for offset, matrix in self._matrices:
            # Row c of the product is the sum of corner c. It belongs to the pixel c + offset, which
            # is row c of `x_from_offset`.
            x_from_offset = x[offset:]
            if len(x_from_offset) == 0:
                continue  # e.g. a picture of one row has no pixels below
            if is_vector:
                column = x_from_offset[:, 0]
                torch.addmv(column, matrix, y[:, 0], out=column)
            else:
                torch.addmm(x_from_offset, matrix, y, out=x_from_offset)


def sparse_matrix(rows: Tensor, columns: Tensor, values: Tensor, shape: tuple[int, int]) -> Tensor:
    """Return a sparse matrix in the layout CSR. Entries at the same place are added.

    rows, columns, values: row, column and value of each entry, (entries,).
    """
    # `coalesce` sorts the entries by row and column, and adds entries at the same place. The
    # indices are right by construction, so torch need not check them.
    entries = torch.sparse_coo_tensor(
        torch.stack((rows, columns)), values, shape, check_invariants=False
    ).coalesce()
    rows, columns = entries.indices()
    begins = torch.zeros(shape[0] + 1, dtype=torch.int32, device=rows.device)
    begins[1:] = torch.bincount(rows, minlength=shape[0]).cumsum(0)
    return csr_matrix(begins, columns.int(), entries.values(), shape)


def csr_matrix(begins: Tensor, columns: Tensor, values: Tensor, shape: tuple[int, int]) -> Tensor:
    """Return a sparse matrix in the layout CSR: its entries row by row.

    begins: (rows + 1,), where the entries of each row begin; the last value is the number of all
    entries. E.g. rows with 2, 0 and 3 entries: 0, 2, 2, 5. torch calls it `crow_indices`.
    columns, values: column and value of each entry.
    """
    with warnings.catch_warnings():
        # torch warns once in a process that its sparse matrices may still change. A user cannot act
        # on the warning, and only the product with dense columns is used here.
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
        return torch.sparse_csr_tensor(begins, columns, values, shape, check_invariants=False)

"""Compute the adjoint of sampling a picture at many positions, quickly on a CPU.

Both cameras see sums of samples of the sharp frame (chunk.py). The adjoint A^T of such a linear map
A is the map with <A x, y> = <x, A^T y> for all x and y, where < , > is the sum of the products. Its
matrix is the transposed matrix of A: it gives the value of each sample back to the four pixels from
which the sample was interpolated, times their weights (sampling.py).

torch has the adjoint of `grid_sample`: its gradient. But on a CPU this gradient takes five times as
long as `grid_sample` itself, and a solution needs it about 15 times for the same positions. So the
samples are sorted once, and the adjoint is a product with sparse matrices:

    sort_samples     the samples in the order of their corners
    AdjointOfSums    the adjoint of "sample a picture, then add up some of the samples"

N: number of samples. P = H W: number of pixels of the picture. The corner of a sample is the pixel
above and to its left.

What must stay: the result is the gradient of `grid_sample`. In
tests/parts/data/joint/test_sampling.py, test_the_adjoint_is_the_gradient_of_the_sums notices a
wrong adjoint, also on pictures of one row or one column. Free to change: how it is computed.
"""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from data.motion.joint.sampling import corners_of, weights_of
from data.motion.joint.sparse import csr_matrix

# 16 bits without a sign have this many values, 0 to 65535.
MOST_OF_16_BITS = 2**16


class SortedSamples(NamedTuple):
    """Samples in the order of their corners.

    The corner of a sample is the number of the pixel above and to its left. E.g. the samples 0, 1
    and 2 have the corners 7, 2 and 7. In the order of the corners, these are the samples 1, 0, 2.
    """

    # The argsort of the corners, (N,) int64, e.g. 1, 0, 2.
    numbers: Tensor
    # (P + 1,) int32, as `crow_indices` of a CSR matrix (sparse.py): the samples of corner c have
    # the indices begins[c] to begins[c + 1] - 1 in this order. E.g. the sorted corners are 2, 7, 7.
    # Corner 2 has the index 0, so begins[2] is 0 and begins[3] is 1. Corner 7 has the indices 1 and
    # 2, so begins[7] is 1 and begins[8] is 3.
    begins: Tensor
    weights: Tensor  # (4, N): weights of the four pixels, see `sampling.weights_of`
    offsets: tuple[int, int, int, int]  # 0, 1, W, W + 1


def sort_samples(positions: Tensor, size: tuple[int, int]) -> SortedSamples:
    """Sort samples in the order of their corners. Arguments: as in `corners_of`."""
    corners = corners_of(positions, size)
    numbers = _order_of(corners.corner, corners.pixel_count)
    samples_per_corner = torch.bincount(corners.corner, minlength=corners.pixel_count)  # (P,)
    begins = torch.zeros(corners.pixel_count + 1, dtype=torch.int32, device=positions.device)
    begins[1:] = samples_per_corner.cumsum(0)  # begins[0] is 0
    # Compute the weights after the sorting. Then only `right` and `below` must be put into the new
    # order, and not four weights. `index_select` takes a third of the time of `[numbers]`.
    weights = weights_of(
        corners.right.index_select(0, numbers), corners.below.index_select(0, numbers)
    )
    return SortedSamples(numbers, begins, weights, corners.offsets)


def _order_of(corners: Tensor, pixel_count: int) -> Tensor:
    """Return the stable argsort of `corners`, (N,) int64.

    corners: (N,) int32, from 0 to P - 1. pixel_count: P.
    """
    if corners.device.type != "cpu":
        return torch.argsort(corners, stable=True)
    # The corners of a smooth motion are nearly sorted. For them, np.argsort takes less than half of
    # the time of torch.argsort on a CPU. With 16 bits it takes half of its time with 32 bits.
    values = corners.numpy()
    if pixel_count <= MOST_OF_16_BITS:
        values = values.astype(np.uint16)
    return torch.from_numpy(np.argsort(values, kind="stable"))


class AdjointOfSums:
    """The adjoint of a map that samples a picture, then adds up some of the samples.

    The map has the outputs

        y_i = sum over the samples n of output i of f_n x(position of n)

    E.g. an output is a pixel of the blurry frame. It adds up one sample of each group of planes,
    and f is the share of the group in the exposure.

    samples: the sorted samples of all outputs.
    output_count: number of outputs.
    output_of: (N,) int32, index i of the output of each sample, in the order of `samples`.
    factors: (N,), f of each sample, in the order of `samples`. None: all f are 1.
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
        # A sample with the corner c has the four pixels c + k, with the offsets k = 0, 1, W, W + 1.
        # There is one matrix for each offset k:
        #
        #     rows       corners c. Row c times y is added to the pixel c + k
        #     columns    outputs
        #     entries    for each sample the weight of its pixel c + k, in the row of its corner and
        #                the column of its output
        #
        # E.g. a sample of output 2 has the corner 7, and its pixel 8 = 7 + 1 has the weight 0.3.
        # Then the matrix of the offset 1 has the entry 0.3 in row 7 and column 2. It adds 0.3 y_2
        # to pixel 8.
        self._matrices = []
        for offset, weights_of_pixel in zip(samples.offsets, weights, strict=True):
            # For the last `offset` corners, the pixel c + offset lies beyond the picture, and its
            # weight is 0. These corners get no row, so P - offset rows are left. A picture of one
            # row has P = W pixels, fewer than the offset W + 1. Then there is no row.
            row_count = max(self._pixel_count - offset, 0)
            begins = samples.begins[: row_count + 1]
            # The samples are sorted by corner. So the first samples are the samples with a row.
            entry_count = int(begins[-1])
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

    def add_to(self, x: Tensor, y: Tensor, factor: float = 1.0) -> None:
        """Add the adjoint of y (outputs, C), times a factor, to x (P, C), in place.

        In this way several maps can add their adjoints to one x. E.g. chunk.py has a map for each
        chunk of groups of planes.
        """
        # A single column is faster as a vector. But without MKL (e.g. on ARM) the product of a
        # sparse matrix and a vector is missing in torch on a CPU, or is wrong (pytorch issues 96972
        # and 127491). The product with a matrix of one column is right.
        is_vector = y.shape[1] == 1 and y.device.type == "cpu" and torch.backends.mkl.is_available()
        for offset, matrix in self._matrices:
            # Row c of the product belongs to the pixel c + offset, which is row c of this slice.
            x_from_offset = x[offset:]
            if len(x_from_offset) == 0:
                continue  # e.g. a picture of one row has no pixels below
            if is_vector:
                column = x_from_offset[:, 0]
                torch.addmv(column, matrix, y[:, 0], alpha=factor, out=column)
            else:
                torch.addmm(x_from_offset, matrix, y, alpha=factor, out=x_from_offset)

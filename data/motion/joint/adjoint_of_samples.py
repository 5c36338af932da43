"""Compute the adjoint of sampling a picture at many positions, quickly on a CPU.

Both cameras see sums of samples of the sharp frame (chunk.py). A sample is a weighted sum of four
pixels (sampling.py). The adjoint maps back: it adds the value of each sample to these four pixels,
times their weights. Its matrix is the transposed matrix of the sampling.

torch has this adjoint, too: the gradient of `grid_sample`. But on a CPU the gradient takes five
times as long as `grid_sample` itself, and a solution needs the adjoint about 15 times for the same
positions. Products with sparse matrices are faster. A sparse matrix in the layout CSR stores its
entries row by row. So we sort the samples once, by the row of the matrix that they belong to:

    sort_samples     sorts the samples by their corners. The corner is the pixel above and to the
                     left of a sample
    AdjointOfSums    the adjoint of "sample a picture, then add up some of the samples", as one
                     sparse matrix for each of the four pixels. Row c has the samples of corner c

N: number of samples. P = H W: number of pixels of the picture. Pixels are numbered row by row.

The result must stay the gradient of `grid_sample`. You may change how it is computed.

Tests: tests/parts/data/joint/test_sampling.py. If the adjoint is wrong, also on a picture of one
row or one column, test_the_adjoint_is_the_gradient_of_the_sums fails.
"""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from data.motion.joint.sampling import corners_of, weights_of
from data.motion.joint.sparse import csr_matrix

# Number of values of an unsigned integer of 16 bits, 0 to 65535.
VALUES_OF_16_BITS = 2**16


class SortedSamples(NamedTuple):
    """Samples in the order of their corners.

    E.g. the samples 0, 1 and 2 of a picture of 3 x 3 pixels have the corners 4, 1 and 4:

        order             1  0  2                          sample 1 comes first
        sorted corners    1  4  4
        corner            0  1  2  3  4  5  6  7  8  end
        begins            0  0  1  1  1  3  3  3  3  3

    The sorted samples of corner c are sorted[begins[c] : begins[c + 1]]:

        corner 0    sorted[0:0]    no sample
        corner 1    sorted[0:1]    sample 1
        corner 4    sorted[1:3]    samples 0 and 2
    """

    order: Tensor  # the argsort of the corners, (N,) int64
    # (P + 1,) int32: the first sorted sample of each corner, and N at the end. `begins` of a CSR
    # matrix (sparse.py) has the same form.
    begins: Tensor
    weights: Tensor  # (4, N): weights of the four pixels (`sampling.weights_of`), in this order
    offsets: tuple[int, int, int, int]  # 0, 1, W, W + 1: from a corner to the four pixels


def sort_samples(positions: Tensor, size: tuple[int, int]) -> SortedSamples:
    """Sort samples in the order of their corners. Arguments: as in `corners_of`."""
    corners = corners_of(positions, size)
    order = _order_of(corners.corner, corners.pixel_count)
    samples_per_corner = torch.bincount(corners.corner, minlength=corners.pixel_count)  # (P,)
    begins = torch.zeros(corners.pixel_count + 1, dtype=torch.int32, device=positions.device)
    begins[1:] = samples_per_corner.cumsum(0)  # begins[0] is 0
    # Sort `right` and `below`, and compute the weights from the sorted values. Sorting the
    # four weights would take longer. `index_select` takes a third of the time of `[order]`.
    right = corners.right.index_select(0, order)
    below = corners.below.index_select(0, order)
    return SortedSamples(order, begins, weights_of(right, below), corners.offsets)


def _order_of(corners: Tensor, pixel_count: int) -> Tensor:
    """Return the stable argsort of `corners`, (N,) int64.

    corners: (N,) int32, from 0 to P - 1. pixel_count: P.
    """
    if corners.device.type != "cpu":
        return torch.argsort(corners, stable=True)
    # The corners of a smooth motion are nearly sorted already. Time on a CPU then:
    #
    #     torch.argsort                      1
    #     np.argsort                         less than 1/2
    #     np.argsort of values of 16 bits    less than 1/4
    values = corners.numpy()
    if pixel_count <= VALUES_OF_16_BITS:
        values = values.astype(np.uint16)
    return torch.from_numpy(np.argsort(values, kind="stable"))


class AdjointOfSums:
    """The adjoint of a map that samples a picture, then adds up some of the samples.

    The map turns a picture x into outputs y. Each output is a sum of its own samples:

        y_i = sum over the samples n of output i of f_n x(position of n)

    E.g. an output is a pixel of the blurry frame. It adds up one sample of each group of planes,
    and f is the share of the group in the exposure.

    The adjoint is the product with the transposed matrix of this map. For each sample of output i,
    it adds f * weight * y_i to each of the four pixels of the sample, as `Tensor.scatter_add_`
    does. The four pixels have the offsets k = 0, 1, W, W + 1 from the corner. There is a sparse
    matrix for each offset. Each sample of output i with the corner c is one entry:

        matrix_k[c, i] = f * weight of pixel c + k

    E.g. a sample of output 2 has f = 1 and the corner 7. The weight of pixel 8 = 7 + 1 is 0.3. So
    the matrix of k = 1 has the entry 0.3 in row 7 and column 2, and the product adds 0.3 y_2 to
    pixel 8. If an output has two samples with the same corner, the matrix has two entries in this
    place, and the product adds both.

    The matrix of offset k is (P - k, outputs), because the last k corners have no pixel c + k.

    samples: the sorted samples of all outputs.
    output_count: number of outputs.
    output_of: (N,) int32, index i of the output of each sample, in the order of `samples`.
    factors: (N,), f of each sample, in the order of `samples`. If it is None, all f are 1.
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
        self._matrices = []
        for offset, weights_of_pixel in zip(samples.offsets, weights, strict=True):
            # The matrix has a row for each corner c with a pixel c + offset. E.g. of the 9 corners
            # of 3 x 3 pixels, the last 3 have no pixel 3 farther. (Samples of these corners would
            # give this pixel the weight 0.) In a picture of one row, the offsets W and W + 1 leave
            # no row.
            row_count = max(self._pixel_count - offset, 0)
            # `begins` of these rows, and as its last value the end of the last row. E.g. for the
            # samples in the docstring of `SortedSamples` and offset 4: 5 rows, begins 0 0 1 1 1 3.
            begins = samples.begins[: row_count + 1]
            entry_count = int(begins[-1])  # number of samples of these corners
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

        Several maps can add their adjoints to one x. cameras.py divides the planes of an exposure
        into groups, e.g. 20. A chunk is some of the groups, e.g. 10, and each chunk has a map.
        """
        # A vector is faster than a matrix of one column. But without MKL (e.g. on ARM), torch lacks
        # the product of a sparse matrix and a vector on a CPU, or computes it wrongly (pytorch
        # issues 96972 and 127491). The product with a matrix of one column is right.
        is_vector = y.shape[1] == 1 and y.device.type == "cpu" and torch.backends.mkl.is_available()
        for offset, matrix in self._matrices:
            # Row c of the product belongs to pixel c + offset, which is row c of this slice. The
            # slice is a view, so a change of it changes x. E.g. offset 1: row 7 goes to pixel 8.
            x_from_offset = x[offset:]
            if len(x_from_offset) == 0:
                continue  # the matrix has no row
            if is_vector:
                column = x_from_offset[:, 0]
                torch.addmv(column, matrix, y[:, 0], alpha=factor, out=column)
            else:
                torch.addmm(x_from_offset, matrix, y, alpha=factor, out=x_from_offset)

"""Compute what both cameras record of a sharp frame along its motion, and the adjoint of this map.

The planes of an exposure are divided into G groups, and each group is taken as one moment. What
group g sees at pixel p is at p + u_g(p) in the sharp frame. Both cameras add up what they see of
the groups:

    B x = sum over g of s_g U_g x           B^T b = sum over g of U_g^T s_g b
    S l = sum over g of c_g V_g K L l       S^T y = L^T K^T (sum over g of V_g^T c_g y)

    x      (3, H, W), light of the sharp frame
    l      (1, H, W), what the spike camera integrates of it: its luma
    B x    (3, H, W), light of the blurry frame
    S l    (M, h, w), mean grey value of each spike pixel in M intervals between two spikes
    s_g    share of group g in the exposure of a row (groups.py)
    c_g    share of group g in an interval of a spike pixel (spike_equations.py)
    U_g    samples of a picture at p + u_g(p), one for each RGB pixel p (chunk.py)
    K L    blur by the lens, and mean over the area of a spike pixel (area_means.py)
    V_g    samples at v + u_g(v), one for each spike pixel; v is its middle (chunk.py)

E.g. two groups with the shares 1/2 and the motions 0 and 3 to the right: B x at pixel p is
x(p) / 2 + x(p + 3) / 2, and B^T adds half of b(p) to each of the pixels p and p + 3.

S l is an approximation. A spike pixel sees the mean of the moved picture, but V_g K L l is the
moved mean. E.g. the row l = 0, 2, 8, 6, and a spike pixel of the RGB pixels 0 and 1, which move by
0 and 1:

    mean of the moved picture    (l(0) + l(2)) / 2 = 4
    moved mean                   the mean of two pixels is 1 at 0.5, and 5 at 1.5. The spike pixel
                                 has its middle at 0.5, and moves by 0.5. At 1.0 the mean is 3

The mean of the moved picture needs a sample for each RGB pixel. The moved mean needs only one
sample for each spike pixel. Both means are equal where all RGB pixels of a spike pixel move alike.
On clips of videos the two means differ by 1 to 3 % of the expected error of y.

A = (B, S) is both maps together. Its adjoint A^T maps back, from the values of the cameras to a
frame. For all x and y, <A x, y> = <x, A^T y>, where < , > is the sum of the products. `solve`
(solution.py) computes A and A^T about 15 times each, which takes most of its time.

What must stay: `Cameras.adjoint` is the adjoint of `Cameras.__call__`, because conjugate gradients
do not converge with another adjoint. If you change one of the two methods, change both. Free to
change: how many groups are computed at a time, and in which order.

Tests: tests/parts/data/joint/test_cameras.py. What is wrong, and the test that fails:

    `__call__`    test_the_cameras_see_what_their_equations_say
    `adjoint`     test_the_adjoint_of_the_cameras_is_the_gradient_of_their_equations
"""

import math

import torch
from torch import Tensor

from data.motion.joint.chunk import Chunk
from data.motion.joint.spike_pixels import SpikePixels
from utils.system import give_back_much_freed_memory

# Largest number of samples that are computed at a time. With more samples, a frame takes more
# memory. With fewer samples, the sparse matrices have fewer entries in a row, and take longer. E.g.
# if 20 groups of a large frame were computed as 9 + 9 + 2 groups, A and A^T took a tenth longer
# than with 10 + 10 groups.
SAMPLES_AT_A_TIME = 10 * 2**20


class Cameras:
    """A = (B, S): the linear map from a sharp frame to what both cameras record of it.

    B x is the light of the blurry frame. S l is the mean grey value of each spike pixel in each of
    its M intervals between two spikes. x is the light of the sharp frame, and l what the spike
    camera integrates of it (its luma).

    shifts: u, (G, H, W, 2) in RGB pixels.
    shares: s, (G, H): share of each group in the exposure of each row.
    coverage: c, (M, G, h, w): share of each group in each of M intervals of a spike pixel.
    """

    def __init__(
        self, pixels: SpikePixels, shifts: Tensor, shares: Tensor, coverage: Tensor
    ) -> None:
        self._pixels = pixels
        count, height, width = shifts.shape[:3]
        plane_height, plane_width = pixels.view.plane
        # A group has a sample for each RGB pixel, and a sample for each spike pixel. The memory
        # depends on the larger number, because the two kinds of samples are made one after the
        # other.
        samples_of_group = max(height * width, plane_height * plane_width)
        groups_at_a_time = _groups_at_a_time(count, samples_of_group)
        self._chunks = []
        self._coverage_of_chunks = []  # c of each chunk, (M, groups, h, w)
        for first_group in range(0, count, groups_at_a_time):
            # The matrices of a chunk are the largest tensors of a frame.
            give_back_much_freed_memory()
            groups = slice(first_group, first_group + groups_at_a_time)
            self._chunks.append(Chunk(pixels, shifts[groups], shares[groups]))
            self._coverage_of_chunks.append(coverage[:, groups])

    def __call__(self, x: Tensor, l: Tensor) -> tuple[Tensor, Tensor]:  # noqa: E741
        """Return B x (3, H, W) and S l (M, h, w). x: (3, H, W). l: (1, H, W)."""
        blurry = torch.zeros_like(x)
        spikes: Tensor | None = None  # the sum of the chunks so far
        # K L l, (1, H + 1, W + 1): l blurred by the lens, as means over the area of a spike pixel.
        means = self._pixels.area_means(l)
        for chunk, coverage in zip(self._chunks, self._coverage_of_chunks, strict=True):
            chunk.add_B(blurry, x)
            seen = chunk.V(means)  # V_g K L l, (groups, h, w)
            # The sum over the groups of c_g V_g K L l, (M, h, w). For each group, c_g is (M, h, w)
            # and `seen` is (1, h, w).
            c_of_groups = coverage.transpose(0, 1)  # (groups, M, h, w)
            spikes = sum_of_products(c_of_groups, seen[:, None], total=spikes)
        assert spikes is not None  # there is at least one group
        return blurry, spikes

    def adjoint(self, blurry: Tensor, spikes: Tensor) -> tuple[Tensor, Tensor]:
        """Return B^T blurry (3, H, W) and S^T spikes (1, H, W).

        blurry: (3, H, W). spikes: (M, h, w).
        """
        [x] = self.adjoints_of_blurry(blurry[None])
        return x, self.adjoint_of_spikes(spikes)

    def adjoints_of_blurry(self, pictures: Tensor) -> Tensor:
        """Return B^T of N pictures, (N, 3, H, W) -> the same shape.

        Two pictures at once take 1.3 times as long as one.
        """
        count, _, height, width = pictures.shape
        # Make a column for each colour, and a fourth column of zeros, because products with a
        # sparse matrix are faster for four columns than for three.
        columns = pictures.new_zeros(height, width, count, 4)
        columns[..., :3] = pictures.permute(2, 3, 0, 1)  # (N, 3, H, W) -> (H, W, N, 3)
        columns = columns.view(height * width, count * 4)
        x = torch.zeros_like(columns)  # (H W, 4 N)
        for chunk in self._chunks:
            chunk.add_adjoint_of_B(x, columns)
        x = x.t().reshape(count, 4, height, width)
        return x[:, :3]  # without the column of zeros

    def adjoint_of_spikes(self, spikes: Tensor) -> Tensor:
        """Return S^T spikes (1, H, W). spikes: (M, h, w)."""
        area_means = self._pixels.area_means
        means = spikes.new_zeros(1, *area_means.size)
        for chunk, coverage in zip(self._chunks, self._coverage_of_chunks, strict=True):
            # The sum over the M intervals of c_g y, (groups, h, w). For each interval, c_g is
            # (groups, h, w) and y is (1, h, w).
            seen = sum_of_products(coverage, spikes[:, None])
            chunk.add_adjoint_of_V(means, seen)
        return area_means.adjoint(means)


def _groups_at_a_time(count: int, samples_of_group: int) -> int:
    """Return the number of groups in a chunk: all chunks have about as many groups.

    E.g. frames of 720 x 1280 have 921600 pixels. At most 10 * 2^20 // 921600 = 11 groups fit into a
    chunk, so 20 groups need 2 chunks, of 10 groups each.

    count: number of all groups. samples_of_group: number of samples of a group.

    The number changes no result, only the time and the memory
    (test_cameras_are_the_same_if_their_groups_are_computed_one_after_the_other).
    """
    most_groups = max(SAMPLES_AT_A_TIME // samples_of_group, 1)
    chunk_count = math.ceil(count / most_groups)
    return math.ceil(count / chunk_count)


def sum_of_products(a: Tensor, b: Tensor, total: Tensor | None = None) -> Tensor:
    """Return the sum of a * b over the first axis, without a tensor of all products.

    a, b: tensors with equal first axes. Their other axes are broadcast, as for a * b.
    total: a tensor to which the sum is added, in place. If it is None, the sum is a new tensor.
    """
    factors = list(zip(a, b, strict=True))
    if total is None:
        first_a, first_b = factors.pop(0)
        total = first_a * first_b
    for one_a, one_b in factors:
        total.addcmul_(one_a, one_b)  # in place: total + one_a * one_b
    return total

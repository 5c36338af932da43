"""Compute what both cameras record of a sharp frame along its motion, and the adjoint of this map.

The planes of an exposure are divided into G groups, and each group is taken as one moment. What
group g sees at pixel p is at p + u_g(p) in the sharp frame. U_g is the map from a picture to its
samples at these positions. Both cameras add up what they see of the groups:

    B x = sum over g of s_g U_g x           B^T b = sum over g of U_g^T s_g b
    S l = sum over g of c_g D L U_g l       S^T y = sum over g of U_g^T L^T D^T c_g y

    x      (3, H, W), light of the sharp frame
    l      (1, H, W), what the spike camera integrates of it: its luma
    B x    (3, H, W), light of the blurry frame
    S l    (M, h, w), mean grey value of each spike pixel in M intervals between two spikes
    s_g    share of group g in the exposure of a row (groups.py)
    c_g    share of group g in an interval of a spike pixel (spike_equations.py)
    D L    what the spike pixels see of a picture (spike_pixels.py)

The adjoint of A = (B, S) is the map A^T with <A x, y> = <x, A^T y> for all x and y. The solution
goes through A and A^T about 20 times, and needs most of its time for them.

What must stay: `Cameras.adjoint` is the adjoint of `Cameras.__call__`, or conjugate gradients do
not converge. Whoever changes one of them changes both. In tests/parts/data/joint/test_cameras.py,
test_the_cameras_see_what_their_equations_say notices a wrong `__call__`, and
test_the_adjoint_of_the_cameras_is_the_gradient_of_their_equations a wrong `adjoint`.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from data.motion.joint.sampling import AdjointOfSums, SortedSamples, grid_positions, sort_samples
from data.motion.joint.spike_pixels import SpikePixels
from data.motion.joint.values import luma_weights

# Largest number of samples that are computed at a time, so that their tensors have at most 32 MB.
# The system gives and takes back the memory of a larger tensor each time, which takes notable time.
# With fewer samples, the sparse matrices have fewer entries in a row, and take longer.
SAMPLES_AT_A_TIME = 2**23


class Cameras:
    """A = (B, S): the linear map from the sharp instant to what both cameras record of it.

    With U_g for the map from a picture to its samples at the positions p + u_g(p):

        B x = sum over g of s_g U_g x           B^T b = sum over g of U_g^T s_g b
        S l = sum over g of c_g D L U_g l       S^T y = sum over g of U_g^T L^T D^T c_g y

    `adjoint` must stay the adjoint of `__call__`, or conjugate gradients do not converge. Whoever
    changes one of them changes both. test_the_cameras_see_what_their_equations_say notices a wrong
    `__call__`, and test_the_adjoint_of_the_cameras_is_the_gradient_of_their_equations a wrong
    `adjoint`.

    shifts: u, (G, H, W, 2) in RGB pixels.
    shares: s, (G, H): share of each group in the exposure of each row.
    coverage: c, (M, G, h, w): share of each group in each of M intervals of a spike pixel.
    """

    def __init__(
        self, pixels: SpikePixels, shifts: Tensor, shares: Tensor, coverage: Tensor
    ) -> None:
        self._pixels = pixels
        count, height, width = shifts.shape[:3]
        # A chunk is as many groups as may be sampled at a time. E.g. frames of 720 x 1280 have
        # 921600 pixels: 2^23 // 921600 = 9, so 20 groups are three chunks, of 9, 9 and 2 groups.
        groups_at_a_time = max(SAMPLES_AT_A_TIME // (height * width), 1)
        self._chunks = []
        for first_group in range(0, count, groups_at_a_time):
            groups = slice(first_group, first_group + groups_at_a_time)
            chunk = _GroupsOfCameras(shifts[groups], shares[groups], coverage[:, groups])
            self._chunks.append(chunk)

    def __call__(self, x: Tensor, l: Tensor | None = None) -> tuple[Tensor, Tensor]:  # noqa: E741
        """Return B x (3, H, W) and S l (M, h, w).

        x: (3, H, W). l: (1, H, W). None: the luma of x. This is faster, because only the three
        colours are sampled.
        """
        picture = x if l is None else torch.cat((x, l))
        blurry = torch.zeros_like(x)
        spikes: Tensor | None = None  # the sum of the chunks so far
        for chunk in self._chunks:
            moved_l = chunk.sample(picture[None], blurry)  # (groups, H, W); adds to `blurry`, too
            # S l = sum over g of c_g D L U_g l
            seen = self._pixels(moved_l).contiguous()  # D L U_g l, (groups, h, w)
            c_of_groups = chunk.c.transpose(0, 1)  # (groups, M, h, w)
            spikes = sum_of_products(c_of_groups, seen[:, None], total=spikes)  # (M, h, w)
        assert spikes is not None  # there is at least one group
        return blurry, spikes

    def adjoint(self, blurry: Tensor, spikes: Tensor) -> tuple[Tensor, Tensor]:
        """Return B^T blurry (3, H, W) and S^T spikes (1, H, W).

        blurry: (3, H, W). spikes: (M, h, w).
        """
        # B^T b = sum over g of U_g^T s_g b. A column for each colour, and a fourth column of zeros:
        # products with a sparse matrix are faster for four columns than for three.
        columns = blurry.new_zeros(blurry[0].numel(), 4)  # (H W, 4)
        columns[:, :3] = blurry.flatten(1).t()
        x = torch.zeros_like(columns)
        for chunk in self._chunks:
            chunk.B_adjoint.add_to(x, columns * chunk.common_share)
        return x.t()[:3].reshape(blurry.shape), self.adjoint_of_spikes(spikes)

    def adjoint_of_spikes(self, spikes: Tensor) -> Tensor:
        """Return S^T spikes (1, H, W). spikes: (M, h, w)."""
        # S^T y = sum over g of U_g^T L^T D^T c_g y
        height, width = self._pixels.view.size
        l = spikes.new_zeros(height * width, 1)  # noqa: E741
        for chunk in self._chunks:
            # The products c_g y, summed over the M intervals: chunk.c is (M, groups, h, w).
            seen = sum_of_products(chunk.c, spikes[:, None])  # (groups, h, w)
            moved = self._pixels.adjoint(seen)  # L^T D^T c_g y, (groups, H, W)
            samples = moved.permute(1, 2, 0).reshape(-1, 1)  # (H W groups, 1)
            chunk.U_adjoint.add_to(l, samples)
        return l.view(1, height, width)


# ---- A chunk of the groups ----

# Shares that differ by less than this count as equal. They differ by rounding alone.
SAME_SHARE = 1e-6


class _GroupsOfCameras:
    """A chunk of the groups of `Cameras`. The arguments are those of `Cameras`, for these groups.

    `sample` computes B and the samples of S. `B_adjoint` and `U_adjoint` are their adjoints.
    """

    def __init__(self, shifts: Tensor, shares: Tensor, coverage: Tensor) -> None:
        groups, height, width = shifts.shape[:3]
        size = (height, width)
        positions = positions_of_samples(shifts)  # (groups, H, W, 2)
        self._positions = grid_positions(positions, size)
        self._s = shares[:, None, :, None]  # (groups, 1, H, 1)
        self.c = coverage
        # Without a rolling shutter, all groups have the same share s in all rows. Then `B_adjoint`
        # leaves it out, and whoever uses it multiplies by `common_share`. So the matrices of B and
        # U have the same values, which are stored once: 0.3 GB less for a large frame. If the
        # shares differ, `B_adjoint` contains them, and `common_share` is 1.
        have_equal_shares = float(shares.max() - shares.min()) < SAME_SHARE
        self.common_share = float(shares.mean()) if have_equal_shares else 1.0

        # B and S sample the picture at the same positions, so the samples are sorted once for both.
        samples = sort_samples(positions, size)
        numbers = _numbers_of(samples, size)
        if have_equal_shares:
            self.B_adjoint = AdjointOfSums(
                samples, output_count=height * width, output_of=numbers.p
            )
        else:
            self.B_adjoint = _adjoint_of_B(samples, numbers, shares, size)
        self.U_adjoint = _adjoint_of_U(samples, numbers, groups)

    def sample(self, picture: Tensor, blurry: Tensor) -> Tensor:
        """Return the samples l(p + u_g(p)) of the groups, (groups, H, W).

        Adds the samples of x, each times the share of its group, to `blurry` (3, H, W), in place.
        Both are computed in one call, because they need the same samples.

        picture: x (1, 3, H, W), or x and l (1, 4, H, W). Without l, it is the luma of x.
        """
        weights = luma_weights(picture.device).flatten().to(picture.dtype)  # (3,)
        moved_l = picture.new_empty(len(self._s), *picture.shape[2:])
        for g, s_g in enumerate(self._s):
            # x(p + u_g(p)) and perhaps l(p + u_g(p)): (3, H, W) or (4, H, W)
            positions = self._positions[g : g + 1]
            [moved] = F.grid_sample(picture, positions, padding_mode="border", align_corners=True)
            # B x = sum over g of s_g x(p + u_g(p))
            blurry.addcmul_(s_g, moved[:3])
            if len(moved) == 4:
                moved_l[g] = moved[3]
            else:
                # A sample is linear: the luma of a sample is the sample of the luma.
                torch.mv(moved.flatten(1).t(), weights, out=moved_l[g].flatten())
        return moved_l


def positions_of_samples(shifts: Tensor) -> Tensor:
    """Return p + u_g(p): where each group g samples the picture for each pixel p, (G, H, W, 2).

    shifts: u, (G, H, W, 2), x and y in RGB pixels.
    """
    height, width = shifts.shape[1:3]
    y = torch.arange(height, dtype=shifts.dtype, device=shifts.device)
    x = torch.arange(width, dtype=shifts.dtype, device=shifts.device)
    p = torch.stack(torch.meshgrid(x, y, indexing="xy"), dim=-1)  # (H, W, 2)
    return p + shifts


class SampleNumbers(NamedTuple):
    """The numbers n of all samples, and their groups and pixels, each field (G H W,) int32.

    The samples are numbered group by group, and pixel by pixel within a group: n = g H W + p. E.g.
    with 2 groups and 3 pixels:

        n    0  1  2  3  4  5
        g    0  0  0  1  1  1
        p    0  1  2  0  1  2

    All fields are in the order of the sorted samples. E.g. if sample 4 comes first, n, g and p
    begin with 4, 1 and 1.
    """

    n: Tensor
    g: Tensor  # number of the group
    p: Tensor  # number of the pixel, row by row


def _numbers_of(samples: SortedSamples, size: tuple[int, int]) -> SampleNumbers:
    """Return the numbers of sorted samples. size: (H, W) of a frame."""
    height, width = size
    n = samples.numbers.int()
    g = n.div(height * width, rounding_mode="floor")
    return SampleNumbers(n, g, p=n - g * (height * width))


def _adjoint_of_B(
    samples: SortedSamples, numbers: SampleNumbers, shares: Tensor, size: tuple[int, int]
) -> AdjointOfSums:
    """Return B^T, if the shares of the groups differ.

    B adds up the samples of a pixel, each times the share of its group.

    shares: s, (G, H). size: (H, W) of a frame.
    """
    height, width = size
    # The share of each sample: the share of its group in the row of its pixel. First by n, then in
    # the order of the sorted samples.
    shares_by_n = shares[:, :, None].expand(-1, height, width).flatten()
    return AdjointOfSums(
        samples, output_count=height * width, output_of=numbers.p, factors=shares_by_n[numbers.n]
    )


def _adjoint_of_U(samples: SortedSamples, numbers: SampleNumbers, groups: int) -> AdjointOfSums:
    """Return U^T. U maps l to its samples l(p + u_g(p)) of all groups.

    Each sample is an output of its own. The output of group g at pixel p has the number p G + g.
    `SpikePixels.adjoint` has its results in this order in memory, so they need not be copied.

    groups: G.
    """
    return AdjointOfSums(
        samples, output_count=len(numbers.n), output_of=numbers.p * groups + numbers.g
    )


def sum_of_products(a: Tensor, b: Tensor, total: Tensor | None = None) -> Tensor:
    """Return the sum of a * b over the first axis, without a tensor of all products.

    a, b: tensors with equal first axes. Their other axes are broadcast, as for a * b.
    total: a tensor to which the sum is added, in place. None: the sum is a new tensor.
    """
    factors = list(zip(a, b, strict=True))
    if total is None:
        first_a, first_b = factors.pop(0)
        total = first_a * first_b
    for one_a, one_b in factors:
        total.addcmul_(one_a, one_b)  # in place: total + one_a * one_b
    return total

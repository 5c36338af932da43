"""Sample a picture along the motion of some groups of planes, and map the samples back.

A chunk has as many of the G groups of an exposure as are computed at a time (cameras.py). Group g
sees at pixel p what is at p + u_g(p) in the sharp frame:

    U_g l    the samples of a picture l at the positions p + u_g(p), (H, W)
    B x      the part of these groups in the blurry frame: sum over g of s_g U_g x, (3, H, W)
    s_g      share of group g in the exposure of a row

`Chunk.sample` computes U_g l and B x by `grid_sample`, which interpolates a sample from four
pixels. `Chunk.add_adjoint_of_B` and `Chunk.add_adjoint_of_U` map back: they give the value of each
sample to its four pixels. For this, all samples of the chunk are sorted once by their pixels
(adjoint_of_samples.py). They are numbered group by group, and pixel by pixel within a group:

    n = g H W + p        E.g. 2 groups of 3 pixels:     n    0  1  2  3  4  5
                                                        g    0  0  0  1  1  1
                                                        p    0  1  2  0  1  2

What must stay: the adjoint of each map fits the map. In tests/parts/data/joint/test_cameras.py,
test_the_adjoint_of_the_cameras_is_the_gradient_of_their_equations notices a wrong one, with and
without a rolling shutter.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from data.motion.joint.adjoint_of_samples import AdjointOfSums, SortedSamples, sort_samples
from data.motion.joint.sampling import grid_positions
from data.motion.joint.values import luma_weights

# Shares that differ by less than this count as equal. They differ by rounding alone.
SAME_SHARE = 1e-6


class Chunk:
    """Some groups of planes, as maps from a picture to its samples and back.

    shifts: u, (groups, H, W, 2) in RGB pixels.
    shares: s, (groups, H): share of each group in the exposure of each row.
    """

    def __init__(self, shifts: Tensor, shares: Tensor) -> None:
        self._groups, height, width = shifts.shape[:3]
        size = (height, width)
        positions = positions_of_samples(shifts)  # (groups, H, W, 2)
        self._positions = grid_positions(positions, size)
        self._s = shares[:, None, :, None]  # (groups, 1, H, 1)

        # B and U sample the picture at the same positions, so the samples are sorted once for both.
        samples = sort_samples(positions, size)
        numbers = _numbers_of(samples, size)
        self._U_adjoint = _adjoint_of_U(samples, numbers, self._groups)
        # Without a rolling shutter, all groups have the same share in all rows. Then the share is
        # left out of the matrix of B^T, and `add_adjoint_of_B` multiplies by it. So the matrices of
        # B^T and U^T have the same values, which are stored once: 0.3 GB less for a large frame.
        have_equal_shares = float(shares.max() - shares.min()) < SAME_SHARE
        if have_equal_shares:
            self._common_share = float(shares.mean())
            self._B_adjoint = _adjoint_of_plain_sum(samples, numbers, size)
        else:
            self._common_share = 1.0
            self._B_adjoint = _adjoint_of_weighted_sum(samples, numbers, shares, size)

    def sample(self, picture: Tensor, blurry: Tensor) -> Tensor:
        """Return the samples U_g l of the groups, (groups, H, W), and add B x to `blurry`.

        Both are computed in one call, because they need the same samples.

        picture: x (3, H, W), or x and l (4, H, W). Without l, l is the luma of x.
        blurry: (3, H, W), changed in place.
        """
        weights = luma_weights(picture.device).flatten().to(picture.dtype)  # (3,)
        moved_l = picture.new_empty(self._groups, *picture.shape[1:])
        for g, s_g in enumerate(self._s):
            [moved] = F.grid_sample(  # U_g of x, and perhaps of l: (3, H, W) or (4, H, W)
                picture[None],
                self._positions[g : g + 1],
                padding_mode="border",
                align_corners=True,
            )
            blurry.addcmul_(s_g, moved[:3])  # + s_g U_g x
            if len(moved) == 4:
                moved_l[g] = moved[3]
            else:
                # A sample is linear: the luma of a sample is the sample of the luma. `flatten` is a
                # view here, so the result lands in `moved_l`.
                torch.mv(moved.flatten(1).t(), weights, out=moved_l[g].flatten())
        return moved_l

    def add_adjoint_of_B(self, x: Tensor, blurry: Tensor) -> None:
        """Add B^T blurry to x, in place. Both are (H W, C), with a column for each colour."""
        self._B_adjoint.add_to(x, blurry, factor=self._common_share)

    def add_adjoint_of_U(self, l: Tensor, moved_l: Tensor) -> None:  # noqa: E741
        """Add the sum over the groups of U_g^T moved_l to l (H W, 1), in place.

        moved_l: (groups, H, W).
        """
        samples = moved_l.permute(1, 2, 0).reshape(-1, 1)  # in the order of `_adjoint_of_U`
        self._U_adjoint.add_to(l, samples)


# ---- The samples and their adjoints ----


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
    """The numbers n of all samples, and their groups and pixels, each field (groups H W,) int32.

    All fields are in the order of the sorted samples. E.g. if sample 4 of the table in the head of
    the module comes first, n, g and p begin with 4, 1 and 1.
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


def _adjoint_of_plain_sum(
    samples: SortedSamples, numbers: SampleNumbers, size: tuple[int, int]
) -> AdjointOfSums:
    """Return the adjoint of the sum over g of U_g: each pixel adds up one sample of each group."""
    height, width = size
    return AdjointOfSums(samples, output_count=height * width, output_of=numbers.p)


def _adjoint_of_weighted_sum(
    samples: SortedSamples, numbers: SampleNumbers, shares: Tensor, size: tuple[int, int]
) -> AdjointOfSums:
    """Return the adjoint of the sum over g of s_g U_g.

    shares: s, (groups, H). size: (H, W) of a frame.
    """
    height, width = size
    # The share of each sample: the share of its group in the row of its pixel. First by n, then in
    # the order of the sorted samples.
    shares_by_n = shares[:, :, None].expand(-1, height, width).flatten()
    return AdjointOfSums(
        samples, output_count=height * width, output_of=numbers.p, factors=shares_by_n[numbers.n]
    )


def _adjoint_of_U(samples: SortedSamples, numbers: SampleNumbers, groups: int) -> AdjointOfSums:
    """Return the adjoint of the map from l to the samples of all groups.

    Each sample is an output of its own. The output of group g at pixel p has the number
    `p * groups + g`. `SpikePixels.adjoint` has its results in this order in memory, so they need
    not be copied.
    """
    return AdjointOfSums(
        samples, output_count=len(numbers.n), output_of=numbers.p * groups + numbers.g
    )

"""Sample a picture along the motion of some groups of planes, and map the samples back.

A chunk is some of the G groups of an exposure, which are computed together (cameras.py). Group g
sees at pixel p what is at p + u_g(p) in the sharp frame. So both cameras sample pictures:

    B x        the part of these groups in the blurry frame: sum over g of s_g U_g x, (3, H, W)
    U_g x      the samples of the light x at the positions p + u_g(p), a sample for each RGB pixel
    V_g m      the samples of the means m (area_means.py) at v + u_g(v), a sample for each spike
               pixel, (h, w); v is the middle of the spike pixel
    s_g        share of group g in the exposure of a row

The motion u_g(v) of a spike pixel is the mean of the motions of the RGB pixels that it sees.

`Chunk.add_B` and `Chunk.V` sample by `grid_sample`, which interpolates a sample from four pixels.
`Chunk.add_adjoint_of_B` and `Chunk.add_adjoint_of_V` map back. They give the value of each sample
to its four pixels. For this, all samples of the chunk are sorted once by their pixels
(adjoint_of_samples.py). The samples are numbered group by group, and pixel by pixel within a group:

    n = g H W + p        E.g. 2 groups of 3 pixels:     n    0  1  2  3  4  5
                                                        g    0  0  0  1  1  1
                                                        p    0  1  2  0  1  2

What must stay: each map back is the adjoint of its map, because conjugate gradients do not converge
with another map back.

Tests: tests/parts/data/joint/test_cameras.py. If an adjoint is wrong, with or without a rolling
shutter, test_the_adjoint_of_the_cameras_is_the_gradient_of_their_equations fails.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from data.motion.joint.adjoint_of_samples import AdjointOfSums, SortedSamples, sort_samples
from data.motion.joint.sampling import grid_positions
from data.motion.joint.spike_pixels import SpikePixels

# If shares differ by less than SAME_SHARE, they count as equal, because they differ only by
# rounding.
SAME_SHARE = 1e-6


class Chunk:
    """Some groups of planes, as maps from a picture to its samples and back.

    pixels: what the spike pixels see of a frame.
    shifts: u, (groups, H, W, 2) in RGB pixels.
    shares: s, (groups, H): share of each group in the exposure of each row.
    """

    def __init__(self, pixels: SpikePixels, shifts: Tensor, shares: Tensor) -> None:
        self._group_count = len(shifts)
        height, width = shifts.shape[1:3]
        size = (height, width)
        positions = positions_of_samples(shifts)  # (groups, H, W, 2)
        self._positions = grid_positions(positions, size)
        self._s = shares[:, None, :, None]  # (groups, 1, H, 1), to be multiplied with pictures
        samples = sort_samples(positions, size)
        # Without a rolling shutter, all groups have the same share in all rows. In this case the
        # share is left out of the matrices of B^T, and `add_adjoint_of_B` multiplies by the share.
        have_equal_shares = float(shares.max() - shares.min()) < SAME_SHARE
        self._common_share = float(shares.mean()) if have_equal_shares else 1.0
        self._B_adjoint = _adjoint_of_B(samples, None if have_equal_shares else shares, size)
        # `positions` and `samples` are the largest tensors of this function. Delete them, because
        # the samples of the means below need memory, too.
        del positions, samples

        # The samples of the means, for each spike pixel.
        means = pixels.area_means
        positions_on_means = _positions_of_spike_pixels(pixels, shifts)  # (groups, h, w, 2)
        # Put the samples of all groups below each other, (groups h, w), to call `grid_sample` once.
        self._positions_on_means = grid_positions(positions_on_means.flatten(0, 1), means.size)
        samples = sort_samples(positions_on_means, means.size)
        # V does not add samples up. So each sample is an output, whose index is the number of the
        # sample.
        numbers = samples.order.int()  # the number of each sorted sample
        self._V_adjoint = AdjointOfSums(samples, output_count=len(numbers), output_of=numbers)

    def add_B(self, blurry: Tensor, x: Tensor) -> None:
        """Add B x, the part of these groups in the blurry frame, to `blurry`, in place.

        x: light of the sharp frame. B x is the sum over the groups g of s_g U_g x: the share of the
        group, times the samples of x along its motion. x and `blurry` are (3, H, W).
        """
        for g, s_g in enumerate(self._s):
            # [g : g + 1] keeps the first axis, because `grid_sample` takes batches.
            [moved] = F.grid_sample(  # U_g x, (3, H, W)
                x[None], self._positions[g : g + 1], padding_mode="border", align_corners=True
            )
            blurry.addcmul_(s_g, moved)  # + s_g U_g x

    def V(self, means: Tensor) -> Tensor:
        """Return V_g m of the groups, (groups, h, w): a sample of m for each spike pixel.

        means: m, (1, H + 1, W + 1), the means over the area of a spike pixel (area_means.py).
        """
        # [[ ]] takes the only channel of the only picture of the batch.
        [[samples]] = F.grid_sample(  # (groups h, w)
            means[None], self._positions_on_means, padding_mode="border", align_corners=True
        )
        return samples.unflatten(0, (self._group_count, -1))  # -> (groups, h, w)

    def add_adjoint_of_B(self, x: Tensor, blurry: Tensor) -> None:
        """Add B^T blurry to x, in place: the adjoint of `add_B`.

        x and blurry: (H W, C), with a column for each colour.
        """
        self._B_adjoint.add_to(x, blurry, factor=self._common_share)

    def add_adjoint_of_V(self, means: Tensor, seen: Tensor) -> None:
        """Add the sum over the groups of V_g^T seen to `means`, in place: the adjoint of `V`.

        means: (1, H + 1, W + 1). seen: (groups, h, w).
        """
        # Pass each tensor as one column: (pixels, 1) and (samples, 1). `view` shares the memory of
        # `means`, so `add_to` changes `means` itself.
        self._V_adjoint.add_to(means.view(-1, 1), seen.reshape(-1, 1))


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


def _positions_of_spike_pixels(pixels: SpikePixels, shifts: Tensor) -> Tensor:
    """Return v + u_g(v): where each group g samples the means for each spike pixel, (G, h, w, 2).

    shifts: u, (G, H, W, 2), x and y in RGB pixels.
    """
    plane = pixels.view.plane
    # Take one group after the other, because the columns of all groups would have to be copied.
    mean_shifts = []  # (h w, 2) of each group
    for shifts_of_group in shifts:
        mean_shifts.append(pixels.means(shifts_of_group.flatten(0, 1)))
    # (groups, h w, 2) -> (groups, h, w, 2), added to v, (h, w, 2).
    return pixels.area_means.middles + torch.stack(mean_shifts).unflatten(1, plane)


def _adjoint_of_B(
    samples: SortedSamples, shares: Tensor | None, size: tuple[int, int]
) -> AdjointOfSums:
    """Return the adjoint of the sum over g of s_g U_g: a pixel adds up one sample of each group.

    samples: of all groups and RGB pixels, sorted.
    shares: s, (groups, H). If it is None, all shares are 1. size: (H, W) of a frame.
    """
    height, width = size
    n = samples.order.int()  # the number n = g H W + p of each sorted sample, (N,)
    factors: Tensor | None = None
    if shares is not None:
        # A sample has the share of its group in the row of its pixel.
        shares_of_pixels = shares[:, :, None].expand(-1, height, width)  # (groups, H, W)
        shares_by_n = shares_of_pixels.flatten()  # entry n has the share of sample n
        factors = shares_by_n[n]  # in the order of the sorted samples
    p = n.remainder_(height * width)  # p = n modulo H W; in place, because n is large
    return AdjointOfSums(samples, output_count=height * width, output_of=p, factors=factors)

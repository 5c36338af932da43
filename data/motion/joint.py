"""Solve for the sharp frame from the blurry frame and the spikes together, along their motion.

Called by data/motion/method.py (`--method joint`) and by the fusion "motion"
(models/fusion/fusion_motion.py), which takes learned steps on the same equations.

    SpikePixels, Cameras    what both cameras see of a sharp frame
    spike_intervals, ...    what both cameras recorded
    Equations               both together: the equations, their solution, and what a network sees
    guard_solution          blends the solution with the first estimate where it fits worse

The unknown is the sharp frame at one instant, the sharp instant: display values z, (3, H, W). Its
light is x = z^2.2. The spike camera integrates a grey value l = luma(x), or l = luma(z) if it sees
display values. A pixel of the spike camera fires a spike each time when it has integrated a fixed
amount, its threshold. A plane is one binary picture (h, w) of the spike camera; times are counted
in planes.

The planes of the exposure are divided into G groups, and each group is taken as one moment. The
motion u_g leads from this moment to the sharp instant: what group g sees at pixel p is at
p + u_g(p) in the sharp frame. So the light of group g at p is x(p + u_g(p)). Two kinds of equations
follow:

    RGB equations, one per pixel and colour of the blurry frame:

        B x = sum over g of s_g x(p + u_g(p)) = b

        b       light of the blurry frame
        s_g     share of group g in the exposure of a row

    Spike equations, one per spike pixel and interval between two of its spikes:

        S l = sum over g of c_g D L l(p + u_g(p)) = y

        begin, end  times of the two spikes, in planes
        n           thresholds that the pixel passed between them: 1 for neighbouring spikes
        gain        spikes per plane of the spike pixel at full light (l = 1)
        y           measured grey value: y = n / (gain (end - begin))
        c_g         share of group g in the time from begin to end
        L, D        lens blur of the spike camera, and the mean over the area of a spike pixel

    E.g. a pixel with the gain 0.6 fires at the times 10 and 15: y = 1 / (0.6 * 5) = 0.33. If
    group 3 has the planes 12 to 14, it has 3 of the 5 planes between both spikes: c_3 = 0.6.

    A means both maps together: A = (B, S).

Errors. A blurry pixel has the error sigma_b, in display values. A noisy frame has a larger sigma_b.
The error of n has two causes. The times of both spikes are rounded to whole planes: two roundings
with the variance 1/12 plane^2 each. And each threshold differs by chance, by the share j of itself.
So

        var(n) = r^2 / 6 + j^2 n    with the rate r = n / (end - begin), in spikes per plane

The variance of Poisson noise would be n, far more than this. E.g. at 0.12 spikes per plane one
interval gives the light within 5 %. Errors of the motion and of the optics add sigma_s. The weight
of an equation is w = 1 / (its error in light). The error in light is the error in display values,
times the slope dx / dz.

The solution minimises

        sum rho(w_b (b - B x)) + sum rho(w_s (y - S l)) + sum lambda |z - z_0|^2

rho is Cauchy's function, rho(e) = c^2 log(1 + (e / c)^2). It is about e^2 for a small error e, and
far less for a large one. So an equation along a wrong motion counts little. z_0 is a first estimate
of z. The expected error of the motion is q, in pixels. Where q is large, z is held near z_0 by

        lambda = 1 + K (q / sigma_b)^2

The problem is linearised a few times. Each time, a few steps of conjugate gradients find a change d
of z from the normal equations

        (A^T W A + lambda) d = A^T W r - lambda (z - z_0)       W = w^2, r = (b - B x, y - S l)

Here A is the map from a change of z, and the weights w are smaller where rho counts less. More
steps would fit the noise. Few steps are enough, because conjugate gradients divide residuals by a
number M for each pixel and colour (a preconditioner):

        M = lambda + M_0 + M_1 R       always positive

A^T W A has a row for each pixel and colour. R is the sum of this row over the pixels of the same
colour. Without M, pixels of large lambda would converge long after other pixels.

A motion may be wrong although its expected error is small. Then z is worse than z_0. So at the end
`guard_solution` blends z and z_0 by how well each of them fits the spikes around the sharp instant.
No motion is needed to compare a frame with these spikes.

A^T is the adjoint of A: it maps values of both cameras back to values of a frame, by the transposed
matrix of A (data/motion/sampling.py computes it).

What must stay: the weights of the fusion "motion" were trained on the numbers of `Equations`. So
the channels of `evidence` and `pulls`, their order and their scales must stay. Another value of a
constant below changes these numbers a little, and the trained weights then fit a little worse.

Tests: tests/parts/data/test_joint.py, tests/parts/models/test_fusion_motion.py
"""

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from data.motion.exposure import Recording
from data.motion.light import DIM_SPIKES, median_spikes
from data.motion.sampling import (
    AdjointOfSums,
    SortedSamples,
    corners_of,
    grid_positions,
    sort_samples,
    sparse_matrix,
)
from data.motion.shifts import Motion
from data.motion.view import View
from data.spike.pictures import DISPLAY_GAMMA, LUMA

# ---- Constants of the equations ----
#
# "PSNR gain" below is the PSNR of the improved frames minus the PSNR of the first estimates. Some
# values were chosen by the PSNR gain on two videos, coffee and walker, which no training has seen.
#
# The tests notice wrong equations, and another number of groups. But they hardly notice another
# worse constant: tests/parts/data/test_joint.py passes with SIGMA_S = 0.3, JITTER = 0.5, CAUCHY =
# 200, K = 0, M_0 = M_1 = 0, INTERVALS = 2 or PERFECT_SHARE = 0.9. So whoever changes a constant
# measures the PSNR gain before and after, with the videos in the folder VIDEOS:
#
#     python lab/joint_gain.py --videos VIDEOS --part choose

# sigma_s: the error of a spike equation that motion and optics cause, in display values. 0.02 is
# about 5 of 255. It matters for bright pixels: they have many spikes, so the other errors of their
# equations are smaller. A smaller value would trust these pixels although the motion is a little
# wrong. With a larger value, z would stay nearer to z_0.
SIGMA_S = 0.02
# j: standard deviation of a threshold, as a share of the threshold. It is in the error of n,
# var(n) = r^2 / 6 + j^2 n, and matters for intervals with many spikes. E.g. 50 spikes in 100
# planes: rounding gives 0.5^2 / 6 = 0.04, and the thresholds give 0.02^2 * 50 = 0.02. With a larger
# value, such an interval would be trusted less.
JITTER = 0.02
# c of Cauchy's rho. An equation with the weight w and the residual r gets the weight
# w / sqrt(1 + (w r / c)^2). E.g. if its residual is c times its expected error 1 / w, it gets
# w / sqrt(2). A smaller value would weaken equations that are right but noisy. A larger value would
# let wrong equations pull.
CAUCHY = 2.0
# sigma_b is at least NOISE_FACTOR * (noise - USUAL_NOISE), where the noise of the blurry frame is
# measured by `noise_of`, in display values. E.g. a noise of 0.03 gives 7 * (0.03 - 0.013) = 0.12.
# The PSNR gain on a photograph with noise:
#
#     noise    without this limit    with this limit
#     0.03     -0.6 dB               -0.1 dB
#     0.05     -0.4 dB               +0.6 dB
#
# Fine texture is measured as noise, too, up to 0.011 on the photographs of the training. So noise
# below USUAL_NOISE, a little more than 0.011, does not count.
NOISE_FACTOR = 7.0
USUAL_NOISE = 0.013
# K in lambda = 1 + K (q / sigma_b)^2: how strongly z is held near z_0 where q, the expected error
# of the motion in pixels, is large. E.g. with sigma_b = 0.01, lambda is 1.8 for q = 0.1, and 81 for
# q = 1. The PSNR gain changes with another value:
#
#     K / 2      +0.2 dB on the clips coffee and walker in dim light,
#                but -0.15 dB on photographs of the training
#     2.5 K      -0.2 dB on coffee and walker in good light
K = 0.008
# M_0 and M_1 in M = lambda + M_0 + M_1 R, by which residuals are divided. Values 3 times as large
# or as small change the PSNR gain on coffee and walker by 0.03 dB at most. With M_0 = 0 these clips
# gain 0.03 dB less, because a pixel that fits no equation follows noise.
M_0 = 300.0
M_1 = 0.1
# A pixel should move by at most this many RGB pixels from the middle of one group to the middle of
# the next group. If it moved farther, the light between the two points would count nowhere. A
# smaller value needs more groups, and so more time. The PSNR gain on coffee and walker in good
# light, compared with 1.25 pixels:
#
#     2 pixels      -0.2 dB
#     1.5 pixels    -0.01 dB
PIXELS_BETWEEN_GROUPS = 1.25
# The same in dim light, i.e. if a pixel of median light has fewer spikes in the exposure than
# `DIM_SPIKES`. The motion is known less exactly there, so a larger distance loses nothing.
PIXELS_BETWEEN_GROUPS_IF_DIM = 2.5
# This share of the pixels decides the number of groups: for them, the groups are near enough. The
# other pixels move farther. A larger share would need more groups, and so more time.
DECIDING_SHARE = 0.8
# Least number of groups, unless the solver allows fewer. If the deciding pixels stand still, one
# group would be enough for them, but the other pixels (a fifth) may move. The value is a judgement.
LEAST_GROUPS = 6
# Largest number of spike equations of a pixel in an exposure. Fewer equations, of longer intervals,
# would say less about what changes within the exposure. More equations, of shorter intervals, would
# add little, because neighbouring intervals share the rounding of the spike between them.
INTERVALS = 8
# Slopes dx / dz are computed at display values of at least this value, about 10 of 255. At z = 0
# the slope 2.2 z^1.2 is 0, so the weight 1 / (sigma * slope) would be infinite.
DARK = 0.04

# ---- Constants of the guard ----
#
# The guard blends the solution z with the first estimate z_0 at the end, see `guard_solution`.

# The guard compares light in this many planes around the sharp instant. With more planes, a right
# frame would differ from their blurred light. With fewer planes, there would be more noise.
GUARD_PLANES = 9
# The guard takes means over squares of this side, in spike pixels. The side is odd, so that a
# square has a middle pixel. With larger squares, the means have less noise, but they tell less
# exactly where a frame is wrong.
GUARD_SIDE = 7
# The guard assumes that this share of the pixels fits perfectly, up to noise. So their errors show
# what noise alone causes. A larger share would take true errors for noise.
PERFECT_SHARE = 0.2
# Added to squared errors, so that a frame without any error does not divide by 0.
TINY_ERROR = 1e-6

# ---- Constants of what a network sees ----
#
# They are in the channels of `Equations.evidence` and `Equations.pulls`. The weights of the fusion
# "motion" were trained with these values, so another value needs new training.

# The spikes in this many planes count as the spikes of the sharp instant.
INSTANT_PLANES = 9
# The network sees logarithms of these two values, and log(0) is infinite. So each has a least
# value: spikes per plane, and noise in display values.
LEAST_RATE = 1e-3
LEAST_NOISE = 3e-4
# Limits in display values: of a residual of the RGB equations, and of a change of z. A larger
# residual comes from an equation that is wrong (e.g. an occlusion), and would only disturb the
# network.
MOST_RESIDUAL = 0.5
MOST_PULL = 0.3
# The spikes know a grey value with a precision p = 1 / variance. They pull it by a Newton step,
# times p / (p + PRIOR_PRECISION), so a grey value that they hardly know is hardly pulled. E.g. an
# error of 0.01 gives p = 10000 and 0.96 of the step, and an error of 0.05 gives half of the step.
PRIOR_PRECISION = 400.0

# A spike pixel counts as on the frame if more than this share of its points is. All of its points
# must be, but a mean of ones may be rounded to a value below 1. So the limit is a little below 1.
ON_FRAME = 0.999


@dataclass(frozen=True)
class Solver:
    """The settings of the solution.

    The fields are options of `--method joint` (data/motion/method.py), so their names must stay.

    groups: largest G, number of groups of planes. A slow motion gets fewer groups (`group_count`).
    linearisations: number of times that the equations are linearised.
    steps: number of steps of conjugate gradients after each linearisation.
    noise: least sigma_b, error of a blurry pixel in display values. A noisy frame has more.
    guard: ratio of the squared errors of z and z_0 at which both count alike when they are blended.
    E.g. with 2.5, z counts more as long as its squared error is less than 2.5 times that of z_0.
    With 0, z is not blended.
    """

    groups: int = 20
    linearisations: int = 3
    steps: int = 4
    noise: float = 0.01
    guard: float = 2.5


# ---- Light and display values ----------------------------------------------------------------


def light_of(z: Tensor) -> Tensor:
    """Return the light x = z^2.2 of display values z. Values beyond [0, 1] count as 0 or 1."""
    return z.clamp(0, 1) ** DISPLAY_GAMMA


def display_of_light(light: Tensor) -> Tensor:
    """Return the display values z = x^(1 / 2.2) of light. Light beyond [0, 1] counts as 0 or 1."""
    return light.clamp(0, 1) ** (1 / DISPLAY_GAMMA)


def slope_of(z: Tensor) -> Tensor:
    """Return the slope dx / dz at display values z, at least the slope at `DARK`."""
    return DISPLAY_GAMMA * z.clamp(DARK, 1) ** (DISPLAY_GAMMA - 1)


def luma(rgb: Tensor) -> Tensor:
    """Return the luma (1, H, W) of (3, H, W)."""
    return (luma_weights(rgb.device) * rgb).sum(0, keepdim=True)


def luma_weights(device: torch.device) -> Tensor:
    """Return the weights of R, G and B in the luma, (3, 1, 1)."""
    return torch.from_numpy(LUMA).to(device)[:, None, None]


# ---- What the cameras see of the sharp instant -------------------------------------------------


class SpikePixels:
    """D L: the linear map from grey pictures to what spike pixels see. First L blurs, then D reads.

    D: each spike pixel is the mean of m x n samples of the picture, about one for each RGB pixel
    that it covers; (m, n) is `View.points_in_pixel`. A sample is interpolated from four RGB pixels.
    L: the lens blurs by `View.lens_blur` spike pixels.

    It depends on the view alone, so it is made once for all frames of a clip. `adjoint` must stay
    the adjoint of `__call__`; test_the_adjoint_of_the_cameras_is_exact notices.
    """

    def __init__(self, view: View, device: torch.device) -> None:
        self.view = view
        height, width = view.size
        points = view.points_on_frame()  # (h m, w n, 2), x and y in RGB pixels
        positions = torch.from_numpy(points).to(device)

        # D as a matrix (h w, H W), and the transposed matrix for the adjoint.
        entries = _entries_of_means(positions, view)
        pixel_count = height * width
        spike_pixel_count = view.plane[0] * view.plane[1]
        self._D = sparse_matrix(
            entries.spike_pixels, entries.pixels, entries.values, (spike_pixel_count, pixel_count)
        )
        self._D_transposed = sparse_matrix(
            entries.pixels, entries.spike_pixels, entries.values, (pixel_count, spike_pixel_count)
        )

        # Sigma in RGB pixels: sigma in spike pixels, times the RGB pixels along the longer side of
        # a spike pixel. `points_in_pixel` is this number, rounded.
        sigma = view.lens_blur * max(view.points_in_pixel)
        # None: the lens does not blur, so L changes nothing.
        self._kernel = gaussian_kernel(sigma).to(device) if sigma > 0 else None

        # Which spike pixels lie on the frame with all their points, (h, w) bool.
        self.are_on_frame = _shares_on_frame(positions, view) > ON_FRAME

    def __call__(self, pictures: Tensor) -> Tensor:
        """Return D L of N grey pictures (N, H, W): what the spike pixels see, (N, h, w)."""
        pictures = self._lens(pictures)
        # A picture is a column of the right factor, (H W, N).
        columns = pictures.flatten(1).t().contiguous()
        seen = self._D @ columns  # (h w, N)
        return seen.t().reshape(-1, *self.view.plane)

    def adjoint(self, seen: Tensor) -> Tensor:
        """Return the adjoint L^T D^T (N, H, W) of what the spike pixels see, (N, h, w)."""
        columns = seen.flatten(1).t().contiguous()  # (h w, N)
        pictures = self._D_transposed @ columns  # (H W, N)
        pictures = pictures.t().reshape(-1, *self.view.size)
        if self._kernel is None:
            return pictures
        # L^T by autograd: the gradient of a linear map is its adjoint, and it is the same at all
        # inputs, e.g. at zeros. Gradients are switched on here, because callers may run under
        # no_grad.
        with torch.enable_grad():
            zeros = torch.zeros_like(pictures).requires_grad_()
            blurred_zeros = self._lens(zeros)
        [adjoint] = torch.autograd.grad(blurred_zeros, zeros, grad_outputs=pictures)
        return adjoint

    def _lens(self, pictures: Tensor) -> Tensor:
        """Return L of pictures (N, H, W), in the same shape."""
        if self._kernel is None:
            return pictures
        return blur(pictures[:, None], self._kernel)[:, 0]


def _shares_on_frame(positions: Tensor, view: View) -> Tensor:
    """Return the share (h, w) of the points of each spike pixel that lie on the frame.

    positions: (h m, w n, 2), x and y of all points in RGB pixels.
    """
    height, width = view.size
    x = positions[..., 0]  # (h m, w n)
    y = positions[..., 1]
    # The frame ends half a pixel beyond the middles of its outermost pixels, e.g. at -0.5.
    on_frame = (x > -0.5) & (x < width - 0.5) & (y > -0.5) & (y < height - 0.5)
    [shares] = F.avg_pool2d(on_frame.float()[None], view.points_in_pixel)
    return shares


class MatrixEntries(NamedTuple):
    """The entries of the matrix D (h w, H W), each field (entries,).

    Pixels are numbered row by row.
    """

    spike_pixels: Tensor  # number of the spike pixel: the row of the matrix
    pixels: Tensor  # number of the RGB pixel: the column of the matrix
    values: Tensor


def _entries_of_means(positions: Tensor, view: View) -> MatrixEntries:
    """Return the entries of the matrix D, which takes the mean over the samples of a spike pixel.

    A sample lies between four RGB pixels and is interpolated from them. So there is an entry for
    each sample and each of its four pixels:

        entry = (weight of the pixel in the sample) / (number of samples in a spike pixel)

    Samples of a spike pixel may share an RGB pixel. Then several entries have the same place in the
    matrix: they are added.

    positions: (h m, w n, 2), x and y of the samples on the frame. A spike pixel has m x n samples.
    """
    plane_height, plane_width = view.plane
    down, across = view.points_in_pixel
    device = positions.device
    # The spike pixel of each sample. E.g. with 3 samples across, the columns 0 to 2 of samples
    # belong to column 0 of the plane.
    row = torch.arange(plane_height * down, device=device) // down  # (h m,)
    column = torch.arange(plane_width * across, device=device) // across  # (w n,)
    spike_pixel_of_sample = (row[:, None] * plane_width + column).flatten()  # (h m w n,)

    # The four RGB pixels of a sample have the numbers corner + offset.
    corners = corners_of(positions, view.size)
    spike_pixels = []
    pixels = []
    values = []
    for offset, weights in zip(corners.offsets, corners.weights, strict=True):
        # If both cameras are aligned, most weights are 0. Entries of 0 are left out, so that the
        # matrix is smaller.
        counts = weights > 0
        spike_pixels.append(spike_pixel_of_sample[counts])
        pixels.append(corners.corner[counts] + offset)
        values.append(weights[counts] / (down * across))
    return MatrixEntries(torch.cat(spike_pixels), torch.cat(pixels), torch.cat(values))


def positions_of_samples(shifts: Tensor) -> Tensor:
    """Return p + u_g(p): where each group g samples the picture for each pixel p, (G, H, W, 2).

    shifts: u, (G, H, W, 2), x and y in RGB pixels.
    """
    height, width = shifts.shape[1:3]
    y = torch.arange(height, dtype=shifts.dtype, device=shifts.device)
    x = torch.arange(width, dtype=shifts.dtype, device=shifts.device)
    p = torch.stack(torch.meshgrid(x, y, indexing="xy"), dim=-1)  # (H, W, 2)
    return p + shifts


# Largest number of samples that are computed at a time, so that their tensors have at most 32 MB.
# The system gives and takes back the memory of a larger tensor each time, which takes notable time.
# With fewer samples, the sparse matrices have fewer entries in a row, and take longer.
SAMPLES_AT_A_TIME = 2**23
# Shares that differ by less than this count as equal. They differ by rounding alone.
SAME_SHARE = 1e-6


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


def gaussian_kernel(sigma: float) -> Tensor:
    """Return a Gaussian kernel (n,) whose sum is 1. n is odd and reaches to 3 sigma."""
    radius = int(np.ceil(3 * sigma))
    distance = torch.arange(-radius, radius + 1) / sigma
    kernel = torch.exp(-(distance**2) / 2)
    return kernel / kernel.sum()


def blur(pictures: Tensor, kernel: Tensor) -> Tensor:
    """Blur pictures (N, 1, H, W) along rows and columns. Edge pixels are repeated."""
    radius = len(kernel) // 2
    pictures = F.pad(pictures, (radius, radius, radius, radius), mode="replicate")
    along_rows = kernel[None, None, None]  # (1, 1, 1, n)
    along_columns = kernel[None, None, :, None]  # (1, 1, n, 1)
    return F.conv2d(F.conv2d(pictures, along_rows), along_columns)


# ---- What the cameras recorded -----------------------------------------------------------------


def exposure_shares(recording: Recording, edges: np.ndarray, delays: np.ndarray) -> np.ndarray:
    """Return s, the share (G, rows) float32 of each group of planes in the exposure of each row.

    The shares of a row add up to 1.

    edges: (G + 1,) times between the groups.
    delays: (rows,), by how much each row is exposed later than the middle row, in exposures. A row
    without delay is exposed from `recording.begin` to `recording.end`.
    """
    delay = delays * recording.length  # in planes, (rows,)
    row_begins = recording.begin + delay
    row_ends = recording.end + delay
    group_begins = edges[:-1, None]  # (G, 1)
    group_ends = edges[1:, None]

    # The time that a group and the exposure of a row have in common, (G, rows). At least 0: a group
    # may end before the exposure of a row begins.
    overlap_begins = np.maximum(group_begins, row_begins)
    overlap_ends = np.minimum(group_ends, row_ends)
    overlap = np.clip(overlap_ends - overlap_begins, 0, None)
    return (overlap / overlap.sum(0)).astype(np.float32)


class SpikeIntervals(NamedTuple):
    """Intervals between spikes, each field (M, h, w) float32."""

    begins: np.ndarray  # time of the spike that begins the interval, in planes
    ends: np.ndarray  # time of the spike that ends the interval
    # n: number of spikes after `begins` and up to `ends`. Each spike stands for one threshold of
    # light. 0: the pixel has no interval here, and `begins` and `ends` mean nothing.
    thresholds: np.ndarray


# A spike ends its plane, so the first possible time of a spike is 1, and 0 can mean "no spike".
NO_SPIKE = 0


def spike_intervals(stream: np.ndarray, edges: np.ndarray) -> SpikeIntervals:
    """Find one interval of each pixel between every two edges: from one spike to a later spike.

    An interval begins at the spike that is nearest to one edge, and ends at the spike that is
    nearest to a later edge. Only spikes from edges[0] to edges[-1] count. For example, a pixel with
    spikes at the times 3, 9 and 16:

        edges              2    8    14    17
        nearest spikes     3    9    16    16
        intervals            3-9  9-16  none

    The intervals of a pixel never overlap, so no light is counted twice. The tests of spike
    intervals in test_joint.py notice a wrong begin, end or count.

    stream: (T, h, w) uint8 in {0, 1}. edges: (M + 1,) times, ascending whole planes.
    """
    nearest = _nearest_spikes(stream, edges.tolist())
    # Join the nearest spikes of neighbouring edges to intervals.
    begins = []
    ends = []
    thresholds = []
    begin_spike = nearest[0]  # where the next interval of each pixel begins
    for end_spike in nearest[1:]:
        has_begin = begin_spike.time > NO_SPIKE
        is_interval = has_begin & (end_spike.time > begin_spike.time)
        begins.append(begin_spike.time)
        ends.append(end_spike.time)
        thresholds.append(np.where(is_interval, end_spike.count - begin_spike.count, 0))

        # Where the next interval of each pixel begins:
        #
        #     this interval exists          at its end
        #     the pixel had no spike yet    at the nearest spike of this edge, if there is one
        #     else                          the begin stays, and the interval ends at a later edge
        #
        # "Else" means that both edges have the same nearest spike, or that no spike follows.
        begins_here = is_interval | ~has_begin
        begin_spike = NearestSpikes(
            time=np.where(begins_here, end_spike.time, begin_spike.time),
            count=np.where(begins_here, end_spike.count, begin_spike.count),
        )
    return SpikeIntervals(
        np.stack(begins).astype(np.float32),
        np.stack(ends).astype(np.float32),
        np.stack(thresholds).astype(np.float32),
    )


class NearestSpikes(NamedTuple):
    """The spike of each pixel that is nearest to an edge, each field (h, w)."""

    time: np.ndarray  # in planes; NO_SPIKE where no spike counts
    count: np.ndarray  # number of spikes up to this spike, this spike too


def _nearest_spikes(stream: np.ndarray, edges: list[int]) -> list[NearestSpikes]:
    """Return the nearest spikes to each edge. Of two equally near spikes, the earlier one counts.

    stream, edges: see `spike_intervals`.
    """
    after_stream = len(stream) + 1  # a time later than each spike
    pieces = _spikes_before_edges(stream, edges, no_first=after_stream)
    next_spikes = _next_spikes(pieces, after_stream)

    # The nearest spike to an edge is the last spike up to the edge, or the next spike after it.
    # E.g. the edge 8 and spikes at 3, 9 and 16: the last spike is 3, the next spike 9 is nearer.
    nearest = []
    last_spike = np.full(stream.shape[1:], NO_SPIKE, np.int32)
    count = np.zeros(stream.shape[1:], np.int32)  # number of spikes up to the edge
    for edge, piece, next_spike in zip(edges, pieces, next_spikes, strict=True):
        last_spike = np.maximum(last_spike, piece.last_spike)
        count = count + piece.count
        has_last = last_spike > NO_SPIKE
        has_next = next_spike < after_stream
        is_last_nearer = edge - last_spike <= next_spike - edge
        takes_last = has_last & (~has_next | is_last_nearer)
        takes_next = ~takes_last & has_next
        next_or_none = np.where(has_next, next_spike, NO_SPIKE)
        time = np.where(takes_last, last_spike, next_or_none)
        # `count` is the number of spikes up to the edge, and the next spike is one more.
        nearest.append(NearestSpikes(time, count + takes_next))
    return nearest


def _next_spikes(pieces: list["SpikesBeforeEdge"], after_stream: int) -> list[np.ndarray]:
    """Return the time of the first spike after each edge, (h, w) for each edge.

    It is `after_stream` where no spike follows. Spikes after the last edge do not count.
    pieces: the spikes before each edge, from `_spikes_before_edges`.
    """
    next_spike = np.full(pieces[0].first_spike.shape, after_stream, np.int32)
    next_spikes = [next_spike]  # of the last edge: no spike counts
    # From the last edge back: the first spike after an edge is in the piece between this edge and
    # the following edge. If it has none, it is the first spike after the following edge.
    for piece in reversed(pieces[1:]):
        next_spike = np.minimum(piece.first_spike, next_spike)
        next_spikes.insert(0, next_spike)
    return next_spikes


class SpikesBeforeEdge(NamedTuple):
    """The spikes of each pixel between an edge and the edge before it, each field (h, w)."""

    first_spike: np.ndarray  # time of the first spike; a time after the stream if there is none
    last_spike: np.ndarray  # time of the last spike; NO_SPIKE if there is none
    count: np.ndarray  # number of spikes


def _spikes_before_edges(
    stream: np.ndarray, edges: list[int], no_first: int
) -> list[SpikesBeforeEdge]:
    """Divide the stream at the edges into pieces, and find the spikes of each piece.

    A piece ends at its edge. E.g. a pixel with spikes at the times 3, 9 and 16:

        edge    planes of the piece    first_spike, last_spike, count
        2       1                      no_first, NO_SPIKE, 0
        8       2 to 7                 3, 3, 1
        14      8 to 13                9, 9, 1

    The first piece has one plane, whose spikes have the time edges[0]. They are the earliest spikes
    that count.
    no_first: `first_spike` where a pixel has no spike. stream, edges: see `spike_intervals`.
    """
    # At least 0: the first edge may be at time 0. No plane ends there, so its piece is empty.
    begin_of_first_piece = max(edges[0] - 1, 0)
    piece_begins = [begin_of_first_piece, *edges[:-1]]
    pieces = []
    for piece_begin, edge in zip(piece_begins, edges, strict=True):
        planes = stream[piece_begin:edge]
        # A spike has the time at which its plane ends.
        plane_ends = np.arange(piece_begin + 1, edge + 1, dtype=np.int32)[:, None, None]
        spike_times = np.where(planes, plane_ends, no_first)  # (planes, h, w)
        # `initial` is the result for an empty piece.
        first_spike = spike_times.min(axis=0, initial=no_first)
        last_spike = (planes * plane_ends).max(axis=0, initial=NO_SPIKE)
        count = planes.sum(axis=0, dtype=np.int32)
        pieces.append(SpikesBeforeEdge(first_spike, last_spike, count))
    return pieces


def rate_around_sharp(recording: Recording, planes: int) -> np.ndarray:
    """Return the spikes per plane (h, w) in `planes` planes around the sharp instant."""
    window = recording.window(recording.sharp, planes)
    [rates] = recording.spike_rates([window])
    return rates


def tensor_of(values: np.ndarray, device: torch.device) -> Tensor:
    """Return an array as a float32 tensor on a device."""
    return torch.from_numpy(np.asarray(values, np.float32)).to(device)


# ---- The equations -----------------------------------------------------------------------------


class PlaneGroups(NamedTuple):
    """The groups of planes of an exposure, and the motion of each group."""

    edges: np.ndarray  # (G + 1,) times between the groups, in planes
    shifts: Tensor  # u, (G, H, W, 2) in RGB pixels
    shares: Tensor  # s, (G, H)
    motion_error: Tensor  # q, (H, W): expected error of the shifts in pixels, mean over groups


def group_count(recording: Recording, motion: Motion, most_groups: int) -> int:
    """Return G, the number of groups that a motion needs, at most `most_groups`.

    For example, if 80 % of the pixels move by up to 20 pixels in good light, 16 groups are needed:
    from one group to the next these pixels move by at most 20 / 16 = 1.25 pixels.
    """
    # How far each pixel moves, (H, W): the sum of the lengths of its moves from each time of the
    # motion to the next. One move after the other, because an array of all moves of a large frame
    # would take longer.
    distance = np.zeros(motion.shifts.shape[1:3], np.float32)
    for shifts, next_shifts in itertools.pairwise(motion.shifts):
        move = next_shifts - shifts  # (H, W, 2)
        x = move[..., 0]
        y = move[..., 1]
        distance += np.sqrt(x * x + y * y)
    deciding_distance = float(np.quantile(distance, DECIDING_SHARE))
    if median_spikes(recording) < DIM_SPIKES:
        between_groups = PIXELS_BETWEEN_GROUPS_IF_DIM
    else:
        between_groups = PIXELS_BETWEEN_GROUPS
    needed_groups = math.ceil(deciding_distance / between_groups)
    return min(max(needed_groups, LEAST_GROUPS), most_groups)


def plane_groups(
    recording: Recording, view: View, motion: Motion, groups: int, device: torch.device
) -> PlaneGroups:
    """Divide the exposure of all rows into groups of planes, and find the shifts of each group.

    groups: G, number of groups. E.g. 60 planes from 0 to 60 and 6 groups: the edges are 0, 10, ...
    60, and a group has the shifts at its middle, 5, 15, ... 55.
    """
    # With a rolling shutter some rows are exposed earlier than the middle row, and some later. So
    # the groups reach from the begin of the earliest row to the end of the latest row.
    delays = view.delays()  # of each row after the middle row, in exposures
    begin_of_rows = recording.begin + delays.min() * recording.length
    end_of_rows = recording.end + delays.max() * recording.length
    edges = np.linspace(begin_of_rows, end_of_rows, groups + 1)
    middles = (edges[:-1] + edges[1:]) / 2

    # All planes of a group have the same shifts: the shifts at the middle of the group.
    shifts = []  # (H, W, 2) of each group
    errors = []  # (H, W) of each group
    for time in middles.tolist():
        shifts_to_sharp, errors_of_shifts = motion.back(time - recording.sharp)
        shifts.append(shifts_to_sharp)
        errors.append(errors_of_shifts)
    shares = exposure_shares(recording, edges, delays)
    return PlaneGroups(
        edges,
        tensor_of(np.stack(shifts), device),
        tensor_of(shares, device),
        tensor_of(np.mean(errors, axis=0), device),
    )


class SpikeEquations(NamedTuple):
    """The spike equations S l = y of an exposure, M for each spike pixel: M = INTERVALS."""

    coverage: Tensor  # c, (M, G, h, w): share of each of G groups of planes in each interval
    y: Tensor  # (M, h, w): measured grey value
    weights: Tensor  # w_s, (M, h, w): 1 / (error in light), 0 for an equation that is not used
    median_rate: float  # spikes per plane in a median interval, at least LEAST_RATE


def spike_equations(
    recording: Recording,
    pixels: SpikePixels,
    group_edges: np.ndarray,
    gain: np.ndarray,
    is_good: np.ndarray,
    device: torch.device,
) -> SpikeEquations:
    """Make the spike equations of an exposure: one for each interval between two spikes of a pixel.

    pixels: what the spike pixels see of the frame. Here it says which of them lie on the frame.
    group_edges: (G + 1,), times between the groups of planes.
    gain: (h, w), spikes per plane of each spike pixel at full light.
    is_good: (h, w), whether each spike pixel can be trusted.
    """
    # Cut the exposure into M = INTERVALS windows of equal length. Each pixel has about one interval
    # in each window, from the spike nearest to its begin to the spike nearest to its end. The edges
    # are whole, because spikes have whole times.
    window_edges = np.linspace(recording.begin, recording.end, INTERVALS + 1).round().astype(int)
    intervals = spike_intervals(recording.stream, window_edges)
    begins = tensor_of(intervals.begins, device)  # (M, h, w)
    ends = tensor_of(intervals.ends, device)  # (M, h, w)
    n = tensor_of(intervals.thresholds, device)  # (M, h, w), 0 where a pixel has no interval
    has_interval = n > 0
    lengths = (ends - begins).clamp(min=1)  # at least 1: it may be 0 without an interval
    coverage = _coverage(begins, ends, lengths, tensor_of(group_edges, device))

    r = n / lengths  # spikes per plane, (M, h, w)
    y = r / tensor_of(gain, device)  # y = n / (gain (end - begin))

    # The weight w_s = 1 / error. A pixel without an interval has no equation, so its weight is 0. A
    # pixel beside the frame, or a dead pixel, says nothing of the frame.
    is_used = has_interval & pixels.are_on_frame & torch.from_numpy(is_good).to(device)
    weights = is_used / _errors_in_light(y, r, n, pixels.view.is_display)

    # The median over all intervals. A dark exposure may have no interval at all.
    median_rate = LEAST_RATE
    if has_interval.any():
        rates_of_intervals = r[has_interval].cpu().numpy()
        median_rate = max(float(np.median(rates_of_intervals)), LEAST_RATE)
    return SpikeEquations(coverage, y, weights, median_rate)


def _coverage(begins: Tensor, ends: Tensor, lengths: Tensor, group_edges: Tensor) -> Tensor:
    """Return c, (M, G, h, w): the share of each group of planes in each interval between spikes.

        c = (time that the group and the interval have in common) / (length of the interval)

    E.g. the interval from 10 to 15 and the group from 12 to 20: c = 3 / 5.

    begins, ends, lengths: begin, end and length of each interval in planes, (M, h, w).
    group_edges: (G + 1,), times between the groups, in planes.
    """
    group_begins = group_edges[:-1, None, None]  # (G, 1, 1)
    group_ends = group_edges[1:, None, None]
    overlap_begins = torch.maximum(begins[:, None], group_begins)  # (M, G, h, w)
    overlap_ends = torch.minimum(ends[:, None], group_ends)
    # In place, because each of these tensors has a hundred megabytes for a large frame. At least 0:
    # a group may end before the interval begins.
    overlap = overlap_ends.sub_(overlap_begins).clamp_(min=0)
    return overlap.div_(lengths[:, None])


def _errors_in_light(y: Tensor, r: Tensor, n: Tensor, is_display: bool) -> Tensor:
    """Return the expected error of each measured grey value y, in the unit of y.

    The error is computed in display values first, because SIGMA_S is a display value.

    y: grey values, light or display values. r: spikes per plane. n: thresholds between two spikes,
    0 without an interval. All (M, h, w), as the result.
    is_display: whether the camera integrates display values, so that y is a display value.
    """
    # var(n) = r^2 / 6 + j^2 n. y is proportional to n, so both have the relative error
    # sqrt(var(n)) / n. At least 1, because n is 0 without an interval.
    variance_of_n = r**2 / 6 + JITTER**2 * n
    relative_error = variance_of_n.sqrt() / n.clamp(min=1)

    # The error in display values, and the slope dy / dz from display values to the unit of y.
    if is_display:
        error_of_display = y.clamp(DARK, 1) * relative_error
        slope = torch.ones_like(y)
    else:
        # z = y^(1 / 2.2), so the relative error of z is the relative error of y over 2.2.
        display = display_of_light(y)
        error_of_display = display.clamp(DARK, 1) * relative_error / DISPLAY_GAMMA
        slope = slope_of(display)

    # The errors of motion and optics are independent of the errors of n, so the squares add up.
    variance = error_of_display.square() + SIGMA_S**2
    return variance.sqrt() * slope


# Residuals of both cameras: b - B x (3, H, W), and y - S l (M, h, w).
Residuals = tuple[Tensor, Tensor]


class Equations:
    """All equations of one exposure, their solution, and their values as inputs of a network.

    `solve` is for `--method joint`. `blurry`, `proposal`, `evidence` and `pulls` are for the fusion
    "motion" (utils.contract.JointEquations): their names and what they return must stay.

    Its results do not change after it is made, so one object may be solved, and then be given to a
    network.

    Attributes:
    solver, pixels: the arguments of the constructor.
    is_display: whether the spike camera integrates display values.
    cameras: A = (B, S), what both cameras see of a frame.
    b, w_b: right side and weights of the RGB equations B x = b, (3, H, W).
    y, w_s: right side and weights of the spike equations S l = y, (M, h, w).
    blurry: the blurry frame (3, H, W), display values.
    noise: standard deviation of the noise of the blurry frame, in display values.
    prior_weight: lambda, how strongly each pixel is held near z_0, (H, W).
    motion_length, motion_error: length and expected error of the motion of each pixel, the mean
    over the groups, (H, W) in pixels.
    median_rate: spikes per plane in a median interval.
    instant: display values (h, w) that the spikes around the sharp instant show.
    """

    def __init__(
        self,
        recording: Recording,
        pixels: SpikePixels,
        motion: Motion,
        gain: np.ndarray,
        is_good: np.ndarray,
        solver: Solver,
        device: torch.device,
    ) -> None:
        """Set up the equations.

        recording: what was recorded of the frame. motion: the motion within its exposure.
        pixels: the map to the spike pixels; it may be used for all frames of a clip.
        gain: (h, w), spikes per plane of each spike pixel at full light.
        is_good: (h, w), whether each spike pixel can be trusted.
        solver: the settings. device: where all tensors are.
        """
        view = pixels.view
        self.solver = solver
        self.pixels = pixels
        self.is_display = view.is_display

        # The motion: groups of planes, and the shifts of each group.
        count = group_count(recording, motion, solver.groups)
        groups = plane_groups(recording, view, motion, count, device)
        self.motion_error = groups.motion_error  # q, (H, W)
        lengths = torch.hypot(groups.shifts[..., 0], groups.shifts[..., 1])  # (G, H, W)
        self.motion_length = lengths.mean(0)

        # The RGB equations B x = b, with the weights w_b = 1 / (sigma_b * slope). The error sigma_b
        # of a blurry pixel is `solver.noise`, or more if the frame is noisy.
        blurry = tensor_of(recording.blurry, device).permute(2, 0, 1)
        self.blurry = blurry
        self.noise = noise_of(luma(blurry)[0])
        sigma_b = max(solver.noise, NOISE_FACTOR * (self.noise - USUAL_NOISE))
        self.b = light_of(blurry)
        self.w_b = 1 / (sigma_b * slope_of(blurry))

        # The spike equations S l = y, and both maps together: A = (B, S).
        spikes = spike_equations(recording, pixels, groups.edges, gain, is_good, device)
        self.y = spikes.y
        self.w_s = spikes.weights
        self.median_rate = spikes.median_rate
        self.cameras = Cameras(pixels, groups.shifts, groups.shares, spikes.coverage)

        # How strongly z is held near z_0: lambda = 1 + K (q / sigma_b)^2, (H, W).
        self.prior_weight = 1 + K * (groups.motion_error / sigma_b) ** 2

        # What only `pulls` needs: what the spikes around the sharp instant show, in display values
        # (h, w), and where each RGB pixel lies on the spike plane.
        rate = rate_around_sharp(recording, INSTANT_PLANES)
        self.instant = self._display_of(tensor_of(rate / gain, device))
        on_plane = torch.from_numpy(view.pixels_on_plane()).to(device)
        self._positions_on_plane = grid_positions(on_plane, view.plane)  # (1, H, W, 2)
        # Two results are kept, to save time. None: not computed yet.
        #
        # The result of `_precision`, because it does not depend on z, and the steps of a network
        # need it several times.
        self._kept_precision: Tensor | None = None
        # The first frame whose residuals were computed, and its residuals. This frame is z_0, where
        # the solution begins and then the steps of a network begin again.
        self._first_residuals: tuple[Tensor, Residuals] | None = None

    def residuals(self, z: Tensor) -> Residuals:
        """Return the residuals b - B x (3, H, W) and y - S l (M, h, w) of a frame z (3, H, W)."""
        if self._first_residuals is None:
            self._first_residuals = (z, self._compute_residuals(z))
        first_z, residuals_of_first = self._first_residuals
        if torch.equal(z, first_z):
            return residuals_of_first
        return self._compute_residuals(z)

    def _compute_residuals(self, z: Tensor) -> Residuals:
        """Compute what `residuals` returns."""
        # None: the camera integrates light, and `Cameras` computes the luma of the light itself.
        integrated = luma(z) if self.is_display else None
        blurry_seen, spikes_seen = self.cameras(light_of(z), integrated)
        return self.b - blurry_seen, self.y - spikes_seen

    def robust_weights(self, r_b: Tensor, r_s: Tensor) -> tuple[Tensor, Tensor]:
        """Return w_b and w_s, made smaller where the residuals r are large.

            w / sqrt(1 + (w r / c)^2)       c = CAUCHY

        Least squares with these weights minimise Cauchy's rho. E.g. with c = 2, an equation whose
        residual is twice its expected error 1 / w gets the weight w / sqrt(2).

        r_b: (3, H, W). r_s: (M, h, w). Returns weights of the same shapes. The three colours of a
        pixel are weakened alike, by the mean of their squares, because one motion moves all three.
        """
        # (w r / c)^2 of each equation. It is 1 where the residual is c times its expected error.
        squares_b = ((self.w_b * r_b) ** 2).mean(0, keepdim=True) / CAUCHY**2  # (1, H, W)
        squares_s = (self.w_s * r_s) ** 2 / CAUCHY**2  # (M, h, w)
        weights_b = self.w_b / (1 + squares_b).sqrt()
        weights_s = self.w_s / (1 + squares_s).sqrt()
        return weights_b, weights_s

    # ---- The solution ----

    def solve(self, z_0: Tensor) -> Tensor:
        """Return the solution z (3, H, W) of the equations. z_0: first estimate (3, H, W)."""
        z = z_0
        for _ in range(self.solver.linearisations):
            z = self._solve_linearised(z, z_0)
        return z

    def _solve_linearised(self, z: Tensor, z_0: Tensor) -> Tensor:
        """Return z (3, H, W) after the equations are linearised at z and solved.

        `apply_adjoint` must stay the adjoint of `apply_map`.
        test_the_first_step_changes_the_frame_as_the_equations_pull_it notices a wrong adjoint.
        """
        r_b, r_s = self.residuals(z)
        w_b, w_s = self.robust_weights(r_b, r_s)
        slope = slope_of(z)  # dx / dz

        def apply_map(d: Tensor) -> tuple[Tensor, Tensor]:
            """Return w A d: by how much a change d of z changes what the cameras see, times w."""
            change_of_light = slope * d
            # A camera that integrates light sees the luma of the change of light.
            change_integrated = luma(d) if self.is_display else None
            blurry, spikes = self.cameras(change_of_light, change_integrated)
            return blurry.mul_(w_b), spikes.mul_(w_s)

        def apply_adjoint(blurry: Tensor, spikes: Tensor) -> Tensor:
            """Return A^T w of (blurry, spikes): the adjoint of `apply_map`, (3, H, W)."""
            # Back to light x (3, H, W), and to what the spike camera integrates, l (1, H, W).
            to_x, to_l = self.cameras.adjoint(w_b * blurry, w_s * spikes)
            # The adjoint of the luma: `weights * to_l`, (3, H, W). In place, to save memory.
            weights = luma_weights(to_l.device)
            if self.is_display:
                return to_x.mul_(slope).addcmul_(weights, to_l)  # slope to_x + weights to_l
            return to_x.addcmul_(weights, to_l).mul_(slope)  # slope (to_x + weights to_l)

        # The right side: A^T W r - lambda (z - z_0)
        right_side = apply_adjoint(w_b * r_b, w_s * r_s) - self.prior_weight * (z - z_0)
        d = conjugate_gradients(
            apply_map,
            apply_adjoint,
            prior=self.prior_weight,
            right_side=right_side,
            divisor=self._divisor(w_b, w_s, slope),
            steps=self.solver.steps,
        )
        return (z + d).clamp(0, 1)

    def _divisor(self, w_b: Tensor, w_s: Tensor, slope: Tensor) -> Tensor:
        """Return M = lambda + M_0 + M_1 R, (3, H, W), the divisor of residuals.

        R: the sum of each row of A^T W A over the pixels of one colour. It is taken as if the
        slope were the same at all pixels that an equation adds up.
        w_b, w_s: weights of the equations. slope: dx / dz, (3, H, W).
        """
        # The sums of all rows of a matrix are its product with a picture of ones. B takes means, so
        # B 1 = 1, and the sums of B^T w_b^2 B are B^T w_b^2. S takes means, too.
        sums_x, sums_l = self.cameras.adjoint(w_b**2, w_s**2)
        # The luma has a weight for each colour. It comes twice, once in S and once in S^T.
        sums_rgb = luma_weights(sums_l.device) ** 2 * sums_l  # (3, H, W)
        if self.is_display:
            row_sums = slope**2 * sums_x + sums_rgb
        else:
            row_sums = slope**2 * (sums_x + sums_rgb)
        return self.prior_weight + M_0 + M_1 * row_sums

    # ---- For a network that takes steps on the equations (models/fusion/fusion_motion.py) ----
    #
    # The network was trained on these channels. It still runs if they come in another order or with
    # another factor, but its frames are worse. tests/stories/test_motion_weights.py notices if the
    # first two channels of `evidence` change places, and
    # test_the_equations_pull_a_frame_towards_the_sharp_one if the changes of colours and grey do in
    # `pulls`.

    def proposal(self, z_0: Tensor) -> Tensor:
        """Return the solution z (3, H, W), towards which a step of the network may go.

        z_0: first estimate (3, H, W). The name belongs to utils.contract.JointEquations.
        """
        return self.solve(z_0)

    def evidence(self) -> Tensor:
        """Return what is known of each pixel before any step: six channels (6, H, W).

        0  precision of its grey value by the spikes, logarithm
        1  length of its motion, root
        2  expected error of this motion, root
        3  spikes per plane of a median interval, logarithm, the same everywhere
        4  noise of the blurry frame, logarithm, the same everywhere
        5  share of the pixels that move by more than one pixel, the same everywhere

        The factors and offsets bring each channel to about 1 or less. A new channel needs another
        number of channels in models/fusion/fusion_motion.py, and new training.
        """
        # Numbers of each pixel, (H, W) each. The precision is at least 1, because it is 0 for a
        # pixel without spikes, and log(0) is infinite.
        precision = self._precision().clamp(min=1).log10() - 3  # e.g. an error of 0.03 -> 0
        motion_length = 0.3 * self.motion_length.sqrt()  # e.g. 11 pixels -> 1
        motion_error = 0.3 * self.motion_error.sqrt()

        # Numbers of the whole frame.
        rate_of_frame = math.log10(max(self.median_rate, LEAST_RATE)) + 1  # e.g. 0.1 -> 0
        noise_of_frame = math.log10(max(self.noise, LEAST_NOISE)) + 2.5  # e.g. 0.003 -> 0
        moving_of_frame = (self.motion_length > 1).float().mean()  # 0 to 1

        channels = [precision, motion_length, motion_error]
        for number in (rate_of_frame, noise_of_frame, moving_of_frame):
            # On the device and in the type of the other channels.
            number = torch.as_tensor(number).to(motion_length)
            channels.append(number.expand(motion_length.shape))  # the same in all pixels
        return torch.stack(channels)

    def pulls(self, z: Tensor) -> Tensor:
        """Return how the equations would change a frame z (3, H, W): seven channels (7, H, W).

        0 to 2  change of each colour by the RGB equations, in display values
        3       change of the grey value by the spike equations, in display values
        4       size of the residuals of the RGB equations at this pixel, in display values
        5       size of the residuals of the spike equations at this pixel, 0 to 1
        6       by how much the spikes of the sharp instant are brighter than z, in display values
        """
        r_b, r_s = self._limited_residuals(z)
        colour_change, grey_change = self._changes(z, r_b, r_s)  # (3, H, W) and (1, H, W)
        size_of_r_b = luma(r_b.abs())  # (1, H, W)

        # Channels 5 and 6 are known for spike pixels (h, w), and are interpolated to RGB pixels.
        size_of_r_s = r_s.abs().mean(0) / CAUCHY  # (h, w), at most 1
        seen_of_z = self.pixels(self._integrated(z))[0]  # what spike pixels see of z, (h, w)
        brightness_missing = self.instant - self._display_of(seen_of_z)  # display values, (h, w)
        on_plane = torch.stack((size_of_r_s, brightness_missing))[None]  # (1, 2, h, w)
        [spike_channels] = F.grid_sample(  # (2, H, W)
            on_plane, self._positions_on_plane, padding_mode="border", align_corners=True
        )
        # 3 + 1 + 1 + 2 channels
        return torch.cat((colour_change, grey_change, size_of_r_b, spike_channels))

    def _limited_residuals(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """Return the residuals of a frame z (3, H, W) without large values.

        Returns the residuals of the RGB equations in display values, (3, H, W), and the residuals
        of the spike equations in multiples of their error, (M, h, w).
        """
        r_b, r_s = self.residuals(z)  # in light
        r_b = r_b / slope_of(self.blurry)  # in display values
        r_b = r_b.clamp(-MOST_RESIDUAL, MOST_RESIDUAL)
        # r / sqrt(1 + (r / c)^2) limits the residuals to c = CAUCHY. E.g. with c = 2: 0.1 stays
        # 0.1, and 20 becomes 1.99.
        r_s = self.w_s * r_s
        r_s = r_s / (1 + (r_s / CAUCHY) ** 2).sqrt()
        return r_b, r_s

    def _changes(self, z: Tensor, r_b: Tensor, r_s: Tensor) -> tuple[Tensor, Tensor]:
        """Return how the equations would change a frame z, in display values.

        Returns the change of each colour by the RGB equations, (3, H, W), and the change of the
        grey value by the spike equations, (1, H, W).

        r_b, r_s: from `_limited_residuals`.
        """
        # The gradients A^T W r by light x and by grey values l, where r are residuals in light. For
        # the blurry frame W = 1 / slope^2, and r_b is r / slope already. For the spikes W = w_s^2,
        # and r_s is w_s r already.
        gradient_x, gradient_l = self.cameras.adjoint(r_b / slope_of(self.blurry), self.w_s * r_s)
        # The slope dx / dz at z turns the gradient by light into the gradient by display values.
        colour_change = gradient_x * slope_of(z)
        # A Newton step of the grey value: gradient / (precision + prior precision).
        gradient_grey = gradient_l * self._slope_of_grey(z)
        grey_change = gradient_grey / (self._precision() + PRIOR_PRECISION)
        return (
            colour_change.clamp(-MOST_PULL, MOST_PULL),
            grey_change.clamp(-MOST_PULL, MOST_PULL),
        )

    def _precision(self) -> Tensor:
        """Return 1 / variance (H, W) of the grey display values, as the spikes alone know them.

        Each spike equation adds its weight w_s^2 to the pixels that it sees: S^T w_s^2. The square
        of the slope turns 1 / variance of light into 1 / variance of display values.
        """
        if self._kept_precision is None:
            in_light = self.cameras.adjoint_of_spikes(self.w_s**2)  # (1, H, W)
            slope = self._slope_of_grey(self.blurry)
            self._kept_precision = in_light[0] * slope[0] ** 2
        return self._kept_precision

    # ---- What the spike camera integrates: light, or display values ----

    def _slope_of_grey(self, z: Tensor) -> Tensor:
        """Return the slope (1, H, W) from grey display values to what the camera integrates."""
        return torch.ones_like(z[:1]) if self.is_display else slope_of(luma(z))

    def _integrated(self, z: Tensor) -> Tensor:
        """Return l (1, H, W), what the spike camera integrates of a frame z (3, H, W)."""
        return luma(z if self.is_display else light_of(z))

    def _display_of(self, integrated: Tensor) -> Tensor:
        """Return the display values of what the spike camera integrated, in the same shape."""
        return integrated.clamp(0, 1) if self.is_display else display_of_light(integrated)


def noise_of(grey: Tensor) -> float:
    """Return the standard deviation of the noise of a picture (H, W).

    It is estimated from second differences, which are 0 on flat places and on ramps without noise.
    Most places of a picture are flat. So the median of the sizes of the differences shows the noise
    alone. The method is that of Immerkaer (CVIU 1996), who takes the mean in place of the median.
    """
    if min(grey.shape) < 3:
        return 0.0  # the picture is smaller than the kernel
    kernel = torch.tensor([[1.0, -2, 1], [-2, 4, -2], [1, -2, 1]], device=grey.device)
    second = F.conv2d(grey[None, None], kernel[None, None])  # (1, 1, H - 2, W - 2)
    median_size = float(second.abs().median())
    # The squares of the kernel sum up to 36. So the deviation of the second differences is 6 times
    # the deviation of the noise. The median size of normal noise is 0.6745 of its deviation.
    return median_size / 0.6745 / 6


# ---- Linear algebra ----------------------------------------------------------------------------

# A linear map from a frame (3, H, W) to the values of both cameras, (3, H, W) and (M, h, w).
Linear = Callable[[Tensor], tuple[Tensor, Tensor]]
# The map back, from the values of both cameras to a frame.
Adjoint = Callable[[Tensor, Tensor], Tensor]


def conjugate_gradients(
    linear: Linear,
    adjoint: Adjoint,
    prior: Tensor,
    right_side: Tensor,
    divisor: Tensor,
    steps: int,
) -> Tensor:
    """Return d after `steps` steps from 0 towards the solution of N d = right_side.

    N = adjoint linear + prior. The steps are preconditioned conjugate gradients (Saad, Iterative
    Methods for Sparse Linear Systems, 2003, algorithm 9.1).
    test_conjugate_gradients_solve_the_normal_equations notices a wrong step.

    prior: (H, W), positive, so N is positive definite.
    right_side: (3, H, W), in the normal equations A^T W r - lambda (z - z_0).
    divisor: M, positive, in the shape of `right_side`. The nearer M is to N, the fewer steps are
    needed. With ones, the steps are conjugate gradients without preconditioner.
    """
    d = torch.zeros_like(right_side)
    residual = right_side.clone()  # right_side - N d, with d = 0
    divided_residual = residual / divisor  # M^-1 residual
    direction = divided_residual.clone()
    energy = _product(residual, divided_residual)  # <residual, M^-1 residual>
    # A residual may become 0 after few steps. Then `energy` is 0, too, and 0 / 0 would be NaN.
    tiny = torch.finfo(right_side.dtype).tiny
    # In place, because each tensor of a large frame has ten megabytes or more.
    for number in range(1, steps + 1):
        # <direction, N direction> = |linear direction|^2 + <direction, prior direction>
        blurry, spikes = linear(direction)
        prior_direction = prior * direction
        curvature = (
            _product(blurry, blurry)
            + _product(spikes, spikes)
            + _product(direction, prior_direction)
        )
        step_length = energy / curvature.clamp(min=tiny)
        d.addcmul_(step_length, direction)
        if number == steps:
            break  # no direction follows, so the adjoint is not needed
        normal_direction = adjoint(blurry, spikes).add_(prior_direction)  # N direction
        residual.addcmul_(step_length, normal_direction, value=-1)
        torch.div(residual, divisor, out=divided_residual)
        # The next direction: the divided residual, plus a multiple of this direction.
        former_energy = energy
        energy = _product(residual, divided_residual)
        direction.mul_(energy / former_energy.clamp(min=tiny)).add_(divided_residual)
    return d


def _product(a: Tensor, b: Tensor) -> Tensor:
    """Return <a, b>, the sum of the products of all values (a scalar)."""
    return torch.dot(a.flatten(), b.flatten())


# ---- The guard ---------------------------------------------------------------------------------


def guard_solution(
    z: Tensor,
    z_0: Tensor,
    recording: Recording,
    pixels: SpikePixels,
    gain: np.ndarray,
    guard: float,
) -> tuple[Tensor, Tensor]:
    """Blend z with z_0 by how well each fits the spikes around the sharp instant.

        weight of z = 1 / (1 + (a / (guard a_0))^2)

    a and a_0 are the squared errors of z and z_0. For example, with guard 2.5 the weight of z is
    1/2 where a = 2.5 a_0, and 1 / (1 + 0.4^2) = 0.86 where both fit alike (a = a_0).

    test_the_guard_saves_a_good_start_from_a_wrong_motion notices a wrong weight. No test notices if
    the error by noise is left out.

    z, z_0: the solution and the first estimate, (3, H, W).
    gain: (h, w), spikes per plane of each spike pixel at full light.
    guard: a / a_0 at which both count alike; with 0, z is returned.
    Returns the frame (3, H, W), and the weight of z (H, W) in [0, 1].
    """
    if guard == 0:  # the formula would divide by 0
        return z, torch.ones_like(z[0])
    rate = rate_around_sharp(recording, GUARD_PLANES)
    y = torch.from_numpy(rate / gain).to(z.device)  # grey values that the spikes measure, (h, w)
    error_of_z = _error_at_instant(z, y, pixels)  # (h, w)
    error_of_z_0 = _error_at_instant(z_0, y, pixels)
    # The error by noise is added to both errors. Otherwise the weight would follow the noise where
    # both fit.
    error_by_noise = _error_by_noise(error_of_z, error_of_z_0) + TINY_ERROR

    # weight = 1 / (1 + (a / (guard a_0))^2)
    a = error_of_z + error_by_noise
    a_0 = error_of_z_0 + error_by_noise
    weight = 1 / (1 + (a / (guard * a_0)) ** 2)  # (h, w)

    # Interpolate the weights of spike pixels to RGB pixels.
    on_plane = torch.from_numpy(pixels.view.pixels_on_plane()).to(z.device)  # (H, W, 2)
    positions = grid_positions(on_plane, pixels.view.plane)
    weight = F.grid_sample(weight[None, None], positions, padding_mode="border", align_corners=True)
    weight = weight[0, 0]  # (H, W)
    blend = weight * z + (1 - weight) * z_0
    return blend, weight


def _error_by_noise(error_of_z: Tensor, error_of_z_0: Tensor) -> Tensor:
    """Return the squared error (a scalar) that noise alone causes: the error of pixels that fit.

    A pixel counts with the smaller error of both frames. PERFECT_SHARE of the pixels have at most
    the returned error. E.g. with a share of 0.2, it is the 20th smallest of 100 errors.
    error_of_z, error_of_z_0: squared errors of both frames, (h, w).
    """
    smaller_errors = torch.minimum(error_of_z, error_of_z_0).flatten()
    # At least the smallest error: of 4 errors it would be the 0th, and kthvalue counts from 1.
    rank = max(1, int(PERFECT_SHARE * len(smaller_errors)))
    return smaller_errors.kthvalue(rank).values


def _error_at_instant(frame: Tensor, y: Tensor, pixels: SpikePixels) -> Tensor:
    """Return the squared error (h, w) of a frame against the spikes, as means over squares.

    frame: (3, H, W). y: (h, w), the grey values that the spikes around the sharp instant measure.
    """
    # Display values are compared, because the differences of dark places are tiny in light.
    if pixels.view.is_display:
        difference = pixels(luma(frame)) - y
    else:
        seen_light = pixels(luma(light_of(frame)))
        difference = display_of_light(seen_light) - display_of_light(y)  # (1, h, w)
    # The mean over the square around each pixel. At the edges of the plane, only pixels of the
    # plane count (count_include_pad).
    mean = F.avg_pool2d(
        difference**2,
        kernel_size=GUARD_SIDE,
        stride=1,
        padding=GUARD_SIDE // 2,
        count_include_pad=False,
    )
    return mean[0]

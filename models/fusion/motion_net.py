"""A small network that finds the motion within an exposure from spikes, also in dim light.

It is a part of the fusion "motion" (models/fusion/fusion_motion.py), so the weights of this fusion
hold it. `data.motion.learned` makes its inputs and turns its output into shifts of RGB pixels.
lab/train_motion_net.py trains it on scenes whose motion is known exactly.

What a spike pixel shows at the sharp instant moves along a curve. Times are counted in halves of
an exposure after the sharp instant: tau = -1 is about the begin of the exposure, tau = 1 its end.
At tau the displacement is

    q(tau) = c_1 tau + c_2 tau^2 + c_3 tau^3        x and y, in spike pixels

The network finds the six coefficients of each pixel, and the logarithm of the expected error of q.

It works from coarse to fine (`LEVELS`). The spikes come in 15 windows of time. At each level the
network moves the pictures of all windows back to the sharp instant, along the curve that it has so
far. Where the curve is right, all windows then look alike. A small conv net sees what still differs
and corrects the curve. SPyNet (Ranjan and Black, CVPR 2017) finds the flow of two frames in this
way.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

# Edges of the windows of time, in elevenths of an exposure after its middle. Eleven windows divide
# the exposure. Two longer windows lie before the exposure, and two after it.
EDGES = (-10.5, -7.5, -5.5, -4.5, -3.5, -2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 3.5, 4.5, 5.5, 7.5, 10.5)
WINDOWS = len(EDGES) - 1
INSIDE = slice(2, 13)  # the windows that divide the exposure
HALF_EXPOSURE = 5.5  # in elevenths of an exposure
# The sharp instant, in halves of an exposure after its middle. It is the middle of a spike plane.
# This is half a plane after the middle of an exposure of 88 planes, whose half has 44.
SHARP = 0.5 / 44
# Channels of the pictures of each window: its light and its number of spikes.
PICTURES = 2
# Channels of the scene: brightness of each pixel, mean brightness, the blurry frame.
SCENE = 3
DEGREE = 3  # of the curve
COEFFICIENTS = 2 * DEGREE  # x and y of c_1, then of c_2, then of c_3
# Channels that a conv net gives: changes of the coefficients and of the logarithm of the error.
CHANGES = COEFFICIENTS + 1
# Channels of the motion that least squares find between windows, see `_least_squares`.
LEAST_SQUARES = 8
DILATIONS = (2, 1, 3, 1)  # of the inner convolutions, in turn
# Coefficients are divided by this where a conv net sees them. It makes them about 1.
USUAL_SHIFT = 4.0
# In the least squares: added to the squared gradients, so that flat places have no motion; and the
# largest motion that is believed, in pixels of the level.
FLAT = 2e-3
FARTHEST = 2.0
AROUND = 5  # side of the squares over which least squares are taken


class Level(NamedTuple):
    """A level from coarse to fine.

    size: side of a pixel of this level, in spike pixels. rounds: number of times that the curve is
    corrected. features: width of the conv net. layers: number of its convolutions.
    """

    size: int
    rounds: int
    features: int
    layers: int


LEVELS = (Level(8, 2, 48, 5), Level(4, 2, 48, 5), Level(2, 1, 40, 5), Level(1, 1, 28, 4))


class Curves(NamedTuple):
    """The motion at a level.

    size: see `Level`. coefficients: (B, 6, h, w) in spike pixels. log_error: (B, 1, h, w), the
    logarithm of the expected error of q, in spike pixels, in the mean over the exposure.
    """

    size: int
    coefficients: Tensor
    log_error: Tensor


class MotionNet(nn.Module):
    """Finds the curves of all spike pixels."""

    tau: Tensor  # the middle of each window, (15,)
    fit: Tensor  # (2, 11), see __init__

    # What data/motion/learned.py must know of the windows.
    edges: Sequence[float] = EDGES
    inside = INSIDE

    def __init__(self) -> None:
        super().__init__()
        seen = PICTURES * WINDOWS + LEAST_SQUARES + SCENE + COEFFICIENTS + 1
        nets = []
        for number, level in enumerate(LEVELS):
            # The coarsest net gives a second set of changes: the motion that all pixels share.
            outputs = 2 * CHANGES if number == 0 else CHANGES
            nets.append(conv_net(seen, level.features, level.layers, outputs))
        self.nets = nn.ModuleList(nets)
        middles = (np.array(EDGES[:-1]) + np.array(EDGES[1:])) / 2
        tau = (middles / HALF_EXPOSURE - SHARP).astype(np.float32)
        self.register_buffer("tau", torch.from_numpy(tau), persistent=False)
        # (2, 11): light of the windows of the exposure -> its change by tau, and by tau^2.
        powers = np.stack([tau[INSIDE] ** power for power in range(3)], axis=1)
        fit = np.linalg.pinv(powers)[1:].astype(np.float32)
        self.register_buffer("fit", torch.from_numpy(fit), persistent=False)

    def forward(self, pictures: Tensor, scene: Tensor, levels: int = len(LEVELS)) -> list[Curves]:
        """Return the motion at each level, the finest last.

        pictures: (B, 15, 2, h, w), see `PICTURES`. scene: (B, 3, h, w), see `SCENE`; h and w are
        multiples of 8. levels: number of levels that are computed, from the coarsest on.
        """
        batch, _, _, height, width = pictures.shape
        pictures = pictures.flatten(0, 1)  # (B 15, 2, h, w)
        size = LEVELS[0].size
        curve = pictures.new_zeros(batch, COEFFICIENTS, height // size, width // size)
        log_error = curve[:, :1]
        found = []
        for net, level in zip(self.nets[:levels], LEVELS, strict=False):
            small_pictures = F.avg_pool2d(pictures, level.size)
            small_scene = F.avg_pool2d(scene, level.size)
            shape = small_scene.shape[-2:]
            if curve.shape[-2:] != shape:
                curve = F.interpolate(curve, shape, mode="bilinear", align_corners=False)
                log_error = F.interpolate(log_error, shape, mode="bilinear", align_corners=False)
            for _ in range(level.rounds):
                shifts = displacements(curve.detach(), self.tau) / level.size
                moved = moved_back(small_pictures, shifts)  # (B, 30, h, w)
                inputs = (
                    moved,
                    self._least_squares(moved, small_scene),
                    small_scene,
                    curve.detach() / USUAL_SHIFT,
                    log_error.detach(),
                )
                change = with_shared(net(torch.cat(inputs, dim=1)))
                curve = curve + change[:, :-1] * level.size
                log_error = log_error + change[:, -1:]
            found.append(Curves(level.size, curve, log_error))
        return found

    @torch.no_grad()
    def _least_squares(self, moved: Tensor, scene: Tensor) -> Tensor:
        """Return the motion that is left between windows, by Lucas and Kanade (IJCAI 1981).

        moved: pictures (B, 30, h, w) of all windows at the sharp instant. The change of a picture
        in time is set against its gradient, in squares of pixels.
        Returns (B, 8, h, w), in pixels of the level: x and then y, each by tau and by tau^2 from
        the light of the windows, and by tau and by tau^2 from their number of spikes.
        """
        windows = moved.unflatten(1, (WINDOWS, PICTURES))[:, INSIDE]  # (B, 11, 2, h, w)
        light, count = windows[:, :, 0], windows[:, :, 1]
        # The number of spikes comes in units of its noise. Divided by this factor it is relative
        # light, as `light` is.
        noise = 2 * torch.exp(scene[:, 1:2] / 2)
        change_of_light = torch.einsum("dk,bkhw->bdhw", self.fit, light)
        change_of_count = torch.einsum("dk,bkhw->bdhw", self.fit, count) / noise
        change = torch.cat((change_of_light, change_of_count), dim=1)  # (B, 4, h, w)

        mean = F.pad(light.mean(1, keepdim=True), (1, 1, 1, 1), mode="replicate")
        g_x = (mean[..., 1:-1, 2:] - mean[..., 1:-1, :-2]) / 2
        g_y = (mean[..., 2:, 1:-1] - mean[..., :-2, 1:-1]) / 2
        products = (g_x * g_x, g_x * g_y, g_y * g_y, g_x * change, g_y * change)
        sums = F.avg_pool2d(
            torch.cat(products, dim=1), AROUND, 1, AROUND // 2, count_include_pad=False
        )
        xx, xy, yy, x_change, y_change = sums.split((1, 1, 1, 4, 4), dim=1)
        xx = xx + FLAT
        yy = yy + FLAT
        # The solution of [xx xy; xy yy] motion = -[x_change; y_change].
        determinant = xx * yy - xy * xy
        x = -(yy * x_change - xy * y_change) / determinant
        y = -(xx * y_change - xy * x_change) / determinant
        return torch.cat((x, y), dim=1).clamp(-FARTHEST, FARTHEST)


def conv_net(inputs: int, features: int, layers: int, outputs: int) -> nn.Sequential:
    """Build a conv net that sees about 20 pixels around each. It begins near 0."""
    modules = [nn.Conv2d(inputs, features, 3, padding=1), nn.LeakyReLU(0.1)]
    for number in range(layers - 2):
        wide = DILATIONS[number % len(DILATIONS)]
        modules.append(nn.Conv2d(features, features, 3, padding=wide, dilation=wide))
        modules.append(nn.LeakyReLU(0.1))
    last = nn.Conv2d(features, outputs, 3, padding=1)
    assert last.bias is not None
    nn.init.zeros_(last.bias)
    last.weight.data *= 0.2
    return nn.Sequential(*modules, last)


def with_shared(changes: Tensor) -> Tensor:
    """Add the motion that all pixels share to that of each pixel.

    changes: (B, 7, h, w) or (B, 14, h, w). Seven channels have no shared motion, and are returned
    unchanged. Of 14 channels, the last seven are each pixel's estimate of the shared motion (6),
    and the logarithm of the weight of this estimate (1).

    Where spikes are few, a pixel alone knows little, and the weighted mean over all pixels is far
    better. Returns (B, 7, h, w).
    """
    if changes.shape[1] == CHANGES:
        return changes
    own, shared = changes.split(CHANGES, dim=1)
    weight = torch.softmax(shared[:, -1].flatten(1), dim=1)  # over all pixels
    weight = weight.view(len(changes), 1, *changes.shape[2:])
    motion = (weight * shared[:, :-1]).sum((2, 3), keepdim=True)  # (B, 6, 1, 1)
    return torch.cat((own[:, :-1] + motion, own[:, -1:]), dim=1)


def displacements(curve: Tensor, tau: Tensor) -> Tensor:
    """Return q (B, N, 2, h, w) at times tau (N,). curve: coefficients (B, 6, h, w)."""
    coefficients = curve.unflatten(1, (DEGREE, 2))
    q = 0
    for power in range(DEGREE):
        q = q + coefficients[:, power, None] * tau.view(1, -1, 1, 1, 1) ** (power + 1)
    return q


def moved_back(pictures: Tensor, shifts: Tensor) -> Tensor:
    """Return the pictures of all windows as they look at the sharp instant, (B, 30, h, w).

    pictures: (B 15, 2, h, w). shifts: (B, 15, 2, h, w) in pixels, from the sharp instant.
    """
    batch, _, _, height, width = shifts.shape
    y = torch.arange(height, dtype=shifts.dtype, device=shifts.device)
    x = torch.arange(width, dtype=shifts.dtype, device=shifts.device)
    # grid_sample counts from -1 (first pixel) to 1 (last pixel).
    x = (x + shifts[:, :, 0]) * 2 / max(width - 1, 1) - 1
    y = (y[:, None] + shifts[:, :, 1]) * 2 / max(height - 1, 1) - 1
    places = torch.stack((x, y), dim=-1).flatten(0, 1)  # (B 15, h, w, 2)
    moved = F.grid_sample(pictures, places, padding_mode="border", align_corners=True)
    return moved.reshape(batch, WINDOWS * PICTURES, height, width)

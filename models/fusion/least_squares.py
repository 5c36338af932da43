"""The motion that is left between the windows of an exposure, by least squares.

`MotionNet` has a picture of the spikes in each window of time. `MotionNet` shifts the pictures of
all windows back to one time, the sharp instant, along the curve found so far. The curve says where
a pixel is at each time. Where the curve is wrong, the shifted pictures differ. `least_squares` says
which motion would explain the differences (Lucas and Kanade, IJCAI 1981). The conv nets of
`MotionNet` take this motion as an input.

tau is the time after the sharp instant, in halves of an exposure.

Shapes: B exposures, h x w pixels. The pixels are spike pixels at the resolution of a level
(`MotionNet` works at several resolutions, its levels).

What must stay: the order of the channels of the result, and the constants, because the trained
weights depend on both (tests/stories/test_motion_weights.py restores with the shipped weights).

Tests: tests/parts/models/test_motion_net.py
"""

import torch
import torch.nn.functional as F
from torch import Tensor

# WINDOWS is 15: 2 windows before the exposure, 11 that divide the exposure, and 2 after it. INSIDE
# is the slice of the 11. This file does not use the 4 other windows. PICTURE_CHANNELS is 2: each
# window has a picture of its light, and a picture of its number of spikes.
from models.fusion.motion_windows import INSIDE, PICTURE_CHANNELS, WINDOWS

# Channels of the result: the motion in x and in y, each in four versions (see `least_squares`).
LEAST_SQUARES = 8
# This number is added to the squared gradients. Without this number, the motion of a flat region
# would be noise divided by almost 0. With this number, the motion of a flat region is near 0. A
# larger number would also make the motion of weak texture too small. E.g. a motion of 1 pixel
# becomes
#
#     gradient 0.5     0.25 / (0.25 + 0.002)        0.99 pixels
#     gradient 0.05    0.0025 / (0.0025 + 0.002)    0.56 pixels
#
# The number was chosen by hand, and the weights were trained with it.
ADDED_TO_SQUARED_GRADIENT = 2e-3
# The largest motion that is returned, in pixels of the level. A gradient describes a picture only
# within a pixel or two, so a larger result would be wrong.
LARGEST_MOTION = 2.0
# The equations of SQUARE_SIDE x SQUARE_SIDE pixels around each pixel are solved together. The
# number is odd, so that there is a middle pixel. A larger number averages over more noise, but
# mixes the motions of more objects.
SQUARE_SIDE = 5


@torch.no_grad()
def least_squares(moved_pictures: Tensor, scene: Tensor, parabola_fit: Tensor) -> Tensor:
    """Return the motion that is left between the windows, by Lucas and Kanade (IJCAI 1981).

    Where a picture with the gradient (g_x, g_y) moves by (x, y), its value changes by

        change = -(g_x * x + g_y * y)        e.g. g = (0.5, 0), motion (1, 0): change -0.5

    Each of the 5 x 5 pixels around a pixel gives one such equation. The motion (x, y) of the pixel
    is the least-squares solution of these 25 equations.

    The change of the value is measured in four ways, and the equations are solved for each of the
    four changes separately. A pixel has a light in each of the 11 windows, i.e. at 11 times tau. A
    parabola in tau is fitted to these 11 values. The slope and the curvature of the parabola are
    two measures of the change. The numbers of spikes in the windows give two more measures in the
    same way.

    moved_pictures: pictures of all windows, shifted back to the sharp instant, (B, 30, h, w): 15
        windows with 2 pictures each.
    scene: (B, 3, h, w), see `SCENE_CHANNELS` in motion_net.py.
    parabola_fit: (2, 11), the matrix that turns the values in the 11 windows into slope and
        curvature.

    Returns (B, 8, h, w) in pixels of the level: x in channels 0 to 3 and y in channels 4 to 7, each
    in the order of the changes that they explain:

        0  slope of the light, so the part of the motion that grows with tau
        1  curvature of the light, so the part of the motion that grows with tau^2
        2  slope of the number of spikes
        3  curvature of the number of spikes

    With another sign of the motion, test_least_squares_find_a_small_motion_between_windows fails.
    """
    pictures = moved_pictures.unflatten(1, (WINDOWS, PICTURE_CHANNELS))  # (B, 15, 2, h, w)
    pictures_of_exposure = pictures[:, INSIDE]  # (B, 11, 2, h, w)
    light = pictures_of_exposure[:, :, 0]  # (B, 11, h, w)
    count = pictures_of_exposure[:, :, 1]  # (B, 11, h, w)
    change = _changes_in_time(light, count, scene, parabola_fit)  # (B, 4, h, w)
    g_x, g_y = _gradient(light.mean(1, keepdim=True))  # (B, 1, h, w) each

    # The normal equations of least squares are
    #
    #     xx * x + xy * y = -x_change
    #     xy * x + yy * y = -y_change
    #
    # where xx is the mean of g_x * g_x over the 5 x 5 pixels, xy the mean of g_x * g_y, x_change
    # the mean of g_x * change, and so on. (Sums are usual, but the factor 1/25 cancels in x and y.)
    products = (g_x * g_x, g_x * g_y, g_y * g_y, g_x * change, g_y * change)
    means = F.avg_pool2d(
        torch.cat(products, dim=1),
        kernel_size=SQUARE_SIDE,
        stride=1,
        padding=SQUARE_SIDE // 2,
        count_include_pad=False,
    )
    # `means` has 11 channels, in the order of `products`. The first three products have 1 channel
    # each, and the last two have 4, one for each change.
    xx, xy, yy, x_change, y_change = means.split((1, 1, 1, 4, 4), dim=1)
    xx = xx + ADDED_TO_SQUARED_GRADIENT
    yy = yy + ADDED_TO_SQUARED_GRADIENT

    # The solution of the two equations, by the inverse of their 2 x 2 matrix:
    #
    #     inverse of ( xx xy )  is  (  yy -xy )  divided by the determinant
    #                ( xy yy )      ( -xy  xx )
    #
    # The inverse is multiplied by the right sides, -x_change and -y_change.
    determinant = xx * yy - xy * xy
    x = -(yy * x_change - xy * y_change) / determinant  # (B, 4, h, w)
    y = -(xx * y_change - xy * x_change) / determinant  # (B, 4, h, w)
    return torch.cat((x, y), dim=1).clamp(-LARGEST_MOTION, LARGEST_MOTION)


def _changes_in_time(light: Tensor, count: Tensor, scene: Tensor, parabola_fit: Tensor) -> Tensor:
    """Return slope and curvature of `light`, then of `count`, (B, 4, h, w), in units of `light`.

    The changes of `light` and of `count` must have one unit, because both are compared with the
    gradient of `light`. n is the number of spikes of a pixel in a window, N its mean over the
    windows, and M the mean of N over all pixels. data/motion/network_inputs.py makes the pictures,
    in short, as

        light = sqrt(n / M) - 1         derivative by n, at n = N:   1 / (2 * sqrt(N * M))
        count = (n - N) / sqrt(N)       derivative by n:             1 / sqrt(N)

        derivative of count / derivative of light = 2 * sqrt(N * M) / sqrt(N) = 2 * sqrt(M)

    So `count` changes 2 * sqrt(M) times as much as `light`, and the changes of `count` are divided
    by this number. E.g. M = 4 spikes: divided by 4. (test_motion_net.py passes without the
    division, but the shipped weights were trained with it.)

    light, count: pictures of the windows of the exposure, (B, 11, h, w).
    scene: (B, 3, h, w). Its channel 1 is log(M).
    parabola_fit: (2, 11), see `least_squares`.
    """
    # b counts the exposures, k the windows, and d the results: 0 is the slope, 1 the curvature. At
    # each pixel, change[b, d] = sum over k of parabola_fit[d, k] * light[b, k]. E.g. a light of
    # 0.3 tau + 0.1 tau^2 in the windows gives the slope 0.3 and the curvature 0.1.
    change_of_light = torch.einsum("dk,bkhw->bdhw", parabola_fit, light)  # (B, 2, h, w)
    change_of_count = torch.einsum("dk,bkhw->bdhw", parabola_fit, count)  # (B, 2, h, w)
    log_m = scene[:, 1:2]  # (B, 1, h, w)
    ratio_of_changes = 2 * torch.exp(log_m / 2)  # 2 * sqrt(M)
    return torch.cat((change_of_light, change_of_count / ratio_of_changes), dim=1)


def _gradient(picture: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradient of a picture (B, 1, h, w) in x and in y, (B, 1, h, w) each.

    The gradient is half the difference of the two neighbours of a pixel. At the edge of the
    picture, the pixel itself stands for the missing neighbour.
    """
    # E.g. a row a b c becomes a a b c c. So the left neighbours of a b c are a a b, and the right
    # neighbours are b c c.
    padded = F.pad(picture, (1, 1, 1, 1), mode="replicate")  # (B, 1, h + 2, w + 2)
    left = padded[..., 1:-1, :-2]
    right = padded[..., 1:-1, 2:]
    above = padded[..., :-2, 1:-1]
    below = padded[..., 2:, 1:-1]
    return (right - left) / 2, (below - above) / 2

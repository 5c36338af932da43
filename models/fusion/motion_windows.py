"""The windows of time in which `MotionNet` sees the spikes of an exposure, and curves over time.

The spikes come in 15 windows: eleven divide the exposure, two longer windows lie before it, and two
after it. Each window has a picture. A pixel moves along a curve, which has six coefficients:

    q(tau) = c_1 tau + c_2 tau^2 + c_3 tau^3        x and y, in spike pixels
    tau                                             time after the sharp instant, in halves of an
                                                    exposure

`displacements` gives q at some times, and `move_back` shifts the pictures of all windows along q.

Shapes: B exposures, h x w pixels.

What must stay: the constants, because the trained weights depend on them. Change them only together
with a new training.

Tests: tests/parts/models/test_motion_net.py, tests/parts/data/test_network_inputs.py
"""

import torch
import torch.nn.functional as F
from torch import Tensor

# The 16 times at which the 15 windows begin and end, in elevenths of an exposure after its middle.
# The exposure lasts from -5.5 to 5.5.
EDGES = (-10.5, -7.5, -5.5, -4.5, -3.5, -2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 3.5, 4.5, 5.5, 7.5, 10.5)
WINDOWS = len(EDGES) - 1
# The eleven windows that divide the exposure, 2 to 12: from EDGES[2] = -5.5 to EDGES[13] = 5.5.
INSIDE = slice(2, 13)
HALF_EXPOSURE = 5.5  # in elevenths of an exposure
# The sharp instant, in halves of an exposure after its middle. In training, an exposure had 88
# spike planes, and the sharp instant was the middle of plane 44 (of the planes 0 to 87). So the
# sharp instant was half a plane after the middle of the exposure. Half an exposure has 44 planes.
SHARP_INSTANT = 0.5 / 44

# Channels of the picture of a window: 0 brightness (`light` in least_squares.py), 1 number of
# spikes (`count`). data/motion/network_inputs.py makes both.
PICTURE_CHANNELS = 2
DEGREE = 3  # the largest power of tau in the curve
COEFFICIENTS = 2 * DEGREE  # x and y of c_1, then of c_2, then of c_3


def displacements(curve: Tensor, tau: Tensor) -> Tensor:
    """Return the displacements of each pixel at some times, (B, N, 2, h, w).

        q(tau) = c_1 tau + c_2 tau^2 + c_3 tau^3

    curve: the coefficients, (B, 6, h, w), in the order of `COEFFICIENTS`.
    tau: the times, (N,).

    With other powers of tau, test_a_curve_is_the_sum_of_its_powers_of_time fails.
    """
    coefficients = curve.unflatten(1, (DEGREE, 2))  # (B, 3, 2, h, w)
    times = tau.view(1, -1, 1, 1, 1)  # (1, N, 1, 1, 1)
    q = 0
    for index in range(DEGREE):
        power = index + 1  # c_1 is at index 0
        c = coefficients[:, index, None]  # (B, 1, 2, h, w)
        q = q + c * times**power  # (B, N, 2, h, w)
    return q


def move_back(pictures: Tensor, shifts: Tensor) -> Tensor:
    """Return the pictures of all windows as they look at the sharp instant, (B, 30, h, w).

    A pixel of the sharp instant gets the value that its point of the scene has in the window
    (test_pictures_that_moved_are_moved_back_to_the_sharp_instant). If the point lies outside the
    picture, the pixel gets the value of the nearest pixel at the border.

    pictures: (B * 15, 2, h, w), 15 windows with 2 pictures each.
    shifts: (B, 15, 2, h, w), from the sharp instant to each window, in pixels, x first.
    """
    batch, _, _, height, width = shifts.shape
    # The pixels of the sharp instant.
    y = torch.arange(height, dtype=shifts.dtype, device=shifts.device)  # (h,)
    x = torch.arange(width, dtype=shifts.dtype, device=shifts.device)  # (w,)
    # The position of each of these pixels in each window.
    columns = x + shifts[:, :, 0]  # (B, 15, h, w)
    rows = y[:, None] + shifts[:, :, 1]  # (B, 15, h, w)
    # grid_sample counts from -1 (first pixel) to 1 (last pixel). For a picture of one pixel,
    # width - 1 is 0, so divide by at least 1.
    grid_x = columns * 2 / max(width - 1, 1) - 1
    grid_y = rows * 2 / max(height - 1, 1) - 1
    positions = torch.stack((grid_x, grid_y), dim=-1).flatten(0, 1)  # (B * 15, h, w, 2)
    moved_pictures = F.grid_sample(pictures, positions, padding_mode="border", align_corners=True)
    return moved_pictures.reshape(batch, WINDOWS * PICTURE_CHANNELS, height, width)

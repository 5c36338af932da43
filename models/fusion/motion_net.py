"""A small network that finds the motion within an exposure from spikes, also in dim light.

The fusion operator "motion" (models/fusion/fusion_motion.py) contains this network, so the weights
of the operator contain the weights of the network. `data.motion.network_inputs` makes the inputs,
and `data.motion.learned` turns the output into shifts of RGB pixels. lab/train_motion_net.py trains
the network on scenes whose motion is known exactly.

A spike pixel shows a point of the scene at the sharp instant. The point moves along a curve:

    q(tau) = c_1 tau + c_2 tau^2 + c_3 tau^3        x and y, in spike pixels
    tau                                             time after the sharp instant, in halves of an
                                                    exposure. About -1 is the beginning of the
                                                    exposure, and about 1 is its end

The network finds the six coefficients of each pixel, and the logarithm of the expected error of q.
It gets a picture of the spikes in each of 15 windows of time (motion_windows.py). From the coarsest
of the `LEVELS` to the finest, it

    1. shifts all pictures back to the sharp instant, along the curve found so far. Where the curve
       is right, the pictures then look alike
    2. asks which motion would explain the differences that are left (least_squares.py)
    3. corrects the curve, by a small conv net that sees the shifted pictures, the motion of step 2
       and the curve so far

SPyNet (Ranjan and Black, CVPR 2017) finds the flow between two frames in this way.

Shapes: B exposures, h x w pixels (of the spike plane, or of a coarser level). A spike plane is one
binary picture of the spike camera.

What must stay:

* The order of the layers, of the input channels and of the output channels, because weights files
  depend on it. (tests/stories/test_motion_weights.py restores with the shipped weights)
* The constants, because the trained weights fit them. Change them only together with a new
  training.
* The names of the attributes of `MotionNet` and of the fields of `Curves`, which
  utils.contract.MotionNetwork lists.

Tests: tests/parts/models/test_motion_net.py, tests/parts/data/test_network_inputs.py
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.fusion.least_squares import LEAST_SQUARES, least_squares
from models.fusion.motion_windows import (
    COEFFICIENTS,
    EDGES,
    HALF_EXPOSURE,
    INSIDE,
    PICTURE_CHANNELS,
    SHARP_INSTANT,
    WINDOWS,
    displacements,
    move_back,
)

# ---- Channels ----

# Channels of the scene. They are the same for all windows. The brightness is the number of spikes
# in a window of the exposure.
#
#     0  logarithm of the brightness around each pixel
#     1  logarithm of the mean brightness of all pixels
#     2  contrast of the blurry frame
SCENE_CHANNELS = 3
# Output channels of a conv net: a change for each of the six coefficients, and one change for the
# logarithm of the error.
CHANGES = COEFFICIENTS + 1

# ---- Sizes and limits ----
#
# The trained weights fit these values. With another value the network runs without an error, but
# its motion is worse until it is trained anew.

# Dilations of the inner convolutions of a conv net: 2 for the first, 1 for the second, and so on.
# After the last number, the first follows again.
DILATIONS = (2, 1, 3, 1)
# The coefficients are divided by USUAL_SHIFT before a conv net gets them, so that its inputs are
# about 1. The outputs of a conv net are not multiplied by USUAL_SHIFT, because `forward` takes the
# outputs as pixels of the level.
USUAL_SHIFT = 4.0
# The initial weights of the last convolution are multiplied by SMALL_WEIGHTS. The number is small,
# so that an untrained network finds hardly any motion.
SMALL_WEIGHTS = 0.2


class Level(NamedTuple):
    """A resolution at which the curve is corrected, and the conv net that corrects it."""

    size: int  # side of a pixel of this level, in spike pixels
    rounds: int  # number of times that the curve is corrected
    features: int  # width of the conv net
    layers: int  # number of convolutions of the conv net


# The levels go from coarse to fine. The finest levels have the most pixels, so they have one round
# and smaller nets.
LEVELS = (
    Level(size=8, rounds=2, features=48, layers=5),
    Level(size=4, rounds=2, features=48, layers=5),
    Level(size=2, rounds=1, features=40, layers=5),
    Level(size=1, rounds=1, features=28, layers=4),
)


class Curves(NamedTuple):
    """The motion at a level: the curve of each pixel, and its expected error."""

    size: int  # side of a pixel of the level, in spike pixels
    # (B, 6, h, w), in spike pixels: x of c_1, y of c_1, x of c_2, y of c_2, x of c_3, y of c_3.
    coefficients: Tensor
    # (B, 1, h, w): logarithm of the expected error of the curve, i.e. of q(tau), in spike pixels.
    # The expected error is a mean over the times of the exposure.
    log_error: Tensor


class MotionNet(nn.Module):
    """Finds the curve q(tau) of each spike pixel: how the point that it shows moves."""

    # `__init__` sets `tau` and `parabola_fit` with register_buffer.
    #
    # The middle of each window, (15,), in halves of an exposure after the sharp instant.
    tau: Tensor
    # (2, 11): parabola_fit @ (values of a pixel in the 11 windows of the exposure) = (slope,
    # curvature) of the values in time.
    parabola_fit: Tensor

    # data/motion/network_inputs.py reads two attributes. `edges` has the 16 times at which the 15
    # windows begin and end. `inside` is the slice of the 11 windows that divide the exposure:
    #
    #     windows     0, 1      2 ... 12        13, 14
    #     lie         before    the exposure    after
    edges: Sequence[float] = EDGES
    inside = INSIDE

    def __init__(self) -> None:
        super().__init__()
        # Input channels, in the order of `_inputs`:
        #
        #     30  the pictures of all windows
        #      8  the motion by least squares, 4 times x, then 4 times y (least_squares.py)
        #      3  the scene
        #      6  the curve so far
        #      1  the logarithm of the expected error of the curve
        #     48  in all
        inputs = PICTURE_CHANNELS * WINDOWS + LEAST_SQUARES + SCENE_CHANNELS + COEFFICIENTS + 1
        nets = []
        for number, level in enumerate(LEVELS):
            # The coarsest net has a second set of outputs, for `add_shared_motion`.
            outputs = 2 * CHANGES if number == 0 else CHANGES
            nets.append(conv_net(inputs, level.features, level.layers, outputs))
        self.nets = nn.ModuleList(nets)

        # Buffers that are not saved, because they follow from the constants above.
        tau = _middles_of_windows()  # (15,); tau[INSIDE] is (11,)
        self.register_buffer("tau", torch.from_numpy(tau), persistent=False)
        fit = _fit_of_parabola(tau[INSIDE])
        self.register_buffer("parabola_fit", torch.from_numpy(fit), persistent=False)

    def forward(self, pictures: Tensor, scene: Tensor, levels: int = len(LEVELS)) -> list[Curves]:
        """Return the motion at each level, the finest last.

        pictures: (B, 15, 2, h, w), see `PICTURE_CHANNELS`. scene: (B, 3, h, w), see
        `SCENE_CHANNELS`. h and w are multiples of 8, the size of a pixel of the coarsest level.
        levels: number of levels that are computed, from the coarsest on.
        """
        batch, _, _, height, width = pictures.shape
        pictures = pictures.flatten(0, 1)  # (B * 15, 2, h, w)

        # Begin at the coarsest level with a curve of zeros, as if nothing moved. The expected error
        # is 1 spike pixel, whose logarithm is 0.
        size = LEVELS[0].size
        curve = pictures.new_zeros(batch, COEFFICIENTS, height // size, width // size)
        log_error = pictures.new_zeros(batch, 1, height // size, width // size)
        # Below, (h, w) is the size of the level.
        curves_of_levels = []
        for net, level in zip(self.nets[:levels], LEVELS[:levels], strict=True):
            small_pictures = F.avg_pool2d(pictures, level.size)  # (B * 15, 2, h, w)
            small_scene = F.avg_pool2d(scene, level.size)  # (B, 3, h, w)

            # Take over the motion of the coarser level. The motion needs no factor, because it is
            # in spike pixels at all levels.
            shape = small_scene.shape[-2:]
            if curve.shape[-2:] != shape:
                curve = F.interpolate(curve, shape, mode="bilinear", align_corners=False)
                log_error = F.interpolate(log_error, shape, mode="bilinear", align_corners=False)

            for _ in range(level.rounds):
                inputs = self._inputs(small_pictures, small_scene, curve, log_error, level.size)
                # The net of the coarsest level also gives a motion that all pixels share.
                change = add_shared_motion(net(inputs))  # (B, 7, h, w)
                change_of_curve, change_of_log_error = change.split((COEFFICIENTS, 1), dim=1)
                # The change of the curve is in pixels of the level, and the curve in spike pixels.
                # (test_motion_net.py passes without the factor, but the trained weights need it.)
                curve = curve + change_of_curve * level.size
                log_error = log_error + change_of_log_error
            curves_of_levels.append(Curves(level.size, curve, log_error))
        return curves_of_levels

    def _inputs(
        self, pictures: Tensor, scene: Tensor, curve: Tensor, log_error: Tensor, size: int
    ) -> Tensor:
        """Return the input channels of the conv net of a level, (B, 48, h, w).

        The trained weights fit the order of the channels.

        pictures: (B * 15, 2, h, w), in the size of the level.
        scene: (B, 3, h, w), in the size of the level.
        curve, log_error: the motion so far, (B, 6, h, w) and (B, 1, h, w).
        size: side of a pixel of the level, in spike pixels.
        """
        # Detach the motion so far, so that each correction learns only from its own result. No
        # gradient flows through the shifts into earlier corrections.
        curve = curve.detach()
        log_error = log_error.detach()
        shifts = displacements(curve, self.tau) / size  # (B, 15, 2, h, w), in pixels of the level
        moved_pictures = move_back(pictures, shifts)  # (B, 30, h, w)
        motion_left = least_squares(moved_pictures, scene, self.parabola_fit)  # (B, 8, h, w)
        scaled_curve = curve / USUAL_SHIFT
        return torch.cat((moved_pictures, motion_left, scene, scaled_curve, log_error), dim=1)


def _middles_of_windows() -> np.ndarray:
    """Return the middle of each window of time, as tau, (15,) float32.

    tau counts halves of an exposure after the sharp instant.
    """
    begins = np.array(EDGES[:-1])
    ends = np.array(EDGES[1:])
    middles = (begins + ends) / 2  # in elevenths of an exposure, after its middle
    # Change the unit to halves of an exposure, and count from the sharp instant.
    return (middles / HALF_EXPOSURE - SHARP_INSTANT).astype(np.float32)


def _fit_of_parabola(tau: np.ndarray) -> np.ndarray:
    """Return the matrix (2, n) that turns n values into the slope and curvature of a parabola.

        value(tau) = constant + slope tau + curvature tau^2

    The parabola is the nearest one to the values, by least squares. Its constant is left out,
    because only the change in time is needed.

    tau: (n,), the times of the values.
    """
    # By the formula above, values = powers @ (constant, slope, curvature). So the pseudoinverse of
    # `powers` turns values into these three numbers.
    powers = np.stack([tau**power for power in range(3)], axis=1)  # (n, 3)
    three_rows = np.linalg.pinv(powers)  # (3, n): constant, slope, curvature
    return three_rows[1:].astype(np.float32)


def conv_net(inputs: int, features: int, layers: int, outputs: int) -> nn.Sequential:
    """Build a conv net of `layers` convolutions, whose output is near 0 before the training.

    So an untrained network finds hardly any motion. Because of the dilations, the output of a pixel
    depends on many pixels: on 17 x 17 pixels with 5 layers, and on 11 x 11 pixels with 4.

    inputs, outputs: numbers of channels. features: number of channels in between.
    """
    # The trained weights fit the slope 0.1 for negative values.
    modules = [nn.Conv2d(inputs, features, 3, padding=1), nn.LeakyReLU(0.1)]
    # The first and the last convolution are outside the loop. E.g. 5 layers have the dilations
    # 1, 2, 1, 3, 1. Their sum is 8, so a pixel depends on 1 + 2 * 8 = 17 pixels on a side.
    for number in range(layers - 2):
        dilation = DILATIONS[number % len(DILATIONS)]
        modules.append(nn.Conv2d(features, features, 3, padding=dilation, dilation=dilation))
        modules.append(nn.LeakyReLU(0.1))
    last = nn.Conv2d(features, outputs, 3, padding=1)
    assert last.bias is not None  # a Conv2d has a bias if it is not told otherwise
    nn.init.zeros_(last.bias)
    last.weight.data *= SMALL_WEIGHTS
    return nn.Sequential(*modules, last)


def add_shared_motion(changes: Tensor) -> Tensor:
    """Add a shared motion, e.g. the motion of the camera, to the motion of each pixel.

    The shared motion is a weighted mean of the estimates of all pixels. So if there are few spikes,
    the shared motion is far less noisy than the estimate of a single pixel.

    changes: the output of a conv net. If its shape is (B, 7, h, w), it has no shared motion and is
        returned unchanged. If its shape is (B, 14, h, w), its channels are

            0 to 5     motion of the pixel: change of its six coefficients
            6          change of the logarithm of its expected error
            7 to 12    estimate of the shared motion, by this pixel
            13         logarithm of the weight of this estimate

    Returns (B, 7, h, w).
    """
    if changes.shape[1] == CHANGES:
        return changes
    channels = (COEFFICIENTS, 1, COEFFICIENTS, 1)  # 6, 1, 6, 1, as in the table above
    motion_of_pixel, log_error, estimates, log_weight = changes.split(channels, dim=1)
    # Weights that add up to 1 over all pixels, (B, 1, h, w)
    # (test_the_shared_motion_is_the_weighted_mean_of_all_pixels).
    weight = torch.softmax(log_weight.flatten(1), dim=1).view_as(log_weight)
    shared_motion = (weight * estimates).sum((2, 3), keepdim=True)  # (B, 6, 1, 1)
    return torch.cat((motion_of_pixel + shared_motion, log_error), dim=1)

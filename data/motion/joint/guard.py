"""Blend the solution with the first estimate, by how well each of them fits the spikes.

A motion may be wrong although its expected error is small. At such pixels, the solution z of the
equations is worse than the first estimate z_0. The spikes show these pixels, because hardly
anything moves in the few planes around the sharp instant. So a frame can be compared with these
planes without any motion.

    weight of z = 1 / (1 + (a / (guard a_0))^2)

    a, a_0    squared errors of z and z_0 against these spikes, means over 7 x 7 spike pixels
    guard     the ratio a / a_0 at which both frames have the weight 1/2: an option of `--method
              joint`, 2.5 by default

E.g. with guard 2.5 the weight of z is 1/2 where a = 2.5 a_0. Where both frames fit alike (a = a_0),
it is 1 / (1 + (1 / 2.5)^2) = 0.86.

No trained weights depend on the guard, because learned steps do not use the guard. So the constants
of this file may change. No test shows whether another value is better: measure it
(docs/benchmarks/quality_details.md, "Its constants").

Tests: tests/parts/data/joint/test_guard.py. If z is always taken,
test_the_guard_saves_a_good_start_from_a_wrong_motion fails. All tests pass with another exponent
than 2.
"""

from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from data.motion.exposure import Recording
from data.motion.joint.spike_pixels import SpikePixels
from data.motion.joint.values import display_of_light, light_of, luma

# The guard compares brightness in GUARD_PLANES planes around the sharp instant. With more planes,
# their light would be blurred, so a right frame would differ from it. With fewer planes, there
# would be more noise. No measurement of other values is recorded.
GUARD_PLANES = 9
# Added to squared errors, so that a frame without any error does not divide by 0.
TINY_ERROR = 1e-6


class Blend(NamedTuple):
    """A blend of the solution z and the first estimate z_0."""

    frame: Tensor  # (3, H, W)
    weight_of_z: Tensor  # (H, W), in [0, 1]


def guard_solution(
    z: Tensor,
    z_0: Tensor,
    recording: Recording,
    pixels: SpikePixels,
    gain: np.ndarray,
    guard: float,
) -> Blend:
    """Blend z with z_0 by how well each fits the spikes around the sharp instant.

    z, z_0: the solution and the first estimate, (3, H, W).
    gain: (h, w), spikes per plane of each spike pixel at full light.
    guard: the ratio a / a_0 at which both frames have the weight 1/2. If it is 0, z is returned.
    """
    if guard == 0:  # the formula would divide by 0 (test_a_guard_of_0_gives_the_solution_as_it_is)
        return Blend(z, weight_of_z=torch.ones_like(z[0]))
    window = recording.window(recording.sharp, GUARD_PLANES)
    [rate] = recording.spike_rates([window])  # one window, one array: spikes per plane, (h, w)
    # The brightness (h, w) by the spikes: display values if `pixels.view.is_display`, else light.
    y = torch.from_numpy(rate / gain).to(z.device)
    error_of_z = _error_at_instant(z, y, pixels)  # (h, w)
    error_of_z_0 = _error_at_instant(z_0, y, pixels)
    # Where both frames fit, both errors are mostly noise, and their ratio is random. So we add the
    # error by noise to both errors, and their ratio comes near 1. E.g. with guard 2.5:
    #
    #     errors of z and z_0    0.0004 and 0.0001    ratio 4      weight of z 0.28
    #     with 0.001 added       0.0014 and 0.0011    ratio 1.27   weight of z 0.79
    error_by_noise = _error_by_noise(error_of_z, error_of_z_0) + TINY_ERROR
    a = error_of_z + error_by_noise
    a_0 = error_of_z_0 + error_by_noise

    weight_of_spike_pixels = 1 / (1 + (a / (guard * a_0)) ** 2)  # (h, w)
    [weight] = pixels.to_frame(weight_of_spike_pixels[None])  # one channel, (H, W)
    return Blend(frame=weight * z + (1 - weight) * z_0, weight_of_z=weight)


# The guard assumes that this fraction of the pixels has no error but noise. With a larger fraction,
# true errors would count as noise. No measurement of other values is recorded.
PERFECT_SHARE = 0.2


def _error_by_noise(error_of_z: Tensor, error_of_z_0: Tensor) -> Tensor:
    """Return the squared error (a scalar) that noise alone causes.

    For each pixel, the smaller one of its two errors is taken. The result is the PERFECT_SHARE
    quantile of these errors over all pixels, e.g. with 0.2 the 20th smallest of 100 errors.

    error_of_z, error_of_z_0: squared errors of both frames, (h, w).
    """
    smaller_errors = torch.minimum(error_of_z, error_of_z_0).flatten()
    # The rank is at least 1, because kthvalue counts from 1. E.g. of 4 errors, int(0.2 * 4) would
    # be 0.
    rank = max(1, int(PERFECT_SHARE * len(smaller_errors)))
    return smaller_errors.kthvalue(rank).values


# The guard takes means over GUARD_SIDE x GUARD_SIDE spike pixels. The number is odd, so that there
# is a middle pixel. With a larger number, the means have less noise, but show less exactly where a
# frame is wrong. No measurement of other values is recorded.
GUARD_SIDE = 7


def _error_at_instant(frame: Tensor, y: Tensor, pixels: SpikePixels) -> Tensor:
    """Return the mean squared error around each spike pixel of a frame against the spikes, (h, w).

    frame: (3, H, W), display values.
    y: brightness (h, w) by the spikes around the sharp instant: display values if
    `pixels.view.is_display`, else light.
    """
    # Compare display values, because in light the differences at dark pixels are tiny.
    if pixels.view.is_display:
        difference = pixels(luma(frame)) - y  # (1, h, w)
    else:
        seen_light = pixels(luma(light_of(frame)))
        difference = display_of_light(seen_light) - display_of_light(y)  # (1, h, w)
    # The mean over GUARD_SIDE x GUARD_SIDE pixels around each pixel. At the edges of the plane, the
    # mean is over fewer pixels, because the padding does not count (count_include_pad).
    mean = F.avg_pool2d(
        difference**2,
        kernel_size=GUARD_SIDE,
        stride=1,
        padding=GUARD_SIDE // 2,
        count_include_pad=False,
    )
    return mean[0]

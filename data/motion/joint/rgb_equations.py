"""Make the RGB equations of an exposure: the mean of the moving sharp frame is the blurry frame.

One equation per pixel and colour:

    B x = sum over groups g of s_g x(p + u_g(p)) = b        weight w_b = 1 / (sigma_b * slope)

    x          light of the sharp frame, (3, H, W)
    b          light of the blurry frame, (3, H, W)
    sigma_b    expected error of a blurry pixel, in display values
    slope      dx / dz at the blurry pixel: it turns an error of a display value into an error of
               light. E.g. z = 0.5 has the slope 0.96. So with sigma_b = 0.01 the error in light is
               0.0096, and w_b is 104
    s_g, u_g   share of group g (some planes) in the exposure, and its motion in pixels (groups.py)

cameras.py computes the left side B x. This module makes the right side b and the weights w_b.

What must stay: the numbers. The fusion operator "motion" (models/fusion/fusion_motion.py) improves
frames by learned steps along the motion. Its network was trained on these equations.

Tests: tests/parts/data/joint/test_rgb_equations.py notices another b, other weights of a frame
without noise, and another measure of the noise. No test notices another `NOISE_FACTOR`, so measure
it (docs/benchmarks/quality_details.md, "Its constants").
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from data.motion.exposure import Recording
from data.motion.joint.values import light_of, luma, slope_of, tensor_of

# sigma_b is at least NOISE_FACTOR * (noise - USUAL_NOISE), in display values. The noise of the
# blurry frame is measured by `noise_of`. E.g. a noise of 0.03 gives 7 * (0.03 - 0.013) = 0.12. With
# this limit, a photograph with a noise of 0.05 gains 0.6 dB of PSNR. Without it, the photograph
# loses 0.4 dB.
NOISE_FACTOR = 7.0
# `noise_of` takes fine texture for noise, up to 0.011 on the photographs of the training. So only
# noise above a slightly larger value makes sigma_b larger.
USUAL_NOISE = 0.013


class RgbEquations(NamedTuple):
    """The RGB equations B x = b of an exposure, one for each pixel and colour."""

    blurry: Tensor  # the blurry frame, display values (3, H, W)
    b: Tensor  # its light, (3, H, W)
    weights: Tensor  # w_b, (3, H, W): 1 / (expected error in light)
    noise: float  # standard deviation of the noise of the blurry frame, in display values
    sigma_b: float  # expected error of a blurry pixel, in display values


def rgb_equations(recording: Recording, least_error: float, device: torch.device) -> RgbEquations:
    """Make the RGB equations of an exposure.

    least_error: least sigma_b, in display values. If the frame is noisy, sigma_b is larger.

    Without the slope in the weights,
    test_a_blurry_pixel_has_the_same_error_in_display_values_at_each_brightness fails.
    """
    blurry = tensor_of(recording.blurry, device).permute(2, 0, 1)  # (H, W, 3) -> (3, H, W)
    noise = noise_of(luma(blurry)[0])
    sigma_b = max(least_error, NOISE_FACTOR * (noise - USUAL_NOISE))
    weights = 1 / (sigma_b * slope_of(blurry))
    return RgbEquations(
        blurry=blurry, b=light_of(blurry), weights=weights, noise=noise, sigma_b=sigma_b
    )


def noise_of(grey: Tensor) -> float:
    """Return the standard deviation of the noise of a picture (H, W).

    The noise is estimated from second differences. Without noise, second differences are 0 on flat
    places and on ramps, and most places of a picture are flat. So the median of the sizes of the
    differences shows only the noise. The method is from Immerkaer (CVIU 1996), who takes the mean
    in place of the median.

    With other factors, test_the_noise_on_a_ramp_is_measured fails.
    """
    if min(grey.shape) < 3:
        return 0.0  # the picture is smaller than the kernel
    kernel = torch.tensor([[1.0, -2, 1], [-2, 4, -2], [1, -2, 1]], device=grey.device)
    second = F.conv2d(grey[None, None], kernel[None, None])  # (1, 1, H - 2, W - 2)
    median_size = float(second.abs().median())
    # The median size of normal noise is 0.6745 of its standard deviation. The second differences
    # have 6 times the deviation of the noise, because the squares of the kernel sum up to 36.
    return median_size / 0.6745 / 6

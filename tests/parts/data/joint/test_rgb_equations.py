"""data/motion/joint/rgb_equations.py: right side and weights, and the noise of the blurry frame."""

from dataclasses import replace

import pytest
import torch

from data.motion.joint.rgb_equations import noise_of, rgb_equations
from tests.helpers.joint_case import CPU
from tests.helpers.made_exposures import dark_exposure

# A picture that becomes brighter from left to right.
RAMP = torch.linspace(0.2, 0.8, 64).expand(64, 64)


def test_a_ramp_has_no_noise():
    assert noise_of(RAMP) < 1e-6


def test_the_noise_on_a_ramp_is_measured():
    torch.manual_seed(0)
    noise = 0.02 * torch.randn(64, 64)

    # On 64 x 64 pixels the measured deviation varies by about 3 % with the seed.
    assert noise_of(RAMP + noise) == pytest.approx(0.02, rel=0.1)


def test_a_blurry_pixel_has_the_same_error_in_display_values_at_each_brightness():
    # z is a ramp without noise. So the error of a pixel is the least error that is assumed.
    z = RAMP[..., None].expand(64, 64, 3)
    recording = replace(dark_exposure(size=(64, 64), plane=(32, 32)), blurry=z.numpy().copy())

    made = rgb_equations(recording, least_error=0.02, device=CPU)

    light = z.permute(2, 0, 1) ** 2.2
    lighter = (z.permute(2, 0, 1) + 0.02) ** 2.2  # lighter by the error 0.02
    assert torch.allclose(made.b, light, atol=1e-5)
    # The weight is 1 / (error in light). The error in display values is small, 0.02, so the error
    # in light is nearly lighter - light.
    assert torch.allclose(made.weights, 1 / (lighter - light), rtol=0.1)

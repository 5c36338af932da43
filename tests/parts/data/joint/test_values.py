"""data/motion/joint/values.py: light and slope of display values."""

import torch

from data.motion.joint.values import display_of_light, light_of, slope_of

# Display values above DARK, below which the slope is the slope at DARK.
Z = torch.linspace(0.05, 0.95, 50, dtype=torch.float64)


def test_the_light_is_the_display_value_to_the_power_of_gamma():
    assert torch.allclose(light_of(Z), Z**2.2)


def test_the_display_values_of_the_light_are_the_display_values():
    assert torch.allclose(display_of_light(light_of(Z)), Z)


def test_the_slope_is_the_derivative_of_the_light():
    step = 1e-4
    change = light_of(Z + step) - light_of(Z - step)

    assert torch.allclose(slope_of(Z), change / (2 * step), rtol=1e-4)


def test_black_has_a_slope_above_0():
    black = torch.zeros(1, dtype=torch.float64)

    assert slope_of(black) > 0

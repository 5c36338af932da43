"""data/motion/joint/rgb_equations.py: the noise of the blurry frame, which its error depends on."""

import pytest
import torch

from data.motion.joint.rgb_equations import noise_of

# A picture that becomes brighter from left to right.
RAMP = torch.linspace(0.2, 0.8, 64).expand(64, 64)


def test_a_ramp_has_no_noise():
    assert noise_of(RAMP) < 1e-6


def test_the_noise_on_a_ramp_is_measured():
    torch.manual_seed(0)
    noise = 0.02 * torch.randn(64, 64)

    assert noise_of(RAMP + noise) == pytest.approx(0.02, rel=0.1)

"""Convert display values to light and back, colours to luma, and arrays to tensors.

A display value z is what a picture file stores, from 0 (black) to 1 (white). The light x that
arrives at a camera is

    x = z^2.2        back: z = x^(1 / 2.2)        slope: dx / dz = 2.2 z^1.2

The slope turns an error of z into an error of x: error of x = slope * error of z.

A spike camera sees no colours, but the luma 0.299 R + 0.587 G + 0.114 B of the light. In some
simulated recordings the camera sees the luma of display values instead. For these recordings the
option spike.light is "display" (`View.is_display`).

What must stay: the curves and `DARK`. Nearly all modules of this folder convert with these
functions. The fusion operator "motion" (models/fusion/fusion_motion.py) improves frames by learned
steps along the motion. Its shipped weights were trained with these curves.

Tests: tests/parts/data/joint/test_values.py notices another gamma, and a slope that does not belong
to it.
"""

import numpy as np
import torch
from torch import Tensor

from data.spike.pictures import DISPLAY_GAMMA, LUMA

# Slopes dx / dz are computed at display values of at least this value, about 10 of 255. At z = 0
# the slope 2.2 z^1.2 is 0, and the weight of an equation, 1 / (slope * error of z), would be
# infinite. No test notices another small value. (data/motion/light.py has another constant DARK: a
# light, 1e-3.)
DARK = 0.04


def light_of(z: Tensor) -> Tensor:
    """Return the light x = z^2.2 of display values z. Values beyond [0, 1] count as 0 or 1."""
    return _power(z.clamp(0, 1), DISPLAY_GAMMA)


def display_of_light(light: Tensor) -> Tensor:
    """Return the display values z = x^(1 / 2.2) of light. Light beyond [0, 1] counts as 0 or 1."""
    return _power(light.clamp(0, 1), 1 / DISPLAY_GAMMA)


def slope_of(z: Tensor) -> Tensor:
    """Return the slope dx / dz at display values z, at least the slope at `DARK`.

    Without the limit DARK, test_black_has_a_slope_above_0 fails.
    """
    return _power(z.clamp(DARK, 1), DISPLAY_GAMMA - 1).mul_(DISPLAY_GAMMA)


def _power(values: Tensor, exponent: float) -> Tensor:
    """Return values^exponent, for values of at least 0.

    On a CPU this function takes a quarter of the time of `values ** exponent`, and the results
    differ only by rounding.

    No gradient flows through the equations. With gradients this function would be wrong, because
    its gradient at 0 is NaN.
    """
    return values.log().mul_(exponent).exp_()  # log(0) is -infinity, and exp(-infinity) is 0


def luma(rgb: Tensor) -> Tensor:
    """Return the luma (1, H, W) of (3, H, W)."""
    return (luma_weights(rgb.device) * rgb).sum(0, keepdim=True)


def luma_weights(device: torch.device) -> Tensor:
    """Return the weights of R, G and B in the luma, (3, 1, 1)."""
    return torch.from_numpy(LUMA).to(device)[:, None, None]


def tensor_of(values: np.ndarray, device: torch.device) -> Tensor:
    """Return an array as a float32 tensor on a device."""
    return torch.from_numpy(np.asarray(values, np.float32)).to(device)

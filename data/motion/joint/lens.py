"""Blur pictures as the lens of the spike camera does.

SpikePixels (spike_pixels.py) blurs what the spike camera sees, and AreaMeans (area_means.py) blurs
the sharp frame.

What must stay: both classes use the same blur, and the blur is linear.

Tests: tests/parts/data/joint/test_cameras.py. If one of the two classes does not blur,
test_the_cameras_see_what_their_equations_say fails.
"""

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor


def gaussian_kernel(sigma: float) -> Tensor:
    """Return a Gaussian kernel (n,) whose sum is 1. The kernel reaches to 3 sigma, and n is odd.

    sigma: standard deviation in RGB pixels, above 0. E.g. 0.5 gives 5 values, for the distances
    -2 ... 2.
    """
    radius = int(np.ceil(3 * sigma))
    distance = torch.arange(-radius, radius + 1) / sigma
    kernel = torch.exp(-(distance**2) / 2)
    return kernel / kernel.sum()


def blur(pictures: Tensor, kernel: Tensor) -> Tensor:
    """Blur pictures (N, 1, H, W) along rows and columns. Edge pixels are repeated.

    kernel: (n,), from `gaussian_kernel`.
    """
    radius = len(kernel) // 2
    pictures = F.pad(pictures, (radius, radius, radius, radius), mode="replicate")
    along_rows = kernel[None, None, None]  # (1, 1, 1, n)
    along_columns = kernel[None, None, :, None]  # (1, 1, n, 1)
    return F.conv2d(F.conv2d(pictures, along_rows), along_columns)

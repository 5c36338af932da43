"""Gaussian noise for the training and testing of denoisers."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


def add_noise(frames: Tensor, sigma: float, rng: np.random.Generator) -> Tensor:
    """`frames` in [0, 1] plus white Gaussian noise of standard deviation sigma / 255, not clipped."""
    noise = rng.standard_normal(frames.shape, dtype=np.float32)
    return frames + torch.from_numpy(noise).mul_(sigma / 255)

"""Make batches of samples: tensors, mirrored and transposed at random.

What must stay: the order of the three draws of `turn_at_random`. The directions of the shifts must
be turned with the pictures. No test notices a wrong sign.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from lab.motion_net.samples import Sample
from models.fusion.motion_windows import INSIDE


class Batch(NamedTuple):
    """B samples as tensors."""

    # (B, 15, 2, h, w): the 15 windows of time, each with two channels, light and number of spikes.
    pictures: Tensor
    # (B, 3, h, w): brightness around each pixel, mean brightness, and contrast of the blurry frame.
    scenes: Tensor
    # (B, 11, 2, h, w): x and y of the true shifts from the sharp instant, in spike pixels, for each
    # of the eleven windows of the exposure. The loss does not need the four windows outside of the
    # exposure.
    shifts: Tensor


def batch_of(samples: Sequence[Sample]) -> Batch:
    """Join samples to a batch, as float32 tensors."""
    pictures = np.stack([sample.pictures for sample in samples])
    scenes = np.stack([sample.scene for sample in samples])
    shifts = np.stack([sample.shifts for sample in samples])  # (B, 15, h, w, 2)
    shifts_inside = torch.from_numpy(shifts).float()[:, INSIDE]  # (B, 11, h, w, 2)
    return Batch(
        pictures=torch.from_numpy(pictures).float(),
        scenes=torch.from_numpy(scenes).float(),
        shifts=shifts_inside.permute(0, 1, 4, 2, 3),
    )


def turn_at_random(batch: Batch, rng: np.random.Generator) -> Batch:
    """Mirror and transpose a batch at random. The directions of its shifts change in the same way.

    E.g. after mirroring from left to right, x of each shift has the opposite sign. No test notices
    a wrong sign. The order of the three draws is part of the training.
    """
    pictures, scenes, shifts = batch
    if rng.random() < 0.5:  # left and right: x changes its sign
        sign = torch.tensor([-1.0, 1.0]).view(1, 1, 2, 1, 1)  # signs of x and y
        pictures = pictures.flip(-1)
        scenes = scenes.flip(-1)
        shifts = shifts.flip(-1) * sign
    if rng.random() < 0.5:  # up and down: y changes its sign
        sign = torch.tensor([1.0, -1.0]).view(1, 1, 2, 1, 1)
        pictures = pictures.flip(-2)
        scenes = scenes.flip(-2)
        shifts = shifts.flip(-2) * sign
    if rng.random() < 0.5:  # rows become columns: x and y change places
        pictures = pictures.transpose(-1, -2)
        scenes = scenes.transpose(-1, -2)
        shifts = shifts.transpose(-1, -2).flip(2)  # axis 2 is x and y
    return Batch(pictures, scenes, shifts)

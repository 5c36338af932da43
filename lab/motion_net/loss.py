"""The loss of the network that finds the motion.

The network finds the motion at four levels, from coarse to fine. A pixel of a level has a side of
8, 4, 2 or 1 spike pixels.

The shipped network was trained with the values below. No measurement of other values is recorded.
Free to change, for the next training: the whole file. No test looks at the values of the loss. So
train for two minutes after a change, as the head of lab/train_motion_net.py says.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from models.fusion.motion_net import Curves
from models.fusion.motion_windows import displacements

LEVEL_WEIGHTS = (0.4, 0.4, 0.6, 1.0)  # weights of the levels in the loss, the coarsest first
# If an error has this size, in spike pixels, the first term of the loss is 1/2 (see `loss_of`). A
# larger USUAL_ERROR gives more weight to the second term, about the expected error.
USUAL_ERROR = 1.5
# Limits of s, the logarithm of the expected error, in the loss: errors of 0.007 to 55 pixels.
# Without limits, exp(-s) could become very large at first.
LOG_ERRORS = (-5, 4)


def loss_of(found: Sequence[Curves], shifts: Tensor, tau: Tensor) -> tuple[Tensor, float]:
    """Return the loss, and the mean error of the finest level in spike pixels.

    The loss of a pixel at one level has two terms. e is the error of its shifts, in the mean over
    the exposure, and s is the logarithm of the error that the network expects:

        loss = 1/2 * e / USUAL_ERROR + 1/2 * (e * exp(-s) + s)

    The second term is smallest if exp(s) = e. So the network learns how wrong its shifts are. The
    loss of a level is the mean over its pixels, times its number in LEVEL_WEIGHTS. The losses of
    all levels are added.

    found: the curves of each level, the coarsest first. The finest levels may be missing.
    shifts: the true shifts (B, 11, 2, h, w) at the times tau (11,).
    """
    total = torch.zeros(())
    e = torch.zeros(())  # replaced by the errors of each level
    for curves, weight in zip(found, LEVEL_WEIGHTS, strict=False):
        e = errors_of_level(curves, shifts, tau)
        s = curves.log_error.clamp(*LOG_ERRORS)
        expected = e * torch.exp(-s) + s
        total = total + weight * (0.5 * e / USUAL_ERROR + 0.5 * expected).mean()
    errors_of_finest = e.detach()  # `e` is of the last level
    return total, float(errors_of_finest.mean())


def errors_of_level(curves: Curves, shifts: Tensor, tau: Tensor) -> Tensor:
    """Return the mean error of the shifts over the exposure, for each pixel of a level.

    The result is (B, 1, size, size) in spike pixels, where `size` is the side of the level.

    curves: the curves of the level.
    shifts: the true shifts (B, 11, 2, h, w) at the times tau (11,).
    """
    # A pixel of this level has the mean of the true shifts of its spike pixels, `truth`.
    batch, times, axes = shifts.shape[:3]
    size = shifts.shape[-1] // curves.size  # pixels of the level on a side
    truth = F.avg_pool2d(shifts.flatten(1, 2), curves.size)  # (B, 11 x 2, size, size)
    truth = truth.view(batch, times, axes, size, size)
    difference = displacements(curves.coefficients, tau) - truth
    # 0.01^2 keeps the gradient of the root finite if the error is 0.
    length = (difference.square().sum(2) + 0.01**2).sqrt()  # (B, 11, size, size)
    return length.mean(1, keepdim=True)

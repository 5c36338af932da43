"""The loss of the learned steps, and their gain over the first estimate.

The learned steps are three small passes in which weights/motion.pth improves a frame. The first
estimate is the frame before these passes. weights/operator.pth has restored it.

weights/README.md says how the shipped weights/motion.pth was trained: its last training had the
values below, apart from --worse-weight. Free to change, for the next training: the whole file.
lab/joint_gain.py measures what a change gains, because no test does.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

# Weight in the loss (`loss_of`) of the frame after each learned step. After the training only the
# last frame is used, so the last weight is the largest. There must be one weight for each of
# STEP_COUNT steps (lab/motion_steps/network.py). With another number of weights, the loop of
# `loss_of` raises ValueError.
STEP_WEIGHTS = (0.15, 0.35, 1.0)
# Side in pixels of the squares in which the frame is compared with the first estimate. In smaller
# squares noise would decide which frame is worse. Larger squares would hide a small fault.
SQUARE_SIDE = 12
# Weight of squares that became worse than in the first estimate, default of --worse-weight. A
# larger weight makes the network careful: it changes the frame less. In dim light a weight of 2
# lost less on smooth photographs, and gained as much elsewhere. The last trainings for few spikes
# had the weights 2 and 1.2. All other trainings had the default.
WORSE_WEIGHT = 0.5
# This value is added to mean squared errors in the loss, so that the logarithm of a perfect frame
# is finite. It is about one grey level of 8 bits, squared: (1 / 255)^2 = 1.5e-5. So the loss does
# not reward errors that no picture of 8 bits shows.
LOSS_FLOOR = 2e-5
# This value is added to mean squared errors in the printed gain, so that the gain of a perfect
# frame is finite. It is far below each real error, so the gain in dB is practically exact.
GAIN_FLOOR = 1e-7


def loss_of(
    frames: Sequence[Tensor], z_0: Tensor, sharp: Tensor, worse_weight: float = WORSE_WEIGHT
) -> tuple[Tensor, float]:
    """Return the loss, and the gain of the last frame over the first estimate in dB.

    The gain is the PSNR of the last frame minus the PSNR of the first estimate. e_0 are the squared
    errors of the first estimate z_0. e_k are the squared errors of the frame after learned step k.
    The loss is

        loss = sum over k of STEP_WEIGHTS[k] * (relative_k + worse_weight * worse_k)
        relative_k = log(mean(e_k) / mean(e_0))
        worse_k    = mean over squares of max(0, e_k - e_0) / mean(e_0)

    Dim samples have larger errors. The logarithm makes bright and dim samples count alike.
    `worse_k` punishes a square of the frame that became worse, even if the frame became better in
    the mean (test_a_loss_counts_a_square_that_became_worse_more_than_one_that_became_better).
    LOSS_FLOOR is added to the means.

    frames: the frame (3, H, W) after each learned step.
    z_0, sharp: first estimate and true frame, (3, H, W).
    """
    e_0 = (z_0 - sharp) ** 2
    mean_0 = e_0.mean() + LOSS_FLOOR
    loss = torch.zeros(())
    for weight, frame in zip(STEP_WEIGHTS, frames, strict=True):
        e_k = (frame - sharp) ** 2
        mean_k = e_k.mean() + LOSS_FLOOR
        relative = (mean_k / mean_0).log()
        worse = F.relu(means_of_squares(e_k) - means_of_squares(e_0)).mean() / mean_0
        loss = loss + weight * (relative + worse_weight * worse)

    errors_of_last = (frames[-1].detach() - sharp) ** 2
    ratio = (errors_of_last.mean() + GAIN_FLOOR) / (e_0.mean() + GAIN_FLOOR)
    gain_db = float(-10 * ratio.log10())
    return loss, gain_db


def means_of_squares(errors: Tensor) -> Tensor:
    """Return the mean of errors (3, H, W) over the colours and over each square of the frame.

    The result is (1, 1, H / SQUARE_SIDE, W / SQUARE_SIDE).
    """
    grey = errors.mean(0)[None, None]  # (1, 1, H, W)
    return F.avg_pool2d(grey, SQUARE_SIDE)

"""Train the network that finds the motion, for a given time.

The network finds the motion at four levels, from coarse to fine. At the finest level a pixel is a
spike pixel. The shipped network was trained with the values below. No measurement of other values
is recorded.

What must stay: the order of the draws of `Pool`, because with another order the same seed gives
another training. Free to change, for the next training: the values. No test runs `train`. So train
for two minutes after a change, as the head of lab/train_motion_net.py says.
"""

import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from lab.motion_net.batches import Batch, batch_of, turn_at_random
from lab.motion_net.loss import LEVEL_WEIGHTS, loss_of
from lab.motion_net.samples import Sample, samples_of
from models.fusion.motion_net import MotionNet
from models.fusion.motion_windows import INSIDE

BATCH = 8  # samples of a step
# Drawing scenes takes time. So only every third step draws a new scene. A scene gives two samples.
# The rest of each batch is drawn from the newest 1600 samples.
NEW_EVERY = 3  # steps from one new scene to the next
POOL = 1600  # samples that are kept in memory
FIRST_POOL = 40  # samples that are drawn before the first step
RATE = 1.2e-3  # largest learning rate
LAST_RATE = 1e-5  # added to the learning rate in all steps, so that the rate does not end at 0
WARM_STEPS = 100  # steps in which the learning rate rises to RATE
# The finest level takes half of the time of a step. So this level is left out in the first 45 % of
# the training. This loses little, because the finest level only corrects what the coarser levels
# have found.
SHARE_WITHOUT_FINEST = 0.45
LARGEST_GRADIENT = 1.0  # larger gradients are scaled down to this norm
# Decay of the exponential moving average of the weights (`update_average`). With 0.995 about the
# last 200 steps count.
MOST_OLD = 0.995
PRINT_EVERY = 30  # seconds between two printed lines. With each line, the weights are written


class Pool:
    """The newest samples, from which each step draws its batch.

    The order of the draws must stay, because with another order the same seed gives another
    training. First FIRST_POOL samples are drawn. Then each step draws its new samples, the samples
    from the pool, and how the batch is mirrored and transposed.
    """

    def __init__(self, rng: np.random.Generator, textures: Sequence[np.ndarray]) -> None:
        self.rng = rng
        self.textures = textures
        self.samples: list[Sample] = []
        while len(self.samples) < FIRST_POOL:
            self.samples += samples_of(rng, textures)

    def batch(self, step: int) -> Batch:
        """Return the batch of a step. Every third step has two new samples. Other steps have none.

        The other samples of the batch come from the pool.
        """
        new: list[Sample] = []
        if step % NEW_EVERY == 0:
            new = samples_of(self.rng, self.textures)
        self.samples = (self.samples + new)[-POOL:]
        old_indices = self.rng.integers(0, len(self.samples), BATCH - len(new))
        old = [self.samples[index] for index in old_indices]
        return turn_at_random(batch_of(new + old), self.rng)


def train(textures: Sequence[np.ndarray], out: Path, seconds: float, seed: int) -> None:
    """Train for some time, and write the averaged weights.

    The learning rate depends on the elapsed time, and not on the number of steps. The same is true
    for the step from which the finest level is trained. So two trainings with the same seed differ
    on machines of different speed.

    out: the file.
    seconds: time of the training.
    """
    rng = np.random.default_rng(seed)
    torch.manual_seed(seed)  # for the initial weights
    net = MotionNet()
    parameter_count = sum(parameter.numel() for parameter in net.parameters())
    print(f"{parameter_count:,} parameters", flush=True)
    optimizer = torch.optim.AdamW(net.parameters(), RATE, weight_decay=1e-4, betas=(0.9, 0.98))
    averaged = {name: value.clone() for name, value in net.state_dict().items()}

    begin = time.time()
    last_print = begin
    pool = Pool(rng, textures)

    step = 0
    errors_and_lengths = []  # mean error and mean length of the shifts, of each step
    while True:
        elapsed_share = (time.time() - begin) / seconds
        if elapsed_share >= 1:
            break

        batch = pool.batch(step)
        levels = len(LEVEL_WEIGHTS)
        if elapsed_share < SHARE_WITHOUT_FINEST:
            levels -= 1  # without the last level, the finest one
        optimizer.param_groups[0]["lr"] = learning_rate(step, elapsed_share)
        error = train_step(net, optimizer, batch, levels)
        step += 1
        update_average(averaged, net, step)

        length = float(batch.shifts.norm(dim=2).mean())  # dimension 2 is x and y
        errors_and_lengths.append((error, length))
        if time.time() - last_print > PRINT_EVERY:
            last_print = time.time()
            print_errors(last_print - begin, step, errors_and_lengths)
            errors_and_lengths = []
            torch.save(averaged, out)
    torch.save(averaged, out)


def print_errors(
    seconds: float, step: int, errors_and_lengths: Sequence[tuple[float, float]]
) -> None:
    """Print the mean error beside the mean length of the shifts, in spike pixels.

    If the error is as large as the length, the network finds nothing.

    seconds, step: time and number of steps so far.
    errors_and_lengths: mean error and mean length of the shifts, of each step since the last line.
    """
    mean_error, mean_length = np.mean(errors_and_lengths, axis=0)
    passed = f"{seconds:.0f} s, step {step}"
    print(f"{passed}: error {mean_error:.3f} of {mean_length:.3f} pixels", flush=True)


def train_step(
    net: MotionNet, optimizer: torch.optim.Optimizer, batch: Batch, levels: int
) -> float:
    """Change the weights once. Returns the mean error of the shifts, in spike pixels.

    levels: number of levels that the network computes, from the coarsest one on.
    """
    found = net(batch.pictures, batch.scenes, levels)
    # The true shifts are at the middles of the eleven windows of the exposure (INSIDE).
    # net.tau[INSIDE] has the times of these middles.
    loss, error = loss_of(found, batch.shifts, net.tau[INSIDE])
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(net.parameters(), LARGEST_GRADIENT)
    optimizer.step()
    return error


def learning_rate(step: int, elapsed_share: float) -> float:
    """Return the learning rate. It rises over the first steps, and falls as a cosine over the time.

        rate = RATE * warm_up * cosine + LAST_RATE

        warm_up    from 1 / WARM_STEPS to 1 in the first WARM_STEPS steps
        cosine     from 1 to 0 over the time of the training

    step: number of steps so far.
    elapsed_share: share of the time of the training, 0 to 1.
    """
    warm_up = min(1, (step + 1) / WARM_STEPS)
    cosine = 0.5 + 0.5 * np.cos(np.pi * elapsed_share)  # from 1 to 0
    return RATE * warm_up * cosine + LAST_RATE


def update_average(averaged: dict[str, Tensor], net: nn.Module, step: int) -> None:
    """Move the averaged weights towards the weights of the network. Changes `averaged`.

        average = share_of_old * average + (1 - share_of_old) * newest weights

    At first the share of the old average is small, so that the initial weights count little:

        step            1       20     60     3980 and later
        share of old    1/21    1/2    3/4    MOST_OLD = 0.995

    step: number of steps so far, the newest included.
    """
    share_of_old = min(MOST_OLD, step / (step + 20))
    for name, newest in net.state_dict().items():
        averaged[name].lerp_(newest, 1 - share_of_old)

"""Train the learned steps, on samples that are ready.

The learned steps are three small passes in which weights/motion.pth improves a frame. A sample is a
frame with everything that the steps need (`Sample`).

weights/README.md says how the shipped weights/motion.pth was trained: its last training had the
values below, apart from the largest rate.

What must stay: the order of the random draws, because with another order the same seed gives other
weights. test_a_training_is_repeated_by_its_seed notices a number that does not come from the seed,
but not another order of the draws. Free to change, for the next training: the values.
tests/parts/house/test_train_motion.py trains for 12 updates on one sample.
"""

import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from data.motion.joint.equations import Solver
from lab.motion_steps.loss import WORSE_WEIGHT, loss_of
from lab.motion_steps.sample import Sample
from lab.motion_steps.sets import SETS
from lab.motion_steps.wrong_motion import wrong_motion
from models.fusion.fusion_motion import MotionSteps, Turn
from utils.contract import JointEquations

# A wrong motion replaces the measured one in this share of the updates, so that the steps learn
# when not to trust the motion. The share was chosen by hand.
SHARE_OF_WRONG_MOTION = 0.2
RATE = 2e-3  # largest learning rate, default of --rate
LAST_RATE_SHARE = 0.02  # the learning rate falls to this share of RATE
BETAS = (0.9, 0.99)  # the betas of Adam
LARGEST_GRADIENT = 1.0  # larger gradients are scaled down to this norm
WARM_UP = 50  # updates in which the learning rate rises from 0 to RATE
# The saved weights are an exponential moving average of the trained weights (`update_average`).
# With 0.01, about the last 100 updates count.
NEWEST_SHARE = 0.01
PRINT_EVERY = 100  # updates
SAVE_EVERY = 500  # updates


@dataclass(frozen=True)
class Draw:
    """A sample, and what is drawn for one update on this sample."""

    name: str  # the set and the kind of the motion, e.g. "seven_dim wrong", for the printed gains
    sample: Sample
    # The equations of the frame along the measured motion, or along a wrong motion.
    equations: JointEquations
    proposal: Tensor  # (3, H, W), the solution of `equations`
    turn: Turn  # how the pictures are mirrored and transposed for the conv net


def train(
    net: MotionSteps,
    samples: Mapping[str, list[Sample]],
    solver: Solver,
    updates: int,
    seed: int,
    save: Callable[[Mapping[str, Tensor], int], None],
    rate: float = RATE,
    worse_weight: float = WORSE_WEIGHT,
) -> None:
    """Train the learned steps. Each update uses one frame.

    net: the learned steps. Their weights are changed in place.
    samples: name of a set -> its samples.
    solver: settings of the equations.
    updates: number of updates.
    seed: seed of all draws.
    save: function that is called with the averaged weights and the number of updates so far, every
        SAVE_EVERY updates and at the end.
    rate: largest learning rate.
    worse_weight: weight, in the loss, of the squares of pixels in which the frame became worse
        (`loss_of`).
    """
    # There are two generators. `sampler` chooses samples and how they are turned. `rng` makes wrong
    # motions.
    sampler = random.Random(seed)
    rng = np.random.default_rng(seed)
    optimizer = torch.optim.Adam(net.parameters(), rate, betas=BETAS)
    averaged = {name: value.clone() for name, value in net.state_dict().items()}
    # Name of a draw (Draw.name) -> the gains since the last printed line.
    gains_db: dict[str, list[float]] = {}
    begin = time.time()
    for update in range(updates):
        drawn = draw(samples, solver, sampler, rng)
        optimizer.param_groups[0]["lr"] = rate * share_of_rate(update, updates)
        gain_db = update_weights(net, optimizer, drawn, worse_weight)
        done = update + 1
        update_average(averaged, net, done)

        gains_db.setdefault(drawn.name, []).append(gain_db)
        if done % PRINT_EVERY == 0:
            progress = f"{done} of {updates}, {time.time() - begin:.0f} s"
            print(f"{progress}: {means_in_words(gains_db)}", flush=True)
            gains_db = {}
        if done % SAVE_EVERY == 0 or done == updates:
            save(averaged, done)


def update_average(averaged: dict[str, Tensor], net: MotionSteps, done: int) -> None:
    """Move the averaged weights towards the weights of the network. Changes `averaged`.

        average = average + newest_share * (newest weights - average)

    newest_share is NEWEST_SHARE, but larger in the first updates. E.g. with NEWEST_SHARE = 0.01:

        update          1      2      3      ...    100     101     ...
        newest_share    1      1/2    1/3    ...    0.01    0.01    ...

    So the average of the first 100 updates is the plain mean of their weights. With 0.01 from the
    beginning, the initial weights would still count after 100 updates. No test looks at the values
    of the average.

    done: number of updates so far, the newest included.
    """
    newest_share = max(NEWEST_SHARE, 1 / done)
    for name, newest in net.state_dict().items():
        averaged[name].lerp_(newest, newest_share)


def means_in_words(gains_db: Mapping[str, list[float]]) -> str:
    """Return the mean gains in dB, e.g. "seven_dim +1.20, seven_dim wrong -0.05".

    gains_db: name of a draw -> its gains.
    """
    means = []
    for name, gains in sorted(gains_db.items()):
        means.append(f"{name} {np.mean(gains):+.2f}")
    return ", ".join(means)


def update_weights(
    net: MotionSteps, optimizer: torch.optim.Optimizer, drawn: Draw, worse_weight: float
) -> float:
    """Change the weights once. Returns the gain of the last frame over the first estimate in dB.

    The network `net` begins with the first estimate `sample.z_0`, and makes several frames, one
    after the other. The gain is the PSNR of the last frame minus the PSNR of `sample.z_0`, with the
    weights before this update.

    drawn: what the update is trained on. Its fields have comments in `Draw`.
    worse_weight: as in `train`.
    """
    sample = drawn.sample
    frames = net.all_steps(sample.z_0, drawn.proposal, drawn.equations, drawn.turn)
    loss, gain_db = loss_of(frames, sample.z_0, sample.sharp, worse_weight)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(net.parameters(), LARGEST_GRADIENT)
    optimizer.step()
    return gain_db


def draw(
    samples: Mapping[str, list[Sample]],
    solver: Solver,
    sampler: random.Random,
    rng: np.random.Generator,
) -> Draw:
    """Draw a sample, a motion, and how the pictures are turned for the conv net.

    The order of the draws is part of the training: with another order, the same seed gives other
    weights. No test notices another order.

    samples: name of a set -> its samples.
    solver: settings of the equations.
    sampler: generator that chooses samples and how they are turned.
    rng: generator of the wrong motion.
    """
    # A set is drawn by its weight. All samples of the set are equally likely.
    set_weights = [SETS[name].weight for name in samples]
    [set_name] = sampler.choices(list(samples), set_weights)
    sample = sampler.choice(samples[set_name])

    # Equations along a wrong motion are made anew, because each wrong motion is used once.
    if sampler.random() < SHARE_OF_WRONG_MOTION:
        name = f"{set_name} wrong"
        other = sampler.choice(samples[set_name])
        motion = wrong_motion(sample.motion, other.motion, rng)
        equations = sample.equations_along(motion, solver)
        proposal = equations.proposal(sample.z_0)
    else:
        name = set_name
        equations = sample.measured_equations(solver)
        proposal = sample.proposal

    turn = Turn(
        mirrored=sampler.random() < 0.5,
        upside_down=sampler.random() < 0.5,
        transposed=sampler.random() < 0.5,
    )
    return Draw(name=name, sample=sample, equations=equations, proposal=proposal, turn=turn)


def share_of_rate(update: int, updates: int) -> float:
    """Return the learning rate over the largest rate: a linear warm-up times a cosine.

    The cosine falls from 1 towards 0. Values below LAST_RATE_SHARE count as LAST_RATE_SHARE.

    update: number of the update, from 0.
    updates: number of all updates.
    """
    warm_up = min(1, (update + 1) / WARM_UP)
    cosine = 0.5 * (1 + np.cos(np.pi * update / updates))
    return warm_up * max(LAST_RATE_SHARE, cosine)

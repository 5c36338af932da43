"""Train one network for a given CPU time. A training that was stopped is resumed.

A point is a CPU time at which lab/vrt_curve.py tests the network, e.g. after 8, 16 and 24 minutes.

What must stay: the learning rate is constant after its rise, and the weights of a point are a
moving average. So the weights at a point do not depend on the time that the training takes
afterwards. A stopped training is resumed where it stopped
(test_a_stopped_training_goes_on_where_it_was).
"""

import sys
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from lab.vrt_forms.form import Form

# Both networks of a form have these settings. The values are usual for Adam, and no comparison with
# other values is recorded.

# Decay of the exponential moving average of the weights. The average is about the mean over the
# last 1 / (1 - 0.99) = 100 steps.
MOST_OLD = 0.99
WARM_STEPS = 50  # steps in which the learning rate rises to its value
LARGEST_GRADIENT = 1.0  # norm to which larger gradients are scaled down
SAVE_EVERY = 60  # CPU seconds from one save to the next. A stop loses at most a minute


class Weights(NamedTuple):
    """The weights at a point of the curve."""

    steps: int  # steps of the training so far
    averaged: dict[str, Tensor]  # the moving average of the weights


class Training:
    """The training of one network. It can be stopped at any time, and is resumed from its file.

    file: holds the state of the training, and the weights of the points that were reached.
    """

    def __init__(self, form: Form, arm: str, seed: int, file: Path) -> None:
        torch.manual_seed(seed)  # for the initial weights
        self.form = form
        self.file = file
        self.net = form.network(arm)
        self.rng = np.random.default_rng(seed)  # draws the data
        # Parts of a network may be frozen, e.g. the shipped steps of the form "prior".
        self.trained = [each for each in self.net.parameters() if each.requires_grad]
        self.parameter_count = sum(each.numel() for each in self.trained)
        self.optimizer = torch.optim.Adam(self.trained, form.rate, betas=(0.9, 0.99))
        self.averaged = {name: value.clone() for name, value in self.net.state_dict().items()}
        self.steps = 0
        self.seconds = 0.0  # CPU time so far
        self.seconds_before = 0.0  # CPU time before the last step
        self.points: dict[float, Weights] = {}  # CPU seconds -> weights
        if file.exists():
            self.load()

    def weights_after(self, seconds: float) -> Weights:
        """Train until the training has taken this CPU time, and return the averaged weights."""
        if seconds in self.points:
            return self.points[seconds]
        # The present weights are the weights of each point that the last step has passed. E.g. the
        # last step lasted from 0.9 s to 2.5 s: the points at 1 s and at 2 s have these weights. A
        # point before 0.9 s would need older weights, but older weights are not kept.
        if seconds < self.seconds_before:
            sys.exit(
                f"{self.file} has already been trained for {self.seconds:.0f} s, longer than the "
                f"{seconds:.0f} s of this point: use another --out, or larger --minutes"
            )
        saved_at = self.seconds
        while self.seconds < seconds:
            self.seconds_before = self.seconds
            begin = time.process_time()
            self.step()
            self.seconds += time.process_time() - begin
            if self.seconds - saved_at > SAVE_EVERY:
                self.save()
                saved_at = self.seconds
        averaged = {name: value.clone() for name, value in self.averaged.items()}
        self.points[seconds] = Weights(self.steps, averaged)
        self.save()
        return self.points[seconds]

    def step(self) -> None:
        """Change the weights once, and move the average towards them."""
        self.net.train()
        warm_up = min(1, (self.steps + 1) / WARM_STEPS)
        self.optimizer.param_groups[0]["lr"] = self.form.rate * warm_up
        loss = self.form.loss(self.net, self.rng)
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.trained, LARGEST_GRADIENT)
        self.optimizer.step()
        self.steps += 1

        # The average of the weights follows the newest weights fast at first, so that the initial
        # weights are forgotten:
        #
        #     step             1       20     180    1980 and later
        #     share_of_old     0.05    0.5    0.9    0.99 = MOST_OLD
        share_of_old = min(MOST_OLD, self.steps / (self.steps + 20))
        for name, newest in self.net.state_dict().items():
            if newest.is_floating_point():  # leave out indices: they never change
                self.averaged[name].lerp_(newest, 1 - share_of_old)

    def save(self) -> None:
        """Write the state of the training to its file.

        `load` reads what `save` writes, so change both methods together
        (test_a_stopped_training_goes_on_where_it_was).
        """
        state = {
            "net": self.net.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "averaged": self.averaged,
            "rng": self.rng.bit_generator.state,
            "steps": self.steps,
            "seconds": self.seconds,
            "seconds_before": self.seconds_before,
            # The points are plain tuples, so that the file can be read after `Weights` is renamed.
            "points": {at: tuple(weights) for at, weights in self.points.items()},
        }
        # Write to another name first. If the program is stopped while it writes, the old file stays
        # complete.
        unfinished = self.file.with_suffix(".unfinished")
        torch.save(state, unfinished)
        unfinished.replace(self.file)

    def load(self) -> None:
        """Resume from the file that an earlier call has written."""
        # weights_only=False, because the state of the generator has numbers of any size. The file
        # is our own.
        state = torch.load(self.file, weights_only=False)
        self.net.load_state_dict(state["net"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.averaged = state["averaged"]
        self.rng.bit_generator.state = state["rng"]
        self.steps = state["steps"]
        self.seconds = state["seconds"]
        self.seconds_before = state["seconds_before"]
        self.points = {at: Weights(*weights) for at, weights in state["points"].items()}

#!/usr/bin/env python3
"""Measure what attention over frames is worth at equal training time: three forms, three points.

    python lab/vrt_curve.py --videos VIDEOS --out FOLDER --form motion [--minutes 3 6 9] [--seed 0]

The question is what a Video Restoration Transformer (VRT) is for, in a project whose default finds
the motion with a small network and restores along it. --form says where the attention stands:

    motion   in the network that finds the motion and its expected error from spikes
    prior    between the learned steps of weights/motion.pth
    behind   behind the frames of weights/operator.pth, as VRT is used in the option files

Each form has two networks with about the same number of parameters ("arms"): one with attention
over frames, and a control without. Both begin at the same seed, see the same data in the same
order, and are tested on the same data, which comes from videos that no network has seen:

    train data -> train with attention, train the control -> test data -> FOLDER/vrt_curve_FORM.json

A point of the curve is a time of training. Time is CPU time of one thread (`time.process_time`), so
other programs on the machine do not count. Making and reading data does not count either. The
learning rate stays constant, and the tested weights are a moving average of the newest weights.
So each point of a curve is what a training of this length gives, and one training makes all points.

If the program is stopped, repeat the command: it goes on at the last minute that was saved in
FOLDER. docs/benchmarks/quality.md has the figures.

What must stay: the order of the random draws, so that a training can be repeated by its seed, and
the keys of the written JSON, which are in docs/benchmarks/quality.
tests/parts/house/test_vrt_curve.py trains each form for a second.
"""

import argparse
import json
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from data.cameras.rig import NAMED
from lab import train_motion_net
from lab.quality import VIDEOS, difference, video_files
from lab.tools import ROOT, environment
from lab.train_motion_net import Batch, batch_of, frames_of, turned
from models.fusion.fusion_motion import motion_of
from models.fusion.motion_net import (
    INSIDE,
    LEVELS,
    PICTURE_CHANNELS,
    SCENE_CHANNELS,
    WINDOWS,
    MotionNet,
    conv_net,
    displacements,
)
from models.portable import read_saved
from models.vrt.block import BlockGroup

# The two networks of a form.
ATTENTION = "attention"
CONTROL = "control"
ARMS = (ATTENTION, CONTROL)
# The lights of the tests, conditions of data/cameras/rig.py.
LIGHTS = ("dim", "rig", "ideal")

# Share of the old weights in the moving average of the weights: about the last 100 steps.
MOST_OLD = 0.99
WARM_STEPS = 50  # steps in which the learning rate rises
LARGEST_GRADIENT = 1.0  # larger gradients are scaled down to this norm
SAVE_EVERY = 60  # CPU seconds

# Light -> name of the scene or frame -> score.
Scores = dict[str, dict[str, float]]


# ---- The program -------------------------------------------------------------------------------


def main(argv: Sequence[str]) -> int:
    """Train both networks of a form, test them at each point, and write the scores.

    Returns the exit code 0.
    """
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--videos", type=Path, required=True, help="folder of the videos of lab/quality.py")
    add("--out", type=Path, required=True, help="folder of the data, the weights and the scores")
    add("--form", choices=FORMS, required=True, help="where the attention stands, see above")
    add(
        "--minutes",
        type=float,
        nargs="+",
        default=[8, 16, 24],
        help="CPU minutes of training at the points of the curve, default 8 16 24",
    )
    add("--seed", type=int, default=0, help="seed of all random numbers, default %(default)s")
    args = parser.parse_args(argv)
    # With one thread the CPU time is the time of the work, and the sums have one order.
    torch.set_num_threads(1)
    cv2.setNumThreads(1)
    args.out.mkdir(parents=True, exist_ok=True)
    form = FORMS[args.form](args.videos, args.out)
    measure(form, args.out, sorted(args.minutes), args.seed)
    return 0


def measure(form: "Form", out: Path, minutes: Sequence[float], seed: int) -> None:
    """Train and test both networks of a form, and write <out>/vrt_curve_<form>.json.

    minutes: CPU minutes of training at the points, in rising order.
    """
    found: dict[str, Any] = {
        "environment": environment(),
        "form": form.name,
        "score": form.score,
        "seed": seed,
        "parameters": {},
        "points": [],
        **form.references(),
    }
    points: dict[float, dict[str, Any]] = {minute: {"minutes": minute} for minute in minutes}
    found["points"] = list(points.values())
    for arm in ARMS:
        training = Training(form, arm, seed, out / f"{form.name}_{arm}_seed{seed}.pt")
        found["parameters"][arm] = training.parameter_count
        for minute in minutes:
            weights = training.weights_after(60 * minute)
            scores = form.tested(arm, weights.averaged)
            points[minute][arm] = {"steps": weights.steps, "scores": scores}
            means = {light: float(np.mean(list(of.values()))) for light, of in scores.items()}
            print(f"{form.name} {arm} {minute:g} minutes {weights.steps} steps: {means}")
            if arm == CONTROL:
                points[minute]["attention - control"] = differences(points[minute])
                print(f"  attention - control: {points[minute]['attention - control']}")
            sys.stdout.flush()
            # A file after each point, so that a stop loses one point at most.
            file = out / f"vrt_curve_{form.name}.json"
            file.write_text(json.dumps(found, indent=1) + "\n")


def differences(point: Mapping[str, Any]) -> dict[str, list[float | None]]:
    """Return the mean of attention - control, and half of its 95 % interval, for each light."""
    found = {}
    for light in LIGHTS:
        spread = difference(
            point[ATTENTION]["scores"][light],
            point[CONTROL]["scores"][light],
        )
        assert spread is not None  # both networks are tested on the same data
        found[light] = [spread.mean, spread.margin]
    return found


# ---- Training by CPU time ----------------------------------------------------------------------


class Form(ABC):
    """What a form is trained and tested on. One object serves both of its networks."""

    name: str  # a value of --form
    score: str  # what the scores are, with their unit
    rate: float  # the learning rate

    @abstractmethod
    def network(self, arm: str) -> nn.Module:
        """Build one of the two networks, with new weights from torch's generator."""

    @abstractmethod
    def loss(self, net: nn.Module, rng: np.random.Generator) -> Tensor:
        """Draw the data of a step, and return the loss on them.

        Both networks draw the same numbers, so that step n of both sees the same data.
        """

    @abstractmethod
    def scores(self, net: nn.Module) -> Scores:
        """Test a network. Returns the score of each scene or frame in each light."""

    def references(self) -> dict[str, Any]:
        """Return scores of what needs no training here, by name, for the written file."""
        return {}

    def tested(self, arm: str, weights: Mapping[str, Tensor]) -> Scores:
        """Return the scores of a network with these weights."""
        net = self.network(arm)
        net.load_state_dict(weights)
        with torch.no_grad():
            return self.scores(net.eval())


class Weights(NamedTuple):
    """The weights at a point of the curve."""

    steps: int  # steps of the training so far
    averaged: dict[str, Tensor]  # the moving average of the weights


class Training:
    """The training of one network. It can be stopped at any time, and goes on from its file.

    file: has the state of the training, and the weights of the points that were reached.
    """

    def __init__(self, form: Form, arm: str, seed: int, file: Path) -> None:
        torch.manual_seed(seed)  # of the initial weights
        self.form = form
        self.file = file
        self.net = form.network(arm)
        self.rng = np.random.default_rng(seed)  # of the data
        self.trained = [each for each in self.net.parameters() if each.requires_grad]
        self.parameter_count = sum(each.numel() for each in self.trained)
        self.optimizer = torch.optim.Adam(self.trained, form.rate, betas=(0.9, 0.99))
        self.averaged = {name: value.clone() for name, value in self.net.state_dict().items()}
        self.steps = 0
        self.seconds = 0.0  # CPU time so far
        self.points: dict[float, Weights] = {}  # CPU seconds -> weights
        if file.exists():
            self.load()

    def weights_after(self, seconds: float) -> Weights:
        """Train until the training has taken this CPU time, and return the averaged weights."""
        if seconds in self.points:
            return self.points[seconds]
        if seconds < self.seconds:
            sys.exit(
                f"{self.file} has already been trained for {self.seconds:.0f} s, longer than the "
                f"{seconds:.0f} s of this point: use another --out, or larger --minutes"
            )
        saved_at = self.seconds
        while self.seconds < seconds:
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

        # The average follows the weights fast at first, so that it forgets the initial weights.
        share_of_old = min(MOST_OLD, self.steps / (self.steps + 20))
        for name, newest in self.net.state_dict().items():
            if newest.is_floating_point():  # not the indices of the attention, which never change
                self.averaged[name].lerp_(newest, 1 - share_of_old)

    def save(self) -> None:
        """Write the state of the training to its file."""
        state = {
            "net": self.net.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "averaged": self.averaged,
            "rng": self.rng.bit_generator.state,
            "steps": self.steps,
            "seconds": self.seconds,
            "points": {at: tuple(weights) for at, weights in self.points.items()},
        }
        # First to another name, so that a stop while writing leaves the old file whole.
        unfinished = self.file.with_suffix(".unfinished")
        torch.save(state, unfinished)
        unfinished.replace(self.file)

    def load(self) -> None:
        """Go on from the file of an earlier call."""
        # weights_only=False, because the state of the generator has numbers of any size. The file
        # is our own.
        state = torch.load(self.file, weights_only=False)
        self.net.load_state_dict(state["net"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.averaged = state["averaged"]
        self.rng.bit_generator.state = state["rng"]
        self.steps = state["steps"]
        self.seconds = state["seconds"]
        self.points = {at: Weights(*weights) for at, weights in state["points"].items()}


# ---- Form "motion" -----------------------------------------------------------------------------
#
# The frames of this attention are the 15 pictures of spikes that `MotionNet` sees: those of eleven
# windows of time within the exposure, and of two windows on each side of it.

# The scenes that are drawn before the training. Both networks draw their batches from them. Each
# scene gives two samples.
TRAINING_SCENES = 500
TEST_SCENES = 40  # each is tested in each of LIGHTS
TEST_SEED = 1000  # of the test scenes, whatever --seed is
MOTION_BATCH = 8  # samples of a step
# The finest level of `MotionNet` is left out in training and test. It takes half of the time of a
# step, and only corrects what the coarser levels have found.
MOTION_LEVELS = len(LEVELS) - 1
# The levels with attention, by the side of their pixels in spike pixels. They are the coarsest, in
# which dim light is averaged most and attention takes least time.
ATTENTION_LEVELS = (8, 4)
TOKEN_CHANNELS = 16
HEADS = 2
# A window of the attention: all pictures, and 2 x 2 pixels of the level. Windows of 4 x 4 pixels
# took twice the time of a step.
ATTENTION_WINDOW = (WINDOWS, 2, 2)
JOINED_CHANNELS = 24  # channels that the attention adds to the inputs of the conv net
# Width of the conv nets with attention, in place of 48, so that both networks have about the same
# number of parameters.
NARROW_FEATURES = 42


class PictureAttention(nn.Module):
    """Attention over the pictures of all windows of time, at one level of `MotionNet`."""

    def __init__(self) -> None:
        super().__init__()
        seen = PICTURE_CHANNELS + SCENE_CHANNELS
        self.embed = nn.Conv2d(seen, TOKEN_CHANNELS, kernel_size=3, padding=1)
        self.blocks = BlockGroup(
            TOKEN_CHANNELS,
            depth=1,
            heads=HEADS,
            window=ATTENTION_WINDOW,
            mutual=False,
            drop_path=[0.0],
        )
        self.join = nn.Conv2d(WINDOWS * TOKEN_CHANNELS, JOINED_CHANNELS, kernel_size=1)

    def forward(self, moved: Tensor, scene: Tensor) -> Tensor:
        """Return channels for the conv net of the level, (B, 24, h, w).

        moved: the pictures (B, 30, h, w), shifted back to the sharp instant. scene: (B, 3, h, w).
        """
        pictures = moved.unflatten(1, (WINDOWS, PICTURE_CHANNELS))  # (B, 15, 2, h, w)
        batch = len(pictures)
        scenes = scene[:, None].expand(-1, WINDOWS, -1, -1, -1)  # (B, 15, 3, h, w)
        seen = torch.cat((pictures, scenes), dim=2)
        features = self.embed(seen.flatten(0, 1))  # (B 15, C, h, w)
        tokens = features.unflatten(0, (batch, WINDOWS)).permute(0, 1, 3, 4, 2)  # (B, 15, h, w, C)
        tokens = self.blocks(tokens)
        features = tokens.permute(0, 1, 4, 2, 3).flatten(1, 2)  # (B, 15 C, h, w)
        return self.join(features)


class AttentionMotionNet(MotionNet):
    """`MotionNet` whose coarse levels also see features by attention over the pictures."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.ModuleDict({str(size): PictureAttention() for size in ATTENTION_LEVELS})
        for index, level in enumerate(LEVELS):
            if level.size in ATTENTION_LEVELS:
                # The same net with more inputs, and narrower.
                convs = [each for each in self.nets[index].modules() if isinstance(each, nn.Conv2d)]
                self.nets[index] = conv_net(
                    inputs=convs[0].in_channels + JOINED_CHANNELS,
                    features=NARROW_FEATURES,
                    layers=level.layers,
                    outputs=convs[-1].out_channels,
                )

    def _inputs(
        self, pictures: Tensor, scene: Tensor, curve: Tensor, log_error: Tensor, size: int
    ) -> Tensor:
        inputs = super()._inputs(pictures, scene, curve, log_error, size)
        if size not in ATTENTION_LEVELS:
            return inputs
        moved = inputs[:, : WINDOWS * PICTURE_CHANNELS]  # the pictures are the first channels
        return torch.cat((inputs, self.attention[str(size)](moved, scene)), dim=1)


class MotionForm(Form):
    """The network that finds the motion. Scenes have exact motion (lab/train_motion_net.py)."""

    name = "motion"
    score = "end-point error in spike pixels, mean over the exposure"
    rate = train_motion_net.RATE

    def __init__(
        self,
        videos: Path,
        out: Path,
        training_scenes: int = TRAINING_SCENES,
        test_scenes: int = TEST_SCENES,
    ) -> None:
        """Draw the scenes.

        videos: folder of the videos of lab/quality.py. out: not used, because scenes are drawn
        again from their seed.
        """
        rng = np.random.default_rng(0)
        textures = train_motion_net.all_textures(videos)
        self.samples: list[train_motion_net.Sample] = []
        for _ in range(training_scenes):
            self.samples += train_motion_net.samples_of(rng, textures)

        # The surfaces of the test scenes come from videos on which nothing is trained.
        textures = []
        for video in video_files(videos, VIDEOS["choose"]):
            textures += frames_of(video)
        self.tests: dict[str, list[Batch]] = {light: [] for light in LIGHTS}
        rng = np.random.default_rng(TEST_SEED)
        for scene_index in range(test_scenes):
            scene = train_motion_net.random_scene(rng, textures)
            for light in LIGHTS:
                # The same seed in each light, so that the cameras differ in their rate alone.
                flaws = np.random.default_rng((TEST_SEED, scene_index))
                rate = NAMED[light]["rate"]
                sample = train_motion_net.recorded(flaws, scene, rate)
                self.tests[light].append(batch_of([sample]))

    def network(self, arm: str) -> MotionNet:
        return AttentionMotionNet() if arm == ATTENTION else MotionNet()

    def loss(self, net: nn.Module, rng: np.random.Generator) -> Tensor:
        assert isinstance(net, MotionNet)
        indices = rng.integers(0, len(self.samples), MOTION_BATCH)
        batch = turned(batch_of([self.samples[index] for index in indices]), rng)
        found = net(batch.pictures, batch.scenes, MOTION_LEVELS)
        loss, _ = train_motion_net.loss_of(found, batch.shifts, net.tau[INSIDE])
        return loss

    def scores(self, net: nn.Module) -> Scores:
        assert isinstance(net, MotionNet)
        scores: Scores = {}
        for light, batches in self.tests.items():
            scores[light] = {}
            for number, batch in enumerate(batches):
                scores[light][f"scene_{number:02d}"] = mean_error(net, batch)
        return scores

    def references(self) -> dict[str, Any]:
        """Return the scores of still pixels, and of the network in weights/motion.pth."""
        still = {}
        for light, batches in self.tests.items():
            lengths = [float(batch.shifts.norm(dim=2).mean()) for batch in batches]
            still[light] = {f"scene_{number:02d}": each for number, each in enumerate(lengths)}
        with torch.no_grad():
            shipped = self.scores(shipped_motion_net())
        return {"no motion": still, "weights/motion.pth": shipped}


def mean_error(net: MotionNet, batch: Batch) -> float:
    """Return the mean error of the shifts of all spike pixels, in spike pixels."""
    curves = net(batch.pictures, batch.scenes, MOTION_LEVELS)[-1]
    size = batch.shifts.shape[-2:]
    coefficients = F.interpolate(curves.coefficients, size, mode="bilinear", align_corners=False)
    found = displacements(coefficients, net.tau[INSIDE])  # (B, 11, 2, h, w)
    return float((found - batch.shifts).norm(dim=2).mean())


def shipped_motion_net() -> MotionNet:
    """Return the network of weights/motion.pth that finds the motion."""
    fusion = motion_of(read_saved(ROOT / "weights/motion.pth").build())
    assert fusion is not None and fusion.motion_net is not None
    return fusion.motion_net.eval()


FORMS = {"motion": MotionForm}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

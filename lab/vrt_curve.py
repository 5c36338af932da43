#!/usr/bin/env python3
"""Measure what attention over frames is worth at equal training time: three forms, three points.

    python lab/vrt_curve.py --videos VIDEOS --out FOLDER --form FORM [--minutes 8 16 24] [--seed 0]

Why: a Video Restoration Transformer (VRT) restores a frame with the help of the other frames of its
clip, by attention. The default of this project has no attention over frames. Its frames are made in
three steps:

    1  weights/operator.pth, the operator, restores each blurry frame with the help of its spikes
    2  a small network finds the motion within the exposure, also from spikes
    3  the learned steps of weights/motion.pth improve the frame along this motion

Would attention make them better? --form says where it is added:

    motion   in step 2, the network that finds the motion and its expected error
    prior    in step 3, between the learned steps
    behind   after step 1, behind the frames of the operator, as VRT is used in the option files

For each form two networks are trained: one with attention over frames, and a control without. They
have about the same number of parameters. Both begin at the same seed, see the same training data in
the same order, and are tested on the same data. The tests come from the videos coffee and walker,
and the training data do not. The scores are written to FOLDER/vrt_curve_FORM.json, see `measure`.

A point of the curve is a time of training. Time is CPU time of one thread (`time.process_time`), so
other programs on the machine do not count. Making scenes and clips does not count either. The
learning rate stays constant, and the tested weights are a moving average of the newest weights. So
the weights at a point do not depend on how long the training goes on, and one training makes all
points.

If the program is stopped, repeat the command: it goes on from the state of the training in FOLDER,
which is saved each minute. docs/benchmarks/quality_networks.md has the figures.

What must stay: the order of the random draws, so that a training can be repeated by its seed, and
the keys of the written JSON, because such files are in docs/benchmarks/quality. Both networks of a
form get the same time and the same data
(test_both_networks_of_a_form_are_trained_for_the_same_time), and the control sees no other frame
(test_attention_sees_the_other_frames_and_the_control_does_not).
Free to add: a form. tests/parts/house/test_vrt_curve.py trains each form for a second.
"""

import argparse
import json
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from data.cameras.rig_values import NAMED
from data.motion.finder import finder_of
from data.motion.joint.equations import Solver
from data.motion.learned_method import FEW_SPIKES
from data.motion.light import median_spikes
from lab import train_motion, train_motion_net
from lab.quality import VIDEOS, difference, link_files, video_files
from lab.tools import ROOT, environment
from lab.train_motion import ClipSet, Sample
from lab.train_motion_net import Batch, batch_of, frames_of, turned
from models.fusion.fusion_motion import (
    CHANNELS_AT_FULL_SIZE,
    CHANNELS_AT_HALF_SIZE,
    GATES,
    HALF,
    MotionFusion,
    MotionSteps,
    Turn,
    motion_of,
)
from models.fusion.motion_net import LEVELS, SCENE_CHANNELS, MotionNet, conv_net
from models.fusion.motion_windows import INSIDE, PICTURE_CHANNELS, WINDOWS, displacements
from models.portable import read_saved
from models.select_network import NETWORKS
from models.vrt.stages import BlockGroup, Stage
from utils.contract import JointEquations
from utils.options.option_file import read_with_base
from utils.options.sources import Sources

# The two networks of a form. A function that makes or tests one of them has an argument `arm` with
# one of these names.
ATTENTION = "attention"
CONTROL = "control"
ARMS = (ATTENTION, CONTROL)
# The lights of the tests, from dark to bright. They are names of rigs in
# data/cameras/rig_values.py.
LIGHTS = ("dim", "rig", "ideal")

# Settings of the training. They are usual values for Adam, and no comparison with others is
# recorded. Both networks of a form have the same.
#
# The moving average keeps this share of its old weights in each step, so it is about the mean of
# the last 1 / (1 - 0.99) = 100 steps.
MOST_OLD = 0.99
WARM_STEPS = 50  # steps in which the learning rate rises to its value
LARGEST_GRADIENT = 1.0  # norm to which larger gradients are scaled down
SAVE_EVERY = 60  # CPU seconds from one save to the next, so a stop loses a minute at most

# Light -> name of the scene or clip -> score, e.g. {"dim": {"coffee_00": 3.5, ...}, ...}. A score
# is an error in pixels (form "motion": less is better) or a gain in dB (the others: more is
# better).
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
    # With one thread, sums have one order, and the CPU time contains no overhead of threads.
    torch.set_num_threads(1)
    cv2.setNumThreads(1)
    args.out.mkdir(parents=True, exist_ok=True)
    form = FORMS[args.form].made(args.videos, args.out)
    minutes = sorted(set(args.minutes))
    measure(form, args.out, minutes, args.seed)
    return 0


def measure(form: "Form", out: Path, minutes: Sequence[float], seed: int) -> None:
    """Train and test both networks of a form, and write <out>/vrt_curve_<form>.json.

    A point of the written file, shortened:

        {"minutes": 3,
         "attention": {"steps": 110, "scores": {"dim": {"coffee_00": 3.55, ...}, ...}},
         "control": {"steps": ..., "scores": ...},
         "attention - control": {"dim": [0.06, 0.08], ...}}     see `differences`

    minutes: CPU minutes of training at the points, in rising order.
    """
    points: list[dict[str, Any]] = [{"minutes": minute} for minute in minutes]
    content: dict[str, Any] = {  # of the written file
        "environment": environment(),
        "form": form.name,
        "score": form.score,
        "seed": seed,
        "parameters": {},
        "points": points,
        **form.references(),
    }
    # The control comes second, so that a point of both networks is complete with the control.
    for arm in ARMS:
        training = Training(form, arm, seed, out / f"{form.name}_{arm}_seed{seed}.pt")
        content["parameters"][arm] = training.parameter_count
        for point in points:
            weights = training.weights_after(seconds=60 * point["minutes"])
            scores = form.scores_with(arm, weights.averaged)
            point[arm] = {"steps": weights.steps, "scores": scores}
            if arm == CONTROL:
                point["attention - control"] = differences(point)
            print_point(form.name, arm, point)
            # Write the file after each point, so that a stop loses one point at most.
            file = out / f"vrt_curve_{form.name}.json"
            file.write_text(json.dumps(content, indent=1) + "\n")


def print_point(form_name: str, arm: str, point: Mapping[str, Any]) -> None:
    """Print the mean scores of a network at a point, and the differences if the point has them.

    point: a point of the written file, see `measure`.
    """
    means = {}  # light -> mean score
    for light, scores in point[arm]["scores"].items():
        means[light] = float(np.mean(list(scores.values())))
    minutes = f"{point['minutes']:g} minutes"
    print(f"{form_name} {arm} {minutes} {point[arm]['steps']} steps: {means}")
    if "attention - control" in point:
        print(f"  attention - control: {point['attention - control']}")
    sys.stdout.flush()


def differences(point: Mapping[str, Any]) -> dict[str, list[float | None]]:
    """Return light -> [mean of attention - control, half of its 95 % interval].

    E.g. {"dim": [0.06, 0.08]}: in dim light the true difference is between -0.02 and 0.14.

    point: the scores of both networks at one point, as the written file has them.
    """
    difference_of_light: dict[str, list[float | None]] = {}
    for light in LIGHTS:
        spread = difference(
            point[ATTENTION]["scores"][light],
            point[CONTROL]["scores"][light],
        )
        assert spread is not None  # both networks are tested on the same data
        difference_of_light[light] = [spread.mean, spread.margin]
    return difference_of_light


# ---- Training by CPU time ----------------------------------------------------------------------


class Form(ABC):
    """The data, the networks, the loss and the tests of a value of --form.

    One object serves both networks of the form, so both get the same data.

    A new form is a subclass and an entry of FORMS. `Training` calls `network` and `loss`, and
    `measure` calls the rest. An argument `arm` is ATTENTION or CONTROL.
    """

    name: str  # a value of --form
    score: str  # what the scores are, with their unit
    rate: float  # the learning rate

    @classmethod
    @abstractmethod
    def made(cls, videos: Path, out: Path) -> "Form":
        """Make the data, or read it.

        videos: folder of the videos of lab/quality.py. out: folder in which clips are kept.
        """

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
        """Test a network. Returns the score of each scene or clip in each light."""

    def references(self) -> dict[str, Any]:
        """Return scores of what needs no training here, by name, for the written file."""
        return {}

    def scores_with(self, arm: str, weights: Mapping[str, Tensor]) -> Scores:
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
        # A long step may pass several points, which then get the same weights. E.g. a step lasts
        # from 0.9 s to 2.5 s, and the points are at 1 s and at 2 s: the point at 2 s is not before
        # 0.9 s, so it is valid. A point before 0.9 s would need weights that are gone.
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

        # The average follows the weights fast at first, so that it forgets the initial weights. At
        # step 20 it takes half of the new weights, and from step 1980 on 1 - MOST_OLD of them.
        share_of_old = min(MOST_OLD, self.steps / (self.steps + 20))
        for name, newest in self.net.state_dict().items():
            if newest.is_floating_point():  # not the indices of the attention, which never change
                self.averaged[name].lerp_(newest, 1 - share_of_old)

    def save(self) -> None:
        """Write the state of the training to its file.

        `load` reads what is written here, so change both together
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
            # As plain tuples, so that the file can be read after `Weights` was renamed.
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
        self.seconds_before = state["seconds_before"]
        self.points = {at: Weights(*weights) for at, weights in state["points"].items()}


# ---- Form "motion" -----------------------------------------------------------------------------
#
# The frames of this attention are the 15 pictures of spikes that `MotionNet` sees. Eleven pictures
# show windows of time within the exposure. Two pictures show windows before it, and two after it.
# `MotionNet` finds the motion from coarse to fine, at four levels. A pixel of a level has a side of
# 8, 4, 2 or 1 spike pixels. Each level has a conv net of its own, which corrects the motion.

# The scenes that are drawn before the training. Both networks draw their batches from them. Each
# scene gives two samples.
TRAINING_SCENES = 500
TEST_SCENES = 40  # each is tested in each of LIGHTS
TEST_SEED = 1000  # of the test scenes, whatever --seed is
MOTION_BATCH = 8  # samples of a step
# The finest level of `MotionNet` is left out in training and test. It takes half of the time of a
# step, and only corrects what the coarser levels have found.
MOTION_LEVELS = len(LEVELS) - 1
# The levels with attention: the side of their pixels in spike pixels. They are the coarsest levels.
# There dim light is averaged most, and attention takes least time.
ATTENTION_LEVELS = (8, 4)
# With more channels or heads, a step of the attention takes longer, so it makes fewer steps in the
# same time. No measurement of other values is recorded.
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
        inputs = PICTURE_CHANNELS + SCENE_CHANNELS  # 2 + 3
        self.embed = nn.Conv2d(inputs, TOKEN_CHANNELS, kernel_size=3, padding=1)
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

        moved: two channels of each of the 15 pictures, (B, 30, h, w), shifted back to the sharp
        instant. scene: (B, 3, h, w). The C below is TOKEN_CHANNELS.
        """
        pictures = moved.unflatten(1, (WINDOWS, PICTURE_CHANNELS))  # (B, 15, 2, h, w)
        batch = len(pictures)
        scenes = scene[:, None].expand(-1, WINDOWS, -1, -1, -1)  # (B, 15, 3, h, w)
        inputs = torch.cat((pictures, scenes), dim=2)  # (B, 15, 5, h, w)
        features = self.embed(inputs.flatten(0, 1))  # (B 15, C, h, w)
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
                # Replace the conv net of the level by a net with more inputs, and narrower.
                convs = [each for each in self.nets[index].modules() if isinstance(each, nn.Conv2d)]
                first_conv = convs[0]
                last_conv = convs[-1]
                self.nets[index] = conv_net(
                    inputs=first_conv.in_channels + JOINED_CHANNELS,
                    features=NARROW_FEATURES,
                    layers=level.layers,
                    outputs=last_conv.out_channels,
                )

    def _inputs(
        self, pictures: Tensor, scene: Tensor, curve: Tensor, log_error: Tensor, size: int
    ) -> Tensor:
        """Return the inputs of the conv net of a level, with the channels of the attention.

        `MotionNet.forward` calls this for each level. The arguments are the arguments of
        `MotionNet._inputs`, whose result (B, 48, h, w) begins with the 30 channels of the pictures.
        """
        inputs = super()._inputs(pictures, scene, curve, log_error, size)
        if size not in ATTENTION_LEVELS:
            return inputs
        moved = inputs[:, : WINDOWS * PICTURE_CHANNELS]  # the 30 channels of the pictures
        joined = self.attention[str(size)](moved, scene)  # (B, 24, h, w)
        return torch.cat((inputs, joined), dim=1)


class MotionForm(Form):
    """The network that finds the motion. Scenes have exact motion (lab/train_motion_net.py)."""

    name = "motion"
    score = "end-point error in spike pixels, mean over the exposure"
    rate = train_motion_net.RATE

    def __init__(
        self,
        videos: Path,
        training_scenes: int = TRAINING_SCENES,
        test_scenes: int = TEST_SCENES,
    ) -> None:
        """Draw the scenes. videos: folder of the videos of lab/quality.py."""
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

    @classmethod
    def made(cls, videos: Path, out: Path) -> "MotionForm":
        return cls(videos)  # scenes are drawn again from their seed, so nothing is read from `out`

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
        """Return the scores without any motion, and of the network in weights/motion.pth."""
        still = {}
        for light, batches in self.tests.items():
            still[light] = {}
            for number, batch in enumerate(batches):
                # If all found shifts are 0, the error is the length of the true shift. Dimension 2
                # is x and y.
                length = batch.shifts.norm(dim=2).mean()
                still[light][f"scene_{number:02d}"] = float(length)
        with torch.no_grad():
            net = shipped_fusion().motion_net
            assert net is not None
            shipped = self.scores(net)
        return {"no motion": still, "weights/motion.pth": shipped}


def mean_error(net: MotionNet, batch: Batch) -> float:
    """Return the mean error of the shifts of all spike pixels, in spike pixels."""
    curves_of_levels = net(batch.pictures, batch.scenes, MOTION_LEVELS)
    curves = curves_of_levels[-1]  # the finest level that is computed
    # The level has larger pixels than the spike camera, so its curves are enlarged.
    size = batch.shifts.shape[-2:]
    coefficients = F.interpolate(curves.coefficients, size, mode="bilinear", align_corners=False)
    found = displacements(coefficients, net.tau[INSIDE])  # (B, 11, 2, h, w)
    return float((found - batch.shifts).norm(dim=2).mean())


def shipped_fusion() -> MotionFusion:
    """Return the fusion of weights/motion.pth: the network that finds the motion, and the steps."""
    fusion = motion_of(read_saved(ROOT / "weights/motion.pth").build())
    assert fusion is not None
    return fusion.eval()


# ---- Clips of the forms "prior" and "behind" ---------------------------------------------------
#
# Both forms see clips of three or four frames. Frames are samples of lab/train_motion.py. They have
# the frame of the operator (z_0) and the equations along the motion. No test makes these clips,
# because they need the videos.

# The sets of training clips: videos and photographs in each light. One clip of each video and
# photograph is enough for minutes of training, and the equations of all clips are kept in memory.
# The order of the sets is part of the training, because `draw_clip` draws a set by its index.
TRAINING_SETS: dict[str, ClipSet] = {}  # e.g. "one_seven_dim" -> "seven_dim" with one clip
for _kind in ("seven", "photos"):
    for _light in LIGHTS:
        _set = train_motion.SETS[f"{_kind}_{_light}"]
        TRAINING_SETS[f"one_{_kind}_{_light}"] = replace(_set, clips=1)
# Light -> the set of test clips: the clips "choose" of lab/quality.py. The weight is not used here,
# because all test clips are restored.
TEST_SETS = {
    light: ClipSet("choose", light, clips=2, frames=8, weight=1, crop=192) for light in LIGHTS
}
# The frames of a test clip that are restored, together: the middle four of eight. A training clip
# has three or four frames as well.
TEST_FRAMES = slice(2, 6)
# Side in pixels of the middle of a frame, in which it is scored. At its border attention and convs
# see less. VRT restores no more than this square, because the rest would take most of the time.
SCORED_SIDE = 128

Clip = list[Sample]  # successive frames


def training_clips(videos: Path, out: Path) -> list[list[Clip]]:
    """Return the clips of each of TRAINING_SETS. Makes them in `out` if they are not there.

    videos: folder of the videos of lab/quality.py.
    """
    sources = train_motion.made_sources(out, videos)
    clips = []
    for name, clip_set in TRAINING_SETS.items():
        clips.append(clips_of(out, name, clip_set, sources[clip_set.source]))
    return clips


def test_clips(videos: Path, out: Path) -> dict[str, dict[str, Clip]]:
    """Return light -> name of a clip -> its TEST_FRAMES. Makes the clips if they are not there."""
    source = out / "sources" / "choose"
    link_files(video_files(videos, VIDEOS["choose"]), source)
    clips: dict[str, dict[str, Clip]] = {}
    for light, clip_set in TEST_SETS.items():
        # The clips are in the order of the videos, e.g. coffee_00, coffee_01, walker_00.
        names = []
        for video in VIDEOS["choose"]:
            names += [f"{video}_{index:02d}" for index in range(clip_set.clips)]
        whole_clips = clips_of(out, f"choose_{light}", clip_set, source)
        clips[light] = {}
        for name, clip in zip(names, whole_clips, strict=True):
            clips[light][name] = clip[TEST_FRAMES]
    return clips


def clips_of(out: Path, name: str, clip_set: ClipSet, source: Path) -> list[Clip]:
    """Return the clips of a set. The shipped weights find their motion."""
    operator = read_saved(train_motion.OPERATOR_WEIGHTS)
    shipped = shipped_fusion()
    find_motion = finder_of(shipped.motion_by, shipped.motion_net, torch.device("cpu"))
    samples = train_motion.samples_of(out, name, clip_set, source, operator, find_motion)
    # The samples are in the order of the frames, clip after clip.
    starts = range(0, len(samples), clip_set.frames)
    return [samples[start : start + clip_set.frames] for start in starts]


def draw_clip(clips: Sequence[Sequence[Any]], rng: np.random.Generator) -> Any:
    """Draw a set, all sets alike, and a clip of this set."""
    clips_of_set = clips[int(rng.integers(len(clips)))]
    return clips_of_set[int(rng.integers(len(clips_of_set)))]


def gain_db(restored: Tensor, z_0: Tensor, sharp: Tensor) -> float:
    """Return by how many dB a clip is better than the frames z_0, in the mean over its frames.

    It is 10 log10(errors_0 / errors), with the mean squared errors of z_0 and of `restored`.

    All: (N, 3, H, W). Only the middle of a frame is scored. z_0 lies in [0, 1] already, so only
    `restored` is clamped.
    """
    errors = (
        (middle_square(restored).clamp(0, 1) - middle_square(sharp)).square().mean((1, 2, 3))
    )  # (N,)
    errors_0 = (middle_square(z_0) - middle_square(sharp)).square().mean((1, 2, 3))
    return float(-10 * (errors / errors_0).log10().mean())


def middle_square(frames: Tensor) -> Tensor:
    """Return the middle SCORED_SIDE x SCORED_SIDE pixels of frames (..., H, W).

    A frame that is smaller is returned as a whole.
    """
    # A smaller frame has a negative difference. As an index it would count from the other end.
    top = max(0, (frames.shape[-2] - SCORED_SIDE) // 2)
    left = max(0, (frames.shape[-1] - SCORED_SIDE) // 2)
    return frames[..., top : top + SCORED_SIDE, left : left + SCORED_SIDE]


# ---- Form "behind" -----------------------------------------------------------------------------

BEHIND_OPTIONS = ROOT / "options/vrt/000_train_vrt_real_rgbspike.json"
BEHIND_SIDE = 32  # side of the crop of a training clip in pixels, as in the option file
# The control: width and number of its convs, for about the number of parameters of the VRT.
# test_both_networks_of_a_form_are_trained_for_the_same_time allows a difference of 5 %.
BEHIND_FEATURES = 96
BEHIND_LAYERS = 12
# Added to mean squared errors in the loss, so that the logarithm of a perfect frame is finite.
LOSS_FLOOR = train_motion.LOSS_FLOOR


class FrameNet(nn.Module):
    """Improves each frame on its own, by residual convs at half size: the control of "behind"."""

    def __init__(self) -> None:
        super().__init__()
        pixels = 3 * 2 * 2  # 2 x 2 pixels become channels
        self.head = nn.Conv2d(pixels, BEHIND_FEATURES, kernel_size=3, padding=1)
        self.body = FrameConvs(BEHIND_FEATURES, BEHIND_LAYERS)
        self.tail = nn.Conv2d(BEHIND_FEATURES, pixels, kernel_size=3, padding=1)
        set_to_zero(self.tail)  # the first result is the input, as in VRT

    def forward(self, frames: Tensor) -> Tensor:
        """Return better frames. frames and result: (1, N, 3, H, W), as VRT has them."""
        x = F.pixel_unshuffle(frames[0], 2)
        x = self.body(F.leaky_relu(self.head(x), 0.1))
        return frames + F.pixel_shuffle(self.tail(x), 2)[None]


class FrameConvs(nn.Module):
    """Residual convs on each frame: (N, features, h, w) -> the same shape."""

    def __init__(self, features: int, layers: int) -> None:
        super().__init__()
        self.convs = nn.ModuleList(
            nn.Conv2d(features, features, kernel_size=3, padding=1) for _ in range(layers)
        )

    def forward(self, x: Tensor) -> Tensor:
        for conv in self.convs:
            x = x + F.leaky_relu(conv(x), 0.1)
        return x


def set_to_zero(conv: nn.Conv2d) -> None:
    """Set weights and bias to 0, so that a network begins without any effect.

    test_a_new_network_changes_nothing notices another begin.
    """
    for parameter in conv.parameters():
        nn.init.zeros_(parameter)


class BehindForm(Form):
    """A network behind the frames of the operator, which is not trained."""

    name = "behind"
    score = "gain over weights/operator.pth in dB"
    rate = 1e-3  # of the option file

    def __init__(
        self, clips: Sequence[Sequence[Clip]], tests: Mapping[str, Mapping[str, Clip]]
    ) -> None:
        """Take the results of `training_clips` and `test_clips`.

        clips: the training clips of each set. tests: light -> name -> test clip.
        """
        self.clips: list[list[Pictures]] = []
        for clips_of_set in clips:
            self.clips.append([pictures_of(clip) for clip in clips_of_set])
        self.tests: dict[str, dict[str, Pictures]] = {}
        for light, clips_of_light in tests.items():
            self.tests[light] = {name: pictures_of(clip) for name, clip in clips_of_light.items()}

    @classmethod
    def made(cls, videos: Path, out: Path) -> "BehindForm":
        return cls(training_clips(videos, out), test_clips(videos, out))

    def network(self, arm: str) -> nn.Module:
        if arm == CONTROL:
            return FrameNet()
        options = read_with_base(BEHIND_OPTIONS, Sources(str(BEHIND_OPTIONS)))
        # Without fusion, because the operator has already made the frames that VRT sees. `resolve`
        # adds the defaults of missing options, and `plain` makes a dict.
        netG = NETWORKS.resolve({**options["netG"], "fusion": "none"}, "netG").plain()
        net = NETWORKS.build(netG, "netG", spike_channels=0)
        # The option file does not train the optical flow, either.
        net.spynet.requires_grad_(False)
        return net

    def loss(self, net: nn.Module, rng: np.random.Generator) -> Tensor:
        pictures = draw_clip(self.clips, rng)
        height, width = pictures.sharp.shape[-2:]
        top = int(rng.integers(height - BEHIND_SIDE + 1))
        left = int(rng.integers(width - BEHIND_SIDE + 1))
        mirrored, upside_down, transposed = rng.integers(0, 2, size=3).astype(bool).tolist()
        turn = Turn(mirrored, upside_down, transposed)
        rows = slice(top, top + BEHIND_SIDE)
        columns = slice(left, left + BEHIND_SIDE)
        z_0 = turn.apply(pictures.z_0[..., rows, columns])
        sharp = turn.apply(pictures.sharp[..., rows, columns])
        restored = net(z_0[None])[0]  # (N, 3, 32, 32), a batch of one clip
        e = (restored - sharp).square().mean()
        e_0 = (z_0 - sharp).square().mean()
        # The logarithm of a ratio of errors makes bright and dim clips count alike.
        return ((e + LOSS_FLOOR) / (e_0 + LOSS_FLOOR)).log()

    def scores(self, net: nn.Module) -> Scores:
        scores: Scores = {}
        for light, clips in self.tests.items():
            scores[light] = {}
            for name, pictures in clips.items():
                z_0 = middle_square(pictures.z_0)
                restored = net(z_0[None])[0]
                scores[light][name] = gain_db(restored, z_0, pictures.sharp)
        return scores


class Pictures(NamedTuple):
    """A clip without its spikes."""

    z_0: Tensor  # (N, 3, H, W) the frames of the operator
    sharp: Tensor  # (N, 3, H, W) the true frames


def pictures_of(clip: Clip) -> Pictures:
    """Return the frames of the operator and the true frames of a clip."""
    return Pictures(
        z_0=torch.stack([sample.z_0 for sample in clip]),
        sharp=torch.stack([sample.sharp for sample in clip]),
    )


# ---- Form "prior" ------------------------------------------------------------------------------
#
# The learned steps (`MotionSteps`) restore each frame on its own. Here all frames of a clip take a
# step together, and a second net, the prior, adds to the outputs of the conv net of the steps. The
# outputs are, for each pixel, a change of its colours (3 channels) and gates (GATES channels): how
# far the step follows the equations and the proposal. The proposal is a frame that solves the
# equations. The prior sees all frames. The shipped weights of the steps stay as they are.

# With a wider prior, a step takes longer, so the training makes fewer steps in the same time. No
# measurement of other sizes is recorded.
PRIOR_FEATURES = 32
QUARTER = 4  # side of a pixel of the prior, in pixels of the frame
# The attention: one stage of VRT, with two blocks of mutual attention (windows of two frames) and
# two blocks of self attention. A window has 6 x 6 pixels of the prior, 24 x 24 of the frame.
PRIOR_DEPTH = 4
PRIOR_MUTUAL_DEPTH = 2
PRIOR_HEADS = 4
PRIOR_WINDOW = (4, 6, 6)
# Number of convs of the control in place of the attention, for about the same number of parameters.
# test_both_networks_of_a_form_are_trained_for_the_same_time allows a difference of 5 %.
PRIOR_LAYERS = 7
# The solver that makes the proposals of the tests. Its defaults are the settings of the shipped
# weights. lab/train_motion.py has a cheaper solver for training.
TEST_SOLVER = Solver()


class ClipEquations:
    """The equations of all frames of a clip, as if the clip were one tall frame.

    The frames lie below one another: N frames of (3, H, W) are (3, N H, W). So
    `MotionSteps.all_steps` restores a clip as it restores a frame. No equation connects two frames.

    It has the members of `utils.contract.JointEquations`.
    """

    def __init__(self, of_frames: Sequence[JointEquations]) -> None:
        self.of_frames = of_frames
        self.blurry = stack_frames([each.blurry for each in of_frames])

    def proposal(self, z_0: Tensor) -> Tensor:
        """Return the solutions of the equations of all frames, (3, N H, W)."""
        pairs = zip(self.of_frames, split_frames(z_0, len(self.of_frames)), strict=True)
        return stack_frames([equations.proposal(frame) for equations, frame in pairs])

    def evidence(self) -> Tensor:
        """Return how far to trust the equations at each pixel of all frames, (6, N H, W)."""
        return stack_frames([each.evidence() for each in self.of_frames])

    def pulls(self, z: Tensor) -> Tensor:
        """Return how the equations would change all frames, and how far they are off.

        The result is (7, N H, W), the channels of `data.motion.joint.equations.Equations.pulls`.
        """
        pairs = zip(self.of_frames, split_frames(z, len(self.of_frames)), strict=True)
        return stack_frames([equations.pulls(frame) for equations, frame in pairs])


def stack_frames(frames: Sequence[Tensor] | Tensor) -> Tensor:
    """Put frames (C, H, W) below one another: (C, N H, W)."""
    return torch.cat(list(frames), dim=-2)


def split_frames(clip: Tensor, count: int) -> Tensor:
    """Undo `stack_frames`: (C, N H, W) -> (N, C, H, W). count: number of frames, N."""
    return torch.stack(clip.chunk(count, dim=-2))


class FrameAttention(nn.Module):
    """Attention over the frames of a clip: (N, features, h, w) -> the same shape."""

    def __init__(self) -> None:
        super().__init__()
        self.stage = Stage(
            kind="none",
            inputs=PRIOR_FEATURES,
            dim=PRIOR_FEATURES,
            depth=PRIOR_DEPTH,
            heads=PRIOR_HEADS,
            window=PRIOR_WINDOW,
            mutual_depth=PRIOR_MUTUAL_DEPTH,
            drop_path=[0.0] * PRIOR_DEPTH,
            pa_frames=0,  # no alignment along an optical flow
            deformable_groups=1,
            scale=QUARTER,
        )

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.permute(0, 2, 3, 1)[None]  # (1, N, h, w, C)
        # The lists are flows, which a stage without alignment does not use.
        tokens = self.stage(tokens, backward=[], forward=[])
        return tokens[0].permute(0, 3, 1, 2)


class Prior(nn.Module):
    """Adds to the outputs of the conv net of the steps. At first it adds 0.

    middle: sees all frames, (N, features, h, w) -> the same shape.
    """

    def __init__(self, middle: nn.Module) -> None:
        super().__init__()
        # At half size, 2 x 2 pixels of the full size are channels of one pixel. At the exit, 4 x 4
        # pixels of the frame are channels of one pixel of the prior.
        inputs = HALF**2 * CHANNELS_AT_FULL_SIZE + CHANNELS_AT_HALF_SIZE
        self.entry = nn.Conv2d(inputs, PRIOR_FEATURES, kernel_size=3, stride=2, padding=1)
        self.middle = middle
        outputs = QUARTER**2 * (3 + GATES)
        self.exit = nn.Conv2d(PRIOR_FEATURES, outputs, kernel_size=3, padding=1)
        set_to_zero(self.exit)

    def forward(self, at_full_size: Tensor, at_half_size: Tensor) -> Tensor:
        """Return what is added, (N, 3 + GATES, H, W). H and W are multiples of QUARTER.

        Both arguments are the inputs of `MotionSteps.net` for N frames, (N, channels, H, W). Their
        names say at which size the conv net sees them.
        """
        # Bring both inputs to half size, as `MotionSteps.net` does.
        pixels = F.pixel_unshuffle(at_full_size, HALF)  # 2 x 2 pixels become channels
        means = F.avg_pool2d(at_half_size, HALF)  # of 2 x 2 pixels
        joined = torch.cat((pixels, means), dim=1)  # (N, inputs, H / 2, W / 2)
        x = F.leaky_relu(self.entry(joined), 0.1)  # (N, features, H / 4, W / 4), by stride 2
        x = self.exit(self.middle(x))
        return F.pixel_shuffle(x, QUARTER)  # channels become 4 x 4 pixels


class StepsWithPrior(MotionSteps):
    """The shipped learned steps for a clip, with a prior between them.

    `MotionSteps.all_steps` calls `net` with two tensors, which do not say how many frames the clip
    has. So set `frames` and `is_dim` before each call of `all_steps`, as `steps_of_clip` does.
    """

    def __init__(self, prior: Prior) -> None:
        shipped = shipped_fusion()
        good = shipped.steps
        # A `MotionSteps` of the same form (width, inner layers, steps), with the same weights.
        super().__init__(good.head.out_channels, len(good.body), good.count)
        self.load_state_dict(good.state_dict())
        assert shipped.few_steps is not None
        self.few_steps = shipped.few_steps
        # Only the prior is trained. No test notices if the steps are trained, too, but "parameters"
        # in the written file counts what is trained.
        self.requires_grad_(False)
        self.prior = prior
        self.frames = 1  # number of frames of the clip
        self.is_dim = False  # whether the steps for few spikes serve

    def net(self, at_full_size: Tensor, at_half_size: Tensor) -> Tensor:
        """Return the change and the gates of all frames, (3 + GATES, N H, W).

        `MotionSteps.net` sees one frame at a time, and the prior sees all frames.
        """
        full = split_frames(at_full_size, self.frames)  # (N, CHANNELS_AT_FULL_SIZE, H, W)
        half = split_frames(at_half_size, self.frames)  # (N, CHANNELS_AT_HALF_SIZE, H, W)
        outputs = []
        for full_of_frame, half_of_frame in zip(full, half, strict=True):
            if self.is_dim:
                outputs.append(self.few_steps.net(full_of_frame, half_of_frame))
            else:
                outputs.append(super().net(full_of_frame, half_of_frame))
        return stack_frames(torch.stack(outputs) + self.prior(full, half))


class PriorForm(Form):
    """A prior between the learned steps of weights/motion.pth, which are not trained."""

    name = "prior"
    score = "gain over weights/operator.pth in dB"
    rate = 1e-3

    def __init__(
        self, clips: Sequence[Sequence[Clip]], tests: Mapping[str, Mapping[str, Clip]]
    ) -> None:
        """Take the results of `training_clips` and `test_clips`, and make their equations.

        clips: the training clips of each set. tests: light -> name -> test clip.
        """
        self.clips = clips
        self.tests = tests
        # Make all equations before the training, because making data does not count as training.
        for clips_of_set in clips:
            for clip in clips_of_set:
                for sample in clip:
                    sample.measured_equations(train_motion.SOLVER)
        # The proposals of the tests, by the solver of the shipped weights.
        for clips_of_light in tests.values():
            for clip in clips_of_light.values():
                for sample in clip:
                    equations = sample.measured_equations(TEST_SOLVER)
                    sample.proposal = equations.proposal(sample.z_0)

    @classmethod
    def made(cls, videos: Path, out: Path) -> "PriorForm":
        return cls(training_clips(videos, out), test_clips(videos, out))

    def network(self, arm: str) -> "StepsWithPrior":
        if arm == ATTENTION:
            return StepsWithPrior(Prior(FrameAttention()))
        return StepsWithPrior(Prior(FrameConvs(PRIOR_FEATURES, PRIOR_LAYERS)))

    def loss(self, net: nn.Module, rng: np.random.Generator) -> Tensor:
        assert isinstance(net, StepsWithPrior)
        clip = draw_clip(self.clips, rng)
        frames = steps_of_clip(net, clip, train_motion.SOLVER)
        pictures = pictures_of(clip)
        loss, _ = train_motion.loss_of(
            frames, stack_frames(pictures.z_0), stack_frames(pictures.sharp)
        )
        return loss

    def scores(self, net: nn.Module) -> Scores:
        assert isinstance(net, StepsWithPrior)
        scores: Scores = {}
        for light, clips in self.tests.items():
            scores[light] = {}
            for name, clip in clips.items():
                frames_of_steps = steps_of_clip(net, clip, TEST_SOLVER)
                frames = split_frames(frames_of_steps[-1], len(clip))  # after the last step
                pictures = pictures_of(clip)
                scores[light][name] = gain_db(frames, pictures.z_0, pictures.sharp)
        return scores

    def references(self) -> dict[str, Any]:
        """Return the scores of the shipped weights, without a prior."""
        net = self.network(CONTROL)  # a new prior adds nothing
        with torch.no_grad():
            return {"weights/motion.pth": self.scores(net)}


def steps_of_clip(net: StepsWithPrior, clip: Clip, solver: Solver) -> list[Tensor]:
    """Return all frames of a clip after each step, (3, N H, W) each."""
    net.frames = len(clip)
    # Light changes little within a clip, so its first frame decides.
    net.is_dim = median_spikes(clip[0].recording) < FEW_SPIKES
    z_0 = stack_frames([sample.z_0 for sample in clip])
    proposal = stack_frames([sample.proposal for sample in clip])
    equations = ClipEquations([sample.measured_equations(solver) for sample in clip])
    return net.all_steps(z_0, proposal, equations)


FORMS: dict[str, type[Form]] = {
    "motion": MotionForm,
    "prior": PriorForm,
    "behind": BehindForm,
}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

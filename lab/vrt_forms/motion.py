"""Form "motion": attention in the network that finds the motion.

A form is one place where attention over frames may be added (lab/vrt_curve.py). lab/motion_net/
draws scenes whose motion is known exactly. The networks are trained and tested on such scenes. The
control is `MotionNet` itself.

What must stay: the order of the draws, because scenes come from a seed. The test scenes must show
videos on which nothing is trained. test_the_motion_is_found_by_both_networks trains both networks
for a moment.
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from data.cameras.rig_values import NAMED
from lab.motion_net.batches import Batch, batch_of, turn_at_random
from lab.motion_net.loss import loss_of
from lab.motion_net.samples import Sample, record_sample, samples_of
from lab.motion_net.scenes import random_scene
from lab.motion_net.textures import all_textures, frames_of
from lab.motion_net.training import RATE
from lab.motion_steps.network import SHIPPED_WEIGHTS, network_of
from lab.quality_suite.sources import VIDEOS, video_files
from lab.vrt_forms.attention_motion_net import AttentionMotionNet
from lab.vrt_forms.form import ATTENTION, LIGHTS, Form, Scores
from models.fusion.motion_net import LEVELS, MotionNet
from models.fusion.motion_windows import INSIDE, displacements

# Number of scenes that are drawn before the training. Each scene gives two samples. Both networks
# draw their batches from these samples.
TRAINING_SCENES = 500
TEST_SCENES = 40  # number of test scenes. Each scene is tested in each of LIGHTS
TEST_SEED = 1000  # seed of the test scenes. --seed does not change it
MOTION_BATCH = 8  # samples of a step, as BATCH in lab/motion_net/training.py
# `MotionNet` finds the motion at four levels, from coarse to fine. The finest level is left out in
# training and test, because it takes half of the time of a step. It only corrects what the coarser
# levels have found.
MOTION_LEVELS = len(LEVELS) - 1


class MotionForm(Form):
    """The network that finds the motion within an exposure, on scenes with exact motion.

    The docstrings of `Form` (form.py) explain the methods.
    """

    name = "motion"
    score = "end-point error in spike pixels, mean over the exposure"
    rate = RATE

    def __init__(
        self,
        videos: Path,
        training_scenes: int = TRAINING_SCENES,
        test_scenes: int = TEST_SCENES,
    ) -> None:
        """Draw the scenes of the training and of the tests, and record them.

        videos: folder of the videos of lab/quality.py.
        """
        # A fixed seed: --seed changes the initial weights and the batches, but not the scenes.
        rng = np.random.default_rng(0)
        textures = all_textures(videos)
        self.samples: list[Sample] = []
        for _ in range(training_scenes):
            self.samples += samples_of(rng, textures)

        # The surfaces of the test scenes come from videos on which nothing is trained.
        textures = []
        for video in video_files(videos, VIDEOS["choose"]):
            textures += frames_of(video)
        self.tests: dict[str, list[Batch]] = {light: [] for light in LIGHTS}
        rng = np.random.default_rng(TEST_SEED)
        for scene_index in range(test_scenes):
            scene = random_scene(rng, textures)
            for light in LIGHTS:
                # `record_sample` draws the flaws of the cameras. `record_sample` gets the same seed
                # in each light, so that the cameras differ only in their rate.
                rng_of_flaws = np.random.default_rng((TEST_SEED, scene_index))
                # NAMED has the cameras by name (data/cameras/rig_values.py), and each of LIGHTS is
                # the name of a camera. The rate is in spikes per plane at full light.
                rate = NAMED[light]["rate"]
                sample = record_sample(rng_of_flaws, scene, rate)
                self.tests[light].append(batch_of([sample]))

    @classmethod
    def make(cls, videos: Path, out: Path) -> "MotionForm":
        """Draw the scenes of the training and of the tests."""
        return cls(videos)  # scenes are drawn again from their seed, so nothing is read from `out`

    def network(self, arm: str) -> MotionNet:
        """Build `MotionNet` with attention (ATTENTION) or without (CONTROL), with new weights."""
        return AttentionMotionNet() if arm == ATTENTION else MotionNet()

    def loss(self, net: nn.Module, rng: np.random.Generator) -> Tensor:
        """Draw a batch of samples, turn it at random, and return the loss of the shifts.

        To turn a batch is to mirror its pictures, or to exchange their rows and columns.
        """
        assert isinstance(net, MotionNet)
        indices = rng.integers(0, len(self.samples), MOTION_BATCH)
        batch = turn_at_random(batch_of([self.samples[index] for index in indices]), rng)
        # A `Batch` (lab/motion_net/batches.py) holds three tensors of its B samples:
        #
        #     pictures    light and number of spikes in each of 15 windows of time
        #     scenes      brightness and contrast of the blurry frame around each pixel
        #     shifts      the true x and y of each pixel, at each time within the exposure
        #
        # `found` has the curves of each level: how each pixel moves during the exposure.
        # net.tau[INSIDE] has the times within the exposure at which the true shifts are known.
        found = net(batch.pictures, batch.scenes, MOTION_LEVELS)
        # The second value is the mean error of the batch in pixels. It is not needed here.
        loss, _ = loss_of(found, batch.shifts, net.tau[INSIDE])
        return loss

    def scores(self, net: nn.Module) -> Scores:
        """Return the mean error of the shifts in spike pixels, light -> scene -> error."""
        assert isinstance(net, MotionNet)
        scores: Scores = {}
        for light, batches in self.tests.items():
            scores[light] = {}
            for scene_index, batch in enumerate(batches):
                scores[light][f"scene_{scene_index:02d}"] = mean_error(net, batch)
        return scores

    def references(self) -> dict[str, Any]:
        """Return two errors for comparison: with all shifts 0, and with weights/motion.pth."""
        errors_without_motion = {}
        for light, batches in self.tests.items():
            errors_without_motion[light] = {}
            for scene_index, batch in enumerate(batches):
                # If all found shifts are 0, the error is the length of the true shift. Dimension 2
                # is x and y.
                length = batch.shifts.norm(dim=2).mean()
                errors_without_motion[light][f"scene_{scene_index:02d}"] = float(length)
        with torch.no_grad():
            net = network_of(SHIPPED_WEIGHTS).motion_net
            assert net is not None
            shipped = self.scores(net)
        return {"no motion": errors_without_motion, "weights/motion.pth": shipped}


def mean_error(net: MotionNet, batch: Batch) -> float:
    """Return the mean error of the shifts of all spike pixels, in spike pixels."""
    curves_of_levels = net(batch.pictures, batch.scenes, MOTION_LEVELS)
    curves = curves_of_levels[-1]  # the finest level that is computed
    # A pixel of the level is larger than a spike pixel, so enlarge the picture of the curves.
    size = batch.shifts.shape[-2:]
    coefficients = F.interpolate(curves.coefficients, size, mode="bilinear", align_corners=False)
    found = displacements(coefficients, net.tau[INSIDE])  # the found shifts, (B, 11, 2, h, w)
    return float((found - batch.shifts).norm(dim=2).mean())

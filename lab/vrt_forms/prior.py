"""Form "prior": attention between the learned steps of weights/motion.pth.

A form is one place where attention over frames may be added (lab/vrt_curve.py). The learned steps
are small passes that improve a frame along its motion. Here they improve all frames of a clip
together, with the help of a prior: a network that sees all frames (prior_net.py).

A step sees the equations of a frame (data/motion/joint/equations.py). The equations say that each
camera has recorded a mean of the sharp frame while the scene moved. A step also sees a proposal: a
frame that solves the equations.

What must stay: the order of the draws. The equations must be made before the training, because the
time for making data must not count as training.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from data.motion.joint.equations import Solver
from data.motion.learned_method import FEW_SPIKES
from data.motion.light import median_spikes
from lab.motion_steps.loss import loss_of
from lab.motion_steps.made_samples import SOLVER
from lab.vrt_forms.clip_equations import ClipEquations, split_frames, stack_frames
from lab.vrt_forms.clips import Clip, draw_clip, gain_db, pictures_of, test_clips, training_clips
from lab.vrt_forms.form import ATTENTION, CONTROL, Form, Scores
from lab.vrt_forms.frame_convs import FrameConvs
from lab.vrt_forms.prior_net import (
    PRIOR_FEATURES,
    PRIOR_LAYERS,
    FrameAttention,
    Prior,
    StepsWithPrior,
)

# The solver that makes the proposals of the test clips. The defaults of `Solver` are the settings
# of the shipped weights. Training has a cheaper solver, SOLVER of lab/motion_steps/made_samples.py.
TEST_SOLVER = Solver()


class PriorForm(Form):
    """A prior between the learned steps of weights/motion.pth. The steps are not trained.

    The learned steps improve the frames of the operator (weights/operator.pth) along their motion.
    The prior is a network that sees all frames of a clip. Only the prior is trained.

    The docstrings of `Form` (form.py) explain the methods.
    """

    name = "prior"
    score = "gain over weights/operator.pth in dB"
    rate = 1e-3  # learning rate, chosen by hand, as in the form "behind"

    def __init__(
        self, clips: Sequence[Sequence[Clip]], tests: Mapping[str, Mapping[str, Clip]]
    ) -> None:
        """Take the results of `training_clips` and `test_clips`, and make all equations.

        clips: the training clips of each set.
        tests: light -> name -> test clip.
        """
        self.clips = clips
        self.tests = tests
        # Make all equations now, because the time for making data must not count as training. A
        # sample keeps the equations of the first call of `measured_equations`.
        for clips_of_set in clips:
            for clip in clips_of_set:
                for sample in clip:
                    sample.measured_equations(SOLVER)
        # The solver of the shipped weights makes the equations and the proposals of the test clips.
        for clips_of_light in tests.values():
            for clip in clips_of_light.values():
                for sample in clip:
                    equations = sample.measured_equations(TEST_SOLVER)
                    sample.proposal = equations.proposal(sample.z_0)

    @classmethod
    def make(cls, videos: Path, out: Path) -> "PriorForm":
        """Make or read the clips in `out`, and make their equations."""
        return cls(training_clips(videos, out), test_clips(videos, out))

    def network(self, arm: str) -> "StepsWithPrior":
        """Build the shipped steps with a new prior: attention (ATTENTION) or convs (CONTROL)."""
        if arm == ATTENTION:
            return StepsWithPrior(Prior(FrameAttention()))
        return StepsWithPrior(Prior(FrameConvs(PRIOR_FEATURES, PRIOR_LAYERS)))

    def loss(self, net: nn.Module, rng: np.random.Generator) -> Tensor:
        """Draw a clip, and return the loss of its frames after each step (`loss_of`)."""
        assert isinstance(net, StepsWithPrior)
        clip = draw_clip(self.clips, rng)
        frames = steps_of_clip(net, clip, SOLVER)  # the clip after each step
        pictures = pictures_of(clip)
        z_0 = stack_frames(pictures.z_0)
        sharp = stack_frames(pictures.sharp)
        loss, _ = loss_of(frames, z_0, sharp)  # the second value is the gain in dB
        return loss

    def scores(self, net: nn.Module) -> Scores:
        """Restore each test clip. Returns light -> clip -> gain over the operator in dB."""
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
    """Return all frames of a clip after each step, (3, N * H, W) each.

    solver: makes the equations of a sample that has none yet. `PriorForm.__init__` has made the
        equations of all its samples, and a sample keeps its first equations.
    """
    net.frame_count = len(clip)
    # The brightness changes little within a clip. So the spikes of the first frame decide which
    # steps restore all frames.
    net.is_dim = median_spikes(clip[0].recording) < FEW_SPIKES
    z_0 = stack_frames([sample.z_0 for sample in clip])
    proposal = stack_frames([sample.proposal for sample in clip])
    equations = ClipEquations([sample.measured_equations(solver) for sample in clip])
    return net.all_steps(z_0, proposal, equations)

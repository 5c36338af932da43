"""A sample: one frame of a clip, with everything that its equations are made of.

What must stay: the names of the fields, because they are keys of the files in <out>/samples. Old
files cannot be read after a field is renamed or removed. Free to add: a field with a default.

To measure how much the motion gains, lab/train_motion.py can also train without the motion
(--plain). This training is called the control, and `is_plain` marks its samples. Test:
test_the_control_sees_neither_the_motion_nor_its_equations.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from data.motion.exposure import Recording
from data.motion.joint.equations import Equations, Solver
from data.motion.joint.spike_pixels import SpikePixels
from data.motion.shifts import Motion
from data.motion.view import View
from lab.motion_steps.hidden_equations import HiddenEquations
from utils.contract import JointEquations

CPU = torch.device("cpu")


@dataclass
class Sample:
    """One frame with everything that its equations are made of."""

    recording: Recording  # the blurry frame and its spikes
    view: View  # where the spike pixels lie on the frame
    motion: Motion  # the measured motion
    gain: np.ndarray  # (h, w) firing rate of each spike pixel at full light, in spikes per plane
    is_good: np.ndarray  # (h, w) whether the gain can be trusted
    # (3, H, W) in [0, 1], the first estimate. The operator, the network of weights/operator.pth,
    # has restored it.
    z_0: Tensor
    proposal: Tensor  # (3, H, W), the solution of the equations along `motion`
    sharp: Tensor  # (3, H, W) in [0, 1], the true frame
    equations: JointEquations | None = None  # along `motion`. None until they are first needed
    is_plain: bool = False  # whether the motion and its equations are hidden, for the control

    def equations_along(self, motion: Motion, solver: Solver) -> JointEquations:
        """Return the equations of the exposure along any motion, measured or wrong."""
        pixels = SpikePixels(self.view, CPU)
        equations = Equations(
            self.recording,
            pixels,
            motion,
            gain=self.gain,
            is_good=self.is_good,
            solver=solver,
            device=CPU,
        )
        # HiddenEquations has the same methods as `Equations`, but shows nothing of the motion.
        return HiddenEquations(equations) if self.is_plain else equations

    def measured_equations(self, solver: Solver) -> JointEquations:
        """Return the equations along the measured motion.

        The equations are made at the first call and kept, because making them takes time.
        """
        if self.equations is None:
            self.equations = self.equations_along(self.motion, solver)
        return self.equations


def hide_motion(samples: Mapping[str, list[Sample]]) -> None:
    """Hide the motion and the equations of all samples, in place.

    Two parts of a sample that `train` uses depend on the motion. Each is hidden in its own way:

        equations   are not made yet, because `train` calls `Sample.equations_along` later. If
                    `is_plain` is set, `Sample.equations_along` returns `HiddenEquations`
        proposal    is already in the sample, so the first estimate replaces it here

    Call this function before the training. If a sample already keeps its equations, they are not
    hidden.
    """
    for samples_of_set in samples.values():
        for sample in samples_of_set:
            sample.is_plain = True
            sample.proposal = sample.z_0

"""Set up the equations of both cameras for one exposure, solve them, and show them to a network.

The unknown is the sharp frame z, (3, H, W): display values at one instant, the sharp instant. Its
light is x = z^2.2. While the frame was exposed, the scene moved by u. At another moment, pixel p
saw what is at p + u(p) in the sharp frame. So both cameras have recorded means of the sharp frame
along its motion:

    B x = b    the mean over the exposure is the blurry frame, one equation per pixel and colour
    S l = y    the mean between two spikes of a pixel is known, one equation per interval; l is the
               luma of x, or of z if the spike camera integrates display values

`Equations` sets them up. The `__init__.py` of this folder says which module makes which part.

`--method joint` (data/motion/joint_method.py) takes the solution. The fusion "motion"
(models/fusion/fusion_motion.py) takes learned steps on the same equations.

What must stay: the numbers, because the weights of the fusion "motion" were trained on them. With
another value of a constant of this folder, the weights fit a little worse, without an error.

Tests: tests/parts/data/joint/test_equations.py, tests/parts/models/test_fusion_motion.py
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from data.motion.exposure import Recording
from data.motion.joint.cameras import Cameras
from data.motion.joint.groups import group_count, plane_groups
from data.motion.joint.network_channels import NetworkChannels
from data.motion.joint.rgb_equations import rgb_equations
from data.motion.joint.solution import prior_weight_of, solve
from data.motion.joint.spike_equations import spike_equations
from data.motion.joint.spike_pixels import SpikePixels
from data.motion.joint.system import System
from data.motion.shifts import Motion
from utils.system import give_back_much_freed_memory


@dataclass(frozen=True)
class Solver:
    """The settings of the solution.

    The fields are options of `--method joint` (data/motion/joint_options.py), so their names must
    stay. All fields are in the settings of a test (`LearnedMotion.settings`), and an interrupted
    test continues only if its settings are equal. So if a field is added, a test that an older
    version began does not continue.

    groups: largest number of groups into which the planes of an exposure are divided. A slow motion
    gets fewer groups (`group_count`).
    linearisations: number of times that the equations are linearised.
    steps: number of steps of conjugate gradients after each linearisation.
    noise: least sigma_b, the expected error of a blurry pixel in display values. A noisy frame has
    a larger sigma_b (rgb_equations.py).
    guard: how much worse the solution z may be than the first estimate z_0. The result is a blend
    of z and z_0 (guard.py). E.g. with 2.5, z has more weight than z_0 if the squared error of z is
    less than 2.5 times the squared error of z_0. With 0, nothing is blended: the result is z.
    """

    groups: int = 20
    linearisations: int = 3
    steps: int = 4
    noise: float = 0.01
    guard: float = 2.5


class Equations:
    """All equations of one exposure, their solution, and their values as inputs of a network.

    `solve` is for `--method joint`. `blurry`, `proposal`, `evidence` and `pulls` are for the fusion
    "motion" (utils.contract.JointEquations), so their names and what they return must stay.

    No method changes what another method returns. So `solve` may be called before the object is
    given to a network. A new setting belongs in `Solver`. A new kind of equations needs a module of
    its own, and belongs in `System`.

    Attributes:
    solver, pixels: the arguments of the constructor.
    system: the equations B x = b of the blurry frame and S l = y of the spikes. x is the light of
    the sharp frame z, and l is its grey value (head of this file). `system` computes the residuals
    of a frame, i.e. by how much the frame misses each equation.
    blurry: the blurry frame (3, H, W), display values.
    """

    def __init__(
        self,
        recording: Recording,
        pixels: SpikePixels,
        motion: Motion,
        gain: np.ndarray,
        is_good: np.ndarray,
        solver: Solver,
        device: torch.device,
    ) -> None:
        """Set up the equations.

        recording: what was recorded of the frame. motion: the motion within its exposure.
        pixels: the map to the spike pixels; it may be used for all frames of a clip.
        gain: (h, w), spikes per plane of each spike pixel at full light.
        is_good: (h, w), whether each spike pixel can be trusted.
        solver: the settings. device: where all tensors are.
        """
        self.solver = solver
        self.pixels = pixels

        # The motion, the right sides b and y with their weights, and the left sides (B, S).
        count = group_count(recording, motion, solver.groups)
        groups = plane_groups(recording, pixels.view, motion, count, device)
        rgb = rgb_equations(recording, solver.noise, device)
        spikes = spike_equations(
            recording, pixels, group_edges=groups.edges, gain=gain, is_good=is_good, device=device
        )
        cameras = Cameras(pixels, groups.shifts, groups.shares, spikes.coverage)
        self.system = System(cameras, rgb, spikes, pixels.view.is_display)

        # What only the solution needs: how strongly each pixel is held near the first estimate.
        self._prior_weight = prior_weight_of(groups.motion_error, rgb.sigma_b)
        # What only a network needs.
        self.blurry = rgb.blurry
        self._channels = NetworkChannels(
            self.system, pixels, recording=recording, groups=groups, gain=gain
        )

    def solve(self, z_0: Tensor) -> Tensor:
        """Return the solution z (3, H, W) of the equations. z_0: first estimate (3, H, W)."""
        give_back_much_freed_memory()  # memory that was needed to make the equations
        z = solve(
            self.system,
            self._prior_weight,
            z_0,
            linearisations=self.solver.linearisations,
            steps=self.solver.steps,
        )
        give_back_much_freed_memory()  # before the network or the guard takes memory
        return z

    def proposal(self, z_0: Tensor) -> Tensor:
        """Return the solution z (3, H, W), towards which a step of the network may go.

        z_0: first estimate (3, H, W). The name belongs to utils.contract.JointEquations.
        """
        return self.solve(z_0)

    def evidence(self) -> Tensor:
        """Return what is known of each pixel before any step: six channels (6, H, W)."""
        return self._channels.evidence()

    def pulls(self, z: Tensor) -> Tensor:
        """Return how the equations would change a frame z (3, H, W): seven channels (7, H, W)."""
        give_back_much_freed_memory()  # memory that the network needed in its last step
        return self._channels.pulls(z)

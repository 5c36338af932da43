"""Improve the frames of a network by its learned steps on the equations of both cameras.

Weights with the fusion "motion" (models/fusion/fusion_motion.py) have these steps. `MotionRestorer`
(restorer.py) restores one frame after the other, with three parts that `LearnedMotion` gives it:

    start      the network without the steps, whose frames are the first estimates z_0
    find       what the weights say: optical flow, a network, or both (finder.py)
    improve    `after_steps`: the learned steps, which begin at z_0

main_test_vrt.py calls `learned_motion`, which makes the `LearnedMotion` from the fusion of the
network. The weights are read later, by `LearnedMotion.restorer`.

The equations say what the blurry frame and the spikes must show if an estimate is right
(data/motion/joint/). A network may have two sets of learned steps on them, for good light and for
few spikes. The set is chosen for each frame, by the spikes of its pixel of median light. (If all
spike pixels are sorted by their light, this pixel is in the middle.) If even bright pixels have
hardly any spikes, the frame is not improved at all (LEAST_SPIKES, restorer.py).

What must stay: the keys of `settings`, because an interrupted test continues only if its settings
are equal. `learned_motion` reads no weights, because it is called before the process knows whether
it restores anything.

Free to change, without a new training: the limits FEW_SPIKES and LEAST_AREA, because they only say
when each set of trained steps is used.

Tests: tests/stories/test_motion_weights.py
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from data.motion import drawing
from data.motion.finder import Finder, FinderName, finder_of
from data.motion.joint.equations import Equations, Solver
from data.motion.restorer import AreaInputs, MotionRestorer
from utils.contract import Method

# A function that takes the learned steps: (z_0, equations) -> z. z_0 is the first estimate, and z
# the improved frame. Both are (3, rows, W): all rows of a frame, or the rows of a band.
Steps = Callable[[Tensor, Equations], Tensor]


@dataclass(frozen=True)
class LearnedParts:
    """The learned parts of a network on a device."""

    steps: Steps  # the steps for good light
    few_steps: Steps  # the steps for fewer than FEW_SPIKES spikes
    find: Finder  # finds the motion within an exposure


# The steps for few spikes are used if a pixel of median light has fewer than FEW_SPIKES spikes in
# an exposure. Below 6 spikes, the steps for few spikes are better than the steps for good light.
# Above 14 spikes, they may be worse (docs/benchmarks/quality_details.md, "Why two sets of steps").
FEW_SPIKES = 10.0
# Least area of a spike pixel, in RGB pixels. If spike pixels are smaller, the learned steps are not
# used. With the area 1 the steps gain as much as in their training, but with the area 1/4 they lose
# 2.5 dB (docs/benchmarks/quality_details.md, "What the cameras change"). The limit is below 1, so
# that spike pixels as large as RGB pixels pass it even if the calibration is a little wrong.
LEAST_AREA = 0.6


class LearnedMotion:
    """A method (utils.contract.Method) that improves frames of a network by its learned steps.

    start: the method that makes the first estimates z_0 with the network.
    parts: function that puts the learned parts on a device and returns them.
    solver: settings of the equations.
    motion_by: what finds the motion: "dis" (an optical flow), "network" or "both". `LearnedMotion`
    uses it only for the text of the report (`protocol`). The function that finds the motion comes
    from `parts`.
    """

    is_grey = False  # the frames have colours
    instants = 1  # number of sharp frames for each blurry frame
    # Names of the pictures that `MotionRestorer.pictures` returns, in the same order.
    picture_names = drawing.PICTURE_NAMES

    def __init__(
        self,
        start: Method,
        parts: Callable[[torch.device], LearnedParts],
        solver: Solver,
        motion_by: FinderName,
    ) -> None:
        self.start = start
        self.parts = parts
        self.solver = solver
        self.motion_by = motion_by
        # A frame is improved without the other frames of its clip. So two values of `start` also
        # hold for this method.
        self.can_cut = start.can_cut  # whether ranks may share the frames of a clip
        self.center_frame_only = start.center_frame_only  # whether only the middle one is restored

    def settings(self) -> dict[str, Any]:
        """Return everything that the frames depend on, as plain JSON.

        The settings of `start` contain the digest of the weights file. The file has the learned
        steps and `motion_by`, so another key for them is not needed.
        """
        return {**self.start.settings(), "motion": asdict(self.solver)}

    def protocol(self) -> dict[str, str]:
        """Return the method in words, for the report."""
        words = "learned steps along the motion of the spikes"
        if self.motion_by != "dis":
            words += ", which a network helps to find"
        return {**self.start.protocol(), "motion": words}

    def restorer(self, device: torch.device) -> MotionRestorer:
        """Return the object that restores frames on a device."""
        parts = self.parts(device)

        def after_steps(z_0: Tensor, inputs: AreaInputs) -> Tensor:
            """Return the frame after the learned steps for its light."""
            has_few_spikes = inputs.median_spikes < FEW_SPIKES
            steps = parts.few_steps if has_few_spikes else parts.steps
            return steps(z_0, inputs.equations)

        start = self.start.restorer(device)
        return MotionRestorer(
            start,
            find=parts.find,
            solver=self.solver,
            improve=after_steps,
            # None means half an exposure, as in the training. A user cannot choose another value,
            # because the option `method.context` belongs to `--method joint`.
            context=None,
            device=device,
            least_area=LEAST_AREA,
        )


# ---- Making the method from a network --------------------------------------------------------


def learned_motion(start: Method, fusion: Any, build: Callable[[], Any]) -> LearnedMotion:
    """Return the method that improves the frames of `start` by the learned steps of a fusion.

    fusion: the fusion "motion", perhaps without memory (device "meta"): only its settings are read.
    build: function that returns the same fusion with its weights, on the CPU.
    """

    def parts(device: torch.device) -> LearnedParts:
        """Return the learned parts of the fusion on a device. Reads the weights anew."""
        net = build().to(device).eval()
        find = finder_of(net.motion_by, net.motion_net, device)
        # Some weights have a second set of steps for dim light, where spikes are few. Other weights
        # use the same steps in any light.
        few_steps = net.few_steps if net.few_steps else net.steps
        return LearnedParts(net.steps, few_steps, find)

    # The settings of the equations. `proposal_steps`: number of steps of conjugate gradients after
    # each linearisation. The solution is called the proposal, because a learned step may go towards
    # it.
    solver = Solver(
        groups=fusion.groups, linearisations=fusion.linearisations, steps=fusion.proposal_steps
    )
    return LearnedMotion(start, parts, solver, fusion.motion_by)

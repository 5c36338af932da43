"""Make the method of a network whose fusion takes learned steps along the motion.

main_test_vrt.py calls `learned_motion` with the method of the network itself, and with its fusion
"motion" (`models.fusion.fusion_motion.MotionFusion`). The result is a `LearnedMotion`
(learned_method.py), which improves the frames of the network.

What must stay: making the method reads no weights. The weights are read when a device is known
(`parts`), because a method is made before the process knows whether it restores anything.

Tests: tests/stories/test_motion_weights.py
"""

from collections.abc import Callable
from typing import Any

import torch

from data.motion.finder import finder_of
from data.motion.joint.equations import Solver
from data.motion.learned_method import LearnedMotion, LearnedParts
from utils.contract import Method


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
    # each linearisation. The solution is called the proposal: a learned step may go towards it.
    solver = Solver(
        groups=fusion.groups, linearisations=fusion.linearisations, steps=fusion.proposal_steps
    )
    return LearnedMotion(start, parts, solver, fusion.motion_by)

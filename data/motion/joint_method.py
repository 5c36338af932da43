"""Improve the frames of another method by the solution of the equations of both cameras.

This is `--method joint` of main_test_vrt.py. This method needs no weights of its own, but the other
method may have weights. `MotionRestorer` (restorer.py) restores one frame after the other, with
three parts that `JointMethod` gives it:

    start      the other method, whose frames are the first estimates z_0
    find       optical flow (flow.py)
    improve    `blended_solution`: the solution z of the equations (joint/), blended with z_0

The options are in joint_options.py.

What must stay: the keys of `settings`, because an interrupted test continues only if its settings
are equal.

Tests: tests/stories/test_joint.py
"""

from typing import Any

import torch
from torch import Tensor

from data.motion import drawing
from data.motion.flow import motion_of
from data.motion.joint.equations import Solver
from data.motion.joint.guard import guard_solution
from data.motion.joint_options import JointOptions
from data.motion.restorer import AreaInputs, MotionRestorer
from utils.contract import Method


class JointMethod:
    """A method (utils.contract.Method) that improves the frames of another method.

    start: the method that makes the first estimates z_0, by a formula or a network. `start` gives
    one frame for each blurry frame, of the same size.
    """

    is_grey = False  # the frames have colours
    instants = 1  # number of sharp frames for each blurry frame
    # Names of the pictures that `MotionRestorer.pictures` returns, in the same order.
    picture_names = drawing.PICTURE_NAMES

    def __init__(self, options: JointOptions, start: Method) -> None:
        self.options = options
        self.start = start
        # can_cut: whether ranks may share the frames of a clip.
        # center_frame_only: whether only the middle frame of a clip is restored.
        # Both values are the values of `start`, because a frame is improved without the other
        # frames of its clip.
        self.can_cut = start.can_cut
        self.center_frame_only = start.center_frame_only

    def settings(self) -> dict[str, Any]:
        """Return everything that the frames depend on, as plain JSON."""
        return {"method": self.options.plain(), "start": self.start.settings()}

    def protocol(self) -> dict[str, str]:
        """Return the method in words, for the report."""
        # E.g. "groups 20, linearisations 3, ...". `context` is left out if it is None, because None
        # means that no context was given.
        options = []
        for key, value in self.options.plain().items():
            if key != "type" and value is not None:
                options.append(f"{key} {value}")
        protocol = self.start.protocol()  # name of a line of the report -> its text
        # If `start` is a formula, its protocol has the line "method", e.g. "exposure". `pop` takes
        # this line out, and its text becomes a part of the new line "method". If `start` is a
        # network, its protocol has no line "method". In this case the default text is taken, and
        # the line "weights" of the network stays.
        first = protocol.pop("method", "the output of the weights")
        words = f"{self.options.type} ({', '.join(options)}), begun with {first}"
        return {"method": words, **protocol}

    def restorer(self, device: torch.device) -> MotionRestorer:
        """Return the object that restores frames on a device. It finds motions by optical flow."""
        options = self.options
        solver = Solver(
            groups=options.groups,
            linearisations=options.linearisations,
            steps=options.steps,
            noise=options.noise,
            guard=options.guard,
        )
        start = self.start.restorer(device)
        return MotionRestorer(
            start,
            find=motion_of,
            solver=solver,
            improve=blended_solution,
            context=options.context,
            device=device,
            # The equations hold for spike pixels of any area. Only learned steps need a least area.
            least_area=0.0,
        )


def blended_solution(z_0: Tensor, inputs: AreaInputs) -> Tensor:
    """Return the solution z of the equations, blended with z_0.

    z_0 and the result are (3, rows, W): all rows of a frame, or the rows of a band of it. At each
    pixel, z_0 gets more weight if the squared error of z is large compared with the squared error
    of z_0. joint/guard.py computes this blend; the option `guard` is the ratio of both errors at
    which z and z_0 have the weight 1/2.
    """
    equations = inputs.equations
    z = equations.solve(z_0)
    blend = guard_solution(
        z,
        z_0,
        recording=inputs.recording,
        pixels=equations.pixels,
        gain=inputs.gain,
        guard=equations.solver.guard,
    )
    return blend.frame

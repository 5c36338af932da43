"""Make what --method of main_test_vrt.py asks for: a formula, the joint solution, or both.

models/restore/request.py has turned --method and method.key=value into two sections of options.
`choose_method` checks both sections and returns a `ChosenMethod`. From it, main_test_vrt.py makes
the method that restores the clips.

A *formula* computes a frame from spikes without weights (data/reconstruct.py), e.g. tfp or
exposure. The *joint solution* improves first estimates of the frames. A formula or a network makes
these estimates. This module reads only the options of the joint solution
(data/motion/joint_options.py). main_test_vrt.py makes the joint solution itself
(data/motion/joint_method.py).

What must stay: each refusal comes before a file of clips or weights is read
(tests/stories/test_bad_input.py). A new formula is an entry in data/reconstruct.py.

Tests: tests/stories/test_reconstruct.py, tests/stories/test_joint.py
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from data.motion.joint_options import JointOptions, joint_options
from data.reconstruct import Reconstruction, method_options
from utils.errors import OptionError


@dataclass(frozen=True)
class ChosenMethod:
    """A formula, the joint solution, or both. Neither needs weights."""

    # The formula of the frames or first estimates. None if a network makes the frames.
    formula: Reconstruction | None
    # The options of the joint solution. None if nothing improves the frames.
    joint: JointOptions | None


def choose_method(
    formula: Mapping[str, Any] | None,
    joint: Mapping[str, Any] | None,
    center_frame_only: bool,
    has_lpips: bool,
) -> ChosenMethod:
    """Return the method, with its options checked. Raises OptionError.

    formula, joint: sections such as {"type": "joint", "groups": 8}, or None.
    center_frame_only: whether only the middle frame of each clip is restored.
    has_lpips: whether the frames are to be scored by LPIPS, which compares colours.
    """
    options_of_joint = joint_options(joint) if joint is not None else None
    if formula is None:
        return ChosenMethod(None, options_of_joint)
    reconstruction = Reconstruction(method_options(formula), center_frame_only)
    if reconstruction.is_grey and has_lpips:
        raise OptionError(
            what=f"--lpips cannot score the frames of --method {formula['type']}: they are grey",
            where="--lpips",
            expected="frames in colour: LPIPS has no luma form",
            do="remove --lpips, or use --method exposure",
        )
    return ChosenMethod(reconstruction, options_of_joint)

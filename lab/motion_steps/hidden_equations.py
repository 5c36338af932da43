"""Hide the motion in the equations, for the control --plain.

The conv net of a learned step reads two results of `Equations`.
data/motion/joint/network_channels.py lists their channels:

    evidence    what is known at a pixel before any step, e.g. how far the motion may be wrong
    pulls       how the equations would change the present frame

HIDDEN_EVIDENCE and HIDDEN_PULLS are masks: each has an entry for each channel. The entry is True if
the control must not see the channel.

What must stay: if `Equations` gets a new channel, the mask needs a new entry.
test_the_control_sees_neither_the_motion_nor_its_equations notices a channel that shows the motion.
"""

import torch
from torch import Tensor

from utils.contract import JointEquations

HIDDEN_EVIDENCE = torch.tensor(
    [
        True,  # 0: precision of the grey value by the spikes, along the motion
        True,  # 1: length of the motion
        True,  # 2: expected error of the motion
        False,  # 3: spikes per plane, which show how bright it is
        False,  # 4: noise of the blurry frame
        True,  # 5: share of the pixels that move by more than one pixel
    ]
)
HIDDEN_PULLS = torch.tensor(
    [
        True,  # 0 to 2: change of red, green and blue by the equations of the blurry frame
        True,
        True,
        True,  # 3: change of the grey value by the equations of the spikes
        True,  # 4: how far the equations of the blurry frame are off
        True,  # 5: how far the equations of the spikes are off
        False,  # 6: how much brighter the spikes of the sharp instant are, which needs no motion
    ]
)


class HiddenEquations:
    """Equations as the control sees them: without the motion.

    The channels that the two masks hide are 0, and the proposal is the first estimate. The conv net
    still sees the blurry frame, its noise, the brightness, and the spikes of the sharp instant.

    `Equations` is the class with the motion. The protocol `utils.contract.JointEquations` lists the
    members that the learned steps use. Both classes have them, so the steps take either class.
    """

    def __init__(self, equations: JointEquations) -> None:
        self.equations = equations  # with the motion
        self.blurry = equations.blurry

    def proposal(self, z_0: Tensor) -> Tensor:
        """Return the first estimate itself, (3, H, W)."""
        return z_0

    def evidence(self) -> Tensor:
        """Return `Equations.evidence` (6, H, W) with 0 in the channels of HIDDEN_EVIDENCE."""
        return self.equations.evidence().masked_fill(HIDDEN_EVIDENCE[:, None, None], 0)

    def pulls(self, z: Tensor) -> Tensor:
        """Return `Equations.pulls` (7, H, W) with 0 in the channels of HIDDEN_PULLS."""
        return self.equations.pulls(z).masked_fill(HIDDEN_PULLS[:, None, None], 0)

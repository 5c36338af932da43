"""Remove the motion from the equations of a frame, for the control experiment.

How many dB does the motion gain? To measure this, the learned steps are trained twice: with the
motion, and without the motion. The second training is the control (flag --plain of
lab/train_motion.py). The control gets `HiddenEquations` in place of `Equations`.

The conv net of a learned step reads two results of `Equations`. Each result has channels for each
pixel. data/motion/joint/network_channels.py lists the channels:

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
        False,  # 3: spikes per plane, which show the brightness
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
        True,  # 4: error of the equations of the blurry frame at the present frame
        True,  # 5: error of the equations of the spikes at the present frame
        # 6: grey value by the spikes of the sharp instant, minus the grey value of the present
        # frame. The control may see this channel, because it needs no motion.
        False,
    ]
)


class HiddenEquations:
    """Equations as the control sees them: without the motion.

    The channels that the two masks hide are 0. `Equations` proposes a frame that solves the
    equations along the motion. Here the proposal is the first estimate itself. The conv net still
    sees the blurry frame, its noise, the brightness, and the spikes of the sharp instant.

    `Equations` is the class with the motion. The protocol `utils.contract.JointEquations` lists the
    members that the learned steps use. Both classes have these members, so the steps take either
    class.
    """

    def __init__(self, equations: JointEquations) -> None:
        self.equations = equations  # with the motion
        self.blurry = equations.blurry

    def proposal(self, z_0: Tensor) -> Tensor:
        """Return z_0, the first estimate, unchanged: (3, H, W).

        `Equations.proposal` begins at z_0, and returns a solution of the equations.
        """
        return z_0

    def evidence(self) -> Tensor:
        """Return `Equations.evidence` (6, H, W) with 0 in the channels of HIDDEN_EVIDENCE."""
        return self.equations.evidence().masked_fill(HIDDEN_EVIDENCE[:, None, None], 0)

    def pulls(self, z: Tensor) -> Tensor:
        """Return `Equations.pulls` (7, H, W) with 0 in the channels of HIDDEN_PULLS."""
        return self.equations.pulls(z).masked_fill(HIDDEN_PULLS[:, None, None], 0)

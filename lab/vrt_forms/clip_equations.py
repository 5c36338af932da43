"""The equations of all frames of a clip, as if the clip were one tall frame.

While a frame is exposed, the scene moves. So a camera records a mean of the moving sharp frame. The
equations of a frame say which mean the RGB camera has recorded, and which mean the spike camera has
recorded (data/motion/joint/equations.py). z is the present estimate of the sharp frame, and a
learned step changes z.

What must stay: `ClipEquations` has the members of `utils.contract.JointEquations`, and
`split_frames` undoes `stack_frames` (test_frames_below_one_another_come_apart).
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from utils.contract import JointEquations


class ClipEquations:
    """The equations of all frames of a clip, as if the clip were one tall frame.

    The frames lie below one another: N frames of (3, H, W) are (3, N * H, W). So
    `MotionSteps.all_steps` restores a clip as it restores a frame. No equation connects two frames.

    The class has the members of `utils.contract.JointEquations`.
    """

    def __init__(self, equations_of_frames: Sequence[JointEquations]) -> None:
        self.equations_of_frames = equations_of_frames
        self.blurry = stack_frames([each.blurry for each in equations_of_frames])

    def proposal(self, z_0: Tensor) -> Tensor:
        """Solve the equations of each frame. Returns the solved frames, (3, N * H, W).

        z_0: the first estimates of all frames, (3, N * H, W). The solver begins at the first
            estimates.
        """
        frames = split_frames(z_0, len(self.equations_of_frames))
        proposals = []
        for equations, frame in zip(self.equations_of_frames, frames, strict=True):
            proposals.append(equations.proposal(frame))
        return stack_frames(proposals)

    def evidence(self) -> Tensor:
        """Return what is known of each pixel before any step, (6, N * H, W).

        The six channels tell the network how far to trust the equations. E.g. channel 1 is the
        length of the motion. HIDDEN_EVIDENCE in lab/motion_steps/hidden_equations.py lists the six
        channels.
        """
        return stack_frames([each.evidence() for each in self.equations_of_frames])

    def pulls(self, z: Tensor) -> Tensor:
        """Return the change of each frame that its equations ask for, and their errors.

        The result is (7, N * H, W). Its channels:

            0 to 2    change of red, green and blue by the equations of the blurry frame
            3         change of the grey value by the equations of the spikes
            4         error of the equations of the blurry frame at z
            5         error of the equations of the spikes at z
            6         grey value by the spikes of the sharp instant, minus the grey value of z

        z: the present frames, (3, N * H, W).
        """
        frames = split_frames(z, len(self.equations_of_frames))
        pulls = []
        for equations, frame in zip(self.equations_of_frames, frames, strict=True):
            pulls.append(equations.pulls(frame))
        return stack_frames(pulls)


def stack_frames(frames: Sequence[Tensor] | Tensor) -> Tensor:
    """Put frames (C, H, W) below one another: (C, N * H, W)."""
    return torch.cat(list(frames), dim=-2)


def split_frames(clip: Tensor, count: int) -> Tensor:
    """Undo `stack_frames`: (C, N * H, W) -> (N, C, H, W). count: number of frames, N."""
    return torch.stack(clip.chunk(count, dim=-2))

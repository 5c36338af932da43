"""Rendered clips with the equations of both cameras along a known motion (data/motion/joint/).

The equations say which sharp frames fit the blurry frame of the RGB camera and the spikes of the
spike camera.

    Case           the middle frame of a clip, with its equations along a motion
    true_motion    the true motion of the middle frame of a scene

tests/helpers/moving_scene.py has the scenes. tests/parts/data/joint/conftest.py has clips and cases
that several test files share.
"""

import numpy as np
import torch

from data.motion.flow import motion_of
from data.motion.joint.equations import Equations, Solver
from data.motion.joint.guard import Blend, guard_solution
from data.motion.joint.spike_pixels import SpikePixels
from data.motion.recording import RecordedClip
from data.motion.shifts import Motion
from tests.helpers.moving_scene import Scene, reader_of

CPU = torch.device("cpu")
# The frame of the clip that is solved: the middle one of three.
FRAME = 1
# Number of pixels at each side that are not compared, because the scene moves in and out of view
# there.
EDGE = 12
# A scene that moves by 12 pixels to the right and 4 pixels up during an exposure.
MOVING = Scene(velocity=(12.0, -4.0))

# The index that takes a frame (C, H, W) without its edges.
INSIDE = (slice(None), slice(EDGE, -EDGE), slice(EDGE, -EDGE))


def true_motion(scene: Scene, factor: float = 1.0) -> Motion:
    """Return the true motion of the middle frame at nine times of the exposure.

    factor: scales the motion. 0 says that nothing moves.
    """
    # Nine times over the whole exposure, in planes after the sharp frame. The sharp frame is taken
    # in the middle of plane 30 of 60, at 30.5. So the exposure lasts from -30.5 to 29.5. A motion
    # must have the time 0, and the nearest of the nine times is -0.5. So this time becomes 0.
    times = np.linspace(-30.5, 29.5, 9)
    times[np.abs(times).argmin()] = 0.0
    shifts = np.stack([scene.shifts(FRAME, time) for time in times]).astype(np.float32)
    expected_error = np.full(shifts.shape[:3], 0.1, np.float32)  # pixels
    return Motion(times, factor * shifts, expected_error)


class Case:
    """The middle frame of a clip, with its equations along one motion.

    folder: a folder of `Scene.write`.
    motion: the motion of the equations, or None to measure the motion from the spikes.
    spike: keys of the section `spike` in place of the usual keys.
    """

    def __init__(self, folder, motion=None, device=CPU, **spike) -> None:
        reader = reader_of(folder, **spike)
        item = reader.frame(FRAME)
        self.blurry = item["lq"]  # (3, H, W)
        self.sharp = item["gt"]  # (3, H, W)

        clip = RecordedClip(reader, context=None)
        self.recording = clip.read(FRAME)
        self.pixels = SpikePixels(clip.view, device)
        # (h, w) each: spikes per plane at full light, and whether this number can be trusted.
        self.gain, is_good = clip.gain()
        if motion is None:
            motion = motion_of(self.recording, clip.view, self.gain)
        self.equations = Equations(
            recording=self.recording,
            pixels=self.pixels,
            motion=motion,
            gain=self.gain,
            is_good=is_good,
            solver=Solver(),
            device=device,
        )

    def psnr(self, frame: torch.Tensor) -> float:
        """Return the PSNR of a frame in dB, without its edges."""
        error = (frame - self.sharp)[INSIDE]
        return float(-10 * (error**2).mean().log10())

    def guarded(self, z: torch.Tensor, start: torch.Tensor, guard: float) -> Blend:
        """Return the blend of a solution z and its start z_0 (data/motion/joint/guard.py)."""
        return guard_solution(z, start, self.recording, self.pixels, self.gain, guard=guard)

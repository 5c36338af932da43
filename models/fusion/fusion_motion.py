"""The fusion operator "motion": steps on the equations of an exposure, behind "exposure"."""

from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.fusion.motion_net import MotionNet
from models.fusion.operators import FUSIONS, Base, ExposureFusion
from utils.contract import JointEquations
from utils.options.models import Positive

# Channels that a step sees at each pixel: z, z - z_0, the proposal - z, the blurry frame, the pulls
# of both kinds of equations.
AT_PIXELS = 4 * 3 + 3 + 1
# Channels that it sees at half the size: the evidence, how far both kinds of equations are off, the
# spikes of the sharp instant compared with z, with z_0, and which fits better; the number of the
# step.
AT_HALF = 6 + 2 + 3 + 1
# Display values differ by much less than 1, so differences are enlarged.
ENLARGED = 5.0
# Pixels of the frame in one of the half size.
HALF = 2
GATES = 3  # of the pull of each kind of equations, and of the way to the proposal
OF_OWN = 0.1  # scale of the change that a step adds by itself


class Turn(NamedTuple):
    """One of the eight ways to turn and mirror pictures (..., H, W). No channel has a direction."""

    mirrored: bool = False
    upside_down: bool = False
    transposed: bool = False

    def of(self, picture: Tensor) -> Tensor:
        picture = picture.flip(-1) if self.mirrored else picture
        picture = picture.flip(-2) if self.upside_down else picture
        return picture.transpose(-1, -2) if self.transposed else picture

    def undone(self, picture: Tensor) -> Tensor:
        picture = picture.transpose(-1, -2) if self.transposed else picture
        picture = picture.flip(-2) if self.upside_down else picture
        return picture.flip(-1) if self.mirrored else picture


UNTURNED = Turn()


class MotionSteps(nn.Module):
    """Improves a first estimate by steps on the equations of data/motion/joint.py.

    One solution of the equations is a proposal. Each step changes the frame by

        dz = c + a_b g_b + a_s g_s + a_p (proposal - z)

    with the pulls g_b of the RGB equations and g_s of the spikes. A small conv net, the same in all
    steps, gives the change c and the gates a of each pixel. It sees how far the equations are off
    and the expected error of the motion, so it learns where not to trust them. It begins at 0.

    Unrolled steps with learned gates: Adler and Oktem, "Solving ill-posed inverse problems using
    iterative deep neural networks", Inverse Problems 2017.
    """

    def __init__(self, features: int, layers: int, steps: int) -> None:
        super().__init__()
        self.count = steps
        self.head = nn.Conv2d(HALF**2 * AT_PIXELS + AT_HALF, features, 3, 1, 1)
        self.body = nn.ModuleList(nn.Conv2d(features, features, 3, 1, 1) for _ in range(layers))
        self.tail = nn.Conv2d(features, HALF**2 * (3 + GATES), 3, 1, 1)
        for parameter in self.tail.parameters():
            nn.init.zeros_(parameter)

    def forward(self, z_0: Tensor, equations: JointEquations) -> Tensor:
        """(3, H, W) in [0, 1] -> the same shape."""
        with torch.no_grad():
            proposal = equations.proposal(z_0)
        return self.all_steps(z_0, proposal, equations)[-1].clamp(0, 1)

    def all_steps(
        self, z_0: Tensor, proposal: Tensor, equations: JointEquations, turn: Turn = UNTURNED
    ) -> list[Tensor]:
        """Return the frame (3, H, W) after each step. No gradient flows through the equations.

        turn: how the conv net sees the pictures, in training.
        """
        evidence = equations.evidence()
        blurry = equations.blurry
        first: Tensor | None = None  # what the spikes of the sharp instant say of z_0
        z, frames = z_0, []
        for number in range(self.count):
            with torch.no_grad():
                pulls = equations.pulls(z.detach().clamp(0, 1))
            g_b, g_s, off, instant = pulls[:3], pulls[3:4], pulls[4:6], pulls[6:7]
            first = instant if first is None else first
            to_proposal = proposal - z
            at_pixels = torch.cat(
                (
                    z,
                    ENLARGED * (z - z_0),
                    ENLARGED * to_proposal,
                    blurry,
                    ENLARGED * g_b,
                    ENLARGED * g_s,
                )
            )
            at_half = torch.cat(
                (
                    evidence,
                    ENLARGED * off[:1],
                    off[1:],
                    ENLARGED * instant,
                    ENLARGED * first,
                    ENLARGED * (instant.abs() - first.abs()),
                    torch.full_like(first, number - 1.0),
                )
            )
            changes = turn.undone(self.net(turn.of(at_pixels), turn.of(at_half)))
            c, a_b, a_s, a_p = changes.split((3, 1, 1, 1))
            z = z + OF_OWN * c + a_b * g_b + a_s * g_s + a_p * to_proposal
            frames.append(z)
        return frames

    def net(self, at_pixels: Tensor, at_half: Tensor) -> Tensor:
        """(AT_PIXELS, H, W), (AT_HALF, H, W) -> change and gates (3 + GATES, H, W)."""
        height, width = at_pixels.shape[-2:]
        below, right = height % HALF, width % HALF
        both = torch.cat((at_pixels, at_half))[None]
        both = F.pad(both, (0, right, 0, below), mode="replicate")
        at_pixels, at_half = both.split((AT_PIXELS, AT_HALF), dim=1)
        x = torch.cat((F.pixel_unshuffle(at_pixels, HALF), F.avg_pool2d(at_half, HALF)), dim=1)
        x = F.leaky_relu(self.head(x), 0.1)
        for conv in self.body:
            x = x + F.leaky_relu(conv(x), 0.1)
        return F.pixel_shuffle(self.tail(x), HALF)[0, :, :height, :width]


@FUSIONS.register("motion", given=("spike_channels",))
class MotionFusion(ExposureFusion):
    """Mixes as "exposure" does, and then moves light along the motion that the spikes show.

    The first estimate is that of "exposure", whose weights fit. Then come steps on the equations of
    the blurry frame and of the spikes, which need all planes: main_test_vrt.py takes them, and
    lab/train_motion.py trains them. main_train_vrt.py trains the first estimate alone.

    groups: number of groups of planes that move as one. linearisations, proposal_steps: how often
    the first solution linearises the equations, and its steps of conjugate gradients after each.
    step_features, step_layers: size of the conv net of the steps.
    step_count: number of steps. motion_by: what finds the motion: "dis" (optical flow between
    pictures of the spikes), a "network" (models/fusion/motion_net.py), or "both": in dim light the
    mean of both, else DIS. With "both", few spikes have steps of their own. The rest: as in
    "exposure".
    """

    def __init__(
        self,
        features: Positive = 32,
        layers: Positive = 4,
        estimates: int | None = None,
        colour_radius: Positive = 4,
        groups: Positive = 16,
        linearisations: Positive = 2,
        proposal_steps: Positive = 8,
        step_features: Positive = 40,
        step_layers: Positive = 3,
        step_count: Positive = 2,
        motion_by: Literal["dis", "network", "both"] = "dis",
        base: Base = "fused",
        spike_channels: int = 0,
    ) -> None:
        super().__init__(features, layers, estimates, colour_radius, base, spike_channels)
        self.groups = groups
        self.linearisations = linearisations
        self.proposal_steps = proposal_steps
        self.steps = MotionSteps(step_features, step_layers, step_count)
        # Of the same form, with other weights, for exposures with few spikes.
        self.few_steps = None
        if motion_by == "both":
            self.few_steps = MotionSteps(step_features, step_layers, step_count)
        self.motion_by = motion_by
        self.motion_net = None if motion_by == "dis" else MotionNet()


def motion_of(net: nn.Module) -> MotionFusion | None:
    """Return the operator "motion" of a network. Returns None if it has another one."""
    fusion = getattr(net, "fusion", None)
    return fusion if isinstance(fusion, MotionFusion) else None

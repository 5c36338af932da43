"""The fusion operator "motion": the operator "exposure", then learned steps along the motion.

The operator "exposure" makes a first estimate of the sharp frame, z_0. Then learned steps improve
the estimate. A frame of one exposure goes through these parts:

    on_input of "exposure"      blurry frame and spikes -> first estimate z_0
    data.motion.finder          finds the motion, by optical flow or by MotionNet (`motion_by`)
    data/motion/joint/          equations of the blurry frame and the spikes along this motion
    MotionSteps                 z_0 -> sharp frame, by steps on these equations

main_test_vrt.py runs the last three parts (data.motion.learned_method.LearnedMotion), because they
need all spike planes, the binary pictures of the spike camera. A network sees only a few spike
channels, which are made of the planes. lab/train_motion.py trains the steps.

What must stay:

* The order of the inputs and outputs of the conv net, and the names of modules, because weights
  files depend on both. (tests/stories/test_motion_weights.py restores with the shipped weights)
* The constants whose comments say that the trained weights fit them. With other values, the shipped
  weights give worse frames, without an error.
* The options of `MotionFusion`, which are keys of option files.

Sizes: H x W pixels of a frame. A frame z is (3, H, W), display values in [0, 1].

Words:

    z_0, z      the first estimate, and the frame that the steps so far have made of it
    residual    by how much a frame misses an equation
    pull        how a frame would change, so that it fits the equations better
    proposal    a frame that solves all equations. If the motion that was found is wrong at a pixel,
                the equations and the proposal are wrong there
    evidence    six channels that say how far to trust the equations at each pixel, e.g. the
                expected error of the motion (data/motion/joint/network_channels.py has the list)

Tests: tests/parts/models/test_fusion_motion.py, tests/parts/house/test_train_motion.py
"""

from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.fusion.base import FUSIONS, Base
from models.fusion.exposure import ExposureFusion
from models.fusion.motion_net import MotionNet
from utils.contract import JointEquations
from utils.options.section import Positive

# Channels that a step sees at full size, in the order of `_channels_at_full_size`. z is the frame
# so far, z_0 the first estimate, and the proposal a frame that solves all equations. A pull says
# how z would change, so that it fits the equations better (`MotionSteps` has the formula).
#
#     12  four pictures of 3 colours: the frame z, z - z_0, proposal - z, and the blurry frame
#      3  the pulls of the RGB equations, one for each colour
#      1  the pull of the spike equations
CHANNELS_AT_FULL_SIZE = 4 * 3 + 3 + 1
# Channels that a step sees at half size, in the order of `_channels_at_half_size`:
#
#      6  the evidence: how far to trust the equations at each pixel (see the words above)
#      2  the residuals of the RGB equations and of the spike equations: by how much z misses them
#      3  comparisons with the grey value s by the spikes of the sharp instant, where g and g_0 are
#         the grey values of z and z_0: s - g, s - g_0, and |s - g| - |s - g_0|
#      1  the number of the step
CHANNELS_AT_HALF_SIZE = 6 + 2 + 3 + 1
# The conv net sees differences of display values times this number, because a conv net learns best
# from inputs of about 1, and the differences are much smaller. The trained weights fit this value.
# test_fusion_motion.py passes with 50, too.
DIFFERENCE_SCALE = 5.0
# Side of a pixel of the half size, in pixels of the frame. The conv net works at half size, because
# a quarter of the pixels takes less time.
HALF = 2
# A step adds four changes to the frame (`MotionSteps` has the formula). Three changes have a gate,
# a number for each pixel by which the change is multiplied: the pull of the RGB equations, the pull
# of the spike equations, and the way to the proposal.
GATES = 3
# The fourth change, c, comes from the conv net itself and has no gate. Instead, c is multiplied by
# CHANGE_SCALE. CHANGE_SCALE is small, so that most of a step comes from the equations. The trained
# weights fit this value.
CHANGE_SCALE = 0.1


class Turn(NamedTuple):
    """One of the eight ways to turn and mirror pictures (..., H, W).

    lab/train_motion.py draws a turn for each sample, to augment the data. The values of the
    pictures need no change, because no channel holds a direction, such as x or y of a motion.
    """

    mirrored: bool = False  # whether left and right are exchanged
    upside_down: bool = False  # whether top and bottom are exchanged
    transposed: bool = False  # whether rows and columns are exchanged

    def apply(self, picture: Tensor) -> Tensor:
        """Return the turned picture."""
        if self.mirrored:
            picture = picture.flip(-1)
        if self.upside_down:
            picture = picture.flip(-2)
        if self.transposed:
            picture = picture.transpose(-1, -2)
        return picture

    def turn_back(self, picture: Tensor) -> Tensor:
        """Turn a picture back: turn_back(apply(picture)) is the picture."""
        # The steps of `apply` in reversed order (test_a_turned_picture_is_turned_back_exactly).
        if self.transposed:
            picture = picture.transpose(-1, -2)
        if self.upside_down:
            picture = picture.flip(-2)
        if self.mirrored:
            picture = picture.flip(-1)
        return picture


UNTURNED = Turn()


class MotionSteps(nn.Module):
    """Improves a first estimate by steps on the equations of data/motion/joint/.

    The proposal is one solution of the equations. Each step adds four changes to the frame z: one
    of the conv net, two along the equations, and one towards the proposal. Their sum is

        dz = 0.1 * c + a_b * g_b + a_s * g_s + a_p * (proposal - z)

        g_b, g_s         pulls of the RGB equations and of the spike equations: the changes that
                         would make the equations fit better (`JointEquations.pulls`)
        c                a change of each colour, from a conv net. 0.1 is CHANGE_SCALE
        a_b, a_s, a_p    gates, from the same conv net

    All steps have the same conv net. The conv net sees the residuals of the equations and the
    expected error of the motion, so it learns where not to trust the equations. The last layer of
    the conv net begins at 0, so untrained steps return the first estimate.

    features: number of channels inside the conv net.
    layers: number of inner layers of the conv net.
    steps: number of steps.

    Source of unrolled steps with learned gates: Adler and Oktem, "Solving ill-posed inverse
    problems using iterative deep neural networks", Inverse Problems 2017.
    """

    def __init__(self, features: int, layers: int, steps: int) -> None:
        super().__init__()
        self.count = steps  # the number of steps
        # At half size, the HALF x HALF pixels of the full size become channels: 4 * 16 + 12 = 76
        # input channels, and 4 * (3 + 3) = 24 output channels.
        inputs = HALF**2 * CHANNELS_AT_FULL_SIZE + CHANNELS_AT_HALF_SIZE
        outputs = HALF**2 * (3 + GATES)  # 3: the change of each colour
        self.head = nn.Conv2d(inputs, features, kernel_size=3, padding=1)
        self.body = nn.ModuleList(
            nn.Conv2d(features, features, kernel_size=3, padding=1) for _ in range(layers)
        )
        self.tail = nn.Conv2d(features, outputs, kernel_size=3, padding=1)
        # Zeros let untrained steps return the first estimate (test_untrained_steps_change_nothing).
        for parameter in self.tail.parameters():
            nn.init.zeros_(parameter)

    def forward(self, z_0: Tensor, equations: JointEquations) -> Tensor:
        """Return the improved frame. z_0 and the result: (3, H, W) in [0, 1]."""
        # The equations have no weights to learn, and a gradient through the equations would take
        # much memory.
        with torch.no_grad():
            proposal = equations.proposal(z_0)
        frames = self.all_steps(z_0, proposal, equations)
        return frames[-1].clamp(0, 1)

    def all_steps(
        self, z_0: Tensor, proposal: Tensor, equations: JointEquations, turn: Turn = UNTURNED
    ) -> list[Tensor]:
        """Return the frame (3, H, W) after each step. No gradient flows through the equations.

        z_0, proposal: (3, H, W).
        turn: how the pictures are turned or mirrored before the conv net sees them.
        """
        evidence = equations.evidence()  # (6, H, W)
        spikes_minus_z_0: Tensor | None = None
        z = z_0
        frames = []
        for number in range(self.count):
            pulls = _pulls_at(z, equations)
            if spikes_minus_z_0 is None:  # in the first step, in which z is z_0
                spikes_minus_z_0 = pulls.spikes_minus_z  # (1, H, W)
            to_proposal = proposal - z

            at_full_size = _channels_at_full_size(z, z_0, to_proposal, equations.blurry, pulls)
            at_half_size = _channels_at_half_size(evidence, pulls, spikes_minus_z_0, number)
            outputs = self.net(turn.apply(at_full_size), turn.apply(at_half_size))
            outputs = turn.turn_back(outputs)  # (6, H, W)

            # c has 3 channels. A gate has 1 channel, so it multiplies all colours alike.
            c, a_b, a_s, a_p = outputs.split((3, 1, 1, 1))
            z = z + CHANGE_SCALE * c + a_b * pulls.g_b + a_s * pulls.g_s + a_p * to_proposal
            frames.append(z)
        return frames

    def net(self, at_full_size: Tensor, at_half_size: Tensor) -> Tensor:
        """Run the conv net: return the change c and the gates of each pixel, (3 + GATES, H, W).

        at_full_size: (CHANNELS_AT_FULL_SIZE, H, W).
        at_half_size: (CHANNELS_AT_HALF_SIZE, H, W). The conv net sees the means of these channels
            over HALF x HALF pixels.
        """
        # If the height or the width is odd, repeat the last row or column, so that the side can be
        # halved (test_a_frame_of_odd_sides_keeps_its_size).
        height, width = at_full_size.shape[-2:]
        rows_to_add = height % HALF  # 1 if the height is odd, else 0
        columns_to_add = width % HALF
        if rows_to_add or columns_to_add:
            added = (0, columns_to_add, 0, rows_to_add)  # left, right, above, below
            at_full_size = F.pad(at_full_size, added, mode="replicate")
            at_half_size = F.pad(at_half_size, added, mode="replicate")

        # Bring both inputs to half size. The HALF x HALF pixels of `at_full_size` become channels,
        # so that nothing is lost, and the pixels of `at_half_size` are replaced by their mean. The
        # two results have no names, because named results would stay in memory.
        x = torch.cat(
            (F.pixel_unshuffle(at_full_size[None], HALF), F.avg_pool2d(at_half_size[None], HALF)),
            dim=1,
        )  # (1, channels, H / 2, W / 2)
        # With the channels of a pixel side by side, these convolutions take half of the time on a
        # CPU.
        x = x.contiguous(memory_format=torch.channels_last)
        # The trained weights fit the slope 0.1 for negative values.
        x = F.leaky_relu(self.head(x), 0.1, inplace=True)  # (1, features, H / 2, W / 2)
        for conv in self.body:
            x = x + F.leaky_relu(conv(x), 0.1, inplace=True)

        # Bring the outputs back to full size, without the repeated row and column.
        outputs = F.pixel_shuffle(self.tail(x), HALF)  # (1, 3 + GATES, H, W)
        return outputs[0, :, :height, :width]


# ---- What the conv net of a step sees ----


class Pulls(NamedTuple):
    """How the equations would change a frame z: the channels of `Equations.pulls`."""

    g_b: Tensor  # (3, H, W): change of each colour by the RGB equations
    g_s: Tensor  # (1, H, W): change of the grey value by the spike equations
    # (1, H, W): size of the residuals of the RGB equations, i.e. by how much z misses them
    residual_rgb: Tensor
    residual_spikes: Tensor  # (1, H, W): size of the residuals of the spike equations
    # (1, H, W): grey value by the spikes of the sharp instant, minus the grey value of z
    spikes_minus_z: Tensor


def _pulls_at(z: Tensor, equations: JointEquations) -> Pulls:
    """Return the pulls of the equations at a frame z (3, H, W), without gradients."""
    with torch.no_grad():
        # A step may lead out of the range of display values, so clamp the frame.
        channels = equations.pulls(z.detach().clamp(0, 1))  # (7, H, W)
    g_b, g_s, residual_rgb, residual_spikes, spikes_minus_z = channels.split((3, 1, 1, 1, 1))
    return Pulls(g_b, g_s, residual_rgb, residual_spikes, spikes_minus_z)


def _channels_at_full_size(
    z: Tensor, z_0: Tensor, to_proposal: Tensor, blurry: Tensor, pulls: Pulls
) -> Tensor:
    """Return what a step sees at full size, (CHANNELS_AT_FULL_SIZE, H, W).

    The order must stay, because trained weights fit it. Each tensor below has 3 channels, one for
    each colour, but g_s has 1 channel. DIFFERENCE_SCALE brings the differences to about 1.

    z, z_0, blurry: the frame so far, the first estimate, and the blurry frame.
    to_proposal: proposal - z.
    pulls: how the equations would change z.
    """
    return torch.cat(
        (
            z,
            DIFFERENCE_SCALE * (z - z_0),
            DIFFERENCE_SCALE * to_proposal,
            blurry,
            DIFFERENCE_SCALE * pulls.g_b,
            DIFFERENCE_SCALE * pulls.g_s,
        )
    )


def _channels_at_half_size(
    evidence: Tensor, pulls: Pulls, spikes_minus_z_0: Tensor, number: int
) -> Tensor:
    """Return what a step sees at half size, (CHANNELS_AT_HALF_SIZE, H, W).

    The result has the size (H, W) of the frame. `MotionSteps.net` halves the size.

    The order must stay, because trained weights fit it. The evidence has 6 channels, and each other
    tensor below has 1. The evidence says how far to trust the equations at each pixel.

    pulls: how the equations would change the frame so far.
    spikes_minus_z_0: grey value by the spikes of the sharp instant, minus the grey value of z_0,
        (1, H, W).
    number: number of the step, counted from 0.
    """
    # Negative where z fits the spikes of the sharp instant better than z_0.
    growth_of_misfit = pulls.spikes_minus_z.abs() - spikes_minus_z_0.abs()
    return torch.cat(
        (
            evidence,
            DIFFERENCE_SCALE * pulls.residual_rgb,
            pulls.residual_spikes,  # without a scale: it is in units of the expected error
            DIFFERENCE_SCALE * pulls.spikes_minus_z,
            DIFFERENCE_SCALE * spikes_minus_z_0,
            DIFFERENCE_SCALE * growth_of_misfit,
            # -1 in the first step, 0 in the second, and so on, as in the training.
            torch.full_like(spikes_minus_z_0, number - 1.0),
        )
    )


# ---- The operator ----


@FUSIONS.register("motion", given=("spike_channels",))
class MotionFusion(ExposureFusion):
    """Makes the first estimate as "exposure" does, and improves it along the motion of the spikes.

    The weights of the operator "exposure" fit, because "exposure" makes the same first estimate.
    The steps that follow need all spike planes. main_test_vrt.py runs the steps, and
    lab/train_motion.py trains them. main_train_vrt.py trains only the first estimate.

    groups: largest number of groups into which the spike planes of an exposure are divided. The
    planes of a group count as one time. A slow motion needs fewer groups.
    linearisations: number of times that the proposal linearises the equations.
    proposal_steps: number of steps of conjugate gradients after each linearisation.
    step_features, step_layers: width of the conv net of the steps, and number of inner layers.
    step_count: number of steps.
    motion_by: what finds the motion. "dis": optical flow between pictures of the spikes. "network":
    models/fusion/motion_net.py. "both": the mean of DIS and the network in dim light, else DIS.
    With "both", the steps for exposures with few spikes have weights of their own.
    The other arguments: as in "exposure".
    """

    def __init__(
        self,
        features: Positive = 32,
        layers: Positive = 4,
        estimates: int | None = None,
        colour_radius: Positive = 4,
        groups: Positive = 20,
        linearisations: Positive = 3,
        proposal_steps: Positive = 4,
        step_features: Positive = 40,
        step_layers: Positive = 3,
        step_count: Positive = 2,
        motion_by: Literal["dis", "network", "both"] = "dis",
        base: Base = "fused",
        spike_channels: int = 0,
    ) -> None:
        super().__init__(
            features=features,
            layers=layers,
            estimates=estimates,
            colour_radius=colour_radius,
            base=base,
            spike_channels=spike_channels,
        )
        self.groups = groups
        self.linearisations = linearisations
        self.proposal_steps = proposal_steps
        self.steps = MotionSteps(step_features, step_layers, step_count)
        self.motion_by = motion_by
        # A second set of steps for exposures with few spikes. Weights files contain the names
        # `few_steps` and `motion_net`. The order of the modules decides their random initial
        # weights.
        self.few_steps = None
        if motion_by == "both":
            self.few_steps = MotionSteps(step_features, step_layers, step_count)
        self.motion_net = None
        if motion_by in ("network", "both"):
            self.motion_net = MotionNet()


def motion_of(net: nn.Module) -> MotionFusion | None:
    """Return the operator "motion" of a network, or None if the network has another operator."""
    fusion = getattr(net, "fusion", None)
    return fusion if isinstance(fusion, MotionFusion) else None

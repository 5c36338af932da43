"""The networks of the form "prior": the shipped learned steps, with a prior between them.

The learned steps (`MotionSteps`) restore each frame on its own. Here all frames of a clip take a
step together, and a prior is added to what the conv net of the steps returns:

    conv net of the steps    sees one frame     shipped weights, which stay as they are
    prior                    sees all frames    trained

Both networks return the same channels, and their sum is used:

    0 to 2    a change of red, green and blue
    3 to 5    GATES = 3 gates. A gate is a factor for each pixel of a change: the change by the
              equations of the blurry frame, the change by the equations of the spikes, and the way
              to the proposal, which is a frame that solves the equations

What must stay: a new prior changes nothing (test_a_new_network_changes_nothing), and both networks
of the form have about the same number of parameters
(test_both_networks_of_a_form_are_trained_for_the_same_time). Free to change: the sizes below, if
both networks keep about the same number of parameters.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lab.motion_steps.network import SHIPPED_WEIGHTS, network_of
from lab.vrt_forms.clip_equations import split_frames, stack_frames
from lab.vrt_forms.frame_convs import set_to_zero
from models.fusion.fusion_motion import (
    CHANNELS_AT_FULL_SIZE,
    CHANNELS_AT_HALF_SIZE,
    GATES,
    HALF,
    MotionSteps,
)
from models.vrt.stages import Stage

# With a wider prior, a step takes longer. So a training of the same time has fewer steps. No
# measurement of other sizes is recorded.
PRIOR_FEATURES = 32
QUARTER = 4  # side of a pixel of the prior, in pixels of the frame
# The attention is one stage of VRT. It has two blocks of mutual attention, in windows of two
# frames, and two blocks of self attention, in windows of four frames. A window has 6 x 6 pixels of
# the prior, i.e. 24 x 24 pixels of the frame.
PRIOR_DEPTH = 4
PRIOR_MUTUAL_DEPTH = 2
PRIOR_HEADS = 4
PRIOR_WINDOW = (4, 6, 6)
# Number of convs that the control has in place of the attention. This number gives about the same
# number of parameters. test_both_networks_of_a_form_are_trained_for_the_same_time allows a
# difference of 5 %.
PRIOR_LAYERS = 7


class FrameAttention(nn.Module):
    """Attention over the frames of a clip: (N, features, h, w) -> the same shape."""

    def __init__(self) -> None:
        super().__init__()
        self.stage = Stage(
            kind="none",
            inputs=PRIOR_FEATURES,
            dim=PRIOR_FEATURES,
            depth=PRIOR_DEPTH,
            heads=PRIOR_HEADS,
            window=PRIOR_WINDOW,
            mutual_depth=PRIOR_MUTUAL_DEPTH,
            drop_path=[0.0] * PRIOR_DEPTH,
            pa_frames=0,  # no alignment along an optical flow
            deformable_groups=1,
            scale=QUARTER,
        )

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.permute(0, 2, 3, 1)[None]  # (1, N, h, w, C)
        # A stage with pa_frames=0 uses no optical flow, so both lists are empty.
        tokens = self.stage(tokens, flows_backward=[], flows_forward=[])
        return tokens[0].permute(0, 3, 1, 2)


class Prior(nn.Module):
    """Computes what is added to the outputs of the conv net of the steps. A new prior adds 0.

    middle: the attention or the convs of the control, (N, features, h, w) -> the same shape.
    """

    def __init__(self, middle: nn.Module) -> None:
        super().__init__()
        # At half size, 2 x 2 pixels of the full size are channels of one pixel.
        inputs = HALF**2 * CHANNELS_AT_FULL_SIZE + CHANNELS_AT_HALF_SIZE
        self.entry = nn.Conv2d(inputs, PRIOR_FEATURES, kernel_size=3, stride=2, padding=1)
        self.middle = middle
        # At the exit, 4 x 4 pixels of the frame are channels of one pixel of the prior. So there
        # are 16 * (3 + 3) channels: 3 for the change of the colours, and GATES = 3.
        outputs = QUARTER**2 * (3 + GATES)
        self.exit = nn.Conv2d(PRIOR_FEATURES, outputs, kernel_size=3, padding=1)
        set_to_zero(self.exit)

    def forward(self, at_full_size: Tensor, at_half_size: Tensor) -> Tensor:
        """Return what is added, (N, 3 + GATES, H, W). H and W are multiples of QUARTER.

        Both arguments are the inputs of `MotionSteps.net` for N frames, (N, channels, H, W). Their
        names say at which size the conv net sees them.
        """
        # Bring both inputs to half size, as `MotionSteps.net` does.
        pixels = F.pixel_unshuffle(at_full_size, HALF)  # 2 x 2 pixels become channels
        means = F.avg_pool2d(at_half_size, HALF)  # each is the mean of 2 x 2 pixels
        joined = torch.cat((pixels, means), dim=1)  # (N, inputs, H / 2, W / 2)
        x = F.leaky_relu(self.entry(joined), 0.1)  # (N, features, H / 4, W / 4), by stride 2
        x = self.exit(self.middle(x))
        return F.pixel_shuffle(x, QUARTER)  # channels become 4 x 4 pixels


class StepsWithPrior(MotionSteps):
    """The shipped learned steps for a clip, with a prior between them.

    `MotionSteps.all_steps` calls `net` with two tensors. The tensors do not say how many frames the
    clip has, or how many spikes. So set `frame_count` and `is_dim` before each call of `all_steps`,
    as `steps_of_clip` (prior.py) does.
    """

    def __init__(self, prior: Prior) -> None:
        shipped = network_of(SHIPPED_WEIGHTS)
        # The shipped weights have two sets of steps: `steps` for many spikes, and `few_steps` for
        # few spikes. This object becomes a copy of `steps`: it has the same form (width, inner
        # layers, number of steps) and the same weights.
        steps = shipped.steps
        super().__init__(steps.head.out_channels, len(steps.body), steps.count)
        self.load_state_dict(steps.state_dict())
        assert shipped.few_steps is not None
        self.few_steps = shipped.few_steps
        # Only the prior is trained. No test notices if the steps are trained, too, but "parameters"
        # in the written file counts what is trained.
        self.requires_grad_(False)
        self.prior = prior
        self.frame_count = 1  # number of frames of the clip
        self.is_dim = False  # whether the steps for few spikes restore the clip

    def net(self, at_full_size: Tensor, at_half_size: Tensor) -> Tensor:
        """Return the change of the colours and the gates of all frames, (3 + GATES, N * H, W).

        `MotionSteps.net` sees one frame at a time, and the prior sees all frames.
        """
        full = split_frames(at_full_size, self.frame_count)  # (N, CHANNELS_AT_FULL_SIZE, H, W)
        half = split_frames(at_half_size, self.frame_count)  # (N, CHANNELS_AT_HALF_SIZE, H, W)
        outputs = []
        for full_of_frame, half_of_frame in zip(full, half, strict=True):
            if self.is_dim:
                outputs.append(self.few_steps.net(full_of_frame, half_of_frame))
            else:
                outputs.append(super().net(full_of_frame, half_of_frame))
        return stack_frames(torch.stack(outputs) + self.prior(full, half))

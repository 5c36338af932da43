"""Form "behind": a VRT improves the frames that the operator has made.

A form is one place where attention over frames may be added (lab/vrt_curve.py). The operator is the
network of weights/operator.pth. It restores a blurry frame with the help of its spikes. The VRT has
the options of options/vrt/000_train_vrt_real_rgbspike.json. In this option file the VRT follows the
operator, too.

What must stay: the networks of the form see the frames of the operator and no spikes, and have
about the same number of parameters (test_both_networks_of_a_form_are_trained_for_the_same_time).
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch.nn.functional as F
from torch import Tensor, nn

from lab.motion_steps.loss import LOSS_FLOOR
from lab.tools import ROOT
from lab.vrt_forms.clips import (
    Clip,
    Pictures,
    draw_clip,
    gain_db,
    middle_square,
    pictures_of,
    test_clips,
    training_clips,
)
from lab.vrt_forms.form import CONTROL, Form, Scores
from lab.vrt_forms.frame_convs import FrameConvs, set_to_zero
from models.fusion.fusion_motion import Turn
from models.select_network import NETWORKS
from utils.options.option_file import read_with_base
from utils.options.sources import Sources

BEHIND_OPTIONS = ROOT / "options/vrt/000_train_vrt_real_rgbspike.json"
BEHIND_SIDE = 32  # side of the crop of a training clip in pixels, as in the option file
# Width and number of the convs of the control. The numbers give the control about as many
# parameters as the VRT has. test_both_networks_of_a_form_are_trained_for_the_same_time allows a
# difference of 5 %.
BEHIND_FEATURES = 96
BEHIND_LAYERS = 12


class BehindForm(Form):
    """A network that improves the frames of the operator. The operator is not trained.

    The docstrings of `Form` (form.py) explain the methods.
    """

    name = "behind"
    score = "gain over weights/operator.pth in dB"
    rate = 1e-3  # as in the option file

    def __init__(
        self, clips: Sequence[Sequence[Clip]], tests: Mapping[str, Mapping[str, Clip]]
    ) -> None:
        """Take the results of `training_clips` and `test_clips`.

        clips: the training clips of each set.
        tests: light -> name -> test clip.
        """
        self.clips: list[list[Pictures]] = []
        for clips_of_set in clips:
            self.clips.append([pictures_of(clip) for clip in clips_of_set])
        self.tests: dict[str, dict[str, Pictures]] = {}
        for light, clips_of_light in tests.items():
            self.tests[light] = {name: pictures_of(clip) for name, clip in clips_of_light.items()}

    @classmethod
    def make(cls, videos: Path, out: Path) -> "BehindForm":
        """Make the clips in `out`. Clips that exist are read."""
        return cls(training_clips(videos, out), test_clips(videos, out))

    def network(self, arm: str) -> nn.Module:
        """Build the VRT (ATTENTION) or the network of convs (CONTROL), with new weights."""
        if arm == CONTROL:
            return FrameNet()
        options = read_with_base(BEHIND_OPTIONS, Sources(str(BEHIND_OPTIONS)))
        # Without fusion, because the operator has already made the frames that VRT sees. `resolve`
        # adds the defaults of missing options, and `plain` makes a dict.
        netG = NETWORKS.resolve({**options["netG"], "fusion": "none"}, "netG").plain()
        net = NETWORKS.build(netG, "netG", spike_channels=0)
        # The optical flow stays as it is, as in the option file.
        net.spynet.requires_grad_(False)
        return net

    def loss(self, net: nn.Module, rng: np.random.Generator) -> Tensor:
        """Draw a crop of a clip, and return log(error / error of the operator's frames)."""
        z_0, sharp = random_crop(draw_clip(self.clips, rng), rng)
        restored = net(z_0[None])[0]  # (N, 3, 32, 32), a batch of one clip
        e = (restored - sharp).square().mean()
        e_0 = (z_0 - sharp).square().mean()
        # The logarithm of a ratio of errors makes bright and dim clips count alike.
        return ((e + LOSS_FLOOR) / (e_0 + LOSS_FLOOR)).log()

    def scores(self, net: nn.Module) -> Scores:
        """Restore the middle square of each test clip. Returns light -> clip -> gain in dB."""
        scores: Scores = {}
        for light, clips in self.tests.items():
            scores[light] = {}
            for name, pictures in clips.items():
                z_0 = middle_square(pictures.z_0)
                restored = net(z_0[None])[0]
                scores[light][name] = gain_db(restored, z_0, pictures.sharp)
        return scores


def random_crop(pictures: Pictures, rng: np.random.Generator) -> Pictures:
    """Cut a square of BEHIND_SIDE pixels out of a clip, and mirror and transpose it at random."""
    height, width = pictures.sharp.shape[-2:]
    top = int(rng.integers(height - BEHIND_SIDE + 1))
    left = int(rng.integers(width - BEHIND_SIDE + 1))
    rows = slice(top, top + BEHIND_SIDE)
    columns = slice(left, left + BEHIND_SIDE)
    # Each of the three values is true with probability 1/2.
    mirrored, upside_down, transposed = rng.integers(0, 2, size=3).astype(bool).tolist()
    turn = Turn(mirrored, upside_down, transposed)
    return Pictures(
        z_0=turn.apply(pictures.z_0[..., rows, columns]),
        sharp=turn.apply(pictures.sharp[..., rows, columns]),
    )


class FrameNet(nn.Module):
    """Improves each frame on its own, by residual convs at half size: the control of "behind"."""

    def __init__(self) -> None:
        super().__init__()
        pixels = 3 * 2 * 2  # 2 x 2 pixels become channels
        self.head = nn.Conv2d(pixels, BEHIND_FEATURES, kernel_size=3, padding=1)
        self.body = FrameConvs(BEHIND_FEATURES, BEHIND_LAYERS)
        self.tail = nn.Conv2d(BEHIND_FEATURES, pixels, kernel_size=3, padding=1)
        set_to_zero(self.tail)  # the first result is the input, as in VRT

    def forward(self, frames: Tensor) -> Tensor:
        """Return better frames. frames and result: (1, N, 3, H, W), the shape of VRT."""
        x = F.pixel_unshuffle(frames[0], 2)
        x = self.body(F.leaky_relu(self.head(x), 0.1))
        return frames + F.pixel_shuffle(self.tail(x), 2)[None]

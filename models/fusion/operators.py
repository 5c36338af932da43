"""Fusion operators: how the spike representation is combined with the RGB frames.

    none        the network uses the RGB frames only
    concat      concatenates RGB and spike channels
    gated       adds a gated correction to each frame
    exposure    mixes the frame with estimates of the sharp frame (exposure.py)
    motion      restores along the motion within the exposure (fusion_motion.py)

Each operator is a class. base.py has the base class `Fusion`, with the hooks that the network
calls. A new operator is a class in a new file models/fusion/fusion_<name>.py, which this module
imports by itself. The option netG.fusion chooses the operator by its registered name.

Shapes: B clips, T frames, S spike channels, H x W pixels.

What must stay:

* The names of modules, because weights files contain them.
  (test_shipped_weights_hold_their_network_and_restore_in_float32)
* The order in which layers are built, because it decides their random initial weights.

Free to add: an operator, in a file of its own.

Tests: tests/parts/models/test_fusion.py, test_weights.py, test_exact_step.py,
tests/stories/test_extending.py
"""

import torch
from torch import Tensor, nn

from models.fusion.base import FUSIONS, Base, Fusion, ImageFusion, checked_spike
from utils.options.registry import import_parts
from utils.options.section import Positive


@FUSIONS.register("none")
class NoFusion(Fusion):
    """The network uses the RGB frames only and ignores the spikes."""

    needs_spikes = False

    @classmethod
    def channels(cls, in_chans: int | None, spike_channels: int) -> tuple[int, int]:
        """Return the channels of the image and of the result of `on_input`, e.g. (3, 3)."""
        image_channels = in_chans or 3  # RGB unless the option file says otherwise
        # `on_input` returns the image itself, so it has the same number of channels.
        return image_channels, image_channels


# `given` names the arguments that the network passes to the constructor, and that are no keys of
# the option file.
@FUSIONS.register("concat", given=("spike_channels",))
class ConcatFusion(Fusion):
    """Concatenates RGB and spike channels: in_chans = 3 + S."""

    def __init__(self, spike_channels: int = 0) -> None:
        super().__init__()
        self.spike_channels = spike_channels

    @classmethod
    def trunk_channels(cls, spike_channels: int) -> int:
        """Return the channels of the result of `on_input`, which the rest of the network takes."""
        return 3 + spike_channels

    def on_input(self, image: Tensor, spike: Tensor | None) -> Tensor:
        spike = checked_spike(image, spike, self.spike_channels)
        return torch.cat((image, spike), dim=2)  # (B, T, 3 + S, H, W)


@FUSIONS.register("gated", given=("spike_channels",))
class GatedFusion(ImageFusion):
    """Adds to each RGB frame the output of a small conv net on RGB and spikes, times a learned gate
    in (0, 1).

    features: width of the conv net. layers: number of its residual convolutions, applied per frame.
    gate_bias: -4 starts with an almost closed gate, for training from published RGB weights. For
    training from scratch 0 is better, because the spikes then contribute from the first step.
    base: the frame to which the network adds its output. "blurry": the blurry frame, as in VRT.
    "fused": the frame that the operator has made.
    """

    def __init__(
        self,
        features: Positive = 32,
        layers: Positive = 4,
        gate_bias: float = -4.0,
        base: Base = "blurry",
        spike_channels: int = 0,
    ) -> None:
        super().__init__(base, 3 + spike_channels, features, layers)
        self.spike_channels = spike_channels
        self.value = nn.Conv2d(features, 3, kernel_size=3, padding=1)
        self.gate = nn.Conv2d(features, 3, kernel_size=3, padding=1)
        # At first the gate has the same value everywhere: sigmoid(gate_bias), 0.018 for -4.
        nn.init.zeros_(self.gate.weight)
        assert self.gate.bias is not None  # a Conv2d has a bias if it is not told otherwise
        nn.init.constant_(self.gate.bias, gate_bias)

    def on_input(self, image: Tensor, spike: Tensor | None) -> Tensor:
        spike = checked_spike(image, spike, self.spike_channels)
        frames = torch.cat((image, spike), dim=2).flatten(0, 1)  # (B T, 3 + S, H, W)
        x = self.features_of(frames)
        correction = torch.sigmoid(self.gate(x)) * self.value(x)
        return image + correction.view_as(image)


# Import all files of operators, each of which registers its operator. exposure.py is named, because
# it has no prefix fusion_.
import_parts("models.fusion", "exposure")
import_parts("models.fusion", "fusion_*")

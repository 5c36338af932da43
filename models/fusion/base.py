"""What every fusion operator is made of: the class `Fusion`, and the registry of operators.

A fusion operator combines the spike representation with the RGB frames. The network calls its four
hooks in this order, see network_vrt.VRT.forward:

    on_input       frames and spikes -> input of the network
    on_features    features after the first convolution
    on_stage       features after each of the stages 1 to 7
    on_base        the frames to which the network adds its output

Shapes: B clips, T frames, C image channels, S spike channels, E channels of features, H x W pixels.

What must stay:

* The hooks, because operators of other projects override them (docs/extending.md).
* The names of the modules of `ImageFusion`, because weights files contain them.
  (test_shipped_weights_hold_their_network_and_restore_in_float32)
* The order of the layers of `ImageFusion`, because the order decides their random initial weights.

Free to change: the texts of errors.

Tests: tests/parts/models/test_fusion.py, test_weights.py, tests/stories/test_extending.py
"""

from typing import Literal

import torch.nn.functional as F
from torch import Tensor, nn

from utils.errors import DataError, OptionError
from utils.options.registry import Registry

FUSIONS = Registry("fusion operator")
# The option `base` of an operator. It chooses the frame to which the network adds its output: the
# blurry frame, or the frame that the operator has made of it.
Base = Literal["blurry", "fused"]


class Fusion(nn.Module):
    """Base class of all operators.

    Each hook returns its input unchanged unless an operator overrides it.

    Two arguments of a constructor come from the network: `spike_channels` (S of the data) and
    `feature_channels` (channels of the first features, then of stages 1 to 7). If a constructor
    takes one of these arguments, the class names the argument when it is registered, e.g.
    `@FUSIONS.register("concat", given=("spike_channels",))`. All other arguments are option keys of
    netG.fusion, with the defaults of the constructor.
    """

    # Whether the network must be given spikes.
    needs_spikes = True
    # The only spike representation whose channels the operator understands, e.g. "relative". None
    # if it takes any channels.
    representation: str | None = None

    @classmethod
    def trunk_channels(cls, spike_channels: int) -> int:
        """Return the number of channels per frame that `on_input` returns for RGB frames.

        The trunk, i.e. the network after the operator, takes these channels. Override this method
        if `on_input` returns more than a picture, e.g. 3 + S channels.
        """
        return 3

    @classmethod
    def channels(cls, in_chans: int | None, spike_channels: int) -> tuple[int, int]:
        """Return two numbers of channels per frame: of the image, and of the result of `on_input`.

        in_chans: the option netG.in_chans, or None if the option file leaves it out. If the option
            is given, it must equal the second number.
        spike_channels: S, the number of spike channels of the data, 0 without spikes.

        Raises OptionError if in_chans or the data's spike channels do not fit the operator.
        """
        if spike_channels < 1:
            raise OptionError(
                what="the fusion operator needs spikes, but the data has no spike channels",
                where="netG.fusion",
                expected='a dataset with spikes, or fusion "none"',
                do='choose a dataset with spikes, or set netG.fusion to "none"',
            )
        trunk = cls.trunk_channels(spike_channels)
        if in_chans is not None and in_chans != trunk:
            raise OptionError(
                what=f"netG.in_chans is {in_chans}",
                where="netG.in_chans",
                expected=f"{trunk}, which the fusion operator gives for 3 RGB and {spike_channels} "
                "spike channels",
                do="remove netG.in_chans, or correct it",
            )
        return 3, trunk

    def on_input(self, image: Tensor, spike: Tensor | None) -> Tensor:
        """Return the input of the network, (B, T, trunk channels, H, W). See `trunk_channels`.

        image: (B, T, C, H, W). spike: (B, T, S, H, W). It is None if there are no spikes. In this
            case `channels` must accept 0 spike channels, as in `NoFusion` (operators.py).
        """
        return image

    def on_features(self, features: Tensor, spike: Tensor | None) -> Tensor:
        """Change the features after the first convolution, (B, T, H, W, E) -> the same shape."""
        return features

    def on_stage(self, stage: int, features: Tensor, spike: Tensor | None) -> Tensor:
        """Change the output of stage 1 to 7, (B, T, h, w, E) -> the same shape.

        h and w are the size of the stage, e.g. H / 2 and W / 2 for stage 2.
        """
        return features

    def on_base(self, rgb: Tensor, fused: Tensor, spike: Tensor | None) -> Tensor:
        """Return the frames to which the network adds its output, (B, T, 3, H, W).

        fused: the result of `on_input`.
        """
        return rgb


class ImageFusion(Fusion):
    """Base class of operators whose `on_input` returns a better frame.

    Each of these operators has a small residual conv net: `features_of` runs `head` and `body`.

    base: the frame to which the network adds its output. "blurry": the blurry frame. "fused": the
        result of `on_input`.
    inputs: number of input channels of the conv net.
    features: number of its output channels.
    layers: number of its residual convolutions.
    """

    def __init__(self, base: Base, inputs: int, features: int, layers: int) -> None:
        super().__init__()
        self.base = base
        self.head = nn.Conv2d(inputs, features, kernel_size=3, padding=1)
        self.body = nn.ModuleList(
            nn.Conv2d(features, features, kernel_size=3, padding=1) for _ in range(layers)
        )

    def features_of(self, x: Tensor) -> Tensor:
        """Run the conv net: (n, inputs, H, W) -> (n, features, H, W)."""
        # The trained weights fit the slope 0.1 for negative values.
        x = F.leaky_relu(self.head(x), 0.1, inplace=True)
        for conv in self.body:
            x = x + F.leaky_relu(conv(x), 0.1, inplace=True)
        return x

    def on_base(self, rgb: Tensor, fused: Tensor, spike: Tensor | None) -> Tensor:
        return fused if self.base == "fused" else rgb


def checked_spike(rgb: Tensor, spike: Tensor | None, channels: int) -> Tensor:
    """Return `spike` if it fits the frames. Raises DataError otherwise.

    The result is the same tensor, but its type says that it is not None.

    rgb: the frames, (B, T, 3, H, W).
    spike: the spike channels, which should be (B, T, channels, H, W).
    channels: S, the number of spike channels for which the network was built.
    """
    clips, frames, _, height, width = rgb.shape
    expected_shape = (clips, frames, channels, height, width)
    if spike is not None and tuple(spike.shape) == expected_shape:
        return spike
    if spike is None:
        got = "no spike tensor"
    else:
        got = f"a spike tensor of shape {tuple(spike.shape)}"
    raise DataError(
        what=f"the network was given {got}",
        where="forward(lq, spike)",
        expected=f"shape (B, T, S, H, W) = {expected_shape}, as the network was built for "
        f"S = {channels}",
        do="pass batch['spike'] to the network",
    )

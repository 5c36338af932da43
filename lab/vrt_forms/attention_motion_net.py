"""The network of the form "motion" with attention over pictures of spikes.

The frames of this attention are the 15 pictures of spikes that `MotionNet` sees. Eleven pictures
show windows of time within the exposure. Two pictures show windows before it, and two after it.
`MotionNet` finds the motion from coarse to fine, at four levels. A pixel of a level has a side of
8, 4, 2 or 1 spike pixels. Each level has a conv net of its own, which corrects the motion.

What must stay: the network has about as many parameters as `MotionNet`, within 5 %
(test_the_motion_is_found_by_both_networks). Free to change: the sizes below, within this limit.
"""

import torch
from torch import Tensor, nn

from models.fusion.motion_net import LEVELS, SCENE_CHANNELS, MotionNet, conv_net
from models.fusion.motion_windows import PICTURE_CHANNELS, WINDOWS
from models.vrt.stages import BlockGroup

# Levels with attention, each named by the side of its pixels in spike pixels. At these coarsest
# levels dim light is averaged most, and attention takes the least time.
ATTENTION_LEVELS = (8, 4)
# With more channels or heads, a training step takes longer. So a training of the same time has
# fewer steps. No measurement of other values is recorded.
TOKEN_CHANNELS = 16
HEADS = 2
# A window of the attention has all pictures, and 2 x 2 pixels of the level. With windows of 4 x 4
# pixels, a training step took twice as long.
ATTENTION_WINDOW = (WINDOWS, 2, 2)
# Channels that the attention adds to the inputs of the conv net. The number was chosen by hand.
JOINED_CHANNELS = 24
# Width of the conv nets with attention. `MotionNet` has the width 48. The attention has parameters
# of its own, so the conv nets must be narrower.
NARROW_FEATURES = 42


class AttentionMotionNet(MotionNet):
    """`MotionNet` with attention over the pictures at its two coarsest levels."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.ModuleDict({str(size): PictureAttention() for size in ATTENTION_LEVELS})
        for index, level in enumerate(LEVELS):
            if level.size in ATTENTION_LEVELS:
                self.nets[index] = net_with_attention(self.nets[index], level.layers)

    def _inputs(
        self, pictures: Tensor, scene: Tensor, curve: Tensor, log_error: Tensor, size: int
    ) -> Tensor:
        """Return the inputs of the conv net of a level, with the channels of the attention.

        `MotionNet.forward` calls this for each level. The result of `MotionNet._inputs` is
        (B, 48, h, w). Its channels are, in this order:

            30    the 15 pictures, shifted back to the sharp instant by the motion found so far
            8     the motion that is left, by least squares
            3     scene
            6     curve
            1     log_error

        pictures: (B * 15, 2, h, w), in the resolution of the level.
        scene: (B, 3, h, w), in the resolution of the level.
        curve: (B, 6, h, w), the motion found so far.
        log_error: (B, 1, h, w), the logarithm of the expected error of `curve`.
        size: side of a pixel of the level, in spike pixels.
        """
        inputs = super()._inputs(pictures, scene, curve, log_error, size)
        if size not in ATTENTION_LEVELS:
            return inputs
        moved = inputs[:, : WINDOWS * PICTURE_CHANNELS]  # 30 channels: the shifted pictures
        joined = self.attention[str(size)](moved, scene)  # (B, 24, h, w)
        return torch.cat((inputs, joined), dim=1)


def net_with_attention(net: nn.Module, layers: int) -> nn.Module:
    """Return a new conv net in place of the conv net of a level: narrower, with more inputs.

    The added inputs are the JOINED_CHANNELS channels of the attention.

    net: the conv net of the level in `MotionNet`.
    layers: number of layers of the old and of the new conv net.
    """
    convs = [module for module in net.modules() if isinstance(module, nn.Conv2d)]
    inputs = convs[0].in_channels
    outputs = convs[-1].out_channels
    return conv_net(
        inputs=inputs + JOINED_CHANNELS,
        features=NARROW_FEATURES,
        layers=layers,
        outputs=outputs,
    )


class PictureAttention(nn.Module):
    """Attention over the pictures of all windows of time, at one level of `MotionNet`."""

    def __init__(self) -> None:
        super().__init__()
        inputs = PICTURE_CHANNELS + SCENE_CHANNELS  # 2 + 3
        self.embed = nn.Conv2d(inputs, TOKEN_CHANNELS, kernel_size=3, padding=1)
        # mutual=False: only self attention, among all 15 pictures of a window. Mutual attention is
        # for windows of two frames. drop_path=[0.0]: nothing is dropped at random in training.
        self.blocks = BlockGroup(
            TOKEN_CHANNELS,
            depth=1,
            heads=HEADS,
            window=ATTENTION_WINDOW,
            mutual=False,
            drop_path=[0.0],
        )
        self.join = nn.Conv2d(WINDOWS * TOKEN_CHANNELS, JOINED_CHANNELS, kernel_size=1)

    def forward(self, moved: Tensor, scene: Tensor) -> Tensor:
        """Return channels for the conv net of the level, (B, 24, h, w).

        moved: two channels of each of the 15 pictures, (B, 30, h, w), shifted back to the sharp
            instant.
        scene: brightness around each pixel, mean brightness, and contrast of the blurry frame,
            (B, 3, h, w).

        In the comments below, C is TOKEN_CHANNELS. The blocks take their channels last, and the
        convs take them second.
        """
        pictures = moved.unflatten(1, (WINDOWS, PICTURE_CHANNELS))  # (B, 15, 2, h, w)
        batch = len(pictures)
        scenes = scene[:, None].expand(-1, WINDOWS, -1, -1, -1)  # (B, 15, 3, h, w)
        inputs = torch.cat((pictures, scenes), dim=2)  # (B, 15, 5, h, w)
        features = self.embed(inputs.flatten(0, 1))  # (B * 15, C, h, w)
        tokens = features.unflatten(0, (batch, WINDOWS)).permute(0, 1, 3, 4, 2)  # (B, 15, h, w, C)
        tokens = self.blocks(tokens)
        features = tokens.permute(0, 1, 4, 2, 3).flatten(1, 2)  # (B, 15 * C, h, w)
        return self.join(features)

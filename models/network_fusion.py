"""A network that is only a fusion operator, without VRT after it.

weights/operator.pth and weights/motion.pth are weights of this network.

What must stay: the attribute `fusion`, because the names of the tensors in these files begin with
it (test_shipped_weights_hold_their_network_and_restore_in_float32 loads them).

Tests: tests/parts/models/test_select_network.py, test_weights.py
"""

from typing import Annotated, Any

from torch import Tensor, nn

from models.fusion.base import ImageFusion
from models.fusion.operators import FUSIONS
from models.select_network import NETWORKS
from utils.contract import InputSpec
from utils.errors import OptionError


# `given`: names of arguments that the program supplies, and that are no options.
@NETWORKS.register("fusion", given=("spike_channels",))
class FusionNet(nn.Module):
    """Restores each frame by a fusion operator: (B, N, 3, H, W) in [0, 1] -> the same shape.

    fusion: an operator that makes a frame, with the option base "fused".

    The program gives the argument `spike_channels`, the number of spike channels per frame.

    In a whole VRT, VRT would add its output to the frame of the operator. Here this frame is the
    result. So this network is fast, and a comparison with the whole VRT shows what VRT adds.
    """

    def __init__(
        self, fusion: Annotated[dict[str, Any] | str, FUSIONS], spike_channels: int = 0
    ) -> None:
        super().__init__()
        # The section, checked and with its defaults. Its constructor is the class of the operator.
        options = FUSIONS.resolve(fusion, "netG.fusion")
        # With base "blurry" the operator would give back the input.
        makes_frames = issubclass(options.constructor, ImageFusion)
        if not makes_frames or options.base == "blurry":
            raise OptionError(
                what=f"net_type fusion cannot use netG.fusion {options.type}",
                where="netG.fusion",
                expected='"exposure" or "gated", base "fused": the result is a frame',
                do='choose "exposure" or "gated" with base "fused", or net_type vrt',
            )
        # Called only for its error if the data have no spikes. None stands for netG.in_chans, which
        # this network does not have.
        options.constructor.channels(None, spike_channels)
        self.fusion = FUSIONS.build(options, "netG.fusion", spike_channels=spike_channels)
        self.input_spec = InputSpec(spike_channels=spike_channels, each_frame_alone=True)

    def forward(self, lq: Tensor, spike: Tensor | None = None) -> Tensor:
        """Return the restored frames, (B, N, 3, H, W).

        lq: (B, N, 3, H, W) in [0, 1].
        spike: (B, N, S, H, W).
        """
        fused = self.fusion.on_input(lq, spike)
        return self.fusion.on_base(lq, fused, spike)

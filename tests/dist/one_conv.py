"""A network of one convolution, for what does not depend on the network: what happens around its forward pass."""

from torch import Tensor, nn

from models.select_network import NETWORKS
from utils.run import writers

# Drawing would take half of the time of such a run; runs of the real network draw their curves.
writers.draw_panels, writers.encoded = (lambda histories: None), (lambda figure: b"")


@NETWORKS.register("one_conv")
class OneConv(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.calls = nn.Conv2d(3, 3, 3, 1, 1), 0

    def forward(self, lq: Tensor, spike: Tensor | None = None) -> Tensor:
        self.calls += 1
        return self.conv(lq.flatten(0, 1)).view_as(lq)

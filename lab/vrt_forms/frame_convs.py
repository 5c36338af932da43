"""Convs that see a single frame, for the controls of the forms "prior" and "behind".

A control is a network without attention over frames. A form compares its network with attention
with this control (lab/vrt_curve.py).

What must stay: the control sees no other frame
(test_attention_sees_the_other_frames_and_the_control_does_not).
"""

import torch.nn.functional as F
from torch import Tensor, nn


class FrameConvs(nn.Module):
    """Residual convs on each of N frames: (N, features, h, w) -> the same shape."""

    def __init__(self, features: int, layers: int) -> None:
        super().__init__()
        self.convs = nn.ModuleList(
            nn.Conv2d(features, features, kernel_size=3, padding=1) for _ in range(layers)
        )

    def forward(self, x: Tensor) -> Tensor:
        for conv in self.convs:
            x = x + F.leaky_relu(conv(x), 0.1)
        return x


def set_to_zero(conv: nn.Conv2d) -> None:
    """Set weights and bias to 0, so that a network begins without any effect.

    test_a_new_network_changes_nothing notices other first weights.
    """
    for parameter in conv.parameters():
        nn.init.zeros_(parameter)

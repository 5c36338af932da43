"""A network of motion that gives one curve for all pixels, so a test knows its result.

A curve says where a pixel is at each time of the exposure.
"""

from collections.abc import Sequence

import torch

from models.fusion.motion_net import CHANGES, LEVELS, MotionNet


def constant_network(curve: Sequence[float] = (0.0,) * 6, log_error: float = 0.0) -> MotionNet:
    """Return a network that gives the same curve everywhere.

    All its weights are 0. So its result is the bias of the last layer, which has the numbers of
    `curve`, and then `log_error`.

    curve: x1, y1, x2, y2, x3, y3. The shift along x at time tau is x1 tau + x2 tau^2 + x3 tau^3, in
    spike pixels. The shift along y has the same form.
    log_error: the logarithm of the error that the network expects of its curve, in spike pixels.
    """
    net = MotionNet().eval()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.zero_()
        # A MotionNet has a net for each level of resolution. The last net works at the finest
        # level, and its layer 6 is its last layer.
        bias = net.get_parameter(f"nets.{len(LEVELS) - 1}.6.bias")
        bias.copy_(torch.tensor([*curve, log_error]))
    assert len(bias) == CHANGES
    return net

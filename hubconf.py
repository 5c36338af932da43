"""The shipped networks for torch.hub:

    net = torch.hub.load("REPOSITORY", "operator", source="local")
    net = torch.hub.load("REPOSITORY", "motion", source="local")
    net = torch.hub.load("REPOSITORY", "vrt_small", source="local")

net(lq, spike) takes blurry frames (B, T, 3, H, W) in [0, 1] and spike channels (B, T, S, H, W), and
returns sharp frames (B, T, 3, H, W). net.input_spec has the number of frames, the number of
channels and the sizes that fit. docs/python.md restores whole clips.

torch.hub calls the public functions of this file by name, so the names must stay. `dependencies`
lists the packages that torch.hub looks for before it calls a function.

Test: tests/parts/models/test_released.py
"""

from pathlib import Path

import torch

from models.portable import read_saved
from models.saved_network import SavedNetwork

dependencies = ["torch", "numpy", "pydantic", "json5"]

WEIGHTS = Path(__file__).resolve().parent / "weights"


def operator(pretrained: bool = True) -> torch.nn.Module:
    """Return the fusion operator "exposure" without a VRT, in eval mode on the CPU.

    It has 46 thousand parameters.

    pretrained: True for the weights of weights/operator.pth, False for new random weights.
    """
    return _network(read_saved(WEIGHTS / "operator.pth"), pretrained)


def motion(pretrained: bool = True) -> torch.nn.Module:
    """Return the fusion operator "motion" without a VRT, in eval mode on the CPU.

    It has 471 thousand parameters.

    pretrained: True for the weights of weights/motion.pth, False for new random weights.

    net(lq, spike) returns only the first estimate z_0 of the operator. Then
    `net.fusion.steps(z_0, equations)` improves z_0 by learned steps. The equations of an exposure
    (data.motion.joint.equations.Equations) are made from its spike planes, because the channels
    `spike` are not enough for them. main_test_vrt.py makes the equations and runs the steps for
    whole clips.
    """
    return _network(read_saved(WEIGHTS / "motion.pth"), pretrained)


def vrt_small(pretrained: bool = True) -> torch.nn.Module:
    """Return the operator with a small VRT behind it, in eval mode on the CPU.

    It has 2.5 million parameters.

    pretrained: True for the weights of weights/vrt_small.pth, False for new random weights.
    """
    return _network(read_saved(WEIGHTS / "vrt_small.pth"), pretrained)


def _network(saved: SavedNetwork, pretrained: bool) -> torch.nn.Module:
    """Build the network of a weights file, in eval mode.

    pretrained: True for the weights of the file, False for new random weights.
    """
    if pretrained:
        return saved.build()
    return saved.network().eval()

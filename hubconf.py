"""Offer the networks of weights/ to torch.hub:

    net = torch.hub.load("REPOSITORY", "operator", source="local")
    net = torch.hub.load("REPOSITORY", "motion", source="local")
    net = torch.hub.load("REPOSITORY", "vrt_small", source="local")

net(lq, spike) takes T blurry frames, `lq` (B, T, 3, H, W) in [0, 1], and S spike channels for each
frame, `spike` (B, T, S, H, W). It returns sharp frames (B, T, 3, H, W). S is 12 for these three
networks. net.input_spec says which T, H and W fit (`utils.contract.InputSpec`). docs/python.md
shows how to restore whole clips.

A fusion operator is a module that combines the blurry frames with their spikes (models/fusion). VRT
is a transformer that restores the frames of a clip together (models/vrt).

What must stay: the names of the public functions and their argument `pretrained`, because users
name them in torch.hub.load. torch.hub looks for the packages in `dependencies` before it calls a
function.

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

    It makes estimates of the sharp frame from the spikes, and mixes the blurry frame with these
    estimates. It has 46 thousand parameters.

    pretrained: True for the weights of weights/operator.pth, False for new random weights.
    """
    return _network(read_saved(WEIGHTS / "operator.pth"), pretrained)


def motion(pretrained: bool = True) -> torch.nn.Module:
    """Return the fusion operator "motion" without a VRT, in eval mode on the CPU.

    It first makes an estimate z_0 of the sharp frame, as "exposure" does. Then learned steps
    improve z_0. It has 471 thousand parameters.

    A sharp frame is made in two calls. E.g. for frame 5 of the first clip of a batch:

        z_0 = net(lq, spike)                              (B, T, 3, H, W): first estimates only
        sharp = net.fusion.steps(z_0[0, 5], equations)    (3, H, W): the improved frame

    The equations relate a sharp frame to its blurry frame and its spikes
    (data.motion.joint.equations.Equations). They are made from the binary pictures of the spike
    camera, because the channels `spike` are not enough for them. main_test_vrt.py makes the
    equations and runs the steps for whole clips, so most users need not make the calls themselves.

    pretrained: True for the weights of weights/motion.pth, False for new random weights.
    """
    return _network(read_saved(WEIGHTS / "motion.pth"), pretrained)


def vrt_small(pretrained: bool = True) -> torch.nn.Module:
    """Return a small VRT behind the fusion operator "exposure", in eval mode on the CPU.

    The operator restores each frame. Then VRT improves the frames of a clip together. The network
    has 2.5 million parameters.

    pretrained: True for the weights of weights/vrt_small.pth, False for new random weights.
    """
    return _network(read_saved(WEIGHTS / "vrt_small.pth"), pretrained)


def _network(saved: SavedNetwork, pretrained: bool) -> torch.nn.Module:
    """Build the network of a weights file, in eval mode on the CPU.

    saved: the content of the file: the tensors, and the options of their network.
    pretrained: True for the weights of the file, False for new random weights.
    """
    if pretrained:
        return saved.build()
    # The options in the file say how the network is built, so the file is read in any case.
    return saved.network().eval()

"""LPIPS, a learned image distance (Zhang, Isola, Efros, Shechtman, Wang, CVPR 2018), version 0.1 on
AlexNet.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import nn

from models.portable import read_weights
from utils.errors import CheckpointError

# The ReLUs of torchvision's AlexNet after which features are compared, and their channels.
TAPS = {1: 64, 4: 192, 7: 384, 9: 256, 11: 256}


class Lpips(nn.Module):
    """Distance between two images, 0 if equal: squared differences of normalised features, weighted
    per channel.
    """

    shift: torch.Tensor
    scale: torch.Tensor

    def __init__(self, files: Sequence[str | Path]) -> None:
        """files: torchvision's AlexNet weights and LPIPS' own alex.pth, in any order, or one file
        with both.

        Raises CheckpointError, naming what is missing.
        """
        super().__init__()
        import torchvision  # imported here: it takes a second, and few runs use LPIPS

        self.features = torchvision.models.alexnet(weights=None).features[: max(TAPS) + 1]
        self.lin = nn.ParameterList(torch.zeros(1, channels, 1, 1) for channels in TAPS.values())
        self.register_buffer(
            "shift", torch.tensor([-0.030, -0.088, -0.188])[:, None, None], persistent=False
        )
        self.register_buffer(
            "scale", torch.tensor([0.458, 0.448, 0.450])[:, None, None], persistent=False
        )
        given = {
            key: value for file in files for key, value in read_weights(file, key="--lpips").items()
        }
        wanted = {
            key: f"lin{key.removeprefix('lin.')}.model.1.weight" if key.startswith("lin.") else key
            for key in self.state_dict()
        }
        missing = [name for name in wanted.values() if name not in given]
        if missing:
            what = f"LPIPS weights lack {', '.join(missing[:3])}" + (
                ", ..." if len(missing) > 3 else ""
            )
            expected = "alexnet-owt-7be5be79.pth of torchvision and alex.pth of LPIPS 0.1"
            raise CheckpointError(
                what, ", ".join(map(str, files)), expected, "give both files after --lpips"
            )
        self.load_state_dict({key: given[name] for key, name in wanted.items()})
        self.eval().requires_grad_(False)

    @torch.no_grad()
    def score(self, restored: np.ndarray, sharp: np.ndarray) -> dict[str, float]:
        """{"lpips": distance} of two images (H, W, 3) in 0..255."""
        pair = torch.from_numpy(np.stack((restored, sharp))).permute(0, 3, 1, 2).contiguous()
        x = (pair.to(self.shift.device, torch.float32) / 255 * 2 - 1 - self.shift) / self.scale
        distance, lin = 0.0, iter(self.lin)
        for index, layer in enumerate(self.features):
            x = layer(x)
            if index in TAPS:
                one, other = (x / (x.square().sum(1, keepdim=True).sqrt() + 1e-10)).chunk(2)
                distance = distance + ((one - other).square() * next(lin)).sum(1).mean((1, 2))
        return {"lpips": float(distance)}

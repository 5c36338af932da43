"""LPIPS, a learned distance between two images, version 0.1 on AlexNet.

Source: Zhang, Isola, Efros, Shechtman, Wang, CVPR 2018.

Both images go through AlexNet, and are compared after each of five ReLUs. After a ReLU, the
restored image has the features f and the sharp image the features g, normalised to length 1 at each
pixel. With a learned weight w for each channel:

    distance of a pixel  d = sum over the channels of  w * (f - g)^2
    LPIPS                  = sum over the ReLUs of the mean of d over the pixels

main_test_vrt.py computes LPIPS if the flag --lpips names the files of the weights.

What must stay: the arithmetic, because published LPIPS values are compared with ours.

Tests: tests/parts/models/test_metrics.py
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import nn

from models.weights_file import read_weights
from utils.errors import CheckpointError

# The five ReLUs: position in torchvision's AlexNet -> channels of the features. The order must
# stay, because the weights in the files are numbered in this order, lin0 to lin4.
RELUS = {1: 64, 4: 192, 7: 384, 9: 256, 11: 256}


class Lpips(nn.Module):
    """Distance between two images, 0 if they are equal."""

    shift: torch.Tensor  # mean of RGB, (3, 1, 1)
    scale: torch.Tensor  # standard deviation of RGB, (3, 1, 1)

    def __init__(self, files: Sequence[str | Path]) -> None:
        """Build the network and load its weights.

        files: torchvision's weights of AlexNet and the file alex.pth of LPIPS, in any order, or one
            file with both.

        Raises CheckpointError, naming what is missing.
        """
        super().__init__()
        import torchvision  # here, because the import takes a second, and few runs use LPIPS

        # The layers of AlexNet up to the last of the ReLUs.
        layer_count = max(RELUS) + 1
        self.features = torchvision.models.alexnet(weights=None).features[:layer_count]
        # The weights w of each ReLU. LPIPS 0.1 calls them "lin", for linear layers.
        self.lin = nn.ParameterList(torch.zeros(1, channels, 1, 1) for channels in RELUS.values())
        # Both are for images in -1..1, as in LPIPS 0.1.
        shift = torch.tensor([-0.030, -0.088, -0.188])[:, None, None]
        scale = torch.tensor([0.458, 0.448, 0.450])[:, None, None]
        self.register_buffer("shift", shift, persistent=False)
        self.register_buffer("scale", scale, persistent=False)

        in_files: dict[str, torch.Tensor] = {}  # name in the files -> tensor
        for file in files:
            in_files |= read_weights(file, key="--lpips")
        # Name of a tensor here -> its name in the files, e.g. "lin.0" -> "lin0.model.1.weight". The
        # tensors of AlexNet have the same name in both.
        name_in_file = {}
        for name in self.state_dict():
            if name.startswith("lin."):
                number = name.removeprefix("lin.")
                name_in_file[name] = f"lin{number}.model.1.weight"
            else:
                name_in_file[name] = name
        _refuse_missing(in_files, name_in_file, files)
        _refuse_other_shapes(in_files, name_in_file, self.state_dict(), files)
        weights = {}  # name here -> tensor
        for name, name_of_file in name_in_file.items():
            weights[name] = in_files[name_of_file]
        self.load_state_dict(weights)
        self.eval().requires_grad_(False)

    @torch.no_grad()
    def score(self, restored: np.ndarray, sharp: np.ndarray) -> dict[str, float]:
        """Return {"lpips": distance} of two images (H, W, 3) in 0..255."""
        pair = torch.from_numpy(np.stack((restored, sharp)))
        pair = pair.permute(0, 3, 1, 2).contiguous()  # (2, 3, H, W)
        x = pair.to(self.shift.device, torch.float32)
        x = x / 255 * 2 - 1  # 0..255 -> -1..1
        x = (x - self.shift) / self.scale
        weights_of_relus = dict(zip(RELUS, self.lin, strict=True))  # position of a ReLU -> its w
        distance = 0.0
        for index, layer in enumerate(self.features):
            x = layer(x)  # (2, channels, h, w)
            if index not in RELUS:
                continue
            # Features of zeros have no direction, so add 1e-10 to the length, as in LPIPS 0.1.
            length = x.square().sum(1, keepdim=True).sqrt()  # (2, 1, h, w)
            normalised = x / (length + 1e-10)
            f, g = normalised.chunk(2)  # features of the restored image and of the sharp image
            w = weights_of_relus[index]  # (1, channels, 1, 1)
            distance_of_pixels = ((f - g).square() * w).sum(1)  # (1, h, w)
            distance = distance + distance_of_pixels.mean((1, 2))
        return {"lpips": float(distance)}


# ---- Refusals --------------------------------------------------------------------------------

# The files of published weights, for the errors.
PUBLISHED_FILES = "alexnet-owt-7be5be79.pth of torchvision and alex.pth of LPIPS 0.1"


def _refuse_missing(
    in_files: dict[str, torch.Tensor], name_in_file: dict[str, str], files: Sequence[str | Path]
) -> None:
    """Raise CheckpointError if the files lack a tensor.

    in_files: name in the files -> tensor.
    name_in_file: name of a tensor here -> its name in the files.
    """
    missing = [name for name in name_in_file.values() if name not in in_files]
    if missing:
        more = ", ..." if len(missing) > 3 else ""
        raise CheckpointError(
            what=f"LPIPS weights lack {', '.join(missing[:3])}{more}",
            where=", ".join(map(str, files)),
            expected=PUBLISHED_FILES,
            do="give both files after --lpips",
        )


def _refuse_other_shapes(
    in_files: dict[str, torch.Tensor],
    name_in_file: dict[str, str],
    tensors_of_network: dict[str, torch.Tensor],
    files: Sequence[str | Path],
) -> None:
    """Raise CheckpointError if a tensor has another shape, e.g. in the LPIPS weights for VGG.

    in_files: name in the files -> tensor.
    name_in_file: name of a tensor here -> its name in the files.
    tensors_of_network: name of a tensor here -> the tensor.
    """
    for name, name_of_file in name_in_file.items():
        shape = tuple(in_files[name_of_file].shape)
        network_shape = tuple(tensors_of_network[name].shape)
        if shape != network_shape:
            raise CheckpointError(
                what=f"LPIPS weights do not fit AlexNet: {name_of_file} has the shape {shape}",
                where=", ".join(map(str, files)),
                expected=f"{network_shape}, as in {PUBLISHED_FILES}",
                do="give both files after --lpips",
            )

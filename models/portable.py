"""Weights files and the options of their network: those written by training, and the nine published networks."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from models.select_network import NETWORKS
from models.weights import load_weights, read_weights
from utils.contract import InputSpec, input_spec
from utils.errors import CheckpointError

_BIG: dict[str, Any] = {
    "upscale": 4, "depths": [8] * 7 + [4] * 6, "indep_reconsts": [11, 12], "embed_dims": [120] * 7 + [180] * 6,
    "num_heads": [6] * 13,
}  # fmt: skip
_SMALL: dict[str, Any] = {
    "upscale": 1, "img_size": [6, 192, 192], "window_size": [6, 8, 8], "depths": [8] * 7 + [4] * 4,
    "indep_reconsts": [9, 10], "embed_dims": [96] * 7 + [120] * 4, "num_heads": [6] * 11,
}  # fmt: skip
_DEBLUR: dict[str, Any] = {**_SMALL, "pa_frames": 2, "deformable_groups": 16}
_VIMEO: dict[str, Any] = {
    **_BIG, "img_size": [8, 64, 64], "window_size": [8, 8, 8], "pa_frames": 4, "deformable_groups": 16,
}  # fmt: skip

# File stem -> arguments of the network. 002 follows its released file; KAIR's option file differs.
RELEASED: dict[str, dict[str, Any]] = {
    "001_VRT_videosr_bi_REDS_6frames": {
        **_BIG, "img_size": [6, 64, 64], "window_size": [6, 8, 8], "pa_frames": 2, "deformable_groups": 12,
    },
    "002_VRT_videosr_bi_REDS_16frames": {
        **_BIG, "img_size": [16, 64, 64], "window_size": [8, 8, 8], "pa_frames": 6, "deformable_groups": 24,
    },
    "003_VRT_videosr_bi_Vimeo_7frames": _VIMEO,
    "004_VRT_videosr_bd_Vimeo_7frames": _VIMEO,
    "005_VRT_videodeblurring_DVD": _DEBLUR,
    "006_VRT_videodeblurring_GoPro": _DEBLUR,
    "007_VRT_videodeblurring_REDS": _DEBLUR,
    "008_VRT_videodenoising_DAVIS": {**_DEBLUR, "nonblind_denoising": True},
    "009_VRT_videofi_Vimeo_4frames": {
        **_SMALL, "img_size": [4, 192, 192], "window_size": [4, 8, 8], "indep_reconsts": [], "pa_frames": 0,
    },
}  # fmt: skip

# The authors' tiles (frames, side); they overlap by 2 frames and 20 pixels.
RELEASED_TILES = {
    "001": (40, 128), "002": (40, 128), "003": (32, 128), "004": (32, 128), "005": (12, 256), "006": (18, 192),
    "007": (12, 256), "008": (12, 256), "009": (0, 0),
}  # fmt: skip


def identify(weights: Mapping[str, Tensor]) -> str | None:
    """The published network whose tensors have exactly these names and shapes, or None.

    Several networks differ only in their training data; the first of them is returned.
    """
    shapes = {key: value.shape for key, value in weights.items()}
    for name, options in RELEASED.items():
        with torch.device("meta"):
            net = NETWORKS.build({"net_type": "vrt", **options}, "netG", spike_channels=0)
        if shapes == {key: value.shape for key, value in net.state_dict().items()}:
            return name
    return None


@dataclass(frozen=True)
class SavedNetwork:
    """A weights file and the network it belongs to.

    netG: options of the network. spike_channels: S. spike: options of the spike representation (None: RGB only).
    spike_data: rate, light and centre of the training spikes (see data/spike_source.py); None if unknown.
    known_from: where the options come from. released: name of the published network, or None.
    learned: `spike` as the file itself has it, where `spike` is that of an option file.
    """

    path: Path
    weights: dict[str, Tensor]
    netG: dict[str, Any]
    scale: int
    spike_channels: int
    spike: dict[str, Any] | None
    known_from: str
    spike_data: dict[str, Any] | None = None
    released: str | None = None
    learned: dict[str, Any] | None = None

    @cached_property
    def spec(self) -> InputSpec:
        """What input the network takes."""
        with torch.device("meta"):
            return input_spec(self._network())

    def _network(self) -> nn.Module:
        # The file holds the weights of SpyNet too; the file at spynet_path may no longer exist.
        netG = {**self.netG, **({"spynet_path": None} if "spynet_path" in self.netG else {})}
        return NETWORKS.build(netG, "netG", spike_channels=self.spike_channels)

    def build(self) -> nn.Module:
        """The network with its weights, in eval mode on the CPU. Raises CheckpointError if a tensor does not fit."""
        net = self._network()
        load_weights(net, self.weights, str(self.path), strict=True)
        return net.eval().requires_grad_(False)

    def options_digest(self) -> str:
        """12 hex digits of the options of the network and of the spike representation."""
        about = json.dumps([self.netG, self.scale, self.spike_channels, self.spike, self.spike_data], sort_keys=True)
        return hashlib.sha256(about.encode()).hexdigest()[:12]


def read_saved(path: str | Path, network: dict[str, Any] | None = None) -> SavedNetwork:
    """The weights in `path` (the averaged ones if there are any) and their network.

    The network is `network` (Options.portable of an option file) if given, else that of the options in the file, else
    the published one with exactly these tensors. Raises CheckpointError if the file holds no weights or the network is
    unknown.
    """
    path = Path(path)
    weights = read_weights(path, prefer="ema_state_dict", key="--weights")
    content = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    options = content.get("options") if isinstance(content, dict) else None
    if not isinstance(options, dict):
        options = None
    elif "network" in content:  # a full checkpoint
        options = content["network"]
    elif "datasets" in options:  # that of an earlier version
        section = options["datasets"].get("train") or options["datasets"].get("test") or {}
        about = {key: section.get(key) for key in ("spike", "spike_data")}
        channels = section.get("spike_channels") or 0
        options = {"scale": options["scale"], "netG": options["netG"], "spike_channels": channels, **about}
    if network is not None:
        # The weights file describes its training data; the option file may name other data, or none on this machine.
        network = {**network, "spike_data": (options or {}).get("spike_data") or network["spike_data"]}
        learned = (options or {}).get("spike")
        return SavedNetwork(path, weights, **network, known_from="the option file", learned=learned)
    if options is not None:
        return SavedNetwork(path, weights, **options, known_from="the weights file")
    name = identify(weights)
    if name is None:
        what = f"the file does not say what network its {len(weights)} tensors belong to"
        expected = "weights saved by this project, or a published VRT network, 001 to 009"
        raise CheckpointError(what, str(path), expected, "give the option file of the training: --opt FILE")
    # Networks with the same shapes differ in their training data only: the name of the file selects one.
    name = next((known for known in RELEASED if known[:4] == path.name[:4] and RELEASED[known] == RELEASED[name]), name)
    netG = NETWORKS.resolve({"net_type": "vrt", **RELEASED[name]}, "netG").plain()
    options = {"scale": netG["upscale"], "netG": netG, "spike_channels": 0, "spike": None}
    return SavedNetwork(path, weights, **options, known_from=f"the shapes of its tensors ({name})", released=name)

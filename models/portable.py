"""Weights files that say what network they belong to: written by training, read by testing and by other people."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from models.released import RELEASED, identify
from models.select_network import NETWORKS
from models.weights import load_weights, read_weights
from utils.contract import InputSpec, input_spec
from utils.errors import CheckpointError
from utils.options.models import Options


@dataclass(frozen=True)
class SavedNetwork:
    """A weights file and the network it belongs to.

    netG: its options. spike_channels, spike: S, and the section that says how spikes become channels (None: RGB only).
    spike_data: rate, light and centre of the spikes in training (see data.spike_source); None where unknown.
    known_from: why we believe that this is its network. released: name of the published network, or None.
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

    @cached_property
    def spec(self) -> InputSpec:
        """What the network needs of its input."""
        with torch.device("meta"):
            return input_spec(self._network())

    def _network(self) -> nn.Module:
        # The file holds the flow network as well; spynet_path may be long gone.
        netG = {**self.netG, **({"spynet_path": None} if "spynet_path" in self.netG else {})}
        return NETWORKS.build(netG, "netG", spike_channels=self.spike_channels)

    def build(self) -> nn.Module:
        """The network with its weights, in eval mode on the CPU. Raises CheckpointError where a tensor does not fit."""
        net = self._network()
        load_weights(net, self.weights, str(self.path), strict=True)
        return net.eval().requires_grad_(False)

    def sha256(self) -> str:
        """Digest of the file, to tell results of different weights apart."""
        digest = hashlib.sha256()
        with open(self.path, "rb") as file:
            while block := file.read(2**20):
                digest.update(block)
        return digest.hexdigest()

    def options_digest(self) -> str:
        """12 hex digits that differ where the network or the representation of the spikes does."""
        about = json.dumps([self.netG, self.scale, self.spike_channels, self.spike, self.spike_data], sort_keys=True)
        return hashlib.sha256(about.encode()).hexdigest()[:12]


def portable_options(opt: Options) -> dict[str, Any]:
    """What must go along with the weights: plain types, no paths of the training data."""
    section = opt.datasets.train or opt.datasets.test
    spike = section.spike.plain() if hasattr(section, "spike") else None
    return {
        "scale": opt.scale, "netG": opt.netG.plain(), "spike_channels": opt.spike_channels, "spike": spike,
        "spike_data": section.spike_data if section else None,
    }  # fmt: skip


def _of_saved_options(saved: dict[str, Any]) -> dict[str, Any]:
    """The same from the options that a full checkpoint of before held: the data's section had it."""
    section = saved["datasets"].get("train") or saved["datasets"].get("test") or {}
    about = {key: section.get(key) for key in ("spike", "spike_data")}
    return {
        "scale": saved["scale"], "netG": saved["netG"], "spike_channels": section.get("spike_channels") or 0, **about
    }  # fmt: skip


def read_saved(path: str | Path, opt: Options | None = None) -> SavedNetwork:
    """The weights in `path`, the averaged ones where there are any, and their network.

    The network is the one of `opt` (resolved options) where given, else the one the file names, else the published
    one with exactly these tensors. Raises CheckpointError for a foreign file and for an unknown network.
    """
    path = Path(path)
    weights = read_weights(path, prefer="ema_state_dict")
    content = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    options = content.get("options") if isinstance(content, dict) else None
    options = options if isinstance(options, dict) else None
    if options is not None and "datasets" in options:
        options = content.get("network") or _of_saved_options(options)
    if opt is not None:
        asked = portable_options(opt)
        # The data that these weights were trained on need not be where the option file says, or on this machine.
        asked["spike_data"] = (options or {}).get("spike_data") or asked["spike_data"]
        return _saved(path, weights, asked, "the option file")
    if options is not None:
        return _saved(path, weights, options, "the weights file")
    name = identify(weights)
    if name is None:
        raise CheckpointError(
            f"the file does not say what network its {len(weights)} tensors belong to", str(path),
            "weights saved by this project, or one of the published VRT networks 001 to 009",
            "give the option file they were trained with: --opt FILE",
        )  # fmt: skip
    # Networks with the same shapes differ in their training data only: there the file's name is the better guide.
    name = next((known for known in RELEASED if known[:4] == path.name[:4] and RELEASED[known] == RELEASED[name]), name)
    netG = NETWORKS.resolve({"net_type": "vrt", **RELEASED[name]}, "netG").plain()
    options = {"scale": netG["upscale"], "netG": netG, "spike_channels": 0, "spike": None}
    return _saved(path, weights, options, f"the shapes of its tensors ({name})", name)


def _saved(
    path: Path, weights: dict[str, Tensor], options: dict[str, Any], known_from: str, released: str | None = None
) -> SavedNetwork:
    return SavedNetwork(path, weights, **options, known_from=known_from, released=released)

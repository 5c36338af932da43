"""Weights files that contain the options of their network: written by training, read by testing."""

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
from utils.files import sha256_of
from utils.options.models import Options


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

    def sha256(self) -> str:
        """SHA-256 of the file, to distinguish the results of different weights."""
        return sha256_of(self.path)

    def options_digest(self) -> str:
        """12 hex digits of the options of the network and of the spike representation."""
        about = json.dumps([self.netG, self.scale, self.spike_channels, self.spike, self.spike_data], sort_keys=True)
        return hashlib.sha256(about.encode()).hexdigest()[:12]


def portable_options(opt: Options) -> dict[str, Any]:
    """The options that a weights file contains: plain types, no paths of the training data."""
    section = opt.datasets.train or opt.datasets.test
    spike = section.spike.plain() if hasattr(section, "spike") else None
    return {
        "scale": opt.scale, "netG": opt.netG.plain(), "spike_channels": opt.spike_channels, "spike": spike,
        "spike_data": section.spike_data if section else None,
    }  # fmt: skip


def _from_old_checkpoint(saved: dict[str, Any]) -> dict[str, Any]:
    """`portable_options` from the options in a checkpoint of an earlier version, which kept them under datasets."""
    section = saved["datasets"].get("train") or saved["datasets"].get("test") or {}
    about = {key: section.get(key) for key in ("spike", "spike_data")}
    return {
        "scale": saved["scale"], "netG": saved["netG"], "spike_channels": section.get("spike_channels") or 0, **about
    }  # fmt: skip


def read_saved(path: str | Path, network: dict[str, Any] | None = None) -> SavedNetwork:
    """The weights in `path` (the averaged ones if there are any) and their network.

    The network is `network` (portable_options of an option file) if given, else that of the options in the file, else
    the published one with exactly these tensors. Raises CheckpointError if the file holds no weights or the network is
    unknown.
    """
    path = Path(path)
    weights = read_weights(path, prefer="ema_state_dict", key="--weights")
    content = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    options = content.get("options") if isinstance(content, dict) else None
    if not isinstance(options, dict):
        options = None
    elif "datasets" in options:  # a full checkpoint
        options = content.get("network") or _from_old_checkpoint(options)
    if network is not None:
        # The weights file describes its training data; the option file may name other data, or none on this machine.
        network = {**network, "spike_data": (options or {}).get("spike_data") or network["spike_data"]}
        learned = (options or {}).get("spike")
        return SavedNetwork(path, weights, **network, known_from="the option file", learned=learned)
    if options is not None:
        return SavedNetwork(path, weights, **options, known_from="the weights file")
    name = identify(weights)
    if name is None:
        raise CheckpointError(
            f"the file does not say what network its {len(weights)} tensors belong to", str(path),
            "weights saved by this project, or one of the published VRT networks 001 to 009",
            "give the option file of the training: --opt FILE",
        )  # fmt: skip
    # Networks with the same shapes differ in their training data only: the name of the file selects one.
    name = next((known for known in RELEASED if known[:4] == path.name[:4] and RELEASED[known] == RELEASED[name]), name)
    netG = NETWORKS.resolve({"net_type": "vrt", **RELEASED[name]}, "netG").plain()
    options = {"scale": netG["upscale"], "netG": netG, "spike_channels": 0, "spike": None}
    return SavedNetwork(path, weights, **options, known_from=f"the shapes of its tensors ({name})", released=name)

"""A weights file together with its network: `SavedNetwork` builds the network with its weights.

portable.py makes a `SavedNetwork` from the tensors of a file and the options of the network, and
says where the options come from. Tests, notebooks and hubconf.py build the network.

What must stay: options from a weights file are checked before a network is built of them
(test_options_of_a_larger_network_than_the_weights_are_refused_unbuilt). Without the check, a small
file could ask for a network that fills the memory.

Tests: tests/parts/models/test_weights.py, test_hostile_weights.py
"""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from models.loading import compare_weights, load_weights
from models.select_network import NETWORKS
from models.untrusted_weights import refuse_larger, refuse_repeated_numbers
from utils.contract import InputSpec, input_spec
from utils.errors import CheckpointError, OptionError

# The value of SavedNetwork.known_from for a network that its file describes.
FROM_FILE = "the weights file"


@dataclass(frozen=True)
class SavedNetwork:
    """A weights file and the network that its tensors belong to."""

    # The weights file, and its tensors by name.
    path: Path
    weights: dict[str, Tensor]
    # Options of the network, with the keys of the section netG of an option file.
    netG: dict[str, Any]
    # Size of the output / size of the input.
    scale: int
    # Number of spike channels per frame.
    spike_channels: int
    # Options of the spike representation, or None for a network without spikes.
    spike: dict[str, Any] | None
    # Where the options come from, in words, for the protocol of a test. The text FROM_FILE also
    # means that the options are not trusted (`network`).
    known_from: str
    # Properties of the training spikes, or None if they are not known. E.g. the rate (spikes per
    # plane at full light), the light ("linear" or "display") and the center (the plane of the sharp
    # frame).
    spike_data: dict[str, Any] | None = None
    # Name of the published network, e.g. "006_VRT_videodeblurring_GoPro", or None.
    released: str | None = None

    @cached_property
    def spec(self) -> InputSpec:
        """Return what the network requires of its input."""
        return input_spec(self.empty_network)

    @cached_property
    def empty_network(self) -> nn.Module:
        """Return the network on the device "meta". Its tensors have shapes, but take no memory.

        The network is built once, for all questions that need no numbers. Do not modify the
        network.
        """
        with torch.device("meta"):
            return self.network()

    def network(self) -> nn.Module:
        """Build the network without its weights.

        Raises CheckpointError if the options in the file make no network, or if their network needs
        more tensors or numbers than the file has.
        """
        netG = dict(self.netG)
        if "spynet_path" in netG:
            # The weights of the flow network are in this file, too, and the file that spynet_path
            # names may no longer exist.
            netG["spynet_path"] = None
        # Options that do not come from the weights file are trusted. An error in them is an
        # OptionError about the user's option file.
        if self.known_from != FROM_FILE:
            return NETWORKS.build(netG, "netG", spike_channels=self.spike_channels)
        # From here, the options come from a file that anybody may have made. `refuse_larger` knows
        # only the options of our two networks. A third network of ours needs rules in
        # `refuse_larger`, and its name in the next line.
        if netG.get("net_type") in ("vrt", "fusion"):
            refuse_larger(netG, self.spike_channels, self.weights, str(self.path))
        try:
            return NETWORKS.build(netG, "netG", spike_channels=self.spike_channels)
        except OptionError as e:
            raise CheckpointError(
                what=f"the options in the file make no network: {e.what}",
                where=str(self.path),
                expected=e.expected,
                do="take the file as main_train_vrt.py wrote it, or give --opt FILE",
            ) from e

    def build(self) -> nn.Module:
        """Return the network with its weights, in eval mode on the CPU.

        Raises CheckpointError if a tensor does not fit.
        """
        # A tensor that repeats one number is small in the file, and may be huge in the network.
        refuse_repeated_numbers(self.weights, self.path)
        # Refuse tensors that do not fit before a network with memory is built. The empty network
        # takes no memory, however large it is.
        compare_weights(self.empty_network, self.weights, str(self.path), strict=True)
        net = self.network()
        load_weights(net, self.weights, str(self.path), strict=True)
        return net.eval().requires_grad_(False)

"""Recognise the nine published VRT networks by their tensors, and fetch their files.

A published file does not describe its network. So its tensors are compared with the names and
shapes of each published network. These networks are built on the device "meta", without memory.

`file_of` turns a path or a name such as "vrt/006" into the path of the file, which released.py
downloads if it is missing. `published_network` takes the tensors of a file, and returns a
`SavedNetwork`. portable.py calls both, and pretrained.py calls `file_of`. released_networks.py has
the arguments of the networks.

What must stay: a downloaded file gets its final name only after its size and its tensors were
checked (tests/parts/models/test_released.py). Free to change: the order in which networks of the
same shapes are tried.

Tests: tests/parts/models/test_released.py, test_weights.py
"""

from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from models import released
from models.released_networks import RELEASED
from models.saved_network import SavedNetwork
from models.select_network import NETWORKS
from models.untrusted_weights import bytes_of
from models.weights_file import read_weights
from utils.errors import CheckpointError
from utils.words import counted


def file_of(weights: str | Path) -> Path:
    """Return the path of weights. For a name such as "vrt/006", fetch the published file once.

    Raises CheckpointError if there are no published weights of this name, or if they cannot be
    fetched.
    """
    # A download gets its final name only if it is not too large (`size_limit`) and holds the right
    # tensors (`check`).
    return released.local_file(
        str(weights), released=RELEASED, size_limit=_most_bytes, check=_refuse_other_tensors
    )


def published_network(path: Path, weights: dict[str, Tensor]) -> SavedNetwork | None:
    """Return the published network that has tensors of the same names and shapes, or None.

    Some published networks have the same shapes, and differ only in their training data. So first
    try the network whose number is the beginning of the file's name.
    """
    number = path.name[:4]  # includes the underscore, e.g. "006_"
    with_same_number = [name for name in sorted(RELEASED) if name[:4] == number]
    others = [name for name in sorted(RELEASED) if name[:4] != number]
    shapes = _shapes_of(weights)
    for name in with_same_number + others:
        if shapes == _shapes_of_released(name):
            return _network_of_release(name, path, weights)
    return None


def _network_of_release(name: str, path: Path, weights: dict[str, Tensor]) -> SavedNetwork:
    """Return `weights`, from the file `path`, as the weights of the published network `name`."""
    # RELEASED has some arguments. `resolve` adds the defaults of all others.
    netG = NETWORKS.resolve({"net_type": "vrt", **RELEASED[name]}, "netG").plain()
    return SavedNetwork(
        path,
        weights,
        netG=netG,
        scale=netG["upscale"],
        spike_channels=0,
        spike=None,
        known_from=f"the shapes of its tensors ({name})",
        released=name,
    )


def _network_without_file(name: str) -> SavedNetwork:
    """Return the published network `name` without weights, to ask only for names and shapes."""
    return _network_of_release(name, Path(name), weights={})  # no file of this path is read


def _tensors_of(saved: SavedNetwork) -> dict[str, Tensor]:
    """Return the state dict of a network on the device "meta": only names and shapes."""
    return saved.empty_network.state_dict()


def _shapes_of(tensors: dict[str, Tensor]) -> dict[str, torch.Size]:
    """Return the shape of each tensor, by name."""
    return {name: tensor.shape for name, tensor in tensors.items()}


@cache
def _shapes_of_released(name: str) -> dict[str, torch.Size]:
    """Return the shape of each tensor of the published network `name`, by name of the tensor.

    To find the shapes, the network is built. Building takes a fifth of a second, so the result is
    cached. Do not modify the result.
    """
    return _shapes_of(_tensors_of(_network_without_file(name)))


def _most_bytes(name: str) -> int:
    """Return the largest size, in bytes, of a file with the published network `name`.

    The limit is 1.1 * (size of the tensors) + 5 MB. The additional bytes are for the names of the
    tensors, and were chosen by hand. A larger file is not the right one, and must not fill the
    disk.
    """
    tensors = _tensors_of(_network_without_file(name))
    return int(1.1 * bytes_of(tensors.values())) + 5_000_000


def _refuse_other_tensors(path: Path, name: str) -> None:
    """Raise CheckpointError if a file does not hold the tensors of the published network `name`."""
    weights = read_weights(path)
    released_shapes = _shapes_of_released(name)
    if _shapes_of(weights) != released_shapes:
        missing = [key for key in released_shapes if key not in weights]
        first_missing = ", ".join(missing[:3]) if missing else "none"
        raise CheckpointError(
            what=f"what was downloaded is not {name}: {counted(len(weights), 'tensor')}, "
            f"{len(released_shapes) - len(missing)} of them with names of that network",
            where=str(path),
            expected=f"its {len(released_shapes)} tensors; missing: {first_missing}",
            do=f"look at the address; unset {released.MIRROR}, or get the file by hand",
        )

"""Give the flow network SpyNet its weights at the start of a training: option netG.spynet_path.

    start_with_zero_flow    without a file: the flow is zero at first, and is learned
    load_flow               from a file, or from the weights that this project ships

What must stay: a file that is missing or holds other tensors is refused, because a network without
the wanted flow would train without an error. tests/parts/models/test_spynet.py and
test_weights.py notice this. Free to change: the texts.
"""

import logging
from pathlib import Path
from typing import Any

from torch import nn

from models.vrt.spynet import SpyNet
from models.weights_file import read_weights
from utils import utils_dist
from utils.errors import PUBLISHED_ADDRESS, OptionError

logger = logging.getLogger(__name__)

# PUBLISHED_FLOW is the published file. The scripts of KAIR, the project in which VRT was published,
# download it to this path. OWN_FLOW has the flow weights that this project ships. OWN_FLOW is used
# if the published file is missing.
PUBLISHED_FLOW = "model_zoo/vrt/spynet_sintel_final-3d2a1287.pth"
OWN_FLOW = Path(__file__).parent / "vrt/spynet_scenes.pth"


def start_with_zero_flow(spynet: SpyNet) -> None:
    """Set the last layer of each level of SpyNet to zero, so that the flow is zero at first.

    A random flow would align pixels that do not belong together.
    """
    levels: Any = spynet.basic_module
    for level in levels:
        last_layer = level.basic_module[-1]
        nn.init.zeros_(last_layer.weight)
        nn.init.zeros_(last_layer.bias)


def load_flow(spynet: SpyNet, path: str) -> None:
    """Load the weights of SpyNet from the file `path`.

    If `path` is the published file (PUBLISHED_FLOW) and is missing, the weights that this project
    ships (OWN_FLOW) are loaded, with a warning.

    Raises OptionError if any other file is missing, or if the file does not hold the tensors of
    SpyNet.
    """
    file = _file_to_load(path)
    # On the device "meta", a tensor has a shape but no memory, so there are no weights to fill.
    # `check_options` (select_network.py) builds such a network, only to check the options.
    if next(spynet.parameters()).is_meta:
        return
    # `file` and `path` differ only if the shipped weights take the place of the published weights.
    if file != path and utils_dist.is_main_process():
        logger.warning(
            "netG.spynet_path: no file %s; models/vrt/%s of this project stands in for "
            "it (docs/model.md). "
            "The published weights: %s", PUBLISHED_FLOW, OWN_FLOW.name, PUBLISHED_ADDRESS,
        )  # fmt: skip
    _fill(spynet, file)


def _file_to_load(path: str) -> str:
    """Return `path`, or OWN_FLOW if `path` is the published file and is missing.

    Raises OptionError if any other file is missing.
    """
    if Path(path).is_file():
        return path
    if path == PUBLISHED_FLOW:
        return str(OWN_FLOW)
    raise OptionError(
        what=f"there is no file {path}",
        where="netG.spynet_path",
        expected=f"SpyNet weights: the published ones ({PUBLISHED_ADDRESS}) or "
        f"models/vrt/{OWN_FLOW.name}",
        do="correct the path, or set it to null to start from zero flow",
    )


def _fill(spynet: SpyNet, path: str) -> None:
    """Load SpyNet's weights. Raises OptionError if the file lacks them."""
    weights = read_weights(path, key="netG.spynet_path")
    # Some files lack the two constants of the normalisation. The network has their values.
    weights.setdefault("mean", spynet.mean)
    weights.setdefault("std", spynet.std)
    try:
        spynet.load_state_dict(weights)
    except RuntimeError as e:
        raise OptionError(
            what=f"{path} does not hold SpyNet weights",
            where="netG.spynet_path",
            expected="the 60 tensors basic_module.{0..5}.basic_module.{0,2,4,6,8}.{weight,bias}",
            do="choose another file",
        ) from e

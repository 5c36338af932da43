"""define_Model builds the model of an option file: ModelVRT, which trains any network."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from models.losses import LOSSES
from models.model_vrt import ModelVRT
from models.select_network import NETWORKS
from utils.options.load import read_options
from utils.options.models import Options


def define_Model(opt: Options | Mapping[str, Any], spike_channels: int | None = None) -> ModelVRT:
    """The model of the options; for notebooks also of a mapping in KAIR's form, completed with all defaults.

    spike_channels: S of the batches; None: S of the options' datasets (0 for a mapping: its datasets are not read).
    Raises OptionError, as for an option file.
    """
    if not isinstance(opt, Options):
        values = {key: value for key, value in opt.items() if key != "datasets"}
        opt = read_options({"task": "notebook", **values}, {"netG": NETWORKS, "train": LOSSES})
    return ModelVRT(opt, spike_channels)

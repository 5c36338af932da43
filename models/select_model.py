"""`model` in the option file -> the class that trains it."""

from __future__ import annotations

from typing import Any

from models.model_vrt import ModelVRT
from utils.utils_errors import OptionError

MODELS = {"vrt": ModelVRT}


def define_Model(opt: dict[str, Any]) -> ModelVRT:
    if opt["model"] not in MODELS:
        raise OptionError(f'model is "{opt["model"]}"', str(opt["opt_path"]), f"one of {sorted(MODELS)}", 'write "vrt"')
    return MODELS[opt["model"]](opt)

"""What a checkpoint must hold before a run resumes from it: names, types and ranges."""

import math
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator
from torch import Tensor

from utils.errors import CheckpointError

# More steps than any run takes, and still exact in every number that we compute from them.
MOST = 2**40
Count = Annotated[int, Field(ge=0, le=MOST)]
# The parts that training restores -> whether an older or another run may lack them.
TABLES = {
    "options": False, "model_state_dict": False, "optimizer": False, "ema_state_dict": True,
    "scaler": True,
}  # fmt: skip
DO = "go on from another checkpoint of this run, such as checkpoint_latest_previous.pth"


class Saved(BaseModel):
    """A part of a checkpoint. Keys that newer versions add are left alone."""

    model_config = ConfigDict(strict=True, extra="ignore", arbitrary_types_allowed=True)


class Order(Saved):
    samples: Annotated[int, Field(ge=1, le=MOST)]
    sample_list: str
    seed: int | None
    steps: Annotated[int, Field(ge=1, le=MOST)]


class Position(Saved):
    """The position of a run."""

    step: Count
    epoch: Count
    batch: Count
    best_psnr: float | None = None
    best_step: Count = 0
    scored_on: str | None = None
    validated: Count = 0
    validation_stops: Count = 0
    saved: Annotated[int, Field(ge=-1, le=MOST)] = -1
    wandb_id: str | None = None
    world_size: Annotated[int, Field(ge=1, le=MOST)] = 1
    nonfinite_in_a_row: Count = 0
    order: Order | None = None

    @field_validator("best_psnr")
    @classmethod
    def _is_a_number(cls, value: float | None) -> float | None:
        if value is not None and math.isnan(value):
            raise ValueError("NaN")
        return value


def refuse_wrong_types(state: dict[str, Any], path: Path) -> None:
    """Raise CheckpointError if `state`, read from `path`, is not what a run saves.

    Names the key.
    """
    for key, may_be_missing in TABLES.items():
        value = state.get(key)
        if not isinstance(value, dict) and not (may_be_missing and value is None):
            raise _wrong(path, key, value, "a table")
    for name, value in state["model_state_dict"].items():
        if not isinstance(value, Tensor):
            raise _wrong(path, f"model_state_dict[{name!r}]", value, "a tensor")
    try:
        Position.model_validate({key: state[key] for key in Position.model_fields if key in state})
    except ValidationError as e:
        first = e.errors()[0]
        key = ".".join(map(str, first["loc"]))
        raise _wrong(path, key, first["input"], first["msg"].lower()) from None


def _wrong(path: Path, key: str, value: Any, expected: str) -> CheckpointError:
    shown = repr(value)
    if len(shown) > 60:
        shown = f"{shown[:57]}..."
    what = f"the checkpoint holds what no run saves: {key} is {shown}"
    return CheckpointError(what, str(path), f"{key}: {expected}", DO)

"""Check the names, types and ranges in a checkpoint before a run resumes from it.

A checkpoint may be damaged, or another program may have written it. `refuse_wrong_types` finds this
before the run uses the checkpoint. `Experiment.save` (experiment.py) writes these keys:

    keys                                              their values come from
    "step", "epoch", "batch", "best_psnr", ...        `Progress`, position.py
    "order": {"samples": 12000, ...}                  `DataOrder`, position.py
    "world_size", "version", "options"                `Experiment`, experiment.py
    "model_state_dict", "ema_state_dict", "scaler",   `training_state`, models/model_state.py
    "optimizer", "nonfinite_in_a_row", "network"

What must stay: a new field of `Progress` or `DataOrder` (utils.run.position) needs a line here,
with a default, because checkpoints of earlier versions lack the field. An unknown key is not an
error, because a newer version may have written it
(test_keys_that_a_newer_version_adds_are_left_alone).

Tests: tests/parts/utils/test_saved_state.py.
"""

import math
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator
from torch import Tensor

from utils.errors import CheckpointError

# The largest count that a checkpoint may hold. With a thousand steps per second, a run would need
# 35 years to reach it. A float holds every whole number up to 2^53 exactly, so also 2^40.
LARGEST_COUNT = 2**40
# `ge` means "greater or equal", `le` "less or equal".
Count = Annotated[int, Field(ge=0, le=LARGEST_COUNT)]

# The dicts that training restores: key -> whether a checkpoint may lack the dict. A dict may be
# missing if an older version did not write it, or if not every run needs it.
MAY_BE_MISSING = {
    "options": False,
    "model_state_dict": False,
    "optimizer": False,
    "ema_state_dict": True,  # moving averages of the weights
    "scaler": True,  # the loss scale of float16
}
# The advice in the errors about a wrong checkpoint.
TAKE_ANOTHER = "go on from another checkpoint of this run, such as checkpoint_latest_previous.pth"


class Saved(BaseModel):
    """A part of a checkpoint, checked by pydantic.

    With strict=True a text such as "5" is not accepted as a number. With extra="ignore" the keys
    that newer versions add are ignored.
    """

    model_config = ConfigDict(strict=True, extra="ignore")


class Order(Saved):
    """The types of `position.DataOrder`: the order of the training data."""

    samples: Annotated[int, Field(ge=1, le=LARGEST_COUNT)]  # number of samples in an epoch
    # Digest of `TrainClips.sample_names`: properties of clips, spike settings, names of samples.
    sample_list: str
    seed: int | None  # of the shuffling; None if the samples are not shuffled
    steps: Annotated[int, Field(ge=1, le=LARGEST_COUNT)]  # number of steps in an epoch


class Position(Saved):
    """The types of `position.Progress`, and of three other keys: the position of a run.

    A checkpoint has these keys side by side with other keys, e.g. "version" and "optimizer".
    Fields with a default are missing in checkpoints of earlier versions. The default only says that
    a field may be missing. A resumed run takes the value of such a field from the defaults of
    `Progress` (`restore_progress`).
    """

    step: Count  # number of optimizer steps done
    epoch: Count  # number of epochs done
    batch: Count  # number of steps done in the current epoch
    best_psnr: float | None = None  # in dB
    best_step: Count = 0  # step of best_psnr
    scored_on: str | None = None  # digest of the test clips of best_psnr
    validated: Count = 0  # step of the last complete validation
    validation_stops: Count = 0  # how many times a signal has ended the validation at `step`
    # Step of the newest checkpoint_latest, or -1 if the run has none. (0 would mean that there is a
    # checkpoint of step 0.)
    saved: Annotated[int, Field(ge=-1, le=LARGEST_COUNT)] = -1
    wandb_id: str | None = None  # id of the run at W&B
    # The three other keys:
    world_size: Annotated[int, Field(ge=1, le=LARGEST_COUNT)] = 1  # number of ranks
    nonfinite_in_a_row: Count = 0  # number of skipped steps in a row
    order: Order | None = None  # the order of the data

    @field_validator("best_psnr")
    @classmethod
    def _is_a_number(cls, value: float | None) -> float | None:
        """Refuse NaN, because no later score would be better than NaN."""
        if value is not None and math.isnan(value):
            raise ValueError("NaN")
        return value


def refuse_wrong_types(state: dict[str, Any], path: Path) -> None:
    """Raise CheckpointError if `state`, read from `path`, is not what a run saves.

    The error names the first key that is wrong.
    """
    for key, may_be_missing in MAY_BE_MISSING.items():
        value = state.get(key)
        if value is None and may_be_missing:
            continue
        if not isinstance(value, dict):
            raise _wrong(path, key, value, expected="a table")
    for key in ("model_state_dict", "ema_state_dict"):
        tensors = state.get(key) or {}  # an optional dict may be missing, or None
        for name, value in tensors.items():
            if not isinstance(value, Tensor):
                raise _wrong(path, f"{key}[{name!r}]", value, expected="a tensor")

    # Give pydantic only the keys of the position. If a key is missing, its error prints the whole
    # dict, which would be all the weights.
    position = {}
    for key in Position.model_fields:
        if key in state:
            position[key] = state[key]
    try:
        Position.model_validate(position)
    except ValidationError as e:
        first_error = e.errors()[0]
        key = ".".join(map(str, first_error["loc"]))  # e.g. "order.samples"
        expected = first_error["msg"].lower()
        raise _wrong(path, key, first_error["input"], expected) from None


def _wrong(path: Path, key: str, value: Any, expected: str) -> CheckpointError:
    """Return the error of a wrong value.

    path: the file of the checkpoint.
    key: key of the value, e.g. "order.samples".
    expected: what a run saves there, e.g. "a table".
    """
    # A value may be a list of any length: 60 characters are enough to recognise it.
    shown = repr(value)
    if len(shown) > 60:
        shown = f"{shown[:57]}..."
    return CheckpointError(
        what=f"the checkpoint holds something that no run saves: {key} is {shown}",
        where=str(path),
        expected=f"{key}: {expected}",
        do=TAKE_ANOTHER,
    )

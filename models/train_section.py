"""The section `train`, with the keys of the registered schedules and optimizers.

A schedule or an optimizer that a user adds may take options that `TrainOptions` does not have, e.g.
`G_linear_steps`. `TRAIN` is `TrainOptions` with these keys added, so an option file may set them.
The registry of losses (models/losses.py) adds the parameters of the chosen loss to `TRAIN`.

What must stay: the keys of `TrainOptions`, with their defaults. A new key must have a default that
changes nothing, because option files of earlier versions lack it.

Tests: tests/stories/test_extending.py
"""

import inspect
from collections.abc import Callable
from typing import Any, get_type_hints

from pydantic import create_model
from pydantic.fields import FieldInfo

from models.optim import OPTIMIZERS
from models.schedules import SCHEDULES
from utils.options.registry import literal_of
from utils.options.train_options import TrainOptions


def train_section() -> type[TrainOptions]:
    """Return `TrainOptions` with the new keys of the registered schedules and optimizers."""
    # Key -> (annotation, default), as pydantic's create_model takes them.
    fields: dict[str, Any] = {}
    # `rate` and `build` are the functions of a schedule and of an optimizer. `keys` are their
    # parameters that are options.
    for schedule in SCHEDULES.values():
        fields |= _new_keys(schedule.rate, schedule.keys)
    for optimizer in OPTIMIZERS.values():
        fields |= _new_keys(optimizer.build, optimizer.keys)
    # The next two options take a registered name. If a file has another name, the error lists the
    # registered names.
    fields["G_scheduler_type"] = _choice("G_scheduler_type", tuple(SCHEDULES))
    fields["G_optimizer_type"] = _choice("G_optimizer_type", tuple(OPTIMIZERS))
    return create_model("TrainOptions", __base__=TrainOptions, **fields)


def _new_keys(function: Callable[..., Any], keys: tuple[str, ...]) -> dict[str, Any]:
    """Return the parameters of a function that `TrainOptions` lacks, {key: (annotation, default)}.

    E.g. {"G_linear_steps": (int, 300_000)} for a schedule with this parameter.
    keys: names of the parameters that are options.
    """
    # include_extras: a hint Annotated[int, Field(ge=1)] keeps its limit
    hints = get_type_hints(function, include_extras=True)
    parameters = inspect.signature(function).parameters
    new_keys = {}
    for key in keys:
        if key not in TrainOptions.model_fields:
            new_keys[key] = (hints[key], _default_of(parameters[key]))
    return new_keys


def _choice(key: str, names: tuple[str, ...]) -> tuple[Any, FieldInfo]:
    """Return the field of an option whose value is one of `names`.

    Default and description stay as in `TrainOptions`.
    """
    field = TrainOptions.model_fields[key]
    one_of_names = literal_of(*names)  # the type Literal["adam", "adamw", ...]
    return one_of_names, FieldInfo(default=field.default, description=field.description)


def _default_of(parameter: inspect.Parameter) -> Any:
    """Return the default of a parameter in pydantic's form. `...` marks a required key."""
    is_required = parameter.default is inspect.Parameter.empty
    return ... if is_required else parameter.default


TRAIN = train_section()

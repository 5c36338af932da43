"""The network on a machine without pydantic: stand-ins that hold options but check none.

A machine that is lent for an hour often has torch and Triton, and no network to install the rest. Only programs that
build the network from options in code use this; what reads an option file needs the real package.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


class FieldInfo:
    """A field of a model: its default (... if it has none), and what `Annotated` adds to its type."""

    def __init__(self, default: Any = ..., metadata: tuple[Any, ...] = ()) -> None:
        self.default, self.metadata = default, metadata

    def is_required(self) -> bool:
        return self.default is ...


class BaseModel:
    """Named values with defaults."""

    model_fields: dict[str, FieldInfo] = {}  # noqa: RUF012 - replaced by create_model, never modified

    def __init__(self, **values: Any) -> None:
        for name, field in self.model_fields.items():
            setattr(self, name, values.get(name, field.default))


def create_model(name: str, __base__: tuple[type, ...], **fields: tuple[Any, Any]) -> type:
    known = {key: FieldInfo(default, getattr(kind, "__metadata__", ())) for key, (kind, default) in fields.items()}
    return type(name, __base__, {"model_fields": known})


def stand_in_for_pydantic() -> bool:
    """Put the stand-ins in the place of pydantic, if this machine has none. Returns whether it did."""
    try:
        import pydantic  # noqa: F401
    except ImportError:
        pass
    else:
        return False
    package, fields, core = ModuleType("pydantic"), ModuleType("pydantic.fields"), ModuleType("pydantic_core")
    vars(package).update(
        BaseModel=BaseModel, create_model=create_model, ConfigDict=dict, ValidationError=ValueError,
        Field=lambda *args, **options: FieldInfo(*args[:1]),
    )  # fmt: skip
    vars(fields).update(FieldInfo=FieldInfo)
    vars(core).update(ErrorDetails=dict)
    sys.modules |= {"pydantic": package, "pydantic.fields": fields, "pydantic_core": core}
    return True

"""A group of options: a frozen pydantic model, read from plain values with errors that name key and nearest key."""

from __future__ import annotations

import difflib
import re
import types
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from utils.errors import OptionError

# What other programs, and the flags of the command line, call some options.
SHORT_FLAGS = {
    "batch_size": "datasets.train.dataloader_batch_size",
    "num_workers": "datasets.train.dataloader_num_workers",
    "epochs": "train.epochs",
    "learning_rate": "train.G_optimizer_lr",
}
OTHER_NAMES = SHORT_FLAGS | {"lr": SHORT_FLAGS["learning_rate"], "workers": SHORT_FLAGS["num_workers"]}
# The last words of a key say that its value is a secret: "wandb_api_key", but not "token_dim".
_NAME = "(?i:(?:api|access|secret)_?keys?|(?:auth)?tokens?|passwords?|passwd|secrets?)"
SECRET = re.compile(rf"(?:^|[\W_\d]|[a-z](?=[A-Z])){_NAME}$")
# In text that is no JSON: "token: value", or "--token value" on a command line.
_IN_TEXT = re.compile(
    rf"""(?<![^\W_])({_NAME}["']?\s*[:=]\s*|--(?:[\w-]*[_-])?{_NAME}[ =])("(?:\\.|[^"\\])*"?|'[^']*'?|[^\s,;&}}\]]+)"""
)


class Section(BaseModel):
    """A group of options: no unknown key, no conversion between types, no change after reading."""

    model_config = ConfigDict(
        strict=True, extra="forbid", frozen=True, arbitrary_types_allowed=True, allow_inf_nan=False
    )
    constructor: ClassVar[Callable[..., Any] | None] = None  # of the registered part, where the section names one

    def plain(self) -> dict[str, Any]:
        """The section as an option file holds it: plain types, nested sections as objects."""
        return self.model_dump(mode="json", serialize_as_any=True)


S = TypeVar("S", bound=Section)


def redact(value: Any, key: str = "", shown: str | None = None) -> Any:
    """A copy of `value` of option `key` in which `shown` stands for each string that is a secret, however deep."""
    if isinstance(value, Mapping):
        return {k: redact(v, key if SECRET.search(key) else str(k), shown) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [redact(v, key, shown) for v in value]
    if SECRET.search(key) and isinstance(value, str if shown is None else (str, int, float)):
        return shown  # in a message also a number, which may be a key without its quotes
    return _IN_TEXT.sub(rf"\1{shown}", value) if shown is not None and isinstance(value, str) else value


def nearest(name: str, valid: Collection[str]) -> str:
    """' (the nearest is X)' for an error message, or '' where nothing resembles `name`."""
    found = difflib.get_close_matches(name, list(valid), n=1, cutoff=0.6)
    return f"; the nearest is {found[0]}" if found else ""


def read_section(model: type[S], values: Mapping[str, Any], where: str, kind: str = "") -> S:
    """`values` as an instance of `model`, completed with its defaults.

    where: dotted place of the section, "" for the whole file. kind: what the section describes, for the message.
    Raises OptionError for the first wrong key; it names the others too.
    """
    try:
        return model(**values)
    except ValidationError as e:
        # A misspelt key first: what is missing may be just that.
        found = sorted(e.errors(), key=lambda error: error["type"] != "extra_forbidden")
    raise joined([_error_of(error, model, values, where, kind) for error in found])


def joined(errors: Sequence[OptionError]) -> OptionError:
    """The first error, with the keys of the others in what to do; `found` has each of them."""
    first, *others = errors
    keys = dict.fromkeys(e.where for e in others if e.where != first.where)
    do = f"{first.do}; then also: {', '.join(keys)}" if keys else first.do
    error = OptionError(first.what, first.where, first.expected, do)
    error.found = tuple(single for e in errors for single in (e.found or (e,)))
    return error


def _error_of(
    error: ErrorDetails, model: type[Section], values: Mapping[str, Any], where: str, kind: str
) -> OptionError:
    names = [str(part) for part in error["loc"]]
    owner, depth = model, 0  # the model that the wrong key belongs to, and how deep it lies
    while depth < len(names) - 1 and (inner := _model_of(owner, names[depth])) is not None:
        owner, depth = inner, depth + 1
    section = ".".join([where, *names[:depth]]).strip(".")
    dotted = ".".join([section, names[depth]]).strip(".")
    if error["type"] == "extra_forbidden":
        return _unknown(section, names[depth], owner, kind if depth == 0 else "")
    expected = "an object { ... }" if _model_of(owner, names[depth]) else describe(owner.model_fields[names[depth]])
    if error["type"] == "missing":
        return OptionError(f"{dotted} is missing", dotted, expected, f"add {dotted}")
    shown = repr(redact(_look_up(values, names[: depth + 1]), names[depth], "***"))
    return OptionError(f"{dotted} is {shown}", dotted, expected, f"correct {dotted}; docs/options.md lists all keys")


def _unknown(section: str, key: str, model: type[Section], kind: str) -> OptionError:
    valid = [name for name, field in model.model_fields.items() if not field.exclude]
    hint = nearest(key, valid)
    name = hint.rpartition(" ")[2]
    if name in model.model_fields:
        hint += f" ({describe(model.model_fields[name])})"
    dotted = f"{section}.{key}".strip(".")
    place = f'one of the keys of "{section}"' if section else "a section"
    place += f" with {kind}" if kind else ""
    do = "rename it" if hint else f"remove it; the keys are {', '.join(valid)}"
    do = f"rename it: {OTHER_NAMES[key]}" if key in OTHER_NAMES else do
    return OptionError(f"unknown option {dotted}", dotted, f"{place}{hint}", do)


def _model_of(model: type[BaseModel], name: str) -> type[Section] | None:
    field = model.model_fields.get(name)
    candidates = [field.annotation, *get_args(field.annotation)] if field else []
    return next((c for c in candidates if isinstance(c, type) and issubclass(c, Section)), None)


def _look_up(values: Any, names: list[str]) -> Any:
    for name in names:
        values = values.get(name) if isinstance(values, Mapping) else None
    return values


def describe(field: FieldInfo) -> str:
    """Type and range in words, e.g. "float > 0" or "list of 2 int or null"."""
    return _describe(field.annotation, field.metadata)


def _describe(annotation: Any, metadata: list[Any]) -> str:
    if get_origin(annotation) is Annotated:
        base, *extra = get_args(annotation)
        inner = [m for e in extra for m in (e.metadata if isinstance(e, FieldInfo) else [e])]
        return _describe(base, [*inner, *metadata])
    if get_origin(annotation) in (Union, types.UnionType):
        parts = [a for a in get_args(annotation) if a is not type(None)]
        # A list and a tuple, which only Python can give, are one thing in JSON.
        text = " or ".join(dict.fromkeys(_describe(a, metadata if len(parts) == 1 else []) for a in parts))
        return text + (" or null" if len(parts) < len(get_args(annotation)) else "")
    if get_origin(annotation) is Literal:
        return " | ".join(f'"{a}"' if isinstance(a, str) else str(a) for a in get_args(annotation))
    ranges = {
        sign: getattr(m, name)
        for m in metadata
        for name, sign in (("gt", ">"), ("ge", ">="), ("lt", "<"), ("le", "<="))
        if getattr(m, name, None) is not None
    }
    bounds = ", ".join(f"{sign} {value}" for sign, value in ranges.items())
    if get_origin(annotation) in (list, tuple):
        size = next((f"{m.max_length} " for m in metadata if getattr(m, "max_length", None)), "")
        return f"list of {size}{_describe(get_args(annotation)[0], [])}"
    origin = get_origin(annotation) or annotation
    if isinstance(origin, type) and issubclass(origin, (BaseModel, dict)):
        return "object"
    bounds += next((f"that matches {m.pattern}" for m in metadata if getattr(m, "pattern", None)), "")
    return f"{getattr(annotation, '__name__', str(annotation))} {bounds}".strip()

"""Groups of options: frozen pydantic models, written down as such or taken from a constructor's
signature.

Errors name the key and the nearest valid key. A researcher who adds a network, a dataset, a
representation or a fusion operator registers one class or function: its parameters are its option
keys, its annotations their types, its defaults their defaults.
"""

import difflib
import fnmatch
import importlib
import inspect
import json
import pkgutil
import types
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import (
    Annotated,
    Any,
    ClassVar,
    Literal,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from pydantic import BaseModel, ConfigDict, ValidationError, create_model
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from utils.errors import OptionError
from utils.options.secrets import MASK, redact

# A class or function that is registered; the decorator returns it unchanged.
Part = TypeVar("Part", bound=Callable[..., Any])

# What other programs, and the flags of the command line, call some options.
SHORT_FLAGS = {
    "batch_size": "datasets.train.dataloader_batch_size",
    "num_workers": "datasets.train.dataloader_num_workers",
    "epochs": "train.epochs",
    "learning_rate": "train.G_optimizer_lr",
}
OTHER_NAMES = SHORT_FLAGS | {
    "lr": SHORT_FLAGS["learning_rate"],
    "workers": SHORT_FLAGS["num_workers"],
}


class Section(BaseModel):
    """A group of options: no unknown key, no conversion between types, no change after reading."""

    model_config = ConfigDict(
        strict=True, extra="forbid", frozen=True, arbitrary_types_allowed=True, allow_inf_nan=False
    )
    # What is registered under the name that the section has. None if it names no part.
    constructor: ClassVar[Any] = None

    def plain(self) -> dict[str, Any]:
        """The section as an option file holds it: plain types, nested sections as objects."""
        return self.model_dump(mode="json", serialize_as_any=True)


S = TypeVar("S", bound=Section)


def nearest(name: str, valid: Collection[str]) -> str:
    """' (the nearest is X)' for an error message, or '' where nothing resembles `name`."""
    found = difflib.get_close_matches(name, list(valid), n=1, cutoff=0.6)
    return f"; the nearest is {found[0]}" if found else ""


def read_section(model: type[S], values: Mapping[str, Any], where: str, kind: str = "") -> S:
    """`values` as an instance of `model`, completed with its defaults.

    where: dotted place of the section, "" for the whole file. kind: what the section describes, for
    the message.
    Raises OptionError for the first wrong key; it names the others too.
    """
    try:
        return model(**values)
    except ValidationError as e:
        raise joined(
            [_error_of(error, model, values, where, kind) for error in e.errors()]
        ) from None


def joined(errors: Collection[OptionError]) -> OptionError:
    """The first error, with the keys of the others in what to do; `found` has each of them.

    A misspelt key comes first: what is missing may be just that.
    """
    found = [single for e in errors for single in (e.found or (e,))]
    first, *others = sorted(found, key=lambda e: not e.what.startswith("unknown option"))
    keys = dict.fromkeys(e.where for e in others if e.where != first.where)
    do = f"{first.do}; then also: {', '.join(keys)}" if keys else first.do
    error = OptionError(first.what, first.where, first.expected, do)
    error.found = (first, *others)
    return error


def _error_of(
    error: ErrorDetails, model: type[Section], values: Mapping[str, Any], where: str, kind: str
) -> OptionError:
    names = [str(part) for part in error["loc"]]
    # The model that the wrong key belongs to, how deep it lies, its section
    owner, depth, value = (
        model,
        0,
        values,
    )
    while depth < len(names) - 1 and (inner := _model_of(owner, names[depth])) is not None:
        owner, value, depth = inner, value[names[depth]], depth + 1
    key, section = names[depth], ".".join([where, *names[:depth]]).strip(".")
    dotted = f"{section}.{key}".strip(".")
    if error["type"] == "extra_forbidden":
        valid = [name for name, field in owner.model_fields.items() if not field.exclude]
        hint = nearest(key, valid)
        do = "rename it" if hint else f"remove it; the keys are {', '.join(valid)}"
        if (name := hint.rpartition(" ")[2]) in valid:
            hint += f" ({describe(owner.model_fields[name])})"
        place = f'one of the keys of "{section}"' if section else "a section"
        place += f" with {kind}" if kind and depth == 0 else ""
        do = f"rename it: {OTHER_NAMES[key]}" if key in OTHER_NAMES else do
        return OptionError(f"unknown option {dotted}", dotted, f"{place}{hint}", do)
    expected = "an object { ... }" if _model_of(owner, key) else describe(owner.model_fields[key])
    if error["type"] == "missing":
        return OptionError(f"{dotted} is missing", dotted, expected, f"add {dotted}")
    is_marked = "SecretStr" in str(owner.model_fields[key].annotation)
    shown = MASK if is_marked else repr(redact(value.get(key), key, MASK))
    return OptionError(
        f"{dotted} is {shown}",
        dotted,
        expected,
        f"correct {dotted}; docs/options.md lists all keys",
    )


def _model_of(model: type[BaseModel], name: str) -> type[Section] | None:
    field = model.model_fields.get(name)
    candidates = [field.annotation, *get_args(field.annotation)] if field else []
    return next((c for c in candidates if isinstance(c, type) and issubclass(c, Section)), None)


def describe(annotation: Any, metadata: Sequence[Any] = ()) -> str:
    """Type and range of a field in words, e.g. "float > 0" or "list of 2 int or null"."""
    if isinstance(annotation, FieldInfo):
        annotation, metadata = annotation.annotation, annotation.metadata
    if get_origin(annotation) is Annotated:
        base, *extra = get_args(annotation)
        inner = [m for e in extra for m in (e.metadata if isinstance(e, FieldInfo) else [e])]
        return describe(base, [*inner, *metadata])
    if get_origin(annotation) in (Union, types.UnionType):
        parts = [a for a in get_args(annotation) if a is not type(None)]
        # A list and a tuple, which only Python can give, are one thing in JSON.
        text = " or ".join(
            dict.fromkeys(describe(a, metadata if len(parts) == 1 else ()) for a in parts)
        )
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
        return f"list of {size}{describe(get_args(annotation)[0])}"
    origin = get_origin(annotation) or annotation
    if isinstance(origin, type) and issubclass(origin, (BaseModel, dict)):
        return "object"
    bounds += next(
        (f"that matches {m.pattern}" for m in metadata if getattr(m, "pattern", None)), ""
    )
    return f"{getattr(annotation, '__name__', str(annotation))} {bounds}".strip()


def flat(value: Any, name: str) -> Iterator[tuple[str, bool | int | float | str]]:
    """(dotted key, value) of all options below `name`; a list as its JSON.

    Options that are null are left out.
    """
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from flat(inner, f"{name}.{key}")
    elif value is not None:
        yield name, value if isinstance(value, (bool, int, float, str)) else json.dumps(value)


class Registry:
    """Names -> constructors of one kind of part, e.g. ``Registry("network", type_key="net_type")``.

    base: keys that every section of this kind has beside those of its part. A parameter annotated
    ``Annotated[dict | str, OTHER_REGISTRY]`` is a nested part: its section (or bare type name) is
    checked against the other registry. A parameter annotated with a `Section` stands for that
    section's keys, which the option file holds beside the others: shared keys are written down
    once. A constructor's `GONE` has keys of former versions with the value that is accepted without
    effect.
    """

    def __init__(self, kind: str, type_key: str = "type", base: type[Section] = Section) -> None:
        self.kind, self.type_key, self.base = kind, type_key, base
        self._parts: dict[
            str, tuple[Callable[..., Any], frozenset[str], dict[str, type[Section]]]
        ] = {}
        self._models: dict[str, type[Section]] = {}

    def register(
        self, name: str, given: Collection[str] = (), **annotations: type[Section]
    ) -> Callable[[Part], Part]:
        """Decorator. `given`: parameters that code supplies to `build`; they are not option keys.

        annotations: of parameters of an inherited constructor, which has less exact ones, such as
        section=OwnKeys.
        """

        def add(constructor: Part) -> Part:
            if name in self._parts:
                raise ValueError(f"{self.kind} {name!r} is registered twice")
            self._parts[name] = (constructor, frozenset(given), annotations)
            return constructor

        return add

    def names(self) -> list[str]:
        return sorted(self._parts)

    def constructor(self, name: str) -> Callable[..., Any]:
        """Return what was registered as `name`."""
        return self._parts[name][0]

    def keys(self, name: str) -> list[str]:
        """The option keys of part `name`, without the type key and the keys of `base`."""
        return [
            key
            for key in self.model(name).model_fields
            if key not in (self.type_key, *self.base.model_fields)
        ]

    def model(self, name: str) -> type[Section]:
        """The options of part `name` as a frozen model: its type, the keys of `base`, those of its
        constructor.
        """
        if name not in self._models:
            fields: dict[str, Any] = {self.type_key: (literal_of(name), ...)}
            shared = []  # sections whose keys stand beside the others
            for key, parameter in self._parameters(name).items():
                default = ... if parameter.default is inspect.Parameter.empty else parameter.default
                annotation = parameter.annotation
                # A nested part is a resolved section in the model, whatever an option file may
                # hold.
                nested = [
                    m for m in getattr(annotation, "__metadata__", ()) if isinstance(m, Registry)
                ]
                if isinstance(annotation, type) and issubclass(annotation, Section):
                    shared.append(annotation)
                else:
                    fields[key] = (Annotated[Any, nested[0]] if nested else annotation, default)
            model = create_model(name, __base__=(*shared, self.base), **fields)
            model.constructor = self._parts[name][0]
            self._models[name] = model
        return self._models[name]

    def resolve(self, section: Section | Mapping[str, Any] | str, where: str) -> Any:
        """`section` checked and completed with the constructor's defaults; what is resolved already
        stays.

        where: dotted place of the section, e.g. "netG" (the caller adds the file's name).
        Raises OptionError for an unknown type, an unknown or missing key, or a value of the wrong
        type.
        """
        if isinstance(section, Section):
            return section
        if not isinstance(section, (str, Mapping)):
            expected = f"an object {{ ... }}, or the name of a {self.kind}"
            raise OptionError(
                f"{where} is {redact(section, where, '***')!r}", where, expected, f"correct {where}"
            )
        values = {self.type_key: section} if isinstance(section, str) else dict(section)
        name = values.get(self.type_key)
        key, names = f"{where}.{self.type_key}", self.names()
        if name not in names:
            what = (
                f"{key} is missing" if name is None else f"{key} is {redact(name, shown='***')!r}"
            )
            expected = f"a registered {self.kind}: {', '.join(names)}{nearest(str(name), names)}"
            raise OptionError(what, key, expected, "choose one of these, or register your own")
        model, wrong = self.model(name), []
        gone = getattr(model.constructor, "GONE", {}).items()
        values = {key: value for key, value in values.items() if (key, value) not in gone}
        for key, field in model.model_fields.items():
            nested = next((m for m in field.metadata if isinstance(m, Registry)), None)
            value = values.get(key, None if field.is_required() else field.default)
            if nested is not None and value is not None:
                try:
                    values[key] = nested.resolve(value, f"{where}.{key}")
                except OptionError as e:
                    wrong.append(e)
        try:
            section = read_section(model, values, where, f'{self.kind} "{name}"')
        except OptionError as e:
            wrong.insert(0, e)
        if wrong:
            raise joined(wrong)
        return section

    def build(self, section: Section | Mapping[str, Any] | str, where: str, **given: Any) -> Any:
        """The part that `section` describes. given: the parameters that code supplies."""
        options = self.resolve(section, where)
        name = getattr(options, self.type_key)
        constructor, names, _ = self._parts[name]
        values = {
            key: getattr(options, key) if key in type(options).model_fields else options
            for key in self._parameters(name)
        }
        return constructor(**values, **{key: value for key, value in given.items() if key in names})

    def _parameters(self, name: str) -> dict[str, inspect.Parameter]:
        """The constructor's parameters that are option keys, or stand for some, with their
        annotations resolved.
        """
        constructor, given, annotations = self._parts[name]
        function = constructor.__init__ if inspect.isclass(constructor) else constructor
        hints = get_type_hints(function, include_extras=True) | annotations
        return {
            key: parameter.replace(annotation=hints.get(key, Any))
            for key, parameter in inspect.signature(constructor).parameters.items()
            if key not in given
            and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        }


def literal_of(*values: str) -> Any:
    """Return the type Literal["a", "b"] of values that are known when the program runs."""
    literal: Any = Literal
    return literal[values]


def import_parts(package: str, pattern: str) -> None:
    """Import the modules of a package whose names match, e.g.

    ("models", "network_*"): they register their parts.
    """
    for module in pkgutil.iter_modules(importlib.import_module(package).__path__):
        if fnmatch.fnmatch(module.name, pattern):
            importlib.import_module(f"{package}.{module.name}")

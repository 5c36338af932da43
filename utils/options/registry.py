"""Registered parts take their option keys from their constructor's signature.

A researcher who adds a network, a dataset, a representation or a fusion operator writes one class or
function; its parameters are its option keys, its annotations their types, its defaults their defaults.
"""

from __future__ import annotations

import fnmatch
import importlib
import inspect
import pkgutil
from collections.abc import Callable, Collection, Mapping
from typing import Annotated, Any, Literal, get_type_hints

from pydantic import create_model

from utils.errors import OptionError
from utils.options.section import Section, nearest, read_section, redact

_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


class Registry:
    """Names -> constructors of one kind of part, e.g. ``Registry("network", type_key="net_type")``.

    base: keys that every section of this kind has beside those of its part.
    A parameter annotated ``Annotated[dict | str, OTHER_REGISTRY]`` is a nested part: its section
    (or bare type name) is checked against the other registry. A parameter annotated with a `Section` stands for that
    section's keys, which the option file holds beside the others: shared keys are written down once.
    """

    def __init__(self, kind: str, type_key: str = "type", base: type[Section] = Section) -> None:
        self.kind, self.type_key, self.base = kind, type_key, base
        self._parts: dict[str, tuple[Callable[..., Any], frozenset[str]]] = {}
        self._models: dict[str, type[Section]] = {}

    def register(self, name: str, given: Collection[str] = ()) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Decorator. `given`: parameters that code supplies to `build`; they are not option keys."""

        def add(constructor: Callable[..., Any]) -> Callable[..., Any]:
            if name in self._parts:
                raise ValueError(f"{self.kind} {name!r} is registered twice")
            self._parts[name] = (constructor, frozenset(given))
            return constructor

        return add

    def names(self) -> list[str]:
        return sorted(self._parts)

    def constructor(self, name: str) -> Callable[..., Any]:
        return self._parts[name][0]

    def keys(self, name: str) -> list[str]:
        """The option keys of part `name`, without the type key and the keys of `base`."""
        return [key for key in self.model(name).model_fields if key not in (self.type_key, *self.base.model_fields)]

    def model(self, name: str) -> type[Section]:
        """The options of part `name` as a frozen model: its type, the keys of `base`, those of its constructor."""
        if name not in self._models:
            parameters = self._parameters(name)
            fields: dict[str, Any] = {self.type_key: (Literal[name], ...)}
            for key, parameter in parameters.items():
                default = ... if parameter.default is inspect.Parameter.empty else parameter.default
                if not _is_flat(parameter):
                    fields[key] = (_held(parameter.annotation), default)
            shared = [parameter.annotation for parameter in parameters.values() if _is_flat(parameter)]
            model = create_model(name, __base__=(*shared, self.base), **fields)
            model.constructor = self._parts[name][0]
            self._models[name] = model
        return self._models[name]

    def resolve(self, section: Section | Mapping[str, Any] | str, where: str) -> Section:
        """`section` checked and completed with the constructor's defaults; what is resolved already stays.

        where: dotted place of the section, e.g. "netG" (the caller adds the file's name).
        Raises OptionError for an unknown type, an unknown or missing key, or a value of the wrong type.
        """
        if isinstance(section, Section):
            return section
        if not isinstance(section, (str, Mapping)):
            expected = f"an object {{ ... }}, or the name of a {self.kind}"
            raise OptionError(f"{where} is {redact(section, where, '***')!r}", where, expected, f"correct {where}")
        values = {self.type_key: section} if isinstance(section, str) else dict(section)
        name = values.get(self.type_key)
        if name not in self._parts:
            raise self._unknown_part(name, where)
        model = self.model(name)
        for key, field in model.model_fields.items():
            nested = next((m for m in field.metadata if isinstance(m, Registry)), None)
            value = values.get(key, None if field.is_required() else field.default)
            if nested is not None and value is not None:
                values[key] = nested.resolve(value, f"{where}.{key}")
        return read_section(model, values, where, f'{self.kind} "{name}"')

    def build(self, section: Section | Mapping[str, Any] | str, where: str, **given: Any) -> Any:
        """The part that `section` describes. given: the parameters that code supplies."""
        options = self.resolve(section, where)
        name = getattr(options, self.type_key)
        constructor, names = self._parts[name]
        values = {
            key: options if _is_flat(parameter) else getattr(options, key)
            for key, parameter in self._parameters(name).items()
        }
        return constructor(**values, **{key: value for key, value in given.items() if key in names})

    def _unknown_part(self, name: Any, where: str) -> OptionError:
        return OptionError(
            f"{where}.{self.type_key} is {name!r}" if name is not None else f"{where}.{self.type_key} is missing",
            f"{where}.{self.type_key}",
            f"a registered {self.kind}: {', '.join(self.names())}{nearest(str(name), self.names())}",
            "choose one of these, or register your own",
        )

    def _parameters(self, name: str) -> dict[str, inspect.Parameter]:
        """The constructor's parameters that are option keys, or stand for some, with their annotations resolved."""
        constructor, given = self._parts[name]
        function = constructor.__init__ if inspect.isclass(constructor) else constructor
        hints = get_type_hints(function, include_extras=True)
        return {
            key: parameter.replace(annotation=hints.get(key, Any))
            for key, parameter in inspect.signature(constructor).parameters.items()
            if key not in given and parameter.kind not in _VARIADIC
        }


def import_parts(package: str, pattern: str) -> None:
    """Import the modules of a package whose names match, e.g. ("models", "network_*"): they register their parts."""
    for module in pkgutil.iter_modules(importlib.import_module(package).__path__):
        if fnmatch.fnmatch(module.name, pattern):
            importlib.import_module(f"{package}.{module.name}")


def _held(annotation: Any) -> Any:
    """What the model holds where an option file may hold `annotation`: a nested part is a resolved section there."""
    nested = [m for m in getattr(annotation, "__metadata__", ()) if isinstance(m, Registry)]
    return Annotated[Any, nested[0]] if nested else annotation


def _is_flat(parameter: inspect.Parameter) -> bool:
    """Whether a parameter stands for the keys of a section."""
    return isinstance(parameter.annotation, type) and issubclass(parameter.annotation, Section)

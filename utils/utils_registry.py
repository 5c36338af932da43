"""Registered parts take their option keys from their constructor's signature.

A researcher who adds a network, a dataset, a representation or a fusion operator writes one class or
function; its parameters are its option keys, its annotations their types, its defaults their defaults.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Collection
from typing import Any, get_type_hints

from pydantic import ConfigDict, ValidationError, create_model

from utils.utils_errors import OptionError


def nearest(name: str, valid: Collection[str]) -> str:
    """' (the nearest is X)' for an error message, or '' where nothing resembles `name`."""
    found = difflib.get_close_matches(name, list(valid), n=1, cutoff=0.6)
    return f"; the nearest is {found[0]}" if found else ""


_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


class Registry:
    """Names -> constructors of one kind of part, e.g. ``Registry("network", type_key="net_type")``.

    A parameter annotated ``Annotated[dict | str, OTHER_REGISTRY]`` is a nested part: its section
    (or bare type name) is checked against the other registry.
    """

    def __init__(self, kind: str, type_key: str = "type") -> None:
        self.kind, self.type_key = kind, type_key
        self._parts: dict[str, tuple[Callable[..., Any], frozenset[str]]] = {}

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
        """The option keys of part `name`, without the type key."""
        return list(self._option_parameters(name))

    def resolve(self, section: dict[str, Any] | str, where: str) -> dict[str, Any]:
        """`section` checked and completed with the constructor's defaults.

        where: dotted place of the section, e.g. "netG" (the caller adds the file's name).
        Raises OptionError for an unknown type, an unknown or missing key, or a value of the wrong type.
        """
        section = {self.type_key: section} if isinstance(section, str) else dict(section)
        name = section.pop(self.type_key, None)
        self._check_name(name, where)
        parameters = self._option_parameters(name)
        for key in section:
            if key not in parameters:
                valid = [self.type_key, *parameters]
                raise OptionError(
                    f"unknown option {where}.{key}", f"{where}.{key}",
                    f'one of the keys of {self.kind} "{name}": {", ".join(valid)}{nearest(key, valid)}',
                    "rename or remove it",
                )  # fmt: skip
        values = self._typed(name, section, parameters, where)
        for key, parameter in parameters.items():
            metadata = getattr(parameter.annotation, "__metadata__", ())
            nested = next((m for m in metadata if isinstance(m, Registry)), None)
            if nested is not None and values[key] is not None:
                values[key] = nested.resolve(values[key], f"{where}.{key}")
        return {self.type_key: name, **values}

    def build(self, section: dict[str, Any] | str, where: str, **given: Any) -> Any:
        """The part that `section` describes. given: the parameters that code supplies."""
        values = self.resolve(section, where)
        constructor, names = self._parts[values.pop(self.type_key)]
        return constructor(**values, **{key: value for key, value in given.items() if key in names})

    def _check_name(self, name: Any, where: str) -> None:
        if name in self._parts:
            return
        raise OptionError(
            f"{where}.{self.type_key} is {name!r}" if name is not None else f"{where}.{self.type_key} is missing",
            f"{where}.{self.type_key}",
            f"a registered {self.kind}: {', '.join(self.names())}{nearest(str(name), self.names())}",
            "choose one of these, or register your own",
        )

    def _option_parameters(self, name: str) -> dict[str, inspect.Parameter]:
        constructor, given = self._parts[name]
        function = constructor.__init__ if inspect.isclass(constructor) else constructor
        hints = get_type_hints(function, include_extras=True)
        return {
            key: parameter.replace(annotation=hints.get(key, Any))
            for key, parameter in inspect.signature(constructor).parameters.items()
            if key not in given and parameter.kind not in _VARIADIC
        }

    def _typed(
        self, name: str, section: dict[str, Any], parameters: dict[str, inspect.Parameter], where: str
    ) -> dict[str, Any]:
        fields = {
            key: (parameter.annotation, ... if parameter.default is inspect.Parameter.empty else parameter.default)
            for key, parameter in parameters.items()
        }
        model = create_model(name, __config__=ConfigDict(strict=True, arbitrary_types_allowed=True), **fields)
        try:
            values = model(**section)
        except ValidationError as e:
            first = e.errors()[0]
            key = ".".join([where, *map(str, first["loc"])])
            parameter = parameters[str(first["loc"][0])]
            expected = f"{inspect.formatannotation(parameter.annotation)}: {first['msg'].lower()}"
            if first["type"] == "missing":
                raise OptionError(f"option {key} is missing", key, f"a value for it ({expected})", f"add {key}") from e
            raise OptionError(f"option {key} is {first['input']!r}", key, expected, f"correct {key}") from e
        return {key: getattr(values, key) for key in fields}

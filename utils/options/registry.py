"""Register parts, e.g. networks, and make options of their parameters.

A part is a class or function that an option file chooses by its name, e.g. the network "vrt". The
kinds of parts are networks, datasets, losses, fusion operators (modules that combine blurry frames
with their spikes), and more. Each kind has a `Registry` of its parts. In this file, a model is a
pydantic class with the keys of a section.

A researcher who adds a part registers one class or function. Its parameters are its option keys,
its annotations are their types, and its defaults are their defaults:

    NETWORKS = Registry("network", type_key="net_type")

    @NETWORKS.register("tiny")
    class Tiny(nn.Module):
        def __init__(self, width: int = 16) -> None: ...

    NETWORKS.resolve({"net_type": "tiny"}, "netG")    ->  a Section with net_type and width 16
    NETWORKS.build({"net_type": "tiny"}, "netG")      ->  Tiny(width=16)

What must stay: what a parameter of a constructor means in an option file. The docstring of
`Registry` describes it, and test_each_program_works_with_new_parts tests it. Free to change: how
the pydantic models of the sections are made.

Tests: tests/stories/test_extending.py, tests/parts/utils/test_option.py
"""

import fnmatch
import importlib
import inspect
import pkgutil
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, get_type_hints

from pydantic import create_model

from utils.errors import OptionError
from utils.options.section import Section, join_errors, nearest_hint, read_section
from utils.secrets import redact

# The type of a part, for the type checker: the decorator of `Registry.register` returns the class
# or function that it gets.
Part = TypeVar("Part", bound=Callable[..., Any])

# pydantic's sign for a key without a default, which the file must have. A field of such a key has
# this sign in place of its default, e.g. (int, REQUIRED).
REQUIRED: Any = ...


class Registered(NamedTuple):
    """What a registry knows of one part, from the arguments of `Registry.register`."""

    constructor: Callable[..., Any]  # the class or function
    given: frozenset[str]  # parameters that the caller of `build` supplies, no option keys
    annotations: dict[str, type[Section]]  # parameter -> type that replaces its annotation


class Registry:
    """The parts of one kind by name, e.g. the networks: ``Registry("network", "net_type")``.

    The parameters of a part's constructor are option keys. There are three kinds of parameters:

        a plain type: one key
            def __init__(self, width: int = 16)
            {"net_type": "tiny", "width": 8}

        a type with a registry: one key, whose value is the section of a nested part
            def __init__(self, fusion: Annotated[dict | str, FUSIONS] = "concat")
            {"net_type": "tiny", "fusion": {"type": "gated", "gate_bias": -4}}
            {"net_type": "tiny", "fusion": "gated"}     # only the name: all keys have defaults

        a Section: several keys, which stand beside the other keys of the part
            class Crops(Section):
                gt_size: int = 256
            def __init__(self, section: Crops)
            {"dataset_type": "mine", "gt_size": 128}    # there is no key "section"

    In the third case the constructor gets an object that has all options of the part, here
    `section.gt_size` and `section.dataset_type`.

    An old option file may have keys that no longer exist. A constructor lists them in an attribute
    `GONE`, each with its old default, e.g. GONE = {"rate_windows": 0}. With this value the key is
    ignored, and with any other value it is an error.

    What must stay: these rules, because docs/extending.md promises them and other people's parts
    rely on them (test_extending.py). Free to change: how the pydantic models are made.

    kind: what the parts are, for messages, e.g. "network"
    type_key: the key of a section that names the part, e.g. "net_type"
    base: a Section with keys that every part of this kind has in addition. E.g. every dataset has
        the keys of LoaderOptions, such as dataloader_batch_size
    """

    def __init__(self, kind: str, type_key: str = "type", base: type[Section] = Section) -> None:
        self.kind = kind
        self.type_key = type_key
        self.base = base
        self._parts: dict[str, Registered] = {}
        # Name of a part -> model of its section. The method `model` adds a model at its first call.
        self._models: dict[str, type[Section]] = {}

    def register(
        self, name: str, given: Collection[str] = (), **annotations: type[Section]
    ) -> Callable[[Part], Part]:
        """Return a decorator that registers a class or function as `name`.

        E.g. `@NETWORKS.register("tiny", given=("seed",))` above a class.

        given: parameters that the caller of `build` supplies, e.g. "seed". They are not option keys
        annotations: types that replace the annotations of parameters. A class that inherits its
            constructor needs such types, e.g. section=OwnKeys if the inherited constructor has the
            annotation `section: Section`
        """

        def add(constructor: Part) -> Part:
            if name in self._parts:
                raise ValueError(f"{self.kind} {name!r} is registered twice")
            self._parts[name] = Registered(constructor, frozenset(given), annotations)
            return constructor

        return add

    def names(self) -> list[str]:
        """Return the names of all parts, in alphabetical order."""
        return sorted(self._parts)

    def constructor(self, name: str) -> Callable[..., Any]:
        """Return the class or function that was registered as `name`."""
        return self._parts[name].constructor

    def keys(self, name: str) -> list[str]:
        """Return the option keys of a part, without the type key and the keys of `base`."""
        shared_keys = (self.type_key, *self.base.model_fields)
        return [key for key in self.model(name).model_fields if key not in shared_keys]

    def model(self, name: str) -> type[Section]:
        """Return the model of a part's section. A part is a registered class, e.g. a network.

        The model is a pydantic class. Its keys are the type key, the keys of `base` (which every
        part of this kind has), and the parameters of the constructor. The model is made at the
        first call and then kept, so a later change of the part, e.g. in a notebook, has no effect.
        """
        if name not in self._models:
            self._models[name] = self._make_model(name)
        return self._models[name]

    def _make_model(self, name: str) -> type[Section]:
        """Make the model of a part's section, from the parameters of its constructor.

        `Registry` explains the three kinds of parameters.
        """
        # pydantic's `create_model` takes key -> (type, default). The type key accepts only the name
        # of this part, e.g. Literal["tiny"].
        fields: dict[str, Any] = {self.type_key: (literal_of(name), REQUIRED)}
        sections = []  # e.g. Crops: the model inherits the keys of these sections
        for key, parameter in self._parameters(name).items():
            self._refuse_reserved(name, key)
            annotation = parameter.annotation
            # A parameter such as `section: Crops`.
            if isinstance(annotation, type) and issubclass(annotation, Section):
                sections.append(annotation)
                continue
            # A parameter such as `fusion: Annotated[dict | str, FUSIONS]`. What follows the type in
            # Annotated[...] is its `__metadata__`, here (FUSIONS,).
            metadata = getattr(annotation, "__metadata__", ())
            nested_registry = _registry_in(metadata)
            if nested_registry is not None:
                # The model takes any value here, because `resolve` checks the section of a nested
                # part before the model sees it. The registry stays in the annotation, where
                # `resolve` and lab/make_options_doc.py find it
                # (test_a_part_within_a_part_has_its_defaults).
                annotation = Annotated[Any, nested_registry]
            default = parameter.default
            if default is inspect.Parameter.empty:
                default = REQUIRED
            fields[key] = (annotation, default)
        model = create_model(name, __base__=(*sections, self.base), **fields)
        model.constructor = self.constructor(name)
        return model

    def _refuse_reserved(self, name: str, key: str) -> None:
        """Raise OptionError if a parameter has a name that a section needs for itself.

        name: name of the part
        key: name of the parameter
        """
        is_private = key.startswith("_")
        # The methods of pydantic's classes begin with "model_", e.g. `model_dump`.
        is_of_pydantic = key.startswith("model_") and hasattr(Section, key)
        if is_private or is_of_pydantic or key in vars(Section):
            raise OptionError(
                what=f'the {self.kind} "{name}" has a parameter {key}, which can be no option',
                where=inspect.getfile(self.constructor(name)),
                expected="a name that does not begin with _, and is no name of a section itself",
                do="rename the parameter",
            )

    def resolve(self, section: Section | Mapping[str, Any] | str, where: str) -> Any:
        """Return a section, checked and completed with the defaults of the part's constructor.

        E.g. {"net_type": "tiny"} gives a Section with net_type "tiny" and width 16, if 16 is the
        default of the parameter `width` of Tiny.

        Raises OptionError for an unknown part, an unknown or missing key, or a value of the wrong
        type. The argument is not changed.

        section: the section of an option file, or only the name of a part. A Section was resolved
            before, and is returned as it is. So a caller may resolve a section twice
        where: dotted key of the section, for errors, e.g. "netG"
        """
        if isinstance(section, Section):
            return section
        values = self._values_of(section, where)
        name = values.get(self.type_key)
        if name not in self.names():
            raise self._unknown_part(name, where)
        model = self.model(name)
        _drop_gone_keys(values, model)

        # Resolve the nested parts first, and put their typed sections in their places in `values`.
        # The model of this section does not check nested parts. All errors are collected, so that a
        # user can correct them at once (test_the_problems_of_a_file_are_named_at_once).
        errors = _resolve_nested_parts(values, model, where)
        # Then read this section. Its own errors come before the errors of its nested parts.
        try:
            resolved = read_section(model, values, where, kind=f'{self.kind} "{name}"')
        except OptionError as e:
            errors.insert(0, e)
        if errors:
            raise join_errors(errors)
        return resolved

    def _values_of(self, section: Mapping[str, Any] | str, where: str) -> dict[str, Any]:
        """Return a section as a new dict key -> value.

        E.g. "concat" -> {"type": "concat"}. Raises OptionError if the value is not a section.
        """
        if isinstance(section, str):
            return {self.type_key: section}
        if isinstance(section, Mapping):
            return dict(section)
        # A wrong value may be a secret in the wrong place, so `redact` hides it.
        raise OptionError(
            what=f"{where} is {redact(section, key=where, replacement='***')!r}",
            where=where,
            expected=f"an object {{ ... }}, or the name of a {self.kind}",
            do=f"correct {where}",
        )

    def _unknown_part(self, name: Any, where: str) -> OptionError:
        """Return the error for a section that names no registered part."""
        key = f"{where}.{self.type_key}"
        if name is None:
            what = f"{key} is missing"
        else:
            what = f"{key} is {redact(name, replacement='***')!r}"
        part_names = self.names()
        hint = nearest_hint(str(name), part_names)
        return OptionError(
            what=what,
            where=key,
            expected=f"a registered {self.kind}: {', '.join(part_names)}{hint}",
            do="choose one of these, or register your own in a file whose name is found "
            "(docs/extending.md)",
        )

    def build(self, section: Section | Mapping[str, Any] | str, where: str, **given: Any) -> Any:
        """Make the part that a section describes, e.g. the network of "netG".

        section: the values of the section, or only the name of the part
        where: dotted key of the section, for errors
        given: values that the program knows and the option file does not, e.g. spike_channels=2. A
            part gets only the values whose names it was registered with, `register(given=...)`. So
            a caller can pass the same values to all parts of a kind
            (test_a_part_gets_only_the_values_of_the_code_that_it_takes)
        """
        options = self.resolve(section, where)
        name = getattr(options, self.type_key)
        part = self._parts[name]
        arguments = {}
        # The parameters whose values come from the option file.
        for key in self._parameters(name):
            if key in type(options).model_fields:
                arguments[key] = getattr(options, key)
            else:
                # A parameter that is no option key gets all options of the part in one object.
                # E.g. `section` of `def __init__(self, section: Crops)`, where the class Crops
                # holds the options of the part, such as `gt_size`.
                arguments[key] = options
        # The parameters whose values come from the program.
        for key, value in given.items():
            if key in part.given:
                arguments[key] = value
        return part.constructor(**arguments)

    def _parameters(self, name: str) -> dict[str, inspect.Parameter]:
        """Return the parameters of a constructor that come from the option file: name -> parameter.

        E.g. `def __init__(self, width: int = 16, seed: int = 0)`, registered with given=("seed",):
        the result has only the key "width", because the program supplies `seed`.

        The annotations of the result are types, also if the source has them as text
        ("int | None").

        name: name of the part
        """
        part = self._parts[name]
        # get_type_hints of a class gives the types of its attributes. So ask its __init__.
        function = part.constructor
        if inspect.isclass(function):
            function = function.__init__
        # `include_extras` keeps what follows a type in Annotated[...], e.g. a registry. The
        # annotations that were given to `register` replace the annotations of the constructor.
        hints = get_type_hints(function, include_extras=True) | part.annotations
        option_parameters = {}
        for key, parameter in inspect.signature(part.constructor).parameters.items():
            # *args and **kwargs have no names that an option file could use.
            is_star = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
            if key not in part.given and not is_star:
                annotation = hints.get(key, Any)
                option_parameters[key] = parameter.replace(annotation=annotation)
        return option_parameters


# ---- Steps of `Registry.resolve` --------------------------------------------------------------


def _drop_gone_keys(values: dict[str, Any], model: type[Section]) -> None:
    """Remove the keys of former versions from `values`, so that old option files can be read.

    A key whose value differs from the value in GONE asks for a feature that no longer exists. Such
    a key stays, and `read_section` refuses it as unknown.
    """
    gone_keys = getattr(model.constructor, "GONE", {})  # e.g. {"rate_windows": 0}
    for key, harmless_value in gone_keys.items():
        if key in values and values[key] == harmless_value:
            del values[key]


def _resolve_nested_parts(
    values: dict[str, Any], model: type[Section], where: str
) -> list[OptionError]:
    """Replace each section of a nested part in `values` by the resolved section.

    A nested part is a part within another part, e.g. the fusion of a network (netG.fusion). E.g.
    the value "gated" of the key `fusion` becomes a Section with all keys of this fusion. If the key
    is missing, its default is resolved. A wrong section stays as it is, and its error is in the
    returned list. Test: test_a_part_within_a_part_has_its_defaults.

    where: dotted key of the section that holds `values`
    """
    errors = []
    for key, field in model.model_fields.items():
        nested_registry = _registry_in(field.metadata)
        if nested_registry is None:
            continue  # a plain option
        default = None if field.is_required() else field.default
        value = values.get(key, default)
        if value is None:
            continue  # null, or a missing key that is required, which `read_section` refuses later
        try:
            values[key] = nested_registry.resolve(value, f"{where}.{key}")
        except OptionError as e:
            errors.append(e)
    return errors


def _registry_in(metadata: Sequence[Any]) -> Registry | None:
    """Return the registry in an annotation, or None if the annotation has no registry.

    An annotation with a registry means a nested part, e.g. netG.fusion within netG.

    metadata: what follows the type in Annotated[type, ...], e.g. (FUSIONS,) of
        Annotated[dict, FUSIONS]
    """
    for item in metadata:
        if isinstance(item, Registry):
            return item
    return None


def literal_of(*values: str) -> Any:
    """Return the type Literal["a", "b"] of values that are only known when the program runs."""
    # Any, because a type checker accepts only values that are written in Literal[...].
    literal: Any = Literal
    return literal[values]


def import_parts(package: str, pattern: str) -> None:
    """Import the modules of a package that match a pattern, so that they register their parts.

    For example, ("models", "network_*") imports models/network_vrt.py. So a researcher adds a part
    by adding a file.

    package: name of the package
    pattern: pattern of the names of its modules, with "*" for any letters
    """
    folders_of_package = importlib.import_module(package).__path__
    for module in pkgutil.iter_modules(folders_of_package):
        if fnmatch.fnmatch(module.name, pattern):
            importlib.import_module(f"{package}.{module.name}")

"""Groups of options, and registries of parts whose parameters are options.

    Section     a frozen pydantic model: the keys of one section of an option file
    Registry    names -> networks, datasets, losses, ...; a part's parameters are its keys

A researcher who adds a network, a dataset, a representation or a fusion operator registers one
class or function. Its parameters are its option keys, its annotations are their types, and its
defaults are their defaults:

    NETWORKS = Registry("network", type_key="net_type")

    @NETWORKS.register("tiny")
    class Tiny(nn.Module):
        def __init__(self, width: int = 16) -> None: ...

    NETWORKS.resolve({"net_type": "tiny"}, "netG")    ->  a Section with net_type and width 16
    NETWORKS.build({"net_type": "tiny"}, "netG")      ->  Tiny(width=16)

Errors name the wrong key and the nearest valid key.

Tests: tests/parts/utils/test_option.py, tests/parts/utils/test_option_files.py
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
    NamedTuple,
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

# The type of a class or function that is registered. `Registry.register` returns it unchanged, so
# a type checker must know that input and output have one type.
Part = TypeVar("Part", bound=Callable[..., Any])

# Flag of the command line, without "--" -> the option that it sets, e.g. --batch_size 8.
SHORT_FLAGS = {
    "batch_size": "datasets.train.dataloader_batch_size",
    "num_workers": "datasets.train.dataloader_num_workers",
    "epochs": "train.epochs",
    "learning_rate": "train.G_optimizer_lr",
}
# Name of an option in other programs -> our name. The error for an unknown option tells it.
OTHER_NAMES = SHORT_FLAGS | {
    "lr": SHORT_FLAGS["learning_rate"],
    "workers": SHORT_FLAGS["num_workers"],
}


class Section(BaseModel):
    """A group of options: no unknown key, no conversion between types, no change after reading."""

    # strict: "3" is no int. frozen: no change after reading. allow_inf_nan: a NaN or an infinite
    # number is no option.
    model_config = ConfigDict(
        strict=True, extra="forbid", frozen=True, arbitrary_types_allowed=True, allow_inf_nan=False
    )
    # The class or function of the part that the section names. None if it names no part.
    constructor: ClassVar[Any] = None

    def plain(self) -> dict[str, Any]:
        """Return the section as an option file holds it: plain types, sections as objects."""
        return self.model_dump(mode="json", serialize_as_any=True)


# The type of one section: `read_section` returns an instance of the class that it is given.
AnySection = TypeVar("AnySection", bound=Section)


# ---- Reading a section, and its errors --------------------------------------------------------


def read_section(
    model: type[AnySection], values: Mapping[str, Any], where: str, kind: str = ""
) -> AnySection:
    """Return `values` as an instance of `model`, completed with its defaults.

    Raises OptionError for the first wrong key. The error names the other wrong keys, too.

    where: dotted key of the section, "" for the whole file
    kind: what the section describes, for the message, e.g. 'network "vrt"'
    """
    try:
        return model(**values)
    except ValidationError as e:
        errors = [_error_of(error, model, values, where, kind) for error in e.errors()]
        # `from None`: the error of pydantic would print the values, among them secrets.
        raise joined(errors) from None


def joined(errors: Collection[OptionError]) -> OptionError:
    """Return one error for several: the text of the first error, and the keys of the others.

    Errors of unknown keys come before all others, because a missing key may be just the unknown
    key, misspelt. `found` of the result has every single error.
    """
    singles: list[OptionError] = []
    for error in errors:
        singles += error.found or (error,)  # an error that is itself joined counts as its parts

    unknown_keys = [e for e in singles if e.what.startswith("unknown option")]
    other_errors = [e for e in singles if not e.what.startswith("unknown option")]
    first, *others = unknown_keys + other_errors

    # "then also: a, b" names each further key once.
    further_keys = []
    for e in others:
        if e.where != first.where and e.where not in further_keys:
            further_keys.append(e.where)
    do = first.do
    if further_keys:
        do += f"; then also: {', '.join(further_keys)}"
    error = OptionError(first.what, first.where, first.expected, do)
    error.found = (first, *others)
    return error


def _error_of(
    error: ErrorDetails, model: type[Section], values: Mapping[str, Any], where: str, kind: str
) -> OptionError:
    """Return an error of pydantic as an error for the user.

    model, values, where, kind: arguments of `read_section`
    """
    # pydantic names the path to the wrong key, e.g. ("train", "G_optimizer_betas", 0). The first
    # names are sections within one another, here "train". Then comes the key. What follows the key
    # is a position within its value, here item 0 of a list, and is left out of the message.
    names = [str(name) for name in error["loc"]]
    owner = model  # the model of the section that has the key
    owner_values = values  # the values of this section
    depth = 0  # number of sections on the path
    while depth < len(names) - 1:
        inner = _model_of(owner, names[depth])
        if inner is None:
            break  # names[depth] is no section, so it is the key
        owner = inner
        owner_values = owner_values[names[depth]]
        depth += 1
    key = names[depth]
    section = ".".join([where, *names[:depth]]).strip(".")  # "" for the whole file
    dotted = f"{section}.{key}".strip(".")

    # A key that the section does not know, or a key that is missing.
    if error["type"] == "extra_forbidden":
        # `kind` describes the outer section only.
        return _unknown_key(key, section, owner, kind if depth == 0 else "")
    field = owner.model_fields[key]
    expected = "an object { ... }" if _model_of(owner, key) else describe(field)
    if error["type"] == "missing":
        return OptionError(f"{dotted} is missing", dotted, expected, f"add {dotted}")
    # The value is wrong. The error shows the value, unless the value is a secret.
    if "SecretStr" in str(field.annotation):
        shown = MASK
    else:
        shown = repr(redact(owner_values.get(key), key, MASK))
    return OptionError(
        what=f"{dotted} is {shown}",
        where=dotted,
        expected=expected,
        do=f"correct {dotted}; docs/options.md lists all keys",
    )


def _unknown_key(key: str, section: str, owner: type[Section], kind: str) -> OptionError:
    """Return the error for a key that a section does not have.

    section: dotted key of the section, "" for the whole file
    owner: the model of the section
    kind: what the section describes, e.g. 'network "vrt"', or ""
    """
    # Fields with `exclude` are no options: the program itself sets them.
    valid = [name for name, field in owner.model_fields.items() if not field.exclude]
    hint = nearest(key, valid)  # "; the nearest is NAME", or ""
    if key in OTHER_NAMES:
        do = f"rename it: {OTHER_NAMES[key]}"
    elif hint:
        do = "rename it"
    else:
        do = f"remove it; the keys are {', '.join(valid)}"
    # Say the type and range of the nearest key, too, e.g. "; the nearest is lr (float > 0)".
    name = hint.rpartition(" ")[2]  # the last word; "" without a hint
    if name in valid:
        hint += f" ({describe(owner.model_fields[name])})"
    valid_keys = f'one of the keys of "{section}"' if section else "a section"
    if kind:
        valid_keys += f" with {kind}"
    dotted = f"{section}.{key}".strip(".")
    return OptionError(
        what=f"unknown option {dotted}",  # `joined` looks for these two words
        where=dotted,
        expected=f"{valid_keys}{hint}",
        do=do,
    )


def _model_of(model: type[BaseModel], name: str) -> type[Section] | None:
    """Return the type of a field if it is a Section, e.g. PathOptions for the field `path`.

    This also holds for a field that may be null. Returns None for a field of another type, and for
    an unknown name.

    name: of the field
    """
    field = model.model_fields.get(name)
    if field is None:
        return None
    # The arguments of `Section | None` are Section and None.
    for candidate in (field.annotation, *get_args(field.annotation)):
        if isinstance(candidate, type) and issubclass(candidate, Section):
            return candidate
    return None


def nearest(name: str, valid: Collection[str]) -> str:
    """Return "; the nearest is X" for an error message, or "" if nothing resembles `name`.

    valid: the names that would be right.
    """
    # 0.6 is the usual cutoff of difflib: about six of ten letters agree.
    matches = difflib.get_close_matches(name, list(valid), n=1, cutoff=0.6)
    return f"; the nearest is {matches[0]}" if matches else ""


def describe(annotation: Any, metadata: Sequence[Any] = ()) -> str:
    """Return type and range of a field in words, e.g. "float > 0" or "list of 2 int or null".

    Errors and docs/options.md show these words. After a change run lab/make_options_doc.py, which
    writes the page anew. A type without a branch of its own gets its Python name.

    annotation: a type, or a field of a model
    metadata: the limits that pydantic knows, e.g. Gt(gt=0)
    """
    # A field of pydantic: take type and limits out of it.
    if isinstance(annotation, FieldInfo):
        metadata = annotation.metadata
        annotation = annotation.annotation
    # Annotated[int, Field(ge=0)]: the type, and more limits.
    if get_origin(annotation) is Annotated:
        inner_type, *extra = get_args(annotation)
        limits = []
        for item in extra:
            limits += item.metadata if isinstance(item, FieldInfo) else [item]
        return describe(inner_type, [*limits, *metadata])

    # `int | None`, or `float | list[float]`.
    if get_origin(annotation) in (Union, types.UnionType):
        alternatives = [each for each in get_args(annotation) if each is not type(None)]
        # The limits belong to the only type beside None. With several types they are left out.
        limits = list(metadata) if len(alternatives) == 1 else []
        texts = []
        for alternative in alternatives:
            text = describe(alternative, limits)
            # A tuple is a list in JSON, so `list[int] | tuple[int, ...]` gives one text.
            if text not in texts:
                texts.append(text)
        if type(None) in get_args(annotation):
            texts.append("null")
        return " or ".join(texts)

    # Literal["adam", "adamw"] -> "adam" | "adamw".
    if get_origin(annotation) is Literal:
        values = get_args(annotation)
        return " | ".join(f'"{v}"' if isinstance(v, str) else str(v) for v in values)

    # list[float] of fixed length -> "list of 2 float".
    if get_origin(annotation) in (list, tuple):
        size = ""
        for limit in metadata:
            if getattr(limit, "max_length", None):
                size = f"{limit.max_length} "
                break
        item_type = get_args(annotation)[0]
        return f"list of {size}{describe(item_type)}"

    # A Section, or dict[str, ...], is an object in JSON.
    origin = get_origin(annotation) or annotation
    if isinstance(origin, type) and issubclass(origin, (BaseModel, dict)):
        return "object"

    # A plain type: int, float, str, ... E.g. "float" with Gt(gt=0) -> "float > 0".
    name = getattr(annotation, "__name__", str(annotation))
    return f"{name} {_bounds(metadata)}".strip()


def _bounds(metadata: Sequence[Any]) -> str:
    """Return the limits of a plain type in words, e.g. ">= 0, < 1", or "" without limits.

    metadata: objects of pydantic, e.g. Ge(ge=0). An object may have several limits as attributes. A
        limit that it does not have is missing or None.
    """
    ranges = {}  # sign -> value; of two limits with the same sign, the last counts
    for limit in metadata:
        for attribute, sign in (("gt", ">"), ("ge", ">="), ("lt", "<"), ("le", "<=")):
            value = getattr(limit, attribute, None)
            if value is not None:
                ranges[sign] = value
    text = ", ".join(f"{sign} {value}" for sign, value in ranges.items())
    for limit in metadata:
        if getattr(limit, "pattern", None):
            text += f"that matches {limit.pattern}"
            break
    return text


def flat(value: Any, name: str) -> Iterator[tuple[str, bool | int | float | str]]:
    """Yield (dotted key, value) of all options below `name`, e.g. ("train.epochs", 3).

    TensorBoard takes the options of a run as such pairs. A list is given as its JSON, e.g.
    "[0.9, 0.99]". Options that are null are left out.

    value: a section as plain types, or the value of one option
    name: dotted key of `value`
    """
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from flat(inner, f"{name}.{key}")
    elif isinstance(value, (bool, int, float, str)):
        yield name, value
    elif value is not None:
        yield name, json.dumps(value)


# ---- Registries of parts ----------------------------------------------------------------------


class Registered(NamedTuple):
    """What a registry knows of one part."""

    constructor: Callable[..., Any]  # the class or function
    given: frozenset[str]  # parameters that code supplies to `build`; they are no option keys
    annotations: dict[str, type[Section]]  # parameter -> type that replaces its annotation


class Registry:
    """Names -> constructors of one kind of part, e.g. ``Registry("network", type_key="net_type")``.

    What the annotation of a constructor's parameter means for the option file:

        width: int = 16
            a key "width" with this type and this default
        fusion: Annotated[dict | str, FUSIONS] = "concat"
            a nested part: the key "fusion" holds the section of a part in the registry FUSIONS, or
            only its name. FUSIONS checks the section.
        window: WindowOptions
            the keys of this Section stand beside the other keys, without a key "window". The
            constructor gets all options in this argument. So keys that several parts share are
            written down once.

    A constructor may have an attribute `GONE`: key of a former version -> the value with which the
    key is accepted and has no effect, e.g. GONE = {"rate_windows": 0}.

    These rules are promised in docs/extending.md: parts of other people rely on them. Tests:
    test_extending.py.

    kind: what the parts are, for messages, e.g. "network"
    type_key: the key of a section that names the part, e.g. "net_type"
    base: a Section with keys that every part of this kind has in addition
    """

    def __init__(self, kind: str, type_key: str = "type", base: type[Section] = Section) -> None:
        self.kind = kind
        self.type_key = type_key
        self.base = base
        self._parts: dict[str, Registered] = {}
        self._models: dict[str, type[Section]] = {}  # made when they are asked for first

    def register(
        self, name: str, given: Collection[str] = (), **annotations: type[Section]
    ) -> Callable[[Part], Part]:
        """Return a decorator that registers a class or function as `name`.

        given: parameters that code supplies to `build`. They are no option keys
        annotations: types of parameters that the constructor annotates too loosely, because a class
            inherits it. E.g. section=OwnKeys, if the inherited constructor says section: Section
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
        """Return the model of a part's section.

        Its keys are the type key, the keys of `base` (which every part of this kind has), and the
        parameters of the constructor. The model is made once and kept, so no part may change after
        its first use.

        The three kinds of parameters, as in the example of `Registry`:

            width: int = 16                              a key with a type and a default
            window: WindowOptions                        the keys of this Section
            fusion: Annotated[dict | str, FUSIONS] = "none"  a key with the section of a nested part
        """
        if name not in self._models:
            # The form of pydantic's create_model: key -> (type, default). A default of `...` means
            # that the key is required. The type key accepts only the name of this part.
            fields: dict[str, Any] = {self.type_key: (literal_of(name), ...)}
            sections = []  # e.g. WindowOptions: the model inherits the keys of these sections
            for key, parameter in self._parameters(name).items():
                annotation = parameter.annotation
                # Like `window`.
                if isinstance(annotation, type) and issubclass(annotation, Section):
                    sections.append(annotation)
                    continue
                # Like `fusion`. What follows the type in Annotated[...] is its `__metadata__`, here
                # (FUSIONS,). `resolve` checks the section of a nested part before the model sees
                # it, so the model takes any value: Annotated[Any, FUSIONS]. The registry stays in
                # the annotation, where `resolve` and lab/make_options_doc.py find it.
                nested = _registry_in(getattr(annotation, "__metadata__", ()))
                if nested is not None:
                    annotation = Annotated[Any, nested]
                default = parameter.default
                if default is inspect.Parameter.empty:
                    default = ...  # required
                fields[key] = (annotation, default)
            model = create_model(name, __base__=(*sections, self.base), **fields)
            model.constructor = self.constructor(name)
            self._models[name] = model
        return self._models[name]

    def resolve(self, section: Section | Mapping[str, Any] | str, where: str) -> Any:
        """Return a section checked and completed with the constructor's defaults.

        A section that is resolved already stays as it is. Raises OptionError for an unknown part,
        an unknown or missing key, or a value of the wrong type.

        section: the section of an option file, or the name of a part alone
        where: dotted key of the section, e.g. "netG" (the caller adds the file's name)
        """
        # Bring all forms of a section into one: key -> value.
        if isinstance(section, Section):
            return section
        if isinstance(section, str):
            values: dict[str, Any] = {self.type_key: section}
        elif isinstance(section, Mapping):
            values = dict(section)
        else:
            # A wrong value may be a secret in the wrong place, so `redact` hides it.
            raise OptionError(
                what=f"{where} is {redact(section, where, '***')!r}",
                where=where,
                expected=f"an object {{ ... }}, or the name of a {self.kind}",
                do=f"correct {where}",
            )
        name = values.get(self.type_key)
        if name not in self.names():
            raise self._unknown_part(name, where)
        model = self.model(name)

        # Leave out keys of former versions, if they have the value without effect. With another
        # value the key stays, and is refused below as unknown.
        for key, harmless_value in getattr(model.constructor, "GONE", {}).items():
            if key in values and values[key] == harmless_value:
                del values[key]

        # Resolve the nested parts first. All errors are collected.
        errors = []
        for key, field in model.model_fields.items():
            nested = _registry_in(field.metadata)
            default = None if field.is_required() else field.default
            value = values.get(key, default)
            if nested is not None and value is not None:
                try:
                    values[key] = nested.resolve(value, f"{where}.{key}")
                except OptionError as e:
                    errors.append(e)
        # Then this section. Its own errors come before the errors of its nested parts.
        try:
            resolved = read_section(model, values, where, f'{self.kind} "{name}"')
        except OptionError as e:
            errors.insert(0, e)
        if errors:
            raise joined(errors)
        return resolved

    def _unknown_part(self, name: Any, where: str) -> OptionError:
        """Return the error for a section that names no registered part."""
        key = f"{where}.{self.type_key}"
        what = f"{key} is {redact(name, shown='***')!r}"
        if name is None:
            what = f"{key} is missing"
        names = self.names()
        return OptionError(
            what=what,
            where=key,
            expected=f"a registered {self.kind}: {', '.join(names)}{nearest(str(name), names)}",
            do="choose one of these, or register your own",
        )

    def build(self, section: Section | Mapping[str, Any] | str, where: str, **given: Any) -> Any:
        """Return the part that a section describes.

        section, where: see `resolve`
        given: parameters that code supplies, e.g. the number of channels. A parameter that this
            part does not take is left out, so callers can offer all of them to each part of a kind
        """
        options = self.resolve(section, where)
        name = getattr(options, self.type_key)
        part = self._parts[name]
        # The order of the parameters does not matter, because all are given by name.
        arguments = {}
        for key in self._parameters(name):
            if key in type(options).model_fields:
                arguments[key] = getattr(options, key)
            else:
                # A parameter such as `window: WindowOptions` is no key itself. It gets all options,
                # and the keys of WindowOptions are among them.
                arguments[key] = options
        for key, value in given.items():
            if key in part.given:
                arguments[key] = value
        return part.constructor(**arguments)

    def _parameters(self, name: str) -> dict[str, inspect.Parameter]:
        """Return the parameters of a constructor that are option keys, or stand for some.

        Their annotations are types, also if the source has them as text ("int | None").

        name: of the part
        """
        part = self._parts[name]
        function = part.constructor
        if inspect.isclass(function):
            function = function.__init__
        # The annotations that were given to `register` win.
        hints = get_type_hints(function, include_extras=True) | part.annotations
        option_parameters = {}
        for key, parameter in inspect.signature(part.constructor).parameters.items():
            # *args and **kwargs have no names that an option file could use.
            is_star = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
            if key not in part.given and not is_star:
                annotation = hints.get(key, Any)
                option_parameters[key] = parameter.replace(annotation=annotation)
        return option_parameters


def _registry_in(metadata: Sequence[Any]) -> Registry | None:
    """Return the registry in an annotation, if it describes a nested part. Else return None.

    metadata: what follows the type in Annotated[type, ...], e.g. (FUSIONS,) of
    Annotated[dict, FUSIONS].
    """
    for item in metadata:
        if isinstance(item, Registry):
            return item
    return None


def literal_of(*values: str) -> Any:
    """Return the type Literal["a", "b"] of values that are only known when the program runs."""
    literal: Any = Literal
    return literal[values]


def import_parts(package: str, pattern: str) -> None:
    """Import the modules of a package whose names match, so that they register their parts.

    For example, ("models", "network_*") imports models/network_vrt.py. So a researcher adds a part
    by adding a file.

    package: name of the package; pattern: of the names of its modules, "*" for any letters
    """
    for module in pkgutil.iter_modules(importlib.import_module(package).__path__):
        if fnmatch.fnmatch(module.name, pattern):
            importlib.import_module(f"{package}.{module.name}")

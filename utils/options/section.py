"""Groups of options, and registries of parts whose parameters are options.

    Section     a frozen pydantic model: the keys of one section of an option file
    Registry    names -> parts of one kind; the parameters of a part are its option keys

A part is a class or function that an option file chooses by its name, e.g. the network "vrt". The
kinds of parts are networks, datasets, losses, fusion operators, and more.

A researcher who adds a part registers one class or function. Its parameters are its option keys,
its annotations are their types, and its defaults are their defaults:

    NETWORKS = Registry("network", type_key="net_type")

    @NETWORKS.register("tiny")
    class Tiny(nn.Module):
        def __init__(self, width: int = 16) -> None: ...

    NETWORKS.resolve({"net_type": "tiny"}, "netG")    ->  a Section with net_type and width 16
    NETWORKS.build({"net_type": "tiny"}, "netG")      ->  Tiny(width=16)

Errors name the wrong key and the nearest valid key.

What must stay: the meaning of a constructor's parameter in an option file, see `Registry`
(test_each_program_works_with_new_parts). Free to change: the words of types and errors, together
with test_option.py, and how the models are made.

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

# The type of a part. `Registry.register` returns the part unchanged, so a type checker must know
# that input and output have one type.
Part = TypeVar("Part", bound=Callable[..., Any])

# First words of the error for an unknown key. `join_errors` and scripts/convert_options.py use
# them to recognise the error. Other words need other expected texts in the tests, e.g. in
# test_option.py.
UNKNOWN_OPTION = "unknown option"

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

    #     strict                     "3" is no int
    #     extra                      an unknown key is an error
    #     frozen                     no change after reading
    #     arbitrary_types_allowed    a field may hold any object, e.g. the section of a part
    #     allow_inf_nan              a NaN or an infinite number is no option
    model_config = ConfigDict(
        strict=True, extra="forbid", frozen=True, arbitrary_types_allowed=True, allow_inf_nan=False
    )
    # The class or function of the part that the section names. None if it names no part.
    constructor: ClassVar[Any] = None

    def plain(self) -> dict[str, Any]:
        """Return the section as an option file holds it: plain types, sections as objects."""
        return self.model_dump(mode="json", serialize_as_any=True)


# The class of a section: `read_section` gets a class and returns an object of the same class, which
# this name tells a type checker.
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
        raise join_errors(errors) from None


def join_errors(errors: Collection[OptionError]) -> OptionError:
    """Join several errors to one: the text of the first error, and the keys of the others.

    E.g. "unknown option train.epoch" and "netG.width is -1" give the first error. Its advice ends
    with "; then also: netG.width".

    Errors of unknown keys come before all others, because a missing key may be just the unknown
    key, misspelt. `found` of the result must hold every single error, because
    scripts/convert_options.py reports each of them (test_the_problems_of_a_file_are_named_at_once).
    An error of an unknown key is known by its first words, UNKNOWN_OPTION.
    """
    single_errors: list[OptionError] = []
    for error in errors:
        # `found` of an error that was joined before holds its single errors. Else it is empty.
        if error.found:
            single_errors += error.found
        else:
            single_errors.append(error)

    unknown_key_errors = [e for e in single_errors if e.what.startswith(UNKNOWN_OPTION)]
    other_errors = [e for e in single_errors if not e.what.startswith(UNKNOWN_OPTION)]
    ordered_errors = unknown_key_errors + other_errors
    first_error = ordered_errors[0]

    # "then also: a, b" names each further key once.
    further_keys = []
    for e in ordered_errors[1:]:
        if e.where != first_error.where and e.where not in further_keys:
            further_keys.append(e.where)
    do = first_error.do
    if further_keys:
        do += f"; then also: {', '.join(further_keys)}"
    joined_error = OptionError(first_error.what, first_error.where, first_error.expected, do)
    joined_error.found = tuple(ordered_errors)
    return joined_error


class _FailedKey(NamedTuple):
    """The key that an error of pydantic is about, and the section that has the key.

    E.g. for ("train", "G_optimizer_betas", 0) read by the model Options: the key
    "G_optimizer_betas" of the section "train", which has the model TrainOptions.
    """

    key: str  # name of the key within its section
    section: str  # dotted key of the section, "" for the whole file
    model: type[Section]  # the model of the section
    values: Mapping[str, Any]  # the values that were given for the section
    is_in_outer_section: bool  # whether it is the section that `read_section` was called for

    @property
    def dotted(self) -> str:
        """Return the whole name of the key, e.g. "train.G_optimizer_betas"."""
        return f"{self.section}.{self.key}".strip(".")


def _failed_key(
    loc: Sequence[str | int], model: type[Section], values: Mapping[str, Any], where: str
) -> _FailedKey:
    """Return the key that an error of pydantic is about.

    loc: the path to the wrong value, as pydantic gives it, e.g. ("train", "G_optimizer_betas", 0).
        The first names are sections within one another. Then comes the key. Whatever follows the
        key is a position within its value, here item 0 of a list, and is left out.
    model, values, where: arguments of `read_section`
    """
    # Go into one section after the other, as long as a name is a section. Then `model` and `values`
    # belong to the innermost section. The last name of `loc` is never a section: it is the key, or
    # a position within the value of the key.
    names = [str(name) for name in loc]
    depth = 0  # number of sections on the path
    while depth < len(names) - 1:
        inner = _section_type(model, names[depth])
        if inner is None:
            break  # names[depth] is no section, so it is the key
        model = inner
        values = values[names[depth]]
        depth += 1
    section = ".".join([where, *names[:depth]]).strip(".")  # `where` may be "", the whole file
    return _FailedKey(names[depth], section, model, values, is_in_outer_section=depth == 0)


def _error_of(
    error: ErrorDetails, model: type[Section], values: Mapping[str, Any], where: str, kind: str
) -> OptionError:
    """Return an error of pydantic as an error for the user.

    model, values, where, kind: arguments of `read_section`
    """
    failed = _failed_key(error["loc"], model, values, where)
    dotted = failed.dotted

    # 1. The section does not know the key.
    if error["type"] == "extra_forbidden":
        # `kind` describes the outer section. A section within it has no kind.
        return _unknown_key(failed, kind if failed.is_in_outer_section else "")

    # 2. The key is missing. `expected` is what the field takes, in words, here and in case 3.
    field = failed.model.model_fields[failed.key]
    is_section = _section_type(failed.model, failed.key) is not None
    expected = "an object { ... }" if is_section else describe(field)
    if error["type"] == "missing":
        return OptionError(f"{dotted} is missing", dotted, expected, f"add {dotted}")

    # 3. The value is wrong. The error shows the value, unless the value is a secret. A secret has
    # the type SecretStr, or `redact` recognises it by its key or its form.
    if "SecretStr" in str(field.annotation):
        shown = MASK
    else:
        shown = repr(redact(failed.values.get(failed.key), failed.key, MASK))
    return OptionError(
        what=f"{dotted} is {shown}",
        where=dotted,
        expected=expected,
        do=f"correct {dotted}; docs/options.md lists all keys",
    )


def _unknown_key(failed: _FailedKey, kind: str) -> OptionError:
    """Return the error for a key that its section does not have.

    E.g. "unknown option train.epoch; expected one of the keys of "train"; the nearest is epochs
    (int > 0 or null); do: rename it".

    kind: what the section describes, e.g. 'network "vrt"', or ""
    """
    # Fields with `exclude` are no options: the program itself sets them.
    fields = failed.model.model_fields
    valid_keys = [name for name, field in fields.items() if not field.exclude]
    nearest_key = _nearest_name(failed.key, valid_keys)

    expected = f'one of the keys of "{failed.section}"' if failed.section else "a section"
    if kind:
        expected += f" with {kind}"
    if nearest_key is not None:
        expected += f"; the nearest is {nearest_key} ({describe(fields[nearest_key])})"

    if failed.key in OTHER_NAMES:
        do = f"rename it: {OTHER_NAMES[failed.key]}"
    elif nearest_key is not None:
        do = "rename it"
    else:
        do = f"remove it; the keys are {', '.join(valid_keys)}"

    return OptionError(
        what=f"{UNKNOWN_OPTION} {failed.dotted}",
        where=failed.dotted,
        expected=expected,
        do=do,
    )


def _section_type(model: type[BaseModel], name: str) -> type[Section] | None:
    """Return the type of a field if it is a Section, e.g. PathOptions for the field `path`.

    A field that may be null counts, too, e.g. `PathOptions | None`. Returns None for a field of
    another type, and for an unknown name.

    name: name of the field
    """
    field = model.model_fields.get(name)
    if field is None:
        return None
    # The arguments of `PathOptions | None` are PathOptions and None.
    for candidate in (field.annotation, *get_args(field.annotation)):
        if isinstance(candidate, type) and issubclass(candidate, Section):
            return candidate
    return None


def nearest_hint(name: str, valid_names: Collection[str]) -> str:
    """Return "; the nearest is X" for an error message, or "" if nothing resembles `name`."""
    nearest_name = _nearest_name(name, valid_names)
    return "" if nearest_name is None else f"; the nearest is {nearest_name}"


def _nearest_name(name: str, valid_names: Collection[str]) -> str | None:
    """Return the valid name that resembles `name` most, or None if nothing resembles it."""
    # 0.6 is the default of difflib: about six of ten letters agree. A smaller cutoff would propose
    # names that have little in common, a larger cutoff would miss misspellings of short names.
    matches = difflib.get_close_matches(name, list(valid_names), n=1, cutoff=0.6)
    return matches[0] if matches else None


# ---- Types in words ---------------------------------------------------------------------------


def describe(annotation: Any, limits: Sequence[Any] = ()) -> str:
    """Return type and range of a field in words, e.g. "float > 0" or "list of 2 int or null".

    Errors and docs/options.md show these words. So the words may change, but then run
    lab/make_options_doc.py, which writes the page again. test_option_files.py notices if the page
    was not written again. A new kind of type gets a branch here and a function below.

    annotation: a type, or a field of a model
    limits: the objects with which pydantic holds the range of the type, e.g. [Gt(gt=0)]
    """
    # First unwrap the two forms that hold a type together with limits.
    if isinstance(annotation, FieldInfo):
        return describe(annotation.annotation, annotation.metadata)
    kind = get_origin(annotation)  # e.g. list for list[int], None for int
    if kind is Annotated:  # e.g. Annotated[int, Field(ge=0)]
        inner_type, *metadata = get_args(annotation)
        return describe(inner_type, [*_limits_in(metadata), *limits])

    # Then the kinds of types, each in its own form.
    if kind in (Union, types.UnionType):
        return _describe_union(get_args(annotation), limits)
    if kind is Literal:
        return _describe_literal(get_args(annotation))
    if kind in (list, tuple):
        return _describe_list(get_args(annotation)[0], limits)
    # A Section, or dict[str, ...], is an object in JSON.
    plain_type = annotation if kind is None else kind
    if isinstance(plain_type, type) and issubclass(plain_type, (BaseModel, dict)):
        return "object"
    # Any other type has its Python name. E.g. float with [Gt(gt=0)] -> "float > 0".
    name = getattr(annotation, "__name__", str(annotation))
    return f"{name} {_bounds(limits)}".strip()


def _limits_in(metadata: Sequence[Any]) -> list[Any]:
    """Return the limits that follow the type in an annotation.

    E.g. Annotated[int, Field(ge=0, lt=9)] has the limits [Ge(ge=0), Lt(lt=9)]. They are the
    `metadata` of the Field. Anything else that follows the type is a limit itself.

    metadata: what follows the type in Annotated[type, ...]
    """
    limits = []
    for item in metadata:
        if isinstance(item, FieldInfo):
            limits += item.metadata
        else:
            limits.append(item)
    return limits


def _describe_union(alternatives: Sequence[Any], limits: Sequence[Any]) -> str:
    """Return `int | None` as "int or null", and `float | list[float]` as "float or list of float".

    alternatives: the types, e.g. (int, NoneType)
    limits: limits of the union. They belong to the only type that is not None. If there are several
        types, pydantic does not say which of them is limited, so the text has no limits.
    """
    not_none = [each for each in alternatives if each is not type(None)]
    if len(not_none) > 1:
        limits = ()
    texts = []
    for alternative in not_none:
        text = describe(alternative, limits)
        # A tuple is a list in JSON, so `list[int] | tuple[int, ...]` gives one text.
        if text not in texts:
            texts.append(text)
    if type(None) in alternatives:
        texts.append("null")
    return " or ".join(texts)


def _describe_literal(values: Sequence[Any]) -> str:
    """Return the values as JSON has them, e.g. ("adam", "adamw") -> '"adam" | "adamw"'."""
    texts = []
    for value in values:
        texts.append(f'"{value}"' if isinstance(value, str) else str(value))
    return " | ".join(texts)


def _describe_list(item_type: Any, limits: Sequence[Any]) -> str:
    """Return a list in words, e.g. "list of float", or "list of 2 float" with a largest length 2.

    The text leaves out a smallest length: nearly all lists of this project have one fixed length.
    """
    length = ""  # "2 ", or "" without a largest length
    for limit in limits:
        if getattr(limit, "max_length", None):
            length = f"{limit.max_length} "
            break
    return f"list of {length}{describe(item_type)}"


def _bounds(limits: Sequence[Any]) -> str:
    """Return the limits of a plain type in words, e.g. ">= 0, < 1", or "" without limits.

    limits: objects of pydantic, e.g. Ge(ge=0). One object may have several limits as attributes,
        e.g. `ge` and `lt`. A limit that the object does not have is missing or None.
    """
    bounds = {}  # sign -> value. Of two limits with the same sign, the last one counts.
    # The regular expression that a text must match, or "". Of two limits, the first one counts.
    pattern = ""
    for limit in limits:
        for attribute, sign in (("gt", ">"), ("ge", ">="), ("lt", "<"), ("le", "<=")):
            value = getattr(limit, attribute, None)
            if value is not None:
                bounds[sign] = value
        if not pattern:
            pattern = getattr(limit, "pattern", None) or ""
    text = ", ".join(f"{sign} {value}" for sign, value in bounds.items())
    if pattern:
        text += f"that matches {pattern}"
    return text


def flatten_options(value: Any, name: str) -> Iterator[tuple[str, bool | int | float | str]]:
    """Yield (dotted key, value) of all options below `name`, e.g. ("train.epochs", 3).

    TensorBoard and scripts/compare_runs.py take the options of a run as these pairs. A list becomes
    its JSON text, e.g. "[0.9, 0.99]". Options that are null are left out.

    value: a section as plain types, or the value of one option
    name: dotted key of `value`
    """
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from flatten_options(inner, f"{name}.{key}")
    elif isinstance(value, (bool, int, float, str)):
        yield name, value
    elif value is not None:  # a list
        yield name, json.dumps(value)


# ---- Registries of parts ----------------------------------------------------------------------


class Registered(NamedTuple):
    """What a registry knows of one part, from the arguments of `Registry.register`."""

    constructor: Callable[..., Any]  # the class or function
    given: frozenset[str]  # parameters that the caller of `build` supplies; they are no option keys
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

    These rules must stay, because docs/extending.md promises them and parts of other people rely on
    them. Tests: test_extending.py. How the models are made is free to change.

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
        # Name of a part -> model of its section. Each model is made when it is asked for first.
        self._models: dict[str, type[Section]] = {}

    def register(
        self, name: str, given: Collection[str] = (), **annotations: type[Section]
    ) -> Callable[[Part], Part]:
        """Return a decorator that registers a class or function as `name`.

        given: parameters that the caller of `build` supplies, e.g. "seed". They are no option keys
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
        parameters of the constructor. The model is made once and kept. So a part that changes after
        its first use keeps its old keys.
        """
        if name not in self._models:
            self._models[name] = self._make_model(name)
        return self._models[name]

    def _make_model(self, name: str) -> type[Section]:
        """Make the model of a part's section.

        The three kinds of parameters, as in the example of `Registry`:

            width: int = 16                              a key with a type and a default
            window: WindowOptions                        the keys of this Section
            fusion: Annotated[dict | str, FUSIONS] = "none"  a key with the section of a nested part
        """
        # pydantic's `create_model` takes key -> (type, default). A default of `...` means that the
        # key is required. The type key accepts only the name of this part.
        fields: dict[str, Any] = {self.type_key: (literal_of(name), ...)}
        sections = []  # e.g. WindowOptions: the model inherits the keys of these sections
        for key, parameter in self._parameters(name).items():
            annotation = parameter.annotation
            # A parameter such as `window: WindowOptions`.
            if isinstance(annotation, type) and issubclass(annotation, Section):
                sections.append(annotation)
                continue
            # A parameter such as `fusion: Annotated[dict | str, FUSIONS]`. What follows the type in
            # Annotated[...] is its `__metadata__`, here (FUSIONS,). `resolve` checks the section of
            # a nested part before the model sees it, so the model takes any value:
            # Annotated[Any, FUSIONS]. The registry stays in the annotation, where `resolve` and
            # lab/make_options_doc.py find it (test_a_part_within_a_part_has_its_defaults).
            nested_registry = _registry_in(getattr(annotation, "__metadata__", ()))
            if nested_registry is not None:
                annotation = Annotated[Any, nested_registry]
            default = parameter.default
            if default is inspect.Parameter.empty:
                default = ...  # required
            fields[key] = (annotation, default)
        model = create_model(name, __base__=(*sections, self.base), **fields)
        model.constructor = self.constructor(name)
        return model

    def resolve(self, section: Section | Mapping[str, Any] | str, where: str) -> Any:
        """Return a section checked and completed with the constructor's defaults.

        E.g. {"net_type": "tiny"} gives a Section with net_type "tiny" and width 16, if 16 is the
        default of the parameter `width` of Tiny.

        Raises OptionError for an unknown part, an unknown or missing key, or a value of the wrong
        type. The argument is not changed.

        section: the section of an option file, or the name of a part alone. A Section is resolved
            already and is returned as it is, so a caller may resolve twice
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

        # Resolve the nested parts first, because the model of this section does not check them. All
        # errors are collected, so that a user can correct them at once
        # (test_the_problems_of_a_file_are_named_at_once).
        errors = _resolve_nested_parts(values, model, where)
        # Then this section. Its own errors come before the errors of its nested parts.
        try:
            resolved = read_section(model, values, where, kind=f'{self.kind} "{name}"')
        except OptionError as e:
            errors.insert(0, e)
        if errors:
            raise join_errors(errors)
        return resolved

    def _values_of(self, section: Mapping[str, Any] | str, where: str) -> dict[str, Any]:
        """Return a section as a new dict key -> value.

        E.g. "concat" -> {"type": "concat"}. Raises OptionError if the value is no section.
        """
        if isinstance(section, str):
            return {self.type_key: section}
        if isinstance(section, Mapping):
            return dict(section)
        # A wrong value may be a secret in the wrong place, so `redact` hides it.
        raise OptionError(
            what=f"{where} is {redact(section, where, '***')!r}",
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

        section: the values of the section, or the name of the part alone
        where: dotted key of the section, for errors
        given: values that the program knows and the option file does not, e.g. spike_channels=2. A
            part gets a value only if it was registered with its name in `given`. So a caller can
            offer the same values to all parts of a kind
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
                # A parameter such as `window: WindowOptions` is no key itself. It gets all options,
                # and the keys of WindowOptions are among them.
                arguments[key] = options
        # The parameters whose values come from the program.
        for key, value in given.items():
            if key in part.given:
                arguments[key] = value
        return part.constructor(**arguments)

    def _parameters(self, name: str) -> dict[str, inspect.Parameter]:
        """Return the parameters of a constructor that come from the option file: name -> parameter.

        E.g. `def __init__(self, width: int = 16, seed: int = 0)`, registered with given=("seed",):
        the result has the key "width" alone, because the program supplies `seed`.

        The annotations of the result are types, also if the source has them as text
        ("int | None").

        name: name of the part
        """
        part = self._parts[name]
        # The annotations of a class are those of its __init__.
        function = part.constructor
        if inspect.isclass(function):
            function = function.__init__
        # The annotations that were given to `register` replace the annotations of the constructor.
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
    """Remove the keys of former versions from `values`, if they have the value without effect.

    So an old option file is still read. With another value the file asks for something that is
    gone: the key stays, and `read_section` refuses it as unknown.
    """
    gone_keys = getattr(model.constructor, "GONE", {})  # e.g. {"rate_windows": 0}
    for key, harmless_value in gone_keys.items():
        if key in values and values[key] == harmless_value:
            del values[key]


def _resolve_nested_parts(
    values: dict[str, Any], model: type[Section], where: str
) -> list[OptionError]:
    """Replace each section of a nested part in `values` by the resolved section.

    E.g. the value "gated" of the key `fusion` becomes a Section with all keys of this fusion. If
    the key is missing, its default is resolved. A wrong section stays as it is, and its error is in
    the returned list. Test: test_a_part_within_a_part_has_its_defaults.

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
    for module in pkgutil.iter_modules(importlib.import_module(package).__path__):
        if fnmatch.fnmatch(module.name, pattern):
            importlib.import_module(f"{package}.{module.name}")

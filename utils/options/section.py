"""Groups of options: `Section`, a frozen pydantic model with the keys of one section of a file.

    Section            the base class of all sections, in utils/options/models.py and of parts
    Count, Positive    types of keys: numbers from 0, numbers from 1
    read_section       values of a file -> a Section with all defaults, or an OptionError
    join_errors        several errors -> one, so that a user can correct all keys at once

For example:

    class AmpOptions(Section):
        enable: bool = False

    read_section(AmpOptions, {"enable": True}, where="train.amp")    AmpOptions(enable=True)
    read_section(AmpOptions, {"enabled": True}, where="train.amp")   OptionError: unknown option
                                                                     train.amp.enabled

pydantic finds the errors. This module turns its errors into words for the user: the wrong key, the
value, what was expected, and the nearest valid key.

What must stay: no value is converted by a guess (the text "3" is not a number), and no error shows
a secret. Free to change: the words of errors, together with test_option.py.

Tests: tests/parts/utils/test_option.py, tests/parts/utils/test_option_files.py
"""

import difflib
import json
import types
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar, NamedTuple, TypeVar, Union, get_args, get_origin

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
)
from pydantic_core import ErrorDetails

from utils.errors import OptionError
from utils.options.type_words import describe
from utils.secrets import MASK, redact

# Types of keys. `ge` means "greater or equal". Other numbers give their range in their own Field.
Count = Annotated[int, Field(ge=0)]  # 0, 1, 2, ...
Positive = Annotated[int, Field(ge=1)]  # 1, 2, 3, ...


class Section(BaseModel):
    """A group of options: no unknown key, no conversion between types, no change after reading."""

    # The settings of pydantic:
    #
    #     strict                     "3" is not an int
    #     extra                      an unknown key is an error
    #     frozen                     no change after reading
    #     arbitrary_types_allowed    a field may hold any object, e.g. the section of a part
    #     allow_inf_nan              a NaN or an infinite number is not an option
    model_config = ConfigDict(
        strict=True, extra="forbid", frozen=True, arbitrary_types_allowed=True, allow_inf_nan=False
    )
    # The class or function whose arguments the section holds, e.g. the class VRT for netG.
    # `Registry` sets it. None if the section belongs to no class or function, e.g. `val`.
    constructor: ClassVar[Any] = None

    @field_validator("*", mode="before")
    @classmethod
    def _lists_as_tuples(cls, value: Any, info: ValidationInfo) -> Any:
        """Turn the lists of a file into tuples, if the type of the field has tuples.

        pydantic calls this for each key, before it checks the type of the value.
        """
        assert info.field_name is not None
        return with_tuples(value, cls.model_fields[info.field_name].annotation)

    def plain(self) -> dict[str, Any]:
        """Return the section as JSON holds it: numbers, texts, lists, and dicts for sections."""
        return self.model_dump(mode="json", serialize_as_any=True)


def with_tuples(value: Any, annotation: Any) -> Any:
    """Turn the lists of `value` into tuples, at the places where `annotation` has tuples.

    JSON has no tuples, so a file gives a list, and a strict model of pydantic refuses a list where
    it expects a tuple. E.g.

        [3, 4]             with tuple[int, int]               (3, 4)
        [[3, 4], [5, 6]]   with list[tuple[int, int]] | None  [(3, 4), (5, 6)]
        [3, 4, 5]          with tuple[int, int]               (3, 4, 5), which pydantic refuses
    """
    if not isinstance(value, list):
        return value
    kind = get_origin(annotation) or annotation  # list for list[int], int for int
    inner_types = get_args(annotation)
    if kind is Annotated:
        return with_tuples(value, inner_types[0])
    if kind in (Union, types.UnionType):  # e.g. list[tuple[int, int]] | None
        for alternative in inner_types:
            converted = with_tuples(value, alternative)
            # A tuple never equals a list. So if `converted` differs from `value`, this alternative
            # has tuples.
            if converted != value:
                return converted
        return value
    if kind is list and inner_types:
        return [with_tuples(item, inner_types[0]) for item in value]
    if kind is tuple:
        return _as_tuple(value, inner_types)
    return value


def _as_tuple(values: list[Any], item_types: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return a list as a tuple. Lists within it become tuples, too, as the types of its items say.

    item_types: what stands in the brackets of the type, e.g. (int, str) for tuple[int, str]
    """
    if Ellipsis in item_types:  # tuple[int, ...]: any number of items, all of the first type
        item_types = item_types[:1] * len(values)  # e.g. (int, int, int) for three items
    items = []
    # `strict=False`: the list may be longer or shorter than the types.
    for item, item_type in zip(values, item_types, strict=False):
        items.append(with_tuples(item, item_type))
    # Keep additional items as they are, so that pydantic refuses a list that is too long.
    items += values[len(items) :]
    return tuple(items)


# For the type checker: `read_section` returns an object of the class that it gets.
AnySection = TypeVar("AnySection", bound=Section)


def flatten_options(value: Any, name: str) -> Iterator[tuple[str, bool | int | float | str]]:
    """Yield (dotted key, value) of all options below `name`, e.g. ("train.epochs", 3).

    TensorBoard and scripts/compare_runs.py take the options of a run as these pairs. A list becomes
    its JSON text, e.g. "[0.9, 0.99]". Options that are null are left out.

    value: a section as a dict (`Section.plain`), or the value of one option
    name: dotted key of `value`. For the whole file it is "", and then each key begins with a dot,
        e.g. ".train.epochs"
    """
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from flatten_options(inner, f"{name}.{key}")
    elif isinstance(value, (bool, int, float, str)):
        yield name, value
    elif value is not None:  # a list, because the other types are handled above
        yield name, json.dumps(value)


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
        # `from None` hides the error of pydantic, because it would print the values, among them
        # secrets.
        raise join_errors(errors) from None


# First words of the error for an unknown key. `join_errors`, and option_problems.py of
# scripts/parts/convert_options, recognise the error by these words. If you change the words, change
# the texts that the tests expect, too, e.g. in test_option.py.
UNKNOWN_OPTION = "unknown option"


def join_errors(errors: Collection[OptionError]) -> OptionError:
    """Join several errors to one: the text of the first error, and the keys of the other errors.

    An OptionError has four texts: what is wrong (`what`), the dotted key (`where`), what was
    expected (`expected`), and what to do (`do`). E.g. the two errors "unknown option train.epoch"
    and "netG.width is -1" give the first error, with "; then also: netG.width" at the end of `do`.

    Errors of unknown keys come first. An unknown key is often a misspelt key. A misspelt key causes
    a second error, which only says that the right key is missing.

    The attribute `found` of the result has all single errors, because scripts/convert_options.py
    reports each of them (test_the_problems_of_a_file_are_named_at_once).

    errors: at least one error
    """
    single_errors: list[OptionError] = []
    for error in errors:
        if error.found:  # the single errors of an error that was joined before
            single_errors += error.found
        else:
            single_errors.append(error)

    unknown_key_errors = [e for e in single_errors if e.what.startswith(UNKNOWN_OPTION)]
    other_errors = [e for e in single_errors if not e.what.startswith(UNKNOWN_OPTION)]
    ordered_errors = unknown_key_errors + other_errors
    first_error = ordered_errors[0]

    # "then also: a, b" names each other key once.
    other_keys = []
    for e in ordered_errors[1:]:
        if e.where != first_error.where and e.where not in other_keys:
            other_keys.append(e.where)
    do = first_error.do
    if other_keys:
        do += f"; then also: {', '.join(other_keys)}"
    joined_error = OptionError(first_error.what, first_error.where, first_error.expected, do)
    joined_error.found = tuple(ordered_errors)  # for scripts/convert_options.py
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
    # Whether the key is directly in the outer section, for which `read_section` was called. False
    # if the key is in a section within the outer section.
    is_in_outer_section: bool

    @property
    def dotted(self) -> str:
        """Return the whole name of the key, e.g. "train.G_optimizer_betas"."""
        return _dotted(self.section, self.key)


def _dotted(*keys: str) -> str:
    """Return keys joined by dots, e.g. "train", "epochs" -> "train.epochs".

    The whole file has the key "", which adds no dot: "", "train" -> "train".
    """
    return ".".join(keys).strip(".")


def _failed_key(
    loc: Sequence[str | int], model: type[Section], values: Mapping[str, Any], where: str
) -> _FailedKey:
    """Return the key that an error of pydantic is about.

    loc: the path to the wrong value, as pydantic gives it, e.g. ("train", "G_optimizer_betas", 0).
        The first names are sections within one another. The next name is the key. Names after the
        key are positions within its value, here item 0 of a list, and are left out.
    model: the model that `read_section` was called for, e.g. Options.
    values: the values of the section that `read_section` was called for.
    where: dotted key of this section, "" for the whole file.
    """
    # Step into one section after the other, until a name is not a section. This name is the key.
    # `model` and `values` then belong to the section that has the key. In the example:
    #
    #     names     "train", "G_optimizer_betas", "0"
    #     depth 0   "train" is a section: go on in it
    #     depth 1   "G_optimizer_betas" is not a section, so it is the key of the section "train"
    names = [str(name) for name in loc]
    depth = 0  # number of sections on the path
    # Do not step into the last name. If the last name is a section, the value of the section is
    # wrong, e.g. "train": 3, so the section itself is the key.
    while depth < len(names) - 1:
        inner = _section_type(model, names[depth])
        if inner is None:
            break  # names[depth] is not a section, so it is the key
        model = inner
        values = values[names[depth]]
        depth += 1
    section = _dotted(where, *names[:depth])  # e.g. "train"
    return _FailedKey(names[depth], section, model, values, is_in_outer_section=depth == 0)


def _error_of(
    error: ErrorDetails, model: type[Section], values: Mapping[str, Any], where: str, kind: str
) -> OptionError:
    """Return an error of pydantic as an error for the user.

    error: one of the errors that pydantic has found in `values`.
    model: the model that `read_section` was called for, e.g. Options.
    values: the values that `read_section` was called for.
    where: dotted key of the section with these values, "" for the whole file.
    kind: what this section describes, e.g. 'network "vrt"', or "".
    """
    failed = _failed_key(error["loc"], model, values, where)
    dotted = failed.dotted

    # 1. The section does not know the key.
    if error["type"] == "extra_forbidden":
        # `kind` describes only the outer section, e.g. 'network "vrt"' describes netG. A key in an
        # inner section, e.g. in netG.fusion, gets no description.
        return _unknown_key(failed, kind if failed.is_in_outer_section else "")

    # 2. The key is missing. `expected`, the type of the field in words, serves for case 3 as well.
    field = failed.model.model_fields[failed.key]
    is_section = _section_type(failed.model, failed.key) is not None
    expected = "an object { ... }" if is_section else describe(field)
    if error["type"] == "missing":
        return OptionError(f"{dotted} is missing", dotted, expected, f"add {dotted}")

    # 3. The value is wrong, and the error shows it. If the value is a secret, the error shows MASK
    # in its place. A secret is a field of the type SecretStr, or a value that `redact` recognises
    # as a secret by its key or its form.
    if "SecretStr" in str(field.annotation):  # in the text, which may be "SecretStr | None"
        shown = MASK
    else:
        value = failed.values.get(failed.key)
        shown = repr(redact(value, key=failed.key, replacement=MASK))
    return OptionError(
        what=f"{dotted} is {shown}",
        where=dotted,
        expected=expected,
        do=f"correct {dotted}; docs/options.md lists all keys",
    )


# Flag of the command line, without "--" -> the option that it sets, e.g. --batch_size 8.
# command_line.py makes a flag of each row.
SHORT_FLAGS = {
    "batch_size": "datasets.train.dataloader_batch_size",
    "num_workers": "datasets.train.dataloader_num_workers",
    "epochs": "train.epochs",
    "learning_rate": "train.G_optimizer_lr",
}
# Name of an option in other programs -> our name. The error for an unknown option tells our name.
OTHER_NAMES = SHORT_FLAGS | {
    "lr": SHORT_FLAGS["learning_rate"],
    "workers": SHORT_FLAGS["num_workers"],
}


def _unknown_key(failed: _FailedKey, kind: str) -> OptionError:
    """Return the error for a key that its section does not have.

    E.g. "unknown option train.epoch; expected one of the keys of "train"; the nearest is epochs
    (int > 0 or null); do: rename it".

    kind: what the section describes, e.g. 'network "vrt"', or ""
    """
    # Fields with `exclude` are not options: the program itself sets them.
    fields = failed.model.model_fields
    valid_keys = [name for name, field in fields.items() if not field.exclude]
    nearest_key = _nearest_name(failed.key, valid_keys)

    expected = f'one of the keys of "{failed.section}"' if failed.section else "a section"
    if kind:
        expected += f" with {kind}"
    if nearest_key is not None:
        expected += f"; the nearest is {nearest_key} ({describe(fields[nearest_key])})"

    inner = _inner_section_with(failed.key, failed.values)  # e.g. "fusion"
    if failed.key in OTHER_NAMES:
        do = f"rename it: {OTHER_NAMES[failed.key]}"
    elif inner is not None:
        place = _dotted(failed.section, inner)  # e.g. "netG.fusion"
        do = f"move it into the object {place}, as {place}.{failed.key}"
    elif nearest_key is not None:
        # scripts/parts/convert_options/option_problems.py compares `do` with this text.
        do = "rename it"
    else:
        do = f"remove it; the keys are {', '.join(valid_keys)}"

    return OptionError(
        what=f"{UNKNOWN_OPTION} {failed.dotted}",
        where=failed.dotted,
        expected=expected,
        do=do,
    )


def _inner_section_with(key: str, values: Mapping[str, Any]) -> str | None:
    """Return the dotted name of the first section within `values` that has a key, or None.

    E.g. `gate_bias` is a key of the fusion "gated". If it stands in netG, whose value of "fusion"
    is the section of this fusion, the result is "fusion".

    values: the values of a section. Only the sections of parts within it are searched, because
        `Registry.resolve` has turned only these sections into objects of `Section`.
    """
    if key == "type":  # each part has a type, so this key says nothing
        return None
    for name, value in values.items():
        if not isinstance(value, Section):
            continue
        if key in type(value).model_fields:
            return name
        deeper = _inner_section_with(key, dict(value))
        if deeper is not None:
            return f"{name}.{deeper}"
    return None


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
    # 0.6 is the default of difflib: about six of ten letters agree. With a smaller cutoff, names
    # that have little in common would be proposed. With a larger cutoff, no name would be proposed
    # for some misspelt short names.
    matches = difflib.get_close_matches(name, list(valid_names), n=1, cutoff=0.6)
    return matches[0] if matches else None

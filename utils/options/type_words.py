"""Describe the type and the range of an option, e.g. "float > 0" or "list of 2 int or null".

A type in Python holds other types, e.g. `list[int] | None`, so `describe` calls itself for each
inner type.

Tests: tests/parts/utils/test_option.py, tests/parts/utils/test_option_files.py.
"""

import types
from collections.abc import Sequence
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo


def describe(annotation: Any, limits: Sequence[Any] = ()) -> str:
    """Return type and range of a field in words, e.g. "float > 0" or "list of 2 int or null".

    Errors and docs/options.md show these words. If you change the words, run
    lab/make_options_doc.py, which writes docs/options.md again. If you do not, test_option_files.py
    fails. For a new kind of type, add a branch here and a function below.

    annotation: a type, or a field of a model, which has a type and limits
    limits: the objects with which pydantic holds the range of the type, e.g. [Gt(gt=0)] for "> 0"
    """
    # First unwrap the two forms that hold a type together with limits.
    if isinstance(annotation, FieldInfo):
        return describe(annotation.annotation, annotation.metadata)
    kind = get_origin(annotation)  # e.g. list for list[int], None for int
    if kind is Annotated:  # e.g. Annotated[int, Field(ge=0)]
        inner_type, *metadata = get_args(annotation)
        return describe(inner_type, [*_limits_in(metadata), *limits])

    # Then describe each kind of type in its own form.
    if kind in (Union, types.UnionType):
        return _describe_union(get_args(annotation), limits)
    if kind is Literal:
        return _describe_literal(get_args(annotation))
    if kind is tuple and Ellipsis not in get_args(annotation):
        return _describe_tuple(get_args(annotation))
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

    E.g. Annotated[int, Field(ge=0, lt=9)] has the limits [Ge(ge=0), Lt(lt=9)], the `metadata` of
    the Field. Anything else that follows the type is a limit itself.

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
    limits: limits of the union, for a union of one type and None. In a union of several types,
        pydantic does not say which type the limits belong to, so the text has no limits.
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
    """Return a list in words: "list of float", or "list of 2 float" if its largest length is 2.

    A smallest length is not in the text, because nearly all lists of this project have one fixed
    length.

    item_type: the type of an element
    limits: what pydantic keeps of `Field(max_length=...)`
    """
    length = ""  # "2 ", or "" without a largest length
    for limit in limits:
        if getattr(limit, "max_length", None):
            length = f"{limit.max_length} "
            break
    return f"list of {length}{describe(item_type)}"


def _describe_tuple(item_types: Sequence[Any]) -> str:
    """Return a tuple, which is a list in JSON, as "list of 2 int" or "list of int, float"."""
    texts = [describe(item_type) for item_type in item_types]
    if len(set(texts)) == 1:
        return f"list of {len(texts)} {texts[0]}"
    return f"list of {', '.join(texts)}"


# pydantic's name of a limit -> its sign.
SIGNS = {"gt": ">", "ge": ">=", "lt": "<", "le": "<="}


def _bounds(limits: Sequence[Any]) -> str:
    """Return the limits of a plain type in words, e.g. ">= 0, < 1", or "" without limits.

    limits: objects of pydantic, e.g. Ge(ge=0). One object may have several limits as attributes,
        e.g. `ge` and `lt`. A limit that the object does not have is missing or None.
    """
    bounds = {}  # sign -> value. If two limits have the same sign, the last one counts.
    # The regular expression that a text must match, or "". The first limit with a pattern counts.
    pattern = ""
    least_length = 0  # smallest length of a text
    for limit in limits:
        for attribute, sign in SIGNS.items():
            value = getattr(limit, attribute, None)
            if value is not None:
                bounds[sign] = value
        if not pattern and getattr(limit, "pattern", None):
            pattern = limit.pattern
        if getattr(limit, "min_length", None):
            least_length = max(least_length, limit.min_length)
    text = ", ".join(f"{sign} {value}" for sign, value in bounds.items())
    if pattern:
        text += f"that matches {pattern}"
    elif least_length == 1:
        text += "that is not empty"
    return text

"""A JSON Schema of the option files, from the option models and the registered parts; make_options_doc.py writes it.

An option file names it with "$schema"; editors then complete and check keys, and show their meaning.
"""

from __future__ import annotations

import inspect
import itertools
import json
import re
from collections.abc import Sequence
from typing import Any

import pydantic

from data.select_dataset import DATASETS
from models.losses import LOSSES
from models.select_network import NETWORKS
from utils.options.file import SCHEMA_KEY
from utils.options.models import KAIR_ONLY, Options
from utils.options.registry import Registry
from utils.options.section import Section

Schema = dict[str, Any]
_KEYS_IN_TEXT = re.compile(r"(?:^|(?<=[.;)] ))(\w+(?:, \w+)*): ")


def schema_text(comment: str) -> str:
    """The schema as JSON, one line for each key and definition. Another pydantic may word it differently."""
    comment = f"{comment} {made_with()}"
    entries = [
        f"{json.dumps(name)}: {_one_per_line(value) if isinstance(value, dict) else json.dumps(value)}"
        for name, value in make_schema(comment).items()
    ]
    return "{\n" + ",\n".join(entries) + "\n}\n"


def made_with() -> str:
    return f"pydantic {pydantic.VERSION.rpartition('.')[0]}"


def _one_per_line(values: Schema) -> str:
    return "{\n" + ",\n".join(f" {json.dumps(key)}: {json.dumps(value)}" for key, value in values.items()) + "\n}"


def make_schema(comment: str) -> Schema:
    """Draft 7. Nothing is required: a file may inherit any key from its base; the programs say what is missing."""
    parts: dict[str, Schema] = {}  # what occurs more than once: keys of parts, and nested parts by kind
    options = _object(_keys(Options, parts))
    of_options = options["properties"]
    for split in ("train", "test"):
        names = [n for n in DATASETS.names() if DATASETS.constructor(n).is_training == (split == "train")]
        section = _part(DATASETS, names, parts, f"datasets.{split}")
        of_options["datasets"]["properties"][split] = section | {"type": ["object", "null"]}
    for key, registry in (("netG", NETWORKS), ("train", LOSSES)):
        of_options[key] = _part(registry, registry.names(), parts, key)
    of_options["path"]["properties"] |= _of_kair("path", of_options["path"]["properties"])
    of_options[SCHEMA_KEY] = {"type": "string", "description": "This schema, for editors; no effect."}
    of_options["base"] = {"type": "string", "description": "An option file beside this one, whose keys are inherited."}
    return {"$schema": "http://json-schema.org/draft-07/schema#", "$comment": comment, "$defs": parts, **options}


def _part(registry: Registry, names: Sequence[str], parts: dict[str, Schema], where: str = "") -> Schema:
    """A section that names a registered part: its type decides the keys; without a type, those of any part."""
    kind, either, branches = registry.type_key, {}, []
    for name in names:
        keys = _keys(registry.model(name), parts, inspect.getdoc(registry.constructor(name)) or "")
        keys |= _of_kair(where, keys)
        keys = {key: {} if key == kind else _shared(key, value, parts) for key, value in keys.items()}
        chosen = {"properties": {kind: {"const": name}}, "required": [kind]}
        branches.append({"if": chosen, "then": {"properties": keys, "additionalProperties": False}})
        for key, value in keys.items():
            forms = either.setdefault(key, [])
            forms += [] if value in forms else [value]
    # A file that inherits the type: where parts differ in the meaning of a key, any of them will do.
    any_part = _object({key: forms[0] if len(forms) == 1 else {"anyOf": forms} for key, forms in either.items()})
    branches.append({"if": {"not": {"required": [kind]}}, "then": any_part})
    texts = [" ".join((inspect.getdoc(registry.constructor(name)) or "").split("\n\n")[0].split()) for name in names]
    chosen = {"enum": list(names), "enumDescriptions": texts, "description": f"The {registry.kind}."}
    return {"type": "object", "properties": {kind: chosen}, "allOf": branches}


def _shared(name: str, schema: Schema, parts: dict[str, Schema]) -> Schema:
    """A reference to the schema, under this name or, where another schema has it, the name and a number."""
    names = itertools.chain([name], (f"{name}_{number}" for number in itertools.count(2)))
    found = next(name for name in names if parts.setdefault(name, schema) == schema)
    return {"$ref": f"#/$defs/{found}"}


def _keys(model: type[Section], parts: dict[str, Schema], text: str = "") -> dict[str, Schema]:
    """The schema of each key of a model. text: a docstring, which explains keys that have no description."""
    whole = model.model_json_schema()
    plain = _without_references(whole, whole.get("$defs", {}))["properties"]
    notes = _notes(text, set(model.model_fields))
    keys: dict[str, Schema] = {}
    for key, field in model.model_fields.items():
        if field.exclude:
            continue
        keys[key] = plain[key]
        if nested := next((m for m in field.metadata if isinstance(m, Registry)), None):
            section = _shared(nested.kind.replace(" ", "_"), _part(nested, nested.names(), parts), parts)
            others = nested.names() + ([None] if field.default is None else [])
            keys[key] |= {"if": {"type": "object"}, "then": section, "else": {"enum": others}}
        if key in notes:
            keys[key].setdefault("description", notes[key])
    return keys


def _notes(text: str, keys: set[str]) -> dict[str, str]:
    """What a docstring says after "key, key: "."""
    text = " ".join(text.split())
    marks = [mark for mark in _KEYS_IN_TEXT.finditer(text) if set(mark[1].split(", ")) <= keys]
    ends = [*(mark.start() for mark in marks), len(text)][1:]
    notes: dict[str, str] = {}
    for mark, end in zip(marks, ends, strict=True):
        for key in mark[1].split(", "):
            notes[key] = f"{notes.get(key, '')} {text[mark.end() : end].strip(' ;')}".strip()
    return notes


def _without_references(schema: Any, definitions: dict[str, Schema]) -> Any:
    """Definitions in their places; without titles, which repeat the keys, and patterns, which differ in JavaScript."""
    if isinstance(schema, list):
        return [_without_references(item, definitions) for item in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        schema = definitions[schema["$ref"].rpartition("/")[2]] | {k: v for k, v in schema.items() if k != "$ref"}
    dropped = ("title", "pattern", "required")  # where they are no keys of options, which have an object
    return {
        k: _without_references(v, definitions) for k, v in schema.items() if k not in dropped or isinstance(v, dict)
    }


def _object(properties: dict[str, Schema]) -> Schema:
    return {"type": "object", "properties": properties, "additionalProperties": False}


def _of_kair(where: str, known: dict[str, Schema]) -> dict[str, Schema]:
    """The keys of KAIR that are accepted in a section without effect."""
    note = {"deprecationMessage": "A key of KAIR; no effect here.", "doNotSuggest": True}  # keywords of VS Code
    return {key: note for key in sorted(KAIR_ONLY.get(where, ())) if key not in known}

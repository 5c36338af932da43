"""Make the JSON Schema of option files. Editors complete and check keys with this schema.

Most functions below take `shared`, the definitions of the schema: name -> schema. If a schema
occurs at several places, it is written once, in `shared`, and each place refers to the definition.
`shared_reference` adds a schema to `shared`. The other functions only pass `shared` to it.

What must stay: the schema accepts every option file of this project.
tests/parts/utils/test_option_files.py reads the written file, e.g.
test_the_schema_finds_a_wrong_key_or_type.
"""

import inspect
import json
from collections.abc import Sequence
from typing import Any

from pydantic.fields import FieldInfo

from data.select_dataset import DATASETS
from lab.options_doc.docstrings import notes_on_keys
from lab.options_doc.parts import MADE_WITH, MARK, PARTS
from utils.options.kair_keys import KAIR_ONLY
from utils.options.models import Options
from utils.options.registry import Registry
from utils.options.section import Section

# The schema of a key that only KAIR has. VS Code understands both words.
SCHEMA_OF_KAIR_KEY = {
    "deprecationMessage": "A key of KAIR; no effect here.",
    "doNotSuggest": True,
}
Schema = dict[str, Any]  # a JSON Schema of something


def _split_of(dataset: str) -> str:
    """Return the split that a data set is for, "train" or "test"."""
    constructor: Any = DATASETS.model(dataset).constructor
    return "train" if constructor.is_training else "test"


def make_schema() -> str:
    """Return the JSON Schema of option files, draft 7, one line for each key and definition.

    The schema requires no key, because a file may inherit any key from its base. If a key is
    missing, the program that reads the file names the key. Another version of pydantic may write
    the schema differently.
    """
    shared: Schema = {}  # gets the definitions from `keys_of` and `part_of`
    keys = keys_of(Options, shared)

    # pydantic does not know which keys a registered part has. So replace the schema of each section
    # that names such a part: a data set (datasets), a network (netG), or a loss (train).
    for split in ("train", "test"):
        names = [name for name in DATASETS.names() if _split_of(name) == split]
        section = part_of(DATASETS, names, shared, f"datasets.{split}")
        # null: the run has no such data set.
        keys["datasets"]["properties"][split] = section | {"type": ["object", "null"]}
    for name in ("netG", "train"):
        keys[name] = part_of(PARTS[name], PARTS[name].names(), shared, name)

    # Keys that no option model has: keys of KAIR, the schema itself, and the file to inherit from.
    for key in sorted(KAIR_ONLY["path"]):
        keys["path"]["properties"][key] = SCHEMA_OF_KAIR_KEY
    keys["$schema"] = {"type": "string", "description": "This schema, for editors; no effect."}
    keys["base"] = {
        "type": "string",
        "description": "An option file beside this one, whose keys are inherited.",
    }
    schema = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "$comment": f"{MARK} {MADE_WITH}",
        "$defs": shared,
        "type": "object",
        "properties": keys,
        "additionalProperties": False,  # an unknown key is an error
    }
    return in_lines(schema)


def in_lines(schema: Schema) -> str:
    """Return a schema as JSON with one line for each key and each definition.

    So a difference in git shows which key has changed. `json.dumps` can only indent all levels or
    no level, so the two outer levels are put together here. Each entry of the schema gets a line.
    If the entry is an object, e.g. "properties", each of its own entries gets a line. E.g.:

        "type": "object",
        "properties": {
         "task": {"type": "string", ...},
         "datasets": {...}
        }
    """
    lines = []
    for name, value in schema.items():
        text = json.dumps(value)
        if isinstance(value, dict):
            entries = []
            for key, schema_of_key in value.items():
                entries.append(f" {json.dumps(key)}: {json.dumps(schema_of_key)}")
            text = "{\n" + ",\n".join(entries) + "\n}"
        lines.append(f"{json.dumps(name)}: {text}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def part_of(registry: Registry, names: Sequence[str], shared: Schema, where: str = "") -> Schema:
    """Return the schema of a section that names a registered part, e.g. the network of netG.

    The type in the section decides which keys it may have. Without a type, it may have the keys of
    any part, because the file may inherit the type. E.g. for two parts A and B:

        {"properties": {"type": {"enum": ["A", "B"]}}, "allOf": [
            {"if": the type is A, "then": the keys of A},
            {"if": the type is B, "then": the keys of B},
            {"if": there is no type, "then": the keys of A and B}]}

    registry: the parts of one kind by their names, e.g. all networks.
    names: the parts that may be named.
    where: dotted key of the section, e.g. "datasets.train". Keys of KAIR are looked up by it.
    """
    type_key = registry.type_key  # the key that names the part, e.g. "net_type"
    keys_of_parts: dict[str, Schema] = {}  # name of a part -> its keys -> their schemas
    descriptions = []  # one for each part
    for name in names:
        keys_of_parts[name] = _keys_of_part(registry, name, shared, where)
        descriptions.append(_first_paragraph(_docstring_of(registry, name)))

    type_schema = {
        "enum": list(names),
        "enumDescriptions": descriptions,
        "description": f"The {registry.kind}.",
    }
    branches = _branches_by_type(type_key, keys_of_parts)
    return {"type": "object", "properties": {type_key: type_schema}, "allOf": branches}


def _keys_of_part(registry: Registry, name: str, shared: Schema, where: str) -> Schema:
    """Return key -> schema of the keys of one part. The arguments are as in `part_of`."""
    docstring = _docstring_of(registry, name)
    keys: Schema = {}
    for key, schema in keys_of(registry.model(name), shared, docstring, where).items():
        if key == registry.type_key:
            keys[key] = {}  # any value: `part_of` checks the type
        else:
            keys[key] = shared_reference(key, schema, shared)
    return keys


def _docstring_of(registry: Registry, name: str) -> str:
    """Return the docstring of the class or function of a part."""
    return inspect.getdoc(registry.constructor(name)) or ""


def _first_paragraph(docstring: str) -> str:
    """Return the first paragraph of a docstring in one line."""
    paragraph = docstring.split("\n\n")[0]
    return " ".join(paragraph.split())


def _branches_by_type(type_key: str, keys_of_parts: dict[str, Schema]) -> list[Schema]:
    """Return a branch of the schema for each type, and a branch for a section without a type.

    The docstring of `part_of` has an example.

    type_key: the key that names the part, e.g. "net_type".
    keys_of_parts: name of a part -> its keys -> their schemas.
    """
    branches = []
    for name, keys in keys_of_parts.items():
        has_this_type = {"properties": {type_key: {"const": name}}, "required": [type_key]}
        keys_of_part = {"properties": keys, "additionalProperties": False}
        branches.append({"if": has_this_type, "then": keys_of_part})
    has_no_type = {"not": {"required": [type_key]}}
    keys_of_any_part = {
        "type": "object",
        "properties": _keys_of_any(list(keys_of_parts.values())),
        "additionalProperties": False,
    }
    branches.append({"if": has_no_type, "then": keys_of_any_part})
    return branches


def _keys_of_any(keys_of_parts: Sequence[Schema]) -> Schema:
    """Return the keys of several parts together: key -> schema.

    If a key has different meanings in the parts, each of the meanings is accepted. E.g. {"width":
    A} and {"width": B, "depth": C} give {"width": {"anyOf": [A, B]}, "depth": C}.
    """
    schemas_of_keys: dict[str, list[Schema]] = {}  # key -> its different schemas
    for keys in keys_of_parts:
        for key, schema in keys.items():
            if key not in schemas_of_keys:
                schemas_of_keys[key] = []
            if schema not in schemas_of_keys[key]:
                schemas_of_keys[key].append(schema)
    together: Schema = {}
    for key, schemas in schemas_of_keys.items():
        together[key] = schemas[0] if len(schemas) == 1 else {"anyOf": schemas}
    return together


def shared_reference(name: str, schema: Schema, shared: Schema) -> Schema:
    """Put a schema into the definitions, and return a reference to it.

    Changes `shared`. If another schema has this name already, a number is added to the name, e.g.
    "depths" and "depths_2".
    """
    own_name = name
    number = 1
    while own_name in shared and shared[own_name] != schema:  # another schema has this name
        number += 1
        own_name = f"{name}_{number}"
    if own_name not in shared:
        shared[own_name] = schema
    return {"$ref": f"#/$defs/{own_name}"}


def keys_of(model: type[Section], shared: Schema, text: str = "", where: str = "") -> Schema:
    """Return the schema of each key of a model, and of the KAIR keys of this section.

    text: a docstring. It explains keys that have no description.
    where: dotted key of the section, e.g. "datasets.train".
    """
    notes = notes_on_keys(text, model)
    # The schemas that pydantic makes of the keys, without references to definitions of its own.
    schema_of_model = model.model_json_schema()
    definitions = schema_of_model.get("$defs", {})
    schemas = without_references(schema_of_model, definitions)["properties"]  # key -> schema
    keys: Schema = {}
    for key, field in model.model_fields.items():
        if field.exclude:  # no option: the program sets this field itself
            continue
        schema = schemas[key]
        # If a key names a registered part, e.g. netG.fusion, its metadata has the registry.
        registries = [entry for entry in field.metadata if isinstance(entry, Registry)]
        if registries:
            schema |= schema_of_nested_part(registries[0], field, shared)
        if key in notes:
            schema.setdefault("description", notes[key])
        keys[key] = schema
    for key in sorted(KAIR_ONLY.get(where, {})):
        if key not in keys:
            keys[key] = SCHEMA_OF_KAIR_KEY
    return keys


def schema_of_nested_part(registry: Registry, field: FieldInfo, shared: Schema) -> Schema:
    """Return the schema of a key that names a part, e.g. `fusion`.

    The value is an object, or only the name of a part. It may be null if null is the default.
    """
    name = registry.kind.replace(" ", "_")
    section = shared_reference(name, part_of(registry, registry.names(), shared), shared)
    names: list[str | None] = list(registry.names())
    if field.default is None:
        names.append(None)
    return {"if": {"type": "object"}, "then": section, "else": {"enum": names}}


def without_references(schema: Any, definitions: Schema) -> Any:
    """Return a schema of pydantic with each reference replaced by its definition.

    Three kinds of keys are left out. Titles repeat the keys. Patterns would mean something else,
    because regular expressions differ in JavaScript. Lists of required keys would be wrong, because
    a file may inherit required keys from its base.
    """
    if isinstance(schema, list):
        return [without_references(item, definitions) for item in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]  # "#/$defs/Window" -> "Window"
        others = {key: value for key, value in schema.items() if key != "$ref"}
        # Keys beside a reference, e.g. a description, override the keys of the definition.
        schema = definitions[name] | others
    plain = {}
    for key, value in schema.items():
        # An option may have the name "title", too. Then the value is an object, the schema of the
        # option, and the key stays.
        is_dropped = key in ("title", "pattern", "required") and not isinstance(value, dict)
        if not is_dropped:
            plain[key] = without_references(value, definitions)
    return plain

"""Writes docs/options.md, docs/zh/options.md and options/schema.json from the option models and the
registered parts.

python lab/make_options_doc.py

docs/zh/options.json has the translations, by English paragraph (of a docstring) or description of a
key. An option file names the schema, a JSON Schema, with "$schema"; editors then complete and check
keys, and show their meaning.
"""

import inspect
import itertools
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jinja2
import pydantic
from pydantic.fields import FieldInfo

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from data.augment import CAMERAS
from data.cameras.spike_source import REPRESENTATIONS, SPIKE_SOURCES
from data.clips.io_backend import IO_BACKENDS
from data.select_dataset import DATASETS
from lab.tools import ROOT
from models.fusion.operators import FUSIONS
from models.losses import LOSSES
from models.select_network import NETWORKS
from utils.files import write_whole
from utils.options.models import KAIR_ONLY, LoaderOptions, Options
from utils.options.section import Registry, Section, describe

MARK = "Written by lab/make_options_doc.py; edit the models and docstrings instead."
MADE_WITH = f"pydantic {pydantic.VERSION.rpartition('.')[0]}"
# Keywords of VS Code
OF_KAIR = {
    "deprecationMessage": "A key of KAIR; no effect here.",
    "doNotSuggest": True,
}
KEYS_IN_TEXT = re.compile(r"(?:^|(?<=[.;)] ))(\w+(?:, \w+)*): ")
CHINESE = json.loads((ROOT / "docs/zh/options.json").read_text(encoding="utf-8"))
Schema = dict[str, Any]
PARTS = {  # where an option file names a part -> the registry of such parts
    "netG": NETWORKS, "netG.fusion": FUSIONS, "datasets.train, datasets.test": DATASETS,
    "datasets.*.spike": SPIKE_SOURCES, "datasets.*.spike.representation": REPRESENTATIONS,
    "datasets.*.camera": CAMERAS, "datasets.*.io_backend": IO_BACKENDS, "train": LOSSES,
}  # fmt: skip


def make_page(known: dict[str, str] | None = None) -> str:
    """In English, or with the translations `known`.

    SystemExit where one is missing or not used any more.
    """
    other = "[English](../options.md)" if known else "[简体中文](zh/options.md)"
    translations = known or {}
    texts: dict[str, str] = {}

    def say(text: str, where: str) -> str:
        parts = {" ".join(part.split()): part for part in text.strip("\n").split("\n\n")}
        texts.update(dict.fromkeys(parts, where))
        return "\n\n".join(translations.get(key, part) for key, part in parts.items())

    pages = jinja2.Environment(
        loader=jinja2.FileSystemLoader(ROOT / "lab"), undefined=jinja2.StrictUndefined,
        extensions=["jinja2.ext.do"], trim_blocks=True, lstrip_blocks=True,
        keep_trailing_newline=True,
    )  # fmt: skip
    pages.filters["say"] = say
    page = pages.get_template("options.md.jinja").render(
        other=other, mark=MARK, options=Options, loader=LoaderOptions, parts=PARTS,
        describe=describe, dumps=json.dumps, string=str, key_rows=key_rows, own_keys=own_keys,
        to_read=to_read, is_model=_is_model,
    )  # fmt: skip
    faults = [
        f"no translation for {where}: {key}"
        for key, where in texts.items()
        if known and key not in known
    ]
    if faults := faults + [
        f"nothing has this text any more: {key}" for key in translations if key not in texts
    ]:
        sys.exit("\n".join(["correct docs/zh/options.json:", *faults]))
    return page


def _is_model(kind: object) -> bool:
    """Whether an annotation is a section of options that has keys."""
    return inspect.isclass(kind) and issubclass(kind, Section) and bool(kind.model_fields)


def key_rows(registry: Registry) -> list[tuple[str, FieldInfo]]:
    """The keys that are described one by one, each meaning once, whichever parts have it, in its
    longest form.
    """
    rows: dict[tuple[str, str], FieldInfo] = {}
    for name in registry.names():
        fields = registry.model(name).model_fields
        for key in registry.keys(name):
            text = fields[key].description
            if text:
                rows.setdefault((key, text), fields[key])
    return [
        (key, field)
        for (key, text), field in rows.items()
        if not any(
            k == key and other.startswith(text.rstrip(".")) and other != text for k, other in rows
        )
    ]


def own_keys(registry: Registry, name: str) -> list[str]:
    """The keys of a part that fewer than half of the parts of this kind have, or all that are not
    in `key_rows`.
    """
    keys = [key for other in registry.names() for key in registry.keys(other)]
    described = {key for key, _ in key_rows(registry)}
    return [
        k
        for k in registry.keys(name)
        if k not in described or 2 * keys.count(k) < len(registry.names())
    ]


def marks_of(text: str, model: type[Section]) -> list[re.Match[str]]:
    """Where a docstring explains keys of the model, as "key, key: "."""
    return [
        mark
        for mark in KEYS_IN_TEXT.finditer(text)
        if model.model_fields.keys() >= set(mark[1].split(", "))
    ]


def to_read(registry: Registry, name: str) -> str:
    """What a docstring says first, and its paragraphs on option keys; the others are for readers of
    the code.
    """
    model = registry.model(name)
    first, *others = (inspect.getdoc(model.constructor) or "").split("\n\n")
    starts = ((text, marks_of(text, model)[:1]) for text in others)
    return "\n\n".join([first, *(text for text, mark in starts if mark and mark[0].start() == 0)])


def _split_of(dataset: str) -> str:
    """The split that a data set of this project is for."""
    constructor: Any = DATASETS.model(dataset).constructor
    return "train" if constructor.is_training else "test"


def make_schema() -> str:
    """The JSON Schema, draft 7, one line for each key and definition.

    Another pydantic may word it differently.

    Nothing is required: a file may inherit any key from its base; the programs say what is missing.
    """
    shared = {}  # what occurs more than once: keys of parts, and nested parts by kind
    keys = keys_of(Options, shared)
    for split in ("train", "test"):
        names = [name for name in DATASETS.names() if _split_of(name) == split]
        section = part_of(DATASETS, names, shared, f"datasets.{split}")
        keys["datasets"]["properties"][split] = section | {"type": ["object", "null"]}
    for name in ("netG", "train"):
        keys[name] = part_of(PARTS[name], PARTS[name].names(), shared, name)
    keys["path"]["properties"] |= dict.fromkeys(sorted(KAIR_ONLY["path"]), OF_KAIR)
    keys["$schema"] = {"type": "string", "description": "This schema, for editors; no effect."}
    keys["base"] = {
        "type": "string",
        "description": "An option file beside this one, whose keys are inherited.",
    }
    schema = {
        "$schema": "http://json-schema.org/draft-07/schema#", "$comment": f"{MARK} {MADE_WITH}",
        "$defs": shared, "type": "object", "properties": keys, "additionalProperties": False,
    }  # fmt: skip
    for name, value in schema.items():
        if isinstance(value, dict):
            text = ",\n".join(
                f" {json.dumps(key)}: {json.dumps(one)}" for key, one in value.items()
            )
            schema[name] = f"{{\n{text}\n}}"
        else:
            schema[name] = json.dumps(value)
    return (
        "{\n" + ",\n".join(f"{json.dumps(name)}: {text}" for name, text in schema.items()) + "\n}\n"
    )


def part_of(registry: Registry, names: Sequence[str], shared: Schema, where: str = "") -> Schema:
    """A section that names a registered part: its type decides the keys; without a type, those of
    any part.
    """
    kind, either, branches, texts = registry.type_key, {}, [], []
    for name in names:
        text = inspect.getdoc(registry.model(name).constructor) or ""
        texts.append(" ".join(text.split("\n\n")[0].split()))
        keys = keys_of(registry.model(name), shared, text, where).items()
        keys = {key: {} if key == kind else reference(key, value, shared) for key, value in keys}
        chosen = {"properties": {kind: {"const": name}}, "required": [kind]}
        branches.append({"if": chosen, "then": {"properties": keys, "additionalProperties": False}})
        for key, value in keys.items():
            forms = either.setdefault(key, [])
            forms += [] if value in forms else [value]
    # A file that inherits the type: if parts differ in the meaning of a key, any of them will do.
    any_of = {
        key: forms[0] if len(forms) == 1 else {"anyOf": forms} for key, forms in either.items()
    }
    then = {"type": "object", "properties": any_of, "additionalProperties": False}
    branches.append({"if": {"not": {"required": [kind]}}, "then": then})
    chosen = {
        "enum": list(names),
        "enumDescriptions": texts,
        "description": f"The {registry.kind}.",
    }
    return {"type": "object", "properties": {kind: chosen}, "allOf": branches}


def reference(name: str, schema: Schema, shared: Schema) -> Schema:
    """A reference to the schema, under this name or, where another schema has it, the name and a
    number.
    """
    names = itertools.chain([name], (f"{name}_{number}" for number in itertools.count(2)))
    own = next(name for name in names if shared.setdefault(name, schema) == schema)
    return {"$ref": f"#/$defs/{own}"}


def keys_of(model: type[Section], shared: Schema, text: str = "", where: str = "") -> Schema:
    """The schema of each key of a model, and of KAIR's keys without effect in the section `where`.

    text: a docstring, which explains keys that have no description.
    """
    text, notes = " ".join(text.split()), {}
    marks = marks_of(text, model)
    for mark, end in zip(marks, [*(mark.start() for mark in marks), len(text)][1:], strict=True):
        for key in mark[1].split(", "):
            notes[key] = f"{notes.get(key, '')} {text[mark.end() : end].strip(' ;')}".strip()
    whole = model.model_json_schema()
    plain = without_references(whole, whole.get("$defs", {}))["properties"]
    keys = {key: plain[key] for key, field in model.model_fields.items() if not field.exclude}
    for key, schema in keys.items():
        field = model.model_fields[key]
        if nested := next((m for m in field.metadata if isinstance(m, Registry)), None):
            section = reference(
                nested.kind.replace(" ", "_"), part_of(nested, nested.names(), shared), shared
            )
            others = nested.names() + ([None] if field.default is None else [])
            schema |= {"if": {"type": "object"}, "then": section, "else": {"enum": others}}
        if key in notes:
            schema.setdefault("description", notes[key])
    return keys | dict.fromkeys(sorted(KAIR_ONLY.get(where, {}).keys() - keys.keys()), OF_KAIR)


def without_references(schema: Any, definitions: Schema) -> Any:
    """Definitions in their places; without titles, which repeat the keys, and patterns, which
    differ in JavaScript.
    """
    if isinstance(schema, list):
        return [without_references(item, definitions) for item in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        schema = definitions[schema["$ref"].rpartition("/")[2]] | {
            k: v for k, v in schema.items() if k != "$ref"
        }
    # Where they are no keys of options, which have an object
    dropped = (
        "title",
        "pattern",
        "required",
    )
    return {
        k: without_references(v, definitions)
        for k, v in schema.items()
        if k not in dropped or isinstance(v, dict)
    }


if __name__ == "__main__":
    pages = {"docs/options.md": make_page(), "docs/zh/options.md": make_page(CHINESE)}
    for name, text in (pages | {"options/schema.json": make_schema()}).items():
        write_whole(ROOT / name, text.encode())

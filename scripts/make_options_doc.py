#!/usr/bin/env python3
"""Write docs/options.md, docs/zh/options.md and options/schema.json from the option models and the registered parts.

    python scripts/make_options_doc.py
    python scripts/make_options_doc.py && git status docs options

docs/zh/options.json holds the translations, by English paragraph (of a docstring) or description of a key. An option
file names the schema, a JSON Schema, with "$schema"; editors then complete and check keys, and show their meaning.
"""

from __future__ import annotations

import argparse
import inspect
import itertools
import json
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jinja2
import pydantic
from pydantic.fields import FieldInfo

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from utils.files import write_whole
from utils.options.models import KAIR_ONLY, LoaderOptions, Options
from utils.options.section import Registry, Section, describe

ROOT = Path(__file__).resolve().parent.parent
MARK = "Written by scripts/make_options_doc.py; edit the models and docstrings instead."
Say = Callable[[str, str], str]  # (English text, where it stands) -> the text in the language of the page
Schema = dict[str, Any]
MADE_WITH = f"pydantic {pydantic.VERSION.rpartition('.')[0]}"
OF_KAIR = {"deprecationMessage": "A key of KAIR; no effect here.", "doNotSuggest": True}  # keywords of VS Code
_KEYS_IN_TEXT = re.compile(r"(?:^|(?<=[.;)] ))(\w+(?:, \w+)*): ")


def registries() -> dict[str, Registry]:
    """Where an option file names a part -> the registry of such parts."""
    # Not before --help: they bring torch.
    from data.augment import CAMERAS
    from data.io_backend import IO_BACKENDS
    from data.select_dataset import DATASETS
    from data.spike_source import REPRESENTATIONS, SPIKE_SOURCES
    from models.fusion.operators import FUSIONS
    from models.losses import LOSSES
    from models.select_network import NETWORKS

    return {
        "netG": NETWORKS, "netG.fusion": FUSIONS, "datasets.train, datasets.test": DATASETS,
        "datasets.*.spike": SPIKE_SOURCES, "datasets.*.spike.representation": REPRESENTATIONS,
        "datasets.*.camera": CAMERAS, "datasets.*.io_backend": IO_BACKENDS, "train": LOSSES,
    }  # fmt: skip


class Translations:
    """A `Say` that looks texts up; line breaks do not count. `missing` and `unused` tell whether all is up to date."""

    def __init__(self, known: dict[str, str]) -> None:
        self.known, self.missing, self.unused = known, {}, dict(known)

    def __call__(self, text: str, where: str) -> str:
        key = " ".join(text.split())
        self.unused.pop(key, None)
        if key not in self.known:
            self.missing[where] = key
        return self.known.get(key, text)


def make_page(say: Say = lambda text, where: text, other: str = "[简体中文](zh/options.md)") -> str:
    """other: the link to the page in the other language."""
    pages = jinja2.Environment(
        loader=jinja2.FileSystemLoader(ROOT / "scripts/parts"), undefined=jinja2.StrictUndefined,
        extensions=["jinja2.ext.do"], trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True,
    )  # fmt: skip
    pages.filters["say"] = lambda text, where: "\n\n".join(say(part, where) for part in text.strip("\n").split("\n\n"))
    return pages.get_template("options.md.jinja").render(
        other=other, mark=MARK, options=Options, loader=LoaderOptions, parts=registries(),
        is_model=is_model, describe=describe, dumps=json.dumps, string=str,
        key_rows=key_rows, own_keys=own_keys, to_read=to_read,
    )  # fmt: skip


def make_chinese_page() -> str:
    """Raises SystemExit with the keys whose translation is missing, and the translations that nothing uses."""
    say = Translations(json.loads((ROOT / "docs/zh/options.json").read_text(encoding="utf-8")))
    page = make_page(say, "[English](../options.md)")
    missing = [f"no translation for {where}: {text}" for where, text in say.missing.items()]
    unused = [f"nothing has this text any more: {text}" for text in say.unused]
    if missing or unused:
        sys.exit("\n".join(["correct docs/zh/options.json:", *missing, *unused]))
    return page


def key_rows(registry: Registry) -> list[tuple[str, FieldInfo]]:
    """The keys that are described one by one, each meaning once, whichever parts have it, in its longest form."""
    rows: dict[tuple[str, str], FieldInfo] = {}
    for name in registry.names():
        fields = registry.model(name).model_fields
        for key in registry.keys(name):
            if fields[key].description:
                rows.setdefault((key, fields[key].description), fields[key])
    longer = {key: [text for other, text in rows if other == key] for key, _ in rows}
    return [
        (key, field)
        for (key, text), field in rows.items()
        if not any(other.startswith(text.rstrip(".")) and other != text for other in longer[key])
    ]


def own_keys(registry: Registry, name: str) -> list[str]:
    """The keys of a part that fewer than half of the parts of this kind have, or all that are not in `key_rows`."""
    keys = [key for other in registry.names() for key in registry.keys(other)]
    described = {key for key, _ in key_rows(registry)}
    return [k for k in registry.keys(name) if k not in described or 2 * keys.count(k) < len(registry.names())]


def to_read(registry: Registry, name: str) -> str:
    """What a docstring says first, and its paragraphs on option keys; the others are for readers of the code."""
    keys = registry.model(name).model_fields.keys()
    first, *others = (inspect.getdoc(registry.model(name).constructor) or "").split("\n\n")
    on_keys = [t for t in others if (mark := _KEYS_IN_TEXT.match(t)) and keys >= set(mark[1].split(", "))]
    return "\n\n".join([first, *on_keys])


def is_model(annotation: object) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, Section) and bool(annotation.model_fields)


def make_schema() -> str:
    """The JSON Schema, draft 7, one line for each key and definition. Another pydantic may word it differently.

    Nothing is required: a file may inherit any key from its base; the programs say what is missing.
    """
    parts: dict[str, Schema] = {}  # what occurs more than once: keys of parts, and nested parts by kind
    by_place = registries()
    datasets = by_place["datasets.train, datasets.test"]
    keys = _keys(Options, parts)
    for split in ("train", "test"):
        names = [n for n in datasets.names() if datasets.model(n).constructor.is_training == (split == "train")]
        section = _part(datasets, names, parts, f"datasets.{split}")
        keys["datasets"]["properties"][split] = section | {"type": ["object", "null"]}
    for name in ("netG", "train"):
        keys[name] = _part(by_place[name], by_place[name].names(), parts, name)
    keys["path"]["properties"] |= dict.fromkeys(sorted(KAIR_ONLY["path"]), OF_KAIR)
    keys["$schema"] = {"type": "string", "description": "This schema, for editors; no effect."}
    keys["base"] = {"type": "string", "description": "An option file beside this one, whose keys are inherited."}
    schema = {"$schema": "http://json-schema.org/draft-07/schema#", "$comment": f"{MARK} {MADE_WITH}", "$defs": parts}
    entries = []
    for name, value in (schema | {"type": "object", "properties": keys, "additionalProperties": False}).items():
        text = json.dumps(value)
        if isinstance(value, dict):
            text = "{\n" + ",\n".join(f" {json.dumps(key)}: {json.dumps(v)}" for key, v in value.items()) + "\n}"
        entries.append(f"{json.dumps(name)}: {text}")
    return "{\n" + ",\n".join(entries) + "\n}\n"


def _part(registry: Registry, names: Sequence[str], parts: dict[str, Schema], where: str = "") -> Schema:
    """A section that names a registered part: its type decides the keys; without a type, those of any part."""
    kind, either, branches, texts = registry.type_key, {}, [], []
    for name in names:
        text = inspect.getdoc(registry.model(name).constructor) or ""
        texts.append(" ".join(text.split("\n\n")[0].split()))
        keys = _keys(registry.model(name), parts, text, where)
        keys = {key: {} if key == kind else _shared(key, value, parts) for key, value in keys.items()}
        chosen = {"properties": {kind: {"const": name}}, "required": [kind]}
        branches.append({"if": chosen, "then": {"properties": keys, "additionalProperties": False}})
        for key, value in keys.items():
            forms = either.setdefault(key, [])
            forms += [] if value in forms else [value]
    # A file that inherits the type: where parts differ in the meaning of a key, any of them will do.
    any_part = {key: forms[0] if len(forms) == 1 else {"anyOf": forms} for key, forms in either.items()}
    any_part = {"type": "object", "properties": any_part, "additionalProperties": False}
    branches.append({"if": {"not": {"required": [kind]}}, "then": any_part})
    chosen = {"enum": list(names), "enumDescriptions": texts, "description": f"The {registry.kind}."}
    return {"type": "object", "properties": {kind: chosen}, "allOf": branches}


def _shared(name: str, schema: Schema, parts: dict[str, Schema]) -> Schema:
    """A reference to the schema, under this name or, where another schema has it, the name and a number."""
    names = itertools.chain([name], (f"{name}_{number}" for number in itertools.count(2)))
    found = next(name for name in names if parts.setdefault(name, schema) == schema)
    return {"$ref": f"#/$defs/{found}"}


def _keys(model: type[Section], parts: dict[str, Schema], text: str = "", where: str = "") -> dict[str, Schema]:
    """The schema of each key of a model, and of KAIR's keys without effect in the section `where`.

    text: a docstring, which explains keys that have no description after "key, key: ".
    """
    text = " ".join(text.split())
    marks = [mark for mark in _KEYS_IN_TEXT.finditer(text) if model.model_fields.keys() >= set(mark[1].split(", "))]
    ends = [*(mark.start() for mark in marks), len(text)][1:]
    notes: dict[str, str] = {}
    for mark, end in zip(marks, ends, strict=True):
        for key in mark[1].split(", "):
            notes[key] = f"{notes.get(key, '')} {text[mark.end() : end].strip(' ;')}".strip()
    whole = model.model_json_schema()
    plain = _without_references(whole, whole.get("$defs", {}))["properties"]
    keys = {key: plain[key] for key, field in model.model_fields.items() if not field.exclude}
    for key, schema in keys.items():
        field = model.model_fields[key]
        if nested := next((m for m in field.metadata if isinstance(m, Registry)), None):
            section = _shared(nested.kind.replace(" ", "_"), _part(nested, nested.names(), parts), parts)
            others = nested.names() + ([None] if field.default is None else [])
            schema |= {"if": {"type": "object"}, "then": section, "else": {"enum": others}}
        if key in notes:
            schema.setdefault("description", notes[key])
    return keys | dict.fromkeys(sorted(KAIR_ONLY.get(where, {}).keys() - keys.keys()), OF_KAIR)


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


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    pages = {"docs/options.md": make_page, "docs/zh/options.md": make_chinese_page, "options/schema.json": make_schema}
    for name, make in pages.items():
        write_whole(ROOT / name, make().encode())


if __name__ == "__main__":
    main()

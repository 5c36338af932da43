"""Write the documents of all options: docs/options.md, docs/zh/options.md, options/schema.json.

    python lab/make_options_doc.py

They are made from the option models (`Options` in utils/options/models.py and its sections) and
from the registered parts. A part is a network, a dataset or another class that an option file
names. Its section then has the parameters of the part as keys, see utils/options/registry.py.

docs/zh/options.json has the translations: English text -> Chinese text, for each paragraph of a
docstring and each description of a key. An option file names the JSON Schema with "$schema".
Editors then complete and check keys, and show their meaning.

The pages are filled from the template lab/options.md.jinja.

What must stay: the schema accepts every option file of this project, and the headings of the pages,
to which other pages link. Free to change: the form of the pages.

Tests: tests/parts/utils/test_option_files.py fails if one of the three files is not what this
program writes now. So write them after a change, and look at `git diff`. Tests of the schema, e.g.
test_the_schema_finds_a_wrong_key_or_type, read the written file.
"""

import inspect
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

from data.augment import CAMERAS
from data.cameras.representation_section import REPRESENTATIONS
from data.cameras.spike_source import SPIKE_SOURCES
from data.clips.io_backend import IO_BACKENDS
from data.select_dataset import DATASETS
from lab.tools import ROOT
from models.fusion.operators import FUSIONS
from models.losses import LOSSES
from models.select_network import NETWORKS
from utils.files import write_whole
from utils.options.kair_keys import KAIR_ONLY
from utils.options.loader_options import LoaderOptions
from utils.options.models import Options
from utils.options.registry import Registry
from utils.options.section import Section
from utils.options.type_words import describe

# The first line of the three files. It tells a reader who wants to edit them where to do so.
MARK = "Written by lab/make_options_doc.py; edit the models and docstrings instead."
MADE_WITH = f"pydantic {pydantic.VERSION.rpartition('.')[0]}"  # e.g. "pydantic 2.11", not 2.11.7
# The schema of a key that only KAIR has. VS Code understands both words.
SCHEMA_OF_KAIR_KEY = {
    "deprecationMessage": "A key of KAIR; no effect here.",
    "doNotSuggest": True,
}
# Where a docstring begins to explain keys, at the start of a sentence: "height, width: ...".
_SENTENCE_BEGIN = r"(?:^|(?<=[.;)] ))"  # the begin of the text, or a place after ". ", "; " or ") "
_NAMES = r"\w+(?:, \w+)*"  # words with commas between them, e.g. "height, width"
# E.g. it finds "height, width: " in "A plane. height, width: in pixels."
KEYS_IN_TEXT = re.compile(rf"{_SENTENCE_BEGIN}(?P<names>{_NAMES}): ")
CHINESE = json.loads((ROOT / "docs/zh/options.json").read_text(encoding="utf-8"))
Schema = dict[str, Any]  # a JSON Schema of something
# Where an option file names a part -> the registry of such parts. The section "train" names a loss.
PARTS = {
    "netG": NETWORKS, "netG.fusion": FUSIONS, "datasets.train, datasets.test": DATASETS,
    "datasets.*.spike": SPIKE_SOURCES, "datasets.*.spike.representation": REPRESENTATIONS,
    "datasets.*.camera": CAMERAS, "datasets.*.io_backend": IO_BACKENDS, "train": LOSSES,
}  # fmt: skip


# ---- The pages --------------------------------------------------------------------------------


def make_page(translations: dict[str, str] | None = None) -> str:
    """Return docs/options.md, in English or translated.

    Ends the program if a translation is missing, or is not used any more.

    translations: English paragraph in one line -> its translation. None makes the English page.
    """
    texts: dict[str, str] = {}  # each paragraph that the page has -> where it is, for the message

    def translate(text: str, where: str) -> str:
        """Return a text translated, paragraph by paragraph. On the English page it stays.

        The template calls this as the filter `say` for each text of the page.
        """
        result = []
        for paragraph in text.strip("\n").split("\n\n"):
            in_one_line = " ".join(paragraph.split())
            texts[in_one_line] = where
            if translations is None:
                result.append(paragraph)
            else:
                # A missing translation is reported below.
                result.append(translations.get(in_one_line, paragraph))
        return "\n\n".join(result)

    page = _filled_template(translate, is_english=translations is None)
    if translations is not None:
        _refuse_other_texts(translations, texts)
    return page


def _filled_template(translate: Callable[[str, str], str], *, is_english: bool) -> str:
    """Return the text of lab/options.md.jinja with everything that it asks for.

    translate: takes a text and where it stands, and returns the text for the page.
    """
    pages = jinja2.Environment(
        loader=jinja2.FileSystemLoader(ROOT / "lab"),
        undefined=jinja2.StrictUndefined,  # an unknown name in the template is an error
        extensions=["jinja2.ext.do"],  # the template calls functions without using their result
        trim_blocks=True,  # a line with only a command of the template leaves no empty line
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    pages.filters["say"] = translate
    if is_english:
        link_to_other_language = "[简体中文](zh/options.md)"
    else:
        link_to_other_language = "[English](../options.md)"
    # The names that the template uses: first values, then functions that it calls.
    return pages.get_template("options.md.jinja").render(
        other=link_to_other_language,
        mark=MARK,
        options=Options,
        loader=LoaderOptions,
        parts=PARTS,
        describe=describe,  # field -> its type in words
        dumps=json.dumps,  # default value -> JSON
        string=str,  # default value without a form in JSON -> text
        key_rows=key_rows,
        own_keys=own_keys,
        to_read=to_read,
        is_model=_is_model,
    )


def _refuse_other_texts(translations: dict[str, str], texts: dict[str, str]) -> None:
    """End the program if a text of the page has no translation, or a translation has no text.

    test_a_key_without_translation_is_named and the test after it read the message.

    texts: each paragraph of the page -> where it is.
    """
    faults = []
    for text, where in texts.items():
        if text not in translations:
            faults.append(f"no translation for {where}: {text}")
    for text in translations:
        if text not in texts:
            faults.append(f"nothing has this text any more: {text}")
    if faults:
        sys.exit("\n".join(["correct docs/zh/options.json:", *faults]))


def _is_model(kind: object) -> bool:
    """Whether an annotation is a section of options that has keys."""
    return inspect.isclass(kind) and issubclass(kind, Section) and bool(kind.model_fields)


def key_rows(registry: Registry) -> list[tuple[str, FieldInfo]]:
    """Return the keys of all parts that have a description: (key, field).

    A key that means the same in several parts is returned once. A description is left out if
    another description of the same key begins with it. E.g. "Width." is left out if another part
    has "Width in pixels."
    """
    rows: dict[tuple[str, str], FieldInfo] = {}  # (key, description) -> field
    for name in registry.names():
        fields = registry.model(name).model_fields
        for key in registry.keys(name):
            text = fields[key].description
            if text:
                rows.setdefault((key, text), fields[key])

    chosen = []
    for (key, text), field in rows.items():
        texts_of_key = [other_text for other_key, other_text in rows if other_key == key]
        if not any(_continues(other_text, text) for other_text in texts_of_key):
            chosen.append((key, field))
    return chosen


def _continues(longer: str, text: str) -> bool:
    """Say whether `longer` begins with `text` (without its last "."), and goes on."""
    return longer != text and longer.startswith(text.rstrip("."))


def own_keys(registry: Registry, name: str) -> list[str]:
    """Return the keys that the page lists with a part, because they are special to the part.

    These are the keys without a description, and the keys that fewer than half of the parts of this
    kind have.
    """
    keys_of_all = []
    for other in registry.names():
        keys_of_all += registry.keys(other)
    described = {key for key, _ in key_rows(registry)}
    special_keys = []
    for key in registry.keys(name):
        is_rare = 2 * keys_of_all.count(key) < len(registry.names())
        if key not in described or is_rare:
            special_keys.append(key)
    return special_keys


def marks_of(text: str, model: type[Section]) -> list[re.Match[str]]:
    """Return the places where a docstring explains keys of the model, e.g. "height, width: "."""
    marks = []
    for mark in KEYS_IN_TEXT.finditer(text):
        names = mark["names"].split(", ")
        if all(name in model.model_fields for name in names):
            marks.append(mark)
    return marks


def to_read(registry: Registry, name: str) -> str:
    """Return the docstring of a part for the page: first paragraph, and paragraphs about keys.

    The other paragraphs are for readers of the code.
    """
    model = registry.model(name)
    first, *others = (inspect.getdoc(model.constructor) or "").split("\n\n")
    chosen = [first]
    for text in others:
        marks = marks_of(text, model)
        if marks and marks[0].start() == 0:  # it begins with keys
            chosen.append(text)
    return "\n\n".join(chosen)


# ---- The schema -------------------------------------------------------------------------------
#
# Most functions below take `shared`, the definitions of the schema: name -> schema. A schema that
# occurs more than once is written there once, and each place refers to it. `shared_reference` adds
# to `shared`, and each other function passes it on.


def _split_of(dataset: str) -> str:
    """Return the split that a data set is for, "train" or "test"."""
    constructor: Any = DATASETS.model(dataset).constructor
    return "train" if constructor.is_training else "test"


def make_schema() -> str:
    """Return the JSON Schema of option files, draft 7, one line for each key and definition.

    Another version of pydantic may word it differently. No key is required, because a file may
    inherit any key from its base. The programs say what is missing.
    """
    shared: Schema = {}  # gets the definitions from `keys_of` and `part_of`
    keys = keys_of(Options, shared)

    # pydantic does not know which keys a registered part has. So replace its schemas of the
    # sections that name such a part: a data set, a network (netG), a loss (train).
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

    So a difference in git shows which key has changed. An entry that is an object, as "$defs" and
    "properties" are, gets a line for each of its own entries. E.g.:

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
    """Return the schema of a section that names a registered part.

    The type in the section decides which keys it may have. Without a type, it may have the keys of
    any part, because the file may inherit the type. E.g. for two parts A and B:

        {"properties": {"type": {"enum": ["A", "B"]}}, "allOf": [
            {"if": the type is A, "then": the keys of A},
            {"if": the type is B, "then": the keys of B},
            {"if": there is no type, "then": the keys of A and B}]}

    names: the parts that may be named.
    where: dotted key of the section, e.g. "datasets.train". Keys of KAIR are looked up by it.
    """
    type_key = registry.type_key  # the key that names the part, e.g. "net_type"
    keys_of_parts: dict[str, Schema] = {}  # name of a part -> its keys -> their schemas
    descriptions = []  # of each part: the first paragraph of its docstring, in one line
    for name in names:
        model = registry.model(name)
        docstring = inspect.getdoc(model.constructor) or ""
        first_paragraph = docstring.split("\n\n")[0]
        descriptions.append(" ".join(first_paragraph.split()))
        keys_of_parts[name] = {}
        for key, schema in keys_of(model, shared, docstring, where).items():
            if key == type_key:
                keys_of_parts[name][key] = {}  # `type_schema` below checks the type itself
            else:
                keys_of_parts[name][key] = shared_reference(key, schema, shared)

    # A branch for each type, and a branch for a section without a type.
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

    type_schema = {
        "enum": list(names),
        "enumDescriptions": descriptions,
        "description": f"The {registry.kind}.",
    }
    return {"type": "object", "properties": {type_key: type_schema}, "allOf": branches}


def _keys_of_any(keys_of_parts: Sequence[Schema]) -> Schema:
    """Return the keys of several parts together: key -> schema.

    If parts differ in the meaning of a key, any of the meanings will do. E.g. {"width": A} and
    {"width": B, "depth": C} give {"width": {"anyOf": [A, B]}, "depth": C}.
    """
    schemas_of_keys: dict[str, list[Schema]] = {}  # key -> its different schemas
    for keys in keys_of_parts:
        for key, schema in keys.items():
            schemas = schemas_of_keys.setdefault(key, [])
            if schema not in schemas:
                schemas.append(schema)
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
    # `setdefault` puts the schema under the name if the name is free, and returns what is there.
    while shared.setdefault(own_name, schema) != schema:
        number += 1
        own_name = f"{name}_{number}"
    return {"$ref": f"#/$defs/{own_name}"}


def keys_of(model: type[Section], shared: Schema, text: str = "", where: str = "") -> Schema:
    """Return the schema of each key of a model, and of KAIR's keys without effect in its section.

    text: a docstring, which explains keys that have no description.
    where: dotted key of the section, e.g. "datasets.train".
    """
    notes = notes_on_keys(text, model)
    # The schemas that pydantic makes of the keys, without references to definitions of its own.
    schema_of_model = model.model_json_schema()
    definitions = schema_of_model.get("$defs", {})
    schemas = without_references(schema_of_model, definitions)["properties"]  # key -> schema
    keys: Schema = {}
    for key, field in model.model_fields.items():
        if field.exclude:  # a field that the program sets itself, so no option
            continue
        schema = schemas[key]
        # A key that names a registered part, e.g. netG.fusion, has its registry in the metadata.
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

    The value is an object, or the name of a part alone. It may be null if this is the default.
    """
    name = registry.kind.replace(" ", "_")
    section = shared_reference(name, part_of(registry, registry.names(), shared), shared)
    names: list[str | None] = list(registry.names())
    if field.default is None:
        names.append(None)
    return {"if": {"type": "object"}, "then": section, "else": {"enum": names}}


def notes_on_keys(text: str, model: type[Section]) -> dict[str, str]:
    """Return key -> what a docstring says of it.

    E.g. "height, width: of a plane. rate: at full light." -> {"height": "of a plane.", "width":
    "of a plane.", "rate": "at full light."}
    """
    text = " ".join(text.split())
    marks = marks_of(text, model)
    notes: dict[str, str] = {}
    for mark_index, mark in enumerate(marks):
        # The note goes on up to the next mark, or to the end of the text.
        is_last = mark_index + 1 == len(marks)
        end = len(text) if is_last else marks[mark_index + 1].start()
        note = text[mark.end() : end].strip(" ;")
        for key in mark["names"].split(", "):
            # A docstring may explain a key at two places. Both notes count.
            earlier_note = notes.get(key, "")
            notes[key] = f"{earlier_note} {note}".strip()
    return notes


def without_references(schema: Any, definitions: Schema) -> Any:
    """Return a schema of pydantic with each reference replaced by its definition.

    Three keys are left out: titles, because they repeat the keys; patterns, because regular
    expressions differ in JavaScript; and lists of required keys, because a file may inherit any key
    from its base.
    """
    if isinstance(schema, list):
        return [without_references(item, definitions) for item in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]  # "#/$defs/Window" -> "Window"
        others = {key: value for key, value in schema.items() if key != "$ref"}
        # Keys beside a reference, e.g. a description, count more than keys of the definition.
        schema = definitions[name] | others
    plain = {}
    for key, value in schema.items():
        # An option may have such a name, too. Its value is then a schema, an object.
        is_dropped = key in ("title", "pattern", "required") and not isinstance(value, dict)
        if not is_dropped:
            plain[key] = without_references(value, definitions)
    return plain


def main() -> None:
    """Write the three files."""
    pages = {
        "docs/options.md": make_page(),
        "docs/zh/options.md": make_page(CHINESE),
        "options/schema.json": make_schema(),
    }
    for name, text in pages.items():
        write_whole(ROOT / name, text.encode())


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Write docs/options.md, docs/zh/options.md and options/schema.json from the option models and the registered parts.

    python scripts/make_options_doc.py
    python scripts/make_options_doc.py && git status docs options

docs/zh/options.json holds the translations, by English paragraph (of a docstring) or description of a key.
"""

from __future__ import annotations

import argparse
import inspect
import json
import sys
from collections.abc import Callable
from pathlib import Path

from pydantic.fields import FieldInfo

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from data.camera import CAMERAS
from data.io_backend import IO_BACKENDS
from data.select_dataset import DATASETS
from data.spike_source import REPRESENTATIONS, SPIKE_SOURCES
from models.fusion.operators import FUSIONS
from models.losses import LOSSES
from models.select_network import NETWORKS
from scripts.parts.options_schema import schema_text
from utils.files import write_whole
from utils.options.models import KAIR_ONLY, LoaderOptions, Options
from utils.options.registry import Registry
from utils.options.section import Section, describe

ROOT = Path(__file__).resolve().parent.parent
MARK = "Written by scripts/make_options_doc.py; edit the models and docstrings instead."
HEAD = """One JSON file describes a run; `//` comments are allowed. Any key can be given on the command line as
`section.key=value` (JSON, else a string); `"base": "other.json"` inherits every key that the file does not set.
Within a section, a part can be given by its name alone: `netG.fusion=none`. Choosing another part drops inherited keys
that it does not have. An unknown key, a wrong type or a value out of range stops the run before it starts.

Short flags: `--use_amp`, `--batch_size`, `--num_workers`, `--epochs`, `--learning_rate`, `--resume auto|none|PATH`.
`--epochs N` without `train.total_iter` on the command line trains N epochs, whatever the file has as `total_iter`.

The first line of an option file, `"$schema": "../schema.json"`, has no effect on a run: editors complete and check the
keys with it. In VS Code set `"files.associations": {"**/options/**/*.json": "jsonc"}`, so that it accepts the comments.

The process group's time-out is `dist_timeout_s`, or the environment variable NCCL_TIMEOUT in seconds, which
nothing else reads.
"""
Say = Callable[[str, str], str]  # (English text, where it stands) -> the text in the language of the page
PARTS = (
    ("netG", "network", NETWORKS),
    ("netG.fusion", "fusion operator", FUSIONS),
    ("datasets.train, datasets.test", "dataset", DATASETS),
    ("datasets.*.spike", "spike source", SPIKE_SOURCES),
    ("datasets.*.spike.representation", "spike representation", REPRESENTATIONS),
    ("datasets.*.camera", "camera", CAMERAS),
    ("datasets.*.io_backend", "io backend", IO_BACKENDS),
    ("train", "loss", LOSSES),
)


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
    sections = [f"# {say('Options', 'title')}\n", f"{other}\n", f"<!-- {MARK} -->\n", paragraphs(HEAD, "head", say)]
    sections += [f"## {say('Top level', 'heading')}\n", table(Options, "", say)]
    for name, field in Options.model_fields.items():
        if is_model(field.annotation) and name != "datasets":
            sections += [f"## {name}\n", table(field.annotation, name, say)]
            for inner, f in field.annotation.model_fields.items():
                if is_model(f.annotation):
                    sections += [f"### {name}.{inner}\n", table(f.annotation, f"{name}.{inner}", say)]
        if name == "datasets":
            text = (
                "In addition to the keys of the dataset. Validation and testing read clip by clip, without a loader, "
                "so the `dataloader_*` keys have no effect in `datasets.test`."
            )
            sections += ["## datasets.train, datasets.test\n", paragraphs(text, "datasets", say)]
            sections.append(table(LoaderOptions, "datasets.*", say))
    sections.append(f"## {say('Registered parts', 'heading')}\n")
    text = "Their keys are the parameters of a class or function, with its defaults."
    sections.append(paragraphs(text, "registered parts", say))
    for where, kind, registry in PARTS:
        sections += [part_text(where, kind, name, registry, say) for name in registry.names()]
        sections += shared_keys(kind, registry, say)
    ignored = ", ".join(f"`{where}.{key}`" for where, keys in KAIR_ONLY.items() for key in sorted(keys))
    sections.append(f"## {say('Keys of KAIR without effect here', 'heading')}\n")
    sections.append(f"{say('Accepted with one notice: {keys}.', 'KAIR').format(keys=ignored)}\n")
    return "\n".join(sections)


def make_chinese_page() -> str:
    """Raises SystemExit with the keys whose translation is missing, and the translations that nothing uses."""
    say = Translations(json.loads((ROOT / "docs/zh/options.json").read_text(encoding="utf-8")))
    page = make_page(say, "[English](../options.md)")
    wrong = [f"no translation for {where}: {text}" for where, text in say.missing.items()]
    wrong += [f"nothing has this text any more: {text}" for text in say.unused]
    if wrong:
        sys.exit("\n".join(["correct docs/zh/options.json:", *wrong]))
    return page


def paragraphs(text: str, where: str, say: Say) -> str:
    return "\n\n".join(say(part, where) for part in text.rstrip("\n").split("\n\n")) + "\n"


def is_model(annotation: object) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, Section) and bool(annotation.model_fields)


def table(model: type[Section], where: str, say: Say) -> str:
    titles = " | ".join(say(title, "table") for title in ("key", "value", "default", "meaning"))
    lines = [f"| {titles} |", "|---|---|---|---|"]
    for key, field in model.model_fields.items():
        if is_model(field.annotation) or field.exclude:
            continue
        default = say("required", "table") if field.is_required() else f"`{json.dumps(field.default)}`"
        value = describe(field).replace("|", "\\|")
        meaning = say(field.description or "", f"{where}.{key}".lstrip("."))
        lines.append(f"| `{key}` | {value} | {default} | {meaning} |")
    return "\n".join(lines) + "\n"


def part_text(where: str, kind: str, name: str, registry: Registry, say: Say) -> str:
    fields = registry.model(name).model_fields
    listed = ", ".join(f"`{key}`{shown(fields[key])}" for key in registry.keys(name)) or say("no keys", "parts")
    place = say("In `{where}`. {keys}.", "parts").format(where=where, keys=listed)
    text = paragraphs(inspect.getdoc(registry.constructor(name)) or "", f'{kind} "{name}"', say)
    return f'### {say(kind, "parts")} "{name}"\n\n{place}\n\n{text}'


def shown(field: FieldInfo) -> str:
    return "" if field.is_required() else f" = `{json.dumps(field.default, default=str)}`"


def shared_keys(kind: str, registry: Registry, say: Say) -> list[str]:
    """The described keys of the parts of one kind, each listed once."""
    found = [
        f"- `{key}`{say(': ', 'parts')}{say(field.description, f'{kind}.{key}')}"
        for name in registry.names()
        for key, field in registry.model(name).model_fields.items()
        if key in registry.keys(name) and field.description
    ]
    title = say("Keys of each {kind} that has them", "parts").format(kind=say(kind, "parts"))
    return [f"### {title}\n", *dict.fromkeys(found), ""] if found else []


def main(arguments: list[str] | None = None) -> None:
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args(arguments)  # fmt: skip
    pages = {
        "docs/options.md": make_page,
        "docs/zh/options.md": make_chinese_page,
        "options/schema.json": lambda: schema_text(MARK),
    }
    for name, make in pages.items():
        target = ROOT / name
        if target.exists() and MARK not in target.read_text(encoding="utf-8"):
            sys.exit(f"{target} was not written by this script: move it away")
        write_whole(target, make().encode())


if __name__ == "__main__":
    main()

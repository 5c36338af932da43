#!/usr/bin/env python3
"""Write docs/options.md from the option models and the registered parts.

python scripts/make_options_doc.py
"""

from __future__ import annotations

import inspect
import json
import sys
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
from utils.files import write_whole
from utils.options.models import KAIR_ONLY, LoaderOptions, Options
from utils.options.registry import Registry
from utils.options.section import Section, describe

ROOT = Path(__file__).resolve().parent.parent
HEAD = """# Options

<!-- Written by scripts/make_options_doc.py; edit the models and docstrings instead. -->

One JSON file describes a run; `//` comments are allowed. Any key can be given on the command line as
`section.key=value` (JSON, else a string); `"base": "other.json"` inherits every key that the file does not set.
Within a section, a part can be given by its name alone: `netG.fusion=none`. Choosing another part drops inherited keys
that it does not have. An unknown key, a wrong type or a value out of range stops the run before it starts.

Short flags: `--use_amp`, `--batch_size`, `--num_workers`, `--epochs`, `--learning_rate`, `--resume auto|none|PATH`.
`--epochs N` without `train.total_iter` on the command line trains N epochs, whatever the file has as `total_iter`.

The process group's time-out is `dist_timeout_s`, or the environment variable NCCL_TIMEOUT in seconds, which
nothing else reads.
"""
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


def make_page() -> str:
    sections = [HEAD, "## Top level\n", table(Options)]
    for name, field in Options.model_fields.items():
        if is_model(field.annotation) and name != "datasets":
            sections += [f"## {name}\n", table(field.annotation)]
            for inner, f in field.annotation.model_fields.items():
                if is_model(f.annotation):
                    sections += [f"### {name}.{inner}\n", table(f.annotation)]
        if name == "datasets":
            sections += [
                "## datasets.train, datasets.test\n",
                "In addition to the keys of the dataset. Validation and testing read clip by clip, without a loader, "
                "so the `dataloader_*` keys have no effect in `datasets.test`.\n",
                table(LoaderOptions),
            ]
    sections.append("## Registered parts\n\nTheir keys are the parameters of a class or function, with its defaults.\n")
    for where, kind, registry in PARTS:
        sections += [part_text(where, kind, name, registry) for name in registry.names()]
        sections += shared_keys(kind, registry)
    ignored = ", ".join(f"`{where}.{key}`" for where, keys in KAIR_ONLY.items() for key in sorted(keys))
    sections.append(f"## Keys of KAIR without effect here\n\nAccepted with one notice: {ignored}.\n")
    return "\n".join(sections)


def is_model(annotation: object) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, Section) and bool(annotation.model_fields)


def table(model: type[Section]) -> str:
    lines = ["| key | value | default | meaning |", "|---|---|---|---|"]
    for key, field in model.model_fields.items():
        if is_model(field.annotation) or field.exclude:
            continue
        default = "required" if field.is_required() else f"`{json.dumps(field.default)}`"
        value = describe(field).replace("|", "\\|")
        lines.append(f"| `{key}` | {value} | {default} | {field.description or ''} |")
    return "\n".join(lines) + "\n"


def part_text(where: str, kind: str, name: str, registry: Registry) -> str:
    fields = registry.model(name).model_fields
    listed = ", ".join(f"`{key}`{shown(fields[key])}" for key in registry.keys(name)) or "no keys"
    return f'### {kind} "{name}"\n\nIn `{where}`. {listed}.\n\n{inspect.getdoc(registry.constructor(name)) or ""}\n'


def shown(field: FieldInfo) -> str:
    return "" if field.is_required() else f" = `{json.dumps(field.default, default=str)}`"


def shared_keys(kind: str, registry: Registry) -> list[str]:
    """The described keys of the parts of one kind, each listed once."""
    found = [
        f"- `{key}`: {field.description}"
        for name in registry.names()
        for key, field in registry.model(name).model_fields.items()
        if key in registry.keys(name) and field.description
    ]
    return [f"### Keys of each {kind} that has them\n", *dict.fromkeys(found), ""] if found else []


if __name__ == "__main__":
    target = ROOT / "docs/options.md"
    if target.exists() and "Written by scripts/make_options_doc.py" not in target.read_text(encoding="utf-8"):
        sys.exit(f"{target} was not written by this script: move it away")
    write_whole(target, make_page().encode())

"""What converting an option file of another program needs: reading it, the record of the changes, commented JSON."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import json5

from utils.errors import OptionError
from utils.options.file import key_lines
from utils.options.load import PART_SECTIONS
from utils.options.models import KAIR_ONLY, Options
from utils.options.registry import Registry
from utils.options.section import SECRET, Section, describe

WIDTH = 120
MISSING = object()
_NUMBER = re.compile(r"[+-]?\d+(\.\d*)?[eE][+-]?\d+")  # YAML 1.1 reads 4e-4, without a point, as text


@dataclass
class Conversion:
    """An option file on its way: `source` loses each key that is dealt with, `target` gets ours.

    translated, dropped, unsaid: key of the source -> what became of it and why. unsaid: what our options cannot say,
    and how much it matters. problems: key -> (what is wrong, what to do); with any of them nothing is written.
    comments: dotted key of ours -> a comment for the file. missing: paths that are not on this machine. origins: dotted
    key or section of ours -> that of the source, where the two differ.
    """

    source: dict[str, Any]
    target: dict[str, Any] = field(default_factory=dict)
    comments: dict[str, str] = field(default_factory=dict)
    translated: dict[str, str] = field(default_factory=dict)
    dropped: dict[str, str] = field(default_factory=dict)
    unsaid: dict[str, str] = field(default_factory=dict)
    problems: dict[str, tuple[str, str]] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)
    kept: int = 0  # keys that stay as they are

    def get(self, where: str, default: Any = None) -> Any:
        """The value of a dotted key that is still in the source."""
        value = look_up(self.source, where)
        return default if value is MISSING else value

    def has(self, where: str) -> bool:
        return look_up(self.source, where) is not MISSING

    def take(self, where: str, default: Any = None) -> Any:
        """The value of a dotted key, which leaves the source."""
        value = self.get(where, default)
        remove(self.source, where)
        return value

    def put(self, where: str, value: Any, comment: str = "") -> None:
        """Set a dotted key of ours."""
        *sections, last = where.split(".")
        inner = self.target
        for name in sections:
            inner = inner.setdefault(name, {})
        inner[last] = value
        if comment:
            self.comments[where] = comment

    def move(self, old: str, new: str, change: Callable[[Any], Any] = lambda value: value, comment: str = "") -> None:
        """Put the value of `old`, where there is one, under `new`."""
        if self.has(old):
            value = self.take(old)
            self.put(new, change(value), comment)
            if old != new:
                self.origins[new] = old
            if old != new or change(value) != value:
                self.translated[old] = f"{new} = {json.dumps(change(value))}"
            else:
                self.kept += 1

    def origin(self, where: str) -> str:
        """The dotted key of the source that `where`, a key of ours, comes from."""
        outer, _, last = where.rpartition(".")
        return self.origins.get(where) or (f"{self.origin(outer)}.{last}" if outer else where)

    def drop(self, where: str, why: str) -> None:
        """Leave out a key that has no effect here."""
        if self.has(where):
            self.take(where)
            self.dropped[where] = why

    def keep_rest(self) -> None:
        """What is left in the source goes over as it is; the check of the options refuses what it does not know."""
        for where, value in leaves(self.source):
            if look_up(self.target, where) is MISSING:
                self.put(where, value)
                self.kept += 1
        self.source = {}


def look_up(values: Any, where: str) -> Any:
    for name in where.split("."):
        if not isinstance(values, Mapping) or name not in values:
            return MISSING
        values = values[name]
    return values


def remove(values: dict[str, Any], where: str) -> None:
    """Remove a dotted key, and the sections that it leaves empty."""
    outer, _, last = where.rpartition(".")
    section = look_up(values, outer) if outer else values
    if isinstance(section, dict) and last in section:
        del section[last]
        if outer and not section:
            remove(values, outer)


def leaves(values: Mapping[str, Any], where: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted key, value) of everything that is no section, and of empty sections."""
    for key, value in values.items():
        dotted = f"{where}.{key}".strip(".")
        if isinstance(value, Mapping) and value:
            yield from leaves(value, dotted)
        else:
            yield dotted, value


def drop_matching(c: Conversion, matches: Callable[[str], Any], why: str) -> None:
    """Leave out every key or section, at any depth, whose own name matches; its value is never shown."""

    def search(values: Any, where: str) -> None:
        if isinstance(values, list):
            for number, value in enumerate(values):
                search(value, f"{where}[{number}]")
        for key in list(values) if isinstance(values, dict) else ():
            dotted = f"{where}.{key}".strip(".")
            if matches(str(key)):
                del values[key]
                c.dropped[dotted] = why
            else:
                search(values[key], dotted)

    search(c.source, "")


def drop_secrets(c: Conversion) -> None:
    """Loggers of other programs and everything that looks like a key to a service."""
    other = re.compile(r"(use_)?(swanlab|logfire)(_.*)?", re.IGNORECASE)
    drop_matching(
        c, other.fullmatch, "this program reports to TensorBoard and Weights & Biases; nothing of it is copied"
    )
    drop_matching(c, SECRET.search, "secrets are never copied; give WANDB_API_KEY in the environment")


def is_yaml(path: Path) -> bool:
    return path.suffix.lower() in (".yml", ".yaml")


def read_file(path: Path) -> tuple[dict[str, Any], list[str]]:
    """The values of a JSON file with comments or a YAML file, and the dotted keys that are given twice.

    Raises OptionError for a file that cannot be read.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as e:
        reason = getattr(e, "strerror", None) or "it is not UTF-8 text"
        do = "correct the path" if isinstance(e, OSError) else "save it as UTF-8"
        raise OptionError(f"cannot read the option file: {reason}", str(path), "a JSON or YAML file", do) from e
    twice: list[str] = []
    if is_yaml(path):
        values = _read_yaml(text, path)
    else:
        keys = [key for key, _ in key_lines(text)]
        twice = sorted({key for key in keys if keys.count(key) > 1})
        try:
            values = json5.loads(text)
        except ValueError as e:
            place = re.match(r"<string>:(\d+)", str(e))
            where = f"{path}, line {place[1]}" if place else str(path)
            raise OptionError(
                "the option file is no valid JSON", where, "JSON with // comments", "correct it there"
            ) from e
    if not isinstance(values, dict):
        raise OptionError("the option file holds no object", str(path), "sections and keys", "correct the file")
    return values, twice


def _read_yaml(text: str, path: Path) -> Any:
    try:
        import yaml  # comes with wandb
    except ImportError as e:
        raise OptionError(
            "a YAML file needs the package PyYAML", str(path), "an installed PyYAML", "pip install pyyaml"
        ) from e
    try:
        return _with_numbers(yaml.safe_load(text))
    except yaml.YAMLError as e:
        mark = getattr(e, "problem_mark", None)
        where = f"{path}, line {mark.line + 1}" if mark else str(path)
        raise OptionError("the option file is no valid YAML", where, "plain YAML", "correct it there") from e


def _with_numbers(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _with_numbers(v) for key, v in value.items()}
    if isinstance(value, list):
        return [_with_numbers(v) for v in value]
    return float(value) if isinstance(value, str) and _NUMBER.fullmatch(value) else value


def section_models(target: Mapping[str, Any], parts: Mapping[str, Registry]) -> dict[str, type[Section]]:
    """Dotted place of each section in `target` -> its option model; "" is the whole file."""
    models: dict[str, type[Section]] = {"": Options}
    for name, option in Options.model_fields.items():
        if isinstance(option.annotation, type) and issubclass(option.annotation, Section):
            models[name] = option.annotation
    for where, kind in PART_SECTIONS.items():
        section = look_up(target, where)
        name = section.get(parts[kind].type_key) if isinstance(section, Mapping) else None
        if name in parts[kind].names():
            models[where] = parts[kind].model(name)
    return models


def plain_values(c: Conversion, parts: Mapping[str, Registry]) -> None:
    """[v] or [v, v] for a key that takes one value becomes v; 5e3 for a key that takes an integer becomes 5000."""
    for where, model in section_models(c.target, parts).items():
        section = look_up(c.target, where) if where else c.target
        for key, value in section.items() if isinstance(section, dict) else ():
            kind = describe(model.model_fields[key]) if key in model.model_fields else "list"
            if kind.startswith("int") and isinstance(value, float) and value == int(value):
                section[key] = int(value)
            if "list" not in kind and isinstance(value, list) and value and all(v == value[0] for v in value):
                section[key] = value[0]
                c.translated[f"{where}.{key}".strip(".")] = (
                    f"{json.dumps(value)} is one value here, {json.dumps(value[0])}"
                )


def drop_unused(c: Conversion, parts: Mapping[str, Registry]) -> None:
    """Leave out the keys of KAIR that say nothing to the part of their section."""
    models = section_models(c.target, parts)
    for where, keys in KAIR_ONLY.items():
        known = models[where].model_fields if where in models else {}
        for key in sorted(keys.keys() - known):
            if look_up(c.target, f"{where}.{key}") is not MISSING:
                remove(c.target, f"{where}.{key}")
                c.dropped[f"{where}.{key}"] = keys[key]


def ordered(target: Mapping[str, Any], parts: Mapping[str, Registry]) -> dict[str, Any]:
    """`target` in the order of the option models; in a section that names a part, its name and its type come first."""
    models = section_models(target, parts)

    def sort(values: Any, where: str) -> Any:
        if not isinstance(values, Mapping):
            return values
        types = [registry.type_key for registry in parts.values()]
        order = ["name", *types, *(models[where].model_fields if where in models else ())]
        keys = sorted(values, key=lambda key: order.index(key) if key in order else len(order))
        return {key: sort(values[key], f"{where}.{key}".strip(".")) for key in keys}

    return sort(target, "")


def render(values: Mapping[str, Any], comments: Mapping[str, str], head: Sequence[str]) -> str:
    """2-space JSON with // comments above the keys that have one. head: the comment at the top."""
    text = json.dumps(values, indent=2, ensure_ascii=False)
    # A list without inner lists or objects goes on one line. Strings in JSON have no line ends.
    text = re.sub(r"\[\n[^\[\]{}]*\]", lambda found: re.sub(r"\n *", "", re.sub(r",\n *", ", ", found[0])), text)
    lines = text.splitlines()
    for key, number in reversed(key_lines(text)):
        line = lines[number - 1]
        lines[number - 1 : number - 1] = _comment(comments.get(key, ""), len(line) - len(line.lstrip()))
    lines[1:1] = [line for text in head for line in _comment(text, 2)]
    return "\n".join(lines) + "\n"


def _comment(text: str, indent: int) -> list[str]:
    return [f"{' ' * indent}// {line}" for line in textwrap.wrap(text, WIDTH - indent - 3)]

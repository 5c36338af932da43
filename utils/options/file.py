"""Where options come from: the command line, the file with // comments, its base, the overrides.

Only the form is checked here; the place of every key is kept for the messages of utils.options.load.
"""

from __future__ import annotations

import argparse
import copy
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import json5

from utils.errors import OptionError
from utils.options.section import SHORT_FLAGS, nearest, redact

# Keys that name a registered part, whose parameters stand beside them.
TYPE_KEYS = ("net_type", "dataset_type", "G_lossfn_type")
SCHEMA_KEY = "$schema"  # names the JSON Schema for editors; no option


class CommandLine(NamedTuple):
    opt_path: str
    overrides: list[str]


def parse_command_line(argv: Sequence[str], usage: str | None = None) -> CommandLine:
    """Read `--opt FILE [--resume auto|none|path] [short flags] [section.key=value ...]`; OptionError for the rest.

    usage: what `--help` says before the arguments.
    """
    formatter = argparse.RawDescriptionHelpFormatter
    parser = _Parser(description=usage, formatter_class=formatter, allow_abbrev=False)
    parser.add_argument("--opt", required=True, metavar="FILE", help="option file")
    parser.add_argument("--resume", metavar="auto|none|PATH", help="checkpoint to resume from (path.resume)")
    parser.add_argument("--use_amp", action="store_true", help="train.amp.enable=true")
    for flag, key in SHORT_FLAGS.items():
        parser.add_argument(f"--{flag}", metavar="N", help=key)
    parser.add_argument("overrides", nargs="*", metavar="section.key=value", help="any option")
    args = parser.parse_intermixed_args(list(argv))

    overrides = [f"{key}={getattr(args, flag)}" for flag, key in SHORT_FLAGS.items() if getattr(args, flag) is not None]
    if args.use_amp:
        overrides.append("train.amp.enable=true")
    if args.resume is not None:
        overrides.append(f"path.resume={'null' if args.resume == 'none' else args.resume}")
    overrides = [*args.overrides, *overrides]
    given = dict(override.partition("=")[::2] for override in overrides)
    if given.get("train.epochs", "null") != "null" and "train.total_iter" not in given:
        overrides.append("train.total_iter=null")  # the file must not end the run before these epochs
    return CommandLine(args.opt, overrides)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> None:  # argparse would print and exit, once on every rank
        what, expected = redact(message, shown="***"), "--opt FILE [section.key=value ...]"
        raise OptionError(what, "the command line", expected, "see --help")


class Sources:
    """Where each option came from: dotted key -> "FILE, line N" or the override."""

    def __init__(self, main_file: str) -> None:
        self.main_file = main_file
        self.places: dict[str, str] = {}
        self.overridden: set[str] = set()  # dotted keys that the command line gives
        self.soft: set[str] = set()  # inherited keys of a replaced part: dropped unless the new part has them

    def place(self, where: str) -> str:
        """The place of dotted key `where`, else of a key in it, else of the nearest section around it."""
        key = where
        if key not in self.places:
            key = next((k for k in self.places if where and k.startswith(f"{where}.")), where)
        while key and key not in self.places:
            key = key.rpartition(".")[0]
        place = self.places.get(key, self.main_file)
        return place if key == where or not where else f"{place} ({where})"


def read_with_base(path: Path, sources: Sources) -> dict[str, Any]:
    raw = _read_file(path, sources)
    if "base" not in raw:
        return raw
    if not isinstance(raw["base"], str):
        raise OptionError(f"base is {raw['base']!r}", str(path), "the path of an option file", "correct base")
    base_path = path.parent / raw.pop("base")
    own = sources.places
    sources.places = {}
    base = _read_file(base_path, sources)
    if "base" in base:
        raise OptionError(
            "a base has a base",
            str(base_path),
            "one level of inheritance",
            f"name the base of {base_path} in {path}, or copy",
        )
    sources.places |= own
    return _merge(base, raw, "", sources)


def _read_file(path: Path, sources: Sources) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as e:
        what = f"the option file is not UTF-8 text (byte {e.start + 1})"
        raise OptionError(what, str(path), "a JSON file in UTF-8", "save it as UTF-8") from e
    except OSError as e:
        siblings = [str(p) for p in path.parent.glob("*.json")] if path.parent.is_dir() else []
        raise OptionError(
            f"cannot read the option file: {e.strerror}", str(path), f"a JSON file{nearest(str(path), siblings)}",
            "give its path with --opt (a base is relative to the file that names it)",
        ) from e  # fmt: skip
    for key, line in key_lines(text):
        if key in sources.places:
            first = sources.places[key].rpartition("line ")[2]
            raise OptionError(
                f"{key} is given twice",
                f"{path}, line {line}",
                f"each key once (first on line {first})",
                "remove one of the two",
            )
        sources.places[key] = f"{path}, line {line}"
    try:
        raw = json5.loads(text)
    except ValueError as e:
        message = re.sub(r"^<string>:(\d+)\s*", r"line \1: ", str(e))
        raise OptionError(
            "the option file is no valid JSON", str(path), message, "correct the file there or just above"
        ) from e
    if not isinstance(raw, dict):
        raise OptionError("the option file holds no object", str(path), '{ "task": ..., ... }', "correct the file")
    raw.pop(SCHEMA_KEY, None)
    return raw


_TOKEN = re.compile(
    r"""(?P<skip>//[^\n]*|/\*.*?\*/) | (?P<text>"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')
        | (?P<word>[\w$.+\-]+) | (?P<mark>[{}\[\],:])""",
    re.VERBOSE | re.DOTALL,
)


def key_lines(text: str) -> list[tuple[str, int]]:
    """(dotted key, line) of every key of the file, for messages; json5 reports duplicate keys without their place."""
    found, stack, word, line, end = [], [""], "", 1, 0
    for token in _TOKEN.finditer(text):
        line += text.count("\n", end, token.start())
        end = token.start()
        mark = token["mark"]
        if token["text"] or token["word"]:
            word, word_line = token["word"] or token["text"][1:-1], line
        elif mark == ":":
            key = f"{stack[-1]}.{word}".lstrip(".")
            found.append((key, word_line))
            word = key
        elif mark and mark in "{[":
            # An object in a list gets a name of its own, or its keys would look like duplicates.
            stack.append(word if stack[-1] is not None and mark == "{" else f"{word}.{len(found)}")
        elif mark and mark in "}]" and len(stack) > 1:
            stack.pop()
    return found


def _merge(base: dict[str, Any], own: dict[str, Any], where: str, sources: Sources) -> dict[str, Any]:
    """`own` over `base`, section by section."""
    if "type" in own and own["type"] != base.get("type"):
        return copy.deepcopy(own)
    if any(key in own and own[key] != base.get(key) for key in TYPE_KEYS):
        sources.soft |= {f"{where}{key}" for key in base.keys() - own.keys()}
    merged = dict(base)
    for key, value in own.items():
        both = isinstance(value, dict) and isinstance(base.get(key), dict)
        merged[key] = _merge(base[key], value, f"{where}{key}.", sources) if both else value
    return merged


def apply_override(raw: dict[str, Any], override: str, sources: Sources) -> None:
    key, equals, text = override.partition("=")
    shown = shown_argument(override)
    if not equals or not re.fullmatch(r"[\w$\-]+(\.[\w$\-]+)*", key):
        raise OptionError(
            f"cannot read {shown!r}", "the command line", "section.key=value", "see docs/options.md for the keys"
        )
    value = _value_of(text)
    *sections, last = key.split(".")
    target = raw
    for depth, name in enumerate(sections):
        inner = target.get(name, {})
        if isinstance(inner, str):
            inner = {"type": inner}  # a part given by its name alone
        if not isinstance(inner, dict):
            place = ".".join(sections[: depth + 1])
            raise OptionError(
                f"{place} has no keys", f"the command line ({shown})", f"{place}=value", "correct the override"
            )
        target[name] = inner
        target = inner
    if last == "type" and target.get(last) != value:
        target.clear()
    if last in TYPE_KEYS and target.get(last) != value:
        sources.soft |= {".".join([*sections, other]) for other in target}
    target[last] = value
    sources.soft.discard(key)
    sources.overridden.add(key)
    sources.places[key] = f"the command line ({shown})"


def _value_of(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def shown_argument(argument: str) -> str:
    """An argument of a command line, without secrets: as it was typed if there are none."""
    key, equals, text = argument.partition("=")
    value = _value_of(text)
    clean = redact(value, key.lstrip("-").replace("-", "_"), "***")
    if not equals or clean == value:
        return redact(argument, shown="***")
    return f"{key}={clean if isinstance(clean, str) else json.dumps(clean)}"

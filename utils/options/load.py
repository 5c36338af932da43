"""Options: one JSON file with // comments -> base -> command line -> a frozen, typed tree.

A wrong key, type or value is an OptionError that names the file and line, the dotted key, what was
expected and the nearest valid key. The table of keys is utils/options/models.py; networks, datasets
and losses are checked by the registries that the caller passes in, for utils/ may not import them.
"""

import argparse
import copy
import json
import logging
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import json5

from utils import VERSION
from utils.errors import OptionError
from utils.options.foreign_flags import add_launch_flags, check_launch_flags, refuse_train_flags
from utils.options.models import FORMERLY_OURS, KAIR_ONLY, Options
from utils.options.secrets import redact
from utils.options.section import SHORT_FLAGS, Registry, joined, nearest, read_section

logger = logging.getLogger(__name__)

# Keys that name a registered part, whose parameters stand beside them.
TYPE_KEYS = ("net_type", "dataset_type", "G_lossfn_type")
LARGEST = 2**20  # bytes of an option file; the longest of ours has 10,000
LARGEST_JSON5 = 2**14
DEEPEST = 64  # brackets within one another; ours need 6
# The JSON Schema for editors; the version that wrote a record of options
NO_OPTIONS = (
    "$schema",
    "$version",
)


def parse_command_line(argv: Sequence[str], usage: str | None = None) -> tuple[str, list[str]]:
    """File and overrides of `--opt FILE [--resume auto|none|path] [short flags] [section.key=value
    ...]`.

    OptionError for anything else. usage: what `--help` says before the arguments.
    """
    parser = OptionParser("--opt FILE [section.key=value ...]", "see --help", description=usage)
    parser.add_argument("--version", action="version", version=f"SpikeVRT {VERSION}")
    parser.add_argument("--opt", "-opt", required=True, metavar="FILE", help="option file")
    add_flag = partial(parser.add_argument, dest="flags", action="append", default=[])
    add_flag(
        "--resume",
        type=lambda path: f"path.resume={'null' if path == 'none' else path}",
        metavar="auto|none|PATH",
        help="checkpoint to resume from (path.resume)",
    )
    add_flag(
        "--use_amp",
        action="append_const",
        const="train.amp.enable=true",
        help="train.amp.enable=true",
    )
    for flag, key in SHORT_FLAGS.items():
        add_flag(f"--{flag}", type=f"{key}={{}}".format, metavar="N", help=key)
    add_launch_flags(parser)
    parser.add_argument("overrides", nargs="*", metavar="section.key=value", help="any option")
    refuse_train_flags(argv)
    args = parser.parse_intermixed_args(list(argv))
    check_launch_flags(args)

    overrides = [*args.overrides, *args.flags]
    given = dict(override.partition("=")[::2] for override in overrides)
    if given.get("train.epochs", "null") != "null" and "train.total_iter" not in given:
        # The file must not end the run before these epochs
        overrides.append("train.total_iter=null")
    return args.opt, overrides


class OptionParser(argparse.ArgumentParser):
    """Raises OptionError, with these parts: argparse would print and exit, once on every rank."""

    def __init__(self, expected: str, do: str, description: str | None) -> None:
        formatter = argparse.RawDescriptionHelpFormatter
        super().__init__(description=description, formatter_class=formatter, allow_abbrev=False)
        self.expected, self.do = expected, do

    def error(self, message: str) -> NoReturn:
        raise OptionError(redact(message, shown="***"), "the command line", self.expected, self.do)


@dataclass
class Sources:
    """Where each option came from.

    places: dotted key -> "FILE, line N" or the override. overridden: dotted keys that the command
    line gives. soft: inherited keys of a replaced part, dropped unless the new part has them.
    """

    main_file: str
    places: dict[str, str] = field(default_factory=dict)
    overridden: set[str] = field(default_factory=set)
    soft: set[str] = field(default_factory=set)

    def place(self, where: str) -> str:
        """The place of dotted key `where`, else of a key in it, else of the nearest section around
        it.
        """
        key = (
            where
            if where in self.places
            else next((k for k in self.places if k.startswith(f"{where}.")), where)
        )
        while key and key not in self.places:
            key = key.rpartition(".")[0]
        place = self.places.get(key, self.main_file)
        return place if key == where or not where else f"{place} ({where})"


def read_with_base(path: Path, sources: Sources) -> dict[str, Any]:
    raw, sources.places = _read_file(path)
    if "base" not in raw:
        return raw
    if not isinstance(raw["base"], str):
        raise OptionError(
            f"base is {raw['base']!r}", str(path), "the path of an option file", "correct base"
        )
    base_path = path.parent / raw.pop("base")
    if base_path.is_fifo():  # reading would wait for whoever writes into it
        raise OptionError("the base is a pipe", str(base_path), "an option file", "correct base")
    base, places = _read_file(base_path)
    if "base" in base:
        do = f"name the base of {base_path} in {path}, or copy"
        raise OptionError("a base has a base", str(base_path), "one level of inheritance", do)
    sources.places = places | sources.places
    return _merge(base, raw, "", sources)


def _read_file(path: Path) -> tuple[dict[str, Any], dict[str, str]]:
    """(its values, dotted key -> place)."""
    try:
        with open(path, "rb") as file:
            content = file.read(LARGEST + 1)
        if len(content) > LARGEST:
            raise OptionError(
                what=f"the option file has more than {LARGEST} bytes",
                where=str(path),
                expected="an option file; long lists of exposures may have a file of their own",
                do="correct the path (a base is relative to the file that names it)",
            )
        text = content.decode("utf-8-sig")
        if "\0" in text or "\\u0000" in text:  # no name of a file can have it
            raise OptionError(
                what="the option file holds the character NUL",
                where=str(path),
                expected="a text file",
                do="remove the character, or bring the file back",
            )
    except UnicodeDecodeError as e:
        what = f"the option file is not UTF-8 text (byte {e.start + 1})"
        raise OptionError(what, str(path), "a JSON file in UTF-8", "save it as UTF-8") from e
    except OSError as e:
        siblings = [str(p) for p in path.parent.glob("*.json")] if path.parent.is_dir() else []
        what, expected = (
            f"cannot read the option file: {e.strerror}",
            f"a JSON file{nearest(str(path), siblings)}",
        )
        do = "give its path with --opt (a base is relative to the file that names it)"
        raise OptionError(what, str(path), expected, do) from e
    places: dict[str, str] = {}
    for key, line in _key_lines(text, str(path)):
        if key in places:
            expected = f"each key once (first on line {places[key].rpartition('line ')[2]})"
            raise OptionError(
                f"{key} is given twice", f"{path}, line {line}", expected, "remove one of the two"
            )
        places[key] = f"{path}, line {line}"
    try:
        raw = _with_whole_characters(_parse(text))
    except (ValueError, RecursionError) as e:
        message = re.sub(r"^<string>:(\d+)\s*", r"line \1: ", str(e))
        expected = "fewer brackets within one another" if isinstance(e, RecursionError) else message
        do = "correct the file there or just above"
        raise OptionError("the option file is no valid JSON", str(path), expected, do) from e
    if not isinstance(raw, dict):
        raise OptionError(
            "the option file holds no object", str(path), '{ "task": ..., ... }', "correct the file"
        )
    return {key: value for key, value in raw.items() if key not in NO_OPTIONS}, places


def _parse(text: str) -> Any:
    """Return the value of a JSON text, of a short one also with the additions of JSON5.

    json5 reads some 10 kB a second, so a long text is read as JSON without its comments.
    Raises ValueError.
    """
    if len(text) <= LARGEST_JSON5:
        return json5.loads(text)
    # A comment leaves its length, so that messages name the right place.
    plain = _TOKEN.sub(lambda token: _blank(token[0]) if token["skip"] else token[0], text)
    try:
        return json.loads(plain)
    except json.JSONDecodeError as e:
        note = f"; beyond {LARGEST_JSON5} bytes it must be JSON, with comments alone added"
        raise ValueError(f"<string>:{e.lineno} {e.msg} at column {e.colno}{note}") from e


def _with_whole_characters(value: Any) -> Any:
    """Return the value with each pair of surrogates as the character that it stands for.

    json5 leaves such pairs, as json.dumps writes them for an emoji, in two parts.
    Raises ValueError for one part alone.
    """
    if isinstance(value, str) and any("\ud800" <= character <= "\udfff" for character in value):
        try:
            return value.encode("utf-16", "surrogatepass").decode("utf-16")
        except UnicodeDecodeError as e:
            raise ValueError(f"{value!a} holds half of a character") from e
    if isinstance(value, list):
        return [_with_whole_characters(item) for item in value]
    if isinstance(value, dict):
        return {
            _with_whole_characters(key): _with_whole_characters(item) for key, item in value.items()
        }
    return value


def _blank(text: str) -> str:
    return re.sub(r"[^\n]", " ", text)


# An end that is missing counts as one, else a search for it would begin anew at each mark.
_TOKEN = re.compile(
    r"""(?P<skip>//[^\n]*|/\*(?:[^*]|\*(?!/))*(?:\*/)?)
        | (?P<text>"(?:\\.|[^"\\\n])*"?|'(?:\\.|[^'\\\n])*'?)
        | (?P<word>[\w$.+\-]+) | (?P<mark>[{}\[\],:])""",
    re.VERBOSE | re.DOTALL,
)


def _key_lines(text: str, where: str) -> list[tuple[str, int]]:
    """(dotted key, line) of every key of the file, for messages; json5 reports duplicate keys
    without their place.

    where: the file. Raises OptionError for brackets that are too deep: json5 and json call
    themselves for each.
    """
    found, stack, word, word_line, line, end = [], [""], "", 1, 1, 0
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
            if len(stack) > DEEPEST:
                raise OptionError(
                    what="the option file is no valid JSON for this program: more than "
                    f"{DEEPEST} brackets within one another on line {line}",
                    where=where,
                    expected="fewer brackets within one another",
                    do="correct the file there or just above",
                )
            # An object in a list gets a name of its own, or its keys would look like duplicates.
            stack.append(word if stack[-1] is not None and mark == "{" else f"{word}.{len(found)}")
        elif mark and mark in "}]" and len(stack) > 1:
            stack.pop()
    return found


def _merge(
    base: dict[str, Any], own: dict[str, Any], where: str, sources: Sources
) -> dict[str, Any]:
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
        do = "see docs/options.md for the keys"
        raise OptionError(f"cannot read {shown!r}", "the command line", "section.key=value", do)
    value = _value_of(text)
    *sections, last = key.split(".")
    target: dict[str, Any] = raw
    for depth, name in enumerate(sections):
        held: Any = target.get(name, {})
        # A part may be given by its name alone.
        inner: Any = {"type": held} if isinstance(held, str) else held
        if not isinstance(inner, dict):
            name, where = ".".join(sections[: depth + 1]), f"the command line ({shown})"
            raise OptionError(f"{name} has no keys", where, f"{name}=value", "correct the override")
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
    except (ValueError, RecursionError):
        return text


def shown_argument(argument: str) -> str:
    """An argument of a command line, without secrets: as it was typed if there are none."""
    key, equals, text = argument.partition("=")
    value = _value_of(text)
    clean = redact(value, key.lstrip("-").replace("-", "_"), "***")
    if not equals or clean == value:
        return redact(argument, shown="***")
    return f"{key}={clean if isinstance(clean, str) else json.dumps(clean)}"


# Sections that name a registered part, and the registry's key in `parts`.
Parts = Mapping[str, Registry]
PART_SECTIONS = {
    "netG": "netG",
    "train": "train",
    "datasets.train": "datasets",
    "datasets.test": "datasets",
}
TOTALS = ("dataloader_batch_size", "dataloader_num_workers")  # over all GPUs in KAIR, per GPU here


def load_options(
    path: str | Path,
    overrides: Sequence[str],
    parts: Parts,
    check: Sequence[Callable[[Options], object]] = (),
) -> Options:
    """The options of file `path`, completed with every default.

    overrides: "section.key=value", value in JSON, else a string.
    parts: registries of the sections "netG", "datasets" (both splits) and "train" (the loss).
    check: functions of the options that raise OptionError with the dotted key in `where`, as this
    function does.
    """
    sources = Sources(str(path))
    raw = read_with_base(Path(path), sources)
    for override in overrides:
        apply_override(raw, override, sources)
    try:
        opt = read_options(raw, parts, sources)
        for function in check:
            function(opt)
    except OptionError as e:
        raise OptionError(e.what, sources.place(e.where), e.expected, e.do) from e
    return opt


def read_options(
    values: Mapping[str, Any], parts: Parts, sources: Sources | None = None
) -> Options:
    """The options of a mapping in the form of an option file, completed with every default.

    Raises OptionError.
    """
    sources = sources or Sources("")
    raw = copy.deepcopy(dict(values))
    dropped = drop_without_effect(raw, parts)
    # Every rank reads the options; only rank 0 warns.
    if dropped and os.environ.get("RANK", os.environ.get("SLURM_PROCID", "0")) == "0":
        logger.warning("Options that have no effect here: %s", ", ".join(dropped))
    totals, loader = [], _section_of(raw, "datasets.train") or {}
    if any(key.rpartition(".")[2] not in FORMERLY_OURS for key in dropped):  # a file of KAIR
        totals = [
            key
            for key in TOTALS
            if key in loader and f"datasets.train.{key}" not in sources.overridden
        ]
    wrong: list[OptionError] = []
    for where, kind in PART_SECTIONS.items():
        outer, _, name = where.rpartition(".")
        holder = _section_of(raw, outer)
        if holder is None or (outer and name not in holder):
            continue
        section = holder.pop(name, {})
        if not isinstance(section, dict) or (outer and not section):
            holder[name] = section or None  # an empty dataset is none; the rest is refused below
            continue
        registry = parts[kind]
        part = section.get(registry.type_key)
        known = registry.model(part).model_fields if part in registry.names() else section
        own = {
            key: value
            for key, value in section.items()
            if key in known or f"{where}.{key}" not in sources.soft
        }
        try:
            holder[name] = registry.resolve(own, where)
        except OptionError as e:
            wrong.append(e)
            holder[name] = registry.base.model_construct()  # the rest is checked as well
    try:
        opt = read_section(
            Options, {**raw, "opt_path": sources.main_file, "kair_totals": totals}, ""
        )
    except OptionError as e:
        wrong.insert(0, e)
    if wrong:
        raise joined(wrong)
    return opt


def drop_without_effect(raw: dict[str, Any], parts: Parts) -> list[str]:
    """Remove the keys of KAIR that say nothing to the part of their section; their dotted names."""
    dropped = []
    for where, keys in KAIR_ONLY.items():
        section, registry = _section_of(raw, where) or {}, parts.get(PART_SECTIONS.get(where, ""))
        name = section.get(registry.type_key) if registry else None
        known = set(registry.keys(name)) if registry and name in registry.names() else set()
        for key in sorted((keys.keys() - known) & section.keys()):
            dropped.append(f"{where}.{key}")
            del section[key]
    return dropped


def _section_of(raw: dict[str, Any], where: str) -> dict[str, Any] | None:
    """Return the section at the dotted place, or the whole for "".

    Returns None if there is no section.
    """
    section: Any = raw
    for name in filter(None, where.split(".")):
        section = section.get(name) if isinstance(section, dict) else None
    return section if isinstance(section, dict) else None

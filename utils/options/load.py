"""Read the options of a run: file -> base -> command line -> a frozen, typed tree.

    sources = Sources("train.json")           notes where each key comes from, for messages
    raw = read_with_base(path, sources)       reads the file and its base, the file that its key
                                              `base` names. A key of the file replaces it
    apply_override(raw, "a.b=1", sources)     sets one section.key=value of the command line
    read_options(raw, parts, sources)         checks all keys, adds the defaults: an `Options`

`raw` is a dict as JSON gives it: key -> value, and a section is a dict within it.

`load_options` takes these four steps. A wrong key, type or value is an OptionError that names the
file and line, the dotted key, what was expected and the nearest valid key.

An option file is JSON with // comments. Its keys are the fields of the models in
utils/options/models.py. A section can also name a registered part: a network, a dataset or a loss.
Then the parameters of the part are keys of the section, too. E.g. `depths` is a parameter of vrt:

    "netG": {"net_type": "vrt", "depths": [8, 8, ...]}

The caller passes in the registries that know the parts, because utils/ may not import them.

What must stay:

    old option files, and the options in old checkpoints, stay readable
        test_an_option_file_of_the_project_is_valid, tests/stories/test_kair_files.py
    a small hostile file takes neither memory nor time
        test_a_small_option_file_takes_neither_memory_nor_time
    no message shows a secret
        test_a_message_hides_a_secret_but_names_its_key

Free to change: the words of errors, together with test_option.py.

Tests: tests/parts/utils/test_option.py, tests/parts/utils/test_option_files.py,
tests/parts/utils/test_hostile_options.py
"""

import argparse
import copy
import json
import logging
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import json5

from utils import VERSION
from utils.errors import OptionError
from utils.options.foreign_flags import add_launch_flags, check_launch_flags, refuse_train_flags
from utils.options.models import FORMERLY_OURS, KAIR_ONLY, Options
from utils.options.secrets import redact
from utils.options.section import SHORT_FLAGS, Registry, join_errors, nearest_hint, read_section

logger = logging.getLogger(__name__)

# Keys that name a registered part. The parameters of the part stand beside this key.
TYPE_KEYS = ("net_type", "dataset_type", "G_lossfn_type")

# Limits of an option file. A user may have given the path of another file by mistake, or of a
# hostile file. tests/parts/utils/test_hostile_options.py goes beyond each limit.
#
# Number of bytes, 1 MiB. The longest option file of this project has 10,000, so a user's file may
# be 100 times as long. A larger limit would let a hostile file take more time and memory.
MOST_FILE_BYTES = 2**20
# Number of characters of a file that may use all of JSON5. The package json5 reads some 10 kB a
# second, so twice as many characters would take 3 s. A longer file may have comments only.
MOST_JSON5_CHARACTERS = 2**14
# Number of brackets within one another. Files of this project need 6, so 64 are ample. json and
# json5 call themselves for each bracket, and Python allows some 1000 calls within one another.
DEEPEST = 64
# Number of characters of a dotted key, such as "netG.fusion.type". Our longest key has some 50.
# Each key holds the names of the sections around it. So without a limit, 20,000 keys in a section
# whose name has 500,000 characters would take 10 GB.
MOST_KEY_CHARACTERS = 500

# Keys of a file that are no options: the JSON Schema for editors, and the version of this project
# that wrote a record of options.
NO_OPTIONS = ("$schema", "$version")
# Keys of datasets.train for the loader (the part that reads samples in the background). Here their
# numbers are per GPU. In files of KAIR they are totals of all GPUs. KAIR is the program in which
# VRT was published; its option files can be read.
TOTALS = ("dataloader_batch_size", "dataloader_num_workers")

# Kind of part -> the registry that knows the parts of this kind.
Parts = Mapping[str, Registry]
# Section that names a registered part -> kind of part.
PART_SECTIONS = {
    "netG": "netG",
    "train": "train",  # the loss
    "datasets.train": "datasets",
    "datasets.test": "datasets",
}


@dataclass
class Sources:
    """Where each option came from, for messages.

    The functions of this file fill it in place: `read_with_base` sets the places of a file, and
    `apply_override` adds the place of an override.
    """

    main_file: str
    # Dotted key -> "FILE, line N", or the override of the command line.
    places: dict[str, str] = field(default_factory=dict)
    # Dotted keys that the command line gives.
    overridden: set[str] = field(default_factory=set)
    # Dotted keys that were meant for another part. E.g. the base has {"net_type": "vrt", "depths":
    # [8]}, and the file says "net_type": "tiny". Then "netG.depths" is left in the section,
    # although it belongs to vrt. An unknown key of this set is dropped. Any other unknown key is an
    # error.
    inherited: set[str] = field(default_factory=set)

    def place(self, where: str) -> str:
        """Return where a dotted key was given, e.g. "train.epochs" -> "a.json, line 3".

        If the key itself was not given, this is the place of a key within it, or the place of the
        nearest section around it. Then the key follows in brackets, e.g. "a.json, line 2
        (train.epochs)".
        """
        # First choice: the key itself. Second choice: the first key within it.
        key = where
        if key not in self.places:
            for other_key in self.places:
                if other_key.startswith(f"{where}."):
                    key = other_key
                    break
        # Third choice: the nearest section around it. A missing key of the network, for example,
        # gets the place of "netG". The last key to try is "", the whole file.
        while key and key not in self.places:
            key = key.rpartition(".")[0]  # "train.amp.enable" -> "train.amp"
        place = self.places.get(key, self.main_file)
        if key == where or not where:
            return place
        return f"{place} ({where})"


# ---- All steps --------------------------------------------------------------------------------


def load_options(
    path: str | Path,
    overrides: Sequence[str],
    parts: Parts,
    check: Sequence[Callable[[Options], object]] = (),
) -> Options:
    """Return the options of a file, completed with every default.

    The two main programs and several scripts call this. Raises OptionError with file and line.

    overrides: "section.key=value" of the command line; the value is JSON, else a string
    parts: the registries of "netG" (networks), "datasets" and "train" (losses)
    check: further checks, e.g. that the folders of the clips exist. Each raises OptionError with
        the dotted key in `where`, in place of which the user sees file and line of the key
    """
    # This order must stay, because the later source counts: an override replaces the value of the
    # file, and the file replaces the value of its base.
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


# ---- The command line -------------------------------------------------------------------------


def parse_command_line(argv: Sequence[str], usage: str | None = None) -> tuple[str, list[str]]:
    """Return the option file and the overrides of a command line.

    Its form is `--opt FILE [--resume auto|none|PATH] [short flags] [section.key=value ...]`.
    Raises OptionError for anything else. Flags become overrides, e.g. `--use_amp` ->
    "train.amp.enable=true".

    usage: the text that `--help` prints before the arguments
    """
    refuse_train_flags(argv)  # flags of other programs, with the advice what to use here
    args = _train_parser(usage).parse_intermixed_args(list(argv))
    check_launch_flags(args)
    # The flags come last, because the last override of a key counts
    # (test_the_command_line_has_short_flags_for_the_commonest_options).
    overrides = [*args.overrides, *args.flags]
    if _asks_for_epochs_only(overrides):
        # Otherwise the total_iter of the file could end the run before these epochs.
        overrides.append("train.total_iter=null")
    return args.opt, overrides


def _train_parser(usage: str | None) -> "OptionParser":
    """Return the parser of main_train_vrt.py's command line.

    usage: the text that `--help` prints before the arguments.
    """
    parser = OptionParser("--opt FILE [section.key=value ...]", "see --help", description=usage)
    parser.add_argument("--version", action="version", version=f"SpikeVRT {VERSION}")
    parser.add_argument("--opt", "-opt", required=True, metavar="FILE", help="option file")
    # All flags below add an override to the same list, `flags`.
    parser.add_argument(
        "--resume",
        dest="flags",
        action="append",
        default=[],
        type=_resume_override,
        metavar="auto|none|PATH",
        help="checkpoint to resume from (path.resume)",
    )
    parser.add_argument(
        "--use_amp",
        dest="flags",
        action="append_const",
        default=[],
        const="train.amp.enable=true",
        help="train.amp.enable=true",
    )
    # SHORT_FLAGS: flag -> key, e.g. "batch_size" -> "datasets.train.dataloader_batch_size".
    for flag, key in SHORT_FLAGS.items():
        parser.add_argument(
            f"--{flag}",
            dest="flags",
            action="append",
            default=[],
            type=_override_of_key(key),
            metavar="N",
            help=key,
        )
    add_launch_flags(parser)
    parser.add_argument("overrides", nargs="*", metavar="section.key=value", help="any option")
    return parser


def _override_of_key(key: str) -> Callable[[str], str]:
    """Return a function that makes an override of a value, e.g. "8" -> "train.epochs=8"."""
    return lambda value: f"{key}={value}"


def _asks_for_epochs_only(overrides: Sequence[str]) -> bool:
    """Whether the overrides give `train.epochs` a number, and do not mention `train.total_iter`."""
    values = {}
    for override in overrides:
        key, _, value = override.partition("=")
        values[key] = value
    has_epochs = values.get("train.epochs", "null") != "null"
    return has_epochs and "train.total_iter" not in values


def _resume_override(path: str) -> str:
    """Return --resume as an override, e.g. "none" -> "path.resume=null"."""
    return f"path.resume={'null' if path == 'none' else path}"


class OptionParser(argparse.ArgumentParser):
    """A parser that raises OptionError. argparse itself would print and exit, once on every rank.

    expected, do: what the error says that was expected, and what the user can do
    """

    def __init__(self, expected: str, do: str, description: str | None) -> None:
        formatter = argparse.RawDescriptionHelpFormatter
        super().__init__(description=description, formatter_class=formatter, allow_abbrev=False)
        self.expected = expected
        self.do = do

    def error(self, message: str) -> NoReturn:
        """Raise OptionError with the message of argparse. argparse calls this for a wrong flag."""
        raise OptionError(
            what=redact(message, replacement="***"),  # the message quotes what the user typed
            where="the command line",
            expected=self.expected,
            do=self.do,
        )


def apply_override(raw: dict[str, Any], override: str, sources: Sources) -> None:
    """Set one option as the command line says. Raises OptionError if it cannot be read.

    `load_options` calls this for the overrides. Programs with flags that set options call it as
    well, e.g. main_test_vrt.py. Tests: test_option.py, the tests with "override" in their names.

    raw: sections and options, changed in place
    override: "section.key=value"; the value is JSON, else a string
    """
    # A key is words with dots between them, e.g. "train.amp.enable".
    key, equals, text = override.partition("=")
    clean_override = argument_without_secrets(override)  # for messages
    if not equals or not re.fullmatch(r"[\w$\-]+(\.[\w$\-]+)*", key):
        raise OptionError(
            what=f"cannot read {clean_override!r}",
            where="the command line",
            expected="section.key=value",
            do="see docs/options.md for the keys",
        )
    value = _value_of(text)

    # E.g. "train.amp.enable" is the key "enable" in the section "train.amp".
    *section_names, last_name = key.split(".")
    section = _section_to_change(raw, section_names, clean_override)

    # If the override names another part, the parameters of the old part no longer fit. There are
    # two cases:
    # * `type`, e.g. of netG.fusion: the section holds only parameters of the old part, so it
    #   becomes empty.
    # * TYPE_KEYS, e.g. G_lossfn_type in "train": the section also holds keys that every part of
    #   this kind has, e.g. total_iter. So all keys stay, and are marked as inherited:
    #   `read_options` drops those that the new part does not have.
    is_new_part = section.get(last_name) != value
    if last_name == "type" and is_new_part:
        section.clear()
    if last_name in TYPE_KEYS and is_new_part:
        for other_name in section:
            sources.inherited.add(".".join([*section_names, other_name]))

    # The key itself is the user's wish, so it is not marked as inherited: if the part does not have
    # it, that is an error.
    section[last_name] = value
    sources.inherited.discard(key)
    sources.overridden.add(key)
    sources.places[key] = f"the command line ({clean_override})"


def _section_to_change(
    raw: dict[str, Any], names: Sequence[str], clean_override: str
) -> dict[str, Any]:
    """Return the section of `raw` with these names, e.g. ["train", "amp"] -> raw["train"]["amp"].

    Changes `raw`: a section that is missing is added as {}, and the name of a part alone becomes a
    section, e.g. "concat" -> {"type": "concat"}. Raises OptionError if a name belongs to an option
    that is no section.

    clean_override: the override without secrets, for the error
    """
    section = raw
    for depth, name in enumerate(names):
        value: Any = section.get(name, {})
        is_name_of_part = isinstance(value, str)
        inner: Any = {"type": value} if is_name_of_part else value
        if not isinstance(inner, dict):
            dotted_key = ".".join(names[: depth + 1])  # up to this name
            raise OptionError(
                what=f"{dotted_key} has no keys",
                where=f"the command line ({clean_override})",
                expected=f"{dotted_key}=value",
                do="correct the override",
            )
        section[name] = inner
        section = inner
    return section


def _value_of(text: str) -> Any:
    """Return the value of an override: its JSON, or the text itself if it is no JSON.

    E.g. "8" -> 8, "[1, 2]" -> [1, 2], "null" -> None, "vrt" -> "vrt".
    """
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def argument_without_secrets(argument: str) -> str:
    """Return an argument of a command line without secrets. It stays as typed if it has none.

    E.g. "logging.wandb_api_key=abc" -> "logging.wandb_api_key=***".
    """
    key, equals, text = argument.partition("=")
    value = _value_of(text)
    name = key.lstrip("-").replace("-", "_")  # `--api-key=...` counts as the key api_key
    clean = redact(value, name, "***")
    # The value holds no secret. The argument as a whole may still look like a secret, e.g. like a
    # URL with a password.
    if not equals or clean == value:
        return redact(argument, replacement="***")
    clean_text = clean if isinstance(clean, str) else json.dumps(clean)
    return f"{key}={clean_text}"


# ---- The file and its base --------------------------------------------------------------------


def read_with_base(path: Path, sources: Sources) -> dict[str, Any]:
    """Return the sections of a file, completed with the sections of its base.

    The base is the file that the key `base` names. E.g. with {"base": "a.json", "train":
    {"epochs": 3}}, the file gives train.epochs, and a.json gives all other keys.

    Raises OptionError. Changes `sources`: it gets the places of all keys, and the inherited keys.
    """
    raw, sources.places = _read_file(path)
    if "base" not in raw:
        return raw
    if not isinstance(raw["base"], str):
        raise OptionError(
            what=f"base is {raw['base']!r}",
            where=str(path),
            expected="the path of an option file",
            do="correct base",
        )
    base_path = path.parent / raw.pop("base")
    if base_path.is_fifo():  # reading would wait for whoever writes into it
        raise OptionError("the base is a pipe", str(base_path), "an option file", "correct base")
    # A base may have no base. So whoever reads an option file has to open two files at most.
    base, base_places = _read_file(base_path)
    if "base" in base:
        raise OptionError(
            what="a base has a base",
            where=str(base_path),
            expected="one level of inheritance",
            do=f"name the base of {base_path} in {path}, or copy",
        )
    # The places of the file replace the places of the base.
    sources.places = base_places | sources.places
    return _merge(base, raw, where="", sources=sources)


def _merge(
    base: dict[str, Any], file: dict[str, Any], where: str, sources: Sources
) -> dict[str, Any]:
    """Return the keys of a section from a file and from its base. A key of the file counts.

    Sections within the section are merged in the same way. A list is replaced as a whole. E.g.

        base    {"a": 1, "b": {"c": 2, "d": 3}}
        file    {"b": {"c": 9}}
        result  {"a": 1, "b": {"c": 9, "d": 3}}

    `base` and `file` are not changed. `sources` gets the inherited keys. Test:
    test_an_option_file_of_the_project_is_valid, because most files of the project have a base.

    where: dotted key of the section with a dot at its end, e.g. "train.", or "" for the whole file
    """
    # The file names another nested part than the base, e.g. another `netG.fusion.type`. Such a
    # section holds keys of the part alone, and they do not fit the new part. So nothing of the base
    # is taken.
    if "type" in file and file["type"] != base.get("type"):
        return copy.deepcopy(file)
    # The file names another network, dataset or loss. Some keys of the base, e.g. total_iter, fit
    # every part, others fit the old part alone. So all are taken, and marked as inherited:
    # `read_options` drops the keys that do not fit.
    is_new_part = any(key in file and file[key] != base.get(key) for key in TYPE_KEYS)
    if is_new_part:
        for key in base:
            if key not in file:
                sources.inherited.add(f"{where}{key}")

    merged = dict(base)
    for key, value in file.items():
        if isinstance(value, dict) and isinstance(base.get(key), dict):
            merged[key] = _merge(base[key], value, f"{where}{key}.", sources)
        else:
            merged[key] = value
    return merged


def _read_file(path: Path) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the sections of one file, and dotted key -> place. Raises OptionError.

    E.g. {"task": "a"} gives {"task": "a"} and {"task": "train.json, line 1"}.
    """
    text = _read_text(path)
    # This order must stay. `_places_of_keys` refuses a text with too many brackets. `json` and
    # `json5`, which `_values_of_text` calls, could crash on such a text.
    places = _places_of_keys(text, path)
    values = _values_of_text(text, path)
    options = {}
    for key, value in values.items():
        if key not in NO_OPTIONS:
            options[key] = value
    return options, places


def _places_of_keys(text: str, path: Path) -> dict[str, str]:
    """Return dotted key -> place of an option file, e.g. "train.epochs" -> "a.json, line 3".

    Raises OptionError if a key is given twice, because json would silently keep the last value.
    """
    places: dict[str, str] = {}
    for key, line in _key_lines(text, str(path)):
        if key in places:
            first_line = places[key].rpartition("line ")[2]  # "a.json, line 3" -> "3"
            raise OptionError(
                what=f"{key} is given twice",
                where=f"{path}, line {line}",
                expected=f"each key once (first on line {first_line})",
                do="remove one of the two",
            )
        places[key] = f"{path}, line {line}"
    return places


def _values_of_text(text: str, path: Path) -> dict[str, Any]:
    """Return the JSON object that an option file holds. Raises OptionError."""
    try:
        raw = _with_whole_characters(_parse(text))
    except (ValueError, RecursionError) as e:
        # json5 begins its messages with "<string>:LINE". "<string>:3 Unexpected" becomes
        # "line 3: Unexpected".
        expected = re.sub(r"^<string>:(\d+)\s*", r"line \1: ", str(e))
        if isinstance(e, RecursionError):
            expected = "fewer brackets within one another"
        raise OptionError(
            what="the option file is no valid JSON",
            where=str(path),
            expected=expected,
            do="correct the file there or just above",
        ) from e
    if not isinstance(raw, dict):
        raise OptionError(
            what="the option file holds no object",
            where=str(path),
            expected='{ "task": ..., ... }',
            do="correct the file",
        )
    return raw


def _read_text(path: Path) -> str:
    """Return the text of a file. Raises OptionError if it is too large or no text.

    Test: test_a_small_option_file_takes_neither_memory_nor_time, e.g. with an endless file.
    """
    try:
        with open(path, "rb") as file:
            # Read one byte more than allowed: if it exists, the file is too large. So a file of
            # many GB is not read whole.
            content = file.read(MOST_FILE_BYTES + 1)
    except OSError as e:
        raise _cannot_read(path, e) from e
    if len(content) > MOST_FILE_BYTES:
        raise OptionError(
            what=f"the option file has more than {MOST_FILE_BYTES} bytes",
            where=str(path),
            expected="an option file; long lists of exposures may have a file of their own",
            do="correct the path (a base is relative to the file that names it)",
        )
    try:
        text = content.decode("utf-8-sig")  # "-sig": some editors put a mark of UTF-8 in front
    except UnicodeDecodeError as e:
        raise OptionError(
            what=f"the option file is not UTF-8 text (byte {e.start + 1})",
            where=str(path),
            expected="a JSON file in UTF-8",
            do="save it as UTF-8",
        ) from e
    # An option with the character NUL could become the name of a file, and no file can have such a
    # name. The text holds NUL as one character, or as the escape \u0000 of JSON
    # (test_a_file_with_the_character_nul_is_refused).
    if "\0" in text or "\\u0000" in text:
        raise OptionError(
            what="the option file holds the character NUL",
            where=str(path),
            expected="a text file",
            do="remove the character, or bring the file back",
        )
    return text


def _cannot_read(path: Path, error: OSError) -> OptionError:
    """Return the error for a file that cannot be read. It names a similar file of its folder."""
    siblings = []
    if path.parent.is_dir():
        siblings = [str(sibling) for sibling in path.parent.glob("*.json")]
    return OptionError(
        what=f"cannot read the option file: {error.strerror}",
        where=str(path),
        expected=f"a JSON file{nearest_hint(str(path), siblings)}",
        do="give its path with --opt (a base is relative to the file that names it)",
    )


def _parse(text: str) -> Any:
    """Return the value of a JSON text. Raises ValueError.

    A short text may have the additions of JSON5, such as commas at the end of a list. A long text
    may have comments only, because json5 reads some 10 kB a second. Tests: test_hostile_options.py,
    e.g. test_a_long_file_of_options_is_read_with_its_comments_and_its_places.
    """
    if len(text) <= MOST_JSON5_CHARACTERS:
        return json5.loads(text)
    # Blanks replace each comment, so that messages name the right line and column.
    plain = _TOKEN.sub(_blank_comment, text)
    try:
        return json.loads(plain)
    except json.JSONDecodeError as e:
        note = f"; beyond {MOST_JSON5_CHARACTERS} bytes it must be JSON, with comments alone added"
        # "<string>:LINE" is how json5 begins its messages. `_values_of_text` turns it into a line.
        raise ValueError(f"<string>:{e.lineno} {e.msg} at column {e.colno}{note}") from e


def _blank_comment(token: re.Match[str]) -> str:
    """Return a token of `_TOKEN` as it is, or blanks in place of a comment. Line ends stay."""
    is_comment = token["skip"] is not None
    if is_comment:
        return re.sub(r"[^\n]", " ", token[0])
    return token[0]


# One half of a pair of surrogates.
_SURROGATE = re.compile("[\ud800-\udfff]")


def _with_whole_characters(value: Any) -> Any:
    """Return a value of JSON in which no text has surrogates. Raises ValueError for half a pair.

    json.dumps writes an emoji as two escapes, a pair of surrogates: "\\ud83d\\ude00" is one emoji.
    json5 leaves the pair as two characters, and Python cannot write them to a file. So each pair is
    joined to one character. A half without its partner means nothing, so it is refused.
    """
    if isinstance(value, str) and _SURROGATE.search(value):
        # UTF-16 writes the two halves one after the other, and reads them as one character.
        try:
            return value.encode("utf-16", "surrogatepass").decode("utf-16")
        except UnicodeDecodeError as e:
            raise ValueError(f"{value!a} holds half of a character") from e
    if isinstance(value, list):
        return [_with_whole_characters(item) for item in value]
    if isinstance(value, dict):
        joined_pairs = {}
        for key, item in value.items():
            joined_pairs[_with_whole_characters(key)] = _with_whole_characters(item)
        return joined_pairs
    return value


# ---- The line of each key ---------------------------------------------------------------------

# The tokens of JSON5, as far as needed to find the keys. The group of a match says its kind. A
# comment or text without its closing mark ends at the end of the file or line. If the closing mark
# were required, a file of many opening marks would be searched to its end for each mark.
_TOKEN = re.compile(
    r"""
    (?P<skip> // [^\n]*                                # a comment up to the end of the line
        | /\* (?: [^*] | \* (?!/) )* (?: \*/ )?         # /* a comment */: any character but a star,
                                                       # or a star that no slash follows
    )
    | (?P<text> " (?: \\. | [^"\\\n] )* "?             # "a text", which may have escapes: \"
        | ' (?: \\. | [^'\\\n] )* '?                   # 'a text'
    )
    | (?P<word> [\w$.+\-]+ )                           # a name without quotes, or a number
    | (?P<mark> [{}\[\],:] )
    """,
    re.VERBOSE | re.DOTALL,
)


@dataclass
class _Bracket:
    """An object or a list that is open at some point of an option file."""

    name: str  # dotted key of the object or list, e.g. "logging.writers"; "" for the whole file
    is_list: bool
    key: str = ""  # only for an object: dotted key of the entry that is read now
    index: int = 0  # only for a list: index of the item that is read now

    def name_of_value(self) -> str:
        """Return the dotted key of the value that is read now.

        Each item of a list has a name of its own, e.g. "logging.writers.2". Otherwise the keys of
        two objects in one list would look as if one key were given twice.
        """
        if self.is_list:
            return _dotted(self.name, str(self.index))
        return self.key


def _dotted(section: str, key: str) -> str:
    """Return the dotted key of a key within a section, e.g. "train", "amp" -> "train.amp"."""
    return f"{section}.{key}".lstrip(".")  # the whole file has the name ""


def _key_lines(text: str, where: str) -> list[tuple[str, int]]:
    """Return (dotted key, line) of every key of an option file, in the order of the file.

    A key that is given twice is in the list twice. The name of a key within a list has the index of
    the item. For example, these two lines

        {"logging": {"progress": "bar",
                     "writers": [{"type": "table"}]}}

    give ("logging", 1), ("logging.progress", 1), ("logging.writers", 2) and
    ("logging.writers.0.type", 2). The last one is found like this:

        token       the innermost open bracket   key of this line
        [           "logging.writers"
        {           "logging.writers.0"
        "type"      "logging.writers.0"
        :           "logging.writers.0"          "logging.writers.0.type"

    This function looks for the keys itself, because json and json5 do not say on which line a key
    is. It goes through the tokens of the text once: a colon makes the last word a key, a comma
    begins the next item of a list, and brackets open and close objects and lists. For a text that
    is no valid JSON the result is meaningless, but `_parse` refuses this text afterwards.

    Raises OptionError if too many brackets are open at once. The time must stay in proportion to
    the length of the text, because hostile files of a megabyte are read, too. Test:
    test_hostile_options.py.

    where: the file, for the message
    """
    key_lines: list[tuple[str, int]] = []
    # The open brackets, the innermost last. The first one stands around the brackets of the file.
    # So the outermost bracket of the file gets the name "".
    whole_file = _Bracket(name="", is_list=False)
    open_brackets = [whole_file]
    word = ""  # the last text, word or number; it is a key if a colon follows
    word_line = 1
    line = 1  # line of the current token
    counted_up_to = 0  # position in the text; `line` counts the line ends before it
    for token in _TOKEN.finditer(text):
        # Count only the line ends since the last token, so that the text is read once in all.
        line += text.count("\n", counted_up_to, token.start())
        counted_up_to = token.start()
        bracket = open_brackets[-1]  # the innermost open bracket
        # A token is a word, a text or a mark. Comments are tokens too, and match no case below.
        mark = token["mark"]
        if token["word"]:
            word = token["word"]
            word_line = line
        elif token["text"]:
            word = token["text"][1:-1]  # without the quotes
            word_line = line
        elif mark == ":":
            bracket.key = _dotted(bracket.name, word)
            _refuse_long_key(bracket.key, word_line, where)
            key_lines.append((bracket.key, word_line))
        elif mark == ",":
            bracket.index += 1  # the next item of a list; in an object nobody reads the index
        elif mark == "{" or mark == "[":
            _refuse_depth(len(open_brackets), line, where)
            open_brackets.append(_Bracket(bracket.name_of_value(), is_list=mark == "["))
        elif mark == "}" or mark == "]":
            # A text that closes more brackets than it opens is no JSON: `_parse` refuses it.
            if bracket is not whole_file:
                open_brackets.pop()
    return key_lines


def _refuse_depth(depth: int, line: int, where: str) -> None:
    """Raise OptionError if more than DEEPEST brackets are open on this line.

    depth: number of brackets within one another, with this one
    where: the file, for the message
    """
    if depth > DEEPEST:
        raise OptionError(
            what="the option file is no valid JSON for this program: more than "
            f"{DEEPEST} brackets within one another on line {line}",
            where=where,
            expected="fewer brackets within one another",
            do="correct the file there or just above",
        )


def _refuse_long_key(key: str, line: int, where: str) -> None:
    """Raise OptionError if a dotted key has more than MOST_KEY_CHARACTERS characters.

    where: the file, for the message
    """
    if len(key) > MOST_KEY_CHARACTERS:
        raise OptionError(
            what=f"a key has more than {MOST_KEY_CHARACTERS} characters: {key[:40]}...",
            where=f"{where}, line {line}",
            expected="a key, with the names of its sections, as in docs/options.md",
            do="correct the key",
        )


# ---- From sections to typed options -----------------------------------------------------------


def read_options(
    values: Mapping[str, Any], parts: Parts, sources: Sources | None = None
) -> Options:
    """Return the typed options, completed with every default. The argument is not changed.

    All wrong keys are collected, and one OptionError names them
    (test_the_problems_of_a_file_are_named_at_once). Its `where` is the dotted key of the first
    wrong key.

    `load_options` calls this with the keys of a file. Whoever restores a network calls it with the
    options that a checkpoint holds. So a key of an older version must still be accepted here.

    values: the sections as an option file holds them, e.g. {"task": "a", "netG": {...}}
    sources: where the values came from; None if they come from no file
    """
    if sources is None:
        sources = Sources(main_file="")
    # Work on a copy, because the steps below remove keys and replace sections.
    raw = copy.deepcopy(dict(values))
    dropped_keys = drop_without_effect(raw, parts)
    # Every rank reads the options, but only rank 0 warns. The ranks are not connected yet, so the
    # number of this rank comes from the environment: torchrun sets RANK, Slurm sets SLURM_PROCID.
    rank = os.environ.get("RANK", os.environ.get("SLURM_PROCID", "0"))
    if dropped_keys and rank == "0":
        logger.warning("Options that have no effect here: %s", ", ".join(dropped_keys))

    totals = _totals_of_kair(raw, dropped_keys, sources)

    # First the sections that name a part. The registry of the part checks the section and gives a
    # typed section, which replaces the dict in `raw`.
    errors: list[OptionError] = []
    for where, kind in PART_SECTIONS.items():
        try:
            _resolve_part(raw, where, parts, kind, sources)
        except OptionError as e:
            errors.append(e)
    # Then the whole tree.
    try:
        all_values = {**raw, "opt_path": sources.main_file, "kair_totals": totals}
        opt = read_section(Options, all_values, where="")
    except OptionError as e:
        errors.insert(0, e)  # a wrong section of the file is named before a wrong parameter
    if errors:
        raise join_errors(errors)
    return opt


def _resolve_part(
    raw: dict[str, Any], where: str, parts: Parts, kind: str, sources: Sources
) -> None:
    """Replace the section `where` of `raw` by the typed section of the part that it names.

    If the section is wrong, replace it by unchecked defaults, and raise OptionError. So the caller
    can collect the error, and check the other sections as well.

    where: dotted key of the section, e.g. "netG" or "datasets.train"
    kind: kind of part, a key of `parts`
    """
    # "datasets.train" is the key "train" in the section "datasets". "netG" and "train" are keys of
    # the file itself, so `outer` is "".
    outer, _, name = where.rpartition(".")
    is_dataset = outer != ""
    outer_section = _section_of(raw, outer)  # the dict that holds the section
    if outer_section is None:
        return  # `datasets` is missing, or no section: `read_section` decides later
    if is_dataset and name not in outer_section:
        return  # a data set may be missing; a network and a loss may not
    section = outer_section.pop(name, {})
    is_empty_dataset = is_dataset and not section
    if not isinstance(section, dict) or is_empty_dataset:
        # An empty data set counts as null. `read_section` refuses any other value that is no dict.
        outer_section[name] = section or None
        return

    registry = parts[kind]
    own_values = _without_keys_of_other_part(section, where, registry, sources)
    try:
        outer_section[name] = registry.resolve(own_values, where)
    except OptionError:
        # `registry.base` is the model of the keys that every part of this kind has.
        # `model_construct` gives its defaults without a check.
        outer_section[name] = registry.base.model_construct()
        raise


def _without_keys_of_other_part(
    section: Mapping[str, Any], where: str, registry: Registry, sources: Sources
) -> Mapping[str, Any]:
    """Return the section without inherited keys that its part does not have.

    E.g. the base names the network "vrt" with depths, and the file names "tiny": then depths is
    left out. A section of an unknown part is returned as it is, because `Registry.resolve`
    refuses the part later.

    where: dotted key of the section
    """
    part = section.get(registry.type_key)  # name of the part, e.g. "vrt"
    if part not in registry.names():
        return section
    known_keys = registry.model(part).model_fields
    own_values = {}
    for key, value in section.items():
        is_inherited = f"{where}.{key}" in sources.inherited
        if key in known_keys or not is_inherited:
            own_values[key] = value
    return own_values


def _totals_of_kair(
    raw: Mapping[str, Any], dropped_keys: Sequence[str], sources: Sources
) -> list[str]:
    """Return the keys of datasets.train that are totals of all GPUs, for a warning.

    In KAIR, another program, the batch size and the number of loader processes are totals of all
    GPUs; here they are numbers per GPU. A file comes from KAIR if it has keys that only KAIR has.
    Tests: test_kair_files.py, e.g. test_a_number_from_the_command_line_is_no_total.

    dropped_keys: the dotted keys that `drop_without_effect` has removed, e.g. "netG.init_type"
    """
    names = [key.rpartition(".")[2] for key in dropped_keys]  # "netG.init_type" -> "init_type"
    # FORMERLY_OURS: keys that former versions of this project had too, so they prove nothing.
    is_of_kair = any(name not in FORMERLY_OURS for name in names)
    if not is_of_kair:
        return []
    # A user who types a number on the command line means the number per GPU.
    loader = _section_of(raw, "datasets.train") or {}  # None if the section is missing
    totals = []
    for key in TOTALS:
        if key in loader and f"datasets.train.{key}" not in sources.overridden:
            totals.append(key)
    return totals


def drop_without_effect(raw: dict[str, Any], parts: Parts) -> list[str]:
    """Remove from `raw` the keys that only KAIR has. Return their dotted names, for a warning.

    KAIR is the program in which VRT was published. Its option files can be read here, and their
    keys without a meaning here must not be errors (test_the_files_of_kair_load_unchanged).

    A key stays if the part of its section has a parameter of this name. E.g. "netG.init_type" goes,
    unless the network has a parameter `init_type`.
    """
    dropped_keys = []
    # KAIR_ONLY: dotted key of a section -> the keys that only KAIR has in this section.
    for where, keys in KAIR_ONLY.items():
        section = _section_of(raw, where) or {}  # None if the file has no such section
        # The parameters of the part that the section names, e.g. of the network. Some sections,
        # e.g. "path", name no part.
        part_keys: set[str] = set()
        kind_of_part = PART_SECTIONS.get(where, "")
        registry = parts.get(kind_of_part)
        if registry:
            name = section.get(registry.type_key)
            if name in registry.names():
                part_keys = set(registry.keys(name))
        for key in sorted(keys):
            if key in section and key not in part_keys:
                dropped_keys.append(f"{where}.{key}")
                del section[key]
    return dropped_keys


def _section_of(raw: Mapping[str, Any], where: str) -> dict[str, Any] | None:
    """Return the section at a dotted key, e.g. "datasets.train", or the whole file for "".

    Returns None if the key is missing, or if its value is no section. The result is part of `raw`,
    so a change of the result changes `raw`.
    """
    section: Any = raw
    names = where.split(".") if where else []
    for name in names:
        if not isinstance(section, dict):
            return None
        section = section.get(name)
    return section if isinstance(section, dict) else None

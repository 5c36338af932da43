"""Read an option file and its base into sections, and note the line of each key.

An option file is JSON with // comments. A short file may use all of JSON5, e.g. names without
quotes. The key `base` names a second file, the base. A key of the base is used if the file does not
have the key (`read_with_base`).

A user may give the path of any file by mistake, and a file may be hostile. So at most 1 MiB is
read, and a longer file is refused. Too many nested brackets and too long keys are refused before
the text is parsed (key_lines.py). A key that is given twice is refused, too.

What must stay:

    old option files stay readable
        test_an_option_file_of_the_project_is_valid, tests/stories/test_kair_files.py
    a small hostile file takes neither memory nor time
        test_a_small_option_file_takes_neither_memory_nor_time

Tests: tests/parts/utils/test_option_files.py, tests/parts/utils/test_hostile_options.py.
"""

import copy
import json
import re
from pathlib import Path
from typing import Any

import json5

from utils.errors import OptionError
from utils.options.key_lines import TOKEN, key_lines
from utils.options.section import nearest_hint
from utils.options.sources import TYPE_KEYS, Sources


def read_with_base(path: Path, sources: Sources) -> dict[str, Any]:
    """Return the sections of a file, completed with the sections of its base.

    The base is the file that the key `base` names. E.g. with {"base": "a.json", "train":
    {"epochs": 3}}, the file gives train.epochs, and a.json gives all other keys.

    Changes `sources`: stores there the places of all keys, e.g. "a.json, line 3", and the inherited
    keys (`_merge`). Raises OptionError if a file cannot be read, or if the base names a base.

    path: the option file. The path of the base is relative to its folder.
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
        raise OptionError(
            what="the base is a pipe",
            where=str(base_path),
            expected="an option file",
            do="correct base",
        )
    # A base must not have a base of its own. So a person who wants to know all options has to open
    # at most two files.
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
    """Return the keys of a section from a file and from its base.

    If both have a key, the value of the file is taken. If both values are sections, they are merged
    in the same way. A list is replaced as a whole. E.g.

        base    {"a": 1, "b": {"c": 2, "d": 3}}
        file    {"b": {"c": 9}}
        result  {"a": 1, "b": {"c": 9, "d": 3}}

    `base` and `file` are not changed. If the file names another part (case 2 below), `sources` gets
    the inherited keys, i.e. the keys of the base that the file does not have.

    `_leave_old_part` (override.py) has the same two cases for the command line, so change both
    together.

    Test: test_an_option_file_of_the_project_is_valid, because most files of the project have a
    base.

    where: dotted key of the section with a dot at its end, e.g. "train.", or "" for the whole file
    """
    # Case 1: file and base name different nested parts, e.g. different values of
    # `netG.fusion.type`. All keys in such a section of the base belong to the old part, so no key
    # of the base is taken.
    if "type" in file and file["type"] != base.get("type"):
        return copy.deepcopy(file)
    # Case 2: file and base name different networks, datasets or losses. Some keys of the base, e.g.
    # total_iter, fit every part, and other keys fit only the old part. So all keys are taken, and
    # marked as inherited. Later, `read_options` (typed.py) drops inherited keys that do not fit.
    # TYPE_KEYS are the keys that name such a part, e.g. "net_type".
    names_new_part = False
    for type_key in TYPE_KEYS:
        if type_key in file and file[type_key] != base.get(type_key):
            names_new_part = True
    if names_new_part:
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


# Keys of a file that are not options: the JSON Schema for editors, and the version of this project
# that wrote a record of options.
NO_OPTIONS = ("$schema", "$version")


def _read_file(path: Path) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the sections of one file, and dotted key -> place. Raises OptionError.

    E.g. {"task": "a"} gives {"task": "a"} and {"task": "train.json, line 1"}.
    """
    text = _read_text(path)
    # This order must stay: `_places_of_keys` refuses a text with too many brackets. On such a text,
    # json and json5 could crash, and `_values_of_text` calls them.
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
    for key, line in key_lines(text, str(path)):
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
        # An emoji may be written as two escapes, "\ud83d\ude00". The two escapes become one
        # character.
        raw = _with_whole_characters(_parse(text))
    except RecursionError as e:
        raise _no_valid_json(path, "fewer brackets within one another") from e
    except ValueError as e:
        # json5 begins its messages with "<string>:LINE". "<string>:3 Unexpected" becomes
        # "line 3: Unexpected".
        reason = re.sub(r"^<string>:(\d+)\s*", r"line \1: ", str(e))
        raise _no_valid_json(path, reason) from e
    if not isinstance(raw, dict):
        raise OptionError(
            what="the option file holds no object",
            where=str(path),
            expected='{ "task": ..., ... }',
            do="correct the file",
        )
    return raw


def _no_valid_json(path: Path, expected: str) -> OptionError:
    """Return the error for a file that is no valid JSON.

    expected: what was expected, or what json says, with the line if it is known
    """
    return OptionError(
        what="the option file is no valid JSON",
        where=str(path),
        expected=expected,
        do="correct the file there or just above",
    )


# Largest size of an option file, chosen by hand: 1 MiB. The longest option file of this project has
# about 9,000 bytes, so the file of a user may be 100 times as long. With a larger limit, a hostile
# file could take more time and memory.
MOST_FILE_BYTES = 2**20


def _read_text(path: Path) -> str:
    """Return the text of a file. Raises OptionError if it is too large or no text.

    Test: test_a_small_option_file_takes_neither_memory_nor_time, e.g. with an endless file.
    """
    try:
        with open(path, "rb") as file:
            # Read one byte more than allowed. If this byte exists, the file is too large. So a file
            # of many GB is not read whole.
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
        # Some editors write a byte order mark in front of the text. "-sig" drops it.
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as e:
        raise OptionError(
            what=f"the option file is not UTF-8 text (byte {e.start + 1})",
            where=str(path),
            expected="a JSON file in UTF-8",
            do="save it as UTF-8",
        ) from e
    # An option could become the name of a file, and no file can have the character NUL in its name.
    # The text holds NUL as one character, or as the escape \u0000 of JSON
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
    """Return the error for a file that cannot be read. The error names a similar file beside it."""
    siblings = []
    if path.parent.is_dir():
        siblings = [str(sibling) for sibling in path.parent.glob("*.json")]
    return OptionError(
        what=f"cannot read the option file: {error.strerror}",
        where=str(path),
        expected=f"a JSON file{nearest_hint(str(path), siblings)}",
        do="give its path with --opt (a base is relative to the file that names it)",
    )


# Largest number of characters of a file that may use all of JSON5, chosen by hand. The package
# json5 reads about 10 kB per second, so a file of this length takes 1.6 s. A longer file must be
# JSON with comments, because the fast package json can read it.
MOST_JSON5_CHARACTERS = 2**14


def _parse(text: str) -> Any:
    """Return the value of a JSON text. Raises ValueError.

    The package json reads a text of JSON and comments, a thousand times as fast as json5. A short
    text may have the other additions of JSON5, such as commas at the end of a list. A long text
    must not have them, because json5 would take too long. Tests: test_hostile_options.py, e.g.
    test_an_unknown_key_of_a_long_file_is_named_with_its_line.
    """
    # Replace each comment by blanks of the same length. So every other character keeps its line and
    # column, and messages name the right line and column.
    plain = TOKEN.sub(_blank_comment, text)
    try:
        return json.loads(plain)
    except json.JSONDecodeError as e:
        if len(text) <= MOST_JSON5_CHARACTERS:
            return json5.loads(text)
        note = f"; above {MOST_JSON5_CHARACTERS} characters, a file must be JSON with comments"
        # json5 begins its messages with "<string>:LINE", so this message does, too.
        # `_values_of_text` turns this beginning into "line LINE:".
        raise ValueError(f"<string>:{e.lineno} {e.msg} at column {e.colno}{note}") from e


def _blank_comment(token: re.Match[str]) -> str:
    """Return a token of `TOKEN` as it is, or blanks in place of a comment. Line ends stay.

    A comment without its end is an error, so it stays.
    """
    text = token[0]
    is_comment = token["skip"] is not None
    if not is_comment:
        return text
    # "/*/" has no end, because its star belongs to the beginning "/*".
    is_ended = text.startswith("//") or (text.endswith("*/") and text != "/*/")
    return re.sub(r"[^\n]", " ", text) if is_ended else text


# One half of a pair of surrogates.
_SURROGATE = re.compile("[\ud800-\udfff]")


def _with_whole_characters(value: Any) -> Any:
    """Return a value of JSON in which no text has surrogates. Raises ValueError for half a pair.

    json.dumps writes an emoji as two escapes, a pair of surrogates: "\\ud83d\\ude00" is one emoji.
    json5 leaves the pair as two characters, and Python cannot write these characters to a file. So
    each pair is joined to one character. A half without its partner means nothing, so it is
    refused.
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

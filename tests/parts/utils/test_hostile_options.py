"""A small option file is read or refused within two seconds and one gigabyte of memory.

A reader without precautions would need hours or all memory for the files of these tests.
tests/helpers/limited.py calls the reader in a process with these limits. To add a hostile file, add
an entry to HOSTILE (JSON) or to YAML, with words of its error.
"""

import os
import re
from pathlib import Path

import pytest

from main_train_vrt import PARTS
from scripts.parts.convert_options.dotted_keys import flatten
from scripts.parts.convert_options.option_yaml import read_yaml
from tests.helpers.limited import assert_refused, call_limited
from tests.helpers.train_files import write_options
from utils.errors import OptionError
from utils.options.load import load_options


def load(path):
    """Read an option file as main_train_vrt.py does."""
    return load_options(path, [], PARTS)


def convert(path):
    """Read a YAML as scripts/convert_options.py does."""
    return flatten(read_yaml(Path(path)))


# Names by which another process finds the functions above.
LOAD = f"{__name__}.load"
CONVERT = f"{__name__}.convert"

# ---- JSON ----

# What is wrong -> the content of the file, and words of the error.
HOSTILE = {
    # An option file may take values from another file, its base. Here the base is /dev/zero. It has
    # no end.
    "an endless base": ('{"base": "/dev/zero"}', "more than 1048576 bytes"),
    "brackets": ("[" * 100_000, "brackets within one another"),
    "closed brackets": ("[" * 100_000 + "]" * 100_000, "brackets within one another"),
    "objects": ('{"a":' * 100_000, "brackets within one another"),
    "a list": ('{"task": "x", "l": [' + "1," * 100_000 + "1]}", "unknown option l"),
    "an open list": ('{"task": "x", "l": [' + "1," * 100_000, "no valid JSON"),
    "quotes": ('"\\' * 100_000, "no valid JSON"),
    "comments": ("/* " * 100_000, "no valid JSON"),
    "keys in a long name": (
        '{"' + "p" * 500_000 + '": {' + '"b":1,' * 20_000,
        "a key has more than",
    ),
    "a long text": ('{"task": "' + "x" * 900_000 + '"}', "task"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_small_option_file_takes_neither_memory_nor_time(tmp_path, name):
    content, message = HOSTILE[name]
    path = tmp_path / "a.json"
    path.write_text(content)

    assert_refused(LOAD, path, by="OptionError", saying=message)


def test_a_pipe_as_base_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    path = tmp_path / "a.json"
    path.write_text('{"base": "pipe"}')

    assert_refused(LOAD, path, by="OptionError", saying="is a pipe")


def test_a_key_without_a_name_is_refused(tmp_path):
    path = tmp_path / "a.json"
    path.write_text("{:{}}")

    with pytest.raises(OptionError, match="no valid JSON"):
        load(path)


# The beginning of a long option file: one line, and 2000 comments of two lines each. So the first
# key is in line 1 + 2 * 2000 + 1 = 4002.
LONG_HEAD = '{ // a comment with a " quote\n' + "/* and \n another */\n" * 2000


def write_long_options(folder, first_key):
    """Write an option file that begins with LONG_HEAD. Return its path.

    first_key: the text of line 4002, in front of the keys of `write_options`.
    """
    path = write_options(folder)
    rest = path.read_text().strip().removeprefix("{")
    path.write_text(f"{LONG_HEAD}{first_key}, {rest}")
    return path


def test_a_long_file_of_options_is_read_with_its_comments(tmp_path):
    path = write_long_options(tmp_path, first_key='"$schema": "//no comment"')

    assert load(path).task


def test_an_unknown_key_of_a_long_file_is_named_with_its_line(tmp_path):
    path = write_long_options(tmp_path, first_key='"tusk": 1')

    with pytest.raises(OptionError, match="tusk") as error:
        load(path)

    assert error.value.where == f"{path}, line 4002"


def test_what_is_no_json_in_a_long_file_is_named_with_its_line(tmp_path):
    path = write_long_options(tmp_path, first_key="oops")

    with pytest.raises(OptionError, match="no valid JSON") as error:
        load(path)

    assert "line 4002" in error.value.expected


# ---- YAML ----


def bomb_of_lists(levels):
    """Return a YAML whose values grow by the factor 9 with each level.

    Each level refers (*) nine times to the anchor (&) of the level before. E.g. two levels:

        a0: &a0 [v]
        a1: &a1 [*a0, *a0, *a0, *a0, *a0, *a0, *a0, *a0, *a0]
    """
    lines = ["a0: &a0 [v]"]
    for level in range(1, levels):
        lines.append(f"a{level}: &a{level} [{nine_aliases(level - 1)}]")
    return "\n".join(lines)


def bomb_of_merges(levels):
    """Return a YAML like `bomb_of_lists`. Each level merges (<<) the level before nine times."""
    lines = ["a0: &a0 {k: v}"]
    for level in range(1, levels):
        lines.append(f"a{level}: &a{level} {{<<: [{nine_aliases(level - 1)}]}}")
    return "\n".join(lines)


def nine_aliases(level):
    """Return nine aliases of a level: "*a0, *a0, *a0, ..." for level 0."""
    return ", ".join(9 * [f"*a{level}"])


# What is wrong -> the content of the file, and words of the error, as a regular expression. In a
# bomb of nine levels, the last level would have 9^8 values, 43 million.
YAML = {
    "aliases": (bomb_of_lists(levels=9), "aliases"),
    "merged aliases": (bomb_of_merges(levels=9), "aliases"),
    "an alias of itself": ("a: &a [*a]", "aliases|within one another"),
    "brackets": ("a: " + "[" * 20_000, "within one another"),
    "endless": ("a: 1\n" * 20_000, "more than 65536 bytes"),
    "a date that does not exist": ("a: 2026-99-99", "cannot read"),
}


@pytest.mark.parametrize("name", YAML)
def test_a_small_yaml_takes_neither_memory_nor_time(tmp_path, name):
    content, message = YAML[name]
    path = tmp_path / "a.yml"
    path.write_text(content)

    ended = call_limited(CONVERT, path)

    assert ended.error == "OptionError"
    assert re.search(message, ended.text)


def test_a_yaml_with_a_few_aliases_is_read(tmp_path):
    path = tmp_path / "a.yml"
    path.write_text("a: &a {b: 1, c: 2}\nd: {<<: *a, c: 3}\ne: *a\n")

    found = convert(path)

    assert found == {"a.b": 1, "a.c": 2, "d.b": 1, "d.c": 3, "e.b": 1, "e.c": 2}

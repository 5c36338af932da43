"""A small option file is read, or refused in words, in two seconds and a gigabyte."""

import os
from pathlib import Path

import pytest

from main_train_vrt import PARTS
from scripts.parts.convert_options.dotted_keys import flattened
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
    return flattened(read_yaml(Path(path)))


LOAD = f"{__name__}.load"
CONVERT = f"{__name__}.convert"
HOSTILE = {
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
    content, said = HOSTILE[name]
    (tmp_path / "a.json").write_text(content)
    assert_refused(LOAD, tmp_path / "a.json", by="OptionError", saying=said)


def test_a_pipe_as_base_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "a.json").write_text('{"base": "pipe"}')
    assert_refused(LOAD, tmp_path / "a.json", by="OptionError", saying="is a pipe")


def test_a_key_without_a_name_is_refused(tmp_path):
    (tmp_path / "a.json").write_text("{:{}}")
    with pytest.raises(OptionError, match="no valid JSON"):
        load(tmp_path / "a.json")


def test_a_long_file_of_options_is_read_with_its_comments_and_its_places(tmp_path):
    write_options(tmp_path)
    path = tmp_path / "options.json"
    rest = path.read_text().strip().removeprefix("{")
    head = '{ // a comment with a " quote\n' + "/* and \n another */\n" * 2000
    path.write_text(head + '"$schema": "//no comment", ' + rest)
    assert load(path).task

    path.write_text(head + '"tusk": 1, ' + rest)
    with pytest.raises(OptionError, match="tusk") as e:
        load(path)
    assert e.value.where == f"{path}, line 4002"
    path.write_text(head + "oops, " + rest)
    with pytest.raises(OptionError, match="no valid JSON") as e:
        load(path)
    assert "line 4002" in e.value.expected


def bomb(levels, form):
    """A YAML in which each level names the one before it nine times."""
    lines = ["a0: &a0 {k: v}" if form == "merged" else "a0: &a0 [v]"]
    for level in range(1, levels):
        names = ", ".join([f"*a{level - 1}"] * 9)
        value = f"{{<<: [{names}]}}" if form == "merged" else f"[{names}]"
        lines.append(f"a{level}: &a{level} {value}")
    return "\n".join(lines)


YAML = {
    "aliases": (bomb(levels=9, form="lists"), "aliases"),
    "merged aliases": (bomb(levels=9, form="merged"), "aliases"),
    "an alias of itself": ("a: &a [*a]", "aliases|within one another"),
    "brackets": ("a: " + "[" * 20_000, "within one another"),
    "endless": ("a: 1\n" * 20_000, "more than 65536 bytes"),
    "a date that does not exist": ("a: 2026-99-99", "cannot read"),
}


@pytest.mark.parametrize("name", YAML)
def test_a_small_yaml_takes_neither_memory_nor_time(tmp_path, name):
    content, said = YAML[name]
    (tmp_path / "a.yml").write_text(content)
    ended = call_limited(CONVERT, tmp_path / "a.yml")

    assert ended.error == "OptionError"
    assert any(part in ended.text for part in said.split("|"))


def test_a_yaml_with_a_few_aliases_is_read(tmp_path):
    (tmp_path / "a.yml").write_text("a: &a {b: 1, c: 2}\nd: {<<: *a, c: 3}\ne: *a\n")
    found = {"a.b": 1, "a.c": 2, "d.b": 1, "d.c": 3, "e.b": 1, "e.c": 2}
    assert convert(tmp_path / "a.yml") == found

"""A damaged option file is read, or refused with an OptionError that names the file and the cause.

The library hypothesis draws the damage. Any other error than an OptionError fails a test.
"""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from main_train_vrt import PARTS
from scripts.parts.convert_options.dotted_keys import flatten
from scripts.parts.convert_options.option_yaml import read_yaml
from tests.dist.launching import ROOT
from tests.helpers.damage import CHARACTERS, damaged_copies, examples
from utils.errors import OptionError
from utils.options.load import load_options

FILES = [
    ROOT / "options/vrt/000_train_vrt_sample_rgbspike.json",
    ROOT / "options/benchmark/gated.json",
]
# A YAML with all kinds of values. Some parts refer to other parts: there are an anchor (&n), its
# alias (*n), and a merge (<<).
YAML = b"""name: &n a
train: {lr: 4e-4, steps: [1, 2, 0x1F], when: 2026-11-27 10:00:00}
val: {<<: {a: 1}, name: *n, text: !!str 1, none: ~, big: 1_000, time: 1:30}
"""


def assert_is_whole(error: OptionError) -> None:
    """Check that an error has its four parts."""
    assert error.what
    assert error.where
    assert error.expected
    assert error.do


@examples(150)
@given(data=st.data(), file=st.sampled_from(FILES))
def test_a_damaged_option_file_is_read_or_refused(tmp_path, data, file):
    path = tmp_path / "a.json"
    path.write_bytes(data.draw(damaged_copies(file.read_bytes())))

    try:
        load_options(path, [], PARTS)
    except OptionError as error:
        assert_is_whole(error)


@examples(150)
@given(data=st.data())
def test_a_damaged_yaml_is_read_or_refused(tmp_path, data):
    path = tmp_path / "a.yml"
    path.write_bytes(data.draw(damaged_copies(YAML)))

    try:
        flatten(read_yaml(path))
    except OptionError as error:
        assert_is_whole(error)
        assert str(path) in error.where


def containers_of(inner: st.SearchStrategy) -> st.SearchStrategy:
    """Draw a list or an object of values that `inner` draws."""
    return st.lists(inner, max_size=3) | st.dictionaries(st.text(CHARACTERS, max_size=5), inner)


single_values = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(CHARACTERS, max_size=5)
)
values = st.recursive(single_values, containers_of, max_leaves=6)


@examples(150)
@given(
    value=values,
    key=st.sampled_from(["netG", "datasets", "train", "path", "base", "val", "task", "scale"]),
)
def test_a_file_of_one_section_with_any_value_is_refused(tmp_path, value, key):
    path = Path(tmp_path, "a.json")
    path.write_text(json.dumps({"task": "x", key: value}))

    # The file lacks other sections, so it is refused whatever the value is.
    with pytest.raises(OptionError) as error:
        load_options(path, [], PARTS)

    assert_is_whole(error.value)


# JSON writes a character beyond FFFF as two escapes, here \ud83d\ude00.
FACE = "\N{GRINNING FACE}"


def test_a_character_in_two_escapes_is_read_as_one(tmp_path):
    path = tmp_path / "a.json"
    path.write_text(json.dumps({"base": f"{FACE}.json"}))

    # The error of the missing base shows how its name was read.
    with pytest.raises(OptionError, match="cannot read the option file: No such file") as error:
        load_options(path, [], PARTS)

    assert error.value.where == f"{tmp_path}/{FACE}.json"


def test_half_of_a_character_is_refused(tmp_path):
    path = tmp_path / "a.json"
    path.write_text('{"task": "\\ud83d"}')

    with pytest.raises(OptionError, match="no valid JSON") as error:
        load_options(path, [], PARTS)

    assert "half of a character" in error.value.expected

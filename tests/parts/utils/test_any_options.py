"""Whatever the bytes of an option file, it is read, or refused with its name and the cause."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from main_train_vrt import PARTS
from scripts.convert_options import flattened, read_yaml
from tests.dist.launching import ROOT
from tests.helpers.damage import damaged, examples
from utils.errors import OptionError
from utils.options.load import load_options

FILES = [
    ROOT / "options/vrt/000_train_vrt_sample_rgbspike.json",
    ROOT / "options/benchmark/gated.json",
]
YAML = b"""name: &n a
train: {lr: 4e-4, steps: [1, 2, 0x1F], when: 2026-11-27 10:00:00}
val: {<<: {a: 1}, name: *n, text: !!str 1, none: ~, big: 1_000, time: 1:30}
"""


@examples(150)
@given(data=st.data(), file=st.sampled_from(FILES))
def test_a_damaged_option_file(tmp_path, data, file):
    path = tmp_path / "a.json"
    path.write_bytes(data.draw(damaged(file.read_bytes())))
    try:
        load_options(path, [], PARTS)
    except OptionError as e:
        assert e.where
        assert e.what
        assert e.expected
        assert e.do


@examples(150)
@given(data=st.data())
def test_a_damaged_yaml(tmp_path, data):
    path = tmp_path / "a.yml"
    path.write_bytes(data.draw(damaged(YAML)))
    try:
        flattened(read_yaml(path))
    except OptionError as e:
        assert str(path) in e.where
        assert e.what
        assert e.expected
        assert e.do


@examples(150)
@given(
    value=st.recursive(
        st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5)),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
        max_leaves=6,
    ),
    key=st.sampled_from(["netG", "datasets", "train", "path", "base", "val", "task", "scale"]),
)
def test_any_value_of_a_section(tmp_path, value, key):
    path = Path(tmp_path, "a.json")
    path.write_text(json.dumps({"task": "x", key: value}))
    with pytest.raises(OptionError) as e:
        load_options(path, [], PARTS)

    assert e.value.where
    assert e.value.what
    assert e.value.expected
    assert e.value.do


def test_a_character_in_two_escapes_is_read_as_one_and_half_of_it_is_refused(tmp_path):
    path = tmp_path / "a.json"
    path.write_text(json.dumps({"base": "\N{GRINNING FACE}.json"}))
    with pytest.raises(OptionError, match="cannot read the option file: No such file") as missing:
        load_options(path, [], PARTS)
    assert missing.value.where == f"{tmp_path}/\N{GRINNING FACE}.json"
    path.write_text('{"task": "\\ud83d"}')
    with pytest.raises(OptionError, match="no valid JSON") as half:
        load_options(path, [], PARTS)

    assert "half of a character" in half.value.expected

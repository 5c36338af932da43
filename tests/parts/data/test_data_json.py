"""JSON files of data (dataset.json, exposures, calibrations) of any content: read, or refused in
words.
"""

import itertools
import json
import os
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data.cameras.spike_grid import load_calibration
from data.cameras.spike_info import DatasetInfo, Timing, load_info, read_exposures
from tests.helpers.checked import present
from tests.helpers.damage import examples
from utils.errors import DataError, OptionError

EXPOSURE = {"start": 0.0, "length": 24.0, "period": 32.0}
CALIBRATION = {
    "format": 1,
    "matrix": [[1, 0, 0], [0, 1, 0]],
    "spike_size": [8, 8],
    "rgb_size": [8, 8],
}
INFO = {"format": 1, "h": 8, "w": 12}


def read_info(path):
    return load_info(str(path.parent))


READERS = {
    "dataset.json": (read_info, INFO),
    "exposures.json": (lambda path: read_exposures(str(path)), EXPOSURE),
    "calibration.json": (load_calibration, CALIBRATION),
}


@pytest.mark.parametrize("name", READERS)
def test_a_byte_order_mark_is_read_over(tmp_path, name):
    reader, table = READERS[name]
    (tmp_path / name).write_text(json.dumps(table), encoding="utf-8-sig")

    marked = reader(tmp_path / name)
    (tmp_path / name).write_text(json.dumps(table), encoding="utf-8")

    assert marked == reader(tmp_path / name)


HOSTILE = {
    "brackets": b"[" * 100_000,
    "objects": b'{"a":' * 100_000,
    "closed": b'{"format": 1, "clips": ' + b'{"a":' * 50 + b"1" + b"}" * 51,
    "latin": '{"h": "é"}'.encode("latin-1"),
    "utf-16": json.dumps(INFO).encode("utf-16"),
    "digits": b'{"format": 1, "h": ' + b"1" * 5000 + b"}",
    "NaN": b'{"format": NaN, "h": NaN}',
    "empty": b"",
    "a list": b"[1, 2]",
    "a text": b'"x"',
    "null": b"null",
    "cut": b'{"format": 1, "h"',
    "binary": bytes(range(256)),
}


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE)
@pytest.mark.parametrize("name", READERS)
def test_a_file_of_no_use_is_an_error_in_words(tmp_path, name, data):
    (tmp_path / name).write_bytes(data)
    begin = time.monotonic()

    with pytest.raises((DataError, OptionError)) as error:
        READERS[name][0](tmp_path / name)

    text = str(error.value)
    assert name in text and len(text) < 1500 and time.monotonic() - begin < 2


def test_a_folder_whose_name_is_no_utf_8_is_read(tmp_path):
    folder = os.path.join(os.fsencode(tmp_path), b"d\xe9fi")
    os.mkdir(folder)
    path = Path(os.fsdecode(folder), "dataset.json")
    path.write_text(json.dumps(INFO))

    assert load_info(os.fsdecode(folder)) == DatasetInfo(path=str(path), h=8, w=12)


def test_a_device_without_end_is_not_read_to_its_end():
    with pytest.raises(DataError, match="more than 67108864 bytes"):
        read_exposures("/dev/zero")


def test_brackets_in_texts_are_not_counted(tmp_path):
    text = '"[[\\\\' + "[{" * 40 + '\\"' + "[" * 40 + '"'
    (tmp_path / "dataset.json").write_text(f'{{"format": 1, "h": 8, "w": 12, "note": {text}}}')

    assert load_info(str(tmp_path)).h == 8


@pytest.mark.parametrize(
    "change",
    [
        {"planes": -1}, {"planes": 0}, {"planes": 2**70}, {"planes": 1.5}, {"planes": "24"},
        {"planes": True}, {"gt_plane": 2**70}, {"gt_plane": -1}, {"gt_plane": "z"}, {"h": 0},
        {"h": 2**40}, {"w": -3}, {"flip": 1}, {"flip": "yes"}, {"rate": 0}, {"rate": "20000"},
        {"rate": -1.0}, {"rate": 1e999}, {"light": "bright"}, {"light": 1}, {"calibration": []},
        {"recipe": []}, {"recipe": {"interpolate": 0}}, {"recipe": {"interpolate": "8"}},
        {"clips": []}, {"clips": {"a": 1}}, {"format": 2}, {"format": None},
    ],
    ids=str,
)  # fmt: skip
def test_a_value_of_a_wrong_type_or_range_is_refused(tmp_path, change):
    (tmp_path / "dataset.json").write_text(json.dumps(INFO | change))

    with pytest.raises(DataError, match=r"dataset\.json cannot be used"):
        load_info(str(tmp_path))


OF_CLIP = [
    {"planes": -1}, {"planes": "24"}, {"gt_plane": "z"}, {"gt_plane": 2**70}, {"gt_plane": -1},
    {"offset": 1.5}, {"offset": 2**70}, {"rate": "20000"}, {"rate": 0}, {"rate": True},
    {"h": "8"}, {"w": 0}, {"flip": 0}, {"light": "x"}, {"calibration": "c.json"},
    {"gt_plan": 3}, {"Planes": 3}, {"lights": "linear"}, {"offsets": 1},
]  # fmt: skip


@pytest.mark.parametrize("own", OF_CLIP, ids=str)
def test_a_wrong_key_or_value_of_a_clip_is_refused_with_its_name(tmp_path, own):
    (tmp_path / "dataset.json").write_text(json.dumps(INFO | {"clips": {"b/2": own}}))

    with pytest.raises(DataError, match=f"clip b/2: .*{next(iter(own))}"):
        load_info(str(tmp_path))


def test_records_and_nulls_of_a_clip_are_accepted(tmp_path):
    own = {"split": "train", "source": "x.mp4", "planes": None, "offset": None, "rig": {"any": 1}}
    (tmp_path / "dataset.json").write_text(json.dumps(INFO | {"clips": {"a": own}, "planes": 56}))

    assert load_info(str(tmp_path)).planes_of("a", 7) == (56, 49)


@pytest.mark.parametrize(
    "value",
    [
        EXPOSURE | {"period": 1e-9}, EXPOSURE | {"period": 0.4}, EXPOSURE | {"length": 0.4},
        EXPOSURE | {"start": -1.0}, EXPOSURE | {"start": 1e300}, EXPOSURE | {"length": 1e300},
        {"a": [[0.0, 0.0]]}, {"a": [[0.0]]}, {"a": []}, {"a": [["0", 24.0]]}, {"a": [[1e99, 24.0]]},
        EXPOSURE | {"more": 1}, {"start": 0.0, "length": 24.0}, {},
    ],
    ids=str,
)  # fmt: skip
def test_exposures_out_of_range_are_refused(value):
    with pytest.raises(OptionError, match=r"spike\.exposure is not of the expected form"):
        read_exposures(value)


@pytest.mark.parametrize("period", [0.5, 0.7, 1.0, 24.0, 32.0, 31.4, 1000.0])
def test_a_file_holds_as_many_exposures_as_end_in_it(period):
    starts_and_lengths = ((0.0, 24.0), (7.5, 24.0), (3.0, 0.6))
    for (start, length), offset in itertools.product(starts_and_lengths, (0.0, 2.8, -3.0)):
        table = {"start": start, "length": length, "period": period}
        timing = Timing(exposures=read_exposures(table), offset=offset)
        exposures = present(timing.exposures)[""]
        for planes in (1, 24, 25, 55, 56, 57, 87, 88, 89, 1000):
            fitting = 0
            while sum(exposures.planes_of(fitting, offset)) <= planes:
                fitting += 1

            assert timing.frames("clip", planes) == max(fitting, 1)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=6,
)
keys = st.sampled_from([
    *DatasetInfo.__dataclass_fields__, "format", "recipe", "offset", "length", "start", "period",
    "matrix", "spike_size", "rgb_size", "region", "tick_hz",
])  # fmt: skip


@examples(150)
@given(name=st.sampled_from(sorted(READERS)), change=st.dictionaries(keys, values, max_size=3))
def test_whatever_a_file_holds_it_is_read_or_refused(tmp_path_factory, name, change):
    folder = tmp_path_factory.mktemp("any")
    reader, table = READERS[name]
    (folder / name).write_text(json.dumps(table | change))

    try:
        reader(folder / name)
    except (DataError, OptionError) as error:
        assert name in str(error)

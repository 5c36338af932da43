"""JSON files of data: a file of any content is read, or is refused with a message.

Three kinds of files are read. The constants are correct files:

    dataset.json        INFO           sizes and timing of spikes
    exposures.json      EXPOSURE       which planes belong to which frame
    calibration.json    CALIBRATION    which spike pixel shows the same as a pixel of a frame

The tests write a correct file, a correct file with some keys changed, or any other bytes.
"""

import json
import os
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data.cameras.calibration import load_calibration
from data.cameras.dataset_info import DatasetInfo, load_info
from data.cameras.exposures import read_exposures
from data.cameras.timing import Timing
from tests.helpers.checked import not_none
from tests.helpers.damage import CHARACTERS, examples
from utils.errors import DataError, OptionError

# ---- Correct files ----

# The first exposure begins at plane 0 and has 24 planes. The next exposure begins at plane 32.
EXPOSURE = {"start": 0.0, "length": 24.0, "period": 32.0}
CALIBRATION = {
    "format": 1,
    "matrix": [[1, 0, 0], [0, 1, 0]],
    "spike_size": [8, 8],
    "rgb_size": [8, 8],
}
INFO = {"format": 1, "h": 8, "w": 12}


def read_info(path):
    """Read the dataset.json at `path`."""
    return load_info(str(path.parent))


def read_table(path):
    """Read a table of exposures."""
    return read_exposures(str(path))


# For each kind of file: the function that reads it (the reader), and the content of a correct file.
READERS = {
    "dataset.json": (read_info, INFO),
    "exposures.json": (read_table, EXPOSURE),
    "calibration.json": (load_calibration, CALIBRATION),
}


# ---- Bytes of a file ----


@pytest.mark.parametrize("name", READERS)
def test_a_byte_order_mark_is_ignored(tmp_path, name):
    reader, table = READERS[name]
    path = tmp_path / name

    # Some editors of Windows begin a file with this mark.
    path.write_text(json.dumps(table), encoding="utf-8-sig")
    marked = reader(path)
    path.write_text(json.dumps(table), encoding="utf-8")
    unmarked = reader(path)

    assert marked == unmarked


# Bytes of a file that no reader can use.
HOSTILE = [
    pytest.param(b"[" * 100_000, id="more lists than Python's stack holds"),
    pytest.param(b'{"a":' * 100_000, id="more objects than Python's stack holds"),
    # {"format": 1, "clips": {"a":{"a": ... 1}} ... }: 50 objects within the object of the file. So
    # the last part has 51 closing brackets.
    pytest.param(
        b'{"format": 1, "clips": ' + b'{"a":' * 50 + b"1" + b"}" * 51, id="50 nested objects"
    ),
    pytest.param('{"h": "é"}'.encode("latin-1"), id="another encoding"),
    pytest.param(json.dumps(INFO).encode("utf-16"), id="two bytes a character"),
    pytest.param(b'{"format": 1, "h": ' + b"1" * 5000 + b"}", id="a number of 5000 digits"),
    pytest.param(b'{"format": NaN, "h": NaN}', id="NaN"),
    pytest.param(b"", id="empty"),
    pytest.param(b"[1, 2]", id="a list"),
    pytest.param(b'"x"', id="a text"),
    pytest.param(b"null", id="null"),
    pytest.param(b'{"format": 1, "h"', id="cut off"),
    pytest.param(bytes(range(256)), id="binary"),
]


@pytest.mark.parametrize("data", HOSTILE)
@pytest.mark.parametrize("name", READERS)
def test_a_useless_file_is_refused_with_a_message(tmp_path, name, data):
    reader, _ = READERS[name]
    (tmp_path / name).write_bytes(data)

    begin = time.monotonic()
    with pytest.raises((DataError, OptionError)) as error:
        reader(tmp_path / name)
    seconds = time.monotonic() - begin

    # The message names the file. The content may have 500,000 bytes, so it must not be quoted as a
    # whole. Reading must be quick for any content, so that a file cannot stop a program.
    message = str(error.value)
    assert name in message
    assert len(message) < 1500
    assert seconds < 2


def test_a_folder_whose_name_is_no_utf_8_is_read(tmp_path):
    # The byte 0xE9 is the letter é in Latin-1. In UTF-8 this byte alone is an error.
    folder = os.path.join(os.fsencode(tmp_path), b"d\xe9fi")
    os.mkdir(folder)
    path = Path(os.fsdecode(folder), "dataset.json")
    path.write_text(json.dumps(INFO))

    assert load_info(os.fsdecode(folder)) == DatasetInfo(path=str(path), h=8, w=12)


def test_an_endless_device_is_not_read_forever():
    # /dev/zero gives zeros without an end. A file of JSON may have 64 x 2^20 = 67108864 bytes.
    with pytest.raises(DataError, match="more than 67108864 bytes"):
        read_exposures("/dev/zero")


def test_brackets_in_texts_are_not_counted(tmp_path):
    # The code counts the brackets outside of texts, because too many nested brackets would crash
    # Python's reader. The code must not count brackets within a text. The file is
    #
    #     {"format": 1, "h": 8, "w": 12, "note": "[[\\[{[{[{...\"[[[..."}
    #
    # In JSON, two backslashes mean one backslash. A backslash before a quotation mark makes the
    # mark a part of the text. So only the last quotation mark ends the text of "note".
    note = "[[\\" + "[{" * 40 + '"' + "[" * 40
    (tmp_path / "dataset.json").write_text(json.dumps(INFO | {"note": note}))

    assert load_info(str(tmp_path)).h == 8


# ---- Values of dataset.json ----


@pytest.mark.parametrize(
    "change",
    [
        # The number of planes of a spike file, and the number of the plane of the sharp frame.
        {"planes": -1}, {"planes": 0}, {"planes": 2**70}, {"planes": 1.5}, {"planes": "24"},
        {"planes": True}, {"gt_plane": 2**70}, {"gt_plane": -1}, {"gt_plane": "z"},
        # The height and width of a plane, and the order of its rows.
        {"h": 0}, {"h": 2**40}, {"w": -3}, {"flip": 1}, {"flip": "yes"},
        # The spikes per plane at full light, and what the sensor integrates. 1e999 is infinite.
        {"rate": 0}, {"rate": "20000"}, {"rate": -1.0}, {"rate": 1e999},
        {"light": "bright"}, {"light": 1},
        # Each of these values, and each clip in "clips", must be an object. `interpolate` is a
        # whole number of 1 or more.
        {"calibration": []}, {"recipe": []}, {"recipe": {"interpolate": 0}},
        {"recipe": {"interpolate": "8"}}, {"clips": []}, {"clips": {"a": 1}},
        # The version of the format of the file, which is 1.
        {"format": 2}, {"format": None},
    ],
    ids=str,
)  # fmt: skip
def test_a_value_of_a_wrong_type_or_range_is_refused(tmp_path, change):
    (tmp_path / "dataset.json").write_text(json.dumps(INFO | change))

    with pytest.raises(DataError, match=r"dataset\.json cannot be used"):
        load_info(str(tmp_path))


# Wrong keys and values of a single clip. In dataset.json they are below "clips".
OF_CLIP = [
    {"planes": -1}, {"planes": "24"}, {"gt_plane": "z"}, {"gt_plane": 2**70}, {"gt_plane": -1},
    {"offset": 1.5}, {"offset": 2**70}, {"rate": "20000"}, {"rate": 0}, {"rate": True},
    {"h": "8"}, {"w": 0}, {"flip": 0}, {"light": "x"}, {"calibration": "c.json"},
    # Each key resembles a known key, so the key is probably misspelled. The values are correct. A
    # key that resembles no known key is allowed.
    {"gt_plan": 3}, {"Planes": 3}, {"lights": "linear"}, {"offsets": 1},
]  # fmt: skip


@pytest.mark.parametrize("own", OF_CLIP, ids=str)
def test_a_wrong_key_or_value_of_a_clip_is_refused_with_its_name(tmp_path, own):
    (tmp_path / "dataset.json").write_text(json.dumps(INFO | {"clips": {"b/2": own}}))

    (key,) = own  # the one key that is wrong
    with pytest.raises(DataError, match=f"clip b/2: .*{key}"):
        load_info(str(tmp_path))


def test_records_and_nulls_of_a_clip_are_accepted(tmp_path):
    # The keys "split", "source" and "rig" have no effect. A value of null means a missing key.
    own = {"split": "train", "source": "x.mp4", "planes": None, "offset": None, "rig": {"any": 1}}
    (tmp_path / "dataset.json").write_text(json.dumps(INFO | {"clips": {"a": own}, "planes": 56}))

    # A file has 56 planes, and the last file of a clip has at least 49 planes, because its last 7
    # planes may be missing. `usual` has no effect, because dataset.json gives "planes".
    assert load_info(str(tmp_path)).planes_of("a", usual=7) == (56, 49)


# ---- Exposures ----


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


@pytest.mark.parametrize("offset", [0.0, 2.8, -3.0])
@pytest.mark.parametrize(("start", "length"), [(0.0, 24.0), (7.5, 24.0), (3.0, 0.6)])
@pytest.mark.parametrize("period", [0.5, 0.7, 1.0, 24.0, 32.0, 31.4, 1000.0])
def test_a_file_holds_as_many_exposures_as_end_in_it(period, start, length, offset):
    table = {"start": start, "length": length, "period": period}
    timing = Timing(exposures=read_exposures(table), offset=offset)
    # The table names no clip. So its exposures have the key "", and are used for all clips.
    exposures = not_none(timing.exposures)[""]

    for planes in (1, 24, 25, 55, 56, 57, 87, 88, 89, 1000):
        # Count one exposure after the other, until one ends after the last plane. `planes_of` gives
        # the first plane of an exposure, and its number of planes. The sum of the two numbers is
        # the plane after the exposure.
        fitting = 0
        while sum(exposures.planes_of(fitting, offset)) <= planes:
            fitting += 1

        # If no exposure ends in the file, `frames` still returns 1. The program refuses this frame
        # later, with a message about the planes that are missing.
        assert timing.frames("clip", planes) == max(fitting, 1)


# ---- Any values ----

# Any value that JSON can hold, with a few levels of nesting.
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(CHARACTERS, max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(CHARACTERS, max_size=3), inner, max_size=3)
    ),
    max_leaves=6,
)
# The keys of the three kinds of files.
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

"""The record that the check of a data set keeps: it gives the same clips as the files.

The check of a training writes its findings into the folder .preflight of the experiments. These
findings, the record, are two files: a .npz file with arrays (the columns: names, sizes, ...) and a
.json file with a digest of the arrays. The next start takes the clips from this record if the files
of the data set are unchanged. But the record may be damaged, or another program or user may have
changed it. Then the check must read the files of the data set again.

These are some of the columns, for the two clips of six frames of most tests
(data/clips/columns.py explains all columns):

    clips          text: the name of each clip
    frames         number of frames of each clip: [6, 6]
    stems          text: the name of each frame without its ending
    lq_places      text: the folder of the blurry frames of each clip
    lq_counts      number of files with blurry frames of each clip: [6, 6]
    lq_names       text: the name of each file with a blurry frame
    sizes          height and width of the frames
    planes         number of spike planes of each file
    rows           the different exposures. A row says which planes of which files a frame has. Here
                   all frames have equal exposures, so there is one row, row 0
    exposures      the number of the row in `rows` for each frame: [0, 0, 0, ...]
    centers        the plane of the sharp frame, for each row
    folders        text: the folders that were read
    folder_states  two numbers for each folder, by which a later start sees that files were added,
                   renamed or removed

If you add a column, also add a wrong value of the column to WRONG_COLUMNS, and add a kind of data
set to KINDS in which the column is not empty.
"""

import dataclasses
import hashlib
import io
import json
import os
import pickle
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data.clip import Clip
from data.clips import manifest
from data.clips.clip_lists import frame_counts, join_clips, one_of_each_form, planes_of, scales_of
from data.clips.column_check import LARGEST_PLANE, LARGEST_SIDE, refuse_columns
from data.clips.columns import Row
from data.clips.file_content import SLOW_FROM_START
from data.clips.listed_files import entry_of
from data.clips.look import Look
from data.clips.meta_file import MOST_FRAMES
from data.clips.preflight import check_source
from data.clips.root_check import Report
from data.clips.source import Source
from data.clips.table import ClipTable
from data.clips.table_builder import TableBuilder
from data.spike.formats import read_spikes, write_spikes
from data.spike.geometry import SpikeGeometry
from tests.dist.launching import run_ranks
from tests.helpers.clip_files import (
    BINS,
    PLANES,
    data_section,
    source_of,
    write_clip,
    write_clips,
    write_info,
)
from tests.helpers.train_files import latest_checkpoint, run_odd, write_odd_options

# The arrays of a record, by their names.
Columns = dict[str, np.ndarray]

# Two helpers of tests/helpers/clip_files.py are in most tests:
#     data_section(root, **changes)  the section datasets.train for the clips below `root`
#     source_of(values)              the clips that such a section asks for, not yet checked

# Options of a training on frames without spikes.
RGB: dict[str, Any] = {
    "dataset_type": "VideoRecurrentTrainDataset",
    "dataroot_spike": None,
    "spike": None,
}


@pytest.fixture
def root(tmp_path):
    """Give a folder with the clips clip0 and clip10, each of six frames with spikes."""
    return write_clips(tmp_path, "clip0", "clip10")


def checked_at_start(values: dict[str, Any], folder: Path) -> Report:
    """Check the data as a start of a training does, and write the record. Return the report.

    values: the section datasets.train. folder: the record is in its folder .preflight.
    """
    return check_source(source_of(values), "train", folder / ".preflight")


def is_from_record(report: Report) -> bool:
    """Return whether a start took the clips from the record."""
    return report.note.endswith("as checked before")


def record_of(folder: Path) -> Columns:
    """Return the arrays of the record in a folder, by their names."""
    (path,) = (folder / ".preflight").glob("*.npz")
    with np.load(path) as file:
        return dict(file)


def write_record(folder: Path, columns: Columns, save: Callable[..., None] = np.savez) -> None:
    """Replace the arrays of the record in a folder, and its digest, which then fits the arrays."""
    (path,) = (folder / ".preflight").glob("*.npz")
    file = io.BytesIO()
    save(file, **columns)
    path.write_bytes(file.getvalue())

    description = path.with_suffix(".json")
    content = json.loads(description.read_text())
    content["arrays"] = hashlib.sha256(file.getvalue()).hexdigest()
    description.write_text(json.dumps(content))


# ---- The clips of a record ----


# A kind of data set, e.g. one spike file for each clip. Each of the next functions turns the clips
# in `root` into the kind that its name says. The function returns the keys of the section
# datasets.train that the kind needs.


def frames_without_spikes(root):
    return RGB


def sharp_instants(root):
    write_clip(root, "clip0", instants=3)
    write_clip(root, "clip10", instants=3, seed=1)
    return {"dataroot_gt_instants": str(root / "GOPRO_Large/train")}


def planes_of_neighbouring_files(root):
    # A frame also reads 30 planes before and 30 planes after its own file.
    representation = {"type": "relative", "half_windows": [2, 6]}
    spike = {"type": "dat", "center": "file", "context": 30, "representation": representation}
    return {"spike": spike}


def a_part_of_each_file(root):
    # Only the planes 4 to 19 of each file are read.
    part = {"first": 4, "count": 16}
    return {"spike": {"type": "dat", "center": "file", **part, "representation": BINS}}


def one_spike_file_for_a_clip(root):
    spikes = root / "GOPRO_Large_spike_seq/train"
    for clip in list(spikes.iterdir()):
        files = sorted((clip / "spike").iterdir())
        planes = [path.read_bytes() for path in files]
        clip.with_suffix(".dat").write_bytes(b"".join(planes))
        shutil.rmtree(clip)
    # Each frame still has the PLANES planes that it had in a file of its own.
    exposure = {"start": 0, "length": PLANES, "period": PLANES}
    spike = {"type": "dat", "center": "file", "exposure": exposure, "representation": BINS}
    return {"spike": spike}


def a_rate_for_one_clip(root):
    write_info(root, clips={"clip10": {"rate": 0.5}})
    return {}


def a_listed_part(root):
    # The list has the frames 2, 3 and 4 of clip10. A line of the list has the name of a clip, its
    # number of frames, its shape (0: any) and its first frame.
    (root / "meta.txt").write_text("clip10 3 0 2\n")
    return {"meta_info_file": str(root / "meta.txt")}


def a_part_of_reds(root):
    # 000 is one of the four clips that REDS4 keeps out of the training.
    write_clip(root, "000")
    return {**RGB, "val_partition": "REDS4"}


def a_slash_at_the_end(root):
    return {"dataroot_lq": f"{root}/GOPRO_Large/train/"}


KINDS = [
    frames_without_spikes,
    sharp_instants,
    planes_of_neighbouring_files,
    a_part_of_each_file,
    one_spike_file_for_a_clip,
    a_rate_for_one_clip,
    a_listed_part,
    a_part_of_reds,
    a_slash_at_the_end,
]


def all_that_a_clip_holds(clip: Any) -> dict[str, str]:
    """Return each field of a clip as a text, which shows the types of numbers too."""
    found = {}
    for field in dataclasses.fields(clip):
        # The field "spikes" is a reader. It is left out, because it is made of the other fields.
        if field.name != "spikes":
            found[field.name] = repr(getattr(clip, field.name))
    return found


# `root` has the clips clip0 and clip10, each of six frames with spikes.
@pytest.mark.parametrize("change_kind", KINDS)
def test_a_record_gives_the_same_clips_as_the_files(root, change_kind):
    changes = change_kind(root)
    values = data_section(root, **changes)
    expected, _ = manifest.scan(source_of(values))  # reads the files, not a record

    first = checked_at_start(values, root)
    second = checked_at_start(values, root)

    assert not is_from_record(first)
    assert is_from_record(second)
    assert first.counts() == second.counts()
    of_files = [all_that_a_clip_holds(clip) for clip in expected]
    assert [all_that_a_clip_holds(clip) for clip in first.clips] == of_files
    assert [all_that_a_clip_holds(clip) for clip in second.clips] == of_files


def test_each_partition_has_a_record_of_its_own(root):
    values_of_part = data_section(root, **a_part_of_reds(root))
    values_of_all = data_section(root, **RGB)

    first_of_all = checked_at_start(values_of_all, root)
    first_of_part = checked_at_start(values_of_part, root)

    assert not is_from_record(first_of_part)
    assert [clip.name for clip in first_of_all.clips] == ["000", "clip0", "clip10"]
    assert [clip.name for clip in first_of_part.clips] == ["clip0", "clip10"]
    # Each start has kept a record of its own. If the two starts shared a record, the second start
    # would have replaced the record of the first start, which would now read the files.
    assert is_from_record(checked_at_start(values_of_all, root))
    assert is_from_record(checked_at_start(values_of_part, root))


# ---- The numbers of a table ----


class NumbersOnly(ClipTable):
    """A table that refuses to make a clip, because numbers must come from the arrays alone."""

    def _clip(self, number: int) -> Clip:
        raise AssertionError(f"clip {number} was made, although the arrays have its numbers")


def two_roots(tmp_path: Path) -> list[dict[str, Any]]:
    """Write two data sets of three clips and one clip. Return the section of each."""
    first = write_clips(tmp_path / "first", "a", "b")
    # A clip of another scale is a problem that forbids a run. But the clip is in the table, and
    # these tests only read the table.
    write_clip(first, "c", frames=3, scale=2)
    second = write_clips(tmp_path / "second", "a", planes=PLANES + 4, scale=4)
    write_info(second, planes=PLANES + 4)
    return [data_section(first), data_section(second)]


def numbers_of(clips: Sequence[Clip]) -> tuple[list[int], list[int], set[int]]:
    """Return [frames of each clip], [scale of each clip], {planes of a spike file}."""
    return frame_counts(clips), scales_of(clips), planes_of(clips)


def test_a_table_joined_tables_and_a_list_give_the_same_numbers(tmp_path):
    lists = []
    tables = []
    for values in two_roots(tmp_path):
        source = source_of(values)
        found, _ = manifest.scan(source)
        lists.append(found)
        builder = TableBuilder(source)
        for clip in found:
            # The table stores size and time of each file, which the check reads with its look.
            paths = [*clip.lq, *clip.gt, *clip.spike]
            builder.add(clip, {path: Look(entry_of(path)) for path in paths})
        _, columns = builder.table()
        tables.append(NumbersOnly(source, columns))

    # Frame counts, scales and numbers of planes: the first root has three clips, and the second
    # root has one clip.
    of_first = ([6, 6, 3], [1, 1, 2], {PLANES})
    of_both = ([6, 6, 3, 6], [1, 1, 2, 4], {PLANES, PLANES + 4})
    assert numbers_of(lists[0]) == of_first
    assert numbers_of(tables[0]) == of_first
    assert numbers_of(lists[0] + lists[1]) == of_both
    assert numbers_of(join_clips(lists)) == of_both
    assert numbers_of(join_clips(tables)) == of_both
    # A table and a list may be joined, too, and joined tables may be joined again.
    assert numbers_of(join_clips([tables[0], lists[1]])) == of_both
    tables_twice = join_clips([join_clips(tables), tables[0]])
    assert numbers_of(tables_twice)[0] == [6, 6, 3, 6, 6, 6, 3]


def test_joined_tables_have_the_clips_of_the_first_root_and_then_of_the_second(tmp_path):
    tables = [checked_at_start(values, tmp_path).clips for values in two_roots(tmp_path)]

    together = join_clips(tables)

    lq_files = [clip.lq for clips in tables for clip in clips]
    assert [together[number].lq for number in range(4)] == lq_files


def test_one_of_each_form_has_the_sizes_of_all_clips(tmp_path):
    lists = []
    tables = []
    for values in two_roots(tmp_path):
        found, _ = manifest.scan(source_of(values))
        lists.append(found)
        tables.append(checked_at_start(values, tmp_path).clips)

    def names_and_sizes(clips: Sequence[Clip]) -> list[tuple[str, int, int]]:
        """Return (name, height of blurry frames, height of sharp frames) of a clip of each form."""
        forms = one_of_each_form(clips)
        return [(clip.name, clip.size[0], clip.gt_size[0]) for clip in forms]

    # The form of a clip is the sizes of its frames, the number of its sharp instants and its spike
    # settings. "b" has the form of "a", so a table leaves "b" out. A list has all its clips.
    assert names_and_sizes(tables[0]) == [("a", 16, 16), ("c", 16, 32)]
    assert names_and_sizes(lists[0]) == [("a", 16, 16), ("b", 16, 16), ("c", 16, 32)]
    in_both = [("a", 16, 16), ("c", 16, 32), ("a", 16, 64)]
    assert names_and_sizes(join_clips(tables)) == in_both


def test_a_compressed_spike_file_of_a_whole_clip_is_said_to_be_slow_once(root):
    changes = one_spike_file_for_a_clip(root)
    spikes = root / "GOPRO_Large_spike_seq/train"
    # An .npz is compressed, so every read begins at its start. Both clips get an .npz, but one
    # message must be enough.
    for path in sorted(spikes.glob("*.dat")):
        geometry = SpikeGeometry(8, 12)
        planes = read_spikes(path, geometry)
        write_spikes(path.with_suffix(".npz"), planes, geometry)
        path.unlink()

    report = checked_at_start(data_section(root, **changes), root)

    assert report.problems == []
    slow = [warning for warning in report.warnings if warning.what == SLOW_FROM_START]
    assert [warning.clip for warning in slow] == ["clip0"]
    assert slow[0].where == str(spikes / "clip0.npz")


# ---- Files that changed ----


# Each function below changes the file `path`, a picture of a clip, or its neighbours.


def remove(path: Path) -> None:
    path.unlink()


def rewrite(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"x")


def touch(path: Path) -> None:
    os.utime(path, (1, 1))  # the time of change becomes second 1 of 1970


def add_note(path: Path) -> None:
    """Add a file that the check does not read. Only the state of the folder changes."""
    path.with_name("note.txt").write_text("a note")


def copy_clip(path: Path) -> None:
    """Copy the whole clip of a picture, so that there is one more clip."""
    clip = path.parent.parent
    shutil.copytree(clip, clip.with_name("clip2"))


@pytest.mark.parametrize("change", [remove, rewrite, touch, add_note, copy_clip])
def test_files_that_changed_are_checked_anew(root, change):
    values = data_section(root, **RGB)
    checked_at_start(values, root)

    change(root / "GOPRO_Large/train/clip10/sharp/000003.png")

    assert not is_from_record(checked_at_start(values, root))


def write_many_clips(root: Path) -> Path:
    """Write one clip of 1 frame and 99 clips of 50 frames. All frames are one picture."""
    write_clips(root, "c0", frames=1)
    clips = root / "GOPRO_Large/train"
    for number in range(1, 100):
        for kind in ("blur", "sharp"):
            folder = clips / f"c{number}" / kind
            folder.mkdir(parents=True)
            for frame in range(50):
                os.link(clips / "c0" / kind / "000000.png", folder / f"{frame:06d}.png")
    return clips


def test_a_folder_with_another_name_in_it_is_noticed_without_a_look_at_its_files(tmp_path):
    # The data set has 99 x 2 x 50 + 2 = 9902 files. A repeated start looks at 4096 files at most,
    # so the start may miss a changed file. But the start looks at every folder, and must notice the
    # changed folder by the state of the folder.
    clips = write_many_clips(tmp_path)
    values = data_section(tmp_path, **RGB)
    checked_at_start(values, tmp_path)
    assert is_from_record(checked_at_start(values, tmp_path))

    last = clips / "c77/sharp/000049.png"
    last.rename(last.with_name("000050.png"))

    assert "lacks" in str(checked_at_start(values, tmp_path).problems)


# ---- Records of a stranger -------------------------------------------------------------------

# A text column has all its texts one after another, each with a zero byte at its end. The two clips
# have six frames each. So a column with the names of all frames has 12 texts.


def text(*parts: str) -> np.ndarray:
    """Return a text column of these texts, e.g. the bytes "a\\0b\\0" of "a" and "b"."""
    joined = "".join(f"{part}\0" for part in parts)
    return np.frombuffer(joined.encode(), np.uint8)


def names_of_frames(*numbers: int) -> np.ndarray:
    """Return the text column with the names of these frames, once for each of the two clips."""
    names = [f"{number:06d}.png" for number in numbers]
    return text(*names, *names)


def plus(column: np.ndarray, value: float) -> np.ndarray:
    """Return a column with `value` added to each number, in the same type."""
    return column + np.array(value, column.dtype)


# A lie is a record whose digest fits, but some of whose columns are wrong. So only a comparison
# with the files or with other columns can find the fault. Each function below makes a lie: it gets
# the true columns, and returns {name: column} of the columns to replace. The name of the function
# says what is wrong.


# ---- Lies: paths ----


def a_file_above_the_root(columns: Columns) -> Columns:
    return {"lq_places": text("/../../x/", "/clip10/blur/")}


def another_folder(columns: Columns) -> Columns:
    return {"lq_places": text("/clip0/sharp/", "/clip10/blur/")}


def a_name_with_a_folder(columns: Columns) -> Columns:
    names = 12 * ["../x.png"]  # two clips of six frames
    return {"lq_names": text(*names)}


def an_empty_name(columns: Columns) -> Columns:
    names = 12 * [""]
    return {"lq_names": text(*names)}


def pictures_of_other_frames(columns: Columns) -> Columns:
    # The sharp frames 0 and 1 change places.
    return {"gt_names": names_of_frames(1, 0, 2, 3, 4, 5)}


# ---- Lies: clips ----


def one_clip_less(columns: Columns) -> Columns:
    return {"clips": text("clip0")}


def a_clip_twice(columns: Columns) -> Columns:
    return {"clips": text("clip0", "clip0")}


def a_clip_of_a_bad_name(columns: Columns) -> Columns:
    return {"clips": text("clip0", "../clip10")}


def bytes_that_are_no_text(columns: Columns) -> Columns:
    # No text in UTF-8 has the byte FF.
    return {"stems": np.full(len(columns["stems"]), 0xFF, np.uint8)}


# ---- Lies: numbers ----


def no_frames(columns: Columns) -> Columns:
    return {"frames": plus(columns["frames"], -6)}  # each clip has six


def the_largest_int32_as_number_of_frames(columns: Columns) -> Columns:
    return {"frames": np.full(2, 2**31 - 1, np.int32)}


def another_size(columns: Columns) -> Columns:
    return {"sizes": plus(columns["sizes"], 2)}


def a_size_below_zero(columns: Columns) -> Columns:
    return {"sizes": -columns["sizes"]}


def more_planes(columns: Columns) -> Columns:
    return {"planes": plus(columns["planes"], 1)}


def planes_outside_of_the_file(columns: Columns) -> Columns:
    return {"rows": plus(columns["rows"], 1000)}


def no_such_exposure(columns: Columns) -> Columns:
    return {"exposures": plus(columns["exposures"], 5)}


def an_exposure_below_zero(columns: Columns) -> Columns:
    return {"exposures": plus(columns["exposures"], -1)}


def another_center(columns: Columns) -> Columns:
    return {"centers": plus(columns["centers"], 1)}


def a_center_that_is_no_number(columns: Columns) -> Columns:
    return {"centers": np.full(len(columns["centers"]), np.nan)}


# ---- Lies: shapes and types ----


def twice_as_many_values(columns: Columns) -> Columns:
    return {"sizes": np.concatenate((columns["sizes"], columns["sizes"]))}


def values_of_another_type(columns: Columns) -> Columns:
    return {"frames": columns["frames"].astype(np.float32)}


def a_pickle(columns: Columns) -> Columns:
    return {"clips": np.array([{"a": 1}], object)}


def two_dimensions(columns: Columns) -> Columns:
    return {"sizes": columns["sizes"].reshape(2, -1)}


# ---- Lies: the states of folders ----


def states_of_other_folders(columns: Columns) -> Columns:
    # Replace the name of each folder by "/". The record has two numbers for the state of a folder.
    # E.g. 8 numbers are the states of 4 folders.
    folder_count = len(columns["folder_states"]) // 2
    names = folder_count * ["/"]
    return {"folders": text(*names)}


def no_states(columns: Columns) -> Columns:
    """Return a lie: no folder was read. The two columns agree, but no start would see a change."""
    no_text = columns["folders"][:0]
    return {"folders": no_text, "folder_states": columns["folder_states"][:0]}


LIES = [
    a_file_above_the_root,
    another_folder,
    a_name_with_a_folder,
    an_empty_name,
    pictures_of_other_frames,
    one_clip_less,
    a_clip_twice,
    a_clip_of_a_bad_name,
    bytes_that_are_no_text,
    no_frames,
    the_largest_int32_as_number_of_frames,
    another_size,
    a_size_below_zero,
    more_planes,
    planes_outside_of_the_file,
    no_such_exposure,
    an_exposure_below_zero,
    another_center,
    a_center_that_is_no_number,
    twice_as_many_values,
    values_of_another_type,
    a_pickle,
    two_dimensions,
    states_of_other_folders,
    no_states,
]


@pytest.mark.parametrize("lie", LIES)
def test_a_wrong_record_is_not_used(root, lie):
    values = data_section(root)
    checked_at_start(values, root)
    columns = record_of(root)
    expected, _ = manifest.scan(source_of(values))
    # Write the record again with its true columns: this record is used. So if the record with the
    # lie is not used, the lie is the reason.
    write_record(root, columns)
    assert is_from_record(checked_at_start(values, root))

    write_record(root, columns | lie(columns))
    report = checked_at_start(values, root)

    assert not is_from_record(report)
    assert not report.problems
    assert [clip.lq for clip in report.clips] == [clip.lq for clip in expected]
    # The start that refused the lie has written a true record. So the next start uses this record.
    assert is_from_record(checked_at_start(values, root))


# ---- Columns of a stranger -------------------------------------------------------------------
#
# A start compares the record with the files of only a few clips. So wrong columns must be refused
# without a look at the files. A column is wrong if it contradicts another column, or breaks a
# limit. The two clips have six frames each, and every frame has the exposure of row 0 of the column
# `rows`.


@pytest.fixture(scope="module")
def checked_source(tmp_path_factory) -> tuple[Source, Columns]:
    """Give a data set, and the true columns of its two clips, without the states of folders."""
    root = write_clips(tmp_path_factory.mktemp("columns"), "clip0", "clip10")
    values = data_section(root)
    checked_at_start(values, root)
    columns = record_of(root)
    for name in ("folders", "folder_states"):
        del columns[name]
    return source_of(values), columns


def first_is(name: str, value: float) -> Callable[[Columns], Columns]:
    """Return a lie: the first number of the column `name` is `value`."""

    def lie(columns: Columns) -> Columns:
        column = columns[name].copy()
        column[0] = value
        return {name: column}

    return lie


def one_less(name: str) -> Callable[[Columns], Columns]:
    """Return a lie: the column `name` lacks its last number or, if it is a text, its last byte."""
    return lambda columns: {name: columns[name][:-1]}


def counts_are(name: str, *counts: int) -> Callable[[Columns], Columns]:
    """Return a lie: the first clip has counts[0] files, and the second clip has counts[1] files.

    name: a column of numbers of files, e.g. "gt_counts".
    """
    return lambda columns: {name: np.array(counts, columns[name].dtype)}


def row_has(**fields: int) -> Callable[[Columns], Columns]:
    """Return a lie: row 0, the exposure of every frame, has these values.

    fields: fields of data.clips.columns.Row, where each field is explained. E.g. plane_count=0
    means frames without planes.
    """

    def lie(columns: Columns) -> Columns:
        rows = columns["rows"].copy()
        for name, value in fields.items():
            rows[Row._fields.index(name)] = value
        return {"rows": rows}

    return lie


def is_text(name: str, *parts: str) -> Callable[[Columns], Columns]:
    """Return a lie: the column `name` has these texts."""
    return lambda columns: {name: text(*parts)}


def a_whole_center_with_a_fraction(columns: Columns) -> Columns:
    """Return a lie: the center is 1.5, but row 0 says that it is a whole number."""
    rows = row_has(has_whole_center=1)(columns)
    centers = first_is("centers", 1.5)(columns)
    return rows | centers


# More lies. Only the next test uses the lies of WRONG_COLUMNS. The next test also uses some of
# LIES: the lies that contradict another column, or break a limit (LIES_WITHIN_COLUMNS).
#
# The 12 frames have 12 names, 12 sharp frames and 12 spike files. A lie about the files of the two
# clips keeps the sum, e.g. 2 and 10, so that only the numbers of each clip are wrong.
WRONG_COLUMNS = {
    "a column that is unknown": lambda columns: {"more": columns["frames"]},
    "no zero byte after the last text": one_less("stems"),
    "too many frames": first_is("frames", MOST_FRAMES + 1),
    "a size that is too large": first_is("sizes", LARGEST_SIDE + 1),
    "one name is missing": is_text("stems", *11 * ["0"]),
    "a name that is its folder": is_text("stems", *12 * ["."]),
    "a name that is the folder above": is_text("stems", *12 * [".."]),
    "a clip without a spike file": first_is("spike_counts", 0),
    "two spike files for six frames": counts_are("spike_counts", 2, 10),
    "fewer sharp frames than frames": counts_are("gt_counts", 5, 7),
    "no number of files for a clip": one_less("lq_counts"),
    "no size of a file": one_less("lq_bytes"),
    "no time of a file": one_less("lq_times"),
    "no folder for a clip": is_text("lq_places", "/clip0/blur/"),
    "a folder without / at its start": is_text("lq_places", "clip0/blur/", "/clip10/blur/"),
    "a folder without / at its end": is_text("lq_places", "/clip0/blur", "/clip10/blur/"),
    "a row without its last number": one_less("rows"),
    "a row with a plane below zero": row_has(first_plane=-1),
    "a row with a huge plane": row_has(origin=LARGEST_PLANE),
    "a row without planes": row_has(plane_count=0),
    "an infinite center": first_is("centers", np.inf),
    "a center behind the planes": first_is("centers", PLANES),
    "a center before the planes": first_is("centers", -1),
    "has_whole_center is 2, and not 0 or 1": row_has(has_whole_center=2),
    "a whole center with a fraction": a_whole_center_with_a_fraction,
    "more planes before the frame than are read": row_has(before=PLANES + 1),
    "no planes of a file": one_less("planes"),
    "a file without planes": first_is("planes", 0),
    "a file of too many planes": first_is("planes", LARGEST_PLANE),
    "a frame without a row": one_less("exposures"),
    "own planes outside of the file": row_has(first_plane=1),
    "read planes outside of the file": row_has(own_first=1),
    "planes of the file before the first": row_has(previous_count=1),
    "planes of the file after the last": row_has(next_count=1),
}
LIES_WITHIN_COLUMNS = [
    a_file_above_the_root,
    a_name_with_a_folder,
    an_empty_name,
    one_clip_less,
    a_clip_twice,
    a_clip_of_a_bad_name,
    bytes_that_are_no_text,
    no_frames,
    the_largest_int32_as_number_of_frames,
    a_size_below_zero,
    no_such_exposure,
    an_exposure_below_zero,
    a_center_that_is_no_number,
    twice_as_many_values,
    values_of_another_type,
    two_dimensions,
]


ALL_WRONG_COLUMNS = [*LIES_WITHIN_COLUMNS]
for name, lie in WRONG_COLUMNS.items():
    ALL_WRONG_COLUMNS.append(pytest.param(lie, id=name))


# `checked_source` gives a data set of two clips, and the true columns of its record.
@pytest.mark.parametrize("lie", ALL_WRONG_COLUMNS)
def test_wrong_columns_are_refused_without_a_look_at_the_files(checked_source, lie):
    source, columns = checked_source
    refuse_columns(columns, source)  # raises nothing, because these columns are true

    with pytest.raises(ValueError):
        refuse_columns(columns | lie(columns), source)


# A line has the name of a clip, its number of frames, its shape (0: any) and its first frame.
@pytest.mark.parametrize(
    "lines",
    [
        pytest.param("clip0 6 0 0\n", id="other clips"),
        pytest.param("clip0 6 0 0\nclip10 5 0 0\n", id="another number of frames"),
    ],
)
def test_columns_of_other_clips_than_a_meta_file_lists_are_refused(checked_source, tmp_path, lines):
    source, columns = checked_source
    meta = tmp_path / "meta.txt"
    meta.write_text(lines)

    with pytest.raises(ValueError, match="the kept record is wrong"):
        refuse_columns(columns, dataclasses.replace(source, meta_info_file=str(meta)))


def test_columns_of_a_clip_that_is_left_out_are_refused(checked_source):
    source, columns = checked_source

    with pytest.raises(ValueError, match="the kept record is wrong: clips"):
        refuse_columns(columns, dataclasses.replace(source, excluded_clips=frozenset({"clip0"})))


def test_columns_with_more_instants_of_some_frames_are_refused(root):
    values = data_section(root, **sharp_instants(root))
    checked_at_start(values, root)
    columns = record_of(root)
    for name in ("folders", "folder_states"):
        del columns[name]
    source = source_of(values)
    refuse_columns(columns, source)  # raises nothing, because these columns are true
    # There are 2 clips of 6 frames, and each frame has 3 instants. So a clip has 18 instants.
    assert columns["gt_instants_counts"].tolist() == [18, 18]

    with pytest.raises(ValueError, match="the kept record is wrong: gt_instants"):
        refuse_columns(columns | counts_are("gt_instants_counts", 17, 19)(columns), source)


def test_a_record_without_one_of_the_clips_is_not_used(root):
    values = data_section(root)
    checked_at_start(values, root)
    # Make a second record, in the folder "other", of only one of the two clips.
    (root / "meta.txt").write_text("clip0 6 0 0\n")
    checked_at_start(data_section(root, meta_info_file=str(root / "meta.txt")), root / "other")
    columns = record_of(root / "other")
    # Take the states of folders from the true record, so that no folder seems to have changed.
    true_columns = record_of(root)
    columns["folders"] = true_columns["folders"]
    columns["folder_states"] = true_columns["folder_states"]

    write_record(root, columns)
    report = checked_at_start(values, root)

    assert not is_from_record(report)
    assert len(report.clips) == 2


def test_a_compressed_record_is_not_used(root):
    # A small compressed file can hold arrays that fill all memory. So no compressed record is read.
    values = data_section(root)
    checked_at_start(values, root)

    write_record(root, record_of(root), save=np.savez_compressed)

    assert not is_from_record(checked_at_start(values, root))


# ---- Damaged records -------------------------------------------------------------------------


# Two damages, 20 and 50 bytes before the end of a file, hit an important part of both files:
#
#     .npz    a zip file. Its last 22 bytes say where the list of its arrays begins
#     .json   ends with the digest of the arrays, 64 digits, and a bracket


def flip_bit(content: bytes) -> bytes:
    """Return the content of a file with one bit flipped, 20 bytes before the end."""
    changed = bytearray(content)
    changed[-20] ^= 1
    return bytes(changed)


def cut_short(content: bytes) -> bytes:
    """Return the content of a file without its last 50 bytes."""
    return content[:-50]


# Each damage is the new content of a file, or a function that changes the content.
DAMAGES = [
    pytest.param(b"", id="empty"),
    pytest.param(cut_short, id="cut short"),
    pytest.param(flip_bit, id="a flipped bit"),
    pytest.param(pickle.dumps({"clips": 1}), id="a pickle"),
    pytest.param(b"<html></html>", id="a web page"),
    pytest.param(b"[" * 100_000, id="many brackets"),
]


@pytest.mark.parametrize("suffix", [".npz", ".json"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_record_is_not_used(root, damage, suffix):
    values = data_section(root)
    checked_at_start(values, root)
    (record,) = (root / ".preflight").glob(f"*{suffix}")

    if callable(damage):
        record.write_bytes(damage(record.read_bytes()))
    else:
        record.write_bytes(damage)

    assert not is_from_record(checked_at_start(values, root))
    # The start that refused the damaged record has written a new one. So the next start uses it.
    assert is_from_record(checked_at_start(values, root))


# The check itself must still work. Only the record is missing afterwards.
def test_a_folder_that_cannot_be_written_only_prevents_the_record(root, caplog):
    (root / ".preflight").write_text("a file in its place")
    caplog.set_level("INFO")

    report = checked_at_start(data_section(root), root)

    assert not report.problems
    assert len(report.clips) == 2
    assert "the result of the data check cannot be stored" in caplog.text


# ---- What a start asks of the system ---------------------------------------------------------

# The system calls that ask for the state of a file. A question mark tells strace that this kernel
# may not have the call.
STATES = "?stat,?lstat,fstat,newfstatat,?statx"
# A program with two arguments: a folder with data, and the path of a file. The program checks the
# data, and strace writes the system calls of the check into the file. The program starts strace
# itself, after its imports. If strace ran earlier, it would also write the thousand system calls of
# the imports, which takes seconds.
CHECK = """
import ctypes
import os
import subprocess
import sys
from pathlib import Path
from data.clips.preflight import check_source
from tests.helpers.clip_files import data_section, source_of

root = Path(sys.argv[1])

# On some systems only the parents of a process may watch it, unless the process allows others.
PR_SET_PTRACER = 0x59616D61
ANY = -1
ctypes.CDLL(None).prctl(PR_SET_PTRACER, ANY)
# -f: also of threads that the program starts. -y: with the names of open files.
strace = ["strace", "-f", "-y", "-o", sys.argv[2], "-e", "trace={states}", "-p", str(os.getpid())]
watch = subprocess.Popen(strace, stderr=subprocess.PIPE, text=True)
assert "attached" in watch.stderr.readline()

report = check_source(source_of(data_section(root)), "train", root / ".preflight")

watch.terminate()
watch.wait()
print(report.problems, report.note)
"""


@dataclasses.dataclass
class FirstStart:
    """The system calls of a first start."""

    root: Path
    # Lines of strace, one for each call that asked for the state of a file below `root`.
    calls: list[str]


@pytest.fixture(scope="module")
def first_start(tmp_path_factory) -> FirstStart:
    """Check two clips for the first time. Give their folder, and the system calls of the check."""
    if not shutil.which("strace"):
        pytest.skip("counts calls with strace")
    root = write_clips(tmp_path_factory.mktemp("first_start"), "clip0", "clip10")
    program = root / "program.py"
    program.write_text(CHECK.format(states=STATES))
    table = root / "calls.txt"

    ended = run_ranks(1, program, root, table)

    # The program runs as one rank, so there is one exit code and one output.
    assert ended.exit_codes == [0], ended.text
    assert ended.stdout[0].startswith("[]"), ended.text  # no problems
    lines = table.read_text(errors="replace").splitlines()
    return FirstStart(root, [line for line in lines if str(root) in line])


# The check asks once for the state of each file, and once more each time it opens the file again:
#
#     why it opens files again         which files                                    how many
#     clips are compared by content    first blurry picture of each of the 2 clips    2 .png
#                                      first spike file of each of the 2 clips        2 .dat
#     the first pictures are decoded   first blurry and sharp picture of one clip     2 .png
@pytest.mark.parametrize(("suffix", "opened_again"), [(".png", 4), (".dat", 2)])
def test_a_first_start_asks_for_the_state_of_each_file_once(first_start, suffix, opened_again):
    files = list(first_start.root.rglob(f"*{suffix}"))

    calls = [call for call in first_start.calls if suffix in call]

    assert len(calls) == len(files) + opened_again


# A rank of a training. It makes its data set, and prints which files and folders it opens for this.
# It also prints whether a data set that was made from the files has the same samples.
RANK = """
import pickle
import sys
from pathlib import Path
from data.clips.preflight import preflight
from data.select_dataset import build_dataset
from tests.helpers.clip_files import data_section, equal_samples, resolve_section
from utils import utils_dist
from utils.dist.state import RUN
from utils.options.loader_options import DatasetsOptions

root = Path(sys.argv[1])
values = data_section(root)
expected = build_dataset(values, "train", 0)

# Check the files, and write the record. From now on, data sets are made from the record.
RUN.checks_folder = root / ".preflight"
datasets = DatasetsOptions(train=resolve_section(values))
utils_dist.share_record_ids(preflight(datasets, RUN.checks_folder))

# Python calls `note` before it opens a file or a folder.
opened = []

def note(event, args):
    if event in ("open", "os.scandir", "os.listdir") and str(root) in str(args[0]):
        opened.append(Path(str(args[0])).suffix)

sys.addaudithook(note)
dataset = build_dataset(values, "train", 0)
print(sorted(opened))

# A loader process gets a pickled copy.
sent = pickle.loads(pickle.dumps(dataset))
print(dataset.sample_names() == expected.sample_names())
for index in range(len(expected)):
    assert equal_samples(dataset[(1, index)], expected[(1, index)]), index
    assert equal_samples(sent[(1, index)], expected[(1, index)]), index
"""


def test_a_rank_reads_only_the_record_and_makes_the_same_samples(root, tmp_path):
    program = tmp_path / "program.py"
    program.write_text(RANK)

    ended = run_ranks(1, program, root)

    assert ended.exit_codes == [0], ended.text
    # The program prints two lines: the endings of the opened files, and whether the names of the
    # samples are the same.
    opened, is_same = ended.stdout[0].splitlines()

    assert opened == "['.json', '.npz']"
    assert is_same == "True"


def test_two_ranks_train_as_before_on_what_one_of_them_has_checked(tmp_path):
    options = write_odd_options(tmp_path)
    changes = ("train.total_iter=2", "datasets.test={}")

    # `run_odd` trains the small network "odd".
    first = run_odd(options, *changes, "task=a", ranks=2)
    second = run_odd(options, *changes, "task=b", ranks=2)

    assert first.exit_codes == [0, 0], first.text
    assert second.exit_codes == [0, 0], second.text
    assert "as checked before" in second.text
    assert latest_checkpoint(options, "a")["step"] == 2
    assert latest_checkpoint(options, "b")["step"] == 2

"""data/clips/manifest.py: which clips a data set has, in one root folder or in several.

Tests of layouts, of meta files (lists of clips), of names of frames, and of what is said of data
that do not fit. The clips are those of tests/helpers/clip_files.py: two training clips of 6 frames
of 16 x 24, with 24 spike planes a frame, unless a test says otherwise.
"""

import dataclasses
import json
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from data.clips.clip_reader import user_clips
from data.clips.manifest import Source
from data.loader import TrainLoader
from tests.helpers import clip_files
from tests.helpers.checked import present
from tests.helpers.clip_files import (
    PLANES,
    build,
    cached,
    check,
    resolved,
    same,
    section,
    set_for_testing,
    set_for_training,
    write_clip,
    write_clips,
    write_dat,
    write_info,
)
from tests.helpers.damage import examples
from utils.errors import DataError, OptionError

# Bytes of a spike plane of 8 x 12 pixels, one bit each.
PLANE_BYTES = 12


@pytest.fixture
def root(tmp_path):
    """Give the root of two clips whose frames are 000047 to 000052."""
    return write_clips(tmp_path, "clip0", "clip1", first=47)


def complaint(root, **changes):
    """Return the error of a data set. changes: keys of its section."""
    with pytest.raises(DataError) as error:
        build(root, **changes)
    return str(error.value)


def folder(root, kind, clip="clip0"):
    """Return the folder of a clip. kind: "blur", "sharp" or "spike"."""
    base = "GOPRO_Large_spike_seq" if kind == "spike" else "GOPRO_Large"
    return root / base / "train" / clip / kind


def of_all_kinds(root, pattern, clip="clip0"):
    """Return the blurry frames, sharp frames and spike files of a clip that match a pattern."""
    paths = []
    for kind in ("blur", "sharp", "spike"):
        paths += folder(root, kind, clip).glob(pattern)
    return paths


def rename_frames(root, template):
    """Rename all frames and spike files, e.g. with template "frame_{}": 000047 -> frame_47."""
    paths = [path for path in root.rglob("*") if path.suffix in (".png", ".dat")]
    for path in paths:
        stem = template.format(int(path.stem))
        path.rename(path.with_name(stem + path.suffix))


# ---- Layouts ----


@pytest.fixture
def regrouped(tmp_path):
    """Give the root of clip0 with folders of their own for blurry and for sharp frames."""
    return write_clips(tmp_path / "regrouped", "clip0", first=47, regrouped=True)


def test_regrouped_folders_hold_the_frames_of_the_published_ones(root, regrouped):
    published = build(root).clips[0]
    in_groups = build(regrouped, regrouped=True).clips[0]

    expected = ("000047", "000048", "000049", "000050", "000051", "000052")
    assert published.stems == expected
    assert in_groups.stems == expected


def test_regrouped_folders_give_the_samples_of_the_published_ones(root, regrouped):
    assert same(build(root)[(0, 2)], build(regrouped, regrouped=True)[(0, 2)])


def test_the_blurry_folder_is_blur_if_nothing_is_said(root):
    for clip in ("clip0", "clip1"):
        shutil.copytree(folder(root, "blur", clip), folder(root, "blur_gamma", clip))

    assert "/blur/" in build(root).clips[0].lq[0]


def test_the_blurry_folder_can_be_chosen(root):
    for clip in ("clip0", "clip1"):
        shutil.copytree(folder(root, "blur", clip), folder(root, "blur_gamma", clip))

    assert "blur_gamma" in build(root, lq_folder="blur_gamma").clips[0].lq[0]


def test_other_files_are_left_alone(root):
    for kind in ("blur", "spike"):
        for name in (".DS_Store", "._000047.png", "notes.txt"):
            (folder(root, kind) / name).write_bytes(b"x")
    (root / "GOPRO_Large/train/.cache").mkdir()

    clips = build(root).clips

    assert len(clips) == 2
    assert len(clips[0].lq) == 6


class NestedClips(NamedTuple):
    """Clips in folders within folders, with files of a Mac beside them."""

    root: Path
    lq: Path  # the folder of the blurry frames
    regrouped: bool


@pytest.fixture(params=[False, True], ids=["published", "regrouped"])
def nested(request, tmp_path):
    """Give three clips in two folders."""
    regrouped = request.param
    write_clips(tmp_path, "00001/0001", "00001/0002", "00002/0001", regrouped=regrouped)
    lq = tmp_path / "GOPRO_Large" / ("train_GT_blurred" if regrouped else "train")
    (lq / "00001" / ".DS_Store").write_bytes(b"x")
    (lq / "00002" / ".cache").mkdir()
    return NestedClips(tmp_path, lq, regrouped)


def test_clips_in_nested_folders_have_both_names(nested):
    dataset = build(nested.root, regrouped=nested.regrouped)

    assert [clip.name for clip in dataset.clips] == ["00001/0001", "00001/0002", "00002/0001"]
    assert dataset[0, 13]["key"] == "00002/0001/000001"


def test_a_missing_folder_of_nested_clips_is_named_with_both_names(nested):
    shutil.rmtree(nested.root / "GOPRO_Large_spike_seq/train/00001/0002")

    said = complaint(nested.root, regrouped=nested.regrouped)

    assert "1 problem " in said
    assert "00001/0002 | spike has no folder" in said


def test_a_folder_of_files_is_a_clip(nested):
    (nested.lq / "00002" / "notes.txt").write_bytes(b"x")

    said = complaint(nested.root, regrouped=nested.regrouped)

    assert "00002      | lq holds no .png file" in said


@pytest.mark.parametrize(
    ("partition", "names"),
    [
        pytest.param(None, ["000", "001", "241"], id="none"),
        pytest.param("REDS4", ["001", "241"], id="REDS4"),
        pytest.param("official", ["000", "001"], id="official"),
    ],
)
def test_a_partition_keeps_its_clips_out_of_training(tmp_path, partition, names):
    for name in ("000", "001", "241"):
        write_clip(tmp_path, name, frames=3)
    without_spikes: dict[str, Any] = {
        "dataset_type": "VideoRecurrentTrainDataset",
        "dataroot_spike": None,
        "spike": None,
    }

    dataset = build(tmp_path, val_partition=partition, **without_spikes)

    assert [clip.name for clip in dataset.clips] == names


def test_frames_are_in_the_order_of_their_numbers(tmp_path):
    write_clips(tmp_path, "clip2", frames=11, first=1)
    rename_frames(tmp_path, "frame_{}")

    (clip,) = build(tmp_path).clips

    assert clip.stems == tuple(f"frame_{number}" for number in range(1, 12))


def test_clips_are_in_the_order_of_their_numbers(tmp_path):
    write_clips(tmp_path, "clip10", "clip2")

    assert [clip.name for clip in build(tmp_path).clips] == ["clip2", "clip10"]


def test_a_gap_is_looked_for_in_the_order_of_numbers(tmp_path):
    write_clips(tmp_path, "clip2", frames=11, first=1)
    rename_frames(tmp_path, "frame_{}")
    for path in of_all_kinds(tmp_path, "frame_10.*", "clip2"):
        path.unlink()

    assert "clip2 | frame numbers jump at frame_9-frame_11" in complaint(tmp_path)


def test_a_root_without_clips_is_refused(root):
    (root / "empty").mkdir()

    assert "holds no clip" in complaint(root, dataroot_gt=str(root / "empty"))


def test_a_root_of_one_spike_file_a_clip_says_what_to_do(root):
    (root / "empty").mkdir()
    for name in ("200.dat", "203.dat"):
        (root / "empty" / name).write_bytes(bytes(PLANE_BYTES * PLANES))
    spike = {"type": "dat", "h": 8, "w": 12, "center": 1}

    said = complaint(root, dataroot_spike=str(root / "empty"), spike=spike)

    assert "holds no clip, but 2 files (200.dat, 203.dat)" in said
    assert "give spike.exposure" in said


# ---- Meta files: lists of clips ----


def write_meta(root, text):
    """Write a meta file, and return the key of the section that names it."""
    path = root / "meta.txt"
    path.write_text(text + "\n")
    return {"meta_info_file": str(path)}


def test_a_meta_file_that_lists_more_frames_than_there_are_is_an_error(root):
    said = complaint(root, **write_meta(root, "clip0 9 0 000047"))

    assert "clip0 | lq lacks 3 of 9 frames: 000053.png, 000054.png, 000055.png" in said


def test_a_meta_file_that_lists_a_clip_that_is_not_there_is_an_error(root):
    said = complaint(root, **write_meta(root, "clip5 1 0 000000"))

    assert "clip5 | lq has no folder" in said
    assert f"remove the clips from the meta list {root}/meta.txt" in said


def test_a_meta_file_that_is_not_there_is_an_error(root):
    said = complaint(root, meta_info_file=str(root / "none.txt"))

    assert "cannot read the meta file" in said


# The forms of a line: clip, number of frames, shape of a frame or 0, first frame.
FORMS_OF_LINES = [
    pytest.param("clip0 5 0 48", id="S-VRT"),
    pytest.param("clip0 5 (16,24,3) 000048", id="KAIR"),
    pytest.param("clip0 5 (16, 24, 3) 000048", id="KAIR with spaces"),
]


@pytest.mark.parametrize("template", ["{:06d}", "{}", "{:04d}", "frame_{}"])
@pytest.mark.parametrize("line", FORMS_OF_LINES)
def test_a_meta_file_fits_however_numbers_are_written(tmp_path, template, line):
    write_clips(tmp_path, "clip0", "clip1", first=48)
    rename_frames(tmp_path, template)

    (clip,) = build(tmp_path, **write_meta(tmp_path, line)).clips

    assert clip.name == "clip0"
    assert clip.stems == tuple(template.format(number) for number in range(48, 53))


@pytest.mark.parametrize("template", ["{:06d}", "{}", "{:04d}", "frame_{}"])
@pytest.mark.parametrize("line", FORMS_OF_LINES)
def test_a_listed_frame_that_is_missing_is_named_as_the_others_are(tmp_path, template, line):
    write_clips(tmp_path, "clip0", "clip1", first=48)
    rename_frames(tmp_path, template)
    one_more_frame = line.replace(" 5 ", " 7 ")  # the clip has 6

    said = complaint(tmp_path, **write_meta(tmp_path, one_more_frame))

    assert f"clip0 | lq lacks 1 of 7 frames: {template.format(54)}.png" in said


@pytest.mark.parametrize("line", FORMS_OF_LINES)
def test_names_of_frames_must_follow_a_given_template(tmp_path, line):
    write_clips(tmp_path, "clip0", "clip1", first=48)
    rename_frames(tmp_path, "{}")

    said = complaint(tmp_path, filename_tmpl="06d", **write_meta(tmp_path, line))

    assert "do not follow filename_tmpl '06d': 48, 49" in said


def test_a_meta_file_of_basicsr_lists_frames_from_0_on(tmp_path):
    write_clips(tmp_path, "clip0")

    (clip,) = build(tmp_path, **write_meta(tmp_path, "clip0 3 (16,24,3)")).clips

    assert clip.stems == ("000000", "000001", "000002")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        # 47 may be the first frame, or stand for the shape.
        pytest.param("clip0 3 47", "line 1 is", id="ambiguous number"),
        pytest.param(
            "clip0 3 0 0\nclip0 3 0 3", "line 2 lists clip clip0 again", id="a clip twice"
        ),
        pytest.param(
            "../../x 3 0 0", "'../../x' cannot be the name of a clip", id="folder above the root"
        ),
        pytest.param("/tmp/x 3 0 0", "'/tmp/x' cannot be the name of a clip", id="absolute path"),
        pytest.param("clip0 0 0 0", "line 1 is", id="no frames"),
        pytest.param("clip0", "line 1 is 'clip0'", id="no number of frames"),
    ],
)
def test_lines_of_a_meta_file_that_say_nothing_certain_are_refused(tmp_path, text, said):
    write_clips(tmp_path, "clip0")

    assert said in complaint(tmp_path, **write_meta(tmp_path, text))


@pytest.mark.parametrize(
    "line",
    [
        pytest.param("clip0 " + "9" * 5000 + " (16,24,3)", id="frames"),
        pytest.param("clip0 6 (16,24,3) " + "9" * 5000, id="first"),
        pytest.param("clip0 99999999 (16,24,3)", id="many"),
        pytest.param("clip0 1000001 0 0", id="too many"),
        pytest.param("clip0 0 (16,24,3)", id="none"),
    ],
)
def test_numbers_of_a_list_that_no_clip_has_are_refused(root, line):
    said = complaint(root, **write_meta(root, line))

    assert "line 1 is " in said
    assert len(said) < 1000  # a long line is not repeated


# Words of which a meta file may be made, and any bytes.
WORDS = ["clip0", "a/b", "..", "0", "6", "9" * 30, "(1,1,3)", "(", ")", "\n", "\x00"]
LISTS_OF_WORDS = st.lists(st.sampled_from(WORDS), max_size=12)
TEXTS = LISTS_OF_WORDS.map(lambda words: " ".join(words).encode())


@examples(100)
@given(content=st.binary(max_size=60) | TEXTS)
def test_whatever_a_list_of_clips_holds_it_is_read_or_refused(tmp_path_factory, content):
    path = tmp_path_factory.mktemp("any") / "meta.txt"
    path.write_bytes(content)

    try:
        listed = Source("lq", meta_info_file=str(path)).listed
    except DataError as error:
        assert error.where.startswith(str(path))
    else:
        for frame_count, _ in present(listed).values():
            assert 1 <= frame_count <= 1_000_000


# ---- Faults of the data ----


class Fault(NamedTuple):
    """A fault of a data set, and what is said of it."""

    make: Callable[[Path], object]  # damages the data set below this root
    said: list[str]
    options: dict[str, Any] | None = None  # keys of the section


def copy_file(path, name):
    """Copy a file to another name in its folder."""
    shutil.copy(path, path.with_name(name))


def write_first_frame(root, content):
    """Replace the first blurry frame of clip0 by a file with this content."""
    (folder(root, "blur") / "000047.png").write_bytes(content)


def nothing(root):
    """Damage nothing: the options do not fit."""


def two_files_of_a_number(root):
    copy_file(folder(root, "blur") / "000050.png", "50.png")


def name_with_a_line_break(root):
    (root / "GOPRO_Large/train/clip\n9").mkdir()


def link_without_target(root):
    (folder(root, "blur") / "000053.png").symlink_to(root / "nowhere.png")


def another_scale(root):
    write_clip(root, "clip2", scale=2)


def no_spikes_of_a_clip(root):
    shutil.rmtree(folder(root, "spike").parent)


def spikes_without_a_frame(root):
    copy_file(folder(root, "spike") / "000052.dat", "000053.dat")


SMALL_PNG = cv2.imencode(".png", np.zeros((16, 20, 3), np.uint8))[1].tobytes()


def frame_of_another_size(root):
    write_first_frame(root, SMALL_PNG)


def frame_of_size_zero(root):
    # Bytes 16 to 23 of a PNG are its width and height.
    write_first_frame(root, SMALL_PNG[:16] + bytes(8) + SMALL_PNG[24:])


def gap(root):
    for path in of_all_kinds(root, "000049.*"):
        path.unlink()


def no_blurry_frames(root):
    shutil.rmtree(folder(root, "blur"))


def forty_empty_clips(root):
    for number in range(40):
        (root / f"GOPRO_Large/train/empty{number:02d}").mkdir()


RAW_OF_27_PLANES = {"type": "dat", "representation": {"type": "raw", "window": 27}}

FAULTS = {
    "two files of a number": Fault(
        two_files_of_a_number, ["clip0 | lq has two files of one number:"]
    ),
    "no name for a log": Fault(
        name_with_a_line_break, ["'clip\\n9' cannot be the name of a clip or frame"]
    ),
    "link without target": Fault(
        link_without_target, ["cannot read: No such file or directory", "clip0/blur/000053.png"]
    ),
    "another scale": Fault(
        another_scale, ["clip2 | gt is 2 times as large as lq, that of most clips is 1 times"]
    ),
    "no spikes of a clip": Fault(no_spikes_of_a_clip, ["clip0 | spike has no folder"]),
    "spikes without frame": Fault(
        spikes_without_a_frame, ["clip0 | lq lacks 1 of 7 frames: 000053.png"]
    ),
    "few planes": Fault(
        nothing,
        ["24 planes are too few for spike.representation raw"],
        {"spike": RAW_OF_27_PLANES},
    ),
    "no multiple": Fault(
        frame_of_another_size,
        [
            "gt is 16 x 24, lq 16 x 20: no whole multiple",
            "lq is 16 x 20, spikes 8 x 12: no whole multiple",
        ],
    ),
    "gap": Fault(gap, ["clip0 | frame numbers jump at 000048-000050"]),
    "template": Fault(nothing, ["do not follow filename_tmpl '08d'"], {"filename_tmpl": "08d"}),
    "size of zero": Fault(frame_of_size_zero, ["clip0 | cannot read image"]),
    "no blurry frames": Fault(no_blurry_frames, ["clip0 | lq holds no .png file"]),
    # Blurry frames, sharp frames and spikes of each clip.
    "many": Fault(forty_empty_clips, ["120 problems", "... and 90 more"]),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_of_the_data_is_named_before_training(root, name):
    fault = FAULTS[name]
    build(root)  # fine before
    fault.make(root)

    said = complaint(root, **(fault.options or {}))

    for text in fault.said:
        assert text in said


# A voxel grid can be made of any number of planes.
VOXEL = {"type": "dat", "center": 1, "representation": {"type": "voxel", "num_bins": 2}}
# Files of clip0 in the middle, and at its end.
MIDDLE = "000049"
LAST = "000052"


def write_planes(root, stem, planes):
    """Replace a spike file of clip0 by one with this number of planes."""
    path = folder(root, "spike") / f"{stem}.dat"
    path.write_bytes(b"\1" * (PLANE_BYTES * planes))


# The planes after the last frame of a video cannot be interpolated, because no frame follows. So
# the last file may lack them: fewer than 8 for GoPro, or than the recipe in dataset.json says.
@pytest.mark.parametrize(
    ("interpolate", "missing"),
    [
        pytest.param(None, 1, id="GoPro, 1 missing"),
        pytest.param(None, 7, id="GoPro, 7 missing"),
        pytest.param(20, 19, id="recipe of 20, 19 missing"),
        pytest.param(4, 3, id="recipe of 4, 3 missing"),
    ],
)
def test_the_last_file_of_a_clip_may_lack_interpolated_planes(root, interpolate, missing):
    if interpolate:
        write_info(root, recipe={"interpolate": interpolate})
    write_planes(root, LAST, PLANES - missing)

    clip = build(root, spike=VOXEL).clips[0]

    assert clip.planes == (PLANES,) * 5 + (PLANES - missing,)


@pytest.mark.parametrize(
    ("stem", "interpolate", "planes"),
    [
        pytest.param(MIDDLE, None, PLANES - 1, id="in the middle, one less"),
        pytest.param(MIDDLE, None, PLANES + 1, id="in the middle, one more"),
        pytest.param(MIDDLE, None, PLANES * 2, id="in the middle, twice as many"),
        pytest.param(LAST, None, PLANES - 8, id="at the end, 8 missing"),
        pytest.param(LAST, 20, PLANES - 20, id="at the end, recipe of 20, 20 missing"),
        pytest.param(LAST, 1, PLANES - 1, id="at the end, recipe of 1, 1 missing"),
    ],
)
def test_another_number_of_planes_within_a_clip_is_refused(root, stem, interpolate, planes):
    if interpolate:
        write_info(root, recipe={"interpolate": interpolate})
    write_planes(root, stem, planes)

    said = complaint(root, spike=VOXEL)

    found = f"has {planes} planes ({planes * PLANE_BYTES} bytes)"
    expected = f"expected {PLANES} ({PLANES * PLANE_BYTES} bytes)"
    assert f"{found}, {expected}" in said


@pytest.fixture
def clips_of_unequal_lengths(tmp_path):
    """Give a data set of three clips of GoPro, with 7, 11 and 13 frames averaged in a frame."""
    write_clip(tmp_path, "GOPR0001_07_00", planes=56)
    write_clip(tmp_path, "GOPR0002_11_00", planes=88)
    write_clip(tmp_path, "GOPR0003_13_00", planes=104)
    raw = {"type": "raw", "window": 21}
    return build(tmp_path, spike={"type": "dat", "h": 8, "w": 12, "representation": raw})


def test_clips_may_differ_in_their_planes(clips_of_unequal_lengths):
    assert [clip.planes[0] for clip in clips_of_unequal_lengths.clips] == [56, 88, 104]


def test_clips_of_gopro_have_their_sharp_frame_near_the_middle(clips_of_unequal_lengths):
    centers = [clip.exposures[0].center for clip in clips_of_unequal_lengths.clips]

    assert centers == [24, 40, 48]


def test_clips_that_differ_in_their_planes_give_samples_of_one_shape(clips_of_unequal_lengths):
    assert clips_of_unequal_lengths[(0, 0)]["spike"].shape == (3, 21, 8, 8)


# ---- Options that are refused ----


@pytest.mark.parametrize("template", ["x", "{}", "1000d", "08.3f", " d", "s", "-8d"])
def test_a_form_of_names_that_is_none_is_refused(root, template):
    with pytest.raises(OptionError, match="filename_tmpl"):
        build(root, filename_tmpl=template)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        pytest.param("num_frame", 10_001, id="frames"),
        pytest.param("gt_size", 2**16 + 1, id="crop"),
        pytest.param("interval_list", [1, 10_001], id="interval"),
        pytest.param("spike", {"type": "dat", "gamma": 1e-300}, id="gamma near 0"),
        pytest.param("spike", {"type": "dat", "gamma": 1e300}, id="gamma without end"),
    ],
)
def test_numbers_far_above_any_use_are_refused(root, key, value):
    with pytest.raises(OptionError, match=key):
        build(root, **{key: value})


# ---- Several roots ----

TFP = {
    "type": "dat",
    "resize": "nearest",
    "center": "gt",
    "representation": {"type": "tfp", "offsets": [0]},
}
ALL_TURNS: dict[str, Any] = {"use_hflip": True, "use_rot": True, "random_reverse": True}


@pytest.fixture(scope="module")
def roots(tmp_path_factory):
    """Give two roots with clips a, b and a, c, d.

    The second root has larger frames, 4 instead of 2 RGB pixels a spike pixel, 40 instead of 24
    planes, and a camera of another rate.
    """
    one = write_clips(tmp_path_factory.mktemp("one"), "a", "b")
    two = tmp_path_factory.mktemp("two")
    for seed, clip in enumerate(("a", "c", "d")):
        write_clip(two, clip, seed=5 + seed, frames=4, h=16, w=20)
        # Smaller spike planes take the place of those of 16 x 20.
        for frame in range(4):
            random_values = np.random.default_rng([seed, frame]).random((40, 8, 10))
            path = folder(two, "spike", clip) / f"{frame:06d}.dat"
            write_dat(path, (random_values < 0.3).astype(np.uint8))
    write_info(two, h=8, w=10, planes=40, gt_plane=20, rate=0.5, light="display")
    return one, two


def folders_of(roots, split="train"):
    """Return the keys `dataroot_...` with a list of the folders of all roots."""
    sections = [section(root, split) for root in roots]
    keys = [key for key in sections[0] if key.startswith("dataroot_")]
    return {key: [one[key] for one in sections] for key in keys}


def joined(roots, split="train", **changes):
    """Return a section for several roots. changes: keys of the section."""
    values = section(roots[0], split) | folders_of(roots, split)
    return values | {"spike": TFP} | changes


@pytest.fixture(scope="module")
def joined_set(roots):
    """Give the training set of both roots."""
    return set_for_training(joined(roots, **ALL_TURNS), seed=3)


def test_clips_of_several_roots_have_the_number_of_their_root_in_their_names(joined_set):
    assert [clip.name for clip in joined_set.clips] == ["0/a", "0/b", "1/a", "1/c", "1/d"]


def test_several_roots_have_the_samples_of_each(joined_set):
    assert len(joined_set) == 2 * 6 + 3 * 4


def test_a_sample_of_several_roots_is_that_of_its_own_root(roots, joined_set):
    single = [build(root, seed=3, spike=TFP, **ALL_TURNS) for root in roots]

    for index in range(2 * len(joined_set)):
        draw = joined_set.draw((1, index))
        number, name = draw.clip.name.split("/")
        own = single[int(number)]
        clips = {clip.name: clip for clip in own.clips}
        own_draw = dataclasses.replace(draw, clip=clips[name])
        assert same(joined_set.read(draw), own.read(own_draw))
        assert joined_set[(1, index)]["key"].startswith(f"{number}/{name}/")


def test_each_root_keeps_its_own_camera(joined_set):
    assert {present(clip.spikes).rate for clip in joined_set.clips} == {1.0, 0.5}
    assert {clip.grid.step for clip in joined_set.clips} == {2, 4}
    assert {clip.planes[0] for clip in joined_set.clips} == {24, 40}


def test_batches_of_several_roots_have_one_shape(roots):
    values = resolved(joined(roots, dataloader_batch_size=4, dataloader_num_workers=0))
    loader = TrainLoader(set_for_training(values), values, accumulation_steps=1, seed=0)

    shapes = {tuple(batch["spike"].shape) for (batch,) in loader.start(0, 0)}

    assert shapes == {(4, 3, 1, 8, 8)}


# Options `dataroot_share`, and the samples of each root in an epoch of 24.
SHARES = [
    pytest.param(None, (12, 12), id="not given"),
    pytest.param([1, 3], (6, 18), id="1 to 3"),
    pytest.param([0.9, 0.1], (22, 2), id="0.9 to 0.1"),
]


class Begins:
    """The frames with which the samples of six epochs begin."""

    def __init__(self, dataset):
        self.names = []  # (clip, frame) of each sample, in the order of the clips
        for clip in dataset.clips:
            for stem in clip.stems:
                self.names.append((clip.name, stem))
        self.epochs = []
        for epoch in range(6):
            places = [dataset.place_of(epoch, index) for index in range(len(dataset))]
            self.epochs.append([self.names[place] for place in places])


def root_of(name):
    """Return the number of the root of (clip, frame)."""
    clip, _ = name
    return int(clip[0])


@pytest.mark.parametrize(("share", "counts"), SHARES)
def test_shares_say_how_many_samples_each_root_gives(roots, share, counts):
    dataset = set_for_training(joined(roots, dataroot_share=share))

    for epoch in Begins(dataset).epochs:
        found = Counter(root_of(name) for name in epoch)
        assert (found[0], found[1]) == counts


@pytest.mark.parametrize(("share", "counts"), SHARES)
def test_every_frame_of_a_root_comes_as_often_as_its_others(roots, share, counts):
    dataset = set_for_training(joined(roots, dataroot_share=share))
    begins = Begins(dataset)

    used = Counter()
    for epoch in begins.epochs:
        used.update(epoch)
    for root in (0, 1):
        often = [used[name] for name in begins.names if root_of(name) == root]
        assert max(often) - min(often) <= 1
        assert sum(often) == 6 * counts[root]


@pytest.mark.parametrize(("share", "counts"), SHARES)
def test_shares_give_the_same_samples_each_time(roots, share, counts):
    one = set_for_training(joined(roots, dataroot_share=share))
    again = set_for_training(joined(roots, dataroot_share=share))

    assert same(one[(2, 7)], again[(2, 7)])


def sample_names(roots, **changes):
    """Return what a resumed run compares to know whether it has the same samples."""
    return set_for_training(joined(roots, **changes)).sample_names()


def test_a_resumed_run_sees_the_same_roots_with_the_same_shares(roots):
    assert sample_names(roots, dataroot_share=[1, 3]) == sample_names(roots, dataroot_share=[1, 3])


def test_a_resumed_run_sees_other_roots_or_shares(roots):
    names = {
        tuple(sample_names(roots)),
        tuple(sample_names(roots[::-1])),
        tuple(sample_names(roots, dataroot_share=[1, 3])),
        tuple(sample_names(roots, dataroot_share=[1, 2])),
    }

    assert len(names) == 4  # all differ


def one_lq_folder(values):
    return {"dataroot_lq": values["dataroot_lq"][:1]}


def gt_folder_without_a_list(values):
    return {"dataroot_gt": values["dataroot_gt"][0]}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        pytest.param(one_lq_folder, "dataroot_lq has 1, dataroot_spike has 2", id="one folder"),
        pytest.param(gt_folder_without_a_list, "dataroot_gt is one", id="no list"),
        pytest.param(
            lambda values: {"dataroot_share": [1.0]}, "dataroot_share has 1", id="one share"
        ),
        pytest.param(
            lambda values: {"dataroot_share": [1.0, 0.0]}, "dataroot_share", id="share of 0"
        ),
        pytest.param(
            lambda values: {"dataroot_share": [1.0, 1e-4]},
            r"gives \[24, 0\] samples",
            id="share of less than a sample",
        ),
    ],
)
def test_roots_that_do_not_match_are_refused(roots, change, said):
    values = joined(roots)

    with pytest.raises(OptionError, match=said):
        set_for_training(values | change(values))


def test_roots_of_different_scales_are_refused(roots, tmp_path):
    write_clips(tmp_path, "large", scale=2)

    with pytest.raises(DataError, match="scale 2 and 0 sharp instants in clip 1/large, scale 1"):
        set_for_training(joined((roots[0], tmp_path)))


def test_the_check_knows_every_root(roots, tmp_path, capsys):
    code = clip_files.doctor_of_data(tmp_path, train=joined(roots))

    assert code == 0
    said = capsys.readouterr().out
    assert "train 0: 2 clips, 12 frames of 16 x 24" in said
    assert "train 1: 3 clips, 12 frames of 32 x 40" in said


def test_a_cache_knows_every_root(roots, tmp_path):
    values = joined(roots)
    plain = set_for_training(values)

    in_cache = set_for_training(cached(values, tmp_path / "cache"))

    for index in range(len(plain)):
        assert same(plain[(0, index)], in_cache[(0, index)])


def test_pictures_kept_in_memory_are_those_of_every_root(roots):
    values = joined(roots)
    plain = set_for_training(values | {"cache_data": False})

    kept = set_for_training(values | {"cache_data": True})

    for index in range(len(plain)):
        assert same(plain[(0, index)], kept[(0, index)])


# ---- Several roots in a test ----


def section_for_testing(roots):
    """Return a section `datasets.test` for the training clips of these roots."""
    return joined(roots, "test") | folders_of(roots)


@pytest.fixture(scope="module")
def tested_clips(roots):
    """Give the five clips of a test on both roots."""
    return set_for_testing(section_for_testing(roots)).readers()


@pytest.fixture(scope="module")
def clips_of_second_root(roots):
    """Give the three clips of a test on the second root alone."""
    return set_for_testing(section_for_testing(roots[1:])).readers()


def test_several_roots_can_be_tested_on(tested_clips):
    assert len(tested_clips) == 5
    assert tested_clips[0].dataset.count_folders() == 5


def test_tested_clips_have_the_number_of_their_root_in_their_names(
    tested_clips, clips_of_second_root
):
    names = [clip.name for clip in tested_clips[2:]]

    assert names == [f"1/{clip.name}" for clip in clips_of_second_root]


def test_a_tested_clip_is_the_same_as_in_a_test_of_its_root_alone(
    tested_clips, clips_of_second_root
):
    for clip, alone in zip(tested_clips[2:], clips_of_second_root, strict=True):
        assert torch.equal(clip.frame(1)["spike"], alone.frame(1)["spike"])
        assert clip.digest() == alone.digest()


@pytest.fixture(scope="module")
def cached_clip(roots, tmp_path_factory):
    """Give the fourth clip of a test on both roots, read from a cache."""
    cache = tmp_path_factory.mktemp("cache")
    return set_for_testing(cached(section_for_testing(roots), cache)).readers()[3]


def test_a_tested_clip_has_the_same_frames_in_a_cache(tested_clips, cached_clip):
    assert torch.equal(cached_clip.frame(2)["spike"], tested_clips[3].frame(2)["spike"])


def test_a_tested_clip_has_another_digest_in_a_cache(tested_clips, cached_clip):
    assert cached_clip.digest() != tested_clips[3].digest()


def test_weights_say_what_several_roots_have_in_common(roots):
    known = resolved(joined(roots)).spike_data

    assert known == {
        "rate": "match",
        "light": "linear",
        "center": "gt",
        "planes": None,
        "gt_plane": None,
    }


def test_weights_say_of_equal_roots_what_they_say_of_one(roots):
    twice = resolved(joined((roots[0], roots[0])))
    once = resolved(section(roots[0], spike=TFP))

    assert twice.spike_data == once.spike_data


# ---- A clip with spikes of its own: the key `clips` of dataset.json ----

# A calibration in which a spike pixel covers 2 x 2 RGB pixels.
CALIBRATION = {
    "format": 1,
    "matrix": [[2, 0, 0.5], [0, 2, 0.5]],
    "spike_size": [8, 12],
    "rgb_size": [16, 24],
}


@pytest.fixture
def two_clips(tmp_path):
    """Give the root of clips a and b."""
    return write_clips(tmp_path, "a", "b")


def test_a_clip_may_have_a_rate_of_its_own(two_clips):
    before = build(two_clips, spike=TFP)
    samples_before = [before[(0, index)] for index in range(12)]
    write_info(two_clips, clips={"b": {"rate": 0.5, "planes": 24, "rig": {"any": 1}}})

    after = build(two_clips, spike=TFP)

    for index, sample in enumerate(samples_before):
        factor = 2 if sample["key"].startswith("b") else 1
        assert torch.equal(after[(0, index)]["spike"], factor * sample["spike"])


@pytest.mark.parametrize(("name", "rate"), [("a", 1.0), ("b", 0.5)])
def test_a_user_s_clip_may_have_a_rate_of_its_own(two_clips, name, rate):
    write_info(two_clips, clips={"b": {"rate": 0.5, "planes": 24, "rig": {"any": 1}}})
    spikes = two_clips / "GOPRO_Large_spike_seq/train"
    frames = two_clips / "GOPRO_Large/train"

    in_root = {clip.name: clip for clip in user_clips(frames, spikes, spike_options=TFP)}
    (alone,) = user_clips(frames / name / "blur", spikes / name / "spike", spike_options=TFP)

    assert in_root[name].clip.spikes.rate == rate
    assert alone.clip.spikes.rate == rate


@pytest.mark.parametrize(
    ("option", "of_a", "of_b"),
    [
        pytest.param(None, None, None, id="not asked for"),
        pytest.param("recorded", None, 0.5, id="that of dataset.json"),
        pytest.param("file", 0.5, 0.5, id="that of a file"),
    ],
)
def test_a_clip_may_have_a_calibration_of_its_own(two_clips, option, of_a, of_b):
    write_info(two_clips, clips={"b": {"calibration": CALIBRATION}})
    if option == "file":
        (two_clips / "b.json").write_text(json.dumps(CALIBRATION))
        option = str(two_clips / "b.json")
    spike = TFP | {"resize": "bilinear", "calibration": option}

    clips = build(two_clips, spike=spike).clips

    shifts = []  # along x, or None without a calibration
    for clip in clips:
        calibration = clip.spikes.calibration
        shifts.append(calibration.matrix[0][2] if calibration else None)
    assert shifts == [of_a, of_b]


def test_a_resumed_run_compares_the_calibrations_of_clips(two_clips):
    write_info(two_clips, clips={"b": {"calibration": CALIBRATION}})
    spike = TFP | {"resize": "bilinear", "calibration": "recorded"}

    names = build(two_clips, spike=spike).sample_names()

    assert any("calibration" in line for line in names)


def test_clips_with_rates_of_their_own_need_no_common_rate(two_clips):
    write_info(two_clips, rate=None, clips={"a": {"rate": 0.7}, "b": {"rate": 0.5}})
    values = section(two_clips, spike=TFP)

    assert resolved(values).spike_data["rate"] == "match"
    assert not check(values).warnings


def test_a_rate_of_a_clip_that_is_no_number_is_refused(two_clips):
    write_info(two_clips, clips={"b": {"rate": "fast"}})

    with pytest.raises(DataError, match=r"clip b: rate.* is 'fast'"):
        build(two_clips, spike=TFP)

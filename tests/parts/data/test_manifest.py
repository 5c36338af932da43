"""data/clips/manifest.py: which clips a data set has, in one root folder or in several.

The tests are about layouts, meta files (lists of clips), names of frames, and the messages about
data that do not fit. tests/helpers/clip_files.py writes the clips. Unless a test says otherwise,
there are two training clips of 6 frames of 16 x 24 pixels, with 24 spike planes of 8 x 12 pixels
per frame.

Words of this file:

    plane    one bit for each spike pixel: whether it fired at one instant
    root     a folder of clips; a section of options names a root for each kind of file
    kind     "lq": blurry frames, "gt": sharp frames, "spike": files of spikes
    scale    how many times larger a sharp frame is than the blurry frame
    section  the options of a data set as a dict, e.g. datasets.train. `data_section` makes it
    center   the spike plane at the instant of the sharp frame, e.g. 12 of the planes 0 to 23
    rate     spikes per plane of a pixel in full light
"""

import dataclasses
import json
import os
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from data.clips.clip_reader import user_clips
from data.clips.data_root import list_root
from data.clips.manifest import Source, digest
from data.loader import TrainLoader
from tests.helpers import clip_files
from tests.helpers.checked import not_none
from tests.helpers.clip_files import (
    PLANES,
    add_cache,
    build_clips,
    check_clips,
    data_section,
    equal_samples,
    resolve_section,
    set_for_testing,
    set_for_training,
    write_clip,
    write_clips,
    write_dat,
    write_info,
)
from tests.helpers.damage import examples
from utils.errors import DataError, OptionError

# Bytes of a spike plane: 8 x 12 pixels have one bit each, and 96 bits are 12 bytes.
PLANE_BYTES = 12


@pytest.fixture
def root(tmp_path):
    """Give the root of two clips whose frames are 000047 to 000052."""
    return write_clips(tmp_path, "clip0", "clip1", first=47)


def error_of_data(root: Path, **changes: Any) -> str:
    """Return the text of the error that a data set raises. changes: keys of its section."""
    with pytest.raises(DataError) as error:
        build_clips(root, **changes)
    return str(error.value)


def sample_of(dataset: Any, number: int, epoch: int = 0) -> dict[str, Any]:
    """Return a sample of a training set.

    A clip has a sample for each frame. E.g. samples 0 to 5 belong to the first clip, of 6 frames.
    """
    return dataset[(epoch, number)]


def clip_folder(root: Path, kind: str, clip: str = "clip0") -> Path:
    """Return the folder of a clip. kind: name of the folder, "blur", "sharp" or "spike"."""
    base = "GOPRO_Large_spike_seq" if kind == "spike" else "GOPRO_Large"
    return root / base / "train" / clip / kind


def of_all_kinds(root: Path, pattern: str, clip: str = "clip0") -> list[Path]:
    """Return the blurry frames, sharp frames and spike files of a clip that match `pattern`."""
    paths: list[Path] = []
    for kind in ("blur", "sharp", "spike"):
        paths += clip_folder(root, kind, clip).glob(pattern)
    return paths


def rename_frames(root: Path, template: str) -> None:
    """Rename all frames and spike files, e.g. with template "frame_{}": 000047 -> frame_47."""
    paths = [path for path in root.rglob("*") if path.suffix in (".png", ".dat")]
    for path in paths:
        stem = template.format(int(path.stem))
        path.rename(path.with_name(stem + path.suffix))


# ---- Layouts ----


@pytest.fixture
def regrouped_root(tmp_path):
    """Give a root with clip0 alone, in the layout "regrouped".

    published    train/clip0/blur, train/clip0/sharp
    regrouped    train_GT_blurred/clip0, train_GT/clip0
    """
    return write_clips(tmp_path / "regrouped", "clip0", first=47, regrouped=True)


# `root` has the clips clip0 and clip1, and `regrouped_root` has clip0 in the other layout.
def test_published_and_regrouped_folders_have_the_same_frames(root, regrouped_root):
    published = build_clips(root).clips[0]
    in_groups = build_clips(regrouped_root, regrouped=True).clips[0]

    # Both clips have 6 frames from number 47 on.
    expected = ("000047", "000048", "000049", "000050", "000051", "000052")
    assert published.stems == expected
    assert in_groups.stems == expected


def test_published_and_regrouped_folders_give_the_same_samples(root, regrouped_root):
    published = build_clips(root)
    in_groups = build_clips(regrouped_root, regrouped=True)

    # Sample 2 belongs to clip0, which both roots have.
    assert equal_samples(sample_of(published, 2), sample_of(in_groups, 2))


@pytest.fixture
def root_of_two_blurs(root) -> Path:
    """Give a root as in the GoPro data set: each clip has the folders blur and blur_gamma."""
    for clip in ("clip0", "clip1"):
        shutil.copytree(clip_folder(root, "blur", clip), clip_folder(root, "blur_gamma", clip))
    return root


def test_the_blurry_folder_is_blur_if_nothing_is_said(root_of_two_blurs):
    clip = build_clips(root_of_two_blurs).clips[0]

    assert "/blur/" in clip.lq[0]


def test_the_blurry_folder_can_be_chosen(root_of_two_blurs):
    clip = build_clips(root_of_two_blurs, lq_folder="blur_gamma").clips[0]

    assert "/blur_gamma/" in clip.lq[0]


def test_other_files_are_ignored(root):
    # These are files that a Mac (.DS_Store, ._*) and a user (notes.txt) leave behind.
    for kind in ("blur", "spike"):
        for name in (".DS_Store", "._000047.png", "notes.txt"):
            (clip_folder(root, kind) / name).write_bytes(b"x")
    (root / "GOPRO_Large/train/.cache").mkdir()

    clips = build_clips(root).clips

    assert len(clips) == 2
    assert len(clips[0].lq) == 6


class NestedClips(NamedTuple):
    """Clips in folders within folders, with files of a Mac beside them."""

    root: Path
    lq: Path  # the folder of the blurry frames
    regrouped: bool


@pytest.fixture(params=[False, True], ids=["published", "regrouped"])
def root_of_nested_clips(request, tmp_path):
    """Give three clips: two in the folder 00001, and one in the folder 00002."""
    regrouped = request.param
    write_clips(tmp_path, "00001/0001", "00001/0002", "00002/0001", regrouped=regrouped)
    lq = tmp_path / "GOPRO_Large" / ("train_GT_blurred" if regrouped else "train")
    (lq / "00001" / ".DS_Store").write_bytes(b"x")
    (lq / "00002" / ".cache").mkdir()
    return NestedClips(tmp_path, lq, regrouped)


def test_clips_in_nested_folders_have_both_names(root_of_nested_clips):
    dataset = build_clips(root_of_nested_clips.root, regrouped=root_of_nested_clips.regrouped)

    assert [clip.name for clip in dataset.clips] == ["00001/0001", "00001/0002", "00002/0001"]
    # Each clip has 6 samples. So the third clip has the samples 12 to 17, and sample 13 begins with
    # the second frame of this clip.
    assert sample_of(dataset, 13)["key"] == "00002/0001/000001"


def test_a_missing_folder_of_nested_clips_is_named_with_both_names(root_of_nested_clips):
    shutil.rmtree(root_of_nested_clips.root / "GOPRO_Large_spike_seq/train/00001/0002")

    message = error_of_data(root_of_nested_clips.root, regrouped=root_of_nested_clips.regrouped)

    assert "1 problem " in message  # with a blank, because "1 problems" would be wrong
    assert "00001/0002 | spike has no folder" in message


def test_a_folder_of_files_is_a_clip(root_of_nested_clips):
    (root_of_nested_clips.lq / "00002" / "notes.txt").write_bytes(b"x")

    message = error_of_data(root_of_nested_clips.root, regrouped=root_of_nested_clips.regrouped)

    # A folder with any file in it is taken for a clip, not for a folder of clips. So notes.txt
    # makes 00002 a clip. But notes.txt is no frame, so the clip has no frames.
    assert "00002      | lq holds no .png file" in message


@pytest.mark.parametrize(
    ("partition", "names"),
    [
        pytest.param(None, ["000", "001", "241"], id="none"),
        pytest.param("REDS4", ["001", "241"], id="REDS4"),
        pytest.param("official", ["000", "001"], id="official"),
    ],
)
def test_a_partition_keeps_its_clips_out_of_training(tmp_path, partition, names):
    # The partition "REDS4" keeps the clips 000, 011, 015 and 020 for testing, so 000 is not in
    # `names`. The partition "official" keeps the clips 240 to 269, so 241 is not in `names`.
    for name in ("000", "001", "241"):
        write_clip(tmp_path, name, frames=3)
    without_spikes: dict[str, Any] = {
        "dataset_type": "VideoRecurrentTrainDataset",
        "dataroot_spike": None,
        "spike": None,
    }

    dataset = build_clips(tmp_path, val_partition=partition, **without_spikes)

    assert [clip.name for clip in dataset.clips] == names


def test_frames_are_in_the_order_of_their_numbers(tmp_path):
    write_clips(tmp_path, "clip2", frames=11, first=1)
    rename_frames(tmp_path, "frame_{}")

    (clip,) = build_clips(tmp_path).clips

    assert clip.stems == tuple(f"frame_{number}" for number in range(1, 12))


def test_clips_are_in_the_order_of_their_numbers(tmp_path):
    write_clips(tmp_path, "clip10", "clip2")

    assert [clip.name for clip in build_clips(tmp_path).clips] == ["clip2", "clip10"]


def test_the_digest_of_a_listing_stays(tmp_path):
    # Clip caches store the digest. If the digest of the same listing changed, all existing caches
    # would be refused.
    frame = tmp_path / "clip_a/blur/000000.png"
    frame.parent.mkdir(parents=True)
    frame.write_bytes(b"abc")
    # The digest depends on name, size and time of change of the file. So the time is set.
    os.utime(frame, ns=(10**18, 10**18))

    listing = list_root(str(tmp_path), "blur", (".png",))

    assert digest("lq", listing) == "1d0985e318635367"


def test_a_gap_is_looked_for_in_the_order_of_numbers(tmp_path):
    write_clips(tmp_path, "clip2", frames=11, first=1)
    rename_frames(tmp_path, "frame_{}")
    for path in of_all_kinds(tmp_path, "frame_10.*", "clip2"):
        path.unlink()

    # In alphabetical order, frame_11 would follow frame_1 and not frame_9.
    assert "clip2 | frame numbers jump at frame_9-frame_11" in error_of_data(tmp_path)


def test_a_root_without_clips_is_refused(root):
    (root / "empty").mkdir()

    assert "holds no clip" in error_of_data(root, dataroot_gt=str(root / "empty"))


def test_the_error_of_a_root_with_one_spike_file_per_clip_says_what_to_do(root):
    (root / "empty").mkdir()
    for name in ("200.dat", "203.dat"):
        (root / "empty" / name).write_bytes(bytes(PLANE_BYTES * PLANES))
    # The size of a plane is given, because this folder has no dataset.json. Any center would do.
    spike = {"type": "dat", "h": 8, "w": 12, "center": 1}

    message = error_of_data(root, dataroot_spike=str(root / "empty"), spike=spike)

    assert "holds no clip, but 2 files (200.dat, 203.dat)" in message
    assert "give spike.exposure" in message


# ---- Meta files: lists of clips ----


def write_meta(root: Path, text: str) -> dict[str, Any]:
    """Write a meta file, and return the key of the section that names it.

    E.g. the line "clip0 6 0 47" lists 6 frames of clip0, from frame 47 on. The third number is the
    shape of a frame. It is 0, because the shape is not used.
    """
    path = root / "meta.txt"
    path.write_text(text + "\n")
    return {"meta_info_file": str(path)}


def test_a_meta_file_that_lists_more_frames_than_there_are_is_an_error(root):
    message = error_of_data(root, **write_meta(root, "clip0 9 0 000047"))

    # Frames 47 to 55 are listed, but the clip has only frames 47 to 52.
    assert "clip0 | lq lacks 3 of 9 frames: 000053.png, 000054.png, 000055.png" in message


def test_a_meta_file_that_lists_a_clip_that_is_not_there_is_an_error(root):
    message = error_of_data(root, **write_meta(root, "clip5 1 0 000000"))

    assert "clip5 | lq has no folder" in message
    assert f"remove the clips from the meta list {root}/meta.txt" in message


def test_a_meta_file_that_is_not_there_is_an_error(root):
    message = error_of_data(root, meta_info_file=str(root / "none.txt"))

    assert "cannot read the meta file" in message


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

    (clip,) = build_clips(tmp_path, **write_meta(tmp_path, line)).clips

    assert clip.name == "clip0"
    assert clip.stems == tuple(template.format(number) for number in range(48, 53))


@pytest.mark.parametrize("template", ["{:06d}", "{}", "{:04d}", "frame_{}"])
@pytest.mark.parametrize("line", FORMS_OF_LINES)
def test_a_listed_frame_that_is_missing_gets_a_name_in_the_form_of_the_present_frames(
    tmp_path, template, line
):
    write_clips(tmp_path, "clip0", "clip1", first=48)
    rename_frames(tmp_path, template)
    # The clip has 6 frames, 48 to 53. The changed line lists 7 frames, so frame 54 is missing.
    one_more_frame = line.replace(" 5 ", " 7 ")

    message = error_of_data(tmp_path, **write_meta(tmp_path, one_more_frame))

    assert f"clip0 | lq lacks 1 of 7 frames: {template.format(54)}.png" in message


@pytest.mark.parametrize("line", FORMS_OF_LINES)
def test_names_of_frames_must_follow_a_given_template(tmp_path, line):
    write_clips(tmp_path, "clip0", "clip1", first=48)
    rename_frames(tmp_path, "{}")

    message = error_of_data(tmp_path, filename_tmpl="06d", **write_meta(tmp_path, line))

    assert "do not follow filename_tmpl '06d': 48, 49" in message


def test_a_meta_file_of_basicsr_lists_frames_from_0_on(tmp_path):
    write_clips(tmp_path, "clip0")

    (clip,) = build_clips(tmp_path, **write_meta(tmp_path, "clip0 3 (16,24,3)")).clips

    assert clip.stems == ("000000", "000001", "000002")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        # 47 may be the first frame, or a number in place of the shape.
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
def test_lines_of_a_meta_file_that_say_nothing_certain_are_refused(tmp_path, text, message):
    write_clips(tmp_path, "clip0")

    assert message in error_of_data(tmp_path, **write_meta(tmp_path, text))


@pytest.mark.parametrize(
    "line",
    [
        # Python refuses to convert a number of more than 4300 digits, with an error of its own.
        pytest.param("clip0 " + "9" * 5000 + " (16,24,3)", id="number of frames of 5000 digits"),
        pytest.param("clip0 6 (16,24,3) " + "9" * 5000, id="first frame of 5000 digits"),
        pytest.param("clip0 99999999 (16,24,3)", id="far more frames than allowed"),
        # The limit is a million frames.
        pytest.param("clip0 1000001 0 0", id="one frame more than allowed"),
        pytest.param("clip0 0 (16,24,3)", id="no frames"),
    ],
)
def test_numbers_of_a_list_that_no_clip_has_are_refused(root, line):
    message = error_of_data(root, **write_meta(root, line))

    assert "line 1 is " in message
    # The message does not repeat a number of 5000 digits.
    assert len(message) < 1000


# Hypothesis makes meta files of two forms: any bytes, and lists of these words. The words are parts
# of good lines and of bad lines. Any bytes alone would hardly ever form a line with a clip.
WORDS = ["clip0", "a/b", "..", "0", "6", "9" * 30, "(1,1,3)", "(", ")", "\n", "\x00"]
LISTS_OF_WORDS = st.lists(st.sampled_from(WORDS), max_size=12)
TEXTS = LISTS_OF_WORDS.map(lambda words: " ".join(words).encode())


@examples(100)
@given(content=st.binary(max_size=60) | TEXTS)
def test_whatever_a_list_of_clips_holds_it_is_read_or_refused(tmp_path_factory, content):
    path = tmp_path_factory.mktemp("any") / "meta.txt"
    path.write_bytes(content)

    try:
        listed = Source("lq", meta_info_file=str(path)).meta_entries
    except DataError as error:
        assert error.where.startswith(str(path))
    else:
        for frame_count, _ in not_none(listed).values():
            assert 1 <= frame_count <= 1_000_000


# ---- Faults of the data ----


class Fault(NamedTuple):
    """A fault of a data set, and the texts that the error about the fault must contain."""

    make: Callable[[Path], object]  # damages the data set below this root
    texts: list[str]
    options: dict[str, Any] | None = None  # keys of the section to change


def copy_file(path: Path, name: str) -> None:
    """Copy a file to another name in its folder."""
    shutil.copy(path, path.with_name(name))


def write_first_frame(root: Path, content: bytes) -> None:
    """Replace the first blurry frame of clip0 by a file with this content."""
    (clip_folder(root, "blur") / "000047.png").write_bytes(content)


# Each of the next functions damages the data set below `root` in the way that its name says.


def nothing(root):
    """Damage nothing, because only the options of the fault do not fit the data."""


def two_files_of_a_number(root):
    copy_file(clip_folder(root, "blur") / "000050.png", "50.png")


def name_with_a_line_break(root):
    (root / "GOPRO_Large/train/clip\n9").mkdir()


def link_without_target(root):
    (clip_folder(root, "blur") / "000053.png").symlink_to(root / "nowhere.png")


def another_scale(root):
    write_clip(root, "clip2", scale=2)


def no_spikes_of_a_clip(root):
    shutil.rmtree(clip_folder(root, "spike").parent)


def spikes_without_a_frame(root):
    copy_file(clip_folder(root, "spike") / "000052.dat", "000053.dat")


def png_of_16_x_20_pixels():
    """Return a PNG that is smaller than the frames, which have 16 x 24 pixels."""
    _, encoded = cv2.imencode(".png", np.zeros((16, 20, 3), np.uint8))
    return encoded.tobytes()


def frame_of_another_size(root):
    write_first_frame(root, png_of_16_x_20_pixels())


def frame_of_size_zero(root):
    content = bytearray(png_of_16_x_20_pixels())
    # Bytes 16 to 23 of a PNG are its width and height, 4 bytes each.
    content[16:24] = bytes(8)
    write_first_frame(root, bytes(content))


def gap(root):
    """Remove frame 49, in the middle of frames 47 to 52, and its spikes."""
    for path in of_all_kinds(root, "000049.*"):
        path.unlink()


def no_blurry_frames(root):
    shutil.rmtree(clip_folder(root, "blur"))


def forty_empty_clips(root):
    for number in range(40):
        (root / f"GOPRO_Large/train/empty{number:02d}").mkdir()


def no_sharp_plane(root):
    """Write a dataset.json that does not say which plane belongs to the sharp frame."""
    write_info(root, gt_plane=None)


def a_byte_too_many(root):
    path = clip_folder(root, "spike") / "000049.dat"
    path.write_bytes(path.read_bytes() + b"\0")


# Options that do not fit a frame of 24 planes, which are planes 0 to 23.
RAW_OF_27_PLANES = {"type": "dat", "representation": {"type": "raw", "window": 27}}
PLANE_24 = {"type": "dat", "center": 24}

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
        another_scale,
        ["clip2 | gt is 2 times as large as lq, in most clips it is 1 times as large"],
    ),
    "no spikes of a clip": Fault(no_spikes_of_a_clip, ["clip0 | spike has no folder"]),
    "spikes without frame": Fault(
        spikes_without_a_frame, ["clip0 | lq lacks 1 of 7 frames: 000053.png"]
    ),
    "few planes": Fault(
        nothing,
        [
            "24 planes are too few for spike.representation raw, which needs 27 or more",
            "do        check the length of the exposure (seconds x planes per second)",
            "use smaller windows, or another spike.center",
        ],
        {"spike": RAW_OF_27_PLANES},
    ),
    "no sharp plane": Fault(
        no_sharp_plane,
        [
            "clip0 | the plane of the sharp frame is not known for clip clip0",
            'do        set spike.center to "file" or to the number of the plane',
        ],
        {"spike": {"type": "dat"}},
    ),
    "sharp plane outside": Fault(
        nothing,
        [
            "clip0 | the plane of the sharp frame 24 is outside of 0 to 23 for clip clip0",
            'do        set spike.center to "file" or to the number of the plane',
        ],
        {"spike": PLANE_24},
    ),
    # 24 planes of 12 bytes, and one byte more.
    "a byte too many": Fault(
        a_byte_too_many,
        [
            "clip0 | spike file of 289 bytes holds 24 planes of 8 x 12 and 1 byte more",
            "do        copy the file again, or correct the spike height and width",
        ],
    ),
    "no multiple": Fault(
        frame_of_another_size,
        [
            # The heights fit. The widths do not: 24 is no multiple of 20, and 20 is no multiple of
            # 12.
            "gt is 16 x 24, lq 16 x 20: no whole multiple",
            "lq is 16 x 20, spikes 8 x 12: no whole multiple",
            "correct spike.h and spike.w, or give spike.calibration",
        ],
    ),
    "gap": Fault(gap, ["clip0 | frame numbers jump at 000048-000050"]),
    "template": Fault(nothing, ["do not follow filename_tmpl '08d'"], {"filename_tmpl": "08d"}),
    "size of zero": Fault(frame_of_size_zero, ["clip0 | cannot read image"]),
    "no blurry frames": Fault(no_blurry_frames, ["clip0 | lq holds no .png file"]),
    # Each of 40 clips lacks blurry frames, sharp frames and spikes, which are 3 x 40 = 120
    # problems. The message lists the first 30 of them.
    "many": Fault(forty_empty_clips, ["120 problems", "... and 90 more"]),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_of_the_data_is_named_before_training(root, name):
    fault = FAULTS[name]
    build_clips(root)  # without the fault, nothing is raised
    fault.make(root)

    message = error_of_data(root, **(fault.options or {}))

    for text in fault.texts:
        assert text in message


# With the representation "voxel" of 2 bins, a frame needs only 2 planes. So in the tests below, a
# frame always has enough planes for the representation.
# `center` is 1, so the sharp frame is at plane 1.
VOXEL = {"type": "dat", "center": 1, "representation": {"type": "voxel", "num_bins": 2}}
# Names of two spike files of clip0, which has frames 000047 to 000052.
MIDDLE = "000049"
LAST = "000052"


def write_planes(root: Path, stem: str, planes: int) -> None:
    """Replace a spike file of clip0 by one with this number of planes.

    stem: the name of the file without ".dat", e.g. MIDDLE or LAST.
    """
    path = clip_folder(root, "spike") / f"{stem}.dat"
    any_byte = b"\1"
    path.write_bytes(any_byte * (PLANE_BYTES * planes))


# The spike files of `root` have PLANES (24) planes. The last spike file of a clip may lack the
# planes that come from interpolated frames. Spikes of GoPro are simulated. Between two frames of
# the video, 7 frames are interpolated, so each frame of the video gives 8 planes. No frame follows
# the last frame of the video, so nothing is interpolated after the last frame. So the last spike
# file may lack 1 to 7 planes. In other data sets, the recipe in dataset.json says how many planes a
# frame gives ("interpolate").
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
        # write_info writes dataset.json.
        write_info(root, recipe={"interpolate": interpolate})
    write_planes(root, LAST, PLANES - missing)

    clip = build_clips(root, spike=VOXEL).clips[0]

    *first_five, last = clip.planes
    assert first_five == [PLANES] * 5
    assert last == PLANES - missing


# A file in the middle of a clip must have exactly PLANES (24) planes. The last file may lack at
# most `interpolate` - 1 planes. For GoPro `interpolate` is 8, so 7 planes may be missing. If
# `interpolate` is 1, nothing is interpolated, so no plane may be missing.
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

    message = error_of_data(root, spike=VOXEL)

    found = f"has {planes} planes ({planes * PLANE_BYTES} bytes)"
    expected = f"expected {PLANES} ({PLANES * PLANE_BYTES} bytes)"
    assert f"{found}, {expected}" in message


@pytest.fixture
def clips_of_unequal_lengths(tmp_path):
    """Give a data set of three clips of GoPro.

    The number in the middle of the name says how many frames of a video were averaged to a blurry
    frame: 7, 11 or 13. Each of these frames has 8 spike planes, e.g. 7 x 8 = 56.
    """
    write_clip(tmp_path, "GOPR0001_07_00", planes=56)
    write_clip(tmp_path, "GOPR0002_11_00", planes=88)
    write_clip(tmp_path, "GOPR0003_13_00", planes=104)
    raw = {"type": "raw", "window": 21}
    return build_clips(tmp_path, spike={"type": "dat", "h": 8, "w": 12, "representation": raw})


def test_clips_may_differ_in_their_planes(clips_of_unequal_lengths):
    assert [clip.planes[0] for clip in clips_of_unequal_lengths.clips] == [56, 88, 104]


def test_clips_of_gopro_have_their_sharp_frame_near_the_middle(clips_of_unequal_lengths):
    centers = [clip.exposures[0].center for clip in clips_of_unequal_lengths.clips]

    # The middle one of 7 frames is frame 3, because the first one is frame 0. Three frames of 8
    # planes come before it, so its first plane is 3 x 8 = 24. The middle ones of 11 and of 13
    # frames are frames 5 and 6, with the first planes 40 and 48.
    assert centers == [24, 40, 48]


def test_clips_that_differ_in_their_planes_give_samples_of_one_shape(clips_of_unequal_lengths):
    for number in range(len(clips_of_unequal_lengths)):
        spikes = sample_of(clips_of_unequal_lengths, number)["spike"]
        # A sample has 3 frames, 21 planes in the window, and crops of 8 x 8 (see `data_section`).
        assert spikes.shape == (3, 21, 8, 8)


# ---- Options that are refused ----


# The template says how the number of a frame is written, e.g. "06d" -> 000047. The templates below
# write something else, e.g. for the number 47:
#
#     x         2f, which is hexadecimal
#     {} and s  Python cannot format a whole number in this way
#     1000d     47 after 998 blanks
#     08.3f     0047.000
#     " d"      47 after a blank
#     -8d       47 after six blanks
@pytest.mark.parametrize("template", ["x", "{}", "1000d", "08.3f", " d", "s", "-8d"])
def test_a_template_that_writes_no_whole_number_is_refused(root, template):
    with pytest.raises(OptionError, match="filename_tmpl"):
        build_clips(root, filename_tmpl=template)


# The largest values that the options allow are 10,000 frames, a crop of 2**16 pixels, an interval
# of 10,000 frames, and a gamma from 0.1 to 10 (data/clip_options.py and
# data/cameras/spike_source.py). "gamma without end" is 1e300, far above 10.
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
        build_clips(root, **{key: value})


# ---- Several roots ----

# Options `spike` with one channel: the mean of the planes around the sharp frame.
TFP = {
    "type": "dat",
    "resize": "nearest",
    "center": "gt",
    "representation": {"type": "tfp", "offsets": [0]},
}
# All random turns of a sample: flips, turns by 90 degrees, and reversed time.
ALL_TURNS: dict[str, Any] = {"use_hflip": True, "use_rot": True, "random_reverse": True}


@pytest.fixture(scope="module")
def two_roots(tmp_path_factory) -> tuple[Path, Path]:
    """Give two roots that differ in everything in which several roots may differ:

                                   first root     second root
    clips                          a, b           a, c, d
    frames of a clip               6              4
    size of a frame                16 x 24        32 x 40
    spike planes                   8 x 12         8 x 10
    RGB pixels per spike pixel     2              4
    planes of a frame              24             40
    rate (spikes in full light)    1.0            0.5
    """
    one = write_clips(tmp_path_factory.mktemp("one"), "a", "b")
    two = tmp_path_factory.mktemp("two")
    for seed, clip in enumerate(("a", "c", "d")):
        write_clip(two, clip, seed=5 + seed, frames=4, h=16, w=20)
        # `write_clip` writes frames of 32 x 40 pixels, and spike planes of half this size, 16 x 20.
        # Replace these planes by planes of 8 x 10, a quarter of the frame. In the new planes a
        # pixel fires with a probability of 0.3.
        for frame in range(4):
            random_values = np.random.default_rng([seed, frame]).random((40, 8, 10))
            path = clip_folder(two, "spike", clip) / f"{frame:06d}.dat"
            write_dat(path, (random_values < 0.3).astype(np.uint8))
    write_info(two, h=8, w=10, planes=40, gt_plane=20, rate=0.5, light="display")
    return one, two


def folders_of(roots: Sequence[Path], split: str = "train") -> dict[str, list[str]]:
    """Return the keys `dataroot_...` with a list of the folders of all roots."""
    sections = [data_section(root, split) for root in roots]
    keys = [key for key in sections[0] if key.startswith("dataroot_")]
    folders = {}
    for key in keys:
        folders[key] = [section_of_root[key] for section_of_root in sections]
    return folders


def section_of_roots(roots: Sequence[Path], split: str = "train", **changes: Any) -> dict[str, Any]:
    """Return a section for several roots. changes: keys to add or replace."""
    values = data_section(roots[0], split) | folders_of(roots, split)
    return values | {"spike": TFP} | changes


@pytest.fixture(scope="module")
def joined_set(two_roots):
    """Give the training set of both roots."""
    return set_for_training(section_of_roots(two_roots, **ALL_TURNS), seed=3)


def test_with_several_roots_the_name_of_a_clip_has_the_number_of_its_root(joined_set):
    assert [clip.name for clip in joined_set.clips] == ["0/a", "0/b", "1/a", "1/c", "1/d"]


def test_several_roots_have_the_samples_of_each(joined_set):
    # There is a sample for each frame: two clips have 6 frames, and three clips have 4.
    assert len(joined_set) == 2 * 6 + 3 * 4


def test_with_several_roots_a_sample_stays_as_in_its_own_root(two_roots, joined_set):
    sets_of_one_root = [build_clips(root, seed=3, spike=TFP, **ALL_TURNS) for root in two_roots]

    epoch = 1  # any epoch would do
    # An epoch has the samples 0 ... len(joined_set) - 1. Larger numbers are allowed, too. Such a
    # sample is a new draw of a frame of the epoch.
    for number in range(2 * len(joined_set)):
        # A draw holds the random choices for a sample: clip, frames, crop and turns.
        draw = joined_set.draw((epoch, number))
        # The name of a clip is e.g. "1/c".
        root_number, name = draw.clip.name.split("/")
        set_of_root = sets_of_one_root[int(root_number)]
        # Make the same choices in the set of this root alone.
        clips = {clip.name: clip for clip in set_of_root.clips}
        draw_of_root = dataclasses.replace(draw, clip=clips[name])

        assert equal_samples(joined_set.read(draw), set_of_root.read(draw_of_root))
        assert sample_of(joined_set, number, epoch)["key"].startswith(f"{root_number}/{name}/")


@pytest.mark.parametrize(
    ("clip_name", "rate", "pixels_of_spike", "planes"),
    [
        pytest.param("0/a", 1.0, 2, 24, id="clip of the first root"),
        pytest.param("0/b", 1.0, 2, 24, id="another clip of the first root"),
        pytest.param("1/a", 0.5, 4, 40, id="clip of the second root"),
        pytest.param("1/c", 0.5, 4, 40, id="another clip of the second root"),
        pytest.param("1/d", 0.5, 4, 40, id="last clip of the second root"),
    ],
)
def test_each_root_keeps_its_own_camera(joined_set, clip_name, rate, pixels_of_spike, planes):
    (clip,) = [clip for clip in joined_set.clips if clip.name == clip_name]

    assert not_none(clip.spikes).rate == rate
    # `step` is the number of RGB pixels that a spike pixel covers along an axis.
    assert clip.grid.step == pixels_of_spike
    assert clip.planes[0] == planes


def test_batches_of_several_roots_have_one_shape(two_roots):
    # `resolve_section` adds the defaults to a section.
    values = resolve_section(
        section_of_roots(two_roots, dataloader_batch_size=4, dataloader_num_workers=0)
    )
    loader = TrainLoader(set_for_training(values), values, accumulation_steps=1, seed=0)

    first_epoch = loader.start(epoch=0, batch=0)
    # A step has one batch, because accumulation_steps is 1.
    shapes = {tuple(batch["spike"].shape) for (batch,) in first_epoch}

    # A batch has 4 samples of 3 frames with 1 channel, in crops of 8 x 8.
    assert shapes == {(4, 3, 1, 8, 8)}


# Values of the option `dataroot_share`, and the number of samples of each root in an epoch. An
# epoch has as many samples as there are frames: 12 of the first root and 12 of the second root.
SHARES = [
    # Each root gives as many samples as it has frames.
    pytest.param(None, [12, 12], id="not given"),
    # The first root gives a quarter of 24 samples, and the second root gives three quarters.
    pytest.param([1, 3], [6, 18], id="1 to 3"),
    # 0.9 x 24 = 21.6 samples become 22, and 0.1 x 24 = 2.4 samples become 2.
    pytest.param([0.9, 0.1], [22, 2], id="0.9 to 0.1"),
]
EPOCHS = 6


class Frame(NamedTuple):
    """A frame with which a sample may begin."""

    clip: str  # e.g. "1/c"
    stem: str  # name of the frame, e.g. "000002"

    @property
    def root_number(self) -> int:
        """The number of the root: the digit before the slash in the name of the clip."""
        return int(self.clip[0])


def frames_of(dataset: Any) -> list[Frame]:
    """Return all frames of a data set, in the order of the clips."""
    frames = []
    for clip in dataset.clips:
        for stem in clip.stems:
            frames.append(Frame(clip.name, stem))
    return frames


def first_frames_of_epochs(dataset: Any) -> list[list[Frame]]:
    """Return for each of six epochs the frames with which its samples begin."""
    frames = frames_of(dataset)
    epochs = []
    for epoch in range(EPOCHS):
        # A serial number is an index into all frames.
        serials = [dataset.numbers.serial_number(epoch, number) for number in range(len(dataset))]
        epochs.append([frames[serial] for serial in serials])
    return epochs


@pytest.mark.parametrize(("share", "counts"), SHARES)
def test_shares_say_how_many_samples_each_root_gives(two_roots, share, counts):
    dataset = set_for_training(section_of_roots(two_roots, dataroot_share=share))

    for first_frames in first_frames_of_epochs(dataset):
        found = Counter(frame.root_number for frame in first_frames)
        assert [found[0], found[1]] == counts


@pytest.mark.parametrize(("share", "counts"), SHARES)
def test_all_frames_of_a_root_come_equally_often(two_roots, share, counts):
    dataset = set_for_training(section_of_roots(two_roots, dataroot_share=share))

    times_used: Counter[Frame] = Counter()
    for first_frames in first_frames_of_epochs(dataset):
        times_used.update(first_frames)

    for root_number in (0, 1):
        times = []
        for frame in frames_of(dataset):
            if frame.root_number == root_number:
                times.append(times_used[frame])
        # If the last epoch ends before all frames of the root were used equally often, some frames
        # were used once more than others.
        assert max(times) - min(times) <= 1
        assert sum(times) == EPOCHS * counts[root_number]


@pytest.mark.parametrize(("share", "counts"), SHARES)
def test_shares_give_the_same_samples_each_time(two_roots, share, counts):
    first = set_for_training(section_of_roots(two_roots, dataroot_share=share))
    second = set_for_training(section_of_roots(two_roots, dataroot_share=share))

    # Compare one sample. Any sample of any epoch would do.
    assert equal_samples(sample_of(first, 7, epoch=2), sample_of(second, 7, epoch=2))


def sample_names(roots: Sequence[Path], **changes: Any) -> Any:
    """Return the texts by which a resumed run knows whether it has the same samples."""
    return set_for_training(section_of_roots(roots, **changes)).sample_names()


def test_a_resumed_run_sees_the_same_roots_with_the_same_shares(two_roots):
    assert sample_names(two_roots, dataroot_share=[1, 3]) == sample_names(
        two_roots, dataroot_share=[1, 3]
    )


def test_a_resumed_run_sees_other_roots_or_shares(two_roots):
    first_root, second_root = two_roots

    names = {
        tuple(sample_names(two_roots)),
        tuple(sample_names([second_root, first_root])),
        tuple(sample_names(two_roots, dataroot_share=[1, 3])),
        tuple(sample_names(two_roots, dataroot_share=[1, 2])),
    }

    assert len(names) == 4  # all differ


def test_a_list_that_lacks_the_folder_of_a_root_is_refused(two_roots):
    values = section_of_roots(two_roots)
    values["dataroot_lq"] = values["dataroot_lq"][:1]

    with pytest.raises(OptionError, match="dataroot_lq has 1, dataroot_spike has 2"):
        set_for_training(values)


def test_a_single_folder_beside_lists_of_folders_is_refused(two_roots):
    values = section_of_roots(two_roots)
    values["dataroot_gt"] = values["dataroot_gt"][0]

    with pytest.raises(OptionError, match="dataroot_gt is a single folder"):
        set_for_training(values)


@pytest.mark.parametrize(
    ("shares", "message"),
    [
        pytest.param([1.0], "dataroot_share has 1", id="one share for two roots"),
        pytest.param([1.0, 0.0], "dataroot_share", id="share of 0"),
        # 0.0001 of 24 samples is 0.0024 samples, which is rounded to 0. A root without samples is
        # refused.
        pytest.param([1.0, 1e-4], r"gives \[24, 0\] samples", id="share of less than a sample"),
    ],
)
def test_shares_that_do_not_match_the_roots_are_refused(two_roots, shares, message):
    with pytest.raises(OptionError, match=message):
        set_for_training(section_of_roots(two_roots, dataroot_share=shares))


def test_roots_of_different_scales_are_refused(two_roots, tmp_path):
    write_clips(tmp_path, "large", scale=2)

    with pytest.raises(DataError, match="scale 2 and 0 sharp instants in clip 1/large, scale 1"):
        set_for_training(section_of_roots([two_roots[0], tmp_path]))


def test_the_check_knows_every_root(two_roots, tmp_path, capsys):
    code = clip_files.doctor_of_data(tmp_path, train=section_of_roots(two_roots))

    assert code == 0  # no problem was found
    output = capsys.readouterr().out
    assert "train 0: 2 clips, 12 frames of 16 x 24" in output
    assert "train 1: 3 clips, 12 frames of 32 x 40" in output


def test_the_check_refuses_crops_that_a_training_refuses(two_roots, tmp_path, capsys):
    # The clips of the first root have frames of 16 x 24, so crops of 20 do not fit.
    values = section_of_roots(two_roots[:1], gt_size=20)

    code = clip_files.doctor_of_data(tmp_path, train=values)
    of_doctor = capsys.readouterr()
    with pytest.raises(DataError, match="crops of 20 do not fit into clip a") as refused:
        set_for_training(values)

    assert code == 3
    assert "train: 2 clips" in of_doctor.out
    assert str(refused.value) in of_doctor.err


def test_the_check_refuses_a_gt_size_that_a_training_refuses(two_roots, tmp_path, capsys):
    # A spike pixel is 2 RGB pixels wide, so the border of a crop of 15 pixels would cut one.
    values = section_of_roots(two_roots[:1], gt_size=15)

    code = clip_files.doctor_of_data(tmp_path, train=values)

    assert code == 2
    assert "datasets.train.gt_size is 15" in capsys.readouterr().err


def test_a_wrong_gt_size_hides_no_problem_of_the_other_split(two_roots, tmp_path, capsys):
    train = section_of_roots(two_roots[:1], gt_size=15)
    # `tmp_path` lacks the folders of clips for testing.
    test = section_of_roots([tmp_path], "test")

    code = clip_files.doctor_of_data(tmp_path, train=train, test=test)

    assert code == 3
    message = capsys.readouterr().err
    assert "no such folder of spikes" in message
    assert "gt_size is 15" not in message


def test_a_training_set_for_testing_is_refused_by_the_check(two_roots, tmp_path, capsys):
    # The section is a section for training, but it stands in datasets.test.
    clip_files.doctor_of_data(tmp_path, test=section_of_roots(two_roots))

    assert "a dataset for testing: " in capsys.readouterr().err


def test_a_training_type_in_datasets_test_is_named_before_missing_keys(two_roots, tmp_path, capsys):
    # Only a training set needs num_frame. In datasets.test the fault is the type, so the message
    # must name the type and not the missing key.
    values = section_of_roots(two_roots)
    del values["num_frame"]

    clip_files.doctor_of_data(tmp_path, test=values)

    message = capsys.readouterr().err
    assert "datasets.test.dataset_type is TrainDatasetRGBSpike" in message
    assert "num_frame" not in message


def test_a_cache_knows_every_root(two_roots, tmp_path):
    values = section_of_roots(two_roots)
    plain = set_for_training(values)

    # `add_cache` makes a cache, and returns the section that reads it.
    in_cache = set_for_training(add_cache(values, tmp_path / "cache"))

    for number in range(len(plain)):
        assert equal_samples(sample_of(plain, number), sample_of(in_cache, number))


def test_pictures_of_every_root_are_kept_in_memory(two_roots):
    values = section_of_roots(two_roots)
    plain = set_for_training(values | {"cache_data": False})

    kept = set_for_training(values | {"cache_data": True})

    for number in range(len(plain)):
        assert equal_samples(sample_of(plain, number), sample_of(kept, number))


# ---- Several roots in a test ----


def section_for_testing(roots: Sequence[Path]) -> dict[str, Any]:
    """Return a section `datasets.test` for the training clips of these roots."""
    # `folders_of` replaces the folders of the split "test" by the folders of the split "train".
    return section_of_roots(roots, "test") | folders_of(roots, "train")


@pytest.fixture(scope="module")
def tested_clips(two_roots):
    """Give the five clips of a test on both roots: two of the first, three of the second."""
    return set_for_testing(section_for_testing(two_roots)).readers()


@pytest.fixture(scope="module")
def clips_of_second_root(two_roots):
    """Give the three clips of a test on only the second root."""
    _, second_root = two_roots
    return set_for_testing(section_for_testing([second_root])).readers()


def test_several_roots_can_be_tested_on(tested_clips):
    assert len(tested_clips) == 5
    dataset = tested_clips[0].dataset  # all clips have the same data set
    assert dataset.count_folders() == 5


def test_the_name_of_a_tested_clip_has_the_number_of_its_root(tested_clips, clips_of_second_root):
    # The first two clips are of the first root.
    names = [clip.name for clip in tested_clips[2:]]

    assert names == [f"1/{clip.name}" for clip in clips_of_second_root]


def test_a_tested_clip_is_the_same_as_in_a_test_of_its_root_alone(
    tested_clips, clips_of_second_root
):
    for clip, alone in zip(tested_clips[2:], clips_of_second_root, strict=True):
        assert torch.equal(clip.frame(1)["spike"], alone.frame(1)["spike"])
        assert clip.digest() == alone.digest()


@pytest.fixture(scope="module")
def cached_clip(two_roots, tmp_path_factory):
    """Give the fourth clip of a test on both roots, read from a cache."""
    cache = tmp_path_factory.mktemp("cache")
    clips = set_for_testing(add_cache(section_for_testing(two_roots), cache)).readers()
    return clips[3]


def test_a_tested_clip_has_the_same_frames_in_a_cache(tested_clips, cached_clip):
    assert torch.equal(cached_clip.frame(2)["spike"], tested_clips[3].frame(2)["spike"])


def test_a_tested_clip_has_another_digest_in_a_cache(tested_clips, cached_clip):
    # The digest of a cached clip also depends on the index of the cache. So the two digests differ.
    assert cached_clip.digest() != tested_clips[3].digest()


# The next tests are about `spike_data`: the properties of the training spikes, which are stored
# with the weights.


def test_spike_data_has_what_several_roots_have_in_common(two_roots):
    known = resolve_section(section_of_roots(two_roots)).spike_data

    assert known == {
        # "match": the reader divides the spikes of each root by the rate of the root.
        "rate": "match",
        # The reader turns the display values of the second root into linear light.
        "light": "linear",
        "center": "gt",
        # The roots differ in these two properties, so no common value is stored.
        "planes": None,
        "gt_plane": None,
    }


def test_spike_data_of_equal_roots_is_that_of_a_single_root(two_roots):
    twice = resolve_section(section_of_roots((two_roots[0], two_roots[0])))
    once = resolve_section(data_section(two_roots[0], spike=TFP))

    assert twice.spike_data == once.spike_data


# ---- A clip with spikes of its own: the key `clips` of dataset.json ----

# A calibration in which a spike pixel covers 2 x 2 RGB pixels. The matrix turns the place (x, y) of
# a spike pixel into the place (2 x + 0.5, 2 y + 0.5) in the frame.
CALIBRATION = {
    "format": 1,
    "matrix": [[2, 0, 0.5], [0, 2, 0.5]],
    "spike_size": [8, 12],
    "rgb_size": [16, 24],
}


@pytest.fixture
def two_clips(tmp_path):
    """Give the root of clips a and b. In dataset.json, both have the rate 1.0."""
    return write_clips(tmp_path, "a", "b")


# Keys of dataset.json for clip b alone. The key "rig", notes about the cameras, has no effect.
RATE_OF_B = {"b": {"rate": 0.5, "planes": PLANES, "rig": {"any": 1}}}


def test_the_rate_of_a_clip_divides_the_spikes_of_this_clip_alone(two_clips):
    before = build_clips(two_clips, spike=TFP)
    samples_before = [sample_of(before, number) for number in range(len(before))]
    write_info(two_clips, clips=RATE_OF_B)

    after = build_clips(two_clips, spike=TFP)

    for number, sample in enumerate(samples_before):
        # Divided by 0.5 instead of 1.0, the spikes of clip b are twice as large.
        factor = 2 if sample["key"].startswith("b") else 1
        assert torch.equal(sample_of(after, number)["spike"], factor * sample["spike"])


@pytest.mark.parametrize(("name", "rate"), [("a", 1.0), ("b", 0.5)])
def test_a_user_s_clip_may_have_a_rate_of_its_own(two_clips, name, rate):
    write_info(two_clips, clips=RATE_OF_B)
    spikes = two_clips / "GOPRO_Large_spike_seq/train"
    frames = two_clips / "GOPRO_Large/train"

    # A user may name the root of several clips, or the folders of one clip. Both must give the same
    # rate.
    in_root = {clip.name: clip for clip in user_clips(frames, spikes, spike_options=TFP)}
    (alone,) = user_clips(frames / name / "blur", spikes / name / "spike", spike_options=TFP)

    assert in_root[name].clip.spikes.rate == rate
    assert alone.clip.spikes.rate == rate


def test_a_recorded_calibration_says_the_size_of_a_plane(two_clips):
    spike = TFP | {"resize": "bilinear", "calibration": "recorded"}
    write_info(two_clips, calibration=CALIBRATION)
    sample = sample_of(build_clips(two_clips, spike=spike), 0)

    write_info(two_clips, calibration=CALIBRATION, h=None, w=None)

    assert torch.equal(sample_of(build_clips(two_clips, spike=spike), 0)["spike"], sample["spike"])


@pytest.mark.parametrize(
    ("option", "of_a", "of_b"),
    [
        pytest.param(None, None, None, id="not asked for"),
        # dataset.json has a calibration of clip b only.
        pytest.param("recorded", None, 0.5, id="calibration of dataset.json"),
        # A file that the user names is used for all clips, in place of dataset.json.
        pytest.param("file", 0.5, 0.5, id="calibration of a file"),
    ],
)
def test_a_clip_may_have_a_calibration_of_its_own(two_clips, option, of_a, of_b):
    write_info(two_clips, clips={"b": {"calibration": CALIBRATION}})
    if option == "file":
        (two_clips / "b.json").write_text(json.dumps(CALIBRATION))
        option = str(two_clips / "b.json")
    spike = TFP | {"resize": "bilinear", "calibration": option}

    clips = build_clips(two_clips, spike=spike).clips

    # The shift along x in the matrix of each clip, or None without a calibration.
    shifts = []
    for clip in clips:
        calibration = clip.spikes.calibration
        shifts.append(calibration.matrix[0][2] if calibration else None)
    assert shifts == [of_a, of_b]


def test_a_resumed_run_compares_the_calibrations_of_clips(two_clips):
    write_info(two_clips, clips={"b": {"calibration": CALIBRATION}})
    spike = TFP | {"resize": "bilinear", "calibration": "recorded"}

    names = build_clips(two_clips, spike=spike).sample_names()

    assert any("calibration" in line for line in names)


def test_clips_with_rates_of_their_own_need_no_common_rate(two_clips):
    write_info(two_clips, rate=None, clips={"a": {"rate": 0.7}, "b": {"rate": 0.5}})
    values = data_section(two_clips, spike=TFP)

    assert resolve_section(values).spike_data["rate"] == "match"
    assert not check_clips(values).warnings


def test_a_wrong_calibration_of_dataset_json_is_refused_with_the_path_of_the_file(two_clips):
    write_info(two_clips, calibration={**CALIBRATION, "matrix": [[0, 0, 0], [0, 0, 0]]})
    values = data_section(two_clips, spike={**TFP, "calibration": "recorded"})

    with pytest.raises(DataError) as refusal:
        _ = resolve_section(values).spike_data

    assert refusal.value.where.endswith("dataset.json, matrix")


def test_a_rate_of_a_clip_that_is_no_number_is_refused(two_clips):
    write_info(two_clips, clips={"b": {"rate": "fast"}})

    with pytest.raises(DataError, match=r"clip b: rate.* is 'fast'"):
        build_clips(two_clips, spike=TFP)

"""The check of the data before a run: what it finds, what it says, and what it does not read again.

Two training clips and a test clip of six frames are written, in the layout of GoPro, and one thing
is wrong with them. `preflight` is the check of a training. `check` (tests/helpers/clip_files.py) is
the same check of one section of the options, and returns its report.
"""

import os
import shutil
import zlib
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import cv2
import numpy as np
import pytest

from data.clips.preflight import preflight
from data.spike.formats import SpikeGeometry, write_spikes
from tests.helpers.checked import read_picture
from tests.helpers.clip_files import (
    cached,
    check,
    doctor_of_data,
    resolved,
    section,
    set_for_testing,
    write_clip,
    write_clips,
    write_info,
)
from utils.errors import DataError
from utils.options.models import DatasetsOptions


@pytest.fixture
def root(tmp_path):
    """Give a folder with the training clips clip0 and clip1, and the test clip clip9.

    Frames have 16 x 24 pixels, and a spike file has 24 planes of 8 x 12.
    """
    write_clip(tmp_path, "clip9", split="test", seed=9)
    return write_clips(tmp_path, "clip0", "clip1")


def options(root, **changes):
    """Return the sections of the options, and the folder of stored results, for `preflight`."""
    train = section(root, **changes)
    datasets = DatasetsOptions(train=resolved(train), test=resolved(section(root, "test")))
    return datasets, root / "experiments/.preflight"


def frame(root, name="blur/000003.png", clip="clip0"):
    """Return the path of a picture of a training clip."""
    return root / "GOPRO_Large/train" / clip / name


def complaint(root, **changes):
    """Run the check of a training, which must refuse the data. Return its message."""
    with pytest.raises(DataError) as error:
        preflight(*options(root, **changes))
    return str(error.value)


def test_sound_data_are_not_read_again_unless_files_or_options_change(root, caplog):
    def said():
        caplog.clear()
        preflight(*options(root))
        return caplog.text

    caplog.set_level("INFO")
    assert (
        "data train: 2 clips, 12 frames of 16 x 24, spike files of 24 planes, checked in" in said()
    )
    assert said().count("as checked before") == 2
    assert "do not follow filename_tmpl" in complaint(root, filename_tmpl="08d")
    for stored in (root / "experiments/.preflight").iterdir():
        stored.write_text("{")  # as a full disk leaves it
    assert said().count("checked in") == 2
    frame(root).write_bytes(frame(root).read_bytes()[:-20])
    for _ in range(2):  # a check with problems is not stored
        assert "is cut short" in complaint(root)


def test_a_missing_root_hides_no_problem_of_the_other_split(root, capsys):
    (root / "GOPRO_Large/test/clip9/blur/000003.png").unlink()
    wrong: dict[str, Any] = {"dataroot_gt": str(root / "nowhere")}
    assert doctor_of_data(root, train=section(root, **wrong), test=section(root, "test")) == 3
    for said in (capsys.readouterr().err, complaint(root, **wrong)):
        assert str(root / "nowhere") in said
        assert "clip9 | lq lacks 1 of 6 frames" in said


@pytest.mark.parametrize("damage", ["huge size in the header", "flipped bits"])
def test_a_picture_with_damaged_content_is_found_by_decoding(root, damage):
    content = bytearray(frame(root).read_bytes())
    if damage == "flipped bits":
        content[len(content) // 2] ^= 0xFF
    else:
        content[16:24] = b"\x7f\xff\xff\xff" * 2
        content[29:33] = zlib.crc32(content[12:29]).to_bytes(4, "big")
    frame(root).write_bytes(bytes(content))
    (problem,) = check(section(root), decode=True).problems

    assert "cannot read image" in str(problem)
    assert problem.where == str(frame(root))
    assert damage != "flipped bits" or check(section(root)).problems == []


def test_a_picture_that_cannot_be_decoded_leaves_its_clip_among_those_that_are_shown(root):
    first = frame(root, "sharp/000000.png")
    first.write_bytes(first.read_bytes()[:-20])

    report = check(section(root), decode=True)

    assert [problem.where for problem in report.problems] == [str(first)]
    assert report.counts().startswith("2 clips, 12 frames")


def test_spikes_that_look_upside_down_are_a_warning(root, caplog):
    preflight(*options(root))
    assert not [record for record in caplog.records if record.levelname == "WARNING"]
    write_info(root, flip=None)
    warnings = check(section(root, spike={"type": "dat", "flip": False})).warnings
    assert len(warnings) == 2
    assert "look upside down" in str(warnings[0])
    caplog.set_level("INFO")
    for _ in range(2):  # the second time from the stored result
        caplog.clear()
        preflight(*options(root, spike={"type": "dat", "flip": False}))
        assert caplog.text.count("look upside down") == 2

    assert "as checked before" in caplog.text


def test_ratios_that_do_not_fit_the_frames_are_a_warning(root):
    def said(windows=(2, 6), **spike):
        about = {
            "gamma": 2.2,
            "representation": {"type": "relative", "half_windows": list(windows)},
            **spike,
        }
        return " ".join(map(str, check(section(root, spike={"type": "dat", **about})).warnings))

    assert said() == ""  # nothing says that these frames are the mean of display values
    for clip in (root / "GOPRO_Large/train").iterdir():
        shutil.copytree(clip / "blur", clip / "blur_gamma")
    assert "blur is not the mean of the linear values that the spikes integrate" in said()
    spike = {
        "type": "dat",
        "gamma": 2.2,
        "representation": {"type": "relative", "half_windows": [2, 6]},
    }
    assert not check(section(root, lq_folder="blur_gamma", spike=spike)).warnings
    write_info(root, light="display")
    assert said() == ""
    for path in (root / "GOPRO_Large_spike_seq/train").glob("*/spike/*.dat"):
        stream = np.zeros((24, 8, 12), np.uint8)
        stream[6, ::2] = stream[18, ::2] = 1  # 0.04 spikes per plane
        write_spikes(path, stream, SpikeGeometry(8, 12))
    assert "0.042 spikes per plane: the windows of half_windows [2, 6]" in said()
    assert "half_windows" not in said([6])


def test_clips_that_are_held_out_and_pictures_that_lose_bits_are_told_once(root, caplog):
    for number in ("011", "020", "100"):
        write_clip(root, number, seed=int(number))
    deep = frame(root, "sharp/000000.png", "100")
    grey = frame(root, "blur/000000.png", "100")
    cv2.imwrite(str(deep), read_picture(deep).astype(np.uint16) * 257)
    cv2.imwrite(str(grey), read_picture(grey, cv2.IMREAD_GRAYSCALE))
    rgb = {"dataset_type": "VideoRecurrentTrainDataset", "dataroot_spike": None, "spike": None}
    for _ in range(2):
        caplog.clear()
        preflight(*options(root, **rgb, val_partition="REDS4"))
        warnings = [
            record.getMessage() for record in caplog.records if record.levelname == "WARNING"
        ]
        assert warnings == [
            "data train: val_partition: 2 of 5 clips are left out, 011, 020: "
            f"KAIR trains on them, as null does here  [{root}/GOPRO_Large/train]",
            f"data train: 100: lq is a grey image: its value is used for R, G and B  [{grey}]",
            f"data train: 100: gt has 16 bits: they are cut to 8  [{deep}]",
        ]


def test_a_cache_is_checked_for_its_freshness(root, caplog):
    caplog.set_level("INFO")
    backend = cached(section(root), root / "cache")["io_backend"]
    preflight(*options(root, io_backend=backend))
    assert "data train: 2 cached clips" in caplog.text
    os.utime(frame(root), (1, 1))

    assert "the clip cache does not fit the data" in complaint(root, io_backend=backend)


def test_sharp_frames_that_are_the_blurry_ones_are_refused(root):
    said = complaint(root, lq_folder="sharp")

    assert said.count("gt and lq are the same files") == 2
    assert "correct dataroot_gt, dataroot_lq or lq_folder (sharp)" in said


def test_sharp_frames_behind_a_link_to_the_blurry_ones_are_refused(root):
    for clip in ("clip0", "clip1"):
        sharp = root / "GOPRO_Large/train" / clip / "sharp"
        shutil.rmtree(sharp)
        sharp.symlink_to("blur")

    assert complaint(root).count("gt and lq are the same files") == 2


def test_one_root_without_folders_for_blurry_and_sharp_frames_is_refused(root):
    flat = root / "flat"
    for clip in ("clip0", "clip1"):
        shutil.copytree(root / "GOPRO_Large/train" / clip / "blur", flat / clip)

    said = complaint(root, dataroot_lq=str(flat), dataroot_gt=str(flat))

    assert said.count("gt and lq are the same files") == 2


def test_the_doctor_refuses_frames_that_are_their_own_sharp_ones(root, capsys):
    assert doctor_of_data(root, train=section(root, lq_folder="sharp")) == 3

    said = capsys.readouterr()
    assert "gt and lq are the same files" in said.err
    assert "no problem found" not in said.out


def test_copies_of_the_blurry_frames_as_sharp_ones_are_said(root, caplog):
    for clip in ("clip0", "clip1"):
        folder = root / "GOPRO_Large/train" / clip
        shutil.rmtree(folder / "sharp")
        shutil.copytree(folder / "blur", folder / "sharp")

    preflight(*options(root))

    assert "the sharp frames of all clips are copies of the blurry ones" in caplog.text


@pytest.mark.parametrize(
    "change, words",
    [
        ({"dataroot_lq": "{root}/GOPRO_Large/train/clip0"},
         "set dataroot_lq to the folder above it, {root}/GOPRO_Large/train"),
        ({"dataroot_spike": "{root}/GOPRO_Large_spike_seq/train/clip1"},
         "set dataroot_spike to the folder above it, {root}/GOPRO_Large_spike_seq/train"),
        ({"dataroot_lq": "{root}/kinds"},
         "set dataroot_lq to the folder of its own kind, such as {root}/kinds/blur"),
        ({"dataroot_gt": "{root}/kinds"},
         "set dataroot_gt to the folder of its own kind, such as {root}/kinds/sharp"),
    ],
    ids=["a clip", "spikes of a clip", "kinds, lq", "kinds, gt"],
)  # fmt: skip
def test_a_root_that_is_not_the_folder_of_the_clips_is_named_with_the_one_meant(
    root, change, words
):
    for kind in ("blur", "sharp"):
        shutil.copytree(root / "GOPRO_Large/train/clip0" / kind, root / "kinds" / kind / "clip0")
    change = {key: value.format(root=root) for key, value in change.items()}
    spike = {"type": "dat", "h": 8, "w": 12, "center": 12}

    assert words.format(root=root) in complaint(root, spike=spike, **change)


def test_spikes_that_count_from_another_number_are_one_problem(root):
    folder = root / "GOPRO_Large_spike_seq/train/clip0/spike"
    for number in reversed(range(6)):
        (folder / f"{number:06d}.dat").rename(folder / f"{number + 1:06d}.dat")

    said = complaint(root)

    assert "1 problem " in said
    assert "spike counts from 000001, lq from 000000" in said
    assert "give the files of one frame the same name" in said


def test_names_with_another_text_are_one_problem(root):
    folder = root / "GOPRO_Large/train/clip0/sharp"
    for path in sorted(folder.iterdir()):
        path.rename(folder / f"gt_{path.name}")

    said = complaint(root)

    assert "1 problem " in said
    assert "gt has the name gt_000000 where lq has 000000" in said


def test_one_spike_file_for_several_frames_asks_for_exposures(root):
    folder = root / "GOPRO_Large_spike_seq/train/clip0/spike"
    for number in range(1, 6):
        (folder / f"{number:06d}.dat").unlink()

    assert "restore the other spike files, or give spike.exposure" in complaint(root)


def test_home_and_variables_in_paths_are_replaced(root, monkeypatch, caplog):
    monkeypatch.setenv("HOME", str(root))
    monkeypatch.setenv("CLIPS", str(root / "GOPRO_Large"))
    roots = {"dataroot_lq": "${CLIPS}/train", "dataroot_gt": "$CLIPS/train"}
    caplog.set_level("INFO")

    preflight(*options(root, **roots, dataroot_spike="~/GOPRO_Large_spike_seq/train"))

    assert "data train: 2 clips, 12 frames" in caplog.text


@pytest.mark.parametrize(
    "path, words",
    [("$NO_SUCH/train", "set the variable $NO_SUCH"), ("~nobody_here/x", "no user ~nobody_here")],
)
def test_a_variable_without_a_value_is_named(root, path, words):
    assert words in complaint(root, dataroot_lq=path)


@pytest.mark.parametrize("is_cached", [False, True])
def test_the_same_files_are_found_for_a_network_that_does_not_enlarge(root, tmp_path, is_cached):
    values = section(root, lq_folder="sharp")
    if is_cached:
        values = cached(values, tmp_path / "cache")

    assert len(check(values).problems) == 2
    assert not check(values, scale=2).problems


def test_a_copy_of_some_frames_is_no_copy_of_all(root, caplog):
    for clip, kept in (("clip0", "000000.png"), ("clip1", "000005.png")):
        folder = root / "GOPRO_Large/train" / clip
        for path in (folder / "blur").iterdir():
            if path.name != kept:
                shutil.copy(path, folder / "sharp")

    preflight(*options(root))

    assert "copies of the blurry ones" not in caplog.text


@pytest.mark.parametrize(
    "first, name", [(1, "3.png"), (98, "100.png")], ids=["one digit", "more digits"]
)
def test_a_missing_frame_is_named_as_its_neighbours_are(tmp_path, first, name):
    write_clips(tmp_path, "c", frames=5)
    write_clip(tmp_path, "t", split="test")
    for kind in ("GOPRO_Large/train/c/blur", "GOPRO_Large/train/c/sharp",
                 "GOPRO_Large_spike_seq/train/c/spike"):  # fmt: skip
        for path in sorted((tmp_path / kind).iterdir()):
            path.rename(path.with_stem(str(first + int(path.stem))))
    frame(tmp_path, f"blur/{name}", "c").unlink()

    said = complaint(tmp_path)

    assert f"lq lacks 1 of 5 frames: {name}\n" in said
    assert "every frame with its lq, gt and spike file; docs/data_format.md" in said


@pytest.mark.parametrize(
    "windows, spikes, is_narrow",
    [([2, 6], 1, True), ([2, 10], 1, True), ([2, 6], 4, False), ([0.1, 0.5], 1, True),
     ([0.1, 0.5], 4, False), ([6], 1, False)],
    ids=str,
)  # fmt: skip
def test_windows_between_two_spikes_are_said(tmp_path, windows, spikes, is_narrow):
    write_clips(tmp_path, "c", frames=1)
    stream = np.zeros((24, 8, 12), np.uint8)
    stream[:spikes, :, :6] = 1  # in half of the pixels: 1 / 48 per plane, or 1 / 12
    path = tmp_path / "GOPRO_Large_spike_seq/train/c/spike/000000.dat"
    write_spikes(path, stream, SpikeGeometry(8, 12))
    representation = {"type": "relative", "half_windows": windows}

    report = check(section(tmp_path, spike={"type": "dat", "representation": representation}))

    said = [each.what for each in report.warnings if "take wider ones" in each.what]
    assert len(said) == is_narrow
    if said:
        assert said[0].startswith(f"0.021 spikes per plane: the windows of half_windows {windows}")


def test_a_denoising_test_may_have_one_folder_for_both(root):
    clean = str(root / "GOPRO_Large/train")
    roots = {"dataroot_lq": clean, "dataroot_gt": clean, "lq_folder": "sharp"}
    values = {"dataset_type": "VideoRecurrentTestDataset", **roots}

    denoising = check(values | {"sigma": 30.0})

    assert not denoising.problems
    assert not denoising.warnings
    assert len(check(values).problems) == 2


def test_a_clip_beyond_the_last_one_is_none(root):
    clips = set_for_testing(section(root, "test"))

    assert len([*clips]) == 1
    assert len(clips) == 1
    for index in (-1, 1):
        with pytest.raises(IndexError):
            clips[index]


def test_the_progress_of_the_check_counts_every_file(root):
    seen = []

    @contextmanager
    def show(total, name, unit):
        """Note the arguments of the bar, then 1 for each file."""
        seen.append((total, name, unit))
        yield SimpleNamespace(update=lambda: seen.append(1))

    check(section(root), show=show)

    # Two clips of six frames, each with a blurry and a sharp picture and a spike file.
    assert seen[0] == (36, "checking train", "files")
    assert seen[1:] == [1] * 36

"""scripts/prepare_gopro_spike.py: the clips it makes, its refusals, its processes, its restarts.

The program makes training clips from raw frames: sharp frames at a high rate. It averages a few raw
frames to a blurry frame. The middle one of these raw frames is the sharp frame. The time of these
raw frames is the exposure, and the program simulates the spikes of the exposure. With `--rig` it
simulates two cameras instead, from any video or photograph.

Most tests use three raw clips (`write_raw`), whose frames of 32 x 32 pixels show moving clouds:

    train/GOPR0001_03_00   13 frames: 4 exposures of 3 frames, and one more frame
    train/GOPR0002_05_00   10 frames: 2 exposures of 5 frames
    test/GOPR0003_03_00     9 frames: 3 exposures of 3 frames

A folder of prepared clips has GOPRO_Large (blurry and sharp frames) and GOPRO_Large_spike_seq
(spikes, dataset.json, and a made.json for each clip).

tests/helpers/gopro_files.py writes the raw frames. Its function `prepare` runs the program in this
process, and returns the exit code. The exit codes are 0: clips were made, 2: wrong flags, 3: wrong
data.
"""

import json
import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np
import pytest

from data.cameras.calibration import Calibration
from data.cameras.rig import Rig
from data.clip_reading import ClipDataset
from data.making.light_path import LightPath
from data.making.photo_scene import PhotoScene
from data.making.sources import ClipSource, find_sources
from data.select_dataset import build_dataset
from data.spike.formats import read_spikes
from data.spike.geometry import SpikeGeometry
from data.spike.represent import represent
from main_train_vrt import PARTS
from scripts.parts.prepare_gopro_spike.clip_splits import choose_splits, earlier_splits
from scripts.parts.prepare_gopro_spike.parallel_calls import run_in_parallel
from tests.dist.launching import ROOT
from tests.helpers.checked import find_match, not_none
from tests.helpers.clip_files import check_clips, data_section
from tests.helpers.gopro_files import (
    SIZE,
    moving_frames,
    prepare,
    read_files,
    write_folder,
    write_raw,
    write_tree,
)
from tests.helpers.small_disk import disk
from utils.errors import DataError
from utils.files import MARK
from utils.image import imread_rgb
from utils.options.load import load_options
from utils.options.section import read_section
from utils.video.writer import VideoWriter

# The exponent between the values of a picture and the light that it shows.
GAMMA = 2.2
# The shares of red, green and blue in the grey value that a spike camera sees.
GREY = (0.299, 0.587, 0.114)

# ---- Prepared clips ----


@pytest.fixture
def raw_root(tmp_path):
    """Give the root of three raw clips, which the test may change."""
    return write_raw(tmp_path / "raw")


@pytest.fixture(scope="module")
def raw_once(tmp_path_factory):
    """Give the root of three raw clips, which no test changes."""
    return write_raw(tmp_path_factory.mktemp("raw") / "raw")


@pytest.fixture(scope="module")
def prepared_root(raw_once, tmp_path_factory):
    """Give the root of the clips that the program makes with its defaults. No test changes it."""
    out = tmp_path_factory.mktemp("prepared") / "out"
    assert prepare("--source", raw_once, "--out", out) == 0
    return out


@pytest.fixture(scope="module")
def with_instants(raw_once, tmp_path_factory):
    """Give the root of prepared clips with three sharp instants per frame. No test changes it.

    The spikes have the rate 0.9, spikes per plane at full light, so tests can compute the light.
    """
    out = tmp_path_factory.mktemp("with_instants") / "out"
    flags = ("--rate", 0.9, "--instants", 3)
    assert prepare("--source", raw_once, "--out", out, *flags) == 0
    return out


def information(out):
    """Return the content of dataset.json of prepared clips."""
    return json.loads((out / "GOPRO_Large_spike_seq/dataset.json").read_text())


def spike_files(out):
    """Return the files with spikes that training reads: path -> content.

    made.json is left out, because it names the source, which may differ.
    """
    content = read_files(out / "GOPRO_Large_spike_seq")
    return {name: value for name, value in content.items() if not name.endswith("made.json")}


def whole_clips(out, split="train"):
    """Return the options of a test set that reads prepared clips in full length and size."""
    spike = {"type": "dat", "representation": {"type": "voxel", "num_bins": 4}}
    return data_section(
        out, split, dataset_type="TestDatasetRGBSpike", num_frame=None, gt_size=None, spike=spike
    )


def light_of(picture, side):
    """Return the light (side, side) in [0, 1] that a spike camera sees of a picture (h, w, 3)."""
    light = ((picture / 255) ** GAMMA) @ GREY
    return cv2.resize(light, (side, side), interpolation=cv2.INTER_AREA)


def correlation(a, b):
    """Return the correlation of the values of two pictures: 1 if the pictures show the same."""
    return np.corrcoef(a.ravel(), b.ravel())[0, 1]


# ---- Clips of raw frames ----


# `raw_once` has the three raw clips. No test changes these clips.
def test_a_dry_run_lists_the_clips_that_would_be_made(raw_once, tmp_path, capsys):
    assert prepare("--source", raw_once, "--out", tmp_path / "out", "--dry-run") == 0

    output = capsys.readouterr().out
    assert "3 clips, 0 of them made already" in output
    # A raw frame gives 8 planes by default, so 5 raw frames give 40.
    assert "train/GOPR0002_05_00: 5 frames averaged, 40 planes a file" in output


def test_a_dry_run_writes_nothing(raw_once, tmp_path):
    assert prepare("--source", raw_once, "--out", tmp_path / "out", "--dry-run") == 0

    assert not (tmp_path / "out").exists()


# `raw_root` has the three raw clips, too. A test may change these clips.
def test_the_raw_frames_stay_as_they_are(raw_root, tmp_path):
    before = read_files(raw_root)

    assert prepare("--source", raw_root, "--out", tmp_path / "out") == 0

    assert read_files(raw_root) == before


# `prepared_root` has the clips that the program makes from `raw_once` with its defaults.
def test_the_check_of_data_finds_no_fault_in_prepared_clips(prepared_root):
    report = check_clips(whole_clips(prepared_root), decode=True)

    assert report.problems == []
    assert report.warnings == []


def test_a_spike_file_has_8_planes_for_each_raw_frame(prepared_root):
    report = check_clips(whole_clips(prepared_root))

    # There are 8 planes from one raw frame to the next. The first clip has one raw frame after its
    # last exposure. So its last file is as long as the others: 3 x 8 planes. The second clip has no
    # such frame. So its last file ends with the last of 5 raw frames, and has 4 x 8 planes plus 1.
    planes = {clip.name: clip.planes for clip in report.clips}
    assert planes == {
        "GOPR0001_03_00": (24, 24, 24, 24),
        "GOPR0002_05_00": (40, 33),
    }


def test_the_data_set_for_testing_reads_a_prepared_clip_whole(prepared_root):
    dataset = build_dataset(whole_clips(prepared_root, "test"), "test", seed=0)

    sample = dataset[0]

    assert sample["key"] == "GOPR0003_03_00"
    assert sample["lq"].shape == (3, 3, SIZE, SIZE)


# `with_instants` gives clips that were prepared with `--instants 3 --rate 0.9`.
def test_a_sharp_frame_is_the_raw_frame_in_the_middle_of_the_exposure(with_instants):
    frames = moving_frames(count=10, seed=2)
    clip = with_instants / "GOPRO_Large/train/GOPR0002_05_00"

    sharp = imread_rgb(clip / "sharp/000001.png")

    # The second exposure has the raw frames 5 to 9.
    assert np.array_equal(sharp, frames[7])


def test_a_blurry_frame_is_the_mean_of_the_raw_frames(with_instants):
    frames = moving_frames(count=10, seed=2).astype(np.float64)
    clip = with_instants / "GOPRO_Large/train/GOPR0002_05_00"

    blurry = imread_rgb(clip / "blur/000001.png")

    # Rounding to whole values changes a value by at most 0.5.
    assert np.abs(blurry - frames[5:10].mean(0)).max() <= 0.5


def test_a_frame_of_blur_gamma_is_the_mean_of_the_light(with_instants):
    frames = moving_frames(count=10, seed=2).astype(np.float64)
    clip = with_instants / "GOPRO_Large/train/GOPR0002_05_00"

    blurry = imread_rgb(clip / "blur_gamma/000001.png")

    light = (frames[5:10] / 255) ** GAMMA
    shown = light.mean(0) ** (1 / GAMMA) * 255
    # Rounding changes a value by at most 0.5. 0.01 is added, because the program computes in single
    # precision.
    assert np.abs(blurry - shown).max() <= 0.51


def test_dataset_json_has_the_plane_of_the_sharp_frame(with_instants):
    about = information(with_instants)

    # The first plane of each raw frame of an exposure. The sharp frame is raw frame 2, the middle:
    #
    #     raw frame    0    1    2     3     4
    #     plane        0    8    16    24    32
    expected = {"split": "train", "planes": 40, "gt_plane": 16}
    assert about["clips"]["GOPR0002_05_00"] == expected


def test_the_spikes_around_the_plane_of_the_sharp_frame_show_the_sharp_frame(with_instants):
    sharp = imread_rgb(with_instants / "GOPRO_Large/train/GOPR0002_05_00/sharp/000001.png")
    path = with_instants / "GOPRO_Large_spike_seq/train/GOPR0002_05_00/spike/000001.dat"
    spikes = read_spikes(path, SpikeGeometry(height=16, width=16))

    # "tfp" is the firing rate of each pixel, here in the planes 4 to 28, divided by 0.9.
    seen = represent("tfp", spikes, center=16, half_window=12, rate=0.9)[0]

    light = light_of(sharp, side=16)
    # A firing rate over 25 planes is coarse, so it is similar to the light, but not equal. The two
    # numbers were measured as 0.93 and 0.0006.
    assert correlation(seen, light) > 0.9
    assert abs(seen.mean() - light.mean()) < 0.03


# Three instants of the exposure with the raw frames 5 to 9: its first, middle and last raw frame.
@pytest.mark.parametrize(("instant", "raw_frame"), [(0, 5), (1, 7), (2, 9)])
def test_the_instants_are_raw_frames_spread_over_the_exposure(with_instants, instant, raw_frame):
    clip = with_instants / "GOPRO_Large/train/GOPR0002_05_00"

    picture = imread_rgb(clip / f"instants/000001_{instant}.png")

    assert np.array_equal(picture, moving_frames(count=10, seed=2)[raw_frame])


def test_the_check_of_data_finds_the_instants(with_instants):
    values = whole_clips(with_instants)
    values["dataroot_gt_instants"] = str(with_instants / "GOPRO_Large/train")

    report = check_clips(values)

    assert report.problems == []
    assert {clip.instants for clip in report.clips} == {3}


def test_a_folder_made_with_instants_is_refused_without_them(raw_once, with_instants, capsys):
    # `with_instants` was made from the raw clips of `raw_once`. Exit code 3 means wrong data.
    assert prepare("--source", raw_once, "--out", with_instants, "--rate", 0.9) == 3

    assert "made with other settings: instants" in capsys.readouterr().err


def test_the_reference_options_read_the_documented_folders(raw_root, tmp_path, monkeypatch):
    reference = Path("options/vrt/006_train_vrt_videodeblurring_gopro_rgbspike.json").resolve()
    raw_root.rename(tmp_path / "GOPRO_Large_all")
    monkeypatch.chdir(tmp_path)

    assert prepare("--source", "GOPRO_Large_all", "--out", "trainsets") == 0

    # The reference options are for larger frames, so the sizes must be changed for these small
    # frames.
    changes = ["datasets.train.gt_size=16", "netG.img_size=[6,16,16]"]
    for split in ("train", "test"):
        changes += [f"datasets.{split}.spike.h=16", f"datasets.{split}.spike.w=16"]
        # Exposures of three raw frames have only 24 planes, which are too few for the windows of
        # the option file.
        changes += [f"datasets.{split}.spike.representation.half_windows=[1,2,3]"]
    opt = load_options(reference, changes, PARTS)
    train = build_dataset(not_none(opt.datasets.train), "train", seed=0)
    test = build_dataset(not_none(opt.datasets.test), "test", seed=0)
    assert isinstance(train, ClipDataset)
    assert isinstance(test, ClipDataset)
    assert [clip.name for clip in train.clips] == ["GOPR0001_03_00", "GOPR0002_05_00"]
    assert [clip.name for clip in test.clips] == ["GOPR0003_03_00"]


# ---- A second start ----


def test_a_second_start_changes_no_file(raw_root, tmp_path):
    prepare("--source", raw_root, "--out", tmp_path / "out")
    before = read_files(tmp_path / "out")

    prepare("--source", raw_root, "--out", tmp_path / "out")

    assert read_files(tmp_path / "out") == before


def leave_unfinished(out):
    """Rename the folder of a clip as if a run was killed while making it. Return the folder."""
    spikes = out / "GOPRO_Large_spike_seq/train"
    unfinished = spikes / ".GOPR0001_03_00.tmp"
    os.rename(spikes / "GOPR0001_03_00", unfinished)
    return unfinished


def test_an_unfinished_clip_of_the_program_is_made_again(raw_root, tmp_path):
    prepare("--source", raw_root, "--out", tmp_path / "out")
    before = read_files(tmp_path / "out")
    unfinished = leave_unfinished(tmp_path / "out")
    # The file MARK says that the program made the folder.
    (unfinished / MARK).touch()

    prepare("--source", raw_root, "--out", tmp_path / "out")

    assert read_files(tmp_path / "out") == before


def test_an_unfinished_clip_without_the_mark_of_the_program_stays(raw_root, tmp_path):
    prepare("--source", raw_root, "--out", tmp_path / "out")
    unfinished = leave_unfinished(tmp_path / "out")

    assert prepare("--source", raw_root, "--out", tmp_path / "out") == 3

    assert (unfinished / "made.json").exists()


def test_raw_frames_are_taken_in_the_order_of_their_numbers(raw_root, prepared_root, tmp_path):
    # Without leading zeros, the alphabet would put frame_10 before frame_2.
    for path in raw_root.glob("*/*/*.png"):
        path.rename(path.with_name(f"frame_{int(path.stem)}.png"))

    prepare("--source", raw_root, "--out", tmp_path / "again")

    made = spike_files(tmp_path / "again")
    assert made == spike_files(prepared_root)
    assert "dataset.json" in made


# Each function below changes the first clip between two starts. raw: folder of its raw frames.
# spikes: folder of its spikes and of made.json, which says from which files the clip was made.


def rewrite_a_raw_frame(raw, spikes):
    """Give a raw frame another time of change: one second after the beginning of 1970."""
    os.utime(raw / "000003.png", (1, 1))


def remove_made_json(raw, spikes):
    """Remove made.json, so that the clip could be of another program."""
    (spikes / "made.json").unlink()


def change_version(raw, spikes):
    """Write another version of the program into made.json, e.g. 91 in place of 1."""
    path = spikes / "made.json"
    path.write_text(path.read_text().replace('"version": ', '"version": 9'))


def lose_spikes_and_rewrite_a_raw_frame(raw, spikes):
    """Remove the spikes, and change a raw frame.

    If only the spikes were made again, from the changed raw frame, the spikes would not fit the old
    blurry frames.
    """
    shutil.rmtree(spikes)
    rewrite_a_raw_frame(raw, spikes)


@pytest.mark.parametrize(
    "change",
    [
        rewrite_a_raw_frame,
        remove_made_json,
        change_version,
        lose_spikes_and_rewrite_a_raw_frame,
    ],
)
def test_a_clip_that_differs_from_what_would_be_made_is_refused(raw_root, tmp_path, capsys, change):
    prepare("--source", raw_root, "--out", tmp_path / "out", "--leave-out", "GOPR0003_03_00")
    raw_clip = raw_root / "train/GOPR0001_03_00"
    change(raw_clip, tmp_path / "out/GOPRO_Large_spike_seq/train/GOPR0001_03_00")
    before = read_files(tmp_path / "out")

    assert prepare("--source", raw_root, "--out", tmp_path / "out") == 3

    assert read_files(tmp_path / "out") == before
    assert "clip GOPR0001_03_00 exists already, but differs" in capsys.readouterr().err


# ---- Refusals ----


def write_wrong_clips(raw):
    """Write three raw clips that cannot be made, beside the three good clips of `raw_root`."""
    other_height = np.zeros((6, 2 * SIZE, SIZE, 3), np.uint8)  # 64 x 32, not 32 x 32
    odd_height = np.zeros((6, SIZE + 1, SIZE, 3), np.uint8)  # 33 x 32
    write_folder(raw / "train/GOPR0004_03_00", other_height)
    # The 11 in the name of the clip asks for 11 raw frames per blurry frame, but the clip has only
    # 3.
    write_folder(raw / "train/GOPR0005_11_00", moving_frames(count=3))
    write_folder(raw / "train/GOPR0006_03_00", odd_height)


def test_all_wrong_clips_are_named_at_once(raw_root, tmp_path, capsys):
    write_wrong_clips(raw_root)

    assert prepare("--source", raw_root, "--out", tmp_path / "out") == 3

    message = capsys.readouterr().err
    assert "3 clips cannot be made" in message
    assert "GOPR0005_11_00 has 3 frames" in message
    assert "33 x 32" in message
    assert "clip GOPR0004_03_00 has another size than the others: 64 x 32" in message


def test_the_error_gives_flags_to_leave_out_the_wrong_clips(raw_root, tmp_path, capsys):
    write_wrong_clips(raw_root)

    assert prepare("--source", raw_root, "--out", tmp_path / "out") == 3

    message = capsys.readouterr().err
    # GOPR0004_03_00 comes last, because sizes of clips are compared after all other checks.
    flags = "--leave-out GOPR0005_11_00 --leave-out GOPR0006_03_00 --leave-out GOPR0004_03_00"
    assert f"make only the others: {flags}" in message


def test_nothing_is_made_if_a_clip_is_wrong(raw_root, tmp_path):
    write_wrong_clips(raw_root)

    assert prepare("--source", raw_root, "--out", tmp_path / "out") == 3

    assert not (tmp_path / "out").exists()


def test_the_error_gives_no_flag_if_all_clips_are_wrong(tmp_path, capsys):
    for number in (1, 2):
        write_folder(tmp_path / f"raw/train/GOPR000{number}_11_00", moving_frames(count=3))

    assert prepare("--source", tmp_path / "raw", "--out", tmp_path / "out") == 3

    message = capsys.readouterr().err
    assert "2 clips cannot be made" in message
    assert "make only the others" not in message


def test_a_clip_with_a_frame_of_another_size_is_not_made(raw_root, tmp_path, capsys):
    odd = raw_root / "train/GOPR0001_03_00/000005.png"
    cv2.imwrite(str(odd), np.zeros((SIZE, SIZE + 2, 3), np.uint8))

    assert prepare("--source", raw_root, "--out", tmp_path / "out") == 3

    message = capsys.readouterr().err
    assert str(odd) in message
    assert "frame of 32 x 34" in message
    assert not (tmp_path / "out/GOPRO_Large/train/GOPR0001_03_00").exists()


# Each case has flags, a part of the message, and the exit code: 2 for wrong flags, 3 for wrong
# data. {} is the folder of the test, whose `raw_root` has the three raw clips. After --rig comes
# the name of a pair of cameras ("rig", "dim", ...), and then changes of its values. "dimm" and
# "parallaks" are spelled wrongly on purpose.
WRONG_INPUT = [
    ("--source {}/empty", "no raw clip found", 3),
    ("--source {}/nothing --rig rig", "no raw clip found", 3),
    # If the number of raw frames is even, no raw frame is in the middle.
    ("--source {}/raw --average 4", "--average is 4", 2),
    ("--source {}/raw --average 15", "has 13 frames", 3),
    ("--source {}/raw --instants 5", "averages 3 raw frames, fewer than --instants 5", 3),
    # Frames have 32 x 32 pixels, and 32 is no multiple of 3.
    ("--source {}/raw --ratio 3", "do not divide by --ratio 3", 3),
    ("--source {}/raw --ratio 0", "--ratio is 0", 2),
    ("--source {}/raw --shot-noise -1", "--shot-noise is -1.0", 2),
    ("--source {}/raw --rate inf", "--rate is inf", 2),
    ("--source {}/raw --seed -1", "--seed is -1", 2),
    # A pixel fires at most once in a plane.
    ("--source {}/raw --rate 1.01", "float > 0, <= 1", 2),
    ("--source {}/raw --interpolate 0", "--interpolate is 0", 2),
    ("--source {}/raw --test-share 1", "--test-share is 1.0", 2),
    ("--source {}/raw --crop 64", "--crop has no effect without --rig", 2),
    ("--source {}/raw --crop 300", "--crop has no effect without --rig", 2),
    ("--source {}/raw --rig dim --instants 2", "--instants has no effect with --rig", 2),
    ("--source {}/raw --rig dim --rate 0.2", "--rate has no effect with --rig", 2),
    ("--source {}/raw --rig dimm", "ideal, rig, dim, other or random", 2),
    ("--source {}/raw --rig dim,parallaks=0", "argument 'parallaks'", 2),
    # The RGB camera of "rig" has a rolling shutter. The exposure of its last row begins late, but
    # must still end within the interval.
    ("--source {}/raw --rig rig,exposure=1", "does not fit into the interval", 2),
    ("--source {}/raw --rig dim --crop 300", "at most --side 288", 2),
    # A crop of 64 does not fit into frames of 32 x 32.
    ("--source {}/raw --rig dim --crop 64", "no source can be used", 3),
    ("--source {}/raw --leave-out GOPR0001", "no such clip: --leave-out GOPR0001", 2),
    ("--source {}/raw --out {}/raw/train", "would write over the input", 2),
]


@pytest.mark.parametrize(("flags", "words", "code"), WRONG_INPUT)
def test_wrong_input_is_refused_before_anything_is_written(
    raw_root, tmp_path, capsys, flags, words, code
):
    (tmp_path / "empty").mkdir()
    before = read_files(tmp_path)
    arguments = flags.replace("{}", str(tmp_path)).split()

    assert prepare("--out", tmp_path / "out", *arguments) == code

    assert words in capsys.readouterr().err
    assert read_files(tmp_path) == before


def test_clips_that_do_not_fit_on_the_disk_are_refused_before_anything_is_written(
    raw_once, tmp_path, capsys
):
    # `disk` makes a file system of this size.
    with disk(tmp_path / "disk", "16k") as small_disk:
        code = prepare("--source", raw_once, "--out", small_disk / "out")

        assert code == 3
        assert "GB are needed, 0.0 GB are free" in capsys.readouterr().err
        assert list(small_disk.iterdir()) == []


# ---- The split into clips for training and for testing ----


def raw_clips(letter, count, folder):
    """Return `count` raw clips without a split, e.g. c0, c1, c2."""
    return [ClipSource(f"{letter}{number}", folder, split="") for number in range(count)]


# The share of clips for testing is rounded to whole clips. But if both splits are asked for, no
# split becomes empty.
SHARES = [
    pytest.param(10, 0.7, 7, id="7 of 10"),
    pytest.param(10, 0.2, 2, id="2 of 10"),
    pytest.param(2, 0.7, 1, id="not both of 2"),
    pytest.param(3, 0.01, 1, id="at least one of 3"),
    pytest.param(1, 0.9, 0, id="the only clip is for training"),
    pytest.param(5, 0.0, 0, id="a share of 0 asks for none"),
]


@pytest.mark.parametrize(("count", "share", "tests"), SHARES)
def test_the_share_for_testing_takes_neither_all_clips_nor_none(tmp_path, count, share, tests):
    splits = choose_splits(raw_clips("c", count, tmp_path), share, tmp_path)

    assert list(splits.values()).count("test") == tests


@pytest.mark.parametrize(("count", "share", "tests"), SHARES)
def test_clips_that_are_made_keep_their_split_if_more_clips_come(tmp_path, count, share, tests):
    first = raw_clips("c", count, tmp_path)
    splits = choose_splits(first, share, tmp_path)
    for name, split in splits.items():
        (tmp_path / "GOPRO_Large" / split / name).mkdir(parents=True)

    later = choose_splits(first + raw_clips("d", count=4, folder=tmp_path), share, tmp_path)

    for name, split in splits.items():
        assert later[name] == split


def test_a_clip_of_another_source_decides_no_split(tmp_path):
    # An earlier run with a rig made the test clip camel_00 from the source "camel". Now there is a
    # source with the name camel_00.
    (tmp_path / "GOPRO_Large/test/camel_00").mkdir(parents=True)
    info = tmp_path / "GOPRO_Large_spike_seq/dataset.json"
    info.parent.mkdir()
    clip = {"source": "camel", "split": "test"}
    info.write_text(json.dumps({"recipe": None, "clips": {"camel_00": clip}}))

    assert earlier_splits(["camel", "camel_00"], tmp_path) == {"camel": "test"}


def test_an_interrupted_run_on_videos_continues_with_the_split_that_it_chose(tmp_path):
    raw = tmp_path / "raw"
    out = tmp_path / "out"
    raw.mkdir()
    for number in range(6):
        with VideoWriter(raw / f"c{number}.mp4", fps=240) as video:
            for frame in moving_frames(count=9, seed=number):
                video.write(frame)
    arguments = ("--source", raw, "--out", out, "--average", 3, "--test-share", 0.4)
    assert prepare(*arguments) == 0
    whole = read_files(out)
    # 0.4 of 6 videos is 2.4. So 2 videos are for testing, and 4 are for training. Each video has 9
    # raw frames, which give 3 blurry frames.
    assert len(list(out.glob("*/train/*/sharp/*.png"))) == 12
    assert len(list(out.glob("*/test/*/sharp/*.png"))) == 6

    # An interruption leaves dataset.json and the spikes of the first clips.
    shutil.rmtree(out / "GOPRO_Large")
    for clip in (out / "GOPRO_Large_spike_seq").glob("*/c[2-5]"):
        shutil.rmtree(clip)
    assert prepare(*arguments) == 0

    assert read_files(out) == whole


# ---- Light between two frames ----


@pytest.fixture(scope="module")
def fine_frames():
    """Give nine grey frames that move by half a pixel each. The program sees frames 0, 4 and 8."""
    return moving_frames(count=9, step=0.5).astype(np.float32)[..., 0] / 255


def path_of_light(fine_frames, method):
    """Return the light that the program interpolates between the fine frames 0, 4 and 8."""
    return LightPath(lambda number: fine_frames[4 * number], count=3, method=method)


# The clouds move by 2 pixels between two frames that the program sees. Optical flow follows the
# clouds. A linear change fades one frame into the next frame, so the error of "linear" is larger.
# The largest errors were measured as 0.0016 (flow) and 0.0046 (linear).
@pytest.mark.parametrize(("method", "largest_error"), [("flow", 0.01), ("linear", 0.04)])
def test_light_moves_from_one_frame_to_the_next(fine_frames, method, largest_error):
    path = path_of_light(fine_frames, method)
    truth = LightPath(lambda number: fine_frames[number], count=9)

    errors = []
    for number in range(9):
        difference = path.at(number / 4) - truth.at(number)
        errors.append(float(np.abs(difference).mean()))

    assert max(errors) < largest_error
    # The program sees frames 0, 4 and 8, so it interpolates nothing at these frames.
    assert errors[0] == 0.0
    assert errors[4] == 0.0
    assert errors[8] == 0.0


@pytest.mark.parametrize("method", ["flow", "linear"])
def test_before_and_after_the_clip_the_light_stays_as_in_the_nearest_frame(fine_frames, method):
    # The program sees three frames, at the times 0, 1 and 2.
    path = path_of_light(fine_frames, method)

    assert np.array_equal(path.at(-1), path.at(0))
    assert np.array_equal(path.at(99), path.at(2))


# ---- Processes ----


def is_making_a_clip(out):
    """Return whether there is an unfinished clip: a folder whose name ends with .tmp."""
    return any(folder.endswith(".tmp") for folder, _, _ in os.walk(out))


class KilledRun(NamedTuple):
    """What a run of the program had done when it was killed."""

    progress_line: str  # the last line of the progress that was read
    rest: str  # what the run printed after this line
    was_making_a_clip: bool


def kill_while_making_a_clip(raw, out):
    """Run the program with two workers. Kill it when it has finished a clip and makes another."""
    program = [sys.executable, "scripts/prepare_gopro_spike.py"]
    arguments = ["--source", str(raw), "--out", str(out), "--workers", "2"]
    # TQDM_DISABLE would hide the progress that this function reads.
    environment = {name: value for name, value in os.environ.items() if name != "TQDM_DISABLE"}
    run = subprocess.Popen(
        [*program, *arguments],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    progress_line = ""
    for line in not_none(run.stdout):
        if line.startswith("making:") and any(out.glob("*/*/*/made.json")):
            progress_line = line
            break
    # A stopped process cannot finish a clip. So stop the program and its workers, and let them run
    # for a millisecond at a time, until a clip is being made. At this moment, kill the run.
    os.killpg(run.pid, signal.SIGSTOP)
    while run.poll() is None and not is_making_a_clip(out):
        os.killpg(run.pid, signal.SIGCONT)
        time.sleep(0.001)
        os.killpg(run.pid, signal.SIGSTOP)
    was_making_a_clip = is_making_a_clip(out)
    run.kill()
    os.killpg(run.pid, signal.SIGCONT)
    # The workers hold the other end of the pipe. So this call returns after the last worker has
    # ended.
    rest, _ = run.communicate()
    return KilledRun(progress_line, rest, was_making_a_clip)


def test_a_killed_run_leaves_no_process_and_continues_to_the_same_bytes(tmp_path, capsys):
    raw = tmp_path / "GOPRO_Large_all"
    out = tmp_path / "out"
    total = write_tree(raw)

    killed = kill_while_making_a_clip(raw, out)

    # The progress counts the frames. When the run was killed, some clips were finished, but not
    # all.
    progress = r"(\d+) of (\d+) frames, [\d.]+ a second, \d\d:\d\d:\d\d left"
    done, to_do = find_match(progress, killed.progress_line).groups()
    assert int(to_do) == total
    assert 0 < int(done) < total
    assert "made " not in killed.rest
    # made.json of each finished clip -> the time when the clip was finished.
    finished = {path: path.stat().st_mtime_ns for path in out.glob("*/*/*/made.json")}
    assert finished
    assert killed.was_making_a_clip

    # The second start makes only the clips that are missing, and does not touch the finished clips.
    assert prepare("--source", raw, "--out", out) == 0
    output = capsys.readouterr().out
    # Each line of the progress gives the number of frames that the second start must make: all
    # frames without the frames of the finished clips. A spike file belongs to an exposure of three
    # raw frames.
    finished_frames = 0
    for path in finished:
        finished_frames += 3 * len(list(path.parent.glob("spike/*")))
    announced = {int(number) for number in re.findall(r"making: .* of (\d+) frames", output)}
    assert announced == {total - finished_frames}
    # A clip that was made again would have another time.
    assert {path: path.stat().st_mtime_ns for path in finished} == finished

    # The result is the same as without an interruption.
    prepare("--source", raw, "--out", tmp_path / "whole")
    assert read_files(out) == read_files(tmp_path / "whole")


def test_an_error_in_a_process_ends_the_other_processes_at_once():
    # A sleep of -1 seconds is a ValueError. The other calls sleep for five minutes. If their
    # processes were not ended, the test would last as long.
    calls = [(300,), (-1,), (300,), (300,)]

    with pytest.raises(ValueError, match="non-negative"):
        run_in_parallel(workers=2, function=time.sleep, calls=calls, name="sleeping", unit="calls")

    assert not multiprocessing.active_children()


def test_a_process_that_dies_is_reported():
    with pytest.raises(DataError, match="a process of the pool died"):
        run_in_parallel(
            workers=2, function=os._exit, calls=[(7,), (7,)], name="ending", unit="calls"
        )


# ---- Clips of two simulated cameras (--rig) ----


# The video `walk` has this number of frames, with a cut after the frame CUT.
FRAMES_OF_WALK = 25
CUT = 16


@pytest.fixture(scope="module")
def sources_of_rig(tmp_path_factory):
    """Give a folder with a long video that has a cut, a video too small to use, and a photograph.

    No test changes it.
    """
    source = tmp_path_factory.mktemp("sources") / "sources"
    # The frames have 64 x 64 pixels, twice as many on each side as the moving frames.
    shown = moving_frames(count=CUT, step=1.5).repeat(2, axis=1).repeat(2, axis=2)
    after_the_cut = 255 - shown[: FRAMES_OF_WALK - CUT]
    write_folder(source / "train/walk", np.concatenate((shown, after_the_cut)))
    write_folder(source / "train/tiny", moving_frames(count=9))
    (source / "test").mkdir()
    photo = np.random.default_rng(0).integers(0, 255, (90, 120, 3), np.uint8)
    cv2.imwrite(str(source / "test/photo.png"), photo)
    return source


# Each source gives two clips, with 3 frames of 48 x 48 pixels and 16 planes for each frame. The
# program scales the shorter side of a source to 56 pixels, and cuts the crop of 48 pixels from it.
RIG_SIZES = ("--side", 56, "--crop", 48, "--frames", 3, "--planes", 16, "--clips", 2)
RANDOM_RIGS = ("--rig", "random", *RIG_SIZES)


@pytest.fixture(scope="module")
def clips_of_rigs(sources_of_rig, tmp_path_factory):
    """Give the clips that random rigs record of these sources. No test changes them."""
    out = tmp_path_factory.mktemp("rigs") / "out"
    assert prepare("--source", sources_of_rig, "--out", out, *RANDOM_RIGS) == 0
    return out


def report_with_recorded_calibration(out):
    """Return the check of the training clips, read with the calibrations of dataset.json."""
    values = whole_clips(out)
    values["spike"] = {"type": "dat", "center": "file", "calibration": "recorded"}
    return check_clips(values, decode=True)


def test_a_source_that_is_too_small_is_left_out(sources_of_rig, tmp_path, capsys):
    assert prepare("--source", sources_of_rig, "--out", tmp_path, *RANDOM_RIGS, "--dry-run") == 0

    assert "tiny: left out: frames of 32 x 32" in capsys.readouterr().out


def test_the_true_motion_of_a_photograph_leads_from_a_plane_to_the_same_scene_in_another():
    rng = np.random.default_rng(0)
    photo = cv2.GaussianBlur(rng.integers(0, 256, (200, 260, 3), np.uint8), (0, 0), 3)
    scene = PhotoScene(photo, side=96, intervals=1, planes=40, crop=64, rng=rng)

    from_plane = 20
    to_plane = 36
    shifts = scene.shifts(from_plane, to_plane)  # (64, 64, 2), x and y of each pixel

    lights = list(scene.lights())
    here = lights[from_plane]
    there = lights[to_plane]
    y, x = np.mgrid[:64, :64].astype(np.float32)
    followed = cv2.remap(there, x + shifts[..., 0], y + shifts[..., 1], cv2.INTER_LINEAR)
    with_motion = np.abs(followed - here).mean(axis=-1)
    without = np.abs(there - here).mean(axis=-1)
    # Compare medians, because a few pixels are covered or out of view in the plane `to_plane`. The
    # factor was measured as 0.05.
    assert np.median(with_motion) < 0.1 * np.median(without)


def test_videos_and_photographs_become_clips(clips_of_rigs):
    clips = information(clips_of_rigs)["clips"]

    splits = {name: clip["split"] for name, clip in clips.items()}
    assert splits == {
        "walk_00": "train",
        "walk_01": "train",
        "photo_00": "test",
        "photo_01": "test",
    }


@pytest.mark.parametrize(
    ("photos", "named"),
    [
        pytest.param(True, "b.heic", id="photographs become clips"),
        pytest.param(False, "a.png, b.heic", id="photographs are left out"),
    ],
)
def test_a_photograph_that_becomes_a_clip_is_not_named_as_left_out(tmp_path, caplog, photos, named):
    write_folder(tmp_path / "frames", moving_frames(2))
    (tmp_path / "a.png").touch()
    (tmp_path / "b.heic").touch()

    find_sources(tmp_path, photos)

    message = f"{tmp_path}: left out, as no film or picture that is read: {named}"
    assert caplog.messages == [message]


def test_each_clip_has_another_brightness(clips_of_rigs):
    clips = information(clips_of_rigs)["clips"]

    rates = {clip["rate"] for clip in clips.values()}

    assert len(rates) == 4
    # These are the limits of random rigs, in spikes per plane at full light.
    assert min(rates) >= 0.06
    assert max(rates) <= 0.8


def test_the_check_of_data_finds_no_fault_in_clips_of_a_rig(clips_of_rigs):
    report = report_with_recorded_calibration(clips_of_rigs)

    assert report.problems == []
    # Each clip has three frames, and a spike file of 16 planes for each.
    assert {clip.planes for clip in report.clips} == {(16, 16, 16)}


def test_clips_of_a_rig_are_read_with_the_brightness_that_was_simulated(clips_of_rigs):
    recorded = information(clips_of_rigs)["clips"]

    report = report_with_recorded_calibration(clips_of_rigs)

    assert len(report.clips) == 2
    for clip in report.clips:
        assert clip.spikes.rate == recorded[clip.name]["rate"]


def test_clips_of_a_rig_are_read_with_the_calibration_that_was_simulated(clips_of_rigs):
    recorded = information(clips_of_rigs)["clips"]

    report = report_with_recorded_calibration(clips_of_rigs)

    assert len(report.clips) == 2
    for clip in report.clips:
        matrix = recorded[clip.name]["calibration"]["matrix"]
        assert clip.spikes.calibration.matrix == matrix


def test_the_rig_in_dataset_json_has_the_calibration_beside_it(clips_of_rigs):
    clips = information(clips_of_rigs)["clips"]

    assert len(clips) == 4
    for clip in clips.values():
        calibration = read_section(Calibration, clip["calibration"], "")
        rig = Rig(**calibration.made["rig"])
        # The clip has spike planes of 24 x 24 pixels and frames of 48 x 48 pixels.
        again = rig.calibration((24, 24), (48, 48))
        assert again.digest() == calibration.digest()


@pytest.mark.parametrize("name", ["walk_00", "walk_01"])
def test_no_clip_goes_over_the_cut_of_a_video(clips_of_rigs, name):
    cut = information(clips_of_rigs)["clips"][name]["cut"]

    # The clip takes 3 exposures of `average` frames each, and 2 more frames around them.
    end = cut["first"] + 3 * cut["average"] + 2
    is_before_the_cut = end <= CUT
    is_after_the_cut = cut["first"] >= CUT
    assert is_before_the_cut or is_after_the_cut


def test_a_second_start_with_random_rigs_changes_no_file(sources_of_rig, clips_of_rigs):
    before = read_files(clips_of_rigs)

    assert prepare("--source", sources_of_rig, "--out", clips_of_rigs, *RANDOM_RIGS) == 0

    assert read_files(clips_of_rigs) == before


# A rig whose exposure lasts the whole interval, without the faults of real cameras.
FAULTLESS_RIG = (
    "rig,exposure=1,rolling=0,contrast=0,shot=0,read=0,jpeg=0,"
    "shift_x=0,shift_y=0,parallax=0,rate=0.9"
)


@pytest.fixture(scope="module")
def faultless(tmp_path_factory):
    """Give a clip of FAULTLESS_RIG: 4 frames of 24 x 24 pixels, each from 2 raw frames.

    Each frame has 96 planes. No test changes the clip.
    """
    root = tmp_path_factory.mktemp("faultless")
    write_folder(root / "videos/video", moving_frames(count=12, step=2.0))
    sizes = ("--side", 32, "--crop", 24, "--frames", 4, "--planes", 96)
    flags = ("--rig", FAULTLESS_RIG, *sizes, "--average", 2, "--clips", 1)
    assert prepare("--source", root / "videos", "--out", root / "out", *flags) == 0
    return root / "out"


@pytest.mark.parametrize("number", range(4))
def test_a_sharp_frame_of_a_rig_is_a_part_of_a_raw_frame(faultless, number):
    sharp = imread_rgb(faultless / f"GOPRO_Large/train/video_00/sharp/{number:06d}.png")
    # An exposure takes 2 raw frames. The first sharp frame is raw frame 1, the next one is 3, ...
    raw_frame = moving_frames(count=12, step=2.0)[1 + 2 * number]

    # Compare with each part of 24 x 24 pixels. The differences are summed over pixels and colours.
    differences = cv2.matchTemplate(raw_frame, sharp, cv2.TM_SQDIFF)

    # A value may be off by 1 through rounding, so the square of each difference is at most 1.
    assert differences.min() <= 24 * 24 * 3


@pytest.mark.parametrize("number", range(4))
def test_a_blurry_frame_of_a_rig_shows_the_motion_around_its_sharp_frame(faultless, number):
    clip = faultless / "GOPRO_Large/train/video_00"
    sharp = imread_rgb(clip / f"sharp/{number:06d}.png")
    blurry = imread_rgb(clip / f"blur/{number:06d}.png")

    difference = np.abs(blurry.astype(float) - sharp).mean()

    # Rounding makes a mean difference of at most 0.5. Another part of the video would differ by
    # more than 30.
    assert 0.5 < difference < 30


def test_the_spikes_of_a_rig_show_the_sharp_frame_in_their_middle(faultless):
    sharp = imread_rgb(faultless / "GOPRO_Large/train/video_00/sharp/000002.png")
    (path,) = faultless.rglob("000002.dat")
    spikes = read_spikes(path, SpikeGeometry(height=12, width=12))

    # Take plane 48, the middle of the 96 planes, and 12 planes on each side: the planes 36 to 60.
    seen = spikes[36:61].mean(0)

    assert correlation(seen, light_of(sharp, side=12)) > 0.9

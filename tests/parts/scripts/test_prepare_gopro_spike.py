"""scripts/prepare_gopro_spike.py: what it makes, what it refuses, its processes, its end and second
start.
"""

import json
import multiprocessing
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import cv2
import numpy as np
import pytest

from data.cameras.rig import Rig
from data.cameras.spike_grid import Calibration
from data.clip_dataset import ClipDataset
from data.making.light_in_motion import LightPath
from data.making.prepare import RawClip
from data.select_dataset import build_dataset
from data.spike.formats import SpikeGeometry, read_spikes
from data.spike.represent import represent
from main_train_vrt import PARTS
from scripts.prepare_gopro_spike import choose_splits, run_counted
from tests.dist.launching import ROOT
from tests.helpers.checked import found, present
from tests.helpers.clip_files import check, section
from tests.helpers.gopro_files import (
    SIZE,
    files,
    moving_frames,
    prepare,
    write_folder,
    write_raw,
    write_tree,
)
from utils.errors import DataError
from utils.files import MARK
from utils.image import imread_rgb
from utils.options.load import load_options
from utils.options.section import read_section
from utils.video import VideoWriter


@pytest.fixture
def raw(tmp_path):
    return write_raw(tmp_path / "raw")


def spike_files(out):
    """All that training reads of the spikes; made.json names the source, which may differ."""
    return {
        n: content
        for n, content in files(out / "GOPRO_Large_spike_seq").items()
        if not n.endswith("made.json")
    }


def whole_clips(out, split="train"):
    spike = {"type": "dat", "representation": {"type": "voxel", "num_bins": 4}}
    return section(
        out, split, dataset_type="TestDatasetRGBSpike", num_frame=None, gt_size=None, spike=spike
    )


def test_raw_clips_become_clips_that_training_reads_and_a_dry_run_writes_nothing(
    raw, tmp_path, capsys
):
    before = files(raw)
    assert prepare("--source", raw, "--out", tmp_path / "out", "--dry-run") == 0
    said = capsys.readouterr().out
    assert "3 clips, 0 of them made already" in said
    assert "train/GOPR0002_05_00: 5 frames averaged, 40 planes a file" in said
    assert not (tmp_path / "out").exists()
    assert prepare("--source", raw, "--out", tmp_path / "out") == 0

    assert files(raw) == before
    report = check(whole_clips(tmp_path / "out"), decode=True)
    assert report.problems == [] and report.warnings == []
    # 13 frames make 4 exposures of 3 and one frame to interpolate to; 10 frames make 2 of 5 with
    # none after them.
    assert {clip.name: clip.planes for clip in report.clips} == {
        "GOPR0001_03_00": (24, 24, 24, 24), "GOPR0002_05_00": (40, 33),
    }  # fmt: skip
    item = build_dataset(whole_clips(tmp_path / "out", "test"), "test", 0)[0]
    assert item["key"] == "GOPR0003_03_00" and item["lq"].shape == (3, 3, SIZE, SIZE)


def test_blur_is_the_mean_sharp_the_middle_and_the_spikes_see_the_sharp_moment(
    raw, tmp_path, capsys
):
    assert (
        prepare("--source", raw, "--out", tmp_path / "out", "--rate", "0.9", "--instants", "3") == 0
    )
    clip = tmp_path / "out/GOPRO_Large/train/GOPR0002_05_00"
    frames = moving_frames(10, seed=2).astype(np.float64)
    picture = {
        kind: imread_rgb(clip / kind / "000001.png") for kind in ("blur", "blur_gamma", "sharp")
    }

    assert np.array_equal(picture["sharp"], frames[7])
    assert np.abs(picture["blur"] - frames[5:10].mean(0)).max() <= 0.5
    linear = ((frames[5:10] / 255) ** 2.2).mean(0) ** (1 / 2.2) * 255
    assert np.abs(picture["blur_gamma"] - linear).max() <= 0.51
    about = json.loads((tmp_path / "out/GOPRO_Large_spike_seq/dataset.json").read_text())
    # 4 n - 4
    assert about["clips"]["GOPR0002_05_00"] == {
        "split": "train",
        "planes": 40,
        "gt_plane": 16,
    }
    path = tmp_path / "out/GOPRO_Large_spike_seq/train/GOPR0002_05_00/spike/000001.dat"
    spikes = read_spikes(path, SpikeGeometry(16, 16))
    seen = represent("tfp", spikes, 16, half_window=12, rate=0.9)[0]
    light = ((picture["sharp"] / 255) ** 2.2) @ [0.299, 0.587, 0.114]
    light = cv2.resize(light, (16, 16), interpolation=cv2.INTER_AREA)
    assert (
        np.corrcoef(seen.ravel(), light.ravel())[0, 1] > 0.9
        and abs(seen.mean() - light.mean()) < 0.03
    )

    for k, index in enumerate((5, 7, 9)):  # the instants are raw frames spread over the exposure
        assert np.array_equal(imread_rgb(clip / f"instants/000001_{k}.png"), frames[index])
    values = whole_clips(tmp_path / "out") | {
        "dataroot_gt_instants": str(tmp_path / "out/GOPRO_Large/train")
    }
    assert check(values).problems == [] and {found.instants for found in check(values).clips} == {3}
    assert prepare("--source", raw, "--out", tmp_path / "out", "--rate", "0.9") == 3
    assert "made with other settings: instants" in capsys.readouterr().err


def test_running_again_gives_the_same_files_and_a_killed_run_goes_on(raw, tmp_path):
    prepare("--source", raw, "--out", tmp_path / "out")
    before = files(tmp_path / "out")
    prepare("--source", raw, "--out", tmp_path / "out")
    assert files(tmp_path / "out") == before
    spikes = tmp_path / "out/GOPRO_Large_spike_seq/train"
    # As a killed run leaves it
    os.rename(spikes / "GOPR0001_03_00", spikes / ".GOPR0001_03_00.tmp")
    # Without the mark it is somebody else's
    assert prepare("--source", raw, "--out", tmp_path / "out") == 3
    assert (spikes / ".GOPR0001_03_00.tmp/made.json").exists()
    (spikes / ".GOPR0001_03_00.tmp" / MARK).touch()
    prepare("--source", raw, "--out", tmp_path / "out")
    assert files(tmp_path / "out") == before
    for path in raw.glob("*/*/*.png"):  # raw frames are taken in the order of their numbers
        path.rename(path.with_name(f"frame_{int(path.stem)}.png"))
    prepare("--source", raw, "--out", tmp_path / "again")
    made = spike_files(tmp_path / "out")
    assert made == spike_files(tmp_path / "again") and "dataset.json" in made


def test_all_wrong_clips_are_named_before_the_first_is_made(raw, tmp_path, capsys):
    write_folder(raw / "train/GOPR0004_03_00", np.zeros((6, 2 * SIZE, SIZE, 3), np.uint8))
    write_folder(raw / "train/GOPR0005_11_00", moving_frames(3))
    write_folder(raw / "train/GOPR0006_03_00", np.zeros((6, SIZE + 1, SIZE, 3), np.uint8))
    assert (
        prepare("--source", raw, "--out", tmp_path / "out") == 3 and not (tmp_path / "out").exists()
    )
    said = capsys.readouterr().err
    assert (
        "3 clips cannot be made" in said
        and "GOPR0005_11_00 has 3 frames" in said
        and "33 x 32" in said
    )
    assert "clip GOPR0004_03_00 has another size than the others: 64 x 32" in said
    assert "make only the others: --leave-out GOPR0005_11_00 --leave-out GOPR0006_03_00" in said
    for number in (4, 5, 6):
        shutil.rmtree(*(raw / "train").glob(f"GOPR000{number}*"))
    odd = raw / "train/GOPR0001_03_00/000005.png"
    cv2.imwrite(str(odd), np.zeros((SIZE, SIZE + 2, 3), np.uint8))
    assert prepare("--source", raw, "--out", tmp_path / "out") == 3
    said = capsys.readouterr().err
    assert str(odd) in said and "frame of 32 x 34" in said
    assert not (tmp_path / "out/GOPRO_Large/train/GOPR0001_03_00").exists()


def test_no_clip_is_left_to_make_where_all_are_wrong(tmp_path, capsys):
    for number in (1, 2):
        write_folder(tmp_path / f"raw/train/GOPR000{number}_11_00", moving_frames(3))

    assert prepare("--source", tmp_path / "raw", "--out", tmp_path / "out") == 3

    said = capsys.readouterr().err
    assert "2 clips cannot be made" in said
    assert "make only the others" not in said


@pytest.mark.parametrize("change", ["source", "foreign", "version", "clip of two runs"])
def test_clips_that_are_there_are_only_kept_where_they_are_what_would_be_made(
    raw, tmp_path, capsys, change
):
    prepare("--source", raw, "--out", tmp_path / "out", "--leave-out", "GOPR0003_03_00")
    made = tmp_path / "out/GOPRO_Large_spike_seq/train/GOPR0001_03_00/made.json"
    if change in ("source", "clip of two runs"):
        os.utime(raw / "train/GOPR0001_03_00/000003.png", (1, 1))
    if change == "foreign":
        made.unlink()
    elif change == "version":
        made.write_text(made.read_text().replace('"version": ', '"version": 9'))
    elif change == "clip of two runs":
        shutil.rmtree(made.parent)
    before = files(tmp_path / "out")
    assert (
        prepare("--source", raw, "--out", tmp_path / "out") == 3
        and files(tmp_path / "out") == before
    )
    assert "clip GOPR0001_03_00 exists already, but differs" in capsys.readouterr().err


def test_wrong_input_is_refused_in_words(raw, tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    before = files(tmp_path)
    for arguments, words, code in (
        ("--source {}/empty", "no raw clip found", 3),
        ("--source {}/nothing --rig rig", "no raw clip found", 3),
        ("--source {}/raw --average 4", "--average is 4", 2),
        ("--source {}/raw --average 15", "has 13 frames", 3),
        ("--source {}/raw --instants 5", "averages 3 raw frames, fewer than --instants 5", 3),
        ("--source {}/raw --ratio 3", "do not divide by --ratio 3", 3),
        ("--source {}/raw --ratio 0", "--ratio is 0", 2),
        ("--source {}/raw --shot-noise -1", "--shot-noise is -1.0", 2),
        ("--source {}/raw --rate inf", "--rate is inf", 2),
        ("--source {}/raw --seed -1", "--seed is -1", 2),
        ("--source {}/raw --rate 1.01", "float > 0, <= 1", 2),
        ("--source {}/raw --interpolate 0", "--interpolate is 0", 2),
        ("--source {}/raw --test-share 1", "--test-share is 1.0", 2),
        ("--source {}/raw --crop 64", "--crop has no effect without --rig", 2),
        ("--source {}/raw --rig dim --rate 0.2", "--rate has no effect with --rig", 2),
        ("--source {}/raw --rig dimm", "ideal, rig, dim, other or random", 2),
        ("--source {}/raw --rig dim,parallaks=0", "argument 'parallaks'", 2),
        ("--source {}/raw --rig rig,exposure=1", "does not fit into the interval", 2),
        ("--source {}/raw --rig dim --crop 300", "at most --side 288", 2),
        ("--source {}/raw --rig dim --crop 64", "no source can be used", 3),
        ("--source {}/raw --leave-out GOPR0001", "no such clip: --leave-out GOPR0001", 2),
        ("--source {}/raw --out {}/raw/train", "would write over the input", 2),
    ):
        assert (
            prepare("--out", tmp_path / "out", *arguments.replace("{}", str(tmp_path)).split())
            == code
        ), words
        assert words in capsys.readouterr().err and files(tmp_path) == before


@pytest.mark.parametrize(
    ("count", "share", "tests"),
    [(2, 0.7, 1), (10, 0.7, 7), (10, 0.2, 2), (3, 0.01, 1), (1, 0.9, 0), (5, 0.0, 0)],
)
def test_neither_all_nor_no_clips_are_for_testing(tmp_path, count, share, tests):
    raw = [RawClip(f"c{i}", tmp_path, "") for i in range(count)]
    splits = choose_splits(raw, share, tmp_path)
    assert list(splits.values()).count("test") == tests
    for name, split in splits.items():
        (tmp_path / "GOPRO_Large" / split / name).mkdir(parents=True)
    later = choose_splits(
        [*raw, *(RawClip(f"d{i}", tmp_path, "") for i in range(4))], share, tmp_path
    )
    assert {name: later[name] for name in splits} == splits


def test_the_documented_layout_is_that_of_the_reference_options(raw, tmp_path, monkeypatch):
    reference = Path("options/vrt/006_train_vrt_videodeblurring_gopro_rgbspike.json").resolve()
    raw.rename(tmp_path / "GOPRO_Large_all")
    monkeypatch.chdir(tmp_path)
    assert prepare("--source", "GOPRO_Large_all", "--out", "trainsets") == 0
    sizes = [f"datasets.{split}.spike.{side}=16" for split in ("train", "test") for side in "hw"]
    # One of the clips has exposures of three raw frames, 24 planes.
    sizes += [
        f"datasets.{split}.spike.representation.half_windows=[1,2,3]" for split in ("train", "test")
    ]
    opt = load_options(
        reference, [*sizes, "datasets.train.gt_size=16", "netG.img_size=[6,16,16]"], PARTS
    )

    for split, names in (
        ("train", ["GOPR0001_03_00", "GOPR0002_05_00"]),
        ("test", ["GOPR0003_03_00"]),
    ):
        dataset = build_dataset(getattr(opt.datasets, split), split, 0)
        assert isinstance(dataset, ClipDataset)
        assert [clip.name for clip in dataset.clips] == names


@pytest.mark.parametrize("method", ["flow", "linear"])
def test_light_moves_from_one_frame_to_the_next(method):
    fine = moving_frames(9, step=0.5).astype(np.float32)[..., 0] / 255
    path, truth = LightPath(lambda i: fine[4 * i], 3, method), LightPath(lambda i: fine[i], 9)
    errors = [float(np.abs(path.at(i / 4) - truth.at(i)).mean()) for i in range(9)]

    assert max(errors[0], errors[4], errors[8]) == 0.0
    assert max(errors) < (0.01 if method == "flow" else 0.04)
    assert np.array_equal(path.at(-1), path.at(0)) and np.array_equal(path.at(99), path.at(2))


def test_videos_are_clips_and_a_second_start_keeps_the_split_of_the_first(tmp_path):
    (tmp_path / "raw").mkdir()
    for number in range(6):
        with VideoWriter(tmp_path / f"raw/c{number}.mp4", fps=240) as video:
            for frame in moving_frames(9, seed=number):
                video.write(frame)
    arguments = (
        "--source",
        tmp_path / "raw",
        "--out",
        tmp_path / "out",
        "--average",
        3,
        "--test-share",
        0.4,
    )
    assert prepare(*arguments) == 0
    whole = files(tmp_path / "out")
    assert [
        len(list((tmp_path / "out").glob(f"*/{split}/*/sharp/*.png")))
        for split in ("train", "test")
    ] == [12, 6]
    # What an interruption leaves: dataset.json, and the spikes of the clips that were begun.
    shutil.rmtree(tmp_path / "out/GOPRO_Large")
    for clip in (tmp_path / "out/GOPRO_Large_spike_seq").glob("*/c[2-5]"):
        shutil.rmtree(clip)

    assert prepare(*arguments) == 0 and files(tmp_path / "out") == whole


def test_a_killed_run_leaves_no_process_and_continues_to_the_same_bytes(tmp_path, capsys):
    raw, out = tmp_path / "GOPRO_Large_all", tmp_path / "out"
    total = write_tree(raw)
    command = [
        sys.executable,
        "scripts/prepare_gopro_spike.py",
        "--source",
        str(raw),
        "--out",
        str(out),
    ]
    environment = {name: value for name, value in os.environ.items() if name != "TQDM_DISABLE"}
    run = subprocess.Popen(
        [*command, "--workers", "2"],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    line = next(line for line in present(run.stdout) if re.match(r"making: [4-9]\d %", line))
    while run.poll() is None and not any(folder.endswith(".tmp") for folder, *_ in os.walk(out)):
        time.sleep(0.001)
    run.kill()
    rest, _ = run.communicate()  # ends when the last process does

    progress = r"(\d+) of (\d+) frames, [\d.]+ a second, \d\d:\d\d:\d\d left"
    done, of = map(int, found(progress, line).groups())
    assert of == total and 0.4 * of <= done < of and "made " not in rest
    finished = {path: path.stat().st_mtime_ns for path in out.glob("*/*/*/made.json")}
    assert finished and list(out.glob("*/*/.*.tmp"))

    assert prepare("--source", raw, "--out", out) == 0
    counted = [
        int(number) for number in re.findall(r"making: .* of (\d+) frames", capsys.readouterr().out)
    ]
    left = total - sum(len(list(path.parent.glob("spike/*"))) * 3 for path in finished)
    assert counted and set(counted) == {left}
    assert {path: path.stat().st_mtime_ns for path in finished} == finished
    prepare("--source", raw, "--out", tmp_path / "whole")
    assert files(out) == files(tmp_path / "whole")


def test_an_error_ends_the_other_processes_at_once_and_a_process_that_dies_is_reported():
    with pytest.raises(ValueError, match="non-negative"):
        run_counted(2, time.sleep, [(300,), (-1,), (300,), (300,)], "sleeping", "calls")
    assert not multiprocessing.active_children()
    with pytest.raises(DataError, match="a process of the pool died"):
        run_counted(2, os._exit, [(7,), (7,)], "ending", "calls")


def test_any_video_and_photograph_becomes_clips_of_a_rig_that_training_reads(tmp_path, capsys):
    source, out = tmp_path / "sources", tmp_path / "out"
    shown = np.repeat(np.repeat(moving_frames(16, step=1.5), 2, 1), 2, 2)
    # A cut after 16 frames
    write_folder(source / "train/walk", np.concatenate((shown, 255 - shown[:9])))
    write_folder(source / "train/tiny", moving_frames(9))
    (source / "test").mkdir()
    cv2.imwrite(
        str(source / "test/photo.png"),
        np.random.default_rng(0).integers(0, 255, (90, 120, 3), np.uint8),
    )
    how = (
        "--rig",
        "random",
        "--side",
        56,
        "--crop",
        48,
        "--frames",
        3,
        "--planes",
        16,
        "--clips",
        2,
    )
    assert prepare("--source", source, "--out", out, *how) == 0
    assert "tiny: left out: frames of 32 x 32" in capsys.readouterr().out

    clips = json.loads((out / "GOPRO_Large_spike_seq/dataset.json").read_text())["clips"]
    assert {name: clip["split"] for name, clip in clips.items()} == {
        "walk_00": "train", "walk_01": "train", "photo_00": "test", "photo_01": "test",
    }  # fmt: skip
    rates = {clip["rate"] for clip in clips.values()}
    assert len(rates) == 4 and all(0.06 <= rate <= 0.8 for rate in rates)
    recorded = whole_clips(out)
    recorded["spike"] = {"type": "dat", "center": "file", "calibration": "recorded"}
    report = check(recorded, decode=True)
    assert report.problems == [] and {clip.planes for clip in report.clips} == {(16, 16, 16)}
    for clip in report.clips:
        own = clips[clip.name]
        assert (
            clip.spikes.rate == own["rate"]
            and clip.spikes.calibration.matrix == own["calibration"]["matrix"]
        )
    for name, clip in clips.items():
        cut, calibration = clip["cut"], read_section(Calibration, clip["calibration"], "")
        again = Rig(**calibration.made["rig"]).calibration((24, 24), (48, 48))
        assert again.digest() == calibration.digest()
        assert cut["first"] + 3 * cut["average"] + 2 <= 16 or cut["first"] >= 16 or "photo" in name
    before = files(out)
    assert prepare("--source", source, "--out", out, *how) == 0 and files(out) == before


def test_the_sharp_frames_of_a_rig_are_parts_of_real_frames_and_blur_is_the_mean_between(
    tmp_path,
):
    frames = moving_frames(12, step=2.0)
    write_folder(tmp_path / "videos/video", frames)
    off = "rolling=0,contrast=0,shot=0,read=0,jpeg=0,shift_x=0,shift_y=0,parallax=0"
    rig = f"rig,exposure=1,{off},rate=0.9"
    how = (
        "--rig",
        rig,
        "--side",
        32,
        "--crop",
        24,
        "--frames",
        4,
        "--planes",
        96,
        "--average",
        2,
        "--clips",
        1,
    )
    assert prepare("--source", tmp_path / "videos", "--out", tmp_path / "out", *how) == 0

    clip = tmp_path / "out/GOPRO_Large/train/video_00"
    for number in range(4):
        sharp, blurry = (
            imread_rgb(clip / kind / f"{number:06d}.png") for kind in ("sharp", "blur")
        )
        found = cv2.matchTemplate(frames[1 + 2 * number], sharp, cv2.TM_SQDIFF)
        assert found.min() <= 24 * 24 * 3 and 0.5 < np.abs(blurry.astype(float) - sharp).mean() < 30
    spikes = read_spikes(next((tmp_path / "out").rglob("000002.dat")), SpikeGeometry(12, 12))
    sharp = imread_rgb(clip / "sharp/000002.png")
    light = cv2.resize(
        ((sharp / 255) ** 2.2) @ [0.299, 0.587, 0.114], (12, 12), interpolation=cv2.INTER_AREA
    )
    assert np.corrcoef(spikes[36:61].mean(0).ravel(), light.ravel())[0, 1] > 0.9

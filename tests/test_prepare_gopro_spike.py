import json
import os

import cv2
import numpy as np
import pytest

from data.preflight import check
from data.raw_video import LightPath
from data.select_dataset import build_dataset, section_source
from data.spike.represent import represent
from data.spike.stream import SpikeGeometry, read_dat
from scripts import prepare_gopro_spike
from utils.utils_video import VideoWriter

SIZE = 32


def moving_frames(count, seed=0, step=0.5):
    """(count, 32, 32, 3) uint8: smooth clouds that move `step` pixels to the right per frame."""
    clouds = cv2.GaussianBlur(np.random.default_rng(seed).random((SIZE, 96, 3)).astype(np.float32), (0, 0), 3)
    clouds = (clouds - clouds.min()) / np.ptp(clouds)
    x, y = np.meshgrid(np.arange(SIZE, dtype=np.float32), np.arange(SIZE, dtype=np.float32))
    frames = [cv2.remap(clouds, x + 40 - step * i, y, cv2.INTER_LINEAR) for i in range(count)]
    return np.rint(255 * np.stack(frames)).astype(np.uint8)


def write_folder(path, frames):
    path.mkdir(parents=True)
    for number, frame in enumerate(frames):
        cv2.imwrite(str(path / f"{number + 1:06d}.png"), frame[..., ::-1])


@pytest.fixture
def raw(tmp_path):
    write_folder(tmp_path / "raw/train/GOPR0001_03_00", moving_frames(13, seed=1))
    write_folder(tmp_path / "raw/train/GOPR0002_05_00", moving_frames(10, seed=2))
    write_folder(tmp_path / "raw/test/GOPR0003_03_00", moving_frames(9, seed=3))
    return tmp_path / "raw"


def prepare(*arguments):
    return prepare_gopro_spike.main([*map(str, arguments), "--workers", "1"])


def files(root):
    return {str(p.relative_to(root)): p.read_bytes() for p in sorted(root.rglob("*")) if p.is_file()}


def section(out, split="train"):
    rgb = str(out / "GOPRO_Large" / split)
    return {
        "dataset_type": "TestDatasetRGBSpike", "dataroot_gt": rgb, "dataroot_lq": rgb,
        "dataroot_spike": str(out / "GOPRO_Large_spike_seq" / split),
        "spike": {"type": "dat", "representation": {"type": "voxel", "num_bins": 4}},
    }  # fmt: skip


def test_raw_clips_become_clips_that_training_reads(raw, tmp_path):
    before = files(raw)
    assert prepare("--source", raw, "--out", tmp_path / "out") == 0

    assert files(raw) == before
    report = check(section_source(section(tmp_path / "out"), "train"), "train", decode=True)
    assert report.problems == [] and report.warnings == []
    # 13 frames make 4 exposures of 3 and one frame to interpolate to; 10 frames make 2 of 5 with none after them.
    assert {clip.name: clip.planes for clip in report.clips} == {
        "GOPR0001_03_00": (24, 24, 24, 24), "GOPR0002_05_00": (40, 33),
    }  # fmt: skip
    item = build_dataset(section(tmp_path / "out", "test"), "test", 0)[0]
    assert item["key"] == "GOPR0003_03_00" and item["lq"].shape == (3, 3, SIZE, SIZE)


def test_blur_is_the_mean_sharp_the_middle_and_the_spikes_see_the_sharp_moment(raw, tmp_path):
    prepare("--source", raw, "--out", tmp_path / "out", "--rate", "0.9")
    clip = tmp_path / "out/GOPRO_Large/train/GOPR0002_05_00"
    frames = moving_frames(10, seed=2).astype(np.float64)
    picture = {kind: cv2.imread(str(clip / kind / "000001.png"))[..., ::-1] for kind in ("blur", "blur_gamma", "sharp")}

    assert np.array_equal(picture["sharp"], frames[7])
    assert np.abs(picture["blur"] - frames[5:10].mean(0)).max() <= 0.5
    linear = ((frames[5:10] / 255) ** 2.2).mean(0) ** (1 / 2.2) * 255
    assert np.abs(picture["blur_gamma"] - linear).max() <= 0.51
    about = json.loads((tmp_path / "out/GOPRO_Large_spike_seq/dataset.json").read_text())
    assert about["clips"]["GOPR0002_05_00"] == {"planes": 40, "gt_plane": 16}  # 4 n - 4 with n = 5
    path = tmp_path / "out/GOPRO_Large_spike_seq/train/GOPR0002_05_00/spike/000001.dat"
    spikes = read_dat(path, SpikeGeometry(16, 16))
    seen = represent("tfp", spikes, 16, half_window=12, rate=0.9)[0]
    light = cv2.resize(
        ((picture["sharp"] / 255) ** 2.2) @ [0.299, 0.587, 0.114], (16, 16), interpolation=cv2.INTER_AREA
    )
    assert np.corrcoef(seen.ravel(), light.ravel())[0, 1] > 0.9 and abs(seen.mean() - light.mean()) < 0.03


def test_running_again_changes_nothing_and_an_interrupted_run_goes_on(raw, tmp_path):
    prepare("--source", raw, "--out", tmp_path / "out")
    before = files(tmp_path / "out")
    prepare("--source", raw, "--out", tmp_path / "out")
    assert files(tmp_path / "out") == before
    spikes = tmp_path / "out/GOPRO_Large_spike_seq/train"
    os.rename(spikes / "GOPR0001_03_00", spikes / ".GOPR0001_03_00.tmp")  # as a killed run leaves it
    prepare("--source", raw, "--out", tmp_path / "out")
    assert files(tmp_path / "out") == before


def test_other_settings_are_not_mixed_into_a_folder(raw, tmp_path, capsys):
    prepare("--source", raw, "--out", tmp_path / "out")
    assert prepare("--source", raw, "--out", tmp_path / "out", "--rate", "0.9") == 3
    assert "made with other settings: rate" in capsys.readouterr().err


def test_a_dry_run_says_what_would_be_made_and_writes_nothing(raw, tmp_path, capsys):
    assert prepare("--source", raw, "--out", tmp_path / "out", "--dry-run") == 0
    said = capsys.readouterr().out
    assert "3 clips, 0 of them made already" in said
    assert "train/GOPR0002_05_00: 5 frames averaged, 40 planes a file" in said
    assert not (tmp_path / "out").exists()


def test_spikes_for_existing_frames_are_those_of_the_raw_clip(raw, tmp_path):
    prepare("--source", raw, "--out", tmp_path / "out")
    existing = tmp_path / "out/GOPRO_Large"
    assert prepare("--source", raw, "--spikes-for", existing, "--out", tmp_path / "more") == 0

    assert not (tmp_path / "more/GOPRO_Large").exists()
    made, again = (files(tmp_path / name / "GOPRO_Large_spike_seq") for name in ("out", "more"))
    assert made == again


def test_without_raw_frames_the_light_between_sharp_frames_is_interpolated(raw, tmp_path):
    prepare("--source", raw, "--out", tmp_path / "out", "--rate", "0.9")
    prepare("--spikes-for", tmp_path / "out/GOPRO_Large", "--out", tmp_path / "more", "--rate", "0.9")
    name = "GOPRO_Large_spike_seq/test/GOPR0003_03_00/spike/000001.dat"
    true, made = (read_dat(tmp_path / folder / name, SpikeGeometry(16, 16)).mean(0) for folder in ("out", "more"))
    assert made.shape == (16, 16) and np.corrcoef(true.ravel(), made.ravel())[0, 1] > 0.97


def test_a_raw_clip_that_does_not_belong_to_the_frames_is_refused(raw, tmp_path, capsys):
    prepare("--source", raw, "--out", tmp_path / "out")
    for path in (raw / "test/GOPR0003_03_00").iterdir():
        cv2.imwrite(str(path), np.zeros((SIZE, SIZE, 3), np.uint8))
    assert prepare("--source", raw, "--spikes-for", tmp_path / "out/GOPRO_Large", "--out", tmp_path / "more") == 3
    assert "its first sharp frame is not frame 1 of the raw clip" in capsys.readouterr().err


def test_a_video_file_is_a_clip(tmp_path):
    (tmp_path / "videos").mkdir()
    for name in ("a", "b"):
        with VideoWriter(tmp_path / f"videos/{name}.mp4", fps=240) as video:
            for frame in moving_frames(8):
                video.write(frame)
    assert (
        prepare("--source", tmp_path / "videos", "--out", tmp_path / "out", "--average", "3", "--test-share", "0.5")
        == 0
    )
    assert len(list((tmp_path / "out/GOPRO_Large/train/a/sharp").iterdir())) == 2
    assert len(list((tmp_path / "out/GOPRO_Large_spike_seq/test/b/spike").iterdir())) == 2


def test_wrong_input_is_refused_in_words(raw, tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    for arguments, words, code in (
        (["--source", tmp_path / "empty"], "no raw clip found", 3),
        ([], "nothing to read", 2),
        (["--source", raw, "--average", "4"], "--average is 4", 2),
        (["--source", raw, "--average", "15"], "has 13 frames", 3),
        (["--source", raw, "--ratio", "3"], "do not divide by --ratio 3", 3),
        (["--source", raw, "--spikes-for", tmp_path / "empty"], "no clip found", 3),
    ):
        assert prepare(*arguments, "--out", tmp_path / "out") == code
        assert words in capsys.readouterr().err


class Still:
    def __init__(self, frames):
        self.frames = frames

    def __len__(self):
        return len(self.frames)

    def read(self, index):
        return self.frames[index]


@pytest.mark.parametrize("method", ["flow", "linear"])
def test_light_moves_from_one_frame_to_the_next(method):
    fine = moving_frames(9, step=0.5)
    path = LightPath(Still(fine[::4]), (SIZE, SIZE), 1.0, method)
    truth = LightPath(Still(fine), (SIZE, SIZE), 1.0, "linear")
    errors = [float(np.abs(path.at(i / 4) - truth.at(i)).mean()) for i in range(9)]

    assert max(errors[0], errors[4], errors[8]) == 0.0
    assert max(errors) < (0.01 if method == "flow" else 0.04)
    assert np.array_equal(path.at(-1), path.at(0)) and np.array_equal(path.at(99), path.at(2))

"""Several sharp instants of each exposure: files, samples, the network, the test program.

A blurry frame shows a whole exposure. An instant is the sharp frame of one moment in it, so the
instants of a frame are a short slow-motion film. In the clips of these tests, each frame has three
instants. The green value of a picture says which instant it is, counted from 1. The spikes of a
frame are all in the first half of its exposure. `write_clip` (tests/helpers/clip_files.py) writes
these clips.
"""

import json
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from data.select_dataset import build_dataset
from models.metrics import psnr
from models.select_network import define_G
from tests.helpers.clip_files import (
    add_cache,
    check_clips,
    data_section,
    equal_samples,
    write_clip,
    write_info,
)
from tests.helpers.tensor_clip import restore_clip
from tests.helpers.train_files import history, network_section, train, write_options
from tests.helpers.weights_files import read_metrics, refusal_message, restore, save_weights
from utils.errors import OptionError
from utils.image import imread_rgb
from utils.video.reader import VideoReader

# Instants of a frame. The middle one is the sharp frame of clips without instants.
INSTANTS = 3
# Exit codes of a refusal: an option must be changed, or the data do not fit.
CHANGE_OPTIONS = 2
DATA_DO_NOT_FIT = 3


@pytest.fixture(scope="module")
def clips(tmp_path_factory) -> Path:
    """Give a folder with two training clips, of 4 and 2 frames, with three instants each."""
    root = tmp_path_factory.mktemp("clips")
    write_clip(root, "clip0", frames=4, instants=INSTANTS)
    # This clip is shorter than a sample of 3 frames, so it is played back and forth.
    write_clip(root, "clip1", frames=2, first=47, seed=1, instants=INSTANTS)
    write_info(root)
    return root


def with_instants(root: Path, split: str = "train", **changes: Any) -> dict[str, Any]:
    """Return a section of `datasets` that reads the instants. changes: additional keys."""
    folder = str(root / "GOPRO_Large" / split)
    return data_section(root, split, dataroot_gt_instants=folder, **changes)


def build(root: Path, **changes: Any) -> Any:
    """Return a data set of training that flips, turns and reverses its samples."""
    turns: dict[str, Any] = {"use_hflip": True, "use_rot": True, "random_reverse": True}
    return build_dataset(with_instants(root, **turns, **changes), "train", seed=0)


# ---- Samples ----


class SampleFrame(NamedTuple):
    """A frame of a sample."""

    instants: Tensor  # (INSTANTS, RGB, H, W), values of 8 bits
    lq: Tensor  # the blurry frame, (RGB, H, W), values of 8 bits
    is_reversed: bool  # whether time runs backwards within the exposure


@pytest.fixture(scope="module")
def samples(clips) -> list[dict[str, Any]]:
    """Give all samples of four epochs, so that each flip, turn and direction of time occurs."""
    dataset = build(clips)
    found = []
    for epoch in range(4):
        for number in range(len(dataset)):
            found.append(dataset[(epoch, number)])
    return found


@pytest.fixture(scope="module")
def sample_frames(samples) -> list[SampleFrame]:
    """Give the frames of all samples."""
    frames = []
    for sample in samples:
        # (frames, 9, H, W) -> (frames, INSTANTS, RGB, H, W)
        instants = sample["gt_instants"].unflatten(1, (INSTANTS, 3))
        instants = (instants * 255).round().int()
        lq = (sample["lq"] * 255).round().int()
        for number in range(3):
            # Channel 0 counts the spikes in the first half of the exposure, and channel 1 counts
            # the spikes in the second half. All spikes are in the first half, or in the second half
            # if time is reversed.
            first_half, second_half = sample["spike"][number].sum((1, 2))
            is_reversed = bool(first_half < second_half)
            frames.append(SampleFrame(instants[number], lq[number], is_reversed))
    return frames


def test_the_middle_instant_is_the_sharp_frame(samples):
    for sample in samples:
        # The channels are R0 G0 B0 R1 G1 B1 R2 G2 B2, with the number of the instant.
        middle_instant = sample["gt_instants"][:, 3:6]
        assert torch.equal(sample["gt"], middle_instant)


def test_samples_are_drawn_in_both_directions_of_time(sample_frames):
    assert {frame.is_reversed for frame in sample_frames} == {False, True}


def test_instants_are_reversed_with_the_time_of_the_frame(sample_frames):
    for frame in sample_frames:
        numbers = [int(instant[1].unique()) for instant in frame.instants]  # 1: green
        expected = [3, 2, 1] if frame.is_reversed else [1, 2, 3]
        assert numbers == expected


def test_instants_are_turned_with_the_frame(sample_frames):
    for frame in sample_frames:
        for instant in frame.instants:
            # The red of a blurry frame is twice the red of its instants, pixel by pixel.
            assert torch.equal(2 * instant[0], frame.lq[0])  # 0: red


@pytest.fixture(scope="module")
def plain_set(clips) -> Any:
    """Give the data set that reads the files for each sample."""
    # 0 means no windows. Former versions saved this value in their option files.
    return build(clips, rate_windows=0)


def assert_same_samples(dataset: Any, expected: Any) -> None:
    """Check that two data sets have the same samples. A data set has a sample for each frame."""
    assert len(dataset) == len(expected) == 4 + 2
    epoch = 1
    for number in range(len(expected)):
        assert equal_samples(dataset[(epoch, number)], expected[(epoch, number)])


# `clips` is a folder with two training clips, of 4 and 2 frames. `plain_set` reads the files of
# these clips.
def test_a_cache_gives_the_same_samples_as_the_files(clips, plain_set, tmp_path):
    # `add_cache` makes a cache, and returns the section that reads it.
    backend = add_cache(with_instants(clips), tmp_path / "cache")["io_backend"]

    assert_same_samples(build(clips, io_backend=backend), plain_set)


def test_memory_gives_the_same_samples_as_the_files(clips, plain_set):
    kept = build(clips, cache_data=True)

    # The first call reads the files and keeps the samples. The second call takes the samples from
    # memory.
    assert_same_samples(kept, plain_set)
    assert_same_samples(kept, plain_set)


# ---- Files ----


@pytest.fixture
def problem_of(tmp_path) -> dict[str, str]:
    """Give {clip: problem}. clip0 lacks an instant of a frame, and clip1 has two instants."""
    write_clip(tmp_path, "clip0", frames=3, instants=3)
    write_clip(tmp_path, "clip1", frames=2, instants=2)
    write_info(tmp_path)
    (tmp_path / "GOPRO_Large/train/clip0/instants/000001_1.png").unlink()

    report = check_clips(with_instants(tmp_path))
    return {problem.clip: problem.what for problem in report.problems}


def test_a_missing_instant_is_a_problem(problem_of):
    assert "other files than _0 ... _2 for 1 frames, such as 000001" in problem_of["clip0"]


def test_an_even_number_of_instants_is_a_problem(problem_of):
    # An even number has no instant in the middle, which would be the sharp frame.
    assert "has 2 files" in problem_of["clip1"]
    assert "must be odd" in problem_of["clip1"]


def test_other_files_beside_the_instants_are_left_alone(clips, tmp_path):
    shutil.copytree(clips, tmp_path / "clips")
    folder = tmp_path / "clips/GOPRO_Large/train/clip0/instants"
    # The first three names have no number of an instant. 99_0.png is an instant of frame 99, but
    # the clip has no frame 99.
    for name in ("notes_a.png", "000000_x.png", "preview.png", "99_0.png"):
        shutil.copy(folder / "000000_0.png", folder / name)

    first_clip = build(tmp_path / "clips").clips[0]

    assert first_clip.instants == INSTANTS


def test_instants_without_the_folder_of_their_middle_frames_are_refused(clips):
    with pytest.raises(OptionError, match="dataroot_gt_instants without dataroot_gt"):
        build(clips, dataroot_gt=None)


# ---- The network ----


def test_a_fresh_network_returns_its_input_at_every_instant():
    net = define_G({"netG": network_section(fusion="none", out_instants=5)})
    lq = torch.rand(1, 2, 3, 32, 32)  # (B, frames, RGB, H, W)

    restored = net(lq)

    assert torch.allclose(restored, lq.repeat(1, 1, 5, 1, 1), atol=1e-6)


def test_a_network_of_an_even_number_of_instants_is_refused():
    with pytest.raises(OptionError, match=r"netG\.out_instants is 4"):
        define_G({"netG": network_section(fusion="none", out_instants=4)})


class BrighterWithTime(nn.Module):
    """A network whose instants get brighter with time: by -0.1, 0 and +0.1 for spikes of 1.

    In reversed time the spikes are -1, so the instants get darker.
    """

    def forward(self, lq: Tensor, spike: Tensor) -> Tensor:
        return torch.cat([lq - 0.1 * spike, lq, lq + 0.1 * spike], dim=2)


def test_flip_seq_averages_each_instant_with_the_same_instant_in_reversed_time():
    lq = torch.rand(1, 4, 3, 16, 16)
    spike = torch.ones(1, 4, 1, 16, 16)
    options = {
        "least_size": (8, 8),
        "stride": 8,
        "window_size": (2, 8, 8),
        "out_instants": INSTANTS,
    }
    net = BrighterWithTime()

    forwards = restore_clip(net, lq, spike, **options)
    # flip_seq restores in both directions of time, and takes the mean of the two results.
    both = restore_clip(net, lq, spike, spike_reversed=-spike, flip_seq=True, **options)

    # At each instant, this network gives the same frame in both directions. If the instants of the
    # reversed direction were not put in reverse order, the mean would be lq at each instant.
    assert torch.allclose(both, forwards, atol=1e-6)


# ---- The test program ----


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    """Give a folder with test clips with instants, an option file, and random weights."""
    folder = tmp_path_factory.mktemp("home")
    options = write_options(folder, instants=INSTANTS, netG=network_section(out_instants=INSTANTS))
    values = json.loads(options.read_text())
    for split in ("train", "test"):
        values["datasets"][split]["dataroot_gt_instants"] = str(folder / "GOPRO_Large" / split)
    options.write_text(json.dumps(values))
    save_weights(options, folder / "weights.pth")
    return folder


def arguments_of_test(home: Path, out: Path, *more: object) -> list[object]:
    """Return the arguments that test the weights. more: additional arguments."""
    weights = home / "weights.pth"
    return ["--opt", home / "options.json", "--weights", weights, "--output", out, *more]


@pytest.fixture(scope="module")
def tested_folder(home) -> Path:
    """Give the results of a test that saved frames and the film of all instants."""
    folder = home / "tested"
    restore(*arguments_of_test(home, folder, "--save", "frames", "slowmotion"))
    return folder


def test_the_slow_film_shows_every_instant_at_the_rate_of_usual_films(tested_folder):
    film = VideoReader(tested_folder / "test1_slowmotion.mp4")

    # Clip test1 has 3 frames.
    assert film.num_frames == 3 * INSTANTS
    assert film.fps == 25


@pytest.mark.parametrize("instant", range(INSTANTS))
def test_the_slow_film_shows_the_saved_instants(tested_folder, instant):
    film = VideoReader(tested_folder / "test1_slowmotion.mp4")

    saved = imread_rgb(tested_folder / f"instants/test1/000002_{instant}.png")

    # Frame 2 has the instants 6, 7 and 8 of the film. A film is compressed, so its values differ
    # from the picture by some of the 255 levels. The limit of 8 levels was chosen by hand.
    shown = film.read(2 * INSTANTS + instant).astype(int)
    assert np.abs(shown - saved).mean() < 8


@pytest.mark.parametrize("instant", range(INSTANTS))
def test_an_instant_has_the_score_of_its_saved_picture(home, tested_folder, instant):
    restored = imread_rgb(tested_folder / f"instants/test1/000002_{instant}.png")
    truth = imread_rgb(home / f"GOPRO_Large/test/test1/instants/000002_{instant}.png")

    per_frame = read_metrics(tested_folder)["clips"]["test1"]["per_frame"]
    scores = per_frame[f"instant {instant}"]["psnr"]  # one score for each frame

    assert scores[2] == pytest.approx(psnr(restored, truth))  # 2: the frame 000002


def test_the_saved_frame_is_the_middle_instant(tested_folder):
    frame = imread_rgb(tested_folder / "test1/000002.png")

    assert np.array_equal(frame, imread_rgb(tested_folder / "instants/test1/000002_1.png"))


def test_the_table_has_the_mean_of_each_instant(tested_folder):
    averages = read_metrics(tested_folder)["averages"]

    means = []
    for number in range(INSTANTS):
        mean = averages[f"instant {number}"]["psnr"]
        means.append(f"{mean:.2f}")
    table = (tested_folder / "table.txt").read_text()
    assert f"PSNR dB of the instants, mean over clips: {', '.join(means)}" in table


def test_a_complete_test_with_instants_can_be_repeated(home, tested_folder):
    before = read_metrics(tested_folder)

    restore(*arguments_of_test(home, tested_folder, "--save", "frames", "slowmotion"))

    assert read_metrics(tested_folder) == before


@pytest.fixture(scope="module")
def exact_averages(home) -> dict[str, Any]:
    """Give the averages of a test that scores values as they are, not rounded to 8 bits."""
    restore(*arguments_of_test(home, home / "exact", "metric.values=clamped"))
    return read_metrics(home / "exact")["averages"]


@pytest.mark.parametrize("instant", range(INSTANTS))
def test_the_scores_of_exact_values_differ_a_little(tested_folder, exact_averages, instant):
    rounded = read_metrics(tested_folder)["averages"][f"instant {instant}"]["psnr"]
    exact = exact_averages[f"instant {instant}"]["psnr"]

    assert exact == pytest.approx(rounded, abs=0.05)  # dB
    assert exact != rounded


def test_the_middle_instant_has_the_exact_score_of_the_frame(exact_averages):
    assert exact_averages["instant 1"]["psnr"] == exact_averages["restored"]["psnr"]


def test_another_number_of_instants_than_the_data_have_is_refused(home, tmp_path, capfd):
    out = tmp_path / "refused"

    # `refusal_message` runs main_test_vrt.py.
    text, code = refusal_message(capfd, *arguments_of_test(home, out, "netG.out_instants=5"))

    assert code == DATA_DO_NOT_FIT
    assert "has 3 sharp frames for each blurry frame" in text
    assert "netG.out_instants is 5" in text
    assert not out.exists()


def test_a_slow_film_of_a_single_instant_is_refused(home, tmp_path, capfd):
    out = tmp_path / "refused"
    one_instant = ("netG.out_instants=1", "datasets.test.dataroot_gt_instants=null")
    command = arguments_of_test(home, out, *one_instant, "--save", "slowmotion")

    text, code = refusal_message(capfd, *command)

    assert code == CHANGE_OPTIONS
    assert "--save slowmotion" in text
    assert not out.exists()


# ---- Training ----


def test_training_compares_every_instant(home):
    result = train(home / "options.json", "train.total_iter=2", "debug.every=1")

    assert result.exit_codes == [0], result.text
    # debug.every prints the shape of the truth: 9 channels, the colours of 3 instants.
    assert "gt (1, 2, 9, 32, 32)" in result.text
    assert history(home / "options.json")["val/psnr"]

"""Several sharp instants of each exposure: files, samples, the network, the test program.

A blurry frame shows a whole exposure. An instant is the sharp frame of one moment in it, so K
instants of a frame are a short slow-motion film. In the clips of these tests, green says which
instant a picture is, and all spikes are in the first half of an exposure.
"""

import json
import shutil

import numpy as np
import pytest
import torch
from torch import nn

from data.select_dataset import build_dataset
from models.metrics import psnr
from models.select_network import define_G
from tests.helpers.clip_files import cached, check, same, section, write_clip, write_info
from tests.helpers.tensor_clip import restore_clip
from tests.helpers.train_files import history, network, train, write_options
from tests.helpers.weights_files import message, metrics, restore, save_weights
from utils.errors import OptionError
from utils.image import imread_rgb
from utils.video import VideoReader

# Instants of a frame. The middle one is the sharp frame of clips without instants.
K = 3


@pytest.fixture(scope="module")
def clips(tmp_path_factory):
    """Give a folder with two training clips, of 4 and 2 frames, with K instants of each frame."""
    root = tmp_path_factory.mktemp("clips")
    write_clip(root, "clip0", frames=4, instants=K)
    # This clip is shorter than a sample, so it is played back and forth.
    write_clip(root, "clip1", frames=2, first=47, seed=1, instants=K)
    write_info(root)
    return root


def with_instants(root, split="train", **changes):
    """Return a section of `datasets` that reads the instants. changes: further keys."""
    return section(root, split, dataroot_gt_instants=str(root / "GOPRO_Large" / split), **changes)


def build(root, **changes):
    """Return a data set of training that flips, turns and reverses its samples."""
    turns = {"use_hflip": True, "use_rot": True, "random_reverse": True}
    return build_dataset(with_instants(root, **turns, **changes), "train", 0)


def test_instants_are_turned_with_the_frame_and_reversed_with_its_time(clips):
    dataset = build(clips)
    directions = set()
    for epoch in range(4):
        for index in range(len(dataset)):
            item = dataset[(epoch, index)]
            # (frames, K, RGB, H, W)
            instants = (item["gt_instants"].unflatten(1, (K, 3)) * 255).round().int()
            # The middle instant is the sharp frame.
            assert torch.equal(item["gt"], item["gt_instants"][:, 3:6])
            for frame in range(3):
                # Channel 0 has the spikes of the first half of the exposure. They are in channel 1
                # if time is reversed.
                first, second = item["spike"][frame].sum((1, 2))
                order = [1, 2, 3] if first > second else [3, 2, 1]
                directions.add(order[0])
                assert [int(instants[frame, k, 1].unique()) for k in range(K)] == order
                # The red of a blurry frame is twice the red of its instants. So flips and turns are
                # alike in both.
                lq = (item["lq"][frame, 0] * 255).round().int()
                assert all(torch.equal(2 * instants[frame, k, 0], lq) for k in range(K))

    assert directions == {1, 3}


def test_samples_from_a_cache_and_from_memory_are_those_from_the_files(clips, tmp_path):
    # Former versions saved rate_windows 0 for no windows.
    plain = build(clips, rate_windows=0)
    kept = build(clips, cache_data=True)
    from_cache = build(
        clips, io_backend=cached(with_instants(clips), tmp_path / "cache")["io_backend"]
    )
    for dataset in (from_cache, kept, kept):
        assert all(same(dataset[(1, index)], plain[(1, index)]) for index in range(6))


def test_missing_instants_and_an_even_number_are_problems(tmp_path):
    write_clip(tmp_path, "clip0", frames=3, instants=3)
    write_clip(tmp_path, "clip1", frames=2, instants=2)
    write_info(tmp_path)
    (tmp_path / "GOPRO_Large/train/clip0/instants/000001_1.png").unlink()
    problems = {problem.clip: problem.what for problem in check(with_instants(tmp_path)).problems}

    assert "other files than _0 ... _2 for 1 frames, such as 000001" in problems["clip0"]
    assert "has 2 files" in problems["clip1"]
    assert "must be odd" in problems["clip1"]


def test_a_fresh_network_returns_its_input_at_every_instant_and_flip_seq_averages_both_ways():
    net = define_G({"netG": network(fusion="none", out_instants=5)})
    lq = torch.rand(1, 2, 3, 32, 32)
    assert torch.allclose(net(lq), lq.repeat(1, 1, 5, 1, 1), atol=1e-6)
    # An even number has no instant in the middle.
    with pytest.raises(OptionError, match=r"netG\.out_instants is 4"):
        define_G({"netG": network(fusion="none", out_instants=4)})

    class ByTime(nn.Module):
        """A network whose instants get brighter with time: -0.1, 0, +0.1 for spikes of 1.

        In reversed time the spikes are -1, so the instants get darker.
        """

        def forward(self, lq, spike):
            return torch.cat([lq + 0.1 * (k - 1) * spike for k in range(K)], dim=2)

    lq = torch.rand(1, 4, 3, 16, 16)
    spike = torch.ones(1, 4, 1, 16, 16)
    options = {"least_size": (8, 8), "stride": 8, "window_size": (2, 8, 8), "out_instants": K}
    forwards = restore_clip(ByTime(), lq, spike, **options)
    # flip_seq restores in both directions of time, and takes the mean of both.
    both = restore_clip(ByTime(), lq, spike, spike_reversed=-spike, flip_seq=True, **options)
    assert torch.allclose(both, forwards, atol=1e-6)


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Give a folder with test clips with instants, an option file, and random weights."""
    folder = tmp_path_factory.mktemp("home")
    options = write_options(folder, instants=K, netG=network(out_instants=K))
    values = json.loads(options.read_text())
    for split in ("train", "test"):
        values["datasets"][split]["dataroot_gt_instants"] = str(folder / "GOPRO_Large" / split)
    options.write_text(json.dumps(values))
    save_weights(options, folder / "weights.pth")
    return folder


def test_a_test_scores_and_shows_every_instant(home):
    folder = home / "tested"
    arguments = [
        "--opt",
        home / "options.json",
        "--weights",
        home / "weights.pth",
        "--output",
        folder,
    ]
    restore(*arguments, "--save", "frames", "slowmotion")
    found = metrics(folder)
    clip = found["clips"]["test1"]
    # The film of all instants, at the frame rate of usual films.
    slow = VideoReader(folder / "test1_slowmotion.mp4")
    assert slow.num_frames == 9
    assert K * clip["frames"] == 9
    assert slow.fps == 25
    # Frame 2 has the instants 6, 7 and 8 of the film.
    for k in range(K):
        restored = imread_rgb(folder / f"instants/test1/000002_{k}.png")
        truth = imread_rgb(home / f"GOPRO_Large/test/test1/instants/000002_{k}.png")
        assert clip["per_frame"][f"instant {k}"]["psnr"][2] == pytest.approx(psnr(restored, truth))
        assert np.abs(slow.read(6 + k).astype(int) - restored).mean() < 8
    middle = imread_rgb(folder / "test1/000002.png")
    assert np.array_equal(middle, imread_rgb(folder / "instants/test1/000002_1.png"))
    means = ", ".join(f"{found['averages'][f'instant {k}']['psnr']:.2f}" for k in range(K))
    assert (
        f"PSNR dB of the instants, mean over clips: {means}" in (folder / "table.txt").read_text()
    )
    restore(*arguments, "--save", "frames", "slowmotion")  # complete: nothing to do
    # The scores of values that are not rounded differ a little.
    restore(*arguments[:-1], home / "exact", "metric.values=clamped")
    exact = metrics(home / "exact")["averages"]
    for k in range(K):
        score, rounded = (
            averages[f"instant {k}"]["psnr"] for averages in (exact, found["averages"])
        )
        assert score == pytest.approx(rounded, abs=0.05)
        assert score != rounded

    assert exact["instant 1"]["psnr"] == exact["restored"]["psnr"]


def test_training_compares_every_instant(home):
    result = train(home / "options.json", "train.total_iter=2", "debug.every=1")
    assert result.exit_codes == [0], result.text
    # 9 channels: the colours of K instants.
    assert "gt (1, 2, 9, 32, 32)" in result.text
    assert history(home / "options.json")["val/psnr"]


def test_other_numbers_of_instants_than_the_data_have_are_refused(home, capfd):
    weights = home / "weights.pth"
    out = home / "refused"
    arguments = ("--opt", home / "options.json", "--weights", weights, "--output", out)
    text, code = message(capfd, *arguments, "netG.out_instants=5")
    assert code == 3
    assert "has 3 sharp frames for each blurry one" in text
    assert "netG.out_instants is 5" in text
    changes = (
        "netG.out_instants=1",
        "datasets.test.dataroot_gt_instants=null",
        "--save",
        "slowmotion",
    )
    text, code = message(capfd, *arguments, *changes)

    assert code == 2
    assert "--save slowmotion" in text
    assert not out.exists()


def test_other_files_beside_the_instants_are_left_alone(clips, tmp_path):
    shutil.copytree(clips, tmp_path / "clips")
    folder = tmp_path / "clips/GOPRO_Large/train/clip0/instants"
    for name in ("notes_a.png", "000000_x.png", "preview.png", "99_0.png"):
        shutil.copy(folder / "000000_0.png", folder / name)

    assert build(tmp_path / "clips").clips[0].instants == K

import dataclasses
import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

import main_test_vrt
from data.first_look import compare
from data.select_dataset import build_dataset
from data.spike import simulate
from data.spike.formats import read_spikes
from data.spike.stream import SpikeGeometry
from lab import full_scenes
from lab.full_scenes import FULL, FullScene
from scripts import make_sample_data
from scripts.make_sample_data import make_sample
from tests.clip_files import section
from tests.dist.launching import ROOT
from tests.train_files import write_options
from tests.weights_files import save_weights
from utils.image import imread_rgb, panels_of


@pytest.fixture(scope="module")
def sample(tmp_path_factory):
    root = tmp_path_factory.mktemp("sets") / "sample"
    make_sample(root, seed=0, clips={"train": 1, "test": 1}, frames=2)
    return root


def smaller(monkeypatch, frames):
    """Let the program make one clip of each split."""
    size = dataclasses.replace(make_sample_data.SAMPLE, clips={"train": 1, "test": 1}, frames=frames)
    monkeypatch.setattr(make_sample_data, "SAMPLE", size)


def first_test_clip(root, gamma=2.2):
    spike = {"type": "dat", "gamma": gamma, "representation": {"type": "tfi", "half_window": 30}}
    section = {
        "dataset_type": "TestDatasetRGBSpike",
        "dataroot_gt": str(root / "GOPRO_Large/test"),
        "dataroot_lq": str(root / "GOPRO_Large/test"),
        "dataroot_spike": str(root / "GOPRO_Large_spike_seq/test"),
        "spike": spike,
    }
    return build_dataset(section, "test", 0)[0]


def test_the_first_look_at_ratios_sees_the_sharp_picture(sample):
    rgb, spikes = sample / "GOPRO_Large/train", sample / "GOPRO_Large_spike_seq/train"
    section = {
        "dataset_type": "TrainDatasetRGBSpike", "dataroot_gt": str(rgb), "dataroot_lq": str(rgb),
        "dataroot_spike": str(spikes), "num_frame": 2, "gt_size": 32,
        "spike": {"type": "dat", "gamma": 2.2, "representation": {"type": "relative", "num_bins": 8}},
    }  # fmt: skip
    dataset = build_dataset(section, "train", 0)
    look = compare(dataset, dataset.draw((0, 0)), 2)
    assert look.is_right and look.found.correlation > 0.95 and look.found.distance < 0.5


@pytest.mark.parametrize(
    "representation",
    [
        {"type": "relative", "half_windows": [2, 6, 12], "num_bins": 8},
        {"type": "voxel", "num_bins": 8},
        {"type": "raw"},
    ],
    ids=lambda r: r["type"],
)
def test_the_picture_of_the_spikes_shows_the_scene(sample, tmp_path, representation):
    gamma = {} if representation["type"] == "raw" else {"gamma": 2.2}
    spike = {"type": "dat", "center": "file", "representation": representation, **gamma}
    opt = write_options(tmp_path, datasets={"test": section(sample, "test", spike=spike)})
    weights = save_weights(opt, tmp_path / "w.pth", "netG.fusion=none")
    out = tmp_path / "out"
    assert main_test_vrt.main(["--opt", str(opt), "--weights", weights, "--output", str(out), "netG.fusion=none"]) == 0
    strip = imread_rgb(next((out / "strips").rglob("000000.png")))
    panels = panels_of(strip, ["blurry", "spikes", "restored", "sharp", "error x5"])
    spikes, sharp = (panels[name][..., 0].astype(float) for name in ("spikes", "sharp"))
    assert (spikes > 230).mean() < 0.3 and spikes.std() > 25
    assert np.corrcoef(spikes.ravel(), sharp.ravel())[0, 1] > 0.8


def psnr(a, b):
    return -10 * float(torch.log10((a - b).square().mean()))


def test_the_sample_is_read_through_the_gopro_layout(sample):
    item = first_test_clip(sample)
    assert item["lq"].shape == (2, 3, 128, 128) and item["spike"].shape == (2, 1, 128, 128)
    about = json.loads((sample / "GOPRO_Large_spike_seq/dataset.json").read_text())
    assert {key: about[key] for key in ("h", "w", "flip", "planes")} == {"h": 64, "w": 64, "flip": True, "planes": 88}


def test_the_blur_matters_and_the_spikes_see_the_sharp_frame(sample):
    item = first_test_clip(sample)
    grey = torch.tensor([0.299, 0.587, 0.114]).view(1, 3, 1, 1)
    sharp, blurry = (item["gt"] * grey).sum(1), (item["lq"] * grey).sum(1)

    assert psnr(item["lq"], item["gt"]) < 32
    # At half resolution and with the sensor's noise, the spikes are still nearer to the truth than the blur is.
    assert psnr(item["spike"][:, 0], sharp) > psnr(blurry, sharp)


def test_spikes_are_not_upside_down_or_late(sample):
    item = first_test_clip(sample)
    sharp = (item["gt"] * torch.tensor([0.299, 0.587, 0.114]).view(1, 3, 1, 1)).sum(1)
    upright = np.corrcoef(item["spike"][:, 0].flatten(), sharp.flatten())[0, 1]
    flipped = np.corrcoef(item["spike"][:, 0].flip(1).flatten(), sharp.flatten())[0, 1]
    assert upright > 0.93 > 0.6 > flipped


def test_the_same_seed_gives_the_same_bytes_and_another_seed_others(sample, tmp_path):
    make_sample(tmp_path / "again", seed=0, clips={"train": 1}, frames=1)
    make_sample(tmp_path / "other", seed=1, clips={"train": 1}, frames=1)
    name = Path("GOPRO_Large_spike_seq/train/SAMPLE00_train/spike/000000.dat")

    # The path of the camera depends on the length of the clip, so the sample itself cannot be compared here.
    assert (tmp_path / "again" / name).read_bytes() != (tmp_path / "other" / name).read_bytes()
    make_sample(tmp_path / "third", seed=0, clips={"train": 1}, frames=1)
    for path in sorted(p for p in (tmp_path / "again").rglob("*") if p.is_file()):
        assert path.read_bytes() == (tmp_path / "third" / path.relative_to(tmp_path / "again")).read_bytes()


def test_a_failure_leaves_no_half_set(tmp_path):
    with pytest.raises(TypeError):
        make_sample(tmp_path / "sample", clips={"train": "one"}, frames=1)
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_ends_with_one_line_and_leaves_no_half_set(tmp_path):
    command = [sys.executable, "scripts/make_sample_data.py", "--root", str(tmp_path / "sample")]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as making:
        while making.poll() is None and not list(tmp_path.rglob("*.png")):
            time.sleep(0.01)
        making.send_signal(signal.SIGINT)
        said = making.stderr.read()

    assert making.returncode == 130 and len(said.split("\n")) == 2 and "Ctrl-C" in said, said
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_while_an_older_set_is_removed_leaves_the_new_one(copy, monkeypatch, capsys):
    smaller(monkeypatch, frames=1)
    info, remove = copy / make_sample_data.INFO, shutil.rmtree
    info.write_text(json.dumps(json.loads(info.read_text()) | {"version": 1}))

    def interrupted(path, *how, **more):
        next(path.rglob("*.png")).unlink()
        monkeypatch.setattr(shutil, "rmtree", remove)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(shutil, "rmtree", interrupted)
    assert make_sample_data.main(["--root", str(copy)]) == 130
    assert make_sample_data.main(["--root", str(copy)]) == 0 and "nothing to do" in capsys.readouterr().out


def test_the_sharp_instants_stand_beside_the_same_frames_and_spikes(sample, tmp_path, monkeypatch, capsys):
    smaller(monkeypatch, frames=2)
    with_them = ["--root", str(tmp_path / "sample"), "--instants", "5"]
    shutil.copytree(sample, tmp_path / "sample")
    assert make_sample_data.main(with_them) == 0 and "without these instants" in capsys.readouterr().out
    for path in (p for p in sample.rglob("*") if p.is_file() and p != sample / make_sample_data.INFO):
        assert (tmp_path / "sample" / path.relative_to(sample)).read_bytes() == path.read_bytes()
    clip = tmp_path / "sample/GOPRO_Large/test/SAMPLE00_test"
    names = [f"00000{frame}_{k}.png" for frame in range(2) for k in range(5)]
    assert sorted(path.name for path in (clip / "instants").iterdir()) == names
    assert (clip / "instants/000001_2.png").read_bytes() == (clip / "sharp/000001.png").read_bytes()
    planes = json.loads((tmp_path / "sample" / make_sample_data.INFO).read_text())["instants"]
    assert planes == [9, 26, 44, 62, 79]
    assert make_sample_data.main(with_them) == 0 and "nothing to do" in capsys.readouterr().out


def test_an_even_number_of_instants_is_refused(tmp_path, capsys):
    assert make_sample_data.main(["--root", str(tmp_path / "sample"), "--instants", "4"]) == 2
    assert "an odd number" in capsys.readouterr().err and not list(tmp_path.iterdir())


def test_the_full_set_has_the_rates_of_bright_light_and_is_not_the_sample(tmp_path, capsys):
    root = tmp_path / "full"
    make_sample(root, clips={"train": 2}, frames=1, size=FULL)
    spikes = root / "GOPRO_Large_spike_seq/train"
    rates = [read_spikes(p, SpikeGeometry(64, 64)).mean() for p in sorted(spikes.glob("*/spike/*.dat"))]
    assert len(rates) == 2 and all(0.16 < rate < 0.3 for rate in rates)
    assert make_sample_data.check_made(root, 0, size=FULL)
    assert make_sample_data.main(["--root", str(root)]) == 3 and "size full" in capsys.readouterr().err


def test_scenes_of_the_full_set_are_seeded_and_have_lamps_darkness_and_detail_that_spikes_lack():
    first, again = (FullScene(np.random.default_rng([0, 1, 3]), 2, 3) for _ in range(2))
    light = first(1)
    assert np.array_equal(light, again(1)) and not np.array_equal(light, first(0))
    assert np.median(light) < 0.08 and light.max() > 1  # dark, with lamps
    # What a spike pixel averages over is as large as a tenth of the picture's variation, or more.
    grey = simulate.to_grey(light / light.max())
    lost = grey - np.kron(simulate.bin_pixels(grey, 2), np.ones((2, 2), np.float32))
    assert lost.std() > 0.1 * grey.std()


def test_colour_that_spikes_do_not_see_keeps_the_brightness():
    rng = np.random.default_rng(0)
    factor = full_scenes.tints(rng, full_scenes.polygon(rng))
    assert factor.std() > 0 and simulate.to_grey(factor) == pytest.approx(1.0, abs=1e-5)


def contents(root):
    return {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in root.rglob("*") if path.is_file()}


@pytest.fixture
def copy(sample, tmp_path):
    shutil.copytree(sample, tmp_path / "sample")
    return tmp_path / "sample"


def test_the_script_leaves_a_complete_set_alone_also_a_copied_one(copy, capsys):
    before = contents(copy)
    assert make_sample_data.main(["--root", str(copy)]) == 0 and "nothing to do" in capsys.readouterr().out
    assert contents(copy) == before


def test_an_unchanged_set_of_another_version_is_made_again(copy, monkeypatch, capsys):
    smaller(monkeypatch, frames=1)
    info = copy / make_sample_data.INFO
    info.write_text(json.dumps(json.loads(info.read_text()) | {"version": 1}))
    assert make_sample_data.main(["--root", str(copy)]) == 0
    assert "was made by another version of this script" in capsys.readouterr().out
    assert json.loads(info.read_text())["version"] == make_sample_data.SAMPLE.version


@pytest.mark.parametrize("change", ["foreign", "missing", "changed", "new", "seed", "a file"])
def test_something_else_in_the_place_of_the_sample_is_refused_and_left_alone(copy, capsys, change):
    picture = next(copy.rglob("*.png"))
    if change == "foreign":
        (copy / make_sample_data.INFO).unlink()
    elif change == "missing":
        picture.unlink()
    elif change == "changed":
        picture.write_bytes(picture.read_bytes() + b"x")
    elif change == "new":
        (copy / "notes.txt").write_text("mine")
    elif change == "a file":
        shutil.rmtree(copy)
        copy.write_text("mine")
    before = contents(copy.parent)
    assert make_sample_data.main(["--root", str(copy), "--seed", "1" if change == "seed" else "0"]) == 3
    assert "move" in capsys.readouterr().err and contents(copy.parent) == before

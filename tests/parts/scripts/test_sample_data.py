"""scripts/make_sample_data.py: what the sample set shows, and what happens to a set that is there.

The script renders clips of a moving scene for an RGB camera and a spike camera, in the layout of
GoPro. Most tests read one small set, or a copy of it.
"""

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

import main_test_vrt
from data.select_dataset import build_dataset
from data.spike import simulate
from scripts import make_sample_data
from scripts.demo import DEMO
from scripts.make_sample_data import make_sample
from tests.dist.launching import ROOT
from tests.helpers.checked import present
from tests.helpers.clip_files import section
from tests.helpers.foreign import snapshot
from tests.helpers.gopro_files import files
from tests.helpers.train_files import write_options
from tests.helpers.weights_files import save_weights
from utils.image import imread_rgb, panels_of


def smaller(frames, **clips):
    """Return a description of a small sample set.

    frames: frames of a clip. clips: split -> number of its clips, by default one of each split.
    """
    return dataclasses.replace(
        make_sample_data.SAMPLE, clips=clips or {"train": 1, "test": 1}, frames=frames
    )


@pytest.fixture(scope="module")
def sample(tmp_path_factory):
    """Give a set with one clip of two frames for training, and one for testing."""
    root = tmp_path_factory.mktemp("sets") / "sample"
    make_sample(root, smaller(2))
    return root


RELATIVE = {"type": "relative", "half_windows": [2, 6, 12], "num_bins": 8}


@pytest.mark.parametrize(
    "representation", [RELATIVE, {"type": "voxel", "num_bins": 8}, {"type": "raw"}]
)
def test_the_image_of_the_spikes_shows_the_scene(sample, tmp_path, representation):
    gamma = {} if representation["type"] == "raw" else {"gamma": 2.2}
    spike = {"type": "dat", "center": "file", "representation": representation, **gamma}
    opt = write_options(tmp_path, datasets={"test": section(sample, "test", spike=spike)})
    weights = save_weights(opt, tmp_path / "w.pth", "netG.fusion=none")
    out = tmp_path / "out"
    assert (
        main_test_vrt.main(
            ["--opt", str(opt), "--weights", weights, "--output", str(out), "netG.fusion=none"]
        )
        == 0
    )
    strip = imread_rgb(next((out / "strips").rglob("000000.png")))
    panels = panels_of(strip, ["blurry", "spikes", "restored", "sharp", "error x5"])
    spikes, sharp = (panels[name][..., 0].astype(float) for name in ("spikes", "sharp"))

    assert (spikes > 230).mean() < 0.3
    assert spikes.std() > 25
    assert np.corrcoef(spikes.ravel(), sharp.ravel())[0, 1] > 0.8


def test_the_gopro_layout_is_read_with_blur_that_matters_and_spikes_upright_at_the_sharp_moment(
    sample,
):
    about = json.loads((sample / "GOPRO_Large_spike_seq/dataset.json").read_text())
    assert {key: about[key] for key in ("h", "w", "flip", "planes")} == {
        "h": 64,
        "w": 64,
        "flip": True,
        "planes": 88,
    }
    spike = {"type": "dat", "gamma": 2.2, "representation": {"type": "tfi", "half_window": 30}}
    item = build_dataset(section(sample, "test", spike=spike), "test", 0)[0]
    assert item["lq"].shape == (2, 3, 128, 128)
    assert item["spike"].shape == (2, 1, 128, 128)

    seen = item["spike"][:, 0].numpy()
    blurry, sharp = (
        simulate.to_grey(item[name].numpy().transpose(0, 2, 3, 1)) for name in ("lq", "gt")
    )
    assert (item["lq"] - item["gt"]).square().mean() > 10**-3.2  # a PSNR below 32 dB
    # At half resolution and with the sensor's noise, the spikes are still nearer to the truth than
    # the blur is.
    assert np.square(seen - sharp).mean() < np.square(blurry - sharp).mean()
    upright, flipped = (np.corrcoef(x.ravel(), sharp.ravel())[0, 1] for x in (seen, seen[:, ::-1]))
    assert upright > 0.93 > 0.6 > flipped


def test_the_same_seed_gives_the_same_bytes_and_another_seed_others(sample, tmp_path):
    # The path of the camera depends on the length of the clip, so the sample itself cannot be
    # compared here.
    for name, seed in (("one", 0), ("same", 0), ("other", 1)):
        make_sample(tmp_path / name, smaller(1, train=1), seed)
    one, same, other = (files(tmp_path / name) for name in ("one", "same", "other"))
    spikes = "GOPRO_Large_spike_seq/train/SAMPLE00_train/spike/000000.dat"

    assert one == same
    assert one[spikes] != other[spikes]


def test_ctrl_c_ends_with_one_line_and_leaves_no_half_set(tmp_path):
    command = [sys.executable, "scripts/make_sample_data.py", "--root", str(tmp_path / "sample")]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as making:
        while making.poll() is None and not list(tmp_path.rglob("*.png")):
            time.sleep(0.01)
        making.send_signal(signal.SIGINT)
        said = present(making.stderr).read()

    assert making.returncode == 130, said
    assert len(said.split("\n")) == 2, said
    assert "Ctrl-C" in said, said
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_while_an_older_set_is_removed_leaves_the_new_one(older, monkeypatch, capsys):
    remove = shutil.rmtree

    def interrupted(path, *how, **more):
        next(Path(path).rglob("*.png")).unlink()
        monkeypatch.setattr(shutil, "rmtree", remove)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(shutil, "rmtree", interrupted)
    assert make_sample_data.main(["--root", str(older)]) == 130
    assert "was made by another version of this script" in capsys.readouterr().out
    assert (
        json.loads((older / make_sample_data.INFO).read_text())["version"]
        == make_sample_data.SAMPLE.version
    )
    assert make_sample_data.main(["--root", str(older)]) == 0
    assert "nothing to do" in capsys.readouterr().out


def test_the_sharp_instants_stand_beside_the_same_frames_and_spikes(
    sample, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(make_sample_data, "SAMPLE", smaller(2))
    with_them = ["--root", str(tmp_path / "sample"), "--instants", "5"]
    shutil.copytree(sample, tmp_path / "sample")
    assert make_sample_data.main(with_them) == 0
    assert "without these instants" in capsys.readouterr().out
    before = files(sample)
    after = files(tmp_path / "sample")
    assert all(
        after[name] == content
        for name, content in before.items()
        if name != str(make_sample_data.INFO)
    )
    clip = tmp_path / "sample/GOPRO_Large/test/SAMPLE00_test"
    names = [f"00000{frame}_{k}.png" for frame in range(2) for k in range(5)]
    assert sorted(path.name for path in (clip / "instants").iterdir()) == names
    assert (clip / "instants/000001_2.png").read_bytes() == (clip / "sharp/000001.png").read_bytes()
    planes = json.loads((tmp_path / "sample" / make_sample_data.INFO).read_text())["instants"]

    assert planes == [9, 26, 44, 62, 79]
    assert make_sample_data.main(with_them) == 0
    assert "nothing to do" in capsys.readouterr().out
    assert make_sample_data.main(["--root", str(tmp_path / "even"), "--instants", "4"]) == 2
    assert "an odd number" in capsys.readouterr().err
    assert not (tmp_path / "even").exists()


def test_a_set_of_another_kind_is_refused_by_its_name(tmp_path, capsys):
    make_sample(tmp_path / "demo", dataclasses.replace(DEMO, clips={"test": 1}, frames=1))
    assert make_sample_data.main(["--root", str(tmp_path / "demo")]) == 3
    assert "size demo" in capsys.readouterr().err


@pytest.fixture
def copy(sample, tmp_path):
    """Give a copy of the set, which a test may change."""
    shutil.copytree(sample, tmp_path / "sample")
    return tmp_path / "sample"


@pytest.fixture
def older(copy, monkeypatch):
    """Give a copy that another version of the script has made. The script now makes less."""
    monkeypatch.setattr(make_sample_data, "SAMPLE", smaller(1))
    info = copy / make_sample_data.INFO
    info.write_text(json.dumps(json.loads(info.read_text()) | {"version": 1}))
    return copy


@pytest.mark.parametrize(
    "change", ["none", "foreign", "missing", "changed", "new", "link", "folder", "seed", "a file"]
)
def test_a_set_that_is_there_is_left_alone_and_refused_where_it_is_something_else(
    copy, capsys, change
):
    picture = next(copy.rglob("*.png"))
    if change in ("foreign", "missing"):
        (picture if change == "missing" else copy / make_sample_data.INFO).unlink()
    elif change in ("changed", "new"):
        (picture if change == "changed" else copy / "notes.txt").write_bytes(b"mine")
    elif change == "link":
        (copy / "mine").symlink_to(copy.parent)
    elif change == "folder":
        (copy / "mine").mkdir()
    elif change == "a file":
        shutil.rmtree(copy)
        copy.write_text("mine")
    before = snapshot(copy.parent)
    code = make_sample_data.main(["--root", str(copy), "--seed", "1" if change == "seed" else "0"])
    said = capsys.readouterr()

    assert (code, "nothing to do" in said.out, "move" in said.err) == (
        (0, 1, 0) if change == "none" else (3, 0, 1)
    )
    assert snapshot(copy.parent) == before

"""scripts/make_sample_data.py: what the sample set shows, and what happens to an existing set.

The script renders clips of a moving scene for an RGB camera and a spike camera, in the layout of
GoPro. Most tests read one small set, or a copy of it.

The exit codes are 0: the set exists, 2: wrong arguments, 3: something else is in the place of the
set, 130: Ctrl-C.
"""

import contextlib
import dataclasses
import io
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
from data.spike.pictures import to_grey
from scripts import make_sample_data
from scripts.demo import DEMO
from scripts.make_sample_data import INFO, make_sample
from tests.dist.launching import ROOT
from tests.helpers.checked import not_none
from tests.helpers.clip_files import data_section
from tests.helpers.foreign import snapshot
from tests.helpers.gopro_files import read_files
from tests.helpers.train_files import write_options
from tests.helpers.weights_files import save_weights
from utils.image import imread_rgb, panels_of


def smaller(frames, **clips):
    """Return a description of a small sample set.

    frames: frames of a clip. clips: split -> number of its clips, by default one of each split.
    """
    if not clips:
        clips = {"train": 1, "test": 1}
    return dataclasses.replace(make_sample_data.SAMPLE, clips=clips, frames=frames)


@pytest.fixture(scope="module")
def sample(tmp_path_factory):
    """Give a set with one clip of two frames for training, and one for testing."""
    root = tmp_path_factory.mktemp("sets") / "sample"
    make_sample(root, smaller(frames=2))
    return root


@pytest.fixture
def copy(sample, tmp_path):
    """Give a copy of the set, which a test may change."""
    shutil.copytree(sample, tmp_path / "sample")
    return tmp_path / "sample"


@pytest.fixture
def older_copy(copy, monkeypatch):
    """Give a copy that another version of the script seems to have made.

    The script itself now makes a smaller set.
    """
    monkeypatch.setattr(make_sample_data, "SAMPLE", smaller(frames=1))
    info = json.loads((copy / INFO).read_text())
    info["version"] = 1
    (copy / INFO).write_text(json.dumps(info))
    return copy


# ---- What the set shows ----


def correlation(a, b):
    """Return the correlation of two arrays of the same shape."""
    return np.corrcoef(a.ravel(), b.ravel())[0, 1]


@pytest.mark.parametrize(
    "spike",
    [
        {
            "gamma": 2.2,
            "representation": {"type": "relative", "half_windows": [2, 6, 12], "num_bins": 8},
        },
        pytest.param(
            {"gamma": 2.2, "representation": {"type": "voxel", "num_bins": 8}},
            marks=pytest.mark.slow,
        ),
        {"representation": {"type": "raw"}},
    ],
    ids=["relative", "voxel", "raw"],
)
def test_the_image_of_the_spikes_shows_the_scene(sample, tmp_path, spike):
    test_set = data_section(sample, "test", spike={"type": "dat", "center": "file", **spike})
    options = write_options(tmp_path, datasets={"test": test_set})
    weights = save_weights(options, tmp_path / "w.pth", "netG.fusion=none")
    out = tmp_path / "out"

    command = ["--opt", str(options), "--weights", weights, "--output", str(out)]
    assert main_test_vrt.main([*command, "netG.fusion=none"]) == 0

    # The strip of a frame has five pictures side by side. `panels_of` cuts it: title -> picture.
    (first_strip,) = (out / "strips").rglob("000000.png")
    strip = imread_rgb(first_strip)
    panels = panels_of(strip, ["blurry", "spikes", "restored", "sharp", "error x5"])
    spikes = panels["spikes"][..., 0].astype(float)
    sharp = panels["sharp"][..., 0].astype(float)
    # The image of the spikes must not be mostly white (values above 230 of 255), must not be flat,
    # and must resemble the sharp frame. The three numbers were measured as 0.04, 45 to 51, and 0.82
    # to 0.83. The limits were chosen by hand.
    assert (spikes > 230).mean() < 0.3
    assert spikes.std() > 25
    assert correlation(spikes, sharp) > 0.8


def test_the_set_describes_its_spikes(sample):
    about = json.loads((sample / "GOPRO_Large_spike_seq/dataset.json").read_text())

    assert about["h"] == 64
    assert about["w"] == 64
    assert about["flip"] is True
    assert about["planes"] == 88


@pytest.fixture(scope="module")
def clip_for_testing(sample):
    """Give the test clip as a data set reads it, with intervals of spikes (tfi) as one channel."""
    representation = {"type": "tfi", "half_window": 30}
    spike = {"type": "dat", "gamma": 2.2, "representation": representation}
    return build_dataset(data_section(sample, "test", spike=spike), "test", seed=0)[0]


def grey(frames):
    """Return frames (n, 3, H, W) in grey, (n, H, W)."""
    return to_grey(frames.numpy().transpose(0, 2, 3, 1))


def test_the_gopro_layout_is_read(clip_for_testing):
    # A spike plane has 64 x 64 pixels. The data set enlarges it to the size of the frames.
    assert clip_for_testing["lq"].shape == (2, 3, 128, 128)
    assert clip_for_testing["spike"].shape == (2, 1, 128, 128)


def test_the_blurry_frames_have_a_psnr_below_32_db(clip_for_testing):
    squared_error = (clip_for_testing["lq"] - clip_for_testing["gt"]).square().mean()

    # For values in [0, 1] the PSNR is -10 log10(squared error). Measured: 29.3 dB.
    assert squared_error > 10 ** (-32 / 10)


def test_the_spikes_are_nearer_to_the_sharp_frame_than_the_blur_is(clip_for_testing):
    spikes = clip_for_testing["spike"][:, 0].numpy()
    sharp = grey(clip_for_testing["gt"])
    blurry = grey(clip_for_testing["lq"])

    # The spikes have half of the resolution, and the noise of the sensor. Nevertheless the spikes
    # are nearer to the sharp frame. The two errors were measured as 0.00090 and 0.00097.
    assert np.square(spikes - sharp).mean() < np.square(blurry - sharp).mean()


def test_the_spikes_are_upright_at_the_sharp_moment(clip_for_testing):
    spikes = clip_for_testing["spike"][:, 0].numpy()
    upside_down = spikes[:, ::-1]
    sharp = grey(clip_for_testing["gt"])

    # The measured correlations are 0.98 and 0.24. The limits were chosen by hand.
    assert correlation(spikes, sharp) > 0.93
    assert correlation(upside_down, sharp) < 0.6


def test_the_same_seed_gives_the_same_bytes_and_another_seed_others(tmp_path):
    # `sample` has clips of two frames. In a clip of one frame, the camera moves along a different
    # path, so its files differ from those of `sample`. So compare three sets of one frame.
    short = smaller(frames=1, train=1)
    make_sample(tmp_path / "one", short, seed=0)
    make_sample(tmp_path / "same", short, seed=0)
    make_sample(tmp_path / "other", short, seed=1)

    one = read_files(tmp_path / "one")
    other = read_files(tmp_path / "other")

    assert read_files(tmp_path / "same") == one
    spikes = "GOPRO_Large_spike_seq/train/SAMPLE00_train/spike/000000.dat"
    assert other[spikes] != one[spikes]


# ---- Sharp instants ----


@pytest.fixture(scope="module")
def with_instants(sample, tmp_path_factory):
    """Give a set in which each frame has five sharp instants, and the arguments of the command.

    The command with these arguments has added the instants. No test changes the set.
    """
    root = tmp_path_factory.mktemp("instants") / "sample"
    shutil.copytree(sample, root)
    arguments = ["--root", str(root), "--instants", "5"]
    output = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(output):
        patch.setattr(make_sample_data, "SAMPLE", smaller(frames=2))
        assert make_sample_data.main(arguments) == 0
    assert "without these instants" in output.getvalue()
    return root, arguments


def test_the_sharp_instants_stand_beside_the_same_frames_and_spikes(sample, with_instants):
    root, _ = with_instants

    before = read_files(sample)
    after = read_files(root)

    for name, content in before.items():
        # Only the description of the set has changed.
        if name != str(INFO):
            assert after[name] == content, name


def test_each_frame_has_its_sharp_instants(with_instants):
    root, _ = with_instants
    clip = root / "GOPRO_Large/test/SAMPLE00_test"

    names = sorted(path.name for path in (clip / "instants").iterdir())

    assert names == [
        *["000000_0.png", "000000_1.png", "000000_2.png", "000000_3.png", "000000_4.png"],
        *["000001_0.png", "000001_1.png", "000001_2.png", "000001_3.png", "000001_4.png"],
    ]
    # The instant in the middle is the sharp frame.
    middle = (clip / "instants/000001_2.png").read_bytes()
    assert middle == (clip / "sharp/000001.png").read_bytes()
    # The middle of the 88 planes is plane 44. Five instants are 88 / 5 = 17.6 planes apart:
    #
    #     exact      8.8    26.4    44    61.6    79.2
    #     rounded    9      26      44    62      79
    assert json.loads((root / INFO).read_text())["instants"] == [9, 26, 44, 62, 79]


def test_existing_instants_are_not_made_again(with_instants, monkeypatch, capsys):
    monkeypatch.setattr(make_sample_data, "SAMPLE", smaller(frames=2))
    root, arguments = with_instants
    before = snapshot(root)

    assert make_sample_data.main(arguments) == 0

    assert "nothing to do" in capsys.readouterr().out
    assert snapshot(root) == before


def test_an_even_number_of_instants_is_refused(tmp_path, capsys):
    # If the number of instants is even, no instant is in the middle.
    assert make_sample_data.main(["--root", str(tmp_path / "even"), "--instants", "4"]) == 2

    assert "an odd number" in capsys.readouterr().err
    assert not (tmp_path / "even").exists()


# ---- Ctrl-C ----


# This test is slow, because it takes 4 seconds of a core.
@pytest.mark.slow
def test_ctrl_c_ends_with_one_line_and_leaves_no_half_set(tmp_path):
    command = [sys.executable, "scripts/make_sample_data.py", "--root", str(tmp_path / "sample")]

    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as making:
        # Wait for the first picture.
        while making.poll() is None and not list(tmp_path.rglob("*.png")):
            time.sleep(0.01)
        making.send_signal(signal.SIGINT)
        errors = not_none(making.stderr).read()

    assert making.returncode == 130
    assert "Ctrl-C" in errors
    assert errors.count("\n") == 1, errors
    assert list(tmp_path.iterdir()) == []


# `older_copy` is a set of another version of the script. The script itself now makes a smaller set.
def test_ctrl_c_while_an_older_set_is_removed_leaves_the_new_one(older_copy, monkeypatch, capsys):
    remove_tree = shutil.rmtree

    def interrupted(path, *arguments, **more):
        """Remove one picture of the folder, then stop as by Ctrl-C. Later calls remove all."""
        next(Path(path).rglob("*.png")).unlink()
        monkeypatch.setattr(shutil, "rmtree", remove_tree)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(shutil, "rmtree", interrupted)
    code = make_sample_data.main(["--root", str(older_copy)])

    assert code == 130
    assert "was made by another version of this script" in capsys.readouterr().out
    version = json.loads((older_copy / INFO).read_text())["version"]
    assert version == make_sample_data.SAMPLE.version
    # The new set is whole, so a second start has nothing to do.
    assert make_sample_data.main(["--root", str(older_copy)]) == 0
    assert "nothing to do" in capsys.readouterr().out


# ---- An existing set ----


# `copy` is a copy of the set, which a test may change.
def test_an_existing_set_is_not_changed(copy, capsys):
    before = snapshot(copy.parent)

    assert make_sample_data.main(["--root", str(copy)]) == 0

    assert "nothing to do" in capsys.readouterr().out
    assert snapshot(copy.parent) == before


def test_a_set_of_another_kind_is_refused_by_its_name(tmp_path, capsys):
    make_sample(tmp_path / "demo", dataclasses.replace(DEMO, clips={"test": 1}, frames=1))

    assert make_sample_data.main(["--root", str(tmp_path / "demo")]) == 3

    assert "size demo" in capsys.readouterr().err


def first_picture(root):
    """Return the path of a picture of a set."""
    return next(root.rglob("*.png"))


def remove_description(root):
    (root / INFO).unlink()


def remove_picture(root):
    first_picture(root).unlink()


def change_picture(root):
    first_picture(root).write_bytes(b"mine")


def add_file(root):
    (root / "notes.txt").write_bytes(b"mine")


def add_link(root):
    (root / "mine").symlink_to(root.parent)


def add_folder(root):
    (root / "mine").mkdir()


def replace_by_file(root):
    shutil.rmtree(root)
    root.write_text("mine")


def check_refusal(root, seed, capsys):
    """Check that the script refuses what is at `root`, says what to do, and changes nothing."""
    before = snapshot(root.parent)
    assert make_sample_data.main(["--root", str(root), "--seed", seed]) == 3
    printed = capsys.readouterr()
    assert "nothing to do" not in printed.out
    assert "move" in printed.err
    assert snapshot(root.parent) == before


@pytest.mark.parametrize(
    "change",
    [
        remove_description,
        remove_picture,
        change_picture,
        add_file,
        add_link,
        add_folder,
        replace_by_file,
    ],
)
def test_a_changed_set_is_refused(copy, capsys, change):
    change(copy)

    check_refusal(copy, "0", capsys)


def test_a_set_of_another_seed_is_refused(copy, capsys):
    check_refusal(copy, "1", capsys)

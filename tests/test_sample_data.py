import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from data.select_dataset import build_dataset
from scripts.make_sample_data import make_sample


@pytest.fixture(scope="module")
def sample(tmp_path_factory):
    root = tmp_path_factory.mktemp("sets") / "sample"
    make_sample(root, seed=0, clips={"train": 1, "test": 1}, frames=2)
    return root


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


def test_the_script_leaves_an_existing_set_alone(sample):
    before = {path: path.stat().st_mtime_ns for path in sample.rglob("*")}
    done = subprocess.run(
        [sys.executable, "scripts/make_sample_data.py", "--root", str(sample)], capture_output=True, text=True
    )
    assert done.returncode == 0 and "nothing to do" in done.stdout
    assert {path: path.stat().st_mtime_ns for path in sample.rglob("*")} == before

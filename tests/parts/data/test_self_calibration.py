"""`spike.calibration` "auto": two cameras are calibrated from the clip that they recorded."""

import json
import os
from pathlib import Path

import cv2
import numpy as np
import pytest

import main_test_vrt
from data.cameras.rig import Rig
from data.cameras.spike_grid import load_calibration, save_calibration
from scripts.make_sample_data import make_layers, render
from tests.helpers.checked import present
from tests.helpers.clip_files import BINS, cached, same, set_for_training, write_dat
from tests.helpers.train_files import odd, write_odd
from utils.image import imwrite_rgb

SIDE, PLANES, FRAMES = 128, 44, 6
SPIKE = (SIDE // 2, SIDE // 2)
MOVED = {"shift_x": 2.6, "shift_y": -2.1, "rotation_deg": 0.4, "time_offset": 4.0, "exposure": 0.7}
RIGS = {"aligned": {}, "moved": MOVED}


def write_clip(root, name, lights, **rig):
    camera = Rig(seed=3, rate=0.3, jitter=0.02, pattern=0.02, read=0.002, **rig)
    clip, spikes = root / "rgb" / name, root / "spikes" / name / "spike"
    for number, (frame, sharp, stream) in enumerate(camera.record(lights, PLANES, SPIKE)):
        for folder, image in (("blur", frame), ("sharp", sharp)):
            imwrite_rgb(clip / folder / f"{number:06d}.png", image)
        write_dat(spikes / f"{number:06d}.dat", stream)
    true = camera.calibration(SPIKE, (SIDE, SIDE)).model_copy(
        update={"exposure_share": camera.exposure}
    )
    save_calibration(root / f"{name}.json", true)
    info = {
        "format": 1,
        "h": SPIKE[0],
        "w": SPIKE[1],
        "flip": True,
        "planes": PLANES,
        "gt_plane": PLANES // 2,
    }
    (root / "spikes" / "dataset.json").write_text(
        json.dumps(info | {"rate": 0.3, "light": "linear"})
    )


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    root = tmp_path_factory.mktemp("rigs")
    layers = make_layers(np.random.default_rng(7), PLANES * FRAMES, SIDE)
    lights = [render(layers, plane) for plane in range(PLANES * FRAMES)]
    for name, rig in RIGS.items():
        write_clip(root, name, lights, **rig)
    write_clip(root, "still", [lights[0]] * len(lights), **MOVED)
    others = make_layers(np.random.default_rng(8), PLANES * FRAMES, SIDE)
    write_clip(root, "other", [render(others, plane) for plane in range(PLANES * FRAMES)])
    write_clip(root, "flat", [np.full((SIDE, SIDE, 3), 0.3, np.float32)] * len(lights), **MOVED)
    return root


def restored(home, out, name, *more, spikes=None):
    """PSNR of the estimate without training."""
    clip = home / "rgb" / name
    flags = [
        "--method", "exposure", "--input", clip / "blur", "--gt", clip / "sharp", "--output", out,
        "--save", "comparison", "--spike", (spikes or home / "spikes" / name) / "spike", *more,
    ]  # fmt: skip
    assert main_test_vrt.main([*map(str, flags)]) == 0
    return json.loads((out / "metrics.json").read_text())["clips"][name]["restored"]["psnr"]


def test_a_moved_camera_is_found_and_what_is_right_stays_as_it_is(home, tmp_path, capsys):

    def psnr(name, how):
        return restored(home, tmp_path / name / Path(how).stem, name, f"spike.calibration={how}")

    assert psnr("aligned", "auto") == psnr("aligned", "null")
    said = capsys.readouterr().out
    assert "planes later (error" in said and "left as it was" in said
    found, without = psnr("moved", "auto"), psnr("moved", "null")
    assert found > without + 1
    assert found > psnr("moved", home / "moved.json") - 0.4  # the true calibration


def test_where_a_clip_does_not_tell_nothing_is_changed(home, tmp_path, capsys):
    for name, other in (("flat", "flat"), ("moved", "other")):
        spikes = home / "spikes" / other
        both = [
            restored(
                home, tmp_path / f"{name}_{how}", name, f"spike.calibration={how}", spikes=spikes
            )
            for how in ("null", "auto")
        ]
        assert both[0] == both[1] and "not sure (the frames explain" in capsys.readouterr().out
    restored(home, tmp_path / "still", "still", "spike.calibration=auto")
    said = capsys.readouterr().out
    assert "moved by 3.3" in said and said.count("not sure: left") == 2


def test_training_finds_the_same_each_time_and_from_a_cache(home):
    spike = {"type": "dat", "calibration": "auto", "representation": BINS}
    section = {
        "dataset_type": "TrainDatasetRGBSpike",
        "dataroot_gt": str(home / "rgb"),
        "dataroot_lq": str(home / "rgb"),
        "dataroot_spike": str(home / "spikes"),
        "num_frame": 2,
        "gt_size": 32,
        "spike": spike,
    }
    dataset = set_for_training(section)
    clips = {clip.name: present(clip.spikes) for clip in dataset.clips}
    assert clips["aligned"].calibration is None and clips["flat"].calibration is None
    found, true = present(clips["moved"].calibration), load_calibration(home / "moved.json")
    corners = np.array([[[0, 0], [63, 0], [0, 63], [63, 63.0]]])
    places = [cv2.perspectiveTransform(corners, each.to_rgb()) for each in (found, true)]
    assert np.abs(places[0] - places[1]).max() < 0.2
    assert found.time_offset_planes == pytest.approx(true.time_offset_planes, abs=0.7)
    # 1.12: see registration.LONGER.
    assert found.exposure_share == pytest.approx(1.12 * true.exposure_share, abs=0.06)
    assert f"calibration {found.digest()}" in dataset.sample_names()
    from_cache = set_for_training(cached(section, home / "cache"))
    assert from_cache.sample_names() == dataset.sample_names()
    assert all(same(dataset[(0, index)], from_cache[(0, index)]) for index in (0, 7, 13, 20))


def test_each_clip_is_fitted_once_by_one_of_the_ranks_and_kept_beside_the_run(home, tmp_path):
    options, kept = write_odd(tmp_path), tmp_path / "experiments/.preflight"
    roots = {"dataroot_gt": "rgb", "dataroot_lq": "rgb", "dataroot_spike": "spikes"}
    changes = [f"datasets.train.{key}={home / folder}" for key, folder in roots.items()]
    changes += ["datasets.train.spike.calibration=auto", "datasets.test={}"]

    def calibrations(steps, ranks, *words):
        batch = f"datasets.train.dataloader_batch_size={2 // ranks}"
        result = odd(
            options, *changes, batch, f"train.total_iter={steps}", ranks=ranks, case="clips"
        )
        assert result.exit_codes == [0] * ranks and all(word in result.text for word in words), (
            result.text
        )
        # Each rank trains with the same numbers
        assert all(found == result.json for found in result.jsons)
        return result.json

    first = calibrations(1, 2, "5 clips fitted in", "0 known from an earlier run")
    files = sorted(kept.glob("calibration_*.json"))
    assert len(files) == 5 and first["moved"]["matrix"] and first["aligned"] is None
    files[0].write_text("not ours")
    assert calibrations(2, 1, "1 clips fitted in", "4 known", "resumed from") == first
    assert files[0].read_text() == "not ours"
    files[0].unlink()
    before = {file: file.stat().st_mtime_ns for file in files[1:]}
    assert calibrations(3, 2, "1 clips fitted in", "4 known") == first
    assert calibrations(4, 2, "0 clips fitted in", "5 known", "resumed from") == first
    assert {file: file.stat().st_mtime_ns for file in files[1:]} == before
    blurry = sorted((home / "rgb/moved/blur").iterdir())[0]
    os.utime(blurry)  # changed since
    assert calibrations(5, 2, "1 clips fitted in", "4 known") == first

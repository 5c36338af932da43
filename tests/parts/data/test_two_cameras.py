"""A data set whose spikes a second camera recorded, beside the RGB camera.

The second camera has planes of 30 x 40 pixels and is turned a little. The frames of the RGB camera
have 45 x 80 pixels. A calibration file says where a spike pixel lies in a frame. The tests compare
with a camera "same", which looks through the lens of the RGB camera and needs no calibration.
"""

import json
import logging
from typing import Any

import numpy as np
import pytest
import torch

import main_test_vrt
from data.cameras.spike_grid import Calibration, save_calibration
from data.clips.clip_reader import user_clips
from data.clips.preflight import preflight
from data.select_dataset import build_dataset
from models.portable import read_saved
from tests.helpers.checked import present
from tests.helpers.clip_files import cached, resolved, same, write_dat
from tests.helpers.train_files import LOADER, experiment, train, write_options
from tests.helpers.two_cameras import record, similarity
from utils.errors import DataError
from utils.image import imwrite_rgb
from utils.options.models import DatasetsOptions

# Height and width of the frames and of the spike planes, and planes of a frame.
FRAME = (45, 80)
PLANE = (30, 40)
PLANES = 48
# The true place of the second camera, a matrix (3, 3) from spike pixels to pixels of a frame. It is
# a turn by 2 degrees, 1.37 pixels of a frame for a spike pixel, and a shift by 2.4 pixels along x
# and by -1.3 along y.
TRUTH = similarity(2.0, 1.37, PLANE, FRAME, (2.4, -1.3))
# Keys of the section `spike`: the size of the planes, and channels that are means of spikes.
SECOND = {"h": 30, "w": 40}
MEAN = {
    "representation": {"type": "voxel", "num_bins": 2},
    "center": "file",
    "rate": 1.0,
    "light": "linear",
}


def write_frames(root, split, clip, frames, seed, second=TRUTH):
    """Write a clip: RGB frames, the spikes of the second camera, and those of the camera "same".

    second: the place of the second camera.
    """
    for number in range(frames):
        for kind, place, size in (("second", second, PLANE), ("same", np.eye(3), FRAME)):
            # The scene is drawn first, so both cameras see the same one.
            rng = np.random.default_rng([seed, number])
            frame, spikes = record(rng, place, FRAME, size, planes=PLANES)
            write_dat(root / kind / split / clip / "spike" / f"{number:06d}.dat", spikes)
        for folder in ("blur", "sharp"):
            imwrite_rgb(
                root / "rgb" / split / clip / folder / f"{number:06d}.png",
                frame[..., None].repeat(3, axis=2),
            )


def save(path, matrix, **keys):
    """Save a calibration. keys: further fields. Return its path as a text."""
    sizes: dict[str, Any] = {"spike_size": list(PLANE), "rgb_size": list(FRAME)}
    save_calibration(path, Calibration(matrix=np.asarray(matrix)[:2].tolist(), **(sizes | keys)))
    return str(path)


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Give a folder with two training clips, a test clip, and the true calibration."""
    root = tmp_path_factory.mktemp("cameras")
    for number, (split, clip) in enumerate((("train", "a"), ("train", "b"), ("test", "c"))):
        write_frames(root, split, clip, 3, number)
    save(root / "true.json", TRUTH)
    return root


def section(root, split, kind="second", **spike):
    """Return a section of `datasets`.

    kind: the camera, "second" or "same". spike: keys of its section `spike` to replace.
    """
    known = (
        SECOND | {"calibration": str(root / "true.json")}
        if kind == "second"
        else {"h": 45, "w": 80}
    )
    values = {
        "dataset_type": "TrainDatasetRGBSpike" if split == "train" else "TestDatasetRGBSpike",
        "dataroot_gt": str(root / "rgb" / split), "dataroot_lq": str(root / "rgb" / split),
        "dataroot_spike": str(root / kind / split), "spike": {"type": "dat"} | MEAN | known | spike,
    }  # fmt: skip
    return values | (
        {"num_frame": 2, "gt_size": 24, "use_hflip": True, "use_rot": True}
        if split == "train"
        else {}
    )


def build(root, split, kind="second", **spike):
    """Return the data set of `section`."""
    return build_dataset(section(root, split, kind, **spike), split, 0)


def test_the_channels_are_those_of_a_camera_behind_the_same_lens(home, tmp_path):
    dataset = build(home, "test")
    seen = (..., *dataset.clips[0].grid.region.slices)
    ideal = build(home, "test", "same")[0]["spike"].mean(1)[seen]
    error = (dataset[0]["spike"].mean(1)[seen] - ideal).abs().mean()
    wrong = {
        "mirrored": save(tmp_path / "mirrored.json", TRUTH, mirror="columns"),
        "turned the other way": save(
            tmp_path / "turned.json", similarity(-6, 1.37, PLANE, FRAME, (2.4, -1.3))
        ),
        "shifted": save(tmp_path / "shifted.json", similarity(2, 1.37, PLANE, FRAME, (7.4, -1.3))),
    }
    assert error < 0.01
    for name, path in wrong.items():
        other = (
            (build(home, "test", calibration=path)[0]["spike"].mean(1)[seen] - ideal).abs().mean()
        )
        assert other > 0.016, name


def test_samples_lie_where_both_cameras_look_and_are_the_same_from_a_cache(
    home,
):
    dataset = build(home, "train")
    from_cache = build_dataset(cached(section(home, "train"), home / "cache"), "train", 0)
    for index in range(len(dataset)):
        item = dataset[(0, index)]
        assert item["spike"].shape == (2, 2, 24, 24)
        assert same(item, from_cache[(0, index)])
        # Spikes and frames of a crop show the same light. With spikes of another place they would
        # not be correlated.
        rates = item["spike"].mean(1).ravel()
        light = item["gt"].mean(1).ravel() ** 2.2
        assert np.corrcoef(rates, light)[0, 1] > 0.8
    too_large = section(home, "train") | {"gt_size": 44}
    with pytest.raises(DataError, match="what the spike camera sees"):
        build_dataset(too_large, "train", 0)
    for kind in ("second", "same"):
        matched, given = (
            build(home, "test", kind, rate=rate)[0]["spike"] for rate in ("match", 1.0)
        )
        assert float((matched / given)[given > 0].median()) == pytest.approx(1 / 0.6, rel=0.05), (
            kind
        )


def test_the_check_of_the_data_compares_sizes_and_pictures(home, tmp_path, caplog):
    def check(root=home, **spike):
        caplog.clear()
        datasets = DatasetsOptions(test=resolved(section(root, "test", **spike)))
        preflight(datasets, tmp_path / "runs")
        return caplog.text

    caplog.set_level(logging.INFO)
    assert "resemble" not in check()
    assert "1 clips, 3 frames" in caplog.text
    turned = save(tmp_path / "turned.json", similarity(182, 1.37, PLANE, FRAME, (2.4, -1.3)))
    assert "do not resemble the frame" in check(calibration=turned)
    assert "upside down" in check(flip=False)
    # Here a spike pixel is 2.4 pixels wide, so the planes are larger than the frame.
    near = similarity(2.0, 2.4, PLANE, FRAME, (2.4, -1.3))
    write_frames(tmp_path / "near", "test", "c", 1, 7, near)
    said = check(tmp_path / "near", calibration=save(tmp_path / "near.json", near))
    assert "resemble" not in said
    assert "upside" not in said
    assert "1 clips, 1 frames" in said
    large = save(tmp_path / "large.json", TRUTH, rgb_size=[90, 160])
    with pytest.raises(
        DataError, match=r"lq is 45 x 80, spike\.calibration was made for frames of 90 x 160"
    ):
        check(calibration=large)


def test_a_resume_sees_another_calibration_under_the_same_name(home, tmp_path):
    path = save(tmp_path / "calibration.json", TRUTH, made={"by": "hand"})
    names = build(home, "train", calibration=path).sample_names()
    save(path, TRUTH, made={"by": "someone else"})
    assert build(home, "train", calibration=path).sample_names() == names
    save(path, TRUTH @ np.diag([1.001, 1, 1]))

    assert build(home, "train", calibration=path).sample_names() != names


def test_a_network_trains_validates_and_restores_with_a_second_camera(home, tmp_path):
    camera = {"type": "perturb", "threshold_prob": 1.0, "drop_prob": 1.0}
    datasets = {
        "train": section(home, "train") | LOADER | {"camera": camera},
        "test": section(home, "test"),
    }
    options = write_options(tmp_path, datasets=datasets)
    result = train(
        options, "train.total_iter=2", "train.checkpoint_test=2", "train.checkpoint_save=2"
    )
    assert result.exit_codes == [0], result.text
    assert "the spike camera sees 6" in result.text
    weights = sorted((experiment(options) / "models").glob("*_G.pth"))[-1]
    stored = present(read_saved(weights).spike_data)["calibration"]
    assert stored["matrix"] == TRUTH[:2].tolist()
    assert stored["spike_size"] == [30, 40]
    out = tmp_path / "out"
    assert (
        main_test_vrt.main(["--opt", str(options), "--weights", str(weights), "--output", str(out)])
        == 0
    )
    psnr = json.loads((out / "metrics.json").read_text())["clips"]["c"]["restored"]["psnr"]
    # The same clip as a user's own files.
    frames = home / "rgb/test/c/blur"
    spikes = home / "second/test/c/spike"
    direct = [
        "--weights", weights, "--input", frames, "--spike", spikes,
        "--gt", home / "rgb/test/c/sharp", "--spike-size", 30, 40, "spike.rate=1",
        f"spike.calibration={home / 'true.json'}", "spike.light=linear",
        "--tile", "0,0", "--save", "frames", "--output", tmp_path / "direct",
    ]  # fmt: skip
    assert main_test_vrt.main([*map(str, direct)]) == 0
    own = json.loads((tmp_path / "direct/metrics.json").read_text())["clips"]

    assert next(iter(own.values()))["restored"]["psnr"] == pytest.approx(psnr, abs=0.01)


def test_users_clips_are_told_of_missing_and_of_little_covering_calibrations(
    home, tmp_path, caplog
):
    frames = home / "rgb/test/c/blur"
    spikes = home / "second/test/c/spike"
    options = {"type": "dat"} | SECOND | MEAN
    with pytest.raises(DataError, match="spikes of 30 x 40 for frames of 45 x 80") as error:
        user_clips(frames, spikes, spike_options=options)
    assert "spike.calibration" in error.value.do
    far = save(tmp_path / "far.json", similarity(2, 1.37, PLANE, FRAME, (45, 0)))
    with pytest.raises(DataError, match="sees only"):
        user_clips(frames, spikes, spike_options=options | {"calibration": far})
    clip = user_clips(
        frames, spikes, spike_options=options | {"calibration": str(home / "true.json")}
    )[0]
    assert torch.equal(clip.frame(1)["spike"], build(home, "test")[0]["spike"][1])
    other = user_clips(
        frames,
        spikes,
        spike_options=options | {"calibration": save(tmp_path / "x.json", TRUTH * 1.01)},
    )

    assert other[0].digest() != clip.digest()

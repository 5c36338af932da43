"""`spike.calibration` "auto": two cameras are calibrated from the clip that they recorded.

The clips are simulated: a moving scene of 128 x 128 pixels, six frames, and for each frame 44
planes of a spike camera of 64 x 64 pixels. A plane is what this camera records at one instant.
There are five clips:

    aligned    both cameras see the same
    moved      the spike camera is moved against the RGB camera in space and time (MOVED)
    still      cameras as in "moved", but nothing moves in the scene
    flat       cameras as in "moved", but the scene is a grey wall
    other      cameras as in "aligned", but another scene

A calibration says where a spike pixel lies in a frame, and which planes belong to a frame. The
program looks for the calibration with which the frames explain the spikes best. A value that it
finds is only used if its error is small (data/cameras/registration/result.py).
"""

import json
import math
import os
import shutil
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

import main_test_vrt
from data.cameras.calibration import load_calibration, save_calibration
from data.cameras.rig import Rig
from scripts.parts.make_sample_data.sample_layers import make_layers, render
from tests.helpers.checked import not_none
from tests.helpers.clip_files import BINS, add_cache, equal_samples, set_for_training, write_dat
from tests.helpers.train_files import run_odd, write_odd_options
from utils.image import imwrite_rgb
from utils.words import counted

# Height and width of the frames, and of the spike planes.
SIDE = 128
SPIKE = (SIDE // 2, SIDE // 2)
# Planes of a frame, and frames of a clip.
PLANES = 44
FRAMES = 6
# Position and timing of the cameras of "moved".
MOVED: dict[str, Any] = {
    "shift_x": 2.6,  # pixels of a frame
    "shift_y": -2.1,
    "rotation_deg": 0.4,
    "time_offset": 4.0,  # planes by which it is late
    "exposure": 0.7,  # share of the time between two frames in which a frame is exposed
}


def moving_scene(seed: int) -> list[np.ndarray]:
    """Return the light (H, W, 3) of each plane of a clip."""
    layers = make_layers(np.random.default_rng(seed), PLANES * FRAMES, SIDE)
    return [render(layers, plane) for plane in range(PLANES * FRAMES)]


def write_clip(root: Path, name: str, lights: list[np.ndarray], **rig: Any) -> None:
    """Write what two cameras record of the lights, and their true calibration <name>.json.

    rig: position and timing of the cameras, e.g. MOVED. Without `rig`, the cameras are aligned.
    """
    # The cameras have the noise of real cameras: of the spikes in time (jitter) and between pixels
    # (pattern), and of the frames (read). `rate` is the share of planes in which a pixel in full
    # light fires.
    cameras = Rig(seed=3, rate=0.3, jitter=0.02, pattern=0.02, read=0.002, **rig)
    clip = root / "rgb" / name
    spikes = root / "spikes" / name / "spike"
    for number, (blurry, sharp, stream) in enumerate(cameras.record(lights, PLANES, SPIKE)):
        imwrite_rgb(clip / "blur" / f"{number:06d}.png", blurry)
        imwrite_rgb(clip / "sharp" / f"{number:06d}.png", sharp)
        write_dat(spikes / f"{number:06d}.dat", stream)

    save_calibration(root / f"{name}.json", cameras.calibration(SPIKE, (SIDE, SIDE)))
    about = {
        "format": 1,
        "h": SPIKE[0],
        "w": SPIKE[1],
        "flip": True,
        "planes": PLANES,
        "gt_plane": PLANES // 2,
        "rate": 0.3,
        "light": "linear",
    }
    (root / "spikes" / "dataset.json").write_text(json.dumps(about))


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    """Give the folder of the five clips."""
    root = tmp_path_factory.mktemp("rigs")
    lights = moving_scene(seed=7)
    grey = np.full((SIDE, SIDE, 3), 0.3, np.float32)
    write_clip(root, "aligned", lights)
    write_clip(root, "moved", lights, **MOVED)
    write_clip(root, "still", [lights[0]] * len(lights), **MOVED)
    write_clip(root, "other", moving_scene(seed=8))
    write_clip(root, "flat", [grey] * len(lights), **MOVED)
    return root


# ---- A test ----


def restored_psnr(
    home: Path, out: Path, name: str, calibration: object, spikes_of: str | None = None
) -> float:
    """Restore a clip by the formula "exposure". Return the PSNR in dB.

    calibration: the option spike.calibration: "auto", "null" for none, or a file.
    spikes_of: the clip from which the spikes are taken. None: the clip `name` itself.
    """
    if spikes_of is None:
        spikes_of = name
    clip = home / "rgb" / name
    spikes = home / "spikes" / spikes_of / "spike"
    files = ["--input", clip / "blur", "--spike", spikes, "--gt", clip / "sharp", "--output", out]
    flags = ["--method", "exposure", "--save", "comparison", f"spike.calibration={calibration}"]
    assert main_test_vrt.main([str(word) for word in [*files, *flags]]) == 0
    return json.loads((out / "metrics.json").read_text())["clips"][name]["restored"]["psnr"]


def test_cameras_that_are_aligned_stay_as_they_are(home, tmp_path, capsys):
    found = restored_psnr(home, tmp_path / "auto", "aligned", calibration="auto")
    output = capsys.readouterr().out

    without = restored_psnr(home, tmp_path / "null", "aligned", calibration="null")
    assert found == without
    # The line of the log says what was found, and that it was not applied:
    #
    #     moved by 0.02 px, ... (error 0.04 px), left as it was; exposed -0.1 planes later (error
    #     0.1), left as it was; for 98% of the planes (error 0.8%), left as it was; ...
    assert "planes later (error" in output
    assert "left as it was" in output


def test_a_moved_camera_is_found(home, tmp_path):
    found = restored_psnr(home, tmp_path / "auto", "moved", calibration="auto")

    without = restored_psnr(home, tmp_path / "null", "moved", calibration="null")
    with_truth = restored_psnr(home, tmp_path / "true", "moved", calibration=home / "moved.json")
    # The numbers are in dB. The calibration that was found gains more than 1 dB, and loses less
    # than 0.4 dB against the true calibration. Measured: a gain of 1.9, and a loss of 0.3.
    assert found > without + 1
    assert found > with_truth - 0.4


@pytest.mark.parametrize(
    ("name", "spikes_of"),
    [
        pytest.param("flat", "flat", id="nothing to be seen"),
        pytest.param("moved", "other", id="spikes of another scene"),
    ],
)
def test_nothing_is_changed_if_nobody_could_find_how_the_cameras_are_mounted(
    home, tmp_path, capsys, name, spikes_of
):
    with_auto = restored_psnr(home, tmp_path / "auto", name, "auto", spikes_of)
    output = capsys.readouterr().out

    without = restored_psnr(home, tmp_path / "null", name, "null", spikes_of)
    assert with_auto == without
    # The line of the log, for "flat": "not sure (the frames explain 0% of the spikes' details,
    # error of the place 2.31 px): nothing is changed".
    assert "not sure (the frames explain" in output


def test_inverted_bits_are_a_warning(home, tmp_path, capsys):
    spikes = home / "spikes" / "inverted"
    shutil.copytree(home / "spikes" / "aligned", spikes)
    for path in spikes.rglob("*.dat"):
        inverted = ~np.fromfile(path, np.uint8)
        inverted.tofile(path)

    restored_psnr(home, tmp_path / "auto", "aligned", calibration="auto", spikes_of="inverted")
    shutil.rmtree(spikes)

    # The fit finds the cameras aligned, but the spikes are fewer where the frames are brighter.
    output = capsys.readouterr().out
    assert "fewer where the frames are brighter" in output
    assert "bits seem inverted" in output


def test_a_time_at_the_end_of_the_search_is_a_warning(home, tmp_path, capsys):
    # The spikes are late by 26 planes, and "auto" searches up to 20 planes.
    write_clip(tmp_path, "late", moving_scene(seed=7), time_offset=26.0)

    restored_psnr(tmp_path, tmp_path / "auto", "late", calibration="auto")

    output = capsys.readouterr().out
    assert "the best time offset, +20.0 planes, is the last one searched" in output
    assert "--search-planes" in output


def test_without_motion_only_the_place_of_a_camera_is_found(home, tmp_path, capsys):
    # Nothing moves in the scene of "still". Its cameras are moved against one another (MOVED). A
    # still picture shows by how many pixels the cameras are moved. Only motion would show the
    # times.
    restored_psnr(home, tmp_path / "still", "still", calibration="auto")

    output = capsys.readouterr().out
    # The line of the log: "moved by 3.31 px, ...; exposed -0.0 planes later (error 15.0), not sure:
    # left; for 54% of the planes (error 30.0%), not sure: left; ...".
    distance = math.hypot(MOVED["shift_x"], MOVED["shift_y"])  # 3.34 pixels
    assert f"moved by {distance:.1f}" in output
    # Neither the time offset nor the length of the exposure is sure.
    assert output.count("not sure: left") == 2


# ---- Training ----


@pytest.fixture(scope="module")
def section(home):
    """Give a section `datasets.train` for the five clips."""
    return {
        "dataset_type": "TrainDatasetRGBSpike",
        "dataroot_gt": str(home / "rgb"),
        "dataroot_lq": str(home / "rgb"),
        "dataroot_spike": str(home / "spikes"),
        "num_frame": 2,
        "gt_size": 32,
        "spike": {"type": "dat", "calibration": "auto", "representation": BINS},
    }


@pytest.fixture(scope="module")
def dataset(section):
    """Give the training set, whose clips have been calibrated."""
    return set_for_training(section)


def calibration_of(dataset: Any, name: str) -> Any:
    """Return the calibration that was found for a clip, or None."""
    clips = {clip.name: clip for clip in dataset.clips}
    # `not_none` fails the test if its argument is None.
    return not_none(clips[name].spikes).calibration


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("aligned", id="aligned: needs no calibration"),
        pytest.param("flat", id="flat: nothing shows the calibration"),
    ],
)
def test_training_gives_no_calibration_to_a_clip_that_needs_none_or_shows_none(dataset, name):
    assert calibration_of(dataset, name) is None


def test_training_finds_where_a_moved_camera_looks(home, dataset):
    found = not_none(calibration_of(dataset, "moved"))

    true = load_calibration(home / "moved.json")
    # x and y of the corners of the spike plane, which has 64 x 64 pixels.
    corners = np.array([[[0, 0], [63, 0], [0, 63], [63, 63.0]]])
    places = cv2.perspectiveTransform(corners, found.to_rgb())
    expected = cv2.perspectiveTransform(corners, true.to_rgb())
    # The limit is in pixels of a frame. A spike pixel is 2 pixels wide, so the limit is a tenth of
    # a spike pixel. Measured: 0.06 pixels.
    assert np.abs(places - expected).max() < 0.2


def test_training_finds_the_clock_of_a_moved_camera(home, dataset):
    found = not_none(calibration_of(dataset, "moved"))

    true = load_calibration(home / "moved.json")
    # The limit is in planes. An offset is sure if its error is at most 0.7 (SURE_WITHIN_PLANES).
    assert found.time_offset_planes == pytest.approx(true.time_offset_planes, abs=0.7)


def test_training_finds_the_exposure_of_a_moved_camera(home, dataset):
    found = not_none(calibration_of(dataset, "moved"))

    true = load_calibration(home / "moved.json")
    assert true.exposure_share == MOVED["exposure"]
    # A share is sure if its standard error is at most 0.03 (SURE_WITHIN_SHARE). Two standard errors
    # are allowed here. Measured: 0.65 in place of 0.7.
    assert found.exposure_share == pytest.approx(true.exposure_share, abs=0.06)


def test_channels_are_made_of_more_planes_than_were_exposed(dataset):
    clips = {clip.name: clip for clip in dataset.clips}
    share = not_none(calibration_of(dataset, "moved")).exposure_share

    exposure = clips["moved"].exposures[2]  # frame 2; any other frame would do

    # The channels are made of 12 % more planes than were exposed. Trials found that this number
    # gives the sharpest frames: `PLANES_FACTOR` in data/cameras/calibration.py. The number of
    # planes is rounded to whole planes.
    assert exposure.own.count == pytest.approx(1.12 * share * PLANES, abs=0.6)


def test_a_resumed_run_compares_the_calibration(dataset):
    # A checkpoint holds a digest of the lines of `sample_names`. A resumed run compares this digest
    # with the digest of its own lines. So the run notices another calibration.
    found = not_none(calibration_of(dataset, "moved"))

    assert f"calibration {found.digest()}" in dataset.sample_names()


# `section` is a section `datasets.train` for the five clips, and `dataset` is its data set.
def test_training_from_a_cache_finds_the_same(home, section, dataset):
    from_cache = set_for_training(add_cache(section, home / "cache"))

    assert from_cache.sample_names() == dataset.sample_names()
    epoch = 0
    # A clip has 6 samples: samples 0 to 5 are of the first clip, 6 to 11 of the second one, and so
    # on. So these four samples are of four clips.
    for number in (0, 7, 13, 20):
        assert equal_samples(dataset[(epoch, number)], from_cache[(epoch, number)])


# ---- Several ranks and several starts ----


class Run:
    """A training run on the five clips, which is started several times.

    Each start trains one more step. The calibrations are kept beside the run, in a file for each
    clip.
    """

    def __init__(self, home: Path, folder: Path) -> None:
        # "odd" is a tiny network, so a start takes little time (tests/dist/odd_worker.py).
        self.options = write_odd_options(folder)
        self.kept = folder / "experiments/.preflight"
        self.steps = 0
        self.first: dict[str, Any] = {}  # the calibrations of the first start
        self.changes = [
            f"datasets.train.dataroot_gt={home / 'rgb'}",
            f"datasets.train.dataroot_lq={home / 'rgb'}",
            f"datasets.train.dataroot_spike={home / 'spikes'}",
            "datasets.train.spike.calibration=auto",
            "datasets.test={}",
        ]

    def start(self, ranks: int, fitted: int, known: int) -> dict[str, Any]:
        """Start the run. Return {clip: calibration or None}, and check that each rank has the same.

        fitted: number of clips that the start must calibrate. known: number of calibrations that it
            must take from the folder of the run.
        """
        self.steps += 1
        # A step has two samples on any number of ranks.
        batch = f"datasets.train.dataloader_batch_size={2 // ranks}"
        steps = f"train.total_iter={self.steps}"
        # With case="clips", tests/dist/odd_worker.py prints the calibrations of the clips as JSON.
        result = run_odd(self.options, *self.changes, batch, steps, ranks=ranks, case="clips")
        assert result.exit_codes == [0] * ranks, result.text
        assert f"{counted(fitted, 'clip')} fitted in" in result.text, result.text
        assert f"{known} known" in result.text, result.text
        for of_rank in result.jsons:
            assert of_rank == result.json
        if self.steps > 1:
            assert "resumed from" in result.text, result.text
        return result.json

    def files(self):
        """Return the kept calibrations."""
        return sorted(self.kept.glob("calibration_*.json"))


@pytest.fixture(scope="module")
def run(home, tmp_path_factory):
    """Give a run that two ranks have started once.

    All tests share the run, so each test must leave the calibrations of all clips in its folder.
    """
    started = Run(home, tmp_path_factory.mktemp("run"))
    started.first = started.start(ranks=2, fitted=5, known=0)
    return started


# This test is slow, because several ranks calibrate. `make test` has the same with one rank.
@pytest.mark.slow
def test_the_ranks_of_a_first_start_keep_a_calibration_of_each_clip(run):
    assert len(run.files()) == 5
    assert run.first["moved"]["matrix"]
    assert run.first["aligned"] is None


def test_each_clip_is_fitted_once(run):
    assert run.start(ranks=2, fitted=0, known=5) == run.first


def test_a_clip_is_fitted_again_if_its_kept_calibration_cannot_be_used(run):
    damaged, *others = run.files()
    times = {file: file.stat().st_mtime_ns for file in others}

    # A file that the program did not write is not overwritten.
    damaged.write_text("not ours")
    assert run.start(ranks=1, fitted=1, known=4) == run.first
    assert damaged.read_text() == "not ours"

    damaged.unlink()
    assert run.start(ranks=2, fitted=1, known=4) == run.first

    # The other files could be used, so they are not written again.
    assert {file: file.stat().st_mtime_ns for file in others} == times


def test_a_clip_is_fitted_again_if_its_frames_have_changed(home, run):
    first_frame, *_ = sorted((home / "rgb/moved/blur").iterdir())

    os.utime(first_frame)

    assert run.start(ranks=2, fitted=1, known=4) == run.first

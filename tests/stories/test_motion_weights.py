"""weights/motion.pth: sharp frames by learned steps along the motion that the spikes show."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from data.clips.files import files_in
from tests.helpers.moving_scene import Scene
from tests.helpers.weights_files import metrics, restore
from utils.image import imread_rgb, imwrite_rgb

MOTION = "weights/motion.pth"
OPERATOR = "weights/operator.pth"
MOVING = Scene(velocity=(11.0, -5.0))
# Most that a clip may lose in dB where the motion or the model of the frame is wrong.
MOST_LOST = 0.2


def restored(clip, out, weights, *more):
    """The mean PSNR in dB of the restored frames, and what the report says of the method."""
    places = {"--input": clip / "blur", "--spike": clip / "spike", "--gt": clip / "sharp"}
    words = [word for place in places.items() for word in place]
    restore("--weights", weights, *words, "--output", out, "--save", "frames", *more)
    about = metrics(out)
    return about["averages"]["restored"]["psnr"], about["protocol"]


def gain(scene, folder):
    """By how many dB motion.pth is better than operator.pth on a scene."""
    clip = scene.write(folder / "clip")
    better, _ = restored(clip, folder / "motion", MOTION)
    start, _ = restored(clip, folder / "operator", OPERATOR)
    return better - start


class Restored(NamedTuple):
    """The clip of MOVING, restored with motion.pth."""

    clip: Path  # a user's folders: blur, spike, sharp
    out: Path  # the results
    psnr: float  # mean of the restored frames, in dB
    protocol: dict[str, str]  # what the report says of the method


@pytest.fixture(scope="module")
def moving(tmp_path_factory):
    """Give the clip of MOVING, restored with motion.pth."""
    folder = tmp_path_factory.mktemp("moving")
    clip = MOVING.write(folder / "clip")
    psnr, protocol = restored(clip, folder / "out", MOTION)
    return Restored(clip, folder / "out", psnr, protocol)


def test_a_clip_that_moves_is_sharper_than_by_the_operator(moving, tmp_path):
    by_operator, _ = restored(moving.clip, tmp_path / "operator", OPERATOR)

    assert moving.psnr > by_operator + 1  # dB


def test_a_clip_that_stands_still_stays_as_sharp_as_it_is(tmp_path):
    clip = Scene().write(tmp_path / "clip")
    psnr, _ = restored(clip, tmp_path / "out", MOTION)
    assert psnr > 42


# 0.4 spikes per plane at full light are 24 in an exposure, and about 8 in a pixel of median light.
@pytest.mark.parametrize("rate", [0.6, 0.4])
def test_a_clip_that_stands_still_stays_as_the_operator_restores_it(rate, tmp_path):
    assert gain(Scene(rate=rate), tmp_path) > -MOST_LOST


def psnr_of_both(clip, folder):
    """Return the mean PSNR in dB by motion.pth and by operator.pth."""
    by_motion, _ = restored(clip, folder / "motion", MOTION)
    by_operator, _ = restored(clip, folder / "operator", OPERATOR)
    return by_motion, by_operator


def test_a_camera_that_changes_its_exposure_loses_nothing(tmp_path):
    clip = MOVING.write(tmp_path / "clip")
    # The display values of the frames are scaled as by automatic exposure. The spike camera sees
    # the same light in all frames.
    for folder in ("blur", "sharp"):
        for path, factor in zip(files_in(clip / folder), (0.5, 0.75, 1.0), strict=True):
            picture = imread_rgb(path) * factor
            imwrite_rgb(path, picture.round().astype(np.uint8))

    by_motion, by_operator = psnr_of_both(clip, tmp_path)

    assert by_motion > by_operator - MOST_LOST


def test_a_saturated_exposure_spoils_no_other_frame(tmp_path):
    clip = MOVING.write(tmp_path / "clip")
    path = clip / "spike/001.dat"
    path.write_bytes(b"\xff" * path.stat().st_size)  # a spike of each pixel in each plane

    by_motion, by_operator = psnr_of_both(clip, tmp_path)

    assert by_motion > by_operator - MOST_LOST


@pytest.mark.parametrize("planes", [5, 11])
def test_an_exposure_of_few_planes_is_restored(planes, tmp_path):
    scene = Scene(velocity=(5.0, -2.0), planes=planes, sharp_plane=planes // 2, rate=0.2)
    clip = scene.write(tmp_path / "clip")
    # Windows as shares of the exposure, as weights/README.md says for short exposures.
    windows = "spike.representation.half_windows=[0.0465,0.14,0.28]"

    psnr, _ = restored(clip, tmp_path / "out", MOTION, windows)

    assert psnr > 20  # dB


@pytest.mark.parametrize(
    "scene",
    [
        Scene(velocity=(3.0, 1.0), spot=14, spot_velocity=(-36.0, 10.0)),
        replace(MOVING, averaged="display"),
        replace(MOVING, exposure=0.8),
        replace(MOVING, rate=0.05),
    ],
    ids=["small and fast", "means of display values", "exposure not told", "dim"],
)
def test_a_wrong_motion_or_a_false_model_of_the_frame_loses_hardly_anything(scene, tmp_path):
    assert gain(scene, tmp_path) > -MOST_LOST


def test_a_clip_without_any_spike_stays_as_by_the_operator(moving, tmp_path):
    dark = tmp_path / "clip"
    shutil.copytree(moving.clip, dark)
    for file in (dark / "spike").glob("*.dat"):
        file.write_bytes(bytes(file.stat().st_size))  # planes of zeros

    restored(dark, tmp_path / "motion", MOTION)
    restored(dark, tmp_path / "operator", OPERATOR)

    files = sorted((tmp_path / "motion/clip").glob("*.png"))
    assert len(files) == MOVING.frames
    for file in files:
        by_operator = imread_rgb(tmp_path / "operator/clip" / file.name)
        assert np.array_equal(imread_rgb(file), by_operator)


def test_a_frame_does_not_depend_on_which_others_are_restored(moving, tmp_path):
    restored(moving.clip, tmp_path / "middle", MOTION, "--center-frame-only")

    [file] = sorted((tmp_path / "middle/clip").glob("*.png"))
    assert np.array_equal(imread_rgb(file), imread_rgb(moving.out / "clip" / file.name))


def test_the_report_names_the_learned_steps(moving):
    assert "motion" in moving.protocol
    assert moving.protocol["weights"].startswith(MOTION)


def test_the_joint_solution_without_learned_steps_begins_at_its_first_estimate(moving, tmp_path):
    by_motion, protocol = restored(moving.clip, tmp_path / "a", MOTION, "--method", "joint")
    by_operator, _ = restored(moving.clip, tmp_path / "b", OPERATOR, "--method", "joint")
    assert by_motion == by_operator
    assert "motion" not in protocol


@pytest.mark.slow
def test_a_frame_that_is_solved_in_bands_gains_as_much_as_a_small_frame(tmp_path):
    # The same texture, motion and spikes as in MOVING, with more than 1,048,576 pixels.
    large = replace(MOVING, size=(1100, 1000), frames=1)

    assert gain(large, tmp_path) > 1  # dB

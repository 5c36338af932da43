"""weights/motion.pth: sharp frames by learned steps along the motion that the spikes show.

operator.pth is a small network with spikes. motion.pth begins with the frames of operator.pth, and
improves them. So the tests compare the two. The clips are rendered scenes
(tests/helpers/moving_scene.py).

What is tested: data/motion/ finds the motion and says where the motion can be trusted.
models/fusion/fusion_motion.py has the learned steps.
"""

import json
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from data.clips.user_folders import files_in
from data.motion import restorer
from data.motion.bands import bands_of
from data.spike.formats import read_spikes, write_spikes
from data.spike.geometry import SpikeGeometry
from tests.helpers.moving_scene import Scene, with_clipped_sky
from tests.helpers.weights_files import read_metrics, restore
from utils.image import imread_rgb, imwrite_rgb

MOTION_WEIGHTS = "weights/motion.pth"
OPERATOR_WEIGHTS = "weights/operator.pth"
# A scene that moves by 12 pixels in each exposure.
MOVING = Scene(velocity=(11.0, -5.0))
# Largest loss of a clip in dB, if the motion or the model of the frame is wrong. If motion and
# model are right, the gain is more than 1 dB, so the largest loss is far less than the gain.
MOST_LOST = 0.2

# This marks tests with unusual clips. Each test takes two seconds of a core. Its result changes
# only with the shipped weights or the solver. So most of these tests are only in `make slow`. The
# name has nothing to do with the network "odd" of other tests.
ODD_CLIP = pytest.mark.slow


class RestoredClip(NamedTuple):
    """A restored clip."""

    psnr: float  # mean of the restored frames, in dB
    protocol: dict[str, str]  # what the report says of the method
    frames: list[Path]  # the restored frames, in the order of time


def restore_with(clip, out, weights, *more) -> RestoredClip:
    """Restore a clip with weights.

    clip: folder of a user's clip, with the folders blur, spike and sharp. out: folder of the
    results. more: additional arguments.
    """
    inputs = ["--input", clip / "blur", "--spike", clip / "spike", "--gt", clip / "sharp"]
    restore("--weights", weights, *inputs, "--output", out, "--save", "frames", *more)
    report = read_metrics(out)
    frames = sorted((out / clip.name).glob("*.png"))
    return RestoredClip(report["averages"]["restored"]["psnr"], report["protocol"], frames)


def gain(scene, folder) -> float:
    """Return by how many dB motion.pth is better than operator.pth on a scene."""
    return gain_on(scene.write(folder / "clip"), folder)


def gain_on(clip, folder) -> float:
    """Return by how many dB motion.pth is better than operator.pth on a clip of a user.

    folder: folder of the results.
    """
    by_motion = restore_with(clip, folder / "motion", MOTION_WEIGHTS)
    by_operator = restore_with(clip, folder / "operator", OPERATOR_WEIGHTS)
    return by_motion.psnr - by_operator.psnr


def assert_same_picture(file: Path, other: Path) -> None:
    """Fail if two image files have different pixels."""
    assert np.array_equal(imread_rgb(file), imread_rgb(other))


@pytest.fixture(scope="module")
def moving_clip(tmp_path_factory):
    """Give the folder of the clip of MOVING."""
    return MOVING.write(tmp_path_factory.mktemp("moving") / "clip")


@pytest.fixture(scope="module")
def restored_moving_clip(moving_clip, tmp_path_factory) -> RestoredClip:
    """Give the clip of MOVING, restored with motion.pth."""
    return restore_with(moving_clip, tmp_path_factory.mktemp("restored") / "out", MOTION_WEIGHTS)


# ---- How well it restores ----


def test_a_clip_that_moves_is_sharper_than_by_the_operator(
    restored_moving_clip, moving_clip, tmp_path
):
    # Like `gain_on`, this test compares motion.pth with operator.pth. It takes the result of
    # motion.pth from a fixture, so that motion.pth restores this clip only once for all tests.
    by_operator = restore_with(moving_clip, tmp_path, OPERATOR_WEIGHTS)

    assert restored_moving_clip.psnr > by_operator.psnr + 1  # dB; measured: 3.1


def test_a_clip_that_stands_still_stays_as_sharp_as_it_is(tmp_path):
    clip = Scene().write(tmp_path / "clip")

    # Nothing moves, so the blurry frames are sharp. Only noise and the rounding to 8 bits are left.
    assert restore_with(clip, tmp_path / "out", MOTION_WEIGHTS).psnr > 42  # dB; measured: 45.7


# Spikes per plane at full light. 0.6 is the usual rate of a scene. At 0.1, a pixel in full light
# has 0.1 * 60 = 6 spikes in an exposure of 60 planes. The median light is about a third of the full
# light, and gives 2 spikes.
@pytest.mark.parametrize("rate", [0.6, 0.1])
def test_a_clip_that_stands_still_stays_as_the_operator_restores_it(rate, tmp_path):
    assert gain(Scene(rate=rate), tmp_path) > -MOST_LOST


@ODD_CLIP
def test_slides_stay_as_the_operator_restores_them(tmp_path):
    # The clip has three still scenes, one in each frame. Each frame has its spikes in a file of its
    # own.
    slides = tmp_path / "slides"
    for number in range(3):
        scene = Scene(frames=1, seed=number).write(tmp_path / f"scene{number}")
        # First copy the folders with all files without a number, e.g. dataset.json. Then copy the
        # only numbered file of each folder, under the number of the slide.
        shutil.copytree(scene, slides, dirs_exist_ok=True, ignore=shutil.ignore_patterns("0*"))
        for folder in ("blur", "sharp", "spike"):
            [file] = (scene / folder).glob("0*")
            shutil.copy(file, slides / folder / f"{number:06d}{file.suffix}")

    assert gain_on(slides, tmp_path) > -MOST_LOST


@ODD_CLIP
def test_a_camera_that_changes_its_exposure_loses_nothing(tmp_path):
    clip = MOVING.write(tmp_path / "clip")
    # The first and the second frame become darker, as by automatic exposure. The display values of
    # these frames are multiplied by 0.5 and 0.75. The spike camera sees the same light in all
    # frames.
    for folder in ("blur", "sharp"):
        for path, factor in zip(files_in(clip / folder), (0.5, 0.75, 1.0), strict=True):
            darker = imread_rgb(path) * factor
            imwrite_rgb(path, darker.round().astype(np.uint8))

    assert gain_on(clip, tmp_path) > -MOST_LOST


# A hot pixel fires in each plane, and a dead pixel never. 3 % of each are many for a sensor.
@ODD_CLIP
@pytest.mark.parametrize("spikes_of_broken", [1, 0])
def test_broken_spike_pixels_lose_hardly_anything(
    spikes_of_broken, restored_moving_clip, moving_clip, tmp_path
):
    clip = shutil.copytree(moving_clip, tmp_path / "clip")
    plane = SpikeGeometry(48, 48)  # a spike pixel covers 2 x 2 pixels of a frame of 96 x 96
    is_broken = np.random.default_rng(0).random((48, 48)) < 0.03
    for file in (clip / "spike").glob("*.dat"):
        spikes = read_spikes(file, plane)
        spikes[:, is_broken] = spikes_of_broken
        write_spikes(file, spikes, plane)

    assert (
        restore_with(clip, tmp_path / "out", MOTION_WEIGHTS).psnr > restored_moving_clip.psnr - 0.5
    )  # dB


@ODD_CLIP
def test_a_sky_that_the_rgb_camera_clips_loses_nothing(tmp_path):
    clip = replace(MOVING, rate=0.2).write(tmp_path / "clip")
    # Change the clip: give it a sky that is four times as bright as the RGB camera can show.
    with_clipped_sky(clip, rate=0.2)

    assert gain_on(clip, tmp_path) > -MOST_LOST


@ODD_CLIP
def test_a_title_in_the_frames_loses_nothing(tmp_path):
    clip = MOVING.write(tmp_path / "clip")
    # The title is a white box with black bars. The spike camera does not see it.
    for path in (*files_in(clip / "blur"), *files_in(clip / "sharp")):
        picture = imread_rgb(path)
        picture[4:24, 4:60] = 255
        picture[8:20, 8:56:4] = 0
        imwrite_rgb(path, picture)

    assert gain_on(clip, tmp_path) > -MOST_LOST


@ODD_CLIP
def test_a_noisy_frame_loses_nothing(tmp_path):
    clip = MOVING.write(tmp_path / "clip")
    rng = np.random.default_rng(0)
    for path in files_in(clip / "blur"):
        picture = imread_rgb(path)
        noisy = picture + rng.normal(0, 0.05 * 255, picture.shape)  # 5 % of white
        imwrite_rgb(path, noisy.clip(0, 255).round().astype(np.uint8))

    assert gain_on(clip, tmp_path) > -MOST_LOST


def test_a_saturated_exposure_spoils_no_other_frame(tmp_path):
    clip = MOVING.write(tmp_path / "clip")
    spikes_of_middle_frame = clip / "spike/001.dat"
    size = spikes_of_middle_frame.stat().st_size
    spikes_of_middle_frame.write_bytes(b"\xff" * size)  # a spike of each pixel in each plane

    assert gain_on(clip, tmp_path) > -MOST_LOST


def test_spike_pixels_smaller_than_the_pixels_of_the_frame_give_the_frames_of_the_operator(
    tmp_path,
):
    clip = MOVING.write(tmp_path / "clip")
    # Each spike pixel becomes 4 x 4 spike pixels. So 2 x 2 spike pixels lie in a pixel of the
    # frame.
    for path in files_in(clip / "spike", (".dat",)):
        spikes = read_spikes(path, SpikeGeometry(48, 48)).repeat(4, axis=1).repeat(4, axis=2)
        write_spikes(path, spikes, SpikeGeometry(192, 192))
    about = json.loads((clip / "spike/dataset.json").read_text())
    (clip / "spike/dataset.json").write_text(json.dumps(about | {"h": 192, "w": 192}))

    by_motion = restore_with(clip, tmp_path / "motion", MOTION_WEIGHTS)
    by_operator = restore_with(clip, tmp_path / "operator", OPERATOR_WEIGHTS)

    for file, other in zip(by_motion.frames, by_operator.frames, strict=True):
        assert_same_picture(file, other)


@pytest.mark.parametrize("planes", [5, pytest.param(11, marks=ODD_CLIP)])
def test_an_exposure_of_few_planes_is_restored(planes, tmp_path):
    scene = Scene(velocity=(5.0, -2.0), planes=planes, sharp_plane=planes // 2, rate=0.2)
    clip = scene.write(tmp_path / "clip")
    # The weights expect windows of whole planes. These windows are longer than this exposure of few
    # planes. So the windows are given as fractions of the exposure, e.g. 0.28, as weights/README.md
    # says for short exposures.
    windows = "spike.representation.half_windows=[0.0465,0.14,0.28]"

    by_motion = restore_with(clip, tmp_path / "motion", MOTION_WEIGHTS, windows)
    by_operator = restore_with(clip, tmp_path / "operator", OPERATOR_WEIGHTS, windows)

    # So few planes say little about the motion, so the learned steps may do a little harm.
    assert by_motion.psnr > by_operator.psnr - 0.5  # dB


@ODD_CLIP
@pytest.mark.parametrize(
    "scene",
    [
        pytest.param(
            Scene(velocity=(3.0, 1.0), spot=14, spot_velocity=(-36.0, 10.0)),
            id="a square too small and fast for the search of the motion",
        ),
        pytest.param(
            replace(MOVING, averaged="display"),
            id="the blurry frame is a mean of display values, not of light",
        ),
        pytest.param(
            replace(MOVING, exposure=0.8), id="an exposure of 80 %, which no calibration tells"
        ),
        pytest.param(replace(MOVING, rate=0.05), id="dim: 3 spikes in an exposure at full light"),
    ],
)
def test_a_wrong_motion_or_a_false_model_of_the_frame_loses_hardly_anything(scene, tmp_path):
    assert gain(scene, tmp_path) > -MOST_LOST


def test_a_clip_without_any_spike_stays_as_by_the_operator(moving_clip, tmp_path):
    dark = tmp_path / "clip"
    shutil.copytree(moving_clip, dark)
    for file in (dark / "spike").glob("*.dat"):
        size = file.stat().st_size
        file.write_bytes(bytes(size))  # planes of zeros

    by_motion = restore_with(dark, tmp_path / "motion", MOTION_WEIGHTS)
    by_operator = restore_with(dark, tmp_path / "operator", OPERATOR_WEIGHTS)

    assert len(by_motion.frames) == MOVING.frames
    for file, other in zip(by_motion.frames, by_operator.frames, strict=True):
        assert_same_picture(file, other)


@pytest.mark.slow
def test_a_frame_that_is_solved_in_bands_gains_as_much_as_a_whole_frame(tmp_path, monkeypatch):
    # The clip has the texture, the motion and the spikes of MOVING, but its frame is higher.
    clip = replace(MOVING, size=(560, 96), frames=1).write(tmp_path / "clip")
    by_operator = restore_with(clip, tmp_path / "operator", OPERATOR_WEIGHTS)
    whole = restore_with(clip, tmp_path / "whole", MOTION_WEIGHTS)

    # Usually only frames of more than 1,048,576 pixels are divided (MOST_PIXELS in
    # data/motion/bands.py). Now frames of more than 20,000 pixels are divided. So this frame has
    # two bands of 344 rows.
    monkeypatch.setattr(restorer, "bands_of", partial(bands_of, most_pixels=20_000))
    in_bands = restore_with(clip, tmp_path / "bands", MOTION_WEIGHTS)

    assert whole.psnr > by_operator.psnr + 1  # dB; measured: 4.7
    assert in_bands.psnr == pytest.approx(whole.psnr, abs=0.1)  # dB


# ---- Which frames, and what the report says ----


def test_a_frame_does_not_depend_on_which_others_are_restored(
    restored_moving_clip, moving_clip, tmp_path
):
    alone = restore_with(moving_clip, tmp_path, MOTION_WEIGHTS, "--center-frame-only")

    [middle_alone] = alone.frames
    _, middle, _ = restored_moving_clip.frames
    assert_same_picture(middle_alone, middle)


def test_the_report_names_the_learned_steps(restored_moving_clip):
    assert "motion" in restored_moving_clip.protocol
    assert restored_moving_clip.protocol["weights"].startswith(MOTION_WEIGHTS)


def test_the_first_estimates_are_made_one_by_one(restored_moving_clip):
    # First estimates do not depend on one another. So no tile keeps several frames in memory.
    assert "first estimate: tiles of 1 frame x " in restored_moving_clip.protocol["tile"]


def test_tiles_of_several_frames_give_the_same_frames(restored_moving_clip, moving_clip, tmp_path):
    in_tiles = restore_with(moving_clip, tmp_path, MOTION_WEIGHTS, "--tile", "3,256")

    assert "tiles of 3 frames x 256 px" in in_tiles.protocol["tile"]
    for frame, frame_in_tiles in zip(restored_moving_clip.frames, in_tiles.frames, strict=True):
        assert_same_picture(frame, frame_in_tiles)


def test_the_joint_solution_begins_at_the_first_estimate_without_learned_steps(
    moving_clip, tmp_path
):
    # The first estimates of motion.pth are the frames of operator.pth.
    from_motion = restore_with(moving_clip, tmp_path / "a", MOTION_WEIGHTS, "--method", "joint")
    from_operator = restore_with(moving_clip, tmp_path / "b", OPERATOR_WEIGHTS, "--method", "joint")

    assert from_motion.psnr == from_operator.psnr
    assert "motion" not in from_motion.protocol

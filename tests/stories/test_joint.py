"""main_test_vrt.py --method joint: sharp frames solved from the blurry frames and the spikes.

The joint solution improves first estimates of the frames. The formula "exposure" makes the first
estimates. With --weights, a network makes them. The clip is a moving scene of three frames
(tests/helpers/moving_scene.py). Each method restores the clip once, for all tests.

What is tested: data/motion/joint/ has the solution, and data/motion/joint_method.py has the method.
"""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from tests.helpers.moving_scene import Scene
from tests.helpers.weights_files import (
    make_home,
    read_metrics,
    refusal_message,
    restore,
    save_weights,
)
from utils.image import imread_rgb

# Weights of this project: a small network with spikes.
OPERATOR = "weights/operator.pth"
# The exit code of a wrong command line or option file (OptionError).
WRONG_OPTION = 2

# Name of a method that restores the clip -> its arguments.
METHODS = {
    "tfp": ["--method", "tfp"],
    "exposure": ["--method", "exposure"],
    "joint": ["--method", "joint"],
    "operator": ["--weights", OPERATOR],
    "joint from operator": ["--method", "joint", "--weights", OPERATOR],
}


@pytest.fixture(scope="module")
def clip(tmp_path_factory):
    """Give a clip of three frames of 96 x 96. Its scene moves by 12 pixels in each exposure."""
    return Scene(velocity=(11.0, -5.0)).write(tmp_path_factory.mktemp("clips") / "scene")


def files_of(clip, out):
    """Return the arguments for the folders of a user's clip. Its frames are written to `out`."""
    inputs = ["--input", clip / "blur", "--spike", clip / "spike", "--gt", clip / "sharp"]
    return [*inputs, "--output", out, "--save", "frames"]


class RestoredClip(NamedTuple):
    """The clip, restored by one method."""

    psnr: float  # mean of the frames, in dB
    psnr_y: float  # mean of the frames, of the luma only, in dB
    protocol: dict[str, str]  # what the report says about the method
    frames: Path  # folder of the restored frames


@pytest.fixture(scope="module")
def restored_clips(clip, tmp_path_factory) -> dict[str, RestoredClip]:
    """Give the clip as each method restores it: name of the method -> result."""
    folder = tmp_path_factory.mktemp("restored")
    results = {}
    for name, arguments in METHODS.items():
        out = folder / name.replace(" ", "_")
        restore(*arguments, *files_of(clip, out))
        report = read_metrics(out)
        means = report["averages"]["restored"]
        # The frames of tfp are grey, so they have no PSNR of colours.
        psnr = means.get("psnr", float("nan"))
        results[name] = RestoredClip(psnr, means["psnr_y"], report["protocol"], out / "scene")
    return results


# ---- How well it restores ----


def test_it_is_better_than_the_formula_that_it_begins_with(restored_clips):
    assert restored_clips["joint"].psnr > restored_clips["exposure"].psnr + 1.5  # dB; measured: 4.0


def test_it_is_better_than_a_picture_of_only_the_spikes(restored_clips):
    # The frames of tfp are grey, so only the luma is compared. The gain was measured as 9.7 dB.
    assert restored_clips["joint"].psnr_y > restored_clips["tfp"].psnr_y + 1.5  # dB


def test_it_improves_the_frames_of_a_network(restored_clips):
    assert restored_clips["joint from operator"].psnr > restored_clips["operator"].psnr + 1  # dB


def test_frames_that_stand_still_stay_as_sharp_as_they_are(tmp_path):
    still = Scene().write(tmp_path / "still")

    restore("--method", "joint", *files_of(still, tmp_path / "out"))

    # Nothing moves, so the blurry frames are sharp. Only noise and the rounding to 8 bits are left.
    assert read_metrics(tmp_path / "out")["averages"]["restored"]["psnr"] > 38  # dB; measured: 47.3


# `clip` has three frames. Its scene moves by 12 pixels in each exposure.
def test_a_frame_does_not_depend_on_which_others_are_restored(clip, restored_clips, tmp_path):
    restore("--method", "joint", *files_of(clip, tmp_path / "out"), "--center-frame-only")

    [alone] = (tmp_path / "out/scene").glob("*.png")
    with_others = restored_clips["joint"].frames / alone.name
    assert np.array_equal(imread_rgb(alone), imread_rgb(with_others))


# ---- What the report says ----


def test_the_report_names_the_method_and_the_formula_that_it_begins_with(restored_clips):
    protocol = restored_clips["joint"].protocol

    assert protocol["method"].startswith("joint (groups 20,")  # 20 is the default
    assert "exposure" in protocol["method"]
    assert "weights" not in protocol


def test_the_report_names_the_weights_that_it_begins_with(restored_clips):
    protocol = restored_clips["joint from operator"].protocol

    assert protocol["weights"].startswith(OPERATOR)
    assert "output of the weights" in protocol["method"]


# ---- Options ----


def test_options_are_given_as_method_keys(clip, restored_clips, tmp_path):
    # With one step of the solver, and without the guard, the joint solution is worse than usual. So
    # a lower PSNR shows that the options were used.
    weak = ["method.steps=1", "method.guard=0"]

    restore("--method", "joint", *files_of(clip, tmp_path / "out"), *weak)

    psnr = read_metrics(tmp_path / "out")["averages"]["restored"]["psnr"]
    assert psnr < restored_clips["joint"].psnr


@pytest.mark.parametrize(
    ("option", "words"),
    [
        pytest.param(
            "method.step=1", ["method.step", "steps"], id="unknown: the near key is named"
        ),
        pytest.param("method.noise=0", ["method.noise"], id="out of its range"),
    ],
)
def test_a_wrong_option_is_named(clip, tmp_path, capfd, option, words):
    # `refusal_message` runs main_test_vrt.py.
    text, code = refusal_message(
        capfd, "--method", "joint", *files_of(clip, tmp_path / "out"), option
    )

    assert code == WRONG_OPTION
    for word in words:
        assert word in text


# ---- The test set of an option file ----


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Give a folder with options.json, its clips test0 to test2, and weights.

    The option file names the folder "experiments" beside it as the folder of runs.
    spike.pth has weights of a network with spikes, and rgb.pth of a network without spikes. The
    network of three.pth returns three sharp frames, at three instants, for each blurry frame.
    """
    folder = make_home(tmp_path_factory.mktemp("home"))
    three_instants = ("netG.out_instants=3", "netG.fusion=gated")
    save_weights(folder / "options.json", folder / "three.pth", *three_instants)
    return folder


@pytest.mark.parametrize("begins_with", ["a formula", "weights"])
def test_the_clips_of_an_option_file_are_restored(home, tmp_path, begins_with):
    arguments = ["--method", "joint", "--opt", home / "options.json", "--output", tmp_path]
    if begins_with == "weights":
        arguments += ["--weights", home / "spike.pth"]

    restore(*arguments)

    assert sorted(read_metrics(tmp_path)["clips"]) == ["test0", "test1", "test2"]


def test_without_output_the_results_lie_in_the_folder_of_the_run(home):
    restore("--method", "joint", "--opt", home / "options.json")

    assert (home / "experiments/run/test_joint/metrics.json").exists()


# ---- Refusals ----


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        pytest.param(
            "--method joint --spike {clip}/spike --output {out}",
            "--input",
            id="no frames",
        ),
        pytest.param(
            "--method exposure --weights {operator} --opt {home}/options.json",
            "--weights",
            id="a formula has no weights",
        ),
        pytest.param(
            "--method joint --tile 2,32 --opt {home}/options.json",
            "--tile",
            id="without a network there are no tiles",
        ),
        pytest.param(
            "--method joint --weights {home}/rgb.pth {own_clip}",
            "take no spikes",
            id="weights without spikes",
        ),
        pytest.param(
            "--method joint --weights {home}/three.pth {own_clip}",
            "several instants",
            id="weights of several instants",
        ),
    ],
)
def test_what_does_not_go_together_is_refused(clip, home, tmp_path, capfd, arguments, words):
    out = tmp_path / "out"
    own_clip = f"--input {clip}/blur --spike {clip}/spike --output {out}"
    filled_in = arguments.format(
        clip=clip, out=out, home=home, operator=OPERATOR, own_clip=own_clip
    )

    text, code = refusal_message(capfd, *filled_in.split())

    assert code == WRONG_OPTION
    assert words in text

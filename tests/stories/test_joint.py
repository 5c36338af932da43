"""main_test_vrt.py --method joint: sharp frames solved from the blurry frames and the spikes.

The method joint searches the sharp frames that explain both the blurry frames and the spikes. It
begins with the frames of the method exposure, or with the output of a network. Each way restores
one clip of three frames, once for all tests.
"""

import numpy as np
import pytest

from tests.helpers.moving_scene import Scene
from tests.helpers.weights_files import make_home, message, metrics, restore, save_weights
from utils.image import imread_rgb

# Weights of this project: a small network with spikes.
OPERATOR = "weights/operator.pth"


@pytest.fixture(scope="module")
def clip(tmp_path_factory):
    """Give a clip of three frames of 96 x 96, whose scene moves by 12 pixels in each exposure."""
    return Scene(velocity=(11.0, -5.0)).write(tmp_path_factory.mktemp("clips") / "scene")


def user_form(clip, out):
    """Return the arguments for a clip of a user, whose frames are written to `out`."""
    places = {"--input": clip / "blur", "--spike": clip / "spike", "--gt": clip / "sharp"}
    return [
        *(word for place in places.items() for word in place),
        "--output",
        out,
        "--save",
        "frames",
    ]


@pytest.fixture(scope="module")
def scores(clip, tmp_path_factory):
    """Give the results of each way: name -> mean scores of the restored frames.

    Beside the scores are "protocol", which says how the frames were made, and "out", the folder.
    """
    folder = tmp_path_factory.mktemp("restored")
    found = {}
    ways = {
        "tfp": ["--method", "tfp"],
        "exposure": ["--method", "exposure"],
        "joint": ["--method", "joint"],
        "operator": ["--weights", OPERATOR],
        "joint from operator": ["--method", "joint", "--weights", OPERATOR],
    }
    for name, way in ways.items():
        out = folder / name.replace(" ", "_")
        restore(*way, *user_form(clip, out))
        about = metrics(out)
        found[name] = {**about["averages"]["restored"], "protocol": about["protocol"], "out": out}
    return found


def test_it_is_better_than_the_formulas_and_improves_the_frames_of_a_network(scores):
    assert scores["joint"]["psnr"] > scores["exposure"]["psnr"] + 1.5
    assert scores["joint"]["psnr_y"] > scores["tfp"]["psnr_y"] + 1.5
    assert scores["joint from operator"]["psnr"] > scores["operator"]["psnr"] + 1


def test_the_report_names_the_method_its_options_and_where_it_began(scores):
    alone = scores["joint"]["protocol"]
    assert alone["method"].startswith("joint (groups 20,")
    assert "exposure" in alone["method"]
    assert "weights" not in alone
    begun = scores["joint from operator"]["protocol"]

    assert begun["weights"].startswith(OPERATOR)
    assert "output of the weights" in begun["method"]


def test_options_are_given_as_method_keys_and_a_wrong_one_is_named(clip, scores, tmp_path, capfd):
    restore(
        "--method", "joint", *user_form(clip, tmp_path / "few"), "method.steps=1", "method.guard=0"
    )
    assert metrics(tmp_path / "few")["averages"]["restored"]["psnr"] < scores["joint"]["psnr"]
    text, code = message(
        capfd, "--method", "joint", *user_form(clip, tmp_path / "x"), "method.step=1"
    )
    assert code == 2
    assert "method.step" in text
    assert "steps" in text
    text, code = message(
        capfd, "--method", "joint", *user_form(clip, tmp_path / "x"), "method.noise=0"
    )

    assert code == 2
    assert "method.noise" in text


def test_a_frame_does_not_depend_on_which_others_are_restored(clip, scores, tmp_path):
    restore("--method", "joint", *user_form(clip, tmp_path / "middle"), "--center-frame-only")
    [file] = sorted((tmp_path / "middle" / "scene").glob("*.png"))

    assert np.array_equal(
        imread_rgb(file), imread_rgb(scores["joint"]["out"] / "scene" / file.name)
    )


def test_frames_that_stand_still_stay_as_sharp_as_they_are(tmp_path):
    still = Scene().write(tmp_path / "still")
    restore("--method", "joint", *user_form(still, tmp_path / "out"))
    found = metrics(tmp_path / "out")["averages"]
    assert found["restored"]["psnr"] > 38


def test_a_test_set_of_an_option_file_is_restored_from_a_formula_and_from_weights(home, tmp_path):
    joint = ["--method", "joint", "--opt", home / "options.json", "--save", "frames"]
    for name, more in (("a", []), ("b", ["--weights", home / "spike.pth"])):
        restore(*joint, *more, "--output", tmp_path / name)
        assert sorted(metrics(tmp_path / name)["clips"]) == ["test0", "test1", "test2"]
    restore("--method", "joint", "--opt", home / "options.json")

    assert (home / "experiments/run/test_joint/metrics.json").exists()


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Give the folder of `make_home`, with three.pth: weights of a network of three instants."""
    folder = make_home(tmp_path_factory.mktemp("home"))
    three_instants = ("netG.out_instants=3", "netG.fusion=gated")
    save_weights(folder / "options.json", folder / "three.pth", *three_instants)
    return folder


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("--method joint --spike {clip}/spike --output {out}", "--input"),
        ("--method exposure --weights {operator} --opt {home}/options.json", "--weights"),
        ("--method joint --tile 2,32 --opt {home}/options.json", "--tile"),
        ("--method joint --weights {home}/rgb.pth {user}", "take no spikes"),
        ("--method joint --weights {home}/three.pth {user}", "several instants"),
    ],
    ids=["no frames", "weights", "tiles", "weights without spikes", "weights of several instants"],
)
def test_what_does_not_go_together_is_refused(clip, home, tmp_path, capfd, arguments, words):
    out = tmp_path / "out"
    user = f"--input {clip}/blur --spike {clip}/spike --output {out}"
    places = {"clip": clip, "out": out, "home": home, "operator": OPERATOR, "user": user}
    text, code = message(capfd, *arguments.format(**places).split())

    assert code in (2, 3)
    assert words in text

"""main_test_vrt.py shows the motion that it used, and where this motion was not trusted.

For the example frame of each clip, the pictures are in the folder pictures/<clip>. The pictures are
also on the page report.html, with captions. A method that uses no motion writes no such pictures.

What is tested: data/motion/drawing.py draws the pictures, and models/restore/outputs.py writes
them.
"""

import json
import shutil

import numpy as np
import pytest

from data.motion.drawing import PICTURE_NAMES
from tests.dist.launching import run_ranks
from tests.helpers.moving_scene import Scene
from tests.helpers.weights_files import restore
from utils.image import imread_rgb

# In each exposure the scene moves by 11 pixels to the right and 5 up, a distance of 12.1 pixels.
MOVING = Scene(velocity=(11.0, -5.0))
# Arguments for the joint solution with as few steps as possible. The motion is the same, and the
# test is faster.
JOINT = ["--method", "joint", "method.steps=1", "method.linearisations=1"]


@pytest.fixture(scope="module")
def clip(tmp_path_factory):
    """Give the folder of a clip of three frames. No test changes it."""
    return MOVING.write(tmp_path_factory.mktemp("clips") / "scene")


def words_for(clip, out):
    """Return the arguments of main_test_vrt.py that name the clip and the results."""
    places = {"--input": clip / "blur", "--spike": clip / "spike", "--output": out}
    words = ["--save", "frames"]
    for flag, place in places.items():
        words += [flag, str(place)]
    return words


def pictures_in(out):
    """Return the pictures of the only clip: name -> (H, W, 3)."""
    files = sorted(out.glob("pictures/*/*.png"))
    return {file.stem: imread_rgb(file) for file in files}


@pytest.fixture(scope="module")
def joint(clip, tmp_path_factory):
    """Give the results of `--method joint`. No test changes them."""
    out = tmp_path_factory.mktemp("joint") / "out"
    restore(*JOINT, *words_for(clip, out))
    return out


def test_the_pictures_of_the_example_frame_are_in_the_folder(joint):
    pictures = pictures_in(joint)

    assert sorted(pictures) == sorted(PICTURE_NAMES)
    # The frames of a `Scene` have 96 x 96 pixels by default.
    assert pictures["motion"].shape == (96, 96, 3)
    assert pictures["motion_error"].shape == (96, 96, 3)


def test_the_colours_show_the_motion(joint):
    # Most pixels move to the right and a little up. The colour of this direction is red with some
    # violet, in full strength. The limits were chosen by hand.
    red, green, blue = np.median(pictures_in(joint)["motion"].reshape(-1, 3), axis=0)

    assert red > 240
    assert green < 60
    assert 60 < blue < 180


def test_the_page_shows_the_pictures_and_says_what_they_are(joint):
    page = (joint / "report.html").read_text(encoding="utf-8")

    for name in PICTURE_NAMES:
        assert f'data-show="{name}"' in page  # the button that shows the picture
        assert f'<img class="under" alt="{name}"' in page
    assert "not trusted" in page
    assert "Right is red" in page


def test_the_caption_says_how_far_the_pixels_go(joint):
    [file] = joint.glob("pictures/*/captions.json")

    captions = json.loads(file.read_text())

    words = captions["motion"].split()
    # The caption has e.g. "... full colour: 12.3 px or more; 4% not trusted ...".
    full_colour = float(words[words.index("px") - 1])
    # The motion is measured from spikes, so it is not exactly the 12.1 pixels of MOVING. The
    # tolerance of 2 pixels was chosen by hand.
    assert full_colour == pytest.approx(12.1, abs=2)


# `clip` is the folder of a clip of three frames.
def test_weights_that_follow_the_motion_show_it_too(clip, tmp_path):
    restore("--weights", "weights/motion.pth", *words_for(clip, tmp_path / "out"))

    assert sorted(pictures_in(tmp_path / "out")) == sorted(PICTURE_NAMES)
    assert 'data-show="motion"' in (tmp_path / "out/report.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "method",
    [
        pytest.param(["--weights", "weights/operator.pth"], id="operator"),
        pytest.param(["--method", "exposure"], id="formula"),
    ],
)
def test_a_method_that_uses_no_motion_shows_none(clip, tmp_path, method):
    restore(*method, *words_for(clip, tmp_path / "out"))

    assert not (tmp_path / "out/pictures").exists()
    assert 'data-show="motion"' not in (tmp_path / "out/report.html").read_text(encoding="utf-8")


def test_a_resumed_test_keeps_the_pictures_of_frames_that_it_does_not_restore(
    clip, joint, tmp_path
):
    # If a test is interrupted in the last frame, its scores, this frame and the page are missing.
    out = tmp_path / "out"
    shutil.copytree(joint, out)
    (out / "clips/scene.json").unlink()
    *_, last_frame = sorted((out / "scene").glob("*.png"))
    last_frame.unlink()
    (out / "report.html").unlink()

    restore(*JOINT, *words_for(clip, out))

    assert last_frame.exists()
    for name, picture in pictures_in(joint).items():
        assert np.array_equal(pictures_in(out)[name], picture)
    assert 'data-show="motion"' in (out / "report.html").read_text(encoding="utf-8")


def test_several_ranks_write_the_same_pictures(clip, joint, tmp_path):
    # Two ranks share the three frames of the clip.
    result = run_ranks(2, "main_test_vrt.py", *JOINT, *words_for(clip, tmp_path / "out"))

    assert result.exit_codes == [0, 0], result.text
    for name, picture in pictures_in(joint).items():
        assert np.array_equal(pictures_in(tmp_path / "out")[name], picture)
    page = (tmp_path / "out/report.html").read_text(encoding="utf-8")
    assert 'data-show="motion"' in page


def test_results_of_another_method_replace_the_pictures(clip, joint, tmp_path):
    out = tmp_path / "out"
    shutil.copytree(joint, out)

    restore("--method", "exposure", *words_for(clip, out), "--overwrite")

    assert pictures_in(out) == {}
    assert 'data-show="motion"' not in (out / "report.html").read_text(encoding="utf-8")

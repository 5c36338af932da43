"""scripts/show_motion.py: a page with the motion that a network uses, and where it is not trusted.

The motion is how far each pixel moves within an exposure. The program computes it from the spikes.
"""

import math
from pathlib import Path

import pytest

from scripts import show_motion
from tests.helpers.checked import find_match
from tests.helpers.moving_scene import Scene

# Exit code if an option must be changed.
CHANGE_OPTIONS = 2
# How far the scene moves in an exposure, along x and along y, in pixels of a frame.
VELOCITY = (10.0, -4.0)


@pytest.fixture(scope="module")
def clip(tmp_path_factory) -> Path:
    """Give a clip of three frames. Its scene moves by VELOCITY in an exposure."""
    scene = Scene(velocity=VELOCITY, size=(96, 96))
    return scene.write(tmp_path_factory.mktemp("clip") / "a")


def run(clip: Path, *arguments: object) -> int:
    """Run scripts/show_motion.py on the clip. Return its exit code."""
    places = ["--input", clip / "blur", "--spike", clip / "spike"]
    return show_motion.main([str(word) for word in (*places, *arguments)])


@pytest.fixture(scope="module")
def page(clip, tmp_path_factory) -> str:
    """Give the page with frames 1 and 0."""
    path = tmp_path_factory.mktemp("page") / "a.html"
    assert run(clip, "--frames", 1, 0, "--out", path) == 0
    return path.read_text(encoding="utf-8")


def test_the_page_shows_the_frames_that_were_asked_for(page):
    # Each frame has three pictures: the blurry frame, and two of its motion.
    assert page.count("data:image/jpeg") == 2 * 3


def test_the_page_says_how_far_the_pixels_move(page):
    # The first motion on the page is the motion of frame 1, the first frame that was asked for.
    (length,) = find_match(r"full colour: ([0-9.]+) px or more", page).groups()

    # The true length is 10.8 pixels. The program estimates the motion, so the length may be off by
    # 2 pixels. This tolerance was chosen by hand.
    assert float(length) == pytest.approx(math.hypot(*VELOCITY), abs=2)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        pytest.param(("--frames", "3"), "frame 3 does not exist", id="a frame after the last one"),
        pytest.param(
            ("--weights", "weights/operator.pth"),
            "has no fusion motion",
            id="weights without motion",
        ),
    ],
)
def test_other_frames_and_weights_are_refused(clip, tmp_path, capsys, arguments, words):
    code = run(clip, *arguments, "--out", tmp_path / "a.html")

    assert code == CHANGE_OPTIONS
    assert words in capsys.readouterr().err
    assert not (tmp_path / "a.html").exists()


def test_nothing_is_overwritten(clip, tmp_path):
    (tmp_path / "a.html").write_text("mine")

    code = run(clip, "--out", tmp_path / "a.html")

    assert code == CHANGE_OPTIONS
    assert (tmp_path / "a.html").read_text() == "mine"

"""scripts/show_motion.py: a page with the motion that weights use, and where it was not trusted."""

import re

import pytest

from scripts import show_motion
from tests.helpers.checked import found
from tests.helpers.moving_scene import Scene


@pytest.fixture(scope="module")
def clip(tmp_path_factory):
    """Give a clip of three frames, whose scene moves by 10.8 pixels in an exposure."""
    scene = Scene(velocity=(10.0, -4.0), size=(96, 96))
    return scene.write(tmp_path_factory.mktemp("clip") / "a")


def run(clip, *arguments):
    """Run scripts/show_motion.py on the clip. Return its exit code."""
    places = ["--input", clip / "blur", "--spike", clip / "spike"]
    return show_motion.main([str(word) for word in (*places, *arguments)])


def test_the_page_shows_the_frames_that_were_asked_for_and_the_length_of_the_way(clip, tmp_path):
    assert run(clip, "--frames", 1, 0, "--out", tmp_path / "a.html") == 0
    page = (tmp_path / "a.html").read_text(encoding="utf-8")
    assert len(re.findall("data:image/jpeg", page)) == 6
    [length] = found(r"up to ([0-9.]+) px", page).groups()  # of frame 1

    assert float(length) == pytest.approx(10.8, abs=2)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--frames", "3"), "frame 3 does not exist"),
        (("--weights", "weights/operator.pth"), "has no fusion motion"),
    ],
)
def test_other_frames_and_weights_are_refused(clip, tmp_path, capsys, arguments, words):
    assert run(clip, *arguments, "--out", tmp_path / "a.html") == 2
    assert words in capsys.readouterr().err
    assert not (tmp_path / "a.html").exists()


def test_nothing_is_overwritten(clip, tmp_path, capsys):
    (tmp_path / "a.html").write_text("mine")
    assert run(clip, "--out", tmp_path / "a.html") == 2
    assert (tmp_path / "a.html").read_text() == "mine"

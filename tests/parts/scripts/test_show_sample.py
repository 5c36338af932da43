"""scripts/show_sample.py: the page shows a sample of training, and names a wrong geometry.

The data are clips of moving textures (tests/helpers/textured_clips.py), whose spikes fit their
frames. Frames have 96 x 96 pixels and spike planes 48 x 48 pixels, so one spike pixel sees 2 x 2
pixels of a frame. The tests read the text of the page, its pictures, and its verdict. The verdict
says whether spikes and frames agree.
"""

import base64
import json
import re
from typing import Any, NamedTuple

import cv2
import numpy as np
import pytest

from data.cameras.calibration import Calibration, save_calibration
from data.spike.formats import read_spikes
from scripts import show_sample
from tests.dist.launching import ROOT, run_ranks
from tests.helpers.checked import find_match, not_none
from tests.helpers.clip_files import set_for_training, write_dat
from tests.helpers.textured_clips import PLANE, make_textured_home
from utils.image import tensor_to_uint8

# Exit code of a program if an option must be changed.
EXIT_CHANGE_OPTIONS = 2


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Give a folder with the clips and the option file. No test changes it."""
    return make_textured_home(tmp_path_factory.mktemp("home"))


def page_of(home, out, *arguments):
    """Write the page of sample 2 to `out`. Return its text. arguments: additional arguments."""
    command = ["--opt", home / "options.json", "--index", 2, "--out", out, *arguments]
    assert show_sample.main([str(word) for word in command]) == 0
    return out.read_text(encoding="utf-8")


class Verdict(NamedTuple):
    """What the page says of the geometry of spikes and frames."""

    kind: str  # "right", "wrong" or "none"
    sentence: str


def verdict_of(page):
    """Return the verdict of a page."""
    kind, sentence = find_match(r'class="verdict (\w+)">([^<]*)', page).groups()
    return Verdict(kind, sentence)


def pictures_of(page, alt):
    """Return the pictures of a page whose `alt` text fits a regular expression, each (H, W, 3)."""
    pictures = []
    for encoded in re.findall(rf'<img alt="{alt}" src="data:image/jpeg;base64,([^"]*)"', page):
        content = np.frombuffer(base64.b64decode(encoded), np.uint8)
        bgr = not_none(cv2.imdecode(content, cv2.IMREAD_COLOR))
        pictures.append(bgr[..., ::-1])
    return pictures


# ---- The sample of training ----


class ShownSample(NamedTuple):
    """A page, and the sample that it must show."""

    page: str
    draw: Any  # what was drawn for the sample: clip, frames, crop and flips
    sample: dict


@pytest.fixture(scope="module", params=[0, 1], ids=["epoch 0", "epoch 1"])
def shown_sample(request, home, tmp_path_factory):
    """Give the page of sample 2 of an epoch, and this sample. Each epoch has other flips."""
    epoch = request.param
    page = page_of(home, tmp_path_factory.mktemp("page") / "a.html", "--epoch", epoch)
    options = json.loads((home / "options.json").read_text())["datasets"]["train"]
    dataset = set_for_training(options, seed=5)  # the seed of the option file
    return ShownSample(page, dataset.draw((epoch, 2)), dataset[(epoch, 2)])


def test_the_page_says_that_spikes_and_frame_agree(shown_sample):
    kind, sentence = verdict_of(shown_sample.page)

    assert kind == "right"
    assert re.fullmatch(r"Spikes and frame agree to 0\.[1-5] px\.", sentence), sentence


def test_the_page_names_the_crop_and_the_flips(shown_sample):
    augment = shown_sample.draw.aug
    # The crop has 48 x 48 pixels.
    rows = f"rows {augment.top} to {augment.top + 47}"
    columns = f"columns {augment.left} to {augment.left + 47}"

    assert f"{rows}, {columns} of 96 x 96" in shown_sample.page
    assert ("played backwards" in shown_sample.page) == augment.reverse
    assert ("mirrored left to right" in shown_sample.page) == augment.hflip
    assert ("mirrored top to bottom" in shown_sample.page) == augment.vflip
    assert ("axes swapped" in shown_sample.page) == augment.transpose


def test_the_page_shows_the_frames_of_the_sample(shown_sample):
    draw = shown_sample.draw
    first_frame = draw.frames[0]  # its number in the clip
    name_of_first_frame = draw.clip.stems[first_frame]

    blurry, sharp, *_ = pictures_of(shown_sample.page, name_of_first_frame)

    for picture, name in ((blurry, "lq"), (sharp, "gt")):
        expected = tensor_to_uint8(shown_sample.sample[name][0])
        # The page shows each pixel as a square of 6 x 6 pixels. [3::6, 3::6] takes pixel (3, 3) of
        # each square, which is in its middle. The compression changes values a little. The limit of
        # 3 levels was chosen by hand.
        assert picture.shape == (6 * 48, 6 * 48, 3)
        assert np.abs(picture[3::6, 3::6].astype(int) - expected).mean() < 3


def test_the_page_shows_every_channel_of_the_spikes(shown_sample):
    # The sample has 3 frames with 3 channels each. Each channel is named in its picture and in its
    # caption.
    assert len(re.findall(r"channel [012]: ", shown_sample.page)) == 2 * 3 * 3


def test_the_page_loads_nothing_from_outside(shown_sample):
    # Each src and href must begin with "data:", because the page itself holds its pictures.
    assert not re.findall(r"""(?:src|href)=["'](?!data:)""", shown_sample.page)
    assert "http" not in shown_sample.page


# `home` has the clips and the option file.
def test_a_test_clip_is_shown_whole(home, tmp_path):
    page = page_of(home, tmp_path / "test.html", "--split", "test", "--index", 0)

    assert verdict_of(page).kind == "right"
    assert "rows 0 to 95, columns 0 to 95" in page
    assert "lq: 4 x 3 x 96 x 96" in page


WITHOUT_SPIKES = "datasets.train.dataset_type=VideoRecurrentTrainDataset"


def test_a_set_without_spikes_has_no_verdict(home, tmp_path):
    page = page_of(home, tmp_path / "rgb.html", WITHOUT_SPIKES)

    assert verdict_of(page) == ("none", "This data set has no spikes.")
    assert "lq: 3 x 3 x 48 x 48" in page


# ---- A wrong geometry ----


def write_changed_spikes(home, root, change):
    """Write the spikes of training, changed, below `root`. Return the option that reads them.

    change: a function from planes (T, 48, 48) to planes.
    """
    spikes = home / "GOPRO_Large_spike_seq"
    for path in spikes.glob("train/*/spike/*.dat"):
        write_dat(root / path.relative_to(spikes), change(read_spikes(path, PLANE)))
    return f"datasets.train.dataroot_spike={root}/train"


SIZE = ("datasets.train.spike.h=48", "datasets.train.spike.w=48")


def check_wrong(home, out, override, pattern, capfd):
    """Check that the page and the output of the program say what is wrong.

    out: path of the page to write.
    override: the option that makes the sample wrong.
    pattern: a regular expression that the sentence of the verdict must contain.
    capfd: pytest's record of the output.
    """
    kind, sentence = verdict_of(page_of(home, out, *SIZE, override))
    assert kind == "wrong"
    assert re.search(pattern, sentence), sentence
    # The page writes an apostrophe as &#x27;.
    assert sentence in capfd.readouterr().out.replace("'", "&#x27;")


def test_spikes_upside_down_are_named(home, tmp_path, capfd):
    check_wrong(
        home,
        tmp_path / "a.html",
        "datasets.train.spike.flip=false",
        r"do not agree: the spikes are upside down \(spike\.flip\)",
        capfd,
    )


def test_spikes_that_are_shifted_are_named(home, tmp_path, capfd):
    # A shift by 4 spike pixels is a shift by 8 pixels of a frame. The measured shift may be 0.2
    # pixels shorter, e.g. 7.8.
    override = write_changed_spikes(
        home, tmp_path / "moved", lambda spikes: np.roll(spikes, 4, axis=2)
    )

    check_wrong(
        home,
        tmp_path / "a.html",
        override,
        r"the spikes are shifted by [78]\.\d px to the right: check spike\.calibration",
        capfd,
    )


def test_spikes_of_another_scene_are_named(home, tmp_path, capfd):
    check_wrong(
        home,
        tmp_path / "a.html",
        f"datasets.train.dataroot_spike={home}/GOPRO_Large_spike_seq/test",
        r"check spike\.flip, spike\.h and spike\.w",
        capfd,
    )


def write_calibration(path, left, top, width=48):
    """Write a calibration in which a spike pixel sees 2 x 2 pixels of the frame.

    Return the option that reads the calibration.

    left, top: position of the centre of spike pixel (0, 0) in the frame. For the clips 0.5 is
        right, because this spike pixel sees the frame pixels 0 and 1, whose centres are at 0 and 1.
    width: columns of a spike plane.
    """
    calibration = Calibration(
        matrix=[[2, 0, left], [0, 2, top]], spike_size=[48, width], rgb_size=[96, 96]
    )
    save_calibration(path, calibration)
    return f"datasets.train.spike.calibration={path}"


@pytest.mark.parametrize(
    ("left", "kind", "words"),
    [(20.5, "right", "agree to"), (12.5, "wrong", "spike.calibration")],
    ids=["right", "wrong"],
)
def test_a_calibration_is_shown_and_a_wrong_one_is_named(home, tmp_path, left, kind, words):
    # The first 10 columns of each plane are cut off. So the spike camera sees the frame from column
    # 10 x 2 = 20 on, and its planes have 48 - 10 = 38 columns. The centre of its pixel 0 is at
    # 20.5. At 12.5 the calibration is wrong by 8 pixels.
    spikes = write_changed_spikes(home, tmp_path / "second", lambda spikes: spikes[:, :, 10:])
    size = ("datasets.train.spike.h=48", "datasets.train.spike.w=38")
    calibration = write_calibration(tmp_path / "rig.json", left, top=0.5, width=38)

    page = page_of(home, tmp_path / "a.html", spikes, *size, calibration)

    verdict = verdict_of(page)
    assert verdict.kind == kind
    assert words in verdict.sentence
    # 38 spike pixels are 38 x 2 = 76 columns of 96.
    assert f"the spikes cover {76 / 96:.1%} of the frame" in page
    assert "blue: the region" in page


def test_a_small_shift_beside_a_large_one_is_named(home, tmp_path):
    # The right calibration has left = top = 0.5. So the spikes seem to be 6.5 - 0.5 = 6 pixels to
    # the right, and 1.15 - 0.5 = 0.65 pixels down. The measured shift is up to 0.2 pixels shorter.
    calibration = write_calibration(tmp_path / "a.json", left=6.5, top=1.15)

    page = page_of(home, tmp_path / "a.html", calibration)

    pattern = r"shifted by [56]\.\d px to the right and 0\.[456] px down"
    assert re.search(pattern, verdict_of(page).sentence)


# ---- Motion ----


def test_the_motion_within_the_exposure_is_shown_if_asked_for(home, tmp_path):
    page = page_of(home, tmp_path / "motion.html", "--motion")

    assert "Motion within the exposure of" in page
    # The page shows the motion of each pixel of the whole frame, 96 x 96 pixels enlarged 3 times,
    # and the expected error of this motion. The page calls the motion "way". `pictures_of` finds
    # pictures by their alternative text.
    way = pictures_of(page, 'way of each pixel[^"]*')[0]
    error = pictures_of(page, 'expected error[^"]*')[0]
    assert way.shape == (3 * 96, 3 * 96, 3)
    assert error.shape == (3 * 96, 3 * 96, 3)
    assert "not trusted" in page


def test_the_motion_of_a_test_clip_is_shown_if_asked_for(home, tmp_path):
    page = page_of(home, tmp_path / "test.html", "--split", "test", "--index", 0, "--motion")

    assert len(re.findall(r'alt="way of each pixel', page)) == 1


def test_no_motion_is_shown_if_it_is_not_asked_for(home, tmp_path):
    assert "way of each pixel" not in page_of(home, tmp_path / "a.html")


def test_no_motion_can_be_shown_without_spikes(home, tmp_path, capsys):
    files = ["--opt", home / "options.json", "--out", tmp_path / "a.html"]
    command = [*files, "--motion", WITHOUT_SPIKES]

    code = show_sample.main([str(word) for word in command])

    assert code == EXIT_CHANGE_OPTIONS
    assert "no spikes" in capsys.readouterr().err


# ---- Arguments and files ----


def test_the_first_sample_is_shown_by_default(home, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    camera = 'datasets.train.camera={"type": "perturb", "threshold_prob": 1.0}'

    assert show_sample.main(["--opt", str(home / "options.json"), camera]) == 0

    page = (tmp_path / "sample_train_0.html").read_text(encoding="utf-8")
    # The page says in words what was drawn for the camera, and the order of the rows of a file.
    assert re.search(r"threshold \d\.\d\d?, drop 0, ", page)
    assert "bottom row first" in page
    # A record of Python, e.g. "CameraDraw(...)", must not be in the page.
    assert not re.search(r"SpikeGeometry\(|CameraDraw\(|\w+=\w+, \w+=", page)


def test_a_page_that_exists_is_not_overwritten(home, tmp_path, capfd):
    page = tmp_path / "a.html"
    page.write_text("mine")

    code = show_sample.main(["--opt", str(home / "options.json"), "--out", str(page)])

    assert code == EXIT_CHANGE_OPTIONS
    assert "the file exists already" in capfd.readouterr().err
    assert page.read_text() == "mine"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        # The training clip has 4 frames, and a sample begins with each of them.
        (["--index", "4"], "an index of 0 to 3"),
        (["--epoch", "-1"], "an epoch of at least 0"),
    ],
)
def test_wrong_indices_are_named(home, tmp_path, capfd, arguments, message):
    page = tmp_path / "b.html"
    command = ["--opt", str(home / "options.json"), "--out", str(page), *arguments]

    assert show_sample.main(command) == EXIT_CHANGE_OPTIONS

    assert message in capfd.readouterr().err
    assert not page.exists()


def test_the_page_of_a_sample_is_not_written_into_the_repository(home, tmp_path):
    before = sorted(ROOT.iterdir())

    options = ("--opt", str(home / "options.json"))
    result = run_ranks(1, "scripts/show_sample.py", *options, env={"TMPDIR": str(tmp_path)})

    assert result.exit_codes == [0], result.text
    # If the program starts in the repository without --out, it writes to a temporary folder, and
    # prints the path of the page.
    (page,) = tmp_path.glob("*/sample_train_0.html")
    assert str(page) in result.text
    assert sorted(ROOT.iterdir()) == before


def test_the_page_is_whole_in_a_browser(home, tmp_path, browser):
    page_of(home, tmp_path / "a.html")

    browser.get(f"file://{tmp_path / 'a.html'}")

    images = browser.find_elements("css selector", "img")
    # The page has the whole frame, 3 alignments, 2 x 3 pictures (lq and gt of 3 frames), and 3 x 3
    # channels.
    assert len(images) == 1 + 3 + 6 + 9
    for image in images:
        # A picture that was not loaded has the width 0.
        assert browser.execute_script("return arguments[0].naturalWidth", image) > 0
    verdict = browser.find_element("css selector", ".verdict")
    # The verdict is green.
    assert verdict.value_of_css_property("background-color").startswith("rgba(30, 126, 52")
    errors = [line for line in browser.get_log("browser") if line["level"] == "SEVERE"]
    assert errors == []

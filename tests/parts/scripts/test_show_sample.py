"""scripts/show_sample.py: the page shows the sample of training, and names a wrong geometry.

The data are clips of moving textures (tests/helpers/textured_clips.py), whose spikes fit their
frames. Frames have 96 x 96 pixels, spike planes 48 x 48, so one spike pixel sees 2 x 2 pixels. The
tests read the text of the page, its pictures, and its verdict: whether spikes and frames agree.
"""

import base64
import json
import re

import cv2
import numpy as np
import pytest

from data.cameras.spike_grid import Calibration, save_calibration
from data.spike.formats import read_spikes
from scripts import show_sample
from tests.dist.launching import ROOT, run_ranks
from tests.helpers.checked import found, present
from tests.helpers.clip_files import set_for_training, write_dat
from tests.helpers.textured_clips import PLANE, make_textured_home
from utils.image import tensor_to_uint8


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Give a folder with the clips and the option file. No test changes it."""
    return make_textured_home(tmp_path_factory.mktemp("home"))


def changed_spikes(home, root, change):
    """The spikes of training, changed, below another folder; the override that takes them."""
    for path in (home / "GOPRO_Large_spike_seq").glob("train/*/spike/*.dat"):
        write_dat(
            root / path.relative_to(home / "GOPRO_Large_spike_seq"),
            change(read_spikes(path, PLANE)),
        )
    return f"datasets.train.dataroot_spike={root}/train"


def page_of(home, out, *arguments):
    """Write the page of sample 2 to `out`. Return its text. arguments: further arguments."""
    args = ["--opt", home / "options.json", "--index", 2, "--out", out, *arguments]
    assert show_sample.main([str(a) for a in args]) == 0
    return out.read_text(encoding="utf-8")


def verdict(page):
    """Return what the page says of the geometry: "right", "wrong" or "none", and a sentence."""
    return found(r'class="verdict (\w+)">([^<]*)', page).groups()


def picture(page, alt, number=0):
    """Return a picture of a page whose `alt` text fits. number: which one, from 0."""
    jpegs = re.findall(rf'<img alt="{alt}" src="data:image/jpeg;base64,([^"]*)"', page)
    content = np.frombuffer(base64.b64decode(jpegs[number]), np.uint8)
    return present(cv2.imdecode(content, cv2.IMREAD_COLOR))[..., ::-1]


@pytest.mark.parametrize("epoch", [0, 1])
def test_the_page_shows_the_sample_of_training(home, tmp_path, epoch):
    page = page_of(home, tmp_path / "a.html", "--epoch", epoch)
    options = json.loads((home / "options.json").read_text())["datasets"]["train"]
    dataset = set_for_training(options, seed=5)
    draw = dataset.draw((epoch, 2))
    item = dataset[(epoch, 2)]

    kind, sentence = verdict(page)
    assert kind == "right", sentence
    assert re.fullmatch(r"Spikes and frame agree to 0\.[1-5] px\.", sentence), sentence
    aug = draw.aug
    assert (
        f"rows {aug.top} to {aug.top + 47}, columns {aug.left} to {aug.left + 47} of 96 x 96"
        in page
    )
    assert ("played backwards" in page) == aug.reverse
    words = {
        "mirrored left to right": aug.hflip,
        "mirrored top to bottom": aug.vflip,
        "axes swapped": aug.transpose,
    }
    assert all((word in page) == is_on for word, is_on in words.items())
    # Enlarged 6 times; the first picture named so is the alignment, of the frame in the middle.
    stem = draw.clip.stems[draw.frames[0]]
    for number, name in enumerate(("lq", "gt")):
        shown = picture(page, stem, number)
        expected = tensor_to_uint8(item[name][0])
        assert shown.shape == (288, 288, 3)
        assert np.abs(shown[3::6, 3::6].astype(int) - expected).mean() < 3
    # Alt and caption of every channel of 3 frames
    assert len(re.findall(r"channel [012]: ", page)) == 2 * 3 * 3
    assert not re.findall(r"""(?:src|href)=["'](?!data:)""", page)
    assert "http" not in page


def test_a_wrong_geometry_is_named(home, tmp_path, capfd):
    size = ("datasets.train.spike.h=48", "datasets.train.spike.w=48")
    moved = changed_spikes(home, tmp_path / "moved", lambda spikes: np.roll(spikes, 4, axis=2))
    other = f"datasets.train.dataroot_spike={home}/GOPRO_Large_spike_seq/test"
    for name, override, sentence in (
        (
            "flip",
            "datasets.train.spike.flip=false",
            r"do not agree: the spikes are upside down \(spike\.flip\)",
        ),
        (
            "moved",
            moved,
            r"the spikes are shifted by [78]\.\d px to the right: check spike\.calibration",
        ),
        ("other", other, r"check spike\.flip, spike\.h and spike\.w"),
    ):
        kind, said = verdict(page_of(home, tmp_path / f"{name}.html", *size, override))
        assert kind == "wrong", (name, said)
        assert re.search(sentence, said), (name, said)
        assert said in capfd.readouterr().out.replace("'", "&#x27;")


def test_a_calibration_is_shown_and_a_wrong_one_is_named(home, tmp_path):
    # A camera that sees the frame from column 20 on.
    spikes = changed_spikes(home, tmp_path / "second", lambda spikes: spikes[:, :, 10:])
    size = ("datasets.train.spike.h=48", "datasets.train.spike.w=38")
    for name, left in (("right", 20.5), ("wrong", 12.5)):
        rig = Calibration(
            matrix=[[2, 0, left], [0, 2, 0.5]], spike_size=[48, 38], rgb_size=[96, 96]
        )
        save_calibration(tmp_path / f"{name}.json", rig)
        calibration = f"datasets.train.spike.calibration={tmp_path / f'{name}.json'}"
        kind, said = verdict(
            page := page_of(home, tmp_path / f"{name}.html", spikes, *size, calibration)
        )
        assert kind == name, said
        assert "agree to" in said or "spike.calibration" in said, said
        assert f"the spikes cover {76 / 96:.1%} of the frame" in page
        assert "blue: the region" in page


def test_a_small_shift_beside_a_large_one_is_named(home, tmp_path):
    rig = Calibration(matrix=[[2, 0, 6.5], [0, 2, 1.15]], spike_size=[48, 48], rgb_size=[96, 96])
    save_calibration(tmp_path / "a.json", rig)

    page = page_of(home, tmp_path / "a.html", f"datasets.train.spike.calibration={tmp_path}/a.json")

    assert re.search(r"shifted by [56]\.\d px to the right and 0\.[456] px down", verdict(page)[1])


def test_a_test_clip_and_a_set_without_spikes(home, tmp_path):
    page = page_of(home, tmp_path / "test.html", "--split", "test", "--index", 0)
    assert verdict(page)[0] == "right"
    assert "rows 0 to 95, columns 0 to 95" in page
    assert "lq: 4 x 3 x 96 x 96" in page
    page = page_of(
        home, tmp_path / "rgb.html", "datasets.train.dataset_type=VideoRecurrentTrainDataset"
    )

    assert verdict(page) == ("none", "This data set has no spikes.")
    assert "lq: 3 x 3 x 48 x 48" in page


def test_the_motion_within_the_exposure_is_shown_if_asked_for(home, tmp_path):
    page = page_of(home, tmp_path / "motion.html", "--motion")

    assert "Motion within the exposure of" in page
    # The way of each pixel of the whole frame, 96 x 96 enlarged 3 times, and its expected error.
    way = picture(page, 'way of each pixel[^"]*')
    error = picture(page, 'expected error[^"]*')
    assert way.shape == (288, 288, 3)
    assert error.shape == (288, 288, 3)
    assert "not trusted" in page


def test_the_motion_of_a_test_clip_is_shown_if_asked_for(home, tmp_path):
    page = page_of(home, tmp_path / "test.html", "--split", "test", "--index", 0, "--motion")

    assert len(re.findall(r'alt="way of each pixel', page)) == 1


def test_no_motion_is_shown_if_it_is_not_asked_for(home, tmp_path):
    assert "way of each pixel" not in page_of(home, tmp_path / "a.html")


def test_no_motion_can_be_shown_without_spikes(home, tmp_path, capsys):
    words = ["--opt", home / "options.json", "--motion", "--out", tmp_path / "a.html"]
    words += ["datasets.train.dataset_type=VideoRecurrentTrainDataset"]

    assert show_sample.main([str(word) for word in words]) == 2

    assert "no spikes" in capsys.readouterr().err


def test_the_first_sample_is_shown_by_default_and_wrong_indices_are_named(
    home, tmp_path, monkeypatch, capfd
):
    monkeypatch.chdir(tmp_path)
    opt = ["--opt", str(home / "options.json")]
    assert (
        show_sample.main([*opt, 'datasets.train.camera={"type": "perturb", "threshold_prob": 1.0}'])
        == 0
    )
    page = (tmp_path / "sample_train_0.html").read_text(encoding="utf-8")
    assert re.search(r"threshold \d\.\d\d?, drop 0, ", page)
    assert "bottom row first" in page
    assert not re.search(r"SpikeGeometry\(|CameraDraw\(|\w+=\w+, \w+=", page)
    cases = {
        "the file exists already": ["--out", "sample_train_0.html"],
        "an index of 0 to 3": ["--index", "4", "--out", "b.html"],
        "an epoch of at least 0": ["--epoch", "-1", "--out", "b.html"],
    }
    for words, arguments in cases.items():
        assert show_sample.main([*opt, *arguments]) == 2
        assert words in capfd.readouterr().err

    assert (tmp_path / "sample_train_0.html").read_text(encoding="utf-8") == page
    assert not (tmp_path / "b.html").exists()


def test_the_page_is_whole_in_a_browser(home, tmp_path, browser):
    page_of(home, tmp_path / "a.html")
    browser.get(f"file://{tmp_path / 'a.html'}")
    images = browser.find_elements("css selector", "img")
    # The whole frame, 3 alignments, 3 frames of lq and gt, 3 channels of 3 frames.
    assert len(images) == 1 + 3 + 6 + 9
    assert all(
        browser.execute_script("return arguments[0].naturalWidth", image) > 0 for image in images
    )
    colour = browser.find_element("css selector", ".verdict").value_of_css_property(
        "background-color"
    )

    assert colour.startswith("rgba(30, 126, 52")
    assert [line for line in browser.get_log("browser") if line["level"] == "SEVERE"] == []


def test_the_page_of_a_sample_is_not_written_into_the_repository(home, tmp_path):
    before = sorted(ROOT.iterdir())

    options = ("--opt", str(home / "options.json"))
    result = run_ranks(1, "scripts/show_sample.py", *options, env={"TMPDIR": str(tmp_path)})

    assert result.exit_codes == [0], result.text
    (page,) = tmp_path.glob("*/sample_train_0.html")
    assert str(page) in result.text
    assert sorted(ROOT.iterdir()) == before

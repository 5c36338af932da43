"""The results of a test of clips (files, averages, table, page), and the page of a training run.

A "test of clips" is a run of main_test_vrt.py. It restores and scores clips. The command line of
main_test_vrt.py is tested here, too.

The scores are made up, and each picture has one grey level. So every expected number and pixel
follows from numbers in this file. The pages are also opened in a real browser. It must load nothing
from outside.
"""

import json
import logging
import math
import os
import re
from contextlib import contextmanager

import numpy as np
import pytest

from models.metrics import METRICS_OF_TESTS
from models.restore.outputs import Outputs
from models.restore.psnr_plot import psnr_plot
from models.restore.report import build_report
from models.restore.request import read_request
from models.restore.scores import collect, score_text
from scripts import compare_runs
from tests.helpers.checked import not_none
from tests.helpers.pages import check_no_errors_and_no_network
from utils.errors import DataError
from utils.files import write_whole
from utils.image import comparison, comparison_strip, data_uri, imwrite_rgb
from utils.logger import setup_logging
from utils.options.override import argument_without_secrets
from utils.results import json_bytes
from utils.run.history_writer import HistoryWriter
from utils.video.writer import VideoWriter

# Grey levels of the three pictures of a clip. The levels differ so much that a pixel on the screen
# of a browser shows to which picture it belongs.
BLURRY = 40
RESTORED = 120
SHARP = 220


def entry(name, values, bonus=3.0):
    """Return the scores of a clip, as a test stores them.

    values: PSNR of each input frame in dB. bonus: PSNR of the restored frames minus PSNR of the
        input frames, in dB.
    """
    given = {"psnr": values, "ssim": [0.5] * len(values)}
    restored = {"psnr": [value + bonus for value in values], "ssim": [0.75] * len(values)}
    stems = [f"{index:03d}" for index in range(len(values))]
    return {
        "name": name,
        "frames": len(values),
        "stems": stems,
        "per_frame": {"restored": restored, "input": given},
    }


def test_an_infinite_score_of_a_finished_clip_comes_back(tmp_path):
    outputs = Outputs(tmp_path)
    write_whole(outputs.file("clip", "a"), json_bytes(entry("a", [30.0, math.inf])))

    # JSON has no infinite number, so the file must have the text "inf":
    #
    #     [30.0, "inf"]       expected
    #     [30.0, Infinity]    what json.dumps would write without this rule
    #
    # If json.loads meets the bare word Infinity, it calls `parse_constant`. Here this call fails
    # the test.
    stored = json.loads(outputs.file("clip", "a").read_text(), parse_constant=pytest.fail)
    loaded = not_none(outputs.load_clip("a"))

    assert stored["per_frame"]["input"]["psnr"] == [30.0, "inf"]
    assert loaded["per_frame"]["input"]["psnr"] == [30.0, math.inf]


def test_a_clip_without_a_file_has_no_scores_yet(tmp_path):
    assert Outputs(tmp_path).load_clip("b") is None


def test_a_damaged_file_of_scores_is_named(tmp_path):
    outputs = Outputs(tmp_path)
    write_whole(outputs.file("clip", "b"), b"{")

    with pytest.raises(DataError, match=r"b\.json"):
        outputs.load_clip("b")


def test_the_averages_are_over_clips_and_over_frames_and_the_table_shows_both():
    results = collect([entry("b", [20.0] * 6), entry("a", [30.0, 32.0])], expected=2)

    # Restored frames have 3 dB more than input frames. So clip a has 33 and 35 dB, and their mean
    # is 34. Clip b has six frames of 23 dB.
    total = results["averages"]["restored"]
    assert total["psnr"] == pytest.approx((34 + 23) / 2)
    assert total["psnr_frame_mean"] == pytest.approx((33 + 35 + 6 * 23) / 8)
    assert total["clips_found"] == 2
    assert total["frames"] == 8
    assert total["complete"] is True
    assert score_text(results).splitlines() == [
        "clip              frames  PSNR dB  input    SSIM   input  gain dB",
        "a                      2    34.00  31.00  0.7500  0.5000    +3.00",
        "b                      6    23.00  20.00  0.7500  0.5000    +3.00",
        "mean over clips        8    28.50  25.50  0.7500  0.5000    +3.00",
        "mean over frames       8    25.75  22.75  0.7500  0.5000    +3.00",
        "clips found 2, expected 2",
    ]


# ---- The command line of main_test_vrt.py ----


def request_of(line):
    """Return the request of a command line of main_test_vrt.py. line: its arguments as one text."""
    return read_request(line.split(), "")  # "": the text of --help, which no test here shows


def test_option_values_may_stand_on_both_sides_of_a_flag():
    request = request_of("--opt x.json val.save_img=true --tile 12,256 scale=1")

    assert request.own_files is None
    assert request.network.tiles.tile == (12, 256)
    assert request.overrides == ("val.save_img=true", "scale=1")


@pytest.mark.parametrize(
    "line",
    [
        "--opt x.json --save frames datasets.test.x=y a=b --tile 2,2",
        "--opt x.json --tile 2,2 --save frames datasets.test.x=y a=b",
    ],
    ids=["--save first", "--save last"],
)
def test_option_values_after_the_list_of_save_do_not_belong_to_it(line):
    # --save takes a list of words. In both lines, the list must end at the first key=value.
    request = request_of(line)

    assert request.results.save == ("frames",)
    assert request.overrides == ("datasets.test.x=y", "a=b")


def test_option_values_after_the_two_files_of_lpips_do_not_belong_to_them():
    request = request_of("--opt x --lpips a.pth b.pth val.save_img=true --overwrite")

    assert request.results.lpips == ("a.pth", "b.pth")
    assert request.overrides == ("val.save_img=true",)
    assert request.results.overwrite


def test_a_command_line_with_weights_is_about_the_users_own_clips():
    request = request_of(
        "--weights w --input i --output o --spike s --spike-size 250 400 --tile auto"
    )

    own_files = not_none(request.own_files)
    assert own_files.spike_size == (250, 400)
    assert request.network.tiles.tile == "auto"


# ---- The page of a test ----


def results(clips=("a&b", "c"), with_gt=True):
    """Return the results of clips with three frames each.

    Input frames have a PSNR of 25, 26 and 27 dB, so the mean is 26. Restored frames have 30, 31 and
    32 dB, so the mean is 31 and the gain is 5. All other metrics are 0.8.

    with_gt: the clips have sharp frames. Without sharp frames there are no scores.
    """
    psnr = {}
    if with_gt:
        psnr["input"] = [25.0, 26.0, 27.0]
        psnr["restored"] = [30.0, 31.0, 32.0]
    # "input" or "restored" -> metric -> value of each frame.
    scores = {}
    for kind, values in psnr.items():
        scores[kind] = {}
        for metric in METRICS_OF_TESTS:
            scores[kind][metric] = values if "psnr" in metric else [0.8, 0.8, 0.8]
    entries = []
    for name in clips:
        stems = ["1", "2", "3"]
        entries.append({"name": name, "frames": 3, "stems": stems, "per_frame": scores})
    # The name of the folder has signs that a page must escape.
    protocol = {"folder": "blur <1>", "dtype": "float32"}
    return {"protocol": protocol, **collect(entries, expected=len(clips))}


def pictures(names=("a&b", "c"), with_gt=True):
    """Return the pictures of each clip: clip -> "blurry", "restored", "sharp" -> (60, 100, 3)."""
    levels = {"blurry": BLURRY, "restored": RESTORED}
    if with_gt:
        levels["sharp"] = SHARP
    flat = {kind: np.full((60, 100, 3), level, np.uint8) for kind, level in levels.items()}
    # All clips have the same pictures.
    return dict.fromkeys(names, flat)


def addresses(page):
    """Return the places at which a page names a file or an address outside itself.

    E.g. for the page `<img src="a.png"><img src="data:image/png;base64,...">`, return ['src="'].
    The second picture does not count, because its content is a part of the page.
    """
    return re.findall(r"""(?:src|href)=["'](?!data:)""", page)


@pytest.fixture(scope="module")
def page():
    """Give the page of a test of two clips. Its title has signs that a page must escape."""
    return build_report("T <1>", results(), pictures())


def test_every_place_of_the_template_is_filled_in(page):
    # The template of the page has "{{name}}" wherever a value is filled in.
    assert "{{" not in page


def test_texts_of_the_page_are_escaped(page):
    # Title, folder and first clip hold <, > or &.
    assert "T &lt;1&gt;" in page
    assert "blur &lt;1&gt;" in page
    assert "a&amp;b" in page


def test_the_page_names_nothing_outside_itself(page):
    assert addresses(page) == []
    assert "http" not in page


def test_the_page_has_the_means_of_restored_frames_with_their_gain(page):
    # The page shows the mean of the restored frames, the mean of the input frames, and the gain, in
    # dB. The docstring of `results` has the same numbers.
    assert "31.00" in page
    assert "26.00" in page
    assert "+5.00" in page


def test_the_page_draws_the_curves_of_each_clip(page):
    # One drawing for each of the two clips.
    assert page.count("<svg") == 2


def test_the_page_of_a_complete_test_does_not_say_that_clips_are_missing(page):
    assert "Incomplete" not in page


def test_a_clip_without_reference_has_a_slider_and_no_numbers():
    page = build_report("T", results(with_gt=False), pictures(with_gt=False))

    assert 'type="range"' in page
    assert "<svg" not in page
    assert "dB" not in page


def test_an_infinite_psnr_is_drawn_within_the_plot():
    # The PSNR of a frame is infinite if the frame equals its reference.
    drawing = psnr_plot({"restored": [30.0, float("inf"), 32.0]})

    # The points of the curve, as a text: "x,y x,y ...".
    line = drawing["lines"]["restored"]
    assert "inf" not in line
    assert "nan" not in line


# ---- The page of a test, in a browser ----


def write_page(folder, **more):
    """Write the page of a test, and return its address. more: more arguments of `build_report`."""
    path = folder / "report.html"
    path.write_text(build_report("T", results(), pictures(), **more), encoding="utf-8")
    return f"file://{path}"


def shows(element, x, level):
    """Return whether the browser shows a grey level in the middle row of an element.

    The pixel is taken from a screenshot, so it is what a person sees. x: place of the pixel, from 0
    (left border) to 1 (right border).
    """
    import cv2  # here, because only the tests with a browser need it

    content = np.frombuffer(element.screenshot_as_png, np.uint8)
    screenshot = not_none(cv2.imdecode(content, cv2.IMREAD_COLOR))  # (H, W, 3)
    height, width, _ = screenshot.shape
    pixel = int(screenshot[height // 2, int(x * width), 0])
    # The pictures of a page are compressed. This may change a level a little. The limit of 4 is
    # chosen by hand. The levels of two pictures differ by at least 120 - 40 = 80.
    return abs(pixel - level) < 4


# A script that moves the handle of a slider to 90 % of the width, as a mouse would.
MOVE_TO_90_PERCENT = """
    const handle = arguments[0];
    handle.value = 90;
    handle.dispatchEvent(new Event('input', {bubbles: true}));
"""
# The codes of these keys in the protocol that drives the browser.
KEY_END = "\ue010"
KEY_HOME = "\ue011"


def test_the_slider_works_in_a_browser(browser, tmp_path):
    browser.get(write_page(tmp_path))
    slider = browser.find_element("css selector", ".slider")
    handle = slider.find_element("tag name", "input")

    # At first the bar is in the middle. The blurry frame is on its left, and the restored frame is
    # on its right.
    assert shows(slider, x=0.25, level=BLURRY)
    assert shows(slider, x=0.75, level=RESTORED)

    browser.execute_script(MOVE_TO_90_PERCENT, handle)
    assert shows(slider, x=0.75, level=BLURRY)

    # The key End moves the bar fully to the right, and the key Home moves it fully to the left.
    handle.send_keys(KEY_END)
    assert shows(slider, x=0.95, level=BLURRY)
    handle.send_keys(KEY_HOME)
    assert shows(slider, x=0.25, level=RESTORED)

    # A button shows the sharp frame in place of the restored one.
    browser.find_element("css selector", "[data-show=sharp]").click()
    assert shows(slider, x=0.25, level=SHARP)

    # The page has loaded nothing from outside.
    check_no_errors_and_no_network(browser)


def test_a_browser_draws_two_curves_for_each_clip(browser, tmp_path):
    browser.get(write_page(tmp_path))

    # Each of the two clips has a curve of the input frames and a curve of the restored frames.
    assert len(browser.find_elements("css selector", "svg polyline")) == 4


# Width of the screen of a common telephone, in the pixels of a page. A user would have to scroll a
# wider page sideways.
PHONE_WIDTH = 390
PHONE = {"width": PHONE_WIDTH, "height": 844, "deviceScaleFactor": 2, "mobile": True}
# A script that returns the width that a page takes.
PAGE_WIDTH = "return document.documentElement.scrollWidth"


@pytest.fixture
def phone_browser(browser):
    """Give the browser with the screen of a telephone, PHONE_WIDTH wide."""
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", PHONE)
    yield browser
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


# A script that returns the rows of the table of scores. A row is an object with the cells that lie
# fully on the screen, e.g. {"PSNR dB": "31.00"}. A row without such cells is left out. On a narrow
# screen the table has no head, so the style sheet puts the name, in quotes, before each cell
# ("::before").
SHOWN_SCORES = """
    const rows = [];
    for (const row of document.querySelectorAll(".scores tr")) {
        const shown = {};
        for (const cell of row.querySelectorAll("td[data-name]")) {
            const is_on_screen = cell.getBoundingClientRect().right <= innerWidth;
            const quoted_name = getComputedStyle(cell, "::before").content;
            if (is_on_screen) shown[quoted_name.slice(1, -1)] = cell.innerText;
        }
        if (Object.keys(shown).length > 0) rows.push(shown);
    }
    return rows;
"""


def shown_scores(phone):
    """Return the rows of the table of scores on the screen, e.g. [{"PSNR dB": "31.00"}]."""
    return phone.execute_script(SHOWN_SCORES)


def width_of(page):
    """Return the width that a page takes in a browser, in the pixels of a page."""
    return page.execute_script(PAGE_WIDTH)


# A script that returns the height of the letters of the first curve, in the pixels of a page.
HEIGHT_OF_LETTERS = "return document.querySelector('svg text').getBoundingClientRect().height"


def test_a_telephone_shows_every_score_by_name(phone_browser, tmp_path):
    phone_browser.get(write_page(tmp_path))

    rows = shown_scores(phone_browser)
    first = rows[0]
    assert first["gain dB"] == "+5.00"
    assert first["PSNR dB"] == "31.00"
    assert first["PSNR dB of the input"] == "26.00"
    # A row has 11 cells: the number of frames, and ten scores.
    assert len(first) == 11
    # The last row has the means over frames.
    assert rows[-1]["gain dB"] == "+5.00"
    assert width_of(phone_browser) == PHONE_WIDTH


def test_a_telephone_shows_curves_that_can_be_read(phone_browser, tmp_path):
    phone_browser.get(write_page(tmp_path))

    # Letters below 10 pixels are hard to read.
    assert phone_browser.execute_script(HEIGHT_OF_LETTERS) > 10


# A script that calls `done` as soon as the browser knows the size of the pictures of a video.
WAIT_FOR_SIZE_OF_VIDEO = """
    const [video, done] = arguments;
    if (video.readyState > 0) done();
    else video.addEventListener('loadedmetadata', done);
"""
# A script that returns how many pixels of the height of a video are free below its pictures.
HEIGHT_BELOW_PICTURES = """
    const video = arguments[0];
    const height_of_pictures = video.clientWidth * video.videoHeight / video.videoWidth;
    return video.clientHeight - height_of_pictures;
"""


def test_the_controls_of_a_video_lie_below_its_pictures_on_a_telephone(phone_browser, tmp_path):
    wide_frame = np.zeros((64, 400, 3), np.uint8)
    with VideoWriter(tmp_path / "clip.mp4", fps=10.0) as writer:
        for _ in range(3):
            writer.write(wide_frame)
    uri = data_uri("video/mp4", (tmp_path / "clip.mp4").read_bytes())

    phone_browser.get(write_page(tmp_path, videos={"c": uri}))
    video = phone_browser.find_element("css selector", "video")
    phone_browser.set_script_timeout(20)
    phone_browser.execute_async_script(WAIT_FOR_SIZE_OF_VIDEO, video)

    # The bar of the controls and the line of the time above it take 72 pixels of height. If less
    # height were free, they would cover the pictures.
    assert phone_browser.execute_script(HEIGHT_BELOW_PICTURES, video) > 72
    assert width_of(phone_browser) == PHONE_WIDTH


# ---- The page of a training run ----

# Names of the clips of the validation. The page must escape the first name. The second clip is in a
# subfolder.
CLIPS = ("clip<0>", "group/clip1")
# Titles of the pictures of a strip, from left to right. A strip is one picture file in which the
# pictures of a frame stand side by side. A run writes the titles into images/panels.json. The page
# cuts a strip into as many pictures as there are titles.
PANELS = ["blurry", "spikes", "restored", "sharp", "error x5"]


def strip(blurry, restored, sharp):
    """Return the strip that a validation saves: the five pictures of PANELS side by side.

    The picture of the spikes shows the light of the blurry picture.

    blurry, restored, sharp: pictures (H, W, 3).
    """
    spikes = blurry[..., 0] / 255
    return comparison_strip(comparison(blurry, spikes, restored, sharp))


def flat_picture(level):
    """Return a picture of one grey level."""
    return np.full((64, 96, 3), level, np.uint8)


def grey_strip(restored):
    """Return a strip of pictures of one grey level each. restored: level of the restored picture.

    The levels of the blurry and of the sharp picture are BLURRY and SHARP.
    """
    return strip(
        blurry=flat_picture(BLURRY),
        restored=flat_picture(restored),
        sharp=flat_picture(SHARP),
    )


def noise_strip():
    """Return a strip of large pictures of noise."""
    rng = np.random.default_rng(0)
    shape = (720, 1280, 3)
    blurry = rng.integers(0, 256, shape, np.uint8)
    restored = rng.integers(0, 256, shape, np.uint8)
    sharp = rng.integers(0, 256, shape, np.uint8)
    return strip(blurry, restored, sharp)


# Step -> PSNR of the restored frames in the validation after this step. The first validation has
# the best PSNR, so that the best step is not also the last one.
PSNR = {100: 30.0, 200: 29.0}
PSNR_OF_INPUT = 25.0


@contextmanager
def logging_into(file):
    """Write the log to a file as a program does, then undo the changes of `setup_logging`.

    `setup_logging` changes the handlers and the level of the root logger, and sends Python's
    warnings to the log. It never undoes these changes, because they are for a whole program. Here
    they must end with the block, so that other tests do not log into this file.
    """
    root = logging.getLogger()
    handlers_before = root.handlers[:]
    level_before = root.level
    setup_logging(rank=0, log_file=file)
    try:
        yield
    finally:
        for handler in root.handlers:
            handler.close()
        root.handlers[:] = handlers_before
        root.level = level_before
        logging.captureWarnings(False)


def write_description(folder):
    """Write the files that a run has before its first step: options, environment, panels.

    The texts have characters that a page must escape.
    """
    (folder / "options").mkdir()
    (folder / "options" / "options.json").write_text(json.dumps({"task": "<first>"}))
    environment = {"command": "main_train_vrt.py --opt <file>", "torch": "2"}
    (folder / "environment.json").write_text(json.dumps(environment))
    (folder / "images").mkdir()
    (folder / "images" / "panels.json").write_text(json.dumps(PANELS))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Give the folder of a run of 200 iterations, written as a training writes it.

    The run has two validations with a strip of each clip, a log with two equal warnings, and
    options. No test changes the folder, so all tests of this file share it.
    """
    folder = tmp_path_factory.mktemp("run") / "experiments" / "first run"
    with logging_into(folder / "log" / "train.log"):
        log = logging.getLogger("utils.run")
        writer = HistoryWriter(folder, start=0)
        write_description(folder)
        for step in range(10, 210, 10):
            log.info("Epoch: 1, Iter: %d", step)
            values = {
                "train/loss": 1 / step,
                "train/lr": 1e-3,
                "train/it_per_s": 2.0,
                "train/data_share": 0.2,
            }
            if step in PSNR:
                log.warning("the data wait is <20> %\n  raise the workers")
                # The page must show the strips of the last validation. The strips of the first
                # validation have another level, so that a test sees which ones are shown.
                restored = RESTORED if step == 200 else 90
                for clip in CLIPS:
                    imwrite_rgb(folder / "images" / clip / f"{step}.png", grey_strip(restored))
                values["val/psnr"] = PSNR[step]
                values["val/psnr_input"] = PSNR_OF_INPUT
                values["val/ssim"] = 0.9
                values["val/ssim_input"] = 0.7
            writer.scalars(values, step)
    return folder


def test_the_page_of_a_run_shows_its_scores(run):
    page = (run / "report.html").read_text()

    assert "<title>Training: first run</title>" in page
    assert "iteration 200" in page
    assert "best 30.00 dB at iteration 100" in page
    # The gains of the two validations: 30 - 25 dB and 29 - 25 dB.
    assert "+5.00" in page
    assert "+4.00" in page


def test_the_page_of_a_run_shows_a_repeated_warning_once(run):
    page = (run / "report.html").read_text()

    # The fixture has logged "<20> %". The page must escape < and >.
    assert page.count("the data wait is &lt;20&gt; %\n  raise the workers (2 times)") == 1


def test_the_page_of_a_run_shows_its_command_and_its_options(run):
    page = (run / "report.html").read_text()

    assert "--opt &lt;file&gt;" in page
    assert "&lt;first&gt;" in page


def test_the_page_of_a_run_has_a_slider_for_each_clip(run):
    page = (run / "report.html").read_text()

    assert page.count('type="range"') == 2
    assert "clip&lt;0&gt;" in page
    assert "group/clip1" in page


def test_the_page_of_a_run_is_self_contained(run):
    page = (run / "report.html").read_text()

    assert addresses(page) == []
    # The page holds its pictures as base64, in which "http" may occur by chance. So the search
    # leaves the pictures out.
    without_pictures = re.sub(r'data:[^"]*', "", page)
    assert "http" not in without_pictures
    # The template of the page has "{{name}}" wherever a value is filled in.
    assert "{{" not in without_pictures


def test_compare_runs_makes_the_same_page_again_and_overwrites_no_file(run, tmp_path):
    again = tmp_path / "again.html"
    command = [str(run), "--out", str(again)]

    assert compare_runs.main(command) == 0
    assert again.read_text() == (run / "report.html").read_text()
    # The file exists now, so the same command is refused.
    assert compare_runs.main(command) == 2


def address_of_page(run):
    """Return the address of the page of a run for a browser."""
    return f"file://{run / 'report.html'}".replace(" ", "%20")


def test_the_page_of_a_run_works_in_a_browser(browser, run):
    browser.get(address_of_page(run))

    curves = browser.find_element("css selector", "img.wide")
    # The picture of the curves is 1200 pixels wide. If it was not loaded, its width would be 0.
    assert browser.execute_script("return arguments[0].naturalWidth", curves) == 1200
    slider = browser.find_element("css selector", ".slider")
    # The blurry frame is left of the bar. Right of the bar is the frame that was restored after the
    # last iteration, 200.
    assert shows(slider, x=0.25, level=BLURRY)
    assert shows(slider, x=0.75, level=RESTORED)
    # A button shows the sharp frame in place of the restored one.
    browser.find_element("css selector", "[data-show=sharp]").click()
    assert shows(slider, x=0.75, level=SHARP)

    check_no_errors_and_no_network(browser)


# A script that returns the width at which a picture is shown, as a share of its own width.
SHOWN_SHARE_OF_WIDTH = "return arguments[0].clientWidth / arguments[0].naturalWidth"


def test_a_telephone_shows_the_scores_and_curves_of_a_run(phone_browser, run):
    phone_browser.get(address_of_page(run))

    rows = shown_scores(phone_browser)
    assert rows
    for row in rows:
        assert {"PSNR dB", "gain dB", "SSIM"} <= row.keys()
    curves = phone_browser.find_element("css selector", "img.wide")
    # A telephone shows the curves at 0.6 of their size, and the user can scroll them. The limit is
    # a little lower. If the curves were as narrow as the screen, their letters would be only 4
    # pixels high.
    assert phone_browser.execute_script(SHOWN_SHARE_OF_WIDTH, curves) > 0.55
    assert width_of(phone_browser) == PHONE_WIDTH


def test_twelve_large_clips_make_a_page_of_bounded_size(tmp_path):
    # A run writes images/<clip>/<step>.png, and images/panels.json. The strip is noise, because
    # noise cannot be compressed. So no other strip of this size takes more bytes. A real strip
    # takes a third of these bytes.
    strip_file = tmp_path / "images" / "0" / "1.png"
    imwrite_rgb(strip_file, noise_strip())
    (tmp_path / "images" / "panels.json").write_text(json.dumps(PANELS))
    # Eleven more clips have the same strip.
    for clip in range(1, 12):
        (tmp_path / "images" / str(clip)).mkdir()
        os.link(strip_file, tmp_path / "images" / str(clip) / "1.png")

    # Writing the PSNR of a validation writes the page, too.
    HistoryWriter(tmp_path, start=0).scalars({"val/psnr": 30.0}, step=1)

    report = tmp_path / "report.html"
    assert report.read_text().count('type="range"') == 12
    # The largest page that utils/run/report.py promises has 16 MB.
    assert report.stat().st_size < 16e6


# ---- Secrets in the log ----


def test_the_log_holds_no_secret(tmp_path):
    with logging_into(tmp_path / "train.log"):
        log = logging.getLogger("utils.run")
        log.warning("no such file: %s, tokens: 8", "hfToken: canary")
        try:
            raise ValueError("password=canary")
        except ValueError:
            log.exception("failed with https://me:canary@host")

    for path in (tmp_path / "train.log", tmp_path / "warnings.jsonl"):
        text = path.read_text()
        assert "hfToken: ***, tokens: 8" in text
        assert "https://me:***@host" in text
        assert "canary" not in text


# ---- The command line that the page of a run shows ----


def test_the_command_holds_no_secret():
    with_secrets = [
        "logging.wandb_api_key=abc",
        'logging={"wandb_api_key": "key1"}',
        'logging={wandb_api_key: "key2"}',
        "--wandb-token=key3",
        "a.apiKey=key4",
    ]

    for argument in with_secrets:
        shown = argument_without_secrets(argument)
        # The name of the option stays visible. It holds the letters "key" as well as the secret, so
        # remove the name before the search.
        value = shown.replace("api_key", "").replace("apiKey", "")
        assert "abc" not in value
        assert "key" not in value
        assert "***" in value


@pytest.mark.parametrize("argument", ["main_train_vrt.py", "task=a", "token_dim=5", "x=a token"])
def test_an_argument_without_a_secret_is_shown_as_it_is(argument):
    assert argument_without_secrets(argument) == argument

"""The results of a test: their files, averages, table and page. Then the page of a training run.

The scores are made up, and each picture has one grey level. So each expected number and each
expected pixel can be worked out on this page. The pages are also opened in a real browser, which
may load nothing from outside.
"""

import json
import logging
import math
import os
import re

import numpy as np
import pytest

from models.metrics import OF_TESTS
from models.restore.job import build_report, psnr_plot
from models.restore.outputs import Outputs
from models.restore.request import read_request
from models.restore.scores import collect, score_text
from scripts import compare_runs
from tests.helpers.checked import present
from tests.helpers.pages import check_offline
from utils.errors import DataError
from utils.files import write_whole
from utils.image import comparison, comparison_strip, data_uri, imwrite_rgb
from utils.logger import setup_logging
from utils.options.load import shown_argument
from utils.results import json_bytes
from utils.run.history import HistoryWriter
from utils.video import VideoWriter

# Grey levels of the three pictures of a clip. They lie so far apart that a pixel on the screen of a
# browser tells which picture is shown.
BLURRY = 40
RESTORED = 120
SHARP = 220


def entry(name, values, bonus=3.0):
    """Return the scores of a clip, as a test stores them.

    values: PSNR of the input frames, one each. bonus: PSNR of restored minus input frames, in dB.
    """
    given = {"psnr": values, "ssim": [0.5] * len(values)}
    restored = {"psnr": [v + bonus for v in values], "ssim": [0.75] * len(values)}
    stems = [f"{i:03d}" for i in range(len(values))]
    return {
        "name": name,
        "frames": len(values),
        "stems": stems,
        "per_frame": {"restored": restored, "input": given},
    }


def test_a_finished_clip_comes_back_with_infinite_values_and_a_damaged_one_is_named(tmp_path):
    outputs = Outputs(tmp_path)
    write_whole(outputs.file("clip", "a"), json_bytes(entry("a", [30.0, math.inf])))
    # JSON has no infinite number. So the file has the word "inf", and not Python's own "Infinity",
    # for which json.loads would call `parse_constant`.
    stored = json.loads(outputs.file("clip", "a").read_text(), parse_constant=pytest.fail)
    assert stored["per_frame"]["input"]["psnr"] == [30.0, "inf"]
    assert present(outputs.load_clip("a"))["per_frame"]["input"]["psnr"] == [30.0, math.inf]
    assert outputs.load_clip("b") is None

    outputs.file("clip", "b").write_text("{")
    with pytest.raises(DataError, match=r"b\.json"):
        outputs.load_clip("b")


def test_the_averages_are_over_clips_and_over_frames_and_the_table_shows_both():
    results = collect([entry("b", [20.0] * 6), entry("a", [30.0, 32.0])], expected=2)
    total = results["averages"]["restored"]
    text = score_text(results)

    # Restored frames have 3 dB more. So clip a has 33 and 35 dB, in the mean 34. Clip b has six
    # frames of 23 dB.
    assert total["psnr"] == pytest.approx((34 + 23) / 2)
    assert total["psnr_frame_mean"] == pytest.approx((33 + 35 + 6 * 23) / 8)
    assert (total["clips_found"], total["frames"], total["complete"]) == (2, 8, True)
    assert text.splitlines() == [
        "clip              frames  PSNR dB  input    SSIM   input  gain dB",
        "a                      2    34.00  31.00  0.7500  0.5000    +3.00",
        "b                      6    23.00  20.00  0.7500  0.5000    +3.00",
        "mean over clips        8    28.50  25.50  0.7500  0.5000    +3.00",
        "mean over frames       8    25.75  22.75  0.7500  0.5000    +3.00",
        "clips found 2, expected 2",
    ]


def test_the_two_forms_of_the_command_line():
    # First, tests of an option file. Values of options may stand on both sides of a flag.
    args = read_request(["--opt", "x.json", "val.save_img=true", "--tile", "12,256", "scale=1"], "")
    assert not args.is_of_own_clips
    assert args.tiles.tile == (12, 256)
    assert args.overrides == ("val.save_img=true", "scale=1")
    # The list of --save ends at the first value of an option.
    for line in (
        "--save frames datasets.test.x=y a=b --tile 2,2",
        "--tile 2,2 --save frames datasets.test.x=y a=b",
    ):
        args = read_request(["--opt", "x.json", *line.split()], "")
        assert args.save == ("frames",)
        assert args.overrides == ("datasets.test.x=y", "a=b")
    # So does the list of --lpips, which has two files.
    args = read_request(
        ["--opt", "x", "--lpips", "a.pth", "b.pth", "val.save_img=true", "--overwrite"], ""
    )
    assert args.lpips == ("a.pth", "b.pth")
    assert args.overrides == ("val.save_img=true",)
    assert args.overwrite
    # Second, clips of a user, without an option file.
    line = "--weights w --input i --output o --spike s --spike-size 250 400 --tile auto"
    args = read_request(line.split(), "")

    assert args.is_of_own_clips
    assert args.spike_size == (250, 400)
    assert args.tiles.tile == "auto"


def results(clips=("a&b", "c"), with_gt=True):
    """Return the results of clips with three frames each.

    Input frames have a PSNR of 25, 26 and 27 dB, so the mean is 26. Restored frames have 30, 31 and
    32 dB, so the mean is 31 and the gain is 5. All other metrics are 0.8.

    with_gt: the clips have sharp frames. Without sharp frames there are no scores.
    """
    psnr = {"input": [25.0, 26.0, 27.0], "restored": [30.0, 31.0, 32.0]} if with_gt else {}
    scores = {}
    for kind, values in psnr.items():
        scores[kind] = {}
        for metric in OF_TESTS:
            scores[kind][metric] = values if "psnr" in metric else [0.8, 0.8, 0.8]
    entries = []
    for name in clips:
        stems = ["1", "2", "3"]
        entries.append({"name": name, "frames": 3, "stems": stems, "per_frame": scores})
    return {"protocol": {"folder": "blur <1>", "dtype": "float32"}, **collect(entries, 2)}


def pictures(names=("a&b", "c"), with_gt=True):
    """Return the pictures of each clip: clip -> "blurry", "restored", "sharp" -> (60, 100, 3)."""
    levels = {"blurry": BLURRY, "restored": RESTORED}
    if with_gt:
        levels["sharp"] = SHARP
    flat = {kind: np.full((60, 100, 3), level, np.uint8) for kind, level in levels.items()}
    return dict.fromkeys(names, flat)


def addresses(page):
    """Return the places at which a page names a file or an address outside itself.

    E.g. the page `<img src="a.png"><img src="data:image/png;base64,...">` -> ['src="']: the second
    picture is a part of the page.
    """
    return re.findall(r"""(?:src|href)=["'](?!data:)""", page)


def test_the_page_is_self_contained_and_escaped():
    page = build_report("T <1>", results(), pictures())

    # The template of the page has "{{name}}" wherever a value is filled in.
    assert "{{" not in page
    # Title, folder and first clip, with their signs <, > and & escaped.
    assert "T &lt;1&gt;" in page
    assert "blur &lt;1&gt;" in page
    assert "a&amp;b" in page
    assert addresses(page) == []
    assert "http" not in page
    # Means of restored frames and of the input, and the gain.
    assert "31.00" in page
    assert "26.00" in page
    assert "+5.00" in page
    # A curve of each clip.
    assert page.count("<svg") == 2
    assert "Incomplete" not in page


def test_a_clip_without_reference_has_a_slider_and_no_numbers():
    page = build_report("T", results(with_gt=False), pictures(with_gt=False))
    assert 'type="range"' in page
    assert "<svg" not in page
    assert "dB" not in page


def test_infinite_psnr_is_cut_not_drawn_outside():
    # The points of a curve are a text: "x,y x,y ...".
    drawing = psnr_plot({"restored": [30.0, float("inf"), 32.0]})
    assert "inf" not in drawing["lines"]["restored"]
    assert "nan" not in drawing["lines"]["restored"]


def pixel(browser, element, x, y):
    """Return the grey level of one pixel of what the browser really shows of `element`.

    x, y: the place as shares of width and height, from the left and from the top.
    """
    import cv2

    content = np.frombuffer(element.screenshot_as_png, np.uint8)
    shown = present(cv2.imdecode(content, cv2.IMREAD_COLOR))
    return int(shown[int(y * shown.shape[0]), int(x * shown.shape[1]), 0])


def shows(browser, element, x, level):
    """Return whether the middle row of `element` has this grey level at x, a share of the width.

    The pictures of a page are compressed, so a level may change a little.
    """
    return abs(pixel(browser, element, x, 0.5) - level) < 4


def test_the_slider_works_in_a_browser(browser, tmp_path):
    (tmp_path / "report.html").write_text(
        build_report("T", results(), pictures()), encoding="utf-8"
    )
    browser.get(f"file://{tmp_path / 'report.html'}")

    slider = browser.find_element("css selector", ".slider")
    handle = slider.find_element("tag name", "input")
    # At first the bar is in the middle: blurry on its left, restored on its right.
    assert shows(browser, slider, 0.25, BLURRY)
    assert shows(browser, slider, 0.75, RESTORED)

    browser.execute_script(
        "arguments[0].value = 90; arguments[0].dispatchEvent(new Event('input', {bubbles: true}))",
        handle,
    )
    # The handle of the bar was moved to 90 % of the width, and the page was told, as by a mouse.
    assert shows(browser, slider, 0.75, BLURRY)
    handle.send_keys("\ue010")  # the key End: the bar goes fully to the right
    assert shows(browser, slider, 0.95, BLURRY)
    handle.send_keys("\ue011")  # the key Home: the bar goes fully to the left
    assert shows(browser, slider, 0.25, RESTORED)
    browser.find_element("css selector", "[data-show=sharp]").click()
    assert shows(browser, slider, 0.25, SHARP)

    check_offline(browser)
    # Two clips, with a curve of the input and one of restored frames each.
    assert len(browser.find_elements("css selector", "svg polyline")) == 4


# Width of the screen of a common telephone, in the pixels of a page. A wider page would have to be
# pushed from side to side.
PHONE_WIDTH = 390
PHONE = {"width": PHONE_WIDTH, "height": 844, "deviceScaleFactor": 2, "mobile": True}
# Returns the width that a page takes.
PAGE_WIDTH = "return document.documentElement.scrollWidth"


@pytest.fixture
def phone(browser):
    """Give the browser with the screen of a telephone, PHONE_WIDTH wide."""
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", PHONE)
    yield browser
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def shown_scores(phone):
    """Return the rows of the table of scores, each as a dict: name of a cell -> its text.

    Only cells that lie fully on the screen are in it, and only rows that have such a cell. On a
    narrow screen the table has no head. So the style sheet puts the name, in quotes, before each
    cell ("::before").
    """
    return phone.execute_script("""
        return Array.from(document.querySelectorAll(".scores tr")).map(row => Object.fromEntries(
            Array.from(row.querySelectorAll("td[data-name]"))
            .filter(cell => cell.getBoundingClientRect().right <= innerWidth)
            .map(cell => [getComputedStyle(cell, "::before").content.slice(1, -1), cell.innerText])
        )).filter(row => Object.keys(row).length)""")


def test_a_telephone_shows_every_score_by_name_and_curves_that_can_be_read(phone, tmp_path):
    page = tmp_path / "report.html"
    page.write_text(build_report("T", results(), pictures()), encoding="utf-8")

    phone.get(f"file://{page}")

    rows = shown_scores(phone)
    first = rows[0]
    mean = rows[-1]
    assert first["gain dB"] == "+5.00"
    assert mean["gain dB"] == "+5.00"
    assert first["PSNR dB"] == "31.00"
    assert first["PSNR dB of the input"] == "26.00"
    assert len(first) == 11  # ten scores, and the number of frames
    assert phone.execute_script(PAGE_WIDTH) == PHONE_WIDTH
    height = "return document.querySelector('svg text').getBoundingClientRect().height"
    # Letters below 10 pixels are hard to read.
    assert phone.execute_script(height) > 10


def test_the_controls_of_a_video_lie_below_its_pictures_on_a_telephone(phone, tmp_path):
    wide = np.zeros((64, 400, 3), np.uint8)
    with VideoWriter(tmp_path / "clip.mp4", 10.0) as video:
        for _ in range(3):
            video.write(wide)
    uri = data_uri("video/mp4", (tmp_path / "clip.mp4").read_bytes())
    page = tmp_path / "report.html"
    page.write_text(build_report("T", results(), pictures(), {"c": uri}), encoding="utf-8")

    phone.get(f"file://{page}")
    video = phone.find_element("css selector", "video")
    # Wait until the browser knows the size of the pictures of the video.
    phone.set_script_timeout(20)
    phone.execute_async_script(
        "const [v, done] = arguments; "
        "v.readyState ? done() : v.addEventListener('loadedmetadata', done)",
        video,
    )

    below = phone.execute_script(
        "const v = arguments[0]; "
        "return v.clientHeight - v.clientWidth * v.videoHeight / v.videoWidth",
        video,
    )
    # The bar of the controls, and the line of the time above it, take 72 pixels.
    assert below > 72
    assert phone.execute_script(PAGE_WIDTH) == PHONE_WIDTH


# ---- The page of a training run ----

# Clips of the validation. The page must escape the name of the first one. The second one is in a
# subfolder.
CLIPS = ("clip<0>", "group/clip1")
# What the pictures of a strip show, from left to right.
PANELS = ["blurry", "spikes", "restored", "sharp", "error x5"]


def strip(blurry, restored, sharp):
    """Return the strip that a validation saves: five pictures (H, W, 3) side by side, see PANELS.

    The picture of the spikes shows the light of the blurry picture.
    """
    spikes = blurry[..., 0] / 255
    return comparison_strip(comparison(blurry, spikes, restored, sharp))


def grey_strip(restored):
    """Return a strip of pictures of one grey level each. restored: level of the restored picture.

    The levels of the blurry and of the sharp picture are BLURRY and SHARP.
    """
    levels = (BLURRY, restored, SHARP)
    return strip(*[np.full((64, 96, 3), level, np.uint8) for level in levels])


def noise_strip():
    """Return a strip of large pictures of noise."""
    rng = np.random.default_rng(0)
    return strip(*[rng.integers(0, 256, (720, 1280, 3), np.uint8) for _ in range(3)])


# PSNR of the validations, by step: of restored frames, and of the input. The best is the first one.
PSNR = {100: 30.0, 200: 29.0}
PSNR_OF_INPUT = 25.0


@pytest.fixture
def run(tmp_path):
    """Give the folder of a run of 200 iterations, written as a training writes it.

    It has two validations with a strip of each clip, a log with two equal warnings, and options.
    """
    folder = tmp_path / "experiments" / "first run"
    # `setup_logging` is for a whole program. It is undone below, so that other tests do not log
    # into the file of this run.
    root = logging.getLogger()
    handlers_before = root.handlers[:]
    level_before = root.level
    setup_logging(0, folder / "log" / "train.log")
    log = logging.getLogger("utils.run")
    writer = HistoryWriter(folder, 0)
    (folder / "options").mkdir()
    (folder / "options" / "options.json").write_text(json.dumps({"task": "<first>"}))
    (folder / "environment.json").write_text(
        json.dumps({"command": "main_train_vrt.py --opt <file>", "torch": "2"})
    )
    (folder / "images").mkdir()
    (folder / "images" / "panels.json").write_text(json.dumps(PANELS))
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
            # The page shows the last strips. The first strips differ, with another level.
            restored = RESTORED if step == 200 else 90
            for clip in CLIPS:
                imwrite_rgb(folder / "images" / clip / f"{step}.png", grey_strip(restored))
            values |= {
                "val/psnr": PSNR[step],
                "val/psnr_input": PSNR_OF_INPUT,
                "val/ssim": 0.9,
                "val/ssim_input": 0.7,
            }
        writer.scalars(values, step)
    # Undo `setup_logging`, which also sent Python's warnings to the log.
    for handler in root.handlers:
        handler.close()
    root.handlers[:] = handlers_before
    root.level = level_before
    logging.captureWarnings(False)
    return folder


def test_the_page_shows_scores_warnings_environment_options_and_the_last_strips(run, tmp_path):
    again = tmp_path / "again.html"
    assert compare_runs.main([str(run), "--out", str(again)]) == 0

    page = again.read_text()
    assert page == (run / "report.html").read_text()
    # The page loads nothing from outside. Its pictures are texts, which may have any letters.
    assert addresses(page) == []
    without_pictures = re.sub(r'data:[^"]*', "", page)
    assert "http" not in without_pictures
    assert "{{" not in without_pictures  # no place of the template is left
    # Title, best validation, and the gains of both: 30 - 25 dB, 29 - 25 dB.
    assert "<title>Training: first run</title>" in page
    assert "iteration 200" in page
    assert "best 30.00 dB at iteration 100" in page
    assert "+5.00" in page
    assert "+4.00" in page
    # The warning, the command and the options.
    assert page.count("the data wait is &lt;20&gt; %\n  raise the workers (2 times)") == 1
    assert "--opt &lt;file&gt;" in page
    assert "&lt;first&gt;" in page
    # A slider for each clip.
    assert page.count('type="range"') == 2
    assert "clip&lt;0&gt;" in page
    assert "group/clip1" in page

    # No file is overwritten.
    assert compare_runs.main([str(run), "--out", str(again)]) == 2


def test_the_page_works_in_a_browser(browser, run):
    browser.get(f"file://{run / 'report.html'}".replace(" ", "%20"))

    curves = browser.find_element("css selector", "img.wide")
    # The picture of the curves was loaded: its own width is 1200 pixels. It would be 0 otherwise.
    assert browser.execute_script("return arguments[0].naturalWidth", curves) == 1200
    slider = browser.find_element("css selector", ".slider")
    # Blurry on the left of the bar, and on its right restored after 200 iterations.
    assert shows(browser, slider, 0.25, BLURRY)
    assert shows(browser, slider, 0.75, RESTORED)
    browser.find_element("css selector", "[data-show=sharp]").click()
    assert shows(browser, slider, 0.75, SHARP)

    check_offline(browser)


def test_a_telephone_shows_the_scores_and_curves_of_a_run(phone, run):
    phone.get(f"file://{run / 'report.html'}".replace(" ", "%20"))

    rows = shown_scores(phone)
    assert rows
    for row in rows:
        assert {"PSNR dB", "gain dB", "SSIM"} <= row.keys()
    curves = phone.find_element("css selector", "img.wide")
    share = "return arguments[0].clientWidth / arguments[0].naturalWidth"
    # A telephone shows the curves at 0.6 of their size, and they can be scrolled. If they were made
    # as narrow as the screen, their letters would be 4 pixels high.
    assert phone.execute_script(share, curves) > 0.55
    assert phone.execute_script(PAGE_WIDTH) == PHONE_WIDTH


def test_twelve_large_clips_make_a_page_of_bounded_size(tmp_path):
    # Noise does not compress, so no other picture takes more bytes. Real pictures take a third.
    imwrite_rgb(tmp_path / "images" / "0" / "1.png", noise_strip())
    (tmp_path / "images" / "panels.json").write_text(json.dumps(PANELS))
    # The other eleven clips have the same strip.
    for clip in range(1, 12):
        (tmp_path / "images" / str(clip)).mkdir()
        os.link(tmp_path / "images" / "0" / "1.png", tmp_path / "images" / str(clip) / "1.png")
    HistoryWriter(tmp_path, 0).scalars({"val/psnr": 30.0}, 1)

    report = tmp_path / "report.html"
    assert report.read_text().count('type="range"') == 12
    # The largest page that utils/run/history.py promises: 16 MB.
    assert report.stat().st_size < 16e6


def test_the_command_holds_no_secret():
    command = [
        "main_train_vrt.py",
        "logging.wandb_api_key=abc",
        'logging={"wandb_api_key": "key1"}',
        "task=a",
    ]

    command += [
        'logging={wandb_api_key: "key2"}',
        "--wandb-token=key3",
        "a.apiKey=key4",
        "token_dim=5",
        "x=a token",
    ]

    shown = " ".join(map(shown_argument, command))

    assert "abc" not in shown
    assert "key" not in shown.replace("api_key", "")
    assert "***" in shown
    assert shown.endswith("token_dim=5 x=a token")
    assert "task=a" in shown

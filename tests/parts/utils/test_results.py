"""Results of a test, averages, table and page, and the page of a training run; both work in a
browser, offline.
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
from scripts.compare_runs import main
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


def entry(name, values, bonus=3.0):
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
    stored = json.loads(outputs.file("clip", "a").read_text(), parse_constant=pytest.fail)
    assert stored["per_frame"]["input"]["psnr"] == [30.0, "inf"]
    assert present(outputs.load_clip("a"))["per_frame"]["input"]["psnr"] == [30.0, math.inf]
    assert outputs.load_clip("b") is None

    outputs.file("clip", "b").write_text("{")
    with pytest.raises(DataError, match=r"b\.json"):
        outputs.load_clip("b")


def test_the_averages_are_over_clips_and_over_frames_and_the_table_shows_both():
    results = collect([entry("b", [20.0] * 6), entry("a", [30.0, 32.0])], expected=2)
    total, text = results["averages"]["restored"], score_text(results)
    assert total["psnr"] == pytest.approx((34 + 23) / 2) and total[
        "psnr_frame_mean"
    ] == pytest.approx(206 / 8)
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
    args = read_request(["--opt", "x.json", "val.save_img=true", "--tile", "12,256", "scale=1"], "")
    assert (
        not args.is_of_own_clips
        and args.tiles.tile == (12, 256)
        and args.overrides == ("val.save_img=true", "scale=1")
    )
    for line in (
        "--save frames datasets.test.x=y a=b --tile 2,2",
        "--tile 2,2 --save frames datasets.test.x=y a=b",
    ):
        args = read_request(["--opt", "x.json", *line.split()], "")
        assert args.save == ("frames",) and args.overrides == ("datasets.test.x=y", "a=b")
    args = read_request(
        ["--opt", "x", "--lpips", "a.pth", "b.pth", "val.save_img=true", "--overwrite"], ""
    )
    assert (
        args.lpips == ("a.pth", "b.pth")
        and args.overrides == ("val.save_img=true",)
        and args.overwrite
    )
    line = "--weights w --input i --output o --spike s --spike-size 250 400 --tile auto"
    args = read_request(line.split(), "")
    assert args.is_of_own_clips and args.spike_size == (250, 400) and args.tiles.tile == "auto"


def results(clips=("a&b", "c"), with_gt=True):
    kinds = {"restored": 5.0, "input": 0.0} if with_gt else {}
    scores = {
        kind: {m: [25.0 + bonus + i if "psnr" in m else 0.8 for i in range(3)] for m in OF_TESTS}
        for kind, bonus in kinds.items()
    }
    entries = [
        {"name": name, "frames": 3, "stems": ["1", "2", "3"], "per_frame": scores} for name in clips
    ]
    return {"protocol": {"folder": "blur <1>", "dtype": "float32"}, **collect(entries, 2)}


def pictures(names=("a&b", "c"), with_gt=True):
    flat = {"blurry": 40, "restored": 120, **({"sharp": 220} if with_gt else {})}
    return {
        name: {kind: np.full((60, 100, 3), v, np.uint8) for kind, v in flat.items()}
        for name in names
    }


def test_the_page_is_self_contained_and_escaped():
    page = build_report("T <1>", results(), pictures())
    assert (
        "{{" not in page
        and "T &lt;1&gt;" in page
        and "blur &lt;1&gt;" in page
        and "a&amp;b" in page
    )
    assert not re.findall(r"""(?:src|href)=["'](?!data:)""", page)
    assert "http" not in page
    assert "31.00" in page and "26.00" in page and "+5.00" in page  # restored, input, gain
    assert page.count("<svg") == 2 and "Incomplete" not in page


def test_a_clip_without_reference_has_a_slider_and_no_numbers():
    page = build_report("T", results(with_gt=False), pictures(with_gt=False))
    assert 'type="range"' in page and "<svg" not in page and "dB" not in page


def test_infinite_psnr_is_cut_not_drawn_outside():
    drawing = psnr_plot({"restored": [30.0, float("inf"), 32.0]})
    assert "inf" not in drawing["lines"]["restored"] and "nan" not in drawing["lines"]["restored"]


def pixel(browser, element, x, y):
    """Colour of one pixel of what the browser really shows of `element`."""
    import cv2

    content = np.frombuffer(element.screenshot_as_png, np.uint8)
    shown = present(cv2.imdecode(content, cv2.IMREAD_COLOR))
    return int(shown[int(y * shown.shape[0]), int(x * shown.shape[1]), 0])


def test_the_slider_works_in_a_browser(browser, tmp_path):
    (tmp_path / "report.html").write_text(
        build_report("T", results(), pictures()), encoding="utf-8"
    )
    browser.get(f"file://{tmp_path / 'report.html'}")

    slider = browser.find_element("css selector", ".slider")
    handle = slider.find_element("tag name", "input")
    assert abs(pixel(browser, slider, 0.25, 0.5) - 40) < 4  # blurry left of the bar
    assert abs(pixel(browser, slider, 0.75, 0.5) - 120) < 4  # restored right of it

    browser.execute_script(
        "arguments[0].value = 90; arguments[0].dispatchEvent(new Event('input', {bubbles: true}))",
        handle,
    )
    assert abs(pixel(browser, slider, 0.75, 0.5) - 40) < 4
    handle.send_keys("\ue010")  # End: the bar goes fully to the right
    assert abs(pixel(browser, slider, 0.95, 0.5) - 40) < 4
    handle.send_keys("\ue011")  # Home
    assert abs(pixel(browser, slider, 0.25, 0.5) - 120) < 4
    browser.find_element("css selector", "[data-show=sharp]").click()
    assert abs(pixel(browser, slider, 0.25, 0.5) - 220) < 4

    check_offline(browser)
    assert len(browser.find_elements("css selector", "svg polyline")) == 4


PHONE = {"width": 390, "height": 844, "deviceScaleFactor": 2, "mobile": True}


@pytest.fixture
def phone(browser):
    """The browser with the screen of a telephone, 390 pixels wide."""
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", PHONE)
    yield browser
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def shown_scores(phone):
    """Name -> number of each cell that lies on the screen, of each row of the table."""
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

    first, *_, mean = shown_scores(phone)
    assert first["gain dB"] == mean["gain dB"] == "+5.00"
    assert first["PSNR dB"] == "31.00" and first["PSNR dB of the input"] == "26.00"
    assert len(first) == 11  # with the number of frames
    assert phone.execute_script("return document.documentElement.scrollWidth") == 390
    height = "return document.querySelector('svg text').getBoundingClientRect().height"
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
    assert below > 72  # the bar of the controls, and the line of the time above it
    assert phone.execute_script("return document.documentElement.scrollWidth") == 390


CLIPS = ("clip<0>", "group/clip1")
PANELS = ["blurry", "spikes", "restored", "sharp", "error x5"]


def strip(value=120, size=(64, 96), spike=True, noise=None):
    blurry, restored, sharp = (
        np.full((*size, 3), level, np.uint8)
        if noise is None
        else noise.integers(0, 256, (*size, 3), np.uint8)
        for level in (40, value, 220)
    )
    return comparison_strip(
        comparison(blurry, blurry[..., 0] / 255 if spike else None, restored, sharp)
    )


@pytest.fixture
def run(tmp_path):
    """The folder of a run of 200 iterations: two validations, a log with warnings, options."""
    folder = tmp_path / "experiments" / "first run"
    root = logging.getLogger()
    before = root.handlers[:], root.level
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
        if step % 100 == 0:
            log.warning("the data wait is <20> %\n  raise the workers")
            for clip in CLIPS:
                imwrite_rgb(
                    folder / "images" / clip / f"{step}.png",
                    strip(value=120 if step == 200 else 90),
                )
            values |= {
                "val/psnr": 31.0 - step / 100,
                "val/psnr_input": 25.0,
                "val/ssim": 0.9,
                "val/ssim_input": 0.7,
            }
        writer.scalars(values, step)
    for handler in root.handlers:
        handler.close()
    root.handlers[:], root.level = before
    logging.captureWarnings(False)
    return folder


def test_the_page_shows_scores_warnings_environment_options_and_the_last_strips(run, tmp_path):
    assert main([str(run), "--out", str(tmp_path / "again.html")]) == 0

    page = (tmp_path / "again.html").read_text()
    assert page == (run / "report.html").read_text()
    assert not re.findall(r"""(?:src|href)=["'](?!data:)""", page)
    assert "http" not in (words := re.sub(r'data:[^"]*', "", page)) and "{{" not in words
    assert "<title>Training: first run</title>" in page
    assert "iteration 200" in page and "best 30.00 dB at iteration 100" in page
    assert page.count("the data wait is &lt;20&gt; %\n  raise the workers (2 times)") == 1
    assert (
        "--opt &lt;file&gt;" in page
        and "&lt;first&gt;" in page
        and "+5.00" in page
        and "+4.00" in page
    )
    assert page.count('type="range"') == 2 and "clip&lt;0&gt;" in page and "group/clip1" in page
    assert main([str(run), "--out", str(tmp_path / "again.html")]) == 2  # no file is overwritten


def test_the_page_works_in_a_browser(browser, run):
    browser.get(f"file://{run / 'report.html'}".replace(" ", "%20"))

    curves = browser.find_element("css selector", "img.wide")
    assert browser.execute_script("return arguments[0].naturalWidth", curves) == 1200
    slider = browser.find_element("css selector", ".slider")
    assert abs(pixel(browser, slider, 0.25, 0.5) - 40) < 4  # blurry left of the bar
    # Restored after 200 iterations right of it
    assert abs(pixel(browser, slider, 0.75, 0.5) - 120) < 4
    browser.find_element("css selector", "[data-show=sharp]").click()
    assert abs(pixel(browser, slider, 0.75, 0.5) - 220) < 4

    check_offline(browser)


def test_a_telephone_shows_the_scores_and_curves_of_a_run(phone, run):
    phone.get(f"file://{run / 'report.html'}".replace(" ", "%20"))

    rows = shown_scores(phone)
    assert rows and all({"PSNR dB", "gain dB", "SSIM"} <= row.keys() for row in rows)
    curves = phone.find_element("css selector", "img.wide")
    share = "return arguments[0].clientWidth / arguments[0].naturalWidth"
    assert phone.execute_script(share, curves) > 0.55
    assert phone.execute_script("return document.documentElement.scrollWidth") == 390


def test_twelve_large_clips_make_a_page_of_bounded_size(tmp_path):
    # Noise does not compress: no other picture takes more. Real clips take a third of it.
    picture = strip(size=(720, 1280), noise=np.random.default_rng(0))
    imwrite_rgb(tmp_path / "images" / "0" / "1.png", picture)
    (tmp_path / "images" / "panels.json").write_text(json.dumps(PANELS))
    for clip in range(1, 12):
        (tmp_path / "images" / str(clip)).mkdir()
        os.link(tmp_path / "images" / "0" / "1.png", tmp_path / "images" / str(clip) / "1.png")
    HistoryWriter(tmp_path, 0).scalars({"val/psnr": 30.0}, 1)

    assert (tmp_path / "report.html").read_text().count('type="range"') == 12
    assert (tmp_path / "report.html").stat().st_size < 16e6


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

    assert "abc" not in shown and "key" not in shown.replace("api_key", "") and "***" in shown
    assert shown.endswith("token_dim=5 x=a token") and "task=a" in shown

"""The report of a training run: what its page shows, and that it works in a browser without a network."""

import json
import logging
import os
import re

import numpy as np
import pytest

from scripts.plot_history import main
from tests.pages import check_offline
from tests.test_report import browser, pixel  # noqa: F401
from utils.image import comparison, comparison_strip, imwrite_rgb
from utils.logger import setup_logging
from utils.options.load import shown_argument
from utils.run.writers import HistoryWriter, ReportWriter

CLIPS = ("clip<0>", "group/clip1")
PANELS = ["blurry", "spikes", "restored", "sharp", "error x5"]


def strip(value=120, size=(64, 96), spike=True, noise=None):
    blurry, restored, sharp = (
        np.full((*size, 3), level, np.uint8) if noise is None else noise.integers(0, 256, (*size, 3), np.uint8)
        for level in (40, value, 220)
    )
    return comparison_strip(comparison(blurry, blurry[..., 0] / 255 if spike else None, restored, sharp))


@pytest.fixture
def run(tmp_path):
    """The folder of a run of 200 iterations with two validations, a log with warnings, and options."""
    folder = tmp_path / "experiments" / "first run"
    root = logging.getLogger()
    before = root.handlers[:], root.level
    setup_logging(0, folder / "log" / "train.log")
    log = logging.getLogger("utils.run")
    writers = HistoryWriter(folder, 0), ReportWriter(folder)
    (folder / "options").mkdir()
    (folder / "options" / "options.json").write_text(json.dumps({"task": "<first>"}))
    (folder / "environment.json").write_text(json.dumps({"command": "main_train_vrt.py --opt <file>", "torch": "2"}))
    (folder / "images").mkdir()
    (folder / "images" / "panels.json").write_text(json.dumps(PANELS))
    for step in range(10, 210, 10):
        log.info("Epoch: 1, Iter: %d", step)
        values = {"train/loss": 1 / step, "train/lr": 1e-3, "train/it_per_s": 2.0, "train/data_share": 0.2}
        if step % 100 == 0:
            log.warning("the data wait is <20> %\n  raise the workers")
            for clip in CLIPS:
                imwrite_rgb(folder / "images" / clip / f"{step}.png", strip(value=120 if step == 200 else 90))
            values |= {"val/psnr": 31.0 - step / 100, "val/psnr_input": 25.0, "val/ssim": 0.9, "val/ssim_input": 0.7}
        for writer in writers:
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
    assert "--opt &lt;file&gt;" in page and "&lt;first&gt;" in page and "+5.00" in page and "+4.00" in page
    assert page.count('type="range"') == 2 and "clip&lt;0&gt;" in page and "group/clip1" in page
    assert main([str(run), "--out", str(tmp_path / "again.html")]) == 2  # no file is overwritten


def test_the_page_works_in_a_browser(browser, run):  # noqa: F811
    browser.get(f"file://{run / 'report.html'}".replace(" ", "%20"))

    curves = browser.find_element("css selector", "img.wide")
    assert browser.execute_script("return arguments[0].naturalWidth", curves) == 1200
    slider = browser.find_element("css selector", ".slider")  # tests/test_report.py moves it
    assert abs(pixel(browser, slider, 0.25, 0.5) - 40) < 4  # blurry left of the bar
    assert abs(pixel(browser, slider, 0.75, 0.5) - 120) < 4  # restored after 200 iterations right of it
    browser.find_element("css selector", "[data-show=sharp]").click()
    assert abs(pixel(browser, slider, 0.75, 0.5) - 220) < 4

    check_offline(browser)


def test_twelve_large_clips_make_a_page_of_bounded_size(tmp_path):
    # Noise does not compress: no other picture takes more. Real clips take a third of it.
    picture = strip(size=(720, 1280), noise=np.random.default_rng(0))
    imwrite_rgb(tmp_path / "images" / "0" / "1.png", picture)
    (tmp_path / "images" / "panels.json").write_text(json.dumps(PANELS))
    for clip in range(1, 12):
        (tmp_path / "images" / str(clip)).mkdir()
        os.link(tmp_path / "images" / "0" / "1.png", tmp_path / "images" / str(clip) / "1.png")
    for writer in (HistoryWriter(tmp_path, 0), ReportWriter(tmp_path)):
        writer.scalars({"val/psnr": 30.0}, 1)

    assert (tmp_path / "report.html").read_text().count('type="range"') == 12
    assert (tmp_path / "report.html").stat().st_size < 16e6


def test_the_command_holds_no_secret():
    command = ["main_train_vrt.py", "logging.wandb_api_key=abc", 'logging={"wandb_api_key": "key1"}', "task=a"]

    command += ['logging={wandb_api_key: "key2"}', "--wandb-token=key3", "a.apiKey=key4", "token_dim=5", "x=a token"]

    shown = " ".join(map(shown_argument, command))

    assert "abc" not in shown and "key" not in shown.replace("api_key", "") and "***" in shown
    assert shown.endswith("token_dim=5 x=a token") and "task=a" in shown

"""The pictures of the documents, at twice their size, of what `make demo` and `make sample` made.

python -m lab.demo_picture    needs Chromium and its driver, and requirements-test.txt; trains 30
steps for the terminal
"""

import html
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from urllib.parse import quote

import cv2
import numpy as np
from PIL import Image
from selenium.webdriver.support.ui import WebDriverWait

from scripts import compare_runs, show_sample, spike_tool
from tests.helpers.pages import headless_browser
from tests.helpers.terminal import in_terminal, screen
from utils.image import comparison_strip, imread_rgb, imwrite_rgb, panels_of
from utils.video import VideoReader

OUT, SAMPLE = Path("docs/images"), "options/vrt/000_train_vrt_sample_rgbspike.json"
RUN, STRIP = Path("experiments/000_train_vrt_sample_rgbspike"), "images/SAMPLE00_test/500.png"
SPIKES = "trainsets/demo/GOPRO_Large_spike_seq/test/DEMO01_test/spike/000004.dat"
CLIPS, PANELS = ("DEMO01_test", "DEMO00_test"), ("blurry", "spikes", "restored", "sharp")
SHOWN = ("train/loss", "train/lr", "train/grad_norm", "val/psnr", "val/ssim", "ranks/forward_s/0")
# Of the run on a terminal; the picture shows it with the last such bar
STEPS, LAST = (
    30,
    rb" [78]\d%\|",
)
STYLE = (
    "body{margin:0;background:#1e1e1e;color:#ddd} "
    "pre{margin:0;padding:10px;font:13px/1.4 monospace}"
)


def frames(clip: str) -> list[np.ndarray]:
    video = VideoReader(Path("experiments/demo") / f"{clip}_comparison.mp4")
    return [video.read(index) for index in range(video.num_frames)]


def moving_picture(path: Path) -> None:
    pictures = []
    for strips in zip(*map(frames, CLIPS), strict=True):
        rows = []
        for strip in strips:
            panels = panels_of(strip[:, : strip.shape[1] // 4 * 4], PANELS)
            rows.append(comparison_strip({name: panels[name] for name in PANELS[:3]}))
        pictures.append(Image.fromarray(np.concatenate(rows)))
    rest = [*pictures[1:], *pictures[-2:0:-1]]  # there and back
    pictures[0].save(
        path, save_all=True, append_images=rest, duration=200, loop=0, quality=60, method=6
    )


def top_of_page(page: Path, height: int) -> None:
    """A picture beside a page 900 pixels wide, of which `height` are shown."""
    with headless_browser(900, height, 2) as browser:
        browser.get(page.as_uri())
        browser.save_screenshot(str(page.with_suffix(".png")))


def enlarged(picture: np.ndarray, factor: int, path: Path) -> None:
    imwrite_rgb(
        path, cv2.resize(picture, None, fx=factor, fy=factor, interpolation=cv2.INTER_NEAREST)
    )


def scalars(run: Path, picture: Path) -> None:
    """TensorBoard's page of a run, once the names of all SHOWN are there; it draws only the cards
    that are in sight.
    """
    command = [
        sys.executable,
        "-m",
        "tensorboard.main",
        "--logdir",
        str(run / "tb_logger"),
        "--load_fast",
        "false",
    ]
    command += ["--host", "127.0.0.1", "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None
    try:
        address = next(
            found[0] for line in process.stdout if (found := re.search(r"http://\S+?:\d+/", line))
        )
        tags = "|".join(f"^{re.escape(tag)}$" for tag in SHOWN)
        with headless_browser(1280, 1160, 2) as browser:
            browser.get(f"{address}?tagFilter={quote(tags)}#timeseries")
            body = browser.find_element("tag name", "body")  # its text breaks names into pieces
            WebDriverWait(browser, 300).until(
                lambda _: all(tag in body.text.replace("\n", "") for tag in SHOWN)
            )
            browser.find_element(
                "xpath", "//button[contains(., 'Settings')]"
            ).click()  # closes its side bar
            time.sleep(3)  # the curves are drawn
            browser.save_screenshot(str(picture))
    finally:
        process.terminate()
        process.wait(30)


def bar(options: str, picture: Path) -> None:
    """A training run on a terminal: the log, and the bar below it."""
    with tempfile.TemporaryDirectory() as folder:
        code, written = in_terminal(
            "main_train_vrt.py", "--opt", options, f"path.root={folder}",
            f"train.total_iter={STEPS}", "train.checkpoint_test=20", limit_s=600,
        )  # fmt: skip
        if code:
            raise SystemExit(written.decode())
        bar = [found.start() for found in re.finditer(LAST, written)][-1]
        rows = screen(written[: written.index(b"\r", bar)])
        page = Path(folder, "terminal.html")
        text = "\n".join(html.escape(row).replace(folder, "experiments") for row in rows)
        page.write_text(
            f"<meta charset=utf-8><style>{STYLE}</style><pre>{text}</pre>", encoding="utf-8"
        )
        with headless_browser(1640, 200, 2) as driver:
            driver.get(page.as_uri())
            height = driver.execute_script("return document.querySelector('pre').offsetHeight")
            driver.set_window_size(1640, height + 150)  # the window's own frame
            driver.find_element("tag name", "pre").screenshot(str(picture))


def main() -> None:
    moving_picture(OUT / "demo.webp")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        report, sample, video = (
            folder / "training_report.html",
            folder / "sample_page.html",
            folder / "play.mp4",
        )
        compare_runs.main([str(RUN), "--out", str(report)])
        top_of_page(report, 1700)
        show_sample.main(["--opt", SAMPLE, "--index", "20", "--out", str(sample)])
        top_of_page(sample, 1400)
        spike_tool.main(["play", SPIKES, "--out", str(video)])
        enlarged(VideoReader(video).read(44), 3, folder / "spike_player.png")
        enlarged(imread_rgb(RUN / STRIP), 2, folder / "sample_strip.png")
        scalars(RUN, folder / "tensorboard.png")
        bar(SAMPLE, folder / "bar.png")
        for path in folder.glob("*.png"):
            Image.open(path).convert("RGB").save(OUT / f"{path.stem}.webp", quality=85, method=6)


if __name__ == "__main__":
    main()

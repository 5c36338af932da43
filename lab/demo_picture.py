"""Make the pictures of the documents in docs/images, after `make demo` and `make sample`.

    python -m lab.demo_picture

The program needs Chromium and its driver, and the packages of requirements-test.txt. It writes:

    demo.webp                an animation of the two restored clips
    training_report.webp     the page of a run
    sample_page.webp         the page of a training sample
    spike_player.webp        a picture of `spike_tool.py play`
    sample_strip.webp        a frame that a validation has written
    tensorboard.webp         TensorBoard's page of a run

All pictures except demo.webp are enlarged by 2 or 3, so that they are sharp on screens with small
pixels.

No test runs this file, and nothing else uses it. After a change, look at the pictures.
"""

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
from utils.image import comparison_strip, imread_rgb, imwrite_rgb, panels_of
from utils.video.reader import VideoReader

OUT = Path("docs/images")

# Files that `make demo` has made.
DEMO_RESULTS = Path("experiments/demo")
DEMO_CLIPS = ("DEMO01_test", "DEMO00_test")  # the upper clip and the lower clip of the animation
DEMO_SPIKES = "trainsets/demo/GOPRO_Large_spike_seq/test/DEMO01_test/spike/000004.dat"
# A frame of the demo's videos has these pictures side by side, in this order.
PANELS = ("blurry", "spikes", "restored", "sharp")

# Files that `make sample` has made.
SAMPLE_OPTIONS = "options/vrt/000_train_vrt_sample_rgbspike.json"
SAMPLE_RUN = Path("experiments/000_train_vrt_sample_rgbspike")
SAMPLE_STRIP = SAMPLE_RUN / "images/SAMPLE00_test/500.png"


def main() -> None:
    """Make all pictures. They replace the pictures in docs/images."""
    make_demo_animation(OUT / "demo.webp")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)

        report = folder / "training_report.html"
        compare_runs.main([str(SAMPLE_RUN), "--out", str(report)])
        save_screenshot(report, height=1700)

        sample = folder / "sample_page.html"
        show_sample.main(["--opt", SAMPLE_OPTIONS, "--index", "20", "--out", str(sample)])
        save_screenshot(sample, height=1400)

        video = folder / "play.mp4"
        spike_tool.main(["play", DEMO_SPIKES, "--out", str(video)])
        middle_plane = VideoReader(video).read(44)  # the middle one of 88 frames
        save_enlarged(middle_plane, factor=3, path=folder / "spike_player.png")

        strip = imread_rgb(SAMPLE_STRIP)
        save_enlarged(strip, factor=2, path=folder / "sample_strip.png")
        save_tensorboard(SAMPLE_RUN, folder / "tensorboard.png")

        # All calls above have written PNG files to `folder`. The documents show them as WebP.
        for path in folder.glob("*.png"):
            picture = Image.open(path).convert("RGB")
            # A higher quality, up to 100, makes a larger file. 85 was chosen by hand. Method 6 is
            # the slowest, and makes the smallest file.
            picture.save(OUT / f"{path.stem}.webp", quality=85, method=6)


# ---- The restored clips ----------------------------------------------------------------------


def make_demo_animation(path: Path) -> None:
    """Write an animation of the two clips of the demo, one above the other."""
    upper_clip, lower_clip = DEMO_CLIPS
    upper_frames = read_frames(upper_clip)
    lower_frames = read_frames(lower_clip)
    pictures = []
    for upper, lower in zip(upper_frames, lower_frames, strict=True):
        rows = (without_sharp(upper), without_sharp(lower))
        pictures.append(Image.fromarray(np.concatenate(rows)))

    # Play forwards, then backwards, so that nothing jumps when the animation begins again. E.g. the
    # pictures 0 1 2 3 become 0 1 2 3 2 1.
    first = pictures[0]
    forwards = pictures[1:]  # 1 2 3
    backwards = pictures[-2:0:-1]  # 2 1
    first.save(
        path,
        save_all=True,
        append_images=[*forwards, *backwards],
        duration=200,  # milliseconds of a picture
        loop=0,  # repeat forever
        quality=60,  # 0 to 100, where 100 makes the largest file. Chosen by hand
        method=6,  # takes the most time, and makes the smallest file
    )


def read_frames(clip: str) -> list[np.ndarray]:
    """Return the frames of a clip's comparison video, (H, W, 3) each."""
    video = VideoReader(DEMO_RESULTS / f"{clip}_comparison.mp4")
    return [video.read(index) for index in range(video.num_frames)]


def without_sharp(strip: np.ndarray) -> np.ndarray:
    """Return a frame of a comparison video without the last of its PANELS, the sharp frame."""
    # All panels have the same width. A video may be a few pixels wider than all panels together.
    # Cut off these pixels at the right edge. E.g. 4 panels in 402 pixels: 4 x 100 pixels are kept.
    width_of_panel = strip.shape[1] // len(PANELS)
    width = width_of_panel * len(PANELS)
    panels = panels_of(strip[:, :width], PANELS)
    return comparison_strip({name: panels[name] for name in PANELS[:-1]})


# ---- Pages and pictures ----------------------------------------------------------------------


def save_screenshot(page: Path, height: int) -> None:
    """Write the top of a page as a PNG beside the page.

    The window is 900 pixels wide and `height` pixels high. The PNG has twice as many pixels along
    each side.
    """
    with headless_browser(900, height, scale=2) as browser:
        browser.get(page.as_uri())
        browser.save_screenshot(str(page.with_suffix(".png")))


def save_enlarged(picture: np.ndarray, factor: int, path: Path) -> None:
    """Write a picture enlarged by a whole factor, with sharp pixels."""
    enlarged = cv2.resize(picture, None, fx=factor, fy=factor, interpolation=cv2.INTER_NEAREST)
    imwrite_rgb(path, enlarged)


# ---- TensorBoard -----------------------------------------------------------------------------

# The scalars in the screenshot. E.g. "ranks/forward_s/0" is the time of the forward pass on rank 0,
# in seconds. Few scalars are shown, because TensorBoard draws only what fits into the window.
SCALARS = ("train/loss", "train/lr", "train/grad_norm", "val/psnr", "val/ssim", "ranks/forward_s/0")


def save_tensorboard(run: Path, picture: Path) -> None:
    """Write a screenshot of TensorBoard's page of a run, with the curves of SCALARS."""
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", str(run / "tb_logger")]
    command += ["--load_fast", "false", "--host", "127.0.0.1", "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        # The tab "Time Series" (#timeseries) shows each scalar with a name that matches the regular
        # expression `tagFilter`.
        names = "|".join(f"^{re.escape(tag)}$" for tag in SCALARS)
        address = f"{_address_of(process)}?tagFilter={quote(names)}#timeseries"
        with headless_browser(1280, 1160, scale=2) as browser:
            browser.get(address)
            body = browser.find_element("tag name", "body")

            def has_all_names(_: object) -> bool:
                text = body.text.replace("\n", "")  # the page breaks long names into lines
                return all(tag in text for tag in SCALARS)

            # Wait at most 300 s, because TensorBoard reads the files of the run first.
            WebDriverWait(browser, 300).until(has_all_names)
            # The button "Settings" closes the side bar.
            browser.find_element("xpath", "//button[contains(., 'Settings')]").click()
            time.sleep(3)  # until the curves are drawn. The page does not say when this is done
            browser.save_screenshot(str(picture))
    finally:
        process.terminate()
        process.wait(timeout=30)


def _address_of(process: subprocess.Popen[str]) -> str:
    """Return the address that TensorBoard prints once it serves its page.

    The address is within a line of other words, e.g. "http://127.0.0.1:6006/".
    """
    assert process.stdout is not None
    for line in process.stdout:
        found = re.search(r"http://\S+?:\d+/", line)
        if found is not None:
            return found[0]
    raise SystemExit("TensorBoard has ended without an address")


if __name__ == "__main__":
    main()

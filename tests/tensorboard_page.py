"""TensorBoard's page of a run, in a browser without a screen.

python -m tests.tensorboard_page experiments/000_train_vrt_sample_rgbspike docs/images/tensorboard.png
"""

import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from tests.headless import headless_browser

SHOWN = ("train/loss", "train/lr", "train/grad_norm", "val/psnr", "val/ssim", "ranks/forward_s/0")


@contextmanager
def tensorboard(folder: Path) -> Iterator[str]:
    """The address of a TensorBoard on `folder`."""
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", folder, "--host", "127.0.0.1", "--port", "0"]
    process = subprocess.Popen(
        [*map(str, command), "--load_fast", "false"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        said = ""
        for line in process.stdout:
            said += line
            if address := re.search(r"http://\S+?:\d+/", line):
                yield address[0]
                return
        raise AssertionError(f"TensorBoard did not start:\n{said}")
    finally:
        process.terminate()
        process.wait(30)


def show_scalars(browser: Any, address: str, tags: Sequence[str], limit_s: float = 300) -> str:
    """Open the page with these scalars; its text without line ends, once all of their names are there.

    The page breaks names into pieces, and draws only the cards that are in sight.
    """
    pattern = "|".join(f"^{re.escape(tag)}$" for tag in tags)
    browser.get(f"{address}?tagFilter={quote(pattern)}#timeseries")
    deadline = time.monotonic() + limit_s
    while True:
        text = browser.find_element("tag name", "body").text.replace("\n", "")
        if all(tag in text for tag in tags):
            return text
        if time.monotonic() > deadline:
            raise AssertionError(f"the page lacks {[tag for tag in tags if tag not in text]}:\n{text}")
        time.sleep(0.2)


def main(run: str, picture: str) -> None:
    with tensorboard(Path(run) / "tb_logger") as address, headless_browser(1280, 1160) as browser:
        show_scalars(browser, address, SHOWN)
        browser.find_element("xpath", "//button[contains(., 'Settings')]").click()  # closes its side bar
        time.sleep(3)  # the curves are drawn
        browser.save_screenshot(picture)


if __name__ == "__main__":
    main(*sys.argv[1:])

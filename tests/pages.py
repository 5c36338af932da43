"""Pages in Chromium without a screen, for tests and for pictures of the documents (lab/demo_picture.py)."""

import html
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.terminal import in_terminal, screen

SHOWN = ("train/loss", "train/lr", "train/grad_norm", "val/psnr", "val/ssim", "ranks/forward_s/0")
STEPS, LAST = 30, rb" [78]\d%\|"  # of the run on a terminal; the picture shows it with the last such bar
STYLE = "body{margin:0;background:#1e1e1e;color:#ddd} pre{margin:0;padding:10px;font:13px/1.4 monospace}"


@contextmanager
def headless_browser(width: int = 900, height: int = 900, scale: int = 1) -> Iterator[Any]:
    """A selenium driver, `scale` dots a pixel; skips the test where selenium or Chromium is missing."""
    selenium = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    if not (shutil.which("chromium") and shutil.which("chromedriver")):
        pytest.skip("no chromium with chromedriver on this machine")
    options = selenium.ChromeOptions()
    options.binary_location = shutil.which("chromium")
    shown = f"window-size={width},{height}", f"force-device-scale-factor={scale}", "hide-scrollbars"
    for flag in ("headless=new", "no-sandbox", "disable-gpu", "disable-dev-shm-usage", *shown):
        options.add_argument(f"--{flag}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = selenium.Chrome(options=options, service=selenium.ChromeService(shutil.which("chromedriver")))
    try:
        yield driver
    finally:
        driver.quit()


def check_offline(browser: Any) -> None:
    """Fails if the pages so far reported an error or asked for anything on a network."""
    assert [line for line in browser.get_log("browser") if line["level"] == "SEVERE"] == []
    asked = [line["message"] for line in browser.get_log("performance") if "requestWillBeSent" in line["message"]]
    assert not [m for m in asked if '"url":"http' in m]


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


def scalars(run: Path, picture: Path) -> None:
    """TensorBoard's page of a run."""
    with tensorboard(run / "tb_logger") as address, headless_browser(1280, 1160, 2) as browser:
        show_scalars(browser, address, SHOWN)
        browser.find_element("xpath", "//button[contains(., 'Settings')]").click()  # closes its side bar
        time.sleep(3)  # the curves are drawn
        browser.save_screenshot(str(picture))


def bar(options: str, picture: Path) -> None:
    """A training run on a terminal: the log, and the bar below it."""
    with tempfile.TemporaryDirectory() as folder:
        code, written = in_terminal(
            "main_train_vrt.py", "--opt", options, f"path.root={folder}", f"train.total_iter={STEPS}",
            "train.checkpoint_test=20", limit_s=600,
        )  # fmt: skip
        if code:
            raise SystemExit(written.decode())
        bar = [found.start() for found in re.finditer(LAST, written)][-1]
        rows = screen(written[: written.index(b"\r", bar)])
        page = Path(folder, "terminal.html")
        text = "\n".join(html.escape(row).replace(folder, "experiments") for row in rows)
        page.write_text(f"<meta charset=utf-8><style>{STYLE}</style><pre>{text}</pre>", encoding="utf-8")
        with headless_browser(1640, 200, 2) as driver:
            driver.get(page.as_uri())
            height = driver.execute_script("return document.querySelector('pre').offsetHeight")
            driver.set_window_size(1640, height + 150)  # the window's own frame
            driver.find_element("tag name", "pre").screenshot(str(picture))

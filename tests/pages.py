"""Pages in Chromium without a screen, for tests and for pictures of the documents (lab/demo_picture.py)."""

import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest


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

"""Pages in Chromium without a screen, for tests and for pictures of the documents
(lab/demo_picture.py).
"""

import shutil
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import pytest


@contextmanager
def headless_browser(width: int = 900, height: int = 900, scale: int = 1) -> Generator[Any]:
    """A selenium driver, `scale` dots a pixel; skips the test where selenium or Chromium is
    missing.
    """
    selenium = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    if not (shutil.which("chromium") and shutil.which("chromedriver")):
        pytest.skip("no chromium with chromedriver on this machine")
    options = selenium.ChromeOptions()
    options.binary_location = shutil.which("chromium")
    shown = f"window-size={width},{height}", f"force-device-scale-factor={scale}", "hide-scrollbars"
    for flag in ("headless=new", "no-sandbox", "disable-gpu", "disable-dev-shm-usage", *shown):
        options.add_argument(f"--{flag}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = selenium.Chrome(
        options=options, service=selenium.ChromeService(shutil.which("chromedriver"))
    )
    try:
        yield driver
    finally:
        driver.quit()


def check_offline(browser: Any) -> None:
    """Fails if the pages so far reported an error or asked for anything on a network."""
    assert [line for line in browser.get_log("browser") if line["level"] == "SEVERE"] == []
    asked = [
        line["message"]
        for line in browser.get_log("performance")
        if "requestWillBeSent" in line["message"]
    ]
    assert not [m for m in asked if '"url":"http' in m]

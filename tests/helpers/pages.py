"""Open pages in Chromium without a screen.

Tests look at pages in this way, and lab/demo_picture.py makes pictures for the documents.
"""

import shutil
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import pytest


@contextmanager
def headless_browser(width: int = 900, height: int = 900, scale: int = 1) -> Generator[Any]:
    """Yield a browser, as a driver of selenium. Skips the test if selenium or Chromium is missing.

    width, height: size of the window in CSS pixels.
    scale: device pixels per CSS pixel, along an axis. E.g. with 2, a picture of the page has twice
        the width and height of the window.
    """
    selenium = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    if not (shutil.which("chromium") and shutil.which("chromedriver")):
        pytest.skip("no chromium with chromedriver on this machine")
    options = selenium.ChromeOptions()
    options.binary_location = shutil.which("chromium")
    for flag in (
        "headless=new",  # without a screen
        "no-sandbox",  # the sandbox does not start as root
        "disable-gpu",
        "disable-dev-shm-usage",  # /dev/shm is small in a container
        f"window-size={width},{height}",
        f"force-device-scale-factor={scale}",
        "hide-scrollbars",
    ):
        options.add_argument(f"--{flag}")
    # Let the browser record the errors of a page, and all addresses that it asks for.
    # `check_no_errors_and_no_network` reads these records.
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = selenium.Chrome(
        options=options, service=selenium.ChromeService(shutil.which("chromedriver"))
    )
    try:
        yield driver
    finally:
        driver.quit()


def check_no_errors_and_no_network(browser: Any) -> None:
    """Fail if the pages so far reported an error, or asked for anything on a network."""
    errors = [line for line in browser.get_log("browser") if line["level"] == "SEVERE"]
    assert errors == []

    # A page that needs no network asks for no address that begins with http: or https:.
    asked_on_a_network = []
    for line in browser.get_log("performance"):
        message = line["message"]
        if "requestWillBeSent" in message and '"url":"http' in message:
            asked_on_a_network.append(message)
    assert asked_on_a_network == []

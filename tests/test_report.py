import re

import numpy as np
import pytest

from models.restore.job import build_report, psnr_plot
from tests.pages import check_offline, headless_browser
from utils.metrics import METRICS, collect


def results(clips=("a&b", "c"), with_gt=True):
    kinds = {"restored": 5.0, "input": 0.0} if with_gt else {}
    scores = {
        kind: {m: [25.0 + bonus + i if "psnr" in m else 0.8 for i in range(3)] for m in METRICS}
        for kind, bonus in kinds.items()
    }
    entries = [{"name": name, "frames": 3, "stems": ["1", "2", "3"], "per_frame": scores} for name in clips]
    return {"protocol": {"folder": "blur <1>", "dtype": "float32"}, **collect(entries, 2)}


def pictures(names=("a&b", "c"), with_gt=True):
    flat = {"blurry": 40, "restored": 120, **({"sharp": 220} if with_gt else {})}
    return {name: {kind: np.full((60, 100, 3), v, np.uint8) for kind, v in flat.items()} for name in names}


def test_the_page_is_self_contained_and_escaped():
    page = build_report("T <1>", results(), pictures())
    assert "{{" not in page and "T &lt;1&gt;" in page and "blur &lt;1&gt;" in page and "a&amp;b" in page
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


@pytest.fixture(scope="module")
def browser():
    with headless_browser() as driver:
        yield driver


def pixel(browser, element, x, y):
    """Colour of one pixel of what the browser really shows of `element`."""
    import cv2

    shown = cv2.imdecode(np.frombuffer(element.screenshot_as_png, np.uint8), cv2.IMREAD_COLOR)
    return int(shown[int(y * shown.shape[0]), int(x * shown.shape[1]), 0])


def test_the_slider_works_in_a_browser(browser, tmp_path):
    (tmp_path / "report.html").write_text(build_report("T", results(), pictures()), encoding="utf-8")
    browser.get(f"file://{tmp_path / 'report.html'}")

    slider = browser.find_element("css selector", ".slider")
    handle = slider.find_element("tag name", "input")
    assert abs(pixel(browser, slider, 0.25, 0.5) - 40) < 4  # blurry left of the bar
    assert abs(pixel(browser, slider, 0.75, 0.5) - 120) < 4  # restored right of it

    browser.execute_script(
        "arguments[0].value = 90; arguments[0].dispatchEvent(new Event('input', {bubbles: true}))", handle
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

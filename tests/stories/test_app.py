"""app.py in a browser: upload, restore, cancel, wrong files, what leaves and what stays.

app.py serves a page on which a person restores a clip. The tests start it, and use the page by a
real browser as a person does. The clip has four frames.
"""

import importlib.util
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from tests.dist.launching import ROOT, run_command
from tests.helpers.textured_clips import make_textured_home
from utils.dist.process import descendants_of, process_state
from utils.results import read_json

# Seconds until the page must show something. A busy machine may take long.
LIMIT_S = 120.0
# app.py needs gradio, the library of the page.
HAS_GRADIO = importlib.util.find_spec("gradio") is not None
needs_gradio = pytest.mark.skipif(
    not HAS_GRADIO, reason="gradio is not installed (requirements-app.txt)"
)


@dataclass(frozen=True)
class Clip:
    """Files of a clip of 4 frames. blurry, spikes, sharp: folders."""

    blurry: Path
    spikes: Path
    sharp: Path
    info: Path


@dataclass(frozen=True)
class Page:
    """The page in a browser. A field or a button is named by its id in the page."""

    browser: Any

    def open(self, address: str) -> None:
        """Open the page, and wait until files can be given."""
        self.browser.get(address)
        self.wait(lambda: self.found("#spikes input[type=file]"))

    def found(self, selector: str) -> list[Any]:
        """Return the elements of the page that fit a CSS selector."""
        return self.browser.find_elements("css selector", selector)

    def wait(self, answer: Callable[[], Any]) -> Any:
        """Ask again and again. Return the answer as soon as it is true or not empty."""
        end = time.monotonic() + LIMIT_S
        while not (found := answer()):
            assert time.monotonic() < end, (self.text("state"), self.said())
            time.sleep(0.1)
        return found

    def give(self, field: str, files: Sequence[Path]) -> None:
        """Upload files, and wait until the page names them."""
        self.found(f"#{field} input[type=file]")[0].send_keys("\n".join(map(str, files)))
        self.wait(lambda: all(file.stem in self.text(field) for file in files))

    def write(self, field: str, value: object) -> None:
        """Write a number into a field."""
        box = self.found(f"#{field} input[type=number]")[0]
        box.clear()
        box.send_keys(f"{value}\t")

    def press(self, button: str) -> None:
        """Press a button."""
        self.found(f"#{button}")[0].click()

    def text(self, field: str) -> str:
        """Return the text that a part of the page shows."""
        return self.browser.execute_script(
            "return document.getElementById(arguments[0])?.innerText ?? ''", field
        )

    def said(self) -> str:
        """Return the output of the program, which the page shows."""
        return self.browser.execute_script(
            "return document.querySelector('#said textarea')?.value ?? ''"
        )

    def pictures(self) -> set[str]:
        """Return the addresses of the blurry and the restored frame."""
        images = "[...document.querySelectorAll('#slider img')]"
        return set(self.browser.execute_script(f"return {images}.map(image => image.src)"))

    def wait_for(self, pattern: str) -> str:
        """Return the line of state once it matches."""
        return self.wait(lambda: re.search(pattern, self.text("state")) and self.text("state"))


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Clip:
    """Give a clip of moving textures."""
    home = make_textured_home(tmp_path_factory.mktemp("home"))
    rgb = home / "GOPRO_Large/test/clip0"
    spikes = home / "GOPRO_Large_spike_seq"
    return Clip(rgb / "blur", spikes / "test/clip0/spike", rgb / "sharp", spikes / "dataset.json")


@dataclass(frozen=True)
class Server:
    """A running app.py."""

    process: subprocess.Popen[str]
    # Address of the page, e.g. "http://127.0.0.1:7860".
    address: str
    # Folder for the temporary files of the program.
    folder: Path


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Give app.py, which all tests of this file share. The last test stops it."""
    folder = tmp_path_factory.mktemp("tmp")
    process = subprocess.Popen(
        ["env", f"TMPDIR={folder}", sys.executable, "app.py"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        assert line.startswith("open http://127.0.0.1:"), line
        yield Server(process, line.split()[1], folder)
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def page(browser: Any, server: Server) -> Page:
    """Give the page as it is after loading."""
    page = Page(browser)
    page.open(server.address)
    return page


def files_of(folder: Path) -> list[Path]:
    """Return the files of a folder in the order of their names."""
    return sorted(folder.iterdir())


def archive_of(page: Page) -> zipfile.ZipFile:
    """Return the results that the page offers."""
    link = page.wait(lambda: page.found("#download a"))[0].get_attribute("href")
    with urllib.request.urlopen(link) as answer:
        return zipfile.ZipFile(BytesIO(answer.read()))


@needs_gradio
def test_an_own_clip_is_restored_as_by_the_command_line(page, clip, tmp_path):
    page.give("frames", files_of(clip.blurry))
    page.give("spikes", [*files_of(clip.spikes), clip.info])
    page.give("sharp", files_of(clip.sharp))
    page.press("restore")
    shown = page.wait_for("dB")
    command = [sys.executable, "main_test_vrt.py", "--input", clip.blurry, "--spike", clip.spikes]
    command += ["--gt", clip.sharp, "--output", tmp_path / "out", "--save", "frames"]
    assert run_command(command).exit_codes == [0]

    averages = read_json(tmp_path / "out/metrics.json")["averages"]
    expected = "PSNR: blurry {:.2f} dB, restored {:.2f} dB"
    assert shown == expected.format(averages["input"]["psnr"], averages["restored"]["psnr"])
    archive = archive_of(page)
    names = [name for name in archive.namelist() if re.fullmatch(r"clip/\d+\.png", name)]
    ours = files_of(next(path for path in (tmp_path / "out").iterdir() if path.name == "clip0"))
    assert [archive.read(name) for name in sorted(names)] == [path.read_bytes() for path in ours]
    assert "report.html" in archive.namelist()
    shown = page.pictures()
    page.write("number", 1)
    page.wait(lambda: len(page.pictures()) == 2 and not page.pictures() & shown)


@needs_gradio
def test_the_demo_clip_is_cancelled_and_its_process_is_gone(page, server):
    page.press("demo")
    page.wait(lambda: "000007" in page.text("sharp"))
    page.press("restore")
    page.wait_for("of 8 frames")
    assert descendants_of(server.process.pid)
    page.press("cancel")
    assert page.wait_for("cancelled")
    page.wait(lambda: not descendants_of(server.process.pid))

    assert not page.found("#download a")


@needs_gradio
def test_a_wrong_file_and_missing_spikes_are_refused_in_the_words_of_the_program(
    page, clip, tmp_path
):
    wrong = tmp_path / "holiday.png"
    wrong.write_text("<!doctype html><title>not found</title>")
    page.give("frames", [wrong])
    page.press("restore")
    page.wait_for("refused")
    said = page.said()
    assert "its content is a web page" in said
    assert re.search(r"\n  in +blur/holiday\.png\n  expected .+\n  do ", said), said

    page.browser.refresh()
    page.wait(lambda: page.found("#frames input[type=file]"))
    page.give("frames", files_of(clip.blurry))
    page.press("restore")
    page.wait_for("refused")
    assert "OptionError: these weights need spikes" in page.said()


@needs_gradio
def test_the_size_of_a_plane_is_found_and_one_that_does_not_fit_is_refused(page, clip):
    page.give("frames", files_of(clip.blurry))
    page.give("spikes", files_of(clip.spikes))
    page.write("height", 50)
    page.write("width", 70)
    page.press("restore")
    page.wait_for("refused")
    assert "DataError" in page.said()
    assert "50" in page.said()
    page.write("height", 0)
    page.write("width", 0)
    page.press("restore")
    page.wait_for("^restored$")

    assert "frames 1 to 4 restored" in page.said()


@needs_gradio
def test_the_page_asks_for_nothing_elsewhere_and_is_served_to_this_machine_alone(page, server):
    asked = [
        url
        for line in page.browser.get_log("performance")
        if "requestWillBeSent" in line["message"]
        for url in re.findall(r'"url":"(https?://[^"]*)', line["message"])
    ]
    assert asked
    assert all(url.startswith("http://127.0.0.1:") for url in asked)
    port = int(server.address.strip("/").rpartition(":")[2])
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", port))


@needs_gradio
def test_a_stop_ends_the_work_and_leaves_no_file(page, server):
    page.press("demo")
    page.wait(lambda: "000007" in page.text("sharp"))
    page.press("restore")
    page.wait_for("of 8 frames")
    (worker, *_) = descendants_of(server.process.pid)
    assert list(server.folder.glob("spikevrt_app_*"))
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(LIMIT_S) == 0
    page.wait(lambda: process_state(worker) in (None, "Z"))

    assert not list(server.folder.glob("spikevrt_app_*"))


@pytest.mark.skipif(HAS_GRADIO, reason="gradio is installed")
def test_without_gradio_the_program_says_what_to_install():
    result = run_command([sys.executable, "app.py"])
    assert result.exit_codes == [2]
    assert "cannot import gradio" in result.text
    assert "make app" in result.text

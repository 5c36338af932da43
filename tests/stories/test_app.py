"""app.py in a browser: upload, restore, cancel, wrong files, privacy, a stop.

app.py serves a page on which a person restores a clip. The tests start app.py, and use the page
with a real browser as a person does. The class `Page` has a method for each action of a person. The
tests name a field, a button or a text of the page by its elem_id in `app.build_page`, e.g.
"frames", "restore" and "state".

The clip has four frames. The tests of this file share one running app.py (`server`), and the last
test stops it. Each test loads the page anew.

What is tested: app.py has the page, and scripts/parts/uploaded_clip.py handles a visitor's files.
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

from tests.dist.launching import ROOT, run_command, run_ranks
from tests.helpers.textured_clips import make_textured_home
from utils.dist.process import descendants_of, process_state
from utils.results import read_json

# Seconds until the page must show something. The limit is high, because a busy machine may take
# long.
LIMIT_S = 120.0
# app.py needs gradio, the library of the page.
HAS_GRADIO = importlib.util.find_spec("gradio") is not None
needs_gradio = pytest.mark.skipif(
    not HAS_GRADIO, reason="gradio is not installed (requirements-app.txt)"
)
# Exit code of a program whose input or environment is wrong.
REFUSED = 2


# ---- The page in a browser ---------------------------------------------------------------------


@dataclass(frozen=True)
class Page:
    """The page in a browser. The module selenium drives the browser."""

    browser: Any

    def open(self, address: str) -> None:
        """Open the page, and wait until files can be given."""
        self.browser.get(address)
        self.wait(lambda: self.elements("#spikes input[type=file]"))

    def wait(self, ask: Callable[[], Any]) -> Any:
        """Call `ask` until its answer is true or not empty. Return the answer.

        After LIMIT_S the test fails, and shows the text of the page.
        """
        end = time.monotonic() + LIMIT_S
        while time.monotonic() < end:
            answer = ask()
            if answer:
                return answer
            time.sleep(0.1)
        raise AssertionError((self.text("state"), self.messages()))

    def wait_for_state(self, pattern: str) -> str:
        """Wait until the line of state matches a regular expression. Return the line."""

        def matching_state() -> str:
            state = self.text("state")
            return state if re.search(pattern, state) else ""

        return self.wait(matching_state)

    def elements(self, selector: str) -> list[Any]:
        """Return the elements of the page that fit a CSS selector."""
        return self.browser.find_elements("css selector", selector)

    def upload(self, field: str, files: Sequence[Path]) -> None:
        """Upload files, and wait until the page names them."""
        paths = "\n".join(str(file) for file in files)  # selenium takes several files as lines
        self.elements(f"#{field} input[type=file]")[0].send_keys(paths)
        self.wait(lambda: all(file.stem in self.text(field) for file in files))

    def take_demo_clip(self) -> None:
        """Press the button of the demo clip, and wait until its files are in the fields."""
        self.press("demo")
        # The clip has eight frames, 000000 to 000007. The sharp frames are given last.
        self.wait(lambda: "000007" in self.text("sharp"))

    def write(self, field: str, value: int) -> None:
        """Write a number into a field."""
        box = self.elements(f"#{field} input[type=number]")[0]
        box.clear()
        box.send_keys(f"{value}\t")  # the tab leaves the field, and so ends the input

    def press(self, button: str) -> None:
        """Press a button."""
        self.elements(f"#{button}")[0].click()

    def text(self, field: str) -> str:
        """Return the text that a part of the page shows, "" if the part is not there."""
        return self.browser.execute_script(
            "return document.getElementById(arguments[0])?.innerText ?? ''", field
        )

    def messages(self) -> str:
        """Return the output of main_test_vrt.py, as the page shows it."""
        return self.browser.execute_script(
            "return document.querySelector('#said textarea')?.value ?? ''"
        )

    def pictures(self) -> set[str]:
        """Return the addresses of the blurry and the restored frame in the slider."""
        return set(
            self.browser.execute_script(
                "return [...document.querySelectorAll('#slider img')].map(image => image.src)"
            )
        )

    def has_results(self) -> bool:
        """Return whether the page offers an archive of results."""
        return bool(self.elements("#download a"))

    def archive(self) -> zipfile.ZipFile:
        """Wait for the archive of results, and return it."""
        [link, *_] = self.wait(lambda: self.elements("#download a"))
        with urllib.request.urlopen(link.get_attribute("href")) as answer:
            return zipfile.ZipFile(BytesIO(answer.read()))

    def requested_addresses(self) -> list[str]:
        """Return the addresses that the browser has asked for since the last call."""
        addresses = []
        for line in self.browser.get_log("performance"):
            if "requestWillBeSent" in line["message"]:
                addresses += re.findall(r'"url":"(https?://[^"]*)', line["message"])
        return addresses


# ---- What the tests share ----------------------------------------------------------------------


@dataclass(frozen=True)
class Clip:
    """Folders of a clip of four frames, and the description of its spikes."""

    blurry: Path  # the blurry frames
    spikes: Path  # one spike file for each frame
    sharp: Path  # the sharp frames
    info: Path  # dataset.json


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Clip:
    """Give a clip of moving textures."""
    home = make_textured_home(tmp_path_factory.mktemp("home"))
    rgb = home / "GOPRO_Large/test/clip0"
    spikes = home / "GOPRO_Large_spike_seq"
    return Clip(
        blurry=rgb / "blur",
        spikes=spikes / "test/clip0/spike",
        sharp=rgb / "sharp",
        info=spikes / "dataset.json",
    )


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
    """Give app.py. All tests of this file share it, and the last test stops it."""
    folder = tmp_path_factory.mktemp("tmp")
    process = subprocess.Popen(
        ["env", f"TMPDIR={folder}", sys.executable, "app.py"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        # Its first line is "open http://127.0.0.1:7860".
        line = process.stdout.readline()
        assert line.startswith("open http://127.0.0.1:"), line
        yield Server(process, address=line.split()[1], folder=folder)
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


# ---- Restoring ---------------------------------------------------------------------------------


# One test checks scores, frames and slider, because a restoration in the page takes many seconds.
@needs_gradio
def test_a_clip_of_a_visitor_is_restored_as_by_the_command_line(page, clip, tmp_path):
    page.upload("frames", files_of(clip.blurry))
    page.upload("spikes", [*files_of(clip.spikes), clip.info])
    page.upload("sharp", files_of(clip.sharp))
    page.press("restore")
    state = page.wait_for_state("dB")  # the scores, at the end
    archive = page.archive()
    out = tmp_path / "out"
    command = [sys.executable, "main_test_vrt.py", "--input", clip.blurry, "--spike", clip.spikes]
    command += ["--gt", clip.sharp, "--output", out, "--save", "frames"]
    assert run_command(command).exit_codes == [0]

    # The scores in `state` are the scores of the command line.
    averages = read_json(out / "metrics.json")["averages"]
    blurry = averages["input"]["psnr"]
    restored = averages["restored"]["psnr"]
    assert state == f"PSNR: blurry {blurry:.2f} dB, restored {restored:.2f} dB"
    # The frames are the same to the byte. In the archive, the clip is called "clip". In `out` it is
    # called "clip0", after the folder of its frames.
    names = [name for name in archive.namelist() if re.fullmatch(r"clip/\d+\.png", name)]
    frames = [archive.read(name) for name in sorted(names)]
    assert frames == [path.read_bytes() for path in files_of(out / "clip0")]
    assert "report.html" in archive.namelist()

    # The slider shows the middle frame. If frame 1 is chosen, both pictures of the slider change.
    pictures_of_middle = page.pictures()
    page.write("number", 1)

    def are_both_pictures_new() -> bool:
        pictures = page.pictures()
        return len(pictures) == 2 and pictures.isdisjoint(pictures_of_middle)

    page.wait(are_both_pictures_new)


# `server` is the running app.py.
@needs_gradio
def test_a_cancelled_restoration_ends_its_process_and_has_no_results(page, server):
    page.take_demo_clip()
    page.press("restore")
    page.wait_for_state("of 8 frames")  # e.g. "0 of 8 frames restored"
    assert descendants_of(server.process.pid)  # main_test_vrt.py

    page.press("cancel")

    page.wait_for_state("cancelled")
    page.wait(lambda: not descendants_of(server.process.pid))
    assert not page.has_results()


@needs_gradio
def test_the_size_of_a_spike_plane_is_found_from_the_files(page, clip):
    page.upload("frames", files_of(clip.blurry))
    page.upload("spikes", files_of(clip.spikes))  # but not dataset.json, which has the size
    page.press("restore")

    # Without sharp frames there are no scores.
    page.wait_for_state("^restored$")
    assert "frames 1 to 4 restored" in page.messages()


# ---- Refusals ----------------------------------------------------------------------------------


@needs_gradio
def test_a_wrong_file_is_refused_in_the_words_of_the_program(page, tmp_path):
    wrong = tmp_path / "holiday.png"
    wrong.write_text("<!doctype html><title>not found</title>")
    page.upload("frames", [wrong])
    page.press("restore")

    page.wait_for_state("refused")
    messages = page.messages()
    assert "its content is a web page" in messages
    # A message has four parts: what is wrong, in which file, what is expected, and what to do. The
    # message has the name that the visitor gave to the file. It must not have the path on the
    # server, because this path must stay private.
    assert re.search(r"\n  in +blur/holiday\.png\n  expected .+\n  do ", messages), messages


@needs_gradio
def test_frames_without_spikes_are_refused_in_the_words_of_the_program(page, clip):
    page.upload("frames", files_of(clip.blurry))
    page.press("restore")

    page.wait_for_state("refused")
    assert "OptionError: these weights need spikes" in page.messages()


@needs_gradio
def test_a_size_of_a_spike_plane_that_does_not_fit_the_files_is_refused(page, clip):
    page.upload("frames", files_of(clip.blurry))
    page.upload("spikes", files_of(clip.spikes))
    # The planes have 48 x 48 pixels.
    page.write("height", 50)
    page.write("width", 70)
    page.press("restore")

    page.wait_for_state("refused")
    messages = page.messages()
    assert "DataError" in messages
    assert "50" in messages


@needs_gradio
def test_after_a_refusal_the_same_visitor_can_restore(page, clip):
    page.upload("frames", files_of(clip.blurry))
    page.press("restore")
    page.wait_for_state("refused")  # because the clip has no spikes

    page.upload("spikes", [*files_of(clip.spikes), clip.info])
    page.press("restore")

    page.wait_for_state("^restored$")


# ---- Privacy, and the end ----------------------------------------------------------------------


@needs_gradio
def test_the_page_asks_other_machines_for_nothing(page):
    addresses = page.requested_addresses()

    assert addresses
    for address in addresses:
        assert address.startswith("http://127.0.0.1:")


@needs_gradio
def test_other_machines_cannot_reach_the_page(server):
    port = int(server.address.strip("/").rpartition(":")[2])

    # A server that other machines could reach would listen at all addresses of this machine. One of
    # these addresses is 127.0.0.2. app.py listens only at 127.0.0.1, so a connection to 127.0.0.2
    # must be refused.
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", port))


@needs_gradio
def test_a_stop_ends_the_work_and_leaves_no_file(page, server):
    page.take_demo_clip()
    page.press("restore")
    page.wait_for_state("of 8 frames")
    [worker, *_] = descendants_of(server.process.pid)  # main_test_vrt.py
    assert list(server.folder.glob("spikevrt_app_*"))

    server.process.send_signal(signal.SIGTERM)

    assert server.process.wait(LIMIT_S) == 0
    # A process that has ended has no state. Until its parent has asked for its exit code, it has
    # the state Z.
    page.wait(lambda: process_state(worker) in (None, "Z"))
    assert not list(server.folder.glob("spikevrt_app_*"))


@pytest.mark.skipif(HAS_GRADIO, reason="gradio is installed")
def test_without_gradio_the_program_says_what_to_install():
    result = run_ranks(1, "app.py")

    assert result.exit_codes == [REFUSED]
    assert "cannot import gradio" in result.text
    assert "make app" in result.text

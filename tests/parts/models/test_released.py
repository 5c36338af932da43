"""Weights by name: "vrt/006" is fetched once, from a file server of this test, and checked.

"vrt/006" means network 006 of the published VRT networks. A program downloads its file into
model_zoo/vrt, and reads it from there the next time. An environment variable gives another address
for the download. MIRROR has the name of this variable. The tests set it to a server on this
machine.
"""

import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch

from models.portable import read_saved
from models.recognise import file_of
from models.released import ADDRESS, MIRROR
from models.released_networks import RELEASED
from tests.dist.launching import ROOT, RankResult, Ranks, free_port, run_ranks
from tests.helpers.clip_files import write_clip
from tests.helpers.train_files import write_options
from tests.helpers.weights_files import released_tensors
from utils.errors import CheckpointError

NAME = "006_VRT_videodeblurring_GoPro"
# The error with which each program of `start_released` ends. The program gets a noise level
# (--sigma), but network 006 takes none, because it is no denoiser. The program notices this only
# after it has read the weights. So this text proves that the weights were fetched and read.
REFUSAL_OF_READ_WEIGHTS = "these weights do not take a noise level"
FILE_NAME = f"{NAME}.pth"
# The path to which a program downloads the file, seen from the folder in which it is started.
FILE = Path("model_zoo/vrt") / FILE_NAME
# Exit code for wrong or missing files.
WRONG_DATA = 3


def save_as_released(path: Path) -> None:
    """Write a weights file with the tensors of the released file.

    All values are zeros. The file is small, because each tensor is stored as one number.
    """
    torch.save({"params": released_tensors(NAME)}, path)


class Server(ThreadingHTTPServer):
    """Serves the files of a folder on this machine. asked: the paths of all requests."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.asked: list[str] = []
        # For port 0 the system chooses a free port. `server_port` is its number.
        super().__init__(("127.0.0.1", 0), partial(Handler, directory=str(folder)))

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(SimpleHTTPRequestHandler):
    """Answers one request, and notes its path."""

    def do_GET(self) -> None:
        assert isinstance(self.server, Server)
        self.server.asked.append(self.path)
        super().do_GET()

    def log_message(self, format: str, *_: Any) -> None:
        """Write nothing to stderr."""


@pytest.fixture
def server(tmp_path) -> Iterator[Server]:
    """Give a running server of an empty folder. The test may write files into this folder."""
    folder = tmp_path / "released"
    folder.mkdir()
    with Server(folder) as found:  # the server
        thread = threading.Thread(target=found.serve_forever)
        thread.start()
        yield found
        found.shutdown()
        thread.join()


def make_start_folder(tmp_path: Path) -> Path:
    """Make a folder to start programs in, with a clip in it."""
    folder = tmp_path / "home"
    write_clip(folder, "mine", split="test", frames=2, h=16, w=16)
    return folder


def unanswered_address() -> str:
    """Return an address of this machine at which no server answers."""
    return f"http://127.0.0.1:{free_port()}"


def start_released(folder: Path, mirror: str) -> Ranks:
    """Start main_test_vrt.py in `folder`, with the weights vrt/006 and a noise level.

    If the program gets the weights, it ends with REFUSAL_OF_READ_WEIGHTS, and restores no frame.
    mirror: address of the server from which the program fetches the weights.
    """
    clip = ("--input", folder / "GOPRO_Large/test/mine/blur", "--output", folder / "out")
    arguments = ("--weights", "vrt/006", *clip, "--sigma", "9")
    return Ranks(1, ROOT / "main_test_vrt.py", *arguments, env={MIRROR: mirror}, cwd=folder)


def run_to_end(folder: Path, mirror: str) -> RankResult:
    """Start the program of `start_released`, and wait for its end."""
    with start_released(folder, mirror) as program:
        return program.wait(120)


def advice_of(text: str) -> str:
    """Return the advice of an error: the text after its last "do", e.g. "download it on ..."."""
    _, _, advice = text.rpartition("  do ")
    return advice.strip()


def left_in(folder: Path) -> list[str]:
    """Return the names of all downloaded files, including unfinished ones."""
    return sorted(path.name for path in (folder / "model_zoo").rglob("*") if path.is_file())


def test_released_weights_are_fetched_once_and_then_found_without_a_network(server, tmp_path):
    save_as_released(server.folder / FILE_NAME)
    folder = make_start_folder(tmp_path)

    first = run_to_end(folder, server.address)
    again = run_to_end(folder, unanswered_address())

    assert f"downloading {server.address}/{FILE_NAME} to {FILE}" in first.text
    for result in (first, again):
        assert REFUSAL_OF_READ_WEIGHTS in result.text, result.text
    assert server.asked == [f"/{FILE_NAME}"]
    assert left_in(folder) == [FILE_NAME]


def test_a_training_starts_from_released_weights_by_name(server, tmp_path):
    save_as_released(server.folder / FILE_NAME)
    options = write_options(tmp_path / "run")

    arguments = ("--opt", options, "path.pretrained_netG=vrt/006")
    mirror = {MIRROR: server.address}
    result = run_ranks(
        1, ROOT / "main_train_vrt.py", *arguments, limit_s=120, env=mirror, cwd=tmp_path
    )

    # The options have another network, so the weights are refused. This shows that the program has
    # fetched and read the weights.
    assert result.exit_codes == [WRONG_DATA]
    assert "the weights do not fit the network" in result.text
    assert str(FILE) in result.text
    assert (tmp_path / FILE).is_file()


def test_two_processes_fetch_a_file_once(server, tmp_path):
    save_as_released(server.folder / FILE_NAME)
    folder = make_start_folder(tmp_path)

    with (
        start_released(folder, server.address) as one,
        start_released(folder, server.address) as other,
    ):
        found = [one.wait(120), other.wait(120)]

    assert all(REFUSAL_OF_READ_WEIGHTS in result.text for result in found)
    assert server.asked == [f"/{FILE_NAME}"]
    assert left_in(folder) == [FILE_NAME]


def test_without_a_network_one_line_says_what_to_do(tmp_path):
    folder = make_start_folder(tmp_path)
    mirror = unanswered_address()

    result = run_to_end(folder, mirror)

    assert result.exit_codes == [WRONG_DATA], result.text
    assert f"cannot download {mirror}/{FILE_NAME}: " in result.text
    advice = advice_of(result.text)
    assert advice.startswith("download it on a machine with a network and copy it to")
    assert str(FILE) in advice
    assert MIRROR in advice
    # The advice is the last line that the program wrote, so no traceback follows.
    assert "\n" not in advice
    assert left_in(folder) == []


def cut(path: Path) -> None:
    """Write a file whose last 1000 bytes are missing."""
    save_as_released(path)
    path.write_bytes(path.read_bytes()[:-1000])


def write_page(path: Path) -> None:
    path.write_text("<!DOCTYPE html><html>")


def write_another_network(path: Path) -> None:
    """Write weights with one tensor. The released network has a tensor of this name, too."""
    torch.save({"params": {"conv_first.weight": torch.zeros(2)}}, path)


def write_too_long(path: Path) -> None:
    """Write 300 MB of zeros, more bytes than a released file has. The file takes no space."""
    with path.open("wb") as file:
        file.truncate(300_000_000)


def write_nothing(path: Path) -> None:
    """Write no file, so that the server answers 404."""


# write: writes the file that the server has in place of the released file. words: words of the
# error.
@pytest.mark.parametrize(
    ("write", "words"),
    [
        pytest.param(write_page, "an HTML page", id="page"),
        pytest.param(cut, "its end is missing or damaged", id="cut"),
        pytest.param(
            write_another_network,
            f"what was downloaded is not {NAME}: 1 tensor, 1 of them with names of that network",
            id="other",
        ),
        pytest.param(write_too_long, "more than the", id="long"),
        pytest.param(write_nothing, "404", id="none"),
    ],
)
def test_what_is_not_the_released_file_is_refused_and_not_kept(
    write, words, server, tmp_path, monkeypatch
):
    write(server.folder / FILE_NAME)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(MIRROR, server.address)

    with pytest.raises(CheckpointError, match=words):
        file_of("vrt/006")

    assert left_in(tmp_path) == []


def test_an_unknown_name_is_refused_with_the_known_names():
    with pytest.raises(CheckpointError, match="no released weights of this name") as error:
        file_of("vrt/010")

    # The name of a network begins with its number, e.g. "006_VRT_videodeblurring_GoPro".
    known = [f"vrt/{name[:3]}" for name in sorted(RELEASED)]
    assert error.value.expected == ", ".join(known)


def test_a_file_with_the_name_of_released_weights_is_taken_instead(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "vrt").mkdir()
    (tmp_path / "vrt/006").write_bytes(b"mine")

    assert file_of("vrt/006") == Path("vrt/006")


def test_the_page_of_links_names_the_page_of_the_release():
    # ADDRESS is .../releases/download/v0.0, for files. A person reads .../releases/tag/v0.0.
    page_of_release = ADDRESS.replace("/download/", "/tag/")

    links = (ROOT / "docs/links.md").read_text(encoding="utf-8")

    assert page_of_release in links


# The networks that hubconf.py offers.
HUB_NETWORKS = ["operator", "motion", "vrt_small"]


def random_clip(spike_channels: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return frames (1, 2, 3, 32, 32) and spikes (1, 2, spike_channels, 32, 32).

    LOAD_FROM_HUB below draws the same numbers, so change both together.
    """
    frames = torch.rand(1, 2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    spike = torch.rand(1, 2, spike_channels, 32, 32, generator=torch.Generator().manual_seed(1))
    return frames, spike


# A program that loads each network, restores the clip of `random_clip` with it, and saves the
# result as NAME.pt. With pretrained=False, the network must have the same tensors with other
# values.
LOAD_FROM_HUB = f"""
import torch
for name in {HUB_NETWORKS}:
    net = torch.hub.load({str(ROOT)!r}, name, source="local")
    frames = torch.rand(1, 2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    channels = net.input_spec.spike_channels
    spike = torch.rand(1, 2, channels, 32, 32, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        torch.save(net(frames, spike), f"{{name}}.pt")
    fresh = torch.hub.load({str(ROOT)!r}, name, source="local", pretrained=False)
    assert fresh.state_dict().keys() == net.state_dict().keys()
    assert any(not torch.equal(a, b) for a, b in zip(fresh.parameters(), net.parameters()))
"""


@pytest.fixture(scope="module")
def from_hub(tmp_path_factory) -> Path:
    """Run the program LOAD_FROM_HUB in a new folder, and give the folder with its results."""
    folder = tmp_path_factory.mktemp("hub")
    program = folder / "program.py"
    program.write_text(LOAD_FROM_HUB)
    result = run_ranks(1, program, limit_s=120, cwd=folder)
    assert result.exit_codes == [0], result.text
    return folder


@pytest.mark.parametrize("name", HUB_NETWORKS)
def test_torch_hub_gives_the_shipped_networks(name, from_hub):
    saved = read_saved(ROOT / f"weights/{name}.pth")
    frames, spike = random_clip(saved.spec.spike_channels)

    with torch.no_grad():
        expected = saved.build()(frames, spike)

    assert torch.allclose(torch.load(from_hub / f"{name}.pt"), expected, atol=1e-6)

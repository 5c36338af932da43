"""Weights files of other programs: what is taken from them, and files that are something else.

The front door is main_test_vrt.py, which restores a clip of four frames with the weights. A file
that is no weights file is refused with what it is, and with what to do.
"""

import gzip
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from models.portable import read_weights
from tests.dist.launching import run_ranks
from tests.helpers.clip_files import write_clip
from tests.helpers.weights_files import make_home, metrics, restore


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    """Give a folder with the weights "rgb.pth" and a clip of four frames to restore."""
    folder = make_home(tmp_path_factory.mktemp("home"))
    write_clip(folder, "mine", split="test", frames=4, h=16, w=16)
    return folder


def clip_of(home: Path) -> tuple[str, ...]:
    """Return the arguments that name the clip."""
    frames = home / "GOPRO_Large/test/mine"
    return "--input", str(frames / "blur"), "--gt", str(frames / "sharp")


def zip_of(path: Path, *names: str) -> None:
    """Write a zip file with files of these names."""
    with zipfile.ZipFile(path, "w") as archive:
        for name in names:
            archive.writestr(name, b"content")


def cut_in_half(path: Path) -> None:
    """Write weights, and keep the first 2000 bytes of the file."""
    torch.save({"params": {"a": torch.zeros(1000)}}, path)
    path.write_bytes(path.read_bytes()[:2000])


WRONG: dict[str, tuple[Callable[[Path], object], str, str]] = {
    "page": (
        lambda path: path.write_bytes(b"\n\n<!DOCTYPE html>\n<html lang=en><head>"),
        "an HTML page", "/releases/download/",
    ),
    "pointer": (
        lambda path: path.write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:0"),
        "a pointer of Git LFS", "git lfs pull",
    ),
    "zip": (
        lambda path: zip_of(path, "release/readme.txt", "release/006_VRT.pth"),
        "a zip file around release/006_VRT.pth", "unzip it and give release/006_VRT.pth",
    ),
    "other zip": (
        lambda path: zip_of(path, "a.png", "b.png"),
        "a zip file of 2 files, none of them weights", "give the .pth",
    ),
    "half": (cut_in_half, "its end is missing or damaged", "download it again"),
    "json": (lambda path: path.write_text('{"message": "Not Found"}'), "JSON text", "download it"),
    "empty": (lambda path: path.touch(), "an empty file", "download it again"),
    "zeros": (lambda path: path.write_bytes(bytes(5000)), "a file of zeros", "download it again"),
    "gzip": (lambda path: path.write_bytes(gzip.compress(b"x")), "compressed with gzip", "unpack"),
    "safetensors": (
        lambda path: path.write_bytes(b'\x08\0\0\0\0\0\0\0{"a":{}}'),
        "a safetensors file", "torch.save",
    ),
    "object": (
        lambda path: torch.save({"params": {}, "args": Path("x")}, path),
        "it holds an object of pathlib.", "save its state dict alone",
    ),
    "array": (
        lambda path: torch.save({"params": {}, "psnr": np.zeros(3)}, path),
        "multiarray._reconstruct", "save its state dict alone",
    ),
    "text": (
        lambda path: path.write_text("hello"),
        "a file that torch.load does not read", "download or export it again",
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", WRONG)
def test_a_file_of_something_else_is_named_for_what_it_is(kind, home, tmp_path):
    write, what, do = WRONG[kind]
    write(tmp_path / "006_VRT.pth")

    weights = ("--weights", str(tmp_path / "006_VRT.pth"))
    result = run_ranks(
        1, "main_test_vrt.py", *weights, *clip_of(home), "--output", str(tmp_path / "out")
    )

    assert result.exit_codes == [3], result.text
    first, *_, last = result.text.strip().splitlines()
    assert first.startswith("CheckpointError: not a weights file: ")
    assert what in first
    assert last.startswith("  do ")
    assert do in last
    assert not (tmp_path / "out").exists()


# Training programs save such numbers beside the weights, e.g. the best PSNR. torch refuses them as
# it refuses any object, although they are harmless.
SCALARS = [
    np.float64(31.25), np.float32(0.5), np.float16(2), np.int64(-7), np.uint8(200), np.bool_(True),
    np.dtype(">f8").type(3),
]  # fmt: skip


def test_numbers_of_numpy_beside_the_tensors_are_no_hindrance(home, tmp_path):
    state = torch.load(home / "rgb.pth", weights_only=True)
    torch.save({**state, "best": SCALARS, "iter": np.int64(5)}, tmp_path / "new.pth")
    torch.save(
        {**state, "best": SCALARS}, tmp_path / "old.pth", _use_new_zipfile_serialization=False
    )

    restore("--weights", home / "rgb.pth", *clip_of(home), "--output", tmp_path / "own")
    scores = metrics(tmp_path / "own")["clips"]["mine"]["per_frame"]
    for name in ("new", "old"):
        path = tmp_path / f"{name}.pth"
        restore("--weights", path, *clip_of(home), "--output", tmp_path / name)
        assert metrics(tmp_path / name)["clips"]["mine"]["per_frame"] == scores
    # What torch allows the rest of the process is as before.
    assert "numpy" not in str(torch.serialization.get_safe_globals())


@pytest.mark.parametrize("value", [np.complex128(1j), np.datetime64("2020-01-01"), np.str_("a")])
def test_a_scalar_that_is_no_number_is_refused(value, tmp_path):
    torch.save({"params": {"a": torch.zeros(1)}, "best": value}, tmp_path / "w.pth")

    with pytest.raises(Exception, match="not a weights file"):
        read_weights(tmp_path / "w.pth")


def test_two_threads_read_files_with_numbers_of_numpy_at_once(tmp_path):
    torch.save({"params": {"a": torch.ones(1)}, "best": SCALARS}, tmp_path / "w.pth")
    found: list[int] = []

    def read_often() -> None:
        for _ in range(100):
            found.append(len(read_weights(tmp_path / "w.pth")))

    threads = [threading.Thread(target=read_often) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [1] * 400


@pytest.mark.parametrize("around", [
    "_orig_mod.{}", "module.{}", "module._orig_mod.{}", "_orig_mod.module.{}",
])  # fmt: skip
def test_names_of_compiled_and_distributed_networks_are_taken(around, home, tmp_path):
    state = torch.load(home / "rgb.pth", weights_only=True)
    state["params"] = {around.format(key): value for key, value in state["params"].items()}
    torch.save(state, tmp_path / "w.pth")

    restore("--weights", tmp_path / "w.pth", *clip_of(home), "--output", tmp_path / "out")

    assert metrics(tmp_path / "out")["clips"]


def test_names_of_blocks_compiled_one_by_one_are_taken(home, tmp_path):
    state = torch.load(home / "rgb.pth", weights_only=True)["params"]
    named = {key.replace("stage1.", "stage1._orig_mod."): value for key, value in state.items()}
    assert named.keys() != state.keys()
    torch.save({"params": named}, tmp_path / "w.pth")

    assert read_weights(tmp_path / "w.pth").keys() == state.keys()

"""Weights files of other programs: what is read from them, and files that are something else.

Most tests run main_test_vrt.py. It restores a clip of four frames with the weights. If a file is no
weights file, the error says what the file is, and what the user can do.
"""

import gzip
import threading
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

from models.weights_file import read_weights
from tests.dist.launching import run_ranks
from tests.helpers.clip_files import write_clip
from tests.helpers.weights_files import make_home, read_metrics, restore


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


# ---- Files that are something else ----

# Each function writes something that is no weights file to a path.


def write_page(path: Path) -> None:
    path.write_bytes(b"\n\n<!DOCTYPE html>\n<html lang=en><head>")


def write_pointer_of_git_lfs(path: Path) -> None:
    path.write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:0")


def write_zip(path: Path, *names: str) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for name in names:
            archive.writestr(name, b"content")


def write_zip_around_weights(path: Path) -> None:
    write_zip(path, "release/readme.txt", "release/006_VRT.pth")


def write_zip_of_pictures(path: Path) -> None:
    write_zip(path, "a.png", "b.png")


def write_half(path: Path) -> None:
    torch.save({"params": {"a": torch.zeros(1000)}}, path)
    path.write_bytes(path.read_bytes()[:2000])


def write_json(path: Path) -> None:
    path.write_text('{"message": "Not Found"}')


def write_nothing(path: Path) -> None:
    path.touch()


def write_zeros(path: Path) -> None:
    path.write_bytes(bytes(5000))


def write_gzip(path: Path) -> None:
    path.write_bytes(gzip.compress(b"x"))


def write_safetensors(path: Path) -> None:
    # The file begins with the length of its header in eight bytes: 8, the lowest byte first. Then
    # comes the header, 8 characters of JSON.
    path.write_bytes(b'\x08\0\0\0\0\0\0\0{"a":{}}')


def write_object_of_python(path: Path) -> None:
    torch.save({"params": {}, "args": Path("x")}, path)


def write_array_of_numpy(path: Path) -> None:
    # A pickle stores an array as a call of numpy's function multiarray._reconstruct. torch does not
    # run functions of other packages when it reads weights.
    torch.save({"params": {}, "psnr": np.zeros(3)}, path)


def write_text(path: Path) -> None:
    path.write_text("hello")


@dataclass(frozen=True)
class Wrong:
    """A file that is no weights file."""

    write: Callable[[Path], None]
    # Words of the error: what the file is, and what to do.
    what: str
    do: str


# `what` and `do` are parts of the lines of the error. E.g. the advice for "page" is to download the
# file from an address that contains "/releases/download/". "multiarray._reconstruct" is the
# function of NumPy that torch.load refuses to call.
WRONG = {
    "page": Wrong(write_page, "an HTML page", "/releases/download/"),
    "pointer": Wrong(write_pointer_of_git_lfs, "a pointer of Git LFS", "git lfs pull"),
    "zip": Wrong(
        write_zip_around_weights,
        "a zip file around release/006_VRT.pth",
        "unzip it and give release/006_VRT.pth",
    ),
    "other zip": Wrong(
        write_zip_of_pictures, "a zip file of 2 files, none of them weights", "give the .pth"
    ),
    "half": Wrong(write_half, "its end is missing or damaged", "download it again"),
    "json": Wrong(write_json, "JSON text", "download it"),
    "empty": Wrong(write_nothing, "an empty file", "download it again"),
    "zeros": Wrong(write_zeros, "a file of zeros", "download it again"),
    "gzip": Wrong(write_gzip, "compressed with gzip", "unpack"),
    "safetensors": Wrong(write_safetensors, "a safetensors file", "torch.save"),
    "object": Wrong(
        write_object_of_python, "it holds an object of pathlib.", "save only its state dict"
    ),
    "array": Wrong(write_array_of_numpy, "multiarray._reconstruct", "save only its state dict"),
    "text": Wrong(
        write_text, "a file that torch.load does not read", "download or export it again"
    ),
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
def test_a_file_of_something_else_is_named_for_what_it_is(wrong, home, tmp_path):
    path = tmp_path / "006_VRT.pth"
    out = tmp_path / "out"
    wrong.write(path)

    command = ["--weights", str(path), *clip_of(home), "--output", str(out)]
    result = run_ranks(1, "main_test_vrt.py", *command)

    # 3 is the exit code of CheckpointError (utils/errors.py).
    assert result.exit_codes == [3], result.text
    lines = result.text.strip().splitlines()
    assert lines[0].startswith("CheckpointError: not a weights file: ")
    assert wrong.what in lines[0]
    assert lines[-1].startswith("  do ")
    assert wrong.do in lines[-1]
    assert not out.exists()


# ---- Numbers of NumPy ----

# Training programs save numbers of NumPy beside the weights, e.g. the best PSNR. These numbers are
# harmless. But torch refuses each object of an unknown class, and NumPy's numbers are such objects.
SCALARS = [
    np.float64(31.25),
    np.float32(0.5),
    np.float16(2),
    np.int64(-7),
    np.uint8(200),
    np.bool_(True),
    np.dtype(">f8").type(3),  # most significant byte first
]


@pytest.mark.parametrize(
    "is_zip",
    [
        pytest.param(True, id="zip"),
        pytest.param(False, id="form of torch before 1.6", marks=pytest.mark.slow),
    ],
)
def test_numbers_of_numpy_beside_the_tensors_are_no_hindrance(home, tmp_path, is_zip):
    state = torch.load(home / "rgb.pth", weights_only=True)
    with_numbers = {**state, "best": SCALARS, "iter": np.int64(5)}
    torch.save(with_numbers, tmp_path / "w.pth", _use_new_zipfile_serialization=is_zip)

    scores = {}
    for name, weights in (("without", home / "rgb.pth"), ("with", tmp_path / "w.pth")):
        restore("--weights", weights, *clip_of(home), "--output", tmp_path / name)
        scores[name] = read_metrics(tmp_path / name)["clips"]["mine"]["per_frame"]

    assert scores["with"] == scores["without"]
    # While our program reads a file, it adds numbers of NumPy to torch's list of allowed names. The
    # list is valid for the whole process, so these names must be removed afterwards.
    assert "numpy" not in str(torch.serialization.get_safe_globals())


@pytest.mark.parametrize("value", [np.complex128(1j), np.datetime64("2020-01-01"), np.str_("a")])
def test_a_scalar_that_is_no_number_is_refused(value, tmp_path):
    torch.save({"params": {"a": torch.zeros(1)}, "best": value}, tmp_path / "w.pth")

    with pytest.raises(Exception, match="not a weights file"):
        read_weights(tmp_path / "w.pth")


def test_two_threads_read_files_with_numbers_of_numpy_at_once(tmp_path):
    # torch has one list of allowed names for the whole process. Without a lock, threads that change
    # the list at the same time would disturb one another.
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

    # 4 threads read 100 times each. Each read found the one tensor.
    assert found == [1] * 400


# ---- Names of wrapped networks ----


# torch.compile puts "_orig_mod." before each name, and DistributedDataParallel puts "module."
# before each name.
@pytest.mark.parametrize(
    "prefix", ["_orig_mod.", "module.", "module._orig_mod.", "_orig_mod.module."]
)
def test_names_of_compiled_and_distributed_networks_are_taken(prefix, home, tmp_path):
    state = torch.load(home / "rgb.pth", weights_only=True)
    state["params"] = {prefix + name: value for name, value in state["params"].items()}
    torch.save(state, tmp_path / "w.pth")

    restore("--weights", tmp_path / "w.pth", *clip_of(home), "--output", tmp_path / "out")

    assert read_metrics(tmp_path / "out")["clips"]


def test_names_of_blocks_compiled_one_by_one_are_taken(home, tmp_path):
    weights = torch.load(home / "rgb.pth", weights_only=True)["params"]
    renamed = {}
    for name, value in weights.items():
        renamed[name.replace("stage1.", "stage1._orig_mod.")] = value
    assert renamed.keys() != weights.keys()
    torch.save({"params": renamed}, tmp_path / "w.pth")

    assert read_weights(tmp_path / "w.pth").keys() == weights.keys()

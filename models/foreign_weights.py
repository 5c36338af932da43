"""Reads weights files that other programs wrote, and says what a file is that holds no weights.

`load_content` reads what torch.save wrote, without running code from the file: it accepts plain
types, tensors and NumPy scalars. `no_weights` makes the error for every other file. The error says
what the file is, e.g. an HTML page in place of a download.

A weights file may come from anywhere, so no type may be added to those that are read unless making
it runs no code from the file.

Tests: tests/parts/models/test_foreign_weights.py, test_hostile_weights.py, test_any_weights.py
"""

import re
import threading
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from utils.errors import CheckpointError
from utils.run import checkpoint
from utils.run.torch_file import RefusedFile, load_plain

DOWNLOAD = "download it again"
# First bytes of a file (a regular expression) -> what it is, and what to do. A .pth itself is a zip
# file, or a pickle if torch was older than 1.6.
MARKS = {
    rb"version https://git-lfs": (
        "a pointer of Git LFS, whose file was not fetched",
        "run `git lfs pull` in its repository, or download the file itself",
    ),
    rb"(\xef\xbb\xbf)?\s*<(!doctype|html|\?xml|head)": (
        "an HTML page, as a browser shows it",
        "download the file that the page shows or links to: at GitHub it has /raw/ or "
        "/releases/download/ in it",
    ),
    rb"\s*[{\[]\s*[\"}\]]": ("JSON text", DOWNLOAD),
    rb".{8}\{\"": ("a safetensors file", "save its tensors with torch.save as a .pth"),
    rb"\x93NUMPY": ("a NumPy array (.npy)", "give the .pth"),
    rb"\x1f\x8b": ("a file compressed with gzip", "unpack it and give the .pth in it"),
    rb"(\xfd7zXZ\x00|7z\xbc\xaf\x27\x1c|Rar!\x1a\x07)": (
        "an archive (xz, 7z or RAR)",
        "unpack it and give the .pth in it",
    ),
    rb"\x00+$": ("a file of zeros, as a broken download or a full disk leaves it", DOWNLOAD),
    rb"$": ("an empty file", DOWNLOAD),
}
SUFFIXES = (".pth", ".pt", ".ckpt", ".pkl", ".bin", ".safetensors")
# A pickle names the function that makes a NumPy scalar. The first name is that of NumPy 2.
SCALAR_NAMES = ("numpy._core.multiarray.scalar", "numpy.core.multiarray.scalar")
# The message of torch.load about an object of another program, e.g. "GLOBAL lightning.Trainer was
# not an allowed global".
NOT_ALLOWED = re.compile(r"GLOBAL (\S+) was not an allowed global")

# A lock that is held while a file is read, because torch's list of allowed names belongs to the
# whole process. See load_content.
_taking_scalars = threading.Lock()


class _ScalarType:
    """Stands for numpy.dtype in a pickle: the type of a scalar by its name and byte order."""

    def __init__(self, name: str, *_: object) -> None:
        self.name = name  # e.g. "f8"
        self.order = "="  # byte order: "=" own, "<" little, ">" big, "|" none

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.order = state[1]  # the place of the byte order in NumPy's own state


def _scalar(kind: _ScalarType, data: bytes) -> float | int | bool:
    """Stand for the function in a pickle that makes a NumPy scalar, and return a Python number.

    NumPy's own functions are never called with the state of a pickle.
    """
    name = kind.order + kind.name  # e.g. "<f8"
    # Bool, integers and floats. Other types, such as objects, are refused.
    if not re.fullmatch(r"[<>|=](b1|[iu][1248]|f[248])", name):
        raise ValueError(f"a NumPy scalar of type {name}")
    return np.frombuffer(data, name, count=1)[0].item()


def load_content(path: Path, mmap: bool = False) -> Any:
    """Read what torch.save wrote to `path`: plain types, and tensors on the CPU.

    NumPy scalars become numbers of Python. mmap: whether tensors are read when they are used.

    Raises CheckpointError that says what the file is instead.
    """
    # Pairs of our stand-in, and the name in a pickle that it replaces.
    stand_ins: list[Any] = [(_ScalarType, "numpy.dtype")]
    for name in SCALAR_NAMES:
        stand_ins.append((_scalar, name))
    try:
        # torch keeps one list of allowed names for the process. Without the lock, a thread could
        # remove the names while another thread still reads with them.
        with _taking_scalars:
            # First without the stand-ins, because few files hold NumPy scalars.
            try:
                return load_plain(path, mmap)
            except checkpoint.UNREADABLE as e:
                if not any(name in str(e) for name in SCALAR_NAMES):
                    raise
            with torch.serialization.safe_globals(stand_ins):
                return load_plain(path, mmap)
    except checkpoint.UNREADABLE as e:
        raise no_weights(path, e) from e


def no_weights(path: Path, error: Exception) -> CheckpointError:
    """Make the error about a file that torch.load did not read, which says what the file is."""
    expected = "a file written by torch.save that holds tensors only"
    if isinstance(error, OSError):
        return CheckpointError(f"cannot read it: {error.strerror}", str(path), expected, DOWNLOAD)
    if isinstance(error, MemoryError):
        return CheckpointError("the memory does not hold it", str(path), expected, "free some")
    if isinstance(error, RefusedFile):
        return CheckpointError(f"not a weights file: {error}", str(path), expected, DOWNLOAD)
    what, do = _seen(path, error)
    return CheckpointError(f"not a weights file: {what}", str(path), expected, do)


def _seen(path: Path, error: Exception) -> tuple[str, str]:
    """Return what a file is that torch.load did not read, and what to do.

    E.g. ("an empty file", "download it again").
    """
    unknown = ("a file that torch.load does not read", "download or export it again")
    with path.open("rb") as file:
        head = file.read(512)
    if head.startswith(b"PK\x03\x04"):  # a zip file
        return _seen_in_zip(path, error) or unknown
    found = NOT_ALLOWED.search(str(error))
    if found:
        return _seen_object(found[1])
    for mark, seen in MARKS.items():
        if re.match(mark, head, re.DOTALL | re.IGNORECASE):
            return seen
    return unknown


def _seen_in_zip(path: Path, error: Exception) -> tuple[str, str] | None:
    """Return what a zip file is that torch.load did not read, and what to do.

    Returns None if the file shows no cause.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
    except (zipfile.BadZipFile, ValueError, OSError, NotImplementedError):
        return "it begins like one, but its end is missing or damaged", DOWNLOAD
    if any(name.endswith("data.pkl") for name in names):  # torch.save wrote it
        found = NOT_ALLOWED.search(str(error))
        return _seen_object(found[1]) if found else None
    inside = [name for name in names if name.endswith(SUFFIXES)]
    if inside:
        more = f" and {len(inside) - 1} more" if len(inside) > 1 else ""
        return f"a zip file around {inside[0]}{more}", f"unzip it and give {inside[0]}"
    return f"a zip file of {len(names)} files, none of them weights", "give the .pth"


def _seen_object(name: str) -> tuple[str, str]:
    """Return what a file with an object of another program is, and what to do.

    name: the dotted name of the object's class.
    """
    return (
        f"it holds an object of {name} beside its tensors, which could run any code",
        "save its state dict alone, where you trust it: "
        'torch.save(torch.load(FILE, weights_only=False)["params"], "new.pth")',
    )

"""Read weights files that other programs wrote, and say what a file is that holds no weights.

models/weights_file.py calls `load_content`, which reads what torch.save wrote. `load_content`
accepts plain types, tensors and NumPy scalars, and runs no code from the file. `no_weights` makes
the error for every other file. The error says what the file is, e.g. "an HTML page, as a browser
shows it" in place of a download. A .pth is a zip file, or a pickle if torch was older than 1.6.

What must stay: a weights file may come from anywhere, so reading it must run no code from the file
(test_a_small_pickle_that_would_take_much_memory_or_time_is_refused,
test_a_scalar_that_is_no_number_is_refused). A type may be added to the types that are read only if
making it runs no such code. Free to change: MARKS, the descriptions of files that are no weights,
because the descriptions are only shown in errors.

Tests: tests/parts/models/test_foreign_weights.py, test_hostile_weights.py, test_any_weights.py
"""

import re
import threading
import zipfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from utils.errors import CheckpointError
from utils.run import checkpoint
from utils.run.torch_file import RefusedFile, load_plain

# A pickle names the function that makes a NumPy scalar, by the name in NumPy 2 or in NumPy 1.
SCALAR_NAMES = ("numpy._core.multiarray.scalar", "numpy.core.multiarray.scalar")
# `load_content` holds this lock while it reads a file, because torch's list of allowed names
# belongs to the whole process.
_lock_of_allowed_names = threading.Lock()


def load_content(path: Path) -> Any:
    """Read what torch.save wrote to `path`: plain types, and tensors on the CPU.

    NumPy scalars become numbers of Python.

    Raises CheckpointError, which says what the file is, if the file is something else.
    """
    try:
        # Without the lock, a thread could remove names while another thread still reads with them.
        with _lock_of_allowed_names:
            return _load_with_scalars(path)
    except checkpoint.UNREADABLE as e:
        raise no_weights(path, e) from e


def _load_with_scalars(path: Path) -> Any:
    """Read a file as `load_plain` does, but also a file that holds NumPy scalars."""
    # Few files hold NumPy scalars. `load_plain` refuses such a file, and the text of torch's error
    # names the function that makes the scalar. If torch changes this text,
    # test_numbers_of_numpy_beside_the_tensors_are_no_hindrance fails.
    try:
        return load_plain(path)
    except checkpoint.UNREADABLE as e:
        has_scalars = any(name in str(e) for name in SCALAR_NAMES)
        if not has_scalars:
            raise
    # Read the file again. If the pickle names one of NumPy's functions, torch now calls a stand-in,
    # which is a class or function of this file. Each entry is (stand-in, name in the pickle).
    stand_ins: list[Any] = [(_ScalarType, "numpy.dtype")]
    for name in SCALAR_NAMES:
        stand_ins.append((_scalar, name))
    with torch.serialization.safe_globals(stand_ins):
        return load_plain(path)


# ---- NumPy scalars -------------------------------------------------------------------------


class _ScalarType:
    """Takes the place of numpy.dtype in a pickle: the type of a scalar, by name and byte order.

    torch.load calls the class with the arguments that the pickle has for numpy.dtype.
    """

    def __init__(self, name: str, *_: object) -> None:
        # The other arguments of numpy.dtype do not change which type it is.
        self.name = name  # e.g. "f8", a float of 8 bytes
        # Byte order: "=" as on this machine, "<" little, ">" big, "|" none.
        self.order = "="

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        """Take the state that NumPy has written for a dtype. Item 1 is the byte order."""
        self.order = state[1]


def _scalar(kind: _ScalarType, data: bytes) -> float | int | bool:
    """Return the Python number of a NumPy scalar in a pickle.

    torch.load calls this instead of NumPy's own function, because the data of the pickle may be
    hostile.

    kind: the type of the scalar.
    data: the bytes of the scalar.

    Raises ValueError for a scalar that is no number, e.g. an object.
    """
    type_name = kind.order + kind.name  # e.g. "<f8"
    # The byte order, then the type and its number of bytes: bool (b1), integers (e.g. i4, u8) and
    # floats (e.g. f8). Other types, such as objects, are refused.
    if not re.fullmatch(r"[<>|=](b1|[iu][1248]|f[248])", type_name):
        raise ValueError(f"a NumPy scalar of type {type_name}")
    array = np.frombuffer(data, type_name, count=1)
    return array[0].item()


# ---- What a file is that holds no weights ----------------------------------------------------


class _Kind(NamedTuple):
    """What a file is, in words, and what to do. E.g. "an empty file", "download it again"."""

    what: str
    do: str


# Advice in several errors.
DOWNLOAD = "download it again"
# First bytes of a file, as a regular expression -> the kind of the file. The first expression that
# matches wins, so an empty file (`$`) comes last.
MARKS = {
    rb"version https://git-lfs": _Kind(
        "a pointer of Git LFS, whose file was not fetched",
        "run `git lfs pull` in its repository, or download the file itself",
    ),
    # Perhaps the three bytes that mark UTF-8, perhaps spaces, then a tag.
    rb"(\xef\xbb\xbf)?\s*<(!doctype|html|\?xml|head)": _Kind(
        "an HTML page, as a browser shows it",
        "download the file that the page shows or links to: at GitHub it has /raw/ or "
        "/releases/download/ in it",
    ),
    # A bracket, then a quotation mark or a closing bracket: {"a..., ["a..., {} or [].
    rb"\s*[{\[]\s*[\"}\]]": _Kind("JSON text", DOWNLOAD),
    # Eight bytes with the length of the header, then the header in JSON.
    rb".{8}\{\"": _Kind("a safetensors file", "save its tensors with torch.save as a .pth"),
    rb"\x93NUMPY": _Kind("a NumPy array (.npy)", "give the .pth"),
    rb"\x1f\x8b": _Kind("a file compressed with gzip", "unpack it and give the .pth in it"),
    rb"(\xfd7zXZ\x00|7z\xbc\xaf\x27\x1c|Rar!\x1a\x07)": _Kind(
        "an archive (xz, 7z or RAR)",
        "unpack it and give the .pth in it",
    ),
    rb"\x00+$": _Kind("a file of zeros, as a broken download or a full disk leaves it", DOWNLOAD),
    rb"$": _Kind("an empty file", DOWNLOAD),
}
# Endings of weights files. `_kind_of_zip` looks for files with these endings in a zip file.
SUFFIXES = (".pth", ".pt", ".ckpt", ".pkl", ".bin", ".safetensors")
# The message of torch.load about an object of another program, e.g. "GLOBAL lightning.Trainer was
# not an allowed global". If torch changes this message,
# test_a_file_of_something_else_is_named_for_what_it_is fails.
NOT_ALLOWED = re.compile(r"GLOBAL (\S+) was not an allowed global")


def no_weights(path: Path, error: Exception) -> CheckpointError:
    """Return an error that says what a file is that torch.load did not read."""
    expected = "a file written by torch.save that holds tensors only"
    if isinstance(error, OSError):
        what = f"cannot read it: {error.strerror}"
        do = DOWNLOAD
    elif isinstance(error, MemoryError):
        what = "the file does not fit into the memory"
        do = "free some memory"
    elif isinstance(error, RefusedFile):
        what = f"not a weights file: {error}"
        do = DOWNLOAD
    else:
        kind = _kind_of(path, error)
        what = f"not a weights file: {kind.what}"
        do = kind.do
    return CheckpointError(what=what, where=str(path), expected=expected, do=do)


def _kind_of(path: Path, error: Exception) -> _Kind:
    """Find out what a file is that torch.load did not read.

    error: what torch.load raised.
    """
    unknown = _Kind("a file that torch.load does not read", "download or export it again")
    with path.open("rb") as file:
        head = file.read(512)  # enough for each expression of MARKS
    if head.startswith(b"PK\x03\x04"):  # a zip file
        kind_of_zip = _kind_of_zip(path, error)
        return unknown if kind_of_zip is None else kind_of_zip
    # torch.load names the class of an object that it does not read.
    not_allowed = NOT_ALLOWED.search(str(error))
    if not_allowed:
        class_name = not_allowed[1]
        return _kind_with_object(class_name)
    for mark, kind in MARKS.items():
        if re.match(mark, head, re.DOTALL | re.IGNORECASE):
            return kind
    return unknown


def _kind_of_zip(path: Path, error: Exception) -> _Kind | None:
    """Find out what a zip file is that torch.load did not read. Returns None if nothing is known.

    error: what torch.load raised.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
    except (zipfile.BadZipFile, ValueError, OSError, NotImplementedError):
        return _Kind("a zip file, but its end is missing or damaged", DOWNLOAD)
    is_of_torch = any(name.endswith("data.pkl") for name in names)  # torch.save wrote it
    if is_of_torch:
        not_allowed = NOT_ALLOWED.search(str(error))
        if not_allowed is None:
            return None
        return _kind_with_object(class_name=not_allowed[1])
    # Somebody has packed files into a zip file: look for weights among them.
    inside = [name for name in names if name.endswith(SUFFIXES)]
    if inside:
        more = f" and {len(inside) - 1} more" if len(inside) > 1 else ""
        return _Kind(f"a zip file around {inside[0]}{more}", f"unzip it and give {inside[0]}")
    return _Kind(f"a zip file of {len(names)} files, none of them weights", "give the .pth")


def _kind_with_object(class_name: str) -> _Kind:
    """Return the kind of a file that holds an object of another program.

    class_name: the dotted name of the object's class, e.g. "lightning.Trainer".
    """
    return _Kind(
        f"it holds an object of {class_name} besides its tensors, which could run any code",
        "save only its state dict, where you trust it: "
        'torch.save(torch.load(FILE, weights_only=False)["params"], "new.pth")',
    )

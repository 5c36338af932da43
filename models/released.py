"""Weights that the authors of VRT have released, by number: "vrt/006" is fetched once.

The files are not part of this project and have a licence of their own (docs/links.md).
"""

import fcntl
import logging
import os
import re
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Collection, Generator
from contextlib import contextmanager
from http.client import HTTPException
from pathlib import Path

from utils.dist import watchdog
from utils.errors import CheckpointError
from utils.files import temporary_beside, writing

logger = logging.getLogger(__name__)

# Where the files are; MIRROR names another folder with the same files.
ADDRESS = "https://github.com/JingyunLiang/VRT/releases/download/v0.0"
MIRROR = "SPIKEVRT_RELEASES"
FOLDER = Path("model_zoo/vrt")  # as the option files of KAIR have it
NAME = re.compile(r"vrt/(\d{3})")
# Seconds without a byte that end a download; bytes that are read at a time.
PATIENCE_S, PART = 60, 1 << 20
WAIT_S = 0.2  # between two looks whether another process has finished


def is_name(text: str) -> bool:
    """Return whether a text names released weights and no file: "vrt/006"."""
    return NAME.fullmatch(text) is not None and not Path(text).is_file()


def local_file(
    text: str,
    released: Collection[str],
    most_bytes: Callable[[str], int],
    check: Callable[[Path, str], object],
) -> Path:
    """Return the path of weights: of a file, `text` itself; of a name, its file in FOLDER.

    A file that is not there is fetched. Several processes fetch it once.

    released: stems of the released files. most_bytes: function of a stem, the size above which it
        is not that file. check: function of a file and its stem that raises CheckpointError if it
        holds other tensors.

    Raises CheckpointError if the name is unknown, or the file cannot be had.
    """
    if not is_name(text):
        return Path(text)
    number = text.rpartition("/")[2]
    stem = next((stem for stem in released if stem.startswith(f"{number}_")), None)
    if stem is None:
        known = ", ".join(f"vrt/{stem[:3]}" for stem in sorted(released))
        raise CheckpointError(
            "no released weights of this name", text, known, "choose one, or give a file"
        )
    file = FOLDER / f"{stem}.pth"
    if not file.is_file():
        with writing(file), _one_at_a_time(file):
            if not file.is_file():  # another process may have fetched it
                _fetch(text, file, most_bytes(stem), check)
    return file


def _fetch(text: str, file: Path, most: int, check: Callable[[Path, str], object]) -> None:
    """Download a file, check it, and give it its name."""
    address = f"{os.environ.get(MIRROR, ADDRESS).rstrip('/')}/{file.name}"
    logger.info("downloading %s to %s", address, file)
    part = temporary_beside(file)
    try:
        try:
            _download(address, part, most)
        except (
            urllib.error.URLError,
            HTTPException,
            ConnectionError,
            TimeoutError,
            ValueError,
        ) as e:
            raise CheckpointError(
                what=f"cannot download {address}: {e}",
                where=text,
                expected=f"the file {file}, or a network to fetch it",
                do=f"download it on a machine with a network and copy it to {file}, or set "
                f"{MIRROR} to the address of a mirror",
            ) from e
        check(part, file.stem)
        os.replace(part, file)
    finally:
        part.unlink(missing_ok=True)


def _download(address: str, part: Path, most: int) -> None:
    """Write what an address gives to a new file. Raises ValueError if it is cut or too long."""
    with urllib.request.urlopen(address, timeout=PATIENCE_S) as answer, part.open("xb") as file:
        expected = answer.headers.get("Content-Length")
        written = 0
        while piece := answer.read(PART):
            written += len(piece)
            if written > most:
                raise ValueError(f"more than the {most} bytes of these weights")
            file.write(piece)
            watchdog.go_on()
    if expected is not None and written != int(expected):
        raise ValueError(f"{written} of {expected} bytes came")


@contextmanager
def _one_at_a_time(file: Path) -> Generator[None]:
    """Hold the lock of a file that is fetched, among the processes of this machine."""
    file.parent.mkdir(parents=True, exist_ok=True)
    path = file.with_name(f".{file.name}.lock")
    with path.open("w") as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                watchdog.go_on()
                time.sleep(WAIT_S)
        try:
            yield
        finally:
            path.unlink(missing_ok=True)

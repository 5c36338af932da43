"""Fetches the weights that the authors of VRT have released.

In place of a file, a user may name released weights by their number, e.g. "vrt/006" for
model_zoo/vrt/006_VRT_videodeblurring_GoPro.pth. `local_file` returns the file, and fetches it if it
is not there. The files are not part of this project and have a licence of their own
(docs/links.md).

Several processes may ask for the same file at once. A file under its final name is always complete
and checked.

Tests: tests/parts/models/test_released.py
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

# Where the files are. The environment variable MIRROR may name another address with the same files.
ADDRESS = "https://github.com/JingyunLiang/VRT/releases/download/v0.0"
MIRROR = "SPIKEVRT_RELEASES"
# Where fetched files are kept, as the option files of KAIR have it.
FOLDER = Path("model_zoo/vrt")
NAME = re.compile(r"vrt/(\d{3})")
# Seconds without a byte after which a download is given up.
PATIENCE_S = 60
# Bytes that are read at a time.
PART = 1 << 20
# Seconds between two attempts to get the lock of a file that another process is fetching.
WAIT_S = 0.2


def is_name(text: str) -> bool:
    """Whether a text names released weights, e.g. "vrt/006", and not an existing file."""
    return NAME.fullmatch(text) is not None and not Path(text).is_file()


def local_file(
    text: str,
    released: Collection[str],
    most_bytes: Callable[[str], int],
    check: Callable[[Path, str], object],
) -> Path:
    """Return the path of weights. A missing released file is fetched, by one process alone.

    text: a path, which is returned, or a name such as "vrt/006", whose file in FOLDER is returned.
    released: stems of the released files, e.g. "006_VRT_videodeblurring_GoPro".
    most_bytes: function of a stem: the size that its file does not exceed.
    check: function of a file and a stem. It raises CheckpointError if the file holds the tensors of
        another network.

    Raises CheckpointError if the name is unknown, or the file cannot be had.
    """
    if not is_name(text):
        return Path(text)
    number = text.rpartition("/")[2]  # "006"
    stems = [stem for stem in released if stem.startswith(f"{number}_")]
    if not stems:
        raise CheckpointError(
            what="no released weights of this name",
            where=text,
            expected=", ".join(f"vrt/{stem[:3]}" for stem in sorted(released)),
            do="choose one, or give a file",
        )
    stem = stems[0]
    file = FOLDER / f"{stem}.pth"
    if not file.is_file():
        with writing(file), _one_at_a_time(file):
            if not file.is_file():  # another process may have fetched it by now
                _fetch(text, file, most_bytes(stem), check)
    return file


def _fetch(text: str, file: Path, most: int, check: Callable[[Path, str], object]) -> None:
    """Download a file under a temporary name, check it, and give it its name.

    So a file with its final name is always complete. most: largest size of the file, in bytes. A
    longer answer of the server is not the file, and must not fill the disk.
    """
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
    """Write what an address gives to the new file `part`.

    Raises ValueError if the answer is shorter than the server said, or longer than `most` bytes.
    """
    with urllib.request.urlopen(address, timeout=PATIENCE_S) as answer, part.open("xb") as file:
        expected = answer.headers.get("Content-Length")
        written = 0
        while True:
            piece = answer.read(PART)
            if not piece:  # the end
                break
            written += len(piece)
            if written > most:
                raise ValueError(f"more than the {most} bytes of these weights")
            file.write(piece)
            watchdog.go_on()
    if expected is not None and written != int(expected):
        raise ValueError(f"{written} of {expected} bytes came")


@contextmanager
def _one_at_a_time(file: Path) -> Generator[None]:
    """Let one process of this machine at a time fetch a file. The others wait here.

    The lock is a file beside the wanted file. The system frees the lock when its process ends, also
    if the process is killed.
    """
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

"""Fetch the weights that the authors of VRT have released.

In place of a file, a user may name released weights by their number, e.g. "vrt/006" for
model_zoo/vrt/006_VRT_videodeblurring_GoPro.pth. `local_file` returns the path of the file, and
fetches the file if it is missing. The files are not part of this project and have another licence
(docs/links.md).

What must stay: several processes may fetch the same file at once
(test_two_processes_fetch_a_file_once), and a file under its final name is always complete and
checked (test_what_is_not_the_released_file_is_refused_and_not_kept). Free to change: the numbers
below. With a shorter PATIENCE_S, a download over a slow network could fail.

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

# Address of the folder of the files. The environment variable SPIKEVRT_RELEASES may name another
# address with the same files.
ADDRESS = "https://github.com/JingyunLiang/VRT/releases/download/v0.0"
MIRROR = "SPIKEVRT_RELEASES"
# Folder of the fetched files. The option files of KAIR, the project in which VRT was published,
# name the same folder.
FOLDER = Path("model_zoo/vrt")
NAME = re.compile(r"vrt/(\d{3})")  # e.g. "vrt/006"
# A download is given up after this number of seconds without a byte. Chosen by hand.
PATIENCE_S = 60
# Bytes that are read at a time (1 MiB). After each read, the watchdog learns of the progress. (The
# watchdog ends a process that hangs.)
BYTES_AT_A_TIME = 1 << 20
# Seconds between two attempts to get the lock of a file that another process is fetching. Chosen by
# hand.
WAIT_S = 0.2


def is_name(text: str) -> bool:
    """Return whether a text names released weights, e.g. "vrt/006".

    If the user has a file of this path, the text means this file, and is no name
    (test_a_file_with_the_name_of_released_weights_is_taken_instead).
    """
    return NAME.fullmatch(text) is not None and not Path(text).is_file()


def local_file(
    text: str,
    released: Collection[str],
    size_limit: Callable[[str], int],
    check: Callable[[Path, str], object],
) -> Path:
    """Return the path of weights. If a released file is missing, one process fetches it.

    text: a path, or a name such as "vrt/006". A path is returned as it is. For a name, the path of
        its file in FOLDER is returned.
    released: stems of the released files, i.e. their names without .pth, e.g.
        "006_VRT_videodeblurring_GoPro".
    size_limit: function of a stem. It returns the largest size of the file, in bytes
        (`_most_bytes` in recognise.py).
    check: function of a file and a stem. It raises CheckpointError if the file holds the tensors of
        another network (`_refuse_other_tensors` in recognise.py).

    Raises CheckpointError if the name is unknown, or if the file cannot be fetched.
    """
    if not is_name(text):
        return Path(text)
    number = text.rpartition("/")[2]  # "006"
    stems = [stem for stem in released if stem.startswith(f"{number}_")]
    if not stems:
        raise CheckpointError(
            what="there are no released weights of this name",
            where=text,
            expected=", ".join(f"vrt/{stem[:3]}" for stem in sorted(released)),
            do="choose one of these names, or give a file",
        )
    stem = stems[0]
    file = FOLDER / f"{stem}.pth"
    if not file.is_file():
        # `writing` turns an error of the disk into an error that names the file.
        with writing(file), _one_at_a_time(file):
            if not file.is_file():  # another process may have fetched it by now
                _fetch(text, file, size_limit(stem), check)
    return file


def _fetch(text: str, file: Path, most_bytes: int, check: Callable[[Path, str], object]) -> None:
    """Download a file under a temporary name, check it, and give it its final name.

    So a file with its final name is always complete and checked.

    most_bytes: largest size of the file, in bytes. A longer answer of the server is not the file,
        and must not fill the disk.
    check: function of a file and its stem. It raises CheckpointError if the file holds other
        tensors.
    """
    base = os.environ.get(MIRROR, ADDRESS).rstrip("/")
    address = f"{base}/{file.name}"
    logger.info("downloading %s to %s", address, file)
    part = temporary_beside(file)  # a new name in the same folder
    try:
        try:
            _download(address, part, most_bytes)
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
        # Check before renaming, because a file under its final name is never checked again.
        check(part, file.stem)
        os.replace(part, file)
    finally:
        part.unlink(missing_ok=True)


def _download(address: str, part: Path, most_bytes: int) -> None:
    """Write the answer of an address to the new file `part`.

    Raises ValueError if the answer is shorter than the server said, or longer than `most_bytes`.
    """
    with urllib.request.urlopen(address, timeout=PATIENCE_S) as answer, part.open("xb") as file:
        expected_bytes = answer.headers.get("Content-Length")  # a text, or None
        received_bytes = 0
        while True:
            piece = answer.read(BYTES_AT_A_TIME)
            if not piece:  # the end
                break
            received_bytes += len(piece)
            if received_bytes > most_bytes:
                raise ValueError(f"more than the {most_bytes} bytes of these weights")
            file.write(piece)
            watchdog.go_on()
    if expected_bytes is not None and received_bytes != int(expected_bytes):
        raise ValueError(f"{received_bytes} of {expected_bytes} bytes came")


@contextmanager
def _one_at_a_time(file: Path) -> Generator[None]:
    """Let only one process of this machine run the context at a time. The other processes wait.

    The lock is a file beside the wanted file. The system frees the lock when the process that holds
    it ends, also if the process is killed.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    lock_path = file.with_name(f".{file.name}.lock")
    with lock_path.open("w") as lock:
        # Poll instead of one blocking call, so that the watchdog hears from this process.
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:  # another process holds the lock
                watchdog.go_on()
                time.sleep(WAIT_S)
        try:
            yield
        finally:
            # After the removal, a process that comes later makes a new lock file. A process that is
            # waiting still has the old lock file open. So both may run the context at once. This
            # does no harm, because each process finds the weights, or fetches them under a
            # temporary name of its own.
            lock_path.unlink(missing_ok=True)

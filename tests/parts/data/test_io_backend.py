"""LMDBs in place of folders, and files that are damaged or removed after the start of a training.

An LMDB is a database in one file: key -> bytes of a picture or of spikes. A file meta_info.txt
beside the LMDB lists the keys. Samples from an LMDB must equal the samples from files. A file that
breaks while a training runs must give an error with the name of the file.
"""

import os
import tempfile
import threading
from collections.abc import Callable, Generator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np
import pytest
import torch

from data.clips.data_root import list_root
from data.clips.file_content import read_bytes
from tests.helpers.checked import read_picture
from tests.helpers.clip_files import PLANES, build_clips, equal_samples, write_clips
from tests.helpers.kair_files import write_files
from utils.errors import DataError, OptionError

# A sample of a training set, as (epoch, number of the sample).
FIRST_SAMPLE = (0, 0)
# Bytes of a spike plane: 8 x 12 pixels have one bit each, and 96 bits are 12 bytes.
PLANE_BYTES = 12
# Number of the user "nobody".
NOBODY = 65534


def to_lmdb(folder: Path, inner: str, target: Path) -> None:
    """Write a folder of clips as an LMDB in the layout of BasicSR and KAIR.

    inner: the folder within each clip, e.g. "blur".
    """
    content = {}
    for path in sorted(folder.glob(f"*/{inner}/*")):
        clip = path.parent.parent.name
        content[f"{clip}/{path.name}"] = path.read_bytes()
    write_files(target, content)


@pytest.fixture
def root(tmp_path) -> Path:
    """Give a folder with two clips as files, and as three LMDBs: lq, gt and spike."""
    write_clips(tmp_path, "clip0", "clip1")
    to_lmdb(tmp_path / "GOPRO_Large/train", "blur", tmp_path / "lq.lmdb")
    to_lmdb(tmp_path / "GOPRO_Large/train", "sharp", tmp_path / "gt.lmdb")
    to_lmdb(tmp_path / "GOPRO_Large_spike_seq/train", "spike", tmp_path / "spike.lmdb")
    return tmp_path


def lmdbs(root: Path, *kinds: str) -> dict[str, Any]:
    """Return the keys of a section that reads these kinds of data from their LMDBs."""
    keys: dict[str, Any] = {"io_backend": {"type": "lmdb"}}
    for kind in kinds:
        keys[f"dataroot_{kind}"] = f"{root}/{kind}.lmdb"
    return keys


def call_in_fork(function: Callable[..., Any], *arguments: object) -> Any:
    """Call a function in a forked process. Return what it returns, or raise what it raises."""
    with ProcessPoolExecutor(1, mp_context=get_context("fork")) as pool:
        return pool.submit(function, *arguments).result()


# ---- Samples from an LMDB ----


def assert_same_samples(found: Any, expected: Any) -> None:
    """Check that two data sets have the same samples."""
    epoch = 0
    for number in range(len(expected)):
        assert equal_samples(found[(epoch, number)], expected[(epoch, number)])


# Options `spike` for planes of 8 x 12 pixels, with the sharp frame at plane 12.
SPIKE = {"type": "dat", "h": 8, "w": 12, "center": 12}


def test_an_lmdb_of_frames_gives_the_samples_of_the_files(root):
    from_lmdb = build_clips(root, spike=SPIKE, **lmdbs(root, "lq", "gt"))

    assert_same_samples(from_lmdb, build_clips(root, spike=SPIKE))


def test_an_lmdb_of_frames_and_an_lmdb_of_spikes_give_the_samples_of_the_files(root):
    # The program looks for dataset.json beside the spikes, and the LMDB of the spikes lies in
    # `root`.
    os.rename(root / "GOPRO_Large_spike_seq/dataset.json", root / "dataset.json")

    from_lmdb = build_clips(root, spike=SPIKE, **lmdbs(root, "lq", "gt", "spike"))

    assert_same_samples(from_lmdb, build_clips(root, spike=SPIKE))


@pytest.mark.parametrize(
    "keys",
    [
        pytest.param({"dataroot_lq": "{root}/lq.lmdb"}, id="a name that ends in .lmdb"),
        # The roots are folders, so the program reads folders.
        pytest.param({"io_backend": "lmdb"}, id="folders, although the options say lmdb"),
    ],
)
def test_the_name_of_a_root_says_whether_it_is_an_lmdb(root, keys):
    keys = {key: value.replace("{root}", str(root)) for key, value in keys.items()}
    expected = build_clips(root)[FIRST_SAMPLE]

    found = build_clips(root, **keys)[FIRST_SAMPLE]

    assert torch.equal(found["lq"], expected["lq"])


def test_an_unknown_backend_is_refused(root):
    with pytest.raises(OptionError, match=r"io_backend\.type is 'lmbd'"):
        build_clips(root, io_backend={"type": "lmbd"})


# ---- The keys of an LMDB ----


def add_to_list(root: Path, name: str) -> None:
    """Add a picture to the list of the LMDB of blurry frames. The LMDB itself does not have it."""
    listed = root / "lq.lmdb/meta_info.txt"
    listed.write_text(f"{listed.read_text()}{name}.png (16,24,3) 1\n")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("../clip9/0", id="clip above the root"),
        pytest.param("clip0/../../x/0", id="clip that leads above the root"),
        pytest.param("/tmp/x/0", id="absolute path"),
        pytest.param("clip\t9/0", id="tab in the name"),
    ],
)
def test_a_listed_name_that_leads_out_of_the_results_is_refused(root, name):
    # The results of a test get the names of clips and frames, so a name must not lead elsewhere.
    add_to_list(root, name)

    with pytest.raises(DataError, match="cannot be the name of a clip or frame"):
        build_clips(root, **lmdbs(root, "lq", "gt"))


def test_a_listed_frame_that_another_kind_lacks_is_named(root):
    # The clip has only the frames 0 to 5, but the list now has frame 6, too.
    add_to_list(root, "clip0/000006")

    with pytest.raises(DataError, match=r"gt lacks 1 of 7 frames: 000006\.png"):
        build_clips(root, **lmdbs(root, "lq", "gt"))


def test_a_key_without_a_value_is_named(root):
    with pytest.raises(DataError, match="no such key"):
        read_bytes(f"{root}/lq.lmdb::clip0/000006")  # path of the database::key


def test_a_missing_list_of_keys_is_named(root):
    (root / "lq.lmdb/meta_info.txt").unlink()

    with pytest.raises(DataError, match=r"meta_info\.txt"):
        build_clips(root, **lmdbs(root, "lq", "gt"))


def test_keys_without_the_name_of_a_clip_are_one_clip(tmp_path):
    write_files(tmp_path / "flat.lmdb", {"baboon.png": b"1234"})

    clips = list_root(str(tmp_path / "flat.lmdb"), "blur", (".png",))

    # The one clip has the name of the LMDB, "flat". The size is the 4 bytes of the value.
    assert clips["flat"]["baboon"].size == 4


def test_keys_may_have_spaces(tmp_path):
    write_files(tmp_path / "spaces.lmdb", {"my clip/0 1.png": b""})

    clips = list_root(str(tmp_path / "spaces.lmdb"), "blur", (".png",))

    assert list(clips["my clip"]) == ["0 1"]


@pytest.mark.parametrize(
    ("share", "bytes_less"),
    [
        pytest.param(1, 1, id="one byte"),
        pytest.param(0.999, 0, id="a little"),
        pytest.param(0.33, 0, id="two thirds"),
    ],
)
def test_an_lmdb_cut_short_is_refused_before_its_missing_pages_are_read(root, share, bytes_less):
    path = root / "lq.lmdb/data.mdb"
    whole = path.stat().st_size
    left = int(whole * share) - bytes_less
    os.truncate(path, left)

    # A process that reads a missing page dies of SIGBUS. So the LMDB is read in another process.
    with pytest.raises(DataError, match=f"cut short: data.mdb has {left} bytes") as error:
        call_in_fork(list_root, str(root / "lq.lmdb"), "blur", (".png",))

    assert f"{whole} bytes" in str(error.value)


# ---- Forks and threads ----


def test_an_lmdb_opened_before_a_fork_is_not_used_after_it(root):
    dataset = build_clips(root, **lmdbs(root, "lq", "gt"))
    here = dataset[FIRST_SAMPLE]

    there = call_in_fork(dataset.__getitem__, FIRST_SAMPLE)

    assert torch.equal(there["lq"], here["lq"])


def fork_once() -> None:
    """Fork a process that ends at once."""
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)


def read_together(path: str, together: threading.Barrier) -> bytes:
    """Wait until all threads have reached this function, then read a file."""
    together.wait(timeout=10)
    return read_bytes(path)


# This test is slow, because it takes 3 seconds of a core.
@pytest.mark.slow
def test_threads_that_begin_together_open_an_lmdb_once(root):
    # An LMDB must not be open while the process forks. So the program closes it before each fork,
    # and the first reader opens the LMDB again. Here the first readers are eight threads at once,
    # as in the check of the data.
    clips = list_root(str(root / "lq.lmdb"), "blur", (".png",))
    paths = [entry.path for frames in clips.values() for entry in frames.values()]
    threads = 8

    # The order of the threads differs each time, so the test tries 20 times.
    for _ in range(20):
        fork_once()
        barriers = [threading.Barrier(threads)] * threads  # the same one for each thread
        with ThreadPoolExecutor(threads) as pool:
            assert all(pool.map(read_together, paths[:threads], barriers))


# ---- Files that break after the start ----

CLIP = "GOPRO_Large/train/clip0"
FRAME = f"{CLIP}/blur/000003.png"
SHARP = f"{CLIP}/sharp/000001.png"
SPIKES = "GOPRO_Large_spike_seq/train/clip0/spike/000002.dat"


def remove(path: Path) -> None:
    path.unlink()


def make_empty(path: Path) -> None:
    path.write_bytes(b"")


def cut_in_half(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def write_web_page(path: Path) -> None:
    path.write_bytes(b"<html>")


def replace_by_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def write_small_picture(path: Path) -> None:
    """Write a picture of 8 x 8 pixels. The frames of the clip have 16 x 24."""
    assert cv2.imwrite(str(path), np.zeros((8, 8, 3), np.uint8))


def write_a_byte_too_few(path: Path) -> None:
    # One byte is missing, so the file does not have a whole number of planes.
    path.write_bytes(b"\1" * (PLANE_BYTES * PLANES - 1))


def write_twice_the_planes(path: Path) -> None:
    path.write_bytes(b"\1" * (PLANE_BYTES * PLANES * 2))


class Break(NamedTuple):
    """A file that breaks, and the message about it."""

    name: str  # path of the file below the root
    damage: Callable[[Path], None]
    message: str


BREAKS = [
    Break(FRAME, remove, "cannot read: No such file"),
    Break(FRAME, make_empty, "cannot read"),
    Break(FRAME, cut_in_half, "cannot read"),
    Break(FRAME, write_web_page, "cannot read"),
    Break(FRAME, replace_by_folder, "Is a directory"),
    Break(FRAME, write_small_picture, "frame of 8 x 8"),
    Break(SHARP, write_small_picture, "frame of 8 x 8"),
    Break(SPIKES, remove, "No such file"),
    Break(SPIKES, make_empty, "spike file"),
    Break(SPIKES, write_a_byte_too_few, "spike file"),
    Break(SPIKES, write_twice_the_planes, "spike file"),
]


@pytest.mark.parametrize("case", BREAKS, ids=lambda case: f"{case.name}-{case.damage.__name__}")
def test_a_file_that_breaks_after_the_start_is_an_error_naming_it(tmp_path, case):
    write_clips(tmp_path, "clip0")
    # A sample of 6 frames reads all files of the clip, so it also reads the damaged file.
    dataset = build_clips(tmp_path, num_frame=6)
    path = tmp_path / case.name
    case.damage(path)

    with pytest.raises(DataError, match=case.message) as error:
        dataset[FIRST_SAMPLE]

    assert str(path) in str(error.value)


def test_half_a_jpeg_is_not_taken_for_a_picture(tmp_path):
    # If the end of a JPEG is missing, a decoder raises no error and fills the missing rows with
    # grey. So the reader must notice it.
    write_clips(tmp_path, "clip0")
    for path in sorted((tmp_path / CLIP).rglob("*.png")):
        cv2.imwrite(str(path.with_suffix(".jpg")), read_picture(path))
        path.unlink()
    dataset = build_clips(tmp_path, num_frame=6, filename_ext="jpg")
    dataset[FIRST_SAMPLE]  # the file can still be read
    broken = tmp_path / CLIP / "blur/000004.jpg"
    broken.write_bytes(broken.read_bytes()[:-200])

    with pytest.raises(DataError, match="cut short"):
        dataset[FIRST_SAMPLE]


@contextmanager
def as_ordinary_user() -> Generator[None]:
    """Let the block run with the rights of an ordinary user, because root may read every file.

    If the tests run as root, the ordinary user is "nobody". If another user runs the tests, it is
    this user.
    """
    user = os.geteuid()
    is_root = user == 0
    os.seteuid(NOBODY if is_root else user)
    try:
        yield
    finally:
        os.seteuid(user)


@pytest.mark.parametrize("name", [FRAME, SPIKES])
def test_a_file_without_permission_is_named(name):
    # The folder is not in `tmp_path`, because only the user who runs pytest may enter the folders
    # of `tmp_path`.
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        folder.chmod(0o755)
        dataset = build_clips(write_clips(folder, "clip0"), num_frame=6)
        with as_ordinary_user():
            dataset[FIRST_SAMPLE]  # the file can still be read
        (folder / name).chmod(0)

        with as_ordinary_user(), pytest.raises(DataError, match="Permission denied") as error:
            dataset[FIRST_SAMPLE]

    assert name in str(error.value)

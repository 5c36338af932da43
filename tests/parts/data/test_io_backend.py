"""LMDBs in place of folders, and files that are damaged or removed after the start of a training.

An LMDB is a database in one file: key -> bytes of a picture or of spikes. Its samples must be those
from the files. A file that breaks while a training runs must give an error with its name.
"""

import os
import tempfile
import threading
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch

from data.clips.files import list_root, read_bytes
from tests.helpers.checked import read_picture
from tests.helpers.clip_files import PLANES, build, same, write_clips
from tests.helpers.kair_files import write_files
from utils.errors import DataError, OptionError


def to_lmdb(folder: Path, inner: str, target: Path) -> None:
    """Write a folder of clips as an LMDB in the layout of BasicSR and KAIR.

    inner: the folder within each clip, e.g. "blur".
    """
    paths = sorted(folder.glob(f"*/{inner}/*"))
    write_files(
        target, {f"{path.parent.parent.name}/{path.name}": path.read_bytes() for path in paths}
    )


@pytest.fixture
def root(tmp_path):
    """Give a folder with two clips as files, and as three LMDBs: lq, gt and spike."""
    write_clips(tmp_path, "clip0", "clip1")
    for kind, inner in (("lq", "blur"), ("gt", "sharp")):
        to_lmdb(tmp_path / "GOPRO_Large/train", inner, tmp_path / f"{kind}.lmdb")
    to_lmdb(tmp_path / "GOPRO_Large_spike_seq/train", "spike", tmp_path / "spike.lmdb")
    return tmp_path


def lmdbs(root, *kinds):
    """Return the keys of a section that reads these kinds of data from their LMDBs."""
    return {"io_backend": {"type": "lmdb"}} | {
        f"dataroot_{kind}": f"{root}/{kind}.lmdb" for kind in kinds
    }


def forked(function, *arguments):
    """Call a function in a forked process. Return what it returns, or raise what it raises."""
    with ProcessPoolExecutor(1, mp_context=get_context("fork")) as pool:
        return pool.submit(function, *arguments).result()


@pytest.mark.parametrize("kinds", [("lq", "gt"), ("lq", "gt", "spike")])
def test_samples_from_an_lmdb_are_those_from_the_files(root, kinds):
    if "spike" in kinds:  # dataset.json is looked for beside the spikes
        os.rename(root / "GOPRO_Large_spike_seq/dataset.json", root / "dataset.json")
    spike = {"type": "dat", "h": 8, "w": 12, "center": 12}
    a = build(root, spike=spike)
    b = build(root, spike=spike, **lmdbs(root, *kinds))

    assert all(same(a[(0, index)], b[(0, index)]) for index in range(len(a)))


def test_an_lmdb_opened_before_a_fork_is_not_used_after_it(root):
    dataset = build(root, **lmdbs(root, "lq", "gt"))
    here = dataset[(0, 0)]
    assert torch.equal(forked(dataset.__getitem__, (0, 0))["lq"], here["lq"])


def test_names_that_lead_out_of_the_results_a_key_without_value_and_a_missing_list_are_named(root):
    listed = root / "lq.lmdb/meta_info.txt"
    before = listed.read_text()
    refused = "cannot be the name of a clip or frame"
    for name, said in (
        *((name, refused) for name in ("../clip9/0", "clip0/../../x/0", "/tmp/x/0", "clip\t9/0")),
        ("clip0/000006", r"gt lacks 1 of 7 frames: 000006\.png"),
    ):
        listed.write_text(f"{before}{name}.png (16,24,3) 1\n")
        with pytest.raises(DataError, match=said):
            build(root, **lmdbs(root, "lq", "gt"))
    with pytest.raises(DataError, match="no such key"):
        read_bytes(f"{root}/lq.lmdb::clip0/000006")
    listed.unlink()
    with pytest.raises(DataError, match=r"meta_info\.txt"):
        build(root, **lmdbs(root, "lq", "gt"))


def test_an_lmdb_cut_short_is_refused_before_its_missing_pages_are_read(root):
    path = root / "lq.lmdb/data.mdb"
    whole = path.stat().st_size
    for keep in (0.999, 0.33):
        os.truncate(path, int(whole * keep))
        # In another process, which dies of SIGBUS where a missing page is read.
        with pytest.raises(
            DataError, match=f"cut short: data.mdb has {int(whole * keep)} bytes"
        ) as error:
            forked(list_root, str(root / "lq.lmdb"), "blur", (".png",))
        assert f"{whole} bytes" in str(error.value)


def test_the_name_of_a_root_says_whether_it_is_an_lmdb(root):
    expected = build(root)[(0, 0)]["lq"]
    assert torch.equal(build(root, dataroot_lq=f"{root}/lq.lmdb")[(0, 0)]["lq"], expected)
    assert torch.equal(build(root, io_backend="lmdb")[(0, 0)]["lq"], expected)
    with pytest.raises(OptionError, match=r"io_backend\.type is 'lmbd'.*"):
        build(root, io_backend={"type": "lmbd"})
    # One without clips is one clip
    write_files(root / "flat.lmdb", {"baboon.png": b"1234", "my clip/0 1.png": b""})
    listing = list_root(str(root / "flat.lmdb"), "blur", (".png",))

    assert listing["flat"]["baboon"].size == 4
    assert list(listing["my clip"]) == ["0 1"]


def test_threads_that_begin_together_open_an_lmdb_once(root):
    # An LMDB must not be open while the process forks. So it is closed before each fork, and opened
    # again by the first reader. Here the first readers are eight threads at once, as in the check
    # of the data.
    listing = list_root(str(root / "lq.lmdb"), "blur", (".png",))
    paths = [entry.path for frames in listing.values() for entry in frames.values()]
    for _ in range(20):
        if (child := os.fork()) == 0:
            os._exit(0)
        os.waitpid(child, 0)
        gate = threading.Barrier(8)

        def read(path, gate=gate):
            gate.wait(10)
            return read_bytes(path)

        with ThreadPoolExecutor(8) as pool:
            assert all(pool.map(read, paths[:8]))


CLIP = "GOPRO_Large/train/clip0"
FRAME = f"{CLIP}/blur/000003.png"
SPIKES = "GOPRO_Large_spike_seq/train/clip0/spike/000002.dat"


def small(content):
    """Return a picture of 8 x 8, in place of a content of a file."""
    return cv2.imencode(".png", np.zeros((8, 8, 3), np.uint8))[1].tobytes()


@pytest.mark.parametrize(("name", "damage", "said"), [
    (FRAME, None, "cannot read: No such file"), (FRAME, lambda content: b"", "cannot read"),
    (FRAME, lambda content: content[: len(content) // 2], "cannot read"),
    (FRAME, lambda content: b"<html>", "cannot read"), (FRAME, "folder", "Is a directory"),
    (FRAME, small, "frame of 8 x 8"), (f"{CLIP}/sharp/000001.png", small, "frame of 8 x 8"),
    (SPIKES, None, "No such file"), (SPIKES, lambda content: b"", "spike file"),
    (SPIKES, lambda content: b"\1" * (12 * PLANES - 1), "spike file"),
    (SPIKES, lambda content: b"\1" * (12 * PLANES * 2), "spike file"),
])  # fmt: skip
def test_a_file_that_breaks_after_the_start_is_an_error_naming_it(tmp_path, name, damage, said):
    write_clips(tmp_path, "clip0")
    dataset = build(tmp_path, num_frame=6)
    path = tmp_path / name
    content = path.read_bytes()
    path.unlink()
    if damage == "folder":
        path.mkdir()
    elif damage:
        path.write_bytes(damage(content))
    with pytest.raises(DataError, match=said) as error:
        dataset[(0, 0)]

    assert str(path) in str(error.value)


def test_half_a_jpeg_is_not_taken_for_a_picture(tmp_path):
    write_clips(tmp_path, "clip0")
    for path in sorted((tmp_path / CLIP).rglob("*.png")):
        cv2.imwrite(str(path.with_suffix(".jpg")), read_picture(path))
        path.unlink()
    dataset = build(tmp_path, num_frame=6, filename_ext="jpg")
    dataset[(0, 0)]
    broken = tmp_path / CLIP / "blur/000004.jpg"
    broken.write_bytes(broken.read_bytes()[:-200])
    with pytest.raises(DataError, match="cut short"):
        dataset[(0, 0)]


@contextmanager
def as_ordinary_user():
    """Take the rights of an ordinary user, because root may read every file."""
    user = os.geteuid()
    os.seteuid(user or 65534)
    try:
        yield
    finally:
        os.seteuid(user)


@pytest.mark.parametrize("name", [FRAME, SPIKES])
def test_a_file_without_permission_is_named(name):
    with tempfile.TemporaryDirectory() as temporary:  # the folders of pytest belong to one user
        folder = Path(temporary)
        folder.chmod(0o755)
        dataset = build(write_clips(folder, "clip0"), num_frame=6)
        with as_ordinary_user():
            dataset[(0, 0)]
        (folder / name).chmod(0)
        with as_ordinary_user(), pytest.raises(DataError, match="Permission denied") as error:
            dataset[(0, 0)]

    assert name in str(error.value)

import os
import threading
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest
import torch

from data.roots import _close_environments, list_root, read_bytes
from data.select_dataset import build_dataset
from tests.clip_files import section, write_clip, write_info
from utils.errors import DataError, OptionError

lmdb = pytest.importorskip("lmdb", reason="LMDB is optional")


def to_lmdb(folder: Path, inner: str, target: Path) -> None:
    """A folder of clips as an LMDB in the layout of BasicSR and KAIR."""
    target.mkdir(parents=True)
    lines = []
    with lmdb.open(str(target), map_size=1 << 24) as environment, environment.begin(write=True) as transaction:
        for path in sorted(folder.glob(f"*/{inner}/*")):
            clip = path.parent.parent.name
            transaction.put(f"{clip}/{path.stem}".encode(), path.read_bytes())
            lines.append(f"{clip}/{path.name} (16,24,3) 1\n")
    (target / "meta_info.txt").write_text("".join(lines))


@pytest.fixture
def root(tmp_path):
    for number in range(2):
        write_clip(tmp_path, f"clip{number}", seed=number)
    write_info(tmp_path)
    for kind, inner in (("lq", "blur"), ("gt", "sharp")):
        to_lmdb(tmp_path / "GOPRO_Large/train", inner, tmp_path / f"{kind}.lmdb")
    to_lmdb(tmp_path / "GOPRO_Large_spike_seq/train", "spike", tmp_path / "spike.lmdb")
    return tmp_path


def roots(root, *kinds):
    return {f"dataroot_{kind}": str(root / f"{kind}.lmdb") for kind in kinds}


def build(root, **changes):
    return build_dataset(section(root, **changes), "train", 0)


def read_in_another_process(dataset, sample_id):
    with ProcessPoolExecutor(1, mp_context=get_context("fork")) as pool:
        return pool.submit(dataset.__getitem__, sample_id).result()


@pytest.mark.parametrize("kinds", [("lq", "gt"), ("lq", "gt", "spike")])
def test_samples_from_an_lmdb_are_those_from_the_files(root, kinds):
    if "spike" in kinds:  # dataset.json is looked for beside the spikes
        os.rename(root / "GOPRO_Large_spike_seq/dataset.json", root / "dataset.json")
    spike = {"type": "dat", "h": 8, "w": 12, "center": 12}
    a = build(root, spike=spike)
    b = build(root, spike=spike, io_backend={"type": "lmdb"}, **roots(root, *kinds))
    for index in range(len(a)):
        x, y = a[(0, index)], b[(0, index)]
        assert x["key"] == y["key"] and all(torch.equal(x[k], y[k]) for k in ("lq", "gt", "spike"))


def test_an_lmdb_opened_before_a_fork_is_not_used_after_it(root):
    dataset = build(root, io_backend={"type": "lmdb"}, **roots(root, "lq", "gt"))
    here = dataset[(0, 0)]
    assert torch.equal(read_in_another_process(dataset, (0, 0))["lq"], here["lq"])


def test_a_key_without_value_and_a_missing_list_are_named(root):
    with (root / "lq.lmdb/meta_info.txt").open("a") as file:
        file.write("clip0/000006.png (16,24,3) 1\n")
    with pytest.raises(DataError, match=r"gt lacks 1 of 7 frames: 000006\.png"):
        build(root, io_backend={"type": "lmdb"}, **roots(root, "lq", "gt"))
    with pytest.raises(DataError, match="no such key"):
        read_bytes(f"{root}/lq.lmdb::clip0/000006")
    (root / "lq.lmdb/meta_info.txt").unlink()
    with pytest.raises(DataError, match=r"meta_info\.txt"):
        build(root, io_backend={"type": "lmdb"}, **roots(root, "lq", "gt"))


@pytest.mark.parametrize("name", ["../clip9/000000", "clip0/../../x/000000", "/tmp/x/000000", "clip\t9/000000"])
def test_names_of_an_lmdb_that_lead_out_of_the_results_are_refused(root, name):
    with (root / "lq.lmdb/meta_info.txt").open("a") as file:
        file.write(f"{name}.png (16,24,3) 1\n")
    with pytest.raises(DataError, match="cannot be the name of a clip or frame"):
        build(root, io_backend={"type": "lmdb"}, **roots(root, "lq", "gt"))


@pytest.mark.parametrize("keep", [0.33, 0.999])
def test_an_lmdb_cut_short_is_refused_before_its_missing_pages_are_read(root, keep):
    path = root / "lq.lmdb/data.mdb"
    whole = path.stat().st_size
    os.truncate(path, int(whole * keep))
    # In another process, which dies of SIGBUS where a missing page is read.
    with ProcessPoolExecutor(1, mp_context=get_context("fork")) as pool:
        listing = pool.submit(list_root, str(root / "lq.lmdb"), "blur", "png")
        with pytest.raises(DataError, match=f"cut short: data.mdb has {int(whole * keep)} bytes") as error:
            listing.result()
    assert f"{whole} bytes" in str(error.value)


def test_the_backend_and_the_roots_must_agree(root):
    with pytest.raises(OptionError, match="a dataroot is an LMDB"):
        build(root, **roots(root, "lq"))
    with pytest.raises(OptionError, match="no dataroot is an LMDB"):
        build(root, io_backend={"type": "lmdb"})
    with pytest.raises(OptionError, match=r"io_backend\.type is 'lmbd'.*"):
        build(root, io_backend={"type": "lmbd"})


def test_an_lmdb_without_clips_is_one_clip(tmp_path):
    write_clip(tmp_path, "clip0", frames=2)
    (tmp_path / "flat.lmdb").mkdir()
    with lmdb.open(str(tmp_path / "flat.lmdb"), map_size=1 << 20) as environment, environment.begin(write=True) as t:
        t.put(b"baboon", b"1234")
    (tmp_path / "flat.lmdb/meta_info.txt").write_text("baboon.png (480,492,3) 1\nmy clip/0 1.png (480,492,3) 1\n")
    listing = list_root(str(tmp_path / "flat.lmdb"), "blur", "png")
    assert listing["flat"]["baboon"].size == 4 and list(listing["my clip"]) == ["0 1"]


def test_threads_that_begin_together_open_an_lmdb_once(root):
    # It is closed before each fork and opened again by the first reader, here the threads of the data check.
    listing = list_root(str(root / "lq.lmdb"), "blur", "png")
    paths = [entry.path for frames in listing.values() for entry in frames.values()]
    for _ in range(20):
        _close_environments()
        gate = threading.Barrier(8)

        def read(path, gate=gate):
            gate.wait(10)
            return read_bytes(path)

        with ThreadPoolExecutor(8) as pool:
            assert all(pool.map(read, paths[:8]))

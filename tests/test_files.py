import os
import signal

import numpy as np
import pytest

from data.spike.formats import write_spikes
from data.spike.stream import SpikeGeometry
from utils.errors import DataError, OptionError
from utils.files import (
    Made,
    natural_key,
    publish_folder,
    refuse_existing,
    refuse_foreign,
    refuse_overlap,
    scratch_folder,
    write_whole,
)
from utils.video import VideoWriter


def test_natural_order_counts():
    names = ["10", "2", "1", "a10", "a2", "01"]
    assert sorted(names, key=natural_key) == ["1", "01", "2", "10", "a2", "a10"]


def test_only_listed_and_unchanged_files_are_replaced_or_removed(tmp_path):
    made, other = Made(tmp_path), Made(tmp_path, "1")
    made.write(tmp_path / "clip" / "0.png", b"ours")
    made.write(tmp_path / "clip" / "1.png", b"ours")
    other.write(tmp_path / "more" / "x.png", b"ours")
    (tmp_path / "clip" / "note.txt").write_text("theirs")
    (tmp_path / "clip" / "1.png").write_bytes(b"theirs")

    again = Made(tmp_path)
    again.write(tmp_path / "clip" / "0.png", b"new")
    with pytest.raises(DataError, match=r"not made by this program.*clip/1\.png"):
        again.write(tmp_path / "clip" / "1.png", b"new")
    again.remove_all()
    assert sorted(p.name for p in (tmp_path / "clip").iterdir()) == ["1.png", "note.txt"]
    assert (tmp_path / "clip" / "1.png").read_bytes() == b"theirs" and not (tmp_path / "more").exists()


def test_a_file_is_listed_before_it_appears(tmp_path):
    made = Made(tmp_path)
    made._note(tmp_path / "a", "0" * 64)  # killed here: nothing of that name is ours, neither is one that comes later
    (tmp_path / "a").write_text("theirs")
    assert not Made(tmp_path).is_ours(tmp_path / "a")


@pytest.mark.parametrize("left", [30, 64, 70, 78])
def test_a_line_that_a_full_disk_cut_off_stops_nobody(tmp_path, left):
    Made(tmp_path).write(tmp_path / "first.png", b"ours")
    names = tmp_path / ".spikevrt" / "0.txt"
    whole = names.read_bytes()
    names.write_bytes(whole + whole[:left])

    made = Made(tmp_path)
    made.write(tmp_path / "second.png", b"ours")
    made.write(tmp_path / "third.png", b"ours")

    assert all(Made(tmp_path).is_ours(tmp_path / f"{name}.png") for name in ("first", "second", "third"))
    Made(tmp_path).remove_all()
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_nothing_is_written_through_a_link_or_out_of_the_folder(tmp_path):
    inner, outer = tmp_path / "out", tmp_path / "elsewhere"
    inner.mkdir(), outer.mkdir()
    (inner / "clip").symlink_to(outer)
    (inner / "link.png").symlink_to(outer / "x.png")
    for name in ("clip/0.png", "../elsewhere/0.png", "link.png"):
        with pytest.raises(DataError):
            Made(inner).write(inner / name, b"ours")
    (inner / ".spikevrt").symlink_to(outer)
    with pytest.raises(DataError):
        Made(inner).write(inner / "a", b"ours")
    assert list(outer.iterdir()) == []


def test_ctrl_c_while_a_file_is_written_leaves_the_former_one_and_nothing_else(tmp_path, monkeypatch):
    (tmp_path / "a.json").write_text("before")
    monkeypatch.setattr(os, "replace", lambda *_: signal.raise_signal(signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        write_whole(tmp_path / "a.json", b"after")
    assert [path.read_text() for path in tmp_path.iterdir()] == ["before"]


@pytest.mark.parametrize(("umask", "mode"), [(0o077, 0o600), (0o027, 0o640), (0o002, 0o664)])
def test_files_have_the_permissions_that_the_umask_gives(tmp_path, umask, mode):
    before = os.umask(umask)
    try:
        write_whole(tmp_path / "a.json", b"{}")
        write_spikes(tmp_path / "a.dat", np.zeros((8, 8, 8), np.uint8), SpikeGeometry(8, 8))
        with VideoWriter(tmp_path / "a.mp4", 25) as video:
            video.write(np.zeros((32, 32, 3), np.uint8))
    finally:
        os.umask(before)
    assert {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == dict.fromkeys(
        ("a.json", "a.dat", "a.mp4"), mode
    )


def test_a_scratch_folder_clears_only_its_own(tmp_path):
    scratch = scratch_folder(tmp_path / ".x.tmp")
    (scratch / "half").write_text("ours")
    assert [p.name for p in scratch_folder(scratch).iterdir()] == [".spikevrt"]
    publish_folder(scratch, tmp_path / "x")
    assert list((tmp_path / "x").iterdir()) == []
    (tmp_path / ".x.tmp").mkdir()  # as a kill before the mark leaves it
    (scratch_folder(tmp_path / ".x.tmp") / ".spikevrt").unlink()
    (tmp_path / ".x.tmp" / "note").write_text("theirs")
    with pytest.raises(DataError, match="did not make"):
        scratch_folder(tmp_path / ".x.tmp")


def test_outputs_that_overlap_inputs_are_refused(tmp_path):
    clip = tmp_path / "in" / "clip"
    clip.mkdir(parents=True)
    (tmp_path / "link").symlink_to(clip)
    for output in (clip, clip.parent, tmp_path, clip / "new", tmp_path / "link" / "out", tmp_path / "new" / ".."):
        with pytest.raises(OptionError, match="--output would write over"):
            refuse_overlap(output, {"--gt": None, "--input": clip})
    refuse_overlap(tmp_path / "in" / "clip2", {"--input": clip})


def test_names_that_are_taken_are_refused(tmp_path):
    refuse_existing(tmp_path / "a", "--json")
    os.symlink(tmp_path / "nowhere", tmp_path / "a")
    with pytest.raises(OptionError, match="exists already"):
        refuse_existing(tmp_path / "a", "--json")


def test_a_folder_of_ours_holds_nothing_else(tmp_path):
    (tmp_path / "clip").mkdir()
    (tmp_path / "clip" / "lq.u8").write_bytes(b"123")
    refuse_foreign(tmp_path, {"clip/lq.u8": 3}, "a clip cache")
    for change in (lambda: (tmp_path / "clip" / "lq.u8").write_bytes(b"1"), lambda: (tmp_path / "mine").mkdir()):
        change()
        with pytest.raises(DataError, match="not part of a clip cache"):
            refuse_foreign(tmp_path, {"clip/lq.u8": 3}, "a clip cache")

import os
import signal

import numpy as np
import pytest

from data.spike.formats import SpikeGeometry, write_spikes
from utils.errors import DataError, OptionError
from utils.files import publish_folder, refuse_existing, refuse_links, remove_files, scratch_folder, write_whole
from utils.video import VideoWriter


def test_nothing_is_written_or_removed_through_a_link_or_out_of_the_folder(tmp_path):
    inner, outer = tmp_path / "out", tmp_path / "elsewhere"
    (inner / "folder.png").mkdir(parents=True), outer.mkdir(), (inner / "ours").mkdir()
    (inner / "clip").symlink_to(outer)
    (inner / "link.png").symlink_to(outer / "x.png")
    (outer / "x.png").write_text("theirs")
    (inner / "file").write_text("theirs")
    names = ("clip/x.png", "../elsewhere/x.png", "link.png", "folder.png", "file/0.png")
    for name in names:
        with pytest.raises(DataError, match="leads out of the output folder, or is no file"):
            refuse_links(inner, [inner / name])
    refuse_links(inner, [inner / "file", inner / "new/0.png"])

    (inner / "ours/0.png").write_text("ours")
    remove_files(inner, [*(inner / name for name in names), inner / "ours/0.png", inner / "none.png"])
    left = sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*"))
    assert left == ["elsewhere", "elsewhere/x.png", "out", "out/clip", "out/file", "out/folder.png", "out/link.png"]


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


def test_names_that_are_taken_are_refused_even_by_a_link_to_nothing(tmp_path):
    refuse_existing(tmp_path / "a", "--json")
    os.symlink(tmp_path / "nowhere", tmp_path / "a")
    with pytest.raises(OptionError, match="exists already"):
        refuse_existing(tmp_path / "a", "--json")

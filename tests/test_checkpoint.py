import errno
import hashlib
import os
import stat
from pathlib import Path

import numpy as np
import pytest
import torch

from models.weights import read_weights
from tests.dist.launching import run_ranks
from utils.errors import CheckpointError
from utils.run import checkpoint


def state(step):
    return {"step": step, "weights": torch.full((1000,), float(step)), "options": {"a": [1, None, "x"]}}


@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "gone", "EIO", "folder", "torn sidecar", "no sidecar"])
def test_a_damaged_file_gives_way_to_the_previous_one(tmp_path, damage, caplog):
    path = tmp_path / "checkpoint_latest.pth"
    for step in (1, 2, 3):
        checkpoint.save(state(step), path)
    content = bytearray(path.read_bytes())
    if damage == "flip":
        content[2000] ^= 1  # torch.load would not notice
    if damage in ("gone", "EIO", "folder"):
        path.unlink()
    if damage == "EIO":
        path.symlink_to("/proc/self/mem")  # opens, and cannot be read
    elif damage == "folder":
        path.mkdir()
    elif damage == "torn sidecar":
        path.with_name(f"{path.name}.sha256").write_bytes(b"\xff\xfe")
    elif damage == "no sidecar":
        path.with_name(f"{path.name}.sha256").unlink()
        path.write_bytes(content[:-100])
    elif damage != "gone":
        path.write_bytes({"flip": content, "cut": content[:-100], "empty": b""}[damage])

    assert checkpoint.load(path)["step"] == 2
    assert "the former version is used instead" in caplog.text and "checkpoint_latest_previous.pth" in caplog.text
    if damage == "EIO":  # the run goes on, and its next save keeps the version that can be read
        checkpoint.save(state(4), path)
        path.write_bytes(b"")
        assert checkpoint.load(path)["step"] == 2


@pytest.mark.parametrize("code", [errno.EINVAL, errno.ENOTSUP])
def test_a_file_system_that_syncs_no_folders_and_tells_no_sizes_takes_checkpoints(tmp_path, monkeypatch, code):
    sync, path = os.fsync, tmp_path / "checkpoint_latest.pth"

    def of_files_only(descriptor):
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(code, os.strerror(code))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", of_files_only)
    monkeypatch.setattr(os, "statvfs", lambda _: os.statvfs_result((4096, 4096, 0, 0, 0, 0, 0, 0, 0, 255)))

    checkpoint.save(state(1), path)

    assert checkpoint.load(path)["step"] == 1


@pytest.mark.parametrize("content", [b"junk\n", b"hello world, this is no checkpoint", b"version https://git-lfs"])
def test_a_file_of_something_else_is_no_checkpoint(tmp_path, content):
    path = tmp_path / "weights.pth"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match="not a file of plain types"):
        checkpoint.load(path)
    with pytest.raises(CheckpointError, match="not a weights file"):
        read_weights(path)


class Hostile:
    """A pickle that leaves a file behind when it is loaded without care."""

    def __init__(self, trace):
        self.trace = trace

    def __reduce__(self):
        return os.mkdir, (str(self.trace),)


def test_a_file_with_code_in_it_is_refused_and_the_code_does_not_run(tmp_path):
    path, trace = tmp_path / "checkpoint_latest.pth", tmp_path / "trace"
    torch.save({"step": 1, "weights": Hostile(trace)}, path)
    (tmp_path / "checkpoint_latest.pth.sha256").write_text(hashlib.sha256(path.read_bytes()).hexdigest())

    with pytest.raises(CheckpointError, match=r"checkpoint_latest.pth: not a file of plain types"):
        checkpoint.load(path)
    with pytest.raises(CheckpointError, match=r"not a weights file"):
        read_weights(path)
    assert not trace.exists()
    torch.load(path, weights_only=False)  # what would have happened
    assert trace.exists()


@pytest.mark.parametrize("value", [np.float64(1.0), Path("x"), {1, 2}])
def test_only_plain_types_are_saved(tmp_path, value):
    with pytest.raises(CheckpointError, match=r"in a checkpoint") as e:
        checkpoint.save({"train": {"loss": [value]}}, tmp_path / "x.pth")
    assert "state['train']['loss'][0]" in str(e.value)
    assert not list(tmp_path.iterdir())


def test_a_kill_while_saving_leaves_a_readable_file(tmp_path):
    script = tmp_path / "trials.py"  # forks writers, which no process with threads of torch may do
    script.write_text("import json; from tests.faults import saving; print(json.dumps(saving.kill_while_saving(8)))")

    found = run_ranks(1, script).json

    assert (found["trials"], found["unreadable"], found["lost"]) == (8, 0, 0)


def test_as_many_former_versions_as_asked_for_are_kept_and_used_in_turn(tmp_path):
    path = tmp_path / "checkpoint_latest.pth"
    for step in range(1, 6):
        checkpoint.save(state(step), path, keep=3)

    found = []
    for candidate in (path, *(tmp_path / f"checkpoint_latest_previous{n}.pth" for n in ("", "2", "3"))):
        found.append(checkpoint.load(path)["step"])
        candidate.write_bytes(b"damaged")

    assert found == [5, 4, 3, 2]
    with pytest.raises(CheckpointError):
        checkpoint.load(path)


def test_a_file_that_takes_the_place_of_the_newest_one_leaves_the_former_versions(tmp_path):
    path = tmp_path / "folder" / "checkpoint_latest.pth"
    for step, keep in ((1, 1), (2, 1), (3, 0)):
        checkpoint.save(state(step), path, keep=keep)

    newest, former = (checkpoint.load(path.with_name(f"checkpoint_latest{n}.pth")) for n in ("", "_previous"))
    assert (newest["step"], former["step"]) == (3, 1) and len(list(path.parent.iterdir())) == 4
    assert newest["options"] == {"a": [1, None, "x"]} and torch.equal(newest["weights"], state(3)["weights"])


def test_what_a_killed_save_left_is_swept_away(tmp_path):
    path = tmp_path / "checkpoint_latest.pth"
    (tmp_path / ".checkpoint_latest.pth.123.tmp").write_bytes(b"half")

    checkpoint.save(state(1), path)

    assert not list(tmp_path.glob(".*"))

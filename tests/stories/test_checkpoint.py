"""Checkpoints: written whole, read or refused; what a run resumes from, when it is finished, its
first step.
"""

import errno
import hashlib
import os
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from main_train_vrt import build_data, read_options
from models.model_vrt import ModelVRT
from models.portable import read_weights
from models.select_network import NETWORKS
from tests.dist.launching import run_ranks
from tests.helpers.checked import present
from tests.helpers.train_files import write_options
from utils.dist.state import RUN, LaunchInfo
from utils.errors import CheckpointError, DataError, OptionError
from utils.files import MARK
from utils.options.models import TrainOptions, WatchdogOptions
from utils.run import checkpoint
from utils.run.checkpoint import DataOrder, Progress, find_checkpoint, left_to_do, planned_steps
from utils.run.folder import only_run_in
from utils.run.measure import Health
from utils.run.writers import Experiment


def state(step):
    return {
        "step": step,
        "weights": torch.full((1000,), float(step)),
        "options": {"a": [1, None, "x"]},
    }


@pytest.mark.parametrize(
    "damage",
    [
        "flip",
        "cut",
        "empty",
        "gone",
        "EIO",
        "folder",
        "torn sidecar",
        "no sidecar",
        "flip without sidecar",
    ],
)
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
    elif damage == "flip without sidecar":
        path.with_name(f"{path.name}.sha256").unlink()
        content[content.find(state(3)["weights"].numpy().tobytes()) + 2] ^= 1
        path.write_bytes(content)
    elif damage != "gone":
        path.write_bytes({"flip": content, "cut": content[:-100], "empty": b""}[damage])

    assert checkpoint.load(path)["step"] == 2
    assert (
        "the former version is used instead" in caplog.text
        and "checkpoint_latest_previous.pth" in caplog.text
    )
    if damage == "EIO":  # the run goes on, and its next save keeps the version that can be read
        checkpoint.save(state(4), path)
        path.write_bytes(b"")
        assert checkpoint.load(path)["step"] == 2


@pytest.mark.parametrize("code", [errno.EINVAL, errno.ENOTSUP])
def test_a_file_system_that_syncs_no_folders_and_tells_no_sizes_takes_checkpoints(
    tmp_path, monkeypatch, code
):
    sync, path = os.fsync, tmp_path / "checkpoint_latest.pth"

    def of_files_only(descriptor):
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(code, os.strerror(code))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", of_files_only)
    monkeypatch.setattr(
        os, "statvfs", lambda _: os.statvfs_result((4096, 4096, 0, 0, 0, 0, 0, 0, 0, 255))
    )

    checkpoint.save(state(1), path)

    assert checkpoint.load(path)["step"] == 1


@pytest.mark.parametrize(
    "content", [b"junk\n", b"hello world, this is no checkpoint", b"version https://git-lfs"]
)
def test_a_file_of_something_else_is_no_checkpoint(tmp_path, content):
    path = tmp_path / "weights.pth"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match="not a file of plain types"):
        checkpoint.load(path)
    with pytest.raises(CheckpointError, match="not a weights file"):
        read_weights(path)


def test_weights_with_a_flipped_bit_are_refused_and_those_without_checksums_are_read(tmp_path):
    path = tmp_path / "weights.pth"
    weights = {"conv.weight": torch.arange(1000.0)}
    torch.save(weights, path)
    content = bytearray(path.read_bytes())
    content[content.find(weights["conv.weight"].numpy().tobytes()) + 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match="the bytes of weights/data/0 in it have changed"):
        read_weights(path)

    torch.serialization.set_crc32_options(False)
    try:
        torch.save(weights, path)
    finally:
        torch.serialization.set_crc32_options(True)
    assert torch.equal(read_weights(path)["conv.weight"], weights["conv.weight"])


class Hostile:
    """A pickle that leaves a file behind when it is loaded without care."""

    def __init__(self, trace):
        self.trace = trace

    def __reduce__(self):
        return os.mkdir, (str(self.trace),)


def test_a_file_with_code_in_it_is_refused_and_the_code_does_not_run(tmp_path):
    path, trace = tmp_path / "checkpoint_latest.pth", tmp_path / "trace"
    torch.save({"step": 1, "weights": Hostile(trace)}, path)
    (tmp_path / "checkpoint_latest.pth.sha256").write_text(
        hashlib.sha256(path.read_bytes()).hexdigest()
    )

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
    script.write_text(
        "import json\n"
        "from tests.faults import saving\n"
        "print(json.dumps(saving.kill_while_saving(8)))\n"
    )

    found = run_ranks(1, script).json

    assert (found["trials"], found["unreadable"], found["lost"]) == (8, 0, 0)


def test_as_many_former_versions_as_asked_for_are_kept_and_used_in_turn(tmp_path):
    path = tmp_path / "checkpoint_latest.pth"
    for step in range(1, 6):
        checkpoint.save(state(step), path, keep=3)

    found = []
    for candidate in (
        path,
        *(tmp_path / f"checkpoint_latest_previous{n}.pth" for n in ("", "2", "3")),
    ):
        found.append(checkpoint.load(path)["step"])
        candidate.write_bytes(b"damaged")

    assert found == [5, 4, 3, 2]
    with pytest.raises(CheckpointError):
        checkpoint.load(path)


def test_a_file_system_without_hard_links_keeps_former_versions_too(tmp_path, monkeypatch):
    def no_link(*_: object) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", no_link)
    path = tmp_path / "checkpoint_latest.pth"
    for step in (1, 2, 3):
        checkpoint.save(state(step), path, keep=2)

    former = [tmp_path / f"checkpoint_latest_previous{n}.pth" for n in ("", "2")]
    assert [checkpoint.load(file)["step"] for file in (path, *former)] == [3, 2, 1]


def test_a_new_file_leaves_the_former_ones_and_nothing_of_a_killed_save(
    tmp_path,
):
    path = tmp_path / "folder" / "checkpoint_latest.pth"
    for step, keep in ((1, 1), (2, 1), (3, 0)):
        checkpoint.save(state(step), path, keep=keep)
        # As a killed save leaves it
        (path.parent / ".checkpoint_latest.pth.123.tmp").write_bytes(b"half")
    checkpoint.save(state(3), path, keep=0)

    newest, former = (
        checkpoint.load(path.with_name(f"checkpoint_latest{n}.pth")) for n in ("", "_previous")
    )
    assert (newest["step"], former["step"]) == (3, 1) and len(list(path.parent.iterdir())) == 4
    assert newest["options"] == {"a": [1, None, "x"]} and torch.equal(
        newest["weights"], state(3)["weights"]
    )


def write(folder, name, step):
    """A checkpoint of `step` as checkpoints/checkpoint_<name>.pth of the run in `folder`;
    "damaged": not readable.
    """
    path = folder / "checkpoints" / f"checkpoint_{name}.pth"
    path.parent.mkdir(parents=True, exist_ok=True)
    if step == "damaged":
        path.write_bytes(b"")
    elif step is not None:
        values = {"model_state_dict": {}, "optimizer": {}, "epoch": 0, "batch": 0, "options": {}}
        checkpoint.save({"step": step, **values}, path)
    return path


UNREADABLE = "no readable checkpoint"


@pytest.mark.parametrize(("resume", "own", "best", "other", "expected"), [
    # path.resume, steps in this run's latest and best checkpoint and in another run's latest, what
    # it resumes from
    (None, None, None, None, None), (None, 4, None, None, "path.resume is null"),
    ("auto", None, None, None, None), ("auto", 4, 2, None, ("own", 4)),
    ("auto", "damaged", 2, None, UNREADABLE), ("other", None, None, 4, ("other", 4)),
    *(("other", 4, None, other, ("own", 4)) for other in (2, 4, 6, None)),
    # What is left of this run must not be overwritten by another's checkpoint, unless a person
    # decides so.
    ("other", "damaged", None, 6, UNREADABLE), ("other", None, None, "damaged", UNREADABLE),
    ("other", None, None, None, "no such checkpoint"),
    ("folder of other", None, None, None, "no such checkpoint"),
    ("best", 4, 2, None, ("own", 4)), ("best", 4, 4, None, ("best", 4)),
    ("best", 4, "damaged", None, UNREADABLE), ("best", "damaged", 2, None, ("best", 2)),
    ("best", None, 2, None, ("best", 2)), ("own", 4, 2, None, ("own", 4)),
    ("folder of own", 4, None, None, ("own", 4)), ("folder of other", None, None, 4, ("other", 4)),
    ("checkpoints of other", None, None, 4, ("other", 4)),
    ("folder of other", 2, None, 4, ("own", 2)),
])  # fmt: skip
def test_which_checkpoint_wins(tmp_path, resume, own, best, other, expected):
    runs = {"own": tmp_path / "run", "other": tmp_path / "other"}
    files = {
        name: write(runs[name], "latest", step) for name, step in (("own", own), ("other", other))
    }
    files["best"] = write(runs["own"], "best", best)
    named = {f"folder of {name}": folder for name, folder in runs.items()} | files
    named["checkpoints of other"] = runs["other"] / "checkpoints"

    def find():
        return find_checkpoint(str(named.get(resume, resume)) if resume else None, runs["own"])

    if isinstance(expected, str):
        with pytest.raises((CheckpointError, OptionError), match=expected):
            find()
    elif expected is None:
        assert find() is None
    else:
        name, step = expected
        found = find()
        assert (found.path, found.state["step"]) == (files[name], step)
        # Only a file that the user named, and got, allows other data than before.
        assert found.is_named == (resume.rpartition(" ")[2] == name)


@pytest.mark.parametrize(("step", "validated", "stops", "test_every", "left"), [
    # a run of 10 steps; test_every 0: without a test split
    (0, 0, 0, 4, "steps"), (3, 0, 0, 4, "steps"), (4, 0, 2, 4, "steps"), (4, 4, 0, 4, "steps"),
    (4, 0, 0, 0, "steps"),
    (4, 0, 0, 4, "validation"), (4, 0, 1, 4, "validation"),  # cut before its validation, or in it
    (10, 8, 0, 4, "validation"), (10, 0, 0, 5, "validation"),  # the last step, whatever its number
    (8, 4, 0, 4, "validation"), (10, 8, 1, 4, "validation"), (11, 8, 0, 4, "validation"),
    (10, 8, 2, 4, "nothing"), (10, 10, 0, 4, "nothing"), (10, 0, 0, 0, "nothing"),
    (12, 12, 0, 4, "nothing"),  # total_iter was lowered
])  # fmt: skip
def test_when_a_run_is_finished(step, validated, stops, test_every, left):
    progress = Progress(step=step, validated=validated, validation_stops=stops)
    assert left_to_do(progress, 10, test_every) == left


def test_two_starts_in_one_second_leave_two_option_files(tmp_path):
    opt = read_options(["--opt", str(write_options(tmp_path))])
    assert len({opt.save(tmp_path / "saved") for _ in range(3)}) == 3


@NETWORKS.register("watched")
class Watched(nn.Module):
    """Remembers the phase of each forward and backward pass."""

    def __init__(self, size: int = 3) -> None:
        super().__init__()
        self.conv, self.slow = nn.Conv2d(3, 3, size, 1, size // 2), nn.Conv2d(3, 3, 1)
        self.phases: list[str] = []

    def forward(self, lq: Tensor, spike: Tensor | None = None) -> Tensor:
        self.phases.append(RUN.place.phase)
        out = self.slow(self.conv(lq.flatten(0, 1))).view_as(lq)
        if out.requires_grad:
            out.register_hook(lambda _: self.phases.append(RUN.place.phase))
        return out


def model(folder, *overrides, state=None, **netG):
    options = write_options(folder, netG={"net_type": "watched"} | netG)
    made = ModelVRT(read_options(["--opt", str(options), *overrides]))
    made.init_train(state)
    return made


def batch(value=0.5):
    return {
        "lq": torch.full((1, 2, 3, 8, 8), value),
        "gt": torch.zeros(1, 2, 3, 8, 8),
        "key": ["a"],
    }


def state_of(made):
    return made.training_state() | {"options": made.opt.plain()}


def test_rank_0_alone_copies_the_state_for_a_checkpoint(tmp_path, monkeypatch):
    made = model(tmp_path)
    monkeypatch.setattr(RUN, "launch", LaunchInfo("torchrun", rank=1, local_rank=1, world_size=2))
    opt, progress = made.opt, Progress(step=3)
    health = Health(opt.folder, opt.train, opt.datasets, 4)
    experiment = Experiment(opt.folder, opt.plain(), DataOrder(1, "", None, 1), health)

    experiment.save("latest", lambda: pytest.fail("rank 1 copies weights and moments"), progress)

    assert progress.saved == 3
    assert not list((tmp_path / "experiments").rglob("*.pth"))


def test_the_lock_of_another_host_is_waited_for_longer(tmp_path):
    holder = """if True:
        import fcntl, sys, time
        file = open(sys.argv[1], "w")
        fcntl.lockf(file, fcntl.LOCK_EX)
        file.write("process 7 on elsewhere, since then"), file.flush()
        print("locked", flush=True)
        time.sleep(4)
    """
    with subprocess.Popen(
        [sys.executable, "-c", holder, tmp_path / ".lock"], stdout=subprocess.PIPE
    ) as process:
        present(process.stdout).readline()
        (tmp_path / MARK).touch()
        with only_run_in(tmp_path, (), ()):
            assert process.wait(10) == 0


def test_a_step_that_builds_a_new_graph_has_the_time_of_a_start(tmp_path):
    watched = model(tmp_path, "train.fix_iter=2", 'train.fix_keys=["slow"]')
    budgets = WatchdogOptions(stall_s=1, start_s=50)

    for step in (1, 2, 3):
        watched.optimize_parameters(step, [batch()])

    assert [budgets.of(name) for name in watched.netG.phases] == [50, 50, 50, 50, 1, 1]
    assert watched.netG.phases[0] == "forward in first step"
    assert RUN.place.phase == "optimizer"


def test_moments_follow_their_parameters_when_the_groups_change(tmp_path):
    before = model(tmp_path / "a", 'train.fix_keys=["conv"]')
    before.optimize_parameters(1, [batch()])

    after = model(tmp_path / "b", 'train.fix_keys=["slow"]', state=state_of(before))

    for name, parameter in after.netG.named_parameters():
        then = dict(before.netG.named_parameters())[name]
        for key in ("exp_avg", "exp_avg_sq"):
            assert torch.equal(
                after.optimizer.state[parameter][key], before.optimizer.state[then][key]
            )


def test_a_changed_network_is_refused_in_a_few_lines_that_name_the_change(tmp_path):
    before = model(tmp_path / "a")

    with pytest.raises(CheckpointError) as refused:
        model(tmp_path / "b", "netG.size=5", state=state_of(before))

    assert (
        "undo the change of netG.size" in refused.value.do and str(refused.value).count("\n") < 12
    )


def test_the_average_starts_from_its_own_weights(tmp_path):
    own = {key: value + 1 for key, value in model(tmp_path).netG.state_dict().items()}
    torch.save({"params": own}, tmp_path / "1_E.pth")

    made = model(tmp_path, f"path.pretrained_netE={tmp_path / '1_E.pth'}", "train.E_decay=0.9")

    assert all(torch.equal(value, own[key]) for key, value in made.netE.state_dict().items())
    assert not torch.equal(made.netG.conv.weight, made.netE.conv.weight)


def test_the_loader_speaks_before_the_watchdog_by_default(tmp_path):
    opt = read_options(["--opt", str(write_options(tmp_path)), "watchdog.stall_s=10"])

    assert build_data(opt)[0].loader.timeout == 8


@pytest.mark.parametrize(("total_iter", "epochs", "progress", "expected"), [
    (100, None, Progress(), 100), (100, 5, Progress(), 50), (30, 5, Progress(), 30),
    (None, 5, Progress(), 50),
    (None, 5, Progress(step=9, epoch=2, batch=3), 36),  # former epochs had fewer steps
    (None, 5, Progress(step=50, epoch=4, batch=10), 50),
])  # fmt: skip
def test_the_planned_end(total_iter, epochs, progress, expected):
    assert (
        planned_steps(TrainOptions(total_iter=total_iter, epochs=epochs), 10, progress) == expected
    )


def test_test_clips_without_sharp_frames_are_refused_before_the_first_step(tmp_path):
    opt = read_options(["--opt", str(write_options(tmp_path)), "datasets.test.dataroot_gt=null"])

    with pytest.raises(DataError, match="3 test clips have no sharp frames") as refused:
        build_data(opt)

    assert refused.value.where == "datasets.test.dataroot_gt"

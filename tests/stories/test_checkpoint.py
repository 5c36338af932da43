"""Checkpoints: how they are written, read and refused, and from which checkpoint a run resumes.

Most checkpoints of this file are small files that the tests write. The tests of the training state
use the network "watched". It notes the phases of its steps. Whole runs that resume are tested in
tests/stories/test_main_train.py and tests/dist/test_resume.py.

What is tested: checkpoint.py, resume.py, position.py and restore_position.py in utils/run, the
weights files of models/weights_file.py, and the state of training in models/model_state.py.
"""

import errno
import fcntl
import hashlib
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from main_train_vrt import build_data, read_options
from models.model_vrt import ModelVRT
from models.select_network import NETWORKS
from models.weights_file import read_weights
from tests.dist.launching import run_ranks
from tests.helpers.checked import not_none
from tests.helpers.train_files import write_options
from utils.dist.state import RUN, LaunchInfo
from utils.errors import CheckpointError, DataError, NonFiniteError, OptionError
from utils.files import MARK
from utils.options.loader_options import DatasetsOptions
from utils.options.train_options import TrainOptions
from utils.options.watchdog_options import WatchdogOptions
from utils.run import checkpoint
from utils.run.experiment import Experiment
from utils.run.folder import only_run_in
from utils.run.health import Health
from utils.run.position import DataOrder, Progress, left_to_do, planned_steps
from utils.run.restore_position import restore_progress
from utils.run.resume import Resumed, find_checkpoint, restoring

# ---- Writing ----


def state(step: int) -> dict[str, Any]:
    """Return the content of a small checkpoint."""
    return {
        "step": step,
        "weights": torch.full((1000,), float(step)),
        "options": {"a": [1, None, "x"]},
    }


def bytes_of_weights(step: int) -> bytes:
    """Return the bytes of the weights of `state`. The file of a checkpoint contains these bytes."""
    return state(step)["weights"].numpy().tobytes()


@pytest.fixture
def path(tmp_path):
    """Give the path of a checkpoint that does not exist yet."""
    return tmp_path / "checkpoint_latest.pth"


def former_versions(path: Path, count: int) -> list[Path]:
    """Return the paths of former versions of a checkpoint, the youngest first."""
    names = ("previous", "previous2", "previous3")
    return [path.with_name(f"checkpoint_latest_{name}.pth") for name in names[:count]]


@pytest.mark.parametrize("code", [errno.EINVAL, errno.ENOTSUP], ids=["EINVAL", "ENOTSUP"])
def test_a_file_system_that_syncs_no_folders_takes_checkpoints(path, monkeypatch, code):
    """`fsync` of a folder raises an error, as on some file systems. A save must work without it."""
    sync = os.fsync

    def sync_files_only(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(code, os.strerror(code))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", sync_files_only)

    checkpoint.save(state(1), path)

    assert checkpoint.load(path)["step"] == 1


def test_a_file_system_that_tells_no_sizes_takes_checkpoints(path, monkeypatch):
    # Such a file system says that it has 0 blocks of 4096 bytes, and that 0 are free. The first
    # fields are block size, fragment size, blocks and free blocks. The other fields are not read.
    without_sizes = os.statvfs_result((4096, 4096, 0, 0, 0, 0, 0, 0, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda _: without_sizes)

    checkpoint.save(state(1), path)

    assert checkpoint.load(path)["step"] == 1


@pytest.mark.parametrize(
    "value", [np.float64(1.0), Path("x"), {1, 2}], ids=["NumPy", "path", "set"]
)
def test_only_plain_types_are_saved(tmp_path, value):
    with pytest.raises(CheckpointError, match=r"in a checkpoint") as error:
        checkpoint.save({"train": {"loss": [value]}}, tmp_path / "x.pth")

    assert "state['train']['loss'][0]" in str(error.value)
    assert not list(tmp_path.iterdir())


def test_a_kill_while_saving_leaves_a_readable_file(tmp_path):
    # The script forks the processes that write. The process of the test must not fork, because it
    # has threads of torch.
    script = tmp_path / "trials.py"
    script.write_text(
        "import json\n"
        "from tests.faults import saving\n"
        "print(json.dumps(saving.kill_while_saving(8)))\n"
    )

    found = run_ranks(1, script).json

    # There are only 8 trials here, because trials take seconds. `make faults` runs 200 trials
    # (tests/faults/trials.py).
    assert found["trials"] == 8
    assert found["unreadable"] == 0
    assert found["lost"] == 0


def test_as_many_former_versions_as_asked_for_are_used_in_turn(path):
    for step in range(1, 6):
        checkpoint.save(state(step), path, keep=3)

    loaded = []
    for version in (path, *former_versions(path, count=3)):
        loaded.append(checkpoint.load(path)["step"])
        # Damage the version that was just read, so that the next `load` needs an older version.
        version.write_bytes(b"damaged")

    assert loaded == [5, 4, 3, 2]
    with pytest.raises(CheckpointError):
        checkpoint.load(path)


def test_a_file_system_without_hard_links_keeps_former_versions_too(path, monkeypatch):
    def no_link(*_: object) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", no_link)

    for step in (1, 2, 3):
        checkpoint.save(state(step), path, keep=2)

    versions = [path, *former_versions(path, count=2)]
    assert [checkpoint.load(version)["step"] for version in versions] == [3, 2, 1]


@pytest.fixture
def saved_again(tmp_path):
    """Give the path of a checkpoint that was saved four times, with remains of killed saves.

    With keep=0, a save replaces the latest file, and the former version stays as it is:

        save of step   keep   latest   former version
        1              1      1        none
        2              1      2        1
        3, twice       0      3        1
    """
    path = tmp_path / "folder" / "checkpoint_latest.pth"
    for step, keep in ((1, 1), (2, 1), (3, 0)):
        checkpoint.save(state(step), path, keep=keep)
        # A killed save leaves such a file. The next save must remove the file.
        (path.parent / ".checkpoint_latest.pth.123.tmp").write_bytes(b"half")
    checkpoint.save(state(3), path, keep=0)
    return path


def test_a_new_file_leaves_the_former_ones(saved_again):
    (former,) = former_versions(saved_again, count=1)

    assert checkpoint.load(saved_again)["step"] == 3
    assert checkpoint.load(former)["step"] == 1


def test_a_new_file_leaves_nothing_of_a_killed_save(saved_again):
    # The folder has the latest checkpoint and the former checkpoint, and a checksum of each.
    assert len(list(saved_again.parent.iterdir())) == 4


def test_what_is_loaded_is_what_was_saved(saved_again):
    loaded = checkpoint.load(saved_again)

    assert loaded["options"] == {"a": [1, None, "x"]}
    assert torch.equal(loaded["weights"], state(3)["weights"])


# ---- Reading: damaged files ----


def flip_a_bit(path: Path) -> None:
    """Change a bit of the weights. torch.load alone would not notice the change."""
    content = bytearray(path.read_bytes())
    content[2000] ^= 1  # within the weights, 1000 numbers of 4 bytes
    path.write_bytes(content)


def cut(path: Path) -> None:
    """Remove the last 100 bytes of the file."""
    path.write_bytes(path.read_bytes()[:-100])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def remove(path: Path) -> None:
    path.unlink()


def cannot_be_read(path: Path) -> None:
    """Replace the file by a link to /proc/self/mem, which can be opened but not read (EIO)."""
    path.unlink()
    path.symlink_to("/proc/self/mem")


def make_a_folder(path: Path) -> None:
    """Replace the file by an empty folder of the same name."""
    path.unlink()
    path.mkdir()


def checksum_of(path: Path) -> Path:
    """Return the file with the checksum of a checkpoint."""
    return path.with_name(f"{path.name}.sha256")


def tear_checksum(path: Path) -> None:
    """Replace the checksum by two bytes that are no text in UTF-8."""
    checksum_of(path).write_bytes(b"\xff\xfe")


def cut_without_checksum(path: Path) -> None:
    checksum_of(path).unlink()
    cut(path)


def flip_a_bit_without_checksum(path: Path) -> None:
    """Remove the checksum, and change a bit of the weights of step 3."""
    checksum_of(path).unlink()
    content = bytearray(path.read_bytes())
    # Change the third byte of the first weight. Any byte of the weights would do.
    content[content.find(bytes_of_weights(3)) + 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    "damage",
    [
        flip_a_bit,
        cut,
        empty,
        remove,
        cannot_be_read,
        make_a_folder,
        tear_checksum,
        cut_without_checksum,
        flip_a_bit_without_checksum,
    ],
)
def test_a_damaged_file_gives_way_to_the_previous_one(path, damage: Callable[[Path], None], caplog):
    for step in (1, 2, 3):
        checkpoint.save(state(step), path)
    damage(path)

    loaded = checkpoint.load(path)

    assert loaded["step"] == 2
    assert "the former version is used instead" in caplog.text
    assert "checkpoint_latest_previous.pth" in caplog.text


def test_a_save_after_a_file_that_cannot_be_read_keeps_the_version_that_can(path):
    for step in (1, 2, 3):
        checkpoint.save(state(step), path)
    cannot_be_read(path)

    checkpoint.save(state(4), path)

    # What the file and its former version hold:
    #
    #                       file          former version
    #     steps 1, 2, 3     3             2
    #     cannot_be_read    unreadable    2
    #     step 4            4             2, because an unreadable file does not replace it
    #     empty             nothing       2
    empty(path)
    assert checkpoint.load(path)["step"] == 2


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"junk\n", id="a line"),
        pytest.param(b"hello world, this is no checkpoint", id="a sentence"),
        pytest.param(b"version https://git-lfs", id="pointer of Git LFS"),
    ],
)
@pytest.mark.parametrize(
    ("read", "message"),
    [
        pytest.param(checkpoint.load, "not a file of plain types", id="checkpoint"),
        pytest.param(read_weights, "not a weights file", id="weights"),
    ],
)
def test_a_file_of_something_else_is_refused(tmp_path, content, read, message):
    path = tmp_path / "weights.pth"
    path.write_bytes(content)

    with pytest.raises(CheckpointError, match=message):
        read(path)


def test_weights_with_a_flipped_bit_are_refused(tmp_path):
    path = tmp_path / "weights.pth"
    weights = torch.arange(1000.0)
    torch.save({"conv.weight": weights}, path)
    content = bytearray(path.read_bytes())
    # Change the third byte of the first weight. Any byte of the weights would do.
    content[content.find(weights.numpy().tobytes()) + 2] ^= 1
    path.write_bytes(content)

    with pytest.raises(CheckpointError, match="the bytes of weights/data/0 in it have changed"):
        read_weights(path)


def test_weights_without_checksums_are_read(tmp_path):
    path = tmp_path / "weights.pth"
    weights = torch.arange(1000.0)
    torch.serialization.set_crc32_options(False)
    try:
        torch.save({"conv.weight": weights}, path)
    finally:
        torch.serialization.set_crc32_options(True)

    assert torch.equal(read_weights(path)["conv.weight"], weights)


# ---- Reading: files with code ----


class Hostile:
    """An object whose pickle makes the folder `trace` when it is loaded without checks."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self):
        # pickle saves this call, and runs it when the object is loaded.
        return os.mkdir, (str(self.trace),)


class HostileFile(NamedTuple):
    """A checkpoint that contains code, and has a correct checksum."""

    path: Path
    trace: Path  # the folder that the code would make


@pytest.fixture
def hostile(path, tmp_path):
    """Give a checkpoint that contains code, and has a correct checksum."""
    trace = tmp_path / "trace"
    torch.save({"step": 1, "weights": Hostile(trace)}, path)
    checksum_of(path).write_text(hashlib.sha256(path.read_bytes()).hexdigest())
    return HostileFile(path, trace)


@pytest.mark.parametrize(
    ("read", "message"),
    [
        pytest.param(
            checkpoint.load, "checkpoint_latest.pth: not a file of plain types", id="checkpoint"
        ),
        pytest.param(read_weights, "not a weights file", id="weights"),
    ],
)
def test_code_in_a_file_does_not_run(hostile, read, message):
    with pytest.raises(CheckpointError, match=message):
        read(hostile.path)

    assert not hostile.trace.exists()


def test_the_code_would_run_if_the_file_were_loaded_without_care(hostile):
    torch.load(hostile.path, weights_only=False)

    assert hostile.trace.exists()


# ---- What a run resumes from ----


def write_checkpoint(folder, name, step):
    """Write checkpoints/checkpoint_<name>.pth of the run in `folder`. Returns its path.

    step: the step of the checkpoint. "damaged": write a file that cannot be read. None: write no
        file.
    """
    path = folder / "checkpoints" / f"checkpoint_{name}.pth"
    path.parent.mkdir(parents=True, exist_ok=True)
    if step == "damaged":
        path.write_bytes(b"")
    elif step is not None:
        values = {"model_state_dict": {}, "optimizer": {}, "epoch": 0, "batch": 0, "options": {}}
        checkpoint.save({"step": step, **values}, path)
    return path


class Runs:
    """The checkpoints of two runs: "own" is the run that is started, and "other" is another run.

    own: step of the latest checkpoint of this run. best: step of the best checkpoint of this run.
    other: step of the latest checkpoint of another run. Each of the three may be None (no such
        file) or "damaged".
    """

    def __init__(self, root, own=None, best=None, other=None):
        self.folder = root / "run"
        self.files = {
            "own": write_checkpoint(self.folder, "latest", own),
            "best": write_checkpoint(self.folder, "best", best),
            "other": write_checkpoint(root / "other", "latest", other),
        }
        # The values of the option path.resume: a word of the cases below -> a file or folder.
        self.places = {
            **self.files,
            "folder of own": self.folder,
            "folder of other": root / "other",
            "checkpoints of other": root / "other" / "checkpoints",
        }

    def find(self, resume):
        """Return what the run resumes from. resume: None, "auto", or a key of `places`."""
        if resume not in (None, "auto"):
            resume = str(self.places[resume])
        return find_checkpoint(resume, self.folder)


@pytest.mark.parametrize("resume", [None, "auto"])
def test_a_run_without_a_checkpoint_begins_anew(tmp_path, resume):
    assert Runs(tmp_path).find(resume) is None


# Each case has path.resume, the steps of the checkpoints that exist, and the checkpoint from which
# the run resumes. E.g. in the third case, the user names a checkpoint of another run, at step 2.
# This run itself has a checkpoint at step 4, because an earlier start continued from step 2. So the
# run resumes from its own checkpoint. In the ids, "its" means "of this run".
RESUMED = [
    pytest.param("auto", {"own": 4, "best": 2}, "own", id="auto: the latest"),
    pytest.param("other", {"other": 4}, "other", id="another run's: this run has none"),
    pytest.param("other", {"own": 4, "other": 2}, "own", id="another run's: this run went on"),
    pytest.param("other", {"own": 4, "other": 4}, "own", id="another run's, at the same step"),
    pytest.param("other", {"own": 4, "other": 6}, "own", id="another run's, at a later step"),
    pytest.param("other", {"own": 4}, "own", id="another run's, which is gone"),
    pytest.param("best", {"own": 4, "best": 2}, "own", id="its best: this run went on"),
    pytest.param("best", {"own": 4, "best": 4}, "best", id="its best, at the same step"),
    pytest.param("best", {"own": "damaged", "best": 2}, "best", id="its best: latest is damaged"),
    pytest.param("best", {"best": 2}, "best", id="its best: no latest"),
    pytest.param("own", {"own": 4, "best": 2}, "own", id="its latest"),
    pytest.param("folder of own", {"own": 4}, "own", id="its folder"),
    pytest.param("folder of other", {"other": 4}, "other", id="another run's folder"),
    pytest.param("checkpoints of other", {"other": 4}, "other", id="another run's checkpoints"),
    pytest.param(
        "folder of other", {"own": 2, "other": 4}, "own", id="another run's folder, own begun"
    ),
]


@pytest.mark.parametrize(("resume", "steps", "chosen"), RESUMED)
def test_which_checkpoint_wins(tmp_path, resume, steps, chosen):
    runs = Runs(tmp_path, **steps)

    found = runs.find(resume)

    assert found.path == runs.files[chosen]
    assert found.state["step"] == steps[chosen]


# A run refuses to continue on other data than before, unless the user has named the checkpoint from
# which it resumes (`is_named`). A user who names a checkpoint is assumed to want the other data.
@pytest.mark.parametrize(("resume", "steps", "chosen"), RESUMED)
def test_other_data_than_before_are_allowed_if_the_user_named_the_checkpoint(
    tmp_path, resume, steps, chosen
):
    found = Runs(tmp_path, **steps).find(resume)

    # The last word says which checkpoint the user named: "folder of own" names "own". The word
    # "auto" names no checkpoint. `chosen` is the checkpoint from which the run resumes.
    named = resume.split(" ")[-1]
    assert found.is_named == (named == chosen)


UNREADABLE = "no readable checkpoint"
MISSING = "no such checkpoint"


@pytest.mark.parametrize(
    ("resume", "steps", "message"),
    [
        pytest.param(None, {"own": 4}, "path.resume is null", id="a run that would begin anew"),
        # Another checkpoint must not overwrite the remaining files of this run, unless a person
        # decides so. So the program refuses.
        pytest.param("auto", {"own": "damaged", "best": 2}, UNREADABLE, id="auto: damaged"),
        pytest.param(
            "other", {"own": "damaged", "other": 6}, UNREADABLE, id="another run's: own damaged"
        ),
        pytest.param("other", {"other": "damaged"}, UNREADABLE, id="another run's, damaged"),
        pytest.param("best", {"own": 4, "best": "damaged"}, UNREADABLE, id="its best, damaged"),
        pytest.param("other", {}, MISSING, id="another run's, missing"),
        pytest.param("folder of other", {}, MISSING, id="another run's folder, empty"),
    ],
)
def test_a_resume_that_would_lose_something_is_refused(tmp_path, resume, steps, message):
    runs = Runs(tmp_path, **steps)

    with pytest.raises((CheckpointError, OptionError), match=message):
        runs.find(resume)


# ---- The position of a resumed run ----

# The order of the training samples. A run resumes only if this order has not changed. An epoch has
# 10 steps here. "0123" stands for a digest of the names of the samples.
ORDER = DataOrder(samples=10, sample_list="0123", seed=1, steps=10)
# The options on which the position depends. With these values, a step takes one sample.
ONE_SAMPLE = {
    "datasets": {"train": {"dataloader_batch_size": 1}},
    "train": {"accumulation_steps": 1},
}


def resumed_position(tmp_path, changed_options=None, **position):
    """Return the position of a run that resumes from its own checkpoint at this position.

    changed_options: additional options of this start. position: keys of the checkpoint, e.g. step.
    """
    options = ONE_SAMPLE | (changed_options or {})
    path = tmp_path / "checkpoints" / "checkpoint_latest.pth"
    state = {"order": vars(ORDER), "options": ONE_SAMPLE, "world_size": 1, **position}
    train = TrainOptions(total_iter=100)
    return restore_progress(Resumed(path, state), tmp_path, options, train, ORDER)


def test_a_checkpoint_without_a_number_of_ranks_counts_as_one_of_one_rank(tmp_path):
    state = {"order": vars(ORDER), "options": ONE_SAMPLE, "step": 3, "epoch": 0, "batch": 3}
    found = Resumed(tmp_path / "checkpoints" / "checkpoint_latest.pth", state)

    progress = restore_progress(found, tmp_path, ONE_SAMPLE, TrainOptions(total_iter=100), ORDER)

    assert (progress.epoch, progress.batch) == (0, 3)


def test_a_save_after_a_resume_from_a_former_version_keeps_a_file_that_can_be_read_again(tmp_path):
    options = ONE_SAMPLE | {"train": {"accumulation_steps": 1, "keep_checkpoints": 1}}
    train = TrainOptions(total_iter=8)
    health = Health(tmp_path, train, DatasetsOptions(), total_iter=8)
    experiment = Experiment(tmp_path, options, ORDER, health)
    for step in (2, 4):
        experiment.save("latest", empty_model, Progress(step=step, batch=step))
    latest = tmp_path / "checkpoints" / "checkpoint_latest.pth"
    # While the run starts, the file of step 4 cannot be read. So the run resumes at step 2. Then
    # the file is back.
    latest.rename(tmp_path / "away")
    found = not_none(find_checkpoint("auto", tmp_path))
    progress = restore_progress(found, tmp_path, options, train, ORDER)
    (tmp_path / "away").rename(latest)

    experiment.save("latest", empty_model, progress)

    (former,) = former_versions(latest, count=1)
    assert checkpoint.load(latest)["step"] == 2
    assert checkpoint.load(former)["step"] == 4


def empty_model():
    """Return the state of a model with one weight."""
    return {"model_state_dict": {"w": torch.zeros(1)}, "optimizer": {}}


# The checkpoint of the next test has 1 sample per step. With this option, the start has 2.
TWO_SAMPLES = {"accumulation_steps": 2}


@pytest.mark.parametrize(
    ("train", "advice"),
    [
        pytest.param(TWO_SAMPLES, "train.accumulation_steps = 1;", id="without global_batch_size"),
        # With this option the program chooses accumulation_steps, so the user must not write it.
        pytest.param(
            TWO_SAMPLES | {"global_batch_size": 2},
            "write train.global_batch_size=1;",
            id="with global_batch_size",
        ),
    ],
)
def test_a_resume_with_another_batch_names_the_option_to_change(tmp_path, train, advice):
    with pytest.raises(OptionError, match="samples a step 1 -> 2") as error:
        resumed_position(tmp_path, {"train": train}, step=3, epoch=0, batch=3)

    assert advice in error.value.do


def test_a_run_that_was_saved_at_the_end_of_an_epoch_begins_the_next_one(tmp_path):
    # An epoch has 10 steps (ORDER), so batch 10 is the end of epoch 1.
    progress = resumed_position(tmp_path, step=20, epoch=1, batch=10)

    assert (progress.step, progress.epoch, progress.batch) == (20, 2, 0)


def test_a_run_that_has_done_no_step_since_its_checkpoint_has_nothing_to_save(tmp_path):
    # `saved` is the step of the checkpoint before this one. This checkpoint is of step 23, so after
    # the resume `saved` must be 23.
    progress = resumed_position(tmp_path, step=23, epoch=2, batch=3, saved=20)

    assert progress.saved == 23


@pytest.mark.parametrize(
    ("section", "key", "best"),
    [
        pytest.param("metric", "mean", None, id="another mean is another PSNR"),
        pytest.param("val", "window", None, id="another window is another PSNR"),
        pytest.param("metric", "more", 31.5, id="further metrics change no PSNR"),
        pytest.param("val", "save_img", 31.5, id="saved pictures change no PSNR"),
    ],
)
def test_the_best_psnr_is_forgotten_if_an_option_of_it_changes(tmp_path, section, key, best):
    """The option `key` was 1 in the checkpoint, and is 2 now. The best PSNR so far was 31.5.

    If the option changes what PSNR measures, old and new PSNRs cannot be compared. Then the best
    PSNR must be None.
    """
    checkpoint_best = checkpoint.own_checkpoint(tmp_path, "best")
    checkpoint_best.parent.mkdir()
    checkpoint_best.touch()
    options_then = ONE_SAMPLE | {section: {key: 1}}

    progress = resumed_position(
        tmp_path, {section: {key: 2}}, step=3, batch=3, best_psnr=31.5, options=options_then
    )

    assert progress.best_psnr == best


def test_an_error_by_the_content_of_a_checkpoint_names_its_file(tmp_path):
    """A KeyError within `restoring` must become a CheckpointError that names the file."""
    found = Resumed(tmp_path / "checkpoint_latest.pth", {})

    with pytest.raises(CheckpointError, match="checkpoint_latest"), restoring(found):
        raise KeyError("exp_avg")  # as the optimizer raises it for a missing moment


def test_an_error_of_weights_that_do_not_fit_names_the_file_of_the_checkpoint(tmp_path):
    found = Resumed(tmp_path / "checkpoint_latest.pth", {})

    with pytest.raises(CheckpointError) as refused, restoring(found):
        raise CheckpointError("the weights do not fit", where="model_state_dict of the checkpoint")

    assert refused.value.where == f"model_state_dict of the checkpoint, {found.path}"


# ---- When a run is finished ----

# In these cases a run has 10 steps. After a signal has stopped a validation twice, the validation
# is not tried again.
#
# progress: `step` is the number of steps done, `validated` is the step of the last complete
#     validation, and `validation_stops` says how often a signal has stopped the validation at
#     `step`.
# test_every: number of steps between validations. 0 means a run without a test set.
# left: what is left to do.


@pytest.mark.parametrize(
    ("progress", "test_every", "left"),
    [
        pytest.param(Progress(), 4, "steps", id="begin"),
        pytest.param(Progress(step=3), 4, "steps", id="between validations"),
        pytest.param(Progress(step=4, validation_stops=2), 4, "steps", id="validation given up"),
        pytest.param(Progress(step=4, validated=4), 4, "steps", id="validated"),
        pytest.param(Progress(step=4), 0, "steps", id="no test set"),
        pytest.param(Progress(step=4), 4, "validation", id="cut before its validation"),
        pytest.param(Progress(step=4, validation_stops=1), 4, "validation", id="cut within it"),
        pytest.param(Progress(step=8, validated=4), 4, "validation", id="second validation"),
        # The last step is validated, whether or not its number is a multiple of test_every.
        pytest.param(Progress(step=10, validated=8), 4, "validation", id="last step"),
        pytest.param(Progress(step=10), 5, "validation", id="last step, a multiple"),
        pytest.param(
            Progress(step=10, validated=8, validation_stops=1), 4, "validation", id="cut at its end"
        ),
        pytest.param(Progress(step=11, validated=8), 4, "validation", id="a step too many"),
        pytest.param(
            Progress(step=10, validated=8, validation_stops=2), 4, "nothing", id="given up at end"
        ),
        pytest.param(Progress(step=10, validated=10), 4, "nothing", id="finished"),
        pytest.param(Progress(step=10), 0, "nothing", id="finished without a test set"),
        pytest.param(Progress(step=12, validated=12), 4, "nothing", id="total_iter was lowered"),
    ],
)
def test_when_a_run_is_finished(progress, test_every, left):
    assert left_to_do(progress, total_iter=10, test_every=test_every) == left


@pytest.mark.parametrize(
    ("total_iter", "epochs", "progress", "expected"),
    [
        # An epoch has 10 steps. E.g. 5 epochs are 50 steps.
        pytest.param(100, None, Progress(), 100, id="steps"),
        pytest.param(100, 5, Progress(), 50, id="epochs end first"),
        pytest.param(30, 5, Progress(), 30, id="steps end first"),
        pytest.param(None, 5, Progress(), 50, id="epochs"),
        # The run has done 9 steps. Epoch 2 still has 10 - 3 = 7 steps, and epochs 3 and 4 have 20
        # steps. So the run ends after 9 + 7 + 20 = 36 steps.
        pytest.param(
            None, 5, Progress(step=9, epoch=2, batch=3), 36, id="former epochs had fewer steps"
        ),
        pytest.param(None, 5, Progress(step=50, epoch=4, batch=10), 50, id="at the end"),
    ],
)
def test_the_planned_end_is_the_first_of_steps_and_epochs(total_iter, epochs, progress, expected):
    train = TrainOptions(total_iter=total_iter, epochs=epochs)

    assert planned_steps(train, steps_per_epoch=10, progress=progress) == expected


# ---- The state of training ----


@NETWORKS.register("watched")
class Watched(nn.Module):
    """A network that notes the phase of the run at each forward pass and each backward pass.

    The phase says what the run is doing, e.g. "forward". The watchdog reads the phase.
    """

    def __init__(self, size: int = 3) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 3, kernel_size=size, padding=size // 2)
        # Some tests freeze this layer for the first steps, by its name (train.fix_keys).
        self.slow = nn.Conv2d(3, 3, kernel_size=1)
        self.phases: list[str] = []

    def forward(self, lq: Tensor, spike: Tensor | None = None) -> Tensor:
        self.note_phase()
        out = self.slow(self.conv(lq.flatten(0, 1))).view_as(lq)
        if out.requires_grad:
            out.register_hook(self.note_phase)  # called in the backward pass
        return out

    def note_phase(self, _gradient: Tensor | None = None) -> None:
        """Note the phase of the run. In backward, torch calls this as a hook, with a gradient."""
        self.phases.append(RUN.place.phase)


def model(folder, *overrides, state=None, **netG):
    """Return a model of the network "watched", ready to train.

    overrides: options as on the command line. state: the checkpoint from which the model continues.
    netG: arguments of the network.
    """
    options = write_options(folder, netG={"net_type": "watched"} | netG)
    made = ModelVRT(read_options(["--opt", str(options), *overrides]))
    made.init_train(state)
    return made


def batch():
    """Return a batch of one clip of two RGB frames of 8 x 8: tensors (1, 2, 3, 8, 8)."""
    return {
        "lq": torch.full((1, 2, 3, 8, 8), 0.5),
        "gt": torch.zeros(1, 2, 3, 8, 8),
        "key": ["a"],
    }


def state_of(made):
    """Return the checkpoint of a model."""
    return made.training_state() | {"options": made.opt.plain()}


@pytest.mark.parametrize("key", ["scaler", "ema_state_dict", "nonfinite_in_a_row"])
def test_a_checkpoint_of_a_version_without_a_key_is_restored(tmp_path, key):
    """Old versions saved checkpoints without this key. A model must continue from them."""
    state = state_of(model(tmp_path))
    del state[key]

    restored = model(tmp_path, state=state)  # the test: this raises no error

    assert restored.nonfinite.in_a_row == 0


@pytest.mark.parametrize("table", ["model_state_dict", "ema_state_dict"])
def test_a_checkpoint_whose_weights_hold_nan_is_refused_with_the_former_one(tmp_path, table):
    """A weight of the checkpoint is NaN. The error must name the former version of the file."""
    state = state_of(model(tmp_path))
    state[table]["conv.bias"][0] = torch.nan

    with pytest.raises(CheckpointError, match=r"NaN in 1 tensor,(.|\n)*_previous\.pth"):
        model(tmp_path, state=state)


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool])
def test_weights_that_are_whole_numbers_are_refused(tmp_path, dtype):
    state = state_of(model(tmp_path))
    state["model_state_dict"]["conv.bias"] = state["model_state_dict"]["conv.bias"].to(dtype)

    with pytest.raises(CheckpointError, match=r"conv\.bias(.|\n)*floating-point"):
        model(tmp_path, state=state)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_weights_that_have_become_nan_are_not_saved(tmp_path, value):
    made = model(tmp_path)
    with torch.no_grad():
        made.netG.conv.bias[0] = value

    with pytest.raises(NonFiniteError, match=r"conv\.bias among them"):
        made.training_state()


def test_the_log_names_only_the_keys_that_froze_something(tmp_path, caplog):
    # "slwo" is a misspelt "slow". No parameter has this word in its name.
    caplog.set_level("INFO")
    made = model(tmp_path, "train.fix_iter=2", 'train.fix_keys=["slow", "slwo"]')
    for step in (1, 2):
        made.optimize_parameters(step, [batch()])

    assert "iteration 2: slow are trained from now on" in caplog.text


def test_only_rank_0_copies_the_state_for_a_checkpoint(tmp_path, monkeypatch):
    """A save of rank 1 must not copy the state, and must not write a file."""
    # Make this process rank 1 of two. The other objects are what an `Experiment` needs.
    opt = model(tmp_path).opt
    rank_1 = LaunchInfo("torchrun", rank=1, local_rank=1, world_size=2)
    monkeypatch.setattr(RUN, "launch", rank_1)
    progress = Progress(step=3)
    health = Health(opt.folder, opt.train, opt.datasets, total_iter=4)
    order = DataOrder(samples=1, sample_list="", seed=None, steps=1)
    experiment = Experiment(opt.folder, opt.plain(), order, health)

    def copy_state():
        pytest.fail("rank 1 copies weights and moments")

    experiment.save("latest", copy_state, progress)

    assert progress.saved == 3
    assert not list((tmp_path / "experiments").rglob("*.pth"))


@pytest.fixture
def watched_steps(tmp_path):
    """Give the network after three steps.

    In step 1 the layer `slow` is frozen. From step 2 on, all weights are trained.
    """
    made = model(tmp_path, "train.fix_iter=2", 'train.fix_keys=["slow"]')
    for step in (1, 2, 3):
        made.optimize_parameters(step, [batch()])
    return made.netG


def test_a_step_that_builds_a_new_graph_has_the_time_limit_of_a_start(watched_steps):
    limits = WatchdogOptions(stall_s=1, start_s=50)

    limits_s = [limits.limit_of_phase(phase) for phase in watched_steps.phases]

    # Each of the three steps has two limits, for its forward pass and for its backward pass. A step
    # that builds a new graph has `start_s`, 50 s. Step 1 builds the first graph. Step 2 builds
    # another graph, because from step 2 on all weights are trained. Step 3 has `stall_s`, 1 s.
    assert limits_s == [50, 50, 50, 50, 1, 1]


def test_the_watchdog_knows_the_phases_of_a_step(watched_steps):
    assert watched_steps.phases[0] == "forward in first step"
    assert RUN.place.phase == "optimizer"  # the last phase


@pytest.mark.parametrize("moment", ["exp_avg", "exp_avg_sq"])
def test_moments_follow_their_parameters_when_the_groups_change(tmp_path, moment):
    # train.fix_keys divides the parameters into two groups of the optimizer. Adam numbers the
    # parameters group by group. So with other keys, a parameter gets another number.
    before = model(tmp_path / "a", 'train.fix_keys=["conv"]')
    before.optimize_parameters(step=1, micro_batches=[batch()])

    after = model(tmp_path / "b", 'train.fix_keys=["slow"]', state=state_of(before))

    parameters_before = dict(before.netG.named_parameters())
    for name, parameter in after.netG.named_parameters():
        found = after.optimizer.state[parameter][moment]
        expected = before.optimizer.state[parameters_before[name]][moment]
        assert torch.equal(found, expected)


def test_a_changed_network_is_refused_in_a_few_lines_that_name_the_change(tmp_path):
    before = model(tmp_path / "a")

    with pytest.raises(CheckpointError) as refused:
        model(tmp_path / "b", "netG.size=5", state=state_of(before))

    assert "undo the change of netG.size" in refused.value.do
    assert str(refused.value).count("\n") < 12


@pytest.mark.parametrize("change", ["missing", "other shape"])
def test_averages_of_another_network_are_refused_in_four_parts(tmp_path, change):
    # An error has four parts: what is wrong, where, what is expected, and what to do.
    before = state_of(model(tmp_path / "a", "train.E_decay=0.9"))
    averages = before["ema_state_dict"]
    weight = averages.pop("conv.weight")
    if change == "other shape":
        averages["conv.weight"] = torch.zeros(*weight.shape, 2)

    with pytest.raises(CheckpointError, match=r"conv\.weight") as refused:
        model(tmp_path / "b", "train.E_decay=0.9", state=before)

    assert "ema_state_dict" in refused.value.where
    assert refused.value.expected
    assert refused.value.do


# A key of Adam's state for a parameter, and a function that makes the value of this key wrong.
WRONG_MOMENTS = [
    pytest.param("exp_avg_sq", lambda moment: moment - 1, id="exp_avg_sq: below 0"),
    pytest.param("step", lambda step: step - 5, id="step: below 0"),
]
for name in ("exp_avg", "exp_avg_sq"):
    WRONG_MOMENTS += [
        pytest.param(name, lambda moment: torch.zeros(7), id=f"{name}: other shape"),
        pytest.param(name, lambda moment: 0.5, id=f"{name}: a number"),
        pytest.param(name, lambda moment: moment * torch.nan, id=f"{name}: NaN"),
        pytest.param(name, lambda moment: moment.long(), id=f"{name}: integers"),
    ]


@pytest.mark.parametrize(("moment", "change"), WRONG_MOMENTS)
def test_moments_that_adam_cannot_have_are_refused_before_the_first_step(tmp_path, moment, change):
    """`change` makes one value of Adam's state wrong. The error must name it and its parameter."""
    before = model(tmp_path / "a")
    before.optimize_parameters(step=1, micro_batches=[batch()])
    saved = state_of(before)
    moments = saved["optimizer"]["state"][0]  # the moments of parameter 0, conv.weight
    moments[moment] = change(moments[moment])

    with pytest.raises(CheckpointError, match=moment) as refused:
        model(tmp_path / "b", state=saved)

    assert "conv.weight" in refused.value.where
    expected = "the number of steps" if moment == "step" else "a moment of the shape"
    assert refused.value.expected.startswith(expected)
    assert refused.value.do


def test_the_average_starts_from_its_own_weights(tmp_path):
    # netE is the moving average of the network netG. Each can start from a file of its own.
    weights = model(tmp_path).netG.state_dict()
    own = {name: value + 1 for name, value in weights.items()}
    torch.save({"params": own}, tmp_path / "1_E.pth")

    made = model(tmp_path, f"path.pretrained_netE={tmp_path / '1_E.pth'}", "train.E_decay=0.9")

    for name, value in made.netE.state_dict().items():
        assert torch.equal(value, own[name])
    assert not torch.equal(made.netG.conv.weight, made.netE.conv.weight)


# ---- The start of a run ----


def test_three_starts_in_one_second_leave_three_option_files(tmp_path):
    opt = read_options(["--opt", str(write_options(tmp_path))])

    saved = {opt.save(tmp_path / "saved") for _ in range(3)}

    assert len(saved) == 3


# A program that holds the lock of a run for 4 seconds, like a process of another host. The program
# writes who holds the lock, as `_take_lock` (utils/run/folder.py) does: a process, its host, and
# the time. Here the host is "elsewhere". A run waits 3 s for a process of its own host
# (WAIT_ON_THIS_HOST_S), and 180 s for a process of another host (WAIT_ON_ANOTHER_HOST_S). So a run
# that waits 4 s has read that the host is another one.
HOLD_LOCK = """
import fcntl
import sys
import time

file = open(sys.argv[1], "w")
fcntl.lockf(file, fcntl.LOCK_EX)
file.write("process 7 on elsewhere, since then")
file.flush()
print("locked", flush=True)
time.sleep(4)
"""


def test_the_lock_of_another_host_is_waited_for_longer(tmp_path):
    """HOLD_LOCK frees the lock after 4 s. Then a run that waits for the lock must get it."""
    command = [sys.executable, "-c", HOLD_LOCK, tmp_path / ".lock"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        not_none(process.stdout).readline()  # returns when the program has printed "locked"
        (tmp_path / MARK).touch()

        with only_run_in(tmp_path, patterns=(), appended=()):
            assert process.wait(timeout=10) == 0


# A program that locks the file of a run, and waits for a line on stdin. Then the program removes
# the file, and acts like a run whose lock file was removed: it makes a new file, locks the new
# file, and only then frees the old one.
MAKE_LOCK_AGAIN = """
import fcntl
import os
import sys

path = sys.argv[1]
old = open(path, "w")
fcntl.lockf(old, fcntl.LOCK_EX)
print("locked", flush=True)
sys.stdin.readline()
os.remove(path)
new = open(path, "w")
fcntl.lockf(new, fcntl.LOCK_EX)
old.close()
print("made again", flush=True)
sys.stdin.readline()
"""


def test_a_start_that_waits_for_a_removed_lock_is_refused_by_the_new_one(tmp_path, monkeypatch):
    """While a second run waits for a lock, the first run makes the removed file of the lock again.

    The first run is the program MAKE_LOCK_AGAIN. The second run, `only_run_in`, must look at the
    new file, find its lock taken, and be refused.
    """
    command = [sys.executable, "-c", MAKE_LOCK_AGAIN, tmp_path / ".lock"]
    lockf = fcntl.lockf
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as program:
        to_program = not_none(program.stdin)
        from_program = not_none(program.stdout)
        assert from_program.readline() == "locked\n"
        answers = []

        def lockf_then_make_again(file, operation):
            """Let the program make the file again as soon as a try has failed.

            The order must be: the first try fails, the program gets a line, the program answers
            that the new file is locked, and the run hears of the failed try. So at the run's next
            try, the old file is free but removed, and the new file is locked.
            """
            try:
                lockf(file, operation)
            except BlockingIOError:
                if not answers:
                    print(file=to_program, flush=True)
                    answers.append(from_program.readline())
                raise

        monkeypatch.setattr(fcntl, "lockf", lockf_then_make_again)
        (tmp_path / MARK).touch()
        try:
            with (
                pytest.raises(OptionError, match="another run is at work in this folder"),
                only_run_in(tmp_path, patterns=(), appended=()),
            ):
                pass
        finally:
            program.kill()
    assert answers == ["made again\n"]


def stale_handle() -> OSError:
    """Return the error that NFS gives for an open file after another host has removed the file."""
    return OSError(errno.ESTALE, "Stale file handle")


def test_a_lock_that_another_host_removed_is_opened_and_locked_anew(tmp_path, monkeypatch, caplog):
    """The file is removed while a run tries to lock it. The run must lock a new file, and log
    nothing.
    """
    (tmp_path / MARK).touch()
    path = tmp_path / ".lock"
    lockf = fcntl.lockf
    calls = []

    def stale_at_first(file, operation):
        calls.append(file)
        if len(calls) == 1:
            path.unlink()
            raise stale_handle()
        lockf(file, operation)

    monkeypatch.setattr(fcntl, "lockf", stale_at_first)

    with only_run_in(tmp_path, patterns=(), appended=()) as folder:
        locked_file = os.fstat(not_none(folder).lock.fileno())

        assert os.path.samestat(os.stat(path), locked_file)
    assert len(calls) == 2
    assert not caplog.records


def test_a_lock_that_is_removed_before_each_try_is_given_up_after_the_limit(tmp_path, monkeypatch):
    """Each try finds a removed file. After the limit, here 0.3 s, the run must be refused."""
    monkeypatch.setattr("utils.run.folder.WAIT_ON_THIS_HOST_S", 0.3)
    (tmp_path / MARK).touch()
    calls = []

    def always_stale(file, operation):
        calls.append(file)
        raise stale_handle()

    monkeypatch.setattr(fcntl, "lockf", always_stale)

    with (
        pytest.raises(OptionError, match="another run is at work in this folder") as refused,
        only_run_in(tmp_path, patterns=(), appended=()),
    ):
        pass

    assert "somebody removes the file" in refused.value.where
    # There are 0.1 s between two tries. The last try is the first one after 0.3 s.
    assert 2 <= len(calls) <= 5


def test_a_lock_that_another_host_removes_while_a_run_is_at_work_is_made_again(
    tmp_path, monkeypatch, caplog
):
    """The locked file disappears. The next `check` must make it again, lock it, and warn."""
    (tmp_path / MARK).touch()
    path = tmp_path / ".lock"
    with only_run_in(tmp_path, patterns=(), appended=()) as folder:
        folder = not_none(folder)
        # On NFS, `fstat` fails for an open file that another host has removed.
        path.unlink()
        fstat = os.fstat

        def stale_if_removed(number):
            if not path.exists():
                raise stale_handle()
            return fstat(number)

        with monkeypatch.context() as patch:
            patch.setattr(os, "fstat", stale_if_removed)
            folder.check()

        assert os.path.samestat(os.stat(path), os.fstat(folder.lock.fileno()))
    assert "the run has made it again" in caplog.text


def test_the_loader_speaks_before_the_watchdog_by_default(tmp_path):
    opt = read_options(["--opt", str(write_options(tmp_path)), "watchdog.stall_s=10"])

    train_data, *_ = build_data(opt)

    assert train_data.loader.timeout == 8  # 0.8 of stall_s


def test_test_clips_without_sharp_frames_are_refused_before_the_first_step(tmp_path):
    opt = read_options(["--opt", str(write_options(tmp_path)), "datasets.test.dataroot_gt=null"])

    with pytest.raises(DataError, match="3 test clips have no sharp frames") as refused:
        build_data(opt)

    assert refused.value.where == "datasets.test.dataroot_gt"

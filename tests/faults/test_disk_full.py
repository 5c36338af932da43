"""A disk that is full, or gets full while a run writes: the run says so with numbers, and keeps the
last checkpoint.

The disks are real: small file systems in memory. Only root can mount them. A run that cannot write
a checkpoint must end, with exit code 3. A run that cannot write a log, a curve or a picture must go
on.

To test another way in which a disk can be full, add a function like `full_at_the_start`, and a row
to the first test.
"""

import json
import os
import re
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch

from main_train_vrt import read_options
from tests.dist.launching import Ranks, run_into
from tests.helpers.small_disk import disk
from tests.helpers.train_files import (
    events_of,
    folder_of_run,
    latest_checkpoint,
    odd_command,
    run_odd,
    train,
    write_odd_options,
    write_options,
)
from utils.errors import CheckpointError
from utils.files import MARK
from utils.run import checkpoint
from utils.run.experiment import Experiment
from utils.run.health import Health
from utils.run.position import DataOrder, Progress

NAME = "checkpoint_latest.pth"
# The order of the samples of a run. A checkpoint stores it, but no test here depends on it.
ORDER = DataOrder(samples=8, sample_list="", seed=0, steps=8)


def no_validation(*changes):
    """Return options of a run that validates nothing. changes: additional options."""
    return (*changes, "datasets.test={}")


def make_folder_of_earlier_run(options):
    """Make the folder of a run with the mark that says that this program made it.

    A run refuses a folder without the mark. The tests mount a disk in the folder before the run.
    """
    folder = folder_of_run(options)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MARK).touch()


def fill(folder: Path) -> None:
    """Fill the file system of a folder to the last block."""
    with open(folder / "filler", "wb", buffering=0) as file, suppress(OSError):
        while file.write(bytes(4096)):
            pass


# ---- One checkpoint ----

# Each function full_... below gets the folder of a disk of 5 MB. The disk already has a checkpoint
# of 2 MB. The function returns the content of a second checkpoint for which the disk has no room.
# If necessary, the function first fills the disk with other files.


def state(step: int, floats: int = 500_000) -> dict[str, object]:
    """Return the content of a checkpoint: 2 MB, because a float has 4 bytes."""
    return {"step": step, "weights": torch.zeros(floats)}


def full_at_the_start(folder):
    """Leave less room than the content needs. The program can see this before it writes."""
    # The disk has 5 x 2^20 bytes = 5.2 MB. After the checkpoint and this file, 5.2 - 2.0 - 2.6 =
    # 0.6 MB are left. The message rounds this to 1 MB.
    (folder / "other").write_bytes(bytes(2_600_000))
    return state(step=2)


def full_in_the_middle(folder):
    """Return a content whose file becomes larger than the program can see beforehand.

    The program sees a slice of ten numbers, so it asks for room for 0 MB. But torch.save writes the
    whole storage behind the slice, 10^6 numbers of 4 bytes: 4 MB.
    """
    return {"step": 2, "weights": torch.zeros(10**6)[:10]}


def full_at_the_sidecar(folder):
    """Leave room for one more file, the checkpoint.

    A checkpoint also has a sidecar, a small file with its checksum. There is no room for this file.
    """
    free_files = os.statvfs(folder).f_ffree
    for number in range(free_files - 1):
        (folder / f"other{number}").touch()
    return state(step=2)


@pytest.mark.parametrize(
    ("fill_disk", "message"),
    [
        (
            full_at_the_start,
            r"too full for a checkpoint: 1 MB free\n.*\n +expected  at least 2 MB",
        ),
        (
            full_in_the_middle,
            r"cannot write the checkpoint: .*\n.*\n +expected .* room for 0 MB \(\d MB are free\)",
        ),
        (
            full_at_the_sidecar,
            r"cannot write the checkpoint: .*No space left",
        ),
    ],
)
def test_the_message_of_a_full_disk_has_numbers_and_the_former_file_stays(
    tmp_path, fill_disk, message
):
    with disk(tmp_path / "disk", "5m", files=40) as folder:
        checkpoint.save(state(step=1), folder / NAME)
        content = fill_disk(folder)

        with pytest.raises(CheckpointError) as error:
            checkpoint.save(content, folder / NAME)

        assert re.search(message, str(error.value)), str(error.value)
        assert checkpoint.load(folder / NAME)["step"] == 1
        # No unfinished file is left. The name of an unfinished file begins with a dot.
        assert not list(folder.glob(".*"))


# ---- The checkpoints of a run ----


def test_two_ranks_stop_with_one_message_when_the_disk_is_full_and_go_on_from_the_last_save(
    tmp_path,
):
    options = write_options(tmp_path)
    changes = no_validation("train.checkpoint_save=1")
    # A checkpoint has 25 MB, and its weights have 13 MB. So a disk of 50 MB has no room for a
    # second checkpoint.
    with disk(folder_of_run(options).parent, "50m"):
        result = train(options, *changes, ranks=2)

        assert result.exit_codes == [3, 3], result.text
        assert result.text.count("CheckpointError: ") == 1
        assert "Traceback" not in result.text
        assert re.search(
            r"too full for a checkpoint: \d+ MB free\n.*\n +expected  at least \d\d MB", result.text
        )
        # The next start goes on from this checkpoint.
        assert latest_checkpoint(options)["step"] == 1


def test_log_lines_go_on_on_a_full_disk_and_the_save_ends_the_run(tmp_path):
    options = write_odd_options(tmp_path)
    changes = no_validation("train.total_iter=14")
    # A step takes 50 ms, so the disk is full long before step 14.
    command = odd_command(options, *changes, case="slow", at_step=50)
    history = folder_of_run(options) / "training_history.jsonl"
    with disk(folder_of_run(options).parent, "5m") as folder:
        with Ranks(1, *command) as running:
            running.wait_for("Iter: 2,", rank=0, limit_s=120)
            fill(folder)
            result = running.wait(limit_s=120)

        # All steps were taken. The run ended only after the last step, when it saved the
        # checkpoint.
        assert result.exit_codes == [3], result.text
        assert "Iter: 14," in result.text
        assert "Traceback" not in result.text
        assert result.text.count(f"cannot write {history}") == 1, result.text
        assert result.text.count("CheckpointError: ") == 1, result.text
        assert re.search(r"too full for a checkpoint: \d+ MB free", result.text)
        # The curves have the entries for which there was room, and no half line.
        entries = [json.loads(line) for line in history.read_text().splitlines()]
        assert [entry["step"] for entry in entries][:2] == [1, 2]


def test_a_run_does_not_start_on_a_full_disk(tmp_path):
    options = write_options(tmp_path)
    with disk(folder_of_run(options).parent, "1m") as folder:
        fill(folder)

        result = train(options)

    assert result.exit_codes == [3]
    assert "DataError: cannot write: No space left on device" in result.text
    assert "Traceback" not in result.text


# ---- What a run writes beside its checkpoints ----


def test_a_validation_that_no_checkpoint_records_is_once_in_tensorboard_after_the_next_start(
    tmp_path,
):
    options = write_odd_options(tmp_path)
    changes = ("train.total_iter=2", "logging.use_tensorboard=true")
    with disk(folder_of_run(options) / "checkpoints", "5m") as checkpoints:
        make_folder_of_earlier_run(options)
        # The writer "filling" of odd_worker.py fills the disk after the validation of step 2. So
        # the checkpoint of this step fails, and the next start validates again.
        failed = run_odd(options, *changes, 'logging.writers=["filling"]')
        (checkpoints / "filler").unlink()
        again = run_odd(options, *changes)

    assert failed.exit_codes == [3]
    assert "Iter: 2, validation" in failed.text
    assert again.exit_codes == [0], again.text
    assert "Iter: 2, validation" in again.text, again.text
    events = events_of(options)
    assert steps_of(events, "val/psnr") == [2]
    assert steps_of(events, "val/ssim") == [2]
    assert steps_of(events, "train/loss") == [1, 2]


def steps_of(events, tag):
    """Return the steps of a curve in TensorBoard."""
    return [event.step for event in events.Scalars(tag)]


def test_a_full_disk_under_tensorboard_is_reported_once_and_the_run_goes_on(tmp_path):
    options = write_odd_options(tmp_path)
    changes = no_validation("train.total_iter=40", "logging.use_tensorboard=true")
    # TensorBoard writes some bytes in each of the 40 steps. A disk of 16 kB has room only for the
    # first steps.
    with disk(folder_of_run(options) / "tb_logger", "16k"):
        make_folder_of_earlier_run(options)

        result = run_odd(options, *changes)

    assert result.exit_codes == [0], result.text
    assert "Finished at iter 40" in result.text, result.text
    assert result.text.count("TensorBoardWriter failed and is left out from now on") == 1
    assert "Traceback" not in result.text
    # TensorBoard writes in a thread of its own. The errors of this thread must be caught.
    assert "Exception in thread" not in result.text


def test_a_full_disk_under_the_logs_changes_no_exit_code(tmp_path):
    options = write_odd_options(tmp_path)
    make_folder_of_earlier_run(options)
    command = odd_command(options, *no_validation("train.total_iter=2", "debug.every=1"))
    # Neither the log files nor stdout can be written. /dev/full is a device that is always full.
    with disk(folder_of_run(options) / "log", "4k") as logs, open("/dev/full", "wb") as full:
        (logs / "other").write_bytes(bytes(4096))
        code, errors = run_into(full, *command)

    assert code == 0, errors
    assert latest_checkpoint(options)["step"] == 2
    # There is one message for each of the two log files.
    assert errors.count("cannot write the log") == 2
    assert "Traceback" not in errors


def test_pictures_that_a_full_disk_refuses_are_reported_once_and_the_run_goes_on(tmp_path, caplog):
    opt = read_options(["--opt", str(write_options(tmp_path))])
    health = Health(opt.folder, opt.train, opt.datasets, total_iter=4)
    run = Experiment(opt.folder, opt.plain(), ORDER, health)
    run.folder.mkdir(parents=True, exist_ok=True)
    # Nothing can be written to /dev/full.
    (run.folder / "images").symlink_to("/dev/full")
    scalars = {
        "val/psnr": 1.0,
        "val/psnr_input": 1.0,
        "val/ssim": 1.0,
        "val/ssim_input": 1.0,
    }
    pictures = {"clip": {"restored": np.zeros((8, 8, 3), np.uint8)}}

    for _ in range(2):
        run.log_validation(Progress(), scalars, pictures)
    run.close()

    assert caplog.text.count("cannot write images") == 1

"""A disk that is full, or gets full while a run writes: the run says so with numbers, and keeps the
last checkpoint.

The disks are real: small file systems in memory, which only root can mount. Checkpoints must end a
run that cannot write them. Logs, curves and pictures must not.
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
    MAIN,
    events_of,
    experiment,
    latest,
    odd,
    train,
    write_odd,
    write_options,
)
from utils.errors import CheckpointError
from utils.files import MARK
from utils.run import checkpoint
from utils.run.checkpoint import DataOrder, Progress
from utils.run.measure import Health
from utils.run.writers import Experiment

NAME = "checkpoint_latest.pth"
ORDER = DataOrder(8, "", 0, 8)


def state(step: int, floats: int = 500_000) -> dict[str, object]:
    """Return the content of a checkpoint: 2 MB, because a float has 4 bytes."""
    return {"step": step, "weights": torch.zeros(floats)}


def full_at_the_start(folder):
    """Leave less room than the content needs, as the program can see beforehand."""
    (folder / "other").write_bytes(bytes(2_600_000))
    return state(2)


def full_in_the_middle(folder):
    """Return a content of which the program cannot see beforehand how large it becomes.

    torch.save writes the whole storage of a slice: 4 MB for ten numbers.
    """
    # torch.save writes the whole storage of a slice, far more than the slice needs.
    return {"step": 2, "weights": torch.zeros(10**6)[:10]}


def full_at_the_sidecar(folder):
    """Leave room for one more file. The sidecar of a checkpoint, with its checksum, has no room."""
    # One file more is allowed: the checkpoint itself
    for number in range(os.statvfs(folder).f_ffree - 1):
        (folder / f"other{number}").touch()
    return state(2)


@pytest.mark.parametrize(("fill", "message"), [
    (full_at_the_start, r"too full for a checkpoint: 1 MB free\n.*\n +expected  at least 2 MB"),
    (full_in_the_middle,
     r"cannot write the checkpoint: .*\n.*\n +expected .* room for 0 MB \(\d MB are free\)"),
    (full_at_the_sidecar, r"cannot write the checkpoint: .*No space left"),
])  # fmt: skip
def test_a_full_disk_is_said_with_numbers_and_the_former_file_stays(tmp_path, fill, message):
    with disk(tmp_path / "disk", "5m", files=40) as folder:
        checkpoint.save(state(1), folder / NAME)
        content = fill(folder)
        with pytest.raises(CheckpointError) as error:
            checkpoint.save(content, folder / NAME)
        assert re.search(message, str(error.value)), str(error.value)
        assert checkpoint.load(folder / NAME)["step"] == 1
        assert not list(folder.glob(".*"))


def test_two_ranks_stop_with_one_message_when_the_disk_is_full_and_go_on_from_the_last_save(
    tmp_path,
):
    options = write_options(tmp_path)
    # Room for one checkpoint of 25 MB with its weights, 13 MB, not for a second.
    with disk(experiment(options).parent, "50m"):
        result = train(options, "train.checkpoint_save=1", "datasets.test={}", ranks=2)
        assert result.exit_codes == [3, 3], result.text
        assert result.text.count("CheckpointError: ") == 1
        assert "Traceback" not in result.text
        assert re.search(
            r"too full for a checkpoint: \d+ MB free\n.*\n +expected  at least \d\d MB", result.text
        )
        assert latest(options)["step"] == 1


def fill(folder: Path) -> None:
    """Fill the file system of a folder to the last block."""
    with open(folder / "filler", "wb", buffering=0) as file, suppress(OSError):
        while file.write(bytes(4096)):
            pass


def test_log_lines_go_on_on_a_full_disk_and_the_save_ends_the_run(tmp_path):
    options = write_options(tmp_path)
    overrides = ("train.total_iter=24", "datasets.test={}")
    with disk(experiment(options).parent, "50m") as folder:
        with Ranks(1, MAIN, "--opt", str(options), *overrides) as running:
            running.wait_for("Iter: 2,", 0, 120)
            fill(folder)
            result = running.wait(120)
        assert result.exit_codes == [3], result.text
        assert "Iter: 24," in result.text
        assert "Traceback" not in result.text
        history = re.escape(str(experiment(options) / "training_history.jsonl"))
        for said in (rf"cannot write {history}", "CheckpointError: "):
            assert len(re.findall(said, result.text)) == 1, (said, result.text)
        assert re.search(r"too full for a checkpoint: \d+ MB free", result.text)
        # No half line: the entries that fitted.
        lines = (experiment(options) / "training_history.jsonl").read_text().splitlines()
        assert [json.loads(line)["step"] for line in lines][:2] == [1, 2]


def test_a_validation_that_no_checkpoint_records_stands_once_in_tensorboard_after_the_next_start(
    tmp_path,
):
    options = write_odd(tmp_path)
    changes = ("train.total_iter=2", "logging.use_tensorboard=true")
    with disk(experiment(options) / "checkpoints", "5m") as checkpoints:
        (experiment(options) / MARK).touch()  # as if an earlier run had made the folder
        failed = odd(options, *changes, 'logging.writers=["filling"]')
        assert failed.exit_codes == [3]
        assert "Iter: 2, validation" in failed.text
        (checkpoints / "filler").unlink()
        again = odd(options, *changes)
    assert again.exit_codes == [0], again.text
    assert "Iter: 2, validation" in again.text, again.text
    events = events_of(options)
    for tag in ("val/psnr", "val/ssim"):
        assert [event.step for event in events.Scalars(tag)] == [2]

    assert [event.step for event in events.Scalars("train/loss")] == [1, 2]


def test_a_full_disk_under_tensorboard_is_said_once_and_the_run_goes_on(tmp_path):
    options = write_odd(tmp_path)
    changes = ("train.total_iter=40", "datasets.test={}", "logging.use_tensorboard=true")
    with disk(experiment(options) / "tb_logger", "16k"):
        (experiment(options) / MARK).touch()
        result = odd(options, *changes)

    assert result.exit_codes == [0], result.text
    assert "Finished at iter 40" in result.text, result.text
    assert result.text.count("TensorBoardWriter failed and is left out from now on") == 1
    assert "Traceback" not in result.text
    assert "Exception in thread" not in result.text


def test_a_full_disk_under_the_logs_changes_no_exit_code(tmp_path):
    options = write_options(tmp_path)
    experiment(options).mkdir(parents=True)
    (experiment(options) / MARK).touch()  # as if an earlier run had made the folder
    changes = ("train.total_iter=2", "datasets.test={}", "debug.every=1")
    with disk(experiment(options) / "log", "4k") as logs, open("/dev/full", "wb") as full:
        (logs / "other").write_bytes(bytes(4096))
        code, said = run_into(full, MAIN, "--opt", options, *changes)

    assert code == 0, said
    assert latest(options)["step"] == 2, said
    assert said.count("cannot write the log") == 2
    assert "Traceback" not in said


def test_pictures_without_room_are_said_once_and_end_nothing(tmp_path, caplog):
    options = write_options(tmp_path)
    opt = read_options(["--opt", str(options)])
    run = Experiment(opt.folder, opt.plain(), ORDER, Health(opt.folder, opt.train, opt.datasets, 4))
    run.folder.mkdir(parents=True, exist_ok=True)
    (run.folder / "images").symlink_to("/dev/full")
    scalars = {f"val/{name}{into}": 1.0 for name in ("psnr", "ssim") for into in ("", "_input")}
    for _ in range(2):
        run.log_validation(
            Progress(), scalars, {"clip": {"restored": np.zeros((8, 8, 3), np.uint8)}}
        )
    run.close()

    assert caplog.text.count("cannot write images") == 1


def test_a_run_does_not_start_on_a_full_disk(tmp_path):
    options = write_options(tmp_path)
    with disk(experiment(options).parent, "1m") as folder:
        fill(folder)
        result = train(options)

    assert result.exit_codes == [3]
    assert "DataError: cannot write: No space left on device" in result.text
    assert "Traceback" not in result.text

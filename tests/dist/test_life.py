"""The folder, the test clips or the files of a run change while it trains, or between two starts.

Each test trains in real processes, on small clips in tmp_path and with the network "odd" of
tests/dist/odd_worker.py. A training takes about ten steps per second. `run_odd` runs such a
training until it ends. `Ranks` starts a training and lets the test act while it trains.

Exit codes: 0 finished, 2 wrong start or wrong options, 3 wrong files or data, 75 stopped by a
signal and to be started again.
"""

import json
import os
import shutil
import signal
import stat
from pathlib import Path

import pytest
import torch

from tests.dist.launching import ROOT, RankResult, Ranks, wait_for
from tests.helpers.train_files import (
    equal_checkpoints,
    folder_of_run,
    history,
    latest_checkpoint,
    odd_command,
    run_odd,
    state_of,
    write_odd_options,
)

# Option of a run that trains until a test ends it.
ENDLESS = "train.total_iter=100000"
# Option of a run without a validation.
NO_VALIDATION = "datasets.test={}"
# Permissions of a file: its owner may read and write, and nobody else may do anything.
OWNER_ONLY = 0o600
# How many steps a run takes before a test moves its folder.
STEPS_BEFORE_THE_MOVE = 3


def end_at_step(steps: int) -> str:
    """Return the option that ends a run after this number of steps."""
    return f"train.total_iter={steps}"


def latest_file(options: Path) -> Path:
    """Return the path of the latest checkpoint of a run."""
    return folder_of_run(options) / "checkpoints/checkpoint_latest.pth"


# ---- The folder of the run ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def moved_run(tmp_path_factory) -> tuple[RankResult, Path]:
    """Move the folder of a run of two ranks. Give the result of the run, and the new folder."""
    options = write_odd_options(tmp_path_factory.mktemp("moved"))
    folder = folder_of_run(options)
    moved = folder.with_name("run_old")
    with Ranks(2, *odd_command(options, ENDLESS, NO_VALIDATION)) as ranks:
        ranks.wait_for(f"Iter: {STEPS_BEFORE_THE_MOVE},", rank=0, limit_s=60)
        folder.rename(moved)
        result = ranks.wait(limit_s=60)
    return result, moved


def test_a_run_whose_folder_is_moved_ends_with_one_message(moved_run):
    result, moved = moved_run

    assert result.exit_codes == [2, 2], result.text
    assert result.text.count("FolderMovedError: the folder of the run was moved") == 1
    assert str(moved) in result.text
    assert "Traceback" not in result.text
    assert "the folder of the run was moved" in (moved / "log/train.log").read_text()


def test_a_run_whose_folder_is_moved_saves_its_checkpoint_there(moved_run):
    _, moved = moved_run

    saved = torch.load(moved / "checkpoints/checkpoint_latest.pth", weights_only=True)

    assert saved["step"] >= STEPS_BEFORE_THE_MOVE


def test_a_run_whose_folder_is_moved_makes_no_folder_in_the_old_place(moved_run):
    _, moved = moved_run

    assert not moved.with_name("run").exists()


def test_a_moved_run_does_not_touch_a_second_run_in_its_old_folder(tmp_path):
    options = write_odd_options(tmp_path)
    folder = folder_of_run(options)
    moved = folder.with_name("run_old")
    # A run looks at its folder when it writes a log line, here every 20 steps.
    command = odd_command(options, ENDLESS, NO_VALIDATION, "train.checkpoint_print=20")

    with Ranks(1, *command) as first:
        first.wait_for("starting at iter 0", rank=0, limit_s=60)
        # environment.json is the last file that a run writes before its first step. Its last
        # character is a brace, so wait for the brace.
        wait_for(folder / "environment.json", pattern="}", limit_s=60)
        # Pause the first run. Otherwise it could make the old folder again before the second run
        # does.
        os.killpg(first.processes[0].pid, signal.SIGSTOP)
        folder.rename(moved)
        second = run_odd(options, NO_VALIDATION, end_at_step(3))
        os.killpg(first.processes[0].pid, signal.SIGCONT)
        result = first.wait(limit_s=60)

    assert second.exit_codes == [0]
    assert latest_checkpoint(options)["step"] == 3
    assert result.exit_codes == [2], result.text
    checkpoints = [path.name for path in (folder / "checkpoints").glob("*.pth")]
    assert checkpoints == ["checkpoint_latest.pth"]
    assert (moved / "checkpoints/checkpoint_latest.pth").is_file()


def test_a_run_takes_its_lock_again_if_somebody_removes_it(tmp_path):
    options = write_odd_options(tmp_path)
    lock = folder_of_run(options) / ".lock"
    # A run looks at its lock from time to time. A step takes 0.2 s ("slow" sleeps), so the run uses
    # hardly any core until it looks.
    command = odd_command(options, ENDLESS, NO_VALIDATION, case="slow", at_step=200)

    with Ranks(1, *command) as ranks:
        ranks.wait_for("Iter: 3,", rank=0, limit_s=60)
        lock.unlink()
        ranks.wait_for(".lock was removed", rank=0, limit_s=60)
        other = run_odd(options, ENDLESS)
        os.kill(ranks.processes[0].pid, signal.SIGTERM)
        result = ranks.wait(limit_s=60)

    assert result.exit_codes == [75], result.text
    assert other.exit_codes == [2]
    assert "another run is at work in this folder" in other.text


def test_a_run_whose_folder_is_removed_goes_on_in_a_new_one_with_its_log(tmp_path):
    options = write_odd_options(tmp_path)
    folder = folder_of_run(options)

    with Ranks(1, *odd_command(options, ENDLESS, NO_VALIDATION)) as ranks:
        ranks.wait_for("Iter: 3,", rank=0, limit_s=60)
        shutil.rmtree(folder)
        ranks.wait_for("earlier checkpoints, weights and lines of the log", rank=0, limit_s=60)
        os.kill(ranks.processes[0].pid, signal.SIGTERM)
        result = ranks.wait(limit_s=60)

    assert result.exit_codes == [75], result.text
    assert (folder / "checkpoints/checkpoint_latest.pth").is_file()
    # The log and the warnings are written again in the new folder, too.
    assert "stopped by a signal" in (folder / "log/train.log").read_text()
    assert ".lock was removed" in (folder / "log/warnings.jsonl").read_text()


# ---- Links and permissions ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def finished_options(tmp_path_factory) -> Path:
    """Give the option file of a finished run of one step. Tests change copies of its folder."""
    options = write_odd_options(tmp_path_factory.mktemp("finished"))
    result = run_odd(options, NO_VALIDATION, end_at_step(1))
    assert result.exit_codes == [0], result.text
    return options


@pytest.mark.parametrize(
    "name", [".lock", "log/train.log", "log/warnings.jsonl", "training_history.jsonl"]
)
def test_a_run_refuses_a_link_that_has_the_name_of_its_file(finished_options, tmp_path, name):
    task = "copy_with_" + Path(name).stem.strip(".")  # e.g. "copy_with_lock"
    shutil.copytree(folder_of_run(finished_options), folder_of_run(finished_options, task))
    target = tmp_path / "target.txt"
    target.write_text("not of this run\n")
    path = folder_of_run(finished_options, task) / name
    path.unlink()
    path.symlink_to(target)

    result = run_odd(finished_options, NO_VALIDATION, end_at_step(3), f"task={task}")

    assert target.read_text() == "not of this run\n"
    assert result.exit_codes == [3], result.text
    assert result.text.count("a link has the name of a file of the run") == 1
    assert name in result.text
    assert "Traceback" not in result.text


def test_the_checkpoints_of_a_run_may_be_a_link_to_another_disk(tmp_path):
    options = write_odd_options(tmp_path)
    elsewhere = tmp_path / "large disk"
    elsewhere.mkdir()
    # The name resembles the name of a temporary file of a checkpoint. A start removes temporary
    # files of checkpoints, but must not remove this file.
    foreign = elsewhere / ".checkpoint_latest.notes.tmp"
    foreign.write_text("somebody's own")
    folder_of_run(options).mkdir(parents=True)
    (folder_of_run(options) / ".spikevrt").touch()  # marks a folder of a run
    (folder_of_run(options) / "checkpoints").symlink_to(elsewhere)

    result = run_odd(options, NO_VALIDATION, end_at_step(1))

    assert result.exit_codes == [0], result.text
    assert (elsewhere / "checkpoint_latest.pth").is_file()
    assert f"checkpoints is a link to {elsewhere}" in result.text
    assert foreign.read_text() == "somebody's own"


def test_a_link_to_a_disk_that_is_missing_is_refused_before_the_first_step(tmp_path):
    options = write_odd_options(tmp_path)
    folder_of_run(options).mkdir(parents=True)
    (folder_of_run(options) / ".spikevrt").touch()
    (folder_of_run(options) / "checkpoints").symlink_to(tmp_path / "not mounted")

    result = run_odd(options, NO_VALIDATION, end_at_step(1))

    assert result.exit_codes == [3], result.text
    assert "the folder checkpoints of the run is no folder: it is a link to" in result.text
    assert "Iter: 1" not in result.text


def test_only_its_owner_may_read_and_write_the_lock(finished_options):
    mode = (folder_of_run(finished_options) / ".lock").stat().st_mode

    assert stat.S_IMODE(mode) == OWNER_ONLY


# ---- The test clips of the best score -----------------------------------------------------------


def change_test_clips(options: Path) -> None:
    """Replace the first sharp frame of the test clips by their last sharp frame.

    The names of all files stay, so only the contents tell that the clips have changed.
    """
    section = json.loads(options.read_text())["datasets"]["test"]
    sharp = sorted(Path(section["dataroot_gt"]).rglob("test*/sharp/*.png"))
    shutil.copyfile(sharp[-1], sharp[0])


def set_best_psnr(path: Path, value: float) -> None:
    """Change the best score in a checkpoint. Remove its checksum, because it no longer fits."""
    state = torch.load(path, weights_only=True)
    torch.save(state | {"best_psnr": value}, path)
    Path(f"{path}.sha256").unlink()


# This test is slow, because it has four runs, one after the other.
@pytest.mark.slow
def test_a_best_score_of_other_test_clips_does_not_count(tmp_path):
    options = write_odd_options(tmp_path)
    validate = "train.checkpoint_test=1"  # after each step
    first = run_odd(options, validate, end_at_step(2))
    assert first.exit_codes == [0], first.text
    # A score of 90 dB is better than any score to come, as if the first test clips were easier.
    best = folder_of_run(options) / "checkpoints/checkpoint_best.pth"
    set_best_psnr(best, value=90.0)
    set_best_psnr(latest_file(options), value=90.0)

    same_clips = run_odd(options, validate, end_at_step(3))
    best_with_same_clips = latest_checkpoint(options)["best_psnr"]
    change_test_clips(options)
    no_clips = run_odd(options, NO_VALIDATION, end_at_step(4))
    best_with_no_clips = latest_checkpoint(options)["best_psnr"]
    other_clips = run_odd(options, validate, end_at_step(5))

    assert "does not count" not in same_clips.text
    assert best_with_same_clips == 90
    assert no_clips.exit_codes == [0], no_clips.text
    assert best_with_no_clips == 90
    assert other_clips.exit_codes == [0], other_clips.text
    assert other_clips.text.count("does not count: it was measured on other test clips") == 1
    # No validation of this untrained network reaches the 90 dB that the test wrote above.
    assert latest_checkpoint(options)["best_psnr"] < 90
    assert torch.load(best, weights_only=True)["step"] == 5


# ---- Files that are lost ------------------------------------------------------------------------


@pytest.fixture
def run_without_latest(tmp_path) -> Path:
    """Give the option file of a run of two steps that has lost all checkpoints but the best."""
    options = write_odd_options(tmp_path)
    run_odd(options, "train.checkpoint_test=1", end_at_step(2))
    for path in latest_file(options).parent.glob("checkpoint_latest*"):
        path.unlink()
    return options


@pytest.mark.parametrize(
    "resume",
    [
        pytest.param(["--resume", "auto"], id="resume auto"),
        pytest.param([], id="no argument"),
    ],
)
def test_a_fresh_start_in_a_folder_with_only_the_best_checkpoint_is_refused(
    run_without_latest, resume
):
    result = run_odd(run_without_latest, end_at_step(4), *resume)

    assert result.exit_codes == [2], result.text
    assert "checkpoint_best.pth" in result.text
    assert "--resume" in result.text


def test_a_run_resumes_from_the_best_checkpoint_if_it_is_named(run_without_latest):
    options = run_without_latest
    best = latest_file(options).with_name("checkpoint_best.pth")
    before = history(options)

    refused = run_odd(options, end_at_step(4))
    result = run_odd(options, end_at_step(4), "--resume", str(best))

    assert refused.exit_codes == [2], refused.text
    assert result.exit_codes == [0], result.text
    assert latest_checkpoint(options)["step"] == 4
    # The curve still begins with the validation of the first start.
    assert history(options)["val/psnr"][:1] == before["val/psnr"][:1]


def test_a_fresh_start_in_a_folder_with_only_the_weights_is_refused(tmp_path):
    options = write_odd_options(tmp_path)
    run_odd(options, NO_VALIDATION, end_at_step(2))
    shutil.rmtree(latest_file(options).parent)
    weights = (folder_of_run(options) / "models/2_G.pth").read_bytes()
    before = history(options)

    result = run_odd(options, NO_VALIDATION, end_at_step(4))

    assert result.exit_codes == [2], result.text
    assert "2_G.pth" in result.text
    assert "path.pretrained_netG" in result.text
    assert history(options) == before
    assert (folder_of_run(options) / "models/2_G.pth").read_bytes() == weights


def test_a_run_that_ended_before_its_first_save_starts_again(tmp_path):
    options = write_odd_options(tmp_path)
    command = odd_command(options, NO_VALIDATION, ENDLESS, "train.checkpoint_save=100000")
    with Ranks(1, *command) as running:
        running.wait_for("Iter: 2,", rank=0, limit_s=60)
    # The rank was killed at the end of the block.
    assert not latest_file(options).exists()

    result = run_odd(options, NO_VALIDATION, end_at_step(4))

    assert result.exit_codes == [0], result.text
    assert latest_checkpoint(options)["step"] == 4


def test_the_checkpoint_is_saved_before_weights_that_cannot_be_written(tmp_path):
    options = write_odd_options(tmp_path)
    # The first save is in step 30, so there is time to make the file before.
    command = odd_command(options, NO_VALIDATION, end_at_step(40), "train.checkpoint_save=30")

    with Ranks(1, *command) as running:
        running.wait_for("Iter: 1,", rank=0, limit_s=60)
        # The first save would make the folder "models". A file takes its place.
        (folder_of_run(options) / "models").write_text("not a folder")
        result = running.wait(limit_s=60)

    assert result.exit_codes == [3], result.text
    assert "models" in result.text
    assert "Traceback" not in result.text
    assert latest_checkpoint(options)["step"] == 30


def test_a_checkpoint_that_is_saved_after_a_restore_equals_the_restored_checkpoint(tmp_path):
    options = write_odd_options(tmp_path)
    # This run of four steps validates and saves only at its end.
    steps = (end_at_step(4), "train.checkpoint_test=100", "train.checkpoint_save=100")
    whole = run_odd(options, *steps)
    # This run is killed in the validation after step 4, so the next start has no step to take.
    killed = run_odd(options, *steps, "task=cut", case="kill", struck_rank=0, at_step=4)
    assert whole.exit_codes == [0]
    assert killed.exit_codes != [0], killed.text

    again = run_odd(options, *steps, "task=cut")

    assert again.exit_codes == [0], again.text
    assert equal_checkpoints(state_of(options)["optimizer"], state_of(options, "cut")["optimizer"])


# ---- Loader processes and dashboards ------------------------------------------------------------


def test_a_loader_process_that_is_killed_while_the_step_computes_is_named(tmp_path):
    options = write_odd_options(tmp_path)
    changes = (NO_VALIDATION, ENDLESS, "datasets.train.dataloader_persistent_workers=true")

    # "bury" kills a loader process of rank 1 in step 5.
    with Ranks(2, *odd_command(options, *changes, case="bury", struck_rank=1, at_step=5)) as ranks:
        result = ranks.wait(limit_s=90)

    assert result.exit_codes == [3, 3], result.text
    assert result.text.count("DataError: ") == 1
    for word in ("killed by signal", "memory", "rank 1"):
        assert word in result.text
    assert "Traceback" not in result.text


def test_a_finished_run_does_not_wait_for_a_dashboard_that_does_not_answer(tmp_path):
    # The method `close` of the writer "hanging" never returns.
    logging = {"use_tensorboard": False, "writers": ["hanging"]}
    options = write_odd_options(tmp_path, logging=logging)

    result = run_odd(options, NO_VALIDATION, end_at_step(2), "watchdog.stall_s=6")

    assert result.exit_codes == [0], result.text
    log = (folder_of_run(options) / "log/train.log").read_text()
    finished = log.index("Finished at iter 2")
    late = log.index("Hanging did not end within")
    assert finished < late


# This test is slow, because W&B starts twice.
@pytest.mark.slow
def test_a_copied_run_under_another_name_has_a_dashboard_of_its_own(tmp_path):
    options = write_odd_options(tmp_path, logging={"use_tensorboard": False, "use_wandb": True})
    offline = {"WANDB_MODE": "offline", "WANDB_SILENT": "true"}
    first = run_odd(options, NO_VALIDATION, end_at_step(1), env=offline)
    assert first.exit_codes == [0], first.text
    shutil.copytree(folder_of_run(options), folder_of_run(options, "copy"))

    copy = run_odd(options, NO_VALIDATION, end_at_step(2), "task=copy", env=offline)

    assert copy.exit_codes == [0], copy.text
    assert latest_checkpoint(options, "copy")["wandb_id"] != latest_checkpoint(options)["wandb_id"]
    # W&B writes beside the run. The run is not in the repository, so W&B wrote no file into it.
    assert ROOT not in folder_of_run(options).parents


# ---- What loader processes need from the machine ------------------------------------------------


def test_a_long_folder_for_temporary_files_is_refused_at_the_start(tmp_path):
    # The name of a socket in this folder has at most 107 characters, and this folder alone has 100
    # characters more than tmp_path.
    folder = tmp_path / ("long" * 25)
    folder.mkdir()

    result = run_odd(write_odd_options(tmp_path), NO_VALIDATION, env={"TMPDIR": str(folder)})

    assert result.exit_codes == [2], result.text
    assert "TMPDIR" in result.text
    assert "Traceback" not in result.text


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small /dev/shm: needs root")
def test_a_small_shared_memory_is_named_with_its_cure(tmp_path):
    # /dev/shm has 48 kB, less than a sample needs.
    confined = ("tests/dist/confined_worker.py", "small_shared_memory")
    command = odd_command(write_odd_options(tmp_path), ENDLESS, NO_VALIDATION)

    with Ranks(1, *confined, *command) as ranks:
        result = ranks.wait(limit_s=90)

    assert result.exit_codes == [3], result.text
    for word in ("/dev/shm", "--shm-size"):
        assert word in result.text
    assert result.text.count("DataError: ") == 1

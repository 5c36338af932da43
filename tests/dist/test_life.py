"""Stories from the life of a run: its folder moves, its test set changes, its files are lost or are
links.
"""

import json
import os
import shutil
import signal
import stat
import time
from pathlib import Path

import pytest
import torch

from tests.dist.launching import ROOT, Ranks
from tests.helpers.train_files import (
    experiment,
    history,
    latest,
    odd,
    odd_command,
    same,
    state_of,
    train,
    write_odd,
    write_options,
)

ENDLESS = "train.total_iter=100000"


# ---- The folder of the run ----------------------------------------------------------------------


def test_a_run_whose_folder_is_moved_saves_there_then_ends_and_leaves_the_new_folder_alone(
    tmp_path,
):
    options = write_odd(tmp_path)
    folder = experiment(options)
    moved = folder.with_name("run_old")
    with Ranks(2, *odd_command(options, ENDLESS, "datasets.test={}")) as ranks:
        ranks.wait_for("Iter: 3,", 0, 60)
        folder.rename(moved)
        result = ranks.wait(60)

    assert result.exit_codes == [2, 2], result.text
    assert result.text.count("FolderMovedError: the folder of the run was moved") == 1
    assert str(moved) in result.text and "Traceback" not in result.text
    saved = torch.load(moved / "checkpoints/checkpoint_latest.pth", weights_only=True)
    assert saved["step"] >= 3
    assert "the folder of the run was moved" in (moved / "log/train.log").read_text()
    assert not folder.exists()


def test_a_second_run_in_a_folder_made_anew_keeps_it_for_itself(tmp_path):
    options = write_odd(tmp_path)
    folder = experiment(options)
    moved = folder.with_name("run_old")
    command = odd_command(options, ENDLESS, "datasets.test={}", "train.checkpoint_print=20")
    with Ranks(1, *command) as first:
        first.wait_for("starting at iter 0", 0, 60)
        while not (folder / "environment.json").is_file():  # the last file before the first step
            time.sleep(0.01)
        os.killpg(first.processes[0].pid, signal.SIGSTOP)  # so that the second run comes first
        folder.rename(moved)
        second = odd(options, "datasets.test={}", "train.total_iter=3")
        os.killpg(first.processes[0].pid, signal.SIGCONT)
        result = first.wait(60)

    assert second.exit_codes == [0] and latest(options)["step"] == 3
    assert result.exit_codes == [2], result.text
    assert sorted(p.name for p in (folder / "checkpoints").glob("*.pth")) == [
        "checkpoint_latest.pth"
    ]
    assert (moved / "checkpoints/checkpoint_latest.pth").is_file()


def test_a_lock_that_somebody_removes_is_taken_again(tmp_path):
    options = write_odd(tmp_path)
    lock = experiment(options) / ".lock"
    with Ranks(1, *odd_command(options, ENDLESS, "datasets.test={}")) as ranks:
        ranks.wait_for("Iter: 3,", 0, 60)
        lock.unlink()
        ranks.wait_for(".lock was removed", 0, 60)
        other = odd(options, ENDLESS)
        os.kill(ranks.processes[0].pid, 15)
        result = ranks.wait(60)

    assert result.exit_codes == [75], result.text
    assert other.exit_codes == [2] and "another run is at work in this folder" in other.text


# ---- Links of others ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", [".lock", "log/train.log", "log/warnings.jsonl", "training_history.jsonl"]
)
def test_a_link_in_the_place_of_a_file_of_the_run_is_refused_and_its_target_stays(tmp_path, name):
    options = write_odd(tmp_path)
    first = odd(options, "datasets.test={}", "train.total_iter=1")
    assert first.exit_codes == [0], first.text
    theirs = tmp_path / "theirs.txt"
    theirs.write_text("not of this run\n")
    path = experiment(options) / name
    path.unlink()
    path.symlink_to(theirs)

    result = odd(options, "datasets.test={}", "train.total_iter=3")

    assert theirs.read_text() == "not of this run\n"
    assert result.exit_codes == [3], result.text
    assert result.text.count("a link has the name of a file of the run") == 1
    assert "Traceback" not in result.text and name in result.text


def test_a_folder_of_the_run_may_be_a_link_and_the_log_says_so(tmp_path):
    options = write_odd(tmp_path)
    elsewhere = tmp_path / "large disk"
    elsewhere.mkdir()
    foreign = elsewhere / ".checkpoint_latest.notes.tmp"
    foreign.write_text("somebody's own")
    experiment(options).mkdir(parents=True)
    (experiment(options) / ".spikevrt").touch()
    (experiment(options) / "checkpoints").symlink_to(elsewhere)

    result = odd(options, "datasets.test={}", "train.total_iter=1")

    assert result.exit_codes == [0], result.text
    assert (elsewhere / "checkpoint_latest.pth").is_file()
    assert f"checkpoints is a link to {elsewhere}" in result.text
    assert foreign.read_text() == "somebody's own"


def test_the_lock_is_for_its_owner_alone(tmp_path):
    options = write_odd(tmp_path)
    odd(options, "datasets.test={}", "train.total_iter=1")
    mode = (experiment(options) / ".lock").stat().st_mode
    assert stat.S_IMODE(mode) == 0o600


# ---- What a score was measured on ---------------------------------------------------------------


def change_test_clips(options: Path) -> None:
    """Give the test clips other content under the same names."""
    section = json.loads(options.read_text())["datasets"]["test"]
    sharp = sorted(Path(section["dataroot_gt"]).rglob("test/test*/sharp/*.png"))
    if not sharp:
        sharp = sorted(Path(section["dataroot_gt"]).rglob("test*/sharp/*.png"))
    first, last = sharp[0], sharp[-1]
    shutil.copyfile(last, first)


def test_a_best_score_of_other_test_clips_does_not_count(tmp_path):
    options = write_odd(tmp_path)
    steps = ("train.checkpoint_test=1", "train.total_iter={}")
    first = odd(options, steps[0], steps[1].format(2))
    assert first.exit_codes == [0], first.text
    best = experiment(options) / "checkpoints/checkpoint_best.pth"
    # Better than any score to come, as with easier clips.
    for path in (best, best.with_name("checkpoint_latest.pth")):
        state = torch.load(path, weights_only=True)
        torch.save(state | {"best_psnr": 90.0}, path)
        Path(f"{path}.sha256").unlink()

    same_clips = odd(options, steps[0], steps[1].format(3))
    assert "does not count" not in same_clips.text and latest(options)["best_psnr"] == 90

    change_test_clips(options)
    without = odd(options, "datasets.test={}", steps[1].format(4))
    assert without.exit_codes == [0] and latest(options)["best_psnr"] == 90, without.text
    other_clips = odd(options, steps[0], steps[1].format(5))

    assert other_clips.exit_codes == [0], other_clips.text
    assert other_clips.text.count("does not count: the test clips are not those it was") == 1
    assert latest(options)["best_psnr"] < 90
    assert torch.load(best, weights_only=True)["step"] == 5


# ---- Files that are lost ------------------------------------------------------------------------


@pytest.mark.parametrize("resume", ["auto", None])
def test_a_folder_that_holds_the_best_checkpoint_alone_is_no_fresh_start(tmp_path, resume):
    options = write_odd(tmp_path)
    odd(options, "train.checkpoint_test=1", "train.total_iter=2")
    folder = experiment(options) / "checkpoints"
    for path in folder.glob("checkpoint_latest*"):
        path.unlink()
    before = history(options)

    start = [] if resume is None else ["--resume", resume]
    refused = odd(options, "train.total_iter=4", *start)
    goes_on = odd(options, "train.total_iter=4", "--resume", str(folder / "checkpoint_best.pth"))

    assert refused.exit_codes == [2], refused.text
    assert "checkpoint_best.pth" in refused.text and "--resume" in refused.text
    assert goes_on.exit_codes == [0] and latest(options)["step"] == 4, goes_on.text
    assert history(options)["val/psnr"][:1] == before["val/psnr"][:1]


def test_the_checkpoint_is_saved_before_weights_that_cannot_be_written(tmp_path):
    options = write_odd(tmp_path)
    (experiment(options)).mkdir(parents=True)
    (experiment(options) / ".spikevrt").touch()
    (experiment(options) / "models").write_text("a file in the place of the folder")

    result = odd(options, "datasets.test={}", "train.total_iter=3", "train.checkpoint_save=2")

    assert result.exit_codes == [3], result.text
    assert "models" in result.text and "Traceback" not in result.text
    assert latest(options)["step"] == 2


def test_a_checkpoint_saved_after_a_restore_is_the_one_that_was_restored(tmp_path):
    options = write_odd(tmp_path)
    steps = ("train.total_iter=4", "train.checkpoint_test=100", "train.checkpoint_save=100")
    whole = odd(options, *steps)
    stopped = odd(options, *steps, "task=cut", case="kill", struck=(0, 4))
    assert whole.exit_codes == [0] and stopped.exit_codes != [0], stopped.text
    again = odd(options, *steps, "task=cut")
    assert again.exit_codes == [0], again.text

    assert same(state_of(options)["optimizer"], state_of(options, "cut")["optimizer"])


# ---- Workers, dashboards, copies ----------------------------------------------------------------


def test_a_loader_worker_that_is_killed_while_the_step_computes_is_named(tmp_path):
    options = write_odd(tmp_path)
    changes = ("datasets.test={}", ENDLESS, "datasets.train.dataloader_persistent_workers=true")
    with Ranks(2, *odd_command(options, *changes, case="bury", struck=(1, 5))) as ranks:
        result = ranks.wait(90)

    assert result.exit_codes == [3, 3], result.text
    assert result.text.count("DataError: ") == 1 and "killed by signal" in result.text
    assert "memory" in result.text and "rank 1" in result.text and "Traceback" not in result.text


def test_a_dashboard_that_does_not_answer_at_the_end_holds_no_finished_run(tmp_path):
    logging = {"use_tensorboard": False, "writers": ["hanging"]}
    changes = ("datasets.test={}", "train.total_iter=2", "watchdog.stall_s=6")
    result = odd(write_odd(tmp_path, logging=logging), *changes)

    assert result.exit_codes == [0], result.text
    log = (tmp_path / "experiments/run/log/train.log").read_text()
    finished, late = log.index("Finished at iter 2"), log.index("Hanging did not end within")
    assert finished < late


def test_a_copied_run_under_another_name_has_a_dashboard_of_its_own(tmp_path):
    options = write_options(tmp_path, logging={"use_tensorboard": False, "use_wandb": True})
    offline = {"WANDB_MODE": "offline", "WANDB_SILENT": "true"}
    changes = ("datasets.test={}", "train.total_iter=1")
    first = train(options, *changes, env=offline)
    assert first.exit_codes == [0], first.text
    shutil.copytree(experiment(options), experiment(options, "copy"))

    copy = train(options, "datasets.test={}", "train.total_iter=2", "task=copy", env=offline)

    assert copy.exit_codes == [0], copy.text
    assert latest(options, "copy")["wandb_id"] != latest(options)["wandb_id"]
    assert ROOT not in experiment(options).parents


# ---- What workers need ---------------------------------------------------------------------------


def test_a_long_folder_for_temporary_files_is_refused_at_the_start(tmp_path):
    folder = tmp_path / ("long" * 25)
    folder.mkdir()
    result = odd(write_odd(tmp_path), "datasets.test={}", env={"TMPDIR": str(folder)})
    assert result.exit_codes == [2], result.text
    assert "TMPDIR" in result.text and "Traceback" not in result.text


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small /dev/shm: needs root")
def test_a_small_shared_memory_is_named_with_its_cure(tmp_path):
    mount = 'mount -t tmpfs -o size=48k tmpfs /dev/shm && exec "$@"'
    small = ("unshare", "--mount", "sh", "-c", mount, "sh")
    command = odd_command(write_odd(tmp_path), ENDLESS, "datasets.test={}")
    with Ranks(1, *command, prefix=small) as ranks:
        result = ranks.wait(90)
    assert result.exit_codes == [3], result.text
    assert "/dev/shm" in result.text and "--shm-size" in result.text
    assert result.text.count("DataError: ") == 1

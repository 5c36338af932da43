"""On systems without /proc, one process works as on Linux, and several ranks are refused.

/proc is the folder in which Linux shows its processes. Here the programs run without the processes
in /proc (tests/helpers/no_proc.py), as on systems without /proc. In some tests, Python also starts
loader processes by "spawn" and not by "fork", as it does on macOS. A spawned process is a new
Python.
"""

import signal
from pathlib import Path
from typing import Any

import pytest

from tests.dist.launching import RankResult, Ranks, run_command, run_ranks
from tests.helpers import no_proc
from tests.helpers.train_files import (
    MAIN,
    equal_checkpoints,
    latest_checkpoint,
    train,
    write_options,
)
from tests.helpers.weights_files import make_home

# Arguments of `run_ranks` that start new Pythons without /proc.
WITHOUT_PROC: dict[str, Any] = {"prefix": no_proc.PREFIX}
# A program that hides /proc, and then runs the script whose name follows. To save time, it runs as
# a fork of a process that has already imported torch. But this process saw /proc while it imported
# torch. So the tests of the launcher and a slow test start new Pythons instead.
CONFINED = ("tests/dist/confined_worker.py", "no_proc")
# A program that does the same, and also starts loader processes by "spawn".
SPAWNING = (*CONFINED, "tests/dist/confined_worker.py", "no_fork")
# Exit code if the user must change an option or the start.
CHANGE_START = 2
# Exit code if a signal has stopped the run. The same command continues the run.
STOPPED_BY_SIGNAL = 75


@pytest.fixture(autouse=True, scope="module")
def namespaces() -> None:
    """Skip all tests if this machine cannot hide /proc."""
    if no_proc.reason_to_skip():
        pytest.skip(no_proc.reason_to_skip())


@pytest.fixture
def spawn_variables(tmp_path_factory) -> dict[str, str]:
    """Give environment variables with which loader processes are started by "spawn"."""
    return {"PYTHONPATH": no_proc.write_spawning_path(tmp_path_factory.mktemp("spawn"))}


# ---- One process ----


# This test is slow, because two programs and their loader processes run. Spawned processes import
# torch anew.
@pytest.mark.slow
def test_a_run_without_proc_with_workers_by_spawn_gives_the_same_weights(tmp_path):
    (tmp_path / "with").mkdir()
    (tmp_path / "without").mkdir()
    options_with = write_options(tmp_path / "with")
    options_without = write_options(tmp_path / "without")

    with_proc = train(options_with, "train.total_iter=2")
    command = (*SPAWNING, MAIN, "--opt", options_without, "train.total_iter=2")
    without_proc = run_ranks(1, *command, limit_s=120)

    assert with_proc.exit_codes == [0], with_proc.text
    assert without_proc.exit_codes == [0], without_proc.text
    expected = latest_checkpoint(options_with)
    found = latest_checkpoint(options_without)
    for key in ("model_state_dict", "ema_state_dict", "optimizer", "best_psnr"):
        assert equal_checkpoints(found[key], expected[key]), key


# This test is slow, because two programs and their loader processes import torch anew: 15 s of a
# core.
@pytest.mark.slow
def test_a_signal_stops_a_run_without_proc_and_the_same_command_goes_on(tmp_path, spawn_variables):
    options = write_options(tmp_path)
    without_end = ("--opt", str(options), "train.total_iter=100000", "watchdog.stall_s=30")

    with Ranks(1, MAIN, *without_end, env=spawn_variables, **WITHOUT_PROC) as ranks:
        ranks.wait_for("Iter: 2", rank=0, limit_s=60)
        ranks.processes[0].send_signal(signal.SIGTERM)
        stopped = ranks.wait(limit_s=60)
    step = latest_checkpoint(options)["step"]
    done = train(options, f"train.total_iter={step + 1}", env=spawn_variables, **WITHOUT_PROC)

    assert stopped.exit_codes == [STOPPED_BY_SIGNAL], stopped.text
    assert done.exit_codes == [0], done.text
    assert f"at iter {step}" in done.text, done.text


def restore_clips(home: Path, name: str, *before: str) -> dict[str, bytes]:
    """Restore three clips into home/name. Return the pictures by their path below this folder.

    before: a program that runs main_test_vrt.py.
    """
    files = ["--opt", home / "options.json", "--weights", home / "spike.pth"]
    out = home / name
    command = [*before, "main_test_vrt.py", *files, "--output", out, "--save", "frames"]
    done = run_ranks(1, *command)
    assert done.exit_codes == [0], done.text
    return {str(path.relative_to(out)): path.read_bytes() for path in out.rglob("*.png")}


def test_clips_are_restored_without_proc_as_with_it(tmp_path):
    home = make_home(tmp_path)

    with_proc = restore_clips(home, "with")
    without_proc = restore_clips(home, "without", *CONFINED)

    assert len(with_proc) >= 9  # the clips have 2, 3 and 4 frames
    assert without_proc == with_proc


def test_the_doctor_looks_at_a_host_without_proc():
    done = run_ranks(1, *CONFINED, "scripts/doctor.py")

    assert done.exit_codes == [0], done.text
    assert "Traceback" not in done.text, done.text


# ---- Several ranks ----


def test_several_ranks_without_proc_are_refused_once_in_words(tmp_path):
    done = run_ranks(2, *CONFINED, MAIN, "--opt", write_options(tmp_path))

    assert done.exit_codes == [CHANGE_START, CHANGE_START], done.text
    # The reason is that each rank watches the processes of the other ranks in /proc.
    assert "several ranks on a system that does not show its processes in /proc" in done.text
    assert "do        train in one process: ./launch_train.sh 1 FILE" in done.text


def launch(folder: Path, ranks: int) -> RankResult:
    """Start a training of one step by the launcher, without /proc."""
    options = str(write_options(folder))
    command = [*no_proc.PREFIX, "./launch_train.sh", str(ranks), options, "train.total_iter=1"]
    return run_command(command, limit_s=120)


def test_the_launcher_refuses_to_start_two_processes_without_proc(tmp_path):
    done = launch(tmp_path, ranks=2)

    assert done.exit_codes == [CHANGE_START]
    assert "./launch_train.sh 1 [FILE]" in done.text


# This test is slow, because a launcher and a run import torch anew.
@pytest.mark.slow
def test_the_launcher_starts_one_process_without_proc(tmp_path):
    done = launch(tmp_path, ranks=1)

    assert done.exit_codes == [0], done.text
    assert "Finished at iter 1" in done.text, done.text

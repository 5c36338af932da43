"""submit_job.sh under a real SLURM: time limits, urgent jobs, scancel, arrays, the cores of a task.

tests/dist/slurm.py starts a cluster of one node on this machine. The jobs are small trainings, or a
program that only prints what it gets. Without SLURM, or without root, these tests are skipped.

A new test submits a job of its own, with a log of its own, and waits for words in this log.
"""

import os
import re
import shutil
import sys
import time
from pathlib import Path

import pytest

from tests.dist import slurm
from tests.dist.launching import ROOT, wait_for, write_command
from tests.helpers.train_files import folder_of_run, latest_checkpoint, write_options

pytestmark = pytest.mark.skipif(
    bool(slurm.reason_to_skip()), reason=f"no SLURM: {slurm.reason_to_skip()}"
)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """Give the cluster. All tests of this file share it."""
    with slurm.Cluster(tmp_path_factory.mktemp("slurm") / "cluster") as cluster:
        yield cluster


# A log writer that waits a second for each entry. A job below must run for a minute, until SLURM
# ends it. With this writer, the ranks of the job wait most of the time, and leave the cores to
# other tests.
PAUSE = """
from threading import Event
from utils.run.writers import WRITERS

@WRITERS.register("pause", given=("folder", "step"))
class PauseWriter:
    def __init__(self, folder, step):
        self.never = Event()

    def scalars(self, values, step):
        self.never.wait(1)

    def image(self, tag, rgb, step):
        pass

    def close(self):
        pass
"""


def copy_with_pauses(folder: Path) -> Path:
    """Copy the programs to `folder`, with the log writer "pause". Return the folder.

    The writer is one new file, as in docs/extending.md.
    """
    for name in ("data", "models", "scripts", "utils"):
        shutil.copytree(ROOT / name, folder / name)
    for name in ("main_train_vrt.py", "submit_job.sh", "pyproject.toml"):
        shutil.copy2(ROOT / name, folder)
    (folder / ".venv").symlink_to(ROOT / ".venv")
    (folder / "utils/writer_pause.py").write_text(PAUSE)
    return folder


# Arguments of sbatch for two tasks without a GPU.
NO_GPU = ("--ntasks-per-node=2", "--gpus-per-node=0", "--cpus-per-task=1")
# Number of the user "nobody".
NOBODY = 65534


@pytest.mark.slow
def test_a_job_outlives_suspension_time_limit_and_pre_emption_and_ends_by_scancel(
    tmp_path, cluster
):
    options = write_options(tmp_path)
    log = tmp_path / "job.out"
    # The job may run for a minute (--time=1), and gets SIGUSR1 10 s before its end. SLURM checks
    # only every 30 s which jobs are near their end. So the signal comes 20 to 50 s after the start.
    limit = ("--time=1", "--signal=B:USR1@10")
    options_of_job = (
        "datasets.test={}",
        'logging.writers=["pause"]',
        "watchdog.stall_s=8",
        "train.total_iter=1000000",
    )
    copy = copy_with_pauses(tmp_path / "copy")
    job = cluster.submit(
        f"--output={log}", *limit, *NO_GPU, "submit_job.sh", str(options), *options_of_job, cwd=copy
    )

    # Life 1: SLURM suspends the job for longer than the watchdog of the training allows (8 s). Then
    # the job reaches its limit of time, saves, and is queued again.
    wait_for(log, "Iter: ", limit_s=120)
    cluster.run("scontrol", "suspend", job)
    time.sleep(1)
    before = log.read_text()
    time.sleep(14)
    assert log.read_text() == before
    cluster.run("scontrol", "resume", job)
    first = wait_for(log, "stopped by a signal at iter", limit_s=120)

    # Life 2: an urgent job needs the node, so the job is stopped and queued again. The limit of
    # time is longer now, so that SLURM does not send SIGUSR1 again, even if this machine is slow.
    cluster.run("scontrol", "update", f"JobId={job}", "TimeLimit=10")
    cluster.wait_for_life(log, life=2, text="Iter: ", limit_s=180)
    cluster.submit(
        "--partition=urgent", "--exclusive", f"--output={tmp_path / 'urgent.out'}", "--wrap=true"
    )
    second = cluster.wait_for_life(log, life=2, text="stopped by a signal at iter", limit_s=60)

    # Life 3: the user cancels the job. It saves, and is not queued again.
    cluster.wait_for_life(log, life=3, text="Iter: ", limit_s=180)
    cluster.run("scancel", job)
    third = cluster.wait_for_life(log, life=3, text="stopped by a signal at iter", limit_s=60)
    cluster.wait(lambda: cluster.state(job) not in ("RUNNING", "COMPLETING"), "the end of the job")

    assert cluster.state(job) == "CANCELLED"
    assert "StallError" not in first
    assert "Timeout" not in first
    # Each life of the job went on from the checkpoint of the life before.
    assert stopped_at(first) < stopped_at(second) < stopped_at(third)
    assert latest_checkpoint(options)["step"] == stopped_at(third)
    assert f"Master: {slurm.socket.gethostname()}:" in first
    assert "World Size: 2" in first
    checkpoint = folder_of_run(options) / "checkpoints" / "checkpoint_latest.pth"
    assert f"resumed from {checkpoint} at iter {stopped_at(first)}" in second
    assert f"resumed from {checkpoint} at iter {stopped_at(second)}" in third


def printing_python(folder: Path) -> str:
    """Write a `python` into `folder` that prints the cores and the arguments it gets.

    Return the option of sbatch by which a job finds it, and any other command in folder/bin.
    """
    python = write_command(
        folder / "bin/python", "echo cpus $SLURM_CPUS_PER_TASK threads $OMP_NUM_THREADS of $*"
    )
    search_path = f"{python.parent}:{os.environ['PATH']}"
    # submit_job.sh must set OMP_NUM_THREADS, so it is empty here.
    return f"--export=ALL,VIRTUAL_ENV={folder},PATH={search_path},OMP_NUM_THREADS="


# Options of sbatch for one task of three cores.
THREE_CORES = ("--ntasks-per-node=1", "--gpus-per-node=0", "--cpus-per-task=3")


def test_each_task_gets_the_cores_that_sbatch_asked_for_also_from_another_folder(tmp_path, cluster):
    path = printing_python(tmp_path)
    script = str(ROOT / "submit_job.sh")
    here = tmp_path / "here.out"
    elsewhere = tmp_path / "elsewhere.out"

    cluster.submit(f"--output={here}", path, *THREE_CORES, script, "scale=1")
    text_here = wait_for(here, "cpus", limit_s=30)
    cluster.submit(f"--output={elsewhere}", path, *THREE_CORES, script, "mine.json", cwd=tmp_path)
    text_elsewhere = wait_for(elsewhere, "cpus", limit_s=30)

    assert "cpus 3 threads 3 of -u main_train_vrt.py --opt" in text_here
    program = f"{ROOT}/main_train_vrt.py"
    assert f"cpus 3 threads 3 of -u {program} --opt mine.json" in text_elsewhere


def test_a_job_starts_although_scontrol_does_not_answer(tmp_path, cluster):
    # In a job, the script asks scontrol for its own path.
    path = printing_python(tmp_path)
    write_command(
        tmp_path / "bin/scontrol", "echo slurm_load_jobs error: Socket timed out >&2; exit 1"
    )
    log = tmp_path / "busy.out"
    script = str(ROOT / "submit_job.sh")

    cluster.submit(f"--output={log}", path, *THREE_CORES, script, "mine.json")
    text = wait_for(log, "cpus", limit_s=30)

    assert "cpus 3 threads 3 of -u main_train_vrt.py --opt mine.json" in text


def test_a_batch_script_without_srun_is_refused_at_once_with_the_command_to_type(tmp_path, cluster):
    log = tmp_path / "job.out"
    options = write_options(tmp_path)
    arguments = f"main_train_vrt.py --opt {options}"
    script = f"{sys.executable} {arguments}; echo code $?"

    cluster.submit(f"--output={log}", "--ntasks=2", "--gpus-per-node=0", f"--wrap={script}")
    text = wait_for(log, "code", limit_s=60)

    assert "this process is its batch script" in text
    assert f"srun python -u {arguments}" in text
    assert "code 2" in text
    assert text.count("Error: ") == 1


def stopped_at(log: str) -> int:
    """Return the last step at which a training was stopped by a signal."""
    return int(re.findall(r"stopped by a signal at iter (\d+)", log)[-1])


# The doctor has tests without SLURM. This test is slow, because two tasks import torch and measure,
# on cores that SLURM shares.
@pytest.mark.slow
def test_the_doctor_examines_the_tasks_of_a_job_step_together(tmp_path, cluster):
    options = write_options(tmp_path)

    table = cluster.run(
        "srun",
        "--ntasks=2",
        sys.executable,
        "scripts/doctor.py",
        "--opt",
        str(options),
        limit_s=240,
    )

    assert table.count("0 fail") == 1
    for check in ("all_reduce", "shards", "parameters", "gradients"):
        assert f"ok    {check}" in table


@pytest.mark.slow
def test_a_signal_to_one_task_of_a_job_array_requeues_only_that_task(tmp_path, cluster):
    options = write_options(tmp_path)
    log = tmp_path / "array"
    changes = ("datasets.test={}", "train.total_iter=1000000")
    # Use a copy of submit_job.sh, in which each task of the array trains in a folder of its own.
    copy = tmp_path / "array.sh"
    own_task = '"$@" task=run$SLURM_ARRAY_TASK_ID &'
    copy.write_text((ROOT / "submit_job.sh").read_text().replace('"$@" &', own_task))
    own = ("--ntasks-per-node=1", "--gpus-per-node=0", "--cpus-per-task=1", "--array=0-1")
    # SLURM puts the number of the task in place of %a.
    array = cluster.submit(f"--output={log}-%a", *own, str(copy), str(options), *changes, cwd=ROOT)
    for task in (0, 1):
        wait_for(tmp_path / f"array-{task}", "Iter: ", limit_s=120)

    cluster.run("scancel", "--signal=USR1", "--batch", f"{array}_1")
    # With (?s), "." also matches the end of a line.
    wait_for(
        tmp_path / "array-1", "(?s)stopped by a signal at iter.*resumed from.*Iter: ", limit_s=240
    )
    other = (tmp_path / "array-0").read_text()
    cluster.run("scancel", array)

    assert "stopped by a signal" not in other
    assert other.count("starting at iter") == 1


def test_a_copy_of_the_script_runs_no_files_of_others_in_a_shared_folder(tmp_path, cluster):
    # The shared folder has our script, and another user has put files with the names of our
    # programs into it.
    shared = tmp_path / "scratch"
    (shared / "scripts").mkdir(parents=True)
    shutil.copy(ROOT / "submit_job.sh", shared)
    program = shared / "main_train_vrt.py"
    program.touch()
    planted = shared / "scripts/environment.sh"
    planted.write_text("echo planted")
    for foreign in (program, planted):
        os.chown(foreign, NOBODY, NOBODY)
    # scontrol does not tell the script where the original is.
    silent = write_command(tmp_path / "bin/scontrol", "exit 1")
    path = f"--export=ALL,PATH={silent.parent}:{os.environ['PATH']}"
    log = tmp_path / "log"

    cluster.submit(f"--output={log}", path, *NO_GPU, "submit_job.sh", cwd=shared)
    text = wait_for(log, "SPIKEVRT_HOME", limit_s=60)

    assert "planted" not in text

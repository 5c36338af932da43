"""submit_job.sh under a real SLURM."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from tests.dist import slurm
from tests.train_files import experiment, latest, write_options

pytestmark = pytest.mark.skipif(bool(slurm.missing()), reason=f"no SLURM: {slurm.missing()}")

@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with slurm.Cluster(tmp_path_factory.mktemp("slurm") / "cluster") as cluster:
        yield cluster


NO_GPU = ("--ntasks-per-node=2", "--gpus-per-node=0", "--cpus-per-task=1")


def test_a_job_at_its_time_limit_saves_is_requeued_and_finishes(tmp_path, cluster):
    options, log = write_options(tmp_path), tmp_path / "job.out"
    set_total_iter(options, 10**6)  # more than a job of one minute can do
    # SLURM looks every 30 s whose end is near: the signal comes some 20 to 50 s after the start.
    limit = ("--time=1", "--signal=B:USR1@10")
    job = cluster.submit(f"--output={log}", *limit, *NO_GPU, "submit_job.sh", str(options), "datasets.test={}")
    stopped = cluster.wait_for_text(log, "stopped by a signal at iter", 120)
    at = int(re.findall(r"stopped by a signal at iter (\d+)", stopped)[0])
    set_total_iter(options, at + 3)
    whole = cluster.wait_for_text(log, f"Finished at iter {at + 3}", 180)

    assert "World Size: 2" in stopped and f"Master: {slurm.socket.gethostname()}:{15000 + int(job) % 10000}" in stopped
    checkpoint = experiment(options) / "checkpoints" / "checkpoint_latest.pth"
    assert f"resumed from {checkpoint} at iter {at}" in whole[len(stopped) :]
    assert latest(options)["step"] == at + 3


def set_total_iter(options: Path, total_iter: int) -> None:
    """Another length of the training, also for a job that is waiting to be run again."""
    opt = json.loads(options.read_text())
    opt["train"]["total_iter"] = total_iter
    options.write_text(json.dumps(opt))


def test_the_doctor_examines_the_tasks_of_a_job_step_together(tmp_path, cluster):
    options = write_options(tmp_path)

    table = cluster.run("srun", "--ntasks=2", sys.executable, "scripts/doctor.py", "--opt", str(options), limit_s=240)

    assert table.count("0 fail") == 1
    for check in ("all_reduce", "shards", "parameters", "gradients"):
        assert f"ok    {check}" in table

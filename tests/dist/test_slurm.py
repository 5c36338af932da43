"""submit_job.sh under a real SLURM."""

from __future__ import annotations

import pytest

from tests.dist import slurm
from tests.train_files import latest, write_options

pytestmark = pytest.mark.skipif(bool(slurm.missing()), reason=f"no SLURM: {slurm.missing()}")

NO_GPU = ("--ntasks-per-node=2", "--gpus-per-node=0", "--cpus-per-task=1")


def test_a_job_that_is_signalled_saves_is_requeued_and_finishes(tmp_path):
    options, log = write_options(tmp_path), tmp_path / "job.out"
    with slurm.Cluster(tmp_path / "cluster") as cluster:
        job = cluster.submit(
            f"--output={log}", *NO_GPU, "submit_job.sh", str(options), "train.total_iter=12", "datasets.test={}"
        )
        first = cluster.wait_for_text(log, "Iter: 3,", 120)
        # What the time limit sends, by --signal=B:USR1@180: to the batch shell alone.
        cluster.run("scancel", "--batch", "--signal=USR1", job)
        stopped = cluster.wait_for_text(log, "stopped by a signal at iter", 60)
        whole = cluster.wait_for_text(log, "Finished at iter 12", 180)

    assert "World Size: 2" in first and f"Master: {slurm.socket.gethostname()}:{15000 + int(job) % 10000}" in first
    assert "Finished" not in stopped
    assert "resumed from" in whole[len(stopped) :]
    assert latest(options)["step"] == 12

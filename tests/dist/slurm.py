"""Start a real SLURM with this machine as its only node, for tests/dist/test_slurm.py.

SLURM is a scheduler of compute clusters. `Cluster` starts the daemons of SLURM that are listed
here. All their files are below one folder. Their ports, state and logs are separate from any SLURM
that the system may have.

    munged      signs the messages between the daemons
    slurmctld   decides which job runs
    slurmd      runs the jobs on the only node of the cluster, this machine

What must stay: the two partitions in `_conf` and their PreemptMode. They allow the urgent job of
tests/dist/test_slurm.py to stop another job. SLURM then queues the stopped job again.
"""

from __future__ import annotations

import os
import pwd
import re
import shutil
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

from tests.dist.launching import ROOT, clean_env, free_port

# The programs of SLURM that the tests need.
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "scancel", "squeue")


def reason_to_skip() -> str:
    """Return why no SLURM can be started here, or "" if it can."""
    absent = [name for name in PROGRAMS if not shutil.which(name)]
    if absent:
        return f"not installed: {', '.join(absent)}"
    return "" if os.geteuid() == 0 else "slurmd needs root"


class Cluster:
    """A cluster of one node, for a `with` statement. At its end, all jobs and daemons end.

    The node has as many cores as this machine, but at least 4. With 4 cores, a job of two ranks and
    a job of one rank can run together. It has two partitions: "main", and "urgent", whose jobs may
    stop jobs of "main".
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True)
        self.processes: list[subprocess.Popen] = []
        self.env = {**clean_env(), "SLURM_CONF": str(folder / "slurm.conf")}

    def __enter__(self) -> Cluster:
        try:
            self._start()
        except BaseException:
            # `with` calls `__exit__` only after `__enter__` has returned. So end the daemons that
            # have started here.
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.run("scancel", "--user=root", check=False)
        # Wait until no job is left, for 20 s at most. If the daemons ended first, the processes of
        # jobs would stay behind.
        deadline = time.monotonic() + 20
        while self.run("squeue", "--noheader", check=False).strip() and time.monotonic() < deadline:
            time.sleep(0.2)
        for process in reversed(self.processes):
            process.terminate()
        for process in self.processes:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _start(self) -> None:
        """Start the daemons, in the order in which they need one another."""
        # munged runs as the user "munge". It refuses a key that any other user could read.
        munge = pwd.getpwnam("munge")
        for name in ("munge", "state", "spool"):
            (self.folder / name).mkdir()
        key = self.folder / "munge/key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o600)
        for path in (key, key.parent):
            os.chown(path, munge.pw_uid, munge.pw_gid)
        key.parent.chmod(0o755)
        # The user munge must be able to reach its folder. So let everybody enter and read the
        # folders above it that belong to the user of the tests (0o755).
        own_name = pwd.getpwuid(os.geteuid()).pw_name
        for path in (self.folder, *self.folder.parents):
            if path.owner() == own_name and path != Path("/"):
                path.chmod(path.stat().st_mode | 0o755)
        (self.folder / "slurm.conf").write_text(self._conf())
        self._spawn(
            "munged",
            "--foreground",
            f"--key-file={key}",
            f"--socket={key.parent}/socket",
            f"--pid-file={key.parent}/pid",
            f"--log-file={key.parent}/log",
            f"--seed-file={key.parent}/seed",
            user=munge.pw_uid,
            group=munge.pw_gid,
        )
        self.wait(lambda: (key.parent / "socket").exists(), "munged")
        self._spawn("slurmctld", "-D")
        self._spawn("slurmd", "-D", "-N", socket.gethostname())
        self.wait(lambda: "idle" in self.run("sinfo", "-h", "-o", "%T", check=False), "slurmd")

    def _conf(self) -> str:
        """Return the text of slurm.conf.

        The partition "urgent" has the higher PriorityTier. So its jobs may stop jobs of "main". In
        "main" PreemptMode is REQUEUE, so a stopped job is queued again. GraceTime gives the job 60
        s to end.

        cred_expire=5           a job that is queued again waits for 5 s, by default for 120 s
        config_overrides        the node may have fewer cores than CPUs says
        ReturnToService=2       a node that was down is used again when slurmd reports it
        TaskPlugin=task/none    jobs are not bound to cores
        """
        host = socket.gethostname()
        here = self.folder
        return f"""ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={free_port()}
SlurmdPort={free_port()}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={here}/munge/socket,cred_expire=5
StateSaveLocation={here}/state
SlurmdSpoolDir={here}/spool
SlurmctldPidFile={here}/slurmctld.pid
SlurmdPidFile={here}/slurmd.pid
SlurmctldLogFile={here}/slurmctld.log
SlurmdLogFile={here}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
GresTypes=gpu
MailProg=/bin/true
ReturnToService=2
KillWait=30
NodeName={host} NodeAddr=127.0.0.1 CPUs={max(4, os.cpu_count() or 1)} State=UNKNOWN
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=1 GraceTime=60
PartitionName=urgent Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=2 PreemptMode=OFF
"""

    def _spawn(self, *command: str, **options: int) -> None:
        """Start a daemon. options: the user and the group as which it runs."""
        log = open(self.folder / f"{command[0]}.out", "wb")  # noqa: SIM115 - lives as long as the daemon
        how: dict[str, Any] = {"env": self.env, "stdout": log, "stderr": log, **options}
        self.processes.append(subprocess.Popen(command, start_new_session=True, **how))

    def wait(self, is_up, name: str, limit_s: float = 100) -> None:
        """Wait until is_up() is true. name: what the test waits for, in the words of the error.

        At the limit, raises AssertionError with the last part of all logs.
        """
        deadline = time.monotonic() + limit_s
        while not is_up():
            if time.monotonic() > deadline:
                logs = []
                for path in [*self.folder.glob("*.log"), *self.folder.glob("*.out")]:
                    end_of_log = path.read_text(errors="replace")[-2000:]
                    logs.append(f"{path}:\n{end_of_log}")
                raise AssertionError("\n".join([f"waited for {name} in vain", *logs]))
            time.sleep(0.1)

    def run(self, *command: str, check: bool = True, limit_s: float = 150, cwd: Path = ROOT) -> str:
        """Run a command of SLURM. Return what it prints.

        check: whether an error is raised if the command fails. cwd: the repository, or a copy of
            it.
        """
        done = subprocess.run(
            command, env=self.env, cwd=cwd, capture_output=True, text=True, timeout=limit_s
        )
        assert not check or done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def submit(self, *arguments: str, cwd: Path = ROOT) -> str:
        """Submit a job by sbatch. Return its number, e.g. "3"."""
        printed = self.run("sbatch", *arguments, cwd=cwd)  # "Submitted batch job 3"
        return re.findall(r"\d+", printed)[-1]

    def state(self, job: str) -> str:
        """Return the state of a job, e.g. PENDING, RUNNING, COMPLETED or FAILED."""
        found = re.search(r"JobState=(\S+)", self.run("scontrol", "show", "job", job))
        return found[1] if found else ""

    def wait_for_life(self, path: Path, life: int, text: str, limit_s: float) -> str:
        """Wait until a job of two ranks has written `text` in one of its lives.

        A life is the time from a start of the job to its end. A job that is queued again has
        another life. All lives of a job write to the same log.

        path: the log of the job. life: number of the life, from 1.

        Returns the output of the job in this life and in later lives. Raises AssertionError at the
        limit.
        """
        deadline = time.monotonic() + limit_s
        while True:
            # Split the log at a text that each of the two ranks writes at its start. So each life
            # has two pieces: life 1 begins with piece 1, and life 2 with piece 3. Piece 0 comes
            # before life 1.
            whole = path.read_text(errors="replace")
            pieces = whole.split("Distributed Training Setup")
            content = "".join(pieces[2 * life - 1 :])
            if text in content:
                return content
            assert time.monotonic() < deadline, (
                f"{text!r} did not appear in {path}:\n{whole[-4000:]}"
            )
            time.sleep(0.1)

"""A real SLURM on this machine alone: its own ports, state and logs under one folder, nothing of
the system's.
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

from tests.dist.launching import ROOT, clean_env, free_port

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "scancel", "squeue")


def missing() -> str:
    """Why no SLURM can be started here, or ''."""
    absent = [name for name in PROGRAMS if not shutil.which(name)]
    if absent:
        return f"not installed: {', '.join(absent)}"
    return "" if os.geteuid() == 0 else "slurmd needs root"


class Cluster:
    """One node of this machine's cores (at least 4, or two ranks would not fit).

    Use as a context manager.
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
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.run("scancel", "--user=root", check=False)
        deadline = time.monotonic() + 20
        # Steps outlive the daemons that are asked to go before them.
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
        munge = pwd.getpwnam("munge")
        for name in ("munge", "state", "spool"):
            (self.folder / name).mkdir()
        key = self.folder / "munge/key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o600)
        for path in (key, key.parent):
            os.chown(path, munge.pw_uid, munge.pw_gid)
        key.parent.chmod(0o755)
        for path in (self.folder, *self.folder.parents):  # munge must reach its folder
            if path.owner() == pwd.getpwuid(os.geteuid()).pw_name and path != Path("/"):
                path.chmod(path.stat().st_mode | 0o755)
        (self.folder / "slurm.conf").write_text(self._conf())
        self._spawn(
            "munged", "--foreground", f"--key-file={key}", f"--socket={key.parent}/socket",
            f"--pid-file={key.parent}/pid", f"--log-file={key.parent}/log",
            f"--seed-file={key.parent}/seed", user=munge.pw_uid, group=munge.pw_gid,
        )  # fmt: skip
        self.wait(lambda: (key.parent / "socket").exists(), "munged")
        self._spawn("slurmctld", "-D")
        self._spawn("slurmd", "-D", "-N", socket.gethostname())
        self.wait(lambda: "idle" in self.run("sinfo", "-h", "-o", "%T", check=False), "slurmd")

    def _conf(self) -> str:
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
        log = open(self.folder / f"{command[0]}.out", "wb")  # noqa: SIM115 - lives as long as the daemon
        how = {"env": self.env, "stdout": log, "stderr": log, "start_new_session": True, **options}
        self.processes.append(subprocess.Popen(command, **how))

    def wait(self, is_up, name: str, limit_s: float = 100) -> None:
        deadline = time.monotonic() + limit_s
        while not is_up():
            if time.monotonic() > deadline:
                logs = [
                    f"{p}:\n{p.read_text(errors='replace')[-2000:]}"
                    for p in self.folder.glob("*.[lo][ou][gt]")
                ]
                raise AssertionError("\n".join([f"waited for {name} in vain", *logs]))
            time.sleep(0.1)

    def run(self, *command: str, check: bool = True, limit_s: float = 150, cwd: Path = ROOT) -> str:
        """Output of a SLURM command, called in the repository or in a copy of it."""
        done = subprocess.run(
            command, env=self.env, cwd=cwd, capture_output=True, text=True, timeout=limit_s
        )
        assert not check or done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def submit(self, *arguments: str, cwd: Path = ROOT) -> str:
        return re.findall(r"\d+", self.run("sbatch", *arguments, cwd=cwd))[-1]

    def state(self, job: str) -> str:
        """E.g. PENDING, RUNNING, COMPLETED, FAILED."""
        found = re.search(r"JobState=(\S+)", self.run("scontrol", "show", "job", job))
        return found[1] if found else ""

    def wait_for_life(self, path: Path, life: int, text: str, limit_s: float) -> str:
        """What a job that was queued again wrote in its life number `life` (from 1), once that
        holds `text`.
        """
        starts = "Distributed Training Setup"  # each of two ranks says it
        deadline = time.monotonic() + limit_s
        while text not in (
            content := "".join(path.read_text(errors="replace").split(starts)[2 * life - 1 :])
        ):
            assert time.monotonic() < deadline, (
                f"{text!r} did not appear in {path}:\n{path.read_text()[-4000:]}"
            )
            time.sleep(0.1)
        return content

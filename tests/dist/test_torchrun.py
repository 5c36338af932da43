"""torchrun itself: restarts, its death, and two nodes with a cable between them."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.dist import netns
from tests.dist.launching import ROOT, clean_env, free_port, kill_session
from tests.train_files import MAIN, latest, write_options
from utils.dist.process import children_of, process_state

TORCHRUN = (sys.executable, "-m", "torch.distributed.run")
SHORT = ("datasets.test={}", "train.checkpoint_save=1", "watchdog.stall_s=5", "watchdog.start_s=60")


def start(command: list[str], log: Path, **env: str) -> subprocess.Popen:
    return subprocess.Popen(
        command, cwd=ROOT, env={**clean_env(), **env}, stdout=log.open("wb"), stderr=subprocess.STDOUT,
        start_new_session=True,
    )  # fmt: skip


def wait_for(log: Path, pattern: str, limit_s: float = 600) -> str:
    deadline = time.monotonic() + limit_s
    while not re.search(pattern, text := log.read_text(errors="replace")):
        assert time.monotonic() < deadline, text
        time.sleep(0.05)
    return text


@pytest.fixture
def log(tmp_path):
    return tmp_path / "log"


def test_an_elastic_restart_resumes_and_finishes(tmp_path, log):
    options = write_options(tmp_path)
    process = start(
        [*TORCHRUN, "--standalone", "--nproc_per_node=2", "--max-restarts=1", MAIN, "--opt", str(options), *SHORT,
         "train.total_iter=6"], log,
    )  # fmt: skip
    try:
        wait_for(log, "Iter: 2,")
        ranks = [pid for pid in children_of(process.pid) if MAIN in Path(f"/proc/{pid}/cmdline").read_text()]
        os.kill(ranks[0], signal.SIGKILL)
        text = wait_for(log, "Finished at iter 6")
        assert process.wait(60) == 0
    finally:
        kill_session(process)
    assert re.search(r"resumed from \S+ at iter [1-5]", text)
    assert "SIGUSR1 would kill torchrun" in text
    assert latest(options)["step"] == 6


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGINT])
def test_a_signal_to_the_launcher_saves_and_ends_with_the_code_that_asks_for_another_start(tmp_path, log, number):
    options = write_options(tmp_path)
    process = start([str(ROOT / "launch_train.sh"), "2", str(options), "train.total_iter=1000", *SHORT[:1]], log)
    try:
        wait_for(log, "Iter: 1,")
        process.send_signal(number)
        assert process.wait(60) == 75
    finally:
        kill_session(process)
    text = log.read_text()
    assert "stopped by a signal at iter" in text and "SIGUSR1 would kill" not in text
    assert latest(options)["step"] >= 1


def test_nobody_is_left_when_the_launcher_is_killed(tmp_path, log):
    options = write_options(tmp_path)
    process = start([str(ROOT / "launch_train.sh"), "2", str(options), "train.total_iter=1000", *SHORT[:1]], log)
    try:
        wait_for(log, "Iter: 1,")
        family = children_of(process.pid)
        process.kill()
        deadline = time.monotonic() + 10
        while any(process_state(pid) not in (None, "Z") for pid in family) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert [pid for pid in family if process_state(pid) not in (None, "Z")] == []
    finally:
        kill_session(process)


@pytest.mark.skipif(bool(netns.missing()), reason=f"no two hosts: {netns.missing()}")
def test_two_nodes_train_together_and_name_each_other_when_the_cable_is_cut(tmp_path):
    options, port = write_options(tmp_path), str(free_port())
    logs = [tmp_path / f"host{host}.log" for host in range(2)]
    with netns.TwoHosts() as hosts:
        nodes = [
            start(
                hosts.command(
                    host, *TORCHRUN, "--nnodes=2", "--nproc_per_node=1", f"--node-rank={host}",
                    "--master-addr=10.77.0.1", f"--master-port={port}", MAIN, "--opt", str(options), *SHORT,
                    "train.total_iter=1000",
                ),
                logs[host], GLOO_SOCKET_IFNAME=f"cable{host}",
            )
            for host in range(2)
        ]  # fmt: skip
        try:
            wait_for(logs[0], "Iter: 2,")
            hosts.cut()
            cut = time.monotonic()
            wait_for(logs[0], r"rank 1 is SILENT|lost contact", 30)
            wait_for(logs[1], r"rank 1 has lost the store|lost contact", 30)
            # torchrun's own agents may linger; no rank does.
            family = [pid for node in nodes for pid in children_of(node.pid)]
            while time.monotonic() < cut + 30 and any(_is_rank(pid) for pid in family):
                time.sleep(0.1)
            assert not any(_is_rank(pid) for pid in family)
        finally:
            for node in nodes:
                kill_session(node)
    assert "Master: 10.77.0.1" in logs[0].read_text()
    assert "host1" in logs[0].read_text()


def _is_rank(pid: int) -> bool:
    try:
        command = Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return False
    return process_state(pid) not in (None, "Z") and MAIN in command and "distributed.run" not in command

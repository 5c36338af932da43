"""torchrun itself: restarts, its death, and two nodes with a cable between them."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
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


@pytest.mark.parametrize(("prefix", "code"), [("nohup", 0), ("env --default-signal=HUP", 75)])
def test_a_launcher_whose_terminal_is_gone_saves_and_ends_unless_nohup_started_it(tmp_path, log, prefix, code):
    options = write_options(tmp_path)
    command = [*prefix.split(), str(ROOT / "launch_train.sh"), "2", str(options), "train.total_iter=10", *SHORT[:1]]
    process = start(command, log)
    try:
        wait_for(log, "Iter: 1,")
        for _ in range(2):  # the shell sends it, and the system as the shell ends
            os.killpg(process.pid, signal.SIGHUP)
            time.sleep(0.05)
        assert process.wait(120) == code
    finally:
        kill_session(process)
    assert ("stopped by a signal at iter" if code else "Finished at iter 10") in log.read_text()


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


@contextmanager
def nodes(folder: Path, *command: object, **kubeflow: str) -> Iterator[tuple[list[subprocess.Popen], list[Path]]]:
    """The processes that a platform starts, one on each of two nodes of two GPUs, and their outputs."""
    folder.mkdir()
    logs, port = [folder / f"node{node}.log" for node in range(2)], str(free_port())
    given = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}  # PAI-DLC
    own = [{"PET_NODE_RANK": str(node)} if kubeflow else {"NPROC_PER_NODE": "2"} for node in range(2)]
    started = [
        start(list(map(str, command)), logs[node], **given | {"RANK": str(node)} | own[node] | kubeflow)
        for node in range(2)
    ]
    try:
        yield started, logs
    finally:
        for process in started:
            kill_session(process)


def identities(logs: list[Path]) -> list[tuple[str, ...]]:
    """(world size, rank, local rank) of every banner."""
    banner = r"World Size: (\d+)\nRank: (\d+)\nLocal Rank: (\d+)"
    return sorted(found for log in logs for found in re.findall(banner, log.read_text()))


FOUR = [("4", "0", "0"), ("4", "1", "1"), ("4", "2", "0"), ("4", "3", "1")]


def test_where_a_platform_starts_one_process_per_node_the_ranks_of_all_nodes_train_and_resume_as_one_world(tmp_path):
    options = write_options(tmp_path)
    python = (sys.executable, "-u", MAIN, "--opt", options, *SHORT, "train.total_iter=1000")
    with nodes(tmp_path / "first", *python) as (processes, logs):
        wait_for(logs[0], "Iter: 2,")
        processes[1].send_signal(signal.SIGTERM)
        assert [process.wait(300) for process in processes] == [75, 75], logs[1].read_text()
    stopped = latest(options)["step"]
    assert identities(logs) == FOUR

    shell = (ROOT / "launch_train.sh", options, *SHORT, f"train.total_iter={stopped + 2}")
    with nodes(tmp_path / "second", *shell) as (processes, logs):
        assert [process.wait(300) for process in processes] == [0, 0], logs[0].read_text()
    assert identities(logs) == FOUR
    assert f"at iter {stopped}" in logs[0].read_text() and latest(options)["step"] == stopped + 2


@pytest.mark.parametrize("kubeflow", [{}, {"PET_NPROC_PER_NODE": "2", "PET_NNODES": "2", "WORLD_SIZE": "4"}])
def test_a_wrong_option_ends_every_node_of_such_a_platform_with_one_message(tmp_path, kubeflow):
    options = write_options(tmp_path)
    with nodes(tmp_path / "logs", sys.executable, "-u", MAIN, "--opt", options, "x.y=1", **kubeflow) as (started, logs):
        assert [process.wait(300) for process in started] == [2, 2]
    texts = [log.read_text() for log in logs]
    assert 1 <= sum(text.count("OptionError: unknown option x") for text in texts) <= 2, texts
    assert all(text.count("Error: ") <= 1 and "Traceback" not in text for text in texts), texts


def test_one_node_of_such_a_platform_needs_no_address_and_tests_with_all_its_ranks(tmp_path, log):
    options = write_options(tmp_path)
    test = ("--method", "tfp", "--opt", str(options), "--output", str(tmp_path / "out"))
    process = start([sys.executable, "main_test_vrt.py", *test], log, WORLD_SIZE="1", RANK="0", NPROC_PER_NODE="2")
    try:
        assert process.wait(300) == 0, log.read_text()
    finally:
        kill_session(process)
    assert identities([log]) == [("2", "0", "0"), ("2", "1", "1")]


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

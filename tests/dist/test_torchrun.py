"""torchrun itself: restarts, signals, its death, nodes that a platform starts, two nodes with a
cable between them.
"""

import os
import re
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.dist import netns
from tests.dist.launching import ROOT, free_port, run_command, started, wait_for
from tests.helpers.train_files import MAIN, latest, odd_command, write_odd, write_options
from utils.dist.process import children_of, process_state

TORCHRUN = (sys.executable, "-m", "torch.distributed.run")
SHORT = ("datasets.test={}", "train.checkpoint_save=1", "watchdog.stall_s=5", "watchdog.start_s=60")


@pytest.fixture
def log(tmp_path):
    return tmp_path / "log"


def test_an_elastic_restart_resumes_and_nobody_is_left_when_torchrun_is_killed(tmp_path, log):
    options = write_options(tmp_path)
    command = (
        *TORCHRUN, "--standalone", "--nproc_per_node=2", "--max-restarts=1", MAIN, "--opt", options,
        *SHORT, "train.total_iter=1000",
    )  # fmt: skip
    with started(command, log) as process:
        wait_for(log, "Iter: 2,")
        ranks = [
            pid
            for pid in children_of(process.pid)
            if MAIN in Path(f"/proc/{pid}/cmdline").read_text()
        ]
        os.kill(ranks[0], signal.SIGKILL)
        text = wait_for(log, r"(?s)resumed from \S+ at iter [1-9].* Iter: ")
        assert "SIGUSR1 would kill torchrun" in text
        family = children_of(process.pid)
        process.kill()
        deadline = time.monotonic() + 10
        while (
            any(process_state(pid) not in (None, "Z") for pid in family)
            and time.monotonic() < deadline
        ):
            time.sleep(0.05)
        assert family and [pid for pid in family if process_state(pid) not in (None, "Z")] == []


@pytest.mark.parametrize(
    ("prefix", "names"),
    [("", "SIGUSR1"), ("env --default-signal=HUP", "SIGHUP"), ("nohup", "SIGHUP SIGINT")],
)
def test_a_signal_to_the_launcher_saves_and_asks_for_another_start_but_for_nohup(
    tmp_path, log, prefix, names
):
    options = write_options(tmp_path)
    command = (
        *prefix.split(),
        ROOT / "launch_train.sh",
        "2",
        options,
        "train.total_iter=1000",
        SHORT[0],
    )
    with started(command, log) as process:
        text = wait_for(log, "Iter: 1,")
        for name in names.split():
            if name == "SIGHUP":
                for _ in range(2):  # the shell sends it, and the system as the shell ends
                    os.killpg(process.pid, signal.SIGHUP)
                    time.sleep(0.05)
            else:
                process.send_signal(getattr(signal, name))
            if prefix == "nohup" and name == "SIGHUP":
                steps = len(re.findall("Iter: ", text))
                wait_for(log, rf"Iter: {steps + 4},")
        assert process.wait(120) == 75
    text = log.read_text()
    assert text.count("stopped by a signal at iter") == 1
    assert (
        "SIGUSR1 would kill" not in text
        and "Traceback" not in text
        and latest(options)["step"] >= 1
    )


PAI_DLC = {"RANK": "{node}", "WORLD_SIZE": "2", "NPROC_PER_NODE": "2"}
KUBEFLOW = {
    "RANK": "{node}", "WORLD_SIZE": "4", "PET_NODE_RANK": "{node}", "PET_NPROC_PER_NODE": "2",
    "PET_NNODES": "2",
}  # fmt: skip


@contextmanager
def nodes(
    folder: Path, platform: dict[str, str], *commands: Sequence[object]
) -> Iterator[tuple[list, list[Path]]]:
    """The processes that a platform starts, one on each of two nodes of two GPUs, and their
    outputs.
    """
    logs = [folder / f"node{node}.log" for node in range(2)]
    given = platform | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    with ExitStack() as both:
        yield (
            [
                both.enter_context(
                    started(
                        command, logs[node], **{k: v.format(node=node) for k, v in given.items()}
                    )
                )
                for node, command in enumerate(commands)
            ],
            logs,
        )


def identities(logs: list[Path]) -> list[tuple[str, ...]]:
    """(world size, rank, local rank) of every banner."""
    banner = r"World Size: (\d+)\nRank: (\d+)\nLocal Rank: (\d+)"
    return sorted(found for log in logs for found in re.findall(banner, log.read_text()))


@pytest.mark.slow
def test_a_platform_that_starts_one_process_per_node_gets_one_world_that_trains_and_resumes(
    tmp_path,
):
    options = write_options(tmp_path)
    changes = (SHORT[0], "train.total_iter=1000")
    python = (sys.executable, "-u", MAIN, "--opt", options)
    with nodes(
        tmp_path, KUBEFLOW, (*python, *changes), (ROOT / "launch_train.sh", options, *changes)
    ) as (both, logs):
        wait_for(logs[0], "Iter: 1,")
        both[1].send_signal(signal.SIGTERM)
        assert [process.wait(300) for process in both] == [75, 75], logs[1].read_text()
    world = [("4", "0", "0"), ("4", "1", "1"), ("4", "2", "0"), ("4", "3", "1")]
    stopped = latest(options)["step"]
    assert identities(logs) == world and stopped >= 1
    again = (*python, SHORT[0], f"train.total_iter={stopped + 1}")
    with nodes(tmp_path, PAI_DLC, again, again) as (both, logs):
        assert [process.wait(300) for process in both] == [0, 0], logs[0].read_text()
    assert identities(logs) == world
    assert f"at iter {stopped}" in logs[0].read_text() and latest(options)["step"] == stopped + 1


def test_a_wrong_option_ends_every_node_of_such_a_platform_with_one_message(tmp_path):
    wrong = (write_options(tmp_path), "x.y=1")
    commands = ((sys.executable, "-u", MAIN, "--opt", *wrong), (ROOT / "launch_train.sh", *wrong))
    with nodes(tmp_path, PAI_DLC | {"TMPDIR": str(tmp_path)}, *commands) as (processes, logs):
        assert [process.wait(300) for process in processes] == [2, 2], logs[1].read_text()
    texts = [log.read_text() for log in logs]
    assert 1 <= sum(text.count("OptionError: unknown option x") for text in texts) <= 2, texts
    assert all(text.count("Error: ") <= 1 and "Traceback" not in text for text in texts), texts
    assert not list(tmp_path.glob("spikevrt-*"))


def test_one_node_of_such_a_platform_needs_no_address_and_tests_with_all_its_ranks(tmp_path, log):
    options = write_options(tmp_path)
    test = (
        sys.executable,
        "main_test_vrt.py",
        "--method",
        "tfp",
        "--opt",
        options,
        "--output",
        tmp_path / "out",
    )
    with started(test, log, WORLD_SIZE="1", RANK="0", NPROC_PER_NODE="2") as process:
        assert process.wait(300) == 0, log.read_text()
    assert identities([log]) == [("2", "0", "0"), ("2", "1", "1")]


@pytest.mark.slow
@pytest.mark.skipif(bool(netns.missing()), reason=f"no two hosts: {netns.missing()}")
def test_two_nodes_train_together_and_name_each_other_when_the_cable_is_cut(tmp_path):
    options, port = write_options(tmp_path), str(free_port())
    logs = [tmp_path / f"host{host}.log" for host in range(2)]
    with netns.TwoHosts() as hosts, ExitStack() as both:
        nodes = [
            both.enter_context(started(
                hosts.command(
                    host, *TORCHRUN, "--nnodes=2", "--nproc_per_node=1", f"--node-rank={host}",
                    "--master-addr=10.77.0.1", f"--master-port={port}", MAIN, "--opt", str(options),
                    *SHORT, "train.total_iter=1000",
                ),
                logs[host], GLOO_SOCKET_IFNAME=f"cable{host}",
            ))
            for host in range(2)
        ]  # fmt: skip
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
    assert "Master: 10.77.0.1" in logs[0].read_text()
    assert "host1" in logs[0].read_text()


def _is_rank(pid: int) -> bool:
    try:
        command = Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return False
    return (
        process_state(pid) not in (None, "Z")
        and MAIN in command
        and "distributed.run" not in command
    )


@pytest.mark.parametrize(("case", "changes", "code"), [
    ("none", ["train.totl_iter=2"], 2), ("nan", ["train.max_nonfinite_steps=1"], 4),
    ("term", [], 75),
])  # fmt: skip
def test_torchrun_restarts_no_run_that_a_restart_does_not_mend(tmp_path, case, changes, code):
    options = write_odd(tmp_path)
    command = odd_command(options, "datasets.test={}", *changes, case=case, struck=(0, 2))
    launcher = [sys.executable, "scripts/torchrun_quiet.py", "--standalone", "--max-restarts=3"]
    launch = [*launcher, "--nproc_per_node=2", *command]
    result = run_command(launch, limit_s=120)
    assert result.exit_codes == [code], result.text
    starts = result.text.count("starting at iter")
    assert starts == (0 if code == 2 else 1) and "Traceback" not in result.text
    assert result.text.count("Error: ") == (0 if code == 75 else 1)

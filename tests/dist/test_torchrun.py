"""Ranks are started by torchrun or by a platform: restarts, signals, lost launchers, two nodes.

Each test starts real launchers, which train on small clips in tmp_path. The output of a launcher
goes to a file, the log. `wait_for` waits until the text of the log matches a pattern.

Exit codes: 0 finished, 2 wrong options, 4 no finite loss, 75 stopped by a signal and to be started
again.
"""

import os
import re
import signal
import sys
import time
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.dist import netns
from tests.dist.launching import (
    ROOT,
    AnyProcess,
    forking_python,
    free_port,
    run_ranks,
    start_command,
    wait_for,
)
from tests.helpers.train_files import (
    MAIN,
    latest_checkpoint,
    odd_command,
    write_odd_options,
    write_options,
)
from utils.dist.process import descendants_of, process_state

# This command does the same as `python -m torch.distributed.run`, but without a new import of
# torch.
TORCHRUN = (sys.executable, "tests/dist/run_module.py", "torch.distributed.run")
LAUNCHER = ROOT / "launch_train.sh"
NO_VALIDATION = "datasets.test={}"
# A run of 1000 steps trains until a test ends it, because no test waits for so many steps.
ENDLESS = "train.total_iter=1000"
# With these options, a run soon notices lost ranks. A restarted run goes on after the last step.
SAVING_AND_WATCHED = (
    NO_VALIDATION,
    # A checkpoint after each step.
    "train.checkpoint_save=1",
    # A rank that is silent for 5 seconds counts as lost. Only the start may take 60 seconds.
    "watchdog.stall_s=5",
    "watchdog.start_s=60",
)


@pytest.fixture
def log(tmp_path) -> Path:
    """Give the path of the file with the output of the launcher."""
    return tmp_path / "log"


def is_alive(pid: int) -> bool:
    """Return whether a process runs. A zombie ("Z") has ended, but has not been noticed yet."""
    return process_state(pid) not in (None, "Z")


def parent_of(pid: int) -> int:
    """Return the process that has started a process."""
    # The file has: pid (name) state parent ... The name may contain spaces and parentheses, so take
    # the text after the last parenthesis.
    after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2]
    return int(after_name.split()[1])


def command_of(pid: int) -> str:
    """Return the command line of a process, or "" if there is no such process."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


# ---- Restarts, and the death of torchrun --------------------------------------------------------


class RestartedRun(NamedTuple):
    """A run under torchrun. Its rank 0 was killed, and then torchrun itself."""

    # The output up to a step after the restart.
    text: str
    # All processes that torchrun had started when it was killed.
    family: list[int]
    # The processes of `family` that were still alive ten seconds after the end of torchrun.
    left: list[int]


@pytest.fixture(scope="module")
def restarted_run(tmp_path_factory) -> RestartedRun:
    """Start a run with one restart, kill a rank, wait for the restart, and kill torchrun."""
    folder = tmp_path_factory.mktemp("restarted")
    log = folder / "log"
    launcher = (*TORCHRUN, "--standalone", "--nproc_per_node=2", "--max-restarts=1")
    # tests/dist/odd_worker.py trains the tiny network "odd". In this program something can go wrong
    # on purpose. Here nothing goes wrong.
    worker = odd_command(write_odd_options(folder), *SAVING_AND_WATCHED, ENDLESS)
    command = (*launcher, *worker)

    with start_command(command, log) as process:
        wait_for(log, "Iter: 2,")
        # torchrun itself starts the ranks. The loader processes are started by the ranks.
        ranks = [pid for pid in descendants_of(process.pid) if parent_of(pid) == process.pid]
        os.kill(ranks[0], signal.SIGKILL)
        # Wait for a step after the resumption. With (?s), "." also matches the end of a line, so
        # "Iter: " may stand in a later line.
        text = wait_for(log, r"(?s)resumed from \S+ at iter [1-9].* Iter: ")

        family = descendants_of(process.pid)
        process.kill()
        # Each process should notice the death of torchrun, and end within 10 s.
        left = family
        deadline = time.monotonic() + 10
        while left and time.monotonic() < deadline:
            time.sleep(0.05)
            left = [pid for pid in family if is_alive(pid)]
    return RestartedRun(text, family, left)


def test_a_run_that_torchrun_restarts_resumes(restarted_run):
    assert re.search(r"resumed from \S+ at iter [1-9]", restarted_run.text)


# SLURM may send SIGUSR1 before the time limit, so that a run can save. The torchrun of torch 2.8
# does not pass the signal on to the ranks, but is killed by it.
def test_a_run_under_torchrun_says_which_signal_would_kill_torchrun(restarted_run):
    assert "SIGUSR1 would kill torchrun" in restarted_run.text


def test_no_process_is_left_after_torchrun_was_killed(restarted_run):
    assert restarted_run.family
    assert restarted_run.left == []


class Hopeless(NamedTuple):
    """A run that would fail again after a restart."""

    # What goes wrong on rank 0 in step 2: a case of tests/dist/odd_worker.py.
    case: str
    # Additional options.
    changes: tuple[str, ...]
    # The exit code with which the run must end.
    exit_code: int
    # Number of times that the run starts to train.
    starts: int
    # Number of errors that the run reports.
    errors: int


# torchrun treats all exit codes in the same way. So `make test` has only the case "stopped by a
# signal". `make slow` has all cases.
@pytest.mark.parametrize(
    "run",
    [
        pytest.param(
            # A wrong option ends the run before its first step. In the case "none", odd_worker.py
            # itself makes nothing go wrong.
            Hopeless("none", ("train.totl_iter=2",), exit_code=2, starts=0, errors=1),
            id="unknown option",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            Hopeless("nan", ("train.max_nonfinite_steps=1",), exit_code=4, starts=1, errors=1),
            id="no finite loss",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            # The case "term" sends SIGTERM, after which a run saves, so that a user can start it
            # again. This is no error.
            Hopeless("term", (), exit_code=75, starts=1, errors=0),
            id="stopped by a signal",
        ),
    ],
)
def test_torchrun_restarts_no_run_that_a_restart_does_not_mend(tmp_path, run):
    options = write_odd_options(tmp_path)
    command = odd_command(
        options, NO_VALIDATION, *run.changes, case=run.case, struck_rank=0, at_step=2
    )
    launcher = ("scripts/torchrun_quiet.py", "--standalone", "--max-restarts=3")

    result = run_ranks(1, *launcher, "--nproc_per_node=2", *command, limit_s=120)

    assert result.exit_codes == [run.exit_code], result.text
    assert result.text.count("starting at iter") == run.starts
    assert result.text.count("Error: ") == run.errors
    assert "Traceback" not in result.text


# ---- Signals to the launcher --------------------------------------------------------------------


def log_out(launcher: AnyProcess) -> None:
    """Send SIGHUP to the launcher and to all its processes, as on a logout.

    SIGHUP is sent twice: the shell sends one, and the system sends another when the shell ends.
    """
    # `start_command` makes the launcher the leader of its process group. So the number of the group
    # is the PID of the launcher.
    group = launcher.pid
    for _ in range(2):
        os.killpg(group, signal.SIGHUP)
        # Without a pause, the two signals could arrive as one.
        time.sleep(0.05)


def assert_stopped_and_saved(options: Path, log: Path) -> None:
    """Check that a run was stopped by one signal, and that it has saved a checkpoint."""
    text = log.read_text()
    assert text.count("stopped by a signal at iter") == 1
    # Under plain torchrun a run warns that SIGUSR1 would kill torchrun. The launcher passes this
    # signal on to its ranks, so there must be no warning.
    assert "SIGUSR1 would kill" not in text
    assert "Traceback" not in text
    assert latest_checkpoint(options)["step"] >= 1


# This test is slow, because a launcher is started twice. In `make test`,
# tests/faults/test_interruptions.py tests signals to a run without a launcher.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("prefix", "name"),
    [
        pytest.param([], "SIGUSR1", id="SIGUSR1"),
        # The tests may run under nohup, and nohup ignores SIGHUP. So set SIGHUP back to its
        # default.
        pytest.param(["env", "--default-signal=HUP"], "SIGHUP", id="SIGHUP"),
    ],
)
def test_a_signal_to_the_launcher_saves_the_run_for_another_start(tmp_path, log, prefix, name):
    options = write_options(tmp_path)
    command = (*prefix, LAUNCHER, "2", options, ENDLESS, NO_VALIDATION)

    with start_command(command, log) as process:
        wait_for(log, "Iter: 1,")
        if name == "SIGHUP":
            log_out(process)
        else:
            process.send_signal(getattr(signal, name))
        exit_code = process.wait(120)

    assert exit_code == 75
    assert_stopped_and_saved(options, log)


# This test is slow, because tests/faults/test_interruptions.py has a case of a run that ignores
# SIGHUP. For `make test`, this case is enough.
@pytest.mark.slow
def test_a_run_under_nohup_continues_after_a_logout(tmp_path, log):
    options = write_options(tmp_path)
    command = ("nohup", LAUNCHER, "2", options, ENDLESS, NO_VALIDATION)

    with start_command(command, log) as process:
        text = wait_for(log, "Iter: 1,")
        log_out(process)
        # The text, read before the logout, has a line for each of `steps` steps. Until the logout
        # the run may have done up to three further steps. So if it reaches step `steps + 4`, it has
        # gone on after the logout.
        steps = len(re.findall("Iter: ", text))
        wait_for(log, rf"Iter: {steps + 4},")
        process.send_signal(signal.SIGINT)
        exit_code = process.wait(120)

    assert exit_code == 75
    assert_stopped_and_saved(options, log)


# ---- Platforms that start one process on each node ----------------------------------------------

# Environment variables of two platforms, for two nodes of two GPUs. "{node}" is 0 or 1. On both
# platforms, RANK is the number of the node. WORLD_SIZE counts the nodes on PAI DLC, and the GPUs on
# Kubeflow.
PAI_DLC = {"RANK": "{node}", "WORLD_SIZE": "2", "NPROC_PER_NODE": "2"}
KUBEFLOW = {
    "RANK": "{node}",
    "WORLD_SIZE": "4",
    "PET_NODE_RANK": "{node}",
    "PET_NPROC_PER_NODE": "2",
    "PET_NNODES": "2",
}
# World size, rank and local rank of the four ranks, as `identities` returns them.
WORLD_OF_FOUR = [("4", "0", "0"), ("4", "1", "1"), ("4", "2", "0"), ("4", "3", "1")]


class Node(NamedTuple):
    """A process that a platform starts on a node."""

    process: AnyProcess
    # Its output.
    log: Path


@contextmanager
def nodes(
    folder: Path, platform: dict[str, str], *commands: Sequence[object]
) -> Generator[list[Node]]:
    """Start a command on each of two nodes, with the variables of a platform.

    Both nodes are on this machine. Their processes end with the `with` block.
    """
    variables = platform | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    found = []
    with ExitStack() as both:
        for number, command in enumerate(commands):
            env = {key: value.format(node=number) for key, value in variables.items()}
            log = folder / f"node{number}.log"
            process = both.enter_context(start_command(command, log, **env))
            found.append(Node(process, log))
        yield found


def exit_codes(both: list[Node]) -> list[int]:
    """Wait for the end of both nodes. Returns their exit codes."""
    return [node.process.wait(300) for node in both]


def identities(*logs: Path) -> list[tuple[str, ...]]:
    """Return (world size, rank, local rank) of each rank, from the banner that it writes."""
    banner = r"World Size: (\d+)\nRank: (\d+)\nLocal Rank: (\d+)"
    found = []
    for log in logs:
        found += re.findall(banner, log.read_text())
    return sorted(found)


@pytest.mark.slow
def test_two_nodes_of_a_platform_train_as_one_world_that_resumes(tmp_path):
    options = write_options(tmp_path)
    python = (sys.executable, MAIN, "--opt", options, NO_VALIDATION)
    script = (LAUNCHER, options, NO_VALIDATION)

    # Node 0 runs the program (`python`), and node 1 runs launch_train.sh (`script`). A signal to
    # node 1 must stop both.
    with nodes(tmp_path, KUBEFLOW, (*python, ENDLESS), (*script, ENDLESS)) as both:
        wait_for(both[0].log, "Iter: 1,")
        both[1].process.send_signal(signal.SIGTERM)
        assert exit_codes(both) == [75, 75], both[1].log.read_text()
    stopped = latest_checkpoint(options)["step"]
    assert stopped >= 1
    assert identities(both[0].log, both[1].log) == WORLD_OF_FOUR

    # The other platform continues for one step.
    again = (*python, f"train.total_iter={stopped + 1}")
    with nodes(tmp_path, PAI_DLC, again, again) as both:
        assert exit_codes(both) == [0, 0], both[0].log.read_text()
    assert identities(both[0].log, both[1].log) == WORLD_OF_FOUR
    assert f"at iter {stopped}" in both[0].log.read_text()
    assert latest_checkpoint(options)["step"] == stopped + 1


def test_a_wrong_option_ends_each_node_of_a_platform_with_one_message(tmp_path):
    wrong = (write_options(tmp_path), "x.y=1")
    python = (sys.executable, MAIN, "--opt", *wrong)
    script = (LAUNCHER, *wrong)
    # TMPDIR: the program makes its temporary folders here. The end of the test looks for them here.
    # `forking_python` lets the launcher start a fork and no new Python, because a fork starts
    # faster.
    platform = PAI_DLC | {"TMPDIR": str(tmp_path)} | forking_python(tmp_path)

    with nodes(tmp_path, platform, python, script) as both:
        assert exit_codes(both) == [2, 2], both[1].log.read_text()

    texts = [node.log.read_text() for node in both]
    # Usually one node reports the wrong option for both nodes. If the nodes do not hear of each
    # other in time, each node reports the wrong option.
    messages = sum(text.count("OptionError: unknown option x") for text in texts)
    assert messages in (1, 2), texts
    for text in texts:
        assert text.count("Error: ") <= 1, texts
        assert "Traceback" not in text, texts
    # No temporary folder is left.
    assert not list(tmp_path.glob("spikevrt-*"))


def test_a_single_node_of_a_platform_tests_with_all_its_ranks_without_an_address(tmp_path, log):
    options = write_options(tmp_path)
    program = (sys.executable, "main_test_vrt.py", "--method", "tfp")
    command = (*program, "--opt", options, "--output", tmp_path / "out")

    with start_command(command, log, WORLD_SIZE="1", RANK="0", NPROC_PER_NODE="2") as process:
        assert process.wait(300) == 0, log.read_text()

    assert identities(log) == [("2", "0", "0"), ("2", "1", "1")]


# ---- Two hosts with a cable between them --------------------------------------------------------


def is_rank(pid: int) -> bool:
    """Return whether a process is a living rank, and not the agent of torchrun that started it."""
    command = command_of(pid)
    return is_alive(pid) and MAIN in command and "distributed.run" not in command


@pytest.mark.slow
@pytest.mark.skipif(bool(netns.reason_to_skip()), reason=f"no two hosts: {netns.reason_to_skip()}")
def test_two_hosts_name_each_other_when_the_cable_is_cut(tmp_path):
    # Each host has one rank. The two ranks talk only through the cable. GLOO_SOCKET_IFNAME gives
    # gloo the end of the cable on its host.
    options = write_options(tmp_path)
    port = str(free_port())
    logs = [tmp_path / "host0.log", tmp_path / "host1.log"]

    with netns.TwoHosts() as hosts, ExitStack() as both:
        agents = []
        for host in range(2):
            command = hosts.command(
                host,
                *TORCHRUN,
                "--nnodes=2",
                "--nproc_per_node=1",
                f"--node-rank={host}",
                "--master-addr=10.77.0.1",
                f"--master-port={port}",
                MAIN,
                "--opt",
                str(options),
                *SAVING_AND_WATCHED,
                ENDLESS,
            )
            agent = start_command(command, logs[host], GLOO_SOCKET_IFNAME=f"cable{host}")
            agents.append(both.enter_context(agent))
        wait_for(logs[0], "Iter: 2,")

        hosts.cut()
        time_of_cut = time.monotonic()
        # Each rank writes one of two messages. Either its watchdog hears no more of the other rank
        # or of the store, or an exchange between the ranks fails first ("lost contact").
        wait_for(logs[0], r"rank 1 is SILENT|lost contact", limit_s=30)
        wait_for(logs[1], r"rank 1 has lost the store|lost contact", limit_s=30)

        # The agents of torchrun may live on. But each rank must end within 30 s of the cut.
        family = []
        for agent in agents:
            family += descendants_of(agent.pid)
        while time.monotonic() < time_of_cut + 30 and any(is_rank(pid) for pid in family):
            time.sleep(0.1)
        assert not any(is_rank(pid) for pid in family)
    assert "Master: 10.77.0.1" in logs[0].read_text()
    assert "host1" in logs[0].read_text()

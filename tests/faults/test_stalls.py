"""Steps that stand still or are suspended: a stall is named once, and all ranks end.

In these tests a fault happens to ("strikes") one rank of a real training.
tests/faults/stall_worker.py is a short training. tests/dist/odd_worker.py runs main_train_vrt.py
with a tiny network. The watchdog of the product then ends the run after `stall_s` seconds without
progress. Some tests also read the status, a file in which a run describes its ranks.

To add a kind of stall, add an entry to KINDS in tests/faults/stalls.py, and a row to the first
test.
"""

import os
import re
import signal
import subprocess
import time
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from tests.dist.launching import ROOT, RankResult, Ranks, run_ranks
from tests.faults.secret_keys import (
    ENV_WITH_SECRET,
    OPTION_WITH_SECRET,
    SECRET_IN_ENV,
    SECRET_IN_OPTIONS,
    files_with_a_secret,
)
from tests.faults.stalls import run_stall
from tests.helpers.checked import find_match
from tests.helpers.train_files import folder_of_run, odd_command, run_odd, write_odd_options
from utils.dist.process import descendants_of, process_state

# The option watchdog.stall_s of most runs below. It must be longer than a step on a busy machine.
STALL_S = 3.0
# Exit code of a run that the watchdog has ended.
STALLED = 70

# ---- One rank is struck ----


# kind: what happens to the rank, a key of tests.faults.stalls.KINDS, e.g. "stop" is SIGSTOP.
# ranks: number of ranks. rank: the rank that is struck.
# most_s: all processes must be gone STALL_S + most_s seconds after the fault. The numbers 6 and 9
# were chosen by hand.
@pytest.mark.parametrize(
    ("kind", "ranks", "rank", "most_s"),
    [
        ("worker", 2, 1, 6),
        ("gil", 2, 1, 6),
        ("stop", 2, 1, 6),
        ("kill", 3, 0, 6),
        ("forward", 1, 0, 6),
        # In the kind "gil", C code never releases Python's global lock. There is no other rank that
        # could notice this. So the guard ends the rank: a process that watches the rank from
        # outside. The guard takes longer than another rank, so most_s is 9 and not 6.
        pytest.param("gil", 1, 0, 9, marks=pytest.mark.slow),
    ],
)
def test_a_rank_that_stops_or_dies_is_named_and_all_ranks_end(kind, ranks, rank, most_s):
    trial = run_stall(kind, ranks, rank, stall_s=STALL_S)

    assert trial.is_right, trial.text
    assert trial.gone_s < STALL_S + most_s
    if ranks == 1:
        # The message must come from the product. The timer of Python's faulthandler could also end
        # the rank, but would only write "Timeout (0:00:03)!" and not name the rank.
        assert "Timeout (" not in trial.text, trial.text
    if kind == "forward":
        assert trial.exit_codes == [STALLED]


def test_ranks_that_all_hang_in_c_code_are_reported_once():
    trial = run_stall("gil on all ranks", ranks=2, rank=0, stall_s=STALL_S)

    # No rank can report, because Python does not run. So the guard of rank 0 or of rank 1 reports.
    assert re.fullmatch(r"rank [01] is SILENT", "".join(trial.blamed)), trial.text
    assert trial.has_stack, trial.text
    assert 0 not in trial.exit_codes
    assert not trial.left


@pytest.mark.parametrize("reporter", [0, 1])
def test_a_stall_is_reported_although_the_reporting_rank_is_killed(reporter):
    stuck = 1 - reporter
    # The arguments are REPORTER, and then KIND RANK STEP STALL_S of stall_worker.py.
    command = ("tests/faults/reporter_worker.py", str(reporter), "forward", str(stuck), "10")

    result = run_ranks(2, *command, str(STALL_S), limit_s=60)

    assert result.exit_codes[reporter] == -9, result.text
    assert result.exit_codes[stuck] == STALLED, result.text
    assert result.text.count("StallError") == 1, result.text
    assert f'rank {stuck} stands still or is gone; last seen in phase "forward"' in result.text
    assert f"seen by rank {reporter}, which gave no report" in result.text


def test_a_rank_that_stands_still_while_clips_are_restored_is_named(tmp_path):
    weights = tmp_path / "weights.pth"
    # Weights of the network "odd", which is one convolution.
    state = {"conv.weight": torch.zeros(3, 3, 3, 3), "conv.bias": torch.zeros(3)}
    torch.save({"params": state}, weights)
    paths = ("--weights", str(weights), "--output", str(tmp_path / "out"))
    limits = ("watchdog.stall_s=3", "watchdog.validate_s=1")

    result = run_odd(
        write_odd_options(tmp_path),
        *paths,
        *limits,
        case="stall",
        struck_rank=1,
        at_step=1,
        program="test",
        ranks=2,
    )

    assert result.exit_codes == [STALLED, STALLED], result.text
    assert result.text.count("rank 1 is STUCK") == 1
    assert 'in phase "restore: test' in result.text
    # The stack of the rank must name the file of the line that stands still.
    assert "odd_worker.py" in result.text


# This test is slow, because the second run keeps a core busy.
@pytest.mark.slow
def test_other_programs_of_the_same_parent_do_not_delay_the_end_of_a_run(tmp_path):
    # E.g. a queue of jobs has started two runs, so both have the same parent. The first run ends,
    # and the second run continues.
    command = odd_command(
        write_odd_options(tmp_path), "train.total_iter=100000", "datasets.test={}"
    )

    with Ranks(1, *command) as other:
        other.wait_for("Iter: 1,", rank=0, limit_s=60)
        trial = run_stall("kill", ranks=3, rank=0, stall_s=STALL_S)
        is_other_running = other.processes[0].poll() is None

    assert is_other_running
    assert trial.is_right, trial.text
    assert trial.gone_s < STALL_S + 6, trial.text


# ---- The whole run is suspended ----

# How long a run is suspended. It is longer than STALL_S, after which a run that hangs would be
# ended.
PAUSE_S = STALL_S + 6


class Pause(NamedTuple):
    """How a run is suspended: one process (or rank) stops first and wakes last.

    This process stops `lead_s` seconds before the other processes, and wakes a moment after them.
    While only this process is stopped, the others wait for it, as for a process that hangs. The
    watchdog must not end the run because of this wait.
    """

    last: str  # the process that wakes last
    lead_s: float


@pytest.mark.parametrize(
    ("ranks", "pauses"),
    [
        (1, [Pause("loader process", lead_s=1)]),
        (2, [Pause("rank 0", lead_s=0), Pause("rank 1", lead_s=1), Pause("rank 0", lead_s=1)]),
    ],
    ids=["one rank", "two ranks"],
)
def test_a_run_that_is_suspended_as_a_whole_goes_on_when_it_wakes(tmp_path, ranks, pauses):
    changes = (
        "datasets.test={}",
        "train.total_iter=100000",
        f"watchdog.stall_s={STALL_S}",
        # The same loader process serves all epochs.
        "datasets.train.dataloader_persistent_workers=true",
    )
    command = odd_command(write_odd_options(tmp_path), *changes)

    with Ranks(ranks, *command) as running:
        running.wait_for("Iter: 5,", rank=0, limit_s=120)
        pids = [process.pid for process in running.processes]
        for pause in pauses:
            suspend(in_order_of_waking(pids, pause.last), pids, pause.lead_s)
        # The run must go on: it must take twenty more steps.
        steps_so_far = running.output(rank=0).count("Iter: ")
        running.wait_for(f"Iter: {steps_so_far + 20},", rank=0, limit_s=60)
        send(pids, signal.SIGTERM)
        result = running.wait(limit_s=60)

    assert result.exit_codes == [75] * ranks, result.text
    assert "stopped by a signal at iter" in result.text
    assert "StallError" not in result.text


def in_order_of_waking(pids, last):
    """Return the groups of processes of a run, in the order in which the groups wake.

    pids: the process of each rank. last: the group that wakes last, see `Pause`.
    A group is a list of numbers for os.kill. A negative number -pid stands for the process group of
    a rank: the rank and all processes that it started.
    """
    if last == "loader process":
        # First the only rank alone, and then its loader process.
        return [pids, descendants_of(pids[0])]
    groups_of_ranks = [[-pid] for pid in pids]
    if last == "rank 0":
        groups_of_ranks.reverse()
    return groups_of_ranks


def suspend(groups, pids, lead_s):
    """Stop all processes of a run for PAUSE_S seconds, then let them continue.

    groups: the processes in the order in which they wake. The last group stops `lead_s` seconds
    before the others. pids: the processes of the ranks. The test checks that all of them stop.
    """
    send(groups[-1], signal.SIGSTOP)
    time.sleep(lead_s)
    for group in groups:
        send(group, signal.SIGSTOP)  # the last group is already stopped, and stays stopped
    time.sleep(PAUSE_S)

    for pid in pids:
        assert process_state(pid) == "T"  # stopped
    for group in groups:
        send(group, signal.SIGCONT)
        time.sleep(0.1)


def send(pids, number):
    """Send a signal to processes."""
    for pid in pids:
        os.kill(pid, number)


# ---- The status: how a run describes its ranks ----

# The line of a rank in the status, e.g. (in one line)
# rank 1 of 2 on host, cpu, pid 71; step 3, 1.2 s in phase "forward"; loss finite;
# weights 0123456789ab at step 2; 4 samples an epoch, first 1, 3, 0
LINE = re.compile(
    r"rank (?P<rank>\d) of 2 on \S+, cpu, pid (?P<pid>\d+); step (?P<step>\d+), "
    r"[\d.]+ s in phase \"(?P<phase>[^\"]+)\"; loss finite; "
    r"weights (?P<weights>[0-9a-f]{12}) at step (?P<step_of_weights>\d+); "
    r"4 samples an epoch, first (?P<samples>\d, \d, \d)"
)


def lines_of_ranks(text):
    """Return the lines of rank 0 and of rank 1 in a status, each as a dict, see LINE."""
    lines = [line.groupdict() for line in LINE.finditer(text)]
    assert [line["rank"] for line in lines] == ["0", "1"], text
    return lines


class StalledRun(NamedTuple):
    """A run of two ranks whose rank 1 stood still in the forward pass of step 4.

    A run prints its status at the start. Later it writes the status if it is asked: a user makes an
    empty file "status" in its folder. Each status has a line of rank 0 and a line of rank 1.
    """

    folder: Path  # the folder of the files of the run, and more
    result: RankResult
    pids: list[str]  # PIDs of rank 0 and of rank 1
    at_start: list[dict[str, str]]  # the lines of the status at the start, see LINE
    asked_for: list[dict[str, str]]  # the lines of the status that the test asked for after step 3


@pytest.fixture(scope="module")
def stalled_run(tmp_path_factory):
    """Let a run stand still, ask for its status, and wait until the watchdog has ended the run.

    Options and environment have secret keys, which the run must not write into any file.
    """
    folder = tmp_path_factory.mktemp("stalled")
    options = write_odd_options(folder)
    changes = (
        "datasets.test={}",
        "debug.compare_every=2",  # the ranks compare their weights after each second step
        "watchdog.stall_s=5",
        "logging.use_wandb=true",
        OPTION_WITH_SECRET,
    )
    status = folder_of_run(options) / "status"
    command = odd_command(options, *changes, case="stall", struck_rank=1, at_step=4)

    with Ranks(2, *command, env=ENV_WITH_SECRET) as running:
        running.wait_for("Iter: 3,", rank=0, limit_s=120)
        status.touch()
        pids = [str(process.pid) for process in running.processes]
        result = running.wait(limit_s=60)
    return StalledRun(
        folder=folder,
        result=result,
        pids=pids,
        at_start=lines_of_ranks(result.stdout[0]),
        asked_for=lines_of_ranks(status.read_text()),
    )


def test_a_run_begins_with_a_status_that_lists_every_rank(stalled_run):
    rank_0, rank_1 = stalled_run.at_start

    assert [rank_0["pid"], rank_1["pid"]] == stalled_run.pids
    assert rank_0["step"] == rank_1["step"] == "0"
    assert rank_0["weights"] == rank_1["weights"]


def test_the_status_says_that_the_ranks_train_on_different_samples(stalled_run):
    rank_0, rank_1 = stalled_run.at_start
    samples_of_0 = set(rank_0["samples"].split(", "))
    samples_of_1 = set(rank_1["samples"].split(", "))

    assert samples_of_0.isdisjoint(samples_of_1)


def test_the_status_of_a_run_that_stands_still_shows_which_rank_the_others_wait_for(stalled_run):
    rank_0, rank_1 = stalled_run.asked_for

    # Three steps are finished. Rank 1 stands still in its forward pass of step 4. Rank 0 waits in
    # its backward pass for the gradients of rank 1.
    assert rank_0["step"] == rank_1["step"] == "3"
    assert rank_0["phase"] == "backward"
    assert rank_1["phase"] == "forward"


def test_the_status_has_the_weights_that_the_ranks_compared_last(stalled_run):
    rank_0, rank_1 = stalled_run.asked_for

    assert rank_0["step_of_weights"] == rank_1["step_of_weights"] == "2"
    assert rank_0["weights"] == rank_1["weights"]
    # The weights are not the weights of the start, because three steps have changed them.
    assert rank_0["weights"] != stalled_run.at_start[0]["weights"]


def test_a_rank_that_stands_still_in_a_training_is_named_with_its_stack(stalled_run):
    text = stalled_run.result.text

    assert stalled_run.result.exit_codes == [STALLED, STALLED], text
    assert "rank 1 is STUCK" in text
    assert "odd_worker.py" in text


def test_a_run_that_stands_still_writes_no_secret_key(stalled_run):
    assert SECRET_IN_ENV not in stalled_run.result.text
    assert SECRET_IN_OPTIONS not in stalled_run.result.text
    assert files_with_a_secret(stalled_run.folder / "experiments") == []


def command_for_stacks():
    """Return the command of docs/troubleshooting.md that shows the stacks of the rank PID."""
    page = (ROOT / "docs/troubleshooting.md").read_text(encoding="utf-8")
    return find_match(r"```bash\n(kill -USR2 PID;.*)\n```", page)[1]


def text_of(file, limit_s):
    """Wait until a file has text. Returns the text."""
    deadline = time.monotonic() + limit_s
    while not file.exists() or not file.read_text():
        assert time.monotonic() < deadline, f"{file} is missing or empty"
        time.sleep(0.05)
    return file.read_text()


def test_the_command_of_the_documents_shows_the_stacks_of_a_rank_that_stands_still(tmp_path):
    options = write_odd_options(tmp_path)
    status = folder_of_run(options) / "status"
    # Rank 1 stands still in its step 2, within the method `strike`. The watchdog would end the run
    # only after a minute, so there is time to try the command.
    changes = ("datasets.test={}", "watchdog.stall_s=60")
    command = odd_command(options, *changes, case="stall", struck_rank=1, at_step=2)

    with Ranks(2, *command) as running:
        running.wait_for("Iter: 1,", rank=0, limit_s=120)
        # An empty file asks the run for its status, which has the PID of each rank.
        status.touch()
        _, rank_1 = lines_of_ranks(text_of(status, limit_s=30))
        shown = stacks_of(rank_1["pid"], limit_s=30)

    assert re.search(r"File .*odd_worker\.py\", line \d+ in strike", shown), shown
    # The stacks of all threads are shown, e.g. of the watchdog. The stack of a thread begins with
    # "Thread 0x" or "Current thread 0x".
    assert shown.count("hread 0x") > 1, shown


def stacks_of(pid, limit_s):
    """Run the command of the documents for a rank until its stack has `strike`. Returns the stacks.

    The command is repeated, because it may come too early for two reasons. The rank may not have
    reached its step 2 yet. Or, on a busy machine, the rank writes its stacks after the command has
    read them.
    """
    command = command_for_stacks().replace("PID", pid)
    deadline = time.monotonic() + limit_s
    shown = ""
    while "in strike" not in shown and time.monotonic() < deadline:
        done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
        shown = done.stdout
        time.sleep(0.2)
    return shown


# ---- Ranks whose networks differ ----


def test_networks_that_differ_between_the_ranks_end_the_run_before_its_first_step(tmp_path):
    result = run_with_different_networks(tmp_path, case="shape", step=0)

    check_message(result, "the networks differ")
    assert "Iter: 1," not in result.text


def test_networks_that_drift_apart_end_the_run_at_the_next_comparison(tmp_path):
    # The weights drift apart in step 3. The ranks compare after the steps 2, 4, ...
    result = run_with_different_networks(tmp_path, case="drift", step=3)

    check_message(result, "the weights after iteration 4 differ")
    assert re.search(r"rank 0: '[0-9a-f]{12}'; rank 1: '[0-9a-f]{12}'", result.text)
    assert result.text.count("Iter: 4,") == 1
    assert "Iter: 5," not in result.text


def run_with_different_networks(folder, case, step):
    """Run two ranks of which rank 1 gets another network in a step. Return the result.

    The ranks compare their weights after every second step. case: see tests/dist/odd_worker.py.
    """
    changes = ("datasets.test={}", "debug.compare_every=2", "train.total_iter=8")
    return run_odd(
        write_odd_options(folder), *changes, case=case, struck_rank=1, at_step=step, ranks=2
    )


def check_message(result, difference):
    """Check that both ranks ended with the exit code of an error, and that one message says why."""
    assert result.exit_codes == [2, 2], result.text
    assert "Traceback" not in result.text, result.text
    assert result.text.count(f"DistError: {difference} between the ranks") == 1

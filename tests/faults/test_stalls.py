"""Steps that stand still or are suspended: a stall is named once, and all ranks go.

The tests also read the status, in which a run tells of its ranks. They strike one rank of a real
training: tests/faults/stall_worker.py is a short one, tests/dist/odd_worker.py runs
main_train_vrt.py with a tiny network. The watchdog of the product then ends the run after `stall_s`
seconds without progress.
"""

import os
import re
import signal
import time

import pytest
import torch

from tests.dist.launching import Ranks
from tests.faults.secret_keys import ENV, KEY, KEY_OF_OPTIONS, SECRET, files_with_a_key
from tests.faults.stalls import run_stall
from tests.helpers.train_files import experiment, odd, odd_command, write_odd
from utils.dist.process import descendants_of, process_state

# The option watchdog.stall_s of most runs below. It must be longer than a step on a busy machine.
STALL_S = 3.0


@pytest.mark.parametrize(("kind", "ranks", "rank", "most_s"), [
    ("worker", 2, 1, 6), ("gil", 2, 1, 6), ("stop", 2, 1, 6), ("kill", 3, 0, 6),
    ("forward", 1, 0, 6), ("gil", 1, 0, 9),  # C code that never lets go
])  # fmt: skip
def test_a_struck_rank_is_named_and_all_ranks_leave(kind, ranks, rank, most_s):
    trial = run_stall(kind, ranks, rank, stall_s=STALL_S)

    assert trial.is_right, trial.text
    assert ranks > 1 or "Timeout (" not in trial.text, trial.text
    assert trial.gone_s < STALL_S + most_s
    assert kind != "forward" or trial.exit_codes == [70]


def test_a_rank_that_stands_still_while_clips_are_restored_is_named(tmp_path):
    weights = tmp_path / "weights.pth"
    torch.save(
        {"params": {"conv.weight": torch.zeros(3, 3, 3, 3), "conv.bias": torch.zeros(3)}}, weights
    )
    places = ("--weights", str(weights), "--output", str(tmp_path / "out"))
    limits = ("watchdog.stall_s=3", "watchdog.validate_s=1")
    result = odd(
        write_odd(tmp_path), *places, *limits, case="stall", struck=(1, 1), program="test", ranks=2
    )

    assert result.exit_codes == [70, 70], result.text
    assert result.text.count("rank 1 is STUCK") == 1
    assert 'in phase "restore: test' in result.text
    assert "odd_worker.py" in result.text


# How long a run is suspended: longer than any limit that follows from STALL_S.
PAUSE_S = STALL_S + 6  # more than any limit that follows from it


# last_ones: the process that wakes last -> by how many seconds it stops earlier than the others.
# The others then wait for this process while they are awake.
@pytest.mark.parametrize(
    ("ranks", "last_ones"),
    [(1, {"its loader process": 1}), (2, {"rank 0": 0, "rank 1": 1, "rank 0 again": 1})],
)
def test_a_run_that_is_suspended_as_a_whole_goes_on_when_it_wakes(tmp_path, ranks, last_ones):
    changes = ("datasets.test={}", "train.total_iter=100000", f"watchdog.stall_s={STALL_S}")
    command = odd_command(
        write_odd(tmp_path), *changes, "datasets.train.dataloader_persistent_workers=true"
    )
    with Ranks(ranks, *command) as running:
        running.wait_for("Iter: 5,", 0, 120)
        pids = [process.pid for process in running.processes]
        for last, lead_s in last_ones.items():
            groups = {
                "its loader process": [pids, descendants_of(pids[0])],
                "rank 1": [[-pid] for pid in pids],  # with all that the rank started
                "rank 0": [[-pid] for pid in pids[::-1]],
            }[last.removesuffix(" again")]
            _signal(groups[-1], signal.SIGSTOP)
            time.sleep(lead_s)
            for group in groups:
                _signal(group, signal.SIGSTOP)
            time.sleep(PAUSE_S)
            assert all(process_state(pid) == "T" for pid in pids)
            for group in groups:
                _signal(group, signal.SIGCONT)
                time.sleep(0.1)
        running.wait_for(f"Iter: {running.output(0).count('Iter: ') + 20},", 0, 60)
        _signal(pids, signal.SIGTERM)
        result = running.wait(60)

    assert result.exit_codes == [75] * ranks, result.text
    assert "stopped by a signal at iter" in result.text
    assert "StallError" not in result.text


def _signal(pids: list[int], number: int) -> None:
    """Send a signal to processes. A negative number is a rank with all that it started."""
    for pid in pids:
        os.kill(pid, number)


# The line of a rank in the status, e.g. (in one line)
# rank 1 of 2 on host, cpu, pid 71; step 3, 1.2 s in phase "forward"; loss finite;
# weights 0123456789ab at step 2; 4 samples an epoch, first 1, 3, 0
# The groups are: 0 rank, 1 pid, 2 step, 3 phase, 4 weights, 5 step of the weights, 6 to 8 samples.
LINE = re.compile(
    r"rank (\d) of 2 on \S+, cpu, pid (\d+); step (\d+), "
    r"[\d.]+ s in phase \"([^\"]+)\"; loss finite; "
    r"weights ([0-9a-f]{12}) at step (\d+); 4 samples an epoch, first (\d), (\d), (\d)"
)


def test_every_rank_stands_in_the_status_even_of_a_run_that_stands_still_and_no_key_does(tmp_path):
    options = write_odd(tmp_path)
    changes = (
        "datasets.test={}",
        "debug.compare_every=2",
        "watchdog.stall_s=5",
        "logging.use_wandb=true",
        SECRET,
    )
    status = experiment(options) / "status"
    with Ranks(2, *odd_command(options, *changes, case="stall", struck=(1, 4)), env=ENV) as running:
        running.wait_for("Iter: 3,", 0, 120)
        # An empty file asks the run for its status.
        status.touch()
        pids = [process.pid for process in running.processes]
        result = running.wait(60)
    # A run also prints its status at the start. The ranks have the same weights and other samples.
    at_start = LINE.findall(result.stdout[0])
    assert [(rank, int(pid), step) for rank, pid, step, *_ in at_start] == [
        ("0", pids[0], "0"),
        ("1", pids[1], "0"),
    ]
    assert not set(at_start[0][6:]) & set(at_start[1][6:])
    assert at_start[0][4] == at_start[1][4]
    # In the status that was asked for, three steps are finished. Rank 1 stands still in its forward
    # pass, and rank 0 waits in its backward pass for the gradients of rank 1.
    asked = LINE.findall(status.read_text())

    assert [(line[0], line[2], line[3], line[5]) for line in asked] == [
        ("0", "3", "backward", "2"), ("1", "3", "forward", "2"),
    ]  # fmt: skip
    assert asked[0][4] == asked[1][4] != at_start[0][4]
    # The run went on to end itself, with stacks.
    assert result.exit_codes == [70, 70]
    assert "rank 1 is STUCK" in result.text
    assert "odd_worker.py" in result.text
    assert KEY not in result.text
    assert KEY_OF_OPTIONS not in result.text
    assert files_with_a_key(tmp_path / "experiments") == []


@pytest.mark.parametrize(
    ("case", "step", "last", "said"),
    [
        ("drift", 3, 4, "the weights after iteration 4 differ"),
        ("shape", 0, 0, "the networks differ"),
    ],
)
def test_networks_that_differ_between_the_ranks_or_drift_apart_end_the_run(
    tmp_path, case, step, last, said
):
    changes = ("datasets.test={}", "debug.compare_every=2", "train.total_iter=8")
    result = odd(write_odd(tmp_path), *changes, case=case, struck=(1, step), ranks=2)

    assert result.exit_codes == [2, 2], result.text
    assert "Traceback" not in result.text, result.text
    assert result.text.count(f"DistError: {said} between the ranks") == 1
    assert not last or re.search(r"rank 0: '[0-9a-f]{12}'; rank 1: '[0-9a-f]{12}'", result.text)
    assert result.text.count(f"Iter: {last},") == bool(last)
    assert f"Iter: {last + 1}," not in result.text


def test_other_programs_of_the_same_parent_do_not_delay_the_end_of_a_run(tmp_path):
    # E.g. a queue of jobs starts two runs. The first run ends, and the second goes on.
    command = odd_command(write_odd(tmp_path), "train.total_iter=100000", "datasets.test={}")
    with Ranks(1, *command) as other:
        other.wait_for("Iter: 1,", 0, 60)
        trial = run_stall("kill", 3, 0, stall_s=STALL_S)
        assert other.processes[0].poll() is None

    assert trial.is_right, trial.text
    assert trial.gone_s < STALL_S + 6, trial.text

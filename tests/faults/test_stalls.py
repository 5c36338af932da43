"""Steps that wait, stand still or are suspended: a stall is named once, with its stack, and all ranks go."""

import os
import signal
import time

import pytest
import torch

from tests.dist.launching import Ranks
from tests.faults.stalls import run_stall
from tests.train_files import odd, odd_command, write_odd
from utils.dist.process import children_of, process_state

STALL_S = 3.0


@pytest.mark.parametrize(
    ("kind", "ranks", "rank", "most_s"),
    [
        ("worker", 2, 1, 6), ("gil", 2, 1, 6), ("stop", 2, 1, 6), ("kill", 3, 0, 6),
        ("forward", 1, 0, 6), ("gil", 1, 0, 9),  # C code that never lets go
    ],
)  # fmt: skip
def test_a_struck_rank_is_named_and_all_ranks_leave(kind, ranks, rank, most_s):
    trial = run_stall(kind, ranks, rank, stall_s=STALL_S)

    assert trial.is_right and (ranks > 1 or "Timeout (" not in trial.text), trial.text
    assert trial.gone_s < STALL_S + most_s and (kind != "forward" or trial.exit_codes == [70])


def test_a_rank_that_stands_still_while_clips_are_restored_is_named(tmp_path):
    weights = tmp_path / "weights.pth"
    torch.save({"params": {"conv.weight": torch.zeros(3, 3, 3, 3), "conv.bias": torch.zeros(3)}}, weights)

    places = ("--weights", str(weights), "--output", str(tmp_path / "out"))
    limits = ("watchdog.stall_s=3", "watchdog.validate_s=1")
    result = odd(write_odd(tmp_path), *places, *limits, case="stall", struck=(1, 1), program="test", ranks=2)

    assert result.exit_codes == [70, 70], result.text
    assert result.text.count("rank 1 is STUCK") == 1 and 'in phase "restore: test' in result.text
    assert "odd_worker.py" in result.text


PAUSE_S = STALL_S + 6  # more than any limit that follows from it


@pytest.mark.parametrize(("ranks", "last_ones"), [(1, ["its loader process"]), (2, ["rank 1", "rank 0"])])
def test_a_run_that_is_suspended_as_a_whole_goes_on_when_it_wakes(tmp_path, ranks, last_ones):
    changes = ("datasets.test={}", "train.total_iter=150", f"watchdog.stall_s={STALL_S}")
    command = odd_command(write_odd(tmp_path), *changes, "datasets.train.dataloader_persistent_workers=true")
    with Ranks(ranks, *command) as running:
        running.wait_for("Iter: 5,", 0, 120)
        pids = [process.pid for process in running.processes]
        for last in last_ones:
            # The last process to wake is the first to stop: the others wait for it when they are stopped.
            groups = {
                "its loader process": [pids, children_of(pids[0])],
                "rank 1": [[-pid] for pid in pids],  # with all that the rank started
                "rank 0": [[-pid] for pid in pids[::-1]],
            }[last]
            _signal(groups[-1], signal.SIGSTOP)
            time.sleep(0.5)
            for group in groups:
                _signal(group, signal.SIGSTOP)
            time.sleep(PAUSE_S)
            assert all(process_state(pid) == "T" for pid in pids)
            for group in groups:
                _signal(group, signal.SIGCONT)
                time.sleep(0.1)
        result = running.wait(60)

    assert result.exit_codes == [0] * ranks, result.text
    assert "Finished at iter 150" in result.text and "StallError" not in result.text


def _signal(pids: list[int], number: int) -> None:
    for pid in pids:
        os.kill(pid, number)

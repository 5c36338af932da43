"""A run that is suspended as a whole goes on when it wakes; what stands still while the others run is a stall."""

import os
import signal
import time

import pytest

from tests.dist.launching import Ranks
from tests.train_files import odd_command, write_odd
from utils.dist.process import children_of, process_state

STALL_S = 5.0
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

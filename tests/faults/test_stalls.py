"""A few of the trials of tests/faults/trials.py: a stall is named once, with its stack, and all ranks go."""

from __future__ import annotations

import pytest

from tests.faults.stalls import run_stall

STALL_S = 3.0


@pytest.mark.parametrize(("kind", "ranks", "rank"), [("worker", 2, 1), ("gil", 2, 1), ("kill", 3, 0)])
def test_a_struck_rank_is_named_and_all_ranks_leave(kind, ranks, rank):
    trial = run_stall(kind, ranks, rank, stall_s=STALL_S)

    assert trial.is_right, trial.text
    assert trial.gone_s < STALL_S + 6


def test_a_single_process_that_stands_still_ends_with_its_stack():
    trial = run_stall("forward", 1, 0, stall_s=STALL_S)

    assert trial.is_right, trial.text
    assert trial.exit_codes == [70]

"""A few of the trials of tests/faults/trials.py: a stall is named once, with its stack, and all ranks go."""

import pytest
import torch

from tests.faults.stalls import run_stall
from tests.train_files import odd, write_odd

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

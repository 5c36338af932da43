"""The collectives and the one door, on real gloo ranks."""

from __future__ import annotations

import pytest

from tests.dist.launching import run_ranks
from utils import utils_dist

WORKER = "tests/dist/helpers_worker.py"


@pytest.mark.parametrize("n", [1, 2, 3])
def test_collectives_give_the_same_on_every_rank(n):
    result = run_ranks(n, WORKER, "collectives")

    assert result.exit_codes == [0] * n
    mean = sum(range(1, n + 1)) / n
    for found in result.jsons:
        assert found["mean"] == pytest.approx([mean, 10 * mean])
        assert found["sums"] == pytest.approx({"a": n * (n - 1) / 2, "b": 0.1 * n})
        assert found["gathered"] == [{"rank": rank} for rank in range(n)]


def test_each_rank_prints_its_set_up_in_one_piece():
    result = run_ranks(2, WORKER, "collectives")

    for rank, out in enumerate(result.stdout):
        lines = [line for line in out.splitlines() if not line.startswith("[Gloo]")]  # torch 2.8's own
        assert lines[:5] == ["=" * 40, "Distributed Training Setup", "=" * 40, "Backend: gloo", "World Size: 2"]
        assert lines[5:7] == [f"Rank: {rank}", f"Local Rank: {rank}"]
        assert lines[7].startswith("Master: 127.0.0.1:")


@pytest.mark.parametrize(
    ("case", "code", "message"),
    [
        ("different_values", 2, "rank 0, 1: 0; rank 2: 1"),
        ("same_option_error", 2, "OptionError: unknown option x"),
        ("error_on_last_rank", 3, "DataError: clip 7 is short"),
        ("exception_while_others_stand_in_a_collective", 1, "[rank 2] ValueError: a plain mistake"),
        ("exception_while_others_compute", 3, "DataError: clip 8 is short"),
    ],
)
def test_an_error_ends_all_ranks_with_one_message_and_one_code(case, code, message):
    result = run_ranks(3, WORKER, case, limit_s=90)

    assert result.exit_codes == [code] * 3
    assert result.text.count(message) == 1
    assert "Traceback" not in result.text or result.text.count("Traceback") == 1 == code


def test_nccl_timeout_is_the_time_of_a_collective():
    # The options say 60 s; the rank that never comes sleeps for 600.
    result = run_ranks(2, WORKER, "barrier_without_the_last_rank", limit_s=50, env={"NCCL_TIMEOUT": "2"})

    assert result.exit_codes == [70, 70]


def test_a_launch_variable_that_is_no_number_is_said_once():
    result = run_ranks(2, WORKER, "collectives", env={"WORLD_SIZE": "two"})

    assert result.exit_codes == [2, 2]
    assert result.text.count("DistError") == 1
    assert "WORLD_SIZE is 'two', no number" in result.text


def test_a_single_process_needs_no_group():
    assert (utils_dist.get_rank(), utils_dist.get_world_size(), utils_dist.is_main_process()) == (0, 1, True)
    assert utils_dist.gather_objects(3) == [3]
    assert utils_dist.reduce_sums({"a": 2.0}) == {"a": 2.0}
    utils_dist.barrier()

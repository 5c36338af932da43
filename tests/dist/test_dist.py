"""Ranks call collectives, or end with an error: all ranks give the same result or the same code.

The ranks are real processes that talk by gloo. Each rank runs the function of
tests/dist/helpers_worker.py that the test names. Exit codes: 0 finished, 1 an unexpected exception,
2 wrong options, 3 wrong data, 70 a rank is silent or unreachable.

To test a new way to fail, add a function to helpers_worker.py, and a row to
test_an_error_ends_all_ranks_with_one_message_and_one_code.
"""

import contextlib
import os
import re
import socket
import subprocess

import pytest
from torch.distributed import HashStore

from tests.dist import netns
from tests.dist.fork_server import clean_env, fork_server
from tests.dist.launching import run_ranks
from utils.dist.round import FailedRank, Round

WORKER = "tests/dist/helpers_worker.py"
# This program runs a worker in namespaces of its own.
CONFINED = "tests/dist/confined_worker.py"


@pytest.mark.parametrize("n", [1, 2, 3])
def test_collectives_give_the_same_on_every_rank(n):
    result = run_ranks(n, WORKER, "collectives")

    assert result.exit_codes == [0] * n
    for found in result.jsons:
        assert found["gathered"] == [{"rank": rank} for rank in range(n)]
        assert found["weights"] == [0.0, 2.0, 4.0]
        # The store is the table that all ranks share. helpers_worker.py gives the process group a
        # time-out of 60 s (`init_dist`). The store must wait for the same time, because NCCL waits
        # at the store for the ids of other ranks.
        assert found["store_s"] == 60
        # The ranks meet at 127.0.0.1. So gloo uses the network "lo". No other host reaches this
        # network. A single rank has no group, and so no network.
        assert found["network"] == ("lo" if n > 1 else None)
    if n > 1:
        for rank, output in enumerate(result.stdout):
            assert_banner(output, rank, n)


def assert_banner(output: str, rank: int, ranks: int) -> None:
    """Check that the output of a rank begins with the description of the set-up, in one piece."""
    # Torch 2.8 writes a line "[Gloo] ..." of its own.
    lines = [line for line in output.splitlines() if not line.startswith("[Gloo]")]
    assert lines[:7] == [
        "=" * 40,
        "Distributed Training Setup",
        "=" * 40,
        "Backend: gloo",
        f"World Size: {ranks}",
        f"Rank: {rank}",
        f"Local Rank: {rank}",
    ]
    assert lines[7].startswith("Master: 127.0.0.1:")


@pytest.mark.parametrize(
    ("case", "code", "message"),
    [
        # The ranks compare a value. It is 0 on ranks 0 and 1, and 1 on rank 2.
        ("different_values", 2, "rank 0, 1: 0; rank 2: 1"),
        ("same_option_error", 2, "OptionError: unknown option x"),
        ("error_on_last_rank", 3, "DataError: clip 7 is short"),
        # The lowest rank that failed reports, and all ranks end with its code.
        ("two_different_errors", 3, "DataError: clip 9 is short"),
        ("exception_while_others_stand_in_a_collective", 1, "[rank 2] ValueError: a plain mistake"),
        ("exception_while_others_compute", 3, "DataError: clip 8 is short"),
    ],
)
def test_an_error_ends_all_ranks_with_one_message_and_one_code(case, code, message):
    result = run_ranks(3, WORKER, case, limit_s=90)

    assert result.exit_codes == [code] * 3
    assert result.text.count(message) == 1
    # Only an unexpected exception may show a traceback, and only once.
    most_tracebacks = 1 if code == 1 else 0
    assert result.text.count("Traceback") <= most_tracebacks


def test_a_rank_signs_off_once_though_two_of_its_threads_end_it():
    # A rank that ends with an error signs off: it adds 1 to a counter in the store. Rank 0 hosts
    # the store, and learns by this counter how many ranks have left. It prints the counter at the
    # end.
    result = run_ranks(2, WORKER, "two_threads_leave")

    assert result.exit_codes == [3, 3], result.text
    assert result.json == {"signed off": 1}, result.text


def test_a_paused_terminal_is_no_stall():
    # The worker writes 200 lines of 1 kB to a terminal. Its watchdog ends it with a StallError if
    # one of its phases lasts more than 2 s. But time in which a terminal is paused does not count.
    controller, terminal = os.openpty()
    with os.fdopen(terminal, "wb", buffering=0) as stream:
        worker = fork_server().start([WORKER, "write_much"], clean_env(), stream, stream)
    head = b""
    while b"line 3 " not in head:
        head += os.read(controller, 100)

    # For 6 s, three times the limit of a phase, the test does not read from the terminal.
    with pytest.raises(subprocess.TimeoutExpired):
        worker.wait(6)
    rest = b""
    with contextlib.suppress(OSError):  # the worker has ended and closed the terminal
        while True:
            rest += os.read(controller, 10_000)

    assert worker.wait(30) == 0
    assert b"line 199 " in rest
    assert b"StallError" not in head + rest


def test_after_nccl_timeout_the_error_names_the_rank_that_never_comes():
    # NCCL_TIMEOUT, 2 s, replaces the time-out of 60 s that the worker asks for. The last rank
    # sleeps for 600 s, but is not dead: its watchdog sends heartbeats all the time.
    result = run_ranks(
        2, WORKER, "barrier_without_the_last_rank", limit_s=50, env={"NCCL_TIMEOUT": "2"}
    )

    assert result.exit_codes == [70, 70]
    assert f'in        rank 1 on {socket.gethostname()}, last seen in phase "' in result.text


def test_only_the_rank_with_the_cause_of_an_nccl_error_reports_it():
    # Both ranks get an error of NCCL. Rank 1 has the cause, no memory left. Rank 0 has only lost
    # its connection to rank 1. So only rank 1 reports an error.
    result = run_ranks(2, WORKER, "nccl_of_a_peer_and_of_its_own_host")

    assert result.exit_codes == [1, 1]
    assert "ncclSystemError" in result.stderr[1]
    assert "/dev/shm/nccl-x, error: No space left" in result.stderr[1]
    assert result.text.count("Traceback") == 1
    assert "Error" not in result.stderr[0]


def test_a_lost_connection_without_a_cause_is_reported_once_in_the_words_of_torch():
    result = run_ranks(2, WORKER, "nccl_of_a_peer")

    assert result.exit_codes == [70, 70]
    assert result.text.count("StallError: lost contact with another rank") == 1
    assert "ncclRemoteError" in result.text
    assert "Connection closed by remote peer" in result.text
    assert not re.search(r"rank \d is|lost the store|Traceback", result.text)


@pytest.mark.skipif(bool(netns.reason_to_skip()), reason=f"no namespaces: {netns.reason_to_skip()}")
def test_ranks_in_two_pid_namespaces_of_one_host_name_do_not_take_each_other_for_dead():
    # Each rank is in a namespace of its own, in which process ids begin at 1. Rank 0 has an id
    # above 40, and rank 1 has a small id. So rank 1 finds no process with the id of rank 0 in its
    # namespace.
    result = run_ranks(2, CONFINED, "own_process_ids", WORKER, "four_beats")

    assert result.exit_codes == [0, 0], result.text
    pids = [found["pid"] for found in result.jsons]
    # 20 is an arbitrary number between the two ids.
    assert pids[0] > 20
    assert pids[1] < 20


def test_of_several_ranks_that_fail_the_lowest_one_counts():
    store = HashStore()
    meetings = [Round(store, "round", rank, world_size=4) for rank in range(4)]

    # Rank 3 fails first, then rank 1, then rank 2. Rank 0 does not fail. The exit codes 7, 5 and 6
    # are arbitrary, but differ.
    for rank, code in ((3, 7), (1, 5), (2, 6), (0, None)):
        meetings[rank].arrive(code)

    assert meetings[0].wait() == FailedRank(rank=1, code=5)

"""The collectives and the one door, on real gloo ranks."""

import contextlib
import os
import re
import subprocess
import sys

import pytest

from tests.dist import netns
from tests.dist.fork_server import ROOT, clean_env
from tests.dist.launching import run_ranks

WORKER = "tests/dist/helpers_worker.py"


@pytest.mark.parametrize("n", [1, 2, 3])
def test_collectives_give_the_same_on_every_rank(n):
    result = run_ranks(n, WORKER, "collectives")
    assert result.exit_codes == [0] * n
    for found in result.jsons:
        assert found["gathered"] == [{"rank": rank} for rank in range(n)]
        # NCCL's exchange of ids through the store has the time of the group
        assert found["store_s"] == 60
    for rank, out in enumerate(result.stdout if n > 1 else ()):  # the set-up, in one piece
        # Torch 2.8's own
        lines = [line for line in out.splitlines() if not line.startswith("[Gloo]")]
        assert lines[:5] == [
            "=" * 40,
            "Distributed Training Setup",
            "=" * 40,
            "Backend: gloo",
            f"World Size: {n}",
        ]
        assert lines[5:7] == [f"Rank: {rank}", f"Local Rank: {rank}"] and lines[7].startswith(
            "Master: 127.0.0.1:"
        )


@pytest.mark.parametrize(("case", "code", "message"), [
    ("different_values", 2, "rank 0, 1: 0; rank 2: 1"),
    ("same_option_error", 2, "OptionError: unknown option x"),
    ("error_on_last_rank", 3, "DataError: clip 7 is short"),
    ("exception_while_others_stand_in_a_collective", 1, "[rank 2] ValueError: a plain mistake"),
    ("exception_while_others_compute", 3, "DataError: clip 8 is short"),
])  # fmt: skip
def test_an_error_ends_all_ranks_with_one_message_and_one_code(case, code, message):
    result = run_ranks(3, WORKER, case, limit_s=90)
    assert result.exit_codes == [code] * 3
    assert result.text.count(message) == 1
    assert "Traceback" not in result.text or result.text.count("Traceback") == 1 == code


def test_a_rank_signs_off_once_though_two_of_its_threads_end_it():
    result = run_ranks(2, WORKER, "two_threads_leave")
    assert result.exit_codes == [3, 3] and result.json == {"signed off": 1}, result.text


def test_a_paused_terminal_is_no_stall():
    """The terminal takes nothing for three times as long as a phase may last."""
    controller, terminal = os.openpty()
    env = clean_env()
    ranks = subprocess.Popen(
        [sys.executable, WORKER, "write_much"], cwd=ROOT, env=env, stdin=terminal, stdout=terminal,
        stderr=terminal, start_new_session=True,
    )  # fmt: skip
    os.close(terminal)
    head = b""
    while b"line 3 " not in head:
        head += os.read(controller, 100)

    with pytest.raises(subprocess.TimeoutExpired):
        ranks.wait(6)
    rest = b""
    with contextlib.suppress(OSError):  # the terminal is closed
        while True:
            rest += os.read(controller, 10_000)

    assert ranks.wait(30) == 0
    assert b"line 199 " in rest
    assert b"StallError" not in head + rest


def test_nccl_timeout_is_the_time_of_a_collective():
    # The options say 60 s; the rank that never comes sleeps for 600.
    result = run_ranks(
        2, WORKER, "barrier_without_the_last_rank", limit_s=50, env={"NCCL_TIMEOUT": "2"}
    )
    assert result.exit_codes == [70, 70]


def test_nccl_words_are_shown_whole_and_the_rank_that_only_heard_of_it_is_silent():
    result = run_ranks(2, WORKER, "nccl_of_a_peer_and_of_its_own_host")
    assert result.exit_codes == [1, 1]
    assert (
        "ncclSystemError" in result.stderr[1]
        and "/dev/shm/nccl-x, error: No space left" in result.stderr[1]
    )
    assert result.text.count("Traceback") == 1 and "Error" not in result.stderr[0]


def test_a_connection_that_nobody_explains_is_told_once_with_the_words_of_torch():
    result = run_ranks(2, WORKER, "nccl_of_a_peer")
    assert result.exit_codes == [70, 70]
    assert result.text.count("StallError: lost contact with another rank") == 1
    assert "ncclRemoteError" in result.text and "Connection closed by remote peer" in result.text
    assert not re.search(r"rank \d is|lost the store|Traceback", result.text)


@pytest.mark.skipif(bool(netns.missing()), reason=f"no namespaces: {netns.missing()}")
def test_ranks_in_two_pid_namespaces_of_one_host_name_do_not_take_each_other_for_dead():
    # In the namespace of rank 1 there is no process of the number of rank 0.
    shift = 'for i in $(seq $((40 - 40 * RANK))); do /bin/true; done; "$@"; exit $?'
    prefix = ("unshare", "--pid", "--fork", "--mount-proc", "sh", "-c", shift, "sh")
    result = run_ranks(2, WORKER, "four_beats", prefix=prefix)
    assert result.exit_codes == [0, 0], result.text
    assert result.jsons[0]["pid"] > 20 > result.jsons[1]["pid"]

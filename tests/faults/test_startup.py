"""Every bad environment is explained within seconds, and no rank is left waiting."""

from __future__ import annotations

import socket
from contextlib import closing

import pytest

from tests.dist.launching import free_port, run_ranks
from tests.train_files import train, write_options

WORKER = ("tests/dist/helpers_worker.py", "collectives")
SOON = {"SPIKEVRT_JOIN_TIMEOUT": "3"}


def listener() -> socket.socket:
    """Something that accepts connections and never answers."""
    sock = socket.socket()
    sock.bind(("127.0.0.1", 0))
    sock.listen()
    return sock


def test_a_port_in_use_is_named_by_rank_0_and_the_other_program_by_the_others():
    with closing(listener()) as foreign:
        port = str(foreign.getsockname()[1])
        result = run_ranks(2, *WORKER, env={"MASTER_PORT": port, **SOON})

    assert result.exit_codes == [2, 2]
    assert f"port {port} is in use" in result.stderr[0]
    assert "is not the store of this run" in result.stderr[1]


@pytest.mark.parametrize(
    ("env_of", "message"),
    [
        ({0: {"MASTER_ADDR": "no-such-host.invalid"}, 1: {"MASTER_ADDR": "no-such-host.invalid"}},
         "MASTER_ADDR does not resolve: no-such-host.invalid"),
        ({1: {"RANK": "0"}}, "port"),
        ({1: {"RANK": "7"}}, "RANK is 7, expected 0 to 1"),
        ({1: {"MASTER_PORT": "abc"}}, "MASTER_PORT is 'abc', no number"),
        ({1: {"MASTER_ADDR": ""}}, "MASTER_ADDR is missing"),
    ],
)  # fmt: skip
def test_a_wrong_variable_on_any_rank_ends_all(env_of, message):
    result = run_ranks(2, *WORKER, env=SOON, env_of=env_of)

    assert 0 not in result.exit_codes
    assert message in result.text
    assert "Traceback" not in result.text


def test_ranks_that_do_not_arrive_are_named():
    result = run_ranks(2, *WORKER, env={"WORLD_SIZE": "5", **SOON})

    assert result.exit_codes == [2, 2]
    assert result.text.count("ranks 2, 3, 4 of 5 did not arrive") == 1


def test_two_processes_with_the_same_rank_are_refused():
    result = run_ranks(3, *WORKER, env={"WORLD_SIZE": "3", **SOON}, env_of={2: {"RANK": "1"}})

    assert 0 not in result.exit_codes
    assert result.text.count("rank 1 arrived twice") == 1


def test_nobody_at_the_port_is_said():
    result = run_ranks(1, *WORKER, env={
        "RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), **SOON,
    })  # fmt: skip

    assert result.exit_codes == [2]
    assert "nobody answers at 127.0.0.1" in result.text


def test_options_that_differ_between_ranks_are_refused(tmp_path):
    options = write_options(tmp_path)
    other = tmp_path / "other.json"
    other.write_text(options.read_text().replace('"total_iter": 4', '"total_iter": 5'))

    result = train(options, ranks=2, args_of={1: ("--opt", str(other))})

    assert result.exit_codes == [2, 2]
    assert result.text.count("the options differ between the ranks") == 1


def test_a_time_out_of_the_group_that_comes_before_the_watchdog_is_refused(tmp_path):
    result = train(write_options(tmp_path), ranks=2, env={"NCCL_TIMEOUT": "200"})

    assert result.exit_codes == [2, 2]
    assert result.text.count("stall_s is 300 s, start_s is 900 s, validate_s is 1500 s, save_s is 900 s; the") == 1

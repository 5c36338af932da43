"""A run that is killed or preempted and started again ends with the bits of one that never was.

Signals end a run in order: it saves, and its exit code is 75. `kill -9` ends it at once. In both
cases the next start must go on from the last checkpoint, and lead to the same weights, optimizer
and position, bit for bit (tests/faults/runs.py).
"""

import os
import signal
import time

import pytest

from tests.dist.launching import Ranks
from tests.faults.runs import interrupt, reference
from tests.helpers.train_files import MAIN, odd_command, write_odd, write_options


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Give an option file, and the last checkpoint of its uninterrupted run on two ranks."""
    return write_options(tmp_path_factory.mktemp("interruptions")), reference(2)


@pytest.mark.parametrize(("first", "second"), [("SIGUSR1", "SIGTERM"), ("SIGINT", "SIGINT")])
def test_a_second_signal_ends_a_run_that_does_not_come_to_the_end_of_its_step(
    tmp_path, first, second
):
    with Ranks(
        1, *odd_command(write_odd(tmp_path), "datasets.test={}", case="stall", struck=(0, 2))
    ) as running:
        running.wait_for("Iter: 1,", 0, 120)
        running.processes[0].send_signal(getattr(signal, first))
        deadline = time.monotonic() + 10
        # The first signal waits for the end of the step, which never comes. Two signals that are on
        # their way at the same time may arrive in any order, or as one. So the second signal is
        # sent until the run ends.
        while running.processes[0].poll() is None and time.monotonic() < deadline:
            running.processes[0].send_signal(getattr(signal, second))
            time.sleep(0.1)
        result = running.wait(10)

    assert result.exit_codes == [128 + getattr(signal, second)]
    assert result.text.count("Ctrl-C again ends it at once") == (first == "SIGINT")


# Starts a command that ignores signals. nohup starts commands like this, and so does a shell for
# `command &` in a script.
DEAF = ("bash", "-c", 'trap "" HUP INT TERM USR1; exec "$@"', "bash")


@pytest.mark.parametrize(("names", "prefix", "code"), [
    ("SIGHUP SIGINT", DEAF, 0),
    ("SIGHUP", (), 75),  # its terminal is gone
    ("SIGTERM SIGTERM", DEAF, 75),  # as scancel sends them
    ("SIGUSR1", DEAF, 75),
])  # fmt: skip
def test_a_signal_or_two_save_and_end_a_run_unless_it_was_started_deaf_to_them(
    tmp_path, names, prefix, code
):
    command = (
        "--opt",
        str(write_options(tmp_path)),
        f"train.total_iter={1000 if code else 5}",
        "datasets.test={}",
    )
    with Ranks(1, MAIN, *command, prefix=prefix) as running:
        running.wait_for("Iter: 1,", 0, 120)
        for name in names.split():
            # When a terminal is gone, the system sends SIGHUP to all processes of the run.
            send = os.killpg if name == "SIGHUP" else os.kill
            send(running.processes[0].pid, getattr(signal, name))
            time.sleep(0.02)  # apart, or the system makes one of two
        result = running.wait(60)

    assert result.exit_codes == [code], result.text
    assert "Ctrl-C" not in result.text, result.text
    assert ("stopped by a signal at iter" if code else "Finished at iter 5") in result.text


@pytest.mark.parametrize(
    ("how", "seed", "struck"),
    [
        ("kill", 1, "rank 0"),
        # All signals take the same way. This one goes to one rank, the next one to both.
        pytest.param("SIGUSR1", 0, "rank 1", marks=pytest.mark.slow),
        ("SIGTERM", 4, "rank 0, 1"),
    ],
)
def test_a_rank_that_is_killed_or_signalled_ends_all_and_the_resumed_run_has_the_same_bits(
    runs, how, seed, struck
):
    options, expected = runs
    trial = interrupt(options, 2, how, seed, expected)
    assert trial.struck == f"{how} to {struck}", trial.text
    assert trial.identical, trial.text
    if how == "kill":
        assert -9 in trial.exit_codes
        assert 0 not in trial.exit_codes
    else:  # at the same step, also where all that the ranks started hear it
        assert trial.exit_codes == [75, 75]
        assert trial.text.count("stopped by a signal at iter") == 1

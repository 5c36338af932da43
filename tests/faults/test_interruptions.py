"""A run that is killed or preempted and started again ends as one without an interruption.

A signal ends a run in order: the run saves, and its exit code is 75. `kill -9` ends the run at
once. In both cases the next start must go on from the last checkpoint. The weights, the optimizer
and the position must then have the same bits as without an interruption (tests/faults/runs.py).

tests/faults/trials.py interrupts in the same way at many more moments. In the last test of this
file, the seeds are chosen so that one case strikes rank 0, one strikes rank 1, and one strikes
both.
"""

import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.dist.launching import RankResult, Ranks
from tests.faults.runs import interrupt, state_without_interruption
from tests.helpers.train_files import odd_command, write_odd_options, write_options

# Exit code of a run that a signal has stopped, and that can go on.
STOPPED_BY_SIGNAL = 75


# ---- Signals ----


@pytest.mark.parametrize(
    ("first", "second"),
    [
        pytest.param(signal.SIGUSR1, signal.SIGTERM, id="two signals of a cluster"),
        pytest.param(signal.SIGINT, signal.SIGINT, id="Ctrl-C twice"),
    ],
)
def test_a_second_signal_ends_a_run_that_does_not_come_to_the_end_of_its_step(
    tmp_path, first, second
):
    # The run stands still in step 2, so it never comes to the end of this step.
    command = odd_command(
        write_odd_options(tmp_path), "datasets.test={}", case="stall", struck_rank=0, at_step=2
    )

    with Ranks(1, *command) as running:
        running.wait_for("Iter: 1,", rank=0, limit_s=120)
        (process,) = running.processes
        process.send_signal(first)
        # The first signal waits for the end of the step, but the step never ends. The second signal
        # may arrive before the first signal, or together with the first signal. So send the second
        # signal again until the run ends.
        deadline = time.monotonic() + 10
        while process.poll() is None and time.monotonic() < deadline:
            process.send_signal(second)
            time.sleep(0.1)
        result = running.wait(limit_s=10)

    # A shell reports a program that a signal has ended by this code, e.g. 128 + 15 for SIGTERM.
    assert result.exit_codes == [128 + second]
    # The message about a second Ctrl-C comes only after a first Ctrl-C.
    expected_count = 1 if first == signal.SIGINT else 0
    assert result.text.count("Ctrl-C again ends it at once") == expected_count


# Two programs that train the network "odd". The second program ignores signals from its start, as
# under nohup.
USUAL = "tests/dist/odd_worker.py"
DEAF = "tests/faults/deaf_worker.py"
# A shell that ignores the signals, and then starts a command. The command is a new process, and
# needs seconds to import torch. So only `make slow` has this case.
DEAF_SHELL = ("bash", "-c", 'trap "" HUP INT TERM USR1; exec "$@"', "bash")


def run_with_signals(
    folder: Path,
    signals: list[signal.Signals],
    steps: int,
    program: str = USUAL,
    prefix: Sequence[str] = (),
) -> RankResult:
    """Train for `steps` steps. Send signals after the first step, and wait for the end.

    prefix: a command that starts the program.
    """
    changes = (f"train.total_iter={steps}", "datasets.test={}")
    # A step takes 0.2 s, so the signals come before the end of the run.
    command = odd_command(write_odd_options(folder), *changes, case="slow", at_step=200)
    _, *arguments = command  # without the program
    with Ranks(1, program, *arguments, prefix=prefix) as running:
        running.wait_for("Iter: 1,", rank=0, limit_s=120)
        for number in signals:
            # When a terminal is closed, the system sends SIGHUP to all processes of the run.
            send = os.killpg if number == signal.SIGHUP else os.kill
            send(running.processes[0].pid, number)
            # If two equal signals wait at the same time, the system makes one signal of them. So
            # pause.
            time.sleep(0.02)
        return running.wait(limit_s=60)


@pytest.mark.parametrize(
    ("program", "prefix"),
    [
        pytest.param(DEAF, (), id="ignored from its first line on"),
        pytest.param(USUAL, DEAF_SHELL, id="ignored by its shell", marks=pytest.mark.slow),
    ],
)
def test_a_run_that_was_started_to_ignore_signals_goes_on_after_signals_of_a_terminal(
    tmp_path, program, prefix
):
    signals = [signal.SIGHUP, signal.SIGINT]

    result = run_with_signals(tmp_path, signals, steps=5, program=program, prefix=prefix)

    assert result.exit_codes == [0], result.text
    assert "Ctrl-C" not in result.text, result.text
    assert "Finished at iter 5" in result.text


@pytest.mark.parametrize(
    ("signals", "program"),
    [
        pytest.param([signal.SIGHUP], USUAL, id="the terminal is closed"),
        # scancel sends the signal to the shell and to the run.
        pytest.param([signal.SIGTERM, signal.SIGTERM], DEAF, id="the job is cancelled"),
        pytest.param([signal.SIGUSR1], DEAF, id="the time of the job is nearly over"),
    ],
)
def test_a_signal_saves_and_ends_a_run(tmp_path, signals, program):
    result = run_with_signals(tmp_path, signals, steps=1000, program=program)

    assert result.exit_codes == [STOPPED_BY_SIGNAL], result.text
    assert "Ctrl-C" not in result.text, result.text
    assert "stopped by a signal at iter" in result.text


# ---- The bits of a resumed run ----


# `interrupt` (tests/faults/runs.py) interrupts the run. seed: chooses the time and the ranks that
# are interrupted. struck: the names of these ranks.
#
# The network "odd" is one convolution. A tiny VRT takes five times as long, so only `make slow` has
# it here. test_resume_gives_the_same_weights_as_no_interruption resumes a VRT on one rank.
@pytest.mark.parametrize(
    ("network", "how", "seed", "struck"),
    [
        ("odd", "kill", 1, "rank 0"),
        pytest.param("vrt", "kill", 1, "rank 0", marks=pytest.mark.slow),
        # A run resumes in the same way after a kill and after a signal, so these cases are slow
        # ones. In `make test`, tests/dist/test_changed_resume.py ("Stopped in a validation")
        # compares the bits of two ranks that a signal stops.
        pytest.param("vrt", "SIGUSR1", 0, "rank 1", marks=pytest.mark.slow),
        pytest.param("vrt", "SIGTERM", 4, "rank 0, 1", marks=pytest.mark.slow),
    ],
)
def test_a_rank_that_is_killed_or_signalled_ends_all_and_the_resumed_run_has_the_same_bits(
    tmp_path, network, how, seed, struck
):
    is_odd = network == "odd"
    options = write_odd_options(tmp_path) if is_odd else write_options(tmp_path)
    expected = state_without_interruption(2, is_odd)

    trial = interrupt(options, ranks=2, how=how, seed=seed, expected=expected)

    assert trial.interrupted_by == f"{how} to {struck}", trial.text
    assert trial.identical, trial.text
    if how == "kill":
        # The killed rank has the code -9. The other rank ends with an error.
        assert -9 in trial.exit_codes
        assert 0 not in trial.exit_codes
    else:
        # Both ranks stop at the same step, and only rank 0 says so.
        assert trial.exit_codes == [STOPPED_BY_SIGNAL, STOPPED_BY_SIGNAL]
        assert trial.text.count("stopped by a signal at iter") == 1

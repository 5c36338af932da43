"""A run that is killed or pre-empted and started again ends with the bits of one that never was."""

from __future__ import annotations

import os
import signal
import time

import pytest

from tests.dist.launching import Ranks
from tests.faults.runs import interrupt, reference
from tests.train_files import MAIN, write_options
from utils.dist import preempt


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """(option file, digest of the uninterrupted run) on two ranks."""
    return write_options(tmp_path_factory.mktemp("interruptions")), reference(2)


def test_a_killed_rank_takes_the_run_down_and_the_resumed_run_has_the_same_bits(runs):
    options, expected = runs
    trial = interrupt(options, 2, "kill", 1, expected)

    assert trial.exit_codes.count(-9) >= 1 and 0 not in trial.exit_codes
    assert trial.identical, trial.text


@pytest.mark.parametrize(("first", "second"), [("SIGUSR1", "SIGTERM"), ("SIGINT", "SIGINT")])
def test_a_second_signal_ends_a_run_that_does_not_come_to_the_end_of_its_step(tmp_path, first, second):
    options = write_options(tmp_path, netG={"net_type": "odd"})
    arguments = ("stall", "0", "2", "train", "--opt", str(options), "datasets.test={}")
    with Ranks(1, "tests/dist/odd_worker.py", *arguments) as running:
        running.wait_for("Iter: 1,", 0, 120)
        running.processes[0].send_signal(getattr(signal, first))
        deadline = time.monotonic() + 10
        # Two signals on their way at once may arrive in any order, or as one.
        while running.processes[0].poll() is None and time.monotonic() < deadline:
            running.processes[0].send_signal(getattr(signal, second))
            time.sleep(0.1)
        result = running.wait(10)

    assert result.exit_codes == [128 + getattr(signal, second)] and not result.timed_out
    assert result.text.count("Ctrl-C again ends it at once") == (first == "SIGINT")


def test_a_run_in_the_background_of_a_shell_script_ignores_ctrl_c(tmp_path):
    # Ctrl-C is sent to all processes of a terminal; a shell starts `command &` of a script so that it ignores it.
    options = write_options(tmp_path)
    prefix = ("bash", "-c", 'trap "" INT; exec "$@"', "bash")
    with Ranks(1, MAIN, "--opt", str(options), "train.total_iter=5", "datasets.test={}", prefix=prefix) as running:
        running.wait_for("Iter: 1,", 0, 120)
        running.processes[0].send_signal(signal.SIGINT)
        result = running.wait(60)

    assert result.exit_codes == [0] and "Ctrl-C" not in result.text, result.text


@pytest.mark.parametrize(
    ("names", "is_ignored", "modes", "stops"),
    [
        ("SIGTERM SIGUSR1", False, "single platform torchrun slurm", True),
        ("SIGTERM SIGUSR1", True, "single platform torchrun slurm", True),
        ("SIGHUP SIGINT", False, "single platform torchrun slurm", True),
        ("SIGHUP SIGINT", True, "single platform slurm", False),
        ("SIGHUP", True, "torchrun", False),  # `nohup ./launch_train.sh 2`
        ("SIGINT", True, "torchrun", True),  # torchrun kills the ranks that go on
    ],
)
def test_which_signals_ask_a_rank_to_save_and_stop(names, is_ignored, modes, stops):
    for name in names.split():
        for mode in modes.split():
            assert preempt.means_stop(getattr(signal, name), is_ignored, mode) == stops


@pytest.mark.parametrize(("prefix", "code"), [(("nohup",), 0), (("env", "--default-signal=HUP"), 75)])
def test_a_run_whose_terminal_is_gone_saves_and_ends_unless_nohup_started_it(tmp_path, prefix, code):
    options = write_options(tmp_path)
    with Ranks(1, MAIN, "--opt", str(options), "train.total_iter=8", "datasets.test={}", prefix=prefix) as running:
        running.wait_for("Iter: 1,", 0, 120)
        os.killpg(running.processes[0].pid, signal.SIGHUP)
        result = running.wait(60)

    assert result.exit_codes == [code], result.text
    assert ("stopped by a signal at iter" if code else "Finished at iter 8") in result.text


def test_two_signals_a_moment_apart_are_one_request_and_the_run_saves(tmp_path):
    # As scancel sends them.
    options = write_options(tmp_path)
    with Ranks(1, MAIN, "--opt", str(options), "train.total_iter=1000", "datasets.test={}") as running:
        running.wait_for("Iter: 1,", 0, 120)
        running.processes[0].send_signal(signal.SIGTERM)
        time.sleep(0.02)  # apart, or the system makes one of them
        running.processes[0].send_signal(signal.SIGTERM)
        result = running.wait(60)

    assert result.exit_codes == [75] and "stopped by a signal at iter" in result.text, result.text


@pytest.mark.parametrize(("how", "seed", "struck"), [("SIGUSR1", 0, "rank 1"), ("SIGTERM", 4, "rank 0, 1")])
def test_a_signal_to_one_rank_or_to_all_that_they_started_stops_all_at_the_same_step(runs, how, seed, struck):
    options, expected = runs
    trial = interrupt(options, 2, how, seed, expected)

    assert trial.struck == f"{how} to {struck}"
    assert trial.exit_codes == [75, 75]
    assert trial.text.count("stopped by a signal at iter") == 1
    assert trial.identical, trial.text

"""Without what Linux alone has: one process works as ever, several ranks are refused in words.

/proc is the folder in which Linux shows its processes. The programs run here with an empty /proc
(tests/helpers/no_proc.py), as on other systems, and their loader processes are started by "spawn",
which is a new Python, and not by "fork".
"""

import signal
from typing import Any

import pytest

from tests.dist.launching import Ranks, run_command, run_ranks
from tests.helpers import no_proc
from tests.helpers.train_files import MAIN, latest, same, train, write_options
from tests.helpers.weights_files import make_home

# Arguments of `run_ranks`.
WITHOUT_PROC: dict[str, Any] = {"prefix": no_proc.PREFIX}
WITH_PROC: dict[str, Any] = {}


@pytest.fixture(autouse=True, scope="module")
def namespaces():
    """Skip all tests if this machine cannot hide /proc."""
    if no_proc.missing():
        pytest.skip(no_proc.missing())


@pytest.fixture
def spawn(tmp_path_factory):
    """Give environment variables with which loader processes are started by "spawn"."""
    return {"PYTHONPATH": no_proc.spawning(tmp_path_factory.mktemp("spawn"))}


def test_a_run_without_proc_with_workers_by_spawn_gives_the_same_weights(tmp_path, spawn):
    states = []
    for name, how in (("with", WITH_PROC), ("without", WITHOUT_PROC | {"env": spawn})):
        (tmp_path / name).mkdir()
        options = write_options(tmp_path / name)
        done = train(options, **how)
        assert done.exit_codes == [0], done.text
        states.append(latest(options))
    for key in ("model_state_dict", "ema_state_dict", "optimizer", "best_psnr"):
        assert same(states[0][key], states[1][key]), key


# Two programs and their loader processes, each of which imports torch anew: 15 s of a core.
@pytest.mark.slow
def test_a_signal_stops_a_run_without_proc_and_the_same_command_goes_on(tmp_path, spawn):
    options = write_options(tmp_path)
    long = ("--opt", str(options), "train.total_iter=100000", "watchdog.stall_s=30")
    with Ranks(1, MAIN, *long, env=spawn, **WITHOUT_PROC) as ranks:
        ranks.wait_for("Iter: 2", 0, 60)
        ranks.processes[0].send_signal(signal.SIGTERM)
        stopped = ranks.wait(60)
    assert stopped.exit_codes == [75], stopped.text

    step = latest(options)["step"]
    done = train(options, f"train.total_iter={step + 1}", env=spawn, **WITHOUT_PROC)
    assert done.exit_codes == [0], done.text
    assert f"at iter {step}" in done.text, done.text


def test_clips_are_restored_without_proc_as_with_it(tmp_path):
    home = make_home(tmp_path)
    for name, how in (("with", WITH_PROC), ("without", WITHOUT_PROC)):
        done = run_ranks(
            1, "main_test_vrt.py", "--opt", home / "options.json", "--weights", home / "spike.pth",
            "--output", home / name, "--save", "frames", **how,
        )  # fmt: skip
        assert done.exit_codes == [0], done.text
    expected = sorted((home / "with").rglob("*.png"))
    assert len(expected) >= 9
    for path in expected:
        found = home / "without" / path.relative_to(home / "with")
        assert found.read_bytes() == path.read_bytes(), path


def test_several_ranks_without_proc_are_refused_once_in_words(tmp_path):
    options = write_options(tmp_path)
    done = train(options, ranks=2, **WITHOUT_PROC)

    assert done.exit_codes == [2, 2], done.text
    assert "several ranks on a system that does not show its processes in /proc" in done.text
    assert "do        train in one process: ./launch_train.sh 1 FILE" in done.text


def test_the_launcher_starts_one_process_without_proc_and_refuses_two(tmp_path):
    options = write_options(tmp_path)
    two, one = (
        run_command(
            [*no_proc.PREFIX, "./launch_train.sh", n, str(options), "train.total_iter=1"], 120
        )
        for n in ("2", "1")
    )

    assert two.exit_codes == [2]
    assert "./launch_train.sh 1 [FILE]" in two.text
    assert one.exit_codes == [0], one.text
    assert "Finished at iter 1" in one.text, one.text


def test_the_doctor_looks_at_a_host_without_proc():
    done = run_ranks(1, "scripts/doctor.py", **WITHOUT_PROC)
    assert done.exit_codes == [0], done.text
    assert "Traceback" not in done.text, done.text

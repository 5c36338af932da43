"""Launches in a bad environment, and files that are broken or break during training.

Each fault is explained within seconds by one message, without a traceback of Python, and no rank is
left waiting. The faults are real: foreign programs on a port, ranks with wrong variables, files cut
short. Small trainings (tests/helpers/train_files.py) or the program `collectives` of
tests/dist/helpers_worker.py meet them.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from contextlib import closing
from pathlib import Path

import pytest

from tests.dist.launching import ROOT, Ranks, clean_env, free_port, run_ranks
from tests.faults.refusals import break_file, stranger
from tests.helpers.clip_files import write_clip
from tests.helpers.train_files import MAIN, odd_command, train, write_odd, write_options
from utils.dist.process import descendants_of
from utils.options.models import WatchdogOptions

# A program in which the ranks meet and exchange tensors: the shortest run that needs all ranks.
WORKER = ("tests/dist/helpers_worker.py", "collectives")
# After how many seconds a rank stops waiting for the others. With the default, minutes, these tests
# would be slow.
SOON = {"SPIKEVRT_JOIN_TIMEOUT": "3"}


def test_a_port_in_use_is_named_by_rank_0_and_the_other_program_by_the_others():
    with closing(stranger()) as foreign:
        port = str(foreign.getsockname()[1])
        result = run_ranks(2, *WORKER, env={"MASTER_PORT": port, **SOON})

    assert result.exit_codes == [2, 2]
    assert f"port {port} is in use" in result.stderr[0]
    assert "is not the store of this run" in result.stderr[1]


def test_a_port_that_may_not_be_opened_is_not_said_to_be_in_use():
    # The kernel reserves the ports below the number in this file for root. From root, setpriv takes
    # the right to open them.
    reserved = Path("/proc/sys/net/ipv4/ip_unprivileged_port_start")
    if not reserved.exists() or int(reserved.read_text()) <= 81:
        pytest.skip("this machine reserves no port")
    prefix = ()
    if os.getuid() == 0:
        if shutil.which("setpriv") is None:
            pytest.skip("no setpriv, which takes from root the right to open any port")
        capability = "-net_bind_service"
        prefix = ("setpriv", f"--bounding-set={capability}", f"--inh-caps={capability}")

    result = run_ranks(2, *WORKER, env={"MASTER_PORT": "81", **SOON}, prefix=prefix)

    assert result.exit_codes[0] == 2, result.text
    assert "cannot open port 81" in result.stderr[0]
    assert "is in use" not in result.stderr[0]
    assert "torch says: " in result.stderr[0]


@pytest.mark.parametrize(("ranks", "env", "env_of", "message"), [
    (2, {"MASTER_ADDR": "no-such-host.invalid"}, {},
     "MASTER_ADDR does not resolve: no-such-host.invalid"),
    (2, {}, {1: {"RANK": "0"}}, "is in use"),
    (2, {}, {1: {"RANK": "7"}}, "RANK is 7, expected 0 to 1"),
    (2, {"WORLD_SIZE": "5"}, {}, "ranks 2, 3, 4 of 5 did not arrive"),
    (3, {}, {2: {"RANK": "1"}}, "rank 1 arrived twice"),
    (1, {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}, {},
     "nobody answers at 127.0.0.1"),
])  # fmt: skip
def test_a_world_that_does_not_come_together_ends_all_ranks_with_the_reason(
    ranks, env, env_of, message
):
    port = {"MASTER_PORT": str(free_port())}
    result = run_ranks(ranks, *WORKER, env=env | SOON | port, env_of=env_of)
    lost = {70} if env_of else set()  # to ranks that had met already

    assert {2} <= set(result.exit_codes) <= {2} | lost, result.text
    assert "Traceback" not in result.text, result.text
    assert result.text.count(message) == 1


# A training in which the system takes ten minutes to find the address of the host "slow.invalid".
# Arguments: the repository, and the option file.
SLOW_NAME_SERVER = """
import socket, sys, time
sys.path.insert(0, sys.argv[1])
answer = socket.getaddrinfo
def slow(host, *rest):
    if host == "slow.invalid":
        time.sleep(600)
    return answer(host, *rest)
socket.getaddrinfo = slow
import main_train_vrt
main_train_vrt.main(["--opt", sys.argv[2]])
"""


def test_a_name_server_that_does_not_answer_is_not_waited_for(tmp_path):
    (tmp_path / "program.py").write_text(SLOW_NAME_SERVER)
    env = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "slow.invalid", "MASTER_PORT": "29500"}

    result = run_ranks(
        1, tmp_path / "program.py", ROOT, write_options(tmp_path), env=env | SOON, limit_s=20
    )

    assert result.exit_codes == [2], result.text
    assert "MASTER_ADDR does not resolve: slow.invalid" in result.text


def test_options_that_differ_between_ranks_are_refused(tmp_path):
    options = write_options(tmp_path)
    other = tmp_path / "other.json"
    other.write_text(options.read_text().replace('"total_iter": 4', '"total_iter": 5'))
    result = train(options, ranks=2, args_of={1: ("--opt", str(other))})

    assert result.exit_codes == [2, 2]
    assert result.text.count("the options differ between the ranks") == 1


def test_a_time_out_of_the_group_before_the_watchdog_is_refused_and_a_longer_one_lasts_longer(
    tmp_path,
):
    options = write_options(tmp_path)
    changes = ("train.total_iter=1", "datasets.test={}")
    result = train(options, ranks=2, env={"NCCL_TIMEOUT": "200"})
    assert result.exit_codes == [2, 2]
    assert (
        result.text.count(
            "stall_s is 300 s, start_s is 900 s, validate_s is 1500 s, save_s is 900 s; the"
        )
        == 1
    )
    result = train(options, *changes, ranks=2, env={"NCCL_TIMEOUT": "7200"})

    assert result.exit_codes == [0, 0], result.text
    assert result.text.count("stall_s 300, start_s 6480, validate_s 6480, save_s 6480") == 1


@pytest.mark.parametrize(("launch", "said"), [
    ({"RANK": "0", "WORLD_SIZE": "1"}, "nothere.json"),
    # `srun --pty bash`
    ({"SLURM_PROCID": "0", "SLURM_NTASKS": "1", "SLURM_JOB_ID": "7"}, "nothere.json"),
    # The same in an allocation of 8 tasks.
    ({"SLURM_PROCID": "0", "SLURM_NTASKS": "8", "SLURM_JOB_ID": "x"},
     "SLURM_JOB_NODELIST is missing"),
    ({"RANK": "0", "WORLD_SIZE": "2"}, "MASTER_ADDR is missing"),
])  # fmt: skip
def test_each_command_of_a_shell_reports_its_own_error(tmp_path, launch, said):
    # Ranks of one launch report an error once. Two commands of one shell are two launches, although
    # they have the same parent. Here the fork server of the tests is the shell.
    for _ in range(2):
        result = run_ranks(
            1, MAIN, "--opt", "nothere.json", env={**launch, "TMPDIR": str(tmp_path)}
        )
        assert result.exit_codes == [2], result.text
        assert result.text.count("Error: ") == 1, result.text
        assert said in result.text, result.text

    assert not list(tmp_path.glob("spikevrt-*"))


# tests/dist/test_torchrun.py has the same claim for ranks that torchrun started.
def test_ranks_of_one_launch_report_the_same_error_once(
    tmp_path,
):
    env = {"SPIKEVRT_JOIN_TIMEOUT": "abc", "TMPDIR": str(tmp_path)}
    result = run_ranks(2, MAIN, "--opt", "nothere.json", env=env)

    assert set(result.exit_codes) == {2}
    assert result.text.count("SPIKEVRT_JOIN_TIMEOUT is 'abc'") == 1, result.text
    assert "Traceback" not in result.text, result.text
    assert not list(tmp_path.glob("spikevrt-*"))


def test_an_error_in_bytes_that_are_no_text_is_reported(tmp_path):
    command = b"LC_ALL=C exec %s main_train_vrt.py --opt %s train.nothere=h\xfcbsch" % (
        sys.executable.encode(), bytes(write_options(tmp_path)),
    )  # fmt: skip
    ended = subprocess.run(
        [b"bash", b"-c", command], capture_output=True, timeout=600, env=clean_env(), cwd=ROOT
    )

    assert ended.returncode == 2, ended.stderr
    assert b"OptionError: " in ended.stderr, ended.stderr
    assert b"Traceback" not in ended.stderr, ended.stderr


def test_a_run_that_is_killed_leaves_no_file_of_its_watchdog(tmp_path):
    options = write_options(tmp_path)
    # Not below tmp_path: the sockets of loader processes need a short path.
    with tempfile.TemporaryDirectory() as temporary:
        command = (MAIN, "--opt", str(options), "datasets.test={}")
        with Ranks(1, *command, env={"TMPDIR": temporary}) as running:
            running.wait_for("Iter: 1,", 0, 120)
            running.processes[0].send_signal(signal.SIGKILL)
            running.wait(20)
        assert not list(Path(temporary).glob("spikevrt-*"))


@pytest.mark.parametrize(("values", "limits", "timeout_s"), [
    ({}, [300, 900, 1500, 900], 1800),
    ({"stall_s": 5}, [5, 900, 1500, 900], 1800),
    ({"stall_s": 1000}, [1000, 3000, 5000, 3000], 6000),
    ({"stall_s": 5, "start_s": 60, "validate_s": 1, "save_s": 1}, [5, 60, 5, 5], 1800),
])  # fmt: skip
def test_the_limits_of_time_follow_from_one_number(values, limits, timeout_s):
    budgets = WatchdogOptions(**values)

    assert [budgets.of(phase) for phase in ("data", "start", "validate: a clip", "save")] == limits
    # The name of a clip, behind the colon, does not count. It may have the word "in", which comes
    # between a phase and the phase around it, and it may have the name of a phase.
    assert (
        budgets.of("restore: cat in hat")
        == budgets.of("barrier in validate: clip in save")
        == limits[2]
    )
    assert budgets.of("barrier in epoch turn") == limits[0]
    assert budgets.timeout_s(1800) == timeout_s


def test_a_file_that_breaks_during_training_ends_both_ranks_with_its_name():
    # Other damages: tests/parts/data/test_io_backend.py, tests/faults/trials.py
    trial = break_file("cut spikes", ranks=2)

    assert trial.is_named, trial.text
    assert "loader worker" in trial.text, trial.text
    assert "Traceback" not in trial.text, trial.text
    assert trial.text.count("DataError: ") == 1


def test_a_loader_process_that_stands_still_at_the_epoch_turn_ends_the_run_with_its_name(tmp_path):
    # The last step of the first epoch waits until the worker hangs, so the hang is noticed between
    # the epochs.
    loader = {"persistent_workers": "true", "timeout_s": 3, "batch_size": 4}
    changes = [f"datasets.train.dataloader_{key}={value}" for key, value in loader.items()]
    changes += ["datasets.test={}", "train.total_iter=100000"]
    with Ranks(1, *odd_command(write_odd(tmp_path), *changes, case="wait", struck=(0, 2))) as ranks:
        ranks.wait_for("waiting", rank=0, limit_s=90)
        for process in descendants_of(ranks.processes[0].pid):
            os.kill(process, signal.SIGSTOP)
        result = ranks.wait(limit_s=30)

    assert result.exit_codes == [3], result.text
    assert result.text.count("DataError: no batch: DataLoader timed out after 3.0 seconds") == 1
    assert re.search(r"\(epoch, index\) \[\(\d+, \d\),.*\], loader worker 0, rank 0", result.text)
    assert "Traceback" not in result.text


def test_everything_that_is_broken_at_the_start_is_listed_once_for_both_ranks(tmp_path):
    options = write_options(tmp_path)
    spikes = tmp_path / "GOPRO_Large_spike_seq/train/train0/spike"
    os.truncate(spikes / "000000.dat", 100)
    os.truncate(spikes / "000001.dat", 0)
    (spikes / "000002.dat").write_bytes(2 * (spikes / "000002.dat").read_bytes())
    (spikes / "000003.dat").unlink()
    other = tmp_path / "GOPRO_Large_spike_seq/test"
    (other / "test1/spike/000001.dat").write_bytes(
        (b"no spikes, but 768 bytes of text; " * 23)[:768]
    )
    os.truncate(other / "test0/spike/000001.dat", 30)
    (tmp_path / "GOPRO_Large/train/train1/blur/000000.png").write_bytes(b"<html>moved</html>")
    write_clip(tmp_path, "train2", frames=4, h=8, w=12)  # another camera than the others
    result = train(options, ranks=2, limit_s=60)

    assert result.exit_codes == [3, 3], result.text
    assert result.text.count("DataError: ") == 1
    assert "Traceback" not in result.text
    for words in (
        "train0 | spike lacks 1 of 4 frames: 000003.dat",
        "train1 | cannot read image: its content is a web page",
        "train0 | spike file of 100 bytes holds 3 planes of 16 x 16 and 4 bytes more",
        "train0 | spike file of 0 bytes holds no plane of 16 x 16",
        "train0 | spike file has 48 planes (1536 bytes), expected 24 (768 bytes)",
        "train2 | spike file has 9 planes (288 bytes), expected 24 (768 bytes)",
        "train2 | lq is 16 x 24, spikes 16 x 16: no whole multiple",
        "test0  | spike file of 30 bytes holds",
        "begins with text: b'no spikes, but",
        str(other / "test1/spike/000001.dat"),
    ):
        assert words in result.text, result.text

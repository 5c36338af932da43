"""Launches in a bad environment, and files that are broken or break during training.

Within seconds, one message must explain each fault, without a traceback of Python. No rank may be
left waiting. The faults are real: foreign programs on a port, ranks with wrong variables, files
that are cut. The faults happen to small trainings (tests/helpers/train_files.py), or to the program
`collectives` of tests/dist/helpers_worker.py.

To add a launch that cannot work, add an entry to WORLDS. To add a broken file, add a line to
`break_files`, and the words of its message.

Exit codes: 0 finished, 2 wrong start or wrong options, 3 wrong files or data, 70 a rank is silent
or unreachable, 75 stopped by a signal.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.dist.launching import ROOT, Ranks, clean_env, free_port, run_ranks
from tests.faults.refusals import break_file, open_silent_server
from tests.helpers.clip_files import write_clip
from tests.helpers.train_files import (
    MAIN,
    odd_command,
    run_odd,
    train,
    write_odd_options,
    write_options,
)
from utils.dist.process import descendants_of
from utils.options.watchdog_options import WatchdogOptions

# In this program the ranks meet and exchange tensors. It is the shortest run that needs all ranks.
WORKER = ("tests/dist/helpers_worker.py", "collectives")
# Environment variable that makes a rank give up soon: it waits 3 seconds for the other ranks. By
# default it waits for minutes, and these tests would be slow.
SOON = {"SPIKEVRT_JOIN_TIMEOUT": "3"}

# This port may not be opened, because by default Linux reserves all ports below 1024 for root.
RESERVED_PORT = 81

# ---- Ranks that do not come together ----


def test_rank_0_names_a_port_in_use_and_the_other_ranks_name_the_other_program():
    with closing(open_silent_server()) as foreign:
        port = str(foreign.getsockname()[1])
        result = run_ranks(2, *WORKER, env={"MASTER_PORT": port, **SOON})

    assert result.exit_codes == [2, 2]
    assert f"port {port} is in use" in result.stderr[0]
    assert "is not the store of this run" in result.stderr[1]


def reserves_ports() -> bool:
    """Return whether this machine reserves RESERVED_PORT."""
    # This file has the first port that every user may open, usually 1024. Only root may open a port
    # below it.
    first_free = Path("/proc/sys/net/ipv4/ip_unprivileged_port_start")
    return first_free.exists() and int(first_free.read_text()) > RESERVED_PORT


@pytest.mark.skipif(not reserves_ports(), reason="this machine reserves no port")
def test_a_port_that_may_not_be_opened_is_not_called_a_port_in_use():
    # A port cannot be opened for two reasons: it is in use, or this user has no right to it. The
    # message must give the second reason. root may open any port, so this worker first gives up the
    # right to open reserved ports.
    confined = ("tests/dist/confined_worker.py", "no_reserved_ports", *WORKER)

    port = {"MASTER_PORT": str(RESERVED_PORT)}
    result = run_ranks(2, *confined, env={**port, **SOON})

    assert result.exit_codes[0] == 2, result.text
    assert f"cannot open port {RESERVED_PORT}" in result.stderr[0]
    assert "is in use" not in result.stderr[0]
    assert "torch says: " in result.stderr[0]


@dataclass(frozen=True)
class World:
    """A launch whose ranks do not come together."""

    # Words of the message. One rank must print them once.
    message: str
    # Number of processes that are started.
    ranks: int = 2
    # Additional environment variables of all processes.
    env: dict[str, str] = field(default_factory=dict)
    # Rank -> additional environment variables of this process.
    env_of: dict[int, dict[str, str]] = field(default_factory=dict)


WORLDS = {
    "a name that does not resolve": World(
        "MASTER_ADDR does not resolve: no-such-host.invalid",
        env={"MASTER_ADDR": "no-such-host.invalid"},
    ),
    "two ranks 0": World("is in use", env_of={1: {"RANK": "0"}}),
    "a rank beyond the last": World("RANK is 7, expected 0 to 1", env_of={1: {"RANK": "7"}}),
    "ranks that were not started": World(
        "ranks 2, 3, 4 of 5 did not arrive", env={"WORLD_SIZE": "5"}
    ),
    "ranks that expect another number of ranks": World(
        "and another rank", env_of={1: {"WORLD_SIZE": "3"}}
    ),
    "two ranks 1": World("rank 1 arrived twice", ranks=3, env_of={2: {"RANK": "1"}}),
    "rank 1 without rank 0": World(
        "nobody answers at 127.0.0.1",
        ranks=1,
        env={"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"},
    ),
}


@pytest.mark.parametrize("world", WORLDS.values(), ids=WORLDS)
def test_ranks_that_do_not_meet_end_with_one_message_that_says_why(world):
    port = {"MASTER_PORT": str(free_port())}

    result = run_ranks(world.ranks, *WORKER, env={**world.env, **SOON, **port}, env_of=world.env_of)

    # The rank that finds the reason, here A, ends with code 2. If the ranks have different
    # variables, rank A may have met a rank B before. When rank A ends, rank B loses its connection
    # to A, and ends with code 70.
    allowed = {2, 70} if world.env_of else {2}
    assert 2 in result.exit_codes, result.text
    assert set(result.exit_codes) <= allowed, result.text
    assert "Traceback" not in result.text
    assert result.text.count(world.message) == 1


def test_a_second_run_at_the_same_port_leaves_the_first_run_alone(tmp_path):
    changes = ("datasets.test={}", "train.total_iter=100000")
    # tests/dist/odd_worker.py is a training with a fault. `case` chooses the fault. With
    # case="slow", each forward pass of rank 0 sleeps for `at_step` milliseconds, here 1000. So the
    # first run is idle most of the time, and does not slow the second run down.
    first_command = odd_command(write_odd_options(tmp_path), *changes, case="slow", at_step=1000)
    with Ranks(2, *first_command) as first:
        first.wait_for("Iter: 1,", rank=0, limit_s=120)

        port = {"MASTER_PORT": str(first.port), **SOON}
        # The first run has the ranks 0 and 1, and the second run has 0, 1 and 2. So one rank of the
        # second run, rank 2, does not exist in the first run. It must end, too.
        second = run_ranks(3, *WORKER, env=port)

        for process in first.processes:
            process.send_signal(signal.SIGTERM)
        first_result = first.wait(limit_s=60)

    assert second.exit_codes == [2, 2, 2]
    assert f"port {first.port} is in use" in second.stderr[0]
    assert "another run is under way" in second.stderr[1] + second.stderr[2]
    # Exit code 75 says that the signal stopped the first run. So this run trained until the signal.
    assert first_result.exit_codes == [75, 75], first_result.text


# A program that trains. In it, the system takes ten minutes to find the address of "slow.invalid".
# Arguments: the folder of the repository, and the option file.
SLOW_NAME_SERVER = """
import socket, sys, time

sys.path.insert(0, sys.argv[1])
usual_getaddrinfo = socket.getaddrinfo

def slow_getaddrinfo(host, *arguments):
    if host == "slow.invalid":
        time.sleep(600)
    return usual_getaddrinfo(host, *arguments)

socket.getaddrinfo = slow_getaddrinfo
import main_train_vrt
main_train_vrt.main(["--opt", sys.argv[2]])
"""


def test_a_name_server_that_does_not_answer_is_not_waited_for(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(SLOW_NAME_SERVER)
    launch = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "slow.invalid", "MASTER_PORT": "29500"}

    result = run_ranks(
        1, program, ROOT, write_options(tmp_path), env={**launch, **SOON}, limit_s=20
    )

    assert result.exit_codes == [2], result.text
    assert "MASTER_ADDR does not resolve: slow.invalid" in result.text


# ---- Ranks that do not fit together ----


def test_options_that_differ_between_ranks_are_refused(tmp_path):
    options = write_options(tmp_path)
    other = tmp_path / "other.json"
    other.write_text(options.read_text().replace('"total_iter": 4', '"total_iter": 5'))

    result = train(options, ranks=2, args_of={1: ("--opt", str(other))})

    assert result.exit_codes == [2, 2]
    assert result.text.count("the options differ between the ranks") == 1


# A program that trains with the code in a folder. Arguments: the folder, and the option file.
TRAIN_BY_CODE_OF = """
import sys

sys.path.insert(0, sys.argv[1])
import main_train_vrt
main_train_vrt.main(["--opt", sys.argv[2]])
"""


def test_source_files_that_differ_between_ranks_are_refused(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(TRAIN_BY_CODE_OF)
    options = write_options(tmp_path)
    copy = tmp_path / "copy"
    for folder in ("data", "models", "utils"):
        shutil.copytree(ROOT / folder, copy / folder)
    for file_name in (MAIN, "pyproject.toml"):
        shutil.copy(ROOT / file_name, copy)
    with (copy / "models/losses.py").open("a") as file:
        file.write("# a later version\n")

    # Rank 0 runs the code of ROOT, and rank 1 the changed copy, because `args_of` gives it other
    # arguments. A program of the repository would run in a process that has already imported the
    # code. But this program is outside of the repository, so each rank imports the code that its
    # argument names.
    result = run_ranks(
        2,
        program,
        ROOT,
        options,
        args_of={1: (str(copy), str(options))},
        env={"SPIKEVRT_JOIN_TIMEOUT": "60"},
    )

    assert result.exit_codes == [2, 2], result.text
    assert result.text.count("the source files (data, models, utils) differ") == 1
    assert "rank 0: " in result.text


# The next two tests are about two time limits. The watchdog ends a run that hangs, and names the
# rank and the phase. The process group of torch also has a time-out, NCCL_TIMEOUT seconds, but it
# cannot name the rank and the phase. The watchdog has a limit for each kind of phase. Each limit
# must be shorter than this time-out.


def test_a_time_out_of_collectives_that_comes_before_the_watchdog_is_refused(tmp_path):
    result = train(write_options(tmp_path), ranks=2, env={"NCCL_TIMEOUT": "200"})

    # These are the default limits of the watchdog. All limits are longer than the time-out, 200 s.
    limits = "stall_s is 300 s, start_s is 900 s, validate_s is 1500 s, save_s is 900 s"
    assert result.exit_codes == [2, 2]
    assert result.text.count(limits) == 1


def test_a_longer_time_out_of_collectives_makes_the_limits_of_the_watchdog_longer(tmp_path):
    changes = ("train.total_iter=1", "datasets.test={}")

    result = run_odd(write_odd_options(tmp_path), *changes, ranks=2, env={"NCCL_TIMEOUT": "7200"})

    # The limits of slow phases become 90 % of the time-out: 0.9 x 7200 s = 6480 s. In the last
    # tenth, 12 minutes, the watchdog can report and end the run. The limit of a step, stall_s, does
    # not change.
    assert result.exit_codes == [0, 0], result.text
    assert result.text.count("stall_s 300, start_s 6480, validate_s 6480, save_s 6480") == 1


# A user sets one number: stall_s, the limit of a step. By default it is 300 s. The other limits
# follow from stall_s by two rules:
#
# 1. The limit of a slow phase is a multiple of stall_s. A stall_s below 300 s counts as 300 s here,
#    because a start or a validation needs its time in any case.
# 2. The time-out of the process group is 1.2 x the longest limit, so that the watchdog acts before
#    this time-out. The time-out is at least LEAST_GROUP_S.
#
# In seconds:
#
#     stall_s   5              300 (default)   1000
#     start     3 x  300       3 x  300        3 x 1000
#     validate  5 x  300       5 x  300        5 x 1000
#     save      3 x  300       3 x  300        3 x 1000
#     group     1.2 x 1500     1.2 x 1500      1.2 x 5000


@dataclass(frozen=True)
class Limits:
    """The limits of time that follow from the options of the watchdog, in seconds."""

    options: dict[str, int]  # the given options. All other options have their defaults
    step: int
    start: int
    validate: int
    save: int
    group: int  # time-out of the process group


# Least time-out of the process group by default, in seconds (dist_timeout_s). With the default
# stall_s, 1.2 x 1500 s is the same number.
LEAST_GROUP_S = 1800


@pytest.mark.parametrize(
    "limits",
    [
        Limits({}, step=300, start=900, validate=1500, save=900, group=1800),
        Limits({"stall_s": 5}, step=5, start=900, validate=1500, save=900, group=1800),
        Limits({"stall_s": 1000}, step=1000, start=3000, validate=5000, save=3000, group=6000),
        # A limit that is given replaces the multiple. But the given validate_s and save_s, 1 s, are
        # shorter than stall_s, and no phase has less time than a step. So both limits become 5 s.
        Limits(
            {"stall_s": 5, "start_s": 60, "validate_s": 1, "save_s": 1},
            step=5,
            start=60,
            validate=5,
            save=5,
            group=1800,
        ),
    ],
    ids=["defaults", "a shorter step", "a longer step", "no phase is shorter than a step"],
)
def test_the_limits_of_time_follow_from_one_number(limits):
    budgets = WatchdogOptions(**limits.options)

    assert budgets.limit_of_phase("data") == limits.step
    assert budgets.limit_of_phase("start") == limits.start
    assert budgets.limit_of_phase("validate") == limits.validate
    assert budgets.limit_of_phase("save") == limits.save
    assert budgets.timeout_s(LEAST_GROUP_S) == limits.group


# The watchdog writes a phase as "phase", "phase: clip" or "inner phase in phase: clip". The limit
# is the limit of the outer phase.
@pytest.mark.parametrize(
    ("written", "phase_with_the_limit"),
    [
        ("validate: a clip", "validate"),
        # A wait between two epochs is no slow phase, so its limit is the limit of a step.
        ("barrier in epoch turn", "epoch turn"),
        # The name of a clip does not count, even if it has " in " or the name of a phase in it.
        ("restore: cat in hat", "restore"),
        ("barrier in validate: clip in save", "validate"),
    ],
)
def test_the_outer_phase_decides_the_limit_whatever_the_name_of_the_clip_is(
    written, phase_with_the_limit
):
    # The four limits differ, so that the limit of a wrong phase is noticed.
    budgets = WatchdogOptions(stall_s=5, start_s=60, validate_s=70, save_s=80)
    limits = {"validate": 70, "restore": 70, "epoch turn": 5}

    assert budgets.limit_of_phase(written) == limits[phase_with_the_limit]


# ---- Who reports an error ----


# The command of each case names an option file that is missing, nothere.json. A run of one rank
# reports the missing file. A run of several ranks first needs an address at which the ranks meet.
# This address is missing as well, and is reported first.
@pytest.mark.parametrize(
    ("launch", "message"),
    [
        pytest.param({"RANK": "0", "WORLD_SIZE": "1"}, "nothere.json", id="one rank"),
        # SLURM sets these variables in a shell of one task. The number of the job is arbitrary.
        pytest.param(
            {"SLURM_PROCID": "0", "SLURM_NTASKS": "1", "SLURM_JOB_ID": "7"},
            "nothere.json",
            id="srun --pty bash",
        ),
        # 8 tasks are 8 ranks. They meet on the first node of the job.
        pytest.param(
            {"SLURM_PROCID": "0", "SLURM_NTASKS": "8", "SLURM_JOB_ID": "7"},
            "SLURM_JOB_NODELIST is missing",
            id="srun --pty bash in a job of 8 tasks",
        ),
        pytest.param({"RANK": "0", "WORLD_SIZE": "2"}, "MASTER_ADDR is missing", id="no address"),
    ],
)
def test_each_command_of_a_shell_reports_its_own_error(tmp_path, launch, message):
    env = {**launch, "TMPDIR": str(tmp_path)}

    # The ranks of one launch have the same parent process, and report an error only once. Two
    # commands of a shell also have the same parent, the shell, but both must report. Here the fork
    # server of the tests is the parent of both commands.
    for _ in range(2):
        result = run_ranks(1, MAIN, "--opt", "nothere.json", env=env)

        assert result.exit_codes == [2], result.text
        assert result.text.count("Error: ") == 1, result.text
        assert message in result.text, result.text
    # The ranks of one launch use such a file to agree which rank reports. The file must have been
    # removed.
    assert not list(tmp_path.glob("spikevrt-*"))


# tests/dist/test_torchrun.py tests the same for ranks that torchrun started.
def test_ranks_of_one_launch_report_the_same_error_once(tmp_path):
    env = {"SPIKEVRT_JOIN_TIMEOUT": "abc", "TMPDIR": str(tmp_path)}

    result = run_ranks(2, MAIN, "--opt", "nothere.json", env=env)

    assert set(result.exit_codes) == {2}
    assert result.text.count("SPIKEVRT_JOIN_TIMEOUT is 'abc'") == 1, result.text
    assert "Traceback" not in result.text, result.text
    assert not list(tmp_path.glob("spikevrt-*"))


def test_an_error_in_bytes_that_are_no_text_is_reported(tmp_path):
    # The byte fc is the letter ü in Latin-1, an old encoding of Western Europe. In UTF-8 it is an
    # error.
    python = sys.executable.encode()
    options = bytes(write_options(tmp_path))
    command = b"LC_ALL=C exec %s main_train_vrt.py --opt %s train.nothere=h\xfcbsch" % (
        python,
        options,
    )

    ended = subprocess.run(
        [b"bash", b"-c", command], capture_output=True, timeout=600, env=clean_env(), cwd=ROOT
    )

    assert ended.returncode == 2, ended.stderr
    assert b"OptionError: " in ended.stderr, ended.stderr
    assert b"Traceback" not in ended.stderr, ended.stderr


def test_a_run_that_is_killed_leaves_no_file_of_its_watchdog(tmp_path):
    command = odd_command(
        write_odd_options(tmp_path), "datasets.test={}", "train.total_iter=100000"
    )
    # The folder is not below tmp_path, because the sockets of loader processes need a short path.
    with tempfile.TemporaryDirectory() as temporary:
        with Ranks(1, *command, env={"TMPDIR": temporary}) as running:
            running.wait_for("Iter: 1,", rank=0, limit_s=120)
            running.processes[0].send_signal(signal.SIGKILL)
            running.wait(limit_s=20)

        assert not list(Path(temporary).glob("spikevrt-*"))


# ---- Broken files ----


# Other damages are tested in tests/parts/data/test_io_backend.py and tests/faults/trials.py.
def test_a_file_that_breaks_during_training_is_named_and_ends_both_ranks():
    trial = break_file("cut spikes", ranks=2)

    assert trial.is_named, trial.text
    assert "loader worker" in trial.text, trial.text
    assert "Traceback" not in trial.text, trial.text
    assert trial.text.count("DataError: ") == 1


def test_a_loader_process_that_stands_still_between_two_epochs_is_named_and_ends_the_run(tmp_path):
    changes = (
        # The same loader process serves the next epoch.
        "datasets.train.dataloader_persistent_workers=true",
        # Seconds that the main process waits for a batch.
        "datasets.train.dataloader_timeout_s=3",
        # An epoch has two batches of 4 samples.
        "datasets.train.dataloader_batch_size=4",
        "datasets.test={}",
        "train.total_iter=100000",
    )
    # Step 2 is the last step of the first epoch. In this step the rank waits until the test has
    # stopped its loader process (case "wait" of odd_worker.py). So the first batch that does not
    # come is the first batch of the next epoch.
    command = odd_command(
        write_odd_options(tmp_path), *changes, case="wait", struck_rank=0, at_step=2
    )

    with Ranks(1, *command) as ranks:
        ranks.wait_for("waiting", rank=0, limit_s=90)
        for process in descendants_of(ranks.processes[0].pid):
            os.kill(process, signal.SIGSTOP)
        result = ranks.wait(limit_s=30)

    assert result.exit_codes == [3], result.text
    assert result.text.count("DataError: no batch: DataLoader timed out after 3.0 seconds") == 1
    # The message names the samples, e.g. "(epoch, index) [(1, 0), (1, 5)], loader worker 0, rank
    # 0".
    assert re.search(r"\(epoch, index\) \[\(\d+, \d\),.*\], loader worker 0, rank 0", result.text)
    assert "Traceback" not in result.text


def break_files(folder):
    """Break files of the data of `write_options`. Return the words of the messages.

    A file of spikes has 24 planes of 16 x 16 bits, so 24 x 32 = 768 bytes.
    """
    train_spikes = folder / "GOPRO_Large_spike_seq/train/train0/spike"
    test_spikes = folder / "GOPRO_Large_spike_seq/test"
    doubled = train_spikes / "000002.dat"
    text = test_spikes / "test1/spike/000001.dat"

    os.truncate(train_spikes / "000000.dat", 100)
    os.truncate(train_spikes / "000001.dat", 0)
    doubled.write_bytes(2 * doubled.read_bytes())
    (train_spikes / "000003.dat").unlink()
    # A text with as many bytes as a file of spikes.
    text.write_bytes((b"no spikes, but 768 bytes of text; " * 23)[:768])
    os.truncate(test_spikes / "test0/spike/000001.dat", 30)
    (folder / "GOPRO_Large/train/train1/blur/000000.png").write_bytes(b"<html>moved</html>")
    # A clip of another camera: its spikes have 8 x 12 pixels.
    write_clip(folder, "train2", frames=4, h=8, w=12)

    return (
        "train0 | spike lacks 1 of 4 frames: 000003.dat",
        "train1 | cannot read image: its content is a web page",
        # A plane of 16 x 16 bits has 32 bytes, and 100 = 3 x 32 + 4.
        "train0 | spike file of 100 bytes holds 3 planes of 16 x 16 and 4 bytes more",
        "train0 | spike file of 0 bytes holds no plane of 16 x 16",
        "train0 | spike file has 48 planes (1536 bytes), expected 24 (768 bytes)",
        # 24 planes of 8 x 12 bits have 24 x 12 = 288 bytes. 288 = 9 x 32.
        "train2 | spike file has 9 planes (288 bytes), expected 24 (768 bytes)",
        "train2 | lq is 16 x 24, spikes 16 x 16: no whole multiple",
        "test0  | spike file of 30 bytes holds",
        "begins with text: b'no spikes, but",
        str(text),
    )


def test_everything_that_is_broken_at_the_start_is_listed_once_for_both_ranks(tmp_path):
    options = write_options(tmp_path)
    messages = break_files(tmp_path)

    result = train(options, ranks=2, limit_s=60)

    assert result.exit_codes == [3, 3], result.text
    assert result.text.count("DataError: ") == 1
    assert "Traceback" not in result.text
    for message in messages:
        assert message in result.text, result.text

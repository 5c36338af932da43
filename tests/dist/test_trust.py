"""A stranger writes to the port of a run: its text is read as data, and none of it is executed.

The ranks of a run share a key-value store. It listens on a TCP port. So any program that reaches
the port can write into the store. These are two of its values:

    beat/1     the "beats" of rank 1: several times a second rank 1 writes a JSON text, which says
               that rank 1 is alive, e.g. {"beat": 17, "pid": 4711, "stack_file": ...}.
    failure    the report of a failing rank, so that the other ranks end, too.

The tests write forged values into the store of two real ranks (tests/dist/helpers_worker.py). A
rank that reads a forged value must report it and end.

A job key is a secret that the launcher gives to all ranks (SPIKEVRT_JOB_KEY). With a job key, each
value begins with a proof: an HMAC (a hash of key and value) that only ranks of this job can
compute.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from torch.distributed import HashStore, PrefixStore, TCPStore

from tests.dist.launching import ROOT, Ranks, run_ranks, start_command
from utils.dist import claims, process, stacks
from utils.dist.beats import claim_failure
from utils.dist.status import status_line
from utils.dist.store_values import Failure, ForeignValueError, read_state

WORKER = "tests/dist/helpers_worker.py"
STRANGER = "tests/dist/stranger_worker.py"
# The end of the sentence with which a run reports a forged value.
REPORT = "that no rank of this run wrote"
# Exit code of a rank that has read a forged value. All errors of the start, and of the agreement
# between ranks, have this code (docs/ddp_reference.md).
FORGED_VALUE = 2
# A job key of a run. Any text of this length would do.
KEY = "0123456789abcdef"
# Number of the user "nobody", who owns no file and no process.
NOBODY = 65534


def begin_work(folder: Path, env: dict[str, str] | None = None) -> Ranks:
    """Start two ranks that take steps until the file `over` exists in `folder`."""
    return Ranks(2, WORKER, "work", str(folder / "over"), env=env)


@pytest.fixture
def run(tmp_path):
    """Give two ranks at work. Each test has its own ranks, because a forged value ends them."""
    with begin_work(tmp_path) as ranks:
        ranks.wait_for("at work", rank=0, limit_s=60)
        yield ranks


def store_of(ranks: Ranks) -> PrefixStore:
    """Connect to the store of a run, as any other process on this host could do."""
    return PrefixStore("spikevrt/", TCPStore("127.0.0.1", ranks.port, is_master=False))


def pid_of(ranks: Ranks, rank: int) -> int:
    """Return the process id in the beat of a rank."""
    return json.loads(store_of(ranks).get(f"beat/{rank}"))["pid"]


def write_until_the_end(ranks: Ranks, store: PrefixStore, key: str, value: str) -> None:
    """Write a value again and again until rank 0 ends, for at most 30 s.

    A single write would not be enough, because the rank soon writes its next true beat.
    """
    deadline = time.monotonic() + 30
    while ranks.processes[0].poll() is None and time.monotonic() < deadline:
        try:
            store.set(key, value)
        except RuntimeError:
            return  # the store has ended with rank 0
        time.sleep(0.01)


# ---- Forged values ------------------------------------------------------------------------------


@pytest.fixture
def bystander():
    """Give a process that has nothing to do with the run."""
    process = subprocess.Popen(["sleep", "600"])
    yield process
    process.kill()
    process.wait()


def test_a_forged_beat_harms_no_file_or_process_that_it_names(run, tmp_path, bystander):
    precious = tmp_path / "precious"
    precious.write_text("three weeks of work")
    store = store_of(run)
    beat = json.loads(store.get("beat/1"))
    # Stop rank 1, so that rank 0 notices that rank 1 is silent, and reads the last beat of rank 1.
    # If this beat were true, rank 0 would end the process `pid` and print the file `stack_file`.
    os.kill(beat["pid"], signal.SIGSTOP)
    # A true beat that rank 1 has sent before it was stopped must arrive before the forged beat.
    # Otherwise the true beat would replace the forged beat. So wait for somewhat longer than the
    # time between two beats, 0.5 s (BEAT_S in utils/dist/beats.py).
    time.sleep(0.6)
    forged = beat | {
        "pid": bystander.pid,
        "stack_file": str(precious),
        "beat": 1000,  # the number of the beat: larger than the numbers of all true beats
    }

    store.set("beat/1", json.dumps(forged))
    # Now rank 1 is silent. In this worker, rank 0 waits 4 s for a silent rank. Then it reads the
    # forged beat and reports it. At last it waits for the end of rank 1, so let rank 1 continue.
    run.wait_for(REPORT, rank=0, limit_s=60)
    os.kill(beat["pid"], signal.SIGCONT)
    result = run.wait(limit_s=30)

    assert precious.read_text() == "three weeks of work"
    assert bystander.poll() is None  # it still runs
    assert result.exit_codes[0] == FORGED_VALUE
    assert REPORT in result.stderr[0]


# A true value says which rank has failed ("rank"), with which exit code all ranks end ("code"), and
# which rank reports the failure ("by"). No rank reports a failure with the exit code 0, because the
# run would then look finished.
@pytest.mark.parametrize(
    "value",
    [
        pytest.param('{"rank": 0, "code": 0, "by": 1}', id="exit code 0"),
        pytest.param('{"rank": 7, "code": 3, "by": 1}', id="a rank that does not exist"),
        pytest.param('{"rank": 0, "code": 3}', id="a key is missing"),
        pytest.param('{"rank": "0", "code": 3, "by": true}', id="wrong types"),
        pytest.param("garbage{", id="no JSON"),
        pytest.param("[" * 100_000, id="nested too deeply for the parser"),
    ],
)
def test_a_forged_failure_ends_the_run_with_a_report(run, value):
    store_of(run).set("failure", value)
    result = run.wait(limit_s=30)

    # The forged values ask for other exit codes, e.g. 0 and 3. The run must not follow them.
    assert result.exit_codes == [FORGED_VALUE, FORGED_VALUE]
    assert result.text.count(REPORT) == 1
    assert "key 'failure'" in result.text
    # The report also says what the rank was doing, e.g. in phase "compute".
    assert 'in phase "' in result.text


@pytest.mark.parametrize(
    "value",
    [
        pytest.param("garbage{", id="no JSON"),
        pytest.param("{}", id="no keys"),
        pytest.param('{"beat": 1e400}', id="infinite number"),
        pytest.param("\x1b[2J", id="clears a terminal"),
        pytest.param("null", id="null"),
    ],
)
def test_a_text_that_is_no_beat_ends_the_run_with_a_report(run, value):
    write_until_the_end(run, store_of(run), "beat/1", value)
    result = run.wait(limit_s=30)

    assert 0 not in result.exit_codes
    assert result.text.count(REPORT) == 1
    assert "key 'beat/1'" in result.text


def test_ranks_of_one_host_listen_on_the_loopback_alone(run):
    # /proc/net/tcp has a line for each socket of this host. Column 1 is the address and port of the
    # socket. Column 3 is its state: "0A" if it listens. Column 9 is its inode, the number of the
    # socket.
    listening = {}  # the address and port of each socket that listens, by its inode
    for name in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]:
            columns = line.split()
            if columns[3] == "0A":
                listening[columns[9]] = columns[1]

    # An open socket of a process is a link "socket:[inode]" in /proc/<pid>/fd.
    addresses = set()
    for rank in range(2):
        for link in Path(f"/proc/{pid_of(run, rank)}/fd").iterdir():
            target = os.readlink(link) if link.is_symlink() else ""
            inode = target.removeprefix("socket:[").removesuffix("]")
            if inode in listening:
                address, _, _port = listening[inode].partition(":")
                addresses.add(address)

    # All listening sockets have the address 127.0.0.1. Only this host can reach it. In hexadecimal
    # digits its four bytes are 7F 00 00 01. The file has them in reverse order.
    assert addresses == {"0100007F"}


# ---- The job key --------------------------------------------------------------------------------


def test_a_run_with_a_job_key_ends_as_a_run_without_one(tmp_path):
    with begin_work(tmp_path, env={"SPIKEVRT_JOB_KEY": KEY}) as ranks:
        ranks.wait_for("at work", rank=0, limit_s=60)
        # The key is in the environment of a rank, and Linux shows the environment in this file.
        environment = Path(f"/proc/{ranks.processes[0].pid}/environ")
        (tmp_path / "over").touch()  # ends the work of both ranks, see `begin_work`
        result = ranks.wait(limit_s=30)

    assert result.exit_codes == [0, 0], result.text
    # The key is not in the output of the ranks. The file of /proc is gone, because the files of a
    # process in /proc end with the process.
    assert KEY not in result.text
    assert not environment.exists()


def test_a_rank_without_the_job_key_is_refused_at_the_meeting(tmp_path):
    # The meeting is the start of a run, when each rank waits for all others.
    result = run_ranks(
        2,
        WORKER,
        "work",
        str(tmp_path / "over"),
        env={"SPIKEVRT_JOB_KEY": KEY},
        env_of={1: {"SPIKEVRT_JOB_KEY": "guessed"}},
    )

    assert 0 not in result.exit_codes
    assert "what arrived as rank 1 does not have the key of this start" in result.text
    assert KEY not in result.text


def test_a_beat_with_the_proof_of_another_beat_ends_the_run(tmp_path):
    with begin_work(tmp_path, env={"SPIKEVRT_JOB_KEY": KEY}) as ranks:
        ranks.wait_for("at work", rank=0, limit_s=60)
        store = store_of(ranks)
        # A value is "<proof> <beat>". Put the proof of a true beat in front of another beat.
        proof, _, text = store.get("beat/1").decode().partition(" ")
        # 10**6 is larger than the number of each true beat, so the forged beat seems to be newer.
        forged = json.dumps(json.loads(text) | {"beat": 10**6, "phase": "as usual"})
        write_until_the_end(ranks, store, "beat/1", f"{proof} {forged}")
        result = ranks.wait(limit_s=30)

    assert len(proof) == 64  # a SHA-256 in hex digits
    assert 0 not in result.exit_codes
    assert result.text.count(REPORT) == 1


# ---- A stranger in the place of a rank ----------------------------------------------------------

# A beat that rank 1 would write on another host before the first step. utils/dist/beats.py explains
# the keys.
BEAT = {
    "beat": 1,
    "machine": "elsewhere",
    "phase": "start",
    "step": 0,
    "syncs": 0,
    "age": 0.0,
    "budget": 0.0,
    "pid": 1,
    "host": "elsewhere",
    "facts": {},
}


def test_a_stranger_that_comes_as_the_missing_rank_executes_nothing(tmp_path):
    # In the case "second_life", rank 1 makes a file, here `mark`, and ends before it meets rank 0
    # (`end_first_life` in helpers_worker.py). So the stranger can come as rank 1.
    rank_1_ends = ["second_life", str(tmp_path / "mark")]
    # If rank 0 unpickled the message of the stranger, this file would be created.
    executed = tmp_path / "executed"

    with Ranks(2, WORKER, "work", str(tmp_path / "over"), args_of={1: rank_1_ends}) as ranks:
        stranger = [sys.executable, STRANGER, ranks.port, executed, json.dumps(BEAT)]
        with start_command(stranger, tmp_path / "log"):
            ranks.processes[0].wait(60)
        result = ranks.wait(limit_s=1)

    assert not executed.exists()
    assert result.exit_codes[0] == FORGED_VALUE, result.text
    assert "rank 1 sent something that no rank of this version sends" in result.stderr[0]


def test_a_true_beat_is_read_as_it_was_written():
    assert read_state(rank=1, value=json.dumps(BEAT)) == BEAT


def test_a_forged_fact_does_not_move_the_cursor_of_a_terminal():
    facts = {
        "device": "cpu",
        "first": ["\x1b[2J"],  # the escape sequence that clears a terminal
        "loss_is_finite": True,
        "weights": "0",
        "weights_step": 0,
        "samples": 1,
    }
    state = read_state(rank=1, value=json.dumps(BEAT | {"facts": facts}))

    assert status_line(rank=1, state=state).endswith("first ?[2J")


def test_seconds_that_no_float_holds_are_refused():
    # "age" is a number of seconds. JSON has no limit for whole numbers, but floats end at 1.8e308.
    forged = json.dumps(BEAT | {"age": 10**400})

    with pytest.raises(ForeignValueError, match="key 'beat/1'"):
        read_state(rank=1, value=forged)


def test_a_failure_that_is_no_text_is_refused():
    store = HashStore()
    not_utf_8: Any = b"\xff"
    store.set("failure", not_utf_8)

    with pytest.raises(ForeignValueError, match="key 'failure'"):
        claim_failure(store, Failure(rank=0, code=3, by=0), world_size=2)


def test_the_file_of_a_rank_is_found_although_the_rank_closes_another_file(monkeypatch):
    # The file of a rank, into which it writes its stacks, exists in memory only. `stack_file_of`
    # reads the links /proc/<pid>/fd/0, 1, ... Here the first link is gone before it can be read.
    read_link = os.readlink

    def read_link_of_open_file(path: str) -> str:
        if path.endswith("/fd/0"):
            raise FileNotFoundError(path)
        return read_link(path)

    monkeypatch.setattr(os, "readlink", read_link_of_open_file)
    name = "spikevrt-rank-0-of-a-test"
    with open(os.memfd_create(name), "wb"):
        found = stacks.stack_file_of(os.getpid(), name)

    assert found is not None
    found.close()


# ---- Which process of a host reports an error ---------------------------------------------------

# Several processes of a host may find the same error. Only the first process reports it. It claims
# the error: it binds a Unix socket. The name of the socket is a hash of user, machine and error. A
# process that cannot bind this socket stays silent.

# A program of another user. It binds the socket of an error first. Our process must report the
# error nevertheless, because only a socket of its own user is a claim. The argument of the program
# is the text to hash.
SQUATTER = r"""
import hashlib, socket, sys, time
s = socket.socket(socket.AF_UNIX)
# A name that begins with a zero byte is no file. It is free again when the process ends.
s.bind('\0spikevrt-' + hashlib.sha256(sys.argv[1].encode()).hexdigest())
s.listen()
print('bound', flush=True)
time.sleep(60)
"""


@pytest.fixture
def own_claims():
    """Release the claims of this process after the test.

    A process that has claimed an error waits for 10 s before it ends with a refusal. So other ranks
    can end first (`claims.outlast_siblings`). Without this fixture, later tests would wait.
    """
    yield
    for claim in claims.CLAIMS:
        claim.close()
    claims.CLAIMS.clear()


@pytest.mark.usefixtures("own_claims")
@pytest.mark.skipif(os.getuid() != 0, reason="needs a second user: run as root")
@pytest.mark.skipif(not Path("/usr/bin/python3").exists(), reason="needs a python for all users")
def test_a_socket_that_another_user_has_bound_silences_no_report():
    name = "an error that must be reported"
    # The text that `claims.first_to_claim` hashes.
    text = f"{os.getuid()} {process.machine()} {name}"
    squatter: Any = subprocess.Popen(
        ["/usr/bin/python3", "-c", SQUATTER, text],
        user=NOBODY,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert squatter.stdout.readline() == "bound\n"  # wait until it has the socket

    is_first = claims.first_to_claim(name)
    squatter.kill()

    assert is_first


@pytest.mark.usefixtures("own_claims")
def test_a_second_process_of_our_own_user_does_not_report_an_error_again():
    name = f"reported once {os.getpid()}"
    program = f"from utils.dist import claims; print(claims.first_to_claim({name!r}))"

    is_first = claims.first_to_claim(name)
    second = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )

    assert is_first
    assert second.stdout == "False\n"


# Two processes of one user claim the same error. The number of the user is above 2^31, as in a
# directory service. The imports need the files of the user who runs the tests, so they come before
# `setuid`.
TWO_CLAIMS = """
import os
from utils.dist import claims
os.setuid(3_000_000_000)
print(claims.first_to_claim("an error"), flush=True)
if os.fork() == 0:
    print(claims.first_to_claim("an error"), flush=True)
    os._exit(0)
os.wait()
"""


@pytest.mark.skipif(os.getuid() != 0, reason="needs a second user: run as root")
def test_a_user_with_a_large_number_does_not_report_an_error_again():
    printed = subprocess.run(
        [sys.executable, "-c", TWO_CLAIMS], cwd=ROOT, capture_output=True, text=True, check=True
    )

    assert printed.stdout == "True\nFalse\n"

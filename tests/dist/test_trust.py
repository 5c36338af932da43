"""Strangers at the ports of a run: what they write is read as data, and no one gets in."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from torch.distributed import PrefixStore, TCPStore

from tests.dist.launching import Ranks, run_ranks
from utils.dist import process

WORKER = "tests/dist/helpers_worker.py"
ROOT = Path(__file__).resolve().parents[2]
ENDED = "that no rank of this run wrote"


@pytest.fixture
def run(tmp_path):
    """Two ranks that take steps until tmp_path/over exists."""
    with Ranks(2, WORKER, "work", str(tmp_path / "over")) as ranks:
        ranks.wait_for("at work", 0, 60)
        yield ranks


def store_of(ranks):
    return PrefixStore("spikevrt/", TCPStore("127.0.0.1", ranks.port, is_master=False))


def pid_of(ranks, rank):
    return json.loads(store_of(ranks).get(f"beat/{rank}"))["pid"]


def test_a_forged_beat_opens_no_file_and_ends_no_process(run, tmp_path):
    precious = tmp_path / "precious"
    precious.write_text("three weeks of work")
    bystander = subprocess.Popen(["sleep", "600"])
    store = store_of(run)
    beat = json.loads(store.get("beat/1"))
    os.kill(beat["pid"], signal.SIGSTOP)  # rank 1 falls silent, so that rank 0 acts on its beat
    time.sleep(0.6)
    forged = beat | {"pid": bystander.pid, "stack_file": str(precious), "beat": 1000}

    store.set("beat/1", json.dumps(forged))
    time.sleep(6)
    os.kill(beat["pid"], signal.SIGCONT)
    result = run.wait(30)

    assert precious.read_text() == "three weeks of work"
    assert bystander.poll() is None
    bystander.kill()
    assert result.exit_codes[0] == 2
    assert ENDED in result.stderr[0]


@pytest.mark.parametrize(
    "value",
    [
        '{"rank": 0, "code": 0, "by": 1}',
        '{"rank": 7, "code": 3, "by": 1}',
        '{"rank": 0, "code": 3}',
        '{"rank": "0", "code": 3, "by": true}',
        "garbage{",
        "[" * 100_000,
    ],
)
def test_a_forged_failure_ends_the_run_with_a_word_and_not_with_exit_code_0(run, value):
    store_of(run).set("failure", value)
    result = run.wait(30)

    assert result.exit_codes == [2, 2]
    assert result.text.count(ENDED) == 1
    assert "key 'failure'" in result.text and 'in phase "' in result.text


@pytest.mark.parametrize("value", ["garbage{", "{}", '{"beat": 1e400}', "\x1b[2J", "null"])
def test_a_beat_that_is_none_ends_the_run_with_a_word(run, value):
    store = store_of(run)
    deadline = time.monotonic() + 30
    while run.processes[0].poll() is None and time.monotonic() < deadline:
        try:
            store.set("beat/1", value)
        except RuntimeError:
            break
        time.sleep(0.01)
    result = run.wait(30)

    assert 0 not in result.exit_codes
    assert result.text.count(ENDED) == 1
    assert "key 'beat/1'" in result.text


def test_ranks_of_one_host_listen_on_the_loopback_alone(run):
    rows = [
        line.split()
        for name in ("tcp", "tcp6")
        for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]
    ]
    listening = {row[9]: row[1] for row in rows if row[3] == "0A"}
    addresses = set()
    for rank in range(2):
        for link in Path(f"/proc/{pid_of(run, rank)}/fd").iterdir():
            target = os.readlink(link) if link.is_symlink() else ""
            inode = target.removeprefix("socket:[").removesuffix("]")
            if inode in listening:
                addresses.add(listening[inode].partition(":")[0])

    assert addresses == {"0100007F"}  # 127.0.0.1


def test_a_run_with_a_job_key_ends_as_one_without(tmp_path):
    key = {"SPIKEVRT_JOB_KEY": "0123456789abcdef"}
    with Ranks(2, WORKER, "work", str(tmp_path / "over"), env=key) as ranks:
        ranks.wait_for("at work", 0, 60)
        environment = Path(f"/proc/{ranks.processes[0].pid}/environ")
        (tmp_path / "over").touch()
        result = ranks.wait(30)

    assert result.exit_codes == [0, 0], result.text
    assert "0123456789abcdef" not in result.text
    assert not environment.exists()


def test_a_stranger_without_the_job_key_is_refused_at_the_meeting(tmp_path):
    result = run_ranks(
        2, WORKER, "work", str(tmp_path / "over"),
        env={"SPIKEVRT_JOB_KEY": "0123456789abcdef"}, env_of={1: {"SPIKEVRT_JOB_KEY": "guessed"}},
    )  # fmt: skip

    assert 0 not in result.exit_codes
    assert "what arrived as rank 1 does not have the key of this start" in result.text
    assert "0123456789abcdef" not in result.text


def test_a_beat_without_the_job_key_ends_the_run(tmp_path):
    key = {"SPIKEVRT_JOB_KEY": "0123456789abcdef"}
    with Ranks(2, WORKER, "work", str(tmp_path / "over"), env=key) as ranks:
        ranks.wait_for("at work", 0, 60)
        store = store_of(ranks)
        value = store.get("beat/1").decode()
        proof, _, text = value.partition(" ")
        forged = json.dumps(json.loads(text) | {"beat": 10**6, "phase": "as usual"})
        deadline = time.monotonic() + 30
        while ranks.processes[0].poll() is None and time.monotonic() < deadline:
            try:
                store.set("beat/1", f"{proof} {forged}")
            except RuntimeError:
                break
            time.sleep(0.01)
        result = ranks.wait(30)

    assert len(proof) == 64
    assert 0 not in result.exit_codes
    assert result.text.count(ENDED) == 1


STRANGER = """
import os, pickle, sys, time
from datetime import timedelta
import torch, torch.distributed as dist
from torch.distributed import PrefixStore, TCPStore

class Planted:
    def __reduce__(self):
        return os.system, (f"touch {sys.argv[2]}",)

tcp = TCPStore("127.0.0.1", int(sys.argv[1]), is_master=False, timeout=timedelta(seconds=60))
store = PrefixStore("spikevrt/", tcp)
store.add("joined", 1)
store.add("arrived/1", 1)
store.set("beat/1", sys.argv[3])
store.add("arrived", 1)
store.set("met", "1")
os.environ["GLOO_SOCKET_IFNAME"] = "lo"
dist.init_process_group("gloo", store=PrefixStore("group", store), rank=1, world_size=2)
message = torch.frombuffer(bytearray(pickle.dumps(Planted())), dtype=torch.uint8)
sizes = [torch.zeros(1, dtype=torch.long) for _ in range(2)]
dist.all_gather(sizes, torch.tensor([len(message)]))
largest = int(max(sizes))
padded = torch.zeros(largest, dtype=torch.uint8)
padded[: len(message)] = message
dist.all_gather([torch.empty(largest, dtype=torch.uint8) for _ in range(2)], padded)
time.sleep(10)
"""


def test_a_stranger_that_comes_as_the_missing_rank_executes_nothing(tmp_path):
    beat = {
        "beat": 1, "machine": "elsewhere", "phase": "start", "step": 0, "syncs": 0, "age": 0.0,
        "budget": 0.0, "pid": 1, "host": "elsewhere", "facts": {},
    }  # fmt: skip
    absent = ["second_life", str(tmp_path / "absent")]  # rank 1 ends before it meets rank 0
    with Ranks(2, WORKER, "work", str(tmp_path / "over"), args_of={1: absent}) as ranks:
        arguments = [str(ranks.port), str(tmp_path / "executed"), json.dumps(beat)]
        stranger = subprocess.Popen([sys.executable, "-c", STRANGER, *arguments], cwd=ROOT)
        ranks.processes[0].wait(60)
        stranger.kill()
        result = ranks.wait(1)

    assert not (tmp_path / "executed").exists()
    assert result.exit_codes[0] == 2, result.text
    assert "rank 1 sent something that no rank of this version sends" in result.stderr[0]


@pytest.mark.skipif(os.getuid() != 0, reason="needs a second user: run as root")
@pytest.mark.skipif(not Path("/usr/bin/python3").exists(), reason="needs a python for all users")
def test_an_address_that_another_user_has_bound_silences_no_report():
    name = "an error that must be said"
    text = f"{os.getuid()} {process.machine()} {name}"
    squatter = subprocess.Popen(
        [
            "/usr/bin/python3", "-c",
            "import hashlib, socket, sys, time; s = socket.socket(socket.AF_UNIX); "
            "s.bind('\\0spikevrt-' + hashlib.sha256(sys.argv[1].encode()).hexdigest()); "
            "s.listen(); print('bound', flush=True); time.sleep(60)",
            text,
        ],
        user=65534, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert squatter.stdout.readline() == "bound\n"

    is_first = process.first_to_claim(name)
    squatter.kill()

    assert is_first


def test_a_claim_of_our_own_user_is_kept():
    name = f"said once {os.getpid()}"
    program = f"from utils.dist import process; print(process.first_to_claim({name!r}))"
    assert process.first_to_claim(name)
    second = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )

    assert second.stdout == "False\n"

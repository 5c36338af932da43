"""Watching many ranks: what a beat and a start cost a rank, and who sees a host fall silent.

The ranks are simulated: objects in this process, which use a real key-value store as ranks do
(tests/faults/simulated.py). The store counts their requests. A rank writes a beat each half second,
and reads the beats of a few other ranks.
"""

import threading
import time
from functools import partial

import pytest
from torch.distributed import PrefixStore, TCPStore

from tests.faults.simulated import LONG, Simulated, new_ranks, strike
from utils.dist import rendezvous
from utils.dist.rendezvous import MET
from utils.dist.state import LaunchInfo


@pytest.fixture(scope="module")
def server():
    """Give the store, which all tests of this file share. Each test uses other keys."""
    return TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


def in_threads(*calls):
    """Call functions at the same time. Fails if one of them takes a minute."""
    threads = [threading.Thread(target=call, daemon=True) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)


def verdicts_of(ranks, stall_s, is_over):
    """Let the ranks beat until is_over(verdicts), for 30 s at most. Return their verdicts.

    A verdict says that a rank is e.g. "STUCK" or "SILENT": (rank, kind).
    """
    verdicts = []
    deadline = time.monotonic() + 30
    while not is_over(verdicts) and time.monotonic() < deadline:
        verdicts += [
            (found["rank"], found["kind"]) for rank in ranks if (found := rank.turn(stall_s))
        ]
        time.sleep(0.1)
    return verdicts


def test_a_beat_costs_a_rank_the_same_at_8_and_at_64_ranks(server):
    costs = {}
    for n in (8, 64):
        ranks = new_ranks(server, f"health{n}", n)
        for _ in range(3):
            assert not any(rank.turn(LONG) for rank in ranks)
        # For each rank: name of a request -> (how often it was sent, keys that it asked for).
        costs[n] = [
            {name: (count, rank.store.keys[name]) for name, count in rank.store.requests.items()}
            for rank in ranks
        ]

    assert all(
        cost["set"] == (3, 3) and cost["multi_get"][0] == 3 for n in costs for cost in costs[n]
    )
    assert all(set(cost) == {"set", "multi_get"} for n in costs for cost in costs[n])
    # In each of 3 beats a rank reads at most 4 keys: the verdict, the beat of rank 0 and the beat
    # of the next rank. The last rank of a host also reads the beat of the first rank of this host.
    assert (
        max(cost["multi_get"][1] for cost in costs[8])
        <= max(cost["multi_get"][1] for cost in costs[64])
        == 3 * 4
    )


def test_a_start_costs_a_rank_the_same_at_8_and_at_64_ranks(server):
    most = {}
    for n in (8, 64):
        ranks = [Simulated(rank, n, PrefixStore(f"start{n}", server)) for rank in range(n)]
        in_threads(*(rank.start for rank in ranks))
        # Each request is for one key, also while a rank waits.
        assert all(rank.store.keys == rank.store.requests for rank in ranks)
        most[n] = {
            name: max(rank.store.requests[name] for rank in ranks)
            for name in ("add", "compare_set")
        }
        # The last to come to each of the three meetings releases the others.
        assert sum(rank.store.requests["set"] for rank in ranks) == 2 * n + 3

    assert most[8] == most[64]


@pytest.mark.parametrize("fault", ["host", "stuck"])
def test_a_host_that_falls_silent_and_a_rank_that_is_waited_for_are_named_once(server, fault):
    n = 64
    ranks = new_ranks(server, fault, n)
    strike(ranks, fault)
    verdicts = verdicts_of(
        ranks, 1.5, lambda _: all(rank.known_at or rank.fault == "silent" for rank in ranks)
    )

    assert verdicts == [(n // 2, "STUCK" if fault == "stuck" else "SILENT")]
    # Only the states of all ranks can tell who is waited for: one rank reads them.
    read_all = [
        rank.rank
        for rank in ranks
        if rank.store.keys["multi_get"] > 4 * rank.store.requests["multi_get"]
    ]
    assert len(read_all) == (1 if fault == "stuck" else 0)


@pytest.mark.parametrize("n", [2, 24])
def test_a_rank_that_falls_silent_after_the_others_began_to_wait_is_named_and_not_they(server, n):
    # All ranks begin to wait for the last one. Only then this one falls silent, so that a rank that
    # waits must not be taken for the one that stands still.
    ranks = new_ranks(server, f"late{n}", n)
    begin = time.monotonic()
    for rank in ranks:
        rank.since, rank.syncs = begin, 1

    def is_over(verdicts):
        ranks[-1].fault = "silent" if time.monotonic() > begin + 1 else ""
        return verdicts

    assert verdicts_of(ranks, 3.0, is_over) == [(n - 1, "SILENT")]


def test_a_restarted_rank_hears_of_the_start_of_its_own_rank_0(server):
    # torchrun's store outlives a restart of the ranks. So it may have a request of a rank that died
    # before the answer.
    server.set(f"request/{server.add('requests', 1)}", "of an earlier start")
    names = {}

    def name(rank):
        launch = LaunchInfo("torchrun", rank, 0, 3)
        names.setdefault(rank, []).append(rendezvous._name_of_start(server, launch))

    for start in range(2):
        in_threads(*(partial(name, rank) for rank in (2, 1, 0)))
        server.set(f"spikevrt/{names[0][start]}/{MET}", "1")
        for thread in [thread for thread in threading.enumerate() if thread.name == "rendezvous"]:
            thread.join(30)
    first, second = zip(*(names[rank] for rank in range(3)), strict=True)
    assert len(set(first)) == 1
    assert len(set(second)) == 1
    assert first != second

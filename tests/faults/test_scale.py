"""Watching many ranks: what a beat and a start cost a rank, and who sees a host fall silent.

The ranks are simulated: they are objects in this process (tests/faults/simulated.py). They use a
real key-value store as ranks do. The store counts their requests. Words of this file:

    beat      a rank writes a beat into the store each half second, to say that it is alive
    turn      in a turn, a rank writes its beat, and reads the beats of a few other ranks
    verdict   it says that a rank is "SILENT" (no more beats) or "STUCK" (the others wait for it)
    meeting   a point of the start at which each rank waits for all others

The counts of requests are exact. A change that adds a request to each beat or start must fail here,
because all requests of thousands of ranks go to one process.
"""

import threading
import time
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import pytest
from torch.distributed import PrefixStore, TCPStore

from tests.faults.simulated import LONG, SimulatedRank, new_ranks, strike
from utils.dist.open_store import name_of_start
from utils.dist.rendezvous import MET
from utils.dist.state import LaunchInfo

# The numbers of ranks that are compared: the ranks of one host, and the ranks of eight hosts.
FEW = 8
MANY = 64


@pytest.fixture(scope="module")
def server() -> TCPStore:
    """Give the store. All tests of this file share it, but each test uses other keys."""
    # Port 0 stands for any free port.
    return TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


def in_threads(*calls: Callable[[], object]) -> None:
    """Call functions at the same time. Fails if one of them takes a minute."""
    threads = [threading.Thread(target=call, daemon=True) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)


# ---- What a beat and a start cost ----

# Number of turns of each rank.
TURNS = 3


@pytest.fixture(scope="module")
def ranks_after_turns(server) -> dict[int, list[SimulatedRank]]:
    """Give ranks after three turns each, in which nothing was wrong: number of ranks -> ranks."""
    ranks_of = {}
    for count in (FEW, MANY):
        ranks = new_ranks(server, f"health{count}", count)
        for _ in range(TURNS):
            verdicts = [rank.turn(stall_s=LONG) for rank in ranks]
            assert not any(verdicts)
        ranks_of[count] = ranks
    return ranks_of


@pytest.mark.parametrize("count", [FEW, MANY])
def test_in_a_turn_a_rank_writes_one_key_and_reads_once(ranks_after_turns, count):
    for rank in ranks_after_turns[count]:
        # Both counters have the names of methods of the store: `requests` counts the calls, and
        # `keys` the keys in these calls.
        assert rank.store.requests == {"set": TURNS, "multi_get": TURNS}
        assert rank.store.keys["set"] == TURNS


def most_keys_of_a_turn(ranks: list[SimulatedRank]) -> float:
    """Return how many keys a rank reads in a turn, on average: the largest number of all ranks."""
    return max(rank.store.keys["multi_get"] for rank in ranks) / TURNS


def test_in_a_turn_a_rank_reads_at_most_four_keys_however_many_ranks_there_are(ranks_after_turns):
    # A rank reads the verdict, the beat of rank 0 and the beat of the next rank. The last rank of a
    # host also reads the beat of the first rank of this host.
    assert most_keys_of_a_turn(ranks_after_turns[MANY]) == 4
    # On a single host, the first rank of the host is rank 0. So the last rank reads one key less.
    assert most_keys_of_a_turn(ranks_after_turns[FEW]) == 3


@pytest.fixture(scope="module")
def ranks_after_start(server) -> dict[int, list[SimulatedRank]]:
    """Start ranks together, and give them after their start: number of ranks -> ranks."""
    ranks_of = {}
    for count in (FEW, MANY):
        store = PrefixStore(f"start{count}", server)
        ranks = [SimulatedRank(rank, count, store) for rank in range(count)]
        in_threads(*(rank.start for rank in ranks))
        ranks_of[count] = ranks
    return ranks_of


@pytest.mark.parametrize("count", [FEW, MANY])
def test_each_request_of_a_start_is_for_one_key(ranks_after_start, count):
    for rank in ranks_after_start[count]:
        assert rank.store.keys == rank.store.requests


@pytest.mark.parametrize("request_name", ["add", "compare_set"])
def test_a_start_costs_a_rank_as_many_requests_however_many_ranks_there_are(
    ranks_after_start, request_name
):
    def most(ranks: list[SimulatedRank]) -> int:
        return max(rank.store.requests[request_name] for rank in ranks)

    assert most(ranks_after_start[FEW]) == most(ranks_after_start[MANY])


@pytest.mark.parametrize("count", [FEW, MANY])
def test_all_ranks_together_write_two_keys_for_each_rank_at_a_start(ranks_after_start, count):
    writes = sum(rank.store.requests["set"] for rank in ranks_after_start[count])

    # The two keys of a rank are its beat, and its place in the list of the ranks of its host.
    # There are three meetings: one of `meet`, and two rounds (`SimulatedRank.start`). The last rank
    # that comes to a meeting also writes a key that releases the other ranks.
    assert writes == 2 * count + 3


# ---- Who is named ----


# How long a rank may be silent or stuck before it is named, in seconds. The simulated ranks take a
# turn each 0.1 s or somewhat more, so a healthy rank is far below this limit.
STALL_S = 1.5


class Verdict(NamedTuple):
    """The verdict of a rank about a rank, e.g. that rank 32 is silent."""

    rank: int  # the rank that is named
    kind: str  # "STUCK" or "SILENT"


def verdicts_of(
    ranks: list[SimulatedRank], stall_s: float, is_over: Callable[[list[Verdict]], object]
) -> list[Verdict]:
    """Let the ranks take turns until is_over(verdicts), for 30 s at most. Return their verdicts.

    stall_s: how long a rank may be silent or stuck before it is named. is_over: function that gets
    the verdicts so far, after each round of turns.
    """
    verdicts: list[Verdict] = []
    deadline = time.monotonic() + 30
    while not is_over(verdicts) and time.monotonic() < deadline:
        for rank in ranks:
            found = rank.turn(stall_s)
            if found:
                verdicts.append(Verdict(found["rank"], found["kind"]))
        time.sleep(0.1)
    return verdicts


def verdicts_after(ranks: list[SimulatedRank], fault: str) -> list[Verdict]:
    """Strike ranks with a fault. Return the verdicts until each rank that still beats has read one.

    fault: "host" (all ranks of a host fall silent) or "stuck" (all other ranks wait for one rank).
    """
    strike(ranks, fault)

    def all_know(_: list[Verdict]) -> bool:
        """Return whether each rank that is not silent has read that a rank was named."""
        # A silent rank takes no turns, so it reads nothing. `known_at` is the time at which a rank
        # has read the verdict of another rank. Before this, it is 0.
        return all(rank.known_at or rank.fault == "silent" for rank in ranks)

    return verdicts_of(ranks, STALL_S, all_know)


def ranks_that_read_all(ranks: list[SimulatedRank]) -> list[int]:
    """Return the numbers of the ranks that have read the beats of all ranks.

    A usual turn reads at most 4 keys. The mean is higher only for a rank that has read all beats.
    """
    found = []
    for rank in ranks:
        if rank.store.keys["multi_get"] > 4 * rank.store.requests["multi_get"]:
            found.append(rank.rank)
    return found


def test_a_host_that_falls_silent_is_named_once(server):
    ranks = new_ranks(server, "host", MANY)

    verdicts = verdicts_after(ranks, "host")

    # All ranks of a host in the middle fall silent. The first of them is named.
    assert verdicts == [Verdict(MANY // 2, "SILENT")]
    assert ranks_that_read_all(ranks) == []


def test_a_rank_that_is_waited_for_is_named_once(server):
    ranks = new_ranks(server, "stuck", MANY)

    verdicts = verdicts_after(ranks, "stuck")

    assert verdicts == [Verdict(MANY // 2, "STUCK")]
    # Only the beats of all ranks together tell which rank is waited for. So one rank reads all
    # beats, and no other rank does.
    assert len(ranks_that_read_all(ranks)) == 1


@pytest.mark.parametrize("count", [2, 24])
def test_a_rank_that_falls_silent_after_the_others_began_to_wait_is_named(server, count):
    ranks = new_ranks(server, f"late{count}", count)
    # All ranks have entered one collective (syncs = 1) at the time `begin`, and wait in it.
    begin = time.monotonic()
    for rank in ranks:
        rank.since = begin
        rank.syncs = 1

    def is_over(verdicts: list[Verdict]) -> list[Verdict]:
        """Let the last rank fall silent after a second. The first verdict ends the turns."""
        # After a second the last rank is silent, and the other ranks wait for it. The verdict must
        # name the last rank, not one of the waiting ranks.
        if time.monotonic() > begin + 1:
            ranks[-1].fault = "silent"
        return verdicts

    # In seconds after `begin`:
    #
    #     0    all ranks wait in the collective
    #     1    the last rank falls silent: the fault
    #     3    stall_s is over, so the watchdog looks for the cause
    #
    # So no rank is named before the fault.
    verdicts = verdicts_of(ranks, stall_s=3.0, is_over=is_over)

    assert verdicts == [Verdict(count - 1, "SILENT")]


# ---- A restart ----


@pytest.fixture(scope="module")
def names_of_starts(server) -> list[list[str]]:
    """Give the name of each of two starts, as each of three ranks reads it: start -> rank -> name.

    torchrun restarts ranks, and its store outlives the restart. All keys of a start begin with the
    name of the start, so that ranks do not read the keys of an earlier start.
    """
    # Rank 1 of an earlier start made this request and died. Nobody has answered the request.
    number = server.add("requests", 1)
    server.set(f"request/{number}", "of an earlier start")

    def ask(names: dict[int, str], rank: int) -> None:
        """Put the name of the start that a rank hears into `names`. There are three ranks."""
        launch = LaunchInfo("torchrun", rank, local_rank=0, world_size=3)
        names[rank] = name_of_start(server, launch)

    starts = []
    for _ in range(2):
        names: dict[int, str] = {}
        in_threads(partial(ask, names, 2), partial(ask, names, 1), partial(ask, names, 0))
        # A thread of rank 0 ("rendezvous") answers the requests. It ends when this key says that
        # the ranks have met. Wait for its end, because it could answer requests of the next start.
        server.set(f"spikevrt/{names[0]}/{MET}", "1")
        for thread in threading.enumerate():
            if thread.name == "rendezvous":
                thread.join(30)
        starts.append([names[0], names[1], names[2]])
    return starts


def test_all_ranks_of_a_start_hear_its_name_from_their_own_rank_0(names_of_starts):
    for names in names_of_starts:
        assert names == [names[0]] * 3


def test_a_forged_number_of_requests_keeps_no_rank_from_the_name_of_its_start(server):
    # Any program that reaches the port can write this number. Rank 0 must not hold a million
    # numbers in memory. It must not ask the store for a million requests either, because this would
    # take longer than the ranks wait here, 5 s.
    store = PrefixStore("forged", server)
    store.add("requests", 1_000_000)
    names: dict[int, str] = {}

    def ask(rank: int) -> None:
        launch = LaunchInfo("torchrun", rank, local_rank=rank, world_size=MANY, join_s=5)
        names[rank] = name_of_start(store, launch)

    in_threads(*(partial(ask, rank) for rank in range(MANY)))
    store.set(f"spikevrt/{names[0]}/{MET}", "1")  # ends the thread that answers

    assert list(names.values()) == [names[0]] * MANY


def test_late_requests_of_a_larger_start_keep_no_rank_from_the_name_of_its_start(server):
    # An elastic launch (`--nnodes 1:4`) may go from 8 ranks to 2. Ranks of the start before may
    # still ask after the request of this start's rank 1, and before its rank 0 looks for requests.
    store = PrefixStore("elastic", server)
    names: dict[int, str] = {}

    def ask(rank: int) -> None:
        launch = LaunchInfo("torchrun", rank, local_rank=rank, world_size=2, join_s=5)
        names[rank] = name_of_start(store, launch)

    def late_requests_then_rank_0() -> None:
        # Both threads have the same client of the store. `wait` would keep it busy, so that rank 1
        # could not write its request.
        while not store.check(["request/1"]):
            time.sleep(0.01)
        for _ in range(7):
            number = store.add("requests", 1)
            store.set(f"request/{number}", f"late {number}")
        ask(0)

    in_threads(partial(ask, 1), late_requests_then_rank_0)
    store.set(f"spikevrt/{names[0]}/{MET}", "1")  # ends the thread that answers

    assert names[1] == names[0]


def test_a_restart_has_another_name(names_of_starts):
    first, second = names_of_starts

    assert first[0] != second[0]

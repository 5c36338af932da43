"""Simulated ranks: the beats of thousands of ranks in one process, against one real store.

A simulated rank uses the code of the product for its beats and verdicts (`Beats` and `Judge` in
utils/dist). Only the training is missing. Instead, `syncs` and `since` say in which collective the
rank waits, and since when.

tests/faults/trials.py runs `seconds_until_named`. This function measures how soon a silent or stuck
rank among so many ranks is named. tests/faults/test_scale.py counts what the ranks ask of the
store.
"""

import os
import time
from collections import Counter
from typing import Any, NamedTuple

from torch.distributed import PrefixStore, Store, TCPStore

from utils.dist.beats import Beats, claim_failure
from utils.dist.rendezvous import MET, meet
from utils.dist.round import Round
from utils.dist.state import LaunchInfo
from utils.dist.store_values import Failure
from utils.dist.verdict import Judge

LONG = 1e6  # seconds: a limit that no rank reaches
PER_HOST = 8  # simulated ranks on each host
# Value of `since` for a healthy rank. `since` is the time at which a rank entered its phase, and a
# beat says how long the rank has been in the phase ("age"). A healthy rank goes on from phase to
# phase, so its age must always be 0. With infinity, `publish` computes max(0, now - infinity) = 0.
HEALTHY = float("inf")
EXIT_CODE = 70  # exit code of a run that stalled


class CountingStore:
    """A store that counts its requests.

    E.g. after two `set` and one `multi_get` of four keys:

        requests    {"set": 2, "multi_get": 1}
        keys        {"set": 2, "multi_get": 4}
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        self.requests: Counter[str] = Counter()  # name of the method -> number of calls
        self.keys: Counter[str] = Counter()  # name of the method -> number of keys in these calls

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.store, name)

        def call(*args: Any) -> Any:
            self.requests[name] += 1
            self.keys[name] += len(args[0]) if isinstance(args[0], list) else 1
            return method(*args)

        return call


class SimulatedRank:
    """One rank.

    fault: "": the rank is healthy. "silent": the rank gives no beats. "stuck": this rank alone
        never enters the collective. The fault "host" of `strike` makes all ranks of a host
        "silent".
    syncs: number of collectives that the rank has entered.
    since: time at which the rank entered its phase.
    known_at: time at which the rank read that another rank had named a failure. Before this, it is
        0.
    """

    def __init__(self, rank: int, world_size: int, store: Store) -> None:
        self.rank = rank
        self.world_size = world_size
        # A CountingStore has the methods of a Store, but is no Store. `Any` hides this from the
        # type checker.
        self.store: Any = CountingStore(store)
        self.beats = Beats(rank, world_size, self.store, machine_name=f"host{rank // PER_HOST}")
        self.judge = Judge(self.beats)
        self.fault = ""
        self.syncs = 0
        self.since = HEALTHY
        self.known_at = 0.0
        self.publish(stall_s=5.0)

    def publish(self, stall_s: float) -> None:
        """Give a beat. stall_s: limit of the phase in seconds.

        The head of utils/dist/beats.py explains the keys, and `store_values.read_state` checks
        them.
        """
        beat = {
            "phase": "simulated",
            "step": 0,
            "syncs": self.syncs,
            "age": max(0.0, time.monotonic() - self.since),
            "budget": stall_s,  # the limit of the phase
            "pid": os.getpid(),
            "host": self.beats.machine,
        }
        self.beats.publish(beat)

    def turn(self, stall_s: float) -> dict[str, Any] | None:
        """Do what a watchdog does at each beat: give a beat, read the beats, and judge the ranks.

        Returns the rank that is named, the kind of its fault and the time, if this rank is the
        first one to name it. Else None.
        """
        if self.fault == "silent" or self.known_at:
            return None
        self.publish(stall_s)
        if self.beats.read():  # the failure that another rank has named, or None
            self.known_at = time.time()
            return None
        verdict = self.judge.verdict(stall_s)  # why the run has to stop, or None
        if verdict is None:
            return None
        failure = Failure(verdict.rank, code=EXIT_CODE, by=self.rank)
        # Only the first rank that claims a failure reports it. `claim_failure` returns the failure
        # of the first rank to all ranks.
        if claim_failure(self.store, failure, self.world_size) != failure:
            return None
        return {"rank": verdict.rank, "kind": verdict.kind, "at": time.time()}

    def start(self) -> None:
        """Make the requests to the store that a rank makes until training begins.

        A rank asks for a meeting of all ranks, and for rounds of `all_ranks_or_none`
        (utils/dist/agreement.py). All rounds make the same requests. So two rounds are enough to
        count the requests of a round.
        """
        # The mode "platform" has no effect here, because `meet` does not read it.
        launch = LaunchInfo("platform", self.rank, local_rank=0, world_size=self.world_size)
        meet(self.store, launch)
        for number in range(2):
            meeting = Round(self.store, f"round/{number}", self.rank, self.world_size)
            meeting.arrive()
            meeting.wait()


def struck_ranks(world_size: int, fault: str) -> range:
    """Return the ranks that a fault strikes: a rank in the middle, or all ranks of its host.

    fault: "silent", "stuck" or "host", see `strike`.
    """
    first = world_size // 2  # e.g. 32 of 64 ranks: the first rank of its host
    count = PER_HOST if fault == "host" else 1
    return range(first, first + count)


def strike(ranks: list[SimulatedRank], fault: str) -> None:
    """Let all ranks enter a collective and stay there, except for the struck ranks.

    fault: "silent": one rank gives no more beats. "host": all ranks of a host give no more beats.
        "stuck": one rank does not enter the collective.
    """
    for rank in ranks:
        rank.since = time.monotonic()
        rank.syncs = 1
    for number in struck_ranks(len(ranks), fault):
        ranks[number].fault = "stuck" if fault == "stuck" else "silent"
        ranks[number].syncs = 0


def new_ranks(server: TCPStore, name: str, n: int) -> list[SimulatedRank]:
    """Return n simulated ranks that have met, after their first two beats.

    name: prefix of their keys in the store.
    """
    ranks = [SimulatedRank(rank, n, PrefixStore(name, server)) for rank in range(n)]
    ranks[0].store.set(MET, "1")  # tells the ranks that all of them have met
    for _ in range(2):
        assert not any(rank.turn(LONG) for rank in ranks)
    # Requests of the start do not count.
    for rank in ranks:
        rank.store.requests.clear()
        rank.store.keys.clear()
    return ranks


class Named(NamedTuple):
    """A rank that was named after a strike."""

    rank: int
    kind: str  # "SILENT" or "STUCK"
    after_s: float  # seconds after the strike


def seconds_until_named(n: int, fault: str, beat_s: float, stall_s: float) -> dict[str, float]:
    """Strike ranks among n that beat every `beat_s` seconds, see `strike`.

    Returns
        named_s  seconds until one of them is named
        beat_s   seconds between two beats of a rank
        wrong    number of wrong verdicts: false alarms before the strike, other ranks than the
                 struck ones, and other kinds of faults
    """
    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    ranks = new_ranks(server, fault, n)
    # The clock of a watchdog counts at most slice_s seconds between two turns, because a longer
    # time may be a suspension (utils/dist/awake_clock.py). Here a turn of all ranks takes up to
    # `beat_s` seconds. So slice_s must be longer.
    for rank in ranks:
        rank.beats.clock.slice_s = 2 * beat_s
    # In these three rounds nothing is wrong, so each verdict is a false alarm.
    wrong = 0
    for _ in range(3):
        begin = time.monotonic()
        wrong += sum(rank.turn(stall_s) is not None for rank in ranks)
        sleep_until(begin + beat_s)

    strike(ranks, fault)
    struck_at = time.monotonic()
    named: list[Named] = []
    rounds = 0
    since_strike_s = 0.0
    while not named and time.monotonic() < struck_at + 3 * stall_s:
        begin = time.monotonic()
        for rank in ranks:
            found = rank.turn(stall_s)
            if found:
                after_s = time.monotonic() - struck_at
                named.append(Named(found["rank"], found["kind"], after_s))
        rounds += 1
        since_strike_s = time.monotonic() - struck_at
        sleep_until(begin + beat_s)

    expected_kind = "STUCK" if fault == "stuck" else "SILENT"
    for each in named:
        if each.rank not in struck_ranks(n, fault) or each.kind != expected_kind:
            wrong += 1
    # The first round begins at the strike, so the last round begins `rounds` - 1 beats after it.
    return {
        "named_s": round(named[0].after_s, 2) if named else float("inf"),
        "beat_s": round(since_strike_s / max(1, rounds - 1), 2),
        "wrong": wrong,
    }


def sleep_until(moment: float) -> None:
    """Sleep until a time of `time.monotonic`. Returns at once if it has passed."""
    time.sleep(max(0.0, moment - time.monotonic()))

"""Simulated ranks: the beats of many ranks in one process, against one real store."""

import os
import time
from collections import Counter
from typing import Any

from torch.distributed import PrefixStore, Store, TCPStore

from utils.dist.beats import Beats, claim_failure
from utils.dist.rendezvous import MET, Round, meet
from utils.dist.state import LaunchInfo
from utils.dist.store_values import Failure

LONG = 1e6  # seconds
PER_HOST = 8  # ranks
HEALTHY = float("inf")  # since when a rank is in its phase: it goes on to the next at once


class Counted:
    """A store that counts requests by name, and the keys that they hold."""

    def __init__(self, store: Store) -> None:
        self.store, self.requests, self.keys = store, Counter(), Counter()

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.store, name)

        def call(*args: Any) -> Any:
            self.requests[name] += 1
            self.keys[name] += len(args[0]) if isinstance(args[0], list) else 1
            return method(*args)

        return call


class Simulated:
    """One rank. fault: what strikes it ("silent": no beats; "stuck": it alone never enters the
    collective).
    """

    def __init__(self, rank: int, world_size: int, store: Store) -> None:
        self.rank, self.world_size = rank, world_size
        # It answers as a Store does, and is none by its class.
        self.store: Any = Counted(store)
        self.beats = Beats(rank, world_size, self.store, machine_name=f"host{rank // PER_HOST}")
        self.fault, self.syncs, self.since, self.known_at = "", 0, HEALTHY, 0.0
        self.publish(5.0)

    def publish(self, stall_s: float) -> None:
        self.beats.publish({
            "phase": "simulated", "step": 0, "syncs": self.syncs,
            "age": max(0.0, time.monotonic() - self.since), "budget": stall_s, "pid": os.getpid(),
            "host": self.beats.machine,
        })  # fmt: skip

    def turn(self, stall_s: float) -> dict[str, Any] | None:
        """One beat, as Watchdog does it; the verdict, if this rank is the first to come to one."""
        if self.fault == "silent" or self.known_at:
            return None
        self.publish(stall_s)
        if self.beats.read():
            self.known_at = time.time()
            return None
        verdict = self.beats.verdict(stall_s)
        if verdict is None or claim_failure(
            self.store, Failure(verdict[0], 70, self.rank), self.world_size
        ):
            return None
        return {"rank": verdict[0], "kind": verdict[1], "at": time.time()}

    def start(self) -> None:
        """What a rank asks of the store until training begins."""
        meet(self.store, LaunchInfo("platform", self.rank, 0, self.world_size))
        for number in range(2):
            meeting = Round(self.store, f"round/{number}", self.rank, self.world_size)
            meeting.arrive()
            meeting.wait()


def strike(ranks: list[Simulated], fault: str) -> None:
    """All are in a phase from now on; half-way, a host or a rank is silent, or has entered one
    collective less.
    """
    first = len(ranks) // 2
    for rank in ranks:
        rank.since, rank.syncs = time.monotonic(), 1
    for rank in ranks[first : first + (PER_HOST if fault == "host" else 1)]:
        rank.fault, rank.syncs = "stuck" if fault == "stuck" else "silent", 0


def new_ranks(server: TCPStore, name: str, n: int) -> list[Simulated]:
    """Simulated ranks that have met, after their first two beats."""
    ranks = [Simulated(rank, n, PrefixStore(name, server)) for rank in range(n)]
    ranks[0].store.set(MET, "1")
    for _ in range(2):
        assert not any(rank.turn(LONG) for rank in ranks)
    for rank in ranks:
        rank.store.requests.clear()
        rank.store.keys.clear()
    return ranks


def seconds_until_named(n: int, fault: str, beat_s: float, stall_s: float) -> dict[str, float]:
    """Strike one of `n` ranks that beat every `beat_s` seconds; see `strike`.

    Returns the seconds until it is named, the seconds between two beats of a rank, and how many
    verdicts were wrong: false alarms before the strike, and others than the one that is due.
    """
    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    ranks = new_ranks(server, fault, n)
    for rank in ranks:
        rank.beats.clock.slice_s = 2 * beat_s
    wrong = 0
    for _ in range(3):
        begin = time.monotonic()
        wrong += sum(rank.turn(stall_s) is not None for rank in ranks)
        time.sleep(max(0.0, begin + beat_s - time.monotonic()))
    strike(ranks, fault)
    struck_at = time.monotonic()
    named: list[tuple[int, str, float]] = []
    rounds = 0
    while not named and time.monotonic() < struck_at + 3 * stall_s:
        begin = time.monotonic()
        for rank in ranks:
            if found := rank.turn(stall_s):
                named.append((found["rank"], found["kind"], time.monotonic() - struck_at))
        rounds += 1
        between_s = time.monotonic() - struck_at
        time.sleep(max(0.0, begin + beat_s - time.monotonic()))
    kind = "STUCK" if fault == "stuck" else "SILENT"
    struck = range(n // 2, n // 2 + (PER_HOST if fault == "host" else 1))
    wrong += sum(rank not in struck or said != kind for rank, said, _ in named)
    return {
        "named_s": round(named[0][2], 2) if named else float("inf"),
        "beat_s": round(between_s / max(1, rounds - 1), 2),
        "wrong": wrong,
    }

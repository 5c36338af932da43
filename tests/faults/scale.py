#!/usr/bin/env python3
"""Watching at scale: thousands of ranks, simulated in two processes, on one real TCPStore.

    python -m tests.faults.scale [--ranks 64,512,4096]

Each simulated rank has a connection of its own and runs watchdog.Beats, rendezvous.meet and Round as real ranks do.
Ranks come eight to a host. Prints requests a beat and a second, the requests of the start, and how long the loss of a
rank, of a host, and a stall take to be named; docs/benchmarks/scale.json keeps it, and
`python -m tests.faults.trials --write` puts it into docs/reliability.md.
"""

import argparse
import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

from torch.distributed import PrefixStore, Store, TCPStore

from tests.dist.launching import ROOT, clean_env
from utils.dist.launch import LaunchInfo
from utils.dist.rendezvous import MET, Round, meet
from utils.dist.watchdog import Beats, claim_failure

RESULTS = ROOT / "docs/benchmarks/scale.json"
PER_HOST, CLIENTS, WATCH_S = 8, 2, 12.0
START_AT_MOST = 512  # ranks whose start is simulated: it takes a thread for each
FAULTS = ("silent", "host", "stuck")
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
    """One rank. fault: what strikes it ("silent": no beats; "stuck": it alone never enters the collective)."""

    def __init__(self, rank: int, world_size: int, store: Store) -> None:
        self.rank, self.world_size, self.store = rank, world_size, Counted(store)
        self.beats = Beats(rank, world_size, self.store, machine_name=f"host{rank // PER_HOST}")
        self.fault, self.syncs, self.since, self.known_at = "", 0, HEALTHY, 0.0
        self.publish(5.0)

    def publish(self, stall_s: float) -> None:
        self.beats.publish({
            "phase": "simulated", "step": 0, "syncs": self.syncs, "age": max(0.0, time.monotonic() - self.since),
            "budget": stall_s, "pid": os.getpid(), "host": self.beats.machine, "stack_file": "",
        })  # fmt: skip

    def turn(self, stall_s: float) -> dict[str, Any] | None:
        """One beat, as Watchdog does it; the verdict, where this rank is the first to come to one."""
        if self.fault == "silent" or self.known_at:
            return None
        self.publish(stall_s)
        if self.beats.read():
            self.known_at = time.time()
            return None
        verdict = self.beats.verdict(stall_s)
        if verdict is None or claim_failure(self.store, verdict[0], 70, self.rank):
            return None
        return {"rank": verdict[0], "kind": verdict[1], "at": time.time()}

    def start(self) -> None:
        """What a rank asks of the store until training begins."""
        meet(self.store, LaunchInfo("platform", self.rank, 0, self.world_size))
        for number in range(2):
            meeting = Round(self.store, f"round/{number}", self.rank, self.world_size)
            meeting.arrive()
            meeting.wait()


def struck_by(fault: str, world_size: int) -> range:
    """The ranks that the fault strikes."""
    first = world_size // 2
    return range(first, first + (PER_HOST if fault == "host" else 1))


def strike(ranks: list[Simulated], fault: str, world_size: int) -> None:
    """All are in a phase from now on; those struck are silent, or have entered one collective less."""
    struck = struck_by(fault, world_size)
    for rank in ranks:
        rank.since, rank.syncs = time.monotonic(), 1
        if rank.rank in struck:
            rank.fault, rank.syncs = "stuck" if fault == "stuck" else "silent", 0


# ---- one of the processes ------------------------------------------------------------------------------------------


def beats_of(ranks: list[Simulated], beat_s: float, stall_s: float, seconds: float) -> Iterator[dict[str, Any]]:
    """Let each rank beat once a beat_s, spread evenly; yields verdicts. Falls behind where the machine is too slow."""
    end, cycle = time.monotonic() + seconds, time.monotonic()
    while time.monotonic() < end and not all(rank.known_at or rank.fault == "silent" for rank in ranks):
        for i, rank in enumerate(ranks):
            time.sleep(max(0.0, cycle + i * beat_s / len(ranks) - time.monotonic()))
            if verdict := rank.turn(stall_s):
                yield verdict
        cycle = max(cycle + beat_s, time.monotonic())


def client(port: int, index: int, world_size: int, beat_s: float, stall_s: float) -> dict[str, Any]:
    """The share of one process: start, watch in health, then each fault."""
    mine = range(index, world_size, CLIENTS)

    def connect(_: int) -> Store:
        return TCPStore("127.0.0.1", port, is_master=False, timeout=timedelta(seconds=300))

    threading.stack_size(512 * 1024)
    with ThreadPoolExecutor(256) as pool:  # torch asks for the name of each connection, which may take 5 s
        tcp = list(pool.map(connect, mine))

    def together(name: str) -> None:
        """Wait for the other processes."""
        meeting = Round(PrefixStore("processes", tcp[0]), name, index, CLIENTS)
        meeting.arrive()
        meeting.wait()

    def new_ranks(name: str) -> list[Simulated]:
        found = [Simulated(rank, world_size, PrefixStore(name, store)) for rank, store in zip(mine, tcp, strict=True)]
        together(name)
        return found

    ranks = new_ranks("health")
    begin = time.monotonic()
    if world_size <= START_AT_MOST:
        with ThreadPoolExecutor(len(ranks)) as pool:
            list(pool.map(Simulated.start, ranks))
    else:
        ranks[0].store.set(MET, "1")
    found = {"start_s": time.monotonic() - begin, "start_requests": [sum(r.store.requests.values()) for r in ranks]}
    list(beats_of(ranks, beat_s, stall_s, 1.5 * beat_s))  # each finds the ranks that it watches
    for rank in ranks:
        rank.beats.number = 0
        rank.store.requests.clear(), rank.store.keys.clear()
    begin = time.monotonic()
    alarms = list(beats_of(ranks, beat_s, stall_s, WATCH_S))
    found |= {
        "alarms": len(alarms), "seconds": time.monotonic() - begin, "beats": sum(r.beats.number for r in ranks),
        "requests": sum(sum(r.store.requests.values()) for r in ranks),
        "keys_a_beat": sorted({sum(r.store.keys.values()) / r.beats.number for r in ranks}),
        "requests_a_beat": sorted({sum(r.store.requests.values()) / r.beats.number for r in ranks}),
    }  # fmt: skip
    for fault in FAULTS:
        found[fault] = suffer(new_ranks(fault), fault, world_size, beat_s, stall_s, together)
    return found


def suffer(
    ranks: list[Simulated], fault: str, world_size: int, beat_s: float, stall_s: float, together: Any
) -> dict[str, Any]:
    """One fault: the verdicts of this process, when it struck, and when the last of its ranks knew."""
    ranks[0].store.set(MET, "1")
    list(beats_of(ranks, beat_s, stall_s, 2.5 * beat_s))
    together(f"{fault}/strike")
    at = time.time()
    strike(ranks, fault, world_size)
    verdicts = list(beats_of(ranks, beat_s, stall_s, 3 * stall_s + 30))
    together(f"{fault}/over")
    reads_all = sum(rank.store.keys["multi_get"] > 4 * rank.store.requests["multi_get"] for rank in ranks)
    return {"struck_at": at, "verdicts": verdicts, "known_at": max(r.known_at for r in ranks), "read_all": reads_all}


# ---- all of them ---------------------------------------------------------------------------------------------------


def simulate(world_size: int) -> dict[str, Any]:
    """Two cores do not keep up with 4,096 ranks that beat twice a second: the beat is slower there, and T longer."""
    beat_s = max(0.5, world_size / 1024)
    stall_s = max(5.0, 5 * beat_s)
    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    command = [sys.executable, "-m", "tests.faults.scale", "--client"]
    processes = [
        subprocess.Popen(
            [*command, json.dumps([server.port, i, world_size, beat_s, stall_s])],
            cwd=ROOT, env=clean_env(), stdout=subprocess.PIPE, text=True,
        )
        for i in range(CLIENTS)
    ]  # fmt: skip
    parts = [json.loads(process.communicate(timeout=900)[0].splitlines()[-1]) for process in processes]
    return summary(world_size, beat_s, stall_s, parts)


def summary(world_size: int, beat_s: float, stall_s: float, parts: list[dict[str, Any]]) -> dict[str, Any]:
    starts = sorted(count for part in parts for count in part["start_requests"])
    found: dict[str, Any] = {
        "ranks": world_size, "beat_s": beat_s, "stall_s": stall_s, "alarms": sum(part["alarms"] for part in parts),
        "requests_a_beat": sorted({value for part in parts for value in part["requests_a_beat"]}),
        "keys_a_beat": sorted({value for part in parts for value in part["keys_a_beat"]}),
        "requests_a_second": round(sum(part["requests"] / part["seconds"] for part in parts)),
        "achieved_beat_s": round(world_size / sum(part["beats"] / part["seconds"] for part in parts), 2),
            }  # fmt: skip
    if world_size <= START_AT_MOST:
        found["start_requests_median"], found["start_requests_max"] = starts[len(starts) // 2], starts[-1]
        found["start_s"] = round(max(part["start_s"] for part in parts), 1)
    for fault in FAULTS:
        of_fault = [part[fault] for part in parts]
        struck_at = min(part["struck_at"] for part in of_fault)
        verdicts = [verdict for part in of_fault for verdict in part["verdicts"]]
        found[fault] = {
            "named": [f"rank {v['rank']} is {v['kind']}" for v in verdicts],
            "right": [v["rank"] in struck_by(fault, world_size) for v in verdicts] == [True],
            "detected_s": round(min((v["at"] for v in verdicts), default=float("inf")) - struck_at, 2),
            "all_know_s": round(max(part["known_at"] for part in of_fault) - struck_at, 2),
            "ranks_that_read_all": sum(part["read_all"] for part in of_fault),
        }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", default="64,512,4096")
    parser.add_argument("--client", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.client:
        print(json.dumps(client(*json.loads(args.client))), flush=True)
        os._exit(0)
    old = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else []
    sizes = {entry["ranks"]: entry for entry in old}  # a size that is not measured now keeps its numbers
    for world_size in map(int, args.ranks.split(",")):
        about = {"date": time.strftime("%Y-%m-%d"), "cores": os.cpu_count(), "load": round(os.getloadavg()[0], 1)}
        sizes[world_size] = about | simulate(world_size)
        print(json.dumps(sizes[world_size]), flush=True)
    RESULTS.write_text(json.dumps([sizes[count] for count in sorted(sizes)], indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

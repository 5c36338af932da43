"""The heartbeats of the ranks in the store of the run, and the failures that they show.

A beat costs two requests, whatever the number of ranks: a rank writes its own state, and reads the shared failure and
the states of rank 0, of the next rank and of the next rank on its host. So of any ranks that fall silent, at least one
is watched by a rank that still beats. Which rank the others wait for shows only in the states of all ranks: one rank at
a time reads them, and only while it has been too long in a phase itself.

Ages are measured on the observer's AwakeClock, so the clocks of the hosts need not agree, and a pause is no age.
"""

from __future__ import annotations

import json
from typing import Any

from torch.distributed import Store

from utils.dist.process import AwakeClock, machine, process_state
from utils.dist.rendezvous import MET

FAILURE = "failure"  # store key: the first failure, {"rank", "code", "by"}; empty while there is none
REPORTED = "reported"  # store key: the failure has been reported; all ranks may end
QUIET_S = 3.0  # a rank that beats, on a machine with eight times as many processes as cores, is heard within 2.2 s
LOOKING = "looking"  # store key: the rank that reads all states; empty while none does

State = dict[str, Any]
Verdict = tuple[int, str, str]  # the rank that stops the run, STUCK, SILENT or DEAD, and what was seen


class Beats:
    """The beats of one rank. store: None in a single process. machine_name: of simulated hosts."""

    def __init__(self, rank: int, world_size: int, store: Store | None, machine_name: str = "") -> None:
        self.rank, self.world_size, self.store = rank, world_size, store
        self.machine = machine_name or machine()
        self.number, self.clock = 0, AwakeClock()
        self.watched: list[int] | None = None  # None until all ranks have met
        self.states: dict[int, State] = {}  # the newest known of each rank
        self.seen: dict[int, tuple[int, float]] = {}  # watched rank -> (its last beat, when it came)
        self.is_looking = False
        self.first_look: dict[int, tuple[int, float]] = {}  # as `seen`, of ranks that are read only while looking
        if store is not None:
            store.compare_set(FAILURE, "", "")  # so that multi_get can read it with the states
            self.place = store.add(f"on/{self.machine}", 1) - 1  # index among the ranks of its host
            store.set(f"on/{self.machine}/{self.place}", str(rank))

    # ---- the exchange ----------------------------------------------------------------------------------------------

    def publish(self, state: State) -> None:
        self.number += 1
        self.states[self.rank] = {"beat": self.number, "machine": self.machine, **state}
        if self.store is not None:
            self.store.set(f"beat/{self.rank}", json.dumps(self.states[self.rank]))

    def read(self) -> State | None:
        """Reads the watched ranks; the failure that ends the run, if there is one."""
        if self.store is None:
            return None
        if self.watched is None and self.store.check([MET]):
            # Rank 0, which may host the store, the next rank, and the next rank on this host: only from the same host
            # can the end of a process be seen.
            on_host = self.store.add(f"on/{self.machine}", 0)
            next_on_host = int(self.store.get(f"on/{self.machine}/{(self.place + 1) % on_host}"))
            self.watched = sorted({0, (self.rank + 1) % self.world_size, next_on_host} - {self.rank})
        found = self.store.multi_get([FAILURE, *(f"beat/{rank}" for rank in self.watched or ())])
        for rank, text in zip(self.watched or (), found[1:], strict=True):
            state = self.states[rank] = json.loads(text)
            if self.seen.get(rank, (-1, 0.0))[0] != state["beat"]:
                self.seen[rank] = (state["beat"], self.clock.now())
        return json.loads(found[0]) if found[0] else None

    def meet_rank_0(self, store: Store) -> None:
        """Read the state of rank 0 after the ranks have met: if rank 0 and its store are lost, it can be named.

        store: the connection of the main thread, which calls this.
        """
        self.states.setdefault(0, json.loads(store.get("beat/0")))

    def read_all(self) -> None:
        """Reads the states of all ranks, where all have met."""
        if self.store is not None and self.watched is not None:
            self.states.update(read_states(self.store, self.world_size))

    # ---- the verdict -----------------------------------------------------------------------------------------------

    def verdict(self, stall_s: float | None) -> Verdict | None:
        """What stops the run, or None. stall_s: None before the watch has begun, when only deaths count.

        A rank whose process is gone is DEAD; one that is watched and does not beat is SILENT. All seconds are those of
        AwakeClocks, so a rank is late only by the time in which its observer ran: a run that is suspended as a whole
        ages by one slice, a rank that is stopped alone falls silent.
        """
        now, silent = self.clock.now(), None
        for rank, (_, when) in self.seen.items():
            state = self.states[rank]
            if is_gone(state):
                return rank, "DEAD", f"its process {state['pid']} is gone; last seen in {where(state)}"
            # A beat is half a second. How long a rank has been in its phase counts only beside the others.
            if stall_s is not None and state["budget"] and now - when > stall_s - 0.5:
                silent = silent or (rank, now - when)
        if silent:
            return self._silent(*silent)
        if not self._may_look(stall_s):
            return None
        self.read_all()
        states = self.states
        if not all(state["budget"] for state in states.values()):
            return None  # one has not called `watch` yet
        # The others wait for the longest over its budget of those that entered the fewest collectives.
        fewest = min(state["syncs"] for state in states.values())
        over, rank = max((s["age"] - s["budget"], rank) for rank, s in states.items() if s["syncs"] == fewest)
        return self._cause(rank, min(QUIET_S, stall_s / 2)) if over > 0 else None

    def _cause(self, rank: int, quiet_s: float) -> Verdict | None:
        """Whether `rank` is stuck, or waits for a silent rank that entered as few collectives; None: not known yet.

        The age that a rank published does not grow after it fell silent: the oldest one may be that of a rank that waits.
        """
        now, is_known = self.clock.now(), True
        for other, state in self.states.items():
            if other in (rank, self.rank) or state["syncs"] != self.states[rank]["syncs"]:
                continue
            beat, when = self.seen.get(other) or self.first_look.setdefault(other, (state["beat"], now))
            if other not in self.seen and beat != state["beat"]:
                continue  # heard since the first look
            if now - when > quiet_s:
                return self._silent(other, now - when)
            is_known &= other in self.seen
        state = self.states[rank]
        return (rank, "STUCK", f"{state['age']:.1f} s in {where(state)}") if is_known else None

    def _silent(self, rank: int, silent_s: float) -> Verdict:
        return rank, "SILENT", f"no beat for {silent_s:.1f} s; last seen in {where(self.states[rank])}"

    def _may_look(self, stall_s: float | None) -> bool:
        """Whether this rank has been too long in its phase, and no other rank is looking for the cause already."""
        own, mine = self.states[self.rank], str(self.rank)
        if stall_s is None or not 0 < own["budget"] < own["age"]:
            self.stop_looking()
            return False
        if self.store is not None and not self.is_looking:
            self.is_looking = self.store.compare_set(LOOKING, "", mine).decode() == mine
        return self.store is None or self.is_looking

    def stop_looking(self) -> None:
        """Let another rank look for the cause."""
        if self.is_looking:
            self.store.compare_set(LOOKING, str(self.rank), "")
            self.is_looking = False
            self.first_look.clear()


def read_states(store: Store, world_size: int) -> dict[int, State]:
    """The last beat of each rank; all have met."""
    return dict(enumerate(map(json.loads, store.multi_get([f"beat/{rank}" for rank in range(world_size)]))))


def claim_failure(store: Store, rank: int, code: int, by: int) -> State | None:
    """None where this is the first failure of the run, else the one that was."""
    mine = json.dumps({"rank": rank, "code": code, "by": by})
    noted = store.compare_set(FAILURE, "", mine).decode()
    return None if noted == mine else json.loads(noted)


def is_gone(state: State) -> bool:
    """Whether the rank's process ran on this machine and is gone."""
    return is_here(state) and process_state(state["pid"]) in (None, "Z", "X")


def is_here(state: State) -> bool:
    """Whether the rank runs on this machine, so that its process id is valid here."""
    return state["machine"] == machine()


def where(state: State) -> str:
    return f'phase "{state["phase"]}" at step {state["step"]}'

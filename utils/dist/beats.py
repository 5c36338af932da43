"""The beats of the ranks, and what they say of the run: which rank is dead, silent or stuck.

A beat costs a rank two requests to the store, whatever the number of ranks. The rank writes its own
state. It reads the shared failure, and the states of rank 0, of the next rank and of the next rank
on its host. So if any ranks fall silent, at least one of them is watched by a rank that still
beats.

Which rank the others wait for shows only in the states of all ranks. One rank at a time reads them,
and only while it has been too long in a phase itself.

Ages are measured on the observer's AwakeClock. So the clocks of the hosts need not agree, and a
pause of the whole run is no age.
"""

from typing import NamedTuple

from torch.distributed import Store

from utils.dist import process
from utils.dist.rendezvous import MET
from utils.dist.store_values import (
    Failure,
    State,
    foreign,
    read_failure,
    read_state,
    write_failure,
    write_state,
)

FAILURE = "failure"  # store key: the first failure; empty while there is none
LOOKING = "looking"  # store key: the rank that reads all states; empty while no rank does
# A rank that beats is heard within 2.2 s, on a machine with eight times as many processes as cores.
QUIET_S = 3.0
BEAT_S = 0.5


class Verdict(NamedTuple):
    """Why the run has to stop.

    rank: the rank that stops it. kind: "STUCK", "SILENT" or "DEAD". what: what was seen.
    """

    rank: int
    kind: str
    what: str


class Beats:
    """The beats that one rank writes and reads.

    store: None in a single process. machine_name: name of a simulated host.
    """

    def __init__(
        self, rank: int, world_size: int, store: Store | None, machine_name: str = ""
    ) -> None:
        self.rank = rank
        self.world_size = world_size
        self.store = store
        self.machine = machine_name or process.machine()
        self.number = 0
        self.clock = process.AwakeClock(1.0)
        self.watched: list[int] | None = None  # None until all ranks have met
        self.states: dict[int, State] = {}  # the newest known state of each rank
        # Watched rank -> its last beat, and when it came.
        self.seen: dict[int, tuple[int, float]] = {}
        self.is_looking = False
        # The same of ranks that are read only while this rank looks for a cause.
        self.first_look: dict[int, tuple[int, float]] = {}
        if store is not None:
            store.compare_set(FAILURE, "", "")  # so that multi_get can read it with the states
            self.place = store.add(f"on/{self.machine}", 1) - 1  # index among the ranks of its host
            store.set(f"on/{self.machine}/{self.place}", str(rank))

    def publish(self, state: State) -> None:
        self.number += 1
        self.states[self.rank] = {"beat": self.number, "machine": self.machine, **state}
        if self.store is not None:
            self.store.set(f"beat/{self.rank}", write_state(self.rank, self.states[self.rank]))

    def read(self) -> Failure | None:
        """Read the watched ranks. Returns the failure that ends the run, if there is one.

        Raises ForeignValueError if the store holds something that no rank of the run wrote.
        """
        if self.store is None:
            return None
        if self.watched is None and self.store.check([MET]):
            self.watched = self._ranks_to_watch(self.store)
        watched = self.watched or []
        found = self.store.multi_get([FAILURE, *(f"beat/{rank}" for rank in watched)])
        for rank, text in zip(watched, found[1:], strict=True):
            state = read_state(rank, text)
            self._refuse_another_process(rank, state)
            self.states[rank] = state
            last_beat, _ = self.seen.get(rank, (-1, 0.0))
            if last_beat != state["beat"]:
                self.seen[rank] = (state["beat"], self.clock.now())
        return read_failure(found[0], self.world_size)

    def _refuse_another_process(self, rank: int, state: State) -> None:
        """Raise ForeignValueError if the beat comes from another process than the beats before."""
        known = self.states.get(rank)
        if known is not None and any(known[key] != state[key] for key in ("pid", "machine")):
            raise foreign(f"beat/{rank}")

    def _ranks_to_watch(self, store: Store) -> list[int]:
        """Return rank 0, which may host the store, the next rank, and the next rank on this host.

        Only from the same host can the end of a process be seen.
        """
        on_host = store.add(f"on/{self.machine}", 0)
        key = f"on/{self.machine}/{(self.place + 1) % on_host}"
        next_on_host = _rank_in(key, store.get(key), self.world_size)
        watched = {0, (self.rank + 1) % self.world_size, next_on_host}
        return sorted(watched - {self.rank})

    def verdict(self, stall_s: float | None) -> Verdict | None:
        """Return what stops the run, or None.

        stall_s: seconds without a beat after which a rank is silent; None before the watch has
            begun, when only deaths count.

        A watched rank is DEAD if its process is gone, and SILENT if it does not beat. All seconds
        are those of AwakeClocks. So a rank is late only by the time in which its observer ran: a
        run that is suspended as a whole ages by one slice, a rank that is stopped alone falls
        silent.
        """
        dead_or_silent = self._dead_or_silent(stall_s)
        if dead_or_silent is not None:
            return dead_or_silent
        own = self.states[self.rank]
        is_late = stall_s is not None and 0 < own["budget"] < own["age"]
        if not is_late:
            self.stop_looking()
            return None
        # This rank has been too long in its phase. It looks for the cause, unless another rank
        # does.
        if self.store is not None:
            if not self._may_look(self.store):
                return None
            self.states.update(read_states(self.store, self.world_size))
        return self._cause_of_wait(min(QUIET_S, stall_s / 2))

    def _dead_or_silent(self, stall_s: float | None) -> Verdict | None:
        now = self.clock.now()
        silent = None
        for rank, (_, when) in self.seen.items():
            state = self.states[rank]
            if is_gone(state):
                return Verdict(rank, "DEAD", f"its process {state['pid']} is gone")
            if silent is None and stall_s is not None and state["budget"]:
                # The last beat may have come just before the one that is missing.
                if now - when > stall_s - BEAT_S:
                    silent = Verdict(rank, "SILENT", f"no beat for {now - when:.1f} s")
        return silent

    def _may_look(self, store: Store) -> bool:
        """Whether this rank is the one that looks for the cause."""
        if not self.is_looking:
            mine = str(self.rank)
            self.is_looking = store.compare_set(LOOKING, "", mine).decode() == mine
        return self.is_looking

    def _cause_of_wait(self, quiet_s: float) -> Verdict | None:
        """Return the rank that the others wait for, or None if it is not known yet.

        The others wait for a rank among those that entered the fewest collectives: the one that is
        longest over its budget.
        """
        if not all(state["budget"] for state in self.states.values()):
            return None  # a rank has not called `watch` yet
        fewest = min(state["syncs"] for state in self.states.values())
        over, rank = max(
            (state["age"] - state["budget"], rank)
            for rank, state in self.states.items()
            if state["syncs"] == fewest
        )
        if over <= 0:
            return None
        return self._stuck_or_silent(rank, quiet_s)

    def _stuck_or_silent(self, rank: int, quiet_s: float) -> Verdict | None:
        """Tell whether `rank` is stuck, or waits for a silent rank. Returns None if not known yet.

        The age that a rank published does not grow after it fell silent. So the oldest rank may be
        one that waits for a silent rank, which entered as few collectives.
        """
        now = self.clock.now()
        all_are_known = True
        for other, state in self.states.items():
            if other in (rank, self.rank) or state["syncs"] != self.states[rank]["syncs"]:
                continue
            if other in self.seen:
                _, when = self.seen[other]
            else:
                beat, when = self.first_look.setdefault(other, (state["beat"], now))
                if beat != state["beat"]:
                    continue  # heard since the first look
                all_are_known = False
            if now - when > quiet_s:
                return Verdict(other, "SILENT", f"no beat for {now - when:.1f} s")
        if all_are_known:
            return Verdict(rank, "STUCK", f"{self.states[rank]['age']:.1f} s")
        return None

    def stop_looking(self) -> None:
        """Let another rank look for the cause."""
        if self.is_looking and self.store is not None:
            self.store.compare_set(LOOKING, str(self.rank), "")
            self.is_looking = False
            self.first_look.clear()


def read_states(store: Store, world_size: int) -> dict[int, State]:
    """Return the last beat of each rank. All ranks have met."""
    values = store.multi_get([f"beat/{rank}" for rank in range(world_size)])
    return {rank: read_state(rank, value) for rank, value in enumerate(values)}


def claim_failure(store: Store, failure: Failure, world_size: int) -> Failure | None:
    """Note the first failure of the run. Returns None if it is this one, else the earlier one."""
    mine = write_failure(failure)
    noted = store.compare_set(FAILURE, "", mine).decode()
    if noted == mine:
        return None
    return read_failure(noted, world_size)


def is_gone(state: State) -> bool:
    """Whether the rank's process ran on this machine and is gone."""
    is_here = state["machine"] == process.machine()
    return is_here and process.process_state(state["pid"]) in (None, "Z", "X")


def where(state: State) -> str:
    return f'phase "{state["phase"]}" at step {state["step"]}'


def _rank_in(key: str, value: bytes, world_size: int) -> int:
    """Return the rank that the store names under `key`."""
    try:
        rank = int(value)
    except ValueError as e:
        raise foreign(key) from e
    if rank not in range(world_size):
        raise foreign(key)
    return rank

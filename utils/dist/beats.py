"""The beats of the ranks, and what they tell of the run: which rank is dead, silent or stuck.

A *beat* is a record that a rank writes into the key-value store of the run, every half second:

    key    beat/3
    value  {"beat": 512, "phase": "forward", "step": 120, "age": 0.4, "budget": 300.0,
            "syncs": 2210, "pid": 4711, "machine": ..., "host": ..., "facts": ...}

`beat` counts the beats. `age` is the time that the main thread has spent in its phase, `budget` the
limit of the phase in seconds, and `syncs` the number of collectives that the rank has entered.

A beat costs a rank two requests to the store, whatever the number of ranks. The rank writes its own
state. It reads the shared failure, and the states of the ranks that it *watches*: rank 0, the next
rank, and the next rank on its host. So if any ranks fall silent, at least one of them is watched by
a rank that still beats.

Which rank the others wait for shows only in the states of all ranks. One rank at a time reads them
all (it *looks*), and only while it has been too long in a phase itself.

Ages are measured on the observer's AwakeClock. So the clocks of the hosts need not agree, and a
pause of the whole run is no age.

`utils.dist.watchdog` calls this module with each beat.
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

# Store key: the first failure of the run. Empty while there is none.
FAILURE = "failure"
# Store key: the rank that reads all states. Empty while no rank does.
LOOKING = "looking"
# Seconds without a beat after which a rank that looks takes another one for silent. A rank that
# beats is heard within 2.2 s, on a machine with eight times as many processes as cores.
QUIET_S = 3.0
# Seconds between two beats.
BEAT_S = 0.5


class Verdict(NamedTuple):
    """Why the run has to stop.

    rank: the rank that stops it. kind: "STUCK", "SILENT" or "DEAD". what: what was seen.
    """

    rank: int
    kind: str
    what: str


class Heard(NamedTuple):
    """A beat of another rank.

    beat: its number. when: the time at which it was first read, on the clock of this rank.
    """

    beat: int
    when: float


class Beats:
    """The beats that one rank writes and reads."""

    def __init__(
        self, rank: int, world_size: int, store: Store | None, machine_name: str = ""
    ) -> None:
        """rank, world_size: of this rank. store: None in a single process.
        machine_name: name of a simulated host, in tests. Empty for the real one.
        """
        self.rank = rank
        self.world_size = world_size
        self.store = store
        self.machine = machine_name or process.machine()
        self.number = 0  # of the last beat
        self.clock = process.AwakeClock(1.0)
        self.watched: list[int] | None = None  # None until all ranks have met
        self.states: dict[int, State] = {}  # the newest known state of each rank
        self.seen: dict[int, Heard] = {}  # the last beat of each watched rank
        self.is_looking = False
        # The first beat that was read of each rank that is not watched, while this rank looks.
        self.first_look: dict[int, Heard] = {}
        if store is not None:
            # The key has to exist, so that `read` can ask for it together with the states.
            store.compare_set(FAILURE, "", "")
            # A table of the ranks of each host: on/<machine> is their number, and
            # on/<machine>/0, on/<machine>/1, ... are the ranks. `add` returns the new number.
            self.place = store.add(f"on/{self.machine}", 1) - 1  # index among the ranks of its host
            store.set(f"on/{self.machine}/{self.place}", str(rank))

    # ---- Writing and reading -----------------------------------------------------------------

    def publish(self, state: State) -> None:
        """Write the next beat of this rank. state: see `Watchdog._own_state`."""
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
        # One request for the failure and all watched states.
        keys = [FAILURE]
        for rank in watched:
            keys.append(f"beat/{rank}")
        failure, *texts = self.store.multi_get(keys)
        for rank, text in zip(watched, texts, strict=True):
            state = read_state(rank, text)
            self._refuse_another_process(rank, state)
            self.states[rank] = state
            # An unchanged number is no new beat: its time stays the time of the first reading.
            last = self.seen.get(rank)
            if last is None or last.beat != state["beat"]:
                self.seen[rank] = Heard(state["beat"], self.clock.now())
        return read_failure(failure, self.world_size)

    def _refuse_another_process(self, rank: int, state: State) -> None:
        """Raise ForeignValueError if the beat comes from another process than the beats before."""
        known = self.states.get(rank)
        if known is None:
            return
        if known["pid"] != state["pid"] or known["machine"] != state["machine"]:
            raise foreign(f"beat/{rank}")

    def _ranks_to_watch(self, store: Store) -> list[int]:
        """Return rank 0, which may host the store, the next rank, and the next rank on this host.

        Only from the same host can the end of a process be seen. The last rank is followed by the
        first, so that every rank is watched.
        """
        count_on_host = store.add(f"on/{self.machine}", 0)  # adding 0 reads the number
        next_place = (self.place + 1) % count_on_host
        key = f"on/{self.machine}/{next_place}"
        next_on_host = _rank_in(key, store.get(key), self.world_size)
        next_rank = (self.rank + 1) % self.world_size
        watched = {0, next_rank, next_on_host}
        watched.discard(self.rank)
        return sorted(watched)

    # ---- Judging -----------------------------------------------------------------------------

    def verdict(self, stall_s: float | None) -> Verdict | None:
        """Return what stops the run, or None if nothing does.

        A watched rank is DEAD if its process is gone, and SILENT if it does not beat. If this rank
        has been too long in its phase, it looks for the rank that the others wait for, which is
        STUCK or SILENT.

        All seconds are those of AwakeClocks. So a rank is late only by the time in which its
        observer ran: a run that is suspended as a whole ages by one slice, a rank that is stopped
        alone falls silent.

        stall_s: seconds without a beat after which a rank is silent. None before the watch has
            begun, when only the end of a process counts.
        """
        dead_or_silent = self._dead_or_silent(stall_s)
        if dead_or_silent is not None:
            return dead_or_silent
        own = self.states[self.rank]
        # A budget of 0 says that the phases have no limits yet.
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
        """Return a watched rank that is DEAD, else the first that is SILENT, else None."""
        now = self.clock.now()
        silent = None
        for rank, last in self.seen.items():
            state = self.states[rank]
            if is_gone(state):
                return Verdict(rank, "DEAD", f"its process {state['pid']} is gone")
            # A rank with a budget of 0 is not watched yet: it may still be loading libraries.
            if silent is None and stall_s is not None and state["budget"]:
                silent_s = now - last.when
                # The last beat may have come just before the one that is missing.
                if silent_s > stall_s - BEAT_S:
                    silent = Verdict(rank, "SILENT", f"no beat for {silent_s:.1f} s")
        return silent

    def _may_look(self, store: Store) -> bool:
        """Whether this rank is the one that looks for the cause. The first one to ask is."""
        if not self.is_looking:
            # compare_set writes if the key is empty, and returns what the key then holds.
            mine = str(self.rank)
            self.is_looking = store.compare_set(LOOKING, "", mine).decode() == mine
        return self.is_looking

    def _cause_of_wait(self, quiet_s: float) -> Verdict | None:
        """Return the rank that the others wait for, or None if it is not known yet.

        The others wait for a rank among those that entered the fewest collectives: the one that is
        longest over its budget.

        quiet_s: seconds without a beat after which a rank is silent.
        """
        if not all(state["budget"] for state in self.states.values()):
            return None  # a rank has not called `watch` yet
        fewest = min(state["syncs"] for state in self.states.values())
        latest = None
        most_over = 0.0
        # From the highest rank down, so that of two ranks that are equally late the higher counts.
        for rank in sorted(self.states, reverse=True):
            state = self.states[rank]
            over = state["age"] - state["budget"]
            if state["syncs"] == fewest and over > most_over:
                latest = rank
                most_over = over
        if latest is None:
            return None
        return self._stuck_or_silent(latest, quiet_s)

    def _stuck_or_silent(self, rank: int, quiet_s: float) -> Verdict | None:
        """Tell whether `rank` is stuck, or waits for a silent rank. Returns None if not known yet.

        The age that a rank published does not grow after the rank fell silent. So the oldest rank
        may be one that waits for a silent rank, which entered as few collectives.
        """
        now = self.clock.now()
        all_are_known = True
        for other, state in self.states.items():
            if other in (rank, self.rank) or state["syncs"] != self.states[rank]["syncs"]:
                continue
            if other in self.seen:
                last = self.seen[other]
            else:
                # A rank that is not watched has been read for the first time just now, or at an
                # earlier look. Only a beat with a new number shows that it is alive.
                last = self.first_look.setdefault(other, Heard(state["beat"], now))
                if last.beat != state["beat"]:
                    continue  # heard since the first look
                all_are_known = False
            silent_s = now - last.when
            if silent_s > quiet_s:
                return Verdict(other, "SILENT", f"no beat for {silent_s:.1f} s")
        if all_are_known:
            return Verdict(rank, "STUCK", f"{self.states[rank]['age']:.1f} s")
        return None

    def stop_looking(self) -> None:
        """Let another rank look for the cause."""
        if self.is_looking and self.store is not None:
            self.store.compare_set(LOOKING, str(self.rank), "")
            self.is_looking = False
            self.first_look.clear()


# ---- The beats of all ranks, and the failure -------------------------------------------------


def read_states(store: Store, world_size: int) -> dict[int, State]:
    """Return the last beat of each rank. All ranks have met, so each has one."""
    values = store.multi_get([f"beat/{rank}" for rank in range(world_size)])
    return {rank: read_state(rank, value) for rank, value in enumerate(values)}


def claim_failure(store: Store, failure: Failure, world_size: int) -> Failure | None:
    """Note the first failure of the run. Returns None if it is this one, else the earlier one."""
    mine = write_failure(failure)
    # Writes if there is no failure yet, and returns what the key then holds.
    noted = store.compare_set(FAILURE, "", mine).decode()
    if noted == mine:
        return None
    return read_failure(noted, world_size)


def is_gone(state: State) -> bool:
    """Whether the rank's process ran on this machine and is gone."""
    is_here = state["machine"] == process.machine()
    # None: there is no such process. Z, X: it has ended, and its parent has not noticed yet.
    return is_here and process.process_state(state["pid"]) in (None, "Z", "X")


def where(state: State) -> str:
    """Return the place of a rank in the run, e.g. 'phase "forward" at step 120'."""
    return f'phase "{state["phase"]}" at step {state["step"]}'


def _rank_in(key: str, value: bytes, world_size: int) -> int:
    """Return the rank that the store names under `key`.

    Raises ForeignValueError if `value` is no rank of this run.
    """
    try:
        rank = int(value)
    except ValueError as e:
        raise foreign(key) from e
    if rank not in range(world_size):
        raise foreign(key)
    return rank

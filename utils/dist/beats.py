"""The beats of the ranks, and what they tell of the run: which rank is dead, silent or stuck.

A *beat* is a record that a rank writes into the key-value store of the run, every half second:

    key    beat/3
    value  {"beat": 512, "phase": "forward", "step": 120, "age": 0.4, "budget": 300.0,
            "syncs": 2210, "pid": 4711, "machine": ..., "host": ..., "facts": ...}

    beat            number of this beat: 1, 2, ...
    phase, step     what the main thread does, and the number of optimizer steps so far
    age             seconds that the main thread has spent in its phase
    budget          limit of the phase in seconds; 0 as long as the phases have no limits
    syncs           number of collectives that the rank has entered
    pid, host       process id and host name of the rank
    machine         an id of the host, and of the container on it (`process.machine`)
    facts           what the rank has told with `utils.dist.state.tell`, e.g. its samples

The newest record of a rank is called the *state* of this rank.

A rank makes two requests to the store for a beat, whatever the number of ranks. With the first, the
rank writes its own state. With the second, the rank reads the failure that ends the run, and the
states of the ranks that it *watches*: rank 0, the next rank, and the next rank on its host. If some
ranks fall silent, at least one of them is watched by a rank that still beats.

To find the rank that the others wait for, a rank needs the states of all ranks: it *looks* for the
cause. This request grows with the number of ranks. So only one rank at a time looks, and only if it
has been too long in a phase itself.

Seconds are measured on the AwakeClock of the rank that judges, which stands still while the process
is suspended. So the clocks of the hosts need not agree, and a pause of the whole run makes no rank
late.

`Watchdog.beat_once` (utils.dist.watchdog) calls `publish`, `read` and `verdict` with each beat.

What must stay:

    the number of requests of a rank does not grow with the number of ranks
        test_in_a_turn_a_rank_writes_one_key_and_reads_once
        test_in_a_turn_a_rank_reads_at_most_four_keys_however_many_ranks_there_are
    one rank is named, and it is the cause
        test_a_host_that_falls_silent_is_named_once
        test_a_rank_that_is_waited_for_is_named_once

Free to change: keys and records, together with `store_values.read_state`, because all ranks of a
run have the same version of this program.

Tests: tests/faults/test_scale.py, tests/faults/test_stalls.py.
"""

from typing import NamedTuple

from torch.distributed import Store

from utils.dist import process
from utils.dist.awake_clock import AwakeClock
from utils.dist.rendezvous import MET
from utils.dist.store_values import (
    Failure,
    State,
    foreign_value,
    read_failure,
    read_state,
    write_failure,
    write_state,
)

# Store key: the first failure of the run. Empty while there is none.
FAILURE = "failure"
# Store key: the rank that reads all states. Empty while no rank does.
LOOKING = "looking"
# Seconds without a beat after which a rank that looks for the cause takes another rank for silent.
# A rank that beats is heard within 2.2 s, even on a host with eight processes for each core. With a
# smaller value, a busy host could look silent; a larger value delays the report. Another limit says
# when a silent rank ends the run: stall_s (`_dead_or_silent`).
QUIET_S = 3.0
# Seconds between two beats. If stall_s is below 3 s, `Watchdog.watch` makes them come faster.
BEAT_S = 0.5


class Verdict(NamedTuple):
    """Why the run has to stop, e.g. (3, "SILENT", "no beat for 9.1 s")."""

    rank: int  # the rank because of which the run stops
    kind: str  # "STUCK" (too long in a phase), "SILENT" (no beat) or "DEAD" (no process)
    what: str  # what was seen, for the report


class Heard(NamedTuple):
    """A beat of another rank, and when this rank first read it."""

    beat: int  # number of the beat
    when: float  # time of the first reading, on the clock of this rank


class Beats:
    """The beats that one rank writes and reads."""

    def __init__(
        self, rank: int, world_size: int, store: Store | None, machine_name: str = ""
    ) -> None:
        """rank: number of this rank.
        world_size: number of ranks.
        store: the key-value store of the run, or None in a single process.
        machine_name: name of a simulated host, in tests. Empty for the real host.
        """
        self.rank = rank
        self.world_size = world_size
        self.store = store
        self.machine = machine_name or process.machine()
        self.number = 0  # number of the last beat of this rank
        # This clock loses time if `now` is called less than once a second. `Watchdog.watch` sets
        # slice_s to two intervals of its beats.
        self.clock = AwakeClock(slice_s=1.0)
        self.watched: list[int] | None = None  # ranks to watch; None until all ranks have met
        self.states: dict[int, State] = {}  # rank -> its newest known state
        self.heard: dict[int, Heard] = {}  # watched rank -> its last beat
        self.is_looking = False  # whether this rank looks for the cause of a wait
        # For ranks that this rank does not watch: rank -> the beat that was read when this rank
        # began to look. Empty while this rank does not look.
        self.first_look: dict[int, Heard] = {}
        if store is not None:
            # `multi_get` in `read` waits for a key that does not exist, so create the key with an
            # empty value. If a rank has already written a failure, compare_set leaves it.
            store.compare_set(FAILURE, "", "")
            # The store also has a list of the ranks of each host: the key on/<machine> is the
            # length of the list, and on/<machine>/0, on/<machine>/1, ... are its ranks. `add`
            # returns the new length. The index of this rank in the list follows from the order of
            # arrival.
            self.index_on_host = store.add(f"on/{self.machine}", 1) - 1
            store.set(f"on/{self.machine}/{self.index_on_host}", str(rank))

    # ---- Writing and reading -----------------------------------------------------------------

    def publish(self, state: State) -> None:
        """Write the next beat of this rank. state: the beat without its number and machine."""
        self.number += 1
        self.states[self.rank] = {"beat": self.number, "machine": self.machine, **state}
        if self.store is not None:
            self.store.set(f"beat/{self.rank}", write_state(self.rank, self.states[self.rank]))

    def read(self) -> Failure | None:
        """Read the states of the watched ranks. Returns the failure that ends the run, or None.

        Raises ForeignValueError if the store holds something that no rank of the run wrote.
        """
        if self.store is None:
            return None
        # MET is the key that is set when all ranks have met. Before, a rank may have no beat yet.
        if self.watched is None and self.store.check([MET]):
            self.watched = self._ranks_to_watch(self.store)
        watched_ranks = self.watched or []
        # One request for the failure and all watched states. The first value is the failure.
        keys = [FAILURE]
        for rank in watched_ranks:
            keys.append(f"beat/{rank}")
        values = self.store.multi_get(keys)
        failure = values[0]
        beats = values[1:]
        for rank, beat in zip(watched_ranks, beats, strict=True):
            state = read_state(rank, beat)
            self._refuse_another_process(rank, state)
            self.states[rank] = state
            # If the number has not changed, this is the beat that was read before, and the time of
            # its first reading stays.
            last = self.heard.get(rank)
            if last is None or last.beat != state["beat"]:
                self.heard[rank] = Heard(state["beat"], self.clock.now())
        return read_failure(failure, self.world_size)

    def _refuse_another_process(self, rank: int, state: State) -> None:
        """Raise ForeignValueError if the beat comes from another process than earlier beats did.

        A rank is one process for the whole run, so somebody else has written such a beat.
        """
        earlier_state = self.states.get(rank)
        if earlier_state is None:
            return
        has_same_pid = earlier_state["pid"] == state["pid"]
        if not has_same_pid or earlier_state["machine"] != state["machine"]:
            raise foreign_value(f"beat/{rank}")

    def _ranks_to_watch(self, store: Store) -> list[int]:
        """Return the ranks that this rank watches, in order.

        * Rank 0, because it may host the store.
        * The next rank. The last rank watches the first one, so that every rank is watched.
        * The next rank on this host, because the end of a process can be seen only on its host.
        """
        count_on_host = store.add(f"on/{self.machine}", 0)  # adding 0 reads the number
        # The remainder (%) leads from the last rank back to the first one, e.g. 7 + 1 to 0 of 8.
        next_index = (self.index_on_host + 1) % count_on_host
        key = f"on/{self.machine}/{next_index}"
        next_on_host = _rank_in(key, store.get(key), self.world_size)
        next_rank = (self.rank + 1) % self.world_size
        ranks_to_watch = {0, next_rank, next_on_host}
        ranks_to_watch.discard(self.rank)
        return sorted(ranks_to_watch)

    # ---- Judging -----------------------------------------------------------------------------

    def verdict(self, stall_s: float | None) -> Verdict | None:
        """Return the reason for which the run has to stop, or None if there is none.

        A watched rank is DEAD if its process is gone, and SILENT if it does not beat. If this rank
        has been too long in its phase, it looks for the rank that the others wait for, which is
        STUCK or SILENT.

        Seconds count only while this process runs (AwakeClock). If the whole run is suspended for
        an hour, the clock counts at most `slice_s` of the hour, e.g. 1 s. If one rank alone is
        suspended, the others see it fall silent.

        stall_s: seconds without a beat after which a rank is silent. None before `Watchdog.watch`:
            then only the end of a process counts.
        """
        dead_or_silent = self._dead_or_silent(stall_s)
        if dead_or_silent is not None:
            return dead_or_silent
        own = self.states[self.rank]
        # A budget of 0 says that the phases have no limits yet.
        has_budget = own["budget"] > 0
        is_late = stall_s is not None and has_budget and own["age"] > own["budget"]
        if not is_late:
            # This rank may have been late before. Then it still holds the key LOOKING, so let
            # another rank look.
            self.stop_looking()
            return None
        # This rank has been too long in its phase. It looks for the cause, unless another rank
        # already does. A single process has no store, and is the cause itself.
        if self.store is not None:
            if not self._may_look(self.store):
                return None
            self.states.update(read_states(self.store, self.world_size))
        # If stall_s is below 6 s, e.g. 2 s in a test, QUIET_S is too long: the silent rank must be
        # found before stall_s is over. In half of stall_s, a rank beats at least three times: with
        # stall_s 2, `Watchdog.watch` makes it beat every third of a second, and not every BEAT_S.
        quiet_s = min(QUIET_S, stall_s / 2)
        return self._cause_of_wait(quiet_s)

    def _dead_or_silent(self, stall_s: float | None) -> Verdict | None:
        """Return a watched rank that is DEAD, else the first that is SILENT, else None."""
        now = self.clock.now()
        silent = None
        for rank, last in self.heard.items():
            state = self.states[rank]
            if is_gone(state):
                return Verdict(rank, "DEAD", f"its process {state['pid']} is gone")
            # A rank with a budget of 0 has no limits yet: it may still be loading libraries.
            has_limits = state["budget"] > 0
            if silent is None and stall_s is not None and has_limits:
                # This rank reads beats every BEAT_S. So the last beat may have been written BEAT_S
                # before it was read, and the rank is silent for up to silent_s + BEAT_S.
                silent_s = now - last.when
                if silent_s > stall_s - BEAT_S:
                    silent = Verdict(rank, "SILENT", f"no beat for {silent_s:.1f} s")
        return silent

    def _may_look(self, store: Store) -> bool:
        """Whether this rank looks for the cause. The first rank that asks gets True, others False.

        The rank looks until it calls `stop_looking`.
        """
        if not self.is_looking:
            # compare_set writes if the key is empty, and returns what the key then holds. The bytes
            # are compared, because a stranger may have written something that is no text.
            own_number = str(self.rank)
            looking_rank = store.compare_set(LOOKING, "", own_number)
            self.is_looking = looking_rank == own_number.encode()
        return self.is_looking

    def _cause_of_wait(self, quiet_s: float) -> Verdict | None:
        """Return the rank that the others wait for, or None if it is not known yet.

        A collective ends only when every rank has entered it. So the ranks wait for the ranks that
        have entered the fewest collectives. Of these, the rank that is longest over its budget is
        the cause. E.g. with

            rank   syncs   age   budget
            0      2211    290   300       in an all_reduce
            1      2210    312   300       in its forward pass: the cause

        quiet_s: seconds without a beat after which a rank is silent.
        """
        # A budget of 0: a rank has not called `watch` yet, so it may still be loading libraries.
        if not all(state["budget"] for state in self.states.values()):
            return None
        fewest_collectives = min(state["syncs"] for state in self.states.values())
        latest_rank = None
        most_over_s = 0.0
        # If two ranks are equally late, the higher rank is taken. Any fixed order would do: it
        # makes two looks name the same rank.
        for rank in sorted(self.states, reverse=True):
            state = self.states[rank]
            over_s = state["age"] - state["budget"]
            if state["syncs"] == fewest_collectives and over_s > most_over_s:
                latest_rank = rank
                most_over_s = over_s
        if latest_rank is None:
            return None
        return self._stuck_or_silent(latest_rank, quiet_s)

    def _stuck_or_silent(self, rank: int, quiet_s: float) -> Verdict | None:
        """Tell whether `rank` is stuck, or waits for a silent rank. Returns None if not known yet.

        `rank` has the largest age. But a silent rank writes no beats, so the age in its last beat
        stays small, although `rank` may be waiting for it. The silent rank then has entered as few
        collectives as `rank`. Such ranks are the candidates. E.g. with `rank` 2 and quiet_s 3:

            rank   syncs   age   last beat read
            2      2210    312   0.4 s ago       `rank`: it waits in an all_reduce
            4      2211    300   0.3 s ago       no candidate: it has entered one collective more
            5      2210    0.2   9.1 s ago       candidate, silent: the result names rank 5
            6      2210    0.3   0.2 s ago       candidate that beats: it is not the cause

        Without rank 5, the result is that rank 2 is STUCK: all candidates beat.

        A candidate that this rank does not watch shows only the number of its beat, and not when
        the beat came. So two looks are compared. E.g.

            first look   beat 512    noted in `first_look`; nothing is known yet
            next look    beat 513    another number: the candidate beats
               or        beat 512    the same number: silent, as soon as quiet_s have passed

        Test: test_a_rank_that_falls_silent_after_the_others_began_to_wait_is_named.
        """
        now = self.clock.now()
        all_are_known = True  # whether every candidate is known to beat
        for other, state in self.states.items():
            # `rank` is no candidate for itself. This rank (self.rank) runs, so it is not silent.
            if other in (rank, self.rank):
                continue
            is_candidate = state["syncs"] == self.states[rank]["syncs"]
            if not is_candidate:
                continue
            is_watched = other in self.heard
            if is_watched:
                last = self.heard[other]
            else:
                # `setdefault` notes the beat at the first look, and returns this note later.
                last = self.first_look.setdefault(other, Heard(state["beat"], now))
                if last.beat != state["beat"]:
                    continue  # another number: the candidate beats
            silent_s = now - last.when
            if silent_s > quiet_s:
                return Verdict(other, "SILENT", f"no beat for {silent_s:.1f} s")
            # The same number as at the first look, but not for quiet_s yet: look again later.
            if not is_watched:
                all_are_known = False
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
    """Return the last beat of each rank. Call this only after all ranks have met: each has a beat.

    Before, `multi_get` would wait for the beats that are missing.
    """
    values = store.multi_get([f"beat/{rank}" for rank in range(world_size)])
    return {rank: read_state(rank, value) for rank, value in enumerate(values)}


def claim_failure(store: Store, failure: Failure, world_size: int) -> Failure | None:
    """Note `failure` as the failure that ends the run, unless another failure was noted before.

    Returns None if `failure` is the first one: the caller then reports it. Otherwise returns the
    earlier failure.
    """
    own_text = write_failure(failure)
    # compare_set writes if the key is empty, and returns what the key then holds, as bytes.
    first_value = store.compare_set(FAILURE, "", own_text)
    if first_value == own_text.encode():
        return None
    return read_failure(first_value, world_size)


def is_gone(state: State) -> bool:
    """Return whether the process of a rank is gone. Always False for a rank of another host.

    state: the last beat of the rank.
    """
    is_here = state["machine"] == process.machine()
    # None: there is no such process. Z, X: the process has ended, and its parent has not noticed.
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
        raise foreign_value(key) from e
    if rank not in range(world_size):
        raise foreign_value(key)
    return rank

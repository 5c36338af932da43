"""Write the beats of this rank into the store of the run, and read the beats of other ranks.

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

For each beat, a rank makes two requests to the store, whatever the number of ranks:

    `publish`   writes the state of this rank
    `read`      reads the states of the ranks that this rank *watches*, and the failure, if a rank
                has failed

A rank watches three ranks: rank 0, the next rank, and the next rank on its host. The last rank
watches rank 0, so the ranks form a ring, in which each rank is watched by the rank before it. E.g.
if ranks 3 and 4 of 8 stop beating, rank 2 still beats, and sees that rank 3 has stopped.

`Watchdog.beat_once` (utils.dist.watchdog_thread) calls `publish` and `read` with each beat. Then it
asks `Judge.verdict` (verdict.py) what the beats tell.

What must stay:

    the number of requests of a rank does not grow with the number of ranks
        test_in_a_turn_a_rank_writes_one_key_and_reads_once
        test_in_a_turn_a_rank_reads_at_most_four_keys_however_many_ranks_there_are

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

# Store key: the first failure of the run. Empty while no rank has failed.
FAILURE = "failure"
# Seconds between two beats, chosen by hand. If stall_s is below 3 s, `Watchdog.watch` makes the
# beats come faster. POLL_S (status.py) must stay longer than this time.
BEAT_S = 0.5


class Heard(NamedTuple):
    """A beat of another rank, and when this rank first read it."""

    beat: int  # number of the beat
    when: float  # time of the first reading, on the clock of this rank


class Beats:
    """The beats that one rank writes and reads: records of the state of a rank in the store."""

    def __init__(
        self, rank: int, world_size: int, store: Store | None, machine_name: str = ""
    ) -> None:
        """Begin with no beat. If there is a store, join the list of the ranks of this host there.

        rank: number of this rank.
        world_size: number of ranks.
        store: the key-value store of the run, or None in a single process.
        machine_name: name of a simulated host, in tests. Empty for the real host.
        """
        self.rank = rank
        self.world_size = world_size
        self.store = store
        self.machine = machine_name or process.machine()
        self.number = 0  # number of the last beat of this rank
        # This clock nearly stands still while the process is suspended, because it counts at most
        # slice_s between two calls of `now`. Each beat calls `now`, so twice the time between beats
        # is enough.
        # `Watchdog.watch` sets slice_s again if it changes this time.
        self.clock = AwakeClock(slice_s=2 * BEAT_S)
        self.watched: list[int] | None = None  # ranks to watch; None until all ranks have met
        self.states: dict[int, State] = {}  # rank -> its newest known state
        self.heard: dict[int, Heard] = {}  # watched rank -> its last beat
        if store is not None:
            # `read` would wait for a key that does not exist, so create the key with an empty
            # value. If a rank has already written a failure, compare_set does not replace it.
            store.compare_set(FAILURE, "", "")
            # Only `_ranks_to_watch` uses this index. A single process has no index, because it
            # watches nobody.
            self.index_on_host = self._join_host(store)

    def _join_host(self, store: Store) -> int:
        """Add this rank to the list of the ranks of its host. Returns its index in this list.

        A rank watches the next rank of this list. The ranks stand in the list in the order in which
        they arrive. E.g. rank 4 arrived first, and then rank 6:

            on/<machine>     2, the length of the list
            on/<machine>/0   4
            on/<machine>/1   6
        """
        new_length = store.add(f"on/{self.machine}", 1)
        index = new_length - 1
        store.set(f"on/{self.machine}/{index}", str(self.rank))
        return index

    # ---- Writing and reading -----------------------------------------------------------------

    def publish(self, state: State) -> None:
        """Write the next beat of this rank.

        state: the beat without its number and machine.
        """
        self.number += 1
        own_state = {"beat": self.number, "machine": self.machine, **state}
        self.states[self.rank] = own_state
        if self.store is not None:
            self.store.set(f"beat/{self.rank}", write_state(self.rank, own_state))

    def read(self) -> Failure | None:
        """Read the states of the watched ranks. Returns the failure that ends the run, or None.

        Raises ForeignValueError if the store holds something that no rank of the run wrote.
        """
        if self.store is None:
            return None
        # The key MET exists when all ranks have met. From then on every rank has a beat.
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
            # If the number has not changed, this is the same beat as before, and the time of its
            # first reading stays. E.g. beat 512 is read at 10.0 s and at 10.5 s: `heard` keeps
            # 10.0 s. `Judge` (verdict.py) counts the silence of the rank from this time.
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

        E.g. rank 2 of 8 watches rank 0, rank 3, and the rank that arrived after it on its host.
        """
        count_on_host = store.add(f"on/{self.machine}", 0)  # adding 0 reads the number
        # The remainder (%) leads from the last rank to the first rank, e.g. (7 + 1) % 8 = 0.
        next_index = (self.index_on_host + 1) % count_on_host
        key = f"on/{self.machine}/{next_index}"
        next_on_host = _rank_in(key, store.get(key), self.world_size)
        next_rank = (self.rank + 1) % self.world_size
        ranks_to_watch = {0, next_rank, next_on_host}
        ranks_to_watch.discard(self.rank)
        return sorted(ranks_to_watch)


# ---- The beats of all ranks, and the failure -------------------------------------------------


def read_states(store: Store, world_size: int) -> dict[int, State]:
    """Return rank -> its last beat. Call this only after all ranks have met.

    Before all ranks have met, some ranks may have no beat, and `multi_get` would wait for it.
    """
    # `multi_get` returns the values in the order of the keys, so value 0 is the beat of rank 0.
    values = store.multi_get([f"beat/{rank}" for rank in range(world_size)])
    return {rank: read_state(rank, value) for rank, value in enumerate(values)}


def claim_failure(store: Store, failure: Failure, world_size: int) -> Failure:
    """Write `failure` into the store, unless the store has a failure. Returns the failure there.

    Several ranks may call this at nearly the same time, each with its own failure. All of them get
    the same result, the first failure. The rank whose own failure is the result reports it.

    Raises ForeignValueError if the store holds something that no rank of the run wrote.
    """
    own_text = write_failure(failure)
    # compare_set writes if the key is empty, and returns what the key then holds, as bytes.
    first_value = store.compare_set(FAILURE, "", own_text)
    if first_value == own_text.encode():
        return failure
    first_failure = read_failure(first_value, world_size)
    assert first_failure is not None  # None would mean an empty key
    return first_failure


def is_gone(state: State) -> bool:
    """Return whether the process of a rank is gone. Returns False for a rank of another host.

    state: the last beat of the rank.
    """
    is_here = state["machine"] == process.machine()
    # `process_state` returns None if there is no such process. Z and X mean that the process has
    # ended. The system still lists it, because its parent has not asked for its exit code yet.
    return is_here and process.process_state(state["pid"]) in (None, "Z", "X")


def where(state: State) -> str:
    """Return the place of a rank in the run, e.g. 'phase "forward" at step 120'."""
    return f'phase "{state["phase"]}" at step {state["step"]}'


def _rank_in(key: str, value: bytes, world_size: int) -> int:
    """Return the rank that the store names under `key`.

    Raises ForeignValueError if `value` is not a rank of this run.
    """
    try:
        rank = int(value)
    except ValueError as e:
        raise foreign_value(key) from e
    if rank not in range(world_size):
        raise foreign_value(key)
    return rank

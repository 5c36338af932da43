"""A barrier through the store of the run, at which each rank says whether it has failed.

`utils_dist.all_ranks_or_none` uses it, because it works before there is a process group.

What must stay: the requests of a rank and their order
(test_each_request_of_a_start_is_for_one_key).

Tests: tests/dist/test_dist.py, tests/faults/test_startup.py, tests/faults/test_scale.py.
"""

from typing import NamedTuple

from torch.distributed import Store

from utils.dist.store_values import FAILURE_CODES, foreign_value, seal, unseal
from utils.dist.waiting import wait_for


class FailedRank(NamedTuple):
    """A rank that reported a failure at a `Round`."""

    rank: int
    code: int  # its exit code


class Round:
    """A barrier at which each rank reports success or failure.

    Each rank calls `arrive`, and then `wait`. Once all have arrived, `wait` returns the same
    outcome on all ranks. The keys of a round named "round/7":

        round/7/arrived   number of ranks that have arrived
        round/7/failed    "3 2": rank 3 failed with exit code 2, and no lower rank failed; empty if
                          no rank failed
        round/7/over      present when all ranks have arrived
    """

    def __init__(self, store: Store, name: str, rank: int, world_size: int) -> None:
        """Prepare a round. Nothing is written before `arrive`.

        name: name of this round. It is the same on all ranks, and no other round has it.
        store: the key-value store of the run.
        rank: number of this rank.
        world_size: number of ranks that must arrive.
        """
        self.store = store
        self.rank = rank
        self.world_size = world_size
        self.arrived_key = f"{name}/arrived"
        self.failed_key = f"{name}/failed"
        self.over_key = f"{name}/over"

    def arrive(self, code: int | None = None) -> None:
        """Report success or failure, and count this rank as arrived.

        The failure must be in the store before this rank counts as arrived, because the other ranks
        read the outcome as soon as the last rank has arrived. The store keeps the lowest rank that
        failed. E.g. the ranks 5, 2 and 3 fail, in this order, with exit code 1:

            rank 5   finds ""      writes "5 1"
            rank 2   finds "5 1"   writes "2 1"
            rank 3   finds "2 1"   writes nothing

        code: the exit code if this rank failed, or None if it did not.
        """
        # A rank without a failure writes "". If no rank wrote the key, `get` in `wait` would wait
        # for it.
        own_value = ""
        if code is not None:
            # `seal` adds a proof that a rank of this run wrote the value.
            own_value = seal(self.failed_key, f"{self.rank} {code}")
        # compare_set(key, expected, new) writes `new` if the key holds `expected`, and returns what
        # the key then holds.
        value = self.store.compare_set(self.failed_key, "", own_value)
        if own_value:
            # Replace the failure of a higher rank. If another rank replaces it at the same time,
            # compare_set writes nothing, and returns the failure of the other rank. The next turn
            # of the loop compares this rank with the other rank.
            failure = self._failure(value)
            while failure is not None and failure.rank > self.rank:
                value = self.store.compare_set(self.failed_key, value.decode(), own_value)
                failure = self._failure(value)
        arrived_count = self.store.add(self.arrived_key, 1)  # adds 1, and returns the new number
        if arrived_count == self.world_size:  # this rank is the last one
            self.store.set(self.over_key, "1")

    def wait(self, seconds: float = float("inf")) -> FailedRank | None:
        """Wait until all ranks have arrived, or the time is over. Call `arrive` before.

        Returns the lowest rank that has failed so far, or None if none has failed. If the time is
        over first, a failure of a rank that comes later is missing.
        """
        wait_for(self.store, self.over_key, seconds)
        return self._failure(self.store.get(self.failed_key))

    def _failure(self, value: bytes) -> FailedRank | None:
        """Return the failure that `arrive` noted, or None for an empty value.

        value: what the store holds under the key <name>/failed, e.g. b"3 2".

        Raises ForeignValueError if no rank of the run wrote the value.
        """
        if not value:
            return None
        try:
            rank_text, code_text = unseal(self.failed_key, value).split()
            rank = int(rank_text)
            code = int(code_text)
        except ValueError as e:  # not two words, or no numbers
            raise foreign_value(self.failed_key) from e
        if rank not in range(self.world_size) or code not in FAILURE_CODES:
            raise foreign_value(self.failed_key)
        return FailedRank(rank, code)

"""Let all ranks agree on a value, or on whether a block has succeeded. If they differ, all end.

    check_same_on_all_ranks   compares a value of every rank, through a collective
    all_ranks_or_none         runs a block; if it fails on any rank, every rank ends

Both are collective: every rank calls them, in the same order.

The rank that failed reports its error. The other ranks end by the exception `PeerFailed`, for which
utils/dist/failure.py reports nothing, so a user reads one error and not one of each rank.

What must stay: every rank arrives exactly once in each round (utils/dist/round.py), even if it has
failed. All ranks end with one exit code.

Tests: test_an_error_ends_all_ranks_with_one_message_and_one_code (tests/dist/test_dist.py),
tests/faults/test_startup.py.
"""

from collections import defaultdict
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from utils.dist import watchdog
from utils.dist.collectives import gather_objects
from utils.dist.identity import get_rank, get_world_size
from utils.dist.round import FailedRank, Round
from utils.dist.state import RUN
from utils.errors import DistError


def check_same_on_all_ranks(
    name: str, value: Any, do: str = "start all ranks from the same files"
) -> None:
    """Raise DistError, on all ranks, if `value` differs between ranks.

    Collective: every rank must call it.

    name: what the value is, as the plural subject of the error, e.g. "the options".
    value: a value of the types of `gather_objects`.
    do: the advice of the error.
    """
    values = gather_objects(value)
    if all(other == values[0] for other in values):
        return
    # Equal values are listed together, e.g. "rank 0, 1, 3: 'a'; rank 2: 'b'".
    ranks_of_value: dict[str, list[str]] = defaultdict(list)
    for rank, other in enumerate(values):
        ranks_of_value[repr(other)].append(str(rank))
    groups = []
    for text, rank_numbers in ranks_of_value.items():
        groups.append(f"rank {', '.join(rank_numbers)}: {text}")
    raise DistError(
        what=f"{name} differ between the ranks",
        where="; ".join(groups),
        expected="the same on all ranks",
        do=do,
    )


class PeerFailed(BaseException):
    """The exception on this rank if another rank has failed. This rank ends without a message.

    It is a BaseException, so that no `except Exception` of a caller swallows it.
    """

    def __init__(self, exit_code: int) -> None:
        super().__init__(exit_code)
        self.exit_code = exit_code  # the exit code of the lowest rank that has failed


# Seconds that a failed rank waits for lower ranks, which may have failed at the same time
# (`all_ranks_or_none`). If a lower rank fails later than this, the higher rank reports. Chosen by
# hand.
WAIT_FOR_LOWER_RANKS_S = 5.0


@contextmanager
def all_ranks_or_none() -> Generator[None]:
    """Run the block on every rank. If any rank fails in it, all ranks end.

    Collective: every rank must enter the block. The lowest rank that failed reports its error. E.g.
    if ranks 2 and 3 of 4 fail:

        rank 2         raises its own error, which is then reported
        rank 3         raises PeerFailed in place of its own error
        ranks 0 and 1  raise PeerFailed after their blocks

    The ranks exchange success or failure through the store, because the block may run before there
    is a process group.
    """
    if get_world_size() == 1 or RUN.store is None:
        yield
        return
    # A Round is one meeting of all ranks in the store: each rank arrives, with its exit code if it
    # has failed, and can wait until all ranks have arrived. All ranks make the same calls, so the
    # number of the call gives the round the same name on all ranks. RUN (state.py) holds the store,
    # and the number of calls so far.
    RUN.rounds += 1
    meeting = Round(RUN.store, f"round/{RUN.rounds}", get_rank(), get_world_size())
    try:
        yield
    except Exception as e:
        code = getattr(e, "exit_code", 1)  # errors of utils/errors.py have a code; others mean 1
        meeting.arrive(code)
        # A lower rank may have failed as well, and then the lower rank reports. So wait until all
        # ranks have arrived, but at most WAIT_FOR_LOWER_RANKS_S. Rank 0 has no lower rank, so it
        # does not wait.
        if get_rank() > 0:
            # The lowest rank that failed so far, with its exit code. If this lowest rank is another
            # rank, this rank ends by PeerFailed. If it is this rank, this rank raises its own error
            # below.
            lowest_failure = meeting.wait(WAIT_FOR_LOWER_RANKS_S)
            own_failure = FailedRank(get_rank(), code)
            if lowest_failure is not None and lowest_failure != own_failure:
                raise PeerFailed(lowest_failure.code) from e
        raise  # the error of this rank itself, which is then reported
    meeting.arrive()
    with watchdog.collective("the other ranks"):
        # This wait has no time limit. If a rank never arrives, because it has failed outside of the
        # block, the watchdog ends this rank.
        lowest_failure = meeting.wait()
    if lowest_failure is not None:
        raise PeerFailed(lowest_failure.code)

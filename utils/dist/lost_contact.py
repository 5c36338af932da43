"""Tell whether another rank caused an error, and name the ranks that may be the cause.

A connection breaks on this rank if the rank at its other end (the peer) is gone or does not answer.
The error comes from torch, and its text names no rank. So this module compares the beats of all
ranks: each rank writes its state into the store every half second, with a growing number and with
the number of collectives that it has entered.

What must stay: every rank that lost a contact calls `_suspects`, which counts these ranks in the
store, so that only the first one compares the beats.
Free to change: the waits, and the pattern of texts, if a new version of torch has other words.

Test: test_a_lost_connection_without_a_cause_is_reported_once_in_the_words_of_torch
(tests/dist/test_dist.py).
"""

import re
import time
from contextlib import suppress

from torch.distributed import DistNetworkError, Store

from utils.dist.beats import FAILURE, read_states, where
from utils.dist.identity import get_rank, get_world_size
from utils.dist.state import RUN
from utils.dist.store_values import ForeignValueError, State
from utils.errors import StallError

# Matches errors of gloo, NCCL and the store whose cause is another rank (a peer) that is gone or
# does not answer:
#
#     text of the error                                     match
#     ... Connection closed by peer ..., Broken pipe        yes
#     ncclRemoteError: ...                                  yes
#     errors of NCCL whose cause is on this rank, e.g. a    no
#     GPU that two ranks use, or a full /dev/shm
PEER_IS_GONE = re.compile(
    r"[Cc]onnection|Broken pipe|gloo/transport|Timed out waiting|wait timeout|"
    r"client socket has timed out|ncclRemoteError|remote process|communicator was aborted|"
    r"pair closure"
)


def is_caused_by_peer(error: BaseException) -> bool:
    """Return whether an error says that another rank (a peer) is gone or does not answer."""
    if isinstance(error, DistNetworkError):
        return True
    # torch raises other errors of a connection as RuntimeError. Only the text tells the cause.
    return isinstance(error, RuntimeError) and PEER_IS_GONE.search(str(error)) is not None


def lost_contact_error(error: BaseException) -> StallError:
    """Return the error of a broken connection. It names the ranks that may be the cause.

    Before naming a rank, this waits for the report of another rank, which may know the cause.
    """
    suspects = ""
    # Reading the beats fails if the store is lost as well, or if a process that is not a rank has
    # written into the store. In both cases, the watchdog reports the fault.
    with suppress(RuntimeError, ForeignValueError):
        suspects = _suspects()
    return StallError(
        what="lost contact with another rank",
        where=suspects or f"rank {get_rank()}",
        expected="all ranks connected",
        do="look into the logs of the other ranks (was the run suspended? raise dist_timeout_s); "
        f"torch says:\n{error}",
    )


# Seconds that a rank with a broken connection waits for the report of the rank that failed first.
# With a shorter wait, this rank could report its lost connection before the other rank reports the
# cause. A longer wait delays the end of the run. Chosen by hand.
WAIT_FOR_REPORT_S = 3.0


def _suspects() -> str:
    """Wait for the report of another rank. Returns the ranks that may have caused the error here.

    E.g. 'rank 3 on gpu7, last seen in phase "forward" at step 120'. Returns "" in three cases:
    another rank has noted a failure, another rank compares the beats, or no rank stands out.
    """
    store = RUN.store
    # Only one rank, the observer, compares the beats of all ranks (the states that they write into
    # the store every half second) before and after the wait. The observer is the first rank that
    # comes here: `add` counts the calls of all ranks, and returns 1 to the first rank.
    call_count = store.add("lost contact", 1)
    is_observer = call_count == 1
    if not is_observer:
        # Wait longer than the observer, so that the observer reports first.
        _wait_for_failure(store, 2 * WAIT_FOR_REPORT_S)
        return ""
    before = read_states(store, get_world_size())
    _wait_for_failure(store, WAIT_FOR_REPORT_S)
    if store.get(FAILURE):
        return ""
    after = read_states(store, get_world_size())
    suspects = _silent_ranks(before, after)
    if not suspects:
        # All ranks beat. A beat may be half a second old. So `before` may lack a collective that a
        # rank had just entered when the connection broke. `after` has all collectives, because it
        # is seconds younger.
        suspects = _ranks_behind(after)
    places = []
    for rank in suspects:
        state = after[rank]
        places.append(f"rank {rank} on {state['host']}, last seen in {where(state)}")
    return "; ".join(places)


def _wait_for_failure(store: Store, seconds: float) -> None:
    """Wait until a rank has noted a failure under the key FAILURE, but at most `seconds`.

    The key is empty as long as there is no failure.
    """
    deadline = time.monotonic() + seconds
    while not store.get(FAILURE) and time.monotonic() < deadline:
        time.sleep(0.1)


def _silent_ranks(before: dict[int, State], after: dict[int, State]) -> list[int]:
    """Return the other ranks that did not beat between two readings of all states.

    A rank beats every half second: it writes its state with a growing number into the store.
    """
    ranks = []
    for rank, state in after.items():
        if rank != get_rank() and state["beat"] == before[rank]["beat"]:
            ranks.append(rank)
    return ranks


def _ranks_behind(states: dict[int, State]) -> list[int]:
    """Return the ranks that have entered the fewest collectives, if other ranks have entered more.

    A collective ends only when every rank has entered it. So if a collective has timed out while
    all ranks beat, the other ranks have waited for these ranks.
    """
    counts = {rank: state["syncs"] for rank, state in states.items()}
    fewest = min(counts.values())
    if max(counts.values()) == fewest:
        return []
    return [rank for rank, count in counts.items() if count == fewest]

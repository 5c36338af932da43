"""Wait for a key of the store, or for a call that may hang, within a time limit.

torch's own waits ignore Ctrl-C, print a message when their time is over, or have no time limit.

What must stay: seconds in which the process is suspended do not count, because a run that was
suspended as a whole must go on when it wakes. Free to change: CHECK_S and the pauses.

Tests: tests/faults/test_startup.py.
"""

import logging
import socket
import time
from collections.abc import Callable
from concurrent import futures
from typing import TypeVar

from torch.distributed import Store

from utils.dist.awake_clock import AwakeClock
from utils.dist.state import LaunchInfo

logger = logging.getLogger(__name__)

# Time limit of each check of the launch, in seconds. A shorter SPIKEVRT_JOIN_TIMEOUT takes its
# place. Python and torch take up to 5 s to start, so a user sees a wrong launch within 15 s. After
# the same 10 s, `wait_for` logs what it waits for.
CHECK_S = 10.0
# Seconds that an `AwakeClock` counts at most between two calls of `now`, because in a longer time
# the process may have been suspended. So `now` must be called at least once in this time.
SLICE_S = 1.0


def wait_for(
    store: Store, key: str, seconds: float, what_is_missing: Callable[[], str] | None = None
) -> bool:
    """Wait until the store has the key. Returns True, or False if the time is over first.

    torch's own wait ignores Ctrl-C, and prints a message when its time is over. So this function
    asks the store again and again: first after 10 ms, then less and less often, in the end every
    quarter of a second.

    seconds: longest time to wait. Time in which the process is suspended does not count.
    what_is_missing: function that returns what this waits for, e.g. "rank 0". The text is logged
        once, after CHECK_S. None to log nothing.
    """
    clock = AwakeClock(slice_s=SLICE_S)
    pause_s = 0.01
    has_warned = False
    while not store.check([key]):
        waited_s = clock.now()
        if waited_s > seconds:
            return False
        if what_is_missing and waited_s > CHECK_S and not has_warned:
            has_warned = True
            logger.warning("waiting for %s", what_is_missing())
        time.sleep(pause_s)
        pause_s = min(0.25, 1.3 * pause_s)  # both numbers are chosen by hand
    return True


# The type of the result of the function that `within` calls.
Result = TypeVar("Result")


def within(seconds: float, function: Callable[[], Result]) -> Result:
    """Return the result of `function`, or raise TimeoutError if it takes longer than `seconds`.

    The function runs in a thread. If the function hangs, its thread stays behind, because Python
    cannot end a thread.
    """
    # Do not use the executor in a `with` block, because the end of the block would wait for the
    # thread, even if the thread hangs.
    call = futures.ThreadPoolExecutor(max_workers=1).submit(function)
    clock = AwakeClock(slice_s=SLICE_S)
    while not call.done():
        left_s = seconds - clock.now()
        if left_s <= 0:
            break
        # Wait for a part of the time only, so that `clock.now` is called often enough.
        futures.wait([call], min(SLICE_S / 2, left_s))
    if not call.done():
        raise TimeoutError(f"no answer in {seconds:.0f} s")
    return call.result()


def rank_on_host(launch: LaunchInfo) -> str:
    """Return the rank and its host, for errors: "rank 1 of 4 on host a (torchrun launch)"."""
    rank = f"rank {launch.rank} of {launch.world_size}"
    return f"{rank} on {socket.gethostname()} ({launch.mode} launch)"

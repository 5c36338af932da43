"""Several ranks fail, one of them first: which error is the cause, and the text that reports it."""

from __future__ import annotations

import re
import time
import traceback

from torch.distributed import DistNetworkError, Store

from utils.dist.beats import FAILURE, read_states, where
from utils.errors import SpikeVRTError, StallError

# Messages of gloo, NCCL and the store about a peer that is gone or does not answer. NCCL's other errors, such as a GPU
# given to two ranks or a full /dev/shm, concern this rank: each of them is a cause.
OF_A_PEER = re.compile(
    r"[Cc]onnection|Broken pipe|gloo/transport|Timed out waiting|wait timeout|client socket has timed out|"
    r"ncclRemoteError|remote process|communicator was aborted"
)
PATIENCE_S = 3.0


def is_consequence(error: BaseException) -> bool:
    """Whether the error follows from the failure of another rank, which that rank or a watchdog will report."""
    found = isinstance(error, DistNetworkError) or OF_A_PEER.search(str(error))
    return isinstance(error, RuntimeError) and bool(found)


def lost_contact(error: BaseException, store: Store, rank: int, world_size: int) -> StallError:
    """The error of a broken connection, with the ranks that stopped beating. First waits for another rank's report."""
    suspects = ""
    try:
        # One rank compares the beats of all ranks before and after the wait; the others give it time to report.
        looks = store.add("lost contact", 1) == 1
        before = read_states(store, world_size) if looks else {}
        deadline = time.monotonic() + (PATIENCE_S if looks else 2 * PATIENCE_S)
        while not store.get(FAILURE) and time.monotonic() < deadline:
            time.sleep(0.1)
        after = read_states(store, world_size) if looks and not store.get(FAILURE) else {}
        suspects = "; ".join(
            f"rank {other} on {state['host']}, last seen in {where(state)}"
            for other, state in after.items()
            if other != rank and state["beat"] == before[other]["beat"]
        )
    except RuntimeError:  # the store is lost as well
        pass
    return StallError(
        "lost contact with another rank", suspects or f"rank {rank}", "all ranks alive and connected",
        f"look into the logs of the other ranks and of their hosts; torch says:\n{error}",
    )  # fmt: skip


def text_of(error: BaseException, rank: int, world_size: int) -> str:
    """The four parts of an error of this project, else the whole traceback with the rank before each line."""
    if isinstance(error, SpikeVRTError):
        return str(error)
    if isinstance(error, KeyboardInterrupt):
        return "Interrupted (Ctrl-C). The same command continues from what was saved last."
    prefix = f"[rank {rank}] " if world_size > 1 else ""
    lines = "".join(traceback.format_exception(error)).rstrip().splitlines()
    return "\n".join(prefix + line for line in lines)

"""Keep the state of the run in this process: `RUN`, one object for each process.

RUN holds the rank of this process, the number of ranks, the store by which the ranks exchange short
texts, and the present phase of the main thread.

Only `utils_dist` and the modules of utils/dist change RUN.

What must stay: a field gets a new value in one assignment, and the object that a field holds is
never changed in place. The main thread writes the fields, while the threads of the watchdog and of
the status file read them without a lock.

`utils_dist._forget_run` resets the fields at the end of a run. A new field of a run needs a line in
that function.
"""

import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

# Seconds that the ranks wait for one another at the start if SPIKEVRT_JOIN_TIMEOUT is not set.
# Ranks may be started minutes apart. Chosen by hand. docs/ddp_reference.md names the number too.
JOIN_S = 300.0


@dataclass(frozen=True)
class LaunchInfo:
    """How this process was launched. `utils.dist.platforms.read_launch` makes it."""

    # "single", "torchrun", "slurm", or "platform" if a cloud or a user has set the variables.
    mode: str
    rank: int = 0  # number of this rank: 0 ... world_size - 1
    # Number of this rank among the ranks of its host. The rank computes on the GPU of this number.
    local_rank: int = 0
    world_size: int = 1  # number of ranks
    # Host and port at which the key-value store of the run listens.
    master_addr: str = ""
    master_port: int = 0
    # Who opens the store: torchrun's agent (True) or rank 0 (False). An agent is the parent process
    # of the ranks of one node. An agent may end before the ranks of other nodes, and its store ends
    # with it.
    is_store_of_agent: bool = False
    join_s: float = JOIN_S  # seconds that the ranks wait for one another at the start
    timeout_s: float = 0  # NCCL_TIMEOUT: time-out of a collective in seconds; 0 if it is not set


class Place(NamedTuple):
    """What the main thread does at present, and since when."""

    phase: str = "start"  # name of the phase, e.g. "forward"
    step: int = 0  # number of optimizer steps so far
    since: float = 0.0  # time.monotonic() at which the phase began
    # How many collectives the main thread has entered so far. A collective ends only when all ranks
    # have entered it. So if a run hangs, the rank that has entered the fewest keeps the others
    # waiting.
    syncs: int = 0


def _start_now() -> Place:
    """Return the phase "start", which begins now."""
    return Place(since=time.monotonic())


class Reported(NamedTuple):
    """An error that `failure.report_error` has handled on this rank."""

    error: BaseException
    code: int  # the exit code with which this rank ends


@dataclass
class Run:
    """The state of the run, as this process knows it."""

    # ---- The launch ----
    launch: LaunchInfo = LaunchInfo("single")
    # The key-value store of the ranks, a torch.distributed.Store. Any, because scripts that need no
    # torch start without it. None in a single process.
    store: Any = None
    # A secret that the launcher gives to all ranks of this start. A rank signs with it what it
    # writes into the store (store_values.py). Empty if the launcher gives none.
    job_key: bytes = b""
    # A utils.dist.watchdog_thread.Watchdog. Any, because that module imports this one.
    watchdog: Any = None
    # The time-out of the process group, in seconds.
    timeout_s: float = float("inf")
    # How often `all_ranks_or_none` (agreement.py) was called. Each call uses the number in its keys
    # of the store, so that no call reads keys of an earlier one.
    rounds: int = 0

    # ---- The data ----
    # Before a training, all files of its data sets are checked. The result for a data set is a
    # record, a file in this folder, so that later runs need not check again (data/clips/kept.py).
    # None to keep no records.
    checks_folder: Path | None = None
    # The records of this run: digest of the options of a data set -> id of its record.
    record_ids: dict[str, Any] = field(default_factory=dict)

    # ---- Where the main thread is ----
    # At first this is the phase "start", which begins when this object is made (`_start_now`).
    place: Place = field(default_factory=_start_now)
    # A text that is added to the name of each phase. E.g. during a validation the text is " in
    # validate", so the phase of a forward pass is "forward in validate". `watchdog.stage` sets the
    # text.
    stage: str = ""
    # The facts of this rank for the status file: the newest value of each argument of `tell`.
    facts: dict[str, Any] = field(default_factory=dict)

    # ---- The end ----
    # time.monotonic() at which a signal asked for a stop. 0 if no signal has asked.
    stop_requested_at: float = 0.0
    # The error that ends this process. None as long as there is none.
    reported: Reported | None = None
    # Several threads may try to end this process. The first one takes this lock (`leave.leave`).
    leaving: threading.Lock = field(default_factory=threading.Lock)


RUN = Run()


def tell(**facts: Any) -> None:
    """Keep facts of this rank for the status file. A fact of the same name is replaced.

    The facts go into each beat as JSON. `status.status_line` needs all of these facts, except gpu:

        device          name of the device
        samples         number of samples of this rank in an epoch
        first           indices of the first three samples of this start, e.g. [17, 4, 230]
        weights         digest of the weights after the step `weights_step`
        weights_step    number of this step
        loss_is_finite  whether the loss of the newest step is finite
        gpu             text of gpu.describe at the newest log line
    """
    # A new dict, because another thread may be reading the old one.
    RUN.facts = {**RUN.facts, **facts}

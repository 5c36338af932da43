"""Who this process is in its run, and where it stands: `RUN`, one object for each process.

`utils_dist` and the modules beside this one change the state, nothing else does. The main thread
writes it; the threads of the watchdog and of the status file read it.
"""

import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple


@dataclass(frozen=True)
class LaunchInfo:
    """How this process was launched.

    mode: "single", "torchrun", "slurm", or "platform": variables set by hand or by a cloud.
    rank: number of this rank: 0 ... world_size - 1.
    local_rank: its number among the ranks of its host, and so the number of its GPU.
    world_size: number of ranks.
    master_addr, master_port: where the key-value store of the run listens.
    by_agent: whether torchrun's agent opens the store at this port. Else rank 0 opens it. An agent
        outlives the ranks of its node, but not the ranks of the other nodes.
    join_s: seconds that the ranks wait for one another at the start.
    timeout_s: NCCL_TIMEOUT, the time-out of a collective in seconds. 0 if it is not given.
    """

    mode: str
    rank: int = 0
    local_rank: int = 0
    world_size: int = 1
    master_addr: str = ""
    master_port: int = 0
    by_agent: bool = False
    join_s: float = 300
    timeout_s: float = 0


class Place(NamedTuple):
    """Where the main thread is.

    phase: what it does, e.g. "forward".
    step: number of optimizer steps so far.
    since: time.monotonic() at which it entered the phase.
    syncs: number of collectives that it has entered. The ranks wait for the rank with the fewest.
    """

    phase: str = "start"
    step: int = 0
    since: float = 0.0
    syncs: int = 0


@dataclass
class Run:
    """What this process knows of its run."""

    # ---- The launch ----
    launch: LaunchInfo = LaunchInfo("single")
    # The key-value store of the ranks, a torch.distributed.Store. Any, because scripts that need no
    # torch start without it. None in a single process.
    store: Any = None
    # The secret of this start of the run, which its ranks share. Empty if there is none.
    job_key: bytes = b""
    # A utils.dist.watchdog.Watchdog. Any, because that module imports this one.
    watchdog: Any = None
    # The time-out of the process group, in seconds.
    timeout_s: float = float("inf")
    # How often `all_ranks_or_none` was called. The number is equal on all ranks.
    rounds: int = 0

    # ---- The data ----
    # The folder for what was found in the data, for later runs. None to keep nothing.
    kept: Path | None = None
    # What this run has checked in that folder, see data/clips/kept.py.
    checked: dict[str, Any] = field(default_factory=dict)

    # ---- Where the main thread is ----
    place: Place = field(default_factory=lambda: Place(since=time.monotonic()))
    # " in <name>" within `watchdog.stage`, else empty.
    stage: str = ""
    # What `tell` was given.
    facts: dict[str, Any] = field(default_factory=dict)

    # ---- The end ----
    # time.monotonic() at which a signal asked for a stop. 0 if none has.
    stop_requested: float = 0.0
    # The error that ends this process, and its exit code.
    reported: tuple[BaseException, int] | None = None
    # The thread that ends this process has this lock.
    leaving: threading.Lock = field(default_factory=threading.Lock)


RUN = Run()


def tell(**facts: Any) -> None:
    """Keep facts of this rank for the status file. Facts that were told before stay.

    device: name of the device.
    samples: number of samples of this rank in an epoch. first: indices of the first three.
    weights: digest of the weights after step weights_step.
    loss_is_finite: whether the loss of the newest step is finite.
    gpu: the text of gpu.describe at the newest log line.
    """
    # A new dict, because another thread may be reading the old one.
    RUN.facts = {**RUN.facts, **facts}

"""Who this process is in its run, and where it stands.

`utils_dist` and the modules beside this one change the state, nothing else does.
"""

import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple


@dataclass(frozen=True)
class LaunchInfo:
    """mode: "single", "torchrun", "platform" (variables injected by hand or by a cloud) or "slurm".

    by_agent: torchrun's agent hosts the store on that port; it outlives the ranks of its node, not
    those of the others.
    join_s: how long the ranks wait for one another. timeout_s: NCCL_TIMEOUT, of a collective; 0:
    not given.
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
    """Where the main thread is. syncs: collectives entered so far; the other ranks wait for the one
    with the fewest.
    """

    phase: str = "start"
    step: int = 0
    since: float = 0.0
    syncs: int = 0


@dataclass
class Run:
    """Written by the main thread only; the threads of the watchdog and of the status file read it.

    rounds: calls of `all_ranks_or_none`, equal on all ranks. timeout_s: of the process group.
    stage: " in <name>" within `watchdog.stage`. facts: what `tell` was given. stop_requested: when,
    by a signal; 0: not. reported: the error that ends this process, and its exit code. leaving:
    held by the thread that ends this process. kept: folder of what was found in the data, for later
    runs; None: nothing is kept. checked: what this run has checked in that folder, see
    data/clips/kept.py.
    """

    launch: LaunchInfo = LaunchInfo("single")
    store: Any = None  # torch.distributed.Store; the scripts that need no torch start without it
    kept: Path | None = None
    checked: dict[str, Any] = field(default_factory=dict)
    job_key: bytes = b""  # secret of this start of the run, shared by its ranks; empty: none
    watchdog: Any = None  # utils.dist.watchdog.Watchdog, which imports this module
    timeout_s: float = float("inf")
    rounds: int = 0
    place: Place = field(default_factory=lambda: Place(since=time.monotonic()))
    stage: str = ""
    facts: dict[str, Any] = field(default_factory=dict)
    stop_requested: float = 0.0
    reported: tuple[BaseException, int] | None = None
    leaving: threading.Lock = field(default_factory=threading.Lock)


RUN = Run()


def tell(**facts: Any) -> None:
    """Keep these facts of this rank for the status file. Plain types only.

    device; samples (of this rank, each epoch) and first (indices of the first three); weights,
    their hash, at weights_step; loss_is_finite, of the newest step; gpu, the text of gpu.describe
    at the newest log line.
    """
    RUN.facts = {**RUN.facts, **facts}  # never changed in place: another thread may be reading it

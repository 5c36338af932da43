"""The state of this process within its run. utils_dist and the modules beside this one change it, nothing else does."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from utils.dist.launch import LaunchInfo

if TYPE_CHECKING:  # the scripts that need no torch start without it
    from torch.distributed import Store


class Place(NamedTuple):
    """Where the main thread is. syncs: collectives entered so far; the other ranks wait for the one with the fewest."""

    phase: str = "start"
    step: int = 0
    since: float = 0.0
    syncs: int = 0


@dataclass
class Run:
    """Written by the main thread only; the threads of the watchdog and of the status file read it.

    rounds: calls of `all_ranks_or_none`, equal on all ranks. timeout_s: of the process group. stage: " in <name>" within
    `watchdog.stage`. facts: what `status.tell` was given. stop_requested: when, by a signal; 0: not. reported: the error
    that ends this process, and its exit code. leaving: held by the thread that ends this process.
    """

    launch: LaunchInfo = field(default_factory=lambda: LaunchInfo("single"))
    store: Store | None = None
    hosts_store: bool = False
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

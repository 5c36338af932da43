"""The state of this process in its run, and one line about every rank: at the start, and after ``touch <run>/status``.

utils_dist and the modules beside this one change the state, nothing else does. The watchdog of each rank publishes it
with every beat. A thread of rank 0, with its own connection, reads the beats and writes the lines into the file that
was touched. So the answer comes while the ranks compute, wait for one another or hang, and slows none of them.
"""

import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from utils.dist.launch import LaunchInfo
from utils.errors import DataError
from utils.files import write_whole

if TYPE_CHECKING:  # the scripts that need no torch start without it
    from torch.distributed import Store

STATUS_NAME, POLL_S = "status", 1.0


class Place(NamedTuple):
    """Where the main thread is. syncs: collectives entered so far; the other ranks wait for the one with the fewest."""

    phase: str = "start"
    step: int = 0
    since: float = 0.0
    syncs: int = 0


@dataclass
class Run:
    """Written by the main thread only; the threads of the watchdog and of the status file read it.

    rounds: calls of `all_ranks_or_none`, equal on all ranks. timeout_s: of the process group. stage: " in <name>"
    within `watchdog.stage`. facts: what `tell` was given. stop_requested: when, by a signal; 0: not. reported: the
    error that ends this process, and its exit code. leaving: held by the thread that ends this process. kept: folder of
    what was found in the data, for later runs; None: nothing is kept.
    """

    launch: LaunchInfo = field(default_factory=lambda: LaunchInfo("single"))
    store: "Store | None" = None
    kept: Path | None = None
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

    device; samples (of this rank, each epoch) and first (indices of the first three); weights, their hash, at
    weights_step; loss_is_finite, of the newest step; gpu, the text of gpu.describe at the newest log line.
    """
    RUN.facts = {**RUN.facts, **facts}  # never changed in place: another thread may be reading it


def status_line(rank: int | None = None, state: dict[str, Any] | None = None) -> str:
    """Host, process, place in the run, weights and share of the data of a rank, from its newest beat; of this rank
    without arguments."""
    if state is None:
        place = RUN.place
        state = {
            "host": socket.gethostname(), "pid": os.getpid(), "step": place.step,
            "age": time.monotonic() - place.since, "phase": place.phase, "facts": RUN.facts,
        }  # fmt: skip
    facts = state["facts"]
    parts = [
        f"rank {RUN.launch.rank if rank is None else rank} of {RUN.launch.world_size} on {state['host']}, "
        f"{facts['device']}, pid {state['pid']}",
        f'step {state["step"]}, {state["age"]:.1f} s in phase "{state["phase"]}"',
        f"loss {'finite' if facts['loss_is_finite'] else 'NaN or Inf'}",
        f"weights {facts['weights']} at step {facts['weights_step']}",
        f"{facts['samples']} samples an epoch, first {', '.join(map(str, facts['first'])) or 'none left of this one'}",
    ]
    return "; ".join([*parts, *filter(None, [facts.get("gpu")])])


@contextmanager
def answering(folder: Path) -> Iterator[None]:
    """Within the block, rank 0 answers in `folder`/status each time that file is touched."""
    if RUN.launch.rank:
        yield
        return
    path, over = folder / STATUS_NAME, threading.Event()
    store = RUN.store.clone() if RUN.store else None  # each thread needs a connection of its own

    def answer() -> None:
        answered = _time_of(path) if path.exists() and path.stat().st_size else None
        with suppress(RuntimeError):  # the store is lost, so the run is ending
            while not over.wait(POLL_S):
                if _time_of(path) in (None, answered):
                    continue
                over.wait(POLL_S)  # for a beat that is newer than the request
                beats = store.multi_get([f"beat/{rank}" for rank in range(RUN.launch.world_size)]) if store else []
                lines = [status_line(rank, json.loads(beat)) for rank, beat in enumerate(beats)] or [status_line()]
                text = "\n".join([time.strftime("%Y-%m-%d %H:%M:%S"), *lines, ""])
                with suppress(DataError):  # a full disk: the next request may succeed
                    write_whole(path, text.encode())
                answered = _time_of(path)

    threading.Thread(target=answer, daemon=True, name="status").start()
    try:
        yield
    finally:
        over.set()


def _time_of(path: Path) -> int | None:
    with suppress(OSError):
        return path.stat().st_mtime_ns
    return None

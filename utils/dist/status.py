"""Describe every rank in one line: in the log at the start, and in <run>/status on request.

A user types `touch <run>/status`, and reads the file after some seconds:

    rank 0 of 2 on host7, cuda:0, pid 4711; step 120, 0.4 s in phase "forward"; loss finite; ...

Every half second the watchdog of each rank writes a record, its beat, into the key-value store of
the run (utils.dist.beats). A thread of rank 0, with its own connection to the store, reads the
beats and writes the lines into the file. The main threads do nothing for this answer. So the answer
comes even if the ranks wait for one another or hang, and it slows no rank.

What must stay: the facts of a line and their order, because users and scripts read the lines
(docs/ddp_reference.md shows a line). A new fact goes to the end of a line.

Tests: tests/faults/test_stalls.py.
"""

import os
import socket
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from utils.dist.state import RUN
from utils.dist.store_values import ForeignValueError, State, printable_text, read_state
from utils.errors import DataError
from utils.files import write_whole
from utils.words import counted

STATUS_NAME = "status"
# Seconds between two looks at the file. After a request, `_answer` waits for POLL_S again, so that
# each rank writes a new beat before the answer. So POLL_S must be longer than the time between two
# beats, which is half a second (BEAT_S, beats.py).
POLL_S = 1.0


def status_line(rank: int | None = None, state: State | None = None) -> str:
    """Return host, process, phase, weights and samples of a rank, in one line.

    E.g. 'rank 0 of 2 on host7, cuda:0, pid 4711; step 120, 0.4 s in phase "forward"; loss finite;
    weights 5f0c6b7d1e2a at step 100; 37 samples an epoch, first 17, 4, 230'. The 12 digits are a
    digest of all weights after a step, by which a user sees whether two ranks agree.

    rank: number of the rank, or None for this rank.
    state: the last beat of the rank: host, pid, step, phase, age and facts. None for this rank.

    Raises KeyError or TypeError if the facts of a beat are incomplete, e.g. because another program
    wrote the beat.
    """
    if state is None:
        state = _own_state()
    if rank is None:
        rank = RUN.launch.rank
    facts: dict[str, Any] = state["facts"]  # `tell` (state.py) lists them
    # The first samples of this start of the run, e.g. "17, 4, 230" (utils/run/start_lines.py). The
    # list is empty if the epoch had no sample left when the run started. In a forged beat, the
    # items may be texts that move a terminal's cursor, and `printable_text` replaces these texts.
    first = printable_text(", ".join(str(index) for index in facts["first"]))
    if not first:
        first = "none left of this epoch"
    loss = "finite" if facts["loss_is_finite"] else "NaN or Inf"
    parts = [
        f"rank {rank} of {RUN.launch.world_size} on {state['host']}, {facts['device']}, "
        f"pid {state['pid']}",
        f'step {state["step"]}, {state["age"]:.1f} s in phase "{state["phase"]}"',
        f"loss {loss}",
        f"weights {facts['weights']} at step {facts['weights_step']}",
        f"{counted(facts['samples'], 'sample')} an epoch, first {first}",
    ]
    if facts.get("gpu"):
        parts.append(facts["gpu"])
    return "; ".join(parts)


def _own_state() -> State:
    """Return what `status_line` needs of this rank, under the keys of a beat."""
    place = RUN.place
    return {
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "step": place.step,
        "age": time.monotonic() - place.since,
        "phase": place.phase,
        "facts": RUN.facts,
    }


@contextmanager
def answering(folder: Path) -> Generator[None]:
    """Within the block, answer on rank 0 each time that a user touches the file `folder`/status.

    The answer is written into this file.

    folder: the folder of the run.
    """
    is_rank_0 = RUN.launch.rank == 0
    if not is_rank_0:
        yield
        return
    over = threading.Event()
    threading.Thread(target=_answer, args=(folder, over), daemon=True, name="status").start()
    try:
        yield
    finally:
        over.set()


def _answer(folder: Path, over: threading.Event) -> None:
    """Answer requests until `over` is set. Runs in a thread of rank 0.

    A request is a new time of the file `folder`/status, which `touch` sets.
    """
    path = folder / STATUS_NAME
    store = RUN.store.clone() if RUN.store else None  # each thread needs a connection of its own
    # The time of the file after the newest answer. If the file has another time, somebody has
    # touched it. At the start:
    #
    #     there is no file        None
    #     the file is empty       None. `touch` has made the file, so it is a request
    #     the file has content    time of the file. It is an answer of an earlier run
    answered_at = None
    if path.exists() and path.stat().st_size:
        answered_at = _time_of(path)
    with suppress(RuntimeError):  # the store is lost, so the run is ending
        while not over.wait(POLL_S):
            touched_at = _time_of(path)  # None if there is no file
            is_request = touched_at is not None and touched_at != answered_at
            if not is_request:
                continue
            over.wait(POLL_S)  # meanwhile each rank writes a beat that is newer than the request
            lines = [time.strftime("%Y-%m-%d %H:%M:%S"), *_lines(store), ""]
            with suppress(DataError):  # a full disk: the next request may succeed
                write_whole(path, "\n".join(lines).encode())
            answered_at = _time_of(path)


def _lines(store: Any) -> list[str]:
    """Return the line of every rank, in the order of the ranks.

    store: this thread's connection to the store of the run, or None in a single process.
    """
    if store is None:
        return [status_line()]
    keys = [f"beat/{rank}" for rank in range(RUN.launch.world_size)]
    beats = store.multi_get(keys)  # in the order of the keys
    lines = []
    for rank, beat in enumerate(beats):
        try:
            lines.append(status_line(rank, read_state(rank, beat)))
        except (ForeignValueError, KeyError, TypeError):
            lines.append(f"rank {rank}: what the store holds is no beat of this run")
    return lines


def _time_of(path: Path) -> int | None:
    """Return the time at which a file was changed or touched, or None if there is no file."""
    with suppress(OSError):
        return path.stat().st_mtime_ns
    return None

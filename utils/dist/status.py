"""One line about every rank, at the start of a run and on request: ``touch <folder of the run>/status``.

Each rank keeps a few facts in the store of the run, beside the heartbeat of its watchdog. A thread of rank 0, with its
own connection, reads both and writes the lines into the file that was touched. So the answer comes while the ranks
compute, wait for one another or hang, and slows none of them.
"""

from __future__ import annotations

import json
import os
import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from torch.distributed import Store

from utils import utils_dist
from utils.dist import gpu_use
from utils.dist.state import RUN
from utils.errors import DataError
from utils.files import write_whole

FILE = "status"
_ANSWER = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\nrank 0 of ")
POLL_S = 1.0
PATIENCE_S = 2.0  # for the next beat of a rank


def tell(**facts: Any) -> None:
    """Keep these facts of this rank for the status file. Plain types only.

    device; samples (of this rank, each epoch) and first (indices of the first three); weights, their hash, at
    weights_step; loss_is_finite, of the newest step; gpu, its use at the newest log line (gpu_use.usage).
    """
    RUN.facts = {**RUN.facts, **facts}  # never changed in place: another thread may be reading it
    if RUN.store is not None:
        RUN.store.set(f"facts/{RUN.launch.rank}", json.dumps(RUN.facts))


def own_line() -> str:
    """The line of this rank."""
    return line(utils_dist.get_rank(), utils_dist.get_world_size(), _own_beat(), RUN.facts)


def line(rank: int, world_size: int, beat: dict[str, Any], facts: dict[str, Any]) -> str:
    """The line of a rank: host, process, place in the run, weights, share of the data."""
    parts = [
        f"rank {rank} of {world_size} on {beat['host']}, {facts['device']}, pid {beat['pid']}",
        f'step {beat["step"]}, {beat["age"]:.1f} s in phase "{beat["phase"]}"',
        f"loss {'finite' if facts['loss_is_finite'] else 'NaN or Inf'}",
        f"weights {facts['weights']} at step {facts['weights_step']}",
        f"{facts['samples']} samples an epoch, first {', '.join(map(str, facts['first'])) or 'none left of this one'}",
    ]
    parts += [gpu_use.describe(facts["gpu"])] if facts.get("gpu") else []
    return "; ".join(parts)


@contextmanager
def answering(folder: Path) -> Iterator[None]:
    """Within the block, rank 0 answers in `folder`/status each time that file is touched."""
    if not utils_dist.is_main_process():
        yield
        return
    over = threading.Event()
    store = RUN.store.clone() if RUN.store else None  # each thread needs a connection of its own
    arguments = (folder / FILE, store, utils_dist.get_world_size(), over)
    thread = threading.Thread(target=_answer, args=arguments, daemon=True, name="status")
    thread.start()
    try:
        yield
    finally:
        over.set()


def _answer(path: Path, store: Store | None, world_size: int, over: threading.Event) -> None:
    answered = _time_of(path) if _is_answer(path) else None
    with suppress(RuntimeError):  # the store is lost, so the run is ending
        while not over.wait(POLL_S):
            touched = _time_of(path)
            if touched is None or touched == answered or not _is_question(path):
                continue
            with suppress(DataError):  # a full disk: the next request may succeed
                write_whole(path, "".join(f"{text}\n" for text in _lines(store, world_size, over)).encode())
            answered = _time_of(path)


def _lines(store: Store | None, world_size: int, over: threading.Event) -> list[str]:
    now = time.strftime("%Y-%m-%d %H:%M:%S")
    if store is None:
        return [now, own_line()]
    beats = _beats_from_now(store, world_size, over)
    facts = _of_all_ranks(store, "facts", world_size)
    return [now, *(line(rank, world_size, beats[rank], facts[rank]) for rank in range(world_size))]


def _beats_from_now(store: Store, world_size: int, over: threading.Event) -> list[dict[str, Any]]:
    """The next beat of each rank, as the last one may be older than the request; of a silent rank the last one."""
    last = _of_all_ranks(store, "beat", world_size)
    deadline = time.monotonic() + PATIENCE_S
    while True:
        beats = _of_all_ranks(store, "beat", world_size)
        are_new = all(beat["beat"] > before["beat"] for beat, before in zip(beats, last, strict=True))
        if are_new or time.monotonic() > deadline or over.wait(0.1):
            return beats


def _of_all_ranks(store: Store, kind: str, world_size: int) -> list[dict[str, Any]]:
    """The entry `kind` of all ranks; each has one before training begins."""
    return [json.loads(value) for value in store.multi_get([f"{kind}/{rank}" for rank in range(world_size)])]


def _own_beat() -> dict[str, Any]:
    place = RUN.place
    age = time.monotonic() - place.since
    return {"host": socket.gethostname(), "pid": os.getpid(), "step": place.step, "age": age, "phase": place.phase}


def _is_question(path: Path) -> bool:
    """Whether the file is empty, or an answer of ours that was touched again."""
    with suppress(OSError):
        return path.stat().st_size == 0 or _is_answer(path)
    return False


def _is_answer(path: Path) -> bool:
    """Whether the file holds an answer; any other file of that name is left alone."""
    try:
        return bool(_ANSWER.match(path.read_text(errors="replace")))
    except OSError:
        return False


def _time_of(path: Path) -> int | None:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return None

"""Kills a process at a random moment while it saves one checkpoint after the other.

The newest checkpoint whose save had returned must be readable afterwards. tests/faults/trials.py
runs `kill_while_saving`.
"""

import os
import random
import signal
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from utils.errors import CheckpointError
from utils.run import checkpoint

# Numbers of a checkpoint: 4 MB. Writing them takes so long that a kill often comes within a write.
FLOATS = 2**20
# Longest time from the first save to the kill, in seconds. In this time a process makes some tens
# of saves.
LONGEST_S = 0.3


def write_for_ever(folder: Path, acknowledge: int) -> None:
    """Save again and again. After each save that has returned, write a byte.

    acknowledge: descriptor for the bytes.
    """
    step = 0
    while True:
        step += 1
        state = {"step": step, "weights": torch.full((FLOATS,), float(step))}
        # keep is 1 and 0 in turn, so that a kill can come in both kinds of saves. With 0, the new
        # file takes the place of the old file. With 1, the old file is kept under another name.
        checkpoint.save(state, folder / "checkpoint_latest.pth", keep=step % 2)
        os.write(acknowledge, b".")


def kill_while_saving(trials: int) -> dict[str, Any]:
    """Kill this number of writers. Returns the number of trials and what became of them:

    torn: trials in which the writer was in the middle of a write.
    unreadable: trials after which nothing could be loaded.
    lost: trials after which the loaded checkpoint was older than the last save that had returned,
        or had another content.
    """
    # The writers are forked. A fork copies only the thread that forks, so the threads of a pool
    # would be missing in the writer. With one thread, torch makes no pool.
    torch.set_num_threads(1)
    rng = random.Random(0)
    unreadable = 0
    lost = 0
    torn = 0
    for _ in range(trials):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            acknowledged = saves_until_killed(folder, rng)
            if any(folder.glob(".*.tmp")):
                torn += 1
            try:
                state = checkpoint.load(folder / "checkpoint_latest.pth")
            except CheckpointError:
                unreadable += 1
                continue
            is_older = state["step"] < acknowledged
            has_own_content = bool((state["weights"] == state["step"]).all())
            if is_older or not has_own_content:
                lost += 1
    return {"trials": trials, "torn": torn, "unreadable": unreadable, "lost": lost}


def saves_until_killed(folder: Path, rng: random.Random) -> int:
    """Fork a writer, and kill it at a random moment after its first save.

    Returns the number of its saves that had returned.
    """
    receive, acknowledge = os.pipe()
    writer = os.fork()
    if writer == 0:
        # This is the writer. It never returns: if it raised an error, it would go on as a second
        # copy of this program.
        write_for_ever(folder, acknowledge)
    os.close(acknowledge)
    acknowledged = len(os.read(receive, 1))  # waits for the first save
    time.sleep(rng.uniform(0, LONGEST_S))
    os.kill(writer, signal.SIGKILL)
    os.waitpid(writer, 0)
    # The writer has ended, so the pipe ends (b"") after the bytes that are still in it.
    while os.read(receive, 1):
        acknowledged += 1
    os.close(receive)
    return acknowledged

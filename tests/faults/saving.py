"""SIGKILL while checkpoints are written back to back: the newest acknowledged one must be readable
afterwards.
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

FLOATS = 2**20  # 4 MB


def write_for_ever(folder: Path, acknowledge: int) -> None:
    """Save again and again; a byte into the descriptor `acknowledge` after each save that has
    returned.
    """
    step = 0
    while True:
        step += 1
        state = {"step": step, "weights": torch.full((FLOATS,), float(step))}
        checkpoint.save(state, folder / "checkpoint_latest.pth", keep=step % 2)
        os.write(acknowledge, b".")


def kill_while_saving(trials: int) -> dict[str, Any]:
    """torn: killed in the middle of a write. unreadable: nothing could be loaded. lost: the loaded
    one is older than the last save acknowledged, or its content is not what was saved.
    """
    torch.set_num_threads(1)  # the writers are forked: no pool of threads may exist
    rng, unreadable, lost, torn = random.Random(0), 0, 0, 0
    for _ in range(trials):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            receive, acknowledge = os.pipe()
            writer = os.fork()
            if writer == 0:
                write_for_ever(folder, acknowledge)
            os.close(acknowledge)
            acknowledged = len(os.read(receive, 1))  # the first save stands
            time.sleep(rng.uniform(0, 0.3))
            os.kill(writer, signal.SIGKILL)
            os.waitpid(writer, 0)
            while byte := os.read(receive, 1):
                acknowledged += len(byte)
            os.close(receive)
            torn += any(folder.glob(".*.tmp"))
            try:
                state = checkpoint.load(folder / "checkpoint_latest.pth")
            except CheckpointError:
                unreadable += 1
                continue
            lost += state["step"] < acknowledged or not bool(
                (state["weights"] == state["step"]).all()
            )
    return {"trials": trials, "torn": torn, "unreadable": unreadable, "lost": lost}

"""SIGKILL while checkpoints are written back to back: the newest acknowledged one must be readable afterwards.

python -m tests.faults.saving FOLDER     the writer that gets killed
"""

from __future__ import annotations

import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from tests.dist.launching import ROOT, clean_env
from utils import utils_checkpoint
from utils.utils_errors import CheckpointError

FLOATS = 2**20  # 4 MB


def write_for_ever(folder: Path) -> None:
    """Save again and again; each line on stdout acknowledges a save that has returned."""
    step = 0
    while True:
        step += 1
        state = {"step": step, "weights": torch.full((FLOATS,), float(step))}
        utils_checkpoint.save(state, folder / "checkpoint_latest.pth")
        print(step, flush=True)


def kill_while_saving(trials: int) -> dict[str, Any]:
    """unreadable: no file could be loaded. lost: the loaded one is older than the last save acknowledged."""
    rng, unreadable, lost, torn = random.Random(0), 0, 0, 0
    for _ in range(trials):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.faults.saving", name],
                cwd=ROOT,
                env=clean_env(),
                stdout=subprocess.PIPE,
                text=True,
            )
            process.stdout.readline()  # the first save stands
            time.sleep(rng.uniform(0, 0.3))
            process.kill()
            acknowledged = 1 + len(process.stdout.read().split())
            process.wait()
            torn += any(folder.glob(".*.tmp"))
            try:
                state = utils_checkpoint.load(folder / "checkpoint_latest.pth")
            except CheckpointError:
                unreadable += 1
                continue
            lost += state["step"] < acknowledged or not bool((state["weights"] == state["step"]).all())
    return {"trials": trials, "torn": torn, "unreadable": unreadable, "lost": lost}


if __name__ == "__main__":
    write_for_ever(Path(sys.argv[1]))
